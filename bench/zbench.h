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
#include <string.h>

#include "base/err.h"
#include "base/opt.h"

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

/** The value that `part` of them are at most as large as: 0 the least, 1 the greatest. */
double zbench_quantile(const double *values, unsigned n, double part);

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

/** A row with its name and without its numbers. */
struct zbench_row zbench_row(const char *unit, bool lower, const char *reference_name,
                             const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/** zbench_add() with a reference that is the same number in each round. */
int zbench_add_fixed(struct zbench *z, const struct zbench_row *named, const double *values,
                     double reference, unsigned n);

/** A line for people: on standard output, or on standard error beside --json. */
void zbench_note(const struct zbench *z, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/** Prints all rows: a table, or with --json the object of README.md. */
int zbench_print(struct zbench *z);

void zbench_done(struct zbench *z);

/** CPU seconds of this process so far, all threads. */
double zbench_cpu_s(void);

/**
 * A subcommand. Its options are read into a struct of `bytes`, which is zeros but for the defaults
 * of the rows; run() gets it, and returns 0, -EINVAL for bad usage, or another negative errno with
 * z->err set.
 */
struct zbench_cmd {
    const char *name, *help;
    const char *flag; /* NULL, or what must be among the words: another bench of the same name */
    const struct zb_opt *options;
    size_t bytes;
    int (*run)(struct zbench *z, void *bench);
};

extern const struct zbench_cmd zbench_adam, zbench_catalog, zbench_comm, zbench_commit,
    zbench_fetch, zbench_fetch_gpu, zbench_gpu, zbench_hostile, zbench_io, zbench_node,
    zbench_ortho, zbench_overlap, zbench_plan, zbench_ready, zbench_share, zbench_snapshot,
    zbench_steady, zbench_step, zbench_torch, zbench_train, zbench_turn_bounds;

/* Rows that many have; `type` is their struct. */
#define ZBENCH_DIR(type, folder)                                                \
    {                                                                           \
        "dir", ZB_OPT_TEXT, ZB_OPT_AT(type, dir), .arg = "DIR", .def = (folder) \
    }
#define ZBENCH_ROUNDS(type, usual)                                                             \
    {                                                                                          \
        "rounds", ZB_OPT_COUNT, ZB_OPT_AT(type, rounds), .arg = "N", .def = (usual), .min = 1, \
                                                         .max = ZBENCH_ROUNDS_MAX,             \
    }
#define ZBENCH_ONLY(type, usual)                                   \
    {                                                              \
        "only", ZB_OPT_TEXT, ZB_OPT_AT(type, only), .arg = (usual) \
    }
#define ZBENCH_PEER(type, member)                                      \
    {                                                                  \
        "peer", ZB_OPT_TEXT, ZB_OPT_AT(type, member), .arg = "COMMAND" \
    }

/** Whether a case is asked for: `only` is the beginning of its name, or NULL. */
static inline bool zbench_wants(const char *only, const char *name)
{
    return !only || strncmp(name, only, strlen(only)) == 0;
}

#endif
