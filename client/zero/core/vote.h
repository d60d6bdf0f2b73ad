/*
 * vote.h - values that every rank sends to all others: vote.c.
 */
#ifndef ZC_ZERO_VOTE_H
#define ZC_ZERO_VOTE_H

#include "client/zero/core/coll.h"

struct zcz_shares {
    struct zcz_coll coll; /* one at a time */
    struct zcz_buf *buf;  /* receives the sealed slices, of this many bytes; NULL: they are
                             unsealed */
    size_t bytes;
};

/** All-gathers a unit's values, and waits: `mine` is a slice of `all`. `what` is for the error
 * message of a timeout. */
int zcz_all_gather(struct zc_zero *z, struct zc_comm *comm, enum zcz_call call, uint32_t unit,
                   uint16_t detail, const void *mine, void *all, size_t bytes, const char *what);

/** Gathers every rank's `mine`, in rank order, and waits. On 0, *ret is a buffer of z->small, which
 * the caller returns with zcz_buf_put(). */
int zcz_share(struct zc_zero *z, const void *mine, size_t bytes, enum zcz_call call,
              uint16_t detail, struct zcz_buf **ret);

/** The same in two parts. */
int zcz_share_begin(struct zc_zero *z, const void *mine, size_t bytes, enum zcz_call call,
                    uint16_t detail, struct zcz_buf **ret);
int zcz_share_wait(struct zc_zero *z);

/**
 * All ranks report their status, so that a rank that is refused does not leave the others waiting.
 * Returns 0 if all ranks report 0. Otherwise the engine fails, with the code and error message of
 * the first rank that reports an error.
 *
 * @param my_rc  this rank's status; its error message is in z->error
 * @param same   must be equal on all ranks; the noun of `what` names it in the error message
 */
int zcz_vote(struct zc_zero *z, int my_rc, uint32_t same, enum zcz_call what);

/** Sets *value on all ranks to whether any rank has a value other than 0. Collective. */
int zcz_vote_any(struct zc_zero *z, uint32_t *value, enum zcz_call what);

#endif
