/*
 * emulated.c - a GPU played by threads: for tests, and to develop where there is none.
 *
 * MODEL. Device memory is a memfd that is mapped twice: `shadow`, where the device's threads work,
 * and `dev`, the address that everyone is given, where nothing may be touched (PROT_NONE). A stream
 * is a thread with a queue of items; it takes one at a time, waits as long as the device is slow,
 * does it, and removes it from the queue. Device addresses of a work are looked up when it runs, as
 * a GPU does: a wrong one loses the device.
 *
 * INVARIANTS.
 *     I1  What a work does to memory happens in its stream's thread, never in the call.
 *     I2  An item leaves the queue when it is done: an empty queue is an idle stream.
 *     I3  A lost device (`dead`) runs no work and forgets none: queues drain, events are reached,
 *         so whoever waits is told. It stays lost.
 *     I4  The lock guards queues, events and `dead`; it is not held while a work runs, while
 * gpu.c's lock is taken, or while anyone sleeps.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/size.h"
#include "kernels/gpu/gpu_priv.h"

#define GRANULARITY   (2 * ZB_MIB)
#define UNIT_MIN      4096u
#define TOTAL_DEFAULT (256 * ZB_MIB)
#define JUNK          0xa5 /* what fresh memory is full of */

struct emu {
    struct zk_gpu base;
    const struct zk_ops *ops;
    uint64_t delay_us;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a queue, an event, or `stop` of a stream */
    bool limited;           /* only so many works */
    uint64_t works_left;
    struct zb_err dead;  /* code is 0 while the device works */
    struct zb_list pins; /* pieces of host memory */
    uint64_t pin_left;   /* bytes */
    uint64_t shares;     /* 0: of its memory nothing leaves the process */
};

struct emu_pin {
    struct zb_list node;
    char *addr;
    uint64_t len_bytes;
};

enum item_kind {
    ITEM_COPY,
    ITEM_FILL,
    ITEM_LAUNCH,
    ITEM_CALL,
    ITEM_RECORD,
    ITEM_WAIT,
    ITEM_SIGNAL
};

/* A function of the host with its arguments: gpu_own.h. */
struct call {
    zk_gpu_call_fn *fn;
    struct zk_gpu_use uses[ZK_GPU_USES_MAX];
    unsigned nuses;
    _Alignas(max_align_t) unsigned char args[ZK_GPU_CALL_BYTES];
};

struct emu_event {
    struct zk_gpu_event base;
    unsigned refs;           /* the caller, and items */
    uint64_t recorded, done; /* the number of the last record, and of the newest reached */
};

struct item {
    struct zb_list node;
    enum item_kind kind;
    bool fails; /* the device is lost when it comes to this */
    enum zk_gpu_way way;
    uint8_t byte;
    void *to;
    const void *from;
    uint64_t len_bytes;
    struct zk_gpu_work work;
    struct call *call; /* of ITEM_CALL; freed with the item */
    struct emu_event *event;
    uint64_t number; /* of the event's record */
    int fd;
};

struct emu_stream {
    struct zk_gpu_stream base;
    pthread_t thread;
    struct zb_list queue; /* the first one runs */
    bool stop;
};

static struct emu *emu_of(struct zk_gpu *g)
{
    return zb_container_of(g, struct emu, base);
}

static void emu_die(struct emu *e, int code, const char *why)
{
    (void)pthread_mutex_lock(&e->lock);
    (void)zb_fail(&e->dead, code, "the emulated GPU is lost: %s", why);
    (void)pthread_mutex_unlock(&e->lock);
}

/* Under the lock: 0, or why the device is lost. */
static int emu_alive(const struct emu *e, struct zb_err *err)
{
    return e->dead.code == 0 ? 0 : zb_fail(err, e->dead.code, "%s", e->dead.text);
}

/* Under the lock: true for what is allocated or worked on after the last that may be. */
static bool emu_spend(struct emu *e)
{
    if (!e->limited)
        return false;
    if (e->works_left == 0)
        return true;
    e->works_left--;
    return false;
}

/* ---- the device */

static void emu_close(struct zk_gpu *g)
{
    struct emu *e = emu_of(g);

    (void)pthread_cond_destroy(&e->changed);
    (void)pthread_mutex_destroy(&e->lock);
    free(e);
}

/* The next number of "A:B:C"; *args moves on. Nothing there: the number stays as it is. */
static int args_number(const char **args, bool size, uint64_t *ret, struct zb_err *err)
{
    char text[32];
    size_t len = strcspn(*args, ":");
    int rc;

    if (len >= sizeof(text))
        return zb_fail(err, -EINVAL, "'%s' is no number of an emulated GPU", *args);
    memcpy(text, *args, len);
    text[len] = '\0';
    *args += len + ((*args)[len] == ':');
    if (len == 0)
        return 0;
    rc = zb_size_parse(text, ret, err);
    if (rc == 0 && !size && strspn(text, "0123456789") != len)
        return zb_fail(err, -EINVAL, "'%s' is no number of an emulated GPU", text);
    return rc;
}

static int args_parse(struct emu *e, const char *args, struct zb_err *err)
{
    uint64_t works = UINT64_MAX;
    int rc = args_number(&args, true, &e->base.info.total_bytes, err);

    if (rc == 0)
        rc = args_number(&args, false, &e->delay_us, err);
    if (rc == 0)
        rc = args_number(&args, false, &works, err);
    if (rc == 0)
        rc = args_number(&args, true, &e->base.info.granularity_bytes, err);
    e->pin_left = UINT64_MAX;
    if (rc == 0)
        rc = args_number(&args, true, &e->pin_left, err);
    e->shares = UINT64_MAX;
    if (rc == 0)
        rc = args_number(&args, false, &e->shares, err);
    e->limited = works != UINT64_MAX;
    e->works_left = works;
    if (rc == 0 && *args != '\0')
        return zb_fail(err, -EINVAL,
                       "'%s' is too much: emulated[:BYTES[:US[:WORKS[:UNIT[:PIN[:SHARES]]]]]]",
                       args);
    if (rc == 0 &&
        (e->base.info.granularity_bytes == 0 || e->base.info.granularity_bytes % UNIT_MIN != 0))
        return zb_fail(err, -EINVAL, "memory of an emulated GPU comes in multiples of %u bytes",
                       UNIT_MIN);
    if (rc == 0 && e->base.info.total_bytes < e->base.info.granularity_bytes)
        return zb_fail(err, -EINVAL, "an emulated GPU has at least %s of memory",
                       zb_size_text(e->base.info.granularity_bytes).s);
    return rc;
}

static int emu_open(const char *args, struct zk_gpu **ret, struct zb_err *err)
{
    struct emu *e = calloc(1, sizeof(*e));
    int rc;

    if (!e)
        return zb_fail(err, -ENOMEM, "emulated GPU: %m");
    rc = pthread_mutex_init(&e->lock, NULL);
    assert(rc == 0);
    rc = pthread_cond_init(&e->changed, NULL);
    assert(rc == 0);
    zb_list_init(&e->pins);
    e->base.info.total_bytes = TOTAL_DEFAULT;
    e->base.info.granularity_bytes = GRANULARITY;
    rc = args_parse(e, args, err);
    if (rc == 0)
        rc = zk_select(NULL, &e->ops, err);
    if (rc < 0) {
        emu_close(&e->base);
        return rc;
    }
    (void)snprintf(e->base.info.id, sizeof(e->base.info.id), "emulated");
    (void)snprintf(e->base.info.name, sizeof(e->base.info.name), "emulated GPU, %s, kernels %s",
                   zb_size_text(e->base.info.total_bytes).s, e->ops->name);
    *ret = &e->base;
    return 0;
}

/* Under gpu.c's lock. */
static int emu_free_bytes(struct zk_gpu *g, uint64_t *ret, struct zb_err *err)
{
    (void)err;
    *ret = g->info.total_bytes - g->used.owned_bytes - g->used.stranded_bytes;
    return 0;
}

/* ---- memory */

static void mem_unmap(struct zk_gpu_mem *m)
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

static int emu_mem_new(struct zk_gpu_mem *m, struct zb_err *err)
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
        mem_unmap(m);
    return rc;
}

static int emu_mem_import(struct zk_gpu_mem *m, int fd, bool writable, struct zb_err *err)
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
        mem_unmap(m);
    return rc;
}

static int emu_mem_export(struct zk_gpu_mem *m, int *ret_fd, struct zb_err *err)
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

/* Where the device finds len_bytes at `dev`; NULL: they are not its own, or may not be written.
 * *ret_mem is busy until mem_idle(). */
static void *mem_find(struct emu *e, const void *dev, uint64_t len_bytes, bool writes,
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

static void mem_idle(struct emu *e, struct zk_gpu_mem *m)
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

/* As most drivers: nothing that is mapped for reading only. */
static int emu_pin(struct zk_gpu *g, void *addr, uint64_t len_bytes, bool read_only,
                   struct zb_err *err)
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

static void emu_unpin(struct zk_gpu *g, void *addr)
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

/* As strict as drivers may be: a copy's host memory is pinned in one piece, or not at all. */
static bool pins_whole(struct emu *e, const char *host, uint64_t len_bytes)
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

/* ---- what streams do */

static void event_put(struct emu_event *event)
{
    struct emu *e = emu_of(event->base.gpu);
    bool last;

    (void)pthread_mutex_lock(&e->lock);
    last = --event->refs == 0;
    (void)pthread_mutex_unlock(&e->lock);
    if (last)
        free(event);
}

/* The device side of a copy is looked up, the host's is taken as it is. */
static bool copy_run(struct emu *e, const struct item *i)
{
    struct zk_gpu_mem *to_mem = NULL, *from_mem = NULL;
    void *to = i->to;
    const void *from = i->from;

    if (i->way != ZK_GPU_TO_HOST)
        to = mem_find(e, to, i->len_bytes, true, &to_mem);
    if (i->way != ZK_GPU_TO_DEVICE)
        from = mem_find(e, from, i->len_bytes, false, &from_mem);
    if (to && from)
        memcpy(to, from, i->len_bytes);
    if (to_mem)
        mem_idle(e, to_mem);
    if (from_mem)
        mem_idle(e, from_mem);
    return to && from;
}

static bool fill_run(struct emu *e, const struct item *i)
{
    struct zk_gpu_mem *mem = NULL;
    void *to = mem_find(e, i->to, i->len_bytes, true, &mem);

    if (!to)
        return false;
    memset(to, i->byte, i->len_bytes);
    mem_idle(e, mem);
    return true;
}

/* Makes the pointers of spans the host's. Returns how many were found: their mems are busy. */
static unsigned spans_find(struct emu *e, const struct zk_gpu_span *spans, unsigned n,
                           struct zk_gpu_mem **mems)
{
    for (unsigned i = 0; i < n; i++) {
        void *dev, *host;

        memcpy(&dev, spans[i].at, sizeof(dev));
        host = mem_find(e, dev, spans[i].len_bytes, spans[i].writes, &mems[i]);
        if (!host)
            return i;
        memcpy(spans[i].at, &host, sizeof(host));
    }
    return n;
}

static void spans_idle(struct emu *e, struct zk_gpu_mem **mems, unsigned n)
{
    while (n > 0)
        mem_idle(e, mems[--n]);
}

static bool launch_run(struct emu *e, struct item *i)
{
    struct zk_gpu_span spans[ZK_GPU_SPANS_MAX];
    struct zk_gpu_mem *mems[ZK_GPU_SPANS_MAX];
    unsigned n = zk_gpu_work_spans(&i->work, spans), found = spans_find(e, spans, n, mems);
    bool good = found == n && zk_gpu_work_run(e->ops, &i->work) == 0;

    spans_idle(e, mems, found);
    return good;
}

static bool call_run(struct emu *e, struct call *c)
{
    struct zk_gpu_span spans[ZK_GPU_USES_MAX];
    struct zk_gpu_mem *mems[ZK_GPU_USES_MAX];
    unsigned n = 0, found;
    bool good;

    for (unsigned i = 0; i < c->nuses; i++)
        if (c->uses[i].len_bytes > 0)
            spans[n++] = (struct zk_gpu_span){ c->args + c->uses[i].at, c->uses[i].len_bytes,
                                               c->uses[i].writes };
    found = spans_find(e, spans, n, mems);
    good = found == n && c->fn(c->args) == 0;
    spans_idle(e, mems, found);
    return good;
}

/* One work; the device is lost where it fails. */
static void work_run(struct emu *e, struct item *i)
{
    const struct timespec slow = { .tv_sec = (time_t)(e->delay_us / 1000000),
                                   .tv_nsec = (long)(e->delay_us % 1000000 * 1000) };
    bool good = false;

    if (e->delay_us > 0)
        (void)nanosleep(&slow, NULL);
    if (i->fails) {
        emu_die(e, -EIO, "it fails, as it was asked to");
        return;
    }
    switch (i->kind) {
    case ITEM_COPY:
        good = copy_run(e, i);
        break;
    case ITEM_FILL:
        good = fill_run(e, i);
        break;
    case ITEM_LAUNCH:
        good = launch_run(e, i);
        break;
    case ITEM_CALL:
        good = call_run(e, i->call);
        break;
    case ITEM_RECORD:
    case ITEM_WAIT:
    case ITEM_SIGNAL:
        break;
    }
    if (!good)
        emu_die(e, -EFAULT, "a work named memory that is not its own");
}

/* Runs one item without the lock, and takes it again. */
static void item_run(struct emu *e, struct item *i)
{
    bool dead = e->dead.code != 0;

    switch (i->kind) {
    case ITEM_RECORD:
        i->event->done = zb_max_u64(i->event->done, i->number);
        return;
    case ITEM_WAIT:
        while (i->event->done < i->number)
            (void)pthread_cond_wait(&e->changed, &e->lock);
        return;
    case ITEM_SIGNAL:
        (void)pthread_mutex_unlock(&e->lock);
        if (!dead)
            (void)eventfd_write(i->fd, 1);
        break;
    case ITEM_COPY:
    case ITEM_FILL:
    case ITEM_LAUNCH:
    case ITEM_CALL:
        (void)pthread_mutex_unlock(&e->lock);
        if (!dead)
            work_run(e, i);
        break;
    }
    (void)pthread_mutex_lock(&e->lock);
}

static void *stream_thread(void *arg)
{
    struct emu_stream *s = arg;
    struct emu *e = emu_of(s->base.gpu);

    zk_thread_init();
    (void)pthread_mutex_lock(&e->lock);
    for (;;) {
        struct item *i;
        struct emu_event *event;

        while (zb_list_empty(&s->queue) && !s->stop)
            (void)pthread_cond_wait(&e->changed, &e->lock);
        if (zb_list_empty(&s->queue))
            break;
        i = zb_container_of(s->queue.next, struct item, node);
        item_run(e, i);
        zb_list_remove(&i->node);
        (void)pthread_cond_broadcast(&e->changed);
        event = i->event;
        (void)pthread_mutex_unlock(&e->lock);
        if (event)
            event_put(event);
        free(i->call);
        free(i);
        (void)pthread_mutex_lock(&e->lock);
    }
    (void)pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---- streams and events */

static int emu_stream_new(struct zk_gpu *g, struct zk_gpu_stream **ret, struct zb_err *err)
{
    struct emu_stream *s = calloc(1, sizeof(*s));
    int rc;

    if (!s)
        return zb_fail(err, -ENOMEM, "a stream: %m");
    s->base.gpu = g;
    zb_list_init(&s->queue);
    rc = pthread_create(&s->thread, NULL, stream_thread, s);
    if (rc != 0) {
        free(s);
        return zb_fail(err, -rc, "the thread of a stream: %m");
    }
    *ret = &s->base;
    return 0;
}

static struct emu_stream *stream_of(struct zk_gpu_stream *s)
{
    return zb_container_of(s, struct emu_stream, base);
}

static void emu_stream_free(struct zk_gpu_stream *base)
{
    struct emu *e = emu_of(base->gpu);
    struct emu_stream *s = stream_of(base);

    (void)pthread_mutex_lock(&e->lock);
    s->stop = true;
    (void)pthread_cond_broadcast(&e->changed);
    (void)pthread_mutex_unlock(&e->lock);
    (void)pthread_join(s->thread, NULL);
    free(s);
}

static int emu_stream_query(struct zk_gpu_stream *base, struct zb_err *err)
{
    struct emu *e = emu_of(base->gpu);
    int rc;

    (void)pthread_mutex_lock(&e->lock);
    rc = emu_alive(e, err);
    if (rc == 0 && !zb_list_empty(&stream_of(base)->queue))
        rc = -EAGAIN;
    (void)pthread_mutex_unlock(&e->lock);
    return rc;
}

static int emu_stream_sync(struct zk_gpu_stream *base, struct zb_err *err)
{
    struct emu *e = emu_of(base->gpu);
    int rc;

    (void)pthread_mutex_lock(&e->lock);
    while (!zb_list_empty(&stream_of(base)->queue))
        (void)pthread_cond_wait(&e->changed, &e->lock);
    rc = emu_alive(e, err);
    (void)pthread_mutex_unlock(&e->lock);
    return rc;
}

/* Queues a copy of *what; an event's record gets its number here. */
static int stream_push(struct zk_gpu_stream *base, const struct item *what, struct zb_err *err)
{
    struct emu *e = emu_of(base->gpu);
    struct item *i = malloc(sizeof(*i));
    int rc;

    if (!i)
        return zb_fail(err, -ENOMEM, "a work of the GPU: %m");
    *i = *what;
    zb_list_init(&i->node);
    (void)pthread_mutex_lock(&e->lock);
    rc = emu_alive(e, err);
    if (rc == 0) {
        if (i->kind <= ITEM_CALL)
            i->fails = emu_spend(e);
        if (i->kind == ITEM_RECORD)
            i->number = ++i->event->recorded;
        if (i->kind == ITEM_WAIT)
            i->number = i->event->recorded;
        if (i->event)
            i->event->refs++;
        zb_list_push_back(&stream_of(base)->queue, &i->node);
        (void)pthread_cond_broadcast(&e->changed);
    }
    (void)pthread_mutex_unlock(&e->lock);
    if (rc < 0)
        free(i);
    return rc;
}

static int emu_event_new(struct zk_gpu *g, struct zk_gpu_event **ret, struct zb_err *err)
{
    struct emu_event *event = calloc(1, sizeof(*event));

    if (!event)
        return zb_fail(err, -ENOMEM, "an event: %m");
    event->base.gpu = g;
    event->refs = 1;
    *ret = &event->base;
    return 0;
}

static struct emu_event *event_of(struct zk_gpu_event *event)
{
    return zb_container_of(event, struct emu_event, base);
}

static void emu_event_free(struct zk_gpu_event *event)
{
    event_put(event_of(event));
}

static int emu_event_record(struct zk_gpu_event *event, struct zk_gpu_stream *s, struct zb_err *err)
{
    return stream_push(s, &(struct item){ .kind = ITEM_RECORD, .event = event_of(event) }, err);
}

static int emu_event_wait(struct zk_gpu_event *event, struct zk_gpu_stream *s, struct zb_err *err)
{
    return stream_push(s, &(struct item){ .kind = ITEM_WAIT, .event = event_of(event) }, err);
}

static int emu_event_query(struct zk_gpu_event *base, struct zb_err *err)
{
    struct emu *e = emu_of(base->gpu);
    struct emu_event *event = event_of(base);
    int rc;

    (void)pthread_mutex_lock(&e->lock);
    rc = emu_alive(e, err);
    if (rc == 0 && event->done < event->recorded)
        rc = -EAGAIN;
    (void)pthread_mutex_unlock(&e->lock);
    return rc;
}

static int emu_copy(struct zk_gpu_stream *s, enum zk_gpu_way way, void *to, const void *from,
                    uint64_t len_bytes, struct zb_err *err)
{
    if (len_bytes == 0)
        return 0;
    if (way != ZK_GPU_WITHIN &&
        !pins_whole(emu_of(s->gpu), way == ZK_GPU_TO_DEVICE ? from : to, len_bytes))
        return zb_fail(err, -EINVAL, "a copy of %llu bytes that are pinned in part, or in pieces",
                       (unsigned long long)len_bytes);
    return stream_push(
        s,
        &(struct item){
            .kind = ITEM_COPY, .way = way, .to = to, .from = from, .len_bytes = len_bytes },
        err);
}

static int emu_fill(struct zk_gpu_stream *s, void *dev, uint8_t byte, uint64_t len_bytes,
                    struct zb_err *err)
{
    if (len_bytes == 0)
        return 0;
    return stream_push(
        s, &(struct item){ .kind = ITEM_FILL, .to = dev, .byte = byte, .len_bytes = len_bytes },
        err);
}

static int emu_signal(struct zk_gpu_stream *s, int fd, struct zb_err *err)
{
    return stream_push(s, &(struct item){ .kind = ITEM_SIGNAL, .fd = fd }, err);
}

static int emu_launch(struct zk_gpu_stream *s, const struct zk_gpu_work *work, struct zb_err *err)
{
    return stream_push(s, &(struct item){ .kind = ITEM_LAUNCH, .work = *work }, err);
}

static int emu_call(struct zk_gpu_stream *s, zk_gpu_call_fn *fn, const void *args,
                    size_t args_bytes, const struct zk_gpu_use *uses, unsigned nuses,
                    struct zb_err *err)
{
    struct call *c = calloc(1, sizeof(*c));
    int rc;

    if (!c)
        return zb_fail(err, -ENOMEM, "a work of the GPU: %m");
    c->fn = fn;
    c->nuses = nuses;
    memcpy(c->uses, uses, nuses * sizeof(*uses));
    memcpy(c->args, args, args_bytes);
    rc = stream_push(s, &(struct item){ .kind = ITEM_CALL, .call = c }, err);
    if (rc < 0)
        free(c);
    return rc;
}

const struct zk_gpu_backend zk_gpu_emulated = {
    .name = "emulated",
    .open = emu_open,
    .close = emu_close,
    .free_bytes = emu_free_bytes,
    .mem_new = emu_mem_new,
    .mem_import = emu_mem_import,
    .mem_export = emu_mem_export,
    .mem_free = mem_unmap,
    .pin_piece_bytes = UINT64_C(1) << 20,
    .pin = emu_pin,
    .unpin = emu_unpin,
    .stream_new = emu_stream_new,
    .stream_free = emu_stream_free,
    .stream_query = emu_stream_query,
    .stream_sync = emu_stream_sync,
    .event_new = emu_event_new,
    .event_free = emu_event_free,
    .event_record = emu_event_record,
    .event_wait = emu_event_wait,
    .event_query = emu_event_query,
    .copy = emu_copy,
    .fill = emu_fill,
    .signal = emu_signal,
    .launch = emu_launch,
    .call = emu_call,
};
