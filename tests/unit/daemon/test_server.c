#include "tests/ztest.h"

#include "daemon/dispatch.h"
#include "tests/unit/daemon/server_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/shard.pb-c.h"

static struct server_fixture x;

static int setup(void **state)
{
    (void)state;
    sf_open(&x);
    return 0;
}

static const char *in_dir(const char *name)
{
    static char path[128];

    (void)snprintf(path, sizeof(path), "%s/%s", x.dir, name);
    return path;
}

/** Refused with this code and message; the server is not running. */
static void refused(int rc, const char *says)
{
    struct zb_err err = { 0 };
    unsigned files = sf_files(&x);
    int got = zsd_server_open(&x.daemon, zsd_loop_uv(&x.daemon), &zsd_dispatch_ops, &err);

    if (got != rc || err.code != rc || !strstr(err.text, says))
        fail_msg("got %d, '%s'", got, err.text);
    assert_null(x.daemon.server);
    assert_true(sf_files(&x) <= files + 1); /* a lock file that another process holds may stay */
}

/* ---- the path */

static void modes_of_the_socket(void **state)
{
    struct stat st;

    (void)state;
    (void)umask(0);
    sf_listen(&x);
    assert_int_equal(stat(x.path, &st), 0);
    assert_true(S_ISSOCK(st.st_mode));
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(sf_files(&x), 2); /* the socket and the lock */
    (void)umask(022);
}

static void a_group(void **state)
{
    struct group *g = getgrgid(geteuid() == 0 ? 65534 : getegid());
    struct stat st;

    (void)state;
    if (!g)
        ztest_skip("there is no other group to give a socket to");
    (void)snprintf(x.daemon.config.socket_group, sizeof(x.daemon.config.socket_group), "%s",
                   g->gr_name);
    sf_listen(&x);
    assert_int_equal(stat(x.path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0660);
    assert_int_equal(st.st_gid, g->gr_gid);
}

static void no_such_group(void **state)
{
    (void)state;
    (void)strcpy(x.daemon.config.socket_group, "no-such-group");
    refused(-EINVAL, "socket_group: there is no group 'no-such-group'");
    assert_int_equal(sf_files(&x), 0); /* neither socket nor lock */
}

static void too_long(void **state)
{
    size_t n = sizeof(x.daemon.config.socket) - 1;
    char *p = x.daemon.config.socket;

    (void)state;
    memset(p, 'a', n);
    memcpy(p, x.dir, strlen(x.dir));
    p[strlen(x.dir)] = '/';
    p[n] = '\0';
    assert_int_equal(strlen(p), 107); /* the longest possible path */
    sf_listen(&x);
    zsd_server_close(&x.daemon);
    assert_int_equal(sf_files(&x), 0);

    /* Only the environment can set a path of one byte more: the options refuse it. */
    assert_int_equal(setenv("ZSHARD_SOCKET",
                            "/tmp/sssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss"
                            "ssssssssssssssssssssssssssssssssssssss",
                            1),
                     0);
    *p = '\0';
    refused(-ENAMETOOLONG, "the socket's path is 108 bytes long");
    assert_int_equal(unsetenv("ZSHARD_SOCKET"), 0);
}

static void no_directory(void **state)
{
    (void)state;
    (void)snprintf(x.daemon.config.socket, sizeof(x.daemon.config.socket), "%s/no/s", x.dir);
    refused(-ENOENT, "its directory does not exist; give --socket");
}

static void no_directory_at_all(void **state)
{
    int fd = open(in_dir("file"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    (void)snprintf(x.daemon.config.socket, sizeof(x.daemon.config.socket), "%s/file/s", x.dir);
    refused(-ENOTDIR, "lock file");
    assert_int_equal(unlink(in_dir("file")), 0);
}

/** The default directory is made if only its last part is missing. */
static void the_directory_of_the_rule(void **state)
{
    (void)state;
    x.daemon.config.socket[0] = '\0';
    assert_int_equal(setenv("XDG_RUNTIME_DIR", in_dir("run"), 1), 0);
    assert_int_equal(unsetenv("ZSHARD_SOCKET"), 0);
    sf_listen(&x);
    assert_string_equal(x.daemon.config.socket, in_dir("run/zshard.sock"));
    assert_int_equal(access(x.daemon.config.socket, F_OK), 0);
    zsd_server_close(&x.daemon);
    assert_int_equal(rmdir(in_dir("run")), 0);
    assert_int_equal(unsetenv("XDG_RUNTIME_DIR"), 0);
}

static void no_socket(void **state)
{
    int fd = open(x.path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    char text[5] = "";

    (void)state;
    assert_int_equal(write(fd, "mine", 4), 4);
    assert_int_equal(close(fd), 0);
    refused(-EEXIST, "exists and is not a socket");
    fd = open(x.path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, text, 4), 4);
    assert_string_equal(text, "mine");
    assert_int_equal(close(fd), 0);
    assert_int_equal(unlink(x.path), 0);
    assert_int_equal(mkdir(x.path, 0700), 0);
    refused(-EEXIST, "exists and is not a socket");
    assert_int_equal(rmdir(x.path), 0);
}

static int listen_there(const char *path, bool listening)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)strcpy(a.sun_path, path);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&a, sizeof(a)), 0);
    if (listening)
        assert_int_equal(listen(fd, 1), 0);
    return fd;
}

static void another_program_listens(void **state)
{
    int fd = listen_there(x.path, true);

    (void)state;
    refused(-EADDRINUSE, "is in use by another program");
    assert_int_equal(access(x.path, F_OK), 0);
    assert_int_equal(close(fd), 0);
    assert_int_equal(unlink(x.path), 0);
    assert_int_equal(sf_files(&x), 0);
}

static void another_program_is_too_busy_to_answer(void **state)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = listen_there(x.path, true), client[8];
    size_t n = 0;

    (void)state;
    (void)strcpy(a.sun_path, x.path);
    for (; n < ZB_COUNT(client); n++) { /* until its queue is full */
        client[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)connect(client[n], (const struct sockaddr *)&a, sizeof(a));
    }
    refused(-EADDRINUSE, "is in use by another program");
    while (n > 0)
        assert_int_equal(close(client[--n]), 0);
    assert_int_equal(close(fd), 0);
    assert_int_equal(unlink(x.path), 0);
}

static void a_dead_socket(void **state)
{
    (void)state;
    assert_int_equal(close(listen_there(x.path, true)), 0);
    sf_listen(&x);
    (void)close(sf_client(&x));
}

static void a_socket_that_never_listened(void **state)
{
    int fd = listen_there(x.path, false); /* bound, but no process could ever connect */

    (void)state;
    sf_listen(&x);
    (void)close(sf_client(&x));
    assert_int_equal(close(fd), 0);
}

/** A second daemon, on the same path. */
static void another_daemon(void **state)
{
    static struct server_fixture y;
    struct zb_err err = { 0 };

    (void)state;
    sf_listen(&x);
    (void)strcpy(y.daemon.config.socket, x.path);
    y.daemon.loop = x.daemon.loop;
    assert_int_equal(zsd_server_open(&y.daemon, zsd_loop_uv(&y.daemon), &zsd_dispatch_ops, &err),
                     -EADDRINUSE);
    assert_non_null(strstr(err.text, "is in use by another daemon"));
    assert_int_equal(sf_files(&x), 2); /* they are the first daemon's */
    (void)close(sf_client(&x));        /* which still serves */
}

/** As after kill -9: socket and lock file exist, but the lock is not held. */
static void a_dead_daemon(void **state)
{
    int fd = open(in_dir("s.lock"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    assert_int_equal(close(listen_there(x.path, true)), 0);
    sf_listen(&x);
    (void)close(sf_client(&x));
    zsd_server_close(&x.daemon);
    assert_int_equal(sf_files(&x), 0);
}

/** A dying daemon holds its lock for a moment after its death: the start waits. */
static void a_dying_daemon(void **state)
{
    pid_t child;
    int p[2], status;
    char c;

    (void)state;
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int fd = open(in_dir("s.lock"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

        (void)flock(fd, LOCK_EX);
        (void)write(p[1], "x", 1);
        (void)usleep(200000);
        _exit(0);
    }
    assert_int_equal(read(p[0], &c, 1), 1);
    sf_listen(&x);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(close(p[0]), 0);
    assert_int_equal(close(p[1]), 0);
}

/** The lock file vanishes after it was opened and before it is locked: the name decides. */
static void a_lock_that_lost_its_name(void **state)
{
    pid_t child;
    int p[2], status, fd;
    char c;

    (void)state;
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        fd = open(in_dir("s.lock"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        (void)flock(fd, LOCK_EX);
        (void)write(p[1], "x", 1);
        (void)usleep(200000);
        (void)unlink(in_dir("s.lock")); /* the orderly end of a daemon */
        (void)open(in_dir("s.lock"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600); /* and the next */
        _exit(0);
    }
    assert_int_equal(read(p[0], &c, 1), 1);
    sf_listen(&x);
    fd = open(in_dir("s.lock"), O_WRONLY | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), -1); /* the file that has the name is locked */
    assert_int_equal(close(fd), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(close(p[0]), 0);
    assert_int_equal(close(p[1]), 0);
}

static void a_lock_that_is_a_link(void **state)
{
    (void)state;
    assert_int_equal(symlink("/etc/passwd", in_dir("s.lock")), 0);
    refused(-ELOOP, "lock file");
    assert_int_equal(unlink(in_dir("s.lock")), 0);
}

/** Another process has replaced our file: it is not ours to remove. */
static void not_our_file_any_more(void **state)
{
    int fd;

    (void)state;
    sf_listen(&x);
    assert_int_equal(unlink(x.path), 0);
    fd = listen_there(x.path, true);
    zsd_server_close(&x.daemon);
    assert_int_equal(access(x.path, F_OK), 0);
    assert_int_equal(close(fd), 0);
    assert_int_equal(unlink(x.path), 0);
}

/* ---- limits */

static void expect_refusal(int fd)
{
    struct zp_frame frame;
    char body[256];

    sf_hello(fd, 1, 1, "too many");
    sf_pump(&x);
    assert_int_equal(sf_receive(fd, &frame, body, sizeof(body)), 1);
    assert_int_equal(frame.kind, ZP_REPLY);
    assert_int_equal(frame.method, ZP_HELLO);
    assert_int_equal(frame.tag, 1);
    assert_int_equal(frame.code, -EUSERS);
    assert_non_null(strstr(body, "2 connections already"));
    assert_non_null(strstr(body, "(clients_max)"));
    sf_dead(&x, fd);
}

#define OTHER 65534u /* a user that is neither root nor the daemon's */

static void only_root(void)
{
    if (geteuid() != 0)
        ztest_skip("only root can become another user");
}

static int client_as(uid_t uid)
{
    int fd = sf_connect_as(&x, uid);

    sf_hello(fd, 1, 1, "test");
    assert_int_equal(sf_reply(&x, fd, 1), 0);
    return fd;
}

/** Run as another user: its own limit does not apply first. */
static void listen_two(void)
{
    only_root();
    x.daemon.config.clients_max = 2;
    x.daemon.config.user_clients_max = 100;
    sf_listen(&x);
}

static void one_client_too_many(void **state)
{
    int a, b, c;

    (void)state;
    listen_two();
    a = client_as(OTHER);
    b = client_as(OTHER);
    c = sf_connect_as(&x, OTHER);
    expect_refusal(c);
    assert_int_equal(x.daemon.clients, 2);
    assert_int_equal(x.daemon.stats.clients_refused, 1);
    sf_alive(&x, a);
    sf_alive(&x, b);
    assert_int_equal(close(a), 0);
    sf_pump(&x);
    c = sf_client(&x); /* there is room again */
    assert_int_equal(x.daemon.stats.clients_accepted, 3);
    assert_int_equal(close(b), 0);
    assert_int_equal(close(c), 0);
}

static void the_waiting_room(void **state)
{
    int a, b, waiting[ZSD_REFUSED_MAX + 3];
    struct zp_frame frame;

    (void)state;
    listen_two();
    a = client_as(OTHER);
    b = client_as(OTHER);
    for (size_t i = 0; i < ZB_COUNT(waiting); i++) {
        waiting[i] = sf_connect_as(&x, OTHER);
        sf_pump(&x);
    }
    assert_int_equal(x.daemon.server->nrefused, ZSD_REFUSED_MAX);
    for (size_t i = 0; i < 3; i++) /* those that had waited longest were dropped */
        sf_dead(&x, waiting[i]);
    for (size_t i = 3; i < 6; i++)
        expect_refusal(waiting[i]);
    sf_send(waiting[6], ZP_ONEWAY, ZP_RELEASE, 0, NULL, 0); /* not a valid first frame */
    sf_dead(&x, waiting[6]);
    sf_send_bytes(waiting[7], "garbage", 7);
    sf_dead(&x, waiting[7]);
    assert_int_equal(sf_receive(waiting[8], &frame, NULL, 0), 0);
    for (size_t i = 8; i < ZB_COUNT(waiting); i++)
        assert_int_equal(close(waiting[i]), 0);
    sf_pump(&x);
    assert_int_equal(x.daemon.server->nrefused, 0);
    assert_int_equal(x.daemon.clients, 2);
    assert_int_equal(close(a), 0);
    assert_int_equal(close(b), 0);
}

/** When all places are taken, the administrator can still inspect, but not train. */
static void places_for_the_administrator(void **state)
{
    int a, b, admin[ZSD_ADMIN_PLACES], c;
    struct zp_frame frame;
    char body[256];

    (void)state;
    listen_two();
    a = client_as(OTHER);
    b = client_as(OTHER);
    for (unsigned i = 0; i < ZSD_ADMIN_PLACES; i++)
        admin[i] = sf_client(&x);
    sf_alive(&x, admin[0]);
    sf_send(admin[0], ZP_REQUEST, ZP_JOB_OPEN, 5, NULL, 0);
    sf_pump(&x);
    assert_int_equal(sf_receive(admin[0], &frame, body, sizeof(body)), 1);
    assert_int_equal(frame.code, -EUSERS);
    assert_non_null(strstr(body, "job-open is refused there"));
    c = sf_connect(&x);
    sf_hello(c, 1, 1, "too many");
    assert_int_equal(sf_reply(&x, c, 1), -EUSERS);
    sf_dead(&x, c);
    assert_int_equal(close(a), 0);
    assert_int_equal(close(b), 0);
    for (unsigned i = 0; i < ZSD_ADMIN_PLACES; i++)
        assert_int_equal(close(admin[i]), 0);
}

/** One user does not take the places of another. */
static void one_user_too_many(void **state)
{
    int a, b, c;
    struct zp_frame frame;
    char body[256];

    (void)state;
    only_root();
    x.daemon.config.clients_max = 4;
    x.daemon.config.user_clients_max = 1;
    sf_listen(&x);
    a = client_as(OTHER);
    b = sf_connect_as(&x, OTHER);
    sf_hello(b, 1, 1, "too many");
    sf_pump(&x);
    assert_int_equal(sf_receive(b, &frame, body, sizeof(body)), 1);
    assert_int_equal(frame.code, -EDQUOT);
    assert_non_null(strstr(body, "user 65534 has 1 connections already"));
    assert_non_null(strstr(body, "(user_clients_max)"));
    sf_dead(&x, b);
    c = client_as(OTHER - 1);
    assert_int_equal(close(a), 0);
    sf_pump(&x);
    b = client_as(OTHER); /* there is room again */
    assert_int_equal(close(b), 0);
    assert_int_equal(close(c), 0);
}

/** A connection without hello does not keep its place; one with hello does. */
static void no_hello_in_time(void **state)
{
    int silent, half, good;

    (void)state;
    x.daemon.config.hello_ms = 30;
    sf_listen(&x);
    good = sf_client(&x);
    silent = sf_connect(&x);
    half = sf_connect(&x);
    sf_send_bytes(half, "z", 1);
    sf_pump(&x);
    assert_int_equal(x.daemon.clients, 3);
    assert_true(sf_pump_until(&x, &x.daemon.clients, 1));
    assert_int_equal(x.daemon.stats.clients_dropped, 2);
    sf_dead(&x, silent);
    sf_dead(&x, half);
    sf_alive(&x, good);
    assert_int_equal(uv_backend_timeout(&x.daemon.loop->uv), -1); /* no deadline is armed */
    assert_int_equal(close(good), 0);
}

static unsigned trims;

/* Replaces the C library's. */
int malloc_trim(size_t pad)
{
    (void)pad;
    trims++;
    return 0;
}

/** Memory that clients caused goes back to the system when the last of them has left. */
static void memory_goes_back(void **state)
{
    int a, b;

    (void)state;
    sf_listen(&x);
    a = sf_client(&x);
    b = sf_client(&x);
    assert_int_equal(close(a), 0);
    sf_pump(&x);
    assert_false(uv_is_active((uv_handle_t *)&x.daemon.server->trim)); /* one is still there */
    assert_int_equal(close(b), 0);
    assert_true(sf_pump_until(&x, &trims, 1));
}

/** No descriptors are left: new connections wait, the others are served, and nothing spins. */
static void no_descriptors_left(void **state)
{
    struct rlimit before, low;
    int a, b;
    unsigned turns;

    (void)state;
    sf_listen(&x);
    a = sf_client(&x);
    b = sf_connect(&x);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    sf_alive(&x, a);
    assert_int_equal(x.daemon.clients, 1);
    turns = core_double.turns;
    assert_false(sf_pump_until(&x, &x.daemon.clients, 2)); /* two seconds */
    assert_true(core_double.turns - turns < 100);          /* one in each ZSD_ACCEPT_PAUSE_MS */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_true(sf_pump_until(&x, &x.daemon.clients, 2));
    sf_hello(b, 1, 1, "patient");
    assert_int_equal(sf_reply(&x, b, 1), 0);
    assert_int_equal(close(a), 0);
    assert_int_equal(close(b), 0);
}

static void many_connect_at_once(void **state)
{
    int fd[100];

    (void)state;
    sf_listen(&x);
    for (size_t i = 0; i < ZB_COUNT(fd); i++)
        fd[i] = sf_connect(&x);
    sf_pump(&x);
    assert_int_equal(x.daemon.clients, ZB_COUNT(fd));
    for (size_t i = 0; i < ZB_COUNT(fd); i++)
        assert_int_equal(close(fd[i]), 0);
    sf_pump(&x);
    assert_int_equal(x.daemon.clients, 0);
    assert_int_equal(core_double.gone, ZB_COUNT(fd));
}

/* ---- the end */

static void drained(void **state)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd, late;

    (void)state;
    sf_listen(&x);
    fd = sf_client(&x);
    late = sf_connect(&x); /* in the queue, not accepted */
    zsd_server_drain(&x.daemon);
    assert_int_equal(sf_files(&x), 0);
    sf_dead(&x, late);
    late = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)strcpy(a.sun_path, x.path);
    assert_int_equal(connect(late, (const struct sockaddr *)&a, sizeof(a)), -1);
    assert_int_equal(errno, ENOENT);
    sf_alive(&x, fd); /* a connected client is served */
    sf_send(fd, ZP_REQUEST, ZP_FETCH, 1, NULL, 0);
    sf_pump(&x);
    core_answer(10);
    assert_true(zsd_server_unsent(&x.daemon) > 0);
    assert_int_equal(sf_reply(&x, fd, 1), 0);
    assert_int_equal(zsd_server_unsent(&x.daemon), 0);
    zsd_server_drain(&x.daemon); /* a second call does nothing */
    assert_int_equal(close(fd), 0);
    assert_int_equal(close(late), 0);
}

#define TEST(name) cmocka_unit_test_prestate_setup_teardown(name, setup, sf_teardown, &x)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(modes_of_the_socket),
        TEST(a_group),
        TEST(no_such_group),
        TEST(too_long),
        TEST(no_directory),
        TEST(no_directory_at_all),
        TEST(the_directory_of_the_rule),
        TEST(no_socket),
        TEST(another_program_listens),
        TEST(another_program_is_too_busy_to_answer),
        TEST(a_dead_socket),
        TEST(a_socket_that_never_listened),
        TEST(another_daemon),
        TEST(a_dead_daemon),
        TEST(a_dying_daemon),
        TEST(a_lock_that_lost_its_name),
        TEST(a_lock_that_is_a_link),
        TEST(not_our_file_any_more),
        TEST(one_client_too_many),
        TEST(the_waiting_room),
        TEST(places_for_the_administrator),
        TEST(one_user_too_many),
        TEST(no_hello_in_time),
        TEST(memory_goes_back),
        TEST(no_descriptors_left),
        TEST(many_connect_at_once),
        TEST(drained),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
