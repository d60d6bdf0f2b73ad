/*
 * The life of a job in the core: ranks join, send requests, die and rejoin in every state, with
 * requests in flight.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "nvme/sim/engine_fault.h"
#include "tests/unit/daemon/core_fixture.h"

#define PLENTY (UINT64_C(32) << 20)

/* ---- requests */

static uint64_t shard_of(struct world *w, uint32_t u)
{
    for (uint32_t c = 0; c < w->nclients; c++)
        if (w->clients[c].shards[u] != 0)
            return w->clients[c].shards[u];
    return 0;
}

static void write_ask(struct world *w, unsigned c, unsigned tag, uint32_t u)
{
    Zp__Write q = ZP__WRITE__INIT;

    q.shard = shard_of(w, u);
    q.count = zb_padded_elems(unit_elems[u]);
    q.staging = tag * STAGED;
    ask_as(w, c, tag, zsd_write, &q);
}

static void push_ask(struct world *w, unsigned c, unsigned tag, uint32_t u, uint64_t step,
                     uint32_t micro)
{
    Zp__Push q = ZP__PUSH__INIT;

    q.shard = shard_of(w, u);
    q.step = step;
    q.micro = micro;
    q.mode = micro == 0 ? 1 : 2;
    q.dtype = ZB_F32;
    q.count = zb_padded_elems(unit_elems[u]);
    q.staging = tag * STAGED;
    ask_as(w, c, tag, zsd_push, &q);
}

static void read_ask(struct world *w, unsigned c, unsigned tag, uint32_t u, enum zk_what what)
{
    Zp__Read q = ZP__READ__INIT;

    q.shard = shard_of(w, u);
    q.what = what;
    q.count = zb_padded_elems(unit_elems[u]);
    q.staging = tag * STAGED;
    ask_as(w, c, tag, zsd_read, &q);
}

static void fetch_ask(struct world *w, unsigned c, unsigned tag, const uint32_t *units, size_t n,
                      uint64_t version)
{
    Zp__Fetch q = ZP__FETCH__INIT;
    uint64_t shards[2 * UNITS];

    for (size_t i = 0; i < n; i++)
        shards[i] = shard_of(w, units[i]);
    q.n_shards = n;
    q.shards = shards;
    q.min_version = version;
    ask_as(w, c, tag, zsd_fetch, &q);
}

static void fetch1_ask(struct world *w, unsigned c, unsigned tag, uint32_t u, uint64_t version)
{
    fetch_ask(w, c, tag, &u, 1, version);
}

static void release(struct world *w, unsigned c, uint32_t u)
{
    Zp__Release q = ZP__RELEASE__INIT;
    uint64_t shard = shard_of(w, u);

    q.n_shards = 1;
    q.shards = &shard;
    zsd_release(&w->clients[c].conn, &q.base);
}

static void step_ask(struct world *w, unsigned c, unsigned tag, uint64_t step)
{
    Zp__Step q = ZP__STEP__INIT;
    Zp__GroupScalars g = ZP__GROUP_SCALARS__INIT, *groups[1] = { &g };

    g.lr = 1e-2;
    g.beta1 = 0.9;
    g.beta2 = 0.95;
    g.eps = 1e-8;
    q.job = w->clients[c].job;
    q.step = step;
    q.scale = 1;
    q.n_groups = 1;
    q.groups = groups;
    ask_as(w, c, tag, zsd_step, &q);
}

static void skip_ask(struct world *w, unsigned c, unsigned tag, uint64_t step)
{
    Zp__Skip q = ZP__SKIP__INIT;

    q.job = w->clients[c].job;
    q.step = step;
    ask_as(w, c, tag, zsd_skip, &q);
}

static int note_put(struct world *w, unsigned c, bool of_job, const char *text)
{
    Zp__NotePut q = ZP__NOTE_PUT__INIT;

    q.job = w->clients[c].job;
    q.of_job = of_job;
    q.total = (uint32_t)strlen(text);
    q.data.data = (uint8_t *)(uintptr_t)text;
    q.data.len = strlen(text);
    return call(w, c, zsd_note_put, &q);
}

static void close_ask(struct world *w, unsigned c, unsigned tag)
{
    Zp__JobRef q = ZP__JOB_REF__INIT;

    q.job = w->clients[c].job;
    ask_as(w, c, tag, zsd_job_close, &q);
}

/* ---- workloads */

/* A job of two ranks (clients 0 and 1), ready. */
static void pair_ready(struct world *w, bool keep)
{
    for (uint32_t c = 0; c < 2; c++) {
        const struct open_args args = { .rank = c, .world = 2, .keep = keep };

        assert_int_equal(job_open_with(w, c, &args), 0);
    }
    for (uint32_t c = 0; c < 2; c++)
        assert_int_equal(job_register(w, c, c, 2, ZB_BF16), 0);
    for (uint32_t c = 0; c < 2; c++)
        job_ready_ask(w, c, c);
    for (uint32_t c = 0; c < 2; c++) {
        assert_int_equal(answer(w, c), 0);
        zb_close_fd(&answers[c].fd);
    }
}

static void pair_write(struct world *w)
{
    for (uint32_t u = 0; u < UNITS; u++) {
        uint32_t c = unit_owner(u, 2);

        write_ask(w, c, c, u);
        assert_int_equal(answer(w, c), 0);
    }
}

static void pair_push(struct world *w, unsigned c, uint64_t step)
{
    for (uint32_t u = 0; u < UNITS; u++) {
        if (unit_owner(u, 2) != c)
            continue;
        push_ask(w, c, c, u, step, 0);
        assert_int_equal(answer(w, c), 0);
    }
}

/* A rank that died rejoins. */
static void pair_again(struct world *w, unsigned c)
{
    const struct open_args args = { .rank = c, .world = 2, .keep = true, .attach = true };
    uint64_t before[UNITS];

    memcpy(before, w->clients[c].shards, sizeof(before));
    assert_int_equal(job_open_with(w, c, &args), 0);
    assert_int_equal(job_register(w, c, c, 2, ZB_BF16), 0);
    assert_memory_equal(before, w->clients[c].shards, sizeof(before));
}

static void pair_open(struct world *w, uint64_t host_bytes, bool keep)
{
    world_open(w, host_bytes, "threads", 2);
    pair_ready(w, keep);
    pair_write(w);
    for (uint32_t c = 0; c < 2; c++)
        pair_push(w, c, 1);
}

/* A budget that just fits the two ranks' job, found by asking. */
static uint64_t pair_least(void)
{
    struct world w;
    uint64_t least;

    world_open(&w, PLENTY, "threads", 2);
    for (uint32_t c = 0; c < 2; c++) {
        const struct open_args args = { .rank = c, .world = 2 };

        assert_int_equal(job_open_with(&w, c, &args), 0);
        assert_int_equal(job_register(&w, c, c, 2, ZB_BF16), 0);
    }
    w.daemon.core->tiers.host_target = w.daemon.core->tiers.host.budget =
        zsd_account_used(&w.daemon.core->tiers.host); /* nothing stays in use */
    for (uint32_t c = 0; c < 2; c++)
        job_ready_ask(&w, c, c);
    assert_int_equal(answer(&w, 0), -ENOSPC);
    assert_int_equal(answer(&w, 1), -ENOSPC);
    assert_non_null(strstr(answers[0].text, "smallest host_bytes that would work is "));
    least = strtoull(strrchr(answers[0].text, ' '), NULL, 10);
    world_close(&w);
    return least;
}

/* ---- opening */

/* A rank that is still being opened can do nothing yet, and one whose open failed has left nothing
 * behind. */
static void a_rank_that_could_not_be_opened(void **state)
{
    for (int keep = 0; keep < 2; keep++) {
        const struct open_args args = { .rank = 0, .world = 1, .keep = keep };
        struct rlimit all, none;
        struct world w;

        (void)state;
        world_open(&w, PLENTY, "threads", 2);
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
        none = all;
        none.rlim_cur = 0;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
        job_open_ask(&w, 0, 0, &args);
        w.clients[0].job = 1;
        job_ready_ask(&w, 0, 1);
        close_ask(&w, 0, 2);
        assert_int_equal(answers[1].rc, -EBUSY);
        assert_int_equal(answers[2].rc, -EBUSY);
        for (int i = 0; i < 1000 && answers[0].rc == NONE; i++) {
            world_turn(&w);
            (void)usleep(100);
        }
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
        assert_int_equal(answer(&w, 0), -EMFILE);
        world_expire(&w);
        assert_true(zb_list_empty(&w.daemon.core->jobs->list));
        assert_int_equal(job_open_with(&w, 0, &args), 0); /* the same connection tries again */
        world_close(&w);
    }
}

/* A client dies while its staging is being allocated. */
static void a_client_that_dies_while_it_opens(void **state)
{
    const struct open_args args = { .rank = 1, .world = 2, .keep = true };
    struct world w;

    (void)state;
    world_open(&w, PLENTY, "threads", 2);
    job_open_ask(&w, 0, 0, &args); /* a new job: it ends */
    client_gone(&w, 0);
    world_settle(&w);
    assert_int_equal(answers[0].times, 1);
    assert_true(zb_list_empty(&w.daemon.core->jobs->list));
    world_close(&w);

    pair_open(&w, PLENTY, true); /* a kept job: it stays */
    client_gone(&w, 1);
    world_settle(&w);
    for (int i = 0; i < 2; i++) {
        const struct open_args again = { .rank = 1, .world = 2, .keep = true, .attach = true };

        job_open_ask(&w, 1, 1, &again);
        client_gone(&w, 1);
        assert_int_equal(answers[1].times, 1);
    }
    pair_again(&w, 1); /* while their staging is being freed */
    assert_int_equal(job_of(&w, 0)->host_held.used[ZSD_USE_STAGING], 2 * STAGING);
    world_close(&w);
}

/* ---- ready */

/* The deadline of ready passes while memory is being allocated. A rank that asks again is answered
 * when it is complete; one that asks later does not discard other ranks' gradients. */
static void ready_that_is_late(void **state)
{
    struct world w;

    (void)state;
    world_open(&w, PLENTY, "threads", 2);
    for (uint32_t c = 0; c < 2; c++) {
        const struct open_args args = { .rank = c, .world = 2 };

        assert_int_equal(job_open_with(&w, c, &args), 0);
        assert_int_equal(job_register(&w, c, c, 2, ZB_BF16), 0);
    }
    for (uint32_t c = 0; c < 2; c++)
        job_ready_ask(&w, c, c);
    assert_int_equal(job_of(&w, 0)->state, ZSD_PLACING);
    world_expire(&w);
    assert_int_equal(answers[0].rc, -ETIMEDOUT);
    assert_int_equal(answers[1].rc, -ETIMEDOUT);
    job_ready_ask(&w, 0, 0);
    assert_int_equal(answer(&w, 0), 0);
    assert_true(answers[0].fd >= 0);
    zb_close_fd(&answers[0].fd);
    pair_write(&w);
    pair_push(&w, 0, 1);
    job_ready_ask(&w, 1, 1);
    assert_int_equal(answer(&w, 1), 0);
    zb_close_fd(&answers[1].fd);
    pair_push(&w, 1, 1);
    step_ask(&w, 0, 0, 1);
    step_ask(&w, 1, 1, 1);
    assert_int_equal(answer(&w, 0), 0);
    assert_int_equal(answer(&w, 1), 0);
    world_close(&w);
}

/* ---- kept jobs */

/* A rank is lost between pushes and step, and rejoins: all gradients are dropped, and ranks that
 * have asked for the step are told. */
static void a_rank_comes_back(void **state)
{
    struct world w;

    (void)state;
    pair_open(&w, PLENTY, true);
    step_ask(&w, 0, 0, 1);
    client_gone(&w, 1);
    assert_int_equal(answer(&w, 0), -EOWNERDEAD);
    assert_int_equal(w.clients[0].events, 1);
    step_ask(&w, 0, 0, 1);
    pair_again(&w, 1);
    assert_int_equal(answers[0].rc, NONE);
    job_ready_ask(&w, 1, 1);
    assert_int_equal(answer(&w, 1), 0);
    zb_close_fd(&answers[1].fd);
    assert_int_equal(answer(&w, 0), -EBUSY);
    step_ask(&w, 0, 0, 1);
    assert_int_equal(answer(&w, 0), -EBUSY); /* the answer that a new request would get */
    for (uint32_t c = 0; c < 2; c++)
        pair_push(&w, c, 1);
    for (uint32_t c = 0; c < 2; c++)
        step_ask(&w, c, c, 1);
    assert_int_equal(answer(&w, 0), 0);
    assert_int_equal(answer(&w, 1), 0);
    world_close(&w);
}

/* A rank that rejoins must register its own shards, not another's. */
static void a_rank_comes_back_as_another(void **state)
{
    const struct open_args args = { .rank = 1, .world = 2, .keep = true, .attach = true };
    struct world w;

    (void)state;
    pair_open(&w, PLENTY, true);
    client_gone(&w, 1);
    world_settle(&w);
    assert_int_equal(job_open_with(&w, 1, &args), 0);
    assert_int_equal(job_register(&w, 1, 0, 2, ZB_BF16), -EINVAL);
    for (uint32_t u = 0; u < UNITS; u++)
        assert_int_equal(job_of(&w, 0)->shards[u]->rank,
                         unit_owner(job_of(&w, 0)->shards[u]->unit->index, 2));
    world_close(&w);
}

/* The job's limit on host memory also holds for ranks that rejoin. */
static void a_rank_comes_back_for_more(void **state)
{
    struct open_args args = { .world = 1, .keep = true, .host_bytes_max = STAGING + (2 << 20) };
    struct world w;

    (void)state;
    world_open(&w, PLENTY, "threads", 1);
    assert_int_equal(job_open_with(&w, 0, &args), 0);
    assert_int_equal(job_define(&w, 0, ZB_BF16), 0);
    client_gone(&w, 0);
    world_settle(&w);
    args.attach = true;
    args.staging_bytes = STAGING + (2 << 20);
    assert_int_equal(job_open_with(&w, 0, &args), -ENOSPC);
    args.staging_bytes = STAGING;
    assert_int_equal(job_open_with(&w, 0, &args), 0);
    world_close(&w);
}

/* Memory that is kept for a rank that left is not available to other jobs, and the budget does not
 * grow for it. */
static void what_is_kept_for_a_rank(void **state)
{
    const struct open_args other = { .name = "k" }, again = { .keep = true, .attach = true };
    struct open_args args = { .keep = true };
    struct zsd_core *core;
    struct zb_err err = { 0 };
    struct world w;
    uint64_t full;

    (void)state;
    world_open(&w, PLENTY, "threads", 2);
    core = w.daemon.core;
    assert_int_equal(job_open_with(&w, 0, &args), 0);
    assert_int_equal(job_define(&w, 0, ZB_BF16), 0);
    full = zsd_account_used(&core->tiers.host);
    assert_int_equal(zsd_host_set(core, full, &err), 0);
    for (int i = 0; i < 3; i++) {
        client_gone(&w, 0);
        world_settle(&w);
        assert_int_equal(core->tiers.host.budget, full);
        assert_int_equal(zsd_account_used(&core->tiers.host), full - STAGING);
        assert_int_equal(job_open_with(&w, 1, &other), -ENOSPC);
        assert_int_equal(job_open_with(&w, 0, &again), 0);
        assert_int_equal(core->tiers.host.budget, full);
        assert_int_equal(zsd_account_used(&core->tiers.host), full);
    }
    assert_int_equal(zsd_host_set(core, full + STAGING, &err), 0); /* enough for both */
    client_gone(&w, 0);
    world_settle(&w);
    assert_int_equal(job_open_with(&w, 1, &other), 0);
    assert_int_equal(job_open_with(&w, 0, &again), 0);
    assert_int_equal(core->tiers.host.budget, full + STAGING);
    world_close(&w);
}

/* A rank is lost in a step. If the step has not begun (a pin delays it), it fails for all ranks.
 * Otherwise it ends without the rank, with its note, and a rank that attaches meanwhile gets the
 * count after the step. */
static void a_rank_is_lost_in_a_step(void **state)
{
    Zp__NoteGet get = ZP__NOTE_GET__INIT;
    Zp__NoteGetReply *r;
    struct world w;

    (void)state;
    pair_open(&w, pair_least(), true);
    w.daemon.core->tiers.host_target += STAGING;
    w.daemon.core->tiers.host.budget +=
        STAGING; /* for a rank that rejoins before the old memory is freed */
    fetch1_ask(&w, 0, 0, 0, 0);
    assert_int_equal(answer(&w, 0), 0);
    for (uint32_t c = 0; c < 2; c++)
        step_ask(&w, c, c, 1);
    world_turn(&w);
    assert_true(job_of(&w, 0)->draining);
    client_gone(&w, 1);
    assert_int_equal(answer(&w, 0), -EOWNERDEAD);
    assert_int_equal(job_of(&w, 0)->state, ZSD_READY);
    release(&w, 0, 0);
    pair_again(&w, 1);
    job_ready_ask(&w, 1, 1);
    assert_int_equal(answer(&w, 1), 0);
    zb_close_fd(&answers[1].fd);
    for (uint32_t c = 0; c < 2; c++)
        pair_push(&w, c, 1);
    assert_int_equal(note_put(&w, 1, false, "at batch 7"), 0);
    for (uint32_t c = 0; c < 2; c++)
        step_ask(&w, c, c, 1);
    zsd_core_turn(&w.daemon);
    assert_int_equal(job_of(&w, 0)->state, ZSD_STEPPING);
    assert_false(job_of(&w, 0)->draining);
    client_gone(&w, 1);
    {
        const struct open_args args = { .rank = 1, .world = 2, .keep = true, .attach = true };

        job_open_ask(&w, 1, 1, &args);
        assert_int_equal(answer(&w, 1), 0);
        job_opened(&w, 1, 1);
    }
    assert_int_equal(w.clients[1].iterations, 1);
    assert_int_equal(answer(&w, 0), 0);
    get.job = w.clients[1].job;
    assert_int_equal(call(&w, 1, zsd_note_get, &get), 0);
    r = zp__note_get_reply__unpack(NULL, answers[1].len, answers[1].bytes);
    assert_int_equal(r->iteration, 1);
    assert_int_equal(r->data.len, strlen("at batch 7"));
    zp__note_get_reply__free_unpacked(r, NULL);
    world_close(&w);
}

/* A rank that waits for the end of a step to attach may go, and the daemon may end. */
static void a_rank_attaches_to_the_end(void **state)
{
    const struct open_args args = { .rank = 1, .world = 2, .keep = true, .attach = true };

    (void)state;
    for (int drain = 0; drain < 2; drain++) {
        struct world w;

        pair_open(&w, pair_least(), true);
        w.daemon.core->tiers.host_target += STAGING;
        w.daemon.core->tiers.host.budget += STAGING;
        for (uint32_t c = 0; c < 2; c++)
            step_ask(&w, c, c, 1);
        zsd_core_turn(&w.daemon);
        client_gone(&w, 1);
        job_open_ask(&w, 1, 1, &args);
        while (w.clients[1].conn.member->staging.fd <
               0) /* its memory is there before the step ends */
            (void)zsd_compute_reap(w.daemon.compute, 1);
        assert_int_equal(job_of(&w, 0)->state, ZSD_STEPPING);
        assert_int_equal(answers[1].rc, NONE);
        if (drain)
            zsd_core_drain(&w.daemon);
        client_gone(&w, 1);
        assert_int_equal(answers[1].times, 1);
        assert_int_equal(answer(&w, 0), drain ? -ENOTCONN : 0);
        world_close(&w);
    }
}

/* A rank that waits for the end of a step to attach is told if the step fails. */
static void a_rank_attaches_to_a_step_that_fails(void **state)
{
    const struct open_args args = { .rank = 1, .world = 2, .keep = true, .attach = true };
    struct zn_fault_plan plan = { .nth = 5, .nth_res = -EIO };
    struct world w;

    (void)state;
    pair_open(&w, pair_least(), true);
    w.daemon.core->tiers.host_target += STAGING;
    w.daemon.core->tiers.host.budget +=
        STAGING; /* for a rank that rejoins before the old memory is freed */
    for (uint32_t c = 0; c < 2; c++)
        step_ask(&w, c, c, 1);
    zsd_core_turn(&w.daemon);
    client_gone(&w, 1);
    job_open_ask(&w, 1, 1, &args);
    assert_int_equal(zn_fault_install(w.daemon.engine, &plan), 0);
    assert_int_equal(answer(&w, 1), -EIO);
    assert_int_equal(answer(&w, 0), -EIO);
    assert_null(w.clients[1].conn.member);
    world_close(&w);
}

/* ---- things in flight */

/* The client dies right after its request, in every kind of job, with every allocation failing
 * once. */
static void a_client_dies_behind_its_request(void **state)
{
    uint64_t least = pair_least();
    static const uint32_t all[] = { 0, 1, 2, 3, 4, 5, 6 };

    (void)state;
    for (int what = 0; what < 7; what++)
        for (unsigned i = 0; i < 8 * 7; i++) {
            unsigned nth = i / 8;
            struct world w;

            pair_open(&w, i & 1 ? least : PLENTY, i & 2);
            alloc_fail(nth, nth == 0 ? 0 : i & 4 ? 3 : 1);
            switch (what) {
            case 0:
                fetch_ask(&w, 1, 1, all, UNITS, 0);
                break;
            case 1:
                push_ask(&w, 1, 1, 1, 1, 1);
                push_ask(&w, 1, 2, 1, 1, 2);
                break;
            case 2:
                write_ask(&w, 1, 1, 1);
                break;
            case 3:
                read_ask(&w, 1, 1, 1, ZK_MASTER);
                break;
            case 4:
                step_ask(&w, 0, 0, 1);
                step_ask(&w, 1, 1, 1);
                break;
            case 5:
                skip_ask(&w, 0, 0, 1);
                skip_ask(&w, 1, 1, 1);
                break;
            case 6:
                fetch1_ask(&w, 1, 1, 1, 0);
                break;
            }
            if (nth % 2 == 0)
                world_turn(&w);
            client_gone(&w, 1);
            world_settle(&w);
            assert_int_equal(answers[1].times, 1);
            world_close(&w);
        }
}

/* Reading a gradient and adding to it are done in order of arrival. */
static void a_gradient_is_read_while_it_grows(void **state)
{
    struct world w;

    (void)state;
    pair_open(&w, PLENTY, false);
    read_ask(&w, 0, 0, 0, ZK_GRAD);
    push_ask(&w, 0, 2, 0, 1, 1);
    assert_int_equal(answer(&w, 0), 0);
    assert_int_equal(answer(&w, 2), 0);
    push_ask(&w, 0, 2, 0, 1, 2);
    read_ask(&w, 0, 0, 0, ZK_GRAD);
    read_ask(&w, 0, 3, 0, ZK_MASTER);
    assert_int_equal(answer(&w, 0), -EBUSY);
    assert_int_equal(answer(&w, 2), 0);
    assert_int_equal(answer(&w, 3), 0);
    world_close(&w);
}

static int abandon(struct world *w, unsigned c, unsigned tag, uint64_t step)
{
    Zp__Abandon q = ZP__ABANDON__INIT;

    q.job = w->clients[c].job;
    q.step = step;
    ask_as(w, c, tag, zsd_abandon, &q);
    return answer(w, tag);
}

/* A step whose gradients are being changed, or read, is not abandoned; then it is, and begins
 * anew. */
static void a_step_is_abandoned(void **state)
{
    struct world w;

    (void)state;
    pair_open(&w, PLENTY, false);
    push_ask(&w, 0, 2, 0, 1, 1);
    assert_int_equal(abandon(&w, 1, 1, 1), -EBUSY);
    assert_int_equal(answer(&w, 2), 0);
    read_ask(&w, 0, 0, 0, ZK_GRAD);
    push_ask(&w, 0, 2, 0, 1, 2); /* waits for the read */
    assert_int_equal(abandon(&w, 1, 1, 1), -EBUSY);
    assert_int_equal(answer(&w, 0), 0);
    assert_int_equal(answer(&w, 2), 0);
    assert_int_equal(abandon(&w, 1, 1, 2), -EINVAL);
    assert_int_equal(abandon(&w, 1, 1, 1), 0);
    push_ask(&w, 0, 2, 0, 1, 0);
    assert_int_equal(answer(&w, 2), 0);
    world_close(&w);
}

/* A write that failed half-way has left no values that anybody may see. */
static void a_write_that_fails(void **state)
{
    struct world w;

    (void)state;
    for (unsigned nth = 1; nth < 4; nth++) {
        struct zn_fault_plan plan = { .nth = nth, .nth_res = -EIO };

        pair_open(&w, pair_least(), false);
        assert_int_equal(zn_fault_install(w.daemon.engine, &plan), 0);
        write_ask(&w, 1, 1, 1);
        fetch1_ask(&w, 0, 2, 1, 0); /* it waits for the write */
        assert_int_equal(answer(&w, 1), -EIO);
        assert_int_equal(answer(&w, 2), -EAGAIN);
        fetch1_ask(&w, 0, 0, 1, 0);
        assert_int_equal(answer(&w, 0), -EAGAIN);
        write_ask(&w, 1, 1, 1);
        assert_int_equal(answer(&w, 1), 0);
        fetch1_ask(&w, 0, 0, 1, 0);
        assert_int_equal(answer(&w, 0), 0);
        world_close(&w);
    }
}

/* ---- the ring */

/* One rank with the least budget: more shards of a size than its ring has places. */
static void single_open(struct world *w)
{
    uint64_t least;

    world_open(w, PLENTY, "threads", 1);
    assert_int_equal(job_open(w, 0), 0);
    w->daemon.core->tiers.host_target = w->daemon.core->tiers.host.budget =
        zsd_account_used(&w->daemon.core->tiers.host);
    assert_int_equal(job_define(w, 0, ZB_BF16), -ENOSPC);
    least = strtoull(strrchr(answers[0].text, ' '), NULL, 10);
    world_close(w);
    world_open(w, least, "threads", 1);
    assert_int_equal(job_open(w, 0), 0);
    assert_int_equal(job_define(w, 0, ZB_BF16), 0);
    for (uint32_t u = 0; u < UNITS; u++) {
        write_ask(w, 0, 0, u);
        assert_int_equal(answer(w, 0), 0);
    }
}

/* A fetch that timed out leaves nothing that waits for its places. */
static void a_fetch_gives_up(void **state)
{
    static const uint32_t three[] = { 1, 2, 3 }, two[] = { 4, 5 };
    struct world w;

    (void)state;
    single_open(&w);
    fetch_ask(&w, 0, 0, three, 3, 0);
    assert_int_equal(answer(&w, 0), 0);
    fetch_ask(&w, 0, 1, two, 2, 0);
    fetch1_ask(&w, 0, 2, 5, 0);
    world_settle(&w);
    assert_int_equal(answers[1].rc, NONE);
    assert_false(zb_list_empty(&job_of(&w, 0)->room_waiters));
    world_expire(&w);
    assert_int_equal(answer(&w, 1), -ETIMEDOUT);
    assert_non_null(strstr(answers[1].text, "room in the ring"));
    assert_int_equal(answer(&w, 2), -ETIMEDOUT);
    assert_true(zb_list_empty(&job_of(&w, 0)->room_waiters));
    assert_int_equal(job_of(&w, 0)->active, 0);
    skip_ask(&w, 0, 0, 1); /* pins do not delay it */
    assert_int_equal(answer(&w, 0), 0);
    write_ask(&w, 0, 0, 4);
    assert_int_equal(answer(&w, 0), 0);
    fetch1_ask(&w, 0, 1, 5, 0); /* two want the same shard: one times out, the other does not */
    fetch_ask(&w, 0, 2, two, 2, 0);
    world_settle(&w);
    release(&w, 0, 1);
    assert_int_equal(answer(&w, 1), 0);
    release(&w, 0, 2);
    assert_int_equal(answer(&w, 2), 0);
    assert_int_equal(job_of(&w, 0)->pins, 4); /* 3, 4, and 5 twice */
    world_close(&w);
}

/* A shard may be named twice, and is then pinned twice. */
static void a_shard_twice_in_a_fetch(void **state)
{
    static const uint32_t twice[] = { 1, 1, 2, 1 };
    struct world w;

    (void)state;
    single_open(&w);
    fetch_ask(&w, 0, 0, twice, 4, 0);
    assert_int_equal(answer(&w, 0), 0);
    assert_int_equal(job_of(&w, 0)->pins, 4);
    for (int i = 0; i < 3; i++)
        release(&w, 0, 1);
    release(&w, 0, 2);
    assert_int_equal(job_of(&w, 0)->pins, 0);
    release(&w, 0, 2); /* refused, and counted */
    assert_int_equal(w.daemon.stats.releases_bad, 1);
    world_close(&w);
}

/* A fetch in progress does not delay a step. */
static void a_fetch_meets_a_step(void **state)
{
    static const uint32_t all[] = { 1, 2, 3 };
    struct world w;

    (void)state;
    single_open(&w);
    fetch1_ask(&w, 0, 0, 1, 0);
    assert_int_equal(answer(&w, 0), 0);
    release(&w, 0, 1); /* cached */
    for (uint32_t u = 0; u < UNITS; u++) {
        push_ask(&w, 0, 0, u, 1, 0);
        assert_int_equal(answer(&w, 0), 0);
    }
    fetch_ask(&w, 0, 1, all, 3, 0);
    step_ask(&w, 0, 0, 1);
    fetch_ask(&w, 0, 2, all, 2, 1); /* for the version that the step makes */
    assert_int_equal(answer(&w, 1), 0);
    for (uint32_t u = 1; u <= 3; u++)
        release(&w, 0, u);
    assert_int_equal(answer(&w, 0), 0);
    assert_int_equal(answer(&w, 2), 0);
    assert_int_equal(job_of(&w, 0)->pins, 2);
    world_close(&w);
}

/* ---- ended jobs, and the end of the core */

static void whoever_survives_a_job(void **state)
{
    static const uint32_t one[] = { 1 };
    struct world w;
    Zp__Norms norms = ZP__NORMS__INIT;

    (void)state;
    pair_open(&w, PLENTY, false);
    fetch_ask(&w, 0, 0, one, 1, 0);
    assert_int_equal(answer(&w, 0), 0);
    client_gone(&w, 1);
    world_settle(&w);
    assert_int_equal(w.clients[0].events, 1);
    assert_int_equal(zsd_account_used(&w.daemon.core->tiers.host),
                     STAGING + w.daemon.core->disk->nbuffers * w.daemon.core->disk->buffer_bytes);
    fetch_ask(&w, 0, 2, one, 1, 0);
    push_ask(&w, 0, 3, 0, 1, 1);
    write_ask(&w, 0, 4, 0);
    read_ask(&w, 0, 5, 0, ZK_PARAM);
    step_ask(&w, 0, 6, 1);
    skip_ask(&w, 0, 7, 1);
    job_ready_ask(&w, 0, 8);
    norms.job = w.clients[0].job;
    norms.step = 1;
    ask_as(&w, 0, 9, zsd_norms, &norms);
    release(&w, 0, 1);
    for (unsigned tag = 2; tag <= 9; tag++) {
        assert_int_equal(answer(&w, tag), -EOWNERDEAD);
        assert_non_null(strstr(answers[tag].text, "rank 1 of job 'j'"));
    }
    close_ask(&w, 0, 0);
    assert_int_equal(answer(&w, 0), 0);
    assert_true(zb_list_empty(&w.daemon.core->jobs->list));
    world_close(&w);
}

/* The core ends with every kind of operation in flight. */
static void the_core_ends(void **state)
{
    static const uint32_t all[] = { 0, 1, 2, 3, 4, 5, 6 };

    (void)state;
    for (int turns = 0; turns < 6; turns++) {
        struct world w;

        pair_open(&w, pair_least(), turns % 2);
        fetch_ask(&w, 0, 0, all, UNITS, 0);
        fetch_ask(&w, 0, 2, all, UNITS, 1);
        push_ask(&w, 1, 3, 1, 1, 1);
        push_ask(&w, 1, 4, 1, 1, 2);
        write_ask(&w, 1, 5, 2);
        read_ask(&w, 1, 6, 4, ZK_MASTER);
        step_ask(&w, 0, 7, 1);
        for (int i = 0; i < turns; i++)
            zsd_core_turn(&w.daemon);
        world_kill(&w);
    }
}

/* ---- anything, at any time */

#define STORM_CLIENTS 3u

static unsigned storm_tag(void)
{
    for (unsigned tag = STORM_CLIENTS; tag < ANSWERS; tag++)
        if (answers[tag].rc != NONE)
            return tag;
    return ANSWERS;
}

static void storm_check(struct world *w)
{
    struct zsd_core *core = w->daemon.core;
    uint64_t host = core->disk->nbuffers * core->disk->buffer_bytes, nvme = 0;

    zb_list_each(pos, &core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);
        uint32_t pins = 0;

        for (int use = 0; use < ZSD_USES; use++) {
            host += job->host_held.used[use];
            nvme += job->nvme_held.used[use];
        }
        for (uint32_t i = 0; i < job->nshards; i++) {
            uint32_t of_shard = 0;

            zb_list_each(pin, &job->shards[i]->pin_list)
                of_shard += zb_container_of(pin, struct zsd_pin, shard_node)->count;
            assert_int_equal(of_shard, job->shards[i]->pins); /* J2 */
            pins += of_shard;
        }
        assert_int_equal(pins, job->pins);
    }
    assert_int_equal(host, zsd_account_used(&core->tiers.host)); /* J4 */
    assert_int_equal(nvme, zsd_account_used(&core->tiers.nvme));
}

static void storm_act(struct world *w, uint64_t *seed)
{
    unsigned c = (unsigned)(ztest_random(seed) % STORM_CLIENTS), tag = storm_tag();
    uint32_t u = (uint32_t)(ztest_random(seed) % UNITS), units[4];
    unsigned owner = unit_owner(u, STORM_CLIENTS);
    struct client *client = &w->clients[c];
    uint64_t step = client->conn.member ? job_of(w, c)->iterations + 1 : 1;

    for (int i = 0; i < 4; i++)
        units[i] = (uint32_t)(ztest_random(seed) % UNITS);
    if (tag == ANSWERS) {
        world_turn(w);
        return;
    }
    switch (ztest_random(seed) % 24) {
    case 0:
        if (ztest_random(seed) % 4 == 0)
            client_gone(w, c);
        break;
    case 1:
        if (ztest_random(seed) % 4 == 0)
            close_ask(w, c, tag);
        break;
    case 2:
        if (ztest_random(seed) % 4 == 0)
            world_expire(w);
        break;
    case 3:
    case 4:
        step_ask(w, c, tag, step);
        break;
    case 5:
        skip_ask(w, c, tag, step);
        break;
    case 6:
    case 7:
        fetch_ask(w, c, tag, units, 1 + ztest_random(seed) % 4, 0);
        break;
    case 8:
        fetch_ask(w, c, tag, units, 2, step);
        break;
    case 9:
    case 10:
    case 11:
        release(w, c, u);
        break;
    case 12:
        write_ask(w, owner, tag, u);
        break;
    case 13:
        read_ask(w, c, tag, u, (enum zk_what)(1 + ztest_random(seed) % 5));
        break;
    case 14:
    case 15:
    case 16:
        push_ask(w, owner, tag, u, step, (uint32_t)(ztest_random(seed) % 3));
        break;
    case 17:
        alloc_fail(1 + (unsigned)(ztest_random(seed) % 20), 1 + (unsigned)(ztest_random(seed) % 3));
        break;
    case 18:
        job_ready_ask(w, c, tag);
        break;
    case 19: {
        const struct open_args args = {
            .rank = c, .world = STORM_CLIENTS, .keep = true, .attach = true
        };
        if (!client->conn.member)
            job_open_ask(w, c, tag, &args);
        break;
    }
    case 20: /* the missing gradients */
        for (u = 0; u < UNITS && (tag = storm_tag()) < ANSWERS; u++)
            push_ask(w, unit_owner(u, STORM_CLIENTS), tag, u, step, 0);
        break;
    case 21: /* and the step, requested by all ranks */
        world_settle(w);
        for (c = 0; c < STORM_CLIENTS && (tag = storm_tag()) < ANSWERS; c++)
            step_ask(w, c, tag, step);
        break;
    default:
        world_turn(w);
        break;
    }
}

/* Three ranks of a kept job do random things at random times. Each request is answered once, the
 * sums hold, and everything is freed. */
static void a_storm(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct zn_fault_plan plan = { .nth = (unsigned)seed * 7, .nth_res = -EIO, .lifo = true };
        uint64_t draw = seed;
        struct world w;

        world_open(&w, seed % 3 == 0 ? PLENTY : (3 * STAGING + (2 << 20)) + seed % 7 * 300000,
                   seed % 2 ? "threads" : "uring", STORM_CLIENTS);
        for (uint32_t c = 0; c < STORM_CLIENTS; c++) {
            const struct open_args args = { .rank = c, .world = STORM_CLIENTS, .keep = seed % 5 };

            assert_int_equal(job_open_with(&w, c, &args), 0);
        }
        for (uint32_t c = 0; c < STORM_CLIENTS; c++) /* the last has no shards */
            assert_int_equal(job_register(&w, c, c, STORM_CLIENTS, ZB_BF16), 0);
        for (uint32_t c = 0; c < STORM_CLIENTS; c++)
            job_ready_ask(&w, c, c);
        for (uint32_t c = 0; c < STORM_CLIENTS; c++) {
            if (answer(&w, c) != 0)
                fail_msg("%s", answers[c].text);
            zb_close_fd(&answers[c].fd);
        }
        for (uint32_t u = 0; u < UNITS; u++) {
            write_ask(&w, unit_owner(u, STORM_CLIENTS), 0, u);
            assert_int_equal(answer(&w, 0), 0);
        }
        if (seed % 6 == 5)
            assert_int_equal(zn_fault_install(w.daemon.engine, &plan), 0);
        for (int i = 0; i < 1500; i++) {
            storm_act(&w, &draw);
            storm_check(&w);
            for (unsigned tag = 0; tag < ANSWERS; tag++) {
                assert_true(answers[tag].times <= 1);
                if (answers[tag].times == 1)
                    zb_close_fd(&answers[tag].fd);
            }
        }
        alloc_fail(0, 0);
        world_expire(&w);
        world_settle(&w);
        world_expire(&w);
        if (seed % 4 == 0)
            world_kill(&w);
        else
            world_close(&w);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_could_not_be_opened),
        cmocka_unit_test(a_client_that_dies_while_it_opens),
        cmocka_unit_test(ready_that_is_late),
        cmocka_unit_test(a_rank_comes_back),
        cmocka_unit_test(a_rank_comes_back_as_another),
        cmocka_unit_test(a_rank_comes_back_for_more),
        cmocka_unit_test(what_is_kept_for_a_rank),
        cmocka_unit_test(a_rank_is_lost_in_a_step),
        cmocka_unit_test(a_rank_attaches_to_a_step_that_fails),
        cmocka_unit_test(a_rank_attaches_to_the_end),
        cmocka_unit_test(a_client_dies_behind_its_request),
        cmocka_unit_test(a_gradient_is_read_while_it_grows),
        cmocka_unit_test(a_step_is_abandoned),
        cmocka_unit_test(a_write_that_fails),
        cmocka_unit_test(a_fetch_gives_up),
        cmocka_unit_test(a_shard_twice_in_a_fetch),
        cmocka_unit_test(a_fetch_meets_a_step),
        cmocka_unit_test(whoever_survives_a_job),
        cmocka_unit_test(the_core_ends),
        cmocka_unit_test(a_storm),
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    zk_thread_init();
    zb_log_set_level(ZB_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
