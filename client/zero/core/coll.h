/*
 * coll.h - collectives, in one order on every rank: coll.c.
 */
#ifndef ZC_ZERO_COLL_H
#define ZC_ZERO_COLL_H

#include "base/util.h"
#include "client/zero/core/calls.h"
#include "client/zero/zc_zero.h"

struct zcz_buf;

struct zcz_coll {
    struct zb_list node;  /* in queued, then in started */
    struct zc_comm *comm; /* among these ranks */
    enum zcz_call call;
    uint32_t unit; /* or ZCZ_NO_UNIT */
    bool names;    /* it brings the names of the one that is next */
    uint64_t name;
    bool agreed;         /* every rank has the same name here */
    struct zcz_buf *dev; /* between devices: its `last` is before the collective, and after it */
    const void *send;
    void *recv;
    size_t slice_bytes;
    bool armed; /* the bytes are ready: it may start when it is its turn */
    bool done;
    struct zc_comm_op *op;
};

/* Bytes that this rank has sent, since zcz_coll_clear(). */
struct zcz_sent {
    uint64_t gather, reduce, across, other;
};

struct zcz_colls {
    struct zb_list queued, started; /* in the order of their places */
    struct zcz_coll words;          /* the names of the one that is next, of all ranks, */
    struct zcz_buf *words_buf;      /* in this; NULL: they are not on their way */
    struct zcz_sent sent;
};

/** An exchange; else an all-gather. */
static inline bool zcz_coll_exchanges(const struct zcz_coll *c)
{
    return !c->names && (c->call == ZCZ_CALL_REDUCE || c->call == ZCZ_CALL_PARTS);
}

void zcz_coll_init(struct zc_zero *z);
/** Counts what is sent from 0 on. */
void zcz_coll_clear(struct zc_zero *z);
/** Takes a place in the order. detail: what else must be the same on all ranks. */
void zcz_coll_queue(struct zc_zero *z, struct zcz_coll *c, struct zc_comm *comm, enum zcz_call call,
                    uint32_t unit, uint16_t detail);
/** The bytes are ready and belong to the collective until done. */
void zcz_coll_arm(struct zcz_coll *c, const void *send, void *recv, size_t slice_bytes);
/** The same between devices: the bytes are there when the works up to dev->last are
 * done. */
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

#endif
