/*
 * turn.h - scheduling: deferred work, deadlines, tasks of the compute threads.
 *
 * RULE. Nothing is resumed from inside the call that made it runnable: zsd_defer() queues it, and
 * the turn of the loop runs it. So the stack stays flat, and no structure changes under its caller.
 * Work that is deferred while the queue runs is run in the next turn, which then begins without
 * waiting.
 *
 * BOUND. A turn handles at most ZSD_TURN_WORK pages, rows or shards, whatever the size of a job. A
 * loop whose length grows with a job counts its steps (zsd_turn_count()), makes at most
 * zsd_turn_left() steps, and defers itself for the rest. Requests and completions of the poll may
 * use half of the turn: zsd_turn_full() tells the connections when to stop. Deferred work for which
 * the turn has no steps left runs in the next turn, in order. ZSD_TURN_WORKS steps are reserved for
 * deferred work: one request may use all other steps, and a series of these would starve it.
 *
 * TIME. Steps are not equally long: a shard's tables are allocated and freed, for example. So the
 * CPU clock is read every ZSD_TURN_PART steps. When the input of the poll, or the deferred work, has
 * used turns.limit_ns, no steps are left for it. Tests without a limit count the same turns on any
 * machine.
 *
 * Loop thread only.
 */
#ifndef ZSD_TURN_H
#define ZSD_TURN_H

#include "daemon/run/core.h"

#define ZSD_TURN_WORK  4096u
#define ZSD_TURN_WORKS 512u
#define ZSD_TURN_PART  64u
#define ZSD_TURN_NS    UINT64_C(1500000) /* limit_ns of a daemon with a loop */

/** Queues work for this turn, or for the next one while deferred work runs. Queueing it twice is
 * fine. */
void zsd_defer(struct zsd_core *core, struct zsd_work *work);
/** Defers core->room, which lets every request that waits for memory, for the end of a job or for a
 * commit check again. */
void zsd_room_changed(struct zsd_core *core);
/** Runs the work that was deferred before the call. True: more is queued for the next call. */
bool zsd_works_run(struct zsd_core *core);

/** Counts n pages, rows or shards for this turn. */
static inline void zsd_turn_count(struct zsd_core *core, uint64_t n)
{
    struct zsd_turns *t = &core->daemon->turns;

    t->work += n;
    if (t->limit_ns > 0 && t->work >= t->check)
        zsd_turn_check(t);
}

/** How many more of them this turn may handle; 0: defer. */
static inline uint64_t zsd_turn_left(const struct zsd_core *core)
{
    const struct zsd_turns *t = &core->daemon->turns;
    uint64_t most = t->works ? ZSD_TURN_WORK : ZSD_TURN_WORK - ZSD_TURN_WORKS;

    if (t->limit_ns > 0) /* the clock is read in between */
        most = zb_min_u64(most, t->spent ? 0 : t->check);
    return t->work < most ? most - t->work : 0;
}

/** Whether requests and completions have used their half of the turn. */
static inline bool zsd_turn_full(const struct zsd *daemon)
{
    return daemon->turns.work >= ZSD_TURN_WORK / 2 || daemon->turns.spent;
}

void zsd_wheel_init(struct zsd_wheel *wheel);
/** Whether nothing is armed. */
bool zsd_wheel_empty(const struct zsd_wheel *wheel);
/** Arms a deadline, which must not be armed. timeout_ms 0: the configured timeout. */
void zsd_timed_arm(struct zsd_core *core, struct zsd_timed *timed, uint32_t timeout_ms,
                   void (*expire)(struct zsd_timed *timed));
/** The same, with a given deadline. */
void zsd_timed_arm_at(struct zsd_core *core, struct zsd_timed *timed, uint64_t deadline_ns,
                      void (*expire)(struct zsd_timed *timed));
void zsd_timed_disarm(struct zsd_timed *timed);
/** Expires the deadlines that are not after now_ns. Those for which the turn has no steps left
 * expire at the next call. */
void zsd_timed_expire(struct zsd_core *core, uint64_t now_ns);

/** Posts a task to the compute threads. */
void zsd_task_start(struct zsd_core *core, struct zsd_task *task);

#endif
