/*
 * loop_linger.c - ends an embedded daemon that is no longer used.
 *
 * Each turn checks whether there are clients. The timer starts in the first turn without one. The
 * total waiting time is decided when the timer expires, because jobs that are not kept have ended
 * by then. A client that connects just as the end begins is disconnected, and starts another
 * daemon.
 */
#include "daemon/core_life.h"
#include "daemon/loop_priv.h"

#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S  UINT64_C(1000000000)
#define BUSY_MS   1000u /* interval of checks while operations are in progress */

static void linger_on_timer(uv_timer_t *timer);

static void linger_wait(struct zsd *daemon, uint64_t ns)
{
    (void)uv_timer_start(&daemon->loop->linger.timer, linger_on_timer, zb_div_up(ns, NS_PER_MS), 0);
}

/** How long the daemon may be without clients. */
static uint64_t linger_ns(const struct zsd *daemon)
{
    const struct zsd_config *config = &daemon->config;
    uint64_t s = zsd_core_jobs(daemon) > 0 ? config->linger_kept_s : config->linger_s;

    return (daemon->loop->linger.met ? s : zb_max_u64(s, ZSD_LINGER_FIRST_S)) * NS_PER_S;
}

static void linger_on_timer(uv_timer_t *timer)
{
    struct zsd *daemon = timer->data;
    struct zsd_linger *l = &daemon->loop->linger;
    uint64_t idle_ns = zb_now_ns() - l->idle_ns, wait_ns = linger_ns(daemon);

    if (daemon->clients > 0) /* one has connected in this turn */
        return;
    if (idle_ns < wait_ns) {
        linger_wait(daemon, wait_ns - idle_ns);
    } else if (zsd_core_busy(daemon) > 0) {
        linger_wait(daemon, BUSY_MS * NS_PER_MS);
    } else {
        zb_log(ZB_LOG_INFO, "unused", "seconds=%llu kept_jobs=%u",
               (unsigned long long)(idle_ns / NS_PER_S), zsd_core_jobs(daemon));
        zsd_loop_end(daemon);
    }
}

void zsd_linger_turn(struct zsd *daemon)
{
    struct zsd_linger *l = &daemon->loop->linger;

    if (!l->on)
        return;
    if (daemon->clients > 0) {
        l->met = true;
        l->idle_ns = 0;
        (void)uv_timer_stop(&l->timer);
    } else if (l->idle_ns == 0) {
        l->idle_ns = zb_now_ns();
        linger_wait(daemon, zb_min_u64(linger_ns(daemon), daemon->config.linger_s * NS_PER_S));
    }
}

void zsd_loop_end_unused(struct zsd *daemon)
{
    struct zsd_linger *l = &daemon->loop->linger;

    (void)uv_timer_init(&daemon->loop->uv, &l->timer); /* cannot fail */
    l->timer.data = daemon;
    l->on = true;
}
