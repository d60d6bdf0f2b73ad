/*
 * turn.c - turns and waiting. A turn runs the engine's machines, which advance whatever can move.
 *
 * MACHINES. Each advances one kind of work. They are in a table that zc_zero_open() fills: the
 * step, gathers, collectives, reductions. A turn calls each in that order, and repeats that as long
 * as one of them reports that something has moved.
 *
 * WAITING. Ranks share cores with each other and with the daemon, so a wait must not burn one. It
 * turns without sleeping for ZCZ_SPIN_NS. Then it sleeps for an eighth of the time that nothing has
 * moved, in the store's poll, so that the daemon wakes it at once. Collectives and a device are
 * only polled: while one is in progress, a sleep is at most ZCZ_NAP_COLL_US.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "client/zero/core/zero.h"

#define ZCZ_SPIN_NS      20000u
#define ZCZ_INTERRUPT_NS UINT64_C(1000000000) /* nothing moved: the wait will not end soon */
#define ZCZ_NAP_COLL_US  1000u
#define ZCZ_NAP_US       20000u

void zcz_turn_init(struct zc_zero *z, zcz_machine_fn *const machines[ZCZ_MACHINES],
                   uint32_t patience_ms)
{
    memcpy(z->turns.machines, machines, sizeof(z->turns.machines));
    z->turns.patience_ms = patience_ms;
}

uint32_t zcz_turn_patience(struct zc_zero *z, uint64_t patience_ms)
{
    uint32_t before = z->turns.patience_ms;

    z->turns.patience_ms = (uint32_t)zb_min_u64(patience_ms, UINT32_MAX);
    return before;
}

void zcz_turn_clear(struct zc_zero *z)
{
    z->turns.stall_ns = 0;
}

static int turn_once(struct zc_zero *z, uint32_t wait_us)
{
    int rc = 0;

    if (z->store && !z->turns.store_gone)
        rc = z->store->ops->poll(z->store, wait_us);
    else if (wait_us > 0)
        (void)usleep(wait_us);
    if (rc < 0) {
        z->turns.store_gone = true;
        if (rc == -EOWNERDEAD && zcz_coll_other(z) < 0)
            return z->failed;
        return zcz_fail(z, rc, "%s", zcz_store_text(z->store));
    }
    z->turns.moved = rc > 0;
    rc = 0;
    for (size_t i = 0; i < ZCZ_MACHINES && rc == 0; i++)
        rc = z->turns.machines[i](z);
    return rc;
}

int zcz_turn(struct zc_zero *z, uint32_t wait_us)
{
    int rc = z->failed;

    while (rc == 0) {
        rc = turn_once(z, wait_us);
        if (!z->turns.moved)
            break;
        z->turns.moved_ns = zb_now_ns();
        wait_us = 0;
    }
    return rc;
}

int zcz_wait(struct zc_zero *z, struct zcz_wait *w)
{
    uint64_t now = zb_now_ns(), idle_ns, nap_us = 0;
    uint64_t limit_ns = (uint64_t)z->turns.patience_ms * 1000000;
    int rc;

    if (w->begin_ns == 0)
        w->begin_ns = now;
    idle_ns = now - zb_max_u64(w->begin_ns, z->turns.moved_ns);
    if (atomic_load(&z->guard.interrupted) && w->again)
        return zcz_refuse(z, -EINTR, "interrupted while waiting for %s", w->what);
    if (atomic_load(&z->guard.interrupted) && idle_ns > ZCZ_INTERRUPT_NS)
        return zcz_fail(z, -EINTR, "interrupted while waiting for %s, which cannot be taken back",
                        w->what);
    if (idle_ns > limit_ns) {
        char text[256];

        rc = zcz_coll_stuck(z);
        if (rc < 0)
            return rc;
        zcz_coll_describe(z, text, sizeof(text));
        return zcz_fail(z, -ETIMEDOUT, "nothing moved for %llu ms while waiting for %s: %s",
                        (unsigned long long)(idle_ns / 1000000), w->what, text);
    }
    if (idle_ns > ZCZ_SPIN_NS)
        nap_us =
            zb_min_u64(idle_ns / 8000, zb_list_empty(&z->colls.started) && z->device.moving == 0
                                           ? ZCZ_NAP_US
                                           : ZCZ_NAP_COLL_US);
    rc = zcz_turn(z, (uint32_t)nap_us);
    z->turns.stall_ns += zb_now_ns() - now;
    return rc;
}

int zcz_wait_op(struct zc_zero *z, struct zcz_op *op, const char *what)
{
    struct zcz_wait w = { .what = what };
    int rc = zcz_turn(z, 0);

    while (rc == 0 && op->pending > 0)
        rc = zcz_wait(z, &w);
    if (rc == 0) {
        rc = op->rc;
        *op = (struct zcz_op){ 0 };
    }
    return rc;
}

int zc_zero_poll(struct zc_zero *z)
{
    ZCZ_GUARD(z);
    int rc = zcz_enter(z, false);

    return rc < 0 ? rc : zcz_turn(z, 0);
}
