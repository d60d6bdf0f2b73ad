/*
 * train_export.c - the weights at the end of a run, as a safetensors file.
 */
#include <errno.h>
#include <stdlib.h>

#include "examples/gpt/train_priv.h"

#define EXPORT_ELEMS (UINT64_C(1) << 18) /* read at a time */

/* Rank 0 writes; the other ranks only take part in reading. *told is a failure of rank 0 alone: it
 * stops writing, but continues to read with the others. */
static int export_unit(struct train *t, uint32_t unit, float *piece, struct zc_st_writer *w,
                       int *told)
{
    uint64_t elems = t->model.units[unit].elems;
    enum zc_what what = gpt_unit_frozen(t, unit) ? ZC_PARAM : ZC_MASTER;

    for (uint64_t at = 0; at < elems; at += EXPORT_ELEMS) {
        uint64_t n = elems - at < EXPORT_ELEMS ? elems - at : EXPORT_ELEMS;
        char why[sizeof(t->err->text)];
        int rc = zc_zero_read(t->zero, unit, what, at, n, piece);

        if (rc != 0)
            return gpt_engine_fail(t, rc);
        if (!w || *told != 0)
            continue;
        *told = zc_st_append(w, piece, n * sizeof(*piece), why, sizeof(why));
        if (*told != 0)
            (void)zb_fail(t->err, *told, "--export: %s", why);
    }
    return 0;
}

int gpt_export(struct train *t, int *told)
{
    float *piece = malloc(EXPORT_ELEMS * sizeof(*piece));
    struct zc_st_writer *w = NULL;
    int rc = piece ? 0 : zb_fail(t->err, -ENOMEM, "--export: %m");

    if (rc == 0 && t->comm->rank == 0)
        *told = gpt_weights_create(&w, &t->model, t->args->export, t->err);
    for (uint32_t u = 0; u < t->model.nunits && rc == 0; u++)
        rc = export_unit(t, u, piece, w, told);
    free(piece);
    if (w && rc == 0 && *told == 0) {
        char why[sizeof(t->err->text)];

        *told = zc_st_commit(w, why, sizeof(why));
        if (*told != 0)
            (void)zb_fail(t->err, *told, "--export: %s", why);
    } else {
        zc_st_discard(w);
    }
    return rc;
}
