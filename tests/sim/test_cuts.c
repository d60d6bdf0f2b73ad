/*
 * The power fails at any operation of the device, with any variant of what was not flushed. The
 * store opens, holds what was acknowledged or the change that was in flight, every byte of it, and
 * goes on. The same for a power cut during recovery.
 *
 * ZSHARD_SEED=N     the first run (1)
 * ZSHARD_CUTS=N     the number of cuts (1200); if one run has too few, the next seeds follow
 * ZSHARD_CUT=op:v   one cut, of the run of ZSHARD_SEED
 * ZSHARD_LOSE=1     two data files; after each cut the catalog is damaged, and its copy replaces it
 * ZSHARD_DRAINS=1   two data files, which are drained and used again
 * ZSHARD_DISCARDS=1 free space gets other bytes, now and then
 */
#include "tests/sim/zsim.h"

#include <stdio.h>
#include <stdlib.h>

#define CUTS          1200u
#define VARIANTS      16u
#define NESTED_EVERY  40u /* every 40th cut has a second one during recovery */
#define NESTED_CUTS   6u
#define GOES_ON_EVERY 2u

static bool loses; /* ZSHARD_LOSE */

struct campaign {
    struct zs_run run;
    struct zn_sim *sim;
    uint64_t seed;
    uint64_t cuts, nested, older, newer, bytes;
};

static void campaign_record(struct campaign *c)
{
    struct zn_sim_options o = { .seed = c->seed, .record = true };

    zs_context("seed %llu, the run without a cut", (unsigned long long)c->seed);
    assert_int_equal(zn_sim_new(&c->sim, &o, NULL), 0);
    zs_run_init(&c->run, c->sim, c->seed, c->seed % 2 ? 4096 : 8192);
    zs_run_script(&c->run);
    if (c->run.failures > 0 || c->run.refused.code != 0)
        zs_fail("%u requests failed without a cause", c->run.failures);
    print_message("seed %llu: %llu operations, %u changes of the store\n",
                  (unsigned long long)c->seed, (unsigned long long)zn_sim_ops(c->sim),
                  c->run.nentries - 1);
}

static void campaign_forget(struct campaign *c)
{
    zs_run_done(&c->run);
    zn_sim_free(c->sim);
}

/* Damages the catalog, once something was committed: its copy has all of it. */
static void campaign_lose(const struct campaign *c, struct zn_sim *sim, uint64_t op)
{
    static const unsigned char wrong[4096] = { 1 };

    if (!loses || c->run.nentries < 2 || op < c->run.entries[1].end)
        return;
    for (unsigned i = 0; i < 2; i++) {
        const char *name = i == 0 ? ZS_CATALOG : ZS_CATALOG "-wal";
        int64_t size = zn_sim_size(sim, name);

        for (int64_t at = 0; at + (int64_t)sizeof(wrong) <= size; at += sizeof(wrong))
            assert_int_equal(zn_sim_poke(sim, name, (uint64_t)at, wrong, sizeof(wrong)), 0);
    }
}

/* The power fails while the store recovers: afterwards it holds the same. */
static void campaign_nested(struct campaign *c, const struct zn_sim *first, uint64_t op,
                            unsigned variant, const struct zs_model *held)
{
    uint64_t begin = op + 1, end = zn_sim_ops(first), draw = c->seed ^ op * 31 ^ variant;

    for (unsigned i = 0; i < NESTED_CUTS; i++) {
        uint64_t at = begin + ztest_random(&draw) % (end - begin + 1);
        uint32_t v = (uint32_t)(ztest_random(&draw) % VARIANTS);
        struct zs_recovery how = { .models = &held,
                                   .nmodels = 1,
                                   .seed = draw,
                                   .page_elems = c->run.page_elems,
                                   .goes_on = i == 0,
                                   .ret_bytes = &c->bytes };
        struct zn_sim *sim;

        zs_context("ZSHARD_SEED=%llu ZSHARD_CUT=%llu:%u, and its recovery at %llu:%u",
                   (unsigned long long)c->seed, (unsigned long long)op, variant,
                   (unsigned long long)at, v);
        assert_int_equal(zn_sim_cut_at(&sim, first, at, v, NULL), 0);
        (void)zs_recover(sim, &how);
        zn_sim_free(sim);
        c->nested++;
    }
}

static void campaign_cut(struct campaign *c, uint64_t op, unsigned variant, bool nested)
{
    const struct zs_model *models[2];
    struct zs_recovery how = { .models = models,
                               .seed = c->seed + op * 131 + variant * 7,
                               .page_elems = c->run.page_elems,
                               .ret_bytes = &c->bytes };
    struct zn_sim *sim, *first = NULL;
    int which;

    zs_context("ZSHARD_SEED=%llu ZSHARD_CUT=%llu:%u", (unsigned long long)c->seed,
               (unsigned long long)op, variant);
    how.nmodels = zs_run_models(&c->run, op, models);
    how.goes_on = nested || (op + variant) % GOES_ON_EVERY == 0;
    assert_int_equal(zn_sim_cut_at(&sim, c->sim, op, variant, NULL), 0);
    campaign_lose(c, sim, op);
    if (nested) { /* only the recovery, recorded */
        assert_int_equal(zn_sim_cut_at(&first, c->sim, op, variant, NULL), 0);
        campaign_lose(c, first, op);
    }
    which = zs_recover(sim, &how);
    zn_sim_free(sim);
    c->older += how.nmodels == 2 && which == 0;
    c->newer += which == 1;
    c->cuts++;
    if (nested) {
        how.goes_on = false;
        (void)zs_recover(first, &how);
        campaign_nested(c, first, op, variant, models[which]);
        zn_sim_free(first);
    }
}

/* Cuts at every operation once, then at every operation again, each time with another variant; then
 * another run. */
static void power_cuts(void **state)
{
    uint64_t wanted = zs_env("ZSHARD_CUTS", CUTS), op;
    struct campaign c = { .seed = zs_env("ZSHARD_SEED", 1) };
    const char *one = getenv("ZSHARD_CUT");
    unsigned variant;

    (void)state;
    campaign_record(&c);
    if (one && sscanf(one, "%lu:%u", &op, &variant) == 2) {
        campaign_cut(&c, op, variant, true);
        wanted = 0;
    }
    for (uint64_t i = 0; c.cuts < wanted; i++) {
        uint64_t ops = zn_sim_ops(c.sim) + 1;

        if (i == ops * VARIANTS) {
            campaign_forget(&c);
            c.seed++;
            campaign_record(&c);
            i = 0;
        }
        op = i % ops;
        variant = (unsigned)((i / ops + op * 5) % VARIANTS);
        campaign_cut(&c, op, variant, i % NESTED_EVERY == 0);
    }
    campaign_forget(&c);
    print_message("%llu cuts (in flight: %llu lost, %llu kept), %llu cuts of recoveries, %llu MB "
                  "compared\n",
                  (unsigned long long)c.cuts, (unsigned long long)c.older,
                  (unsigned long long)c.newer, (unsigned long long)c.nested,
                  (unsigned long long)(c.bytes >> 20));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(power_cuts) };

    zs_watch();
    loses = zs_env("ZSHARD_LOSE", 0) != 0;
    zs_drains = zs_env("ZSHARD_DRAINS", 0) > 0;
    zs_discards = zs_env("ZSHARD_DISCARDS", 0) > 0;
    zs_paths = loses || zs_drains ? 2 : 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
