/*
 * vote.h - what every rank tells all others: vote.c.
 */
#ifndef ZC_ZERO_VOTE_H
#define ZC_ZERO_VOTE_H

#include "client/zero/core/coll.h"

struct zcz_shares {
    struct zcz_coll coll; /* one at a time */
    struct zcz_buf *buf;  /* sealed slices that it brings, of so many bytes; NULL: opened */
    size_t bytes;
};

/** An all-gather of a unit's values that is waited for: `mine` is a slice of `all`. `what` is for the
 * error message of a timeout. */
int zcz_all_gather(struct zc_zero *z, struct zc_comm *comm, enum zcz_call call, uint32_t unit,
                   uint16_t detail, const void *mine, void *all, size_t bytes, const char *what);

/** Every rank's `mine`, in rank order; waits. On 0 *ret is from z->small: zcz_buf_put() it. */
int zcz_share(struct zc_zero *z, const void *mine, size_t bytes, enum zcz_call call,
              uint16_t detail, struct zcz_buf **ret);

/** The same in two halves. */
int zcz_share_begin(struct zc_zero *z, const void *mine, size_t bytes, enum zcz_call call,
                    uint16_t detail, struct zcz_buf **ret);
int zcz_share_wait(struct zc_zero *z);

/**
 * All ranks say how they are, so that one that is refused does not leave the others waiting. 0 when
 * all are well; otherwise the engine fails, with the code and the error message of the first that is
 * not.
 *
 * @param my_rc  ours; its error message is in z->error
 * @param same   what must be equal on all ranks: the noun of `what` says what it stands for
 */
int zcz_vote(struct zc_zero *z, int my_rc, uint32_t same, enum zcz_call what);

#endif
