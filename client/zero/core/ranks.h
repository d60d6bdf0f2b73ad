/*
 * ranks.h - which rank has which slice, and which planes a rank has whole: ranks.c.
 */
#ifndef ZC_ZERO_RANKS_H
#define ZC_ZERO_RANKS_H

#include "base/plan.h"
#include "client/zero/zc_zero.h"

/** Sets z->shards to z->whole_grads: who has which slice. 0 or a failure, which is final. */
int zcz_split(struct zc_zero *z);
/** Converts a rank of comm (z->comm or a part of it) to the rank in z->comm. */
uint32_t zcz_rank_of(const struct zc_zero *z, const struct zc_comm *comm, uint32_t rank);

/** Whether this rank has the whole plane, in addition to its slice or including it. */
bool zcz_plane_whole(const struct zc_zero *z, enum zb_plane plane);
/** Whether the store keeps the whole plane of this rank. The slice is a part of it. */
bool zcz_whole_in_store(const struct zc_zero *z, enum zb_plane plane);

#endif
