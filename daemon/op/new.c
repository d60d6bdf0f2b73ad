/*
 * new.c - creates the struct of a new or a saved job, and frees it.
 *
 * MODEL. A job and the structs that plan/ and op/ keep for it are one allocation; struct zsd_job
 * points to the parts. zsd_job_free() removes the job from every list, and releases everything that
 * others may wait for. Its shards and units are freed in parts (disk/leaving.h), then the struct.
 */
#include "daemon/op/new.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/disk/leaving.h"
#include "daemon/op/early.h"
#include "daemon/op/image.h"
#include "daemon/op/muon.h"
#include "daemon/op/step.h"
#include "daemon/op/tensors.h"
#include "daemon/plan/gpu_plan.h"
#include "daemon/plan/replan.h"
#include "daemon/store/store.h"
#include "proto/shard.pb-c.h"

#define JOB_NOW 64u /* shards and units that are freed at once */

struct job_all {
    struct zsd_leaving leaving; /* frees its shards and units after its end */
    struct zsd_job job;
    struct zsd_replan replan;
    struct zsd_job_gpu gpu[ZSD_GPUS_MAX];
    struct zsd_job_params params;
    struct zsd_step_op step;
    struct zsd_early early;
};

static struct zsd_job *job_alloc(struct zsd_core *core, const Zp__JobOpen *q)
{
    struct job_all *all = calloc(1, sizeof(*all));
    struct zsd_job *job = all ? &all->job : NULL;

    if (!job)
        return NULL;
    job->replan = &all->replan;
    job->gpu = all->gpu;
    job->params = &all->params;
    job->step = &all->step;
    job->early = &all->early;
    job->step->job = job->early->job = job;
    job->notes = calloc(q->world, sizeof(*job->notes));
    job->ranks = calloc(q->world, sizeof(*job->ranks));
    if (!job->notes || !job->ranks) {
        free(job->notes);
        free(job->ranks);
        free(all);
        return NULL;
    }
    for (uint32_t i = 0; i < q->world; i++)
        zb_list_init(&job->ranks[i].shards);
    job->core = core;
    job->world = q->world;
    job->offload_param = zsd_open_param(core, q);
    job->params->asked = zsd_open_asks_gpu(q);
    job->offload_optimizer = zsd_open_optimizer(core, q);
    job->offload_grad = q->offload_grad;
    job->host_bytes_max = q->host_bytes_max;
    job->early_wish = q->early;
    job->ring_wish = q->grad_ring;
    job->ring_keep = q->grad_ring_keep;
    job->limits_wish = q->grad_ring_limits;
    job->tensor_norms = q->tensor_norms;
    job->arena = ZSD_ARENA_NONE;
    zsd_payer_init(&job->payer, q->share);
    job->share_opened = job->payer.share;
    zb_list_init(&job->members);
    zb_list_init(&job->pushes);
    zb_list_init(&job->room_waiters);
    zb_list_init(&job->room_work.node);
    zb_list_init(&job->wake.node);
    zb_list_init(&job->over.node);
    zb_list_init(&job->step->work.node);
    zb_list_init(&job->early->shards);
    zb_list_init(&job->early->roomed);
    zb_list_init(&job->early->begun);
    zb_list_init(&job->early->work.node);
    zb_list_init(&job->node);
    return job;
}

/* Charges the job to its user, whose limit the open has checked. 0 or -ENOMEM. */
static int job_book(struct zsd_job *job)
{
    struct zb_err err = { 0 };

    if (zsd_quota_join(job->core->daemon, &job->quota, ZSD_LEVEL_JOB, job->uid) < 0)
        return -ENOMEM;
    job->host_held.user = zsd_user_held(&job->quota, ZSD_HELD_HOST);
    job->nvme_held.user = zsd_user_held(&job->quota, ZSD_HELD_NVME);
    job->gpu_held.user = zsd_user_held(&job->quota, ZSD_HELD_GPU);
    return zsd_limit_take(&job->quota, ZSD_LIMIT_JOBS, 1, &err);
}

static bool number_used(const struct zsd_core *core, uint32_t number)
{
    zb_list_each(pos, &core->jobs->list)
    {
        if (zb_container_of(pos, struct zsd_job, node)->number == number)
            return true;
    }
    if (core->store)
        zb_list_each(pos, &core->store->saved)
        {
            if (zb_container_of(pos, struct zsd_saved, node)->number == number)
                return true;
        }
    return false;
}

uint32_t zsd_job_number(struct zsd_core *core)
{
    uint32_t number;

    do {
        number = core->next_job;
        core->next_job = number == UINT32_MAX ? 1 : number + 1;
    } while (number_used(core, number));
    return number;
}

struct zsd_job *zsd_job_new(struct zsd_core *core, const Zp__JobOpen *q, uid_t uid)
{
    struct zsd_job *job = job_alloc(core, q);

    if (!job)
        return NULL;
    job->number = zsd_job_number(core);
    (void)snprintf(job->name, sizeof(job->name), "%s", q->name);
    job->uid = uid;
    job->groups = q->groups;
    job->optimizer = q->optimizer;
    job->moments = zsd_open_moments(q);
    job->muon_engine = (enum zb_muon_engine)q->muon_engine;
    job->keep = q->keep;
    job->durable = q->durable;
    zb_list_push_back(&core->jobs->list, &job->node);
    if (job_book(job) < 0) {
        zsd_job_free(job);
        return NULL;
    }
    return job;
}

struct zsd_job *zsd_job_again(struct zsd_core *core, const Zp__JobOpen *q, struct zsd_saved *saved)
{
    struct zsd_job *job = job_alloc(core, q);
    const struct zsd_version *v = saved->committed ? saved->committed : saved->prepared;
    bool whole = job != NULL;

    if (!job)
        return NULL;
    job->number = saved->number;
    memcpy(job->name, saved->name, sizeof(job->name));
    job->uid = saved->uid;
    job->groups = saved->groups;
    job->optimizer = saved->optimizer;
    job->moments = saved->moments;
    job->muon_engine = saved->muon_engine;
    job->again = true;
    job->keep = !saved->image || q->keep;
    job->durable = !saved->image;
    job->epoch = saved->epoch;
    job->iterations = v->iterations;
    job->applied = v->applied;
    job->units = calloc(zb_max_u64(saved->nunits, 1), sizeof(struct zsd_unit *));
    job->units_room = saved->nunits;
    for (uint32_t i = 0; whole && job->units && i < saved->nunits; i++) {
        job->units[i] = zsd_unit_copy(saved->units[i]);
        whole = job->units[i] != NULL;
        job->nunits += whole;
        job->ntensors += whole ? job->units[i]->ntensors : 0;
    }
    if (!whole || !job->units || job_book(job) < 0) {
        zsd_job_free(job);
        return NULL;
    }
    for (uint32_t u = 0; u < job->nunits; u++)
        zsd_limit_add(&job->quota, ZSD_LIMIT_DEFINITION_BYTES, zsd_unit_bytes(job->units[u]));
    if (saved->image) {
        job->image = saved;
    } else {
        job->saved = saved;
        job->promise = &saved->promise;
    }
    saved->job = job;
    zsd_saved_hold(saved);
    zb_list_push_back(&core->jobs->list, &job->node);
    return job;
}

void zsd_job_let_go(struct zsd_job *job)
{
    struct zsd_saved *saved = job->saved;

    zsd_version_unref(job->from); /* its places are promised to the saved job alone */
    job->from = NULL;
    if (job->image && job->image != saved)
        zsd_image_leave(job);
    job->image = NULL;
    if (!saved)
        return;
    job->saved = NULL;
    job->promise = NULL;
    saved->job = NULL;
    if (saved->ended)
        zsd_defer(job->core, saved->ended);
    zsd_saved_unhold(saved);
    if (job->seen) /* else a failed open would wake itself forever */
        zsd_room_changed(job->core);
}

/* Frees its next shards and units. True: all are freed, and the struct. */
static bool job_part(struct zsd_core *core, struct zsd_leaving *l, uint64_t *left)
{
    struct job_all *all = zb_container_of(l, struct job_all, leaving);
    struct zsd_job *job = &all->job;

    (void)core;
    for (; *left > 0 && job->nshards > 0; --*left)
        zsd_shard_free(job->shards[--job->nshards]);
    for (; *left > 0 && job->nunits > 0; --*left)
        zsd_unit_free(job->units[--job->nunits]);
    if (job->nshards + job->nunits > 0)
        return false;
    free(job->ranks);
    free(job->shards);
    free(job->units);
    free(all);
    return true;
}

void zsd_job_free(struct zsd_job *job)
{
    struct job_all *all = zb_container_of(job, struct job_all, job);
    uint64_t left = JOB_NOW;

    zb_list_remove(&job->node);
    zb_list_remove(&job->room_work.node);
    zb_list_remove(&job->wake.node);
    zb_list_remove(&job->over.node);
    zb_list_remove(&job->step->work.node);
    zb_list_remove(&job->early->work.node);
    for (uint32_t i = 0; job->notes && i < job->world; i++)
        zsd_note_done(&job->notes[i]);
    zsd_note_done(&job->note);
    zsd_job_let_go(job);
    zsd_quota_leave(&job->quota);
    if (job->seen)
        zsd_room_changed(job->core);
    free(job->notes);
    free(job->step->pages_left);
    zsd_table_done(&job->step->table);
    zsd_classes_put(job->step->classes);
    zsd_classes_put(job->early->classes);
    free(job->early->factors);
    free(job->early->decided);
    zsd_tensors_free(job->tensors);
    zsd_muon_free(job->muon);
    if (!job_part(job->core, &all->leaving, &left))
        zsd_leave(job->core, &all->leaving, job_part);
}
