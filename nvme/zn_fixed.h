/*
 * zn_fixed.h - a device of a fixed rate, in memory: for benchmarks of code that uses a drive,
 * where real drives are too noisy.
 *
 * MODEL. The device moves rate_bytes bytes per second in all, reads and writes together, one
 * request after the other in the order of submission, and each takes at least latency_ns. The
 * moments are computed, so the rate is exact while the requests in flight cover the 0.1 ms or so
 * (more on a busy machine) that a wake-up is late. What it holds is real, and gone when the engine
 * is closed.
 *
 * NO COPIES. A drive moves bytes without the processor, and so does this device if allowed: a read
 * with zn_io.lend returns the device's own memory, and a write from there moves it to its new place
 * by changing a table. So a program that reads, changes and writes pages pays no more processor
 * time than with a drive. All other requests are copied by the thread that reaps: zn_fixed_copied()
 * counts these bytes.
 *
 * Changes to memory that was read with `lend` are changes on the device: the old contents cannot be
 * read any more, and after the memory is written elsewhere its old place is undefined. So this
 * device is not for data that must survive a failure; nothing survives the engine.
 */
#ifndef ZN_FIXED_H
#define ZN_FIXED_H

#include "nvme/zn.h"

struct zn_fixed_options {
    uint64_t size_bytes; /* a multiple of 4096; memory is taken as it is written to */
    uint64_t rate_bytes; /* a second, at least 1 */
    uint64_t latency_ns;
    unsigned depth; /* 0: ZN_DEPTH_DEFAULT */
};

/** 0; -EINVAL an option, -ENOMEM, ...: err has the message. */
int zn_fixed_open(struct zn_engine **ret, const struct zn_fixed_options *options,
                  struct zb_err *err);

/** Whether this is a device of a fixed rate. */
bool zn_is_fixed(const struct zn_engine *e);

/** Bytes that were copied since it was opened. */
uint64_t zn_fixed_copied(const struct zn_engine *e);

#endif
