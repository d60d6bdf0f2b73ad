/*
 * numa.c - see numa.h. The topology comes from hwloc. So does the memory policy, which is set
 * without HWLOC_MEMBIND_STRICT, so that the kernel spills to other nodes. The location of pages
 * comes from the kernel (move_pages(2) without a target), because hwloc would return one page at a
 * time.
 */
#include "daemon/os/numa.h"

#include <errno.h>
#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/util.h"
#include "daemon/os/cpus.h"

#define SURVEY_PAGE    4096u
#define SURVEY_SAMPLES 65536u /* of one area */
#define SURVEY_BATCH   1024u

struct zsd_numa {
    hwloc_topology_t topology;
    hwloc_nodeset_t chosen;
    bool bound;     /* the policy was set */
    unsigned nsets; /* of CPUs */
    cpu_set_t sets[ZSD_NODES_MAX];
    char text[128];
};

int zsd_numa_check(const char *option, struct zb_err *err)
{
    cpu_set_t nodes;

    if (strcmp(option, "off") == 0 || strcmp(option, "auto") == 0)
        return 0;
    return zsd_numbers_parse(option, &nodes)
               ? 0
               : zb_fail(err, -EINVAL,
                         "'%s' is neither off, auto nor a list of nodes such as 0-1,3", option);
}

/* ---- the nodes */

static hwloc_obj_t numa_node(const struct zsd_numa *n, unsigned i)
{
    return hwloc_get_obj_by_type(n->topology, HWLOC_OBJ_NUMANODE, i);
}

static unsigned numa_nodes(const struct zsd_numa *n)
{
    int nodes = hwloc_get_nbobjs_by_type(n->topology, HWLOC_OBJ_NUMANODE);

    return nodes > 0 ? (unsigned)nodes : 0;
}

/* The CPUs of a node that are in `cpus`; false: none. */
static bool numa_node_cpus(const struct zsd_numa *n, hwloc_obj_t node, const cpu_set_t *cpus,
                           cpu_set_t *ret)
{
    (void)hwloc_cpuset_to_glibc_sched_affinity(n->topology, node->cpuset, ret, sizeof(*ret));
    CPU_AND(ret, ret, cpus);
    return CPU_COUNT(ret) > 0;
}

static int numa_choose(struct zsd_numa *n, const char *option, const cpu_set_t *cpus,
                       struct zb_err *err)
{
    bool automatic = strcmp(option, "auto") == 0;
    char has[64];
    cpu_set_t named, set;

    if (!automatic && !zsd_numbers_parse(option, &named))
        return zsd_numa_check(option, err);
    for (unsigned i = 0; i < numa_nodes(n); i++) {
        hwloc_obj_t node = numa_node(n, i);
        unsigned number = node->os_index;
        bool cpu = numa_node_cpus(n, node, cpus, &set);

        if (automatic ? !cpu : number >= CPU_SETSIZE || !CPU_ISSET(number, &named))
            continue;
        if (hwloc_bitmap_set(n->chosen, number) < 0)
            return zb_fail(err, -ENOMEM, "NUMA nodes: %m");
        if (!automatic)
            CPU_CLR(number, &named);
        if (cpu && n->nsets < ZSD_NODES_MAX)
            n->sets[n->nsets++] = set;
    }
    (void)hwloc_bitmap_list_snprintf(has, sizeof(has),
                                     hwloc_topology_get_topology_nodeset(n->topology));
    if (!automatic && CPU_COUNT(&named) > 0)
        return zb_fail(err, -EINVAL, "numa '%s': this process may only use nodes %s", option, has);
    if (!automatic && n->nsets == 0)
        return zb_fail(err, -EINVAL, "numa '%s': this process may use no CPU of these nodes",
                       option);
    return 0;
}

/* Sets the policy of this thread and of threads that it starts. */
static int numa_policy(struct zsd_numa *n)
{
    hwloc_membind_policy_t policy = hwloc_bitmap_weight(n->chosen) > 1 ? HWLOC_MEMBIND_INTERLEAVE
                                                                       : HWLOC_MEMBIND_BIND;

    if (hwloc_set_membind(n->topology, n->chosen, policy,
                          HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) < 0)
        return -errno;
    n->bound = true;
    return 0;
}

static int numa_build(struct zsd_numa *n, const char *option, const char *cpus, struct zb_err *err)
{
    bool automatic = strcmp(option, "auto") == 0;
    char list[64];
    cpu_set_t set;
    int rc = zsd_cpus_resolve(cpus, &set, err), weight;

    if (rc < 0)
        return rc;
    n->chosen = hwloc_bitmap_alloc();
    if (!n->chosen || hwloc_topology_init(&n->topology) < 0)
        return zb_fail(err, -ENOMEM, "the machine's topology: %m");
    /* without devices: hwloc would load libraries of GPU vendors for nothing */
    (void)hwloc_topology_set_io_types_filter(n->topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    if (hwloc_topology_load(n->topology) < 0)
        return zb_fail(err, -errno, "the machine's topology: %m");
    rc = numa_choose(n, option, &set, err);
    if (rc < 0)
        return rc;
    weight = hwloc_bitmap_weight(n->chosen);
    (void)hwloc_bitmap_list_snprintf(list, sizeof(list), n->chosen);
    if (automatic && (numa_nodes(n) == 1 || weight == 0)) {
        n->nsets = 0;
        (void)snprintf(n->text, sizeof(n->text), "one node: nothing to place");
        return 0;
    }
    rc = numa_policy(n);
    if (rc == 0) {
        (void)snprintf(n->text, sizeof(n->text), "node%s %s, %s; spills", weight > 1 ? "s" : "",
                       list, weight > 1 ? "interleaved" : "preferred");
        return 0;
    }
    if (!automatic)
        return zb_fail(err, rc, "numa '%s': memory cannot be bound to nodes: %m", option);
    errno = -rc;
    (void)snprintf(n->text, sizeof(n->text), "not bound: %m");
    zb_log(ZB_LOG_WARN, "numa-refused", "nodes=\"%s\" why=\"%s\"", list, n->text);
    return 0;
}

int zsd_numa_open(struct zsd_numa **ret, const char *option, const char *cpus, struct zb_err *err)
{
    struct zsd_numa *n;
    int rc;

    *ret = NULL;
    if (strcmp(option, "off") == 0)
        return 0;
    n = calloc(1, sizeof(*n));
    if (!n)
        return zb_fail(err, -ENOMEM, "NUMA nodes: %m");
    rc = numa_build(n, option, cpus, err);
    if (rc < 0) {
        zsd_numa_close(n);
        return rc;
    }
    *ret = n;
    return 0;
}

void zsd_numa_close(struct zsd_numa *n)
{
    if (!n)
        return;
    if (n->bound)
        (void)hwloc_set_membind(n->topology, hwloc_topology_get_allowed_nodeset(n->topology),
                                HWLOC_MEMBIND_DEFAULT,
                                HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET);
    if (n->topology)
        hwloc_topology_destroy(n->topology);
    hwloc_bitmap_free(n->chosen);
    free(n);
}

const cpu_set_t *zsd_numa_cpus(const struct zsd_numa *n, unsigned *ret_n)
{
    *ret_n = n ? n->nsets : 0;
    return n ? n->sets : NULL;
}

bool zsd_numa_has(const struct zsd_numa *n, unsigned node)
{
    return hwloc_bitmap_isset(n->chosen, node) != 0;
}

const char *zsd_numa_text(const struct zsd_numa *n)
{
    return n ? n->text : "off";
}

/* ---- where memory is */

static void survey_area(const struct zsd_numa_area *area, struct zsd_numa_use *use)
{
    uint64_t pages = area->bytes / SURVEY_PAGE, step = zb_div_up(pages, SURVEY_SAMPLES);
    void *at[SURVEY_BATCH];
    int node[SURVEY_BATCH];

    for (uint64_t page = 0; page < pages;) {
        uint64_t first = page;
        unsigned count = 0;

        for (; count < SURVEY_BATCH && page < pages; page += step)
            at[count++] = (uint8_t *)(uintptr_t)area->base + page * SURVEY_PAGE;
        if (syscall(SYS_move_pages, 0, (unsigned long)count, at, NULL, node, 0) != 0)
            return; /* refused: the rest is not counted */
        for (unsigned i = 0; i < count; i++)
            if (node[i] >= 0 && (unsigned)node[i] < ZSD_NODES_MAX) /* else it has no memory */
                use->on[node[i]] += zb_min_u64(step, pages - first - i * step) * SURVEY_PAGE;
    }
}

void zsd_numa_survey(const struct zsd_numa *n, const struct zsd_numa_area *areas, unsigned nareas,
                     struct zsd_numa_use *ret)
{
    *ret = (struct zsd_numa_use){ 0 };
    for (unsigned i = 0; i < nareas; i++)
        survey_area(&areas[i], ret);
    for (unsigned i = 0; i < ZSD_NODES_MAX; i++)
        *(hwloc_bitmap_isset(n->chosen, i) ? &ret->chosen : &ret->spilled) += ret->on[i];
}

void zsd_numa_use_text(const struct zsd_numa *n, const struct zsd_numa_use *use, char *text,
                       unsigned size)
{
    size_t len = 0;

    text[0] = '\0';
    for (unsigned i = 0; i < numa_nodes(n) && len < size; i++) {
        unsigned node = numa_node(n, i)->os_index;

        if (node < ZSD_NODES_MAX)
            len += (size_t)snprintf(text + len, size - len, "%s%u:%llu", len > 0 ? " " : "", node,
                                    (unsigned long long)use->on[node]);
    }
}
