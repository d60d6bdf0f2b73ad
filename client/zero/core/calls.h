/*
 * calls.h - names of collectives, and the check that all ranks make the same ones: calls.c.
 */
#ifndef ZC_ZERO_CALLS_H
#define ZC_ZERO_CALLS_H

#include "client/zero/zc_zero.h"

enum zcz_call {
    ZCZ_CALL_NONE,
    ZCZ_CALL_GATHER, /* of units: parameters, */
    ZCZ_CALL_REDUCE, /* gradients between shards, */
    ZCZ_CALL_PARTS,  /* parts of gradients between replicas, */
    ZCZ_CALL_SUMS,   /* sums of these parts, */
    ZCZ_CALL_READ,   /* elements */
    ZCZ_CALL_WRITE,
    ZCZ_CALL_SUM,
    ZCZ_CALL_NORMS,
    ZCZ_CALL_UNIT_SUMS, /* norms of the tensors of a unit */
    ZCZ_CALL_STEP,
    ZCZ_CALL_COMMIT,
    ZCZ_CALL_ABANDON,
    ZCZ_CALL_OPTIMIZER,
    ZCZ_CALL_COUNTS,
    ZCZ_CALL_FREEZE,
    ZCZ_CALL_PLACES,  /* of the ranks on their machines */
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
    ZCZ_CALL_CHOICE, /* of a way to gather */
    ZCZ_CALL_AGAIN,  /* after a restart of a daemon */
    ZCZ_CALL_COMPARE /* of calls, after a failure */
};

#define ZCZ_NO_UNIT   UINT32_MAX
#define ZCZ_CALLS_MAX 1024u

/* Summarizes all collectives so far. */
struct zcz_seal {
    uint64_t count, hash;
};

struct zcz_calls {
    struct zcz_seal seal;
    uint64_t names[ZCZ_CALLS_MAX]; /* the last names; number n is at n % ZCZ_CALLS_MAX */
};

/** Returns a noun for error messages, such as "the gather of". A unit follows. */
const char *zcz_call_noun(enum zcz_call call);
/** Records a collective, and returns its name. */
uint64_t zcz_calls_add(struct zc_zero *z, enum zcz_call call, uint32_t unit, uint16_t detail);
/** Fails: this rank makes the collective `mine` where `rank` makes `theirs`. */
int zcz_calls_fail(struct zc_zero *z, uint64_t mine, uint32_t rank, uint64_t theirs);
/** The same, if the backend reports that as the reason of its last failure; otherwise returns 0. */
int zcz_calls_refused(struct zc_zero *z, struct zc_comm *comm);
/** Exchanges the recorded calls of all ranks; waits at most patience_ms. Fails if they differ. 0:
 * they do not differ, or the ranks could not be reached. */
int zcz_calls_compare(struct zc_zero *z, uint32_t patience_ms);

/** Returns the length of a sealed slice that holds `bytes`. */
size_t zcz_sealed_bytes(size_t bytes);
void zcz_seal(const struct zc_zero *z, void *slice, size_t bytes);
/** Compares the seals of all slices, and packs the slices, `bytes` each. 0 or the failure. */
int zcz_unseal(struct zc_zero *z, void *slices, size_t bytes);

#endif
