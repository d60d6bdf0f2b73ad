/*
 * room.h - saved jobs without attached ranks give their memory to jobs that need it.
 *
 * Loop thread only.
 */
#ifndef ZSD_OP_ROOM_H
#define ZSD_OP_ROOM_H

#include "daemon/job/job.h"

/** Somebody lacks memory for `lacks`: other saved jobs that nobody is attached to give theirs back,
 * one at a time, the one that has been there longest first. True: some is on its way. */
bool zsd_core_make_room(struct zsd_core *core, const struct zsd_job *lacks);
/** The job saves what it has, then ends: for another world, or since others lack memory. */
void zsd_job_retire(struct zsd_job *job);

#endif
