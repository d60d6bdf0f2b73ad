/*
 * A job that is not durable outlives a restart by an image, and the power fails, or the device, at any
 * operation of it: while the image is saved, while the next daemon loads and drops it, and later.
 * Then there is an image with the right bytes, and the job continues from it; or there is none. After
 * a rank was answered there is none (op/image.h, I1), and before that, once it was saved, there is one.
 *
 * ZSHARD_SEED=N     order of completions (1)
 * ZSHARD_IMAGES=N   the stride through the operations (1: all of them; 0: in all variants)
 */
#include "tests/sim/zsim.h"

#include <errno.h>

#define VARIANTS   8u
#define WORLD      2u
#define JOB        "j"
#define PAGE_ELEMS 4096u

/* Host memory in addition to the staging: all is in memory; a part of the state is streamed; and all
 * of it, with some parameters. */
static const uint64_t places[] = { 0, 780 << 10, 436 << 10 };

/* Operations of the device at which each part of a run began or ended. */
struct marks {
    uint64_t leave, saved, start, answered, end;
    bool is_saved, is_answered;
};

static struct {
    uint64_t seed;
    struct zs_state *states[3]; /* initial, and after 1 and 2 steps */
} base;

/* The ranks, which were told, leave, and the daemon ends in good order. */
static void restart_told(struct zs_world *w)
{
    struct zsd *daemon = &w->core.daemon;
    Zp__JobRef q = ZP__JOB_REF__INIT;

    for (unsigned r = 0; r < WORLD; r++) {
        if (w->core.clients[r].events != 1)
            zs_fail("rank %u got %u events", r, w->core.clients[r].events);
        q.job = w->core.clients[r].job;
        assert_int_equal(call(&w->core, r, zsd_job_close, &q), 0);
    }
    assert_false(zsd_core_waits(daemon));
    zsd_core_drain(daemon);
    zs_settle(w);
}

static void restart_leave(struct zs_world *w)
{
    zsd_core_leave(&w->core.daemon);
    restart_told(w);
}

static bool image_is(struct zs_world *w)
{
    return zsd_image_by_name(w->core.daemon.core, 1000, JOB) != NULL;
}

/* A whole run: two daemons, a restart between them, a step in each; as far as it gets. */
static void run(struct zn_sim *sim, uint64_t place, struct marks *m)
{
    struct zs_open o = { .job = JOB, .world = WORLD, .host_bytes = place, .unkept = true };
    struct zb_err err = { 0 };
    struct zs_world w;

    *m = (struct marks){ 0 };
    if (zs_start(&w, sim, base.seed, PAGE_ELEMS, &err) < 0)
        zs_fail("the first start: %s", err.text);
    if (zs_open(&w, &o) < 0 || zs_write(&w, WORLD) < 0 || zs_push(&w, WORLD, 1, 1) < 0 ||
        zs_step(&w, WORLD, 1) < 0)
        zs_fail("the first daemon: %s", answers[0].text);
    zs_settle(&w);
    m->leave = zn_sim_ops(sim);
    restart_leave(&w);
    m->saved = zn_sim_ops(sim);
    m->is_saved = image_is(&w);
    zsd_core_last(&w.core.daemon);
    zsd_core_farewell(&w.core.daemon);
    zs_settle(&w);
    zs_stop(&w);
    m->start = zn_sim_ops(sim);
    if (zs_start(&w, sim, base.seed + 1, PAGE_ELEMS, &err) < 0)
        return;
    o.attach = true;
    o.epoch = 1;
    m->is_answered = zs_open(&w, &o) == 0;
    m->answered = zn_sim_ops(sim);
    if (m->is_answered) {
        if (image_is(&w))
            zs_fail("a rank was answered, and the image is there");
        if (zs_push(&w, WORLD, 2, 2) == 0)
            (void)zs_step(&w, WORLD, 2);
        zs_settle(&w);
    }
    m->end = zn_sim_ops(sim);
    zs_stop(&w);
}

/* The job continues from its image, and the image is gone. */
static void goes_on(struct zs_world *w, uint64_t place)
{
    const struct zs_open o = {
        .job = JOB, .world = WORLD, .host_bytes = place, .unkept = true, .attach = true, .epoch = 1
    };

    if (zs_read_version(w, zsd_image_by_name(w->core.daemon.core, 1000, JOB)->committed,
                        base.states[1]) < 0)
        zs_fail("a page of the image: %s", answers[ZS_NOBODY].text);
    if (zs_open(w, &o) < 0)
        zs_fail("a rank that comes back: %s", answers[0].text);
    if (image_is(w))
        zs_fail("a rank was answered, and the image is there");
    if (zs_read_all(w, WORLD, base.states[1]) < 0 || zs_push(w, WORLD, 2, 2) < 0 ||
        zs_step(w, WORLD, 2) < 0 || zs_read_all(w, WORLD, base.states[2]) < 0)
        zs_fail("the job after the restart: %s", answers[0].text);
    zs_hang_up(w);
}

/* There is no image: nobody gets the job, and its name is free. */
static void begins_anew(struct zs_world *w, uint64_t place)
{
    struct zs_open o = {
        .job = JOB, .world = WORLD, .host_bytes = place, .unkept = true, .attach = true, .epoch = 1
    };

    if (zs_open(w, &o) != -ENOENT)
        zs_fail("a job that is lost was opened: %s", answers[0].text);
    o.attach = false;
    o.epoch = 0;
    if (zs_open(w, &o) < 0 || zs_write(w, WORLD) < 0 || zs_read_all(w, WORLD, base.states[0]) < 0)
        zs_fail("a new job: %s", answers[0].text);
    zs_hang_up(w);
}

/* What is left of a run is right. Returns whether there was an image. */
static bool right(struct zn_sim *sim, uint64_t place)
{
    struct zb_err err = { 0 };
    struct zs_world w;
    bool is;

    if (zs_start(&w, sim, base.seed + 2, PAGE_ELEMS, &err) < 0)
        zs_fail("it does not start: %s", err.text);
    assert_null(zsd_saved_by_name(w.core.daemon.core, 1000, JOB));
    is = image_is(&w);
    assert_int_equal(zsd_store_record(w.core.daemon.core->store, 0, 0).features,
                     is ? ZSD_FEATURE_IMAGES : 0); /* older releases refuse it */
    if (is)
        goes_on(&w, place);
    else
        begins_anew(&w, place);
    if (zsd_account_used(&w.core.daemon.core->tiers.nvme) > 0)
        zs_fail("%llu bytes of NVMe are left",
                (unsigned long long)zsd_account_used(&w.core.daemon.core->tiers.nvme));
    zs_stop(&w);
    if (zs_start(&w, sim, base.seed + 3, PAGE_ELEMS, &err) < 0)
        zs_fail("it does not start again: %s", err.text);
    assert_false(image_is(&w));
    assert_int_equal(zsd_store_record(w.core.daemon.core->store, 0, 0).features, 0);
    zs_stop(&w);
    return is;
}

/* A cut of a whole run. Returns whether it left an image. */
static bool cut(const struct zn_sim *whole, const struct marks *m, uint64_t place, uint64_t op,
                uint32_t variant)
{
    struct zn_sim *sim;
    bool is;

    zs_context("ZSHARD_SEED=%llu, %llu bytes, a cut at %llu:%u", (unsigned long long)base.seed,
               (unsigned long long)place, (unsigned long long)op, variant);
    assert_int_equal(zn_sim_cut_at(&sim, whole, op, variant, NULL), 0);
    is = right(sim, place);
    zn_sim_free(sim);
    if (op == m->leave && is)
        zs_fail("there is an image before the ranks left");
    if (op >= m->saved && op <= m->start && !is)
        zs_fail("the image was saved, and is gone");
    if (op >= m->answered && is)
        zs_fail("the image is there, and the job went on");
    return is;
}

static void cuts_at(uint64_t place)
{
    uint64_t every = zs_env("ZSHARD_IMAGES", 1), stride = every == 0 ? 1 : every;
    struct zn_sim *whole;
    struct marks m;
    unsigned with = 0, n = 0;

    zs_context("seed %llu, a whole run", (unsigned long long)base.seed);
    assert_int_equal(
        zn_sim_new(&whole, &(struct zn_sim_options){ .seed = base.seed, .record = true }, NULL), 0);
    run(whole, place, &m);
    assert_true(m.is_saved && m.is_answered);
    for (uint64_t op = m.leave; op <= m.end; op += stride)
        for (uint32_t v = 0; v < (every == 0 ? VARIANTS : 1); v++, n++)
            with += cut(whole, &m, place, op, (uint32_t)(op / stride + v) % VARIANTS);
    zn_sim_free(whole);
    print_message("%llu bytes: %u cuts, an image after %u\n", (unsigned long long)place, n, with);
    assert_true(with > 0 && with < n);
}

static void cuts(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ZB_COUNT(places); i++)
        cuts_at(places[i]);
}

static void faults(void **state)
{
    static const enum zn_fault kinds[] = { ZN_FAULT_EIO, ZN_FAULT_ENOSPC, ZN_FAULT_FLUSH,
                                           ZN_FAULT_DEAD, ZN_FAULT_SHORT };
    uint64_t stride = zb_max_u64(zs_env("ZSHARD_IMAGES", 1), 1), place = places[1], n = 0;
    unsigned with = 0, answered = 0;
    struct zn_sim *sim;
    struct marks m, whole;

    (void)state;
    assert_int_equal(zn_sim_new(&sim, &(struct zn_sim_options){ .seed = base.seed }, NULL), 0);
    run(sim, place, &whole);
    zn_sim_free(sim);
    for (uint64_t op = whole.leave; op < whole.answered; op += stride, n++) {
        enum zn_fault kind = kinds[n % ZB_COUNT(kinds)];
        bool is;

        zs_context("ZSHARD_SEED=%llu, %s at %llu", (unsigned long long)base.seed,
                   zn_fault_name(kind), (unsigned long long)op);
        assert_int_equal(zn_sim_new(&sim, &(struct zn_sim_options){ .seed = base.seed }, NULL), 0);
        assert_int_equal(zn_sim_fault(sim, kind, op, n % 2 == 0), 0);
        run(sim, place, &m);
        assert_int_equal(zn_sim_restart(sim), 0);
        is = right(sim, place);
        if (is && m.is_answered)
            zs_fail("the image is there, and the job went on");
        with += is;
        answered += m.is_answered;
        zn_sim_free(sim);
    }
    print_message("%u runs: %u continued, %u left an image\n", (unsigned)n, answered, with);
    assert_true(with > 0 && answered > 0 && with + answered < n);
}

/* Nobody comes back: the image is dropped in the end, which is durable. */
static void nobody_comes(void **state)
{
    const struct zs_open o = { .job = JOB, .world = WORLD, .unkept = true };
    struct zb_err err = { 0 };
    struct zs_world w;
    struct zn_sim *sim;
    struct marks m;

    (void)state;
    zs_context("nobody comes");
    assert_int_equal(
        zn_sim_new(&sim, &(struct zn_sim_options){ .seed = base.seed, .record = true }, NULL), 0);
    run(sim, 0, &m);
    for (int i = 0; i < 2; i++) {
        struct zn_sim *left;

        assert_int_equal(zn_sim_cut_at(&left, sim, m.saved, 0, NULL), 0);
        assert_int_equal(zs_start(&w, left, base.seed, PAGE_ELEMS, &err), 0);
        assert_true(image_is(&w));
        assert_true(zsd_core_ticks(&w.core.daemon));
        assert_int_equal(zs_open(&w, &o), -EEXIST); /* its name is taken */
        if (i == 0)
            zsd_core_tick(&w.core.daemon, UINT64_MAX);
        zs_settle(&w);
        assert_int_equal(image_is(&w), i);
        if (i == 0) {
            assert_int_equal(zsd_account_used(&w.core.daemon.core->tiers.nvme), 0);
            assert_false(zsd_core_ticks(&w.core.daemon));
        }
        zs_stop(&w);
        assert_int_equal(right(left, 0), i);
        zn_sim_free(left);
    }
    zn_sim_free(sim);
}

/* The first rank is back, and dies: the image goes with the job. If the daemon ends instead, the next
 * one has the image. Nobody else gets the job meanwhile. */
static void a_rank_is_lost(void **state)
{
    struct open_args args = {
        .name = JOB, .world = WORLD, .groups = 2, .attach = true, .takeover = true, .returns = true
    };
    struct zb_err err = { 0 };
    struct zs_world w;
    struct zn_sim *sim;
    struct marks m;

    (void)state;
    zs_context("a rank is lost");
    assert_int_equal(
        zn_sim_new(&sim, &(struct zn_sim_options){ .seed = base.seed, .record = true }, NULL), 0);
    run(sim, 0, &m);
    for (int ends = 0; ends < 2; ends++) {
        struct zn_sim *left;

        assert_int_equal(zn_sim_cut_at(&left, sim, m.saved, 0, NULL), 0);
        assert_int_equal(zs_start(&w, left, base.seed, PAGE_ELEMS, &err), 0);
        args.epoch = 0; /* of a run that was not attached */
        assert_int_equal(job_open_with(&w.core, 0, &args), -ENOENT);
        args.epoch = 1;
        args.world = WORLD + 1;
        assert_int_equal(job_open_with(&w.core, 0, &args), -EINVAL);
        args.world = WORLD;
        assert_int_equal(job_open_with(&w.core, 0, &args), 0);
        assert_true(image_is(&w));
        if (!ends) {
            client_gone(&w.core, 0);
            zs_settle(&w);
            assert_false(image_is(&w));
            assert_int_equal(zsd_account_used(&w.core.daemon.core->tiers.nvme), 0);
        }
        zs_stop(&w);
        assert_int_equal(right(left, 0), ends);
        zn_sim_free(left);
    }
    zn_sim_free(sim);
}

/* What a rank reads of one shard. */
static void shard_values(struct zs_world *w, unsigned rank, unsigned unit, enum zk_what what,
                         float *ret)
{
    const struct client *c = &w->core.clients[rank];
    Zp__Read q = ZP__READ__INIT;

    q.shard = c->shards[unit];
    q.what = what;
    q.count = c->count[unit];
    if (call(&w->core, rank, zsd_read, &q) < 0)
        zs_fail("kind %d of unit %u: %s", (int)what, unit, answers[rank].text);
    memcpy(ret, c->staging, c->count[unit] * sizeof(float));
}

/* The values of all shards that are trained: masters and first moments, one after the other; *ret_n: of
 * how many. */
static float *values_read(struct zs_world *w, size_t *ret_n)
{
    static const enum zk_what kinds[] = { ZK_MASTER, ZK_EXP_AVG };
    float *all = malloc(WORLD * ZS_UNITS * ZB_COUNT(kinds) * (size_t)ZS_STAGING);

    assert_non_null(all);
    *ret_n = 0;
    for (unsigned r = 0; r < WORLD; r++)
        for (unsigned u = 0; u < ZS_UNITS; u++)
            for (unsigned k = 0; k < ZB_COUNT(kinds); k++) {
                if (zs_units[u].frozen || w->core.clients[r].shards[u] == 0)
                    continue;
                shard_values(w, r, u, kinds[k], all + *ret_n);
                *ret_n += w->core.clients[r].count[u];
            }
    return all;
}

static void optimizer_set(struct zs_world *w, enum zb_optimizer optimizer)
{
    for (unsigned r = 0; r < WORLD; r++) {
        Zp__JobOptimizer q = ZP__JOB_OPTIMIZER__INIT;

        q.job = w->core.clients[r].job;
        q.optimizer = optimizer;
        q.moments = ZB_MOMENTS_F32;
        assert_int_equal(call(&w->core, r, zsd_job_optimizer, &q), 0);
    }
}

/* A step with the oracle's gradients, but not its optimizer. */
static void late_step(struct zs_world *w, uint64_t step)
{
    if (zs_push(w, WORLD, step, step) < 0 || zs_step(w, WORLD, step) < 0)
        zs_fail("step %llu with another optimizer: %s", (unsigned long long)step, answers[0].text);
}

/* The optimizer is chosen after the state was placed for one with more moments: before the first step,
 * or while the daemon waits for the ranks. The image has the state as it was placed. */
static void late_at(uint64_t place, bool leaves)
{
    struct zs_open o = { .job = JOB, .world = WORLD, .host_bytes = place, .unkept = true };
    struct zb_err err = { 0 };
    float *before, *after;
    struct zs_world w;
    struct zn_sim *sim;
    size_t n, again;

    zs_context("another optimizer, %llu bytes, %d", (unsigned long long)place, (int)leaves);
    assert_int_equal(zn_sim_new(&sim, &(struct zn_sim_options){ .seed = base.seed }, NULL), 0);
    assert_int_equal(zs_start(&w, sim, base.seed, PAGE_ELEMS, &err), 0);
    if (zs_open(&w, &o) < 0 || zs_write(&w, WORLD) < 0)
        zs_fail("the first daemon: %s", answers[0].text);
    if (leaves)
        zsd_core_leave(&w.core.daemon);
    optimizer_set(&w, ZB_LION);
    if (!leaves)
        late_step(&w, 1);
    before = values_read(&w, &n);
    if (!leaves)
        zsd_core_leave(&w.core.daemon);
    restart_told(&w);
    zs_stop(&w);
    assert_int_equal(zs_start(&w, sim, base.seed + 1, PAGE_ELEMS, &err), 0);
    o.attach = true;
    o.epoch = 1;
    o.optimizer = ZB_LION;
    if (zs_open(&w, &o) < 0)
        zs_fail("a rank that comes back: %s", answers[0].text);
    after = values_read(&w, &again);
    assert_int_equal(again, n);
    assert_memory_equal(after, before, n * sizeof(float));
    late_step(&w, leaves ? 1 : 2);
    zs_hang_up(&w);
    assert_int_equal(zsd_account_used(&w.core.daemon.core->tiers.nvme), 0);
    zs_stop(&w);
    zn_sim_free(sim);
    free(before);
    free(after);
}

static void late_optimizer(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ZB_COUNT(places); i++) {
        late_at(places[i], false);
        late_at(places[i], true);
    }
}

static int base_up(void **state)
{
    (void)state;
    base.seed = zs_env("ZSHARD_SEED", 1);
    base.states[0] = zs_state_first();
    base.states[1] = zs_state_next(base.states[0], 1);
    base.states[2] = zs_state_next(base.states[1], 2);
    return 0;
}

static int base_down(void **state)
{
    (void)state;
    for (unsigned i = 0; i < ZB_COUNT(base.states); i++)
        zs_state_unref(base.states[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(late_optimizer), cmocka_unit_test(cuts),
                                        cmocka_unit_test(faults), cmocka_unit_test(nobody_comes),
                                        cmocka_unit_test(a_rank_is_lost) };

    zs_watch();
    return cmocka_run_group_tests(tests, base_up, base_down);
}
