/*
 * sockets.c - see sockets.h.
 */
#include "bench/sockets.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <time.h>

#include "base/util.h"
#include "bench/fair.h"

/* Resources: the link of each GPU, the memory of each socket, the way to each socket from the other
 * one. */
enum {
    SOCKETS_MEMORY = ZBENCH_SOCKETS_GPUS,
    SOCKETS_CROSS = SOCKETS_MEMORY + ZBENCH_SOCKETS,
    SOCKETS_ALL = SOCKETS_CROSS + ZBENCH_SOCKETS
};

#define DONE_BYTES 0.5 /* less than a byte is left: rounding */

static double sockets_seconds(void)
{
    return (double)zb_now_ns() * 1e-9;
}

static bool flow_runs(const struct zbench_flows *f)
{
    return f->done < f->queued;
}

/* How much of the resource a byte of the GPU's flow takes. */
static double sockets_takes(const struct zbench_sockets *s, uint32_t gpu, unsigned resource)
{
    const struct zbench_flows *f = &s->flows[gpu];

    if (resource < SOCKETS_MEMORY)
        return resource == gpu ? 1 : 0;
    if (resource < SOCKETS_CROSS)
        return f->shares.of[resource - SOCKETS_MEMORY];
    return resource - SOCKETS_CROSS == f->socket ? 1 - f->shares.of[f->socket] : 0;
}

static double sockets_limit(const struct zbench_sockets *s, unsigned resource)
{
    return resource < SOCKETS_MEMORY  ? s->rates.link
           : resource < SOCKETS_CROSS ? s->rates.memory
                                      : s->rates.cross;
}

static double fair_takes(const void *arg, uint32_t flow, uint32_t resource)
{
    const struct zbench_sockets *s = arg;

    return flow_runs(&s->flows[flow]) ? sockets_takes(s, flow, resource) : 0;
}

static double fair_limit(const void *arg, uint32_t resource)
{
    return sockets_limit(arg, resource);
}

static void sockets_rates(struct zbench_sockets *s)
{
    const struct zbench_fair fair = { .flows = s->gpus,
                                      .resources = SOCKETS_ALL,
                                      .takes = fair_takes,
                                      .limit = fair_limit,
                                      .arg = s };
    double rates[ZBENCH_SOCKETS_GPUS];

    zbench_fair_rates(&fair, rates);
    for (uint32_t g = 0; g < s->gpus; g++)
        s->flows[g].rate = rates[g];
}

static double *flow_left(struct zbench_flows *f)
{
    return &f->left[f->done % ZBENCH_SOCKETS_FLOW];
}

/* Under the lock: does what has happened until `to`. Returns the time at which the next flow ends;
 * INFINITY: there is none. */
static double sockets_advance(struct zbench_sockets *s, double to)
{
    for (;;) {
        double next = INFINITY, passed;

        sockets_rates(s);
        for (uint32_t g = 0; g < s->gpus; g++)
            if (flow_runs(&s->flows[g]))
                next = fmin(next, *flow_left(&s->flows[g]) / s->flows[g].rate);
        passed = fmax(0, fmin(next, to - s->now));
        for (uint32_t g = 0; g < s->gpus; g++) {
            struct zbench_flows *f = &s->flows[g];

            if (!flow_runs(f))
                continue;
            *flow_left(f) -= passed * f->rate;
            if (*flow_left(f) < DONE_BYTES)
                f->done++;
        }
        if (s->now + next > to) {
            s->now = fmax(s->now, to);
            return s->now + next - passed;
        }
        s->now += passed;
    }
}

void zbench_sockets_init(struct zbench_sockets *s, const struct zbench_rates *rates, uint32_t gpus)
{
    pthread_condattr_t attr;
    int rc;

    assert(gpus <= ZBENCH_SOCKETS_GPUS);
    *s = (struct zbench_sockets){ .rates = *rates, .gpus = gpus, .now = sockets_seconds() };
    for (uint32_t g = 0; g < gpus; g++)
        s->flows[g].socket = g * ZBENCH_SOCKETS / gpus;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    rc = pthread_mutex_init(&s->lock, NULL);
    assert(rc == 0);
    rc = pthread_cond_init(&s->changed, &attr);
    assert(rc == 0);
    (void)pthread_condattr_destroy(&attr);
}

void zbench_sockets_done(struct zbench_sockets *s)
{
    (void)pthread_cond_destroy(&s->changed);
    (void)pthread_mutex_destroy(&s->lock);
}

void zbench_sockets_place(struct zbench_sockets *s, uint32_t gpu,
                          const struct zbench_shares *shares)
{
    (void)pthread_mutex_lock(&s->lock);
    assert(!flow_runs(&s->flows[gpu]));
    s->flows[gpu].shares = *shares;
    (void)pthread_mutex_unlock(&s->lock);
}

int zbench_sockets_queue(struct zbench_sockets *s, uint32_t gpu, double bytes, uint64_t *ret)
{
    struct zbench_flows *f = &s->flows[gpu];
    int rc = -EAGAIN;

    (void)pthread_mutex_lock(&s->lock);
    (void)sockets_advance(s, sockets_seconds());
    if (f->queued - f->done < ZBENCH_SOCKETS_FLOW) {
        f->left[f->queued % ZBENCH_SOCKETS_FLOW] = bytes;
        *ret = f->queued++;
        rc = 0;
    }
    (void)pthread_cond_broadcast(&s->changed); /* others become slower */
    (void)pthread_mutex_unlock(&s->lock);
    return rc;
}

void zbench_sockets_wait(struct zbench_sockets *s, uint32_t gpu, uint64_t number)
{
    (void)pthread_mutex_lock(&s->lock);
    for (;;) {
        double ends = sockets_advance(s, sockets_seconds());
        struct timespec at = { .tv_sec = (time_t)ends };

        if (s->flows[gpu].done > number)
            break;
        at.tv_nsec = (long)((ends - (double)at.tv_sec) * 1e9);
        (void)pthread_cond_timedwait(&s->changed, &s->lock, &at);
    }
    (void)pthread_mutex_unlock(&s->lock);
}

double zbench_sockets_formula(const struct zbench_sockets *s, const char **ret_limit)
{
    double rate = s->rates.link;

    *ret_limit = "their links";
    for (unsigned r = SOCKETS_MEMORY; r < SOCKETS_ALL; r++) {
        double takes = 0;

        for (uint32_t g = 0; g < s->gpus; g++)
            takes += sockets_takes(s, g, r);
        if (takes > 0 && sockets_limit(s, r) / takes < rate) {
            rate = sockets_limit(s, r) / takes;
            *ret_limit = r < SOCKETS_CROSS ? "a host memory" : "the link between the sockets";
        }
    }
    return rate;
}
