/*
 * Clipping by tensor with several daemons, where steps begin during the backward pass, too: bit by bit as
 * in one process; with more ranks on one node than on the other, several micro-steps, and a step whose
 * gradient is not finite on one node; after the death of a rank or of a daemon in a backward pass; and with a
 * daemon that does not know sums over several nodes. The same when gradients are not held, in the least
 * memory that a node may have.
 */
#include "clip_runs.h"

#include <errno.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zclient.h"
#include "real_daemon.h"

#define NODES 3u

struct nodes {
    uint32_t n;
    struct real_daemon d[NODES];
    char host[NODES][24], ring[NODES][24]; /* bytes of host memory, and of page buffers */
};

static void nodes_start_as(struct nodes *nodes)
{
    for (uint32_t i = 0; i < nodes->n; i++)
        real_daemon_start(&nodes->d[i], "--host-bytes", nodes->host[i], "--ring-bytes",
                          nodes->ring[i]);
}

/* Rank r is on node r % n. Some state is streamed: of two nodes with a rank each, on both. */
static void nodes_start(struct nodes *nodes, uint32_t n, uint32_t world)
{
    nodes->n = n;
    for (uint32_t i = 0; i < n; i++) {
        (void)snprintf(nodes->host[i], sizeof(nodes->host[i]), "1M");
        (void)snprintf(nodes->ring[i], sizeof(nodes->ring[i]), "%s",
                       i > 0       ? "864K"
                       : n < world ? "704K"
                                   : "832K");
    }
    nodes_start_as(nodes);
}

static void nodes_stop(struct nodes *nodes)
{
    for (uint32_t i = 0; i < nodes->n; i++)
        real_daemon_stop(&nodes->d[i]);
}

/* Without nodes, in this process. */
static struct party *ranks_new(uint32_t world, const struct plan *plan, const struct nodes *nodes)
{
    struct party *p = party_new(world, plan);

    for (uint32_t r = 0; r < world && nodes; r++) {
        p->ranks[r].options.socket = nodes->d[r % nodes->n].socket;
        p->ranks[r].options.offload_param = ZC_ZERO_NVME;
        p->ranks[r].options.offload_optimizer = ZC_ZERO_NVME;
    }
    return p;
}

static const struct {
    uint32_t world, nodes;
} places[] = { { 2, 2 }, { 3, 3 }, { 3, 2 } };

/* The sum over all nodes. */
static uint64_t early_of(const struct nodes *nodes, const char *name)
{
    uint64_t all = 0;

    for (uint32_t i = 0; i < nodes->n; i++)
        all += counter(nodes->d[i].socket, name);
    return all;
}

#define SEAL 16u /* what the engine adds to values that all ranks tell each other: core/calls.c */

/* The sums of all tensors are exchanged once in each step: unit by unit during the backward pass if `early`,
 * else at its end. */
static void assert_exchanged(const struct party *want, const struct party *is, bool early)
{
    uint64_t sealed = early ? (uint64_t)SEAL * (STEPS - WARMUP) * (want->world - 1) : 0;

    if (want->ranks[0].plan->poison + want->ranks[0].plan->abandons > 0)
        return; /* steps that are begun twice, or skipped */
    for (uint32_t r = 0; r < want->world; r++)
        assert_int_equal(is->ranks[r].exchanged + sealed, want->ranks[r].exchanged);
}

static void nodes_change_nothing(void **state)
{
    static const struct {
        struct plan plan;
        bool local; /* micro-steps are added up by the trainer */
        bool late;  /* early steps are switched off */
    } cases[] = {
        { .plan = { .micro_steps = 1, .clip = 1, .announce = true } },
        { .plan = { .micro_steps = 3, .clip = 1, .announce = true } },
        { .plan = { .micro_steps = 2, .announce = true }, .local = true },
        { .plan = { .micro_steps = 1, .announce = true, .poison = 7 } },
        { .plan = { .micro_steps = 1, .clip = 1 } },
        { .plan = { .micro_steps = 1, .clip = 1, .announce = true }, .late = true },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++)
        for (size_t k = 0; k < ZB_COUNT(places); k++) {
            struct party *want = ranks_new(places[k].world, &cases[i].plan, NULL), *is;
            struct nodes nodes;
            bool begun;

            nodes_start(&nodes, places[k].nodes, places[k].world);
            is = ranks_new(places[k].world, &cases[i].plan, &nodes);
            for (uint32_t r = 0; r < places[k].world; r++) {
                want->ranks[r].options.accumulate_local = cases[i].local;
                is->ranks[r].options.accumulate_local = cases[i].local;
                if (cases[i].late)
                    is->ranks[r].options.overlap &= ~(uint32_t)ZC_ZERO_EARLY;
            }
            party_run(want);
            party_run(is);
            assert_same(want, is);
            assert_exchanged(want, is, !cases[i].late);
            begun = cases[i].plan.announce && !cases[i].late;
            assert_int_equal(early_of(&nodes, "pages_early") > 0, begun);
            for (uint32_t n = 0; n < nodes.n && places[k].world == 2; n++)
                assert_int_equal(counter(nodes.d[n].socket, "pages_early") > 0, begun);
            assert_int_equal(early_of(&nodes, "pages_undone") > 0, cases[i].plan.poison > 0);
            party_free(want);
            party_free(is);
            nodes_stop(&nodes);
        }
}

/* ---- deaths */

#define DIES_AT 6u

static const struct plan announced = { .micro_steps = 1, .clip = 1, .announce = true };

/* Gradients are not held. */
static struct party *ringed(struct party *p, uint32_t keep)
{
    for (uint32_t r = 0; r < p->world; r++) {
        p->ranks[r].options.grad_ring = true;
        p->ranks[r].options.grad_ring_keep = keep;
    }
    return p;
}

/* A job that is committed with each step. */
static struct party *kept_new(const struct nodes *nodes, bool ring, bool resume)
{
    struct party *p = ranks_new(2, &announced, nodes);

    if (ring)
        (void)ringed(p, 0);

    for (uint32_t r = 0; r < 2; r++) {
        struct zc_zero_options *o = &p->ranks[r].options;

        o->job = "kept";
        o->keep = o->durable = true;
        o->commit_every = 1;
        o->resume = resume;
    }
    return p;
}

/* Units of the step have begun early on the nodes by then, or begin now. */
static int rank_dies(struct rank *r)
{
    (void)usleep(20000);
    comm_group_abort(r->arg);
    return -ECANCELED;
}

/* The others fail. The job continues on all nodes from the step before. */
static void rank_death(const struct party *want, struct nodes *nodes, bool ring, uint32_t dies)
{
    struct party *is = kept_new(nodes, ring, false);

    is->ranks[dies].interrupt = rank_dies;
    is->ranks[dies].at = DIES_AT;
    is->ranks[dies].after = ring ? nunits - 2 : 1;
    is->ranks[dies].arg = is->group;
    is->ranks[1 - dies].options.timeout_ms = 1000;
    party_try(is);
    assert_int_equal(is->ranks[dies].rc, -ECANCELED);
    assert_true(is->ranks[1 - dies].rc < 0);
    party_free(is);
    is = kept_new(nodes, ring, true);
    party_run(is);
    assert_int_equal(is->ranks[0].begun, DIES_AT - 1);
    assert_same(want, is);
    party_free(is);
}

static void a_rank_dies_in_its_backward_pass(void **state)
{
    struct party *want = ranks_new(2, &announced, NULL);
    struct nodes nodes;

    (void)state;
    party_run(want);
    for (uint32_t dies = 0; dies < 2; dies++) {
        nodes_start(&nodes, 2, 2);
        rank_death(want, &nodes, false, dies);
        nodes_stop(&nodes);
    }
    party_free(want);
}

/* A daemon ends with the thread that has started it, so this one waits for the end of the test. */
struct keeper {
    struct nodes *nodes;
    uint32_t node;
    sem_t killed, over;
    pthread_t thread;
};

static void *keeper_run(void *arg)
{
    struct keeper *k = arg;

    assert_int_equal(sem_wait(&k->killed), 0);
    real_daemon_again(&k->nodes->d[k->node], "--host-bytes", k->nodes->host[k->node],
                      "--ring-bytes", k->nodes->ring[k->node]);
    assert_int_equal(sem_wait(&k->over), 0);
    return NULL;
}

static int daemon_dies(struct rank *r)
{
    struct keeper *k = r->arg;

    (void)usleep(20000);
    real_daemon_kill(&k->nodes->d[k->node]);
    return sem_post(&k->killed);
}

/* The ranks attach to the next one, and continue by themselves. */
static void daemon_death(const struct party *want, struct nodes *nodes, bool ring, uint32_t node)
{
    struct keeper k = { .nodes = nodes, .node = node };
    struct party *is = kept_new(nodes, ring, false);

    assert_int_equal(sem_init(&k.killed, 0, 0) + sem_init(&k.over, 0, 0), 0);
    assert_int_equal(pthread_create(&k.thread, NULL, keeper_run, &k), 0);
    for (uint32_t r = 0; r < 2; r++)
        is->ranks[r].options.reconnect_ms = 20000;
    is->ranks[node].interrupt = daemon_dies;
    is->ranks[node].at = DIES_AT;
    is->ranks[node].after = ring ? nunits - 2 : 1;
    is->ranks[node].arg = &k;
    party_run(is);
    assert_same(want, is);
    assert_true(counter(nodes->d[node].socket, "pages_early") > 0);
    party_free(is);
    nodes_stop(nodes);
    assert_int_equal(sem_post(&k.over), 0);
    assert_int_equal(pthread_join(k.thread, NULL), 0);
}

static void a_daemon_dies_in_a_backward_pass(void **state)
{
    struct party *want = ranks_new(2, &announced, NULL);
    struct nodes nodes;

    (void)state;
    party_run(want);
    nodes_start(&nodes, 2, 2);
    daemon_death(want, &nodes, false, 0);
    party_free(want);
}

/* ---- gradients that are not held, in the least memory */

#define ONE_BUFFER "72K" /* of pages of one block */

/* Sets the least host bytes of each node for these ranks, which the daemons say when they refuse a job. */
static void nodes_least(struct nodes *nodes, uint32_t n, uint32_t world, const struct plan *plan,
                        bool durable, uint32_t keep)
{
    static const char says[] = "the smallest host_bytes that would work is ";
    bool refused = true;

    nodes->n = n;
    for (uint32_t i = 0; i < n; i++) {
        (void)snprintf(nodes->host[i], sizeof(nodes->host[i]), "1M");
        (void)snprintf(nodes->ring[i], sizeof(nodes->ring[i]), ONE_BUFFER);
    }
    for (uint32_t tries = 0; tries <= n && refused; tries++) {
        struct party *p;

        nodes_start_as(nodes);
        p = ringed(ranks_new(world, plan, nodes), keep);
        for (uint32_t r = 0; r < world; r++) {
            p->ranks[r].until = 0;
            p->ranks[r].options.accumulate_local = true;
            p->ranks[r].options.durable = p->ranks[r].options.keep = durable;
        }
        party_try(p);
        refused = false;
        for (uint32_t r = 0; r < world; r++) {
            const char *least = strstr(p->ranks[r].error, says);

            refused = refused || p->ranks[r].rc < 0;
            if (least)
                (void)snprintf(nodes->host[r % n], sizeof(nodes->host[r % n]), "%llu",
                               strtoull(least + strlen(says), NULL, 10));
        }
        if (refused && tries == n)
            fail_msg("no memory is enough: %s", p->ranks[0].error);
        party_free(p);
        nodes_stop(nodes);
    }
    for (uint32_t i = 0; i < n; i++)
        assert_string_not_equal(nodes->host[i], "1M");
}

static void a_ring_changes_nothing(void **state)
{
    static const struct {
        struct plan plan;
        bool local; /* micro-steps are added up by the trainer */
        uint32_t keep;
    } cases[] = {
        { .plan = { .micro_steps = 1, .clip = 1, .announce = true } },
        { .plan = { .micro_steps = 2, .clip = 1, .announce = true }, .local = true },
        { .plan = { .micro_steps = 1, .announce = true, .poison = 7 }, .keep = 50 },
        { .plan = { .micro_steps = 1, .clip = 1, .announce = true, .abandons = 8 } },
    };

    (void)state;
    nunits = UNITS + WIDE;
    for (size_t i = 0; i < ZB_COUNT(cases); i++)
        for (size_t k = 0; k < ZB_COUNT(places); k++) {
            struct party *want = ranks_new(places[k].world, &cases[i].plan, NULL), *is;
            struct nodes nodes;

            nodes_least(&nodes, places[k].nodes, places[k].world, &cases[i].plan, false,
                        cases[i].keep);
            nodes_start_as(&nodes);
            is = ringed(ranks_new(places[k].world, &cases[i].plan, &nodes), cases[i].keep);
            for (uint32_t r = 0; r < places[k].world; r++) {
                want->ranks[r].options.accumulate_local = cases[i].local;
                is->ranks[r].options.accumulate_local = cases[i].local;
                want->ranks[r].after = is->ranks[r].after = nunits - 1;
            }
            party_run(want);
            party_run(is);
            assert_same(want, is);
            assert_exchanged(want, is, true);
            for (uint32_t n = 0; n < nodes.n; n++)
                assert_true(counter(nodes.d[n].socket, "pages_early") > 0);
            assert_int_equal(early_of(&nodes, "pages_undone") > 0,
                             cases[i].plan.poison + cases[i].plan.abandons > 0);
            party_free(want);
            party_free(is);
            nodes_stop(&nodes);
        }
    nunits = UNITS;
}

/* When pushes on one node wait for sums of the other one, or follow them. */
static void a_ring_outlives_deaths(void **state)
{
    struct party *want;
    struct nodes nodes;

    (void)state;
    nunits = UNITS + WIDE;
    want = ranks_new(2, &announced, NULL);
    party_run(want);
    nodes_least(&nodes, 2, 2, &announced, true, 0);
    for (uint32_t node = 0; node < 2; node++) {
        nodes_start_as(&nodes);
        rank_death(want, &nodes, true, node);
        nodes_stop(&nodes);
        nodes_start_as(&nodes);
        daemon_death(want, &nodes, true, node);
    }
    party_free(want);
    nunits = UNITS;
}

/* ---- a daemon of an earlier release */

static atomic_int old_pid;

const struct zc_server *__real_zc_server(const struct zc_client *c);
const struct zc_server *__wrap_zc_server(const struct zc_client *c);

const struct zc_server *__wrap_zc_server(const struct zc_client *c)
{
    static _Thread_local struct zc_server server;

    server = *__real_zc_server(c);
    server.sums = server.sums && server.pid != (uint64_t)atomic_load(&old_pid);
    return &server;
}

/* No node begins early, and nothing else changes. A job that does not hold its gradients is refused. */
static void a_daemon_does_not_know_sums(void **state)
{
    struct party *want = ranks_new(2, &announced, NULL), *is;
    struct nodes nodes;

    (void)state;
    party_run(want);
    nodes_start(&nodes, 2, 2);
    atomic_store(&old_pid, nodes.d[1].pid);
    is = ranks_new(2, &announced, &nodes);
    party_run(is);
    assert_same(want, is);
    assert_int_equal(early_of(&nodes, "pages_early"), 0);
    party_free(want);
    party_free(is);
    is = ringed(ranks_new(2, &announced, &nodes), 0);
    party_try(is);
    atomic_store(&old_pid, 0);
    assert_int_equal(is->ranks[1].rc, -ENOTSUP);
    assert_non_null(strstr(is->ranks[1].error, "is older than sums"));
    assert_true(is->ranks[0].rc < 0);
    party_free(is);
    nodes_stop(&nodes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_change_nothing),
        cmocka_unit_test(a_rank_dies_in_its_backward_pass),
        cmocka_unit_test(a_daemon_dies_in_a_backward_pass),
        cmocka_unit_test(a_ring_changes_nothing),
        cmocka_unit_test(a_ring_outlives_deaths),
        cmocka_unit_test(a_daemon_does_not_know_sums),
    };

    clip_model();
    return cmocka_run_group_tests(tests, real_daemon_setup, real_daemon_teardown);
}
