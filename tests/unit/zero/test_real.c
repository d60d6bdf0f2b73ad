/*
 * What a PyTorch trainer uses, with a real daemon: gathers that each rank makes alone, or into
 * memory of its own; hints; gradients that are added from its memory; any number of micro-steps;
 * steps that are abandoned; norms; elements that are read, on one rank or all, and written after
 * steps; tensors without a gradient; buffers that are freed between steps; a thread that polls;
 * collectives of the caller; and step counts that survive a kill of the daemon. All bits are those
 * of the same calls without a daemon.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zero/zc_zero.h"
#include "comm_threads.h"
#include "real_daemon.h"

#define RANKS   2u
#define STEPS   6u
#define ELEMS   9000u /* of each unit */
#define TENSORS 3u    /* the second one has no gradient in steps 3 and 4 */
#define UNUSED  1u

static struct zc_tensor first[] = { { "a", 0, 1, { 4000 }, 0, false },
                                    { "unused", 4000, 1, { 5000 }, 0, false } };
static struct zc_tensor second[] = { { "b", 0, 1, { ELEMS }, 0, false } };
static const struct zc_unit units[] = {
    { .name = "first", .elems = ELEMS, .dtype = ZC_BF16, .tensors = first, .ntensors = 2 },
    { .name = "second",
      .index = 1,
      .elems = ELEMS,
      .dtype = ZC_BF16,
      .tensors = second,
      .ntensors = 1 },
};

#define UNITS ZB_COUNT(units)
#define INTO \
    1u /* this unit is gathered into the rank's own memory, and its gradient comes from there */

struct rank {
    struct zc_zero_options options;
    uint64_t until;
    pthread_t thread;
    /* out */
    int rc;
    char error[512];
    uint64_t begun, steps_begun[TENSORS], steps[TENSORS];
    struct zc_zero_norm norms[STEPS + 1][TENSORS];
    uint32_t left_alone[STEPS + 1];
    uint16_t seen[STEPS + 1][UNITS][ELEMS]; /* as gathered, in the last micro-step */
    float grad[STEPS + 1][UNITS][ELEMS];    /* reduced, before the step */
    uint16_t half[STEPS + 1][ELEMS];        /* masters of the first unit after it, on rank 0 */
    float master[UNITS][ELEMS], m[UNITS][ELEMS], v[UNITS][ELEMS];
    uint64_t gathered_bytes; /* by collectives */
};

static float value(uint64_t salt, uint32_t unit, uint64_t elem)
{
    uint64_t seed = salt << 40 ^ (uint64_t)unit << 32 ^ elem;

    return (float)(int64_t)ztest_random(&seed) * 0x1p-64f;
}

static int init(void *arg, uint32_t unit, uint64_t at, uint64_t count, float *out)
{
    (void)arg;
    for (uint64_t i = 0; i < count; i++)
        out[i] = value(1, unit, at + i);
    return 0;
}

static int unit_gather(struct rank *r, struct zc_zero *z, uint32_t u, uint64_t step)
{
    const void *params;
    int rc;

    if (u == INTO) {
        rc = zc_zero_prefetch(z, u);
        if (rc == 0)
            rc = zc_zero_gather_into(z, u, r->seen[step][u]);
    } else {
        rc = zc_zero_gather(z, u, &params);
        if (rc == 0)
            memcpy(r->seen[step][u], params, sizeof(r->seen[step][u]));
    }
    return rc < 0 ? rc : zc_zero_release(z, u);
}

/* The upper half of each fp32 value, which is a bf16. */
static int unit_add(struct zc_zero *z, uint32_t u, uint64_t salt)
{
    uint16_t half[ELEMS];

    for (uint64_t i = 0; i < ELEMS; i++) {
        float x = value(salt, u, i);
        uint32_t bits;

        memcpy(&bits, &x, sizeof(bits));
        half[i] = (uint16_t)(bits >> 16);
    }
    return zc_zero_grad_add(z, u, 0, ELEMS, ZC_BF16, half);
}

static int unit_reduce(struct rank *r, struct zc_zero *z, uint32_t u, uint64_t step, uint32_t micro)
{
    bool has[] = { true, step != 3 && step != 4 };
    uint64_t salt = 100 * step + 10 * micro + r->options.comm->rank;
    float *grad;
    int rc = u == INTO ? unit_add(z, u, salt) : zc_zero_grad(z, u, &grad);

    for (uint64_t i = 0; i < ELEMS && rc == 0 && u != INTO; i++)
        grad[i] += i >= 4000 && !has[1] ? 0 : value(salt, u, i);
    return rc < 0 ? rc : zc_zero_reduce_of(z, u, has, units[u].ntensors);
}

/* The ranks hand their units over in different orders. */
static int micro_step(struct rank *r, struct zc_zero *z, uint64_t step, uint32_t micro, bool whole)
{
    uint32_t rank = r->options.comm->rank;
    int rc = 0;

    for (uint32_t u = 0; u < UNITS && rc == 0; u++)
        rc = unit_gather(r, z, u, step);
    if (rc == 0)
        rc = zc_zero_micro(z, false);
    for (uint32_t u = 0; u < (whole ? UNITS : 1) && rc == 0; u++)
        rc = unit_reduce(r, z, (u + rank + micro) % UNITS, step, micro);
    return rc == 0 && whole ? zc_zero_micro_end(z) : rc;
}

/* Rank 0 writes part of a weight, across the slices of two ranks, and of its first moment. */
static int write_values(struct rank *r, struct zc_zero *z)
{
    float in[1000];
    bool mine = r->options.comm->rank == 0;
    int rc;

    for (uint32_t i = 0; i < ZB_COUNT(in); i++)
        in[i] = (float)i / 256;
    rc = zc_zero_write_on(z, 0, 0, ZC_MASTER, 7700, ZB_COUNT(in), ZC_F32, mine ? in : NULL);
    return rc < 0 ? rc
                  : zc_zero_write_on(z, 0, 0, ZC_EXP_AVG, 4500, ZB_COUNT(in), ZC_F32,
                                     mine ? in : NULL);
}

static int rank_step(struct rank *r, struct zc_zero *z, uint64_t step)
{
    struct zc_group group;
    struct zc_zero_step_how how = { .groups = &group, .ngroups = 1, .clip = 1 };
    struct zc_zero_stepped stepped;
    int rc = 0;

    zc_zero_group_defaults(ZC_ADAMW, &group);
    group.lr = 1e-2 / (double)step;
    if (step == 2) {
        rc = micro_step(r, z, step, 7, true);
        if (rc == 0)
            rc = micro_step(r, z, step, 8, false);
        if (rc == 0)
            rc = zc_zero_abandon(z);
    }
    for (uint32_t micro = 0; micro < 1 + step % 2 && rc == 0; micro++)
        rc = micro_step(r, z, step, micro, true);
    if (rc == 0)
        rc = zc_zero_norms(z, r->norms[step], TENSORS);
    for (uint32_t u = 0; u < UNITS && rc == 0; u++)
        rc = zc_zero_read_on(z, -1, u, ZC_GRAD, 0, ELEMS, ZC_F32, r->grad[step][u]);
    if (rc == 0)
        rc = zc_zero_step_by(z, &how, &stepped);
    if (rc == 0)
        r->left_alone[step] = stepped.left_alone;
    if (rc == 0 && step == 3)
        rc = write_values(r, z);
    if (rc == 0)
        rc = zc_zero_read_on(z, 0, 0, ZC_MASTER, 0, ELEMS, ZC_BF16, r->half[step]);
    return rc == 0 && step % 2 == 0 ? zc_zero_park(z) : rc;
}

static int steps_read(struct zc_zero *z, uint64_t ret[TENSORS])
{
    int rc = zc_zero_tensor_steps(z, 0, ret);

    return rc < 0 ? rc : zc_zero_tensor_steps(z, 1, ret + 2);
}

static int rank_read(struct rank *r, struct zc_zero *z)
{
    struct zc_zero_stats stats;
    int rc = steps_read(z, r->steps);

    for (uint32_t u = 0; u < UNITS && rc == 0; u++) {
        rc = zc_zero_read(z, u, ZC_MASTER, 0, ELEMS, r->master[u]);
        if (rc == 0)
            rc = zc_zero_read(z, u, ZC_EXP_AVG, 0, ELEMS, r->m[u]);
        if (rc == 0)
            rc = zc_zero_read(z, u, ZC_EXP_AVG_SQ, 0, ELEMS, r->v[u]);
    }
    if (rc == 0)
        rc = zc_zero_stats(z, &stats);
    r->gathered_bytes = rc == 0 ? stats.comm_gather_bytes : 0;
    return rc;
}

static void *rank_run(void *arg)
{
    struct rank *r = arg;
    struct zc_zero *z = NULL;
    uint64_t applied;
    int rc = zc_zero_open(&z, &r->options);

    for (uint32_t u = 0; u < UNITS && rc == 0; u++)
        rc = zc_zero_add_unit(z, &units[u]);
    if (rc == 0)
        rc = zc_zero_start(z, init, NULL);
    if (rc == 0)
        rc = zc_zero_progress(z, &r->begun, &applied);
    if (rc == 0)
        rc = steps_read(z, r->steps_begun);
    for (uint64_t step = r->begun + 1; step <= r->until && rc == 0; step++)
        rc = rank_step(r, z, step);
    if (rc == 0)
        rc = rank_read(r, z);
    r->rc = rc;
    (void)snprintf(r->error, sizeof(r->error), "%s", zc_zero_error(z));
    zc_zero_close(z, rc == 0);
    return NULL;
}

/* ---- the caller's collectives: those of threads, as blocking functions */

static int there_wait(struct zc_comm *there, int rc, struct zc_comm_op *op)
{
    bool done = false;

    while (rc == 0 && !done) {
        rc = there->ops->test(there, op, &done);
        if (!done)
            (void)usleep(50);
    }
    return rc;
}

static int there_all_gather(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                            struct zc_comm_op **ret)
{
    struct zc_comm *there = comm->arg;
    struct zc_comm_op *op = NULL;
    int rc = there->ops->all_gather(there, send, recv, slice_bytes, &op);

    *ret = NULL;
    return there_wait(there, rc, op);
}

static int there_exchange(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                          struct zc_comm_op **ret)
{
    struct zc_comm *there = comm->arg;
    struct zc_comm_op *op = NULL;
    int rc = there->ops->exchange(there, send, recv, slice_bytes, &op);

    *ret = NULL;
    return there_wait(there, rc, op);
}

static const struct zc_comm_ops there_ops = {
    .name = "there",
    .all_gather = there_all_gather,
    .exchange = there_exchange,
};

struct party {
    uint32_t world;
    struct comm_group *group;
    struct zc_comm *made[RANKS]; /* from zc_comm_from_ops() */
    struct rank ranks[RANKS];
};

static struct party *party_new(uint32_t world, const struct real_daemon *d,
                               enum zc_zero_offload where, bool alone)
{
    struct party *p = calloc(1, sizeof(*p));

    assert_non_null(p);
    p->world = world;
    p->group = comm_group_new(world, world, 2);
    for (uint32_t r = 0; r < world; r++) {
        struct zc_zero_options *o = &p->ranks[r].options;

        zc_zero_defaults(o);
        o->comm = comm_group_rank(p->group, r);
        o->micro_steps = 0;
        o->timeout_ms = 60000;
        o->socket = d ? d->socket : NULL;
        o->offload_param = o->offload_optimizer = where;
        o->gather_alone = alone;
        p->ranks[r].until = STEPS;
    }
    return p;
}

static void party_run(struct party *p)
{
    for (uint32_t r = 0; r < p->world; r++)
        assert_int_equal(pthread_create(&p->ranks[r].thread, NULL, rank_run, &p->ranks[r]), 0);
    for (uint32_t r = 0; r < p->world; r++)
        assert_int_equal(pthread_join(p->ranks[r].thread, NULL), 0);
    for (uint32_t r = 0; r < p->world; r++)
        if (p->ranks[r].rc < 0)
            fail_msg("rank %u: %d, %s", r, p->ranks[r].rc, p->ranks[r].error);
}

static void party_elsewhere(struct party *p)
{
    comm_group_names(p->group, COMM_NO_NAMES);
    for (uint32_t r = 0; r < p->world; r++) {
        struct zc_zero_options *o = &p->ranks[r].options;

        assert_int_equal(zc_comm_from_ops(&p->made[r], &there_ops, o->comm, r, p->world), 0);
        o->comm = p->made[r];
    }
}

static void party_free(struct party *p)
{
    for (uint32_t r = 0; r < p->world; r++)
        zc_comm_close(p->made[r], true);
    comm_group_free(p->group);
    free(p);
}

/* The gradients that were read must agree with the norms. */
static void assert_gradients(const struct rank *r, uint64_t step)
{
    float most = 0;

    for (uint64_t i = 0; i < ELEMS; i++)
        most = fmaxf(most, fabsf(r->grad[step][INTO][i]));
    assert_true(most > 0 && most == r->norms[step][TENSORS - 1].most);
}

static void assert_same(const struct party *a, const struct party *b)
{
    for (uint32_t k = 0; k < b->world; k++) {
        const struct rank *x = &a->ranks[0], *y = &b->ranks[k];

        for (uint64_t step = y->begun + 1; step <= y->until; step++) {
            assert_memory_equal(x->norms[step], y->norms[step], sizeof(x->norms[step]));
            assert_memory_equal(x->seen[step], y->seen[step], sizeof(x->seen[step]));
            assert_memory_equal(x->grad[step], y->grad[step], sizeof(x->grad[step]));
            assert_gradients(y, step);
            if (k == 0)
                assert_memory_equal(x->half[step], y->half[step], sizeof(x->half[step]));
            assert_int_equal(y->left_alone[step], step == 3 || step == 4);
        }
        assert_memory_equal(x->master, y->master, sizeof(x->master));
        assert_memory_equal(x->m, y->m, sizeof(x->m));
        assert_memory_equal(x->v, y->v, sizeof(x->v));
        assert_memory_equal(x->steps, y->steps, sizeof(x->steps));
        assert_int_equal(y->steps[UNUSED], STEPS - 2);
    }
}

static void the_bits_are_those_without_a_daemon(void **state)
{
    static const struct {
        enum zc_zero_offload where;
        const char *host_bytes;
        bool alone;
        uint32_t poll_ms;
        bool elsewhere;
    } ways[] = { { ZC_ZERO_HOST, "64M", false, 1, false }, { ZC_ZERO_HOST, "64M", true, 0, false },
                 { ZC_ZERO_HOST, "64M", false, 0, true },  { ZC_ZERO_NVME, "1M", false, 0, false },
                 { ZC_ZERO_NVME, "1M", true, 1, false },   { ZC_ZERO_NVME, "1M", true, 0, true },
                 { ZC_ZERO_NVME, "1M", false, 1, true } };

    (void)state;
    for (uint32_t world = 1; world <= RANKS; world++) {
        struct party *want = party_new(world, NULL, ZC_ZERO_NONE, false);

        party_run(want);
        for (size_t i = 0; i < ZB_COUNT(ways); i++) {
            struct real_daemon d;
            struct party *is;

            real_daemon_start(&d, "--host-bytes", ways[i].host_bytes);
            is = party_new(world, &d, ways[i].where, ways[i].alone);
            for (uint32_t r = 0; r < world; r++)
                is->ranks[r].options.poll_ms = ways[i].poll_ms;
            if (ways[i].elsewhere)
                party_elsewhere(is);
            party_run(is);
            assert_same(want, is);
            if (world > 1)
                assert_int_equal(is->ranks[0].gathered_bytes == 0, ways[i].alone);
            party_free(is);
            real_daemon_stop(&d);
        }
        party_free(want);
    }
}

/* Step 4 is committed, step 5 is lost with the daemon. */
static void step_counts_survive_the_daemon(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= RANKS; world++) {
        struct party *want = party_new(world, NULL, ZC_ZERO_NONE, false);
        struct real_daemon d;

        party_run(want);
        real_daemon_start(&d, "--host-bytes", "64M");
        for (int life = 0; life < 2; life++) {
            struct party *is = party_new(world, &d, ZC_ZERO_HOST, true);

            for (uint32_t r = 0; r < world; r++) {
                struct zc_zero_options *o = &is->ranks[r].options;

                o->job = "kept";
                o->keep = o->durable = true;
                o->commit_every = 4;
                o->resume = life > 0;
                is->ranks[r].until = life == 0 ? 5 : STEPS;
            }
            party_run(is);
            if (life == 0) {
                real_daemon_kill(&d);
                real_daemon_again(&d, "--host-bytes", "64M");
            } else {
                assert_int_equal(is->ranks[0].begun, 4);
                assert_int_equal(is->ranks[0].steps_begun[0], 4);
                assert_int_equal(is->ranks[0].steps_begun[UNUSED], 2);
                assert_same(want, is);
            }
            party_free(is);
        }
        real_daemon_stop(&d);
        party_free(want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_without_a_daemon),
        cmocka_unit_test(step_counts_survive_the_daemon),
    };

    return cmocka_run_group_tests(tests, real_daemon_setup, real_daemon_teardown);
}
