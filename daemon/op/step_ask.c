/*
 * op/step_ask.c - ranks ask for a step, or for the skip of one.
 *
 * MODEL. This is ASKED of op/step.c. Every rank asks with the same values. A request that cannot be
 * granted is refused at once, and the others still wait. When the last rank has asked, the job
 * drains (zsd_step_drain()), and op/step.c answers all of them. Each request has its own deadline:
 *
 *     ASKED   only this request fails; the step waits for the rank to ask again
 *     DRAIN   the requests of all ranks fail; the error message says what the step waits for
 *     later   only this request fails; the step finishes by itself
 */
#include <errno.h>
#include <string.h>

#include "daemon/op/classes.h"
#include "daemon/op/early.h"
#include "daemon/op/requests.h"
#include "daemon/op/step.h"
#include "daemon/op/tensors.h"
#include "daemon/run/turn.h"
#include "proto/shard.pb-c.h"

#define STEP_LOOKS 1024u /* shards that a request checks at most */

/* ---- deadlines */

/* The reason why the step has not begun, for the error message of a time-out. */
static void step_holder(const struct zsd_job *job, struct zb_err *err)
{
    if (job->saved && job->saved->prepared) {
        (void)zb_fail(err, -ETIMEDOUT,
                      "step %llu of job '%s' waits: step %llu is prepared, and must be committed "
                      "or dropped first",
                      (unsigned long long)job->step->step, job->name,
                      (unsigned long long)job->saved->prepared->iterations);
        return;
    }
    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];

        if (s->pins > 0) {
            const struct zsd_pin *pin =
                zb_container_of(s->pin_list.next, struct zsd_pin, shard_node);

            (void)zb_fail(
                err, -ETIMEDOUT,
                "step %llu of job '%s' waits: unit '%s' is pinned by rank %u (process %d)",
                (unsigned long long)job->step->step, job->name, s->unit->name, pin->member->rank,
                pin->member->conn ? (int)pin->member->conn->pid : 0);
            return;
        }
    }
    (void)zb_fail(err, -ETIMEDOUT,
                  "step %llu of job '%s' waits: pushes, writes or fetches are in progress",
                  (unsigned long long)job->step->step, job->name);
}

static void step_expire(struct zsd_timed *timed)
{
    struct zsd_member *m = zb_container_of(timed, struct zsd_member, step_timed);
    struct zsd_job *job = m->job;
    struct zsd_req *req = m->step_req;
    struct zb_err err = { 0 };
    uint32_t asked = 0;

    m->step_req = NULL;
    if (job->state == ZSD_STEPPING && job->draining) { /* all may ask again */
        step_holder(job, &err);
        zsd_reply_err(req, &err);
        zsd_step_give_up(job, &err);
        return;
    }
    if (job->state == ZSD_STEPPING) {
        (void)zb_fail(&err, -ETIMEDOUT,
                      "step %llu of job '%s' is running and will finish by itself",
                      (unsigned long long)job->step->step, job->name);
    } else {
        zb_list_each(pos, &job->members)
            asked += zb_container_of(pos, struct zsd_member, node)->step_req != NULL;
        (void)zb_fail(&err, -ETIMEDOUT,
                      "step %llu of job '%s' waits for its ranks: %u of %u had asked",
                      (unsigned long long)job->step->step, job->name, asked + 1, job->world);
        if (asked == 0)
            job->step->asked = false;
    }
    zsd_reply_err(req, &err);
}

/* ---- checks */

static bool step_same(const struct zsd_step_op *a, const struct zsd_step_op *b)
{
    return a->skip == b->skip && a->commit == b->commit && a->step == b->step &&
           a->factors == b->factors && memcmp(&a->scale, &b->scale, sizeof(a->scale)) == 0 &&
           memcmp(a->params, b->params, sizeof(a->params)) == 0 &&
           zsd_classes_same(a->classes, b->classes);
}

/* Checks the shards of this rank. *ret_rest: there are more than it checks; CHECK follows. */
static int step_check_grads(const struct zsd_member *m, const struct zsd_classes *classes,
                            bool *ret_rest, struct zb_err *err)
{
    const struct zsd_job *job = m->job;
    const struct zsd_rank *rank = &job->ranks[m->rank];
    struct zsd_step_left last = { 0 };
    uint32_t looked = 0;

    if (zsd_job_live(job) && rank->whole == rank->trained)
        return 0;
    zb_list_each(pos, &rank->shards)
    {
        if (looked == STEP_LOOKS) {
            *ret_rest = true;
            break;
        }
        looked++;
        if (zsd_step_check_grad(zb_container_of(pos, struct zsd_shard, rank_node), classes, &last,
                                err) < 0)
            break;
    }
    zsd_turn_count(job->core, looked);
    return err->code;
}

static int step_check(const struct zsd_member *m, struct zsd_step_op *want, struct zb_err *err)
{
    const struct zsd_job *job = m->job;

    if (want->commit > ZSD_PREPARE)
        return zb_fail(err, -EINVAL, "commit %u: must be 0, 1 or 2", (unsigned)want->commit);
    if (job->core->draining)
        return zb_fail(err, -ECANCELED, "the daemon is ending: it takes no new steps");
    if (job->state != ZSD_READY || m->step_req)
        return zb_fail(err, -EBUSY, "job '%s' is not ready for a step", job->name);
    if (job->left > 0)
        return zb_fail(err, -EOWNERDEAD, "%u ranks have left job '%s'", job->left, job->name);
    if (want->step != job->iterations + 1)
        return zb_fail(err, want->step <= job->iterations ? -EEXIST : -EINVAL,
                       "step %llu of job '%s': step %llu comes next",
                       (unsigned long long)want->step, job->name,
                       (unsigned long long)job->iterations + 1);
    if (!want->skip && step_check_grads(m, want->classes, &want->check, err) < 0)
        return err->code;
    if (zsd_saved_room(job->saved, err) < 0)
        return err->code;
    if (job->step->asked && !step_same(job->step, want))
        return zb_fail(
            err, -EINVAL,
            "rank %u asks for step %llu of job '%s' with different values from its peers", m->rank,
            (unsigned long long)want->step, job->name);
    if (zsd_early_check(job, want, m->rank, err) < 0)
        return err->code;
    if (want->commit != ZSD_COMMIT_NONE && !job->durable)
        return zb_fail(err, -EINVAL, "job '%s' is not durable: its steps cannot be committed",
                       job->name);
    return 0;
}

/* ---- requests */

/* One rank asks; the last one starts the step. */
static void step_ask(struct zsd_req *req, struct zsd_member *m, struct zsd_step_op *want,
                     uint32_t timeout_ms)
{
    struct zsd_job *job = m->job;
    struct zb_err err = { 0 };
    uint32_t asked = 0;

    if (step_check(m, want, &err) < 0) {
        zsd_reply_err(req, &err);
        return;
    }
    if (!job->step->asked) {
        job->step->asked = true;
        job->step->check = false;
        job->step->checked = 0;
        job->step->skip = want->skip;
        job->step->commit = want->commit;
        job->step->step = want->step;
        job->step->scale = want->scale;
        job->step->factors = want->factors;
        memcpy(job->step->params, want->params, sizeof(want->params));
        zsd_classes_put(job->step->classes);
        job->step->classes = zsd_classes_get(want->classes);
    }
    job->step->check = job->step->check || want->check;
    if (want->skip)
        zsd_early_resume(job); /* pages that wait are not stepped */
    m->step_req = req;
    zsd_timed_arm(job->core, &m->step_timed, timeout_ms, step_expire);
    zb_list_each(pos, &job->members)
        asked += zb_container_of(pos, struct zsd_member, node)->step_req != NULL;
    if (asked < job->world)
        return;
    zsd_step_drain(job);
}

ZSD_REQUEST(zsd_step, Step)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zsd_step_op want = {
        .step = q->step, .commit = q->commit, .scale = q->scale, .factors = q->factors
    };
    struct zb_err err = { 0 };

    if (!m)
        return;
    if (zsd_step_values(m, q->scale, q->groups, q->n_groups, q->by_classes ? q->step : 0,
                        want.params, &want.classes, &err) < 0 ||
        (q->factors && zsd_values_check(m, false, q->step, &err) < 0)) {
        zsd_reply_err(req, &err);
        return;
    }
    step_ask(req, m, &want, q->timeout_ms);
}

ZSD_REQUEST(zsd_skip, Skip)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zsd_step_op want = { .step = q->step, .skip = true, .commit = q->commit };

    if (m)
        step_ask(req, m, &want, q->timeout_ms);
}
