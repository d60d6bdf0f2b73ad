#include "daemon/os/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"

#define ARENA_HUGE (UINT64_C(2) << 20)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1; may be missing in the C library's headers */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; the same */
#endif

/* Reserves addresses that begin at a huge page boundary, without memory. NULL: none are left. */
static uint8_t *arena_reserve(uint64_t bytes)
{
    uint64_t all = bytes + ARENA_HUGE, front;
    uint8_t *p = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    front = (ARENA_HUGE - (uintptr_t)p % ARENA_HUGE) % ARENA_HUGE;
    if (front > 0)
        (void)munmap(p, front);
    (void)munmap(p + front + bytes, all - front - bytes);
    return p + front;
}

/*
 * Converts the arena to huge pages, if the kernel has some: I/O into them takes a fraction of the
 * CPU time. By default, shared memory gets huge pages only from a system-wide setting that is
 * usually off (shmem_enabled), or from a pool that is usually empty. But from Linux 6.1 on any
 * process may request them, range by range, once the first small page of the range is allocated.
 * After the first refusal the rest stays in small pages.
 */
static void arena_collapse(const struct zsd_arena *a)
{
    for (uint64_t at = 0; at + ARENA_HUGE <= a->bytes; at += ARENA_HUGE)
        if (fallocate(a->own_fd, 0, (off_t)at, 4096) != 0 ||
            madvise(a->base + at, ARENA_HUGE, MADV_COLLAPSE) != 0)
            break;
}

/* A descriptor of the same memory that cannot be written through or mapped writable. */
static int arena_read_only_fd(int own_fd, struct zb_err *err)
{
    char path[64];
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", own_fd);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 ? fd : zb_fail(err, -errno, "reopen an arena read-only by '%s': %m", path);
}

/* Maps the arena, and allocates its memory. */
static int arena_map(struct zsd_arena *a, const char *name, uint64_t bytes,
                     void (*prepare)(void *arg, uint8_t *base), void *arg, struct zb_err *err)
{
    a->base = arena_reserve(bytes);
    a->bytes = bytes;
    if (!a->base || mmap(a->base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, a->own_fd,
                         0) == MAP_FAILED)
        return zb_fail(err, -errno, "map shared memory '%s' of %llu bytes: %m", name,
                       (unsigned long long)bytes);
    if (prepare)
        prepare(arg, a->base);
    arena_collapse(a);
    if (fallocate(a->own_fd, 0, 0, (off_t)bytes) != 0)
        return zb_fail(err, -errno, "shared memory '%s' of %llu bytes: %m", name,
                       (unsigned long long)bytes);
    return 0;
}

static int arena_build(struct zsd_arena *a, const char *name, uint64_t bytes, bool read_only,
                       void (*prepare)(void *arg, uint8_t *base), void *arg, struct zb_err *err)
{
    int rc;

    a->own_fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (a->own_fd < 0)
        return zb_fail(err, -errno, "shared memory '%s': %m", name);
    if (fchmod(a->own_fd, 0600) != 0 || ftruncate(a->own_fd, (off_t)bytes) != 0)
        return zb_fail(err, -errno, "shared memory '%s' of %llu bytes: %m", name,
                       (unsigned long long)bytes);
    rc = bytes > 0 ? arena_map(a, name, bytes, prepare, arg, err) : 0;
    if (rc < 0)
        return rc;
    if (fcntl(a->own_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return zb_fail(err, -errno, "seal shared memory '%s': %m", name);
    a->fd = read_only ? arena_read_only_fd(a->own_fd, err) : dup(a->own_fd);
    return a->fd >= 0 ? 0 : zb_fail(err, -errno, "descriptor of shared memory '%s': %m", name);
}

int zsd_arena_open_with(struct zsd_arena *ret, const char *name, uint64_t bytes, bool read_only,
                        void (*prepare)(void *arg, uint8_t *base), void *arg, struct zb_err *err)
{
    struct zsd_arena a = ZSD_ARENA_NONE;
    int rc = arena_build(&a, name, bytes, read_only, prepare, arg, err);

    if (rc < 0)
        zsd_arena_close(&a);
    *ret = a;
    return rc;
}

int zsd_arena_open(struct zsd_arena *ret, const char *name, uint64_t bytes, bool read_only,
                   struct zb_err *err)
{
    return zsd_arena_open_with(ret, name, bytes, read_only, NULL, NULL, err);
}

void zsd_arena_close(struct zsd_arena *arena)
{
    if (arena->base) {
        (void)fallocate(arena->own_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                        (off_t)arena->bytes);
        (void)munmap(arena->base, arena->bytes);
    }
    zb_close_fd(&arena->fd);
    zb_close_fd(&arena->own_fd);
    *arena = ZSD_ARENA_NONE;
}

/* Rounds a range to whole kernel pages: inwards, or outwards. False: no whole page is inside. */
static bool private_pages(uint8_t **at, uint64_t *bytes, bool outwards)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t front = (uintptr_t)*at % page, back;

    if (outwards) {
        *at -= front;
        *bytes = zb_round_up(*bytes + front, page);
        return true;
    }
    front = front > 0 ? page - front : 0;
    if (*bytes < front + page)
        return false;
    back = (*bytes - front) % page;
    *at += front;
    *bytes -= front + back;
    return true;
}

void *zsd_private_reserve(uint64_t bytes)
{
    return arena_reserve(bytes);
}

int zsd_private_make(void *memory, uint64_t bytes, bool touch)
{
    uint8_t *p = memory;

    if (bytes == 0)
        return 0;
    (void)private_pages(&p, &bytes, true);
    if (mprotect(p, bytes, PROT_READ | PROT_WRITE) != 0)
        return -errno;
    (void)madvise(p, bytes, MADV_HUGEPAGE); /* only advice: may be refused */
    (void)madvise(p, bytes, MADV_DONTFORK);
    if (touch && madvise(p, bytes, MADV_POPULATE_WRITE) != 0 && errno == ENOMEM)
        return -ENOMEM;
    return 0;
}

void zsd_private_drop(void *memory, uint64_t bytes)
{
    uint8_t *p = memory;

    if (!private_pages(&p, &bytes, false))
        return;
    (void)madvise(p, bytes, MADV_DONTNEED);
    /* The kernel does not count memory that cannot be written as committed. If this fails because
     * there are too many mappings, the range stays mapped, without memory. */
    (void)mmap(p, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

void *zsd_private_new(uint64_t bytes)
{
    uint8_t *p = arena_reserve(bytes);

    if (p && zsd_private_make(p, bytes, false) < 0) {
        (void)munmap(p, bytes);
        return NULL;
    }
    return p;
}

void zsd_private_free(void *memory, uint64_t bytes)
{
    if (memory)
        (void)munmap(memory, bytes);
}
