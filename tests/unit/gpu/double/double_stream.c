/*
 * double_stream.c - streams of the double: threads with queues, what they do, and events.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_priv.h"
#include "kernels/gpu/gpu_priv.h"
#include "tests/unit/gpu/double/double_priv.h"

/* CUDA's handles point to these. */
struct CUevent_st {
    struct zb_list node; /* in dd.events; in no list: destroyed, and works still wait for it */
    int device;
    unsigned refs;           /* the handle, and items */
    uint64_t recorded, done; /* the number of the last record, and of the newest reached */
};

struct CUstream_st {
    struct zb_list node; /* in dd.streams */
    int device;
    pthread_t thread;
    struct zb_list queue; /* the first one runs */
    bool stop;
};

enum item_kind { ITEM_COPY, ITEM_FILL, ITEM_LAUNCH, ITEM_FUNCTION, ITEM_RECORD, ITEM_WAIT };

struct item {
    struct zb_list node;
    enum item_kind kind;
    enum cudaMemcpyKind way;
    void *to;
    const void *from;
    void *staged; /* the bytes of `from`, where they were not pinned; freed with the item */
    uint64_t len;
    uint8_t byte;
    struct zk_gpu_work work;
    cudaHostFn_t function;
    void *arg;
    cudaEvent_t event;
    uint64_t number; /* of the event's record */
};

/* ---- what streams do; the lock is held, but for the bytes */

static void event_put(cudaEvent_t e)
{
    if (--e->refs == 0)
        free(e);
}

/* Looks up the memory of a work, and writes where its bytes are seen into the work. What was found
 * is busy. */
static unsigned spans_find(int device, const struct zk_gpu_span *spans, unsigned n,
                           struct double_map **maps)
{
    for (unsigned i = 0; i < n; i++) {
        void *dev, *seen;

        memcpy(&dev, spans[i].at, sizeof(dev));
        seen = double_mem_find(device, dev, spans[i].len_bytes, spans[i].writes, &maps[i]);
        if (!seen)
            return i;
        memcpy(spans[i].at, &seen, sizeof(seen));
    }
    return n;
}

/* The spans of an item. */
static unsigned item_spans(struct item *i, struct zk_gpu_span spans[ZK_GPU_SPANS_MAX])
{
    unsigned n = 0;

    if (i->kind == ITEM_LAUNCH)
        return zk_gpu_work_spans(&i->work, spans);
    if (i->kind == ITEM_FILL || i->way != cudaMemcpyDeviceToHost)
        spans[n++] = (struct zk_gpu_span){ &i->to, i->len, true };
    if (i->kind == ITEM_COPY && i->way != cudaMemcpyHostToDevice)
        spans[n++] = (struct zk_gpu_span){ &i->from, i->len, false };
    return n;
}

static void bytes_run(const struct item *i)
{
    if (i->kind == ITEM_LAUNCH)
        zk_cuda_host_run(&i->work);
    else if (i->kind == ITEM_FILL)
        memset(i->to, i->byte, i->len);
    else
        memmove(i->to, i->from, i->len);
}

static void work_run(int device, struct item *i)
{
    struct zk_gpu_span spans[ZK_GPU_SPANS_MAX];
    struct double_map *maps[ZK_GPU_SPANS_MAX];
    unsigned n = item_spans(i, spans), found = spans_find(device, spans, n, maps);

    if (found == n) {
        (void)pthread_mutex_unlock(&dd.lock);
        bytes_run(i);
        (void)pthread_mutex_lock(&dd.lock);
    } else {
        double_lose(device);
    }
    while (found > 0)
        double_mem_idle(maps[--found]);
}

static void item_run(int device, struct item *i)
{
    bool lost = dd.devices[device].lost != cudaSuccess;

    if (i->kind == ITEM_RECORD) {
        i->event->done = zb_max_u64(i->event->done, i->number);
    } else if (i->kind == ITEM_WAIT) {
        while (i->event->done < i->number)
            (void)pthread_cond_wait(&dd.changed, &dd.lock);
    } else if (lost) {
        return;
    } else if (i->kind == ITEM_FUNCTION) {
        (void)pthread_mutex_unlock(&dd.lock);
        double_in_function = true;
        i->function(i->arg);
        double_in_function = false;
        (void)pthread_mutex_lock(&dd.lock);
    } else {
        work_run(device, i);
    }
}

static void *stream_thread(void *arg)
{
    cudaStream_t s = arg;

    zk_thread_init();
    (void)pthread_mutex_lock(&dd.lock);
    for (;;) {
        struct item *i;

        while (zb_list_empty(&s->queue) && !s->stop)
            (void)pthread_cond_wait(&dd.changed, &dd.lock);
        if (zb_list_empty(&s->queue))
            break;
        i = zb_container_of(s->queue.next, struct item, node);
        item_run(s->device, i);
        zb_list_remove(&i->node);
        if (i->event)
            event_put(i->event);
        free(i->staged);
        free(i);
        (void)pthread_cond_broadcast(&dd.changed);
    }
    (void)pthread_mutex_unlock(&dd.lock);
    return NULL;
}

/* ---- streams */

static bool alive(const struct zb_list *all, const struct zb_list *node)
{
    for (const struct zb_list *at = all->next; at != all; at = at->next)
        if (at == node)
            return true;
    return false;
}

/* Begins a call on a stream, which must be of the current device. */
static cudaError_t begin(const char *name, cudaStream_t s, bool frees)
{
    cudaError_t e = double_begin(name, frees);

    if (e == cudaSuccess && (!s || !alive(&dd.streams, &s->node) || s->device != double_current))
        e = cudaErrorInvalidResourceHandle;
    return e;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret, unsigned flags)
{
    cudaError_t e = double_begin(__func__, false);
    cudaStream_t s = NULL;

    if (e == cudaSuccess && flags != cudaStreamNonBlocking)
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess && double_current < 0)
        e = cudaErrorDeviceUninitialized;
    if (e == cudaSuccess && !(s = calloc(1, sizeof(*s))))
        e = cudaErrorMemoryAllocation;
    if (e == cudaSuccess) {
        s->device = double_current;
        zb_list_init(&s->queue);
        zb_list_init(&s->node);
        if (pthread_create(&s->thread, NULL, stream_thread, s) != 0) {
            free(s);
            e = cudaErrorOperatingSystem;
        }
    }
    if (e == cudaSuccess) {
        zb_list_push_back(&dd.streams, &s->node);
        *ret = s;
    }
    return double_end(e);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    cudaError_t e = begin(__func__, s, true);

    while (e == cudaSuccess && !zb_list_empty(&s->queue))
        (void)pthread_cond_wait(&dd.changed, &dd.lock);
    if (e == cudaSuccess)
        e = dd.devices[s->device].lost;
    return double_end(e);
}

/* Its works are done first. */
static void stream_drop(cudaStream_t s)
{
    s->stop = true;
    zb_list_remove(&s->node);
    (void)pthread_cond_broadcast(&dd.changed);
    (void)pthread_mutex_unlock(&dd.lock);
    (void)pthread_join(s->thread, NULL);
    (void)pthread_mutex_lock(&dd.lock);
    free(s);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    cudaError_t e = begin(__func__, s, true);

    if (e == cudaSuccess)
        stream_drop(s);
    return double_end(e);
}

/* Queues a copy of *what. */
static cudaError_t push(cudaStream_t s, const struct item *what)
{
    struct item *i = malloc(sizeof(*i));

    if (!i)
        return cudaErrorMemoryAllocation;
    *i = *what;
    zb_list_init(&i->node);
    if (i->event)
        i->event->refs++;
    zb_list_push_back(&s->queue, &i->node);
    (void)pthread_cond_broadcast(&dd.changed);
    return cudaSuccess;
}

/* ---- events */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags)
{
    cudaError_t e = double_begin(__func__, false);
    cudaEvent_t event = NULL;

    if (e == cudaSuccess && flags != cudaEventDisableTiming)
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess && double_current < 0)
        e = cudaErrorDeviceUninitialized;
    if (e == cudaSuccess && !(event = calloc(1, sizeof(*event))))
        e = cudaErrorMemoryAllocation;
    if (e == cudaSuccess) {
        event->device = double_current;
        event->refs = 1;
        zb_list_init(&event->node);
        zb_list_push_back(&dd.events, &event->node);
        *ret = event;
    }
    return double_end(e);
}

static cudaError_t event_valid(cudaEvent_t event)
{
    return event && alive(&dd.events, &event->node) ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cudaError_t e = double_begin(__func__, true);

    if (e == cudaSuccess)
        e = event_valid(event);
    if (e == cudaSuccess) {
        zb_list_remove(&event->node);
        event_put(event);
    }
    return double_end(e);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s)
{
    cudaError_t e = begin(__func__, s, false);

    if (e == cudaSuccess)
        e = event_valid(event);
    if (e == cudaSuccess && event->device != s->device)
        e = cudaErrorInvalidResourceHandle;
    if (e == cudaSuccess)
        e = push(s, &(struct item){
                        .kind = ITEM_RECORD, .event = event, .number = event->recorded + 1 });
    if (e == cudaSuccess)
        event->recorded++;
    return double_end(e);
}

/* Streams may wait for events of other devices. */
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t event, unsigned flags)
{
    cudaError_t e = begin(__func__, s, false);

    if (e == cudaSuccess)
        e = event_valid(event);
    if (e == cudaSuccess && flags != 0)
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess)
        e = push(s, &(struct item){ .kind = ITEM_WAIT, .event = event, .number = event->recorded });
    return double_end(e);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t e = double_begin(__func__, false);

    if (e == cudaSuccess)
        e = event_valid(event);
    if (e == cudaSuccess && event->done < event->recorded)
        e = cudaErrorNotReady;
    return double_end(e);
}

void double_streams_drop(void)
{
    (void)pthread_mutex_lock(&dd.lock);
    while (!zb_list_empty(&dd.streams))
        stream_drop(zb_container_of(dd.streams.next, struct CUstream_st, node));
    while (!zb_list_empty(&dd.events)) {
        cudaEvent_t event = zb_container_of(dd.events.next, struct CUevent_st, node);

        zb_list_remove(&event->node);
        event_put(event);
    }
    (void)pthread_mutex_unlock(&dd.lock);
}

/* ---- works */

/* What the runtime sees at once about the memory of a copy. */
static cudaError_t copy_check(const struct item *i, enum double_host host)
{
    bool to_host = i->way == cudaMemcpyDeviceToHost;

    if (i->len == 0 || host == HOST_IN_PART || (to_host && host == HOST_READ_ONLY))
        return cudaErrorInvalidValue;
    if (!to_host && !double_mem_is(i->to, i->len))
        return cudaErrorInvalidValue;
    return i->way == cudaMemcpyHostToDevice || double_mem_is(i->from, i->len)
               ? cudaSuccess
               : cudaErrorInvalidValue;
}

/* Memory that is not pinned: to the device its bytes are read now, to the host the call waits. */
static cudaError_t copy_pageable(cudaStream_t s, struct item *i)
{
    cudaError_t e;

    dd.pageable++;
    if (i->way == cudaMemcpyHostToDevice) {
        i->staged = malloc(i->len);
        if (!i->staged)
            return cudaErrorMemoryAllocation;
        memcpy(i->staged, i->from, i->len);
        i->from = i->staged;
    }
    e = push(s, i);
    if (e != cudaSuccess)
        free(i->staged);
    while (e == cudaSuccess && !i->staged && !zb_list_empty(&s->queue))
        (void)pthread_cond_wait(&dd.changed, &dd.lock);
    return e;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t len, enum cudaMemcpyKind way,
                            cudaStream_t s)
{
    struct item i = { .kind = ITEM_COPY, .way = way, .to = to, .from = from, .len = len };
    cudaError_t e = begin(__func__, s, false);
    enum double_host host = HOST_PINNED;

    if (way != cudaMemcpyDeviceToDevice)
        host = double_host(way == cudaMemcpyHostToDevice ? from : to, len);
    if (e == cudaSuccess)
        e = copy_check(&i, host);
    if (e == cudaSuccess)
        e = host == HOST_PAGEABLE ? copy_pageable(s, &i) : push(s, &i);
    return double_end(e);
}

cudaError_t cudaMemsetAsync(void *at, int byte, size_t len, cudaStream_t s)
{
    cudaError_t e = begin(__func__, s, false);

    if (e == cudaSuccess && (len == 0 || !double_mem_is(at, len)))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess)
        e = push(s,
                 &(struct item){ .kind = ITEM_FILL, .to = at, .byte = (uint8_t)byte, .len = len });
    return double_end(e);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t function, void *arg)
{
    cudaError_t e = begin(__func__, s, false);

    if (e == cudaSuccess)
        e = push(s, &(struct item){ .kind = ITEM_FUNCTION, .function = function, .arg = arg });
    return double_end(e);
}

/* ---- launch.cu */

int zk_cuda_load(void)
{
    cudaError_t e = double_begin("cudaFuncGetAttributes", false);

    if (e == cudaSuccess && double_current < 0)
        e = cudaErrorDeviceUninitialized;
    return (int)double_end(e);
}

/* As launch.cu does, it reports the thread's last error, whichever call it is from. */
int zk_cuda_launch(const struct zk_gpu_work *work, void *stream)
{
    cudaStream_t s = stream;
    cudaError_t e = begin("a kernel's launch", s, false);

    if (e == cudaSuccess)
        e = push(s, &(struct item){ .kind = ITEM_LAUNCH, .work = *work });
    (void)double_end(e);
    return (int)cudaGetLastError();
}
