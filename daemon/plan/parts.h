/*
 * parts.h - a tier is divided among jobs: plan/parts.c has the model.
 *
 * Loop thread only.
 */
#ifndef ZSD_PARTS_H
#define ZSD_PARTS_H

#include "daemon/job/job.h"

#define ZSD_REPLAN_LEAVE_BE 8u /* who has less than one part of so many too much keeps it */

/** A job in a division: bytes that it can use, and that it gets. */
struct zsd_part {
    struct zsd_job *job;
    uint64_t most, target;
    bool sated;
};

/** Divides by shares: whoever can use no more than its part leaves the rest to the others. */
void zsd_parts_fill(struct zsd_part *parts, unsigned n, uint64_t left);
/** It has not stepped for so long that others may have what it could have; or it never has. */
bool zsd_part_idle(const struct zsd_job *job, uint64_t now_ns);

#endif
