#include "tests/ztest.h"

#include <errno.h>
#include <math.h>

#include "base/forecast.h"
#include "base/util.h"

#define NEAR(a, b) assert_true(fabs((double)(a) - (double)(b)) <= 1e-6 * fabs((double)(b)))

/* ---- modes: the table in the literature, for its 16 bytes and for ours */

static const struct {
    enum zb_mode mode;
    uint32_t ranks, nodes;
    double field; /* bytes of a rank, for 1e9 parameters */
} fields[] = {
    { ZB_DDP, 8, 1, 16e9 },
    { ZB_ZERO1, 8, 1, 4e9 + 12e9 / 8 },
    { ZB_ZERO2, 8, 1, 2e9 + 14e9 / 8 },
    { ZB_ZERO3, 8, 1, 2e9 },
    { ZB_FSDP, 64, 8, 0.25e9 },
    { ZB_HYBRID, 64, 8, 2e9 },
    { ZB_ZERO3, 1, 1, 16e9 },
};

static struct zb_layout bf16(void)
{
    struct zb_layout l;

    assert_int_equal(zb_layout_of(ZB_BF16, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, false, &l, NULL), 0);
    return l;
}

static void modes(void **state)
{
    struct zb_model m = { 0 };
    struct zb_node node = { .host_bytes = UINT64_C(1) << 50, .page_elems = ZB_PAGE_ELEMS_DEFAULT };

    (void)state;
    assert_int_equal(zb_model_params(&m, 64 * 16 * ZB_BLOCK_ELEMS, 4, NULL), 0);
    for (size_t i = 0; i < ZB_COUNT(fields); i++) {
        struct zb_run run = { .model = &m,
                              .mode = fields[i].mode,
                              .ranks = fields[i].ranks,
                              .nodes = fields[i].nodes,
                              .layout = bf16(),
                              .param = ZB_OFFLOAD_HOST,
                              .optimizer = ZB_OFFLOAD_HOST,
                              .micro_steps = 1 };
        static const double bytes[ZB_PLANES] = { 2, 4, 10 };
        struct zb_forecast f;
        uint64_t daemon = 0;

        NEAR(zb_mode_field(fields[i].mode, 1e9, fields[i].ranks, fields[i].nodes), fields[i].field);
        assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
        assert_true(f.fits);
        for (enum zb_plane p = 0; p < ZB_PLANES; p++) {
            double all = bytes[p] * (double)m.params;
            uint32_t world = zb_mode_world(run.mode, run.ranks, run.nodes);

            NEAR(f.own[p], zb_mode_cuts(run.mode, p) ? 0 : all);
            NEAR(f.kept[p], run.mode == ZB_DDP ? 0 : all / world);
            daemon += f.kept[p] * f.local;
        }
        assert_int_equal(f.host_param + f.host_grad + f.host_state, daemon);
        assert_int_equal(f.nvme_used, 0);
    }
    zb_model_done(&m);
}

/* ---- what gathers read: units of one size, three places */

static const struct {
    const char *name;
    uint32_t units, micro_steps, reads; /* of one step */
} walks[] = {
    { "each has a place", 3, 1, 3 },
    { "two behind the turn come twice", 5, 1, 5 + 2 },
    { "three more", 8, 1, 8 + 5 },
    { "the next forward finds the last three", 8, 2, 8 + 5 + 5 + 5 },
    { "a micro-step behind the first is like the next", 8, 1000, 8 + 5 + 999 * (5 + 5) },
};

static void gathers(void **state)
{
    uint64_t elems = 8 * ZB_BLOCK_ELEMS;

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(walks); i++) {
        struct zb_model m = { 0 };
        struct zb_node node = { .nvme_bytes = UINT64_C(1) << 40, .page_elems = ZB_BLOCK_ELEMS };
        struct zb_run run = { .model = &m,
                              .mode = ZB_ZERO3,
                              .ranks = 1,
                              .nodes = 1,
                              .layout = bf16(),
                              .param = ZB_OFFLOAD_NVME,
                              .optimizer = ZB_OFFLOAD_NVME,
                              .grad = ZB_OFFLOAD_HOST,
                              .micro_steps = walks[i].micro_steps,
                              .prefetch_units = 1 };
        struct zb_forecast f;

        print_message("%s\n", walks[i].name);
        assert_int_equal(zb_model_params(&m, walks[i].units * elems, walks[i].units, NULL), 0);
        assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
        assert_false(f.fits); /* no memory at all */
        node.host_bytes = f.host_least;
        assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
        assert_true(f.fits);
        if (walks[i].units > 3) {
            assert_int_equal(f.host_param, 0);
            assert_int_equal(f.fetch_read, walks[i].reads * elems * 2);
            assert_int_equal(f.step_read, m.params * 12);
        } else {
            assert_int_equal(f.fetch_read, 0); /* as many places as shards: all of them stay */
            assert_int_equal(f.step_read, m.params * 10);
        }
        assert_int_equal(f.step_written, f.step_read);
        assert_int_equal(f.host_used, f.host_least);
        zb_model_done(&m);
    }
}

/* Gradients that do not fit into memory: how many bytes pushes and the step move, and the least
 * budget with all of them in memory. */
static void spilled_gradients(void **state)
{
    struct zb_model m = { 0 };
    struct zb_node node = { .nvme_bytes = ZB_GIB, .page_elems = 65536, .ring_bytes = ZB_MIB };
    struct zb_run run = { .model = &m,
                          .mode = ZB_ZERO3,
                          .ranks = 1,
                          .nodes = 1,
                          .layout = bf16(),
                          .param = ZB_OFFLOAD_NVME,
                          .optimizer = ZB_OFFLOAD_NVME,
                          .micro_steps = 3 };
    struct zb_forecast host, f;
    uint64_t grads;

    (void)state;
    assert_int_equal(zb_model_params(&m, 4096 * ZB_BLOCK_ELEMS, 8, NULL), 0);
    grads = 4 * m.params;
    run.grad = ZB_OFFLOAD_HOST;
    assert_int_equal(zb_forecast(&run, &node, &host, NULL), 0);
    assert_int_equal(host.host_least, host.host_least_grads);
    run.grad = ZB_OFFLOAD_NVME;
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
    assert_false(f.fits);
    assert_int_equal(f.host_least_grads, host.host_least);
    assert_int_equal(f.host_least + grads, host.host_least);
    for (unsigned i = 0; i <= 16; i++) {
        node.host_bytes = f.host_least + grads / 16 * i;
        assert_int_equal(zb_forecast(&run, &node, &host, NULL), 0);
        assert_true(host.fits);
        assert_true(host.nvme_grad <= grads - grads / 16 * i + 65536 * 4);
        assert_int_equal(host.nvme_grad == 0, i == 16);
        assert_int_equal(host.host_grad + host.nvme_grad, grads);
        assert_int_equal(host.step_read, 12 * m.params + host.nvme_grad);
        assert_int_equal(host.step_written, 12 * m.params);
        assert_int_equal(host.push_written, 3 * host.nvme_grad);
        assert_int_equal(host.push_read, 2 * host.nvme_grad);
        assert_int_equal(host.nvme_used,
                         host.nvme_param + host.nvme_grad + host.nvme_state + host.nvme_spare);
    }
    zb_model_done(&m);
}

/* State on the GPU tier: neither a drive nor host memory has it, but its places stay reserved. */
static void state_on_the_gpu(void **state)
{
    struct zb_model m = { 0 };
    struct zb_node node = { .nvme_bytes = 4 * ZB_GIB, .page_elems = 65536, .ring_bytes = ZB_MIB };
    struct zb_run run = { .model = &m,
                          .mode = ZB_ZERO3,
                          .ranks = 1,
                          .nodes = 1,
                          .layout = bf16(),
                          .param = ZB_OFFLOAD_NVME,
                          .optimizer = ZB_OFFLOAD_NVME,
                          .grad = ZB_OFFLOAD_HOST,
                          .durable = true,
                          .commit_every = 1,
                          .micro_steps = 1 };
    struct zb_forecast f, g;

    (void)state;
    assert_int_equal(zb_model_params(&m, 4096 * ZB_BLOCK_ELEMS, 8, NULL), 0);
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
    node.host_bytes = f.host_least;
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
    assert_true(f.fits && f.gpu_state == 0 && f.host_state == 0);
    for (unsigned i = 0; i <= 10; i++) {
        node.gpu_tiers[0] = m.params * i;
        assert_int_equal(zb_forecast(&run, &node, &g, NULL), 0);
        assert_true(g.gpu_used <= node.gpu_tiers[0] && g.gpu_state <= g.gpu_used);
        assert_true(i < 4 || g.gpu_state > 0);
        assert_int_equal(g.step_read, f.step_read - g.gpu_state);
        assert_int_equal(g.step_written, f.step_written - g.gpu_state);
        assert_int_equal(g.commit_written, f.commit_written + g.gpu_state);
        assert_int_equal(g.kernel_bytes, f.kernel_bytes - 2 * g.gpu_state);
        assert_int_equal(g.nvme_used, f.nvme_used);
        assert_int_equal(g.host_least, f.host_least);
    }
    node.gpu_tiers[0] = 4 * ZB_GIB;
    assert_int_equal(zb_forecast(&run, &node, &g, NULL), 0);
    assert_int_equal(g.gpu_state, 10 * m.params);
    zb_model_done(&m);
}

/* As many free bytes on each GPU. */
static void tiers(struct zb_node *node, uint64_t bytes)
{
    for (uint32_t g = 0; g < ZB_GPUS_MAX; g++)
        node->gpu_tiers[g] = bytes;
}

/* Eight ranks, a GPU each, or two for each: the division is that of a rank's shards, whatever the
 * others have, and the sum counts for the step. */
static void state_on_several_gpus(void **state)
{
    struct zb_model m = { 0 };
    struct zb_node node = { .host_bytes = 8 * ZB_GIB, .page_elems = 65536 };
    struct zb_run run = { .model = &m,
                          .mode = ZB_ZERO3,
                          .ranks = 8,
                          .nodes = 1,
                          .layout = bf16(),
                          .param = ZB_OFFLOAD_HOST,
                          .optimizer = ZB_OFFLOAD_HOST,
                          .micro_steps = 1 };
    struct zb_forecast one, f;

    (void)state;
    assert_int_equal(zb_model_params(&m, 4096 * ZB_BLOCK_ELEMS, 8, NULL), 0);
    for (node.gpus = 1; node.gpus <= 8; node.gpus *= 2)
        for (unsigned i = 0; i <= 3; i++) {
            tiers(&node, m.params * 5 * i / node.gpus);
            assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
            assert_true(f.fits);
            assert_int_equal(f.gpus, node.gpus);
            for (uint32_t g = 0; g < node.gpus; g++) { /* ranks are equal, and so are GPUs */
                assert_int_equal(f.gpu[g].state * node.gpus, f.gpu_state);
                assert_true(f.gpu[g].state_used <= node.gpu_tiers[g]);
            }
            assert_true(i > 0 || f.gpu_state == 0);
            assert_true(i < 3 ||
                        f.gpu_state == 10 * m.params); /* device memory has a granularity */
            assert_int_equal(f.kernel_bytes, (2 * 12 + 4) * m.params - 2 * f.gpu_state);
        }
    node.gpus = 0; /* not known: one */
    tiers(&node, 5 * m.params);
    assert_int_equal(zb_forecast(&run, &node, &one, NULL), 0);
    node.gpus = 1;
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
    assert_int_equal(f.gpu_state, one.gpu_state);
    assert_true(f.gpu_state > 0);
    node.gpus = 16; /* more than ranks: every second one */
    tiers(&node, m.params * 2);
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
    for (uint32_t g = 0; g < 16; g++)
        assert_int_equal(f.gpu[g].state, g % 2 ? 0 : 10 * m.params / 8);
    node.gpus = ZB_GPUS_MAX + 1;
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), -EINVAL);
    zb_model_done(&m);
}

/* Parameters are on their ranks' GPUs, all or none, and state takes what they leave. They take no host
 * memory then, and state on NVMe's places gives its memory back. */
static void parameters_on_gpus(void **state)
{
    struct zb_model m = { 0 };
    struct zb_node node = {
        .host_bytes = 8 * ZB_GIB, .nvme_bytes = 8 * ZB_GIB, .page_elems = 65536, .gpus = 4
    };
    struct zb_run run = { .model = &m,
                          .mode = ZB_ZERO3,
                          .ranks = 4,
                          .nodes = 1,
                          .layout = bf16(),
                          .param = ZB_OFFLOAD_GPU,
                          .optimizer = ZB_OFFLOAD_NVME,
                          .micro_steps = 1,
                          .computes_on = true };
    struct zb_forecast f;

    (void)state;
    assert_int_equal(zb_model_params(&m, 4096 * ZB_BLOCK_ELEMS, 8, NULL), 0);
    tiers(&node, m.params * 2 / 4);
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
    assert_int_equal(f.gpu_params, 2 * m.params);
    assert_true(f.fits && f.gpu_why.code == 0 && f.gpu_state == 0 && f.host_param == 0);
    assert_int_equal(f.later_host_state, 10 * m.params);
    assert_int_equal(f.kernel_bytes, (2 * 12 + 4) * m.params); /* both ways through host memory */
    tiers(&node, m.params * 4); /* one unit of memory more than the state, at most */
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
    assert_int_equal(f.gpu_state, 10 * m.params);
    assert_int_equal(f.host_state, 10 * m.params);
    assert_int_equal(f.later_host_state, 0);
    assert_int_equal(f.later_nvme_state, 10 * m.params);
    assert_int_equal(f.host_used - f.later_host_used, 10 * m.params);
    assert_int_equal(f.kernel_bytes, 4 * m.params); /* gradients */
    node.gpu_tiers[2] = m.params * 2 / 4 - 1;
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
    assert_int_equal(f.gpu_why.code, -ENOSPC);
    assert_non_null(strstr(f.gpu_why.text, "of gpu2"));
    assert_true(f.fits && f.gpu_params == 0 && f.host_param == 2 * m.params);
    run.computes_on = false;
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
    assert_non_null(strstr(f.gpu_why.text, "compute on the processor"));
    zb_model_done(&m);
}

/* Nothing is offloaded: a rank has its slices itself, and the daemon nothing. Whole planes contain
 * the slice. */
static void nothing_is_offloaded(void **state)
{
    struct zb_model m = { 0 };
    struct zb_node node = { .page_elems = ZB_PAGE_ELEMS_DEFAULT };

    (void)state;
    assert_int_equal(zb_model_params(&m, 64 * 16 * ZB_BLOCK_ELEMS, 4, NULL), 0);
    for (size_t i = 0; i < ZB_COUNT(fields); i++) {
        struct zb_run run = { .model = &m,
                              .mode = fields[i].mode,
                              .ranks = fields[i].ranks,
                              .nodes = fields[i].nodes,
                              .layout = bf16(),
                              .micro_steps = 1 };
        static const double bytes[ZB_PLANES] = { 2, 4, 10 };
        struct zb_forecast f;
        uint64_t need;

        node.gpu_bytes = 0;
        assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
        assert_true(f.fits);
        need = f.gather_bytes + f.grad_bytes;
        for (enum zb_plane p = 0; p < ZB_PLANES; p++) {
            double all = bytes[p] * (double)m.params;
            uint32_t world = zb_mode_world(run.mode, run.ranks, run.nodes);

            NEAR(f.own[p], zb_mode_cuts(run.mode, p) ? all / world : all);
            assert_int_equal(f.kept[p], 0);
            need += f.own[p];
        }
        NEAR(f.field, fields[i].field / 1e9 * (double)m.params);
        assert_int_equal(f.host_used + f.nvme_used + f.step_read + f.kernel_bytes, 0);
        node.gpu_bytes = need;
        assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
        assert_true(f.fits);
        node.gpu_bytes = need - 1;
        assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
        assert_false(f.fits);
        assert_int_equal(f.why.code, -ENOSPC);
    }
    zb_model_done(&m);
}

/* ---- the engine's buffers of gathered units, compared with measurements of zgpt */

static const struct {
    uint64_t layers, width;
    enum zb_dtype dtype;
    uint32_t ranks;
    uint64_t bytes;
} engines[] = {
    { 4, 128, ZB_F32, 1, 0 },
    { 4, 128, ZB_F32, 2, 1835008 },
    { 4, 128, ZB_BF16, 2, 917504 },
    { 6, 192, ZB_BF16, 3, 1966080 },
};

static void engine_buffers(void **state)
{
    struct zb_node node = { .host_bytes = ZB_GIB, .page_elems = ZB_PAGE_ELEMS_DEFAULT };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(engines); i++) {
        struct zb_gpt shape = { engines[i].layers, engines[i].width, 256, 16, false };
        struct zb_model m = { 0 };
        struct zb_run run = { .model = &m,
                              .mode = ZB_ZERO3,
                              .ranks = engines[i].ranks,
                              .nodes = 1,
                              .param = ZB_OFFLOAD_HOST,
                              .optimizer = ZB_OFFLOAD_HOST,
                              .micro_steps = 1,
                              .prefetch_units = 1 };
        struct zb_forecast f;

        assert_int_equal(zb_layout_of(engines[i].dtype, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, false,
                                      &run.layout, NULL),
                         0);
        assert_int_equal(zb_model_gpt(&m, &shape, NULL), 0);
        assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
        assert_int_equal(f.gather_bytes, engines[i].bytes);
        zb_model_done(&m);
    }
}

/* ---- time */

static const struct {
    const char *name;
    double read, write, memory;
    uint32_t cores;
    double drive, kernel, step;
    enum zb_bound bound;
} times[] = {
    { "nothing is known", 0, 0, 0, 0, 0, 0, 0, ZB_BOUND_UNKNOWN },
    { "writing is slower", 2e9, 1e9, 1e12, 0, 1.5, 0.0028, 1.5, ZB_BOUND_WRITE },
    { "reading is", 1e9, 2e9, 1e12, 0, 1.5, 0.0028, 1.5, ZB_BOUND_READ },
    { "memory is slow", 1e12, 1e12, 1e9, 0, 0.002, 2.8, 2.8, ZB_BOUND_KERNEL },
    { "checksums by one core", 1e12, 1e12, 1e12, 1, 0.002, 0.0028 + 0.2, 0.2028, ZB_BOUND_CRC },
    { "only reading is known", 1e9, 0, 1e9, 0, 0, 0, 0, ZB_BOUND_UNKNOWN },
};

static void time_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(times); i++) {
        struct zb_forecast f = { .step_read = 1000000000,
                                 .step_written = 1000000000,
                                 .kernel_bytes = 2800000000,
                                 .crc_bytes = 2000000000 };
        struct zb_node node = { .drive_read = times[i].read,
                                .drive_write = times[i].write,
                                .memory = times[i].memory,
                                .cores = times[i].cores };

        print_message("%s\n", times[i].name);
        zb_forecast_time(&node, &f);
        NEAR(f.drive_seconds, times[i].drive);
        NEAR(f.kernel_seconds, times[i].kernel);
        NEAR(f.step_seconds, times[i].step);
        assert_int_equal(f.bound, times[i].bound);
    }
}

/* The number of tokens that hide the drive, with 20 bytes a parameter, whatever the size of the
 * model; wear with a given step time, and with the optimizer's alone. */
static void tokens_and_wear(void **state)
{
    struct zb_model m = { 0 };
    struct zb_node node = { .nvme_bytes = UINT64_C(1) << 40,
                            .page_elems = 65536,
                            .drive_read = 2e9,
                            .drive_write = 2e9,
                            .endurance = 1e15 };
    struct zb_run run = { .model = &m,
                          .mode = ZB_ZERO3,
                          .ranks = 4,
                          .nodes = 1,
                          .layout = bf16(),
                          .param = ZB_OFFLOAD_HOST,
                          .optimizer = ZB_OFFLOAD_NVME,
                          .micro_steps = 1,
                          .flops = 1e14 };
    struct zb_forecast f;

    (void)state;
    assert_int_equal(zb_model_params(&m, 4096 * ZB_BLOCK_ELEMS, 8, NULL), 0);
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
    node.host_bytes = f.host_least;
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
    assert_true(f.fits);
    assert_int_equal(f.step_read + f.step_written, 20 * m.params);
    NEAR(f.hide_tokens, 20 * 4 * 1e14 / (8 * 2e9));
    NEAR(f.written_day, 86400 * 1e9); /* half of what the drive can write */
    NEAR(f.endurance_years, 1e15 / (86400 * 1e9) / 365);
    run.seconds = 100 * f.step_seconds;
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
    NEAR(f.written_day, 864 * 1e9);
    run.durable = true; /* each commit writes resident data, too: parameters */
    run.commit_every = 4;
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
    assert_int_equal(f.commit_written, 2 * m.params);
    NEAR(f.commit_share, 0.25);
    assert_int_equal(f.nvme_used - f.nvme_param - f.nvme_state, f.nvme_spare);
    assert_true(f.nvme_spare >= f.nvme_param + f.nvme_state);
    zb_model_done(&m);
}

/* Each of several drives has its part of the pages, whole ones, and the head of a data file. */
static void drives_of_a_node(void **state)
{
    struct zb_model m = { 0 };
    struct zb_node node = { .nvme_bytes = ZB_GIB, .page_elems = 65536 };
    struct zb_run run = { .model = &m,
                          .mode = ZB_ZERO3,
                          .ranks = 1,
                          .nodes = 1,
                          .layout = bf16(),
                          .param = ZB_OFFLOAD_HOST,
                          .optimizer = ZB_OFFLOAD_NVME,
                          .micro_steps = 1 };
    uint64_t page = 65536 * UINT64_C(10);
    struct zb_forecast one, f;

    (void)state;
    assert_int_equal(zb_model_params(&m, 4096 * ZB_BLOCK_ELEMS, 8, NULL), 0); /* 256 pages */
    assert_int_equal(zb_forecast(&run, &node, &one, NULL), 0);
    node.host_bytes = one.host_least;
    assert_int_equal(zb_forecast(&run, &node, &one, NULL), 0);
    assert_int_equal(one.nvme_state, 256 * page);
    assert_int_equal(one.nvme_least, ZB_DATA_START + one.nvme_used);
    for (node.drives = 1; node.drives <= 8; node.drives++) {
        uint64_t pages = one.nvme_used / page;

        assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
        assert_int_equal(f.nvme_used, one.nvme_used);
        assert_int_equal(f.nvme_least,
                         ZB_DATA_START + (pages + node.drives - 1) / node.drives * page);
    }
    zb_model_done(&m);
}

/* Early steps need a second place for each streamed page; without room for these, a job works
 * without them. */
static void early_steps(void **state)
{
    struct zb_model m = { 0 };
    struct zb_node node = { .nvme_bytes = ZB_GIB, .page_elems = 65536 };
    struct zb_run run = { .model = &m,
                          .mode = ZB_ZERO3,
                          .ranks = 1,
                          .nodes = 1,
                          .layout = bf16(),
                          .param = ZB_OFFLOAD_HOST,
                          .optimizer = ZB_OFFLOAD_NVME,
                          .micro_steps = 1 };
    struct zb_forecast plain, early;

    (void)state;
    assert_int_equal(zb_model_params(&m, 4096 * ZB_BLOCK_ELEMS, 8, NULL), 0);
    assert_int_equal(zb_forecast(&run, &node, &plain, NULL), 0);
    node.host_bytes = plain.host_least;
    assert_int_equal(zb_forecast(&run, &node, &plain, NULL), 0);
    assert_true(plain.fits && !plain.early);
    run.early = true;
    assert_int_equal(zb_forecast(&run, &node, &early, NULL), 0);
    assert_true(early.fits && early.early);
    assert_int_equal(early.nvme_spare, early.nvme_state);
    assert_true(plain.nvme_spare > 0 && plain.nvme_spare < early.nvme_spare);
    run.grad_ring = true;
    assert_int_equal(zb_forecast(&run, &node, &early, NULL), 0);
    assert_true(early.grads_aside > 0 && early.grads_ringed > 0);
    assert_true(early.host_state > plain.host_state && early.host_grad < plain.host_grad);
    assert_true(early.host_used <= node.host_bytes && early.step_read < plain.step_read);
    assert_int_equal(early.host_grad + early.grads_ringed - early.grads_aside, plain.host_grad);
    run.micro_steps = 2;
    assert_int_equal(zb_forecast(&run, &node, &early, NULL), -EINVAL);
    run.micro_steps = 1;
    run.grad_ring = false;
    assert_int_equal(zb_forecast(&run, &node, &early, NULL), 0);
    node.nvme_bytes = early.nvme_used - ZB_PAGE_ALIGN;
    assert_int_equal(zb_forecast(&run, &node, &early, NULL), 0);
    assert_true(early.fits && !early.early);
    assert_int_equal(early.nvme_used, plain.nvme_used);
    zb_model_done(&m);
}

static void what_makes_no_sense(void **state)
{
    struct zb_model m = { 0 };
    struct zb_node node = { .page_elems = 4096 };
    struct zb_run run = { .model = &m,
                          .mode = ZB_ZERO3,
                          .ranks = 6,
                          .nodes = 4,
                          .optimizer = ZB_OFFLOAD_HOST,
                          .micro_steps = 1 };
    struct zb_gpt shape = { .layers = 0, .width = 1, .vocab = 1, .seq = 1 };
    struct zb_forecast f;

    (void)state;
    assert_int_equal(zb_model_params(&m, 3, 4, NULL), -EINVAL);
    assert_int_equal(zb_model_add(&m, 0, NULL), -EINVAL);
    assert_int_equal(zb_model_order(&m, NULL), -EINVAL);
    assert_int_equal(zb_model_gpt(&m, &shape, NULL), -EINVAL);
    assert_int_equal(zb_model_params(&m, 4096, 1, NULL), 0);
    run.layout = bf16();
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), -EINVAL); /* 6 ranks on 4 nodes */
    run.nodes = 3;
    node.page_elems = 5000;
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), -EINVAL);
    node.page_elems = 4096;
    assert_int_equal(zb_forecast(&run, &node, &f, NULL), 0);
    assert_false(f.fits);
    assert_int_equal(f.why.code, -ENOSPC);
    zb_model_done(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modes),
        cmocka_unit_test(gathers),
        cmocka_unit_test(spilled_gradients),
        cmocka_unit_test(state_on_the_gpu),
        cmocka_unit_test(state_on_several_gpus),
        cmocka_unit_test(parameters_on_gpus),
        cmocka_unit_test(nothing_is_offloaded),
        cmocka_unit_test(engine_buffers),
        cmocka_unit_test(time_table),
        cmocka_unit_test(tokens_and_wear),
        cmocka_unit_test(drives_of_a_node),
        cmocka_unit_test(early_steps),
        cmocka_unit_test(what_makes_no_sense),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
