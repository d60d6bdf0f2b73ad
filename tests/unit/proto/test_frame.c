#include "tests/ztest.h"

#include <errno.h>

#include "base/util.h"
#include "proto/frame.h"

/* A header, followed by zeros for a body. */
#define HEADER(body_lo, body_hi, kind, fds)                                                        \
    'z', 's', 'h', 1, body_lo, body_hi, 0, 0, 9, 0, kind, fds, 0xfb, 0xff, 0xff, 0xff, 1, 2, 3, 4, \
        5, 6, 7, 8

static const struct {
    const char *name;
    uint8_t in[ZP_HEADER_BYTES + 4];
    size_t len;
    int rc;
} cases[] = {
    { "nothing", { 0 }, 0, 0 },
    { "one byte of the magic", { 'z' }, 1, 0 },
    { "a first byte that is not ours", { 'G' }, 1, -EPROTO },
    { "text", { 'z', 's', 'h', 'a' }, 4, -EPROTO },
    { "another version of the header", { 'z', 's', 'h', 2 }, 4, -EPROTO },
    { "half a header", { HEADER(0, 0, ZP_REQUEST, 0) }, 12, 0 },
    { "a header without its last byte", { HEADER(0, 0, ZP_REQUEST, 0) }, 23, 0 },
    { "a header with an empty body", { HEADER(0, 0, ZP_REQUEST, 0) }, 24, 1 },
    { "a header without its body", { HEADER(2, 0, ZP_REQUEST, 0) }, 24, 0 },
    { "half a body", { HEADER(2, 0, ZP_REPLY, 0) }, 25, 0 },
    { "a whole frame", { HEADER(2, 0, ZP_REPLY, 0) }, 26, 1 },
    { "a whole frame and more", { HEADER(2, 0, ZP_EVENT, 0) }, 28, 1 },
    { "the most descriptors", { HEADER(0, 0, ZP_ONEWAY, 4) }, 24, 1 },
    { "one descriptor too many", { HEADER(0, 0, ZP_REPLY, 5) }, 24, -EPROTO },
    { "no kind", { HEADER(0, 0, 0, 0) }, 24, -EPROTO },
    { "a kind behind the last", { HEADER(0, 0, 5, 0) }, 24, -EPROTO },
    { "one byte longer than we accept",
      { 'z', 's', 'h', 1, 1, 0, 1, 0, 9, 0, ZP_REPLY },
      24,
      -EMSGSIZE },
    { "as long as the number goes",
      { 'z', 's', 'h', 1, 0xff, 0xff, 0xff, 0xff, 9, 0, ZP_REPLY },
      24,
      -EMSGSIZE },
    { "the longest we accept, not yet here",
      { 'z', 's', 'h', 1, 0, 0, 1, 0, 9, 0, ZP_REPLY },
      24,
      0 },
};

static void table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct zp_frame f = { .body_bytes = 77, .tag = 78 };
        int rc = zp_frame_next(cases[i].in, cases[i].len, &f);

        if (rc != cases[i].rc)
            fail_msg("%s: got %d, not %d", cases[i].name, rc, cases[i].rc);
        if (rc <= 0 && (f.body_bytes != 77 || f.tag != 78))
            fail_msg("%s: the frame was changed", cases[i].name);
        if (rc == 1 && (f.body_bytes != cases[i].in[4] || f.method != 9 || f.code != -5 ||
                        f.tag != UINT64_C(0x0807060504030201)))
            fail_msg("%s: the header was misread", cases[i].name);
    }
}

static void put_and_next_agree(void **state)
{
    uint64_t seed = 1;

    (void)state;
    for (unsigned i = 0; i < 1000; i++) {
        struct zp_frame in = { .body_bytes = 0,
                               .method = (uint16_t)ztest_random(&seed),
                               .kind = (uint8_t)(1 + ztest_random(&seed) % 4),
                               .fds = (uint8_t)(ztest_random(&seed) % 5),
                               .code = (int32_t)ztest_random(&seed),
                               .tag = ztest_random(&seed) };
        struct zp_frame out = { 0 };
        uint8_t bytes[ZP_HEADER_BYTES];

        zp_frame_put(&in, bytes);
        assert_int_equal(zp_frame_next(bytes, sizeof(bytes), &out), 1);
        assert_int_equal(out.method, in.method);
        assert_int_equal(out.kind, in.kind);
        assert_int_equal(out.fds, in.fds);
        assert_int_equal(out.code, in.code);
        assert_true(out.tag == in.tag);
        assert_int_equal(out.body_bytes, 0);
    }
}

static void bytes_are_little_endian(void **state)
{
    static const uint8_t want[ZP_HEADER_BYTES] = { HEADER(2, 1, ZP_REPLY, 3) };
    struct zp_frame f = { 0x102, 9, ZP_REPLY, 3, -5, UINT64_C(0x0807060504030201) };
    uint8_t bytes[ZP_HEADER_BYTES];

    (void)state;
    zp_frame_put(&f, bytes);
    assert_memory_equal(bytes, want, sizeof(want));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(put_and_next_agree),
        cmocka_unit_test(bytes_are_little_endian),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
