/*
 * dev_fixture.h - a device for tests of the model, opened as the engine would, with the model's own
 * handle on its stream. The emulated one always opens, CUDA's only where there is one.
 */
#ifndef ZTEST_DEV_FIXTURE_H
#define ZTEST_DEV_FIXTURE_H

#include "tests/ztest.h"

#include <errno.h>

#include "examples/gpt/dev/dev.h"
#include "kernels/gpu.h"

struct fixture {
    const char *name;
    struct zk_gpu *gpu;
    struct zk_gpu_stream *stream;
    struct gpt_dev *dev;
    struct zk_gpu_mem *mem; /* the test's own; NULL */
    size_t used;            /* of that memory */
    uint64_t random;
    struct zb_err err;
};

/* For messages: what failed and why. */
#define good(x, call)                                                               \
    do {                                                                            \
        int good_rc = (call);                                                       \
        if (good_rc != 0)                                                           \
            fail_msg("%s: %s is %d: %s", (x)->name, #call, good_rc, (x)->err.text); \
    } while (0)

/** false: there is no such GPU here; a message says so. */
static inline bool fixture_open(struct fixture *x, const char *name)
{
    struct zb_err err = { 0 };
    int rc;

    *x = (struct fixture){ .name = name };
    rc = zk_gpu_open(name, 0, &x->gpu, &x->err);
    if (rc == -ENODEV && ztest_device_optional(name)) {
        print_message("%s is skipped: %s\n", name, x->err.text);
        return false;
    }
    good(x, rc);
    good(x, zk_gpu_stream_new(x->gpu, &x->stream, &x->err));
    rc = gpt_dev_open(&x->dev, name, zk_gpu_stream_native(x->stream), &err);
    if (rc != 0)
        fail_msg("%s: %s", name, err.text);
    return true;
}

static inline void fixture_close(struct fixture *x)
{
    gpt_dev_close(x->dev); /* waits */
    zk_gpu_free(x->mem);
    zk_gpu_stream_free(x->stream);
    zk_gpu_close(x->gpu);
}

#endif
