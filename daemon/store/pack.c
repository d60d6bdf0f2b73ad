/*
 * pack.c - objects to bytes and back: see pack.h.
 */
#include "daemon/store/pack.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#define RECORD_FORMAT 2u

/* ---- bytes out */

void zsd_pack(struct zsd_pack *w, const void *from, size_t bytes)
{
    if (w->at && bytes > 0)
        memcpy(w->at + w->bytes, from, bytes);
    w->bytes += bytes;
}

void zsd_pack_u8(struct zsd_pack *w, uint8_t value)
{
    zsd_pack(w, &value, sizeof(value));
}

void zsd_pack_u32(struct zsd_pack *w, uint32_t value)
{
    value = htole32(value);
    zsd_pack(w, &value, sizeof(value));
}

void zsd_pack_u64(struct zsd_pack *w, uint64_t value)
{
    value = htole64(value);
    zsd_pack(w, &value, sizeof(value));
}

void zsd_pack_text(struct zsd_pack *w, const char *text)
{
    size_t n = strlen(text);

    zsd_pack_u32(w, (uint32_t)n);
    zsd_pack(w, text, n);
}

int zsd_pack_record(struct zn_txn *t, enum zsd_record kind, uint64_t a, uint64_t b,
                    zsd_pack_fn *write, const void *object)
{
    const struct zn_key key = { .kind = kind, .a = a, .b = b };
    struct zsd_pack count = { 0 }, w = { 0 };
    void *room = NULL;
    int rc;

    zsd_pack_u8(&count, RECORD_FORMAT);
    write(&count, object);
    rc = zn_txn_put_room(t, &key, count.bytes, &room);
    if (rc < 0)
        return rc;
    w.at = room;
    zsd_pack_u8(&w, RECORD_FORMAT);
    write(&w, object);
    return 0;
}

/* ---- bytes in */

const void *zsd_unpack(struct zsd_unpack *r, size_t bytes)
{
    const void *at = r->at;

    if (r->bad || bytes > r->left) {
        r->bad = true;
        return NULL;
    }
    r->at += bytes;
    r->left -= bytes;
    return at;
}

uint8_t zsd_unpack_u8(struct zsd_unpack *r)
{
    const uint8_t *at = zsd_unpack(r, 1);

    return at ? *at : 0;
}

uint32_t zsd_unpack_u32(struct zsd_unpack *r)
{
    const void *at = zsd_unpack(r, sizeof(uint32_t));
    uint32_t value = 0;

    if (at)
        memcpy(&value, at, sizeof(value));
    return le32toh(value);
}

uint64_t zsd_unpack_u64(struct zsd_unpack *r)
{
    const void *at = zsd_unpack(r, sizeof(uint64_t));
    uint64_t value = 0;

    if (at)
        memcpy(&value, at, sizeof(value));
    return le64toh(value);
}

void zsd_unpack_check(struct zsd_unpack *r, bool good)
{
    r->bad = r->bad || !good;
}

void zsd_unpack_text(struct zsd_unpack *r, char *to, size_t room)
{
    uint32_t n = zsd_unpack_u32(r);
    const void *at;

    zsd_unpack_check(r, n < room);
    at = r->bad ? NULL : zsd_unpack(r, n);
    to[0] = '\0';
    if (!at)
        return;
    memcpy(to, at, n);
    to[n] = '\0';
    zsd_unpack_check(r, strlen(to) == n);
}

struct zsd_unpack zsd_unpack_begin(const void *bytes, size_t len_bytes)
{
    struct zsd_unpack r = { .at = bytes, .left = len_bytes };

    r.format = zsd_unpack_u8(&r);
    zsd_unpack_check(&r, r.format == RECORD_FORMAT);
    return r;
}

int zsd_unpack_end(const struct zsd_unpack *r, const char *what, struct zb_err *err)
{
    if (r->format != RECORD_FORMAT && r->format != 0)
        return zb_fail(err, -EOPNOTSUPP,
                       "catalog: a record of %s has format %u, and zshardd " ZSHARD_VERSION
                       " knows %u",
                       what, r->format, RECORD_FORMAT);
    return r->bad || r->left > 0
               ? zb_fail(err, -EBADMSG, "catalog: a record of %s is damaged", what)
               : 0;
}
