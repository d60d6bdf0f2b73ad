/*
 * files.c - a set of safetensors files that are read as one.
 *
 * MODEL. Each word of the command line stands for files: itself, or those that an index names. Each
 * file is checked by itself (zc_safetensors.h). Here it is checked that no name is in two of them,
 * and that an index matches its files.
 */
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/zctl/files/files.h"

#define INDEX_SUFFIX ".index.json"
#define FILES_MAX    99999u /* limit of five digits */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);

    return n >= k && strcmp(text + n - k, end) == 0;
}

static int tensor_order(const void *a, const void *b)
{
    return strcmp(((const struct zctl_tensor *)a)->t->name,
                  ((const struct zctl_tensor *)b)->t->name);
}

/* ---- opening */

static int files_add(struct zctl *z, struct zctl_files *files, const char *path)
{
    struct zc_st_file **grown = realloc(files->files, (files->n + 1) * sizeof(*grown));
    char **paths, text[sizeof(z->err.text)];
    int rc;

    if (grown)
        files->files = grown;
    paths = grown ? realloc(files->paths, (files->n + 1) * sizeof(*paths)) : NULL;
    if (!paths)
        return zb_fail(&z->err, -ENOMEM, "'%s': %m", path);
    files->paths = paths;
    rc = zc_st_open(&files->files[files->n], path, text, sizeof(text));
    if (rc < 0)
        return zb_fail(&z->err, rc, "%s", text);
    files->paths[files->n] = strdup(path);
    if (!files->paths[files->n++])
        return zb_fail(&z->err, -ENOMEM, "'%s': %m", path);
    return 0;
}

/** Opens a file that an index names, once, however often it is named. It is in the same folder. */
static int index_file(struct zctl *z, struct zctl_files *files, size_t from, const char *index,
                      const char *name)
{
    char *copy = strdup(index), *path = NULL;
    bool known = false;
    int rc = 0;

    if (!copy || asprintf(&path, "%s/%s", dirname(copy), name) < 0) {
        free(copy);
        return zb_fail(&z->err, -ENOMEM, "'%s': %m", index);
    }
    if (!*name || strchr(name, '/'))
        rc = zb_fail(&z->err, -EBADMSG, "'%s' names '%s', which is not a file in the same folder",
                     index, name);
    for (size_t i = from; i < files->n; i++)
        known = known || strcmp(files->paths[i], path) == 0;
    if (rc == 0 && !known && files->n - from >= FILES_MAX)
        rc = zb_fail(&z->err, -EBADMSG, "'%s' names more than %u files", index, FILES_MAX);
    if (rc == 0 && !known)
        rc = files_add(z, files, path);
    free(path);
    free(copy);
    return rc;
}

/** Checks that every tensor is in the file that the map names, and that there are no others. */
static int index_check(struct zctl *z, const struct zctl_files *files, size_t from,
                       const json_t *map, const char *index)
{
    size_t found = 0;

    for (size_t i = from; i < files->n; i++)
        for (size_t k = 0; k < zc_st_count(files->files[i]); k++) {
            const char *name = zc_st_at(files->files[i], k)->name;
            const char *in = json_string_value(json_object_get(map, name));
            const char *base = strrchr(files->paths[i], '/');

            if (!in || strcmp(in, base ? base + 1 : files->paths[i]) != 0)
                return zb_fail(&z->err, -EBADMSG, "'%s' has tensor '%s', which '%s' does not list",
                               files->paths[i], name, index);
            found++;
        }
    if (found != json_object_size(map))
        return zb_fail(&z->err, -EBADMSG, "'%s' names %zu tensors, and the files have %zu", index,
                       json_object_size(map), found);
    return 0;
}

static int index_open(struct zctl *z, struct zctl_files *files, const char *index)
{
    size_t from = files->n;
    json_error_t why;
    json_t *all = json_load_file(index, JSON_REJECT_DUPLICATES, &why);
    json_t *map = json_object_get(all, "weight_map"), *value;
    const char *name;
    int rc = 0;

    if (!all)
        return zb_fail(&z->err,
                       json_error_code(&why) == json_error_cannot_open_file ? -ENOENT : -EBADMSG,
                       "'%s': %s", index, why.text);
    if (!json_is_object(map) || json_object_size(map) == 0)
        rc = zb_fail(&z->err, -EBADMSG, "'%s' has no weight_map", index);
    json_object_foreach(map, name, value)
    {
        if (rc == 0 && !json_is_string(value))
            rc = zb_fail(&z->err, -EBADMSG, "'%s' names no file for tensor '%s'", index, name);
        if (rc == 0)
            rc = index_file(z, files, from, index, json_string_value(value));
    }
    if (rc == 0)
        rc = index_check(z, files, from, map, index);
    json_decref(all);
    return rc;
}

/** Opens a folder: its index, else model.safetensors. */
static int folder_open(struct zctl *z, struct zctl_files *files, const char *folder)
{
    char *path = NULL;
    struct stat st;
    int rc;

    if (asprintf(&path, "%s/model.safetensors" INDEX_SUFFIX, folder) < 0)
        return zb_fail(&z->err, -ENOMEM, "'%s': %m", folder);
    if (stat(path, &st) == 0) {
        rc = index_open(z, files, path);
    } else {
        path[strlen(path) - strlen(INDEX_SUFFIX)] = '\0';
        rc = files_add(z, files, path);
    }
    free(path);
    return rc;
}

static int files_sort(struct zctl *z, struct zctl_files *files)
{
    size_t total = 0;

    for (size_t i = 0; i < files->n; i++)
        total += zc_st_count(files->files[i]);
    files->tensors = calloc(total + 1, sizeof(files->tensors[0]));
    if (!files->tensors)
        return zb_fail(&z->err, -ENOMEM, "%zu tensors: %m", total);
    for (size_t i = 0; i < files->n; i++)
        for (size_t k = 0; k < zc_st_count(files->files[i]); k++)
            files->tensors[files->ntensors++] =
                (struct zctl_tensor){ .t = zc_st_at(files->files[i], k), .file = files->files[i] };
    qsort(files->tensors, files->ntensors, sizeof(files->tensors[0]), tensor_order);
    for (size_t i = 1; i < files->ntensors; i++)
        if (strcmp(files->tensors[i - 1].t->name, files->tensors[i].t->name) == 0)
            return zb_fail(&z->err, -EBADMSG, "tensor '%s' is in two files",
                           files->tensors[i].t->name);
    return 0;
}

int zctl_files_open(struct zctl *z, char **words, int n, struct zctl_files *ret)
{
    int rc = 0;

    *ret = (struct zctl_files){ 0 };
    for (int i = 0; rc == 0 && i < n; i++) {
        struct stat st;

        if (stat(words[i], &st) == 0 && S_ISDIR(st.st_mode))
            rc = folder_open(z, ret, words[i]);
        else if (ends_with(words[i], INDEX_SUFFIX))
            rc = index_open(z, ret, words[i]);
        else
            rc = files_add(z, ret, words[i]);
    }
    return rc < 0 ? rc : files_sort(z, ret);
}

void zctl_files_close(struct zctl_files *files)
{
    for (size_t i = 0; i < files->n; i++) {
        zc_st_close(files->files[i]);
        free(files->paths[i]);
    }
    free(files->files);
    free(files->paths);
    free(files->tensors);
    *files = (struct zctl_files){ 0 };
}

/* ---- looking in */

struct wanted {
    const char *name, *suffix;
};

static int wanted_order(const void *a, const void *b)
{
    const struct wanted *w = a;
    const char *name = ((const struct zctl_tensor *)b)->t->name;
    size_t n = strlen(w->name);
    int order = strncmp(w->name, name, n);

    return order ? order : strcmp(w->suffix, name + n);
}

struct zctl_tensor *zctl_files_find(const struct zctl_files *files, const char *name,
                                    const char *suffix)
{
    const struct wanted w = { name, suffix };

    return bsearch(&w, files->tensors, files->ntensors, sizeof(files->tensors[0]), wanted_order);
}

int zctl_files_metadata(struct zctl *z, const struct zctl_files *files, const char *key,
                        const char **ret)
{
    *ret = NULL;
    for (size_t i = 0; i < files->n; i++) {
        const char *value = zc_st_metadata(files->files[i], key);

        if (value && *ret && strcmp(value, *ret) != 0)
            return zb_fail(&z->err, -EBADMSG, "'%s' and the files before it have a different %s",
                           files->paths[i], key);
        if (value)
            *ret = value;
    }
    return 0;
}

int zctl_files_metadata_number(struct zctl *z, const struct zctl_files *files, const char *key,
                               uint64_t max, uint64_t *ret)
{
    unsigned long long n;
    const char *text;
    char *end;
    int rc = zctl_files_metadata(z, files, key, &text);

    if (rc < 0)
        return rc;
    if (!text)
        return zb_fail(&z->err, -EBADMSG, "the files have no %s", key);
    errno = 0;
    n = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno || n > max)
        return zb_fail(&z->err, -EBADMSG, "%s is '%s'", key, text);
    *ret = n;
    return 0;
}
