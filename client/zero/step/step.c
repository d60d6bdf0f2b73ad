/*
 * step.c - the end of an iteration: norms, the decision, and the step in the store.
 *
 *     every push has arrived ---> norms of this rank ---> of all ranks ---> step or skip
 *
 * NUMBERS. Each store returns the exact sum of the squares of its gradients. Merged exactly, it is
 * the same wide integer however the units were cut, and it is rounded once. So every rank decides
 * the same without a vote: whether to skip, because a value is not finite, and how much to clip.
 *
 * LOSS SCALE. Gradients are multiplied by the scale, and the step divides by it; norm and clipping
 * are those of unscaled gradients. The next scale (loss_scale.h) follows from the decision above,
 * so it is the same on all ranks, and is stored with the step in its note (note.c).
 *
 * DURABLE. Whether a step commits follows from its number, so it is the same on all ranks. The
 * result is resolved at the next step (commit.c).
 *
 * OVERLAP. Steps that begin earlier: announce.c. With ZC_ZERO_SERVE zc_zero_step() returns when the step
 * has begun. Later gathers ask for the new version and wait in the store, unit by unit; the next
 * gradients wait here (reduce.c). So the next forward pass begins while the end of the model is still
 * being updated. A failed step fails the engine, at the next call.
 *
 * RESTARTS. The ranks tell each other whether a daemon was lost in this pass, or is about to
 * restart. If one was lost, its gradients are, too: all ranks attach again instead of stepping. If
 * one restarts, all make the step, and then attach again (z->again()).
 */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/zero/config/options.h"
#include "client/zero/pass/pass.h"
#include "client/zero/step/announce.h"
#include "client/zero/step/classes.h"
#include "client/zero/step/clip.h"
#include "client/zero/step/counts.h"
#include "client/zero/step/norms.h"
#include "client/zero/step/step.h"

int zcz_steps_start(struct zc_zero *z)
{
    z->iterations = z->store->iterations;
    z->applied = z->store->applied;
    z->steps->scaler = zcz_scale_new(&z->options.loss_scale, z->iterations);
    return zcz_counts_start(z) < 0 ? -ENOMEM : zcz_clip_start(z);
}

void zcz_steps_again(struct zc_zero *z)
{
    struct zcz_steps *s = z->steps;

    s->announcing = false;
    zcz_announce_forget(z);
    s->announce = s->step = s->resolve = s->notes = (struct zcz_op){ 0 };
    s->unsettled = ZC_COMMIT_NO;
    s->dropping = false;
    s->norms_at = 0;
    s->lagging = s->counts_set = false;
    z->stepping = z->committing = false;
}

void zcz_steps_close(struct zc_zero *z)
{
    free(z->steps->note);
    zcz_counts_close(z);
    zcz_clip_close(z);
    zcz_classes_close(z);
    zcz_norms_close(z);
    zcz_announce_close(z);
}

static int step_check(struct zc_zero *z, const struct zc_zero_step_how *how)
{
    int rc = zcz_how_check(z, how);

    if (rc == 0)
        rc = zcz_announced_check(z, how);
    if (rc < 0)
        return rc;
    if (zcz_trained(z) == 0)
        return zcz_refuse(z, -EINVAL, "a step, and every unit is frozen");
    rc = zcz_micro_check(z);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < z->nunits; i++) {
        const struct zcz_unit *u = &z->units[i];

        if (u->pass->holds > 0)
            return zcz_refuse(z, -EBUSY, "a step while unit %u '%s' is gathered", i, u->def.name);
        if (zcz_unit_trained(u) && z->options.micro_steps > 0 &&
            u->pass->micro < zcz_micro_steps(z))
            return zcz_refuse(z, -EBUSY,
                              "a step, and unit %u '%s' was reduced in %u of %u micro-steps", i,
                              u->def.name, u->pass->micro, zcz_micro_steps(z));
    }
    return 0;
}

/* Waits until gradients have arrived. Nothing was gathered ahead of the step (schedule.c). Units
 * that are being dropped must be gone, because a step waits for pins. */
static int step_settle(struct zc_zero *z)
{
    struct zcz_wait w = { .what = "gradients to reach the store", .again = true };
    int rc = zcz_micro_settle(z);

    zcz_pass_drop(z);
    if (rc == 0)
        rc = zcz_turn(z, 0);
    while (rc == 0 && (!zcz_pass_idle(z) || !zcz_steps_idle(z) ||
                       (z->steps->announcing && z->steps->announce.rc == 0)))
        rc = zcz_wait(z, &w);
    if (rc == 0 && z->steps->notes.rc < 0)
        rc = zcz_fail(z, z->steps->notes.rc, "a note: %s", zcz_store_text(z->store));
    if (rc == 0 && z->steps->announce.rc < 0)
        rc = zcz_fail(z, z->steps->announce.rc, "step %llu, announced: %s",
                      (unsigned long long)z->iterations + 1, zcz_store_text(z->store));
    return rc;
}

/* What ranks exchange before a step. It is followed by a bit for each tensor of all units: set if
 * it has a gradient on this rank. */
struct step_share {
    struct zc_norm norm;
    double lr;
    uint64_t hash;            /* of the trainer's arguments */
    uint64_t note_bytes;      /* length of the trainer's bytes, on the first rank of a node */
    uint64_t micros;          /* what the sum is divided by; 0: the trainer gives a divisor */
    uint64_t lost, restarts;  /* of this rank's store */
    struct zcz_scaler scaler; /* read by each rank from the note in its node's daemon */
};

/* The merged values, the same on all ranks. */
struct step_shared {
    double norm; /* of all gradients */
    uint64_t nonfinite, note_bytes;
    bool lost, restarts; /* some rank's store */
    unsigned char *used; /* the bits of all ranks; freed by zc_zero_step_by() */
};

static size_t used_bytes(const struct zc_zero *z)
{
    return zb_round_up(zb_div_up(z->steps->ntensors, 8), sizeof(uint64_t));
}

static void used_mine(const struct zc_zero *z, unsigned char *bits)
{
    uint32_t all = 0;

    for (uint32_t i = 0; i < z->nunits; i++)
        for (uint32_t t = 0; t < z->units[i].def.ntensors; t++, all++)
            if (zcz_reduced_has(z, i, t))
                bits[all / 8] |= (unsigned char)(1u << all % 8);
}

static int norms_of_store(struct zc_zero *z)
{
    struct zcz_wait w = { .what = "the norms of the gradients" };
    int rc;

    while ((rc = z->store->ops->norms(z->store, &z->op, z->iterations + 1, &z->steps->norm)) ==
               -EAGAIN &&
           (rc = zcz_wait(z, &w)) == 0)
        ;
    if (rc < 0)
        return zcz_fail(z, rc, "%s", z->error.text);
    rc = zcz_wait_op(z, &z->op, w.what);
    return rc < 0 ? zcz_fail(z, rc, "norms of the gradients: %s", zcz_store_text(z->store)) : 0;
}

/* If ranks used different values, their slices of the model would no longer belong together. */
static int share_compare(struct zc_zero *z, const struct step_share *first,
                         const struct step_share *of, uint32_t rank)
{
    if (memcmp(&of->lr, &first->lr, sizeof(of->lr)) != 0)
        return zcz_fail(z, -EINVAL, "a step with learning rate %.17g on rank %u, %.17g on rank 0",
                        of->lr, rank, first->lr);
    if (of->hash != first->hash)
        return zcz_fail(z, -EINVAL, "a step with other values on rank %u than on rank 0", rank);
    if (of->micros != first->micros)
        return zcz_fail(z, -EINVAL,
                        "a step of %llu micro-steps on rank %u, %llu on rank 0: set `divide`, by "
                        "which their sum is divided",
                        (unsigned long long)of->micros, rank, (unsigned long long)first->micros);
    if (of->scaler.scale != first->scaler.scale ||
        of->scaler.last_overflow != first->scaler.last_overflow ||
        of->scaler.hysteresis != first->scaler.hysteresis)
        return zcz_fail(
            z, -EINVAL,
            "a step with loss scale %g on rank %u, %g on rank 0, or with another history of "
            "it: their nodes resumed from different notes",
            of->scaler.scale, rank, first->scaler.scale);
    return 0;
}

/* Merges the values of all ranks. */
static int share_merge(struct zc_zero *z, const unsigned char *all, size_t bytes,
                       struct step_shared *ret)
{
    struct zk_xsum sum = { 0 };
    struct step_share first, of;
    int rc = 0;

    memcpy(&first, all, sizeof(first));
    for (uint32_t r = 0; r < z->world && rc == 0; r++) {
        const unsigned char *bits = all + r * bytes + sizeof(of);
        struct zk_xsum other;

        memcpy(&of, all + r * bytes, sizeof(of));
        if (r / z->shards == z->replica) { /* other groups have the same gradient */
            zk_xsum_load(&other, of.norm.sum_of_squares);
            zk_xsum_merge(&sum, &other);
        }
        ret->nonfinite += of.norm.nonfinite;
        ret->note_bytes = zb_max_u64(ret->note_bytes, of.note_bytes);
        ret->lost = ret->lost || of.lost;
        ret->restarts = ret->restarts || of.restarts;
        for (size_t i = 0; i < used_bytes(z); i++)
            ret->used[i] |= bits[i];
        rc = share_compare(z, &first, &of, r);
    }
    ret->norm = sqrt(zk_xsum_value(&sum));
    return rc;
}

/* Computes the norm over all ranks, and the other values that a step needs from them. */
static int step_share(struct zc_zero *z, const struct zc_zero_step_how *how,
                      struct step_shared *ret)
{
    struct step_share mine = { .lr = how->groups[0].lr,
                               .hash = zcz_how_hash(z, how) + (z->said_pushes > 0),
                               .note_bytes = zcz_note_bytes(z),
                               .micros = how->divide > 0 ? 0 : zcz_micro_made(z),
                               .scaler = z->steps->scaler };
    size_t bytes = sizeof(mine) + used_bytes(z);
    unsigned char *share = calloc(1, bytes);
    struct zcz_buf *buf;
    int rc;

    ret->used = calloc(1, used_bytes(z) + 1);
    rc = share && ret->used
             ? norms_of_store(z)
             : zcz_fail(z, -ENOMEM, "no memory for the bits of %u tensors", z->steps->ntensors);
    if (rc == 0) {
        mine.norm = z->steps->norm;
        mine.lost = z->store->lost;
        mine.restarts = z->store->restarts;
        memcpy(share, &mine, sizeof(mine));
        used_mine(z, share + sizeof(mine));
        rc = zcz_share(z, share, bytes, ZCZ_CALL_STEP, 0, &buf);
    }
    free(share);
    if (rc < 0)
        return rc;
    rc = share_merge(z, buf->data, bytes, ret);
    zcz_buf_put(&z->small, buf);
    return rc;
}

/* Computes the norm of what is stepped, if that is not simply all gradients. */
static int step_norm_by_tensor(struct zc_zero *z, const struct zc_zero_step_how *how, double *ret)
{
    const struct zc_zero_norm *norms;
    double sum = 0;
    int rc = zcz_norms(z, &norms);

    for (uint32_t i = 0; i < z->steps->ntrained && rc == 0; i++) {
        double factor = how->factors ? (double)how->factors[i] : 1;

        if (!how->group_of || how->group_of[i] != ZC_GROUP_NONE)
            sum += factor * factor * norms[i].sum_of_squares;
    }
    *ret = sqrt(sum);
    return rc;
}

/* Sends the classes to the store before the step. */
static int step_classes(struct zc_zero *z, const struct zc_step *step,
                        const struct zc_classes *classes)
{
    struct zcz_wait w = { .what = "the classes of the step to be sent" };
    int rc;

    if (!classes || !z->store->ops->classes)
        return 0;
    while ((rc = z->store->ops->classes(z->store, &z->op, step->step, classes)) == -EAGAIN &&
           (rc = zcz_wait(z, &w)) == 0)
        ;
    if (rc < 0)
        return zcz_fail(z, rc, "%s", z->error.text);
    rc = zcz_wait_op(z, &z->op, w.what);
    return rc < 0 ? zcz_fail(z, rc, "classes of the step: %s", zcz_store_text(z->store)) : 0;
}

/* Passes the step to the store. Neither groups nor classes: it is skipped. */
static int step_begin(struct zc_zero *z, const struct zc_step *step,
                      const struct zc_classes *classes)
{
    struct zcz_wait w = { .what = "the step to begin" };
    int rc = step_classes(z, step, classes);

    if (rc == 0 && step->factors)
        rc = zcz_clip_send(z, step->step);
    if (rc < 0)
        return rc;
    while ((rc = z->store->ops->step(z->store, &z->steps->step, step, classes,
                                     &z->steps->stepped)) == -EAGAIN &&
           (rc = zcz_wait(z, &w)) == 0)
        ;
    if (rc < 0)
        return zcz_fail(z, rc, "%s", z->error.text);
    z->stepping = true;
    zcz_commit_begun(z, step->commit);
    z->iterations++;
    z->applied += step->groups || classes;
    zcz_announce_forget(z);
    zcz_clip_next_step(z);
    zcz_pass_rewind(z);
    rc = zcz_turn(z, 0);
    w = (struct zcz_wait){ .what = "the step" };
    while (rc == 0 && !(z->options.overlap & ZC_ZERO_SERVE) && z->stepping)
        rc = zcz_wait(z, &w);
    return rc;
}

/* Stores the loss scale after this step, and the step counts that lag then, in its note. All ranks
 * have seen the same gradients. */
static int step_note(struct zc_zero *z, bool overflow, const struct zc_classes *classes)
{
    struct zcz_scaler next = z->steps->scaler;
    int rc = zcz_scale_update(&next, &z->options.loss_scale, z->iterations, overflow);
    bool counts;

    if (rc < 0)
        return zcz_fail(
            z, rc, "step %llu: a gradient is not finite, and the loss scale is %g, its minimum",
            (unsigned long long)z->iterations + 1, next.scale);
    counts = zcz_counts_step(z, classes ? classes->class_of : NULL);
    if (z->options.loss_scale.dynamic || counts || z->steps->counts_set || zcz_clip_on(z))
        rc = zcz_note_step(z, z->options.loss_scale.dynamic ? &next : NULL);
    if (rc == 0) {
        z->steps->scaler = next;
        z->steps->counts_set = false;
    }
    return rc;
}

double zc_zero_loss_scale(const struct zc_zero *z)
{
    return z->steps->scaler.scale;
}

static enum zc_commit step_commit(const struct zc_zero *z, uint64_t step)
{
    const struct zc_zero_options *o = &z->options;

    if (!o->durable || o->commit_every == 0 || step % o->commit_every != 0)
        return ZC_COMMIT_NO;
    return z->nodes > 1 ? ZC_COMMIT_PREPARE : ZC_COMMIT_STEP;
}

/* Decides how the step is made: by classes, or if NULL by groups. A refusal occurs on all ranks. */
static int step_plan(struct zc_zero *z, const struct zc_zero_step_how *how,
                     const struct step_shared *shared, const struct zc_classes **ret,
                     uint32_t *ret_alone)
{
    bool all = z->options.step_unused || zcz_announced(z);
    size_t counts;
    int rc = zcz_announced_used(z, how, shared->used);

    if (rc == 0)
        rc = zcz_classes_make(z, how, all ? NULL : shared->used, ret, ret_alone);
    if (rc < 0)
        return rc;
    counts = zcz_counts_bytes(z, *ret ? (*ret)->class_of : NULL);
    if (zcz_note_fits(z, shared->note_bytes, counts))
        return 0;
    return zcz_refuse(z, -ENOSPC,
                      "step %llu: %zu bytes of step counts of tensors that differ from the job's, "
                      "%zu of averages of their norms, and the job's note of %llu bytes, do not "
                      "fit into %d",
                      (unsigned long long)z->iterations + 1, counts, zcz_clip_bytes(z),
                      (unsigned long long)shared->note_bytes, ZC_ZERO_NOTE_MAX - 8);
}

/* The factor for gradients must be finite as a float; otherwise a gradient of 0 becomes NaN. */
static int step_scale_check(struct zc_zero *z, const struct zc_zero_step_how *how, double scale)
{
    double most = 1;

    for (uint32_t i = 0; i < z->steps->ntrained && how->factors; i++)
        most = fmax(most, fabs((double)how->factors[i]));
    if (scale * most <= (double)FLT_MAX)
        return 0;
    return zcz_refuse(z, -EINVAL,
                      "step %llu: gradients are multiplied by %g (divisor %g, loss scale %g, "
                      "factors up to %g), and no float is as large",
                      (unsigned long long)z->iterations + 1, scale * most, how->divide,
                      z->steps->scaler.scale, most);
}

/* Computes norm and decision, and begins the step. All ranks have the same values. */
static int step_make(struct zc_zero *z, const struct zc_zero_step_how *how,
                     const struct step_shared *shared, struct zc_zero_stepped *out)
{
    struct zc_step step = { .step = z->iterations + 1,
                            .commit = step_commit(z, z->iterations + 1),
                            .timeout_ms = z->timeout_ms };
    double average = zcz_step_average(z, how->divide), clip = zcz_clip_global(z, how->clip);
    const struct zc_classes *classes = NULL;
    bool by_tensor = zcz_clip_on(z), warm = zcz_clip_warm(z);
    int rc = 0;

    out->grad_norm = shared->norm;
    out->skipped = shared->nonfinite > 0;
    by_tensor = by_tensor && !out->skipped;
    if (by_tensor)
        rc = zcz_clip_sums(z);
    if (rc == 0 && by_tensor && zcz_how_by_tensor(z, how))
        out->grad_norm = zcz_clip_norm(z, how);
    else if (rc == 0 && !out->skipped && zcz_how_by_tensor(z, how) &&
             !(zcz_announced(z) && clip == 0))
        rc = step_norm_by_tensor(z, how, &out->grad_norm);
    if (rc == 0 && !out->skipped)
        rc = step_plan(z, how, shared, &classes, &out->left_alone);
    if (rc < 0)
        return rc;
    out->grad_norm = out->skipped ? (double)NAN : out->grad_norm * average;
    if (clip > 0 && !out->skipped)
        out->clip_scale = fmin(1.0, clip / (out->grad_norm + 1e-6));
    step.scale = average * out->clip_scale;
    rc = step_scale_check(z, how, step.scale);
    if (rc < 0)
        return rc;
    if (!out->skipped && !classes) {
        step.groups = how->groups;
        step.ngroups = z->options.groups;
    }
    rc = zcz_commit_resolved(z);
    if (rc == 0 && by_tensor) {
        double ratio = zcz_clip_apply(z, how, classes, step.scale);

        out->clip_scale = warm ? out->clip_scale : ratio;
        step.factors = !warm;
    }
    if (rc == 0)
        rc = step_note(z, out->skipped, classes);
    return rc < 0 ? rc : step_begin(z, &step, classes);
}

/* Some rank's daemon is about to restart: waits until the step is whole, and continues with the
 * next daemon. */
static int step_then_restart(struct zc_zero *z)
{
    int rc = zcz_stepping_wait(z, "the step before a restart of the daemon");

    if (rc == 0)
        rc = zcz_commit_settle(z);
    return rc < 0 && rc != ZC_ROLLED_BACK ? rc : z->again(z);
}

int zc_zero_step_by(struct zc_zero *z, const struct zc_zero_step_how *how,
                    struct zc_zero_stepped *ret)
{
    ZCZ_GUARD(z);
    struct zc_zero_stepped out = { .clip_scale = 1, .loss_scale = z->steps->scaler.scale };
    struct step_shared shared = { 0 };
    int rc = zcz_enter(z, true);

    if (rc == 0)
        rc = step_check(z, how);
    if (rc == 0)
        rc = step_settle(z);
    if (rc == 0)
        rc = zcz_commit_settle(z);
    if (rc == 0 || rc == ZC_ROLLED_BACK)
        rc = step_share(z, how, &shared);
    if (rc == 0 && shared.lost)
        rc = z->again(z);
    else if (rc == 0)
        rc = step_make(z, how, &shared, &out);
    if (rc == 0 && shared.restarts)
        rc = step_then_restart(z);
    free(shared.used);
    if (rc < 0 && rc != ZC_ROLLED_BACK)
        return rc;
    out.iterations = z->iterations;
    out.applied = z->applied;
    *ret = out;
    return rc;
}

int zc_zero_step(struct zc_zero *z, double lr, struct zc_zero_stepped *ret)
{
    ZCZ_GUARD(z);
    struct zc_group groups[ZCZ_GROUPS_MAX];
    struct zc_zero_step_how how;
    int rc = zcz_enter(z, true);

    if (rc < 0)
        return rc;
    how = zcz_step_how(z, lr, groups);
    return zc_zero_step_by(z, &how, ret);
}

int zcz_step_turn(struct zc_zero *z)
{
    if (!z->stepping || z->steps->step.pending > 0)
        return zcz_announce_turn(z);
    z->stepping = false;
    zcz_moved(z);
    if (z->store->lost) /* whether the step was made shows when the job is attached again */
        return 0;
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
