/*
 * fuzz_codec.c - any bytes as the body of any message.
 *
 * The first byte of an input selects the type, the rest is the body. An accepted body, packed and
 * unpacked again, must pack to the same bytes.
 */
#include <errno.h>
#include <string.h>

#include "proto/codec.h"
#include "tests/fuzz/zfuzz.h"

static const ProtobufCMessageDescriptor *type_of(uint8_t number)
{
    const struct zp_method_info *info = zp_method_info(1 + (number >> 1) % (ZP_METHOD_END - 1));

    if (!info)
        info = zp_method_info(ZP_HELLO); /* this number is not in use */
    return number & 1 && info->reply ? info->reply : info->request;
}

static const ProtobufCMessage *decode(const ProtobufCMessageDescriptor *type, const uint8_t *body,
                                      size_t bytes)
{
    static struct zp_arena *arena;
    const ProtobufCMessage *m = NULL;
    struct zb_err err = { 0 };
    int rc;

    zfuzz_require(arena || zp_arena_new(&arena) == 0);
    rc = zp_decode(arena, type, body, bytes, &m, &err);
    zfuzz_require(rc == 0 || rc == -EPROTO || rc == -EMSGSIZE);
    zfuzz_require((rc == 0) == (m != NULL) && rc == err.code && (rc == 0 || err.text[0]));
    return m;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static uint8_t once[16 * ZFUZZ_INPUT_MAX], twice[sizeof(once)];
    const ProtobufCMessage *m;
    size_t len;

    if (bytes == 0 || bytes > ZFUZZ_INPUT_MAX)
        return 0;
    m = decode(type_of(data[0]), data + 1, bytes - 1);
    if (!m)
        return 0;
    len = protobuf_c_message_get_packed_size(m);
    zfuzz_require(len <= sizeof(once));
    zfuzz_require(protobuf_c_message_pack(m, once) == len);
    m = decode(type_of(data[0]), once, len);
    zfuzz_require(m && protobuf_c_message_get_packed_size(m) == len);
    zfuzz_require(protobuf_c_message_pack(m, twice) == len && memcmp(once, twice, len) == 0);
    return 0;
}

/** One value of a field, with its key (one byte up to field 15, two above); returns the length. */
static size_t field_seed(const ProtobufCFieldDescriptor *f, uint8_t *out)
{
    static const struct {
        uint8_t wire, bytes;
        const char *value;
    } number = { 0, 2, "\x81\x01" }, real = { 1, 8, "\0\0\0\0\0\0\xf0\x3f" },
      text = { 2, 4, "\x03w.1" }, message = { 2, 5, "\x04\x0a\0\x10\x01" }, *v = &number;
    size_t n = 0;

    if (f->type == PROTOBUF_C_TYPE_DOUBLE)
        v = &real;
    else if (f->type == PROTOBUF_C_TYPE_STRING || f->type == PROTOBUF_C_TYPE_BYTES)
        v = &text;
    else if (f->type == PROTOBUF_C_TYPE_MESSAGE)
        v = &message;
    zfuzz_require(f->id < 32);
    out[n++] = (uint8_t)((f->id << 3 | v->wire) & 0x7f) | (f->id > 15 ? 0x80 : 0);
    if (f->id > 15)
        out[n++] = 1;
    memcpy(out + n, v->value, v->bytes);
    return n + v->bytes;
}

/** A message of each type with something in every field. */
size_t zfuzz_seed(unsigned i, uint8_t *out, size_t room)
{
    const ProtobufCMessageDescriptor *type;
    size_t n = 1;

    if (i >= 2 * (ZP_METHOD_END - 1))
        return 0;
    type = type_of((uint8_t)i);
    out[0] = (uint8_t)i;
    for (unsigned k = 0; k < type->n_fields; k++) {
        const ProtobufCFieldDescriptor *f = &type->fields[k];

        zfuzz_require(n + 20 < room);
        n += field_seed(f, out + n);
    }
    return n;
}
