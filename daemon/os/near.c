/*
 * near.c - see near.h. mbind(2) is called directly: hwloc needs the topology of the machine for it,
 * which is not read if `numa` is off.
 */
#include "daemon/os/near.h"

#include <errno.h>
#include <limits.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/util.h"
#include "daemon/os/numa.h"

#define POLICY_PREFERRED 1 /* MPOL_PREFERRED of linux/mempolicy.h */
#define MASK_BITS        (sizeof(unsigned long) * CHAR_BIT)

bool zsd_near_uses(const struct zsd_near *n, int node)
{
    return n->on && node >= 0 && node < ZSD_NEAR_NODES &&
           (!n->numa || zsd_numa_has(n->numa, (unsigned)node));
}

static int near_kernel(void *memory, uint64_t bytes, int node)
{
    unsigned long mask[ZSD_NEAR_NODES / MASK_BITS] = { 0 };

    mask[(unsigned)node / MASK_BITS] = 1UL << (unsigned)node % MASK_BITS;
    /* the kernel reads one bit less than it is told */
    return syscall(SYS_mbind, memory, (unsigned long)bytes, POLICY_PREFERRED, mask,
                   (unsigned long)ZSD_NEAR_NODES + 1, 0U) == 0
               ? 0
               : -errno;
}

int zsd_near_bind(const struct zsd_near *n, void *memory, uint64_t bytes, int node)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t front = zb_round_up((uintptr_t)memory, page) - (uintptr_t)memory;

    if (bytes < front + page)
        return 0;
    memory = (uint8_t *)memory + front;
    bytes = (bytes - front) / page * page;
    return n->bind ? n->bind(n->arg, memory, bytes, node) : near_kernel(memory, bytes, node);
}
