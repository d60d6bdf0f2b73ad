/*
 * step.c - the end of an iteration: norms, the decision, and the step in the store.
 *
 *     every push has arrived ---> norms of this rank ---> of all ranks ---> step or skip
 *
 * NUMBERS. Each store gives the exact sum of the squares of its gradients; merged exactly, it is
 * the same wide integer however the units were cut, and it is rounded once. So every rank decides
 * the same without a vote: to skip, when a value anywhere is not finite, and by how much to clip.
 *
 * LOSS SCALE. Gradients come multiplied by it, and the step divides by it: norm and clipping are of
 * what the gradients would be without. What a step does to it (loss_scale.h) follows from the
 * decision above, so it is alike on all ranks, and goes with the step in its note (note.c).
 *
 * DURABLE. Whether a step commits follows from its number, so every rank says the same; how it went
 * is settled at the step behind it (commit.c).
 *
 * OVERLAP. A step whose learning rate was announced, and that nothing clips, is told to the store
 * ahead, which begins it as gradients come (ZC_ZERO_EARLY); the decision above stays what it is.
 * With ZC_ZERO_SERVE zc_zero_step() returns when the step has begun. Gathers that follow ask for
 * the version behind it and wait in the store, unit by unit; the next gradients wait here
 * (reduce.c). So the next forward pass begins while the end of the model is still being updated. A
 * step that fails fails the engine, at whichever call comes next.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/zero/config/options.h"
#include "client/zero/pass/pass.h"
#include "client/zero/step/step.h"

void zcz_steps_start(struct zc_zero *z)
{
    z->iterations = z->store->iterations;
    z->applied = z->store->applied;
    z->steps->scaler = zcz_scale_new(&z->options.loss_scale, z->iterations);
}

bool zcz_steps_idle(const struct zc_zero *z)
{
    return z->steps->notes.pending == 0 && z->steps->announce.pending == 0 && !z->stepping;
}

void zcz_steps_close(struct zc_zero *z)
{
    free(z->steps->note);
}

static int step_check(struct zc_zero *z, double lr)
{
    if (!isfinite(lr))
        return zcz_refuse(z, -EINVAL, "a step with learning rate %g", lr);
    if (z->steps->announced && memcmp(&lr, &z->steps->announced_lr, sizeof(lr)) != 0)
        return zcz_refuse(z, -EINVAL, "a step with learning rate %g, and %g was announced", lr,
                          z->steps->announced_lr);
    if (z->trainable == 0)
        return zcz_refuse(z, -EINVAL, "a step, and every unit is frozen");
    if (zcz_micro_check(z) < 0)
        return -EBUSY;
    for (uint32_t i = 0; i < z->nunits; i++) {
        const struct zcz_unit *u = &z->units[i];

        if (u->pass->holds > 0)
            return zcz_refuse(z, -EBUSY, "a step while unit %u '%s' is gathered", i, u->def.name);
        if (!u->def.frozen && z->options.micro_steps > 0 && u->pass->micro < zcz_micro_steps(z))
            return zcz_refuse(z, -EBUSY,
                              "a step, and unit %u '%s' was reduced in %u of %u micro-steps", i,
                              u->def.name, u->pass->micro, zcz_micro_steps(z));
    }
    return 0;
}

/* Gradients must have arrived. Nothing was gathered ahead of the step (schedule.c); what is on its
 * way to be dropped must be gone, since a step waits for pins. */
static int step_settle(struct zc_zero *z)
{
    struct zcz_wait w = { .what = "gradients to reach the store" };
    int rc = zcz_micro_settle(z);

    zcz_pass_drop(z);
    if (rc == 0)
        rc = zcz_turn(z, 0);
    while (rc == 0 && (!zcz_pass_idle(z) || !zcz_steps_idle(z) || z->steps->announcing))
        rc = zcz_wait(z, &w);
    if (rc == 0 && z->steps->notes.rc < 0)
        rc = zcz_fail(z, z->steps->notes.rc, "a note: %s", zcz_store_text(z->store));
    if (rc == 0 && z->steps->announce.rc < 0)
        rc = zcz_fail(z, z->steps->announce.rc, "step %llu, announced: %s",
                      (unsigned long long)z->iterations + 1, zcz_store_text(z->store));
    return rc;
}

struct step_share {
    struct zc_norm norm;
    double lr;
};

/* The norm over all ranks; a learning rate that differs would tear the model apart. */
static int step_norm(struct zc_zero *z, double lr, double *ret_norm, uint64_t *ret_nonfinite)
{
    struct step_share mine = { .lr = lr };
    struct zcz_wait w = { .what = "the norms of the gradients" };
    const struct step_share *all;
    struct zk_xsum sum = { 0 };
    struct zcz_buf *buf;
    int rc;

    while ((rc = z->store->ops->norms(z->store, &z->op, z->iterations + 1, &z->steps->norm)) ==
               -EAGAIN &&
           (rc = zcz_wait(z, &w)) == 0)
        ;
    if (rc < 0)
        return zcz_fail(z, rc, "%s", z->error.text);
    rc = zcz_wait_op(z, &z->op, w.what);
    if (rc < 0)
        return zcz_fail(z, rc, "norms of the gradients: %s", zcz_store_text(z->store));
    mine.norm = z->steps->norm;
    rc = zcz_share(z, &mine, sizeof(mine), ZCZ_CALL_STEP, 0, &buf);
    if (rc < 0)
        return rc;
    all = buf->data;
    *ret_nonfinite = 0;
    for (uint32_t r = 0; r < z->world && rc == 0; r++) {
        struct zk_xsum other;

        if (r / z->shards == z->replica) { /* the other groups have the same gradient */
            zk_xsum_load(&other, all[r].norm.sum_of_squares);
            zk_xsum_merge(&sum, &other);
        }
        *ret_nonfinite += all[r].norm.nonfinite;
        if (memcmp(&all[r].lr, &all[0].lr, sizeof(lr)) != 0)
            rc = zcz_fail(z, -EINVAL, "a step with learning rate %.17g on rank %u, %.17g on rank 0",
                          all[r].lr, r, all[0].lr);
    }
    *ret_norm = sqrt(zk_xsum_value(&sum));
    zcz_buf_put(&z->small, buf);
    return rc;
}

/* Hands it to the store; `groups` NULL: a skip. */
static int step_begin(struct zc_zero *z, const struct zc_step *step)
{
    struct zcz_wait w = { .what = "the step to begin" };
    int rc;

    while ((rc = z->store->ops->step(z->store, &z->steps->step, step, &z->steps->stepped)) ==
               -EAGAIN &&
           (rc = zcz_wait(z, &w)) == 0)
        ;
    if (rc < 0)
        return zcz_fail(z, rc, "%s", z->error.text);
    z->stepping = true;
    zcz_commit_begun(z, step->commit);
    z->iterations++;
    z->applied += step->groups != NULL;
    z->steps->announced = false;
    zcz_pass_rewind(z);
    rc = zcz_turn(z, 0);
    w = (struct zcz_wait){ .what = "the step" };
    while (rc == 0 && !(z->options.overlap & ZC_ZERO_SERVE) && z->stepping)
        rc = zcz_wait(z, &w);
    return rc;
}

/* What a gradient that was added up is to be multiplied with, unless it is clipped. */
static double step_average(const struct zc_zero *z)
{
    return 1.0 / ((double)z->world * zcz_micro_made(z) * z->steps->scaler.scale);
}

/* The scale behind this step, in its note; every rank has seen the same gradients. */
static int step_scale(struct zc_zero *z, bool overflow)
{
    struct zcz_scaler next = z->steps->scaler;
    int rc = zcz_scale_update(&next, &z->options.loss_scale, z->iterations, overflow);

    if (rc < 0)
        return zcz_fail(z, rc,
                        "step %llu: a gradient is not finite, and the loss scale is %g, the least "
                        "there may be",
                        (unsigned long long)z->iterations + 1, next.scale);
    if (z->options.loss_scale.dynamic)
        rc = zcz_note_scale(z, &next);
    if (rc == 0)
        z->steps->scaler = next;
    return rc;
}

double zc_zero_loss_scale(const struct zc_zero *z)
{
    return z->steps->scaler.scale;
}

static void step_groups(const struct zc_zero *z, double lr, struct zc_group *groups)
{
    for (uint32_t g = 0; g < z->options.groups; g++)
        groups[g] = zcz_group(&z->options, lr, g);
}

static enum zc_commit step_commit(const struct zc_zero *z, uint64_t step)
{
    const struct zc_zero_options *o = &z->options;

    if (!o->durable || o->commit_every == 0 || step % o->commit_every != 0)
        return ZC_COMMIT_NO;
    return z->nodes > 1 ? ZC_COMMIT_PREPARE : ZC_COMMIT_STEP;
}

int zc_zero_step(struct zc_zero *z, double lr, struct zc_zero_stepped *ret)
{
    const struct zc_zero_options *o = &z->options;
    struct zc_group groups[ZCZ_GROUPS_MAX];
    struct zc_zero_stepped out = { .clip_scale = 1, .loss_scale = z->steps->scaler.scale };
    struct zc_step step = { .groups = groups, .ngroups = o->groups, .timeout_ms = z->timeout_ms };
    double average = step_average(z);
    uint64_t nonfinite = 0;
    int rc = zcz_enter(z, true);

    if (rc == 0)
        rc = step_check(z, lr);
    if (rc == 0)
        rc = step_settle(z);
    if (rc == 0)
        rc = zcz_commit_settle(z);
    if (rc == 0)
        rc = step_norm(z, lr, &out.grad_norm, &nonfinite);
    if (rc < 0)
        return rc;
    out.grad_norm *= average;
    if (o->clip > 0)
        out.clip_scale = fmin(1.0, o->clip / (out.grad_norm + 1e-6));
    step_groups(z, lr, groups);
    step.step = z->iterations + 1;
    step.commit = step_commit(z, step.step);
    step.scale = average * out.clip_scale;
    if (nonfinite > 0) {
        out.skipped = true;
        out.grad_norm = NAN;
        out.clip_scale = 1;
        step.groups = NULL;
    }
    rc = zcz_commit_resolved(z);
    if (rc == 0)
        rc = step_scale(z, out.skipped);
    if (rc == 0)
        rc = step_begin(z, &step);
    if (rc < 0)
        return rc;
    out.iterations = z->iterations;
    out.applied = z->applied;
    *ret = out;
    return 0;
}

int zc_zero_announce(struct zc_zero *z, double lr)
{
    int rc = zcz_enter(z, true);

    if (rc < 0)
        return rc;
    if (!isfinite(lr))
        return zcz_refuse(z, -EINVAL, "a step with learning rate %g", lr);
    if (z->steps->announced && memcmp(&lr, &z->steps->announced_lr, sizeof(lr)) != 0)
        return zcz_refuse(z, -EINVAL, "learning rate %g is announced, and %g was", lr,
                          z->steps->announced_lr);
    if (z->options.micro_steps == 0)
        return zcz_refuse(z, -EINVAL, "a step of as many micro-steps as come is announced");
    if (!z->steps->announced && z->store->early && z->store->ops->step_begin)
        z->steps->announcing = true;
    z->steps->announced = true;
    z->steps->announced_lr = lr;
    return zcz_turn(z, 0);
}

/* The store hears of the next step when the last one is over: then gradients go there, too. */
static int announce_turn(struct zc_zero *z)
{
    struct zc_group groups[ZCZ_GROUPS_MAX];
    struct zc_step step = { .step = z->iterations + 1,
                            .scale = step_average(z),
                            .groups = groups,
                            .ngroups = z->options.groups };
    int rc;

    if (!z->steps->announcing || z->stepping)
        return 0;
    step_groups(z, z->steps->announced_lr, groups);
    rc = z->store->ops->step_begin(z->store, &z->steps->announce, &step, zcz_pushes(z));
    if (rc < 0)
        return rc == -EAGAIN ? 0 : zcz_fail(z, rc, "%s", z->error.text);
    z->steps->announcing = false;
    return 0;
}

int zcz_step_turn(struct zc_zero *z)
{
    if (!z->stepping || z->steps->step.pending > 0)
        return announce_turn(z);
    z->stepping = false;
    zcz_moved(z);
    if (z->steps->step.rc < 0)
        return zcz_fail(z, z->steps->step.rc, "step %llu: %s", (unsigned long long)z->iterations,
                        zcz_store_text(z->store));
    if (z->steps->stepped.iterations != z->iterations || z->steps->stepped.applied != z->applied)
        return zcz_fail(z, -EPROTO, "step %llu came back as step %llu, %llu applied",
                        (unsigned long long)z->iterations,
                        (unsigned long long)z->steps->stepped.iterations,
                        (unsigned long long)z->steps->stepped.applied);
    return 0;
}
