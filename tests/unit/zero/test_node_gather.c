/*
 * Gathers from the daemon's host memory (node_gather), with the fake daemon: the same bits as by
 * collectives, in every mode, on one node and on several. The bytes on each link are those of the
 * formulas. The measured choice is the faster way. Ranks that differ, and what cannot be, are
 * refused.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/util.h"
#include "client/zclient.h"
#include "fake_client.h"
#include "model.h"
#include "party.h"

#define STEPS 2u

/* What makes one of the two ways slow: milliseconds of each fetch of several slices, and of each
 * collective that is longer than a vote. */
static uint32_t slow_fetch_ms, slow_comm_ms;

static void nap(uint32_t ms)
{
    const struct timespec t = { .tv_nsec = (long)ms * 1000000 };

    if (ms > 0)
        (void)nanosleep(&t, NULL);
}

/* The engine's calls to zc_fetch() come here. */
int __real_zc_fetch(struct zc_client *c, const uint64_t *shards, uint32_t n, uint64_t min_version,
                    uint32_t timeout_ms, struct zc_view *ret, zc_done_fn *done, void *arg);
int __wrap_zc_fetch(struct zc_client *c, const uint64_t *shards, uint32_t n, uint64_t min_version,
                    uint32_t timeout_ms, struct zc_view *ret, zc_done_fn *done, void *arg);
int __wrap_zc_fetch(struct zc_client *c, const uint64_t *shards, uint32_t n, uint64_t min_version,
                    uint32_t timeout_ms, struct zc_view *ret, zc_done_fn *done, void *arg)
{
    nap(n > 1 ? slow_fetch_ms : 0);
    return __real_zc_fetch(c, shards, n, min_version, timeout_ms, ret, done, arg);
}

struct setting {
    const char *name;
    uint32_t world;
    uint8_t nodes;
    enum zc_dtype dtype;
    enum zc_zero_stage stage;
    bool ring, quantized, once;
    uint32_t prefetch;
    const char *device;
};

static void run_as(struct party *p, const struct setting *s, enum zc_node_gather gather)
{
    const struct fake_config fake = {
        .page_elems = 4096, .ring = s->ring, .delay_max = 3, .nodes = s->nodes
    };

    fake_reset(&fake);
    party_new(p, s->world, s->dtype, s->world, 2);
    for (uint32_t r = 0; r < s->world; r++) {
        struct zc_zero_options *o = &p->runs[r].options;

        p->runs[r].steps = STEPS;
        p->runs[r].quantized = s->quantized;
        o->stage = s->stage;
        o->offload_optimizer = ZC_ZERO_NVME;
        o->offload_param = s->stage == ZC_STAGE_3 ? ZC_ZERO_NVME : ZC_ZERO_NONE;
        o->prefetch_units = s->prefetch;
        o->keep_gathered = s->once;
        o->device = s->device;
        o->node_gather = gather;
    }
    party_run(p);
}

static void run_well(struct party *p, const struct setting *s, enum zc_node_gather gather)
{
    run_as(p, s, gather);
    party_assert_ran(p);
    assert_true(fake_pins_most() <= (s->ring ? ZC_PINS_MIN : UINT32_MAX));
    fake_end();
}

/* ---- bits */

static const struct setting settings[] = {
    { "one rank", 1, 1, ZC_BF16, ZC_STAGE_3, false, false, false, 1, NULL },
    { "two", 2, 1, ZC_BF16, ZC_STAGE_3, false, false, false, 1, NULL },
    { "two, ring", 2, 1, ZC_F32, ZC_STAGE_3, true, false, false, 2, NULL },
    { "three", 3, 1, ZC_F16, ZC_STAGE_3, false, false, true, 0, NULL },
    { "three, ring, codes", 3, 1, ZC_BF16, ZC_STAGE_3, true, true, false, 1, NULL },
    { "four, codes", 4, 1, ZC_F32, ZC_STAGE_3, false, true, false, 2, NULL },
    { "four, ring", 4, 1, ZC_BF16, ZC_STAGE_3, true, false, true, 1, NULL },
    { "zero1", 2, 1, ZC_F32, ZC_STAGE_1, false, false, false, 1, NULL },
    { "zero2", 3, 1, ZC_BF16, ZC_STAGE_2, true, false, false, 1, NULL },
    { "two nodes of one", 2, 2, ZC_F32, ZC_STAGE_3, false, false, false, 1, NULL },
    { "two nodes of two", 4, 2, ZC_BF16, ZC_STAGE_3, false, false, false, 2, NULL },
    { "two nodes of two, ring, codes", 4, 2, ZC_F32, ZC_STAGE_3, true, true, false, 1, NULL },
    { "three nodes of two", 6, 3, ZC_BF16, ZC_STAGE_3, false, false, true, 1, NULL },
    { "two nodes of three, zero2", 6, 2, ZC_F32, ZC_STAGE_2, true, false, false, 1, NULL },
    { "device", 2, 1, ZC_BF16, ZC_STAGE_3, false, false, false, 1, "emulated" },
    { "device, ring, codes", 3, 1, ZC_F32, ZC_STAGE_3, true, true, false, 2, "emulated" },
    { "device, zero1", 2, 1, ZC_BF16, ZC_STAGE_1, false, false, false, 1, "emulated" },
    { "device, two nodes", 4, 2, ZC_BF16, ZC_STAGE_3, true, true, false, 1, "emulated" },
    { "device, two nodes, zero2", 4, 2, ZC_F32, ZC_STAGE_2, false, false, false, 1, "emulated" },
};

static void the_bits_are_those_of_collectives(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(settings); i++) {
        const struct setting *s = &settings[i];
        bool host = s->world > 1;
        struct party with, by;

        run_well(&with, s, ZC_NODE_GATHER_COMM);
        run_well(&by, s, ZC_NODE_GATHER_HOST);
        assert_runs_same(s->name, &with.runs[0], &by.runs[0]);
        assert_int_equal(with.runs[0].stats.node_gather, ZC_NODE_GATHER_COMM);
        assert_string_equal(with.runs[0].gather_why, "");
        assert_int_equal(by.runs[0].stats.node_gather,
                         host ? ZC_NODE_GATHER_HOST : ZC_NODE_GATHER_COMM);
        assert_string_equal(by.runs[0].gather_why, host ? "" : "each rank has whole units");
        party_done(&with);
        party_done(&by);
    }
}

/* ---- bytes */

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Bytes of all units, in blocks of 4096 elements: as stored (world 1), or in slices of equal
 * length. */
static uint64_t model_bytes(enum zc_dtype dtype, uint32_t world)
{
    uint64_t elems = 0;

    for (uint32_t u = 0; u < MODEL_UNITS; u++)
        elems += round_up((round_up(model_units[u].elems, world)) / world, 4096) * world;
    return elems * (dtype == ZC_F32 ? 4 : 2);
}

/* Each unit is gathered once in each step. P: bytes as stored, S: bytes in equal slices; of R ranks
 * on n nodes.
 *
 *     collectives     all ranks together read P in the daemon; each sends S (R - 1)/R, and of
 *                     that S/R to each rank of another node
 *     host memory     each rank reads the P that its daemon has. Nothing is sent on one node; to
 *                     each other node S/R, and S/R (n - 1)/n x n to each rank of this node */
static void bytes_are_those_of_the_formulas(void **state)
{
    static const struct setting rows[] = {
        { "two", 2, 1, ZC_F32, ZC_STAGE_3, false, false, true, 0, NULL },
        { "four, ring", 4, 1, ZC_BF16, ZC_STAGE_3, true, false, true, 0, NULL },
        { "zero2", 3, 1, ZC_BF16, ZC_STAGE_2, false, false, false, 0, NULL },
        { "two nodes of two", 4, 2, ZC_F32, ZC_STAGE_3, false, false, true, 0, NULL },
        { "three nodes of two, ring", 6, 3, ZC_BF16, ZC_STAGE_3, true, false, true, 0, NULL },
        { "three nodes of one", 3, 3, ZC_F32, ZC_STAGE_3, false, false, true, 0, NULL },
        { "device", 3, 1, ZC_BF16, ZC_STAGE_3, false, false, true, 0, "emulated" },
        { "device, two nodes", 4, 2, ZC_F32, ZC_STAGE_3, false, false, true, 0, "emulated" },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        const struct setting *s = &rows[i];
        uint64_t stored = STEPS * model_bytes(s->dtype, 1), R = s->world, n = s->nodes;
        uint64_t sliced = STEPS * model_bytes(s->dtype, s->world), here = R / n;
        uint64_t by_comm = 0, by_host = 0;
        struct party with, by;

        run_well(&with, s, ZC_NODE_GATHER_COMM);
        run_well(&by, s, ZC_NODE_GATHER_HOST);
        for (uint32_t r = 0; r < R; r++) {
            const struct zc_zero_stats *a = &with.runs[r].stats, *b = &by.runs[r].stats;
            uint64_t up = n > 1 ? sliced : stored; /* whole, padded, from a buffer on the host */

            by_comm += a->fetched_bytes;
            by_host += b->fetched_bytes;
            assert_int_equal(a->comm_gather_bytes, sliced * (R - 1) / R);
            assert_int_equal(a->comm_nodes_bytes, sliced / R * (R - here));
            assert_int_equal(b->comm_nodes_bytes, sliced / R * (n - 1));
            assert_int_equal(b->comm_gather_bytes,
                             sliced / R * (n - 1) + sliced / R * (n - 1) * (here - 1));
            assert_int_equal(a->gather_up_bytes, s->device ? sliced : 0);
            assert_int_equal(b->gather_up_bytes, s->device ? up : 0);
        }
        assert_int_equal(by_comm, stored);
        assert_int_equal(by_host, stored * here); /* each node's slices, by each of its ranks */
        party_done(&with);
        party_done(&by);
    }
}

/* ---- the choice */

/* Collectives that take a while: comm_threads.h, of which only these functions differ. */
static struct zc_comm_ops slow_ops;
static int (*quick_all_gather)(struct zc_comm *comm, const void *send, void *recv,
                               size_t slice_bytes, struct zc_comm_op **ret);

static int slow_all_gather(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                           struct zc_comm_op **ret)
{
    nap(slice_bytes >= 4096 ? slow_comm_ms : 0);
    return quick_all_gather(comm, send, recv, slice_bytes, ret);
}

static void run_auto(struct party *p, const struct setting *s, uint32_t fetch_ms, uint32_t comm_ms)
{
    const struct fake_config fake = { .page_elems = 4096, .nodes = s->nodes };

    slow_fetch_ms = fetch_ms;
    slow_comm_ms = comm_ms;
    fake_reset(&fake);
    party_new(p, s->world, s->dtype, s->world, 0);
    for (uint32_t r = 0; r < s->world; r++) {
        struct zc_zero_options *o = &p->runs[r].options;

        quick_all_gather = o->comm->ops->all_gather;
        slow_ops = *o->comm->ops;
        slow_ops.all_gather = slow_all_gather;
        o->comm->ops = &slow_ops;
        p->runs[r].steps = 1;
        o->offload_optimizer = o->offload_param = ZC_ZERO_HOST;
        o->keep_gathered = true;
        o->prefetch_units = 0;
        o->device = s->device;
        o->node_gather = ZC_NODE_GATHER_AUTO;
    }
    party_run(p);
    slow_fetch_ms = slow_comm_ms = 0;
    party_assert_ran(p);
    fake_end();
}

static void the_faster_way_is_chosen(void **state)
{
    static const struct setting rows[] = {
        { "two", 2, 1, ZC_F32, ZC_STAGE_3, false, false, true, 0, NULL },
        { "device", 2, 1, ZC_BF16, ZC_STAGE_3, false, false, true, 0, "emulated" },
    };

    (void)state;
    for (size_t i = 0; i < 2 * ZB_COUNT(rows); i++) {
        const struct setting *s = &rows[i / 2];
        bool host = i % 2 == 0;
        uint64_t stored = model_bytes(s->dtype, 1), sliced = model_bytes(s->dtype, s->world);
        uint64_t fetched = 0;
        struct party p;

        run_auto(&p, s, host ? 0 : 5, host ? 5 : 0);
        for (uint32_t r = 0; r < s->world; r++) {
            const struct zc_zero_stats *a = &p.runs[r].stats;

            assert_int_equal(a->node_gather, host ? ZC_NODE_GATHER_HOST : ZC_NODE_GATHER_COMM);
            assert_non_null(strstr(p.runs[r].gather_why, "ms from host memory"));
            assert_string_equal(p.runs[r].gather_why, p.runs[0].gather_why);
            /* what was moved to measure is not counted */
            assert_int_equal(a->comm_gather_bytes, host ? 0 : sliced * (s->world - 1) / s->world);
            assert_int_equal(a->gather_up_bytes, !s->device ? 0 : host ? stored : sliced);
            fetched += a->fetched_bytes;
        }
        assert_int_equal(fetched, host ? s->world * stored : stored);
        print_message("%s\n", p.runs[0].gather_why);
        party_done(&p);
    }
}

/* Whatever is chosen, the bits are the same; also where there is nothing to choose. */
static void auto_has_the_same_bits(void **state)
{
    static const struct setting uneven = { "uneven", 3,     2,     ZC_F32, ZC_STAGE_3,
                                           false,    false, false, 1,      NULL };
    struct party with, by;

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(settings); i += 2) {
        run_well(&with, &settings[i], ZC_NODE_GATHER_COMM);
        run_well(&by, &settings[i], ZC_NODE_GATHER_AUTO);
        assert_runs_same(settings[i].name, &with.runs[0], &by.runs[0]);
        party_done(&with);
        party_done(&by);
    }
    run_well(&with, &uneven, ZC_NODE_GATHER_COMM);
    run_well(&by, &uneven, ZC_NODE_GATHER_AUTO);
    assert_runs_same("uneven", &with.runs[0], &by.runs[0]);
    assert_int_equal(by.runs[0].stats.node_gather, ZC_NODE_GATHER_COMM);
    assert_non_null(strstr(by.runs[0].gather_why, "different numbers of ranks"));
    party_done(&with);
    party_done(&by);
}

/* ---- refusals and failures */

static void what_cannot_be_is_refused(void **state)
{
    static const struct {
        enum zc_zero_offload offload;
        uint32_t world;
        bool quantize;
        int gather, rc;
        const char *why;
    } rows[] = {
        { ZC_ZERO_NONE, 2, false, ZC_NODE_GATHER_HOST, -ENOTSUP, "without a daemon" },
        { ZC_ZERO_HOST, 2, true, ZC_NODE_GATHER_HOST, -ENOTSUP, "quantize_gather" },
        { ZC_ZERO_HOST, 3, false, ZC_NODE_GATHER_HOST, -ENOTSUP, "different numbers of ranks" },
        { ZC_ZERO_HOST, 2, false, 3, -EINVAL, "node_gather 3 is not known" },
    };
    struct fake_config two_nodes = { .page_elems = 4096, .nodes = 2 };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct party p;

        fake_reset(&two_nodes);
        party_new(&p, rows[i].world, ZC_F32, 1, 0);
        party_offload(&p, rows[i].offload);
        for (uint32_t r = 0; r < rows[i].world; r++) {
            p.runs[r].options.quantize_gather = rows[i].quantize;
            p.runs[r].options.node_gather = (enum zc_node_gather)rows[i].gather;
        }
        party_run(&p);
        for (uint32_t r = 0; r < rows[i].world; r++) {
            assert_int_equal(p.runs[r].rc, rows[i].rc);
            if (!strstr(p.runs[r].error, rows[i].why))
                fail_msg("row %zu: '%s'", i, p.runs[r].error);
        }
        party_done(&p);
        fake_end();
    }
}

static void ranks_that_disagree(void **state)
{
    struct fake_config fake = { .page_elems = 4096 };
    struct party p;

    (void)state;
    fake_reset(&fake);
    party_new(&p, 3, ZC_F32, 1, 0);
    party_offload(&p, ZC_ZERO_HOST);
    p.runs[2].options.node_gather = ZC_NODE_GATHER_HOST;
    party_run(&p);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(p.runs[r].rc, -EINVAL);
        assert_non_null(strstr(p.runs[r].error, "the options of the engine: rank 2"));
    }
    party_done(&p);
    fake_end();
}

/* A rank loses its daemon, or the daemon fails, at some call: the others end in time, with an error
 * message. */
static void a_rank_that_is_lost(void **state)
{
    uint32_t step = ztest_is_long() ? 1 : 9;

    (void)state;
    for (uint32_t nodes = 1; nodes <= 2; nodes++) {
        bool faulted = true;

        for (uint32_t nth = 1; faulted; nth += step) { /* until the run ends before */
            struct fake_config fake = { .page_elems = 4096,
                                        .ring = nth % 2 == 0,
                                        .nodes = (uint8_t)nodes,
                                        .fault = FAKE_HANGUP,
                                        .rank = 1,
                                        .nth = nth };
            struct party p;

            fake_reset(&fake);
            party_new(&p, 4, ZC_F32, nth, 1);
            party_offload(&p, ZC_ZERO_NVME);
            for (uint32_t r = 0; r < 4; r++) {
                p.runs[r].options.node_gather = nth % 3 == 0 ? ZC_NODE_GATHER_AUTO
                                                             : ZC_NODE_GATHER_HOST;
                p.runs[r].abort = p.group; /* as a launcher does */
                p.runs[r].steps = STEPS;
            }
            party_run(&p);
            faulted = fake_faulted() != FAKE_NOT_YET;
            assert_true(faulted || nth > 50);
            for (uint32_t r = 0; r < 4 && faulted; r++) {
                assert_true(p.runs[r].rc < 0 && p.runs[r].error[0]);
                assert_true(p.runs[r].ended_s - p.runs[r].begun_s < 10); /* timeout_ms is 20 s */
            }
            party_done(&p);
            fake_end();
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_collectives),
        cmocka_unit_test(bytes_are_those_of_the_formulas),
        cmocka_unit_test(the_faster_way_is_chosen),
        cmocka_unit_test(auto_has_the_same_bits),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(ranks_that_disagree),
        cmocka_unit_test(a_rank_that_is_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
