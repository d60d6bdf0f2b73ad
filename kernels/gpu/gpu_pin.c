/*
 * gpu_pin.c - pins host memory: several threads touch it first, and then it is pinned in pieces
 * that the backend can take. A range that several devices pin is pinned once, if the driver pins for
 * all of them.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/size.h"
#include "kernels/gpu/gpu_priv.h"

#define TOUCH_THREADS 8u
#define TOUCH_BYTES   (64 * ZB_MIB) /* worth a thread */

struct pin {
    struct zb_list node;
    char *addr;
    uint64_t len_bytes;
};

static struct pin *pin_at(struct zk_gpu *g, const char *addr)
{
    zb_list_each(pos, &g->pins)
    {
        struct pin *p = zb_container_of(pos, struct pin, node);

        if (addr >= p->addr && addr < p->addr + p->len_bytes)
            return p;
    }
    return NULL;
}

static bool pin_overlaps(struct zk_gpu *g, const char *addr, uint64_t len_bytes)
{
    zb_list_each(pos, &g->pins)
    {
        struct pin *p = zb_container_of(pos, struct pin, node);

        if (addr < p->addr + p->len_bytes && p->addr < addr + len_bytes)
            return true;
    }
    return false;
}

static void pieces_unpin(struct zk_gpu *g, char *addr, uint64_t len_bytes)
{
    for (uint64_t at = 0; at < len_bytes; at += g->backend->pin_piece_bytes)
        g->backend->unpin(g, addr + at);
}

/* Touches memory from many threads first: the driver, which has one thread, then pins it several
 * times as fast. Only a hint: if the kernel does not support it, the driver does everything. */
struct touch {
    pthread_t thread;
    char *addr;
    uint64_t len_bytes;
    bool read_only, started;
};

static void *touch_run(void *arg)
{
    const struct touch *t = arg;

    (void)madvise(t->addr, t->len_bytes, t->read_only ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
    return NULL;
}

static void pieces_touch(char *addr, uint64_t len_bytes, bool read_only)
{
    struct touch touches[TOUCH_THREADS] = { 0 };
    uint64_t piece = zb_round_up(zb_max_u64(len_bytes / TOUCH_THREADS, TOUCH_BYTES), TOUCH_BYTES);
    unsigned n = 0;

    for (uint64_t at = 0; at < len_bytes && len_bytes > TOUCH_BYTES; at += piece, n++) {
        struct touch *t = &touches[n];

        *t = (struct touch){ .addr = addr + at,
                             .len_bytes = zb_min_u64(len_bytes - at, piece),
                             .read_only = read_only };
        t->started = pthread_create(&t->thread, NULL, touch_run, t) == 0;
    }
    for (unsigned i = 0; i < n; i++)
        if (touches[i].started)
            (void)pthread_join(touches[i].thread, NULL);
}

static int pieces_pin(struct zk_gpu *g, char *addr, uint64_t len_bytes, bool read_only,
                      struct zb_err *err)
{
    for (uint64_t at = 0; at < len_bytes; at += g->backend->pin_piece_bytes) {
        int rc = g->backend->pin(
            g, addr + at, zb_min_u64(len_bytes - at, g->backend->pin_piece_bytes), read_only, err);

        if (rc < 0) {
            pieces_unpin(g, addr, at);
            return rc;
        }
    }
    return 0;
}

/* ---- ranges that a driver pins for all of its devices: each is pinned once */

struct common {
    struct zb_list node;
    const struct zk_gpu_backend *backend;
    char *addr;
    uint64_t len_bytes;
    bool read_only;
    unsigned users;
};

/* Held while a range is pinned, so that another device waits until it is. */
static pthread_mutex_t common_lock = PTHREAD_MUTEX_INITIALIZER;
static struct zb_list commons = { &commons, &commons };

static struct common *common_at(const struct zk_gpu *g, const char *addr)
{
    zb_list_each(pos, &commons)
    {
        struct common *c = zb_container_of(pos, struct common, node);

        if (c->backend == g->backend && c->addr == addr)
            return c;
    }
    return NULL;
}

static int common_pin_new(struct zk_gpu *g, char *addr, uint64_t len_bytes, bool read_only,
                          struct zb_err *err)
{
    struct common *c = malloc(sizeof(*c));
    int rc;

    if (!c)
        return zb_fail(err, -ENOMEM, "pinning: %m");
    pieces_touch(addr, len_bytes, read_only);
    rc = pieces_pin(g, addr, len_bytes, read_only, err);
    if (rc < 0) {
        free(c);
        return rc;
    }
    *c = (struct common){ .backend = g->backend,
                          .addr = addr,
                          .len_bytes = len_bytes,
                          .read_only = read_only,
                          .users = 1 };
    zb_list_init(&c->node);
    zb_list_push_back(&commons, &c->node);
    return 0;
}

static int range_pin(struct zk_gpu *g, char *addr, uint64_t len_bytes, bool read_only,
                     struct zb_err *err)
{
    struct common *c;
    int rc = 0;

    if (!g->backend->pins_for_all) {
        pieces_touch(addr, len_bytes, read_only);
        return pieces_pin(g, addr, len_bytes, read_only, err);
    }
    (void)pthread_mutex_lock(&common_lock);
    c = common_at(g, addr);
    if (c && c->len_bytes == len_bytes && c->read_only == read_only)
        c->users++;
    else /* if it overlaps another range, the driver refuses */
        rc = common_pin_new(g, addr, len_bytes, read_only, err);
    (void)pthread_mutex_unlock(&common_lock);
    return rc;
}

static void range_unpin(struct zk_gpu *g, char *addr, uint64_t len_bytes)
{
    struct common *c;

    if (!g->backend->pins_for_all) {
        pieces_unpin(g, addr, len_bytes);
        return;
    }
    (void)pthread_mutex_lock(&common_lock);
    c = common_at(g, addr);
    if (c && --c->users == 0) {
        pieces_unpin(g, addr, len_bytes);
        zb_list_remove(&c->node);
        free(c);
    }
    (void)pthread_mutex_unlock(&common_lock);
}

/* ---- pins of one device */

int zk_gpu_pin(struct zk_gpu *g, void *addr, uint64_t len_bytes, bool read_only, struct zb_err *err)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct pin *p;
    int rc;

    if (len_bytes == 0 || len_bytes % page != 0 || (uintptr_t)addr % page != 0)
        return zb_fail(err, -EINVAL, "memory to pin is not whole pages: %llu bytes at %p",
                       (unsigned long long)len_bytes, addr);
    p = malloc(sizeof(*p));
    if (!p)
        return zb_fail(err, -ENOMEM, "pinning: %m");
    *p = (struct pin){ .addr = addr, .len_bytes = len_bytes };
    zb_list_init(&p->node);
    (void)pthread_mutex_lock(&g->lock); /* reserve the range; the pinning itself takes long */
    rc = pin_overlaps(g, addr, len_bytes)
             ? zb_fail(err, -EEXIST, "%p: part of it is already pinned", addr)
             : 0;
    if (rc == 0)
        zb_list_push_back(&g->pins, &p->node);
    (void)pthread_mutex_unlock(&g->lock);
    if (rc == 0)
        rc = range_pin(g, addr, len_bytes, read_only, err);
    (void)pthread_mutex_lock(&g->lock);
    if (rc == 0)
        g->used.pinned_bytes += len_bytes;
    else
        zb_list_remove(&p->node);
    (void)pthread_mutex_unlock(&g->lock);
    if (rc < 0)
        free(p);
    return rc;
}

int zk_gpu_unpin(struct zk_gpu *g, void *addr, struct zb_err *err)
{
    struct pin *p;

    (void)pthread_mutex_lock(&g->lock);
    p = pin_at(g, addr);
    if (p && p->addr != addr)
        p = NULL;
    if (p) {
        g->used.pinned_bytes -= p->len_bytes;
        zb_list_remove(&p->node);
    }
    (void)pthread_mutex_unlock(&g->lock);
    if (!p)
        return zb_fail(err, -ENOENT, "%p was not pinned", addr);
    range_unpin(g, p->addr, p->len_bytes);
    free(p);
    return 0;
}

uint64_t zk_gpu_pinned_bytes(struct zk_gpu *g)
{
    uint64_t bytes;

    (void)pthread_mutex_lock(&g->lock);
    bytes = g->used.pinned_bytes;
    (void)pthread_mutex_unlock(&g->lock);
    return bytes;
}

uint64_t zk_gpu_pin_run(struct zk_gpu *g, const char *host, uint64_t len_bytes)
{
    uint64_t run = len_bytes, piece = g->backend->pin_piece_bytes;

    (void)pthread_mutex_lock(&g->lock);
    zb_list_each(pos, &g->pins)
    {
        struct pin *p = zb_container_of(pos, struct pin, node);

        if (host < p->addr) {
            run = zb_min_u64(run, (uint64_t)(p->addr - host));
        } else if (host < p->addr + p->len_bytes) {
            uint64_t at = (uint64_t)(host - p->addr);

            run = zb_min_u64(run, zb_min_u64(p->len_bytes - at, piece - at % piece));
        }
    }
    (void)pthread_mutex_unlock(&g->lock);
    return run;
}
