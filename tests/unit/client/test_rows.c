/* Rows: several pages, rows cut to the known fields, no rows. */
#include "tests/ztest.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "tests/alloc_fail.h"
#include "tests/unit/client/session.h"

#define PAGE  30u /* rows of one reply */
#define TOTAL 75u

static char long_text[300];

/** Rows 0 .. TOTAL of shards and jobs, PAGE at a time. */
static bool pages_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    static Zp__ShardRow shards[PAGE], *shard_list[PAGE];
    static Zp__JobRow jobs[PAGE], *job_list[PAGE];
    Zp__ListReply list = ZP__LIST_REPLY__INIT;
    Zp__JobsReply reply = ZP__JOBS_REPLY__INIT;
    const ProtobufCMessage *m;
    const Zp__ListRequest *q;
    uint64_t from, n;

    if (frame->method != ZP_LIST && frame->method != ZP_JOBS)
        return false;
    assert_int_equal(
        zp_decode(f->arena, &zp__list_request__descriptor, body, frame->body_bytes, &m, NULL),
        0); /* both requests are alike */
    q = (const Zp__ListRequest *)m;
    assert_string_equal(q->job, "j");
    from = q->cursor;
    n = zb_min_u64(TOTAL - from, PAGE);
    for (uint64_t i = 0; i < n; i++) {
        zp__shard_row__init(&shards[i]);
        shards[i].id = from + i;
        shards[i].job = shards[i].unit = shards[i].dtype = shards[i].tier = long_text;
        shards[i].first = 1;
        shards[i].count = 2;
        shards[i].version = 3;
        shards[i].bytes = 4;
        shards[i].host_bytes = 5;
        shards[i].nvme_bytes = 6;
        shards[i].pins = 7;
        shards[i].rank = 8;
        shard_list[i] = &shards[i];
        zp__job_row__init(&jobs[i]);
        jobs[i].id = from + i;
        jobs[i].name = (char *)(uintptr_t) "name";
        jobs[i].state = (char *)(uintptr_t) "ready";
        jobs[i].error = long_text;
        jobs[i].uid = 1;
        jobs[i].world = 2;
        jobs[i].attached = 3;
        jobs[i].keep = true;
        jobs[i].iterations = 4;
        jobs[i].applied = 5;
        jobs[i].shards = 6;
        jobs[i].params = 7;
        jobs[i].host_bytes = 8;
        jobs[i].nvme_bytes = 9;
        jobs[i].fetched_bytes = 10;
        jobs[i].pushed_bytes = 11;
        jobs[i].nvme_read_bytes = 12;
        jobs[i].nvme_written_bytes = 13;
        jobs[i].durable = jobs[i].committed = true;
        jobs[i].committed_iterations = 14;
        jobs[i].committed_applied = 15;
        jobs[i].snapshots = 16;
        jobs[i].epoch = 17;
        jobs[i].share = 18;
        job_list[i] = &jobs[i];
    }
    list.rows = shard_list;
    reply.rows = job_list;
    list.n_rows = reply.n_rows = n;
    list.cursor = reply.cursor = from + n < TOTAL ? from + n : 0;
    fake_reply(f, frame, frame->method == ZP_LIST ? &list.base : &reply.base, -1);
    return true;
}

static void shards_and_jobs(void **state)
{
    struct session x = session_open(pages_fn, NULL);
    struct zc_shard_row *shards = NULL;
    struct zc_job_row *jobs = NULL;
    size_t n = 0;

    (void)state;
    memset(long_text, 'x', sizeof(long_text) - 1);
    assert_int_equal(zc_list_wait(x.c, "j", &shards, &n), 0);
    assert_int_equal(n, TOTAL);
    assert_int_equal(fake_count(x.f, ZP_LIST), 3);
    for (size_t i = 0; i < n; i++) {
        const struct zc_shard_row *r = &shards[i];

        assert_int_equal(r->id, i);
        assert_true(r->first == 1 && r->count == 2 && r->version == 3 && r->bytes == 4);
        assert_true(r->host_bytes == 5 && r->nvme_bytes == 6 && r->pins == 7 && r->rank == 8);
        assert_int_equal(strlen(r->job), ZC_NAME_MAX);
        assert_int_equal(strlen(r->unit), ZC_NAME_MAX);
        assert_int_equal(strlen(r->dtype), 7);
        assert_int_equal(strlen(r->tier), 7);
    }
    zc_rows_free(shards);

    assert_int_equal(zc_jobs_wait(x.c, "j", &jobs, &n), 0);
    assert_int_equal(n, TOTAL);
    for (size_t i = 0; i < n; i++) {
        const struct zc_job_row *r = &jobs[i];

        assert_int_equal(r->id, i);
        assert_string_equal(r->name, "name");
        assert_string_equal(r->state, "ready");
        assert_int_equal(strlen(r->error), 255);
        assert_true(r->uid == 1 && r->world == 2 && r->attached == 3 && r->keep);
        assert_true(r->iterations == 4 && r->applied == 5 && r->shards == 6 && r->params == 7);
        assert_true(r->host_bytes == 8 && r->nvme_bytes == 9 && r->fetched_bytes == 10);
        assert_true(r->pushed_bytes == 11 && r->nvme_read_bytes == 12);
        assert_true(r->nvme_written_bytes == 13 && r->durable && r->committed);
        assert_true(r->committed_iterations == 14 && r->committed_applied == 15);
        assert_true(r->snapshots == 16 && r->epoch == 17 && r->share == 18);
    }
    zc_rows_free(jobs);
    session_close(&x);
}

static bool tiers_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    static Zp__TierRow row = ZP__TIER_ROW__INIT;
    static Zp__Counter counter = ZP__COUNTER__INIT;
    static Zp__TierRow *rows[1] = { &row };
    static Zp__Counter *counters[1] = { &counter };
    Zp__TiersReply tiers = ZP__TIERS_REPLY__INIT;
    Zp__StatReply stat = ZP__STAT_REPLY__INIT;

    (void)body;
    row.name = (char *)(uintptr_t) "host";
    row.detail = (char *)(uintptr_t) "io_uring, direct";
    row.budget = 1;
    row.used = 2;
    row.params = 3;
    row.grads = 4;
    row.state = 5;
    row.staging = 6;
    row.rings = 7;
    row.read_bytes_s = 8;
    row.write_bytes_s = 9;
    row.node_bytes = 8;
    row.spilled_bytes = 9;
    row.target = 10;
    row.moving = 11;
    row.numa = (char *)(uintptr_t) "node 0";
    row.nodes = (char *)(uintptr_t) "0:8 1:9";
    counter.name = (char *)(uintptr_t) "requests";
    counter.value = UINT64_MAX;
    tiers.n_rows = stat.n_counters = 1;
    tiers.rows = rows;
    stat.counters = counters;
    if (frame->method == ZP_TIERS)
        fake_reply(f, frame, &tiers.base, -1);
    else if (frame->method == ZP_STAT)
        fake_reply(f, frame, &stat.base, -1);
    else
        return false;
    return true;
}

static void tiers_and_counters(void **state)
{
    struct session x = session_open(tiers_fn, NULL);
    struct zc_tier_row *t = NULL;
    struct zc_counter *counters = NULL;
    size_t n = 0;

    (void)state;
    assert_int_equal(zc_tiers_wait(x.c, &t, &n), 0);
    assert_int_equal(n, 1);
    assert_true(t->budget == 1 && t->used == 2 && t->params == 3 && t->grads == 4);
    assert_true(t->state == 5 && t->staging == 6 && t->rings == 7);
    assert_true(t->read_bytes_s == 8 && t->write_bytes_s == 9);
    assert_true(t->node_bytes == 8 && t->spilled_bytes == 9);
    assert_true(t->target == 10 && t->moving == 11);
    assert_string_equal(t->numa, "node 0");
    assert_string_equal(t->nodes, "0:8 1:9");
    assert_string_equal(t->name, "host");
    assert_string_equal(t->detail, "io_uring, direct");
    zc_rows_free(t);
    assert_int_equal(zc_stat_wait(x.c, &counters, &n), 0);
    assert_int_equal(n, 1);
    assert_string_equal(counters->name, "requests");
    assert_true(counters->value == UINT64_MAX);
    zc_rows_free(counters);
    session_close(&x);
}

/* Two replies of one job each: a job of a newer daemon, with more waits than the client knows; and
 * one with nothing but its name. */
static bool top_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    Zp__TopReply reply = ZP__TOP_REPLY__INIT;
    Zp__TopJob job = ZP__TOP_JOB__INIT, *jobs[1] = { &job };
    Zp__TopGauge gauge = ZP__TOP_GAUGE__INIT, *gauges[40];
    Zp__TopOldest oldest = ZP__TOP_OLDEST__INIT;
    Zp__TopPath path = ZP__TOP_PATH__INIT, *paths[12];
    Zp__TierRow tier = ZP__TIER_ROW__INIT, *tiers[6];

    (void)body;
    if (frame->method != ZP_TOP)
        return false;
    gauge.now = 1;
    gauge.area_ns = 2;
    gauge.busy_ns = 3;
    for (int i = 0; i < 40; i++)
        gauges[i] = &gauge;
    for (int i = 0; i < 12; i++)
        paths[i] = &path;
    for (int i = 0; i < 6; i++)
        tiers[i] = &tier;
    job.name = long_text;
    reply.n_jobs = 1;
    reply.jobs = jobs;
    reply.now_ns = fake_count(f, ZP_TOP) * 100;
    if (fake_count(f, ZP_TOP) == 1) {
        job.stages = job.waits = gauges;
        job.n_stages = job.n_waits = 40;
        job.pages = 4;
        path.queue = job.asking = &gauge;
        path.transfers = 5;
        oldest.method = oldest.job = oldest.waits = long_text;
        oldest.pid = 6;
        reply.oldest = &oldest;
        reply.n_paths = 12;
        reply.paths = paths;
        reply.n_tiers = 6;
        reply.tiers = tiers;
        reply.threads = 7;
        reply.cursor = 1;
    }
    fake_reply(f, frame, &reply.base, -1);
    return true;
}

static void top_in_parts(void **state)
{
    struct session x = session_open(top_fn, NULL);
    struct zc_top_job *jobs = NULL;
    struct zc_top top;
    size_t n = 0;

    (void)state;
    memset(long_text, 'x', sizeof(long_text) - 1);
    assert_int_equal(zc_top_wait(x.c, NULL, &top, &jobs, &n), 0);
    assert_int_equal(n, 2);
    assert_int_equal(fake_count(x.f, ZP_TOP), 2);
    assert_true(top.now_ns == 100 && top.threads == 7); /* from the first reply */
    assert_true(top.npaths == ZC_TOP_PATHS_MAX && top.ntiers == ZC_TOP_TIERS_MAX);
    assert_true(top.paths[7].transfers == 5 && top.paths[7].queue.busy_ns == 3);
    assert_true(top.oldest.pid == 6 && strlen(top.oldest.waits) == sizeof(top.oldest.waits) - 1);
    assert_true(top.computing.area_ns == 0); /* the daemon did not send it */
    assert_true(jobs[0].now_ns == 100 && jobs[1].now_ns == 200);
    assert_true(jobs[0].pages == 4 && jobs[0].waits[ZC_WAITS - 1].area_ns == 2);
    assert_true(jobs[0].stages[0].now == 1 && jobs[0].asking.now == 1);
    assert_true(jobs[0].drive_only.now == 0 && jobs[1].waits[0].now == 0);
    assert_int_equal(strlen(jobs[1].name), ZC_NAME_MAX);
    zc_rows_free(jobs);
    session_close(&x);
}

static void no_rows(void **state)
{
    struct session x = session_open(NULL, NULL);
    struct zc_shard_row *shards = (void *)&x;
    size_t n = 77;

    (void)state;
    assert_int_equal(zc_list_wait(x.c, NULL, &shards, &n), 0);
    assert_null(shards);
    assert_int_equal(n, 0);
    zc_rows_free(shards);
    session_close(&x);
}

static void rows_with_every_failure(void **state)
{
    bool failed = true;

    (void)state;
    for (unsigned nth = 1; failed; nth++) {
        struct session x = session_open(pages_fn, NULL);
        struct zc_shard_row *shards = NULL;
        size_t n = 77;
        int rc;

        alloc_fail(nth, 1);
        rc = zc_list_wait(x.c, "j", &shards, &n);
        failed = alloc_failed();
        assert_true(failed || nth > 1); /* there is an allocation to fail */
        assert_int_equal(rc, failed ? -ENOMEM : 0);
        assert_int_equal(n, failed ? 77 : TOTAL);
        assert_int_equal(zc_ping_wait(x.c), 0);
        zc_rows_free(shards);
        session_close(&x);
        assert_true(nth < 10);
    }
}

static bool refuse_the_second_page(struct fake *f, const struct zp_frame *frame,
                                   const uint8_t *body)
{
    if (frame->method == ZP_LIST && fake_count(f, ZP_LIST) == 2) {
        fake_refuse(f, frame, -ENOENT, "the job is gone");
        return true;
    }
    return pages_fn(f, frame, body);
}

static void a_page_is_refused(void **state)
{
    struct session x = session_open(refuse_the_second_page, NULL);
    struct zc_shard_row *shards = NULL;
    size_t n = 77;

    (void)state;
    assert_int_equal(zc_list_wait(x.c, "j", &shards, &n), -ENOENT);
    assert_null(shards);
    assert_int_equal(n, 77);
    session_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_and_jobs),
        cmocka_unit_test(tiers_and_counters),
        cmocka_unit_test(top_in_parts),
        cmocka_unit_test(no_rows),
        cmocka_unit_test(rows_with_every_failure),
        cmocka_unit_test(a_page_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
