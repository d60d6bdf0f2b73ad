/*
 * However large a job is, no turn does more than ZSD_TURN_WORK units of work: registration,
 * commits, snapshots, loads, destroy. Work is counted, not timed, so the result does not depend on
 * the machine.
 */
#include "tests/unit/daemon/core_fixture.h"

#include "daemon/show/scans.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- registration */

#define SHARDS 150000u

/* Registers n blocks, from the first one on. */
static void blocks_register(struct world *w, uint32_t n)
{
    uint64_t firsts[ZP_SHARDS_MAX];

    for (uint32_t done = 0; done < n;) {
        uint32_t some = (uint32_t)zb_min_u64(ZP_SHARDS_MAX, n - done);

        for (uint32_t i = 0; i < some; i++)
            firsts[i] = done++ * (uint64_t)ZB_BLOCK_ELEMS;
        assert_int_equal(ranges_register(w, firsts, some), 0);
    }
}

/* In descending order: each goes before all others. */
static void descending(void **state)
{
    const struct unit unit = { .name = "a",
                               .elems = (uint64_t)SHARDS * ZB_BLOCK_ELEMS,
                               .dtype = ZB_BF16,
                               .grad_dtype = ZB_F32,
                               .frozen = true };
    uint64_t firsts[ZP_SHARDS_MAX], left = SHARDS;
    const struct zb_sorted *shards;
    struct zb_sorted_pos at;
    struct world w;

    (void)state;
    world_open(&w, UINT64_C(1) << 40, NULL, 1);
    assert_int_equal(job_open(&w, 0), 0);
    assert_int_equal(unit_define(&w, 0, 0, &unit), 0);
    w.daemon.stats.turn_max_work = 0;
    while (left > 2) {
        uint32_t n = (uint32_t)zb_min_u64(ZP_SHARDS_MAX, left - 2);

        for (uint32_t i = 0; i < n; i++)
            firsts[i] = --left * ZB_BLOCK_ELEMS;
        assert_int_equal(ranges_register(&w, firsts, n), 0);
    }
    firsts[0] = 0; /* all of a request or none */
    firsts[1] = ZB_BLOCK_ELEMS;
    firsts[2] = 7 * ZB_BLOCK_ELEMS;
    assert_int_equal(ranges_register(&w, firsts, 3), -EINVAL);
    assert_non_null(strstr(answers[0].text, "overlaps"));
    assert_int_equal(job_of(&w, 0)->nshards, SHARDS - 2);
    assert_int_equal(ranges_register(&w, firsts, 2), 0);
    shards = &job_of(&w, 0)->units[0]->shards;
    at = zb_sorted_at(shards, 0);
    for (uint32_t i = 0; i < SHARDS; i++) {
        const struct zsd_shard *s = zb_sorted_get(shards, at);

        assert_true(s->first == (uint64_t)i * ZB_BLOCK_ELEMS);
        at = zb_sorted_next(shards, at);
    }
    assert_int_equal(shards->n, SHARDS);
    assert_in_range(ZB_SORTED_CHUNK, 2, 1024); /* the most that one insertion may move */
    for (size_t i = 0; i < shards->nchunks; i++)
        assert_in_range(shards->chunks[i]->n, 1, ZB_SORTED_CHUNK);
    assert_in_range(w.daemon.stats.turn_max_work, ZP_SHARDS_MAX, ZSD_TURN_WORK);
    world_close(&w);
}

/* ---- a job of many pages */

#define PAGE_BYTES  (2u * ZB_BLOCK_ELEMS) /* of bf16 */
#define WRITE_PAGES 64u

struct big {
    struct world w;
    char catalog[80];
    uint32_t pages;
    uint32_t blocks; /* one-page shards of the frozen unit; 0: it is one shard */
    uint64_t step;
};

static uint64_t big_elems(const struct big *b)
{
    return (uint64_t)b->pages * ZB_BLOCK_ELEMS;
}

static uint64_t big_file_bytes(const struct big *b)
{
    return b->pages * UINT64_C(2) * PAGE_BYTES + (64 << 20);
}

/* Checks the longest turn since the last check. */
static void bounded(struct big *b, const char *what)
{
    uint64_t work = b->w.daemon.stats.turn_max_work;

    if (work > ZSD_TURN_WORK)
        fail_msg("%s: a turn of %llu units of work", what, (unsigned long long)work);
    b->w.daemon.stats.turn_max_work = 0;
}

/* Room for everything in memory, and twice in the data file. */
static void big_open_pages(struct big *b, uint32_t pages)
{
    struct zb_err err = { 0 };

    memset(b, 0, sizeof(*b));
    b->pages = pages;
    world_open_sized(&b->w, b->pages * UINT64_C(12000) + (64 << 20), "threads", 2,
                     big_file_bytes(b), ZB_BLOCK_ELEMS);
    b->w.staging_bytes = WRITE_PAGES * ZB_BLOCK_ELEMS * sizeof(float);
    (void)snprintf(b->catalog, sizeof(b->catalog), "%s.catalog", b->w.path);
    b->w.daemon.catalog_path = b->catalog;
    if (zsd_store_open(b->w.daemon.core, &err) != 0)
        fail_msg("%s", err.text);
}

static void big_open(struct big *b)
{
    big_open_pages(b, ztest_is_long() ? 100000 : 12000);
}

static void big_close(struct big *b)
{
    char suffix[2][8] = { "-wal", "-shm" }, path[96];

    world_close(&b->w); /* checks that every place is free */
    (void)unlink(b->catalog);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s%s", b->catalog, suffix[i]);
        (void)unlink(path);
    }
}

static struct unit frozen_unit(uint64_t elems)
{
    return (struct unit){
        .name = "frozen", .elems = elems, .dtype = ZB_BF16, .grad_dtype = ZB_F32, .frozen = true
    };
}

static const struct unit trained_unit = { .name = "trained",
                                          .elems = ZB_BLOCK_ELEMS,
                                          .dtype = ZB_BF16,
                                          .grad_dtype = ZB_F32,
                                          .tensors = { { .count = ZB_BLOCK_ELEMS } },
                                          .ntensors = 1 };

/* A frozen unit of all those pages, and a trained one: every rank asks for ready. */
static void big_attach_ask(struct big *b, bool again)
{
    const struct unit units[2] = { frozen_unit(big_elems(b)), trained_unit };
    const struct open_args args = { .keep = true, .durable = true, .attach = again };
    struct client *c = &b->w.clients[0];

    if (job_open_with(&b->w, 0, &args) != 0)
        fail_msg("%s", answers[0].text);
    for (uint32_t u = 0; u < 2; u++) {
        assert_int_equal(unit_define(&b->w, 0, u, &units[u]), 0);
        c->count[u] = u == 0 && b->blocks > 0 ? 0 : units[u].elems;
    }
    blocks_register(&b->w, b->blocks);
    assert_int_equal(shards_register(&b->w, 0, 2), 0);
    job_ready_ask(&b->w, 0, 0);
}

static void big_attach(struct big *b, bool again)
{
    big_attach_ask(b, again);
    if (b->w.answer(&b->w, 0) != 0)
        fail_msg("%s", answers[0].text);
    zb_close_fd(&answers[0].fd);
}

static void big_write(struct big *b, uint32_t u, uint64_t elems)
{
    Zp__Write q = ZP__WRITE__INIT;

    q.shard = b->w.clients[0].shards[u];
    q.what = ZK_MASTER;
    for (q.first = 0; q.first < elems; q.first += q.count) {
        q.count = zb_min_u64(elems - q.first, WRITE_PAGES * ZB_BLOCK_ELEMS);
        if (call(&b->w, 0, zsd_write, &q) != 0)
            fail_msg("%s", answers[0].text);
    }
}

static void big_step_with(struct big *b, enum zsd_commit_what commit)
{
    Zp__GroupScalars g = ZP__GROUP_SCALARS__INIT, *groups[1] = { &g };
    Zp__Push push = ZP__PUSH__INIT;
    Zp__Step step = ZP__STEP__INIT;

    push.shard = b->w.clients[0].shards[1];
    push.step = step.step = ++b->step;
    push.mode = 1;
    push.dtype = ZB_F32;
    push.count = ZB_BLOCK_ELEMS;
    assert_int_equal(call(&b->w, 0, zsd_push, &push), 0);
    g.lr = 1e-2;
    g.beta1 = g.beta2 = 0.9;
    g.eps = 1e-8;
    step.job = b->w.clients[0].job;
    step.scale = 1;
    step.n_groups = 1;
    step.groups = groups;
    step.commit = commit;
    if (call(&b->w, 0, zsd_step, &step) != 0)
        fail_msg("%s", answers[0].text);
}

static void big_step(struct big *b)
{
    big_step_with(b, ZSD_COMMIT);
}

/* The daemon starts again. */
static void big_again(struct big *b)
{
    const struct zn_options options = { .path = b->w.path,
                                        .size_bytes = big_file_bytes(b),
                                        .io = "threads" };
    struct zb_err err = { 0 };

    client_gone(&b->w, 0);
    world_settle(&b->w);
    zsd_core_free(&b->w.daemon);
    zn_close(b->w.daemon.engine);
    if (zn_open(&b->w.daemon.engine, &options, &err) != 0 || zsd_core_new(&b->w.daemon, &err) != 0)
        fail_msg("%s", err.text);
    b->w.daemon.turns.work = b->w.daemon.stats.turn_max_work = 0; /* no turn has begun */
}

static void many_pages(void **state)
{
    Zp__SnapshotTake snap = ZP__SNAPSHOT_TAKE__INIT;
    Zp__JobName name = ZP__JOB_NAME__INIT;
    char job[] = "j", snapshot[] = "s";
    struct big b;

    (void)state;
    big_open(&b);
    big_attach_ask(&b, false);
    assert_null(job_of(&b.w, 0)->shards[0]->planes[ZB_PARAM].extents); /* freed in later turns */
    assert_int_equal(b.w.answer(&b.w, 0), 0);
    zb_close_fd(&answers[0].fd);
    bounded(&b, "define");
    big_write(&b, 0, big_elems(&b));
    big_write(&b, 1, ZB_BLOCK_ELEMS);
    bounded(&b, "write");
    big_step(&b); /* the commit saves every page */
    assert_in_range(b.w.daemon.stats.turn_max_work, 1000, ZSD_TURN_WORK); /* it is counted */
    bounded(&b, "step and commit");
    snap.job = name.name = job;
    snap.name = snapshot;
    assert_int_equal(call(&b.w, 0, zsd_snapshot, &snap), 0);
    bounded(&b, "snapshot");
    big_step(&b);
    bounded(&b, "step and commit of a part");
    big_again(&b);
    big_attach(&b, true); /* every page is adopted, and read */
    bounded(&b, "attach");
    big_step(&b);
    bounded(&b, "step after the attach");
    client_gone(&b.w, 0);
    if (call(&b.w, 1, zsd_job_destroy, &name) != 0)
        fail_msg("%s", answers[0].text);
    world_settle(&b.w);
    bounded(&b, "destroy");
    big_close(&b);
}

/* ---- a job of many shards */

#define MANY 9000u /* shards of a block: more than fit into two turns */

/* The bytes are never read. */
static void shards_filled(struct zsd_job *job)
{
    for (uint32_t i = 0; i < job->nshards; i++)
        zsd_shard_written(job->shards[i], job->shards[i]->npages);
}

static void many_open(struct world *w)
{
    const struct unit units[2] = { frozen_unit((uint64_t)MANY * ZB_BLOCK_ELEMS), trained_unit };

    world_open(w, UINT64_C(1) << 30, NULL, 3);
    assert_int_equal(job_open(w, 0), 0);
    for (uint32_t u = 0; u < 2; u++)
        assert_int_equal(unit_define(w, 0, u, &units[u]), 0);
    blocks_register(w, MANY);
    w->clients[0].count[1] = ZB_BLOCK_ELEMS;
    assert_int_equal(shards_register(w, 0, 2), 0);
    job_ready_ask(w, 0, 0);
    assert_int_equal(w->answer(w, 0), 0);
    zb_close_fd(&answers[0].fd);
    assert_in_range(w->daemon.stats.turn_max_work, 1000, ZSD_TURN_WORK);
    shards_filled(job_of(w, 0));
}

static double many_norm(struct world *w, uint64_t step)
{
    Zp__Norms q = ZP__NORMS__INIT;
    Zp__NormsReply *r;
    struct zk_xsum sum;

    q.job = w->clients[0].job;
    q.step = step;
    w->daemon.turns.work = 0;
    assert_int_equal(call(w, 0, zsd_norms, &q), 0);
    r = zp__norms_reply__unpack(NULL, answers[0].len, answers[0].bytes);
    assert_non_null(r);
    zk_xsum_load(&sum, r->sum_of_squares.data);
    zp__norms_reply__free_unpacked(r, NULL);
    return zk_xsum_value(&sum);
}

static void many_push(struct world *w, uint64_t step, uint32_t micro, float value)
{
    Zp__Push q = ZP__PUSH__INIT;

    for (uint32_t i = 0; i < ZB_BLOCK_ELEMS; i++)
        ((float *)(void *)w->clients[0].staging)[i] = value;
    q.shard = w->clients[0].shards[1];
    q.step = step;
    q.micro = micro;
    q.mode = micro == 0 ? ZP_PUSH_SET : ZP_PUSH_ADD;
    q.dtype = ZB_F32;
    q.count = ZB_BLOCK_ELEMS;
    assert_int_equal(call(w, 0, zsd_push, &q), 0);
}

/* Norms and skips handle no shard; a step begins with a part of the shards in each turn, and they
 * are freed in the same way. */
static void many_shards(void **state)
{
    Zp__GroupScalars g = ZP__GROUP_SCALARS__INIT, *groups[1] = { &g };
    Zp__Step step = ZP__STEP__INIT;
    Zp__Skip skip = ZP__SKIP__INIT;
    const struct zsd_step_op *op;
    struct world w;
    uint32_t turns = 0;

    (void)state;
    many_open(&w);
    assert_true(many_norm(&w, 1) == 0);
    many_push(&w, 1, 0, 2);
    assert_true(many_norm(&w, 1) == 4.0 * ZB_BLOCK_ELEMS);
    many_push(&w, 1, 1, 1); /* the previous sum is subtracted */
    assert_true(many_norm(&w, 1) == 9.0 * ZB_BLOCK_ELEMS);
    w.daemon.stats.turn_max_work = 0;
    skip.job = w.clients[0].job;
    skip.step = 1;
    assert_int_equal(call(&w, 0, zsd_skip, &skip), 0);
    assert_in_range(w.daemon.stats.turn_max_work, 1, 64);
    assert_true(many_norm(&w, 2) == 0); /* dropped without handling any shard */
    many_push(&w, 2, 0, 3);
    assert_true(many_norm(&w, 2) == 9.0 * ZB_BLOCK_ELEMS);
    g.lr = 1e-2;
    g.beta1 = g.beta2 = 0.9;
    g.eps = 1e-8;
    step.job = w.clients[0].job;
    step.step = 2;
    step.scale = 1;
    step.n_groups = 1;
    step.groups = groups;
    ask(&w, 0, zsd_step, &step);
    op = job_of(&w, 0)->step;
    while (answers[0].rc == NONE) {
        uint32_t begun = op->begun;

        world_turn(&w);
        turns += op->begun > begun;
        assert_in_range(op->begun - begun, 0, ZSD_TURN_WORK);
    }
    assert_int_equal(answers[0].rc, 0);
    assert_in_range(turns, 3, 9);
    assert_int_equal(job_of(&w, 0)->shards[0]->version, 1);
    assert_int_equal(job_of(&w, 0)->shards[MANY]->version, 1);
    assert_in_range(w.daemon.stats.turn_max_work, 1000, ZSD_TURN_WORK);
    world_close(&w);
}

/* ---- a saved job of many shards */

/* Whether the loop has work, else it waits for a task. */
static bool turn_works(const struct big *b)
{
    return !zb_list_empty(&b->w.daemon.core->works);
}

/* Turns until the job is placed; returns how many turns had work. */
static uint32_t turns_placed(struct big *b)
{
    const struct zsd_job *job = job_of(&b->w, 0);
    uint32_t turns = 0;

    for (; !job->placed && answers[0].rc == NONE; world_turn(&b->w))
        turns += turn_works(b);
    return turns;
}

/* The number of pages that have an extent. */
static uint32_t saved_pages(const struct zsd_job *job)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->nshards; i++)
        for (uint32_t p = 0; p < job->shards[i]->npages; p++)
            n += job->shards[i]->planes[ZB_PARAM].extents[p].at != ZB_NO_PLACE;
    return n;
}

/* The number of shards that have a table of pages; and that have their memory. */
static uint32_t with_tables(const struct zsd_job *job)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->nshards; i++)
        n += job->shards[i]->planes[ZB_PARAM].extents != NULL;
    return n;
}

/* The number of shards whose resident pages are decided. */
static uint32_t with_plan(const struct zsd_job *job)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->nshards; i++)
        n += job->shards[i]->state_booked > 0;
    return n;
}

static uint32_t with_memory(const struct zsd_job *job)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->nshards; i++)
        n += job->shards[i]->planes[ZB_PARAM].mem != NULL;
    return n;
}

/* The most by which the count changes in one turn, starting from `had`, until rank 0 is answered,
 * or for this many turns. */
static uint32_t most_in_a_turn(struct big *b, uint32_t had, uint32_t turns,
                               uint32_t (*count)(const struct zsd_job *job))
{
    uint32_t most = 0, have;

    for (uint32_t turn = 0; turn < turns; turn++, had = have) {
        have = count(job_of(&b->w, 0));
        most = (uint32_t)zb_max_u64(most, have > had ? have - had : had - have);
        if (answers[0].rc != NONE)
            break;
        world_turn(&b->w);
    }
    return most;
}

/* The rank leaves and attaches again, to resume from a step. */
static uint32_t rewind_ask(struct big *b, uint64_t step, uint32_t turns)
{
    const struct open_args args = { .keep = true, .durable = true, .attach = true };
    Zp__Ready q = ZP__READY__INIT;
    uint32_t had;

    client_gone(&b->w, 0);
    world_settle(&b->w);
    assert_int_equal(job_open_with(&b->w, 0, &args), 0);
    had = saved_pages(job_of(&b->w, 0));
    assert_true(had > MANY - 1);
    q.job = b->w.clients[0].job;
    q.at_point = true;
    q.iterations = b->step = step;
    ask(&b->w, 0, zsd_ready, &q);
    return most_in_a_turn(b, had, turns, saved_pages);
}

static void answered(struct big *b, const char *what)
{
    if (b->w.answer(&b->w, 0) != 0)
        fail_msg("%s: %s", what, answers[0].text);
    zb_close_fd(&answers[0].fd);
    bounded(b, what);
}

/* The rank dies in the middle of the checks, or when only some shards have what is counted. */
static void end_in_attach(struct big *b, uint32_t (*count)(const struct zsd_job *job))
{
    big_attach_ask(b, true);
    world_turn(&b->w);
    while (count && count(job_of(&b->w, 0)) == 0)
        world_turn(&b->w);
    if (count)
        assert_in_range(count(job_of(&b->w, 0)), 1, MANY - 1);
    else
        assert_false(job_of(&b->w, 0)->placed);
    client_gone(&b->w, 0);
    world_settle(&b->w);
    bounded(b, "end in an attach");
}

/* Another client destroys the saved job, and the daemon ends. */
static void big_destroy(struct big *b)
{
    Zp__JobName name = ZP__JOB_NAME__INIT;
    char job[] = "j";

    name.name = job;
    assert_int_equal(call(&b->w, 1, zsd_job_destroy, &name), 0);
    world_settle(&b->w);
    big_close(b);
}

/* Placement, checks before a load, and a rewind handle a part of the shards in each turn; and an
 * ended job is freed in parts. */
static void many_saved(void **state)
{
    struct big b;

    (void)state;
    big_open_pages(&b, MANY);
    b.blocks = MANY;
    big_attach_ask(&b, false);
    assert_in_range(most_in_a_turn(&b, 0, UINT32_MAX, with_tables), 1000, ZSD_TURN_WORK);
    answered(&b, "place");
    shards_filled(job_of(&b.w, 0));
    big_step(&b);
    big_again(&b);
    big_attach_ask(&b, true);
    assert_in_range(turns_placed(&b), 8, 40); /* MANY rows, and three times MANY shards */
    assert_in_range(most_in_a_turn(&b, 0, UINT32_MAX, with_memory), 1000, ZSD_TURN_WORK);
    answered(&b, "attach");
    big_step_with(&b, ZSD_COMMIT_NONE);
    assert_in_range(rewind_ask(&b, 1, UINT32_MAX), 1000, ZSD_TURN_WORK);
    answered(&b, "rewind");
    assert_int_equal(job_of(&b.w, 0)->iterations, 1);
    big_step_with(&b, ZSD_COMMIT_NONE);
    (void)rewind_ask(&b, 1, 2);
    assert_int_equal(answers[0].rc, NONE);
    client_gone(&b.w, 0); /* in the middle of it: the job is placed again */
    world_settle(&b.w);
    bounded(&b, "end in a rewind");
    end_in_attach(&b, NULL);
    end_in_attach(&b, with_tables);
    end_in_attach(&b, with_memory);
    b.blocks--; /* one is missing: the last row has no shard */
    big_attach_ask(&b, true);
    assert_int_equal(b.w.answer(&b.w, 0), -EINVAL);
    assert_non_null(strstr(answers[0].text, "elements are registered, and"));
    client_gone(&b.w, 0);
    world_settle(&b.w);
    bounded(&b, "attach of others");
    big_destroy(&b);
}

/* ---- placement of many shards */

enum placing { GATHERS, PLANS, APPLIES };

/* A new job of many shards, whose placement has come to there. */
static void placing_until(struct big *b, enum placing there)
{
    const struct zsd_job *job;

    big_attach_ask(b, false);
    job = job_of(&b->w, 0);
    assert_int_equal(with_plan(job), 0);
    while (there == PLANS && turn_works(b))
        (void)zsd_core_turn(&b->w.daemon); /* leaves the task alone */
    while (there == APPLIES && with_plan(job) == 0)
        world_turn(&b->w);
    assert_true(turn_works(b) == (there != PLANS));
    assert_in_range(with_plan(job), there == APPLIES, there == APPLIES ? MANY - 1 : 0);
    assert_int_equal(job->state, ZSD_PLACING);
    assert_false(job->placed);
}

/* The rank dies in each part of the placement: nothing is booked, and nothing is left. */
static void placement_ends(void **state)
{
    uint64_t host, nvme;
    struct big b;

    (void)state;
    big_open_pages(&b, MANY);
    b.blocks = MANY;
    host = zsd_account_used(&b.w.daemon.core->tiers.host);
    nvme = zsd_account_used(&b.w.daemon.core->tiers.nvme);
    for (enum placing there = GATHERS; there <= APPLIES; there++) {
        placing_until(&b, there);
        client_gone(&b.w, 0);
        world_settle(&b.w);
        assert_true(zsd_account_used(&b.w.daemon.core->tiers.host) == host);
        assert_true(zsd_account_used(&b.w.daemon.core->tiers.nvme) == nvme);
        bounded(&b, "end in a placement");
    }
    big_attach_ask(&b, false);
    assert_in_range(most_in_a_turn(&b, 0, UINT32_MAX, with_plan), 1000, ZSD_TURN_WORK);
    answered(&b, "place");
    big_close(&b);
}

static void budget_set(struct big *b, uint64_t bytes)
{
    struct zb_err err = { 0 };

    if (zsd_host_set(b->w.daemon.core, bytes, &err) != 0)
        fail_msg("%s", err.text);
}

/* The budget shrinks while a placement is made: it is made again. */
static void placement_again(void **state)
{
    (void)state;
    for (enum placing there = PLANS; there <= APPLIES; there++) {
        const struct zsd_account *host;
        struct big b;

        big_open_pages(&b, MANY);
        b.blocks = MANY;
        host = &b.w.daemon.core->tiers.host;
        placing_until(&b, there);
        budget_set(&b, zsd_account_used(host) + (UINT64_C(40) << 20));
        answered(&b, "place with less");
        assert_in_range(zsd_account_used(host), UINT64_C(40) << 20, host->budget);
        assert_true(job_of(&b.w, 0)->ring_bytes > 0); /* the first plan had no ring */
        big_close(&b);
    }
}

/* A plan that lacks memory is made again if there is more of it meanwhile. */
static void placement_more(void **state)
{
    uint64_t all;
    struct big b;

    (void)state;
    big_open_pages(&b, MANY);
    b.blocks = MANY;
    all = b.w.daemon.core->tiers.host_target;
    big_attach_ask(&b, false);
    budget_set(&b, zsd_account_used(&b.w.daemon.core->tiers.host) + 4096);
    while (turn_works(&b))
        (void)zsd_core_turn(&b.w.daemon); /* leaves the task alone */
    assert_false(job_of(&b.w, 0)->place_waits);
    budget_set(&b, all);
    answered(&b, "place with more");
    assert_true(job_of(&b.w, 0)->ring_bytes == 0);
    big_close(&b);
}

/* A rewind handles only a part of the pages in each turn, also if they belong to one shard. */
static void rewound_pages(void **state)
{
    struct big b;

    (void)state;
    big_open_pages(&b, MANY);
    big_attach(&b, false);
    shards_filled(job_of(&b.w, 0));
    big_step(&b);
    big_step_with(&b, ZSD_COMMIT_NONE);
    assert_in_range(rewind_ask(&b, 1, UINT32_MAX), 1000, ZSD_TURN_WORK);
    answered(&b, "rewind");
    assert_int_equal(job_of(&b.w, 0)->iterations, 1);
    big_step_with(&b, ZSD_COMMIT_NONE);
    (void)rewind_ask(&b, 1, 2);
    assert_int_equal(answers[0].rc, NONE);
    client_gone(&b.w, 0); /* in the middle of the shard */
    world_settle(&b.w);
    bounded(&b, "end in a rewind");
    big_destroy(&b);
}

/* If a job has many ranks, each turn handles some of them. */
static void many_ranks(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, UINT64_C(1) << 30, NULL, 3);
    for (unsigned c = 0; c < 3; c++) {
        static const char *const names[3] = { "a", "b", "c" };

        assert_int_equal(
            job_open_with(&w, c, &(struct open_args){ .name = names[c], .world = 700 }), 0);
    }
    world_settle(&w);
    w.daemon.core->scans->top_at = 0;
    w.daemon.stats.turn_max_work = 0;
    for (uint32_t turn = 1; turn <= 6; turn++) {
        (void)zsd_core_turn(&w.daemon);
        assert_int_equal(w.daemon.core->scans->top_at, turn % 3);
    }
    assert_in_range(w.daemon.stats.turn_max_work, 700, 1024);
    world_close(&w);
}

/* ---- one request of many pages */

#define PUSHED 4400u

static void push_in_parts(void **state)
{
    const struct unit unit = { .name = "u",
                               .elems = (uint64_t)PUSHED * ZB_BLOCK_ELEMS,
                               .dtype = ZB_BF16,
                               .grad_dtype = ZB_BF16,
                               .tensors = { { .count = (uint64_t)PUSHED * ZB_BLOCK_ELEMS } },
                               .ntensors = 1 };
    Zp__Push push = ZP__PUSH__INIT;
    struct world w;

    (void)state;
    world_open_sized(&w, UINT64_C(1) << 30, "threads", 1, 64 << 20, ZB_BLOCK_ELEMS);
    w.staging_bytes = PUSHED * 2 * ZB_BLOCK_ELEMS;
    assert_int_equal(job_open(&w, 0), 0);
    assert_int_equal(unit_define(&w, 0, 0, &unit), 0);
    w.clients[0].count[0] = unit.elems;
    assert_int_equal(shards_register(&w, 0, 1), 0);
    job_ready_ask(&w, 0, 0);
    assert_int_equal(w.answer(&w, 0), 0);
    zb_close_fd(&answers[0].fd);
    w.daemon.turns.work = w.daemon.stats.turn_max_work = 0;
    push.shard = w.clients[0].shards[0];
    push.step = 1;
    push.mode = ZP_PUSH_SET;
    push.dtype = ZB_BF16;
    push.count = unit.elems;
    ask(&w, 0, zsd_push, &push);
    assert_in_range(w.daemon.turns.work, 3000, ZSD_TURN_WORK); /* the rest waits */
    assert_int_equal(w.answer(&w, 0), 0);
    assert_int_equal(job_of(&w, 0)->ranks[0].whole, 1);
    assert_in_range(w.daemon.stats.turn_max_work, 3000, ZSD_TURN_WORK);
    world_close(&w);
}

/* ---- a step that begins early and is not made */

#define AHEAD        900u /* pages: more than a turn can handle in addition to requests */
#define AHEAD_PUSHED 60u  /* of these in one request */

static const struct unit ahead_unit = { .name = "u",
                                        .elems = (uint64_t)AHEAD * ZB_BLOCK_ELEMS,
                                        .dtype = ZB_BF16,
                                        .grad_dtype = ZB_F32,
                                        .tensors = { { .count = (uint64_t)AHEAD *
                                                                ZB_BLOCK_ELEMS } },
                                        .ntensors = 1 };

/* Sends values, or the gradient, for all pages of all shards. */
static void ahead_send(struct world *w, bool values)
{
    const struct zsd_job *job = job_of(w, 0);
    Zp__Write write = ZP__WRITE__INIT;
    Zp__Push push = ZP__PUSH__INIT;

    write.what = ZK_MASTER;
    push.step = 1;
    push.mode = ZP_PUSH_SET;
    push.dtype = ZB_F32;
    for (uint32_t i = 0; i < job->nshards; i++) {
        uint64_t count = zb_min_u64(job->shards[i]->count, AHEAD_PUSHED * ZB_BLOCK_ELEMS);

        write.shard = push.shard = job->shards[i]->id;
        write.count = push.count = count;
        for (uint64_t at = 0; at < job->shards[i]->count; at += count) {
            write.first = push.first = at;
            assert_int_equal(values ? call(w, 0, zsd_write, &write) : call(w, 0, zsd_push, &push),
                             0);
        }
    }
}

/* Every page whose state is on NVMe is stepped early. */
static void ahead_open(struct world *w, uint32_t shards)
{
    const struct open_args args = { .early = true };
    Zp__GroupScalars g = ZP__GROUP_SCALARS__INIT, *groups[1] = { &g };
    Zp__StepBegin begin = ZP__STEP_BEGIN__INIT;

    world_open_sized(w, 28 << 20, "threads", 1, 128 << 20, ZB_BLOCK_ELEMS);
    w->staging_bytes = AHEAD_PUSHED * sizeof(float) * ZB_BLOCK_ELEMS;
    assert_int_equal(job_open_with(w, 0, &args), 0);
    assert_int_equal(unit_define(w, 0, 0, &ahead_unit), 0);
    w->clients[0].count[0] = ahead_unit.elems;
    if (shards == 1)
        assert_int_equal(shards_register(w, 0, 1), 0);
    else
        blocks_register(w, shards);
    job_ready_ask(w, 0, 0);
    if (w->answer(w, 0) != 0)
        fail_msg("%s", answers[0].text);
    zb_close_fd(&answers[0].fd);
    ahead_send(w, true);
    g.lr = 1e-2;
    g.beta1 = g.beta2 = 0.9;
    g.eps = 1e-8;
    begin.job = w->clients[0].job;
    begin.step = begin.micros = 1;
    begin.scale = 1;
    begin.n_groups = 1;
    begin.groups = groups;
    assert_int_equal(call(w, 0, zsd_step_begin, &begin), 0);
    ahead_send(w, false);
    assert_true(w->daemon.stats.pages_early > AHEAD - 200);
}

/* The number of places in use. */
static uint64_t places_used(struct world *w)
{
    struct zsd_places_copy copy;
    uint64_t n;

    assert_int_equal(zsd_places_copy(w->daemon.core, &copy), 0);
    n = copy.nplaces;
    zsd_places_copy_done(&copy);
    return n;
}

/* The same, or the number of shards that are stepped early. */
static uint64_t ahead_count(struct world *w, bool places)
{
    const struct zsd_job *job = job_of(w, 0);
    uint64_t n = 0;

    if (places)
        return places_used(w);
    for (uint32_t i = 0; i < job->nshards; i++)
        n += job->shards[i]->early;
    return n;
}

/* Requests fill each turn: measures the most that the rest of a turn undoes of the step, over this
 * many turns. */
static void ahead_undone(struct world *w, uint32_t turns)
{
    uint64_t most[2] = { 0 }, had[2], had_first = ahead_count(w, true);

    for (uint32_t t = 0; t < turns && (answers[0].rc == NONE || zsd_core_busy(&w->daemon) > 0);
         t++) {
        for (unsigned i = 0; i < 2; i++)
            had[i] = ahead_count(w, i);
        zsd_turn_count(w->daemon.core, ZSD_TURN_WORK);
        world_turn(w);
        for (unsigned i = 0; i < 2; i++)
            most[i] = zb_max_u64(most[i], had[i] - ahead_count(w, i));
    }
    assert_in_range(most[0], 1, ZSD_TURN_WORKS);
    assert_in_range(most[1], 0, ZSD_TURN_WORKS);
    if (turns == UINT32_MAX)
        assert_in_range(had_first - ahead_count(w, true), AHEAD - 200, AHEAD);
}

/* When the job ends, the places of its pages are freed in parts, too. */
static void ahead_gone(struct world *w)
{
    uint64_t most = 0, had_first = places_used(w);

    client_gone(w, 0);
    while (zsd_core_busy(&w->daemon) > 0) {
        uint64_t had = places_used(w);

        zsd_turn_count(w->daemon.core, ZSD_TURN_WORK);
        world_turn(w);
        most = zb_max_u64(most, had - places_used(w));
    }
    assert_in_range(had_first, AHEAD - 200, 2 * AHEAD);
    assert_in_range(most, 1, ZSD_TURN_WORKS);
    assert_int_equal(places_used(w), 0);
    world_close(w);
}

static void ahead_skipped(struct world *w, uint32_t shards, uint32_t turns)
{
    Zp__Skip skip = ZP__SKIP__INIT;

    ahead_open(w, shards);
    skip.job = w->clients[0].job;
    skip.step = 1;
    ask(w, 0, zsd_skip, &skip);
    ahead_undone(w, turns);
}

/* An early step's pages and shards are given up in parts: when it is skipped, or when one of its
 * pages has failed. */
static void ahead_of_nothing(void **state)
{
    Zp__GroupScalars g = ZP__GROUP_SCALARS__INIT, *groups[1] = { &g };
    Zp__Step step = ZP__STEP__INIT;
    struct world w;

    (void)state;
    ahead_skipped(&w, 1, UINT32_MAX);
    assert_int_equal(answers[0].rc, 0);
    ahead_gone(&w);
    ahead_skipped(&w, AHEAD, UINT32_MAX);
    assert_int_equal(answers[0].rc, 0);
    ahead_gone(&w);
    ahead_skipped(&w, AHEAD, 1); /* the rank dies in the middle */
    assert_int_equal(answers[0].rc, NONE);
    world_close(&w);
    ahead_open(&w, AHEAD);
    (void)zb_fail(&job_of(&w, 0)->early->err, -EIO, "a page has failed");
    g.lr = 1e-2;
    g.beta1 = g.beta2 = 0.9;
    g.eps = 1e-8;
    step.job = w.clients[0].job;
    step.step = 1;
    step.scale = 1;
    step.n_groups = 1;
    step.groups = groups;
    ask(&w, 0, zsd_step, &step);
    ahead_undone(&w, UINT32_MAX);
    assert_int_equal(answers[0].rc, -EIO);
    assert_int_equal(job_of(&w, 0)->state, ZSD_READY);
    ahead_send(&w, false); /* the step starts over */
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descending),     cmocka_unit_test(many_pages),
        cmocka_unit_test(many_shards),    cmocka_unit_test(many_saved),
        cmocka_unit_test(rewound_pages),  cmocka_unit_test(many_ranks),
        cmocka_unit_test(push_in_parts),  cmocka_unit_test(ahead_of_nothing),
        cmocka_unit_test(placement_ends), cmocka_unit_test(placement_again),
        cmocka_unit_test(placement_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
