/*
 * The catalog and its commit slots on the simulated device: the power fails at every operation,
 * while commits run and while a store is opened again; every operation fails, and some lie.
 *
 * What was acknowledged is there, complete. One more transaction may be there, complete. Whatever a
 * lying device does, the catalog reports it or holds exactly that.
 *
 * ZSHARD_SIM_VARIANTS=N: N variants of each power cut instead of 4, and no place is left out.
 */
#include "catalog_model.h"

#include <errno.h>
#include <stdlib.h>

#include "nvme/sim/zn_sim.h"

enum { TXNS = 8, FILE_BYTES = ZN_DATA_START + 65536, LEN_MAX = 30000 };

static struct zb_err err;

/* The catalog after transaction i, which depends on i alone. */
static struct model models[TXNS + 3];

static struct zn_txn *txn_of(unsigned i)
{
    struct zn_txn *t = zn_txn_new();
    uint64_t seed = i;

    models[i] = models[i - 1];
    txn_random(t, &models[i], &seed, LEN_MAX);
    return t;
}

struct store {
    struct zn_engine *e;
    struct zn_catalog *c;
    uint64_t told; /* the newest transaction that was acknowledged */
};

static void store_close(struct store *s)
{
    zn_catalog_close(s->c);
    zn_close(s->e);
    s->c = NULL;
    s->e = NULL;
}

static int store_tell(struct store *s, struct zn_slot slot)
{
    int rc = zn_test_io(s->e, ZN_SLOT, &slot, 0, 0);

    if (rc == 0)
        rc = zn_test_io(s->e, ZN_FLUSH, NULL, 0, 0);
    if (rc == 0)
        s->told = slot.sequence;
    return rc;
}

/* Like the daemon: opens the engine, takes its newest slot, opens the catalog; and keeps the slots
 * in step. */
static int store_open(struct store *s, struct zn_sim *sim)
{
    struct zn_catalog_options o = { .path = "catalog", .may_create = true };
    struct zn_slot newest;
    int rc;

    err = (struct zb_err){ 0 };
    rc = zn_sim_engine(&s->e, sim, "data", FILE_BYTES, 0, &err);
    if (rc == 0)
        rc = zn_newest_slot(s->e, &newest, &err);
    if (rc == 0)
        rc = zn_sim_vfs(sim, &o.vfs, &err);
    if (rc == 0)
        rc = zn_catalog_open(&s->c, &o, &newest, 1, &err);
    if (rc == 0 && zn_catalog_slot(s->c).sequence > 0)
        rc = store_tell(s, zn_catalog_slot(s->c));
    if (rc < 0)
        store_close(s);
    return rc;
}

static int store_commit(struct store *s, unsigned i)
{
    struct zn_txn *t = txn_of(i);
    struct zn_slot slot;
    int rc;

    err = (struct zb_err){ 0 };
    rc = zn_catalog_commit(s->c, t, &slot, &err);
    zn_txn_free(t);
    return rc < 0 ? rc : store_tell(s, slot);
}

/* The store holds what was acknowledged, or one more transaction. */
static bool store_right(struct store *s, uint64_t told)
{
    uint64_t sequence = zn_catalog_slot(s->c).sequence;

    return (sequence == told || sequence == told + 1) && sequence < ZB_COUNT(models) &&
           same(s->c, &models[sequence]);
}

/* After a power cut: it opens, is right, accepts a commit, and is right again. */
static void store_recovers(struct zn_sim *sim, uint64_t told, const char *what, uint64_t n,
                           unsigned v)
{
    struct store s = { 0 };

    for (int round = 0; round < 2; round++) {
        int rc = store_open(&s, sim);

        if (rc < 0 || !store_right(&s, told))
            fail_msg("%s, operation %u, variant %u, round %d: told %u, and it is at %d: '%s'", what,
                     (unsigned)n, v, round, (unsigned)told,
                     rc < 0 ? rc : (int)zn_catalog_slot(s.c).sequence, err.text);
        if (round == 0 && store_commit(&s, (unsigned)zn_catalog_slot(s.c).sequence + 1) < 0)
            fail_msg("%s, operation %u, variant %u: %s", what, (unsigned)n, v, err.text);
        told = s.told;
        store_close(&s);
    }
}

static struct zn_sim *sim_new(uint64_t seed, bool record)
{
    struct zn_sim_options o = { .seed = seed, .record = record };
    struct zn_sim *s;

    assert_int_equal(zn_sim_new(&s, &o, NULL), 0);
    return s;
}

static const char *wanted; /* ZSHARD_SIM_VARIANTS */

/* A stride through the places; 1 if all are wanted. */
static unsigned step(unsigned quick)
{
    return wanted ? 1 : quick * ztest_stride(5);
}

/* Makes all transactions, and opens the store again in the middle; told[i] is when i was
 * acknowledged. */
static struct zn_sim *record(uint64_t seed, uint64_t told[TXNS + 1])
{
    struct zn_sim *sim = sim_new(seed, true);
    struct store s = { 0 };

    assert_int_equal(store_open(&s, sim), 0);
    told[0] = 0;
    for (unsigned i = 1; i <= TXNS; i++) {
        if (store_commit(&s, i) < 0)
            fail_msg("%s", err.text);
        told[i] = zn_sim_ops(sim);
        if (i == TXNS / 2) {
            store_close(&s);
            assert_int_equal(store_open(&s, sim), 0);
        }
    }
    store_close(&s);
    return sim;
}

static void power_cuts(void **state)
{
    uint64_t told[TXNS + 1], now = 0;
    struct zn_sim *recorded = record(31, told);
    unsigned cuts = 0, most = wanted ? (unsigned)atoi(wanted) : 4;

    (void)state;
    for (uint64_t n = 0; n <= zn_sim_ops(recorded); n += step(1)) {
        while (now < TXNS && told[now + 1] <= n)
            now++;
        for (unsigned v = 0; v < most; v++, cuts++) {
            struct zn_sim *sim;

            assert_int_equal(zn_sim_cut_at(&sim, recorded, n, v, NULL), 0);
            store_recovers(sim, now, "a cut", n, v);
            zn_sim_free(sim);
        }
    }
    print_message("%u power cuts\n", cuts);
    zn_sim_free(recorded);
}

#define MAKING 64u /* operations that make a catalog */

/* The power fails while a store is opened and commits after a power cut. */
static void power_cuts_of_recovery(void **state)
{
    uint64_t told[TXNS + 1], now = 0;
    struct zn_sim *recorded = record(32, told);
    unsigned cuts = 0;

    (void)state;
    for (uint64_t n = 0; n <= zn_sim_ops(recorded); n += step(n < MAKING ? 5 : 20)) {
        bool struck = true;

        while (now < TXNS && told[now + 1] <= n)
            now++;
        for (unsigned j = 0; struck; j++, cuts++) {
            struct store s = { .told = now };
            struct zn_sim *sim;

            assert_int_equal(zn_sim_cut_at(&sim, recorded, n, j % 16, NULL), 0);
            zn_sim_cut(sim, zn_sim_ops(sim) + j, j % 7);
            struck = store_open(&s, sim) < 0 ||
                     store_commit(&s, (unsigned)zn_catalog_slot(s.c).sequence + 1) < 0;
            store_close(&s);
            assert_int_equal(zn_sim_restart(sim), 0);
            store_recovers(sim, s.told, "a cut of recovery", n, j);
            zn_sim_free(sim);
        }
    }
    print_message("%u power cuts\n", cuts);
    zn_sim_free(recorded);
}

static const struct fault {
    enum zn_fault fault;
    bool forever;
    bool lies; /* the device reports success */
} faults[] = {
    { ZN_FAULT_EIO, false, false },     { ZN_FAULT_EIO, true, false },
    { ZN_FAULT_ENOSPC, false, false },  { ZN_FAULT_ENOSPC, true, false },
    { ZN_FAULT_SHORT, false, false },   { ZN_FAULT_SHORT, true, false },
    { ZN_FAULT_FLUSH, false, false },   { ZN_FAULT_FLUSH, true, false },
    { ZN_FAULT_DEAD, true, false },     { ZN_FAULT_LOST, false, true },
    { ZN_FAULT_MISPLACE, false, true }, { ZN_FAULT_STALE, false, true },
    { ZN_FAULT_FLIP, false, true },     { ZN_FAULT_EDQUOT, false, false },
    { ZN_FAULT_EDQUOT, true, false },
};

/* Makes all transactions on a device with one fault; a full device is tried again. Sets s->told to
 * the last one acknowledged, and returns the last result. */
static int faulty_run(struct store *s, struct zn_sim *sim, const struct fault *f)
{
    int rc = store_open(s, sim);

    for (unsigned i = 1; rc == 0 && i <= TXNS; i++) {
        rc = store_commit(s, i);
        if (rc == -ENOSPC && !f->forever && s->told == i - 1 &&
            zn_catalog_slot(s->c).sequence == i - 1) {
            if (!same(s->c, &models[i - 1]))
                fail_msg("%s: something happened all the same", err.text);
            rc = store_commit(s, i);
        }
    }
    store_close(s);
    return rc;
}

static void every_fault(void **state)
{
    unsigned runs = 0, failed = 0, refused = 0, full[ZN_FAULTS][2] = { 0 };
    uint64_t told[TXNS + 1], ops;
    struct zn_sim *recorded = record(33, told);

    (void)state;
    ops = zn_sim_ops(recorded);
    zn_sim_free(recorded);
    for (size_t i = 0; i < ZB_COUNT(faults); i++) {
        const struct fault *f = &faults[i];

        for (uint64_t n = 0; n < ops; n += step(2), runs++) {
            struct zn_sim *sim = sim_new(33, false);
            struct store s = { 0 };
            uint64_t before;
            int rc;

            assert_int_equal(zn_sim_fault(sim, f->fault, n, f->forever), 0);
            rc = faulty_run(&s, sim, f);
            failed += rc < 0;
            full[f->fault][f->forever] += rc < 0;
            before = s.told;
            if (rc == 0 && before != TXNS)
                fail_msg("%s at %u: silent", zn_fault_name(f->fault), (unsigned)n);
            assert_int_equal(zn_sim_restart(sim), 0);
            rc = store_open(&s, sim);
            if (rc < 0 && f->lies)
                refused++;
            else if (rc < 0 || !store_right(&s, before))
                fail_msg("%s%s at %u, told %u: %d '%s'", zn_fault_name(f->fault),
                         f->forever ? " for ever" : "", (unsigned)n, (unsigned)before, rc,
                         err.text);
            store_close(&s);
            zn_sim_free(sim);
        }
    }
    /* a full quota is as a full file system: what can be tried again, is */
    for (int i = 0; i < 2; i++)
        assert_int_equal(full[ZN_FAULT_EDQUOT][i], full[ZN_FAULT_ENOSPC][i]);
    assert_true(full[ZN_FAULT_EDQUOT][0] < full[ZN_FAULT_EDQUOT][1]);
    print_message("%u faults: %u runs failed, and said so; %u stores were refused afterwards\n",
                  runs, failed, refused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(power_cuts),
        cmocka_unit_test(power_cuts_of_recovery),
        cmocka_unit_test(every_fault),
    };

    wanted = getenv("ZSHARD_SIM_VARIANTS");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
