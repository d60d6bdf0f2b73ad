/*
 * What a real daemon refuses: each with its code and a sentence, and without damage: behind every
 * table the same job, or a new one, still works.
 */
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/plan.h"
#include "base/util.h"
#include "kernels/zk_page.h"

#define PAGE    4096u
#define STAGING (1u << 20)

static const char *const small[] = { "--host-bytes", "8M", "--nvme-bytes", "16M", "--page-elems",
                                     "4096",         NULL };

/* The sentence must have `part`, and be one line. */
static void assert_says(const char *name, int rc, int want, const char *text, const char *part)
{
    if (rc != want || (want < 0 && !strstr(text, part)) || strchr(text, '\n'))
        fail_msg("%s: got %d, '%s'; wanted %d and '%s'", name, rc, text, want, part);
}

static void refused(const char *name, struct zi_raw *r, unsigned method,
                    const ProtobufCMessage *message, int want, const char *part)
{
    assert_says(name, zi_raw_call(r, method, message), want, r->text, part);
}

/* ---- frames */

enum end {
    ANSWERED, /* with `code`, and the connection goes on */
    LAST,     /* with `code`, and the daemon hangs up */
    HANGS_UP, /* at once */
    SILENT,   /* nothing comes, and the connection goes on */
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
    const char *part; /* of the sentence */
    unsigned fds;     /* descriptors that come with it */
    size_t cut;       /* bytes of the whole that are sent; 0: all */
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
    { "hello twice", true, ANSWERED, REQUEST(ZP_HELLO), SAYS(-EPROTO, "before") },
    { "a version that nobody speaks", false, LAST, WITH_BODY(ZP_HELLO, 4, "\x08\x63\x10\x64"),
      SAYS(-EPROTONOSUPPORT, "99 to 100") },
    { "a method that is none", true, ANSWERED, REQUEST(4711), SAYS(-ENOSYS, "4711") },
    { "method 0", true, ANSWERED, REQUEST(0), SAYS(-ENOSYS, "no method 0") },
    { "a one-way method that is none", true, SILENT, ONEWAY(4711) },
    { "a one-way body that is no message", true, SILENT,
      FRAME(.body_bytes = 3, .method = ZP_RELEASE, .kind = ZP_ONEWAY), .body = "\xff\xff\xff" },
    { "release as a request", true, ANSWERED, REQUEST(ZP_RELEASE), SAYS(-EINVAL, "one-way") },
    { "a body that is no message", true, ANSWERED, WITH_BODY(ZP_FETCH, 3, "\xff\xff\xff"),
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
        assert_says(frame_cases[i].name, zi_raw_reply(&r, frame_cases[i].frame.method),
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
    zi_start(&d, small);
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

/* ---- opening jobs */

static const Zp__JobOpen good_open = {
    PROTOBUF_C_MESSAGE_INIT(&zp__job_open__descriptor),
    .name = (char[]){ "job" },
    .world = 1,
    .staging_bytes = STAGING,
    .offload_param = 2,
    .offload_optimizer = 2,
    .groups = 1,
    .optimizer = 1,
};

static const char too_long[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/* What differs from good_open: rows name a member by its offset. */
static const struct {
    const char *name;
    const char *job;
    uint32_t rank, world, op, oo, groups, optimizer;
    bool attach;
    uint64_t staging;
    int code;
    const char *part;
} open_cases[] = {
    { "a rank outside of the world", "job", 2, 2, 2, 2, 1, 1, false, 0, -EINVAL,
      "rank 2 is outside of a world of 2" },
    { "a rank far outside", "job", UINT32_MAX, 1, 2, 2, 1, 1, false, 0, -EINVAL, "outside" },
    { "a world of none", "job", 0, 0, 2, 2, 1, 1, false, 0, -EINVAL, "world of 0" },
    { "a world that is too large", "job", 0, ZP_WORLD_MAX + 1, 2, 2, 1, 1, false, 0, -EINVAL,
      "4097" },
    { "no name", "", 0, 1, 2, 2, 1, 1, false, 0, -EINVAL, "no name for a job" },
    { "a name with a slash", "a/b", 0, 1, 2, 2, 1, 1, false, 0, -EINVAL, "'a/b'" },
    { "a name that is too long", too_long, 0, 1, 2, 2, 1, 1, false, 0, -EINVAL, "1 to 63" },
    { "a place that is none", "job", 0, 1, 0, 2, 1, 1, false, 0, -EINVAL, "places 0, 2" },
    { "another place that is none", "job", 0, 1, 2, 3, 1, 1, false, 0, -EINVAL, "places 2, 3" },
    { "no groups", "job", 0, 1, 2, 2, 0, 1, false, 0, -EINVAL, "0 parameter groups" },
    { "too many groups", "job", 0, 1, 2, 2, 65, 1, false, 0, -EINVAL, "65 parameter groups" },
    { "an optimizer that is none", "job", 0, 1, 2, 2, 1, 7, false, 0, -EINVAL, "optimizer 7" },
    { "a job that is not there", "job", 0, 1, 2, 2, 1, 1, true, 0, -ENOENT, "no job 'job'" },
    { "staging beyond the budget", "job", 0, 1, 2, 2, 1, 1, false, 64 * ZB_MIB, -ENOSPC,
      "staging of 64.0 MiB" },
    { "staging beyond everything", "job", 0, 1, 2, 2, 1, 1, false, UINT64_MAX, -EINVAL, "staging" },
};

static void opens(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_raw r;
    uint64_t host;
    Zp__JobOpen q = good_open;

    (void)state;
    zi_start(&d, small);
    host = zi_used(&d, "host");
    zi_raw_open(&r, &d);
    for (size_t i = 0; i < ZB_COUNT(open_cases); i++) {
        Zp__JobOpen bad = good_open;

        bad.name = (char *)(uintptr_t)open_cases[i].job;
        bad.rank = open_cases[i].rank;
        bad.world = open_cases[i].world;
        bad.offload_param = open_cases[i].op;
        bad.offload_optimizer = open_cases[i].oo;
        bad.groups = open_cases[i].groups;
        bad.optimizer = open_cases[i].optimizer;
        bad.attach = open_cases[i].attach;
        bad.staging_bytes = open_cases[i].staging;
        refused(open_cases[i].name, &r, ZP_JOB_OPEN, &bad.base, open_cases[i].code,
                open_cases[i].part);
        assert_int_equal(zi_used(&d, "host"), host);
    }
    assert_int_equal(zi_raw_call(&r, ZP_JOB_OPEN, &q.base), 0);
    assert_int_equal(zi_used(&d, "host"), host + STAGING);
    refused("a second job on this connection", &r, ZP_JOB_OPEN, &q.base, -EBUSY, "'job'");
    zi_raw_close(&r);
    (void)zi_await_used(&d, host, 0, 1000);
    zi_stop(&d);
}

static void jobs_of_one_name(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_raw a, b, c;
    Zp__JobOpen q = good_open, other;

    (void)state;
    zi_start(&d, small);
    zi_raw_open(&a, &d);
    zi_raw_open(&b, &d);
    zi_raw_open(&c, &d);
    q.world = 2;
    q.staging_bytes = 4096;
    assert_int_equal(zi_raw_call(&a, ZP_JOB_OPEN, &q.base), 0);
    refused("the same rank", &b, ZP_JOB_OPEN, &q.base, -EEXIST,
            "'job' exists already: its rank 0 is taken");
    q.rank = 1;
    other = q;
    other.world = 3;
    refused("another world", &b, ZP_JOB_OPEN, &other.base, -EINVAL, "2 ranks, not 3");
    other = q;
    other.groups = 2;
    refused("other groups", &b, ZP_JOB_OPEN, &other.base, -EINVAL, "other options than its peers");
    other = q;
    other.keep = true;
    refused("kept or not", &b, ZP_JOB_OPEN, &other.base, -EINVAL, "other options than its peers");
    other = q;
    other.offload_param = 1;
    refused("another place", &b, ZP_JOB_OPEN, &other.base, -EINVAL, "other options than its peers");
    other = q;
    other.host_bytes_max = 4096;
    refused("another limit", &b, ZP_JOB_OPEN, &other.base, -EINVAL, "other options than its peers");
    other = q;
    other.attach = true;
    refused("attach to what is not kept", &b, ZP_JOB_OPEN, &other.base, -EINVAL, "kept");
    assert_int_equal(zi_raw_call(&b, ZP_JOB_OPEN, &q.base), 0);
    q.rank = 0;
    refused("a third", &c, ZP_JOB_OPEN, &q.base, -EEXIST, "taken");
    zi_raw_close(&a);
    /* the job has ended with its lost rank: its name is free at once */
    for (int rc = -EEXIST, waited = 0; rc < 0; waited++) {
        rc = zi_raw_call(&c, ZP_JOB_OPEN, &q.base);
        assert_true(rc == 0 || rc == -EEXIST);
        assert_true(waited < 200);
        (void)poll(NULL, 0, 5);
    }
    zi_raw_close(&b);
    zi_raw_close(&c);
    zi_stop(&d);
}

static void a_second_job_of_a_name_that_is_ready(void **state)
{
    static const struct zc_unit unit = {
        .name = "u", .elems = PAGE, .dtype = ZC_F32, .grad_dtype = ZC_F32
    };
    struct zc_job_options o = { .name = "job", .staging_bytes = STAGING, .groups = 1 };
    struct zi_daemon d = { 0 };
    struct zi_rank first[1], second;
    int rc;

    (void)state;
    zi_start(&d, small);
    zi_job(first, 1, &d, &o, &unit, 1);
    o.world = 1;
    rc = zi_open(&second, &d, &o);
    assert_says("a second job", rc, -EEXIST, zc_error(second.c), "job 'job' exists already");
    zc_close(second.c);
    o.world = 2;
    o.rank = 1;
    rc = zi_open(&second, &d, &o);
    assert_says("another rank of it", rc, -EEXIST, zc_error(second.c), "job 'job' exists already");
    zc_close(second.c);
    zi_close(first, 1);
    zi_stop(&d);
}

/* ---- units and shards */

static Zp__Tensor good_tensor = { PROTOBUF_C_MESSAGE_INIT(&zp__tensor__descriptor),
                                  .name = (char[]){ "t" }, .n_dims = 1,
                                  .dims = (uint64_t[]){ 100 } };

static const Zp__UnitDefine good_unit = {
    PROTOBUF_C_MESSAGE_INIT(&zp__unit_define__descriptor),
    .n_tensors = 1,
    .tensors = (Zp__Tensor *[]){ &good_tensor },
    .name = (char[]){ "a" },
    .elems = 3 * PAGE - 100,
    .dtype = ZC_F32,
    .grad_dtype = ZC_F32,
    .last = true,
};

static const struct {
    const char *name;
    uint32_t unit;
    const char *unit_name;
    uint64_t elems;
    uint32_t dtype, grad_dtype;
    /* one tensor */
    const char *tensor;
    uint64_t first, dim0, dim1;
    uint32_t group;
    const char *part;
} unit_cases[] = {
    { "a unit out of order", 1, "a", 10, 1, 1, "t", 0, 10, 1, 0, "in order" },
    { "a unit far out of order", UINT32_MAX, "a", 10, 1, 1, "t", 0, 10, 1, 0, "in order" },
    { "a unit without a name", 0, "", 10, 1, 1, "t", 0, 10, 1, 0, "no name for a unit" },
    { "a name with a blank", 0, "a b", 10, 1, 1, "t", 0, 10, 1, 0, "'a b'" },
    { "no elements", 0, "a", 0, 1, 1, NULL, 0, 0, 0, 0, "0 elements" },
    { "too many elements", 0, "a", UINT64_MAX, 1, 1, NULL, 0, 0, 0, 0, "2^40" },
    { "no tensors", 0, "a", 10, 1, 1, NULL, 0, 0, 0, 0, "unit 'a' has no tensors" },
    { "a dtype that is none", 0, "a", 10, 4, 1, "t", 0, 10, 1, 0, "dtype" },
    { "a gradient dtype that is none", 0, "a", 10, 1, 0, "t", 0, 10, 1, 0, "dtype" },
    { "a tensor that is too long", 0, "a", 10, 1, 1, "t", 0, 11, 1, 0, "not inside unit 'a'" },
    { "a tensor that begins too late", 0, "a", 10, 1, 1, "t", 8, 3, 1, 0, "not inside unit 'a'" },
    { "a tensor of nothing", 0, "a", 10, 1, 1, "t", 0, 0, 1, 0, "not inside unit 'a'" },
    { "a shape that overflows", 0, "a", 10, 1, 1, "t", 0, UINT64_MAX, 2, 0, "overflows" },
    { "a tensor without a name", 0, "a", 10, 1, 1, "", 0, 10, 1, 0, "no name for a tensor" },
    { "a group that the job lacks", 0, "a", 10, 1, 1, "t", 0, 10, 1, 1, "group 1" },
};

static const struct {
    const char *name;
    Zp__Range range;
    int code;
    const char *part;
} range_cases[] = {
#define RANGE(u, f, c)                                           \
    {                                                            \
        PROTOBUF_C_MESSAGE_INIT(&zp__range__descriptor), u, f, c \
    }
    { "a unit that is not there", RANGE(1, 0, PAGE), -ENOENT, "no unit 1" },
    { "nothing", RANGE(0, 0, 0), -EINVAL, "multiples of 4096" },
    { "a beginning inside of a block", RANGE(0, 100, PAGE), -EINVAL, "multiples of 4096" },
    { "an end inside of a block", RANGE(0, 0, 100), -EINVAL, "multiples of 4096" },
    { "more than there is", RANGE(0, 0, 4 * PAGE), -EINVAL, "the unit has 12188" },
    { "behind the end", RANGE(0, 3 * PAGE, PAGE), -EINVAL, "the unit has 12188" },
    { "an end that overflows", RANGE(0, PAGE, UINT64_MAX - PAGE + 1), -EINVAL,
      "the unit has 12188" },
};

static void units_and_shards(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_raw r;
    Zp__JobOpen q = good_open;
    Zp__UnitDefine u = good_unit;
    Zp__ShardRegister s = ZP__SHARD_REGISTER__INIT;
    Zp__Range good = RANGE(0, 0, PAGE), overlap = RANGE(0, 0, 2 * PAGE),
              rest = RANGE(0, PAGE, PAGE), *ranges[2] = { &good, &overlap };
    Zp__Ready ready = ZP__READY__INIT;
    uint64_t job, other = 77;

    (void)state;
    zi_start(&d, small);
    zi_raw_open(&r, &d);
    u.job = other;
    refused("a unit without a job", &r, ZP_UNIT_DEFINE, &u.base, -ENOENT, "no job");
    assert_int_equal(zi_raw_call(&r, ZP_JOB_OPEN, &q.base), 0);
    job = ((const Zp__JobOpenReply *)r.reply)->job;
    refused("another job's unit", &r, ZP_UNIT_DEFINE, &u.base, -ENOENT, "job 77");
    u.job = s.job = ready.job = job;
    for (size_t i = 0; i < ZB_COUNT(unit_cases); i++) {
        Zp__UnitDefine bad = u;
        uint64_t dims[2] = { unit_cases[i].dim0, unit_cases[i].dim1 };
        Zp__Tensor t = ZP__TENSOR__INIT, *tensors[1] = { &t };

        bad.unit = unit_cases[i].unit;
        bad.name = (char *)(uintptr_t)unit_cases[i].unit_name;
        bad.elems = unit_cases[i].elems;
        bad.dtype = unit_cases[i].dtype;
        bad.grad_dtype = unit_cases[i].grad_dtype;
        t.name = (char *)(uintptr_t)unit_cases[i].tensor;
        t.first = unit_cases[i].first;
        t.n_dims = 2;
        t.dims = dims;
        t.group = unit_cases[i].group;
        bad.tensors = tensors;
        bad.n_tensors = unit_cases[i].tensor != NULL;
        refused(unit_cases[i].name, &r, ZP_UNIT_DEFINE, &bad.base, -EINVAL, unit_cases[i].part);
    }
    refused("ready without a shard", &r, ZP_READY, &ready.base, -EINVAL, "no shards");
    assert_int_equal(zi_raw_call(&r, ZP_UNIT_DEFINE, &u.base), 0);
    s.ranges = ranges;
    refused("no ranges", &r, ZP_SHARD_REGISTER, &s.base, -EINVAL, "0 ranges");
    s.n_ranges = 1;
    for (size_t i = 0; i < ZB_COUNT(range_cases); i++) {
        Zp__Range range = range_cases[i].range;

        ranges[0] = &range;
        refused(range_cases[i].name, &r, ZP_SHARD_REGISTER, &s.base, range_cases[i].code,
                range_cases[i].part);
    }
    ranges[0] = &good;
    s.n_ranges = 2; /* all or none: the first is not registered either */
    refused("ranges that overlap", &r, ZP_SHARD_REGISTER, &s.base, -EINVAL, "overlaps");
    ranges[1] = &rest;
    assert_int_equal(zi_raw_call(&r, ZP_SHARD_REGISTER, &s.base), 0);
    refused("a shard twice", &r, ZP_SHARD_REGISTER, &s.base, -EINVAL, "overlaps");
    assert_int_equal(zi_raw_call(&r, ZP_READY, &ready.base), 0);
    refused("ready twice", &r, ZP_READY, &ready.base, -EBUSY, "already");
    good.first = 2 * PAGE;
    s.n_ranges = 1;
    refused("a shard of a job that is ready", &r, ZP_SHARD_REGISTER, &s.base, -EBUSY, "ready");
    u.unit = 1;
    refused("a unit of a job that is ready", &r, ZP_UNIT_DEFINE, &u.base, -EBUSY, "fixed");
    zi_raw_close(&r);
    zi_stop(&d);
}

/* What rank 1 says must be what rank 0 said. */
static void ranks_that_differ(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_raw a, b;
    Zp__JobOpen q = good_open;
    Zp__UnitDefine u = good_unit, v;

    (void)state;
    zi_start(&d, small);
    zi_raw_open(&a, &d);
    zi_raw_open(&b, &d);
    q.world = 2;
    q.staging_bytes = 4096;
    assert_int_equal(zi_raw_call(&a, ZP_JOB_OPEN, &q.base), 0);
    u.job = ((const Zp__JobOpenReply *)a.reply)->job;
    q.rank = 1;
    assert_int_equal(zi_raw_call(&b, ZP_JOB_OPEN, &q.base), 0);
    assert_int_equal(zi_raw_call(&a, ZP_UNIT_DEFINE, &u.base), 0);
    v = u;
    v.elems++;
    refused("another size", &b, ZP_UNIT_DEFINE, &v.base, -EINVAL, "otherwise than its peers");
    v = u;
    v.frozen = true;
    refused("frozen", &b, ZP_UNIT_DEFINE, &v.base, -EINVAL,
            "is trained, and rank 1 defines it as frozen");
    v = u;
    v.dtype = 2;
    refused("another dtype", &b, ZP_UNIT_DEFINE, &v.base, -EINVAL, "otherwise than its peers");
    v = u;
    v.frozen = v.quantized = true;
    refused("quantized", &b, ZP_UNIT_DEFINE, &v.base, -EINVAL,
            "is trained, and rank 1 defines it as frozen and quantized");
    v.frozen = false;
    refused("quantized, and trained", &b, ZP_UNIT_DEFINE, &v.base, -EINVAL,
            "is quantized, and is not frozen");
    v = u;
    v.last = false;
    assert_int_equal(zi_raw_call(&b, ZP_UNIT_DEFINE, &v.base), 0);
    v.elems++; /* the head of a later part is not that of the first */
    v.last = true;
    refused("another head", &b, ZP_UNIT_DEFINE, &v.base, -EINVAL, "part");
    assert_int_equal(zi_raw_call(&b, ZP_UNIT_DEFINE, &u.base), 0);
    zi_raw_close(&a);
    zi_raw_close(&b);
    zi_stop(&d);
}

/* ---- data */

enum { A, BF16, FROZEN, LATE, UNITS };

static const struct zc_unit data_units[UNITS] = {
    [A] = { 0, "a", 3 * PAGE - 100, ZC_F32, ZC_F32, false, false, NULL, 0 },
    [BF16] = { 1, "b", PAGE, ZC_BF16, ZC_BF16, false, false, NULL, 0 },
    [FROZEN] = { 2, "f", PAGE, ZC_BF16, ZC_F32, true, false, NULL, 0 },
    [LATE] = { 3, "late", PAGE, ZC_F32, ZC_F32, false, false, NULL, 0 },
};

#define NO_SHARD (UNITS + 1) /* an index that the job has not */

struct data_case {
    const char *name;
    unsigned unit;
    uint64_t first, count, staging;
    uint32_t a, b, c, d; /* what is left of the message */
    int code;
    const char *part;
};

/* a: step, b: micro, c: mode, d: dtype. In this order: a good push of the first page lies before
 * the rows from BEHIND on. */
static const struct data_case push_cases[] = {
    { "an unknown shard", NO_SHARD, 0, PAGE, 0, 1, 0, 1, 1, -ENOENT, "no shard" },
    { "more than the shard", A, 0, 4 * PAGE, 0, 1, 0, 1, 1, -EINVAL, "0 to 16384 of a shard of" },
    { "part of a page", A, 0, 100, 0, 1, 0, 1, 1, -EINVAL, "multiples of 4096" },
    { "nothing", A, 0, 0, 0, 1, 0, 1, 1, -EINVAL, "multiples of 4096" },
    { "from inside of a page", A, 100, PAGE, 0, 1, 0, 1, 1, -EINVAL, "multiples of 4096" },
    { "an end that overflows", A, PAGE, UINT64_MAX / 8, 0, 1, 0, 1, 1, -EINVAL, "" },
    { "a size that overflows", A, 0, UINT64_MAX - 2, 0, 1, 0, 1, 1, -EINVAL, "" },
    { "a step that is done", A, 0, PAGE, 0, 0, 0, 1, 1, -EEXIST, "step 0" },
    { "a step to come", A, 0, PAGE, 0, 2, 0, 1, 1, -EINVAL, "step 1 comes next" },
    { "micro-step 1 first", A, 0, PAGE, 0, 1, 1, 2, 1, -EINVAL, "micro-step 0 from 0" },
    { "adding first", A, 0, PAGE, 0, 1, 0, 2, 1, -EINVAL, "the first sets" },
    { "setting later", A, 0, PAGE, 0, 1, 1, 1, 1, -EINVAL, "the first sets" },
    { "no mode", A, 0, PAGE, 0, 1, 0, 0, 1, -EINVAL, "mode 0" },
    { "a mode that is none", A, 0, PAGE, 0, 1, 0, 3, 1, -EINVAL, "mode 3" },
    { "a dtype that is none", A, 0, PAGE, 0, 1, 0, 1, 9, -EINVAL, "dtype number 9" },
    { "the second part first", A, PAGE, 2 * PAGE, 0, 1, 0, 1, 1, -EINVAL, "from 0 comes next" },
    { "staging that ends before", A, 0, 3 * PAGE, STAGING - 64, 1, 0, 1, 1, -EINVAL,
      "not inside the staging" },
    { "staging that begins behind", A, 0, PAGE, STAGING + 64, 1, 0, 1, 1, -EINVAL,
      "not inside the staging" },
    { "staging that overflows", A, 0, PAGE, UINT64_MAX - 63, 1, 0, 1, 1, -EINVAL,
      "not inside the staging" },
    { "staging that is not aligned", A, 0, PAGE, 8, 1, 0, 1, 1, -EINVAL, "multiple of 64" },
    { "a frozen unit", FROZEN, 0, PAGE, 0, 1, 0, 1, 2, -EINVAL, "frozen" },
    { "adding to bf16", BF16, 0, PAGE, 0, 1, 1, 2, 2, -EINVAL, "cannot accumulate" },
#define BEHIND 22
    { "the same again", A, 0, PAGE, 0, 1, 0, 1, 1, -EEXIST, "not added twice" },
    { "the same and more", A, 0, 2 * PAGE, 0, 1, 0, 1, 1, -EEXIST, "not added twice" },
    { "the last part", A, 2 * PAGE, PAGE, 0, 1, 0, 1, 1, -EINVAL, "from 4096 comes next" },
    { "the next micro-step too early", A, 0, PAGE, 0, 1, 1, 2, 1, -EINVAL, "micro-step 0" },
};

/* a: what is read. */
static const struct data_case read_cases[] = {
    { "an unknown shard", NO_SHARD, 0, PAGE, 0, 2, 0, 0, 0, -ENOENT, "no shard" },
    { "nothing of that kind", A, 0, PAGE, 0, 0, 0, 0, 0, -EINVAL, "kind 0" },
    { "another kind that is none", A, 0, PAGE, 0, 6, 0, 0, 0, -EINVAL, "kind 6" },
    { "the master of what is frozen", FROZEN, 0, PAGE, 0, 2, 0, 0, 0, -EINVAL, "kind 2" },
    { "the moment of what is frozen", FROZEN, 0, PAGE, 0, 3, 0, 0, 0, -EINVAL, "kind 3" },
    { "the gradient of what is frozen", FROZEN, 0, PAGE, 0, 5, 0, 0, 0, -EINVAL, "kind 5" },
    { "more than the shard", A, 0, 4 * PAGE, 0, 2, 0, 0, 0, -EINVAL, "a shard of 12288" },
    { "part of a page", A, 0, 100, 0, 2, 0, 0, 0, -EINVAL, "multiples of 4096" },
    { "nothing", A, 0, 0, 0, 2, 0, 0, 0, -EINVAL, "multiples of 4096" },
    { "from inside of a page", A, 64, PAGE, 0, 2, 0, 0, 0, -EINVAL, "multiples of 4096" },
    { "an end that overflows", A, PAGE, UINT64_MAX, 0, 2, 0, 0, 0, -EINVAL, "" },
    { "staging that ends before", A, 0, 3 * PAGE, STAGING - 64, 2, 0, 0, 0, -EINVAL,
      "not inside the staging" },
    { "staging that is not aligned", A, 0, PAGE, 32, 2, 0, 0, 0, -EINVAL, "multiple" },
    { "before it was written", LATE, 0, PAGE, 0, 2, 0, 0, 0, -EAGAIN, "no initial values" },
};

static const struct data_case write_cases[] = {
    { "an unknown shard", NO_SHARD, 0, PAGE, 0, 0, 0, 0, 0, -ENOENT, "no shard" },
    { "more than the shard", A, 0, 4 * PAGE, 0, 0, 0, 0, 0, -EINVAL, "a shard of 12288" },
    { "part of a page", A, PAGE, 100, 0, 0, 0, 0, 0, -EINVAL, "multiples of 4096" },
    { "nothing", A, 0, 0, 0, 0, 0, 0, 0, -EINVAL, "multiples of 4096" },
    { "an end that overflows", A, PAGE, UINT64_MAX, 0, 0, 0, 0, 0, -EINVAL, "" },
    { "staging that ends before", A, 0, 3 * PAGE, STAGING - 64, 0, 0, 0, 0, -EINVAL,
      "not inside the staging" },
    { "staging that begins behind", A, 0, PAGE, UINT64_MAX - 63, 0, 0, 0, 0, -EINVAL,
      "not inside the staging" },
};

/* A job of data_units on a raw connection. */
struct data {
    struct zi_daemon d;
    struct zi_raw r;
    uint64_t job, shards[UNITS];
    float *staging;
};

static void data_open(struct data *x)
{
    Zp__JobOpen q = good_open;

    zi_start(&x->d, small);
    zi_raw_open(&x->r, &x->d);
    assert_int_equal(zi_raw_call(&x->r, ZP_JOB_OPEN, &q.base), 0);
    x->job = ((const Zp__JobOpenReply *)x->r.reply)->job;
    x->staging = mmap(NULL, STAGING, PROT_READ | PROT_WRITE, MAP_SHARED, x->r.fd, 0);
    assert_ptr_not_equal(x->staging, MAP_FAILED);
    for (unsigned i = 0; i < UNITS; i++) {
        Zp__UnitDefine u = good_unit;
        Zp__ShardRegister s = ZP__SHARD_REGISTER__INIT;
        Zp__Range range = RANGE(i, 0, zb_padded_elems(data_units[i].elems)), *ranges[] = { &range };

        u.job = s.job = x->job;
        u.unit = i;
        u.name = (char *)(uintptr_t)data_units[i].name;
        u.elems = data_units[i].elems;
        u.dtype = data_units[i].dtype;
        u.grad_dtype = data_units[i].grad_dtype;
        u.frozen = data_units[i].frozen;
        assert_int_equal(zi_raw_call(&x->r, ZP_UNIT_DEFINE, &u.base), 0);
        s.n_ranges = 1;
        s.ranges = ranges;
        assert_int_equal(zi_raw_call(&x->r, ZP_SHARD_REGISTER, &s.base), 0);
        x->shards[i] = ((const Zp__ShardRegisterReply *)x->r.reply)->shards[0];
    }
}

static void data_close(struct data *x)
{
    (void)munmap(x->staging, STAGING);
    zi_raw_close(&x->r);
    zi_stop(&x->d);
}

static uint64_t data_shard(const struct data *x, unsigned unit)
{
    return unit == NO_SHARD ? x->shards[0] + NO_SHARD : x->shards[unit];
}

static void data_ready(struct data *x)
{
    Zp__Ready ready = ZP__READY__INIT;

    ready.job = x->job;
    assert_int_equal(zi_raw_call(&x->r, ZP_READY, &ready.base), 0);
}

static int data_write(struct data *x, uint64_t shard, uint64_t first, uint64_t count, uint64_t at)
{
    Zp__Write q = ZP__WRITE__INIT;

    q.shard = shard;
    q.first = first;
    q.count = count;
    q.staging = at;
    return zi_raw_call(&x->r, ZP_WRITE, &q.base);
}

static int data_read(struct data *x, uint64_t shard, uint32_t what, uint64_t first, uint64_t count,
                     uint64_t at)
{
    Zp__Read q = ZP__READ__INIT;

    q.shard = shard;
    q.what = what;
    q.first = first;
    q.count = count;
    q.staging = at;
    return zi_raw_call(&x->r, ZP_READ, &q.base);
}

static int data_push(struct data *x, uint64_t shard, const struct data_case *c)
{
    Zp__Push q = ZP__PUSH__INIT;

    q.shard = shard;
    q.step = c->a;
    q.micro = c->b;
    q.mode = c->c;
    q.dtype = c->d;
    q.first = c->first;
    q.count = c->count;
    q.staging = c->staging;
    return zi_raw_call(&x->r, ZP_PUSH, &q.base);
}

static int data_fetch(struct data *x, const uint64_t *shards, size_t n, uint64_t version)
{
    Zp__Fetch q = ZP__FETCH__INIT;

    q.n_shards = n;
    q.shards = (uint64_t *)(uintptr_t)shards;
    q.min_version = version;
    q.timeout_ms = 50;
    return zi_raw_call(&x->r, ZP_FETCH, &q.base);
}

static int data_step(struct data *x, uint64_t step)
{
    Zp__Step q = ZP__STEP__INIT;
    Zp__GroupScalars g = ZP__GROUP_SCALARS__INIT, *groups[] = { &g };

    q.job = x->job;
    q.step = step;
    q.scale = 1;
    g.lr = 0.5;
    g.beta1 = 0.9;
    g.beta2 = 0.99;
    g.eps = 1e-8;
    q.n_groups = 1;
    q.groups = groups;
    return zi_raw_call(&x->r, ZP_STEP, &q.base);
}

/* The whole gradient must be what one push of micro-step 0 and one of micro-step 1 leave. */
static void check_norm(struct data *x, const float *grad, size_t n)
{
    const struct zk_ops *ops;
    struct zk_xsum sum = { 0 };
    uint8_t want[ZK_XSUM_BYTES];
    Zp__Norms q = ZP__NORMS__INIT;
    const Zp__NormsReply *reply;
    uint64_t nonfinite = 0;

    assert_int_equal(zk_select("ref", &ops, NULL), 0);
    for (size_t i = 0; i < n; i += ZB_BLOCK_ELEMS)
        zk_xsum_add(&sum, ops->sumsq(grad + i, ZB_BLOCK_ELEMS, &nonfinite));
    zk_xsum_store(&sum, want);
    q.job = x->job;
    q.step = 1;
    assert_int_equal(zi_raw_call(&x->r, ZP_NORMS, &q.base), 0);
    reply = (const Zp__NormsReply *)x->r.reply;
    assert_int_equal(reply->sum_of_squares.len, sizeof(want));
    assert_memory_equal(reply->sum_of_squares.data, want, sizeof(want));
    assert_int_equal(reply->nonfinite, 0);
}

/* Initial values of all but LATE; half of a shard is not yet all of it. */
static void data_fill(struct data *x)
{
    for (size_t n = 0; n < 3 * PAGE; n++)
        x->staging[n] = 1.0f + (float)n;
    for (unsigned i = 0; i < LATE; i++) {
        assert_says("fetch before it was written", data_fetch(x, &x->shards[i], 1, 0), -EAGAIN,
                    x->r.text, "no initial values");
        if (i == A) {
            assert_int_equal(data_write(x, x->shards[i], PAGE, 2 * PAGE, PAGE * 4), 0);
            assert_says("fetch of what is half written", data_fetch(x, &x->shards[i], 1, 0),
                        -EAGAIN, x->r.text, "no initial values");
        }
        assert_int_equal(data_write(x, x->shards[i], 0, PAGE, 0), 0);
    }
}

static void data_copies(struct data *x)
{
    for (size_t i = 0; i < ZB_COUNT(write_cases); i++)
        assert_says(write_cases[i].name,
                    data_write(x, data_shard(x, write_cases[i].unit), write_cases[i].first,
                               write_cases[i].count, write_cases[i].staging),
                    write_cases[i].code, x->r.text, write_cases[i].part);
    for (size_t i = 0; i < ZB_COUNT(read_cases); i++)
        assert_says(read_cases[i].name,
                    data_read(x, data_shard(x, read_cases[i].unit), read_cases[i].a,
                              read_cases[i].first, read_cases[i].count, read_cases[i].staging),
                    read_cases[i].code, x->r.text, read_cases[i].part);
}

/* One of these is a pin of ours; the others are counted and logged, and nothing else. */
static void data_release(struct data *x)
{
    uint64_t shards[] = { x->shards[A], x->shards[A], x->shards[BF16], 12345 };
    struct zp_frame f = { .method = ZP_RELEASE, .kind = ZP_ONEWAY };
    Zp__Release release = ZP__RELEASE__INIT;
    uint8_t frame[ZP_HEADER_BYTES + 64];

    release.n_shards = ZB_COUNT(shards);
    release.shards = shards;
    f.body_bytes = (uint32_t)protobuf_c_message_pack(&release.base, frame + ZP_HEADER_BYTES);
    zp_frame_put(&f, frame);
    zi_raw_bytes(&x->r, frame, ZP_HEADER_BYTES + f.body_bytes, NULL, 0);
    zi_raw_alive(&x->r);
    assert_non_null(zi_log_line(&x->d, "release-refused"));
}

static void data_fetches(struct data *x)
{
    uint64_t two[2] = { x->shards[A], data_shard(x, NO_SHARD) };

    assert_says("an unknown shard", data_fetch(x, two, 2, 0), -ENOENT, x->r.text, "no shard");
    two[1] = UINT64_MAX;
    assert_says("a shard of no job", data_fetch(x, two, 2, 0), -ENOENT, x->r.text, "no shard");
    two[1] = x->shards[LATE];
    assert_says("one that was not written", data_fetch(x, two, 2, 0), -EAGAIN, x->r.text, "'late'");
    assert_says("no shards", data_fetch(x, two, 0, 0), -EINVAL, x->r.text, "0 shards");
    assert_says("a version that nobody makes", data_fetch(x, two, 1, 1), -ETIMEDOUT, x->r.text,
                "waits for version 1; it has 0");
    assert_int_equal(data_fetch(x, two, 1, 0), 0);
    assert_says("write of what is pinned", data_write(x, x->shards[A], 0, PAGE, 0), -EBUSY,
                x->r.text, "pinned");
    data_release(x);
    assert_int_equal(data_write(x, x->shards[A], 0, PAGE, 0), 0);
}

/* Leaves staging's first three pages in shard A's gradient twice: set, and added. */
static void data_pushes(struct data *x)
{
    static const struct data_case first = { .count = PAGE, .a = 1, .c = 1, .d = 1 };
    static const struct data_case again = { .count = 3 * PAGE, .a = 1, .b = 1, .c = 2, .d = 1 };
    struct data_case rest = first;

    rest.first = PAGE;
    rest.count = 2 * PAGE;
    rest.staging = PAGE * sizeof(float);
    for (size_t n = 0; n < 3 * PAGE; n++)
        x->staging[n] = 0.25f * (float)(n % 100) - 3;
    for (size_t i = 0; i < ZB_COUNT(push_cases); i++) {
        if (i == BEHIND)
            assert_int_equal(data_push(x, x->shards[A], &first), 0);
        assert_says(push_cases[i].name,
                    data_push(x, data_shard(x, push_cases[i].unit), &push_cases[i]),
                    push_cases[i].code, x->r.text, push_cases[i].part);
    }
    assert_int_equal(data_push(x, x->shards[A], &rest), 0);
    assert_says("the whole again", data_push(x, x->shards[A], &rest), -EEXIST, x->r.text,
                "not added twice");
    assert_int_equal(data_push(x, x->shards[A], &again), 0);
    assert_says("a micro-step again", data_push(x, x->shards[A], &again), -EEXIST, x->r.text,
                "not added twice");
    assert_says("an older one", data_push(x, x->shards[A], &first), -EEXIST, x->r.text,
                "not added twice");
}

/* Gradients of zero for the others. */
static void data_push_zeros(struct data *x)
{
    struct data_case zero = { .count = PAGE, .staging = 3 * PAGE * sizeof(float), .a = 1, .c = 1 };

    memset(x->staging + 3 * PAGE, 0, PAGE * sizeof(float));
    zero.d = ZC_F32;
    assert_int_equal(data_push(x, x->shards[LATE], &zero), 0);
    zero.d = ZC_BF16;
    assert_int_equal(data_push(x, x->shards[BF16], &zero), 0);
    assert_says("step without values", data_step(x, 1), -EAGAIN, x->r.text, "'late'");
    assert_int_equal(data_write(x, x->shards[LATE], 0, PAGE, zero.staging), 0);
}

/* What was refused has left nothing: the norm, the bytes and the step are those of what was not. */
static void data_check(struct data *x)
{
    float *sum = calloc(3 * PAGE, sizeof(*sum));

    for (size_t n = 0; n < 3 * PAGE; n++)
        sum[n] = 2 * x->staging[n];
    check_norm(x, sum, 3 * PAGE);
    assert_int_equal(data_read(x, x->shards[A], ZC_GRAD, 0, 3 * PAGE, 16 * PAGE), 0);
    assert_memory_equal(x->staging + 4 * PAGE, sum, 3 * PAGE * sizeof(float));
    free(sum);
    assert_int_equal(data_step(x, 1), 0);
    assert_says("a step that is done", data_step(x, 1), -EEXIST, x->r.text, "step 2 comes next");
    assert_int_equal(data_fetch(x, x->shards, UNITS, 1), 0);
}

static int data_norms(struct data *x, uint64_t step)
{
    Zp__Norms q = ZP__NORMS__INIT;

    q.job = x->job;
    q.step = step;
    return zi_raw_call(&x->r, ZP_NORMS, &q.base);
}

static void data(void **state)
{
    struct data x = { 0 };

    (void)state;
    data_open(&x);
    assert_says("write before ready", data_write(&x, x.shards[A], 0, PAGE, 0), -EBUSY, x.r.text,
                "not ready");
    assert_says("fetch before ready", data_fetch(&x, x.shards, 1, 0), -EBUSY, x.r.text,
                "not ready");
    assert_says("step before ready", data_step(&x, 1), -EBUSY, x.r.text, "not ready");
    data_ready(&x);
    data_fill(&x);
    data_copies(&x);
    data_fetches(&x);
    assert_says("norms without gradients", data_norms(&x, 1), -EBUSY, x.r.text,
                "no whole gradient");
    assert_says("step without gradients", data_step(&x, 1), -EBUSY, x.r.text, "no whole gradient");
    assert_says("step 2 first", data_step(&x, 2), -EINVAL, x.r.text, "step 2 of");
    assert_says("step 0", data_step(&x, 0), -EEXIST, x.r.text, "step 1 comes next");
    data_pushes(&x);
    assert_says("norms of another step", data_norms(&x, 2), -EINVAL, x.r.text, "step 1 comes next");
    data_push_zeros(&x);
    data_check(&x);
    data_close(&x);
}

/* Another job's shards are nobody else's. */
static void shards_of_another_job(void **state)
{
    static const struct zc_unit unit = {
        .name = "u", .elems = PAGE, .dtype = ZC_F32, .grad_dtype = ZC_F32
    };
    struct zc_job_options o = { .name = "one", .staging_bytes = STAGING, .groups = 1 };
    struct zi_daemon d = { 0 };
    struct zi_rank one[1], two[1];
    struct zc_view view;

    (void)state;
    zi_start(&d, small);
    zi_job(one, 1, &d, &o, &unit, 1);
    o.name = "two";
    zi_job(two, 1, &d, &o, &unit, 1);
    assert_says("fetch", zc_fetch_wait(two->c, one->shards, 1, 0, 0, &view), -ENOENT,
                zc_error(two->c), "no shard");
    assert_says("write",
                zc_write_wait(two->c, one->shards[0], ZC_MASTER, 0, PAGE, two->job.staging),
                -ENOENT, zc_error(two->c), "no shard");
    assert_says("ready", zc_ready_wait(two->c, one->job.id, NULL, 0, &two->place), -ENOENT,
                zc_error(two->c), "not the one that this connection has opened");
    zi_close(one, 1);
    zi_close(two, 1);
    zi_stop(&d);
}

/* ---- budgets */

struct budget_case {
    const char *name;
    const char *host, *ring; /* ring NULL: auto */
    const char *nvme;
    uint32_t page_elems;
    uint64_t elems; /* of each unit */
    unsigned nunits;
    enum zc_dtype dtype;
    enum zc_place param, optimizer;
    uint64_t staging, host_bytes_max;
    enum zc_place grad;
};

static const struct budget_case budget_cases[] = {
    { "gradients are too many", "2M", NULL, "512M", 4096, 1000000, 1, ZC_F32, ZC_NVME, ZC_NVME,
      4096, 0, ZC_HOST },
    { "several units", "2M", NULL, "512M", 4096, 100000, 9, ZC_F32, ZC_NVME, ZC_NVME, 4096, 0,
      ZC_HOST },
    { "bf16", "2M", NULL, "512M", 4096, 300000, 5, ZC_BF16, ZC_NVME, ZC_NVME, 65536, 0, ZC_HOST },
    { "everything in host memory", "2M", NULL, "512M", 4096, 300000, 5, ZC_BF16, ZC_HOST, ZC_HOST,
      65536, 0, ZC_HOST },
    { "parameters in host memory", "2M", NULL, "512M", 4096, 300000, 5, ZC_F32, ZC_HOST, ZC_NVME,
      65536, 0, ZC_HOST },
    { "many page buffers", "2M", NULL, "512M", 4096, 5000000, 1, ZC_F32, ZC_NVME, ZC_NVME, 4096, 0,
      ZC_HOST },
    { "pages of 64K elements", "4M", NULL, "512M", 65536, 3000000, 2, ZC_F32, ZC_NVME, ZC_NVME,
      4096, 0, ZC_HOST },
    { "buffers that are given", "3M", "1M", "512M", 4096, 1000000, 1, ZC_F32, ZC_NVME, ZC_NVME,
      4096, 0, ZC_HOST },
    { "no NVMe tier", "2M", NULL, "0", 4096, 200000, 2, ZC_F32, ZC_NVME, ZC_NVME, 4096, 0,
      ZC_HOST },
    { "a unit, and gradients may go", "2M", NULL, "512M", 4096, 1000000, 1, ZC_F32, ZC_NVME,
      ZC_NVME, 4096, 0, ZC_NVME },
    { "several units, and gradients may go", "1M", NULL, "512M", 4096, 100000, 9, ZC_F32, ZC_NVME,
      ZC_NVME, 4096, 0, ZC_NVME },
    { "bf16, and gradients may go", "1M", NULL, "512M", 4096, 300000, 5, ZC_BF16, ZC_NVME, ZC_NVME,
      65536, 0, ZC_NVME },
    { "pages of 64K elements, and gradients may go", "4M", NULL, "512M", 65536, 3000000, 2, ZC_F32,
      ZC_NVME, ZC_NVME, 4096, 0, ZC_NVME },
    { "in host memory, and gradients might go", "2M", NULL, "512M", 4096, 300000, 5, ZC_BF16,
      ZC_HOST, ZC_HOST, 65536, 0, ZC_NVME },
    { "no NVMe tier for gradients", "2M", NULL, "0", 4096, 200000, 2, ZC_F32, ZC_NVME, ZC_NVME,
      4096, 0, ZC_NVME },
};

static struct zc_unit budget_unit(const struct budget_case *c, unsigned i)
{
    static const char *const names[] = { "u0", "u1", "u2", "u3", "u4", "u5", "u6", "u7", "u8" };

    return (struct zc_unit){ i, names[i], c->elems, c->dtype, ZC_F32, false, false, NULL, 0 };
}

/* Opens the job under a daemon with this budget: the rc of open or ready, and why. */
static int budget_try(const struct budget_case *c, const char *host, char *text, size_t size)
{
    char page[16];
    const char *options[] = {
        "--host-bytes", host, "--nvme-bytes", c->nvme, "--page-elems", page, "--threads", "1", NULL,
        NULL,           NULL
    };
    struct zc_job_options o = { .name = "job",
                                .world = 1,
                                .staging_bytes = c->staging,
                                .offload_param = c->param,
                                .offload_optimizer = c->optimizer,
                                .offload_grad = c->grad,
                                .host_bytes_max = c->host_bytes_max,
                                .groups = 1 };
    struct zi_daemon d = { 0 };
    struct zc_unit units[9];
    struct zi_rank r;
    uint64_t used;
    int rc, status;

    (void)snprintf(page, sizeof(page), "%u", c->page_elems);
    if (c->ring) {
        options[8] = "--ring-bytes";
        options[9] = c->ring;
    }
    if (!zi_start_try(&d, options, &status)) { /* too small even to start */
        (void)snprintf(text, size, "%s", zi_log_line(&d, "host_bytes"));
        assert_int_equal(status, 1);
        zi_clean(&d);
        return -ENOSPC;
    }
    used = zi_used(&d, "host");
    for (unsigned i = 0; i < c->nunits; i++)
        units[i] = budget_unit(c, i);
    rc = zi_open(&r, &d, &o);
    if (rc == 0) {
        zi_define(&r, units, c->nunits, 1);
        rc = zi_ready(&r, 1);
    }
    (void)snprintf(text, size, "%s", zc_error(r.c));
    if (rc == 0) {
        bool goes = c->grad == ZC_NVME && c->param == ZC_NVME && strcmp(c->nvme, "0") != 0;

        assert_int_equal(r.place.host_bytes + used, zi_used(&d, "host"));
        assert_int_equal(r.place.grads_on_nvme > 0, goes);
        assert_int_equal(zi_log_line(&d, "warn grads-on-nvme") != NULL, goes);
    }
    zi_close(&r, 1);
    (void)zi_await_used(&d, used, 0, 1000); /* and nothing of it is held */
    zi_stop(&d);
    return rc;
}

static void budget_case(const struct budget_case *c)
{
    static const char mark[] = "the least host_bytes that would do is ";
    char text[512], host[32];
    unsigned long long least;
    const char *at;
    int rc = budget_try(c, c->host, text, sizeof(text));

    assert_says(c->name, rc, -ENOSPC, text, "job 'job' does not fit: it needs at least ");
    at = strstr(text, mark);
    if (!at)
        fail_msg("%s: no least in '%s'", c->name, text);
    least = strtoull(at + strlen(mark), NULL, 10);
    (void)snprintf(host, sizeof(host), "%llu", least);
    rc = budget_try(c, host, text, sizeof(text));
    if (rc < 0)
        fail_msg("%s: with the least, %s: %d, '%s'", c->name, host, rc, text);
    (void)snprintf(host, sizeof(host), "%llu", least - 4096);
    rc = budget_try(c, host, text, sizeof(text));
    if (rc != -ENOSPC)
        fail_msg("%s: with less than the least, %s: %d", c->name, host, rc);
}

static void the_least_is_the_least(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(budget_cases); i++)
        budget_case(&budget_cases[i]);
}

/* The limit that a job gave itself has a least of its own. */
static void the_least_of_a_job_with_a_limit(void **state)
{
    static const char mark[] = "the least host_bytes_max that would do is ";
    struct budget_case c = { "a limit", "64M",   NULL,    "512M", 4096,   300000, 5,
                             ZC_F32,    ZC_NVME, ZC_NVME, 65536,  ZB_MIB, ZC_HOST };
    char text[512];
    const char *at;

    (void)state;
    assert_says(c.name, budget_try(&c, c.host, text, sizeof(text)), -ENOSPC, text, "does not fit");
    at = strstr(text, mark);
    if (!at)
        fail_msg("no least in '%s'", text);
    c.host_bytes_max = strtoull(at + strlen(mark), NULL, 10);
    assert_int_equal(budget_try(&c, c.host, text, sizeof(text)), 0);
    c.host_bytes_max -= 4096;
    assert_int_equal(budget_try(&c, c.host, text, sizeof(text)), -ENOSPC);
}

/* Where NVMe is what lacks, host memory is not what the sentence asks for. */
static void the_least_of_nvme(void **state)
{
    static const char mark[] = "the least nvme_bytes that would do is ";
    struct budget_case c = { "nvme", "16M",   NULL,    "4M",  4096, 300000, 5,
                             ZC_F32, ZC_NVME, ZC_NVME, 65536, 0,    ZC_HOST };
    char text[512], nvme[32];
    unsigned long long least;
    const char *at;

    (void)state;
    assert_says(c.name, budget_try(&c, c.host, text, sizeof(text)), -ENOSPC, text, "does not fit");
    at = strstr(text, mark);
    if (!at)
        fail_msg("no least in '%s'", text);
    least = strtoull(at + strlen(mark), NULL, 10);
    (void)snprintf(nvme, sizeof(nvme), "%llu", least);
    c.nvme = nvme;
    if (budget_try(&c, c.host, text, sizeof(text)) != 0)
        fail_msg("with the least, %s: '%s'", nvme, text);
    (void)snprintf(nvme, sizeof(nvme), "%llu", least - 4096);
    assert_int_equal(budget_try(&c, c.host, text, sizeof(text)), -ENOSPC);
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
    struct zi_raw a, b, c, e;
    Zp__JobOpen q = good_open;
    Zp__Hello hello = ZP__HELLO__INIT;

    (void)state;
    zi_start(&d, options);
    zi_raw_open(&a, &d);
    zi_raw_open(&b, &d);
    assert_int_equal(zi_raw_call(&a, ZP_JOB_OPEN, &q.base), 0);
    q.name = (char[]){ "next" };
    refused("a job too many", &b, ZP_JOB_OPEN, &q.base, -ENOSPC, "jobs_max");
    zi_raw_open(&c, &d);
    zi_raw_connect(&e, &d);
    hello.version_min = hello.version_max = 1;
    hello.program = (char[]){ "raw" };
    refused("a client too many", &e, ZP_HELLO, &hello.base, -EUSERS, "clients_max");
    zi_raw_hung_up(&e);
    zi_raw_alive(&c);
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

/* A job takes so many tensors and no more, over all of its units. */
static void tensors_without_end(void **state)
{
    static const char *const options[] = { "--host-bytes", "8M", "--nvme-bytes", "0", NULL };
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
    assert_says("a tensor too many", zc_unit_define_wait(r.c, r.job.id, &unit), -ENOSPC,
                zc_error(r.c), "is the limit");
    unit.ntensors = 1;
    assert_int_equal(zc_unit_define_wait(r.c, r.job.id, &unit), 0);
    zi_close(&r, 1);
    zi_stop(&d);
    free(tensors);
}

/* ---- another user's job */

/* In a process of another user: its exit status. */
static int stranger(const struct zi_daemon *d)
{
    static const struct zc_unit unit = {
        .name = "u", .elems = PAGE, .dtype = ZC_F32, .grad_dtype = ZC_F32, .frozen = true
    };
    const struct zc_options options = { .socket = d->socket };
    struct zc_job_options o = {
        .name = "mine", .world = 1, .staging_bytes = 4096, .groups = 1, .keep = true, .attach = true
    };
    struct zc_client *c = NULL;
    struct zc_shard_row *shards = NULL;
    struct zc_job_row *jobs = NULL;
    struct zc_range range = { 0, 0, PAGE };
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
    CHECK(zc_job_open_wait(c, &o, &job) == -EPERM && strstr(zc_error(c), "belongs to user 0"));
    CHECK(zc_job_destroy_wait(c, "mine") == -EPERM && strstr(zc_error(c), "belongs to user 0"));
    CHECK(zc_jobs_wait(c, NULL, &jobs, &n) == 0 && n == 0); /* it does not even see it */
    zc_rows_free(jobs);
    CHECK(zc_list_wait(c, NULL, &shards, &n) == 0 && n == 0);
    zc_rows_free(shards);
    CHECK(zc_list_wait(c, "mine", &shards, &n) == -ENOENT);
    CHECK(zc_tier_set_wait(c, "host", UINT64_C(1) << 30) == -EPERM);
    CHECK(strstr(zc_error(c), "only root and the daemon's own user"));
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
        .name = "u", .elems = PAGE, .dtype = ZC_F32, .grad_dtype = ZC_F32
    };
    struct zc_job_options o = {
        .name = "mine", .staging_bytes = STAGING, .groups = 1, .keep = true
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
    c = zi_client(&d); /* root sees and ends both */
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

/* Without a group, the file's mode keeps others out. */
static void a_socket_of_ours_only(void **state)
{
    struct zi_daemon d = { 0 };
    pid_t pid;
    int status;

    (void)state;
    if (geteuid() != 0) {
        ztest_skip("only root can become another user");
    }
    zi_start(&d, small);
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
        cmocka_unit_test_teardown(opens, zi_teardown),
        cmocka_unit_test_teardown(jobs_of_one_name, zi_teardown),
        cmocka_unit_test_teardown(a_second_job_of_a_name_that_is_ready, zi_teardown),
        cmocka_unit_test_teardown(units_and_shards, zi_teardown),
        cmocka_unit_test_teardown(ranks_that_differ, zi_teardown),
        cmocka_unit_test_teardown(data, zi_teardown),
        cmocka_unit_test_teardown(shards_of_another_job, zi_teardown),
        cmocka_unit_test_teardown(the_least_is_the_least, zi_teardown),
        cmocka_unit_test_teardown(the_least_of_a_job_with_a_limit, zi_teardown),
        cmocka_unit_test_teardown(the_least_of_nvme, zi_teardown),
        cmocka_unit_test_teardown(limits, zi_teardown),
        cmocka_unit_test_teardown(tensors_without_end, zi_teardown),
        cmocka_unit_test_teardown(another_user, zi_teardown),
        cmocka_unit_test_teardown(a_socket_of_ours_only, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
