/*
 * engine.h - functions that the files of this folder share; the engine itself is in core/zero.h.
 */
#ifndef ZC_ZERO_ENGINE_H
#define ZC_ZERO_ENGINE_H

#include "client/zero/core/zero.h"

/** Called when all units are declared: checks that options.memory_bytes is enough. 0 or a
 * refusal. */
int zcz_account_check(struct zc_zero *z);

/** Begins to count what the store moves. 0 or its failure. */
int zcz_stats_begin(struct zc_zero *z);

/* ---- read.c: elements that the trainer reads or writes */

/** Checks that the range is inside the unit, and that the dtype is known. 0 or a refusal. */
int zcz_elems_check(struct zc_zero *z, const struct zcz_unit *u, uint64_t first, uint64_t count,
                    enum zc_dtype dtype);
/** Waits until nothing is reduced and no step runs, so that the store has the current elements. */
int zcz_elems_settle(struct zc_zero *z);

void zcz_units_done(struct zc_zero *z);
/** Digest of everything that must be equal on all ranks. */
uint32_t zcz_digest(const struct zc_zero *z);

#endif
