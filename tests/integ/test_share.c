/*
 * Two jobs in one daemon on a device of a fixed rate, each in a process of its own that steps all
 * the time. The bytes that each moves must be in proportion to their shares, also when these change
 * meanwhile. zbench share measures how exact that is; here the machine may be busy.
 */
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"

#define UNITS       4u
#define ELEMS       (UINT64_C(1) << 18)
#define WARM_MS     200u
#define WINDOW_MS   2000u
#define WINDOWS_MAX 3

/* Everything is streamed through 6 page buffers. A step moves 24 MiB and takes 0.6 s without
 * competition. So slow a device remains the bottleneck of both, even under TSan. */
static const char *const options[] = {
    "--host-bytes", "32M",  "--nvme-bytes", "128M",         "--page-elems", "16384", "--ring-bytes",
    "1200K",        "--io", "fixed",        "--fixed-rate", "40M",          NULL
};

static const struct zc_unit units[UNITS] = {
    { 0, "u0", ELEMS, ZC_BF16, ZC_BF16, false, false, NULL, 0 },
    { 1, "u1", ELEMS, ZC_BF16, ZC_BF16, false, false, NULL, 0 },
    { 2, "u2", ELEMS, ZC_BF16, ZC_BF16, false, false, NULL, 0 },
    { 3, "u3", ELEMS, ZC_BF16, ZC_BF16, false, false, NULL, 0 },
};

static const struct zc_group groups[] = {
    { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.01 }
};

static float value(uint64_t element)
{
    return 1.0f + (float)(element % 1000);
}

/* A rank that steps until the other end of `stop` closes. Never returns. */
static void trainer(const struct zi_daemon *d, const char *name, uint32_t share, int ready,
                    int stop)
{
    const struct zc_job_options job = { .name = name,
                                        .staging_bytes = ELEMS * sizeof(float),
                                        .groups = 1,
                                        .host_bytes_max = 8 * ZB_MIB,
                                        .share = share };
    struct pollfd p = { .fd = stop };
    struct zc_stepped stepped;
    struct zi_rank r;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    zi_job(&r, 1, d, &job, units, UNITS);
    for (unsigned u = 0; u < UNITS; u++)
        zi_write_all(&r, u, value);
    for (uint64_t step = 1; poll(&p, 1, 0) == 0; step++) {
        struct zc_step s = { .step = step, .scale = 1, .groups = groups, .ngroups = 1 };

        for (unsigned u = 0; u < UNITS; u++)
            zi_push_all(&r, u, step, value);
        if (zc_step_wait(r.c, r.job.id, &s, &stepped) < 0)
            _exit(1);
        if (step == 1 && write(ready, "", 1) != 1)
            _exit(1);
    }
    zi_close(&r, 1);
    _exit(0);
}

struct row {
    uint64_t bytes;
    uint32_t share;
};

static struct row row_of(struct zc_client *c, const char *name)
{
    struct zc_job_row row = zi_job_row(c, name);

    return (struct row){ row.nvme_read_bytes + row.nvme_written_bytes, row.share };
}

static void pause_ms(unsigned ms)
{
    struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L };

    while (nanosleep(&t, &t) != 0)
        assert_int_equal(errno, EINTR);
}

/** The fraction of the bytes that job a gets, over some time. */
static double part_of(struct zc_client *c)
{
    uint64_t a, b;

    pause_ms(WARM_MS);
    a = row_of(c, "a").bytes;
    b = row_of(c, "b").bytes;
    pause_ms(WINDOW_MS);
    a = row_of(c, "a").bytes - a;
    b = row_of(c, "b").bytes - b;
    assert_true(a + b > 0);
    return (double)a / (double)(a + b);
}

/** In at least one of several windows: on a busy machine a trainer may lack the time to use its
 * share. */
static void part_is(struct zc_client *c, double least, double most)
{
    double part = 0;

    for (int i = 0; i < WINDOWS_MAX; i++) {
        part = part_of(c);
        if (part >= least && part <= most)
            return;
    }
    fail_msg("job a has %.2f of the bytes, not %.2f to %.2f", part, least, most);
}

static void bytes_are_as_shares(void **state)
{
    int ready[2], stop[2], status;
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    pid_t pids[2];
    char byte;

    (void)state;
    zi_start(&d, options);
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(stop), 0);
    for (int i = 0; i < 2; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (pids[i] == 0) {
            (void)close(stop[1]);
            trainer(&d, i == 0 ? "a" : "b", i == 0 ? 0 : 100, ready[1], stop[0]);
        }
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(read(ready[0], &byte, 1), 1);
    c = zi_client(&d);
    assert_int_equal(row_of(c, "a").share, 100); /* the default */
    part_is(c, 0.3, 0.7);

    assert_int_equal(zc_job_share_wait(c, "a", 1600), 0);
    assert_int_equal(row_of(c, "a").share, 1600);
    part_is(c, 0.6, 0.99);

    assert_int_equal(zc_job_share_wait(c, "a", 10001), -EINVAL);
    assert_int_equal(zc_job_share_wait(c, "none", 1), -ENOENT);
    assert_int_equal(row_of(c, "a").share, 1600);
    assert_int_equal(zc_job_share_wait(c, "a", 0), 0);
    assert_int_equal(row_of(c, "a").share, 100);
    zb_close_fd(&stop[1]);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    zc_close(c);
    zb_close_fd(&stop[0]);
    zb_close_fd(&ready[0]);
    zb_close_fd(&ready[1]);
    zi_stop(&d);
}

/** Ranks of one job must agree; a rank that attaches gets the present share. */
static void ranks_agree(void **state)
{
    struct zc_job_options job = { .name = "j",
                                  .world = 2,
                                  .keep = true,
                                  .staging_bytes = ELEMS * sizeof(float),
                                  .groups = 1,
                                  .share = 7 };
    struct zi_rank ranks[2] = { { 0 } };
    struct zi_daemon d = { 0 };
    struct zc_client *c;

    (void)state;
    zi_start(&d, options);
    c = zi_client(&d);
    job.share = 10001;
    assert_int_equal(zi_open(&ranks[0], &d, &job), -EINVAL);
    zc_close(ranks[0].c);
    job.share = 7;
    assert_int_equal(zi_open(&ranks[0], &d, &job), 0);
    job.rank = 1;
    job.share = 8;
    assert_int_equal(zi_open(&ranks[1], &d, &job), -EINVAL);
    zc_close(ranks[1].c);
    assert_int_equal(zc_job_share_wait(c, "j", 9), 0);
    job.share = 7; /* the first rank's value, whatever it was changed to */
    assert_int_equal(zi_open(&ranks[1], &d, &job), 0);
    assert_int_equal(row_of(c, "j").share, 9);
    zi_close(ranks, 2);
    zc_close(c);
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(ranks_agree, zi_teardown),
        cmocka_unit_test_teardown(bytes_are_as_shares, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
