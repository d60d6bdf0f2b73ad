#include "tests/ztest.h"

#include "tests/unit/daemon/server_fixture.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "proto/shard.pb-c.h"

static struct server_fixture x;
static struct zsd_quota others; /* charges of other, absent connections */

static int teardown(void **state)
{
    zsd_quota_leave(&others);
    return sf_teardown(state);
}

/* ---- fatal errors and answered ones: PROTOCOL.md, section 2 */

enum outcome {
    ANSWERED,  /* with `code`, and the connection goes on */
    HUNG_UP,   /* answered with `code`, then hung up */
    DROPPED,   /* hung up, without an answer, and counted */
    UNNOTICED, /* there is no answer, and the connection goes on */
};

#define MAGIC 'z', 's', 'h', 1
#define HEAD(bytes, method, kind, fds)                                                \
    MAGIC, (bytes)&0xff, (bytes) >> 8 & 0xff, (bytes) >> 16 & 0xff, 0, (method)&0xff, \
        (method) >> 8, kind, fds, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0

static const struct {
    const char *name;
    bool greeted;
    uint8_t bytes[64];
    size_t len;
    unsigned fds; /* sent along */
    enum outcome outcome;
    int code;
    const char *says;
} cases[] = {
    /* bytes that are no frame */
    { "garbage", true, { 0xff, 0xfe, 0xfd }, 3, 0, DROPPED, 0, NULL },
    { "a browser", true, { 'G', 'E', 'T', ' ', '/', '\r', '\n' }, 7, 0, DROPPED, 0, NULL },
    { "another magic number", true, { 'z', 's', 'h', 2 }, 4, 0, DROPPED, 0, NULL },
    { "a body that is too long", true, { HEAD(65537, ZP_PING, 1, 0) }, 24, 0, DROPPED, 0, NULL },
    { "no kind", true, { HEAD(0, ZP_PING, 0, 0) }, 24, 0, DROPPED, 0, NULL },
    { "an unknown kind", true, { HEAD(0, ZP_PING, 5, 0) }, 24, 0, DROPPED, 0, NULL },
    { "garbage before hello", false, { 1 }, 1, 0, DROPPED, 0, NULL },
    /* descriptors */
    { "5 descriptors announced", true, { HEAD(0, ZP_PING, 1, 5) }, 24, 0, DROPPED, 0, NULL },
    { "one announced, none sent", true, { HEAD(0, ZP_PING, 1, 1) }, 24, 0, DROPPED, 0, NULL },
    { "one sent, none announced", true, { HEAD(0, ZP_PING, 1, 0) }, 24, 1, DROPPED, 0, NULL },
    { "one announced and sent", true, { HEAD(0, ZP_PING, 1, 1) }, 24, 1, DROPPED, 0, NULL },
    { "four announced and sent", true, { HEAD(0, ZP_PING, 1, 4) }, 24, 4, DROPPED, 0, NULL },
    { "five sent", true, { HEAD(0, ZP_PING, 1, 4) }, 24, 5, DROPPED, 0, NULL },
    { "eight sent", true, { HEAD(0, ZP_PING, 1, 4) }, 24, 8, DROPPED, 0, NULL },
    { "one sent one-way", true, { HEAD(0, ZP_RELEASE, 3, 1) }, 24, 1, DROPPED, 0, NULL },
    { "one with hello", false, { HEAD(0, ZP_HELLO, 1, 1) }, 24, 1, DROPPED, 0, NULL },
    /* kinds */
    { "a reply", true, { HEAD(0, ZP_PING, 2, 0) }, 24, 0, DROPPED, 0, NULL },
    { "an event", true, { HEAD(0, ZP_EVENT_PEER_LOST, 4, 0) }, 24, 0, DROPPED, 0, NULL },
    { "a request sent one-way", true, { HEAD(0, ZP_PING, 3, 0) }, 24, 0, DROPPED, 0, NULL },
    { "one-way before hello", false, { HEAD(0, ZP_RELEASE, 3, 0) }, 24, 0, DROPPED, 0, NULL },
    { "unknown one-way before hello", false, { HEAD(0, 99, 3, 0) }, 24, 0, DROPPED, 0, NULL },
    { "a one-way request",
      true,
      { HEAD(0, ZP_RELEASE, 1, 0) },
      24,
      0,
      ANSWERED,
      -EINVAL,
      "release is one-way" },
    { "release", true, { HEAD(0, ZP_RELEASE, 3, 0) }, 24, 0, UNNOTICED, 0, NULL },
    /* hello */
    { "ping before hello",
      false,
      { HEAD(0, ZP_PING, 1, 0) },
      24,
      0,
      HUNG_UP,
      -EPROTO,
      "the first request is hello" },
    { "unknown method before hello",
      false,
      { HEAD(0, 99, 1, 0) },
      24,
      0,
      HUNG_UP,
      -EPROTO,
      "the first request is hello" },
    { "hello without versions",
      false,
      { HEAD(0, ZP_HELLO, 1, 0) },
      24,
      0,
      HUNG_UP,
      -EPROTONOSUPPORT,
      "speaks 0 to 0, this daemon 1 to 1" },
    { "hello of a later version",
      false,
      { HEAD(4, ZP_HELLO, 1, 0), 8, 2, 16, 3 },
      28,
      0,
      HUNG_UP,
      -EPROTONOSUPPORT,
      "speaks 2 to 3, this daemon 1 to 1" },
    { "hello of versions upside down",
      false,
      { HEAD(4, ZP_HELLO, 1, 0), 8, 2, 16, 1 },
      28,
      0,
      HUNG_UP,
      -EPROTONOSUPPORT,
      "speaks 2 to 1" },
    { "hello of many versions",
      false,
      { HEAD(4, ZP_HELLO, 1, 0), 8, 1, 16, 9 },
      28,
      0,
      ANSWERED,
      0,
      NULL },
    { "hello that is not a message",
      false,
      { HEAD(1, ZP_HELLO, 1, 0), 0xff },
      25,
      0,
      ANSWERED,
      -EPROTO,
      "1 bytes that are not a valid Hello" },
    { "a second hello",
      true,
      { HEAD(4, ZP_HELLO, 1, 0), 8, 1, 16, 1 },
      28,
      0,
      ANSWERED,
      -EPROTO,
      "hello was already sent" },
    /* methods and bodies */
    { "method 0", true, { HEAD(0, 0, 1, 0) }, 24, 0, ANSWERED, -ENOSYS, "knows no method 0" },
    { "the first that is none",
      true,
      { HEAD(0, ZP_METHOD_END, 1, 0) },
      24,
      0,
      ANSWERED,
      -ENOSYS,
      "knows no method" },
    { "the last number",
      true,
      { HEAD(0, 65535, 1, 0) },
      24,
      0,
      ANSWERED,
      -ENOSYS,
      "knows no method 65535" },
    { "an unknown method with a body",
      true,
      { HEAD(2, 99, 1, 0), 0xff, 0xff },
      26,
      0,
      ANSWERED,
      -ENOSYS,
      "knows no method 99" },
    { "an unknown one-way method", true, { HEAD(0, 99, 3, 0) }, 24, 0, UNNOTICED, 0, NULL },
    { "a body that is not a message",
      true,
      { HEAD(2, ZP_LIST, 1, 0), 0x0a, 9 },
      26,
      0,
      ANSWERED,
      -EPROTO,
      "2 bytes that are not a valid ListRequest" },
    { "a text with a NUL",
      true,
      { HEAD(4, ZP_LIST, 1, 0), 0x0a, 2, 'a', 0 },
      28,
      0,
      ANSWERED,
      -EPROTO,
      "contains a" },
    { "a one-way body that is not a message",
      true,
      { HEAD(1, ZP_RELEASE, 3, 0), 0xff },
      25,
      0,
      UNNOTICED,
      0,
      NULL },
    { "a refusal of the core's",
      true,
      { HEAD(0, ZP_JOBS, 1, 0) },
      24,
      0,
      ANSWERED,
      -ENOENT,
      "no such job" },
    { "ping with unknown fields",
      true,
      { HEAD(2, ZP_PING, 1, 0), 0x78, 1 },
      26,
      0,
      ANSWERED,
      0,
      NULL },
};

/** A pipe: once its read end was received, every other copy has been closed. */
static void pipe_closed(const int p[2])
{
    char c;

    assert_int_equal(close(p[1]), 0);
    assert_int_equal(read(p[0], &c, 1), 0); /* end of file: the other side has no holder */
    assert_int_equal(close(p[0]), 0);
}

static void protocol_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        uint64_t dropped = x.daemon.stats.clients_dropped;
        unsigned gone = core_double.gone;
        int fd = cases[i].greeted ? sf_client(&x) : sf_connect(&x);
        struct zp_frame frame = { 0 };
        char body[512] = "";
        int p[2], fds[8], got;

        assert_int_equal(pipe2(p, O_CLOEXEC), 0);
        for (unsigned k = 0; k < 8; k++)
            fds[k] = p[1];
        sf_send_fds(fd, cases[i].bytes, cases[i].len, fds, cases[i].fds);
        sf_pump(&x);
        got = sf_receive(fd, &frame, body, sizeof(body));
        if (got != (cases[i].outcome == DROPPED ? -1 : cases[i].outcome == UNNOTICED ? 0 : 1))
            fail_msg("%s: received %d, code %d '%s'", cases[i].name, got, frame.code, body);
        if (got == 1 && (frame.kind != ZP_REPLY || frame.tag != 5 || frame.code != cases[i].code ||
                         (cases[i].says && !strstr(body, cases[i].says))))
            fail_msg("%s: kind %u tag %llu code %d '%s'", cases[i].name, frame.kind,
                     (unsigned long long)frame.tag, frame.code, body);
        if (x.daemon.stats.clients_dropped - dropped != (cases[i].outcome == DROPPED))
            fail_msg("%s: %llu dropped", cases[i].name,
                     (unsigned long long)(x.daemon.stats.clients_dropped - dropped));
        pipe_closed(p);
        if (cases[i].outcome == HUNG_UP || cases[i].outcome == DROPPED) {
            if (core_double.gone != gone + 1 || x.daemon.clients != 0)
                fail_msg("%s: the daemon still has it", cases[i].name);
            sf_dead(&x, fd);
            continue;
        }
        if (!cases[i].greeted && cases[i].code == 0)
            sf_alive(&x, fd);
        if (!cases[i].greeted && cases[i].code != 0)
            sf_hello(fd, 1, 1, "again"); /* hello may still come */
        if (cases[i].greeted)
            sf_alive(&x, fd);
        assert_int_equal(close(fd), 0);
        sf_pump(&x);
        if (core_double.gone != gone + 1 || x.daemon.clients != 0 || x.daemon.reqs != 0)
            fail_msg("%s: the daemon still has it", cases[i].name);
    }
    assert_int_equal(core_double.released, 1); /* by the well-formed one of them */
}

/** Each method reaches its handler, decoded as its own type. */
static void every_method(void **state)
{
    int fd = sf_client(&x);

    (void)state;
    for (uint16_t m = ZP_HELLO + 1; m < ZP_METHOD_END; m++) {
        unsigned handled = core_double.handled;
        struct zp_frame frame;

        if (m == ZP_PING || m == ZP_RELEASE || !zp_method_info(m))
            continue;
        sf_send(fd, ZP_REQUEST, m, m, NULL, 0);
        sf_pump(&x);
        core_answer_all(0);
        sf_pump(&x);
        if (core_double.handled != handled + 1)
            fail_msg("method %u reached no handler", m);
        do
            assert_int_equal(sf_receive(fd, &frame, NULL, 0), 1);
        while (frame.kind == ZP_EVENT);
        assert_int_equal(frame.method, m);
        assert_int_equal(frame.tag, m);
    }
    assert_int_equal(close(fd), 0);
}

static void what_hello_says(void **state)
{
    static const struct {
        const char *said, *kept;
    } programs[] = {
        { "zgpt", "zgpt" },
        { "", "" },
        { "a \"b\" \\ c", "a ?b? ? c" },
        { "gr\xc3\xbc\xc3\x9f", "gr????" },
        { "0123456789012345678901234567890123456789012345678901234567890123456789",
          "012345678901234567890123456789012345678901234567890123456789012" },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(programs); i++) {
        int fd = sf_connect(&x);
        struct zp_frame frame;
        char body[512];
        Zp__HelloReply *reply;
        struct zsd_link *link;

        sf_hello(fd, 0, 7, programs[i].said);
        sf_pump(&x);
        assert_int_equal(sf_receive(fd, &frame, body, sizeof(body)), 1);
        assert_int_equal(frame.code, 0);
        reply = zp__hello_reply__unpack(NULL, frame.body_bytes, (const uint8_t *)body);
        assert_non_null(reply);
        assert_int_equal(reply->version, 1);
        assert_string_equal(reply->server, "zshardd " ZSHARD_VERSION);
        assert_int_equal(reply->instance.len, 16);
        assert_memory_equal(reply->instance.data, x.daemon.instance, 16);
        assert_int_equal(reply->page_elems, 262144);
        assert_int_equal(reply->block_elems, 4096);
        assert_int_equal(reply->shards_max, 1024);
        assert_int_equal(reply->pid, getpid());
        zp__hello_reply__free_unpacked(reply, NULL);
        link = zb_container_of(x.daemon.server->links.next, struct zsd_link, node);
        assert_string_equal(link->conn.program, programs[i].kept);
        assert_int_equal(link->conn.uid, geteuid());
        assert_int_equal(link->conn.pid, getpid());
        assert_int_equal(close(fd), 0);
        sf_pump(&x);
    }
}

/** Two frames, cut in every possible way into two pieces. */
static void cut_anywhere(void **state)
{
    struct zp_frame ping = { .kind = ZP_REQUEST, .method = ZP_PING, .tag = 9 };
    uint8_t bytes[2 * ZP_HEADER_BYTES];
    int fd = sf_client(&x);

    (void)state;
    zp_frame_put(&ping, bytes);
    zp_frame_put(&ping, bytes + ZP_HEADER_BYTES);
    for (size_t cut = 1; cut < sizeof(bytes); cut++) {
        sf_send_bytes(fd, bytes, cut);
        sf_pump(&x);
        sf_send_bytes(fd, bytes + cut, sizeof(bytes) - cut);
        assert_int_equal(sf_reply(&x, fd, 9), 0);
        assert_int_equal(sf_reply(&x, fd, 9), 0);
    }
    assert_int_equal(close(fd), 0);
}

static void gone_in_the_middle_of_a_frame(void **state)
{
    int fd = sf_client(&x);

    (void)state;
    sf_send_bytes(fd, "zsh\1\5", 5);
    sf_pump(&x);
    assert_int_equal(core_double.gone, 0);
    assert_int_equal(close(fd), 0);
    sf_pump(&x);
    assert_int_equal(core_double.gone, 1);
    assert_int_equal(x.daemon.stats.clients_dropped, 0); /* it left, which is not an error */
}

/* ---- answers */

static void an_answer_with_a_descriptor(void **state)
{
    int fd = sf_client(&x), p[2], got;
    struct zp_frame frame;

    (void)state;
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    core_double.fd = p[1];
    sf_send(fd, ZP_REQUEST, ZP_JOB_OPEN, 3, NULL, 0);
    sf_pump(&x);
    assert_int_equal(sf_receive_fd(fd, &frame, NULL, 0, &got), 1);
    assert_int_equal(frame.code, 0);
    assert_int_equal(frame.fds, 1);
    assert_true(got >= 0);
    assert_int_equal(write(got, "x", 1), 1); /* it is the pipe */
    assert_int_equal(close(got), 0);
    assert_int_equal(read(p[0], (char[1]){ 0 }, 1), 1);
    pipe_closed(p);
    assert_int_equal(close(fd), 0);
}

static void a_descriptor_that_cannot_be_duplicated(void **state)
{
    int fd = sf_client(&x);
    struct rlimit before, low;
    struct zp_frame frame;
    char body[256];

    (void)state;
    core_double.fd = 0;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = 3; /* open descriptors stay open */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    sf_send(fd, ZP_REQUEST, ZP_JOB_OPEN, 3, NULL, 0);
    (void)uv_run(&x.daemon.loop->uv, UV_RUN_NOWAIT);
    (void)uv_run(&x.daemon.loop->uv, UV_RUN_NOWAIT);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(sf_receive(fd, &frame, body, sizeof(body)), 1);
    assert_int_equal(frame.code, -EMFILE);
    assert_non_null(strstr(body, "the answer cannot be sent"));
    sf_alive(&x, fd);
    assert_int_equal(close(fd), 0);
}

static void an_answer_that_is_too_long(void **state)
{
    int fd = sf_client(&x);

    (void)state;
    sf_send(fd, ZP_REQUEST, ZP_TIERS, 3, NULL, 0);
    assert_int_equal(sf_reply(&x, fd, 3), -EMSGSIZE);
    sf_alive(&x, fd);
    assert_int_equal(close(fd), 0);
}

static void answers_out_of_order(void **state)
{
    int fd = sf_client(&x);

    (void)state;
    sf_send(fd, ZP_REQUEST, ZP_FETCH, 1, NULL, 0);
    sf_send(fd, ZP_REQUEST, ZP_PING, 2, NULL, 0);
    assert_int_equal(sf_reply(&x, fd, 2), 0);
    assert_int_equal(x.daemon.reqs, 1);
    core_answer(10);
    assert_int_equal(sf_reply(&x, fd, 1), 0);
    assert_int_equal(x.daemon.reqs, 0);
    assert_int_equal(close(fd), 0);
}

static void an_event_before_the_answer(void **state)
{
    int fd = sf_client(&x);
    struct zp_frame frame;
    char body[64];

    (void)state;
    sf_send(fd, ZP_REQUEST, ZP_NORMS, 4, NULL, 0);
    sf_pump(&x);
    assert_int_equal(sf_receive(fd, &frame, body, sizeof(body)), 1);
    assert_int_equal(frame.kind, ZP_EVENT);
    assert_int_equal(frame.method, ZP_EVENT_PEER_LOST);
    assert_int_equal(frame.tag, 0);
    assert_memory_equal(body, "\x08\x07", 3); /* job 7 */
    assert_int_equal(sf_reply(&x, fd, 4), 0);
    assert_int_equal(close(fd), 0);
}

static void no_event_before_hello(void **state)
{
    int fd = sf_connect(&x);
    struct zp_frame frame;
    struct zsd_link *link;

    (void)state;
    sf_pump(&x);
    link = zb_container_of(x.daemon.server->links.next, struct zsd_link, node);
    zsd_event(&link->conn, ZP_EVENT_PEER_LOST, NULL);
    sf_pump(&x);
    assert_int_equal(sf_receive(fd, &frame, NULL, 0), 0);
    assert_int_equal(close(fd), 0);
}

/* ---- the client goes away */

static void gone_with_unanswered_requests(void **state)
{
    int fd = sf_client(&x);

    (void)state;
    for (uint64_t tag = 0; tag < 10; tag++)
        sf_send(fd, ZP_REQUEST, ZP_FETCH, tag, NULL, 0);
    sf_pump(&x);
    assert_int_equal(core_double.count, 10);
    assert_non_null(core_double.held[0]->conn);
    assert_int_equal(close(fd), 0);
    sf_pump(&x);
    assert_int_equal(core_double.gone, 1);
    for (size_t i = 0; i < 10; i++)
        assert_null(core_double.held[i]->conn);
    assert_int_equal(x.daemon.clients, 0);
    assert_int_equal(x.daemon.reqs, 10); /* the core still works on them */
    core_answer_all(100);
    assert_int_equal(x.daemon.reqs, 0);
    assert_int_equal(x.daemon.stats.replies_lost, 10);
}

static void answered_from_inside_gone(void **state)
{
    int fd = sf_client(&x);

    (void)state;
    core_double.answer_when_gone = true;
    sf_send(fd, ZP_REQUEST, ZP_FETCH, 1, NULL, 0);
    sf_send(fd, ZP_REQUEST, ZP_FETCH, 2, NULL, 0);
    sf_pump(&x);
    assert_int_equal(close(fd), 0);
    sf_pump(&x);
    assert_int_equal(core_double.gone, 1);
    assert_int_equal(core_double.count, 0);
    assert_int_equal(x.daemon.reqs, 0);
}

static void gone_before_its_answer_is_sent(void **state)
{
    int fd = sf_client(&x);

    (void)state;
    sf_send(fd, ZP_REQUEST, ZP_FETCH, 1, NULL, 0);
    sf_pump(&x);
    core_answer(10); /* queued */
    assert_int_equal(close(fd), 0);
    sf_pump(&x);
    assert_int_equal(core_double.gone, 1);
    assert_int_equal(x.daemon.clients, 0);
}

static void the_server_closes_with_requests(void **state)
{
    int fd[3];

    (void)state;
    for (int i = 0; i < 3; i++) {
        fd[i] = sf_client(&x);
        sf_send(fd[i], ZP_REQUEST, ZP_FETCH, 1, NULL, 0);
    }
    sf_pump(&x);
    assert_int_equal(x.daemon.reqs, 3);
    zsd_server_close(&x.daemon);
    assert_int_equal(core_double.gone, 3);
    assert_int_equal(x.daemon.clients, 0);
    core_answer_all(10);
    assert_int_equal(x.daemon.reqs, 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(close(fd[i]), 0);
}

/* ---- back-pressure */

/** Sends requests, with tags from `first` on, as many as the socket takes; returns how many. */
static unsigned flood(int fd, uint16_t method, unsigned first, unsigned max)
{
    struct zp_frame frame = { .kind = ZP_REQUEST, .method = method };
    uint8_t bytes[ZP_HEADER_BYTES];
    unsigned n = 0;

    for (; n < max; n++) {
        frame.tag = first + n;
        zp_frame_put(&frame, bytes);
        if (send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL) != sizeof(bytes))
            break;
    }
    return n;
}

/** Sends one request with a body; false: the socket has no room for it. */
static bool try_send(int fd, uint16_t method, uint64_t tag, const uint8_t *body, size_t len)
{
    struct zp_frame frame = {
        .kind = ZP_REQUEST, .method = method, .tag = tag, .body_bytes = (uint32_t)len
    };
    uint8_t bytes[ZP_HEADER_BYTES + 512];

    zp_frame_put(&frame, bytes);
    memcpy(bytes + ZP_HEADER_BYTES, body, len);
    return send(fd, bytes, ZP_HEADER_BYTES + len, MSG_NOSIGNAL) == (ssize_t)(ZP_HEADER_BYTES + len);
}

static void too_many_requests(void **state)
{
    int fd = sf_client(&x);
    unsigned sent = 0, answered = 0;
    struct zp_frame frame;

    (void)state;
    for (unsigned i = 0; i < 30; i++) {
        sent += flood(fd, ZP_FETCH, sent, 100);
        sf_pump(&x);
    }
    assert_true(sent > ZSD_REQS_MAX);
    assert_int_equal(core_double.handled, ZSD_REQS_MAX); /* the others wait in the socket */
    assert_int_equal(x.daemon.reqs, ZSD_REQS_MAX);
    assert_int_equal(x.daemon.stats.sent_stalls, 1);
    core_answer(1);
    (void)uv_run(&x.daemon.loop->uv, UV_RUN_NOWAIT);
    assert_int_equal(core_double.handled, ZSD_REQS_MAX + 1);     /* after the core's work: */
    assert_int_equal(uv_backend_timeout(&x.daemon.loop->uv), 0); /* another turn follows */
    while (answered < 3000) {
        core_answer(1);
        sf_pump(&x);
        while (sf_receive(fd, &frame, NULL, 0) == 1)
            assert_int_equal(frame.tag, answered++); /* in the order of the answers */
        assert_true(x.daemon.reqs <= ZSD_REQS_MAX);
        sent += flood(fd, ZP_FETCH, sent, 3000 - sent);
        sf_pump(&x);
    }
    assert_int_equal(core_double.handled, 3000);
    sf_alive(&x, fd);
    assert_int_equal(close(fd), 0);
}

/** Requests that the double answers at once, from a client that does not read. */
static void too_many_bytes(void **state)
{
    int fd = sf_client(&x);
    struct zsd_link *link;
    unsigned sent, received = 0;
    struct zp_frame frame;

    (void)state;
    core_double.list_bytes = 60000;
    sent = flood(fd, ZP_LIST, 0, 400);
    assert_true(sent > 100);
    sf_pump(&x);
    link = zb_container_of(x.daemon.server->links.next, struct zsd_link, node);
    assert_true(zp_stream_pending(link->stream) > ZSD_OUT_HIGH);
    assert_true(zp_stream_pending(link->stream) <= ZSD_OUT_HIGH + ZP_BODY_MAX + ZP_HEADER_BYTES);
    assert_true(core_double.handled < sent);
    assert_int_equal(zsd_server_unsent(&x.daemon), zp_stream_pending(link->stream));
    while (received < sent) {
        int got = sf_receive(fd, &frame, NULL, 0);

        assert_true(got >= 0);
        if (got == 0) {
            sf_pump(&x);
            continue;
        }
        assert_int_equal(frame.tag, received++);
        sf_pump(&x);
        assert_true(zp_stream_pending(link->stream) <=
                    ZSD_OUT_HIGH + ZP_BODY_MAX + ZP_HEADER_BYTES);
    }
    assert_int_equal(core_double.handled, sent);
    sf_alive(&x, fd);
    assert_int_equal(close(fd), 0);
}

#define FETCHES     600u
#define FETCH_IDS   480u
#define FETCH_BYTES 19000u /* of each answer: all of them together exceed what a stream takes */

/** One event makes more answers than can be queued. The client reads, and gets them all. */
static void many_answers_at_once(void **state)
{
    static uint64_t ids[FETCH_IDS];
    int fd = sf_client(&x);
    Zp__Fetch q = ZP__FETCH__INIT;
    struct zp_frame frame;
    uint8_t body[512];
    size_t len;
    unsigned sent = 0, received = 0;

    (void)state;
    q.n_shards = FETCH_IDS;
    q.shards = ids;
    len = zp__fetch__get_packed_size(&q);
    assert_in_range(len, FETCH_IDS, sizeof(body));
    (void)zp__fetch__pack(&q, body);
    while (received < FETCHES) {
        for (unsigned i = 0; i < 20 && sent < FETCHES; i++)
            if (!try_send(fd, ZP_FETCH, sent, body, len))
                break;
            else
                sent++;
        sf_pump(&x);
        if (sent < FETCHES && x.daemon.reqs < ZSD_REQS_MAX && core_double.handled == sent)
            continue; /* as many as may be on their way at a time */
        core_answer_all(FETCH_BYTES);
        sf_pump(&x);
        assert_int_equal(x.daemon.stats.clients_dropped, 0);
        while (sf_receive(fd, &frame, NULL, 0) == 1) {
            assert_int_equal(frame.code, 0);
            assert_int_equal(frame.tag, received++);
            sf_pump(&x);
        }
    }
    sf_alive(&x, fd);
    assert_int_equal(close(fd), 0);
}

#define OPENS 50u

/** A client that asks for descriptors and does not read them gets a few; when it reads, it gets
 * them all. */
static void descriptors_that_nobody_reads(void **state)
{
    int fd = sf_client(&x);
    struct zsd_link *link = zb_container_of(x.daemon.server->links.next, struct zsd_link, node);
    struct zp_frame frame;
    unsigned received = 0;

    (void)state;
    core_double.fd = STDERR_FILENO;
    assert_int_equal(flood(fd, ZP_JOB_OPEN, 0, OPENS), OPENS);
    sf_pump(&x);
    assert_int_equal(zp_stream_fds(link->stream), ZSD_CONN_FDS_MAX);
    assert_int_equal(link->conn.quota.used[ZSD_LIMIT_ANSWER_FDS], ZSD_CONN_FDS_MAX);
    while (received < OPENS) {
        while (sf_receive(fd, &frame, NULL, 0) == 1)
            assert_int_equal(frame.tag, received++);
        assert_true(zp_stream_fds(link->stream) <= ZSD_CONN_FDS_MAX);
        (void)uv_run(&x.daemon.loop->uv, UV_RUN_ONCE); /* ZSD_LATER_MS at most */
    }
    sf_alive(&x, fd);
    assert_int_equal(close(fd), 0);
}

/** Requests that wait and are then all answered, from a client that does not read. */
static void never_reads(void **state)
{
    int fd = sf_client(&x), other = sf_client(&x);

    (void)state;
    for (unsigned sent = 0; sent < ZSD_REQS_MAX; sent += 128) {
        assert_int_equal(flood(fd, ZP_FETCH, 0, 128), 128);
        sf_pump(&x);
    }
    assert_int_equal(x.daemon.reqs, ZSD_REQS_MAX);
    core_answer_all(60000);
    assert_int_equal(x.daemon.reqs, 0);
    assert_int_equal(core_double.gone, 0); /* never from inside an answer */
    sf_pump(&x);
    assert_int_equal(core_double.gone, 1);
    assert_int_equal(x.daemon.stats.clients_dropped, 1);
    sf_alive(&x, other);
    assert_int_equal(close(fd), 0);
    assert_int_equal(close(other), 0);
}

/** An event never waits: it is sent, or its client is disconnected. */
static void events_to_one_that_never_reads(void **state)
{
    int fd = sf_client(&x);
    struct zsd_link *link = zb_container_of(x.daemon.server->links.next, struct zsd_link, node);
    Zp__JobEvent event = ZP__JOB_EVENT__INIT;
    char text[60001];

    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    event.text = text;
    for (unsigned i = 0; i < 400; i++)
        zsd_event(&link->conn, ZP_EVENT_JOB_FAILED, &event.base);
    assert_int_equal(core_double.gone, 0);
    sf_pump(&x);
    assert_int_equal(core_double.gone, 1);
    assert_int_equal(close(fd), 0);
}

static void dies_while_it_is_not_read_from(void **state)
{
    int fd = sf_client(&x);

    (void)state;
    for (unsigned sent = 0; sent < ZSD_REQS_MAX + 100; sent += 124) {
        assert_int_equal(flood(fd, ZP_FETCH, 0, 124), 124);
        sf_pump(&x);
    }
    assert_int_equal(core_double.handled, ZSD_REQS_MAX);
    assert_int_equal(close(fd), 0);
    sf_pump(&x);
    assert_int_equal(core_double.gone, 1);
    assert_int_equal(core_double.handled, ZSD_REQS_MAX);
    core_answer_all(1);
}

static void dies_with_bytes_on_their_way(void **state)
{
    int fd = sf_client(&x);

    (void)state;
    core_double.list_bytes = 60000;
    assert_true(flood(fd, ZP_LIST, 0, 100) > 50);
    sf_pump(&x);
    assert_int_equal(close(fd), 0);
    sf_pump(&x);
    assert_int_equal(core_double.gone, 1);
    assert_int_equal(x.daemon.clients, 0);
}

/** A client that does not read does not delay others. */
static void others_are_served(void **state)
{
    int slow = sf_client(&x), fast = sf_client(&x);

    (void)state;
    core_double.list_bytes = 60000;
    assert_true(flood(slow, ZP_LIST, 0, 200) > 50);
    for (unsigned i = 0; i < 50; i++)
        sf_alive(&x, fast);
    assert_int_equal(close(slow), 0);
    assert_int_equal(close(fast), 0);
}

/** Other clients of a user do not read, and take up all bytes that the user may have. A client that
 * reads gets one answer at a time. */
static void others_of_the_user_do_not_read(void **state)
{
    int fd = sf_client(&x);
    struct zsd_link *link = zb_container_of(x.daemon.server->links.next, struct zsd_link, node);
    uint64_t all = zsd_limit_max(&link->conn.quota, ZSD_LEVEL_USER, ZSD_LIMIT_ANSWER_BYTES);
    struct zb_err err = { 0 };

    (void)state;
    link->conn.quota.trusted = false; /* the user's limit applies to it */
    assert_int_equal(zsd_quota_join(&x.daemon, &others, ZSD_LEVEL_CONN, link->conn.uid), 0);
    zsd_limit_add(&others, ZSD_LIMIT_ANSWER_BYTES, all);
    for (unsigned i = 0; i < 20; i++)
        sf_alive(&x, fd);
    assert_int_equal(flood(fd, ZP_FETCH, 0, 3), 3);
    for (unsigned i = 0; i < 3; i++) {
        sf_pump(&x);
        assert_int_equal(x.daemon.reqs, 1);
        core_answer(1);
        assert_int_equal(sf_reply(&x, fd, i), 0);
    }
    assert_int_equal(x.daemon.reqs, 0);
    assert_int_equal(flood(fd, ZP_FETCH, 3, 1), 1);
    sf_pump(&x);
    assert_int_equal(
        zsd_req_waits(zb_container_of(link->conn.reqs.next, struct zsd_req, conn_node), &err), 0);
    zsd_link_touch(link);
    sf_alive(&x, fd); /* the request that it waits for may come */
    core_answer(1);
    sf_pump(&x);
    assert_int_equal(close(fd), 0);
}

/* ---- the turn */

static void an_idle_daemon_sleeps(void **state)
{
    int fd = sf_client(&x);

    (void)state;
    sf_pump(&x);
    assert_int_equal(uv_backend_timeout(&x.daemon.loop->uv),
                     -1); /* a client alone causes no wake-ups */
    sf_send(fd, ZP_REQUEST, ZP_FETCH, 1, NULL, 0);
    sf_pump(&x);
    assert_true(uv_backend_timeout(&x.daemon.loop->uv) >= 0); /* a request waits for a deadline */
    assert_true(sf_pump_until(&x, &core_double.ticks, 3));
    core_answer(1);
    assert_int_equal(sf_reply(&x, fd, 1), 0);
    assert_int_equal(uv_backend_timeout(&x.daemon.loop->uv), -1);
    core_double.busy = 1; /* an operation that no client asked for does the same */
    sf_alive(&x, fd);
    assert_true(uv_backend_timeout(&x.daemon.loop->uv) >= 0);
    core_double.busy = 0;
    assert_int_equal(close(fd), 0);
}

/** The answers of one turn are sent together: the client finds all of them at once. */
static void answers_share_a_turn(void **state)
{
    int fd = sf_client(&x);
    struct zp_frame frame;
    unsigned turns;

    (void)state;
    assert_int_equal(flood(fd, ZP_PING, 0, ZSD_FRAMES_TURN - 1), ZSD_FRAMES_TURN - 1);
    turns = core_double.turns;
    sf_pump(&x);
    assert_true(core_double.turns - turns <= 3);
    for (unsigned i = 0; i < ZSD_FRAMES_TURN - 1; i++) {
        assert_int_equal(sf_receive(fd, &frame, NULL, 0), 1);
        assert_int_equal(frame.tag, i);
    }
    assert_int_equal(close(fd), 0);
}

#define MANY 1500u

/** However much one client has sent, another one's request is handled in the next turn but one. */
static void a_flood_delays_by_a_turn(void **state)
{
    static uint8_t bytes[MANY * ZP_HEADER_BYTES];
    int fast = sf_client(&x), slow = sf_client(&x);
    struct zp_frame frame = { .kind = ZP_REQUEST, .method = ZP_PING };
    uint64_t before = x.daemon.stats.requests;
    unsigned turns;

    (void)state;
    for (unsigned i = 0; i < MANY; i++) {
        frame.tag = i;
        zp_frame_put(&frame, bytes + i * ZP_HEADER_BYTES);
    }
    assert_int_equal(send(fast, bytes, sizeof(bytes), MSG_NOSIGNAL), sizeof(bytes));
    while (x.daemon.stats.requests == before)
        (void)uv_run(&x.daemon.loop->uv, UV_RUN_NOWAIT);
    sf_send(slow, ZP_REQUEST, ZP_PING, 1, NULL, 0);
    turns = core_double.turns;
    while (sf_receive(slow, &frame, NULL, 0) == 0)
        (void)uv_run(&x.daemon.loop->uv, UV_RUN_NOWAIT);
    assert_int_equal(frame.tag, 1);
    assert_true(core_double.turns - turns <= 3);
    assert_true(x.daemon.stats.requests - before < MANY / 4);
    sf_pump(&x);
    assert_int_equal(x.daemon.stats.requests - before, MANY + 1);
    assert_int_equal(x.daemon.stats.sent_stalls, 0);
    for (unsigned i = 0; i < MANY; i++) {
        assert_int_equal(sf_receive(fast, &frame, NULL, 0), 1);
        assert_int_equal(frame.tag, i);
    }
    assert_int_equal(close(fast), 0);
    assert_int_equal(close(slow), 0);
}

#define FLOODERS 8u
#define FLOOD    100u

/** The same for a process with many connections: all of them together have one process's part of a
 * turn, and take turns in it. */
static void many_connections_have_one_part(void **state)
{
    int fast[FLOODERS], slow = sf_client(&x);
    struct zp_frame frame;
    uint64_t before, most = 0;
    unsigned answered[FLOODERS] = { 0 };

    (void)state;
    /* another process, which has a part of its own */
    zb_container_of(x.daemon.server->links.next, struct zsd_link, node)->conn.pid = 1;
    for (unsigned i = 0; i < FLOODERS; i++)
        fast[i] = sf_client(&x);
    for (unsigned i = 0; i < FLOODERS; i++) {
        assert_int_equal(flood(fast[i], ZP_PING, 0, FLOOD), FLOOD);
    }
    for (unsigned i = 0; i < FLOODERS; i++) {
        unsigned turns = 0;

        sf_send(slow, ZP_REQUEST, ZP_PING, i, NULL, 0);
        for (int got = 0; got == 0; turns++) {
            before = x.daemon.stats.requests;
            (void)uv_run(&x.daemon.loop->uv, UV_RUN_NOWAIT);
            most = zb_max_u64(most, x.daemon.stats.requests - before);
            got = sf_receive(slow, &frame, NULL, 0);
        }
        assert_int_equal(frame.tag, i);
        assert_in_range(turns, 1, 3);
    }
    assert_in_range(most, 2, ZSD_FRAMES_TURN + 1);
    for (unsigned i = 0; i < FLOODERS; i++) {
        while (sf_receive(fast[i], &frame, NULL, 0) == 1)
            answered[i]++;
        assert_in_range(answered[i], 1, FLOOD - 1); /* none is last, and none is finished */
    }
    sf_pump(&x);
    for (unsigned i = 0; i < FLOODERS; i++) {
        while (sf_receive(fast[i], &frame, NULL, 0) == 1)
            answered[i]++;
        assert_int_equal(answered[i], FLOOD);
        assert_int_equal(close(fast[i]), 0);
    }
    assert_int_equal(close(slow), 0);
}

/** Turns without time: each serves one frame of one connection, and all connections are served in
 * order. */
static void turns_without_time(void **state)
{
    int fast[FLOODERS], slow;
    struct zp_frame frame;
    unsigned answered[FLOODERS] = { 0 }, least = FLOOD, most = 0;

    (void)state;
    slow = sf_client(&x);
    for (unsigned i = 0; i < FLOODERS; i++)
        fast[i] = sf_client(&x);
    x.daemon.server->most_ns = 0;
    for (unsigned i = 0; i < FLOODERS; i++)
        assert_int_equal(flood(fast[i], ZP_PING, 0, FLOOD), FLOOD);
    for (unsigned round = 0; round < FLOODERS; round++) {
        sf_send(slow, ZP_REQUEST, ZP_PING, round, NULL, 0);
        for (unsigned turns = 0; sf_receive(slow, &frame, NULL, 0) == 0; turns++) {
            uint64_t before = x.daemon.stats.requests;

            assert_true(turns < 3 * (FLOODERS + 1)); /* the others have their turns first */
            (void)uv_run(&x.daemon.loop->uv, UV_RUN_NOWAIT);
            assert_in_range(x.daemon.stats.requests - before, 0, 1);
        }
        assert_int_equal(frame.tag, round);
    }
    for (unsigned i = 0; i < FLOODERS; i++) {
        while (sf_receive(fast[i], &frame, NULL, 0) == 1)
            answered[i]++;
        least = answered[i] < least ? answered[i] : least;
        most = answered[i] > most ? answered[i] : most;
    }
    assert_in_range(most, least, least + 2);
    assert_in_range(most, 2, FLOOD - 1);
    sf_pump(&x);
    for (unsigned i = 0; i < FLOODERS; i++) {
        while (sf_receive(fast[i], &frame, NULL, 0) == 1)
            answered[i]++;
        assert_int_equal(answered[i], FLOOD);
    }
    for (unsigned i = 0; i < FLOODERS; i++)
        assert_int_equal(close(fast[i]), 0);
    for (unsigned n = x.daemon.clients; n > 1; n = x.daemon.clients) { /* one ends in each turn */
        (void)uv_run(&x.daemon.loop->uv, UV_RUN_NOWAIT);
        assert_in_range(x.daemon.clients, n - 1, n);
    }
    sf_alive(&x, slow);
    assert_int_equal(close(slow), 0);
}

/** A turn that has no time accepts one connection. */
static void accepts_without_time(void **state)
{
    int fds[FLOODERS];

    (void)state;
    x.daemon.server->most_ns = 0;
    for (unsigned i = 0; i < FLOODERS; i++)
        fds[i] = sf_connect(&x);
    for (unsigned i = 0; i < FLOODERS; i++) {
        assert_int_equal(x.daemon.clients, i);
        (void)uv_run(&x.daemon.loop->uv, UV_RUN_NOWAIT);
    }
    assert_int_equal(x.daemon.clients, FLOODERS);
    for (unsigned i = 0; i < FLOODERS; i++)
        assert_int_equal(close(fds[i]), 0);
}

static void who_may(void **state)
{
    static const struct {
        uid_t client, owner;
        bool may;
    } rows[] = {
        { 1000, 1000, true },
        { 1000, 1001, false },
        { 0, 1001, true },
        { 1000, 0, false },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct zsd_conn conn = { .uid = rows[i].client };

        assert_int_equal(zsd_may(&conn, rows[i].owner), rows[i].may);
    }
    assert_true(zsd_may(&(struct zsd_conn){ .uid = geteuid() }, 4711));
    if (geteuid() == 0) { /* a daemon that does not run as root */
        struct zsd_conn root = { .uid = 0 }, daemons = { .uid = 65534 }, other = { .uid = 1000 };
        bool may[3];

        assert_int_equal(seteuid(65534), 0);
        may[0] = zsd_may(&root, 4711);
        may[1] = zsd_may(&daemons, 4711);
        may[2] = zsd_may(&other, 4711);
        assert_int_equal(seteuid(0), 0);
        assert_true(may[0] && may[1] && !may[2]);
    }
}

#define TEST(name) cmocka_unit_test_prestate_setup_teardown(name, sf_setup, teardown, &x)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(protocol_table),
        TEST(every_method),
        TEST(what_hello_says),
        TEST(cut_anywhere),
        TEST(gone_in_the_middle_of_a_frame),
        TEST(an_answer_with_a_descriptor),
        TEST(a_descriptor_that_cannot_be_duplicated),
        TEST(an_answer_that_is_too_long),
        TEST(answers_out_of_order),
        TEST(an_event_before_the_answer),
        TEST(no_event_before_hello),
        TEST(gone_with_unanswered_requests),
        TEST(answered_from_inside_gone),
        TEST(gone_before_its_answer_is_sent),
        TEST(the_server_closes_with_requests),
        TEST(too_many_requests),
        TEST(too_many_bytes),
        TEST(many_answers_at_once),
        TEST(descriptors_that_nobody_reads),
        TEST(never_reads),
        TEST(events_to_one_that_never_reads),
        TEST(dies_while_it_is_not_read_from),
        TEST(dies_with_bytes_on_their_way),
        TEST(others_are_served),
        TEST(others_of_the_user_do_not_read),
        TEST(an_idle_daemon_sleeps),
        TEST(answers_share_a_turn),
        TEST(a_flood_delays_by_a_turn),
        TEST(many_connections_have_one_part),
        TEST(turns_without_time),
        TEST(accepts_without_time),
        cmocka_unit_test(who_may),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
