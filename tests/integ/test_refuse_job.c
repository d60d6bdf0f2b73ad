/*
 * What a real daemon refuses (refuse.h) before a job is ready: opening it, units, shards.
 */
#include "tests/integ/refuse.h"

#include <errno.h>
#include <poll.h>

#include "base/util.h"

/* ---- opening jobs */

static const char too_long[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/* Differences from rf_open: rows name a member by its offset. */
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
    { "no name", "", 0, 1, 2, 2, 1, 1, false, 0, -EINVAL, "not a valid job name" },
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
    Zp__JobOpen q = rf_open;

    (void)state;
    zi_start(&d, rf_small);
    host = zi_used(&d, "host");
    zi_raw_open(&r, &d);
    for (size_t i = 0; i < ZB_COUNT(open_cases); i++) {
        Zp__JobOpen bad = rf_open;

        bad.name = (char *)(uintptr_t)open_cases[i].job;
        bad.rank = open_cases[i].rank;
        bad.world = open_cases[i].world;
        bad.offload_param = open_cases[i].op;
        bad.offload_optimizer = open_cases[i].oo;
        bad.groups = open_cases[i].groups;
        bad.optimizer = open_cases[i].optimizer;
        bad.attach = open_cases[i].attach;
        bad.staging_bytes = open_cases[i].staging;
        rf_refused(open_cases[i].name, &r, ZP_JOB_OPEN, &bad.base, open_cases[i].code,
                   open_cases[i].part);
        assert_int_equal(zi_used(&d, "host"), host);
    }
    assert_int_equal(zi_raw_call(&r, ZP_JOB_OPEN, &q.base), 0);
    assert_int_equal(zi_used(&d, "host"), host + RF_STAGING);
    rf_refused("a second job on this connection", &r, ZP_JOB_OPEN, &q.base, -EBUSY, "'job'");
    zi_raw_close(&r);
    (void)zi_await_used(&d, host, 0);
    zi_stop(&d);
}

static void jobs_of_one_name(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_raw a, b, c;
    Zp__JobOpen q = rf_open, other;

    (void)state;
    zi_start(&d, rf_small);
    zi_raw_open(&a, &d);
    zi_raw_open(&b, &d);
    zi_raw_open(&c, &d);
    q.world = 2;
    q.staging_bytes = 4096;
    assert_int_equal(zi_raw_call(&a, ZP_JOB_OPEN, &q.base), 0);
    rf_refused("the same rank", &b, ZP_JOB_OPEN, &q.base, -EEXIST,
               "'job' exists already: its rank 0 is taken");
    q.rank = 1;
    other = q;
    other.world = 3;
    rf_refused("another world", &b, ZP_JOB_OPEN, &other.base, -EINVAL, "2 ranks, not 3");
    other = q;
    other.groups = 2;
    rf_refused("other groups", &b, ZP_JOB_OPEN, &other.base, -EINVAL,
               "different options from its peers");
    other = q;
    other.keep = true;
    rf_refused("kept or not", &b, ZP_JOB_OPEN, &other.base, -EINVAL,
               "different options from its peers");
    other = q;
    other.offload_param = 1;
    rf_refused("another place", &b, ZP_JOB_OPEN, &other.base, -EINVAL,
               "different options from its peers");
    other = q;
    other.host_bytes_max = 4096;
    rf_refused("another limit", &b, ZP_JOB_OPEN, &other.base, -EINVAL,
               "different options from its peers");
    other = q;
    other.attach = true;
    rf_refused("attach to what is not kept", &b, ZP_JOB_OPEN, &other.base, -EINVAL, "`keep`");
    assert_int_equal(zi_raw_call(&b, ZP_JOB_OPEN, &q.base), 0);
    q.rank = 0;
    rf_refused("a third", &c, ZP_JOB_OPEN, &q.base, -EEXIST, "taken");
    zi_raw_close(&a);
    /* the job has ended with its lost rank: its name becomes free at once */
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
        .name = "u", .elems = RF_PAGE, .dtype = ZC_F32, .grad_dtype = ZC_F32
    };
    struct zc_job_options o = { .name = "job", .staging_bytes = RF_STAGING, .groups = 1 };
    struct zi_daemon d = { 0 };
    struct zi_rank first[1], second;
    int rc;

    (void)state;
    zi_start(&d, rf_small);
    zi_job(first, 1, &d, &o, &unit, 1);
    o.world = 1;
    rc = zi_open(&second, &d, &o);
    rf_says("a second job", rc, -EEXIST, zc_error(second.c), "job 'job' exists already");
    zc_close(second.c);
    o.world = 2;
    o.rank = 1;
    rc = zi_open(&second, &d, &o);
    rf_says("another rank of it", rc, -EEXIST, zc_error(second.c), "job 'job' exists already");
    zc_close(second.c);
    zi_close(first, 1);
    zi_stop(&d);
}

/* ---- units and shards */

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
    { "a unit without a name", 0, "", 10, 1, 1, "t", 0, 10, 1, 0, "not a valid unit name" },
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
    { "a tensor without a name", 0, "a", 10, 1, 1, "", 0, 10, 1, 0, "not a valid tensor name" },
    { "a group that the job lacks", 0, "a", 10, 1, 1, "t", 0, 10, 1, 1, "group 1" },
};

static const struct {
    const char *name;
    Zp__Range range;
    int code;
    const char *part;
} range_cases[] = {
    { "a unit that is not there", RF_RANGE(1, 0, RF_PAGE), -ENOENT, "no unit 1" },
    { "nothing", RF_RANGE(0, 0, 0), -EINVAL, "multiples of 4096" },
    { "a beginning inside of a block", RF_RANGE(0, 100, RF_PAGE), -EINVAL, "multiples of 4096" },
    { "an end inside of a block", RF_RANGE(0, 0, 100), -EINVAL, "multiples of 4096" },
    { "more than there is", RF_RANGE(0, 0, 4 * RF_PAGE), -EINVAL, "the unit has 12188" },
    { "behind the end", RF_RANGE(0, 3 * RF_PAGE, RF_PAGE), -EINVAL, "the unit has 12188" },
    { "an end that overflows", RF_RANGE(0, RF_PAGE, UINT64_MAX - RF_PAGE + 1), -EINVAL,
      "the unit has 12188" },
};

static void units_and_shards(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_raw r;
    Zp__JobOpen q = rf_open;
    Zp__UnitDefine u = rf_unit;
    Zp__ShardRegister s = ZP__SHARD_REGISTER__INIT;
    Zp__Range good = RF_RANGE(0, 0, RF_PAGE), overlap = RF_RANGE(0, 0, 2 * RF_PAGE),
              rest = RF_RANGE(0, RF_PAGE, RF_PAGE), *ranges[2] = { &good, &overlap };
    Zp__Ready ready = ZP__READY__INIT;
    uint64_t job, other = 77;

    (void)state;
    zi_start(&d, rf_small);
    zi_raw_open(&r, &d);
    u.job = other;
    rf_refused("a unit without a job", &r, ZP_UNIT_DEFINE, &u.base, -ENOENT, "no job");
    assert_int_equal(zi_raw_call(&r, ZP_JOB_OPEN, &q.base), 0);
    job = ((const Zp__JobOpenReply *)r.reply)->job;
    rf_refused("another job's unit", &r, ZP_UNIT_DEFINE, &u.base, -ENOENT, "job 77");
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
        rf_refused(unit_cases[i].name, &r, ZP_UNIT_DEFINE, &bad.base, -EINVAL, unit_cases[i].part);
    }
    rf_refused("ready without a shard", &r, ZP_READY, &ready.base, -EINVAL, "no shards");
    assert_int_equal(zi_raw_call(&r, ZP_UNIT_DEFINE, &u.base), 0);
    s.ranges = ranges;
    rf_refused("no ranges", &r, ZP_SHARD_REGISTER, &s.base, -EINVAL, "0 ranges");
    s.n_ranges = 1;
    for (size_t i = 0; i < ZB_COUNT(range_cases); i++) {
        Zp__Range range = range_cases[i].range;

        ranges[0] = &range;
        rf_refused(range_cases[i].name, &r, ZP_SHARD_REGISTER, &s.base, range_cases[i].code,
                   range_cases[i].part);
    }
    ranges[0] = &good;
    s.n_ranges = 2; /* all or none: the first range is not registered either */
    rf_refused("ranges that overlap", &r, ZP_SHARD_REGISTER, &s.base, -EINVAL, "overlaps");
    ranges[1] = &rest;
    assert_int_equal(zi_raw_call(&r, ZP_SHARD_REGISTER, &s.base), 0);
    rf_refused("a shard twice", &r, ZP_SHARD_REGISTER, &s.base, -EINVAL, "overlaps");
    assert_int_equal(zi_raw_call(&r, ZP_READY, &ready.base), 0);
    rf_refused("ready twice", &r, ZP_READY, &ready.base, -EBUSY, "already");
    good.first = 2 * RF_PAGE;
    s.n_ranges = 1;
    rf_refused("a shard of a job that is ready", &r, ZP_SHARD_REGISTER, &s.base, -EBUSY, "ready");
    u.unit = 1;
    rf_refused("a unit of a job that is ready", &r, ZP_UNIT_DEFINE, &u.base, -EBUSY, "fixed");
    zi_raw_close(&r);
    zi_stop(&d);
}

/* Rank 1 must describe units as rank 0 did. */
static void ranks_that_differ(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_raw a, b;
    Zp__JobOpen q = rf_open;
    Zp__UnitDefine u = rf_unit, v;

    (void)state;
    zi_start(&d, rf_small);
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
    rf_refused("another size", &b, ZP_UNIT_DEFINE, &v.base, -EINVAL,
               "differently from its peers, or from what the job had when it was saved");
    v = u;
    v.frozen = true;
    rf_refused("frozen", &b, ZP_UNIT_DEFINE, &v.base, -EINVAL,
               "is trained, and rank 1 defines it as frozen");
    v = u;
    v.dtype = 2;
    rf_refused("another dtype", &b, ZP_UNIT_DEFINE, &v.base, -EINVAL, "differently from its peers");
    v = u;
    v.frozen = v.quantized = true;
    rf_refused("quantized", &b, ZP_UNIT_DEFINE, &v.base, -EINVAL,
               "is trained, and rank 1 defines it as frozen and quantized");
    v.frozen = false;
    rf_refused("quantized, and trained", &b, ZP_UNIT_DEFINE, &v.base, -EINVAL,
               "is quantized but not frozen");
    v = u;
    v.last = false;
    assert_int_equal(zi_raw_call(&b, ZP_UNIT_DEFINE, &v.base), 0);
    v.elems++; /* the head of a later part differs from that of the first */
    v.last = true;
    rf_refused("another head", &b, ZP_UNIT_DEFINE, &v.base, -EINVAL, "part");
    assert_int_equal(zi_raw_call(&b, ZP_UNIT_DEFINE, &u.base), 0);
    zi_raw_close(&a);
    zi_raw_close(&b);
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(opens, zi_teardown),
        cmocka_unit_test_teardown(jobs_of_one_name, zi_teardown),
        cmocka_unit_test_teardown(a_second_job_of_a_name_that_is_ready, zi_teardown),
        cmocka_unit_test_teardown(units_and_shards, zi_teardown),
        cmocka_unit_test_teardown(ranks_that_differ, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
