/*
 * The MPI backend, under mpirun: the contract, and training that agrees bit for bit with threads.
 *
 *     test_zero_mpi            the tests; each rank runs all of it
 *     test_zero_mpi abandon    the last rank leaves without closing: the launcher must return
 *     test_zero_mpi odd C S D  rank 1 makes call C of odd.h, in stage S; D: a folder (mpi_odd.sh)
 */
#include "tests/ztest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm_threads.h"
#include "conformance.h"
#include "model.h"
#include "odd.h"

static struct zc_comm *mpi;

static struct run run_new(struct zc_comm *comm, enum zc_dtype dtype)
{
    struct run r = { .dtype = dtype, .steps = 3 };

    zc_zero_defaults(&r.options);
    r.options.comm = comm;
    r.options.groups = 2;
    r.options.clip = 1;
    r.options.micro_steps = 2;
    r.options.eps = 1e-3;
    r.options.timeout_ms = 20000;
    return r;
}

static void mpi_keeps_the_contract(void **state)
{
    char why[256] = "";

    (void)state;
    assert_string_equal(mpi->ops->name, "mpi");
    if (comm_conformance(mpi, why, sizeof(why)) != 0)
        fail_msg("%s", why);
}

static void agrees_with_threads(void **state)
{
    (void)state;
    for (enum zc_dtype dtype = ZC_F32; dtype <= ZC_BF16; dtype++) {
        struct run mine = run_new(mpi, dtype);
        struct comm_group *g = comm_group_new(mpi->world, 1, 0);
        struct run threads[8];

        run_train(&mine);
        if (mine.rc != 0)
            fail_msg("%d: %s", mine.rc, mine.error);
        for (uint32_t r = 0; r < mpi->world; r++)
            threads[r] = run_new(comm_group_rank(g, r), dtype);
        run_threads(threads, mpi->world);
        assert_runs_same("mpi", &threads[0], &mine);
        for (uint32_t r = 0; r < mpi->world; r++)
            run_done(&threads[r]);
        run_done(&mine);
        comm_group_free(g);
    }
}

static int setup(void **state)
{
    char why[256] = "";
    int rc = zc_comm_open(&mpi, "auto", why, sizeof(why));

    (void)state;
    if (rc != 0)
        print_error("%d: %s\n", rc, why);
    return rc;
}

static int teardown(void **state)
{
    char why[256] = "";

    (void)state;
    zc_comm_close(mpi, true);
    /* MPI can be started only once in a process */
    return zc_comm_open(&mpi, "mpi", why, sizeof(why)) == -EIO && strstr(why, "has ended") ? 0 : -1;
}

static int abandon(void)
{
    struct run r;

    if (setup(NULL) != 0)
        return 1;
    r = run_new(mpi, ZC_F32);
    r.options.timeout_ms = 300;
    if (mpi->rank == mpi->world - 1)
        r.stop_after = 2;
    run_train(&r);
    zc_comm_close(mpi, false);
    return r.rc == -EINTR ? 5 : 6;
}

/* Waits until every rank has left its mark: the launcher ends all ranks when one of them ends
 * without MPI. */
static void all_marked(const char *dir)
{
    char path[512];
    uint32_t there = 0;

    (void)snprintf(path, sizeof(path), "%s/%u", dir, mpi->rank);
    (void)close(open(path, O_CREAT | O_WRONLY, 0600));
    for (uint32_t tries = 0; there < mpi->world && tries < 3000; tries++) {
        (void)snprintf(path, sizeof(path), "%s/%u", dir, there);
        if (access(path, F_OK) == 0)
            there++;
        else
            (void)usleep(10000);
    }
}

/* Rank 1 makes another call in step 2: every rank reports that, and none makes that step. */
static int odd(enum odd_call call, enum zc_zero_stage stage, const char *dir)
{
    static const char *const says[ODD_CALLS] = {
        [ODD_GATHERS] = "rank 1 gathers 'fc2' where rank 0 gathers 'fc1' (step 2)",
        [ODD_REDUCES] = "rank 1 reduces 'fc1' where rank 0 reduces 'fc2' (step 2)",
        [ODD_LENGTH] = "rank 1 gathers 'out' where rank 0 gathers 'fc2' (step 2)",
        [ODD_LEFT_OUT] = "rank 1 gathers 'fc3' where rank 0 gathers 'fc2' (step 2)",
        [ODD_READ] = "rank 1 reads 'fc2' where rank 0 reads 'fc1' (step 2)",
        [ODD_SUM] = "rank 1 adds up 2 values where rank 0 adds up 1 value (step 2)",
        [ODD_SUM_TWICE] = "rank 1 adds up 1 value where rank 0 steps (step 2)",
    };
    struct odd o = { .dtype = ZC_F32, .call = call, .rank = 1, .step = 2 };
    bool told;

    if (setup(NULL) != 0)
        return 1;
    zc_zero_defaults(&o.options);
    o.options.comm = mpi;
    o.options.stage = stage;
    o.options.prefetch_units = 0;
    odd_train(&o);
    told = o.rc == -EINVAL && o.failed_in == 2 && o.applied == 1 && !o.wrong &&
           strstr(o.error, "rank 1 ");
    if (mpi->rank == 0)
        told = told && strcmp(o.error, says[call]) == 0;
    printf("%s: rank %u of %u: %d in step %llu: %s\n", told ? "told" : "not told", mpi->rank,
           mpi->world, o.rc, (unsigned long long)o.failed_in, o.error);
    (void)fflush(stdout);
    all_marked(dir);
    zc_comm_close(mpi, false);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mpi_keeps_the_contract),
        cmocka_unit_test(agrees_with_threads),
    };

    if (argc > 1 && strcmp(argv[1], "abandon") == 0)
        return abandon();
    if (argc > 4 && strcmp(argv[1], "odd") == 0)
        return odd((enum odd_call)atoi(argv[2]), (enum zc_zero_stage)atoi(argv[3]), argv[4]);
    return cmocka_run_group_tests(tests, setup, teardown);
}
