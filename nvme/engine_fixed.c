/*
 * engine_fixed.c - the device of a fixed rate: see zn_fixed.h.
 *
 * MODEL. The memory of the device is as long as its file, in blocks of FIXED_BLOCK; `place` says in
 * which block of memory a block of the file is, `holds` is the inverse. Initially both are the
 * identity. A write from the device's own memory exchanges the two places, block by block. So an
 * extent that was written in one piece is contiguous in memory, and can be lent; any other is
 * copied.
 *
 *     fresh ---kick---> queue, in order of their ends ---> reap, where it happens
 *
 * INVARIANTS
 *     F1  place and holds are permutations, inverse to each other.
 *     F2  End times never decrease along the queue: a request ends when all transfers before it,
 *         and then its own, have ended.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/size.h"
#include "nvme/clock_priv.h"
#include "nvme/engine_priv.h"
#include "nvme/zn_fixed.h"

#define FIXED_BLOCK    4096u
#define FIXED_HUGE     (UINT64_C(2) << 20)
#define FIXED_SIZE_MAX (UINT64_C(1) << 43) /* blocks have 32-bit numbers */
#define FIXED_NAME     "memory of a fixed rate"
#define NS_PER_S       1000000000.0

struct fixed_device {
    uint64_t size_bytes, rate_bytes, latency_ns;
    uint8_t *map, *memory;   /* memory begins on a huge page of map */
    uint32_t *place, *holds; /* F1 */
    uint64_t copied_bytes;
};

struct fixed_request {
    struct zn_io *io;
    uint64_t end_ns;
};

struct fixed_engine {
    struct fixed_device *device;
    struct zb_list fresh_urgent, fresh;
    uint64_t free_ns; /* end of the transfers that were kicked */
    struct zn_clock clock;
    unsigned first, count, room;  /* of queue, a ring */
    struct fixed_request queue[]; /* [depth] */
};

/* ---- contents */

/* Bytes from off_bytes of the file on that are contiguous in memory, at most len_bytes. */
static uint64_t fixed_piece(const struct fixed_device *d, uint64_t off_bytes, uint64_t len_bytes)
{
    uint64_t at = off_bytes % FIXED_BLOCK, got = FIXED_BLOCK - at;

    for (uint64_t block = off_bytes / FIXED_BLOCK;
         got < len_bytes && d->place[block + 1] == d->place[block] + 1; block++)
        got += FIXED_BLOCK;
    return zb_min_u64(got, len_bytes);
}

static uint8_t *fixed_at(const struct fixed_device *d, uint64_t off_bytes)
{
    return d->memory + (uint64_t)d->place[off_bytes / FIXED_BLOCK] * FIXED_BLOCK +
           off_bytes % FIXED_BLOCK;
}

static void fixed_copy(struct fixed_device *d, bool write, void *bytes, uint64_t len_bytes,
                       uint64_t off_bytes)
{
    for (uint64_t done = 0; done < len_bytes;) {
        uint64_t n = fixed_piece(d, off_bytes + done, len_bytes - done);
        uint8_t *here = fixed_at(d, off_bytes + done), *there = (uint8_t *)bytes + done;

        memcpy(write ? here : there, write ? there : here, n);
        done += n;
    }
    d->copied_bytes += len_bytes;
}

static bool fixed_owns(const struct fixed_device *d, const void *bytes)
{
    uintptr_t at = (uintptr_t)bytes, memory = (uintptr_t)d->memory;

    return at >= memory && at - memory < d->size_bytes;
}

/* Makes the device's own memory from `bytes` on the contents of the file at off_bytes. */
static void fixed_move(struct fixed_device *d, const void *bytes, uint64_t len_bytes,
                       uint64_t off_bytes)
{
    uint32_t from = (uint32_t)(((uintptr_t)bytes - (uintptr_t)d->memory) / FIXED_BLOCK);
    uint32_t to = (uint32_t)(off_bytes / FIXED_BLOCK);

    for (uint32_t i = 0; i < len_bytes / FIXED_BLOCK; i++) {
        uint32_t other = d->holds[from + i], memory = d->place[to + i];

        d->place[to + i] = from + i;
        d->holds[from + i] = to + i;
        d->place[other] = memory;
        d->holds[memory] = other;
    }
}

static void fixed_perform(struct fixed_device *d, struct zn_io *io)
{
    uint64_t off = io->off_bytes, len = (uint64_t)io->res;

    if (io->op == ZN_FLUSH)
        return;
    if (io->op == ZN_READ && io->lend && fixed_piece(d, off, len) == len)
        io->buf = fixed_at(d, off);
    else if (io->op == ZN_WRITE && fixed_owns(d, io->buf))
        fixed_move(d, io->buf, len, off);
    else
        fixed_copy(d, io->op == ZN_WRITE, io->buf, len, off);
}

/* ---- the backend */

static int fixed_start(struct zn_engine *e, struct zb_err *err)
{
    struct fixed_engine *x = calloc(1, sizeof(*x) + e->info.depth * sizeof(x->queue[0]));
    int rc;

    if (!x)
        return zb_fail(err, -ENOMEM, "engine on a device of a fixed rate: %m");
    e->impl = x;
    x->device = e->file.device;
    x->room = e->info.depth;
    zb_list_init(&x->fresh_urgent);
    zb_list_init(&x->fresh);
    rc = zn_clock_start(&x->clock, e);
    return rc < 0 ? zb_fail(err, rc, "clock of a device of a fixed rate: %m") : 0;
}

static void fixed_submit(struct zn_engine *e, struct zn_io *io)
{
    struct fixed_engine *x = e->impl;

    zb_list_push_back(io->urgent ? &x->fresh_urgent : &x->fresh, &io->node);
}

static int fixed_kick(struct zn_engine *e)
{
    struct fixed_engine *x = e->impl;
    uint64_t now_ns = zb_now_ns();
    bool idle = x->count == 0;
    struct zb_list *node;

    while ((node = zb_list_pop_front(&x->fresh_urgent)) != NULL ||
           (node = zb_list_pop_front(&x->fresh)) != NULL) {
        struct fixed_request *r = &x->queue[(x->first + x->count++) % x->room];

        r->io = zb_container_of(node, struct zn_io, node);
        x->free_ns = zb_max_u64(x->free_ns, now_ns) +
                     (uint64_t)((double)r->io->res * NS_PER_S / (double)x->device->rate_bytes);
        r->end_ns = zb_max_u64(x->free_ns, now_ns + x->device->latency_ns); /* F2 */
    }
    if (idle && x->count > 0)
        zn_clock_set(&x->clock, x->queue[x->first].end_ns);
    return 0;
}

static struct zn_io *fixed_reap(struct zn_engine *e)
{
    struct fixed_engine *x = e->impl;
    const struct fixed_request *r = &x->queue[x->first];

    if (x->count == 0)
        return NULL;
    if (r->end_ns > zb_now_ns()) {
        zn_clock_set(&x->clock, r->end_ns);
        return NULL;
    }
    fixed_perform(x->device, r->io); /* res stays as requested: all bytes */
    x->first = (x->first + 1) % x->room;
    x->count--;
    return r->io;
}

static void fixed_close(struct zn_engine *e)
{
    struct fixed_engine *x = e->impl;

    if (x)
        zn_clock_stop(&x->clock);
    free(x);
    e->impl = NULL;
}

static const struct zn_ops fixed_ops = {
    "fixed", fixed_start, fixed_submit, fixed_kick, fixed_reap, fixed_close, NULL, NULL,
};

/* ---- the place: empty memory, formatted as any new data file is */

static ssize_t medium_read(const struct zn_medium *m, void *bytes, size_t len_bytes,
                           uint64_t off_bytes)
{
    struct fixed_device *d = m->device;

    if (off_bytes >= d->size_bytes)
        return 0;
    len_bytes = zb_min_u64(len_bytes, d->size_bytes - off_bytes);
    memcpy(bytes, d->memory + off_bytes, len_bytes); /* nothing has moved yet */
    return (ssize_t)len_bytes;
}

static ssize_t medium_write(const struct zn_medium *m, const void *bytes, size_t len_bytes,
                            uint64_t off_bytes)
{
    struct fixed_device *d = m->device;

    memcpy(d->memory + off_bytes, bytes, len_bytes);
    return (ssize_t)len_bytes;
}

static int medium_flush(const struct zn_medium *m)
{
    (void)m;
    return 0;
}

static const struct zn_medium_ops medium_ops = { medium_read, medium_write, medium_flush };

static int device_build(struct fixed_device *d, struct zb_err *err)
{
    uint64_t size = d->size_bytes, blocks = size / FIXED_BLOCK;

    d->map = mmap(NULL, size + FIXED_HUGE, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    d->place = malloc(blocks * sizeof(*d->place));
    d->holds = malloc(blocks * sizeof(*d->holds));
    if (d->map == MAP_FAILED)
        d->map = NULL;
    if (!d->map || !d->place || !d->holds)
        return zb_fail(err, -ENOMEM, "%s of memory for a device of a fixed rate: %m",
                       zb_size_text(size).s);
    d->memory = d->map + (FIXED_HUGE - (uintptr_t)d->map % FIXED_HUGE) % FIXED_HUGE;
    (void)madvise(d->memory, size, MADV_HUGEPAGE); /* fine where it is refused */
    (void)madvise(d->memory, size, MADV_DONTFORK);
    for (uint64_t i = 0; i < blocks; i++)
        d->place[i] = d->holds[i] = (uint32_t)i;
    return 0;
}

static void device_free(struct fixed_device *d)
{
    if (d->map)
        (void)munmap(d->map, d->size_bytes + FIXED_HUGE);
    free(d->place);
    free(d->holds);
    free(d);
}

/* The file takes over the device. */
static int place_open(struct zn_file *f, const char *path, struct zb_err *err)
{
    struct fixed_device **mine = f->device, *d = *mine;

    (void)path;
    (void)err;
    *mine = NULL;
    f->device = d;
    f->medium = (struct zn_medium){ .ops = &medium_ops, .device = d };
    f->locked = true; /* it has no name, so no other process can open it */
    f->was_bytes = d->size_bytes;
    return 0;
}

static void place_direct(struct zn_file *f, const struct zn_options *o, struct zn_info *info)
{
    (void)f;
    (void)o;
    info->direct = true;
    info->align_bytes = FIXED_BLOCK;
}

static void place_close(struct zn_file *f)
{
    if (f->locked)
        device_free(f->device);
    f->locked = false;
}

static const struct zn_ops *const place_backends[] = { &fixed_ops, NULL };

static const struct zn_place fixed_place = {
    place_backends, place_open, place_direct, NULL, NULL, NULL, place_close, NULL, NULL,
};

int zn_fixed_open(struct zn_engine **ret, const struct zn_fixed_options *options,
                  struct zb_err *err)
{
    struct zn_options o = { .path = FIXED_NAME,
                            .size_bytes = options->size_bytes,
                            .depth = options->depth };
    struct fixed_device *d;
    int rc;

    if (options->rate_bytes == 0 || options->size_bytes % FIXED_BLOCK != 0 ||
        options->size_bytes == 0 || options->size_bytes > FIXED_SIZE_MAX)
        return zb_fail(err, -EINVAL, "a device of a fixed rate: %llu bytes, %llu a second",
                       (unsigned long long)options->size_bytes,
                       (unsigned long long)options->rate_bytes);
    d = calloc(1, sizeof(*d));
    if (!d)
        return zb_fail(err, -ENOMEM, "a device of a fixed rate: %m");
    d->rate_bytes = options->rate_bytes;
    d->latency_ns = options->latency_ns;
    d->size_bytes = options->size_bytes;
    rc = device_build(d, err);
    if (rc == 0)
        rc = zn_open_at(ret, &fixed_place, &d, &o, err);
    if (d)
        device_free(d);
    return rc;
}

bool zn_is_fixed(const struct zn_engine *e)
{
    return e->ops == &fixed_ops;
}

uint64_t zn_fixed_copied(const struct zn_engine *e)
{
    const struct fixed_device *d = e->file.device;

    return d->copied_bytes;
}
