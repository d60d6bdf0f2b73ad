/*
 * guard.h - who is in an engine: one thread at a time, and who may interrupt it: guard.c.
 *
 * Every public call begins with ZCZ_GUARD(z). Without options.poll_ms it only counts how deep it is
 * (public calls call others); with it, it holds the lock that keeps the library's own thread out.
 */
#ifndef ZC_ZERO_GUARD_H
#define ZC_ZERO_GUARD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct zc_zero;

struct zcz_guard {
    atomic_bool interrupted; /* by zc_zero_interrupt(), since the trainer's call began */
    uint32_t depth;          /* of calls in calls */
    bool on;                 /* there is a thread that polls: */
    uint32_t poll_ms;
    pthread_t thread;
    pthread_mutex_t lock;  /* of the engine; recursive */
    pthread_mutex_t sleep; /* of `stop` */
    pthread_cond_t wake;
    bool stop;
};

const struct zc_zero *zcz_guard_enter(const struct zc_zero *z);
void zcz_guard_leave(const struct zc_zero **z);

#define ZCZ_GUARD(z)                                  \
    __attribute__((cleanup(zcz_guard_leave), unused)) \
    const struct zc_zero *zcz_guarded = zcz_guard_enter(z)

/* ---- poller.c */

/** Starts the thread that polls, where options.poll_ms asks for it; kept out until
 *  zcz_guard_opened(). 0 or a refusal. */
int zcz_guard_start(struct zc_zero *z);
void zcz_guard_opened(struct zc_zero *z);
/** Ends it: before the engine is closed, with nobody in it. */
void zcz_guard_stop(struct zc_zero *z);

#endif
