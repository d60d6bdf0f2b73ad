/*
 * A node of eight GPUs, emulated: ranks of the engine whose parameters and optimizer state are in GPU
 * memory of a real daemon, each on a device of its own (exact.h).
 *
 * THE WATCH. While ranks train, a thread reads the tiers again and again: none may exceed its budget.
 */
#include "tests/ztest.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/links.h"
#include "base/util.h"
#include "exact.h"
#include "fake_nccl.h"
#include "real_daemon.h"

#define GPUS    EX_RANKS
#define NODE    "--gpus", "emulated*8:16M:::4K", "--gpu-bytes", "8M"
#define ONE_GPU "--gpus", "emulated:64M:::4K", "--gpu-bytes", "48M"
/* gpu5 fails after the second step and before the last, whether state is there or parameters alone */
#define ONE_FAILS \
    "--gpus", "emulated*5:16M:::4K,emulated:16M::44:4K,emulated*2:16M:::4K", "--gpu-bytes", "8M"
#define MEMORY "--host-bytes", "64M", "--log-level", "error"

/* ---- the tiers */

static struct zc_client *client(const struct real_daemon *d)
{
    struct zc_options options = { .socket = d->socket };
    struct zc_client *c = NULL;
    int rc = zc_open(&c, &options);

    assert(rc == 0);
    return c;
}

/* Reads the tiers into `ret`, by GPU. Returns how many GPUs there are, or UINT32_MAX and a text: a
 * tier has more than its budget, or the daemon is gone. */
static uint32_t tiers(struct zc_client *c, struct zc_tier_row *ret, char *text, size_t size)
{
    struct zc_tier_row *rows = NULL;
    uint32_t gpus = 0;
    size_t n = 0;
    int rc = zc_tiers_wait(c, &rows, &n);

    if (rc < 0)
        (void)snprintf(text, size, "%s", zc_error(c));
    for (size_t i = 0; i < n; i++) {
        if (rows[i].used > rows[i].budget) {
            (void)snprintf(text, size, "%s: %llu bytes of %llu", rows[i].name,
                           (unsigned long long)rows[i].used, (unsigned long long)rows[i].budget);
            rc = -EOVERFLOW;
        } else if (strncmp(rows[i].name, "gpu", 3) == 0 && gpus < GPUS) {
            ret[gpus++] = rows[i];
        }
    }
    zc_rows_free(rows);
    return rc < 0 ? UINT32_MAX : gpus;
}

static struct watch {
    const struct real_daemon *daemon;
    uint32_t world;
    atomic_bool over;
    uint32_t turns;
    char text[256]; /* what was wrong */
    pthread_t thread;
} watch;

static void *watch_run(void *arg)
{
    struct zc_client *c = client(watch.daemon);
    struct zc_tier_row rows[GPUS];

    (void)arg;
    while (!atomic_load(&watch.over) &&
           tiers(c, rows, watch.text, sizeof(watch.text)) != UINT32_MAX) {
        watch.turns++;
        (void)poll(NULL, 0, 1);
    }
    zc_close(c);
    return NULL;
}

/* GPU memory is allocated by threads, and steps move state to it once it is there. A run that is too
 * fast for that waits a little before each step. */
static void wait_for_state(uint64_t step)
{
    struct zc_client *c = step > 2 ? client(watch.daemon) : NULL;
    struct zc_tier_row rows[GPUS];
    char text[256];
    uint32_t gpus = c ? tiers(c, rows, text, sizeof(text)) : 0, up = 0;

    while (up < gpus && up < watch.world && rows[up].state > 0)
        up++;
    if (up < gpus && up < watch.world)
        (void)poll(NULL, 0, 100);
    zc_close(c);
}

static void party_run_watched(struct ex_party *p, const struct real_daemon *d)
{
    watch = (struct watch){ .daemon = d, .world = p->world };
    p->ranks[0].before_step = wait_for_state;
    assert_int_equal(pthread_create(&watch.thread, NULL, watch_run, NULL), 0);
    ex_run(p);
    atomic_store(&watch.over, true);
    (void)pthread_join(watch.thread, NULL);
    assert_string_equal(watch.text, "");
    assert_true(watch.turns > 0);
}

/* Each GPU has what the shards of its rank have, parameters and state, and nothing else. */
static void each_on_its_own(const struct real_daemon *d, const char *job, uint32_t world)
{
    struct zc_client *c = client(d);
    struct zc_shard_row *shards = NULL;
    uint64_t on[GPUS] = { 0 };
    struct zc_tier_row rows[GPUS];
    char text[256] = "";
    size_t n = 0;

    assert_int_equal(zc_list_wait(c, job, &shards, &n), 0);
    for (size_t i = 0; i < n; i++) {
        assert_true(shards[i].rank < world);
        on[shards[i].rank] += shards[i].bytes - shards[i].host_bytes - shards[i].nvme_bytes;
    }
    zc_rows_free(shards);
    if (tiers(c, rows, text, sizeof(text)) != GPUS)
        fail_msg("not eight GPUs: %s", text);
    for (uint32_t g = 0; g < GPUS; g++)
        if (rows[g].params + rows[g].state != on[g] || (rows[g].params > 0) != (g < world) ||
            (rows[g].state > 0) != (g < world))
            fail_msg("%u ranks, %s: %llu bytes of parameters, %llu of state; its rank has %llu",
                     world, rows[g].name, (unsigned long long)rows[g].params,
                     (unsigned long long)rows[g].state, (unsigned long long)on[g]);
    zc_close(c);
}

/* ---- the tests */

static const struct ex_setting settings[] = { { ZC_BF16, 1 }, { ZC_F32, 0 } };
static struct ex_party want[ZB_COUNT(settings)]; /* eight ranks whose data is in host memory */

static int setup(void **state)
{
    int rc = real_daemon_setup(state);

    for (size_t i = 0; i < ZB_COUNT(settings); i++) {
        struct real_daemon d;

        real_daemon_start(&d, MEMORY);
        ex_new(&want[i], 8, &settings[i], d.socket, EX_ON_HOST);
        ex_run(&want[i]);
        ex_assert_same("on the host", &want[i], &want[i]);
        assert_true(want[i].ranks[0].losses[EX_STEPS - 1] < 0.9 * want[i].ranks[0].losses[0]);
        real_daemon_stop(&d);
    }
    return rc;
}

static int teardown(void **state)
{
    for (size_t i = 0; i < ZB_COUNT(settings); i++)
        ex_done(&want[i]);
    return real_daemon_teardown(state);
}

/* Eight ranks on eight GPUs and on one, and fewer ranks on as many GPUs. */
static void the_bits_are_those_of_any_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(settings); i++) {
        struct real_daemon d;
        struct ex_party p;

        real_daemon_start(&d, MEMORY, ONE_GPU);
        ex_new(&p, 8, &settings[i], d.socket, EX_ON_ONE_GPU);
        ex_run(&p);
        ex_assert_same("on one GPU", &want[i], &p);
        assert_true(p.ranks[0].gpu_params > 0);
        ex_done(&p);
        real_daemon_stop(&d);
        for (uint32_t world = 8; world >= 1; world /= 2) {
            real_daemon_start(&d, MEMORY, NODE);
            ex_new(&p, world, &settings[i], d.socket, EX_ON_ITS_OWN);
            party_run_watched(&p, &d);
            ex_assert_same("each on its own", &want[i], &p);
            if (p.ranks[0].gpu_params == 0)
                fail_msg("%u ranks: %s", world, p.ranks[0].gpu_why);
            each_on_its_own(&d, EX_JOB, world);
            ex_done(&p);
            real_daemon_stop(&d);
        }
    }
}

/* ---- the plan */

/* What `zctl plan` predicts for the model of exact.h. */
static struct zb_links planned(enum zb_node_gather way, bool params_there)
{
    struct zb_node node = { .host_bytes = 64 * ZB_MIB,
                            .page_elems = ZB_PAGE_ELEMS_DEFAULT,
                            .gpus = GPUS };
    struct zb_model model = { 0 };
    struct zb_run run = { .model = &model,
                          .mode = ZB_ZERO3,
                          .ranks = GPUS,
                          .nodes = 1,
                          .param = params_there ? ZB_OFFLOAD_GPU : ZB_OFFLOAD_HOST,
                          .optimizer = ZB_OFFLOAD_HOST,
                          .micro_steps = 1,
                          .prefetch_units = 1,
                          .comm = ZB_COMM_NCCL,
                          .node_gather = way,
                          .computes_on = true };
    struct zb_links links;
    struct zb_forecast f;

    for (uint32_t g = 0; g < GPUS; g++)
        node.gpu_tiers[g] = 4 * ZB_MIB;
    for (uint32_t u = 0; u < EX_UNITS; u++)
        assert_int_equal(zb_model_add(&model, ex_elems(u), NULL), 0);
    assert_int_equal(zb_model_order(&model, NULL), 0);
    assert_int_equal(
        zb_layout_of(ZB_BF16, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, false, &run.layout, NULL), 0);
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
    assert_true(f.fits && (f.gpu_params > 0) == params_there);
    assert_int_equal(zb_links(&run, &node, &f, &links), 0);
    zb_model_done(&model);
    return links;
}

/* The next step's gather of the first unit may be counted before a step ends or after it. So n steps
 * have n times the planned bytes, or as much as one gather more or less. With as many bytes wrong in
 * each step, two of these sums would differ by more. */
static void assert_planned(const char *what, uint32_t rank, uint64_t first, uint64_t step_bytes,
                           const struct ex_count *counted, size_t at)
{
    int64_t least = 0, most = 0;

    for (uint64_t k = 3; k < EX_STEPS; k++) { /* the order of gathers is known from step 2 on */
        int64_t more = (int64_t)(*(const uint64_t *)((const char *)&counted[k] + at) -
                                 *(const uint64_t *)((const char *)&counted[2] + at)) -
                       (int64_t)((k - 2) * step_bytes);

        least = more < least ? more : least;
        most = more > most ? more : most;
        if (most - least > (int64_t)first ||
            (more != least && more != most && more != 0)) /* all of a gather, or nothing */
            fail_msg(
                "%s of rank %u: %llu bytes in each step were planned; after %llu steps there are "
                "%lld more",
                what, rank, (unsigned long long)step_bytes, (unsigned long long)k + 1,
                (long long)more);
    }
}

/* Eight ranks over NCCL: parameters on their GPUs, or in host memory; and read there by each rank. */
static void gathers_move_what_the_plan_says(void **state)
{
    static const struct {
        enum zc_node_gather way;
        bool there;
    } ways[] = { { ZC_NODE_GATHER_COMM, true },
                 { ZC_NODE_GATHER_COMM, false },
                 { ZC_NODE_GATHER_HOST, false } };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(ways); i++) {
        bool host = ways[i].way == ZC_NODE_GATHER_HOST;
        struct zb_links links = planned(host ? ZB_GATHER_HOST : ZB_GATHER_COMM, ways[i].there);
        struct real_daemon d;
        struct ex_party p;

        real_daemon_start(&d, MEMORY, NODE);
        ex_new(&p, GPUS, &settings[0], d.socket, EX_ON_ITS_OWN);
        for (uint32_t r = 0; r < GPUS; r++) {
            p.ranks[r].counts = true;
            p.ranks[r].options.node_gather = ways[i].way;
            p.ranks[r].options.offload_param = ways[i].there ? ZC_ZERO_GPU : ZC_ZERO_HOST;
        }
        ex_run(&p);
        ex_assert_same("counted", &want[0], &p);
        for (uint32_t r = 0; r < GPUS; r++) {
            const struct ex_count *n = p.ranks[r].counted;
            const struct zb_link *l = &links.gpu[r];
            uint64_t slice = 2 * 4096 * 2; /* of the first unit: two blocks in bf16 */

            assert_planned("to its GPU", r, host ? 8 * slice : slice, l->up, n,
                           offsetof(struct ex_count, up));
            assert_planned("from its GPU", r, slice, l->down, n, offsetof(struct ex_count, down));
            assert_planned("sent", r, 7 * slice, l->sent, n, offsetof(struct ex_count, sent));
            assert_planned("fetched", r, host ? 8 * slice : slice, host ? l->up : l->up + l->within,
                           n, offsetof(struct ex_count, fetched));
        }
        ex_done(&p);
        real_daemon_stop(&d);
    }
}

/* ---- the daemon ends */

static const struct real_daemon *ending;

static void kill_it(uint64_t step)
{
    if (step == 5)
        (void)kill(ending->pid, SIGKILL);
}

static void stop_it(uint64_t step)
{
    if (step == 5)
        (void)kill(ending->pid, SIGTERM);
}

/* Resumes the job with `world` ranks up to a step. All that is in GPU memory then is each rank's own. */
static void resume(const struct real_daemon *d, size_t i, const char *job, uint32_t world,
                   uint64_t from_least, uint64_t until)
{
    struct ex_party p;

    ex_new(&p, world, &settings[i], d->socket, EX_ON_ITS_OWN);
    for (uint32_t r = 0; r < world; r++) {
        p.ranks[r].until = until;
        p.ranks[r].options.resume = true;
        p.ranks[r].options.job = job;
    }
    party_run_watched(&p, d);
    ex_assert_same(job, &want[i], &p);
    if (p.ranks[0].begun < from_least || p.ranks[0].begun >= until)
        fail_msg("%u ranks resume after step %llu", world, (unsigned long long)p.ranks[0].begun);
    each_on_its_own(d, job, world);
    ex_done(&p);
}

/* The daemon is killed or stopped in the middle of a step of eight ranks. Their parameters go with its
 * memory, so the run ends. Others continue from the last commit, in any number: of the job, of a
 * snapshot, of a clone. */
static void resumed_by_any_number(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(settings); i++) {
        struct zc_snapshot at6 = { .job = EX_JOB, .name = "at6" };
        struct zc_snapshot_row row;
        struct zc_client *c;
        struct real_daemon d;
        struct ex_party p;

        real_daemon_start(&d, MEMORY, NODE);
        ending = &d;
        ex_new(&p, 8, &settings[i], d.socket, EX_ON_ITS_OWN);
        p.ranks[0].before_step = i == 0 ? kill_it : stop_it;
        ex_run(&p);
        for (uint32_t r = 0; r < 8; r++)
            assert_int_not_equal(p.ranks[r].rc, 0);
        ex_done(&p);
        (i == 0 ? real_daemon_kill : real_daemon_ended)(&d);

        real_daemon_again(&d, MEMORY, NODE);
        /* a stopped daemon commits what it has; step 4 may not have been asked for by all ranks */
        resume(&d, i, EX_JOB, 8, i == 0 ? 2 : 3, 6);
        c = client(&d);
        assert_int_equal(zc_snapshot_wait(c, &at6, &row), 0);
        assert_int_equal(row.iterations, 6);
        zc_close(c);
        resume(&d, i, EX_JOB, 4, 6, 8);
        real_daemon_stop(&d);

        real_daemon_again(&d, MEMORY, NODE);
        c = client(&d);
        assert_int_equal(zc_clone_wait(c, EX_JOB, "at6", "clone", &row), 0);
        assert_int_equal(zc_rollback_wait(c, EX_JOB, "at6", &row), 0);
        resume(&d, i, EX_JOB, 1, 6, 8);
        assert_int_equal(zc_job_destroy_wait(c, EX_JOB), 0);
        resume(&d, i, "clone", 8, 6, 8);
        zc_close(c);
        real_daemon_stop(&d);
    }
}

/* A GPU of the daemon is lost in the middle of the run: all its ranks end. They resume from the last
 * commit, with their parameters elsewhere, and the losses are those of a run that nothing happened to. */
static void resumed_without_a_gpu(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(settings); i++) {
        struct real_daemon d;
        struct ex_party p;
        bool said = false;

        real_daemon_start(&d, MEMORY, ONE_FAILS);
        ex_new(&p, 8, &settings[i], d.socket, EX_ON_ITS_OWN);
        ex_run(&p);
        for (uint32_t r = 0; r < 8; r++) {
            assert_int_not_equal(p.ranks[r].rc, 0);
            said |= strstr(p.ranks[r].error, "the emulated GPU is lost") != NULL;
        }
        if (!said)
            fail_msg("%s", p.ranks[0].error);
        ex_done(&p);

        ex_new(&p, 8, &settings[i], d.socket, EX_ON_ITS_OWN);
        for (uint32_t r = 0; r < 8; r++)
            p.ranks[r].options.resume = true;
        party_run_watched(&p, &d);
        ex_assert_same("without a GPU", &want[i], &p);
        assert_true(p.ranks[0].begun >= 2 && p.ranks[0].begun < EX_STEPS);
        assert_true(p.ranks[0].gpu_params == 0 && strstr(p.ranks[0].gpu_why, "gpu5"));
        ex_done(&p);
        real_daemon_stop(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_any_place),
        cmocka_unit_test(gathers_move_what_the_plan_says),
        cmocka_unit_test(resumed_by_any_number),
        cmocka_unit_test(resumed_without_a_gpu),
    };

    if (setenv("ZSHARD_NCCL_LIB", FAKE_NCCL, 1) < 0)
        return 1;
    return cmocka_run_group_tests(tests, setup, teardown);
}
