#include "nvme/clock_priv.h"

#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include "nvme/engine_priv.h"

#define CLOCK_SLACK_NS 1000ul

static void *clock_thread(void *arg)
{
    struct zn_clock *c = arg;

    (void)prctl(PR_SET_TIMERSLACK, CLOCK_SLACK_NS, 0, 0, 0);
    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        if (c->next_ns == ZN_NEVER) {
            pthread_cond_wait(&c->changed, &c->lock);
        } else if (zb_now_ns() >= c->next_ns) {
            c->next_ns = ZN_NEVER;
            zn_wake(c->e);
        } else {
            struct timespec at = { .tv_sec = (time_t)(c->next_ns / 1000000000),
                                   .tv_nsec = (long)(c->next_ns % 1000000000) };

            (void)pthread_cond_timedwait(&c->changed, &c->lock, &at);
        }
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

int zn_clock_start(struct zn_clock *c, struct zn_engine *e)
{
    pthread_condattr_t attr;
    sigset_t all, old;
    int rc;

    c->e = e;
    pthread_mutex_init(&c->lock, NULL); /* these cannot fail on Linux */
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->changed, &attr);
    pthread_condattr_destroy(&attr);
    c->next_ns = ZN_NEVER;
    sigfillset(&all); /* signals are handled by the program's threads */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = -pthread_create(&c->thread, NULL, clock_thread, c);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    c->up = rc == 0;
    if (c->up)
        (void)pthread_setname_np(c->thread, "zn-clock");
    return rc;
}

void zn_clock_stop(struct zn_clock *c)
{
    if (c->up) {
        pthread_mutex_lock(&c->lock);
        c->stop = true;
        pthread_cond_signal(&c->changed);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
    }
    c->up = false;
}

void zn_clock_set(struct zn_clock *c, uint64_t next_ns)
{
    pthread_mutex_lock(&c->lock);
    if (next_ns < c->next_ns) {
        c->next_ns = next_ns;
        pthread_cond_signal(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
}
