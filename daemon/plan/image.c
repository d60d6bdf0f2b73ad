/*
 * plan/image.c - see image.h.
 */
#include "daemon/plan/image.h"

#include <errno.h>

#include "daemon/job/shard.h"
#include "daemon/plan/place_priv.h"
#include "daemon/store/saved.h"

/* Bytes of the image's places, by plane. */
static void image_planes(const struct zsd_job *job, uint64_t planes[ZB_PLANES])
{
    for (uint32_t i = 0; i < job->nshards; i++) {
        planes[ZB_PARAM] += zsd_param_bytes(job->shards[i]);
        planes[ZB_STATE] += zsd_state_bytes(job->shards[i], job->shards[i]->npages);
    }
}

uint64_t zsd_image_bytes(const struct zsd_job *job)
{
    uint64_t planes[ZB_PLANES] = { 0 };

    image_planes(job, planes);
    return planes[ZB_PARAM] + planes[ZB_STATE];
}

/* *ret: the places. 0 or -ENOMEM. */
static int image_needs(const struct zsd_job *job, struct zb_needs *ret)
{
    int rc = 0;

    for (uint32_t i = 0; i < job->nshards && rc == 0; i++) {
        const struct zsd_shard *s = job->shards[i];

        for (int p = 0; p < ZB_PLANES && rc == 0; p++)
            if (p != ZB_GRAD && s->planes[p].block_bytes > 0)
                rc =
                    zb_needs_pages(ret, &s->unit->layout, p, s->count, job->core->page_elems, 0, 1);
    }
    return rc;
}

int zsd_image_book(struct zsd_job *job, struct zb_err *err)
{
    struct zsd_saved *s = zsd_place_saved(job);
    uint64_t planes[ZB_PLANES] = { 0 };
    struct zb_needs want = { 0 };
    int rc;

    if (!s)
        return zb_fail(err, -ENOMEM, "the manifest of job '%s': %m", job->name);
    s->image = true;
    image_planes(job, planes);
    rc = image_needs(job, &want);
    if (rc < 0)
        (void)zb_fail(err, rc, "places for the image of job '%s': %m", job->name);
    if (rc == 0)
        rc = zsd_limit_bytes(&job->quota, ZSD_HELD_NVME, zb_needs_bytes(&want), err);
    if (rc == 0)
        rc = zsd_nvme_promise(job->core, &s->nvme_held, &s->promise, &want, planes, err);
    zb_needs_done(&want);
    if (rc < 0)
        zsd_saved_unhold(s); /* frees it */
    else
        job->image = s;
    return rc;
}

void zsd_image_attach(struct zsd_job *job)
{
    job->saved = job->image;
    job->saved->job = job;
    job->saved->epoch = job->epoch;
}

void zsd_image_detach(struct zsd_job *job)
{
    job->image->job = NULL;
    job->image = NULL;
}
