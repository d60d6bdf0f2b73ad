/*
 * dev.h - the device that the model computes on: memory, copies, kernels and matrix products, all
 * in the order of one stream, which is the engine's (zc_zero_stream()), but for copies beside it.
 *
 * MODEL. Calls only enqueue. There are two devices behind the same functions, and what is above
 * them makes the same calls in the same order for both:
 *
 *     "cuda[:N]"       kernels by kern.cu, products by cuBLASLt, where the plugin for CUDA is
 *     "emulated[...]"  kernels and products of the processor, as works of the emulated GPU's stream
 *
 * ERRORS. The first failure stays: later calls do nothing, and gpt_dev_error() tells it. So passes
 * are written without asking after each call, and whoever ends a pass asks once.
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

/** Whether a device of that name may be: "cuda[:N]", "emulated[:...]". */
bool gpt_dev_named(const char *name);

/**
 * @param name    as the engine was given it
 * @param stream  zc_zero_stream(): stays open until gpt_dev_close()
 * @return 0; -ENODEV no such device, no driver, no plugin for CUDA, or no cuBLASLt; -ENOMEM, -EIO
 */
int gpt_dev_open(struct gpt_dev **ret, const char *name, void *stream, struct zb_err *err);
/** Waits for what is enqueued. NULL is allowed. */
void gpt_dev_close(struct gpt_dev *d);

/** 0, or the first failure. */
int gpt_dev_error(const struct gpt_dev *d, struct zb_err *err);

/** The one piece of memory of the model's own, once: its address, 256-byte aligned. NULL: a
 * failure, which says `what`. */
void *gpt_dev_memory(struct gpt_dev *d, uint64_t bytes, const char *what);
/** The one piece of host memory that copies are made from and to, once; zeroed, page aligned, the
 * device's until gpt_dev_close(). It is pinned where the driver pins it: then no call waits for a
 * copy. NULL: a failure. */
void *gpt_dev_host(struct gpt_dev *d, uint64_t bytes);
/** Memory of somebody else's, which copies are made from and to: pinned until gpt_dev_close(),
 * where the driver does. Once. */
void gpt_dev_pin(struct gpt_dev *d, void *memory, uint64_t bytes);
/** What this side has allocated on the device, in bytes. */
uint64_t gpt_dev_allocated(const struct gpt_dev *d);

void gpt_dev_kernel(struct gpt_dev *d, const struct gpt_kern *k);
void gpt_dev_matmul(struct gpt_dev *d, const struct gpt_matmul *mm);
void gpt_dev_zero(struct gpt_dev *d, void *dev, uint64_t bytes);
/** fp32 to bf16 or fp16, ties to even. */
void gpt_dev_round(struct gpt_dev *d, const float *from, void *to, enum gpt_dtype_dev dtype,
                   uint64_t n);
/** Host memory belongs to the copy until the mark that is set behind it is reached. */
void gpt_dev_up(struct gpt_dev *d, void *dev, const void *host, uint64_t bytes);
void gpt_dev_down(struct gpt_dev *d, void *host, const void *dev, uint64_t bytes);

/** Marks are points in the stream: 0 to GPT_DEV_MARKS - 1. */
#define GPT_DEV_MARKS 10u
void gpt_dev_mark(struct gpt_dev *d, unsigned mark);
/** A copy on a stream of its own, behind mark `before`; it sets mark `after`. */
void gpt_dev_up_beside(struct gpt_dev *d, void *dev, const void *host, uint64_t bytes,
                       unsigned before, unsigned after);
void gpt_dev_down_beside(struct gpt_dev *d, void *host, const void *dev, uint64_t bytes,
                         unsigned before, unsigned after);
/** What is given to the stream from now on is behind a mark that was set beside it. */
void gpt_dev_behind(struct gpt_dev *d, unsigned mark);
/** Whether it is reached, or never will be, for there is a failure. Never waits. */
bool gpt_dev_reached(struct gpt_dev *d, unsigned mark);

/**
 * Waits until a mark is reached; one that was never set is.
 *
 * @param tick  called now and then; false: stop waiting
 * @return false: it did, or there is a failure
 */
bool gpt_dev_wait(struct gpt_dev *d, unsigned mark, bool (*tick)(void *arg), void *arg);

#endif
