/*
 * io_slice.h - runs one of our I/O engines for a fixed time, with as many requests in flight as
 * allowed. bench_io.c has the model.
 */
#ifndef ZBENCH_IO_SLICE_H
#define ZBENCH_IO_SLICE_H

#include <signal.h>
#include <stdint.h>

#include "bench/zbench.h"
#include "nvme/zn.h"

#define IO_INFLIGHT  (32 * ZB_MIB)
#define IO_RAMP_S    0.05
#define IO_BLOCK_MIN ZB_MIB
#define IO_BLOCK_MAX (4 * ZB_MIB)

enum io_mix { IO_READ, IO_WRITE, IO_MIXED };

extern const char *const zbench_io_mixes[];

/* The file that is measured. */
struct io_file {
    struct zbench *z;
    char path[4096];
    uint64_t size_bytes;
    char *fill;  /* IO_INFLIGHT bytes that no device can compress */
    bool direct; /* the engine that ran last has O_DIRECT */
    uint64_t at; /* in order: where the last slice ended */
    uint64_t seed;
};

/* How a slice of ours is run. */
struct io_how {
    const char *engine; /* NULL: the simulated device */
    uint64_t sim_bytes_s;
    bool crc, small_pages, in_order;
};

struct io_slice {
    double mib_s, cpu_us; /* CPU microseconds of one request */
};

/** Set by a signal handler: slices end at once, without a message. */
extern volatile sig_atomic_t zbench_io_stop;

static inline uint64_t io_block_count(const struct io_file *f, uint32_t block_bytes)
{
    return (f->size_bytes - ZN_DATA_START) / block_bytes;
}

static inline unsigned io_depth(uint32_t block_bytes)
{
    return (unsigned)(IO_INFLIGHT / block_bytes);
}

/** Fills f->fill with random bytes; the caller frees it. */
int zbench_io_fill(struct io_file *f);
/** A slice of ours; seconds 0 fills the file, each block once. */
int zbench_io_slice(struct io_file *f, const struct io_how *how, enum io_mix mix,
                    uint32_t block_bytes, double seconds, struct io_slice *ret);

#endif
