/*
 * turn.h - what runs when: deferred work, deadlines, tasks of the compute threads.
 *
 * RULE. Nobody is resumed from inside the call that made it runnable: zsd_defer() queues it, and
 * the turn of the loop runs it. So the stack stays flat, and a structure is never changed under its
 * caller. What is deferred while the queue runs is run in the next turn, for which the loop does not
 * wait.
 *
 * BOUND. A turn looks at ZSD_TURN_WORK pages, rows or shards at most, however large a job is. Whoever
 * walks something that is as long as a job is counts what it looks at (zsd_turn_count()), looks at
 * no more than zsd_turn_left(), and defers itself for the rest. What the poll brings (requests,
 * completions) may use half of it: zsd_turn_full() tells the connections when to stop. Works that
 * find nothing left are run in the next turn, in their order. ZSD_TURN_WORKS are kept for works: one request
 * may look at more than all of the rest, and such requests would keep them from running.
 *
 * Loop thread only.
 */
#ifndef ZSD_TURN_H
#define ZSD_TURN_H

#include "daemon/run/core.h"

#define ZSD_TURN_WORK  4096u
#define ZSD_TURN_WORKS 512u

void zsd_defer(struct zsd_core *core, struct zsd_work *work);
/** Defers whoever waits for memory, for a job that ends or for a commit: each looks again. */
void zsd_room_changed(struct zsd_core *core);
/** Runs what was deferred before the call; what that defers is for the next call. True: there is
 * some. */
bool zsd_works_run(struct zsd_core *core);

/** This turn has looked at n pages, rows or shards. */
static inline void zsd_turn_count(struct zsd_core *core, uint64_t n)
{
    core->daemon->turns.work += n;
}

/** At how many more it may look; 0: defer. */
static inline uint64_t zsd_turn_left(const struct zsd_core *core)
{
    const struct zsd_turns *t = &core->daemon->turns;
    uint64_t most = t->works ? ZSD_TURN_WORK : ZSD_TURN_WORK - ZSD_TURN_WORKS;

    return t->work < most ? most - t->work : 0;
}

/** Requests have used their half. */
static inline bool zsd_turn_full(const struct zsd *daemon)
{
    return daemon->turns.work >= ZSD_TURN_WORK / 2;
}

void zsd_wheel_init(struct zsd_wheel *wheel);
/** Nothing is armed. */
bool zsd_wheel_empty(const struct zsd_wheel *wheel);
/** timeout_ms 0: the configured one. It is not armed yet. */
void zsd_timed_arm(struct zsd_core *core, struct zsd_timed *timed, uint32_t timeout_ms,
                   void (*expire)(struct zsd_timed *timed));
/** The same, until a time that was said before. */
void zsd_timed_arm_at(struct zsd_core *core, struct zsd_timed *timed, uint64_t deadline_ns,
                      void (*expire)(struct zsd_timed *timed));
void zsd_timed_disarm(struct zsd_timed *timed);
/** Ends the wait of everything whose deadline is not after now_ns; of what the turn has no room for, at
 * the next call. */
void zsd_timed_expire(struct zsd_core *core, uint64_t now_ns);

/** Posts a task to the compute threads. */
void zsd_task_start(struct zsd_core *core, struct zsd_task *task);

#endif
