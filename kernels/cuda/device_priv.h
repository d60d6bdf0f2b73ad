/*
 * device_priv.h - a CUDA GPU, for the files that implement it: device.c, device_error.c,
 * device_mem.c (its memory, and pinned host memory) and device_stream.c. device.c has the model.
 */
#ifndef ZK_CUDA_DEVICE_PRIV_H
#define ZK_CUDA_DEVICE_PRIV_H

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_priv.h"
#include "kernels/gpu/gpu_priv.h"

#define DRIVER_FUNCTIONS(do_)                                                          \
    do_(cuDeviceGet) do_(cuDeviceGetAttribute) do_(cuGetErrorString) do_(cuMemCreate)  \
        do_(cuMemRelease) do_(cuMemAddressReserve) do_(cuMemAddressFree) do_(cuMemMap) \
            do_(cuMemUnmap) do_(cuMemSetAccess) do_(cuMemGetAllocationGranularity)     \
                do_(cuMemExportToShareableHandle) do_(cuMemImportFromShareableHandle)

#define DRIVER_MEMBER(f) __typeof__(f) *f;

struct driver {
    DRIVER_FUNCTIONS(DRIVER_MEMBER)
};

struct cuda_gpu {
    struct zk_gpu base;
    int device;
    bool can_export;
    struct driver d;
};

struct cuda_stream {
    struct zk_gpu_stream base;
    cudaStream_t s;
    bool adopted; /* its owner destroys it */
};

struct cuda_event {
    struct zk_gpu_event base;
    cudaEvent_t e;
};

static inline struct cuda_gpu *gpu_of(struct zk_gpu *g)
{
    return zb_container_of(g, struct cuda_gpu, base);
}

static inline struct cuda_stream *stream_of(struct zk_gpu_stream *s)
{
    return zb_container_of(s, struct cuda_stream, base);
}

static inline struct cuda_event *event_of(struct zk_gpu_event *e)
{
    return zb_container_of(e, struct cuda_event, base);
}

/* ---- device_error.c */

/** 0, or the runtime's error about `what`. */
int zk_cuda_fail(cudaError_t e, const char *what, struct zb_err *err);
int zk_cuda_driver_fail(const struct cuda_gpu *c, CUresult r, const char *what, struct zb_err *err);
/** Makes the device's context current in the calling thread. */
int zk_cuda_enter(const struct cuda_gpu *c, struct zb_err *err);

/* ---- device_mem.c: what is asked of the driver for memory, and the backend's table */

CUmemAllocationProp zk_cuda_mem_prop(const struct cuda_gpu *c);
int zk_cuda_mem_new(struct zk_gpu_mem *m, struct zb_err *err);
int zk_cuda_mem_import(struct zk_gpu_mem *m, int fd, bool writable, struct zb_err *err);
int zk_cuda_mem_export(struct zk_gpu_mem *m, int *ret_fd, struct zb_err *err);
void zk_cuda_mem_free(struct zk_gpu_mem *m);
int zk_cuda_pin(struct zk_gpu *g, void *addr, uint64_t len_bytes, bool read_only,
                struct zb_err *err);
void zk_cuda_unpin(struct zk_gpu *g, void *addr);

/* ---- device_stream.c: of the backend's table */

int zk_cuda_stream_new(struct zk_gpu *g, struct zk_gpu_stream **ret, struct zb_err *err);
void zk_cuda_stream_free(struct zk_gpu_stream *base);
int zk_cuda_stream_adopt(struct zk_gpu *g, void *native, struct zk_gpu_stream **ret,
                         struct zb_err *err);
int zk_cuda_stream_sync(struct zk_gpu_stream *s, struct zb_err *err);
void *zk_cuda_stream_native(struct zk_gpu_stream *s);
int zk_cuda_event_new(struct zk_gpu *g, struct zk_gpu_event **ret, struct zb_err *err);
void zk_cuda_event_free(struct zk_gpu_event *base);
int zk_cuda_event_record(struct zk_gpu_event *e, struct zk_gpu_stream *s, struct zb_err *err);
int zk_cuda_event_wait(struct zk_gpu_event *e, struct zk_gpu_stream *s, struct zb_err *err);
int zk_cuda_event_query(struct zk_gpu_event *e, struct zb_err *err);
int zk_cuda_copy(struct zk_gpu_stream *s, enum zk_gpu_way way, void *to, const void *from,
                 uint64_t len_bytes, struct zb_err *err);
int zk_cuda_fill(struct zk_gpu_stream *s, void *dev, uint8_t byte, uint64_t len_bytes,
                 struct zb_err *err);
int zk_cuda_signal(struct zk_gpu_stream *s, int fd, struct zb_err *err);
int zk_cuda_stream_launch(struct zk_gpu_stream *s, const struct zk_gpu_work *work,
                          struct zb_err *err);

#endif
