/*
 * store_local.c - slices in this process, stepped by the kernels in the caller's thread: the
 * baseline, which all other stores must match bit for bit.
 *
 * MODEL. A slice is one page (kernels/zk_page.h) whose planes are in one allocation. If this rank
 * has a plane whole (stages 1 and 2), the slice is a part of that plane. Reads, writes and pushes
 * name parts of a slice. Every call has finished when it returns, so nothing is ever pending, and
 * one piece is enough. Nothing outlives the process: there is no attach and no commit, and the
 * engine calls neither.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "client/zero/core/zero.h"
#include "client/zero/store/store_own.h"
#include "client/zero/store/stores.h"
#include "kernels/ortho.h"

struct slice {
    unsigned char *planes[ZB_PLANES]; /* in `memory`; NULL if the layout has none */
    unsigned char *memory;
    struct zk_xsum sum; /* of the current gradient */
    uint64_t nonfinite;
};

struct local {
    struct zcz_own own;
    struct slice *slices; /* by unit */
    uint32_t nslices;
    uint64_t bytes;
    unsigned char *muon; /* the matrices of a unit, then scratch memory; NULL: another optimizer */
    uint64_t matrices_bytes;
};

static struct local *local_of(struct zcz_store *s)
{
    return zb_container_of(s, struct local, own.base);
}

static int slice_full(struct local *l, const struct zcz_unit *u, uint64_t bytes)
{
    return zcz_refuse(l->own.base.z, -ENOMEM, "no memory for unit %u '%s': %llu bytes",
                      u->def.index, u->def.name, (unsigned long long)bytes);
}

/* Uses a plane that this rank has whole, of which the slice is a part. */
static int slice_whole(struct local *l, struct zcz_unit *u, enum zb_plane plane,
                       struct zcz_pool *pool, struct slice *slice)
{
    const struct zc_zero *z = l->own.base.z;
    uint64_t bytes = zb_blocks_bytes(u->layout.block_bytes[plane], u->slice);

    if (bytes == 0)
        return 0;
    u->whole[plane] = zcz_buf_get(pool, bytes * z->shards);
    if (!u->whole[plane])
        return slice_full(l, u, bytes * z->shards);
    slice->planes[plane] = (unsigned char *)u->whole[plane]->data + bytes * z->shard;
    return 0;
}

static int slice_make(struct local *l, struct zcz_unit *u, struct slice *slice)
{
    struct zc_zero *z = l->own.base.z;
    uint64_t bytes = 0;
    int rc = 0;

    if (zcz_whole_in_store(z, ZB_PARAM))
        rc = slice_whole(l, u, ZB_PARAM, &z->whole_param, slice);
    if (rc == 0 && zcz_whole_in_store(z, ZB_GRAD))
        rc = slice_whole(l, u, ZB_GRAD, &z->whole_grad, slice);
    for (int p = 0; p < ZB_PLANES && rc == 0; p++)
        if (!slice->planes[p])
            bytes += zb_page_bytes(u->layout.block_bytes[p], u->count);
    if (rc < 0 || bytes == 0)
        return rc;
    slice->memory = aligned_alloc(ZB_PAGE_ALIGN, bytes);
    if (!slice->memory)
        return slice_full(l, u, bytes);
    l->bytes += bytes;
    bytes = 0;
    for (int p = 0; p < ZB_PLANES; p++) {
        if (u->layout.block_bytes[p] == 0 || slice->planes[p])
            continue;
        slice->planes[p] = slice->memory + bytes;
        bytes += zb_page_bytes(u->layout.block_bytes[p], u->count);
    }
    return 0;
}

/* Memory for the matrices of any unit, and for the scratch of any matrix. */
static int muon_make(struct local *l)
{
    struct zc_zero *z = l->own.base.z;
    uint64_t scratch = 0, bytes;

    for (uint32_t i = 0; i < z->nunits; i++) {
        const struct zc_unit *unit = &z->units[i].def;

        bytes = 0;
        for (uint32_t t = 0; t < unit->ntensors; t++) {
            if (!unit->tensors[t].muon)
                continue;
            bytes += zb_matrix_bytes(zcz_tensor_elems(&unit->tensors[t]));
            scratch = zb_max_u64(
                scratch, zb_ortho_bytes(unit->tensors[t].dims[0], unit->tensors[t].dims[1]));
        }
        l->matrices_bytes = zb_max_u64(l->matrices_bytes, bytes);
    }
    bytes = zb_round_up(l->matrices_bytes + scratch, ZB_PAGE_ALIGN);
    l->muon = bytes > 0 ? aligned_alloc(ZB_PAGE_ALIGN, bytes) : NULL;
    l->bytes += bytes;
    return bytes == 0 || l->muon
               ? 0
               : zcz_refuse(z, -ENOMEM, "no memory for Muon's matrices: %llu bytes",
                            (unsigned long long)bytes);
}

static int local_join(struct zcz_store *s)
{
    struct local *l = local_of(s);
    struct zc_zero *z = s->z;
    int rc = 0;

    l->slices = calloc(z->nunits, sizeof(*l->slices));
    if (!l->slices)
        return zcz_refuse(z, -ENOMEM, "no memory for %u units", z->nunits);
    l->nslices = z->nunits;
    for (uint32_t i = 0; i < z->nunits && rc == 0; i++)
        rc = slice_make(l, &z->units[i], &l->slices[i]);
    if (rc == 0 && z->options.optimizer == ZC_MUON)
        rc = muon_make(l);
    return rc < 0 ? rc : zcz_own_join(s);
}

/* Returns elements [first, first + count) of a slice, as a page. */
static struct zk_page local_page(struct local *l, const struct zcz_unit *u, uint64_t first,
                                 uint64_t count)
{
    const struct slice *slice = &l->slices[u->def.index];
    struct zk_page page = { .first = u->first + first, .count = count };
    void **planes[ZB_PLANES] = {
        [ZB_PARAM] = &page.param, [ZB_GRAD] = &page.grad, [ZB_STATE] = &page.state
    };

    assert(zb_range_inside(first, count, u->count) && first % ZB_BLOCK_ELEMS == 0);
    for (int p = 0; p < ZB_PLANES; p++)
        if (slice->planes[p])
            *planes[p] = slice->planes[p] + zb_blocks_bytes(u->layout.block_bytes[p], first);
    return page;
}

static int local_write(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, uint64_t first,
                       uint64_t count, float *piece)
{
    struct zk_page page = local_page(local_of(s), u, first, count);

    (void)op;
    zk_page_init(s->z->kernels, &u->layout, &page, piece);
    zcz_own_piece_put(s, piece);
    return 0;
}

static int local_set(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, enum zc_what what,
                     uint64_t first, uint64_t count, float *piece)
{
    struct zk_page page = local_page(local_of(s), u, first, count);

    (void)op;
    if (what == ZC_MASTER && s->z->iterations == 0)
        zk_page_init(s->z->kernels, &u->layout, &page, piece);
    else
        zk_page_set(s->z->kernels, &u->layout, &page, (enum zk_what)what, piece);
    zcz_own_piece_put(s, piece);
    return 0;
}

static int local_push(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, uint64_t step,
                      uint32_t micro, uint64_t first, uint64_t count, float *piece)
{
    struct local *l = local_of(s);
    struct slice *slice = &l->slices[u->def.index];
    struct zk_page page = local_page(l, u, first, count);

    (void)op;
    assert(step == s->z->iterations + 1);
    if (first == 0) { /* a micro-step begins: only the sum of its result counts */
        slice->sum = (struct zk_xsum){ 0 };
        slice->nonfinite = 0;
    }
    zk_page_ingest(s->z->kernels, &u->layout, &page, piece, ZB_F32, micro > 0, &slice->sum,
                   &slice->nonfinite);
    zcz_own_piece_put(s, piece);
    return 0;
}

static int local_read(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, enum zc_what what,
                      uint64_t first, uint64_t count, float *piece)
{
    struct zk_page page = local_page(local_of(s), u, first, count);

    (void)op;
    zk_page_read(s->z->kernels, &u->layout, &page, (enum zk_what)what, piece);
    return 0;
}

static int local_fetch(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u,
                       uint64_t min_version)
{
    (void)op;
    u->view = (struct zc_view){
        .data = local_of(s)->slices[u->def.index].planes[ZB_PARAM],
        .bytes = zb_plane_bytes(u->layout.block_bytes[ZB_PARAM], s->page_elems, u->count),
        .version = min_version, /* steps finish before they return, so this is the newest */
    };
    return 0;
}

static int local_norms(struct zcz_store *s, struct zcz_op *op, uint64_t step, struct zc_norm *ret)
{
    struct local *l = local_of(s);
    struct zk_xsum sum = { 0 };

    (void)op;
    (void)step;
    ret->nonfinite = 0;
    for (uint32_t i = 0; i < l->nslices; i++) {
        if (!zcz_unit_trained(&s->z->units[i]))
            continue; /* the gradient there is an earlier step's */
        zk_xsum_merge(&sum, &l->slices[i].sum);
        ret->nonfinite += l->slices[i].nonfinite;
    }
    zk_xsum_store(&sum, ret->sum_of_squares);
    return 0;
}

/* The rest of a unit's step: its matrices are orthogonalized, then their weights are stepped. */
static void muon_finish(struct local *l, const struct zcz_unit *u, const struct zk_page *page,
                        const struct zk_segment *segments, uint32_t n)
{
    const struct zc_zero *z = l->own.base.z;

    for (size_t i = 0; i < page->nmatrices; i++)
        zk_ortho(z->kernels, &zk_ortho_muon, page->matrices[i].at, page->matrices[i].rows,
                 page->matrices[i].cols, l->muon + l->matrices_bytes);
    if (page->nmatrices > 0)
        zk_page_weight(z->kernels, &u->layout, page, segments, n, l->own.table.scalars);
}

/* Gives the page of a unit its matrices, and these their memory. */
static void muon_begin(struct local *l, const struct zcz_unit *u, struct zk_page *page)
{
    const struct zcz_own_table *t = &l->own.table;
    uint32_t i = u->def.index;
    unsigned char *at = l->muon;

    if (!t->matrices)
        return;
    page->matrices = t->matrices + t->matrix_at[i];
    page->nmatrices = t->matrix_at[i + 1] - t->matrix_at[i];
    for (uint32_t m = t->matrix_at[i]; m < t->matrix_at[i + 1]; m++) {
        t->matrices[m].at = (float *)(void *)at;
        at += zb_matrix_bytes(t->matrices[m].count);
    }
}

static int local_step(struct zcz_store *s, struct zcz_op *op, const struct zc_step *step,
                      const struct zc_classes *classes, struct zc_stepped *ret)
{
    struct local *l = local_of(s);
    struct zc_zero *z = s->z;
    bool applied = step->groups || classes;
    int rc = applied ? zcz_own_table(&l->own, step, classes) : 0;

    (void)op;
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; applied && i < l->nslices; i++) {
        struct zcz_unit *u = &z->units[i];
        struct zk_page page = local_page(l, u, 0, u->count);
        uint32_t n;
        const struct zk_segment *segments = zcz_own_segments(&l->own, u, &n);

        if (u->count == 0 || u->def.frozen)
            continue;
        muon_begin(l, u, &page);
        zk_page_step(z->kernels, &u->layout, &page, segments, n, l->own.table.scalars);
        muon_finish(l, u, &page, segments, n);
    }
    zcz_own_stepped(s, applied, ret);
    return 0;
}

static int local_stats(struct zcz_store *s, struct zcz_store_stats *ret)
{
    *ret = (struct zcz_store_stats){ .host_bytes = local_of(s)->bytes };
    if (!s->z->device.gpu)
        ret->host_bytes += s->z->whole_param.bytes + s->z->whole_grad.bytes;
    return 0;
}

static void local_close(struct zcz_store *s)
{
    struct local *l = local_of(s);

    for (uint32_t i = 0; i < l->nslices; i++)
        free(l->slices[i].memory);
    free(l->slices);
    free(l->muon);
    zcz_own_done(&l->own);
    free(l);
}

static const struct zcz_store_ops local_ops = {
    .open = zcz_own_open,
    .join = local_join,
    .place = zcz_own_nothing,
    .leave = zcz_own_nothing,
    .piece = zcz_own_piece,
    .piece_put = zcz_own_piece_put,
    .write = local_write,
    .push = local_push,
    .read = local_read,
    .set = local_set,
    .fetch = local_fetch,
    .release = zcz_own_release,
    .norms = local_norms,
    .tensors = zcz_own_tensors,
    .step = local_step,
    .note_put = zcz_own_note_put,
    .note_get = zcz_own_note_get,
    .stats = local_stats,
    .poll = zcz_own_poll,
    .close = local_close,
};

struct zcz_store *zcz_store_local(struct zc_zero *z)
{
    struct local *l = calloc(1, sizeof(*l));

    if (!l)
        return NULL;
    l->own.base.ops = &local_ops;
    l->own.base.z = z;
    return &l->own.base;
}
