/*
 * unit.c - defining a unit. A unit with too many tensors for one frame is sent in parts, from a
 * copy that the call owns; call->at is the number of tensors sent.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/ask/ask_priv.h"

/** Tensors in one part of a unit. With names and shapes of maximum length they still fit a body. */
#define PART_TENSORS 256u
_Static_assert(PART_TENSORS *(ZP_TENSOR_MAX + 10 * ZP_DIMS_MAX + 32) + 2 * ZP_NAME_MAX <
                   ZP_BODY_MAX,
               "a part of a unit fits a frame");

static int unit_check(struct zc_client *c, const struct zc_unit *unit)
{
    int rc = zc_name_check(c, "a unit", unit->name, ZC_NAME_MAX);

    for (uint32_t i = 0; rc == 0 && i < unit->ntensors; i++) {
        const struct zc_tensor *t = &unit->tensors[i];

        rc = zc_name_check(c, "a tensor", t->name, ZC_TENSOR_MAX);
        if (rc == 0 && t->ndims > ZC_DIMS_MAX)
            rc = zc_fail(c, -EINVAL, "tensor '%s' has %u dimensions: at most %d", t->name, t->ndims,
                         ZC_DIMS_MAX);
    }
    return rc;
}

struct unit_copy {
    uint64_t job;
    struct zc_unit unit;
    struct zc_tensor tensors[]; /* followed by the names */
};

/** Copies a unit. NULL: no memory. */
static struct unit_copy *unit_copy(uint64_t job, const struct zc_unit *unit)
{
    size_t tensors_bytes = unit->ntensors * sizeof(struct zc_tensor);
    size_t bytes = sizeof(struct unit_copy) + tensors_bytes + strlen(unit->name) + 1;
    struct zc_tensor *tensors;
    struct unit_copy *copy;
    char *text;

    for (uint32_t i = 0; i < unit->ntensors; i++)
        bytes += strlen(unit->tensors[i].name) + 1;
    copy = malloc(bytes);
    if (!copy)
        return NULL;
    tensors = copy->tensors;
    text = (char *)tensors + tensors_bytes;
    copy->job = job;
    copy->unit = *unit;
    copy->unit.tensors = tensors;
    copy->unit.name = strcpy(text, unit->name);
    text += strlen(text) + 1;
    for (uint32_t i = 0; i < unit->ntensors; i++) {
        tensors[i] = unit->tensors[i];
        tensors[i].name = strcpy(text, unit->tensors[i].name);
        text += strlen(text) + 1;
    }
    return copy;
}

/** A part of a unit, as a message. */
struct unit_part {
    Zp__UnitDefine m;
    Zp__Tensor tensors[PART_TENSORS], *list[PART_TENSORS];
};

/** Fills a part, from tensor `at` on. Returns the number of its tensors. */
static uint32_t unit_part(struct unit_part *part, uint64_t job, const struct zc_unit *unit,
                          uint32_t at)
{
    uint32_t n = (uint32_t)zb_min_u64(unit->ntensors - at, PART_TENSORS);

    zp__unit_define__init(&part->m);
    part->m.job = job;
    part->m.unit = unit->index;
    part->m.name = UNCONST(char, unit->name);
    part->m.elems = unit->elems;
    part->m.dtype = unit->dtype;
    part->m.grad_dtype = unit->grad_dtype;
    part->m.frozen = unit->frozen;
    part->m.quantized = unit->quantized;
    part->m.last = at + n == unit->ntensors;
    part->m.n_tensors = n;
    part->m.tensors = part->list;
    for (uint32_t i = 0; i < n; i++) {
        const struct zc_tensor *t = &unit->tensors[at + i];

        zp__tensor__init(&part->tensors[i]);
        part->tensors[i].name = UNCONST(char, t->name);
        part->tensors[i].first = t->first;
        part->tensors[i].n_dims = t->ndims;
        part->tensors[i].dims = UNCONST(uint64_t, t->dims);
        part->tensors[i].group = t->group;
        part->tensors[i].muon = t->muon;
        part->list[i] = &part->tensors[i];
    }
    return n;
}

static int next_unit(struct zc_client *c, struct zc_call *call)
{
    const struct unit_copy *copy = call->spec.copy;
    struct unit_part part;
    int rc;

    if (!copy || call->at + PART_TENSORS >= copy->unit.ntensors)
        return 0;
    call->at += PART_TENSORS;
    (void)unit_part(&part, copy->job, &copy->unit, (uint32_t)call->at);
    rc = zc_call_again(c, call, &part.m.base);
    return rc < 0 ? rc : 1;
}

static const struct zc_method method_unit_define = { .id = ZP_UNIT_DEFINE,
                                                     .next = next_unit,
                                                     .of_job = true };

int zc_unit_define(struct zc_client *c, uint64_t job, const struct zc_unit *unit, zc_done_fn *done,
                   void *arg)
{
    struct zc_call_spec spec = { .method = &method_unit_define, .done = done, .arg = arg };
    struct unit_part part;
    int rc = unit_check(c, unit);

    if (rc < 0)
        return rc;
    if (unit_part(&part, job, unit, 0) < unit->ntensors) {
        spec.copy = unit_copy(job, unit);
        if (!spec.copy)
            return zc_fail(c, -ENOMEM, "unit '%s': %m", unit->name);
    }
    spec.message = &part.m.base;
    return zc_call_start(c, &spec);
}
