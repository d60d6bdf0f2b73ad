/*
 * device.h - the GPU that a subcommand measures.
 */
#ifndef ZBENCH_DEVICE_H
#define ZBENCH_DEVICE_H

#include "bench/zbench.h"
#include "kernels/gpu.h"

/** Opens a device and a stream on it, and notes what it is: an emulated one says nothing about a
 * GPU. 0, or as zk_gpu_open(): what was opened is the caller's to close. */
int zbench_device_open(struct zbench *z, const char *name, struct zk_gpu **ret,
                       struct zk_gpu_stream **ret_stream);

#endif
