/*
 * announce.c - steps that are announced: see announce.h.
 */
#include "client/zero/step/announce.h"

#include <errno.h>
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

int zcz_announced_check(struct zc_zero *z, const struct zc_zero_step_how *how)
{
    struct zc_group groups[ZCZ_GROUPS_MAX];
    struct zc_zero_step_how said;

    if (!zcz_announced(z))
        return 0;
    said = zcz_step_how(z, z->steps->announced_lr, groups);
    if (how->groups[0].lr != groups[0].lr)
        return zcz_refuse(z, -EINVAL, "a step with learning rate %g, and %g was announced",
                          how->groups[0].lr, groups[0].lr);
    if (zcz_how_hash(z, how) != zcz_how_hash(z, &said))
        return zcz_refuse(z, -EINVAL, "a step with other values than it was announced with");
    return 0;
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
    rc = zcz_how_check(z, &how);
    if (rc < 0)
        return rc;
    if (zcz_announced(z) && memcmp(&lr, &z->steps->announced_lr, sizeof(lr)) != 0)
        return zcz_refuse(z, -EINVAL, "learning rate %g is announced, and %g was", lr,
                          z->steps->announced_lr);
    if (z->options.micro_steps == 0)
        return zcz_refuse(z, -EINVAL, "a step of as many micro-steps as come is announced");
    if (!zcz_announced(z)) {
        z->steps->announcing = z->store->early && z->store->ops->step_begin && zcz_clip_early(z);
        z->said = z->steps->announcing ? ZCZ_SAID_ENGINE : ZCZ_SAID_STORE;
    }
    z->steps->announced_lr = lr;
    return zcz_turn(z, 0);
}

int zcz_announce_turn(struct zc_zero *z)
{
    struct zc_group groups[ZCZ_GROUPS_MAX];
    struct zc_zero_step_how how;
    struct zc_step step = { .step = z->iterations + 1, .scale = zcz_step_average(z, 0) };
    const struct zc_classes *classes;
    uint32_t alone;
    int rc;

    if (!z->steps->announcing || z->stepping || z->steps->announce.pending > 0 ||
        z->steps->announce.rc < 0)
        return 0;
    how = zcz_step_how(z, z->steps->announced_lr, groups);
    rc = zcz_classes_make(z, &how, NULL, &classes, &alone);
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
        step.groups = groups;
        step.ngroups = z->options.groups;
    }
    rc = z->store->ops->step_begin(z->store, &z->steps->announce, &step, zcz_pushes(z));
    if (rc < 0)
        return rc == -EAGAIN ? 0 : zcz_fail(z, rc, "%s", z->error.text);
    z->steps->announcing = false;
    z->said = ZCZ_SAID_STORE;
    return 0;
}
