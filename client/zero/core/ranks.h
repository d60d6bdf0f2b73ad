/*
 * ranks.h - which rank has which slice, and what it has whole: ranks.c.
 */
#ifndef ZC_ZERO_RANKS_H
#define ZC_ZERO_RANKS_H

#include "base/plan.h"
#include "client/zero/zc_zero.h"

/** Who has which slice: z->shards to z->whole_grads. A failure, which is final. */
int zcz_split(struct zc_zero *z);
/** The number among all of a rank of comm, which is z->comm or a part of it. */
uint32_t zcz_rank_of(const struct zc_zero *z, const struct zc_comm *comm, uint32_t rank);

/** This rank has the whole plane, beside its slice or around it. */
bool zcz_plane_whole(const struct zc_zero *z, enum zb_plane plane);
/** The store keeps the whole plane of this rank, of which its slice is a part. */
bool zcz_whole_in_store(const struct zc_zero *z, enum zb_plane plane);

#endif
