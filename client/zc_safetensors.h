/*
 * zc_safetensors.h - named tensors in a file, in Hugging Face's safetensors format.
 *
 * FORMAT. A little-endian uint64 n; n bytes of a JSON object, which maps names to {dtype, shape,
 * data_offsets: [begin, end]} and "__metadata__" to an object of strings; then the data. Offsets
 * count from the end of the header; the tensors cover the data without holes and without overlap.
 * The reader holds a file to all of it before it hands anything out.
 *
 * UNITS. Elements of the tensor's dtype, row-major; bytes are bytes.
 *
 * ERRORS. Functions return 0 or a negative errno, and on failure write an error message to the caller's
 * buffer: `error` of `error_bytes` bytes, which may be NULL and 0.
 *
 * THREADS. A reader may be used by several threads at once; a writer by one at a time.
 */
#ifndef ZC_SAFETENSORS_H
#define ZC_SAFETENSORS_H

#include "zclient.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZC_ST_HEADER_MAX UINT64_C(100000000) /* bytes; the format's own limit */

/** No value of it is one of enum zc_dtype: who passes one for the other is refused. */
enum zc_st_dtype {
    ZC_ST_BOOL = 256,
    ZC_ST_U8,
    ZC_ST_I8,
    ZC_ST_F8_E5M2,
    ZC_ST_F8_E4M3,
    ZC_ST_F8_E8M0,
    ZC_ST_I16,
    ZC_ST_U16,
    ZC_ST_F16,
    ZC_ST_BF16,
    ZC_ST_I32,
    ZC_ST_U32,
    ZC_ST_F32,
    ZC_ST_F64,
    ZC_ST_I64,
    ZC_ST_U64,
    ZC_ST_C64,
};

/** "F32", as in the file; NULL for a number that is none. */
ZC_EXPORT const char *zc_st_dtype_name(enum zc_st_dtype dtype);
/** Bytes of one element; 0 for a number that is none. */
ZC_EXPORT size_t zc_st_dtype_bytes(enum zc_st_dtype dtype);

struct zc_st_tensor {
    const char *name; /* UTF-8 */
    enum zc_st_dtype dtype;
    uint32_t ndims; /* 0: a scalar, one element */
    const uint64_t *dims;
    uint64_t elems; /* the product of dims */
};

/* ---- reading */

struct zc_st_file;

/**
 * Opens a file and checks its header. Nothing of the data is read.
 *
 * @return 0; -EBADMSG it breaks the format, or is cut; -ENOENT and what else open() says; -EINVAL
 *         not a regular file; -ENOMEM, -EIO. *ret is unchanged on failure.
 */
ZC_EXPORT int zc_st_open(struct zc_st_file **ret, const char *path, char *error,
                         size_t error_bytes);
/** NULL is allowed. Tensors and names of the file become invalid. */
ZC_EXPORT void zc_st_close(struct zc_st_file *f);

/** The tensors, in the order of their data. */
ZC_EXPORT size_t zc_st_count(const struct zc_st_file *f);
ZC_EXPORT const struct zc_st_tensor *zc_st_at(const struct zc_st_file *f, size_t i);
/** NULL when there is none of that name. */
ZC_EXPORT const struct zc_st_tensor *zc_st_find(const struct zc_st_file *f, const char *name);
/** A value of "__metadata__", or NULL. */
ZC_EXPORT const char *zc_st_metadata(const struct zc_st_file *f, const char *key);

/**
 * Reads elements [first, first + count) of a tensor of this file, as they are.
 *
 * @return 0; -ERANGE not inside the tensor; -EIO the device failed, or the file became shorter
 */
ZC_EXPORT int zc_st_read(const struct zc_st_file *f, const struct zc_st_tensor *t, uint64_t first,
                         uint64_t count, void *dst, char *error, size_t error_bytes);
/** The same from F32, F16 or BF16 to fp32, exactly; -ENOTSUP from another dtype. */
ZC_EXPORT int zc_st_read_f32(const struct zc_st_file *f, const struct zc_st_tensor *t,
                             uint64_t first, uint64_t count, float *dst, char *error,
                             size_t error_bytes);

/* ---- numbers: F32, F16 and BF16, other dtypes are -ENOTSUP. src and dst do not overlap. */

/** To fp32, exactly. */
ZC_EXPORT int zc_st_to_f32(enum zc_st_dtype dtype, const void *src, uint64_t count, float *dst);
/** From fp32, to nearest, ties to even. -ERANGE: a finite value would become infinite; what is in
 *  dst means nothing then. */
ZC_EXPORT int zc_st_from_f32(enum zc_st_dtype dtype, const float *src, uint64_t count, void *dst);

/* ---- writing */

struct zc_st_writer;

struct zc_st_pair {
    const char *key, *value;
};

/**
 * Begins a file: first come the names and shapes of all tensors, then their bytes in the same order. The
 * file is written beside its place, under a name with ".tmp-", and moved there when it is complete
 * and on the device; until then a file of that name stays as it was.
 *
 * @param tensors   n of them; elems is computed, and ignored here
 * @param metadata  npairs of them, for "__metadata__"
 * @return 0; -EINVAL a name is given twice, is "__metadata__" or not UTF-8, a dtype is none, or a
 *         shape overflows; -EMSGSIZE the header is above ZC_ST_HEADER_MAX; what open() and writing
 *         say, -ENOMEM
 */
ZC_EXPORT int zc_st_create(struct zc_st_writer **ret, const char *path,
                           const struct zc_st_tensor *tensors, size_t n,
                           const struct zc_st_pair *metadata, size_t npairs, char *error,
                           size_t error_bytes);
/** The next bytes of the data, in pieces of any length. 0; -ERANGE more than the shapes say; what
 *  writing says. After a failure only zc_st_discard() is left. */
ZC_EXPORT int zc_st_append(struct zc_st_writer *w, const void *bytes, size_t len_bytes, char *error,
                           size_t error_bytes);
/** Completes the file and frees w, in any case. 0; -ENODATA bytes are missing; what fsync() and
 *  rename() say: then there is no new file, unless it was its folder that could not be synced. */
ZC_EXPORT int zc_st_commit(struct zc_st_writer *w, char *error, size_t error_bytes);
/** Removes what was written and frees w. NULL is allowed. */
ZC_EXPORT void zc_st_discard(struct zc_st_writer *w);

#ifdef __cplusplus
}
#endif

#endif
