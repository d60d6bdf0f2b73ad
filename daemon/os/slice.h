/*
 * slice.h - how soon and for how long a thread runs when processors are scarce.
 */
#ifndef ZSD_SLICE_H
#define ZSD_SLICE_H

#include <stdint.h>

/**
 * Requests shorter and more frequent turns on the processor for the calling thread, for a thread
 * whose answers others wait for. Its share of the processor stays the same, and no privilege is
 * needed. Works from Linux 6.12 on (sched_setattr(2), sched_runtime of SCHED_OTHER); older kernels
 * ignore it. Threads that are started later inherit it.
 *
 * @param ns  100,000 to 100,000,000: the kernel clamps
 * @return 0; a negative errno, and nothing has changed
 */
int zsd_slice_set(uint64_t ns);

#endif
