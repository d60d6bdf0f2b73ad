/*
 * zctl top without a daemon: the bottleneck of the node, rates between two samples, and their
 * output.
 */
#include "tests/ztest.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zctl/top/top.h"
#include "client/zctl/zctl_main.h"

#define GB UINT64_C(1000000000)

/* ---- the verdict. Each row changes a view of a training job with nothing at its limit. */

static struct top_job job;
static struct top_view view;

static void quiet_job(void)
{
    job = (struct top_job){ .name = "gpt", .asking = 0.9, .fetches_s = 1, .hit_ratio = -1 };
    view = (struct top_view){ .interval_s = 1,
                              .threads = 2,
                              .buffers = 16,
                              .computing = 0.2,
                              .npaths = 1,
                              .jobs = &job,
                              .njobs = 1 };
    view.paths[0] = (struct top_path){ .path = 1,
                                       .measured_read_bytes_s = 3 * ZB_GIB,
                                       .measured_written_bytes_s = 2 * ZB_GIB,
                                       .read_share = 0.1,
                                       .written_share = 0.1,
                                       .load = 0.2,
                                       .busy = 0.4,
                                       .queue = 1 };
}

static void drive(double read, double written)
{
    view.paths[0].read_share = read;
    view.paths[0].written_share = written;
    view.paths[0].load = read + written < 1 ? read + written : 1;
    view.paths[0].busy = 1;
    job.drive_only = 0.81;
}

static void no_job(void)
{
    view.njobs = 0;
    view.computing = view.paths[0].busy = 0;
}

static void nothing(void)
{
    job.asking = job.fetches_s = 0;
    view.computing = view.paths[0].busy = 0;
}

static void writes(void)
{
    drive(0.1, 0.96);
}

static void reads(void)
{
    drive(0.9, 0);
}

static void both(void)
{
    drive(0.5, 0.45);
    view.paths[0].read_bytes_s = ZB_GIB;
    view.paths[0].written_bytes_s = ZB_GIB;
}

static void second_of_two(void)
{
    drive(0.1, 0.1);
    view.paths[1] = view.paths[0];
    view.paths[1].path = 2;
    view.paths[1].written_share = view.paths[1].load = 0.9;
    view.npaths = 2;
}

static void compute(void)
{
    view.computing = 0.98;
    view.compute_line = 3.5;
}

static void one_thread(void)
{
    view.computing = 0.9;
    view.threads = 1;
}

static void compute_and_less_of_the_drive(void)
{
    drive(0.5, 0.4);
    view.computing = 0.98;
}

static void gpu(void)
{
    view.gpu_threads = 4;
    view.gpu = 0.97;
    view.gpu_line = 7.5;
}

static void gpu_and_less_compute(void)
{
    gpu();
    view.computing = 0.9;
    view.gpu_line = 0.3;
}

static void compute_and_less_of_the_gpu(void)
{
    gpu();
    view.computing = 0.98;
}

static void gpu_and_more_of_the_drive(void)
{
    gpu();
    drive(0.7, 0.3);
}

static void gpu_alone(void)
{
    nothing();
    view.gpu_threads = 4;
    view.gpu = 0.1;
    job.asking = 0.9;
}

static void drive_and_less_compute(void)
{
    drive(0.7, 0.3);
    view.computing = 0.9;
}

static void late(void)
{
    job.late = ZC_LATE_STEP;
    job.late_rank = 3;
    job.late_pid = 4711;
    job.late_ms = 4200;
    job.late_ranks = 1;
}

static void late_and_more(void)
{
    late();
    job.late_ranks = 3;
    job.late_pid = 0;
}

static void late_pins(void)
{
    late();
    job.late = ZC_LATE_PINS;
}

static void late_a_little(void)
{
    late();
    job.late_ms = 999;
}

static void late_under_a_full_drive(void)
{
    late();
    drive(0.9, 0);
}

static void late_when_all_is_quiet(void)
{
    nothing();
    late();
}

static void buffers(void)
{
    drive(0.1, 0.1);
    job.in_buffer = 12.3;
    view.buffers_used = 15.8;
}

static void latency(void)
{
    drive(0.2, 0.2);
    view.paths[0].queue = 1.2;
}

static void unmeasured(void)
{
    drive(0, 0);
    view.paths[0].read_share = view.paths[0].written_share = view.paths[0].load = -1;
}

static void commit(void)
{
    job.waits[ZC_WAIT_COMMIT] = 0.6;
}

static void ring(void)
{
    job.waits[ZC_WAIT_FETCH_ROOM] = 0.7;
}

static void ranks(void)
{
    job.waits[ZC_WAIT_STEP_RANKS] = 0.55;
}

static void fetches(void)
{
    job.waits[ZC_WAIT_FETCH_DRIVE] = 0.5;
}

static void trainers(void)
{
    job.asking = 0.07;
}

static void mixed(void)
{
    job.waits[ZC_WAIT_STEP_PAGES] = 0.4;
}

static const struct {
    void (*change)(void);
    enum top_bound bound;
    const char *text;
} rows[] = {
    { no_job, TOP_IDLE, "idle: no job is in memory" },
    { nothing, TOP_IDLE, "idle: none of 1 job has a request" },
    { writes, TOP_NVME_WRITE,
      "bound by NVMe writes: 96 % of the measured 2.00 GiB/s; job 'gpt' only waits for it 81 % of "
      "the time" },
    { reads, TOP_NVME_READ,
      "bound by NVMe reads: 90 % of the measured 3.00 GiB/s; job 'gpt' only waits for it 81 % of "
      "the time" },
    { both, TOP_NVME,
      "bound by NVMe: 1.00 GiB/s read and 1.00 GiB/s written, together 95 % of what was measured; "
      "job 'gpt' only waits for it 81 % of the time" },
    { second_of_two, TOP_NVME_WRITE,
      "bound by NVMe writes: 90 % of the measured 2.00 GiB/s (data file 2 of 2); job 'gpt' only "
      "waits for it 81 % of the time" },
    { compute, TOP_COMPUTE,
      "bound by compute: all 2 threads are busy 98 %; 3.5 tasks wait for one" },
    { one_thread, TOP_COMPUTE, "bound by compute: the one thread is busy 90 %" },
    { compute_and_less_of_the_drive, TOP_COMPUTE, "bound by compute: all 2 threads are busy 98 %" },
    { gpu, TOP_GPU,
      "bound by the GPU: pages are stepped and copied 97 % of the time; 7.5 pages wait for "
      "it" },
    { gpu_and_less_compute, TOP_GPU,
      "bound by the GPU: pages are stepped and copied 97 % of the time" },
    { compute_and_less_of_the_gpu, TOP_COMPUTE, "bound by compute: all 2 threads are busy 98 %" },
    { gpu_and_more_of_the_drive, TOP_NVME_READ,
      "bound by NVMe reads: 70 % of the measured 3.00 GiB/s; job 'gpt' only waits for it 81 % of "
      "the time" },
    { gpu_alone, TOP_MIXED,
      "no resource is at its limit: compute 0 %, the GPU 10 %, NVMe 20 % of what was measured" },
    { drive_and_less_compute, TOP_NVME_READ,
      "bound by NVMe reads: 70 % of the measured 3.00 GiB/s; job 'gpt' only waits for it 81 % of "
      "the time" },
    { late, TOP_RANK,
      "waiting for rank 3 of job 'gpt' (process 4711), to ask for the step: 4.2 s" },
    { late_and_more, TOP_RANK,
      "waiting for rank 3 of job 'gpt' (not attached) and 2 more, to ask for the step: 4.2 s" },
    { late_pins, TOP_RANK,
      "waiting for rank 3 of job 'gpt' (process 4711), to release what it fetched: 4.2 s" },
    { late_a_little, TOP_MIXED,
      "no resource is at its limit: compute 20 %, NVMe 20 % of what was measured" },
    { late_under_a_full_drive, TOP_NVME_READ,
      "bound by NVMe reads: 90 % of the measured 3.00 GiB/s; job 'gpt' only waits for it 81 % of "
      "the time" },
    { late_when_all_is_quiet, TOP_RANK,
      "waiting for rank 3 of job 'gpt' (process 4711), to ask for the step: 4.2 s" },
    { buffers, TOP_BUFFERS,
      "bound by page buffers: 12.3 pages wait for one of 16, and the drive is busy 100 % of the "
      "time with 20 % of what was measured; raise ring_bytes" },
    { latency, TOP_NVME_LATENCY,
      "bound by the latency of NVMe: 1.2 transfers in flight, and the drive is busy 100 % of the "
      "time with 40 % of what was measured; job 'gpt' only waits for it 81 % of the "
      "time" },
    { unmeasured, TOP_NVME_LATENCY,
      "bound by the latency of NVMe: 1.0 transfers in flight, and the drive is busy 100 % of the "
      "time; job 'gpt' only waits for it 81 % of the time" },
    { commit, TOP_COMMIT, "job 'gpt' waits 60 % of the time for a commit" },
    { ring, TOP_RING,
      "job 'gpt' waits 70 % of the time for room in the ring: release earlier, or give the job "
      "more host memory" },
    { ranks, TOP_RANKS, "job 'gpt' waits 55 % of the time for its slowest rank" },
    { fetches, TOP_NVME_LATENCY,
      "job 'gpt' waits 50 % of the time for the drive, which is not busy: prefetch more" },
    { trainers, TOP_TRAINERS, "bound by the trainers: job 'gpt' has no request 93 % of the time" },
    { mixed, TOP_MIXED,
      "no resource is at its limit: compute 20 %, NVMe 20 % of what was measured; job 'gpt' waits "
      "most "
      "for step_pages, 40 % of the time" },
};

static void what_bounds_it(void **state)
{
    bool met[TOP_MIXED + 1] = { false };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct top_verdict why;

        quiet_job();
        rows[i].change();
        top_why(&view, &why);
        if (why.bound != rows[i].bound || strcmp(why.text, rows[i].text) != 0)
            fail_msg("row %zu: %s: '%s', expected '%s'", i, top_bound_name(why.bound), why.text,
                     rows[i].text);
        met[why.bound] = true;
    }
    for (unsigned b = 0; b <= TOP_MIXED; b++) {
        assert_true(met[b]);
        assert_true(strlen(top_bound_name(b)) > 0);
    }
}

/* ---- rates */

static struct zc_top_job earlier(void)
{
    struct zc_top_job j = { .now_ns = 5 * GB,
                            .id = 7,
                            .iterations = 10,
                            .fetches = 100,
                            .hits = 50,
                            .misses = 50,
                            .pages = 1000,
                            .page_ns = 20 * GB,
                            .compute_ns = GB,
                            .nvme_read_bytes = 1000 };

    (void)snprintf(j.name, sizeof(j.name), "gpt");
    j.stages[ZC_PAGE_READ] = (struct zc_gauge){ 4, 8 * GB, 2 * GB };
    j.waits[ZC_WAIT_COMMIT] = (struct zc_gauge){ 0, 3 * GB, 3 * GB };
    j.asking = (struct zc_gauge){ 1, 4 * GB, 4 * GB };
    return j;
}

/* The same job two seconds later. */
static struct zc_top_job later(void)
{
    struct zc_top_job j = earlier();

    j.now_ns += 2 * GB;
    j.iterations += 3;
    j.fetches += 8;
    j.hits += 6;
    j.misses += 2;
    j.pages += 100;
    j.page_ns += GB;
    j.compute_ns += GB / 5;
    j.nvme_read_bytes += 5000;
    j.stages[ZC_PAGE_READ] = (struct zc_gauge){ 0, 14 * GB, 3 * GB };
    j.waits[ZC_WAIT_COMMIT] = (struct zc_gauge){ 2, 6 * GB, 4 * GB };
    j.asking = (struct zc_gauge){ 1, 5 * GB, 5 * GB };
    return j;
}

static void near(double value, double expected)
{
    if (value < expected - 1e-9 || value > expected + 1e-9)
        fail_msg("%g, expected %g", value, expected);
}

static void rates_of_two_looks(void **state)
{
    struct zc_top_job before[] = { earlier() }, after[] = { later() };
    struct top_sample a = { .node = { .now_ns = 5 * GB, .threads = 2, .npaths = 1 },
                            .jobs = before,
                            .njobs = 1 };
    struct top_sample b = { .node = { .now_ns = 7 * GB, .threads = 2, .npaths = 1 },
                            .jobs = after,
                            .njobs = 1 };
    struct top_view v;

    (void)state;
    a.node.computing = (struct zc_gauge){ 0, GB, GB };
    b.node.computing = (struct zc_gauge){ 1, 3 * GB, 2 * GB };
    b.node.gpu_threads = 4;
    b.node.gpu = b.node.gpu_line = (struct zc_gauge){ 2, 4 * GB, 2 * GB };
    a.node.paths[0] = (struct zc_top_path){ .read_bytes = 100, .transfers = 10 };
    b.node.paths[0] = (struct zc_top_path){ .read_bytes = 2100,
                                            .written_bytes = 1000,
                                            .transfers = 14,
                                            .read_bytes_s = 2000,
                                            .write_bytes_s = 1000,
                                            .queue = { 0, GB, GB / 2 } };
    assert_int_equal(top_view_make(&a, &b, &v), 0);
    near(v.interval_s, 2);
    near(v.computing, 0.5);
    near(v.gpu, 0.5);
    near(v.gpu_line, 2);
    assert_int_equal(v.paths[0].read_bytes_s, 1000);
    assert_int_equal(v.paths[0].written_bytes_s, 500);
    near(v.paths[0].read_share, 0.5);
    near(v.paths[0].written_share, 0.5);
    near(v.paths[0].load, 1);
    near(v.paths[0].busy, 0.25);
    near(v.paths[0].queue, 0.5);
    near(v.paths[0].latency_us, 250000);
    near(v.jobs[0].steps_s, 1.5);
    near(v.jobs[0].fetches_s, 4);
    near(v.jobs[0].hit_ratio, 0.75);
    near(v.jobs[0].pages_s, 50);
    near(v.jobs[0].page_ms, 10);
    near(v.jobs[0].compute_ms, 2);
    near(v.jobs[0].in_read, 3);
    near(v.jobs[0].in_write, 0);
    near(v.jobs[0].asking, 0.5);
    near(v.jobs[0].waits[ZC_WAIT_COMMIT], 0.5);
    assert_int_equal(v.jobs[0].nvme_read_bytes_s, 2500);
    assert_int_equal(v.nstalls, 1);
    assert_string_equal(v.stalls[0].cause, "commit");
    assert_int_equal(v.stalls[0].now, 2);
    near(v.stalls[0].share, 0.5);
    near(v.stalls[0].seconds, 3);
    near(v.stalls[0].total_s, 6);
    top_view_done(&v);
}

/* Rates of jobs that are new, or have started over, begin at zero, and are never negative. */
static void a_job_that_begins_anew(void **state)
{
    struct zc_top_job before[] = { later() }, after[] = { earlier() };
    struct top_sample a = { .node = { .now_ns = GB }, .jobs = before, .njobs = 1 };
    struct top_sample b = { .node = { .now_ns = 5 * GB }, .jobs = after, .njobs = 1 };
    struct top_view v;

    (void)state;
    assert_int_equal(top_view_make(&a, &b, &v), 0);
    near(v.jobs[0].fetches_s, 25);
    near(v.jobs[0].hit_ratio, 0.5);
    top_view_done(&v);
    a.njobs = 0;
    assert_int_equal(top_view_make(&a, &b, &v), 0);
    near(v.jobs[0].fetches_s, 25);
    near(v.paths[0].load, 0);
    top_view_done(&v);
}

static void nothing_to_divide_by(void **state)
{
    struct zc_top_job rows_[] = { { .id = 1 } };
    struct top_sample a = { .node = { .npaths = 1 }, .jobs = rows_, .njobs = 1 };
    struct top_view v;

    (void)state;
    assert_int_equal(top_view_make(&a, &a, &v), 0);
    near(v.interval_s, 0);
    near(v.jobs[0].hit_ratio, -1);
    near(v.paths[0].load, -1);
    near(v.jobs[0].page_ms, 0);
    top_view_done(&v);
}

/* ---- tables and JSON */

static char *printed(int (*print)(FILE *out, const struct top_view *v))
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    assert_non_null(f);
    assert_int_equal(print(f, &view), 0);
    assert_int_equal(fclose(f), 0);
    return text;
}

static void shown(void)
{
    quiet_job();
    writes();
    view.oldest = (struct zc_top_oldest){
        .pid = 12, .age_ms = 4200, .rank = 3, .method = "fetch", .job = "gpt", .waits = "the drive"
    };
    view.ntiers = 1;
    view.tiers[0] = (struct zc_tier_row){ .name = "host",
                                          .budget = 3 * ZB_GIB,
                                          .used = 3 * ZB_GIB,
                                          .target = ZB_GIB,
                                          .moving = 2 * ZB_GIB };
}

static void tables(void **state)
{
    static const char *const parts[] = {
        "bound by NVMe writes: 96 %",
        "\n1.0 s: 2 compute threads busy 20%",
        "\noldest request: fetch of job 'gpt', rank 3 (process 12), 4.2 s, waits for the drive\n",
        ("\nNAME    BUDGET      USED    TARGET    MOVING\n"
         "host  3.00 GiB  3.00 GiB  1.00 GiB  2.00 GiB\n"),
        "\nPATH  READ/S  WRITTEN/S  READ_SHARE",
        "\nNAME  STATE  STEPS  STEPS_S  READ/S  WRITTEN/S  FETCHED/S  PUSHED/S  HITS\n",
        "\nNAME  PAGES_S  BUFFER  READ  COMPUTE  WRITE  GPU  ",
        "clients; GPU busy 97%, 7.5 pages in line\n",
    };
    char *text;

    (void)state;
    shown();
    gpu();
    job.in_gpu = 3;
    text = printed(top_table);
    for (size_t i = 0; i < ZB_COUNT(parts); i++)
        if (!strstr(text, parts[i]))
            fail_msg("no '%s' in:\n%s", parts[i], text);
    free(text);
}

/* The manual explains every key of an object, and of the objects in it. */
static void keys_are_documented(const char *manual, const json_t *value)
{
    const char *key;
    json_t *inside;
    size_t i;

    json_array_foreach(value, i, inside) keys_are_documented(manual, inside);
    if (!json_is_object(value))
        return;
    for (void *at = json_object_iter((json_t *)(uintptr_t)value); at;
         at = json_object_iter_next((json_t *)(uintptr_t)value, at)) {
        char quoted[64];

        key = json_object_iter_key(at);
        (void)snprintf(quoted, sizeof(quoted), "`%s`", key);
        if (!strstr(manual, quoted))
            fail_msg("%s is not in docs/reference/top.md", quoted);
        keys_are_documented(manual, json_object_iter_value(at));
    }
}

static char *manual_read(void)
{
    static char text[65536];
    FILE *f = fopen(ZSHARD_SOURCE_DIR "/docs/reference/top.md", "r");

    assert_non_null(f);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    (void)fclose(f);
    return text;
}

static void json(void **state)
{
    struct top_stall stall = { .job = "gpt", .cause = "commit", .now = 2, .seconds = 3 };
    char *text;
    json_t *all;

    (void)state;
    shown();
    view.stalls = &stall;
    view.nstalls = 1;
    view.oldest.pid = 0;
    text = printed(top_json);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1); /* a single line */
    all = json_loads(text, 0, NULL);
    assert_non_null(all);
    free(text);
    assert_string_equal(json_string_value(json_object_get(all, "bound")), "nvme-write");
    assert_true(
        json_is_real(json_object_get(json_array_get(json_object_get(all, "jobs"), 0), "in_gpu")));
    assert_true(json_is_null(json_object_get(all, "oldest")));
    assert_true(json_is_null(
        json_object_get(json_array_get(json_object_get(all, "jobs"), 0), "hit_ratio")));
    json_decref(all);

    view.oldest.pid = 12;
    text = printed(top_json);
    all = json_loads(text, 0, NULL);
    free(text);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(all, "oldest"), "age_ms")),
                     4200);
    keys_are_documented(manual_read(), all);
    for (unsigned b = 0; b <= TOP_MIXED; b++)
        if (!strstr(manual_read(), top_bound_name(b)))
            fail_msg("%s is not in docs/reference/top.md", top_bound_name(b));
    for (unsigned w = 0; w < ZC_WAITS; w++)
        if (!strstr(manual_read(), top_wait_names[w]))
            fail_msg("%s is not in docs/reference/top.md", top_wait_names[w]);
    json_decref(all);
}

/* ---- options */

static void options(void **state)
{
    static const struct {
        char words[6][16];
        const char *text;
    } wrong[] = {
        { { "zctl", "top", "--interval", "0" }, "--interval must be 0.1 to 3600, not 0" },
        { { "zctl", "top", "--interval", "nan" }, "--interval must be a number, not 'nan'" },
        { { "zctl", "top", "--interval", "1x" }, "--interval must be a number, not '1x'" },
        { { "zctl", "top", "--count", "0" }, "--count must be 1 to 4294967295, not 0" },
        { { "zctl", "top", "--count", "2", "--once" },
          "--once is the same as --count 1: give only one of them" },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(wrong); i++) {
        char *said = NULL;
        size_t len;
        FILE *out = fopen("/dev/null", "w"), *err = open_memstream(&said, &len);
        char *argv[7] = { NULL };
        int argc = 0;

        for (; argc < 6 && wrong[i].words[argc][0]; argc++)
            argv[argc] = (char *)(uintptr_t)wrong[i].words[argc];
        assert_true(zctl_main(argc, argv, out, err) != 0);
        (void)fclose(out);
        (void)fclose(err);
        if (!strstr(said, wrong[i].text))
            fail_msg("'%s', expected '%s'", said, wrong[i].text);
        free(said);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_bounds_it),
        cmocka_unit_test(rates_of_two_looks),
        cmocka_unit_test(a_job_that_begins_anew),
        cmocka_unit_test(nothing_to_divide_by),
        cmocka_unit_test(tables),
        cmocka_unit_test(json),
        cmocka_unit_test(options),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
