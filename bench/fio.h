/*
 * fio.h - fio as a reference: one slice of it, with the settings that make it comparable with ours
 * (README.md says which, and why).
 */
#ifndef ZBENCH_FIO_H
#define ZBENCH_FIO_H

#include <stdint.h>

#include "bench/zbench.h"

struct zbench_fio {
    const char *path; /* exists already; bytes [offset, offset + size) are used */
    const char *rw;   /* fio's word: randread, randwrite, randrw */
    uint32_t block_bytes;
    unsigned depth;
    bool direct, fixed_bufs;
    uint64_t offset_bytes, size_bytes;
    double seconds, ramp_s; /* measured time, and warm-up before it */
};

/** Finds fio and notes its version; -ENOENT. */
int zbench_fio_find(struct zbench *z);
/** Notes the command line. */
void zbench_fio_print(const struct zbench *z, const struct zbench_fio *f);
/** *ret_cpu_us: CPU microseconds of one request; may be NULL. */
int zbench_fio_run(struct zbench *z, const struct zbench_fio *f, double *ret_mib_s,
                   double *ret_cpu_us);
/** Whether buffers may be locked in memory: --fixedbufs. */
bool zbench_fio_may_lock(uint64_t bytes);

#endif
