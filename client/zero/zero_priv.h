/*
 * zero_priv.h - what the files of the engine share. Private to client/zero/ and its tests.
 *
 * MODEL. Nothing here runs by itself: zcz_turn() moves whatever can move and returns, and a call
 * that has to wait is a loop around it (zcz_wait()). What moves:
 *
 *     units      one gather each (gather.c): fetch the slice, gather the slices, be read, be
 * dropped reduces    a short list (reduce.c): exchange the slices, add them up, push the sum step
 * at most one, running in the store (step.c) coll       collectives, queued in the order that the
 * trainer's calls give and started in that order, each when its bytes are ready (coll.c)
 *
 * A call to the store that is in flight is a struct zcz_op: a count and a code, which the machines
 * look at. No callback of ours decides anything.
 *
 * ORDER. Ranks start the same collectives in the same order, or none of it works. So whatever
 * queues a collective is decided by the trainer's calls alone, never by when something finished:
 * what to prefetch, what to drop, when to exchange.
 *
 * FAILURE. What a caller did wrong is refused (zcz_refuse()) and changes nothing. Everything else
 * is final (zcz_fail()): the ranks are no longer in step, so from then on every call answers with
 * that code and sentence, and zc_zero_close() waits for nobody.
 */
#ifndef ZC_ZERO_PRIV_H
#define ZC_ZERO_PRIV_H

#include "base/err.h"
#include "base/model.h"
#include "base/util.h"
#include "client/zero/config/loss_scale.h"
#include "client/zero/config/options.h"
#include "client/zero/core/store.h"
#include "client/zero/zc_zero.h"
#include "kernels/gpu.h"
#include "kernels/zk.h"
#include "kernels/zk_page.h"

#define ZCZ_TIMEOUT_MS   60000u
#define ZCZ_GRACE_MS     500u  /* the store's own deadlines end first: its sentences say more */
#define ZCZ_FAREWELL_MS  1000u /* how long a rank that failed waits to tell the others why */
#define ZCZ_REASON_MS    100u  /* ... and for the reason of one that is lost to arrive */
#define ZCZ_REDUCES_MAX  ZB_REDUCES_MAX /* that hold buffers; then zc_zero_reduce() waits */
#define ZCZ_SUM_MAX      4096u
#define ZCZ_PREFETCH_MAX ZB_PREFETCH_MAX
#define ZCZ_SLICE_ELEMS \
    (UINT64_C(1) << 40) /* of one unit over all ranks: sizes cannot overflow \
                         */

/* ---- buffers: what collectives read and write, and on a device the trainer. buf.c */

struct zcz_unit;
struct zcz_reduce;
struct zcz_coll;

struct zcz_buf {
    struct zb_list node; /* in pool->used or pool->idle */
    size_t bytes;
    void *data;             /* page aligned; of a pool on a device a device address */
    bool pinned;            /* of the host */
    struct zk_gpu_mem *mem; /* on a device: what data is, */
    struct zk_gpu_event
        *last; /* and behind the last work that used it, as whoever gave that said */
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
/** NULL is fine. On a device, whatever works still use it, `last` stands behind them. */
void zcz_buf_put(struct zcz_pool *p, struct zcz_buf *b);
/** Frees everything. orphans: a collective may still read and write the used ones, so they stay
 * allocated until the process ends. */
void zcz_pool_done(struct zcz_pool *p, bool orphans);

/* ---- a store that keeps everything in this process. store_own.c */

struct zcz_note {
    unsigned char *sent, *kept; /* of the next step, and of the newest; NULL: none */
    size_t sent_bytes, kept_bytes;
};

/* What is common to them; the first member of each. */
struct zcz_own {
    struct zcz_store base;
    float *piece;
    bool piece_used;
    struct zcz_note notes[2]; /* of this rank, of the job */
};

/* Of struct zcz_store_ops, and parts of it. */
int zcz_own_open(struct zcz_store *s);
/** Sets z->piece_elems and makes the piece. */
int zcz_own_join(struct zcz_store *s);
float *zcz_own_piece(struct zcz_store *s);
void zcz_own_piece_put(struct zcz_store *s, float *piece);
int zcz_own_release(struct zcz_store *s, struct zcz_unit *u);
int zcz_own_note_put(struct zcz_store *s, struct zcz_op *op, bool of_job, const void *note,
                     size_t bytes);
int zcz_own_note_get(struct zcz_store *s, bool of_job, void *buf, size_t *ret_bytes);
int zcz_own_nothing(struct zcz_store *s);
int zcz_own_poll(struct zcz_store *s, uint32_t wait_us);
/** by_group[step->ngroups], of a step that is none of skips. */
void zcz_own_scalars(const struct zcz_store *s, const struct zc_step *step,
                     struct zk_scalars *by_group);
/** The step is made: its notes are the newest, and this is its answer. */
void zcz_own_stepped(struct zcz_store *s, const struct zc_step *step, struct zc_stepped *ret);
void zcz_own_done(struct zcz_own *o);

/* ---- a GPU that gathers and gradients are on. device.c */

struct zcz_device {
    struct zk_gpu *gpu;            /* NULL: there is none, and all else is unused */
    struct zk_gpu_stream *compute; /* the trainer's, */
    struct zk_gpu_stream *up;      /* parameters on their way to the device, */
    struct zk_gpu_stream *down;    /* gradients on theirs to the host */
    uint32_t moving;               /* uploads and downloads in flight */
    void *arena;                   /* of the store, pinned; NULL */

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

/** The failure that it has no room. */
int zcz_device_fail(struct zc_zero *z, int rc, const struct zb_err *err);
int zcz_device_full(struct zc_zero *z, const struct zcz_pool *pool, const char *what,
                    const struct zcz_unit *u, size_t bytes);

/** Bytes that lie in pieces, so many apart. */
struct zcz_pieces {
    const void *data; /* of the host, or on the device where the store says so */
    size_t bytes;     /* of all pieces; the last may be shorter */
    size_t piece, stride;
};

/** Begins to fill b from byte `at` on with what lies in pieces, one behind the other, and zeros
 * behind them up to `bytes`. */
int zcz_device_up(struct zc_zero *z, struct zcz_buf *b, size_t at, const struct zcz_pieces *from,
                  size_t bytes);
/** With quantize_gather, between devices: begins to make this rank's part of u->wire of its slice,
 * which has come to its place in u->on_dev; */
int zcz_device_quantize(struct zc_zero *z, struct zcz_unit *u);
/** ... and begins to make u->on_dev of u->wire, which has all, and goes. */
int zcz_device_dequantize(struct zc_zero *z, struct zcz_unit *u);
/** Zeros the buffer, in the trainer's order. */
int zcz_device_zero(struct zc_zero *z, struct zcz_buf *b, size_t bytes);
/** Begins to bring a gradient to the host, as the unit's dtype says: r->on_dev to r->send. */
int zcz_device_down(struct zc_zero *z, struct zcz_reduce *r);
/** Between devices, instead: begins to make of r->on_dev what is exchanged, and arms that; */
int zcz_device_exchange(struct zc_zero *z, struct zcz_reduce *r);
/** ... and behind it, begins to add up this rank's slices, in rank order, and to bring the sum to
 * r->send. */
int zcz_device_sum(struct zc_zero *z, struct zcz_reduce *r);
/** Replicas > 1, in its place: begins to add up this rank's slice (not of stage 0, which has one),
 * and arms the exchange of its parts; */
int zcz_device_inside(struct zc_zero *z, struct zcz_reduce *r);
/** ... which are there: begins to add up this rank's part, and arms the gather of all sums; */
int zcz_device_part(struct zc_zero *z, struct zcz_reduce *r);
/** ... which are there, too: as zcz_device_sum(). */
int zcz_device_parts(struct zc_zero *z, struct zcz_reduce *r);
/** Starts a collective between devices, behind what its buffer's last work is. 0, the comm's
 * failure as *ret_comm_rc, or the device's. */
int zcz_device_start(struct zc_zero *z, struct zcz_coll *c, int *ret_comm_rc);
/** The trainer's works so far may use it, until they are done. NULL is fine. */
void zcz_device_used(struct zc_zero *z, const struct zcz_buf *b);
/** 1: what b->last stands behind is done; 0: not yet; or the failure. */
int zcz_device_done(struct zc_zero *z, const struct zcz_buf *b);

/* ---- what collectives are of, and whether all ranks make the same. calls.c */

enum zcz_call {
    ZCZ_CALL_NONE,
    ZCZ_CALL_GATHER, /* of units: parameters, */
    ZCZ_CALL_REDUCE, /* gradients between shards, */
    ZCZ_CALL_PARTS,  /* parts of them between replicas, */
    ZCZ_CALL_SUMS,   /* and their sums, */
    ZCZ_CALL_READ,   /* elements */
    ZCZ_CALL_SUM,
    ZCZ_CALL_STEP,
    ZCZ_CALL_COMMIT,
    ZCZ_CALL_OPTIONS, /* of the start */
    ZCZ_CALL_DEVICES,
    ZCZ_CALL_MEET,
    ZCZ_CALL_UNITS,
    ZCZ_CALL_ATTACH,
    ZCZ_CALL_POINTS,
    ZCZ_CALL_JOIN,
    ZCZ_CALL_RUN,
    ZCZ_CALL_START,
    ZCZ_CALL_COMPARE /* of calls, after a failure */
};

#define ZCZ_NO_UNIT   UINT32_MAX
#define ZCZ_CALLS_MAX 1024u

/* Stands for all collectives so far. */
struct zcz_seal {
    uint64_t count, hash;
};

struct zcz_calls {
    struct zcz_seal seal;
    uint64_t names[ZCZ_CALLS_MAX]; /* the last ones, number n at n % ZCZ_CALLS_MAX */
};

/** For error messages: "the gather of", with a unit after it. */
const char *zcz_call_noun(enum zcz_call call);
/** Counts a collective, and returns its name. */
uint64_t zcz_calls_add(struct zc_zero *z, enum zcz_call call, uint32_t unit, uint16_t detail);
/** The failure that this rank makes the collective `mine` where another makes `theirs`. */
int zcz_calls_fail(struct zc_zero *z, uint64_t mine, uint32_t rank, uint64_t theirs);
/** The same, where the backend says so of its last failure; else 0. */
int zcz_calls_refused(struct zc_zero *z, struct zc_comm *comm);
/** Shows all calls to all ranks, waiting that long for them. The failure that they differ; 0: they
 * do not, or the ranks could not be reached. */
int zcz_calls_compare(struct zc_zero *z, uint32_t patience_ms);

/** A slice of `bytes`, sealed, is so long. */
size_t zcz_sealed_bytes(size_t bytes);
void zcz_seal(const struct zc_zero *z, void *slice, size_t bytes);
/** Compares the seals of all slices and moves the slices together, `bytes` each. 0 or the failure.
 */
int zcz_unseal(struct zc_zero *z, void *slices, size_t bytes);

/* ---- collectives. coll.c */

enum zcz_coll_kind { ZCZ_ALL_GATHER, ZCZ_EXCHANGE };

struct zcz_coll {
    struct zb_list node; /* in z->queued, then in z->started */
    enum zcz_coll_kind kind;
    struct zc_comm *comm; /* among these ranks */
    uint64_t *bytes;      /* of z: what it sends is counted there; NULL: nowhere */
    enum zcz_call call;
    uint32_t unit; /* or ZCZ_NO_UNIT */
    uint64_t name;
    bool agreed;         /* every rank has the same name here */
    struct zcz_buf *dev; /* between devices: the buffer whose `last` is before and behind it */
    const void *send;
    void *recv;
    size_t slice_bytes;
    bool armed; /* the bytes are ready: it may start when it is its turn */
    bool done;
    struct zc_comm_op *op;
};

/** Takes a place in the order. What it sends counts as z->other_bytes, unless c->bytes is set then.
 * detail: what else must be the same on all ranks. */
void zcz_coll_queue(struct zc_zero *z, struct zcz_coll *c, enum zcz_coll_kind kind,
                    struct zc_comm *comm, enum zcz_call call, uint32_t unit, uint16_t detail);
/** The bytes are ready and belong to the collective until done. */
void zcz_coll_arm(struct zcz_coll *c, const void *send, void *recv, size_t slice_bytes);
/** The same between devices: the bytes are there when the works are done that dev->last is behind.
 */
void zcz_coll_arm_dev(struct zcz_coll *c, struct zcz_buf *dev, const void *send, void *recv,
                      size_t slice_bytes);
/** Starts and tests. 0 or the failure. */
int zcz_coll_turn(struct zc_zero *z);
/** A rank has left: the failure that it was because of other calls, where that is known; else 0. */
int zcz_coll_other(struct zc_zero *z);
/** Nothing has moved for too long: as zcz_calls_compare(), where nothing but collectives between
 * devices is in progress. */
int zcz_coll_stuck(struct zc_zero *z);
/** What stands in the way, as far as this rank can tell. */
void zcz_coll_describe(const struct zc_zero *z, char *text, size_t bytes);

/** Every rank's `mine`, in rank order; waits. On 0 *ret is from z->small: zcz_buf_put() it. */
int zcz_share(struct zc_zero *z, const void *mine, size_t bytes, enum zcz_call call,
              uint16_t detail, struct zcz_buf **ret);

/** The same in two halves. */
int zcz_share_begin(struct zc_zero *z, const void *mine, size_t bytes, enum zcz_call call,
                    uint16_t detail, struct zcz_buf **ret);
int zcz_share_wait(struct zc_zero *z);

/* ---- units */

enum zcz_gather_state { ZCZ_IDLE, ZCZ_FETCH, ZCZ_FETCHING, ZCZ_COLLECT, ZCZ_UPLOAD, ZCZ_READY };

struct zcz_unit {
    struct zc_unit def; /* names and tensors are ours */
    struct zb_layout layout;
    struct zk_segment *segments; /* stepped elements; neighbours of one group are one */
    uint32_t nsegments;
    uint64_t slice;        /* elements of every shard's slice */
    uint64_t first, count; /* this rank's, as stored; count may be 0 */
    uint64_t part;         /* replicas > 1: of a slice, what each replica adds up; replicas * part
                              may be more than the slice */

    /* gather.c */
    enum zcz_gather_state state;
    struct zb_list node; /* in z->gathers unless ZCZ_IDLE */
    uint32_t holds;      /* by the trainer */
    bool drop;           /* it was given up on its way, and goes when it is ready */
    bool unreduced;      /* gathered in this micro-step, and not reduced yet */
    uint32_t window;     /* z->window when it was last in the window: schedule.c; */
    uint32_t near;       /* ... and when it was last near enough to stay */
    struct zcz_op fetch;
    struct zc_view view;
    bool pinned; /* view is ours until released */
    struct zcz_coll coll;
    struct zcz_buf *wire;   /* codes and scales, of all ranks that share the unit */
    struct zcz_buf *buf;    /* of the host; where parameters are whole, for good */
    struct zcz_buf *on_dev; /* of the device, likewise, */
    bool copying;           /* where this rank's slice is, or is on its way */
    const void *params;     /* in ZCZ_READY: view.data or a buffer's */

    /* reduce.c */
    struct zcz_buf *grad;      /* that the trainer adds into, */
    bool asked;                /* ... in this micro-step; */
    struct zcz_buf *grad_kept; /* where gradients are whole: and between two uses */
    uint32_t micro;            /* micro-steps of this iteration that were reduced */
};

struct zcz_reduce {
    struct zb_list node; /* in z->reduces, or z->reduces_idle */
    struct zcz_unit *unit;
    uint32_t micro;
    struct zcz_buf *send, *more; /* more: NULL where both fit in send */
    void *recv;                  /* world slices in the unit's dtype, in rank order */
    struct zcz_buf *on_dev;      /* it is on its way from here: the trainer's buffer, */
    struct zcz_buf *rounded;     /* that in the unit's dtype; NULL for fp32, */
    struct zcz_buf *more_dev;    /* and what `more` is, between devices */
    bool summing;                /* between devices: their sum is on its way, fp32, as recv */
    struct zcz_coll coll;

    /* replicas > 1: this rank's slice is added up over them (all-reduced) before it is pushed */
    /* fp32[replicas * part], may be send, or on_dev; and what comes to it */
    struct zcz_buf *sums, *parts_in;
    struct zcz_coll parts, gather;
    bool followed; /* both have their places in the order */
    bool summed;   /* sums is what is pushed */

    uint64_t next; /* elements of the slice handed to the store */
};

/* Units, in the order in which they were gathered. */
struct zcz_order {
    uint32_t *units;
    uint32_t n;
    size_t room;
};

#define ZCZ_MACHINES 4u

/** Moves what it can of one kind of thing, and says so by z->moved. 0 or the failure. */
typedef int zcz_machine_fn(struct zc_zero *z);

struct zc_zero {
    zcz_machine_fn *machines[ZCZ_MACHINES]; /* filled at open, in the order of a turn */
    struct zc_zero_options options;         /* its strings are ours */
    char job[ZC_NAME_MAX + 1];
    struct zb_err error;
    int failed; /* 0, or the code that every call answers from now on */
    bool started;
    bool placing;    /* from here on, the store tells the others when this rank leaves */
    bool store_gone; /* its poll() failed */

    const struct zk_ops *kernels;
    struct zc_comm *comm;
    uint32_t rank, world;
    /* Units are cut into `shards` slices, of which this rank has number `shard`; `replicas` ranks
     * have the same one. Who exchanges slices, and who adds equal ones up; NULL where that is one
     * rank. shards * replicas = world. */
    uint32_t shards, shard, replicas, replica;
    struct zc_comm *inside, *across;
    bool splits;       /* the two are ours, made of comm */
    bool whole_params; /* gathered parameters stay until the next step: stages 1 and 2 */
    bool whole_grads;  /* gradients have memory of their own, whole: stage 1 */
    uint32_t nodes;    /* daemons that serve this job; each group of ranks counts for itself */
    uint32_t run;      /* which run this job is of: note.c */
    struct zcz_store *store;
    uint64_t resume_at;             /* the iterations of the step to go on from, */
    enum zc_commit resume_prepared; /* and what becomes of what this node has prepared: */
    uint64_t resume_prepared_at;    /* this step */
    uint64_t piece_elems; /* of initial values, gradients and reads that travel at one time */

    struct zcz_unit *units;
    uint32_t nunits;
    size_t units_room;
    uint32_t trainable;

    struct zb_list queued, started_colls;
    bool comm_broken; /* the backend said so: it is not called again */
    struct zcz_coll share;
    struct zcz_buf *shared; /* sealed slices that `share` brings, of so many bytes; NULL: opened */
    size_t shared_bytes;
    struct zcz_calls calls;
    struct zcz_coll words; /* the names of the collective that is next, of all ranks */
    struct zcz_buf *words_buf;
    struct zcz_pool gather_pool, wire_pool, grad_pool, small;
    struct zcz_pool whole_param, whole_grad; /* what is kept whole: on the device, or the host */

    struct zb_list gathers; /* units that are not idle, in the order in which they began */
    uint32_t pins;          /* fetches in flight, and views held */

    struct zcz_device device;
    struct zcz_pool gather_dev, wire_dev, grad_dev; /* on it */

    struct zb_list reduces, reduces_idle;
    struct zcz_reduce reduce_slots[ZCZ_REDUCES_MAX];
    struct zcz_op pushes;
    uint32_t micro;   /* micro-steps that are complete */
    uint32_t reduced; /* units reduced in the one in progress */

    bool announced;  /* the next step will have this learning rate, */
    bool announcing; /* which the store has not heard yet; */
    double announced_lr;
    struct zcz_op announce;
    bool stepping;             /* the store is doing one, */
    struct zcz_op step;        /* this, */
    struct zc_stepped stepped; /* and this will be its answer */
    enum zc_commit unsettled;  /* what that step was asked with, until all know how it went */
    bool saved;                /* the newest whole step is committed, as far as all ranks know */
    bool committing;           /* the daemon may take its time */
    struct zcz_op resolve;     /* of what was prepared; the next step waits for it */
    bool dropping;             /* ... it is dropped */
    struct zcz_op notes;       /* on their way */
    unsigned char *note;       /* of the job, on the first rank of a node: note.c */
    size_t note_bytes;
    struct zcz_scaler scaler; /* of the next step */
    struct zcz_op op;         /* of the one call at a time that is waited for */
    struct zc_norm norm;
    uint64_t iterations, applied; /* when `step` has finished */

    struct zcz_order order, seen; /* of the last micro-step that is complete, and since then */
    uint32_t order_at;            /* the gather that is expected next */
    uint32_t window;              /* grows with each: schedule.c */
    uint64_t live;                /* elements that are gathered, or on their way */

    uint32_t timeout_ms;  /* of calls to the store */
    uint32_t patience_ms; /* of zcz_wait() */
    bool moved;           /* something did, in this turn */
    uint64_t moved_ns;    /* when something did last */
    uint64_t stall_ns;
    uint64_t fetched_bytes, pushed_bytes;
    uint64_t gather_bytes, reduce_bytes, across_bytes, other_bytes; /* sent in collectives */
    struct zcz_store_stats base;                                    /* of the store, at the start */
};

/* ---- account.c */

/** This rank has the whole plane, beside its slice or around it. */
bool zcz_plane_whole(const struct zc_zero *z, enum zb_plane plane);
/** The store keeps the whole plane of this rank, of which its slice is a part. */
bool zcz_whole_in_store(const struct zc_zero *z, enum zb_plane plane);
/** Units are declared: whether options.memory_bytes is enough. A refusal. */
int zcz_account_check(struct zc_zero *z);

/* ---- engine.c */

/** Records a sentence for zc_zero_error() and returns code; the engine goes on. */
int zcz_refuse(struct zc_zero *z, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/** The same, and the engine is done for. Returns the code of the first failure. */
int zcz_fail(struct zc_zero *z, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/** Who has which slice: z->shards to z->whole_grads. A failure, which is final. */
int zcz_split(struct zc_zero *z);
/** The number among all of a rank of comm, which is z->comm or a part of it. */
uint32_t zcz_rank_of(const struct zc_zero *z, const struct zc_comm *comm, uint32_t rank);

/** What every public call begins with: 0, or why this engine does not answer. */
int zcz_enter(struct zc_zero *z, bool needs_start);
/** ... and a call that names a unit; *ret_unit on 0. */
int zcz_enter_unit(struct zc_zero *z, uint32_t index, struct zcz_unit **ret_unit);

/** Moves whatever can move; waits for the store up to wait_us when nothing can. */
int zcz_turn(struct zc_zero *z, uint32_t wait_us);

/* while (!condition && (rc = zcz_wait(z, &w)) == 0) ...: turns, sleeping longer the longer nothing
 * moves; -ETIMEDOUT after z's timeout without anything that moved. */
struct zcz_wait {
    const char *what; /* for the sentence: "the gradients to reach the store" */
    uint64_t begin_ns;
};
int zcz_wait(struct zc_zero *z, struct zcz_wait *w);
/** Waits for one call to the store and returns its code; op is zeroed. */
int zcz_wait_op(struct zc_zero *z, struct zcz_op *op, const char *what);

/**
 * All ranks say how they are, so that one that is refused does not leave the others waiting. 0 when
 * all are well; otherwise the engine fails, with the code and the sentence of the first that is
 * not.
 *
 * @param my_rc  ours; its sentence is in z->error
 * @param same   what must be equal on all ranks: the noun of `what` says what it stands for
 */
int zcz_vote(struct zc_zero *z, int my_rc, uint32_t same, enum zcz_call what);

/* ---- units.c */
void zcz_units_done(struct zc_zero *z);
/** Of everything that all ranks must have alike. */
uint32_t zcz_digest(const struct zc_zero *z);

/* ---- schedule.c */
/** The trainer gathers a unit that it did not hold. 0 or -ENOMEM. */
int zcz_schedule_gathered(struct zc_zero *z, uint32_t unit);
/** A micro-step is over: the next one is expected to repeat it. */
void zcz_schedule_learn(struct zc_zero *z);
/** A step is over. */
void zcz_schedule_rewind(struct zc_zero *z);
/** Begins what comes next, drops what does not; may wait for a gather that was given up. */
void zcz_schedule_apply(struct zc_zero *z);

/* ---- gather.c */
void zcz_gather_begin(struct zc_zero *z, struct zcz_unit *u);
void zcz_gather_drop(struct zc_zero *z, struct zcz_unit *u);
/** It was dropped, and is wanted: waits until it is idle. A failure is z's. */
void zcz_gather_gone(struct zc_zero *z, struct zcz_unit *u);
int zcz_gather_turn(struct zc_zero *z);

/** Whether a unit comes to be computed with as codes and scales: because it is kept so, or because
 * it travels so. */
static inline bool zcz_coded(const struct zc_zero *z, const struct zcz_unit *u)
{
    return u->layout.quantized || (z->options.quantize_gather && z->shards > 1 && !u->def.frozen);
}

/* ---- reduce.c */

/** How often each unit is reduced in a step: what the engine counts as its micro-steps. */
static inline uint32_t zcz_micro_steps(const struct zc_zero *z)
{
    return z->options.vertical ? 1 : z->options.micro_steps;
}

/** How often it is pushed, then. */
static inline uint32_t zcz_pushes(const struct zc_zero *z)
{
    return z->options.accumulate_local ? 1 : zcz_micro_steps(z);
}

int zcz_reduce_turn(struct zc_zero *z);
/** Every reduction that was asked for has all its places in the order. */
void zcz_reduce_follow(struct zc_zero *z);

/** fp32 elements of a unit's gradient, as the trainer gets it. */
static inline uint64_t zcz_grad_elems(const struct zc_zero *z, const struct zcz_unit *u)
{
    return z->shards > 1 ? u->slice * z->shards : u->part * z->replicas;
}

/** Adds `world` slices of `count` elements (slice of them apart), in rank order, into out. */
void zcz_add_slices(const struct zk_ops *ops, enum zb_dtype dtype, const void *slices,
                    uint32_t world, uint64_t slice, uint64_t first, uint64_t count, float *out);

/* ---- step.c */

int zcz_step_turn(struct zc_zero *z);

/* ---- commit.c */

/** Whether the step that has ended became durable, if it was to be: all ranks ask alike. A refusal
 * says that it did not, once. */
int zcz_commit_settle(struct zc_zero *z);
/** Waits until what was prepared is committed or dropped here; the failure is final. */
int zcz_commit_resolved(struct zc_zero *z);
/** Begins that. 0 or the failure, which is final. */
int zcz_commit_resolve(struct zc_zero *z, enum zc_commit what, uint64_t iterations);

/* ---- note.c */

/** The next step's note says that the loss scale is this behind it; waits until it is stored. */
int zcz_note_scale(struct zc_zero *z, const struct zcz_scaler *scaler);
/** A job of several nodes says with its first step which run it is of. */
int zcz_note_begin(struct zc_zero *z);
/** A dynamic loss scale is again what it was behind the step that the job goes on from. *ret_run:
 * the run that the job is of; 0: it does not say. */
int zcz_note_resume(struct zc_zero *z, uint32_t *ret_run);

/* ---- resume.c */

/* What one node has of a job. */
struct zcz_stand {
    uint64_t epoch;
    uint32_t npoints;
    struct zc_point points[ZC_POINTS_MAX];
};

/** The newest step that every node has: 0 and its iterations; -ENOENT: there is none. */
int zcz_resume_choose(const struct zcz_stand *stands, uint32_t n, uint64_t *ret_at);
/** What the node that has `iterations` prepared does with it: ZC_COMMIT_PREPARED, ZC_COMMIT_DROP.
 */
enum zc_commit zcz_resume_fate(const struct zcz_stand *stands, uint32_t n, uint64_t iterations);

/** Every rank attaches, and all choose the step. */
int zcz_resume_attach(struct zc_zero *z);
/** The job goes on: what was prepared is resolved. */
int zcz_resume_settle(struct zc_zero *z);

#endif
