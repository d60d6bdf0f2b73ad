#include "tests/ztest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/util.h"
#include "proto/shard.pb-c.h"
#include "proto/stream.h"
#include "tests/alloc_fail.h"
#include "tests/send_fds.h"

/** A stream, and a plain socket at the other end. */
struct fixture {
    struct zp_stream *s;
    int peer;
    unsigned open_before;
};

static unsigned open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;

    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static struct fixture fixture_open(void)
{
    struct fixture x = { .open_before = open_fds() };
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(zp_stream_new(&x.s, fds[0]), 0);
    x.peer = fds[1];
    return x;
}

/** Checks that every descriptor that arrived has been closed. */
static void fixture_close(struct fixture *x)
{
    zp_stream_free(x->s);
    zb_close_fd(&x->peer);
    assert_int_equal(open_fds(), x->open_before);
}

/** A file of its own size, to recognize it. */
static int file_of(unsigned size)
{
    int fd = memfd_create("test", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, size), 0);
    return fd;
}

static unsigned size_of(int fd)
{
    struct stat st;

    assert_int_equal(fstat(fd, &st), 0);
    return (unsigned)st.st_size;
}

/** Sends bytes with nfds descriptors of sizes size, size + 1 ... */
static void raw_send(int peer, const void *bytes, size_t len, unsigned nfds, unsigned size)
{
    int fds[SEND_FDS_MAX];

    assert_true(nfds <= SEND_FDS_MAX);
    for (unsigned i = 0; i < nfds; i++)
        fds[i] = file_of(size + i);
    assert_true(send_fds(peer, bytes, len, fds, nfds));
    for (unsigned i = 0; i < nfds; i++)
        zb_close_fd(&fds[i]);
}

/** Makes a frame with a body of `body` bytes, each (uint8_t)tag; returns its length. */
static size_t frame_bytes(uint8_t *out, uint64_t tag, uint32_t body, unsigned fds)
{
    struct zp_frame f = {
        .body_bytes = body, .method = ZP_PING, .kind = ZP_REQUEST, .fds = (uint8_t)fds, .tag = tag
    };

    zp_frame_put(&f, out);
    memset(out + ZP_HEADER_BYTES, (int)(uint8_t)tag, body);
    return ZP_HEADER_BYTES + body;
}

/** Takes the next frame and checks all of it, including descriptors of sizes `size`, size + 1
 * ... */
static void expect_frame(struct zp_stream *s, uint64_t tag, uint32_t body, unsigned fds,
                         unsigned size)
{
    struct zp_frame f;
    const uint8_t *bytes;
    int got[ZP_FDS_MAX];
    struct zb_err err = { 0 };

    assert_int_equal(zp_stream_next(s, &f, &bytes, got, &err), 1);
    assert_true(f.tag == tag);
    assert_int_equal(f.body_bytes, body);
    assert_int_equal(f.fds, fds);
    for (uint32_t i = 0; i < body; i++)
        assert_int_equal(bytes[i], (uint8_t)tag);
    for (unsigned i = 0; i < fds; i++) {
        assert_int_equal(size_of(got[i]), size + i);
        assert_true(fcntl(got[i], F_GETFD) & FD_CLOEXEC);
        zb_close_fd(&got[i]);
    }
    assert_int_equal(err.code, 0);
}

static void expect_none(struct zp_stream *s)
{
    struct zp_frame f = { .tag = 77 };
    const uint8_t *bytes = NULL;
    int fds[ZP_FDS_MAX];

    assert_int_equal(zp_stream_next(s, &f, &bytes, fds, NULL), 0);
    assert_int_equal(f.tag, 77);
    assert_null(bytes);
}

/* ---- receiving */

static void byte_by_byte(void **state)
{
    struct fixture x = fixture_open();
    uint8_t out[ZP_HEADER_BYTES + 9];

    (void)state;
    for (unsigned round = 0; round < 3; round++) {
        size_t len = frame_bytes(out, 40 + round, 9 * round / 2, round);

        for (size_t i = 0; i < len; i++) {
            expect_none(x.s);
            raw_send(x.peer, out + i, 1, i == 0 ? round : 0, 100);
            assert_int_equal(zp_stream_read(x.s, NULL), 0);
        }
        expect_frame(x.s, 40 + round, 9 * round / 2, round, 100);
        expect_none(x.s);
    }
    assert_int_equal(zp_stream_read(x.s, NULL), -EAGAIN);
    fixture_close(&x);
}

static void many_frames_at_once(void **state)
{
    struct fixture x = fixture_open();
    static uint8_t out[100 * (ZP_HEADER_BYTES + 100)];
    size_t len = 0;

    (void)state;
    for (unsigned i = 0; i < 100; i++)
        len += frame_bytes(out + len, i, i, 0);
    raw_send(x.peer, out, len, 0, 0);
    assert_int_equal(zp_stream_read(x.s, NULL), 0);
    for (unsigned i = 0; i < 100; i++)
        expect_frame(x.s, i, i, 0, 0);
    expect_none(x.s);
    fixture_close(&x);
}

static void nothing_is_received_while_a_frame_waits(void **state)
{
    struct fixture x = fixture_open();
    uint8_t out[ZP_HEADER_BYTES];
    int waiting;

    (void)state;
    raw_send(x.peer, out, frame_bytes(out, 1, 0, 1), 1, 50);
    assert_int_equal(zp_stream_read(x.s, NULL), 0);
    raw_send(x.peer, out, frame_bytes(out, 2, 0, 1), 1, 60);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(zp_stream_read(x.s, NULL), 0);
    waiting = recv(zp_stream_fd(x.s), out, sizeof(out), MSG_PEEK | MSG_DONTWAIT);
    assert_int_equal(waiting, ZP_HEADER_BYTES);
    expect_frame(x.s, 1, 0, 1, 50);
    assert_int_equal(zp_stream_read(x.s, NULL), 0);
    expect_frame(x.s, 2, 0, 1, 60);
    fixture_close(&x);
}

static void the_longest_frames(void **state)
{
    struct fixture x = fixture_open();
    static uint8_t out[ZP_HEADER_BYTES + ZP_BODY_MAX];
    uint8_t one;

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        size_t len = frame_bytes(out, i, ZP_BODY_MAX - i, 4);

        raw_send(x.peer, out, len - 1, 4, 10 * i);
        raw_send(x.peer, out + len - 1, 1, 0, 0);
        while (recv(zp_stream_fd(x.s), &one, 1, MSG_PEEK | MSG_DONTWAIT) == 1)
            assert_int_equal(zp_stream_read(x.s, NULL), 0);
        expect_frame(x.s, i, ZP_BODY_MAX - i, 4, 10 * i);
    }
    fixture_close(&x);
}

/*
 * What a peer may do with descriptors. Each row is a list of sends; after each one the stream reads
 * and takes what it can. `rc` is the result of the last zp_stream_read() or zp_stream_next().
 */
enum { WHOLE = 0 };

static const struct {
    const char *name;
    struct {
        unsigned announced;
        unsigned body;
        unsigned from, to; /* of the frame's bytes; to 0: to its end */
        unsigned sent;     /* descriptors with these bytes */
    } sends[4];
    unsigned nsends, frames;
    int rc;
} fd_cases[] = {
    { "as announced", { { 2, 3, 0, WHOLE, 2 } }, 1, 1, 0 },
    { "none, none announced", { { 0, 3, 0, WHOLE, 0 } }, 1, 1, 0 },
    { "in two frames", { { 1, 3, 0, WHOLE, 1 }, { 2, 0, 0, WHOLE, 2 } }, 2, 2, 0 },
    { "with the first byte, the rest later",
      { { 2, 9, 0, 1, 2 }, { 2, 9, 1, WHOLE, 0 } },
      2,
      1,
      0 },
    { "none, one announced", { { 1, 3, 0, WHOLE, 0 } }, 1, 0, -EPROTO },
    { "one, two announced", { { 2, 3, 0, WHOLE, 1 } }, 1, 0, -EPROTO },
    { "two, one announced", { { 1, 3, 0, WHOLE, 2 } }, 1, 0, -EPROTO },
    { "one, none announced", { { 0, 3, 0, WHOLE, 1 } }, 1, 0, -EPROTO },
    { "one, none announced, an empty body", { { 0, 0, 0, WHOLE, 1 } }, 1, 0, -EPROTO },
    { "five, four announced", { { 4, 3, 0, WHOLE, 5 } }, 1, 0, -EPROTO },
    { "six", { { 0, 3, 0, WHOLE, 6 } }, 1, 0, -EPROTO },
    { "seven, more than there is room for", { { 4, 3, 0, WHOLE, 7 } }, 1, 0, -EPROTO },
    { "sixteen", { { 4, 3, 0, WHOLE, 16 } }, 1, 0, -EPROTO },
    { "late, in the middle of the header",
      { { 1, 3, 0, 9, 0 }, { 1, 3, 9, WHOLE, 1 } },
      2,
      0,
      -EPROTO },
    { "late, with the body", { { 1, 3, 0, 24, 0 }, { 1, 3, 24, WHOLE, 1 } }, 2, 0, -EPROTO },
    { "late, and the frame does not end",
      { { 1, 3, 0, 24, 0 }, { 1, 3, 24, 25, 1 } },
      2,
      0,
      -EPROTO },
    { "twice for one frame", { { 1, 3, 0, 24, 1 }, { 1, 3, 24, 25, 1 } }, 2, 0, -EPROTO },
    { "with the frame before", { { 0, 3, 0, WHOLE, 1 }, { 1, 3, 0, WHOLE, 0 } }, 2, 0, -EPROTO },
    { "with the frame behind", { { 1, 3, 0, 24, 0 }, { 1, 3, 24, WHOLE, 0 } }, 2, 0, -EPROTO },
};

static void descriptors(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(fd_cases); i++) {
        struct fixture x = fixture_open();
        struct zb_err err = { 0 };
        unsigned frames = 0;
        int rc = 0;

        for (unsigned k = 0; k < fd_cases[i].nsends && rc == 0; k++) {
            uint8_t out[64];
            size_t len =
                frame_bytes(out, k, fd_cases[i].sends[k].body, fd_cases[i].sends[k].announced);
            unsigned from = fd_cases[i].sends[k].from;
            unsigned to = fd_cases[i].sends[k].to;
            struct zp_frame f;
            const uint8_t *body;
            int fds[ZP_FDS_MAX];

            raw_send(x.peer, out + from, (to ? to : len) - from, fd_cases[i].sends[k].sent, 10);
            rc = zp_stream_read(x.s, &err);
            if (rc < 0)
                break;
            while ((rc = zp_stream_next(x.s, &f, &body, fds, &err)) == 1) {
                frames++;
                for (unsigned n = 0; n < f.fds; n++) {
                    if (size_of(fds[n]) != 10 + n)
                        fail_msg("%s: descriptors in another order", fd_cases[i].name);
                    zb_close_fd(&fds[n]);
                }
            }
        }
        if (rc != fd_cases[i].rc || frames != fd_cases[i].frames)
            fail_msg("%s: got %d '%s' after %u frames", fd_cases[i].name, rc, err.text, frames);
        if (err.code != rc)
            fail_msg("%s: the message is '%s'", fd_cases[i].name, err.text);
        fixture_close(&x);
    }
}

/** The kernel returns several messages in one receive if only the last one has descriptors. */
static void descriptors_behind_other_frames(void **state)
{
    struct fixture x = fixture_open();
    uint8_t out[64];

    (void)state;
    raw_send(x.peer, out, frame_bytes(out, 1, 5, 0), 0, 0);
    raw_send(x.peer, out, frame_bytes(out, 2, 6, 0), 0, 0);
    raw_send(x.peer, out, frame_bytes(out, 3, 7, 2), 2, 30);
    raw_send(x.peer, out, frame_bytes(out, 4, 8, 1), 1, 40);
    assert_int_equal(zp_stream_read(x.s, NULL), 0);
    expect_frame(x.s, 1, 5, 0, 0);
    expect_frame(x.s, 2, 6, 0, 0);
    expect_frame(x.s, 3, 7, 2, 30);
    expect_none(x.s);
    assert_int_equal(zp_stream_read(x.s, NULL), 0);
    expect_frame(x.s, 4, 8, 1, 40);
    fixture_close(&x);
}

/** An owner that only receives: the number of held descriptors stays limited. */
static void descriptors_without_end(void **state)
{
    struct fixture x = fixture_open();
    struct zb_err err = { 0 };
    uint8_t out[64];

    (void)state;
    (void)frame_bytes(out, 1, 5, 1);
    for (unsigned i = 0; i < 3; i++) {
        raw_send(x.peer, out + i, 1, 1, 30);
        assert_int_equal(zp_stream_read(x.s, &err), i < 2 ? 0 : -EPROTO);
    }
    assert_non_null(strstr(err.text, "were not announced"));
    fixture_close(&x);
}

/** No room in the table of descriptors: the kernel drops them and reports that. */
static void more_descriptors_than_the_process_may_open(void **state)
{
    struct fixture x = fixture_open();
    struct rlimit old, tight;
    struct zb_err err = { 0 };
    uint8_t out[64];
    int next = dup(x.peer);

    (void)state;
    assert_true(next >= 0);
    close(next); /* frees the lowest number */
    raw_send(x.peer, out, frame_bytes(out, 1, 5, 2), 2, 30);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    tight = old;
    tight.rlim_cur = (rlim_t)next + 1;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    assert_int_equal(zp_stream_read(x.s, &err), -EPROTO);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_non_null(strstr(err.text, "than this process may open"));
    fixture_close(&x);
}

static void descriptors_not_taken_are_closed(void **state)
{
    struct fixture x = fixture_open();
    uint8_t out[64];

    (void)state;
    raw_send(x.peer, out, frame_bytes(out, 1, 5, 4), 4, 30);
    assert_int_equal(zp_stream_read(x.s, NULL), 0);
    fixture_close(&x);
}

static void garbage(void **state)
{
    static const struct {
        const char *name, *bytes;
        size_t len;
        int rc;
    } rows[] = {
        { "a line of text", "GET / HTTP/1.1\r\n", 16, -EPROTO },
        { "a body too long", "zsh\1\1\0\1\0\1\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, -EMSGSIZE },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct fixture x = fixture_open();
        struct zp_frame f;
        const uint8_t *body;
        int fds[ZP_FDS_MAX];
        struct zb_err err = { 0 };

        raw_send(x.peer, rows[i].bytes, rows[i].len, 0, 0);
        for (unsigned again = 0; again < 2; again++) { /* it stays lost */
            assert_int_equal(zp_stream_read(x.s, NULL), 0);
            if (zp_stream_next(x.s, &f, &body, fds, &err) != rows[i].rc)
                fail_msg("%s: '%s'", rows[i].name, err.text);
        }
        assert_int_equal(err.code, rows[i].rc);
        fixture_close(&x);
    }
}

static void the_end_after_every_byte(void **state)
{
    uint8_t out[ZP_HEADER_BYTES + 3];
    size_t len = frame_bytes(out, 5, 3, 0);

    (void)state;
    for (size_t n = 0; n <= len; n++) {
        struct fixture x = fixture_open();
        struct zb_err err = { 0 };

        if (n > 0) {
            raw_send(x.peer, out, n, 0, 0);
            assert_int_equal(zp_stream_read(x.s, NULL), 0);
        }
        zb_close_fd(&x.peer);
        if (n == len)
            expect_frame(x.s, 5, 3, 0, 0);
        expect_none(x.s);
        assert_int_equal(zp_stream_read(x.s, &err), -ECONNRESET);
        assert_int_equal(strstr(err.text, "in the middle") != NULL, n > 0 && n < len);
        fixture_close(&x);
    }
}

/* ---- sending */

static const struct zp_frame request = { .method = ZP_PING, .kind = ZP_REQUEST, .tag = 9 };

static void what_is_sent(void **state)
{
    struct fixture x = fixture_open();
    Zp__JobRef ref = ZP__JOB_REF__INIT;
    uint8_t got[3 * ZP_HEADER_BYTES + 7], want[sizeof(got)];
    struct zp_frame f = request;

    (void)state;
    ref.job = 300;
    assert_int_equal(zp_stream_send(x.s, request, NULL, NULL, NULL, 0), 0);
    assert_int_equal(zp_stream_send(x.s, request, &ref.base, NULL, NULL, 0), 0);
    assert_int_equal(zp_stream_send(x.s, request, NULL, "text", NULL, 0), 0);
    assert_int_equal(zp_stream_pending(x.s), sizeof(got));
    assert_int_equal(zp_stream_write(x.s), 0);
    assert_int_equal(zp_stream_pending(x.s), 0);
    assert_int_equal(recv(x.peer, got, sizeof(got), MSG_WAITALL), sizeof(got));
    zp_frame_put(&f, want);
    f.body_bytes = 3;
    zp_frame_put(&f, want + ZP_HEADER_BYTES);
    memcpy(want + 2 * ZP_HEADER_BYTES, "\x08\xac\x02", 3);
    f.body_bytes = 4;
    zp_frame_put(&f, want + 2 * ZP_HEADER_BYTES + 3);
    memcpy(want + 3 * ZP_HEADER_BYTES + 3, "text", 4);
    assert_memory_equal(got, want, sizeof(got));
    fixture_close(&x);
}

static int send_fails; /* with this code; 0: it does not */

/* Replaces the C library's, for the stream too. */
ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
    if (send_fails) {
        errno = send_fails;
        return -1;
    }
    return syscall(SYS_sendmsg, fd, msg, flags);
}

/* A temporary lack of memory is not the end of the connection: everything is sent later. */
static void no_room_in_the_system(void **state)
{
    static const struct {
        int code, rc;
    } rows[] = {
        { ENOBUFS, 1 }, { ENOMEM, 1 },     { ETOOMANYREFS, 1 },
        { EAGAIN, 0 },  { EPIPE, -EPIPE }, { ECONNRESET, -ECONNRESET },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct fixture x = fixture_open();
        uint8_t got[ZP_HEADER_BYTES];

        assert_int_equal(zp_stream_send(x.s, request, NULL, NULL, NULL, 0), 0);
        send_fails = rows[i].code;
        assert_int_equal(zp_stream_write(x.s), rows[i].rc);
        send_fails = 0;
        assert_int_equal(zp_stream_pending(x.s), ZP_HEADER_BYTES);
        if (rows[i].rc >= 0) {
            assert_int_equal(zp_stream_write(x.s), 0);
            assert_int_equal(recv(x.peer, got, sizeof(got), MSG_WAITALL), sizeof(got));
        }
        fixture_close(&x);
    }
}

/* Descriptors count while they are queued, and until the peer has received them. */
static void descriptors_on_their_way(void **state)
{
    struct fixture x = fixture_open();
    int fd = file_of(1), fds[2] = { fd, fd };
    uint8_t got[ZP_HEADER_BYTES];

    (void)state;
    assert_int_equal(zp_stream_fds(x.s), 0);
    assert_int_equal(zp_stream_send(x.s, request, NULL, NULL, fds, 2), 0);
    assert_int_equal(zp_stream_send(x.s, request, NULL, NULL, fds, 1), 0);
    assert_int_equal(zp_stream_fds(x.s), 3);
    assert_int_equal(zp_stream_write(x.s), 0);
    assert_int_equal(zp_stream_pending(x.s), 0);
    assert_int_equal(zp_stream_fds(x.s), 3); /* sent, but not received */
    assert_int_equal(recv(x.peer, got, sizeof(got), MSG_WAITALL), sizeof(got));
    assert_int_equal(recv(x.peer, got, sizeof(got), MSG_WAITALL), sizeof(got));
    assert_int_equal(zp_stream_fds(x.s), 0);
    zb_close_fd(&fd);
    fixture_close(&x);
}

static void a_body_too_long_is_not_queued(void **state)
{
    struct fixture x = fixture_open();
    Zp__NotePut note = ZP__NOTE_PUT__INIT;
    static uint8_t data[ZP_BODY_MAX];
    static char text[ZP_BODY_MAX + 2];

    (void)state;
    note.data.data = data;
    note.data.len = sizeof(data); /* plus its tag and length */
    assert_int_equal(zp_stream_send(x.s, request, &note.base, NULL, NULL, 0), -EMSGSIZE);
    memset(text, 'x', ZP_BODY_MAX + 1);
    assert_int_equal(zp_stream_send(x.s, request, NULL, text, NULL, 0), -EMSGSIZE);
    assert_int_equal(zp_stream_pending(x.s), 0);
    text[ZP_BODY_MAX] = '\0';
    assert_int_equal(zp_stream_send(x.s, request, NULL, text, NULL, 0), 0);
    assert_int_equal(zp_stream_pending(x.s), ZP_HEADER_BYTES + ZP_BODY_MAX);
    fixture_close(&x);
}

static void a_peer_that_does_not_read(void **state)
{
    struct fixture x = fixture_open();
    struct zp_stream *other;
    static char text[ZP_BODY_MAX + 1];
    unsigned sent = 0, got = 0;
    int rc;

    (void)state;
    memset(text, 'x', ZP_BODY_MAX);
    do {
        struct zp_frame f = request;
        int fd = file_of(1000 + sent);

        f.tag = sent;
        rc = zp_stream_send(x.s, f, NULL, text + sent, &fd, sent % 3 == 0);
        zb_close_fd(&fd);
        sent += rc == 0;
        if (sent == 40)
            assert_int_equal(zp_stream_write(x.s), 0);
    } while (rc == 0);
    assert_int_equal(rc, -ENOBUFS);
    assert_true(zp_stream_pending(x.s) <= ZP_STREAM_OUT_MAX);
    assert_true(zp_stream_pending(x.s) > ZP_STREAM_OUT_MAX - ZP_HEADER_BYTES - ZP_BODY_MAX);

    /* The peer reads: everything is there, in order, and the sender is as new. */
    assert_int_equal(zp_stream_new(&other, x.peer), 0);
    x.peer = -1;
    while (got < sent) {
        struct zp_frame f;
        const uint8_t *body;
        int fds[ZP_FDS_MAX];

        assert_int_equal(zp_stream_write(x.s), 0);
        rc = zp_stream_read(other, NULL);
        assert_true(rc == 0 || rc == -EAGAIN);
        while ((rc = zp_stream_next(other, &f, &body, fds, NULL)) == 1) {
            assert_int_equal(f.tag, got);
            assert_int_equal(f.body_bytes, ZP_BODY_MAX - got);
            assert_int_equal(f.fds, got % 3 == 0);
            if (f.fds) {
                assert_int_equal(size_of(fds[0]), 1000 + got);
                zb_close_fd(&fds[0]);
            }
            got++;
        }
        assert_int_equal(rc, 0);
    }
    assert_int_equal(zp_stream_pending(x.s), 0);
    assert_int_equal(zp_stream_send(x.s, request, NULL, NULL, NULL, 0), 0);
    zp_stream_free(other);
    fixture_close(&x);
}

static void a_peer_that_is_gone(void **state)
{
    struct fixture x = fixture_open();

    (void)state;
    zb_close_fd(&x.peer);
    assert_int_equal(zp_stream_send(x.s, request, NULL, "x", NULL, 0), 0);
    assert_int_equal(zp_stream_write(x.s), -EPIPE); /* without SIGPIPE */
    fixture_close(&x);
}

/** Frames of any length, with and without descriptors, through a socket with a small buffer: what
 * arrives is what was sent. */
static void random_traffic(void **state)
{
    uint64_t seed = 7;

    (void)state;
    for (unsigned round = 0; round < 20; round++) {
        struct fixture x = fixture_open();
        struct zp_stream *other;
        unsigned sent = 0, got = 0;
        uint32_t lengths[60];
        unsigned nfds[60];
        static char text[ZP_BODY_MAX + 1];
        int small = 4096;

        memset(text, 'x', ZP_BODY_MAX);
        (void)setsockopt(zp_stream_fd(x.s), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
        assert_int_equal(zp_stream_new(&other, x.peer), 0);
        x.peer = -1; /* owned by the other stream */
        while (got < ZB_COUNT(lengths)) {
            struct zp_frame f = request;
            const uint8_t *body;
            int fds[ZP_FDS_MAX], rc;

            if (sent < ZB_COUNT(lengths) && ztest_random(&seed) % 2) {
                lengths[sent] =
                    (uint32_t)(ztest_random(&seed) % (ztest_random(&seed) % 4 ? 200 : ZP_BODY_MAX));
                nfds[sent] = ztest_random(&seed) % 3 ? 0 : (unsigned)(ztest_random(&seed) % 5);
                for (unsigned i = 0; i < nfds[sent]; i++)
                    fds[i] = file_of(10 * sent + i);
                f.tag = sent;
                assert_int_equal(zp_stream_send(x.s, f, NULL, text + ZP_BODY_MAX - lengths[sent],
                                                fds, nfds[sent]),
                                 0);
                for (unsigned i = 0; i < nfds[sent]; i++)
                    zb_close_fd(&fds[i]);
                sent++;
            }
            if (ztest_random(&seed) % 3 == 0)
                assert_int_equal(zp_stream_write(x.s), 0);
            rc = zp_stream_read(other, NULL);
            assert_true(rc == 0 || rc == -EAGAIN);
            while ((rc = zp_stream_next(other, &f, &body, fds, NULL)) == 1) {
                assert_int_equal(f.tag, got);
                assert_int_equal(f.body_bytes, lengths[got]);
                assert_int_equal(f.fds, nfds[got]);
                for (unsigned i = 0; i < f.fds; i++) {
                    assert_int_equal(size_of(fds[i]), 10 * got + i);
                    zb_close_fd(&fds[i]);
                }
                got++;
            }
            assert_int_equal(rc, 0);
        }
        zp_stream_free(other);
        fixture_close(&x);
    }
}

/* ---- no memory, no descriptors */

static void new_with_every_failure(void **state)
{
    bool failed = true;

    (void)state;
    for (unsigned nth = 1; failed; nth++) {
        struct zp_stream *s = NULL;
        int fds[2], rc;

        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        alloc_fail(nth, 1);
        rc = zp_stream_new(&s, fds[0]);
        failed = alloc_failed();
        assert_true(failed || nth > 1); /* there is an allocation to fail */
        assert_int_equal(rc, failed ? -ENOMEM : 0);
        if (failed) {
            assert_null(s);
            assert_int_equal(close(fds[0]), 0); /* the descriptors are still ours */
        } else {
            assert_true(fcntl(fds[0], F_GETFL) & O_NONBLOCK);
            assert_true(fcntl(fds[0], F_GETFD) & FD_CLOEXEC);
        }
        zp_stream_free(s);
        close(fds[1]);
        assert_true(nth < 10);
    }
}

static void send_with_every_failure(void **state)
{
    bool failed = true;

    (void)state;
    for (unsigned nth = 1; failed; nth++) {
        struct fixture x = fixture_open();
        int fds[2] = { file_of(70), file_of(71) };
        int rc;

        alloc_fail(nth, 1);
        rc = zp_stream_send(x.s, request, NULL, "abc", fds, 2);
        failed = alloc_failed();
        assert_true(failed || nth > 1); /* there is an allocation to fail */
        assert_int_equal(rc, failed ? -ENOMEM : 0);
        assert_int_equal(zp_stream_pending(x.s), failed ? 0 : ZP_HEADER_BYTES + 3);
        rc = zp_stream_send(x.s, request, NULL, "abc", fds, 2); /* works as if nothing had failed */
        assert_int_equal(rc, 0);
        zb_close_fd(&fds[0]);
        zb_close_fd(&fds[1]);
        fixture_close(&x);
        assert_true(nth < 10);
    }
}

static void send_without_free_descriptors(void **state)
{
    struct fixture x = fixture_open();
    struct rlimit old, tight;
    int fds[2] = { file_of(70), file_of(71) };
    int next = dup(x.peer);
    int rc;

    (void)state;
    assert_true(next >= 0);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    tight = old;
    tight.rlim_cur = (rlim_t)next + 1; /* room for one of the two */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
    rc = zp_stream_send(x.s, request, NULL, "abc", fds, 2);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(rc, -EMFILE);
    assert_int_equal(zp_stream_pending(x.s), 0);
    zb_close_fd(&fds[0]);
    zb_close_fd(&fds[1]);
    fixture_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_by_byte),
        cmocka_unit_test(many_frames_at_once),
        cmocka_unit_test(nothing_is_received_while_a_frame_waits),
        cmocka_unit_test(the_longest_frames),
        cmocka_unit_test(descriptors),
        cmocka_unit_test(descriptors_behind_other_frames),
        cmocka_unit_test(descriptors_without_end),
        cmocka_unit_test(more_descriptors_than_the_process_may_open),
        cmocka_unit_test(descriptors_not_taken_are_closed),
        cmocka_unit_test(garbage),
        cmocka_unit_test(the_end_after_every_byte),
        cmocka_unit_test(what_is_sent),
        cmocka_unit_test(no_room_in_the_system),
        cmocka_unit_test(descriptors_on_their_way),
        cmocka_unit_test(a_body_too_long_is_not_queued),
        cmocka_unit_test(a_peer_that_does_not_read),
        cmocka_unit_test(a_peer_that_is_gone),
        cmocka_unit_test(random_traffic),
        cmocka_unit_test(new_with_every_failure),
        cmocka_unit_test(send_with_every_failure),
        cmocka_unit_test(send_without_free_descriptors),
    };

    zp_stream_free(NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
