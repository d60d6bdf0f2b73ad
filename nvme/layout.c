#include "nvme/layout.h"

#include <endian.h>
#include <errno.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/crc.h"

/* The bytes of FORMAT.md; integers are little-endian, the rest of the block is zero. */
struct super_block {
    uint8_t magic[8];
    uint32_t version;
    uint32_t crc; /* of the whole block with this field zero */
    uint8_t uuid[16];
    uint64_t size_bytes;
    uint64_t path;
};

/* As in PNG: a byte above 127 and both line ends, so that any text conversion damages it. */
static const uint8_t super_magic[8] = { 0x89, 'Z', 'S', 'H', 'D', '\r', '\n', 0x1a };

_Static_assert(offsetof(struct super_block, size_bytes) == 32 && sizeof(struct super_block) == 48,
               "FORMAT.md");

struct slot_block {
    uint8_t magic[8];
    uint32_t version;
    uint32_t crc; /* as the superblock's */
    uint8_t file[16];
    uint8_t catalog[16];
    uint64_t sequence;
    uint64_t digest;
};

static const uint8_t slot_magic[8] = { 0x89, 'Z', 'S', 'L', 'T', '\r', '\n', 0x1a };

_Static_assert(offsetof(struct slot_block, crc) == offsetof(struct super_block, crc) &&
                   ZN_SLOT_BYTES == ZN_SUPER_BYTES,
               "block_crc()");
_Static_assert(offsetof(struct slot_block, digest) == 56 && sizeof(struct slot_block) == 64,
               "FORMAT.md");

static uint32_t block_crc(const void *block)
{
    static const uint8_t zero[sizeof(uint32_t)];
    const size_t at = offsetof(struct super_block, crc), end = at + sizeof(zero);
    uint32_t crc = zb_crc32c(0, block, at);

    crc = zb_crc32c(crc, zero, sizeof(zero));
    return zb_crc32c(crc, (const uint8_t *)block + end, ZN_SUPER_BYTES - end);
}

void zn_super_encode(const struct zn_super *s, void *block)
{
    struct super_block b = {
        .version = htole32(ZN_SUPER_VERSION),
        .size_bytes = htole64(s->size_bytes),
        .path = htole64(s->path),
    };

    memcpy(b.magic, super_magic, sizeof(b.magic));
    memcpy(b.uuid, s->uuid, sizeof(b.uuid));
    memset(block, 0, ZN_SUPER_BYTES);
    memcpy(block, &b, sizeof(b));
    b.crc = htole32(block_crc(block));
    memcpy(block, &b, sizeof(b));
}

int zn_super_decode(const void *block, const char *path, struct zn_super *ret, struct zb_err *err)
{
    struct super_block b;

    memcpy(&b, block, sizeof(b));
    if (memcmp(b.magic, super_magic, sizeof(b.magic)) != 0)
        return zb_fail(err, -EMEDIUMTYPE,
                       "'%s' has content, and it is not a zshard data file: nothing was changed; "
                       "name another file, or empty this one",
                       path);
    if (le32toh(b.crc) != block_crc(block))
        return zb_fail(err, -EBADMSG, "the superblock of '%s' is damaged: its checksum differs",
                       path);
    if (le32toh(b.version) != ZN_SUPER_VERSION)
        return zb_fail(err, -EOPNOTSUPP, "'%s' has format version %u, and this program knows %u",
                       path, le32toh(b.version), ZN_SUPER_VERSION);
    memcpy(ret->uuid, b.uuid, sizeof(ret->uuid));
    ret->size_bytes = le64toh(b.size_bytes);
    ret->path = le64toh(b.path);
    return 0;
}

static bool layout_is_zero(const uint8_t *bytes, size_t len_bytes)
{
    return len_bytes == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, len_bytes - 1) == 0);
}

static ssize_t fd_read(const struct zn_medium *m, void *bytes, size_t len_bytes, uint64_t off_bytes)
{
    ssize_t n = pread(m->fd, bytes, len_bytes, (off_t)off_bytes);

    return n < 0 ? -errno : n;
}

static ssize_t fd_write(const struct zn_medium *m, const void *bytes, size_t len_bytes,
                        uint64_t off_bytes)
{
    ssize_t n = pwrite(m->fd, bytes, len_bytes, (off_t)off_bytes);

    return n < 0 ? -errno : n;
}

static int fd_flush(const struct zn_medium *m)
{
    return fdatasync(m->fd) < 0 ? -errno : 0;
}

static const struct zn_medium_ops fd_ops = { fd_read, fd_write, fd_flush };

struct zn_medium zn_fd(int fd)
{
    return (struct zn_medium){ .ops = &fd_ops, .fd = fd };
}

ssize_t zn_medium_read(const struct zn_medium *m, void *bytes, size_t len_bytes, uint64_t off_bytes)
{
    size_t got = 0;

    while (got < len_bytes) {
        ssize_t n = m->ops->read(m, (uint8_t *)bytes + got, len_bytes - got, off_bytes + got);

        if (n < 0 && n != -EINTR)
            return n;
        if (n == 0)
            break;
        got += n > 0 ? (size_t)n : 0;
    }
    return (ssize_t)got;
}

int zn_medium_write(const struct zn_medium *m, const void *bytes, size_t len_bytes,
                    uint64_t off_bytes)
{
    size_t put = 0;

    while (put < len_bytes) {
        ssize_t n =
            m->ops->write(m, (const uint8_t *)bytes + put, len_bytes - put, off_bytes + put);

        if (n == 0 || (n < 0 && n != -EINTR))
            return n < 0 ? (int)n : -EIO;
        put += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int zn_layout_read(struct zn_medium m, const char *path, struct zn_super *ret, struct zb_err *err)
{
    uint8_t chunk[65536];
    ssize_t n;

    for (uint64_t off = 0; off < ZN_BLANK_BYTES; off += (uint64_t)n) {
        n = zn_medium_read(&m, chunk, sizeof(chunk), off);
        if (n < 0)
            return zb_fail(err, (int)n, "read the beginning of '%s': %m", path);
        if (n == 0)
            break;
        if (layout_is_zero(chunk, (size_t)n))
            continue;
        if (off > 0 || (size_t)n < ZN_SUPER_BYTES) /* it cannot be a superblock */
            memset(chunk, 0, ZN_SUPER_BYTES);
        return zn_super_decode(chunk, path, ret, err);
    }
    return -ENODATA;
}

int zn_layout_write(struct zn_medium m, const char *path, const struct zn_super *s,
                    struct zb_err *err)
{
    alignas(ZN_SUPER_BYTES) uint8_t block[ZN_SUPER_BYTES]; /* the file may be open for O_DIRECT */
    int rc;

    zn_super_encode(s, block);
    rc = zn_medium_write(&m, block, sizeof(block), 0);
    if (rc < 0)
        return zb_fail(err, rc, "write the superblock of '%s': %m", path);
    rc = m.ops->flush(&m);
    return rc < 0 ? zb_fail(err, rc, "flush the superblock of '%s': %m", path) : 0;
}

void zn_super_init(struct zn_super *s, const uint8_t *random)
{
    if (random)
        memcpy(s->uuid, random, sizeof(s->uuid));
    while (!random && getrandom(s->uuid, sizeof(s->uuid), 0) != (ssize_t)sizeof(s->uuid))
        ; /* only a signal before the generator's start interrupts so short a request */
    s->uuid[6] = (uint8_t)((s->uuid[6] & 0x0f) | 0x40); /* RFC 4122, version 4 */
    s->uuid[8] = (uint8_t)((s->uuid[8] & 0x3f) | 0x80);
}

void zn_slot_encode(const struct zn_slot *slot, const uint8_t file[16], void *block)
{
    struct slot_block b = {
        .version = htole32(ZN_SLOT_VERSION),
        .sequence = htole64(slot->sequence),
        .digest = htole64(slot->digest),
    };

    memcpy(b.magic, slot_magic, sizeof(b.magic));
    memcpy(b.file, file, sizeof(b.file));
    memcpy(b.catalog, slot->catalog, sizeof(b.catalog));
    memset(block, 0, ZN_SLOT_BYTES);
    memcpy(block, &b, sizeof(b));
    b.crc = htole32(block_crc(block));
    memcpy(block, &b, sizeof(b));
}

int zn_slot_decode(const void *block, const uint8_t file[16], struct zn_slot *ret)
{
    struct slot_block b;

    if (layout_is_zero(block, ZN_SLOT_BYTES))
        return -ENODATA;
    memcpy(&b, block, sizeof(b));
    if (memcmp(b.magic, slot_magic, sizeof(b.magic)) != 0 || le32toh(b.crc) != block_crc(block) ||
        memcmp(b.file, file, sizeof(b.file)) != 0 || b.sequence == 0)
        return -EBADMSG;
    if (le32toh(b.version) != ZN_SLOT_VERSION)
        return -EOPNOTSUPP;
    ret->sequence = le64toh(b.sequence);
    ret->digest = le64toh(b.digest);
    memcpy(ret->catalog, b.catalog, sizeof(ret->catalog));
    return 0;
}

int zn_slot_newest(const void *blocks, const uint8_t file[16], const char *path,
                   struct zn_slot *ret, struct zb_err *err)
{
    struct zn_slot newest = { 0 };
    unsigned bad = 0;

    for (unsigned i = 0; i < ZN_SLOTS; i++) {
        struct zn_slot slot = { 0 };
        int rc = zn_slot_decode((const uint8_t *)blocks + (size_t)i * ZN_SLOT_BYTES, file, &slot);

        if (rc == -EOPNOTSUPP)
            return zb_fail(err, rc, "a commit slot of '%s' has a version that we do not know",
                           path);
        if (rc == -EBADMSG || (rc == 0 && slot.sequence % ZN_SLOTS != i))
            bad++;
        else if (slot.sequence > newest.sequence)
            newest = slot;
    }
    if (bad == ZN_SLOTS)
        return zb_fail(err, -EBADMSG,
                       "both commit slots of '%s' are damaged: what was committed is not known",
                       path);
    *ret = newest;
    return 0;
}

int zn_layout_read_slots(struct zn_medium m, const char *path, const uint8_t file[16],
                         struct zn_slot *ret, struct zb_err *err)
{
    alignas(ZN_SLOT_BYTES) uint8_t blocks[ZN_SLOTS * ZN_SLOT_BYTES]; /* as in zn_layout_write() */
    ssize_t n = zn_medium_read(&m, blocks, sizeof(blocks), zn_slot_at(0));

    if (n < 0)
        return zb_fail(err, (int)n, "read the commit slots of '%s': %m", path);
    if (n != (ssize_t)sizeof(blocks))
        return zb_fail(err, -EBADMSG, "'%s' was cut: it ends before its commit slots do", path);
    return zn_slot_newest(blocks, file, path, ret, err);
}
