/*
 * turns.h - how long the turns of the loop are: in units of work, in CPU time, by the clock.
 *
 * MODEL. A turn is the work of the loop between two waits: it begins with the input of the poll
 * (requests, finished tasks and transfers), and ends when the work that became runnable has run.
 *
 *     work    pages, rows, shards and requests handled in the turn: turn.h has the bound.
 *             Counted, not measured, so a test can assert it on any machine
 *     CPU     of the loop's thread, from one turn's end to the next one's: the wait costs none
 *     wall    the same by the clock, without the wait; kept as a histogram, for a quantile
 *
 * Each is kept since the daemon's start, and since somebody asked last: so an operator, or a benchmark,
 * sees what the turns of one phase were.
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
    uint64_t work;              /* of the current turn; it is bounded by this */
    uint64_t beyond;            /* work before the deferred work, which does not bound that */
    bool works;                 /* deferred work runs: before that, a part is reserved for it */
    uint64_t cpu_ns;            /* when the last turn ended; 0: none has */
    uint64_t wall_ns, idle_ns;  /* the same by the clock; time that the loop had waited by then */
    uint64_t counts[ZSD_WALLS]; /* turns by their time by the clock */
    /* the same of the turns since zsd_turns_tell() */
    uint64_t recent_work, recent_ns, recent[ZSD_WALLS];
};

/** Call at the end of the turn's work: compares it with the longest, and begins again at 0. */
void zsd_turn_worked(struct zsd *daemon);
/** Call at the end of the turn. idle_ns: total time that the loop has waited. */
void zsd_turn_over(struct zsd *daemon, uint64_t idle_ns);
/** Sets the counters that are not kept up to date: turn_p999_ns, and turn_recent_*, which begin anew. */
void zsd_turns_tell(struct zsd *daemon);
/** The time that of_1000 of 1,000 turns did not exceed, by the clock, to an eighth; 0: no turn yet.
 */
uint64_t zsd_turns_quantile(const struct zsd_turns *t, unsigned of_1000);

#endif
