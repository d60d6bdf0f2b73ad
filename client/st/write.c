/*
 * write.c - writes a file. The header is computed first, so data is streamed in one pass. A file
 * appears under its name only when its bytes are on the device.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "client/st/st_priv.h"

#define WRITE_BUFFER  (1u << 20)
#define TMP_NAMES_MAX 100u

struct zc_st_writer {
    FILE *out;
    char *path, *tmp; /* tmp NULL: no file of ours exists */
    uint64_t left;    /* bytes of data to come */
};

/* Adds a tensor at offset *at, and advances *at past it. */
static int header_add(json_t *header, const struct zc_st_tensor *t, uint64_t *at,
                      struct zb_err *err)
{
    uint64_t bytes = zc_st_dtype_bytes(t->dtype), end;
    json_t *shape;

    if (bytes == 0)
        return zb_fail(err, -EINVAL, "tensor '%s' has no such dtype", t->name);
    if (strcmp(t->name, METADATA) == 0 || json_object_get(header, t->name))
        return zb_fail(err, -EINVAL, "a tensor cannot be called '%s'%s", t->name,
                       json_object_get(header, t->name) ? " twice" : "");
    shape = json_array();
    for (uint32_t i = 0; i < t->ndims; i++) {
        if (!zb_mul_fits(bytes, t->dims[i], &bytes) || t->dims[i] > INT64_MAX) {
            json_decref(shape);
            return zb_fail(err, -EINVAL, "the shape of tensor '%s' overflows", t->name);
        }
        (void)json_array_append_new(shape, json_integer((json_int_t)t->dims[i]));
    }
    if (!zb_add_fits(*at, bytes, &end) || end > INT64_MAX) {
        json_decref(shape);
        return zb_fail(err, -EINVAL, "the shape of tensor '%s' overflows", t->name);
    }
    if (json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", zc_st_dtype_name(t->dtype),
                                      "shape", shape, "data_offsets", (json_int_t)*at,
                                      (json_int_t)end)) != 0)
        return zb_fail(err, -EINVAL, "a tensor's name is not UTF-8: '%s'", t->name);
    *at = end;
    return 0;
}

static int header_make(const struct zc_st_tensor *tensors, size_t n,
                       const struct zc_st_pair *metadata, size_t npairs, char **ret_text,
                       uint64_t *ret_data_bytes, struct zb_err *err)
{
    json_t *header = json_object(), *meta = json_object();
    int rc = header && meta ? 0 : zb_fail(err, -ENOMEM, "header: %m");

    *ret_data_bytes = 0;
    for (size_t i = 0; i < npairs && rc == 0; i++)
        if (json_object_set_new(meta, metadata[i].key, json_string(metadata[i].value)) != 0)
            rc = zb_fail(err, -EINVAL, "metadata '%s' is not UTF-8", metadata[i].key);
    if (npairs > 0)
        (void)json_object_set(header, METADATA, meta);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = header_add(header, &tensors[i], ret_data_bytes, err);
    *ret_text = rc == 0 ? json_dumps(header, JSON_COMPACT) : NULL;
    if (rc == 0 && !*ret_text)
        rc = zb_fail(err, -ENOMEM, "header: %m");
    json_decref(meta);
    json_decref(header);
    return rc;
}

static int writer_put(struct zc_st_writer *w, const void *bytes, size_t len, struct zb_err *err)
{
    errno = EIO; /* if the C library sets no errno */
    if (len > 0 && fwrite(bytes, 1, len, w->out) != len)
        return zb_fail(err, -errno, "'%s': %m", w->path);
    return 0;
}

static int writer_header(struct zc_st_writer *w, const char *text, struct zb_err *err)
{
    static const char spaces[8] = "        ";
    uint64_t len = strlen(text), padded = zb_round_up(len, 8);
    int rc;

    if (padded > ZC_ST_HEADER_MAX)
        return zb_fail(err, -EMSGSIZE, "a header of %" PRIu64 " bytes is above the format's limit",
                       padded);
    rc = writer_put(w, &padded, LENGTH_BYTES, err);
    if (rc == 0)
        rc = writer_put(w, text, len, err);
    return rc == 0 ? writer_put(w, spaces, padded - len, err) : rc;
}

/* Creates a new file in the same directory. A killed process may have left a file of that name. */
static int writer_tmp(struct zc_st_writer *w, struct zb_err *err)
{
    size_t room = strlen(w->path) + 48;
    char *tmp = malloc(room);
    int fd = -1;

    if (!tmp)
        return zb_fail(err, -ENOMEM, "'%s': %m", w->path);
    for (unsigned i = 0; fd < 0 && i < TMP_NAMES_MAX; i++) {
        (void)snprintf(tmp, room, "%s.tmp-%ld.%u", w->path, (long)getpid(), i);
        fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    if (fd < 0) {
        int rc = zb_fail(err, -errno, "'%s': %m", w->path);

        free(tmp);
        return rc;
    }
    w->tmp = tmp;
    w->out = fdopen(fd, "w");
    if (!w->out) {
        (void)close(fd);
        return zb_fail(err, -ENOMEM, "'%s': %m", w->path);
    }
    (void)setvbuf(w->out, NULL, _IOFBF, WRITE_BUFFER); /* on failure the default buffer is used */
    return 0;
}

int zc_st_create(struct zc_st_writer **ret, const char *path, const struct zc_st_tensor *tensors,
                 size_t n, const struct zc_st_pair *metadata, size_t npairs, char *error,
                 size_t error_bytes)
{
    struct zc_st_writer *w = calloc(1, sizeof(*w));
    struct zb_err err = { 0 };
    char *text = NULL;
    int rc = 0;

    if (w)
        w->path = strdup(path);
    if (!w || !w->path)
        rc = zb_fail(&err, -ENOMEM, "'%s': %m", path);
    if (rc == 0)
        rc = header_make(tensors, n, metadata, npairs, &text, &w->left, &err);
    if (rc == 0)
        rc = writer_tmp(w, &err);
    if (rc == 0)
        rc = writer_header(w, text, &err);
    free(text);
    if (rc == 0)
        *ret = w;
    else
        zc_st_discard(w);
    return st_tell(&err, rc, error, error_bytes);
}

int zc_st_append(struct zc_st_writer *w, const void *bytes, size_t len_bytes, char *error,
                 size_t error_bytes)
{
    struct zb_err err = { 0 };
    int rc;

    if (len_bytes > w->left)
        rc = zb_fail(&err, -ERANGE,
                     "'%s': %zu bytes are too many, the tensors have room for %" PRIu64, w->path,
                     len_bytes, w->left);
    else
        rc = writer_put(w, bytes, len_bytes, &err);
    if (rc == 0)
        w->left -= len_bytes;
    return st_tell(&err, rc, error, error_bytes);
}

/* Makes the new name durable. */
static int folder_sync(const char *path)
{
    char *copy = strdup(path);
    int fd, rc = 0;

    if (!copy)
        return -ENOMEM;
    fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || (fsync(fd) < 0 && errno != EINVAL)) /* EINVAL: not on this file system */
        rc = -errno;
    zb_close_fd(&fd);
    free(copy);
    return rc;
}

static int writer_commit(struct zc_st_writer *w, struct zb_err *err)
{
    int rc;

    if (w->left > 0)
        return zb_fail(err, -ENODATA, "'%s': %" PRIu64 " bytes of the tensors were never written",
                       w->path, w->left);
    errno = EIO;
    if (fflush(w->out) != 0 || fsync(fileno(w->out)) < 0)
        return zb_fail(err, -errno, "'%s': %m", w->path);
    if (rename(w->tmp, w->path) < 0)
        return zb_fail(err, -errno, "'%s': %m", w->path);
    free(w->tmp);
    w->tmp = NULL;
    rc = folder_sync(w->path);
    return rc == 0 ? 0 : zb_fail(err, rc, "the folder of '%s': %m", w->path);
}

int zc_st_commit(struct zc_st_writer *w, char *error, size_t error_bytes)
{
    struct zb_err err = { 0 };
    int rc = writer_commit(w, &err);

    zc_st_discard(w);
    return st_tell(&err, rc, error, error_bytes);
}

void zc_st_discard(struct zc_st_writer *w)
{
    if (!w)
        return;
    if (w->out)
        (void)fclose(w->out);
    if (w->tmp)
        (void)unlink(w->tmp);
    free(w->tmp);
    free(w->path);
    free(w);
}
