#include "tests/ztest.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/util.h"
#include "daemon/os/notify.h"

static void told(void **state)
{
    char dir[] = "/tmp/zshard-notify-XXXXXX", path[64], abstract[64];
    const char *names[] = { path, abstract };

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof(path), "%s/n", dir);
    (void)snprintf(abstract, sizeof(abstract), "@zshard-notify-%ld", (long)getpid());
    for (size_t i = 0; i < ZB_COUNT(names); i++) {
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        char text[32] = "";

        (void)strcpy(a.sun_path, names[i]);
        if (a.sun_path[0] == '@')
            a.sun_path[0] = '\0';
        assert_int_equal(
            bind(fd, (const struct sockaddr *)&a,
                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(names[i]))),
            0);
        assert_int_equal(setenv("NOTIFY_SOCKET", names[i], 1), 0);
        assert_int_equal(zsd_notify("READY=1"), 0);
        assert_int_equal(recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT), 7);
        assert_string_equal(text, "READY=1");
        assert_int_equal(close(fd), 0);
    }
    assert_int_equal(zsd_notify("READY=1"), -ECONNREFUSED); /* the service manager has gone */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void nobody_to_tell(void **state)
{
    char longer[200];

    (void)state;
    memset(longer, 'a', sizeof(longer));
    longer[0] = '/';
    longer[sizeof(longer) - 1] = '\0';
    assert_int_equal(unsetenv("NOTIFY_SOCKET"), 0);
    assert_int_equal(zsd_notify("READY=1"), 0);
    assert_int_equal(setenv("NOTIFY_SOCKET", "", 1), 0);
    assert_int_equal(zsd_notify("READY=1"), 0);
    assert_int_equal(setenv("NOTIFY_SOCKET", "relative", 1), 0);
    assert_int_equal(zsd_notify("READY=1"), -EINVAL);
    assert_int_equal(setenv("NOTIFY_SOCKET", longer, 1), 0);
    assert_int_equal(zsd_notify("READY=1"), -EINVAL);
    assert_int_equal(setenv("NOTIFY_SOCKET", "/no/such/socket", 1), 0);
    assert_int_equal(zsd_notify("READY=1"), -ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(told),
        cmocka_unit_test(nobody_to_tell),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
