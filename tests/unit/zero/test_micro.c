/*
 * Any number of micro-steps (micro_steps 0): the same bits as with a fixed number, whatever order
 * each rank hands its units over in, and with units that a rank leaves out.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zero/pass/pass.h"
#include "fake_client.h"
#include "model.h"
#include "party.h"

#define STEPS 4u

struct way {
    const char *name;
    bool any;        /* micro_steps 0 */
    uint32_t micros; /* in each step; 0: varies from step to step */
    bool shuffled;   /* each rank has its own order */
    bool last_said;  /* zc_zero_micro(last) is called */
    bool open_end;   /* the step ends the last micro-step */
    bool announces;  /* the last micro-step is announced */
    bool abandons;   /* each step is begun and abandoned twice first */
    uint32_t more;   /* additional micro-steps of rank 1 in each step */
    double divide;   /* 0: by the number of micro-steps */
};

struct trainer {
    struct zc_zero_options options;
    struct way way;
    enum zc_dtype dtype;
    struct model_values values;
    double norms[STEPS];
    pthread_t thread;
    int rc;
    char error[512];
};

static uint32_t micros_of(const struct way *w, uint32_t step)
{
    return w->micros ? w->micros : 1 + step % 3;
}

/* Rank 1 has no gradient for every third unit in its second micro-step. */
static bool left_out(const struct trainer *t, uint32_t unit, uint32_t micro)
{
    return t->options.comm->rank == 1 && micro == 1 && unit % 3 == 0;
}

static float gradient_at(uint32_t rank, uint32_t step, uint32_t micro, uint32_t unit, uint64_t i)
{
    uint64_t x = i * 2654435761u + unit * 40503u + step * 7919u + micro * 104729u + rank * 1299709u;

    x ^= x >> 17;
    x *= 0xed5ad4bbu;
    x ^= x >> 11;
    return (float)(int32_t)(x & 0xffff) / 65536.0f - 0.5f;
}

static int hand(struct trainer *t, struct zc_zero *z, uint32_t u, uint32_t step, uint32_t micro)
{
    uint32_t rank = t->options.comm->rank;
    bool out = left_out(t, u, micro), has[4] = { false };
    float *grad;
    int rc;

    if (out && t->way.any && u % 2 == 0)
        return 0; /* not even requested */
    rc = zc_zero_grad(z, u, &grad);
    if (rc < 0 || (out && t->way.any))
        return rc; /* requested, but not reduced */
    for (uint64_t i = 0; i < model_units[u].elems && !out; i++)
        grad[i] += gradient_at(rank, step, micro, u, i);
    for (uint32_t i = 0; i < model_units[u].ntensors; i++)
        has[i] = !out;
    return zc_zero_reduce_of(z, u, has, model_units[u].ntensors);
}

static int micro_step(struct trainer *t, struct zc_zero *z, uint32_t step, uint32_t micro)
{
    uint64_t seed = step * 100 + micro * 10 + t->options.comm->rank;
    uint32_t order[MODEL_UNITS], n = MODEL_UNITS;
    const void *params;
    int rc = 0;

    for (uint32_t u = 0; u < n && rc == 0; u++)
        if ((rc = zc_zero_gather(z, u, &params)) == 0)
            rc = zc_zero_release(z, u);
    for (uint32_t u = 0; u < n; u++)
        order[u] = n - 1 - u;
    for (uint32_t i = n - 1; i > 0 && t->way.shuffled; i--) {
        uint32_t j = (uint32_t)(ztest_random(&seed) % (i + 1)), swap = order[i];

        order[i] = order[j];
        order[j] = swap;
    }
    if (rc == 0 && t->way.any)
        rc = zc_zero_micro(z, t->way.last_said && micro + 1 == micros_of(&t->way, step));
    for (uint32_t i = 0; i < n && rc == 0; i++)
        if (!model_units[order[i]].frozen)
            rc = hand(t, z, order[i], step, micro);
    if (rc == 0 && t->way.any && !(t->way.open_end && micro + 1 == micros_of(&t->way, step)))
        rc = zc_zero_micro_end(z);
    return rc;
}

/* Begins another step and drops it: with an open micro-step, and between two. */
static int begin_in_vain(struct trainer *t, struct zc_zero *z, uint32_t step,
                         const struct zc_zero_step_how *how)
{
    uint64_t before, after, applied;
    int rc = zc_zero_progress(z, &before, &applied);

    for (uint32_t m = 0; m < 2 && rc == 0; m++) {
        if (m == 1 && t->way.announces)
            rc = zc_zero_announce_by(z, how);
        if (rc == 0)
            rc = micro_step(t, z, step + 50, m);
    }
    if (rc == 0)
        rc = zc_zero_abandon(z);
    if (rc == 0 && t->way.any) {
        rc = zc_zero_micro(z, false);
        for (uint32_t u = MODEL_UNITS; u-- > 2 && rc == 0;)
            if (!model_units[u].frozen)
                rc = hand(t, z, u, step + 90, 0);
    }
    if (rc == 0)
        rc = zc_zero_abandon(z);
    if (rc == 0)
        rc = zc_zero_progress(z, &after, &applied);
    return rc == 0 && before != after ? -EILSEQ : rc;
}

static int step_once(struct trainer *t, struct zc_zero *z, uint32_t step)
{
    uint32_t micros = micros_of(&t->way, step);
    const struct zc_group group = { .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 },
                          groups[] = { group, group };
    const struct zc_zero_step_how how = { .groups = groups, .ngroups = 2, .divide = t->way.divide };
    struct zc_zero_stepped stepped = { .grad_norm = 0 };
    int rc = t->way.abandons ? begin_in_vain(t, z, step, &how) : 0;

    for (uint32_t m = 0; m < micros && rc == 0; m++) {
        if (t->way.announces && m + 1 == micros)
            rc = zc_zero_announce_by(z, &how);
        if (rc == 0)
            rc = micro_step(t, z, step, m);
    }
    if (rc == 0 && t->way.announces && zc_zero_micro(z, true) != -EBUSY)
        return -EILSEQ; /* that was the last one */
    for (uint32_t u = 0; u < MODEL_UNITS && rc == 0; u++)
        for (uint32_t i = 0; i < model_units[u].ntensors && !model_units[u].frozen; i++)
            if (!zcz_reduced_has(z, u, i)) /* in the first one, at least */
                return -EILSEQ;
    if (rc == 0 && t->way.divide > 0)
        rc = zc_zero_step_by(z, &how, &stepped);
    else if (rc == 0)
        rc = zc_zero_step(z, 0.01, &stepped);
    t->norms[step] = stepped.grad_norm;
    return rc;
}

static int train(struct trainer *t, struct zc_zero *z)
{
    int rc = model_declare(z, t->dtype, false);

    if (rc == 0)
        rc = zc_zero_start(z, model_init_fn, NULL);
    for (uint32_t s = 0; s < STEPS && rc == 0; s++)
        rc = step_once(t, z, s);
    for (uint32_t u = 0; u < MODEL_UNITS && rc == 0; u++) {
        if (model_units[u].frozen)
            continue;
        rc = zc_zero_read(z, u, ZC_MASTER, 0, model_units[u].elems, t->values.master[u]);
        if (rc == 0)
            rc = zc_zero_read(z, u, ZC_EXP_AVG, 0, model_units[u].elems, t->values.m[u]);
    }
    return rc;
}

static void *trainer_run(void *arg)
{
    struct trainer *t = arg;
    struct zc_zero *z;

    model_values_new(&t->values);
    t->rc = zc_zero_open(&z, &t->options);
    if (t->rc == 0)
        t->rc = train(t, z);
    (void)snprintf(t->error, sizeof(t->error), "%d: %s", t->rc, zc_zero_error(z));
    zc_zero_close(z, t->rc == 0);
    return NULL;
}

/* A placement, which must not change the result. */
struct place {
    enum zc_zero_offload offload;
    enum zc_zero_stage stage;
    bool local, alone;
    enum zc_dtype dtype;
};

/* The results of each rank are in ts. */
static void run_ranks(struct trainer *ts, uint32_t world, const struct way *way,
                      const struct place *place)
{
    struct fake_config fake = { .page_elems = 4096, .ring = true, .delay_max = 2 };
    struct party p;

    fake_reset(&fake);
    party_new(&p, world, place->dtype, world, 2);
    for (uint32_t r = 0; r < world; r++) {
        struct zc_zero_options *o = &p.runs[r].options;

        o->micro_steps = way->any ? 0 : way->micros;
        o->offload_optimizer = place->offload;
        o->offload_param = place->stage == ZC_STAGE_3 ? place->offload : ZC_ZERO_NONE;
        o->stage = place->stage;
        o->accumulate_local = place->local;
        o->gather_alone = place->alone;
        o->announces = way->announces;
        memset(&ts[r], 0, sizeof(ts[r]));
        ts[r].options = *o;
        ts[r].way = *way;
        ts[r].way.micros += r == 1 ? way->more : 0;
        ts[r].dtype = place->dtype;
        assert_int_equal(pthread_create(&ts[r].thread, NULL, trainer_run, &ts[r]), 0);
    }
    for (uint32_t r = 0; r < world; r++)
        assert_int_equal(pthread_join(ts[r].thread, NULL), 0);
    fake_end();
    party_done(&p);
}

static void run(struct trainer *ts, uint32_t world, const struct way *way,
                const struct place *place)
{
    run_ranks(ts, world, way, place);
    for (uint32_t r = 0; r < world; r++)
        if (ts[r].rc != 0)
            fail_msg("%s, stage %d, rank %u of %u: %s", way->name, (int)place->stage, r, world,
                     ts[r].error);
}

static void assert_same(const struct trainer *a, const struct trainer *b)
{
    for (uint32_t s = 0; s < STEPS; s++)
        if (a->norms[s] != b->norms[s])
            fail_msg("'%s' and '%s' differ in norm %u: %.17g, %.17g", a->way.name, b->way.name, s,
                     a->norms[s], b->norms[s]);
    for (uint32_t u = 0; u < MODEL_UNITS; u++)
        if (!model_units[u].frozen &&
            (memcmp(a->values.master[u], b->values.master[u], model_units[u].elems * 4) != 0 ||
             memcmp(a->values.m[u], b->values.m[u], model_units[u].elems * 4) != 0))
            fail_msg("'%s' and '%s' differ in unit %u", a->way.name, b->way.name, u);
}

static void done(struct trainer *ts, uint32_t world)
{
    for (uint32_t r = 0; r < world; r++)
        model_values_done(&ts[r].values);
}

static const struct place places[] = {
    { ZC_ZERO_NONE, ZC_STAGE_3, false, false, ZC_F32 },
    { ZC_ZERO_NONE, ZC_STAGE_1, true, false, ZC_F32 },
    { ZC_ZERO_NONE, ZC_STAGE_DDP, false, false, ZC_BF16 },
    { ZC_ZERO_NVME, ZC_STAGE_3, false, false, ZC_BF16 },
    { ZC_ZERO_NVME, ZC_STAGE_3, false, true, ZC_BF16 },
    { ZC_ZERO_NVME, ZC_STAGE_3, true, true, ZC_BF16 },
    { ZC_ZERO_NVME, ZC_STAGE_2, true, false, ZC_F32 },
};

/* Collective gathers have positions in the order, as reductions do. */
static bool orders_may_differ(const struct place *p)
{
    return p->alone || p->stage != ZC_STAGE_3;
}

static void the_bits_are_those_of_a_number_said_ahead(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(places); i++)
        for (uint32_t world = 1; world <= 3; world++)
            for (uint32_t micros = 1; micros <= 3; micros += 2) {
                bool differ = world == 1 || orders_may_differ(&places[i]);
                struct way said = { .name = "said ahead", .micros = micros };
                struct way any = { .name = "as they come",
                                   .any = true,
                                   .micros = micros,
                                   .shuffled = differ,
                                   .last_said = micros == 3,
                                   .open_end = world == 2 };
                struct trainer a[PARTY_MAX], b[PARTY_MAX];

                run(a, world, &said, &places[i]);
                run(b, world, &any, &places[i]);
                for (uint32_t r = 0; r < world; r++)
                    assert_same(&a[r], &b[r]);
                done(a, world);
                done(b, world);
            }
}

static void as_many_as_come(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(places); i++)
        for (uint32_t world = 1; world <= 3; world += 2) {
            struct way falling = { .name = "falling", .any = true };
            struct way shuffled = { .name = "shuffled",
                                    .any = true,
                                    .last_said = true,
                                    .shuffled = world == 1 || orders_may_differ(&places[i]) };
            struct trainer a[PARTY_MAX], b[PARTY_MAX];

            run(a, world, &falling, &places[i]);
            run(b, world, &shuffled, &places[i]);
            for (uint32_t r = 0; r < world; r++)
                assert_same(&a[r], &b[r]);
            done(a, world);
            done(b, world);
        }
}

/* With another divisor in each step, and each step abandoned after it was announced. */
static void steps_that_are_announced(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(places); i++)
        for (uint32_t world = 1; world <= 3; world += 2)
            for (int abandons = 0; abandons < 2; abandons++) {
                struct way plain = { .name = "as they come", .any = true, .divide = 2 };
                struct way said = { .name = "announced",
                                    .any = true,
                                    .divide = 2,
                                    .last_said = world == 3,
                                    .open_end = world == 1 && !abandons,
                                    .announces = true,
                                    .abandons = abandons };
                struct trainer a[PARTY_MAX], b[PARTY_MAX];

                run(a, world, &plain, &places[i]);
                run(b, world, &said, &places[i]);
                for (uint32_t r = 0; r < world; r++)
                    assert_same(&a[r], &b[r]);
                done(a, world);
                done(b, world);
            }
}

/* An abandoned step leaves nothing behind, wherever slices are. */
static void abandoned_steps_leave_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(places); i++)
        for (uint32_t world = 1; world <= 3; world++)
            for (int any = 0; any < 2; any++) {
                struct way plain = { .name = "plain", .any = any, .micros = 2 };
                struct way twice = {
                    .name = "abandoned", .any = any, .micros = 2, .abandons = true
                };
                struct trainer a[PARTY_MAX], b[PARTY_MAX];

                run(a, world, &plain, &places[i]);
                run(b, world, &twice, &places[i]);
                for (uint32_t r = 0; r < world; r++)
                    assert_same(&a[r], &b[r]);
                done(a, world);
                done(b, world);
            }
}

/* ---- what is refused */

/* If gradients leave a rank once in a step, ranks may make different numbers of micro-steps. Then
 * the sum cannot be divided by any of these numbers. */
static void ranks_that_make_other_numbers(void **state)
{
    static const struct place place = { ZC_ZERO_NONE, ZC_STAGE_1, true, false, ZC_F32 };
    struct way way = { .name = "one more", .any = true, .micros = 2, .more = 1 };
    struct trainer t[PARTY_MAX];

    (void)state;
    run_ranks(t, 2, &way, &place);
    for (uint32_t r = 0; r < 2; r++)
        if (t[r].rc != -EINVAL ||
            !strstr(t[r].error, "a step of 3 micro-steps on rank 1, 2 on rank 0"))
            fail_msg("rank %u: %s", r, t[r].error);
    done(t, 2);
    way.divide = 5;
    run(t, 2, &way, &place);
    for (uint32_t s = 0; s < STEPS; s++)
        assert_true(t[0].norms[s] == t[1].norms[s]);
    done(t, 2);
}

static void calls_at_the_wrong_time(void **state)
{
    struct zc_zero_stepped stepped;
    struct zc_zero *z;
    struct party p;
    bool has = true;
    float *grad;

    (void)state;
    party_new(&p, 1, ZC_F32, 1, 0);
    assert_int_equal(zc_zero_open(&z, &p.runs[0].options), 0); /* micro_steps 1 */
    assert_int_equal(model_declare(z, ZC_F32, false), 0);
    assert_int_equal(zc_zero_start(z, model_init_fn, NULL), 0);
    assert_int_equal(zc_zero_micro(z, false), -EINVAL);
    assert_int_equal(zc_zero_micro_end(z), -EINVAL);
    zc_zero_close(z, true);

    p.runs[0].options.micro_steps = 0;
    p.runs[0].options.vertical = true;
    assert_int_equal(zc_zero_open(&z, &p.runs[0].options), -EINVAL);
    zc_zero_close(z, false);
    p.runs[0].options.vertical = false;
    assert_int_equal(zc_zero_open(&z, &p.runs[0].options), 0);
    assert_int_equal(model_declare(z, ZC_F32, false), 0);
    assert_int_equal(zc_zero_start(z, model_init_fn, NULL), 0);
    assert_int_equal(zc_zero_announce(z, 0.1), -EINVAL);
    assert_int_equal(zc_zero_micro_end(z), -EBUSY);
    assert_int_equal(zc_zero_grad(z, 0, &grad), -EBUSY);
    assert_int_equal(zc_zero_step(z, 0.1, &stepped), -EBUSY);
    assert_int_equal(zc_zero_micro(z, true), 0);
    assert_int_equal(zc_zero_reduce(z, 0), -EINVAL); /* it was not requested */
    assert_int_equal(zc_zero_grad(z, 0, &grad), 0);
    assert_int_equal(zc_zero_reduce_of(z, 0, &has, 99), -EINVAL);
    assert_int_equal(zc_zero_reduce(z, 0), 0);
    assert_int_equal(zc_zero_reduce(z, 0), -EBUSY);
    assert_int_equal(zc_zero_grad(z, 0, &grad), -EBUSY);
    assert_int_equal(zc_zero_step(z, 0.1, &stepped), 0); /* ends the micro-step */
    assert_int_equal(zc_zero_step(z, 0.1, &stepped), -EBUSY);
    assert_int_equal(zc_zero_micro(z, true), 0);
    zc_zero_close(z, true);
    party_done(&p);
}

static void refused(struct zc_zero *z, int rc, int want, const char *words)
{
    if (rc != want || !strstr(zc_zero_error(z), words))
        fail_msg("%d, not %d: %s", rc, want, zc_zero_error(z));
    assert_false(zc_zero_failed(z));
}

/* What is wrong with an announcement, and with a step after it, changes nothing. */
static void announcements_that_are_wrong(void **state)
{
    struct zc_group group = { .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 },
                    groups[] = { group, group };
    struct zc_zero_step_how how = { .groups = groups, .ngroups = 2 };
    struct zc_zero_stepped stepped;
    struct zc_zero *z;
    struct party p;
    float *grad;

    (void)state;
    party_new(&p, 1, ZC_F32, 1, 2);
    p.runs[0].options.micro_steps = 0;
    p.runs[0].options.announces = true;
    p.runs[0].options.offload_optimizer = p.runs[0].options.offload_param = ZC_ZERO_NONE;
    assert_int_equal(zc_zero_open(&z, &p.runs[0].options), 0);
    assert_int_equal(model_declare(z, ZC_F32, false), 0);
    assert_int_equal(zc_zero_start(z, model_init_fn, NULL), 0);
    refused(z, zc_zero_announce(z, 0.1), -EINVAL, "without `divide`");
    refused(z, zc_zero_announce_by(z, &how), -EINVAL, "without `divide`");
    how.divide = 1;
    assert_int_equal(zc_zero_micro(z, true), 0);
    refused(z, zc_zero_announce_by(z, &how), -EBUSY, "inside of its micro-step 0");
    assert_int_equal(zc_zero_micro_end(z), 0);
    assert_int_equal(zc_zero_announce_by(z, &how), 0);
    assert_int_equal(zc_zero_announce_by(z, &how), 0);
    refused(z, zc_zero_step_by(z, &how, &stepped), -EBUSY, "announced and not made");
    assert_int_equal(zc_zero_micro(z, true), 0);
    assert_int_equal(zc_zero_grad(z, 0, &grad), 0);
    assert_int_equal(zc_zero_reduce(z, 0), 0);
    refused(z, zc_zero_micro(z, true), -EBUSY, "the step was announced with 2");
    groups[1].lr = 0.5;
    refused(z, zc_zero_step_by(z, &how, &stepped), -EINVAL, "rate 0.5, and 0.01 was announced");
    groups[1].lr = 0.01;
    groups[1].eps = 0.5;
    refused(z, zc_zero_step_by(z, &how, &stepped), -EINVAL, "with other values");
    groups[1].eps = group.eps;
    refused(z, zc_zero_step_by(z, &how, &stepped), -EINVAL, "has no gradient: freeze it");
    assert_int_equal(zc_zero_abandon(z), 0);
    assert_int_equal(zc_zero_micro(z, true), 0);
    assert_int_equal(zc_zero_step_by(z, &how, &stepped), 0); /* nothing has one, which is right */
    assert_true(stepped.left_alone > 0);
    zc_zero_close(z, true);
    party_done(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_a_number_said_ahead),
        cmocka_unit_test(abandoned_steps_leave_nothing),
        cmocka_unit_test(as_many_as_come),
        cmocka_unit_test(ranks_that_make_other_numbers),
        cmocka_unit_test(calls_at_the_wrong_time),
        cmocka_unit_test(steps_that_are_announced),
        cmocka_unit_test(announcements_that_are_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
