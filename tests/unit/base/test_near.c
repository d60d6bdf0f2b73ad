#include "tests/ztest.h"

#include <string.h>

#include "base/near.h"
#include "base/util.h"

static const char *const known[] = { "clone", "destroy", "help",     "host-bytes", "jobs",
                                     "ls",    "share",   "snapshot", "snapshots",  "stat",
                                     "tier",  "tiers",   "top",      "x" };

static const struct {
    const char *word, *found; /* NULL: none is near */
} cases[] = {
    { "jbos", "jobs" }, /* two letters are swapped, */
    { "tpo", "top" },
    { "job", "jobs" },              /* one is missing, */
    { "jjobs", "jobs" },            /* there is one more, */
    { "jovs", "jobs" },             /* or another one */
    { "jobs", "jobs" },             /* no edit at all */
    { "host_bytes", "host-bytes" }, /* '-' and '_' are equal */
    { "host_byets", "host-bytes" },
    { "hostbytes", "host-bytes" },
    { "snapshto", "snapshot" },
    { "snapshotss", "snapshots" }, /* the nearest, not the first */
    { "snapshoots", "snapshots" },
    { "dstry", "destroy" }, /* two edits of five letters, */
    { "dtry", NULL },       /* but not three of four */
    { "remove", NULL },     /* another word */
    { "snap", "snapshot" }, /* the beginning of two: the first */
    { "sna", "snapshot" },  /* of three letters, */
    { "hos", "host-bytes" },
    { "ho", NULL }, /* but not of two */
    { "lz", "ls" }, /* one edit of two letters is near, */
    { "y", NULL },  /* but of one letter nothing would be left */
    { "", NULL },
    { "tirs", "tiers" },
    { "tie", "tier" },
    { "STAT", NULL }, /* case counts */
    { "sttsttstat", NULL },
};

static void near_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct zb_near n = zb_near(cases[i].word, strlen(cases[i].word));
        const char *want = cases[i].found;

        for (size_t k = 0; k < ZB_COUNT(known); k++)
            zb_near_try(&n, known[k]);
        if (!want != !n.found || (want && strcmp(want, n.found) != 0))
            fail_msg("'%s': got '%s'", cases[i].word, n.found ? n.found : "none");
    }
}

static void only_its_bytes_are_read(void **state)
{
    struct zb_near n = zb_near("jbos=3", 4);

    (void)state;
    zb_near_try(&n, "jobs");
    assert_string_equal(n.found, "jobs");
    assert_int_equal(n.edits, 1);
}

static void words_of_any_length(void **state)
{
    char word[ZB_NEAR_MAX + 2], other[ZB_NEAR_MAX + 2];

    (void)state;
    for (size_t len = ZB_NEAR_MAX - 1; len <= ZB_NEAR_MAX + 1; len++) {
        struct zb_near n = zb_near(word, len);

        memset(word, 'a', sizeof(word));
        memset(other, 'a', sizeof(other));
        word[len / 2] = 'b';
        word[len] = other[len] = '\0';
        zb_near_try(&n, other);
        assert_int_equal(n.found != NULL, len <= ZB_NEAR_MAX);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_table),
        cmocka_unit_test(only_its_bytes_are_read),
        cmocka_unit_test(words_of_any_length),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
