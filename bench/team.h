/*
 * team.h - threads that take pieces of work off one counter, as the daemon's compute pool takes
 * pages off its queue. They wait between two runs.
 */
#ifndef ZBENCH_TEAM_H
#define ZBENCH_TEAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define ZBENCH_TEAM_MAX 1024u

/** One piece of work, on a thread of the team. */
typedef void zbench_work_fn(void *bench, uint64_t piece);

struct zbench_team {
    pthread_t threads[ZBENCH_TEAM_MAX];
    unsigned size, count; /* count: started */
    pthread_barrier_t begin, end;
    bool barriers, stop;
    void *bench;
    zbench_work_fn *work;
    uint64_t pieces;
    _Atomic uint64_t next;
};

/** At most ZBENCH_TEAM_MAX threads; `bench` is what work gets. *t is zero before. On failure
 * threads that were started wait until the process ends. */
int zbench_team_start(struct zbench_team *t, unsigned size, void *bench, struct zb_err *err);
/** Does all pieces; the seconds that they took. */
double zbench_team_run(struct zbench_team *t, zbench_work_fn *work, uint64_t pieces);
/** A zeroed one, and one that did not start, are fine. */
void zbench_team_end(struct zbench_team *t);

#endif
