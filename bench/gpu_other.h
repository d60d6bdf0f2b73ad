/*
 * gpu_other.h - a process that stands for a daemon, and copies into GPU memory exported to it: the
 * same messages (a unit's number there, a code back), the same mapping of device memory, pinned
 * memory of its own.
 */
#ifndef ZBENCH_GPU_OTHER_H
#define ZBENCH_GPU_OTHER_H

#include "bench/child.h"
#include "kernels/gpu.h"

/** Forks it. Before this process opens a device: CUDA does not survive a fork. zbench_child_end()
 *  ends it. */
int zbench_other_start(struct zbench_child *c, const char *device, struct zb_err *err);
/** Sends it the memory, of whole units, and waits until it has mapped that. -ENOTSUP: the driver
 *  does not share memory. */
int zbench_other_begin(const struct zbench_child *c, struct zk_gpu_mem *to, uint64_t unit_bytes,
                       struct zb_err *err);
/** Asks for a copy of this unit. */
int zbench_other_ask(const struct zbench_child *c, uint32_t unit, struct zb_err *err);
/** Waits for the oldest copy that was asked for. */
int zbench_other_answer(const struct zbench_child *c, struct zb_err *err);

#endif
