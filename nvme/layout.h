/*
 * layout.h - the superblock, which identifies a data file as ours. FORMAT.md has the bytes.
 *
 * Nothing in it changes while a daemon runs. It is in one 512-byte sector, so a write of it cannot
 * be torn.
 */
#ifndef ZN_LAYOUT_H
#define ZN_LAYOUT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

#define ZN_SUPER_BYTES   4096u
#define ZN_SUPER_VERSION 1u
/* A file without a superblock is accepted only if this many bytes at its beginning are zero: file
 * systems, partition tables, RAID and volume managers all write a mark there. */
#define ZN_BLANK_BYTES (UINT64_C(1) << 20)

struct zn_super {
    uint8_t uuid[16];    /* generated when the file is formatted; kept when it grows */
    uint64_t size_bytes; /* of the whole file */
    uint64_t path;       /* index among the daemon's files (ZN_AT_PATH), from 0 */
};

/*
 * Access to a file before an engine runs on it: a descriptor, or a file of another kind of device.
 * Small, passed by value.
 */
struct zn_medium {
    const struct zn_medium_ops *ops;
    int fd;       /* of zn_fd(); for other kinds the number of a file */
    void *device; /* of other kinds */
};

/* Like pread, pwrite and fdatasync, with a negative errno. Transfers may be short. */
struct zn_medium_ops {
    ssize_t (*read)(const struct zn_medium *m, void *bytes, size_t len_bytes, uint64_t off_bytes);
    ssize_t (*write)(const struct zn_medium *m, const void *bytes, size_t len_bytes,
                     uint64_t off_bytes);
    int (*flush)(const struct zn_medium *m);
};

struct zn_medium zn_fd(int fd);

/** Reads the whole range: the number of bytes before the end of the file, or a negative errno. */
ssize_t zn_medium_read(const struct zn_medium *m, void *bytes, size_t len_bytes,
                       uint64_t off_bytes);
/** 0 or a negative errno. */
int zn_medium_write(const struct zn_medium *m, const void *bytes, size_t len_bytes,
                    uint64_t off_bytes);

/** Fills block[ZN_SUPER_BYTES]. */
void zn_super_encode(const struct zn_super *s, void *block);

/** Reads block[ZN_SUPER_BYTES]; `path` is for the message.
 *  @return 0; -EMEDIUMTYPE not ours, -EBADMSG damaged, -EOPNOTSUPP another version */
int zn_super_decode(const void *block, const char *path, struct zn_super *ret, struct zb_err *err);

/** Reads the beginning of the file: as zn_super_decode(), -ENODATA (without a message) if it is
 * blank, or the device's error. */
int zn_layout_read(struct zn_medium m, const char *path, struct zn_super *ret, struct zb_err *err);

/** Writes the superblock and makes it durable. */
int zn_layout_write(struct zn_medium m, const char *path, const struct zn_super *s,
                    struct zb_err *err);

/** Makes the uuid of a new file from 16 random bytes; NULL: of the kernel's generator. */
void zn_super_init(struct zn_super *s, const uint8_t *random);

/*
 * COMMIT SLOTS: two blocks after the superblock, written in turn (sequence modulo 2): the state
 * that the catalog must have, see zn_catalog.h. If the write of one is torn or lost, the other
 * remains. The non-zero bytes of a slot are in one 512-byte sector.
 */
#define ZN_SLOTS        2u
#define ZN_SLOT_BYTES   4096u
#define ZN_SLOT_VERSION 1u

struct zn_slot {
    uint64_t sequence;   /* of the newest transaction that may be acknowledged; 0: none so far */
    uint64_t digest;     /* over the catalog's records at that transaction */
    uint8_t catalog[16]; /* UUID of the catalog that it belongs to */
};

static inline uint64_t zn_slot_at(uint64_t sequence)
{
    return ZN_SUPER_BYTES + sequence % ZN_SLOTS * ZN_SLOT_BYTES;
}

/** Fills block[ZN_SLOT_BYTES]; `file` is the data file's own UUID, so that another file's slot is
 * invalid. */
void zn_slot_encode(const struct zn_slot *slot, const uint8_t file[16], void *block);
/** 0; -ENODATA never written (zeros); -EBADMSG damaged, or another file's; -EOPNOTSUPP an unknown
 * version. */
int zn_slot_decode(const void *block, const uint8_t file[16], struct zn_slot *ret);

/**
 * The newest of blocks[ZN_SLOTS * ZN_SLOT_BYTES], each of which must be in its own place; `path` is
 * for the message. *ret is zero when none was ever written.
 *
 * @return 0; -EBADMSG both were written once, and neither is valid now; -EOPNOTSUPP
 */
int zn_slot_newest(const void *blocks, const uint8_t file[16], const char *path,
                   struct zn_slot *ret, struct zb_err *err);

/** Reads both slots of an open file: as zn_slot_newest(), or the device's error. */
int zn_layout_read_slots(struct zn_medium m, const char *path, const uint8_t file[16],
                         struct zn_slot *ret, struct zb_err *err);

#endif
