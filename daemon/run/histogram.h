/*
 * histogram.h - histograms of durations, for `zctl metrics`.
 *
 * MODEL. The bounds are the same for all: 1, 2 and 5 in each decade, from a microsecond to 100
 * seconds. A duration is counted in the first bucket whose bound it does not exceed, and in the
 * last bucket, which has no bound, if it exceeds all. Counters only grow. The memory is constant.
 *
 * Loop thread only.
 */
#ifndef ZSD_HISTOGRAM_H
#define ZSD_HISTOGRAM_H

#include <stdint.h>

#define ZSD_BOUNDS 25u

/** The bounds, in ns, ascending. */
extern const uint64_t zsd_bounds_ns[ZSD_BOUNDS];

struct zsd_histogram {
    uint64_t counts[ZSD_BOUNDS + 1]; /* by bucket; the last one: above all bounds */
    uint64_t sum_ns;
};

void zsd_histogram_add(struct zsd_histogram *h, uint64_t ns);
/** Number of durations counted. */
uint64_t zsd_histogram_count(const struct zsd_histogram *h);

/** What is measured: daemon->times. */
enum zsd_time {
    ZSD_TIME_READ,      /* a read, from the engine's accepting it to its end: disk/pio.c */
    ZSD_TIME_WRITE,     /* the same for a write */
    ZSD_TIME_FLUSH,     /* the same for a flush */
    ZSD_TIME_COMMIT,    /* a commit of a job, from its start until it is durable: op/commit.c */
    ZSD_TIME_FETCH,     /* a fetch, from its arrival to its answer: op/fetch.c */
    ZSD_TIME_TURN_CPU,  /* a turn of the loop: CPU time of its thread: run/turns.c */
    ZSD_TIME_TURN_WALL, /* the same by the clock, without the wait */
    ZSD_TIMES
};

#endif
