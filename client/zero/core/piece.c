/*
 * piece.c - blocking access to pieces of the store.
 */
#include "client/zero/core/piece.h"

#include <errno.h>
#include <string.h>

#include "client/zero/core/fail.h"
#include "client/zero/core/store.h"
#include "client/zero/core/turn.h"

int zcz_piece_get(struct zc_zero *z, float **ret)
{
    struct zcz_wait w = { .what = "room for a piece of the store" };
    int rc = 0;

    while (rc == 0 && !(*ret = z->store->ops->piece(z->store)))
        rc = zcz_wait(z, &w);
    return rc;
}

int zcz_piece_try(struct zc_zero *z, struct zcz_unit *u, uint64_t name, enum zc_what what,
                  uint64_t at, uint64_t n, float **ret)
{
    const struct zcz_store_ops *store = z->store->ops;
    struct zcz_wait w = { .what = "the store to be read" };
    int rc = zcz_piece_get(z, ret);

    if (rc < 0)
        return rc;
    while ((rc = name ? store->read_named(z->store, &z->op, name, what, at, n, *ret)
                      : store->read(z->store, &z->op, u, what, at, n, *ret)) == -EAGAIN &&
           (rc = zcz_wait(z, &w)) == 0)
        ;
    if (rc < 0)
        return rc;
    rc = zcz_wait_op(z, &z->op, w.what);
    if (z->failed)
        return z->failed;
    return rc < 0 ? zcz_refuse(z, rc, "read of unit %u '%s': %s", u->def.index, u->def.name,
                               zcz_store_text(z->store))
                  : 0;
}

int zcz_piece_load(struct zc_zero *z, struct zcz_unit *u, uint64_t name, enum zc_what what,
                   uint64_t at, uint64_t n, float **ret)
{
    int rc = zcz_piece_try(z, u, name, what, at, n, ret);

    return rc < 0 ? zcz_fail(z, rc, "%s", z->error.text) : 0;
}

int zcz_piece_read(struct zc_zero *z, struct zcz_unit *u, uint64_t name, enum zc_what what,
                   uint64_t at, uint64_t n, float *to)
{
    float *piece;
    int rc = zcz_piece_load(z, u, name, what, at, n, &piece);

    if (rc < 0)
        return rc;
    if (what == ZC_PARAM && u->layout.dtype == ZB_BF16)
        z->kernels->bf16_to_f32((const uint16_t *)(const void *)piece, to, n);
    else if (what == ZC_PARAM && u->layout.dtype == ZB_F16)
        z->kernels->f16_to_f32((const uint16_t *)(const void *)piece, to, n);
    else
        memcpy(to, piece, n * sizeof(*to));
    z->store->ops->piece_put(z->store, piece);
    return 0;
}
