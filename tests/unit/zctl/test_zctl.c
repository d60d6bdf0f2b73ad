/*
 * zctl without a daemon: its rows, its options, its tables, its exit statuses. With a daemon:
 * tests/integ/test_zctl.py.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zctl/base/zctl.h"
#include "tests/unit/zctl/said.h"

static void rows_are_sorted(void **state)
{
    size_t n;
    const struct zctl_cmd *const *rows = zctl_commands(&n);

    (void)state;
    assert_true(n >= 9);
    for (size_t i = 0; i < n; i++) {
        const struct zctl z = { .cmds = rows, .ncmds = n };
        const struct zctl_cmd *c = rows[i];

        if (i > 0 && strcmp(rows[i - 1]->name, c->name) >= 0)
            fail_msg("'%s' stands before '%s'", rows[i - 1]->name, c->name);
        if (!*c->name || !*c->help || !c->run || c->argc_min > c->argc_max ||
            (*c->args == '\0') != !c->argc_max || !c->options != !c->bytes)
            fail_msg("'%s' is not complete", c->name);
        assert_ptr_equal(zctl_command(&z, c->name), c);
        assert_null(zctl_command(&z, "none"));
    }
}

/* Configurations are checked without a daemon. */
static void configurations(void **state)
{
#define CONFIGS "config check " ZSHARD_SOURCE_DIR "/tests/configs/"
    static const struct {
        const char *line;
        int status;
        const char *says;
    } cases[] = {
        { CONFIGS "stage3_nvme.json", 0, "offload_param.nvme_path" },
        { CONFIGS "stage3_nvme.json", 0, "ignored   the daemon places" },
        { CONFIGS "stage1.json --json", 0, "\"schema\": 2" },
        { CONFIGS "stage3_nvme.json --ranks 2", 0,
          "stage 3, bf16, adamw; offloaded: state to NVMe, parameters to NVMe; 12 samples, 3 "
          "samples at a time, 2 micro-steps\n" },
        { CONFIGS "stage1.json -o json", 0, "\"effect\": \"acted on\"" },
        { CONFIGS "stage1.json --ranks 5", 2, "zctl: train_batch_size: 12 does not divide into" },
        { CONFIGS "broken/unknown.json", 2,
          "zctl: zero_optimization.stgae: no such key; did you mean 'stage'?\n" },
        { CONFIGS "stage1.json -o json", 0, "\"key\": \"gradient_clipping\"" },
        { CONFIGS "stage1.json -o json", 0, "\"effect\": \"default\"" },
        { "config check " ZSHARD_SOURCE_DIR "/deploy/zshardd.conf", 2,
          "zshardd --check-config --config FILE checks the daemon's file" },
        { "config check nowhere.json", 4, "zctl: 'nowhere.json': No such file" },
        { "config look nowhere.json", 2, "usage: zctl config show, or zctl config check FILE" },
        { "config check", 2, "usage" },
        { CONFIGS "stage1.json --ranks many", 2, "--ranks must be a whole number, not 'many'" },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct said s = zctl(cases[i].line);

        if (s.status != cases[i].status ||
            !strstr(cases[i].status == 0 ? s.out : s.err, cases[i].says) ||
            *(cases[i].status == 0 ? s.err : s.out))
            fail_msg("%s: %d '%s' '%s'", cases[i].line, s.status, s.out, s.err);
        said_free(&s);
    }
}

static void help_lists_all(void **state)
{
    struct said all = zctl("help"), option = zctl("--help");
    size_t n;
    const struct zctl_cmd *const *rows = zctl_commands(&n);

    (void)state;
    assert_int_equal(all.status, 0);
    assert_string_equal(all.err, "");
    assert_string_equal(all.out, option.out);
    for (size_t i = 0; i < n; i++) {
        char line[128];
        struct said one;

        (void)snprintf(line, sizeof(line), "\n  %s%s%s ", rows[i]->name, *rows[i]->args ? " " : "",
                       rows[i]->args);
        if (!strstr(all.out, line) || !strstr(all.out, rows[i]->help))
            fail_msg("help lacks '%s'", rows[i]->name);
        (void)snprintf(line, sizeof(line), "help %s", rows[i]->name);
        one = zctl(line);
        assert_int_equal(one.status, 0);
        assert_non_null(strstr(one.out, rows[i]->help));
        assert_non_null(strstr(one.out, rows[i]->args));
        for (const struct zb_opt *o = rows[i]->options; o && o->name; o++) {
            (void)snprintf(line, sizeof(line), "[--%s%s%s", o->name, o->arg ? " " : "",
                           o->arg ? o->arg : "");
            if (!strstr(one.out, line))
                fail_msg("the usage of %s lacks '%s'", rows[i]->name, o->name);
            (void)snprintf(line, sizeof(line), "\n  %s%.1s%s--%s%s%s", o->letter ? "-" : "",
                           &o->letter, o->letter ? ", " : "", o->name, o->arg ? " " : "",
                           o->arg ? o->arg : "");
            if (!strstr(one.out, line))
                fail_msg("help %s lacks '%s'", rows[i]->name, o->name);
        }
        said_free(&one);
        (void)snprintf(line, sizeof(line), "%s --help", rows[i]->name);
        one = zctl(line);
        assert_int_equal(one.status, 0);
        assert_non_null(strstr(one.out, rows[i]->help));
        said_free(&one);
    }
    said_free(&all);
    said_free(&option);
}

/** Checks what bash would complete, with the script sourced. */
static void assert_completes(const char *script, const char *words, const char *want)
{
    char path[] = "/tmp/zshard-completion-XXXXXX", command[256], got[512];
    int fd = mkstemp(path);
    FILE *file = fdopen(fd, "w"), *bash;
    size_t n;

    assert_non_null(file);
    (void)fputs(script, file);
    (void)fprintf(file, "COMP_WORDS=(zctl %s)\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_zctl\n",
                  words);
    (void)fputs("echo \"${COMPREPLY[*]}\"\n", file);
    (void)fclose(file);
    (void)snprintf(command, sizeof(command), "bash -u %s", path);
    bash = popen(command, "r");
    assert_non_null(bash);
    n = fread(got, 1, sizeof(got) - 1, bash);
    got[n] = '\0';
    assert_int_equal(pclose(bash), 0);
    (void)remove(path);
    if (strcmp(got, want) != 0)
        fail_msg("'%s' is completed to '%s', not '%s'", words, got, want);
}

static void completion_is_of_the_rows(void **state)
{
    struct said s = zctl("completion bash"), none = zctl("completion fish");
    char all[512] = "", want[640];
    size_t n, len = 0;
    const struct zctl_cmd *const *rows = zctl_commands(&n);

    (void)state;
    assert_int_equal(s.status, 0);
    for (size_t i = 0; i < n; i++)
        len +=
            (size_t)snprintf(all + len, sizeof(all) - len, "%s%s", i > 0 ? " " : "", rows[i]->name);
    (void)snprintf(want, sizeof(want), "%s -o -p -H -s --socket --wait --json --help --version\n",
                   all);
    assert_completes(s.out, "''", want);
    (void)snprintf(want, sizeof(want), "%s\n", all);
    assert_completes(s.out, "help ''", want);
    assert_completes(s.out, "pi", "ping\n");
    assert_completes(s.out, "-o j", "json\n");
    assert_completes(s.out, "-o json st", "stat status\n");
    assert_completes(s.out, "jobs -o own", "owner\n");
    assert_completes(s.out, "jobs --output ta", "table\n");
    assert_completes(s.out, "tiers -H -o name,budget,us", "name,budget,used\n");
    assert_completes(s.out, "tiers -Hpo name,budg", "name,budget\n");
    assert_completes(s.out, "-Ho name ti", "tier tiers\n");
    assert_completes(s.out, "status -o n", "\n");
    assert_completes(s.out, "metrics --f", "--format\n");
    assert_completes(s.out, "completion b", "bash\n");
    assert_completes(s.out, "scrub st", "status start stop\n");
    assert_completes(s.out, "scrub -", "--rate --until-done\n");
    assert_completes(s.out, "snapshot --", "--next --retain --timeout\n");
    assert_completes(s.out, "fsck --", "--data\n");
    assert_completes(s.out, "fsck --data /pro", "/proc\n");
    assert_completes(s.out, "ping x", "\n");
    assert_int_equal(none.status, ZC_EXIT_USAGE);
    assert_non_null(strstr(none.err, "only for bash"));
    said_free(&s);
    said_free(&none);
}

static const struct {
    const char *line;
    int status;
    const char *err; /* a part of the error message */
} usage_cases[] = {
    { "", 2, "no command is given" },
    { "nothing", 2, "unknown command 'nothing'; try: zctl help" },
    { "help nothing", 2, "unknown command 'nothing'; try: zctl help" },
    { "jbos", 2, "unknown command 'jbos'; did you mean 'jobs'?" },
    { "help snapshto", 2, "unknown command 'snapshto'; did you mean 'snapshot'?" },
    { "snapshto demo --next", 2, "unknown command 'snapshto'; did you mean 'snapshot'?" },
    { "-s /nowhere snap demo", 2, "unknown command 'snap'; did you mean 'snapshot'?" },
    { "jbos jobs", 2, "unknown command 'jbos'; did you mean 'jobs'?" },
    { "snapshot a --nxt", 2, "unknown option '--nxt'; did you mean '--next'?" },
    { "snapshot a --timeuot=3", 2, "unknown option '--timeuot'; did you mean '--timeout'?" },
    { "ls --soket /nowhere", 2, "unknown option '--soket'; did you mean '--socket'?" },
    { "ls -json", 2, "unknown option '-json'; did you mean '--json'?" },
    { "ls --retain 3", 2, "unknown option '--retain'; try --help" }, /* of another command */
    { "destroy", 2, "usage: zctl destroy JOB[@SNAPSHOT]" },
    { "destroy a b", 2, "usage: zctl destroy JOB[@SNAPSHOT]" },
    { "destroy a@", 2, "'a@' is neither JOB nor JOB@SNAPSHOT" },
    { "clone @s b", 2, "'@s' is neither" },
    { "rollback a", 2, "usage: zctl rollback JOB SNAPSHOT" },
    { "scrub now", 2, "not 'now'" },
    { "scrub pause --rate 3M", 2, "--rate is for" },
    { "scrub start --rate 3x", 2, "--rate must be a size such as 1.5G, not '3x'" },
    { "snapshot a --retain x", 2, "--retain must be a whole number, not 'x'" },
    { "snapshot a --retain -1", 2, "not '-1'" },
    { "snapshot a --retain 4294967296", 2, "must be 0 to 4294967295, not 4294967296" },
    { "snapshot a --timeout 4294968", 2, "--timeout must be 0 to 4294967, not 4294968" },
    { "snapshot a --timeout 3", 2, "--timeout needs --next" },
    { "snapshot a --next --next", 2, "--next is given twice" },
    { "snapshot a --retain", 2, "--retain needs a value" },
    { "snapshot a --next=3", 2, "--next takes no value" },
    { "ls --next", 2, "unknown option '--next'; try --help" },
    { "-s /nowhere/there.sock plan --params 1G", 3, "Is zshardd running?" },
    { "fsck --data /nowhere -o json", 2, "for people only" },
    { "-s /nowhere/there.sock snapshot a", 3, "Is zshardd running?" },
    { "-s /nowhere/there.sock snapshots", 3, "Is zshardd running?" },
    { "-s /nowhere/there.sock rollback a b", 3, "Is zshardd running?" },
    { "-s /nowhere/there.sock clone a b", 3, "Is zshardd running?" },
    { "-s /nowhere/there.sock scrub", 3, "Is zshardd running?" },
    { "-s /nowhere/there.sock fsck", 3, "Is zshardd running?" },
    { "-s /nowhere/there.sock df", 3, "Is zshardd running?" },
    { "ls a b", 2, "usage: zctl ls [JOB]" },
    { "ping a", 2, "usage: zctl ping" },
    { "-o xml ls", 2, "ls has no column 'xml'; its columns: job, unit, rank," },
    { "-o name,nvme_byte jobs", 2, "jobs has no column 'nvme_byte'; did you mean 'nvme_bytes'?" },
    { "jobs -o name,,uid", 2, "jobs has no column ''" },
    { "jobs -o=name", 2, "jobs has no column '=name'" },
    { "jobs --json -o name", 2, "--json has all columns: leave out --output name" },
    { "-o name status", 2, "--output must be table or json for status, not 'name'" },
    { "-o list top", 2, "--output list is for commands that print rows: top does not" },
    { "metrics -H", 2, "-H is for commands that print rows: metrics does not" },
    { "plan --params 1M -p", 2, "-p is for commands that print rows: plan does not" },
    { "destroy a -o jobb", 2, "destroy has no column 'jobb'; did you mean 'job'?" },
    { "-s /nowhere/there.sock -HpoNAME,uid jobs", 3, "Is zshardd running?" },
    { "-s /nowhere/there.sock -Hpo snapshots jobs", 3, "Is zshardd running?" },
    { "-Hps /nowhere/there.sock -o snapshots jobs", 3, "Is zshardd running?" },
    { "config check -o option " ZSHARD_SOURCE_DIR "/tests/configs/stage1.json", 2,
      "--output 'option': not all of these are columns of this output" },
    { "-o", 2, "--output needs a value" },
    { "ls --socket", 2, "--socket needs a value" },
    { "--help=3", 2, "--help takes no value" },
    { "-x ls", 2, "unknown option '-x'; try --help" },
    { "ls --nothing", 2, "unknown option '--nothing'; try --help" },
    { "--socket /nowhere/there.sock ping", 3, "Is zshardd running?" },
    { "-s /nowhere/there.sock ls", 3, "'/nowhere/there.sock'" },
    { "-s /nowhere/there.sock jobs", 3, "Is zshardd running?" },
    { "-s /nowhere/there.sock tiers", 3, "Is zshardd running?" },
    { "-s /nowhere/there.sock stat", 3, "Is zshardd running?" },
    { "-s /nowhere/there.sock destroy a", 3, "Is zshardd running?" },
    { "-o json -s /nowhere/there.sock ls", 3, "Is zshardd running?" },
};

static void usage_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(usage_cases); i++) {
        struct said s = zctl(usage_cases[i].line);

        if (s.status != usage_cases[i].status || !strstr(s.err, usage_cases[i].err) || *s.out ||
            strncmp(s.err, "zctl: ", 6) != 0)
            fail_msg("zctl %s: status %d, '%s', '%s'", usage_cases[i].line, s.status, s.out, s.err);
        said_free(&s);
    }
}

static void a_socket_path_that_is_too_long(void **state)
{
    char line[200] = "-s /";
    struct said s;

    (void)state;
    memset(line + 4, 'x', 150);
    (void)snprintf(line + 154, sizeof(line) - 154, " ping");
    s = zctl(line);
    assert_int_equal(s.status, ZC_EXIT_USAGE);
    said_free(&s);
}

static void version_says_which(void **state)
{
    struct said s = zctl("version"), json = zctl("version --json"), option = zctl("--version");

    (void)state;
    assert_int_equal(s.status, 0);
    assert_string_equal(s.out, "zctl " ZSHARD_VERSION "\n");
    assert_string_equal(option.out, s.out);
    said_free(&option);
    assert_string_equal(json.out, "{\n  \"schema\": 2,\n  \"rows\": [\n    {\n"
                                  "      \"version\": \"" ZSHARD_VERSION "\"\n    }\n  ]\n}\n");
    said_free(&s);
    said_free(&json);
}

struct row {
    char name[16];
    uint32_t u32;
    uint64_t u64, disk_bytes;
    bool flag;
    double real;
    uint64_t only;
    char note[16];
    uint64_t at;
};

static const struct zctl_column columns[] = {
    { "name", ZCTL_TEXT, offsetof(struct row, name), ZCTL_SHOWN, NULL, 0 },
    { "u32", ZCTL_U32, offsetof(struct row, u32), ZCTL_SHOWN, NULL, 0 },
    { "u64", ZCTL_U64, offsetof(struct row, u64), ZCTL_SHOWN, NULL, 0 },
    { "disk_bytes", ZCTL_SIZE, offsetof(struct row, disk_bytes), ZCTL_SHOWN, NULL, 0 },
    { "flag", ZCTL_BOOL, offsetof(struct row, flag), ZCTL_SHOWN, NULL, 0 },
    { "real", ZCTL_DOUBLE, offsetof(struct row, real), ZCTL_SHOWN, NULL, 0 },
    { "only", ZCTL_U64, offsetof(struct row, only), ZCTL_JSON_ONLY, NULL, 0 },
    { "note", ZCTL_TEXT, offsetof(struct row, note), ZCTL_SHOWN, NULL, 0 },
    { "at", ZCTL_TIME, offsetof(struct row, at), ZCTL_SHOWN, NULL, 0 },
};

static char *printed(const struct row *rows, size_t n, bool json)
{
    char *text = NULL;
    size_t bytes;
    struct zctl z = { .json = json, .out = open_memstream(&text, &bytes) };

    assert_int_equal(zctl_print(&z, columns, ZB_COUNT(columns), rows, n, sizeof(*rows)), 0);
    (void)fclose(z.out);
    return text;
}

/* The columns are the same whatever the rows contain. */
static void tables(void **state)
{
    static const struct row rows[] = {
        { "a", 1, 1234567, 1536 * ZB_MIB, true, 4.25, 7, "", 0 },
        { "longer", 4294967295u, 2, 12, false, 1000, 8, "why", 1000000000 },
    };
    char *text;

    (void)state;
    (void)setenv("TZ", "UTC", 1);
    tzset();
    text = printed(rows, 2, false);
    assert_string_equal(
        text, "NAME           U32      U64      DISK  FLAG    REAL  NOTE                  "
              "      AT\n"
              "a                1  1234567  1.50 GiB  yes      4.2  -     "
              "1970-01-01T00:00:00+0000\n"
              "longer  4294967295        2      12 B  no    1000.0  why   "
              "2001-09-09T01:46:40+0000\n");
    free(text);
    (void)setenv("TZ", "EST5", 1);
    tzset();
    text = printed(rows, 2, false);
    assert_non_null(strstr(text, "  2001-09-08T20:46:40-0500\n"));
    free(text);
    text = printed(rows, 0, false);
    assert_string_equal(text, "NAME  U32  U64  DISK  FLAG  REAL  NOTE  AT\n");
    free(text);
}

/* A table is at most 100 wide: the longest texts are cut, only in the table, and a text in the last
 * column continues on the next lines. */
static void wide_tables(void **state)
{
    static const struct wide {
        char name[80], unit[80], why[160];
    } rows[] = {
        { "a-job", "transformer.h.0", "short" },
        { "a-name-of-sixty-four-characters-which-is-the-most-that-there-is..",
          "layer.\u00e4\u00f6\u00fc-\u00e4\u00f6\u00fc-\u00e4\u00f6\u00fc-\u00e4\u00f6\u00fc-"
          "\u00e4\u00f6\u00fc-and-more-of-it-so-that-it-is-cut",
          "a text of many words, which continues on the lines below in its own column" },
    };
    static const struct zctl_column of_wide[] = {
        { "name", ZCTL_TEXT, offsetof(struct wide, name), ZCTL_SHOWN, NULL, 0 },
        { "unit", ZCTL_TEXT, offsetof(struct wide, unit), ZCTL_SHOWN, "THE-UNIT", 12 },
        { "why", ZCTL_TEXT, offsetof(struct wide, why), ZCTL_SHOWN, NULL, 0 },
    };
    char *text = NULL;
    size_t bytes;
    struct zctl z = { .out = open_memstream(&text, &bytes) };

    (void)state;
    assert_int_equal(zctl_print(&z, of_wide, 3, rows, 2, sizeof(rows[0])), 0);
    (void)fclose(z.out);
    assert_string_equal(
        text,
        "NAME                                                          THE-UNIT      WHY\n"
        "a-job                                                         transform...  short\n"
        "a-name-of-sixty-four-characters-which-is-the-most-that-th...  layer.\u00e4\u00f6\u00fc... "
        " a text of "
        "many words,\n"
        "                                                                            which "
        "continues "
        "on the\n"
        "                                                                            lines below "
        "in its "
        "own\n"
        "                                                                            column\n");
    free(text);
    text = NULL;
    z = (struct zctl){ .json = true, .out = open_memstream(&text, &bytes) };
    assert_int_equal(zctl_print(&z, of_wide, 3, rows, 2, sizeof(rows[0])), 0);
    (void)fclose(z.out);
    assert_non_null(strstr(text, rows[1].name));
    assert_non_null(strstr(text, rows[1].unit));
    assert_non_null(strstr(text, rows[1].why));
    free(text);
}

static void json(void **state)
{
    static const struct row row = { "a\"b", 1, UINT64_MAX, 3, true, 0.5, 7, "", 9 };
    char *text;

    (void)state;
    text = printed(&row, 1, true);
    assert_string_equal(text, "{\n  \"schema\": 2,\n  \"rows\": [\n    {\n"
                              "      \"name\": \"a\\\"b\",\n      \"u32\": 1,\n"
                              "      \"u64\": 9223372036854775807,\n      \"disk_bytes\": 3,\n"
                              "      \"flag\": true,\n      \"real\": 0.5,\n"
                              "      \"only\": 7,\n      \"note\": \"\",\n"
                              "      \"at\": 9\n    }\n  ]\n}\n");
    free(text);
    text = printed(&row, 0, true);
    assert_string_equal(text, "{\n  \"schema\": 2,\n  \"rows\": []\n}\n");
    free(text);
}

/** Failed output is reported: a full disk must not look like an empty list. */
static void output_that_cannot_be_written(void **state)
{
    static const char *const lines[] = { "help", "version", "version -o json", "completion bash",
                                         "help ls" };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(lines); i++) {
        char copy[32], *words[5] = { (char[]){ "zctl" } }, *said = NULL;
        size_t bytes;
        FILE *full = fopen("/dev/full", "w"), *err = open_memstream(&said, &bytes);
        int n = 1, status;

        assert_non_null(full);
        (void)snprintf(copy, sizeof(copy), "%s", lines[i]);
        for (char *at = copy, *word; (word = strsep(&at, " ")) != NULL;)
            words[n++] = word;
        status = zctl_main(n, words, full, err);
        (void)fclose(err);
        (void)fclose(full);
        if (status != ZC_EXIT_OTHER || !strstr(said, "write the output"))
            fail_msg("%s: status %d, '%s'", lines[i], status, said);
        free(said);
    }
}

static void exit_codes(void **state)
{
    static const struct {
        int rc, status;
    } cases[] = {
        { 0, 0 },          { -EINVAL, 2 }, { -ENOTCONN, 3 }, { -EPROTO, 3 },  { -ETIMEDOUT, 3 },
        { -ECANCELED, 3 }, { -ENOENT, 4 }, { -EEXIST, 4 },   { -EPERM, 4 },   { -EACCES, 4 },
        { -ENOSPC, 4 },    { -EBUSY, 4 },  { -EUSERS, 4 },   { -ENOTSUP, 4 }, { -EOWNERDEAD, 5 },
        { -EBADMSG, 6 },   { -EIO, 1 },    { -ENOMEM, 1 },   { -ENOSYS, 1 },  { -ESTALE, 4 },
        { -ENODEV, 4 },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++)
        if (zc_exit_code(cases[i].rc) != cases[i].status)
            fail_msg("%s: status %d, not %d", strerror(-cases[i].rc), zc_exit_code(cases[i].rc),
                     cases[i].status);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_sorted),
        cmocka_unit_test(configurations),
        cmocka_unit_test(help_lists_all),
        cmocka_unit_test(completion_is_of_the_rows),
        cmocka_unit_test(usage_table),
        cmocka_unit_test(a_socket_path_that_is_too_long),
        cmocka_unit_test(version_says_which),
        cmocka_unit_test(tables),
        cmocka_unit_test(wide_tables),
        cmocka_unit_test(json),
        cmocka_unit_test(output_that_cannot_be_written),
        cmocka_unit_test(exit_codes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
