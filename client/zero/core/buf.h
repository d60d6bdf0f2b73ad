/*
 * buf.h - buffers: what collectives read and write, and on a device the trainer.
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
    void *data;                /* page aligned; of a pool on a device a device address */
    bool pinned;               /* of the host */
    struct zk_gpu_mem *mem;    /* on a device: what data is, */
    struct zk_gpu_event *last; /* and after the last work that used it, as its user recorded it */
};

/* Buffers are kept for the next user, at most `keep` of them: the engine's memory follows what is
 * gathered at one time, not the model. */
struct zcz_pool {
    struct zb_list used, idle; /* idle: the one given back last is the last */
    uint32_t nidle, keep;
    uint64_t bytes, bytes_most;      /* allocated now, and at most so far */
    const struct zcz_device *device; /* whose memory it is; NULL: the host's, */
    const struct zcz_device *pins;   /* which this one copies from and to, where it is open */
    struct zb_err why;               /* of a device: why it had no buffer, the last time */
};

void zcz_pool_init(struct zcz_pool *p, uint32_t keep, const struct zcz_device *device);
/** The same of host memory that a device copies from and to: buffers are pinned there, so that the
 * copies are beside the works of others; one that cannot be is only slower. */
void zcz_pool_init_pinned(struct zcz_pool *p, uint32_t keep, const struct zcz_device *pins);
/** NULL: no memory. What is in it is undefined; on a device, works may still use it: whoever writes
 * it waits for `last` first. */
struct zcz_buf *zcz_buf_get(struct zcz_pool *p, size_t bytes);
/** NULL is fine. On a device, whatever works still use it, `last` comes after them. */
void zcz_buf_put(struct zcz_pool *p, struct zcz_buf *b);
/** Frees what nobody uses; on a device, what no work uses any more. */
void zcz_pool_trim(struct zcz_pool *p);
/** Frees everything. orphans: a collective may still read and write the used ones, so they stay
 * allocated until the process ends. */
void zcz_pool_done(struct zcz_pool *p, bool orphans);

#endif
