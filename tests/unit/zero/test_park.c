/*
 * Buffers that are freed between two steps: memory is returned, results stay the same, and no
 * buffer of a step in progress is freed.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sysmem.h"
#include "base/util.h"
#include "client/zero/zc_zero.h"
#include "comm_threads.h"

#define UNITS 4u
#define ELEMS (1u << 19)
#define STEPS 4u
#define RANKS 2u

/* AddressSanitizer keeps freed memory for a while, so resident memory means nothing there. */
#ifdef __SANITIZE_ADDRESS__
static const bool asan = true;
#else
static const bool asan = false;
#endif

static struct zc_tensor tensor = { "w", 0, 1, { ELEMS }, 0, false };

struct rank {
    struct zc_comm *comm;
    const char *device;
    bool parks;
    int rc;
    char error[256];
    uint64_t resident[2], on_device[2]; /* before parking, and after */
    float *params;                      /* [UNITS * ELEMS] */
    pthread_t thread;
};

static int init(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out)
{
    (void)arg;
    for (uint64_t i = 0; i < count; i++)
        out[i] = (float)((first + i) % 1000 + unit);
    return 0;
}

static int unit_pass(struct rank *r, struct zc_zero *z, uint32_t unit, bool backward)
{
    const void *params;
    float *grad;
    int rc = zc_zero_gather(z, unit, &params);

    if (rc == 0 && backward)
        rc = zc_zero_grad(z, unit, &grad);
    for (uint32_t i = 0; i < ELEMS && rc == 0 && backward && !r->device; i++)
        grad[i] = (float)(i % 7) - 3;
    if (rc == 0 && unit == 1 && zc_zero_park(z) != -EBUSY) /* the unit is held */
        rc = -EPROTO;
    if (rc == 0)
        rc = zc_zero_release(z, unit);
    if (rc == 0 && backward)
        rc = zc_zero_reduce(z, unit);
    if (rc == 0 && backward && zc_zero_park(z) != -EBUSY) /* the step has begun */
        rc = -EPROTO;
    return rc;
}

/* All ranks wait for each other, so that the measurement covers all of them. */
static int measure(struct rank *r, struct zc_zero *z, uint32_t when)
{
    double one = 1;
    int rc = zc_zero_sum(z, &one, 1);

    r->resident[when] = zb_sysmem_resident((int)getpid());
    r->on_device[when] = zc_zero_device_bytes(z);
    return rc < 0 ? rc : zc_zero_sum(z, &one, 1);
}

static int park(struct rank *r, struct zc_zero *z)
{
    int rc = measure(r, z, 0);

    if (rc == 0)
        rc = zc_zero_park(z);
    if (rc == 0)
        rc = zc_zero_park(z); /* nothing is left to free */
    return rc < 0 ? rc : measure(r, z, 1);
}

static int train(struct rank *r, struct zc_zero *z)
{
    int rc = 0;

    for (uint32_t step = 0; step < STEPS && rc == 0; step++) {
        struct zc_zero_stepped stepped;

        for (uint32_t u = 0; u < UNITS && rc == 0; u++)
            rc = unit_pass(r, z, u, false);
        for (uint32_t u = UNITS; u-- > 0 && rc == 0;)
            rc = unit_pass(r, z, u, true);
        if (rc == 0)
            rc = zc_zero_step(z, 0.01, &stepped);
        if (rc == 0 && r->parks)
            rc = park(r, z);
    }
    for (uint32_t u = 0; u < UNITS && rc == 0; u++)
        rc = zc_zero_read(z, u, ZC_MASTER, 0, ELEMS, r->params + (size_t)u * ELEMS);
    return rc;
}

static void *rank_run(void *arg)
{
    struct rank *r = arg;
    struct zc_zero_options o;
    struct zc_zero *z = NULL;
    int rc;

    zc_zero_defaults(&o);
    o.comm = r->comm;
    o.device = r->device;
    rc = zc_zero_open(&z, &o);
    for (uint32_t u = 0; u < UNITS && rc == 0; u++) {
        char name[16];
        const struct zc_unit unit = { .index = u,
                                      .name = name,
                                      .elems = ELEMS,
                                      .dtype = ZC_F32,
                                      .tensors = &tensor,
                                      .ntensors = 1 };

        (void)snprintf(name, sizeof(name), "u%u", u);
        rc = zc_zero_add_unit(z, &unit);
    }
    if (rc == 0)
        rc = zc_zero_start(z, init, NULL);
    if (rc == 0)
        rc = train(r, z);
    r->rc = rc;
    (void)snprintf(r->error, sizeof(r->error), "%s", zc_zero_error(z));
    zc_zero_close(z, rc == 0);
    return NULL;
}

static struct rank *party_run(const char *device, bool parks)
{
    struct comm_group *group = comm_group_new(RANKS, RANKS, 2);
    struct rank *ranks = calloc(RANKS, sizeof(*ranks));

    assert_non_null(ranks);
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank){ .comm = comm_group_rank(group, r),
                                  .device = device,
                                  .parks = parks,
                                  .params = malloc(sizeof(float) * UNITS * ELEMS) };
        assert_non_null(ranks[r].params);
        memset(ranks[r].params, 0, sizeof(float) * UNITS * ELEMS);
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_run, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_join(ranks[r].thread, NULL), 0);
    for (uint32_t r = 0; r < RANKS; r++)
        if (ranks[r].rc < 0)
            fail_msg("rank %u: %d, %s", r, ranks[r].rc, ranks[r].error);
    comm_group_free(group);
    return ranks;
}

static void party_free(struct rank *ranks)
{
    for (uint32_t r = 0; r < RANKS; r++)
        free(ranks[r].params);
    free(ranks);
}

static void buffers_go_and_come_again(void **state)
{
    static const char *const devices[] = { NULL, "emulated" };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(devices); i++) {
        struct rank *want = party_run(devices[i], false), *is = party_run(devices[i], true);
        const uint64_t unit = sizeof(float) * ELEMS;

        for (uint32_t r = 0; r < RANKS; r++)
            assert_memory_equal(want[r].params, is[r].params, sizeof(float) * UNITS * ELEMS);
        if (devices[i])
            assert_true(is[0].on_device[1] + 2 * unit <= is[0].on_device[0]);
        else if (!asan) /* at least a gathered unit and its gradient, for each rank */
            assert_true(is[0].resident[1] + 2 * unit <= is[0].resident[0]);
        party_free(want);
        party_free(is);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(buffers_go_and_come_again) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
