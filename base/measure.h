/*
 * measure.h - measures the speed of memory and of a drive, in a second or two. The result is good
 * enough for a plan; it is not a benchmark.
 *
 * MODEL. A few threads do the same work until the time is up; the rate is the bytes moved, divided
 * by the time. Memory: the caller's function, on buffers far larger than the caches.
 * kernels/measure.c uses the optimizer's step, since a copy says little about it: on some
 * processors a step is a third faster than a copy. The drive: pages of an unnamed file (O_DIRECT),
 * every thread reading one and writing the next, as a step does. So the rate is that of this mix,
 * and is used for both directions.
 *
 * Blocks; any thread.
 */
#ifndef ZB_MEASURE_H
#define ZB_MEASURE_H

#include <stdint.h>

#include "base/err.h"

#define ZB_MEASURE_DRIVE_BYTES (UINT64_C(512) << 20) /* of the file */

/** Work on memory. Each thread has its own room, on huge pages, already touched. */
struct zb_measure_work {
    uint64_t room_bytes;
    void (*begin)(const void *arg, uint8_t *room);
    uint64_t (*turn)(const void *arg, uint8_t *room, uint64_t turn); /* bytes moved: a few MiB */
    const void *arg;
};

/** Bytes per second, read and written together, of this many threads: 0, -ENOMEM or -EAGAIN. */
int zb_measure_memory(const struct zb_measure_work *work, unsigned threads, double *ret,
                      struct zb_err *err);

/** Makes an unnamed file, filled, for calls of zb_measure_drive(). Returns its descriptor, or a
 * negative errno: -EINVAL or -EOPNOTSUPP if the file system lacks O_DIRECT or O_TMPFILE. */
int zb_measure_open(const char *dir, struct zb_err *err);
/** Bytes per second, read and written together, in pages of io_bytes (a multiple of 4096) for ns
 * nanoseconds: 0 or a negative errno. */
int zb_measure_drive(int fd, uint64_t io_bytes, uint64_t ns, double *ret, struct zb_err *err);

#endif
