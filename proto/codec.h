/*
 * codec.h - bodies: protobuf-c messages, unpacked within bounds.
 *
 * protobuf-c allocates as much as the bytes demand (up to 36 times their length). Here it allocates
 * from the caller's arena, which has a limit and is freed as a whole. Strings are checked: no NUL
 * inside, no control characters. Pure functions, any thread with its own arena.
 */
#ifndef ZP_CODEC_H
#define ZP_CODEC_H

#include <stdbool.h>

#include "base/err.h"
#include "proto/frame.h"
#include "proto/shard.pb-c.h"

#define ZP_ARENA_MAX (4u << 20)

/** Memory for one unpacked message at a time; reused for the next. */
struct zp_arena;
int zp_arena_new(struct zp_arena **ret); /* 0 or -ENOMEM */
void zp_arena_free(struct zp_arena *a);  /* NULL is fine */

struct zp_method_info {
    const char *name; /* "fetch" */
    const ProtobufCMessageDescriptor *request;
    const ProtobufCMessageDescriptor *reply; /* NULL: one-way */
};

/** NULL for an unknown number. */
const struct zp_method_info *zp_method_info(unsigned method);

/** The most bytes of a reply frame, for a request of this method with body_bytes of body. */
size_t zp_reply_max(unsigned method, size_t body_bytes);

/**
 * Unpacks a body. The message lives in the arena until the next zp_decode() with it.
 *
 * @return 0; -EPROTO not a message of this type, -EMSGSIZE it needs more than ZP_ARENA_MAX: err has
 *         the text (-EBADMSG is reserved for stored bytes that are corrupt: PROTOCOL.md)
 */
int zp_decode(struct zp_arena *a, const ProtobufCMessageDescriptor *type, const uint8_t *body,
              size_t body_bytes, const ProtobufCMessage **ret, struct zb_err *err);

/** Casts text for a field of a message to pack: protobuf-c declares fields as char *, and does not
 * write to them. */
/** For users: "yes", or why steps do not begin during the backward pass; "" for an unknown value. */
const char *zp_early_text(unsigned early);

static inline char *zp_str(const char *text)
{
    return (char *)(uintptr_t)text;
}

/** A job's or unit's name: 1 to ZP_NAME_MAX of letters, digits, '.', '_', '-', not beginning with
 *  '.' or '-'. */
bool zp_name_valid(const char *name);
/** A tensor's name: 1 to ZP_TENSOR_MAX printable ASCII characters without blanks and quotes. */
bool zp_tensor_name_valid(const char *name);

#endif
