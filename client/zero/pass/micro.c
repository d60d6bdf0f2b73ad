/*
 * micro.c - micro-steps: any number of them (micro_steps 0), and which tensors have a gradient.
 *
 * MODEL. With micro_steps 0 the trainer marks where a micro-step begins and ends. It reduces its
 * units in any order. They are exchanged in one fixed order, by falling number: each as soon as all
 * units above it were reduced; at the end those that were not, with zeros. So ranks may reduce
 * units in different orders, or not at all, and still make the same collectives.
 *
 *     zc_zero_micro()       pass->open; nothing is exchanged yet: pass->next is above all units
 *     zc_zero_reduce()      the unit is ready; all units that may be exchanged now are
 *     zc_zero_micro_end()   the rest is exchanged
 *
 * ROUNDS. Each time all units were exchanged, the store gets one more sum of each: pass->rounds.
 * With accumulate_local, a micro-step that is not the last only adds to what is held here
 * (pass->held). What is held is exchanged when it is needed, in a round of its own:
 * zcz_micro_settle().
 *
 * TENSORS. Each reduction says which of the unit's tensors have a gradient on this rank. A report
 * in any micro-step holds for the whole step (step/ asks with zcz_reduced_has()); a new step begins
 * with none.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/zero/pass/pass_priv.h"

int zcz_micro_start(struct zc_zero *z)
{
    uint64_t n = 0;
    bool *has;

    for (uint32_t i = 0; i < z->nunits; i++)
        n += z->units[i].def.ntensors;
    has = calloc(zb_max_u64(n, 1), sizeof(*has));
    if (!has)
        return zcz_refuse(z, -ENOMEM, "no memory for %llu tensors", (unsigned long long)n);
    z->pass->has = has;
    for (uint32_t i = 0; i < z->nunits; i++) {
        z->pass->units[i].has = has;
        has += z->units[i].def.ntensors;
    }
    return 0;
}

static void micro_has(struct zcz_unit *u, const bool *has)
{
    for (uint32_t t = 0; t < u->def.ntensors; t++)
        u->pass->has[t] = u->pass->has[t] || !has || has[t];
}

void zcz_micro_rewind(struct zc_zero *z)
{
    z->pass->open = z->pass->held = false;
    z->pass->rounds = 0;
    for (uint32_t i = 0; i < z->nunits; i++)
        memset(z->pass->units[i].has, 0, z->units[i].def.ntensors * sizeof(bool));
}

bool zcz_reduced_has(const struct zc_zero *z, uint32_t unit, uint32_t tensor)
{
    return z->units[unit].pass->has[tensor];
}

bool zcz_reduced_there(const struct zc_zero *z, const struct zcz_unit *u)
{
    return zcz_micro_any(z) ? z->pass->rounds > 0 : u->pass->micro > zcz_reduce_local(z);
}

/* ---- any number of micro-steps */

/* Whether the unit was reduced in this micro-step. */
static bool micro_handed(const struct zc_zero *z, const struct zcz_unit *u)
{
    return u->pass->micro > z->pass->micro;
}

static int micro_refused(struct zc_zero *z, const struct zcz_unit *u)
{
    if (!z->pass->open)
        return zcz_refuse(z, -EBUSY,
                          "unit %u '%s' has a gradient, and no micro-step is in progress: "
                          "zc_zero_micro() comes first",
                          u->def.index, u->def.name);
    if (micro_handed(z, u))
        return zcz_refuse(z, -EBUSY, "unit %u '%s' was reduced in micro-step %u, which is not over",
                          u->def.index, u->def.name, z->pass->micro);
    return 0;
}

/* Exchanges the units that may be exchanged now, in their order; `all`: all that are left. */
static int micro_leave(struct zc_zero *z, bool all)
{
    int rc = 0;

    for (; z->pass->next > 0 && rc == 0; z->pass->next--) {
        struct zcz_unit *u = &z->units[z->pass->next - 1];
        bool handed = micro_handed(z, u);

        if (!zcz_unit_trained(u))
            continue;
        if (!handed && !all)
            break;
        if (!handed)
            rc = zcz_grad_make(z, u, !z->options.accumulate_local);
        if (rc == 0)
            rc = zcz_reduce_leave(z, u);
    }
    return rc;
}

/* Exchanges all units that are left. */
static int micro_round(struct zc_zero *z)
{
    int rc = micro_leave(z, true);

    if (rc < 0)
        return rc;
    zcz_reduce_follow(z);
    z->pass->rounds++;
    z->pass->held = false;
    return 0;
}

static int micro_close(struct zc_zero *z)
{
    int rc = z->pass->leaves ? micro_round(z) : 0;

    if (rc < 0)
        return rc;
    z->pass->held = !z->pass->leaves;
    z->pass->open = false;
    z->pass->micro++;
    for (uint32_t i = 0; i < z->nunits; i++) {
        z->pass->units[i].micro = z->pass->micro;
        z->pass->units[i].asked = false;
    }
    zcz_schedule_learn(z);
    zcz_schedule_apply(z);
    return 0;
}

static int micro_hand(struct zc_zero *z, struct zcz_unit *u)
{
    u->pass->asked = false;
    u->pass->micro = z->pass->micro + 1;
    u->pass->unreduced = false;
    return z->pass->leaves ? micro_leave(z, false) : zcz_turn(z, 0);
}

int zcz_micro_abandon(struct zc_zero *z)
{
    if (!zcz_micro_any(z) && z->pass->reduced > 0)
        return zcz_refuse(z, -EBUSY,
                          "a step is abandoned in the middle of micro-step %u: %u of %u units were "
                          "reduced",
                          z->pass->micro, z->pass->reduced, zcz_trained(z));
    if (!z->pass->open)
        return 0;
    return micro_close(z);
}

bool zcz_micro_between(const struct zc_zero *z)
{
    bool between = !z->pass->open && z->pass->micro == 0 && z->pass->reduced == 0;

    for (uint32_t i = 0; i < z->nunits; i++)
        between = between && !z->units[i].pass->asked;
    return between;
}

/* Gradients that no daemon holds leave after the announcement of their step. */
static int micro_ring(struct zc_zero *z, bool leaves)
{
    if (!leaves || !z->store->rings || zcz_announced(z))
        return 0;
    return zcz_refuse(z, -EINVAL,
                      "gradients are exchanged before their step is announced: with grad_ring, "
                      "zc_zero_announce_by() comes first");
}

/* Whether gradients are held here that the step exchanges. */
static bool micro_holds(const struct zc_zero *z)
{
    return z->pass->open ? !z->pass->leaves || z->pass->held : z->pass->held;
}

int zcz_micro_check(struct zc_zero *z)
{
    if (!zcz_micro_any(z))
        return 0;
    if (!z->pass->open && z->pass->micro == 0)
        return zcz_refuse(z, -EBUSY, "a step, and no micro-step was made: zc_zero_micro()");
    if (z->said_pushes > z->pass->rounds && !z->pass->open && !z->pass->held)
        return zcz_refuse(z, -EBUSY, "a step, and the last micro-step was announced and not made");
    return micro_ring(z, micro_holds(z));
}

int zcz_micro_settle(struct zc_zero *z)
{
    int rc = micro_ring(z, micro_holds(z));

    if (rc == 0 && z->pass->open)
        rc = micro_close(z);
    if (rc < 0 || !z->pass->held)
        return rc;
    z->pass->next = z->nunits;
    return micro_round(z);
}

uint32_t zcz_micro_made(const struct zc_zero *z)
{
    return zcz_micro_any(z) ? z->pass->micro + z->pass->open : z->options.micro_steps;
}

/* ---- the trainer's calls */

static int grad_refused(struct zc_zero *z, const struct zcz_unit *u)
{
    if (!zcz_unit_trained(u))
        return zcz_refuse(z, -EINVAL, "unit %u '%s' is frozen: it has no gradient", u->def.index,
                          u->def.name);
    if (zcz_micro_any(z))
        return micro_refused(z, u);
    if (z->pass->micro == zcz_micro_steps(z))
        return zcz_refuse(z, -EBUSY,
                          "unit %u '%s': all %u micro-steps are complete, and zc_zero_step() comes "
                          "next",
                          u->def.index, u->def.name, zcz_micro_steps(z));
    if (u->pass->micro > z->pass->micro)
        return zcz_refuse(z, -EBUSY,
                          "unit %u '%s' was reduced in micro-step %u, which is not complete: %u of "
                          "%u units were",
                          u->def.index, u->def.name, z->pass->micro, z->pass->reduced,
                          zcz_trained(z));
    return 0;
}

int zcz_grad_ask(struct zc_zero *z, uint32_t unit, struct zcz_unit **ret)
{
    int rc = zcz_enter_unit(z, unit, ret);

    if (rc == 0)
        rc = grad_refused(z, *ret);
    if (rc == 0)
        rc = zcz_grad_make(z, *ret, false);
    if (rc == 0)
        (*ret)->pass->asked = true;
    return rc;
}

int zc_zero_grad(struct zc_zero *z, uint32_t unit, float **ret_grad)
{
    ZCZ_GUARD(z);
    struct zcz_unit *u;
    int rc = zcz_grad_ask(z, unit, &u);

    if (rc < 0)
        return rc;
    *ret_grad = u->pass->grad->data;
    return zcz_turn(z, 0);
}

/* Ends a micro-step after its last unit. */
static void reduce_complete(struct zc_zero *z)
{
    z->pass->reduced = 0;
    z->pass->micro++;
    zcz_reduce_follow(z);
    zcz_schedule_learn(z);
}

int zc_zero_reduce_of(struct zc_zero *z, uint32_t unit, const bool *has, uint32_t n)
{
    ZCZ_GUARD(z);
    struct zcz_unit *u;
    bool leaves;
    int rc = zcz_enter_unit(z, unit, &u);

    if (rc == 0)
        rc = grad_refused(z, u);
    if (rc < 0)
        return rc;
    if (!u->pass->asked)
        return zcz_refuse(z, -EINVAL,
                          "unit %u '%s' is reduced, and zc_zero_grad() was not called for it in "
                          "this micro-step",
                          unit, u->def.name);
    if (has && n != u->def.ntensors)
        return zcz_refuse(z, -EINVAL, "unit '%s' is reduced with %u gradients, and has %u tensors",
                          u->def.name, n, u->def.ntensors);
    if (zcz_micro_any(z)) {
        micro_has(u, has);
        rc = micro_hand(z, u);
    } else {
        leaves = u->pass->micro >= zcz_reduce_local(z);
        rc = leaves ? zcz_reduce_leave(z, u) : zcz_turn(z, 0);
    }
    if (rc < 0)
        return rc;
    if (!zcz_micro_any(z)) {
        micro_has(u, has);
        u->pass->asked = false;
        u->pass->micro++;
        u->pass->unreduced = false;
        if (++z->pass->reduced == zcz_trained(z))
            reduce_complete(z);
    }
    zcz_schedule_apply(z);
    return zcz_reduce_waits(z);
}

int zc_zero_reduce(struct zc_zero *z, uint32_t unit)
{
    ZCZ_GUARD(z);
    return zc_zero_reduce_of(z, unit, NULL, 0);
}

static int micro_enter(struct zc_zero *z)
{
    int rc = zcz_enter(z, true);

    if (rc == 0 && !zcz_micro_any(z))
        rc = zcz_refuse(
            z, -EINVAL,
            "a step of this engine has %u micro-steps: zc_zero_micro() needs options.micro_steps 0",
            z->options.micro_steps);
    return rc;
}

int zc_zero_micro(struct zc_zero *z, bool last)
{
    ZCZ_GUARD(z);
    int rc = micro_enter(z);

    if (rc == 0 && z->said_micros > 0 && z->pass->micro + z->pass->open >= z->said_micros)
        rc = zcz_refuse(
            z, -EBUSY,
            "micro-step %u, and the step was announced with %u: zc_zero_step_by() comes next",
            z->said_micros, z->said_micros);
    if (rc == 0)
        rc = micro_ring(z, last || !z->options.accumulate_local);
    if (rc == 0 && z->pass->open)
        rc = micro_close(z);
    if (rc < 0)
        return rc;
    z->pass->open = true;
    z->pass->leaves = last || !z->options.accumulate_local;
    z->pass->next = z->nunits;
    return zcz_turn(z, 0);
}

int zc_zero_micro_end(struct zc_zero *z)
{
    ZCZ_GUARD(z);
    int rc = micro_enter(z);

    if (rc == 0 && !z->pass->open)
        rc = zcz_refuse(z, -EBUSY, "a micro-step ends, and none is in progress");
    if (rc == 0)
        rc = micro_close(z);
    return rc < 0 ? rc : zcz_turn(z, 0);
}
