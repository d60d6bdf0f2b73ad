/*
 * turns.h - the rounds of a case: contestants take turns in mirrored order.
 *
 * MODEL. Contestants have letters, from A on, and a round is a word of them: "ABBA" is ours, the
 * reference twice, and ours again. A turn is one slice, which gives one or more values; the value
 * of a contestant in a round is the mean over its slices of that round.
 */
#ifndef ZBENCH_TURNS_H
#define ZBENCH_TURNS_H

#include "bench/zbench.h"

#define ZBENCH_WHO_MAX    4u
#define ZBENCH_VALUES_MAX 4u

/** One slice of contestant `who` (0: A): sets its values, which are 0 before. 0 or a negative
 *  errno, which ends the rounds. */
typedef int zbench_slice_fn(void *bench, unsigned who, double *ret);

struct zbench_series {
    double of[ZBENCH_WHO_MAX][ZBENCH_VALUES_MAX][ZBENCH_ROUNDS_MAX];
};

/** Runs at most ZBENCH_ROUNDS_MAX rounds, of slices that give `values` each. What a slice failed
 * with is returned. */
int zbench_turns(struct zbench_series *ret, const char *order, unsigned values, unsigned rounds,
                 zbench_slice_fn *slice, void *bench);

/** Runs rounds of one value each, and adds a row: A against B. */
int zbench_compare(struct zbench *z, const struct zbench_row *named, const char *order,
                   unsigned rounds, zbench_slice_fn *slice, void *bench);

#endif
