/*
 * zero.h - struct zc_zero: what the rooms of the engine share.
 *
 * MODEL. Nothing here runs by itself: zcz_turn() moves whatever can move and returns, and a call
 * that has to wait is a loop around it (zcz_wait()). What moves is moved by four machines:
 *
 *     gathers      one of each unit: fetch the slice, gather the slices, be read, be dropped
 *                  (pass/gather.c)
 *
 *     reductions   a short list: exchange the slices, add them up, push the sum (pass/reduce.c)
 *
 *     the step     at most one, running in the store (step/step.c)
 *
 *     collectives  queued in the order that the trainer's calls give, and started in that order,
 *                  each when its bytes are ready (core/coll.c)
 *
 * A call to the store that is in flight is a struct zcz_op: a count and a code, which the machines
 * look at. No callback of ours decides anything.
 *
 * ORDER. Ranks start the same collectives in the same order, or none of it works. So whatever
 * queues a collective is decided by the trainer's calls alone, never by when something finished:
 * what to prefetch, what to drop, when to exchange. calls.c finds ranks that differ.
 *
 * FAILURE. What a caller did wrong is refused (zcz_refuse()) and changes nothing. Everything else
 * is final (zcz_fail()): the ranks are no longer in step, so from then on every call answers with
 * that code and error message, and zc_zero_close() waits for nobody.
 *
 * OWNERS. Each field has one file, or one room, that writes it; the others read it (`./` is
 * client/zero/ itself, and tests/check_rooms.py holds it). What only one room above this one knows
 * is in a struct of that room's, behind a pointer.
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
#include "client/zero/core/ranks.h"
#include "client/zero/core/store.h"
#include "client/zero/core/turn.h"
#include "client/zero/core/vote.h"
#include "client/zero/zc_zero.h"
#include "kernels/zk.h"
#include "kernels/zk_page.h"

#define ZCZ_FAREWELL_MS 1000u /* how long a rank that failed waits to tell the others why */
#define ZCZ_REASON_MS   100u  /* ... and for the reason of one that is lost to arrive */

struct zcz_pass;
struct zcz_pass_unit;
struct zcz_steps;

struct zcz_unit {
    /* ---- ./: units.c, when it is declared */
    struct zc_unit def; /* names and tensors are ours */
    struct zb_layout layout;
    struct zk_segment *segments; /* stepped elements; neighbours of one group are one */
    uint32_t nsegments;
    uint64_t slice;        /* elements of every shard's slice */
    uint64_t first, count; /* this rank's, as stored; count may be 0 */
    uint64_t part;         /* replicas > 1: of a slice, what each replica adds up; replicas * part
                              may be more than the slice */

    /* ---- ./: freeze.c, between two steps */
    bool frozen_now; /* by zc_zero_freeze(): trainable, with state, and left alone */

    /* ---- store/: */
    struct zc_view view;              /* what fetch() brought, until release() */
    struct zcz_buf *whole[ZB_PLANES]; /* what zcz_whole_in_store(); else NULL */

    /* ---- pass/: pass.h; from the start on */
    struct zcz_pass_unit *pass;
};

struct zc_zero {
    /* ---- ./: engine.c, at open */
    struct zc_zero_options options; /* its strings are ours */
    char job[ZC_NAME_MAX + 1];
    const struct zk_ops *kernels;
    struct zc_comm *comm;
    uint32_t rank, world;
    uint32_t nodes;      /* daemons that serve this job; each group of ranks counts for itself */
    uint32_t timeout_ms; /* of calls to the store */
    struct zcz_store *store;

    /* ---- core/: ranks.c, at open. Units are cut into `shards` slices, of which this rank has number `shard`;
     * `replicas` ranks have the same one. Who exchanges slices, and who adds equal ones up; NULL
     * where that is one rank. shards * replicas = world. */
    uint32_t shards, shard, replicas, replica;
    struct zc_comm *inside, *across;
    bool splits;       /* the two are ours, made of comm */
    bool whole_params; /* gathered parameters stay until the next step: stages 1 and 2 */
    bool whole_grads;  /* gradients have memory of their own, whole: stage 1 */

    /* ---- ./: units.c */
    struct zcz_unit *units;
    uint32_t nunits;
    size_t units_room;
    uint32_t trainable;

    /* ---- ./: freeze.c */
    uint32_t frozen; /* of these, frozen_now */

    /* ---- ./: start.c */
    bool started;
    bool placing; /* from here on, the store tells the others when this rank leaves */

    /* ---- core/: fail.c */
    struct zb_fork fork;
    bool forked; /* this is a child of the process that opened it */

    /* ---- core/: fail.c; vote.c lifts a failure for as long as a farewell takes */
    struct zb_err error;
    int failed; /* 0, or the code that every call answers from now on */

    /* ---- core/: each of its file */
    struct zcz_turns turns;
    struct zcz_guard guard;
    struct zcz_colls colls;
    struct zcz_shares shares;
    struct zcz_calls calls;
    struct zcz_device device;
    bool comm_broken; /* said by the backend to whoever called it: it is not called again */

    struct zcz_pool small;                   /* of votes, and of what is read */
    struct zcz_pool whole_param, whole_grad; /* what is kept whole: on the device, or the host */
    struct zcz_op op; /* of the one call to the store at a time that is waited for */

    /* ---- step/: how far it is */
    uint64_t iterations, applied; /* when the step in progress has finished */
    bool stepping;                /* the store is doing one */
    bool committing;              /* the daemon may take its time */

    /* ---- ./: engine.c, at open; what they point to is those rooms' */
    struct zcz_pass *pass;   /* pass/pass.h */
    struct zcz_steps *steps; /* step/step.h */

    /* ---- ./: stats.c */
    struct zcz_store_stats base; /* of the store, at the start */
};

/** Something has moved: the turn continues. */
static inline void zcz_moved(struct zc_zero *z)
{
    z->turns.moved = true;
}

/** Whether it takes gradients, and is stepped, now. */
static inline bool zcz_unit_trained(const struct zcz_unit *u)
{
    return !u->def.frozen && !u->frozen_now;
}

/** Units that do. */
static inline uint32_t zcz_trained(const struct zc_zero *z)
{
    return z->trainable - z->frozen;
}

/** Whether it is stepped, where a step has a class for it; frozen_now or not. */
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

/** How often each unit is reduced in a step: what the engine counts as its micro-steps. */
static inline uint32_t zcz_micro_steps(const struct zc_zero *z)
{
    return z->options.vertical ? 1 : z->options.micro_steps;
}

/** How often it is pushed, then; 0: as often as it comes to it (micro_steps 0). */
static inline uint32_t zcz_pushes(const struct zc_zero *z)
{
    return z->options.accumulate_local && z->options.micro_steps > 0 ? 1 : zcz_micro_steps(z);
}

/** fp32 elements of a unit's gradient, as the trainer gets it. */
static inline uint64_t zcz_grad_elems(const struct zc_zero *z, const struct zcz_unit *u)
{
    return z->shards > 1 ? u->slice * z->shards : u->part * z->replicas;
}

/** Whether a unit comes to be computed with as codes and scales: because it is kept so, or because
 * it travels so. */
static inline bool zcz_coded(const struct zc_zero *z, const struct zcz_unit *u)
{
    return u->layout.quantized || (z->options.quantize_gather && z->shards > 1 && !u->def.frozen);
}

#endif
