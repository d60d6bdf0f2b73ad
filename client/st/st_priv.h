/*
 * st_priv.h - a safetensors file, for the files of this room.
 */
#ifndef ZC_ST_PRIV_H
#define ZC_ST_PRIV_H

#include <jansson.h>
#include <stdio.h>

#include "base/err.h"
#include "client/zc_safetensors.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format is little-endian");

#define METADATA     "__metadata__"
#define LENGTH_BYTES 8u /* size of the length field before the header */

struct st_entry {
    struct zc_st_tensor t;
    uint64_t begin, end; /* position in the data */
};

struct zc_st_file {
    int fd;
    uint64_t data_bytes, data_off;
    json_t *header;
    uint64_t *dims;           /* of all tensors */
    struct st_entry *entries; /* [count], in the order of their data */
    struct st_entry **by_name;
    size_t count;
};

/** Copies the error message to the caller's buffer; every public function ends with it. */
static inline int st_tell(const struct zb_err *err, int rc, char *error, size_t error_bytes)
{
    if (rc != 0 && error && error_bytes > 0)
        (void)snprintf(error, error_bytes, "%s", err->text);
    return rc;
}

/* ---- header.c */

/** Reads all bytes: 0, or a negative errno. */
int zc_st_pread(int fd, void *buf, size_t bytes, uint64_t off);
/** Reads and checks the header of f->fd: 0, -EBADMSG, -ENOMEM or an error of read(). Call
 *  zc_st_close() in either case. */
int zc_st_header_read(struct zc_st_file *f, uint64_t file_bytes, struct zb_err *err);
/** Compares a name with an entry of f->by_name, for bsearch(). */
int zc_st_entry_compare(const void *name, const void *entry);

#endif
