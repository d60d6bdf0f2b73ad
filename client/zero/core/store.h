/*
 * store.h - what keeps a rank's slices: a table, with three implementations in store/.
 *
 *     store_local.c    planes in this process ("none"),
 *     store_device.c   planes on the engine's device ("none" where there is one)
 *     store_daemon.c   the daemon, over libzclient
 *
 * MODEL. A store keeps one slice of each unit: `count` elements beginning at `first` of the unit
 * (both multiples of the block; count 0: this rank keeps nothing of it, and no call names it). It
 * computes what kernels/zk_page.h says and nothing else, so both give the same bits.
 *
 * CALLS IN FLIGHT. A call that takes an op returns at once: 0, and op->pending has grown by one
 * until it finished; or -EAGAIN, not now: turn and ask again; or another negative errno, and
 * z->error has the error message. op->rc becomes the first failure of the calls that shared op, and
 * zcz_store_text() is its error message. Several calls may share an op.
 *
 * PIECES. Initial values, gradients and reads travel in pieces of at most piece_elems fp32
 * elements, cut at multiples of it. A piece is memory of the store, of which there is a fixed
 * number: piece() gives none while all are in flight, and whoever needs one waits.
 */
#ifndef ZC_ZERO_STORE_H
#define ZC_ZERO_STORE_H

#include "base/err.h"
#include "base/plan.h"
#include "client/zclient.h"

struct zc_zero;
struct zcz_store;
struct zcz_unit;

struct zcz_op {
    uint32_t pending;
    int rc;
    struct zcz_store *store; /* whose callbacks end it */
};

struct zcz_store_stats {
    uint64_t nvme_read_bytes, nvme_written_bytes;
    uint64_t host_bytes, nvme_bytes, gpu_bytes, grads_nvme_bytes;
    uint64_t gpu_params_bytes;
    const char *gpu_why; /* NULL: "" */
};

struct zcz_store_ops {
    /** Connects, so that failures show early. Sets store->node. */
    int (*open)(struct zcz_store *s);
    /** Joins a job that was kept, before join(). epoch 0: takes it over; otherwise as a rank of
     * that epoch. Sets epoch and points; waits for no other rank. */
    int (*attach)(struct zcz_store *s, uint64_t epoch);
    /** All units are known: names the slices; waits for no other rank. Sets piece_elems. */
    int (*join)(struct zcz_store *s);
    /** Every rank has joined: makes room for the slices. Waits for every rank, so a rank that fails
     * here alone must leave for the others to hear of it. Sets pins_max, and iterations and
     * applied of a job that continues from step resume_at. */
    int (*place)(struct zcz_store *s);

    /** A free piece, or NULL. */
    float *(*piece)(struct zcz_store *s);
    /** Gives one back unused, or after read(). */
    void (*piece_put)(struct zcz_store *s, float *piece);

    /** Initial values; the piece is the store's again when this returns 0. */
    int (*write)(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, uint64_t first,
                 uint64_t count, float *piece);
    /** A gradient for iteration `step`: micro 0 sets, others add. Pieces come in order. NULL where
     * push_dev() is. */
    int (*push)(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, uint64_t step,
                uint32_t micro, uint64_t first, uint64_t count, float *piece);
    /** on_device: the same of a whole slice in device memory, at one time. Only enqueues: works on
     * the device's stream `down` may use `from` until what stands behind it there. */
    int (*push_dev)(struct zcz_store *s, struct zcz_unit *u, uint32_t micro, const void *from,
                    enum zb_dtype dtype);
    /** Into the piece, which stays the caller's: ZC_PARAM in the unit's dtype, all else fp32. */
    int (*read)(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, enum zc_what what,
                uint64_t first, uint64_t count, float *piece);

    /** The same of a slice of any rank of the node, by its name. NULL where names() is. */
    int (*read_named)(struct zcz_store *s, struct zcz_op *op, uint64_t name, enum zc_what what,
                      uint64_t first, uint64_t count, float *piece);
    /** Values in place of others, between steps: ZC_MASTER (with what is computed with; before the first
     * step as write()) or a moment. name: of a slice of any rank; 0: this rank's. The piece is the
     * store's again when this returns 0. */
    int (*set)(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, uint64_t name,
               enum zc_what what, uint64_t first, uint64_t count, float *piece);
    /** What this rank has released is released for all; waits. NULL where names() is. */
    int (*sync)(struct zcz_store *s);

    /** Pins the slice at min_version or later: u->view, when op is done. */
    int (*fetch)(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, uint64_t min_version);
    int (*release)(struct zcz_store *s, struct zcz_unit *u);
    /** After join(): names of this rank's slices, by unit, with which every rank of the node can fetch
     * them; 0: there is none. NULL, with the two below: other ranks cannot. */
    const uint64_t *(*names)(struct zcz_store *s);
    /** Pins n slices of any rank, as fetch(). The names stay until op is done. */
    int (*fetch_named)(struct zcz_store *s, struct zcz_op *op, const uint64_t *names, uint32_t n,
                       uint64_t min_version, struct zc_view *ret);
    int (*release_named)(struct zcz_store *s, const uint64_t *names, uint32_t n);

    /** Of this rank's slices, when every push has finished. */
    int (*norms)(struct zcz_store *s, struct zcz_op *op, uint64_t step, struct zc_norm *ret);
    /** What classes the step of this number has: over before step() and step_begin(), which are given
     * the same. NULL: the store does not care. */
    int (*classes)(struct zcz_store *s, struct zcz_op *op, uint64_t step,
                   const struct zc_classes *classes);
    /** One step, by groups, or where these are NULL by classes, or a skip where both are NULL; what they
     * point at may go when this returns. */
    int (*step)(struct zcz_store *s, struct zcz_op *op, const struct zc_step *step,
                const struct zc_classes *classes, struct zc_stepped *ret);

    /** What the next step will be, ahead of its last gradients: by groups, or, where these are NULL, by
     * the classes that were said. NULL: the store does not care. */
    int (*step_begin)(struct zcz_store *s, struct zcz_op *op, const struct zc_step *step,
                      uint32_t micros);

    /** As zc_abandon(), for all ranks of the node; NULL: a push with micro 0 forgets what was there. */
    int (*abandon)(struct zcz_store *s, struct zcz_op *op, uint64_t step);
    /** Before the first step: it steps with another optimizer; as zc_job_optimizer(). NULL: the layouts of the
     * units say it all. */
    int (*optimizer)(struct zcz_store *s, struct zcz_op *op, enum zc_optimizer kind,
                     enum zc_moments moments);

    /** As zc_commit(); for all ranks of the node. */
    int (*commit)(struct zcz_store *s, struct zcz_op *op, enum zc_commit what, uint64_t iterations);
    /** Kept with the next step; copied. */
    int (*note_put)(struct zcz_store *s, struct zcz_op *op, bool of_job, const void *note,
                    size_t bytes);
    /** Waits. */
    int (*note_get)(struct zcz_store *s, bool of_job, void *buf, size_t *ret_bytes);
    /** Waits. */
    int (*stats)(struct zcz_store *s, struct zcz_store_stats *ret);

    /** Finishes what it can, waiting up to wait_us for the first. A negative errno, with the
     * sentence in zcz_store_text(): the store is gone, or a peer. */
    int (*poll)(struct zcz_store *s, uint32_t wait_us);
    /** The last rank's departure ends the job in good order; waits. */
    int (*leave)(struct zcz_store *s);
    void (*close)(struct zcz_store *s);
};

struct zcz_store {
    /* ---- store/: */
    const struct zcz_store_ops *ops;
    struct zc_zero *z;
    struct zb_err err;      /* the first failure of a call in flight, an event or the connection */
    uint8_t node[16];       /* ranks with the same one share this store's daemon */
    uint32_t page_elems;    /* pieces are multiples of it */
    bool on_device;         /* views are of the device's memory, and push_dev() is there; */
    uint64_t device_bytes;  /* it has allocated so many */
    const char *params_dev; /* parameters live in memory of the device that begins here, and views
                               are offsets in it; NULL: views are what they say */
    uint64_t piece_elems;   /* of initial values, gradients and reads that travel at one time */
    bool early;             /* after place(): step_begin() is of use */
    uint32_t pins_max;      /* slices of this rank that can be pinned at one time; at least 1 */
    uint64_t epoch;         /* of a job that was attached, */
    uint32_t npoints;       /* and what it can continue from on this node */
    struct zc_point points[ZC_POINTS_MAX];
    uint64_t iterations, applied; /* after place(): of a job that continues */

    /* ---- step/: resume.c, before place() */
    uint64_t resume_at; /* the step to continue from, by its number */

    /* ---- ./: engine.c. Ranks of this node: how many, which one this is, who they are among all */
    uint32_t node_rank, node_world;
    uint32_t *node_ranks; /* freed with the store */
};

/** The last failure was none after all. */
static inline void zcz_store_forgive(struct zcz_store *s)
{
    s->err.code = 0;
}

/** The error message of op->rc, or of poll(). */
static inline const char *zcz_store_text(const struct zcz_store *s)
{
    return s->err.text;
}

#endif
