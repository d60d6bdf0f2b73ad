/*
 * node.c - the node of a plan: from options, a file, the daemon, or this machine.
 *
 * MODEL. A node is described by the options that are members of `node` (plan.c): first from the
 * file of --node, then from the command line, which overrides it. For the rest the local daemon is
 * queried, unless a budget was given, or nothing is offloaded: then the plan is for another node.
 * Without a daemon, host_bytes is what a daemon would take here: a quarter of the memory that the
 * machine and its cgroups leave.
 */
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/size.h"
#include "base/sysmem.h"
#include "base/util.h"
#include "client/zctl/plan/plan.h"

/** Returns the option if it describes the node, else NULL: its members in struct zctl_plan are `node`
 * and the one after it. */
static const struct zb_opt *node_option(const struct zb_opt *o)
{
    return o && o->at >= offsetof(struct zctl_plan, node) &&
                   o->at <= offsetof(struct zctl_plan, gpu_tier_bytes)
               ? o
               : NULL;
}

/* ---- a file */

static int file_value(struct zctl_plan *p, const char *path, const char *key, const json_t *value)
{
    char name[32], where[PATH_MAX], number[32];
    const char *text = json_string_value(value);
    const struct zb_opt *o;

    (void)snprintf(name, sizeof(name), "%s", key);
    for (char *c = name; *c; c++)
        *c = *c == '_' ? '-' : *c;
    o = node_option(zb_opt_find(p->z->opts.rows, name, strlen(name)));
    if (!o || strchr(key, '-'))
        return zb_fail(&p->z->err, -EINVAL, "'%s': unknown key '%s'", path, key);
    if (json_is_integer(value))
        (void)snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(value));
    else
        (void)snprintf(number, sizeof(number), "%.17g", json_number_value(value));
    if (!text && !json_is_number(value))
        return zb_fail(&p->z->err, -EINVAL, "'%s': %s is neither a number nor a text", path, key);
    (void)snprintf(where, sizeof(where), "'%s': %s", path, key);
    return zb_opt_set(o, p, text ? text : number, where, &p->z->err);
}

static int node_file(struct zctl_plan *p, const char *path)
{
    json_error_t why;
    json_t *all = json_load_file(path, JSON_REJECT_DUPLICATES, &why), *value;
    const char *key;
    int rc = 0;

    if (!all)
        return zb_fail(&p->z->err,
                       json_error_code(&why) == json_error_cannot_open_file ? -ENOENT : -EINVAL,
                       "'%s': %s", path, why.text);
    if (!json_is_object(all))
        rc = zb_fail(&p->z->err, -EINVAL, "'%s' is not a JSON object", path);
    json_object_foreach(all, key, value)
    {
        if (rc == 0)
            rc = file_value(p, path, key, value);
    }
    json_decref(all);
    return rc;
}

/* ---- this node */

/* The tier of one GPU: "gpu" if there is one, else "gpu0", "gpu1" ... */
static void daemon_gpu(struct zctl_plan *p, const struct zc_tier_row *row)
{
    bool several = row->name[3] != '\0';

    if (p->node.gpus < ZB_GPUS_MAX)
        p->node.gpu_tiers[p->node.gpus] = row->budget - zb_min_u64(row->used, row->budget);
    p->node.gpus += several;
}

static int daemon_tiers(struct zctl_plan *p)
{
    struct zc_tier_row *rows = NULL;
    size_t n = 0;
    int rc = zctl_failed(p->z, zc_tiers_wait(p->z->client, &rows, &n));

    for (size_t i = 0; i < n && rc == 0; i++) {
        bool host = strcmp(rows[i].name, "host") == 0;

        if (strncmp(rows[i].name, "gpu", 3) == 0)
            daemon_gpu(p, &rows[i]);
        if (!host && strcmp(rows[i].name, "nvme") != 0)
            continue;
        *(host ? &p->node.host_bytes : &p->node.nvme_bytes) = rows[i].budget;
        *(host ? &p->node.host_taken : &p->node.nvme_taken) = rows[i].used;
        if (!host && !p->measure) {
            p->node.drive_read = (double)rows[i].read_bytes_s;
            p->node.drive_write = (double)rows[i].write_bytes_s;
        }
    }
    zc_rows_free(rows);
    return rc;
}

/* The host tier's usage includes the page buffers, which the plan counts itself. */
static int daemon_buffers(struct zctl_plan *p)
{
    struct zc_counter *rows = NULL;
    size_t n = 0;
    int rc = zctl_failed(p->z, zc_stat_wait(p->z->client, &rows, &n));

    for (size_t i = 0; i < n && rc == 0; i++)
        if (strcmp(rows[i].name, "page_buffers") == 0)
            p->node.nbuffers = (uint32_t)rows[i].value;
    p->node.host_taken -=
        zb_min_u64(p->node.host_taken, p->node.nbuffers * zb_buffer_bytes(p->node.page_elems));
    zc_rows_free(rows);
    return rc;
}

/* Durable jobs without attached ranks, and without changes since their commit, give their memory to
 * a job that needs it: the daemon's job_idle(). They keep their NVMe space. */
static int daemon_idle_jobs(struct zctl_plan *p)
{
    struct zc_job_row *rows = NULL;
    size_t n = 0;
    int rc = zctl_failed(p->z, zc_jobs_wait(p->z->client, NULL, &rows, &n));

    for (size_t i = 0; i < n && rc == 0; i++)
        if (rows[i].durable && rows[i].attached == 0 && strcmp(rows[i].state, "ready") == 0)
            p->gives_room += rows[i].host_bytes;
    p->gives_room = zb_min_u64(p->gives_room, p->node.host_taken);
    p->node.host_taken -= p->gives_room;
    zc_rows_free(rows);
    return rc;
}

static int node_daemon(struct zctl_plan *p)
{
    int rc = zctl_connect(p->z);

    if (rc == -ENOTCONN && !p->z->socket && !getenv("ZSHARD_SOCKET")) { /* no daemon was named */
        p->z->err = (struct zb_err){ 0 };
        p->node.host_bytes = zb_sysmem_left("") / ZB_HOST_SHARE / ZB_PAGE_ALIGN * ZB_PAGE_ALIGN;
        p->node_from = "this machine, without a daemon";
        return 0;
    }
    if (rc == 0)
        rc = daemon_tiers(p);
    if (rc < 0)
        return rc;
    p->node.page_elems = zc_server(p->z->client)->page_elems;
    p->node_from = "the daemon of this node";
    rc = daemon_buffers(p);
    return rc < 0 ? rc : daemon_idle_jobs(p);
}

/* Budgets are used in whole pages, without the head of each data file. */
static void node_budgets(struct zctl_plan *p)
{
    p->node.host_bytes -= p->node.host_bytes % ZB_PAGE_ALIGN;
    p->node.nvme_bytes -= zb_min_u64(p->node.nvme_bytes, ZB_DATA_START);
    p->node.nvme_bytes -= p->node.nvme_bytes % ZB_PAGE_ALIGN;
}

/* If a number of drives is given, what is given about drives is of one of them. `sizes`: so is the
 * size of the data file. */
static int node_drives(struct zctl_plan *p, bool sizes)
{
    static const char *const names[] = { "drive-read", "drive-write", "drive-endurance" };
    double *const values[] = { &p->node.drive_read, &p->node.drive_write, &p->node.endurance };
    bool any = sizes && p->node.nvme_bytes > 0;

    if (p->node.drives == 0)
        return 0;
    if (any && p->node.nvme_bytes > ZB_PARAMS_MAX / p->node.drives)
        return zb_fail(&p->z->err, -EINVAL, "%u drives of %llu bytes: too many bytes",
                       p->node.drives, (unsigned long long)p->node.nvme_bytes);
    p->node.nvme_bytes *= any ? p->node.drives : 1;
    for (size_t i = 0; i < ZB_COUNT(values); i++)
        if ((p->node_file || zb_opt_given(&p->z->opts, names[i])) && *values[i] > 0) {
            *values[i] *= p->node.drives;
            any = true;
        }
    if (!any)
        return zb_fail(&p->z->err, -EINVAL,
                       "--drives needs --nvme-bytes, --drive-read, --drive-write or "
                       "--drive-endurance, of one drive");
    return 0;
}

/* Free bytes of the GPU tiers, if they were given: one size, or one for each GPU. */
static int node_gpus(struct zctl_plan *p)
{
    uint32_t gpus = p->node.gpus > 0 ? p->node.gpus : 1;
    uint64_t sizes[ZB_GPUS_MAX];
    int n;

    if (p->gpu_tier_bytes[0] == '\0') /* not given */
        return 0;
    n = zb_sizes_parse(p->gpu_tier_bytes, sizes, ZB_GPUS_MAX, &p->z->err);
    if (n < 0)
        return n;
    if (n > 1 && (uint32_t)n != gpus)
        return zb_fail(&p->z->err, -EINVAL,
                       "--gpu-tier-bytes has %d sizes, and there are %u GPUs (--gpus): give one "
                       "size, or one for each",
                       n, gpus);
    for (uint32_t g = 0; g < ZB_GPUS_MAX; g++)
        p->node.gpu_tiers[g] = g < gpus ? sizes[n > 1 ? g : 0] : 0;
    return 0;
}

int zctl_plan_node(struct zctl_plan *p)
{
    const struct zb_opts *opts = &p->z->opts;
    const struct zctl_plan line = *p;
    bool given = p->node_file || zb_opt_given(opts, "host-bytes") ||
                 zb_opt_given(opts, "nvme-bytes") || p->run.optimizer == ZB_OFFLOAD_NONE;
    int rc = 0;

    p->node = (struct zb_node){ .page_elems = ZB_PAGE_ELEMS_DEFAULT,
                                .cores = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN) };
    p->gpu_tier_bytes[0] = '\0';
    p->node_from = p->node_file ? p->node_file : "options";
    if (p->node_file)
        rc = node_file(p, p->node_file);
    else if (!given)
        rc = node_daemon(p);
    for (const struct zb_opt *o = opts->rows; o->name; o++) /* the command line wins */
        if (node_option(o) && zb_opt_given(opts, o->name))
            memcpy((char *)p + o->at, (const char *)&line + o->at, o->size);
    if (rc == 0 && given)
        node_budgets(p);
    if (rc == 0)
        rc = node_gpus(p);
    return rc < 0 ? rc : node_drives(p, given);
}
