/*
 * guard.c - admits one thread at a time to an engine; the flag for interruption.
 *
 * INTERRUPTION. A flag, which waits check (turn.c). The next call of the trainer clears it.
 */
#include "client/zero/core/guard.h"

#include "client/zero/core/zero.h"

/* The guard changes also when the engine is const. */
static struct zcz_guard *guard_of(const struct zc_zero *z)
{
    return (struct zcz_guard *)(uintptr_t)&z->guard;
}

static void guard_in(struct zcz_guard *g)
{
    if (g->depth++ == 0)
        atomic_store(&g->interrupted, false);
}

const struct zc_zero *zcz_guard_enter(const struct zc_zero *z)
{
    struct zcz_guard *g = guard_of(z);

    if (z->forked) /* the thread and the lock are the parent's */
        return NULL;
    if (g->on)
        (void)pthread_mutex_lock(&g->lock);
    guard_in(g);
    return z;
}

void zcz_guard_leave(const struct zc_zero **z)
{
    struct zcz_guard *g;

    if (!*z)
        return;
    g = guard_of(*z);
    g->depth--;
    if (g->on)
        (void)pthread_mutex_unlock(&g->lock);
}

void zc_zero_interrupt(struct zc_zero *z)
{
    atomic_store(&z->guard.interrupted, true);
}
