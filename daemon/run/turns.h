/*
 * turns.h - lengths of the turns of the loop: in units of work, in CPU time, in wall time.
 *
 * MODEL. A turn is the work of the loop between two waits: it begins with the input of the poll
 * (requests, finished tasks and transfers), and ends when the work that became runnable has run.
 *
 *     work    pages, rows, shards and requests handled in the turn: turn.h has the bound. This is
 *             counted, not measured, so a test can assert it on any machine
 *     CPU     CPU time of the loop's thread, from one turn's end to the next (waiting uses none)
 *     wall    the same in wall time, without the wait; kept as a histogram, for quantiles
 *
 * Each is kept since the daemon's start, and since the last query. So an operator or a benchmark
 * can measure the turns of one phase.
 *
 * Loop thread only.
 */
#ifndef ZSD_TURNS_H
#define ZSD_TURNS_H

#include <stdbool.h>
#include <stdint.h>

struct zsd;

#define ZSD_WALLS_OCTAVE 8u                       /* classes from one power of two to the next */
#define ZSD_WALLS        (40u * ZSD_WALLS_OCTAVE) /* 2^40 ns are 18 minutes */

struct zsd_turns {
    uint64_t work;             /* of the current turn, as limited by its bound */
    uint64_t beyond;           /* more work, done before the deferred work; not limited */
    bool works;                /* deferred work is running: its reserve may be used */
    uint64_t limit_ns;         /* CPU time of the poll's input, and of deferred work; 0: no limit */
    uint64_t began_ns;         /* CPU time when that part of the turn began */
    uint64_t check;            /* the clock is read when `work` has reached this */
    bool spent;                /* that part has used limit_ns */
    uint64_t cpu_ns;           /* CPU time at the end of the last turn; 0: no turn yet */
    uint64_t wall_ns, idle_ns; /* wall time then; total time of waiting then */
    uint64_t counts[ZSD_WALLS]; /* number of turns by wall time */
    /* the same for the turns since zsd_turns_tell() */
    uint64_t recent_work, recent_ns, recent[ZSD_WALLS];
};

/** Call when the input of the poll, or the deferred work, begins: its time starts. */
void zsd_turn_part(struct zsd_turns *t);
/** Reads the clock: sets `spent`, or the next check. */
void zsd_turn_check(struct zsd_turns *t);
/** Call at the end of the turn's work: updates the maxima, and resets the count. */
void zsd_turn_worked(struct zsd *daemon);
/** Call at the end of the turn. idle_ns: total time that the loop has waited. */
void zsd_turn_over(struct zsd *daemon, uint64_t idle_ns);
/** Sets the counters that are computed on request: turn_p999_ns, and turn_recent_*, which start
 * over. */
void zsd_turns_tell(struct zsd *daemon);
/** The wall time that of_1000 of 1,000 turns did not exceed, to within an eighth; 0: no turn
 * yet. */
uint64_t zsd_turns_quantile(const struct zsd_turns *t, unsigned of_1000);

#endif
