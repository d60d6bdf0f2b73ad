/*
 * Clipping by tensor: the rule by itself; training against plain loops in fp64, for several numbers
 * of ranks and micro-steps; and bit by bit with itself, wherever the slices are: in the process, on
 * the emulated device, in a real daemon, in memory and on NVMe, with steps that begin early; after a
 * skipped step; and in a job that other numbers of ranks resume.
 */
#include "clip_runs.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zclient.h"
#include "client/zero/config/clip_rule.h"
#include "real_daemon.h"

static const struct plan plain = { .micro_steps = 1, .clip = 1 };

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

static struct zc_job_row row_of(const char *socket)
{
    struct zc_options o = { .socket = socket };
    struct zc_job_row *rows = NULL, row;
    struct zc_client *c = NULL;
    size_t n = 0;

    assert_int_equal(zc_open(&c, &o), 0);
    assert_int_equal(zc_jobs_wait(c, NULL, &rows, &n), 0);
    assert_int_equal(n, 1);
    row = rows[0];
    zc_rows_free(rows);
    zc_close(c);
    return row;
}

/* How a job clips, whether its steps begin early, and what is frozen is shown to users. */
static void users_see_it(void **state)
{
    static const struct {
        enum zc_clip_mode mode;
        double clip;
        bool muon, dynamic, early;
        uint32_t micro_steps, warmup;
        const char *clips, *begins;
    } cases[] = {
        { ZC_CLIP_GLOBAL, 2, false, false, true, 1, 0, "global, 2",
          "off: the global norm is known with the last gradient" },
        { ZC_CLIP_GLOBAL, 0, false, false, true, 1, 0, "none", "yes" },
        { ZC_CLIP_NONE, 2, false, false, false, 1, 0, "none", "off: it is not asked for" },
        { ZC_CLIP_NONE, 2, false, false, true, 0, 0, "none",
          "off: the number of micro-steps is not known in advance" },
        { ZC_CLIP_TENSOR, 1, false, false, true, 1, 0, "tensor, 1.05 of averages", "yes" },
        { ZC_CLIP_TENSOR, 0, false, false, true, 1, 9, "tensor, 1.05 of averages", "yes" },
        { ZC_CLIP_TENSOR, 1, false, false, true, 1, 9, "tensor, 1.05 of averages",
          "after 9 more steps, which are clipped globally" },
        { ZC_CLIP_TENSOR, 1, false, true, true, 1, 9, "tensor, 1.05 of averages",
          "off: with a dynamic loss scale an overflow is known too late" },
        { ZC_CLIP_NONE, 0, true, false, true, 4, 0, "none", "yes" },
        { ZC_CLIP_TENSOR, 1, true, false, true, 1, 0, "tensor, 1.05 of averages", "yes" },
        { ZC_CLIP_TENSOR, 1, true, true, true, 1, 0, "tensor, 1.05 of averages",
          "off: with a dynamic loss scale an overflow is known too late" },
        { ZC_CLIP_GLOBAL, 2, true, false, true, 1, 0, "global, 2",
          "off: the global norm is known with the last gradient" },
    };
    struct real_daemon d;

    (void)state;
    real_daemon_start(&d, "--host-bytes", "64M");
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct party *p = party_new(1, &plain);
        struct zc_zero_options *o = &p->ranks[0].options;
        struct zc_zero *z;
        struct zc_job_row row;

        o->socket = d.socket;
        o->offload_param = o->offload_optimizer = ZC_ZERO_NVME;
        o->clip_mode = cases[i].mode;
        o->clip = cases[i].clip;
        o->loss_scale.dynamic = cases[i].dynamic;
        o->micro_steps = cases[i].micro_steps;
        o->clip_tensor_warmup = cases[i].warmup;
        if (cases[i].muon)
            o->optimizer = ZC_MUON;
        if (!cases[i].early)
            o->overlap &= ~(uint32_t)ZC_ZERO_EARLY;
        assert_int_equal(zc_zero_open(&z, o), 0);
        for (uint32_t u = 0; u < UNITS; u++)
            assert_int_equal(zc_zero_add_unit(z, &units[u]), 0);
        assert_int_equal(zc_zero_start(z, initial, NULL), 0);
        row = row_of(d.socket);
        assert_string_equal(row.clip, cases[i].clips);
        assert_string_equal(row.early, cases[i].begins);
        assert_int_equal(row.clip_warm_left, cases[i].warmup);
        assert_true(row.frozen_tensors == 0 && row.frozen_bytes == 0);
        assert_int_equal(zc_zero_freeze(z, 1, true), 0);
        row = row_of(d.socket);
        assert_int_equal(row.frozen_tensors, 2);
        assert_in_range(row.frozen_bytes, 4096 * 8, 4096 * 13);
        assert_int_equal(zc_zero_freeze(z, 1, false), 0);
        row = row_of(d.socket);
        assert_true(row.frozen_tensors == 0 && row.frozen_bytes == 0);
        zc_zero_close(z, true);
        party_free(p);
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
        cmocka_unit_test(users_see_it),
    };

    clip_model();
    return cmocka_run_group_tests(tests, real_daemon_setup, real_daemon_teardown);
}
