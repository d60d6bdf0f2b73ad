/*
 * The contract of struct zc_comm_ops, for the backends that need no launcher; test_mpi.c tests MPI.
 */
#include "tests/ztest.h"

#include <pthread.h>

#include "comm_threads.h"
#include "conformance.h"

struct asked {
    struct zc_comm *comm;
    int rc;
    char why[256];
};

static void *ask(void *arg)
{
    struct asked *a = arg;

    a->rc = comm_conformance(a->comm, a->why, sizeof(a->why));
    return NULL;
}

static void self_keeps_it(void **state)
{
    struct asked a = { 0 };

    (void)state;
    assert_int_equal(zc_comm_open(&a.comm, "self", a.why, sizeof(a.why)), 0);
    assert_int_equal(a.comm->world, 1);
    (void)ask(&a);
    if (a.rc != 0)
        fail_msg("%s", a.why);
    zc_comm_close(a.comm, true);
}

static void threads_keep_it(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 4; world++) {
        struct comm_group *g = comm_group_new(world, world, 30);
        struct asked asked[4] = { { 0 } };
        pthread_t threads[4];

        for (uint32_t r = 0; r < world; r++) {
            asked[r].comm = comm_group_rank(g, r);
            assert_int_equal(pthread_create(&threads[r], NULL, ask, &asked[r]), 0);
        }
        for (uint32_t r = 0; r < world; r++)
            pthread_join(threads[r], NULL);
        for (uint32_t r = 0; r < world; r++)
            if (asked[r].rc != 0)
                fail_msg("world of %u: %s", world, asked[r].why);
        comm_group_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(self_keeps_it),
        cmocka_unit_test(threads_keep_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
