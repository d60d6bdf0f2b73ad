/*
 * room.h - saved jobs without attached ranks give their memory to jobs that need it.
 *
 * Loop thread only.
 */
#ifndef ZSD_OP_ROOM_H
#define ZSD_OP_ROOM_H

#include "daemon/job/job.h"

/** Frees memory for the job `lacks` (or NULL): ends one saved job without attached ranks, the
 * oldest first. True: memory is being freed, by this call or already. */
bool zsd_core_make_room(struct zsd_core *core, const struct zsd_job *lacks);
/** Saves the state of the job, then ends it: so that it can be opened again with another number of
 * ranks, or because others need its memory. */
void zsd_job_retire(struct zsd_job *job);

#endif
