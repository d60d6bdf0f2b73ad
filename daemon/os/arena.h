/*
 * arena.h - memory that clients map: sealed memfds. Also private memory of the daemon.
 *
 * MODEL. An arena is a memfd of a fixed size and mode 0600, sealed against shrinking and growing.
 * The daemon maps it until it closes it. Its memory is allocated at creation, so a lack of memory
 * is an error then, and not a SIGBUS later. Fresh memfds are zero, so no client sees another job's
 * bytes.
 *
 * It begins at a huge page boundary, and consists of huge pages where the kernel provides them.
 *
 * Making and closing an arena touches every page, so both run on a compute thread.
 */
#ifndef ZSD_ARENA_H
#define ZSD_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct zsd_arena {
    int fd;        /* for clients; read-only if that was requested. -1: none */
    int own_fd;    /* the daemon's, read-write */
    uint8_t *base; /* NULL: none */
    uint64_t bytes;
};

#define ZSD_ARENA_NONE ((struct zsd_arena){ .fd = -1, .own_fd = -1 })

/** Makes an arena. bytes is a multiple of 4096, or 0 for an arena without memory. read_only:
 * clients cannot write. 0; -ENOMEM, -ENOSPC or an error of the kernel: err has the message, and
 * *ret is ZSD_ARENA_NONE. */
int zsd_arena_open(struct zsd_arena *ret, const char *name, uint64_t bytes, bool read_only,
                   struct zb_err *err);
/** The same; calls prepare() with the addresses before their memory is allocated. */
int zsd_arena_open_with(struct zsd_arena *ret, const char *name, uint64_t bytes, bool read_only,
                        void (*prepare)(void *arg, uint8_t *base), void *arg, struct zb_err *err);
/** Frees the memory at once, even while clients still map it (they read zeros then). */
void zsd_arena_close(struct zsd_arena *arena);

/** Allocates private memory, such as page buffers. Page aligned, with huge pages if the kernel has
 * any. NULL: no memory. */
void *zsd_private_new(uint64_t bytes);
/** Reserves addresses only. zsd_private_make() and zsd_private_drop() allocate and free parts;
 * zsd_private_free() frees everything. */
void *zsd_private_reserve(uint64_t bytes);
/** Makes a part usable, in multiples of 4096. touch: allocates its memory now. 0 or a negative
 * errno. After -ENOMEM zsd_private_drop() frees what was allocated. */
int zsd_private_make(void *memory, uint64_t bytes, bool touch);
/** Frees the memory of a part at once. */
void zsd_private_drop(void *memory, uint64_t bytes);
void zsd_private_free(void *memory, uint64_t bytes);

#endif
