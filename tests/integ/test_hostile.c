/*
 * A hostile client that keeps to the protocol, while another one works: what the hostile client
 * costs the daemon, and that the other one does not notice it.
 */
#include "tests/integ/refuse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IDS 1024u /* in one frame, at most */

/* The number of lines of the log that contain this text. */
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

/* Releases n unknown ids. */
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

/* One line for each frame at most, only a few in all, and none of the others' time. */
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
    zi_raw_alive(&bad); /* all of them have been handled */
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

/* A client that reconnects gets no more log lines than one that stays. */
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

/* Makes a job of one shard with values and a complete gradient. */
static uint64_t one_shard(struct zi_raw *r, uint64_t *ret_shard)
{
    Zp__JobOpen open = rf_open;
    Zp__UnitDefine unit = rf_unit;
    Zp__ShardRegister shards = ZP__SHARD_REGISTER__INIT;
    Zp__Range range = RF_RANGE(0, 0, 3 * RF_PAGE), *ranges[] = { &range };
    Zp__Ready ready = ZP__READY__INIT;
    Zp__Write write = ZP__WRITE__INIT;
    Zp__Push push = ZP__PUSH__INIT;

    assert_int_equal(zi_raw_call(r, ZP_JOB_OPEN, &open.base), 0);
    unit.job = shards.job = ready.job = ((const Zp__JobOpenReply *)r->reply)->job;
    assert_int_equal(zi_raw_call(r, ZP_UNIT_DEFINE, &unit.base), 0);
    shards.n_ranges = 1;
    shards.ranges = ranges;
    assert_int_equal(zi_raw_call(r, ZP_SHARD_REGISTER, &shards.base), 0);
    write.shard = push.shard = *ret_shard = ((const Zp__ShardRegisterReply *)r->reply)->shards[0];
    assert_int_equal(zi_raw_call(r, ZP_READY, &ready.base), 0);
    write.count = push.count = 3 * RF_PAGE;
    assert_int_equal(zi_raw_call(r, ZP_WRITE, &write.base), 0);
    push.step = 1;
    push.mode = push.dtype = 1;
    assert_int_equal(zi_raw_call(r, ZP_PUSH, &push.base), 0);
    return unit.job;
}

/* Fetches that wait for a step are sent before it, and their answers would exceed the limit of a
 * connection. Only as many wait as leave room to read the step; the others are refused at once. */
static void fetches_before_their_step(void **state)
{
    enum { MANY = 130 };
    struct zi_daemon d = { 0 };
    uint64_t ids[IDS], shard;
    unsigned refused = 0, fetched = 0, method = 0;
    Zp__GroupScalars scalars = ZP__GROUP_SCALARS__INIT, *groups[] = { &scalars };
    Zp__Fetch fetch = ZP__FETCH__INIT;
    Zp__Step step = ZP__STEP__INIT;
    struct zi_raw r;

    (void)state;
    zi_start(&d, rf_small);
    zi_raw_open(&r, &d);
    step.job = one_shard(&r, &shard);
    for (unsigned i = 0; i < IDS; i++)
        ids[i] = shard;
    fetch.n_shards = IDS;
    fetch.shards = ids;
    fetch.min_version = 1;
    fetch.timeout_ms = 20000;
    for (unsigned i = 0; i < MANY; i++)
        zi_raw_send(&r, ZP_FETCH, &fetch.base);
    step.step = 1;
    step.scale = 1;
    scalars.lr = 0.5;
    scalars.beta1 = scalars.beta2 = 0.9;
    scalars.eps = 1e-8;
    step.n_groups = 1;
    step.groups = groups;
    zi_raw_send(&r, ZP_STEP, &step.base);
    for (unsigned i = 0; i < MANY + 1; i++) {
        int rc = zi_raw_any(&r, &method);

        if (method == ZP_FETCH && rc == -EBUSY) {
            rf_says("a fetch", rc, -EBUSY, r.text, "wait for its own next step or release");
            refused++;
        } else if (rc != 0) {
            fail_msg("%d: %s", rc, r.text);
        }
        fetched += method == ZP_FETCH && rc == 0;
    }
    assert_int_equal(refused + fetched, MANY);
    assert_in_range(refused, 1, MANY / 2);
    zi_raw_close(&r);
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(releases_of_unknown_ids, zi_teardown),
        cmocka_unit_test_teardown(garbage_without_end, zi_teardown),
        cmocka_unit_test_teardown(fetches_before_their_step, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
