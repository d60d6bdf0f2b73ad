/*
 * park.c - frees temporary memory of this process: buffers of gathers, gradients and votes. The
 * next call that needs a buffer allocates it again.
 */
#include <errno.h>
#include <malloc.h>

#include "client/zero/engine.h"
#include "client/zero/pass/pass.h"
#include "client/zero/step/step.h"

static int park_check(struct zc_zero *z)
{
    const struct zcz_pass *p = z->pass;

    if (zcz_announced(z) || p->open || p->held || p->micro > 0 || p->reduced > 0)
        return zcz_refuse(z, -EBUSY, "a step is in progress: buffers go between two steps");
    for (uint32_t i = 0; i < z->nunits; i++)
        if (p->units[i].holds > 0)
            return zcz_refuse(z, -EBUSY, "unit %u '%s' is gathered", i, z->units[i].def.name);
    return 0;
}

/* Drops units that were prefetched or stay gathered. Waits for those that are on their way. */
static int park_gathers(struct zc_zero *z)
{
    struct zcz_wait w = { .what = "gathers that were given up" };
    int rc = 0;

    zcz_pass_drop(z);
    while (rc == 0 && !zb_list_empty(&z->pass->gathers))
        rc = zcz_wait(z, &w);
    return rc;
}

int zc_zero_park(struct zc_zero *z)
{
    ZCZ_GUARD(z);
    struct zcz_pass *p = z->pass;
    struct zcz_pool *pools[] = { &p->gather_pool, &p->wire_pool, &p->gather_dev, &p->wire_dev,
                                 &p->grad_pool,   &p->grad_dev,  &z->small };
    int rc = zcz_enter(z, true);

    if (rc == 0)
        rc = park_check(z);
    if (rc == 0)
        rc = zcz_elems_settle(z);
    if (rc == 0)
        rc = park_gathers(z);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < ZB_COUNT(pools); i++)
        zcz_pool_trim(pools[i]);
    (void)malloc_trim(0);
    return 0;
}
