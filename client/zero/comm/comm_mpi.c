/*
 * comm_mpi.c - collectives over MPI, as a plugin.
 *
 * MODEL. It uses duplicates of MPI_COMM_WORLD, so that its messages do not mix with the program's,
 * and errors are returned as codes. For each peer, a collective is two messages out and two in: a
 * header that names it, and a slice. All are posted when it starts, and none waits for another.
 * test() first checks the headers, and the slices only when all headers are as expected. MPI keeps
 * the order of messages between two ranks, so the n-th header belongs to the n-th collective that
 * both ranks take part in. The headers of all groups of ranks are sent on one communicator.
 *
 * WHY NOT MPI's own collectives. They carry no names, and ranks that start different ones corrupt
 * memory or end the program: errors inside a non-blocking collective go to the handler of
 * MPI_COMM_WORLD, which is the program's. Here MPI truncates a slice of another length, and a
 * header tells why. (Open MPI's non-blocking collectives post the same messages.)
 *
 * COUNTS are ints. A longer slice is sent as one element of a derived datatype of its length.
 *
 * PROGRESS is made inside start and test; there is no progress thread.
 *
 * CLOSE. A clean close frees the duplicates, and finalizes MPI if it was initialized here.
 * Otherwise nothing is called: peers may be dead, and MPI_Finalize() would wait for them.
 */
#include <errno.h>
#include <limits.h>
#include <mpi.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zero/comm/comm_plugin.h"

#ifndef ZC_MPI_COUNT_MAX /* smaller in a test */
#define ZC_MPI_COUNT_MAX INT_MAX
#endif

#define MPI_FAREWELL_S 1.0 /* how long a failed rank tries to send its headers */

enum mpi_kind { MPI_KIND_ALL_GATHER, MPI_KIND_EXCHANGE };

struct mpi_header {
    uint64_t kind, slice_bytes;
    uint64_t name; /* zc_comm_ops.name_next */
};

struct mpi_comm {
    struct zc_comm base;
    MPI_Comm world;   /* for slices */
    MPI_Comm headers; /* for headers of all ranks; a group uses that of the whole */
    int *ranks;       /* [world]: ranks in `headers` */
    bool group;
    pid_t pid;     /* of the process that opened it; 0: a group. A child process finalizes
                      nothing */
    bool ours;     /* MPI was initialized here, and is finalized here */
    uint64_t name; /* of the next collective */
    bool differs;  /* the failure is that another rank makes a different call */
    struct zc_comm_other other;
    char text[MPI_MAX_ERROR_STRING + 64];
};

/* One request of each kind for each peer. */
enum { HEADERS_IN, HEADERS_OUT, SLICES_IN, SLICES_OUT, REQUESTS };

struct zc_comm_op {
    struct mpi_header mine, *theirs; /* theirs[peers] */
    int peers, headers_left;
    int *arrived;           /* [peers], for MPI_Testsome() */
    MPI_Request requests[]; /* [REQUESTS][peers] */
};

static struct mpi_comm *mpi_of(struct zc_comm *comm)
{
    return zb_container_of(comm, struct mpi_comm, base);
}

/* 0, or -EIO with MPI's error message. */
static int mpi_check(struct mpi_comm *m, int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;

    if (code == MPI_SUCCESS)
        return 0;
    (void)MPI_Error_string(code, text, &n);
    (void)snprintf(m->text, sizeof(m->text), "%s: %s", call, text);
    return -EIO;
}

/* Makes a datatype of exactly `bytes` bytes, for lengths that do not fit a count. */
static int type_long(struct mpi_comm *m, size_t bytes, MPI_Datatype *ret)
{
    size_t wholes = bytes / ZC_MPI_COUNT_MAX, rest = bytes % ZC_MPI_COUNT_MAX;
    int lengths[2] = { (int)wholes, (int)rest };
    MPI_Aint at[2] = { 0, (MPI_Aint)(wholes * ZC_MPI_COUNT_MAX) };
    MPI_Datatype types[2] = { MPI_DATATYPE_NULL, MPI_BYTE };
    int code = MPI_Type_contiguous(ZC_MPI_COUNT_MAX, MPI_BYTE, &types[0]);

    if (code == MPI_SUCCESS)
        code = MPI_Type_create_struct(2, lengths, at, types, ret);
    if (code == MPI_SUCCESS)
        code = MPI_Type_commit(ret);
    if (types[0] != MPI_DATATYPE_NULL)
        (void)MPI_Type_free(&types[0]);
    return mpi_check(m, code, "a datatype");
}

static MPI_Request *op_requests(struct zc_comm_op *op, int of)
{
    return op->requests + (ptrdiff_t)of * op->peers;
}

/* The rank in the comm that is the i-th peer: each rank begins after itself. */
static uint32_t op_peer(const struct mpi_comm *m, int i)
{
    return (m->base.rank + 1 + (uint32_t)i) % m->base.world;
}

static struct zc_comm_op *op_new(struct mpi_comm *m)
{
    int peers = (int)m->base.world - 1;
    struct zc_comm_op *op = malloc(sizeof(*op) + sizeof(MPI_Request) * REQUESTS * (size_t)peers);

    if (op) {
        *op = (struct zc_comm_op){ .peers = peers, .headers_left = peers };
        op->theirs = calloc((size_t)peers + 1, sizeof(*op->theirs));
        op->arrived = calloc((size_t)peers + 1, sizeof(*op->arrived));
    }
    if (op && op->theirs && op->arrived)
        return op;
    (void)snprintf(m->text, sizeof(m->text), "no memory");
    if (op) {
        free(op->theirs);
        free(op->arrived);
    }
    free(op);
    return NULL;
}

static void op_free(struct zc_comm_op *op)
{
    free(op->theirs);
    free(op->arrived);
    free(op);
}

/* Posts the messages from and to one peer. */
static int op_post(struct mpi_comm *m, struct zc_comm_op *op, int i, const char *send, char *recv,
                   int count, MPI_Datatype type)
{
    uint32_t peer = op_peer(m, i);
    int at = m->ranks[peer], rank = (int)peer;
    const int bytes = (int)sizeof(op->mine);
    int code;

    if (op->mine.kind == MPI_KIND_EXCHANGE)
        send += peer * op->mine.slice_bytes;
    code = MPI_Irecv(&op->theirs[i], bytes, MPI_BYTE, at, 0, m->headers,
                     &op_requests(op, HEADERS_IN)[i]);
    if (code == MPI_SUCCESS)
        code = MPI_Irecv(recv + peer * op->mine.slice_bytes, count, type, rank, 0, m->world,
                         &op_requests(op, SLICES_IN)[i]);
    if (code == MPI_SUCCESS)
        code = MPI_Isend(&op->mine, bytes, MPI_BYTE, at, 0, m->headers,
                         &op_requests(op, HEADERS_OUT)[i]);
    if (code == MPI_SUCCESS)
        code = MPI_Isend(send, count, type, rank, 0, m->world, &op_requests(op, SLICES_OUT)[i]);
    return mpi_check(m, code, "a message");
}

/* Messages that were posted before a failure belong to MPI, and the engine keeps their buffers: a
 * failure is final. */
static int mpi_start(struct zc_comm *comm, enum mpi_kind kind, const void *send, void *recv,
                     size_t slice_bytes, struct zc_comm_op **ret)
{
    struct mpi_comm *m = mpi_of(comm);
    struct zc_comm_op *op = op_new(m);
    const char *own = (const char *)send +
                      (kind == MPI_KIND_EXCHANGE ? comm->rank * slice_bytes : 0);
    char *place = (char *)recv + comm->rank * slice_bytes;
    MPI_Datatype type = MPI_BYTE;
    int count = 1, rc = 0;

    if (!op)
        return -ENOMEM;
    op->mine = (struct mpi_header){ .kind = kind, .slice_bytes = slice_bytes, .name = m->name };
    m->name = 0;
    if (own != place)
        memcpy(place, own, slice_bytes);
    if (slice_bytes > ZC_MPI_COUNT_MAX)
        rc = type_long(m, slice_bytes, &type);
    else
        count = (int)slice_bytes;
    for (int i = 0; i < op->peers && rc == 0; i++)
        rc = op_post(m, op, i, send, recv, count, type);
    if (type != MPI_BYTE)
        (void)MPI_Type_free(&type); /* messages in progress keep it */
    *ret = op;
    return rc;
}

static int mpi_all_gather(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                          struct zc_comm_op **ret)
{
    return mpi_start(comm, MPI_KIND_ALL_GATHER, send, recv, slice_bytes, ret);
}

static int mpi_exchange(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                        struct zc_comm_op **ret)
{
    return mpi_start(comm, MPI_KIND_EXCHANGE, send, recv, slice_bytes, ret);
}

/* The other ranks detect from this rank's header that calls differ, so it must reach them. */
static void mpi_farewell(struct zc_comm_op *op)
{
    double until = MPI_Wtime() + MPI_FAREWELL_S;
    int left = 0;

    while (!left && MPI_Wtime() < until &&
           MPI_Testall(op->peers, op_requests(op, HEADERS_OUT), &left, MPI_STATUSES_IGNORE) ==
               MPI_SUCCESS)
        ;
}

static int header_check(struct mpi_comm *m, struct zc_comm_op *op, int i)
{
    const struct mpi_header *mine = &op->mine, *is = &op->theirs[i];
    int rank = m->ranks[op_peer(m, i)];

    if (memcmp(mine, is, sizeof(*is)) == 0)
        return 0;
    m->differs = true;
    m->other =
        (struct zc_comm_other){ .rank = (uint32_t)rank, .mine = mine->name, .theirs = is->name };
    (void)snprintf(
        m->text, sizeof(m->text),
        "rank %d: its collective is %s of %llu bytes, this rank's is %s of %llu: the ranks do not "
        "make the same calls",
        rank, is->kind == MPI_KIND_EXCHANGE ? "an exchange" : "a gather",
        (unsigned long long)is->slice_bytes,
        mine->kind == MPI_KIND_EXCHANGE ? "an exchange" : "a gather",
        (unsigned long long)mine->slice_bytes);
    mpi_farewell(op);
    return -EINVAL;
}

/* Checks the headers that have arrived. */
static int mpi_test_headers(struct mpi_comm *m, struct zc_comm_op *op)
{
    int n = 0, rc;

    rc = mpi_check(
        m,
        MPI_Testsome(op->peers, op_requests(op, HEADERS_IN), &n, op->arrived, MPI_STATUSES_IGNORE),
        "MPI_Testsome");
    for (int i = 0; i < n && rc == 0; i++) {
        op->headers_left--;
        rc = header_check(m, op, op->arrived[i]);
    }
    return rc;
}

static int mpi_test(struct zc_comm *comm, struct zc_comm_op *op, bool *ret_done)
{
    struct mpi_comm *m = mpi_of(comm);
    int done = 0, rc = op->headers_left > 0 ? mpi_test_headers(m, op) : 0;

    if (rc == 0 && op->headers_left == 0)
        rc = mpi_check(m,
                       MPI_Testall((REQUESTS - HEADERS_OUT) * op->peers,
                                   op_requests(op, HEADERS_OUT), &done, MPI_STATUSES_IGNORE),
                       "MPI_Testall");
    *ret_done = rc == 0 && done;
    if (*ret_done)
        op_free(op);
    return rc;
}

static const char *mpi_error(struct zc_comm *comm)
{
    return mpi_of(comm)->text;
}

static void mpi_name_next(struct zc_comm *comm, uint64_t name)
{
    mpi_of(comm)->name = name;
}

static bool mpi_other(struct zc_comm *comm, struct zc_comm_other *ret)
{
    *ret = mpi_of(comm)->other;
    return mpi_of(comm)->differs;
}

static void mpi_close(struct zc_comm *comm, bool clean)
{
    struct mpi_comm *m = mpi_of(comm);

    clean = clean && (m->group || m->pid == getpid());
    if (clean && m->world != MPI_COMM_NULL)
        (void)MPI_Comm_free(&m->world);
    if (clean && !m->group && m->headers != MPI_COMM_NULL)
        (void)MPI_Comm_free(&m->headers);
    if (clean && m->ours)
        (void)MPI_Finalize();
    free(m->ranks);
    free(m);
}

static int mpi_split(struct zc_comm *comm, uint32_t colour, struct zc_comm **ret);

static const struct zc_comm_ops mpi_ops = {
    .name = "mpi",
    .all_gather = mpi_all_gather,
    .exchange = mpi_exchange,
    .test = mpi_test,
    .close = mpi_close,
    .error = mpi_error,
    .split = mpi_split,
    .name_next = mpi_name_next,
    .other = mpi_other,
};

/* Translates ranks of m->world to ranks of m->headers. */
static int mpi_ranks(struct mpi_comm *m, int size)
{
    MPI_Group here = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
    int *mine = malloc(sizeof(int) * (size_t)size), code;

    m->ranks = malloc(sizeof(int) * (size_t)size);
    if (!mine || !m->ranks) {
        free(mine);
        (void)snprintf(m->text, sizeof(m->text), "no memory for %d ranks", size);
        return -ENOMEM;
    }
    for (int r = 0; r < size; r++)
        mine[r] = r;
    code = MPI_Comm_group(m->world, &here);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_group(m->headers, &all);
    if (code == MPI_SUCCESS)
        code = MPI_Group_translate_ranks(here, size, mine, all, m->ranks);
    if (here != MPI_GROUP_NULL)
        (void)MPI_Group_free(&here);
    if (all != MPI_GROUP_NULL)
        (void)MPI_Group_free(&all);
    free(mine);
    return mpi_check(m, code, "MPI groups");
}

/* Sets up m->world and m->headers: errors are returned, and this rank's number is known. */
static int mpi_settle(struct mpi_comm *m)
{
    int rank = 0, size = 0, rc;

    rc = mpi_check(m, MPI_Comm_set_errhandler(m->world, MPI_ERRORS_RETURN), "MPI errors");
    if (rc == 0)
        rc = mpi_check(m, MPI_Comm_set_errhandler(m->headers, MPI_ERRORS_RETURN), "MPI errors");
    if (rc == 0)
        rc = mpi_check(m, MPI_Comm_rank(m->world, &rank), "MPI_Comm_rank");
    if (rc == 0)
        rc = mpi_check(m, MPI_Comm_size(m->world, &size), "MPI_Comm_size");
    if (rc == 0)
        rc = mpi_ranks(m, size);
    m->base.ops = &mpi_ops;
    m->base.rank = (uint32_t)rank;
    m->base.world = (uint32_t)size;
    return rc;
}

static int mpi_split(struct zc_comm *comm, uint32_t colour, struct zc_comm **ret)
{
    struct mpi_comm *m = mpi_of(comm), *part = calloc(1, sizeof(*part));
    int rc;

    if (!part || colour > INT_MAX) {
        int why = part ? -EINVAL : -ENOMEM;

        (void)snprintf(m->text, sizeof(m->text), "%s for colour %u",
                       part ? "no number" : "no memory", colour);
        free(part);
        return why;
    }
    part->world = MPI_COMM_NULL;
    part->headers = m->headers;
    part->group = true;
    rc = mpi_check(m, MPI_Comm_split(m->world, (int)colour, (int)comm->rank, &part->world),
                   "MPI_Comm_split");
    if (rc == 0 && (rc = mpi_settle(part)) < 0)
        (void)snprintf(m->text, sizeof(m->text), "%s", part->text);
    if (rc < 0) {
        free(part->ranks);
        free(part);
        return rc;
    }
    *ret = &part->base;
    return 0;
}

static int mpi_build(struct mpi_comm *m)
{
    int begun = 0, ended = 0, provided = 0, rc;

    (void)MPI_Initialized(&begun);
    (void)MPI_Finalized(&ended);
    if (ended) {
        (void)snprintf(m->text, sizeof(m->text), "MPI has ended in this process");
        return -EIO;
    }
    if (!begun) {
        rc = mpi_check(m, MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided), "MPI_Init");
        if (rc < 0)
            return rc;
        m->ours = true;
    }
    rc = mpi_check(m, MPI_Comm_dup(MPI_COMM_WORLD, &m->world), "MPI_Comm_dup");
    if (rc == 0)
        rc = mpi_check(m, MPI_Comm_dup(MPI_COMM_WORLD, &m->headers), "MPI_Comm_dup");
    return rc < 0 ? rc : mpi_settle(m);
}

static int mpi_open(struct zc_comm **ret, char *error, size_t error_bytes)
{
    struct mpi_comm *m = calloc(1, sizeof(*m));
    int rc;

    if (!m) {
        (void)snprintf(error, error_bytes, "no memory");
        return -ENOMEM;
    }
    m->pid = getpid();
    m->world = m->headers = MPI_COMM_NULL;
    rc = mpi_build(m);
    if (rc < 0) {
        (void)snprintf(error, error_bytes, "%s", m->text);
        mpi_close(&m->base, false);
        return rc;
    }
    *ret = &m->base;
    return 0;
}

const struct zc_comm_plugin zc_comm_plugin = { ZC_COMM_PLUGIN_VERSION, mpi_open };
