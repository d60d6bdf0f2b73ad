/*
 * device.h - a GPU that gathers and gradients are on.
 */
#ifndef ZC_ZERO_DEVICE_H
#define ZC_ZERO_DEVICE_H

#include "base/err.h"
#include "client/zero/zc_zero.h"
#include "kernels/gpu.h"

struct zcz_buf;
struct zcz_coll;
struct zcz_pool;
struct zcz_unit;

struct zcz_device {
    struct zk_gpu *gpu;            /* NULL: there is none, and all else is unused */
    struct zk_gpu_stream *compute; /* the trainer's, */
    struct zk_gpu_stream *adopted; /* which is this one, options.stream: not ours to end; NULL */
    struct zk_gpu_stream *up;      /* parameters on their way to the device, */
    struct zk_gpu_stream *down;    /* gradients on theirs to the host */
    uint32_t moving;               /* uploads and downloads in flight: zcz_device_moves() */
    void *(*alloc)(void *arg, size_t bytes, void *stream); /* options'; NULL: the driver's */
    void (*free)(void *arg, void *mem, size_t bytes, void *stream);
    void *memory_arg;
    void *arena; /* of the store, pinned; NULL */

    /* Collectives between devices; NULL: they are made in host memory. */
    const struct zc_comm_device_ops *ops;
    struct zk_gpu_stream *coll; /* where they run */
    bool joined[2];             /* inside, across: ops->open() was called */
};

/** Opens options.device. A refusal. */
int zcz_device_open(struct zc_zero *z);
/** All ranks have one: where the backend has collectives between them, it begins. A refusal. */
int zcz_device_join(struct zc_zero *z);
/** Pins memory of the host that is copied up from, until zcz_device_drain(): copies run beside
 * others then. Where the driver does not, they are what they were. NULL, and no device, are fine.
 */
void zcz_device_pin(struct zc_zero *z, const void *memory, uint64_t bytes);
/** Whether that memory must be mapped read-write: the driver pins no other. */
bool zcz_device_pins_writable(const struct zc_zero *z);
/** Nothing of ours runs there any more, nor reads or writes memory of the host. clean: every rank
 * is here, and none of its collectives is in flight; else those are given up. */
void zcz_device_drain(struct zc_zero *z, bool clean);
/** After the pools are done. */
void zcz_device_close(struct zc_zero *z);

/** The failure of a call to the device: final. */
int zcz_device_fail(struct zc_zero *z, int rc, const struct zb_err *err);
/** The failure that it has no room. */
int zcz_device_full(struct zc_zero *z, const struct zcz_pool *pool, const char *what,
                    const struct zcz_unit *u, size_t bytes);

/** An upload or a download has begun; */
void zcz_device_moves(struct zc_zero *z);
/** ... and is over. */
void zcz_device_moved(struct zc_zero *z);

/** Bytes that lie in pieces, so many apart. */
struct zcz_pieces {
    const void *data; /* of the host, or on the device where the store says so */
    size_t bytes;     /* of all pieces; the last may be shorter */
    size_t piece, stride;
};

/** Begins to fill b from byte `at` on with what lies in pieces, one after the other, and zeros
 * after them up to `bytes`. */
int zcz_device_up(struct zc_zero *z, struct zcz_buf *b, size_t at, const struct zcz_pieces *from,
                  size_t bytes);
/** Zeros the buffer, in the trainer's order. */
int zcz_device_zero(struct zc_zero *z, struct zcz_buf *b, size_t bytes);
/** Starts a collective between devices, after its buffer's last work. 0, the comm's failure as
 * *ret_comm_rc, or the device's. */
int zcz_device_start(struct zc_zero *z, struct zcz_coll *c, int *ret_comm_rc);
/** The trainer's works so far may use it, until they are done. NULL is fine. */
void zcz_device_used(struct zc_zero *z, const struct zcz_buf *b);
/** 1: the works up to b->last are done; 0: not yet; or the failure. */
int zcz_device_done(struct zc_zero *z, const struct zcz_buf *b);

#endif
