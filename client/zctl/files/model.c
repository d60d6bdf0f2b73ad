/*
 * model.c - a job's manifest: read from the daemon, and as JSON in a file's metadata.
 *
 * The JSON has no shapes; they are taken from the headers of the files.
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/late.h"
#include "base/util.h"
#include "client/zctl/files/files.h"

static const char *const dtypes[] = { [ZC_F32] = "fp32", [ZC_BF16] = "bf16", [ZC_F16] = "fp16" };

void zctl_model_done(struct zctl_model *model)
{
    for (uint32_t i = 0; i < model->nunits; i++)
        free(model->units[i]);
    free(model->units);
    *model = (struct zctl_model){ 0 };
}

/* The optimizer that steps a tensor. One that is not trained has the moments of its unit. */
static enum zb_optimizer steps_it(enum zc_optimizer optimizer, const struct zc_unit *unit,
                                  const struct zc_tensor *t)
{
    uint64_t trained = 0, muon = 0;

    if (t->muon)
        return (enum zb_optimizer)optimizer;
    for (uint32_t i = 0; i < unit->ntensors; i++) {
        trained += unit->tensors[i].group != ZC_GROUP_FROZEN;
        muon += unit->tensors[i].muon;
    }
    return zb_unit_optimizer((enum zb_optimizer)optimizer, trained, muon);
}

const char *zctl_moment_suffix(enum zc_optimizer optimizer, const struct zc_unit *unit,
                               const struct zc_tensor *t, unsigned i)
{
    static const struct {
        const char *name, *suffix;
    } suffixes[] = {
        { "exp_avg", ".exp_avg" },
        { "exp_avg_sq", ".exp_avg_sq" },
        { "momentum_buffer", ".momentum_buffer" },
        { "sum", ".sum" },
    };
    const char *name = zb_moment_name(steps_it(optimizer, unit, t), i);

    for (size_t k = 0; name && k < ZB_COUNT(suffixes); k++)
        if (strcmp(name, suffixes[k].name) == 0)
            return suffixes[k].suffix;
    return NULL;
}

static int model_units(struct zctl *z, struct zctl_model *model, size_t n)
{
    model->units = calloc(n + 1, sizeof(model->units[0]));
    return model->units ? 0 : zb_fail(&z->err, -ENOMEM, "%zu units: %m", n);
}

int zctl_model_read(struct zctl *z, const struct zc_reader *reader, struct zctl_model *ret)
{
    int rc;

    *ret = (struct zctl_model){ .iterations = reader->iterations,
                                .optimizer = reader->optimizer,
                                .moments = reader->moments,
                                .applied = reader->applied,
                                .groups = reader->groups };
    rc = model_units(z, ret, reader->units);
    while (rc == 0 && ret->nunits < reader->units) {
        rc = zctl_failed(
            z, zc_reader_unit_wait(z->client, reader->id, ret->nunits, &ret->units[ret->nunits]));
        ret->nunits += rc == 0;
    }
    return rc;
}

int zctl_tensor_elems(struct zctl *z, const struct zc_unit *unit, const struct zc_tensor *t,
                      uint64_t *ret)
{
    uint64_t elems = 1;

    for (uint32_t i = 0; i < t->ndims; i++)
        if (!zb_mul_fits(elems, t->dims[i], &elems))
            return zb_fail(&z->err, -EINVAL, "the shape of tensor '%s' overflows", t->name);
    if (!zb_range_inside(t->first, elems, unit->elems))
        return zb_fail(&z->err, -EINVAL,
                       "tensor '%s' has %llu elements, and does not fit into unit '%s'", t->name,
                       (unsigned long long)elems, unit->name);
    *ret = elems;
    return 0;
}

/* ---- to JSON */

static json_t *unit_json(const struct zc_unit *unit)
{
    json_t *tensors = json_array();

    for (uint32_t i = 0; i < unit->ntensors; i++) {
        const struct zc_tensor *t = &unit->tensors[i];

        if (json_array_append_new(tensors,
                                  json_pack("{s:s, s:I, s:I, s:o*}", "name", t->name, "first",
                                            (json_int_t)t->first, "group", (json_int_t)t->group,
                                            "muon", t->muon ? json_true() : NULL)) < 0) {
            json_decref(tensors);
            return NULL;
        }
    }
    return json_pack("{s:s, s:I, s:s, s:s, s:b, s:o*, s:o}", "name", unit->name, "elems",
                     (json_int_t)unit->elems, "dtype", dtypes[unit->dtype], "grad_dtype",
                     dtypes[unit->frozen ? ZC_F32 : unit->grad_dtype], "frozen", (int)unit->frozen,
                     "quantized", unit->quantized ? json_true() : NULL, "tensors", tensors);
}

char *zctl_model_text(const struct zctl_model *model)
{
    json_t *units = json_array();
    char *text = NULL;
    bool whole = units != NULL;

    for (uint32_t i = 0; whole && i < model->nunits; i++)
        whole = json_array_append_new(units, unit_json(model->units[i])) == 0;
    if (whole)
        text = json_dumps(units, JSON_COMPACT);
    json_decref(units);
    return text;
}

/* ---- from JSON, which is not trusted */

static int bad(struct zctl *z, const char *what)
{
    return zb_fail(&z->err, -EBADMSG, "%s is not what zctl writes: %s", ZCTL_META_UNITS, what);
}

/** A number that is not negative. */
static bool number(const json_t *value, uint64_t *ret)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *ret = (uint64_t)json_integer_value(value);
    return true;
}

static bool dtype(const json_t *value, enum zc_dtype *ret)
{
    const char *name = json_string_value(value);

    for (unsigned i = ZC_F32; name && i < ZB_COUNT(dtypes); i++)
        if (strcmp(name, dtypes[i]) == 0) {
            *ret = (enum zc_dtype)i;
            return true;
        }
    return false;
}

/** Copies a string to *at, and advances *at past it. NULL: the value is not a string. */
static const char *text_copy(const json_t *value, char **at)
{
    const char *text = json_string_value(value), *copy = *at;
    size_t bytes;

    if (!text)
        return NULL;
    bytes = strlen(text) + 1;
    memcpy(*at, text, bytes);
    *at += bytes;
    return copy;
}

/** Allocates a unit, its tensors, and room for its text, in one block. */
static struct zc_unit *unit_new(const json_t *value, struct zc_tensor **ret_tensors,
                                char **ret_text)
{
    const json_t *tensors = json_object_get(value, "tensors");
    size_t n = json_array_size(tensors);
    size_t bytes = json_string_length(json_object_get(value, "name")) + 1;
    struct zc_unit *unit;

    for (size_t i = 0; i < n; i++)
        bytes += json_string_length(json_object_get(json_array_get(tensors, i), "name")) + 1;
    unit = calloc(1, sizeof(*unit) + n * sizeof(struct zc_tensor) + bytes);
    if (!unit)
        return NULL;
    *ret_tensors = (struct zc_tensor *)(unit + 1);
    *ret_text = (char *)(*ret_tensors + n);
    unit->tensors = *ret_tensors;
    unit->ntensors = (uint32_t)n;
    return unit;
}

static int unit_parse(struct zctl *z, const json_t *value, uint32_t index, struct zc_unit **ret)
{
    const json_t *list = json_object_get(value, "tensors"), *frozen, *quantized;
    struct zc_tensor *tensors;
    struct zc_unit *unit;
    char *text;

    if (!json_is_array(list) || json_array_size(list) > UINT32_MAX)
        return bad(z, "a unit without tensors");
    unit = unit_new(value, &tensors, &text);
    if (!unit)
        return zb_fail(&z->err, -ENOMEM, "a unit: %m");
    *ret = unit;
    unit->index = index;
    unit->name = text_copy(json_object_get(value, "name"), &text);
    frozen = json_object_get(value, "frozen");
    unit->frozen = json_is_true(frozen);
    if (!unit->name || !json_is_boolean(frozen) ||
        !number(json_object_get(value, "elems"), &unit->elems) ||
        !dtype(json_object_get(value, "dtype"), &unit->dtype) ||
        !dtype(json_object_get(value, "grad_dtype"), &unit->grad_dtype))
        return bad(z, "a unit lacks its name, elems, dtype, grad_dtype or frozen");
    quantized = json_object_get(value, "quantized");
    unit->quantized = json_is_true(quantized);
    if ((quantized && !json_is_boolean(quantized)) || (unit->quantized && !unit->frozen))
        return zb_fail(&z->err, -EBADMSG,
                       "%s[%u].quantized is %s: true or false, and true only where frozen is",
                       ZCTL_META_UNITS, index,
                       unit->quantized ? "true, and the unit is not frozen" : "not a boolean");
    for (uint32_t i = 0; i < unit->ntensors; i++) {
        const json_t *t = json_array_get(list, i);
        uint64_t group;

        tensors[i].name = text_copy(json_object_get(t, "name"), &text);
        if (!tensors[i].name || !number(json_object_get(t, "first"), &tensors[i].first) ||
            !number(json_object_get(t, "group"), &group) || group > ZC_GROUP_FROZEN)
            return bad(z, "a tensor lacks its name, first or group");
        tensors[i].group = (uint32_t)group;
        tensors[i].muon = json_is_true(json_object_get(t, "muon"));
    }
    return 0;
}

int zctl_model_parse(struct zctl *z, const char *text, struct zctl_model *ret)
{
    json_error_t why;
    json_t *units = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    size_t n = json_array_size(units);
    int rc;

    *ret = (struct zctl_model){ 0 };
    if (!units)
        return bad(z, why.text);
    rc = !json_is_array(units) || n < 1 || n > UINT32_MAX ? bad(z, "no units") : 0;
    if (rc == 0)
        rc = model_units(z, ret, n);
    while (rc == 0 && ret->nunits < n) {
        uint32_t i = ret->nunits++; /* counted first, so that its block is freed in any case */

        rc = unit_parse(z, json_array_get(units, i), i, &ret->units[i]);
    }
    json_decref(units);
    return rc;
}
