/*
 * wait.c - zc_poll(), and waiting in the blocking forms.
 *
 * WHEN TO STOP WAITING. The daemon ends every request itself, by its deadline if it has one, and
 * its loop never blocks. So a blocking form only checks that the daemon is alive. If nothing was
 * received for half of quiet_ns, it sends a ping; if nothing was received for all of it, the
 * connection is given up. So a long write on a slow device is waited for, and a stopped daemon is
 * not. If the caller gave a deadline, the answer must also come within quiet_ns after it.
 */
#include <errno.h>

#include "client/conn/conn.h"

#define NS_PER_MS UINT64_C(1000000)

int zc_poll(struct zc_client *c, int timeout_ms)
{
    uint64_t until_ns = UINT64_MAX;
    unsigned ran;
    int rc = zc_conn_usable(c);

    if (rc == 0 && c->running)
        rc = zc_fail(c, -EBUSY, "zc_poll() inside a callback");
    if (rc < 0)
        return rc;
    if (timeout_ms == 0)
        until_ns = 0;
    else if (timeout_ms > 0)
        until_ns = zb_now_ns() + (uint64_t)timeout_ms * NS_PER_MS;
    ran = zc_conn_turn(c, until_ns);
    return c->state == ZC_LOST ? zc_conn_usable(c) : (int)ran;
}

static void wait_give_up(struct zc_client *c, uint64_t waited_ns, const char *what)
{
    struct zb_err why = { 0 };

    (void)zb_fail(&why, -ETIMEDOUT, "%s for %.1f s: the connection is given up", what,
                  (double)waited_ns / 1e9);
    (void)zc_conn_lose(c, &why);
}

static void wait_ping(struct zc_client *c)
{
    struct zb_err err = c->err;

    (void)zc_ping(c, NULL, NULL); /* if there is no room for it, replies are outstanding */
    c->err = err;
}

int zc_wait_until(struct zc_waiter *w, int rc, uint64_t until_ns)
{
    struct zc_client *c = w->client;
    uint64_t begun_ns = zb_now_ns(), now_ns = begun_ns, pinged_ns = 0;

    if (rc < 0)
        return rc;
    while (!w->finished) {
        uint64_t heard_ns = zb_max_u64(begun_ns, c->heard_ns);
        bool pinged = pinged_ns > heard_ns;
        uint64_t quiet_ns = heard_ns + (pinged ? c->quiet_ns : c->quiet_ns / 2);

        if (now_ns >= until_ns) {
            wait_give_up(c, now_ns - begun_ns, "the answer did not come");
        } else if (now_ns >= quiet_ns && pinged) {
            wait_give_up(c, now_ns - heard_ns, "the daemon sent nothing");
        } else {
            if (now_ns >= quiet_ns) {
                wait_ping(c);
                pinged_ns = now_ns;
                quiet_ns = heard_ns + c->quiet_ns;
            }
            (void)zc_conn_turn(c, zb_min_u64(until_ns, quiet_ns));
            now_ns = zb_now_ns();
        }
    }
    if (w->rc < 0)
        c->err = w->err;
    return w->rc;
}

int zc_wait(struct zc_waiter *w, int rc, uint32_t timeout_ms)
{
    uint64_t until_ns = UINT64_MAX;

    if (timeout_ms > 0)
        until_ns = zb_now_ns() + timeout_ms * NS_PER_MS + w->client->quiet_ns;
    return zc_wait_until(w, rc, until_ns);
}

int zc_ping_wait(struct zc_client *c)
{
    struct zc_waiter w = { .client = c };

    return zc_wait(&w, zc_ping(c, zc_waiter_done, &w), 0);
}
