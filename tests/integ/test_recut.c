/*
 * Every optimizer and form of moments, with shards that are cut again. A durable job is begun by
 * some ranks with one page size and killed. Other ranks resume it with another page size, from the
 * data file, then yet others from the memory of the daemon. The result must be that of one rank
 * which makes the same steps in one life, with everything resident: every byte of every plane. This
 * includes reduced moments, whose rounding depends on the element and not on its page. Pages of
 * 8-bit moments and of a quantized frozen unit end with zeros, which must not end up inside other
 * pages.
 */
#include "tests/integ/saved.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/plan.h"
#include "base/util.h"

#define BLOCK 4096u

/* Every dtype; the first and the last begin and end inside pages, for every page size. */
static const struct zc_tensor frozen[] = {
    { "frozen", 0, 1, { 13 * BLOCK - 5 }, ZC_GROUP_FROZEN, false },
};
static const struct zc_tensor t0[] = { { "t0", 0, 1, { 7 * BLOCK + 100 }, 0, false } };
static const struct zc_tensor t1[] = { { "t1", 0, 1, { 12 * BLOCK }, 0, false } };
static const struct zc_tensor t3[] = { { "t3", 0, 1, { 100 }, 0, false } };
static const struct zc_tensor t4[] = { { "t4", 10, 1, { 17 * BLOCK - 9 }, 0, false } };
static const struct zc_unit units[SV_UNITS] = {
    { 0, "u0", 7 * BLOCK + 100, ZC_F32, ZC_F32, false, false, t0, 1 },
    { 1, "u1", 12 * BLOCK, ZC_F16, ZC_F16, false, false, t1, 1 },
    { 2, "u2", 13 * BLOCK - 5, ZC_F16, ZC_F32, true, true, frozen, 1 },
    { 3, "u3", 100, ZC_F16, ZC_F32, false, false, t3, 1 },
    { 4, "u4", 17 * BLOCK + 1, ZC_BF16, ZC_BF16, false, false, t4, 1 },
};

static const struct cut {
    const char *pages;
    unsigned world;
} cuts[] = {
    { "8192", 2 }, { "4096", 3 }, { "16384", 1 }, { "12288", 4 }, { "20480", 2 },
};

static struct cut cut_of(unsigned n)
{
    return cuts[n % ZB_COUNT(cuts)];
}

static void steps(struct zi_rank *ranks, unsigned world, uint64_t first, uint64_t last)
{
    for (uint64_t k = first; k <= last; k++)
        sv_step(ranks, world, k, k == 3 ? ZC_COMMIT_STEP : ZC_COMMIT_NO);
}

/* The undisturbed run. */
static void reference(struct sv_dump *ret)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r;

    sv_options[SV_OPTION_PAGE] = "8192";
    sv_begin(&r, 1, &d, 0);
    steps(&r, 1, 1, 6);
    sv_dump_take(ret, &r, 1);
    zi_close(&r, 1);
    zi_stop(&d);
}

/* Ranks with another optimizer, or other moments, are refused, and disconnect nobody. */
static void refused(const struct zi_daemon *d, unsigned place, unsigned world)
{
    for (unsigned what = 0; what < 2; what++) {
        struct zc_job_options o = sv_job(place);
        struct zi_rank r = { 0 };
        char text[128];

        o.attach = o.takeover = true;
        o.world = world;
        if (what == 0)
            o.optimizer = o.optimizer % ZC_ADAGRAD + 1;
        else
            o.moments = o.moments % ZC_MOMENTS_Q8_LO + 1;
        (void)snprintf(text, sizeof(text), "but the job uses %s with %s moments",
                       zb_optimizer_name((enum zb_optimizer)sv_optimizer),
                       zb_moments_name((enum zb_moments)sv_moments));
        assert_int_equal(zi_open(&r, d, &o), -EINVAL);
        if (!strstr(zc_error(r.c), text))
            fail_msg("'%s' does not say '%s'", zc_error(r.c), text);
        zc_close(r.c);
    }
}

static void cut_anew(unsigned n, unsigned place)
{
    struct cut before = cut_of(n), then = cut_of(n + 1), last = cut_of(n + 3);
    struct zi_rank ranks[SV_WORLD_MAX];
    struct zi_daemon d = { 0 };
    struct sv_dump want = { 0 }, at = { 0 };

    print_message("%s, %s moments, %s: %u ranks with pages of %s, %u with %s, %u\n",
                  zb_optimizer_name((enum zb_optimizer)sv_optimizer),
                  zb_moments_name((enum zb_moments)sv_moments), sv_places[place].name, before.world,
                  before.pages, then.world, then.pages, last.world);
    reference(&want);
    sv_options[SV_OPTION_PAGE] = before.pages;
    sv_begin(ranks, before.world, &d, place);
    steps(ranks, before.world, 1, 3);
    sv_dump_take(&at, ranks, before.world);
    refused(&d, place, before.world);
    steps(ranks, before.world, 4, 4);
    zi_kill(&d);
    sv_hang_up(ranks, before.world);
    sv_options[SV_OPTION_PAGE] = then.pages;
    zi_start_again(&d, sv_options);
    refused(&d, place, then.world);
    assert_int_equal(sv_attach(ranks, then.world, &d, place, true, NULL), 0);
    assert_int_equal(ranks[0].place.iterations, 3);
    sv_dump_same("from the data file", &at, ranks, then.world);
    steps(ranks, then.world, 4, 5);
    sv_dump_take(&at, ranks, then.world);
    zi_close(ranks, then.world);
    assert_int_equal(sv_attach(ranks, last.world, &d, place, false, NULL), 0);
    assert_int_equal(ranks[0].place.iterations, 5);
    sv_dump_same("from memory", &at, ranks, last.world);
    steps(ranks, last.world, 6, 6);
    sv_dump_same("in the end", &want, ranks, last.world);
    for (unsigned w = 0; w < 3; w++) /* steps do change the compared values */
        assert_memory_not_equal(at.values[4][w], want.values[4][w], BLOCK);
    zi_close(ranks, last.world);
    zi_end(&d);
    assert_int_equal(zi_fsck(&d), 0);
    zi_clean(&d);
    sv_dump_free(&want);
    sv_dump_free(&at);
}

static void every_state_is_cut_anew(void **state)
{
    unsigned n = 0;

    (void)state;
    sv_units = units;
    for (sv_optimizer = ZC_ADAMW; sv_optimizer <= ZC_ADAGRAD; sv_optimizer++)
        for (sv_moments = ZC_MOMENTS_F32; sv_moments <= ZC_MOMENTS_Q8_LO; sv_moments++, n++)
            cut_anew(n, n % SV_PLACES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(every_state_is_cut_anew, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
