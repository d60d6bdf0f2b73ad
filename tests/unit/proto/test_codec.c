#include "tests/ztest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "proto/codec.h"
#include "tests/alloc_fail.h"

static int arena_setup(void **state)
{
    struct zp_arena *a;

    if (zp_arena_new(&a) < 0)
        return -1;
    *state = a;
    return 0;
}

static int arena_teardown(void **state)
{
    zp_arena_free(*state);
    return 0;
}

#define HELLO       &zp__hello__descriptor
#define FETCH       &zp__fetch__descriptor
#define UNIT_DEFINE &zp__unit_define__descriptor
#define JOB_EVENT   &zp__job_event__descriptor

static const struct {
    const char *name;
    const ProtobufCMessageDescriptor *type;
    const char *body;
    size_t len;
    int rc;
} cases[] = {
    { "an empty body is all zeros", HELLO, "", 0, 0 },
    { "numbers and text", HELLO,
      "\x08\x01\x10\x02\x1a\x03"
      "abc",
      9, 0 },
    { "text beyond ASCII", HELLO,
      "\x1a\x09"
      "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
      11, 0 },
    { "a field that we do not know", HELLO, "\xa0\x06\x01", 3, 0 },
    { "cut in a number", HELLO, "\x08", 1, -EPROTO },
    { "a number that never ends", HELLO, "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12,
      -EPROTO },
    { "cut in a text", HELLO,
      "\x1a\x05"
      "abc",
      5, -EPROTO },
    { "a length beyond the body", HELLO, "\x1a\xff\xff\xff\xff\x0f", 6, -EPROTO },
    { "a text where a number stands", HELLO,
      "\x0a\x01"
      "a",
      3, -EPROTO },
    { "a number where a text stands", HELLO, "\x18\x01", 2, -EPROTO },
    { "a wire type that does not exist", HELLO, "\x0f\x01", 2, -EPROTO },
    { "a field number of 0", HELLO, "\x00\x01", 2, -EPROTO },
    { "a field number of 0, written longer", HELLO, "\x80\x00\x01", 3, -EPROTO },
    { "a NUL in a text", HELLO,
      "\x1a\x03"
      "a\0b",
      5, -EPROTO },
    { "a NUL at the end of a text", HELLO,
      "\x1a\x02"
      "a\0",
      4, -EPROTO },
    { "only a NUL", HELLO, "\x1a\x01\0", 3, -EPROTO },
    { "a newline", HELLO,
      "\x1a\x02"
      "a\n",
      4, -EPROTO },
    { "an escape", HELLO, "\x1a\x03\x1b[2", 5, -EPROTO },
    { "DEL", HELLO, "\x1a\x01\x7f", 3, -EPROTO },
    { "a control character of Latin-1", HELLO, "\x1a\x02\xc2\x9b", 4, -EPROTO },
    { "a continuation byte alone", HELLO, "\x1a\x01\x80", 3, -EPROTO },
    { "a character cut short", HELLO, "\x1a\x02\xe2\x82", 4, -EPROTO },
    { "a longer form than needed", HELLO, "\x1a\x02\xc1\x81", 4, -EPROTO },
    { "a slash in three bytes", HELLO, "\x1a\x03\xe0\x80\xaf", 5, -EPROTO },
    { "a surrogate", HELLO, "\x1a\x03\xed\xa0\x80", 5, -EPROTO },
    { "behind the last character", HELLO, "\x1a\x04\xf4\x90\x80\x80", 6, -EPROTO },
    { "a lead byte of five", HELLO, "\x1a\x05\xf8\x88\x80\x80\x80", 7, -EPROTO },
    { "packed numbers", FETCH, "\x0a\x03\x01\x02\x03\x10\x07", 7, 0 },
    { "the same, not packed", FETCH, "\x08\x01\x08\x02\x08\x03\x10\x07", 8, 0 },
    { "packed numbers cut short", FETCH, "\x0a\x02\x01\x80", 4, -EPROTO },
    { "a tensor", UNIT_DEFINE, "\x42\x05\x0a\x01w\x18\x04", 7, 0 },
    { "a tensor's name with a bell", UNIT_DEFINE, "\x42\x03\x0a\x01\x07", 5, -EPROTO },
    { "the second tensor's name with a NUL", UNIT_DEFINE, "\x42\x03\x0a\x01w\x42\x04\x0a\x02w\0",
      11, -EPROTO },
    { "a tensor cut short", UNIT_DEFINE, "\x42\x02\x0a\x05", 4, -EPROTO },
    { "a negative number", JOB_EVENT, "\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, 0 },
};

static void table(void **state)
{
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        const ProtobufCMessage *m = NULL;
        struct zb_err err = { 0 };
        /* Memory of exactly its size: the sanitizer sees a read beyond the end. */
        uint8_t *body = malloc(cases[i].len ? cases[i].len : 1);
        int rc;

        assert_non_null(body);
        memcpy(body, cases[i].body, cases[i].len);
        rc = zp_decode(*state, cases[i].type, body, cases[i].len, &m, &err);
        free(body);
        if (rc != cases[i].rc || err.code != rc)
            fail_msg("%s: got %d '%s'", cases[i].name, rc, err.text);
        if ((rc == 0) != (m != NULL) || (rc < 0 && !err.text[0]))
            fail_msg("%s: a body, or no error message", cases[i].name);
    }
}

static void values_arrive(void **state)
{
    const ProtobufCMessage *m;
    const Zp__Hello *hello;
    const Zp__Fetch *fetch;
    const Zp__UnitDefine *unit;
    const Zp__JobEvent *event;

    assert_int_equal(zp_decode(*state, HELLO,
                               (const uint8_t *)"\x10\x02\x1a\x03"
                                                "abc",
                               7, &m, NULL),
                     0);
    hello = (const Zp__Hello *)m;
    assert_int_equal(hello->version_min, 0);
    assert_int_equal(hello->version_max, 2);
    assert_string_equal(hello->program, "abc");

    assert_int_equal(
        zp_decode(*state, FETCH, (const uint8_t *)"\x0a\x02\x01\x02\x10\x07", 6, &m, NULL), 0);
    fetch = (const Zp__Fetch *)m;
    assert_int_equal(fetch->n_shards, 2);
    assert_int_equal(fetch->shards[1], 2);
    assert_int_equal(fetch->min_version, 7);

    assert_int_equal(zp_decode(*state, UNIT_DEFINE,
                               (const uint8_t *)"\x42\x07\x0a\x01w\x1a\x02\x03\x04", 9, &m, NULL),
                     0);
    unit = (const Zp__UnitDefine *)m;
    assert_int_equal(unit->n_tensors, 1);
    assert_string_equal(unit->tensors[0]->name, "w");
    assert_int_equal(unit->tensors[0]->n_dims, 2);
    assert_int_equal(unit->tensors[0]->dims[1], 4);

    assert_int_equal(zp_decode(*state, JOB_EVENT,
                               (const uint8_t *)"\x18\xe4\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11,
                               &m, NULL),
                     0);
    event = (const Zp__JobEvent *)m;
    assert_int_equal(event->code, -28);
}

/** Two bytes of a body decode to a row of 200 bytes and more: refused when the arena is full. */
static void a_body_that_grows(void **state)
{
    static uint8_t body[ZP_BODY_MAX];
    const ProtobufCMessage *m = NULL;
    struct zb_err err = { 0 };

    for (size_t i = 0; i < sizeof(body); i += 2)
        body[i] = 0x0a;
    assert_int_equal(zp_decode(*state, &zp__jobs_reply__descriptor, body, sizeof(body), &m, &err),
                     -EMSGSIZE);
    assert_null(m);
    assert_non_null(strstr(err.text, "JobsReply of 65536 bytes"));

    /* A refusal leaves room for the next message. */
    assert_int_equal(zp_decode(*state, HELLO, (const uint8_t *)"\x08\x01", 2, &m, NULL), 0);
    assert_non_null(m);
}

/** The longest lists that the protocol allows can be decoded. */
static void the_longest_lists_fit(void **state)
{
    static uint8_t body[ZP_BODY_MAX];
    Zp__Fetch fetch = ZP__FETCH__INIT;
    Zp__FetchReply reply = ZP__FETCH_REPLY__INIT;
    Zp__ShardRegister reg = ZP__SHARD_REGISTER__INIT;
    static uint64_t shards[ZP_SHARDS_MAX];
    static Zp__FetchItem item[ZP_SHARDS_MAX];
    static Zp__FetchItem *items[ZP_SHARDS_MAX];
    static Zp__Range range[ZP_SHARDS_MAX];
    static Zp__Range *ranges[ZP_SHARDS_MAX];
    const ProtobufCMessage *all[] = { &fetch.base, &reply.base, &reg.base };

    for (unsigned i = 0; i < ZP_SHARDS_MAX; i++) {
        shards[i] = UINT64_MAX;
        item[i] = (Zp__FetchItem)ZP__FETCH_ITEM__INIT;
        item[i].offset = item[i].version = item[i].bytes = UINT64_MAX;
        items[i] = &item[i];
        range[i] = (Zp__Range)ZP__RANGE__INIT;
        range[i].unit = UINT32_MAX;
        range[i].first = range[i].count = UINT64_MAX;
        ranges[i] = &range[i];
    }
    fetch.shards = shards;
    reply.items = items;
    reg.ranges = ranges;
    fetch.n_shards = reply.n_items = reg.n_ranges = ZP_SHARDS_MAX;
    for (size_t i = 0; i < ZB_COUNT(all); i++) {
        const ProtobufCMessage *m;
        size_t bytes = protobuf_c_message_get_packed_size(all[i]);

        assert_true(bytes <= ZP_BODY_MAX);
        protobuf_c_message_pack(all[i], body);
        assert_int_equal(zp_decode(*state, all[i]->descriptor, body, bytes, &m, NULL), 0);
    }
}

static void names(void **state)
{
    static const struct {
        const char *name;
        bool valid, tensor;
    } rows[] = {
        { "", false, false },       { "a", true, true },        { "gpt.h_0-x.W", true, true },
        { ".hidden", false, true }, { "-o", false, true },      { "_x", true, true },
        { "a b", false, false },    { "a/b", false, true },     { "a\"b", false, false },
        { "it's", false, false },   { "tab\t", false, false },  { "caf\xc3\xa9", false, false },
        { "\x7f", false, false },   { "h[3]{x}", false, true },
    };
    char name[130];

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++)
        if (zp_name_valid(rows[i].name) != rows[i].valid ||
            zp_tensor_name_valid(rows[i].name) != rows[i].tensor)
            fail_msg("'%s'", rows[i].name);
    memset(name, 'n', sizeof(name));
    name[129] = '\0';
    assert_true(zp_name_valid(name + 129 - ZP_NAME_MAX));
    assert_false(zp_name_valid(name + 129 - ZP_NAME_MAX - 1));
    assert_true(zp_tensor_name_valid(name + 129 - ZP_TENSOR_MAX));
    assert_false(zp_tensor_name_valid(name + 129 - ZP_TENSOR_MAX - 1));
}

static void methods(void **state)
{
    (void)state;
    for (unsigned m = 1; m < ZP_METHOD_END; m++) {
        const struct zp_method_info *info = zp_method_info(m);

        if (!info)
            continue; /* this number is not in use */
        if (!info->name || !info->request || (info->reply == NULL) != (m == ZP_RELEASE))
            fail_msg("method %u", m);
        for (unsigned k = 1; k < m; k++)
            if (zp_method_info(k))
                assert_string_not_equal(info->name, zp_method_info(k)->name);
    }
    assert_null(zp_method_info(0));
    assert_null(zp_method_info(ZP_METHOD_END));
    assert_null(zp_method_info(ZP_EVENT_PEER_LOST));
    assert_null(zp_method_info(UINT32_MAX));
}

/** protobuf-c unpacks recursively: a type that contains itself could overflow the stack. */
static unsigned depth_of(const ProtobufCMessageDescriptor *type, unsigned above)
{
    unsigned depth = above;

    assert_true(above < 8);
    for (unsigned i = 0; i < type->n_fields; i++)
        if (type->fields[i].type == PROTOBUF_C_TYPE_MESSAGE) {
            unsigned d = depth_of(type->fields[i].descriptor, above + 1);

            depth = d > depth ? d : depth;
        }
    return depth;
}

static void no_type_contains_itself(void **state)
{
    unsigned deepest = 0;

    (void)state;
    for (unsigned m = 1; m < ZP_METHOD_END; m++) {
        const struct zp_method_info *info = zp_method_info(m);
        unsigned d = info ? depth_of(info->request, 1) : 0;

        deepest = d > deepest ? d : deepest;
        if (info && info->reply)
            d = depth_of(info->reply, 1);
        deepest = d > deepest ? d : deepest;
    }
    assert_int_equal(deepest, 3); /* top: a gauge in a job in a reply */
}

static void no_memory_for_an_arena(void **state)
{
    struct zp_arena *a = NULL;

    (void)state;
    alloc_fail(1, 1);
    assert_int_equal(zp_arena_new(&a), -ENOMEM);
    assert_true(alloc_failed());
    assert_null(a);
    zp_arena_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(values_arrive),
        cmocka_unit_test(a_body_that_grows),
        cmocka_unit_test(the_longest_lists_fit),
        cmocka_unit_test(names),
        cmocka_unit_test(methods),
        cmocka_unit_test(no_type_contains_itself),
        cmocka_unit_test(no_memory_for_an_arena),
    };

    return cmocka_run_group_tests(tests, arena_setup, arena_teardown);
}
