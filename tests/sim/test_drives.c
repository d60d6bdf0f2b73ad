/*
 * Two drives, of which one fails or is slow: it is drained, and the job's bits are those of the
 * oracle.
 *
 * MODEL. Two data files on two simulated devices, and a job that is not durable, whose state streams.
 * It steps, and is compared with the oracle after each step. The first device also has the catalog.
 */
#include "tests/sim/zsim.h"

#include <errno.h>
#include <string.h>

#include "daemon/disk/drives.h"
#include "daemon/store/drain.h"
#include "daemon/store/drains.h"

#define STREAMS   (156u << 10) /* host memory in addition to the staging: state streams */
#define PAGE      4096u
#define SEED      5u
#define FAST      400000000u /* bytes per second */
#define SLOW      10000000u
#define STEPS_MAX 60u

struct pair {
    struct zs_world w;
    struct zn_sim *sims[2];
    struct zs_state *now;
    uint64_t step;
};

static struct zsd_core *core_of(struct pair *p)
{
    return p->w.core.daemon.core;
}

static const struct zsd_drive *drive(struct pair *p, unsigned path)
{
    return &core_of(p)->disk->lines[path].drive;
}

/* Bytes of pages that no step writes, at most: those of units with tensors that are not stepped. */
static uint64_t frozen_bytes(void)
{
    uint64_t bytes = 0;

    for (unsigned u = 0; u < ZS_UNITS; u++) {
        const struct unit *unit = &zs_units[u];
        struct zb_layout layout = zs_layout(u);
        bool frozen = unit->frozen;

        for (unsigned i = 0; i < unit->ntensors; i++)
            frozen = frozen || unit->tensors[i].group == ZP_GROUP_FROZEN;
        for (int p = ZB_PARAM; frozen && p < ZB_PLANES; p++)
            bytes += zb_plane_bytes(layout.block_bytes[p], PAGE, unit->elems);
    }
    return bytes;
}

static void pair_open(struct pair *p, const uint64_t rates[2], uint64_t host_bytes)
{
    struct zs_open open = { .job = "s", .world = 1, .host_bytes = host_bytes, .unkept = true };
    struct zb_err err = { 0 };

    *p = (struct pair){ 0 };
    for (unsigned i = 0; i < 2; i++) {
        struct zn_sim_options o = { .seed = SEED + i, .rate_bytes = rates[i], .latency_ns = 1000 };

        assert_int_equal(zn_sim_new(&p->sims[i], &o, NULL), 0);
    }
    zs_paths = 2;
    zs_second = p->sims[1];
    zs_patient = rates[0] > 0;
    if (zs_start(&p->w, p->sims[0], SEED, PAGE, &err) < 0)
        zs_fail("start: %s", err.text);
    if (zs_open(&p->w, &open) < 0)
        zs_fail("open: %s", answers[0].text);
    if (zs_write(&p->w, 1) < 0)
        zs_fail("write: %s", answers[0].text);
    p->now = zs_state_first();
}

static void pair_close(struct pair *p)
{
    zs_state_unref(p->now);
    zs_stop(&p->w);
    zs_second = NULL;
    zs_patient = false;
    zn_sim_free(p->sims[0]);
    zn_sim_free(p->sims[1]);
}

/* One step, which must succeed, and give the oracle's bits. */
static void pair_step(struct pair *p)
{
    struct zs_state *before = p->now;

    p->step++;
    zs_context("step %llu", (unsigned long long)p->step);
    if (zs_push(&p->w, 1, p->step, p->step) < 0 || zs_step(&p->w, 1, p->step) < 0)
        zs_fail("%s", answers[0].text);
    p->now = zs_state_next(before, p->step);
    zs_state_unref(before);
    if (zs_read_all(&p->w, 1, p->now) < 0)
        zs_fail("read: %s", answers[0].text);
}

static void fails(void **state)
{
    static const uint64_t rates[2] = { 0 };
    struct zsd_core *core;
    struct zb_err err = { 0 };
    uint64_t budget;
    struct pair p;

    (void)state;
    pair_open(&p, rates, STREAMS);
    core = core_of(&p);
    core->daemon->config.drive_errors = 3;
    budget = core->tiers.nvme.budget;
    pair_step(&p);
    assert_true(drive(&p, 0)->held_bytes > 0 && drive(&p, 1)->held_bytes > 0);
    assert_int_equal(zn_sim_fault(p.sims[1], ZN_FAULT_ENOSPC, zn_sim_ops(p.sims[1]), true), 0);
    pair_step(&p); /* writes that fail go to the other drive */
    assert_true(core->daemon->stats.pages_elsewhere >= 3);
    assert_int_equal(drive(&p, 1)->drain, ZSD_DRAIN_FAILED);
    assert_true(drive(&p, 1)->held_bytes <= frozen_bytes());
    assert_true(core->tiers.nvme.budget < budget);
    for (uint64_t was = core->daemon->stats.pages_elsewhere, i = 0; i < 3; i++) {
        pair_step(&p);
        assert_int_equal(core->daemon->stats.pages_elsewhere, was); /* it is not written to */
    }
    assert_int_equal(core->daemon->stats.drives_drained, 1);
    assert_int_equal(zsd_drive_drain(core, 0, ZSD_DRAIN_ASKED, "", &err), -EINVAL); /* the last */
    assert_int_equal(zsd_drive_drain(core, 2, ZSD_DRAIN_ASKED, "", &err), -EINVAL);
    zn_sim_faults_clear(p.sims[1]);
    assert_int_equal(zsd_drive_use(core, 1, &err), 0);
    assert_int_equal(core->tiers.nvme.budget, budget);
    assert_int_equal(zsd_drive_drain(core, 0, ZSD_DRAIN_ASKED, "", &err), 0);
    pair_step(&p);
    pair_step(&p);
    assert_true(drive(&p, 0)->held_bytes <= frozen_bytes());
    assert_true(drive(&p, 1)->held_bytes > 0);
    pair_close(&p);
}

static void is_slow(void **state)
{
    static const uint64_t rates[2] = { FAST, SLOW };
    struct zsd_core *core;
    struct pair p;

    (void)state;
    pair_open(&p, rates, STREAMS);
    core = core_of(&p);
    core->daemon->config.drive_slow = 20;
    core->disk->window_ns = 1000000;
    core->disk->slow_ns = 0;
    while (drive(&p, 1)->drain == ZSD_DRAIN_NONE && p.step < STEPS_MAX)
        pair_step(&p);
    assert_int_equal(drive(&p, 1)->drain, ZSD_DRAIN_SLOW);
    assert_int_equal(drive(&p, 0)->drain, ZSD_DRAIN_NONE);
    pair_step(&p);
    pair_step(&p);
    assert_true(drive(&p, 1)->held_bytes <= frozen_bytes());
    pair_close(&p);
}

/* Every tensor is trained, so each step writes every page. */
static void units_train(void)
{
    for (unsigned u = 0; u < ZS_UNITS; u++) {
        struct unit *unit = &zs_units[u];

        unit->frozen = unit->quantized = false;
        for (unsigned i = 0; i < unit->ntensors; i++)
            if (unit->tensors[i].group == ZP_GROUP_FROZEN)
                unit->tensors[i].group = 0;
    }
}

/* The pages of a run's versions leave a drained drive while the daemon runs. They are not shared,
 * because each step has written all of them. No job is in memory. */
static void saved(void **state)
{
    static struct zs_run run;
    static struct zs_world w;
    const struct zs_model *models[2];
    struct zs_recovery how = {
        .models = models, .seed = SEED + 1, .page_elems = PAGE, .goes_on = true
    };
    struct unit units[ZS_UNITS];
    struct zb_err err = { 0 };
    struct zsd_core *core;
    struct zn_sim *sim;

    (void)state;
    memcpy(units, zs_units, sizeof(units));
    units_train();
    zs_context("a run, and then a drained drive");
    assert_int_equal(zn_sim_new(&sim, &(struct zn_sim_options){ .seed = SEED }, NULL), 0);
    zs_paths = 2;
    zs_run_init(&run, sim, SEED, PAGE);
    zs_run_script(&run);
    how.nmodels = zs_run_models(&run, zn_sim_ops(sim), models);
    if (zs_start(&w, sim, SEED, PAGE, &err) < 0)
        zs_fail("start: %s", err.text);
    core = w.core.daemon.core;
    assert_true(core->disk->lines[1].drive.held_bytes > 0);
    assert_int_equal(zsd_drive_drain(core, 1, ZSD_DRAIN_ASKED, "", &err), 0);
    assert_true(zsd_drain_wanted(core));
    zsd_drain_start(core);
    zs_settle(&w);
    assert_int_equal(core->disk->lines[1].drive.held_bytes, 0);
    assert_true(core->daemon->stats.drained_pages > 0);
    zs_stop(&w);
    (void)zs_recover(sim, &how);
    zs_run_done(&run);
    zn_sim_free(sim);
    memcpy(zs_units, units, sizeof(units));
}

/* ---- drains in the catalog */

static int drive_set(struct zs_world *w, unsigned path, bool drain)
{
    Zp__DriveSet q = ZP__DRIVE_SET__INIT;

    w->core.clients[ZS_NOBODY].conn.uid = 0; /* an administrator */
    q.number = path + 1;
    q.drain = drain;
    return call(&w->core, ZS_NOBODY, zsd_drive_set, &q);
}

static void again(struct zs_world *w, struct zn_sim *sim)
{
    struct zb_err err = { 0 };

    zs_stop(w);
    if (zs_start(w, sim, SEED, PAGE, &err) < 0)
        zs_fail("start: %s", err.text);
}

static enum zsd_drain drain_of(const struct zs_world *w, unsigned path)
{
    return w->core.daemon.core->disk->lines[path].drive.drain;
}

/* A drained drive is drained after a restart, until it is used again. */
static void kept(void **state)
{
    static const char why[] = "a reason with 5 numbers";
    static struct zs_world w;
    struct zb_err err = { 0 };
    uint64_t budget;
    struct zn_sim *sim, *other;

    (void)state;
    zs_context("drains over restarts");
    zs_paths = 2;
    assert_int_equal(zn_sim_new(&sim, &(struct zn_sim_options){ .seed = SEED }, NULL), 0);
    assert_int_equal(zs_start(&w, sim, SEED, PAGE, &err), 0);
    budget = w.core.daemon.core->tiers.nvme.budget;
    assert_int_equal(drive_set(&w, 1, true), 0);
    for (unsigned i = 0; i < 2; i++) {
        again(&w, sim);
        assert_int_equal(drain_of(&w, 0), ZSD_DRAIN_NONE);
        assert_int_equal(drain_of(&w, 1), ZSD_DRAIN_ASKED);
        assert_true(w.core.daemon.core->tiers.nvme.budget < budget);
        assert_true(zsd_drains_kept(w.core.daemon.core->store));
        assert_int_equal(drive_set(&w, 0, true), -EINVAL); /* the last one in use */
    }
    assert_int_equal(drive_set(&w, 1, false), 0);
    again(&w, sim);
    assert_int_equal(drain_of(&w, 1), ZSD_DRAIN_NONE);
    assert_int_equal(w.core.daemon.core->tiers.nvme.budget, budget);

    /* by itself: recorded with the next change, with its reason */
    assert_int_equal(zsd_drive_drain(w.core.daemon.core, 1, ZSD_DRAIN_SLOW, why, &err), 0);
    again(&w, sim);
    assert_int_equal(drain_of(&w, 1), ZSD_DRAIN_NONE);
    assert_int_equal(zsd_drive_drain(w.core.daemon.core, 1, ZSD_DRAIN_SLOW, why, &err), 0);
    assert_int_equal(drive_set(&w, 0, false), 0);
    again(&w, sim);
    assert_int_equal(drain_of(&w, 1), ZSD_DRAIN_SLOW);
    assert_string_equal(w.core.daemon.core->disk->lines[1].drive.why, why);

    /* not after a change that failed, and not another data file with this number */
    (void)zb_fail(&w.core.daemon.core->store->poisoned, -EIO, "it has failed before");
    assert_int_equal(drive_set(&w, 1, false), -EIO);
    assert_non_null(strstr(answers[ZS_NOBODY].text, "in use again until the next restart"));
    again(&w, sim);
    assert_int_equal(drain_of(&w, 1), ZSD_DRAIN_SLOW);
    assert_int_equal(zn_sim_new(&other, &(struct zn_sim_options){ .seed = SEED + 1 }, NULL), 0);
    zs_second = other;
    again(&w, sim);
    assert_int_equal(drain_of(&w, 1), ZSD_DRAIN_NONE);
    assert_false(zsd_drains_kept(w.core.daemon.core->store));
    assert_int_equal(drive_set(&w, 1, false), 0); /* deletes the record */
    again(&w, sim);
    assert_true(zsd_drains_kept(w.core.daemon.core->store));
    zs_stop(&w);
    zs_second = NULL;
    zn_sim_free(sim);
    zn_sim_free(other);
}

/* The power fails at any operation of the device while a drive is drained, or used again. */
static void kept_cuts(void **state)
{
    static struct zs_world w;
    struct zn_sim_options o = { .seed = SEED, .record = true };
    struct zb_err err = { 0 };
    struct zn_sim *sim, *cut;

    (void)state;
    zs_paths = 2;
    assert_int_equal(zn_sim_new(&sim, &o, NULL), 0);
    assert_int_equal(zs_start(&w, sim, SEED, PAGE, &err), 0);
    for (int drain = 1; drain >= 0; drain--) {
        uint64_t begin = zn_sim_ops(sim), end;

        assert_int_equal(drive_set(&w, 1, drain), 0);
        end = zn_sim_ops(sim);
        assert_true(end > begin);
        for (uint64_t op = begin; op <= end; op++) {
            static struct zs_world after;

            zs_context("drain %d, a cut at %llu", drain, (unsigned long long)op);
            assert_int_equal(zn_sim_cut_at(&cut, sim, op, (uint32_t)op % 8, NULL), 0);
            if (zs_start(&after, cut, SEED, PAGE, &err) < 0)
                zs_fail("start: %s", err.text);
            if (op == begin || op == end)
                assert_int_equal(drain_of(&after, 1) == ZSD_DRAIN_ASKED, drain == (op == end));
            zs_stop(&after);
            zn_sim_free(cut);
        }
    }
    zs_stop(&w);
    zn_sim_free(sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(fails), cmocka_unit_test(is_slow),
                                        cmocka_unit_test(saved), cmocka_unit_test(kept),
                                        cmocka_unit_test(kept_cuts) };

    zs_watch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
