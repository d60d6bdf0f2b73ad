/*
 * engine.h - what the files of this folder call of each other; the engine itself is core/zero.h.
 */
#ifndef ZC_ZERO_ENGINE_H
#define ZC_ZERO_ENGINE_H

#include "client/zero/core/zero.h"

/** Units are declared: whether options.memory_bytes is enough. A refusal. */
int zcz_account_check(struct zc_zero *z);

/** What the store has moved counts from here on. 0 or its failure. */
int zcz_stats_begin(struct zc_zero *z);

/* ---- read.c: elements, between the trainer and the store */

/** The range is inside the unit, and the dtype is one. A refusal. */
int zcz_elems_check(struct zc_zero *z, const struct zcz_unit *u, uint64_t first, uint64_t count,
                    enum zc_dtype dtype);
/** Waits until nothing is reduced and no step runs: the store has what elements are now. */
int zcz_elems_settle(struct zc_zero *z);

void zcz_units_done(struct zc_zero *z);
/** Of everything that all ranks must have alike. */
uint32_t zcz_digest(const struct zc_zero *z);

#endif
