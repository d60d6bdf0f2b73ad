/*
 * comm_nccl.c - collectives between GPUs, with NCCL.
 *
 * MODEL. A backend with two parts. `host` is another backend, for collectives in host memory (the
 * ranks' votes, sums, reads) and for the ranks to find each other. A communicator of NCCL runs
 * collectives on a device, from when an engine opens on a device until it closes. Rank 0 creates
 * its id, which is sent over `host`. A rank that is alone does not need NCCL.
 *
 * EXCHANGE is a group of sends and receives, not ncclReduceScatter(): the engine adds in rank
 * order, so that NCCL gives the same bits as any other backend. Each GPU sends and receives as many
 * bytes as in a reduce-scatter.
 *
 * NO HANGS. The communicator is non-blocking: each call returns at once, and one in progress is
 * polled, for at most timeout_ms. test() checks for later errors. After the first error, the
 * communicator is only aborted, which ends what waits on the stream.
 *
 * THE LIBRARY is loaded when the comm is opened, and never unloaded. Its prototypes are in
 * nccl_priv.h.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zero/comm/comm_priv.h"
#include "client/zero/comm/nccl_priv.h"

#define NAP_NS                             100000

#define NCCL_MEMBER(type, name, arguments) type(*name) arguments;

struct nccl_api {
    NCCL_FUNCTIONS(NCCL_MEMBER)
};

struct nccl_comm {
    struct zc_comm base;
    struct zc_comm *host;
    void *library; /* NULL: not needed */
    struct nccl_api api;
    int version;
    ncclComm_t nccl; /* NULL: no engine is on a device */
    pid_t pid;       /* the process that made it; a child process must not end it */
    ncclStream_t stream;
    uint64_t timeout_ns;
    struct zb_err err; /* NCCL's; if not set, the host's error is reported */
};

static struct nccl_comm *nccl_of(struct zc_comm *comm)
{
    return zb_container_of(comm, struct nccl_comm, base);
}

/* ---- host memory: calls of `host` */

static int nccl_host_all_gather(struct zc_comm *comm, const void *send, void *recv,
                                size_t slice_bytes, struct zc_comm_op **ret)
{
    struct zc_comm *host = nccl_of(comm)->host;

    return host->ops->all_gather(host, send, recv, slice_bytes, ret);
}

static int nccl_host_exchange(struct zc_comm *comm, const void *send, void *recv,
                              size_t slice_bytes, struct zc_comm_op **ret)
{
    struct zc_comm *host = nccl_of(comm)->host;

    return host->ops->exchange(host, send, recv, slice_bytes, ret);
}

static int nccl_host_test(struct zc_comm *comm, struct zc_comm_op *op, bool *ret_done)
{
    struct zc_comm *host = nccl_of(comm)->host;

    return host->ops->test(host, op, ret_done);
}

/* Collectives between devices have no names: the engine compares its calls at each vote. */
static void nccl_host_name_next(struct zc_comm *comm, uint64_t name)
{
    struct zc_comm *host = nccl_of(comm)->host;

    if (host->ops->name_next)
        host->ops->name_next(host, name);
}

static bool nccl_host_other(struct zc_comm *comm, struct zc_comm_other *ret)
{
    struct zc_comm *host = nccl_of(comm)->host;

    return host->ops->other && host->ops->other(host, ret);
}

static const char *nccl_error(struct zc_comm *comm)
{
    struct nccl_comm *n = nccl_of(comm);

    if (n->err.code != 0)
        return n->err.text;
    return n->host->ops->error ? n->host->ops->error(n->host) : "";
}

static void nap(void)
{
    (void)nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
}

/* Gathers `bytes` of every rank. Ranks wait for each other as long as `host` does. */
static int host_share(struct nccl_comm *n, const void *mine, void *all, size_t bytes)
{
    struct zc_comm *host = n->host;
    struct zc_comm_op *op;
    bool done = false;
    int rc = host->ops->all_gather(host, mine, all, bytes, &op);

    while (rc == 0 && (rc = host->ops->test(host, op, &done)) == 0 && !done)
        nap();
    return rc < 0 ? zb_fail(&n->err, rc, "%s: %s", host->ops->name,
                            host->ops->error ? host->ops->error(host) : "a collective failed")
                  : 0;
}

/* ---- errors */

static int result_errno(ncclResult_t r)
{
    switch (r) {
    case ncclInvalidArgument:
    case ncclInvalidUsage:
        return -EINVAL;
    case ncclRemoteError:
        return -EOWNERDEAD;
    case ncclTimeout:
        return -ETIMEDOUT;
    default:
        return -EIO;
    }
}

static int nccl_fail(struct nccl_comm *n, ncclResult_t r, const char *what)
{
    const char *last = n->api.ncclGetLastError(n->nccl);

    return zb_fail(&n->err, result_errno(r), "%s: %s%s%s", what, n->api.ncclGetErrorString(r),
                   last && *last ? ": " : "", last && *last ? last : "");
}

/* Handles the result of a call, and waits if it is in progress. */
static int nccl_settle(struct nccl_comm *n, ncclResult_t r, const char *what)
{
    uint64_t begin_ns = zb_now_ns();

    while (r == ncclInProgress) {
        ncclResult_t asked = n->api.ncclCommGetAsyncError(n->nccl, &r);

        if (asked != ncclSuccess)
            r = asked;
        if (r != ncclInProgress)
            break;
        if (zb_now_ns() - begin_ns > n->timeout_ns)
            return zb_fail(&n->err, -ETIMEDOUT, "%s: NCCL did not finish within %llu ms", what,
                           (unsigned long long)(n->timeout_ns / 1000000));
        nap();
    }
    return r == ncclSuccess ? 0 : nccl_fail(n, r, what);
}

/* ---- between devices */

struct greeting {
    int32_t rc;
    ncclUniqueId id; /* of rank 0 */
    char text[256];
};

/* Sends rank 0's id to all ranks; or fails with the error message of the first rank that cannot
 * take part. */
static int nccl_meet(struct nccl_comm *n, const char *backend, ncclUniqueId *ret)
{
    struct greeting mine = { 0 }, *all = calloc(n->base.world, sizeof(*all));
    ncclResult_t r;
    int rc;

    if (!all)
        return zb_fail(&n->err, -ENOMEM, "no memory for %u ranks", n->base.world);
    if (strcmp(backend, "cuda") != 0 && !dlsym(n->library, NCCL_EMULATED)) {
        mine.rc = -EINVAL;
        (void)snprintf(mine.text, sizeof(mine.text), "NCCL needs CUDA devices, not '%s'", backend);
    } else if (n->base.rank == 0 && (r = n->api.ncclGetUniqueId(&mine.id)) != ncclSuccess) {
        mine.rc = nccl_fail(n, r, "ncclGetUniqueId");
        (void)snprintf(mine.text, sizeof(mine.text), "%.*s", (int)sizeof(mine.text) - 1,
                       n->err.text);
        n->err = (struct zb_err){ 0 };
    }
    rc = host_share(n, &mine, all, sizeof(mine));
    for (uint32_t r2 = 0; rc == 0 && r2 < n->base.world; r2++)
        if (all[r2].rc < 0)
            rc = zb_fail(&n->err, all[r2].rc, "rank %u: %.*s", r2, (int)sizeof(all[r2].text) - 1,
                         all[r2].text);
    *ret = all[0].id;
    free(all);
    return rc;
}

static void nccl_device_close(struct zc_comm *comm, bool clean)
{
    struct nccl_comm *n = nccl_of(comm);

    if (!n->nccl || n->pid != getpid())
        return;
    if (clean && n->err.code == 0 &&
        nccl_settle(n, n->api.ncclCommFinalize(n->nccl), "ncclCommFinalize") == 0)
        (void)n->api.ncclCommDestroy(n->nccl);
    else
        (void)n->api.ncclCommAbort(n->nccl);
    n->nccl = NULL;
}

static int nccl_device_open(struct zc_comm *comm, const char *backend, void *stream,
                            uint32_t timeout_ms)
{
    struct nccl_comm *n = nccl_of(comm);
    ncclConfig_t config = { .size = sizeof(config),
                            .magic = NCCL_CONFIG_MAGIC,
                            .version = NCCL_VERSION_MIN,
                            .blocking = 0 };
    ncclUniqueId id;
    ncclResult_t r;
    int rc;

    n->err = (struct zb_err){ 0 };
    n->stream = stream;
    n->timeout_ns = (uint64_t)timeout_ms * 1000000;
    rc = nccl_meet(n, backend, &id);
    if (rc < 0)
        return rc;
    n->pid = getpid();
    r = n->api.ncclCommInitRankConfig(&n->nccl, (int)comm->world, id, (int)comm->rank, &config);
    rc = nccl_settle(n, r, "ncclCommInitRankConfig");
    if (rc < 0)
        nccl_device_close(comm, false);
    return rc;
}

static int nccl_all_gather(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes)
{
    struct nccl_comm *n = nccl_of(comm);

    if (n->err.code != 0)
        return n->err.code;
    return nccl_settle(n,
                       n->api.ncclAllGather(send, recv, slice_bytes, ncclInt8, n->nccl, n->stream),
                       "ncclAllGather");
}

static int nccl_exchange(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes)
{
    struct nccl_comm *n = nccl_of(comm);
    ncclResult_t r, end;

    if (n->err.code != 0)
        return n->err.code;
    r = n->api.ncclGroupStart();
    if (r != ncclSuccess)
        return nccl_fail(n, r, "ncclGroupStart");
    for (uint32_t p = 0; p < comm->world && (r == ncclSuccess || r == ncclInProgress); p++) {
        r = n->api.ncclSend((const char *)send + p * slice_bytes, slice_bytes, ncclInt8, (int)p,
                            n->nccl, n->stream);
        if (r == ncclSuccess || r == ncclInProgress)
            r = n->api.ncclRecv((char *)recv + p * slice_bytes, slice_bytes, ncclInt8, (int)p,
                                n->nccl, n->stream);
    }
    end = n->api.ncclGroupEnd(); /* always: the group belongs to the thread */
    if (r != ncclSuccess && r != ncclInProgress)
        return nccl_fail(n, r, "ncclSend or ncclRecv");
    return nccl_settle(n, end, "ncclGroupEnd");
}

static int nccl_test(struct zc_comm *comm)
{
    struct nccl_comm *n = nccl_of(comm);
    ncclResult_t state = ncclSuccess, r;

    if (n->err.code != 0)
        return n->err.code;
    r = n->api.ncclCommGetAsyncError(n->nccl, &state);
    if (r == ncclSuccess)
        r = state;
    return r == ncclSuccess || r == ncclInProgress ? 0 : nccl_fail(n, r, "a collective");
}

static void nccl_close(struct zc_comm *comm, bool clean)
{
    struct nccl_comm *n = nccl_of(comm);

    nccl_device_close(comm, clean);
    n->host->ops->close(n->host, clean);
    free(n);
}

static int nccl_split(struct zc_comm *comm, uint32_t colour, struct zc_comm **ret)
{
    struct nccl_comm *n = nccl_of(comm);
    struct zc_comm *part;
    struct zb_err err = { 0 };
    int rc;

    if (!n->host->ops->split)
        return zb_fail(&n->err, -ENOTSUP,
                       "'%s', which NCCL's ranks use to meet, does not support groups",
                       n->host->ops->name);
    rc = n->host->ops->split(n->host, colour, &part);
    if (rc == 0 && (rc = zc_nccl_open(ret, part, &err)) < 0)
        (void)zb_fail(&n->err, rc, "%s", err.text);
    return rc;
}

static const struct zc_comm_device_ops nccl_device_ops = {
    .open = nccl_device_open,
    .all_gather = nccl_all_gather,
    .exchange = nccl_exchange,
    .test = nccl_test,
    .close = nccl_device_close,
};

static const struct zc_comm_ops nccl_ops = {
    .name = "nccl",
    .all_gather = nccl_host_all_gather,
    .exchange = nccl_host_exchange,
    .test = nccl_host_test,
    .close = nccl_close,
    .error = nccl_error,
    .device = &nccl_device_ops,
    .split = nccl_split,
    .name_next = nccl_host_name_next,
    .other = nccl_host_other,
};

/* ---- the library */

static int library_load(struct nccl_comm *n, struct zb_err *err)
{
#define NCCL_ROW(type, name, arguments) { #name, (void **)&n->api.name },
    const struct {
        const char *name;
        void **at;
    } rows[] = { NCCL_FUNCTIONS(NCCL_ROW) };
    const char *named = secure_getenv("ZSHARD_NCCL_LIB");
    const char *path = named && *named ? named : "libnccl.so.2";

    n->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!n->library)
        return zb_fail(err, -ENOTSUP, "no NCCL: %s (ZSHARD_NCCL_LIB names the library)", dlerror());
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        *rows[i].at = dlsym(n->library, rows[i].name);
        if (!*rows[i].at)
            return zb_fail(err, -ENOTSUP, "no NCCL: '%s' has no %s", path, rows[i].name);
    }
    if (n->api.ncclGetVersion(&n->version) != ncclSuccess || n->version < NCCL_VERSION_MIN)
        return zb_fail(err, -ENOTSUP, "no NCCL: '%s' is version %d, below %d", path, n->version,
                       NCCL_VERSION_MIN);
    return 0;
}

struct loaded {
    int32_t rc, version;
    char text[256];
};

/* Checks that all ranks have the library, in the same version. Otherwise all fail with the
 * reason. */
static int library_vote(struct nccl_comm *n, struct zb_err *err)
{
    struct loaded mine = { 0 }, *all = calloc(n->base.world, sizeof(*all));
    struct zb_err load = { 0 };
    int rc;

    if (!all)
        return zb_fail(err, -ENOMEM, "no memory for %u ranks", n->base.world);
    mine.rc = library_load(n, &load);
    mine.version = n->version;
    (void)snprintf(mine.text, sizeof(mine.text), "%.*s", (int)sizeof(mine.text) - 1, load.text);
    rc = host_share(n, &mine, all, sizeof(mine));
    if (rc < 0)
        rc = zb_fail(err, rc, "%s", n->err.text);
    for (uint32_t r = 0; rc == 0 && r < n->base.world; r++) {
        if (all[r].rc < 0)
            rc = zb_fail(err, all[r].rc, "rank %u: %.*s", r, (int)sizeof(all[r].text) - 1,
                         all[r].text);
        else if (all[r].version != all[0].version)
            rc = zb_fail(err, -ENOTSUP, "rank %u has version %d of NCCL, rank 0 %d", r,
                         all[r].version, all[0].version);
    }
    free(all);
    return rc;
}

int zc_nccl_open(struct zc_comm **ret, struct zc_comm *host, struct zb_err *err)
{
    struct nccl_comm *n = calloc(1, sizeof(*n));
    int rc;

    if (!n) {
        host->ops->close(host, false);
        return zb_fail(err, -ENOMEM, "no memory for a comm");
    }
    n->base = (struct zc_comm){ .ops = &nccl_ops, .rank = host->rank, .world = host->world };
    n->host = host;
    rc = host->world > 1 ? library_vote(n, err) : 0;
    if (rc < 0)
        nccl_close(&n->base, false);
    else
        *ret = &n->base;
    return rc;
}
