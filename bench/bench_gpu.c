/*
 * bench_gpu.c - `zbench gpu`: the kernels of a GPU, against its own copies from device memory to
 * device memory.
 *
 * MODEL. Each case is one work (kernels/gpu.h) over --elems elements in device memory, launched
 * SLICE_WORKS times and waited for. The reference is as many copies within the device, timed in the
 * same way; slices of both alternate (A B B A). Both count the bytes that must cross the memory
 * bus, each byte read and each byte written: a copy of n bytes counts 2 n, and a work counts as
 * many as follow from its arrays and its layout. So a kernel that is bound by memory, and moves
 * nothing twice, reaches 1.
 *
 * VALUES. All memory is filled with bytes of 0x3c, which are about 0.01 or 1 in every dtype. The
 * work of a kernel does not depend on values, but a step changes its state at each launch, and the
 * state must stay finite.
 */
#include <string.h>

#include "base/plan.h"
#include "base/util.h"
#include "bench/device.h"
#include "bench/turns.h"

#define GPU_ELEMS   "256M" /* one work takes 0.2 ms at least, a call 5 us */
#define SLICE_WORKS 8u
#define BYTE        0x3c

enum { AT_FROM, AT_TO, AT_SIDE, AT_NORMS, AT_PLACES };

static const struct gpu_case {
    const char *name;
    enum zk_gpu_op op;
    enum zb_dtype from, to;      /* of a step: gradients, parameters */
    enum zb_optimizer optimizer; /* likewise */
    enum zb_moments moments;
    bool add;
} cases[] = {
    { "step/adamw-bf16", ZK_GPU_STEP, ZB_BF16, ZB_BF16, ZB_ADAMW, ZB_MOMENTS_F32, false },
    { "step/adamw-fp32", ZK_GPU_STEP, ZB_F32, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, false },
    { "step/adamw-fp16", ZK_GPU_STEP, ZB_F16, ZB_F16, ZB_ADAMW, ZB_MOMENTS_F32, false },
    { "step/adamw-bf16-moments-bf16", ZK_GPU_STEP, ZB_BF16, ZB_BF16, ZB_ADAMW, ZB_MOMENTS_BF16,
      false },
    { "step/adamw-bf16-moments-8bit", ZK_GPU_STEP, ZB_BF16, ZB_BF16, ZB_ADAMW, ZB_MOMENTS_Q8,
      false },
    { "step/adam-bf16", ZK_GPU_STEP, ZB_BF16, ZB_BF16, ZB_ADAM, ZB_MOMENTS_F32, false },
    { "step/lion-bf16", ZK_GPU_STEP, ZB_BF16, ZB_BF16, ZB_LION, ZB_MOMENTS_F32, false },
    { "step/sgd-bf16", ZK_GPU_STEP, ZB_BF16, ZB_BF16, ZB_SGD, ZB_MOMENTS_F32, false },
    { "step/adagrad-bf16", ZK_GPU_STEP, ZB_BF16, ZB_BF16, ZB_ADAGRAD, ZB_MOMENTS_F32, false },
    { "ingest/set-bf16", ZK_GPU_INGEST, ZB_BF16, ZB_BF16, ZB_ADAMW, ZB_MOMENTS_F32, false },
    { "ingest/add-bf16-to-fp32", ZK_GPU_INGEST, ZB_BF16, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, true },
    { "cast/fp32-to-bf16", ZK_GPU_CAST, ZB_F32, ZB_BF16, 0, 0, false },
    { "cast/bf16-to-fp32", ZK_GPU_CAST, ZB_BF16, ZB_F32, 0, 0, false },
    { "split", ZK_GPU_SPLIT, ZB_F32, ZB_BF16, 0, 0, false },
    { "merge", ZK_GPU_MERGE, ZB_BF16, ZB_F32, 0, 0, false },
    { "add/bf16-to-fp32", ZK_GPU_ADD, ZB_BF16, ZB_F32, 0, 0, false },
    { "norm/bf16", ZK_GPU_NORM, ZB_BF16, 0, 0, 0, false },
    { "norm/fp32", ZK_GPU_NORM, ZB_F32, 0, 0, 0, false },
    { "quantize/bf16-to-int8", ZK_GPU_QUANTIZE_I8, ZB_BF16, 0, 0, 0, false },
    { "dequantize/int8-to-bf16", ZK_GPU_DEQUANTIZE_I8, 0, ZB_BF16, 0, 0, false },
};

struct gpu_bench {
    struct zbench *z;
    const char *device, *only;
    uint64_t elems;
    unsigned rounds;

    struct zk_gpu *gpu;
    struct zk_gpu_stream *stream;
    struct zk_gpu_mem *mem[AT_PLACES];
    struct zk_gpu_mem *tables; /* a segment, and scalars */

    const struct zk_gpu_work *work; /* of the case; NULL: copies against themselves, the control */
    double work_bytes;
};

static void *gpu_at(const struct gpu_bench *b, unsigned place)
{
    return zk_gpu_addr(b->mem[place]);
}

/* ---- works */

static int gpu_step(struct gpu_bench *b, const struct gpu_case *c, struct zk_gpu_work *ret,
                    double *ret_bytes)
{
    static const struct zk_params params = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .scale = 1, .momentum = 0.9
    };
    struct zk_gpu_step *w = &ret->step;
    struct {
        struct zk_segment segment;
        struct zk_scalars scalars;
    } tables = { .segment = { .count = b->elems },
                 .scalars = zk_prepare(c->optimizer, &params, 2) };
    char *at = zk_gpu_addr(b->tables);
    int rc = zb_layout_of(c->to, c->from, c->optimizer, c->moments, false, &w->layout, &b->z->err);

    if (rc < 0)
        return rc;
    w->page = (struct zk_page){ .param = gpu_at(b, AT_TO),
                                .state = gpu_at(b, AT_SIDE),
                                .grad = gpu_at(b, AT_FROM),
                                .count = b->elems };
    w->segments = (const void *)(at + offsetof(typeof(tables), segment));
    w->by_group = (const void *)(at + offsetof(typeof(tables), scalars));
    w->nsegments = w->ngroups = 1;
    *ret_bytes = (2.0 * w->layout.block_bytes[ZB_PARAM] + 2.0 * w->layout.block_bytes[ZB_STATE] +
                  w->layout.block_bytes[ZB_GRAD]) *
                 (double)b->elems / ZB_BLOCK_ELEMS;
    rc = zk_gpu_copy(b->stream, ZK_GPU_TO_DEVICE, at, &tables, sizeof(tables), &b->z->err);
    return rc < 0 ? rc : zk_gpu_stream_sync(b->stream, &b->z->err);
}

static int gpu_ingest(struct gpu_bench *b, const struct gpu_case *c, struct zk_gpu_work *ret,
                      double *ret_bytes)
{
    struct zk_gpu_ingest *w = &ret->ingest;

    w->page = (struct zk_page){ .grad = gpu_at(b, AT_TO), .count = b->elems };
    w->from = gpu_at(b, AT_FROM);
    w->from_dtype = c->from;
    w->add = c->add;
    w->norms = gpu_at(b, AT_NORMS);
    *ret_bytes = (double)(zb_dtype_bytes(c->from) + (c->add ? 2 : 1) * zb_dtype_bytes(c->to)) *
                 (double)b->elems;
    return zb_layout_of(ZB_BF16, c->to, c->optimizer, c->moments, false, &w->layout, &b->z->err);
}

/* Bytes that a work on arrays reads and writes per element. */
static double array_bytes(const struct gpu_case *c)
{
    double from = (double)zb_dtype_bytes(c->from), to = (double)zb_dtype_bytes(c->to);
    double scale = sizeof(float) / (double)ZB_Q8_GROUP;

    switch (c->op) {
    case ZK_GPU_SPLIT:
    case ZK_GPU_MERGE:
        return from + to + 2;
    case ZK_GPU_ADD:
        return from + 2 * to;
    case ZK_GPU_NORM:
        return from;
    case ZK_GPU_QUANTIZE_I8:
        return from + 1 + scale;
    case ZK_GPU_DEQUANTIZE_I8:
        return 1 + scale + to;
    default:
        return from + to;
    }
}

static int gpu_work(struct gpu_bench *b, const struct gpu_case *c, struct zk_gpu_work *ret,
                    double *ret_bytes)
{
    memset(ret, 0, sizeof(*ret));
    ret->op = c->op;
    if (c->op == ZK_GPU_STEP)
        return gpu_step(b, c, ret, ret_bytes);
    if (c->op == ZK_GPU_INGEST)
        return gpu_ingest(b, c, ret, ret_bytes);
    ret->array = (struct zk_gpu_array){ .from = gpu_at(b, AT_FROM),
                                        .to = gpu_at(b, AT_TO),
                                        .side = gpu_at(b, AT_SIDE),
                                        .norms = gpu_at(b, AT_NORMS),
                                        .n = b->elems,
                                        .from_dtype = c->from,
                                        .to_dtype = c->to };
    *ret_bytes = array_bytes(c) * (double)b->elems;
    return 0;
}

/* ---- slices: GB/s */

static int slice_works(struct gpu_bench *b, double *ret)
{
    uint64_t begin_ns = zb_now_ns();
    int rc = 0;

    for (unsigned i = 0; i < SLICE_WORKS && rc == 0; i++)
        rc = zk_gpu_launch(b->stream, b->work, &b->z->err);
    if (rc == 0)
        rc = zk_gpu_stream_sync(b->stream, &b->z->err);
    *ret = SLICE_WORKS * b->work_bytes / (double)(zb_now_ns() - begin_ns);
    return rc;
}

static int slice_copies(struct gpu_bench *b, double *ret)
{
    uint64_t bytes = b->elems * sizeof(float), begin_ns = zb_now_ns();
    int rc = 0;

    for (unsigned i = 0; i < SLICE_WORKS && rc == 0; i++)
        rc = zk_gpu_copy(b->stream, ZK_GPU_WITHIN, gpu_at(b, AT_TO), gpu_at(b, AT_FROM), bytes,
                         &b->z->err);
    if (rc == 0)
        rc = zk_gpu_stream_sync(b->stream, &b->z->err);
    *ret = SLICE_WORKS * 2 * (double)bytes / (double)(zb_now_ns() - begin_ns);
    return rc;
}

static int gpu_slice(void *bench, unsigned who, double *ret)
{
    struct gpu_bench *b = bench;

    return who == 0 && b->work ? slice_works(b, ret) : slice_copies(b, ret);
}

static int gpu_rounds(struct gpu_bench *b, const char *name, const struct zk_gpu_work *work,
                      double bytes)
{
    const struct zbench_row row =
        zbench_row("GB/s", false, "copy within the device", "gpu/%s/copy", name);
    struct zbench_series warm;
    int rc;

    b->work = work;
    b->work_bytes = bytes;
    rc = zbench_turns(&warm, "ABBA", 1, 1, gpu_slice, b);
    return rc < 0 ? rc : zbench_compare(b->z, &row, "ABBA", b->rounds, gpu_slice, b);
}

static int gpu_fill(struct gpu_bench *b)
{
    int rc = 0;

    for (unsigned i = 0; i < AT_PLACES && rc == 0; i++)
        rc = zk_gpu_fill(b->stream, gpu_at(b, i), BYTE, zk_gpu_len(b->mem[i]), &b->z->err);
    return rc;
}

static int gpu_case(struct gpu_bench *b, const struct gpu_case *c)
{
    struct zk_gpu_work w;
    double bytes = 0;
    int rc = gpu_fill(b);

    if (rc == 0)
        rc = gpu_work(b, c, &w, &bytes);
    return rc < 0 ? rc : gpu_rounds(b, c->name, &w, bytes);
}

/* ---- begin and end */

static int gpu_open(struct gpu_bench *b)
{
    const uint64_t bytes[AT_PLACES] = {
        [AT_FROM] = b->elems * sizeof(float),
        [AT_TO] = b->elems * sizeof(float),
        [AT_SIDE] = b->elems * 12, /* the largest state */
        [AT_NORMS] = b->elems / ZB_BLOCK_ELEMS * sizeof(struct zk_gpu_norm),
    };
    struct zb_err *err = &b->z->err;
    int rc = zbench_device_open(b->z, b->device, &b->gpu, &b->stream);

    if (rc == 0)
        zbench_note(b->z, "%.1f million elements", (double)b->elems / 1e6);
    for (unsigned i = 0; i < AT_PLACES && rc == 0; i++)
        rc = zk_gpu_alloc(b->gpu, bytes[i], 0, &b->mem[i], err);
    return rc < 0 ? rc : zk_gpu_alloc(b->gpu, 1, 0, &b->tables, err);
}

static void gpu_close(struct gpu_bench *b)
{
    zk_gpu_stream_free(b->stream); /* waits */
    for (unsigned i = 0; i < AT_PLACES; i++)
        zk_gpu_free(b->mem[i]);
    zk_gpu_free(b->tables);
    zk_gpu_close(b->gpu);
}

static int gpu_main(struct zbench *z, void *bench)
{
    struct gpu_bench *b = bench;
    int rc;

    b->z = z;
    rc = gpu_open(b);
    if (rc == 0)
        rc = gpu_fill(b);
    if (rc == 0)
        rc = gpu_rounds(b, "copy", NULL, 0);
    for (size_t i = 0; i < ZB_COUNT(cases) && rc == 0; i++)
        if (zbench_wants(b->only, cases[i].name))
            rc = gpu_case(b, &cases[i]);
    gpu_close(b);
    return rc;
}

static const struct zb_opt gpu_options[] = {
    { "device", ZB_OPT_TEXT, ZB_OPT_AT(struct gpu_bench, device), .arg = "NAME", .def = "cuda" },
    { "elems", ZB_OPT_SIZE, ZB_OPT_AT(struct gpu_bench, elems), .arg = "N", .def = GPU_ELEMS,
      .min = ZB_BLOCK_ELEMS, .max = UINT64_C(1) << 32, .round = ZB_BLOCK_ELEMS },
    ZBENCH_ROUNDS(struct gpu_bench, "9"),
    ZBENCH_ONLY(struct gpu_bench, "step/adamw"),
    { 0 },
};

const struct zbench_cmd zbench_gpu = {
    .name = "gpu",
    .help = "the kernels of a GPU, against its copies within device memory",
    .options = gpu_options,
    .bytes = sizeof(struct gpu_bench),
    .run = gpu_main,
};
