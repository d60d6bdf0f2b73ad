/*
 * poller.c - the library's thread that polls an engine.
 *
 * It sleeps for poll_ms, and then polls unless the trainer is in a call, which polls itself.
 * Failures that it finds are recorded in the engine, and the trainer's next call reports them.
 */
#include <errno.h>
#include <time.h>

#include "client/zero/core/zero.h"

#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S  UINT64_C(1000000000)

/* Sleeps. false: the thread is to end. */
static bool guard_sleep(struct zcz_guard *g)
{
    uint64_t until_ns = zb_now_ns() + g->poll_ms * NS_PER_MS;
    struct timespec until = { .tv_sec = (time_t)(until_ns / NS_PER_S),
                              .tv_nsec = (long)(until_ns % NS_PER_S) };
    bool stop;
    int rc = 0;

    (void)pthread_mutex_lock(&g->sleep);
    while (!g->stop && rc == 0)
        rc = pthread_cond_timedwait(&g->wake, &g->sleep, &until);
    stop = g->stop;
    (void)pthread_mutex_unlock(&g->sleep);
    return !stop;
}

static void *guard_run(void *arg)
{
    struct zc_zero *z = arg;
    struct zcz_guard *g = &z->guard;

    while (guard_sleep(g)) {
        if (pthread_mutex_trylock(&g->lock) != 0)
            continue;
        (void)zc_zero_poll(z); /* a failure is reported by the trainer's next call */
        (void)pthread_mutex_unlock(&g->lock);
    }
    return NULL;
}

int zcz_guard_start(struct zc_zero *z)
{
    struct zcz_guard *g = &z->guard;
    pthread_mutexattr_t recursive;
    pthread_condattr_t monotonic;
    int rc;

    g->poll_ms = z->options.poll_ms;
    if (g->poll_ms == 0)
        return 0;
    (void)pthread_mutexattr_init(&recursive);
    (void)pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
    (void)pthread_mutex_init(&g->lock, &recursive);
    (void)pthread_mutexattr_destroy(&recursive);
    (void)pthread_mutex_init(&g->sleep, NULL);
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&g->wake, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    g->on = true;
    (void)pthread_mutex_lock(&g->lock);
    rc = pthread_create(&g->thread, NULL, guard_run, z);
    if (rc != 0) {
        g->on = false;
        (void)pthread_mutex_unlock(&g->lock);
        return zcz_refuse(z, -rc, "a thread that polls: %m");
    }
    return 0;
}

void zcz_guard_opened(struct zc_zero *z)
{
    if (z->guard.on)
        (void)pthread_mutex_unlock(&z->guard.lock);
}

void zcz_guard_stop(struct zc_zero *z)
{
    struct zcz_guard *g = &z->guard;

    if (!g->on)
        return;
    (void)pthread_mutex_lock(&g->sleep);
    g->stop = true;
    (void)pthread_cond_signal(&g->wake);
    (void)pthread_mutex_unlock(&g->sleep);
    (void)pthread_join(g->thread, NULL);
    g->on = false;
    (void)pthread_mutex_destroy(&g->lock);
    (void)pthread_mutex_destroy(&g->sleep);
    (void)pthread_cond_destroy(&g->wake);
}
