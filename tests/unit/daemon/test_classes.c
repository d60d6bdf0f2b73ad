/*
 * Steps by classes: what a rank may send, in parts; that all ranks must send the same; that classes
 * with the values of the groups give the same bits; and that tensors without a class stay the same,
 * bit for bit. (With all placements: test_settings.)
 */
#include "tests/ztest.h"

#include <errno.h>
#include <string.h>

#include "base/crc.h"
#include "tests/unit/daemon/core_fixture.h"

#define LR 1e-2

static Zp__GroupScalars scalars_of(double lr)
{
    Zp__GroupScalars g = ZP__GROUP_SCALARS__INIT;

    g.lr = lr;
    g.beta1 = 0.9;
    g.beta2 = 0.95;
    g.eps = 1e-8;
    g.weight_decay = 0.1;
    return g;
}

/* Sends a part with one class, and `nruns` numbers of runs. */
static int say(struct world *w, unsigned c, bool begin, double factor, uint64_t t, uint32_t *runs,
               size_t nruns)
{
    Zp__StepClasses q = ZP__STEP_CLASSES__INIT;
    Zp__StepClass class = ZP__STEP_CLASS__INIT, *list[] = { &class };
    Zp__GroupScalars g = scalars_of(LR);

    class.scalars = &g;
    class.factor = factor;
    class.t = t;
    q.job = w->clients[c].job;
    q.step = w->clients[c].conn.member->job->iterations + 1;
    q.begin = begin;
    q.classes = list;
    q.n_classes = 1;
    q.runs = runs;
    q.n_runs = nruns;
    return call(w, c, zsd_step_classes, &q);
}

static void step_ask(struct world *w, unsigned c, bool by_classes)
{
    Zp__Step q = ZP__STEP__INIT;
    Zp__GroupScalars g = scalars_of(LR), *groups[] = { &g };

    q.job = w->clients[c].job;
    q.step = w->clients[c].conn.member->job->iterations + 1;
    q.scale = 1;
    q.by_classes = by_classes;
    q.groups = groups;
    q.n_groups = by_classes ? 0 : 1;
    ask(w, c, zsd_step, &q);
}

static int step(struct world *w, unsigned c, bool by_classes)
{
    step_ask(w, c, by_classes);
    return answer(w, c);
}

static float *floats(struct world *w, unsigned c, uint32_t u, unsigned salt)
{
    float *x = (float *)(void *)w->clients[c].staging;

    for (uint64_t e = 0; e < zb_padded_elems(unit_elems[u]); e++)
        x[e] = e < unit_elems[u] ? (float)((e * 7 + salt) % 31) - 15 : 0;
    return x;
}

static void fill(struct world *w, unsigned c)
{
    for (uint32_t u = 0; u < UNITS; u++) {
        Zp__Write q = ZP__WRITE__INIT;

        if (!w->clients[c].shards[u])
            continue;
        q.shard = w->clients[c].shards[u];
        q.count = zb_padded_elems(unit_elems[u]);
        (void)floats(w, c, u, u);
        assert_int_equal(call(w, c, zsd_write, &q), 0);
    }
}

static void push(struct world *w, unsigned c)
{
    for (uint32_t u = 0; u < UNITS; u++) {
        Zp__Push q = ZP__PUSH__INIT;

        if (!w->clients[c].shards[u])
            continue;
        q.shard = w->clients[c].shards[u];
        q.step = w->clients[c].conn.member->job->iterations + 1;
        q.mode = 1;
        q.dtype = ZB_F32;
        q.count = zb_padded_elems(unit_elems[u]);
        (void)floats(w, c, u, u + 100);
        assert_int_equal(call(w, c, zsd_push, &q), 0);
    }
}

/* A checksum of a shard's values. */
static uint32_t sum_of(struct world *w, unsigned c, uint32_t u)
{
    uint32_t sum = 0;

    for (uint32_t what = ZK_MASTER; what <= ZK_EXP_AVG_SQ; what++) {
        Zp__Read q = ZP__READ__INIT;

        q.shard = w->clients[c].shards[u];
        q.what = what;
        q.count = zb_padded_elems(unit_elems[u]);
        assert_int_equal(call(w, c, zsd_read, &q), 0);
        sum = zb_crc32c(sum, w->clients[c].staging, q.count * sizeof(float));
    }
    return sum;
}

static void start(struct world *w)
{
    world_open(w, 16 * STAGING, "threads", 1);
    assert_int_equal(job_open(w, 0), 0);
    assert_int_equal(job_define(w, 0, ZB_BF16), 0);
    fill(w, 0);
    push(w, 0);
}

static void classes_as_groups(void **state)
{
    uint32_t all[] = { UNITS, 1 }, some[] = { 2, 1, 3, 0, 2, 1 }, of[2][UNITS];
    struct world w;

    (void)state;
    for (int by = 0; by < 2; by++) {
        start(&w);
        if (by)
            assert_int_equal(say(&w, 0, true, 1, 1, all, 2), 0);
        assert_int_equal(step(&w, 0, by), 0);
        for (uint32_t u = 0; u < UNITS; u++)
            of[by][u] = sum_of(&w, 0, u);
        if (!by)
            world_close(&w);
    }
    assert_memory_equal(of[0], of[1], sizeof(of[0]));
    push(&w, 0); /* the next step leaves three units unchanged */
    assert_int_equal(say(&w, 0, true, 0.5, 2, some, 6), 0);
    assert_int_equal(step(&w, 0, true), 0);
    for (uint32_t u = 0; u < UNITS; u++)
        assert_true((sum_of(&w, 0, u) == of[0][u]) == (u >= 2 && u < 5));
    push(&w, 0);
    assert_int_equal(step(&w, 0, true), -EINVAL);
    assert_non_null(strstr(answers[0].text, "has sent no classes")); /* the step has used them up */
    assert_int_equal(step(&w, 0, false), 0);
    world_close(&w);
}

static void what_is_refused(void **state)
{
    uint32_t all[] = { UNITS, 1 }, half[] = { 3, 1 }, rest[] = { UNITS - 3, 1 },
             more[] = { UNITS, 1, 1, 1 }, unknown[] = { UNITS, 3 }, none[] = { 0, 1 };
    struct world w;

    (void)state;
    start(&w);
    assert_int_equal(say(&w, 0, false, 1, 1, all, 2), -EINVAL); /* there was no first part */
    assert_int_equal(say(&w, 0, true, 1, 0, all, 2), -EINVAL);  /* step count 0 */
    assert_int_equal(say(&w, 0, true, 1 / 0.0, 1, all, 2), -EINVAL);
    assert_int_equal(say(&w, 0, true, 1, 1, all, 1), -EINVAL);
    assert_int_equal(say(&w, 0, true, 1, 1, none, 2), -EINVAL);
    assert_int_equal(say(&w, 0, true, 1, 1, more, 4), -EINVAL);
    assert_int_equal(step(&w, 0, true), -EINVAL); /* nothing is left of any */
    assert_int_equal(say(&w, 0, true, 1, 1, unknown, 2), 0);
    assert_int_equal(step(&w, 0, true), -EINVAL);
    assert_int_equal(say(&w, 0, true, 1, 1, half, 2), 0);
    assert_int_equal(step(&w, 0, true), -EINVAL);
    assert_int_equal(say(&w, 0, false, 1, 1, rest, 2), 0);
    for (unsigned i = 2; i < ZP_CLASSES_MAX; i++)
        assert_int_equal(say(&w, 0, false, 1, 1, NULL, 0), 0);
    assert_int_equal(say(&w, 0, false, 1, 1, NULL, 0), -EINVAL); /* one too many: all are dropped */
    assert_int_equal(say(&w, 0, true, 1, 1, half, 2), 0);
    assert_int_equal(say(&w, 0, false, 1, 1, rest, 2), 0);
    assert_int_equal(step(&w, 0, true), 0);
    world_close(&w);
}

/* A scalar that no optimizer can use is named, with its group; no step is made with it. */
static void scalars_are_checked(void **state)
{
    static const struct {
        double lr, decay, eps, scale;
        const char *says;
    } rows[] = {
        { -1, 0, 1e-8, 1, "group 0: adamw with lr -1: from 0 to 1e+06" },
        { 1e39, 0, 1e-8, 1, "group 0: adamw with lr 1e+39" },
        { 1 / 0.0, 0, 1e-8, 1, "group 0: adamw with lr inf" },
        { 0.1, -1, 1e-8, 1, "group 0: adamw with weight decay -1" },
        { 0.1, 1e39, 1e-8, 1, "group 0: adamw with weight decay 1e+39" },
        { 0.1, 0, -1e-8, 1, "group 0: adamw with eps -1e-08" },
        { 0.1, 0, 1e39, 1, "group 0: adamw with eps 1e+39" },
        { 0.1, 0, 1e-8, 1e39, "scale 1e+39" },
    };
    uint32_t all[] = { UNITS, 1 };
    struct world w;

    (void)state;
    start(&w);
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        Zp__Step q = ZP__STEP__INIT;
        Zp__GroupScalars g = scalars_of(rows[i].lr), *groups[] = { &g };

        g.weight_decay = rows[i].decay;
        g.eps = rows[i].eps;
        q.job = w.clients[0].job;
        q.step = 1;
        q.scale = rows[i].scale;
        q.groups = groups;
        q.n_groups = 1;
        if (call(&w, 0, zsd_step, &q) != -EINVAL || !strstr(answers[0].text, rows[i].says))
            fail_msg("%s: %d '%s'", rows[i].says, answers[0].rc, answers[0].text);
    }
    assert_int_equal(say(&w, 0, true, 1e39, 1, all, 2), -EINVAL);
    assert_non_null(strstr(answers[0].text, "class 0: adamw with scale 1e+39"));
    assert_int_equal(say(&w, 0, true, 1e38, 1, all, 2), 0); /* with a scale of 1 it fits a float */
    assert_int_equal(step(&w, 0, true), 0);
    world_close(&w);
}

static void ranks_say_the_same(void **state)
{
    uint32_t all[] = { UNITS, 1 };
    struct world w;

    (void)state;
    world_open(&w, 16 * STAGING, "threads", 2);
    for (unsigned c = 0; c < 2; c++)
        assert_int_equal(job_open_with(&w, c, &(struct open_args){ .rank = c, .world = 2 }), 0);
    for (unsigned c = 0; c < 2; c++) {
        assert_int_equal(job_register(&w, c, c, 2, ZB_F32), 0);
        job_ready_ask(&w, c, c);
    }
    for (unsigned c = 0; c < 2; c++) {
        assert_int_equal(answer(&w, c), 0);
        zb_close_fd(&answers[c].fd);
    }
    for (unsigned c = 0; c < 2; c++) {
        fill(&w, c);
        push(&w, c);
        assert_int_equal(say(&w, c, true, c == 0 ? 1 : 0.5, 1, all, 2), 0);
    }
    step_ask(&w, 0, true);
    assert_int_equal(step(&w, 1, true), -EINVAL);
    assert_non_null(strstr(answers[1].text, "different values from its peers"));
    assert_int_equal(step(&w, 1, false), -EINVAL);
    assert_int_equal(say(&w, 1, true, 1, 1, all, 2), 0);
    assert_int_equal(step(&w, 1, true), 0);
    assert_int_equal(answer(&w, 0), 0);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_as_groups),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(scalars_are_checked),
        cmocka_unit_test(ranks_say_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
