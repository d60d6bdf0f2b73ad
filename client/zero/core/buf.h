/*
 * buf.h - buffers for collectives and, on a device, for the trainer.
 */
#ifndef ZC_ZERO_BUF_H
#define ZC_ZERO_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/util.h"

struct zcz_device;
struct zk_gpu_event;
struct zk_gpu_mem;

struct zcz_buf {
    struct zb_list node; /* in pool->used or pool->idle */
    size_t bytes;
    void *data;                /* page aligned; a device address if the pool is on a device */
    bool pinned;               /* host memory, pinned */
    struct zk_gpu_mem *mem;    /* on a device: the allocation that data points into, */
    struct zk_gpu_event *last; /* and an event after the last work that used it; its users record
                                  it */
};

/* Up to `keep` returned buffers are kept for reuse. So the engine's memory depends on what is
 * gathered at one time, not on the size of the model. */
struct zcz_pool {
    struct zb_list used, idle; /* idle: in the order in which they were returned */
    uint32_t nidle, keep;
    uint64_t bytes, bytes_most;      /* allocated now, and at most so far */
    const struct zcz_device *device; /* where the memory is; NULL: on the host */
    const struct zcz_device *pins;   /* host pool: the device to pin buffers for, if it is open */
    struct zb_err why;               /* on a device: why the last request failed */
};

void zcz_pool_init(struct zcz_pool *p, uint32_t keep, const struct zcz_device *device);
/** As zcz_pool_init(), for host memory that a device copies from and to. Buffers are pinned, so
 * that copies are asynchronous. A buffer that cannot be pinned is only slower. */
void zcz_pool_init_pinned(struct zcz_pool *p, uint32_t keep, const struct zcz_device *pins);
/** NULL: no memory. The contents are undefined. On a device, enqueued work may still use the
 * buffer: wait for `last` before writing to it. */
struct zcz_buf *zcz_buf_get(struct zcz_pool *p, size_t bytes);
/** b may be NULL. On a device, `last` must come after all work that still uses the buffer. */
void zcz_buf_put(struct zcz_pool *p, struct zcz_buf *b);
/** Frees idle buffers; on a device, those that no enqueued work uses. */
void zcz_pool_trim(struct zcz_pool *p);
/** Frees everything. orphans: a collective may still read and write used buffers, so these stay
 * allocated until the process ends. */
void zcz_pool_done(struct zcz_pool *p, bool orphans);

#endif
