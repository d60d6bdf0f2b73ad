/*
 * Clients that make the daemon keep as much as they can: descriptions and notes without end. They
 * are refused with numbers, the daemon stays within its budget, and a neighbour's results are the
 * same.
 */
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/sysmem.h"

#define HOST      (UINT64_C(64) << 20)
#define BESIDE    (UINT64_C(128) << 20) /* what the daemon may have in addition to its budget */
#define ATTACKERS 3u
#define TENSORS   (1u << 14)
#define ELEMS     8192u
#define STEPS     3u

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

static const char *const options[] = { "--host-bytes", "64M", "--nvme-bytes", "64M", NULL };

static float start(uint64_t element)
{
    return (float)(element % 97) / 97;
}

static float gradient(uint64_t element)
{
    return (float)(element % 31) / 31 - 0.5f;
}

/* A job that trains; returns its masters after STEPS steps. */
static void neighbour(const struct zi_daemon *d, const char *name, float *ret)
{
    static const struct zc_group groups[] = {
        { .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 }
    };
    static const struct zc_unit unit = {
        .name = "u", .elems = ELEMS, .dtype = ZC_BF16, .grad_dtype = ZC_F32
    };
    const struct zc_job_options o = {
        .name = name, .world = 1, .staging_bytes = 1 << 20, .groups = 1
    };
    struct zi_rank r;

    zi_job(&r, 1, d, &o, &unit, 1);
    zi_write_all(&r, 0, start);
    for (uint64_t step = 1; step <= STEPS; step++) {
        const struct zc_step s = { .step = step, .scale = 1, .groups = groups, .ngroups = 1 };
        struct zc_stepped stepped;

        zi_push_all(&r, 0, step, gradient);
        assert_int_equal(zc_step_wait(r.c, r.job.id, &s, &stepped), 0);
    }
    assert_int_equal(zc_read_wait(r.c, r.shards[0], ZC_MASTER, 0, ELEMS, r.job.staging), 0);
    memcpy(ret, r.job.staging, ELEMS * sizeof(*ret));
    zi_close(&r, 1);
}

/* Describes units until one is refused. */
static void describe_without_end(struct zi_rank *r, const struct zc_tensor *tensors)
{
    struct zc_unit unit = { .name = "u",
                            .elems = TENSORS,
                            .dtype = ZC_F32,
                            .grad_dtype = ZC_F32,
                            .tensors = tensors,
                            .ntensors = TENSORS };
    int rc = 0;

    for (; rc == 0; unit.index++)
        rc = zc_unit_define_wait(r->c, r->job.id, &unit);
    assert_int_equal(rc, -ENOSPC);
}

static void what_is_remembered_stays_in_its_budget(void **state)
{
    struct zc_tensor *tensors = calloc(TENSORS, sizeof(*tensors));
    static float calm[ELEMS], attacked[ELEMS];
    static uint8_t note[ZC_NOTE_MAX];
    struct zi_rank r[ATTACKERS];
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    bool refused = false;

    (void)state;
    assert_non_null(tensors);
    for (uint32_t i = 0; i < TENSORS; i++)
        tensors[i] = (struct zc_tensor){ .name = "t", .first = i, .ndims = 1, .dims = { 1 } };
    zi_start(&d, options);
    neighbour(&d, "calm", calm);
    for (uint32_t i = 0; i < ATTACKERS; i++) {
        char name[8];
        const struct zc_job_options o = {
            .name = name, .world = 1, .staging_bytes = 4096, .groups = 1
        };

        (void)snprintf(name, sizeof(name), "a%u", i);
        assert_int_equal(zi_open(&r[i], &d, &o), 0);
        describe_without_end(&r[i], tensors);
        refused = refused || strstr(zc_error(r[i].c), "bytes of definitions and snapshots already");
        assert_int_equal(zc_note_put_wait(r[i].c, r[i].job.id, true, note, sizeof(note)), 0);
    }
    assert_true(refused);
    if (!SANITIZED) /* a sanitizer uses memory of its own */
        assert_in_range(zb_sysmem_resident((int)d.pid), 1, HOST + BESIDE);
    neighbour(&d, "attacked", attacked);
    assert_memory_equal(calm, attacked, sizeof(calm));
    c = zi_client(&d);
    assert_non_null(strstr(zi_tier(c, "host").detail, "descriptions 4")); /* of 48 MiB */
    zi_close(r, ATTACKERS);
    for (int i = 0; i < 10000 && !strstr(zi_tier(c, "host").detail, "descriptions 0"); i++)
        (void)poll(NULL, 0, 2); /* jobs end a moment after their ranks */
    assert_non_null(strstr(zi_tier(c, "host").detail, "descriptions 0"));
    zc_close(c);
    zi_stop(&d);
    free(tensors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_is_remembered_stays_in_its_budget, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
