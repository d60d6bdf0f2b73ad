/*
 * op/open.c - a rank opens a job: a new one, one in memory, or a saved one, which is then made
 * again.
 *
 * WAITING. A job-open that cannot be decided yet waits in core->ops->opens. It is tried again
 * whenever a job has ended, memory was freed, or a commit has ended. It waits in these cases:
 *
 *     - an incarnation of its job is still ending
 *     - the saved job is being rolled back or destroyed, or a clone with this name is being made
 *     - the job retires, to be made again for another number of ranks, or because its parameters
 *       are on a GPU that this rank cannot use
 *     - there is no room for its staging, but memory is being freed, other jobs can free some
 *       (plan/replan.c), or a reader uses the memory that was kept for it
 *
 * One deadline holds for all of these, counted from the first wait.
 */
#include "daemon/op/open.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/op/end.h"
#include "daemon/op/member.h"
#include "daemon/op/new.h"
#include "daemon/op/opens.h"
#include "daemon/op/reader.h"
#include "daemon/op/ready.h"
#include "daemon/op/requests.h"
#include "daemon/op/room.h"
#include "daemon/op/wake.h"
#include "daemon/plan/host.h"
#include "daemon/plan/job_arena.h"
#include "daemon/plan/place.h"
#include "daemon/run/gpu_tier.h"
#include "daemon/store/lost.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"
#include "proto/wire.h"

static void open_run(struct zsd_req *req, const Zp__JobOpen *q, uint64_t deadline_ns);
static void staging_opened(struct zsd_arena_task *t);

void zsd_room_on_work(struct zsd_work *work)
{
    struct zsd_core *core = zb_container_of(work, struct zsd_core, room);
    struct zb_list again;

    zb_list_init(&again); /* some may be parked again */
    while (!zb_list_empty(&core->ops->opens)) {
        struct zb_list *node = zb_list_pop_front(&core->ops->opens);

        zb_list_push_back(&again, node);
    }
    for (struct zb_list *node; (node = zb_list_pop_front(&again)) != NULL;) {
        struct zsd_open_wait *w = zb_container_of(node, struct zsd_open_wait, node);

        if (!zsd_want_met(core, &w->want)) {
            zb_list_push_back(&core->ops->opens, &w->node);
            continue;
        }
        zsd_want_end(core, &w->want);
        open_run(w->req, &w->q, w->timed.deadline_ns);
        zsd_open_wait_free(core, w);
    }
    zb_list_each(pos, &core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->state == ZSD_PLACING && job->place_waits && zsd_want_met(core, &job->want))
            zsd_place_again(job);
    }
    zsd_reader_waits_retry(core);
    zsd_replan(core);
}

/* ---- open */

static int open_check(const struct zsd_core *core, const Zp__JobOpen *q, struct zb_err *err)
{
    if (core->leaving || core->draining)
        return zb_fail(err, -ECANCELED, "the daemon is ending: it takes no new jobs");
    if (!zp_name_valid(q->name))
        return zb_fail(err, -EINVAL,
                       "'%s' is not a valid job name: 1 to %u letters, digits, '.', '_' or '-'",
                       q->name, ZP_NAME_MAX);
    if (q->world < 1 || q->world > ZP_WORLD_MAX)
        return zb_fail(err, -EINVAL, "a world of %u ranks: must be 1 to %u", q->world,
                       ZP_WORLD_MAX);
    if (q->rank >= q->world)
        return zb_fail(err, -EINVAL, "rank %u is outside of a world of %u ranks", q->rank,
                       q->world);
    if (q->groups < 1 || q->groups > ZP_GROUPS_MAX)
        return zb_fail(err, -EINVAL, "%u parameter groups: must be 1 to %u", q->groups,
                       ZP_GROUPS_MAX);
    if (q->offload_param < ZP_HOST || q->offload_param > ZP_GPU || q->offload_optimizer < ZP_HOST ||
        q->offload_optimizer > ZP_NVME || q->offload_grad > ZP_NVME)
        return zb_fail(
            err, -EINVAL,
            "places %u, %u and %u: must be 1 (host) or 2 (nvme), for parameters also 3 (gpu)",
            q->offload_param, q->offload_optimizer, q->offload_grad);
    if (strlen(q->device) > ZSD_DEVICE_MAX)
        return zb_fail(err, -EINVAL, "a device's id has at most %u bytes", ZSD_DEVICE_MAX);
    if (q->device_node > ZSD_NEAR_NODES)
        return zb_fail(err, -EINVAL, "a device near NUMA node %u: must be below %u",
                       q->device_node - 1, ZSD_NEAR_NODES);
    if (!zb_optimizer_name(q->optimizer))
        return zb_fail(
            err, -EINVAL,
            "optimizer %u: must be 1 (AdamW), 2 (Adam), 3 (Lion), 4 (SGD), 5 (Adagrad), 6 "
            "(Muon)",
            q->optimizer);
    if (!zb_moments_name(zsd_open_moments(q)))
        return zb_fail(err, -EINVAL,
                       "moments %u: must be 1 (fp32), 2 (bf16), 3 (8bit), 4 (8bit-lo)", q->moments);
    if (q->durable && !q->keep)
        return zb_fail(err, -EINVAL, "a job that is not kept cannot be durable");
    if (q->durable && zsd_fixed(&core->daemon->config))
        return zb_fail(err, -EINVAL,
                       "this daemon runs with io fixed, for benchmarks: no job can be durable");
    if (q->durable && !core->store)
        return zb_fail(err, -EINVAL,
                       "a durable job needs a daemon with an NVMe tier and a permanent data "
                       "directory (nvme_bytes, data)");
    if (!zb_muon_engine_name((enum zb_muon_engine)q->muon_engine) ||
        (q->muon_engine != ZB_MUON_CPU && q->optimizer != ZB_MUON))
        return zb_fail(err, -EINVAL, "muon_engine %u of a job with %s", q->muon_engine,
                       zb_optimizer_name(q->optimizer));
    if (q->grad_ring_keep > 100)
        return zb_fail(err, -EINVAL, "gradients of %u percent of the pages: at most 100",
                       q->grad_ring_keep);
    if (q->grad_ring_limits && (!q->grad_ring || !q->tensor_norms))
        return zb_fail(err, -EINVAL,
                       "limits of norms with gradients that are not held: the job needs a ring of "
                       "gradients, and norms of tensors");
    if (q->share > ZSD_SHARE_MAX)
        return zb_fail(err, -EINVAL, "a share of %u: must be 1 to %u", q->share, ZSD_SHARE_MAX);
    if (q->staging_bytes > INT64_MAX - ZB_PAGE_ALIGN)
        return zb_fail(err, -EINVAL, "staging of %llu bytes", (unsigned long long)q->staging_bytes);
    return 0;
}

static int open_stale(const Zp__JobOpen *q, uint64_t epoch, struct zb_err *err)
{
    return zb_fail(err, -ESTALE,
                   "job '%s' is in epoch %llu: rank %u of epoch %llu was disconnected", q->name,
                   (unsigned long long)epoch, q->rank, (unsigned long long)q->epoch);
}

/* Whether the job is in the epoch that a takeover names, or in a later one: another run has taken it
 * over. */
static int open_superseded(const Zp__JobOpen *q, uint64_t epoch, struct zb_err *err)
{
    if (!q->takeover || q->epoch == 0 || q->epoch > epoch)
        return 0;
    return zb_fail(err, -ESTALE,
                   "job '%s' is in epoch %llu: another run has taken it over from rank %u of epoch "
                   "%llu",
                   q->name, (unsigned long long)epoch, q->rank, (unsigned long long)q->epoch - 1);
}

/* All ranks open a job with the same optimizer, the same format of moments, and the same engine. */
static int open_trains(const Zp__JobOpen *q, enum zb_optimizer optimizer, enum zb_moments moments,
                       enum zb_muon_engine engine, struct zb_err *err)
{
    if (q->optimizer == optimizer && zsd_open_moments(q) == moments && q->muon_engine != engine)
        return zb_fail(
            err, -EINVAL,
            "rank %u opens job '%s' with muon_engine %s, but its matrices are "
            "orthogonalized by %s: another engine has other bits, so a job keeps its own",
            q->rank, q->name, zb_muon_engine_name((enum zb_muon_engine)q->muon_engine),
            zb_muon_engine_name(engine));
    if (q->optimizer == optimizer && zsd_open_moments(q) == moments)
        return 0;
    return zb_fail(
        err, -EINVAL,
        "rank %u opens job '%s' for %s with %s moments, but the job uses %s with %s moments",
        q->rank, q->name, zb_optimizer_name(q->optimizer), zb_moments_name(zsd_open_moments(q)),
        zb_optimizer_name(optimizer), zb_moments_name(moments));
}

/* Whether this rank may join an existing job. */
static int open_join(struct zsd_job *job, const Zp__JobOpen *q, struct zb_err *err)
{
    bool forming = job->state == ZSD_DEFINING && q->attach == job->again;

    if (!forming && !q->attach)
        return zb_fail(err, -EEXIST, "job '%s' exists already", q->name);
    if (q->attach && !job->keep && !job->image)
        return zb_fail(err, -EINVAL,
                       "job '%s' was not opened with `keep`: no process can attach to it", q->name);
    if (q->world != job->world)
        return zb_fail(err, -EINVAL, "job '%s' has %u ranks, not %u", q->name, job->world,
                       q->world);
    if (!q->takeover && q->epoch != 0 && q->epoch != job->epoch)
        return open_stale(q, job->epoch, err);
    if (zsd_member_by_rank(job, q->rank))
        return zb_fail(err, q->attach ? -EBUSY : -EEXIST,
                       "job '%s' exists already: its rank %u is taken", q->name, q->rank);
    if (open_trains(q, job->optimizer, job->moments, job->muon_engine, err) < 0)
        return -EINVAL;
    if (q->keep != job->keep || q->durable != job->durable || q->groups != job->groups ||
        (forming &&
         (zsd_open_param(job->core, q) != job->offload_param ||
          zsd_open_asks_gpu(q) != job->params->asked ||
          zsd_open_optimizer(job->core, q) != job->offload_optimizer ||
          (q->offload_grad == ZP_HOST) != (job->offload_grad == ZP_HOST) ||
          q->host_bytes_max != job->host_bytes_max || q->early != job->early_wish ||
          q->grad_ring != job->ring_wish || q->grad_ring_keep != job->ring_keep ||
          q->grad_ring_limits != job->limits_wish || q->tensor_norms != job->tensor_norms ||
          (q->share == 0 ? ZSD_SHARE_DEFAULT : q->share) != job->share_opened)))
        return zb_fail(err, -EINVAL, "rank %u opens job '%s' with different options from its peers",
                       q->rank, q->name);
    if (!zsd_open_sees(job, q))
        return zb_fail(err, -ENOTSUP,
                       "the parameters of job '%s' are on the GPU, which rank %u is not on, or has "
                       "not asked for",
                       q->name, q->rank);
    return 0;
}

/* A kept job is opened as another one. */
static int open_differs(const Zp__JobOpen *q, bool durable, uint32_t groups, struct zb_err *err)
{
    static const char *const not [] = { "not ", "" };

    return zb_fail(err, -EINVAL,
                   "job '%s' is kept, %sdurable, and has %u parameter groups; rank %u opens it "
                   "%skept, %sdurable, with %u",
                   q->name, not [durable], groups, q -> rank, not [!!q->keep], not [!!q->durable],
                   q -> groups);
}

/* Checks a takeover before any rank is disconnected for it. */
static int open_takes_over(const struct zsd_job *job, const Zp__JobOpen *q, struct zb_err *err)
{
    if (open_superseded(q, job->epoch, err) < 0)
        return -ESTALE;
    if (open_trains(q, job->optimizer, job->moments, job->muon_engine, err) < 0)
        return -EINVAL;
    if (!q->keep || q->durable != job->durable || q->groups != job->groups)
        return open_differs(q, job->durable, job->groups, err);
    if (!job->durable && q->world != job->world)
        return zb_fail(err, -EINVAL, "job '%s' has %u ranks, not %u", q->name, job->world,
                       q->world);
    return 0;
}

/* Disconnects the attached ranks and begins a new epoch, `epoch` or later. A job that is not READY yet ends. */
static void open_takeover(struct zsd_job *job, uint64_t epoch)
{
    struct zb_err why = { 0 };

    job->epoch = zb_max_u64(job->epoch + 1, epoch);
    if (job->saved)
        job->saved->epoch = job->epoch;
    (void)zb_fail(&why, -ESTALE,
                  "job '%s' was taken over: this rank is of an older epoch than %llu", job->name,
                  (unsigned long long)job->epoch);
    if (job->state < ZSD_READY) {
        zsd_job_end(job, &why);
        return;
    }
    zsd_job_hold(job);
    zsd_job_tell(job, ZP_EVENT_JOB_FAILED, 0, &why);
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        if (m->conn && !m->open_req)
            zsd_member_detach(m, &why);
    }
    zsd_job_unhold(job);
}

/* Whether this open can be decided only after something else has ended. */
static bool open_waits(const struct zsd_core *core, uid_t uid, struct zsd_job *job,
                       const struct zsd_saved *saved, const Zp__JobOpen *q)
{
    if (saved && saved->moving)
        return true;
    if (!job) /* its last incarnation is ending, or a change may create the name */
        return (saved && saved->job) || zsd_job_name_coming(core, uid, q->name);
    if (!q->attach || !job->durable)
        return false;
    if (job->retiring)
        return true;
    if ((q->world == job->world && zsd_open_sees(job, q)) || zsd_job_attached(job) > 0)
        return false;
    return job->state >= ZSD_READY; /* until it has retired */
}

/* Whether the rank may make a job again from its image: it was attached to that job. To any other
 * client there is no such job. 0 or a negative errno. */
static int open_image(const Zp__JobOpen *q, const struct zsd_saved *image, struct zb_err *err)
{
    if (!q->attach)
        return zb_fail(err, -EEXIST,
                       "job '%s' exists already: the daemon was restarted, and waits for its ranks",
                       q->name);
    if (q->epoch == 0 || q->durable)
        return zb_fail(err, -ENOENT, "there is no job '%s' to attach to", q->name);
    if (q->world != image->committed->world || q->groups != image->groups)
        return zb_fail(err, -EINVAL, "job '%s' has %u ranks and %u parameter groups", q->name,
                       image->committed->world, image->groups);
    return 0;
}

/* The job that this rank opens: one in memory, a saved one that is made again, or a new one. */
static int open_find(struct zsd_req *req, const Zp__JobOpen *q, struct zsd_saved *saved,
                     struct zsd_job **job, struct zb_err *err)
{
    struct zsd_core *core = req->daemon->core;

    if (*job)
        return open_join(*job, q, err);
    if (saved && saved->image && open_image(q, saved, err) < 0)
        return err->code;
    if (saved && !q->attach)
        return zb_fail(err, -EEXIST, "job '%s' exists already: it is saved", q->name);
    if (!saved && q->attach)
        return zb_fail(err, -ENOENT, "there is no job '%s' to attach to", q->name);
    if (saved && !saved->image && (!q->keep || !q->durable || q->groups != saved->groups))
        return open_differs(q, true, saved->groups, err);
    if (saved && open_trains(q, saved->optimizer, saved->moments, saved->muon_engine, err) < 0)
        return -EINVAL;
    if (saved && (zsd_version_whole(core, saved->committed, err) < 0 ||
                  zsd_version_whole(core, saved->prepared, err) < 0))
        return -EIO;
    if (!zsd_limit_room(&req->conn->quota, ZSD_LIMIT_JOBS, 1))
        return zsd_limit_take(&req->conn->quota, ZSD_LIMIT_JOBS, 1, err);
    if (saved && !q->takeover && q->epoch != 0 && q->epoch != saved->epoch)
        return open_stale(q, saved->epoch, err);
    if (saved && open_superseded(q, saved->epoch, err) < 0)
        return -ESTALE;
    *job = saved ? zsd_job_again(core, q, saved) : zsd_job_new(core, q, req->conn->uid);
    if (!*job)
        return zb_fail(err, -ENOMEM, "job '%s': %m", q->name);
    if (saved && q->takeover) /* saved->epoch follows in staging_opened() */
        (*job)->epoch = zb_max_u64((*job)->epoch + 1, q->epoch);
    (*job)->wake.run = zsd_wake_on_work;
    (*job)->over.run = zsd_over_on_work;
    zb_log(ZB_LOG_INFO, "job-open", "job=\"%s\" id=%u uid=%u world=%u keep=%d durable=%d saved=%d",
           (*job)->name, (*job)->number, (unsigned)(*job)->uid, (*job)->world, (int)(*job)->keep,
           (int)(*job)->durable, (int)(*job)->again);
    return 0;
}

/* Lets an open wait for room that others are freeing. False: no memory to keep it. */
static bool open_park_room(struct zsd_core *core, struct zsd_req *req, const Zp__JobOpen *q,
                           uint64_t deadline_ns, const struct zb_err *lacks)
{
    struct zsd_open_wait *w = zsd_open_park(core, req, q, ZSD_OPEN_ROOM, deadline_ns);

    if (w)
        w->lacks = *lacks;
    return w != NULL;
}

/* deadline_ns 0: the open has not waited yet. */
static void open_run(struct zsd_req *req, const Zp__JobOpen *q, uint64_t deadline_ns)
{
    struct zsd_core *core = req->daemon->core;
    struct zsd_saved *saved = zsd_saved_by_name(core, req->conn->uid, q->name);
    struct zb_err err = { 0 };
    struct zsd_job *job = NULL;
    struct zsd_member *m;
    struct zsd_arena_task *t;
    uint64_t lacks = 0;
    bool fresh = false, waits = false;

    if (!saved)
        saved = zsd_image_by_name(core, req->conn->uid, q->name);
    if (req->conn->member) {
        zsd_refuse(req, -EBUSY, "this connection has opened job '%s' already",
                   req->conn->member->job->name);
        return;
    }
    if (open_check(core, q, &err) < 0)
        goto refuse;
    job = zsd_job_by_name(core, req->conn->uid, q->name);
    if (job && q->attach && q->takeover && job->keep && (job->again || job->state >= ZSD_LOADING)) {
        if (open_takes_over(job, q, &err) < 0)
            goto refuse; /* before its ranks are disconnected */
        open_takeover(job, q->epoch);
        job = zsd_job_by_name(core, req->conn->uid, q->name); /* it may have ended */
    }
    if (open_waits(core, req->conn->uid, job, saved, q)) {
        bool retires = job && (job->world != q->world || !zsd_open_sees(job, q)) &&
                       !(saved && saved->moving);

        if (!zsd_open_park(core, req, q, ZSD_OPEN_JOB, deadline_ns)) {
            (void)zb_fail(&err, -ENOMEM, "rank %u of job '%s': %m", q->rank, q->name);
            goto refuse;
        }
        if (retires && job->state == ZSD_READY && !job->commit && job->active == 0)
            zsd_job_retire(job); /* if it cannot, the parked open fails at once */
        return;
    }
    fresh = !job;
    if (open_find(req, q, saved, &job, &err) < 0)
        goto refuse;
    t = zsd_arena_task_new(job, ZSD_STAGING_OPEN, staging_opened);
    m = t ? zsd_member_new(job, req->conn, q->rank) : NULL;
    if (!m) {
        free(t);
        (void)zb_fail(&err, -ENOMEM, "rank %u of job '%s': %m", q->rank, q->name);
        goto refuse;
    }
    t->bytes = zb_round_up(q->staging_bytes, ZB_PAGE_ALIGN);
    if (zsd_place_staging(job, t->bytes, &err) < 0) {
        waits = err.code != -EDQUOT && zsd_place_staging_fits(job, t->bytes, &lacks);
        free(t);
        zb_list_remove(&m->node);
        req->conn->member = NULL;
        free(m);
        goto refuse;
    }
    t->member = m;
    m->returns = q->returns;
    m->gpu = zsd_gpu_find(core->daemon, q->device);
    m->near = q->device_node > 0     ? (int)q->device_node - 1
              : m->gpu != ZSD_NO_GPU ? zsd_gpu_node(core->daemon, m->gpu)
                                     : ZSD_NEAR_NONE;
    job->tensor_norms = job->tensor_norms || q->tensor_norms; /* gradients begin anew */
    if (zsd_open_asks_gpu(q) && job->state == ZSD_DEFINING)
        zsd_params_ask(job, q->rank, q->device);
    job->seen = true;
    m->open_req = req;
    m->staging_users++; /* keeps the member until staging_opened() */
    zsd_arena_task_start(t);
    return;
refuse:
    if (fresh && job) {
        zsd_job_to(job, ZSD_ENDED); /* no rank has seen it */
        zsd_job_forget_if_over(job);
        job = NULL;
    }
    if (err.code == -ENOSPC && zsd_core_make_room(core, job) &&
        open_park_room(core, req, q, deadline_ns, &err))
        return;
    if (waits && zsd_open_want(core, req, q, lacks, deadline_ns))
        return;
    zsd_reply_err(req, &err);
}

ZSD_REQUEST(zsd_job_open, JobOpen)
{
    if (zsd_open_parked(req->conn))
        zsd_refuse(req, -EBUSY, "this connection is opening a job already");
    else
        open_run(req, q, 0);
}

/* The staging was created, or has failed; the rank may have died meanwhile. A rank that attaches
 * during a step or a commit is answered when that ends (zsd_job_stepped(), zsd_job_committed()), so
 * that it gets the same points as the other ranks. */
static void staging_opened(struct zsd_arena_task *t)
{
    struct zsd_member *m = t->member;
    struct zsd_job *job = t->job;
    bool only = zsd_job_attached(job) <= 1 && job->state == ZSD_DEFINING;

    m->staging = t->arena;
    if (m->staging.fd < 0)
        zsd_unplace_staging(job, t->bytes); /* else this follows when the arena is closed */
    if (job->state == ZSD_ENDED)
        (void)zb_fail(&t->err, job->why.code, "%s", job->why.text);
    if (m->conn && t->err.code == 0 && job->saved && job->saved->epoch < job->epoch)
        job->saved->epoch = job->epoch;
    if (m->conn && t->err.code != 0)
        zsd_member_detach(m, &t->err);
    else if (m->conn && job->state != ZSD_STEPPING && !job->commit)
        zsd_open_answer(m);
    zsd_staging_put(m);
    if (t->err.code != 0 && only)
        zsd_job_end(job, &t->err);
}
