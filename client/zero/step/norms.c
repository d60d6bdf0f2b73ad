/*
 * norms.c - sums of squares, maxima, and counts of non-finite values of reduced gradients, tensor
 * by tensor.
 *
 * MODEL. When every gradient has reached the store, each rank reads the gradients of its slices
 * back, piece by piece, and sums up what belongs to each tensor. Then the ranks exchange their sums
 * and add them in rank order, so that all have the same bits. Squares are added in fp64, in runs
 * that end at a tensor's end and at a block of the unit. So the length of a piece does not change
 * the result.
 *
 * The result is kept until a gradient changes. So if norms are asked for, and the step needs them,
 * gradients are read once.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/zero/core/piece.h"
#include "client/zero/pass/pass.h"
#include "client/zero/step/norms.h"
#include "client/zero/step/step.h"

#define SHARED_MAX 1024u /* tensors per collective */

/* Adds consecutive elements. */
static void run_add(const struct zk_ops *ops, const float *x, uint64_t n, struct zc_zero_norm *ret)
{
    uint64_t bad = 0;
    double squares = ops->sumsq(x, n, &bad);
    float most = ret->most;

    for (uint64_t i = 0; i < n; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    ret->most = most;
    ret->nonfinite += bad;
    if (bad == 0)
        ret->sum_of_squares += squares;
}

/* Adds those of elements [first, first + n) of a unit that belong to this tensor. */
static void tensor_add(const struct zk_ops *ops, const struct zc_tensor *t, uint64_t first,
                       uint64_t n, const float *x, struct zc_zero_norm *ret)
{
    uint64_t from = zb_max_u64(first, t->first);
    uint64_t to = zb_min_u64(first + n, t->first + zcz_tensor_elems(t));

    while (from < to) {
        uint64_t end = zb_min_u64(to, (from / ZB_BLOCK_ELEMS + 1) * ZB_BLOCK_ELEMS);

        run_add(ops, x + (from - first), end - from, ret);
        from = end;
    }
}

/* Adds elements [at, at + n) of this rank's slice. */
static int piece_add(struct zc_zero *z, struct zcz_unit *u, uint64_t at, uint64_t n,
                     struct zc_zero_norm *of_unit)
{
    float *piece;
    int rc = zcz_piece_try(z, u, 0, ZC_GRAD, at, n, &piece);

    if (rc < 0)
        return z->store->lost ? rc : zcz_fail(z, rc, "%s", z->error.text);
    for (uint32_t t = 0; t < u->def.ntensors; t++)
        if (zcz_tensor_trained(u, t))
            tensor_add(z->kernels, &u->def.tensors[t], u->first + at, n, piece, of_unit++);
    z->store->ops->piece_put(z->store, piece);
    return 0;
}

/* Adds up this rank's slices. */
static int norms_add(struct zc_zero *z, struct zc_zero_norm *norms)
{
    int rc = 0;

    for (uint32_t i = 0; i < z->nunits && rc == 0; i++) {
        struct zcz_unit *u = &z->units[i];
        uint64_t n;

        for (uint64_t at = 0; at < u->count && !u->def.frozen && zcz_reduced_any(z, i) && rc == 0;
             at += n) {
            n = zb_min_u64(z->store->piece_elems, u->count - at);
            rc = piece_add(z, u, at, n, norms);
        }
        norms += u->ntrained;
    }
    return rc;
}

/* The norms of this rank's slices; NaN if the daemon is lost. */
static int norms_mine(struct zc_zero *z, struct zc_zero_norm *norms)
{
    int rc = z->store->lost ? 0 : norms_add(z, norms);

    if (z->failed || !z->store->lost)
        return rc;
    zcz_forgive(z);
    for (uint32_t i = 0; i < z->steps->ntrained; i++)
        norms[i] = (struct zc_zero_norm){ .sum_of_squares = (double)NAN, .nonfinite = 1 };
    return 0;
}

/* Adds the results of all ranks. Groups of ranks have the same gradients, so one group is
 * enough. */
static int norms_share(struct zc_zero *z, struct zc_zero_norm *norms, uint32_t n)
{
    const struct zc_zero_norm *all;
    struct zcz_buf *buf;
    int rc = zcz_share(z, norms, n * sizeof(*norms), ZCZ_CALL_NORMS, (uint16_t)n, &buf);

    if (rc < 0)
        return rc;
    all = buf->data;
    memset(norms, 0, n * sizeof(*norms));
    for (uint32_t r = 0; r < z->world; r++)
        for (uint32_t i = 0; i < n && r / z->shards == z->replica; i++) {
            const struct zc_zero_norm *x = &all[(size_t)r * n + i];

            norms[i].sum_of_squares += x->sum_of_squares;
            norms[i].most = x->most > norms[i].most ? x->most : norms[i].most;
            norms[i].nonfinite += x->nonfinite;
        }
    zcz_buf_put(&z->small, buf);
    return 0;
}

/* again: no collective for these norms has been made, so an interrupted call may be repeated. */
static int norms_settle(struct zc_zero *z, bool again)
{
    struct zcz_wait w = { .what = "gradients to reach the store", .again = again };
    int rc = zcz_micro_settle(z);

    if (rc < 0)
        return rc;
    zcz_reduce_follow(z);
    rc = zcz_turn(z, 0);
    while (rc == 0 && (!zcz_reduce_idle(z) || !zcz_steps_idle(z)))
        rc = zcz_wait(z, &w);
    return rc;
}

int zcz_norms(struct zc_zero *z, const struct zc_zero_norm **ret)
{
    struct zcz_steps *steps = z->steps;
    int rc = norms_settle(z, false);

    if (rc < 0)
        return rc;
    if (!steps->norms)
        steps->norms = calloc(zb_max_u64(steps->ntrained, 1), sizeof(*steps->norms));
    if (!steps->norms)
        return zcz_fail(z, -ENOMEM, "no memory for the norms of %u tensors", steps->ntrained);
    *ret = steps->norms;
    if (steps->norms_at == zcz_reduced_changes(z))
        return 0;
    memset(steps->norms, 0, steps->ntrained * sizeof(*steps->norms));
    rc = norms_mine(z, steps->norms);
    for (uint32_t at = 0, n; at < steps->ntrained && rc == 0; at += n) {
        n = (uint32_t)zb_min_u64(SHARED_MAX, steps->ntrained - at);
        rc = norms_share(z, steps->norms + at, n);
    }
    if (rc == 0)
        steps->norms_at = zcz_reduced_changes(z);
    return rc;
}

void zcz_norms_close(struct zc_zero *z)
{
    free(z->steps->norms);
}

/* Some rank's daemon was lost, and its gradients are, too: attaches again, unless the trainer holds
 * a unit. */
static int norms_lost(struct zc_zero *z)
{
    uint32_t lost = z->store->lost;
    int rc = z->options.reconnect_ms > 0 ? zcz_vote_any(z, &lost, ZCZ_CALL_NORMS) : 0;

    for (uint32_t i = 0; i < z->nunits && lost; i++)
        lost = z->units[i].pass->holds == 0;
    return rc == 0 && lost ? z->again(z) : rc;
}

static int norms_enter(struct zc_zero *z)
{
    int rc = zcz_enter(z, true);

    if (rc < 0)
        return rc;
    if (zcz_announced(z))
        return zcz_refuse(
            z, -EBUSY, "norms of tensors, and the step is announced: its gradients may be in use");
    rc = norms_settle(z, true);
    return rc < 0 ? rc : norms_lost(z);
}

int zc_zero_norms(struct zc_zero *z, struct zc_zero_norm *ret, uint32_t n)
{
    ZCZ_GUARD(z);
    const struct zc_zero_norm *norms;
    int rc = norms_enter(z);

    if (rc < 0)
        return rc;
    if (n != z->steps->ntrained)
        return zcz_refuse(z, -EINVAL, "norms of %u tensors, and %u are trainable", n,
                          z->steps->ntrained);
    rc = zcz_norms(z, &norms);
    if (rc == 0 && n > 0)
        memcpy(ret, norms, n * sizeof(*ret));
    return rc;
}

int zc_zero_norm(struct zc_zero *z, double *ret)
{
    ZCZ_GUARD(z);
    const struct zc_zero_norm *norms;
    uint64_t nonfinite = 0;
    double sum = 0;
    int rc = norms_enter(z);

    if (rc == 0)
        rc = zcz_norms(z, &norms);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < z->steps->ntrained; i++) {
        sum += norms[i].sum_of_squares;
        nonfinite += norms[i].nonfinite;
    }
    *ret = nonfinite > 0 ? (double)NAN : sqrt(sum);
    return 0;
}
