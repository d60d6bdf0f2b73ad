/*
 * gpu_own.h - for parts of this tree that run their own kernels on a device that another part has
 * opened: the trainer computes on the engine's stream.
 *
 * MODEL. The owner only exports zk_gpu_stream_native(). zk_gpu_adopt() makes a device and
 * a stream of it again, in another copy of this library (a program and libzclient.so have one
 * each):
 *
 *     cuda       another handle of the same device, in the same context; memory that one of them
 *                allocates or maps is valid for both. The stream is the owner's cudaStream_t
 *     emulated   the owner's own device and stream: both copies come from one build
 *
 * Kernels for "cuda" are launched on the native stream by their owner. They are linked into the
 * plugin (gpu_priv.h), with the only copy of the CUDA runtime, and found by zk_gpu_symbol(). On
 * the emulated device kernels are works like any other: a host function that runs in the stream's
 * thread.
 */
#ifndef ZK_GPU_OWN_H
#define ZK_GPU_OWN_H

#include <stddef.h>

#include "kernels/gpu.h"

/**
 * @param name    the name by which the owner opened the device
 * @param native  result of the owner's zk_gpu_stream_native(); the owner keeps the stream open
 * @return 0, or as zk_gpu_open()
 */
int zk_gpu_adopt(const char *name, void *native, struct zk_gpu **ret, struct zk_gpu_stream **ret_s,
                 struct zb_err *err);
/** Everything made from the device by this side is freed. NULLs are allowed. */
void zk_gpu_disown(struct zk_gpu *g, struct zk_gpu_stream *s);

/** Makes the device current in the calling thread, which CUDA requires before each launch. 0, or
 * -EIO. */
int zk_gpu_enter(struct zk_gpu *g, struct zb_err *err);

/** The function or data with this name that the device's plugin exports (ZK_GPU_EXPORT). It is of
 * this build, as the plugin is. NULL: no such symbol. */
void *zk_gpu_symbol(struct zk_gpu *g, const char *name);

/** Marks symbols that the plugin exports. */
#define ZK_GPU_EXPORT __attribute__((visibility("default")))

/* ---- works that are functions, on "emulated" only */

#define ZK_GPU_CALL_BYTES 256u
#define ZK_GPU_USES_MAX   8u

/** A range of device memory that a call uses, given by the position of its address in the
 * arguments. */
struct zk_gpu_use {
    size_t at;
    uint64_t len_bytes; /* 0: not used, whatever the address is */
    bool writes;
};

/** The function can dereference device addresses in `args`. Not 0: the device is lost. */
typedef int zk_gpu_call_fn(void *args);

/**
 * Queues a call in a stream; the arguments are copied.
 *
 * @param args_bytes  at most ZK_GPU_CALL_BYTES
 * @param nuses       at most ZK_GPU_USES_MAX
 * @return 0; -ENOTSUP not an emulated device; -ENOMEM, -EIO
 */
int zk_gpu_call(struct zk_gpu_stream *s, zk_gpu_call_fn *fn, const void *args, size_t args_bytes,
                const struct zk_gpu_use *uses, unsigned nuses, struct zb_err *err);

#endif
