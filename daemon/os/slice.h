/*
 * slice.h - how soon and for how long a thread runs when processors are scarce.
 */
#ifndef ZSD_SLICE_H
#define ZSD_SLICE_H

#include <stdint.h>

/**
 * Asks for shorter and more frequent turns on the processor for the calling thread: others wait for
 * its answers. Its share of the processor stays the same, and no privilege is needed. From Linux 6.12
 * on (sched_setattr(2), sched_runtime of SCHED_OTHER); older kernels ignore it. Threads that are
 * started afterwards inherit it.
 *
 * @param ns  100,000 to 100,000,000: the kernel clamps
 * @return 0; a negative errno, and nothing has changed
 */
int zsd_slice_set(uint64_t ns);

#endif
