/*
 * plan/gpu_params.c - parameters on GPUs: admitted with the job, shared with its ranks, and
 * tracked until the last process unmaps them.
 *
 * MODEL. If all ranks of a job request it (and each computes on a device of the daemon), all of its
 * parameters are on GPUs, or none: those of a rank's shards on the rank's GPU, in one allocation for
 * each device. This is decided at the job's placement (place.c), from the free bytes of the tiers'
 * budgets, and stays so while the job is in memory. There is no copy in a lower tier. Page operations that need these parameters in host memory copy them through
 * a page buffer (page/pageop.c). If they are not on the device, they are placed like those of any
 * job, and job->params->why has the reason.
 *
 *     asked ---> fits? ---> booked ---> made ---> shared ...  the job ends ---> freed ---> unbooked
 *                  no, or it cannot be made and shared: host memory, or NVMe      \
 *                                                                                  +--> strand (plan/gpu_strands.c)
 *
 * ORDER between processes. A rank copies what it has pinned, and releases the pin when its copy is
 * done. A step begins when there are no pins, and its results are complete before any process is
 * notified. So no stream of one process ever waits for one of another.
 *
 * INVARIANTS
 *
 *     GP1  bytes, booked and mem (once made) are set from zsd_params_book() to
 *          zsd_params_unplace().
 *     GP2  What is booked for parameters in a tier's account belongs to jobs and strands.
 */
#include "daemon/plan/gpu_params.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/plan/gpu_runs.h"
#include "daemon/plan/gpu_strands.h"
#include "daemon/plan/planner.h"
#include "daemon/run/gpu_tier.h"
#include "proto/shard.pb-c.h"

#define SHARES_A_RANK 8u /* open at a time, per rank; each uses a descriptor of the daemon */

/* ---- requests, and whether they fit */

bool zsd_params_seen(const struct zsd_job *job, uint32_t rank, const char *device)
{
    uint32_t g = zsd_gpu_find(job->core->daemon, device);

    return g != ZSD_NO_GPU && (!zsd_params_there(job) || g == job->ranks[rank].gpu);
}

void zsd_params_ask(struct zsd_job *job, uint32_t rank, const char *device)
{
    struct zsd_job_params *p = job->params;
    const struct zsd *daemon = job->core->daemon;

    if (daemon->ngpus == 0 || p->barred || zsd_gpu_find(daemon, device) != ZSD_NO_GPU)
        return;
    p->barred = true;
    (void)snprintf(p->why, sizeof(p->why), "rank %u is not on %s of the daemon", rank,
                   daemon->ngpus > 1 ? "a GPU" : "the GPU");
}

void zsd_params_bar(struct zsd_job *job, const char *why)
{
    job->params->barred = true;
    (void)snprintf(job->params->why, sizeof(job->params->why), "%.160s", why);
}

/* What bytes of parameters take on a GPU. If it has ranks of the job, they need memory that they can
 * map, even if they have no parameters. */
static uint64_t params_units(const struct zsd_job *job, uint32_t g, uint64_t bytes)
{
    bool has = bytes > 0;

    for (uint32_t r = 0; r < job->world && !has; r++)
        has = job->ranks[r].gpu == g;
    return has ? zsd_gpu_units(job->core, g, zb_max_u64(bytes, 1)) : 0;
}

static uint64_t params_sum(const struct zsd_job *job, const uint64_t *bytes)
{
    uint64_t sum = 0;

    for (uint32_t g = 0; g < job->core->daemon->ngpus; g++)
        sum += bytes[g];
    return sum;
}

uint64_t zsd_params_seen_bytes(const struct zsd_job *job, uint32_t rank)
{
    const struct zsd_params_on *on = &job->params->on[job->ranks[rank].gpu];

    return on->bytes > 0 ? on->bytes : on->booked;
}

uint64_t zsd_params_booked(const struct zsd_job *job)
{
    uint64_t booked = 0;

    for (uint32_t g = 0; g < job->core->daemon->ngpus; g++)
        booked += job->params->on[g].booked;
    return booked;
}

/* Whether so many units fit on one GPU. */
static bool params_fit_on(struct zsd_job *job, uint32_t g, uint64_t units)
{
    const struct zsd_gpu_tier *tier = &job->core->tiers.gpus[g];
    const struct zsd *daemon = job->core->daemon;
    struct zsd_job_params *p = job->params;
    uint64_t used = zsd_account_used(&tier->account);
    uint64_t left = zsd_gpu_left(tier, used);

    if (units == 0)
        return true;
    if (tier->err.code != 0) {
        (void)snprintf(p->why, sizeof(p->why), "the GPU has failed: %.100s", tier->err.text);
        return false;
    }
    if (units <= left)
        return true;
    if (daemon->ngpus == 1)
        (void)snprintf(p->why, sizeof(p->why),
                       "they take %s, and %s of the GPU tier are free; the smallest gpu_bytes that "
                       "would work is %llu",
                       zb_size_text(units).s, zb_size_text(left).s,
                       (unsigned long long)(used + units));
    else
        (void)snprintf(p->why, sizeof(p->why),
                       "they take %s of %s, and %s are free there; the smallest gpu_bytes that "
                       "would work is %llu",
                       zb_size_text(units).s, zsd_gpu_name(daemon->gpus[g]), zb_size_text(left).s,
                       (unsigned long long)(used + units));
    return false;
}

bool zsd_params_fit(struct zsd_job *job, const uint64_t *bytes)
{
    struct zsd_core *core = job->core;
    struct zsd_job_params *p = job->params;
    struct zb_err quota = { 0 };
    uint64_t units[ZSD_GPUS_MAX] = { 0 };

    if (!p->asked || p->barred)
        return false;
    if (job->optimizer == ZB_MUON) {
        (void)snprintf(p->why, sizeof(p->why), "Muon steps matrices in host memory");
        return false;
    }
    if (core->daemon->ngpus == 0) {
        (void)snprintf(p->why, sizeof(p->why), "the daemon has no GPU tier (gpu_bytes)");
        return false;
    }
    if (params_sum(job, bytes) == 0)
        return false;
    p->why[0] = '\0';
    for (uint32_t g = 0; g < core->daemon->ngpus; g++) {
        units[g] = params_units(job, g, bytes[g]);
        if (units[g] > 0 && core->tiers.gpus[g].err.code != 0)
            return params_fit_on(job, g, units[g]);
    }
    if (zsd_limit_bytes(&job->quota, ZSD_HELD_GPU, params_sum(job, units), &quota) < 0) {
        (void)snprintf(p->why, sizeof(p->why), "%.*s", (int)sizeof(p->why) - 1, quota.text);
        return false;
    }
    for (uint32_t g = 0; g < core->daemon->ngpus; g++)
        if (!params_fit_on(job, g, units[g]))
            return false;
    return true;
}

void zsd_params_book(struct zsd_job *job, const uint64_t *bytes)
{
    struct zsd_job_params *p = job->params;

    if (!bytes) {
        if (p->asked)
            zb_log(ZB_LOG_WARN, "params-not-on-gpu", "job=\"%s\" uid=%u why=\"%s\"", job->name,
                   (unsigned)job->uid, p->why);
        return;
    }
    p->bytes = params_sum(job, bytes);
    p->tag = ++job->core->planner->params_tag;
    for (uint32_t g = 0; g < job->core->daemon->ngpus; g++) {
        p->on[g].bytes = bytes[g];
        p->on[g].booked = params_units(job, g, bytes[g]);
        zsd_book(&job->core->tiers.gpus[g].account, &job->gpu_held, ZSD_USE_PARAM, p->on[g].booked);
        zsd_gpu_settle(job->core, g);
    }
}

const struct zb_err *zsd_params_lost(const struct zsd_job *job)
{
    for (uint32_t g = 0; g < job->core->daemon->ngpus; g++)
        if (job->params->on[g].booked > 0 && job->core->tiers.gpus[g].err.code != 0)
            return &job->core->tiers.gpus[g].err;
    return NULL;
}

/* ---- memory */

void *zsd_params_at(const struct zsd_shard *s, uint32_t page)
{
    return (uint8_t *)zk_gpu_addr(s->job->params->on[zsd_shard_gpu(s)].mem) + s->arena_at +
           (uint64_t)page * zsd_page_bytes(s, ZB_PARAM, 0);
}

/* Clears the memory, so that no job reads another one's data. */
static int params_zero(struct zk_gpu *device, struct zk_gpu_mem *mem, struct zb_err *err)
{
    struct zk_gpu_stream *stream = NULL;
    int rc = zk_gpu_stream_new(device, &stream, err);

    if (rc == 0)
        rc = zk_gpu_fill(stream, zk_gpu_addr(mem), 0, zk_gpu_len(mem), err);
    if (rc == 0)
        rc = zk_gpu_stream_sync(stream, err);
    zk_gpu_stream_free(stream);
    return rc;
}

/* Shares the memory with ourselves, so that a driver that cannot share memory fails here and not
 * during training. */
static int params_share_once(struct zk_gpu_mem *mem, struct zb_err *err)
{
    struct zk_gpu_share share;
    int rc = zk_gpu_share(mem, (uint64_t)getpid(), &share, err);

    if (rc < 0)
        return err->code = -ENOTSUP; /* fails this job only; -EIO would end the tier */
    zk_gpu_share_close(&share);
    return 0;
}

static int params_make_on(struct zsd_job *job, uint32_t g, struct zk_gpu_mem **ret,
                          struct zb_err *err)
{
    struct zk_gpu *device = zsd_gpu_device(job->core->daemon->gpus[g]);
    struct zk_gpu_mem *mem = NULL;
    int rc = zk_gpu_alloc(device, job->params->on[g].booked, job->params->tag, &mem, err);

    if (rc == 0)
        rc = params_zero(device, mem, err);
    if (rc == 0)
        rc = params_share_once(mem, err);
    if (rc == 0)
        *ret = mem;
    else
        zk_gpu_free(mem);
    return rc;
}

int zsd_params_make(struct zsd_job *job, struct zk_gpu_mem **ret, uint32_t *ret_failed,
                    struct zb_err *err)
{
    int rc = 0;

    for (uint32_t g = 0; g < job->core->daemon->ngpus && rc == 0; g++)
        if (job->params->on[g].booked > 0 && (rc = params_make_on(job, g, &ret[g], err)) < 0)
            *ret_failed = g;
    for (uint32_t g = 0; g < job->core->daemon->ngpus && rc < 0; g++) {
        zk_gpu_free(ret[g]);
        ret[g] = NULL;
    }
    return rc;
}

struct drop {
    uint64_t tag;
    bool held;
};

static void drop_on_strand(void *arg, const struct zk_gpu_strand *strand)
{
    struct drop *d = arg;

    d->held = d->held || strand->tag == d->tag;
}

void zsd_params_drop(struct zsd_job *job)
{
    for (uint32_t g = 0; g < job->core->daemon->ngpus; g++) {
        struct zsd_params_on *on = &job->params->on[g];
        struct drop d = { .tag = job->params->tag };

        if (!on->mem)
            continue;
        zk_gpu_free(on->mem);
        zk_gpu_stranded(zsd_gpu_device(job->core->daemon->gpus[g]), drop_on_strand, &d);
        on->held = d.held;
    }
}

static void params_unbook(struct zsd_core *core, uint32_t g, uint64_t booked)
{
    zsd_unbook(&core->tiers.gpus[g].account, NULL, ZSD_USE_PARAM, booked);
    zsd_gpu_settle(core, g);
}

void zsd_params_unplace(struct zsd_job *job)
{
    struct zsd_job_params *p = job->params;

    for (uint32_t g = 0; g < job->core->daemon->ngpus; g++) {
        struct zsd_params_on *on = &p->on[g];

        if (on->booked > 0 && !(on->held && zsd_strand_begin(job, g))) {
            zsd_disown(&job->gpu_held, ZSD_USE_PARAM, on->booked);
            params_unbook(job->core, g, on->booked);
        }
        *on = (struct zsd_params_on){ 0 };
    }
    p->bytes = 0;
}

/* Bytes of a GPU that are being freed: of jobs that have ended, and of strands. */
static uint64_t params_returning(const struct zsd_core *core, uint32_t g)
{
    uint64_t bytes = zsd_strands_returning(core, g);

    zb_list_each(pos, &core->jobs->list)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->state == ZSD_ENDED)
            bytes += job->gpu[g].held_bytes + job->params->on[g].booked;
    }
    return bytes;
}

bool zsd_params_wait(struct zsd_job *job)
{
    struct zsd_core *core = job->core;
    uint64_t bytes[ZSD_GPUS_MAX] = { 0 };
    bool waits = false;

    if (!job->params->asked || job->params->barred || job->optimizer == ZB_MUON ||
        core->daemon->ngpus == 0)
        return false;
    for (uint32_t g = 0; g < core->daemon->ngpus; g++)
        waits = waits || params_returning(core, g) > 0;
    if (!waits)
        return false;
    for (uint32_t i = 0; i < job->nshards; i++)
        bytes[zsd_shard_gpu(job->shards[i])] += zsd_param_bytes(job->shards[i]);
    if (zsd_params_fit(job, bytes))
        return false;
    for (uint32_t g = 0; g < core->daemon->ngpus; g++) {
        const struct zsd_gpu_tier *tier = &core->tiers.gpus[g];
        uint64_t stays = zsd_account_used(&tier->account) - params_returning(core, g);
        uint64_t units = params_units(job, g, bytes[g]);

        if (units > 0 && (tier->err.code != 0 || stays + units > tier->target))
            return false;
    }
    return true;
}

/* ---- shared with a rank */

struct share_op {
    struct zsd_task task;
    struct zsd_job *job;
    struct zsd_req *req;
    struct zk_gpu_mem *mem;
    uint64_t pid;
    unsigned most; /* maximum number of shares of the job, including this one */
    struct zk_gpu_share share;
    struct zb_err err;
};

static void share_run(struct zsd_task *task)
{
    struct share_op *op = zb_container_of(task, struct share_op, task);
    unsigned held = zk_gpu_holders(op->mem);

    if (held < op->most)
        (void)zk_gpu_share(op->mem, op->pid, &op->share, &op->err);
    else
        (void)zb_fail(&op->err, -EBUSY,
                      "the parameters of job '%s' are shared %u times already: a process that no "
                      "longer needs them must close its descriptor",
                      op->job->name, held);
}

static void share_done(struct zsd_task *task)
{
    struct share_op *op = zb_container_of(task, struct share_op, task);
    Zp__GpuShareReply reply = ZP__GPU_SHARE_REPLY__INIT;
    const int fds[] = { op->share.mem_fd, op->share.mark_fd };

    reply.bytes = op->share.len_bytes;
    if (op->err.code != 0)
        zsd_reply_err(op->req, &op->err);
    else
        zsd_reply_fds(op->req, &reply.base, fds, ZB_COUNT(fds));
    zk_gpu_share_close(&op->share);
    zsd_job_unhold(op->job);
    free(op);
}

ZSD_REQUEST(zsd_gpu_share, JobRef)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct share_op *op;
    uint32_t g;

    if (!m)
        return;
    g = m->job->ranks[m->rank].gpu;
    if (!m->job->params->on[g].mem) {
        zsd_refuse(req, -ENOENT, "the parameters of job '%s' are not on the GPU", m->job->name);
        return;
    }
    op = calloc(1, sizeof(*op));
    if (!op) {
        zsd_refuse(req, -ENOMEM, "sharing the parameters of job '%s': %m", m->job->name);
        return;
    }
    *op = (struct share_op){ .task = { .run = share_run, .done = share_done },
                             .job = m->job,
                             .req = req,
                             .mem = m->job->params->on[g].mem,
                             .pid = (uint64_t)req->conn->pid,
                             .most = SHARES_A_RANK * zsd_job_attached(m->job),
                             .share = { .mem_fd = -1, .mark_fd = -1 } };
    zsd_job_hold(m->job);
    zsd_compute_post(zsd_gpu_threads(m->job->core->daemon->gpus[g]), &op->task);
}
