#include "tests/ztest.h"

#include "tests/unit/daemon/server_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/config/config.h"
#include "daemon/core_life.h"
#include "daemon/dispatch.h"
#include "daemon/run/compute.h"
#include "tests/send_fds.h"

void sf_open(struct server_fixture *x)
{
    char *argv[] = { (char *)(uintptr_t) "zshardd", NULL };
    struct zb_err err = { 0 };

    memset(x, 0, sizeof(*x));
    memset(&core_double, 0, sizeof(core_double));
    core_double.fd = -1;
    (void)strcpy(x->dir, "/tmp/zshard-srv-XXXXXX");
    assert_non_null(mkdtemp(x->dir));
    (void)snprintf(x->path, sizeof(x->path), "%s/s", x->dir);
    zb_log_set_level(ZB_LOG_ERROR);
    assert_int_equal(zsd_config_load(&x->daemon.config, 1, argv, NULL, &err), 0);
    (void)snprintf(x->daemon.config.socket, sizeof(x->daemon.config.socket), "%s", x->path);
    assert_int_equal(zsd_limits_open(&x->daemon, &err), 0);
    assert_int_equal(zsd_core_new(&x->daemon, &err), 0);
    assert_int_equal(zsd_compute_new(&x->daemon.compute, 1, NULL, &err), 0);
    assert_int_equal(zsd_loop_new(&x->daemon, &err), 0);
}

void sf_listen(struct server_fixture *x)
{
    struct zb_err err = { 0 };

    if (zsd_server_open(&x->daemon, zsd_loop_uv(&x->daemon), &zsd_dispatch_ops, &err) < 0)
        fail_msg("%s", err.text);
    x->daemon.server->most_ns = SF_NO_END; /* tests count the work of a turn, not its time */
}

void sf_close(struct server_fixture *x)
{
    zsd_server_close(&x->daemon);
    zsd_loop_free(&x->daemon);
    zsd_core_free(&x->daemon);
    zsd_limits_close(&x->daemon);
    zsd_compute_free(x->daemon.compute);
    assert_int_equal(x->daemon.reqs, 0); /* each was answered, or dropped */
    assert_int_equal(x->daemon.clients, 0);
    assert_int_equal(rmdir(x->dir), 0); /* nothing is left in it */
}

int sf_setup(void **state)
{
    sf_open(*state);
    sf_listen(*state);
    return 0;
}

int sf_teardown(void **state)
{
    sf_close(*state);
    return 0;
}

unsigned sf_files(const struct server_fixture *x)
{
    DIR *d = opendir(x->dir);
    unsigned n = 0;

    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    assert_int_equal(closedir(d), 0);
    return n;
}

/** What one turn queues is sent in the next, and accepted connections are watched from the next
 * on. */
#define QUIET_TURNS 3u

void sf_pump(struct server_fixture *x)
{
    struct pollfd p = { .fd = uv_backend_fd(&x->daemon.loop->uv), .events = POLLIN };

    for (unsigned quiet = 0; quiet < QUIET_TURNS; quiet++) {
        (void)uv_run(&x->daemon.loop->uv, UV_RUN_NOWAIT);
        if (uv_is_active((uv_handle_t *)&x->daemon.loop->again) || poll(&p, 1, 0) == 1)
            quiet = 0;
    }
}

static void pump_on_timer(uv_timer_t *timer)
{
    *(bool *)timer->data = true;
}

static void pump_on_closed(uv_handle_t *handle)
{
    handle->data = NULL;
}

bool sf_pump_until(struct server_fixture *x, const unsigned *value, unsigned wanted)
{
    uv_timer_t timer;
    bool late = false;

    (void)uv_timer_init(&x->daemon.loop->uv, &timer);
    timer.data = &late;
    (void)uv_timer_start(&timer, pump_on_timer, 2000, 0);
    while (*value != wanted && !late)
        (void)uv_run(&x->daemon.loop->uv, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, pump_on_closed);
    while (timer.data)
        (void)uv_run(&x->daemon.loop->uv, UV_RUN_NOWAIT);
    return !late;
}

/* ---- clients */

/* Bytes that a client has received and not yet parsed, by descriptor. */
static struct inbox {
    uint8_t bytes[ZP_HEADER_BYTES + ZP_BODY_MAX];
    size_t len;
} inboxes[128];

int sf_connect(const struct server_fixture *x)
{
    return sf_connect_as(x, geteuid());
}

int sf_connect_as(const struct server_fixture *x, uid_t uid)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), rc;
    uid_t ours = geteuid();

    (void)strcpy(a.sun_path, x->path);
    assert_true(fd >= 0 && fd < (int)ZB_COUNT(inboxes));
    inboxes[fd].len = 0;
    if (uid != ours) { /* the server sees the user that connects */
        assert_int_equal(chmod(x->dir, 0711), 0);
        assert_int_equal(chmod(x->path, 0666), 0);
        assert_int_equal(seteuid(uid), 0);
    }
    rc = connect(fd, (const struct sockaddr *)&a, sizeof(a));
    if (uid != ours)
        assert_int_equal(seteuid(ours), 0);
    assert_int_equal(rc, 0);
    return fd;
}

void sf_send_fds(int fd, const void *bytes, size_t len, const int *fds, unsigned n)
{
    assert_true(send_fds(fd, bytes, len, fds, n));
}

void sf_send_bytes(int fd, const void *bytes, size_t len)
{
    sf_send_fds(fd, bytes, len, NULL, 0);
}

void sf_send(int fd, uint8_t kind, uint16_t method, uint64_t tag, const void *body, size_t len)
{
    struct zp_frame frame = {
        .kind = kind, .method = method, .tag = tag, .body_bytes = (uint32_t)len
    };
    uint8_t bytes[ZP_HEADER_BYTES + 512];

    assert_true(len <= sizeof(bytes) - ZP_HEADER_BYTES);
    zp_frame_put(&frame, bytes);
    if (len > 0)
        memcpy(bytes + ZP_HEADER_BYTES, body, len);
    sf_send_bytes(fd, bytes, ZP_HEADER_BYTES + len);
}

void sf_hello(int fd, uint32_t min, uint32_t max, const char *program)
{
    Zp__Hello hello = ZP__HELLO__INIT;
    uint8_t body[512];

    hello.version_min = min;
    hello.version_max = max;
    hello.program = (char *)(uintptr_t)program;
    assert_true(zp__hello__get_packed_size(&hello) <= sizeof(body));
    sf_send(fd, ZP_REQUEST, ZP_HELLO, 1, body, zp__hello__pack(&hello, body));
}

int sf_client(struct server_fixture *x)
{
    int fd = sf_connect(x);

    sf_hello(fd, 1, 1, "test");
    assert_int_equal(sf_reply(x, fd, 1), 0);
    return fd;
}

int sf_receive_fd(int fd, struct zp_frame *ret, char *body, size_t size, int *ret_fd)
{
    struct inbox *in = &inboxes[fd];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    size_t whole;

    *ret_fd = -1;
    while (zp_frame_next(in->bytes, in->len, ret) == 0) {
        struct iovec iov = { in->bytes + in->len, sizeof(in->bytes) - in->len };
        struct msghdr msg = { .msg_iov = &iov,
                              .msg_iovlen = 1,
                              .msg_control = control.bytes,
                              .msg_controllen = sizeof(control.bytes) };
        ssize_t n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);

        if (n < 0 && errno == EAGAIN)
            return 0;
        if (n <= 0)
            return -1;
        in->len += (size_t)n;
        if (CMSG_FIRSTHDR(&msg))
            memcpy(ret_fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(*ret_fd));
    }
    assert_int_equal(zp_frame_next(in->bytes, in->len, ret), 1);
    whole = ZP_HEADER_BYTES + ret->body_bytes;
    if (size > 0) {
        size_t keep = ret->body_bytes < size ? ret->body_bytes : size - 1;

        memcpy(body, in->bytes + ZP_HEADER_BYTES, keep);
        body[keep] = '\0';
    }
    in->len -= whole;
    memmove(in->bytes, in->bytes + whole, in->len);
    return 1;
}

int sf_receive(int fd, struct zp_frame *ret, char *body, size_t size)
{
    int got, rc = sf_receive_fd(fd, ret, body, size, &got);

    if (got >= 0)
        (void)close(got);
    return rc;
}

int sf_reply(struct server_fixture *x, int fd, uint64_t tag)
{
    struct zp_frame frame;

    sf_pump(x);
    assert_int_equal(sf_receive(fd, &frame, NULL, 0), 1);
    assert_int_equal(frame.kind, ZP_REPLY);
    assert_int_equal(frame.tag, tag);
    return frame.code;
}

void sf_alive(struct server_fixture *x, int fd)
{
    static uint64_t tag = UINT64_C(0xfeed00000000);

    sf_send(fd, ZP_REQUEST, ZP_PING, ++tag, NULL, 0);
    assert_int_equal(sf_reply(x, fd, tag), 0);
}

void sf_dead(struct server_fixture *x, int fd)
{
    struct zp_frame frame;

    sf_pump(x);
    assert_int_equal(sf_receive(fd, &frame, NULL, 0), -1);
    assert_int_equal(close(fd), 0);
}
