/*
 * header.c - reads and checks the header of a file. Its content is not trusted.
 *
 * The length is checked against the file and the format's limit before memory is allocated. Each
 * tensor becomes a checked struct st_entry. Entries are then sorted by the offset of their data.
 * The last check, that they cover the data from 0 to the end of the file without a gap, makes every
 * later read safe. The parsed JSON object is kept, since it owns the names.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "client/st/st_priv.h"

int zc_st_pread(int fd, void *buf, size_t bytes, uint64_t off)
{
    char *p = buf;

    while (bytes > 0) {
        ssize_t n = pread(fd, p, bytes, (off_t)off);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO; /* 0: the file became shorter */
        p += n;
        off += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

static int entry_dtype(struct st_entry *e, const json_t *value, struct zb_err *err)
{
    const char *name = json_string_value(value);

    for (unsigned i = ZC_ST_BOOL; name && zc_st_dtype_name((enum zc_st_dtype)i); i++)
        if (strcmp(zc_st_dtype_name((enum zc_st_dtype)i), name) == 0) {
            e->t.dtype = (enum zc_st_dtype)i;
            return 0;
        }
    return zb_fail(err, -EBADMSG, "tensor '%s' has unknown dtype '%s'", e->t.name,
                   name ? name : "(not a string)");
}

/* Reads the shape into the next numbers of `dims`. -EBADMSG: a wrong number, or an overflow. */
static int entry_shape(struct st_entry *e, const json_t *value, uint64_t *dims, struct zb_err *err)
{
    if (!json_is_array(value))
        return zb_fail(err, -EBADMSG, "tensor '%s' has no shape", e->t.name);
    e->t.ndims = (uint32_t)json_array_size(value);
    e->t.dims = dims;
    e->t.elems = 1;
    for (uint32_t i = 0; i < e->t.ndims; i++) {
        const json_t *n = json_array_get(value, i);

        if (!json_is_integer(n) || json_integer_value(n) < 0)
            return zb_fail(err, -EBADMSG,
                           "the shape of tensor '%s' has a size that is not a number", e->t.name);
        dims[i] = (uint64_t)json_integer_value(n);
        if (!zb_mul_fits(e->t.elems, dims[i], &e->t.elems))
            return zb_fail(err, -EBADMSG, "the shape of tensor '%s' overflows", e->t.name);
    }
    return 0;
}

static int entry_offsets(struct st_entry *e, const json_t *value, struct zb_err *err)
{
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    uint64_t bytes;

    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return zb_fail(err, -EBADMSG, "the data_offsets of tensor '%s' are not a range", e->t.name);
    e->begin = (uint64_t)json_integer_value(begin);
    e->end = (uint64_t)json_integer_value(end);
    if (!zb_mul_fits(e->t.elems, zc_st_dtype_bytes(e->t.dtype), &bytes) ||
        bytes != e->end - e->begin)
        return zb_fail(err, -EBADMSG,
                       "tensor '%s' has %" PRIu64 " bytes, which does not match its shape of %s",
                       e->t.name, e->end - e->begin, zc_st_dtype_name(e->t.dtype));
    return 0;
}

static int entry_parse(struct st_entry *e, const char *name, const json_t *info, uint64_t *dims,
                       struct zb_err *err)
{
    int rc;

    e->t.name = name;
    if (!json_is_object(info) || json_object_size(info) != 3 || !json_object_get(info, "dtype") ||
        !json_object_get(info, "shape") || !json_object_get(info, "data_offsets"))
        return zb_fail(err, -EBADMSG,
                       "tensor '%s' must have dtype, shape and data_offsets, and "
                       "nothing else",
                       name);
    rc = entry_dtype(e, json_object_get(info, "dtype"), err);
    if (rc == 0)
        rc = entry_shape(e, json_object_get(info, "shape"), dims, err);
    if (rc == 0)
        rc = entry_offsets(e, json_object_get(info, "data_offsets"), err);
    return rc;
}

static int metadata_check(const json_t *meta, struct zb_err *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(meta))
        return zb_fail(err, -EBADMSG, METADATA " is not an object");
    json_object_foreach((json_t *)meta, key, value) if (!json_is_string(value)) return zb_fail(
        err, -EBADMSG, METADATA " has '%s', which is not a string", key);
    return 0;
}

static int entry_order(const void *a, const void *b)
{
    const struct st_entry *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end; /* empty tensors before the one they touch */
}

static int entry_order_by_name(const void *a, const void *b)
{
    return strcmp((*(struct st_entry *const *)a)->t.name, (*(struct st_entry *const *)b)->t.name);
}

int zc_st_entry_compare(const void *name, const void *entry)
{
    return strcmp(name, (*(struct st_entry *const *)entry)->t.name);
}

static int entries_cover(const struct zc_st_file *f, struct zb_err *err)
{
    uint64_t at = 0;

    for (size_t i = 0; i < f->count; i++) {
        const struct st_entry *e = &f->entries[i];

        if (e->begin != at)
            return zb_fail(err, -EBADMSG,
                           "the data of tensor '%s' begins at %" PRIu64 ", and the "
                           "one before it ends at %" PRIu64,
                           e->t.name, e->begin, at);
        at = e->end;
    }
    if (at != f->data_bytes)
        return zb_fail(err, -EBADMSG,
                       "the tensors have %" PRIu64 " bytes, and the file has %" PRIu64
                       " bytes of data",
                       at, f->data_bytes);
    return 0;
}

static int entries_parse(struct zc_st_file *f, struct zb_err *err)
{
    size_t ndims = 0;
    const char *name;
    json_t *info;
    int rc;

    json_object_foreach(f->header, name, info)
        ndims += json_array_size(json_object_get(info, "shape")); /* 0 if it is not an array */
    f->entries = calloc(json_object_size(f->header) + 1, sizeof(*f->entries));
    f->by_name = calloc(json_object_size(f->header) + 1, sizeof(struct st_entry *));
    f->dims = calloc(ndims + 1, sizeof(*f->dims));
    if (!f->entries || !f->by_name || !f->dims)
        return zb_fail(err, -ENOMEM, "tensors: %m");
    ndims = 0;
    json_object_foreach(f->header, name, info)
    {
        if (strcmp(name, METADATA) == 0) {
            rc = metadata_check(info, err);
        } else {
            rc = entry_parse(&f->entries[f->count], name, info, f->dims + ndims, err);
            ndims += f->entries[f->count++].t.ndims;
        }
        if (rc != 0)
            return rc;
    }
    qsort(f->entries, f->count, sizeof(*f->entries), entry_order);
    for (size_t i = 0; i < f->count; i++)
        f->by_name[i] = &f->entries[i];
    qsort(f->by_name, f->count, sizeof(struct st_entry *), entry_order_by_name);
    return entries_cover(f, err);
}

static int header_read(struct zc_st_file *f, uint64_t file_bytes, struct zb_err *err)
{
    json_error_t why;
    uint64_t bytes;
    char *text;
    int rc;

    if (file_bytes < LENGTH_BYTES)
        return zb_fail(err, -EBADMSG, "the file is truncated: %" PRIu64 " bytes have no header",
                       file_bytes);
    rc = zc_st_pread(f->fd, &bytes, LENGTH_BYTES, 0);
    if (rc != 0)
        return zb_fail(err, rc, "header: %m");
    if (bytes > ZC_ST_HEADER_MAX)
        return zb_fail(err, -EBADMSG, "a header of %" PRIu64 " bytes is above the format's limit",
                       bytes);
    if (bytes > file_bytes - LENGTH_BYTES)
        return zb_fail(err, -EBADMSG,
                       "the file is truncated inside its header of %" PRIu64 " bytes", bytes);
    f->data_off = LENGTH_BYTES + bytes;
    f->data_bytes = file_bytes - f->data_off;
    text = malloc(bytes + 1);
    if (!text)
        return zb_fail(err, -ENOMEM, "header of %" PRIu64 " bytes: %m", bytes);
    rc = zc_st_pread(f->fd, text, bytes, LENGTH_BYTES);
    if (rc != 0)
        (void)zb_fail(err, rc, "header: %m");
    else if (bytes == 0 || text[0] != '{')
        rc = zb_fail(err, -EBADMSG, "the header is not a JSON object");
    else if (!(f->header = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why)))
        rc = zb_fail(err, json_error_code(&why) == json_error_out_of_memory ? -ENOMEM : -EBADMSG,
                     "the header, at byte %d: %s", why.position, why.text);
    free(text);
    return rc;
}

int zc_st_header_read(struct zc_st_file *f, uint64_t file_bytes, struct zb_err *err)
{
    int rc = header_read(f, file_bytes, err);

    return rc == 0 ? entries_parse(f, err) : rc;
}
