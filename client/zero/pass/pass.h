/*
 * pass.h - units in a pass through the model: gathered, released, reduced.
 *
 * What rooms above may ask of this one, and the state behind it. The files of this room share
 * pass_priv.h besides.
 */
#ifndef ZC_ZERO_PASS_H
#define ZC_ZERO_PASS_H

#include "client/zero/core/zero.h"

#define ZCZ_REDUCES_MAX  ZB_REDUCES_MAX /* that hold buffers; then zc_zero_reduce() waits */
#define ZCZ_PREFETCH_MAX ZB_PREFETCH_MAX

enum zcz_gather_state { ZCZ_IDLE, ZCZ_FETCH, ZCZ_FETCHING, ZCZ_COLLECT, ZCZ_UPLOAD, ZCZ_READY };

struct zcz_pass_unit {
    struct zcz_unit *unit;

    /* pass.c: the trainer's calls */
    uint32_t holds;
    bool interrupted; /* its last gather was, and is to be called again */
    bool unreduced;   /* gathered in this micro-step, and not reduced yet; reduce.c ends it */

    /* gather.c */
    enum zcz_gather_state state;
    struct zb_list node; /* in pass->gathers unless ZCZ_IDLE */
    bool drop;           /* it was given up on its way, and goes when it is ready */
    struct zcz_op fetch;
    bool pinned; /* unit->view is ours until released */
    struct zcz_coll coll;
    struct zcz_buf *wire;   /* codes and scales, of all ranks that share the unit */
    struct zcz_buf *buf;    /* of the host; where parameters are whole, for good */
    struct zcz_buf *on_dev; /* of the device, the same, */
    bool copying;           /* where this rank's slice is, or is on its way */
    const void *params;     /* in ZCZ_READY: the view's data or a buffer's */

    /* alone.c: of a gather that is this rank's own, slices that are in their place, and those that
     * are being fetched, or pinned */
    uint32_t slices_done, slices_pinned;

    /* schedule.c */
    uint32_t window; /* pass->window when it was last in the window, */
    uint32_t hint;   /* it waits until the window has this number: zc_zero_prefetch() */
    uint32_t near;   /* and when it was last near enough to stay */

    /* reduce.c */
    struct zcz_buf *grad;      /* that the trainer adds into, */
    bool asked;                /* in this micro-step; */
    struct zcz_buf *grad_kept; /* where gradients are whole: and between two uses */
    uint32_t micro;            /* micro-steps of this iteration that were reduced */
    bool left;                 /* in this iteration, for the other ranks */

    /* micro.c */
    bool *has; /* [def.ntensors]: got a gradient on this rank in this iteration, so far */
};

/* reduce.c and reduce_dev.c */
struct zcz_reduce {
    struct zb_list node; /* in pass->reduces, or pass->reduces_idle */
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
    struct zcz_buf *sums;     /* fp32[replicas * part], may be send, or on_dev, */
    struct zcz_buf *parts_in; /* and what comes to it */
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

struct zcz_pass {
    struct zcz_pass_unit *units; /* [z->nunits]; NULL before the start */

    /* gather.c */
    struct zb_list gathers; /* units that are not idle, in the order in which they began */
    uint32_t pins;          /* fetches in flight, and views held */
    struct zcz_pool gather_pool, wire_pool;
    struct zcz_pool gather_dev, wire_dev; /* on the device */
    uint64_t fetched_bytes;

    /* alone.c */
    bool alone;      /* gathers are this rank's own affair: no collectives */
    uint64_t *names; /* [z->nunits * z->shards] of the slices, for the store; 0: there is none */
    struct zc_view *views; /* of slices that are pinned, as `names` */

    /* schedule.c */
    struct zcz_order order, seen; /* of the last micro-step that is complete, and since then */
    uint32_t order_at;            /* the gather that is expected next */
    uint32_t window;              /* grows with each */
    uint64_t live;                /* elements that are gathered, or on their way */

    /* reduce.c */
    struct zb_list reduces, reduces_idle;
    struct zcz_reduce reduce_slots[ZCZ_REDUCES_MAX];
    struct zcz_pool grad_pool;
    struct zcz_pool grad_dev; /* on the device */
    struct zcz_op pushes;
    uint32_t micro;   /* micro-steps that are complete */
    uint32_t reduced; /* units reduced in the one in progress */
    uint64_t pushed_bytes;
    uint64_t changes; /* grows when a gradient leaves, and when they begin anew */

    /* micro.c */
    bool *has; /* of all units */
    /* micro_steps 0: */
    bool open;       /* a micro-step is in progress, */
    bool leaves;     /* whose gradients leave for the other ranks, */
    uint32_t next;   /* but units below this number have not yet */
    bool held;       /* micro-steps have added to what is held here */
    uint32_t rounds; /* in which all units have left, in this iteration */
};

/** At open. */
void zcz_pass_open(struct zc_zero *z, uint32_t prefetch_units);
/** At the start, when the store has its slices: every unit can be gathered. A refusal. */
int zcz_pass_start(struct zc_zero *z);
/** At the start, when the store has named the slices: ranks whose gathers are their own tell each other
 * these names. Collective. A refusal, or the failure. */
int zcz_alone_start(struct zc_zero *z);
/** Nothing is gathered, on its way to be, or being reduced. */
bool zcz_pass_idle(const struct zc_zero *z);
/** Nothing is being reduced: the store has every gradient. */
bool zcz_reduce_idle(const struct zc_zero *z);
/** The end: whatever the trainer still holds goes, and what is being reduced may end. */
void zcz_pass_let_go(struct zc_zero *z);
/** Before a step is abandoned: the micro-step that is in progress ends, so that every rank has made the same collectives. 0 or
 * a refusal: ranks cannot know how far the others are in one that zc_zero_micro() did not begin. */
int zcz_micro_abandon(struct zc_zero *z);
/** What the trainer has added up here, and not handed over, goes. */
void zcz_reduce_drop(struct zc_zero *z);
/** A step has begun: micro-steps count from 0, and gathers begin anew. */
void zcz_pass_rewind(struct zc_zero *z);
/** orphans: as zcz_pool_done(). */
void zcz_pass_close(struct zc_zero *z, bool orphans);

/* Machines. */
int zcz_gather_turn(struct zc_zero *z);
int zcz_reduce_turn(struct zc_zero *z);

/** Every reduction that was asked for has all its places in the order. */
void zcz_reduce_follow(struct zc_zero *z);

/** Whether this rank gave that tensor of the unit (in order of declaration) a gradient, in any
 * micro-step of the iteration so far: as zc_zero_reduce_of() was told. */
bool zcz_reduced_has(const struct zc_zero *z, uint32_t unit, uint32_t tensor);

/** Between two steps: no gradient of the next one was asked for, or handed over, on this rank. */
bool zcz_micro_between(const struct zc_zero *z);
/** A step may come as far as micro-steps go: 0, or the refusal that there was none. */
int zcz_micro_check(struct zc_zero *z);
/** With micro_steps 0: what is in progress ends, and what is held leaves for the other ranks: the same
 * calls on all of them. Then the store gets every gradient. Else nothing. */
int zcz_micro_settle(struct zc_zero *z);
/** Micro-steps of this iteration: those that were made, or as options say. */
uint32_t zcz_micro_made(const struct zc_zero *z);
/** The unit's parameters will change: they are gathered anew when they are asked for again. -EBUSY: the
 * trainer holds them; or the failure. */
int zcz_pass_forget(struct zc_zero *z, struct zcz_unit *u);
/** What is gathered and held by nobody is dropped: a step is about to come. */
void zcz_pass_drop(struct zc_zero *z);
/** Whether the unit was reduced in this iteration, on any rank: its gradient is more than zeros. */
bool zcz_reduced_any(const struct zc_zero *z, uint32_t unit);
/** Differs whenever a gradient may have changed; never 0. */
uint64_t zcz_reduced_changes(const struct zc_zero *z);

/** Whether the store has, or will have when nothing is being reduced, a gradient of the unit in this
 * iteration. */
bool zcz_reduced_there(const struct zc_zero *z, const struct zcz_unit *u);

/** Adds `world` slices of `count` elements (slice of them apart), in rank order, into out. */
void zcz_add_slices(const struct zk_ops *ops, enum zb_dtype dtype, const void *slices,
                    uint32_t world, uint64_t slice, uint64_t first, uint64_t count, float *out);

#endif
