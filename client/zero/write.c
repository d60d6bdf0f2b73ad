/*
 * write.c - replaces elements of a unit by the trainer's values.
 *
 * MODEL. Meanwhile nothing of the unit is held, reduced or stepped: every rank drops what it has
 * gathered of it, and tells the others. Then values are written to the store piece by piece. If a
 * piece is only partly replaced, the rest of it is read first.
 *
 *     root -1   every rank has the values, and writes its own slices
 *     root r    rank r sends them to all, one piece at a time, and each writes its own slices: the
 *               daemon takes values of a shard from its rank alone
 *
 * At the end the ranks vote, so that no rank reads what is not written yet.
 */
#include <errno.h>
#include <string.h>

#include "base/crc.h"
#include "client/zero/core/piece.h"
#include "client/zero/engine.h"
#include "client/zero/pass/pass.h"
#include "client/zero/step/step.h"

struct write {
    struct zc_zero *z;
    struct zcz_unit *u;
    enum zc_what what;
    /* the values: */
    uint64_t first, count; /* of the unit */
    enum zb_dtype dtype;
    const void *in;
};

/* Converts the values of elements [from, from + n) of the unit to fp32. */
static void write_give(const struct write *w, uint64_t from, uint64_t n, float *to)
{
    const struct zk_ops *ops = w->z->kernels;
    uint64_t at = from - w->first;

    if (w->dtype == ZB_F32)
        memcpy(to, (const float *)w->in + at, n * sizeof(*to));
    else
        (w->dtype == ZB_BF16 ? ops->bf16_to_f32 : ops->f16_to_f32)((const uint16_t *)w->in + at, to,
                                                                   n);
}

/* Reads the current elements [at, at + n) of this rank's slice. */
static int write_old(struct write *w, uint64_t at, uint64_t n, float *to)
{
    enum zc_what what = zk_page_has(&w->u->layout, (enum zk_what)w->what) ? w->what : ZC_PARAM;

    return zcz_piece_read(w->z, w->u, 0, what, at, n, to);
}

/* Writes elements [at, at + n) of this rank's slice, of which [from, from + m) of the unit have new
 * values. */
static int write_piece(struct write *w, uint64_t at, uint64_t n, uint64_t from, uint64_t m)
{
    struct zc_zero *z = w->z;
    struct zcz_wait wait = { .what = "the store to take elements" };
    uint64_t begin = w->u->first + at, inside = zb_min_u64(n, w->u->def.elems - begin);
    struct zcz_buf *buf = zcz_buf_get(&z->small, n * sizeof(float));
    float *piece;
    int rc = 0;

    if (!buf)
        return zcz_fail(z, -ENOMEM, "no memory to write unit '%s'", w->u->def.name);
    if (m < inside)
        rc = write_old(w, at, n, buf->data);
    else
        memset(buf->data, 0, n * sizeof(float));
    if (rc == 0)
        rc = zcz_piece_get(z, &piece);
    if (rc == 0) {
        write_give(w, from, m, (float *)buf->data + (from - begin));
        memcpy(piece, buf->data, n * sizeof(float));
        do
            rc = z->store->ops->set(z->store, &z->op, w->u, w->what, at, n, piece);
        while (rc == -EAGAIN && (rc = zcz_wait(z, &wait)) == 0);
        if (rc < 0)
            rc = zcz_fail(z, rc, "%s", z->error.text);
    }
    if (rc == 0) {
        rc = zcz_wait_op(z, &z->op, wait.what);
        if (rc < 0)
            rc = zcz_fail(z, rc, "write of unit %u '%s': %s", w->u->def.index, w->u->def.name,
                          zcz_store_text(z->store));
    }
    zcz_buf_put(&z->small, buf);
    return rc;
}

/* Writes this rank's slice. */
static int write_own(struct write *w)
{
    uint64_t n;
    int rc = 0;

    for (uint64_t at = 0; at < w->u->count && rc == 0; at += n) {
        uint64_t begin = w->u->first + at, from, to;

        n = zb_min_u64(w->z->store->piece_elems, w->u->count - at);
        from = zb_max_u64(w->first, begin);
        to = zb_min_u64(w->first + w->count, begin + n);
        if (from < to)
            rc = write_piece(w, at, n, from, to - from);
    }
    return rc;
}

/* One rank sends its values to all, one piece at a time. */
static int write_shown(struct write *w, uint32_t root)
{
    struct zc_zero *z = w->z;
    uint64_t n = zb_min_u64(z->store->piece_elems, w->count), m;
    struct zcz_buf *buf = zcz_buf_get(&z->small, n * sizeof(float) * z->world);
    struct write part = *w;
    int rc = 0;

    if (!buf)
        return zcz_fail(z, -ENOMEM, "no memory to write unit '%s'", w->u->def.name);
    part.dtype = ZB_F32;
    for (uint64_t at = 0; at < w->count && rc == 0; at += m) {
        float *all = buf->data, *mine;

        m = zb_min_u64(n, w->count - at);
        mine = all + m * z->rank;
        memset(mine, 0, m * sizeof(*mine));
        if (root == z->rank)
            write_give(w, w->first + at, m, mine);
        rc = zcz_all_gather(z, z->comm, ZCZ_CALL_WRITE, w->u->def.index, 0, mine, all,
                            m * sizeof(*all), "the values that a rank writes");
        part.first = w->first + at;
        part.count = m;
        part.in = all + m * root;
        if (rc == 0)
            rc = write_own(&part);
    }
    if (rc == 0)
        zcz_buf_put(&z->small, buf); /* otherwise a collective may still write it */
    return rc;
}

/* Every rank says whether it has dropped the unit; if one has not, all are refused. */
static int write_agree(struct write *w, int my_rc, int root)
{
    struct zc_zero *z = w->z;
    const uint64_t args[] = { w->u->def.index, w->what, w->first, w->count, (uint64_t)root };
    uint16_t detail = (uint16_t)zb_crc32c(0, args, sizeof(args));
    int32_t mine = my_rc;
    const int32_t *all;
    struct zcz_buf *buf;
    int rc = zcz_share(z, &mine, sizeof(mine), ZCZ_CALL_WRITE, detail, &buf);

    if (rc < 0)
        return rc;
    all = buf->data;
    rc = my_rc; /* z->error has its error message */
    for (uint32_t r = 0; r < z->world && rc == 0; r++)
        if (all[r] < 0)
            rc = zcz_refuse(z, all[r], "rank %u cannot write unit %u '%s' now: %s", r,
                            w->u->def.index, w->u->def.name,
                            all[r] == -EBUSY ? "it holds it" : "it has no values");
    zcz_buf_put(&z->small, buf);
    return rc;
}

static int write_check(struct write *w, int root)
{
    struct zc_zero *z = w->z;
    const struct zb_layout *layout = &w->u->layout;
    bool has = w->what == ZC_MASTER || (w->what > ZC_MASTER && w->what <= ZC_EXP_AVG_SQ &&
                                        zk_page_has(layout, (enum zk_what)w->what));

    if (!has)
        return zcz_refuse(z, -EINVAL, "unit %u '%s' has nothing of kind %d to write",
                          w->u->def.index, w->u->def.name, (int)w->what);
    if (root >= 0 && (uint32_t)root >= z->world)
        return zcz_refuse(z, -EINVAL, "a write by rank %d of %u", root, z->world);
    if (zcz_announced(z))
        return zcz_refuse(z, -EBUSY, "a write to unit %u '%s', and the next step is announced",
                          w->u->def.index, w->u->def.name);
    return 0;
}

int zc_zero_write_on(struct zc_zero *z, int root, uint32_t unit, enum zc_what what, uint64_t first,
                     uint64_t count, enum zc_dtype dtype, const void *in)
{
    ZCZ_GUARD(z);
    struct write w = { .z = z, .what = what, .first = first, .count = count, .in = in };
    int rc = zcz_enter_unit(z, unit, &w.u);
    bool mine = root < 0 || (uint32_t)root == z->rank;

    if (rc == 0)
        rc = write_check(&w, root);
    if (rc == 0)
        rc = zcz_elems_check(z, w.u, first, count, dtype);
    if (rc < 0 || count == 0)
        return rc;
    w.dtype = (enum zb_dtype)dtype;
    rc = zcz_elems_settle(z);
    if (rc < 0)
        return rc;
    rc = zcz_pass_forget(z, w.u);
    if (rc == 0 && mine && !in)
        rc = zcz_refuse(z, -EINVAL, "a write to unit %u '%s' of no values", unit, w.u->def.name);
    if (rc == 0 && z->pass->way != ZCZ_WAY_COMM && (rc = z->store->ops->sync(z->store)) < 0)
        rc = zcz_fail(z, rc, "%s", z->error.text);
    if (z->failed)
        return z->failed;
    rc = write_agree(&w, rc, root);
    if (rc < 0)
        return rc;
    if (root >= 0 && z->world > 1)
        rc = write_shown(&w, (uint32_t)root);
    else
        rc = write_own(&w);
    return zcz_vote(z, rc, 0, ZCZ_CALL_WRITE);
}
