/*
 * calls.h - what collectives are of, and whether all ranks make the same: calls.c.
 */
#ifndef ZC_ZERO_CALLS_H
#define ZC_ZERO_CALLS_H

#include "client/zero/zc_zero.h"

enum zcz_call {
    ZCZ_CALL_NONE,
    ZCZ_CALL_GATHER, /* of units: parameters, */
    ZCZ_CALL_REDUCE, /* gradients between shards, */
    ZCZ_CALL_PARTS,  /* parts of them between replicas, */
    ZCZ_CALL_SUMS,   /* and their sums, */
    ZCZ_CALL_READ,   /* elements */
    ZCZ_CALL_WRITE,
    ZCZ_CALL_SUM,
    ZCZ_CALL_NORMS,
    ZCZ_CALL_STEP,
    ZCZ_CALL_COMMIT,
    ZCZ_CALL_ABANDON,
    ZCZ_CALL_OPTIMIZER,
    ZCZ_CALL_COUNTS,
    ZCZ_CALL_FREEZE,
    ZCZ_CALL_OPTIONS, /* of the start */
    ZCZ_CALL_DEVICES,
    ZCZ_CALL_MEET,
    ZCZ_CALL_UNITS,
    ZCZ_CALL_ATTACH,
    ZCZ_CALL_POINTS,
    ZCZ_CALL_JOIN,
    ZCZ_CALL_SLICES,
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

#endif
