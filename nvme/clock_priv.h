/*
 * clock_priv.h - a thread that sets an engine's wake-up at a given time: for devices whose requests
 * complete by the clock.
 *
 * It wakes some 0.1 ms late on a busy machine. That delays a completion, but not the device: its
 * times are computed, not measured.
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

/** 0 or a negative errno. zn_clock_stop() may be called after a failure, and on zeros. */
int zn_clock_start(struct zn_clock *c, struct zn_engine *e);
void zn_clock_stop(struct zn_clock *c);

/** Sets the wake-up at next_ns (time of zb_now_ns()), unless an earlier one is set. */
void zn_clock_set(struct zn_clock *c, uint64_t next_ns);

#endif
