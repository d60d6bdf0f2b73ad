/*
 * import.c - zctl import: makes a new job from safetensors files, kept and durable, with a commit.
 *
 * MODEL. Everything is compared before a job is made: the files have every tensor of the units,
 * with its shape and in a dtype that fp32 holds exactly, and no other tensors. Then zctl is the
 * job's only rank: it defines the units, registers each as one shard, writes masters and moments in
 * pieces, sets the job's progress, commits and leaves.
 *
 * An import that fails, or is ended by a signal, destroys the job.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/plan.h"
#include "base/util.h"
#include "client/zctl/cmd/cmd.h"
#include "client/zctl/files/files.h"

struct import {
    struct zctl *z;
    struct zctl_files files;
    struct zctl_model model;
    bool optimizer; /* the files have optimizer state */
    struct zc_job job;
    bool made; /* the job is ours */
    uint64_t *shards;
    uint64_t piece_elems;
    struct zctl_slot slots[ZCTL_SLOTS];
    unsigned next; /* slot */
};

/* ---- the units: from the files' metadata, or as in another job */

/** Reads from the metadata, if it is there, which optimizer the state belongs to. */
static int model_optimizer(struct import *x)
{
    const char *text = NULL;
    int rc = zctl_files_metadata(x->z, &x->files, ZCTL_META_OPTIMIZER, &text);

    x->model.optimizer = ZC_ADAMW;
    while (rc == 0 && text && zb_optimizer_name((enum zb_optimizer)x->model.optimizer) &&
           strcmp(text, zb_optimizer_name((enum zb_optimizer)x->model.optimizer)) != 0)
        x->model.optimizer++;
    if (rc == 0 && !zb_optimizer_name((enum zb_optimizer)x->model.optimizer))
        rc = zb_fail(&x->z->err, -EINVAL, "the files have optimizer '%s', which is unknown", text);
    text = NULL;
    if (rc == 0)
        rc = zctl_files_metadata(x->z, &x->files, ZCTL_META_MOMENTS, &text);
    x->model.moments = ZC_MOMENTS_F32;
    while (rc == 0 && text && zb_moments_name((enum zb_moments)x->model.moments) &&
           strcmp(text, zb_moments_name((enum zb_moments)x->model.moments)) != 0)
        x->model.moments++;
    if (rc == 0 && !zb_moments_name((enum zb_moments)x->model.moments))
        rc = zb_fail(&x->z->err, -EINVAL, "the files have moments '%s', which are unknown", text);
    return rc;
}

/** For files of another program, without a manifest: derives units from the names of tensors, with
 * no steps made. Rejects files that zctl wrote or that have optimizer state: their units are not
 * known. */
static int model_by_names(struct import *x)
{
    const char *format = NULL;
    char *text = NULL;
    int rc = zctl_files_metadata(x->z, &x->files, ZCTL_META_FORMAT, &format);
    bool foreign = format == NULL;

    for (size_t i = 0; i < x->files.ntensors; i++)
        foreign = foreign && !zctl_name_is_state(x->files.tensors[i].t->name);
    if (rc == 0 && !foreign)
        rc = zb_fail(&x->z->err, -EINVAL,
                     "these files carry no unit layout; give one with --like JOB");
    if (rc == 0)
        rc = zctl_units_by_name(x->z, &x->files, &text);
    if (rc == 0)
        rc = zctl_model_parse(x->z, text, &x->model);
    free(text);
    x->model.optimizer = ZC_ADAMW;
    x->model.moments = ZC_MOMENTS_F32;
    x->model.groups = 1;
    return rc;
}

static int model_of_files(struct import *x)
{
    uint64_t format, groups = 0, iterations = 0, applied = 0;
    const char *text;
    int rc = zctl_files_metadata(x->z, &x->files, ZCTL_META_UNITS, &text);

    if (rc == 0 && !text)
        return model_by_names(x);
    if (rc == 0)
        rc = zctl_files_metadata_number(x->z, &x->files, ZCTL_META_FORMAT, UINT32_MAX, &format);
    if (rc == 0 && format != 1)
        rc = zb_fail(&x->z->err, -ENOTSUP, "the files have format %llu, and only format 1 is known",
                     (unsigned long long)format);
    if (rc == 0)
        rc = zctl_files_metadata_number(x->z, &x->files, ZCTL_META_GROUPS, UINT32_MAX, &groups);
    if (rc == 0)
        rc = zctl_files_metadata_number(x->z, &x->files, ZCTL_META_ITERATIONS, INT64_MAX,
                                        &iterations);
    if (rc == 0)
        rc = zctl_files_metadata_number(x->z, &x->files, ZCTL_META_APPLIED, iterations, &applied);
    if (rc == 0)
        rc = zctl_model_parse(x->z, text, &x->model);
    if (rc == 0)
        rc = model_optimizer(x);
    x->model.groups = (uint32_t)groups;
    x->model.iterations = iterations;
    x->model.applied = applied;
    return rc;
}

/** Takes the units of another job; the numbers of steps are the files', if they have them. */
static int model_of_job(struct import *x, const char *like)
{
    struct zctl *z = x->z;
    struct zctl_saved from;
    struct zc_reader reader;
    const char *text;
    int rc = zctl_saved(z, like, &from);

    if (rc == 0)
        rc = zctl_failed(z, zc_reader_open_wait(z->client, from.job, from.snapshot, 4096, &reader));
    if (rc < 0)
        return rc;
    rc = zctl_model_read(z, &reader, &x->model);
    if (rc == 0)
        rc = zctl_failed(z, zc_reader_close_wait(z->client, reader.id));
    x->model.iterations = x->model.applied = 0;
    if (rc == 0)
        rc = zctl_files_metadata(z, &x->files, ZCTL_META_ITERATIONS, &text);
    if (rc < 0 || !text)
        return rc;
    rc = zctl_files_metadata_number(z, &x->files, ZCTL_META_ITERATIONS, INT64_MAX,
                                    &x->model.iterations);
    return rc < 0 ? rc
                  : zctl_files_metadata_number(z, &x->files, ZCTL_META_APPLIED, x->model.iterations,
                                               &x->model.applied);
}

/* ---- the comparison */

static bool same_shape(const struct zc_st_tensor *a, const struct zc_tensor *b)
{
    if (a->ndims != b->ndims)
        return false;
    for (uint32_t i = 0; i < a->ndims; i++)
        if (a->dims[i] != b->dims[i])
            return false;
    return true;
}

/** Compares the files' tensor NAMEsuffix with the unit's. *ret NULL: it is missing and not needed.
 */
static int compare(struct import *x, const struct zc_tensor *t, const char *suffix, bool needed,
                   struct zctl_tensor **ret)
{
    struct zctl_tensor *found = zctl_files_find(&x->files, t->name, suffix);

    *ret = found;
    if (!found)
        return needed ? zb_fail(&x->z->err, -ENOENT, "the files have no tensor '%s%s'", t->name,
                                suffix)
                      : 0;
    if (!same_shape(found->t, t))
        return zb_fail(&x->z->err, -EINVAL,
                       "tensor '%s' has another shape in the files (%llu elements in %u "
                       "dimensions) than in its unit",
                       found->t->name, (unsigned long long)found->t->elems, found->t->ndims);
    if (found->t->dtype != ZC_ST_F32 &&
        (*suffix || (found->t->dtype != ZC_ST_F16 && found->t->dtype != ZC_ST_BF16)))
        return zb_fail(&x->z->err, -ENOTSUP, "tensor '%s' is of %s: %s", found->t->name,
                       zc_st_dtype_name(found->t->dtype),
                       *suffix ? "F32 is needed" : "F32, F16 or BF16 keep every bit here");
    found->used = true;
    return 0;
}

/** Takes the shape of a tensor from the files, for units that came from metadata. */
static int take_shape(struct import *x, struct zc_tensor *t)
{
    const struct zctl_tensor *found = zctl_files_find(&x->files, t->name, "");

    if (!found)
        return 0; /* compare() reports it */
    if (found->t->ndims > ZC_DIMS_MAX)
        return zb_fail(&x->z->err, -EINVAL, "tensor '%s' has %u dimensions: at most %d", t->name,
                       found->t->ndims, ZC_DIMS_MAX);
    t->ndims = found->t->ndims;
    for (uint32_t i = 0; i < t->ndims; i++)
        t->dims[i] = found->t->dims[i];
    return 0;
}

static int compare_tensor(struct import *x, const struct zc_unit *unit, const struct zc_tensor *t)
{
    bool state = x->optimizer && !unit->frozen;
    struct zctl_tensor *param, *other;
    uint64_t elems;
    int rc = compare(x, t, "", true, &param);

    if (rc == 0)
        rc = zctl_tensor_elems(x->z, unit, t, &elems);
    for (unsigned i = 0; rc == 0 && state && zctl_moment_suffix(x->model.optimizer, unit, t, i);
         i++)
        rc = compare(x, t, zctl_moment_suffix(x->model.optimizer, unit, t, i), true, &other);
    if (rc == 0 && state)
        rc = compare(x, t, ZCTL_MASTER, param->t->dtype != ZC_ST_F32, &other);
    return rc;
}

/** Whether the files have optimizer state: decided by the first trainable tensor. */
static bool has_optimizer(const struct import *x)
{
    for (uint32_t u = 0; u < x->model.nunits; u++)
        if (!x->model.units[u]->frozen && x->model.units[u]->ntensors > 0)
            return zctl_files_find(&x->files, x->model.units[u]->tensors[0].name,
                                   zctl_moment_suffix(x->model.optimizer, x->model.units[u],
                                                      &x->model.units[u]->tensors[0], 0));
    return false;
}

static int compare_all(struct import *x, bool shapes)
{
    int rc = 0;

    x->optimizer = has_optimizer(x);
    for (uint32_t u = 0; rc == 0 && u < x->model.nunits; u++)
        for (uint32_t k = 0; rc == 0 && k < x->model.units[u]->ntensors; k++) {
            const struct zc_tensor *t = &x->model.units[u]->tensors[k];

            if (!shapes) /* the block is ours: zctl_model_parse() made it */
                rc = take_shape(x, (struct zc_tensor *)(uintptr_t)t);
            if (rc == 0)
                rc = compare_tensor(x, x->model.units[u], t);
        }
    for (size_t i = 0; rc == 0 && i < x->files.ntensors; i++)
        if (!x->files.tensors[i].used)
            rc = zb_fail(&x->z->err, -EINVAL, "the files have tensor '%s', which is in no unit",
                         x->files.tensors[i].t->name);
    if (rc == 0 && x->optimizer && x->model.iterations == 0) {
        const char *text;

        rc = zctl_files_metadata(x->z, &x->files, ZCTL_META_ITERATIONS, &text);
        if (rc == 0 && !text)
            rc = zb_fail(&x->z->err, -EINVAL,
                         "the files have optimizer state, but no number of steps");
    }
    return rc;
}

/* ---- the job */

static int job_open(struct import *x, const char *name)
{
    uint64_t page_elems = zc_server(x->z->client)->page_elems, largest = 0;
    struct zc_job_options options = { .name = name,
                                      .world = 1,
                                      .keep = true,
                                      .durable = true,
                                      .groups = x->model.groups,
                                      .optimizer = x->model.optimizer,
                                      .moments = x->model.moments };
    struct zc_placement placement;
    int rc;

    for (uint32_t u = 0; u < x->model.nunits; u++)
        largest = zb_max_u64(largest, x->model.units[u]->elems);
    x->piece_elems = zb_min_u64(zb_round_up(largest, page_elems),
                                ZCTL_PIECE_BYTES / sizeof(float) / page_elems * page_elems);
    x->piece_elems = zb_max_u64(x->piece_elems, page_elems); /* where a page is more than a piece */
    options.staging_bytes = ZCTL_SLOTS * x->piece_elems * sizeof(float);
    rc = zctl_failed(x->z, zc_job_open_wait(x->z->client, &options, &x->job));
    if (rc < 0)
        return rc;
    x->made = true;
    if (x->job.staging_bytes < options.staging_bytes)
        return zb_fail(&x->z->err, -EPROTO, "the daemon gave less staging than was asked for");
    for (unsigned i = 0; i < ZCTL_SLOTS; i++)
        x->slots[i].staged = (float *)x->job.staging + i * x->piece_elems;
    x->shards = calloc(x->model.nunits, sizeof(x->shards[0]));
    if (!x->shards)
        return zb_fail(&x->z->err, -ENOMEM, "%u shards: %m", x->model.nunits);
    for (uint32_t u = 0; rc == 0 && u < x->model.nunits; u++)
        rc = zctl_failed(x->z, zc_unit_define_wait(x->z->client, x->job.id, x->model.units[u]));
    for (uint32_t u = 0; rc == 0 && u < x->model.nunits; u++) {
        const struct zc_range range = {
            .unit = u,
            .count = zb_round_up(x->model.units[u]->elems, zc_server(x->z->client)->block_elems)
        };

        rc = zctl_failed(x->z, zc_register_wait(x->z->client, x->job.id, &range, 1, &x->shards[u]));
    }
    if (rc == 0)
        rc = zctl_failed(x->z, zc_ready_wait(x->z->client, x->job.id, NULL, 0, &placement));
    return rc;
}

/** NULL: the tensor has no such moment. */
static const char *fill_suffix(const struct import *x, const struct zc_unit *unit,
                               const struct zc_tensor *t, enum zc_what what)
{
    if (what == ZC_EXP_AVG || what == ZC_EXP_AVG_SQ)
        return zctl_moment_suffix(x->model.optimizer, unit, t, (unsigned)what - ZC_EXP_AVG);
    return x->optimizer ? ZCTL_MASTER : "";
}

/** Reads elements [first, first + count) of a unit from the files; 0 between tensors. */
static int fill(struct import *x, const struct zc_unit *unit, enum zc_what what, uint64_t first,
                uint64_t count, float *to)
{
    memset(to, 0, count * sizeof(*to));
    for (uint32_t k = 0; k < unit->ntensors; k++) {
        const struct zc_tensor *t = &unit->tensors[k];
        const char *suffix = fill_suffix(x, unit, t, what);
        const struct zctl_tensor *from;
        char text[sizeof(x->z->err.text)];
        uint64_t begin, end;
        int rc;

        if (!suffix)
            continue; /* 0 */
        from = zctl_files_find(&x->files, t->name, suffix);
        if (!from) /* fp32 is its own master; so is what is frozen */
            from = zctl_files_find(&x->files, t->name, "");
        begin = zb_max_u64(first, t->first);
        end = zb_min_u64(first + count, t->first + from->t->elems);
        if (begin >= end)
            continue;
        rc = zc_st_read_f32(from->file, from->t, begin - t->first, end - begin,
                            to + (begin - first), text, sizeof(text));
        if (rc < 0)
            return zb_fail(&x->z->err, rc, "%s", text);
    }
    return 0;
}

/** Writes one plane of a unit, in pieces. */
static int write_plane(struct import *x, uint32_t u, enum zc_what what)
{
    const struct zc_unit *unit = x->model.units[u];
    uint64_t elems = zb_round_up(unit->elems, zc_server(x->z->client)->block_elems);
    int rc = 0;

    for (uint64_t first = 0, count; rc == 0 && first < elems; first += count) {
        struct zctl_slot *s = &x->slots[x->next++ % ZCTL_SLOTS];

        count = zb_min_u64(elems - first, x->piece_elems);
        rc = zctl_slot_wait(x->z, s);
        if (rc == 0)
            rc = fill(x, unit, what, first, count, s->staged);
        if (rc < 0)
            return rc;
        s->busy = true;
        rc = zc_write(x->z->client, x->shards[u], what, first, count, s->staged, zctl_slot_done, s);
        if (rc < 0) {
            s->busy = false;
            return zctl_failed(x->z, rc);
        }
    }
    return rc;
}

static int wait_all(struct import *x)
{
    int rc = 0;

    for (unsigned i = 0; rc == 0 && i < ZCTL_SLOTS; i++)
        rc = zctl_slot_wait(x->z, &x->slots[i]);
    return rc;
}

/** Whether any tensor of the unit has moment i. */
static bool unit_has(const struct import *x, const struct zc_unit *unit, unsigned i)
{
    bool has = false;

    for (uint32_t k = 0; k < unit->ntensors; k++)
        has = has || zctl_moment_suffix(x->model.optimizer, unit, &unit->tensors[k], i);
    return has;
}

/** Writes moments after masters, since writing a master zeroes its moments. */
static int write_unit(struct import *x, uint32_t u)
{
    bool state = x->optimizer && !x->model.units[u]->frozen;
    int rc = write_plane(x, u, ZC_MASTER);

    for (unsigned i = 0; rc == 0 && state && unit_has(x, x->model.units[u], i); i++) {
        rc = wait_all(x); /* two writes of a page do not go together */
        if (rc == 0)
            rc = write_plane(x, u, (enum zc_what)(ZC_EXP_AVG + i));
    }
    return rc;
}

static int import_job(struct import *x, const char *name)
{
    struct zctl *z = x->z;
    struct zc_point point;
    int rc = job_open(x, name);

    for (uint32_t u = 0; rc == 0 && u < x->model.nunits; u++)
        rc = write_unit(x, u);
    if (rc == 0)
        rc = wait_all(x);
    if (rc == 0)
        rc = zctl_failed(
            z, zc_progress_wait(z->client, x->job.id, x->model.iterations, x->model.applied));
    if (rc == 0)
        rc = zctl_failed(z, zc_commit_wait(z->client, x->job.id, ZC_COMMIT_STEP,
                                           x->model.iterations, 0, &point));
    if (rc == 0)
        rc = zctl_failed(z, zc_job_close_wait(z->client, x->job.id));
    return rc;
}

/** Destroys the job. If that fails, the message in z->err also says so. */
static void import_undo(struct import *x, const char *name)
{
    struct zb_err why = x->z->err;
    int rc;

    (void)zc_job_close_wait(x->z->client, x->job.id);
    rc = zc_job_destroy_wait(x->z->client, name);
    if (rc < 0 && rc != -ENOENT) {
        x->z->err = (struct zb_err){ 0 };
        (void)zb_fail(&x->z->err, why.code, "%.100s; and job '%s' could not be removed: %.60s",
                      why.text, name, zc_error(x->z->client));
    }
}

/* ---- the command */

struct import_row {
    char job[ZCTL_JOB_MAX + 1];
    uint64_t iterations, applied, files, tensors;
    bool optimizer;
};

static const struct zctl_column columns[] = {
    { "job", ZCTL_TEXT, offsetof(struct import_row, job), ZCTL_SHOWN, NULL, 0 },
    { "iterations", ZCTL_U64, offsetof(struct import_row, iterations), ZCTL_SHOWN, NULL, 0 },
    { "applied", ZCTL_U64, offsetof(struct import_row, applied), ZCTL_SHOWN, NULL, 0 },
    { "files", ZCTL_U64, offsetof(struct import_row, files), ZCTL_SHOWN, NULL, 0 },
    { "tensors", ZCTL_U64, offsetof(struct import_row, tensors), ZCTL_SHOWN, NULL, 0 },
    { "optimizer", ZCTL_BOOL, offsetof(struct import_row, optimizer), ZCTL_SHOWN, NULL, 0 },
};

static int import_show(const struct import *x, const char *name)
{
    struct import_row row = { .iterations = x->model.iterations,
                              .applied = x->model.applied,
                              .files = x->files.n,
                              .tensors = x->files.ntensors,
                              .optimizer = x->optimizer };

    (void)snprintf(row.job, sizeof(row.job), "%s", name);
    return zctl_print(x->z, columns, ZB_COUNT(columns), &row, 1, sizeof(row));
}

static int import_run(struct import *x, const char *name, const char *like)
{
    int rc = like ? zctl_connect(x->z) : 0;

    if (rc == 0)
        rc = like ? model_of_job(x, like) : model_of_files(x);
    if (rc == 0)
        rc = compare_all(x, like != NULL);
    if (rc == 0 && !like)
        rc = zctl_connect(x->z);
    return rc < 0 ? rc : import_job(x, name);
}

struct import_options {
    const char *like;
};

static const struct zb_opt import_options[] = {
    { "like", ZB_OPT_TEXT, ZB_OPT_AT(struct import_options, like), .arg = "JOB[@SNAPSHOT]",
      .help = "units as this job has them; without it as the files say, else one for each "
              "layer, by the names of tensors" },
    { 0 },
};

static int import_cmd(struct zctl *z, int argc, char **argv)
{
    const struct import_options *o = z->opts.values;
    struct import x = { .z = z };
    int rc;

    zctl_stop_catch();
    rc = zctl_files_open(z, argv + 1, argc - 1, &x.files);
    if (rc == 0)
        rc = import_run(&x, argv[0], o->like);
    if (rc < 0 && x.made)
        import_undo(&x, argv[0]);
    zctl_stop_leave();
    if (rc == 0)
        rc = import_show(&x, argv[0]);
    zc_close(z->client); /* a call that is still in flight ends with it, while its slot is here */
    z->client = NULL;
    zctl_model_done(&x.model);
    zctl_files_close(&x.files);
    free(x.shards);
    return rc;
}

const struct zctl_cmd zctl_import = {
    .name = "import",
    .args = "NAME PATH...",
    .help = "make a new job from safetensors: files, a folder, an index",
    .argc_min = 2,
    .argc_max = INT_MAX,
    .run = import_cmd,
    .options = import_options,
    .bytes = sizeof(struct import_options),
    ZCTL_COLUMNS(columns),
};
