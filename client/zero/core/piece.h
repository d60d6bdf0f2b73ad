/*
 * piece.h - pieces of the store, for a caller that waits: a free one, or one that was read.
 */
#ifndef ZC_ZERO_PIECE_H
#define ZC_ZERO_PIECE_H

#include "client/zero/core/zero.h"

/** Waits for a free piece of the store. */
int zcz_piece_get(struct zc_zero *z, float **ret);
/** Elements [at, at + n) of a slice, at most a piece, as store.h's read() gives them. The piece is the caller's, to give
 * back with piece_put(). name: of another rank's slice, as the store knows it; 0: this rank's. */
int zcz_piece_load(struct zc_zero *z, struct zcz_unit *u, uint64_t name, enum zc_what what,
                   uint64_t at, uint64_t n, float **ret);
/** As zcz_piece_load(), into the caller's memory, as fp32. */
int zcz_piece_read(struct zc_zero *z, struct zcz_unit *u, uint64_t name, enum zc_what what,
                   uint64_t at, uint64_t n, float *to);

#endif
