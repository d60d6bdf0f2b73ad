/*
 * plan/gpu_params.c - parameters on the GPU: admitted with the job, shared with its ranks, and
 * tracked until the last process unmaps them.
 *
 * MODEL. If all ranks of a job request it (and are on the daemon's device), all of its parameters
 * are in one allocation on the device, or none. This is decided at the job's placement (place.c),
 * from the free bytes of the tier's budget, and stays so while the job is in memory. There is no
 * copy in a lower tier. Page operations that need these parameters in host memory copy them through
 * a page buffer (page/pageop.c). If they are not on the device, they are placed like those of any
 * job, and job->params->why has the reason.
 *
 *     asked ---> fits? ---> booked ---> made ---> shared ...  the job ends ---> freed ---> unbooked
 *                  no, or it cannot be made and shared: host memory, or NVMe      \
 *                                                                                  +--> strand
 *
 * A STRAND is memory of parameters that was freed while a process still maps it: a process that
 * hangs, or that dies a moment later than its socket. The device cannot free the memory yet, so it
 * stays booked and no other job gets it. A thread of the tier checks strands every STRAND_LOOK_MS,
 * until their marks have closed (kernels/gpu.h). A strand that exists after STRAND_LOOKS checks is
 * logged, with its processes; `zctl tiers` shows it at once.
 *
 * ORDER between processes. A rank copies what it has pinned, and releases the pin when its copy is
 * done. A step begins when there are no pins, and its results are complete before any process is
 * notified. So no stream of one process ever waits for one of another.
 *
 * INVARIANTS
 *
 *     GP1  bytes, booked and mem (once made) are set from zsd_params_book() to
 *          zsd_params_unplace().
 *     GP2  What is booked for parameters in the tier's account belongs to jobs and strands.
 */
#include "daemon/plan/gpu_params.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/plan/gpu_plan.h"
#include "daemon/plan/planner.h"
#include "daemon/run/gpu_tier.h"
#include "proto/shard.pb-c.h"

#define STRAND_LOOK_MS 100u
#define STRAND_LOOKS   10u
#define SHARES_A_RANK  8u /* open at a time, per rank; each uses a descriptor of the daemon */

/* ---- requests, and whether they fit */

bool zsd_params_seen(const struct zsd_job *job, const char *device)
{
    struct zsd_gpu *gpu = job->core->daemon->gpu;

    return gpu && strcmp(zk_gpu_info(zsd_gpu_device(gpu))->id, device) == 0;
}

void zsd_params_ask(struct zsd_job *job, uint32_t rank, const char *device)
{
    struct zsd_job_params *p = job->params;

    if (!job->core->daemon->gpu || p->barred || zsd_params_seen(job, device))
        return;
    p->barred = true;
    (void)snprintf(p->why, sizeof(p->why), "rank %u is not on the GPU of the daemon", rank);
}

void zsd_params_bar(struct zsd_job *job, const char *why)
{
    job->params->barred = true;
    (void)snprintf(job->params->why, sizeof(job->params->why), "%.160s", why);
}

bool zsd_params_fit(struct zsd_job *job, uint64_t bytes)
{
    struct zsd_core *core = job->core;
    struct zsd_job_params *p = job->params;
    struct zb_err quota = { 0 };
    uint64_t units, used, left;

    if (!p->asked || p->barred || bytes == 0)
        return false;
    p->why[0] = '\0';
    if (!core->daemon->gpu) {
        (void)snprintf(p->why, sizeof(p->why), "the daemon has no GPU tier (gpu_bytes)");
        return false;
    }
    if (core->tiers.gpu_err.code != 0) {
        (void)snprintf(p->why, sizeof(p->why), "the GPU has failed: %.100s",
                       core->tiers.gpu_err.text);
        return false;
    }
    units = zsd_gpu_units(core, bytes);
    if (zsd_limit_bytes(&job->quota, ZSD_HELD_GPU, units, &quota) < 0) {
        (void)snprintf(p->why, sizeof(p->why), "%.*s", (int)sizeof(p->why) - 1, quota.text);
        return false;
    }
    used = zsd_account_used(&core->tiers.gpu);
    left = core->tiers.gpu_target > used ? core->tiers.gpu_target - used : 0;
    if (units <= left)
        return true;
    (void)snprintf(p->why, sizeof(p->why),
                   "they take %s, and %s of the GPU tier are free; the smallest gpu_bytes that "
                   "would work is %llu",
                   zb_size_text(units).s, zb_size_text(left).s, (unsigned long long)(used + units));
    return false;
}

void zsd_params_book(struct zsd_job *job, uint64_t bytes)
{
    struct zsd_job_params *p = job->params;

    if (bytes == 0) {
        if (p->asked)
            zb_log(ZB_LOG_WARN, "params-not-on-gpu", "job=\"%s\" uid=%u why=\"%s\"", job->name,
                   (unsigned)job->uid, p->why);
        return;
    }
    p->bytes = bytes;
    p->booked = zsd_gpu_units(job->core, bytes);
    p->tag = ++job->core->planner->params_tag;
    zsd_book(&job->core->tiers.gpu, &job->gpu_held, ZSD_USE_PARAM, p->booked);
    zsd_gpu_settle(job->core);
}

/* ---- memory */

void *zsd_params_at(const struct zsd_shard *s, uint32_t page)
{
    return (uint8_t *)zk_gpu_addr(s->job->params->mem) + s->arena_at +
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

int zsd_params_make(struct zsd_job *job, struct zk_gpu_mem **ret, struct zb_err *err)
{
    struct zk_gpu *device = zsd_gpu_device(job->core->daemon->gpu);
    struct zk_gpu_mem *mem = NULL;
    int rc = zk_gpu_alloc(device, job->params->bytes, job->params->tag, &mem, err);

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
    struct drop d = { .tag = job->params->tag };

    if (!job->params->mem)
        return;
    zk_gpu_free(job->params->mem);
    zk_gpu_stranded(zsd_gpu_device(job->core->daemon->gpu), drop_on_strand, &d);
    job->params->held = d.held;
}

/* ---- strands */

struct strand {
    struct zb_list node; /* in core->planner->strands */
    uint64_t tag;
    char job[ZP_NAME_MAX + 1];
    uid_t uid;
    uint64_t booked;
    unsigned looks;
};

/* The result of one check, for the strands that existed when it began. */
struct look {
    struct zsd_task task;
    struct zsd_core *core;
    unsigned n;
    struct zk_gpu_strand seen[]; /* nholders 0: the strand has ended */
};

static struct strand *strand_of(struct zb_list *node)
{
    return zb_container_of(node, struct strand, node);
}

const char *zsd_strand_job(const struct zsd_core *core, uint64_t tag)
{
    zb_list_each(pos, &core->planner->strands)
    {
        if (strand_of(pos)->tag == tag)
            return strand_of(pos)->job;
    }
    zb_list_each(pos, &core->jobs->list)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->params->tag == tag)
            return job->name;
    }
    return NULL;
}

size_t zsd_strand_text(const struct zk_gpu_strand *strand, char *text, size_t size)
{
    size_t len = 0;

    for (unsigned i = 0; i < strand->nholders && i < ZK_GPU_HOLDERS_MAX && len < size; i++)
        len += (size_t)snprintf(text + len, size - len, "%s%llu", i > 0 ? "," : "",
                                (unsigned long long)strand->holders[i]);
    return len;
}

static void params_unbook(struct zsd_core *core, uint64_t booked)
{
    zsd_unbook(&core->tiers.gpu, NULL, ZSD_USE_PARAM, booked);
    zsd_gpu_settle(core);
}

static void strands_arm(struct zsd_core *core);

/* The mark of the strand has closed. */
static void strand_over(struct zsd_core *core, struct strand *s)
{
    if (s->looks >= STRAND_LOOKS)
        zb_log(ZB_LOG_INFO, "gpu-returned", "job=\"%s\" uid=%u bytes=%llu", s->job,
               (unsigned)s->uid, (unsigned long long)s->booked);
    params_unbook(core, s->booked);
    zb_list_remove(&s->node);
    free(s);
    zsd_room_changed(core);
}

static void strand_stays(struct zsd_core *core, struct strand *s, const struct zk_gpu_strand *seen)
{
    char pids[128] = "";

    if (++s->looks != STRAND_LOOKS)
        return;
    (void)zsd_strand_text(seen, pids, sizeof(pids));
    zb_log(ZB_LOG_WARN, "gpu-stranded",
           "job=\"%s\" uid=%u bytes=%llu pids=%s why=\"the job has ended, and these processes have "
           "its "
           "parameters mapped\"",
           s->job, (unsigned)s->uid, (unsigned long long)s->booked, pids);
    zsd_room_changed(core); /* requests that wait for this memory give up */
}

static void look_on_strand(void *arg, const struct zk_gpu_strand *strand)
{
    struct look *l = arg;

    for (unsigned i = 0; i < l->n; i++)
        if (l->seen[i].tag == strand->tag)
            l->seen[i] = *strand;
}

static void look_run(struct zsd_task *task)
{
    struct look *l = zb_container_of(task, struct look, task);

    zk_gpu_stranded(zsd_gpu_device(l->core->daemon->gpu), look_on_strand, l);
}

static void look_done(struct zsd_task *task)
{
    struct look *l = zb_container_of(task, struct look, task);
    struct zsd_core *core = l->core;

    core->in_progress--;
    core->planner->strands_looked_at = false;
    for (unsigned i = 0; i < l->n; i++)
        zb_list_each(pos, &core->planner->strands)
        {
            if (strand_of(pos)->tag != l->seen[i].tag)
                continue;
            if (l->seen[i].nholders == 0)
                strand_over(core, strand_of(pos));
            else
                strand_stays(core, strand_of(pos), &l->seen[i]);
            break;
        }
    free(l);
    strands_arm(core);
}

static void strands_look(struct zsd_timed *timed)
{
    struct zsd_core *core = zb_container_of(timed, struct zsd_planner, strands_timed)->core;
    struct look *l;
    unsigned n = 0;

    zb_list_each(pos, &core->planner->strands) n++;
    l = calloc(1, sizeof(*l) + n * sizeof(l->seen[0]));
    if (!l) {
        strands_arm(core); /* no memory: try again later */
        return;
    }
    l->task = (struct zsd_task){ .run = look_run, .done = look_done };
    l->core = core;
    zb_list_each(pos, &core->planner->strands) l->seen[l->n++].tag = strand_of(pos)->tag;
    core->planner->strands_looked_at = true;
    core->in_progress++;
    zsd_compute_post(core->daemon->gpu_threads, &l->task);
}

static void strands_arm(struct zsd_core *core)
{
    zsd_timed_disarm(&core->planner->strands_timed);
    if (!zb_list_empty(&core->planner->strands) && !core->planner->strands_looked_at &&
        !core->draining)
        zsd_timed_arm(core, &core->planner->strands_timed, STRAND_LOOK_MS, strands_look);
}

void zsd_strands_free(struct zsd_core *core)
{
    zsd_timed_disarm(&core->planner->strands_timed);
    for (struct zb_list *node; (node = zb_list_pop_front(&core->planner->strands)) != NULL;)
        free(strand_of(node));
}

/* Makes a strand of the job's parameters. False: no memory. */
static bool strand_begin(struct zsd_job *job)
{
    struct strand *s = calloc(1, sizeof(*s));

    if (!s)
        return false;
    s->tag = job->params->tag;
    memcpy(s->job, job->name, sizeof(s->job));
    s->uid = job->uid;
    s->booked = job->params->booked;
    zsd_disown(&job->gpu_held, ZSD_USE_PARAM, s->booked); /* no user's any more */
    zb_list_push_back(&job->core->planner->strands, &s->node);
    strands_arm(job->core);
    return true;
}

void zsd_params_unplace(struct zsd_job *job)
{
    struct zsd_job_params *p = job->params;

    if (p->bytes > 0 && !(p->held && strand_begin(job))) {
        zsd_disown(&job->gpu_held, ZSD_USE_PARAM, p->booked);
        params_unbook(job->core, p->booked);
    }
    p->bytes = p->booked = 0;
    p->mem = NULL;
    p->held = false;
}

/* Bytes that are being freed: of jobs that have ended, and of strands that are not logged yet. */
static uint64_t params_returning(const struct zsd_core *core)
{
    uint64_t bytes = 0;

    zb_list_each(pos, &core->jobs->list)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->state == ZSD_ENDED)
            bytes += job->gpu->held_bytes + job->params->booked;
    }
    zb_list_each(pos, &core->planner->strands)
    {
        if (strand_of(pos)->looks < STRAND_LOOKS)
            bytes += strand_of(pos)->booked;
    }
    return bytes;
}

bool zsd_params_wait(struct zsd_job *job)
{
    struct zsd_core *core = job->core;
    uint64_t back, stays, bytes = 0;

    if (!job->params->asked || job->params->barred || !core->daemon->gpu ||
        core->tiers.gpu_err.code != 0)
        return false;
    back = params_returning(core);
    if (back == 0)
        return false;
    stays = zsd_account_used(&core->tiers.gpu) - back;
    for (uint32_t i = 0; i < job->nshards; i++)
        bytes += zsd_param_bytes(job->shards[i]);
    return !zsd_params_fit(job, bytes) &&
           stays + zsd_gpu_units(core, bytes) <= core->tiers.gpu_target;
}

/* ---- shared with a rank */

struct share_op {
    struct zsd_task task;
    struct zsd_job *job;
    struct zsd_req *req;
    uint64_t pid;
    unsigned most; /* maximum number of shares of the job, including this one */
    struct zk_gpu_share share;
    struct zb_err err;
};

static void share_run(struct zsd_task *task)
{
    struct share_op *op = zb_container_of(task, struct share_op, task);
    struct zk_gpu_mem *mem = op->job->params->mem;
    unsigned held = zk_gpu_holders(mem);

    if (held < op->most)
        (void)zk_gpu_share(mem, op->pid, &op->share, &op->err);
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

    if (!m)
        return;
    if (!m->job->params->mem) {
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
                             .pid = (uint64_t)req->conn->pid,
                             .most = SHARES_A_RANK * zsd_job_attached(m->job),
                             .share = { .mem_fd = -1, .mark_fd = -1 } };
    zsd_job_hold(m->job);
    zsd_compute_post(m->job->core->daemon->gpu_threads, &op->task);
}
