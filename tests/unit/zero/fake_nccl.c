#include "fake_nccl.h"

#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zero/comm/nccl_priv.h"
#include "kernels/gpu.h"

#define EXPORT    __attribute__((visibility("default")))
#define RANKS_MAX 8
#define GROUPED   (2 * RANKS_MAX)

struct coll {
    struct zb_list node; /* in group->colls, in order of the first start */
    bool exchange;
    size_t bytes; /* of a slice */
    int here;     /* eventfd: counts ranks that have sent, then ranks that have received */
    int gates[RANKS_MAX];
    char *sent[RANKS_MAX];
};

struct group {
    struct zb_list node; /* in groups */
    ncclUniqueId id;
    int world, present, left;
    pthread_t thread; /* opens gates */
    bool stop;
    bool broken; /* a rank has aborted: the others are told */
    struct zb_list colls;
    struct zb_list odd; /* started by a rank where the others started another: they never end */
    uint32_t ncolls;    /* started by any rank so far */
};

struct ncclComm {
    struct group *group;
    int rank;
    uint32_t next;  /* number of collectives that this rank has started */
    uint32_t asked; /* how often it still reports "in progress" */
    bool aborted;
};

EXPORT struct fake_nccl fake_nccl;
#ifndef FAKE_PLAIN /* otherwise it is like the real one, which only supports CUDA's streams */
EXPORT extern const int zshard_nccl_emulated;
const int zshard_nccl_emulated = 1;
#endif

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct zb_list groups = { &groups, &groups };
static struct zb_list orphans = { &orphans, &orphans }; /* streams may still copy from them */

static _Thread_local struct {
    bool open;
    unsigned n;
    struct {
        bool send;
        char *data;
        size_t bytes;
        int peer;
    } ops[GROUPED];
    ncclComm_t comm;
    ncclStream_t stream;
} grouped;

#define PROTOTYPE(type, name, arguments) EXPORT type name arguments;
NCCL_FUNCTIONS(PROTOTYPE)

/* ---- gates */

static int gate_new(void)
{
    int fd = eventfd(0, EFD_CLOEXEC);

    assert(fd >= 0 && eventfd_write(fd, UINT64_MAX - 1) == 0);
    return fd;
}

static void gate_open(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    eventfd_t n;

    if (poll(&p, 1, 0) == 1)
        (void)eventfd_read(fd, &n);
}

/* Waits until `want` ranks have arrived; false: the group ends. */
static bool coll_wait(struct group *g, struct coll *c, eventfd_t *seen, eventfd_t want)
{
    struct pollfd p = { .fd = c->here, .events = POLLIN };
    eventfd_t n;
    bool stop = false;

    while (*seen < want && !stop) {
        if (poll(&p, 1, 5) == 1 && eventfd_read(c->here, &n) == 0)
            *seen += n;
        pthread_mutex_lock(&lock);
        stop = g->stop;
        pthread_mutex_unlock(&lock);
    }
    return !stop;
}

static void coll_free(struct group *g, struct coll *c)
{
    for (int r = 0; r < g->world; r++) {
        (void)close(c->gates[r]);
        free(c->sent[r]);
    }
    (void)close(c->here);
    zb_list_remove(&c->node);
    free(c);
}

static void *group_run(void *arg)
{
    struct group *g = arg;
    struct coll *c;
    uint32_t number = 0;
    bool stop = false;

    while (!stop) {
        eventfd_t seen = 0;

        pthread_mutex_lock(&lock);
        stop = g->stop;
        c = zb_list_empty(&g->colls) ? NULL : zb_container_of(g->colls.next, struct coll, node);
        pthread_mutex_unlock(&lock);
        if (!c) {
            (void)usleep(50);
            continue;
        }
        if (!coll_wait(g, c, &seen, (eventfd_t)g->world))
            break;
        number++;
        if (fake_nccl.hang_at > 0 && number >= fake_nccl.hang_at)
            (void)coll_wait(g, c, &seen, UINT64_MAX);
        for (int r = 0; r < g->world; r++)
            gate_open(c->gates[r]);
        if (!coll_wait(g, c, &seen, 2 * (eventfd_t)g->world))
            break;
        pthread_mutex_lock(&lock);
        coll_free(g, c);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

/* ---- communicators */

static struct group *group_find(const ncclUniqueId *id, int world)
{
    struct group *g;

    zb_list_each(pos, &groups)
    {
        g = zb_container_of(pos, struct group, node);
        if (memcmp(&g->id, id, sizeof(*id)) == 0)
            return g;
    }
    g = calloc(1, sizeof(*g));
    assert(g);
    g->id = *id;
    g->world = world;
    zb_list_init(&g->colls);
    zb_list_init(&g->odd);
    zb_list_push_back(&groups, &g->node);
    assert(pthread_create(&g->thread, NULL, group_run, g) == 0);
    return g;
}

/* A rank leaves; when the last one has left, the group is freed. */
static void comm_leave(ncclComm_t comm)
{
    struct group *g = comm->group;
    bool last;

    pthread_mutex_lock(&lock);
    last = ++g->left == g->present; /* ranks that never came do not count */
    g->stop = last;
    pthread_mutex_unlock(&lock);
    if (last) {
        assert(pthread_join(g->thread, NULL) == 0);
        pthread_mutex_lock(&lock);
        zb_list_each(pos, &g->colls)
        {
            zb_list_remove(pos);
            zb_list_push_back(&orphans, pos);
        }
        zb_list_each(pos, &g->odd)
        {
            zb_list_remove(pos);
            zb_list_push_back(&orphans, pos);
        }
        zb_list_remove(&g->node);
        pthread_mutex_unlock(&lock);
        free(g);
    }
    free(comm);
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = fake_nccl.version ? fake_nccl.version : NCCL_VERSION_MIN + 5;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static uint32_t drawn;

    if (fake_nccl.refuse_id)
        return ncclSystemError;
    pthread_mutex_lock(&lock);
    memset(id, 0x5a, sizeof(*id));
    drawn++;
    memcpy(id->internal + 100, &drawn, sizeof(drawn));
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *ret, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    struct ncclComm *comm = calloc(1, sizeof(*comm));

    assert(comm && nranks <= RANKS_MAX && rank >= 0 && rank < nranks);
    assert(config->size >= sizeof(*config) && config->magic == NCCL_CONFIG_MAGIC);
    assert(config->version >= NCCL_VERSION_MIN && config->blocking == 0);
    pthread_mutex_lock(&lock);
    comm->rank = rank;
    comm->group = group_find(&id, nranks);
    assert(comm->group->world == nranks);
    comm->group->present++;
    fake_nccl.opened++;
    pthread_mutex_unlock(&lock);
    *ret = comm;
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    pthread_mutex_lock(&lock);
    assert(comm && !comm->aborted);
    if (comm->group->present < comm->group->world || fake_nccl.hang_open)
        *state = ncclInProgress;
    else if (comm->group->broken ||
             (fake_nccl.lose_at > 0 && fake_nccl.started >= fake_nccl.lose_at))
        *state = ncclRemoteError;
    else if (comm->asked > 0 && comm->asked--)
        *state = ncclInProgress;
    else
        *state = ncclSuccess;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    fake_nccl.finalized++;
    comm->asked = 1;
    pthread_mutex_unlock(&lock);
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    fake_nccl.destroyed++;
    pthread_mutex_unlock(&lock);
    comm_leave(comm);
    return ncclSuccess;
}

/* Whatever waits on this rank's stream continues, with the bytes that are there. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    pthread_mutex_lock(&lock);
    fake_nccl.aborted++;
    comm->group->broken = true;
    zb_list_each(pos, &comm->group->colls)
        gate_open(zb_container_of(pos, struct coll, node)->gates[comm->rank]);
    zb_list_each(pos, &comm->group->odd)
        gate_open(zb_container_of(pos, struct coll, node)->gates[comm->rank]);
    pthread_mutex_unlock(&lock);
    comm_leave(comm);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclRemoteError ? "remote process exited or there was a network error"
                                     : "unhandled system error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "as it was asked to";
}

/* ---- collectives */

static struct coll *coll_new(struct group *g, struct zb_list *list, bool exchange, size_t bytes)
{
    struct coll *c = calloc(1, sizeof(*c));

    assert(c);
    *c = (struct coll){ .exchange = exchange, .bytes = bytes };
    c->here = eventfd(0, EFD_CLOEXEC);
    assert(c->here >= 0);
    for (int r = 0; r < g->world; r++) {
        c->gates[r] = gate_new();
        c->sent[r] = calloc(exchange ? (size_t)g->world : 1, bytes);
        assert(c->sent[r]);
    }
    zb_list_init(&c->node);
    zb_list_push_back(list, &c->node);
    return c;
}

/* The next collective of this rank; under the lock. */
static struct coll *coll_next(ncclComm_t comm, bool exchange, size_t bytes)
{
    struct group *g = comm->group;
    uint32_t behind = g->ncolls - comm->next; /* started, but not by this rank */
    struct zb_list *pos = &g->colls;
    struct coll *c;

    if (behind > 0) {
        while (behind-- > 0)
            pos = pos->prev;
        c = zb_container_of(pos, struct coll, node);
        if (c->exchange != exchange || c->bytes != bytes)
            c = coll_new(g, &g->odd, exchange, bytes);
    } else {
        c = coll_new(g, &g->colls, exchange, bytes);
        g->ncolls++;
    }
    comm->next++;
    return c;
}

/* to[p] and from[p] are slices; an all-gather sends only one. */
static ncclResult_t coll_start(ncclComm_t comm, ncclStream_t stream, bool exchange, size_t bytes,
                               char *const *from, char *const *to)
{
    struct zk_gpu_stream *s = (struct zk_gpu_stream *)(void *)stream;
    int world = comm->group->world;
    struct coll *c;
    uint32_t started;
    int rc = 0;

    pthread_mutex_lock(&lock);
    started = ++fake_nccl.started;
    if (fake_nccl.refuse_at > 0 && started >= fake_nccl.refuse_at) {
        pthread_mutex_unlock(&lock);
        return ncclSystemError;
    }
    c = coll_next(comm, exchange, bytes);
    comm->asked = started % 3 == 0 ? 2 : 0;
    pthread_mutex_unlock(&lock);
    for (int p = 0; rc == 0 && p < (exchange ? world : 1); p++)
        rc = zk_gpu_copy(s, ZK_GPU_TO_HOST, c->sent[comm->rank] + (size_t)p * bytes, from[p], bytes,
                         NULL);
    if (rc == 0)
        rc = zk_gpu_signal(s, c->here, NULL);
    if (rc == 0)
        rc = zk_gpu_signal(s, c->gates[comm->rank], NULL);
    for (int p = 0; rc == 0 && p < world; p++)
        rc = zk_gpu_copy(s, ZK_GPU_TO_DEVICE, to[p],
                         c->sent[p] + (exchange ? (size_t)comm->rank * bytes : 0), bytes, NULL);
    if (rc == 0)
        rc = zk_gpu_signal(s, c->here, NULL);
    if (rc < 0)
        return ncclUnhandledCudaError;
    return started % 3 == 0 ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, ncclStream_t stream)
{
    char *from = (char *)(uintptr_t)send, *to[RANKS_MAX];

    assert(type == ncclInt8 && count > 0 && !grouped.open);
    for (int p = 0; p < comm->group->world; p++)
        to[p] = (char *)recv + (size_t)p * count;
    return coll_start(comm, stream, false, count, &from, to);
}

ncclResult_t ncclGroupStart(void)
{
    assert(!grouped.open);
    memset(&grouped, 0, sizeof(grouped));
    grouped.open = true;
    return ncclSuccess;
}

static ncclResult_t group_add(bool send, char *data, size_t count, ncclDataType_t type, int peer,
                              ncclComm_t comm, ncclStream_t stream)
{
    assert(grouped.open && type == ncclInt8 && grouped.n < GROUPED);
    assert(!grouped.comm || (grouped.comm == comm && grouped.stream == stream));
    grouped.comm = comm;
    grouped.stream = stream;
    grouped.ops[grouped.n].send = send;
    grouped.ops[grouped.n].data = data;
    grouped.ops[grouped.n].bytes = count;
    grouped.ops[grouped.n++].peer = peer;
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, ncclStream_t stream)
{
    return group_add(true, (char *)(uintptr_t)send, count, type, peer, comm, stream);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      ncclStream_t stream)
{
    return group_add(false, recv, count, type, peer, comm, stream);
}

/* A group is one exchange: a send and a receive for each rank, all of the same size. */
ncclResult_t ncclGroupEnd(void)
{
    char *from[RANKS_MAX] = { 0 }, *to[RANKS_MAX] = { 0 };
    int world = grouped.comm ? grouped.comm->group->world : 0;

    assert(grouped.open && grouped.n == (unsigned)(2 * world));
    grouped.open = false;
    for (unsigned i = 0; i < grouped.n; i++) {
        char **at = grouped.ops[i].send ? from : to;

        assert(grouped.ops[i].bytes == grouped.ops[0].bytes && !at[grouped.ops[i].peer]);
        at[grouped.ops[i].peer] = grouped.ops[i].data;
    }
    return coll_start(grouped.comm, grouped.stream, true, grouped.ops[0].bytes, from, to);
}
