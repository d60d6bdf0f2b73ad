/*
 * fuzz_client.c - a client whose daemon answers with anything.
 *
 * A client opens a job in good order and starts one call of every kind. Then it receives the input,
 * byte for byte, as the daemon's answer, and the end of the connection. Whatever that contains,
 * every call ends exactly once, and nothing is left behind.
 *
 * The tags are those that the client assigns in this order of calls, so seeds can be right answers.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zclient.h"
#include "proto/codec.h"
#include "proto/stream.h"
#include "tests/fuzz/zfuzz.h"

#define STAGING 4096u
#define ARENA   4096u
#define FIRST \
    4u /* the number of the first call that is started below: hello, open, ready before \
        */

static char path[64];
static int listener = -1;
static const uint8_t *said; /* the input of this run */
static size_t said_bytes;

/* ---- the daemon: a thread for each run */

static int memory(uint64_t bytes)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    zfuzz_require(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    zfuzz_require(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    return fd;
}

/** Answers the next request, one of the first three; false: the client has gone. */
static bool answer(struct zp_stream *s)
{
    Zp__HelloReply hello = ZP__HELLO_REPLY__INIT;
    Zp__JobOpenReply opened = ZP__JOB_OPEN_REPLY__INIT;
    Zp__ReadyReply ready = ZP__READY_REPLY__INIT;
    static uint8_t instance[16];
    struct zp_frame frame, reply = { .kind = ZP_REPLY };
    struct pollfd p = { .fd = zp_stream_fd(s), .events = POLLIN };
    const ProtobufCMessage *m = &hello.base;
    const uint8_t *body;
    int fds[ZP_FDS_MAX], fd = -1, rc;

    while ((rc = zp_stream_next(s, &frame, &body, fds, NULL)) == 0) {
        zfuzz_require(poll(&p, 1, 10000) == 1);
        if (zp_stream_read(s, NULL) != 0)
            return false;
    }
    zfuzz_require(rc == 1);
    hello.version = 1;
    hello.instance.data = instance;
    hello.instance.len = sizeof(instance);
    hello.page_elems = hello.block_elems = 4096;
    hello.shards_max = 1024;
    opened.job = 7;
    opened.staging_bytes = STAGING;
    ready.arena_bytes = ARENA;
    if (frame.method == ZP_JOB_OPEN)
        m = &opened.base;
    if (frame.method == ZP_READY)
        m = &ready.base;
    if (frame.method != ZP_HELLO)
        fd = memory(4096);
    reply.method = frame.method;
    reply.tag = frame.tag;
    zfuzz_require(zp_stream_send(s, reply, m, NULL, &fd, fd >= 0) == 0);
    zb_close_fd(&fd);
    return zp_stream_write(s) == 0;
}

static void *serve(void *arg)
{
    int fd = accept(listener, NULL, NULL);
    struct zp_stream *s;
    char drop[4096];

    (void)arg;
    zfuzz_require(fd >= 0 && zp_stream_new(&s, fd) == 0);
    for (unsigned i = 0; i < FIRST - 1; i++)
        zfuzz_require(answer(s));
    (void)!send(fd, said, said_bytes, MSG_NOSIGNAL);
    (void)shutdown(fd, SHUT_WR);
    do { /* reads until the client has gone, so that its sending does not fail */
        struct pollfd p = { .fd = fd, .events = POLLIN };

        (void)poll(&p, 1, 10000);
    } while (recv(fd, drop, sizeof(drop), MSG_DONTWAIT) > 0);
    zp_stream_free(s);
    return NULL;
}

static void forget_path(void)
{
    (void)unlink(path);
}

static void listen_once(void)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };

    if (listener >= 0)
        return;
    (void)snprintf(path, sizeof(path), "/tmp/zshard-fuzz-%d", (int)getpid());
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    (void)unlink(path);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    zfuzz_require(listener >= 0 && bind(listener, (struct sockaddr *)&a, sizeof(a)) == 0);
    zfuzz_require(listen(listener, 1) == 0 && atexit(forget_path) == 0);
}

/* ---- the client */

static unsigned ended;

static void on_done(void *arg, int rc)
{
    bool *done = arg;

    zfuzz_require(rc <= 0 && !*done);
    *done = true;
    ended++;
}

struct outputs {
    struct zc_job job;
    struct zc_placement placement;
    struct zc_view views[2];
    struct zc_norm norm;
    struct zc_stepped stepped;
    uint64_t ids[2];
    bool done[6];
};

/** One call of every kind that has outputs, or parts; and one that has none. */
static void start_calls(struct zc_client *c, struct outputs *o)
{
    static const uint8_t note[40000];
    const uint64_t shards[2] = { 1, 2 };
    const struct zc_range ranges[2] = { { 0 } };

    zfuzz_require(zc_fetch(c, shards, 2, 3, 0, o->views, on_done, &o->done[0]) == 0);
    zfuzz_require(zc_register(c, 7, ranges, 2, o->ids, on_done, &o->done[1]) == 0);
    zfuzz_require(zc_norms(c, 7, 1, &o->norm, on_done, &o->done[2]) == 0);
    zfuzz_require(zc_skip(c, 7, 1, ZC_COMMIT_NO, 0, &o->stepped, on_done, &o->done[3]) == 0);
    zfuzz_require(zc_note_put(c, 7, false, note, sizeof(note), on_done, &o->done[4]) == 0);
    zfuzz_require(zc_ping(c, on_done, &o->done[5]) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const struct zc_job_options options = { .name = "fuzz", .world = 1, .groups = 1 };
    struct outputs o = { .job = { 0 } };
    struct zc_client *c = NULL;
    pthread_t thread;
    int rc;

    if (bytes > ZFUZZ_INPUT_MAX)
        return 0;
    listen_once();
    said = data;
    said_bytes = bytes;
    ended = 0;
    zfuzz_require(pthread_create(&thread, NULL, serve, NULL) == 0);
    zfuzz_require(zc_open(&c, &(struct zc_options){ .socket = path }) == 0);
    zfuzz_require(zc_job_open_wait(c, &options, &o.job) == 0);
    zfuzz_require(zc_ready_wait(c, 7, NULL, 0, &o.placement) == 0);
    start_calls(c, &o);
    while ((rc = zc_poll(c, 10000)) >= 0)
        ;
    zfuzz_require(rc == -ENOTCONN || rc == -EPROTO);
    zfuzz_require(ended == ZB_COUNT(o.done));
    for (unsigned i = 0; i < 2; i++) /* every view that was returned is inside the arena */
        for (uint64_t k = 0; k < o.views[i].bytes; k++)
            zfuzz_require(((const uint8_t *)o.views[i].data)[k] == 0);
    zc_close(c);
    zfuzz_require(pthread_join(thread, NULL) == 0);
    return 0;
}

/* ---- seeds: right answers, wrong ones, and events */

static size_t put(uint8_t *out, struct zp_frame frame, const ProtobufCMessage *m, const char *text)
{
    frame.body_bytes = (uint32_t)(m ? protobuf_c_message_get_packed_size(m) : strlen(text));
    zp_frame_put(&frame, out);
    if (m)
        (void)protobuf_c_message_pack(m, out + ZP_HEADER_BYTES);
    else
        memcpy(out + ZP_HEADER_BYTES, text, frame.body_bytes);
    return ZP_HEADER_BYTES + frame.body_bytes;
}

/** The reply to the nth call of start_calls(). */
static struct zp_frame reply_to(unsigned n)
{
    static const uint16_t methods[] = { ZP_FETCH, ZP_SHARD_REGISTER, ZP_NORMS,
                                        ZP_SKIP,  ZP_NOTE_PUT,       ZP_PING };

    /* The calls before came one by one, all in slot 0, so each of these has the slot of its number.
     */
    return (struct zp_frame){ .method = methods[n],
                              .kind = ZP_REPLY,
                              .tag = (uint64_t)(FIRST + n) << 10 | n };
}

size_t zfuzz_seed(unsigned i, uint8_t *out, size_t room)
{
    Zp__FetchItem item = ZP__FETCH_ITEM__INIT, *items[2] = { &item, &item };
    Zp__FetchReply fetch = ZP__FETCH_REPLY__INIT;
    Zp__ShardRegisterReply reg = ZP__SHARD_REGISTER_REPLY__INIT;
    Zp__NormsReply norms = ZP__NORMS_REPLY__INIT;
    Zp__StepReply step = ZP__STEP_REPLY__INIT;
    Zp__JobEvent event = ZP__JOB_EVENT__INIT;
    struct zp_frame lost = { .method = ZP_EVENT_PEER_LOST, .kind = ZP_EVENT };
    uint64_t ids[2] = { 1, 2 };
    uint8_t sum[80] = { 1 };
    char text[] = "rank 1 died";
    size_t n = 0;

    zfuzz_require(room >= 1024);
    item.offset = 64;
    item.bytes = 128;
    item.version = 3;
    fetch.items = items;
    fetch.n_items = reg.n_shards = 2;
    reg.shards = ids;
    norms.sum_of_squares.data = sum;
    norms.sum_of_squares.len = sizeof(sum);
    event.job = 7;
    event.code = -EOWNERDEAD;
    event.text = text;
    switch (i) {
    case 0: /* everything, in order */
    case 1: /* an event in the middle */
        n += put(out + n, reply_to(0), &fetch.base, NULL);
        n += put(out + n, reply_to(1), &reg.base, NULL);
        if (i == 1)
            n += put(out + n, lost, &event.base, NULL);
        n += put(out + n, reply_to(2), &norms.base, NULL);
        n += put(out + n, reply_to(3), &step.base, NULL);
        n += put(out + n, reply_to(4), NULL, "");
        n += put(out + n, reply_to(5), NULL, "");
        break;
    case 2: /* refusals, in reverse order */
        for (unsigned k = 6; k-- > 0;) {
            struct zp_frame frame = reply_to(k);

            frame.code = -ENOSPC;
            n += put(out + n, frame, NULL, "it does not fit");
        }
        break;
    default:
        break;
    }
    return n;
}
