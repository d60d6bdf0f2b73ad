/*
 * load.h - loads a saved version into memory: op/load.c has the model.
 */
#ifndef ZSD_OP_LOAD_H
#define ZSD_OP_LOAD_H

#include "daemon/job/job.h"

/** Loads v, which is held meanwhile. The job must be LOADING, with its memory attached, and none of
 * its pages may have an extent. done() with err NULL: every shard has the values of v. */
void zsd_load_start(struct zsd_job *job, struct zsd_version *v,
                    void (*done)(struct zsd_job *job, const struct zb_err *err));

#endif
