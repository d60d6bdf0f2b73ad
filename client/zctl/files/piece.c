/*
 * piece.c - pieces in flight, and termination signals.
 */
#include <errno.h>
#include <signal.h>

#include "base/util.h"
#include "client/zctl/files/files.h"

#define PIECE_TIMEOUT_MS 120000u /* of one piece */
#define POLL_MS          200     /* a signal that comes just before a wait is noticed after it */

static const int signals[] = { SIGHUP, SIGINT, SIGTERM };
static struct sigaction before[ZB_COUNT(signals)];
static volatile sig_atomic_t caught;

static void on_signal(int number)
{
    caught = number;
}

void zctl_stop_catch(void)
{
    struct sigaction act = { .sa_handler = on_signal };

    caught = 0;
    for (size_t i = 0; i < ZB_COUNT(signals); i++)
        (void)sigaction(signals[i], &act, &before[i]);
}

void zctl_stop_leave(void)
{
    for (size_t i = 0; i < ZB_COUNT(signals); i++)
        (void)sigaction(signals[i], &before[i], NULL);
}

void zctl_slot_done(void *arg, int rc)
{
    struct zctl_slot *s = arg;

    s->busy = false;
    s->rc = rc;
}

int zctl_slot_wait(struct zctl *z, struct zctl_slot *s)
{
    uint64_t until_ns = zb_now_ns() + PIECE_TIMEOUT_MS * UINT64_C(1000000);
    int rc = 0;

    while (s->busy && rc >= 0 && !caught && zb_now_ns() < until_ns)
        rc = zc_poll(z->client, POLL_MS);
    if (caught)
        return zb_fail(&z->err, -EINTR, "ended by signal %d", (int)caught);
    if (!s->busy)
        return zctl_failed(z, s->rc);
    return rc < 0 ? zctl_failed(z, rc)
                  : zb_fail(&z->err, -ETIMEDOUT, "the daemon does not answer about a piece");
}
