/*
 * account.c - the arithmetic of accounts.
 */
#include "daemon/run/account.h"

#include <assert.h>

uint64_t zsd_account_used(const struct zsd_account *a)
{
    uint64_t sum = 0;

    for (int i = 0; i < ZSD_USES; i++)
        sum += a->used[i];
    assert(sum <= a->budget);
    return sum;
}
