/*
 * coll.h - collectives, in the same order on every rank: coll.c.
 */
#ifndef ZC_ZERO_COLL_H
#define ZC_ZERO_COLL_H

#include "base/util.h"
#include "client/zero/core/calls.h"
#include "client/zero/zc_zero.h"

struct zcz_buf;

struct zcz_coll {
    struct zb_list node;  /* in queued, then in started */
    struct zc_comm *comm; /* the ranks that take part */
    enum zcz_call call;
    uint32_t unit; /* or ZCZ_NO_UNIT */
    bool names;    /* gathers the names of the collective that is next */
    uint64_t name;
    bool agreed;         /* every rank is known to have the same name here */
    struct zcz_buf *dev; /* between devices: its `last` orders the collective: before it, then after
                            it */
    const void *send;
    void *recv;
    size_t slice_bytes;
    bool armed; /* the bytes are ready: it may start in its turn */
    bool done;
    struct zc_comm_op *op;
};

/* Bytes that this rank has sent since zcz_coll_clear(). */
struct zcz_sent {
    uint64_t gather, reduce, across, other;
    uint64_t nodes; /* part of gather: to ranks of other nodes */
};

struct zcz_colls {
    struct zb_list queued, started; /* in the order of their places */
    struct zcz_coll words;          /* all-gather of the ranks' names of the next collective, */
    struct zcz_buf *words_buf;      /* in this buffer; NULL: none in progress */
    struct zcz_sent sent;
};

/** Whether it is an exchange. Otherwise it is an all-gather. */
static inline bool zcz_coll_exchanges(const struct zcz_coll *c)
{
    return !c->names && (c->call == ZCZ_CALL_REDUCE || c->call == ZCZ_CALL_PARTS);
}

void zcz_coll_init(struct zc_zero *z);
/** Resets the counters of bytes sent. */
void zcz_coll_clear(struct zc_zero *z);
/** Takes a place in the order. detail: a value that must be the same on all ranks. */
void zcz_coll_queue(struct zc_zero *z, struct zcz_coll *c, struct zc_comm *comm, enum zcz_call call,
                    uint32_t unit, uint16_t detail);
/** The bytes are ready. They belong to the collective until it is done. */
void zcz_coll_arm(struct zcz_coll *c, const void *send, void *recv, size_t slice_bytes);
/** The same between devices: the bytes are ready when the work up to dev->last is done. */
void zcz_coll_arm_dev(struct zcz_coll *c, struct zcz_buf *dev, const void *send, void *recv,
                      size_t slice_bytes);
/** Starts and tests collectives. 0 or the failure. */
int zcz_coll_turn(struct zc_zero *z);
/** To be called when a rank has left. Fails if the reason is known to be that ranks make different
 * calls; otherwise returns 0. */
int zcz_coll_other(struct zc_zero *z);
/** To be called when nothing has moved for too long. As zcz_calls_compare(), if only collectives
 * between devices are in progress; otherwise returns 0. */
int zcz_coll_stuck(struct zc_zero *z);
/** Describes what the engine waits for, as far as this rank knows. */
void zcz_coll_describe(const struct zc_zero *z, char *text, size_t bytes);

#endif
