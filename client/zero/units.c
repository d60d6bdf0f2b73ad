/*
 * units.c - the list of units: checked, and cut into slices; the digest that ranks compare.
 *
 * FLATTENING. A unit's tensors are in one array of elements, which is cut into z->shards slices of
 * equal length, a whole number of blocks, so that one collective moves a unit. Stored data ends
 * with the unit's last block, so the slices of the last ranks may be shorter or empty. Elements
 * after the unit's end, and after the stored data, are zeros.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/crc.h"
#include "base/late.h"
#include "client/zero/engine.h"

/* Limit for one unit over all ranks, so that sizes cannot overflow. */
#define ZCZ_SLICE_ELEMS (UINT64_C(1) << 40)

/* ---- declaring */

static int tensor_check(struct zc_zero *z, const struct zc_unit *unit, const struct zc_tensor *t,
                        uint64_t from, uint64_t *ret_end)
{
    uint64_t count = 1;
    bool fits = t->name && t->ndims <= ZC_DIMS_MAX;

    for (uint32_t d = 0; fits && d < t->ndims; d++)
        fits = zb_mul_fits(count, t->dims[d], &count);
    if (!fits || !zb_range_inside(t->first, count, unit->elems))
        return zcz_refuse(z, -EINVAL, "tensor '%s' is not inside unit '%s' of %llu elements",
                          t->name ? t->name : "(no name)", unit->name,
                          (unsigned long long)unit->elems);
    if (t->first < from)
        return zcz_refuse(z, -EINVAL, "tensor '%s' of unit '%s' begins before the last one ended",
                          t->name, unit->name);
    if (t->group >= z->options.groups && t->group != ZC_GROUP_FROZEN)
        return zcz_refuse(z, -EINVAL, "tensor '%s' of unit '%s' is in group %u of %u", t->name,
                          unit->name, t->group, z->options.groups);
    if (t->muon && (z->options.optimizer != ZC_MUON || t->ndims != 2 ||
                    t->group == ZC_GROUP_FROZEN || unit->frozen))
        return zcz_refuse(z, -EINVAL,
                          "tensor '%s' of unit '%s' is marked for Muon: that needs the optimizer "
                          "Muon, and a matrix that is trained",
                          t->name, unit->name);
    *ret_end = t->first + count;
    return 0;
}

static enum zb_optimizer unit_optimizer(const struct zc_zero *z, const struct zc_unit *unit)
{
    uint64_t trained = 0, muon = 0;

    for (uint32_t i = 0; unit->tensors && i < unit->ntensors; i++) {
        trained += unit->tensors[i].group != ZC_GROUP_FROZEN;
        muon += unit->tensors[i].muon;
    }
    return zb_unit_optimizer((enum zb_optimizer)z->options.optimizer, trained, muon);
}

static int unit_check(struct zc_zero *z, const struct zc_unit *unit, struct zb_layout *ret_layout)
{
    struct zb_err err = { 0 };
    uint64_t end = 0;
    int rc;

    if (z->started)
        return zcz_refuse(z, -EBUSY, "units are declared before the start");
    if (unit->index != z->nunits)
        return zcz_refuse(z, -EINVAL, "unit %u is declared where unit %u comes next", unit->index,
                          z->nunits);
    if (!unit->name || !unit->name[0] || strlen(unit->name) > ZC_NAME_MAX)
        return zcz_refuse(z, -EINVAL, "unit %u has no name of 1 to %d bytes", unit->index,
                          ZC_NAME_MAX);
    if (unit->elems < 1 || unit->elems > ZCZ_SLICE_ELEMS)
        return zcz_refuse(z, -EINVAL, "unit '%s' has %llu elements: from 1 to %llu", unit->name,
                          (unsigned long long)unit->elems, (unsigned long long)ZCZ_SLICE_ELEMS);
    rc = zb_layout_of((enum zb_dtype)unit->dtype, ZB_F32, unit_optimizer(z, unit),
                      (enum zb_moments)z->options.moments, unit->frozen, ret_layout, &err);
    if (rc < 0)
        return zcz_refuse(z, rc, "unit '%s': %s", unit->name, err.text);
    if (unit->quantized && (!unit->frozen || z->options.stage < ZC_STAGE_3))
        return zcz_refuse(
            z, -EINVAL, "unit '%s' is quantized: this needs a frozen unit and stage 3", unit->name);
    if (unit->quantized)
        zb_layout_quantize(ret_layout);
    if (unit->ntensors > 0 && !unit->tensors)
        return zcz_refuse(z, -EINVAL, "unit '%s' has %u tensors, but `tensors` is NULL", unit->name,
                          unit->ntensors);
    if (unit->ntensors == 0 && !unit->frozen)
        return zcz_refuse(
            z, -EINVAL,
            "unit '%s' has no tensors and is not frozen: nothing in it would be trained",
            unit->name);
    for (uint32_t t = 0; t < unit->ntensors && rc == 0; t++)
        rc = tensor_check(z, unit, &unit->tensors[t], end, &end);
    return rc;
}

static void unit_done(struct zcz_unit *u)
{
    struct zc_tensor *tensors = (struct zc_tensor *)(uintptr_t)u->def.tensors;

    for (uint32_t t = 0; tensors && t < u->def.ntensors; t++)
        free((void *)(uintptr_t)tensors[t].name);
    free(tensors);
    free((void *)(uintptr_t)u->def.name);
    free(u->segments);
}

void zcz_units_done(struct zc_zero *z)
{
    for (uint32_t i = 0; i < z->nunits; i++)
        unit_done(&z->units[i]);
    free(z->units);
}

/* Adjacent tensors of one group become one segment. */
static void unit_segments(struct zcz_unit *u)
{
    for (uint32_t i = 0; i < u->def.ntensors && !u->def.frozen; i++) {
        const struct zc_tensor *t = &u->def.tensors[i];
        struct zk_segment *last = u->nsegments ? &u->segments[u->nsegments - 1] : NULL;
        uint64_t count = 1;

        for (uint32_t d = 0; d < t->ndims; d++)
            count *= t->dims[d];
        if (t->group == ZC_GROUP_FROZEN || count == 0)
            continue;
        if (last && last->group == t->group && last->first + last->count == t->first)
            last->count += count;
        else
            u->segments[u->nsegments++] =
                (struct zk_segment){ .first = t->first, .count = count, .group = t->group };
    }
}

static int unit_copy(struct zc_zero *z, struct zcz_unit *u, const struct zc_unit *unit)
{
    struct zc_tensor *tensors = calloc(zb_max_u64(unit->ntensors, 1), sizeof(*tensors));
    uint64_t first, count;

    u->def = *unit;
    u->def.grad_dtype = ZC_F32;
    u->def.name = strdup(unit->name);
    u->def.tensors = tensors;
    u->def.ntensors = 0;
    u->segments = calloc(zb_max_u64(unit->ntensors, 1), sizeof(*u->segments));
    if (!tensors || !u->def.name || !u->segments)
        return zcz_refuse(z, -ENOMEM, "no memory for unit %u", unit->index);
    for (uint32_t t = 0; t < unit->ntensors; t++) {
        tensors[t] = unit->tensors[t];
        tensors[t].name = strdup(unit->tensors[t].name);
        if (!tensors[t].name)
            return zcz_refuse(z, -ENOMEM, "no memory for unit %u", unit->index);
        u->def.ntensors = t + 1;
    }
    unit_segments(u);
    zb_slice(unit->elems, z->shards, z->shard, &u->slice, &u->first, &u->count);
    u->part = u->slice;
    if (z->replicas > 1)
        zb_slice(u->slice, z->replicas, z->replica, &u->part, &first, &count);
    return 0;
}

int zc_zero_add_unit(struct zc_zero *z, const struct zc_unit *unit)
{
    ZCZ_GUARD(z);
    struct zcz_unit u = { 0 };
    int rc = zcz_enter(z, false);

    if (rc == 0)
        rc = unit_check(z, unit, &u.layout);
    if (rc < 0)
        return rc;
    if (zb_grow(&z->units, &z->units_room, z->nunits, 1) < 0)
        return zcz_refuse(z, -ENOMEM, "no memory for unit %u", unit->index);
    rc = unit_copy(z, &u, unit);
    if (rc < 0) {
        unit_done(&u);
        return rc;
    }
    for (uint32_t t = 0; t < u.def.ntensors; t++)
        u.ntrained += zcz_tensor_trained(&u, t);
    if (z->nunits > 0)
        u.trained_first = z->units[z->nunits - 1].trained_first + z->units[z->nunits - 1].ntrained;
    z->units[z->nunits++] = u;
    z->trainable += !unit->frozen;
    return 0;
}

/* ---- equal on every rank */

static uint32_t digest_text(uint32_t crc, const char *text)
{
    return text ? zb_crc32c(crc, text, strlen(text) + 1) : zb_crc32c(crc, "\1", 1);
}

static uint32_t digest_numbers(uint32_t crc, const uint64_t *numbers, size_t n)
{
    return zb_crc32c(crc, numbers, n * sizeof(*numbers));
}

static uint32_t digest_unit(uint32_t crc, const struct zc_unit *unit)
{
    uint64_t head[] = { unit->elems, unit->dtype, unit->frozen, unit->quantized, unit->ntensors };

    crc = digest_text(digest_numbers(crc, head, ZB_COUNT(head)), unit->name);
    for (uint32_t i = 0; i < unit->ntensors; i++) {
        const struct zc_tensor *t = &unit->tensors[i];
        uint64_t numbers[] = { t->first, t->group, t->ndims, t->muon };

        crc = digest_text(digest_numbers(crc, numbers, ZB_COUNT(numbers)), t->name);
        crc = digest_numbers(crc, t->dims, t->ndims);
    }
    return crc;
}

uint32_t zcz_digest(const struct zc_zero *z)
{
    const struct zc_zero_options *o = &z->options;
    uint64_t numbers[] = { o->keep,
                           o->durable,
                           o->commit_every,
                           o->resume,
                           o->offload_param,
                           o->offload_optimizer,
                           o->micro_steps,
                           o->groups,
                           o->prefetch_units,
                           o->optimizer,
                           o->moments,
                           o->nesterov,
                           o->overlap,
                           o->offload_grad,
                           z->comm->ops->device && o->device,
                           o->stage,
                           o->group_ranks,
                           o->accumulate_local,
                           o->vertical,
                           o->keep_gathered,
                           o->persist_elems,
                           o->live_elems,
                           o->reuse_elems,
                           o->prefetch_elems,
                           o->reduce_elems,
                           o->reduce_waits,
                           o->quantize_gather,
                           o->gather_alone,
                           o->step_unused,
                           o->resume_if_there,
                           o->optimizer_late,
                           o->reconnect_ms,
                           o->node_gather,
                           o->clip_mode,
                           o->clip_tensor_warmup,
                           o->muon_scale,
                           o->grad_ring,
                           o->grad_ring_keep,
                           o->announces,
                           o->muon_engine };
    double scalars[] = { o->clip,
                         o->beta1,
                         o->beta2,
                         o->eps,
                         o->momentum,
                         o->dampening,
                         o->lr_decay,
                         o->loss_scale.fixed,
                         o->loss_scale.min,
                         o->clip_tensor_ratio,
                         o->clip_tensor_beta };
    uint64_t scale[] = { o->loss_scale.dynamic, o->loss_scale.power, o->loss_scale.window,
                         o->loss_scale.hysteresis, o->loss_scale.consecutive };
    uint32_t crc = digest_numbers(0, numbers, ZB_COUNT(numbers));

    crc = digest_numbers(crc, scale, ZB_COUNT(scale));
    crc = zb_crc32c(crc, scalars, sizeof(scalars));
    crc = zb_crc32c(crc, o->weight_decay, sizeof(o->weight_decay));
    crc = digest_text(crc, o->job);
    for (uint32_t i = 0; i < z->nunits; i++)
        crc = digest_unit(crc, &z->units[i].def);
    return crc;
}

int zc_zero_slice(struct zc_zero *z, uint32_t unit, uint64_t *ret_first, uint64_t *ret_count)
{
    ZCZ_GUARD(z);
    struct zcz_unit *u;
    int rc = zcz_enter_unit(z, unit, &u);

    if (rc < 0)
        return rc;
    *ret_first = zb_min_u64(u->first, u->def.elems);
    *ret_count = zb_min_u64(u->count, u->def.elems - *ret_first);
    return 0;
}
