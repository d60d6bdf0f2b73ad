/*
 * model.c - the model of a plan: a number of parameters, a shape, or the headers of files.
 *
 * FILES. Files that zctl exported describe their units. For others, units follow from the names of
 * tensors (client/zctl/files/units.c). No data is read.
 */
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "client/zctl/files/files.h"
#include "client/zctl/plan/plan.h"

/* ---- files */

/* Of parameters that files have in it; what we do not have is kept as bf16. */
static enum zb_dtype dtype_of(enum zc_st_dtype dtype)
{
    return dtype == ZC_ST_F32 ? ZB_F32 : dtype == ZC_ST_F16 ? ZB_F16 : ZB_BF16;
}

/* Units by the names of tensors, which are sorted. */
static int files_units(struct zctl_plan *p, const struct zctl_files *files)
{
    uint64_t elems = 0, by_dtype[ZB_DTYPE_END] = { 0 };
    const char *unit = NULL;
    int rc = 0;

    for (size_t i = 0; i < files->ntensors && rc == 0; i++) {
        const struct zc_st_tensor *t = files->tensors[i].t;
        size_t len = zctl_name_unit(t->name);

        if (zctl_name_is_state(t->name) || t->elems == 0)
            continue;
        if (unit && (zctl_name_unit(unit) != len || strncmp(unit, t->name, len) != 0)) {
            rc = zb_model_add(&p->model, elems, &p->z->err);
            elems = 0;
        }
        unit = t->name;
        elems += t->elems;
        by_dtype[dtype_of(t->dtype)] += t->elems;
    }
    if (rc == 0 && unit)
        rc = zb_model_add(&p->model, elems, &p->z->err);
    if (p->dtype == 0) { /* that of most elements */
        p->dtype = ZB_BF16;
        for (enum zb_dtype d = ZB_F32; d < ZB_DTYPE_END; d++)
            if (by_dtype[d] > by_dtype[p->dtype])
                p->dtype = d;
    }
    return rc;
}

static int files_manifest(struct zctl_plan *p, const char *text)
{
    struct zctl_model manifest;
    int rc = zctl_model_parse(p->z, text, &manifest);

    for (uint32_t u = 0; u < manifest.nunits && rc == 0; u++) {
        rc = zb_model_add(&p->model, manifest.units[u]->elems, &p->z->err);
        if (p->dtype == 0)
            p->dtype = (enum zb_dtype)manifest.units[u]->dtype;
    }
    zctl_model_done(&manifest);
    return rc;
}

static int model_files(struct zctl_plan *p, const char *path)
{
    char *word = (char *)(uintptr_t)path;
    const char *manifest = NULL;
    struct zctl_files files;
    int rc = zctl_files_open(p->z, &word, 1, &files);

    if (rc == 0)
        rc = zctl_files_metadata(p->z, &files, ZCTL_META_UNITS, &manifest);
    if (rc == 0)
        rc = manifest ? files_manifest(p, manifest) : files_units(p, &files);
    zctl_files_close(&files);
    return rc < 0 ? rc : zb_model_order(&p->model, &p->z->err);
}

/* ---- the three ways */

int zctl_plan_model(struct zctl_plan *p)
{
    bool params = zb_opt_given(&p->z->opts, "params"), shape = zb_opt_given(&p->z->opts, "layers");

    if (params + shape + (p->index != NULL) != 1)
        return zb_fail(&p->z->err, -EINVAL,
                       "which model? One of --params N, --layers L --width W --vocab V, or --index "
                       "FILE");
    if (p->index)
        return model_files(p, p->index);
    p->shape.split = p->optimizer == ZB_MUON;
    return params ? zb_model_params(&p->model, (uint64_t)p->params, p->units, &p->z->err)
                  : zb_model_gpt(&p->model, &p->shape, &p->z->err);
}
