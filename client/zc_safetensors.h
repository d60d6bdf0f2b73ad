/*
 * zc_safetensors.h - named tensors in a file, in Hugging Face's safetensors format.
 *
 * FORMAT. A little-endian uint64 n; n bytes of a JSON object, which maps names to {dtype, shape,
 * data_offsets: [begin, end]} and "__metadata__" to an object of strings; then the data. Offsets
 * count from the end of the header. The tensors cover the data without holes and without overlap.
 * The reader checks all of this before it hands out anything.
 *
 * UNITS. Tensors are row-major. `elems`, `first` and `count` are in elements of the tensor's dtype;
 * names that end in _bytes are in bytes.
 *
 * ERRORS. Functions return 0 or a negative errno. On failure they write an error message to the
 * caller's buffer: `error` of `error_bytes` bytes, which may be NULL and 0.
 *
 * THREADS. Several threads may use a reader at once. One thread at a time may use a writer.
 */
#ifndef ZC_SAFETENSORS_H
#define ZC_SAFETENSORS_H

#include "zclient.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ZC_ST_HEADER_MAX UINT64_C(100000000) /* bytes; the format's own limit */

/**
 * Data types of the format. No value is also a value of enum zc_dtype, so that confusing the two is
 * an error.
 */
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

/** Returns the name as in the file ("F32"); NULL for an unknown dtype. */
ZC_EXPORT const char *zc_st_dtype_name(enum zc_st_dtype dtype);
/** Returns the bytes of one element; 0 for an unknown dtype. */
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
 * Opens a file and checks its header. No data is read.
 *
 * @return 0; -EBADMSG the file breaks the format or is truncated; -ENOENT and other errors of
 *         open(); -EINVAL not a regular file; -ENOMEM, -EIO. *ret is unchanged on failure.
 */
ZC_EXPORT int zc_st_open(struct zc_st_file **ret, const char *path, char *error,
                         size_t error_bytes);
/** Closes the file. Its tensors and names become invalid. NULL is allowed. */
ZC_EXPORT void zc_st_close(struct zc_st_file *f);

/** Returns the number of tensors. */
ZC_EXPORT size_t zc_st_count(const struct zc_st_file *f);
/** Returns tensor i, in the order of the data. Valid until zc_st_close(). */
ZC_EXPORT const struct zc_st_tensor *zc_st_at(const struct zc_st_file *f, size_t i);
/** Returns the tensor of that name, or NULL. */
ZC_EXPORT const struct zc_st_tensor *zc_st_find(const struct zc_st_file *f, const char *name);
/** Returns a value of "__metadata__", or NULL. */
ZC_EXPORT const char *zc_st_metadata(const struct zc_st_file *f, const char *key);

/**
 * Reads elements [first, first + count) of a tensor of this file, without conversion. dst has room
 * for count elements.
 *
 * @return 0; -ERANGE not within the tensor; -EIO the device failed, or the file became shorter
 */
ZC_EXPORT int zc_st_read(const struct zc_st_file *f, const struct zc_st_tensor *t, uint64_t first,
                         uint64_t count, void *dst, char *error, size_t error_bytes);
/**
 * Reads as zc_st_read(), and converts F32, F16 or BF16 to fp32 exactly; -ENOTSUP for other dtypes.
 */
ZC_EXPORT int zc_st_read_f32(const struct zc_st_file *f, const struct zc_st_tensor *t,
                             uint64_t first, uint64_t count, float *dst, char *error,
                             size_t error_bytes);

/* ---- numbers: F32, F16 and BF16, other dtypes are -ENOTSUP. src and dst do not overlap. */

/** Converts to fp32, exactly. */
ZC_EXPORT int zc_st_to_f32(enum zc_st_dtype dtype, const void *src, uint64_t count, float *dst);
/**
 * Converts from fp32 to the nearest value, ties to even. -ERANGE: a finite value would become
 * infinite; then the content of dst is undefined.
 */
ZC_EXPORT int zc_st_from_f32(enum zc_st_dtype dtype, const float *src, uint64_t count, void *dst);

/* ---- writing */

struct zc_st_writer;

struct zc_st_pair {
    const char *key, *value;
};

/**
 * Begins a file. First come the names and shapes of all tensors, then their bytes in the same
 * order. The bytes are written to a temporary file in the same directory, with ".tmp-" in its name.
 * zc_st_commit() renames it when it is complete and on the device. Until then an existing file of
 * that name is unchanged.
 *
 * @param tensors   n of them; their elems are ignored and computed from dims
 * @param metadata  npairs of them, for "__metadata__"
 * @return 0; -EINVAL a name occurs twice, is "__metadata__" or is not UTF-8, a dtype is unknown, or
 *         a shape overflows; -EMSGSIZE the header is longer than ZC_ST_HEADER_MAX; errors of open()
 *         and write(); -ENOMEM
 */
ZC_EXPORT int zc_st_create(struct zc_st_writer **ret, const char *path,
                           const struct zc_st_tensor *tensors, size_t n,
                           const struct zc_st_pair *metadata, size_t npairs, char *error,
                           size_t error_bytes);
/**
 * Appends the next bytes of the data, in pieces of any length. 0; -ERANGE more bytes than the
 * shapes need; errors of write(). After a failure only zc_st_discard() may be called.
 */
ZC_EXPORT int zc_st_append(struct zc_st_writer *w, const void *bytes, size_t len_bytes, char *error,
                           size_t error_bytes);
/**
 * Completes the file. Frees w in any case. 0; -ENODATA bytes are missing; errors of fsync() and
 * rename(). After a failure there is no new file, except if only the directory could not be synced.
 */
ZC_EXPORT int zc_st_commit(struct zc_st_writer *w, char *error, size_t error_bytes);
/** Removes what was written and frees w. NULL is allowed. */
ZC_EXPORT void zc_st_discard(struct zc_st_writer *w);

#ifdef __cplusplus
}
#endif

#endif
