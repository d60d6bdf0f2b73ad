/*
 * check_memory.c - is there as much memory as the budgets promise?
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/sysmem.h"
#include "base/util.h"
#include "client/zctl/doctor/check.h"

/** "host_bytes is 16.0 GiB", or what auto comes to. */
static const char *budget_text(const struct doctor_machine *m, char *text, size_t bytes)
{
    bool automatic = m->conf.host_bytes == DOCTOR_AUTO && !m->daemon.answers;

    (void)snprintf(text, bytes, "host_bytes is %s%s", zb_size_text(m->host_bytes).s,
                   automatic ? " (auto)" : "");
    return text;
}

void doctor_memory(const struct doctor_machine *m, struct doctor_finding *f)
{
    char budget[64];

    (void)budget_text(m, budget, sizeof(budget));
    if (m->memory == 0)
        doctor_found(f, DOCTOR_SKIPPED, "the memory of this machine is not known");
    else if (m->host_bytes > m->memory)
        doctor_found(f, DOCTOR_FAILED, "%s, and this machine has %s", budget,
                     zb_size_text(m->memory).s);
    else if (m->host_bytes > m->available && m->available > 0 && m->nprocesses == 0 &&
             !m->daemon.answers)
        doctor_found(f, DOCTOR_ADVICE, "%s, and only %s of %s is available", budget,
                     zb_size_text(m->available).s, zb_size_text(m->memory).s);
    else
        doctor_found(f, DOCTOR_OK, "%s of %s", budget, zb_size_text(m->memory).s);
}

/** MemoryMax of a unit: a size, or a percentage of the memory; UINT64_MAX: none. */
static uint64_t unit_limit(const struct doctor_machine *m)
{
    const char *text = m->unit.memory_max;
    uint64_t bytes = UINT64_MAX;

    if (!m->service || *text == '\0')
        return UINT64_MAX;
    if (text[strlen(text) - 1] == '%')
        return (uint64_t)((double)m->memory * strtod(text, NULL) / 100);
    (void)zb_size_parse(text, &bytes, NULL); /* unchanged by "infinity" */
    return bytes;
}

void doctor_cgroup(const struct doctor_machine *m, struct doctor_finding *f)
{
    uint64_t unit = unit_limit(m), limit = zb_sysmem_limit(m->root, (int)m->daemon.pid);
    bool of_unit = unit < limit;
    char budget[64];

    limit = zb_min_u64(limit, unit);
    (void)budget_text(m, budget, sizeof(budget));
    if (limit == UINT64_MAX || (m->memory > 0 && limit >= m->memory))
        doctor_found(f, DOCTOR_OK, "no limit below the memory of the machine");
    else if (m->host_bytes >= limit)
        doctor_found(f, DOCTOR_FAILED, "%s, and %s allows %s", budget,
                     of_unit ? "MemoryMax of the unit" : "the memory cgroup",
                     zb_size_text(limit).s);
    else
        doctor_found(f, DOCTOR_OK, "%s of the %s that %s allows", budget, zb_size_text(limit).s,
                     of_unit ? "MemoryMax of the unit" : "the memory cgroup");
}

/** Whether a daemon with the configuration that doctor reads is yet to start. */
static bool budget_planned(const struct doctor_machine *m)
{
    for (size_t i = 0; i < m->nprocesses; i++)
        if (m->processes[i].configured)
            return false;
    return m->conf_path[0] != '\0' && !m->daemon.answers;
}

void doctor_budgets(const struct doctor_machine *m, struct doctor_finding *f)
{
    bool planned = budget_planned(m), unseen = m->daemon.answers && m->daemon.pid == 0;
    uint64_t all = (planned ? m->host_bytes : 0) + (unseen ? m->daemon.host_bytes : 0);
    size_t automatic = planned && m->conf.host_bytes == DOCTOR_AUTO;
    size_t n = m->nprocesses + planned + unseen;

    for (size_t i = 0; i < m->nprocesses; i++) {
        const struct doctor_process *p = &m->processes[i];

        automatic += p->automatic;
        all += p->host_bytes > 0 ? p->host_bytes : m->memory / ZB_HOST_SHARE;
    }
    if (n == 0)
        doctor_found(f, DOCTOR_SKIPPED, "no daemon runs");
    else if (n > 1 && m->memory > 0 && all > m->memory)
        doctor_found(f, DOCTOR_FAILED, "%zu daemons promise %s, and this machine has %s", n,
                     zb_size_text(all).s, zb_size_text(m->memory).s);
    else if (automatic > 1)
        doctor_found(f, DOCTOR_ADVICE,
                     "%zu daemons have host_bytes = auto, and promise the same memory", automatic);
    else
        doctor_found(f, DOCTOR_OK, "%zu daemon%s, %s", n, n > 1 ? "s" : "", zb_size_text(all).s);
}

void doctor_overcommit(const struct doctor_machine *m, struct doctor_finding *f)
{
    uint64_t mode, limit, used, left;

    if (!tree_number(m->root, "/proc/sys/vm/overcommit_memory", NULL, &mode)) {
        doctor_found(f, DOCTOR_SKIPPED, "vm.overcommit_memory cannot be read");
        return;
    }
    if (mode != 2 || !tree_number(m->root, "/proc/meminfo", "CommitLimit", &limit) ||
        !tree_number(m->root, "/proc/meminfo", "Committed_AS", &used)) {
        doctor_found(f, DOCTOR_OK, "vm.overcommit_memory is %" PRIu64, mode);
        return;
    }
    left = (limit - zb_min_u64(limit, used)) * ZB_KIB;
    if (m->daemon.answers || left >= m->host_bytes)
        doctor_found(f, DOCTOR_OK, "vm.overcommit_memory is 2, and %s may be mapped",
                     zb_size_text(left).s);
    else
        doctor_found(f, DOCTOR_FAILED,
                     "vm.overcommit_memory is 2, only %s may be mapped, and host_bytes is %s",
                     zb_size_text(left).s, zb_size_text(m->host_bytes).s);
}

void doctor_memfd(const struct doctor_machine *m, struct doctor_finding *f)
{
    uint64_t mode = 0;

    (void)tree_number(m->root, "/proc/sys/vm/memfd_noexec", NULL, &mode); /* Linux 6.3 */
    if (mode == 2)
        doctor_found(f, DOCTOR_FAILED,
                     "vm.memfd_noexec is 2: the kernel refuses the shared memory of arenas");
    else
        doctor_found(f, DOCTOR_OK, "vm.memfd_noexec is %" PRIu64, mode);
}

void doctor_huge_pages(const struct doctor_machine *m, struct doctor_finding *f)
{
    char text[128];

    if (!tree_line(m->root, "/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof(text)))
        doctor_found(f, DOCTOR_SKIPPED, "this kernel has no transparent huge pages");
    else
        doctor_found(f, strstr(text, "[never]") ? DOCTOR_ADVICE : DOCTOR_OK,
                     "transparent huge pages: %s", text);
}
