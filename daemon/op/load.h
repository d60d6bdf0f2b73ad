/*
 * load.h - loads a saved version into memory: op/load.c has the model.
 */
#ifndef ZSD_OP_LOAD_H
#define ZSD_OP_LOAD_H

#include "daemon/job/job.h"

/** The job is in LOADING, its memory attached, no page of it has an extent. Holds v while it runs.
 * done: err NULL, every shard has the values of v; the caller continues from there. */
void zsd_load_start(struct zsd_job *job, struct zsd_version *v,
                    void (*done)(struct zsd_job *job, const struct zb_err *err));

#endif
