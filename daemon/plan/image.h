/*
 * image.h - room for the image of a job that is not durable: op/image.h has the model.
 *
 * ROOM. An image needs one place for each page of the job's parameters and state, also for those
 * that are on NVMe already. These are shared while both exist, but the next daemon promises the same
 * sum, so that what fits before a restart also fits after it.
 *
 * Loop thread only.
 */
#ifndef ZSD_IMAGE_ROOM_H
#define ZSD_IMAGE_ROOM_H

#include "daemon/job/job.h"

/** Bytes of the places that the image of a job needs. */
uint64_t zsd_image_bytes(const struct zsd_job *job);
/** Promises these places to job->image, a new saved job. 0; -ENOSPC, -EDQUOT, with the numbers;
 * -ENOMEM. */
int zsd_image_book(struct zsd_job *job, struct zb_err *err);
/** From now on the job is the incarnation of its image. */
void zsd_image_attach(struct zsd_job *job);
/** The job has an image no more; the caller still holds it. */
void zsd_image_detach(struct zsd_job *job);

#endif
