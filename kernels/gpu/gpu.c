/*
 * gpu.c - what all GPUs share: names, checks, and who holds which memory.
 *
 * MODEL. A share is the reading end of a pipe whose writing end went to one importer: as long as
 * anyone has that open, reading it would wait; when the last one closed it, or died, there is a
 * hang-up. Shares are looked at when somebody asks, never waited for. Memory that is freed while a
 * share is held is unmapped, and stays in `stranded` until it is not.
 */
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/plugin.h"
#include "base/size.h"
#include "kernels/gpu/gpu_priv.h"

#define TOUCH_THREADS 8u
#define TOUCH_BYTES   (64 * ZB_MIB) /* worth a thread */

struct share {
    struct zb_list node; /* in its mem's shares */
    int fd;              /* the pipe's reading end */
    uint64_t holder;
};

struct pin {
    struct zb_list node;
    char *addr;
    uint64_t len_bytes;
};

/* ---- devices */

/* What stands behind "backend:", "" where the name ends before the colon; NULL: not that backend.
 */
static const char *name_args(const char *name, const char *backend)
{
    size_t len = strlen(backend);

    if (strncmp(name, backend, len) != 0)
        return NULL;
    if (name[len] == '\0')
        return name + len;
    return name[len] == ':' && name[len + 1] != '\0' ? name + len + 1 : NULL;
}

/* CUDA's, out of its plugin. */
static int plugin_open(const char *args, struct zk_gpu **ret, struct zb_err *err)
{
    const struct zk_gpu_plugin *plugin;
    struct zb_plugin found;
    struct zb_err why = { 0 };
    int rc;

    if (zb_plugin_load(&found, ZK_GPU_PLUGIN, "zk_gpu_plugin", RTLD_NOW | RTLD_LOCAL, &why) < 0)
        return zb_fail(err, -ENODEV, "no GPU: %s", why.text);
    plugin = found.table;
    if (strncmp(plugin->abi, ZK_GPU_ABI, sizeof(plugin->abi)) != 0)
        return zb_fail(err, -ENODEV, "no GPU: '%s' is of another build of zshard (%.63s, not %s)",
                       found.path, plugin->abi, ZK_GPU_ABI);
    rc = plugin->backend->open(args, ret, err);
    if (rc == 0) {
        (*ret)->backend = plugin->backend;
        (*ret)->library = found.library;
    }
    return rc;
}

static int emulated_open(const char *args, struct zk_gpu **ret, struct zb_err *err)
{
    int rc = zk_gpu_emulated.open(args, ret, err);

    if (rc == 0)
        (*ret)->backend = &zk_gpu_emulated;
    return rc;
}

int zk_gpu_open(const char *name, uint64_t limit_bytes, struct zk_gpu **ret, struct zb_err *err)
{
    const char *cuda = name_args(name, "cuda"), *emulated = name_args(name, zk_gpu_emulated.name);
    struct zk_gpu *g = NULL;
    int rc;

    if (!cuda && !emulated)
        return zb_fail(err, -EINVAL,
                       "no GPU is called '%s'; there are: cuda[:N], "
                       "emulated[:BYTES[:US[:WORKS[:UNIT[:PIN[:SHARES]]]]]]",
                       name);
    rc = cuda ? plugin_open(cuda, &g, err) : emulated_open(emulated, &g, err);
    if (rc < 0)
        return rc;
    rc = pthread_mutex_init(&g->lock, NULL);
    assert(rc == 0);
    zb_list_init(&g->mems);
    zb_list_init(&g->stranded);
    zb_list_init(&g->pins);
    g->info.backend = g->backend->name;
    g->info.limit_bytes = limit_bytes > 0 ? zb_min_u64(limit_bytes, g->info.total_bytes)
                                          : g->info.total_bytes;
    *ret = g;
    return 0;
}

const struct zk_gpu_info *zk_gpu_info(const struct zk_gpu *g)
{
    return &g->info;
}

/* ---- shares */

static void share_free(struct share *s)
{
    zb_list_remove(&s->node);
    zb_close_fd(&s->fd);
    free(s);
}

/* How many are held still; those that are not are dropped. */
static unsigned shares_held(struct zk_gpu_mem *m)
{
    unsigned held = 0;

    zb_list_each(pos, &m->shares)
    {
        struct share *s = zb_container_of(pos, struct share, node);
        struct pollfd p = { .fd = s->fd };

        if (poll(&p, 1, 0) == 1 && (p.revents & POLLHUP))
            share_free(s);
        else
            held++;
    }
    return held;
}

static void mem_delete(struct zk_gpu_mem *m)
{
    zb_list_remove(&m->node);
    zb_list_each(pos, &m->shares) share_free(zb_container_of(pos, struct share, node));
    zb_close_fd(&m->mark_fd);
    free(m);
}

/* Forgets what nobody holds any more. */
static void stranded_look(struct zk_gpu *g)
{
    zb_list_each(pos, &g->stranded)
    {
        struct zk_gpu_mem *m = zb_container_of(pos, struct zk_gpu_mem, node);

        if (shares_held(m) == 0) {
            g->used.stranded_bytes -= m->len_bytes;
            mem_delete(m);
        }
    }
}

void zk_gpu_close(struct zk_gpu *g)
{
    if (!g)
        return;
    assert(zb_list_empty(&g->mems) && zb_list_empty(&g->pins) && g->objects == 0);
    zb_list_each(pos, &g->stranded) mem_delete(zb_container_of(pos, struct zk_gpu_mem, node));
    (void)pthread_mutex_destroy(&g->lock);
    g->backend->close(g);
}

int zk_gpu_usage(struct zk_gpu *g, struct zk_gpu_usage *ret, struct zb_err *err)
{
    uint64_t free_bytes = 0;
    int rc;

    (void)pthread_mutex_lock(&g->lock);
    stranded_look(g);
    rc = g->backend->free_bytes(g, &free_bytes, err);
    if (rc == 0) {
        *ret = g->used;
        ret->free_bytes = free_bytes;
    }
    (void)pthread_mutex_unlock(&g->lock);
    return rc;
}

void zk_gpu_stranded(struct zk_gpu *g, void (*fn)(void *arg, const struct zk_gpu_strand *strand),
                     void *arg)
{
    (void)pthread_mutex_lock(&g->lock);
    stranded_look(g);
    zb_list_each(pos, &g->stranded)
    {
        struct zk_gpu_mem *m = zb_container_of(pos, struct zk_gpu_mem, node);
        struct zk_gpu_strand strand = { .tag = m->tag, .len_bytes = m->len_bytes };

        zb_list_each(at, &m->shares)
        {
            if (strand.nholders < ZK_GPU_HOLDERS_MAX)
                strand.holders[strand.nholders] = zb_container_of(at, struct share, node)->holder;
            strand.nholders++;
        }
        fn(arg, &strand);
    }
    (void)pthread_mutex_unlock(&g->lock);
}

/* ---- memory */

static struct zk_gpu_mem *mem_make(struct zk_gpu *g, uint64_t len_bytes, uint64_t tag)
{
    struct zk_gpu_mem *m = calloc(1, sizeof(*m));

    if (!m)
        return NULL;
    *m = (struct zk_gpu_mem){
        .gpu = g, .len_bytes = len_bytes, .tag = tag, .mark_fd = -1, .fd = -1, .writable = true
    };
    zb_list_init(&m->node);
    zb_list_init(&m->shares);
    return m;
}

/* Takes `bytes` of the limit. */
static int limit_take(struct zk_gpu *g, uint64_t bytes, struct zb_err *err)
{
    uint64_t taken;
    int rc = 0;

    (void)pthread_mutex_lock(&g->lock);
    stranded_look(g);
    taken = g->used.owned_bytes + g->used.stranded_bytes;
    if (bytes > g->info.limit_bytes || taken > g->info.limit_bytes - bytes)
        rc = zb_fail(err, -ENOSPC,
                     "%s of GPU memory are needed, %s of %s are free; %s are stranded with "
                     "processes that hold what was freed",
                     zb_size_text(bytes).s, zb_size_text(g->info.limit_bytes - taken).s,
                     zb_size_text(g->info.limit_bytes).s, zb_size_text(g->used.stranded_bytes).s);
    else
        g->used.owned_bytes += bytes;
    (void)pthread_mutex_unlock(&g->lock);
    return rc;
}

/* The device has no such memory left, for all that the limit says: others use it, too. */
static int device_full(struct zk_gpu *g, uint64_t bytes, const struct zb_err *why,
                       struct zb_err *err)
{
    uint64_t free_bytes = 0;

    (void)pthread_mutex_lock(&g->lock);
    (void)g->backend->free_bytes(g, &free_bytes, NULL);
    (void)pthread_mutex_unlock(&g->lock);
    return zb_fail(err, -ENOSPC, "%s of GPU memory are needed, %s of the device's %s are free: %s",
                   zb_size_text(bytes).s, zb_size_text(free_bytes).s,
                   zb_size_text(g->info.total_bytes).s, why->text);
}

int zk_gpu_alloc(struct zk_gpu *g, uint64_t bytes, uint64_t tag, struct zk_gpu_mem **ret,
                 struct zb_err *err)
{
    struct zb_err why = { 0 };
    struct zk_gpu_mem *m;
    int rc;

    if (bytes == 0 || bytes > UINT64_C(1) << 50)
        return zb_fail(err, -EINVAL, "no GPU memory has %llu bytes", (unsigned long long)bytes);
    bytes = zb_round_up(bytes, g->info.granularity_bytes);
    rc = limit_take(g, bytes, err);
    if (rc < 0)
        return rc;
    m = mem_make(g, bytes, tag);
    rc = m ? g->backend->mem_new(m, &why) : zb_fail(err, -ENOMEM, "GPU memory: %m");
    if (m && rc < 0)
        rc = rc == -ENOMEM ? device_full(g, bytes, &why, err) : zb_fail(err, rc, "%s", why.text);
    (void)pthread_mutex_lock(&g->lock);
    if (rc == 0)
        zb_list_push_back(&g->mems, &m->node);
    else
        g->used.owned_bytes -= bytes;
    (void)pthread_mutex_unlock(&g->lock);
    if (rc == 0)
        *ret = m;
    else
        free(m);
    return rc;
}

void zk_gpu_free(struct zk_gpu_mem *m)
{
    struct zk_gpu *g;

    if (!m)
        return;
    g = m->gpu;
    (void)pthread_mutex_lock(&g->lock);
    assert(m->busy == 0);
    zb_list_remove(&m->node);
    (void)pthread_mutex_unlock(&g->lock);
    g->backend->mem_free(m);
    (void)pthread_mutex_lock(&g->lock);
    if (m->imported)
        g->used.imported_bytes -= m->len_bytes;
    else
        g->used.owned_bytes -= m->len_bytes;
    if (shares_held(m) > 0) {
        g->used.stranded_bytes += m->len_bytes;
        zb_list_push_back(&g->stranded, &m->node);
    } else {
        mem_delete(m);
    }
    (void)pthread_mutex_unlock(&g->lock);
}

void *zk_gpu_addr(const struct zk_gpu_mem *m)
{
    return m->dev;
}

uint64_t zk_gpu_len(const struct zk_gpu_mem *m)
{
    return m->len_bytes;
}

int zk_gpu_share(struct zk_gpu_mem *m, uint64_t holder, struct zk_gpu_share *ret,
                 struct zb_err *err)
{
    struct zk_gpu_share out = { .mem_fd = -1, .mark_fd = -1, .len_bytes = m->len_bytes };
    struct share *s;
    int ends[2], rc;

    if (m->imported)
        return zb_fail(err, -EINVAL, "GPU memory of another process is not ours to share");
    if (pipe2(ends, O_CLOEXEC) < 0)
        return zb_fail(err, -errno, "a mark for GPU memory: %m");
    out.mark_fd = ends[1];
    s = malloc(sizeof(*s));
    rc = s ? m->gpu->backend->mem_export(m, &out.mem_fd, err)
           : zb_fail(err, -ENOMEM, "a mark for GPU memory: %m");
    if (rc < 0) {
        zb_close_fd(&ends[0]);
        zk_gpu_share_close(&out);
        free(s);
        return rc;
    }
    *s = (struct share){ .fd = ends[0], .holder = holder };
    zb_list_init(&s->node);
    (void)pthread_mutex_lock(&m->gpu->lock);
    (void)shares_held(m); /* or those that were given back would gather here */
    zb_list_push_back(&m->shares, &s->node);
    (void)pthread_mutex_unlock(&m->gpu->lock);
    *ret = out;
    return 0;
}

void zk_gpu_share_close(struct zk_gpu_share *share)
{
    zb_close_fd(&share->mem_fd);
    zb_close_fd(&share->mark_fd);
}

unsigned zk_gpu_holders(struct zk_gpu_mem *m)
{
    unsigned held;

    (void)pthread_mutex_lock(&m->gpu->lock);
    held = shares_held(m);
    (void)pthread_mutex_unlock(&m->gpu->lock);
    return held;
}

static int import_build(struct zk_gpu_mem *m, const struct zk_gpu_share *share, bool writable,
                        struct zb_err *err)
{
    m->imported = true;
    m->writable = writable;
    m->mark_fd = fcntl(share->mark_fd, F_DUPFD_CLOEXEC, 0);
    if (m->mark_fd < 0)
        return zb_fail(err, -errno, "the mark of shared GPU memory: %m");
    return m->gpu->backend->mem_import(m, share->mem_fd, writable, err);
}

int zk_gpu_import(struct zk_gpu *g, const struct zk_gpu_share *share, bool writable,
                  struct zk_gpu_mem **ret, struct zb_err *err)
{
    struct zk_gpu_mem *m;
    int rc;

    if (share->len_bytes == 0 || share->len_bytes % g->info.granularity_bytes != 0)
        return zb_fail(err, -EINVAL, "shared GPU memory of %llu bytes: not a multiple of %llu",
                       (unsigned long long)share->len_bytes,
                       (unsigned long long)g->info.granularity_bytes);
    m = mem_make(g, share->len_bytes, 0);
    if (!m)
        return zb_fail(err, -ENOMEM, "GPU memory: %m");
    rc = import_build(m, share, writable, err);
    (void)pthread_mutex_lock(&g->lock);
    if (rc == 0) {
        g->used.imported_bytes += m->len_bytes;
        zb_list_push_back(&g->mems, &m->node);
        *ret = m;
    } else {
        mem_delete(m);
    }
    (void)pthread_mutex_unlock(&g->lock);
    return rc;
}

/* ---- host memory */

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

/* Touches memory from many threads before the driver does it from one: it pins what is there
 * several times as fast. Only a hint: where the kernel does not know it, the driver does all. */
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
             ? zb_fail(err, -EEXIST, "%p: some of it is pinned already", addr)
             : 0;
    if (rc == 0)
        zb_list_push_back(&g->pins, &p->node);
    (void)pthread_mutex_unlock(&g->lock);
    if (rc == 0) {
        pieces_touch(addr, len_bytes, read_only);
        rc = pieces_pin(g, addr, len_bytes, read_only, err);
    }
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
    pieces_unpin(g, p->addr, p->len_bytes);
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

bool zk_gpu_pinned(struct zk_gpu *g, const void *addr, uint64_t len_bytes)
{
    struct pin *p;
    bool inside;

    (void)pthread_mutex_lock(&g->lock);
    p = pin_at(g, addr);
    inside = p && len_bytes <= (uint64_t)(p->addr + p->len_bytes - (const char *)addr);
    (void)pthread_mutex_unlock(&g->lock);
    return inside;
}

/* ---- streams, events, works: the backend's, and counted */

static void objects_count(struct zk_gpu *g, int by)
{
    (void)pthread_mutex_lock(&g->lock);
    g->objects += (unsigned)by;
    (void)pthread_mutex_unlock(&g->lock);
}

int zk_gpu_stream_new(struct zk_gpu *g, struct zk_gpu_stream **ret, struct zb_err *err)
{
    int rc = g->backend->stream_new(g, ret, err);

    if (rc == 0)
        objects_count(g, 1);
    return rc;
}

void zk_gpu_stream_free(struct zk_gpu_stream *s)
{
    if (!s)
        return;
    objects_count(s->gpu, -1);
    s->gpu->backend->stream_free(s);
}

void *zk_gpu_stream_native(struct zk_gpu_stream *s)
{
    return s->gpu->backend->stream_native ? s->gpu->backend->stream_native(s) : s;
}

int zk_gpu_stream_query(struct zk_gpu_stream *s, struct zb_err *err)
{
    return s->gpu->backend->stream_query(s, err);
}

int zk_gpu_stream_sync(struct zk_gpu_stream *s, struct zb_err *err)
{
    return s->gpu->backend->stream_sync(s, err);
}

int zk_gpu_event_new(struct zk_gpu *g, struct zk_gpu_event **ret, struct zb_err *err)
{
    int rc = g->backend->event_new(g, ret, err);

    if (rc == 0)
        objects_count(g, 1);
    return rc;
}

void zk_gpu_event_free(struct zk_gpu_event *e)
{
    if (!e)
        return;
    objects_count(e->gpu, -1);
    e->gpu->backend->event_free(e);
}

int zk_gpu_event_record(struct zk_gpu_event *e, struct zk_gpu_stream *s, struct zb_err *err)
{
    assert(e->gpu == s->gpu);
    return e->gpu->backend->event_record(e, s, err);
}

int zk_gpu_event_wait(struct zk_gpu_event *e, struct zk_gpu_stream *s, struct zb_err *err)
{
    assert(e->gpu == s->gpu);
    return e->gpu->backend->event_wait(e, s, err);
}

int zk_gpu_event_query(struct zk_gpu_event *e, struct zb_err *err)
{
    return e->gpu->backend->event_query(e, err);
}

/* How many of the bytes at `host` one copy may have: what is pinned in several pieces, or in part,
 * drivers may refuse. */
static uint64_t copy_run(struct zk_gpu *g, const char *host, uint64_t len_bytes)
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

int zk_gpu_copy(struct zk_gpu_stream *s, enum zk_gpu_way way, void *to, const void *from,
                uint64_t len_bytes, struct zb_err *err)
{
    const char *host = way == ZK_GPU_TO_DEVICE ? from : to;
    int rc = 0;

    if (way == ZK_GPU_WITHIN || len_bytes == 0)
        return s->gpu->backend->copy(s, way, to, from, len_bytes, err);
    for (uint64_t at = 0, run; at < len_bytes && rc == 0; at += run) {
        run = copy_run(s->gpu, host + at, len_bytes - at);
        rc = s->gpu->backend->copy(s, way, (char *)to + at, (const char *)from + at, run, err);
    }
    return rc;
}

int zk_gpu_fill(struct zk_gpu_stream *s, void *dev, uint8_t byte, uint64_t len_bytes,
                struct zb_err *err)
{
    return s->gpu->backend->fill(s, dev, byte, len_bytes, err);
}

int zk_gpu_signal(struct zk_gpu_stream *s, int eventfd, struct zb_err *err)
{
    return s->gpu->backend->signal(s, eventfd, err);
}

int zk_gpu_launch(struct zk_gpu_stream *s, const struct zk_gpu_work *work, struct zb_err *err)
{
    int rc = zk_gpu_work_check(work, err);

    return rc < 0 ? rc : s->gpu->backend->launch(s, work, err);
}

/* ---- gpu_own.h */

int zk_gpu_adopt(const char *name, void *native, struct zk_gpu **ret, struct zk_gpu_stream **ret_s,
                 struct zb_err *err)
{
    struct zk_gpu_stream *theirs = native;
    struct zk_gpu *g = NULL;
    int rc;

    if (name_args(name, zk_gpu_emulated.name)) {
        *ret_s = theirs;
        *ret = theirs->gpu;
        return 0;
    }
    rc = zk_gpu_open(name, 0, &g, err);
    if (rc < 0)
        return rc;
    assert(g->backend->stream_adopt);
    rc = g->backend->stream_adopt(g, native, ret_s, err);
    if (rc < 0) {
        zk_gpu_close(g);
        return rc;
    }
    objects_count(g, 1);
    *ret = g;
    return 0;
}

void zk_gpu_disown(struct zk_gpu *g, struct zk_gpu_stream *s)
{
    if (!g || !g->backend->stream_adopt)
        return; /* the owner's */
    zk_gpu_stream_free(s);
    zk_gpu_close(g);
}

int zk_gpu_enter(struct zk_gpu *g, struct zb_err *err)
{
    return g->backend->enter ? g->backend->enter(g, err) : 0;
}

void *zk_gpu_symbol(struct zk_gpu *g, const char *name)
{
    return g->library ? dlsym(g->library, name) : NULL;
}

int zk_gpu_call(struct zk_gpu_stream *s, zk_gpu_call_fn *fn, const void *args, size_t args_bytes,
                const struct zk_gpu_use *uses, unsigned nuses, struct zb_err *err)
{
    assert(args_bytes <= ZK_GPU_CALL_BYTES && nuses <= ZK_GPU_USES_MAX);
    if (!s->gpu->backend->call)
        return zb_fail(err, -ENOTSUP, "a GPU of '%s' runs no functions of the host",
                       s->gpu->backend->name);
    return s->gpu->backend->call(s, fn, args, args_bytes, uses, nuses, err);
}
