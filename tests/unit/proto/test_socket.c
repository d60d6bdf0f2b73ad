#include "tests/ztest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/util.h"
#include "proto/socket.h"

#define TEN     "0123456789"
#define HUNDRED TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN

static const struct {
    const char *name, *path, *env, *xdg, *want;
    int rc;
} cases[] = {
    { "a path given", "/tmp/s", "/tmp/e", "/tmp/x", "/tmp/s", 0 },
    { "the variable", NULL, "/tmp/e", "/tmp/x", "/tmp/e", 0 },
    { "the runtime directory", NULL, NULL, "/tmp/x", "/tmp/x/zshard.sock", 0 },
    { "a variable set to nothing", NULL, "", "/tmp/x", "/tmp/x/zshard.sock", 0 },
    { "nothing", NULL, NULL, NULL, "/run/zshard/zshard.sock", 0 },
    { "a runtime directory of nothing", NULL, NULL, "", "/run/zshard/zshard.sock", 0 },
    { "an empty path", "", "/tmp/e", "/tmp/x", NULL, -EINVAL },
    { "107 bytes fit", HUNDRED "abcdefg", NULL, NULL, HUNDRED "abcdefg", 0 },
    { "108 do not", HUNDRED "abcdefgh", NULL, NULL, NULL, -ENAMETOOLONG },
    { "a long variable", NULL, HUNDRED TEN, NULL, NULL, -ENAMETOOLONG },
    { "a long directory", NULL, NULL, HUNDRED, NULL, -ENAMETOOLONG },
};

static void set_env(const char *name, const char *value)
{
    if (value)
        assert_int_equal(setenv(name, value, 1), 0);
    else
        assert_int_equal(unsetenv(name), 0);
}

static void table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct sockaddr_un a = { .sun_family = 77 };
        struct zb_err err = { 0 };
        int rc;

        set_env("ZSHARD_SOCKET", cases[i].env);
        set_env("XDG_RUNTIME_DIR", cases[i].xdg);
        rc = zp_socket_address(cases[i].path, &a, &err);
        if (rc != cases[i].rc || err.code != rc)
            fail_msg("%s: got %d '%s'", cases[i].name, rc, err.text);
        if (rc == 0 && (a.sun_family != AF_UNIX || strcmp(a.sun_path, cases[i].want) != 0))
            fail_msg("%s: got '%s'", cases[i].name, a.sun_path);
        if (rc < 0 && (a.sun_family != 77 || !err.text[0]))
            fail_msg("%s: the address was changed, or there is no message", cases[i].name);
    }
}

/* What a client tries. */
static void tried(void **state)
{
    static const struct {
        const char *path, *env, *xdg, *want[ZP_SOCKETS_MAX];
        int rc;
    } rows[] = {
        { "/tmp/s", "/tmp/e", "/tmp/x", { "/tmp/s" }, 1 },
        { NULL, "/tmp/e", "/tmp/x", { "/tmp/e" }, 1 },
        { NULL, "", "/tmp/x", { "/tmp/x/zshard.sock", "/run/zshard/zshard.sock" }, 2 },
        { NULL, NULL, NULL, { "/run/zshard/zshard.sock" }, 1 },
        { NULL, NULL, "", { "/run/zshard/zshard.sock" }, 1 },
        { "", "/tmp/e", "/tmp/x", { NULL }, -EINVAL },
        { NULL, NULL, HUNDRED, { NULL }, -ENAMETOOLONG },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct sockaddr_un a[ZP_SOCKETS_MAX];
        struct zb_err err = { 0 };
        int rc;

        set_env("ZSHARD_SOCKET", rows[i].env);
        set_env("XDG_RUNTIME_DIR", rows[i].xdg);
        rc = zp_socket_addresses(rows[i].path, a, &err);
        if (rc != rows[i].rc)
            fail_msg("row %zu: got %d '%s'", i, rc, err.text);
        for (int k = 0; k < rc; k++)
            assert_string_equal(a[k].sun_path, rows[i].want[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tried),
        cmocka_unit_test(table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
