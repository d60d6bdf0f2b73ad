/*
 * replan.h - where optimizer state lives is planned again: plan/replan.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_REPLAN_H
#define ZSD_REPLAN_H

#include "daemon/job/shard.h"
#include "daemon/plan/planner.h"

/* Where its optimizer state lives is planned again: plan/replan.c. */
struct zsd_replan {
    uint64_t all_bytes;    /* of the state of all its shards */
    uint64_t target_bytes; /* of it, that it was to have in memory when that was divided last */
    uint64_t giving_bytes; /* booked still; their memory is on its way back */
    uint64_t used_bytes;   /* of the job's memory, that the engines know */
    uint64_t stepped_ns;   /* when its last step was over; 0: none was, since it is in memory */
    uint64_t step_ns;      /* from the one before to that */
    bool busy;             /* a task makes memory, or gives it back */
    bool shrinks;          /* something shall leave memory */
    bool moved;            /* in the step that runs, something has come or left */
    bool refused;          /* there were no places for what should have left: it was logged */
};

struct zsd_range {
    uint64_t at, bytes;
};

/** The job was placed: from here on its state may move. */
void zsd_replan_begin(struct zsd_job *job);
/** What of the job's memory is to be made, in order: *ret is new, *ret_n ranges. 0 or -ENOMEM. */
int zsd_replan_ranges(const struct zsd_job *job, struct zsd_range **ret, uint32_t *ret_n);
/** Its memory is there: the engines get to know it. */
void zsd_replan_attach(struct zsd_job *job);
/** All pages of this shard are stepped: those that left memory or came there, have. */
void zsd_replan_stepped(struct zsd_shard *s);
/** A step that changed pages is over. */
void zsd_replan_step_over(struct zsd_job *job);
/** Sets the host tier's budget: 0; -ENOSPC: it is less than what cannot move, nothing has changed.
 */
int zsd_host_set(struct zsd_core *core, uint64_t bytes, struct zb_err *err);
/** So many bytes of host memory are wanted, and not free. True: what others will give with their
 * next steps is enough beside what is wanted already, and it is kept for whoever waits, until
 * zsd_want_end(); zsd_room_changed() comes as it comes back. False: it is not, and nothing has changed.
 */
bool zsd_want_begin(struct zsd_core *core, struct zsd_want *want, uint64_t bytes);
/** Got it, or gave up. One that never began is fine. */
void zsd_want_end(struct zsd_core *core, struct zsd_want *want);
/** Bytes of state that shall leave memory, and have not. */
uint64_t zsd_replan_leaving(const struct zsd_job *job);

#endif
