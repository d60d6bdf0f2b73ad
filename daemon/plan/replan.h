/*
 * replan.h - replanning of optimizer state between memory and NVMe: plan/replan.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_REPLAN_H
#define ZSD_REPLAN_H

#include "daemon/job/shard.h"
#include "daemon/plan/planner.h"

/* The plan for the optimizer state of a job: plan/replan.c. */
struct zsd_replan {
    uint64_t all_bytes;    /* of the state of all its shards */
    uint64_t most_bytes;   /* of these, as many as may be in host memory */
    uint64_t target_bytes; /* resident bytes assigned by the last division */
    uint64_t giving_bytes; /* still booked, while their memory is being freed */
    uint64_t used_bytes;   /* of the job's memory, registered with the I/O engines */
    uint64_t stepped_ns;   /* end of its last step; 0: none since it was placed */
    uint64_t step_ns;      /* time from the end of the previous step to that */
    bool settled; /* no state moves: the five counts of each shard are equal, and none is on
                              the GPU. So there is no need to look at the shards */
    bool busy;    /* a task allocates or frees memory */
    bool shrinks; /* pages must leave memory */
    bool moved;   /* pages have moved in the current step */
    bool refused; /* there were no places for pages that should leave; it was logged */
};

struct zsd_range {
    uint64_t at, bytes;
};

/** Call before the job is placed, then zsd_replan_begin_shard() for each shard, when its number of
 * resident pages is set. */
void zsd_replan_begin(struct zsd_job *job);
void zsd_replan_begin_shard(struct zsd_shard *s);
/** Makes a table of the ranges of the job's memory to allocate, in order. 0 or -ENOMEM. */
int zsd_replan_ranges(const struct zsd_job *job, struct zsd_range **ret, uint32_t *ret_n);
/** Call when its memory is allocated: registers it with the I/O engines. */
void zsd_replan_attach(struct zsd_job *job);
/** Call when all pages of this shard are stepped: completes their moves. */
void zsd_replan_stepped(struct zsd_shard *s);
/** Call at the end of a step that changed pages. */
void zsd_replan_step_over(struct zsd_job *job);
/** Sets the host tier's budget. 0; -ENOSPC: it is less than the memory that cannot be freed, and
 * nothing has changed. */
int zsd_host_set(struct zsd_core *core, uint64_t bytes, struct zb_err *err);
/** Requests bytes of host memory that are not free. True: other jobs can free enough with their
 * next steps, in addition to earlier requests; the memory is reserved until zsd_want_end(), and
 * zsd_room_changed() is called as it is freed. False: they cannot, and nothing has changed. */
bool zsd_want_begin(struct zsd_core *core, struct zsd_want *want, uint64_t bytes);
/** Ends the request. One that never began is fine. */
void zsd_want_end(struct zsd_core *core, struct zsd_want *want);
/** Bytes of state that still have to leave memory. */
uint64_t zsd_replan_leaving(const struct zsd_job *job);

#endif
