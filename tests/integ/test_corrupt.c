/*
 * Bytes of the data file that are changed: each is detected before any client sees it, and named.
 *
 * A job has its parameters and its state on NVMe. The test finds the pages in the file by the
 * values that it wrote, changes a byte, and asks for the shard in every possible way.
 */
#include "tests/integ/saved.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/plan.h"
#include "base/util.h"

#define PAGE    4096u
#define UNITS   6u
#define PAGES   3u
#define ELEMS   (PAGES * PAGE)
#define STAGING (ELEMS * sizeof(float))
#define RING    3u

static const char *const engines[] = { "uring", "threads" };

static struct zc_unit units[UNITS] = {
    { 0, "u0", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
    { 1, "u1", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
    { 2, "u2", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
    { 3, "u3", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
    { 4, "u4", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
    { 5, "u5", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
};

static const struct zc_group groups[] = {
    { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0 }
};

/* No other unit has this value: so the file shows where each page is. */
static float value(unsigned unit, uint64_t element)
{
    return (float)(1 + unit) * 100000 + (float)element;
}

struct world {
    struct zi_daemon d;
    struct zi_rank r[1];
    const char *options[12];
    uint64_t host, nvme; /* in use without a job */
};

static void world_open(struct world *x, const char *io)
{
    const char *options[] = { "--host-bytes",
                              "16M",
                              "--nvme-bytes",
                              "8M",
                              "--page-elems",
                              "4096",
                              "--io",
                              io,
                              "--ring-bytes",
                              "64K",
                              NULL };
    struct zc_job_options o = { .name = "job", .staging_bytes = STAGING, .groups = 1 };

    memcpy(x->options, options, sizeof(options));
    zi_start(&x->d, x->options);
    x->host = zi_used(&x->d, "host");
    x->nvme = zi_used(&x->d, "nvme");
    /* gradients and the ring fit, but no page of state */
    o.host_bytes_max = STAGING + (UNITS + RING) * STAGING;
    zi_job(x->r, 1, &x->d, &o, units, UNITS);
    assert_int_equal(x->r->place.ring_bytes, RING * STAGING);
    for (unsigned u = 0; u < UNITS; u++) {
        float *staged = x->r->job.staging;

        for (uint64_t i = 0; i < ELEMS; i++)
            staged[i] = value(u, i);
        assert_int_equal(zc_write_wait(x->r->c, x->r->shards[u], ZC_MASTER, 0, ELEMS, staged), 0);
    }
}

static void push_all(struct world *x, uint64_t step)
{
    for (unsigned u = 0; u < UNITS; u++) {
        struct zc_push push = { .shard = x->r->shards[u],
                                .step = step,
                                .dtype = ZC_F32,
                                .count = ELEMS,
                                .staged = x->r->job.staging };
        float *staged = x->r->job.staging;

        for (uint64_t i = 0; i < ELEMS; i++)
            staged[i] = (float)(i % 5) - 2;
        assert_int_equal(zc_push_wait(x->r->c, &push), 0);
    }
}

/* The data file, mapped. */
static uint8_t *file_map(const struct world *x, size_t *ret_bytes, int *ret_fd)
{
    char path[160];
    struct stat st;
    void *at;

    (void)snprintf(path, sizeof(path), "%s/pages.zsd", x->d.data);
    *ret_fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(*ret_fd >= 0);
    assert_int_equal(fstat(*ret_fd, &st), 0);
    *ret_bytes = (size_t)st.st_size;
    at = mmap(NULL, *ret_bytes, PROT_READ, MAP_SHARED, *ret_fd, 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    return at;
}

/* The position in the file of the parameters of a page, at version 0. */
static off_t param_at(const struct world *x, unsigned u, unsigned page)
{
    float first[4];
    size_t bytes;
    int fd;
    uint8_t *file = file_map(x, &bytes, &fd);
    off_t found = -1;

    for (unsigned i = 0; i < ZB_COUNT(first); i++)
        first[i] = value(u, page * PAGE + i);
    for (size_t at = ZI_DATA_START; at + sizeof(first) <= bytes; at += ZB_PAGE_ALIGN)
        if (memcmp(file + at, first, sizeof(first)) == 0)
            found = (off_t)at;
    (void)munmap(file, bytes);
    (void)close(fd);
    assert_true(found > 0);
    return found;
}

/* Changes one bit of one byte; a second call restores it. */
static void flip(const struct world *x, off_t at)
{
    char path[160];
    uint8_t byte;
    int fd;

    (void)snprintf(path, sizeof(path), "%s/pages.zsd", x->d.data);
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    assert_int_equal(fsync(fd), 0);
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    (void)close(fd);
}

static void assert_corrupt(struct world *x, int rc, const char *text, unsigned u, unsigned page,
                           const char *plane)
{
    char want[160];

    (void)snprintf(want, sizeof(want),
                   "job 'job' unit 'u%u' shard %u: page %u of its %s on NVMe "
                   "is corrupt",
                   u, (unsigned)x->r->shards[u], page, plane);
    if (rc != -EBADMSG || !strstr(text, want))
        fail_msg("got %d, '%s'; wanted '%s'", rc, text, want);
}

static void assert_fetches(struct world *x, unsigned u)
{
    struct zc_view view;
    int rc = zc_fetch_wait(x->r->c, &x->r->shards[u], 1, 0, ZI_FETCH_MS, &view);
    const float *at = view.data;

    if (rc < 0)
        fail_msg("fetch of unit %u: %d, %s", u, rc, zc_error(x->r->c));
    for (uint64_t i = 0; i < ELEMS; i++)
        if (at[i] != value(u, i))
            fail_msg("element %llu of unit %u is %g", (unsigned long long)i, u, (double)at[i]);
    assert_int_equal(zc_release(x->r->c, &x->r->shards[u], 1), 0);
}

/* Drops what is cached of a unit: others take its place. */
static void evict(struct world *x, unsigned u)
{
    for (unsigned i = 1; i <= RING; i++)
        assert_fetches(x, (u + i) % UNITS);
}

static void a_flipped_byte(void **state)
{
    (void)state;
    for (unsigned e = 0; e < ZB_COUNT(engines); e++) {
        struct world x = { 0 };
        struct zc_view views[2];
        uint64_t two[2], host;
        struct zi_call a, b;

        world_open(&x, engines[e]);
        host = zi_used(&x.d, "host");
        for (unsigned page = 0; page < PAGES; page++) { /* the first byte, an inner one, the last */
            unsigned u = 2 * page, other = (u + 1) % UNITS;
            off_t at = param_at(&x, u, page) + (off_t)page * (PAGE * (off_t)sizeof(float) - 1) / 2;
            int rc;

            evict(&x, u);
            flip(&x, at);
            rc = zc_fetch_wait(x.r->c, &x.r->shards[u], 1, 0, ZI_FETCH_MS, views);
            assert_corrupt(&x, rc, zc_error(x.r->c), u, page, "parameters");
            assert_non_null(zi_log_line(&x.d, "is corrupt"));
            /* a second time, together with another shard, which must not stay pinned */
            two[0] = x.r->shards[other];
            two[1] = x.r->shards[u];
            rc = zc_fetch_wait(x.r->c, two, 2, 0, ZI_FETCH_MS, views);
            assert_corrupt(&x, rc, zc_error(x.r->c), u, page, "parameters");
            /* two fetches that wait for the same fill both get the error */
            a = ZI_CALL(x.r);
            b = ZI_CALL(x.r);
            assert_int_equal(zc_fetch(x.r->c, two + 1, 1, 0, 0, views, zi_done, &a), 0);
            assert_int_equal(zc_fetch(x.r->c, two, 2, 0, 0, views, zi_done, &b), 0);
            (void)zi_await(x.r, 1, &a);
            (void)zi_await(x.r, 1, &b);
            assert_corrupt(&x, a.rc, a.text, u, page, "parameters");
            assert_corrupt(&x, b.rc, b.text, u, page, "parameters");
            rc = zc_read_wait(x.r->c, x.r->shards[u], ZC_PARAM, 0, ELEMS, x.r->job.staging);
            assert_corrupt(&x, rc, zc_error(x.r->c), u, page, "parameters");
            rc = zc_read_wait(x.r->c, x.r->shards[u], ZC_MASTER, 0, ELEMS, x.r->job.staging);
            assert_corrupt(&x, rc, zc_error(x.r->c), u, page, "parameters");
            /* undamaged data is still available: the other pages, the other shards */
            for (unsigned p = 0; p < PAGES; p++)
                if (p != page)
                    assert_int_equal(zc_read_wait(x.r->c, x.r->shards[u], ZC_PARAM, p * PAGE, PAGE,
                                                  x.r->job.staging),
                                     0);
            assert_fetches(&x, other);
            flip(&x, at); /* the byte is restored, and so is the shard */
            assert_fetches(&x, u);
        }
        assert_int_equal(zi_used(&x.d, "host"), host);
        push_all(&x, 1); /* nothing holds up a step */
        {
            struct zc_step step = { .step = 1, .scale = 1, .groups = groups, .ngroups = 1 };
            struct zc_stepped stepped;

            assert_int_equal(zc_step_wait(x.r->c, x.r->job.id, &step, &stepped), 0);
        }
        zi_close(x.r, 1);
        zi_stop(&x.d);
    }
}

/* A page of the right kind at the wrong place is detected like any other damage: its checksum
 * includes its identity. */
static void pages_that_changed_places(void **state)
{
    struct world x = { 0 };
    uint8_t one[PAGE * sizeof(float)], two[sizeof(one)];
    struct zc_view view;
    off_t at_one, at_two;
    char path[160];
    int fd, rc;

    (void)state;
    world_open(&x, "uring");
    at_one = param_at(&x, 1, 0);
    at_two = param_at(&x, 1, 1);
    (void)snprintf(path, sizeof(path), "%s/pages.zsd", x.d.data);
    fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, one, sizeof(one), at_one), sizeof(one));
    assert_int_equal(pread(fd, two, sizeof(two), at_two), sizeof(two));
    assert_int_equal(pwrite(fd, two, sizeof(two), at_one), sizeof(two));
    assert_int_equal(pwrite(fd, one, sizeof(one), at_two), sizeof(one));
    assert_int_equal(fsync(fd), 0);
    (void)close(fd);
    rc = zc_fetch_wait(x.r->c, &x.r->shards[1], 1, 0, ZI_FETCH_MS, &view);
    if (rc != -EBADMSG || !strstr(zc_error(x.r->c), "unit 'u1'"))
        fail_msg("%d, '%s'", rc, zc_error(x.r->c));
    zi_close(x.r, 1);
    zi_stop(&x.d);
}

/* A lost write: an older version of the same page is at its place. */
static void a_page_of_an_older_step(void **state)
{
    struct world x = { 0 };
    struct zc_step step = { .step = 1, .scale = 1, .groups = groups, .ngroups = 1 };
    struct zc_stepped stepped;
    struct zc_view view;
    size_t bytes;
    uint8_t *file, *before;
    int fd, rc;

    (void)state;
    world_open(&x, "uring");
    file = file_map(&x, &bytes, &fd);
    before = malloc(bytes);
    for (uint64_t n = 1; n <= 2; n++) { /* after two steps a page is at its first place again */
        push_all(&x, n);
        if (n == 1)
            memcpy(before, file, bytes);
        step.step = n;
        assert_int_equal(zc_step_wait(x.r->c, x.r->job.id, &step, &stepped), 0);
    }
    assert_int_equal(pwrite(fd, before + ZI_DATA_START, bytes - ZI_DATA_START, ZI_DATA_START),
                     bytes - ZI_DATA_START);
    assert_int_equal(fsync(fd), 0);
    for (unsigned u = 0; u < UNITS; u++) {
        rc = zc_fetch_wait(x.r->c, &x.r->shards[u], 1, 2, ZI_FETCH_MS, &view);
        if (rc != -EBADMSG)
            fail_msg("unit %u: %d, '%s'", u, rc, zc_error(x.r->c));
    }
    free(before);
    (void)munmap(file, bytes);
    (void)close(fd);
    zi_close(x.r, 1);
    zi_stop(&x.d);
}

/* A step detects the damage: the job ends for all of its ranks, but the daemon goes on. */
static void a_step_meets_it(void **state)
{
    (void)state;
    for (unsigned e = 0; e < ZB_COUNT(engines); e++) {
        struct world x = { 0 };
        struct zc_step step = { .step = 1, .scale = 1, .groups = groups, .ngroups = 1 };
        struct zc_stepped stepped;
        struct zi_call call, behind;
        struct zc_view view;
        struct zc_job_row *jobs;
        struct zi_rank again[1];
        struct zc_job_options o = { .name = "job", .staging_bytes = STAGING, .groups = 1 };
        size_t n;

        world_open(&x, engines[e]);
        push_all(&x, 1);
        sv_flip_all(&x.d);
        call = ZI_CALL(x.r);
        behind = ZI_CALL(x.r);
        assert_int_equal(zc_step(x.r->c, x.r->job.id, &step, &stepped, zi_done, &call), 0);
        assert_int_equal(zc_fetch(x.r->c, x.r->shards, 1, 1, 0, &view, zi_done, &behind), 0);
        assert_int_equal(zi_await(x.r, 1, &call), -EBADMSG);
        assert_int_equal(zi_await(x.r, 1, &behind), -EBADMSG);
        if (!strstr(call.text, "job 'job' unit 'u") || !strstr(call.text, "is corrupt"))
            fail_msg("'%s'", call.text);
        assert_int_equal(x.r->job_failed, 1);
        assert_int_equal(x.r->event_code, -EBADMSG);
        /* nothing of the job is available any more */
        assert_int_equal(zc_fetch_wait(x.r->c, x.r->shards, 1, 0, 0, &view), -EBADMSG);
        assert_int_equal(zc_read_wait(x.r->c, x.r->shards[0], ZC_MASTER, 0, PAGE, x.r->job.staging),
                         -EBADMSG);
        step.step = 1;
        assert_int_equal(zc_step_wait(x.r->c, x.r->job.id, &step, &stepped), -EBADMSG);
        assert_int_equal(zc_jobs_wait(x.r->c, "job", &jobs, &n), 0);
        assert_int_equal(n, 1);
        assert_string_equal(jobs[0].state, "failed");
        assert_non_null(strstr(jobs[0].error, "is corrupt"));
        zc_rows_free(jobs);
        zi_close(x.r, 1);
        /* a new job of that name works, at the same places */
        (void)zi_await_used(&x.d, x.host, x.nvme);
        o.host_bytes_max = STAGING + (UNITS + RING) * STAGING;
        zi_job(again, 1, &x.d, &o, units, UNITS);
        memcpy(x.r, again, sizeof(again));
        for (unsigned u = 0; u < UNITS; u++) {
            float *staged = x.r->job.staging;

            for (uint64_t i = 0; i < ELEMS; i++)
                staged[i] = value(u, i);
            assert_int_equal(zc_write_wait(x.r->c, x.r->shards[u], ZC_MASTER, 0, ELEMS, staged), 0);
        }
        for (unsigned u = 0; u < UNITS; u++)
            assert_fetches(&x, u);
        push_all(&x, 1);
        assert_int_equal(zc_step_wait(x.r->c, x.r->job.id, &step, &stepped), 0);
        zc_on_event(x.r->c, NULL, NULL); /* its argument was a copy */
        zi_close(x.r, 1);
        (void)zi_await_used(&x.d, x.host, x.nvme);
        zi_stop(&x.d);
    }
}

/* Everything is changed: no client gets data, and each gets an error. */
static void everything_is_corrupt(void **state)
{
    struct world x = { 0 };
    struct zc_view view;

    (void)state;
    world_open(&x, "threads");
    for (unsigned u = 0; u < RING; u++)
        assert_fetches(&x, u); /* cached: complete in memory, and served from there */
    sv_flip_all(&x.d);
    for (unsigned u = 0; u < RING; u++)
        assert_fetches(&x, u);
    for (unsigned u = RING; u < UNITS; u++) {
        int rc = zc_fetch_wait(x.r->c, &x.r->shards[u], 1, 0, ZI_FETCH_MS, &view);

        assert_int_equal(rc, -EBADMSG);
        for (enum zc_what what = ZC_PARAM; what <= ZC_EXP_AVG_SQ; what++)
            assert_int_equal(zc_read_wait(x.r->c, x.r->shards[u], what, 0, ELEMS, x.r->job.staging),
                             -EBADMSG);
    }
    sv_flip_all(&x.d);
    for (unsigned u = 0; u < UNITS; u++)
        assert_fetches(&x, u);
    zi_close(x.r, 1);
    zi_stop(&x.d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_flipped_byte, zi_teardown),
        cmocka_unit_test_teardown(pages_that_changed_places, zi_teardown),
        cmocka_unit_test_teardown(a_page_of_an_older_step, zi_teardown),
        cmocka_unit_test_teardown(a_step_meets_it, zi_teardown),
        cmocka_unit_test_teardown(everything_is_corrupt, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
