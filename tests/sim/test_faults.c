/*
 * Every operation of the device fails, once or always, in every way that a device can.
 *
 * A device that reports it (EIO, ENOSPC, short transfers, failed flushes): each failure is reported
 * to the client that asked, or healed; nothing hangs; and after a restart on a good device,
 * everything that was acknowledged is there, every byte, and the job goes on.
 *
 * A device that lies (lost, misplaced and stale writes, flipped bits): damage is reported as
 * damage, and no client reads a wrong byte. If it lies once: nothing older than what was
 * acknowledged comes back.
 *
 * ZSHARD_SEED=N               the run (1)
 * ZSHARD_FAULTS=N             the number of faults (300), of all kinds and operations; 0: all
 * ZSHARD_DRAINS=1             two data files, which are drained and used again
 * ZSHARD_DISCARDS=1           free space gets other bytes, now and then
 * ZSHARD_FAULT=kind:op:0|1    one fault; 0: once, 1: always
 */
#include "tests/sim/zsim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAULTS 300u

static const struct {
    enum zn_fault fault;
    bool lies;
} kinds[] = {
    { ZN_FAULT_EIO, false },   { ZN_FAULT_ENOSPC, false }, { ZN_FAULT_SHORT, false },
    { ZN_FAULT_FLUSH, false }, { ZN_FAULT_LOST, true },    { ZN_FAULT_MISPLACE, true },
    { ZN_FAULT_STALE, true },  { ZN_FAULT_FLIP, true },    { ZN_FAULT_EDQUOT, false },
};

struct campaign {
    uint64_t seed, ops;
    uint64_t runs, struck, reported, healed, refused, detected, bytes;
};

static struct zn_sim *sim_new(uint64_t seed)
{
    struct zn_sim_options o = { .seed = seed };
    struct zn_sim *sim;

    assert_int_equal(zn_sim_new(&sim, &o, NULL), 0);
    return sim;
}

static uint32_t page_elems(uint64_t seed)
{
    return seed % 2 ? 4096 : 8192;
}

/* The number of operations of a run on a good device. */
static uint64_t campaign_ops(uint64_t seed)
{
    struct zn_sim *sim = sim_new(seed);
    struct zs_run r;
    uint64_t ops;

    zs_context("seed %llu, the run without a fault", (unsigned long long)seed);
    zs_run_init(&r, sim, seed, page_elems(seed));
    zs_run_script(&r);
    if (r.failures > 0)
        zs_fail("%u requests failed without a cause", r.failures);
    ops = zn_sim_ops(sim);
    zs_run_done(&r);
    zn_sim_free(sim);
    return ops;
}

/* The device reported its failures: when it is good again, nothing is missing. */
static void recover_honest(struct campaign *c, struct zs_run *r)
{
    const struct zs_model *models[64];
    struct zs_recovery how = { .models = models,
                               .seed = c->seed + c->runs,
                               .page_elems = r->page_elems,
                               .goes_on = true,
                               .ret_bytes = &c->bytes };

    models[how.nmodels++] = &r->model;
    for (unsigned i = 0; i < r->nmaybe; i++) {
        assert_true(how.nmodels < ZB_COUNT(models));
        models[how.nmodels++] = &r->maybe[i];
    }
    (void)zs_recover(r->sim, &how);
}

static void campaign_fault(struct campaign *c, size_t kind, uint64_t op, bool forever)
{
    enum zn_fault fault = kinds[kind].fault;
    struct zn_sim *sim = sim_new(c->seed);
    struct zs_run r;
    uint64_t struck;
    int rc = 0;

    zs_context("ZSHARD_SEED=%llu ZSHARD_FAULT=%s:%llu:%d", (unsigned long long)c->seed,
               zn_fault_name(fault), (unsigned long long)op, forever);
    zs_run_init(&r, sim, c->seed, page_elems(c->seed));
    r.rewinds = forever && kinds[kind].lies;
    assert_int_equal(zn_sim_fault(sim, fault, op, forever), 0);
    zs_run_script(&r);
    struck = zn_sim_struck(sim);
    zn_sim_faults_clear(sim);
    assert_int_equal(zn_sim_restart(sim), 0);
    if (kinds[kind].lies) {
        rc = zs_run_restart(&r);
        if (rc < 0 && r.refused.code == 0 && rc != -EBADMSG)
            zs_fail("a page that is wrong is reported as %d", rc);
        c->refused += r.refused.code != 0;
        c->detected += rc == -EBADMSG && r.refused.code == 0;
    } else {
        recover_honest(c, &r);
    }
    c->runs++;
    c->struck += struck > 0;
    c->reported += struck > 0 && r.failures > 0;
    c->healed += struck > 0 && r.failures == 0 && rc == 0;
    if (struck == 0 && r.failures > 0)
        zs_fail("%u requests failed without a cause", r.failures);
    if (fault == ZN_FAULT_EIO && !forever && struck > 0 && r.failures == 0 && r.refused.code != 0)
        zs_fail("a failure was told to nobody");
    c->bytes += r.w.bytes;
    zs_run_done(&r);
    zn_sim_free(sim);
}

static bool campaign_one(struct campaign *c, const char *one)
{
    unsigned long op;
    char name[16];
    int forever;

    if (!one || sscanf(one, "%15[^:]:%lu:%d", name, &op, &forever) != 3)
        return false;
    for (size_t k = 0; k < ZB_COUNT(kinds); k++)
        if (strcmp(zn_fault_name(kinds[k].fault), name) == 0)
            campaign_fault(c, k, op, forever);
    return true;
}

static void faults(void **state)
{
    struct campaign c = { .seed = zs_env("ZSHARD_SEED", 1) };
    uint64_t wanted = zs_env("ZSHARD_FAULTS", FAULTS), all, stride;

    (void)state;
    c.ops = campaign_ops(c.seed);
    if (campaign_one(&c, getenv("ZSHARD_FAULT")))
        return;
    all = c.ops * ZB_COUNT(kinds) * 2;
    stride = wanted > 0 && wanted < all ? all / wanted : 1;
    while (stride > 1 && all % stride == 0)
        stride++; /* so that the kinds vary */
    stride |= 1;
    for (uint64_t i = 0; i < all; i += stride)
        campaign_fault(&c, i / 2 % ZB_COUNT(kinds), i / 2 / ZB_COUNT(kinds), i % 2);
    print_message("%llu operations: %llu faults, %llu struck, %llu reported, %llu healed; %llu "
                  "starts refused, %llu wrong pages found; %llu MB compared\n",
                  (unsigned long long)c.ops, (unsigned long long)c.runs,
                  (unsigned long long)c.struck, (unsigned long long)c.reported,
                  (unsigned long long)c.healed, (unsigned long long)c.refused,
                  (unsigned long long)c.detected, (unsigned long long)(c.bytes >> 20));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(faults) };

    zs_watch();
    zs_drains = zs_env("ZSHARD_DRAINS", 0) > 0;
    zs_discards = zs_env("ZSHARD_DISCARDS", 0) > 0;
    zs_paths = zs_drains ? 2 : 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
