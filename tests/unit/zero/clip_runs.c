/*
 * clip_runs.c - runs that clip by tensor.
 */
#include "clip_runs.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zclient.h"
#include "kernels/gpu.h"

/* ---- the model: a tensor that crosses blocks, a frozen one between others, many small ones */

static struct zc_tensor dense[] = { { "w", 0, 1, { 9000 }, 0, false },
                                    { "f", 9000, 1, { 50 }, ZC_GROUP_FROZEN, false },
                                    { "b", 9050, 1, { 100 }, 1, false } };
static struct zc_tensor pair[] = { { "p", 0, 1, { 1500 }, 0, false },
                                   { "q", 1500, 1, { 2500 }, 0, false } };
static struct zc_tensor many[SMALL];
static struct zc_tensor wide[] = { { "x", 0, 1, { WIDTH }, 0, false } };
static const char *const wide_names[WIDE] = { "wide0", "wide1", "wide2", "wide3" };
uint32_t nunits = UNITS;
struct zc_unit units[UNITS + WIDE] = {
    { .name = "dense", .elems = 9150, .dtype = ZC_F32, .tensors = dense, .ntensors = 3 },
    { .name = "pair", .index = 1, .elems = 4000, .dtype = ZC_F32, .tensors = pair, .ntensors = 2 },
    { .name = "many",
      .index = 2,
      .elems = SMALL * 7,
      .dtype = ZC_F32,
      .tensors = many,
      .ntensors = SMALL },
};

static float value(uint32_t unit, uint64_t elem, uint64_t salt)
{
    uint64_t seed = salt << 40 ^ (uint64_t)unit << 32 ^ elem;

    return (float)(int64_t)ztest_random(&seed) * 0x1p-64f;
}

int initial(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out)
{
    (void)arg;
    for (uint64_t i = 0; i < count; i++)
        out[i] = value(unit, first + i, 1);
    return 0;
}

/* Some tensors have a gradient 20 times as large in some steps, others grow slowly. `sample`: the
 * micro-step of a rank. */
static float grad(uint32_t unit, uint32_t tensor, uint64_t elem, uint64_t step, uint32_t sample)
{
    float spike = (tensor + step) % 7 == 0 ? 20 : 1;

    if (tensor == UNUSED && step <= LATE)
        return 0;
    return spike * (1 + 0.1F * (float)step) * value(unit, elem, 100 * step + sample);
}

void options_of(struct zc_zero_options *o, const struct plan *plan)
{
    zc_zero_defaults(o);
    o->micro_steps = plan->micro_steps;
    o->groups = 2;
    o->beta1 = 0.9;
    o->beta2 = 0.999;
    o->clip = plan->clip;
    o->clip_mode = ZC_CLIP_TENSOR;
    o->clip_tensor_beta = 0.8;
    o->clip_tensor_warmup = WARMUP;
    o->timeout_ms = 60000;
}

static double lr_of(uint64_t step)
{
    return 1e-2 / (double)step;
}

/* ---- plain loops */

struct ref {
    double p[LEN], m[LEN], v[LEN], g[LEN], average[TRAINED + WIDE];
    uint64_t applied;
    double norm, clip_scale; /* of the last step */
    uint32_t clipped;        /* tensors, in all steps */
};

static double tensor_norm(const struct ref *r, const struct zc_tensor *t, uint32_t at)
{
    double sum = 0;

    for (uint32_t i = 0; i < t->dims[0]; i++)
        sum += r->g[at + i] * r->g[at + i];
    return sqrt(sum);
}

static double ref_clip(struct ref *r, uint32_t n, double norm, bool warm)
{
    double limit = 1.05 * r->average[n], h = 1;

    if (!warm && limit > 0 && norm > limit)
        h = limit / norm;
    r->clipped += h < 1;
    norm *= h;
    if (norm > 0 && r->average[n] == 0)
        r->average[n] = norm;
    else if (norm > 0)
        r->average[n] = warm ? fmin(r->average[n], norm) : 0.8 * r->average[n] + 0.2 * norm;
    return h;
}

static void ref_step(struct ref *r, const struct plan *plan, uint64_t step, uint32_t world)
{
    struct zc_zero_options o;
    bool warm = r->applied < WARMUP;
    double all = 0, after = 0, global = 1;

    options_of(&o, plan);
    EACH_TENSOR(n, u, t, at)
    for (uint32_t i = 0; i < t->dims[0]; i++) {
        r->g[at + i] = 0;
        for (uint32_t s = 0; s < world * plan->micro_steps; s++)
            r->g[at + i] += (double)grad(u, n, t->first + i, step, s);
        r->g[at + i] /= world * plan->micro_steps;
        all += r->g[at + i] * r->g[at + i];
    }
    r->norm = sqrt(all);
    if (warm && plan->clip > 0)
        global = fmin(1, plan->clip / (r->norm + 1e-6));
    r->applied++;
    EACH_TENSOR(n, u, t, at)
    {
        double h = ref_clip(r, n, global * tensor_norm(r, t, at), warm) * global;
        double c1 = 1 - pow(o.beta1, (double)r->applied), c2 = 1 - pow(o.beta2, (double)r->applied);

        (void)u;
        for (uint32_t i = at; i < at + t->dims[0]; i++) {
            double g = h * r->g[i];

            after += g * g;
            r->m[i] = o.beta1 * r->m[i] + (1 - o.beta1) * g;
            r->v[i] = o.beta2 * r->v[i] + (1 - o.beta2) * g * g;
            r->p[i] -= lr_of(step) / c1 * r->m[i] / (sqrt(r->v[i] / c2) + o.eps);
        }
    }
    r->clip_scale = sqrt(after / all);
}

/* ---- ranks */

static int grad_set(struct zc_zero *z, float *at, const float *from, size_t n)
{
    struct zk_gpu_stream *stream = zc_zero_stream(z);
    struct zb_err err = { 0 };
    int rc;

    if (!stream) {
        memcpy(at, from, n * sizeof(*at));
        return 0;
    }
    rc = zk_gpu_copy(stream, ZK_GPU_TO_DEVICE, at, from, n * sizeof(*at), &err);
    return rc < 0 ? rc : zk_gpu_stream_sync(stream, &err);
}

static int unit_reduce(struct rank *r, struct zc_zero *z, uint32_t u, uint32_t first, uint64_t step,
                       uint32_t sample)
{
    float *g, *of = calloc(units[u].elems, sizeof(*of));
    int rc = of ? zc_zero_grad(z, u, &g) : -ENOMEM;

    for (uint32_t t = 0, n = first; t < units[u].ntensors && rc == 0; t++) {
        const struct zc_tensor *from = &units[u].tensors[t];

        for (uint64_t i = from->first; i < from->first + from->dims[0]; i++)
            of[i] = grad(u, n, i, step, sample);
        n += from->group != ZC_GROUP_FROZEN;
    }
    if (r->plan->poison == step && u == 1)
        of[17] = (float)NAN;
    if (rc == 0)
        rc = grad_set(z, g, of, units[u].elems);
    free(of);
    return rc < 0 ? rc : zc_zero_reduce(z, u);
}

static int rank_interrupt(struct rank *r, uint64_t step)
{
    int (*interrupt)(struct rank *) = r->interrupt;

    if (step != r->at || !interrupt)
        return 0;
    r->interrupt = NULL;
    return interrupt(r);
}

static int rank_step(struct rank *r, struct zc_zero *z, uint64_t step)
{
    uint32_t micros = r->plan->micro_steps, first = 0;
    int rc = r->plan->announce ? zc_zero_announce(z, lr_of(step)) : 0;

    for (uint32_t micro = 0; micro < micros && rc == 0; micro++) {
        first = 0;
        for (uint32_t u = 0; u < nunits && rc == 0; u++) {
            rc = unit_reduce(r, z, u, first, step, r->options.comm->rank * micros + micro);
            for (uint32_t t = 0; t < units[u].ntensors; t++)
                first += units[u].tensors[t].group != ZC_GROUP_FROZEN;
            if (rc == 0 && u == r->after)
                rc = rank_interrupt(r, step);
            if (rc == 0 && u == r->after && step == r->plan->abandons && r->abandoned != step) {
                r->abandoned = step;
                rc = zc_zero_abandon(z);
                return rc < 0 ? rc : rank_step(r, z, step);
            }
        }
    }
    return rc < 0 ? rc : zc_zero_step(z, lr_of(step), &r->stepped);
}

static int rank_read(struct rank *r, struct zc_zero *z)
{
    static const enum zc_what whats[] = { ZC_MASTER, ZC_EXP_AVG, ZC_EXP_AVG_SQ };
    float *to[] = { r->p, r->m, r->v };
    int rc = 0;

    for (size_t w = 0; w < ZB_COUNT(whats); w++)
        EACH_TENSOR(n, u, t, at)
        {
            (void)n;
            if (rc == 0)
                rc = zc_zero_read(z, u, whats[w], t->first, t->dims[0], to[w] + at);
        }
    return rc;
}

/* Bytes that were sent in collectives, without parameters and gradients. */
static int rank_exchanged(struct zc_zero *z, uint64_t *ret)
{
    struct zc_zero_stats stats;
    int rc = zc_zero_stats(z, &stats);

    *ret = stats.comm_bytes - stats.comm_gather_bytes - stats.comm_reduce_bytes -
           stats.comm_across_bytes;
    return rc;
}

static void *rank_run(void *arg)
{
    struct rank *r = arg;
    struct zc_zero *z = NULL;
    uint64_t applied, warm = 0;
    int rc = zc_zero_open(&z, &r->options);

    for (uint32_t u = 0; u < nunits && rc == 0; u++)
        rc = zc_zero_add_unit(z, &units[u]);
    if (rc == 0)
        rc = zc_zero_start(z, initial, NULL);
    if (rc == 0)
        rc = zc_zero_progress(z, &r->begun, &applied);
    for (uint64_t step = r->begun + 1; step <= r->until && rc == 0; step++) {
        rc = rank_step(r, z, step);
        if (rc == ZC_ROLLED_BACK)
            rc = zc_zero_progress(z, &step, &applied);
        if (rc == 0 && step == WARMUP)
            rc = rank_exchanged(z, &warm);
    }
    if (rc == 0)
        rc = rank_exchanged(z, &r->exchanged);
    r->exchanged -= warm;
    if (rc == 0)
        rc = rank_read(r, z);
    r->rc = rc;
    (void)snprintf(r->error, sizeof(r->error), "%s", zc_zero_error(z));
    zc_zero_close(z, rc == 0);
    return NULL;
}

struct party *party_new(uint32_t world, const struct plan *plan)
{
    struct party *p = calloc(1, sizeof(*p));

    assert_non_null(p);
    p->world = world;
    p->group = comm_group_new(world, world, 2);
    for (uint32_t r = 0; r < world; r++) {
        options_of(&p->ranks[r].options, plan);
        p->ranks[r].options.comm = comm_group_rank(p->group, r);
        p->ranks[r].plan = plan;
        p->ranks[r].until = STEPS;
        p->ranks[r].after = 1;
    }
    return p;
}

void party_try(struct party *p)
{
    for (uint32_t r = 0; r < p->world; r++)
        assert_int_equal(pthread_create(&p->ranks[r].thread, NULL, rank_run, &p->ranks[r]), 0);
    for (uint32_t r = 0; r < p->world; r++)
        assert_int_equal(pthread_join(p->ranks[r].thread, NULL), 0);
}

void party_run(struct party *p)
{
    party_try(p);
    for (uint32_t r = 0; r < p->world; r++)
        if (p->ranks[r].rc < 0)
            fail_msg("rank %u: %d, %s", r, p->ranks[r].rc, p->ranks[r].error);
}

void party_free(struct party *p)
{
    comm_group_free(p->group);
    free(p);
}

static void assert_near(const char *what, const double *want, const float *is)
{
    for (uint32_t i = 0; i < LEN; i++)
        if (!(fabs(want[i] - (double)is[i]) <= 1e-4 * (fabs(want[i]) + 1e-3)))
            fail_msg("%s of element %u: %.9g, not %.9g", what, i, (double)is[i], want[i]);
}

uint32_t assert_as_loops(const struct party *p, const struct plan *plan, const uint32_t *worlds)
{
    struct ref *r = calloc(1, sizeof(*r));
    const struct rank *is = &p->ranks[0];
    uint32_t clipped;

    assert_non_null(r);
    EACH_TENSOR(n, u, t, at)
    {
        (void)n;
        for (uint32_t i = 0; i < t->dims[0]; i++)
            r->p[at + i] = (double)value(u, t->first + i, 1);
    }
    for (uint64_t step = 1; step <= is->until; step++)
        if (step != plan->poison)
            ref_step(r, plan, step, worlds[step]);
    assert_near("the weight", r->p, is->p);
    assert_near("the first moment", r->m, is->m);
    assert_near("the second moment", r->v, is->v);
    assert_true(fabs(is->stepped.grad_norm - r->norm) <= 1e-5 * r->norm);
    assert_true(fabs(is->stepped.clip_scale - r->clip_scale) <= 1e-5);
    clipped = r->clipped;
    free(r);
    return clipped;
}

void assert_same(const struct party *a, const struct party *b)
{
    assert_memory_equal(a->ranks[0].p, b->ranks[0].p, sizeof(a->ranks[0].p));
    assert_memory_equal(a->ranks[0].m, b->ranks[0].m, sizeof(a->ranks[0].m));
    assert_memory_equal(a->ranks[0].v, b->ranks[0].v, sizeof(a->ranks[0].v));
    assert_memory_equal(&a->ranks[0].stepped, &b->ranks[0].stepped, sizeof(a->ranks[0].stepped));
}

uint64_t counter(const char *socket, const char *name)
{
    struct zc_options o = { .socket = socket };
    struct zc_counter *rows = NULL;
    struct zc_client *c = NULL;
    uint64_t value_of = 0;
    size_t n = 0;

    assert_int_equal(zc_open(&c, &o), 0);
    assert_int_equal(zc_stat_wait(c, &rows, &n), 0);
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, name) == 0)
            value_of = rows[i].value;
    zc_rows_free(rows);
    zc_close(c);
    return value_of;
}

void clip_model(void)
{
    for (uint32_t i = 0; i < SMALL; i++)
        many[i] = (struct zc_tensor){ "t", (uint64_t)i * 7, 1, { 7 }, 0, false };
    for (uint32_t i = UNITS; i < UNITS + WIDE; i++)
        units[i] = (struct zc_unit){ .name = wide_names[i - UNITS],
                                     .index = i,
                                     .elems = WIDTH,
                                     .dtype = ZC_F32,
                                     .tensors = wide,
                                     .ntensors = 1 };
}
