/*
 * device_stream.c - streams, events and works of a CUDA GPU.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#include "kernels/cuda/device_priv.h"

/* ---- streams and events */

int zk_cuda_stream_new(struct zk_gpu *g, struct zk_gpu_stream **ret, struct zb_err *err)
{
    struct cuda_stream *s = calloc(1, sizeof(*s));
    int rc = s ? zk_cuda_enter(gpu_of(g), err) : zb_fail(err, -ENOMEM, "a stream: %m");

    if (rc == 0)
        rc = zk_cuda_fail(cudaStreamCreateWithFlags(&s->s, cudaStreamNonBlocking), "a stream", err);
    if (rc < 0) {
        free(s);
        return rc;
    }
    s->base.gpu = g;
    *ret = &s->base;
    return 0;
}

void zk_cuda_stream_free(struct zk_gpu_stream *base)
{
    struct cuda_stream *s = stream_of(base);

    (void)zk_cuda_enter(gpu_of(base->gpu), NULL);
    (void)zk_cuda_fail(cudaStreamSynchronize(s->s), "a stream", NULL);
    if (!s->adopted)
        (void)zk_cuda_fail(cudaStreamDestroy(s->s), "a stream", NULL);
    free(s);
}

int zk_cuda_stream_adopt(struct zk_gpu *g, void *native, struct zk_gpu_stream **ret,
                         struct zb_err *err)
{
    struct cuda_stream *s = calloc(1, sizeof(*s));

    if (!s)
        return zb_fail(err, -ENOMEM, "a stream: %m");
    s->base.gpu = g;
    s->s = native;
    s->adopted = true;
    *ret = &s->base;
    return 0;
}

/* Not ready is not a failure. */
static int ready(cudaError_t e, const char *what, struct zb_err *err)
{
    if (e != cudaErrorNotReady)
        return zk_cuda_fail(e, what, err);
    (void)cudaGetLastError();
    return -EAGAIN;
}

int zk_cuda_stream_sync(struct zk_gpu_stream *s, struct zb_err *err)
{
    int rc = zk_cuda_enter(gpu_of(s->gpu), err);

    return rc < 0 ? rc
                  : zk_cuda_fail(cudaStreamSynchronize(stream_of(s)->s), "works of the GPU", err);
}

void *zk_cuda_stream_native(struct zk_gpu_stream *s)
{
    return stream_of(s)->s;
}

int zk_cuda_event_new(struct zk_gpu *g, struct zk_gpu_event **ret, struct zb_err *err)
{
    struct cuda_event *e = calloc(1, sizeof(*e));
    int rc = e ? zk_cuda_enter(gpu_of(g), err) : zb_fail(err, -ENOMEM, "an event: %m");

    if (rc == 0)
        rc = zk_cuda_fail(cudaEventCreateWithFlags(&e->e, cudaEventDisableTiming), "an event", err);
    if (rc < 0) {
        free(e);
        return rc;
    }
    e->base.gpu = g;
    *ret = &e->base;
    return 0;
}

void zk_cuda_event_free(struct zk_gpu_event *base)
{
    struct cuda_event *e = event_of(base);

    (void)zk_cuda_enter(gpu_of(base->gpu), NULL);
    (void)zk_cuda_fail(cudaEventDestroy(e->e), "an event", NULL);
    free(e);
}

int zk_cuda_event_record(struct zk_gpu_event *e, struct zk_gpu_stream *s, struct zb_err *err)
{
    int rc = zk_cuda_enter(gpu_of(s->gpu), err);

    return rc < 0 ? rc
                  : zk_cuda_fail(cudaEventRecord(event_of(e)->e, stream_of(s)->s), "an event", err);
}

int zk_cuda_event_wait(struct zk_gpu_event *e, struct zk_gpu_stream *s, struct zb_err *err)
{
    int rc = zk_cuda_enter(gpu_of(s->gpu), err);

    return rc < 0 ? rc
                  : zk_cuda_fail(cudaStreamWaitEvent(stream_of(s)->s, event_of(e)->e, 0),
                                 "an event", err);
}

int zk_cuda_event_query(struct zk_gpu_event *e, struct zb_err *err)
{
    int rc = zk_cuda_enter(gpu_of(e->gpu), err);

    return rc < 0 ? rc : ready(cudaEventQuery(event_of(e)->e), "an event", err);
}

/* ---- works */

int zk_cuda_copy(struct zk_gpu_stream *s, enum zk_gpu_way way, void *to, const void *from,
                 uint64_t len_bytes, struct zb_err *err)
{
    static const enum cudaMemcpyKind kinds[] = {
        [ZK_GPU_TO_DEVICE] = cudaMemcpyHostToDevice,
        [ZK_GPU_TO_HOST] = cudaMemcpyDeviceToHost,
        [ZK_GPU_WITHIN] = cudaMemcpyDeviceToDevice,
    };
    int rc = zk_cuda_enter(gpu_of(s->gpu), err);

    if (rc < 0 || len_bytes == 0)
        return rc;
    return zk_cuda_fail(cudaMemcpyAsync(to, from, len_bytes, kinds[way], stream_of(s)->s),
                        "a copy of the GPU", err);
}

int zk_cuda_fill(struct zk_gpu_stream *s, void *dev, uint8_t byte, uint64_t len_bytes,
                 struct zb_err *err)
{
    int rc = zk_cuda_enter(gpu_of(s->gpu), err);

    if (rc < 0 || len_bytes == 0)
        return rc;
    return zk_cuda_fail(cudaMemsetAsync(dev, byte, len_bytes, stream_of(s)->s), "GPU memory", err);
}

static void signal_on_reached(void *arg)
{
    (void)eventfd_write((int)(intptr_t)arg, 1);
}

int zk_cuda_signal(struct zk_gpu_stream *s, int fd, struct zb_err *err)
{
    int rc = zk_cuda_enter(gpu_of(s->gpu), err);

    return rc < 0 ? rc
                  : zk_cuda_fail(cudaLaunchHostFunc(stream_of(s)->s, signal_on_reached,
                                                    (void *)(intptr_t)fd),
                                 "a signal of the GPU", err);
}

int zk_cuda_stream_launch(struct zk_gpu_stream *s, const struct zk_gpu_work *work,
                          struct zb_err *err)
{
    int rc = zk_cuda_enter(gpu_of(s->gpu), err);

    return rc < 0 ? rc
                  : zk_cuda_fail((cudaError_t)zk_cuda_launch(work, stream_of(s)->s),
                                 "a kernel of the GPU", err);
}
