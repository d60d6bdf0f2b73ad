/*
 * clip.c - clipping by tensor: norms of tensors, the factors of a step, and the averages between
 * steps. The rule is in config/clip_rule.h.
 *
 *     exact sums of this rank's slices ---> of all ranks ---> norms ---> factors, next averages
 *
 * SUMS. The store has the sum of each tensor's squares over this rank's slices, or the gradients are
 * read back from it. Either way a sum is exact (zk_page_ingest_by()), so merged sums are the same
 * number however the units are cut. It is rounded once. So all ranks decide the same without a vote.
 * What crossed nodes in the backward pass (pass/unit_sums.c) is not exchanged again.
 *
 * EARLY. The limits follow from the averages, so they are known before the first gradient. The
 * daemon computes the same factors from the same sums as soon as a unit's gradients are complete, and
 * steps the unit early. If it does not have all slices of the unit, the ranks tell it the sums over all
 * (pass/unit_sums.c). It checks that the step has the factors.
 *
 * AVERAGES are the same on all ranks. They are stored in the job's note with each step (note.c), so
 * they belong to a step like its parameters: commits, snapshots and rollbacks have them, and a resumed
 * job gets those of the step that it continues from, with any number of ranks. A job that did not clip
 * by tensor before begins with the warm-up. A skipped step leaves them alone.
 */
#include "client/zero/step/clip.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc.h"
#include "client/zero/config/clip_rule.h"
#include "client/zero/core/piece.h"
#include "client/zero/pass/pass.h"
#include "client/zero/step/step.h"

#define SHARED_MAX 1024u /* tensors per collective */

int zcz_clip_start(struct zc_zero *z)
{
    struct zcz_steps *s = z->steps;
    size_t room = zb_max_u64(s->ntrained, 1);

    zcz_clip_close(z);
    zcz_sums_use(z, NULL);
    s->clip_since = z->applied;
    if (!zcz_clip_on(z))
        return 0;
    s->averages = calloc(room, sizeof(*s->averages));
    s->sums = calloc(room, sizeof(*s->sums));
    s->sum_bytes = calloc(room, ZK_XSUM_BYTES);
    s->values = calloc(room, sizeof(*s->values));
    return s->averages && s->sums && s->sum_bytes && s->values
               ? 0
               : zcz_refuse(z, -ENOMEM, "no memory to clip %u tensors", s->ntrained);
}

void zcz_clip_close(struct zc_zero *z)
{
    struct zcz_steps *s = z->steps;

    free(s->averages);
    free(s->sums);
    free(s->sum_bytes);
    free(s->values);
    s->averages = NULL;
    s->sums = NULL;
    s->sum_bytes = NULL;
    s->values = NULL;
}

bool zcz_clip_warm(const struct zc_zero *z)
{
    return z->applied - z->steps->clip_since < z->options.clip_tensor_warmup;
}

double zcz_clip_global(const struct zc_zero *z, double clip)
{
    switch (z->options.clip_mode) {
    case ZC_CLIP_NONE:
        return 0;
    case ZC_CLIP_TENSOR:
        return zcz_clip_warm(z) ? clip : 0;
    case ZC_CLIP_GLOBAL:
        break;
    }
    return clip;
}

int zcz_clip_agree(struct zc_zero *z)
{
    uint32_t lacks = !z->store->knows_sums, early = z->store->early;
    int rc = 0;

    z->steps->clip_nodes = false;
    if (zcz_clip_on(z) && z->near.several) {
        rc = zcz_vote_any(z, &lacks, ZCZ_CALL_START);
        if (rc == 0)
            rc = zcz_vote_any(z, &early, ZCZ_CALL_START);
        z->steps->clip_nodes = rc == 0 && !lacks && early;
    }
    zcz_clip_next_step(z);
    return rc;
}

void zcz_clip_next_step(struct zc_zero *z)
{
    zcz_sums_use(z, zcz_clip_nodes(z) ? z->steps->sums : NULL);
}

bool zcz_clip_agreed(const struct zc_zero *z)
{
    return !zcz_clip_on(z) || z->near.n <= 1 || z->steps->clip_nodes;
}

bool zcz_clip_nodes(const struct zc_zero *z)
{
    return z->steps->clip_nodes && !zcz_clip_warm(z);
}

bool zcz_clip_early(const struct zc_zero *z, double clip)
{
    return zcz_clip_global(z, clip) == 0 && zcz_clip_agreed(z);
}

/* ---- sums */

/* Adds elements [at, at + n) of this rank's slice. */
static int piece_add(struct zc_zero *z, struct zcz_unit *u, uint64_t at, uint64_t n,
                     const struct zk_by_tensor *by)
{
    uint64_t bad = 0;
    float *piece;
    int rc = zcz_piece_try(z, u, 0, ZC_GRAD, at, n, &piece);

    if (rc < 0)
        return z->store->lost ? rc : zcz_fail(z, rc, "%s", z->error.text);
    zk_sums_by_tensor(z->kernels, piece, u->first + at, n, by, &bad);
    z->store->ops->piece_put(z->store, piece);
    return 0;
}

/* Adds up this rank's slice of a unit. */
static int unit_add(struct zc_zero *z, struct zcz_unit *u, struct zk_xsum *sums)
{
    struct zk_segment *tensors = calloc(zb_max_u64(u->def.ntensors, 1), sizeof(*tensors));
    struct zk_by_tensor by = { .tensors = tensors, .sums = sums };
    int rc = tensors
                 ? 0
                 : zcz_fail(z, -ENOMEM, "no memory for the norms of %u tensors", u->def.ntensors);
    uint64_t n;

    for (uint32_t t = 0; rc == 0 && t < u->def.ntensors; t++)
        if (zcz_tensor_trained(u, t))
            tensors[by.n++] = (struct zk_segment){ .first = u->def.tensors[t].first,
                                                   .count = zcz_tensor_elems(&u->def.tensors[t]) };
    for (uint64_t at = 0; at < u->count && rc == 0; at += n) {
        n = zb_min_u64(z->store->piece_elems, u->count - at);
        rc = piece_add(z, u, at, n, &by);
    }
    free(tensors);
    return rc;
}

/* Reads the gradients of this rank's slices back from the store. */
static int sums_read(struct zc_zero *z)
{
    struct zcz_steps *s = z->steps;
    int rc = 0;

    memset(s->sums, 0, s->ntrained * sizeof(*s->sums));
    for (uint32_t i = 0; i < z->nunits && rc == 0; i++) {
        struct zcz_unit *u = &z->units[i];

        if (zcz_unit_trained(u) && zcz_reduced_any(z, i))
            rc = unit_add(z, u, s->sums + u->trained_first);
    }
    for (uint32_t i = 0; i < s->ntrained; i++)
        zk_xsum_store(&s->sums[i], s->sum_bytes + (size_t)i * ZK_XSUM_BYTES);
    return rc;
}

/* Gets the sums of this rank's slices from the store. */
static int sums_mine(struct zc_zero *z)
{
    struct zcz_wait w = { .what = "the norms of tensors" };
    struct zcz_steps *s = z->steps;
    int rc;

    if (!z->store->ops->tensor_sums)
        return sums_read(z);
    memset(s->sum_bytes, 0, (size_t)s->ntrained * ZK_XSUM_BYTES);
    while ((rc = z->store->ops->tensor_sums(z->store, &z->op, z->iterations + 1, s->ntrained,
                                            s->sum_bytes)) == -EAGAIN &&
           (rc = zcz_wait(z, &w)) == 0)
        ;
    if (rc < 0)
        return zcz_fail(z, rc, "%s", z->error.text);
    rc = zcz_wait_op(z, &z->op, w.what);
    return rc < 0 ? zcz_fail(z, rc, "norms of tensors: %s", zcz_store_text(z->store)) : 0;
}

/* Adds the sums of all ranks, of tensors [first, first + n). Groups of ranks have the same gradients,
 * so one group is enough. */
static int sums_share(struct zc_zero *z, uint32_t first, uint32_t n)
{
    struct zcz_steps *s = z->steps;
    size_t bytes = (size_t)n * ZK_XSUM_BYTES;
    const unsigned char *all;
    struct zcz_buf *buf;
    int rc = zcz_share(z, s->sum_bytes + (size_t)first * ZK_XSUM_BYTES, bytes, ZCZ_CALL_NORMS,
                       (uint16_t)n, &buf);

    if (rc < 0)
        return rc;
    all = buf->data;
    memset(s->sums + first, 0, n * sizeof(*s->sums));
    for (uint32_t r = 0; r < z->world; r++)
        for (uint32_t i = 0; i < n && r / z->shards == z->replica; i++) {
            struct zk_xsum other;

            zk_xsum_load(&other, all + r * bytes + (size_t)i * ZK_XSUM_BYTES);
            zk_xsum_merge(&s->sums[first + i], &other);
        }
    zcz_buf_put(&z->small, buf);
    return 0;
}

int zcz_clip_sums(struct zc_zero *z)
{
    uint32_t ntrained = z->steps->ntrained;
    int rc;

    if (zcz_clip_nodes(z) && zcz_sums_all(z))
        return 0; /* pass/unit_sums.c */
    rc = sums_mine(z);
    for (uint32_t at = 0, n; at < ntrained && rc == 0; at += n) {
        n = (uint32_t)zb_min_u64(SHARED_MAX, ntrained - at);
        rc = sums_share(z, at, n);
    }
    return rc;
}

/* ---- the step */

static double factor_of(const struct zc_zero_step_how *how, uint32_t tensor)
{
    return how->factors ? (double)how->factors[tensor] : 1;
}

double zcz_clip_norm(const struct zc_zero *z, const struct zc_zero_step_how *how)
{
    double sum = 0;

    for (uint32_t i = 0; i < z->steps->ntrained; i++)
        if (!how->group_of || how->group_of[i] != ZC_GROUP_NONE)
            sum += factor_of(how, i) * factor_of(how, i) * zk_xsum_value(&z->steps->sums[i]);
    return sqrt(sum);
}

double zcz_clip_apply(struct zc_zero *z, const struct zc_zero_step_how *how,
                      const struct zc_classes *classes, double scale)
{
    struct zcz_steps *s = z->steps;
    bool warm = zcz_clip_warm(z);
    double before = 0, after = 0;

    for (uint32_t i = 0; i < s->ntrained; i++) {
        /* as the daemon computes it: op/tensors.c */
        double norm = fabs(factor_of(how, i) * scale) * sqrt(zk_xsum_value(&s->sums[i]));

        s->values[i] = 1;
        if (classes && classes->class_of[i] == ZC_CLASS_NONE)
            continue;
        if (!warm)
            s->values[i] = zk_limit_factor(zcz_clip_limit(&z->options, s->averages[i]), norm);
        before += norm * norm;
        norm *= s->values[i];
        after += norm * norm;
        s->averages[i] = zcz_clip_next(&z->options, warm, s->averages[i], norm);
    }
    return before > 0 ? sqrt(after / before) : 1;
}

/* ---- to the store */

int zcz_clip_limits(struct zc_zero *z, struct zcz_op *op, uint64_t step)
{
    struct zcz_steps *s = z->steps;

    for (uint32_t i = 0; i < s->ntrained; i++)
        s->values[i] = zcz_clip_limit(&z->options, s->averages[i]);
    return z->store->ops->tensors(z->store, op, step, true, s->values, s->ntrained);
}

int zcz_clip_send(struct zc_zero *z, uint64_t step)
{
    struct zcz_wait w = { .what = "the factors of the step to be sent" };
    struct zcz_steps *s = z->steps;
    int rc;

    while ((rc = z->store->ops->tensors(z->store, &z->op, step, false, s->values, s->ntrained)) ==
               -EAGAIN &&
           (rc = zcz_wait(z, &w)) == 0)
        ;
    if (rc < 0)
        return zcz_fail(z, rc, "%s", z->error.text);
    rc = zcz_wait_op(z, &z->op, w.what);
    return rc < 0 ? zcz_fail(z, rc, "factors of the step: %s", zcz_store_text(z->store)) : 0;
}

/* ---- the block in the job's note: this, then the averages. In host byte order, as the note */

struct block {
    uint64_t since;
    uint32_t n, unused;
};

size_t zcz_clip_bytes(const struct zc_zero *z)
{
    return z->steps->averages
               ? sizeof(struct block) + z->steps->ntrained * sizeof(*z->steps->averages)
               : 0;
}

void zcz_clip_pack(const struct zc_zero *z, unsigned char *out)
{
    const struct zcz_steps *s = z->steps;
    const struct block block = { .since = s->clip_since, .n = s->ntrained };

    memcpy(out, &block, sizeof(block));
    memcpy(out + sizeof(block), s->averages, s->ntrained * sizeof(*s->averages));
}

int zcz_clip_unpack(struct zc_zero *z, const unsigned char *bytes_of, size_t bytes)
{
    struct zcz_steps *s = z->steps;
    struct block block;

    if (!s->averages)
        return 0; /* the job clips in another way from now on */
    if (bytes < sizeof(block))
        return zcz_refuse(z, -EPROTO, "the averages of norms in the job's note are cut off");
    memcpy(&block, bytes_of, sizeof(block));
    if (block.n != s->ntrained)
        return zcz_refuse(z, -EINVAL,
                          "the job's note has averages of the norms of %u tensors, and %u are "
                          "trainable",
                          block.n, s->ntrained);
    if (bytes != zcz_clip_bytes(z) || block.since > z->applied)
        return zcz_refuse(z, -EPROTO, "the averages of norms in the job's note are malformed");
    memcpy(s->averages, bytes_of + sizeof(block), s->ntrained * sizeof(*s->averages));
    for (uint32_t i = 0; i < s->ntrained; i++)
        if (!(s->averages[i] >= 0 && isfinite(s->averages[i])))
            return zcz_refuse(z, -EPROTO, "the job's note has an average norm of %g",
                              (double)s->averages[i]);
    s->clip_since = block.since;
    return 0;
}

uint64_t zcz_clip_digest(const struct zc_zero *z)
{
    const struct zcz_steps *s = z->steps;

    return s->averages
               ? zb_crc32c((uint32_t)s->clip_since, s->averages, s->ntrained * sizeof(*s->averages))
               : 0;
}
