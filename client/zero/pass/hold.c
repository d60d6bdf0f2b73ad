/*
 * hold.c - the trainer's calls that gather and release: they say what is held, and so what comes
 * next (schedule.c); how a unit comes is gather.c's.
 */
#include <errno.h>

#include "client/zero/zero_priv.h"

int zc_zero_gather(struct zc_zero *z, uint32_t unit, const void **ret_params)
{
    struct zcz_wait w = { .what = "a gather" };
    struct zcz_unit *u;
    int rc = zcz_enter_unit(z, unit, &u);

    if (rc < 0)
        return rc;
    if (u->holds == 0) {
        rc = zcz_schedule_gathered(z, unit);
        if (rc < 0)
            return rc;
        zcz_gather_gone(z, u);
        if (u->state == ZCZ_IDLE)
            zcz_gather_begin(z, u);
        u->holds = 1;
        u->unreduced = true;
        zcz_schedule_apply(z);
    } else {
        u->holds++;
    }
    rc = zcz_turn(z, 0);
    while (rc == 0 && u->state != ZCZ_READY)
        rc = zcz_wait(z, &w);
    if (rc < 0)
        return rc;
    *ret_params = u->params;
    return 0;
}

int zc_zero_release(struct zc_zero *z, uint32_t unit)
{
    struct zcz_unit *u;
    int rc = zcz_enter_unit(z, unit, &u);

    if (rc < 0)
        return rc;
    if (u->holds == 0)
        return zcz_refuse(z, -EINVAL, "unit %u '%s' is released and was not gathered", unit,
                          u->def.name);
    if (--u->holds == 0)
        zcz_schedule_apply(z);
    return zcz_turn(z, 0);
}
