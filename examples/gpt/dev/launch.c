/*
 * launch.c - the parts of a block as launches: one product, or one kernel.
 */
#include "examples/gpt/dev/run_priv.h"

/* ---- products */

void gpt_dev_linear(struct gpt_dev_run *run, const void *x, const void *w, const void *b, void *y,
                    uint64_t in, uint64_t out)
{
    gpt_dev_matmul(run->dev, &(struct gpt_matmul){ .a = { .at = x, .ld = in },
                                                   .b = { .at = w, .ld = out },
                                                   .d = { .at = y, .ld = out },
                                                   .bias = b,
                                                   .dtype = run->dtype,
                                                   .d_dtype = run->dtype,
                                                   .alpha = 1.0f,
                                                   .m = (uint32_t)run->rows,
                                                   .n = (uint32_t)out,
                                                   .k = (uint32_t)in,
                                                   .batch = 1 });
}

void gpt_dev_weights_back(struct gpt_dev_run *run, const void *x, const void *dy, float *dw,
                          uint64_t in, uint64_t out)
{
    if (!dw)
        return;
    gpt_dev_matmul(run->dev, &(struct gpt_matmul){ .a = { .at = x, .ld = in, .t = true },
                                                   .b = { .at = dy, .ld = out },
                                                   .d = { .at = dw, .ld = out },
                                                   .dtype = run->dtype,
                                                   .d_dtype = GPT_DEV_F32,
                                                   .alpha = 1.0f,
                                                   .beta = 1.0f,
                                                   .m = (uint32_t)in,
                                                   .n = (uint32_t)out,
                                                   .k = (uint32_t)run->rows,
                                                   .batch = 1 });
}

void gpt_dev_inputs_back(struct gpt_dev_run *run, const void *dy, const void *w, void *dx,
                         uint64_t in, uint64_t out)
{
    gpt_dev_matmul(run->dev, &(struct gpt_matmul){ .a = { .at = dy, .ld = out },
                                                   .b = { .at = w, .ld = out, .t = true },
                                                   .d = { .at = dx, .ld = in },
                                                   .dtype = run->dtype,
                                                   .d_dtype = run->dtype,
                                                   .alpha = 1.0f,
                                                   .m = (uint32_t)run->rows,
                                                   .n = (uint32_t)in,
                                                   .k = (uint32_t)out,
                                                   .batch = 1 });
}

/* ---- kernels */

void gpt_dev_norm(struct gpt_dev_run *run, const float *x, const void *w, const void *b, void *y,
                  float *mean, float *rstd)
{
    gpt_dev_kernel(run->dev, &(struct gpt_kern){ .op = GPT_KERN_NORM,
                                                 .dtype = run->dtype,
                                                 .norm = { .x = x,
                                                           .w = w,
                                                           .b = b,
                                                           .y = y,
                                                           .mean = mean,
                                                           .rstd = rstd,
                                                           .rows = run->rows,
                                                           .cols = run->model->shape.width } });
}

static void cols_end(struct gpt_dev_run *run, const float *part, float *to, uint64_t cols)
{
    gpt_dev_kernel(run->dev,
                   &(struct gpt_kern){ .op = GPT_KERN_COLS_END,
                                       .cols_end = { .part = part, .to = to, .cols = cols } });
}

void gpt_dev_bias_back(struct gpt_dev_run *run, enum gpt_dtype_dev dtype, const void *dy, float *db,
                       uint64_t cols)
{
    if (!db)
        return;
    gpt_dev_kernel(run->dev,
                   &(struct gpt_kern){
                       .op = GPT_KERN_COLS,
                       .dtype = dtype,
                       .cols = { .y = dy, .part = run->part, .rows = run->rows, .cols = cols } });
    cols_end(run, run->part, db, cols);
}

/* The gradients of a layer norm's w and b. */
static void norm_weights_back(struct gpt_dev_run *run, const float *x, const float *mean,
                              const float *rstd, const void *dy, float *dw, float *db)
{
    uint64_t cols = run->model->shape.width;

    gpt_dev_kernel(run->dev, &(struct gpt_kern){ .op = GPT_KERN_COLS,
                                                 .dtype = run->dtype,
                                                 .cols = { .y = dy,
                                                           .x = x,
                                                           .mean = mean,
                                                           .rstd = rstd,
                                                           .part = run->part,
                                                           .part_x = run->part_x,
                                                           .rows = run->rows,
                                                           .cols = cols } });
    cols_end(run, run->part_x, dw, cols);
    cols_end(run, run->part, db, cols);
}

void gpt_dev_norm_back(struct gpt_dev_run *run, const float *x, const void *w, const float *mean,
                       const float *rstd, const void *dy, float *dw, float *db)
{
    uint64_t cols = run->model->shape.width;

    if (dw)
        norm_weights_back(run, x, mean, rstd, dy, dw, db);
    gpt_dev_kernel(run->dev, &(struct gpt_kern){ .op = GPT_KERN_NORM_BACK,
                                                 .dtype = run->dtype,
                                                 .norm_back = { .x = x,
                                                                .w = w,
                                                                .mean = mean,
                                                                .rstd = rstd,
                                                                .dy = dy,
                                                                .dx = run->now->dx,
                                                                .rows = run->rows,
                                                                .cols = cols } });
}

void gpt_dev_residual(struct gpt_dev_run *run, const float *x, const void *y, const void *b,
                      float *to)
{
    gpt_dev_kernel(run->dev, &(struct gpt_kern){ .op = GPT_KERN_RESIDUAL,
                                                 .dtype = run->dtype,
                                                 .residual = { .x = x,
                                                               .y = y,
                                                               .b = b,
                                                               .to = to,
                                                               .rows = run->rows,
                                                               .cols = run->model->shape.width } });
}

const void *gpt_dev_dx_round(struct gpt_dev_run *run)
{
    if (run->dtype == GPT_DEV_F32)
        return run->now->dx;
    gpt_dev_round(run->dev, run->now->dx, run->dy, run->dtype, run->rows * run->model->shape.width);
    return run->dy;
}
