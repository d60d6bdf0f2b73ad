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
#include "daemon/run/settings.h"

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
    /* of what a job or a reader holds: its user's, which counts the same bytes; NULL: none. The
     * budget of a user's account is not used: net/limits.h has the limit */
    struct zsd_account *user;
};

/** Books bytes in an account, in the holder's part of it (held; NULL: not counted), and in that of
 * its user. */
void zsd_book(struct zsd_account *a, struct zsd_account *held, enum zsd_use use, uint64_t bytes);
/** Takes bytes from what a holder and its user hold; they stay booked in the tier's account. */
void zsd_disown(struct zsd_account *held, enum zsd_use use, uint64_t bytes);
/** Undoes zsd_book(). */
void zsd_unbook(struct zsd_account *a, struct zsd_account *held, enum zsd_use use, uint64_t bytes);
/** The sum of used[], of a tier's account; the next one: of any. */
uint64_t zsd_account_used(const struct zsd_account *a);
uint64_t zsd_account_held(const struct zsd_account *a);
static inline uint64_t zsd_account_free(const struct zsd_account *a)
{
    return a->budget - zsd_account_used(a);
}

/** A request for host memory that other jobs will free with their next steps: plan/replan.c. */
struct zsd_want {
    uint64_t bytes;
    struct zb_list node;
};

/** The tier of one GPU. */
struct zsd_gpu_tier {
    struct zsd_account account; /* state, parameters, and page buffers (ring) */
    uint64_t target;            /* its budget as set */
    struct zb_err err;          /* code 0: the device works */
    struct zb_err unpinned;     /* the first failure to pin host memory for it; code 0: none */
};

/** What it may still take, with other holders' `used` bytes taken. */
static inline uint64_t zsd_gpu_left(const struct zsd_gpu_tier *tier, uint64_t used)
{
    return tier->target > used ? tier->target - used : 0;
}

/** The accounts of the daemon. A budget decreases to its target as memory is freed. */
struct zsd_tiers {
    struct zsd_account host, nvme;
    uint64_t host_target;                   /* the host tier's budget as set */
    struct zsd_gpu_tier gpus[ZSD_GPUS_MAX]; /* of daemon->gpus */
};

#endif
