/*
 * sysmem.c - the memory that the machine and its cgroups leave us.
 *
 * MODEL. /proc/self/cgroup names our memory cgroup, /proc/self/mountinfo says where its tree is
 * mounted and which part of the tree that mount shows. The limit of every ancestor applies to us,
 * so every directory from ours up to the mount point is read.
 *
 * A container may see a mount that begins below the root of the tree, while /proc/self/cgroup names
 * a path from the root. Then the mount's root is cut from the path.
 */
#include "base/sysmem.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"

#define LINE_BYTES 4096
#define NODES_MAX  1024 /* of Linux */

/* The names of files and values in one version of cgroups. */
struct cgroup_names {
    const char *fstype, *limit, *limit_soft, *usage, *cache;
};

static const struct cgroup_names cgroup_v1 = { "cgroup", "memory.limit_in_bytes", NULL,
                                               "memory.usage_in_bytes", "total_inactive_file" };
static const struct cgroup_names cgroup_v2 = { "cgroup2", "memory.max", "memory.high",
                                               "memory.current", "inactive_file" };

static FILE *open_under(const char *root, const char *dir, const char *name)
{
    char path[2 * PATH_MAX];

    if ((size_t)snprintf(path, sizeof(path), "%s%s/%s", root, dir, name) >= sizeof(path))
        return NULL;
    return fopen(path, "re");
}

/** The number on the line that begins with `key` and a blank or colon; key NULL: on the first. */
static bool read_number(const char *root, const char *dir, const char *name, const char *key,
                        uint64_t *ret)
{
    FILE *f = open_under(root, dir, name);
    char line[LINE_BYTES];
    bool found = false;
    size_t len = key ? strlen(key) : 0;

    while (f && !found && fgets(line, sizeof(line), f)) {
        const char *p = line + len;

        if (key && (strncmp(line, key, len) != 0 || (*p != ' ' && *p != ':')))
            continue;
        p += strspn(p, ": ");
        found = *p >= '0' && *p <= '9';
        if (found)
            *ret = strtoull(p, NULL, 10); /* saturates, which is as good as no limit */
        if (!key)
            break;
    }
    if (f)
        (void)fclose(f);
    return found;
}

/** What one cgroup leaves; UINT64_MAX: it has no limit. */
static uint64_t cgroup_left(const char *root, const char *dir, const struct cgroup_names *n)
{
    uint64_t limit = UINT64_MAX, soft, usage = 0, cache = 0;

    (void)read_number(root, dir, n->limit, NULL, &limit);
    if (n->limit_soft && read_number(root, dir, n->limit_soft, NULL, &soft))
        limit = zb_min_u64(limit, soft);
    if (limit == UINT64_MAX || !read_number(root, dir, n->usage, NULL, &usage))
        return limit;
    (void)read_number(root, dir, "memory.stat", n->cache, &cache);
    usage -= zb_min_u64(usage, cache);
    return limit - zb_min_u64(limit, usage);
}

/** The limit of one cgroup, whatever is in use; UINT64_MAX: it has none. */
static uint64_t cgroup_limit(const char *root, const char *dir, const struct cgroup_names *n)
{
    uint64_t limit = UINT64_MAX;

    (void)read_number(root, dir, n->limit, NULL, &limit);
    return limit;
}

/** What is asked about each cgroup. */
typedef uint64_t cgroup_fn(const char *root, const char *dir, const struct cgroup_names *n);

/** The least of `dir` and its parents, up to and including its first `mount_len` bytes. */
static uint64_t cgroups_least(const char *root, char *dir, size_t mount_len,
                              const struct cgroup_names *n, cgroup_fn *ask)
{
    uint64_t least = UINT64_MAX;

    for (;;) {
        char *slash;

        least = zb_min_u64(least, ask(root, dir, n));
        slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < mount_len)
            return least;
        *slash = '\0';
    }
}

/** Is `word` one of the words of a list with commas? */
static bool list_has(const char *list, const char *word)
{
    size_t len = strlen(word);

    for (const char *p = list; (p = strstr(p, word)) != NULL; p += len)
        if ((p == list || p[-1] == ',') && (p[len] == ',' || p[len] == '\0'))
            return true;
    return false;
}

/** The path of a process in the tree: a line "0::/path" of version 2, or "4:cpu,memory:/path" of
 * version 1. */
static bool cgroup_path(const char *root, const char *process, const struct cgroup_names *n,
                        char path[LINE_BYTES])
{
    FILE *f = open_under(root, process, "cgroup");
    char line[LINE_BYTES];
    bool found = false;

    while (f && !found && fgets(line, sizeof(line), f)) {
        char *list = strchr(line, ':'), *p = list ? strchr(list + 1, ':') : NULL;

        if (!p)
            continue;
        *p++ = '\0';
        p[strcspn(p, "\n")] = '\0';
        found = n == &cgroup_v2 ? list[1] == '\0' : list_has(list + 1, "memory");
        if (found)
            (void)snprintf(path, LINE_BYTES, "%s", p);
    }
    if (f)
        (void)fclose(f);
    return found;
}

struct mount {
    char root[LINE_BYTES], point[LINE_BYTES], fstype[64], options[LINE_BYTES];
};

/** "36 25 0:31 /root /point rw,nosuid shared:9 - cgroup2 cgroup2 rw,memory": proc(5). */
static bool mount_parse(const char *line, struct mount *m)
{
    const char *dash = strstr(line, " - ");

    return dash && sscanf(line, "%*s %*s %*s %4095s %4095s", m->root, m->point) == 2 &&
           sscanf(dash, " - %63s %*s %4095s", m->fstype, m->options) == 2;
}

/** The directory of our cgroup, and how much of it is the mount point. */
static bool cgroup_dir(const char *root, const struct cgroup_names *n, const char *path,
                       char dir[2 * LINE_BYTES], size_t *ret_mount_len)
{
    FILE *f = open_under(root, "/proc/self", "mountinfo");
    char line[LINE_BYTES];
    struct mount m;
    bool found = false;

    while (f && !found && fgets(line, sizeof(line), f)) {
        size_t cut;

        if (!mount_parse(line, &m) || strcmp(m.fstype, n->fstype) != 0 ||
            (n == &cgroup_v1 && !list_has(m.options, "memory")))
            continue;
        cut = strcmp(m.root, "/") == 0 ? 0 : strlen(m.root);
        if (strncmp(path, m.root, cut) != 0 || (path[cut] != '/' && path[cut] != '\0'))
            cut = strlen(path); /* another part of the tree: only the limits of the mount point are
                                   visible */
        (void)snprintf(dir, 2 * LINE_BYTES, "%s%s", m.point,
                       strcmp(path + cut, "/") == 0 ? "" : path + cut);
        *ret_mount_len = strlen(m.point);
        found = true;
    }
    if (f)
        (void)fclose(f);
    return found;
}

static uint64_t version_least(const char *root, const char *process, const struct cgroup_names *n,
                              cgroup_fn *ask)
{
    char path[LINE_BYTES], dir[2 * LINE_BYTES];
    size_t mount_len = 0; /* gcc 11 cannot see that it is set */

    if (!cgroup_path(root, process, n, path) || !cgroup_dir(root, n, path, dir, &mount_len))
        return UINT64_MAX;
    return cgroups_least(root, dir, mount_len, n, ask);
}

uint64_t zb_sysmem_left(const char *root)
{
    uint64_t left = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE), kib;

    if (read_number(root, "/proc", "meminfo", "MemAvailable", &kib))
        left = kib * ZB_KIB;
    left = zb_min_u64(left, version_least(root, "/proc/self", &cgroup_v2, cgroup_left));
    return zb_min_u64(left, version_least(root, "/proc/self", &cgroup_v1, cgroup_left));
}

uint64_t zb_sysmem_limit(const char *root, int pid)
{
    char process[32] = "/proc/self";

    if (pid > 0)
        (void)snprintf(process, sizeof(process), "/proc/%d", pid);
    return zb_min_u64(version_least(root, process, &cgroup_v2, cgroup_limit),
                      version_least(root, process, &cgroup_v1, cgroup_limit));
}

uint64_t zb_sysmem_resident(int pid)
{
    unsigned long long pages;
    char path[64];
    FILE *f;

    (void)snprintf(path, sizeof(path), "/proc/%d/statm", pid);
    f = fopen(path, "re");
    if (!f || fscanf(f, "%*u %llu", &pages) != 1)
        pages = 0;
    if (f)
        (void)fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

int zb_numa_node(const char *folder)
{
    char path[PATH_MAX], text[16] = "", *end;
    long node;
    FILE *f;

    if ((size_t)snprintf(path, sizeof(path), "%s/numa_node", folder) >= sizeof(path))
        return -1;
    f = fopen(path, "re");
    if (!f)
        return -1;
    if (!fgets(text, sizeof(text), f))
        text[0] = '\0';
    (void)fclose(f);
    node = strtol(text, &end, 10);
    return end != text && node >= 0 && node < NODES_MAX ? (int)node : -1;
}
