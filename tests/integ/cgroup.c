#include "tests/integ/cgroup.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The files and keys of the two versions. */
static const struct names {
    const char *limit, *swap, *swap_limit, *peak, *events, *kills;
    const char *at_limit_file, *at_limit; /* NULL key: the file holds only the number */
    const char *anon, *shmem, *kernel;    /* of memory.stat; NULL: none */
} names[] = {
    [1] = { "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", NULL,
            "memory.max_usage_in_bytes", "memory.oom_control", "oom_kill", "memory.failcnt", NULL,
            "total_rss", "total_shmem", NULL },
    [2] = { "memory.max", "memory.swap.max", "0", "memory.peak", "memory.events", "oom_kill",
            "memory.events", "max", "anon", "shmem", "kernel" },
};

static FILE *cg_open(const struct cg_memory *cg, const char *file, const char *mode)
{
    char path[600];

    (void)snprintf(path, sizeof(path), "%s/%s", cg->dir, file);
    return fopen(path, mode);
}

static bool cg_write(const struct cg_memory *cg, const char *file, const char *text)
{
    FILE *f = cg_open(cg, file, "we");

    if (!f)
        return false;
    (void)fputs(text, f);
    return fclose(f) == 0;
}

/* The number of a line "key number", or a file's only number (key NULL); 0: there is none. */
static uint64_t cg_number(const struct cg_memory *cg, const char *file, const char *key)
{
    FILE *f = cg_open(cg, file, "re");
    char line[256];
    uint64_t found = 0;
    size_t len = key ? strlen(key) : 0;

    while (f && fgets(line, sizeof(line), f))
        if (!key || (strncmp(line, key, len) == 0 && line[len] == ' '))
            found = strtoull(line + len, NULL, 10);
    if (f)
        (void)fclose(f);
    return found;
}

/* Makes a cgroup below `parent`, with its memory limited. */
static bool cg_make(struct cg_memory *cg, const char *parent, unsigned version, uint64_t limit)
{
    char text[32];

    (void)snprintf(cg->dir, sizeof(cg->dir), "%.480s/zshard-%d", parent, (int)getpid());
    (void)snprintf(cg->procs, sizeof(cg->procs), "%s/cgroup.procs", cg->dir);
    (void)snprintf(text, sizeof(text), "%" PRIu64, limit);
    if (mkdir(cg->dir, 0755) != 0)
        return false;
    if (!cg_write(cg, names[version].limit, text)) {
        (void)rmdir(cg->dir);
        return false;
    }
    (void)cg_write(cg, names[version].swap,
                   names[version].swap_limit ? names[version].swap_limit : text);
    cg->version = version;
    return true;
}

/* Finds the mount point of the hierarchy with the memory controller; returns its version, or 0. */
static unsigned cg_mount(char *ret, size_t ret_bytes)
{
    FILE *f = fopen("/proc/self/mounts", "re");
    char line[1024], at[256], type[32], options[512];
    unsigned version = 0;

    while (f && fgets(line, sizeof(line), f)) {
        char controllers[320], text[512] = "";
        FILE *c;

        if (sscanf(line, "%*s %255s %31s %511s", at, type, options) != 3)
            continue;
        if (strcmp(type, "cgroup") == 0 && strstr(options, "memory")) {
            version = 1;
        } else if (strcmp(type, "cgroup2") == 0) {
            (void)snprintf(controllers, sizeof(controllers), "%s/cgroup.controllers", at);
            c = fopen(controllers, "re");
            if (c && fgets(text, sizeof(text), c) && strstr(text, "memory"))
                version = 2;
            if (c)
                (void)fclose(c);
        }
        if (version > 0) {
            (void)snprintf(ret, ret_bytes, "%s", at);
            break;
        }
    }
    if (f)
        (void)fclose(f);
    return version;
}

/* Our own path in that hierarchy: "" or "/...". */
static void cg_own(unsigned version, char *ret, size_t ret_bytes)
{
    FILE *f = fopen("/proc/self/cgroup", "re");
    char line[512];

    ret[0] = '\0';
    while (f && fgets(line, sizeof(line), f)) {
        char *controllers = strchr(line, ':'), *path;

        line[strcspn(line, "\n")] = '\0';
        path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        if (version == 1 ? strstr(controllers, "memory") != NULL : controllers[1] == '\0')
            (void)snprintf(ret, ret_bytes, "%s", strcmp(path, "/") == 0 ? "" : path);
    }
    if (f)
        (void)fclose(f);
}

bool cg_memory_open(struct cg_memory *cg, uint64_t limit_bytes, char *why, size_t why_bytes)
{
    char top[256], own[256], parent[520];
    unsigned version = cg_mount(top, sizeof(top));
    char *slash;

    *cg = (struct cg_memory){ .version = 0 };
    if (version == 0) {
        (void)snprintf(why, why_bytes,
                       "no memory cgroup can be made here: no hierarchy has memory");
        return false;
    }
    cg_own(version, own, sizeof(own));
    for (int i = 0; i < 2; i++) { /* in our own cgroup, else next to it */
        (void)snprintf(parent, sizeof(parent), "%s%s", top, own);
        if (cg_make(cg, parent, version, limit_bytes))
            return true;
        slash = strrchr(own, '/');
        if (!slash)
            break;
        *slash = '\0';
    }
    (void)snprintf(why, why_bytes, "no memory cgroup can be made here: in %.200s: %s", top,
                   strerror(errno));
    return false;
}

uint64_t cg_memory_kills(const struct cg_memory *cg)
{
    return cg_number(cg, names[cg->version].events, names[cg->version].kills);
}

uint64_t cg_memory_at_limit(const struct cg_memory *cg)
{
    return cg_number(cg, names[cg->version].at_limit_file, names[cg->version].at_limit);
}

uint64_t cg_memory_peak(const struct cg_memory *cg)
{
    return cg_number(cg, names[cg->version].peak, NULL);
}

uint64_t cg_memory_unfiled(const struct cg_memory *cg)
{
    const struct names *n = &names[cg->version];
    uint64_t sum = cg_number(cg, "memory.stat", n->anon) + cg_number(cg, "memory.stat", n->shmem);

    return n->kernel ? sum + cg_number(cg, "memory.stat", n->kernel)
                     : sum + cg_number(cg, "memory.kmem.usage_in_bytes", NULL);
}

void cg_memory_close(struct cg_memory *cg)
{
    if (cg->version > 0)
        (void)rmdir(cg->dir);
    cg->version = 0;
}
