/*
 * engine_priv.h - what engine.c and the backends know of each other, and the file below them.
 *
 * WHO DOES WHAT. engine.c checks requests, counts them, keeps `depth`, resubmits tails and calls
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
};

extern const struct zn_ops zn_uring_ops, zn_threads_ops;

/* The data file: opened and checked first, changed only once an engine runs on it. */
struct zn_file {
    int fd; /* holds the lock */
    bool block, locked;
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
    /* A commit slot on its way: backends see a write of this block. */
    struct zn_io slot_io;
    struct zn_io *slot_of; /* whose request it is; NULL: none is in flight */
    void *slot_block;
    struct zn_info info;
    struct zn_stats stats;
};

/** Makes the wake-up readable. Any thread. */
void zn_wake(struct zn_engine *e);

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
