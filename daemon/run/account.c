/*
 * account.c - the arithmetic of accounts: see account.h. Booked by plan/, disk/ and op/reader.c.
 */
#include "daemon/run/account.h"

#include <assert.h>

void zsd_book(struct zsd_account *a, struct zsd_account *held, enum zsd_use use, uint64_t bytes)
{
    a->used[use] += bytes;
    if (held)
        held->used[use] += bytes;
    if (held && held->user)
        held->user->used[use] += bytes;
}

void zsd_disown(struct zsd_account *held, enum zsd_use use, uint64_t bytes)
{
    assert(held->used[use] >= bytes && (!held->user || held->user->used[use] >= bytes));
    held->used[use] -= bytes;
    if (held->user)
        held->user->used[use] -= bytes;
}

void zsd_unbook(struct zsd_account *a, struct zsd_account *held, enum zsd_use use, uint64_t bytes)
{
    assert(a->used[use] >= bytes);
    a->used[use] -= bytes;
    if (held)
        zsd_disown(held, use, bytes);
}

uint64_t zsd_account_held(const struct zsd_account *a)
{
    uint64_t sum = 0;

    for (int i = 0; i < ZSD_USES; i++)
        sum += a->used[i];
    return sum;
}

uint64_t zsd_account_used(const struct zsd_account *a)
{
    uint64_t sum = zsd_account_held(a);

    assert(sum <= a->budget);
    return sum;
}
