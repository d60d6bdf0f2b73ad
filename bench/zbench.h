/*
 * zbench.h - what the subcommands of zbench share: rows of results, and the statistics in them.
 *
 * METHOD. Each claim is a ratio to a reference that was measured in the same run. A case is
 * repeated in rounds; within a round, ours and the reference alternate in mirrored order (A B B A),
 * so that a machine that slowly becomes faster or slower treats both alike. Every round gives one
 * value of each.
 */
#ifndef ZBENCH_H
#define ZBENCH_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define ZBENCH_ROUNDS_MAX 512

struct zbench_row {
    char name[64]; /* a path: "read/1M/uring/fio" */
    const char *unit, *reference_name;
    double value, reference; /* medians over the rounds */
    bool lower;              /* a lower value is better */
    double spread;           /* (max - min) / median of the values */
    /* Of the rounds' own ratios: their median, and an interval that holds the true median with
     * probability `confidence` (order statistics; below 0.95 when there are fewer than 6 rounds).
     */
    double paired, low, high, confidence;
};

/** One run of one subcommand. */
struct zbench {
    const char *bench;
    bool json;
    struct zbench_row *rows;
    size_t count, room;
    struct zb_err err; /* main() prints it */
};

/** Median of n >= 1 values, in any order. */
double zbench_median(const double *values, unsigned n);

/** (max - min) / median; 0 when the median is. */
double zbench_spread(const double *values, unsigned n);

/** The tightest pair of order statistics that holds the median with probability >= 0.95, or the
 *  least and the greatest of few values: returns the probability. */
double zbench_interval(const double *values, unsigned n, double *ret_low, double *ret_high);

/**
 * Fills the numbers of a row from n rounds (1 .. ZBENCH_ROUNDS_MAX) and appends it. The strings of
 * *named (name, unit, reference_name, lower) are the caller's; the last two stay valid.
 *
 * @return 0 or -ENOMEM
 */
int zbench_add(struct zbench *z, const struct zbench_row *named, const double *values,
               const double *references, unsigned n);

/** A line for people: on standard output, or on standard error beside --json. */
void zbench_note(const struct zbench *z, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/** Prints all rows: a table, or with --json the object of README.md. */
int zbench_print(struct zbench *z);

void zbench_done(struct zbench *z);

/** CPU seconds of this process so far, all threads. */
double zbench_cpu_s(void);

/* The subcommands: 0, -EINVAL for bad usage, or another negative errno; z->err has the sentence. */
int zbench_io(struct zbench *z, int argc, char **argv);
int zbench_adam(struct zbench *z, int argc, char **argv);
int zbench_fetch(struct zbench *z, int argc, char **argv);
int zbench_fetch_gpu(struct zbench *z, int argc, char **argv); /* the same with --gpu */
int zbench_catalog(struct zbench *z, int argc, char **argv);
int zbench_comm(struct zbench *z, int argc, char **argv);
int zbench_commit(struct zbench *z, int argc, char **argv);
int zbench_overlap(struct zbench *z, int argc, char **argv);
int zbench_plan(struct zbench *z, int argc, char **argv);
int zbench_step(struct zbench *z, int argc, char **argv);
int zbench_gpu(struct zbench *z, int argc, char **argv);
int zbench_train(struct zbench *z, int argc, char **argv);
int zbench_snapshot(struct zbench *z, int argc, char **argv);
int zbench_share(struct zbench *z, int argc, char **argv);

#endif
