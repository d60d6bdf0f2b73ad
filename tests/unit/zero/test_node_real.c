/*
 * Gathers from the daemon's host memory (node_gather) with real daemons: resident and streamed
 * parameters, steps that overlap, groups of ranks, two nodes. The bits are those of collectives. A
 * rank that dies ends the others in time.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zero/core/zero.h"
#include "client/zero/store/daemon_priv.h"
#include "comm_threads.h"
#include "model.h"
#include "real_daemon.h"

#define RANKS_MAX 4
#define NODES_MAX 2

/* Memory of a daemon: it starts with the least, and all of the model fits in the most. */
#define KIB_LEAST 1024u
#define KIB_STEP  32u
#define KIB_FEW   1400u
#define KIB_ALL   65536u

struct setting {
    const char *name;
    uint32_t world, nodes, group;
    enum zc_dtype dtype;
    bool streamed; /* with the least memory that is enough, else in memory */
    uint32_t overlap;
    double clip; /* 0: steps begin early */
    const char *device;
};

struct party {
    struct comm_group *group;
    struct run runs[RANKS_MAX];
    struct real_daemon daemons[NODES_MAX];
};

/* kib: memory of each daemon */
static void party_new(struct party *p, const struct setting *s, enum zc_node_gather gather,
                      uint32_t kib)
{
    char host[16];

    (void)snprintf(host, sizeof(host), "%uK", kib);
    memset(p, 0, sizeof(*p));
    p->group = comm_group_new(s->world, s->world, 4);
    for (uint32_t n = 0; n < s->nodes; n++)
        real_daemon_start(&p->daemons[n], "--host-bytes", host, "--log-level", "error");
    for (uint32_t r = 0; r < s->world; r++) {
        struct run *run = &p->runs[r];
        struct zc_zero_options *o = &run->options;

        run->dtype = s->dtype;
        run->steps = 5;
        run->poison_step = 3;
        run->evaluate = true;
        run->announce = s->clip == 0;
        zc_zero_defaults(o);
        o->comm = comm_group_rank(p->group, r);
        o->socket = p->daemons[r * s->nodes / s->world].socket;
        o->groups = 2;
        o->weight_decay[0] = 0.1;
        o->clip = s->clip;
        o->micro_steps = s->world == 4 ? 1 : 2;
        o->prefetch_units = 2;
        o->overlap = s->overlap;
        o->timeout_ms = 100000;
        o->offload_param = o->offload_optimizer = ZC_ZERO_NVME;
        o->group_ranks = s->group;
        o->device = s->device;
        o->node_gather = gather;
    }
}

static void party_done(struct party *p, const struct setting *s)
{
    for (uint32_t n = 0; n < s->nodes; n++)
        real_daemon_stop(&p->daemons[n]);
    for (uint32_t r = 0; r < s->world; r++)
        run_done(&p->runs[r]);
    comm_group_free(p->group);
}

/* Runs with collectives, and returns the memory of the daemons. */
static uint32_t party_run_first(struct party *p, const struct setting *s)
{
    uint32_t kib = s->streamed ? KIB_LEAST : KIB_ALL;

    for (;; kib += KIB_STEP) {
        party_new(p, s, ZC_NODE_GATHER_COMM, kib);
        run_threads(p->runs, s->world);
        if (p->runs[0].rc != -ENOSPC || kib >= KIB_ALL)
            return kib;
        party_done(p, s);
    }
}

static void party_assert_ran(struct party *p, const struct setting *s)
{
    for (uint32_t r = 0; r < s->world; r++)
        if (p->runs[r].rc != 0)
            fail_msg("%s: rank %u ended with %d: %s", s->name, r, p->runs[r].rc, p->runs[r].error);
    for (uint32_t r = 1; r < s->world; r++)
        assert_runs_same(s->name, &p->runs[0], &p->runs[r]);
}

static void the_bits_are_those_of_collectives(void **state)
{
    static const struct setting settings[] = {
        { "two, in memory", 2, 1, 0, ZC_BF16, false, ZC_ZERO_OVERLAP, 1, NULL },
        { "three, streamed", 3, 1, 0, ZC_F32, true, ZC_ZERO_OVERLAP, 1, NULL },
        { "two, streamed, early", 2, 1, 0, ZC_BF16, true, ZC_ZERO_OVERLAP, 0, NULL },
        { "three, early", 3, 1, 0, ZC_F32, false, ZC_ZERO_OVERLAP, 0, NULL },
        { "two, streamed, no overlap", 2, 1, 0, ZC_F16, true, 0, 1, NULL },
        { "groups", 4, 1, 2, ZC_BF16, false, ZC_ZERO_OVERLAP, 1, NULL },
        { "two nodes", 4, 2, 0, ZC_BF16, false, ZC_ZERO_OVERLAP, 1, NULL },
        { "two nodes, streamed", 4, 2, 0, ZC_F32, true, ZC_ZERO_OVERLAP, 0, NULL },
        { "two nodes, groups", 4, 2, 2, ZC_F32, false, ZC_ZERO_OVERLAP, 1, NULL },
        { "device, streamed", 2, 1, 0, ZC_BF16, true, ZC_ZERO_OVERLAP, 0, "emulated" },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(settings); i++) {
        const struct setting *s = &settings[i];
        struct party with, by;

        uint32_t kib = party_run_first(&with, s);

        party_assert_ran(&with, s);
        party_new(&by, s, i % 3 == 2 ? ZC_NODE_GATHER_AUTO : ZC_NODE_GATHER_HOST, kib);
        run_threads(by.runs, s->world);
        party_assert_ran(&by, s);
        assert_runs_same(s->name, &with.runs[0], &by.runs[0]);
        assert_true(with.runs[0].stats.comm_gather_bytes > 0);
        if (i % 3 != 2) {
            assert_int_equal(by.runs[0].stats.node_gather, ZC_NODE_GATHER_HOST);
            assert_true((by.runs[0].stats.comm_gather_bytes == 0) ==
                        (s->nodes == 1 || s->group > 0));
        }
        assert_true((by.runs[0].stats.nvme_read_bytes > 0) == s->streamed);
        print_message("%s, %u KiB: %s\n", s->name, kib, by.runs[0].gather_why);
        party_done(&with, s);
        party_done(&by, s);
    }
}

static void a_rank_that_dies(void **state)
{
    static const struct setting settings[] = {
        { "one node", 3, 1, 0, ZC_F32, false, ZC_ZERO_OVERLAP, 1, NULL },
        { "streamed", 3, 1, 0, ZC_F32, true, ZC_ZERO_OVERLAP, 1, NULL },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(settings); i++)
        for (uint32_t after = 1; after < 6; after += 2) {
            struct party p;

            party_new(&p, &settings[i], ZC_NODE_GATHER_HOST,
                      settings[i].streamed ? KIB_FEW : KIB_ALL);
            p.runs[1].stop_after = after;
            run_threads(p.runs, 3);
            assert_int_equal(p.runs[1].rc, -EINTR);
            for (uint32_t r = 0; r < 3; r += 2) {
                if (p.runs[r].rc != -EOWNERDEAD || p.runs[r].ended_s - p.runs[1].ended_s > 10)
                    fail_msg("rank %u ended with %d: %s", r, p.runs[r].rc, p.runs[r].error);
                assert_non_null(strstr(p.runs[r].error, "rank 1 of job"));
            }
            party_done(&p, &settings[i]);
        }
}

/* ---- pins */

struct pinned {
    struct zc_zero_options options;
    struct zc_placement placement;
    uint64_t bytes; /* of host memory, before any gather: nothing but the daemon's */
    char device[32];
    int rc;
};

/* A rank that starts, and leaves. */
static void *pinned_rank(void *arg)
{
    struct pinned *p = arg;
    struct zc_zero *z;

    p->rc = zc_zero_open(&z, &p->options);
    if (p->rc == 0)
        p->rc = model_declare(z, ZC_BF16, false);
    if (p->rc == 0)
        p->rc = zc_zero_start(z, model_init_fn, NULL);
    if (p->rc == 0) {
        p->placement = zcz_daemon_of(z->store)->placement;
        p->bytes = zk_gpu_pinned_bytes(z->device.gpu);
        (void)snprintf(p->device, sizeof(p->device), "%s", zc_zero_device(z));
    }
    zc_zero_close(z, p->rc == 0); /* asserts that nothing is pinned */
    return NULL;
}

/* -ENOSPC: that is not enough memory. */
static int ranks_pin(uint32_t kib, enum zc_node_gather gather, struct pinned ranks[2])
{
    const struct setting s = { "pins", 2, 1, 0, ZC_BF16, false, 0, 1, "emulated*2:64M" };
    pthread_t threads[2];
    struct party p;

    party_new(&p, &s, gather, kib);
    for (uint32_t r = 0; r < 2; r++) {
        ranks[r] = (struct pinned){ .options = p.runs[r].options };
        assert_int_equal(pthread_create(&threads[r], NULL, pinned_rank, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(pthread_join(threads[r], NULL), 0);
        assert_true(ranks[r].rc == 0 || ranks[r].rc == -ENOSPC || r > 0);
    }
    party_done(&p, &s);
    return ranks[0].rc;
}

/* A rank pins the slices that it reads: its own, and what streamed ones pass through; all of them, if
 * ranks read each other's. */
static void ranks_pin_what_they_read(void **state)
{
    static const char *const launchers[] = { "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                             "SLURM_LOCALID", "MPI_LOCALRANKID" };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(launchers); i++)
        assert_int_equal(unsetenv(launchers[i]), 0); /* each rank has a device by its place */
    for (int streamed = 0; streamed < 2; streamed++) {
        uint32_t kib = streamed ? KIB_LEAST : KIB_ALL;
        struct pinned own[2], all[2];
        uint64_t ring, arena;

        while (ranks_pin(kib, ZC_NODE_GATHER_COMM, own) == -ENOSPC)
            kib += KIB_STEP;
        assert_int_equal(ranks_pin(kib, ZC_NODE_GATHER_HOST, all), 0);
        arena = own[0].placement.arena_bytes;
        ring = own[0].placement.ring_bytes;
        assert_true((ring > 0) == (streamed != 0) && arena > 0);
        assert_int_equal(own[0].placement.own_bytes + own[1].placement.own_bytes + ring, arena);
        for (uint32_t r = 0; r < 2; r++) {
            assert_string_equal(own[r].device, r == 0 ? "emulated:64M" : "emulated@1:64M");
            assert_int_equal(own[r].bytes, own[r].placement.own_bytes + ring);
            assert_int_equal(all[r].bytes, arena);
            assert_true(streamed || own[r].placement.own_bytes > 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_collectives),
        cmocka_unit_test(a_rank_that_dies),
        cmocka_unit_test(ranks_pin_what_they_read),
    };

    return cmocka_run_group_tests(tests, real_daemon_setup, real_daemon_teardown);
}
