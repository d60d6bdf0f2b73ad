/*
 * Two drives, of which one fails or is slow: it is drained, and the job's bits are those of the
 * oracle. And what is saved leaves a drained drive while the daemon runs, whatever fails.
 *
 * ZSHARD_DRIVES=N   the stride through the operations of a drain (3; 1: all of them)
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

/* A run, at whose end commits, snapshots and a prepared version have pages on both drives. */
struct after_run {
    struct zs_run run;
    struct zn_sim *sim;
    const struct zs_model *models[2];
    unsigned nmodels;
    struct unit units[ZS_UNITS];
};

static void after_run(struct after_run *a, bool trained, bool record)
{
    struct zn_sim_options o = { .seed = SEED, .record = record };

    zs_context("a run, and then a drained drive");
    memcpy(a->units, zs_units, sizeof(a->units));
    if (trained)
        units_train();
    assert_int_equal(zn_sim_new(&a->sim, &o, NULL), 0);
    zs_paths = 2;
    zs_run_init(&a->run, a->sim, SEED, PAGE);
    zs_run_script(&a->run);
    a->nmodels = zs_run_models(&a->run, zn_sim_ops(a->sim), a->models);
}

static void after_run_done(struct after_run *a)
{
    zs_run_done(&a->run);
    zn_sim_free(a->sim);
    memcpy(zs_units, a->units, sizeof(a->units));
}

/* The store is as the run has left it, and continues. */
static void after_run_right(const struct after_run *a, struct zn_sim *sim, bool goes_on)
{
    const struct zs_recovery how = { .models = a->models,
                                     .nmodels = a->nmodels,
                                     .seed = SEED + 1,
                                     .page_elems = PAGE,
                                     .goes_on = goes_on };

    (void)zs_recover(sim, &how);
}

/* Pages on that drive that more than one row has. */
static unsigned shared_pages(const struct zsd_core *core, unsigned path)
{
    unsigned n = 0;

    zb_list_each(pos, &core->store->rows)
    {
        const struct zsd_row *row = zb_container_of(pos, struct zsd_row, node);

        for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++)
            for (uint32_t i = 0; row->planes[p].extents && i < row->npages; i++) {
                uint64_t at = row->planes[p].extents[i].at;

                n += ZN_AT_PATH(at) == path && zsd_extent_refs(core, at) > 1;
            }
    }
    return n;
}

/* An fsck, in the middle of whatever else is done. */
static void checked(struct zs_world *w)
{
    Zp__FsckReply *reply;

    w->core.clients[ZS_NOBODY].conn.uid = 0; /* an administrator */

    if (call(&w->core, ZS_NOBODY, zsd_fsck, NULL) < 0)
        zs_fail("fsck: %s", answers[ZS_NOBODY].text);
    reply = zp__fsck_reply__unpack(NULL, answers[ZS_NOBODY].len, answers[ZS_NOBODY].bytes);
    assert_non_null(reply);
    if (reply->problems_total > 0)
        zs_fail("fsck: %s", reply->problems[0]);
    zp__fsck_reply__free_unpacked(reply, NULL);
}

/* Drains the second drive; its pages move, one copy each. */
static void empties(struct zs_world *w, bool fails)
{
    struct zsd_core *core = w->core.daemon.core;
    const struct zsd_line *lines = core->disk->lines;
    uint64_t held = lines[0].drive.held_bytes + lines[1].drive.held_bytes;
    struct zb_err err = { 0 };

    if (zsd_drive_drain(core, 1, ZSD_DRAIN_ASKED, "", &err) < 0)
        zs_fail("%s", err.text);
    w->core.daemon.turns.limit_ns = 1; /* short turns: a change takes several */
    zsd_drain_start(core);
    if (!fails)
        checked(w);
    zs_settle(w);
    if (fails)
        return;
    assert_int_equal(lines[1].drive.held_bytes, 0);
    assert_int_equal(lines[0].drive.held_bytes, held);
}

/* The pages of a run's versions leave a drained drive while the daemon runs. No job is in memory. If
 * all tensors are trained, each step has written all pages, so no rows share any. */
static void saved(void **state)
{
    (void)state;
    for (int trained = 0; trained < 2; trained++) {
        static struct after_run a;
        static struct zs_world w;
        struct zb_err err = { 0 };
        struct zsd_core *core;
        unsigned shared;

        after_run(&a, trained, false);
        if (zs_start(&w, a.sim, SEED, PAGE, &err) < 0)
            zs_fail("start: %s", err.text);
        core = w.core.daemon.core;
        shared = shared_pages(core, 0) + shared_pages(core, 1);
        assert_true(core->disk->lines[1].drive.held_bytes > 0);
        assert_int_equal(shared_pages(core, 1) > 0, !trained);
        empties(&w, false);
        assert_int_equal(shared_pages(core, 0), shared);
        assert_true(core->daemon->stats.drained_pages > 0);
        zs_stop(&w);
        after_run_right(&a, a.sim, true);
        after_run_done(&a);
    }
}

/* The power fails, or the device, at any operation while pages move. Nothing is lost, and after a
 * restart the rest moves. */
static void saved_faults(void **state)
{
    static const enum zn_fault kinds[] = { ZN_FAULT_EIO, ZN_FAULT_ENOSPC, ZN_FAULT_FLUSH,
                                           ZN_FAULT_DEAD, ZN_FAULT_SHORT };
    static struct after_run a;
    static struct zs_world w;
    uint64_t stride = zs_env("ZSHARD_DRIVES", 3), begin, end;
    struct zb_err err = { 0 };
    struct zn_sim *sim;

    (void)state;
    after_run(&a, false, true);
    begin = zn_sim_ops(a.sim);
    assert_int_equal(zs_start(&w, a.sim, SEED, PAGE, &err), 0);
    empties(&w, false);
    zs_stop(&w);
    end = zn_sim_ops(a.sim);
    print_message("%llu operations\n", (unsigned long long)(end - begin));
    for (uint64_t op = begin, n = 0; op <= end; op += stride, n++) {
        enum zn_fault kind = kinds[n / 2 % ZB_COUNT(kinds)];

        zs_context("ZSHARD_DRIVES=%llu, %s at %llu", (unsigned long long)stride,
                   n % 2 ? zn_fault_name(kind) : "a cut", (unsigned long long)op);
        assert_int_equal(zn_sim_cut_at(&sim, a.sim, n % 2 ? begin : op, (uint32_t)n % 8, NULL), 0);
        if (n % 2) {
            assert_int_equal(zn_sim_fault(sim, kind, zn_sim_ops(sim) + op - begin, n % 4 == 1), 0);
            if (zs_start(&w, sim, SEED, PAGE, &err) == 0) {
                empties(&w, true);
                zs_stop(&w);
            }
            assert_int_equal(zn_sim_restart(sim), 0);
        }
        after_run_right(&a, sim, false);
        if (zs_start(&w, sim, SEED + n, PAGE, &err) < 0)
            zs_fail("start: %s", err.text);
        empties(&w, false);
        zs_stop(&w);
        after_run_right(&a, sim, n % 4 == 0);
        zn_sim_free(sim);
    }
    after_run_done(&a);
}

/* No page can be written elsewhere: the pass ends, and what it was promised is free again. */
static void promise_returned(void **state)
{
    static struct after_run a;
    static struct zs_world w;
    struct zb_err err = { 0 };
    uint64_t used;

    (void)state;
    after_run(&a, false, false);
    assert_int_equal(zs_start(&w, a.sim, SEED, PAGE, &err), 0);
    used = zsd_account_used(&w.core.daemon.core->tiers.nvme);
    assert_int_equal(zn_sim_fault(a.sim, ZN_FAULT_ENOSPC, zn_sim_ops(a.sim), true), 0);
    empties(&w, true);
    assert_int_equal(w.core.daemon.core->daemon->stats.drained_pages, 0);
    assert_int_equal(zsd_account_used(&w.core.daemon.core->tiers.nvme), used);
    zn_sim_faults_clear(a.sim);
    zs_stop(&w);
    after_run_right(&a, a.sim, true);
    after_run_done(&a);
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

/* The message if more places are promised than there are. */
static const char *too_much(struct zsd_core *core)
{
    static struct zb_err err;
    const uint64_t planes[ZB_PLANES] = { 0 };
    struct zb_needs now = { 0 }, want = { 0 };
    struct zsd_account held = { 0 };

    err = (struct zb_err){ 0 };
    assert_int_equal(zb_needs_add(&want, 4096, UINT64_C(1) << 20), 0);
    assert_int_equal(zsd_nvme_promise(core, &held, &now, &want, planes, &err), -ENOSPC);
    zb_needs_done(&want);
    zb_needs_done(&now);
    return err.text;
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
    assert_non_null(
        strstr(too_much(w.core.daemon.core), "are free (and 15.9 MiB on drained drives)"));
    assert_int_equal(drive_set(&w, 1, false), 0);
    again(&w, sim);
    assert_int_equal(drain_of(&w, 1), ZSD_DRAIN_NONE);
    assert_int_equal(w.core.daemon.core->tiers.nvme.budget, budget);
    assert_null(strstr(too_much(w.core.daemon.core), "drained"));

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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fails),        cmocka_unit_test(is_slow),          cmocka_unit_test(saved),
        cmocka_unit_test(saved_faults), cmocka_unit_test(promise_returned), cmocka_unit_test(kept),
        cmocka_unit_test(kept_cuts)
    };

    zs_watch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
