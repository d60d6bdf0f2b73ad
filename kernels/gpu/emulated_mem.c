/*
 * emulated_mem.c - memory of the emulated GPU, and host memory that it has pinned.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/gpu/emulated_priv.h"

#define JUNK 0xa5 /* fresh memory is filled with it */

struct emu_pin {
    struct zb_list node;
    char *addr;
    uint64_t len_bytes;
};

void zk_emu_mem_free(struct zk_gpu_mem *m)
{
    if (m->dev)
        (void)munmap(m->dev, m->len_bytes);
    if (m->shadow)
        (void)munmap(m->shadow, m->len_bytes);
    m->dev = m->shadow = NULL;
    zb_close_fd(&m->fd);
}

/* Maps m->fd, as it is. */
static int mem_map(struct zk_gpu_mem *m, struct zb_err *err)
{
    void *dev =
        mmap(NULL, m->len_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *shadow =
        mmap(NULL, m->len_bytes, PROT_READ | (m->writable ? PROT_WRITE : 0), MAP_SHARED, m->fd, 0);
    int code = -errno;

    m->dev = dev == MAP_FAILED ? NULL : dev;
    m->shadow = shadow == MAP_FAILED ? NULL : shadow;
    return m->dev && m->shadow ? 0 : zb_fail(err, code, "mapping emulated GPU memory: %m");
}

static int mem_new_build(struct zk_gpu_mem *m, struct zb_err *err)
{
    int rc;

    m->fd = memfd_create("zshard-emulated-gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (m->fd < 0 || ftruncate(m->fd, (off_t)m->len_bytes) < 0 ||
        fcntl(m->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        return zb_fail(err, -errno, "emulated GPU memory: %m");
    rc = mem_map(m, err);
    if (rc == 0)
        memset(m->shadow, JUNK, m->len_bytes);
    return rc;
}

int zk_emu_mem_new(struct zk_gpu_mem *m, struct zb_err *err)
{
    struct emu *e = emu_of(m->gpu);
    int rc;

    (void)pthread_mutex_lock(&e->lock);
    rc = emu_alive(e, err);
    if (rc == 0 && emu_spend(e))
        rc = zb_fail(err, -ENOMEM, "the emulated GPU fails, as it was asked to");
    (void)pthread_mutex_unlock(&e->lock);
    if (rc == 0)
        rc = mem_new_build(m, err);
    if (rc < 0)
        zk_emu_mem_free(m);
    return rc;
}

int zk_emu_mem_import(struct zk_gpu_mem *m, int fd, bool writable, struct zb_err *err)
{
    off_t len;
    int rc;

    (void)writable;
    m->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (m->fd < 0)
        return zb_fail(err, -errno, "shared emulated GPU memory: %m");
    len = lseek(m->fd, 0, SEEK_END);
    rc = len >= 0 && (uint64_t)len == m->len_bytes
             ? mem_map(m, err)
             : zb_fail(err, -EINVAL, "what was shared is not %llu bytes of emulated GPU memory",
                       (unsigned long long)m->len_bytes);
    if (rc < 0)
        zk_emu_mem_free(m);
    return rc;
}

int zk_emu_mem_export(struct zk_gpu_mem *m, int *ret_fd, struct zb_err *err)
{
    int fd;

    if (emu_of(m->gpu)->shares == 0)
        return zb_fail(err, -ENOTSUP, "the emulated GPU shares no memory, as it was asked to");
    fd = fcntl(m->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return zb_fail(err, -errno, "sharing emulated GPU memory: %m");
    *ret_fd = fd;
    return 0;
}

void *zk_emu_mem_find(struct emu *e, const void *dev, uint64_t len_bytes, bool writes,
                      struct zk_gpu_mem **ret_mem)
{
    uintptr_t at = (uintptr_t)dev;
    void *found = NULL;

    (void)pthread_mutex_lock(&e->base.lock);
    zb_list_each(pos, &e->base.mems)
    {
        struct zk_gpu_mem *m = zb_container_of(pos, struct zk_gpu_mem, node);
        uintptr_t first = (uintptr_t)m->dev;

        if (at < first || at - first >= m->len_bytes)
            continue;
        if (len_bytes <= m->len_bytes - (at - first) && (m->writable || !writes)) {
            found = m->shadow + (at - first);
            m->busy++;
            *ret_mem = m;
        }
        break;
    }
    (void)pthread_mutex_unlock(&e->base.lock);
    return found;
}

void zk_emu_mem_idle(struct emu *e, struct zk_gpu_mem *m)
{
    (void)pthread_mutex_lock(&e->base.lock);
    m->busy--;
    (void)pthread_mutex_unlock(&e->base.lock);
}

/* false: mapped for reading only, where the kernel can say so. */
static bool pin_writable(void *addr, uint64_t page)
{
    return madvise(addr, page, MADV_POPULATE_READ) < 0 ||
           madvise(addr, page, MADV_POPULATE_WRITE) == 0;
}

/* Like most drivers, refuses memory that is mapped read-only. */
int zk_emu_pin(struct zk_gpu *g, void *addr, uint64_t len_bytes, bool read_only, struct zb_err *err)
{
    struct emu *e = emu_of(g);
    struct emu_pin *pin;
    bool full;

    if (read_only)
        return zb_fail(err, -ENOTSUP, "the emulated GPU pins no read-only memory");
    if (!pin_writable(addr, (uint64_t)sysconf(_SC_PAGESIZE)))
        return zb_fail(err, -EINVAL, "memory at %p is read-only", addr);
    if (madvise(addr, len_bytes, MADV_NORMAL) < 0) /* is it mapped? */
        return zb_fail(err, -EINVAL, "%llu bytes at %p are not all mapped",
                       (unsigned long long)len_bytes, addr);
    pin = malloc(sizeof(*pin));
    if (!pin)
        return zb_fail(err, -ENOMEM, "pinning: %m");
    *pin = (struct emu_pin){ .addr = addr, .len_bytes = len_bytes };
    zb_list_init(&pin->node);
    (void)pthread_mutex_lock(&e->lock);
    full = len_bytes > e->pin_left;
    if (!full) {
        e->pin_left -= len_bytes;
        zb_list_push_back(&e->pins, &pin->node);
    }
    (void)pthread_mutex_unlock(&e->lock);
    if (!full)
        return 0;
    free(pin);
    return zb_fail(err, -ENOMEM, "the emulated GPU pins no more, as it was asked to");
}

void zk_emu_unpin(struct zk_gpu *g, void *addr)
{
    struct emu *e = emu_of(g);

    (void)pthread_mutex_lock(&e->lock);
    zb_list_each(pos, &e->pins)
    {
        struct emu_pin *pin = zb_container_of(pos, struct emu_pin, node);

        if (pin->addr == addr) {
            e->pin_left += pin->len_bytes;
            zb_list_remove(&pin->node);
            free(pin);
        }
    }
    (void)pthread_mutex_unlock(&e->lock);
}

bool zk_emu_pins_whole(struct emu *e, const char *host, uint64_t len_bytes)
{
    bool whole = true;

    (void)pthread_mutex_lock(&e->lock);
    zb_list_each(pos, &e->pins)
    {
        const struct emu_pin *pin = zb_container_of(pos, struct emu_pin, node);
        bool touched = host < pin->addr + pin->len_bytes && pin->addr < host + len_bytes;

        if (touched && (host < pin->addr || host + len_bytes > pin->addr + pin->len_bytes))
            whole = false;
    }
    (void)pthread_mutex_unlock(&e->lock);
    return whole;
}
