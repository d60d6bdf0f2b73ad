/*
 * read.c - collective reads: elements of a unit, sums of numbers.
 *
 * MODEL. A read goes over the slices in rounds. In round k every rank that keeps a requested part
 * brings piece k of its slice, an all-gather gives all pieces to all ranks, and each copies what
 * was asked for. Rounds in which no rank has a requested element are left out; every rank computes
 * this in the same way. So a read of a whole unit moves it once, and no rank holds more than
 * `shards` pieces in addition to the result.
 */
#include <errno.h>
#include <string.h>

#include "base/crc.h"
#include "client/zero/core/piece.h"
#include "client/zero/engine.h"
#include "client/zero/pass/pass.h"
#include "client/zero/step/step.h"

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
    enum zc_dtype dtype;
    void *out;           /* NULL: only another rank gets the result */
    struct zcz_buf *buf; /* one piece of each rank */
};

/* Copies the requested elements among [at, at + n) of the unit. */
static void read_take(const struct read *r, uint64_t at, uint64_t n, const float *values)
{
    const struct zk_ops *ops = r->z->kernels;
    uint64_t from, m = overlap(r->first, r->count, at, n, &from);
    const float *in = values + (from - at);

    if (m == 0 || !r->out)
        return;
    if (r->dtype == ZC_F32)
        memcpy((float *)r->out + (from - r->first), in, m * sizeof(*in));
    else
        (r->dtype == ZC_BF16 ? ops->f32_to_bf16
                             : ops->f32_to_f16)(in, (uint16_t *)r->out + (from - r->first), m);
}

/* A detail for the collective's name: every rank must read the same elements, in the same
 * rounds. */
static uint16_t read_detail(const struct read *r, uint64_t at)
{
    const uint64_t args[] = { r->what, r->first, r->count, at };

    return (uint16_t)zb_crc32c(0, args, sizeof(args));
}

/* Reads elements [at, at + n) of every slice. */
static int read_round(struct read *r, uint64_t at, uint64_t n)
{
    struct zc_zero *z = r->z;
    struct zcz_unit *u = r->u;
    float *all = r->buf->data, *mine = all + n * z->shard;
    uint64_t from, stored = at < u->count ? zb_min_u64(n, u->count - at) : 0;
    int rc = 0;

    memset(mine, 0, n * sizeof(*mine));
    if (overlap(r->first, r->count, u->first + at, stored, &from) > 0)
        rc = zcz_piece_read(z, u, 0, r->what, at, stored, mine);
    if (rc == 0 && z->shards > 1)
        rc = zcz_all_gather(z, z->inside, ZCZ_CALL_READ, u->def.index, read_detail(r, at), mine,
                            all, n * sizeof(*all), "the other ranks' part of a read");
    for (uint32_t s = 0; s < z->shards && rc == 0; s++)
        read_take(r, s * u->slice + at, n, all + s * n);
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

static int read_rounds(struct read *r)
{
    uint64_t n = zb_min_u64(r->z->store->piece_elems, r->u->slice);
    int rc = 0;

    for (uint64_t at = 0; at < r->u->slice && rc == 0; at += n) {
        uint64_t m = zb_min_u64(n, r->u->slice - at);

        if (read_round_needed(r, at, m))
            rc = read_round(r, at, m);
    }
    return rc;
}

/* Reads the slices of all ranks on this rank alone. */
static int read_alone(struct read *r)
{
    struct zc_zero *z = r->z;
    struct zcz_unit *u = r->u;
    int rc = 0;

    for (uint32_t s = 0; s < z->shards && rc == 0; s++) {
        uint64_t slice, first, count, from, n;

        zb_slice(u->def.elems, z->shards, s, &slice, &first, &count);
        for (uint64_t at = 0; at < count && rc == 0; at += n) {
            n = zb_min_u64(z->store->piece_elems, count - at);
            if (overlap(r->first, r->count, first + at, n, &from) == 0)
                continue;
            rc = zcz_piece_read(z, u, z->pass->names[(size_t)u->def.index * z->shards + s], r->what,
                                at, n, r->buf->data);
            if (rc == 0)
                read_take(r, first + at, n, r->buf->data);
        }
    }
    return rc;
}

/* Checks that the store has the gradient, or will have it. */
static int read_grad_check(struct zc_zero *z, const struct zcz_unit *u)
{
    if (zcz_announced(z))
        return zcz_refuse(z, -EBUSY, "the gradient of unit %u '%s': its step is announced",
                          u->def.index, u->def.name);
    if (!zcz_unit_trained(u))
        return zcz_refuse(z, -EINVAL, "unit %u '%s' is frozen: it has no gradient", u->def.index,
                          u->def.name);
    if (!zcz_reduced_there(z, u))
        return zcz_refuse(z, -EBUSY, "unit %u '%s' has no reduced gradient of step %llu yet",
                          u->def.index, u->def.name, (unsigned long long)z->iterations + 1);
    return 0;
}

int zcz_elems_check(struct zc_zero *z, const struct zcz_unit *u, uint64_t first, uint64_t count,
                    enum zc_dtype dtype)
{
    if (!zb_range_inside(first, count, u->def.elems))
        return zcz_refuse(z, -EINVAL, "elements %llu to %llu of unit %u '%s', which has %llu",
                          (unsigned long long)first, (unsigned long long)(first + count),
                          u->def.index, u->def.name, (unsigned long long)u->def.elems);
    if (zb_dtype_bytes((enum zb_dtype)dtype) == 0)
        return zcz_refuse(z, -EINVAL, "elements of dtype number %d", (int)dtype);
    return 0;
}

int zcz_elems_settle(struct zc_zero *z)
{
    struct zcz_wait w = { .what = "gradients and the step", .again = true };
    int rc;

    zcz_reduce_follow(z);
    rc = zcz_turn(z, 0);
    while (rc == 0 && (!zcz_reduce_idle(z) || z->stepping))
        rc = zcz_wait(z, &w);
    return rc;
}

static int read_all(struct read *r, bool alone)
{
    struct zc_zero *z = r->z;
    uint64_t n = zb_min_u64(z->store->piece_elems, r->u->slice);
    int rc;

    r->buf = zcz_buf_get(&z->small, n * (alone ? 1 : z->shards) * sizeof(float));
    if (!r->buf)
        return zcz_fail(z, -ENOMEM, "no memory to read unit %u '%s'", r->u->def.index,
                        r->u->def.name);
    rc = alone ? read_alone(r) : read_rounds(r);
    if (rc == 0)
        zcz_buf_put(&z->small, r->buf); /* otherwise a collective may still write it */
    return rc;
}

int zc_zero_read_on(struct zc_zero *z, int root, uint32_t unit, enum zc_what what, uint64_t first,
                    uint64_t count, enum zc_dtype dtype, void *out)
{
    ZCZ_GUARD(z);
    struct read r = { .z = z, .what = what, .first = first, .count = count, .dtype = dtype };
    int rc = zcz_enter_unit(z, unit, &r.u);
    bool mine = root < 0 || (uint32_t)root == z->rank, alone;

    if (rc < 0)
        return rc;
    if (what < ZC_PARAM || what > ZC_GRAD || !zk_page_has(&r.u->layout, (enum zk_what)what))
        return zcz_refuse(z, -EINVAL, "unit %u '%s' has nothing of kind %d to read", unit,
                          r.u->def.name, (int)what);
    if (root >= 0 && (uint32_t)root >= z->world)
        return zcz_refuse(z, -EINVAL, "a read on rank %d of %u", root, z->world);
    rc = zcz_elems_check(z, r.u, first, count, dtype);
    alone = z->options.gather_alone && z->pass->way == ZCZ_WAY_HOST && root >= 0 && what != ZC_GRAD;
    if (rc < 0 || (alone && !mine))
        return rc;
    if (what == ZC_GRAD)
        rc = zcz_micro_settle(z);
    if (rc == 0 && what == ZC_GRAD)
        rc = read_grad_check(z, r.u);
    if (rc == 0)
        rc = zcz_elems_settle(z);
    if (rc < 0)
        return rc;
    r.out = mine ? out : NULL;
    return read_all(&r, alone);
}

int zc_zero_read(struct zc_zero *z, uint32_t unit, enum zc_what what, uint64_t first,
                 uint64_t count, float *out)
{
    ZCZ_GUARD(z);

    if (what == ZC_GRAD) {
        struct zcz_unit *u;
        int rc = zcz_enter_unit(z, unit, &u);

        return rc < 0 ? rc
                      : zcz_refuse(z, -EINVAL,
                                   "unit %u '%s' has nothing of kind %d to read: gradients are "
                                   "read by zc_zero_read_on()",
                                   unit, u->def.name, (int)what);
    }
    return zc_zero_read_on(z, -1, unit, what, first, count, ZC_F32, out);
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
