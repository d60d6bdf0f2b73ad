/*
 * A start with an existing store measures the data file, and changes no byte of a saved page,
 * whatever the device does meanwhile.
 *
 * MODEL. A run leaves jobs, snapshots and prepared versions. Each case measures in a daemon on a
 * copy of that device with a fault, and compares the data file with the original. The daemon says
 * which places have pages.
 */
#include "tests/sim/zsim.h"

#include "daemon/disk/paths.h"

#define SEED 7u
#define PAGE 4096u

static struct {
    struct zs_run run;
    struct zn_sim *sim;
} base;

static uint8_t was[ZS_DATA_BYTES], is[ZS_DATA_BYTES];

static int base_up(void **state)
{
    const struct zn_sim_options o = { .seed = SEED };

    (void)state;
    zs_context("the run before");
    assert_int_equal(zn_sim_new(&base.sim, &o, NULL), 0);
    zs_run_init(&base.run, base.sim, SEED, PAGE);
    zs_run_script(&base.run);
    return 0;
}

static int base_down(void **state)
{
    (void)state;
    zs_run_done(&base.run);
    zn_sim_free(base.sim);
    return 0;
}

static void data_peek(const struct zn_sim *sim, uint8_t to[ZS_DATA_BYTES])
{
    assert_int_equal(zn_sim_peek(sim, ZS_DATA, 0, to, ZS_DATA_BYTES), 0);
}

/* The number of bytes that changed in places of pages (saved ones, since no job is in memory), and
 * in the rest of the data. */
static void changes(const struct zsd_core *core, uint64_t *ret_held, uint64_t *ret_free)
{
    struct zsd_places_copy places;

    *ret_held = *ret_free = 0;
    for (uint64_t i = ZN_DATA_START; i < ZS_DATA_BYTES; i++)
        *ret_free += was[i] != is[i];
    assert_int_equal(zsd_places_copy(core, &places), 0);
    assert_true(places.nplaces > 0);
    for (uint64_t p = 0; p < places.nplaces; p++)
        for (uint64_t i = 0; i < places.places[p].bytes; i++) {
            uint64_t at = ZN_DATA_START + places.places[p].at + i;

            *ret_held += was[at] != is[at];
        }
    *ret_free -= *ret_held;
    zsd_places_copy_done(&places);
}

static void device_up(struct zs_world *w, struct zn_sim **ret_sim)
{
    struct zb_err err = { 0 };

    assert_int_equal(zn_sim_copy(ret_sim, base.sim, NULL), 0);
    if (zs_start(w, *ret_sim, SEED, PAGE, &err) < 0)
        zs_fail("the daemon does not start: %s", err.text);
    data_peek(*ret_sim, was);
}

static void device_down(struct zs_world *w, struct zn_sim *sim)
{
    zs_stop(w);
    zn_sim_free(sim);
}

/* Every read and every write has a wrong bit: only free places may show it. */
static void a_wrong_bit_stays_outside_of_saved_pages(void **state)
{
    static struct zs_world w;
    struct zb_err err = { 0 };
    const struct zsd_rates *rates = &w.core.daemon.path_rates[0];
    uint64_t held, free_bytes, units;
    struct zn_sim *sim;

    (void)state;
    zs_context("measured while bits flip");
    device_up(&w, &sim);
    units = zsd_map_free_bytes(w.core.daemon.core);
    assert_int_equal(zn_sim_fault(sim, ZN_FAULT_FLIP, zn_sim_ops(sim), true), 0);
    if (zsd_paths_measure(w.core.daemon.core, &err) < 0)
        zs_fail("%s", err.text);
    assert_true(zn_sim_struck(sim) > 0);
    zn_sim_faults_clear(sim);
    data_peek(sim, is);
    changes(w.core.daemon.core, &held, &free_bytes);
    if (held > 0)
        zs_fail("%llu bytes of saved pages were changed", (unsigned long long)held);
    assert_true(free_bytes > 0); /* it did write */
    assert_true(rates->read > 0 && rates->written > 0 && rates->mixed > 0);
    assert_int_equal(zsd_map_free_bytes(w.core.daemon.core), units);
    if (zs_read_model(&w, &base.run.model) < 0)
        zs_fail("a page cannot be read any more");
    device_down(&w, sim);
}

/* Nothing is free, or no free range is as long as one transfer: then only reads are measured. */
static void a_full_file_is_only_read(void **state)
{
    static struct zs_world w;
    const struct zsd_rates *rates = &w.core.daemon.path_rates[0];
    struct zn_sim *sim;

    (void)state;
    for (unsigned gap = 0; gap < 2; gap++) {
        uint64_t taken[ZS_DATA_BYTES / ZB_PAGE_ALIGN], n = 0;
        struct zb_err err = { 0 };

        zs_context("measured when full, gaps: %u", gap);
        device_up(&w, &sim);
        while ((taken[n] = zsd_map_take(w.core.daemon.core, ZB_PAGE_ALIGN)) != ZB_NO_PLACE)
            n++;
        for (uint64_t i = 0; i < n && gap; i += 2)
            zsd_map_give(w.core.daemon.core, taken[i], ZB_PAGE_ALIGN);
        assert_int_equal(zn_sim_fault(sim, ZN_FAULT_FLIP, zn_sim_ops(sim), true), 0);
        if (zsd_paths_measure(w.core.daemon.core, &err) < 0)
            zs_fail("%s", err.text);
        zn_sim_faults_clear(sim);
        data_peek(sim, is);
        assert_memory_equal(was, is, ZS_DATA_BYTES);
        assert_true(rates->read > 0 && rates->mixed > 0);
        assert_int_equal(rates->written, 0);
        for (uint64_t i = gap; i < n; i += 1 + gap)
            zsd_map_give(w.core.daemon.core, taken[i], ZB_PAGE_ALIGN);
        device_down(&w, sim);
    }
}

/* A start that finds its store but cannot make it durable must not measure: after a power cut an
 * older version could be there, at places that are free in this one. */
static void measured_once_what_is_found_is_durable(void **state)
{
    static struct zs_world w;
    uint64_t begin = zn_sim_ops(base.sim), last;
    struct zb_err err = { 0 };
    struct zn_sim *sim;

    (void)state;
    zs_context("a start that measures");
    device_up(&w, &sim);
    last = zn_sim_ops(sim) - begin; /* the last operation of a start is a flush */
    device_down(&w, sim);
    assert_int_equal(zn_sim_copy(&sim, base.sim, NULL), 0);
    assert_int_equal(zn_sim_fault(sim, ZN_FAULT_FLUSH, zn_sim_ops(sim) + last - 1, true), 0);
    zs_measures = true;
    assert_true(zs_start(&w, sim, SEED, PAGE, &err) < 0);
    assert_int_equal(w.core.daemon.path_rates[0].read, 0);
    zn_sim_faults_clear(sim);
    if (zs_start(&w, sim, SEED, PAGE, &err) < 0)
        zs_fail("the daemon does not start: %s", err.text);
    zs_measures = false;
    assert_true(w.core.daemon.path_rates[0].read > 0);
    if (zs_read_model(&w, &base.run.model) < 0)
        zs_fail("a page cannot be read any more");
    device_down(&w, sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_bit_stays_outside_of_saved_pages),
        cmocka_unit_test(a_full_file_is_only_read),
        cmocka_unit_test(measured_once_what_is_found_is_durable),
    };

    zs_watch();
    return cmocka_run_group_tests(tests, base_up, base_down);
}
