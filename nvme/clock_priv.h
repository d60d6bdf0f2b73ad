/*
 * clock_priv.h - a thread that sets an engine's wake-up at a given moment: for devices whose
 * requests end by the clock.
 *
 * It wakes some 0.1 ms late on a busy machine, which delays a completion but not a device whose
 * moments are computed, not measured.
 */
#ifndef ZN_CLOCK_PRIV_H
#define ZN_CLOCK_PRIV_H

#include <pthread.h>

#include "nvme/zn.h"

#define ZN_NEVER UINT64_MAX

/* All zeros: not started. */
struct zn_clock {
    struct zn_engine *e;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t next_ns; /* time of the next wake-up, or ZN_NEVER */
    bool stop, up;
    pthread_t thread;
};

/** 0 or a negative errno; zn_clock_stop() takes what it left, and zeros. */
int zn_clock_start(struct zn_clock *c, struct zn_engine *e);
void zn_clock_stop(struct zn_clock *c);

/** There will be something to reap at next_ns (of zb_now_ns()); an earlier moment that is set
 * stays. */
void zn_clock_set(struct zn_clock *c, uint64_t next_ns);

#endif
