/*
 * image.h - a job that is not durable outlives a restart of the daemon: its image.
 *
 * MODEL. The image is a saved job (store/saved.h) with one version that nobody sees. It exists from
 * the end of one daemon until the job is in the memory of the next one:
 *
 *     the old daemon   BOOKED   the ranks are told of the restart, and the places are promised
 *                      SAVED    all ranks have left: the image is committed as any version is
 *     the next daemon  WAITING  for ranks that come back, up to `restart_wait`
 *                      LOADED   the job is in memory again, and no rank was answered yet
 *                      DROPPED  the image is not in the catalog any more: the ranks are answered
 *
 * INVARIANT
 *
 *     I1  An image in the catalog is the newest state of its job. No rank is answered between
 *         SAVED and DROPPED, and DROPPED is durable before the first answer: so no step, no push and
 *         no fetch has come after the image, wherever the power fails. A daemon that dies later
 *         finds no image, and the job ends, as a job that is not durable does.
 *
 * If the image cannot be dropped, the job ends. If the ranks do not come back in time, or one of
 * them is lost while the job is loaded, the image is dropped.
 *
 * WHO COMES BACK. A rank of the same user that names the job and the epoch after its own
 * (op/open.c). To any other client there is no such job; but its name is taken.
 *
 * Loop thread only.
 */
#ifndef ZSD_OP_IMAGE_H
#define ZSD_OP_IMAGE_H

#include "daemon/job/job.h"

/** Whether a job that is not durable may get an image. *left: bytes on NVMe that are free for images;
 * its own are subtracted. 0; or a negative errno: err has the reason. */
int zsd_image_fits(const struct zsd_job *job, uint64_t *left, struct zb_err *err);
/** BOOKED. 0; or a negative errno: err has the reason. */
int zsd_image_begin(struct zsd_job *job, struct zb_err *err);
/** Begins to save the image, if there is one and no rank is attached. */
void zsd_image_save(struct zsd_job *job);
/** The job has been loaded from its image: drops it. done() is called when that is durable, or has
 * failed; not if the job has ended. */
void zsd_image_loaded(struct zsd_job *job,
                      void (*done)(struct zsd_job *job, const struct zb_err *err));
/** The job is over, and has an image that it did not save. */
void zsd_image_leave(struct zsd_job *job);
/** At the start: waits for the ranks of all images. */
void zsd_images_wait(struct zsd_core *core);

#endif
