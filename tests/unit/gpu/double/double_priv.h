/*
 * double_priv.h - what the files of the double share: its state, and how a call begins.
 */
#ifndef DOUBLE_PRIV_H
#define DOUBLE_PRIV_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stddef.h>

#include "base/util.h"
#include "tests/unit/gpu/double/cuda_double.h"

struct double_device {
    cudaError_t lost; /* cudaSuccess: it works */
    uint64_t used_bytes;
};

struct double_state {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct double_device devices[CUDA_DOUBLE_DEVICES_MAX];
    struct zb_list handles, reserved, maps, pins, streams, events;
    struct cuda_double_traits traits;
    unsigned count;   /* devices */
    uint64_t bytes;   /* of each */
    unsigned fail_in; /* calls until one fails; 0: none */
    enum cuda_double_failure failure;
    const char *failed;
    unsigned pageable;
};

extern struct double_state dd;

/** The device of the calling thread; -1: none was chosen. */
extern _Thread_local int double_current;
/** In a host function of a stream, in which no call is allowed. */
extern _Thread_local bool double_in_function;

/** Begins a call of the runtime or the driver, and takes the lock: cudaSuccess, or what it returns.
 * `frees`: it destroys something, and so does it on a lost device. */
cudaError_t double_begin(const char *name, bool frees);
/** Ends it: `e`, which is the thread's last error if it is one. */
cudaError_t double_end(cudaError_t e);
/** The same as an error of the driver, which keeps no last error. */
CUresult double_driver_end(cudaError_t e);
/** Loses a device; the lock is held. */
void double_lose(int device);

/* ---- double_mem.c; the lock is held */

/** Where a device's thread sees `len` bytes at a device address, or NULL: they are not mapped, or
 * not accessible from there. The map is in use until double_mem_idle(). */
struct double_map;
void *double_mem_find(int device, const void *at, uint64_t len, bool writes,
                      struct double_map **ret);
void double_mem_idle(struct double_map *map);
/** Whether all bytes are in maps of device memory, for any access. */
bool double_mem_is(const void *at, uint64_t len);

enum double_host { HOST_PAGEABLE, HOST_PINNED, HOST_READ_ONLY, HOST_IN_PART };
enum double_host double_host(const void *at, uint64_t len);

/** Frees all of it, and what is pinned. */
void double_mem_drop(void);

/** The driver's functions of double_mem.c, by name; NULL: another one. */
void *double_mem_function(const char *name);

/* ---- double_stream.c */

/** Destroys all streams and events; takes the lock itself. */
void double_streams_drop(void);

#endif
