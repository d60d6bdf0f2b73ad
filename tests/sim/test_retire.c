/*
 * A data file is retired, or made shorter, and the power fails, or the device, at any operation of it.
 * The store then holds the same bytes, with both data files; and after another, whole run with the
 * first one alone, or with a second one of that size.
 *
 * ZSHARD_SEED=N     the run before (1)
 * ZSHARD_RETIRE=N   the stride through the operations (2; 1: all of them)
 */
#include "tests/sim/zsim.h"

#include "daemon/disk/paths.h"
#include "daemon/store/retire.h"

#define VARIANTS    8u
#define SHORT_BYTES (UINT64_C(1) << 20) /* of the second file, when it is made shorter */

static struct {
    struct zs_run run;
    struct zn_sim *sim;
    bool shrinks;
    uint64_t seed, begin, end; /* operations of the whole run that retires, or shrinks */
    uint32_t page_elems;
    const struct zs_model *models[2];
    unsigned nmodels;
    uint64_t bytes;
} base;

/* Retires the second data file, or makes it shorter: 0, or why not. *ret_pages: how many pages it moved; or NULL. */
static int retire(struct zn_sim *sim, uint64_t *ret_pages, struct zb_err *err)
{
    struct zs_world w;
    struct zsd_retire r = { .path = 1 };
    int rc;

    zs_retire = 2;
    zs_shrink_bytes = base.shrinks ? SHORT_BYTES : 0;
    r.stay_bytes = base.shrinks ? SHORT_BYTES - ZN_DATA_START : 0;
    rc = zs_start(&w, sim, base.seed, base.page_elems, err);
    zs_retire = 0;
    zs_shrink_bytes = 0;
    if (rc < 0)
        return rc;
    r.core = w.core.daemon.core;
    rc = zsd_retire_start(&r, err);
    zs_settle(&w);
    if (rc == 0 && r.err.code < 0)
        rc = zb_fail(err, r.err.code, "%s", r.err.text);
    if (rc == 0 && base.shrinks)
        rc = zn_cut(zsd_path_engine(&w.core.daemon, 1), ZS_MORE, SHORT_BYTES, err);
    if (ret_pages)
        *ret_pages = r.pages;
    zsd_retire_done(&r);
    zs_stop(&w);
    return rc;
}

/* The store is right with this number of data files. */
static void right(struct zn_sim *sim, unsigned paths, bool goes_on)
{
    const struct zs_recovery how = { .models = base.models,
                                     .nmodels = base.nmodels,
                                     .seed = base.seed + 3,
                                     .page_elems = base.page_elems,
                                     .goes_on = goes_on,
                                     .ret_bytes = &base.bytes };

    zs_paths = paths;
    (void)zs_recover(sim, &how);
    zs_paths = 2;
}

/* After a failure: right with both files; and another run gets everything off the second one. */
static void goes_on(const struct zn_sim *left)
{
    struct zb_err err = { 0 };
    struct zn_sim *sim;

    assert_int_equal(zn_sim_copy(&sim, left, NULL), 0);
    right(sim, 2, false);
    zn_sim_free(sim);
    assert_int_equal(zn_sim_copy(&sim, left, NULL), 0);
    if (retire(sim, NULL, &err) < 0)
        zs_fail("the next run: %s", err.text);
    if (base.shrinks)
        assert_int_equal(zn_sim_size(sim, ZS_MORE), SHORT_BYTES);
    right(sim, base.shrinks ? 2 : 1, true);
    zn_sim_free(sim);
}

static int base_up(void **state)
{
    struct zb_err err = { 0 };
    uint64_t pages;

    (void)state;
    base.seed = zs_env("ZSHARD_SEED", 1);
    base.page_elems = base.seed % 2 ? 4096 : 8192;
    zs_context("seed %llu, the run before", (unsigned long long)base.seed);
    assert_int_equal(
        zn_sim_new(&base.sim, &(struct zn_sim_options){ .seed = base.seed, .record = true }, NULL),
        0);
    zs_run_init(&base.run, base.sim, base.seed, base.page_elems);
    zs_run_script(&base.run);
    base.begin = zn_sim_ops(base.sim);
    base.nmodels = zs_run_models(&base.run, base.begin, base.models);
    if (retire(base.sim, &pages, &err) < 0)
        zs_fail("%s", err.text);
    assert_true(pages > 0);
    base.end = zn_sim_ops(base.sim);
    print_message("seed %llu: %llu pages, %llu operations\n", (unsigned long long)base.seed,
                  (unsigned long long)pages, (unsigned long long)(base.end - base.begin));
    return 0;
}

static int base_down(void **state)
{
    (void)state;
    zs_run_done(&base.run);
    zn_sim_free(base.sim);
    return 0;
}

static void cuts(void **state)
{
    uint64_t stride = zs_env("ZSHARD_RETIRE", 2);

    (void)state;
    for (uint64_t op = base.begin; op <= base.end; op += stride) {
        uint32_t variant = (uint32_t)(op / stride % VARIANTS);
        struct zn_sim *sim;

        zs_context("ZSHARD_SEED=%llu, a cut at %llu:%u", (unsigned long long)base.seed,
                   (unsigned long long)op, variant);
        assert_int_equal(zn_sim_cut_at(&sim, base.sim, op, variant, NULL), 0);
        goes_on(sim);
        zn_sim_free(sim);
    }
}

static void faults(void **state)
{
    static const enum zn_fault kinds[] = { ZN_FAULT_EIO, ZN_FAULT_ENOSPC, ZN_FAULT_FLUSH,
                                           ZN_FAULT_DEAD, ZN_FAULT_SHORT };
    uint64_t stride = zs_env("ZSHARD_RETIRE", 2), n = 0;
    unsigned failed = 0;

    (void)state;
    for (uint64_t op = base.begin; op <= base.end; op += stride, n++) {
        enum zn_fault kind = kinds[n % ZB_COUNT(kinds)];
        struct zb_err err = { 0 };
        struct zn_sim *sim;

        zs_context("ZSHARD_SEED=%llu, %s at %llu", (unsigned long long)base.seed,
                   zn_fault_name(kind), (unsigned long long)op);
        assert_int_equal(zn_sim_cut_at(&sim, base.sim, base.begin, 1, NULL), 0);
        assert_int_equal(zn_sim_fault(sim, kind, zn_sim_ops(sim) + (op - base.begin), n % 2 == 0),
                         0);
        failed += retire(sim, NULL, &err) < 0;
        assert_int_equal(zn_sim_restart(sim), 0);
        goes_on(sim);
        zn_sim_free(sim);
    }
    print_message("%u of %u runs failed\n", failed, (unsigned)n);
    assert_true(failed > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(cuts), cmocka_unit_test(faults) };
    int failed;

    zs_watch();
    zs_paths = 2;
    failed = cmocka_run_group_tests_name("retire", tests, base_up, base_down);
    base.shrinks = true;
    return failed + cmocka_run_group_tests_name("shrink", tests, base_up, base_down);
}
