/*
 * However much is saved and in memory, no turn of an fsck, a df, a scrub or a reader does more than
 * ZSD_TURN_WORK units of work. Their results are right, whatever changes between two turns.
 */
#include "tests/unit/daemon/core_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/show/requests.h"
#include "daemon/show/scans.h"

#define SHARDS     4500u /* of a block: more than fit into a turn */
#define PAGES      4500u /* of one shard */
#define PAGE_BYTES (2u * ZB_BLOCK_ELEMS)
#define FAST       (UINT64_C(1) << 40)
#define R_STAGING  (SHARDS * (uint64_t)PAGE_BYTES + 4096)

enum { SCRUB_STATUS, SCRUB_START, SCRUB_PAUSE, SCRUB_GO_ON, SCRUB_STOP }; /* as in the protocol */

struct stored {
    struct world w;
    char catalog[80];
    uint64_t file_bytes;
};

static void store_open(struct stored *b, uint64_t host_bytes, uint64_t file_bytes, uint32_t clients)
{
    struct zb_err err = { 0 };

    memset(b, 0, sizeof(*b));
    b->file_bytes = file_bytes;
    world_open_sized(&b->w, host_bytes, "threads", clients, file_bytes, ZB_BLOCK_ELEMS);
    (void)snprintf(b->catalog, sizeof(b->catalog), "%s.catalog", b->w.path);
    b->w.daemon.catalog_path = b->catalog;
    if (zsd_store_open(b->w.daemon.core, &err) != 0)
        fail_msg("%s", err.text);
    for (uint32_t c = 0; c < clients; c++)
        b->w.clients[c].conn.uid = geteuid(); /* the daemon's own user */
}

static void store_gone(const struct stored *b)
{
    static const char *const suffixes[] = { "", "-wal", "-shm" };
    char path[96];

    for (size_t i = 0; i < ZB_COUNT(suffixes); i++) {
        (void)snprintf(path, sizeof(path), "%s%s", b->catalog, suffixes[i]);
        (void)unlink(path);
    }
}

static void store_close(struct stored *b)
{
    world_close(&b->w); /* checks that every place is free */
    store_gone(b);
}

static void blocks_register(struct world *w, uint32_t n)
{
    static Zp__Range ranges[ZP_SHARDS_MAX], *list[ZP_SHARDS_MAX];
    Zp__ShardRegister q = ZP__SHARD_REGISTER__INIT;

    q.job = w->clients[0].job;
    q.ranges = list;
    for (uint64_t done = 0; done < n;) {
        q.n_ranges = zb_min_u64(ZP_SHARDS_MAX, n - done);
        for (uint32_t i = 0; i < q.n_ranges; i++) {
            zp__range__init(&ranges[i]);
            ranges[i].first = done++ * ZB_BLOCK_ELEMS;
            ranges[i].count = ZB_BLOCK_ELEMS;
            list[i] = &ranges[i];
        }
        assert_int_equal(call(w, 0, zsd_shard_register, &q), 0);
    }
}

static void commit_ask(struct stored *b, unsigned tag)
{
    Zp__Commit q = ZP__COMMIT__INIT;

    q.job = b->w.clients[0].job;
    q.what = ZSD_COMMIT;
    ask_as(&b->w, 0, tag, zsd_commit, &q);
}

static void job_is_ready(struct world *w)
{
    job_ready_ask(w, 0, 0);
    if (w->answer(w, 0) != 0)
        fail_msg("%s", answers[0].text);
    zb_close_fd(&answers[0].fd);
    for (uint32_t i = 0; i < job_of(w, 0)->nshards; i++) /* the bytes are never read */
        zsd_shard_written(job_of(w, 0)->shards[i], job_of(w, 0)->shards[i]->npages);
}

/* A committed job of many shards, with its last element not registered; and one of a single shard
 * of many pages. */
static void many_open(struct stored *b)
{
    const struct unit units[2] = { { .name = "shards",
                                     .elems = (uint64_t)(SHARDS + 1) * ZB_BLOCK_ELEMS,
                                     .dtype = ZB_BF16,
                                     .grad_dtype = ZB_F32,
                                     .frozen = true },
                                   { .name = "pages",
                                     .elems = (uint64_t)PAGES * ZB_BLOCK_ELEMS,
                                     .dtype = ZB_BF16,
                                     .grad_dtype = ZB_F32,
                                     .frozen = true } };
    const struct open_args args = { .keep = true, .durable = true };
    struct client *c = &b->w.clients[0];

    store_open(b, 512u << 20, 256u << 20, 4);
    assert_int_equal(job_open_with(&b->w, 0, &args), 0);
    for (uint32_t u = 0; u < 2; u++)
        assert_int_equal(unit_define(&b->w, 0, u, &units[u]), 0);
    blocks_register(&b->w, SHARDS);
    c->count[1] = units[1].elems;
    assert_int_equal(shards_register(&b->w, 0, 2), 0);
    job_is_ready(&b->w);
    commit_ask(b, 0);
    if (b->w.answer(&b->w, 0) != 0)
        fail_msg("%s", answers[0].text);
    world_settle(&b->w);
    b->w.daemon.turns.work = b->w.daemon.stats.turn_max_work = 0;
}

/* The longest turn since the last check was a full one, and no longer. */
static void bounded(struct stored *b, const char *what)
{
    uint64_t work = b->w.daemon.stats.turn_max_work;

    if (work > ZSD_TURN_WORK || work < ZSD_TURN_WORK / 2)
        fail_msg("%s: a turn of %llu units of work", what, (unsigned long long)work);
    b->w.daemon.turns.work = b->w.daemon.stats.turn_max_work = 0;
}

/* ---- fsck and df */

static void fsck_ask(struct stored *b, unsigned c, unsigned tag)
{
    const Zp__Empty q = ZP__EMPTY__INIT;

    ask_as(&b->w, c, tag, zsd_fsck, &q);
}

static void df_ask(struct stored *b, unsigned c, unsigned tag)
{
    const Zp__DfRequest q = ZP__DF_REQUEST__INIT;

    ask_as(&b->w, c, tag, zsd_df, &q);
}

static void fsck_is_well(struct stored *b, unsigned tag, uint64_t rows, uint64_t pages)
{
    Zp__FsckReply *r;

    if (b->w.answer(&b->w, tag) != 0)
        fail_msg("%s", answers[tag].text);
    r = zp__fsck_reply__unpack(NULL, answers[tag].len, answers[tag].bytes);
    assert_non_null(r);
    if (r->problems_total > 0)
        fail_msg("%llu problems: %s", (unsigned long long)r->problems_total, r->problems[0]);
    assert_int_equal(r->rows, rows);
    assert_int_equal(r->pages, pages);
    zp__fsck_reply__free_unpacked(r, NULL);
}

/* The columns add up to the size of the data file; returns the first row. */
static Zp__DfRow df_is_well(struct stored *b, unsigned tag)
{
    Zp__DfReply *r;
    Zp__DfRow first;
    uint64_t sum;

    if (b->w.answer(&b->w, tag) != 0)
        fail_msg("%s", answers[tag].text);
    r = zp__df_reply__unpack(NULL, answers[tag].len, answers[tag].bytes);
    assert_non_null(r);
    sum = r->meta + r->free;
    for (size_t i = 0; i < r->n_rows; i++)
        sum += r->rows[i]->committed + r->rows[i]->prepared + r->rows[i]->snapshots +
               r->rows[i]->working + r->rows[i]->reserved;
    assert_int_equal(sum, r->total);
    assert_true(r->n_rows >= 1);
    first = *r->rows[0];
    zp__df_reply__free_unpacked(r, NULL);
    return first;
}

static void fsck_and_df_in_parts(void **state)
{
    struct stored b;
    Zp__DfRow row;

    (void)state;
    many_open(&b);
    fsck_ask(&b, 1, 1);
    fsck_is_well(&b, 1, SHARDS + 1, SHARDS + PAGES);
    world_settle(&b.w);
    bounded(&b, "fsck");
    df_ask(&b, 1, 1);
    row = df_is_well(&b, 1);
    world_settle(&b.w);
    bounded(&b, "df");
    assert_int_equal(row.committed, (SHARDS + PAGES) * (uint64_t)PAGE_BYTES);
    assert_int_equal(row.working, 0);
    store_close(&b);
}

/* After some turns of both, the client hangs up, the job is destroyed, or the daemon ends. */
static void what_ends_under_them(void **state)
{
    Zp__JobName q = ZP__JOB_NAME__INIT;
    char name[] = "j";

    (void)state;
    q.name = name;
    for (unsigned round = 0; round < 7; round++) {
        struct stored b;

        many_open(&b);
        df_ask(&b, 1, 1);
        fsck_ask(&b, 2, 2);
        for (unsigned i = 0; i < round * round / 2; i++) {
            world_turn(&b.w);
            (void)usleep(50);
        }
        if (round % 2 == 0)
            client_gone(&b.w, 1);
        client_gone(&b.w, 0);
        if (round % 3 == 2) {
            world_kill(&b.w);
            store_gone(&b);
            continue;
        }
        if (call(&b.w, 3, zsd_job_destroy, &q) != 0)
            fail_msg("%s", answers[3].text);
        assert_int_equal(b.w.answer(&b.w, 2), 0);
        fsck_ask(&b, 3, 3);
        fsck_is_well(&b, 3, 0, 0);
        world_settle(&b.w);
        assert_int_equal(answers[1].times, 1);
        store_close(&b);
    }
}

/* ---- while a job goes on */

#define STREAMED 3000u /* pages */

static void streamed_open(struct stored *b)
{
    const struct unit unit = { .name = "u",
                               .elems = (uint64_t)STREAMED * ZB_BLOCK_ELEMS,
                               .dtype = ZB_BF16,
                               .grad_dtype = ZB_BF16,
                               .tensors = { { .count = (uint64_t)STREAMED * ZB_BLOCK_ELEMS } },
                               .ntensors = 1 };
    const uint64_t bytes = unit.elems * 2;
    const struct open_args args = { .keep = true,
                                    .durable = true,
                                    .staging_bytes = bytes,
                                    .host_bytes_max = 2 * bytes + (32u << 20) };
    struct client *c = &b->w.clients[0];

    store_open(b, 3 * bytes + (64u << 20), 512u << 20, 4);
    if (job_open_with(&b->w, 0, &args) != 0)
        fail_msg("%s", answers[0].text);
    assert_int_equal(unit_define(&b->w, 0, 0, &unit), 0);
    c->count[0] = unit.elems;
    assert_int_equal(shards_register(&b->w, 0, 1), 0);
    job_ready_ask(&b->w, 0, 0);
    if (b->w.answer(&b->w, 0) != 0)
        fail_msg("%s", answers[0].text);
    zb_close_fd(&answers[0].fd);
    for (uint64_t at = 0, n; at < unit.elems; at += n) {
        Zp__Write q = ZP__WRITE__INIT;

        n = zb_min_u64(unit.elems - at, bytes / sizeof(float));
        q.shard = c->shards[0];
        q.what = ZK_MASTER;
        q.first = at;
        q.count = n;
        assert_int_equal(call(&b->w, 0, zsd_write, &q), 0);
    }
    assert_true(job_of(&b->w, 0)->shards[0]->planes[ZB_STATE].resident < STREAMED / 2);
}

static void step_ask(struct stored *b, uint64_t n, bool commits, unsigned tag)
{
    Zp__GroupScalars g = ZP__GROUP_SCALARS__INIT, *groups[1] = { &g };
    Zp__Push push = ZP__PUSH__INIT;
    Zp__Step step = ZP__STEP__INIT;

    push.shard = b->w.clients[0].shards[0];
    push.step = step.step = n;
    push.mode = ZP_PUSH_SET;
    push.dtype = ZB_BF16;
    push.count = b->w.clients[0].count[0];
    if (call(&b->w, 0, zsd_push, &push) != 0)
        fail_msg("%s", answers[0].text);
    g.lr = 1e-2;
    g.beta1 = g.beta2 = 0.9;
    g.eps = 1e-8;
    step.job = b->w.clients[0].job;
    step.scale = 1;
    step.n_groups = 1;
    step.groups = groups;
    step.commit = commits ? ZSD_COMMIT : ZSD_COMMIT_NONE;
    ask_as(&b->w, 0, tag, zsd_step, &step);
}

/* Every page is written again, and saved, while they run. */
static void beside_steps(void **state)
{
    struct stored b;
    uint64_t rows = 0, pages = 0;

    (void)state;
    streamed_open(&b);
    for (uint64_t n = 1; n <= 12; n++) {
        step_ask(&b, n, n % 2 == 0, 8);
        for (uint64_t i = 0; i < n * n; i++) {
            world_turn(&b.w);
            (void)usleep(20);
        }
        fsck_ask(&b, 1, 9);
        df_ask(&b, 2, 10);
        (void)df_is_well(&b, 10);
        if (b.w.answer(&b.w, 8) != 0)
            fail_msg("%s", answers[8].text);
        if (n % 2 == 0 && rows == 0) {
            rows = 1;
            pages = 2 * STREAMED;
        }
        if (rows == 1 && n % 2 == 1)
            fsck_is_well(&b, 9, rows, pages);
        else
            assert_int_equal(b.w.answer(&b.w, 9), 0);
        fsck_ask(&b, 1, 9);
        fsck_is_well(&b, 9, rows, pages);
    }
    store_close(&b);
}

/* A lost place, and one with a holder too few, are found. */
static void what_is_wrong_is_found(void **state)
{
    struct stored b;
    const struct zsd_saved *saved;
    const struct zsd_row *row;
    struct zsd_core *core;
    Zp__FsckReply *r;

    (void)state;
    many_open(&b);
    core = b.w.daemon.core;
    saved = zsd_saved_by_name(core, 0, "j");
    assert_non_null(saved);
    row = saved->committed->rows[SHARDS / 2];
    for (int wrong = 0; wrong < 2; wrong++) {
        zsd_extent_ref(core, row->planes[ZSD_SAVED_PARAM].extents[0].at);
        if (wrong == 1) { /* two too few */
            for (int i = 0; i < 2; i++)
                zsd_extent_unref(core, row->planes[ZSD_SAVED_PARAM].extents[0].at, PAGE_BYTES);
        }
        fsck_ask(&b, 1, 1);
        assert_int_equal(b.w.answer(&b.w, 1), 0);
        r = zp__fsck_reply__unpack(NULL, answers[1].len, answers[1].bytes);
        assert_non_null(r);
        assert_int_equal(r->problems_total, 1);
        assert_non_null(strstr(r->problems[0], wrong ? "counts 1 holders, and has 2"
                                                     : "counts 3 holders, and has 2"));
        zp__fsck_reply__free_unpacked(r, NULL);
        if (wrong == 0)
            zsd_extent_unref(core, row->planes[ZSD_SAVED_PARAM].extents[0].at, PAGE_BYTES);
        else
            zsd_extent_ref(core, row->planes[ZSD_SAVED_PARAM].extents[0].at);
    }
    store_close(&b);
}

/* ---- scrub */

static void scrub_ask(struct stored *b, unsigned c, unsigned tag, uint32_t action)
{
    Zp__Scrub q = ZP__SCRUB__INIT;

    q.action = action;
    q.rate_bytes = action == SCRUB_START ? FAST : 0;
    ask_as(&b->w, c, tag, zsd_scrub, &q);
}

static void scrub_says(struct stored *b, unsigned tag, const char *state, uint64_t total)
{
    Zp__ScrubReply *r;

    if (b->w.answer(&b->w, tag) != 0)
        fail_msg("%s", answers[tag].text);
    r = zp__scrub_reply__unpack(NULL, answers[tag].len, answers[tag].bytes);
    assert_non_null(r);
    assert_string_equal(r->state, state);
    if (total > 0)
        assert_int_equal(r->total_bytes, total);
    zp__scrub_reply__free_unpacked(r, NULL);
}

/* The list is made in parts, and dropped rows are skipped in parts. */
static void scrub_in_parts(void **state)
{
    Zp__JobName q = ZP__JOB_NAME__INIT;
    char name[] = "j";
    struct stored b;
    uint64_t now = zb_now_ns();

    (void)state;
    q.name = name;
    many_open(&b);
    scrub_ask(&b, 1, 1, SCRUB_START);
    assert_int_equal(answers[1].rc, NONE); /* one turn is not enough */
    scrub_ask(&b, 2, 2, SCRUB_START);
    assert_int_equal(b.w.answer(&b.w, 2), -EBUSY);
    scrub_says(&b, 1, "running", (SHARDS + PAGES) * (uint64_t)PAGE_BYTES);
    bounded(&b, "the start of a scrub");
    client_gone(&b.w, 0);
    if (call(&b.w, 3, zsd_job_destroy, &q) != 0)
        fail_msg("%s", answers[3].text);
    world_settle(&b.w);
    b.w.daemon.turns.work = b.w.daemon.stats.turn_max_work = 0;
    zsd_core_tick(&b.w.daemon, now += 20000000);
    world_settle(&b.w);
    bounded(&b, "rows that are skipped");
    scrub_ask(&b, 1, 1, SCRUB_STATUS);
    scrub_says(&b, 1, "done", 0);
    store_close(&b);
}

/* While rows are marked, it is stopped, its client hangs up, the job is destroyed, or the daemon
 * ends. */
static void what_ends_a_scrub(void **state)
{
    Zp__JobName q = ZP__JOB_NAME__INIT;
    char name[] = "j";

    (void)state;
    q.name = name;
    for (unsigned what = 0; what < 4; what++) {
        struct stored b;

        many_open(&b);
        scrub_ask(&b, 1, 1, SCRUB_START);
        world_turn(&b.w);
        assert_int_equal(answers[1].rc, NONE);
        if (what == 0) {
            scrub_ask(&b, 2, 2, SCRUB_STOP);
            scrub_says(&b, 2, "stopped", 0);
            scrub_says(&b, 1, "stopped", 0);
            scrub_ask(&b, 2, 2, SCRUB_START);
            scrub_says(&b, 2, "running", (SHARDS + PAGES) * (uint64_t)PAGE_BYTES);
        } else if (what == 1) {
            client_gone(&b.w, 1);
        } else if (what == 2) {
            client_gone(&b.w, 0);
            assert_int_equal(call(&b.w, 3, zsd_job_destroy, &q), 0);
            assert_int_equal(b.w.answer(&b.w, 1), 0);
        } else {
            world_kill(&b.w);
            store_gone(&b);
            continue;
        }
        world_settle(&b.w);
        assert_int_equal(answers[1].times, 1);
        store_close(&b);
    }
}

/* ---- a reader */

static void reader_in_parts(void **state)
{
    Zp__ReaderOpen o = ZP__READER_OPEN__INIT;
    Zp__ReaderRead q = ZP__READER_READ__INIT;
    Zp__ReaderOpenReply *reply;
    char job[] = "j", newest[] = "";
    struct stored b;

    (void)state;
    many_open(&b);
    o.job = job;
    o.snapshot = newest;
    o.staging_bytes = R_STAGING;
    if (call(&b.w, 1, zsd_reader_open, &o) != 0)
        fail_msg("%s", answers[1].text);
    reply = zp__reader_open_reply__unpack(NULL, answers[1].len, answers[1].bytes);
    assert_non_null(reply);
    q.reader = reply->reader;
    zp__reader_open_reply__free_unpacked(reply, NULL);
    zb_close_fd(&answers[1].fd);
    q.what = ZK_PARAM;
    q.count = (uint64_t)SHARDS * ZB_BLOCK_ELEMS;
    if (call(&b.w, 1, zsd_reader_read, &q) != 0)
        fail_msg("%s", answers[1].text);
    assert_in_range(b.w.daemon.stats.turn_max_work, 1, 64);
    q.first = (uint64_t)(SHARDS - 1) * ZB_BLOCK_ELEMS;
    q.count = ZB_BLOCK_ELEMS + 1;
    assert_int_equal(call(&b.w, 1, zsd_reader_read, &q), -ENOENT);
    assert_non_null(strstr(answers[1].text, "element 18432000 of unit 'shards' of job 'j' was in "
                                            "no shard"));
    q.count = ZB_BLOCK_ELEMS; /* it goes on reading */
    assert_int_equal(call(&b.w, 1, zsd_reader_read, &q), 0);
    store_close(&b);
}

/* The needs of a version are known when it is complete: its rows are not counted again when it is
 * replaced. */
static void a_version_knows_its_needs(void **state)
{
    struct zb_needs sum = { 0 };
    const struct zsd_version *v;
    struct stored b;

    (void)state;
    many_open(&b);
    v = zsd_saved_by_name(b.w.daemon.core, 0, "j")->committed;
    for (uint32_t i = 0; i < v->nrows; i++)
        assert_int_equal(zsd_row_needs(&sum, v->rows[i], 1), 0);
    assert_int_equal(v->needs.n, sum.n);
    for (uint32_t i = 0; i < sum.n; i++)
        assert_true(v->needs.needs[i].bytes == sum.needs[i].bytes &&
                    v->needs.needs[i].count == sum.needs[i].count);
    zb_needs_done(&sum);
    store_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fsck_and_df_in_parts), cmocka_unit_test(what_ends_under_them),
        cmocka_unit_test(beside_steps),         cmocka_unit_test(what_is_wrong_is_found),
        cmocka_unit_test(scrub_in_parts),       cmocka_unit_test(what_ends_a_scrub),
        cmocka_unit_test(reader_in_parts),      cmocka_unit_test(a_version_knows_its_needs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
