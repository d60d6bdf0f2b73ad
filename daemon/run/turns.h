/*
 * turns.h - how long the turns of the loop are: in units of work, in CPU time, by the clock.
 *
 * MODEL. A turn is what the loop does between two waits: it begins with what the poll brought
 * (requests, finished tasks and transfers), and ends when the work that became runnable has run.
 *
 *     work    pages, rows, shards and requests that the turn has looked at: turn.h has the bound.
 *             Counted, not measured, so a test can assert it on any machine
 *     CPU     of the loop's thread, from one turn's end to the next one's: the wait costs none
 *     wall    the same by the clock, without the wait; kept as a histogram, for a quantile
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
    uint64_t work;              /* of the turn that runs; what bounds it */
    uint64_t beyond;            /* of it, what came before its works and does not bound them */
    bool works;                 /* they run: before, a part is kept for them */
    uint64_t cpu_ns;            /* when the last turn ended; 0: none has */
    uint64_t wall_ns, idle_ns;  /* likewise; and what the loop had waited by then */
    uint64_t counts[ZSD_WALLS]; /* turns by what they took by the clock */
};

/** The turn's work is over: it is compared with the longest, and the next one begins at 0. */
void zsd_turn_worked(struct zsd *daemon);
/** The turn is over, and the loop has waited idle_ns since it began to run. */
void zsd_turn_over(struct zsd *daemon, uint64_t idle_ns);
/** What so many of 1,000 turns took at most, by the clock, to an eighth; 0: there was none. */
uint64_t zsd_turns_quantile(const struct zsd_turns *t, unsigned of_1000);

#endif
