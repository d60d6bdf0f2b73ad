/*
 * engine_priv.h - the interface between engine.c and its backends, and the file that they use.
 *
 * DIVISION OF WORK. engine.c checks requests, counts them, keeps `depth`, resubmits tails and calls
 * done. A backend moves bytes: it takes an io with `res` = the bytes to transfer now (from
 * got_bytes on) and gives it back with `res` = the signed result. A backend never sees more than
 * `depth` requests at a time, so it is never full.
 */
#ifndef ZN_ENGINE_PRIV_H
#define ZN_ENGINE_PRIV_H

#include "nvme/layout.h"
#include "nvme/zn.h"

#define ZN_THREADS_DEFAULT 16u
#define ZN_THREADS_MAX     256u

struct zn_file;

struct zn_ops {
    const char *name;
    /* Sets e->impl. A failure leaves it for close(), which takes a half-built backend too. */
    int (*start)(struct zn_engine *e, struct zb_err *err);
    void (*submit)(struct zn_engine *e, struct zn_io *io);
    /* Hands over what was submitted. What the kernel cannot take now stays queued, and the wake-up
     * is set. A failure is one that no second try would cure, and nothing was handed over. */
    int (*kick)(struct zn_engine *e);
    struct zn_io *(*reap)(struct zn_engine *e); /* a finished io, or NULL */
    void (*close)(struct zn_engine *e);         /* nothing is in flight */
    /* As zn_register() and zn_unregister(). NULL: it has no use for them. */
    int (*add)(struct zn_engine *e, void *base, uint64_t len_bytes);
    void (*drop)(struct zn_engine *e, void *base);
};

extern const struct zn_ops zn_uring_ops, zn_threads_ops;

/* Where data files live, and what runs there: the kernel's files (file.c), or a device of another
 * kind. It does not interpret the bytes of the file. */
struct zn_place {
    const struct zn_ops *const *backends; /* that "auto" tries, in this order; NULL ends them */
    /* Opens or creates the file and locks it; sets block, was_bytes and medium. A failure leaves
     * what was opened for close(). */
    int (*open)(struct zn_file *f, const char *path, struct zb_err *err);
    /* O_DIRECT and its alignment, where it works: direct, why_buffered, align_bytes of *info. */
    void (*direct)(struct zn_file *f, const struct zn_options *o, struct zn_info *info);
    void (*name)(struct zn_file *f); /* draws the UUID of a new file */
    int (*reserve)(struct zn_file *f, const struct zn_options *o, struct zn_info *info,
                   struct zb_err *err);
    void (*cut)(struct zn_file *f, uint64_t size_bytes); /* undoes reserve() */
    void (*close)(struct zn_file *f);
};

extern const struct zn_place zn_kernel_place;

/* The data file: opened and checked first, changed only once an engine runs on it. */
struct zn_file {
    const struct zn_place *place;
    void *device; /* of the place; NULL for the kernel's */
    struct zn_medium medium;
    int fd; /* of a kernel's file: holds the lock */
    bool block, locked, read_only, no_follow;
    bool ours;          /* there was a superblock: this one */
    uint64_t was_bytes; /* length of the file when it was opened, or of the device */
    struct zn_super super;
    struct zn_slot slot;    /* the newest commit slot when it was opened */
    struct zb_err slot_err; /* or why that is not known */
};

struct zn_engine {
    const struct zn_ops *ops; /* NULL until one runs */
    void *impl;
    struct zn_file file;
    int wake_fd;
    unsigned threads;
    uint32_t tail_align; /* a tail begins on a multiple of it */
    bool closing;
    bool reaping;
    /* A commit slot being written: backends see a write of this block. */
    struct zn_io slot_io;
    struct zn_io *slot_of; /* whose request it is; NULL: none is in flight */
    void *slot_block;
    struct zn_info info;
    struct zn_stats stats;
};

/** zn_open() at any place. */
int zn_open_at(struct zn_engine **ret, const struct zn_place *place, void *device,
               const struct zn_options *options, struct zb_err *err);

/** Makes the wake-up readable. Any thread. */
void zn_wake(struct zn_engine *e);

/** Adds to info.why what could not be had. */
void zn_why(struct zn_engine *e, const char *text);

/** Where the bytes of this transfer are. */
static inline void *zn_io_at(const struct zn_io *io)
{
    return (char *)io->buf + io->got_bytes;
}

static inline uint64_t zn_io_off(const struct zn_io *io)
{
    return io->off_bytes + io->got_bytes;
}

/**
 * Opens (creates) and locks the file, refuses what is not ours or has the wrong size, and turns
 * O_DIRECT on where it works: fills direct, why_buffered and align_bytes of *info. Changes no byte.
 */
int zn_file_open(struct zn_file *f, const struct zn_options *o, struct zn_info *info,
                 struct zb_err *err);

/** Reserves the space and writes the superblock where it is missing or has another size. A failure
 *  gives the file its old length back. */
int zn_file_prepare(struct zn_file *f, const struct zn_options *o, struct zn_info *info,
                    struct zb_err *err);

/** Unlocks and closes what was opened. The backend is gone already. */
void zn_file_close(struct zn_file *f);

#endif
