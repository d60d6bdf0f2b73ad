/*
 * A client that keeps to the protocol and means harm, beside one that works: what the one costs
 * the daemon, and that the other one does not notice.
 */
#include "tests/integ/refuse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IDS 1024u /* of a frame, at most */

/* Lines of the log that have this text. */
static unsigned log_lines(const struct zi_daemon *d, const char *text)
{
    FILE *f = fopen(d->log, "re");
    char line[2048];
    unsigned n = 0;

    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        n += strstr(line, text) != NULL;
    assert_int_equal(fclose(f), 0);
    return n;
}

/* A release of n unknown ids. */
static void release(struct zi_raw *r, size_t n)
{
    static uint64_t ids[2 * IDS];
    struct zp_frame frame = { .method = ZP_RELEASE, .kind = ZP_ONEWAY };
    Zp__Release q = ZP__RELEASE__INIT;
    uint8_t *bytes;
    size_t len;

    q.n_shards = n;
    q.shards = ids;
    len = zp__release__get_packed_size(&q);
    bytes = malloc(ZP_HEADER_BYTES + len);
    assert_non_null(bytes);
    frame.body_bytes = (uint32_t)len;
    zp_frame_put(&frame, bytes);
    (void)zp__release__pack(&q, bytes + ZP_HEADER_BYTES);
    zi_raw_bytes(r, bytes, ZP_HEADER_BYTES + len, NULL, 0);
    free(bytes);
}

/* One line for each frame at most, few of them, and none of the others' time. */
static void releases_of_unknown_ids(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_raw bad, good;
    struct zc_client *c;

    (void)state;
    zi_start(&d, rf_small);
    zi_raw_open(&bad, &d);
    zi_raw_open(&good, &d);
    for (unsigned i = 0; i < 200; i++) {
        release(&bad, IDS);
        if (i % 20 == 0)
            zi_raw_alive(&good);
    }
    zi_raw_alive(&bad); /* all of them were looked at */
    c = zi_client(&d);
    assert_int_equal(zi_counter(c, "releases_bad"), 200 * IDS);
    assert_true(zi_counter(c, "log_lines_dropped") > 100);
    assert_in_range(log_lines(&d, "release-refused"), 1, 40);
    assert_non_null(zi_log_line(&d, "shards=1024 first=0"));
    release(&bad, IDS + 1);
    zi_raw_hung_up(&bad);
    zi_raw_close(&bad);
    zi_raw_alive(&good);
    zi_raw_close(&good);
    zc_close(c);
    zi_stop(&d);
}

/* Who reconnects to be logged about has no more lines than who stays. */
static void garbage_without_end(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_raw good;

    (void)state;
    zi_start(&d, rf_small);
    zi_raw_open(&good, &d);
    for (unsigned i = 0; i < 300; i++) {
        struct zi_raw bad;

        zi_raw_connect(&bad, &d);
        zi_raw_bytes(&bad, "garbage!", 8, NULL, 0);
        zi_raw_hung_up(&bad);
        zi_raw_close(&bad);
    }
    zi_raw_alive(&good);
    assert_in_range(log_lines(&d, "client-dropped"), 1, 250);
    zi_raw_close(&good);
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(releases_of_unknown_ids, zi_teardown),
        cmocka_unit_test_teardown(garbage_without_end, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
