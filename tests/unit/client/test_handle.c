/* Open, close, what a handle reports about itself, and a foreign loop. */
#include "tests/ztest.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zclient.h"
#include "tests/alloc_fail.h"
#include "tests/unit/client/fake.h"

static struct zc_client *open_client(struct fake *f)
{
    struct zc_options o = { .socket = f->path };
    struct zc_client *c = NULL;

    if (zc_open(&c, &o) < 0)
        fail_msg("open: %s", zc_error(c));
    return c;
}

static void count_done(void *arg, int rc)
{
    int *rcs = arg; /* [0]: how often, [1]: the last code */

    rcs[0]++;
    rcs[1] = rc;
}

/* ---- open */

static void open_says_hello(void **state)
{
    static const uint8_t instance[16] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };
    struct fake f = FAKE_INIT;
    struct zc_client *c;
    struct zp_arena *arena;
    const Zp__Hello *hello;
    const struct zc_server *s;

    (void)state;
    fake_start(&f);
    c = open_client(&f);
    s = zc_server(c);
    assert_int_equal(s->version, 1);
    assert_int_equal(s->page_elems, FAKE_PAGE);
    assert_int_equal(s->block_elems, FAKE_BLOCK);
    assert_int_equal(s->shards_max, ZP_SHARDS_MAX);
    assert_memory_equal(s->instance, instance, sizeof(instance));
    assert_int_equal(s->pid, 4711);
    assert_string_equal(s->server, "fake 0");
    assert_string_equal(zc_error(c), "");
    assert_true(fcntl(zc_fd(c), F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(zc_fd(c), F_GETFD) & FD_CLOEXEC);
    assert_int_equal(zc_events(c), POLLIN);
    hello = fake_nth(&f, ZP_HELLO, 0, &arena);
    assert_int_equal(hello->version_min, ZP_VERSION_MIN);
    assert_int_equal(hello->version_max, ZP_VERSION_MAX);
    assert_string_equal(hello->program, "libzclient");
    zp_arena_free(arena);
    zc_close(c);
    fake_done(&f);
}

static void open_by_the_environment(void **state)
{
    struct fake f = FAKE_INIT;
    struct zc_client *c = NULL;

    (void)state;
    fake_start(&f);
    assert_int_equal(setenv("ZSHARD_SOCKET", f.path, 1), 0);
    assert_int_equal(zc_open(&c, NULL), 0);
    zc_close(c);
    assert_int_equal(unsetenv("ZSHARD_SOCKET"), 0);
    fake_done(&f);
}

/** A handle without a connection refuses everything except zc_error(). */
static void expect_closed(struct zc_client *c)
{
    struct zc_shard_row *rows = NULL;
    uint64_t shard = 1;
    struct zc_view view;
    size_t n;

    assert_non_null(c);
    assert_true(zc_error(c)[0] != '\0');
    assert_int_equal(zc_fd(c), -1);
    assert_int_equal(zc_events(c), 0);
    assert_int_equal(zc_server(c)->page_elems, 0);
    assert_int_equal(zc_ping(c, NULL, NULL), -ENOTCONN);
    assert_int_equal(zc_ping_wait(c), -ENOTCONN);
    assert_int_equal(zc_poll(c, -1), -ENOTCONN);
    assert_int_equal(zc_fetch_wait(c, &shard, 1, 0, 0, &view), -ENOTCONN);
    assert_int_equal(zc_release(c, &shard, 1), -ENOTCONN);
    assert_int_equal(zc_write_wait(c, 1, ZC_MASTER, 0, 1, NULL), -ENOTCONN);
    assert_int_equal(zc_list_wait(c, NULL, &rows, &n), -ENOTCONN);
    assert_null(rows);
    assert_non_null(strstr(zc_error(c), "no connection"));
}

/* Errors during hello, with the server's message. */

struct hello_case {
    const char *name;
    uint32_t version, page_elems, block_elems, shards_max;
    size_t instance;
    bool (*other)(struct fake *f, const struct zp_frame *frame, const uint8_t *body);
    int rc;
    const char *says;
};

static bool hello_garbage(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)frame;
    (void)body;
    fake_raw(f, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
    return true;
}

static bool hello_too_long(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)frame;
    (void)body;
    fake_raw(f, "zsh\1\1\0\1\0\1\0\2\0\0\0\0\0\0\0\0\0\0\0\0\0", 24);
    return true;
}

static bool hello_no_version(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)body;
    fake_refuse(f, frame, -EPROTONOSUPPORT, "no version in common: 1 to 1, 5 to 6");
    fake_hang_up(f);
    return true;
}

static bool hello_full(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)body;
    fake_refuse(f, frame, -EUSERS, "this daemon serves 2 clients already");
    fake_hang_up(f);
    return true;
}

static bool hello_hang_up(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)frame;
    (void)body;
    fake_hang_up(f);
    return true;
}

static bool hello_silence(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)f;
    (void)frame;
    (void)body;
    return true;
}

static bool hello_half(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)frame;
    (void)body;
    fake_raw(f, "zsh\1\5\0\0\0", 8);
    fake_hang_up(f);
    return true;
}

static bool hello_with_memory(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    int fd = fake_memfd(4096, 0);

    (void)body;
    fake_reply(f, frame, NULL, fd);
    zb_close_fd(&fd);
    return true;
}

static bool hello_wrong_tag(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    struct zp_frame other = *frame;

    (void)body;
    other.tag++;
    fake_reply(f, &other, NULL, -1);
    return true;
}

static bool hello_no_message(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    struct zp_frame reply = { .method = ZP_HELLO, .kind = ZP_REPLY, .tag = frame->tag };

    (void)body;
    fake_frame(f, reply, "\x0f");
    return true;
}

static bool hello_request(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    struct zp_frame request = { .method = ZP_PING, .kind = ZP_REQUEST, .tag = 1 };

    (void)frame;
    (void)body;
    fake_frame(f, request, NULL);
    return true;
}

static bool hello_positive(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)body;
    fake_refuse(f, frame, 5, "what is this");
    return true;
}

static const struct hello_case hello_cases[] = {
    { "as it should be", 1, 8192, 4096, 1024, 16, NULL, 0, NULL },
    { "a daemon that names more shards than fit", 1, 8192, 4096, 9999, 16, NULL, 0, NULL },
    { "a version before ours", 0, 8192, 4096, 1024, 16, NULL, -EPROTO, "version 0" },
    { "a version behind ours", 2, 8192, 4096, 1024, 16, NULL, -EPROTO, "version 2" },
    { "no page", 1, 0, 4096, 1024, 16, NULL, -EPROTO, "pages of 0" },
    { "no block", 1, 8192, 0, 1024, 16, NULL, -EPROTO, "blocks of 0" },
    { "pages that are no blocks", 1, 8193, 4096, 1024, 16, NULL, -EPROTO, "pages of 8193" },
    { "no shards", 1, 8192, 4096, 0, 16, NULL, -EPROTO, "0 shards" },
    { "half an instance", 1, 8192, 4096, 1024, 8, NULL, -EPROTO, "hello" },
    { "garbage", .other = hello_garbage, .rc = -EPROTO, .says = "not a frame" },
    { "a frame too long", .other = hello_too_long, .rc = -EPROTO, .says = "longer than 65536" },
    { "no version", .other = hello_no_version, .rc = -EPROTO,
      .says = "no version in common: 1 to" },
    { "too many clients", .other = hello_full, .rc = -EUSERS, .says = "serves 2 clients" },
    { "hung up", .other = hello_hang_up, .rc = -ENOTCONN, .says = "the daemon is gone" },
    { "hung up in a frame", .other = hello_half, .rc = -ENOTCONN, .says = "the middle of a frame" },
    { "silence", .other = hello_silence, .rc = -ETIMEDOUT, .says = "did not come" },
    { "a descriptor", .other = hello_with_memory, .rc = -EPROTO, .says = "1 descriptors" },
    { "another tag", .other = hello_wrong_tag, .rc = -EPROTO, .says = "not its own" },
    { "a body that is none", .other = hello_no_message, .rc = -EPROTO,
      .says = "not a valid HelloReply" },
    { "a request", .other = hello_request, .rc = -EPROTO, .says = "kind 1" },
    { "a positive code", .other = hello_positive, .rc = -EPROTO, .says = "code 5" },
};

static bool hello_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    static uint8_t instance[16] = { 1 };
    const struct hello_case *x = f->arg;
    Zp__HelloReply m = ZP__HELLO_REPLY__INIT;

    if (frame->method != ZP_HELLO)
        return false;
    if (x->other)
        return x->other(f, frame, body);
    m.version = x->version;
    m.page_elems = x->page_elems;
    m.block_elems = x->block_elems;
    m.shards_max = x->shards_max;
    m.instance.data = instance;
    m.instance.len = x->instance;
    fake_reply(f, frame, &m.base, -1);
    return true;
}

static void hello_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(hello_cases); i++) {
        struct fake f = FAKE_INIT;
        struct zc_client *c = NULL;
        int rc;

        f.fn = hello_fn;
        f.arg = (void *)(uintptr_t)&hello_cases[i];
        fake_start(&f);
        rc = zc_open(&c, &(struct zc_options){
                             .socket = f.path, .connect_timeout_ms = 200, .no_wait = true });
        if (rc != hello_cases[i].rc)
            fail_msg("%s: got %d '%s'", hello_cases[i].name, rc, zc_error(c));
        if (rc == 0)
            assert_int_equal(zc_server(c)->shards_max, 1024);
        else if (!strstr(zc_error(c), hello_cases[i].says))
            fail_msg("%s: says '%s'", hello_cases[i].name, zc_error(c));
        else
            expect_closed(c);
        zc_close(c);
        fake_done(&f);
    }
}

#define LONG_50  "01234567890123456789012345678901234567890123456789"
#define LONG_100 LONG_50 LONG_50

static void nobody_there(void **state)
{
    static const struct {
        const char *path;
        int rc;
        const char *says;
    } rows[] = {
        { "/tmp/zshard-no-such-socket", -ENOTCONN, "'/tmp/zshard-no-such-socket': No such file" },
        { "/etc/passwd", -ENOTCONN, "Connection refused" },
        { "", -EINVAL, "empty" },
        { "/tmp/" LONG_100 "/s", -ENOTCONN, "No such file" },
        { "/tmp/" LONG_100 "/so", -EINVAL, "108 bytes long" },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct zc_client *c = NULL;
        int rc = zc_open(&c, &(struct zc_options){ .socket = rows[i].path });

        if (rc != rows[i].rc || !strstr(zc_error(c), rows[i].says))
            fail_msg("'%s': got %d '%s'", rows[i].path, rc, zc_error(c));
        expect_closed(c);
        zc_close(c);
    }
}

/** Another user, who may not reach the socket. Only root can test this. */
static void not_allowed(void **state)
{
    struct fake f = FAKE_INIT;
    int status = 0;
    pid_t pid;

    (void)state;
    if (geteuid() != 0)
        ztest_skip("only root can become another user");
    fake_start(&f);
    pid = fork();
    if (pid == 0) {
        struct zc_client *c = NULL;

        if (setresuid(65534, 65534, 65534) < 0)
            _exit(1);
        if (zc_open(&c, &(struct zc_options){ .socket = f.path }) != -EPERM ||
            !strstr(zc_error(c), "not allowed to connect to '/tmp/"))
            _exit(2);
        zc_close(c);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    fake_done(&f);
}

/** No process accepts, and the backlog is full. */
static void a_full_backlog(void **state)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    char dir[] = "/tmp/zshard-full-XXXXXX";
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), fds[8];
    struct zc_client *c = NULL;
    uint64_t begun;

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s/s", dir);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(listener, 0), 0);
    for (size_t i = 0; i < ZB_COUNT(fds); i++) {
        fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(fds[i], (struct sockaddr *)&a, sizeof(a));
    }
    begun = zb_now_ns();
    assert_int_equal(
        zc_open(&c, &(struct zc_options){ .socket = a.sun_path, .connect_timeout_ms = 100 }),
        -ETIMEDOUT);
    assert_true(zb_now_ns() - begun >= 100000000u);
    assert_true(zb_now_ns() - begun < 3000000000u);
    assert_non_null(strstr(zc_error(c), "accepts no connection"));
    zc_close(c);
    for (size_t i = 0; i < ZB_COUNT(fds); i++)
        zb_close_fd(&fds[i]);
    zb_close_fd(&listener);
    assert_int_equal(unlink(a.sun_path), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void open_with_every_failure(void **state)
{
    bool failed = true;

    (void)state;
    for (unsigned nth = 1; failed; nth++) {
        struct fake f = FAKE_INIT;
        struct zc_client *c = NULL;
        struct zc_options o;
        int rc;

        fake_start(&f);
        o = (struct zc_options){ .socket = f.path };
        alloc_fail(nth, 1);
        rc = zc_open(&c, &o);
        failed = alloc_failed();
        assert_int_equal(rc, failed ? -ENOMEM : 0);
        if (nth == 1)
            assert_null(c);
        else if (failed)
            expect_closed(c);
        zc_close(c);
        fake_done(&f);
        assert_true(nth < 30);
    }
}

/* ---- close */

static void close_ends_every_call(void **state)
{
    struct fake f = FAKE_INIT;
    struct zc_client *c;
    int rcs[2] = { 0 };

    (void)state;
    fake_start(&f);
    c = open_client(&f);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(zc_ping(c, count_done, rcs), 0);
    assert_int_equal(zc_ping(c, NULL, NULL), 0); /* without a callback */
    assert_int_equal(rcs[0], 0);
    zc_close(c);
    assert_int_equal(rcs[0], 5);
    assert_int_equal(rcs[1], -ECANCELED);
    zc_close(NULL);
    fake_done(&f);
}

struct restless {
    struct zc_client *c;
    int begun, ended, refused;
};

static void start_another(void *arg, int rc)
{
    struct restless *r = arg;

    r->ended = rc;
    r->refused = zc_ping(r->c, start_another, r);
    r->begun += r->refused == 0;
}

/** A callback that always starts another call is stopped by closing. */
static void close_refuses_new_calls(void **state)
{
    struct fake f = FAKE_INIT;
    struct restless r = { 0 };

    (void)state;
    fake_start(&f);
    r.c = open_client(&f);
    start_another(&r, 0);
    while (r.begun < 10)
        assert_true(zc_poll(r.c, 1000) >= 0);
    zc_close(r.c);
    assert_int_equal(r.ended, -ECANCELED);
    assert_int_equal(r.refused, -ECANCELED);
    fake_done(&f);
}

static void close_me(void *arg, int rc)
{
    (void)rc;
    zc_close(arg);
}

/** This would free memory that the library is using: it ends the program at once, with the
 * reason. */
static void close_in_a_callback(void **state)
{
    struct fake f = FAKE_INIT;
    struct zc_client *c;
    int status = 0;
    pid_t pid;

    (void)state;
    fake_start(&f);
    pid = fork();
    if (pid == 0) {
        const struct rlimit no_core = { 0, 0 };

        (void)setrlimit(RLIMIT_CORE, &no_core);
        (void)!freopen("/dev/null", "w", stderr);
        (void)signal(SIGABRT, SIG_DFL); /* cmocka handles it */
        c = open_client(&f);            /* its own: the parent's would refuse another process */
        (void)zc_ping(c, close_me, c);
        while (zc_poll(c, -1) >= 0)
            ;
        _exit(1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    fake_done(&f);
}

/* ---- zc_poll() */

static void a_foreign_loop(void **state)
{
    struct fake f = FAKE_INIT;
    struct zc_client *c;
    int rcs[2] = { 0, 77 };

    (void)state;
    fake_start(&f);
    c = open_client(&f);
    assert_int_equal(zc_ping(c, count_done, rcs), 0);
    while (rcs[0] == 0) {
        struct pollfd p = { .fd = zc_fd(c), .events = zc_events(c) };

        assert_int_equal(poll(&p, 1, 5000), 1);
        assert_true(zc_poll(c, 0) >= 0);
    }
    assert_int_equal(rcs[1], 0);
    assert_int_equal(zc_poll(c, 0), 0);
    zc_close(c);
    fake_done(&f);
}

static void on_alarm(int sig)
{
    (void)sig;
}

static void poll_waits_as_told(void **state)
{
    struct fake f = FAKE_INIT;
    struct sigaction act = { .sa_handler = on_alarm };
    struct itimerval in_50ms = { .it_value = { 0, 50000 } };
    struct zc_client *c;
    uint64_t begun;

    (void)state;
    fake_start(&f);
    c = open_client(&f);
    begun = zb_now_ns();
    assert_int_equal(zc_poll(c, 0), 0);
    assert_true(zb_now_ns() - begun < 1000000000u);
    begun = zb_now_ns();
    assert_int_equal(zc_poll(c, 50), 0);
    assert_true(zb_now_ns() - begun >= 50000000u);
    /* No timeout, but a signal ends it. The signal goes to this thread; the other one blocks it. */
    assert_int_equal(sigaction(SIGALRM, &act, NULL), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &in_50ms, NULL), 0);
    assert_int_equal(zc_poll(c, 20000), 0);
    zc_close(c);
    fake_done(&f);
}

static void codes_have_names(void **state)
{
    static const int codes[] = { 0,           -EINVAL,    -ENOENT,    -EEXIST,  -EPERM,  -ENOSPC,
                                 -EBUSY,      -EAGAIN,    -ETIMEDOUT, -EBADMSG, -EIO,    -EPROTO,
                                 -EOWNERDEAD, -ECANCELED, -ENOTCONN,  -EUSERS,  -ENOSYS, -EMSGSIZE,
                                 -ENOBUFS,    -ENOMEM,    -ESTALE,    -EDQUOT };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(codes); i++)
        if (strstr(zc_strerror(codes[i]), "unknown code"))
            fail_msg("%d: %s", codes[i], zc_strerror(codes[i]));
    assert_string_equal(zc_strerror(-ENOSPC), "-ENOSPC: it does not fit");
    assert_non_null(strstr(zc_strerror(-9999), "unknown code"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_says_hello),
        cmocka_unit_test(open_by_the_environment),
        cmocka_unit_test(hello_table),
        cmocka_unit_test(nobody_there),
        cmocka_unit_test(not_allowed),
        cmocka_unit_test(a_full_backlog),
        cmocka_unit_test(open_with_every_failure),
        cmocka_unit_test(close_ends_every_call),
        cmocka_unit_test(close_refuses_new_calls),
        cmocka_unit_test(close_in_a_callback),
        cmocka_unit_test(a_foreign_loop),
        cmocka_unit_test(poll_waits_as_told),
        cmocka_unit_test(codes_have_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
