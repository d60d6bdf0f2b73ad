/*
 * device.h - a GPU that holds gathered parameters and gradients.
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

#define ZCZ_PARTS_MAX 2u

/** A part of memory. */
struct zcz_part {
    uint64_t at, bytes;
};

struct zcz_device {
    struct zk_gpu *gpu;            /* NULL: no device, and all other fields are unused */
    bool common;                   /* all ranks that share this rank's daemon are on this device */
    struct zk_gpu_stream *compute; /* the trainer's stream */
    struct zk_gpu_stream *adopted; /* the same, if it is options.stream: the caller's, and not freed
                                      here; else NULL */
    struct zk_gpu_stream *up;      /* copies of parameters to the device */
    struct zk_gpu_stream *down;    /* copies of gradients to the host */
    uint32_t moving;               /* uploads and downloads in flight: zcz_device_moves() */
    void *(*alloc)(void *arg, size_t bytes, void *stream); /* the caller's allocator; NULL: the
                                                              driver's */
    void (*free)(void *arg, void *mem, size_t bytes, void *stream);
    void *memory_arg;
    void *pins[ZCZ_PARTS_MAX]; /* parts of the store's memory that are pinned */
    uint32_t npins;
    uint64_t up_bytes, down_bytes; /* copied by zcz_device_up(), zcz_device_down() over the link */

    /* Collectives between devices; NULL: collectives run in host memory. */
    const struct zc_comm_device_ops *ops;
    struct zk_gpu_stream *coll; /* the stream that they run on */
    bool joined[2];             /* inside, across: whether ops->open() was called */
};

/** Opens options.device. 0 or a refusal. */
int zcz_device_open(struct zc_zero *z);
/** Sets whether all ranks that share this rank's daemon are on its device. */
void zcz_device_set_common(struct zc_zero *z, bool common);
/** Called when all ranks have a device: begins collectives between devices, if the backend has
 * them. 0 or a refusal. */
int zcz_device_join(struct zc_zero *z);
/** Pins the parts of a mapping that are copied to the device, until zcz_device_drain(), so that
 * these copies are asynchronous. At most ZCZ_PARTS_MAX parts, in ascending order; pinned are whole
 * pages. If the driver cannot pin them, copies are only slower. Does nothing without a device, or
 * for no bytes. */
void zcz_device_pin(struct zc_zero *z, const void *memory, uint64_t bytes,
                    const struct zcz_part *parts, uint32_t nparts);
/** Unpins it before that. */
void zcz_device_unpin(struct zc_zero *z);
/** Whether that memory must be mapped read-write, because the driver cannot pin read-only
 * memory. */
bool zcz_device_pins_writable(const struct zc_zero *z);
/** Ends all work of the engine on the device, so that host memory is not read or written any
 * more. clean: every rank does this, and no collective is in flight; otherwise collectives are
 * aborted. */
void zcz_device_drain(struct zc_zero *z, bool clean);
/** Called after the pools are freed. */
void zcz_device_close(struct zc_zero *z);

/** Fails with the error of a device call. */
int zcz_device_fail(struct zc_zero *z, int rc, const struct zb_err *err);
/** Fails because the device has no room. */
int zcz_device_full(struct zc_zero *z, const struct zcz_pool *pool, const char *what,
                    const struct zcz_unit *u, size_t bytes);

/** Counts an upload or download that begins; */
void zcz_device_moves(struct zc_zero *z);
/** ... and one that has ended. */
void zcz_device_moved(struct zc_zero *z);

/** Bytes in pieces, `stride` apart. */
struct zcz_pieces {
    const void *data;
    bool on_device; /* data is on the device, not in host memory */
    size_t bytes;   /* of all pieces together; the last may be shorter */
    size_t piece, stride;
};

/** Counts anew what is copied up. */
void zcz_device_clear(struct zc_zero *z);
/** Begins to copy the pieces, one after the other, to b from byte `at` on, with zeros after them up
 * to `bytes`. */
int zcz_device_up(struct zc_zero *z, struct zcz_buf *b, size_t at, const struct zcz_pieces *from,
                  size_t bytes);
/** Begins to copy pieces on the device, one after the other, to pinned host memory. *event comes
 * after the copy; it is made by the first call. */
int zcz_device_down(struct zc_zero *z, void *to, const struct zcz_pieces *from,
                    struct zk_gpu_event **event);
/** Fills the buffer with zeros, on the trainer's stream. */
int zcz_device_zero(struct zc_zero *z, struct zcz_buf *b, size_t bytes);
/** Starts a collective between devices, after its buffer's last work. Returns 0 or the device's
 * failure; *ret_comm_rc is the comm's result. */
int zcz_device_start(struct zc_zero *z, struct zcz_coll *c, int *ret_comm_rc);
/** Records in b->last that the trainer's work so far may use the buffer. NULL is allowed. */
void zcz_device_used(struct zc_zero *z, const struct zcz_buf *b);
/** 1: the work up to b->last is done; 0: not yet; or the failure. */
int zcz_device_done(struct zc_zero *z, const struct zcz_buf *b);
/** The same for the work before an event. */
int zcz_device_reached(struct zc_zero *z, struct zk_gpu_event *event);

#endif
