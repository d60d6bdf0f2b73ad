/*
 * gpu_mem.c - device memory: which process holds which part, and how much is available.
 *
 * MODEL. A share is the read end of a pipe whose write end went to one importer. While the importer
 * has it open, reading would block; when it is closed, or the importer dies, there is a hang-up.
 * Shares are checked on request, never waited for. Memory that is freed while a share is held is
 * unmapped, and stays in `stranded` until the share ends.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/size.h"
#include "kernels/gpu/gpu_priv.h"

struct share {
    struct zb_list node; /* in its mem's shares */
    int fd;              /* the pipe's reading end */
    uint64_t holder;
};

/* ---- shares */

static void share_free(struct share *s)
{
    zb_list_remove(&s->node);
    zb_close_fd(&s->fd);
    free(s);
}

/* Number of shares still held; drops all others. */
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

/* Forgets stranded memory that nobody holds. */
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

void zk_gpu_mem_forget(struct zk_gpu *g)
{
    zb_list_each(pos, &g->stranded) mem_delete(zb_container_of(pos, struct zk_gpu_mem, node));
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

/* The device is full although the limit is not reached: other processes use it too. */
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
    if (!m->imported)
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
    (void)shares_held(m); /* drops released shares, which would pile up otherwise */
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
        zb_list_push_back(&g->mems, &m->node);
        *ret = m;
    } else {
        mem_delete(m);
    }
    (void)pthread_mutex_unlock(&g->lock);
    return rc;
}
