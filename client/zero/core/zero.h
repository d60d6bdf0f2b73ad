/*
 * zero.h - struct zc_zero: the state that the rooms of the engine share.
 *
 * MODEL. Nothing here runs by itself: zcz_turn() advances whatever can move and returns. A call
 * that has to wait is a loop around it (zcz_wait()). Four machines do the work:
 *
 *     gathers      one per unit: fetches the slice, gathers all slices, makes them readable, drops
 *                  them (pass/gather.c)
 *
 *     reductions   a short list: exchanges slices, adds them, pushes the sum (pass/reduce.c)
 *
 *     the step     at most one, running in the store (step/step.c)
 *
 *     collectives  queued in the order of the trainer's calls, and started in that order, each when
 *                  its bytes are ready (core/coll.c)
 *
 * A call to the store that is in flight is a struct zcz_op, a count and a code, which the machines
 * check. Callbacks make no decisions.
 *
 * ORDER. All ranks must start the same collectives in the same order. So the trainer's calls alone
 * decide what is queued (what to prefetch, what to drop, when to exchange), never the time when
 * something finished. calls.c detects ranks that differ.
 *
 * FAILURE. A wrong call is refused (zcz_refuse()) and changes nothing. Every other failure is final
 * (zcz_fail()): the ranks are no longer in step. From then on, every call returns that code and
 * error message, and zc_zero_close() does not wait for other ranks.
 *
 * OWNERS. Each field is written by one file or one room; the others read it. `./` is client/zero/
 * itself. tests/check_rooms.py checks this. State that only one room above this one needs is in a
 * struct of that room, behind a pointer.
 */
#ifndef ZC_ZERO_CORE_H
#define ZC_ZERO_CORE_H

#include "base/err.h"
#include "base/fork.h"
#include "base/model.h"
#include "base/plan.h"
#include "base/util.h"
#include "client/zero/core/buf.h"
#include "client/zero/core/calls.h"
#include "client/zero/core/coll.h"
#include "client/zero/core/device.h"
#include "client/zero/core/fail.h"
#include "client/zero/core/guard.h"
#include "client/zero/core/nodes.h"
#include "client/zero/core/ranks.h"
#include "client/zero/core/store.h"
#include "client/zero/core/turn.h"
#include "client/zero/core/vote.h"
#include "client/zero/zc_zero.h"
#include "kernels/zk.h"
#include "kernels/zk_page.h"

#define ZCZ_FAREWELL_MS 1000u /* how long a rank that failed tries to tell the others why */
#define ZCZ_REASON_MS   100u  /* how long to wait for the reason why a rank left */

struct zcz_pass;
struct zcz_pass_unit;
struct zcz_steps;

struct zcz_unit {
    /* ---- ./: units.c, when it is declared */
    struct zc_unit def; /* names and tensors are copies */
    struct zb_layout layout;
    /* trained tensors (zcz_tensor_trained()): how many, and the number of the first one among those of all units */
    uint32_t ntrained, trained_first;
    struct zk_segment *segments; /* elements that are stepped; adjacent ones of one group are
                                    merged */
    uint32_t nsegments;
    uint64_t slice;        /* elements of a slice, the same for every shard */
    uint64_t first, count; /* this rank's slice, as stored; count may be 0 */
    uint64_t part;         /* replicas > 1: elements of a slice that each replica adds; replicas *
                              part may be more than the slice */

    /* ---- ./: freeze.c, between two steps */
    bool frozen_now; /* by zc_zero_freeze(): declared trainable and has state, but not trained */

    /* ---- store/: */
    struct zc_view view;              /* set by fetch(), until release() */
    struct zcz_buf *whole[ZB_PLANES]; /* planes that are whole in the store (zcz_whole_in_store());
                                         else NULL */

    /* ---- pass/: pass.h; from the start on */
    struct zcz_pass_unit *pass;
};

/* Who has been told of the next step by its announcement. */
enum zcz_said { ZCZ_SAID_NO, ZCZ_SAID_ENGINE, ZCZ_SAID_STORE };

struct zc_zero {
    /* ---- ./: engine.c, at open */
    struct zc_zero_options options; /* its strings are copies */
    char job[ZC_NAME_MAX + 1];
    const struct zk_ops *kernels;
    struct zc_comm *comm;
    uint32_t rank, world;
    uint32_t nodes;      /* daemons that serve this job; each group of ranks counts for itself */
    uint32_t timeout_ms; /* for calls to the store */
    struct zcz_store *store;

    /* ---- core/: ranks.c, at open. Units are cut into `shards` slices; this rank has number
     * `shard`. `replicas` ranks have the same slice. Ranks exchange slices over `inside` and add
     * equal slices over `across`; each is NULL if it would be one rank. shards * replicas =
     * world. */
    uint32_t shards, shard, replicas, replica;
    struct zc_comm *inside, *across;
    bool splits;       /* inside and across were made by split() */
    bool whole_params; /* gathered parameters are kept until the next step: stages 1 and 2 */
    bool whole_grads;  /* each unit has a gradient buffer of its own, whole: stage 1 */

    /* ---- ./: units.c */
    struct zcz_unit *units;
    uint32_t nunits;
    size_t units_room;
    uint32_t trainable;

    /* ---- ./: freeze.c */
    uint32_t frozen; /* units with frozen_now */

    /* ---- ./: start.c */
    bool started;
    bool placing; /* from here on, the store tells the other ranks when this rank leaves */

    /* ---- ./: again.c, set by engine.c: attaches again. Collective, between two steps. 0: the job
     * continues from the step that it was at; ZC_ROLLED_BACK: from z->iterations; or the failure */
    int (*again)(struct zc_zero *z);

    /* ---- core/: fail.c */
    struct zb_fork fork;
    bool forked; /* this process is a child of the one that opened the engine */

    /* ---- core/: fail.c; vote.c clears `failed` while it tells the other ranks why */
    struct zb_err error;
    int failed; /* 0, or the code that every call returns */

    /* ---- core/: each field by the file of its name */
    struct zcz_turns turns;
    struct zcz_guard guard;
    struct zcz_colls colls;
    struct zcz_shares shares;
    struct zcz_calls calls;
    struct zcz_device device;
    struct zcz_nodes near; /* nodes.c: who shares a daemon */
    bool comm_broken;      /* the backend has reported a failure, and is not called again */

    struct zcz_pool small;                   /* for votes and reads */
    struct zcz_pool whole_param, whole_grad; /* for what is kept whole, on the device or the host */
    struct zcz_op op; /* for the one call to the store that may be waited for */

    /* ---- step/: progress */
    uint64_t iterations, applied; /* including the step in progress */
    bool stepping;                /* a step is in progress in the store */
    bool committing;              /* a commit is in progress, which may take any time */
    enum zcz_said said;           /* the announcement of the next step, */
    /* with micro_steps 0: how many micro-steps the announced step has, and how often each unit is
     * pushed in it; 0: not announced */
    uint32_t said_micros, said_pushes;

    /* ---- ./: engine.c, at open; each struct belongs to its room */
    struct zcz_pass *pass;   /* pass/pass.h */
    struct zcz_steps *steps; /* step/step.h */

    /* ---- ./: account.c */
    struct zcz_store_stats base; /* counts of the store at the start, less what was kept */
};

/** Whether the next step is announced. */
static inline bool zcz_announced(const struct zc_zero *z)
{
    return z->said != ZCZ_SAID_NO;
}

/** Something has moved, so the turn continues. */
static inline void zcz_moved(struct zc_zero *z)
{
    z->turns.moved = true;
}

/** Whether the unit is trained now: takes gradients, and is stepped. */
static inline bool zcz_unit_trained(const struct zcz_unit *u)
{
    return !u->def.frozen && !u->frozen_now;
}

/** Number of units that are trained now. */
static inline uint32_t zcz_trained(const struct zc_zero *z)
{
    return z->trainable - z->frozen;
}

/** Whether the tensor is stepped if a step has a class for it; ignores frozen_now. */
static inline bool zcz_tensor_trained(const struct zcz_unit *u, uint32_t tensor)
{
    return !u->def.frozen && u->def.tensors[tensor].group != ZC_GROUP_FROZEN;
}

static inline uint64_t zcz_tensor_elems(const struct zc_tensor *t)
{
    uint64_t count = 1;

    for (uint32_t d = 0; d < t->ndims; d++)
        count *= t->dims[d];
    return count;
}

/** How often each unit is reduced in a step: the micro-steps that the engine sees. */
static inline uint32_t zcz_micro_steps(const struct zc_zero *z)
{
    return z->options.vertical ? 1 : z->options.micro_steps;
}

/** How often each unit is pushed in a step; 0: not known (micro_steps 0, and no announcement). */
static inline uint32_t zcz_pushes(const struct zc_zero *z)
{
    if (z->options.micro_steps == 0)
        return z->said_pushes;
    return z->options.accumulate_local ? 1 : zcz_micro_steps(z);
}

/** fp32 elements of a unit's gradient, in the buffer that the trainer gets. */
static inline uint64_t zcz_grad_elems(const struct zc_zero *z, const struct zcz_unit *u)
{
    return z->shards > 1 ? u->slice * z->shards : u->part * z->replicas;
}

/** Whether a unit arrives as codes and scales, because it is stored or sent in that form. */
static inline bool zcz_coded(const struct zc_zero *z, const struct zcz_unit *u)
{
    return u->layout.quantized || (z->options.quantize_gather && z->shards > 1 && !u->def.frozen);
}

#endif
