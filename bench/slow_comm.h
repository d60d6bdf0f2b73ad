/*
 * slow_comm.h - collectives of a link of a known rate, for benches: a backend around another one,
 * which does the work.
 */
#ifndef ZBENCH_SLOW_COMM_H
#define ZBENCH_SLOW_COMM_H

#include "client/zero/zc_zero.h"

/** A collective of `inner` is over when inner says so, and not before the link has moved its bytes:
 * those that a rank sends, (world - 1) * slice_bytes, at `rate` bytes a second and latency_ns
 * beside, one collective after the other. Closing it closes inner. NULL: no memory; inner is the
 * caller's then. */
struct zc_comm *zbench_slow_comm(struct zc_comm *inner, uint64_t rate, uint64_t latency_ns);

#endif
