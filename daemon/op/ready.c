/*
 * op/ready.c - every rank is ready: the version to resume from, placement, memory, loading.
 */
#include "daemon/op/ready.h"

#include <errno.h>
#include <stdio.h>

#include "daemon/disk/paths.h"
#include "daemon/op/early.h"
#include "daemon/op/end.h"
#include "daemon/op/image.h"
#include "daemon/op/load.h"
#include "daemon/op/member.h"
#include "daemon/op/note.h"
#include "daemon/op/requests.h"
#include "daemon/op/resume.h"
#include "daemon/op/room.h"
#include "daemon/op/step.h"
#include "daemon/plan/gpu_plan.h"
#include "daemon/plan/job_arena.h"
#include "daemon/plan/place.h"
#include "daemon/plan/tables.h"
#include "proto/shard.pb-c.h"

static void ready_all(struct zsd_job *job);
static void ready_tabled(struct zsd_job *job, const struct zb_err *err);

static void ready_answer(struct zsd_job *job)
{
    Zp__ReadyReply reply = ZP__READY_REPLY__INIT;
    const struct zsd_account *nvme = zsd_job_nvme(job);

    reply.arena_bytes = job->arena_bytes;
    reply.ring_bytes = job->ring_bytes;
    for (int use = 0; use < ZSD_USES; use++) {
        reply.host_bytes += job->host_held.used[use];
        reply.nvme_bytes += nvme->used[use];
    }
    reply.iterations = job->iterations;
    reply.applied = job->applied;
    reply.early = job->early_room;
    reply.grads_on_nvme = job->grads_nvme_bytes;
    reply.grads_ringed = job->grads_ringed;
    reply.gpu_why = job->params->why;
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);
        struct zsd_req *r = m->ready_req;

        if (!r)
            continue;
        m->ready_req = NULL;
        zsd_timed_disarm(&m->ready_timed);
        reply.gpu_params = zsd_params_seen_bytes(job, m->rank);
        reply.own_at = job->ranks[m->rank].arena_at;
        reply.own_bytes = job->ranks[m->rank].arena_bytes;
        reply.node = (uint32_t)(job->ranks[m->rank].near + 1);
        job->writable = job->writable || m->writable; /* no commit is in progress */
        zsd_reply(r, &reply.base, m->writable ? job->arena.own_fd : job->arena.fd);
    }
}

/* Every rank of a kept job is ready again: drops the gradients, and rejects requests for a step
 * that would use them. */
static void ready_again(struct zsd_job *job)
{
    struct zb_err err = { 0 };

    (void)zb_fail(&err, -EBUSY,
                  "a rank of job '%s' came back: the gradients of step %llu were dropped",
                  job->name, (unsigned long long)job->iterations + 1);
    zsd_step_give_up(job, &err);
    zsd_grads_reset(job);
    job->regained = false;
}

/* Rejects the ready requests of all ranks, which may repeat them. */
static void ready_refuse(struct zsd_job *job, const struct zb_err *why)
{
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        if (m->ready_req)
            m->ready = false;
        zsd_member_answer(&m->ready_req, &m->ready_timed, why);
    }
}

/* Whether all attached ranks wait in `ready`, so that none trains on the state in memory. */
static bool ready_together(const struct zsd_job *job)
{
    zb_list_each(pos, &job->members)
    {
        const struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        if (m->conn && !m->ready_req)
            return false;
    }
    return true;
}

/* The version to resume from: the one that the ranks chose, else the commit, else the prepared one.
 * NULL: there is none. It may have been dropped since the ranks attached. */
static struct zsd_version *ready_version(const struct zsd_job *job, struct zb_err *err)
{
    const struct zsd_saved *saved = job->saved ? job->saved : job->image;
    struct zsd_version *c = saved->committed, *p = saved->prepared;

    if (!c && !p) {
        (void)zb_fail(err, -ENOENT, "job '%s' has nothing to resume from: it was dropped",
                      job->name);
        return NULL;
    }
    if (!job->at_point)
        return c ? c : p;
    if (p && p->iterations == job->point)
        return p;
    if (c && c->iterations == job->point)
        return c;
    (void)zb_fail(err, -ENOENT, "job '%s' has no step %llu to resume from", job->name,
                  (unsigned long long)job->point);
    return NULL;
}

/* The job may continue. */
static void ready_whole(struct zsd_job *job, const struct zb_err *err)
{
    if (err) {
        zsd_job_end(job, err);
        return;
    }
    zsd_job_to(job, ZSD_READY);
    zb_log(ZB_LOG_INFO, "job-loaded", "job=\"%s\" uid=%u iterations=%llu applied=%llu", job->name,
           (unsigned)job->uid, (unsigned long long)job->iterations,
           (unsigned long long)job->applied);
    ready_answer(job);
    zsd_replan(job->core);
}

static void ready_loaded(struct zsd_job *job, const struct zb_err *err)
{
    struct zsd_version *v = job->from;

    job->from = NULL;
    if (job->state != ZSD_ENDED && !err) {
        job->iterations = v->iterations;
        job->applied = v->applied;
        job->rewritten = false;
    }
    zsd_version_unref(v);
    if (job->state == ZSD_ENDED)
        return;
    if (!err && job->image)
        zsd_image_loaded(job, ready_whole); /* no rank is answered before that: I1 */
    else
        ready_whole(job, err);
}

static int ready_note(struct zsd_job *job, struct zsd_note *to, const struct zsd_note *from)
{
    int rc = zsd_note_copy(to, from);

    if (to->data)
        zsd_limit_add(&job->quota, ZSD_LIMIT_NOTE_BYTES, to->total);
    return rc;
}

/* Restores the notes of the version. Ranks that it does not have get none. */
static int ready_notes(struct zsd_job *job, const struct zsd_version *v)
{
    int rc;

    zsd_note_drop(job, &job->note);
    rc = ready_note(job, &job->note, &v->job_note);
    for (uint32_t i = 0; i < job->world; i++)
        zsd_note_drop(job, &job->notes[i]);
    for (uint32_t i = 0; i < job->world && i < v->world && rc == 0; i++)
        rc = ready_note(job, &job->notes[i], &v->notes[i]);
    return rc;
}

/* Loads job->from. The job is LOADING. */
static void ready_load(struct zsd_job *job)
{
    struct zb_err err = { 0 };

    if (ready_notes(job, job->from) < 0) {
        (void)zb_fail(&err, -ENOMEM, "the notes of job '%s': %m", job->name);
        ready_loaded(job, &err);
        return;
    }
    zsd_load_start(job, job->from, ready_loaded);
}

/* The job has released its extents. */
static void ready_rewound(struct zsd_job *job, const struct zb_err *err)
{
    if (job->state == ZSD_ENDED)
        return;
    if (err)
        zsd_job_end(job, err);
    else
        ready_load(job);
}

/* Makes the job in memory resume from another of its points. Its newer state is dropped, and so are
 * the gradients and early steps of its next step. */
static void ready_rewind(struct zsd_job *job, struct zsd_version *v)
{
    zb_log(ZB_LOG_INFO, "job-rewind", "job=\"%s\" uid=%u from=%llu to=%llu", job->name,
           (unsigned)job->uid, (unsigned long long)job->iterations,
           (unsigned long long)v->iterations);
    zsd_early_drop(job);
    ready_again(job);
    zsd_job_to(job, ZSD_LOADING);
    job->from = zsd_version_ref(v);
    zsd_resume_rewind(job, v, ready_rewound);
}

/* Every rank of a job that is in memory is ready again. */
static void ready_present(struct zsd_job *job)
{
    struct zb_err err = { 0 };
    struct zsd_version *v;

    if (job->regained && job->state == ZSD_READY)
        zsd_early_drop(job);
    job->ready_waits = job->active > 0 || job->state == ZSD_STEPPING || job->commit ||
                       job->early_inflight > 0;
    if (job->ready_waits)
        return;
    if (job->regained)
        ready_again(job);
    if (!job->durable || !job->at_point || job->point == job->iterations) {
        ready_answer(job);
        return;
    }
    v = ready_version(job, &err);
    if (v && (job->pins > 0 || !ready_together(job))) {
        (void)zb_fail(
            &err, -EBUSY,
            "job '%s' cannot resume from step %llu: a rank already trains on the state in memory",
            job->name, (unsigned long long)job->point);
        v = NULL;
    }
    if (v && zsd_saved_room(job->saved, &err) < 0)
        v = NULL;
    if (v)
        ready_rewind(job, v);
    else
        ready_refuse(job, &err);
}

static void ready_place_end(struct zsd_job *job, int rc, const struct zb_err *err)
{
    if (rc == 0)
        zsd_tables_make(job, ready_tabled);
    else if (!job->place_waits)
        zsd_job_end(job, err);
}

static void ready_spilled(struct zsd_job *job, int rc, const struct zb_err *err)
{
    job->place_waits = rc == -ENOSPC && zsd_want_begin(job->core, &job->want, job->place_least);
    ready_place_end(job, rc, err);
}

static void ready_placed(struct zsd_job *job, int rc, const struct zb_err *err)
{
    zsd_want_end(job->core, &job->want);
    job->place_waits = rc == -ENOSPC && (zsd_core_make_room(job->core, job) ||
                                         zsd_want_begin(job->core, &job->want, job->place_least));
    if ((rc == -ENOSPC || rc == -EDQUOT) && !job->place_waits)
        zsd_place(job, true, ready_spilled); /* others cannot free memory: gradients go to NVMe */
    else
        ready_place_end(job, rc, err);
}

void zsd_place_again(struct zsd_job *job)
{
    zsd_gpu_bind(job);
    job->place_waits = zsd_params_wait(job);
    if (!job->place_waits) /* else until zsd_room_changed(), when GPU memory has been freed */
        zsd_place(job, false, ready_placed);
}

/* The shards were compared with the version. */
static void ready_checked(struct zsd_job *job, const struct zb_err *err)
{
    if (job->state == ZSD_ENDED)
        return;
    if (err)
        zsd_job_end(job, err);
    else
        zsd_place_again(job);
}

/* Every rank is ready. If the job is DEFINING, it is placed, and gets its memory. */
static void ready_all(struct zsd_job *job)
{
    struct zb_err err = { 0 };
    struct zsd_version *v;

    if (job->state == ZSD_PLACING || job->state == ZSD_LOADING)
        return; /* ready_answer() answers a rank that asked again, too */
    if (job->state != ZSD_DEFINING) {
        ready_present(job);
        return;
    }
    v = job->again ? ready_version(job, &err) : NULL;
    if (err.code != 0) {
        zsd_job_end(job, &err);
        return;
    }
    zsd_job_to(job, ZSD_PLACING);
    if (!v) {
        zsd_place_again(job);
        return;
    }
    job->from = zsd_version_ref(v);
    zsd_resume_check(job, v, ready_checked);
}

/* Places the job anew, without parameters on the device: it lacks memory, cannot share it, or has
 * failed. */
static void ready_without_gpu(struct zsd_job *job, const struct zb_err *err)
{
    zsd_params_bar(job, err->text);
    zsd_unplace(job);
    zsd_tables_again(job);
    zsd_place_again(job);
}

/* The memory of the job is allocated, and its shards point to it. */
static void ready_attached(struct zsd_job *job, const struct zb_err *err)
{
    const struct zsd_account *nvme = zsd_job_nvme(job);

    (void)err; /* there is none */
    if (job->state == ZSD_ENDED)
        return; /* zsd_job_forget_if_over() ends the memory */
    zsd_paths_register(job->core->daemon, job->arena.base, job->arena_bytes);
    zsd_replan_attach(job);
    zb_log(ZB_LOG_INFO, "job-ready",
           "job=\"%s\" uid=%u shards=%u gpu_params=%llu host_params=%llu host_grads=%llu "
           "host_state=%llu ring=%llu nvme_params=%llu nvme_grads=%llu nvme_state=%llu "
           "nvme_spare=%llu early=%d",
           job->name, (unsigned)job->uid, job->nshards, (unsigned long long)job->params->bytes,
           (unsigned long long)job->host_held.used[ZSD_USE_PARAM],
           (unsigned long long)job->host_held.used[ZSD_USE_GRAD],
           (unsigned long long)job->host_held.used[ZSD_USE_STATE],
           (unsigned long long)job->host_held.used[ZSD_USE_RING],
           (unsigned long long)nvme->used[ZSD_USE_PARAM],
           (unsigned long long)nvme->used[ZSD_USE_GRAD],
           (unsigned long long)nvme->used[ZSD_USE_STATE],
           (unsigned long long)nvme->used[ZSD_USE_RING], (int)job->early_room);
    if (job->from) {
        zsd_job_to(job, ZSD_LOADING);
        ready_load(job);
        return;
    }
    zsd_job_to(job, ZSD_READY);
    ready_answer(job);
    zsd_replan(job->core);
}

static void job_arena_opened(struct zsd_arena_task *t)
{
    struct zsd_job *job = t->job;

    if (t->gpu_err.code == -EIO || t->gpu_err.code == -EFAULT)
        zsd_gpu_fail(job->core, t->gpu, &t->gpu_err);
    if (t->gpu_err.code != 0 && job->state != ZSD_ENDED) {
        ready_without_gpu(job, &t->gpu_err);
        return;
    }
    if (t->err.code != 0) {
        zsd_job_end(job, &t->err);
        return;
    }
    if (job->state == ZSD_ENDED)
        return;                 /* as in ready_attached() */
    if (zsd_params_lost(job)) { /* it has failed since */
        zsd_job_end(job, zsd_params_lost(job));
        return;
    }
    for (uint32_t g = 0; zsd_gpu_pins_early(job) && g < job->core->daemon->ngpus; g++)
        if (job->params->on[g].booked > 0)
            zsd_gpu_pinned(job, g, g == t->gpu ? &t->pin_err : &(struct zb_err){ 0 });
    zsd_tables_attach(job, ready_attached);
}

/* The shards have their tables. Starts a task that allocates the memory of the job. */
static void ready_tabled(struct zsd_job *job, const struct zb_err *err)
{
    struct zsd_arena_task *t;
    struct zb_err why = { 0 };

    if (job->state == ZSD_ENDED)
        return;
    if (err) {
        zsd_job_end(job, err);
        return;
    }
    t = zsd_arena_task_new(job, ZSD_ARENA_OPEN, job_arena_opened);
    if (!t || zsd_replan_ranges(job, &t->ranges, &t->nranges) < 0) {
        zsd_arena_task_free(t);
        (void)zb_fail(&why, -ENOMEM, "job '%s': %m", job->name);
        zsd_job_end(job, &why);
        return;
    }
    t->bytes = job->arena_bytes;
    t->memory_bytes = job->memory_bytes;
    t->touch = job->from != NULL;
    zsd_arena_task_start(t);
}

static void ready_expire(struct zsd_timed *timed)
{
    struct zsd_member *m = zb_container_of(timed, struct zsd_member, ready_timed);
    struct zsd_req *r = m->ready_req;
    struct zsd_job *job = m->job;
    uint32_t n = 0;

    zb_list_each(pos, &job->members) n += zb_container_of(pos, struct zsd_member, node)->ready;
    m->ready_req = NULL;
    m->ready = false;
    if (job->state == ZSD_PLACING && job->want.bytes > 0) {
        struct zb_err err = { 0 };

        (void)zb_fail(&err, -ETIMEDOUT,
                      "job '%s' waits for %s of host memory, which other jobs have to give back "
                      "with their next steps",
                      job->name, zb_size_text(job->want.bytes).s);
        zsd_reply_err(r, &err);
        zsd_job_end(job, &err);
        return;
    }
    if (job->state == ZSD_PLACING && job->place_waits)
        zsd_refuse(r, -ETIMEDOUT, "job '%s' waits for memory that other jobs are giving back",
                   job->name);
    else
        zsd_refuse(r, -ETIMEDOUT, "job '%s' waits for its ranks: %u of %u were ready", job->name, n,
                   job->world);
}

static void ready_check(struct zsd_job *job)
{
    uint32_t ready = 0;

    zb_list_each(pos, &job->members)
    {
        const struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        ready += m->ready && m->conn != NULL;
    }
    if (ready == job->world)
        ready_all(job);
}

void zsd_ready_resume(struct zsd_job *job)
{
    bool waits = job->ready_waits;

    job->ready_waits = false;
    if (waits)
        ready_check(job);
}

/* Whether a rank waits in `ready`. */
static bool ready_others(const struct zsd_job *job)
{
    zb_list_each(pos, &job->members)
    {
        if (zb_container_of(pos, struct zsd_member, node)->ready_req)
            return true;
    }
    return false;
}

ZSD_REQUEST(zsd_ready, Ready)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zsd_job *job;

    if (!m)
        return;
    job = m->job;
    if (m->ready) {
        zsd_refuse(req, -EBUSY, "rank %u of job '%s' is already ready", m->rank, job->name);
        return;
    }
    if (m->defining) {
        zsd_refuse(req, -EINVAL, "unit '%s' of job '%s' is not complete", m->defining->name,
                   job->name);
        return;
    }
    if (job->nshards == 0 && job->world == 1) {
        zsd_refuse(req, -EINVAL, "job '%s' has no shards", job->name);
        return;
    }
    if (ready_others(job) &&
        (q->at_point != job->at_point || (q->at_point && q->iterations != job->point))) {
        zsd_refuse(req, -EINVAL, "rank %u of job '%s' resumes from another step than its peers",
                   m->rank, job->name);
        return;
    }
    if (q->writable && job->optimizer == ZB_MUON) {
        zsd_refuse(req, -ENOTSUP, "job '%s' with Muon: its parameters cannot be mapped read-write",
                   job->name);
        return;
    }
    job->at_point = q->at_point;
    job->point = q->iterations;
    m->ready = true;
    m->writable = q->writable;
    m->ready_req = req;
    zsd_timed_arm(job->core, &m->ready_timed, q->timeout_ms, ready_expire);
    ready_check(job);
}
