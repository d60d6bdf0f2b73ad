#include "tests/ztest.h"

#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "daemon/config/config.h"
#include "kernels/zk.h"
#include "nvme/zn.h"

static char dir[] = "/tmp/zshard-config-XXXXXX";
static char path[64];

static void file_write(const char *bytes, size_t len)
{
    FILE *f;

    (void)unlink(path); /* a truncated file is written out when it is closed */
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

/** Loads with these arguments (NULL-terminated). */
static int load(struct zsd_config *config, const char **ret_text, struct zb_err *err,
                const char *const *args)
{
    char *argv[32] = { (char *)(uintptr_t) "zshardd" };
    int argc = 1;

    for (; args[argc - 1]; argc++) {
        assert_true((size_t)argc + 1 < ZB_COUNT(argv));
        argv[argc] = (char *)(uintptr_t)args[argc - 1];
    }
    memset(err, 0, sizeof(*err));
    return zsd_config_load(config, argc, argv, ret_text, err);
}

#define LOAD(config, err, ...) load(config, NULL, err, (const char *const[]){ __VA_ARGS__, NULL })

static int load_file(struct zsd_config *config, struct zb_err *err, const char *text, size_t len)
{
    file_write(text, len);
    return LOAD(config, err, "--config", path);
}

/* ---- values */

static void defaults(void **state)
{
    struct zsd_config c;
    struct zb_err err;

    (void)state;
    assert_int_equal(load(&c, NULL, &err, (const char *const[]){ NULL }), 0);
    assert_string_equal(c.socket, "");
    assert_string_equal(c.data, "");
    assert_true(c.host_bytes == ZSD_AUTO);
    assert_true(c.nvme_bytes == ZSD_AUTO);
    assert_string_equal(c.io, "auto");
    assert_int_equal(c.io_depth, ZN_DEPTH_DEFAULT);
    assert_string_equal(c.cpus, "");
    assert_int_equal(c.threads, 0);
    assert_int_equal(c.page_elems, 262144);
    assert_int_equal(c.ring_bytes, 0);
    assert_int_equal(c.clients_max, 1024);
    assert_int_equal(c.jobs_max, 64);
    assert_int_equal(c.user_clients_max, 0);
    assert_int_equal(c.user_jobs_max, 0);
    assert_int_equal(c.timeout_ms, 60000);
    assert_int_equal(c.hello_ms, 10000);
    assert_string_equal(c.kernels, "auto");
    assert_string_equal(c.socket_group, "");
    assert_int_equal(c.log_level, ZB_LOG_INFO);
}

static void every_key_by_file(void **state)
{
    static const char text[] = "socket = \"/run/x.sock\"\n"
                               "data = '/var/lib/x y'\n"
                               "host_bytes = 1.5G # a comment\n"
                               "// and /* another \" */\n"
                               "// and /* another \" */\n"
                               "nvme_bytes = 0\n"
                               "io=threads\n"
                               "io_depth = 4096\n"
                               "cpus = \"0-1023\"\n"
                               "threads = 3\n"
                               "paths = { /mnt/b,\n \"/mnt/c d\" }\n"
                               "page_elems = 8192\n"
                               "ring_bytes = 5000001\n"
                               "clients_max = 1\n"
                               "user_clients_max = 1\n"
                               "jobs_max = 4096\n"
                               "user_jobs_max = 7\n"
                               "timeout_ms = 86400000\n"
                               "hello_ms = 5\n"
                               "kernels = ref\n"
                               "socket_group = root\n"
                               "log_level = debug\n";
    struct zsd_config c;
    struct zb_err err;

    (void)state;
    if (load_file(&c, &err, text, strlen(text)) != 0)
        fail_msg("%s", err.text);
    assert_string_equal(c.socket, "/run/x.sock");
    assert_string_equal(c.data, "/var/lib/x y");
    assert_true(c.host_bytes == 3 * ZB_GIB / 2);
    assert_int_equal(c.nvme_bytes, 0);
    assert_string_equal(c.paths, "/mnt/b:/mnt/c d");
    assert_string_equal(c.io, "threads");
    assert_int_equal(c.io_depth, 4096);
    assert_string_equal(c.cpus, "0-1023");
    assert_int_equal(c.threads, 3);
    assert_int_equal(c.page_elems, 8192);
    assert_int_equal(c.ring_bytes, 4997120); /* whole 4 KiB */
    assert_int_equal(c.clients_max, 1);
    assert_int_equal(c.jobs_max, 4096);
    assert_int_equal(c.user_clients_max, 1);
    assert_int_equal(c.user_jobs_max, 7);
    assert_int_equal(c.timeout_ms, 86400000);
    assert_int_equal(c.hello_ms, 5);
    assert_string_equal(c.kernels, "ref");
    assert_string_equal(c.socket_group, "root");
    assert_int_equal(c.log_level, ZB_LOG_DEBUG);
}

static void every_key_by_command_line(void **state)
{
    const struct zb_opt *rows = zsd_options();

    (void)state;
    for (size_t i = 0; i < zb_opt_count(rows); i++) {
        char name[64], joined[128];
        struct zsd_config c;
        struct zb_err err;

        (void)snprintf(name, sizeof(name), "--%s", rows[i].name);
        (void)snprintf(joined, sizeof(joined), "%s=%s", name, rows[i].def);
        if (LOAD(&c, &err, name, rows[i].def) != 0 || LOAD(&c, &err, joined) != 0)
            fail_msg("%s: %s", name, err.text);
    }
}

static void the_command_line_wins(void **state)
{
    static const char text[] = "jobs_max = 5\nclients_max = 6\n";
    struct zsd_config c;
    struct zb_err err;

    (void)state;
    file_write(text, strlen(text));
    assert_int_equal(LOAD(&c, &err, "--jobs-max", "7", "--config", path, "--jobs-max=8"), 0);
    assert_int_equal(c.jobs_max, 8); /* the last of them */
    assert_int_equal(c.clients_max, 6);
}

/* ---- errors in a file: every message begins with FILE:LINE */

static const struct {
    const char *name, *text;
    unsigned line;
    const char *says;
} file_cases[] = {
    { "unknown key", "jobs_max = 1\n\nhost_byte = 1G\n", 3,
      "unknown option 'host_byte'; did you mean 'host_bytes'?" },
    { "a key that is a prefix", "host = 1G\n", 1,
      "unknown option 'host'; did you mean 'host_bytes'?" },
    { "repeated key", "jobs_max = 1\n# a comment\njobs_max = 1\n", 3,
      "jobs_max is given twice: first on line 1" },
    { "no unit of ours", "\nhost_bytes = 512X\n", 2,
      "host_bytes must be a size such as 1.5G or auto, not '512X'" },
    { "decimal units", "host_bytes = 512MB\n", 1, "host_bytes must be a size" },
    { "negative", "host_bytes = -1\n", 1, "host_bytes must be a size" },
    { "size too small", "host_bytes = 4096\n", 1, "host_bytes must be 1M to 1P or auto, not 4096" },
    { "size too large", "nvme_bytes = 2048T\n", 1, "or 0 or auto, not 2048T" },
    { "size that overflows", "nvme_bytes = 99999999P\n", 1, "or 0 or auto, not 99999999P" },
    { "0 where it means nothing", "host_bytes = 0\n", 1,
      "host_bytes must be 1M to 1P or auto, not 0" },
    { "auto where there is none", "io_depth = auto\n", 1,
      "io_depth must be a whole number, not 'auto'" },
    { "a unit on a count", "jobs_max = 1K\n", 1, "jobs_max must be a whole number, not '1K'" },
    { "a unit on a time", "timeout_ms = 60s\n", 1, "timeout_ms must be a whole number, not '60s'" },
    { "a fraction", "threads = 1.5\n", 1, "threads must be a whole number or auto, not '1.5'" },
    { "a word for a number", "clients_max = many\n", 1,
      "clients_max must be a whole number, not 'many'" },
    { "an empty number", "clients_max = \"\"\n", 1, "clients_max must be a whole number, not ''" },
    { "count too small", "clients_max = 0\n", 1, "clients_max must be 1 to 65536, not 0" },
    { "count too large", "io_depth = 4097\n", 1, "io_depth must be 1 to 4096, not 4097" },
    { "count above 32 bits", "jobs_max = 4294967297\n", 1,
      "jobs_max must be 1 to 4096, not 4294967297" },
    { "count above 64 bits", "jobs_max = 18446744073709551617\n", 1, "must be 1 to 4096" },
    { "count far above 64 bits", "jobs_max = 92233720368547758096\n", 1, "must be 1 to 4096" },
    { "no multiple", "page_elems = 5000\n", 1, "page_elems must be a multiple of 4096, not 5000" },
    { "no choice", "io = libaio\n", 1, "io must be auto, uring, threads or fixed, not 'libaio'" },
    { "part of a choice", "io = uri\n", 1, "not 'uri'" },
    { "another part of a choice", "io = ring\n", 1, "not 'ring'" },
    { "two choices", "io = \"auto uring\"\n", 1, "not 'auto uring'" },
    { "no choice at all", "io = \"\"\n", 1, "not ''" },
    { "unknown kernels", "kernels = sse\n", 1, "kernels: unknown kernels 'sse'" },
    { "empty kernels", "kernels = ''\n", 1, "kernels must not be empty" },
    { "unknown level", "log_level = loud\n", 1,
      "log_level must be error, warn, info or debug, not 'loud'" },
    { "no CPU list", "cpus = \"a-b\"\n", 1, "cpus: 'a-b' is not a CPU list" },
    { "no CPU of ours", "cpus = \"1023\"\n", 1, "cpus: this process may use none" },
    { "no such group", "socket_group = no-such-group\n", 1,
      "socket_group: there is no group 'no-such-group'" },
    { "a group with a long name",
      "socket_group = "
      "gggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggggg\n",
      1, "socket_group: " },
    { "a socket's path that is too long",
      "socket = "
      "\"/tmp/sssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss"
      "ssssssssssssssssssssssssssssssssssssss\"\n",
      1, "socket: the socket's path is " },
    { "no value", "jobs_max =\n", 2, "jobs_max needs a value" },
    { "no equals sign", "jobs_max 5\n", 1, "jobs_max has no '=' after it" },
    { "two values", "jobs_max = 5 6\n", 1, "unknown option '6'" },
    { "a list", "jobs_max = {5, 6}\n", 1, "jobs_max needs a value, not a list" },
    { "a section", "jobs {\n}\n", 1, "unknown option 'jobs'" },
    { "appended", "jobs_max += 5\n", 1, "jobs_max has no '=' after it" },
    { "a quote that never ends", "data = \"/var\n", 2, "a quote that never ends" },
    { "a control character", "data = \"/var\x01\"\nio = x\n", 2, "io must be" },
    { "not text",
      "\x7f"
      "ELF\x02\x01\x01",
      1, "unknown option" },
    { "a sign", "= 5\n", 1, "'=' where an option should be" },
    { "a name of the command line", "jobs-max = 5\n", 1,
      "unknown option 'jobs-max'; did you mean 'jobs_max'?" },
    { "a star behind a name", "clients_max* = 5\n", 1, "unknown option 'clients_max*'" },
    { "a quote in a value's place", "threads = auto\"kernels = auto\n", 2, "a quote that never" },
    { "a list that never ends", "paths = {a, b\n", 2, "paths: a list is { TEXT, TEXT ... }" },
    { "a list without commas", "paths = {a b}\n", 1, "paths: a list is { TEXT, TEXT ... }" },
    { "a list of lists", "paths = {a, {b}}\n", 1, "paths: a list is { TEXT, TEXT ... }" },
    { "two directories in one", "paths = {a, 'b:c'}\n", 1, "'b:c' cannot be in a list" },
    { "a directory without a name", "paths = {a, ''}\n", 1, "'' cannot be in a list" },
    { "a list twice", "paths = {a}\npaths = {b}\n", 2, "paths is given twice: first on line 1" },
    { "behind comments", "# a\n#\n // b\n/* c\n * d\n */ jobs_max = 5 # e\n# f\nio = x\n", 8,
      "threads or fixed, not 'x'" },
    { "on the line of a comment's end", "/* a\n*/ io = x\n", 2, "threads or fixed, not 'x'" },
    { "behind quotes with what begins a comment",
      "data = \"/a#b//c/*\\\"#\"\nsocket = '#\\'#'\njobs_max = 5\nio = x # \"\n", 4,
      "threads or fixed, not 'x'" },
    { "a quote at a comment's end", "data = /* a */\"/b#\"\nio = x\n", 2,
      "threads or fixed, not 'x'" },
    { "a comment at a comment's end", "/* a */# b\nio = x\n", 2, "threads or fixed, not 'x'" },
    { "a comment that never ends", "jobs_max = 5\n/* io = x\n", 2, "a comment that never ends" },
};

static void file_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(file_cases); i++) {
        struct zsd_config c;
        struct zb_err err;
        char where[96];
        int rc = load_file(&c, &err, file_cases[i].text, strlen(file_cases[i].text));

        (void)snprintf(where, sizeof(where), "%s:%u: ", path, file_cases[i].line);
        if (rc != -EINVAL || err.code != -EINVAL || strncmp(err.text, where, strlen(where)) != 0 ||
            !strstr(err.text, file_cases[i].says))
            fail_msg("%s: got %d, '%s'", file_cases[i].name, rc, err.text);
    }
}

/** A text that is valid, but too long to be kept. */
static void a_long_text(void **state)
{
    struct zsd_config c;
    struct zb_err err;
    char list[300] = "0-1023";

    (void)state;
    for (size_t n = strlen(list); n + 2 < sizeof(list); n += 2)
        (void)strcpy(list + n, ",0");
    assert_int_equal(LOAD(&c, &err, "--cpus", list), -EINVAL);
    assert_non_null(strstr(err.text, "--cpus must be at most 255 bytes long, not 298"));
    list[254] = '\0';
    assert_int_equal(LOAD(&c, &err, "--cpus", list), 0);
    assert_string_equal(c.cpus, list);
}

static void file_with_a_nul(void **state)
{
    struct zsd_config c;
    struct zb_err err;

    (void)state;
    assert_int_equal(load_file(&c, &err, "jobs_max = 5\0\n", 14), -EINVAL);
    assert_non_null(strstr(err.text, "contains a NUL"));
}

static void files_that_are_none(void **state)
{
    static const char comment[] = "# 64 bytes of comment, again and again, until it is too much.\n";
    struct zsd_config c;
    struct zb_err err;
    FILE *f;

    (void)state;
    assert_int_equal(LOAD(&c, &err, "--config", "/no/such/file"), -ENOENT);
    assert_non_null(strstr(err.text, "/no/such/file"));
    assert_int_equal(LOAD(&c, &err, "--config", dir), -EINVAL);
    assert_non_null(strstr(err.text, "is not a regular file"));
    assert_int_equal(LOAD(&c, &err, "--config", "/dev/zero"), -EINVAL);
    assert_int_equal(LOAD(&c, &err, "--config", ""), -EINVAL);
    f = fopen(path, "w");
    assert_non_null(f);
    for (size_t bytes = 0; bytes <= ZB_MIB; bytes += strlen(comment))
        assert_true(fputs(comment, f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(LOAD(&c, &err, "--config", path), -EINVAL);
    assert_non_null(strstr(err.text, "is 1.00 MiB long"));
    assert_int_equal(load_file(&c, &err, "", 0), 0); /* an empty one is fine */
}

static void file_that_we_may_not_read(void **state)
{
    struct zsd_config c;
    struct zb_err err;
    int rc;

    (void)state;
    if (geteuid() != 0)
        ztest_skip("only root can become another user");
    file_write("jobs_max = 5\n", 13);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(seteuid(65534), 0);
    rc = LOAD(&c, &err, "--config", path);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(rc, -EACCES);
    assert_non_null(strstr(err.text, path));
}

/* ---- what is refused on the command line */

static const struct {
    const char *name, *args[4], *says;
} line_cases[] = {
    { "unknown option",
      { "--host-byte", "1G" },
      "unknown option '--host-byte'; did you mean '--host-bytes'?" },
    { "the key of the file",
      { "--host_bytes", "1G" },
      "unknown option '--host_bytes'; did you mean '--host-bytes'?" },
    { "an abbreviation",
      { "--host", "1G" },
      "unknown option '--host'; did you mean '--host-bytes'?" },
    { "one dash",
      { "-host-bytes", "1G" },
      "unknown option '-host-bytes'; did you mean '--host-bytes'?" },
    { "no dash", { "serve" }, "unexpected argument 'serve'" },
    { "two dashes alone", { "--" }, "unknown option '--'" },
    { "nothing", { "" }, "unexpected argument ''" },
    { "equals alone", { "=5" }, "unexpected argument '=5'" },
    { "a very long name",
      { "--hhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhhh" },
      "unknown option '--hhh" },
    { "no value", { "--host-bytes" }, "--host-bytes needs a value" },
    { "no file", { "--config" }, "--config needs a value" },
    { "a value for a word", { "--check-config=yes" }, "--check-config takes no value" },
    { "a bad unit", { "--host-bytes", "5Q" }, "--host-bytes must be a size" },
    { "a bad unit, joined", { "--host-bytes=5Q" }, "--host-bytes must be a size" },
    { "a bad value before a good one",
      { "--io=x", "--io=auto" },
      "--io must be auto, uring, threads or fixed, not 'x'" },
    { "a bad value beside --check-config", { "--check-config", "--io=x" }, "--io must be auto" },
    { "an unknown option beside --help", { "--nope", "--help" }, "unknown option '--nope'" },
};

static void line_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(line_cases); i++) {
        struct zsd_config c;
        struct zb_err err;
        int rc = load(&c, NULL, &err, line_cases[i].args);

        if (rc != -EINVAL || !strstr(err.text, line_cases[i].says))
            fail_msg("%s: got %d, '%s'", line_cases[i].name, rc, err.text);
    }
}

/* ---- help, version, check */

static void words(void **state)
{
    struct zsd_config c;
    struct zb_err err;
    const char *text = NULL;

    (void)state;
    assert_int_equal(load(&c, &text, &err, (const char *const[]){ "--version", NULL }), 1);
    assert_string_equal(text, "zshardd " ZSHARD_VERSION "\n");
    file_write("io = x\n", 7); /* --help ignores it */
    assert_int_equal(
        load(&c, &text, &err, (const char *const[]){ "--config", path, "--help", NULL }), 1);
    assert_non_null(strstr(text, "usage: zshardd"));
    assert_int_equal(LOAD(&c, &err, "--check-config"), 2);
    assert_int_equal(LOAD(&c, &err, "--check-config", "--config", path), -EINVAL);
    assert_int_equal(LOAD(&c, &err, "--check-config", "--config", path, "--io=auto"), -EINVAL);
}

static void help_lists_each_row(void **state)
{
    struct zsd_config c;
    struct zb_err err;
    const char *text = NULL;
    size_t kernels;
    const struct zb_opt *rows = zsd_options();
    const struct zk_ops *const *ops = zk_all(&kernels);

    (void)state;
    assert_int_equal(load(&c, &text, &err, (const char *const[]){ "--help", NULL }), 1);
    for (size_t i = 0; i < zb_opt_count(rows); i++) {
        char line[96];

        (void)snprintf(line, sizeof(line), "\n  --%s %s", rows[i].name,
                       rows[i].arg ? rows[i].arg : "");
        if (!strstr(text, line))
            fail_msg("--help lacks '%s'", line + 1);
        if (strlen(rows[i].help) < 10)
            fail_msg("%s: no help", rows[i].name);
    }
    for (size_t i = 0; i < kernels; i++)
        if (!strstr(text, ops[i]->name))
            fail_msg("--help lacks the kernels '%s'", ops[i]->name);
    for (const char *line = text; *line; line = strchr(line, '\n') + 1)
        if (strcspn(line, "\n") > 80)
            fail_msg("a line of --help is longer than 80: %.90s", line);
}

/** Budgets of GPUs: one for all, or one for each. */
static void budgets_of_gpus(void **state)
{
    static const struct {
        const char *bytes, *gpus;
        int n; /* or -EINVAL */
        const char *text;
    } rows[] = {
        { "0", "all", 0, "0" },
        { "64M", "all", 1, "64M" },
        { "64M,32768K", "all", 2, "64M,32M" }, /* the devices are counted later */
        { "64M,32M", "0,1", 2, "64M,32M" },
        { "64M,32M,64M", "emulated*2,cuda:1", 3, "64M,32M,64M" },
        { "64M,64M", "0,1", 2, "64M" },
        { "64M,32M", "0,1,2", -EINVAL, "2 sizes, and there are 3 GPUs" },
        { "64M,32M", "emulated*8", -EINVAL, "2 sizes, and there are 8 GPUs" },
        { "64M,0", "0,1", -EINVAL, "left out of gpus" },
        { "64M,64K", "0,1", -EINVAL, "1M to 1P" },
        { "512K", "0", -EINVAL, "1M to 1P, or 0" },
        { "64M,", "0,1", -EINVAL, "not a size" },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct zsd_config c;
        struct zb_err err;
        int rc = LOAD(&c, &err, "--gpu-bytes", rows[i].bytes, "--gpus", rows[i].gpus);

        if (rows[i].n < 0) {
            assert_int_equal(rc, -EINVAL);
            if (!strstr(err.text, rows[i].text))
                fail_msg("'%s': '%s'", rows[i].bytes, err.text);
            continue;
        }
        assert_int_equal(rc, 0);
        assert_int_equal(c.gpu_budgets.n, rows[i].n);
        assert_string_equal(c.gpu_bytes, rows[i].text);
        for (unsigned g = 0; g < 3 && rows[i].n != 0; g++)
            if (rows[i].n == 1 || g < (unsigned)rows[i].n)
                assert_int_equal(zsd_gpu_budget(&c, g),
                                 g == 1 && rows[i].n > 1 && strcmp(rows[i].text, "64M") != 0
                                     ? 32 * ZB_MIB
                                     : 64 * ZB_MIB);
    }
}

/** zb_opt_text(): what it writes is read as the same value. */
static void texts_are_read_back(void **state)
{
    static const char *const argv[] = { "--host-bytes",
                                        "1536K",
                                        "--nvme-bytes",
                                        "4097K",
                                        "--log-level",
                                        "debug",
                                        "--threads",
                                        "7",
                                        "--paths",
                                        "/a:/b",
                                        "--ring-bytes",
                                        "auto",
                                        "--kernels",
                                        "ref",
                                        "--user-gpu-bytes",
                                        "none",
                                        NULL };
    struct zsd_config c, d;
    struct zb_err err;
    char text[4096];

    (void)state;
    assert_int_equal(load(&c, NULL, &err, argv), 0);
    memset(&d, 0, sizeof(d));
    for (const struct zb_opt *o = zsd_options(); o->name; o++) {
        assert_true(zb_opt_text(o, &c, text, sizeof(text)));
        assert_int_equal(zb_opt_set(o, &d, text, o->name, &err), 0);
        if (o->type != ZB_OPT_CHARS)
            assert_memory_equal((char *)&c + o->at, (char *)&d + o->at, o->size);
        else
            assert_string_equal((char *)&c + o->at, (char *)&d + o->at);
    }
    assert_true(zb_opt_text(&zsd_options()[2], &c, text, sizeof(text)));
    assert_string_equal(text, "1536K");
    assert_false(zb_opt_text(&zsd_options()[2], &c, text, 3));
}

/* ---- the installed example */

static const char example[] = ZSHARD_SOURCE_DIR "/deploy/zshardd.conf";

/** Every key appears once, on a line of its own, with its default value. */
static void example_agrees(void **state)
{
    struct zsd_config c, d;
    struct zb_err err;
    char line[256];
    size_t count = zb_opt_count(zsd_options()), lines = 0;
    const struct zb_opt *rows = zsd_options();
    FILE *f = fopen(example, "r");

    (void)state;
    if (LOAD(&c, &err, "--config", example) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(load(&d, NULL, &err, (const char *const[]){ NULL }), 0);
    assert_memory_equal(&c, &d, offsetof(struct zsd_config, in_file));
    assert_int_equal(c.in_file, (UINT64_C(1) << count) - 1);
    assert_int_equal(d.in_file | d.on_line | c.on_line, 0);
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        char key[64], value[64];

        if (line[0] == '#' || line[0] == '\n')
            continue;
        assert_int_equal(sscanf(line, "%63s = %63s", key, value), 2);
        for (char *p = key; *p; p++)
            *p = *p == '_' ? '-' : *p;
        for (size_t i = 0; i < count; i++)
            if (strcmp(rows[i].name, key) == 0)
                assert_string_equal(value, *rows[i].def                ? rows[i].def
                                           : strcmp(key, "paths") == 0 ? "{}"
                                                                       : "\"\"");
        lines++;
    }
    assert_int_equal(fclose(f), 0);
    assert_int_equal(lines, count); /* no key is there twice or unknown, so each is there once */
}

/** The example with changed bytes: an error message that names the file, or values within their
 * limits.
 */
static void example_with_damage(void **state)
{
    static const char drawn[] = "\"'#/*\\={}()+,$ \n\t\0a0-\x80";
    static char text[16384], damaged[sizeof(text)];
    uint64_t seed = 4711;
    size_t len;
    FILE *f = fopen(example, "r");

    (void)state;
    assert_non_null(f);
    len = fread(text, 1, sizeof(text), f);
    assert_true(len > 0 && len < sizeof(text));
    assert_int_equal(fclose(f), 0);
    for (unsigned i = 0; i < 2000; i++) {
        struct zsd_config c;
        struct zb_err err;
        unsigned changes = 1 + (unsigned)(ztest_random(&seed) % 4);
        int rc;

        memcpy(damaged, text, len);
        for (unsigned k = 0; k < changes; k++)
            damaged[ztest_random(&seed) % len] = drawn[ztest_random(&seed) % sizeof(drawn)];
        rc = load_file(&c, &err, damaged, len - ztest_random(&seed) % 2000);
        if (rc == -EINVAL && strstr(err.text, path))
            continue;
        if (rc != 0 || c.page_elems % 4096 != 0 || c.clients_max < 1 || c.clients_max > 65536)
            fail_msg("damage %u: got %d, '%s'", i, rc, err.text);
    }
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir) || chmod(dir, 0755) < 0)
        return -1;
    (void)snprintf(path, sizeof(path), "%s/zshardd.conf", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(every_key_by_file),
        cmocka_unit_test(every_key_by_command_line),
        cmocka_unit_test(the_command_line_wins),
        cmocka_unit_test(file_refused),
        cmocka_unit_test(a_long_text),
        cmocka_unit_test(file_with_a_nul),
        cmocka_unit_test(files_that_are_none),
        cmocka_unit_test(file_that_we_may_not_read),
        cmocka_unit_test(line_refused),
        cmocka_unit_test(words),
        cmocka_unit_test(help_lists_each_row),
        cmocka_unit_test(budgets_of_gpus),
        cmocka_unit_test(texts_are_read_back),
        cmocka_unit_test(example_agrees),
        cmocka_unit_test(example_with_damage),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
