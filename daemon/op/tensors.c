/*
 * op/tensors.c - norms of single tensors, and the values that a step has for each of them: factors
 * of gradients, and limits of norms.
 *
 * MODEL. In a job with tensor_norms, a push sums squares tensor by tensor (zk_page_ingest_by()). The
 * sums are exact, so those of all shards of a unit give the same number however it is cut. A rank
 * reads the sums of its shards (tensor-norms), and merges them with those of other ranks.
 *
 *     factors   with Step: the gradient of each tensor is multiplied by its factor, in addition to
 *               its class's or group's scale. The ranks have computed them from all norms
 *     limits    with StepBegin: known before any gradient is. As soon as all shards of a unit have
 *               their gradients, the norms of its tensors are known, and the factors follow
 *               (op/early.c). Step then has the same factors: the ranks compute them from the same
 *               sums by the same formula
 *
 * VALUES. Each rank sends all values, in parts. The first one to send a value sets it, and every
 * other rank must send the same bits. A rank that begins again discards only its own count, unless no
 * other rank has sent any.
 *
 * BOUNDS. A value for each trainable tensor, and a sum for each in each shard of its unit.
 */
#include "daemon/op/tensors.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "daemon/op/early.h"
#include "daemon/op/requests.h"
#include "daemon/run/turn.h"
#include "proto/shard.pb-c.h"

/* ---- the tensors of a job */

void zsd_tensors_free(struct zsd_tensors *t)
{
    if (!t)
        return;
    free(t->first);
    free(t->all);
    free(t->limits.v);
    free(t->factors.v);
    free(t);
}

static uint32_t tensors_count(const struct zsd_job *job)
{
    uint32_t n = 0;

    for (uint32_t u = 0; u < job->nunits; u++)
        for (uint32_t i = 0; i < job->units[u]->ntensors; i++)
            n += zsd_tensor_trainable(job->units[u], i);
    return n;
}

struct zsd_tensors *zsd_tensors_get(struct zsd_job *job)
{
    struct zsd_tensors *t = job->tensors ? job->tensors : calloc(1, sizeof(*t));
    uint64_t room = zb_max_u64(tensors_count(job), 1);

    if (!t || job->tensors)
        return t;
    t->first = calloc(job->nunits + (size_t)1, sizeof(*t->first));
    t->all = calloc(room, sizeof(*t->all));
    t->limits.v = calloc(room, sizeof(*t->limits.v));
    t->factors.v = calloc(room, sizeof(*t->factors.v));
    if (!t->first || !t->all || !t->limits.v || !t->factors.v) {
        zsd_tensors_free(t);
        return NULL;
    }
    for (uint32_t u = 0; u < job->nunits; u++) {
        const struct zsd_unit *unit = job->units[u];

        t->first[u] = t->n;
        for (uint32_t i = 0; i < unit->ntensors; i++)
            if (zsd_tensor_trainable(unit, i))
                t->all[t->n++] = (struct zk_segment){ .first = unit->tensors[i].first,
                                                      .count = unit->tensors[i].count };
    }
    t->first[job->nunits] = t->n;
    job->tensors = t;
    return t;
}

/* ---- sums of pushed gradients */

/* Number of trainable tensors of the shard's unit. */
static uint32_t sums_count(const struct zsd_shard *s)
{
    return zsd_unit_tensors(s->job, s->unit);
}

int zsd_sums_room(struct zsd_shard *s)
{
    if (!s->job->tensor_norms || s->tensor_sums)
        return 0;
    if (!zsd_tensors_get(s->job))
        return -ENOMEM;
    s->tensor_sums = calloc(zb_max_u64(sums_count(s), 1), sizeof(*s->tensor_sums));
    return s->tensor_sums ? 0 : -ENOMEM;
}

void zsd_sums_reset(struct zsd_shard *s)
{
    if (s->tensor_sums)
        memset(s->tensor_sums, 0, sums_count(s) * sizeof(*s->tensor_sums));
}

int zsd_sums_begin(const struct zsd_shard *s, uint64_t first, uint64_t count,
                   struct zk_by_tensor *ret)
{
    const struct zk_segment *from, *to;

    *ret = (struct zk_by_tensor){ 0 };
    if (!s->tensor_sums)
        return 0;
    from = s->job->tensors->all + s->job->tensors->first[s->unit->index];
    to = from + sums_count(s);
    while (from < to && from->first + from->count <= first)
        from++;
    while (to > from && to[-1].first >= first + count)
        to--;
    ret->tensors = from;
    ret->n = (size_t)(to - from);
    ret->sums = calloc(zb_max_u64(ret->n, 1), sizeof(*ret->sums));
    return ret->sums ? 0 : -ENOMEM;
}

void zsd_sums_end(struct zsd_shard *s, struct zk_by_tensor *by)
{
    for (size_t i = 0; s && by->sums && i < by->n; i++) {
        const struct zsd_tensors *t = s->job->tensors;
        uint32_t at = (uint32_t)(by->tensors - t->all) - t->first[s->unit->index];

        zk_xsum_merge(&s->tensor_sums[at + i], &by->sums[i]);
    }
    free(by->sums);
    *by = (struct zk_by_tensor){ 0 };
}

/* Adds the sums of the rank's shards of tensors [first, first + n). 0; -EBUSY: a gradient is not whole. */
static int sums_add(struct zsd_job *job, uint32_t rank, uint32_t first, uint32_t n,
                    struct zk_xsum *sums)
{
    const struct zsd_tensors *t = job->tensors;
    size_t at; /* the first of their units */

    zb_lower_bound(at, job->nunits, t->first[at + 1] <= first);
    for (uint32_t u = (uint32_t)at; u < job->nunits && t->first[u] < first + n; u++) {
        uint32_t begin = t->first[u], end = t->first[u + 1];
        struct zsd_shard *s;

        zb_sorted_each (s, pos, &job->units[u]->shards) {
            zsd_turn_count(job->core, 1);
            if (s->rank != rank || begin == end || zsd_grad_absent(s))
                continue;
            if (!zsd_grad_complete(s))
                return -EBUSY;
            for (uint32_t i = (uint32_t)zb_max_u64(begin, first); i < end && i < first + n; i++)
                if (s->tensor_sums)
                    zk_xsum_merge(&sums[i - first], &s->tensor_sums[i - begin]);
        }
    }
    return 0;
}

/* Whether gradients of the step were discarded, so that other nodes must not get their sums. If one is
 * not finite, the step is skipped on all nodes, whatever the sums are. */
static bool norms_lost(const struct zsd_job *job)
{
    const struct zsd_early *e = job->early;

    return e->sums && zsd_rooms_on(job) && e->err.code != 0 && e->err.code != -EDOM;
}

static int norms_check(const struct zsd_job *job, const Zp__TensorNorms *q, struct zb_err *err)
{
    if (!job->tensor_norms)
        return zb_fail(err, -EINVAL, "job '%s' was opened without norms of tensors", job->name);
    if (job->state != ZSD_READY)
        return zb_fail(err, -EBUSY, "job '%s' is not ready for norms of tensors", job->name);
    if (q->step != job->iterations + 1)
        return zb_fail(err, -EINVAL, "norms of step %llu, and step %llu comes next",
                       (unsigned long long)q->step, (unsigned long long)job->iterations + 1);
    if (q->count < 1 || q->count > ZP_NORMS_PART ||
        !zb_range_inside(q->first, q->count, job->tensors->n))
        return zb_fail(err, -EINVAL,
                       "norms of %u tensors from tensor %u on: 1 to %u in one request, and job "
                       "'%s' has %u trainable tensors",
                       q->count, q->first, ZP_NORMS_PART, job->name, job->tensors->n);
    if (norms_lost(job))
        return zb_fail(err, job->early->err.code, "%s", job->early->err.text);
    return 0;
}

ZSD_REQUEST(zsd_tensor_norms, TensorNorms)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    Zp__TensorNormsReply reply = ZP__TENSOR_NORMS_REPLY__INIT;
    struct zk_xsum sums[ZP_NORMS_PART] = { 0 };
    uint8_t bytes[ZP_NORMS_PART * ZK_XSUM_BYTES];
    struct zb_err err = { 0 };

    if (!m)
        return;
    if (m->job->tensor_norms && !zsd_tensors_get(m->job)) {
        zsd_refuse(req, -ENOMEM, "norms of tensors: %m");
        return;
    }
    if (norms_check(m->job, q, &err) < 0) {
        zsd_reply_err(req, &err);
        return;
    }
    if (sums_add(m->job, m->rank, q->first, q->count, sums) < 0) {
        zsd_refuse(req, -EBUSY, "rank %u of job '%s' has no whole gradient of step %llu yet",
                   m->rank, m->job->name, (unsigned long long)q->step);
        return;
    }
    for (uint32_t i = 0; i < q->count; i++)
        zk_xsum_store(&sums[i], bytes + (size_t)i * ZK_XSUM_BYTES);
    reply.sums_of_squares.data = bytes;
    reply.sums_of_squares.len = (size_t)q->count * ZK_XSUM_BYTES;
    zsd_reply(req, &reply.base, -1);
}

/* ---- values by tensor */

static struct zsd_values_sent *values_sent(struct zsd_member *m, bool limits)
{
    return limits ? &m->limits_sent : &m->factors_sent;
}

/* Whether a rank has sent values of this step. */
static bool values_by_any(struct zsd_job *job, bool limits, uint64_t step)
{
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        if (values_sent(m, limits)->step == step && values_sent(m, limits)->n > 0)
            return true;
    }
    return false;
}

void zsd_values_drop(struct zsd_job *job)
{
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        m->limits_sent = m->factors_sent = (struct zsd_values_sent){ 0 };
    }
}

int zsd_values_check(const struct zsd_member *m, bool limits, uint64_t step, struct zb_err *err)
{
    const struct zsd_values_sent *sent = limits ? &m->limits_sent : &m->factors_sent;
    const struct zsd_tensors *t = m->job->tensors;

    if (t && sent->step == step && sent->n == t->n && (!limits || m->job->tensor_norms))
        return 0;
    return zb_fail(
        err, -EINVAL, "rank %u has not sent the %s of all tensors for step %llu of job '%s'%s",
        m->rank, limits ? "limits" : "factors", (unsigned long long)step, m->job->name,
        limits && !m->job->tensor_norms ? ", or the job was opened without norms of tensors" : "");
}

static int part_check(const struct zsd_member *m, const Zp__StepTensors *q, struct zb_err *err)
{
    const struct zsd_job *job = m->job;
    uint64_t step = job->iterations + 1;

    if (job->state != ZSD_READY || m->step_req)
        return zb_fail(err, -EBUSY, "job '%s' is not ready for values of tensors", job->name);
    if (q->step != step)
        return zb_fail(err, q->step < step ? -EEXIST : -EINVAL,
                       "values of tensors for step %llu of job '%s': step %llu comes next",
                       (unsigned long long)q->step, job->name, (unsigned long long)step);
    if (q->limits && m->begun)
        return zb_fail(err, -EBUSY, "limits of tensors, and rank %u has begun step %llu", m->rank,
                       (unsigned long long)step);
    if (q->n_values > ZP_VALUES_PART)
        return zb_fail(err, -EINVAL, "%zu values of tensors in one request: at most %u",
                       q->n_values, ZP_VALUES_PART);
    for (size_t i = 0; i < q->n_values; i++)
        if (!(q->values[i] >= 0 && isfinite(q->values[i])))
            return zb_fail(err, -EINVAL, "a %s of %g for a tensor: 0, or above",
                           q->limits ? "limit" : "factor", q->values[i]);
    return 0;
}

static int part_add(struct zsd_member *m, const Zp__StepTensors *q, struct zsd_tensors *t,
                    struct zb_err *err)
{
    struct zsd_values *values = q->limits ? &t->limits : &t->factors;
    struct zsd_values_sent *sent = values_sent(m, q->limits);

    if (q->begin)
        *sent = (struct zsd_values_sent){ .step = q->step };
    if (q->begin && !values_by_any(m->job, q->limits, q->step)) {
        values->step = q->step;
        values->known = 0;
    }
    if (sent->step != q->step)
        return zb_fail(err, -EINVAL, "a further part of values of step %llu, without a first one",
                       (unsigned long long)q->step);
    if (q->n_values > t->n - sent->n)
        return zb_fail(err, -EINVAL,
                       "values of %zu more tensors after %u: the job has %u trainable tensors",
                       q->n_values, sent->n, t->n);
    for (size_t i = 0; i < q->n_values; i++) {
        uint32_t at = sent->n + (uint32_t)i;

        if (at < values->known && memcmp(&values->v[at], &q->values[i], sizeof(double)) != 0) {
            sent->n = 0;
            return zb_fail(err, -EINVAL,
                           "rank %u has another %s of tensor %u in step %llu of job '%s' than its "
                           "peers",
                           m->rank, q->limits ? "limit" : "factor", at, (unsigned long long)q->step,
                           m->job->name);
        }
        values->v[at] = q->values[i];
        values->known = (uint32_t)zb_max_u64(values->known, at + UINT64_C(1));
    }
    sent->n += (uint32_t)q->n_values;
    return 0;
}

ZSD_REQUEST(zsd_step_tensors, StepTensors)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zb_err err = { 0 };

    if (!m)
        return;
    if (part_check(m, q, &err) < 0) {
        zsd_reply_err(req, &err);
        return;
    }
    if (!zsd_tensors_get(m->job)) {
        zsd_refuse(req, -ENOMEM, "values of tensors: %m");
        return;
    }
    if (part_add(m, q, m->job->tensors, &err) < 0) {
        zsd_reply_err(req, &err);
        return;
    }
    zsd_reply(req, NULL, -1);
}

/* ---- limits */

void zsd_limits_apply(struct zsd_job *job, const struct zsd_unit *unit,
                      const struct zsd_step_table *table, const struct zk_xsum *sums,
                      double *factors)
{
    const struct zsd_tensors *t = job->tensors;
    uint32_t first = t->first[unit->index], end = t->first[unit->index + 1];
    uint32_t at = table->at[unit->index], to = table->at[unit->index + 1];

    for (uint32_t i = first; i < end; i++) {
        struct zk_xsum sum = { 0 };
        const struct zsd_shard *s;
        double norm;

        while (at < to && table->segments[at].first < t->all[i].first)
            at++;
        factors[i] = 1;
        if (at == to || table->segments[at].first != t->all[i].first)
            continue; /* it is not stepped */
        if (sums)
            sum = sums[i];
        else
            zb_sorted_each (s, pos, &unit->shards)
                zk_xsum_merge(&sum, &s->tensor_sums[i - first]);
        norm = fabs(table->scales[table->segments[at].group]) * sqrt(zk_xsum_value(&sum));
        factors[i] = zk_limit_factor(t->limits.v[i], norm);
    }
}
