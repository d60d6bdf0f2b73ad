/*
 * Clipping by tensor: the rule by itself; training against plain loops in fp64, for several numbers
 * of ranks and micro-steps; and bit by bit with itself, wherever the slices are: in the process, on
 * the emulated device, in a real daemon, in memory and on NVMe, with steps that begin early; after a
 * skipped step; and in a job that other numbers of ranks resume.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zclient.h"
#include "client/zero/config/clip_rule.h"
#include "client/zero/zc_zero.h"
#include "comm_threads.h"
#include "kernels/gpu.h"
#include "real_daemon.h"

#define RANKS   3u
#define STEPS   10u
#define WARMUP  3u
#define SMALL   40u /* tensors of 7 elements each */
#define TRAINED (4u + SMALL)
#define LEN     (13100u + SMALL * 7u)
#define UNUSED  (TRAINED - 1) /* this tensor's gradient is 0 up to step LATE */
#define LATE    6u

/* ---- the model: a tensor that crosses blocks, a frozen one between others, many small ones */

static struct zc_tensor dense[] = { { "w", 0, 1, { 9000 }, 0, false },
                                    { "f", 9000, 1, { 50 }, ZC_GROUP_FROZEN, false },
                                    { "b", 9050, 1, { 100 }, 1, false } };
static struct zc_tensor pair[] = { { "p", 0, 1, { 1500 }, 0, false },
                                   { "q", 1500, 1, { 2500 }, 0, false } };
static struct zc_tensor many[SMALL];
static struct zc_unit units[] = {
    { .name = "dense", .elems = 9150, .dtype = ZC_F32, .tensors = dense, .ntensors = 3 },
    { .name = "pair", .index = 1, .elems = 4000, .dtype = ZC_F32, .tensors = pair, .ntensors = 2 },
    { .name = "many",
      .index = 2,
      .elems = SMALL * 7,
      .dtype = ZC_F32,
      .tensors = many,
      .ntensors = SMALL },
};
#define UNITS ZB_COUNT(units)

static float value(uint32_t unit, uint64_t elem, uint64_t salt)
{
    uint64_t seed = salt << 40 ^ (uint64_t)unit << 32 ^ elem;

    return (float)(int64_t)ztest_random(&seed) * 0x1p-64f;
}

static int init(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out)
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

struct plan {
    uint32_t micro_steps;
    bool announce;
    uint64_t poison; /* the gradient of this step is not finite; 0: of none */
    double clip;
};

static void options_of(struct zc_zero_options *o, const struct plan *plan)
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
    double p[LEN], m[LEN], v[LEN], g[LEN], average[TRAINED];
    uint64_t applied;
    double norm, clip_scale; /* of the last step */
    uint32_t clipped;        /* tensors, in all steps */
};

/* Calls body with the tensor's number, unit, and position of its elements. */
#define EACH_TENSOR(n, u, t, at)                                                                  \
    for (uint32_t n = 0, u = 0, at = 0; u < UNITS; u++)                                           \
        for (const struct zc_tensor *t = units[u].tensors;                                        \
             t < units[u].tensors + units[u].ntensors; n += t->group != ZC_GROUP_FROZEN,          \
                                    at += t->group != ZC_GROUP_FROZEN ? (uint32_t)t->dims[0] : 0, \
                                    t++)                                                          \
            if (t->group != ZC_GROUP_FROZEN)

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

struct rank {
    struct zc_zero_options options;
    const struct plan *plan;
    uint64_t until;
    const char *counter_of; /* the socket of a daemon whose counter is read at the end; or NULL */
    /* out */
    int rc;
    char error[512];
    float p[LEN], m[LEN], v[LEN];
    uint64_t begun;
    struct zc_zero_stepped stepped;
    pthread_t thread;
};

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

static int rank_step(struct rank *r, struct zc_zero *z, uint64_t step)
{
    uint32_t micros = r->plan->micro_steps, first = 0;
    int rc = r->plan->announce ? zc_zero_announce(z, lr_of(step)) : 0;

    for (uint32_t micro = 0; micro < micros && rc == 0; micro++) {
        first = 0;
        for (uint32_t u = 0; u < UNITS && rc == 0; u++) {
            rc = unit_reduce(r, z, u, first, step, r->options.comm->rank * micros + micro);
            for (uint32_t t = 0; t < units[u].ntensors; t++)
                first += units[u].tensors[t].group != ZC_GROUP_FROZEN;
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

static void *rank_run(void *arg)
{
    struct rank *r = arg;
    struct zc_zero *z = NULL;
    uint64_t applied;
    int rc = zc_zero_open(&z, &r->options);

    for (uint32_t u = 0; u < UNITS && rc == 0; u++)
        rc = zc_zero_add_unit(z, &units[u]);
    if (rc == 0)
        rc = zc_zero_start(z, init, NULL);
    if (rc == 0)
        rc = zc_zero_progress(z, &r->begun, &applied);
    for (uint64_t step = r->begun + 1; step <= r->until && rc == 0; step++)
        rc = rank_step(r, z, step);
    if (rc == 0)
        rc = rank_read(r, z);
    r->rc = rc;
    (void)snprintf(r->error, sizeof(r->error), "%s", zc_zero_error(z));
    zc_zero_close(z, rc == 0);
    return NULL;
}

struct party {
    uint32_t world;
    struct comm_group *group;
    struct rank ranks[RANKS];
};

static struct party *party_new(uint32_t world, const struct plan *plan)
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
    }
    return p;
}

static void party_run(struct party *p)
{
    for (uint32_t r = 0; r < p->world; r++)
        assert_int_equal(pthread_create(&p->ranks[r].thread, NULL, rank_run, &p->ranks[r]), 0);
    for (uint32_t r = 0; r < p->world; r++)
        assert_int_equal(pthread_join(p->ranks[r].thread, NULL), 0);
    for (uint32_t r = 0; r < p->world; r++)
        if (p->ranks[r].rc < 0)
            fail_msg("rank %u: %d, %s", r, p->ranks[r].rc, p->ranks[r].error);
}

static void party_free(struct party *p)
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

/* Compares with plain loops; worlds: the number of ranks in each step. Returns how many tensors were
 * clipped. */
static uint32_t assert_as_loops(const struct party *p, const struct plan *plan,
                                const uint32_t *worlds)
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

static void assert_same(const struct party *a, const struct party *b)
{
    assert_memory_equal(a->ranks[0].p, b->ranks[0].p, sizeof(a->ranks[0].p));
    assert_memory_equal(a->ranks[0].m, b->ranks[0].m, sizeof(a->ranks[0].m));
    assert_memory_equal(a->ranks[0].v, b->ranks[0].v, sizeof(a->ranks[0].v));
    assert_memory_equal(&a->ranks[0].stepped, &b->ranks[0].stepped, sizeof(a->ranks[0].stepped));
}

/* ---- tests */

static void the_rule(void **state)
{
    struct zc_zero_options o;
    struct zb_err err = { 0 };

    (void)state;
    zc_zero_defaults(&o);
    o.clip_mode = ZC_CLIP_TENSOR;
    assert_true(o.clip_tensor_ratio == 1.05 && o.clip_tensor_beta == 0.98);
    assert_int_equal(zcz_clip_check(&o, &err), 0);
    assert_true(zcz_clip_limit(&o, 2) == 1.05 * 2);
    assert_true(zcz_clip_limit(&o, 0) == 0);
    for (int warm = 0; warm < 2; warm++) {
        assert_true(zcz_clip_next(&o, warm, 0, 3) == 3);
        assert_true(zcz_clip_next(&o, warm, 3, 0) == 3);
        assert_true(zcz_clip_next(&o, warm, 3, 1e300) <= __FLT_MAX__);
    }
    assert_true(zcz_clip_next(&o, true, 3, 2) == 2);
    assert_true(zcz_clip_next(&o, true, 2, 3) == 2);
    assert_true(zcz_clip_next(&o, false, 3, 2) == (float)(0.98 * 3 + (1 - 0.98) * 2));
    o.clip_tensor_beta = 1;
    assert_int_equal(zcz_clip_check(&o, &err), -EINVAL);
    o.clip_tensor_beta = 0;
    o.clip_tensor_ratio = 0;
    err.code = 0;
    assert_int_equal(zcz_clip_check(&o, &err), -EINVAL);
    o.clip_mode = (enum zc_clip_mode)3;
    o.clip_tensor_ratio = 1;
    err.code = 0;
    assert_int_equal(zcz_clip_check(&o, &err), -EINVAL);
}

static const struct plan plain = { .micro_steps = 1, .clip = 1 };

static void as_plain_loops(void **state)
{
    static const struct plan plans[] = { { .micro_steps = 1, .clip = 1 },
                                         { .micro_steps = 1 },
                                         { .micro_steps = 3, .clip = 1 },
                                         { .micro_steps = 1, .clip = 1, .poison = 5 } };
    uint32_t worlds[STEPS + 1];

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(plans); i++)
        for (uint32_t world = 1; world <= RANKS; world++) {
            struct party *p = party_new(world, &plans[i]);

            party_run(p);
            for (uint32_t s = 0; s <= STEPS; s++)
                worlds[s] = world;
            assert_true(assert_as_loops(p, &plans[i], worlds) > TRAINED);
            party_free(p);
        }
}

/* Before the end of the warm-up a run is one that clips globally. */
static void warms_up_globally(void **state)
{
    struct party *a = party_new(2, &plain), *b = party_new(2, &plain);

    (void)state;
    for (uint32_t r = 0; r < 2; r++) {
        a->ranks[r].until = b->ranks[r].until = WARMUP;
        b->ranks[r].options.clip_mode = ZC_CLIP_GLOBAL;
    }
    party_run(a);
    party_run(b);
    assert_same(a, b);
    party_free(a);
    party_free(b);
}

static uint64_t counter(const char *socket, const char *name)
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

static struct party *run_at(const struct plan *plan, const char *device, const char *socket,
                            enum zc_zero_offload where)
{
    struct party *p = party_new(2, plan);

    for (uint32_t r = 0; r < 2; r++) {
        struct zc_zero_options *o = &p->ranks[r].options;

        o->device = device;
        o->socket = socket;
        o->offload_param = o->offload_optimizer = where;
    }
    party_run(p);
    return p;
}

static void placement_changes_nothing(void **state)
{
    static const struct plan plans[] = { { .micro_steps = 1, .clip = 1 },
                                         { .micro_steps = 2, .clip = 1, .announce = true },
                                         { .micro_steps = 1, .announce = true, .poison = 7 } };
    static const struct {
        enum zc_zero_offload where;
        const char *host, *ring;
    } wheres[] = { { ZC_ZERO_HOST, "64M", "1M" },
                   { ZC_ZERO_NVME, "1M", "512K" },   /* a part of the state is streamed */
                   { ZC_ZERO_NVME, "1M", "704K" } }; /* and all of it, with some gradients */

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(plans); i++) {
        struct party *want = run_at(&plans[i], NULL, NULL, ZC_ZERO_NONE);
        struct party *is = run_at(&plans[i], "emulated", NULL, ZC_ZERO_NONE);

        assert_same(want, is);
        party_free(is);
        for (size_t w = 0; w < ZB_COUNT(wheres); w++) {
            bool nvme = wheres[w].where == ZC_ZERO_NVME;
            struct real_daemon d;
            uint64_t early;

            real_daemon_start(&d, "--host-bytes", wheres[w].host, "--ring-bytes", wheres[w].ring);
            is = run_at(&plans[i], NULL, d.socket, wheres[w].where);
            early = counter(d.socket, "pages_early");
            assert_same(want, is);
            assert_int_equal(early > 0, nvme && plans[i].announce);
            party_free(is);
            real_daemon_stop(&d);
        }
        party_free(want);
    }
}

/* Averages, and where the warm-up ends, stay with the job, whoever resumes it. A rank that stops
 * between two commits loses the steps since the last one, with their averages. */
static void a_resumed_job_has_its_averages(void **state)
{
    static const struct {
        uint32_t world;
        uint64_t until, begun;
    } lives[] = { { 2, 2, 0 }, { 1, 5, 2 }, { 3, 7, 5 }, { 2, STEPS, 7 } };
    static const uint32_t worlds[STEPS + 1] = { 0, 2, 2, 1, 1, 1, 3, 3, 2, 2, 2 };
    struct real_daemon d;

    (void)state;
    real_daemon_start(&d, "--host-bytes", "64M");
    for (size_t i = 0; i < ZB_COUNT(lives); i++) {
        struct party *p = party_new(lives[i].world, &plain);

        for (uint32_t r = 0; r < p->world; r++) {
            struct zc_zero_options *o = &p->ranks[r].options;

            o->socket = d.socket;
            o->offload_param = o->offload_optimizer = ZC_ZERO_HOST;
            o->job = "kept";
            o->keep = o->durable = true;
            o->commit_every = 1;
            o->resume = i > 0;
            p->ranks[r].until = lives[i].until;
        }
        party_run(p);
        assert_as_loops(p, &plain, worlds);
        assert_int_equal(p->ranks[0].begun, lives[i].begun);
        party_free(p);
        real_daemon_kill(&d);
        real_daemon_again(&d, "--host-bytes", "64M");
    }
    real_daemon_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rule),
        cmocka_unit_test(as_plain_loops),
        cmocka_unit_test(warms_up_globally),
        cmocka_unit_test(placement_changes_nothing),
        cmocka_unit_test(a_resumed_job_has_its_averages),
    };

    for (uint32_t i = 0; i < SMALL; i++)
        many[i] = (struct zc_tensor){ "t", (uint64_t)i * 7, 1, { 7 }, 0, false };
    return cmocka_run_group_tests(tests, real_daemon_setup, real_daemon_teardown);
}
