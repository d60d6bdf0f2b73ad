/*
 * freeze.c - freezes a unit that was declared trainable, and unfreezes it.
 *
 * MODEL. Only the engine of each rank knows about it (unit->frozen_now); the store does not. While
 * the flag is set, the unit takes no gradient, nothing of it is exchanged or pushed, and its
 * tensors have no class in a step. So the store has no gradient and nothing to step: weights,
 * moments and step counts stay (in counts.c their lags grow). State keeps its place.
 *
 * Ranks exchange their arguments, and whether they allow the change. Either all make it, or all are
 * refused.
 */
#include <errno.h>

#include "client/zero/engine.h"
#include "client/zero/pass/pass.h"
#include "client/zero/step/step.h"

/* What ranks exchange. */
struct freeze {
    int32_t rc;
    uint32_t unit, frozen;
};

static int freeze_check(struct zc_zero *z, uint32_t unit, bool frozen)
{
    const char *name;

    if (unit >= z->nunits)
        return zcz_refuse(z, -EINVAL, "unit %u does not exist: there are %u", unit, z->nunits);
    name = z->units[unit].def.name;
    if (z->units[unit].def.frozen && !frozen)
        return zcz_refuse(
            z, -ENOTSUP,
            "unit %u '%s' was declared frozen: it has no optimizer state and cannot be trained",
            unit, name);
    if (zcz_announced(z))
        return zcz_refuse(z, -EBUSY, "unit %u '%s' is %s, and the next step is announced", unit,
                          name, frozen ? "frozen" : "unfrozen");
    if (!zcz_micro_between(z))
        return zcz_refuse(z, -EBUSY,
                          "unit %u '%s' is %s in the middle of a step: gradients of step %llu were "
                          "asked for, or handed over",
                          unit, name, frozen ? "frozen" : "unfrozen",
                          (unsigned long long)z->iterations + 1);
    return 0;
}

static const char *freeze_verb(const struct freeze *f)
{
    return f->frozen ? "freezes" : "unfreezes";
}

/* Checks that all ranks have the same arguments, and that all allow the change. */
static int freeze_compare(struct zc_zero *z, const struct freeze *all)
{
    const struct freeze *mine = &all[z->rank];
    int rc = mine->rc; /* z->error has its error message */

    for (uint32_t r = 1; r < z->world; r++)
        if (all[r].unit != all[0].unit || all[r].frozen != all[0].frozen)
            return zcz_fail(z, -EINVAL, "rank %u %s unit %u where rank 0 %s unit %u", r,
                            freeze_verb(&all[r]), all[r].unit, freeze_verb(&all[0]), all[0].unit);
    for (uint32_t r = 0; r < z->world && rc == 0; r++)
        if (all[r].rc < 0)
            rc = zcz_refuse(z, all[r].rc, "rank %u cannot %s unit %u '%s' now: %s", r,
                            mine->frozen ? "freeze" : "unfreeze", mine->unit,
                            z->units[mine->unit].def.name,
                            "it is in the middle of a step, or has announced it");
    return rc;
}

int zc_zero_freeze(struct zc_zero *z, uint32_t unit, bool frozen)
{
    ZCZ_GUARD(z);
    struct freeze mine = { .unit = unit, .frozen = frozen };
    struct zcz_unit *u;
    struct zcz_buf *buf;
    int rc = zcz_enter(z, true);

    if (rc < 0)
        return rc;
    mine.rc = freeze_check(z, unit, frozen);
    rc = zcz_share(z, &mine, sizeof(mine), ZCZ_CALL_FREEZE, 0, &buf);
    if (rc < 0)
        return rc;
    rc = freeze_compare(z, buf->data);
    zcz_buf_put(&z->small, buf);
    if (rc < 0)
        return rc;
    u = &z->units[unit];
    if (u->def.frozen || u->frozen_now == frozen)
        return 0;
    u->frozen_now = frozen;
    z->frozen = frozen ? z->frozen + 1 : z->frozen - 1;
    return zcz_about_tell(z);
}
