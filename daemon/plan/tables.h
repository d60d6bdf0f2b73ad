/*
 * tables.h - what a shard has once its job is placed: tables of its pages, its place in the job's
 * memory. plan/tables.c has the model. Without memory to begin a walk, the job fails, and done() is not
 * called.
 *
 * Loop thread only.
 */
#ifndef ZSD_TABLES_H
#define ZSD_TABLES_H

#include "daemon/job/shard.h"
#include "daemon/job/walk.h"

/** Of a job that zsd_place() has placed: makes the tables of its pages, and says where in the arena its
 * parameters are. done gets -ENOMEM. */
void zsd_tables_make(struct zsd_job *job, zsd_walked *done);
/** Points the planes into the memory that was made for the layout. */
void zsd_tables_attach(struct zsd_job *job, zsd_walked *done);
/** It is placed anew, in another way; nothing of it is on the data file. */
void zsd_tables_again(struct zsd_job *job);
/** The job has ended, and its memory is gone: its shards let go of their places and tables. It is held
 * until they have. */
void zsd_tables_leave(struct zsd_job *job);

#endif
