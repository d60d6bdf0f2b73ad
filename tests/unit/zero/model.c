#include "tests/ztest.h"

#include "model.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zero/core/zero.h"
#include "comm_threads.h"

/* Sizes near the block of 4096, above it, and far below it. */
const struct model_unit model_units[MODEL_UNITS] = {
    { "embed",
      9000,
      false,
      2,
      { { .name = "wte", .first = 0, .ndims = 2, .dims = { 70, 100 }, .group = 0 },
        { .name = "wpe", .first = 7000, .ndims = 1, .dims = { 2000 }, .group = 1 } } },
    { "block.0",
      20481,
      false,
      3,
      { { .name = "a", .first = 0, .ndims = 1, .dims = { 5001 }, .group = 0 },
        /* a hole from 5001 to 5010 */
        { .name = "b", .first = 5010, .ndims = 1, .dims = { 90 }, .group = ZC_GROUP_FROZEN },
        { .name = "c", .first = 5100, .ndims = 1, .dims = { 15381 }, .group = 0 } } },
    { "block.1",
      20481,
      false,
      1,
      { { .name = "a", .first = 0, .ndims = 1, .dims = { 20481 }, .group = 0 } } },
    { "table", 8193, true, 0, { { .name = NULL } } },
    { "norm", 7, false, 1, { { .name = "g", .first = 0, .ndims = 1, .dims = { 7 }, .group = 1 } } },
    { "bias", 1, false, 1, { { .name = "b", .first = 0, .ndims = 0, .group = 0 } } },
    { "layer.0", 8193, false, 1, { { .name = "w", .ndims = 1, .dims = { 8193 }, .group = 1 } } },
    { "layer.1", 8193, false, 1, { { .name = "w", .ndims = 1, .dims = { 8193 }, .group = 0 } } },
    { "layer.2", 8193, false, 1, { { .name = "w", .ndims = 1, .dims = { 8193 }, .group = 0 } } },
    { "layer.3", 8193, false, 1, { { .name = "w", .ndims = 1, .dims = { 8193 }, .group = 0 } } },
};

/* A number in [-1, 1) that depends only on its arguments. */
static double draw(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t state = a * UINT64_C(0x9e3779b97f4a7c15) ^ (b << 20) ^ (c << 52);

    return (double)(int64_t)ztest_random(&state) * 0x1p-63;
}

float model_init(uint32_t unit, uint64_t elem)
{
    return (float)draw(unit + 1, elem, 1);
}

int model_init_fn(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out)
{
    (void)arg;
    assert(unit < MODEL_UNITS && count > 0);
    assert(zb_range_inside(first, count, model_units[unit].elems));
    for (uint64_t i = 0; i < count; i++)
        out[i] = model_init(unit, first + i);
    return 0;
}

static double target(uint32_t unit, uint64_t elem)
{
    return draw(unit + 1, elem, 2);
}

static double gradient(uint32_t unit, uint64_t elem, uint64_t sample, double w)
{
    return 0.5 * (w - target(unit, elem)) + 0.1 * draw(unit + 1, elem, 3 + sample % 64);
}

static float bf16_value(uint16_t bits)
{
    uint32_t b = (uint32_t)bits << 16;
    float f;

    memcpy(&f, &b, sizeof(f));
    return f;
}

static float f16_value(uint16_t bits)
{
    uint32_t fraction = bits & 0x3ffu, power = bits >> 10 & 0x1fu;
    float f = power == 0 ? ldexpf((float)fraction, -24)
                         : ldexpf((float)(fraction + 0x400u), (int)power - 25);

    assert(power < 31);
    return bits >> 15 ? -f : f;
}

static float param_at(const struct run *r, const void *params, uint64_t i)
{
    return r->dtype == ZC_F32    ? ((const float *)params)[i]
           : r->dtype == ZC_BF16 ? bf16_value(((const uint16_t *)params)[i])
                                 : f16_value(((const uint16_t *)params)[i]);
}

/* ---- on a device: the trainer computes on the host, and copies inputs and results on its stream.
 * It does not wait for the copies of gradients, so an engine that does not wait either takes stale
 * ones. */

#define DEVICE_COPIES_MAX 4096u

struct device_copies {
    struct zk_gpu_stream *stream;  /* NULL: there is no device */
    void *held[DEVICE_COPIES_MAX]; /* used by copies that may be in progress */
    uint32_t n;
};

static int copies_sync(struct device_copies *c)
{
    int rc = c->stream ? zk_gpu_stream_sync(c->stream, NULL) : 0;

    while (c->n > 0)
        free(c->held[--c->n]);
    return rc;
}

static void *copies_new(struct device_copies *c, size_t bytes)
{
    void *data = malloc(bytes);

    assert(data);
    if (c->n == DEVICE_COPIES_MAX)
        (void)copies_sync(c);
    c->held[c->n++] = data;
    return data;
}

/* Reads what is at `at` on the device, or returns `at` itself. 0 or the device's failure. */
static int device_read(struct device_copies *c, const void *at, size_t bytes, const void **ret)
{
    void *here;
    int rc;

    *ret = at;
    if (!c->stream)
        return 0;
    *ret = here = copies_new(c, bytes);
    rc = zk_gpu_copy(c->stream, ZK_GPU_TO_HOST, here, at, bytes, NULL);
    return rc < 0 ? rc : zk_gpu_stream_sync(c->stream, NULL);
}

static int device_write(struct device_copies *c, void *at, const void *from, size_t bytes)
{
    return c->stream ? zk_gpu_copy(c->stream, ZK_GPU_TO_DEVICE, at, from, bytes, NULL) : 0;
}

/* ---- training with the engine */

#define TRY(call)            \
    do {                     \
        int try_rc = (call); \
        if (try_rc != 0)     \
            return try_rc;   \
    } while (0)

static size_t unit_bytes(const struct run *r, uint32_t u)
{
    return model_units[u].elems * (r->dtype == ZC_F32 ? sizeof(float) : sizeof(uint16_t));
}

static int train_forward(struct run *r, struct zc_zero *z, double *ret_loss)
{
    double sum = 0;

    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        const void *params;

        TRY(zc_zero_gather(z, u, &params));
        assert((uintptr_t)params % 64 == 0);
        TRY(device_read(r->copies, params, unit_bytes(r, u), &params));
        for (uint64_t i = 0; i < model_units[u].elems; i++) {
            double d = param_at(r, params, i) - target(u, i);

            sum += d * d;
        }
        TRY(zc_zero_release(z, u));
    }
    *ret_loss = sum;
    return 0;
}

/* Adds one micro-batch's contribution to a unit's gradient. */
static void micro_gradient(const struct run *r, const struct zc_zero *z, uint32_t u, uint64_t step,
                           uint32_t micro, const void *params, float *grad)
{
    const struct zc_comm *comm = r->options.comm;
    uint32_t samples = MODEL_BATCH / (comm->world * r->options.micro_steps);
    uint64_t first = ((uint64_t)micro * comm->world + comm->rank) * samples + step * MODEL_BATCH;

    for (uint64_t i = 0; i < model_units[u].elems; i++) {
        double g = 0, w = param_at(r, params, i);

        for (uint32_t s = 0; s < samples; s++)
            g += gradient(u, i, first + s, w);
        grad[i] += (float)(g / samples * zc_zero_loss_scale(z));
    }
    if ((step == r->poison_step || r->poison_more >> step & 1) && comm->rank == comm->world - 1 &&
        u == r->poison_unit && micro == 0)
        grad[model_units[u].elems - 1] = r->poison_value == 0 ? INFINITY : r->poison_value;
}

/* The backward pass of micro-batches [micro, end). */
static int train_unit_backward(struct run *r, struct zc_zero *z, uint32_t u, uint64_t step,
                               uint32_t micro, uint32_t end)
{
    uint64_t grad_bytes = model_units[u].elems * sizeof(float);
    const void *params, *zeros;
    float *grad, *at;

    TRY(zc_zero_gather(z, u, &params));
    if (model_units[u].frozen)
        return zc_zero_release(z, u);
    TRY(zc_zero_grad(z, u, &at));
    assert((uintptr_t)at % 64 == 0);
    TRY(device_read(r->copies, params, unit_bytes(r, u), &params));
    TRY(device_read(r->copies, at, grad_bytes, &zeros));
    grad = (float *)(uintptr_t)zeros;
    for (uint64_t i = 0; i < model_units[u].elems; i++)
        assert(grad[i] == 0 || (micro > 0 && r->options.accumulate_local));
    for (; micro < end; micro++)
        micro_gradient(r, z, u, step, micro, params, grad);
    TRY(device_write(r->copies, at, grad, grad_bytes));
    TRY(zc_zero_release(z, u));
    return zc_zero_reduce(z, u);
}

/* Forward and backward of micro-batches [micro, end). */
static int train_micros(struct run *r, struct zc_zero *z, uint64_t step, uint32_t micro,
                        uint32_t end)
{
    double loss;

    TRY(train_forward(r, z, &loss));
    TRY(zc_zero_sum(z, &loss, 1));
    if (micro == 0)
        r->losses[step - 1] = loss;
    for (uint32_t u = MODEL_UNITS; u-- > 0;)
        TRY(train_unit_backward(r, z, u, step, micro, end));
    return 0;
}

/* The note that a step carries: its number, and its rank. */
struct note {
    uint64_t step;
    uint32_t rank;
};

static int notes_put(const struct run *r, struct zc_zero *z, uint64_t step)
{
    struct note mine = { .step = step, .rank = r->options.comm->rank };
    struct note job = { .step = step, .rank = UINT32_MAX };

    TRY(zc_zero_note_put(z, false, &mine, sizeof(mine)));
    return zc_zero_note_put(z, true, &job, sizeof(job));
}

/* Notes come back with the step that they were sent with; notes for a step that was never made do
 * not. */
static void notes_check(const struct run *r, struct zc_zero *z, uint64_t step)
{
    char buf[ZC_NOTE_MAX];
    struct note note = { 0 };
    size_t bytes = 0;

    assert_int_equal(zc_zero_note_get(z, true, buf, &bytes), 0);
    assert_int_equal(bytes, sizeof(note));
    memcpy(&note, buf, sizeof(note));
    assert_int_equal(note.step, step);
    assert_int_equal(note.rank, UINT32_MAX);
    if (zc_zero_note_get(z, false, buf, &bytes) == -ENOENT)
        return; /* a rank that did not exist then */
    memcpy(&note, buf, sizeof(note));
    assert_int_equal(note.step, step);
    assert_true(note.rank < 8 && r->options.resume);
}

/* Whether a call was refused with the code that the test expects; it is then repeated. */
static int refused(struct run *r, struct zc_zero *z, int rc)
{
    if (rc == 0 || rc != r->refusal)
        return rc;
    r->refused++;
    (void)snprintf(r->refusal_text, sizeof(r->refusal_text), "%s", zc_zero_error(z));
    return 1;
}

static double rate(uint64_t step)
{
    return 0.01 * (double)step;
}

static int train_step(struct run *r, struct zc_zero *z, uint64_t step)
{
    int rc;

    if (r->before_step)
        r->before_step(step);
    TRY(notes_put(r, z, step));
    while ((rc = refused(r, z, zc_zero_step(z, rate(step), &r->last))) == 1)
        ;
    if (rc != 0 || step != r->commit_behind)
        return rc;
    rc = refused(r, z, zc_zero_commit(z));
    return rc == 1 ? 0 : rc;
}

static int train_steps(struct run *r, struct zc_zero *z)
{
    uint64_t begin, applied, end;
    uint32_t micros = 0, at_once = r->options.vertical ? r->options.micro_steps : 1;

    TRY(zc_zero_progress(z, &begin, &applied));
    r->begun_at = begin;
    if (begin > 0)
        notes_check(r, z, begin);
    end = r->until > 0 ? r->until : begin + r->steps;
    assert(end <= MODEL_STEPS_MAX);
    for (uint64_t step = begin + 1; step <= end; step++) {
        double loss;

        if (r->options.clip > 0) /* without effect then, whatever room the job has */
            TRY(zc_zero_announce(z, 0.01 * (double)step));
        for (uint32_t micro = 0; micro < r->options.micro_steps; micro += at_once) {
            if (r->stop_after > 0 && micros++ == r->stop_after) {
                TRY(zc_zero_stats(z, &r->stats)); /* the last step has ended */
                return -EINTR;
            }
            if (r->announce && micro + at_once == r->options.micro_steps)
                TRY(zc_zero_announce(z, rate(step)));
            TRY(train_micros(r, z, step, micro, micro + at_once));
        }
        TRY(train_step(r, z, step));
        r->norms[step - 1] = r->last.grad_norm;
        r->clips[step - 1] = r->last.clip_scale;
        r->skipped[step - 1] = r->last.skipped;
        r->scales[step - 1] = r->last.loss_scale;
        if (r->evaluate && step % 2 == 0)
            TRY(train_forward(r, z, &loss));
    }
    return 0;
}

static int train_values(struct run *r, struct zc_zero *z)
{
    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        uint64_t n = model_units[u].elems, cut = n / 3;
        bool whole = !model_units[u].frozen || r->dtype == ZC_F32;

        TRY(zc_zero_read(z, u, whole ? ZC_MASTER : ZC_PARAM, 0, cut, r->values.master[u]));
        TRY(zc_zero_read(z, u, whole ? ZC_MASTER : ZC_PARAM, cut, n - cut,
                         r->values.master[u] + cut));
        if (model_units[u].frozen)
            continue;
        TRY(zc_zero_read(z, u, ZC_EXP_AVG, 0, n, r->values.m[u]));
        TRY(zc_zero_read(z, u, ZC_EXP_AVG_SQ, 0, n, r->values.v[u]));
    }
    return 0;
}

int model_declare(struct zc_zero *z, enum zc_dtype dtype, bool quantized)
{
    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        struct zc_unit unit = { .index = u,
                                .name = model_units[u].name,
                                .elems = model_units[u].elems,
                                .dtype = dtype,
                                .frozen = model_units[u].frozen,
                                .quantized = model_units[u].frozen && quantized,
                                .tensors = model_units[u].tensors,
                                .ntensors = model_units[u].ntensors };

        TRY(zc_zero_add_unit(z, &unit));
    }
    return 0;
}

static int train_all(struct run *r, struct zc_zero **ret)
{
    TRY(zc_zero_open(ret, &r->options));
    TRY(model_declare(*ret, r->dtype, r->quantized));
    TRY(zc_zero_start(*ret, model_init_fn, NULL));
    r->copies->stream = (*ret)->device.compute;
    TRY(train_steps(r, *ret));
    r->next_scale = zc_zero_loss_scale(*ret);
    if (!r->no_values)
        TRY(train_values(r, *ret));
    zc_zero_bytes(*ret, &r->bytes);
    TRY(zc_zero_stats(*ret, &r->stats));
    (void)snprintf(r->gpu_why, sizeof(r->gpu_why), "%s", r->stats.gpu_why);
    (void)snprintf(r->gather_why, sizeof(r->gather_why), "%s", r->stats.node_gather_why);
    return 0;
}

static double now_s(void)
{
    return (double)zb_now_ns() * 1e-9;
}

void run_train(struct run *r)
{
    struct device_copies *copies = calloc(1, sizeof(*copies));
    struct zc_zero *z = NULL;

    assert(copies);
    r->copies = copies;
    model_values_new(&r->values);
    r->begun_s = now_s();
    r->rc = train_all(r, &z);
    r->ended_s = now_s();
    (void)snprintf(r->error, sizeof(r->error), "%s", zc_zero_error(z));
    if (r->rc != 0 && r->abort)
        comm_group_abort(r->abort);
    (void)copies_sync(copies);
    zc_zero_close(z, r->rc == 0 && !r->dirty_end);
    r->copies = NULL;
    free(copies);
}

void run_done(struct run *r)
{
    model_values_done(&r->values);
}

static void *run_thread(void *arg)
{
    run_train(arg);
    return NULL;
}

void run_threads(struct run *runs, uint32_t n)
{
    pthread_t threads[8];

    assert(n <= ZB_COUNT(threads));
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_thread, &runs[i]), 0);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

/* ---- training with plain loops */

void model_values_new(struct model_values *v)
{
    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        v->master[u] = calloc(model_units[u].elems, sizeof(float));
        v->m[u] = calloc(model_units[u].elems, sizeof(float));
        v->v[u] = calloc(model_units[u].elems, sizeof(float));
        assert(v->master[u] && v->m[u] && v->v[u]);
    }
}

void model_values_done(struct model_values *v)
{
    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        free(v->master[u]);
        free(v->m[u]);
        free(v->v[u]);
    }
}

/* The parameter group of an element, or ZC_GROUP_FROZEN. */
static uint32_t group_of(uint32_t unit, uint64_t elem)
{
    const struct model_unit *u = &model_units[unit];

    for (uint32_t t = 0; t < u->ntensors; t++) {
        uint64_t count = 1;

        for (uint32_t d = 0; d < u->tensors[t].ndims; d++)
            count *= u->tensors[t].dims[d];
        if (elem >= u->tensors[t].first && elem < u->tensors[t].first + count)
            return u->tensors[t].group;
    }
    return ZC_GROUP_FROZEN;
}

static double mean_gradient(uint32_t u, uint64_t i, uint64_t step, double w)
{
    double g = 0;

    for (uint32_t s = 0; s < MODEL_BATCH; s++)
        g += gradient(u, i, step * MODEL_BATCH + s, w);
    return g / MODEL_BATCH;
}

void model_reference(const struct run *like, struct model_values *ret, double *ret_norms)
{
    const struct zc_zero_options *o = &like->options;

    model_values_new(ret);
    for (uint32_t u = 0; u < MODEL_UNITS; u++)
        for (uint64_t i = 0; i < model_units[u].elems; i++)
            ret->master[u][i] = model_init(u, i);
    for (uint64_t step = 1; step <= like->steps; step++) {
        double sum = 0, clip = 1, lr = 0.01 * (double)step;

        for (uint32_t u = 0; u < MODEL_UNITS; u++)
            for (uint64_t i = 0; i < model_units[u].elems; i++)
                if (group_of(u, i) != ZC_GROUP_FROZEN)
                    sum += pow(mean_gradient(u, i, step, ret->master[u][i]), 2);
        ret_norms[step - 1] = sqrt(sum);
        if (o->clip > 0)
            clip = fmin(1, o->clip / (sqrt(sum) + 1e-6));
        for (uint32_t u = 0; u < MODEL_UNITS; u++)
            for (uint64_t i = 0; i < model_units[u].elems; i++) {
                uint32_t group = group_of(u, i);
                double w = ret->master[u][i], m = ret->m[u][i], v = ret->v[u][i];
                double g = mean_gradient(u, i, step, w) * clip;

                if (group == ZC_GROUP_FROZEN)
                    continue;
                w *= 1 - lr * o->weight_decay[group];
                m = o->beta1 * m + (1 - o->beta1) * g;
                v = o->beta2 * v + (1 - o->beta2) * g * g;
                w -= lr / (1 - pow(o->beta1, (double)step)) * m /
                     (sqrt(v / (1 - pow(o->beta2, (double)step))) + o->eps);
                ret->master[u][i] = (float)w;
                ret->m[u][i] = (float)m;
                ret->v[u][i] = (float)v;
            }
    }
}

/* ---- comparing runs */

void assert_runs_same(const char *name, const struct run *a, const struct run *b)
{
    if (memcmp(a->norms, b->norms, sizeof(a->norms)) != 0 ||
        memcmp(a->losses, b->losses, sizeof(a->losses)) != 0 ||
        memcmp(a->clips, b->clips, sizeof(a->clips)) != 0 ||
        memcmp(a->skipped, b->skipped, sizeof(a->skipped)) != 0)
        fail_msg("%s: norms or losses differ: norm of step 1 %.17g and %.17g", name, a->norms[0],
                 b->norms[0]);
    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        size_t bytes = model_units[u].elems * sizeof(float);

        if (memcmp(a->values.master[u], b->values.master[u], bytes) != 0 ||
            memcmp(a->values.m[u], b->values.m[u], bytes) != 0 ||
            memcmp(a->values.v[u], b->values.v[u], bytes) != 0)
            fail_msg("%s: values of unit %u '%s' differ", name, u, model_units[u].name);
    }
}

static void assert_array_near(const char *name, const char *what, uint32_t u, const float *a,
                              const float *b, double relative)
{
    double most = 1e-12;

    for (uint64_t i = 0; i < model_units[u].elems; i++)
        most = fmax(most, fabs((double)a[i]));
    for (uint64_t i = 0; i < model_units[u].elems; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= relative * most))
            fail_msg("%s: %s of unit %u '%s', element %llu: %.9g and %.9g", name, what, u,
                     model_units[u].name, (unsigned long long)i, (double)a[i], (double)b[i]);
}

void assert_values_near(const char *name, const struct model_values *a,
                        const struct model_values *b, double relative)
{
    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        assert_array_near(name, "master", u, a->master[u], b->master[u], relative);
        assert_array_near(name, "exp_avg", u, a->m[u], b->m[u], relative);
        assert_array_near(name, "exp_avg_sq", u, a->v[u], b->v[u], relative);
    }
}
