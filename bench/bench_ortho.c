/*
 * bench_ortho.c - `zbench ortho`: a matrix orthogonalized on a GPU, with its copies up and down.
 *
 * MODEL. The matrix is in pinned host memory, as the daemon has it. A slice orthogonalizes it once. Three products
 * of each iteration are counted in full, 2 n^2 (2 m + n) operations. In fp32 the reference is a thread of the
 * processor, for rows that it can do in a reasonable time; with bf16 it is fp32 on the same GPU.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/util.h"
#include "bench/device.h"
#include "bench/turns.h"
#include "kernels/gpu_ortho.h"

struct ortho_bench {
    struct zbench *z;
    const char *device, *only;
    uint64_t rows, cols;
    unsigned rounds;

    const struct zk_ops *ops;
    struct zk_gpu *gpu;
    struct zk_gpu_stream *stream;
    struct zk_gpu_ortho *ortho;
    float *matrix; /* pinned, if it can be */
    void *scratch; /* of the processor; NULL: not needed */
    bool pinned, bf16;
};

static double ortho_flops(const struct ortho_bench *b)
{
    double n = (double)zb_min_u64(b->rows, b->cols), m = (double)zb_max_u64(b->rows, b->cols);

    return ZK_ORTHO_ITERATIONS * 2 * n * n * (2 * m + n);
}

static void matrix_fill(const struct ortho_bench *b)
{
    uint32_t x = 1;

    for (uint64_t i = 0; i < b->rows * b->cols; i++) {
        x = x * 1664525u + 1013904223u;
        b->matrix[i] = (float)(x >> 8) * 0x1p-23f - 1.0f;
    }
}

/* TFLOP/s. With bf16 the reference is fp32 on the GPU, else the processor. */
static int ortho_slice(void *bench, unsigned who, double *ret)
{
    struct ortho_bench *b = bench;
    struct zk_ortho_how how = zk_ortho_muon;
    uint64_t begin_ns;
    int rc = 0;

    how.bf16 = b->bf16 && who == 0;
    matrix_fill(b);
    begin_ns = zb_now_ns();
    if (who == 1 && !b->bf16)
        zk_ortho(b->ops, &how, b->matrix, b->rows, b->cols, b->scratch);
    else
        rc = zk_gpu_ortho(b->ortho, &how, b->matrix, b->rows, b->cols, &b->z->err);
    *ret = ortho_flops(b) / (double)(zb_now_ns() - begin_ns) / 1e3;
    return rc;
}

static int ortho_case(struct ortho_bench *b, const char *dtype, bool bf16)
{
    const struct zbench_row row = zbench_row(
        "TFLOP/s", false, bf16 ? "fp32 on the GPU" : "a thread of the processor",
        "ortho/%s/%llux%llu", dtype, (unsigned long long)b->rows, (unsigned long long)b->cols);
    struct zbench_series warm;
    int rc;

    if (!zbench_wants(b->only, dtype))
        return 0;
    b->bf16 = bf16;
    rc = zbench_turns(&warm, "A", 1, 1, ortho_slice, b);
    return rc < 0 ? rc : zbench_compare(b->z, &row, "ABBA", b->rounds, ortho_slice, b);
}

static int ortho_open(struct ortho_bench *b)
{
    uint64_t bytes = zb_round_up(zb_matrix_bytes(b->rows * b->cols), ZB_PAGE_ALIGN);
    struct zb_err *err = &b->z->err;
    int rc = zbench_device_open(b->z, b->device, &b->gpu, &b->stream);

    if (rc == 0)
        rc = zk_select(NULL, &b->ops, err);
    if (rc == 0)
        rc = zk_gpu_ortho_open(b->gpu, zb_ortho_gpu_bytes(b->rows, b->cols, true), 0, &b->ortho,
                               err);
    if (rc < 0)
        return rc;
    b->matrix = aligned_alloc(ZB_PAGE_ALIGN, bytes);
    b->scratch =
        aligned_alloc(ZB_PAGE_ALIGN, zb_round_up(zb_ortho_bytes(b->rows, b->cols), ZB_PAGE_ALIGN));
    if (!b->matrix || !b->scratch)
        return zb_fail(err, -ENOMEM, "a matrix of %llu x %llu: %m", (unsigned long long)b->rows,
                       (unsigned long long)b->cols);
    b->pinned = zk_gpu_pin(b->gpu, b->matrix, bytes, false, NULL) == 0;
    if (!b->pinned)
        zbench_note(b->z, "the matrix is not pinned");
    return 0;
}

static void ortho_close(struct ortho_bench *b)
{
    zk_gpu_ortho_close(b->ortho);
    if (b->pinned)
        (void)zk_gpu_unpin(b->gpu, b->matrix, NULL);
    free(b->matrix);
    free(b->scratch);
    zk_gpu_stream_free(b->stream);
    zk_gpu_close(b->gpu);
}

static int ortho_main(struct zbench *z, void *bench)
{
    struct ortho_bench *b = bench;
    int rc;

    b->z = z;
    zk_thread_init();
    rc = ortho_open(b);
    if (rc == 0)
        rc = ortho_case(b, "fp32", false);
    if (rc == 0)
        rc = ortho_case(b, "bf16", true);
    ortho_close(b);
    return rc;
}

static const struct zb_opt ortho_options[] = {
    { "device", ZB_OPT_TEXT, ZB_OPT_AT(struct ortho_bench, device), .arg = "NAME", .def = "cuda" },
    { "rows", ZB_OPT_SIZE, ZB_OPT_AT(struct ortho_bench, rows), .arg = "N", .def = "2K", .min = 1,
      .max = 65536 },
    { "cols", ZB_OPT_SIZE, ZB_OPT_AT(struct ortho_bench, cols), .arg = "N", .def = "2K", .min = 1,
      .max = 65536 },
    ZBENCH_ROUNDS(struct ortho_bench, "5"),
    ZBENCH_ONLY(struct ortho_bench, "bf16"),
    { 0 },
};

const struct zbench_cmd zbench_ortho = {
    .name = "ortho",
    .help = "matrices orthogonalized on a GPU, against a thread of the processor",
    .options = ortho_options,
    .bytes = sizeof(struct ortho_bench),
    .run = ortho_main,
};
