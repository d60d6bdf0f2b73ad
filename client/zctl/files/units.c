/*
 * units.c - units for files that zctl did not write, by the names of their tensors.
 *
 * The tensors of one layer ("model.layers.12.*": equal up to and including the first number) form a
 * unit, as in most trainers. Every other tensor is a unit of its own. No data is read.
 */
#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "base/util.h"
#include "client/zctl/files/files.h"

size_t zctl_name_unit(const char *name)
{
    for (const char *at = name; *at; at += strcspn(at, ".") + (at[strcspn(at, ".")] == '.')) {
        size_t len = strcspn(at, ".");

        if (len > 0 && strspn(at, "0123456789") == len)
            return (size_t)(at - name) + len;
    }
    return strlen(name);
}

bool zctl_name_is_state(const char *name)
{
    static const char *const ends[] = { ".exp_avg", ".exp_avg_sq", ".momentum_buffer", ".sum",
                                        ZCTL_MASTER };
    size_t len = strlen(name);

    for (size_t i = 0; i < ZB_COUNT(ends); i++)
        if (len > strlen(ends[i]) && strcmp(name + len - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

/** The dtype in which a unit keeps a tensor. Unsupported ones are rejected later, by name. */
static const char *dtype_name(enum zc_st_dtype dtype)
{
    return dtype == ZC_ST_BF16 ? "bf16" : dtype == ZC_ST_F16 ? "fp16" : "fp32";
}

/** Tensors [from, to), with equal names up to `len`, as a unit. With several dtypes it is fp32. */
static json_t *unit_json(const struct zctl_files *files, size_t from, size_t to, size_t len)
{
    const char *dtype = dtype_name(files->tensors[from].t->dtype);
    json_t *tensors = json_array();
    uint64_t elems = 0;

    for (size_t i = from; i < to; i++) {
        const struct zc_st_tensor *t = files->tensors[i].t;

        if (dtype_name(t->dtype) != dtype)
            dtype = "fp32";
        if (!zb_add_fits(elems, t->elems, &elems) ||
            json_array_append_new(tensors, json_pack("{s:s, s:I, s:i}", "name", t->name, "first",
                                                     (json_int_t)(elems - t->elems), "group", 0)) <
                0) {
            json_decref(tensors);
            return NULL;
        }
    }
    return json_pack("{s:s%, s:I, s:s, s:s, s:b, s:o}", "name", files->tensors[from].t->name, len,
                     "elems", (json_int_t)elems, "dtype", dtype, "grad_dtype", "fp32", "frozen", 0,
                     "tensors", tensors);
}

int zctl_units_by_name(struct zctl *z, const struct zctl_files *files, char **ret)
{
    json_t *units = json_array();
    int rc = units ? 0 : -ENOMEM;

    *ret = NULL;
    for (size_t from = 0, to; rc == 0 && from < files->ntensors; from = to) {
        const char *name = files->tensors[from].t->name;
        size_t len = zctl_name_unit(name);

        for (to = from + 1; to < files->ntensors; to++)
            if (zctl_name_unit(files->tensors[to].t->name) != len ||
                strncmp(files->tensors[to].t->name, name, len) != 0)
                break;
        if (json_array_append_new(units, unit_json(files, from, to, len)) < 0)
            rc = -ENOMEM;
    }
    if (rc == 0)
        *ret = json_dumps(units, JSON_COMPACT);
    json_decref(units);
    return *ret ? 0 : zb_fail(&z->err, -ENOMEM, "units of %zu tensors: %m", files->ntensors);
}
