/*
 * store.h - what keeps a rank's slices: a table of functions, with three implementations in store/.
 *
 *     store_local.c    planes in this process ("none"),
 *     store_device.c   planes on the engine's device ("none" if there is one)
 *     store_daemon.c   the daemon, over libzclient
 *
 * MODEL. A store keeps one slice of each unit: `count` elements beginning at `first` of the unit.
 * Both are multiples of the block. If count is 0, this rank keeps nothing of the unit, and no call
 * names it. A store computes exactly what kernels/zk_page.h defines, so all stores give the same
 * bits.
 *
 * CALLS IN FLIGHT. A call that takes an op returns at once. On 0, op->pending has grown by one,
 * until the call finishes. -EAGAIN means not now: make a turn and try again. On another negative
 * errno, z->error has the error message. Several calls may share an op. op->rc becomes the first
 * failure among them, and zcz_store_text() is its error message.
 *
 * LOST. A store whose daemon has died may still continue with the next daemon (`lost`). Until then
 * calls that belong to a pass or a step succeed without an effect, and views show NaN, so that the
 * pass ends like that of the other ranks. All else fails with -ENOTCONN. again.c makes a new store.
 *
 * PIECES. Initial values, gradients and reads are transferred in pieces of at most piece_elems fp32
 * elements, cut at multiples of it. A piece is memory of the store, which has a fixed number of
 * them. piece() returns NULL while all are in flight, and the caller waits.
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
    bool sure; /* the caller needs the result: if the store is lost meanwhile, rc says so */
    struct zcz_store *store; /* the store whose callbacks finish it */
};

struct zcz_store_stats {
    uint64_t nvme_read_bytes, nvme_written_bytes;
    uint64_t host_bytes, nvme_bytes, gpu_bytes, grads_nvme_bytes;
    uint64_t gpu_params_bytes;
    const char *gpu_why; /* NULL: "" */
};

struct zcz_store_ops {
    /** Connects, so that failures are detected early. Sets store->node. */
    int (*open)(struct zcz_store *s);
    /** Joins a kept job, before join(). epoch 0: takes it over (but see epoch_next); otherwise joins as a rank of that
     * epoch. Sets epoch and points. Does not wait for other ranks. */
    int (*attach)(struct zcz_store *s, uint64_t epoch);
    /** Called when all units are known: names the slices. Does not wait for other ranks. Sets
     * piece_elems. */
    int (*join)(struct zcz_store *s);
    /** Called when every rank has joined: makes room for the slices. Waits for every rank, so a
     * rank that fails here alone must leave, so that the others are told. Sets pins_max, and
     * iterations and applied of a job that continues from step resume_at. */
    int (*place)(struct zcz_store *s);

    /** Returns a free piece, or NULL. */
    float *(*piece)(struct zcz_store *s);
    /** Returns a piece to the store, unused or after read(). */
    void (*piece_put)(struct zcz_store *s, float *piece);

    /** Writes initial values. When this returns 0, the piece belongs to the store again. */
    int (*write)(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, uint64_t first,
                 uint64_t count, float *piece);
    /** Pushes a gradient for iteration `step`: micro 0 sets, others add. Pieces come in order. NULL
     * if push_dev() is set. */
    int (*push)(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, uint64_t step,
                uint32_t micro, uint64_t first, uint64_t count, float *piece);
    /** on_device: the same for a whole slice in device memory. Only enqueues: work on the device's
     * stream `down` reads `from`, and what is enqueued there later may overwrite it. */
    int (*push_dev)(struct zcz_store *s, struct zcz_unit *u, uint32_t micro, const void *from,
                    enum zb_dtype dtype);
    /** Reads into the piece, which stays the caller's: ZC_PARAM in the unit's dtype, all else
     * fp32. */
    int (*read)(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, enum zc_what what,
                uint64_t first, uint64_t count, float *piece);

    /** The same for a slice of any rank of the node, by its name. NULL if names() is. */
    int (*read_named)(struct zcz_store *s, struct zcz_op *op, uint64_t name, enum zc_what what,
                      uint64_t first, uint64_t count, float *piece);
    /** Replaces values of this rank's slice between steps: ZC_MASTER, which also sets the parameters
     * (before the first step as write()), or a moment. When this returns 0, the piece belongs to
     * the store again. */
    int (*set)(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, enum zc_what what,
               uint64_t first, uint64_t count, float *piece);
    /** Waits until this rank's releases have taken effect for all ranks. NULL if names() is. */
    int (*sync)(struct zcz_store *s);

    /** Pins the slice at min_version or later. u->view is set when op is done. */
    int (*fetch)(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, uint64_t min_version);
    int (*release)(struct zcz_store *s, struct zcz_unit *u);
    /** After join(): the names of this rank's slices, by unit, with which every rank of the node
     * can fetch them; 0: no slice. NULL, like the two below: other ranks cannot fetch them. */
    const uint64_t *(*names)(struct zcz_store *s);
    /** Pins n slices of any rank, as fetch(). The array of names must stay until op is done. */
    int (*fetch_named)(struct zcz_store *s, struct zcz_op *op, const uint64_t *names, uint32_t n,
                       uint64_t min_version, struct zc_view *ret);
    int (*release_named)(struct zcz_store *s, const uint64_t *names, uint32_t n);

    /** Computes the norm of this rank's slices. Called when every push has finished. */
    int (*norms)(struct zcz_store *s, struct zcz_op *op, uint64_t step, struct zc_norm *ret);
    /** Announces the classes of step number `step`. Must be complete before step() and
     * step_begin(), which get the same classes. NULL: the store does not need it. */
    int (*classes)(struct zcz_store *s, struct zcz_op *op, uint64_t step,
                   const struct zc_classes *classes);
    /** Gets the exact sums of squares of all trainable tensors over this rank's slices, as
     * zc_tensor_norms(). NULL: they can be computed from read(). */
    int (*tensor_sums)(struct zcz_store *s, struct zcz_op *op, uint64_t step, uint32_t ntensors,
                       unsigned char *ret);
    /** Gets the same of tensors [first, first + ntensors), which are of one unit. Called when its pushes
     * have finished, whatever others are in flight. NULL if `early` is never set for several nodes. */
    int (*unit_sums)(struct zcz_store *s, struct zcz_op *op, uint64_t step, uint32_t first,
                     uint32_t ntensors, unsigned char *ret);
    /** Announces the sums of a unit over all nodes, for a step that was announced with `sums`. */
    int (*unit_sums_put)(struct zcz_store *s, struct zcz_op *op, uint64_t step, uint32_t unit,
                         const unsigned char *sums, uint32_t ntensors);
    /** Tells users about this rank's use of the job. NULL: there is nobody to tell. */
    int (*about)(struct zcz_store *s, struct zcz_op *op, const struct zc_job_about *about);
    /** Announces values of all trainable tensors, as zc_step_tensors(): factors for step(), limits
     * for step_begin(). */
    int (*tensors)(struct zcz_store *s, struct zcz_op *op, uint64_t step, bool limits,
                   const double *values, uint32_t ntensors);
    /** Makes one step: by groups; by classes if groups are NULL; skips it if both are NULL. The
     * arguments may be freed when this returns. */
    int (*step)(struct zcz_store *s, struct zcz_op *op, const struct zc_step *step,
                const struct zc_classes *classes, struct zc_stepped *ret);

    /** Announces the next step before its last gradients: by groups, or, if these are NULL, by the
     * announced classes. NULL: the store does not need it. */
    int (*step_begin)(struct zcz_store *s, struct zcz_op *op, const struct zc_step *step,
                      uint32_t micros);

    /** As zc_abandon(), for all ranks of the node. NULL: a push with micro 0 replaces what was
     * there. */
    int (*abandon)(struct zcz_store *s, struct zcz_op *op, uint64_t step);
    /** Changes the optimizer before the first step, as zc_job_optimizer(). NULL: the layouts of the
     * units are enough. */
    int (*optimizer)(struct zcz_store *s, struct zcz_op *op, enum zc_optimizer kind,
                     enum zc_moments moments);

    /** As zc_commit(), for all ranks of the node. */
    int (*commit)(struct zcz_store *s, struct zcz_op *op, enum zc_commit what, uint64_t iterations);
    /** Stores a copy of a note with the next step. */
    int (*note_put)(struct zcz_store *s, struct zcz_op *op, bool of_job, const void *note,
                    size_t bytes);
    /** Reads a note; waits. */
    int (*note_get)(struct zcz_store *s, bool of_job, void *buf, size_t *ret_bytes);
    /** Reads counts; waits. */
    int (*stats)(struct zcz_store *s, struct zcz_store_stats *ret);

    /** Finishes what it can; waits up to wait_us for the first. A negative errno, with the error
     * message in zcz_store_text(): the store or a peer is gone. */
    int (*poll)(struct zcz_store *s, uint32_t wait_us);
    /** Leaves the job in an orderly way; the last rank that leaves ends it. Waits. */
    int (*leave)(struct zcz_store *s);
    void (*close)(struct zcz_store *s);
};

struct zcz_store {
    /* ---- store/: */
    const struct zcz_store_ops *ops;
    struct zc_zero *z;
    struct zb_err err;      /* first failure of a call in flight, an event or the connection */
    uint8_t node[16];       /* the same for all ranks that share this store's daemon */
    uint32_t page_elems;    /* pieces are multiples of it */
    bool on_device;         /* views are in device memory, and push_dev() is set */
    uint64_t device_bytes;  /* device memory that the store has allocated */
    const char *params_dev; /* start of the device memory that holds parameters; views are offsets
                               in it. NULL: views are addresses */
    uint64_t piece_elems;   /* of one piece of initial values, gradients or reads */
    bool early;             /* after place(): step_begin() is useful */
    bool knows_sums;        /* after open(): unit_sums(), unit_sums_put() and about() can be used */
    enum zc_early early_why; /* after place() */
    bool rings;              /* after place(): it does not hold all gradients, so step_begin() comes
                               before push() */
    uint32_t pins_max;       /* slices of this rank that can be pinned at one time; at least 1 */
    uint64_t epoch;          /* of the job, since this rank has joined it */
    uint32_t npoints;        /* after attach(): the steps that it can continue from on this node */
    struct zc_point points[ZC_POINTS_MAX];
    uint64_t iterations, applied; /* after place(): of a job that continues */
    bool lost;     /* the daemon has died, and the next one may be attached to: LOST */
    bool restarts; /* the daemon is about to restart, and waits until the job is closed */

    /* ---- ./: again.c, before attach() */
    uint64_t epoch_next; /* attach() takes over only from an epoch below this one; 0: any */

    /* ---- step/: resume.c, before place() */
    uint64_t resume_at; /* the step to continue from, by its number */

    /* ---- ./: engine.c. Ranks of this node: this one, their number, and their ranks in the comm */
    uint32_t node_rank, node_world;
    uint32_t *node_ranks; /* freed with the store */
};

/** Clears the last failure. */
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
