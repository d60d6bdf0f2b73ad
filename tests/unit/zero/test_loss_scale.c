/*
 * The loss scale alone: sequences of steps with the scale of each, derived by hand from DeepSpeed's
 * rules, and compared with its DynamicLossScaler (0.19.8).
 */
#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/util.h"
#include "client/zero/config/loss_scale.h"

#define STEPS_MAX 16

#define RULES(power_, window_, hysteresis_, consecutive_, min_)                               \
    {                                                                                         \
        .dynamic = true, .power = (power_), .window = (window_), .hysteresis = (hysteresis_), \
        .consecutive = (consecutive_), .min = (min_)                                          \
    }

/* '.' is a step, 'x' one that overflows; the scale of each step, and the one after the last, unless
 * the sequence ends with an error. */
static const struct {
    const char *name;
    struct zc_loss_scale rules;
    const char *steps;
    double scales[STEPS_MAX];
    int rc;
} sequences[] = {
    { "doubles behind the fourth, then behind each third",
      RULES(4, 3, 1, false, 1),
      "........",
      { 16, 16, 16, 16, 32, 32, 32, 64, 64 },
      0 },
    { "the window counts from the last overflow",
      RULES(4, 3, 1, false, 1),
      "..x.....x....",
      { 16, 16, 16, 8, 8, 8, 8, 16, 16, 8, 8, 8, 8, 16 },
      0 },
    { "a window of one",
      RULES(4, 1, 1, false, 1),
      "....x...",
      { 16, 16, 32, 64, 128, 64, 64, 128, 256 },
      0 },
    { "one is tolerated, and one more behind a doubling",
      RULES(4, 3, 2, false, 1),
      "xxx....xx.",
      { 16, 16, 8, 4, 4, 4, 4, 8, 8, 4, 4 },
      0 },
    { "one in all is tolerated, however far apart they are",
      RULES(4, 3, 2, false, 1),
      "x.x.x....",
      { 16, 16, 16, 8, 8, 4, 4, 4, 4, 8 },
      0 },
    { "... when nothing doubles between them",
      RULES(4, 3, 2, false, 1),
      "x...x...xx",
      { 16, 16, 16, 16, 16, 8, 8, 8, 8, 4, 2 },
      0 },
    { "consecutive: each good step refills",
      RULES(4, 3, 2, true, 1),
      "x.x.x.xx.x",
      { 16, 16, 16, 16, 16, 16, 16, 16, 8, 8, 8 },
      0 },
    { "a hysteresis of three",
      RULES(4, 2, 3, false, 1),
      "xxxx...x.xx",
      { 16, 16, 16, 8, 4, 4, 4, 8, 8, 8, 8, 4 },
      0 },
    { "the end at the minimum", RULES(2, 3, 1, false, 1), "xxx", { 4, 2, 1 }, -ERANGE },
    { "a minimum that is not a power of two", RULES(2, 3, 1, false, 3), "xx", { 4, 3 }, -ERANGE },
    { "a minimum below one",
      RULES(2, 3, 1, false, 0.25),
      "xxxxx",
      { 4, 2, 1, 0.5, 0.25 },
      -ERANGE },
    { "tolerated at the minimum", RULES(1, 9, 2, false, 2), "xx", { 2, 2 }, -ERANGE },
    { "up from the minimum", RULES(0, 2, 2, false, 1), "x...xx", { 1, 1, 1, 1, 2, 2, 1 }, 0 },
    { "no further than fp32 goes",
      RULES(125, 1, 1, false, 1),
      "....x",
      { 0x1p125, 0x1p125, 0x1p126, 0x1p126, 0x1p126, 0x1p125 },
      0 },
    { "static: as it was", { .fixed = 128 }, "..xx.", { 128, 128, 128, 128, 128, 128 }, 0 },
    { "none", { .fixed = 0 }, "x.", { 1, 1, 1 }, 0 },
};

/* `from`: steps that the job had made before it got a scale. */
static void sequence_run(size_t i, uint64_t from)
{
    const struct zc_loss_scale *rules = &sequences[i].rules;
    struct zcz_scaler s = zcz_scale_new(rules, from), was;
    size_t n = strlen(sequences[i].steps);
    struct zb_err err = { 0 };

    assert_true(n < STEPS_MAX);
    assert_int_equal(zcz_scale_check(rules, &err), 0);
    for (size_t k = 0; k < n; k++) {
        int rc;

        if (s.scale != sequences[i].scales[k])
            fail_msg("%s: step %zu has %g, not %g", sequences[i].name, k, s.scale,
                     sequences[i].scales[k]);
        was = s;
        rc = zcz_scale_update(&s, rules, from + k, sequences[i].steps[k] == 'x');
        if (rc != (k + 1 == n ? sequences[i].rc : 0))
            fail_msg("%s: step %zu: %d", sequences[i].name, k, rc);
        if (rc < 0)
            assert_memory_equal(&was, &s, sizeof(s));
    }
    if (sequences[i].rc == 0 && s.scale != sequences[i].scales[n])
        fail_msg("%s: %g behind the last", sequences[i].name, s.scale);
}

static void sequences_are_deepspeeds(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(sequences); i++) {
        sequence_run(i, 0);
        sequence_run(i, 1000);
    }
}

static const struct {
    const char *text; /* of the refusal; NULL: accepted */
    struct zc_loss_scale rules;
} rules[] = {
    { NULL, { .fixed = 1 } },
    { NULL, { .fixed = 0x1p126 } },
    { NULL, RULES(0, 1, 1, false, 1) },
    { "loss scale -1", { .fixed = -1 } },
    { "loss scale nan", { .fixed = NAN } },
    { "loss scale inf", { .fixed = INFINITY } },
    { "2^127", RULES(127, 1000, 2, false, 1) },
    { "a window of 0", RULES(16, 0, 2, false, 1) },
    { "hysteresis of 0", RULES(16, 1000, 0, false, 1) },
    { "least loss scale of 0", RULES(16, 1000, 2, false, 0) },
    { "least loss scale of nan", RULES(16, 1000, 2, false, NAN) },
    { "least loss scale of 8", RULES(2, 1000, 2, false, 8) },
};

static void rules_that_make_no_sense(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rules); i++) {
        struct zb_err err = { 0 };
        int rc = zcz_scale_check(&rules[i].rules, &err);

        if (rc != (rules[i].text ? -EINVAL : 0) ||
            (rules[i].text && !strstr(err.text, rules[i].text)))
            fail_msg("row %zu: %d '%s'", i, rc, err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_are_deepspeeds),
        cmocka_unit_test(rules_that_make_no_sense),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
