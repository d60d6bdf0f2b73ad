/*
 * pass.c - creates and frees the room's state, and has the trainer's calls that gather and release.
 * They determine what is held, and so what is gathered next (schedule.c); gather.c has how a unit
 * is gathered.
 */
#include <errno.h>
#include <stdlib.h>

#include "client/zero/pass/pass_priv.h"

/* ---- the room */

void zcz_pass_open(struct zc_zero *z, uint32_t prefetch_units)
{
    struct zcz_pass *p = z->pass;
    uint32_t gathers = zb_min_u64(prefetch_units, ZCZ_PREFETCH_MAX) + ZB_GATHER_IDLE;

    zb_list_init(&p->gathers);
    zb_list_init(&p->reduces);
    zb_list_init(&p->reduces_idle);
    zb_list_init(&p->sums);
    for (uint32_t i = 0; i < ZCZ_REDUCES_MAX; i++)
        zb_list_push_back(&p->reduces_idle, &p->reduce_slots[i].node);
    zcz_pool_init_pinned(&p->gather_pool, gathers, &z->device);
    zcz_pool_init(&p->wire_pool, gathers, NULL);
    zcz_pool_init(&p->gather_dev, gathers, &z->device);
    zcz_pool_init(&p->wire_dev, gathers, &z->device);
    zcz_pool_init_pinned(&p->grad_pool, ZCZ_REDUCES_MAX + 1, &z->device);
    zcz_pool_init(&p->grad_dev, ZCZ_REDUCES_MAX + 1, &z->device);
}

int zcz_pass_start(struct zc_zero *z)
{
    struct zcz_pass *p = z->pass;

    p->units = calloc(z->nunits, sizeof(*p->units));
    if (!p->units)
        return zcz_refuse(z, -ENOMEM, "no memory for %u units", z->nunits);
    for (uint32_t i = 0; i < z->nunits; i++) {
        struct zcz_unit *u = &z->units[i];

        p->units[i] = (struct zcz_pass_unit){ .unit = u,
                                              .buf = u->whole[ZB_PARAM],
                                              .grad_kept = u->whole[ZB_GRAD] };
        u->pass = &p->units[i];
    }
    if (z->options.accumulate_local) { /* all of these buffers are in use at one time, once per
                                          step */
        p->grad_pool.keep += z->trainable;
        p->grad_dev.keep += z->trainable;
    }
    return zcz_micro_start(z);
}

bool zcz_pass_idle(const struct zc_zero *z)
{
    return zb_list_empty(&z->pass->gathers) && zcz_reduce_idle(z);
}

void zcz_pass_let_go(struct zc_zero *z)
{
    if (z->pass->open) /* other ranks may have exchanged more of this micro-step */
        (void)zcz_micro_settle(z);
    zcz_reduce_follow(z);
    zb_list_each(pos, &z->pass->gathers)
    {
        struct zcz_unit *u = zb_container_of(pos, struct zcz_pass_unit, node)->unit;

        u->pass->holds = 0;
        zcz_gather_drop(z, u);
    }
}

void zcz_pass_drop(struct zc_zero *z)
{
    zb_list_each(pos, &z->pass->gathers)
    {
        struct zcz_unit *u = zb_container_of(pos, struct zcz_pass_unit, node)->unit;

        if (u->pass->holds == 0 && !u->pass->drop)
            zcz_gather_drop(z, u);
    }
}

int zcz_pass_forget(struct zc_zero *z, struct zcz_unit *u)
{
    if (u->pass->holds > 0)
        return zcz_refuse(z, -EBUSY, "unit %u '%s' is gathered, and is to be written", u->def.index,
                          u->def.name);
    if (u->pass->state != ZCZ_IDLE)
        zcz_gather_drop(z, u);
    zcz_gather_gone(z, u);
    return z->failed;
}

void zcz_pass_rewind(struct zc_zero *z)
{
    zcz_reduce_rewind(z);
    zcz_micro_rewind(z);
    zcz_schedule_rewind(z);
    zcz_schedule_apply(z);
}

void zcz_pass_close(struct zc_zero *z, bool orphans)
{
    struct zcz_pass *p = z->pass;

    for (uint32_t i = 0; i < z->nunits && p->units; i++)
        zk_gpu_event_free(p->units[i].down);
    zcz_pool_done(&p->gather_pool, orphans);
    zcz_pool_done(&p->wire_pool, orphans);
    zcz_pool_done(&p->grad_pool, orphans);
    zcz_pool_done(&p->gather_dev, false);
    zcz_pool_done(&p->wire_dev, false);
    zcz_pool_done(&p->grad_dev, false);
    free(p->order.units);
    free(p->seen.units);
    zcz_alone_done(z);
    free(p->has);
    free(p->units);
    p->has = NULL;
    p->units = NULL;
}

/* ---- the trainer's calls */

int zc_zero_gather(struct zc_zero *z, uint32_t unit, const void **ret_params)
{
    ZCZ_GUARD(z);
    struct zcz_wait w = { .what = "a gather", .again = true };
    struct zcz_unit *u;
    int rc = zcz_enter_unit(z, unit, &u);

    if (rc < 0)
        return rc;
    if (u->pass->holds == 0) {
        rc = u->pass->interrupted ? 0 : zcz_schedule_gathered(z, unit);
        if (rc < 0)
            return rc;
        u->pass->interrupted = false;
        zcz_gather_gone(z, u);
        if (u->pass->state == ZCZ_IDLE)
            zcz_gather_begin(z, u);
        u->pass->holds = 1;
        u->pass->unreduced = true;
        zcz_schedule_apply(z);
    } else {
        u->pass->holds++;
    }
    rc = zcz_turn(z, 0);
    while (rc == 0 && u->pass->state != ZCZ_READY)
        rc = zcz_wait(z, &w);
    if (rc == -EINTR && !z->failed) /* its place in the order of gathers is already recorded */
        u->pass->interrupted = --u->pass->holds == 0;
    if (rc < 0)
        return rc;
    *ret_params = u->pass->params;
    return 0;
}

int zc_zero_release(struct zc_zero *z, uint32_t unit)
{
    ZCZ_GUARD(z);
    struct zcz_unit *u;
    int rc = zcz_enter_unit(z, unit, &u);

    if (rc < 0)
        return rc;
    if (u->pass->holds == 0)
        return zcz_refuse(z, -EINVAL, "unit %u '%s' is released and was not gathered", unit,
                          u->def.name);
    if (--u->pass->holds == 0)
        zcz_schedule_apply(z);
    return zcz_turn(z, 0);
}
