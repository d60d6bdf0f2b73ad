/*
 * parts.h - divides a tier among jobs: plan/parts.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_PARTS_H
#define ZSD_PARTS_H

#include "daemon/job/job.h"

#define ZSD_REPLAN_LEAVE_BE 8u /* a job with an excess below 1/8 keeps it */

/** A job in a division: the bytes that it can use, and those that it gets. */
struct zsd_part {
    struct zsd_job *job;
    uint64_t most, target;
    bool sated;
};

/** Divides by shares. A job that cannot use all of its part leaves the rest to the others. */
void zsd_parts_fill(struct zsd_part *parts, unsigned n, uint64_t left);
/** Whether it has not stepped for so long, or never, that others may use its part. */
bool zsd_part_idle(const struct zsd_job *job, uint64_t now_ns);

#endif
