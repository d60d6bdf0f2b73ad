/*
 * Each tensor is stepped by itself: one without a gradient on any rank stays the same, with its own
 * count of steps; any number of groups; factors; norms. Results are compared with plain loops in
 * fp64, and bit by bit with each other, wherever the slices are: in the process, on the emulated
 * device, in a real daemon, in memory and on NVMe; and in a kept job that another number of ranks
 * resumes.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zero/core/zero.h"
#include "client/zero/step/step.h"
#include "client/zero/zc_zero.h"
#include "comm_threads.h"
#include "kernels/gpu.h"
#include "real_daemon.h"

#define RANKS   3u
#define STEPS   8u
#define MANY    1100u /* tensors of a few elements each */
#define EACH    3u
#define TRAINED (5u + MANY)
#define GROUPS  300u
#define LEN     (3100u + 9000u + MANY * EACH) /* trained elements */
#define FROZEN  50u

/* ---- the model: units with consecutive tensors, the second one frozen */

static struct zc_tensor dense[] = { { "w", 0, 1, { 3000 }, 0, false },
                                    { "b", 3000, 1, { 100 }, 1, false } };
static struct zc_tensor experts[] = { { "e0", 0, 1, { 2000 }, 0, false },
                                      { "e1", 2000, 1, { 2000 }, 0, false },
                                      { "e2", 4000, 1, { 5000 }, 0, false } };
static struct zc_tensor many[MANY];
static struct zc_unit units[] = {
    { .name = "dense", .elems = 3100, .dtype = ZC_F32, .tensors = dense, .ntensors = 2 },
    { .name = "table", .index = 1, .elems = FROZEN, .dtype = ZC_F32, .frozen = true },
    { .name = "experts",
      .index = 2,
      .elems = 9000,
      .dtype = ZC_F32,
      .tensors = experts,
      .ntensors = 3 },
    { .name = "many",
      .index = 3,
      .elems = MANY * EACH,
      .dtype = ZC_F32,
      .tensors = many,
      .ntensors = MANY },
};

#define E0    2u /* numbers of trainable tensors */
#define E1    3u
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

/* The settings of a run's steps. */
struct plan {
    bool groups;      /* 300 groups, some tensors in none, factors */
    bool step_unused; /* the option */
    double clip;
    bool announce; /* steps from the sixth on, as the options say, while e1's count lags */
    bool set;      /* sets step counts, in step 2 */
};

/* Whether this rank has a gradient: for e0 only rank 0 has one, and for e1 none has in steps 3 to
 * 5. */
static bool has(uint32_t tensor, uint64_t step, uint32_t rank)
{
    if (tensor == E0)
        return rank == 0;
    return tensor != E1 || step < 3 || step > 5;
}

static float grad(uint32_t unit, uint32_t tensor, uint64_t elem, uint64_t step, uint32_t rank)
{
    return has(tensor, step, rank) ? value(unit, elem, 100 * step + rank) : 0;
}

struct how {
    struct zc_group groups[GROUPS];
    uint32_t group_of[TRAINED];
    float factors[TRAINED];
    struct zc_zero_step_how how;
};

static void how_of(const struct plan *plan, uint64_t step, struct how *h)
{
    for (uint32_t g = 0; g < GROUPS; g++) {
        zc_zero_group_defaults(ZC_ADAMW, &h->groups[g]);
        h->groups[g].lr = 1e-2 / (double)(1 + g % 7 + step);
        h->groups[g].weight_decay = g == 1 ? 0 : 0.1;
        h->groups[g].beta1 = 0.9 - 0.001 * (g % 11);
    }
    for (uint32_t t = 0; t < TRAINED; t++) {
        h->group_of[t] = (t + step) % 13 == 0 ? ZC_GROUP_NONE : t % GROUPS;
        h->factors[t] = t % 5 == 0 ? 0.5F : 1;
    }
    h->how =
        (struct zc_zero_step_how){ .groups = h->groups, .ngroups = GROUPS, .clip = plan->clip };
    for (uint32_t g = 0; g < 2 && plan->announce; g++) {
        h->how.ngroups = 2;
        h->groups[g].lr = 1e-2 / (double)step;
        h->groups[g].beta1 = 0.9;
    }
    if (plan->groups) {
        h->how.group_of = h->group_of;
        h->how.factors = h->factors;
        h->how.divide = 2;
    }
}

/* The counts set in step 2: ahead of the job's, and behind. */
static const uint64_t set_dense[] = { 40, 0 };
static const uint64_t set_experts[] = { 7, 0, 1000000 };

/* ---- plain loops */

struct values {
    double p[LEN], m[LEN], v[LEN];
    uint64_t steps[TRAINED];
    struct zc_zero_norm norms[TRAINED]; /* of the last step */
    double norm;                        /* of the gradients that were stepped */
    uint32_t left_alone;
};

/* Calls fn for each trainable tensor, with the position of its elements in values. */
static void each_tensor(void (*fn)(void *arg, uint32_t tensor, uint32_t unit,
                                   const struct zc_tensor *t, uint32_t at),
                        void *arg)
{
    uint32_t n = 0, at = 0;

    for (uint32_t u = 0; u < UNITS; u++)
        for (uint32_t t = 0; t < units[u].ntensors && !units[u].frozen; t++) {
            fn(arg, n++, u, &units[u].tensors[t], at);
            at += (uint32_t)units[u].tensors[t].dims[0];
        }
    assert_int_equal(n, TRAINED);
    assert_int_equal(at, LEN);
}

struct ref {
    const struct plan *plan;
    struct how how;
    uint64_t step;
    uint32_t world;
    double scale; /* of sums of gradients */
    bool norms;   /* computes only these */
    struct values *x;
};

static void ref_norm(struct ref *r, uint32_t tensor, uint32_t unit, const struct zc_tensor *t)
{
    const struct zc_zero_step_how *how = &r->how.how;
    double factor = how->factors ? (double)how->factors[tensor] : 1;
    struct zc_zero_norm *norm = &r->x->norms[tensor];

    *norm = (struct zc_zero_norm){ 0 };
    for (uint64_t i = 0; i < t->dims[0]; i++) {
        float sum = grad(unit, tensor, t->first + i, r->step, 0);

        for (uint32_t k = 1; k < r->world; k++)
            sum += grad(unit, tensor, t->first + i, r->step, k);
        norm->sum_of_squares += (double)sum * (double)sum;
        norm->most = fmaxf(norm->most, fabsf(sum));
    }
    if (!how->group_of || how->group_of[tensor] != ZC_GROUP_NONE)
        r->x->norm += factor * factor * norm->sum_of_squares;
}

static void ref_tensor(void *arg, uint32_t tensor, uint32_t unit, const struct zc_tensor *t,
                       uint32_t at)
{
    struct ref *r = arg;
    const struct zc_zero_step_how *how = &r->how.how;
    uint32_t group = how->group_of ? how->group_of[tensor] : t->group;
    const struct zc_group *g = &how->groups[group == ZC_GROUP_NONE ? 0 : group];
    double factor = how->factors ? (double)how->factors[tensor] : 1, c1, c2;
    bool used = false;

    if (r->norms) {
        ref_norm(r, tensor, unit, t);
        return;
    }
    for (uint32_t k = 0; k < r->world; k++)
        used |= has(tensor, r->step, k);
    used |= r->plan->step_unused;
    r->x->left_alone += !used;
    if (!used || group == ZC_GROUP_NONE)
        return;
    r->x->steps[tensor]++;
    c1 = 1 - pow(g->beta1, (double)r->x->steps[tensor]);
    c2 = 1 - pow(g->beta2, (double)r->x->steps[tensor]);
    for (uint64_t i = 0; i < t->dims[0]; i++) {
        double sum = 0, *p = &r->x->p[at + i], *m = &r->x->m[at + i], *v = &r->x->v[at + i];

        for (uint32_t k = 0; k < r->world; k++)
            sum += (double)grad(unit, tensor, t->first + i, r->step, k);
        sum *= r->scale * factor;
        *p *= 1 - g->lr * g->weight_decay;
        *m = g->beta1 * *m + (1 - g->beta1) * sum;
        *v = g->beta2 * *v + (1 - g->beta2) * sum * sum;
        *p -= g->lr / c1 * *m / (sqrt(*v / c2) + g->eps);
    }
}

static void ref_init(void *arg, uint32_t tensor, uint32_t unit, const struct zc_tensor *t,
                     uint32_t at)
{
    struct values *x = arg;

    (void)tensor;
    for (uint64_t i = 0; i < t->dims[0]; i++)
        x->p[at + i] = (double)value(unit, t->first + i, 1);
}

static void ref_step(struct values *x, const struct plan *plan, uint64_t step, uint32_t world)
{
    struct ref r = { .plan = plan, .step = step, .world = world, .norms = true, .x = x };

    if (plan->set && step == 2) {
        memcpy(x->steps, set_dense, sizeof(set_dense));
        memcpy(x->steps + E0, set_experts, sizeof(set_experts));
    }
    how_of(plan, step, &r.how);
    r.scale = 1 / ((double)world * (r.how.how.divide > 0 ? r.how.how.divide : 1));
    x->norm = 0;
    x->left_alone = 0;
    each_tensor(ref_tensor, &r);
    x->norm = sqrt(x->norm) * r.scale;
    if (plan->clip > 0)
        r.scale *= fmin(1, plan->clip / (x->norm + 1e-6));
    r.norms = false;
    each_tensor(ref_tensor, &r);
}

/* ---- ranks */

struct rank {
    struct zc_zero_options options;
    const struct plan *plan;
    uint64_t until;
    bool norms;                                      /* requests them before each step */
    int (*before)(struct zc_zero *z, uint32_t rank); /* called before a step */
    bool one_moment;                                 /* the optimizer has one moment */
    /* out */
    int rc;
    char error[512];
    float p[LEN], m[LEN], v[LEN];
    uint64_t steps[TRAINED], begun;
    struct zc_zero_norm of[TRAINED];
    double norm;
    struct zc_zero_stepped stepped;
    pthread_t thread;
};

/* Adds to the existing values, which are zeros. */
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

static int unit_reduce(struct zc_zero *z, uint32_t u, uint32_t tensor, uint64_t step, uint32_t rank)
{
    bool got[MANY];
    float *g, *of = calloc(units[u].elems, sizeof(*of));
    int rc = zc_zero_grad(z, u, &g);

    for (uint32_t t = 0; t < units[u].ntensors && rc == 0; t++) {
        const struct zc_tensor *from = &units[u].tensors[t];

        got[t] = has(tensor + t, step, rank);
        for (uint64_t i = from->first; i < from->first + from->dims[0]; i++)
            of[i] = grad(u, tensor + t, i, step, rank);
    }
    if (rc == 0)
        rc = grad_set(z, g, of, units[u].elems);
    free(of);
    return rc < 0 ? rc : zc_zero_reduce_of(z, u, got, units[u].ntensors);
}

static int rank_step(struct rank *r, struct zc_zero *z, uint64_t step)
{
    uint32_t rank = r->options.comm->rank, tensor = 0;
    struct how *how = malloc(sizeof(*how));
    int rc = r->plan->announce && step > 5 ? zc_zero_announce(z, 1e-2 / (double)step) : 0;

    for (uint32_t u = 0; u < UNITS && rc == 0; u++) {
        if (!units[u].frozen)
            rc = unit_reduce(z, u, tensor, step, rank);
        tensor += units[u].frozen ? 0 : units[u].ntensors;
    }
    if (rc == 0 && r->norms)
        rc = zc_zero_norms(z, r->of, TRAINED);
    if (rc == 0 && r->norms)
        rc = zc_zero_norm(z, &r->norm);
    if (rc == 0 && r->plan->set && step == 2)
        rc = zc_zero_set_tensor_steps(z, 0, set_dense, 2);
    if (rc == 0 && r->plan->set && step == 2)
        rc = zc_zero_set_tensor_steps(z, 2, set_experts, 3);
    if (rc == 0 && r->before)
        rc = r->before(z, rank);
    how_of(r->plan, step, how);
    if (rc == 0)
        rc = zc_zero_step_by(z, &how->how, &r->stepped);
    free(how);
    return rc;
}

static int rank_read(struct rank *r, struct zc_zero *z)
{
    uint32_t at = 0, tensor = 0;
    int rc = 0;

    for (uint32_t u = 0; u < UNITS && rc == 0; u++) {
        if (units[u].frozen)
            continue;
        rc = zc_zero_read(z, u, ZC_MASTER, 0, units[u].elems, r->p + at);
        if (rc == 0)
            rc = zc_zero_read(z, u, ZC_EXP_AVG, 0, units[u].elems, r->m + at);
        if (rc == 0 && !r->one_moment)
            rc = zc_zero_read(z, u, ZC_EXP_AVG_SQ, 0, units[u].elems, r->v + at);
        if (rc == 0)
            rc = zc_zero_tensor_steps(z, u, r->steps + tensor);
        at += (uint32_t)units[u].elems;
        tensor += units[u].ntensors;
    }
    return rc;
}

/* The ranks together must have every element of a unit exactly once. */
static int slices_check(struct zc_zero *z)
{
    int rc = 0;

    for (uint32_t u = 0; u < UNITS && rc == 0; u++) {
        uint64_t first, count;
        double all;

        rc = zc_zero_slice(z, u, &first, &count);
        all = (double)count;
        if (rc == 0)
            rc = zc_zero_sum(z, &all, 1);
        if (rc == 0 && (all != (double)units[u].elems || first + count > units[u].elems))
            rc = -EPROTO;
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
        rc = slices_check(z);
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
        struct zc_zero_options *o = &p->ranks[r].options;

        zc_zero_defaults(o);
        o->comm = comm_group_rank(p->group, r);
        o->groups = 2;
        o->step_unused = plan->step_unused;
        o->weight_decay[0] = 0.1; /* as in how_of(), for announced steps */
        o->beta1 = 0.9;
        o->beta2 = 0.999;
        o->timeout_ms = 60000;
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

/* Compares with plain loops; worlds: the number of ranks in each step. */
static void assert_as_loops(const struct party *p, const struct plan *plan, const uint32_t *worlds)
{
    struct values *x = calloc(1, sizeof(*x));
    const struct rank *r = &p->ranks[0];

    assert_non_null(x);
    each_tensor(ref_init, x);
    for (uint64_t step = 1; step <= r->until; step++)
        ref_step(x, plan, step, worlds[step]);
    for (uint32_t k = 0; k < p->world; k++)
        if (p->ranks[k].rc < 0)
            fail_msg("rank %u: %d, %s", k, p->ranks[k].rc, p->ranks[k].error);
    for (uint32_t t = 0; t < TRAINED; t++)
        if (r->steps[t] != x->steps[t])
            fail_msg("tensor %u made %llu steps, not %llu", t, (unsigned long long)r->steps[t],
                     (unsigned long long)x->steps[t]);
    assert_near("the weight", x->p, r->p);
    assert_near("the first moment", x->m, r->m);
    assert_near("the second moment", x->v, r->v);
    assert_int_equal(r->stepped.left_alone, x->left_alone);
    assert_true(fabs(r->stepped.grad_norm - x->norm) <= 1e-5 * x->norm);
    for (uint32_t t = 0; t < TRAINED && r->norms; t++) {
        assert_true(fabs(r->of[t].sum_of_squares - x->norms[t].sum_of_squares) <=
                    1e-6 * x->norms[t].sum_of_squares);
        assert_true(r->of[t].most == x->norms[t].most);
        assert_int_equal(r->of[t].nonfinite, 0);
    }
    for (uint32_t k = 1; k < p->world; k++) {
        assert_memory_equal(p->ranks[k].of, r->of, sizeof(r->of));
        assert_memory_equal(&p->ranks[k].norm, &r->norm, sizeof(r->norm));
    }
    free(x);
}

static void assert_same(const struct party *a, const struct party *b)
{
    for (uint32_t k = 0; k < b->world; k++)
        if (b->ranks[k].rc < 0)
            fail_msg("rank %u: %d, %s", k, b->ranks[k].rc, b->ranks[k].error);
    assert_memory_equal(a->ranks[0].p, b->ranks[0].p, sizeof(a->ranks[0].p));
    assert_memory_equal(a->ranks[0].m, b->ranks[0].m, sizeof(a->ranks[0].m));
    assert_memory_equal(a->ranks[0].v, b->ranks[0].v, sizeof(a->ranks[0].v));
    assert_memory_equal(a->ranks[0].steps, b->ranks[0].steps, sizeof(a->ranks[0].steps));
    assert_memory_equal(a->ranks[0].of, b->ranks[0].of, sizeof(a->ranks[0].of));
    assert_memory_equal(&a->ranks[0].stepped, &b->ranks[0].stepped, sizeof(a->ranks[0].stepped));
}

static const struct plan plans[] = {
    { .groups = false }, { .groups = false, .clip = 1 }, { .step_unused = true },
    { .groups = true },  { .groups = true, .clip = 5 },  { .announce = true },
    { .set = true },
};
static const struct plan resumed_plan = { .set = true };

static const uint32_t all_ones[STEPS + 1] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 };
static const uint32_t all_twos[STEPS + 1] = { 2, 2, 2, 2, 2, 2, 2, 2, 2 };

static void as_plain_loops(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(plans); i++)
        for (uint32_t world = 1; world <= 2; world++) {
            struct party *p = party_new(world, &plans[i]);

            for (uint32_t r = 0; r < world; r++)
                p->ranks[r].norms = !plans[i].announce;
            party_run(p);
            assert_as_loops(p, &plans[i], world == 1 ? all_ones : all_twos);
            assert_int_equal(p->ranks[0].steps[E1], plans[i].step_unused ? STEPS
                                                    : plans[i].set       ? 4
                                                                         : 5);
            party_free(p);
        }
}

/* ---- other placements */

static struct party *run_at(const struct plan *plan, const char *device, const char *socket,
                            enum zc_zero_offload where)
{
    struct party *p = party_new(2, plan);

    for (uint32_t r = 0; r < 2; r++) {
        struct zc_zero_options *o = &p->ranks[r].options;

        p->ranks[r].norms = !plan->announce;
        o->device = device;
        o->socket = socket;
        o->offload_param = o->offload_optimizer = where;
    }
    party_run(p);
    return p;
}

static void placement_changes_nothing(void **state)
{
    static const size_t which[] = { 0, 2, 4, 5, 6 };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(which); i++) {
        const struct plan *plan = &plans[which[i]];
        struct party *want = run_at(plan, NULL, NULL, ZC_ZERO_NONE);
        struct party *is = run_at(plan, "emulated", NULL, ZC_ZERO_NONE);

        assert_same(want, is);
        party_free(is);
        for (int nvme = 0; nvme < 2; nvme++) {
            struct real_daemon d;

            real_daemon_start(&d, "--host-bytes", nvme ? "3M" : "64M");
            is = run_at(plan, NULL, d.socket, nvme ? ZC_ZERO_NVME : ZC_ZERO_HOST);
            assert_same(want, is);
            party_free(is);
            real_daemon_stop(&d);
        }
        party_free(want);
    }
}

/* Step counts that lag, or are ahead, stay with the job, whoever resumes it. */
static void a_resumed_job_has_its_counts(void **state)
{
    const struct plan *plan = &resumed_plan;
    static const uint32_t worlds[STEPS + 1] = { 0, 2, 2, 2, 2, 1, 1, 3, 3 };
    static const struct {
        uint32_t world;
        uint64_t until;
    } lives[] = { { 2, 4 }, { 1, 6 }, { 3, STEPS } };
    struct real_daemon d;

    (void)state;
    real_daemon_start(&d, "--host-bytes", "64M");
    for (size_t i = 0; i < ZB_COUNT(lives); i++) {
        struct party *p = party_new(lives[i].world, plan);

        for (uint32_t r = 0; r < p->world; r++) {
            struct zc_zero_options *o = &p->ranks[r].options;

            o->socket = d.socket;
            o->offload_param = o->offload_optimizer = ZC_ZERO_HOST;
            o->job = "kept";
            o->keep = o->durable = true;
            o->commit_every = 2;
            o->resume = i > 0;
            p->ranks[r].until = lives[i].until;
        }
        party_run(p);
        assert_as_loops(p, plan, worlds);
        assert_int_equal(p->ranks[0].begun, i == 0 ? 0 : lives[i - 1].until);
        party_free(p);
    }
    real_daemon_stop(&d);
}

/* ---- an optimizer that is set late */

static int late_sgd(struct zc_zero *z, uint32_t rank)
{
    uint64_t iterations, applied;
    int rc = zc_zero_progress(z, &iterations, &applied);

    (void)rank;
    if (rc < 0 || iterations > 0)
        return rc < 0 || zc_zero_optimizer(z, ZC_SGD, ZC_MOMENTS_F32) != -EBUSY ? -EPROTO : 0;
    if (zc_zero_optimizer(z, ZC_SGD, ZC_MOMENTS_BF16) != -ENOTSUP)
        return -EPROTO;
    rc = zc_zero_optimizer(z, ZC_ADAM, ZC_MOMENTS_F32);
    return rc < 0 ? rc : zc_zero_optimizer(z, ZC_SGD, ZC_MOMENTS_F32);
}

/* Replacing AdamW with SGD gives SGD, wherever slices are; a kept job refuses it. */
static void an_optimizer_known_late(void **state)
{
    static const struct {
        const char *device;
        enum zc_zero_offload where;
        bool late, keep;
    } ways[] = { { .late = false },
                 { .late = true },
                 { "emulated", .late = true },
                 { NULL, ZC_ZERO_HOST, .late = true },
                 { NULL, ZC_ZERO_NVME, .late = true },
                 { NULL, ZC_ZERO_HOST, .late = true, .keep = true } };
    struct real_daemon d;
    struct party *want = NULL;

    (void)state;
    real_daemon_start(&d, "--host-bytes", "8M");
    for (size_t i = 0; i < ZB_COUNT(ways); i++) {
        struct party *p = party_new(2, &plans[0]);

        for (uint32_t r = 0; r < 2; r++) {
            struct zc_zero_options *o = &p->ranks[r].options;

            o->optimizer = ways[i].late ? ZC_ADAMW : ZC_SGD;
            o->optimizer_late = ways[i].late;
            o->device = ways[i].device;
            o->socket = d.socket;
            o->keep = ways[i].keep;
            o->offload_param = o->offload_optimizer = ways[i].where;
            p->ranks[r].until = 4;
            p->ranks[r].before = ways[i].late ? late_sgd : NULL;
            p->ranks[r].one_moment = true;
        }
        party_run(p);
        if (ways[i].keep) /* the other rank may only be told that its peer left */
            assert_true(p->ranks[0].rc == -ENOTSUP || p->ranks[1].rc == -ENOTSUP);
        else if (want)
            assert_same(want, p);
        else
            want = p;
        if (p != want)
            party_free(p);
    }
    party_free(want);
    real_daemon_stop(&d);
}

/* ---- refusals change nothing */

static int refused(struct zc_zero *z, const struct zc_zero_step_how *how, int want,
                   const char *text)
{
    struct zc_zero_stepped stepped;
    int rc = zc_zero_step_by(z, how, &stepped);

    if (rc != want || !strstr(zc_zero_error(z), text)) {
        print_error("%d, '%s', where '%s' was to be\n", rc, zc_zero_error(z), text);
        return -EPROTO;
    }
    return 0;
}

static int before_counts_refused(struct zc_zero *z)
{
    static const uint64_t many_steps[] = { 1, UINT64_C(1) << 53 };

    if (zc_zero_set_tensor_steps(z, 0, set_dense, 1) != -EINVAL ||
        zc_zero_set_tensor_steps(z, 0, many_steps, 2) != -EINVAL ||
        zc_zero_set_tensor_steps(z, UNITS, set_dense, 2) != -EINVAL || zc_zero_failed(z))
        return -EPROTO;
    return 0;
}

static int before_refusals(struct zc_zero *z, uint32_t rank)
{
    static unsigned char note[ZC_ZERO_NOTE_MAX];
    struct how *h = calloc(1, sizeof(*h));
    int rc;

    (void)rank;
    how_of(&plans[3], 1, h);
    for (uint32_t t = 0; t < TRAINED; t++) {
        h->factors[t] = 1 + (float)t;
        h->group_of[t] = 0;
    }
    rc = refused(z, &h->how, -EINVAL, "more than 1024 different");
    h->group_of[7] = GROUPS;
    if (rc == 0)
        rc = refused(z, &h->how, -EINVAL, "is in group 300 of 300");
    h->group_of[7] = 0;
    h->factors[7] = NAN;
    if (rc == 0)
        rc = refused(z, &h->how, -EINVAL, "has factor nan");
    h->how.factors = NULL;
    h->how.divide = -1;
    if (rc == 0)
        rc = refused(z, &h->how, -EINVAL, "divisor -1");
    h->how.divide = 1e-300; /* a gradient of 0 would become NaN */
    if (rc == 0)
        rc = refused(z, &h->how, -EINVAL, "and no float is as large");
    h->how.divide = 0;
    h->groups[1].lr = -1;
    if (rc == 0)
        rc = refused(z, &h->how, -EINVAL, "group 1: adamw with lr -1");
    h->groups[1].lr = 1e39;
    if (rc == 0)
        rc = refused(z, &h->how, -EINVAL, "group 1: adamw with lr 1e+39");
    h->groups[1].lr = 1e-2;
    h->groups[2].weight_decay = -1;
    if (rc == 0)
        rc = refused(z, &h->how, -EINVAL, "group 2: adamw with weight decay -1");
    h->groups[2].weight_decay = 0;
    h->group_of[1] = ZC_GROUP_NONE;
    if (rc == 0)
        rc = zc_zero_note_put(z, true, note, sizeof(note));
    if (rc == 0) /* one tensor is in no group */
        rc = refused(z, &h->how, -ENOSPC, "do not fit into");
    if (rc == 0)
        rc = zc_zero_note_put(z, true, "a note", 6);
    free(h);
    return rc < 0 ? rc : before_counts_refused(z);
}

static void refusals_change_nothing(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 2; world++) {
        struct party *p = party_new(world, &plans[0]);

        for (uint32_t r = 0; r < world; r++) {
            p->ranks[r].before = before_refusals;
            p->ranks[r].until = 2; /* from then on that note would be refused when it is put */
        }
        party_run(p);
        assert_as_loops(p, &plans[0], world == 1 ? all_ones : all_twos);
        party_free(p);
    }
}

static int other_values(struct zc_zero *z, uint32_t rank)
{
    struct how *h = calloc(1, sizeof(*h));
    int rc;

    how_of(&plans[3], 1, h);
    h->factors[TRAINED - 1] = rank == 1 ? 2 : 1;
    rc = refused(z, &h->how, -EINVAL, "other values on rank 1 than on rank 0");
    free(h);
    return rc < 0 ? rc : -EDOM;
}

static int other_counts(struct zc_zero *z, uint32_t rank)
{
    const uint64_t steps[] = { 3, rank };
    int rc = zc_zero_set_tensor_steps(z, 0, steps, 2);

    return rc == -EINVAL && zc_zero_failed(z) &&
                   strstr(zc_zero_error(z), "rank 1 and rank 0 have different values")
               ? -EDOM
               : -EPROTO;
}

/* As if its node's note had another scale. */
static int other_scale(struct zc_zero *z, uint32_t rank)
{
    struct how *h = calloc(1, sizeof(*h));
    int rc;

    how_of(&plans[3], 1, h);
    z->steps->scaler.scale = rank == 1 ? 2 : 1;
    rc = refused(z, &h->how, -EINVAL, "loss scale 2 on rank 1, 1 on rank 0");
    free(h);
    return rc < 0 ? rc : -EDOM;
}

static void ranks_that_differ(void **state)
{
    static int (*const differ[])(struct zc_zero * z, uint32_t rank) = { other_values, other_counts,
                                                                        other_scale };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(differ); i++) {
        struct party *p = party_new(2, &plans[0]);

        for (uint32_t r = 0; r < 2; r++)
            p->ranks[r].before = differ[i];
        party_run(p);
        for (uint32_t r = 0; r < 2; r++)
            assert_int_equal(p->ranks[r].rc, -EDOM);
        party_free(p);
    }
}

static int setup(void **state)
{
    for (uint32_t t = 0; t < MANY; t++)
        many[t] = (struct zc_tensor){ "t", EACH * t, 1, { EACH }, 1, false };
    return real_daemon_setup(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_plain_loops),
        cmocka_unit_test(placement_changes_nothing),
        cmocka_unit_test(a_resumed_job_has_its_counts),
        cmocka_unit_test(an_optimizer_known_late),
        cmocka_unit_test(refusals_change_nothing),
        cmocka_unit_test(ranks_that_differ),
    };

    return cmocka_run_group_tests(tests, setup, real_daemon_teardown);
}
