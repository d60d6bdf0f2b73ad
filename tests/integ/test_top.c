/*
 * What `zctl top` shows of a real daemon: a slow drive is named as the bottleneck, ranks that are
 * late or do not release are named, and counters add up. The drive is memory with a fixed rate, so
 * its speed does not depend on the machine.
 */
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zctl/top/top.h"

#define PAGE    16384u
#define ELEMS   (8 * PAGE)
#define UNITS   4u
#define STAGING 262144u
#define LOOK_MS 400u

static const char *const options[] = { "--host-bytes",
                                       "16M",
                                       "--nvme-bytes",
                                       "32M",
                                       "--page-elems",
                                       "16384",
                                       "--ring-bytes",
                                       "1M",
                                       "--io",
                                       "fixed",
                                       "--fixed-rate",
                                       "8M",
                                       "--fixed-latency-us",
                                       "1000",
                                       NULL };

static const struct zc_unit units[UNITS] = {
    { 0, "u0", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
    { 1, "u1", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
    { 2, "u2", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
    { 3, "u3", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
};

static const struct zc_group groups[] = {
    { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.01 }
};
static const struct zc_step first_step = { .step = 1, .scale = 1, .groups = groups, .ngroups = 1 };

static float value(uint64_t element)
{
    return 1.0f + (float)(element % 100);
}

static struct top_sample look(struct zc_client *c)
{
    struct top_sample s = { .jobs = NULL };

    assert_int_equal(zc_top_wait(c, NULL, &s.node, &s.jobs, &s.njobs), 0);
    return s;
}

/* The verdict on two samples. */
static struct top_verdict verdict(struct top_sample *from, struct top_sample *to,
                                  struct top_view *ret)
{
    struct top_verdict why;

    assert_int_equal(top_view_make(from, to, ret), 0);
    top_why(ret, &why);
    zc_rows_free(from->jobs);
    zc_rows_free(to->jobs);
    return why;
}

/* All parameters and all state are on the drive. */
static void job_open(struct zi_rank *ranks, unsigned world, const struct zi_daemon *d,
                     uint64_t host_bytes_max)
{
    const struct zc_job_options o = {
        .name = "gpt", .staging_bytes = STAGING, .groups = 1, .host_bytes_max = host_bytes_max
    };

    zi_job(ranks, world, d, &o, units, UNITS);
    for (unsigned r = 0; r < world; r++)
        for (unsigned u = 0; u < UNITS; u++)
            zi_write_all(&ranks[r], u, value);
}

static void push_all(struct zi_rank *ranks, unsigned world)
{
    for (unsigned r = 0; r < world; r++)
        for (unsigned u = 0; u < UNITS; u++)
            zi_push_all(&ranks[r], u, 1, value);
}

/* The least that a job of one rank needs: its staging, its gradients, the ring of three shards. */
static uint64_t least_host(void)
{
    return STAGING + UNITS * ELEMS * sizeof(float) + 3 * ELEMS * sizeof(float);
}

static void expect(const struct top_verdict *why, const char *part)
{
    if (!strstr(why->text, part))
        fail_msg("'%s' does not say '%s'", why->text, part);
}

static void a_slow_drive_is_named(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[1];
    struct zi_call call;
    struct zc_stepped stepped;
    struct zc_client *c;
    struct top_sample a, b;
    struct top_verdict why;
    struct top_view v;

    (void)state;
    zi_start(&d, options);
    c = zi_client(&d);
    job_open(r, 1, &d, least_host());
    push_all(r, 1);
    call = ZI_CALL(r);
    assert_int_equal(zc_step(r->c, r->job.id, &first_step, &stepped, zi_done, &call), 0);
    zi_pump(r, 1, 50); /* the step runs */
    a = look(c);
    zi_pump(r, 1, LOOK_MS);
    b = look(c);
    assert_false(call.over); /* what follows applies to a running step */
    why = verdict(&a, &b, &v);
    if (why.bound != TOP_NVME && why.bound != TOP_NVME_READ && why.bound != TOP_NVME_WRITE)
        fail_msg("%s: %s", top_bound_name(why.bound), why.text);
    expect(&why, "bound by NVMe");
    expect(&why, "job 'gpt' only waits for it");
    assert_int_equal(v.paths[0].measured_read_bytes_s, 8 * ZB_MIB);
    assert_true(v.paths[0].read_bytes_s + v.paths[0].written_bytes_s > 6 * ZB_MIB);
    assert_true(v.paths[0].queue > 1);
    assert_true(v.jobs[0].waits[ZC_WAIT_STEP_PAGES] > 0.9);
    assert_true(v.jobs[0].in_read > 0.1 && v.jobs[0].in_write > 0.1);
    assert_true(v.jobs[0].in_read + v.jobs[0].in_write > v.jobs[0].in_compute);
    assert_int_equal(v.oldest.pid, getpid());
    assert_string_equal(v.oldest.method, "step");
    assert_string_equal(v.oldest.waits, "its pages to be stepped");
    top_view_done(&v);
    assert_int_equal(zi_await(r, 1, &call), 0);

    a = look(c);
    zi_pump(r, 1, LOOK_MS / 2);
    b = look(c);
    why = verdict(&a, &b, &v);
    assert_string_equal(why.text, "idle: none of 1 job has a request");
    assert_int_equal(v.oldest.pid, 0);
    top_view_done(&v);
    zc_close(c);
    zi_close(r, 1);
    zi_stop(&d);
}

/* The part of the job's state that is neither in host memory nor on the drive. */
static uint64_t gpu_bytes(struct zc_client *c)
{
    uint64_t gpu, nvme;

    zi_where(c, NULL, &gpu, &nvme);
    return gpu;
}

/* A step of state on the GPU: its pages wait for the GPU, and not for compute threads. */
static void a_slow_gpu_is_named(void **state)
{
    const char *with_gpu[ZB_COUNT(options) + 4];
    struct zc_step step = first_step;
    struct zi_daemon d = { 0 };
    struct zi_rank r[1];
    struct zi_call call;
    struct zc_stepped stepped;
    struct zc_client *c;
    struct top_sample a, b;
    struct top_verdict why;
    struct top_view v;

    (void)state;
    memcpy(with_gpu, options, sizeof(options));
    with_gpu[ZB_COUNT(options) - 1] = "--gpu-bytes";
    with_gpu[ZB_COUNT(options)] = "32M";
    with_gpu[ZB_COUNT(options) + 1] = "--gpu";
    with_gpu[ZB_COUNT(options) + 2] = "emulated:64M:20000"; /* each work takes 20 ms */
    with_gpu[ZB_COUNT(options) + 3] = NULL;
    zi_start(&d, with_gpu);
    c = zi_client(&d);
    job_open(r, 1, &d, 0);
    for (step.step = 1;; step.step++) { /* a thread allocates its memory */
        for (unsigned u = 0; u < UNITS; u++)
            zi_push_all(r, u, step.step, value);
        if (gpu_bytes(c) > 0)
            break;
        assert_int_equal(zc_step_wait(r->c, r->job.id, &step, &stepped), 0);
        zi_pump(r, 1, 10);
    }
    call = ZI_CALL(r);
    assert_int_equal(zc_step(r->c, r->job.id, &step, &stepped, zi_done, &call), 0);
    zi_pump(r, 1, 50);
    a = look(c);
    zi_pump(r, 1, LOOK_MS);
    b = look(c);
    assert_false(call.over);
    why = verdict(&a, &b, &v);
    if (why.bound != TOP_GPU)
        fail_msg("%s: %s", top_bound_name(why.bound), why.text);
    assert_true(v.gpu_threads > 0 && v.gpu > 0.9 && v.computing < 0.5);
    assert_true(v.jobs[0].in_gpu > 0.9 && v.jobs[0].in_compute < v.jobs[0].in_gpu);
    top_view_done(&v);
    assert_int_equal(zi_await(r, 1, &call), 0);
    zc_close(c);
    zi_close(r, 1);
    zi_stop(&d);
}

/* ---- counters add up */

static void check_job_row(struct zc_client *c, const struct zc_top_job *j)
{
    struct zc_job_row row = zi_job_row(c, NULL);

    assert_int_equal(j->host_bytes, row.host_bytes);
    assert_int_equal(j->nvme_bytes, row.nvme_bytes);
    assert_int_equal(j->nvme_read_bytes, row.nvme_read_bytes);
    assert_int_equal(j->nvme_written_bytes, row.nvme_written_bytes);
    assert_int_equal(j->fetched_bytes, row.fetched_bytes);
    assert_int_equal(j->pushed_bytes, row.pushed_bytes);
}

static void check_tiers(struct zc_client *c, const struct zc_top *top)
{
    struct zc_tier_row *rows;
    size_t n;

    assert_int_equal(zc_tiers_wait(c, &rows, &n), 0);
    assert_int_equal(n, top->ntiers);
    for (size_t i = 0; i < n; i++) { /* only `tiers` looks up where the memory is */
        assert_memory_equal(&rows[i], &top->tiers[i], offsetof(struct zc_tier_row, node_bytes));
        assert_string_equal(rows[i].name, top->tiers[i].name);
        assert_string_equal(rows[i].detail, top->tiers[i].detail);
    }
    assert_int_equal(rows[1].read_bytes_s, top->paths[0].read_bytes_s);
    zc_rows_free(rows);
}

static void it_adds_up(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[1];
    struct zc_stepped stepped;
    struct zc_view view;
    struct zc_client *c;
    struct top_sample s;
    const struct zc_top_job *j;
    uint64_t area = 0, pages = UNITS * ELEMS / PAGE, before;

    (void)state;
    zi_start(&d, options);
    c = zi_client(&d);
    job_open(r, 1, &d, least_host());
    for (unsigned i = 0; i < 5; i++) { /* the first fetch reads it, the others find it cached */
        assert_int_equal(zc_fetch_wait(r->c, r->shards, 1, 0, ZI_FETCH_MS, &view), 0);
        assert_int_equal(zc_release(r->c, r->shards, 1), 0);
    }
    push_all(r, 1);
    assert_int_equal(zc_step_wait(r->c, r->job.id, &first_step, &stepped), 0);
    s = look(c);
    assert_int_equal(s.njobs, 1);
    j = &s.jobs[0];
    assert_int_equal(j->fetches, 5);
    assert_int_equal(j->hits, 4);
    assert_int_equal(j->misses, 1);
    assert_int_equal(j->pages, 2 * pages + ELEMS / PAGE); /* values, the fetch, the step */
    for (int i = 0; i < ZC_PAGE_PLACES; i++) {
        area += j->stages[i].area_ns;
        assert_int_equal(j->stages[i].now, 0);
        assert_true(j->stages[i].busy_ns <= j->stages[i].area_ns);
    }
    assert_int_equal(area, j->page_ns);
    assert_true(j->compute_ns > 0 && j->compute_ns <= j->stages[ZC_PAGE_COMPUTE].area_ns);
    assert_true(j->drive_only.busy_ns <=
                j->stages[ZC_PAGE_READ].busy_ns + j->stages[ZC_PAGE_WRITE].busy_ns);
    assert_int_equal(j->nvme_read_bytes, s.node.paths[0].read_bytes);
    assert_int_equal(j->nvme_written_bytes, s.node.paths[0].written_bytes);
    assert_int_equal(s.node.paths[0].read_bytes, zi_counter(c, "nvme_read_bytes"));
    assert_int_equal(s.node.paths[0].transfers,
                     zi_counter(c, "nvme_reads") + zi_counter(c, "nvme_writes"));
    assert_int_equal(s.node.paths[0].queue.now, 0);
    for (int i = 0; i < ZC_WAITS; i++)
        assert_int_equal(j->waits[i].now, 0);
    assert_true(j->waits[ZC_WAIT_FETCH_DRIVE].area_ns > 0);
    assert_true(j->waits[ZC_WAIT_STEP_PAGES].busy_ns > j->waits[ZC_WAIT_STEP_RANKS].busy_ns);
    before = s.node.now_ns;
    check_job_row(c, j);
    check_tiers(c, &s.node);
    zc_rows_free(s.jobs);
    s = look(c);
    assert_true(s.node.now_ns > before);
    zc_rows_free(s.jobs);
    assert_int_equal(zc_top_wait(c, "nobody", &s.node, &s.jobs, &s.njobs), -ENOENT);
    zc_close(c);
    zi_close(r, 1);
    zi_stop(&d);
}

/* ---- ranks that delay the others */

static void a_late_rank_is_named(void **state)
{
    struct zi_daemon d = { 0 };
    struct zi_rank r[2];
    struct zi_call calls[2];
    struct zc_stepped stepped[2];
    struct zc_view view;
    struct zc_client *c;
    struct top_sample a, b;
    struct top_verdict why;
    struct top_view v;
    char text[128];

    (void)state;
    zi_start(&d, options);
    c = zi_client(&d);
    job_open(r, 2, &d, 0);
    push_all(r, 2);
    for (unsigned i = 0; i < 2; i++)
        calls[i] = ZI_CALL(&r[i]);
    assert_int_equal(zc_fetch_wait(r[1].c, &r[1].shards[0], 1, 0, ZI_FETCH_MS, &view), 0);
    assert_int_equal(zc_step(r[0].c, r[0].job.id, &first_step, &stepped[0], zi_done, &calls[0]), 0);
    zi_pump(r, 2, 1050);
    a = look(c);
    zi_pump(r, 2, 50);
    b = look(c);
    why = verdict(&a, &b, &v);
    (void)snprintf(text, sizeof(text),
                   "waiting for rank 1 of job 'gpt' (process %d), to ask for "
                   "the step: 1.",
                   (int)getpid());
    expect(&why, text);
    assert_string_equal(v.oldest.waits, "other ranks");
    top_view_done(&v);

    assert_int_equal(zc_step(r[1].c, r[1].job.id, &first_step, &stepped[1], zi_done, &calls[1]), 0);
    zi_pump(r, 2, 50);
    a = look(c);
    zi_pump(r, 2, 50);
    b = look(c);
    why = verdict(&a, &b, &v);
    expect(&why, "waiting for rank 1 of job 'gpt'");
    expect(&why, "to release what it fetched");
    top_view_done(&v);
    assert_int_equal(zc_release(r[1].c, &r[1].shards[0], 1), 0);
    assert_int_equal(zi_await(r, 2, &calls[0]), 0);
    assert_int_equal(zi_await(r, 2, &calls[1]), 0);
    zc_close(c);
    zi_close(r, 2);
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_slow_drive_is_named, zi_teardown),
        cmocka_unit_test_teardown(a_slow_gpu_is_named, zi_teardown),
        cmocka_unit_test_teardown(it_adds_up, zi_teardown),
        cmocka_unit_test_teardown(a_late_rank_is_named, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
