/*
 * The MPI backend, under mpirun: the contract, and training that agrees bit for bit with threads.
 *
 *     test_zero_mpi            the tests; each rank runs all of it
 *     test_zero_mpi abandon    the last rank leaves without a word: the launcher must come back
 */
#include "tests/ztest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm_threads.h"
#include "conformance.h"
#include "model.h"

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
    /* MPI starts once in a process's life */
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

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mpi_keeps_the_contract),
        cmocka_unit_test(agrees_with_threads),
    };

    if (argc > 1 && strcmp(argv[1], "abandon") == 0)
        return abandon();
    return cmocka_run_group_tests(tests, setup, teardown);
}
