/*
 * read.c - opens files and reads tensors.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/util.h"
#include "client/st/st_priv.h"

#define CONVERT_ELEMS 4096u

static int file_build(struct zc_st_file *f, const char *path, struct zb_err *err)
{
    struct stat st;

    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (f->fd < 0 || fstat(f->fd, &st) < 0)
        return zb_fail(err, -errno, "'%s': %m", path);
    if (!S_ISREG(st.st_mode))
        return zb_fail(err, -EINVAL, "'%s' is not a regular file", path);
    return zc_st_header_read(f, (uint64_t)st.st_size, err);
}

int zc_st_open(struct zc_st_file **ret, const char *path, char *error, size_t error_bytes)
{
    struct zc_st_file *f = calloc(1, sizeof(*f));
    struct zb_err why = { 0 }, err = { 0 };
    int rc;

    if (f) {
        f->fd = -1;
        rc = file_build(f, path, &why);
    } else {
        rc = zb_fail(&why, -ENOMEM, "'%s': %m", path);
    }
    if (rc == 0) {
        *ret = f;
        return 0;
    }
    zc_st_close(f);
    if (rc == -EBADMSG)
        (void)zb_fail(&err, rc, "'%s' is not a valid safetensors file: %s", path, why.text);
    else
        err = why;
    return st_tell(&err, rc, error, error_bytes);
}

void zc_st_close(struct zc_st_file *f)
{
    if (!f)
        return;
    zb_close_fd(&f->fd);
    json_decref(f->header);
    free(f->dims);
    free(f->by_name);
    free(f->entries);
    free(f);
}

/* ---- tensors */

size_t zc_st_count(const struct zc_st_file *f)
{
    return f->count;
}

const struct zc_st_tensor *zc_st_at(const struct zc_st_file *f, size_t i)
{
    return i < f->count ? &f->entries[i].t : NULL;
}

const struct zc_st_tensor *zc_st_find(const struct zc_st_file *f, const char *name)
{
    struct st_entry **found =
        bsearch(name, f->by_name, f->count, sizeof(struct st_entry *), zc_st_entry_compare);

    return found ? &(*found)->t : NULL;
}

const char *zc_st_metadata(const struct zc_st_file *f, const char *key)
{
    return json_string_value(json_object_get(json_object_get(f->header, METADATA), key));
}

static int tensor_read(const struct zc_st_file *f, const struct zc_st_tensor *t, uint64_t first,
                       uint64_t count, void *dst, struct zb_err *err)
{
    const struct st_entry *e = zb_container_of(t, struct st_entry, t);
    size_t bytes = zc_st_dtype_bytes(t->dtype);
    int rc;

    assert(e >= f->entries && e < f->entries + f->count);
    if (!zb_range_inside(first, count, t->elems))
        return zb_fail(err, -ERANGE,
                       "tensor '%s' has %" PRIu64 " elements, and %" PRIu64 " from %" PRIu64
                       " on were asked for",
                       t->name, t->elems, count, first);
    rc = zc_st_pread(f->fd, dst, count * bytes, f->data_off + e->begin + first * bytes);
    return rc == 0 ? 0 : zb_fail(err, rc, "tensor '%s': %m", t->name);
}

int zc_st_read(const struct zc_st_file *f, const struct zc_st_tensor *t, uint64_t first,
               uint64_t count, void *dst, char *error, size_t error_bytes)
{
    struct zb_err err = { 0 };

    return st_tell(&err, tensor_read(f, t, first, count, dst, &err), error, error_bytes);
}

static int tensor_convert(const struct zc_st_file *f, const struct zc_st_tensor *t, uint64_t first,
                          uint64_t count, float *dst, struct zb_err *err)
{
    uint16_t piece[CONVERT_ELEMS];

    if (!zb_range_inside(first, count, t->elems)) /* before any of dst is written */
        return tensor_read(f, t, first, count, dst, err);
    while (count > 0) {
        uint64_t n = zb_min_u64(count, CONVERT_ELEMS);
        int rc = tensor_read(f, t, first, n, piece, err);

        if (rc != 0)
            return rc;
        (void)zc_st_to_f32(t->dtype, piece, n, dst); /* the dtype is F16 or BF16 */
        first += n;
        count -= n;
        dst += n;
    }
    return 0;
}

int zc_st_read_f32(const struct zc_st_file *f, const struct zc_st_tensor *t, uint64_t first,
                   uint64_t count, float *dst, char *error, size_t error_bytes)
{
    struct zb_err err = { 0 };
    int rc;

    if (t->dtype == ZC_ST_F32)
        rc = tensor_read(f, t, first, count, dst, &err);
    else if (t->dtype == ZC_ST_F16 || t->dtype == ZC_ST_BF16)
        rc = tensor_convert(f, t, first, count, dst, &err);
    else
        rc = zb_fail(&err, -ENOTSUP, "tensor '%s' is of %s, and F32, F16 or BF16 is needed",
                     t->name, zc_st_dtype_name(t->dtype));
    return st_tell(&err, rc, error, error_bytes);
}
