/*
 * job.c - requests for jobs: open, ready, close, destroy, share; the budget of a tier.
 */
#include <errno.h>
#include <stdio.h>

#include "client/ask/ask_priv.h"
#include "proto/wire.h"

/* Public values are sent unchanged. */
_Static_assert((int)ZC_HOST == ZP_HOST && (int)ZC_NVME == ZP_NVME && (int)ZC_GPU == ZP_GPU &&
                   (int)ZC_POINT_MEMORY == ZP_POINT_MEMORY &&
                   (int)ZC_POINT_PREPARED == ZP_POINT_PREPARED &&
                   (int)ZC_POINT_COMMITTED == ZP_POINT_COMMITTED &&
                   (int)ZC_LATE_STEP == ZP_LATE_STEP && (int)ZC_LATE_PINS == ZP_LATE_PINS,
               "zclient.h has the numbers of proto/wire.h");

static int points_check(struct zc_client *c, const Zp__JobOpenReply *r)
{
    if (r->n_points > ZC_POINTS_MAX)
        return zc_fail(c, -EPROTO, "a job with %zu points to resume from", r->n_points);
    for (size_t i = 0; i < r->n_points; i++)
        if (r->points[i]->kind < ZC_POINT_MEMORY || r->points[i]->kind > ZC_POINT_COMMITTED)
            return zc_fail(c, -EPROTO, "a point of kind %u", r->points[i]->kind);
    return 0;
}

static int reply_job_open(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                          int *fds)
{
    const Zp__JobOpenReply *r = (const Zp__JobOpenReply *)m;
    struct zc_job *ret = call->spec.ret;
    int rc;

    if (r->job == 0)
        return zc_fail(c, -EPROTO, "a job without a number");
    rc = points_check(c, r);
    if (rc == 0)
        rc = zc_map_open(c, &c->staging, "staging", fds[0], r->staging_bytes, true);
    if (rc < 0)
        return rc;
    c->job = r->job;
    *ret = (struct zc_job){ .id = r->job,
                            .iterations = r->iterations,
                            .applied = r->applied,
                            .staging = c->staging.base,
                            .staging_bytes = c->staging.bytes,
                            .epoch = r->epoch,
                            .world = r->world,
                            .npoints = (uint32_t)r->n_points };
    for (size_t i = 0; i < r->n_points; i++)
        ret->points[i] = (struct zc_point){ .kind = (enum zc_point_kind)r->points[i]->kind,
                                            .iterations = r->points[i]->iterations,
                                            .applied = r->points[i]->applied };
    return 0;
}

static const struct zc_method method_job_open = { .id = ZP_JOB_OPEN,
                                                  .reply = reply_job_open,
                                                  .fds = 1 };

int zc_job_open(struct zc_client *c, const struct zc_job_options *options, struct zc_job *ret,
                zc_done_fn *done, void *arg)
{
    Zp__JobOpen m = ZP__JOB_OPEN__INIT;
    int rc = zc_name_check(c, "a job", options->name, ZC_NAME_MAX);

    if (rc < 0)
        return rc;
    m.name = UNCONST(char, options->name);
    m.rank = options->rank;
    m.world = options->world;
    m.keep = options->keep;
    m.attach = options->attach;
    m.staging_bytes = options->staging_bytes;
    m.offload_param = options->offload_param ? options->offload_param : ZC_NVME;
    m.offload_optimizer = options->offload_optimizer ? options->offload_optimizer : ZC_NVME;
    m.offload_grad = options->offload_grad ? options->offload_grad : ZC_NVME;
    m.host_bytes_max = options->host_bytes_max;
    m.groups = options->groups;
    m.optimizer = options->optimizer ? options->optimizer : ZC_ADAMW;
    m.moments = options->moments ? options->moments : ZC_MOMENTS_F32;
    m.durable = options->durable;
    m.takeover = options->takeover;
    m.epoch = options->epoch;
    m.returns = options->returns;
    m.share = options->share;
    m.early = options->early;
    m.grad_ring = options->grad_ring;
    m.grad_ring_keep = options->grad_ring_keep;
    m.grad_ring_limits = options->grad_ring_limits;
    m.tensor_norms = options->tensor_norms;
    m.muon_engine = options->muon_engine;
    if (options->muon_engine != ZC_MUON_CPU && !(c->features & ZP_FEATURE_MUON_ENGINE))
        return zc_fail(c, -EOPNOTSUPP, "%s is older than muon_engine", c->server.server);
    c->params_writable = options->writable;
    m.device = UNCONST(char, options->device ? options->device : "");
    m.device_node = options->device_node;
    return zc_ask(c, &method_job_open, &m.base, ret, done, arg);
}

static int reply_ready(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds)
{
    const Zp__ReadyReply *r = (const Zp__ReadyReply *)m;
    struct zc_placement *ret = call->spec.ret;
    int rc = zc_map_open(c, &c->params, "parameter", fds[0], r->arena_bytes, c->params_writable);

    if (rc < 0)
        return rc;
    if (r->own_at > r->arena_bytes || r->own_bytes > r->arena_bytes - r->own_at ||
        r->ring_bytes > r->arena_bytes)
        return zc_fail(c, -EPROTO, "this rank's parameters are outside of the arena");
    c->gpu_params = r->gpu_params;
    *ret = (struct zc_placement){ .arena_bytes = r->arena_bytes,
                                  .ring_bytes = r->ring_bytes,
                                  .host_bytes = r->host_bytes,
                                  .nvme_bytes = r->nvme_bytes,
                                  .iterations = r->iterations,
                                  .applied = r->applied,
                                  .early = r->early,
                                  .grads_on_nvme = r->grads_on_nvme,
                                  .grads_ringed = r->grads_ringed,
                                  .arena = c->params.base,
                                  .gpu_params = r->gpu_params,
                                  .own_at = r->own_at,
                                  .own_bytes = r->own_bytes,
                                  .node = r->node };
    (void)snprintf(ret->gpu_why, sizeof(ret->gpu_why), "%s", r->gpu_why);
    return 0;
}

static const struct zc_method method_ready = {
    .id = ZP_READY, .reply = reply_ready, .fds = 1, .of_job = true
};

int zc_ready(struct zc_client *c, uint64_t job, const uint64_t *at, uint32_t timeout_ms,
             struct zc_placement *ret, zc_done_fn *done, void *arg)
{
    Zp__Ready m = ZP__READY__INIT;

    m.job = job;
    m.timeout_ms = timeout_ms;
    m.at_point = at != NULL;
    m.iterations = at ? *at : 0;
    m.writable = c->params_writable;
    return zc_ask(c, &method_ready, &m.base, ret, done, arg);
}

static int reply_gpu_share(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                           int *fds)
{
    const Zp__GpuShareReply *r = (const Zp__GpuShareReply *)m;

    if (r->bytes < c->gpu_params)
        return zc_fail(c, -EPROTO, "%llu bytes of GPU memory, and %llu of parameters in it",
                       (unsigned long long)r->bytes, (unsigned long long)c->gpu_params);
    *(struct zc_gpu_memory *)call->spec.ret =
        (struct zc_gpu_memory){ .mem_fd = fds[0], .mark_fd = fds[1], .bytes = r->bytes };
    fds[0] = fds[1] = -1;
    return 0;
}

static const struct zc_method method_gpu_share = {
    .id = ZP_GPU_SHARE, .reply = reply_gpu_share, .fds = 2, .of_job = true
};

int zc_gpu_share(struct zc_client *c, uint64_t job, struct zc_gpu_memory *ret, zc_done_fn *done,
                 void *arg)
{
    Zp__JobRef m = ZP__JOB_REF__INIT;

    m.job = job;
    return zc_ask(c, &method_gpu_share, &m.base, ret, done, arg);
}

static int reply_job_close(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                           int *fds)
{
    (void)call;
    (void)m;
    (void)fds;
    zc_map_close(&c->staging);
    zc_map_close(&c->params);
    c->gpu_params = 0;
    c->job = 0;
    return 0;
}

static const struct zc_method method_job_close = { .id = ZP_JOB_CLOSE, .reply = reply_job_close };

int zc_job_close(struct zc_client *c, uint64_t job, zc_done_fn *done, void *arg)
{
    Zp__JobRef m = ZP__JOB_REF__INIT;

    m.job = job;
    return zc_ask(c, &method_job_close, &m.base, NULL, done, arg);
}

static const struct zc_method method_job_destroy = { .id = ZP_JOB_DESTROY };

int zc_job_destroy(struct zc_client *c, const char *name, zc_done_fn *done, void *arg)
{
    Zp__JobName m = ZP__JOB_NAME__INIT;
    int rc = name ? zc_job_word(c, name, &m.name, &m.owner)
                  : zc_name_check(c, "a job", name, ZC_NAME_MAX);

    if (rc < 0)
        return rc;
    return zc_ask(c, &method_job_destroy, &m.base, NULL, done, arg);
}

static const struct zc_method method_job_share = { .id = ZP_JOB_SHARE };

int zc_job_share(struct zc_client *c, const char *name, uint32_t share, zc_done_fn *done, void *arg)
{
    Zp__JobShare m = ZP__JOB_SHARE__INIT;
    int rc = name ? zc_job_word(c, name, &m.name, &m.owner)
                  : zc_name_check(c, "a job", name, ZC_NAME_MAX);

    if (rc < 0)
        return rc;
    m.share = share;
    return zc_ask(c, &method_job_share, &m.base, NULL, done, arg);
}

static const struct zc_method method_job_about = { .id = ZP_JOB_ABOUT, .of_job = true };

_Static_assert(ZC_EARLY_OLD + 1 == (int)ZP_EARLY_END && ZC_EARLY_MICROS == (int)ZP_EARLY_MICROS,
               "the same reasons");

int zc_job_about(struct zc_client *c, uint64_t job, const struct zc_job_about *about,
                 zc_done_fn *done, void *arg)
{
    Zp__JobAbout m = ZP__JOB_ABOUT__INIT;
    int rc = zc_sums_known(c);

    if (rc < 0)
        return rc;
    m.job = job;
    m.clip_mode = about->clip_mode;
    m.clip = about->clip;
    m.clip_ratio = about->clip_ratio;
    m.clip_warm_until = about->clip_warm_until;
    m.early = (uint32_t)about->early;
    m.frozen_tensors = about->frozen_tensors;
    m.frozen_bytes = about->frozen_bytes;
    return zc_ask(c, &method_job_about, &m.base, NULL, done, arg);
}

static const struct zc_method method_quota_set = { .id = ZP_QUOTA_SET };

int zc_quota_set(struct zc_client *c, const struct zc_quota *quota, zc_done_fn *done, void *arg)
{
    Zp__QuotaSet m = ZP__QUOTA_SET__INIT;

    m.uid = quota->uid;
    m.host = quota->set_host;
    m.nvme = quota->set_nvme;
    m.gpu = quota->set_gpu;
    m.jobs = quota->set_jobs;
    m.host_max = quota->host_max;
    m.nvme_max = quota->nvme_max;
    m.gpu_max = quota->gpu_max;
    m.jobs_max = quota->jobs_max;
    return zc_ask(c, &method_quota_set, &m.base, NULL, done, arg);
}

static const struct zc_method method_drive_set = { .id = ZP_DRIVE_SET };

int zc_drive_set(struct zc_client *c, uint32_t number, bool drain, zc_done_fn *done, void *arg)
{
    Zp__DriveSet m = ZP__DRIVE_SET__INIT;

    m.number = number;
    m.drain = drain;
    return zc_ask(c, &method_drive_set, &m.base, NULL, done, arg);
}

static const struct zc_method method_tier_set = { .id = ZP_TIER_SET };

int zc_tier_set(struct zc_client *c, const char *tier, uint64_t bytes, zc_done_fn *done, void *arg)
{
    Zp__TierSet m = ZP__TIER_SET__INIT;
    int rc = zc_name_check(c, "a tier", tier, ZC_NAME_MAX);

    if (rc < 0)
        return rc;
    m.name = UNCONST(char, tier);
    m.bytes = bytes;
    return zc_ask(c, &method_tier_set, &m.base, NULL, done, arg);
}
