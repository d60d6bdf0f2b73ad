/*
 * check_limits.c - limits of the daemon's process, its CPUs and nodes, and io_uring.
 *
 * The limits are those of the daemon that answers, if its process can be seen; else those of the
 * unit; else those of this session.
 */
#include <inttypes.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/util.h"
#include "client/zctl/doctor/check.h"

#define FILES_PER_CLIENT 4u /* as daemon/startup.c */
#define FILES_BESIDE     512u
#define FILES_LEAST      48u

/** The directory of the daemon's process in /proc, or that of this one. */
static void process_path(const struct doctor_machine *m, const char *file, char ret[64])
{
    if (m->daemon.pid > 0)
        (void)snprintf(ret, 64, "/proc/%u/%s", m->daemon.pid, file);
    else
        (void)snprintf(ret, 64, "/proc/self/%s", file);
}

struct limit {
    uint64_t value; /* the hard limit; UINT64_MAX: none */
    const char *whose;
};

/** "65536", "8M", "infinity", "1024:65536": systemd.exec(5). */
static uint64_t unit_value(const char *text)
{
    const char *hard = strchr(text, ':');
    uint64_t value = UINT64_MAX;

    (void)zb_size_parse(hard ? hard + 1 : text, &value, NULL); /* unchanged by "infinity" */
    return value;
}

/** `key` as in /proc/PID/limits. False: unknown. */
static bool limit_find(const struct doctor_machine *m, const char *key, const char *unit,
                       struct limit *ret)
{
    char path[64], text[256], hard[32];

    if (m->daemon.pid == 0 && m->service) {
        *ret = (struct limit){ UINT64_MAX, "the unit" };
        if (*unit == '\0')
            return false; /* systemd's default */
        ret->value = unit_value(unit);
        return true;
    }
    process_path(m, "limits", path);
    if (!tree_value(m->root, path, key, text, sizeof(text)) || sscanf(text, "%*s %31s", hard) != 1)
        return false;
    *ret = (struct limit){ UINT64_MAX, m->daemon.pid > 0 ? "the daemon" : "this session" };
    if (strcmp(hard, "unlimited") != 0)
        ret->value = strtoull(hard, NULL, 10);
    return true;
}

/** Whether a process may lock memory whatever its limit is. A unit's may not. */
static bool may_lock(const struct doctor_machine *m)
{
    char path[64], text[64];

    process_path(m, "status", path);
    return (m->daemon.pid > 0 || !m->service) &&
           tree_value(m->root, path, "CapEff", text, sizeof(text)) &&
           (strtoull(text, NULL, 16) >> CAP_IPC_LOCK & 1);
}

void doctor_memlock(const struct doctor_machine *m, struct doctor_finding *f)
{
    bool gpu = m->conf.gpu_bytes > 0;
    struct limit limit;

    if (!gpu && (strcmp(m->conf.io, "threads") == 0 || strcmp(m->conf.io, "fixed") == 0))
        doctor_found(f, DOCTOR_SKIPPED, "no GPU tier and no io_uring");
    else if (!limit_find(m, "Max locked memory", m->unit.memlock, &limit))
        doctor_found(f, DOCTOR_SKIPPED, "the limit (RLIMIT_MEMLOCK) is not known");
    else if (limit.value == UINT64_MAX || may_lock(m))
        doctor_found(f, DOCTOR_OK, "%s may lock any memory", limit.whose);
    else if (limit.value >= m->host_bytes)
        doctor_found(f, DOCTOR_OK, "%s may lock %s", limit.whose, zb_size_text(limit.value).s);
    else
        doctor_found(f, DOCTOR_ADVICE, "%s may lock %s, less than host_bytes (%s): %s", limit.whose,
                     zb_size_text(limit.value).s, zb_size_text(m->host_bytes).s,
                     gpu ? "memory for the GPU should be pinned"
                         : "io_uring cannot register all buffers");
}

void doctor_nofile(const struct doctor_machine *m, struct doctor_finding *f)
{
    uint64_t want = (uint64_t)m->conf.clients_max * FILES_PER_CLIENT + FILES_BESIDE;
    struct limit limit;

    if (!limit_find(m, "Max open files", m->unit.nofile, &limit))
        doctor_found(f, DOCTOR_SKIPPED, "the limit (RLIMIT_NOFILE) is not known");
    else if (limit.value < FILES_LEAST)
        doctor_found(f, DOCTOR_FAILED,
                     "%s may open %" PRIu64 " files (RLIMIT_NOFILE), and zshardd needs %u",
                     limit.whose, limit.value, FILES_LEAST);
    else if (limit.value < want)
        doctor_found(f, DOCTOR_ADVICE,
                     "%s may open %" PRIu64 " files, and clients_max=%u may need %" PRIu64,
                     limit.whose, limit.value, m->conf.clients_max, want);
    else
        doctor_found(f, DOCTOR_OK, "%s may open enough files", limit.whose);
}

/* ---- io_uring */

static const char *uring_sysctl(const struct doctor_machine *m)
{
    uint64_t disabled = 0, group = UINT64_MAX;

    (void)tree_number(m->root, "/proc/sys/kernel/io_uring_disabled", NULL, &disabled);
    (void)tree_number(m->root, "/proc/sys/kernel/io_uring_group", NULL, &group);
    if (disabled == 2)
        return "kernel.io_uring_disabled is 2";
    if (disabled == 1 && m->daemon_user.uid != 0 &&
        !doctor_person_in(&m->daemon_user, (uint32_t)zb_min_u64(group, UINT32_MAX)))
        return "kernel.io_uring_disabled is 1, and the daemon's user is not in "
               "kernel.io_uring_group";
    return NULL;
}

void doctor_uring(const struct doctor_machine *m, struct doctor_finding *f)
{
    enum doctor_level bad = strcmp(m->conf.io, "uring") == 0 ? DOCTOR_FAILED : DOCTOR_ADVICE;
    const char *why = uring_sysctl(m);

    if (strcmp(m->conf.io, "threads") == 0 || strcmp(m->conf.io, "fixed") == 0) {
        doctor_found(f, DOCTOR_SKIPPED, "io = %s", m->conf.io);
    } else if (why) {
        doctor_found(f, bad, "%s", why);
        doctor_fix(f,
                   "Run: sysctl kernel.io_uring_disabled=0. With io = auto the daemon uses threads "
                   "meanwhile, which take more CPU time.");
    } else if (m->answers.uring[0] == '!') {
        doctor_found(f, bad, "io_uring_setup() fails: %.200s (a container's seccomp profile?)",
                     m->answers.uring + 1);
        doctor_fix(
            f, "Allow io_uring in the container (its seccomp profile). With io = auto the daemon "
               "uses threads meanwhile, which take more CPU time.");
    } else {
        doctor_found(f, m->answers.uring[0] ? DOCTOR_OK : DOCTOR_SKIPPED, "%s",
                     m->answers.uring[0] ? "the kernel allows it" : "the kernel did not answer");
    }
}

/* ---- nodes and CPUs */

static bool set_of(const struct doctor_machine *m, const char *path, const char *key,
                   struct tree_set *ret)
{
    char text[TREE_LINE];

    return tree_value(m->root, path, key, text, sizeof(text)) && tree_set(text, ret);
}

void doctor_numa(const struct doctor_machine *m, struct doctor_finding *f)
{
    static const struct tree_set none = { .has = { false } };
    struct tree_set memory, cpus, allowed, named;
    char status[64];
    int node;

    if (!set_of(m, "/sys/devices/system/node/has_memory", "", &memory) ||
        tree_set_outside(&memory, &none) < 0) {
        doctor_found(f, DOCTOR_SKIPPED, "this kernel shows no NUMA nodes");
        return;
    }
    process_path(m, "status", status);
    if (!set_of(m, status, "Mems_allowed_list", &allowed))
        allowed = memory;
    if (!set_of(m, "/sys/devices/system/node/has_cpu", "", &cpus))
        cpus = none;
    if (!tree_set(m->conf.numa, &named)) /* off, auto */
        named = none;
    if ((node = tree_set_outside(&named, &memory)) >= 0) {
        doctor_found(f, DOCTOR_FAILED, "numa = \"%.60s\": node %d has no memory", m->conf.numa,
                     node);
    } else if ((node = tree_set_outside(&named, &allowed)) >= 0) {
        doctor_found(f, DOCTOR_FAILED, "numa = \"%.60s\": the CPU set does not allow node %d",
                     m->conf.numa, node);
    } else if ((node = tree_set_outside(&cpus, &memory)) >= 0) {
        doctor_found(f, DOCTOR_ADVICE, "node %d has CPUs and no memory", node);
        doctor_fix(f, "Put memory modules into its slots, or keep the daemon off it (cpus, numa).");
    } else if ((node = tree_set_outside(&memory, &allowed)) >= 0) {
        doctor_found(f, DOCTOR_ADVICE, "the CPU set does not allow the memory of node %d", node);
        doctor_fix(f,
                   "Allow all nodes (cpuset.mems, AllowedMemoryNodes=), or count its memory out of "
                   "host_bytes.");
    } else {
        doctor_found(f, DOCTOR_OK, "every node has memory that may be used");
    }
}

void doctor_cpus(const struct doctor_machine *m, struct doctor_finding *f)
{
    struct tree_set named, allowed;
    char status[64];
    int cpu;

    process_path(m, "status", status);
    if (m->conf.cpus[0] == '\0')
        doctor_found(f, DOCTOR_SKIPPED, "the daemon uses all that it may");
    else if (!tree_set(m->conf.cpus, &named) || !set_of(m, status, "Cpus_allowed_list", &allowed))
        doctor_found(f, DOCTOR_SKIPPED, "the CPUs that may be used are not known");
    else if ((cpu = tree_set_outside(&named, &allowed)) >= 0)
        doctor_found(f, DOCTOR_FAILED, "cpus = \"%.60s\": CPU %d is not there, or may not be used",
                     m->conf.cpus, cpu);
    else
        doctor_found(f, DOCTOR_OK, "%.100s", m->conf.cpus);
}
