/*
 * comm.c - selects a backend; also the backend for a single rank.
 *
 * A backend that needs a library of its own is a plugin: a shared object with the name
 * zc_comm_NAME.so that exports zc_comm_plugin (comm_plugin.h). It is loaded when it is selected
 * (base/plugin.h).
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/plugin.h"
#include "base/util.h"
#include "client/zero/comm/comm_plugin.h"
#include "client/zero/comm/comm_priv.h"
#include "client/zero/comm/tcp_mesh.h"

/* ---- self: one rank, so a collective is a copy, or nothing */

static int self_copy(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                     struct zc_comm_op **ret)
{
    (void)comm;
    if (send != recv)
        memcpy(recv, send, slice_bytes);
    *ret = NULL;
    return 0;
}

static int self_test(struct zc_comm *comm, struct zc_comm_op *op, bool *ret_done)
{
    (void)comm;
    (void)op;
    *ret_done = true;
    return 0;
}

static void self_close(struct zc_comm *comm, bool clean)
{
    (void)clean;
    free(comm);
}

static int self_open(struct zc_comm **ret, struct zb_err *err);

static int self_split(struct zc_comm *comm, uint32_t colour, struct zc_comm **ret)
{
    struct zb_err err = { 0 };

    (void)comm;
    (void)colour;
    return self_open(ret, &err);
}

static const struct zc_comm_ops self_ops = {
    .name = "self",
    .all_gather = self_copy,
    .exchange = self_copy,
    .test = self_test,
    .close = self_close,
    .split = self_split,
};

static int self_open(struct zc_comm **ret, struct zb_err *err)
{
    struct zc_comm *comm = calloc(1, sizeof(*comm));

    if (!comm)
        return zb_fail(err, -ENOMEM, "no memory for a comm");
    *comm = (struct zc_comm){ .ops = &self_ops, .world = 1 };
    *ret = comm;
    return 0;
}

/* ---- plugins */

static int plugin_open(struct zc_comm **ret, const char *name, struct zb_err *err)
{
    const struct zc_comm_plugin *plugin;
    struct zb_plugin found;
    struct zb_err why = { 0 };
    char file[64], text[256] = "";
    int rc;

    (void)snprintf(file, sizeof(file), "zc_comm_%s.so", name);
    /* RTLD_GLOBAL: Open MPI's own plugins look for its symbols. */
    if (zb_plugin_load(&found, file, "zc_comm_plugin", RTLD_NOW | RTLD_GLOBAL, &why) < 0)
        return zb_fail(err, -ENOTSUP, "backend '%s': %s", name, why.text);
    plugin = found.table;
    if (plugin->version != ZC_COMM_PLUGIN_VERSION)
        return zb_fail(err, -ENOTSUP, "'%s' is not a backend of this version of zshard",
                       found.path);
    rc = plugin->open(ret, text, sizeof(text));
    return rc < 0 ? zb_fail(err, rc, "backend '%s': %s", name, text) : 0;
}

/* Checks the variables that mpirun, srun and the like set for each rank. */
static bool mpi_launched(void)
{
    static const char *const marks[] = { "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
                                         "MPI_LOCALRANKID" };

    for (size_t i = 0; i < ZB_COUNT(marks); i++)
        if (getenv(marks[i]))
            return true;
    return false;
}

/* The backend for collectives in host memory. */
static const char *host_name(void)
{
    return mpi_launched() ? "mpi" : zc_tcp_launched() ? "tcp" : "self";
}

static int host_open(struct zc_comm **ret, const char *name, struct zb_err *err)
{
    if (strcmp(name, "self") == 0)
        return self_open(ret, err);
    if (strcmp(name, "tcp") == 0)
        return zc_tcp_open(ret, err);
    if (strcmp(name, "mpi") == 0)
        return plugin_open(ret, name, err);
    return zb_fail(err, -ENOENT, "no backend '%s': known are self, tcp, mpi, nccl and auto", name);
}

int zc_comm_open(struct zc_comm **ret, const char *name, char *error, size_t error_bytes)
{
    const char *wanted = getenv("ZSHARD_COMM");
    struct zb_err err = { 0 };
    struct zc_comm *host = NULL;
    bool nccl;
    int rc;

    *ret = NULL;
    if (strcmp(name, "auto") == 0)
        name = wanted && *wanted && strcmp(wanted, "auto") != 0 ? wanted : host_name();
    nccl = strcmp(name, "nccl") == 0;
    rc = host_open(&host, nccl ? host_name() : name, &err);
    if (rc == 0 && nccl)
        rc = zc_nccl_open(ret, host, &err);
    else if (rc == 0)
        *ret = host;
    if (rc < 0 && error)
        (void)snprintf(error, error_bytes, "%s", err.text);
    return rc;
}

void zc_comm_close(struct zc_comm *comm, bool clean)
{
    if (comm)
        comm->ops->close(comm, clean);
}
