/*
 * emulated_stream.c - streams of the emulated GPU: threads with queues, and what they do. Events.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#include "kernels/gpu/emulated_priv.h"

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
    bool fails; /* the device is lost when it reaches this item */
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

/* Device addresses of a copy are looked up; host addresses are used directly. */
static bool copy_run(struct emu *e, const struct item *i)
{
    struct zk_gpu_mem *to_mem = NULL, *from_mem = NULL;
    void *to = i->to;
    const void *from = i->from;

    if (i->way != ZK_GPU_TO_HOST)
        to = zk_emu_mem_find(e, to, i->len_bytes, true, &to_mem);
    if (i->way != ZK_GPU_TO_DEVICE)
        from = zk_emu_mem_find(e, from, i->len_bytes, false, &from_mem);
    if (to && from)
        memcpy(to, from, i->len_bytes);
    if (to_mem)
        zk_emu_mem_idle(e, to_mem);
    if (from_mem)
        zk_emu_mem_idle(e, from_mem);
    return to && from;
}

static bool fill_run(struct emu *e, const struct item *i)
{
    struct zk_gpu_mem *mem = NULL;
    void *to = zk_emu_mem_find(e, i->to, i->len_bytes, true, &mem);

    if (!to)
        return false;
    memset(to, i->byte, i->len_bytes);
    zk_emu_mem_idle(e, mem);
    return true;
}

/* Makes the pointers of spans the host's. Returns how many were found: their mems are busy. */
static unsigned spans_find(struct emu *e, const struct zk_gpu_span *spans, unsigned n,
                           struct zk_gpu_mem **mems)
{
    for (unsigned i = 0; i < n; i++) {
        void *dev, *host;

        memcpy(&dev, spans[i].at, sizeof(dev));
        host = zk_emu_mem_find(e, dev, spans[i].len_bytes, spans[i].writes, &mems[i]);
        if (!host)
            return i;
        memcpy(spans[i].at, &host, sizeof(host));
    }
    return n;
}

static void spans_idle(struct emu *e, struct zk_gpu_mem **mems, unsigned n)
{
    while (n > 0)
        zk_emu_mem_idle(e, mems[--n]);
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

/* Runs one work; if it fails, the device is lost. */
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

int zk_emu_stream_new(struct zk_gpu *g, struct zk_gpu_stream **ret, struct zb_err *err)
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

void zk_emu_stream_free(struct zk_gpu_stream *base)
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

int zk_emu_stream_sync(struct zk_gpu_stream *base, struct zb_err *err)
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

int zk_emu_event_new(struct zk_gpu *g, struct zk_gpu_event **ret, struct zb_err *err)
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

void zk_emu_event_free(struct zk_gpu_event *event)
{
    event_put(event_of(event));
}

int zk_emu_event_record(struct zk_gpu_event *event, struct zk_gpu_stream *s, struct zb_err *err)
{
    return stream_push(s, &(struct item){ .kind = ITEM_RECORD, .event = event_of(event) }, err);
}

int zk_emu_event_wait(struct zk_gpu_event *event, struct zk_gpu_stream *s, struct zb_err *err)
{
    return stream_push(s, &(struct item){ .kind = ITEM_WAIT, .event = event_of(event) }, err);
}

int zk_emu_event_query(struct zk_gpu_event *base, struct zb_err *err)
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

int zk_emu_copy(struct zk_gpu_stream *s, enum zk_gpu_way way, void *to, const void *from,
                uint64_t len_bytes, struct zb_err *err)
{
    if (len_bytes == 0)
        return 0;
    if (way != ZK_GPU_WITHIN &&
        !zk_emu_pins_whole(emu_of(s->gpu), way == ZK_GPU_TO_DEVICE ? from : to, len_bytes))
        return zb_fail(err, -EINVAL, "a copy of %llu bytes that are pinned in part, or in pieces",
                       (unsigned long long)len_bytes);
    return stream_push(
        s,
        &(struct item){
            .kind = ITEM_COPY, .way = way, .to = to, .from = from, .len_bytes = len_bytes },
        err);
}

int zk_emu_fill(struct zk_gpu_stream *s, void *dev, uint8_t byte, uint64_t len_bytes,
                struct zb_err *err)
{
    if (len_bytes == 0)
        return 0;
    return stream_push(
        s, &(struct item){ .kind = ITEM_FILL, .to = dev, .byte = byte, .len_bytes = len_bytes },
        err);
}

int zk_emu_signal(struct zk_gpu_stream *s, int fd, struct zb_err *err)
{
    return stream_push(s, &(struct item){ .kind = ITEM_SIGNAL, .fd = fd }, err);
}

int zk_emu_launch(struct zk_gpu_stream *s, const struct zk_gpu_work *work, struct zb_err *err)
{
    return stream_push(s, &(struct item){ .kind = ITEM_LAUNCH, .work = *work }, err);
}

int zk_emu_call(struct zk_gpu_stream *s, zk_gpu_call_fn *fn, const void *args, size_t args_bytes,
                const struct zk_gpu_use *uses, unsigned nuses, struct zb_err *err)
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
