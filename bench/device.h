/*
 * device.h - the GPU that a subcommand measures.
 */
#ifndef ZBENCH_DEVICE_H
#define ZBENCH_DEVICE_H

#include "bench/zbench.h"
#include "kernels/gpu.h"

/** Opens a device and a stream on it, and notes which device it is: results of an emulated one say
 * nothing about a GPU. 0, or as zk_gpu_open(). The caller closes what was opened, even after a
 * failure. */
int zbench_device_open(struct zbench *z, const char *name, struct zk_gpu **ret,
                       struct zk_gpu_stream **ret_stream);

#endif
