/*
 * note.h - the trainers' notes: op/note.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_OP_NOTE_H
#define ZSD_OP_NOTE_H

#include "daemon/job/job.h"

/** Keeps the notes that the ranks sent for the step or skip `iteration`. Call when it will complete
 * without the ranks. */
void zsd_notes_keep(struct zsd_job *job, uint64_t iteration);

/** Drops a note of the job or of one of its ranks. */
void zsd_note_drop(struct zsd_job *job, struct zsd_note *note);

#endif
