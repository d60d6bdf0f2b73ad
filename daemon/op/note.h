/*
 * note.h - the trainers' notes: op/note.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_OP_NOTE_H
#define ZSD_OP_NOTE_H

#include "daemon/job/job.h"

/** The step or skip `iteration` ends without the ranks from here on: what they sent for it is kept
 * with it. */
void zsd_notes_keep(struct zsd_job *job, uint64_t iteration);

/** A note of the job, or of a member of it, goes. */
void zsd_note_drop(struct zsd_job *job, struct zsd_note *note);

#endif
