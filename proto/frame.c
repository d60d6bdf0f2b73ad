#include "proto/frame.h"

#include <errno.h>
#include <string.h>

#include "base/util.h"

static const uint8_t frame_magic[4] = { 'z', 's', 'h', 1 };

static uint64_t get_le(const uint8_t *p, unsigned bytes)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static void put_le(uint8_t *p, unsigned bytes, uint64_t v)
{
    for (unsigned i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

int zp_frame_next(const uint8_t *bytes, size_t len_bytes, struct zp_frame *ret)
{
    struct zp_frame f;

    /* Garbage is recognised by its first bytes, even if they are less than a header. */
    if (memcmp(bytes, frame_magic, zb_min_u64(len_bytes, sizeof(frame_magic))) != 0)
        return -EPROTO;
    if (len_bytes < ZP_HEADER_BYTES)
        return 0;
    f = (struct zp_frame){
        .body_bytes = (uint32_t)get_le(bytes + 4, 4),
        .method = (uint16_t)get_le(bytes + 8, 2),
        .kind = bytes[10],
        .fds = bytes[11],
        .code = (int32_t)(uint32_t)get_le(bytes + 12, 4),
        .tag = get_le(bytes + 16, 8),
    };
    if (f.kind < ZP_REQUEST || f.kind > ZP_EVENT || f.fds > ZP_FDS_MAX)
        return -EPROTO;
    if (f.body_bytes > ZP_BODY_MAX)
        return -EMSGSIZE;
    if (len_bytes < ZP_HEADER_BYTES + (size_t)f.body_bytes)
        return 0;
    *ret = f;
    return 1;
}

void zp_frame_put(const struct zp_frame *frame, uint8_t out[ZP_HEADER_BYTES])
{
    memcpy(out, frame_magic, sizeof(frame_magic));
    put_le(out + 4, 4, frame->body_bytes);
    put_le(out + 8, 2, frame->method);
    out[10] = frame->kind;
    out[11] = frame->fds;
    put_le(out + 12, 4, (uint32_t)frame->code);
    put_le(out + 16, 8, frame->tag);
}
