/*
 * op/early_ask.c - ranks announce a step, so that it begins early: op/early.c has the model.
 *
 * Every rank announces the same values. The step that the ranks ask for later (op/step_ask.c) must
 * have them, too.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/op/early.h"
#include "daemon/op/requests.h"
#include "daemon/op/step.h"
#include "daemon/op/tensors.h"
#include "proto/shard.pb-c.h"

/* Whether a step has the factors that its limits gave, as far as they are decided. */
static bool early_factors_same(const struct zsd_job *job, bool factors)
{
    const struct zsd_early *e = job->early;

    if (factors != e->limited)
        return false;
    for (uint32_t i = 0; factors && i < job->tensors->n; i++)
        if (!isnan(e->factors[i]) &&
            memcmp(&e->factors[i], &job->tensors->factors.v[i], sizeof(double)) != 0)
            return false;
    return true;
}

static bool early_same(const struct zsd_early *e, double scale, const struct zk_params *params,
                       const struct zsd_classes *classes)
{
    return memcmp(&e->scale, &scale, sizeof(scale)) == 0 &&
           memcmp(e->params, params, sizeof(e->params)) == 0 &&
           zsd_classes_same(e->classes, classes);
}

int zsd_early_check(const struct zsd_job *job, const struct zsd_step_op *want, uint32_t rank,
                    struct zb_err *err)
{
    if (job->early_said == 0 || want->skip ||
        (early_same(job->early, want->scale, want->params, want->classes) &&
         early_factors_same(job, want->factors)))
        return 0;
    return zb_fail(
        err, -EINVAL,
        "rank %u asks for step %llu of job '%s' with different values from those it was begun with",
        rank, (unsigned long long)want->step, job->name);
}

/* A job that does not hold all gradients. */
static int begin_check_ring(const struct zsd_job *job, const Zp__StepBegin *q, struct zb_err *err)
{
    uint32_t begun = 0;

    if (!job->grad_ring)
        return 0;
    if (q->micros > 1 || (q->limits && !job->ring_limits))
        return zb_fail(err, -EINVAL,
                       "job '%s' does not hold the gradients of all pages: a step of it has one "
                       "micro-step%s",
                       job->name, job->ring_limits ? "" : ", and no limits of norms");
    for (uint32_t r = 0; r < job->world && job->ring_limits && job->early_said == 0; r++)
        begun += job->ranks[r].begun;
    if (begun > 0)
        return zb_fail(err, -EINVAL,
                       "step %llu of job '%s' has gradients already: it is begun before they are "
                       "pushed, or not early",
                       (unsigned long long)q->step, job->name);
    return 0;
}

static int begin_check(const struct zsd_member *m, const Zp__StepBegin *q, struct zb_err *err)
{
    const struct zsd_job *job = m->job;
    uint64_t step = job->iterations + 1;

    if (job->core->draining)
        return zb_fail(err, -ECANCELED, "the daemon is ending: it takes no new steps");
    if (!job->early_room)
        return zb_fail(err, -EINVAL, "job '%s' was opened without room for early steps", job->name);
    if (job->state != ZSD_READY || zsd_job_writing(job))
        return zb_fail(err, -EBUSY, "job '%s' is stepping, or initial values are being written",
                       job->name);
    if (job->left > 0)
        return zb_fail(err, -EOWNERDEAD, "%u ranks have left job '%s'", job->left, job->name);
    if (q->step != step)
        return zb_fail(err, q->step < step ? -EEXIST : -EINVAL,
                       "step %llu of job '%s' begins: step %llu comes next",
                       (unsigned long long)q->step, job->name, (unsigned long long)step);
    if (!zsd_job_live(job))
        return zb_fail(err, -EAGAIN, "job '%s' has no initial values yet", job->name);
    if (q->sums && !q->limits)
        return zb_fail(err, -EINVAL,
                       "a step with sums of tensors, and without limits of their norms");
    if (q->micros < 1)
        return zb_fail(err, -EINVAL, "a step of 0 micro-steps: at least 1");
    if (begin_check_ring(job, q, err) < 0)
        return -EINVAL;
    for (uint32_t i = 0; i < job->nshards && job->micro_most >= q->micros; i++)
        if (!zsd_grad_absent(job->shards[i]) && job->shards[i]->micro >= q->micros)
            return zb_fail(err, -EINVAL,
                           "a step of %u micro-steps, and unit '%s' has one with number %u",
                           q->micros, job->shards[i]->unit->name, job->shards[i]->micro);
    return 0;
}

/* Memory for a step with limits of tensors; sums: of units on several nodes. 0 or -ENOMEM. */
static int begin_limits(struct zsd_job *job, bool sums)
{
    struct zsd_early *e = job->early;
    uint32_t n = job->tensors->n;

    e->factors = calloc(zb_max_u64(n, 1), sizeof(*e->factors));
    e->decided = calloc(zb_max_u64(job->nunits, 1), sizeof(*e->decided));
    if (sums) {
        e->sums = calloc(zb_max_u64(n, 1), sizeof(*e->sums));
        e->summed = calloc(zb_max_u64(job->nunits, 1), sizeof(*e->summed));
    }
    if (!e->factors || !e->decided || (sums && (!e->sums || !e->summed)) ||
        zsd_rooms_begin(job) < 0) {
        zsd_early_limits_free(e);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++)
        e->factors[i] = (double)NAN;
    return 0;
}

ZSD_REQUEST(zsd_step_begin, StepBegin)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zk_params params[ZP_GROUPS_MAX] = { 0 };
    struct zsd_classes *classes = NULL;
    struct zb_err err = { 0 };
    struct zsd_early *e;
    struct zsd_job *job;

    if (!m)
        return;
    job = m->job;
    e = job->early;
    if (begin_check(m, q, &err) < 0 ||
        zsd_step_values(m, q->scale, q->groups, q->n_groups, q->by_classes ? q->step : 0, params,
                        &classes, &err) < 0 ||
        (q->limits && zsd_values_check(m, true, q->step, &err) < 0)) {
        zsd_reply_err(req, &err);
        return;
    }
    if (job->early_said > 0 &&
        (!early_same(e, q->scale, params, classes) || e->micros != q->micros ||
         e->limited != q->limits || (e->sums != NULL) != q->sums)) {
        zsd_refuse(req, -EINVAL,
                   "rank %u begins step %llu of job '%s' with different values from its peers",
                   m->rank, (unsigned long long)q->step, job->name);
        return;
    }
    if (job->early_said == 0 && q->limits && begin_limits(job, q->sums) < 0) {
        zsd_refuse(req, -ENOMEM, "limits of tensors: %m");
        return;
    }
    e->micros = q->micros;
    e->limited = q->limits;
    e->scale = q->scale;
    memcpy(e->params, params, sizeof(params));
    if (job->early_said == 0)
        e->classes = zsd_classes_get(classes);
    job->early_said += !m->begun;
    m->begun = true;
    zsd_reply(req, NULL, -1);
    if (job->early_said == job->world)
        zsd_early_said(job);
}

/* ---- sums of units that other nodes have shards of, too */

static int sums_check(const struct zsd_member *m, const Zp__UnitSums *q, struct zb_err *err)
{
    const struct zsd_job *job = m->job;
    const struct zsd_early *e = job->early;
    uint64_t n = q->sums_of_squares.len / ZK_XSUM_BYTES;

    if (q->step != job->iterations + 1)
        return zb_fail(err, q->step <= job->iterations ? -EEXIST : -EINVAL,
                       "sums of step %llu of job '%s', and step %llu comes next",
                       (unsigned long long)q->step, job->name,
                       (unsigned long long)job->iterations + 1);
    if (!m->begun || !e->sums)
        return zb_fail(err, -EINVAL, "rank %u has not begun step %llu of job '%s' with sums",
                       m->rank, (unsigned long long)q->step, job->name);
    if (q->unit >= job->nunits)
        return zb_fail(err, -EINVAL, "sums of unit %u, and job '%s' has %u", q->unit, job->name,
                       job->nunits);
    if (n < 1 || n > ZP_NORMS_PART || q->sums_of_squares.len % ZK_XSUM_BYTES != 0 ||
        q->first != e->summed[q->unit] || n > zsd_unit_tensors(job, job->units[q->unit]) - q->first)
        return zb_fail(err, -EINVAL,
                       "%zu bytes of sums from tensor %u of unit '%s' on, which has %u trainable "
                       "tensors, %u of them with sums",
                       q->sums_of_squares.len, q->first, job->units[q->unit]->name,
                       zsd_unit_tensors(job, job->units[q->unit]), e->summed[q->unit]);
    return 0;
}

ZSD_REQUEST(zsd_unit_sums, UnitSums)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zb_err err = { 0 };
    const struct zsd_unit *unit;
    struct zsd_early *e;
    struct zsd_shard *s;
    uint32_t n;

    if (!m)
        return;
    if (sums_check(m, q, &err) < 0) {
        zsd_reply_err(req, &err);
        return;
    }
    e = m->job->early;
    unit = m->job->units[q->unit];
    n = (uint32_t)(q->sums_of_squares.len / ZK_XSUM_BYTES);
    for (uint32_t i = 0; i < n; i++)
        zk_xsum_load(&e->sums[m->job->tensors->first[q->unit] + q->first + i],
                     q->sums_of_squares.data + (size_t)i * ZK_XSUM_BYTES);
    e->summed[q->unit] += n;
    zsd_reply(req, NULL, -1);
    zb_sorted_each (s, pos, &unit->shards) {
        zsd_turn_count(m->job->core, 1);
        zsd_early_offer(s);
    }
}
