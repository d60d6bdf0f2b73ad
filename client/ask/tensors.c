/*
 * tensors.c - norms and values of single tensors, in parts; call->at is the number of tensors that
 * are done.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/ask/ask_priv.h"
#include "kernels/zk.h"

double zc_limit_factor(double limit, double norm)
{
    return zk_limit_factor(limit, norm);
}

/* ---- norms */

struct norms_copy {
    uint64_t job, step;
    uint32_t n;
};

static void norms_part(Zp__TensorNorms *m, const struct norms_copy *copy, uint64_t at)
{
    zp__tensor_norms__init(m);
    m->job = copy->job;
    m->step = copy->step;
    m->first = (uint32_t)at;
    m->count = (uint32_t)zb_min_u64(copy->n - at, ZP_NORMS_PART);
}

static int reply_tensor_norms(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                              int *fds)
{
    const Zp__TensorNormsReply *r = (const Zp__TensorNormsReply *)m;
    const struct norms_copy *copy = call->spec.copy;
    uint64_t n = zb_min_u64(copy->n - call->at, ZP_NORMS_PART);

    (void)fds;
    if (r->sums_of_squares.len != n * ZC_NORM_BYTES)
        return zc_fail(c, -EPROTO, "sums of %llu tensors in %zu bytes", (unsigned long long)n,
                       r->sums_of_squares.len);
    if (n > 0)
        memcpy((uint8_t *)call->spec.ret + call->at * ZC_NORM_BYTES, r->sums_of_squares.data,
               n * ZC_NORM_BYTES);
    return 0;
}

static int next_norms(struct zc_client *c, struct zc_call *call)
{
    const struct norms_copy *copy = call->spec.copy;
    Zp__TensorNorms m;
    int rc;

    call->at += ZP_NORMS_PART;
    if (call->at >= copy->n)
        return 0;
    norms_part(&m, copy, call->at);
    rc = zc_call_again(c, call, &m.base);
    return rc < 0 ? rc : 1;
}

static const struct zc_method method_tensor_norms = {
    .id = ZP_TENSOR_NORMS, .reply = reply_tensor_norms, .next = next_norms, .of_job = true
};

int zc_tensor_norms(struct zc_client *c, uint64_t job, uint64_t step, uint32_t ntensors,
                    uint8_t *ret, zc_done_fn *done, void *arg)
{
    struct norms_copy *copy;
    Zp__TensorNorms m;

    if (ntensors < 1)
        return zc_fail(c, -EINVAL, "norms of no tensor");
    copy = malloc(sizeof(*copy));
    if (!copy)
        return zc_fail(c, -ENOMEM, "norms of %u tensors: %m", ntensors);
    *copy = (struct norms_copy){ .job = job, .step = step, .n = ntensors };
    norms_part(&m, copy, 0);
    return zc_call_start(c, &(struct zc_call_spec){ .method = &method_tensor_norms,
                                                    .message = &m.base,
                                                    .ret = ret,
                                                    .copy = copy,
                                                    .done = done,
                                                    .arg = arg });
}

/* ---- values */

struct values_copy {
    uint64_t job, step;
    bool limits;
    uint32_t n;
    double values[];
};

static void values_part(Zp__StepTensors *m, struct values_copy *copy, uint64_t at)
{
    zp__step_tensors__init(m);
    m->job = copy->job;
    m->step = copy->step;
    m->begin = at == 0;
    m->limits = copy->limits;
    m->n_values = zb_min_u64(copy->n - at, ZP_VALUES_PART);
    m->values = copy->values + at;
}

static int next_values(struct zc_client *c, struct zc_call *call)
{
    struct values_copy *copy = call->spec.copy;
    Zp__StepTensors m;
    int rc;

    call->at += ZP_VALUES_PART;
    if (call->at >= copy->n)
        return 0;
    values_part(&m, copy, call->at);
    rc = zc_call_again(c, call, &m.base);
    return rc < 0 ? rc : 1;
}

static const struct zc_method method_step_tensors = { .id = ZP_STEP_TENSORS,
                                                      .next = next_values,
                                                      .of_job = true };

int zc_step_tensors(struct zc_client *c, uint64_t job, uint64_t step, bool limits,
                    const double *values, uint32_t ntensors, zc_done_fn *done, void *arg)
{
    struct values_copy *copy = malloc(sizeof(*copy) + ntensors * sizeof(*values));
    Zp__StepTensors m;

    if (!copy)
        return zc_fail(c, -ENOMEM, "values of %u tensors: %m", ntensors);
    *copy = (struct values_copy){ .job = job, .step = step, .limits = limits, .n = ntensors };
    if (ntensors > 0)
        memcpy(copy->values, values, ntensors * sizeof(*values));
    values_part(&m, copy, 0);
    return zc_call_start(c, &(struct zc_call_spec){ .method = &method_step_tensors,
                                                    .message = &m.base,
                                                    .copy = copy,
                                                    .done = done,
                                                    .arg = arg });
}
