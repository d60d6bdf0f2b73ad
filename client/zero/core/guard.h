/*
 * guard.h - admits one thread at a time to an engine; interruption: guard.c.
 *
 * Every public call begins with ZCZ_GUARD(z). Without options.poll_ms it only counts the nesting of
 * calls, because public calls call others. With poll_ms it also holds the lock that keeps the
 * library's own thread out.
 */
#ifndef ZC_ZERO_GUARD_H
#define ZC_ZERO_GUARD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct zc_zero;

struct zcz_guard {
    atomic_bool interrupted; /* by zc_zero_interrupt(), since the trainer's current call began */
    uint32_t depth;          /* nesting of calls */
    bool on;                 /* the polling thread is running: */
    uint32_t poll_ms;
    pthread_t thread;
    pthread_mutex_t lock;  /* held by the thread that runs a call of the engine; recursive */
    pthread_mutex_t sleep; /* protects `stop` */
    pthread_cond_t wake;
    bool stop;
};

const struct zc_zero *zcz_guard_enter(const struct zc_zero *z);
void zcz_guard_leave(const struct zc_zero **z);

#define ZCZ_GUARD(z)                                  \
    __attribute__((cleanup(zcz_guard_leave), unused)) \
    const struct zc_zero *zcz_guarded = zcz_guard_enter(z)

/* ---- poller.c */

/** Starts the polling thread if options.poll_ms is set. It is kept out of the engine until
 * zcz_guard_opened(). 0 or a refusal. */
int zcz_guard_start(struct zc_zero *z);
void zcz_guard_opened(struct zc_zero *z);
/** Ends the thread. Called before the engine is closed, with no call in progress. */
void zcz_guard_stop(struct zc_zero *z);

#endif
