/*
 * pack.h - objects to bytes and back: little-endian numbers, and byte strings preceded by their
 * length. record.c has the model. Any thread.
 */
#ifndef ZSD_PACK_H
#define ZSD_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/store/record.h"

struct zsd_pack {
    uint8_t *at; /* NULL: bytes are only counted */
    size_t bytes;
};

struct zsd_unpack {
    const uint8_t *at;
    size_t left;
    uint8_t format; /* of the record, its first byte */
    bool bad;
};

/** Packs an object. Called twice: to count the bytes, and to write them. */
typedef void zsd_pack_fn(struct zsd_pack *w, const void *object);

void zsd_pack(struct zsd_pack *w, const void *from, size_t bytes);
void zsd_pack_u8(struct zsd_pack *w, uint8_t value);
void zsd_pack_u32(struct zsd_pack *w, uint32_t value);
void zsd_pack_u64(struct zsd_pack *w, uint64_t value);
void zsd_pack_text(struct zsd_pack *w, const char *text);
int zsd_pack_record(struct zn_txn *t, enum zsd_record kind, uint64_t a, uint64_t b,
                    zsd_pack_fn *write, const void *object);
const void *zsd_unpack(struct zsd_unpack *r, size_t bytes);
uint8_t zsd_unpack_u8(struct zsd_unpack *r);
uint32_t zsd_unpack_u32(struct zsd_unpack *r);
uint64_t zsd_unpack_u64(struct zsd_unpack *r);
void zsd_unpack_check(struct zsd_unpack *r, bool good);
void zsd_unpack_text(struct zsd_unpack *r, char *to, size_t room);
struct zsd_unpack zsd_unpack_begin(const void *bytes, size_t len_bytes);
/** 0: all bytes were read, and were valid; -EBADMSG: err has the message; -EOPNOTSUPP: the record has
 * a format of another release. */
int zsd_unpack_end(const struct zsd_unpack *r, const char *what, struct zb_err *err);

#endif
