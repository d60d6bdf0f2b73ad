/*
 * op/image.c - see image.h.
 */
#include "daemon/op/image.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/job/shard.h"
#include "daemon/job/walk.h"
#include "daemon/op/commit.h"
#include "daemon/plan/gpu_params.h"
#include "daemon/plan/image.h"
#include "daemon/plan/tables.h"
#include "daemon/run/turn.h"
#include "daemon/store/delta.h"
#include "daemon/store/store.h"

#define MS_PER_S 1000u

/* ---- the old daemon */

/* The reasons have at most 63 bytes, so that `zctl restart` shows all of them. */
static int image_check(const struct zsd_job *job, struct zb_err *err)
{
    const struct zsd_core *core = job->core;

    if (core->daemon->config.embedded)
        return zb_fail(err, -EINVAL, "it is not durable, and no daemon follows this one");
    if (!core->store || zsd_fixed(&core->daemon->config))
        return zb_fail(err, -EINVAL, "it is not durable, and there is no permanent data directory");
    if (core->store->poisoned.code != 0)
        return zb_fail(err, core->store->poisoned.code,
                       "it is not durable, and the catalog has failed");
    if (zsd_params_there(job))
        return zb_fail(err, -EINVAL, "it is not durable, and its parameters are in GPU memory");
    return 0;
}

int zsd_image_fits(const struct zsd_job *job, uint64_t *left, struct zb_err *err)
{
    uint64_t bytes = zsd_image_bytes(job);
    struct zb_err why = { 0 };

    if (image_check(job, err) < 0)
        return err->code;
    if (zsd_limit_bytes(&job->quota, ZSD_HELD_NVME, bytes, &why) < 0)
        return zb_fail(err, why.code, "it is not durable, and its user's limit of NVMe is too low");
    if (bytes > *left)
        return zb_fail(err, -ENOSPC, "it is not durable; NVMe has %s free, it needs %s",
                       zb_size_text(*left).s, zb_size_text(bytes).s);
    *left -= bytes;
    return 0;
}

int zsd_image_begin(struct zsd_job *job, struct zb_err *err)
{
    struct zb_err why = { 0 };

    if (image_check(job, err) < 0)
        return err->code;
    if (zsd_image_book(job, &why) < 0)
        return zb_fail(err, why.code, "it is not durable, and cannot be saved: %s", why.text);
    return 0;
}

static void image_saved(struct zsd_job *job, const struct zb_err *err)
{
    if (err)
        zb_log(ZB_LOG_WARN, "run-ends", "job=\"%s\" uid=%u fate=ends why=\"%s\"", job->name,
               (unsigned)job->uid, err->text);
    else
        zb_log(ZB_LOG_INFO, "image-saved", "job=\"%s\" uid=%u iterations=%llu", job->name,
               (unsigned)job->uid, (unsigned long long)job->iterations);
}

static void image_tabled(struct zsd_job *job, const struct zb_err *err)
{
    if (job->state == ZSD_ENDED)
        return;
    if (err)
        image_saved(job, err);
    else
        zsd_commit_start(job, ZSD_COMMIT, NULL, image_saved);
}

void zsd_image_save(struct zsd_job *job)
{
    struct zb_err late = { 0 };

    if (!job->image || job->saved || job->state == ZSD_ENDED)
        return;
    if (job->state != ZSD_READY || zsd_job_attached(job) > 0) {
        (void)zb_fail(&late, -ETIMEDOUT, "its ranks did not finish their step within %u s",
                      job->core->daemon->config.restart_wait_s);
        image_saved(job, &late);
        return;
    }
    zsd_image_attach(job);
    job->durable = true; /* for the rest of its life: it is saved as such a job */
    zsd_tables_save(job, image_tabled);
}

/* ---- the next daemon */

/* Drops an image: after its job was loaded from it, or because nobody has come for it. */
struct image_drop {
    struct zsd_walk walk;
    uint32_t shard; /* the next one that may have a row of the image */
    struct zsd_delta delta;
    struct zsd_job *job; /* loaded from it, held; or NULL */
    const char *why;
    void (*done)(struct zsd_job *job, const struct zb_err *err);
};

static int drop_plan(struct zsd_delta *d, struct zb_err *err)
{
    (void)err;
    d->destroy = true;
    return 0;
}

static void drop_done(struct zsd_delta *d, const struct zb_err *err)
{
    struct image_drop *x = zb_container_of(d, struct image_drop, delta);
    struct zsd_saved *image = d->saved;
    struct zsd_core *core = image->store->core;
    struct zsd_job *job = x->job;

    image->moving = false;
    if (err)
        zb_log(ZB_LOG_WARN, "image-stays", "job=\"%s\" uid=%u why=\"%s\"", image->name,
               (unsigned)image->uid, err->text);
    else
        zb_log(ZB_LOG_INFO, "image-dropped", "job=\"%s\" uid=%u why=\"%s\"", image->name,
               (unsigned)image->uid, x->why);
    if (job && job->image == image && !err) {
        zsd_image_detach(job);
        zsd_saved_unhold(image);
    }
    if (job && job->state != ZSD_ENDED)
        x->done(job, err);
    if (job)
        zsd_job_unhold(job);
    zsd_room_changed(core); /* opens that wait for the name */
    free(x);
}

static void drop_start(struct image_drop *x, struct zsd_saved *image)
{
    image->moving = true;
    x->delta = (struct zsd_delta){ .saved = image, .plan = drop_plan, .done = drop_done };
    zsd_delta_start(&x->delta);
}

/* Nobody uses the image any more. Without memory it stays until the next start. */
static void image_abandon(struct zsd_saved *image, const char *why)
{
    struct image_drop *x = calloc(1, sizeof(*x));

    if (!x)
        return;
    x->why = why;
    drop_start(x, image);
}

/* Releases the rows of the image, so that its places are promised to the job alone. */
static bool loaded_part(struct zsd_walk *walk)
{
    struct image_drop *x = zb_container_of(walk, struct image_drop, walk);
    struct zsd_job *job = walk->job;

    for (; x->shard < job->nshards; x->shard++) {
        struct zsd_shard *s = job->shards[x->shard];

        if (zsd_turn_left(job->core) == 0)
            return false;
        zsd_turn_count(job->core, 1);
        if (s->row)
            zsd_row_unref(job->core, s->row);
        s->row = NULL;
    }
    return true;
}

static void loaded_over(struct zsd_walk *walk)
{
    struct image_drop *x = zb_container_of(walk, struct image_drop, walk);

    if (walk->job->state == ZSD_ENDED) { /* zsd_image_leave() drops it */
        free(x);
        return;
    }
    x->job = walk->job;
    zsd_job_hold(x->job);
    drop_start(x, x->job->image);
}

void zsd_image_loaded(struct zsd_job *job,
                      void (*done)(struct zsd_job *job, const struct zb_err *err))
{
    struct image_drop *x = calloc(1, sizeof(*x));
    struct zb_err err = { 0 };

    if (!x) {
        (void)zb_fail(&err, -ENOMEM, "the image of job '%s': %m", job->name);
        done(job, &err);
        return;
    }
    x->done = done;
    x->why = "the job is in memory again";
    x->walk = (struct zsd_walk){ .part = loaded_part, .over = loaded_over };
    zsd_walk_start(&x->walk, job);
}

void zsd_image_leave(struct zsd_job *job)
{
    struct zsd_saved *image = job->image;

    zsd_image_detach(job);
    if (zsd_saved_kept(image) && !image->gone && !image->moving && job->seen &&
        job->why.code != -ENOTCONN) /* else the daemon ends: the ranks may come back to the next */
        image_abandon(image, "its job has ended");
    zsd_saved_unhold(image);
}

static void image_expire(struct zsd_timed *timed)
{
    struct zsd_saved *image = zb_container_of(timed, struct zsd_saved, image_timed);

    if (!image->job && !image->moving && !image->gone)
        image_abandon(image, "no rank came back for it");
}

void zsd_images_wait(struct zsd_core *core)
{
    if (!core->store)
        return;
    zb_list_each(pos, &core->store->saved)
    {
        struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

        if (!s->image)
            continue;
        zb_log(ZB_LOG_INFO, "image-waits", "job=\"%s\" uid=%u iterations=%llu seconds=%u", s->name,
               (unsigned)s->uid, (unsigned long long)s->committed->iterations,
               core->daemon->config.restart_wait_s);
        zsd_timed_arm(core, &s->image_timed, core->daemon->config.restart_wait_s * MS_PER_S,
                      image_expire);
    }
}
