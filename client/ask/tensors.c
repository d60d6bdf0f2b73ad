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
    uint32_t first, n;
};

static void norms_part(Zp__TensorNorms *m, const struct norms_copy *copy, uint64_t at)
{
    zp__tensor_norms__init(m);
    m->job = copy->job;
    m->step = copy->step;
    m->first = copy->first + (uint32_t)at;
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

static int norms_ask(struct zc_client *c, const struct norms_copy *ask, uint8_t *ret,
                     zc_done_fn *done, void *arg)
{
    struct norms_copy *copy;
    Zp__TensorNorms m;

    if (ask->n < 1)
        return zc_fail(c, -EINVAL, "norms of no tensor");
    copy = malloc(sizeof(*copy));
    if (!copy)
        return zc_fail(c, -ENOMEM, "norms of %u tensors: %m", ask->n);
    *copy = *ask;
    norms_part(&m, copy, 0);
    return zc_call_start(c, &(struct zc_call_spec){ .method = &method_tensor_norms,
                                                    .message = &m.base,
                                                    .ret = ret,
                                                    .copy = copy,
                                                    .done = done,
                                                    .arg = arg });
}

int zc_tensor_norms(struct zc_client *c, uint64_t job, uint64_t step, uint32_t ntensors,
                    uint8_t *ret, zc_done_fn *done, void *arg)
{
    const struct norms_copy ask = { .job = job, .step = step, .n = ntensors };

    return norms_ask(c, &ask, ret, done, arg);
}

int zc_sums_known(struct zc_client *c)
{
    int rc = zc_conn_usable(c);

    return rc < 0 || c->server.sums
               ? rc
               : zc_fail(c, -EOPNOTSUPP, "%s is older than sums of tensors over several nodes",
                         c->server.server);
}

int zc_unit_norms(struct zc_client *c, uint64_t job, uint64_t step, uint32_t first,
                  uint32_t ntensors, uint8_t *ret, zc_done_fn *done, void *arg)
{
    const struct norms_copy ask = { .job = job, .step = step, .first = first, .n = ntensors };
    int rc = zc_sums_known(c);

    return rc < 0 ? rc : norms_ask(c, &ask, ret, done, arg);
}

/* ---- sums over several nodes */

struct sums_copy {
    uint64_t job, step;
    uint32_t unit, n;
    uint8_t sums[];
};

static void sums_part(Zp__UnitSums *m, struct sums_copy *copy, uint64_t at)
{
    zp__unit_sums__init(m);
    m->job = copy->job;
    m->step = copy->step;
    m->unit = copy->unit;
    m->first = (uint32_t)at;
    m->sums_of_squares.len = zb_min_u64(copy->n - at, ZP_NORMS_PART) * ZC_NORM_BYTES;
    m->sums_of_squares.data = copy->sums + at * ZC_NORM_BYTES;
}

static int next_sums(struct zc_client *c, struct zc_call *call)
{
    struct sums_copy *copy = call->spec.copy;
    Zp__UnitSums m;
    int rc;

    call->at += ZP_NORMS_PART;
    if (call->at >= copy->n)
        return 0;
    sums_part(&m, copy, call->at);
    rc = zc_call_again(c, call, &m.base);
    return rc < 0 ? rc : 1;
}

static const struct zc_method method_unit_sums = { .id = ZP_UNIT_SUMS,
                                                   .next = next_sums,
                                                   .of_job = true };

int zc_unit_sums(struct zc_client *c, uint64_t job, uint64_t step, uint32_t unit,
                 const uint8_t *sums, uint32_t ntensors, zc_done_fn *done, void *arg)
{
    size_t bytes = (size_t)ntensors * ZC_NORM_BYTES;
    struct sums_copy *copy;
    Zp__UnitSums m;
    int rc = zc_sums_known(c);

    if (rc < 0)
        return rc;
    copy = malloc(sizeof(*copy) + bytes);
    if (!copy)
        return zc_fail(c, -ENOMEM, "sums of %u tensors: %m", ntensors);
    *copy = (struct sums_copy){ .job = job, .step = step, .unit = unit, .n = ntensors };
    memcpy(copy->sums, sums, bytes);
    sums_part(&m, copy, 0);
    return zc_call_start(c, &(struct zc_call_spec){ .method = &method_unit_sums,
                                                    .message = &m.base,
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
