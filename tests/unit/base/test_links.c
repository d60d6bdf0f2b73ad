#include "tests/ztest.h"

#include <errno.h>
#include <string.h>

#include "base/links.h"
#include "base/util.h"

#define BYTES (2 * (uint64_t)ZB_BLOCK_ELEMS) /* of a block in bf16 */

/* Three units of 8, 4 and 1 blocks, over four ranks: slices of 2, 1 and 1 blocks; the last unit is on
 * rank 0 alone. */
static const uint64_t blocks[] = { 8, 4, 1 }, padded[] = { 8, 4, 4 };

static struct zb_model model;

static int set_up(void **state)
{
    (void)state;
    for (size_t u = 0; u < ZB_COUNT(blocks); u++)
        assert_int_equal(zb_model_add(&model, blocks[u] * ZB_BLOCK_ELEMS, NULL), 0);
    return zb_model_order(&model, NULL);
}

static int tear_down(void **state)
{
    (void)state;
    zb_model_done(&model);
    return 0;
}

static struct zb_run run_of(enum zb_mode mode, uint32_t ranks)
{
    struct zb_run run = { .model = &model,
                          .mode = mode,
                          .ranks = ranks,
                          .nodes = 1,
                          .param = ZB_OFFLOAD_HOST,
                          .optimizer = ZB_OFFLOAD_HOST,
                          .micro_steps = 1,
                          .prefetch_units = 1,
                          .comm = ZB_COMM_NCCL,
                          .computes_on = true };

    assert_int_equal(
        zb_layout_of(ZB_BF16, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, false, &run.layout, NULL), 0);
    return run;
}

/* The links, with 8 MiB free on each GPU. */
static struct zb_links links_of(const struct zb_run *run, uint32_t gpus)
{
    struct zb_node node = { .host_bytes = ZB_GIB, .page_elems = 65536, .gpus = gpus };
    struct zb_forecast f;
    struct zb_links ret;

    for (uint32_t g = 0; g < gpus; g++)
        node.gpu_tiers[g] = 8 * ZB_MIB;
    assert_true(zb_links_known(run));
    assert_int_equal(zb_forecast(run, &node, &f, NULL), 0);
    assert_true(f.fits);
    assert_int_equal(zb_links(run, &node, &f, &ret), 0);
    return ret;
}

/* How often each unit is gathered: forward 0 1 2, backward 2 1 0. */
static const struct {
    enum zb_mode mode;
    uint32_t micro_steps, ahead;
    uint64_t times[3];
} orders[] = {
    { ZB_ZERO3, 1, 0, { 2, 2, 2 } }, /* a window of no units keeps none */
    { ZB_ZERO3, 1, 1, { 2, 2, 1 } }, /* the last one is still there backward */
    { ZB_ZERO3, 1, 2, { 2, 1, 1 } },  { ZB_ZERO3, 1, 64, { 1, 1, 1 } },
    { ZB_ZERO3, 2, 1, { 3, 4, 2 } }, /* and so is the first one, in the second micro-step */
    { ZB_ZERO3, 7, 1, { 8, 14, 7 } }, { ZB_ZERO3, 7, 0, { 14, 14, 14 } },
    { ZB_ZERO2, 7, 1, { 1, 1, 1 } }, /* parameters are whole */
};

static void units_are_gathered_again(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(orders); i++) {
        struct zb_run run = run_of(orders[i].mode, 4);
        uint64_t up = 0, sent = 0, times = 0;
        struct zb_links l;

        run.micro_steps = orders[i].micro_steps;
        run.prefetch_units = orders[i].ahead;
        l = links_of(&run, 4);
        for (size_t u = 0; u < ZB_COUNT(blocks); u++) {
            times += orders[i].times[u];
            up += orders[i].times[u] * blocks[u] * BYTES;
            sent += orders[i].times[u] * 3 * padded[u] * BYTES;
        }
        assert_int_equal(l.gathers, times);
        assert_int_equal(l.all.up, up);
        assert_int_equal(l.all.sent, sent);
        assert_int_equal(l.fetched, up);
        assert_int_equal(l.memory, up + 2 * sent);
    }
}

/* Where the bytes of one gather of each unit go (stage 2), in blocks of all ranks. */
static const struct {
    const char *what;
    enum zb_comm comm;
    enum zb_node_gather way;
    uint32_t ranks, gpus;
    uint64_t up, sent, gpu0; /* gpu0: part of up */
} moves[] = {
    { "NCCL", ZB_COMM_NCCL, ZB_GATHER_COMM, 4, 4, 13, 48, 4 },
    { "NCCL, two ranks on each", ZB_COMM_NCCL, ZB_GATHER_COMM, 4, 2, 13, 48, 7 },
    { "host memory", ZB_COMM_HOST, ZB_GATHER_COMM, 4, 4, 64, 48, 16 },
    { "read", ZB_COMM_NCCL, ZB_GATHER_HOST, 4, 4, 52, 0, 13 },
    { "read, over MPI", ZB_COMM_HOST, ZB_GATHER_HOST, 4, 1, 52, 0, 52 },
    { "one rank", ZB_COMM_NCCL, ZB_GATHER_COMM, 1, 1, 13, 0, 13 },
};

static void each_way_moves_its_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(moves); i++) {
        struct zb_run run = run_of(ZB_ZERO2, moves[i].ranks);
        struct zb_links l;

        run.comm = moves[i].comm;
        run.node_gather = moves[i].way;
        l = links_of(&run, moves[i].gpus);
        if (l.all.up != moves[i].up * BYTES || l.all.sent != moves[i].sent * BYTES ||
            l.gpu[0].up != moves[i].gpu0 * BYTES || l.all.down + l.all.within != 0 || l.on_gpus)
            fail_msg("%s: up %llu, of it gpu0 %llu; sent %llu", moves[i].what,
                     (unsigned long long)(l.all.up / BYTES),
                     (unsigned long long)(l.gpu[0].up / BYTES),
                     (unsigned long long)(l.all.sent / BYTES));
    }
}

/* Parameters on the GPUs, in blocks of all ranks; each unit is gathered once. */
static const struct {
    enum zb_comm comm;
    enum zb_node_gather way;
    uint32_t ranks, gpus;
    bool there;
    uint64_t up, down, within;
} theres[] = {
    { ZB_COMM_NCCL, ZB_GATHER_COMM, 4, 4, true, 0, 0, 13 },
    { ZB_COMM_HOST, ZB_GATHER_COMM, 4, 4, true, 64, 13, 0 },
    { ZB_COMM_HOST, ZB_GATHER_HOST, 4, 1, true, 0, 0, 52 },
    { ZB_COMM_HOST, ZB_GATHER_HOST, 4, 4, false, 52, 0, 0 }, /* a rank maps its own GPU alone */
    { ZB_COMM_NCCL, ZB_GATHER_COMM, 1, 1, true, 0, 0, 13 },
};

static void from_gpu_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(theres); i++) {
        struct zb_run run = run_of(ZB_ZERO3, theres[i].ranks);
        struct zb_links l;

        run.param = ZB_OFFLOAD_GPU;
        run.prefetch_units = ZB_PREFETCH_MAX;
        run.comm = theres[i].comm;
        run.node_gather = theres[i].way;
        l = links_of(&run, theres[i].gpus);
        assert_int_equal(l.on_gpus, theres[i].there);
        assert_int_equal(l.all.up, theres[i].up * BYTES);
        assert_int_equal(l.all.down, theres[i].down * BYTES);
        assert_int_equal(l.all.within, theres[i].within * BYTES);
    }
}

static void not_known(void **state)
{
    struct zb_run run = run_of(ZB_ZERO3, 4);

    (void)state;
    run.computes_on = false;
    assert_false(zb_links_known(&run));
    run = run_of(ZB_DDP, 4);
    assert_false(zb_links_known(&run));
    run = run_of(ZB_ZERO3, 4);
    run.nodes = 2;
    assert_false(zb_links_known(&run));
    run = run_of(ZB_ZERO3, 4);
    run.comm = ZB_COMM_RING;
    assert_false(zb_links_known(&run));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_are_gathered_again),
        cmocka_unit_test(each_way_moves_its_bytes),
        cmocka_unit_test(from_gpu_memory),
        cmocka_unit_test(not_known),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
