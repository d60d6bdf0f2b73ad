/*
 * export.c - zctl export: writes a saved job as safetensors files.
 *
 * MODEL. First the plan: for every tensor its file and its source (parameters, masters, moments).
 * Then the bytes are streamed, file by file, in pieces of at most ZCTL_PIECE_BYTES. While one piece
 * is converted and written, the next is read. Within a file, tensors with wide elements come before
 * those with narrow ones, so that each is aligned to its elements.
 *
 * An export that fails, or is ended by a signal, removes what it wrote.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/plan.h"
#include "base/util.h"
#include "client/zctl/cmd/cmd.h"
#include "client/zctl/files/files.h"

#define PIECE_MIN (UINT64_C(64) << 10)
#define FILES_MAX 99999u /* limit of five digits */
#define META_MAX  9u

struct item {
    char *name; /* malloc'ed */
    const struct zc_tensor *t;
    uint32_t unit;
    enum zc_what what;         /* what is read, */
    enum zc_st_dtype from, to; /* in which dtype, and what is written */
    uint64_t elems, bytes;     /* of the file */
    uint32_t file;
};

/** The position of the stream: an element of an item. */
struct cursor {
    size_t item;
    uint64_t at;
};

struct slot {
    struct zctl_slot base;
    uint64_t count;
};

struct export
{
    struct zctl *z;
    struct zc_reader reader;
    struct zctl_model model;
    struct zctl_place place;
    struct item *items;
    size_t nitems, room;
    uint32_t nfiles;
    uint64_t bytes; /* of all tensors */
    enum zc_st_dtype dtype;
    bool own_dtype, optimizer;
    uint64_t piece_bytes; /* of memory, and of fp32 */
    struct slot slots[ZCTL_SLOTS];
    float *wide;  /* a piece as fp32, */
    void *narrow; /* and as what is written */
    struct zc_st_writer *writer;
    char *writing; /* its path */
};

/* ---- the plan */

static enum zc_st_dtype st_dtype(enum zc_dtype dtype)
{
    return dtype == ZC_BF16 ? ZC_ST_BF16 : dtype == ZC_F16 ? ZC_ST_F16 : ZC_ST_F32;
}

static int plan_add(struct export *x, const struct zc_unit *unit, const struct zc_tensor *t,
                    const char *suffix, enum zc_what what, enum zc_st_dtype from,
                    enum zc_st_dtype to)
{
    struct item *item;
    uint64_t elems;
    int rc = zctl_tensor_elems(x->z, unit, t, &elems);

    if (rc < 0)
        return rc;
    if (zb_grow(&x->items, &x->room, x->nitems, 1) < 0)
        return zb_fail(&x->z->err, -ENOMEM, "%zu tensors: %m", x->nitems);
    item = &x->items[x->nitems];
    *item = (struct item){ .t = t,
                           .unit = unit->index,
                           .what = what,
                           .from = from,
                           .to = to,
                           .elems = elems,
                           .bytes = elems * zc_st_dtype_bytes(to) };
    if (asprintf(&item->name, "%s%s", t->name, suffix) < 0)
        return zb_fail(&x->z->err, -ENOMEM, "tensor '%s': %m", t->name);
    x->nitems++;
    x->bytes += item->bytes;
    return 0;
}

/** Plans a tensor and, with the optimizer's state, its moments and master. */
static int plan_tensor(struct export *x, const struct zc_unit *unit, const struct zc_tensor *t)
{
    enum zc_st_dtype own = st_dtype(unit->dtype), to = x->own_dtype ? own : x->dtype;
    bool master = to != own && own != ZC_ST_F32 && !unit->frozen; /* the master is more exact */
    int rc = plan_add(x, unit, t, "", master ? ZC_MASTER : ZC_PARAM, master ? ZC_ST_F32 : own, to);

    if (rc < 0 || !x->optimizer || unit->frozen)
        return rc;
    for (unsigned i = 0; rc == 0 && zctl_moment_suffix(x->model.optimizer, unit, t, i); i++)
        rc = plan_add(x, unit, t, zctl_moment_suffix(x->model.optimizer, unit, t, i),
                      (enum zc_what)(ZC_EXP_AVG + i), ZC_ST_F32, ZC_ST_F32);
    if (rc == 0 && to != ZC_ST_F32)
        rc = plan_add(x, unit, t, ZCTL_MASTER, ZC_MASTER, ZC_ST_F32, ZC_ST_F32);
    return rc;
}

static int item_order_by_name(const void *a, const void *b)
{
    return strcmp((*(struct item *const *)a)->name, (*(struct item *const *)b)->name);
}

/** Order: by file, then wide elements first, then as in the model. */
static int item_order(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    size_t wide_x = zc_st_dtype_bytes(x->to), wide_y = zc_st_dtype_bytes(y->to);

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (wide_x != wide_y)
        return wide_x > wide_y ? -1 : 1;
    if (x->unit != y->unit)
        return x->unit < y->unit ? -1 : 1;
    if (x->t != y->t)
        return x->t < y->t ? -1 : 1;
    return x->what < y->what ? -1 : x->what > y->what;
}

static int plan_names(struct export *x)
{
    struct item **list = calloc(x->nitems + 1, sizeof(struct item *));
    int rc = list ? 0 : zb_fail(&x->z->err, -ENOMEM, "%zu tensors: %m", x->nitems);

    for (size_t i = 0; list && i < x->nitems; i++)
        list[i] = &x->items[i];
    if (list)
        qsort(list, x->nitems, sizeof(struct item *), item_order_by_name);
    for (size_t i = 1; rc == 0 && i < x->nitems; i++)
        if (strcmp(list[i - 1]->name, list[i]->name) == 0)
            rc = zb_fail(&x->z->err, -EINVAL, "two tensors would be called '%s'", list[i]->name);
    free(list);
    return rc;
}

/** Assigns files: one ends before the tensor that would exceed shard_bytes. */
static int plan_files(struct export *x, uint64_t shard_bytes)
{
    uint64_t bytes = 0;

    x->nfiles = 1;
    for (size_t i = 0; i < x->nitems; i++) {
        if (bytes > 0 && bytes + x->items[i].bytes > shard_bytes) {
            x->nfiles++;
            bytes = 0;
        }
        bytes += x->items[i].bytes;
        x->items[i].file = x->nfiles - 1;
        if (x->nfiles > FILES_MAX)
            return zb_fail(&x->z->err, -EINVAL,
                           "--shard-bytes makes more than %u files out of %" PRIu64 " bytes",
                           FILES_MAX, x->bytes);
    }
    qsort(x->items, x->nitems, sizeof(x->items[0]), item_order);
    return 0;
}

static int plan(struct export *x, uint64_t shard_bytes)
{
    int rc = 0;

    for (uint32_t u = 0; rc == 0 && u < x->model.nunits; u++)
        for (uint32_t k = 0; rc == 0 && k < x->model.units[u]->ntensors; k++)
            rc = plan_tensor(x, x->model.units[u], &x->model.units[u]->tensors[k]);
    if (rc == 0)
        rc = plan_names(x);
    return rc < 0 ? rc : plan_files(x, shard_bytes);
}

/* ---- files */

/** The metadata of a file. The first one has the data to recreate the job; each has "format". */
static int metadata_make(struct export *x, uint32_t file, struct zc_st_pair *pairs, size_t *ret_n,
                         char **ret_units, char (*numbers)[24])
{
    size_t n = 0;

    *ret_units = NULL;
    pairs[n++] = (struct zc_st_pair){ "format", "pt" }; /* transformers looks for it */
    if (file == 0) {
        *ret_units = zctl_model_text(&x->model);
        if (!*ret_units)
            return zb_fail(&x->z->err, -ENOMEM, "the units' names: %m");
        (void)snprintf(numbers[0], sizeof(numbers[0]), "%" PRIu64, x->model.iterations);
        (void)snprintf(numbers[1], sizeof(numbers[1]), "%" PRIu64, x->model.applied);
        (void)snprintf(numbers[2], sizeof(numbers[2]), "%" PRIu32, x->model.groups);
        pairs[n++] = (struct zc_st_pair){ ZCTL_META_FORMAT, "1" };
        pairs[n++] = (struct zc_st_pair){ ZCTL_META_ITERATIONS, numbers[0] };
        pairs[n++] = (struct zc_st_pair){ ZCTL_META_APPLIED, numbers[1] };
        pairs[n++] = (struct zc_st_pair){ ZCTL_META_GROUPS, numbers[2] };
        pairs[n++] =
            (struct zc_st_pair){ ZCTL_META_OPTIMIZER,
                                 zb_optimizer_name((enum zb_optimizer)x->model.optimizer) };
        pairs[n++] = (struct zc_st_pair){ ZCTL_META_MOMENTS,
                                          zb_moments_name((enum zb_moments)x->model.moments) };
        pairs[n++] = (struct zc_st_pair){ ZCTL_META_UNITS, *ret_units };
    }
    assert(n <= META_MAX);
    *ret_n = n;
    return 0;
}

/** Begins the file of which `first` is the first item. */
static int file_begin(struct export *x, size_t first)
{
    struct zc_st_pair pairs[META_MAX];
    struct zc_st_tensor *tensors;
    char numbers[3][24], *units, text[sizeof(x->z->err.text)];
    size_t n = 0, npairs = 0;
    int rc;

    while (first + n < x->nitems && x->items[first + n].file == x->items[first].file)
        n++;
    tensors = calloc(n + 1, sizeof(*tensors));
    x->writing = zctl_place_path(&x->place, x->items[first].file, x->nfiles);
    if (!tensors || !x->writing) {
        free(tensors);
        return zb_fail(&x->z->err, -ENOMEM, "a file of %zu tensors: %m", n);
    }
    for (size_t i = 0; i < n; i++)
        tensors[i] = (struct zc_st_tensor){ .name = x->items[first + i].name,
                                            .dtype = x->items[first + i].to,
                                            .ndims = x->items[first + i].t->ndims,
                                            .dims = x->items[first + i].t->dims };
    rc = metadata_make(x, x->items[first].file, pairs, &npairs, &units, numbers);
    if (rc == 0) {
        rc = zc_st_create(&x->writer, x->writing, tensors, n, pairs, npairs, text, sizeof(text));
        if (rc < 0)
            (void)zb_fail(&x->z->err, rc, "%s", text);
    }
    free(units);
    free(tensors);
    return rc;
}

static int file_end(struct export *x)
{
    char text[sizeof(x->z->err.text)], *path = x->writing;
    int rc = zc_st_commit(x->writer, text, sizeof(text));

    x->writer = NULL;
    x->writing = NULL;
    if (rc < 0) {
        free(path);
        return zb_fail(&x->z->err, rc, "%s", text);
    }
    return zctl_place_written(x->z, &x->place, path);
}

static char *index_text(const struct export *x)
{
    json_t *map = json_object(), *all;
    char *text = NULL;
    bool whole = map != NULL;

    for (size_t i = 0; whole && i < x->nitems; i++) {
        char *path = zctl_place_path(&x->place, x->items[i].file, x->nfiles);

        whole = path && json_object_set_new(map, x->items[i].name,
                                            json_string(strrchr(path, '/') + 1)) == 0;
        free(path);
    }
    if (!whole) {
        json_decref(map);
        return NULL;
    }
    all = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)x->bytes, "weight_map",
                    map);
    if (all)
        text = json_dumps(all, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(all);
    return text;
}

/** Writes the index, as the last file: loaders read it first. */
static int index_write(struct export *x)
{
    char *text = index_text(x), *path = zctl_place_path(&x->place, 0, 0);
    int rc = text && path ? zctl_place_text(x->z, path, text)
                          : zb_fail(&x->z->err, -ENOMEM, "the index: %m");

    free(text);
    if (rc == 0)
        return zctl_place_written(x->z, &x->place, path);
    free(path);
    return rc;
}

/* ---- the stream */

/** Starts reading the piece at *at, and advances *at; does nothing at the end. */
static int slot_read(struct export *x, struct slot *s, struct cursor *at)
{
    const struct item *item;
    int rc;

    while (at->item < x->nitems && at->at == x->items[at->item].elems)
        *at = (struct cursor){ .item = at->item + 1 };
    if (at->item == x->nitems)
        return 0;
    item = &x->items[at->item];
    s->count = zb_min_u64(item->elems - at->at, x->piece_bytes / sizeof(float));
    s->base.busy = true;
    rc = zc_reader_read(x->z->client, x->reader.id, item->unit, item->what, item->t->first + at->at,
                        s->count, s->base.staged, zctl_slot_done, &s->base);
    at->at += s->count;
    return zctl_failed(x->z, rc);
}

static int slot_write(struct export *x, const struct slot *s, const struct item *item)
{
    const void *bytes = s->base.staged;
    char text[sizeof(x->z->err.text)];
    int rc = 0;

    if (item->from != item->to) {
        const float *f32 = s->base.staged;

        bytes = x->narrow;
        if (item->from != ZC_ST_F32) {
            (void)zc_st_to_f32(item->from, s->base.staged, s->count, x->wide);
            f32 = x->wide;
        }
        if (item->to == ZC_ST_F32)
            bytes = f32;
        else
            rc = zc_st_from_f32(item->to, f32, s->count, x->narrow);
    }
    if (rc < 0)
        return zb_fail(&x->z->err, rc, "tensor '%s' has a number that %s cannot hold", item->name,
                       zc_st_dtype_name(item->to));
    rc = zc_st_append(x->writer, bytes, s->count * zc_st_dtype_bytes(item->to), text, sizeof(text));
    return rc < 0 ? zb_fail(&x->z->err, rc, "%s", text) : 0;
}

static int stream(struct export *x)
{
    struct cursor at = { 0 };
    unsigned k = 0;
    int rc = slot_read(x, &x->slots[0], &at);

    for (size_t i = 0; rc == 0 && i < x->nitems; i++) {
        uint64_t done = 0;

        if (i == 0 || x->items[i].file != x->items[i - 1].file) {
            if (x->writer)
                rc = file_end(x);
            if (rc == 0)
                rc = file_begin(x, i);
        }
        while (rc == 0 && done < x->items[i].elems) {
            struct slot *s = &x->slots[k++ % ZCTL_SLOTS];

            rc = zctl_slot_wait(x->z, &s->base);
            if (rc == 0)
                rc = slot_read(x, &x->slots[k % ZCTL_SLOTS], &at);
            if (rc == 0)
                rc = slot_write(x, s, &x->items[i]);
            done += s->count;
        }
    }
    if (rc == 0)
        rc = file_end(x);
    return rc == 0 && x->nfiles > 1 ? index_write(x) : rc;
}

/* ---- the command */

enum export_dtype { EXPORT_PARAM, EXPORT_FP32, EXPORT_BF16, EXPORT_FP16 };

struct export_options {
    enum export_dtype dtype;
    bool optimizer;
    uint64_t shard_bytes;
};

#define AT(member) ZB_OPT_AT(struct export_options, member)

static const struct zb_opt export_options[] = {
    { "dtype", ZB_OPT_CHOICE, AT(dtype), .choices = "param fp32 bf16 fp16", .def = "param",
      .help = "dtype of parameters; param: unchanged, lossless" },
    { "optimizer", ZB_OPT_FLAG, AT(optimizer),
      .help = "also write the optimizer's moments and fp32 masters" },
    { "shard-bytes", ZB_OPT_SIZE, AT(shard_bytes), .arg = "SIZE",
      .def = "5G", /* as in Hugging Face's libraries */
      .help = "split larger exports into several files with an index" },
    { 0 },
};

/** Opens the reader. Its staging is in the daemon's host memory; if there is little left, smaller
 *  pieces are used. */
static int export_open(struct export *x, const struct zctl_saved *from)
{
    struct zctl *z = x->z;
    int rc;

    x->piece_bytes = ZCTL_PIECE_BYTES;
    while (((rc = zc_reader_open_wait(z->client, from->job, from->snapshot,
                                      ZCTL_SLOTS * x->piece_bytes, &x->reader)) == -ENOSPC ||
            rc == -EDQUOT) &&
           x->piece_bytes > PIECE_MIN)
        x->piece_bytes /= 2;
    if (rc < 0)
        return zctl_failed(z, rc);
    if (x->reader.staging_bytes < ZCTL_SLOTS * x->piece_bytes)
        return zb_fail(&z->err, -EPROTO, "the daemon gave less staging than was asked for");
    for (unsigned i = 0; i < ZCTL_SLOTS; i++)
        x->slots[i].base.staged = (char *)x->reader.staging + i * x->piece_bytes;
    return 0;
}

static int export_run(struct export *x, const struct zctl_saved *from, const char *path,
                      uint64_t shard_bytes)
{
    struct zctl *z = x->z;
    int rc = zctl_connect(z);

    if (rc == 0)
        rc = export_open(x, from);
    if (rc == 0)
        rc = zctl_model_read(z, &x->reader, &x->model);
    if (rc == 0)
        rc = plan(x, shard_bytes);
    if (rc == 0 && x->nitems == 0)
        rc = zb_fail(&z->err, -EINVAL, "job '%s' has no tensors", from->job);
    x->wide = malloc(ZCTL_PIECE_BYTES);
    x->narrow = malloc(ZCTL_PIECE_BYTES);
    if (rc == 0 && (!x->wide || !x->narrow))
        rc = zb_fail(&z->err, -ENOMEM, "a piece: %m");
    if (rc == 0)
        rc = zctl_place_open(z, path, &x->place);
    if (rc == 0)
        rc = stream(x);
    return rc;
}

struct export_row {
    char job[ZCTL_JOB_MAX + 1];
    uint64_t iterations, applied, files, tensors, bytes;
};

static const struct zctl_column columns[] = {
    { "job", ZCTL_TEXT, offsetof(struct export_row, job), ZCTL_SHOWN, NULL, 0 },
    { "iterations", ZCTL_U64, offsetof(struct export_row, iterations), ZCTL_SHOWN, NULL, 0 },
    { "applied", ZCTL_U64, offsetof(struct export_row, applied), ZCTL_SHOWN, NULL, 0 },
    { "files", ZCTL_U64, offsetof(struct export_row, files), ZCTL_SHOWN, NULL, 0 },
    { "tensors", ZCTL_U64, offsetof(struct export_row, tensors), ZCTL_SHOWN, NULL, 0 },
    { "bytes", ZCTL_SIZE, offsetof(struct export_row, bytes), ZCTL_SHOWN, NULL, 0 },
};

static int export_show(struct export *x, const char *job)
{
    struct export_row row = { .iterations = x->model.iterations,
                              .applied = x->model.applied,
                              .files = x->nfiles,
                              .tensors = x->nitems,
                              .bytes = x->bytes };

    (void)snprintf(row.job, sizeof(row.job), "%s", job);
    return zctl_print(x->z, columns, ZB_COUNT(columns), &row, 1, sizeof(row));
}

static void export_done(struct export *x)
{
    /* Ends calls in flight while their slots still exist. */
    zc_close(x->z->client);
    x->z->client = NULL;
    zc_st_discard(x->writer);
    zctl_place_done(&x->place);
    for (size_t i = 0; i < x->nitems; i++)
        free(x->items[i].name);
    free(x->items);
    free(x->writing);
    free(x->wide);
    free(x->narrow);
    zctl_model_done(&x->model);
}

static int export_cmd(struct zctl *z, int argc, char **argv)
{
    static const enum zc_st_dtype dtypes[] = {
        [EXPORT_FP32] = ZC_ST_F32, [EXPORT_BF16] = ZC_ST_BF16, [EXPORT_FP16] = ZC_ST_F16
    };
    const struct export_options *o = z->opts.values;
    struct export x = { .z = z,
                        .optimizer = o->optimizer,
                        .own_dtype = o->dtype == EXPORT_PARAM,
                        .dtype = dtypes[o->dtype] };
    struct zctl_saved from;
    int rc = zctl_saved(z, argv[0], &from);

    (void)argc;
    if (rc < 0)
        return rc;
    zctl_stop_catch();
    rc = export_run(&x, &from, argv[1], o->shard_bytes);
    zctl_stop_leave();
    if (rc < 0) {
        zc_st_discard(x.writer);
        x.writer = NULL;
        zctl_place_undo(&x.place);
    } else {
        rc = export_show(&x, from.job);
    }
    export_done(&x);
    return rc;
}

const struct zctl_cmd zctl_export = {
    .name = "export",
    .args = "JOB[@SNAPSHOT] PATH",
    .help = "write safetensors: to a folder, or to NAME.safetensors",
    .argc_min = 2,
    .argc_max = 2,
    .run = export_cmd,
    .options = export_options,
    .bytes = sizeof(struct export_options),
    ZCTL_COLUMNS(columns),
};
