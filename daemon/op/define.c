/*
 * define.c - describes a job: units with their tensors, then the shards of each rank. All ranks
 * must describe a unit in the same way, and an incarnation of a saved job must match the saved
 * units. The memory of a description is charged to its job, also while its parts arrive.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/late.h"
#include "daemon/job/shard.h"
#include "daemon/op/member.h"
#include "daemon/op/requests.h"
#include "daemon/run/turn.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"

/* ---- units */

static int unit_check(const struct zsd_job *job, const Zp__UnitDefine *q, struct zb_err *err)
{
    if (job->state != ZSD_DEFINING && !job->keep)
        return zb_fail(err, -EBUSY, "job '%s' is ready: its units are fixed", job->name);
    if (q->unit >= ZP_UNITS_MAX || q->unit > job->nunits)
        return zb_fail(err, -EINVAL, "unit %u comes after %u of job '%s': units come in order",
                       q->unit, job->nunits, job->name);
    if (!zp_name_valid(q->name))
        return zb_fail(err, -EINVAL, "'%s' is not a valid unit name", q->name);
    if (q->elems < 1 || q->elems > UINT64_C(1) << 40)
        return zb_fail(err, -EINVAL, "unit '%s' has %llu elements: must be 1 to 2^40", q->name,
                       (unsigned long long)q->elems);
    return 0;
}

static int unit_tensor(struct zsd_unit *unit, struct zsd_job *job, const Zp__Tensor *q,
                       struct zb_err *err)
{
    struct zsd_tensor t = { .first = q->first,
                            .count = 1,
                            .group = q->group,
                            .ndims = (uint32_t)q->n_dims,
                            .muon = q->muon };
    uint64_t from = 0;

    if (unit->ntensors > 0) {
        const struct zsd_tensor *last = &unit->tensors[unit->ntensors - 1];

        from = last->first + last->count;
    }
    if (!zp_tensor_name_valid(q->name))
        return zb_fail(err, -EINVAL, "unit '%s': '%s' is not a valid tensor name", unit->name,
                       q->name);
    if (q->n_dims > ZP_DIMS_MAX)
        return zb_fail(err, -EINVAL, "tensor '%s' has %zu dimensions: at most %u are allowed",
                       q->name, q->n_dims, ZP_DIMS_MAX);
    for (size_t i = 0; i < q->n_dims; i++) {
        t.dims[i] = q->dims[i];
        if (!zb_mul_fits(t.count, q->dims[i], &t.count))
            return zb_fail(err, -EINVAL, "tensor '%s' has a shape that overflows", q->name);
    }
    if (t.count < 1 || q->first < from || !zb_range_inside(q->first, t.count, unit->elems))
        return zb_fail(err, -EINVAL,
                       "tensor '%s' (first %llu, %llu elements) is not inside unit '%s' of %llu "
                       "elements, after the previous tensor",
                       q->name, (unsigned long long)q->first, (unsigned long long)t.count,
                       unit->name, (unsigned long long)unit->elems);
    if (q->group >= job->groups && q->group != ZP_GROUP_FROZEN)
        return zb_fail(err, -EINVAL,
                       "tensor '%s' has parameter group %u, and the job has %u groups", q->name,
                       q->group, job->groups);
    if (q->muon && (job->optimizer != ZB_MUON || q->n_dims != 2 || q->group == ZP_GROUP_FROZEN ||
                    unit->layout.frozen))
        return zb_fail(err, -EINVAL,
                       "tensor '%s' is marked for Muon: that needs a job with Muon, and a matrix "
                       "that is trained",
                       q->name);
    if (unit->index < job->nunits) { /* the job has this unit already */
        if (unit->ntensors >= job->units[unit->index]->ntensors)
            return zb_fail(
                err, -EINVAL,
                "tensor '%s': unit %u ('%s') of job '%s' has %u tensors, but not this one", q->name,
                unit->index, unit->name, job->name, job->units[unit->index]->ntensors);
    } else if (job->ntensors + unit->ntensors >= ZSD_TENSORS_MAX) {
        return zb_fail(err, -ENOSPC, "tensor '%s': job '%s' has %u tensors, which is the limit",
                       q->name, job->name, job->ntensors + unit->ntensors);
    }
    if (zsd_limit_take(&job->quota, ZSD_LIMIT_DEFINITION_BYTES, ZSD_TENSOR_BYTES, err) < 0)
        return err->code;
    if (zb_grow(&unit->tensors, &unit->tensors_room, unit->ntensors, 1) < 0) {
        zsd_limit_give(&job->quota, ZSD_LIMIT_DEFINITION_BYTES, ZSD_TENSOR_BYTES);
        return zb_fail(err, -ENOMEM, "tensors of unit '%s': %m", unit->name);
    }
    (void)snprintf(t.name, sizeof(t.name), "%s", q->name);
    unit->tensors[unit->ntensors++] = t;
    return 0;
}

static bool unit_same(const struct zsd_unit *a, const struct zsd_unit *b)
{
    if (strcmp(a->name, b->name) != 0 || a->elems != b->elems || a->ntensors != b->ntensors ||
        a->layout.dtype != b->layout.dtype || a->layout.grad_dtype != b->layout.grad_dtype ||
        a->layout.frozen != b->layout.frozen || a->layout.quantized != b->layout.quantized)
        return false;
    for (uint32_t i = 0; i < a->ntensors; i++) {
        const struct zsd_tensor *s = &a->tensors[i], *t = &b->tensors[i];

        if (strcmp(s->name, t->name) != 0 || s->first != t->first || s->group != t->group ||
            s->ndims != t->ndims || s->muon != t->muon ||
            memcmp(s->dims, t->dims, sizeof(s->dims)) != 0)
            return false;
    }
    return true;
}

/* Rejects a unit that differs from the job's. Says how, if it differs in one of these words. */
static int unit_differs(const struct zsd_member *m, const struct zsd_unit *unit,
                        const struct zsd_unit *kept, struct zb_err *err)
{
    static const char *const words[] = { "trained", "frozen", "frozen and quantized" };
    const unsigned is = unit->layout.frozen + unit->layout.quantized;
    const unsigned was = kept->layout.frozen + kept->layout.quantized;

    if (is != was)
        return zb_fail(err, -EINVAL,
                       "unit %u ('%s') of job '%s' is %s, and rank %u defines it as %s",
                       unit->index, unit->name, m->job->name, words[was], m->rank, words[is]);
    return zb_fail(err, -EINVAL,
                   "rank %u defines unit %u ('%s') of job '%s' differently from its peers, or "
                   "from what the job had when it was saved",
                   m->rank, unit->index, unit->name, m->job->name);
}

/* With Muon, the layout depends on the tensors: zb_unit_optimizer(). */
static int unit_layout(struct zsd_unit *unit, const struct zsd_job *job, struct zb_err *err)
{
    const struct zb_layout was = unit->layout;
    uint64_t trained = 0, muon = 0;

    if (job->optimizer != ZB_MUON || was.frozen)
        return 0;
    for (uint32_t i = 0; i < unit->ntensors; i++) {
        trained += unit->tensors[i].group != ZP_GROUP_FROZEN;
        muon += unit->tensors[i].muon;
    }
    return zb_layout_of(was.dtype, was.grad_dtype, zb_unit_optimizer(ZB_MUON, trained, muon),
                        was.moments, false, &unit->layout, err);
}

/* The last part of a unit has arrived. The first rank's unit is kept, those of other ranks are
 * compared with it. */
static int unit_finish(struct zsd_member *m, struct zb_err *err)
{
    struct zsd_job *job = m->job;
    struct zsd_unit *unit = m->defining;

    if (unit->ntensors == 0 &&
        !unit->layout.frozen) /* elements outside of tensors are never stepped */
        return zb_fail(err, -EINVAL,
                       "unit '%s' has no tensors and is not frozen: nothing in it would be trained",
                       unit->name);
    if (unit_layout(unit, job, err) < 0)
        return err->code;
    if (unit->index < job->nunits)
        return unit_same(unit, job->units[unit->index])
                   ? 0
                   : unit_differs(m, unit, job->units[unit->index], err);
    if (job->state != ZSD_DEFINING || job->again)
        return zb_fail(err, -EINVAL, "job '%s' has %u units, and none is called '%s'", job->name,
                       job->nunits, unit->name);
    if (zsd_unit_segments(unit) < 0)
        return zb_fail(err, -ENOMEM, "unit '%s': %m", unit->name);
    if (zb_grow(&job->units, &job->units_room, job->nunits, 1) < 0)
        return zb_fail(err, -ENOMEM, "unit '%s': %m", unit->name);
    job->units[job->nunits++] = unit;
    job->ntensors += unit->ntensors;
    m->defining = NULL;
    return 0;
}

/* The first part creates the unit; the head of every later part must be the same. */
static int unit_head(struct zsd_member *m, const Zp__UnitDefine *q, struct zb_err *err)
{
    struct zsd_unit *unit = m->defining;
    struct zb_layout layout;

    if (zb_layout_of(q->dtype, q->frozen ? ZB_F32 : q->grad_dtype,
                     m->job->optimizer == ZB_MUON ? ZB_ADAMW : m->job->optimizer, m->job->moments,
                     q->frozen, &layout, err) < 0)
        return err->code;
    if (q->quantized && !q->frozen)
        return zb_fail(
            err, -EINVAL,
            "unit '%s' is quantized but not frozen: only frozen units can be stored in 8 bits",
            q->name);
    if (q->quantized)
        zb_layout_quantize(&layout);
    if (!unit) {
        if (zsd_limit_take(&m->job->quota, ZSD_LIMIT_DEFINITION_BYTES, sizeof(*unit), err) < 0)
            return err->code;
        unit = m->defining = calloc(1, sizeof(*unit));
        if (!unit) {
            zsd_limit_give(&m->job->quota, ZSD_LIMIT_DEFINITION_BYTES, sizeof(*unit));
            return zb_fail(err, -ENOMEM, "unit '%s': %m", q->name);
        }
        unit->index = q->unit;
        unit->elems = q->elems;
        unit->layout = layout;
        (void)snprintf(unit->name, sizeof(unit->name), "%s", q->name);
    }
    if (strcmp(unit->name, q->name) != 0 || unit->elems != q->elems ||
        unit->layout.dtype != layout.dtype || unit->layout.grad_dtype != layout.grad_dtype ||
        unit->layout.frozen != layout.frozen || unit->layout.quantized != layout.quantized)
        return zb_fail(err, -EINVAL, "a part of unit '%s' contradicts the first part, of '%s'",
                       q->name, unit->name);
    return 0;
}

ZSD_REQUEST(zsd_unit_define, UnitDefine)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zb_err err = { 0 };
    struct zsd_unit *unit;

    if (!m)
        return;
    if (m->defining && m->defining->index != q->unit) /* an earlier one was left unfinished */
        zsd_member_undefine(m);
    if (unit_check(m->job, q, &err) < 0 || unit_head(m, q, &err) < 0)
        goto refuse;
    unit = m->defining;
    for (size_t i = 0; i < q->n_tensors; i++)
        if (unit_tensor(unit, m->job, q->tensors[i], &err) < 0)
            goto refuse;
    if (q->last && unit_finish(m, &err) < 0)
        goto refuse;
    if (q->last)
        zsd_member_undefine(m);
    zsd_reply(req, NULL, -1);
    return;
refuse:
    zsd_member_undefine(m);
    zsd_reply_err(req, &err);
}

/* ---- shards */

static int shard_check(const struct zsd_job *job, const Zp__Range *q, struct zb_err *err)
{
    const struct zsd_unit *unit;
    const struct zsd_shard *next, *before;
    struct zb_sorted_pos at;

    if (q->unit >= job->nunits)
        return zb_fail(err, -ENOENT, "job '%s' has no unit %u", job->name, q->unit);
    unit = job->units[q->unit];
    if (q->count < 1 || q->first % ZB_BLOCK_ELEMS != 0 || q->count % ZB_BLOCK_ELEMS != 0)
        return zb_fail(err, -EINVAL,
                       "a shard of unit '%s' from %llu of %llu elements: bounds are "
                       "multiples of %u",
                       unit->name, (unsigned long long)q->first, (unsigned long long)q->count,
                       ZB_BLOCK_ELEMS);
    if (!zb_range_inside(q->first, q->count, zb_padded_elems(unit->elems)))
        return zb_fail(err, -EINVAL,
                       "a shard of unit '%s' from %llu of %llu elements: the unit has %llu",
                       unit->name, (unsigned long long)q->first, (unsigned long long)q->count,
                       (unsigned long long)unit->elems);
    at = zb_sorted_at(&unit->shards, q->first);
    next = zb_sorted_get(&unit->shards, at);
    before = zb_sorted_before(&unit->shards, at);
    if ((next && next->first < q->first + q->count) ||
        (before && before->first + before->count > q->first))
        return zb_fail(err, -EINVAL, "a shard of unit '%s' from %llu overlaps another one",
                       unit->name, (unsigned long long)q->first);
    return 0;
}

/* Memory of a shard, including the tables of its pages: places and checksums. */
static uint64_t shard_bytes(const struct zsd_job *job, uint64_t count)
{
    return sizeof(struct zsd_shard) + zb_div_up(count, job->core->page_elems) * ZB_PLANES *
                                          (sizeof(struct zsd_extent) + 4 * sizeof(uint32_t));
}

static int shard_add(struct zsd_job *job, uint32_t rank, const Zp__Range *q, struct zb_err *err)
{
    struct zsd_unit *unit;
    struct zsd_shard *s;

    if (shard_check(job, q, err) < 0)
        return err->code;
    unit = job->units[q->unit];
    if (job->nshards >= ZB_SHARDS_MAX)
        return zb_fail(err, -ENOSPC, "job '%s' has %u shards, which is the limit", job->name,
                       job->nshards);
    if (zb_grow(&job->shards, &job->shards_room, job->nshards, 1) < 0)
        return zb_fail(err, -ENOMEM, "shards of job '%s': %m", job->name);
    if (zsd_limit_take(&job->quota, ZSD_LIMIT_DEFINITION_BYTES, shard_bytes(job, q->count), err) <
        0)
        return err->code;
    s = zsd_shard_new(job, unit, rank, q->first, q->count);
    if (!s || zb_sorted_put(&unit->shards, q->first, s) < 0) {
        zsd_shard_free(s);
        zsd_limit_give(&job->quota, ZSD_LIMIT_DEFINITION_BYTES, shard_bytes(job, q->count));
        return zb_fail(err, -ENOMEM, "a shard of unit '%s': %m", unit->name);
    }
    s->id = (uint64_t)job->number << 32 | job->nshards;
    job->shards[job->nshards++] = s;
    return 0;
}

/* Removes the shards from number `from` on: a request registers all of its ranges, or none. */
static void shards_undo(struct zsd_job *job, uint32_t from)
{
    while (job->nshards > from) {
        struct zsd_shard *s = job->shards[--job->nshards];

        (void)zb_sorted_remove(&s->unit->shards, s->first);
        zsd_limit_give(&job->quota, ZSD_LIMIT_DEFINITION_BYTES, shard_bytes(job, s->count));
        zsd_shard_free(s);
    }
}

/* Finds the shard that a rank registers again, after it has attached to a kept job. */
static struct zsd_shard *shard_again(struct zsd_job *job, uint32_t rank, const Zp__Range *q,
                                     struct zb_err *err)
{
    struct zsd_shard *s = NULL;

    if (q->unit < job->nunits) {
        const struct zb_sorted *shards = &job->units[q->unit]->shards;

        s = zb_sorted_get(shards, zb_sorted_at(shards, q->first));
    }
    if (s && (s->first != q->first || s->count != q->count))
        s = NULL;
    if (s && s->rank == rank)
        return s;
    if (s) { /* its ring and its gradients belong to that rank */
        (void)zb_fail(err, -EINVAL,
                      "a shard of unit '%s' of job '%s' from %llu is rank %u's, not %u's",
                      s->unit->name, job->name, (unsigned long long)q->first, s->rank, rank);
        return NULL;
    }
    (void)zb_fail(err, -ENOENT, "job '%s' has no shard of unit %u from %llu of %llu elements",
                  job->name, q->unit, (unsigned long long)q->first, (unsigned long long)q->count);
    return NULL;
}

ZSD_REQUEST(zsd_shard_register, ShardRegister)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    Zp__ShardRegisterReply reply = ZP__SHARD_REGISTER_REPLY__INIT;
    uint64_t ids[ZP_SHARDS_MAX];
    struct zb_err err = { 0 };
    uint32_t before;

    if (!m)
        return;
    before = m->job->nshards;
    if (q->n_ranges < 1 || q->n_ranges > ZP_SHARDS_MAX)
        (void)zb_fail(&err, -EINVAL, "%zu ranges in one request: must be 1 to %u", q->n_ranges,
                      ZP_SHARDS_MAX);
    else if (m->ready)
        (void)zb_fail(&err, -EBUSY, "rank %u of job '%s' is already ready: its shards are fixed",
                      m->rank, m->job->name);
    for (size_t i = 0; i < q->n_ranges && err.code == 0; i++) {
        zsd_turn_count(m->job->core, 1);
        if (m->job->state == ZSD_DEFINING) {
            if (shard_add(m->job, m->rank, q->ranges[i], &err) == 0)
                ids[i] = m->job->shards[m->job->nshards - 1]->id;
        } else {
            struct zsd_shard *s = shard_again(m->job, m->rank, q->ranges[i], &err);

            if (s)
                ids[i] = s->id;
        }
    }
    if (err.code != 0) {
        shards_undo(m->job, before);
        zsd_reply_err(req, &err);
        return;
    }
    reply.n_shards = q->n_ranges;
    reply.shards = ids;
    zsd_reply(req, &reply.base, -1);
}
