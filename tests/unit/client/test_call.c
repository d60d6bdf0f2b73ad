/* Calls in good order: what is sent for each, what comes back, callbacks, releases, parts. */
#include "tests/ztest.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "tests/alloc_fail.h"
#include "tests/unit/client/session.h"

/* ---- every method: its request and its outputs */

static void jobs(void **state)
{
    struct session x = session_open(NULL, NULL);
    const struct zc_job_options o = { .name = "j",
                                      .rank = 2,
                                      .world = 3,
                                      .keep = true,
                                      .attach = true,
                                      .staging_bytes = 5,
                                      .offload_optimizer = ZC_HOST,
                                      .host_bytes_max = 6,
                                      .groups = 4,
                                      .durable = true,
                                      .takeover = true,
                                      .epoch = 9,
                                      .share = 10 };
    const uint64_t at = 77;
    struct zp_arena *arena;
    const Zp__JobOpen *open;
    const Zp__Ready *ready;
    const Zp__JobRef *ref;
    const Zp__JobName *name;
    const Zp__JobShare *share;
    const Zp__TierSet *tier;
    struct zc_job job;

    (void)state;
    assert_int_equal(x.job.id, FAKE_JOB);
    assert_int_equal(x.job.iterations, 2);
    assert_int_equal(x.job.applied, 1);
    assert_int_equal(x.job.staging_bytes, FAKE_STAGING);
    memset(x.job.staging, 1, x.job.staging_bytes); /* it is there, and writable */
    assert_int_equal(x.placement.arena_bytes, FAKE_ARENA);
    assert_int_equal(x.placement.ring_bytes, 3);
    assert_int_equal(x.placement.host_bytes, 4);
    assert_int_equal(x.placement.nvme_bytes, 5);
    assert_int_equal(x.placement.iterations, 6);
    assert_int_equal(x.placement.applied, 7);
    assert_int_equal(x.job.epoch, 5);
    assert_int_equal(x.job.world, 9);
    assert_int_equal(x.job.npoints, 2);
    assert_int_equal(x.job.points[0].kind, ZC_POINT_MEMORY);
    assert_int_equal(x.job.points[0].iterations, 2);
    assert_int_equal(x.job.points[0].applied, 1);
    assert_int_equal(x.job.points[1].kind, ZC_POINT_COMMITTED);
    assert_int_equal(x.job.points[1].iterations, 1);
    ready = fake_nth(x.f, ZP_READY, 0, &arena);
    assert_int_equal(ready->job, FAKE_JOB);
    assert_int_equal(ready->timeout_ms, 0);
    assert_false(ready->at_point);
    zp_arena_free(arena);

    assert_int_equal(zc_job_close_wait(x.c, FAKE_JOB), 0);
    ref = fake_nth(x.f, ZP_JOB_CLOSE, 0, &arena);
    assert_int_equal(ref->job, FAKE_JOB);
    zp_arena_free(arena);

    /* And another one on the same handle. */
    assert_int_equal(zc_job_open_wait(x.c, &o, &job), 0);
    open = fake_nth(x.f, ZP_JOB_OPEN, 1, &arena);
    assert_string_equal(open->name, "j");
    assert_int_equal(open->rank, 2);
    assert_int_equal(open->world, 3);
    assert_true(open->keep && open->attach);
    assert_int_equal(open->staging_bytes, 5);
    assert_int_equal(open->offload_param, ZC_NVME); /* the default */
    assert_int_equal(open->offload_optimizer, ZC_HOST);
    assert_int_equal(open->offload_grad, ZC_NVME);
    assert_int_equal(open->host_bytes_max, 6);
    assert_int_equal(open->groups, 4);
    assert_int_equal(open->optimizer, 1);
    assert_true(open->durable && open->takeover);
    assert_int_equal(open->epoch, 9);
    assert_int_equal(open->share, 10);
    zp_arena_free(arena);
    assert_int_equal(zc_ready_wait(x.c, FAKE_JOB, &at, 0, &x.placement), 0);
    ready = fake_nth(x.f, ZP_READY, 1, &arena);
    assert_true(ready->at_point);
    assert_int_equal(ready->iterations, 77);
    zp_arena_free(arena);

    assert_int_equal(zc_job_destroy_wait(x.c, "old"), 0);
    name = fake_nth(x.f, ZP_JOB_DESTROY, 0, &arena);
    assert_string_equal(name->name, "old");
    zp_arena_free(arena);
    assert_int_equal(zc_job_share_wait(x.c, "old", 7), 0);
    share = fake_nth(x.f, ZP_JOB_SHARE, 0, &arena);
    assert_string_equal(share->name, "old");
    assert_int_equal(share->share, 7);
    zp_arena_free(arena);
    assert_int_equal(zc_tier_set_wait(x.c, "host", 1 << 20), 0);
    tier = fake_nth(x.f, ZP_TIER_SET, 0, &arena);
    assert_string_equal(tier->name, "host");
    assert_int_equal(tier->bytes, 1 << 20);
    zp_arena_free(arena);
    session_close(&x);
}

static void shards(void **state)
{
    struct session x = session_open(NULL, NULL);
    const struct zc_range ranges[2] = { { 1, 4096, 8192 }, { 2, 12288, 4096 } };
    uint64_t ids[2] = { 0 };
    struct zp_arena *arena;
    const Zp__ShardRegister *reg;

    (void)state;
    assert_int_equal(zc_register_wait(x.c, FAKE_JOB, ranges, 2, ids), 0);
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[1], 3);
    reg = fake_nth(x.f, ZP_SHARD_REGISTER, 0, &arena);
    assert_int_equal(reg->job, FAKE_JOB);
    assert_int_equal(reg->n_ranges, 2);
    assert_int_equal(reg->ranges[0]->unit, 1);
    assert_int_equal(reg->ranges[0]->count, 8192);
    assert_int_equal(reg->ranges[1]->first, 12288);
    zp_arena_free(arena);
    session_close(&x);
}

/** How the memory at p is mapped: "r--s" of /proc/self/maps. */
static void expect_mapped(const void *p, const char *how)
{
    FILE *f = fopen("/proc/self/maps", "r");
    unsigned long from, to;
    char line[512], mode[8];
    bool found = false;

    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) == 3 && (uintptr_t)p >= from &&
            (uintptr_t)p < to) {
            assert_string_equal(mode, how);
            found = true;
        }
    assert_true(found);
    (void)fclose(f);
}

static void data(void **state)
{
    struct session x = session_open(NULL, NULL);
    const uint64_t ids[2] = { 5, 9 };
    uint8_t *staging = x.job.staging;
    struct zc_push push = { .shard = 5,
                            .step = 3,
                            .micro = 2,
                            .add = true,
                            .dtype = ZC_BF16,
                            .first = 8192,
                            .count = 4096,
                            .staged = staging + 128 };
    struct zc_view views[2];
    struct zp_arena *arena;
    const Zp__Write *write;
    const Zp__Read *read;
    const Zp__Fetch *fetch;
    const Zp__Push *q;

    (void)state;
    assert_int_equal(zc_write_wait(x.c, 5, ZC_EXP_AVG, 1, 2, (const float *)(void *)(staging + 64)),
                     0);
    write = fake_nth(x.f, ZP_WRITE, 0, &arena);
    assert_int_equal(write->shard, 5);
    assert_int_equal(write->what, ZC_EXP_AVG);
    assert_int_equal(write->first, 1);
    assert_int_equal(write->count, 2);
    assert_int_equal(write->staging, 64);
    zp_arena_free(arena);

    assert_int_equal(zc_read_wait(x.c, 5, ZC_EXP_AVG, 3, 4, staging), 0);
    read = fake_nth(x.f, ZP_READ, 0, &arena);
    assert_int_equal(read->shard, 5);
    assert_int_equal(read->what, ZC_EXP_AVG);
    assert_int_equal(read->first, 3);
    assert_int_equal(read->count, 4);
    assert_int_equal(read->staging, 0);
    zp_arena_free(arena);

    assert_int_equal(zc_fetch_wait(x.c, ids, 2, 6, 7000, views), 0);
    fetch = fake_nth(x.f, ZP_FETCH, 0, &arena);
    assert_int_equal(fetch->n_shards, 2);
    assert_int_equal(fetch->shards[0], 5);
    assert_int_equal(fetch->shards[1], 9);
    assert_int_equal(fetch->min_version, 6);
    assert_int_equal(fetch->timeout_ms, 7000);
    zp_arena_free(arena);
    assert_int_equal((const char *)views[1].data - (const char *)views[0].data, 4 * FAKE_ITEM);
    assert_int_equal(views[0].bytes, FAKE_ITEM);
    assert_int_equal(views[0].version, 7);
    expect_mapped(views[1].data, "r--s");
    expect_mapped(staging, "rw-s");

    assert_int_equal(zc_push_wait(x.c, &push), 0);
    q = fake_nth(x.f, ZP_PUSH, 0, &arena);
    assert_int_equal(q->shard, 5);
    assert_int_equal(q->step, 3);
    assert_int_equal(q->micro, 2);
    assert_int_equal(q->mode, 2);
    assert_int_equal(q->dtype, ZC_BF16);
    assert_int_equal(q->first, 8192);
    assert_int_equal(q->count, 4096);
    assert_int_equal(q->staging, 128);
    zp_arena_free(arena);
    push.add = false;
    assert_int_equal(zc_push_wait(x.c, &push), 0);
    q = fake_nth(x.f, ZP_PUSH, 1, &arena);
    assert_int_equal(q->mode, 1);
    zp_arena_free(arena);
    session_close(&x);
}

static void steps(void **state)
{
    struct session x = session_open(NULL, NULL);
    const struct zc_group groups[2] = {
        { .lr = 1, .beta1 = 2, .beta2 = 3, .eps = 4, .weight_decay = 5 },
        { .lr = 6, .beta1 = 7, .beta2 = 8, .eps = 9, .weight_decay = 10 }
    };
    const struct zc_step step = { .step = 3,
                                  .scale = 0.5,
                                  .groups = groups,
                                  .ngroups = 2,
                                  .commit = ZC_COMMIT_PREPARE,
                                  .timeout_ms = 9 };
    struct zc_stepped stepped;
    struct zc_norm norm;
    struct zp_arena *arena;
    const Zp__Step *q;
    const Zp__Skip *skip;
    const Zp__Norms *norms;

    (void)state;
    assert_int_equal(zc_norms_wait(x.c, FAKE_JOB, 3, &norm), 0);
    norms = fake_nth(x.f, ZP_NORMS, 0, &arena);
    assert_int_equal(norms->job, FAKE_JOB);
    assert_int_equal(norms->step, 3);
    zp_arena_free(arena);
    assert_true(zc_norm_value(&norm) == 3);

    assert_int_equal(zc_step_wait(x.c, FAKE_JOB, &step, &stepped), 0);
    assert_int_equal(stepped.iterations, 3);
    assert_int_equal(stepped.applied, 2);
    assert_int_equal(stepped.commit_code, 0);
    assert_string_equal(stepped.commit_text, "");
    q = fake_nth(x.f, ZP_STEP, 0, &arena);
    assert_int_equal(q->job, FAKE_JOB);
    assert_int_equal(q->step, 3);
    assert_true(q->scale == 0.5);
    assert_int_equal(q->n_groups, 2);
    assert_true(q->groups[0]->lr == 1 && q->groups[0]->beta1 == 2 && q->groups[0]->beta2 == 3);
    assert_true(q->groups[1]->eps == 9 && q->groups[1]->weight_decay == 10);
    assert_int_equal(q->commit, 2);
    assert_int_equal(q->timeout_ms, 9);
    zp_arena_free(arena);

    assert_int_equal(zc_skip_wait(x.c, FAKE_JOB, 4, ZC_COMMIT_STEP, 8, &stepped), 0);
    assert_int_equal(stepped.iterations, 4);
    skip = fake_nth(x.f, ZP_SKIP, 0, &arena);
    assert_int_equal(skip->job, FAKE_JOB);
    assert_int_equal(skip->step, 4);
    assert_int_equal(skip->timeout_ms, 8);
    assert_int_equal(skip->commit, 1);
    zp_arena_free(arena);
    session_close(&x);
}

/* ---- units and notes, in parts */

/** A unit of n tensors with the longest names and shapes. */
static struct zc_unit long_unit(uint32_t n, struct zc_tensor *tensors, char (*names)[128])
{
    for (uint32_t i = 0; i < n; i++) {
        memset(names[i], 'w', 127);
        (void)snprintf(names[i] + 117, 11, "%010u", i);
        tensors[i] = (struct zc_tensor){
            .name = names[i], .first = UINT64_MAX - n + i, .ndims = 8, .group = i % 3
        };
        for (uint32_t k = 0; k < 8; k++)
            tensors[i].dims[k] = UINT64_MAX - k;
    }
    return (
        struct zc_unit){ .index = 1,
                         .name = "a-unit-with-a-name-as-long-as-a-name-may-be-which-is-63-letters",
                         .elems = 9,
                         .dtype = ZC_BF16,
                         .grad_dtype = ZC_F32,
                         .frozen = true,
                         .quantized = true,
                         .tensors = tensors,
                         .ntensors = n };
}

static void units_in_parts(void **state)
{
    static const uint32_t counts[] = { 0, 1, 255, 256, 257, 512, 1000 };
    static struct zc_tensor tensors[1000];
    static char names[1000][128];

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(counts); i++) {
        struct session x = session_open(NULL, NULL);
        struct outcome o = { .c = x.c };
        struct zc_unit unit = long_unit(counts[i], tensors, names);
        uint32_t parts = counts[i] == 0 ? 1 : (counts[i] + 255) / 256, seen = 0;

        assert_int_equal(zc_unit_define(x.c, FAKE_JOB, &unit, outcome_done, &o), 0);
        memset(tensors, 0xee, sizeof(tensors)); /* the call has copied them */
        memset(names, 0xee, sizeof(names));
        while (o.runs == 0)
            assert_true(zc_poll(x.c, 5000) >= 0);
        assert_int_equal(o.rc, 0);
        assert_int_equal(fake_count(x.f, ZP_UNIT_DEFINE), parts);
        for (uint32_t k = 0; k < parts; k++) {
            struct zp_arena *arena;
            const Zp__UnitDefine *q = fake_nth(x.f, ZP_UNIT_DEFINE, k, &arena);

            assert_int_equal(q->job, FAKE_JOB);
            assert_int_equal(q->unit, 1);
            assert_int_equal(strlen(q->name), 63);
            assert_int_equal(q->elems, 9);
            assert_int_equal(q->dtype, ZC_BF16);
            assert_int_equal(q->grad_dtype, ZC_F32);
            assert_true(q->frozen && q->quantized);
            assert_int_equal(q->last, k + 1 == parts);
            for (size_t t = 0; t < q->n_tensors; t++, seen++) {
                assert_int_equal(atoi(q->tensors[t]->name + 117), seen);
                assert_true(q->tensors[t]->first == UINT64_MAX - counts[i] + seen);
                assert_int_equal(q->tensors[t]->n_dims, 8);
                assert_true(q->tensors[t]->dims[7] == UINT64_MAX - 7);
                assert_int_equal(q->tensors[t]->group, seen % 3);
            }
            zp_arena_free(arena);
        }
        assert_int_equal(seen, counts[i]);
        assert_int_equal(o.runs, 1);
        session_close(&x);
    }
}

static bool refuse_second_unit(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)body;
    if (frame->method != ZP_UNIT_DEFINE || fake_count(f, ZP_UNIT_DEFINE) != 2)
        return false;
    fake_refuse(f, frame, -EINVAL, "tensor 300 is odd");
    return true;
}

/** If a part is refused, the following ones are not sent: they would be another unit. */
static void a_part_is_refused(void **state)
{
    static struct zc_tensor tensors[1000];
    static char names[1000][128];
    struct session x = session_open(refuse_second_unit, NULL);
    struct zc_unit unit = long_unit(1000, tensors, names);

    (void)state;
    assert_int_equal(zc_unit_define_wait(x.c, FAKE_JOB, &unit), -EINVAL);
    assert_string_equal(zc_error(x.c), "tensor 300 is odd");
    assert_int_equal(zc_ping_wait(x.c), 0);
    assert_int_equal(fake_count(x.f, ZP_UNIT_DEFINE), 2);
    session_close(&x);
}

static void notes(void **state)
{
    static const size_t sizes[] = { 0, 1, 32767, 32768, 32769, 65535, 65536 };
    static uint8_t note[65536], got[65536];

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(sizes); i++) {
        struct session x = session_open(NULL, NULL);
        uint32_t parts = sizes[i] > 32768 ? 2 : 1;
        struct zp_arena *arena;
        const Zp__NotePut *put;
        const Zp__NoteGet *get;
        size_t bytes = 77;

        for (size_t k = 0; k < sizes[i]; k++)
            note[k] = (uint8_t)(k * 7 + i);
        memset(got, 0, sizeof(got));
        assert_int_equal(zc_note_put_wait(x.c, FAKE_JOB, true, note, sizes[i]), 0);
        assert_int_equal(fake_count(x.f, ZP_NOTE_PUT), parts);
        put = fake_nth(x.f, ZP_NOTE_PUT, parts - 1, &arena);
        assert_int_equal(put->job, FAKE_JOB);
        assert_true(put->of_job);
        assert_int_equal(put->total, sizes[i]);
        assert_int_equal(put->offset, parts == 2 ? 32768 : 0);
        zp_arena_free(arena);
        assert_int_equal(zc_note_get_wait(x.c, FAKE_JOB, false, got, &bytes), 0);
        assert_int_equal(bytes, sizes[i]);
        assert_memory_equal(got, note, bytes);
        assert_int_equal(fake_count(x.f, ZP_NOTE_GET), parts);
        get = fake_nth(x.f, ZP_NOTE_GET, 0, &arena);
        assert_int_equal(get->job, FAKE_JOB);
        assert_false(get->of_job);
        zp_arena_free(arena);
        session_close(&x);
    }
}

/** A step between two parts replaces the note. */
static bool note_that_changes(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    static uint8_t bytes[50000];
    uint32_t n = fake_count(f, ZP_NOTE_GET);
    Zp__NoteGetReply m = ZP__NOTE_GET_REPLY__INIT;

    (void)body;
    if (frame->method != ZP_NOTE_GET)
        return false;
    memset(bytes, n == 1 ? 'a' : 'b', sizeof(bytes));
    m.iteration = n == 1 ? 1 : 2;
    m.total = 50000;
    m.data.data = bytes;
    m.data.len = n % 2 == 0 && n > 2 ? 50000 - 32768 : 32768; /* part 2 is request 4 */
    if (n == 2)
        m.data.len = 50000 - 32768;
    fake_reply(f, frame, &m.base, -1);
    return true;
}

static void a_note_that_changes_while_it_is_read(void **state)
{
    struct session x = session_open(note_that_changes, NULL);
    static uint8_t got[65536];
    size_t bytes = 0;

    (void)state;
    assert_int_equal(zc_note_get_wait(x.c, FAKE_JOB, true, got, &bytes), 0);
    assert_int_equal(bytes, 50000);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(got[i], 'b');
    assert_int_equal(fake_count(x.f, ZP_NOTE_GET), 4);
    session_close(&x);
}

/* ---- callbacks */

struct chain {
    struct session *x;
    struct zc_view view;
    struct zc_shard_row *rows;
    unsigned links, refused;
};

static void chain_next(void *arg, int rc)
{
    struct chain *ch = arg;
    const uint64_t id = ch->links;
    size_t n;

    assert_int_equal(rc, 0);
    /* Callbacks may not wait; a refused call has not started. */
    ch->refused += zc_ping_wait(ch->x->c) == -EBUSY;
    ch->refused += zc_poll(ch->x->c, 0) == -EBUSY;
    ch->refused += zc_fetch_wait(ch->x->c, &id, 1, 0, 0, &ch->view) == -EBUSY;
    ch->refused += zc_list_wait(ch->x->c, NULL, &ch->rows, &n) == -EBUSY;
    ch->refused += strstr(zc_error(ch->x->c), "inside a callback") != NULL;
    if (++ch->links < 5)
        assert_int_equal(zc_fetch(ch->x->c, &id, 1, 0, 0, &ch->view, chain_next, ch), 0);
}

static void calls_from_callbacks(void **state)
{
    struct session x = session_open(NULL, NULL);
    struct chain ch = { .x = &x };
    int ran = 0;

    (void)state;
    assert_int_equal(zc_ping(x.c, chain_next, &ch), 0);
    assert_int_equal(ch.links, 0); /* no callback runs before the call has returned */
    while (ch.links < 5) {
        int n = zc_poll(x.c, 5000);

        assert_true(n >= 0);
        ran += n;
    }
    assert_int_equal(ran, 5);
    assert_int_equal(ch.refused, 25);
    assert_int_equal(fake_count(x.f, ZP_FETCH), 4);
    assert_int_equal(fake_count(x.f, ZP_PING), 1);
    session_close(&x);
}

/** The error message of a blocking form is its own, even if a later call fails in the same turn. */
static bool refuse_by_number(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    static struct zp_frame first;

    (void)body;
    if (frame->method != ZP_PING)
        return false;
    if (fake_count(f, ZP_PING) == 1) {
        first = *frame;
        return true;
    }
    fake_refuse(f, frame, -EIO, "the second");
    fake_refuse(f, &first, -EINVAL, "the first");
    return true;
}

static void a_message_for_each(void **state)
{
    struct session x = session_open(refuse_by_number, NULL);
    struct outcome o = { .c = x.c };

    (void)state;
    assert_int_equal(zc_ping(x.c, outcome_done, &o), 0);
    assert_int_equal(zc_ping_wait(x.c), -EIO);
    assert_string_equal(zc_error(x.c), "the second");
    while (o.runs == 0)
        assert_true(zc_poll(x.c, 5000) >= 0);
    assert_int_equal(o.rc, -EINVAL);
    assert_string_equal(o.says, "the first");
    session_close(&x);
}

static void too_many_calls(void **state)
{
    struct session x = session_open(NULL, NULL);
    struct outcome o = { .c = x.c };
    unsigned started = 0;
    int rc;

    (void)state;
    for (unsigned round = 0; round < 2; round++) {
        while ((rc = zc_ping(x.c, outcome_done, &o)) == 0)
            started++;
        assert_int_equal(rc, -ENOBUFS);
        assert_int_equal(started, 1000);
        assert_non_null(strstr(zc_error(x.c), "1000 calls are in flight"));
        while (o.runs < started)
            assert_true(zc_poll(x.c, 5000) >= 0);
        assert_int_equal(o.runs, started);
        assert_int_equal(o.rc, 0);
        started = o.runs = 0;
    }
    session_close(&x);
}

/* ---- releases */

static void releases_travel_together(void **state)
{
    struct session x = session_open(NULL, NULL);
    uint64_t ids[ZP_SHARDS_MAX];
    struct zp_arena *arena;
    const Zp__Release *q;
    uint32_t before;

    (void)state;
    for (uint32_t i = 0; i < ZP_SHARDS_MAX; i++)
        ids[i] = i;
    before = fake_count(x.f, 0);
    assert_int_equal(zc_release(x.c, ids, 1), 0);
    assert_int_equal(zc_release(x.c, ids + 5, 2), 0);
    assert_int_equal(zc_events(x.c), POLLIN | POLLOUT); /* so that a foreign loop sends them */
    assert_int_equal(zc_ping_wait(x.c), 0);
    assert_int_equal(fake_count(x.f, 0), before + 2);
    assert_int_equal(x.f->log[before].frame.method, ZP_RELEASE); /* effective before the ping */
    assert_int_equal(x.f->log[before].frame.kind, ZP_ONEWAY);
    assert_int_equal(x.f->log[before].frame.tag, 0);
    q = fake_nth(x.f, ZP_RELEASE, 0, &arena);
    assert_int_equal(q->n_shards, 3);
    assert_int_equal(q->shards[0], 0);
    assert_int_equal(q->shards[1], 5);
    assert_int_equal(q->shards[2], 6);
    zp_arena_free(arena);

    /* With zc_poll() alone. */
    assert_int_equal(zc_release(x.c, ids, 4), 0);
    assert_int_equal(zc_poll(x.c, 0), 0);
    fake_wait_count(x.f, ZP_RELEASE, 2);
    assert_int_equal(zc_events(x.c), POLLIN);

    /* More than one frame can hold. */
    assert_int_equal(zc_release(x.c, ids, 1000), 0);
    assert_int_equal(zc_release(x.c, ids, 24), 0);
    assert_int_equal(zc_release(x.c, ids, 1), 0);
    assert_int_equal(zc_ping_wait(x.c), 0);
    assert_int_equal(fake_count(x.f, ZP_RELEASE), 4);
    q = fake_nth(x.f, ZP_RELEASE, 2, &arena);
    assert_int_equal(q->n_shards, 1024);
    zp_arena_free(arena);
    q = fake_nth(x.f, ZP_RELEASE, 3, &arena);
    assert_int_equal(q->n_shards, 1);
    zp_arena_free(arena);
    session_close(&x);
}

/* ---- what is refused before it is sent */

static void arguments(void **state)
{
    struct session x = session_open(NULL, NULL);
    const char long_name[] = "0123456789012345678901234567890123456789012345678901234567890123";
    struct zc_job_options options = { .name = NULL, .world = 1 };
    struct zc_tensor tensor = { .name = "w", .ndims = 9 };
    struct zc_unit unit = { .name = "u", .tensors = &tensor, .ntensors = 1 };
    struct zc_push push = { .staged = &unit };
    struct zc_group groups[65] = { { 0 } };
    struct zc_step step = { .groups = groups, .ngroups = 65 };
    const struct zc_snapshot snapshot = { .job = "j", .name = long_name };
    struct zc_snapshot_row row;
    struct zc_reader reader;
    static uint64_t ids[1025];
    static struct zc_range ranges[1025];
    static struct zc_view views[1025];
    static char name_128[129];
    static uint8_t note[65537];
    struct zc_stepped stepped;
    struct zc_job job;
    uint8_t *staging = x.job.staging;
    uint32_t before = fake_count(x.f, 0);

    (void)state;
#define REFUSED(call, says)                             \
    do {                                                \
        assert_int_equal(call, -EINVAL);                \
        if (!strstr(zc_error(x.c), says))               \
            fail_msg("%s: '%s'", #call, zc_error(x.c)); \
    } while (0)
    REFUSED(zc_job_open_wait(x.c, &options, &job), "a job without a name");
    options.name = long_name;
    REFUSED(zc_job_open_wait(x.c, &options, &job), "a job is longer than 63 bytes");
    REFUSED(zc_job_destroy_wait(x.c, long_name), "longer than 63");
    REFUSED(zc_job_share_wait(x.c, long_name, 1), "longer than 63");
    REFUSED(zc_tier_set_wait(x.c, long_name, 1), "longer than 63");
    REFUSED(zc_rollback_wait(x.c, NULL, NULL, &row), "a job without a name");
    REFUSED(zc_rollback_wait(x.c, "j", long_name, &row), "a snapshot is longer than 63");
    REFUSED(zc_clone_wait(x.c, "j", "s", NULL, &row), "a job without a name");
    REFUSED(zc_clone_wait(x.c, "j", "s", long_name, &row), "a job is longer than 63");
    REFUSED(zc_snapshot_wait(x.c, &snapshot, &row), "a snapshot is longer than 63");
    REFUSED(zc_snapshot_destroy_wait(x.c, long_name, "s"), "a job is longer than 63");
    REFUSED(zc_reader_open_wait(x.c, NULL, NULL, 0, &reader), "a job without a name");
    REFUSED(zc_reader_open_wait(x.c, "j", long_name, 0, &reader), "a snapshot is longer than 63");
    REFUSED(zc_reader_read_wait(x.c, 1, 0, ZC_PARAM, 0, 1, staging), "not in the reader's staging");
    REFUSED(zc_unit_define_wait(x.c, FAKE_JOB, &unit), "9 dimensions");
    tensor.ndims = 0;
    memset(name_128, 'x', 128);
    tensor.name = name_128;
    REFUSED(zc_unit_define_wait(x.c, FAKE_JOB, &unit), "a tensor is longer than 127 bytes");
    tensor.name = NULL;
    REFUSED(zc_unit_define_wait(x.c, FAKE_JOB, &unit), "a tensor without a name");
    unit.name = NULL;
    REFUSED(zc_unit_define_wait(x.c, FAKE_JOB, &unit), "a unit without a name");
    REFUSED(zc_register_wait(x.c, FAKE_JOB, ranges, 0, ids), "0 shards in one call");
    REFUSED(zc_register_wait(x.c, FAKE_JOB, ranges, 1025, ids), "1025 shards");
    REFUSED(zc_fetch_wait(x.c, ids, 0, 0, 0, views), "0 shards");
    REFUSED(zc_fetch_wait(x.c, ids, 1025, 0, 0, views), "1025 shards");
    REFUSED(zc_release(x.c, ids, 0), "0 shards");
    REFUSED(zc_release(x.c, ids, 1025), "1025 shards");
    REFUSED(zc_write_wait(x.c, 1, ZC_MASTER, 0, 1, NULL), "not in the job's staging");
    REFUSED(zc_write_wait(x.c, 1, ZC_MASTER, 0, 1, (const float *)(void *)(staging + FAKE_STAGING)),
            "not in");
    REFUSED(zc_read_wait(x.c, 1, ZC_PARAM, 0, 1, staging - 1), "not in the job's staging");
    REFUSED(zc_push_wait(x.c, &push), "not in the job's staging");
    REFUSED(zc_step_wait(x.c, FAKE_JOB, &step, &stepped), "65 parameter groups");
    REFUSED(zc_note_put_wait(x.c, FAKE_JOB, false, note, sizeof(note)), "65537 bytes");
    assert_int_equal(fake_count(x.f, 0), before);
    assert_int_equal(zc_ping_wait(x.c), 0); /* and nothing was harmed */
    session_close(&x);
}

/** Without staging, nothing can be inside it; and there are no views before ready. */
static void before_the_job_is_ready(void **state)
{
    struct fake f = FAKE_INIT;
    const uint64_t id = 1;
    struct zc_client *c;
    struct zc_view view;

    (void)state;
    fake_start(&f);
    assert_int_equal(zc_open(&c, &(struct zc_options){ .socket = f.path }), 0);
    assert_int_equal(zc_write_wait(c, 1, ZC_MASTER, 0, 1, NULL), -EINVAL);
    assert_int_equal(zc_fetch_wait(c, &id, 1, 0, 0, &view), -EBUSY);
    assert_non_null(strstr(zc_error(c), "before zc_ready()"));
    zc_close(c);
    fake_done(&f);
}

/* ---- no memory */

/** The methods of commits, snapshots, readers and maintenance. */
static int every_method_of_saved(struct session *x)
{
    const struct zc_snapshot take = { .job = "j" };
    struct zc_snapshot_row row, *snapshot_rows = NULL;
    struct zc_message *messages = NULL;
    struct zc_df_row *df_rows = NULL;
    struct zc_unit *unit = NULL;
    struct zc_reader reader;
    struct zc_point point;
    struct zc_scrub scrub;
    struct zc_fsck fsck;
    struct zc_df df;
    struct zc_health health;
    struct zc_reason *reasons = NULL;
    char *text = NULL;
    size_t n;
    int rc;

    if ((rc = zc_commit_wait(x->c, FAKE_JOB, ZC_COMMIT_STEP, 1, 0, &point)) < 0 ||
        (rc = zc_progress_wait(x->c, FAKE_JOB, 1, 1)) < 0 ||
        (rc = zc_snapshot_wait(x->c, &take, &row)) < 0 ||
        (rc = zc_snapshots_wait(x->c, NULL, &snapshot_rows, &n)) < 0 ||
        (rc = zc_rollback_wait(x->c, "j", "s", &row)) < 0 ||
        (rc = zc_clone_wait(x->c, "j", NULL, "k", &row)) < 0 ||
        (rc = zc_snapshot_destroy_wait(x->c, "j", "s")) < 0 ||
        (rc = zc_reader_open_wait(x->c, "j", NULL, 4096, &reader)) < 0 ||
        (rc = zc_reader_unit_wait(x->c, FAKE_READER, 0, &unit)) < 0)
        return rc;
    zc_rows_free(unit);
    if ((rc = zc_reader_read_wait(x->c, FAKE_READER, 0, ZC_PARAM, 0, 1, reader.staging)) < 0 ||
        (rc = zc_reader_close_wait(x->c, FAKE_READER)) < 0 ||
        (rc = zc_scrub_wait(x->c, ZC_SCRUB_STATUS, 0, &scrub, &messages, &n)) < 0 ||
        (rc = zc_fsck_wait(x->c, &fsck, &messages, &n)) < 0 ||
        (rc = zc_health_wait(x->c, &health, &reasons, &n)) < 0 ||
        (rc = zc_metrics_wait(x->c, ZC_OPENMETRICS, &text, &n)) < 0)
        return rc;
    zc_rows_free(text);
    return zc_df_wait(x->c, &df, &df_rows, &n);
}

/** Calls every method once, up to the first failure; 0, or its code. */
static int every_method(struct session *x)
{
    const struct zc_job_options o = { .name = "j", .world = 1, .groups = 1 };
    const struct zc_range range = { 0, 0, 4096 };
    const struct zc_group group = { 0 };
    const struct zc_step step = { .step = 1, .groups = &group, .ngroups = 1 };
    struct zc_push push = { 0 };
    static struct zc_tensor tensors[300];
    static char names[300][128];
    static uint8_t note[65536];
    struct zc_unit unit = long_unit(300, tensors, names);
    struct zc_shard_row *shard_rows = NULL;
    struct zc_job_row *job_rows = NULL;
    struct zc_tier_row *tier_rows = NULL;
    struct zc_counter *counters = NULL;
    struct zc_placement placement;
    struct zc_stepped stepped;
    struct zc_norm norm;
    struct zc_view view;
    uint64_t id;
    size_t n;
    int rc;

    if ((rc = zc_job_open_wait(x->c, &o, &x->job)) < 0 ||
        (rc = zc_unit_define_wait(x->c, FAKE_JOB, &unit)) < 0 ||
        (rc = zc_register_wait(x->c, FAKE_JOB, &range, 1, &id)) < 0 ||
        (rc = zc_ready_wait(x->c, FAKE_JOB, NULL, 0, &placement)) < 0 ||
        (rc = zc_write_wait(x->c, id, ZC_MASTER, 0, 4096, x->job.staging)) < 0 ||
        (rc = zc_read_wait(x->c, id, ZC_GRAD, 0, 4096, x->job.staging)) < 0 ||
        (rc = zc_fetch_wait(x->c, &id, 1, 0, 0, &view)) < 0 || (rc = zc_release(x->c, &id, 1)) < 0)
        return rc;
    push.staged = x->job.staging;
    if ((rc = zc_push_wait(x->c, &push)) < 0 ||
        (rc = zc_norms_wait(x->c, FAKE_JOB, 1, &norm)) < 0 ||
        (rc = zc_note_put_wait(x->c, FAKE_JOB, true, note, sizeof(note))) < 0 ||
        (rc = zc_note_get_wait(x->c, FAKE_JOB, true, note, &n)) < 0 ||
        (rc = zc_step_wait(x->c, FAKE_JOB, &step, &stepped)) < 0 ||
        (rc = zc_skip_wait(x->c, FAKE_JOB, 2, ZC_COMMIT_NO, 0, &stepped)) < 0 ||
        (rc = zc_list_wait(x->c, NULL, &shard_rows, &n)) < 0 ||
        (rc = zc_jobs_wait(x->c, "j", &job_rows, &n)) < 0 ||
        (rc = zc_tiers_wait(x->c, &tier_rows, &n)) < 0 ||
        (rc = zc_stat_wait(x->c, &counters, &n)) < 0 || (rc = zc_ping_wait(x->c)) < 0 ||
        (rc = zc_job_close_wait(x->c, FAKE_JOB)) < 0)
        return rc;
    if ((rc = zc_job_share_wait(x->c, "j", 1)) < 0 || (rc = zc_tier_set_wait(x->c, "host", 1)) < 0)
        return rc;
    if ((rc = zc_job_destroy_wait(x->c, "j")) < 0)
        return rc;
    return every_method_of_saved(x);
}

static struct session session_begin(uint32_t hang_up_at)
{
    struct session x = { .f = calloc(1, sizeof(*x.f)) };

    assert_non_null(x.f);
    x.f->hang_up_at = hang_up_at;
    fake_start(x.f);
    return x;
}

static void every_allocation_fails_once(void **state)
{
    bool failed = true;

    (void)state;
    for (unsigned nth = 1; failed; nth++) {
        struct session x = session_begin(FAKE_ANY_FRAME);
        int rc;

        assert_int_equal(zc_open(&x.c, &(struct zc_options){ .socket = x.f->path }), 0);
        alloc_fail(nth, 1);
        rc = every_method(&x);
        failed = alloc_failed();
        assert_true(failed || nth > 1); /* there is an allocation to fail */
        if (rc != (failed ? -ENOMEM : 0))
            fail_msg("allocation %u: %d '%s'", nth, rc, zc_error(x.c));
        assert_int_equal(zc_ping_wait(x.c), 0); /* the connection is fine */
        session_close(&x);
        assert_true(nth < 100);
    }
}

/* ---- the daemon hangs up, at each frame of a session */

static void the_end_at_every_frame(void **state)
{
    int rc = -ENOTCONN;

    (void)state;
    for (uint32_t n = 0; rc < 0; n++) {
        struct session x = session_begin(n);
        struct outcome o = { 0 };
        struct zc_view view;
        const uint64_t id = 1;

        rc = zc_open(&x.c, &(struct zc_options){ .socket = x.f->path });
        o.c = x.c;
        if (rc == 0) {
            assert_int_equal(zc_ping(x.c, outcome_done, &o), 0); /* one more call in flight */
            rc = every_method(&x);
            if (rc < 0) {
                assert_int_equal(o.runs, 1);
                assert_true(o.rc == 0 || o.rc == -ENOTCONN);
            }
        }
        if (rc < 0) {
            assert_int_equal(rc, -ENOTCONN);
            assert_non_null(strstr(zc_error(x.c), "the daemon is gone"));
            /* It stays closed, with the reason. */
            assert_int_equal(zc_ping_wait(x.c), -ENOTCONN);
            assert_int_equal(zc_poll(x.c, -1), -ENOTCONN);
            assert_int_equal(zc_fetch_wait(x.c, &id, 1, 0, 0, &view), -ENOTCONN);
            assert_int_equal(zc_release(x.c, &id, 1), -ENOTCONN);
            assert_int_equal(zc_events(x.c), 0);
        }
        session_close(&x);
        assert_true(n < 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs),
        cmocka_unit_test(shards),
        cmocka_unit_test(data),
        cmocka_unit_test(steps),
        cmocka_unit_test(units_in_parts),
        cmocka_unit_test(a_part_is_refused),
        cmocka_unit_test(notes),
        cmocka_unit_test(a_note_that_changes_while_it_is_read),
        cmocka_unit_test(calls_from_callbacks),
        cmocka_unit_test(a_message_for_each),
        cmocka_unit_test(too_many_calls),
        cmocka_unit_test(releases_travel_together),
        cmocka_unit_test(arguments),
        cmocka_unit_test(before_the_job_is_ready),
        cmocka_unit_test(every_allocation_fails_once),
        cmocka_unit_test(the_end_at_every_frame),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
