#include "tests/ztest.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/text.h"

static void err_first_wins(void **state)
{
    struct zb_err e = { 0 };

    (void)state;
    assert_int_equal(zb_fail(&e, -ENOENT, "open '%s': %m", "a"), -ENOENT);
    assert_int_equal(zb_fail(&e, -EIO, "later"), -EIO);
    assert_int_equal(e.code, -ENOENT);
    assert_string_equal(e.text, "open 'a': No such file or directory");
}

static void err_is_one_clean_line(void **state)
{
    struct zb_err e = { 0 };
    char longer[2000];

    (void)state;
    assert_int_equal(zb_fail(&e, -EINVAL, "name '%s'", "a\nb\x1b[2J\x7f"), -EINVAL);
    assert_string_equal(e.text, "name 'a?b?[2J?'");
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    e.code = 0;
    assert_int_equal(zb_fail(&e, -EINVAL, "%s", longer), -EINVAL);
    assert_int_equal(strlen(e.text), sizeof(e.text) - 1);
}

/* Names come from sockets and files: characters that a terminal or a journal would interpret are
 * replaced. */
static void text_is_cleaned(void **state)
{
    static const struct {
        const char *raw, *clean;
    } rows[] = {
        { "plain", "plain" },
        { "a\tb\x7f", "a?b?" },
        { "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80" },
        { "\xc2\x9b"
          "2J",
          "??2J" }, /* CSI, one character */
        { "\x9b"
          "2J\xff\xc0\xaf",
          "?2J???" },                                    /* not UTF-8; an overlong form */
        { "\xed\xa0\x80 \xf4\x90\x80\x80", "??? ????" }, /* a surrogate; above 10FFFF */
        { "cut \xe2\x82", "cut ??" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[64];

        (void)snprintf(text, sizeof(text), "%s", rows[i].raw);
        zb_text_clean(text, strlen(text));
        assert_string_equal(text, rows[i].clean);
    }
}

/* A daemon that misbehaves may send any code. */
static void err_of_any_code(void **state)
{
    struct zb_err e = { 0 };

    (void)state;
    assert_int_equal(zb_fail(&e, INT32_MIN, "%m"), INT32_MIN);
    assert_string_equal(e.text, "Protocol error");
}

static void err_may_be_null(void **state)
{
    (void)state;
    assert_int_equal(zb_fail(NULL, -EINVAL, "nobody listens"), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(err_first_wins),  cmocka_unit_test(err_is_one_clean_line),
        cmocka_unit_test(text_is_cleaned), cmocka_unit_test(err_of_any_code),
        cmocka_unit_test(err_may_be_null),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
