#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/iteration.h"
#include "base/util.h"

#define NEAR(a, b) assert_true(fabs((double)(a) - (double)(b)) <= 1e-9 * fabs((double)(b)))

/* Four units without padding: a gather of one is UNIT bytes in bf16. Forward gathers four, backward
 * three, since the last one is still there. */
#define UNITS 4
#define ELEMS (UINT64_C(1) << 20)
#define UNIT  (2.0 * ELEMS)
#define ALL   (UNITS * UNIT)

static struct zb_model model;

static int set_up(void **state)
{
    (void)state;
    return zb_model_params(&model, UNITS * ELEMS, UNITS, NULL);
}

static int tear_down(void **state)
{
    (void)state;
    zb_model_done(&model);
    return 0;
}

/* Computing takes 2 s forward and 6 s backward. */
static struct zb_run run_of(enum zb_mode mode, uint32_t ranks, uint32_t nodes, enum zb_comm comm)
{
    struct zb_run run = { .model = &model,
                          .mode = mode,
                          .ranks = ranks,
                          .nodes = nodes,
                          .param = ZB_OFFLOAD_HOST,
                          .optimizer = ZB_OFFLOAD_HOST,
                          .micro_steps = 1,
                          .prefetch_units = 1,
                          .comm = comm,
                          .tokens = 1000,
                          .flops = 1000.0 * UNITS * ELEMS };

    assert_int_equal(
        zb_layout_of(ZB_BF16, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, false, &run.layout, NULL), 0);
    return run;
}

/* ---- bytes, in units: those of docs/ENGINE.md, and on a link between nodes those of test_nodes.py
 */

static const struct {
    const char *name;
    enum zb_mode mode;
    uint32_t ranks, nodes;
    enum zb_comm comm;
    enum zb_offload optimizer;
    bool alone;
    uint32_t micro_steps;
    double gpu, network, up, down;
} moves[] = {
    { "a rank alone", ZB_ZERO3, 1, 1, ZB_COMM_NCCL, ZB_OFFLOAD_HOST, false, 1, 0, 0, 7, 4 },
    { "it keeps all", ZB_ZERO3, 1, 1, ZB_COMM_NCCL, ZB_OFFLOAD_NONE, false, 1, 0, 0, 0, 0 },
    { "a node", ZB_ZERO3, 8, 1, ZB_COMM_NCCL, ZB_OFFLOAD_HOST, false, 1, 11 * 7 / 8.0, 0, 7 / 8.0,
      1 },
    { "a node, nothing offloaded", ZB_FSDP, 8, 1, ZB_COMM_RING, ZB_OFFLOAD_NONE, false, 1,
      11 * 7 / 8.0, 0, 0, 0 },
    { "a node, alone", ZB_ZERO3, 8, 1, ZB_COMM_NCCL, ZB_OFFLOAD_HOST, true, 1, 4 * 7 / 8.0, 0, 7,
      1 },
    { "two nodes", ZB_ZERO3, 8, 2, ZB_COMM_NCCL, ZB_OFFLOAD_HOST, false, 1, 7 * 7 / 8.0 + 1.5,
      7 * 7 / 8.0 + 8, 7 / 8.0, 1 },
    { "two nodes, rings", ZB_ZERO3, 8, 2, ZB_COMM_RING, ZB_OFFLOAD_HOST, false, 1, 11 * 7 / 8.0,
      11 * 7 / 8.0, 7 / 8.0, 1 },
    { "two nodes, through host memory", ZB_ZERO3, 8, 2, ZB_COMM_HOST, ZB_OFFLOAD_HOST, false, 1, 0,
      22, 7, 4 },
    { "parameters once a step", ZB_ZERO1, 8, 2, ZB_COMM_RING, ZB_OFFLOAD_HOST, false, 3,
      16 * 7 / 8.0, 16 * 7 / 8.0, 0.5, 3 },
    { "parameters in each micro-step", ZB_ZERO3, 8, 2, ZB_COMM_RING, ZB_OFFLOAD_HOST, false, 3,
      33 * 7 / 8.0, 33 * 7 / 8.0, 21 / 8.0, 3 },
    { "test_nodes.py: stage 0", ZB_DDP, 4, 2, ZB_COMM_HOST, ZB_OFFLOAD_HOST, false, 1, 0, 12, 8,
      4 },
    { "test_nodes.py: stage 1", ZB_ZERO1, 4, 2, ZB_COMM_HOST, ZB_OFFLOAD_HOST, false, 1, 0, 8, 4,
      4 },
    { "test_nodes.py: stage 3", ZB_ZERO3, 4, 2, ZB_COMM_HOST, ZB_OFFLOAD_HOST, false, 1, 0, 11, 7,
      4 },
    { "test_nodes.py: groups", ZB_HYBRID, 4, 2, ZB_COMM_HOST, ZB_OFFLOAD_HOST, false, 1, 0, 8, 7,
      4 },
    { "groups: a slice of 128 blocks in 3 parts of 43", ZB_HYBRID, 6, 3, ZB_COMM_HOST,
      ZB_OFFLOAD_HOST, false, 1, 0, 4 * 2.6875, 7, 4 },
    { "ddp in rings: two of p bytes", ZB_DDP, 8, 2, ZB_COMM_RING, ZB_OFFLOAD_HOST, false, 1,
      8 * 7 / 8.0, 8 * 7 / 8.0, 0, 0 },
    { "ddp: p bytes, and fp32 back", ZB_DDP, 8, 1, ZB_COMM_NCCL, ZB_OFFLOAD_HOST, false, 1,
      12 * 7 / 8.0, 0, 0, 0 },
};

static void what_is_moved(void **state)
{
    struct zb_node node = {
        .memory = 1e9, .link = 1e9, .gpu_link = 1e9, .network = 1e9, .gpu_memory = 1e9
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(moves); i++) {
        struct zb_run run = run_of(moves[i].mode, moves[i].ranks, moves[i].nodes, moves[i].comm);
        struct zb_forecast f = { .fits = true, .local = run.ranks / run.nodes };
        struct zb_iteration it;

        print_message("%s\n", moves[i].name);
        run.optimizer = moves[i].optimizer;
        run.gather_alone = moves[i].alone;
        run.micro_steps = moves[i].micro_steps;
        assert_int_equal(zb_iterate(&run, &node, &f, &it, NULL), 0);
        NEAR(it.gpu_link_bytes, moves[i].gpu * UNIT);
        NEAR(it.network_bytes, moves[i].network * UNIT);
        NEAR(it.up_bytes, moves[i].up * UNIT);
        NEAR(it.down_bytes, moves[i].down * UNIT);
    }
}

/* Parameters are on the GPU tiers: nothing comes up, unless ranks gather in host memory. */
static void parameters_on_gpus(void **state)
{
    static const struct {
        uint32_t ranks;
        enum zb_comm comm;
        enum zb_node_gather way;
        double up, down, memory; /* memory: forward, of all units */
    } theres[] = {
        { 1, ZB_COMM_NCCL, ZB_GATHER_COMM, 0, 4, 0 },
        { 8, ZB_COMM_NCCL, ZB_GATHER_COMM, 0, 1, 0 },
        { 8, ZB_COMM_NCCL, ZB_GATHER_HOST, 0, 1, 0 },
        { 8, ZB_COMM_HOST, ZB_GATHER_COMM, 7, 4 + 7 / 8.0, 16 },
        { 8, ZB_COMM_HOST, ZB_GATHER_HOST, 0, 4, 0 },
    };
    struct zb_node node = { .memory = 1e9, .link = 1e9, .gpu_link = 1e9 };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(theres); i++) {
        struct zb_run run = run_of(ZB_ZERO3, theres[i].ranks, 1, theres[i].comm);
        struct zb_forecast f = { .fits = true, .local = run.ranks, .gpu_params = 1 };
        struct zb_iteration it;

        run.node_gather = theres[i].way;
        assert_int_equal(zb_iterate(&run, &node, &f, &it, NULL), 0);
        NEAR(it.up_bytes, theres[i].up * UNIT);
        NEAR(it.down_bytes, theres[i].down * UNIT);
        NEAR(it.forward.memory, theres[i].memory * ALL / 1e9);
    }
}

/* Eight links of 25 GB/s, and 200 GB/s of host memory: gathers alone move 8 P there, exchanges
 * (2 x 8 - 1) P. */
static void shared_host_memory(void **state)
{
    struct zb_node node = { .memory = 200e9, .link = 25e9, .network = 1e9, .gpu_link = 1e9 };
    struct zb_run run = run_of(ZB_ZERO3, 8, 1, ZB_COMM_HOST);
    struct zb_forecast f = { .fits = true, .local = 8 };
    struct zb_iteration host, alone;

    (void)state;
    assert_int_equal(zb_iterate(&run, &node, &f, &host, NULL), 0);
    run.gather_alone = true;
    assert_int_equal(zb_iterate(&run, &node, &f, &alone, NULL), 0);
    NEAR(host.forward.memory, 15 * ALL / 200e9);
    NEAR(host.forward.up, ALL / 25e9);
    NEAR(alone.forward.memory, 8 * ALL / 200e9);
    NEAR(alone.forward.up, ALL / 25e9);
    assert_true(host.forward.memory > host.forward.up); /* the larger one counts */
    NEAR(host.forward.memory / alone.forward.memory, 1.875);
}

/* ---- time of eight ranks that offload nothing. A gather of all units takes a second on the link
 * of the GPUs, if `slower` is 1, and the optimizer a second */

static const struct {
    const char *name;
    uint32_t nodes;
    double slower, network; /* network: that of the link, divided by this */
    double latency;
    uint32_t prefetch;
    double forward, backward, seconds;
    enum zb_part bound;
} times[] = {
    { "computing hides all but two units", 1, 1, 1, 0, 1, 2 + 0.25, 6 + 0.25, 9.5,
      ZB_PART_COMPUTE },
    { "nothing is gathered ahead", 1, 1, 1, 0, 0, 2 + 1, 6 + 0.75, 10.75, ZB_PART_COMPUTE },
    { "seven messages a collective", 1, 1, 1, 0.01, 1, 2 + 0.32, 6 + 0.32, 9.64, ZB_PART_COMPUTE },
    { "the link is ten times slower", 1, 10, 1, 0, 1, 10 + 2.5, 17.5 + 2.5, 33.5,
      ZB_PART_GPU_LINK },
    { "messages take longer than bytes", 1, 1, 1, 1, 1, 29 + 7.25, 1.75 + 49 + 7.25, 95.25,
      ZB_PART_LATENCY },
    { "the network is four times slower", 2, 1, 4, 0, 1, 4 + 1, 7 + 1, 14, ZB_PART_NETWORK },
    { "the network is as fast", 2, 1, 1, 0, 1, 2.25, 6.25, 9.5, ZB_PART_COMPUTE },
};

static void time_of_collectives(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(times); i++) {
        double link = ALL * 7 / 8 / times[i].slower;
        struct zb_node node = { .gpu_link = link,
                                .network = link / times[i].network,
                                .latency = times[i].latency,
                                .gpu_memory = 28.0 * UNITS * ELEMS / 8 };
        struct zb_run run = run_of(ZB_ZERO3, 8, times[i].nodes, ZB_COMM_RING);
        struct zb_forecast f = { .fits = true, .local = 8 / times[i].nodes };
        struct zb_iteration it;

        print_message("%s\n", times[i].name);
        run.optimizer = ZB_OFFLOAD_NONE;
        run.prefetch_units = times[i].prefetch;
        assert_int_equal(zb_iterate(&run, &node, &f, &it, NULL), 0);
        NEAR(it.forward.compute, 2);
        NEAR(it.backward.compute, 6);
        NEAR(it.optimizer, 1);
        NEAR(it.exposed, 1);
        NEAR(it.forward.seconds, times[i].forward);
        NEAR(it.backward.seconds, times[i].backward);
        NEAR(it.seconds, times[i].seconds);
        NEAR(it.flops, 8 * run.flops / times[i].seconds);
        NEAR(it.tokens, 8 * 1000 / times[i].seconds);
        assert_int_equal(it.bound, times[i].bound);
    }
}

/* ---- the optimizer with the daemon: 10 s of drives, 2 s of the kernel. A gather of all slices
 * takes 1/8 s up, and the sums of gradients 1/4 s down */

static const struct {
    const char *name;
    bool early;
    uint64_t fetched; /* bytes by gathers and pushes, at 1e9 a second */
    double exposed, seconds;
} steps[] = {
    { "the forward pass hides a part", false, 0, 10 - 2.28125, 16.3125 },
    { "and the backward pass", true, 0, 10 - 8.59375, 10 },
    { "drives are busy in the passes", true, 2000000000, 10 - 8.59375, 12 },
};

static void time_of_the_step(void **state)
{
    struct zb_node node = {
        .gpu_link = ALL * 7 / 8, .link = ALL, .memory = 1e9, .drive_read = 1e9, .drive_write = 1e9
    };
    struct zb_run run = run_of(ZB_ZERO3, 8, 1, ZB_COMM_RING);

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(steps); i++) {
        struct zb_forecast f = { .fits = true,
                                 .local = 8,
                                 .early = steps[i].early,
                                 .step_read = 5000000000,
                                 .step_written = 5000000000,
                                 .fetch_read = steps[i].fetched,
                                 .kernel_bytes = 2000000000 };
        struct zb_iteration it;

        print_message("%s\n", steps[i].name);
        zb_forecast_time(&node, &f);
        NEAR(f.step_seconds, 10);
        assert_int_equal(zb_iterate(&run, &node, &f, &it, NULL), 0);
        NEAR(it.forward.up, 1 / 8.0);
        NEAR(it.backward.down, 1 / 4.0);
        NEAR(it.forward.seconds, 2 + 0.25 + 1 / 32.0);
        NEAR(it.backward.seconds, 6 + 0.25 + 1 / 16.0);
        NEAR(it.optimizer, 10);
        NEAR(it.exposed, steps[i].exposed);
        NEAR(it.seconds, steps[i].seconds);
        NEAR(it.drives, 10 + (double)steps[i].fetched / 1e9);
        assert_int_equal(it.bound, ZB_PART_DRIVES);
    }
}

/* ---- what is missing is named */

struct given {
    struct zb_node node;
    struct zb_run run;
};

static const struct {
    size_t member; /* of struct given: a double that is set to 0 */
    const char *name;
} rates[] = {
    { offsetof(struct given, run.flops), "flops" },
    { offsetof(struct given, node.gpu_link), "gpu_link" },
    { offsetof(struct given, node.network), "network" },
    { offsetof(struct given, node.link), "link" },
    { offsetof(struct given, node.memory), "mem_bw" },
    { offsetof(struct given, node.drive_read), "drive_read and drive_write" },
};

static void rates_that_are_needed(void **state)
{
    const struct given all = { .node = { .memory = 1e9,
                                         .link = 1e9,
                                         .gpu_link = 1e9,
                                         .network = 1e9,
                                         .drive_read = 1e9,
                                         .drive_write = 1e9 },
                               .run = run_of(ZB_ZERO3, 8, 2, ZB_COMM_NCCL) };
    char want[128];

    (void)state;
    for (size_t i = 0; i <= ZB_COUNT(rates); i++) {
        struct zb_forecast f = {
            .fits = true, .local = 4, .step_read = 1, .step_written = 1, .kernel_bytes = 1
        };
        struct given g = all;
        struct zb_iteration it;
        struct zb_err err = { 0 };

        if (i == ZB_COUNT(rates)) {
            zb_forecast_time(&g.node, &f);
            assert_int_equal(zb_iterate(&g.run, &g.node, &f, &it, &err), 0);
            break;
        }
        *(double *)((char *)&g + rates[i].member) = 0;
        zb_forecast_time(&g.node, &f);
        assert_int_equal(zb_iterate(&g.run, &g.node, &f, &it, &err), -EINVAL);
        (void)snprintf(want, sizeof(want), "the time of an iteration needs %s, which is not known",
                       rates[i].name);
        assert_string_equal(err.text, want);
    }
}

static void what_makes_no_sense(void **state)
{
    struct zb_node node = { .memory = 1e9, .link = 1e9, .gpu_link = 1e9, .network = 1e9 };
    struct zb_forecast f = { .fits = true, .local = 4 };
    struct zb_run run = run_of(ZB_ZERO3, 8, 2, ZB_COMM_NCCL);
    struct zb_err err = { 0 };
    struct zb_iteration it;

    (void)state;
    run.gather_alone = true;
    assert_int_equal(zb_iterate(&run, &node, &f, &it, &err), -EINVAL); /* two nodes */
    assert_non_null(strstr(err.text, "on one node"));
    run = run_of(ZB_ZERO1, 4, 1, ZB_COMM_NCCL);
    run.gather_alone = true;
    assert_int_equal(zb_iterate(&run, &node, &f, &it, NULL), -EINVAL);
    run.gather_alone = false;
    run.node_gather = ZB_GATHER_HOST; /* parameters may be whole */
    assert_int_equal(zb_iterate(&run, &node, &f, &it, NULL), 0);
    run.nodes = 2;
    assert_int_equal(zb_iterate(&run, &node, &f, &it, NULL), -EINVAL);
    run = run_of(ZB_ZERO3, 4, 1, ZB_COMM_NCCL);
    run.optimizer = ZB_OFFLOAD_NONE;
    err = (struct zb_err){ 0 };
    assert_int_equal(zb_iterate(&run, &node, &f, &it, &err), -EINVAL);
    assert_non_null(strstr(err.text, "gpu_mem_bw"));
    run.tokens = 0;
    err = (struct zb_err){ 0 };
    assert_int_equal(zb_iterate(&run, &node, &f, &it, &err), -EINVAL);
    assert_non_null(strstr(err.text, "tokens"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_moved),       cmocka_unit_test(parameters_on_gpus),
        cmocka_unit_test(shared_host_memory),  cmocka_unit_test(time_of_collectives),
        cmocka_unit_test(time_of_the_step),    cmocka_unit_test(rates_that_are_needed),
        cmocka_unit_test(what_makes_no_sense),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
