/*
 * late.c - changes the optimizer after the start (options.optimizer_late).
 *
 * MODEL. The job was placed for the optimizer in the options. Before the first step, state is all
 * zeros, so another optimizer can use the same place if it does not need more. Only the kind
 * changes, in the layouts here and in the store.
 */
#include <errno.h>

#include "base/late.h"
#include "client/zero/engine.h"
#include "client/zero/step/step.h"

static int late_check(struct zc_zero *z, enum zc_optimizer kind, enum zc_moments moments)
{
    const struct zc_zero_options *o = &z->options;
    struct zb_err err = { 0 };
    int rc = 0;

    if (!o->optimizer_late)
        return zcz_refuse(z, -EINVAL,
                          "another optimizer, and the engine was not opened with optimizer_late");
    if (z->iterations > 0 || z->stepping || zcz_announced(z))
        return zcz_refuse(z, -EBUSY, "another optimizer, and a step was made, or announced");
    for (uint32_t i = 0; i < z->nunits && rc == 0; i++)
        if (!z->units[i].def.frozen)
            rc = zb_layout_steps_with(&z->units[i].layout, (enum zb_optimizer)kind,
                                      (enum zb_moments)moments, &err);
    if (rc < 0)
        return zcz_refuse(z, rc, "%s", err.text);
    if (o->keep && (int)kind != (int)o->optimizer && o->offload_optimizer != ZC_ZERO_NONE)
        return zcz_refuse(z, -ENOTSUP, "a kept job cannot change its optimizer");
    return 0;
}

int zc_zero_optimizer(struct zc_zero *z, enum zc_optimizer kind, enum zc_moments moments)
{
    ZCZ_GUARD(z);
    struct zcz_wait w = { .what = "the optimizer to be said" };
    int rc = zcz_enter(z, true);

    if (rc == 0)
        rc = late_check(z, kind, moments);
    if (rc < 0)
        return rc;
    if (z->store->ops->optimizer && kind != z->options.optimizer) {
        while ((rc = z->store->ops->optimizer(z->store, &z->op, kind, moments)) == -EAGAIN &&
               (rc = zcz_wait(z, &w)) == 0)
            ;
        if (rc == 0 && (rc = zcz_wait_op(z, &z->op, w.what)) < 0)
            rc = zcz_refuse(z, rc, "%s", zcz_store_text(z->store));
        if (z->failed)
            return rc;
    }
    rc = zcz_vote(z, rc, (uint32_t)kind, ZCZ_CALL_OPTIMIZER);
    if (rc < 0)
        return rc;
    z->options.optimizer = kind;
    for (uint32_t i = 0; i < z->nunits; i++) {
        struct zcz_unit *u = &z->units[i];

        u->layout.optimizer = (enum zb_optimizer)kind;
    }
    return 0;
}
