/*
 * What a real daemon refuses (refuse.h) for a ready job: writes, reads, fetches, pushes, steps.
 */
#include "tests/integ/refuse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/plan.h"
#include "base/util.h"
#include "kernels/zk_page.h"

/* ---- data */

enum { A, BF16, FROZEN, LATE, UNITS };

static const struct zc_unit data_units[UNITS] = {
    [A] = { 0, "a", 3 * RF_PAGE - 100, ZC_F32, ZC_F32, false, false, NULL, 0 },
    [BF16] = { 1, "b", RF_PAGE, ZC_BF16, ZC_BF16, false, false, NULL, 0 },
    [FROZEN] = { 2, "f", RF_PAGE, ZC_BF16, ZC_F32, true, false, NULL, 0 },
    [LATE] = { 3, "late", RF_PAGE, ZC_F32, ZC_F32, false, false, NULL, 0 },
};

#define NO_SHARD (UNITS + 1) /* an index that the job does not have */

struct data_case {
    const char *name;
    unsigned unit;
    uint64_t first, count, staging;
    uint32_t a, b, c, d; /* the other fields of the message */
    int code;
    const char *part;
};

/* a: step, b: micro, c: mode, d: dtype. Their order matters: before the rows from BEHIND on, a good
 * push of the first page is made. */
static const struct data_case push_cases[] = {
    { "an unknown shard", NO_SHARD, 0, RF_PAGE, 0, 1, 0, 1, 1, -ENOENT, "no shard" },
    { "more than the shard", A, 0, 4 * RF_PAGE, 0, 1, 0, 1, 1, -EINVAL,
      "0 to 16384 of a shard of" },
    { "part of a page", A, 0, 100, 0, 1, 0, 1, 1, -EINVAL, "multiples of 4096" },
    { "nothing", A, 0, 0, 0, 1, 0, 1, 1, -EINVAL, "multiples of 4096" },
    { "from inside of a page", A, 100, RF_PAGE, 0, 1, 0, 1, 1, -EINVAL, "multiples of 4096" },
    { "an end that overflows", A, RF_PAGE, UINT64_MAX / 8, 0, 1, 0, 1, 1, -EINVAL, "" },
    { "a size that overflows", A, 0, UINT64_MAX - 2, 0, 1, 0, 1, 1, -EINVAL, "" },
    { "a step that is done", A, 0, RF_PAGE, 0, 0, 0, 1, 1, -EEXIST, "step 0" },
    { "a step to come", A, 0, RF_PAGE, 0, 2, 0, 1, 1, -EINVAL, "step 1 comes next" },
    { "micro-step 1 first", A, 0, RF_PAGE, 0, 1, 1, 2, 1, -EINVAL, "micro-step 0 from 0" },
    { "adding first", A, 0, RF_PAGE, 0, 1, 0, 2, 1, -EINVAL, "the first sets" },
    { "setting later", A, 0, RF_PAGE, 0, 1, 1, 1, 1, -EINVAL, "the first sets" },
    { "no mode", A, 0, RF_PAGE, 0, 1, 0, 0, 1, -EINVAL, "mode 0" },
    { "a mode that is none", A, 0, RF_PAGE, 0, 1, 0, 3, 1, -EINVAL, "mode 3" },
    { "a dtype that is none", A, 0, RF_PAGE, 0, 1, 0, 1, 9, -EINVAL, "dtype number 9" },
    { "the second part first", A, RF_PAGE, 2 * RF_PAGE, 0, 1, 0, 1, 1, -EINVAL,
      "from 0 comes next" },
    { "staging that ends before", A, 0, 3 * RF_PAGE, RF_STAGING - 64, 1, 0, 1, 1, -EINVAL,
      "not inside the staging" },
    { "staging that begins behind", A, 0, RF_PAGE, RF_STAGING + 64, 1, 0, 1, 1, -EINVAL,
      "not inside the staging" },
    { "staging that overflows", A, 0, RF_PAGE, UINT64_MAX - 63, 1, 0, 1, 1, -EINVAL,
      "not inside the staging" },
    { "staging that is not aligned", A, 0, RF_PAGE, 8, 1, 0, 1, 1, -EINVAL, "multiple of 64" },
    { "a frozen unit", FROZEN, 0, RF_PAGE, 0, 1, 0, 1, 2, -EINVAL, "frozen" },
    { "adding to bf16", BF16, 0, RF_PAGE, 0, 1, 1, 2, 2, -EINVAL, "cannot accumulate" },
#define BEHIND 22
    { "the same again", A, 0, RF_PAGE, 0, 1, 0, 1, 1, -EEXIST, "not added twice" },
    { "the same and more", A, 0, 2 * RF_PAGE, 0, 1, 0, 1, 1, -EEXIST, "not added twice" },
    { "the last part", A, 2 * RF_PAGE, RF_PAGE, 0, 1, 0, 1, 1, -EINVAL, "from 4096 comes next" },
    { "the next micro-step too early", A, 0, RF_PAGE, 0, 1, 1, 2, 1, -EINVAL, "micro-step 0" },
};

/* a: the plane that is read. */
static const struct data_case read_cases[] = {
    { "an unknown shard", NO_SHARD, 0, RF_PAGE, 0, 2, 0, 0, 0, -ENOENT, "no shard" },
    { "nothing of that kind", A, 0, RF_PAGE, 0, 0, 0, 0, 0, -EINVAL, "kind 0" },
    { "another kind that is none", A, 0, RF_PAGE, 0, 6, 0, 0, 0, -EINVAL, "kind 6" },
    { "the master of what is frozen", FROZEN, 0, RF_PAGE, 0, 2, 0, 0, 0, -EINVAL, "kind 2" },
    { "the moment of what is frozen", FROZEN, 0, RF_PAGE, 0, 3, 0, 0, 0, -EINVAL, "kind 3" },
    { "the gradient of what is frozen", FROZEN, 0, RF_PAGE, 0, 5, 0, 0, 0, -EINVAL, "kind 5" },
    { "more than the shard", A, 0, 4 * RF_PAGE, 0, 2, 0, 0, 0, -EINVAL, "a shard of 12288" },
    { "part of a page", A, 0, 100, 0, 2, 0, 0, 0, -EINVAL, "multiples of 4096" },
    { "nothing", A, 0, 0, 0, 2, 0, 0, 0, -EINVAL, "multiples of 4096" },
    { "from inside of a page", A, 64, RF_PAGE, 0, 2, 0, 0, 0, -EINVAL, "multiples of 4096" },
    { "an end that overflows", A, RF_PAGE, UINT64_MAX, 0, 2, 0, 0, 0, -EINVAL, "" },
    { "staging that ends before", A, 0, 3 * RF_PAGE, RF_STAGING - 64, 2, 0, 0, 0, -EINVAL,
      "not inside the staging" },
    { "staging that is not aligned", A, 0, RF_PAGE, 32, 2, 0, 0, 0, -EINVAL, "multiple" },
    { "before it was written", LATE, 0, RF_PAGE, 0, 2, 0, 0, 0, -EAGAIN, "no initial values" },
};

static const struct data_case write_cases[] = {
    { "an unknown shard", NO_SHARD, 0, RF_PAGE, 0, 0, 0, 0, 0, -ENOENT, "no shard" },
    { "more than the shard", A, 0, 4 * RF_PAGE, 0, 0, 0, 0, 0, -EINVAL, "a shard of 12288" },
    { "part of a page", A, RF_PAGE, 100, 0, 0, 0, 0, 0, -EINVAL, "multiples of 4096" },
    { "nothing", A, 0, 0, 0, 0, 0, 0, 0, -EINVAL, "multiples of 4096" },
    { "an end that overflows", A, RF_PAGE, UINT64_MAX, 0, 0, 0, 0, 0, -EINVAL, "" },
    { "staging that ends before", A, 0, 3 * RF_PAGE, RF_STAGING - 64, 0, 0, 0, 0, -EINVAL,
      "not inside the staging" },
    { "staging that begins behind", A, 0, RF_PAGE, UINT64_MAX - 63, 0, 0, 0, 0, -EINVAL,
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
    Zp__JobOpen q = rf_open;

    zi_start(&x->d, rf_small);
    zi_raw_open(&x->r, &x->d);
    assert_int_equal(zi_raw_call(&x->r, ZP_JOB_OPEN, &q.base), 0);
    x->job = ((const Zp__JobOpenReply *)x->r.reply)->job;
    x->staging = mmap(NULL, RF_STAGING, PROT_READ | PROT_WRITE, MAP_SHARED, x->r.fd, 0);
    assert_ptr_not_equal(x->staging, MAP_FAILED);
    for (unsigned i = 0; i < UNITS; i++) {
        Zp__UnitDefine u = rf_unit;
        Zp__ShardRegister s = ZP__SHARD_REGISTER__INIT;
        Zp__Range range = RF_RANGE(i, 0, zb_padded_elems(data_units[i].elems)),
                  *ranges[] = { &range };

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
    (void)munmap(x->staging, RF_STAGING);
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

/* The gradient must be what one push of micro-step 0 and one of micro-step 1 leave. */
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

/* Writes initial values of all units but LATE; a shard is not complete with half of them. */
static void data_fill(struct data *x)
{
    for (size_t n = 0; n < 3 * RF_PAGE; n++)
        x->staging[n] = 1.0f + (float)n;
    for (unsigned i = 0; i < LATE; i++) {
        rf_says("fetch before it was written", data_fetch(x, &x->shards[i], 1, 0), -EAGAIN,
                x->r.text, "no initial values");
        if (i == A) {
            assert_int_equal(data_write(x, x->shards[i], RF_PAGE, 2 * RF_PAGE, RF_PAGE * 4), 0);
            rf_says("fetch of what is half written", data_fetch(x, &x->shards[i], 1, 0), -EAGAIN,
                    x->r.text, "no initial values");
        }
        assert_int_equal(data_write(x, x->shards[i], 0, RF_PAGE, 0), 0);
    }
}

static void data_copies(struct data *x)
{
    for (size_t i = 0; i < ZB_COUNT(write_cases); i++)
        rf_says(write_cases[i].name,
                data_write(x, data_shard(x, write_cases[i].unit), write_cases[i].first,
                           write_cases[i].count, write_cases[i].staging),
                write_cases[i].code, x->r.text, write_cases[i].part);
    for (size_t i = 0; i < ZB_COUNT(read_cases); i++)
        rf_says(read_cases[i].name,
                data_read(x, data_shard(x, read_cases[i].unit), read_cases[i].a,
                          read_cases[i].first, read_cases[i].count, read_cases[i].staging),
                read_cases[i].code, x->r.text, read_cases[i].part);
}

/* One of these is our own pin. The others are counted and logged, and do nothing else. */
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

    rf_says("an unknown shard", data_fetch(x, two, 2, 0), -ENOENT, x->r.text, "no shard");
    two[1] = UINT64_MAX;
    rf_says("a shard of no job", data_fetch(x, two, 2, 0), -ENOENT, x->r.text, "no shard");
    two[1] = x->shards[LATE];
    rf_says("one that was not written", data_fetch(x, two, 2, 0), -EAGAIN, x->r.text, "'late'");
    rf_says("no shards", data_fetch(x, two, 0, 0), -EINVAL, x->r.text, "0 shards");
    rf_says("a version that nobody makes", data_fetch(x, two, 1, 1), -ETIMEDOUT, x->r.text,
            "waits for version 1; it has 0");
    assert_int_equal(data_fetch(x, two, 1, 0), 0);
    rf_says("write of what is pinned", data_write(x, x->shards[A], 0, RF_PAGE, 0), -EBUSY,
            x->r.text, "pinned");
    data_release(x);
    assert_int_equal(data_write(x, x->shards[A], 0, RF_PAGE, 0), 0);
}

/* Pushes the first three pages of staging to shard A's gradient twice: set, and added. */
static void data_pushes(struct data *x)
{
    static const struct data_case first = { .count = RF_PAGE, .a = 1, .c = 1, .d = 1 };
    static const struct data_case again = { .count = 3 * RF_PAGE, .a = 1, .b = 1, .c = 2, .d = 1 };
    struct data_case rest = first;

    rest.first = RF_PAGE;
    rest.count = 2 * RF_PAGE;
    rest.staging = RF_PAGE * sizeof(float);
    for (size_t n = 0; n < 3 * RF_PAGE; n++)
        x->staging[n] = 0.25f * (float)(n % 100) - 3;
    for (size_t i = 0; i < ZB_COUNT(push_cases); i++) {
        if (i == BEHIND)
            assert_int_equal(data_push(x, x->shards[A], &first), 0);
        rf_says(push_cases[i].name, data_push(x, data_shard(x, push_cases[i].unit), &push_cases[i]),
                push_cases[i].code, x->r.text, push_cases[i].part);
    }
    assert_int_equal(data_push(x, x->shards[A], &rest), 0);
    rf_says("the whole again", data_push(x, x->shards[A], &rest), -EEXIST, x->r.text,
            "not added twice");
    assert_int_equal(data_push(x, x->shards[A], &again), 0);
    rf_says("a micro-step again", data_push(x, x->shards[A], &again), -EEXIST, x->r.text,
            "not added twice");
    rf_says("an older one", data_push(x, x->shards[A], &first), -EEXIST, x->r.text,
            "not added twice");
}

/* Gradients of zero for the others. */
static void data_push_zeros(struct data *x)
{
    struct data_case zero = {
        .count = RF_PAGE, .staging = 3 * RF_PAGE * sizeof(float), .a = 1, .c = 1
    };

    memset(x->staging + 3 * RF_PAGE, 0, RF_PAGE * sizeof(float));
    zero.d = ZC_F32;
    assert_int_equal(data_push(x, x->shards[LATE], &zero), 0);
    zero.d = ZC_BF16;
    assert_int_equal(data_push(x, x->shards[BF16], &zero), 0);
    rf_says("step without values", data_step(x, 1), -EAGAIN, x->r.text, "'late'");
    assert_int_equal(data_write(x, x->shards[LATE], 0, RF_PAGE, zero.staging), 0);
}

/* Refused requests had no effect: norm, bytes and step are those of the accepted ones. */
static void data_check(struct data *x)
{
    float *sum = calloc(3 * RF_PAGE, sizeof(*sum));

    for (size_t n = 0; n < 3 * RF_PAGE; n++)
        sum[n] = 2 * x->staging[n];
    check_norm(x, sum, 3 * RF_PAGE);
    assert_int_equal(data_read(x, x->shards[A], ZC_GRAD, 0, 3 * RF_PAGE, 16 * RF_PAGE), 0);
    assert_memory_equal(x->staging + 4 * RF_PAGE, sum, 3 * RF_PAGE * sizeof(float));
    free(sum);
    assert_int_equal(data_step(x, 1), 0);
    rf_says("a step that is done", data_step(x, 1), -EEXIST, x->r.text, "step 2 comes next");
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
    rf_says("write before ready", data_write(&x, x.shards[A], 0, RF_PAGE, 0), -EBUSY, x.r.text,
            "not ready");
    rf_says("fetch before ready", data_fetch(&x, x.shards, 1, 0), -EBUSY, x.r.text, "not ready");
    rf_says("step before ready", data_step(&x, 1), -EBUSY, x.r.text, "not ready");
    data_ready(&x);
    data_fill(&x);
    data_copies(&x);
    data_fetches(&x);
    assert_int_equal(data_norms(&x, 1), 0); /* there are no gradients */
    rf_says("step without gradients", data_step(&x, 1), -EBUSY, x.r.text, "no whole gradient");
    rf_says("step 2 first", data_step(&x, 2), -EINVAL, x.r.text, "step 2 of");
    rf_says("step 0", data_step(&x, 0), -EEXIST, x.r.text, "step 1 comes next");
    data_pushes(&x);
    rf_says("norms of another step", data_norms(&x, 2), -EINVAL, x.r.text, "step 1 comes next");
    data_push_zeros(&x);
    data_check(&x);
    data_close(&x);
}

/* Another job's shards cannot be used. */
static void shards_of_another_job(void **state)
{
    static const struct zc_unit unit = {
        .name = "u", .elems = RF_PAGE, .dtype = ZC_F32, .grad_dtype = ZC_F32
    };
    struct zc_job_options o = { .name = "one", .staging_bytes = RF_STAGING, .groups = 1 };
    struct zi_daemon d = { 0 };
    struct zi_rank one[1], two[1];
    struct zc_view view;

    (void)state;
    zi_start(&d, rf_small);
    zi_job(one, 1, &d, &o, &unit, 1);
    o.name = "two";
    zi_job(two, 1, &d, &o, &unit, 1);
    rf_says("fetch", zc_fetch_wait(two->c, one->shards, 1, 0, 0, &view), -ENOENT, zc_error(two->c),
            "no shard");
    rf_says("write", zc_write_wait(two->c, one->shards[0], ZC_MASTER, 0, RF_PAGE, two->job.staging),
            -ENOENT, zc_error(two->c), "no shard");
    rf_says("ready", zc_ready_wait(two->c, one->job.id, NULL, 0, &two->place), -ENOENT,
            zc_error(two->c), "not the one that this connection has opened");
    zi_close(one, 1);
    zi_close(two, 1);
    zi_stop(&d);
}

/* A rank writes and pushes only to its own shards; it reads and fetches all. */
static void shards_of_another_rank(void **state)
{
    static const struct zc_unit unit = {
        .name = "u", .elems = 2 * RF_PAGE, .dtype = ZC_F32, .grad_dtype = ZC_F32
    };
    static const char part[] = "of unit 'u' of job 'j' is rank 0's: rank 1 may read it, not ";
    struct zc_job_options o = { .name = "j", .staging_bytes = RF_STAGING, .groups = 1 };
    struct zc_push push = { .step = 1, .dtype = ZC_F32, .count = RF_PAGE };
    struct zi_daemon d = { 0 };
    struct zi_rank ranks[2];
    struct zc_view view;
    char want[128];

    (void)state;
    zi_start(&d, rf_small);
    zi_job(ranks, 2, &d, &o, &unit, 1);
    for (int r = 0; r < 2; r++)
        assert_int_equal(zc_write_wait(ranks[r].c, ranks[r].shards[0], ZC_MASTER, 0, RF_PAGE,
                                       ranks[r].job.staging),
                         0);
    (void)snprintf(want, sizeof(want), "%swrite it", part);
    rf_says(
        "write",
        zc_write_wait(ranks[1].c, ranks[0].shards[0], ZC_MASTER, 0, RF_PAGE, ranks[1].job.staging),
        -EPERM, zc_error(ranks[1].c), want);
    assert_int_equal(
        zc_read_wait(ranks[1].c, ranks[0].shards[0], ZC_MASTER, 0, RF_PAGE, ranks[1].job.staging),
        0);
    push.shard = ranks[0].shards[0];
    push.staged = ranks[1].job.staging;
    (void)snprintf(want, sizeof(want), "%spush to it", part);
    rf_says("push", zc_push_wait(ranks[1].c, &push), -EPERM, zc_error(ranks[1].c), want);
    assert_int_equal(zc_fetch_wait(ranks[1].c, ranks[0].shards, 1, 0, 0, &view), 0);
    push.staged = ranks[0].job.staging; /* the other rank's request did not count as its own */
    assert_int_equal(zc_push_wait(ranks[0].c, &push), 0);
    zi_close(ranks, 2);
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(data, zi_teardown),
        cmocka_unit_test_teardown(shards_of_another_job, zi_teardown),
        cmocka_unit_test_teardown(shards_of_another_rank, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
