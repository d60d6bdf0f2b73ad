#include "tests/ztest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/log_priv.h"
#include "tests/folder.h"

/*
 * A log that is not read: lines are dropped and counted, and nothing waits. If the log waits, this
 * test hangs until its timeout.
 */

static int ours, ends[2];

static int setup(void **state)
{
    (void)state;
    ours = dup(STDERR_FILENO);
    assert_true(ours >= 0);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_true(fcntl(ends[1], F_SETPIPE_SZ, 8192) >= 8192);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    (void)dup2(ours, STDERR_FILENO);
    (void)close(ours);
    (void)close(ends[0]);
    (void)close(ends[1]);
    return 0;
}

#define LINES 2000u

static void a_log_that_nobody_reads(void **state)
{
    static char text[65536];
    unsigned whole = 0;
    unsigned long dropped = 0;
    char *at;
    ssize_t n;

    (void)state;
    zb_log_never_wait();
    for (unsigned i = 0; i < LINES; i++)
        zb_log(ZB_LOG_INFO, "tick", "i=%u", i);
    n = read(ends[0], text, sizeof(text) - 1);
    assert_true(n > 0 && text[n - 1] == '\n'); /* whole lines only */
    text[n] = '\0';
    for (at = text; (at = strstr(at, "info tick i=")) != NULL; at++, whole++) {
        unsigned i = LINES;

        assert_int_equal(sscanf(at, "info tick i=%u", &i), 1);
        assert_int_equal(i, whole); /* the first ones, in order */
    }
    assert_in_range(whole, 1, LINES - 1);
    zb_log(ZB_LOG_INFO, "again", "x=1"); /* it is read again: the count comes first */
    n = read(ends[0], text, sizeof(text) - 1);
    assert_true(n > 0);
    text[n] = '\0';
    at = strstr(text, "warn log-dropped lines=");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "warn log-dropped lines=%lu", &dropped), 1);
    assert_int_equal(dropped, LINES - whole);
    assert_non_null(strstr(at, "info again x=1"));
    zb_log(ZB_LOG_INFO, "more", "x=2");
    n = read(ends[0], text, sizeof(text) - 1);
    assert_true(n > 0);
    text[n] = '\0';
    assert_null(strstr(text, "log-dropped"));
}

static void a_line_is_clean(void **state)
{
    char text[512];
    ssize_t n;

    (void)state;
    zb_log(ZB_LOG_INFO, "name", "a=\"%s\"",
           "x\ny\x7f\x9b"
           "2J");
    n = read(ends[0], text, sizeof(text) - 1);
    assert_true(n > 0);
    text[n] = '\0';
    assert_non_null(strstr(text, "info name a=\"x?y??2J\"\n"));
}

/** What is on standard error now, as text. */
static const char *told(void)
{
    static char text[65536];
    ssize_t n = read(ends[0], text, sizeof(text) - 1);

    assert_true(n > 0);
    text[n] = '\0';
    return text;
}

/** A pair as the text key=value, "#" after a number. */
static const char *pair(const struct zb_log_line *line, unsigned i)
{
    static char text[256];
    const struct zb_log_field *f = &line->fields[i];

    (void)snprintf(text, sizeof(text), "%.*s=%.*s%s", f->key_bytes, line->text + f->key,
                   f->value_bytes, line->text + f->value, f->number ? "#" : "");
    return text;
}

static void pairs_come_from_the_format(void **state)
{
    struct zb_log_line line;
    char big[ZB_LOG_MAX];

    (void)state;
    zb_log_begin(&line, ZB_LOG_INFO, "job-open");
    zb_log_add(&line, "job=\"%s\" id=%u pids=%s", "a\" uid=0 b=\"", 7u, "12 x=3");
    zb_log_add(&line, "at=%llu,%llu left=%ld page=\"page 5\" size=%zu by=%d", 1ull, 2ull, -3l,
               (size_t)4, -5);
    assert_int_equal(line.nfields, 8);
    assert_string_equal(pair(&line, 0), "job=a\" uid=0 b=\"");
    assert_string_equal(pair(&line, 1), "id=7#");
    assert_string_equal(pair(&line, 2), "pids=12 x=3");
    assert_string_equal(pair(&line, 3), "at=1,2");
    assert_string_equal(pair(&line, 4), "left=-3#");
    assert_string_equal(pair(&line, 5), "page=page 5");
    assert_string_equal(pair(&line, 6), "size=4#");
    assert_string_equal(pair(&line, 7), "by=-5#");
    assert_int_equal(zb_log_find(&line, "id") - line.fields, 1);
    assert_null(zb_log_find(&line, "uid"));
    line.text[line.used] = '\0';
    assert_string_equal(line.text, "info job-open job=\"a\" uid=0 b=\"\" id=7 pids=12 x=3 at=1,2 "
                                   "left=-3 page=\"page 5\" size=4 by=-5");
    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    zb_log_begin(&line, ZB_LOG_INFO, "e"); /* cut: a text may be, a number may not */
    zb_log_add(&line, "a=\"%s\" n=%u", big, 123456u);
    assert_int_equal(line.used, ZB_LOG_MAX - 1);
    assert_int_equal(line.nfields, 1);
    big[ZB_LOG_MAX - 20] = '\0';
    zb_log_begin(&line, ZB_LOG_INFO, "e");
    zb_log_add(&line, "a=\"%s\" n=%u", big, 123456u);
    assert_int_equal(line.used, ZB_LOG_MAX - 1);
    assert_int_equal(line.nfields, 1);
}

/** Whether each string of a line of JSON ends, and no escape is cut. */
static bool strings_end(const char *text)
{
    bool in = false;

    for (; *text; text++) {
        in ^= *text == '"';
        if (*text == '\\' && text[1] == 'u' && strspn(text + 2, "0123456789abcdef") < 4)
            return false;
        if (*text == '\\')
            text++;
    }
    return !in;
}

#define TIME_BYTES strlen("2026-01-31T12:00:00.000Z")

static void lines_of_json(void **state)
{
    static const char *const begin = "{\"time\":\"20";
    char big[ZB_LOG_MAX];
    const char *text;

    (void)state;
    assert_int_equal(zb_log_set_format(ZB_LOG_JSON, NULL, NULL), 0);
    zb_log(ZB_LOG_WARN, "name", "a=\"%s\" n=%u b=%s",
           "x\n\"\\\x7f\x9b\xc2\x9b"
           "\xc3\xa4",
           7u, "8");
    text = told();
    assert_memory_equal(text, begin, strlen(begin));
    text += strlen("{\"time\":\"") + TIME_BYTES;
    assert_string_equal(text, "\",\"level\":\"warn\",\"event\":\"name\",\"a\":\"x\\u000a\\\"\\\\"
                              "\\u007f\\ufffd\\u009b\xc3\xa4\",\"n\":7,\"b\":\"8\",\"message\":"
                              "\"warn name a=\\\"x?\\\"\\\\????\xc3\xa4\\\" n=7 b=8\"}\n");
    memset(big, 1, sizeof(big) - 1); /* six times as many bytes as JSON */
    big[sizeof(big) - 1] = '\0';
    for (size_t n = ZB_LOG_MAX - 1; n > 600; n--) { /* all ends that a cut can have */
        big[n] = '\0';
        zb_log(ZB_LOG_WARN, "name", "a=\"%s\" n=%u b=\"%s\"", big, 7u, "x");
        text = told();
        assert_true(strlen(text) <= ZB_LOG_BYTES_MAX);
        assert_string_equal(text + strlen(text) - 3, "e}\n"); /* "cut":true} */
        assert_non_null(strstr(text, ",\"cut\":true}\n"));
        assert_true(strings_end(text));
    }
    assert_int_equal(zb_log_set_format(ZB_LOG_TEXT, NULL, NULL), 0);
}

static const char *id_of(const char *event)
{
    return strcmp(event, "job-open") == 0 ? "00112233445566778899aabbccddeeff" : NULL;
}

static const struct zb_log_program program = { .name = "us", .prefix = "US_", .id_of = id_of };

/** A journal's socket, which is named by the environment. */
static int journal(void)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    assert_true(fd >= 0);
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s/journal", folder_own());
    (void)unlink(a.sun_path);
    assert_int_equal(bind(fd, (const struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(setenv("ZSHARD_JOURNAL_SOCKET", a.sun_path, 1), 0);
    return fd;
}

/** The next datagram; "" if there is none. */
static const char *entry(int fd)
{
    static char text[65536];
    ssize_t n = recv(fd, text, sizeof(text) - 1, 0);

    assert_true(n >= 0 || errno == EAGAIN);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static void fields_of_the_journal(void **state)
{
    int fd;

    (void)state;
    fd = journal();
    assert_int_equal(zb_log_set_format(ZB_LOG_JOURNAL, &program, NULL), 0);
    zb_log(ZB_LOG_WARN, "job-open", "job=\"%s\" left_bytes=%llu", "x\nPRIORITY=0\n", 5ull);
    assert_string_equal(entry(fd), "PRIORITY=4\nSYSLOG_IDENTIFIER=us\n"
                                   "MESSAGE_ID=00112233445566778899aabbccddeeff\n"
                                   "US_EVENT=job-open\n"
                                   "MESSAGE=warn job-open job=\"x?PRIORITY=0?\" left_bytes=5\n"
                                   "US_JOB=x?PRIORITY=0?\nUS_LEFT_BYTES=5\n");
    zb_log(ZB_LOG_ERROR, "other", "n=%d", 1);
    assert_string_equal(entry(fd), "PRIORITY=3\nSYSLOG_IDENTIFIER=us\nUS_EVENT=other\n"
                                   "MESSAGE=error other n=1\nUS_N=1\n");
    (void)close(fd);
    zb_log(ZB_LOG_WARN, "gone", "n=%d", 1); /* nobody listens: it is not lost */
    assert_non_null(strstr(told(), " warn gone n=1\n"));
    assert_int_equal(zb_log_set_format(ZB_LOG_TEXT, NULL, NULL), 0);
}

static void a_journal_that_nobody_reads(void **state)
{
    unsigned sent = 0, written = 0;
    unsigned long dropped = 0;
    int fd;

    (void)state;
    fd = journal();
    assert_int_equal(zb_log_set_format(ZB_LOG_JOURNAL, &program, NULL), 0);
    for (unsigned i = 0; i < LINES; i++)
        zb_log(ZB_LOG_INFO, "tick", "i=%u", i);
    for (const char *at = told(); (at = strstr(at, "info tick")) != NULL; at++)
        written++; /* the lines that its socket has no room for */
    while (*entry(fd))
        sent++;
    assert_true(sent > 0 && written > 0 && sent + written < LINES);
    zb_log(ZB_LOG_INFO, "again", "x=1");
    assert_int_equal(sscanf(entry(fd),
                            "PRIORITY=4\nSYSLOG_IDENTIFIER=us\nUS_EVENT=log-dropped\n"
                            "MESSAGE=warn log-dropped lines=%lu\n",
                            &dropped),
                     1);
    assert_int_equal(dropped, LINES - sent - written);
    assert_non_null(strstr(entry(fd), "US_EVENT=again\n"));
    (void)close(fd);
    assert_int_equal(zb_log_set_format(ZB_LOG_TEXT, NULL, NULL), 0);
}

static void the_journal_is_found(void **state)
{
    char stream[64];
    struct zb_err err = { 0 };
    struct stat st;
    int fd;

    (void)state;
    fd = journal();
    assert_int_equal(zb_log_set_format(ZB_LOG_JOURNAL, NULL, NULL), -EINVAL);
    assert_int_equal(zb_log_set_format(ZB_LOG_AUTO, &program, NULL), 0);
    zb_log(ZB_LOG_INFO, "plain", "x=1"); /* standard error is something else */
    assert_non_null(strstr(told(), "Z info plain x=1\n"));
    assert_int_equal(fstat(STDERR_FILENO, &st), 0);
    (void)snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
                   (unsigned long long)st.st_ino + 1);
    assert_int_equal(setenv("JOURNAL_STREAM", stream, 1), 0);
    zb_log(ZB_LOG_INFO, "plain", "x=2"); /* the variable is of another process */
    assert_non_null(strstr(told(), "Z info plain x=2\n"));
    (void)snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
                   (unsigned long long)st.st_ino);
    assert_int_equal(setenv("JOURNAL_STREAM", stream, 1), 0);
    zb_log(ZB_LOG_INFO, "plain", "x=3"); /* text, with a priority */
    assert_string_equal(told(), "<6>info plain x=3\n");
    assert_int_equal(zb_log_set_format(ZB_LOG_AUTO, &program, NULL), 0);
    zb_log(ZB_LOG_INFO, "fields", "x=4");
    assert_non_null(strstr(entry(fd), "US_X=4\n"));
    (void)close(fd);
    assert_int_equal(unlink("journal"), 0);
    assert_int_equal(zb_log_set_format(ZB_LOG_JOURNAL, &program, &err), -ENOENT);
    assert_non_null(strstr(err.text, "the journal's socket /"));
    assert_int_equal(zb_log_set_format(ZB_LOG_AUTO, &program, NULL), 0);
    zb_log(ZB_LOG_INFO, "plain", "x=5");
    assert_string_equal(told(), "<6>info plain x=5\n");
    assert_int_equal(unsetenv("JOURNAL_STREAM"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_log_that_nobody_reads, setup, teardown),
        cmocka_unit_test_setup_teardown(a_line_is_clean, setup, teardown),
        cmocka_unit_test_setup_teardown(pairs_come_from_the_format, setup, teardown),
        cmocka_unit_test_setup_teardown(lines_of_json, setup, teardown),
        cmocka_unit_test_setup_teardown(fields_of_the_journal, setup, teardown),
        cmocka_unit_test_setup_teardown(a_journal_that_nobody_reads, setup, teardown),
        cmocka_unit_test_setup_teardown(the_journal_is_found, setup, teardown),
    };

    return cmocka_run_group_tests(tests, folder_enter, folder_leave);
}
