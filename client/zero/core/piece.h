/*
 * piece.h - blocking access to pieces of the store: get a free one, or read into one.
 */
#ifndef ZC_ZERO_PIECE_H
#define ZC_ZERO_PIECE_H

#include "client/zero/core/zero.h"

/** Waits for a free piece of the store. */
int zcz_piece_get(struct zc_zero *z, float **ret);
/** Reads elements [at, at + n) of a slice, at most one piece, as read() of store.h. The piece is
 * the caller's, who returns it with piece_put(). name: the slice of another rank, by its name in
 * the store; 0: this rank's. */
int zcz_piece_load(struct zc_zero *z, struct zcz_unit *u, uint64_t name, enum zc_what what,
                   uint64_t at, uint64_t n, float **ret);
/** The same; a failure is not final. */
int zcz_piece_try(struct zc_zero *z, struct zcz_unit *u, uint64_t name, enum zc_what what,
                  uint64_t at, uint64_t n, float **ret);
/** As zcz_piece_load(), converted to fp32 in the caller's memory. */
int zcz_piece_read(struct zc_zero *z, struct zcz_unit *u, uint64_t name, enum zc_what what,
                   uint64_t at, uint64_t n, float *to);

#endif
