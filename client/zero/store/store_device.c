/*
 * store_device.c - slices on the engine's device, stepped there. Nothing is offloaded; only initial
 * values, norms and reads are copied between host and device.
 *
 * MODEL. As in store_local.c, a slice is one page; its planes are consecutive, and all slices are
 * in one allocation. Views are device addresses. push_dev() takes the gradients that
 * zcz_reduce_down() would otherwise copy down. The kernels give the same bits as those of every
 * other store.
 *
 * ORDER. Everything that writes here runs on the stream `down`: a gradient after the work that made
 * it, a step after the gradients. A step waits for the trainer's work so far, which may read
 * parameters. The trainer's stream, and the stream that copies units together, wait for the step.
 * So a step is only enqueued, and no call here waits for one.
 *
 * WAITING. norms() waits for the gradients of a step, and so for the trainer's work. Initial values
 * and reads wait for their copies.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "client/zero/config/options.h"
#include "client/zero/core/zero.h"
#include "client/zero/store/store_own.h"
#include "client/zero/store/stores.h"

struct slice {
    char *planes[ZB_PLANES]; /* on the device; NULL if the layout has none */
    uint64_t block;          /* index in d->norms[] of its first block, if it is trained */
    const struct zk_segment *segments;
};

struct device_store {
    struct zcz_own own;
    struct slice *slices; /* by unit */
    uint32_t nslices;
    unsigned char *page; /* host memory for a piece's planes, 64-byte aligned */
    struct zk_gpu_mem *memory;
    uint64_t planes_bytes; /* bytes of `memory` that are planes */
    /* Where own.table is copied to. norms() comes between two steps, and waits, so the next step
     * can overwrite it. By groups it is in `memory`; by classes, with their segments, in an
     * allocation of its own, made for the first such step. */
    struct zk_scalars *by_group;
    struct zk_gpu_mem *classes;
    struct zk_gpu_norm *norms_dev, *norms; /* of all trained blocks: on the device, and on the
                                              host */
    uint64_t blocks;                       /* number of norms */
    struct zk_gpu_event *event;
};

static struct device_store *store_of(struct zcz_store *s)
{
    return zb_container_of(s, struct device_store, own.base);
}

static struct zk_gpu_stream *stream_of(const struct device_store *d)
{
    return d->own.base.z->device.down;
}

static int store_failed(struct device_store *d, int rc, const struct zb_err *err)
{
    struct zc_zero *z = d->own.base.z;

    return rc < 0 ? zcz_refuse(z, rc, "device '%s': %s", z->options.device, err->text) : 0;
}

static int device_open(struct zcz_store *s)
{
    s->on_device = true;
    return zcz_own_open(s);
}

/* ---- memory: planes of all slices, then norms, segments, scalars */

static uint64_t take(uint64_t *at, uint64_t bytes)
{
    uint64_t from = zb_round_up(*at, ZB_PAGE_ALIGN);

    *at = from + bytes;
    return from;
}

/* Lays out everything from `base` on. NULL: only computes the length. */
static uint64_t store_lay(struct device_store *d, char *base)
{
    struct zc_zero *z = d->own.base.z;
    uint64_t end = 0, norms, scalars;

    for (uint32_t i = 0; i < z->nunits; i++)
        for (int p = 0; p < ZB_PLANES; p++) {
            uint32_t block = z->units[i].layout.block_bytes[p];
            uint64_t at = take(&end, zb_page_bytes(block, z->units[i].count));

            d->slices[i].planes[p] = base && block > 0 ? base + at : NULL;
        }
    d->planes_bytes = end;
    norms = take(&end, d->blocks * sizeof(struct zk_gpu_norm));
    if (base)
        d->norms_dev = (struct zk_gpu_norm *)(void *)(base + norms);
    for (uint32_t i = 0; i < z->nunits; i++) {
        uint64_t segments = take(&end, z->units[i].nsegments * sizeof(*z->units[i].segments));

        if (base)
            d->slices[i].segments = (const struct zk_segment *)(void *)(base + segments);
    }
    scalars = take(&end, ZCZ_GROUPS_MAX * sizeof(struct zk_scalars));
    if (base)
        d->by_group = (struct zk_scalars *)(void *)(base + scalars);
    return end;
}

/* Waits for enqueued work, so that host memory may be reused. */
static int store_sync(struct device_store *d, int rc, struct zb_err *err)
{
    return rc < 0 ? rc : zk_gpu_stream_sync(stream_of(d), err);
}

static int store_tables(struct device_store *d, struct zb_err *err)
{
    struct zc_zero *z = d->own.base.z;
    int rc = 0;

    for (uint32_t i = 0; i < z->nunits && rc == 0; i++)
        if (z->units[i].nsegments > 0)
            rc = zk_gpu_copy(stream_of(d), ZK_GPU_TO_DEVICE,
                             (void *)(uintptr_t)d->slices[i].segments, z->units[i].segments,
                             z->units[i].nsegments * sizeof(*z->units[i].segments), err);
    return store_sync(d, rc, err);
}

static uint64_t page_bytes_most(const struct device_store *d)
{
    const struct zc_zero *z = d->own.base.z;
    uint64_t most = 0;

    for (uint32_t i = 0; i < z->nunits; i++) {
        uint64_t bytes = 0;

        for (int p = 0; p < ZB_PLANES; p++)
            bytes += zb_round_up(
                zb_blocks_bytes(z->units[i].layout.block_bytes[p], d->own.base.piece_elems),
                ZB_PAGE_ALIGN);
        most = zb_max_u64(most, bytes);
    }
    return most;
}

static int device_join(struct zcz_store *s)
{
    struct device_store *d = store_of(s);
    struct zc_zero *z = s->z;
    uint64_t bytes;
    struct zb_err err = { 0 };
    int rc;

    d->slices = calloc(z->nunits, sizeof(*d->slices));
    if (!d->slices)
        return zcz_refuse(z, -ENOMEM, "no memory for %u units", z->nunits);
    d->nslices = z->nunits;
    for (uint32_t i = 0; i < z->nunits; i++) {
        d->slices[i].block = d->blocks;
        d->blocks += z->units[i].def.frozen ? 0 : z->units[i].count / ZB_BLOCK_ELEMS;
    }
    rc = zcz_own_join(s);
    if (rc < 0)
        return rc;
    d->page = aligned_alloc(ZB_PAGE_ALIGN, zb_round_up(page_bytes_most(d), ZB_PAGE_ALIGN));
    d->norms = calloc(d->blocks + 1, sizeof(*d->norms));
    if (!d->page || !d->norms)
        return zcz_refuse(z, -ENOMEM, "no memory for a page and %llu norms",
                          (unsigned long long)d->blocks);
    bytes = store_lay(d, NULL);
    rc = zk_gpu_event_new(z->device.gpu, &d->event, &err);
    if (rc == 0)
        rc = zk_gpu_alloc(z->device.gpu, bytes, 0, &d->memory, &err);
    if (rc == -ENOSPC || rc == -ENOMEM)
        return zcz_refuse(z, rc,
                          "device '%s': no memory for %llu bytes of parameters, gradients and "
                          "optimizer state: %s",
                          z->options.device, (unsigned long long)bytes, err.text);
    if (rc == 0) {
        s->device_bytes = zk_gpu_len(d->memory);
        (void)store_lay(d, zk_gpu_addr(d->memory));
        rc = store_tables(d, &err);
    }
    return store_failed(d, rc, &err);
}

/* ---- pieces */

/* Elements [first, first + count) of a slice: in host memory; */
static struct zk_page host_page(struct device_store *d, const struct zcz_unit *u, uint64_t first,
                                uint64_t count)
{
    struct zk_page page = { .first = u->first + first, .count = count };
    void **const planes[ZB_PLANES] = {
        [ZB_PARAM] = &page.param, [ZB_GRAD] = &page.grad, [ZB_STATE] = &page.state
    };
    uint64_t at = 0;

    assert(count <= d->own.base.piece_elems);
    for (int p = 0; p < ZB_PLANES; p++)
        if (u->layout.block_bytes[p] > 0)
            *planes[p] = d->page + take(&at, zb_blocks_bytes(u->layout.block_bytes[p], count));
    return page;
}

/* ... and their address on the device. */
static char *plane_at(const struct device_store *d, const struct zcz_unit *u, enum zb_plane plane,
                      uint64_t first)
{
    char *base = d->slices[u->def.index].planes[plane];

    return base ? base + zb_blocks_bytes(u->layout.block_bytes[plane], first) : NULL;
}

/* Copies the planes of a page to or from the device. Gradients are only copied to the host. */
static int page_move(struct device_store *d, const struct zcz_unit *u, const struct zk_page *page,
                     enum zk_gpu_way way, struct zb_err *err)
{
    void *const host[ZB_PLANES] = {
        [ZB_PARAM] = page->param, [ZB_GRAD] = page->grad, [ZB_STATE] = page->state
    };
    int rc = 0;

    for (enum zb_plane p = 0; p < ZB_PLANES && rc == 0; p++) {
        char *dev = plane_at(d, u, p, page->first - u->first);
        bool up = way == ZK_GPU_TO_DEVICE;

        if (host[p] && (p != ZB_GRAD || !up))
            rc = zk_gpu_copy(stream_of(d), way, up ? dev : host[p], up ? host[p] : dev,
                             zb_blocks_bytes(u->layout.block_bytes[p], page->count), err);
    }
    return store_sync(d, rc, err);
}

static int device_write(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, uint64_t first,
                        uint64_t count, float *piece)
{
    struct device_store *d = store_of(s);
    struct zk_page page = host_page(d, u, first, count);
    struct zb_err err = { 0 };
    int rc;

    (void)op;
    zk_page_init(s->z->kernels, &u->layout, &page, piece);
    rc = page_move(d, u, &page, ZK_GPU_TO_DEVICE, &err);
    if (rc == 0)
        zcz_own_piece_put(s, piece);
    return store_failed(d, rc, &err);
}

static int device_set(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u, enum zc_what what,
                      uint64_t first, uint64_t count, float *piece)
{
    struct device_store *d = store_of(s);
    struct zk_page page = host_page(d, u, first, count);
    struct zb_err err = { 0 };
    int rc = page_move(d, u, &page, ZK_GPU_TO_HOST, &err);

    (void)op;
    if (rc < 0)
        return store_failed(d, rc, &err);
    if (what == ZC_MASTER && s->z->iterations == 0)
        zk_page_init(s->z->kernels, &u->layout, &page, piece);
    else
        zk_page_set(s->z->kernels, &u->layout, &page, (enum zk_what)what, piece);
    rc = page_move(d, u, &page, ZK_GPU_TO_DEVICE, &err);
    if (rc == 0)
        zcz_own_piece_put(s, piece);
    return store_failed(d, rc, &err);
}

static int device_read(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u,
                       enum zc_what what, uint64_t first, uint64_t count, float *piece)
{
    struct device_store *d = store_of(s);
    struct zk_page page = host_page(d, u, first, count);
    struct zb_err err = { 0 };
    int rc = page_move(d, u, &page, ZK_GPU_TO_HOST, &err);

    (void)op;
    if (rc == 0)
        zk_page_read(s->z->kernels, &u->layout, &page, (enum zk_what)what, piece);
    return store_failed(d, rc, &err);
}

static int device_push_dev(struct zcz_store *s, struct zcz_unit *u, uint32_t micro,
                           const void *from, enum zb_dtype dtype)
{
    struct device_store *d = store_of(s);
    const struct slice *slice = &d->slices[u->def.index];
    struct zk_gpu_work work = { .op = ZK_GPU_INGEST,
                                .ingest = { .layout = u->layout,
                                            .page = { .grad = slice->planes[ZB_GRAD],
                                                      .first = u->first,
                                                      .count = u->count },
                                            .from = from,
                                            .from_dtype = dtype,
                                            .add = micro > 0,
                                            .norms = d->norms_dev + slice->block } };
    struct zb_err err = { 0 };

    return store_failed(d, zk_gpu_launch(stream_of(d), &work, &err), &err);
}

/* ---- views */

static int device_fetch(struct zcz_store *s, struct zcz_op *op, struct zcz_unit *u,
                        uint64_t min_version)
{
    (void)op;
    u->view = (struct zc_view){
        .data = store_of(s)->slices[u->def.index].planes[ZB_PARAM],
        .bytes = zb_plane_bytes(u->layout.block_bytes[ZB_PARAM], s->page_elems, u->count),
        .version = min_version, /* the streams that read it are ordered after the step */
    };
    return 0;
}

/* ---- steps */

/* Adds blocks [from, end). */
static void norms_add(const struct device_store *d, uint64_t from, uint64_t end,
                      struct zk_xsum *sum, uint64_t *nonfinite)
{
    for (uint64_t i = from; i < end; i++) {
        *nonfinite += d->norms[i].nonfinite;
        if (d->norms[i].nonfinite == 0)
            zk_xsum_add(sum, d->norms[i].sum);
    }
}

static int device_norms(struct zcz_store *s, struct zcz_op *op, uint64_t step, struct zc_norm *ret)
{
    struct device_store *d = store_of(s);
    struct zk_xsum sum = { 0 };
    struct zb_err err = { 0 };
    int rc = zk_gpu_copy(stream_of(d), ZK_GPU_TO_HOST, d->norms, d->norms_dev,
                         d->blocks * sizeof(*d->norms), &err);

    (void)op;
    (void)step;
    rc = store_sync(d, rc, &err);
    ret->nonfinite = 0;
    for (uint32_t i = 0; i < d->nslices && rc == 0; i++) {
        const struct zcz_unit *u = &s->z->units[i];
        uint64_t end = d->slices[i].block + u->count / ZB_BLOCK_ELEMS;

        if (zcz_unit_trained(u)) /* otherwise the gradient there is an earlier step's */
            norms_add(d, d->slices[i].block, end, &sum, &ret->nonfinite);
    }
    zk_xsum_store(&sum, ret->sum_of_squares);
    return store_failed(d, rc, &err);
}

/* The tables of a step, on the device. */
struct tables {
    struct zk_scalars *scalars;
    struct zk_segment *segments; /* if the table has them; otherwise slices have their own */
};

static int tables_up(struct device_store *d, struct tables *ret, struct zb_err *err)
{
    const struct zcz_own_table *t = &d->own.table;
    uint64_t scalars_bytes = zb_round_up(ZC_CLASSES_MAX * sizeof(struct zk_scalars), ZB_PAGE_ALIGN);
    int rc = 0;

    *ret = (struct tables){ .scalars = d->by_group };
    if (t->apart && !d->classes) {
        rc = zk_gpu_alloc(d->own.base.z->device.gpu,
                          scalars_bytes + t->most * sizeof(struct zk_segment), 0, &d->classes, err);
        if (rc == 0)
            d->own.base.device_bytes += zk_gpu_len(d->classes);
    }
    if (rc == 0 && t->apart) {
        char *at = zk_gpu_addr(d->classes);

        ret->scalars = (struct zk_scalars *)(void *)at;
        ret->segments = (struct zk_segment *)(void *)(at + scalars_bytes);
        rc = zk_gpu_copy(stream_of(d), ZK_GPU_TO_DEVICE, ret->segments, t->segments,
                         t->nsegments * sizeof(*t->segments), err);
    }
    return rc < 0 ? rc
                  : zk_gpu_copy(stream_of(d), ZK_GPU_TO_DEVICE, ret->scalars, t->scalars,
                                t->nscalars * sizeof(*t->scalars), err);
}

static int step_launch(struct device_store *d, struct zb_err *err)
{
    struct zc_zero *z = d->own.base.z;
    struct zk_gpu_stream *down = stream_of(d);
    struct tables tables;
    int rc;

    rc = zk_gpu_event_record(d->event, z->device.compute, err);
    if (rc == 0)
        rc = zk_gpu_event_wait(d->event, down, err);
    if (rc == 0)
        rc = tables_up(d, &tables, err);
    for (uint32_t i = 0; i < d->nslices && rc == 0; i++) {
        const struct zcz_unit *u = &z->units[i];
        uint32_t n;
        const struct zk_segment *segments = zcz_own_segments(&d->own, u, &n);
        struct zk_gpu_work work = { .op = ZK_GPU_STEP,
                                    .step = { .layout = u->layout,
                                              .page = { .param = d->slices[i].planes[ZB_PARAM],
                                                        .state = d->slices[i].planes[ZB_STATE],
                                                        .grad = d->slices[i].planes[ZB_GRAD],
                                                        .first = u->first,
                                                        .count = u->count },
                                              .segments = d->slices[i].segments,
                                              .nsegments = n,
                                              .by_group = tables.scalars,
                                              .ngroups = d->own.table.nscalars } };

        if (tables.segments)
            work.step.segments = tables.segments + (segments - d->own.table.segments);
        if (u->count > 0 && !u->def.frozen && n > 0)
            rc = zk_gpu_launch(down, &work, err);
    }
    if (rc == 0)
        rc = zk_gpu_event_record(d->event, down, err);
    if (rc == 0)
        rc = zk_gpu_event_wait(d->event, z->device.compute, err);
    return rc < 0 ? rc : zk_gpu_event_wait(d->event, z->device.up, err);
}

static int device_step(struct zcz_store *s, struct zcz_op *op, const struct zc_step *step,
                       const struct zc_classes *classes, struct zc_stepped *ret)
{
    struct device_store *d = store_of(s);
    struct zb_err err = { 0 };
    bool applied = step->groups || classes;
    int rc = applied ? zcz_own_table(&d->own, step, classes) : 0;

    (void)op;
    if (rc < 0)
        return rc;
    rc = applied ? step_launch(d, &err) : 0;
    if (rc < 0)
        return store_failed(d, rc, &err);
    zcz_own_stepped(s, applied, ret);
    return 0;
}

/* ---- the rest */

static int device_stats(struct zcz_store *s, struct zcz_store_stats *ret)
{
    *ret = (struct zcz_store_stats){ .gpu_bytes = store_of(s)->planes_bytes };
    return 0;
}

/* The streams have ended, so nothing uses the memory. */
static void device_close(struct zcz_store *s)
{
    struct device_store *d = store_of(s);

    zk_gpu_event_free(d->event);
    zk_gpu_free(d->memory);
    zk_gpu_free(d->classes);
    free(d->slices);
    free(d->page);
    free(d->norms);
    zcz_own_done(&d->own);
    free(d);
}

static const struct zcz_store_ops device_ops = {
    .open = device_open,
    .join = device_join,
    .place = zcz_own_nothing,
    .leave = zcz_own_nothing,
    .piece = zcz_own_piece,
    .piece_put = zcz_own_piece_put,
    .write = device_write,
    .push_dev = device_push_dev,
    .read = device_read,
    .set = device_set,
    .fetch = device_fetch,
    .release = zcz_own_release,
    .norms = device_norms,
    .tensors = zcz_own_tensors,
    .step = device_step,
    .note_put = zcz_own_note_put,
    .note_get = zcz_own_note_get,
    .stats = device_stats,
    .poll = zcz_own_poll,
    .close = device_close,
};

struct zcz_store *zcz_store_device(struct zc_zero *z)
{
    struct device_store *d = calloc(1, sizeof(*d));

    if (!d)
        return NULL;
    d->own.base.ops = &device_ops;
    d->own.base.z = z;
    return &d->own.base;
}
