/*
 * room.h - saved jobs without attached ranks give their memory to jobs that need it.
 *
 * Loop thread only.
 */
#ifndef ZSD_OP_ROOM_H
#define ZSD_OP_ROOM_H

#include "daemon/job/job.h"

/** Frees memory for `lacks`: saved jobs without attached ranks end, one at a time, the oldest
 * first. True: some memory is being freed. */
bool zsd_core_make_room(struct zsd_core *core, const struct zsd_job *lacks);
/** Saves the state of the job, then ends it: for another world, or because others need memory. */
void zsd_job_retire(struct zsd_job *job);

#endif
