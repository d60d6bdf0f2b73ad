#include "examples/gpt/weights.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PREFIX "transformer."
#define SUFFIX ".safetensors"

struct found {
    const struct zc_st_file *file;
    const struct zc_st_tensor *tensor;
};

struct gpt_weights {
    const struct gpt *model;
    struct zc_st_file **files;
    size_t nfiles;
    struct found (*tensors)[GPT_UNIT_TENSORS_MAX]; /* by unit */
};

/* Of all files: *ret NULL, none has it. -EINVAL: two have. */
static int find(const struct gpt_weights *w, const char *name, struct found *ret, const char *path,
                struct zb_err *err)
{
    *ret = (struct found){ 0 };
    for (size_t i = 0; i < w->nfiles; i++) {
        const struct zc_st_tensor *t = zc_st_find(w->files[i], name);

        if (t && ret->tensor)
            return zb_fail(err, -EINVAL, "two files of '%s' have '%s'", path, name);
        if (t)
            *ret = (struct found){ w->files[i], t };
    }
    return 0;
}

static int tensor_find(struct gpt_weights *w, uint32_t unit, uint32_t k, const char *path,
                       struct zb_err *err)
{
    const struct gpt_tensor *t = &w->model->units[unit].tensors[k];
    const struct zc_st_tensor *found;
    struct found where;
    bool same;
    int rc = find(w, t->name, &where, path, err);

    if (rc == 0 && !where.tensor)
        rc = find(w, t->name + strlen(PREFIX), &where, path, err);
    if (rc < 0)
        return rc;
    found = where.tensor;
    if (!found)
        return zb_fail(err, -ENOENT, "'%s' has no tensor '%s'", path, t->name);
    if (found->dtype != ZC_ST_F32 && found->dtype != ZC_ST_F16 && found->dtype != ZC_ST_BF16)
        return zb_fail(err, -ENOTSUP, "'%s' has '%s' in %s; F32, F16 or BF16 can be read", path,
                       t->name, zc_st_dtype_name(found->dtype));
    same = found->ndims == t->ndims;
    for (uint32_t i = 0; same && i < t->ndims; i++)
        same = found->dims[i] == t->dims[i];
    if (!same) {
        bool positions = strcmp(t->name, PREFIX "wpe.weight") == 0;
        char needed[48];

        (void)snprintf(needed, sizeof(needed),
                       t->ndims == 2 ? "%" PRIu64 " by %" PRIu64 : "%" PRIu64, t->dims[0],
                       t->dims[1]);
        return zb_fail(err, -EINVAL,
                       "'%s' has '%s' in another shape (%" PRIu64 " elements, %u "
                       "dimensions); this model needs %s%s",
                       path, t->name, found->elems, found->ndims, needed,
                       positions ? " (--seq by --width)" : "");
    }
    w->tensors[unit][k] = where;
    return 0;
}

static int file_add(struct gpt_weights *w, const char *path, struct zb_err *err)
{
    struct zc_st_file **files = realloc(w->files, (w->nfiles + 1) * sizeof(*files));
    char why[sizeof(err->text)];
    int rc;

    if (!files)
        return zb_fail(err, -ENOMEM, "'%s': %m", path);
    w->files = files;
    rc = zc_st_open(&files[w->nfiles], path, why, sizeof(why));
    w->nfiles += rc == 0;
    return rc == 0 ? 0 : zb_fail(err, rc, "%s", why);
}

/* Every file of a folder that Hugging Face's libraries wrote: model.safetensors, or its parts. */
static int folder_add(struct gpt_weights *w, const char *folder, struct zb_err *err)
{
    DIR *dir = opendir(folder);
    int rc = dir ? 0 : zb_fail(err, -errno, "'%s': %m", folder);

    for (struct dirent *e; rc == 0 && (e = readdir(dir)) != NULL;) {
        size_t len = strlen(e->d_name);
        char *path = NULL;

        if (len <= strlen(SUFFIX) || strcmp(e->d_name + len - strlen(SUFFIX), SUFFIX) != 0)
            continue;
        if (asprintf(&path, "%s/%s", folder, e->d_name) < 0)
            rc = zb_fail(err, -ENOMEM, "'%s': %m", folder);
        else
            rc = file_add(w, path, err);
        free(path);
    }
    if (dir)
        (void)closedir(dir);
    if (rc == 0 && w->nfiles == 0)
        rc = zb_fail(err, -ENOENT, "'%s' has no file *" SUFFIX, folder);
    return rc;
}

static int files_open(struct gpt_weights *w, const char *path, struct zb_err *err)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? folder_add(w, path, err)
                                                       : file_add(w, path, err);
}

static int by_address(const void *a, const void *b)
{
    const struct zc_st_tensor *const *x = a, *const *y = b;

    return *x < *y ? -1 : *x > *y;
}

/* Masks that GPT-2's own files have among the weights: the model makes them by itself. */
static bool tensor_is_mask(const char *name)
{
    static const char *const ends[] = { ".attn.bias", ".attn.masked_bias" };
    size_t n = strlen(name);

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (n >= strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0)
            return true;
    return false;
}

/* 1: the file's head is the embedding of its tokens, as in this model; 0: it is not; or -EIO. */
static int tensor_is_tied(const struct gpt_weights *w, const struct zc_st_file *file,
                          const struct zc_st_tensor *t, struct zb_err *err)
{
    const struct zc_st_tensor *wte = w->tensors[0][0].tensor;
    float head[1024], embedding[1024];
    char why[sizeof(err->text)];
    uint64_t n;
    int rc = 0;

    assert(strcmp(w->model->units[0].tensors[0].name, PREFIX "wte.weight") == 0);
    if (strcmp(t->name, "lm_head.weight") != 0 || t->dtype != wte->dtype || t->ndims != 2 ||
        t->dims[0] != wte->dims[0] || t->dims[1] != wte->dims[1])
        return 0;
    for (uint64_t at = 0; at < t->elems && rc == 0; at += n) {
        n = t->elems - at < 1024 ? t->elems - at : 1024;
        rc = zc_st_read_f32(file, t, at, n, head, why, sizeof(why));
        if (rc == 0)
            rc = zc_st_read_f32(w->tensors[0][0].file, wte, at, n, embedding, why, sizeof(why));
        if (rc == 0 && memcmp(head, embedding, n * sizeof(*head)) != 0)
            return 0;
    }
    return rc == 0 ? 1 : zb_fail(err, rc, "%s", why);
}

/* What the model leaves out of the files, the first of it by name. */
struct unused {
    size_t n, at;
    char names[3 * 64];
};

static int file_unused(const struct gpt_weights *w, const struct zc_st_file *file,
                       const struct zc_st_tensor **used, size_t nused, struct unused *ret,
                       struct zb_err *err)
{
    for (size_t i = 0; i < zc_st_count(file); i++) {
        const struct zc_st_tensor *t = zc_st_at(file, i);
        int tied;

        if (bsearch(&t, used, nused, sizeof(*used), by_address) || tensor_is_mask(t->name))
            continue;
        tied = tensor_is_tied(w, file, t, err);
        if (tied < 0)
            return tied;
        if (!tied && ret->n++ < 3)
            ret->at += (size_t)snprintf(ret->names + ret->at, sizeof(ret->names) - ret->at,
                                        "%s'%.50s'", ret->n > 1 ? ", " : "", t->name);
    }
    return 0;
}

/* What this model would leave out makes another model than the file's: it is named. */
static int weights_all_used(const struct gpt_weights *w, const char *path, struct zb_err *err)
{
    const struct zc_st_tensor **used =
        calloc((size_t)w->model->nunits * GPT_UNIT_TENSORS_MAX, sizeof(*used));
    struct unused unused = { 0 };
    size_t n = 0;
    int rc = 0;

    if (!used)
        return zb_fail(err, -ENOMEM, "'%s': %m", path);
    for (uint32_t u = 0; u < w->model->nunits; u++)
        for (uint32_t k = 0; k < w->model->units[u].ntensors; k++)
            used[n++] = w->tensors[u][k].tensor;
    qsort(used, n, sizeof(*used), by_address);
    for (size_t i = 0; i < w->nfiles && rc == 0; i++)
        rc = file_unused(w, w->files[i], used, n, &unused, err);
    free(used);
    if (rc < 0 || unused.n == 0)
        return rc;
    return zb_fail(err, -ENOTSUP,
                   "'%s' has %zu tensor%s that this model does not use (%s%s): a model with fewer "
                   "layers, or with its head tied, is another one",
                   path, unused.n, unused.n > 1 ? "s" : "", unused.names,
                   unused.n > 3 ? ", ..." : "");
}

static int weights_build(struct gpt_weights *w, const char *path, struct zb_err *err)
{
    int rc = files_open(w, path, err);

    if (rc != 0)
        return rc;
    w->tensors = calloc(w->model->nunits, sizeof(*w->tensors));
    if (!w->tensors)
        return zb_fail(err, -ENOMEM, "'%s': %m", path);
    for (uint32_t u = 0; u < w->model->nunits && rc == 0; u++)
        for (uint32_t k = 0; k < w->model->units[u].ntensors && rc == 0; k++)
            rc = tensor_find(w, u, k, path, err);
    return rc == 0 ? weights_all_used(w, path, err) : rc;
}

int gpt_weights_open(struct gpt_weights **ret, const struct gpt *model, const char *path,
                     struct zb_err *err)
{
    struct gpt_weights *w = calloc(1, sizeof(*w));
    int rc;

    if (!w)
        return zb_fail(err, -ENOMEM, "'%s': %m", path);
    w->model = model;
    rc = weights_build(w, path, err);
    if (rc == 0)
        *ret = w;
    else
        gpt_weights_close(w);
    return rc;
}

void gpt_weights_close(struct gpt_weights *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->nfiles; i++)
        zc_st_close(w->files[i]);
    free(w->files);
    free(w->tensors);
    free(w);
}

int gpt_weights_range(const struct gpt_weights *w, uint32_t unit, uint64_t first, uint64_t count,
                      float *out, struct zb_err *err)
{
    const struct gpt_unit *u = &w->model->units[unit];

    assert(first <= u->elems && count <= u->elems - first);
    for (uint32_t k = 0; k < u->ntensors; k++) {
        const struct gpt_tensor *t = &u->tensors[k];
        uint64_t from = first > t->first ? first : t->first;
        uint64_t to = first + count < t->first + t->elems ? first + count : t->first + t->elems;
        char why[sizeof(err->text)];
        int rc = 0;

        if (from < to)
            rc = zc_st_read_f32(w->tensors[unit][k].file, w->tensors[unit][k].tensor,
                                from - t->first, to - from, out + (from - first), why, sizeof(why));
        if (rc != 0)
            return zb_fail(err, rc, "%s", why);
    }
    return 0;
}

int gpt_weights_create(struct zc_st_writer **ret, const struct gpt *model, const char *path,
                       struct zb_err *err)
{
    static const struct zc_st_pair metadata = { "format", "pt" }; /* transformers looks for it */
    struct zc_st_tensor *tensors =
        calloc((size_t)model->nunits * GPT_UNIT_TENSORS_MAX, sizeof(*tensors));
    char why[sizeof(err->text)];
    size_t n = 0;
    int rc;

    if (!tensors)
        return zb_fail(err, -ENOMEM, "'%s': %m", path);
    for (uint32_t u = 0; u < model->nunits; u++)
        for (uint32_t k = 0; k < model->units[u].ntensors; k++) {
            const struct gpt_tensor *t = &model->units[u].tensors[k];

            tensors[n++] = (struct zc_st_tensor){
                .name = t->name, .dtype = ZC_ST_F32, .ndims = t->ndims, .dims = t->dims
            };
        }
    rc = zc_st_create(ret, path, tensors, n, &metadata, 1, why, sizeof(why));
    free(tensors);
    return rc == 0 ? 0 : zb_fail(err, rc, "%s", why);
}
