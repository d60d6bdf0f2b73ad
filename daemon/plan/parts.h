/*
 * parts.h - divides a tier among jobs: plan/parts.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_PARTS_H
#define ZSD_PARTS_H

#include "daemon/job/job.h"

#define ZSD_REPLAN_LEAVE_BE 8u /* a job whose excess is at most 1/8 keeps it */

/** A job in a division: the bytes that it can use (most), and those that it gets (target). */
struct zsd_part {
    struct zsd_job *job;
    uint64_t most, target;
    bool sated;
};

/** Divides `left` bytes by shares. If a job cannot use all of its part, the others get the rest. */
void zsd_parts_fill(struct zsd_part *parts, unsigned n, uint64_t left);
/** Whether the job has never stepped, or not for so long that others may use its part. */
bool zsd_part_idle(const struct zsd_job *job, uint64_t now_ns);

#endif
