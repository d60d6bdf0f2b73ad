/*
 * comm_mpi.c - collectives over MPI, as a plugin.
 *
 * MODEL. A duplicate of MPI_COMM_WORLD, so that nothing of the program's own gets mixed in, whose
 * errors come back as codes. Each collective is one non-blocking call; test() is MPI_Test(), which
 * is also what moves the bytes: MPI has no thread of ours.
 *
 * COUNTS are ints. More bytes than that go as one element of a derived type that is as long as the
 * slice.
 *
 * CLOSE. A clean one frees the duplicate and ends MPI if we began it. Otherwise nothing is called:
 * peers may be dead, and MPI_Finalize() would wait for them.
 */
#include <errno.h>
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/util.h"
#include "client/zero/comm_plugin.h"

#ifndef ZC_MPI_COUNT_MAX /* smaller in a test */
#define ZC_MPI_COUNT_MAX INT_MAX
#endif

struct mpi_comm {
    struct zc_comm base;
    MPI_Comm world;
    bool ours; /* we began MPI, so we end it */
    char text[MPI_MAX_ERROR_STRING + 64];
};

struct zc_comm_op {
    MPI_Request request;
};

static struct mpi_comm *mpi_of(struct zc_comm *comm)
{
    return zb_container_of(comm, struct mpi_comm, base);
}

/* 0, or -EIO with MPI's sentence. */
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

/* A type of exactly `bytes` bytes, more than a count can say. */
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

enum mpi_kind { MPI_KIND_ALL_GATHER, MPI_KIND_EXCHANGE };

static int mpi_start(struct zc_comm *comm, enum mpi_kind kind, const void *send, void *recv,
                     size_t slice_bytes, struct zc_comm_op **ret)
{
    struct mpi_comm *m = mpi_of(comm);
    bool in_place = send == (const char *)recv + slice_bytes * comm->rank;
    const void *from = in_place && kind == MPI_KIND_ALL_GATHER ? MPI_IN_PLACE : send;
    struct zc_comm_op *op = malloc(sizeof(*op));
    MPI_Datatype type = MPI_BYTE;
    int count = 1, rc = 0;

    if (!op) {
        (void)snprintf(m->text, sizeof(m->text), "no memory");
        return -ENOMEM;
    }
    if (slice_bytes > ZC_MPI_COUNT_MAX)
        rc = type_long(m, slice_bytes, &type);
    else
        count = (int)slice_bytes;
    if (rc == 0 && kind == MPI_KIND_ALL_GATHER)
        rc = mpi_check(m,
                       MPI_Iallgather(from, count, type, recv, count, type, m->world, &op->request),
                       "MPI_Iallgather");
    else if (rc == 0)
        rc = mpi_check(m,
                       MPI_Ialltoall(from, count, type, recv, count, type, m->world, &op->request),
                       "MPI_Ialltoall");
    if (type != MPI_BYTE)
        (void)MPI_Type_free(&type); /* what is in progress keeps it */
    if (rc < 0) {
        free(op);
        return rc;
    }
    *ret = op;
    return 0;
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

static int mpi_test(struct zc_comm *comm, struct zc_comm_op *op, bool *ret_done)
{
    int done = 0;
    int rc = mpi_check(mpi_of(comm), MPI_Test(&op->request, &done, MPI_STATUS_IGNORE), "MPI_Test");

    *ret_done = rc == 0 && done;
    if (*ret_done)
        free(op);
    return rc;
}

static const char *mpi_error(struct zc_comm *comm)
{
    return mpi_of(comm)->text;
}

static void mpi_close(struct zc_comm *comm, bool clean)
{
    struct mpi_comm *m = mpi_of(comm);

    if (clean && m->world != MPI_COMM_NULL)
        (void)MPI_Comm_free(&m->world);
    if (clean && m->ours)
        (void)MPI_Finalize();
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
};

/* m->world is there: who this rank is in it, and that errors come back. */
static int mpi_settle(struct mpi_comm *m)
{
    int rank = 0, size = 0, rc;

    rc = mpi_check(m, MPI_Comm_set_errhandler(m->world, MPI_ERRORS_RETURN), "MPI errors");
    if (rc == 0)
        rc = mpi_check(m, MPI_Comm_rank(m->world, &rank), "MPI_Comm_rank");
    if (rc == 0)
        rc = mpi_check(m, MPI_Comm_size(m->world, &size), "MPI_Comm_size");
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
    rc = mpi_check(m, MPI_Comm_split(m->world, (int)colour, (int)comm->rank, &part->world),
                   "MPI_Comm_split");
    if (rc == 0 && (rc = mpi_settle(part)) < 0)
        (void)snprintf(m->text, sizeof(m->text), "%s", part->text);
    if (rc < 0) {
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
    m->world = MPI_COMM_NULL;
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
