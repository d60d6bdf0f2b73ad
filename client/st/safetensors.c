/*
 * safetensors.c - reads and writes zc_safetensors.h's files.
 *
 * READING. The header comes from outside: its length is checked against the file and the format's
 * limit before memory is taken for it, and each tensor becomes a checked struct st_entry. Entries
 * are then sorted by where their data begins; that they follow each other without a gap, from 0 to
 * the end of the file, is the last rule and makes every later read safe. Lookup by name goes
 * through the parsed JSON object, which is kept and owns the names.
 *
 * WRITING. The header is computed first, so data is streamed in one pass. A file appears under its
 * name only when its bytes are on the device.
 */
#include "client/zc_safetensors.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/util.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian");

#define METADATA      "__metadata__"
#define LENGTH_BYTES  8u
#define WRITE_BUFFER  (1u << 20)
#define CONVERT_ELEMS 4096u
#define TMP_NAMES_MAX 100u

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [ZC_ST_BOOL] = { "BOOL", 1 },       [ZC_ST_U8] = { "U8", 1 },
    [ZC_ST_I8] = { "I8", 1 },           [ZC_ST_F8_E5M2] = { "F8_E5M2", 1 },
    [ZC_ST_F8_E4M3] = { "F8_E4M3", 1 }, [ZC_ST_F8_E8M0] = { "F8_E8M0", 1 },
    [ZC_ST_I16] = { "I16", 2 },         [ZC_ST_U16] = { "U16", 2 },
    [ZC_ST_F16] = { "F16", 2 },         [ZC_ST_BF16] = { "BF16", 2 },
    [ZC_ST_I32] = { "I32", 4 },         [ZC_ST_U32] = { "U32", 4 },
    [ZC_ST_F32] = { "F32", 4 },         [ZC_ST_F64] = { "F64", 8 },
    [ZC_ST_I64] = { "I64", 8 },         [ZC_ST_U64] = { "U64", 8 },
    [ZC_ST_C64] = { "C64", 8 },
};

const char *zc_st_dtype_name(enum zc_st_dtype dtype)
{
    return (unsigned)dtype < ZB_COUNT(dtypes) ? dtypes[dtype].name : NULL;
}

size_t zc_st_dtype_bytes(enum zc_st_dtype dtype)
{
    return (unsigned)dtype < ZB_COUNT(dtypes) ? dtypes[dtype].bytes : 0;
}

/* Every public function ends here: the sentence goes to the caller's buffer. */
static int st_tell(const struct zb_err *err, int rc, char *error, size_t error_bytes)
{
    if (rc != 0 && error && error_bytes > 0)
        (void)snprintf(error, error_bytes, "%s", err->text);
    return rc;
}

/* ---- reading: the header */

struct st_entry {
    struct zc_st_tensor t;
    uint64_t begin, end; /* of the data */
};

struct zc_st_file {
    int fd;
    uint64_t data_bytes, data_off;
    json_t *header;
    uint64_t *dims;           /* of all tensors */
    struct st_entry *entries; /* count of them, in the order of their data */
    struct st_entry **by_name;
    size_t count;
};

static int st_pread(int fd, void *buf, size_t bytes, uint64_t off)
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

    for (size_t i = 0; name && i < ZB_COUNT(dtypes); i++)
        if (strcmp(dtypes[i].name, name) == 0) {
            e->t.dtype = (enum zc_st_dtype)i;
            return 0;
        }
    return zb_fail(err, -EBADMSG, "tensor '%s' has dtype '%s', which the format does not know",
                   e->t.name, name ? name : "(not a string)");
}

/* Takes ndims numbers from `dims`; a wrong one or an overflow is -EBADMSG. */
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
            return zb_fail(err, -EBADMSG, "the shape of tensor '%s' has a size that is no number",
                           e->t.name);
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
        return zb_fail(err, -EBADMSG, "the data_offsets of tensor '%s' are no range", e->t.name);
    e->begin = (uint64_t)json_integer_value(begin);
    e->end = (uint64_t)json_integer_value(end);
    if (!zb_mul_fits(e->t.elems, zc_st_dtype_bytes(e->t.dtype), &bytes) ||
        bytes != e->end - e->begin)
        return zb_fail(err, -EBADMSG,
                       "tensor '%s' has %" PRIu64 " bytes, which its shape of %s "
                       "does not make",
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

static int entry_compare_name(const void *name, const void *entry)
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
        ndims += json_array_size(json_object_get(info, "shape")); /* 0 for what is no array */
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
        return zb_fail(err, -EBADMSG, "the file is cut: %" PRIu64 " bytes have no header",
                       file_bytes);
    rc = st_pread(f->fd, &bytes, LENGTH_BYTES, 0);
    if (rc != 0)
        return zb_fail(err, rc, "header: %m");
    if (bytes > ZC_ST_HEADER_MAX)
        return zb_fail(err, -EBADMSG, "a header of %" PRIu64 " bytes is above the format's limit",
                       bytes);
    if (bytes > file_bytes - LENGTH_BYTES)
        return zb_fail(err, -EBADMSG, "the file is cut inside its header of %" PRIu64 " bytes",
                       bytes);
    f->data_off = LENGTH_BYTES + bytes;
    f->data_bytes = file_bytes - f->data_off;
    text = malloc(bytes + 1);
    if (!text)
        return zb_fail(err, -ENOMEM, "header of %" PRIu64 " bytes: %m", bytes);
    rc = st_pread(f->fd, text, bytes, LENGTH_BYTES);
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

static int file_build(struct zc_st_file *f, const char *path, struct zb_err *err)
{
    struct stat st;
    int rc;

    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (f->fd < 0 || fstat(f->fd, &st) < 0)
        return zb_fail(err, -errno, "'%s': %m", path);
    if (!S_ISREG(st.st_mode))
        return zb_fail(err, -EINVAL, "'%s' is not a regular file", path);
    rc = header_read(f, (uint64_t)st.st_size, err);
    return rc == 0 ? entries_parse(f, err) : rc;
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
        (void)zb_fail(&err, rc, "'%s' is not a good safetensors file: %s", path, why.text);
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

/* ---- reading: tensors */

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
        bsearch(name, f->by_name, f->count, sizeof(struct st_entry *), entry_compare_name);

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
    rc = st_pread(f->fd, dst, count * bytes, f->data_off + e->begin + first * bytes);
    return rc == 0 ? 0 : zb_fail(err, rc, "tensor '%s': %m", t->name);
}

int zc_st_read(const struct zc_st_file *f, const struct zc_st_tensor *t, uint64_t first,
               uint64_t count, void *dst, char *error, size_t error_bytes)
{
    struct zb_err err = { 0 };

    return st_tell(&err, tensor_read(f, t, first, count, dst, &err), error, error_bytes);
}

/* IEEE half: 1 sign, 5 exponent (bias 15), 10 fraction. Every one is an fp32. */
static float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 0x3ffu;
    uint32_t bits;
    float f;

    if (exponent == 0) { /* zero or denormal: fraction * 2^-24 */
        f = (float)fraction * 0x1p-24f;
        return sign ? -f : f;
    }
    bits = sign | (exponent == 31 ? 255u : exponent + 127 - 15) << 23 | fraction << 13;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static float bf16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* To nearest, ties to even: what carries out of the fraction goes into the exponent, as it should.
 */
static uint16_t f32_to_bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u); /* a NaN stays one */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static uint16_t f32_to_f16(float f)
{
    uint32_t bits, sign, rest, half;

    memcpy(&bits, &f, sizeof(bits));
    sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (bits >> 13 & 0x3ffu));
    if (bits >= 0x47800000u) /* 65536 and more; what is between the two is rounded below */
        return (uint16_t)(sign | 0x7c00u);
    if (bits < 0x38800000u) { /* a half's denormal: the sum's last bit is 2^-24 */
        float sum;

        memcpy(&sum, &bits, sizeof(sum));
        sum += 0.5f;
        memcpy(&bits, &sum, sizeof(bits));
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    rest = bits & 0x1fffu;
    half = (bits - 0x38000000u) >> 13;
    half += rest > 0x1000u || (rest == 0x1000u && (half & 1u));
    return (uint16_t)(sign | half);
}

int zc_st_to_f32(enum zc_st_dtype dtype, const void *src, uint64_t count, float *dst)
{
    const uint16_t *from = src;

    if (dtype == ZC_ST_F32) {
        memcpy(dst, src, count * sizeof(*dst));
        return 0;
    }
    if (dtype != ZC_ST_F16 && dtype != ZC_ST_BF16)
        return -ENOTSUP;
    for (uint64_t i = 0; i < count; i++)
        dst[i] = dtype == ZC_ST_F16 ? f16_to_f32(from[i]) : bf16_to_f32(from[i]);
    return 0;
}

int zc_st_from_f32(enum zc_st_dtype dtype, const float *src, uint64_t count, void *dst)
{
    uint16_t infinity = dtype == ZC_ST_F16 ? 0x7c00u : 0x7f80u, *to = dst;

    if (dtype == ZC_ST_F32) {
        memcpy(dst, src, count * sizeof(*src));
        return 0;
    }
    if (dtype != ZC_ST_F16 && dtype != ZC_ST_BF16)
        return -ENOTSUP;
    for (uint64_t i = 0; i < count; i++) {
        to[i] = dtype == ZC_ST_F16 ? f32_to_f16(src[i]) : f32_to_bf16(src[i]);
        if ((to[i] & 0x7fffu) == infinity && __builtin_isfinite(src[i]))
            return -ERANGE;
    }
    return 0;
}

static int tensor_convert(const struct zc_st_file *f, const struct zc_st_tensor *t, uint64_t first,
                          uint64_t count, float *dst, struct zb_err *err)
{
    uint16_t piece[CONVERT_ELEMS];

    if (!zb_range_inside(first, count, t->elems)) /* before a piece of it is written */
        return tensor_read(f, t, first, count, dst, err);
    while (count > 0) {
        uint64_t n = zb_min_u64(count, CONVERT_ELEMS);
        int rc = tensor_read(f, t, first, n, piece, err);

        if (rc != 0)
            return rc;
        (void)zc_st_to_f32(t->dtype, piece, n, dst); /* it is one of the two */
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

/* ---- writing */

struct zc_st_writer {
    FILE *out;
    char *path, *tmp; /* tmp NULL: no file of ours exists */
    uint64_t left;    /* bytes of data to come */
};

/* Adds one tensor at *at and moves it behind. */
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
    errno = EIO; /* where the C library does not say */
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

/* A new file beside the path. A name may be left over from a process that was killed. */
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
    (void)setvbuf(w->out, NULL, _IOFBF, WRITE_BUFFER); /* refused: the usual buffer, only slower */
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
        rc = zb_fail(&err, -ERANGE, "'%s': %zu bytes, and the tensors have room for %" PRIu64,
                     w->path, len_bytes, w->left);
    else
        rc = writer_put(w, bytes, len_bytes, &err);
    if (rc == 0)
        w->left -= len_bytes;
    return st_tell(&err, rc, error, error_bytes);
}

/* So that the new name survives a crash, too. */
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
