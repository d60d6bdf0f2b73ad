/* How rows are printed: -o list, -o COLUMNS, -p, -H; as literal texts. test_zctl.c has plain tables
 * and JSON. */
#include "tests/ztest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/util.h"
#include "client/zctl/base/zctl.h"

struct row {
    char name[64], note[160];
    uint64_t disk_bytes, at;
    double real, share;
    uint32_t uid;
    bool flag;
};

#define COLUMN(key, type, shown)                              \
    {                                                         \
#key, type, offsetof(struct row, key), shown, NULL, 0 \
    }

static const struct zctl_column columns[] = {
    COLUMN(name, ZCTL_TEXT, ZCTL_SHOWN),   COLUMN(disk_bytes, ZCTL_SIZE, ZCTL_SHOWN),
    COLUMN(at, ZCTL_TIME, ZCTL_JSON_ONLY), COLUMN(real, ZCTL_DOUBLE, ZCTL_SHOWN),
    COLUMN(share, ZCTL_SHARE, ZCTL_SHOWN), COLUMN(uid, ZCTL_USER, ZCTL_JSON_ONLY),
    COLUMN(flag, ZCTL_BOOL, ZCTL_SHOWN),   COLUMN(note, ZCTL_TEXT, ZCTL_SHOWN),
};

/* 4294967294 has no name. */
static const struct row rows[] = {
    { "a", "", UINT64_C(571230650368), 1000000000, 4.25, 0.125, 0, true },
    { "longer", "two\twords", 12, 0, 1000, -1, 4294967294u, false },
};

static const struct {
    const char *what;
    struct zctl_style style;
    size_t nrows;
    const char *text; /* NULL: refused */
} cases[] = {
    { "plain",
      { .list = false },
      2,
      "NAME       DISK    REAL  SHARE  FLAG  NOTE\n"
      "a       532 GiB     4.2    12%  yes   -\n"
      "longer     12 B  1000.0      -  no    two\twords\n" },
    { "-p",
      { .exact = true },
      2,
      "NAME            DISK  REAL  SHARE  FLAG  NOTE\n"
      "a       571230650368  4.25  0.125  yes   -\n"
      "longer            12  1000      -  no    two\twords\n" },
    { "-H",
      { .bare = true },
      2,
      "a\t532 GiB\t4.2\t12%\tyes\t-\n"
      "longer\t12 B\t1000.0\t-\tno\ttwo words\n" },
    { "-Hp",
      { .bare = true, .exact = true },
      2,
      "a\t571230650368\t4.25\t0.125\tyes\t-\n"
      "longer\t12\t1000\t-\tno\ttwo words\n" },
    { "-H without rows", { .bare = true }, 0, "" },
    { "-o uid,name",
      { .columns = "uid,name" },
      2,
      "UID         NAME\n"
      "root        a\n"
      "4294967294  longer\n" },
    { "-p -o uid", { .exact = true, .columns = "uid" }, 2, "UID\n0\n4294967294\n" },
    { "-H -o in any case", { .bare = true, .columns = "NAME,Flag" }, 1, "a\tyes\n" },
    { "-o a column twice", { .bare = true, .columns = "flag,flag" }, 1, "yes\tyes\n" },
    { "-o numbers", { .columns = "disk_bytes,real" }, 1, "   DISK  REAL\n532 GiB   4.2\n" },
    { "-Hp -o at", { .bare = true, .exact = true, .columns = "at" }, 1, "1000000000\n" },
    { "-o none of them", { .columns = "name,size" }, 1, NULL },
    { "-o list",
      { .list = true },
      2,
      "name        a\n"
      "disk_bytes  532 GiB (571230650368)\n"
      "at          2001-09-09T01:46:40+0000\n"
      "real        4.2\n"
      "share       12%\n"
      "uid         root\n"
      "flag        yes\n"
      "note        -\n"
      "\n"
      "name        longer\n"
      "disk_bytes  12 B (12)\n"
      "at          1970-01-01T00:00:00+0000\n"
      "real        1000.0\n"
      "share       -\n"
      "uid         4294967294\n"
      "flag        no\n"
      "note        two\twords\n" },
    { "-p -o list",
      { .list = true, .exact = true },
      1,
      "name        a\n"
      "disk_bytes  571230650368\n"
      "at          1000000000\n"
      "real        4.25\n"
      "share       0.125\n"
      "uid         0\n"
      "flag        yes\n"
      "note        -\n" },
};

static void styles(void **state)
{
    (void)state;
    (void)setenv("TZ", "UTC", 1);
    tzset();
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        char *text = NULL;
        size_t bytes;
        struct zctl z = { .style = cases[i].style, .out = open_memstream(&text, &bytes) };
        int rc = zctl_print(&z, columns, ZB_COUNT(columns), rows, cases[i].nrows, sizeof(*rows));

        (void)fclose(z.out);
        if (rc != (cases[i].text ? 0 : -EINVAL) || strcmp(text, cases[i].text ? cases[i].text : ""))
            fail_msg("%s: got %d, '%s', '%s'", cases[i].what, rc, text, z.err.text);
        free(text);
    }
}

/* What is cut in a table for people is whole for scripts. */
static void nothing_is_cut(void **state)
{
    struct row row = { .name = "a-name-of-many-characters-which-is-cut-in-a-table..." };
    const struct zctl_style whole[] = { { .bare = true }, { .exact = true }, { .list = true } };

    (void)state;
    memset(row.note, 'x', sizeof(row.note) - 1);
    for (size_t i = 0; i <= ZB_COUNT(whole); i++) {
        char *text = NULL;
        size_t bytes;
        struct zctl z = { .out = open_memstream(&text, &bytes) };

        if (i < ZB_COUNT(whole))
            z.style = whole[i];
        assert_int_equal(zctl_print(&z, columns, ZB_COUNT(columns), &row, 1, sizeof(row)), 0);
        (void)fclose(z.out);
        assert_int_equal(strstr(text, row.note) != NULL, i < ZB_COUNT(whole));
        free(text);
    }
}

/* Lines below a table are for people: they are left out where only rows, or only some columns, are
 * wanted. */
static void lines_below(void **state)
{
    static const struct {
        struct zctl_style style;
        bool below, messages;
    } styles_of[] = {
        { { .list = false }, true, true },  { { .exact = true }, true, true },
        { { .bare = true }, false, false }, { { .columns = "name" }, false, true },
        { { .list = true }, false, true },
    };
    const struct zc_message message = { "a message" };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(styles_of); i++) {
        char *text = NULL;
        size_t bytes;
        struct zctl z = { .style = styles_of[i].style, .out = open_memstream(&text, &bytes) };
        struct zctl_below below;

        assert_int_equal(zctl_below_open(&z, &below), 0);
        (void)fputs("a line below\n", below.out);
        assert_int_equal(
            zctl_print_below(&z, columns, ZB_COUNT(columns), rows, 1, sizeof(*rows), &below), 0);
        assert_int_equal(zctl_print_more(&z, columns, ZB_COUNT(columns), rows, 1, sizeof(*rows),
                                         "messages", &message, 1),
                         0);
        (void)fclose(z.out);
        assert_int_equal(strstr(text, "a line below\n") != NULL, styles_of[i].below);
        assert_int_equal(strstr(text, "a message\n") != NULL, styles_of[i].messages);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(styles),
        cmocka_unit_test(nothing_is_cut),
        cmocka_unit_test(lines_below),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
