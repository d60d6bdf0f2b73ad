/*
 * account.h - the size of each tier, and its promised bytes.
 *
 * Loop thread only.
 */
#ifndef ZSD_ACCOUNT_H
#define ZSD_ACCOUNT_H

#include <stdint.h>

#include "base/err.h"
#include "base/util.h"

enum zsd_use {
    ZSD_USE_PARAM,
    ZSD_USE_GRAD,
    ZSD_USE_STATE,
    ZSD_USE_STAGING,
    ZSD_USE_RING,
    ZSD_USES
};

/** A tier's account: promised bytes, by use. The sum of used[] never exceeds budget. */
struct zsd_account {
    uint64_t budget;
    uint64_t used[ZSD_USES];
};

/** Books bytes in an account, and in the holder's part of it (held; NULL: not counted). */
void zsd_book(struct zsd_account *a, struct zsd_account *held, enum zsd_use use, uint64_t bytes);
/** Undoes zsd_book(). */
void zsd_unbook(struct zsd_account *a, struct zsd_account *held, enum zsd_use use, uint64_t bytes);
uint64_t zsd_account_used(const struct zsd_account *a);
static inline uint64_t zsd_account_free(const struct zsd_account *a)
{
    return a->budget - zsd_account_used(a);
}

/** A request for host memory that other jobs will free with their next steps: plan/replan.c. */
struct zsd_want {
    uint64_t bytes;
    struct zb_list node;
};

/** The accounts of the daemon. A budget decreases to its target as memory is freed. */
struct zsd_tiers {
    struct zsd_account host, nvme;
    uint64_t host_target;       /* the host tier's budget as set */
    struct zsd_account gpu;     /* state, parameters, and page buffers (ring) */
    uint64_t gpu_target;        /* the GPU tier's budget as set */
    struct zb_err gpu_err;      /* code 0: the device works, or there is none */
    struct zb_err gpu_unpinned; /* the first failure to pin host memory; code 0: none */
};

#endif
