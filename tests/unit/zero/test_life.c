/*
 * An engine among threads: collectives of the caller's, which run on a thread of the library; a
 * thread that polls; interruptions.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "conformance.h"
#include "party.h"

#define WORLD_MAX 4u

/* ---- collectives of the caller: those of threads, as the caller's functions */

static struct zc_comm *real_of(struct zc_comm *comm)
{
    return comm->arg;
}

static int pass_all_gather(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                           struct zc_comm_op **ret)
{
    return real_of(comm)->ops->all_gather(real_of(comm), send, recv, slice_bytes, ret);
}

static int pass_exchange(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                         struct zc_comm_op **ret)
{
    return real_of(comm)->ops->exchange(real_of(comm), send, recv, slice_bytes, ret);
}

static int pass_test(struct zc_comm *comm, struct zc_comm_op *op, bool *ret_done)
{
    return real_of(comm)->ops->test(real_of(comm), op, ret_done);
}

static const char *pass_error(struct zc_comm *comm)
{
    return real_of(comm)->ops->error ? real_of(comm)->ops->error(real_of(comm)) : "no text";
}

static const struct zc_comm_ops pass_ops = {
    .name = "pass",
    .all_gather = pass_all_gather,
    .exchange = pass_exchange,
    .test = pass_test,
    .error = pass_error,
};

/* The same, but each waits for its end. */
static int block(struct zc_comm *comm, int rc, struct zc_comm_op **op)
{
    bool done = false;

    while (rc == 0 && !done) {
        rc = pass_test(comm, *op, &done);
        if (!done)
            (void)usleep(50);
    }
    return rc;
}

static int block_all_gather(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                            struct zc_comm_op **ret)
{
    return block(comm, pass_all_gather(comm, send, recv, slice_bytes, ret), ret);
}

static int block_exchange(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                          struct zc_comm_op **ret)
{
    return block(comm, pass_exchange(comm, send, recv, slice_bytes, ret), ret);
}

static const struct zc_comm_ops block_ops = {
    .name = "block",
    .all_gather = block_all_gather,
    .exchange = block_exchange,
    .error = pass_error,
};

struct keeper {
    struct zc_comm *comm;
    int rc;
    char why[256];
};

static void *keep(void *arg)
{
    struct keeper *k = arg;

    k->rc = comm_conformance(k->comm, k->why, sizeof(k->why));
    zc_comm_close(k->comm, k->rc == 0);
    return NULL;
}

static void made_elsewhere_keeps_the_contract(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= WORLD_MAX; world++)
        for (unsigned blocks = 0; blocks < 2; blocks++) {
            struct comm_group *g = comm_group_new(world, 1, 3);
            struct keeper k[WORLD_MAX] = { 0 };
            pthread_t threads[WORLD_MAX];

            comm_group_names(g, COMM_NO_NAMES);
            for (uint32_t r = 0; r < world; r++) {
                assert_int_equal(zc_comm_from_ops(&k[r].comm, blocks ? &block_ops : &pass_ops,
                                                  comm_group_rank(g, r), r, world),
                                 0);
                assert_int_equal(pthread_create(&threads[r], NULL, keep, &k[r]), 0);
            }
            for (uint32_t r = 0; r < world; r++)
                assert_int_equal(pthread_join(threads[r], NULL), 0);
            for (uint32_t r = 0; r < world; r++)
                if (k[r].rc != 0)
                    fail_msg("rank %u of %u: %d %s", r, world, k[r].rc, k[r].why);
            comm_group_free(g);
        }
}

static void train(struct party *p, const struct zc_comm_ops *ops, uint32_t poll_ms)
{
    struct zc_comm *comms[WORLD_MAX] = { NULL };

    party_new(p, 2, ZC_BF16, 1, 2);
    for (uint32_t r = 0; r < p->world; r++) {
        p->runs[r].options.poll_ms = poll_ms;
        if (ops) {
            assert_int_equal(zc_comm_from_ops(&comms[r], ops, p->runs[r].options.comm, r, p->world),
                             0);
            p->runs[r].options.comm = comms[r];
        }
    }
    if (ops)
        comm_group_names(p->group, COMM_NO_NAMES);
    party_run(p);
    party_assert_ran(p);
    for (uint32_t r = 0; r < p->world; r++)
        zc_comm_close(comms[r], true);
}

/* Neither the thread that makes collectives nor the one that polls changes a bit. */
static void the_same_bits(void **state)
{
    static const struct zc_comm_ops *const ops[] = { NULL, &pass_ops, &block_ops };
    struct party plain, other;

    (void)state;
    train(&plain, NULL, 0);
    for (unsigned n = 0; n < 2 * ZB_COUNT(ops); n++) {
        if (n == 0)
            continue;
        train(&other, ops[n % ZB_COUNT(ops)], n / ZB_COUNT(ops));
        assert_runs_same("another thread", &plain.runs[0], &other.runs[0]);
        party_done(&other);
    }
    party_done(&plain);
}

/* A function that never returns: it is not waited for at the end. */
static atomic_bool let_go;

static int stuck_all_gather(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                            struct zc_comm_op **ret)
{
    (void)comm;
    (void)send;
    (void)recv;
    (void)slice_bytes;
    (void)ret;
    while (!atomic_load(&let_go))
        (void)usleep(1000);
    return -EIO;
}

static atomic_uint stuck_closed;

static void stuck_close(struct zc_comm *comm, bool clean)
{
    (void)comm;
    assert_false(clean);
    atomic_fetch_add(&stuck_closed, 1);
}

static const struct zc_comm_ops stuck_ops = { .name = "stuck",
                                              .all_gather = stuck_all_gather,
                                              .exchange = stuck_all_gather,
                                              .close = stuck_close };

static void a_function_that_does_not_return(void **state)
{
    struct zc_zero_options o;
    struct zc_comm *comm;
    struct zc_zero *z;

    (void)state;
    assert_int_equal(zc_comm_from_ops(&comm, &stuck_ops, NULL, 2, 2), -EINVAL);
    assert_int_equal(zc_comm_from_ops(&comm, &stuck_ops, NULL, 0, 2), 0);
    zc_zero_defaults(&o);
    o.comm = comm;
    o.timeout_ms = 300;
    assert_int_equal(zc_zero_open(&z, &o), -ETIMEDOUT);
    assert_true(zc_zero_failed(z));
    zc_zero_close(z, false);
    zc_comm_close(comm, false);
    atomic_store(&let_go, true);
    for (unsigned n = 0; atomic_load(&stuck_closed) == 0; n++) {
        assert_true(n < 10000);
        (void)usleep(1000);
    }
    (void)usleep(20000); /* the thread frees what is left */
}

/* ---- interruptions */

/* A call of rank 0 that waits for rank 1. */
struct waits {
    const char *name;
    int (*call)(struct zc_zero *z);
    bool reduces; /* for its gradients: rank 1 has not handed over the last one */
    bool step;    /* the call is the step, or ends it */
    bool final;   /* the work has begun: -EINTR is a failure */
};

static int call_gather(struct zc_zero *z)
{
    const void *params;
    int rc = zc_zero_gather(z, 0, &params);

    return rc < 0 ? rc : zc_zero_release(z, 0);
}

static int call_sum(struct zc_zero *z)
{
    double one = 1;

    return zc_zero_sum(z, &one, 1);
}

static int call_norm(struct zc_zero *z)
{
    double norm;

    return zc_zero_norm(z, &norm);
}

static int call_read(struct zc_zero *z)
{
    float value;

    return zc_zero_read(z, 0, ZC_MASTER, 0, 1, &value);
}

static int call_step(struct zc_zero *z)
{
    struct zc_zero_stepped stepped;

    return zc_zero_step(z, 1e-2, &stepped);
}

static const struct waits waits[] = {
    { .name = "gather", .call = call_gather },
    { .name = "norm", .call = call_norm, .reduces = true },
    { .name = "read", .call = call_read, .reduces = true },
    { .name = "step", .call = call_step, .reduces = true, .step = true },
    { .name = "abandon", .call = zc_zero_abandon, .reduces = true, .step = true },
    { .name = "sum", .call = call_sum, .final = true },
};

struct rank {
    const struct waits *w;
    struct zc_zero_options o;
    struct zc_zero *z;
    pthread_t thread;
    pthread_barrier_t *barrier;
    atomic_bool handed, over;
    int rc;
};

static void open_rank(struct rank *r)
{
    assert_int_equal(zc_zero_open(&r->z, &r->o), 0);
    assert_int_equal(model_declare(r->z, ZC_F32, false), 0);
    assert_int_equal(zc_zero_start(r->z, model_init_fn, NULL), 0);
}

/* The last trained unit; a rank can hand it over without waiting for room. */
static uint32_t last_trained(void)
{
    uint32_t u = MODEL_UNITS - 1;

    while (model_units[u].frozen)
        u--;
    return u;
}

static void reduce_units(struct rank *r, uint32_t from, uint32_t to)
{
    float *grad;

    for (uint32_t u = from; u < to && r->w->reduces; u++)
        if (!model_units[u].frozen) {
            assert_int_equal(zc_zero_grad(r->z, u, &grad), 0);
            grad[0] += 1;
            assert_int_equal(zc_zero_reduce(r->z, u), 0);
        }
}

/* Nothing had changed: the call is repeated, then a step has all gradients, and a sum is right. */
static void finish(struct rank *r)
{
    double one = 1;

    assert_int_equal(r->w->call(r->z), 0);
    if (r->w->reduces && !r->w->step)
        assert_int_equal(call_step(r->z), 0);
    assert_int_equal(zc_zero_sum(r->z, &one, 1), 0);
    assert_true(one == 2);
}

static void *interrupted(void *arg)
{
    struct rank *r = arg;

    open_rank(r);
    reduce_units(r, 0, last_trained() + 1);
    atomic_store(&r->handed, true);
    (void)pthread_barrier_wait(r->barrier);
    r->rc = r->w->call(r->z);
    atomic_store(&r->over, true);
    (void)pthread_barrier_wait(r->barrier);
    if (!r->w->final)
        finish(r);
    zc_zero_close(r->z, !r->w->final);
    return NULL;
}

/* Rank 0 waits for rank 1, which is late. */
static void interrupt(const struct waits *w, uint32_t poll_ms)
{
    struct comm_group *g = comm_group_new(2, 1, 0);
    pthread_barrier_t barrier;
    struct rank r[2];

    memset(r, 0, sizeof(r));
    assert_int_equal(pthread_barrier_init(&barrier, NULL, 2), 0);
    for (uint32_t i = 0; i < 2; i++) {
        zc_zero_defaults(&r[i].o);
        r[i].o.comm = comm_group_rank(g, i);
        r[i].o.groups = 2;
        r[i].o.poll_ms = poll_ms;
        r[i].barrier = &barrier;
        r[i].w = w;
    }
    assert_int_equal(pthread_create(&r[0].thread, NULL, interrupted, &r[0]), 0);
    open_rank(&r[1]);
    reduce_units(&r[1], 0, last_trained());
    while (!atomic_load(&r[0].handed)) {
        assert_int_equal(zc_zero_poll(r[1].z), 0);
        (void)usleep(100);
    }
    zc_zero_interrupt(r[1].z); /* no call waits: it has no effect */
    (void)pthread_barrier_wait(&barrier);
    for (unsigned n = 0; !atomic_load(&r[0].over); n++) {
        assert_true(n < 30000);
        zc_zero_interrupt(r[0].z);
        (void)usleep(1000);
    }
    if (r[0].rc != -EINTR || zc_zero_failed(r[0].z) != w->final)
        fail_msg("%s: %d, %s%s", w->name, r[0].rc, zc_zero_error(r[0].z),
                 zc_zero_failed(r[0].z) ? " (final)" : "");
    assert_non_null(strstr(zc_zero_error(r[0].z), "interrupted"));
    (void)pthread_barrier_wait(&barrier);
    reduce_units(&r[1], last_trained(), last_trained() + 1);
    if (!w->final)
        finish(&r[1]);
    zc_zero_close(r[1].z, !w->final);
    assert_int_equal(pthread_join(r[0].thread, NULL), 0);
    assert_int_equal(pthread_barrier_destroy(&barrier), 0);
    comm_group_free(g);
}

static void interrupted_calls(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(waits); i++)
        interrupt(&waits[i], 0);
    interrupt(&waits[0], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(made_elsewhere_keeps_the_contract),
        cmocka_unit_test(the_same_bits),
        cmocka_unit_test(a_function_that_does_not_return),
        cmocka_unit_test(interrupted_calls),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
