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
/** What is free has changed, or who wants it: the memory for state is divided anew, soon. */
void zsd_replan(struct zsd_core *core);
/** Sets the host tier's budget: 0; -ENOSPC: it is less than what cannot move, nothing has changed.
 */
int zsd_host_set(struct zsd_core *core, uint64_t bytes, struct zb_err *err);
/** Bytes of the host tier that are free: nobody but `but` waits for them, and they are not kept for
 *  ranks that have left (zsd_replan_away()). What a job takes comes out of these. */
uint64_t zsd_host_free(const struct zsd_core *core, const struct zsd_want *but);
/** The host tier's budget comes down to what was set, as far as memory has come back. Never up. */
void zsd_host_settle(struct zsd_core *core);
/** So many bytes of host memory are wanted, and not free. True: what others will give with their
 * next steps is enough beside what is wanted already, and it is kept for whoever waits, until
 * zsd_want_end(); zsd_room_changed() comes as it comes back. False: it is not, and nothing has changed.
 */
bool zsd_want_begin(struct zsd_core *core, struct zsd_want *want, uint64_t bytes);
/** Got it, or gave up. One that never began is fine. */
void zsd_want_end(struct zsd_core *core, struct zsd_want *want);
/** It is free now; or nothing is wanted. */
bool zsd_want_met(const struct zsd_core *core, const struct zsd_want *want);
/** Bytes that others wait for. */
uint64_t zsd_wanted(const struct zsd_core *core, const struct zsd_want *but);
/** Staging of ranks that have left a kept job, and may come back: no other job gets it. */
uint64_t zsd_replan_away(const struct zsd_job *job);
/** Bytes of state that shall leave memory, and have not. */
uint64_t zsd_replan_leaving(const struct zsd_job *job);

#define ZSD_REPLAN_LEAVE_BE 8u /* who has less than one part of so many too much keeps it */

/** A job in a division: bytes that it can use, and that it gets. */
struct zsd_part {
    struct zsd_job *job;
    uint64_t most, target;
    bool sated;
};

/** Divides by shares: whoever can use no more than its part leaves the rest to the others. */
void zsd_parts_fill(struct zsd_part *parts, unsigned n, uint64_t left);
/** It has not stepped for so long that others may have what it could have; or it never has. */
bool zsd_part_idle(const struct zsd_job *job, uint64_t now_ns);

/** Of the first n pages of a shard's state. */
uint64_t zsd_state_bytes(const struct zsd_shard *s, uint32_t n);
static inline bool zsd_state_is(const struct zsd_shard *s)
{
    return s->planes[ZB_STATE].block_bytes > 0;
}
/** Promises what is needed for what is planned now. What needs less (`more` is false) never fails,
 * and a change of the saved job that is in progress ends by doing that itself. */
int zsd_replan_promise(struct zsd_job *job, bool more, struct zb_err *err);

#endif
