/*
 * dev.h - the device that the model computes on: memory, copies, kernels and matrix products. All
 * of them run in the order of the engine's stream (zc_zero_stream()), except copies on a second
 * stream (..._beside()).
 *
 * MODEL. Calls only enqueue work. There are two kinds of devices with the same interface; callers
 * make the same calls in the same order for both:
 *
 *     "cuda[:N]"       kernels of kern.cu, products of cuBLASLt; needs the plugin for CUDA
 *     "emulated[...]"  kernels and products on the processor, in the emulated GPU's stream
 *
 * ERRORS. The first failure is kept: later calls do nothing, and gpt_dev_error() returns it. So
 * passes need not check each call; check once at the end of a pass.
 *
 * THREADS. One at a time.
 */
#ifndef GPT_DEV_H
#define GPT_DEV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "examples/gpt/dev/kern.h"

struct gpt_dev;
struct gpt_matmul;

/** Whether it is a possible name of a device: "cuda[:N]", "emulated[:...]". */
bool gpt_dev_named(const char *name);

/**
 * @param name    zc_zero_device()
 * @param stream  zc_zero_stream(): stays open until gpt_dev_close()
 * @return 0; -ENODEV no such device, no driver, no plugin for CUDA, or no cuBLASLt; -ENOMEM, -EIO
 */
int gpt_dev_open(struct gpt_dev **ret, const char *name, void *stream, struct zb_err *err);
/** Waits for enqueued work, and closes. NULL is allowed. */
void gpt_dev_close(struct gpt_dev *d);

/** 0, or the first failure. */
int gpt_dev_error(const struct gpt_dev *d, struct zb_err *err);

/** Allocates the model's device memory; called once. Returns its address, 256-byte aligned. NULL: a
 * failure, whose message names `what`. */
void *gpt_dev_memory(struct gpt_dev *d, uint64_t bytes, const char *what);
/** Allocates host memory for copies, zeroed and page aligned; called once. Freed by
 * gpt_dev_close(). If the driver can pin it, no call waits for a copy. NULL: a failure. */
void *gpt_dev_host(struct gpt_dev *d, uint64_t bytes);
/** Pins the caller's memory for copies, if the driver can, until gpt_dev_close(). Called once. */
void gpt_dev_pin(struct gpt_dev *d, void *memory, uint64_t bytes);
/** Bytes allocated on the device through this handle. */
uint64_t gpt_dev_allocated(const struct gpt_dev *d);

void gpt_dev_kernel(struct gpt_dev *d, const struct gpt_kern *k);
void gpt_dev_matmul(struct gpt_dev *d, const struct gpt_matmul *mm);
void gpt_dev_zero(struct gpt_dev *d, void *dev, uint64_t bytes);
/** fp32 to bf16 or fp16, ties to even. */
void gpt_dev_round(struct gpt_dev *d, const float *from, void *to, enum gpt_dtype_dev dtype,
                   uint64_t n);
/** Host memory belongs to the copy until a mark set after it is reached. */
void gpt_dev_up(struct gpt_dev *d, void *dev, const void *host, uint64_t bytes);
void gpt_dev_down(struct gpt_dev *d, void *host, const void *dev, uint64_t bytes);

/** Marks are points in the stream: 0 to GPT_DEV_MARKS - 1. */
#define GPT_DEV_MARKS 10u
void gpt_dev_mark(struct gpt_dev *d, unsigned mark);
/** Copies on the second stream, after mark `before`; the end of the copy sets mark `after`. */
void gpt_dev_up_beside(struct gpt_dev *d, void *dev, const void *host, uint64_t bytes,
                       unsigned before, unsigned after);
void gpt_dev_down_beside(struct gpt_dev *d, void *host, const void *dev, uint64_t bytes,
                         unsigned before, unsigned after);
/** Later work of the main stream runs after a mark that the second stream sets. */
void gpt_dev_behind(struct gpt_dev *d, unsigned mark);
/** Whether a mark is reached, or never will be because of a failure. Does not wait. */
bool gpt_dev_reached(struct gpt_dev *d, unsigned mark);

/**
 * Waits until a mark is reached. A mark that was never set counts as reached.
 *
 * @param tick  called repeatedly; false: stop waiting
 * @return false: the tick stopped it, or there is a failure
 */
bool gpt_dev_wait(struct gpt_dev *d, unsigned mark, bool (*tick)(void *arg), void *arg);

#endif
