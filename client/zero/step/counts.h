/*
 * counts.h - how many steps each tensor has made: counts.c. class_of is as in struct zc_classes;
 * NULL: every tensor is stepped.
 */
#ifndef ZC_ZERO_COUNTS_H
#define ZC_ZERO_COUNTS_H

#include "client/zero/core/zero.h"

/** Called in the start: no tensor lags. 0 or a refusal. */
int zcz_counts_start(struct zc_zero *z);
void zcz_counts_close(struct zc_zero *z);
/** Counts a step. Returns whether it left out a tensor. */
bool zcz_counts_step(struct zc_zero *z, const uint32_t *class_of);
/** Returns the length of the block after such a step; 0: there is none. */
size_t zcz_counts_bytes(const struct zc_zero *z, const uint32_t *class_of);
/** Writes the block for the current counts, if there is one. */
void zcz_counts_pack(const struct zc_zero *z, unsigned char *out);
/** Reads the block of a job that is resumed. 0 or a refusal. */
int zcz_counts_unpack(struct zc_zero *z, const unsigned char *block, size_t bytes);
/** Returns a digest, which must be equal on all ranks. */
uint64_t zcz_counts_digest(const struct zc_zero *z);

#endif
