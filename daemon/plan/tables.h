/*
 * tables.h - tables of pages and memory addresses of the shards of a placed job: plan/tables.c has
 * the model. If there is no memory to begin a walk, the job fails, and done() is not called.
 *
 * Loop thread only.
 */
#ifndef ZSD_TABLES_H
#define ZSD_TABLES_H

#include "daemon/job/shard.h"
#include "daemon/job/walk.h"

/** Call after zsd_place(): makes the tables of the job's pages, and lays out its parameters in the
 * arena. done may get -ENOMEM. */
void zsd_tables_make(struct zsd_job *job, zsd_walked *done);
/** Call when the memory is allocated: points the planes into it. */
void zsd_tables_attach(struct zsd_job *job, zsd_walked *done);
/** Call before the job is placed once more, in another way, while none of it is on a data file. */
void zsd_tables_again(struct zsd_job *job);
/** Makes the tables that a job lacks which is about to be saved, and was not durable. done may get
 * -ENOMEM. */
void zsd_tables_save(struct zsd_job *job, zsd_walked *done);
/** Call when the job has ended and its memory is freed: frees the places and tables of its shards,
 * in parts. Holds the job until they are freed. */
void zsd_tables_leave(struct zsd_job *job);

#endif
