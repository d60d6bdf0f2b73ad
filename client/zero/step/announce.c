/*
 * announce.c - steps that are announced: see announce.h.
 */
#include "client/zero/step/announce.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/zero/config/options.h"
#include "client/zero/pass/pass.h"
#include "client/zero/step/classes.h"
#include "client/zero/step/clip.h"
#include "client/zero/step/step.h"

struct zc_zero_step_how zcz_step_how(const struct zc_zero *z, double lr, struct zc_group *groups)
{
    for (uint32_t g = 0; g < z->options.groups; g++)
        groups[g] = zcz_group(&z->options, lr, g);
    return (struct zc_zero_step_how){ .groups = groups,
                                      .ngroups = z->options.groups,
                                      .clip = z->options.clip };
}

double zcz_step_average(const struct zc_zero *z, double divide)
{
    double by = divide > 0 ? divide : zcz_micro_made(z);

    return 1.0 / ((double)z->world * by * z->steps->scaler.scale);
}

/* The learning rate of the first group whose rate differs, and `said`: what was announced. */
static bool lr_differs(const struct zc_zero_step_how *how, const struct zc_zero_step_how *said,
                       double *ret, double *ret_said)
{
    for (uint32_t g = 0; g < how->ngroups && g < said->ngroups; g++) {
        *ret = how->groups[g].lr;
        *ret_said = said->groups[g].lr;
        if (*ret != *ret_said)
            return true;
    }
    return false;
}

int zcz_announced_check(struct zc_zero *z, const struct zc_zero_step_how *how)
{
    const struct zc_zero_step_how *said = &z->steps->announced;
    double lr, lr_said;

    if (!zcz_announced(z))
        return 0;
    if (lr_differs(how, said, &lr, &lr_said))
        return zcz_refuse(z, -EINVAL, "a step with learning rate %g, and %g was announced", lr,
                          lr_said);
    if (zcz_how_hash(z, how) != zcz_how_hash(z, said))
        return zcz_refuse(z, -EINVAL, "a step with other values than it was announced with");
    return 0;
}

int zcz_announced_used(struct zc_zero *z, const struct zc_zero_step_how *how,
                       const unsigned char *used)
{
    uint32_t all = 0, n = 0;

    if (z->said_pushes == 0 || z->options.step_unused)
        return 0;
    for (uint32_t i = 0; i < z->nunits; i++)
        for (uint32_t t = 0; t < z->units[i].def.ntensors; t++, all++) {
            const struct zcz_unit *u = &z->units[i];
            bool stepped = zcz_tensor_trained(u, t) &&
                           !(how->group_of && how->group_of[n] == ZC_GROUP_NONE);

            n += zcz_tensor_trained(u, t);
            if (stepped && !u->frozen_now && !(used[all / 8] & (1u << all % 8)))
                return zcz_refuse(z, -EINVAL,
                                  "step %llu was announced, and tensor '%s' of unit '%s' has no "
                                  "gradient: freeze it, leave it out of the step (ZC_GROUP_NONE), "
                                  "or set step_unused. zc_zero_abandon() drops the step",
                                  (unsigned long long)z->iterations + 1, u->def.tensors[t].name,
                                  u->def.name);
        }
    return 0;
}

/* ---- what is announced */

static void *copy_of(const void *from, size_t bytes)
{
    void *made = from ? malloc(bytes + 1) : NULL;

    if (made)
        memcpy(made, from, bytes);
    return made;
}

void zcz_announce_close(struct zc_zero *z)
{
    struct zc_zero_step_how *a = &z->steps->announced;

    free((void *)(uintptr_t)a->groups);
    free((void *)(uintptr_t)a->group_of);
    free((void *)(uintptr_t)a->factors);
    *a = (struct zc_zero_step_how){ 0 };
}

void zcz_announce_forget(struct zc_zero *z)
{
    z->said = ZCZ_SAID_NO;
    z->said_micros = z->said_pushes = 0;
    z->steps->announced_classes = z->steps->announced_limits = false;
}

static int announce_keep(struct zc_zero *z, const struct zc_zero_step_how *how)
{
    struct zc_zero_step_how *a = &z->steps->announced;
    size_t n = z->steps->ntrained;

    zcz_announce_close(z);
    *a = *how;
    a->groups = copy_of(how->groups, how->ngroups * sizeof(*how->groups));
    a->group_of = copy_of(how->group_of, n * sizeof(*how->group_of));
    a->factors = copy_of(how->factors, n * sizeof(*how->factors));
    if (a->groups && (a->group_of || !how->group_of) && (a->factors || !how->factors))
        return 0;
    zcz_announce_close(z);
    return zcz_refuse(z, -ENOMEM, "no memory to announce a step of %u groups", how->ngroups);
}

/* With micro_steps 0, the announcement says that the next micro-step is the step's last. */
static int announce_last(struct zc_zero *z, const struct zc_zero_step_how *how)
{
    if (z->options.micro_steps > 0)
        return 0;
    if (!z->options.announces)
        return zcz_refuse(z, -EINVAL,
                          "a step of as many micro-steps as come is announced: options.announces");
    if (!(how->divide > 0))
        return zcz_refuse(z, -EINVAL,
                          "a step of as many micro-steps as come is announced without `divide`");
    if (z->pass->open)
        return zcz_refuse(z, -EBUSY, "a step is announced inside of its micro-step %u",
                          z->pass->micro);
    return 0;
}

static int announce(struct zc_zero *z, const struct zc_zero_step_how *how)
{
    int rc = zcz_how_check(z, how);

    if (rc == 0)
        rc = announce_last(z, how);
    if (rc == 0)
        rc = zcz_announced_check(z, how);
    if (rc == 0 && !zcz_announced(z)) {
        rc = announce_keep(z, how);
        if (rc < 0)
            return rc;
        z->steps->announcing = z->store->early && z->store->ops->step_begin &&
                               zcz_clip_early(z, how->clip);
        z->said = z->steps->announcing ? ZCZ_SAID_ENGINE : ZCZ_SAID_STORE;
        if (z->options.micro_steps == 0) {
            z->said_micros = z->pass->micro + 1;
            z->said_pushes = z->pass->rounds + 1;
        }
    }
    return rc < 0 ? rc : zcz_turn(z, 0);
}

int zc_zero_announce_by(struct zc_zero *z, const struct zc_zero_step_how *how)
{
    ZCZ_GUARD(z);
    int rc = zcz_enter(z, true);

    return rc < 0 ? rc : announce(z, how);
}

int zc_zero_announce(struct zc_zero *z, double lr)
{
    ZCZ_GUARD(z);
    struct zc_group groups[ZCZ_GROUPS_MAX];
    struct zc_zero_step_how how;
    int rc = zcz_enter(z, true);

    if (rc < 0)
        return rc;
    how = zcz_step_how(z, lr, groups);
    return announce(z, &how);
}

int zcz_announce_turn(struct zc_zero *z)
{
    const struct zc_zero_step_how *how = &z->steps->announced;
    struct zc_step step = { .step = z->iterations + 1 };
    const struct zc_classes *classes;
    uint32_t alone;
    int rc;

    if (!z->steps->announcing || z->stepping || z->steps->announce.pending > 0 ||
        z->steps->announce.rc < 0)
        return 0;
    step.scale = zcz_step_average(z, how->divide);
    rc = zcz_classes_make(z, how, NULL, &classes, &alone);
    if (rc < 0)
        return zcz_fail(z, rc, "%s", z->error.text);
    if (classes && !z->steps->announced_classes) {
        rc = z->store->ops->classes(z->store, &z->steps->announce, step.step, classes);
        z->steps->announced_classes = rc == 0;
        return rc == -EAGAIN ? 0 : rc < 0 ? zcz_fail(z, rc, "%s", z->error.text) : 0;
    }
    step.limits = zcz_clip_on(z) && !zcz_clip_warm(z);
    step.sums = step.limits && zcz_clip_nodes(z);
    if (step.limits && !z->steps->announced_limits) {
        rc = zcz_clip_limits(z, &z->steps->announce, step.step);
        z->steps->announced_limits = rc == 0;
        return rc == -EAGAIN ? 0 : rc < 0 ? zcz_fail(z, rc, "%s", z->error.text) : 0;
    }
    if (!classes) {
        step.groups = how->groups;
        step.ngroups = z->options.groups;
    }
    rc = z->store->ops->step_begin(z->store, &z->steps->announce, &step, zcz_pushes(z));
    if (rc < 0)
        return rc == -EAGAIN ? 0 : zcz_fail(z, rc, "%s", z->error.text);
    z->steps->announcing = false;
    z->said = ZCZ_SAID_STORE;
    return 0;
}
