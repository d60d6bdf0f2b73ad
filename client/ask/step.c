/*
 * step.c - requests for steps and commits.
 */
#include <errno.h>
#include <stdio.h>

#include "client/ask/ask_priv.h"

/* Converts the scalars of a step to messages. Returns their number, or a negative errno. */
static int step_groups(struct zc_client *c, const struct zc_step *step, Zp__GroupScalars *groups,
                       Zp__GroupScalars **pointers)
{
    if (!step->groups && step->ngroups > 0)
        return zc_fail(c, -EINVAL, "%u parameter groups, and none is given", step->ngroups);
    if (step->ngroups > ZP_GROUPS_MAX)
        return zc_fail(c, -EINVAL, "%u parameter groups: at most %u", step->ngroups, ZP_GROUPS_MAX);
    for (uint32_t i = 0; i < step->ngroups; i++) {
        zc_group_scalars(&step->groups[i], &groups[i]);
        pointers[i] = &groups[i];
    }
    return (int)step->ngroups;
}

static int reply_step(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                      int *fds)
{
    const Zp__StepReply *r = (const Zp__StepReply *)m;
    struct zc_stepped *ret = call->spec.ret;

    (void)fds;
    if (r->commit_code > 0)
        return zc_fail(c, -EPROTO, "a step with a commit of code %d", r->commit_code);
    *ret = (struct zc_stepped){ .iterations = r->iterations,
                                .applied = r->applied,
                                .commit_code = r->commit_code };
    if (r->commit_code < 0)
        (void)snprintf(ret->commit_text, sizeof(ret->commit_text), "%s",
                       r->commit_text[0] ? r->commit_text : zc_strerror(r->commit_code));
    return 0;
}

static const struct zc_method method_step = { .id = ZP_STEP, .reply = reply_step, .of_job = true };

int zc_step(struct zc_client *c, uint64_t job, const struct zc_step *step, struct zc_stepped *ret,
            zc_done_fn *done, void *arg)
{
    Zp__Step m = ZP__STEP__INIT;
    Zp__GroupScalars groups[ZP_GROUPS_MAX], *pointers[ZP_GROUPS_MAX];
    int n = step_groups(c, step, groups, pointers);

    if (n < 0)
        return n;
    m.job = job;
    m.step = step->step;
    m.scale = step->scale;
    m.n_groups = (size_t)n;
    m.groups = pointers;
    m.commit = step->commit;
    m.timeout_ms = step->timeout_ms;
    m.by_classes = !step->groups;
    m.factors = step->factors;
    return zc_ask(c, &method_step, &m.base, ret, done, arg);
}

static const struct zc_method method_step_begin = { .id = ZP_STEP_BEGIN, .of_job = true };

int zc_step_begin(struct zc_client *c, uint64_t job, const struct zc_step *step, uint32_t micros,
                  zc_done_fn *done, void *arg)
{
    Zp__StepBegin m = ZP__STEP_BEGIN__INIT;
    Zp__GroupScalars groups[ZP_GROUPS_MAX], *pointers[ZP_GROUPS_MAX];
    int n = step_groups(c, step, groups, pointers);

    if (n >= 0 && step->sums)
        n = zc_sums_known(c) < 0 ? -EOPNOTSUPP : n;
    if (n < 0)
        return n;
    m.job = job;
    m.step = step->step;
    m.scale = step->scale;
    m.n_groups = (size_t)n;
    m.groups = pointers;
    m.micros = micros;
    m.sums = step->sums;
    m.by_classes = !step->groups;
    m.limits = step->limits;
    return zc_ask(c, &method_step_begin, &m.base, NULL, done, arg);
}

static const struct zc_method method_job_optimizer = { .id = ZP_JOB_OPTIMIZER, .of_job = true };

int zc_job_optimizer(struct zc_client *c, uint64_t job, enum zc_optimizer optimizer,
                     enum zc_moments moments, zc_done_fn *done, void *arg)
{
    Zp__JobOptimizer m = ZP__JOB_OPTIMIZER__INIT;

    m.job = job;
    m.optimizer = optimizer;
    m.moments = moments;
    return zc_ask(c, &method_job_optimizer, &m.base, NULL, done, arg);
}

static const struct zc_method method_abandon = { .id = ZP_ABANDON, .of_job = true };

int zc_abandon(struct zc_client *c, uint64_t job, uint64_t step, zc_done_fn *done, void *arg)
{
    Zp__Abandon m = ZP__ABANDON__INIT;

    m.job = job;
    m.step = step;
    return zc_ask(c, &method_abandon, &m.base, NULL, done, arg);
}

static const struct zc_method method_skip = { .id = ZP_SKIP, .reply = reply_step, .of_job = true };

int zc_skip(struct zc_client *c, uint64_t job, uint64_t step, enum zc_commit commit,
            uint32_t timeout_ms, struct zc_stepped *ret, zc_done_fn *done, void *arg)
{
    Zp__Skip m = ZP__SKIP__INIT;

    m.job = job;
    m.step = step;
    m.commit = commit;
    m.timeout_ms = timeout_ms;
    return zc_ask(c, &method_skip, &m.base, ret, done, arg);
}

static int reply_commit(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                        int *fds)
{
    const Zp__CommitReply *r = (const Zp__CommitReply *)m;
    struct zc_point *ret = call->spec.ret;

    (void)c;
    (void)fds;
    *ret = (struct zc_point){ .kind = (enum zc_point_kind)call->spec.n,
                              .iterations = r->iterations,
                              .applied = r->applied };
    return 0;
}

static const struct zc_method method_commit = { .id = ZP_COMMIT,
                                                .reply = reply_commit,
                                                .of_job = true };

int zc_commit(struct zc_client *c, uint64_t job, enum zc_commit what, uint64_t iterations,
              uint32_t timeout_ms, struct zc_point *ret, zc_done_fn *done, void *arg)
{
    Zp__Commit m = ZP__COMMIT__INIT;

    m.job = job;
    m.what = what;
    m.iterations = iterations;
    m.timeout_ms = timeout_ms;
    return zc_call_start(c, &(struct zc_call_spec){ .method = &method_commit,
                                                    .message = &m.base,
                                                    .ret = ret,
                                                    .n = what == ZC_COMMIT_PREPARE
                                                             ? ZC_POINT_PREPARED
                                                             : ZC_POINT_COMMITTED,
                                                    .done = done,
                                                    .arg = arg });
}

static const struct zc_method method_progress = { .id = ZP_PROGRESS, .of_job = true };

int zc_progress(struct zc_client *c, uint64_t job, uint64_t iterations, uint64_t applied,
                zc_done_fn *done, void *arg)
{
    Zp__Progress m = ZP__PROGRESS__INIT;

    m.job = job;
    m.iterations = iterations;
    m.applied = applied;
    return zc_ask(c, &method_progress, &m.base, NULL, done, arg);
}
