/*
 * engine_priv.h - the interface between engine.c and its backends, and the file that they use.
 *
 * DIVISION OF WORK. engine.c checks requests, counts them, keeps `depth`, resubmits tails and calls
 * done. A backend moves bytes: it takes an io with `res` = the bytes to transfer next (from
 * got_bytes on) and returns it with `res` = the signed result. A backend never sees more than
 * `depth` requests at a time, so it is never full.
 */
#ifndef ZN_ENGINE_PRIV_H
#define ZN_ENGINE_PRIV_H

#include <pthread.h>
#include <sys/eventfd.h>

#include "nvme/layout.h"
#include "nvme/zn.h"

#define ZN_THREADS_DEFAULT 16u
#define ZN_THREADS_MAX     256u

struct zn_file;

struct zn_ops {
    const char *name;
    /* Sets e->impl. After a failure close() is called, and must accept a half-built backend. */
    int (*start)(struct zn_engine *e, struct zb_err *err);
    void (*submit)(struct zn_engine *e, struct zn_io *io);
    /* Hands submitted requests over. If the kernel cannot take some of them yet, they stay queued,
     * and the wake-up is set. On failure nothing was handed over, and trying again would not help.
     */
    int (*kick)(struct zn_engine *e);
    struct zn_io *(*reap)(struct zn_engine *e); /* a finished io, or NULL */
    void (*close)(struct zn_engine *e);         /* called when nothing is in flight */
    /* As zn_register() and zn_unregister(). NULL: not supported. */
    int (*add)(struct zn_engine *e, void *base, uint64_t len_bytes);
    void (*drop)(struct zn_engine *e, void *base);
};

extern const struct zn_ops zn_uring_ops, zn_threads_ops;

/* A kind of data file, and its backends: the kernel's files (file.c), or a device of another kind.
 * A place does not interpret the bytes of the file. */
struct zn_place {
    const struct zn_ops *const *backends; /* tried by "auto", in this order; NULL-terminated */
    /* Opens or creates the file and locks it; sets block, was_bytes and medium. After a failure
     * close() is called. */
    int (*open)(struct zn_file *f, const char *path, struct zb_err *err);
    /* Tries O_DIRECT and its alignment: sets direct, why_buffered, align_bytes of *info. */
    void (*direct)(struct zn_file *f, const struct zn_options *o, struct zn_info *info);
    void (*name)(struct zn_file *f); /* the UUID of a new file; NULL: at random */
    /* NULL, as cut() is then: there is nothing to reserve. */
    int (*reserve)(struct zn_file *f, const struct zn_options *o, struct zn_info *info,
                   struct zb_err *err);
    void (*cut)(struct zn_file *f, uint64_t size_bytes); /* undoes reserve() */
    void (*close)(struct zn_file *f);                    /* NULL: nothing to do */
    /* Finds out whether ranges can be discarded: discard and what follows it in *info. Called when
     * the space is reserved. NULL: they cannot. */
    void (*discards)(struct zn_file *f, struct zn_info *info);
    /* ZN_DISCARD and ZN_ALLOCATE; blocks, and runs on a thread of its own: discard.c. 0 or a
     * negative errno. NULL: the backend gets them, as other requests. */
    int (*discard)(const struct zn_file *f, enum zn_op op, uint64_t off_bytes, uint64_t len_bytes);
};

extern const struct zn_place zn_kernel_place;

/* The data file: opened and checked first, and changed only when an engine runs on it. */
struct zn_file {
    const struct zn_place *place;
    void *device; /* of the place; NULL for the kernel's */
    struct zn_medium medium;
    int fd; /* descriptor of a kernel's file; holds the lock */
    bool block, locked, read_only, no_follow;
    bool ours;          /* there was a superblock: this one */
    uint64_t on_device; /* as in struct zn_info */
    uint64_t was_bytes; /* length of the file when it was opened, or of the device */
    struct zn_super super;
    struct zn_slot slot;    /* the newest commit slot when it was opened */
    struct zb_err slot_err; /* or why it is unknown */
};

/* The thread that discards, for a place with discard(). It starts with the first request. */
struct zn_discarder {
    struct zn_engine *e;
    pthread_mutex_t lock;
    pthread_cond_t work;
    bool up, stop;
    struct zn_io *todo, *finished;
    pthread_t thread;
};

struct zn_engine {
    const struct zn_ops *ops; /* NULL until one runs */
    void *impl;
    struct zn_file file;
    int wake_fd;
    unsigned threads;
    uint32_t tail_align; /* the tail of a short transfer begins on a multiple of it */
    bool closing;
    bool reaping;
    /* The write of a commit slot: backends see a write of this block. */
    struct zn_io slot_io;
    struct zn_io *slot_of; /* the request that it serves; NULL: none is in flight */
    void *slot_block;
    struct zn_discarder discarder;
    struct zn_info info;
    struct zn_stats stats;
};

/** zn_open() at any place. */
int zn_open_at(struct zn_engine **ret, const struct zn_place *place, void *device,
               const struct zn_options *options, struct zb_err *err);

/** Whether the request is one of the discarder. */
static inline bool zn_io_discards(const struct zn_io *io)
{
    return io->op == ZN_DISCARD || io->op == ZN_ALLOCATE;
}

/* ---- discard.c */

/** zn_place.discards and discard of the kernel's files. */
void zn_file_discards(struct zn_file *f, struct zn_info *info);
int zn_file_discard(const struct zn_file *f, enum zn_op op, uint64_t off_bytes, uint64_t len_bytes);
/** Hands a request to the thread of this engine; a failure of the thread is the request's. */
void zn_discarder_submit(struct zn_engine *e, struct zn_io *io);
/** The finished request, or NULL. */
struct zn_io *zn_discarder_reap(struct zn_engine *e);
/** Ends the thread; nothing is in flight. One that never started is fine. */
void zn_discarder_close(struct zn_engine *e);

/** Makes the wake-up readable. Any thread. */
static inline void zn_wake(const struct zn_engine *e)
{
    (void)eventfd_write(e->wake_fd, 1); /* fails only if it is already readable */
}

/** Adds to info.why a feature that is not available. */
void zn_why(struct zn_engine *e, const char *text);

/** The memory of the next transfer. */
static inline void *zn_io_at(const struct zn_io *io)
{
    return (char *)io->buf + io->got_bytes;
}

static inline uint64_t zn_io_off(const struct zn_io *io)
{
    return io->off_bytes + io->got_bytes;
}

/**
 * Opens (creates) and locks the file, rejects one that is not ours or has the wrong size, and
 * enables O_DIRECT if it works: fills direct, why_buffered and align_bytes of *info. Changes no
 * byte.
 */
int zn_file_open(struct zn_file *f, const struct zn_options *o, struct zn_info *info,
                 struct zb_err *err);

/** Reserves the space, and writes the superblock if it is missing or has another size. On failure
 * the file gets its old length back. */
int zn_file_prepare(struct zn_file *f, const struct zn_options *o, struct zn_info *info,
                    struct zb_err *err);

/** Makes the file shorter. */
int zn_file_cut(struct zn_file *f, const char *path, uint64_t size_bytes, struct zb_err *err);

/** Unlocks and closes the file. The backend is already closed. */
void zn_file_close(struct zn_file *f);

#endif
