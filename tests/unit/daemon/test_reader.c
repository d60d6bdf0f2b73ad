/* Reading saved data while the job goes on. */
#include "tests/unit/daemon/saved_fixture.h"

#include "tests/ztest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nvme/sim/engine_fault.h"

#define R_STAGING (192u << 10)

/* Client 1's reader. */
struct reader {
    uint64_t id;
    uint8_t *staging;
};

static int reader_open_at(struct saved_world *s, unsigned c, char *snapshot, struct reader *r)
{
    Zp__ReaderOpen q = ZP__READER_OPEN__INIT;
    Zp__ReaderOpenReply *reply;
    char job[] = "j";
    int rc;

    q.job = job;
    q.snapshot = snapshot;
    q.staging_bytes = R_STAGING;
    rc = call(&s->w, c, zsd_reader_open, &q);
    if (rc != 0)
        return rc;
    reply = zp__reader_open_reply__unpack(NULL, answers[c].len, answers[c].bytes);
    assert_non_null(reply);
    assert_int_equal(reply->units, UNITS);
    assert_int_equal(reply->world, 1);
    assert_int_equal(reply->staging_bytes, R_STAGING);
    r->id = reply->reader;
    r->staging = mmap(NULL, R_STAGING, PROT_READ | PROT_WRITE, MAP_SHARED, answers[c].fd, 0);
    assert_ptr_not_equal(r->staging, MAP_FAILED);
    zb_close_fd(&answers[c].fd);
    zp__reader_open_reply__free_unpacked(reply, NULL);
    return 0;
}

static int reader_open(struct saved_world *s, unsigned c, struct reader *r)
{
    char newest[] = "";

    return reader_open_at(s, c, newest, r);
}

static void reader_unmap(struct reader *r)
{
    (void)munmap(r->staging, R_STAGING);
}

static void read_ask(struct saved_world *s, unsigned c, unsigned tag, const struct reader *r,
                     uint32_t unit, uint32_t what, uint64_t first, uint64_t count, uint64_t staging)
{
    Zp__ReaderRead q = ZP__READER_READ__INIT;

    q.reader = r->id;
    q.unit = unit;
    q.what = what;
    q.first = first;
    q.count = count;
    q.staging = staging;
    ask_as(&s->w, c, tag, zsd_reader_read, &q);
}

static uint32_t elem_bytes(const struct saved_world *s, uint32_t what)
{
    return what == ZK_PARAM ? (uint32_t)zb_dtype_bytes(s->dtype) : (uint32_t)sizeof(float);
}

static int reader_read(struct saved_world *s, unsigned c, const struct reader *r, uint32_t unit,
                       uint32_t what, uint64_t first, uint64_t count)
{
    read_ask(s, c, c, r, unit, what, first, count, 64);
    return answer(&s->w, c);
}

/* Reads, and compares with `truth`; bytes outside of the range are unchanged. */
static void read_equals(struct saved_world *s, unsigned c, const struct reader *r, uint32_t unit,
                        uint32_t what, uint64_t first, uint64_t count, const uint8_t *truth)
{
    uint64_t bytes = count * elem_bytes(s, what);

    memset(r->staging, 0x5a, R_STAGING);
    if (reader_read(s, c, r, unit, what, first, count) != 0)
        fail_msg("%s", answers[c].text);
    if (memcmp(r->staging + 64, truth + first * elem_bytes(s, what), bytes) != 0)
        fail_msg("unit %u, what %u, %llu elements from %llu", unit, what, (unsigned long long)count,
                 (unsigned long long)first);
    for (uint64_t i = 0; i < R_STAGING; i++)
        if ((i < 64 || i >= 64 + bytes) && r->staging[i] != 0x5a)
            fail_msg("byte %llu was written", (unsigned long long)i);
}

static void reads_everything(struct saved_world *s, unsigned c, const struct reader *r)
{
    uint64_t seed = 5;

    for (uint32_t u = 0; u < UNITS; u++)
        for (uint32_t what = ZK_PARAM; what <= ZK_EXP_AVG_SQ; what++) {
            read_equals(s, c, r, u, what, 0, unit_elems[u], s->truth[u][what]);
            read_equals(s, c, r, u, what, unit_elems[u] - 1, 1, s->truth[u][what]);
            for (int i = 0; i < 6; i++) {
                uint64_t first = ztest_random(&seed) % unit_elems[u];

                read_equals(s, c, r, u, what, first,
                            1 + ztest_random(&seed) % (unit_elems[u] - first), s->truth[u][what]);
            }
        }
}

/* ---- memory that others need */

/* A reader may use memory that is kept for a rank. The rank that rejoins waits until the reader
 * closes, up to its deadline; the budget does not grow meanwhile. */
static void who_comes_back_waits_for_a_reader(void **state)
{
    const struct open_args again = { .keep = true, .durable = true, .attach = true };
    struct saved_world s;
    struct zsd_core *core;
    struct zb_err err = { 0 };
    struct reader r;
    uint64_t full;

    (void)state;
    saved_open(&s, SAVED_HOST, ZB_F32, 2);
    core = s.w.daemon.core;
    full = zsd_account_used(&core->tiers.host);
    assert_int_equal(zsd_host_set(core, full, &err), 0);
    client_gone(&s.w, 0);
    world_settle(&s.w);
    assert_int_equal(reader_open(&s, 1, &r), 0);
    assert_int_equal(core->tiers.host.budget, full);

    job_open_ask(&s.w, 0, 0, &again);
    world_settle(&s.w);
    assert_int_equal(answers[0].rc, NONE);
    world_expire(&s.w);
    assert_int_equal(answer(&s.w, 0), -ETIMEDOUT);
    assert_non_null(strstr(answers[0].text, "which readers of saved jobs have"));

    job_open_ask(&s.w, 0, 0, &again);
    world_settle(&s.w);
    assert_int_equal(answers[0].rc, NONE);
    reader_unmap(&r);
    client_gone(&s.w, 1);
    assert_int_equal(answer(&s.w, 0), 0);
    job_opened(&s.w, 0, 0);
    assert_int_equal(core->tiers.host.budget, full);
    assert_int_equal(zsd_account_used(&core->tiers.host), full);
    saved_close(&s);
}

/* A job waits for another job's state to be freed; memory from a closed reader is accepted, too.
 * And no reader takes memory that the job waits for. */
static void who_waits_hears_of_a_reader_that_closes(void **state)
{
    const struct open_args other = { .name = "k", .staging_bytes = R_STAGING };
    struct saved_world s;
    struct zsd_core *core;
    struct zb_err err = { 0 };
    Zp__ReaderOpen q = ZP__READER_OPEN__INIT;
    char name[] = "j", newest[] = "";
    struct reader r;

    (void)state;
    saved_open(&s, SAVED_HOST, ZB_F32, 4);
    core = s.w.daemon.core;
    assert_int_equal(reader_open(&s, 1, &r), 0);
    assert_int_equal(zsd_host_set(core, zsd_account_used(&core->tiers.host), &err), 0);
    job_open_ask(&s.w, 2, 2, &other);
    world_settle(&s.w);
    assert_int_equal(answers[2].rc, NONE);
    assert_true(core->tiers.host_target == zsd_account_used(&core->tiers.host));
    core->tiers.host_target += 4096; /* free, but wanted by the job */
    core->tiers.host.budget += 4096;
    q.job = name;
    q.snapshot = newest;
    q.staging_bytes = 4096;
    assert_int_equal(call(&s.w, 3, zsd_reader_open, &q), -ENOSPC);
    reader_unmap(&r);
    client_gone(&s.w, 1);
    assert_int_equal(answer(&s.w, 2), 0);
    zb_close_fd(&answers[2].fd);
    saved_close(&s);
}

/* An open waits for memory that a saved job without ranks gives back; one that nothing can make fit
 * is refused. */
static void waits_for_memory(void **state)
{
    struct saved_world s;
    struct zsd_core *core;
    Zp__ReaderOpen q = ZP__READER_OPEN__INIT;
    Zp__JobName destroy = ZP__JOB_NAME__INIT;
    char name[] = "j", newest[] = "";

    (void)state;
    saved_open(&s, SAVED_HOST, ZB_F32, 4);
    core = s.w.daemon.core;
    client_gone(&s.w, 0); /* the rank: its job stays in memory */
    world_settle(&s.w);
    assert_int_equal(zb_list_empty(&core->jobs->list), false);
    q.job = name;
    q.snapshot = newest;
    q.staging_bytes = zsd_account_free(&core->tiers.host) + 4096;
    assert_int_equal(call(&s.w, 1, zsd_reader_open, &q), 0);
    zb_close_fd(&answers[1].fd);
    assert_true(zb_list_empty(&core->jobs->list));
    q.staging_bytes = zsd_account_free(&core->tiers.host) + 4096;
    assert_int_equal(call(&s.w, 2, zsd_reader_open, &q), -ENOSPC);
    assert_true(zb_list_empty(&core->ops->reader_waits));
    client_gone(&s.w, 1);
    destroy.name = name;
    assert_int_equal(call(&s.w, 2, zsd_job_destroy, &destroy), 0);
    saved_close(&s);
}

static const struct {
    enum zb_dtype dtype;
    uint64_t host_bytes;
} kinds[] = { { ZB_F32, SAVED_HOST },
              { ZB_BF16, SAVED_HOST },
              { ZB_F32, SAVED_TIGHT },
              { ZB_BF16, SAVED_TIGHT } };

/* Reads any range of any unit, for every committed version, resident or streamed. */
static void ranges_are_read(void **state)
{
    (void)state;
    for (size_t k = 0; k < ZB_COUNT(kinds); k++) {
        struct saved_world s;
        struct reader r;
        uint64_t buffer_bytes;

        saved_open(&s, kinds[k].host_bytes, kinds[k].dtype, 2);
        assert_int_equal(reader_open(&s, 1, &r), 0);
        reads_everything(&s, 1, &r);
        /* pages that are larger than the page buffers of this daemon */
        buffer_bytes = s.w.daemon.core->disk->buffer_bytes;
        s.w.daemon.core->disk->buffer_bytes = 4096;
        reads_everything(&s, 1, &r);
        s.w.daemon.core->disk->buffer_bytes = buffer_bytes;
        reader_unmap(&r);
        saved_close(&s);
    }
}

static void the_manifest_is_read(void **state)
{
    struct saved_world s;
    struct reader r;

    (void)state;
    saved_open(&s, SAVED_HOST, ZB_BF16, 2);
    assert_int_equal(reader_open(&s, 1, &r), 0);
    for (uint32_t u = 0; u <= UNITS; u++) {
        Zp__ReaderUnit q = ZP__READER_UNIT__INIT;
        Zp__ReaderUnitReply *reply;
        const struct zsd_unit *unit;

        q.reader = r.id;
        q.unit = u;
        assert_int_equal(call(&s.w, 1, zsd_reader_unit, &q), u < UNITS ? 0 : -ENOENT);
        if (u == UNITS)
            break;
        unit = saved_job(&s)->units[u];
        reply = zp__reader_unit_reply__unpack(NULL, answers[1].len, answers[1].bytes);
        assert_non_null(reply);
        assert_string_equal(reply->name, unit->name);
        assert_int_equal(reply->elems, unit_elems[u]);
        assert_int_equal(reply->dtype, ZB_BF16);
        assert_int_equal(reply->grad_dtype, ZB_F32);
        assert_false(reply->frozen);
        assert_int_equal(reply->n_tensors, 1);
        assert_string_equal(reply->tensors[0]->name, "a");
        assert_int_equal(reply->tensors[0]->n_dims, 1);
        assert_int_equal(reply->tensors[0]->dims[0], unit_elems[u]);
        assert_int_equal(reply->cursor, 0);
        zp__reader_unit_reply__free_unpacked(reply, NULL);
        q.cursor = 1;
        assert_int_equal(call(&s.w, 1, zsd_reader_unit, &q), 0);
        q.cursor = 2;
        assert_int_equal(call(&s.w, 1, zsd_reader_unit, &q), -EINVAL);
    }
    reader_unmap(&r);
    saved_close(&s);
}

/* A manifest longer than a reply is sent in parts, each within the limit of a body (zsd_reply
 * asserts it). */
static void a_long_manifest_comes_in_parts(void **state)
{
    enum { N = 1000 };
    struct saved_world s;
    struct reader r;
    struct zsd_unit *unit;
    struct zsd_tensor *was, *many = calloc(N, sizeof(*many));
    Zp__ReaderUnit q = ZP__READER_UNIT__INIT;
    uint32_t n = 0;

    (void)state;
    assert_non_null(many);
    saved_open(&s, SAVED_HOST, ZB_BF16, 2);
    assert_int_equal(reader_open(&s, 1, &r), 0);
    unit = saved_job(&s)->units[1];
    was = unit->tensors;
    for (uint32_t i = 0; i < N; i++) {
        memset(many[i].name, 'a' + (int)(i % 26), ZP_TENSOR_MAX);
        many[i].first = i;
        many[i].count = 1;
        many[i].ndims = ZP_DIMS_MAX;
        for (int d = 0; d < (int)ZP_DIMS_MAX; d++)
            many[i].dims[d] = UINT64_MAX; /* the longest number */
        many[i].group = ZP_GROUP_FROZEN;
    }
    unit->tensors = many;
    unit->ntensors = N;
    q.reader = r.id;
    q.unit = 1;
    do {
        Zp__ReaderUnitReply *reply;

        assert_int_equal(call(&s.w, 1, zsd_reader_unit, &q), 0);
        reply = zp__reader_unit_reply__unpack(NULL, answers[1].len, answers[1].bytes);
        assert_non_null(reply);
        for (size_t i = 0; i < reply->n_tensors; i++, n++) {
            assert_int_equal(reply->tensors[i]->first, n);
            assert_string_equal(reply->tensors[i]->name, many[n].name);
        }
        q.cursor = reply->cursor;
        zp__reader_unit_reply__free_unpacked(reply, NULL);
    } while (q.cursor > 0);
    assert_int_equal(n, N);
    unit->tensors = was;
    unit->ntensors = 1;
    free(many);
    reader_unmap(&r);
    saved_close(&s);
}

static void what_is_refused(void **state)
{
    static const struct {
        const char *name;
        uint32_t unit, what;
        uint64_t first, count, staging;
        int rc;
    } rows[] = {
        { "no such unit", UNITS, 1, 0, 1, 0, -ENOENT },
        { "kind 0", 0, 0, 0, 1, 0, -EINVAL },
        { "the gradient", 0, 5, 0, 1, 0, -EINVAL },
        { "a kind far away", 0, UINT32_MAX, 0, 1, 0, -EINVAL },
        { "no elements", 0, 1, 0, 0, 0, -EINVAL },
        { "behind the end", 6, 1, 100, 1, 0, -EINVAL },
        { "padding", 6, 1, 0, 101, 0, -EINVAL },
        { "overflows", 6, 1, 2, UINT64_MAX, 0, -EINVAL },
        { "staging not aligned", 6, 1, 0, 1, 32, -EINVAL },
        { "staging too short", 1, 2, 0, 16385, R_STAGING - 65536, -EINVAL },
        { "behind staging", 6, 1, 0, 1, R_STAGING, -EINVAL },
        { "staging overflows", 6, 1, 0, 1, UINT64_MAX - 63, -EINVAL },
        { "fits exactly", 1, 2, 0, 16384, R_STAGING - 65536, 0 },
    };
    Zp__ReaderOpen o = ZP__READER_OPEN__INIT;
    Zp__ReaderRef ref = ZP__READER_REF__INIT;
    char job[] = "j", other[] = "k", snap[] = "s", none[] = "";
    struct saved_world s;
    struct reader r, wrong;

    (void)state;
    saved_open(&s, SAVED_HOST, ZB_BF16, 3);
    o.job = other;
    o.snapshot = none;
    o.staging_bytes = 4096;
    assert_int_equal(call(&s.w, 1, zsd_reader_open, &o), -ENOENT);
    o.job = job;
    o.snapshot = snap;
    assert_int_equal(call(&s.w, 1, zsd_reader_open, &o), -ENOENT);
    o.snapshot = none;
    o.staging_bytes = 0;
    assert_int_equal(call(&s.w, 1, zsd_reader_open, &o), -EINVAL);
    o.staging_bytes = UINT64_MAX;
    assert_int_equal(call(&s.w, 1, zsd_reader_open, &o), -EINVAL);
    o.staging_bytes = SAVED_HOST;
    assert_int_equal(call(&s.w, 1, zsd_reader_open, &o), -ENOSPC);
    s.w.clients[1].conn.uid = 1001;
    o.staging_bytes = 4096;
    assert_int_equal(call(&s.w, 1, zsd_reader_open, &o), -ENOENT); /* like an unknown name */
    assert_string_equal(answers[1].text, "there is no saved job 'j'");
    s.w.clients[1].conn.uid = 1000;

    assert_int_equal(reader_open(&s, 1, &r), 0);
    assert_int_equal(call(&s.w, 1, zsd_reader_open, &o), -EBUSY);
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        read_ask(&s, 1, 1, &r, rows[i].unit, rows[i].what, rows[i].first, rows[i].count,
                 rows[i].staging);
        if (answer(&s.w, 1) != rows[i].rc)
            fail_msg("%s: %d %s", rows[i].name, answers[1].rc, answers[1].text);
    }
    assert_int_equal(reader_read(&s, 2, &r, 0, 1, 0, 1), -ENOENT); /* another client's reader */
    wrong = r;
    wrong.id++;
    assert_int_equal(reader_read(&s, 1, &wrong, 0, 1, 0, 1), -ENOENT);
    ref.reader = r.id;
    assert_int_equal(call(&s.w, 1, zsd_reader_close, &ref), 0);
    assert_int_equal(call(&s.w, 1, zsd_reader_close, &ref), -ENOENT);
    assert_int_equal(reader_read(&s, 1, &r, 0, 1, 0, 1), -ENOENT);
    reader_unmap(&r);
    assert_int_equal(reader_open(&s, 1, &r), 0); /* opened again */
    reader_unmap(&r);
    saved_close(&s);
}

/* The job commits again and again: a reader sees the version that it opened; when the reader has
 * gone, that version's places are free. */
static void a_version_stays_readable(void **state)
{
    (void)state;
    for (size_t k = 0; k < ZB_COUNT(kinds); k++) {
        struct saved_world s, was;
        struct reader r, r2;
        uint64_t free_bytes;

        saved_open(&s, kinds[k].host_bytes, kinds[k].dtype, 3);
        free_bytes = zsd_map_free_bytes(s.w.daemon.core);
        assert_int_equal(reader_open(&s, 1, &r), 0);
        assert_int_equal(reader_open(&s, 2, &r2), 0);
        was = s;
        memset(s.truth, 0, sizeof(s.truth));
        for (uint64_t salt = 2; salt < 5; salt++)
            saved_commit(&s, salt);
        assert_true(zsd_map_free_bytes(s.w.daemon.core) < free_bytes);
        for (uint32_t u = 0; u < UNITS; u++)
            for (uint32_t what = ZK_PARAM; what <= ZK_EXP_AVG_SQ; what++) {
                read_equals(&s, 1, &r, u, what, 0, unit_elems[u], was.truth[u][what]);
                read_equals(&s, 2, &r2, u, what, 0, unit_elems[u], was.truth[u][what]);
            }
        client_gone(&s.w, 1);
        client_gone(&s.w, 2);
        world_settle(&s.w);
        assert_int_equal(zsd_map_free_bytes(s.w.daemon.core), free_bytes);
        for (uint32_t u = 0; u < UNITS; u++)
            for (int what = 0; what < 5; what++)
                free(was.truth[u][what]);
        reader_unmap(&r);
        reader_unmap(&r2);
        assert_int_equal(reader_open(&s, 1, &r), 0);
        reads_everything(&s, 1, &r); /* the newest version */
        reader_unmap(&r);
        saved_close(&s);
    }
}

/* A snapshot is read unchanged, also if it is destroyed meanwhile. */
static void a_snapshot_is_read(void **state)
{
    struct saved_world s, was;
    struct zsd_snap snap = { .name = "s" };
    struct zsd_saved *saved;
    struct reader r;
    char name[] = "s";

    (void)state;
    saved_open(&s, SAVED_TIGHT, ZB_BF16, 2);
    saved = saved_job(&s);
    snap.version = zsd_version_ref(saved->committed);
    snap.version->snapshots++;
    zb_list_push_back(&saved->snaps, &snap.node);
    assert_int_equal(zsd_saved_reserve(saved, NULL), 0);
    was = s;
    memset(s.truth, 0, sizeof(s.truth));
    saved_commit(&s, 2);
    assert_int_equal(reader_open_at(&s, 1, name, &r), 0);
    for (int destroyed = 0; destroyed < 2; destroyed++) {
        for (uint32_t u = 0; u < UNITS; u++)
            read_equals(&s, 1, &r, u, ZK_MASTER, 0, unit_elems[u], was.truth[u][ZK_MASTER]);
        if (destroyed)
            break;
        zb_list_remove(&snap.node);
        snap.version->snapshots--;
        zsd_version_unref(snap.version);
        assert_int_equal(zsd_saved_reserve(saved, NULL), 0);
        saved_commit(&s, 3);
        saved_commit(&s, 4);
    }
    for (uint32_t u = 0; u < UNITS; u++)
        for (int what = 0; what < 5; what++)
            free(was.truth[u][what]);
    /* SIGTERM: what is in progress ends, and nothing new begins */
    zsd_core_drain(&s.w.daemon);
    assert_int_equal(reader_read(&s, 1, &r, 0, ZK_PARAM, 0, 1), -ECANCELED);
    s.w.daemon.core->draining = false;
    reader_unmap(&r);
    saved_close(&s);
}

/* No room for another version: the job commits nevertheless, and its reader is told. */
static void a_reader_gives_way(void **state)
{
    (void)state;
    for (int busy = 0; busy < 2; busy++) {
        struct saved_world s;
        struct zb_needs filler = { 0 }, want = { 0 }, none = { 0 };
        struct zsd_core *core;
        struct reader r;

        saved_open(&s, SAVED_TIGHT, ZB_BF16, 2);
        core = s.w.daemon.core;
        assert_int_equal(zb_needs_add(&want, 4096, zsd_map_free_bytes(core) / 4096), 0);
        assert_int_equal(zsd_promise_set(core, &filler, &want, NULL), 0);
        assert_int_equal(reader_open(&s, 1, &r), 0);
        reads_everything(&s, 1, &r);
        if (busy) { /* reads are in progress and waiting */
            for (unsigned tag = 8; tag < 14; tag++)
                read_ask(&s, 1, tag, &r, 1, ZK_MASTER, 0, unit_elems[1], 64);
            world_turn(&s.w);
        }
        saved_commit(&s, 2);
        saved_commit(&s, 3);
        for (unsigned tag = 8; tag < 14 && busy; tag++)
            assert_true(answers[tag].rc == 0 || answers[tag].rc == -ESTALE);
        assert_int_equal(reader_read(&s, 1, &r, 0, ZK_PARAM, 0, 1), -ESTALE);
        assert_non_null(strstr(answers[1].text, "read a snapshot"));
        client_gone(&s.w, 1);
        reader_unmap(&r);
        assert_int_equal(reader_open(&s, 1, &r), 0);
        reads_everything(&s, 1, &r);
        reader_unmap(&r);
        assert_int_equal(zsd_promise_set(core, &filler, &none, NULL), 0);
        zb_needs_done(&filler);
        zb_needs_done(&want);
        saved_close(&s);
    }
}

/* The job is destroyed while a reader has it open: the reader goes on, and places are freed when it
 * closes. */
static void a_job_goes_first(void **state)
{
    struct saved_world s;
    struct reader r;
    Zp__JobRef leave = ZP__JOB_REF__INIT;
    Zp__JobName q = ZP__JOB_NAME__INIT;
    char name[] = "j";

    (void)state;
    saved_open(&s, SAVED_TIGHT, ZB_BF16, 2);
    assert_int_equal(reader_open(&s, 1, &r), 0);
    leave.job = s.w.clients[0].job;
    assert_int_equal(call(&s.w, 0, zsd_job_close, &leave), 0);
    q.name = name;
    assert_int_equal(call(&s.w, 0, zsd_job_destroy, &q), 0);
    assert_null(zsd_saved_by_name(s.w.daemon.core, 1000, "j"));
    reads_everything(&s, 1, &r);
    reader_unmap(&r);
    saved_close(&s); /* checks that every byte is free */
}

/* Several reads at a time: in order, each into its own part of staging. */
static void reads_wait_in_line(void **state)
{
    struct saved_world s;
    struct reader r;

    (void)state;
    saved_open(&s, SAVED_TIGHT, ZB_F32, 2);
    assert_int_equal(reader_open(&s, 1, &r), 0);
    for (unsigned i = 0; i < 10; i++)
        read_ask(&s, 1, 8 + i, &r, 1 + i % 5, ZK_MASTER, 100 * i, 4000, i * 16384);
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(answer(&s.w, 8 + i), 0);
        assert_memory_equal(r.staging + i * 16384,
                            s.truth[1 + i % 5][ZK_MASTER] + 100 * i * sizeof(float), 16000);
    }
    reader_unmap(&r);
    saved_close(&s);
}

/* The connection ends after each possible number of turns, opening or reading: nothing is left. */
static void connections_end(void **state)
{
    bool over = false;

    (void)state;
    for (unsigned turns = 0; !over; turns++) {
        struct saved_world s;
        Zp__ReaderOpen o = ZP__READER_OPEN__INIT;
        char job[] = "j";
        struct reader r = { .id = 1 };

        saved_open(&s, SAVED_TIGHT, ZB_BF16, 2);
        o.job = job;
        o.staging_bytes = R_STAGING;
        ask_as(&s.w, 1, 8, zsd_reader_open, &o);
        for (unsigned i = 0; i < turns; i++) {
            world_turn(&s.w);
            (void)usleep(100); /* lets threads run */
            if (answers[8].rc == 0 && answers[9].times == 0 && answers[9].rc == 0) {
                answers[9].rc = NONE;
                for (unsigned tag = 9; tag < 12; tag++)
                    read_ask(&s, 1, tag, &r, 1, ZK_MASTER, 0, unit_elems[1], 64);
            }
        }
        over = answers[8].rc == 0 && answers[11].times == 1;
        if (answers[8].rc == 0)
            zb_close_fd(&answers[8].fd);
        client_gone(&s.w, 1);
        world_settle(&s.w);
        for (unsigned tag = 9; tag < 12; tag++)
            assert_true(answers[tag].times <= 1);
        assert_int_equal(answers[8].times, 1);
        if (turns % 3 == 0) { /* and the core ends while the reader is open */
            assert_int_equal(reader_open(&s, 1, &r), 0);
            read_ask(&s, 1, 9, &r, 1, ZK_MASTER, 0, unit_elems[1], 64);
            reader_unmap(&r);
        }
        saved_close(&s);
    }
}

/* A damaged page is named, and all other data can be read. */
static void damage_is_named(void **state)
{
    struct zn_fault_plan plan = { .nth = 1, .nth_res = -EIO };
    struct saved_world s;
    struct reader r;
    const struct zsd_version *v;
    uint32_t i;

    (void)state;
    saved_open(&s, SAVED_HOST, ZB_BF16, 2);
    assert_int_equal(reader_open(&s, 1, &r), 0);
    v = saved_job(&s)->committed;
    i = zsd_version_find(v, 2, PAGE);
    page_damage(&s, v->rows[i], ZSD_SAVED_STATE, 1);
    assert_int_equal(reader_read(&s, 1, &r, 2, ZK_EXP_AVG, PAGE, 1), -EBADMSG);
    assert_string_equal(answers[1].text,
                        "job 'j' unit 2, shard from element 0: page 1 of its optimizer state on "
                        "NVMe is corrupt (checksum 1 differs)");
    assert_int_equal(reader_read(&s, 1, &r, 2, ZK_MASTER, 0, unit_elems[2]), -EBADMSG);
    read_equals(&s, 1, &r, 2, ZK_PARAM, 0, unit_elems[2], s.truth[2][ZK_PARAM]);
    read_equals(&s, 1, &r, 2, ZK_MASTER, 0, PAGE, s.truth[2][ZK_MASTER]);
    assert_int_equal(zn_fault_install(s.w.daemon.engine, &plan), 0);
    assert_int_equal(reader_read(&s, 1, &r, 3, ZK_MASTER, 0, 10), -EIO);
    read_equals(&s, 1, &r, 3, ZK_MASTER, 0, 10, s.truth[3][ZK_MASTER]);
    reader_unmap(&r);
    saved_close(&s);
}

/* Every allocation of opening and reading fails once. */
static void memory_runs_out(void **state)
{
    bool failed = true;

    (void)state;
    for (unsigned nth = 1; failed; nth++) {
        struct saved_world s;
        struct reader r;
        int rc;

        saved_open(&s, SAVED_TIGHT, ZB_BF16, 2);
        alloc_fail(nth, 1);
        rc = reader_open(&s, 1, &r);
        if (rc == 0) {
            rc = reader_read(&s, 1, &r, 1, ZK_MASTER, 0, unit_elems[1]);
            reader_unmap(&r);
        }
        failed = alloc_failed();
        assert_true(failed || nth > 1); /* there is an allocation to fail */
        assert_int_equal(rc, failed ? -ENOMEM : 0);
        alloc_fail(0, 0);
        saved_close(&s);
        assert_true(nth < 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_are_read),
        cmocka_unit_test(the_manifest_is_read),
        cmocka_unit_test(a_long_manifest_comes_in_parts),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(waits_for_memory),
        cmocka_unit_test(a_version_stays_readable),
        cmocka_unit_test(a_snapshot_is_read),
        cmocka_unit_test(a_reader_gives_way),
        cmocka_unit_test(a_job_goes_first),
        cmocka_unit_test(reads_wait_in_line),
        cmocka_unit_test(connections_end),
        cmocka_unit_test(who_comes_back_waits_for_a_reader),
        cmocka_unit_test(who_waits_hears_of_a_reader_that_closes),
        cmocka_unit_test(damage_is_named),
        cmocka_unit_test(memory_runs_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
