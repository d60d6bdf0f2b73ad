/*
 * loop_priv.h - the loop's struct, with libuv's handles: for loop*.c and their tests.
 */
#ifndef ZSD_LOOP_PRIV_H
#define ZSD_LOOP_PRIV_H

#include <uv.h>

#include "daemon/loop.h"

/** An eventfd whose owner has something to reap when it is readable (loop.c). */
struct zsd_wake {
    uv_poll_t poll;
    int fd;
    struct zn_engine *engine;    /* or */
    struct zsd_compute *compute; /* a pool */
};

#define ZSD_WAKES (2 + ZSD_GPUS_MAX + ZN_PATHS_MAX) /* compute pool, GPUs, catalog, engines */

/** The state of the orderly end (loop_end.c). */
struct zsd_ending {
    uv_signal_t signals[4];
    uv_signal_t ignored[3];
    uv_timer_t timer;
    struct zsd_patience patience;
    bool begun;
    bool drains; /* no rank is waited for any more */
    bool told;   /* the ranks of every job were notified */
    bool forced; /* operations were still in progress */
    uint64_t begun_ns;
    uint64_t seen, seen_ns;     /* finished operations, and when there was the last new one */
    uint64_t notify_ns, log_ns; /* when the next report is due */
    uint64_t send_ns; /* deadline of sending answers, set once nothing is busy; 0: not yet */
};

/** The end of an unused daemon (loop_linger.c). */
struct zsd_linger {
    uv_timer_t timer;
    bool on;          /* config.embedded */
    bool met;         /* a client has connected */
    uint64_t idle_ns; /* when the last client left, or the first turn; 0: there is a client */
};

struct zsd_loop {
    uv_loop_t uv;
    uv_prepare_t prepare;
    uv_idle_t again; /* active: the next poll does not wait */
    uv_timer_t tick;
    uv_timer_t watchdog; /* reports to the service manager */
    struct zsd_wake wakes[ZSD_WAKES];
    uint64_t reaped; /* operations that the pools and the engines have finished */
    struct zsd_ending ending;
    struct zsd_linger linger;
};

/** Begins the orderly end, unless it has begun (loop_end.c). */
void zsd_loop_end(struct zsd *daemon);
/** A part of each turn: notes whether there are clients (loop_linger.c). */
void zsd_linger_turn(struct zsd *daemon);

#endif
