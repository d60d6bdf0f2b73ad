/*
 * slice.c - sched_setattr(2), which glibc 2.36 has no wrapper for.
 */
#include "daemon/os/slice.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As in linux/sched/types.h, which cannot be included together with sched.h. */
struct slice_attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

int zsd_slice_set(uint64_t ns)
{
    struct slice_attr attr = { 0 };

    if (syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) < 0)
        return -errno;
    attr.runtime = ns;
    return syscall(SYS_sched_setattr, 0, &attr, 0) < 0 ? -errno : 0;
}
