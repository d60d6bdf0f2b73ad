/*
 * What a real daemon refuses (refuse.h) from any client: frames, requests beyond its limits,
 * another user.
 */
#include "tests/integ/refuse.h"

#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"

/* ---- frames */

enum end {
    ANSWERED, /* with `code`, and the connection goes on */
    LAST,     /* with `code`, then the daemon hangs up */
    HANGS_UP, /* at once */
    SILENT,   /* there is no answer, and the connection goes on */
};

/* clang-format off */
#define FRAME(...)           .frame = { __VA_ARGS__ }
#define REQUEST(m)           FRAME(.method = m, .kind = ZP_REQUEST, .tag = 5)
#define WITH_BODY(m, len, b) FRAME(.body_bytes = len, .method = m, .kind = ZP_REQUEST, .tag = 5), \
                             .body = b
#define WITH_FDS(n, come)    FRAME(.method = ZP_PING, .kind = ZP_REQUEST, .fds = n, .tag = 5), \
                             .fds = come
#define ONEWAY(m)            FRAME(.method = m, .kind = ZP_ONEWAY)
#define SAYS(c, p)           .code = c, .part = p

static const struct {
    const char *name;
    bool greeted;
    enum end end;
    struct zp_frame frame;
    const char *body;
    int code;
    const char *part; /* of the error message */
    unsigned fds;     /* descriptors that come with it */
    size_t cut;       /* bytes of it that are sent; 0: all */
    const char *raw;  /* instead of a frame */
} frame_cases[] = {
    { "garbage", false, HANGS_UP, .raw = "GET / HTTP/1.1\r\nHost: here\r\n\r\n" },
    { "garbage after hello", true, HANGS_UP, .raw = "\x01\x02\x03\x04" },
    { "a wrong version of the magic", true, HANGS_UP, .raw = "zsh\x02" },
    { "a kind that is none", true, HANGS_UP, FRAME(.method = ZP_PING, .kind = 9) },
    { "kind 0", true, HANGS_UP, FRAME(.method = ZP_PING, .kind = 0) },
    { "a reply", true, HANGS_UP, FRAME(.method = ZP_PING, .kind = ZP_REPLY, .tag = 5) },
    { "an event", true, HANGS_UP, FRAME(.method = ZP_EVENT_PEER_LOST, .kind = ZP_EVENT) },
    { "a body that is too long", true, HANGS_UP, WITH_BODY(ZP_PING, ZP_BODY_MAX + 1, NULL) },
    { "a body that is far too long", true, HANGS_UP, WITH_BODY(ZP_PING, UINT32_MAX, NULL) },
    { "one descriptor", true, HANGS_UP, WITH_FDS(1, 1) },
    { "more descriptors than announced", true, HANGS_UP, WITH_FDS(1, 2) },
    { "a descriptor that nobody announced", true, HANGS_UP, WITH_FDS(0, 1) },
    { "fewer descriptors than announced", true, HANGS_UP, WITH_FDS(2, 1) },
    { "more descriptors than may be", true, HANGS_UP, WITH_FDS(5, 0) },
    { "sixteen descriptors", true, HANGS_UP, WITH_FDS(4, 16) },
    { "ping as one-way", true, HANGS_UP, ONEWAY(ZP_PING) },
    { "one-way before hello", false, HANGS_UP, ONEWAY(ZP_RELEASE) },
    { "a request before hello", false, LAST, REQUEST(ZP_STAT), SAYS(-EPROTO, "hello") },
    { "hello twice", true, ANSWERED, REQUEST(ZP_HELLO), SAYS(-EPROTO, "already") },
    { "a version that nobody speaks", false, LAST, WITH_BODY(ZP_HELLO, 4, "\x08\x63\x10\x64"),
      SAYS(-EPROTONOSUPPORT, "99 to 100") },
    { "a method that is none", true, ANSWERED, REQUEST(4711), SAYS(-ENOSYS, "4711") },
    { "method 0", true, ANSWERED, REQUEST(0), SAYS(-ENOSYS, "no method 0") },
    { "a one-way method that is none", true, SILENT, ONEWAY(4711) },
    { "a one-way body that is not a message", true, SILENT,
      FRAME(.body_bytes = 3, .method = ZP_RELEASE, .kind = ZP_ONEWAY), .body = "\xff\xff\xff" },
    { "release as a request", true, ANSWERED, REQUEST(ZP_RELEASE), SAYS(-EINVAL, "one-way") },
    { "a body that is not a message", true, ANSWERED, WITH_BODY(ZP_FETCH, 3, "\xff\xff\xff"),
      SAYS(-EPROTO, "Fetch") },
    { "text with a control character", true, ANSWERED, WITH_BODY(ZP_LIST, 5, "\x0a\x03" "a\nb"),
      SAYS(-EPROTO, "") },
    { "text that is no UTF-8", true, ANSWERED, WITH_BODY(ZP_LIST, 4, "\x0a\x02\xc3\x28"),
      SAYS(-EPROTO, "") },
    { "half a header, and then nothing", true, SILENT, REQUEST(ZP_PING), .cut = 11 },
    { "half a body, and then nothing", true, SILENT, WITH_BODY(ZP_PING, 10, "0123456789"),
      .cut = 30 },
};
/* clang-format on */

static void frame_case(struct zi_daemon *d, size_t i)
{
    uint8_t bytes[ZP_HEADER_BYTES + 64];
    size_t len;
    int fds[16];
    struct zi_raw r;

    if (frame_cases[i].greeted)
        zi_raw_open(&r, d);
    else
        zi_raw_connect(&r, d);
    for (unsigned n = 0; n < ZB_COUNT(fds); n++)
        fds[n] = STDERR_FILENO;
    if (frame_cases[i].raw) {
        len = strlen(frame_cases[i].raw);
        memcpy(bytes, frame_cases[i].raw, len);
    } else {
        zp_frame_put(&frame_cases[i].frame, bytes);
        len = ZP_HEADER_BYTES;
        if (frame_cases[i].body) {
            memcpy(bytes + len, frame_cases[i].body, frame_cases[i].frame.body_bytes);
            len += frame_cases[i].frame.body_bytes;
        }
    }
    if (frame_cases[i].cut > 0)
        len = frame_cases[i].cut;
    zi_raw_bytes(&r, bytes, len, fds, frame_cases[i].fds);
    switch (frame_cases[i].end) {
    case ANSWERED:
    case LAST:
        rf_says(frame_cases[i].name, zi_raw_reply(&r, frame_cases[i].frame.method),
                frame_cases[i].code, r.text, frame_cases[i].part);
        if (frame_cases[i].end == LAST)
            zi_raw_hung_up(&r);
        else
            zi_raw_alive(&r);
        break;
    case HANGS_UP:
        zi_raw_hung_up(&r);
        break;
    case SILENT:
        if (frame_cases[i].cut == 0)
            zi_raw_alive(&r);
        break;
    }
    zi_raw_close(&r);
}

static void frames(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_raw other;
    unsigned files;

    (void)state;
    zi_start(&d, rf_small);
    zi_raw_open(&other, &d);
    files = zi_files(&d);
    for (size_t i = 0; i < ZB_COUNT(frame_cases); i++) {
        frame_case(&d, i);
        zi_raw_alive(&other);
    }
    for (unsigned waited = 0; zi_files(&d) != files; waited++) { /* no descriptor stays open */
        if (waited > 200)
            fail_msg("the daemon had %u descriptors open, and has %u", files, zi_files(&d));
        (void)poll(NULL, 0, 5);
    }
    zi_raw_close(&other);
    zi_stop(&d);
}

/* ---- limits of the daemon */

static void limits(void **state)
{
    static const char *const options[] = { "--host-bytes",
                                           "8M",
                                           "--nvme-bytes",
                                           "16M",
                                           "--clients-max",
                                           "3",
                                           "--jobs-max",
                                           "1",
                                           "--page-elems",
                                           "4096",
                                           NULL };
    struct zi_daemon d = { 0 };
    struct zi_raw a, b, c, e, admin[4]; /* ZSD_ADMIN_PLACES, for the daemon's own user */
    Zp__JobOpen q = rf_open;
    Zp__Hello hello = ZP__HELLO__INIT;

    (void)state;
    zi_start(&d, options);
    zi_raw_open(&a, &d);
    zi_raw_open(&b, &d);
    assert_int_equal(zi_raw_call(&a, ZP_JOB_OPEN, &q.base), 0);
    q.name = (char[]){ "next" };
    rf_refused("a job too many", &b, ZP_JOB_OPEN, &q.base, -ENOSPC, "jobs_max");
    zi_raw_open(&c, &d);
    for (size_t i = 0; i < ZB_COUNT(admin); i++)
        zi_raw_open(&admin[i], &d);
    rf_refused("a job in a place of the administrator", &admin[0], ZP_JOB_OPEN, &q.base, -EUSERS,
               "clients_max");
    zi_raw_connect(&e, &d);
    hello.version_min = hello.version_max = 1;
    hello.program = (char[]){ "raw" };
    rf_refused("a client too many", &e, ZP_HELLO, &hello.base, -EUSERS, "clients_max");
    zi_raw_hung_up(&e);
    zi_raw_alive(&c);
    zi_raw_alive(&admin[0]);
    for (size_t i = 0; i < ZB_COUNT(admin); i++)
        zi_raw_close(&admin[i]);
    zi_raw_close(&a);
    zi_raw_close(&c);
    zi_raw_close(&e);
    for (int rc = -ENOSPC, waited = 0; rc < 0; waited++) { /* the first job ended with its rank */
        rc = zi_raw_call(&b, ZP_JOB_OPEN, &q.base);
        assert_true(rc == 0 || rc == -ENOSPC);
        assert_true(waited < 200);
        (void)poll(NULL, 0, 5);
    }
    zi_raw_close(&b);
    zi_stop(&d);
}

#define TENSORS_MAX (1u << 18) /* of a job: daemon/job/job.h */

/* The number of a job's tensors is limited, over all of its units. Descriptions of that many need a
 * part of a larger host_bytes. */
static void tensors_without_end(void **state)
{
    static const char *const options[] = { "--host-bytes", "1G", "--nvme-bytes", "0", NULL };
    struct zc_tensor *tensors = calloc(TENSORS_MAX, sizeof(*tensors));
    struct zc_job_options o = { .name = "job", .world = 1, .staging_bytes = 4096, .groups = 1 };
    struct zc_unit unit = { .name = "u",
                            .elems = TENSORS_MAX,
                            .dtype = ZC_F32,
                            .grad_dtype = ZC_F32,
                            .tensors = tensors,
                            .ntensors = TENSORS_MAX - 1 };
    struct zi_daemon d = { 0 };
    struct zi_rank r;

    (void)state;
    assert_non_null(tensors);
    for (uint32_t i = 0; i < TENSORS_MAX; i++)
        tensors[i] = (struct zc_tensor){ .name = "t", .first = i, .ndims = 1, .dims = { 1 } };
    zi_start(&d, options);
    assert_int_equal(zi_open(&r, &d, &o), 0);
    assert_int_equal(zc_unit_define_wait(r.c, r.job.id, &unit), 0);
    unit.index = 1;
    unit.ntensors = 2;
    rf_says("a tensor too many", zc_unit_define_wait(r.c, r.job.id, &unit), -ENOSPC, zc_error(r.c),
            "is the limit");
    unit.ntensors = 1;
    assert_int_equal(zc_unit_define_wait(r.c, r.job.id, &unit), 0);
    zi_close(&r, 1);
    zi_stop(&d);
    free(tensors);
}

/* ---- another user's job */

/* A client gets the same answer for another user's job as for a name that is not in use. */
static bool same_as_nothing(struct zc_client *c, const struct zc_job_options *options)
{
    static const char *const names[] = { "mine", "none" };
    struct zc_job_options o = *options;
    char text[2][2][256];
    struct zc_job job;

    for (int i = 0; i < 2; i++) {
        o.name = names[i];
        if (zc_job_open_wait(c, &o, &job) != -ENOENT)
            return false;
        (void)snprintf(text[0][i], sizeof(text[0][i]), "%s", zc_error(c));
        if (zc_job_destroy_wait(c, names[i]) != -ENOENT)
            return false;
        (void)snprintf(text[1][i], sizeof(text[1][i]), "%s", zc_error(c));
    }
    for (int i = 0; i < 2; i++) {
        char *at = strstr(text[i][1], "'none'");

        if (!at)
            return false;
        memcpy(at, "'mine'", strlen("'mine'"));
        if (strcmp(text[i][0], text[i][1]) != 0)
            return false;
    }
    return true;
}

/* Runs in a process of another user; returns its exit status. */
static int stranger(const struct zi_daemon *d)
{
    static const struct zc_unit unit = {
        .name = "u", .elems = RF_PAGE, .dtype = ZC_F32, .grad_dtype = ZC_F32, .frozen = true
    };
    const struct zc_options options = { .socket = d->socket };
    struct zc_job_options o = {
        .name = "mine", .world = 1, .staging_bytes = 4096, .groups = 1, .keep = true, .attach = true
    };
    struct zc_client *c = NULL;
    struct zc_shard_row *shards = NULL;
    struct zc_job_row *jobs = NULL;
    struct zc_range range = { 0, 0, RF_PAGE };
    struct zc_placement place;
    struct zc_job job;
    uint64_t id;
    size_t n = 77;

#define CHECK(what)                                                      \
    do {                                                                 \
        if (!(what))                                                     \
            return fprintf(stderr, "line %d: %s\n", __LINE__, #what), 1; \
    } while (0)
    CHECK(zc_open(&c, &options) == 0);
    CHECK(same_as_nothing(c, &o));
    CHECK(zc_jobs_wait(c, NULL, &jobs, &n) == 0 && n == 0); /* it does not even see the job */
    zc_rows_free(jobs);
    CHECK(zc_list_wait(c, NULL, &shards, &n) == 0 && n == 0);
    zc_rows_free(shards);
    CHECK(zc_list_wait(c, "mine", &shards, &n) == -ENOENT);
    CHECK(zc_tier_set_wait(c, "host", UINT64_C(1) << 30) == -EPERM);
    CHECK(strstr(zc_error(c), "only an administrator"));
    o.name = "theirs";
    o.attach = false;
    CHECK(zc_job_open_wait(c, &o, &job) == 0);
    CHECK(zc_unit_define_wait(c, job.id, &unit) == 0);
    CHECK(zc_register_wait(c, job.id, &range, 1, &id) == 0);
    CHECK(zc_ready_wait(c, job.id, NULL, 0, &place) == 0);
    CHECK(zc_job_close_wait(c, job.id) == 0);
    zc_close(c);
    return 0;
}

static void another_user(void **state)
{
    static const char *const options[] = {
        "--host-bytes", "8M",           "--nvme-bytes", "16M", "--socket-group",
        "nogroup",      "--page-elems", "4096",         NULL
    };
    static const struct zc_unit unit = {
        .name = "u", .elems = RF_PAGE, .dtype = ZC_F32, .grad_dtype = ZC_F32
    };
    struct zc_job_options o = {
        .name = "mine", .staging_bytes = RF_STAGING, .groups = 1, .keep = true
    };
    const uid_t nobody = 65534;
    struct zi_daemon d = { 0 };
    struct zi_rank mine[1];
    struct zc_client *c;
    struct zc_job_row *jobs;
    size_t n;
    pid_t pid;
    int status;

    (void)state;
    if (geteuid() != 0) {
        ztest_skip("only root can become another user");
    }
    zi_start(&d, options);
    assert_int_equal(chmod(d.dir, 0711), 0);
    zi_job(mine, 1, &d, &o, &unit, 1);
    assert_int_equal(zc_job_close_wait(mine->c, mine->job.id), 0);
    zc_close(mine->c);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (setgroups(0, NULL) != 0 || setgid(nobody) != 0 || setuid(nobody) != 0)
            _exit(127);
        _exit(stranger(&d));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    c = zi_client(&d); /* root sees and destroys both */
    assert_int_equal(zc_jobs_wait(c, NULL, &jobs, &n), 0);
    assert_int_equal(n, 2);
    assert_string_equal(jobs[1].name, "theirs");
    assert_int_equal(jobs[1].uid, nobody);
    zc_rows_free(jobs);
    assert_int_equal(zc_job_destroy_wait(c, "theirs"), 0);
    assert_int_equal(zc_job_destroy_wait(c, "mine"), 0);
    assert_int_equal(zc_job_destroy_wait(c, "mine"), -ENOENT);
    zc_close(c);
    zi_stop(&d);
}

/* Without a group, the file mode keeps others out. */
static void a_socket_of_ours_only(void **state)
{
    struct zi_daemon d = { 0 };
    pid_t pid;
    int status;

    (void)state;
    if (geteuid() != 0) {
        ztest_skip("only root can become another user");
    }
    zi_start(&d, rf_small);
    assert_int_equal(chmod(d.dir, 0711), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct zc_options options = { .socket = d.socket };
        struct zc_client *c = NULL;

        if (setgroups(0, NULL) != 0 || setgid(65534) != 0 || setuid(65534) != 0)
            _exit(127);
        _exit(zc_open(&c, &options) == -EPERM && strstr(zc_error(c), "not allowed") ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(frames, zi_teardown),
        cmocka_unit_test_teardown(limits, zi_teardown),
        cmocka_unit_test_teardown(tensors_without_end, zi_teardown),
        cmocka_unit_test_teardown(another_user, zi_teardown),
        cmocka_unit_test_teardown(a_socket_of_ours_only, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
