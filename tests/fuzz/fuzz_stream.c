/*
 * fuzz_stream.c - a peer that sends anything, with any descriptors, in pieces of any length.
 *
 * An input is a list of pieces: a byte with the number of descriptors (low four bits), a byte with
 * the length, and that many bytes. Each piece is one sendmsg(). The frames that the stream returns,
 * written again, must be the bytes that were sent, and no descriptor may stay open.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util.h"
#include "proto/stream.h"
#include "tests/fuzz/zfuzz.h"
#include "tests/send_fds.h"

static void send_piece(int peer, const uint8_t *bytes, size_t len, unsigned nfds)
{
    int fds[SEND_FDS_MAX];

    for (unsigned i = 0; i < nfds; i++)
        fds[i] = STDERR_FILENO;
    zfuzz_require(send_fds(peer, bytes, len, fds, nfds));
}

/** Takes frames until there are no more: 0, or the error that ends the stream. */
static int take_frames(struct zp_stream *s, uint8_t *again, size_t *again_bytes)
{
    struct zp_frame f;
    const uint8_t *body;
    int fds[ZP_FDS_MAX], rc;

    while ((rc = zp_stream_next(s, &f, &body, fds, NULL)) == 1) {
        zfuzz_require(f.fds <= ZP_FDS_MAX && f.body_bytes <= ZFUZZ_INPUT_MAX);
        for (unsigned i = 0; i < f.fds; i++)
            zfuzz_require(close(fds[i]) == 0);
        zp_frame_put(&f, again + *again_bytes);
        memcpy(again + *again_bytes + ZP_HEADER_BYTES, body, f.body_bytes);
        *again_bytes += ZP_HEADER_BYTES + f.body_bytes;
    }
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static uint8_t sent[ZFUZZ_INPUT_MAX], again[ZFUZZ_INPUT_MAX];
    size_t sent_bytes = 0, again_bytes = 0;
    struct zp_stream *s;
    int fds[2], lowest, rc = 0;

    if (bytes > ZFUZZ_INPUT_MAX)
        return 0;
    lowest = dup(STDERR_FILENO);
    zfuzz_require(lowest >= 0 && close(lowest) == 0);
    zfuzz_require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    zfuzz_require(zp_stream_new(&s, fds[0]) == 0);
    while (bytes > 2 && rc == 0) {
        size_t len = zb_min_u64(data[1] ? data[1] : 1, bytes - 2);
        bool idle = data[0] & 0x80; /* the owner reads later */

        send_piece(fds[1], data + 2, len, data[0] & 15);
        memcpy(sent + sent_bytes, data + 2, len);
        sent_bytes += len;
        data += 2 + len;
        bytes -= 2 + len;
        if (idle)
            continue;
        rc = zp_stream_read(s, NULL);
        if (rc == 0)
            rc = take_frames(s, again, &again_bytes);
        zfuzz_require(rc == 0 || rc == -EPROTO || rc == -EMSGSIZE);
    }
    close(fds[1]);
    while (rc == 0 && (rc = zp_stream_read(s, NULL)) == 0)
        rc = take_frames(s, again, &again_bytes);
    zfuzz_require(rc == -ECONNRESET || rc == -EPROTO || rc == -EMSGSIZE);
    zfuzz_require(again_bytes <= sent_bytes && memcmp(again, sent, again_bytes) == 0);
    zp_stream_free(s);
    zfuzz_require(dup(STDERR_FILENO) == lowest && close(lowest) == 0);
    return 0;
}

size_t zfuzz_seed(unsigned i, uint8_t *out, size_t room)
{
    static const struct {
        uint16_t body;
        uint8_t fds, pieces;
    } rows[] = {
        { 0, 0, 1 }, { 5, 0, 1 }, { 5, 2, 1 }, { 40, 4, 3 }, { 200, 0, 9 }, { 3, 1, 27 },
    };
    uint8_t frame[ZP_HEADER_BYTES + 200] = { 0 };
    struct zp_frame f = { .method = ZP_FETCH, .kind = ZP_REQUEST, .tag = i };
    size_t len, at = 0, n = 0;

    if (i >= ZB_COUNT(rows))
        return 0;
    f.body_bytes = rows[i].body;
    f.fds = rows[i].fds;
    zp_frame_put(&f, frame);
    len = ZP_HEADER_BYTES + f.body_bytes;
    for (unsigned copy = 0; copy < 3; copy++)
        for (unsigned p = 0; p < rows[i].pieces; p++) {
            size_t from = len * p / rows[i].pieces, to = len * (p + 1) / rows[i].pieces;

            zfuzz_require(n + 2 + to - from <= room);
            out[n++] = p == 0 ? rows[i].fds : 0;
            out[n++] = (uint8_t)(to - from);
            memcpy(out + n, frame + from, to - from);
            n += to - from;
            at += to - from;
        }
    return at > 0 ? n : 0;
}
