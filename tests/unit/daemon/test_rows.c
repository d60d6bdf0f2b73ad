/* Walks over the rows of a store while rows come and go. */
#include "tests/ztest.h"

#include "daemon/store/rows.h"
#include "daemon/store/store.h"

#define ROWS 6u

/* At each step of a walk: the row that is removed, or added. -: nothing is. */
static const struct {
    const char *what;
    const char *removes, *adds; /* [step]; rows are numbered from 0 */
    const char *seen;
} cases[] = {
    { "nothing changes", "------", "------", "012345" },
    { "the row that it is at goes", "012345", "------", "012345" },
    { "rows ahead go", "24----", "------", "0135" },
    { "the last ones go", "--5---", "------", "01234" },
    { "the row that it is at, and the one before", "-10---", "------", "012345" },
    { "rows are added at the end", "------", "6--7--", "01234567" },
    { "all go, and one is added", "012345", "-----8", "0123458" },
    { "rows ahead go, added ones too", "-6----", "6-----", "012345" },
};

static struct zsd_core core;
static struct zsd_store store;
static struct zsd_row *rows[10];

static void add(unsigned n)
{
    const struct zb_layout none = { 0 };

    rows[n] = zsd_row_new(n, &none, 0, 1, 1);
    assert_non_null(rows[n]);
    zsd_rows_add(&store, rows[n]);
}

static void change(char removes, char adds)
{
    if (removes != '-') {
        zsd_row_unref(&core, rows[removes - '0']);
        rows[removes - '0'] = NULL;
    }
    if (adds != '-')
        add((unsigned)(adds - '0'));
}

static void walks(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct zsd_row_walk walk, whole, none = { 0 };
        char seen[ZB_COUNT(rows) + 1] = "";
        const struct zsd_row *row;
        size_t n = 0;

        core = (struct zsd_core){ .store = &store };
        store = (struct zsd_store){ .core = &core };
        zb_list_init(&store.rows);
        zb_list_init(&store.walks);
        for (unsigned r = 0; r < ROWS; r++)
            add(r);
        zsd_row_walk_begin(&store, &walk);
        zsd_row_walk_begin(&store, &whole); /* at its end, or at its begin */
        while (i % 2 && zsd_row_walk_next(&whole))
            ;
        for (; (row = zsd_row_walk_next(&walk)); n++) {
            seen[n] = (char)('0' + row->unit);
            if (n < ROWS)
                change(cases[i].removes[n], cases[i].adds[n]);
        }
        if (strcmp(seen, cases[i].seen) != 0)
            fail_msg("%s: %s, and not %s", cases[i].what, seen, cases[i].seen);
        zsd_row_walk_end(&walk);
        zsd_row_walk_end(&whole);
        zsd_row_walk_end(&none);
        assert_true(zb_list_empty(&store.walks));
        for (size_t r = 0; r < ZB_COUNT(rows); r++)
            if (rows[r])
                zsd_row_unref(&core, rows[r]);
        memset(rows, 0, sizeof(rows));
        assert_true(zb_list_empty(&store.rows));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(walks) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
