/*
 * Bytes of the store change unnoticed: single bits, two bits, 4 KiB of zeros, two places swapped, a
 * place as it was some commits ago; in pages, superblock and commit slots of the data file, in the
 * catalog, and in a WAL that a crash left behind. The daemon refuses to start, with an error
 * message; or it starts with what was acknowledged, and each page is right, or is reported by name.
 *
 * ZSHARD_SEED=N     the first damage (1)
 * ZSHARD_DAMAGES=N  the number of damages (5000)
 */
#include "tests/sim/zsim.h"

#include <string.h>

#define DAMAGES    5000u
#define BLOCK      4096u
#define DATA_BYTES (UINT64_C(5) << 20) /* about as much of the data file is in use */
#define PAGE_BYTES (40u << 10)
#define SQL_BYTES  (16u << 10) /* of a page of the catalog */
#define LEN_MAX    (256u << 10)
#define ATTACH     4u /* one of this many is also read by ranks */

enum where { SUPERBLOCK, SLOTS, PAGES, CATALOG, WAL, WHERES };
enum how { BIT, TWO_BITS, ZEROS, SWAP, OLDER, HOWS };

static const char *const where_names[] = { "superblock", "slots", "pages", "catalog", "wal" };
static const char *const how_names[] = { "bit", "two bits", "zeros", "swap", "older" };

struct campaign {
    struct zs_run run;
    struct zn_sim *sim;
    uint64_t done, skipped, refused, detected, harmless, bytes;
};

/* Draws a range of the file to damage; false: the file has nothing there. */
static bool range_draw(const struct zn_sim *sim, enum where where, uint64_t *draw,
                       const char **file, uint64_t *off, uint64_t *len)
{
    static const char *const files[] = { ZS_DATA, ZS_DATA, ZS_DATA, ZS_CATALOG, ZS_CATALOG "-wal" };
    int64_t size = zn_sim_size(sim, files[where]);
    uint64_t first = 0, end;

    *file = files[where];
    if (size <= 0)
        return false;
    end = (uint64_t)size;
    if (where == SUPERBLOCK)
        end = ZN_SUPER_BYTES;
    else if (where == SLOTS)
        first = ZN_SUPER_BYTES, end = ZN_SUPER_BYTES + ZN_SLOTS * ZN_SLOT_BYTES;
    else if (where == PAGES)
        first = ZN_DATA_START, end = DATA_BYTES;
    end = zb_min_u64(end, (uint64_t)size);
    if (first >= end)
        return false;
    *off = (first + ztest_random(draw) % (end - first)) / BLOCK * BLOCK;
    *len = zb_min_u64(BLOCK, (uint64_t)size - *off);
    if (where == PAGES && ztest_random(draw) % 2 == 0) /* sometimes a whole page */
        *len = zb_min_u64(PAGE_BYTES, (uint64_t)size - *off);
    if (where == CATALOG) { /* a block, a page, or all of it */
        uint64_t what = ztest_random(draw) % 3;

        if (what > 0)
            *off = what == 1 ? *off / SQL_BYTES * SQL_BYTES : 0;
        if (what > 0)
            *len = zb_min_u64(what == 1 ? SQL_BYTES : LEN_MAX, (uint64_t)size - *off);
    }
    return true;
}

static void put(struct zn_sim *sim, const char *file, uint64_t off, const void *bytes, uint64_t len)
{
    assert_int_equal(zn_sim_poke(sim, file, off, bytes, len), 0);
}

/* False: it would have changed nothing. */
static bool damage(struct campaign *c, struct zn_sim *sim, uint64_t op, enum where where,
                   enum how how, uint64_t *draw)
{
    static uint8_t was[LEN_MAX], is[LEN_MAX];
    const char *file;
    uint64_t off, len, other, other_len;
    struct zn_sim *older;

    if (!range_draw(sim, where, draw, &file, &off, &len))
        return false;
    assert_int_equal(zn_sim_peek(sim, file, off, was, len), 0);
    memcpy(is, was, len);
    switch (how) {
    case TWO_BITS:
        is[ztest_random(draw) % len] ^= (uint8_t)(1u << ztest_random(draw) % 8);
        /* fall through */
    case BIT:
        is[ztest_random(draw) % len] ^= (uint8_t)(1u << ztest_random(draw) % 8);
        break;
    case ZEROS:
        memset(is, 0, len);
        break;
    case SWAP:
        if (!range_draw(sim, where, draw, &file, &other, &other_len))
            return false;
        len = zb_min_u64(len, other_len);
        assert_int_equal(zn_sim_peek(sim, file, other, is, len), 0);
        if (memcmp(was, is, len) == 0)
            return false;
        put(sim, file, other, was, len);
        break;
    case OLDER:
        assert_int_equal(zn_sim_cut_at(&older, c->sim, ztest_random(draw) % (op + 1), 1, NULL), 0);
        if (zn_sim_peek(older, file, off, is, len) < 0)
            memcpy(is, was, len);
        zn_sim_free(older);
        break;
    case HOWS:
        break;
    }
    if (memcmp(was, is, len) == 0)
        return false;
    put(sim, file, off, is, len);
    return true;
}

static void campaign_damage(struct campaign *c, uint64_t seed)
{
    uint64_t draw = seed, op = ztest_random(&draw) % (zn_sim_ops(c->sim) + 1);
    enum where where = (enum where)(ztest_random(&draw) % WHERES);
    enum how how = (enum how)(ztest_random(&draw) % HOWS);
    const struct zs_model *models[2];
    struct zs_recovery recovery = { .models = models,
                                    .seed = seed,
                                    .page_elems = c->run.page_elems,
                                    .goes_on = seed % ATTACH == 0,
                                    .ret_bytes = &c->bytes,
                                    .damaged = true };
    struct zn_sim *sim;
    int rc;

    zs_context("ZSHARD_SEED=%llu ZSHARD_DAMAGES=1: %s of %s after operation %llu",
               (unsigned long long)seed, how_names[how], where_names[where],
               (unsigned long long)op);
    recovery.nmodels = zs_run_models(&c->run, op, models);
    assert_int_equal(zn_sim_cut_at(&sim, c->sim, op, 1, NULL), 0);
    if (damage(c, sim, op, where, how, &draw)) {
        rc = zs_recover(sim, &recovery);
        c->done++;
        c->refused += rc == ZS_REFUSED;
        c->detected += rc == ZS_DETECTED;
        c->harmless += rc >= 0;
    } else {
        c->skipped++;
    }
    zn_sim_free(sim);
}

static void damages(void **state)
{
    struct zn_sim_options o = { .seed = 1, .record = true };
    uint64_t wanted = zs_env("ZSHARD_DAMAGES", DAMAGES), seed = zs_env("ZSHARD_SEED", 1);
    struct campaign c = { 0 };

    (void)state;
    zs_context("the run without damage");
    assert_int_equal(zn_sim_new(&c.sim, &o, NULL), 0);
    zs_run_init(&c.run, c.sim, 1, 4096);
    zs_run_script(&c.run);
    if (c.run.failures > 0)
        zs_fail("%u requests failed without a cause", c.run.failures);
    for (; c.done < wanted && (wanted > 1 || c.skipped == 0); seed++)
        campaign_damage(&c, seed);
    zs_run_done(&c.run);
    zn_sim_free(c.sim);
    print_message(
        "%llu damages: %llu starts refused, %llu times pages named, %llu harmless; %llu MB "
        "compared\n",
        (unsigned long long)c.done, (unsigned long long)c.refused, (unsigned long long)c.detected,
        (unsigned long long)c.harmless, (unsigned long long)(c.bytes >> 20));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(damages) };

    zs_watch();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
