/*
 * Gathers that each rank makes alone (gather_alone), with the fake daemon: the same bits as with
 * collectives, whatever each rank gathers and when; never more pins than the ring has.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "fake_client.h"
#include "model.h"
#include "party.h"

static void alone(struct party *p, enum zc_zero_offload offload)
{
    party_offload(p, offload);
    for (uint32_t r = 0; r < p->world; r++)
        p->runs[r].options.gather_alone = true;
}

static void the_bits_are_those_of_collectives(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 4; world++)
        for (uint32_t ring = 0; ring < 2; ring++)
            for (uint32_t quantized = 0; quantized < 2; quantized++) {
                struct fake_config fake = { .page_elems = 4096, .ring = ring, .delay_max = 3 };
                struct party with, own;

                fake_reset(&fake);
                party_new(&with, world, ZC_BF16, 1, 2);
                party_offload(&with, ZC_ZERO_NVME);
                party_new(&own, world, ZC_BF16, 1, 2);
                alone(&own, ZC_ZERO_NVME);
                for (uint32_t r = 0; r < world; r++) {
                    with.runs[r].quantized = own.runs[r].quantized = quantized;
                    with.runs[r].evaluate = own.runs[r].evaluate = true;
                    own.runs[r].options.prefetch_units = 2;
                }
                party_run(&with);
                party_assert_ran(&with);
                fake_end();
                fake_reset(&fake);
                party_run(&own);
                party_assert_ran(&own);
                assert_true(fake_pins_most() <= (ring ? ZC_PINS_MIN : UINT32_MAX));
                fake_end();
                assert_runs_same("alone", &with.runs[0], &own.runs[0]);
                if (world > 1) {
                    assert_true(with.runs[0].stats.comm_gather_bytes > 0);
                    assert_int_equal(own.runs[0].stats.comm_gather_bytes, 0);
                }
                party_done(&with);
                party_done(&own);
            }
}

static void the_same_on_a_device(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 3; world++)
        for (uint32_t ring = 0; ring < 2; ring++) {
            struct fake_config fake = { .page_elems = 4096, .ring = ring, .delay_max = 3 };
            struct party host, device;

            party_new(&host, world, ZC_BF16, 1, 2);
            party_new(&device, world, ZC_BF16, 1, 2);
            alone(&host, ZC_ZERO_NVME);
            alone(&device, ZC_ZERO_NVME);
            for (uint32_t r = 0; r < world; r++) {
                host.runs[r].quantized = device.runs[r].quantized = ring;
                device.runs[r].options.device = "emulated";
            }
            fake_reset(&fake);
            party_run(&host);
            party_assert_ran(&host);
            fake_end();
            fake_reset(&fake);
            party_run(&device);
            party_assert_ran(&device);
            fake_end();
            assert_runs_same("device", &host.runs[0], &device.runs[0]);
            party_done(&host);
            party_done(&device);
        }
}

static void what_cannot_be_is_refused(void **state)
{
    static const struct {
        enum zc_zero_offload offload;
        enum zc_zero_stage stage;
        uint32_t group_ranks;
        bool quantize;
        const char *why;
    } rows[] = {
        { ZC_ZERO_NONE, ZC_STAGE_3, 0, false, "without a daemon" },
        { ZC_ZERO_HOST, ZC_STAGE_2, 0, false, "below stage 3" },
        { ZC_ZERO_HOST, ZC_STAGE_3, 1, false, "groups of ranks" },
        { ZC_ZERO_HOST, ZC_STAGE_3, 0, true, "quantize_gather" },
    };
    struct fake_config two_nodes = { .page_elems = 4096, .nodes = 2 };

    (void)state;
    for (size_t i = 0; i <= ZB_COUNT(rows); i++) {
        struct party p;

        fake_reset(&two_nodes);
        party_new(&p, 2, ZC_F32, 1, 0);
        alone(&p, i < ZB_COUNT(rows) ? rows[i].offload : ZC_ZERO_HOST);
        for (uint32_t r = 0; r < 2 && i < ZB_COUNT(rows); r++) {
            p.runs[r].options.stage = rows[i].stage;
            p.runs[r].options.group_ranks = rows[i].group_ranks;
            p.runs[r].options.quantize_gather = rows[i].quantize;
            if (rows[i].stage < ZC_STAGE_3)
                p.runs[r].options.offload_param = ZC_ZERO_NONE;
        }
        party_run(&p);
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(p.runs[r].rc, -ENOTSUP);
            assert_non_null(strstr(p.runs[r].error, i < ZB_COUNT(rows) ? rows[i].why : "have 2"));
        }
        party_done(&p);
        fake_end();
    }
}

/* The only rank of a world may use it with every store. */
static void a_rank_that_is_alone(void **state)
{
    struct party p;

    (void)state;
    party_new(&p, 1, ZC_F32, 1, 0);
    alone(&p, ZC_ZERO_NONE);
    p.runs[0].options.stage = ZC_STAGE_DDP;
    party_run(&p);
    party_assert_ran(&p);
    party_done(&p);
}

/* ---- ranks that differ */

#define WORLD  3u
#define ROUNDS 40u

struct free_rank {
    struct zc_zero_options options;
    pthread_t thread;
    char error[256];
};

/* Gathers any units, and holds some of them at the same time; each must have its initial values. */
static int gather_freely(struct zc_zero *z, uint32_t rank)
{
    uint64_t seed = 77 + rank;

    for (uint32_t i = 0; i < ROUNDS * (rank + 1); i++) {
        uint32_t u = (uint32_t)(ztest_random(&seed) % MODEL_UNITS);
        uint32_t v = (uint32_t)(ztest_random(&seed) % MODEL_UNITS);
        const void *pu, *pv;
        int rc = zc_zero_gather(z, u, &pu);

        if (rc == 0)
            rc = zc_zero_gather(z, v, &pv);
        if (rc < 0)
            return rc;
        for (uint64_t e = 0; e < model_units[u].elems; e++)
            if (((const float *)pu)[e] != model_init(u, e))
                return -EILSEQ;
        for (uint64_t e = 0; e < model_units[v].elems; e++)
            if (((const float *)pv)[e] != model_init(v, e))
                return -EILSEQ;
        rc = zc_zero_release(z, u);
        if (rc == 0)
            rc = zc_zero_release(z, v);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static void *free_run(void *arg)
{
    struct free_rank *f = arg;
    struct zc_zero *z;
    int rc = zc_zero_open(&z, &f->options);

    if (rc == 0)
        rc = model_declare(z, ZC_F32, false);
    if (rc == 0)
        rc = zc_zero_start(z, model_init_fn, NULL);
    if (rc == 0)
        rc = gather_freely(z, f->options.comm->rank);
    (void)snprintf(f->error, sizeof(f->error), "%d: %s", rc, zc_zero_error(z));
    zc_zero_close(z, rc == 0);
    return rc == 0 ? NULL : arg;
}

static void ranks_gather_what_they_like(void **state)
{
    (void)state;
    for (uint32_t ring = 0; ring < 2; ring++) {
        struct fake_config fake = { .page_elems = 4096, .ring = ring, .delay_max = 2 };
        struct free_rank ranks[WORLD];
        struct party p;
        void *failed;

        fake_reset(&fake);
        party_new(&p, WORLD, ZC_F32, 1, 1);
        alone(&p, ZC_ZERO_NVME);
        for (uint32_t r = 0; r < WORLD; r++) {
            ranks[r].options = p.runs[r].options;
            assert_int_equal(pthread_create(&ranks[r].thread, NULL, free_run, &ranks[r]), 0);
        }
        for (uint32_t r = 0; r < WORLD; r++) {
            assert_int_equal(pthread_join(ranks[r].thread, &failed), 0);
            if (failed)
                fail_msg("rank %u: %s", r, ranks[r].error);
        }
        fake_end();
        party_done(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_collectives), cmocka_unit_test(the_same_on_a_device),
        cmocka_unit_test(what_cannot_be_is_refused),         cmocka_unit_test(a_rank_that_is_alone),
        cmocka_unit_test(ranks_gather_what_they_like),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
