/*
 * Training runs on the core, compared with the same pages in plain memory. Every transfer of the
 * data file, and every allocation, is made to fail, one after another.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "daemon/job/shard.h"
#include "nvme/sim/engine_fault.h"
#include "tests/unit/daemon/core_fixture.h"

/* ---- a reference model: the same pages in plain memory */

struct truth {
    struct zk_page pages[UNITS];
    struct zb_layout layout;
};

static void truth_open(struct truth *t, enum zb_dtype dtype)
{
    assert_int_equal(zb_layout_of(dtype, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, false, &t->layout, NULL),
                     0);
    for (uint32_t u = 0; u < UNITS; u++) {
        struct zk_page *p = &t->pages[u];

        p->first = 0;
        p->count = zb_padded_elems(unit_elems[u]);
        p->param = aligned_alloc(64, zb_blocks_bytes(t->layout.block_bytes[ZB_PARAM], p->count));
        p->state = aligned_alloc(64, zb_blocks_bytes(t->layout.block_bytes[ZB_STATE], p->count));
        p->grad = aligned_alloc(64, zb_blocks_bytes(t->layout.block_bytes[ZB_GRAD], p->count));
    }
}

static void truth_close(struct truth *t)
{
    for (uint32_t u = 0; u < UNITS; u++) {
        free(t->pages[u].param);
        free(t->pages[u].state);
        free(t->pages[u].grad);
    }
}

static float value(uint32_t unit, uint64_t elem, uint64_t salt)
{
    uint64_t seed = salt << 40 ^ (uint64_t)unit << 32 ^ elem;

    return (float)(int64_t)ztest_random(&seed) * 0x1p-64f;
}

/* ---- the workload */

static int unit_write(struct world *w, unsigned c, uint32_t u, struct truth *t)
{
    Zp__Write q = ZP__WRITE__INIT;
    float *master = (float *)(void *)w->clients[c].staging;

    q.shard = w->clients[c].shards[u];
    q.count = zb_padded_elems(unit_elems[u]);
    for (uint64_t e = 0; e < q.count; e++)
        master[e] = e < unit_elems[u] ? value(u, e, 1) : 0;
    zk_page_init(w->daemon.kernels, &t->layout, &t->pages[u], master);
    return call(w, c, zsd_write, &q);
}

static int unit_push(struct world *w, unsigned c, uint32_t u, struct truth *t, uint64_t step)
{
    struct zk_xsum sum = { 0 };
    uint64_t bad = 0;
    int rc = 0;

    for (uint32_t micro = 0; micro < 2 && rc == 0; micro++) {
        Zp__Push q = ZP__PUSH__INIT;
        float *grad = (float *)(void *)w->clients[c].staging;

        q.shard = w->clients[c].shards[u];
        q.step = step;
        q.micro = micro;
        q.mode = micro == 0 ? 1 : 2;
        q.dtype = ZB_F32;
        q.count = zb_padded_elems(unit_elems[u]);
        for (uint64_t e = 0; e < q.count; e++)
            grad[e] = e < unit_elems[u] ? value(u, e, 10 * step + micro) : 0;
        zk_page_ingest(w->daemon.kernels, &t->layout, &t->pages[u], grad, ZB_F32, micro > 0, &sum,
                       &bad);
        rc = call(w, c, zsd_push, &q);
    }
    return rc;
}

static const struct zk_params step_params = {
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .scale = 0.25
};

static Zp__GroupScalars step_group(void)
{
    Zp__GroupScalars g = ZP__GROUP_SCALARS__INIT;

    g.lr = step_params.lr;
    g.beta1 = step_params.beta1;
    g.beta2 = step_params.beta2;
    g.eps = step_params.eps;
    g.weight_decay = step_params.weight_decay;
    return g;
}

/* Announces the next step, so that it begins early. */
static int job_step_begin(struct world *w, unsigned c, uint64_t step)
{
    Zp__StepBegin q = ZP__STEP_BEGIN__INIT;
    Zp__GroupScalars g = step_group(), *groups[1] = { &g };

    q.job = w->clients[c].job;
    q.step = step;
    q.scale = step_params.scale;
    q.n_groups = 1;
    q.groups = groups;
    q.micros = 2;
    return call(w, c, zsd_step_begin, &q);
}

static void job_step_ask(struct world *w, unsigned c, uint64_t step)
{
    Zp__Step q = ZP__STEP__INIT;
    Zp__GroupScalars g = step_group(), *groups[1] = { &g };

    q.job = w->clients[c].job;
    q.step = step;
    q.scale = step_params.scale;
    q.n_groups = 1;
    q.groups = groups;
    ask(w, c, zsd_step, &q);
}

static void job_skip_ask(struct world *w, unsigned c, uint64_t step)
{
    Zp__Skip q = ZP__SKIP__INIT;

    q.job = w->clients[c].job;
    q.step = step;
    ask(w, c, zsd_skip, &q);
}

static void truth_step(struct world *w, struct truth *t, uint64_t step)
{
    struct zk_scalars scalars = zk_prepare(ZB_ADAMW, &step_params, step);

    for (uint32_t u = 0; u < UNITS; u++) {
        const struct zk_segment all = { .count = unit_elems[u] };

        zk_page_step(w->daemon.kernels, &t->layout, &t->pages[u], &all, 1, &scalars);
    }
}

static int job_step(struct world *w, unsigned c, struct truth *t, uint64_t step)
{
    int rc;

    job_step_ask(w, c, step);
    rc = answer(w, c);
    if (rc == 0)
        truth_step(w, t, step);
    return rc;
}

/* Values that are read are the reference's, or there is an error: never other bytes. */
static int unit_compare(struct world *w, unsigned c, uint32_t u, struct truth *t)
{
    int rc = 0;

    for (enum zk_what what = ZK_PARAM; what <= ZK_EXP_AVG_SQ && rc == 0; what++) {
        uint64_t count = zb_padded_elems(unit_elems[u]);
        size_t bytes = count * (what == ZK_PARAM ? zb_dtype_bytes(t->layout.dtype) : sizeof(float));
        float *want = malloc(count * sizeof(float));
        Zp__Read q = ZP__READ__INIT;

        zk_page_read(w->daemon.kernels, &t->layout, &t->pages[u], what, want);
        q.shard = w->clients[c].shards[u];
        q.what = what;
        q.count = count;
        memset(w->clients[c].staging, 0x5a, bytes);
        rc = call(w, c, zsd_read, &q);
        if (rc == 0)
            assert_memory_equal(w->clients[c].staging, want, bytes);
        free(want);
    }
    return rc;
}

static int unit_fetch(struct world *w, unsigned c, uint32_t u, struct truth *t, uint64_t version)
{
    Zp__Fetch q = ZP__FETCH__INIT;
    Zp__Release r = ZP__RELEASE__INIT;
    Zp__FetchReply *reply;
    const struct zsd_job *job = w->clients[c].conn.member->job;
    int rc;

    q.n_shards = 1;
    q.shards = &w->clients[c].shards[u];
    q.min_version = version;
    rc = call(w, c, zsd_fetch, &q);
    if (rc != 0)
        return rc;
    reply = zp__fetch_reply__unpack(NULL, answers[c].len, answers[c].bytes);
    assert_int_equal(reply->n_items, 1);
    assert_int_equal(reply->items[0]->version, version);
    assert_int_equal(job->pins, 1);
    assert_memory_equal(job->arena.base + reply->items[0]->offset, t->pages[u].param,
                        reply->items[0]->bytes);
    zp__fetch_reply__free_unpacked(reply, NULL);
    r.n_shards = 1;
    r.shards = q.shards;
    zsd_release(&w->clients[c].conn, &r.base);
    assert_int_equal(job->pins, 0);
    return 0;
}

/* A small training run; the first failure ends it and is returned. */
static int train(struct world *w, struct truth *t, enum zb_dtype dtype, uint64_t steps)
{
    int rc = job_open(w, 0);

    if (rc == 0)
        rc = job_define(w, 0, dtype);
    for (uint32_t u = 0; u < UNITS && rc == 0; u++)
        rc = unit_write(w, 0, u, t);
    for (uint64_t step = 1; step <= steps && rc == 0; step++) {
        for (uint32_t u = 0; u < UNITS && rc == 0; u++)
            rc = unit_fetch(w, 0, u, t, step - 1);
        for (uint32_t u = UNITS; u-- > 0 && rc == 0;)
            rc = unit_push(w, 0, u, t, step);
        if (rc == 0)
            rc = job_step(w, 0, t, step);
        for (uint32_t u = 0; u < UNITS && rc == 0; u++)
            rc = unit_compare(w, 0, u, t);
    }
    for (uint32_t u = 0; u < UNITS && rc == 0; u++)
        rc = unit_fetch(w, 0, u, t, steps);
    return rc;
}

/* ---- tests */

/* The least budget that admission reports, found by asking. */
static uint64_t least_host(enum zb_dtype dtype)
{
    struct world w;
    uint64_t least;

    world_open(&w, 4 * STAGING, "threads", 1);
    assert_int_equal(job_open(&w, 0), 0);
    w.daemon.core->tiers.host_target = w.daemon.core->tiers.host.budget =
        zsd_account_used(&w.daemon.core->tiers.host); /* nothing stays in use */
    assert_int_equal(job_define(&w, 0, dtype), -ENOSPC);
    assert_non_null(strstr(answers[0].text, "smallest host_bytes"));
    least = strtoull(strrchr(answers[0].text, ' '), NULL, 10);
    world_close(&w);
    return least;
}

static void core_trains(void **state)
{
    static const char *const engines[] = { "uring", "threads" };

    (void)state;
    for (int dtype = ZB_F32; dtype <= ZB_BF16; dtype++)
        for (size_t e = 0; e < ZB_COUNT(engines); e++) {
            uint64_t least = least_host(dtype);

            for (uint64_t host = least; host <= least + (3 << 20); host += 700 * 1000) {
                struct world w;
                struct truth t;

                world_open(&w, host, engines[e], 1);
                truth_open(&t, dtype);
                if (train(&w, &t, dtype, 3) != 0)
                    fail_msg("%s, host_bytes %llu: %s", engines[e], (unsigned long long)host,
                             answers[0].text);
                assert_true(host > least || w.clients[0].conn.member->job->nvme_written_bytes > 0);
                truth_close(&t);
                world_close(&w);
            }
        }
}

static void core_least_is_least(void **state)
{
    (void)state;
    for (int dtype = ZB_F32; dtype <= ZB_BF16; dtype++) {
        uint64_t least = least_host(dtype);
        struct world w;

        world_open(&w, least - 1, "threads", 1);
        assert_int_equal(job_open(&w, 0), 0);
        assert_int_equal(job_define(&w, 0, dtype), -ENOSPC);
        world_close(&w);
        world_open(&w, least, "threads", 1);
        assert_int_equal(job_open(&w, 0), 0);
        assert_int_equal(job_define(&w, 0, dtype), 0);
        world_close(&w);
    }
}

/* The nth transfer fails, for every n that the run reaches: the run reports it, no wrong bytes are
 * ever seen (train() compares), nothing hangs, and everything is freed. */
static void core_with_every_failure(void **state)
{
    uint64_t least = least_host(ZB_BF16);
    bool failed = true;
    unsigned nth;

    (void)state;
    for (nth = 1; failed; nth += ztest_stride(5)) {
        struct zn_fault_plan plan = { .nth = nth, .nth_res = -EIO };
        struct world w;
        struct truth t;
        int rc;

        world_open(&w, least, nth % 2 ? "threads" : "uring", 1);
        truth_open(&t, ZB_BF16);
        assert_int_equal(zn_fault_install(w.daemon.engine, &plan), 0);
        rc = train(&w, &t, ZB_BF16, 1);
        failed = zn_fault_seen(w.daemon.engine) >= nth;
        assert_int_equal(rc, failed ? -EIO : 0);
        truth_close(&t);
        world_close(&w);
    }
    assert_true(nth > 100); /* the workload does stream */
}

/* The nth allocation of the loop thread fails, for every n at first, then for fewer and fewer: the
 * request that needed it is refused, or did not need it, and everything is freed. */
static void core_with_failed_allocations(void **state)
{
    uint64_t least = least_host(ZB_BF16);
    bool failed = true;
    unsigned nth;

    (void)state;
    for (nth = 1; failed; nth += (1 + nth / 64) * ztest_stride(3)) {
        struct world w;
        struct truth t;
        int rc;

        world_open(&w, least, nth % 2 ? "threads" : "uring", 1);
        truth_open(&t, ZB_BF16);
        alloc_fail(nth, 1);
        rc = train(&w, &t, ZB_BF16, 1);
        if (rc != 0 && (!alloc_failed() || rc != -ENOMEM))
            fail_msg("allocation %u: %d, %s", nth, rc, answers[0].text);
        truth_close(&t);
        world_close(&w);
        failed = alloc_failed();
    }
    assert_true(nth > 100);
}

static void core_heals_short_transfers(void **state)
{
    struct zn_fault_plan plan = { .short_every = 2, .again_every = 5, .lifo = true };
    uint64_t least = least_host(ZB_F32);
    struct world w;
    struct truth t;

    (void)state;
    world_open(&w, least, "uring", 1);
    truth_open(&t, ZB_F32);
    assert_int_equal(zn_fault_install(w.daemon.engine, &plan), 0);
    assert_int_equal(train(&w, &t, ZB_F32, 3), 0);
    truth_close(&t);
    world_close(&w);
}

/* A page that was changed on the device causes an error of the fetch and of the step, and is never
 * returned.
 */
static void core_detects_corruption(void **state)
{
    uint64_t least = least_host(ZB_BF16);

    (void)state;
    for (int plane = ZB_PARAM; plane <= ZB_STATE; plane += ZB_STATE - ZB_PARAM) {
        struct world w;
        struct truth t;
        struct zsd_shard *s;
        uint8_t byte;
        int fd, rc;
        uint64_t at;

        world_open(&w, least, "threads", 1);
        truth_open(&t, ZB_BF16);
        assert_int_equal(train(&w, &t, ZB_BF16, 3), 0);
        s = w.clients[0].conn.member->job->shards[1];
        at = w.daemon.engine_base + s->planes[plane].extents[1].at + 777;
        fd = open(w.path, O_RDWR | O_CLOEXEC);
        assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
        byte ^= 4;
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
        (void)close(fd);
        if (plane == ZB_PARAM) {
            assert_int_equal(unit_fetch(&w, 0, 1, &t, 3), -EBADMSG);
            assert_int_equal(unit_fetch(&w, 0, 1, &t, 3), -EBADMSG); /* the error persists */
            assert_int_equal(unit_fetch(&w, 0, 0, &t, 3), 0);        /* other shards are good */
        } else {
            assert_int_equal(unit_compare(&w, 0, 1, &t), -EBADMSG);
        }
        for (uint32_t u = 0; u < UNITS; u++)
            assert_int_equal(unit_push(&w, 0, u, &t, 4), 0);
        rc = job_step(&w, 0, &t, 4);
        assert_int_equal(rc, -EBADMSG);
        assert_non_null(strstr(answers[0].text, "unit 'b'"));
        assert_non_null(strstr(answers[0].text, "page 1"));
        assert_int_equal(w.clients[0].events, 1); /* the job failed, and every rank was told */
        assert_int_equal(unit_fetch(&w, 0, 0, &t, 3), -EBADMSG); /* the error persists */
        truth_close(&t);
        world_close(&w);
    }
}

/* Numbers of state pages: in memory, streamed, and those that the next step moves. */
struct kinds {
    uint32_t resident, streamed, leave, come;
};

static struct kinds kinds_of(const struct zsd_job *job)
{
    struct kinds k = { 0 };

    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];

        for (uint32_t page = 0; page < s->npages; page++) {
            k.leave += zsd_page_leaves(s, page);
            k.come += zsd_page_comes(s, page);
            *(zsd_page_streamed(s, ZB_STATE, page) ? &k.streamed : &k.resident) += 1;
        }
    }
    return k;
}

/* A step: in its first turn, pages of both kinds begin before any has ended. */
static void step_of_both_kinds(struct world *w, struct truth *t, uint64_t step)
{
    const struct zsd_job *job = job_of(w, 0);

    for (uint32_t u = 0; u < UNITS; u++)
        assert_int_equal(unit_push(w, 0, u, t, step), 0);
    job_step_ask(w, 0, step);
    core_entered(true);
    zsd_core_turn(&w->daemon); /* nothing is reaped */
    core_entered(false);
    assert_true(job->step->resident.inflight > 0);
    assert_true(job->step->streamed.inflight > 0);
    assert_int_equal(answer(w, 0), 0);
    assert_int_equal(job->step->resident.inflight + job->step->streamed.inflight, 0);
    truth_step(w, t, step);
    for (uint32_t u = 0; u < UNITS; u++)
        assert_int_equal(unit_compare(w, 0, u, t), 0);
}

/* There are more pages in memory than a step begins at a time: streamed pages do not wait for them
 * to end, nor the other way round. This also holds where pages change from one kind to the other:
 * with another budget, some leave or enter memory in the next step. */
static void core_steps_both_kinds_at_once(void **state)
{
    static const int moves[] = { -4, 5, -1, -2, 1 }; /* pages */
    struct zb_err err = { 0 };
    uint64_t step = 0;
    struct kinds was, is;
    struct world w;
    struct truth t;

    (void)state;
    world_open(&w, least_host(ZB_BF16) + (3 << 19), "threads", 1); /* some state is streamed */
    truth_open(&t, ZB_BF16);
    assert_int_equal(job_open(&w, 0), 0);
    assert_int_equal(job_define(&w, 0, ZB_BF16), 0);
    was = kinds_of(job_of(&w, 0));
    assert_in_range(was.resident, zsd_step_inflight_max(w.daemon.core), 14);
    assert_true(was.streamed > 1);
    for (uint32_t u = 0; u < UNITS; u++)
        assert_int_equal(unit_write(&w, 0, u, &t), 0);
    while (step < 3)
        step_of_both_kinds(&w, &t, ++step);
    for (size_t i = 0; i < ZB_COUNT(moves); i++) {
        int64_t used = (int64_t)zsd_account_used(&w.daemon.core->tiers.host);
        int64_t bytes = moves[i] * (int64_t)zb_page_bytes(t.layout.block_bytes[ZB_STATE], PAGE);

        assert_int_equal(zsd_host_set(w.daemon.core, (uint64_t)(used + bytes), &err), 0);
        world_settle(&w);
        was = kinds_of(job_of(&w, 0));
        assert_true(moves[i] < 0 ? was.leave > 0 && was.come == 0 : was.come > 0 && was.leave == 0);
        step_of_both_kinds(&w, &t, ++step);
        is = kinds_of(job_of(&w, 0));
        assert_int_equal(is.leave + is.come, 0);
        assert_int_equal(is.resident, was.resident + was.come - was.leave);
    }
    truth_close(&t);
    world_close(&w);
}

/* The number of pages that a step may begin early: those whose state stays on the data file.
 * Parameters are in memory, and the new ones wait where the gradient was. */
static uint64_t pages_to_begin(const struct zsd_job *job)
{
    uint64_t pages = 0;

    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];

        assert_true(zsd_shard_resident(s));
        for (uint32_t page = 0; page < s->npages; page++)
            pages += zsd_page_streamed(s, ZB_STATE, page) && !zsd_page_comes(s, page);
    }
    return pages;
}

/* Steps begin early, and are made or skipped, while state moves. */
static void early_where_state_moves(uint64_t host_bytes)
{
    static const struct {
        int pages;
        bool skip;
    } moves[] = { { 0, false }, { 0, true },  { -3, false }, { 0, false }, { 0, true },
                  { 2, true },  { 4, false }, { 0, true },   { -5, true }, { 1, false } };
    const struct open_args args = { .early = true };
    uint64_t applied = 0, moved = 0;
    struct zb_err err = { 0 };
    const struct zsd_stats *stats;
    struct world w;
    struct truth t;

    world_open(&w, host_bytes, "threads", 1);
    stats = &w.daemon.stats;
    truth_open(&t, ZB_BF16);
    assert_int_equal(job_open_with(&w, 0, &args), 0);
    assert_int_equal(job_define(&w, 0, ZB_BF16), 0);
    assert_true(kinds_of(job_of(&w, 0)).resident > 3);
    for (uint32_t u = 0; u < UNITS; u++)
        assert_int_equal(unit_write(&w, 0, u, &t), 0);
    for (size_t i = 0; i < ZB_COUNT(moves); i++) {
        int64_t used = (int64_t)zsd_account_used(&w.daemon.core->tiers.host);
        int64_t bytes = moves[i].pages *
                        (int64_t)zb_page_bytes(t.layout.block_bytes[ZB_STATE], PAGE);
        uint64_t early = stats->pages_early, undone = stats->pages_undone, pages;

        assert_int_equal(zsd_host_set(w.daemon.core, (uint64_t)(used + bytes), &err), 0);
        world_settle(&w);
        assert_int_equal(job_step_begin(&w, 0, i + 1), 0);
        for (uint32_t u = 0; u < UNITS; u++)
            assert_int_equal(unit_push(&w, 0, u, &t, i + 1), 0);
        world_settle(&w);
        pages = pages_to_begin(job_of(&w, 0));
        moved += kinds_of(job_of(&w, 0)).come + kinds_of(job_of(&w, 0)).leave;
        assert_true(pages > 0);
        assert_int_equal(stats->pages_early - early, pages);
        if (moves[i].skip) {
            job_skip_ask(&w, 0, i + 1);
        } else {
            job_step_ask(&w, 0, i + 1);
            truth_step(&w, &t, ++applied);
        }
        assert_int_equal(answer(&w, 0), 0);
        assert_int_equal(stats->pages_undone - undone, moves[i].skip ? pages : 0);
        for (uint32_t u = 0; u < UNITS; u++)
            assert_int_equal(unit_compare(&w, 0, u, &t), 0);
    }
    assert_true(moved > 0);
    truth_close(&t);
    world_close(&w);
}

static void core_steps_early_where_state_moves(void **state)
{
    uint64_t host_bytes = least_host(ZB_BF16) + (3 << 19);

    (void)state;
    for (unsigned less = 0; less < 3; less++) /* pages: the last one is inside a shard, too */
        early_where_state_moves(host_bytes - less * PAGE * 10u);
}

/* Counts of pins do not overflow, however often a rank fetches. */
static void core_bounds_pins(void **state)
{
    struct world w;
    struct truth t;
    struct zsd_job *job;

    (void)state;
    world_open(&w, least_host(ZB_F32) + (3 << 20), "threads", 1);
    truth_open(&t, ZB_F32);
    assert_int_equal(train(&w, &t, ZB_F32, 1), 0);
    job = w.clients[0].conn.member->job;
    job->pins = ZSD_PINS_MAX;
    assert_int_equal(unit_fetch(&w, 0, 0, &t, 1), -EBUSY);
    assert_non_null(strstr(answers[0].text, "16777216 pins"));
    job->pins = 0;
    assert_int_equal(unit_fetch(&w, 0, 0, &t, 1), 0);
    truth_close(&t);
    world_close(&w);
}

/* The daemon ends, and one rank leaves before the other one is told: that one is told that the
 * daemon ends, not that its peer died. */
static void core_ends_before_its_ranks(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, 16 << 20, "threads", 2);
    for (uint32_t rank = 0; rank < 2; rank++) {
        const struct open_args args = { .rank = rank, .world = 2 };

        assert_int_equal(job_open_with(&w, rank, &args), 0);
    }
    zsd_core_drain(&w.daemon);
    client_gone(&w, 1);
    assert_int_equal(w.clients[0].events, 1);
    assert_int_equal(job_of(&w, 0)->why.code, -ENOTCONN);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(core_trains),
        cmocka_unit_test(core_least_is_least),
        cmocka_unit_test(core_with_every_failure),
        cmocka_unit_test(core_with_failed_allocations),
        cmocka_unit_test(core_heals_short_transfers),
        cmocka_unit_test(core_detects_corruption),
        cmocka_unit_test(core_steps_both_kinds_at_once),
        cmocka_unit_test(core_steps_early_where_state_moves),
        cmocka_unit_test(core_bounds_pins),
        cmocka_unit_test(core_ends_before_its_ranks),
    };

    zk_thread_init();
    zb_log_set_level(ZB_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
