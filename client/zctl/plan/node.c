/*
 * node.c - the node of a plan: from options, a file, the daemon, this machine.
 *
 * MODEL. One table of what there is to say; each value is text until value_read(), whoever brought
 * it: first the file of --node, then the command line over it. What neither says is asked of the
 * daemon of this node, unless a budget was given: then the node is another one. Where there is no
 * daemon, host_bytes is what one would take here: a quarter of what machine and cgroups leave.
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

enum value_type { SIZE, COUNT, GIGA, TERA }; /* bytes; a number; 1e9 and 1e12 of something */

static const struct {
    const char *key; /* in a file; with '-' for '_' the option */
    enum value_type type;
    size_t at;
} values[] = {
    { "cores", COUNT, offsetof(struct zb_node, cores) },
    { "drive_endurance", TERA, offsetof(struct zb_node, endurance) },
    { "drive_read", GIGA, offsetof(struct zb_node, drive_read) },
    { "drive_write", GIGA, offsetof(struct zb_node, drive_write) },
    { "gpu_bytes", SIZE, offsetof(struct zb_node, gpu_bytes) },
    { "gpu_tier_bytes", SIZE, offsetof(struct zb_node, gpu_tier_bytes) },
    { "host_bytes", SIZE, offsetof(struct zb_node, host_bytes) },
    { "mem_bw", GIGA, offsetof(struct zb_node, memory) },
    { "nvme_bytes", SIZE, offsetof(struct zb_node, nvme_bytes) },
    { "page_elems", COUNT, offsetof(struct zb_node, page_elems) },
    { "ring_bytes", SIZE, offsetof(struct zb_node, ring_bytes) },
};

static int value_read(struct zctl *z, size_t i, struct zb_node *node, const char *text,
                      const char *where)
{
    void *member = (char *)node + values[i].at;
    struct zb_err why = { 0 };
    unsigned long long count;
    double real;
    char *end;

    switch (values[i].type) {
    case SIZE:
        if (zb_size_parse(text, member, &why) < 0)
            return zb_fail(&z->err, -EINVAL, "%s%s: %s", where, values[i].key, why.text);
        return 0;
    case COUNT:
        count = strtoull(text, &end, 10);
        if (*text < '0' || *text > '9' || *end || count > UINT32_MAX)
            return zb_fail(&z->err, -EINVAL, "%s%s: '%s' is no plain number", where, values[i].key,
                           text);
        *(uint32_t *)member = (uint32_t)count;
        return 0;
    case GIGA:
    case TERA:
        real = strtod(text, &end);
        if (*text < '0' || *text > '9' || *end || !(real < 1e9))
            return zb_fail(&z->err, -EINVAL, "%s%s: '%s' is no number of %s", where, values[i].key,
                           text, values[i].type == GIGA ? "GB/s" : "TB");
        *(double *)member = real * (values[i].type == GIGA ? 1e9 : 1e12);
        return 0;
    }
    return 0;
}

static const char *value_option(const struct zctl *z, size_t i)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "%s", values[i].key);
    for (char *c = name; *c; c++)
        *c = *c == '_' ? '-' : *c;
    return zctl_option(z, name);
}

/* ---- a file */

static int file_value(struct zctl_plan *p, const char *path, const char *key, const json_t *value)
{
    char where[PATH_MAX], number[32];
    const char *text = json_string_value(value);
    size_t i = 0;

    (void)snprintf(where, sizeof(where), "'%s': ", path);
    while (i < ZB_COUNT(values) && strcmp(values[i].key, key) != 0)
        i++;
    if (i == ZB_COUNT(values))
        return zb_fail(&p->z->err, -EINVAL, "%sno node has '%s'", where, key);
    if (json_is_integer(value))
        (void)snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(value));
    else
        (void)snprintf(number, sizeof(number), "%.17g", json_number_value(value));
    if (!text && !json_is_number(value))
        return zb_fail(&p->z->err, -EINVAL, "%s%s is neither a number nor a text", where, key);
    return value_read(p->z, i, &p->node, text ? text : number, where);
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
        rc = zb_fail(&p->z->err, -EINVAL, "'%s' is no JSON object", path);
    json_object_foreach(all, key, value)
    {
        if (rc == 0)
            rc = file_value(p, path, key, value);
    }
    json_decref(all);
    return rc;
}

/* ---- this node */

static int daemon_tiers(struct zctl_plan *p)
{
    struct zc_tier_row *rows = NULL;
    size_t n = 0;
    int rc = zctl_failed(p->z, zc_tiers_wait(p->z->client, &rows, &n));

    for (size_t i = 0; i < n && rc == 0; i++) {
        bool host = strcmp(rows[i].name, "host") == 0;

        if (strcmp(rows[i].name, "gpu") == 0)
            p->node.gpu_tier_bytes = rows[i].budget - rows[i].used;
        if (!host && strcmp(rows[i].name, "nvme") != 0)
            continue;
        *(host ? &p->node.host_bytes : &p->node.nvme_bytes) = rows[i].budget;
        *(host ? &p->node.host_taken : &p->node.nvme_taken) = rows[i].used;
        if (!host && !zctl_option(p->z, "measure")) {
            p->node.drive_read = (double)rows[i].read_bytes_s;
            p->node.drive_write = (double)rows[i].write_bytes_s;
        }
    }
    zc_rows_free(rows);
    return rc;
}

/* The page buffers stand in the host tier's account; they are the plan's own, too. */
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

static int node_daemon(struct zctl_plan *p)
{
    int rc = zctl_connect(p->z);

    if (rc == -ENOTCONN && !p->z->socket && !getenv("ZSHARD_SOCKET")) { /* none was asked for */
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
    return daemon_buffers(p);
}

int zctl_plan_node(struct zctl_plan *p)
{
    const char *path = zctl_option(p->z, "node");
    bool given = path || zctl_option(p->z, "host-bytes") || zctl_option(p->z, "nvme-bytes");
    int rc = 0;

    p->node = (struct zb_node){ .page_elems = ZB_PAGE_ELEMS_DEFAULT,
                                .cores = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN) };
    p->node_from = path ? path : "options";
    if (path)
        rc = node_file(p, path);
    else if (!given)
        rc = node_daemon(p);
    for (size_t i = 0; i < ZB_COUNT(values) && rc == 0; i++)
        if (value_option(p->z, i))
            rc = value_read(p->z, i, &p->node, value_option(p->z, i), "--");
    if (rc == 0 && given) {
        p->node.host_bytes -= p->node.host_bytes % ZB_PAGE_ALIGN;
        p->node.nvme_bytes -= zb_min_u64(p->node.nvme_bytes, ZB_DATA_START);
        p->node.nvme_bytes -= p->node.nvme_bytes % ZB_PAGE_ALIGN;
    }
    return rc;
}
