/*
 * startup.c - the table of steps of the start.
 *
 * The down function of a step accepts any state: that its up function succeeded, failed half way,
 * or never ran. So the end and a failed start both call all down functions, from the last row.
 */
#include "daemon/startup.h"

#include <errno.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/forecast.h"
#include "base/sysmem.h"
#include "daemon/core_life.h"
#include "daemon/disk/datadir.h"
#include "daemon/disk/paths.h"
#include "daemon/dispatch.h"
#include "daemon/loop.h"
#include "daemon/net/limits.h"
#include "daemon/net/server.h"
#include "daemon/os/numa.h"
#include "daemon/reload/reload.h"
#include "daemon/run/gpu_tier.h"
#include "nvme/zn_fixed.h"

_Static_assert(ZN_DATA_START == ZB_DATA_START, "what the planner takes off a data file");

#define HOST_BYTES_MIN   ZB_MIB
#define NVME_BYTES_MIN   ZB_MIB
#define SLOW_THREADS     2u   /* allocate and free memory */
#define FILES_PER_CLIENT 4u   /* socket, pidfd, staging arena, and one that is being sent */
#define FILES_BESIDE     512u /* arenas of jobs, the engine, the loop, the log; ZSD_USER_FDS_MAX */
#define FILES_LEAST      48u  /* with fewer, the start would fail without a clear message */

/* ---- limits of the process */

/** Raises the limit of descriptors to the number that clients_max may need, or to the hard
 * limit. */
static int limits_files(struct zsd *daemon, struct zb_err *err)
{
    const struct zsd_config *config = &daemon->config;
    rlim_t want = (rlim_t)config->clients_max * FILES_PER_CLIENT + FILES_BESIDE;
    struct rlimit r;

    daemon->files_wanted = want;
    if (getrlimit(RLIMIT_NOFILE, &r) < 0 || r.rlim_cur >= want)
        return 0;
    r.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
    (void)setrlimit(RLIMIT_NOFILE, &r); /* up to the hard limit: always allowed */
    if (r.rlim_cur < FILES_LEAST)
        return zb_fail(
            err, -EMFILE,
            "this process may open %llu files (RLIMIT_NOFILE, LimitNOFILE of a unit): at "
            "least %u are needed, and %llu for clients_max=%u",
            (unsigned long long)r.rlim_cur, FILES_LEAST, (unsigned long long)want,
            config->clients_max);
    if (r.rlim_cur < want)
        zb_log(ZB_LOG_WARN, "few-descriptors",
               "limit=%llu wanted=%llu why=\"clients_max=%u may need as many\"",
               (unsigned long long)r.rlim_cur, (unsigned long long)want, config->clients_max);
    return 0;
}

static int limits_up(struct zsd *daemon, struct zb_err *err)
{
    struct zsd_config *config = &daemon->config;

    daemon->started_ns = zb_now_ns();
    if (getrandom(daemon->instance, sizeof(daemon->instance), 0) < 0)
        return zb_fail(err, -errno, "random bytes: %m");
    if (limits_files(daemon, err) < 0)
        return -EMFILE;
    if (config->host_bytes == ZSD_AUTO)
        config->host_bytes =
            zb_max_u64(zb_sysmem_left("") / ZB_HOST_SHARE / ZB_PAGE_ALIGN * ZB_PAGE_ALIGN,
                       HOST_BYTES_MIN); /* if even that is too little, the core reports it */
    return 0;
}

/* ---- NUMA: before the first thread starts, because threads inherit the policy */

static int numa_up(struct zsd *daemon, struct zb_err *err)
{
    int rc = zsd_numa_open(&daemon->numa, daemon->config.numa, daemon->config.cpus, err);

    daemon->near = (struct zsd_near){ .on = !daemon->config.near_off, .numa = daemon->numa };
    if (rc == 0 && daemon->numa)
        zb_log(ZB_LOG_INFO, "numa", "what=\"%s\"", zsd_numa_text(daemon->numa));
    return rc;
}

static void numa_down(struct zsd *daemon)
{
    daemon->near.on = false;
    zsd_numa_close(daemon->numa);
    daemon->numa = NULL;
}

/* ---- data: the directory */

/* Opens directories and data files as they are. */
static int data_up_read_only(struct zsd *daemon, struct zb_err *err)
{
    struct zsd_config *config = &daemon->config;
    int rc = zsd_paths_open_found(daemon, "--read-only", true, err);

    if (rc < 0)
        return rc;
    (void)snprintf(config->data, sizeof(config->data), "%s", zsd_datadir_path(daemon->datadir));
    config->nvme_bytes = zn_info(daemon->engine)->size_bytes;
    config->gpu_budgets.n = 0; /* no job comes */
    zsd_path_log(zn_info(daemon->engine), zsd_datadir_file(daemon->datadir));
    zb_log(ZB_LOG_WARN, "read-only", "directory=\"%s\" why=\"--read-only: jobs are refused\"",
           config->data);
    return 0;
}

static int data_up(struct zsd *daemon, struct zb_err *err)
{
    struct zsd_config *config = &daemon->config;
    int rc = config->read_only ? 0 : zsd_datadir_open(&daemon->datadir, config->data, err);

    if (config->read_only)
        return data_up_read_only(daemon, err);

    if (rc == 0)
        rc = zsd_datadir_trusted(daemon->datadir, err);
    if (rc < 0)
        return rc;
    (void)snprintf(config->data, sizeof(config->data), "%s", zsd_datadir_path(daemon->datadir));
    config->more_bytes = config->nvme_bytes;
    if (config->nvme_bytes != ZSD_AUTO)
        return 0;
    config->nvme_bytes = zsd_datadir_room(daemon->datadir);
    if (config->nvme_bytes < NVME_BYTES_MIN)
        return zb_fail(err, -ENOSPC,
                       "data directory '%s': its file system is full: %s would be left for the "
                       "data file; make room, or give --nvme-bytes 0 to do without",
                       config->data, zb_size_text(config->nvme_bytes).s);
    return 0;
}

static void data_down(struct zsd *daemon)
{
    zsd_datadir_close(daemon->datadir);
    daemon->datadir = NULL;
}

/* ---- kernels */

static int kernels_up(struct zsd *daemon, struct zb_err *err)
{
    zk_thread_init(); /* the loop thread sums norms itself */
    return zk_select(daemon->config.kernels, &daemon->kernels, err);
}

static void kernels_down(struct zsd *daemon)
{
    daemon->kernels = NULL;
}

/* ---- engine: the NVMe tier */

/* For benchmarks: memory instead of a data file. */
static int engine_up_fixed(struct zsd *daemon, struct zb_err *err)
{
    const struct zsd_config *config = &daemon->config;
    const struct zn_fixed_options options = {
        .size_bytes = config->nvme_bytes,
        .rate_bytes = config->fixed_rate,
        .latency_ns = config->fixed_latency_us * UINT64_C(1000),
        .depth = config->io_depth,
    };
    int rc;

    if (config->paths[0] != '\0')
        return zb_fail(err, -EINVAL, "paths are given with io fixed, which has no data files");
    rc = zn_fixed_open(&daemon->engine, &options, err);
    if (rc < 0)
        return rc;
    daemon->engine_base = ZN_DATA_START;
    daemon->path_rates[0] = (struct zsd_rates){ .read = config->fixed_rate,
                                                .written = config->fixed_rate,
                                                .mixed = config->fixed_rate };
    zb_log(ZB_LOG_WARN, "io-fixed",
           "bytes_per_s=%llu latency_us=%u why=\"the NVMe tier is memory, for benches: nothing "
           "survives, and no job can be durable\"",
           (unsigned long long)config->fixed_rate, config->fixed_latency_us);
    return 0;
}

static int engine_up(struct zsd *daemon, struct zb_err *err)
{
    const struct zsd_config *config = &daemon->config;
    struct zn_options options = {
        .path = zsd_datadir_file(daemon->datadir),
        .no_follow = true,
        .size_bytes = config->nvme_bytes,
        .io = config->io,
        .depth = config->io_depth,
    };
    int rc;

    if (config->read_only) /* data_up() has opened it */
        return 0;
    if (config->nvme_bytes == 0 && config->paths[0] != '\0')
        return zb_fail(err, -EINVAL, "paths are given, and nvme_bytes is 0: no data file at all");
    if (config->nvme_bytes == 0)
        return 0;
    if (zsd_fixed(config))
        return engine_up_fixed(daemon, err);
    rc = zsd_paths_first_missing(daemon, err);
    if (rc == 0)
        rc = zn_open(&daemon->engine, &options, err);
    if (rc < 0)
        return rc;
    zsd_datadir_opened(daemon->datadir);
    daemon->catalog_path = zsd_datadir_catalog(daemon->datadir);
    daemon->engine_base = ZN_DATA_START;
    daemon->measures = true;
    zsd_path_log(zn_info(daemon->engine), options.path);
    return zsd_paths_open(daemon, err);
}

static void engine_down(struct zsd *daemon)
{
    if (daemon->engine && zn_is_fixed(daemon->engine))
        zb_log(ZB_LOG_INFO, "io-fixed-copied", "bytes=%llu",
               (unsigned long long)zn_fixed_copied(daemon->engine));
    zsd_paths_close(daemon);
    zn_close(daemon->engine);
    daemon->engine = NULL;
}

/* ---- compute */

static int compute_up(struct zsd *daemon, struct zb_err *err)
{
    unsigned nsets;
    const cpu_set_t *sets = zsd_numa_cpus(daemon->numa, &nsets);
    int rc =
        nsets > 0
            ? zsd_compute_new_on(&daemon->compute, daemon->config.threads, sets, nsets, err)
            : zsd_compute_new(&daemon->compute, daemon->config.threads, daemon->config.cpus, err);

    return rc < 0 ? rc : zsd_compute_slow(daemon->compute, SLOW_THREADS, err);
}

static void compute_down(struct zsd *daemon)
{
    zsd_compute_free(daemon->compute);
    daemon->compute = NULL;
}

static int server_up(struct zsd *daemon, struct zb_err *err)
{
    return zsd_server_open(daemon, zsd_loop_uv(daemon), &zsd_dispatch_ops, err);
}

/* ---- the rows */

static const struct {
    const char *name;
    int (*up)(struct zsd *daemon, struct zb_err *err);
    void (*down)(struct zsd *daemon);
} rows[] = {
    { "settings", zsd_reload_open, zsd_reload_close },
    { "limits", limits_up, NULL },
    { "numa", numa_up, numa_down },
    { "data", data_up, data_down },
    { "kernels", kernels_up, kernels_down },
    { "engine", engine_up, engine_down },
    { "compute", compute_up, compute_down },
    { "gpu", zsd_gpu_open, zsd_gpu_close },
    { "quotas", zsd_limits_open, zsd_limits_close },
    { "core", zsd_core_new, zsd_core_free },
    { "loop", zsd_loop_new, zsd_loop_free },
    { "server", server_up, zsd_server_close },
};

int zsd_startup(struct zsd *daemon, struct zb_err *err)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < ZB_COUNT(rows); i++) {
        zb_log(ZB_LOG_DEBUG, "start", "step=%s", rows[i].name);
        rc = rows[i].up(daemon, err);
    }
    if (rc < 0)
        zsd_shutdown(daemon);
    return rc;
}

_Noreturn void zsd_shutdown_now(struct zsd *daemon, int status)
{
    zsd_server_drain(daemon);
    zsd_datadir_close(daemon->datadir);
    _exit(status);
}

void zsd_shutdown(struct zsd *daemon)
{
    for (size_t i = ZB_COUNT(rows); i-- > 0;) {
        zb_log(ZB_LOG_DEBUG, "end", "step=%s", rows[i].name);
        if (rows[i].down)
            rows[i].down(daemon);
    }
}
