/*
 * pass.h - units in a pass through the model: gathered, released, reduced.
 *
 * The interface of this room for those above, and its state. Its files also share pass_priv.h.
 */
#ifndef ZC_ZERO_PASS_H
#define ZC_ZERO_PASS_H

#include "client/zero/core/zero.h"

#define ZCZ_REDUCES_MAX  ZB_REDUCES_MAX /* reductions that may hold buffers */
#define ZCZ_PREFETCH_MAX ZB_PREFETCH_MAX

/* How the slices of a unit come together. */
enum zcz_way {
    ZCZ_WAY_COMM,  /* an all-gather of the ranks that share the unit */
    ZCZ_WAY_HOST,  /* each rank reads all slices in the store, by name: alone.c */
    ZCZ_WAY_NODES, /* it reads those of its node, and gets the others from its node's ranks, which
                      have gathered them from one rank of each other node: nodes.c */
};

enum zcz_gather_state { ZCZ_IDLE, ZCZ_FETCH, ZCZ_FETCHING, ZCZ_COLLECT, ZCZ_UPLOAD, ZCZ_READY };

/* The sums of a unit over several nodes: unit_sums.c. In this order. */
enum zcz_sums_state {
    ZCZ_SUMS_NONE,
    ZCZ_SUMS_PUSH,   /* its gradient is not in the store yet, or */
    ZCZ_SUMS_PUSHED, /* on its way there */
    ZCZ_SUMS_ASKED,  /* the store is asked for the sums of this rank's slice */
    ZCZ_SUMS_ARMED,
    ZCZ_SUMS_MERGED,
    ZCZ_SUMS_TOLD /* the store is told */
};

struct zcz_unit_sums {
    struct zb_list node; /* in pass->sums unless ZCZ_SUMS_NONE */
    enum zcz_sums_state state;
    bool placed; /* coll has its place in the order */
    struct zcz_coll coll;
    struct zcz_op op;
    struct zcz_buf *buf; /* the sums of each rank that shares the unit */
    size_t bytes;        /* of one rank */
};

struct zcz_pass_unit {
    struct zcz_unit *unit;

    /* pass.c: for the trainer's calls */
    uint32_t holds;
    bool interrupted; /* its last gather was interrupted, and will be called again */
    bool unreduced;   /* gathered in this micro-step, and not reduced yet */

    /* gather.c */
    enum zcz_gather_state state;
    struct zb_list node; /* in pass->gathers unless ZCZ_IDLE */
    bool drop;           /* dropped before it was ready: becomes idle when it is */
    struct zcz_op fetch;
    bool pinned; /* unit->view is pinned */
    struct zcz_coll coll;
    struct zcz_buf *wire;      /* codes and scales of all ranks that share the unit */
    struct zcz_buf *buf;       /* on the host; kept if parameters are whole */
    struct zcz_buf *on_dev;    /* the same on the device */
    bool copying;              /* this rank's slice was copied there, or is being copied; or down */
    struct zk_gpu_event *down; /* after the slice's copy to host memory; NULL: never copied */
    const void *params;        /* in ZCZ_READY: the data of the view or of a buffer */

    /* alone.c: how many slices that are read by name are in place, and how many are being fetched
     * or are pinned */
    uint32_t slices_done, slices_pinned;

    /* nodes.c */
    bool local;             /* the slices of this node are in place */
    struct zcz_coll mates;  /* coll is that of the column */
    struct zcz_buf *column; /* received from other nodes: this place's slices, */
    struct zcz_buf *remote; /* and those of all places */

    /* schedule.c */
    uint32_t window; /* pass->window when the unit was last in the window */
    uint32_t hint;   /* kept until the window has this number: zc_zero_prefetch() */
    uint32_t near;   /* pass->window when it was last near enough to be kept */

    /* reduce.c */
    struct zcz_buf *grad;      /* that the trainer adds into */
    bool asked;                /* zc_zero_grad() was called in this micro-step */
    struct zcz_buf *grad_kept; /* if gradients are whole: the buffer between two uses */
    uint32_t micro;            /* micro-steps of this iteration in which it was reduced */
    bool left;                 /* its gradient was sent to the other ranks in this iteration */

    /* unit_sums.c */
    struct zcz_unit_sums sums;
    bool summed; /* its sums of this iteration are in pass->sums_of */

    /* micro.c */
    bool *has; /* [def.ntensors]: tensors with a gradient on this rank in this iteration so far */
};

/* reduce.c and reduce_dev.c */
struct zcz_reduce {
    struct zb_list node; /* in pass->reduces, or pass->reduces_idle */
    struct zcz_unit *unit;
    uint32_t micro;
    struct zcz_buf *send, *more; /* more: NULL if both fit in send */
    void *recv;                  /* world slices in the unit's dtype, in rank order */
    struct zcz_buf *on_dev;      /* on a device: the trainer's buffer; NULL once copied */
    struct zcz_buf *rounded;     /* on a device: the same, rounded to the unit's dtype; NULL for
                                    fp32 */
    struct zcz_buf *more_dev;    /* between devices: what `more` is */
    bool summing;                /* between devices: the fp32 sum is on its way to recv */
    struct zcz_coll coll;

    /* replicas > 1: this rank's slice is summed over the replicas (all-reduced) before it is
     * pushed */
    struct zcz_buf *sums;     /* fp32[replicas * part]; may be send or on_dev */
    struct zcz_buf *parts_in; /* the parts received */
    struct zcz_coll parts, gather;
    bool followed; /* `parts` and `gather` have their places in the order */
    bool summed;   /* `sums` is what is pushed */

    uint64_t next; /* elements of the slice that were passed to the store */
};

/* Units, in the order of their gathers. */
struct zcz_order {
    uint32_t *units;
    uint32_t n;
    size_t room;
};

struct zcz_pass {
    struct zcz_pass_unit *units; /* [z->nunits]; NULL before the start */

    /* gather.c */
    struct zb_list gathers; /* units that are not idle, in the order in which they began */
    uint32_t pins;          /* fetches in flight and views held */
    struct zcz_pool gather_pool, wire_pool;
    struct zcz_pool gather_dev, wire_dev; /* on the device */
    uint64_t fetched_bytes;

    /* alone.c, unless slices are not read by name. `sources` slices of each unit are, all or those
     * of this node; source[] has their numbers, which ascend, and this rank's is source[own] */
    uint32_t sources, own, *source;
    uint64_t *names;       /* [z->nunits * sources]: names of slices in the store; 0: no slice */
    struct zc_view *views; /* of pinned slices, indexed like `names` */

    enum zcz_way way;           /* of gathers that begin now */
    enum zc_node_gather chosen; /* as asked for; else choose.c's */
    char chosen_why[192];       /* the reason, if it was not asked for */

    /* schedule.c */
    struct zcz_order order, seen; /* of the last complete micro-step, and since then */
    uint32_t order_at;            /* the gather that is expected next */
    uint32_t window;              /* number of the window, which grows with each */
    uint64_t live;                /* elements gathered or on their way */

    /* reduce.c */
    struct zb_list reduces, reduces_idle;
    struct zcz_reduce reduce_slots[ZCZ_REDUCES_MAX];
    struct zcz_pool grad_pool;
    struct zcz_pool grad_dev; /* on the device */
    struct zcz_op pushes;
    uint32_t micro;   /* complete micro-steps */
    uint32_t reduced; /* units reduced in the micro-step in progress */
    uint64_t pushed_bytes;
    uint64_t changes; /* grows when a gradient is sent, and when a new step begins */

    /* unit_sums.c */
    struct zk_xsum *sums_of; /* by trained tensor: zcz_sums_use() */
    struct zb_list sums;

    /* micro.c */
    bool *has; /* the flags of all units */
    /* micro_steps 0: */
    bool open;       /* a micro-step is in progress, */
    bool leaves;     /* whose gradients are sent to the other ranks, */
    uint32_t next;   /* except, so far, units below this number */
    bool held;       /* micro-steps have added to gradients held here */
    uint32_t rounds; /* how often all units were sent in this iteration */
};

/** Called when the engine opens. */
void zcz_pass_open(struct zc_zero *z, uint32_t prefetch_units);
/** Called in the start, when the store has the slices. Afterwards every unit can be gathered. 0 or
 * a refusal. */
int zcz_pass_start(struct zc_zero *z);
/** Called in the start, when the store has named the slices. If slices are read by name, or may
 * be, ranks exchange these names. Collective. 0, a refusal or the failure. */
int zcz_alone_start(struct zc_zero *z);
/** The end of the start: with ZC_NODE_GATHER_AUTO, measures and chooses. Collective. 0 or the
 * failure. */
int zcz_choose(struct zc_zero *z);
/** Forgets these names: before the store is replaced, and at the end. */
void zcz_alone_done(struct zc_zero *z);
/** Whether no unit is gathered, being gathered or being reduced. */
bool zcz_pass_idle(const struct zc_zero *z);
/** Whether no unit is being reduced, so the store has every gradient. */
bool zcz_reduce_idle(const struct zc_zero *z);
/** Called at the end: drops all gathered units, even those that the trainer holds, and lets
 * reductions in progress finish. */
void zcz_pass_let_go(struct zc_zero *z);
/** Before a step is abandoned: ends the micro-step in progress, so that all ranks have made the
 * same collectives. 0, or a refusal: if zc_zero_micro() did not begin the micro-step, ranks cannot
 * know how far the others are in it. */
int zcz_micro_abandon(struct zc_zero *z);
/** Drops gradients that the trainer has added up here and not passed on. */
void zcz_reduce_drop(struct zc_zero *z);
/** A step has begun: resets the count of micro-steps, and begins gathers again. */
void zcz_pass_rewind(struct zc_zero *z);
/** orphans: as zcz_pool_done(). */
void zcz_pass_close(struct zc_zero *z, bool orphans);

/* Machines. */
int zcz_gather_turn(struct zc_zero *z);
int zcz_reduce_turn(struct zc_zero *z);

/** Sets where the sums of each unit go, which are exchanged with its last gradient of a step; NULL: they
 * are not, in the next step. unit_sums.c. The same on all ranks; no unit is being reduced. */
void zcz_sums_use(struct zc_zero *z, struct zk_xsum *sums_of);
/** Whether the sums of all trained units of this iteration are there: the same on all ranks. */
bool zcz_sums_all(const struct zc_zero *z);
/** Queues the remaining collectives of every reduction that was asked for. */
void zcz_reduce_follow(struct zc_zero *z);

/** Whether this rank has a gradient for this tensor of the unit (in order of declaration) in any
 * micro-step of the iteration so far, as reported by zc_zero_reduce_of(). */
bool zcz_reduced_has(const struct zc_zero *z, uint32_t unit, uint32_t tensor);

/** Whether this rank is between two steps: no gradient of the next one was asked for or passed
 * on. */
bool zcz_micro_between(const struct zc_zero *z);
/** Whether the micro-steps allow a step: 0, or a refusal if there was none. */
int zcz_micro_check(struct zc_zero *z);
/** With micro_steps 0: ends the micro-step in progress, and exchanges gradients that are held; all
 * ranks make the same calls. Afterwards the store gets every gradient. Otherwise does nothing. */
int zcz_micro_settle(struct zc_zero *z);
/** Number of micro-steps of this iteration: those made so far, or the number in the options. */
uint32_t zcz_micro_made(const struct zc_zero *z);
/** Called before the unit's parameters change, so that the next gather fetches them again. -EBUSY:
 * the trainer holds the unit; or the failure. */
int zcz_pass_forget(struct zc_zero *z, struct zcz_unit *u);
/** Drops gathered units that are not held. Called before a step. */
void zcz_pass_drop(struct zc_zero *z);
/** Whether the unit was reduced in this iteration on any rank, so that its gradient is not just
 * zeros. */
bool zcz_reduced_any(const struct zc_zero *z, uint32_t unit);
/** Returns a number that changes whenever a gradient may have changed; never 0. */
uint64_t zcz_reduced_changes(const struct zc_zero *z);

/** Whether the store has a gradient of the unit in this iteration, or will have one when the
 * reductions in progress are done. */
bool zcz_reduced_there(const struct zc_zero *z, const struct zcz_unit *u);

/** Adds `world` slices of `count` elements, `slice` elements apart, in rank order, into out. */
void zcz_add_slices(const struct zk_ops *ops, enum zb_dtype dtype, const void *slices,
                    uint32_t world, uint64_t slice, uint64_t first, uint64_t count, float *out);

#endif
