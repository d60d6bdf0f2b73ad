/*
 * zn.h - the contract of the I/O engines, and of the page checksums above them.
 *
 * MODEL. An engine owns one data file (or block device) of a fixed size. The caller submits reads,
 * writes and flushes on memory that it owns; each is answered exactly once, by its `done`, from
 * inside zn_reap(). Nothing is ever called back from inside a submit. The thread that opened an
 * engine is the only one that may use it (the daemon's loop; io_uring refuses other threads). An
 * engine may have threads of its own inside.
 *
 * The file begins with its superblock (layout.h, FORMAT.md), which zn_open() checks and writes.
 * The caller's bytes are [ZN_DATA_START, size_bytes): the engine gives them no meaning.
 *
 * A request is complete only when every byte was transferred: the tail of a short transfer is
 * resubmitted here, for every backend, and a transfer of 0 bytes is -EIO (past the end).
 *
 * ALIGNMENT. Offsets, lengths and memory are multiples of the value in zn_info() (4096 fits every
 * device that we open); -EINVAL otherwise, before anything starts. With O_DIRECT the kernel reports
 * the alignment (statx STATX_DIOALIGN); where O_DIRECT is refused (tmpfs, overlay) the
 * file is opened buffered, as zn_info() reports.
 */
#ifndef ZN_H
#define ZN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/util.h"
#include "nvme/layout.h"

#define ZN_DEPTH_DEFAULT 64u
#define ZN_DEPTH_MAX     4096u
#define ZN_IO_BYTES_MAX  (UINT32_C(1) << 30)
#define ZN_DATA_START    (UINT64_C(64) << 10) /* below it: superblock and commit slots */

/* The address of a page, for owners of several files: the path's index in the bits above the
 * offset. An engine has one file, and takes offsets only. */
#define ZN_PATHS_MAX        8u
#define ZN_AT(path, offset) ((uint64_t)(path) << 56 | (offset))
#define ZN_AT_PATH(at)      ((unsigned)((at) >> 56))
#define ZN_AT_OFFSET(at)    ((at) & ((UINT64_C(1) << 56) - 1))

struct zn_engine;
struct zn_io;

/** ZN_DISCARD tells the device that the bytes of the range are not needed: until they are written
 * again they are unspecified, also after a power cut. A file's blocks are freed, and allocated again.
 * ZN_ALLOCATE allocates them after a ZN_DISCARD that could not (-ENOSPC); the bytes do not change.
 * Only if zn_info.discard is set; of these two, at most one is in flight, in addition to `depth`.
 * They are no transfers: zn_stats.inflight does not count them. buf is ignored.
 *
 * ZN_FLUSH makes durable the writes whose done ran before it was submitted; those still in flight
 * then may or may not become durable. ZN_SLOT writes a commit slot (layout.h), which one follows
 * from its sequence (not 0): buf is a struct zn_slot, encoded before zn_submit() returns; len and
 * off are ignored. At most one is in flight. Like any other write, a flush makes it durable. */
enum zn_op { ZN_READ, ZN_WRITE, ZN_FLUSH, ZN_SLOT, ZN_DISCARD, ZN_ALLOCATE };

/** rc is 0, or the negative errno of the first failure: then the buffer's bytes are unspecified. Of a
 *  ZN_DISCARD, -ENOSPC: the range of the file has lost its space; any other failure: it has not.
 *  May submit more and may free io; must not reap or close. */
typedef void zn_done_fn(struct zn_io *io, int rc);

struct zn_io {
    /* the caller's: set before zn_submit(), unchanged until done */
    enum zn_op op;
    void *buf; /* ignored by ZN_FLUSH, as are len and off */
    uint32_t len_bytes;
    uint64_t off_bytes;
    bool urgent; /* a client waits for it: served before others in every queue */
    bool lend;   /* a read: the engine may leave buf's memory alone and point buf to the bytes in
                    its own memory, to be changed and written from there; after that write the old
                    place is undefined. Only zn_fixed.h does it */
    zn_done_fn *done;
    /* the engine's */
    uint32_t got_bytes;
    unsigned again; /* interruptions in a row */
    int res;        /* going down: the bytes to transfer now; coming up: the signed result */
    struct zb_list node;
};

struct zn_options {
    const char *path;    /* the data file; created when missing */
    uint64_t size_bytes; /* preallocated to this, a multiple of 4096 */
    const char *io;      /* "auto", "uring" or "threads"; NULL is "auto" */
    unsigned depth;      /* requests in flight; 0: ZN_DEPTH_DEFAULT */
    unsigned threads;    /* of the thread pool; 0: chosen */
    unsigned index;      /* index among the daemon's files (ZN_AT_PATH), stored in the file */
    bool buffered;       /* do not try O_DIRECT (tests, comparisons) */
    bool read_only;      /* an existing file of ours; never changed: writes and slots are -EINVAL.
                       size_bytes is at least its size */
    bool no_follow;      /* -ELOOP where path is a symbolic link */
};

struct zn_info {
    const char *io;             /* "uring" or "threads": what runs */
    char why[160];              /* why a better backend is not used; "": this is the best */
    char why_unregistered[160]; /* why memory of zn_register() is not registered; "": all is */
    bool direct;                /* O_DIRECT is on */
    char why_buffered[160];     /* "" when direct */
    bool sparse;                /* the file system cannot reserve space: a write may meet -ENOSPC */
    uint32_t align_bytes;       /* of memory, offsets and lengths: a power of two, at most 4096 */
    bool discard;               /* ZN_DISCARD is supported, of multiples of discard_bytes */
    uint32_t discard_bytes;     /* a multiple of 4096; 0: not supported */
    bool told;                  /* what is discarded reaches the drive; false: not, or unknown */
    char why_no_discard[160];   /* "" if it is supported */
    uint64_t size_bytes;
    uint8_t uuid[16]; /* of the file (FORMAT.md); zero: it is absent */
    uint64_t device;  /* of the file's bytes, a dev_t; 0: unknown */
    unsigned depth;
};

struct zn_stats {
    uint64_t reads, read_bytes, writes, written_bytes, flushes; /* completed without failure */
    uint64_t failed, short_transfers;
    uint64_t registered; /* transfers with memory registered with the kernel */
    uint64_t discards, discarded_bytes;
    bool discarding; /* a ZN_DISCARD or ZN_ALLOCATE is in flight */
    unsigned inflight;
};

/**
 * Opens (creates, preallocates) the file and starts an engine. The file is locked (flock) against
 * a second daemon for as long as the engine lives. Blocks: for the start of a program. A file of
 * ours that is smaller than size_bytes grows; one that is larger is rejected, never truncated.
 *
 * @return 0, or err has the message, and at most an empty file is left behind:
 *         -ENOENT, -EROFS, -EACCES  the file cannot be opened or created for writing
 *         -EINVAL      an option; neither a regular file nor a block device; larger than
 *                      size_bytes; ours, but with another index
 *         -EBUSY       another process (or another engine of this one) holds the file, and did not
 *                      release it within a second
 *         -EMEDIUMTYPE the file has contents that are not ours; nothing was changed
 *         -EBADMSG     our superblock, damaged; -EOPNOTSUPP: of an unknown version
 *         -ENOSPC      no room for size_bytes on the file system or the device
 *         -ENOSYS, -EPERM, -ENOMEM, ...  the kernel refuses the requested engine
 */
int zn_open(struct zn_engine **ret, const struct zn_options *options, struct zb_err *err);

/** Stands for a data file that is missing or was retired: it has no bytes for the caller, a transfer is
 * answered with -ENODEV, flushes and commit slots do nothing. 0 or -ENOMEM, -EMFILE. */
int zn_absent_open(struct zn_engine **ret, unsigned index, struct zb_err *err);
bool zn_is_absent(const struct zn_engine *e);

/** What is known of a data file without an engine; nothing is locked or changed. */
struct zn_peek {
    unsigned index; /* as in zn_options */
    uint64_t size_bytes;
    uint64_t sequence; /* of its newest commit slot; 0: none, or it cannot be read */
};
/** 0; -ENODATA: there is no file, or nothing in it; -EMEDIUMTYPE, -EBADMSG, -EOPNOTSUPP as
 * zn_open(), or why it cannot be read. */
int zn_peek(const char *path, struct zn_peek *ret, struct zb_err *err);

/** Waits for what is in flight (their `done`s run, with their results; submits are refused from
 *  here on), then frees. NULL is fine. */
void zn_close(struct zn_engine *e);

/**
 * Makes the data file shorter, to a multiple of 4096 above ZN_DATA_START; what is beyond is lost.
 * Nothing may be in flight, and nothing is submitted afterwards: the engine is closed. `path` is for
 * the message. Blocks.
 *
 * @return 0; -EINVAL the size, or a file that is read_only; a device's error: the file is
 *         whole, with the old length or the new one
 */
int zn_cut(struct zn_engine *e, const char *path, uint64_t size_bytes, struct zb_err *err);

/**
 * Queues io. It may reach the kernel only at zn_kick(), so call that once a turn.
 *
 * @return 0: done will run; -EAGAIN: `depth` requests are in flight already; -EBUSY: a ZN_SLOT, and
 *         there is one in flight, and so for ZN_DISCARD and ZN_ALLOCATE; -EINVAL: alignment, length 0
 *         or above ZN_IO_BYTES_MAX, or not inside the data of the file; -EOPNOTSUPP: no ZN_DISCARD; -ESHUTDOWN: the engine is being closed: done will not run
 */
int zn_submit(struct zn_engine *e, struct zn_io *io);
void zn_kick(struct zn_engine *e);

/**
 * A hint: requests will use this memory again and again. The engine may register it with the kernel
 * and pin its pages, which saves each request the lookup. Registration happens as requests touch
 * the memory. If it fails (a limit of the kernel, RLIMIT_MEMLOCK), requests work without it, and
 * zn_info() has the reason.
 *
 * The memory is private or a memfd's. Call zn_unregister() before it is unmapped or truncated.
 * Regions do not overlap.
 *
 * @return 0; -EOPNOTSUPP: this engine does not support it; -ENOMEM
 */
int zn_register(struct zn_engine *e, void *base, uint64_t len_bytes);
/** Takes the hint back; requests may be in flight. A base that was never registered, or NULL, is
 * allowed. */
void zn_unregister(struct zn_engine *e, void *base);

/** Runs the `done` of up to max finished requests; returns how many ran. If more remain, the
 * wake-up is set again. */
unsigned zn_reap(struct zn_engine *e, unsigned max);

/** An eventfd owned by the engine: readable when zn_reap() has work. Drain it, then reap. */
int zn_wake_fd(const struct zn_engine *e);

const struct zn_info *zn_info(const struct zn_engine *e);

/** The newest valid commit slot as it was when the file was opened: 0 (a file that has none yet:
 *  *ret is zero); -EBADMSG: both slots were written once, and neither is valid now; -EOPNOTSUPP: of
 *  a version that we do not know; or why they cannot be read. */
int zn_newest_slot(const struct zn_engine *e, struct zn_slot *ret, struct zb_err *err);
struct zn_stats zn_stats(const struct zn_engine *e);

/*
 * PAGE CHECKSUMS are stored with the extent that refers to a page, not in the page. Each crc_bytes
 * of a page have a CRC32C, seeded with the identity and the generation of the page, so that a stale
 * or misdirected page is detected like a flipped bit.
 */
struct zn_page_id {
    uint64_t job, shard;
    uint32_t plane, index;
    uint64_t generation;
};

/** Number of checksums of a page of len_bytes. */
static inline uint32_t zn_crc_count(uint32_t len_bytes, uint32_t crc_bytes)
{
    return (uint32_t)zb_div_up(len_bytes, crc_bytes);
}

/** Fills crcs[zn_crc_count()]. */
void zn_page_seal(const struct zn_page_id *id, const void *page, uint32_t len_bytes,
                  uint32_t crc_bytes, uint32_t *crcs);

/** 0, or -EBADMSG and *ret_bad is the index of the first checksum that differs. */
int zn_page_verify(const struct zn_page_id *id, const void *page, uint32_t len_bytes,
                   uint32_t crc_bytes, const uint32_t *crcs, uint32_t *ret_bad);

/** One checksum of the sequence, for a caller that works block by block; `index` counts them. */
uint32_t zn_page_crc(const struct zn_page_id *id, uint32_t index, const void *bytes,
                     uint32_t len_bytes);

#endif
