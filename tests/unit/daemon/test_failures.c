#include "tests/ztest.h"

#include "tests/unit/daemon/server_fixture.h"

#include <errno.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config/config.h"
#include "daemon/disk/datadir.h"
#include "daemon/startup.h"

/*
 * The first system call or allocation of our code fails, then the second, and so on until the
 * operation succeeds. So every error path is taken, and must leave nothing behind (the address
 * sanitizer checks, too).
 */

static unsigned asked, fail_at; /* 0: nothing fails */

/** Whether this call is to fail. */
static bool fails(void)
{
    return ++asked == fail_at;
}

/* The linker redirects our libraries' calls here (--wrap). Calls of other threads are not
 * counted, and never fail. */
static pthread_t main_thread;

#define WRAP(type, name, failed, params, args)                     \
    type __real_##name params;                                     \
    type __wrap_##name params;                                     \
    type __wrap_##name params                                      \
    {                                                              \
        if (pthread_equal(pthread_self(), main_thread) && fails()) \
            return failed;                                         \
        return __real_##name args;                                 \
    }

static void *no_memory(void)
{
    errno = ENOMEM;
    return NULL;
}

static int no(int code)
{
    errno = code;
    return -1;
}

WRAP(void *, malloc, no_memory(), (size_t n), (n))
WRAP(void *, calloc, no_memory(), (size_t n, size_t size), (n, size))
WRAP(int, eventfd, no(EMFILE), (unsigned n, int flags), (n, flags))
WRAP(int, socket, no(EMFILE), (int domain, int type, int protocol), (domain, type, protocol))
WRAP(int, bind, no(ENOSPC), (int fd, const struct sockaddr *a, socklen_t len), (fd, a, len))
WRAP(int, listen, no(EADDRNOTAVAIL), (int fd, int backlog), (fd, backlog))
WRAP(int, getsockopt, no(ENOBUFS), (int fd, int level, int name, void *value, socklen_t *len),
     (fd, level, name, value, len))
WRAP(int, chown, no(EPERM), (const char *path, uid_t uid, gid_t gid), (path, uid, gid))
WRAP(int, chmod, no(EPERM), (const char *path, mode_t mode), (path, mode))
WRAP(int, unlink, no(EPERM), (const char *path), (path))
WRAP(int, flock, no(ENOLCK), (int fd, int operation), (fd, operation))
WRAP(int, fstat, no(EIO), (int fd, struct stat *st), (fd, st))
WRAP(ssize_t, read, no(EIO), (int fd, void *bytes, size_t n), (fd, bytes, n))
WRAP(ssize_t, getrandom, no(ENOSYS), (void *bytes, size_t n, unsigned flags), (bytes, n, flags))
WRAP(int, pthread_create, EAGAIN,
     (pthread_t * thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg),
     (thread, attr, run, arg))
WRAP(int, uv_loop_init, UV_EMFILE, (uv_loop_t * loop), (loop))
WRAP(int, uv_poll_init, UV_EPERM, (uv_loop_t * loop, uv_poll_t *poll, int fd), (loop, poll, fd))
WRAP(int, uv_signal_start, UV_EINVAL, (uv_signal_t * handle, uv_signal_cb cb, int signum),
     (handle, cb, signum))

static char dir[32];

static const char *in_dir(const char *name)
{
    static char path[2][64];
    static unsigned next;
    char *p = path[next++ % 2];

    (void)snprintf(p, sizeof(path[0]), "%s/%s", dir, name);
    return p;
}

static void remove_all(void)
{
    (void)unlink(in_dir("data/" ZSD_DATA_FILE));
    (void)rmdir(in_dir("data"));
    (void)unlink(in_dir("s.lock")); /* if locking failed, the file stays */
    if (rmdir(dir) != 0)
        fail_msg("something was left in %s", dir);
}

static void the_start(void **state)
{
    static struct zsd d;
    char *argv[] = { (char *)(uintptr_t) "zshardd", NULL };
    const struct group *group = getgrgid(getegid());
    unsigned failures = 0;
    int rc = -1;

    (void)state;
    zb_log_set_level(ZB_LOG_ERROR);
    for (unsigned nth = 1; rc < 0; nth++) {
        struct zb_err err = { 0 };

        memset(&core_double, 0, sizeof(core_double));
        memset(&d, 0, sizeof(d));
        (void)strcpy(dir, "/tmp/zshard-fail-XXXXXX");
        assert_non_null(mkdtemp(dir));
        assert_int_equal(zsd_config_load(&d.config, 1, argv, NULL, &err), 0);
        (void)strcpy(d.config.socket, in_dir("s"));
        (void)strcpy(d.config.data, in_dir("data"));
        if (group)
            (void)snprintf(d.config.socket_group, sizeof(d.config.socket_group), "%s",
                           group->gr_name);
        (void)strcpy(d.config.io, "threads"); /* if io_uring failed, it would be replaced */
        d.config.nvme_bytes = ZB_MIB;
        d.config.threads = 2;
        asked = 0;
        fail_at = nth;
        rc = zsd_startup(&d, &err);
        if (rc == 0)
            rc = zsd_loop_end_on_signals(&d, &(struct zsd_patience){ 0, 1000, 1000 }, &err);
        if (asked < nth)
            assert_int_equal(rc, 0); /* nothing failed */
        fail_at = 0;
        if (rc < 0) {
            failures++;
            assert_int_equal(err.code, rc);
            assert_true(err.text[0] != '\0');
        }
        zsd_shutdown(&d);
        if (d.datadir || d.engine || d.compute || d.core || d.loop || d.server)
            fail_msg("%u: something is still up", nth);
        assert_int_equal(core_double.news, core_double.frees);
        remove_all();
        rc = asked < nth ? 0 : -1; /* some may fail without harm: the next one follows */
    }
    assert_true(failures > 20);
}

/** A client connects, sends hello and a request: it is served, or hung up on; the next one is
 * served. */
static void a_client(void **state)
{
    static struct server_fixture x;
    bool through = false;
    unsigned hung_up = 0;

    (void)state;
    for (unsigned nth = 1; !through; nth++) {
        struct zp_frame frame;
        unsigned served = 0;
        int fd, next;

        sf_open(&x);
        sf_listen(&x);
        fd = sf_connect(&x);
        sf_hello(fd, 1, 1, "unlucky");
        sf_send(fd, ZP_REQUEST, ZP_LIST, 2, NULL, 0);
        asked = 0;
        fail_at = nth;
        sf_pump(&x);
        through = asked < nth;
        fail_at = 0;
        while (sf_receive(fd, &frame, NULL, 0) == 1)
            served++;
        if (through)
            assert_int_equal(served, 2);
        hung_up += served < 2;
        next = sf_connect(&x); /* accepted after the pause, if there is one */
        sf_hello(next, 1, 1, "lucky");
        assert_true(sf_pump_until(&x, &x.daemon.clients, 1 + (served == 2)));
        assert_int_equal(sf_reply(&x, next, 1), 0);
        assert_int_equal(close(fd), 0);
        assert_int_equal(close(next), 0);
        sf_close(&x);
    }
    assert_true(hung_up >= 4);
}

static void a_configuration(void **state)
{
    char conf[] = "/tmp/zshard-fail-XXXXXX", program[] = "zshardd", option[] = "--config";
    char *argv[] = { program, option, conf, NULL };
    int fd = mkstemp(conf), rc = -1;

    (void)state;
    assert_int_equal(write(fd, "jobs_max = 5\n", 13), 13);
    assert_int_equal(close(fd), 0);
    for (unsigned nth = 1; rc < 0; nth++) {
        struct zsd_config c;
        struct zb_err err = { 0 };

        asked = 0;
        fail_at = nth;
        rc = zsd_config_load(&c, 3, argv, NULL, &err);
        assert_int_equal(rc < 0, asked >= nth);
        fail_at = 0;
        assert_int_equal(err.code, rc);
        assert_int_equal(rc < 0, err.text[0] != '\0');
        if (rc == 0)
            assert_int_equal(c.jobs_max, 5);
        assert_true(nth < 20);
    }
    assert_int_equal(unlink(conf), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_start),
        cmocka_unit_test(a_client),
        cmocka_unit_test(a_configuration),
    };

    main_thread = pthread_self();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
