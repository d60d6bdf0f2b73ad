/*
 * engine.h - functions that the files of this folder share; the engine itself is in core/zero.h.
 */
#ifndef ZC_ZERO_ENGINE_H
#define ZC_ZERO_ENGINE_H

#include "client/zero/core/zero.h"

/** Called when all units are declared: checks that options.memory_bytes is enough. 0 or a
 * refusal. */
int zcz_account_check(struct zc_zero *z);

/** The start of a store, from join() on: places the slices, which get initial values, or are those
 * of the step that a resumed job continues from. Collective. 0, a refusal or the failure. */
int zcz_start_store(struct zc_zero *z, zc_zero_init_fn *init, void *arg);
/** z->again. */
int zcz_again(struct zc_zero *z);

/** Begins to count what the store moves, in addition to what was kept. 0 or its failure. */
int zcz_stats_begin(struct zc_zero *z);
/** Counts anew, at the end of the start. 0 or the store's failure. */
int zcz_stats_restart(struct zc_zero *z);
/** Keeps the counts of a store that is about to be replaced. */
void zcz_stats_keep(struct zc_zero *z);

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
