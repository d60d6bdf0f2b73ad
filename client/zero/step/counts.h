/*
 * counts.h - how many steps each tensor has made: counts.c. What class_of stands for is as in struct zc_classes; NULL:
 * every tensor is stepped.
 */
#ifndef ZC_ZERO_COUNTS_H
#define ZC_ZERO_COUNTS_H

#include "client/zero/core/zero.h"

/** At the start: none lags. 0 or a refusal. */
int zcz_counts_start(struct zc_zero *z);
void zcz_counts_close(struct zc_zero *z);
/** A step is made: whether a count was left behind. */
bool zcz_counts_step(struct zc_zero *z, const uint32_t *class_of);
/** The bytes of the block after such a step; 0: there is none. */
size_t zcz_counts_bytes(const struct zc_zero *z, const uint32_t *class_of);
/** The block as of now, where there is one. */
void zcz_counts_pack(const struct zc_zero *z, unsigned char *out);
/** The job resumes with a block: 0, or a refusal. */
int zcz_counts_unpack(struct zc_zero *z, const unsigned char *block, size_t bytes);
/** What all ranks must have alike. */
uint64_t zcz_counts_digest(const struct zc_zero *z);

#endif
