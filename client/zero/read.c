/*
 * read.c - what all ranks see at once: elements of a unit, sums of numbers.
 *
 * MODEL. A read goes over the slices in rounds: in round k every rank that keeps something of it
 * brings piece k of its slice, an all-gather gives all of them to everyone, and each takes what was
 * asked for. Rounds in which no rank has anything that was asked for are left out, which every rank
 * works out alike. So a read of a whole unit moves it once, and nobody holds more than `shards`
 * pieces beside the result.
 */
#include <errno.h>
#include <string.h>

#include "base/crc.h"
#include "client/zero/engine.h"
#include "client/zero/pass/pass.h"

#define ZCZ_SUM_MAX 4096u

/* Where elements [first, first + n) and [at, at + m) overlap: *ret_first and the count. */
static uint64_t overlap(uint64_t first, uint64_t n, uint64_t at, uint64_t m, uint64_t *ret_first)
{
    uint64_t from = zb_max_u64(first, at), to = zb_min_u64(first + n, at + m);

    *ret_first = from;
    return from < to ? to - from : 0;
}

struct read {
    struct zc_zero *z;
    struct zcz_unit *u;
    enum zc_what what;
    uint64_t first, count; /* of the unit */
    float *out;
    struct zcz_buf *buf; /* one piece of every rank */
};

/* Elements [at, at + n) of this rank's slice, as fp32. */
static int read_mine(struct read *r, uint64_t at, uint64_t n, float *to)
{
    struct zc_zero *z = r->z;
    const struct zcz_store_ops *store = z->store->ops;
    struct zcz_wait w = { .what = "the store to be read" };
    float *piece;
    int rc = 0;

    while (rc == 0 && !(piece = store->piece(z->store)))
        rc = zcz_wait(z, &w);
    if (rc < 0)
        return rc;
    while ((rc = store->read(z->store, &z->op, r->u, r->what, at, n, piece)) == -EAGAIN &&
           (rc = zcz_wait(z, &w)) == 0)
        ;
    if (rc < 0)
        return zcz_fail(z, rc, "%s", z->error.text);
    rc = zcz_wait_op(z, &z->op, w.what);
    if (rc < 0)
        return zcz_fail(z, rc, "read of unit %u '%s': %s", r->u->def.index, r->u->def.name,
                        zcz_store_text(z->store));
    if (r->what == ZC_PARAM && r->u->layout.dtype == ZB_BF16)
        z->kernels->bf16_to_f32((const uint16_t *)(const void *)piece, to, n);
    else if (r->what == ZC_PARAM && r->u->layout.dtype == ZB_F16)
        z->kernels->f16_to_f32((const uint16_t *)(const void *)piece, to, n);
    else
        memcpy(to, piece, n * sizeof(*to));
    store->piece_put(z->store, piece);
    return 0;
}

/* Every rank reads the same elements, in the same rounds. */
static uint16_t read_detail(const struct read *r, uint64_t at)
{
    const uint64_t args[] = { r->what, r->first, r->count, at };

    return (uint16_t)zb_crc32c(0, args, sizeof(args));
}

/* The round of elements [at, at + n) of every slice. */
static int read_round(struct read *r, uint64_t at, uint64_t n)
{
    struct zc_zero *z = r->z;
    struct zcz_unit *u = r->u;
    float *all = r->buf->data, *mine = all + n * z->shard;
    uint64_t from, m, stored = at < u->count ? zb_min_u64(n, u->count - at) : 0;
    int rc = 0;

    memset(mine, 0, n * sizeof(*mine));
    if (overlap(r->first, r->count, u->first + at, stored, &from) > 0)
        rc = read_mine(r, at, stored, mine);
    if (rc == 0 && z->shards > 1)
        rc = zcz_all_gather(z, z->inside, ZCZ_CALL_READ, u->def.index, read_detail(r, at), mine,
                            all, n * sizeof(*all), "the other ranks' part of a read");
    for (uint32_t s = 0; s < z->shards && rc == 0; s++) {
        uint64_t slice_first = s * u->slice + at;

        m = overlap(r->first, r->count, slice_first, n, &from);
        if (m > 0)
            memcpy(r->out + (from - r->first), all + s * n + (from - slice_first),
                   m * sizeof(*all));
    }
    return rc;
}

static bool read_round_needed(const struct read *r, uint64_t at, uint64_t n)
{
    uint64_t from;

    for (uint32_t s = 0; s < r->z->shards; s++)
        if (overlap(r->first, r->count, s * r->u->slice + at, n, &from) > 0)
            return true;
    return false;
}

int zc_zero_read(struct zc_zero *z, uint32_t unit, enum zc_what what, uint64_t first,
                 uint64_t count, float *out)
{
    ZCZ_GUARD(z);
    struct read r = { .z = z, .what = what, .first = first, .count = count, .out = out };
    struct zcz_wait w = { .what = "gradients and the step, before a read" };
    int rc = zcz_enter_unit(z, unit, &r.u);
    uint64_t n;

    if (rc < 0)
        return rc;
    if (what < ZC_PARAM || what > ZC_EXP_AVG_SQ || !zk_page_has(&r.u->layout, (enum zk_what)what))
        return zcz_refuse(z, -EINVAL, "unit %u '%s' has nothing of kind %d to read", unit,
                          r.u->def.name, (int)what);
    if (!zb_range_inside(first, count, r.u->def.elems))
        return zcz_refuse(z, -EINVAL, "elements %llu to %llu of unit %u '%s', which has %llu",
                          (unsigned long long)first, (unsigned long long)(first + count), unit,
                          r.u->def.name, (unsigned long long)r.u->def.elems);
    zcz_reduce_follow(z);
    rc = zcz_turn(z, 0);
    while (rc == 0 && (!zcz_reduce_idle(z) || z->stepping))
        rc = zcz_wait(z, &w);
    if (rc < 0)
        return rc;
    n = zb_min_u64(z->store->piece_elems, r.u->slice);
    r.buf = zcz_buf_get(&z->small, n * z->shards * sizeof(*out));
    if (!r.buf)
        return zcz_fail(z, -ENOMEM, "no memory to read unit %u '%s'", unit, r.u->def.name);
    for (uint64_t at = 0; at < r.u->slice && rc == 0; at += n) {
        uint64_t m = zb_min_u64(n, r.u->slice - at);

        if (read_round_needed(&r, at, m))
            rc = read_round(&r, at, m);
    }
    if (rc == 0)
        zcz_buf_put(&z->small, r.buf); /* otherwise a collective may still write it */
    return rc;
}

int zc_zero_sum(struct zc_zero *z, double *values, uint32_t n)
{
    ZCZ_GUARD(z);
    const double *all;
    struct zcz_buf *buf;
    int rc = zcz_enter(z, true);

    if (rc < 0)
        return rc;
    if (n > ZCZ_SUM_MAX)
        return zcz_refuse(z, -EINVAL, "a sum of %u values: at most %u", n, ZCZ_SUM_MAX);
    if (n == 0)
        return 0;
    rc = zcz_share(z, values, n * sizeof(*values), ZCZ_CALL_SUM, (uint16_t)n, &buf);
    if (rc < 0)
        return rc;
    all = buf->data;
    memcpy(values, all, n * sizeof(*values));
    for (uint32_t r = 1; r < z->world; r++)
        for (uint32_t i = 0; i < n; i++)
            values[i] += all[(size_t)r * n + i];
    zcz_buf_put(&z->small, buf);
    return 0;
}
