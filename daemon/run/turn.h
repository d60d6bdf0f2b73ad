/*
 * turn.h - what runs when: deferred work, deadlines, tasks of the compute threads.
 *
 * RULE. Nobody is resumed from inside the call that made it runnable: zsd_defer() queues it, and
 * the turn of the loop runs it. So the stack stays flat, and a structure is never changed under its
 * caller.
 *
 * Loop thread only.
 */
#ifndef ZSD_TURN_H
#define ZSD_TURN_H

#include "daemon/run/core.h"

void zsd_defer(struct zsd_core *core, struct zsd_work *work);
/** Defers whoever waits for memory, for a job that ends or for a commit: each looks again. */
void zsd_room_changed(struct zsd_core *core);
/** Runs all deferred work, and what that defers. */
void zsd_works_run(struct zsd_core *core);

/** timeout_ms 0: the configured one. */
void zsd_timed_arm(struct zsd_core *core, struct zsd_timed *timed, uint32_t timeout_ms,
                   void (*expire)(struct zsd_timed *timed));
void zsd_timed_disarm(struct zsd_timed *timed);
/** Ends the wait of everything whose deadline is not after now_ns. */
void zsd_timed_expire(struct zsd_core *core, uint64_t now_ns);

/** Posts a task to the compute threads. */
void zsd_task_start(struct zsd_core *core, struct zsd_task *task);

#endif
