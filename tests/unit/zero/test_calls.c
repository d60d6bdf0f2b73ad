/*
 * Ranks that make different calls: each is told, with the same error message, before a step is made
 * from them. Ranks that make the same calls are not, in any mode. With TCP, MPI and NCCL:
 * test_tcp.c, test_mpi.c, test_nccl.c.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/plan.h"
#include "base/util.h"
#include "comm_threads.h"
#include "fake_client.h"
#include "odd.h"

#define RANKS_MAX 4

/* Fields that are not 0 or false set an option. */
struct mode {
    const char *name;
    uint32_t world;
    enum zc_zero_stage stage;
    uint32_t prefetch, micro_steps, group, timeout_ms;
    enum zc_dtype dtype;
    enum zc_zero_offload offload;
    bool accumulate, vertical, keep_gathered, quantize, reduce_waits;
};

struct ranks {
    struct comm_group *group;
    char sockets[RANKS_MAX][16];
    struct odd of[RANKS_MAX];
};

static void *rank_run(void *arg)
{
    odd_train(arg);
    return NULL;
}

static void ranks_run(struct ranks *all, const struct mode *m, enum comm_names names,
                      enum odd_call call, uint64_t seed)
{
    struct fake_config daemon = { .page_elems = ZB_BLOCK_ELEMS, .ring = true, .delay_max = 3 };
    pthread_t threads[RANKS_MAX];

    memset(all, 0, sizeof(*all));
    fake_reset(&daemon);
    all->group = comm_group_new(m->world, seed, (uint32_t)seed * 3);
    comm_group_names(all->group, names);
    for (uint32_t r = 0; r < m->world; r++) {
        struct odd *o = &all->of[r];

        o->dtype = m->dtype ? m->dtype : ZC_F32;
        o->call = call;
        o->rank = 1;
        o->step = 2;
        zc_zero_defaults(&o->options);
        o->options.comm = comm_group_rank(all->group, r);
        o->options.stage = m->stage;
        o->options.prefetch_units = m->prefetch;
        o->options.micro_steps = m->micro_steps ? m->micro_steps : 1;
        o->options.group_ranks = m->group;
        o->options.offload_optimizer = m->offload;
        o->options.offload_param = m->stage == ZC_STAGE_3 ? m->offload : ZC_ZERO_NONE;
        o->options.accumulate_local = m->accumulate;
        o->options.vertical = m->vertical;
        o->options.keep_gathered = m->keep_gathered;
        o->options.quantize_gather = m->quantize;
        o->options.reduce_waits = m->reduce_waits;
        o->options.timeout_ms = m->timeout_ms ? m->timeout_ms : 20000;
        (void)snprintf(all->sockets[r], sizeof(all->sockets[r]), "rank %u", r);
        o->options.socket = all->sockets[r];
    }
    for (uint32_t r = 0; r < m->world; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, rank_run, &all->of[r]), 0);
    for (uint32_t r = 0; r < m->world; r++)
        pthread_join(threads[r], NULL);
}

static void ranks_done(struct ranks *all)
{
    comm_group_free(all->group);
    fake_end();
}

/* ---- the same calls */

static void the_same_calls_are_well(void **state)
{
    static const struct mode modes[] = {
        { .name = "alone", .world = 1, .stage = ZC_STAGE_3 },
        { .name = "ddp", .world = 3, .prefetch = 1 },
        { .name = "ddp, two micro-steps", .world = 2, .micro_steps = 2 },
        { .name = "stage 1", .world = 2, .stage = ZC_STAGE_1, .micro_steps = 2 },
        { .name = "stage 2", .world = 3, .stage = ZC_STAGE_2, .prefetch = 2 },
        { .name = "stage 2, offloaded", .world = 2, .stage = ZC_STAGE_2, .offload = ZC_ZERO_HOST },
        { .name = "stage 3", .world = 2, .stage = ZC_STAGE_3, .dtype = ZC_BF16 },
        { .name = "stage 3, ahead", .world = 3, .stage = ZC_STAGE_3, .prefetch = 4 },
        { .name = "kept", .world = 2, .stage = ZC_STAGE_3, .keep_gathered = true, .prefetch = 1 },
        { .name = "codes", .world = 3, .stage = ZC_STAGE_3, .quantize = true, .prefetch = 1 },
        { .name = "groups", .world = 4, .stage = ZC_STAGE_3, .group = 2, .prefetch = 1 },
        { .name = "groups, waiting",
          .world = 4,
          .stage = ZC_STAGE_3,
          .group = 2,
          .reduce_waits = true },
        { .name = "locally",
          .world = 2,
          .stage = ZC_STAGE_3,
          .micro_steps = 2,
          .accumulate = true },
        { .name = "vertical", .world = 2, .stage = ZC_STAGE_3, .micro_steps = 2, .vertical = true },
        { .name = "streamed",
          .world = 2,
          .stage = ZC_STAGE_3,
          .offload = ZC_ZERO_NVME,
          .prefetch = 2 },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(modes); i++)
        for (enum comm_names names = COMM_NAMES; names <= COMM_NAMES_LOST; names++)
            for (uint64_t seed = 0; seed < 2; seed++) {
                struct ranks all;

                ranks_run(&all, &modes[i], names, ODD_NONE, seed);
                for (uint32_t r = 0; r < modes[i].world; r++) {
                    const struct odd *o = &all.of[r];

                    if (o->rc != 0 || o->applied != ODD_STEPS || o->wrong)
                        fail_msg("%s, names %d, rank %u: %d, %llu steps: %s", modes[i].name,
                                 (int)names, r, o->rc, (unsigned long long)o->applied, o->error);
                }
                ranks_done(&all);
            }
}

/* ---- other calls */

/* Every rank is told in step 2, which is not made and has no visible effect. `says` is rank 0's
 * message; each other rank names two ranks, one of which is the odd one. */
static void assert_told(const char *name, const struct ranks *all, uint32_t world, const char *says)
{
    for (uint32_t r = 0; r < world; r++) {
        const struct odd *o = &all->of[r];
        bool told = o->rc == -EINVAL && o->failed_in == 2 && o->applied == 1;

        told = told && strstr(o->error, "rank 1 ") && strstr(o->error, "(step 2)");
        if (r == 0 || world == 2)
            told = told && strcmp(o->error, says) == 0;
        if (!told)
            fail_msg("%s: rank %u of %u: %d in step %llu, %llu made: '%s', and not '%s'", name, r,
                     world, o->rc, (unsigned long long)o->failed_in, (unsigned long long)o->applied,
                     o->error, says);
    }
}

static const struct told {
    enum odd_call call;
    enum zc_zero_stage from, to;
    bool same_lengths;
    const char *says;
} tolds[] = {
    { ODD_GATHERS, ZC_STAGE_1, ZC_STAGE_3, true,
      "rank 1 gathers 'fc2' where rank 0 gathers 'fc1' (step 2)" },
    { ODD_REDUCES, ZC_STAGE_DDP, ZC_STAGE_3, true,
      "rank 1 reduces 'fc1' where rank 0 reduces 'fc2' (step 2)" },
    { ODD_LENGTH, ZC_STAGE_1, ZC_STAGE_3, false,
      "rank 1 gathers 'out' where rank 0 gathers 'fc2' (step 2)" },
    { ODD_LEFT_OUT, ZC_STAGE_1, ZC_STAGE_3, false,
      "rank 1 gathers 'fc3' where rank 0 gathers 'fc2' (step 2)" },
    { ODD_READ, ZC_STAGE_1, ZC_STAGE_3, true,
      "rank 1 reads 'fc2' where rank 0 reads 'fc1' (step 2)" },
    { ODD_READ_RANGE, ZC_STAGE_1, ZC_STAGE_3, true,
      "rank 1 reads 'fc1' with other arguments than rank 0 (step 2)" },
    { ODD_SUM, ZC_STAGE_DDP, ZC_STAGE_3, false,
      "rank 1 adds up 2 values where rank 0 adds up 1 value (step 2)" },
    { ODD_SUM_TWICE, ZC_STAGE_DDP, ZC_STAGE_3, false,
      "rank 1 adds up 1 value where rank 0 steps (step 2)" },
};

static void other_calls_are_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(tolds); i++)
        for (enum zc_zero_stage stage = tolds[i].from; stage <= tolds[i].to; stage++)
            for (uint32_t world = 2; world <= 2 + (stage == tolds[i].to); world++)
                for (enum comm_names names = COMM_NAMES; names <= COMM_NO_NAMES; names++) {
                    struct mode m = {
                        .world = world,
                        .stage = stage,
                        .offload = stage == ZC_STAGE_3 && names ? ZC_ZERO_NVME : ZC_ZERO_NONE,
                    };
                    char name[64];
                    struct ranks all;

                    (void)snprintf(name, sizeof(name), "call %d, stage %d, names %d",
                                   (int)tolds[i].call, (int)stage, (int)names);
                    ranks_run(&all, &m, names, tolds[i].call, i + world);
                    assert_told(name, &all, world, tolds[i].says);
                    for (uint32_t r = 0; r < world; r++)
                        assert_false(all.of[r].wrong);
                    ranks_done(&all);
                }
}

/* If nothing compares names on the way, the next vote finds the difference; then every rank has the
 * same message. */
static void a_vote_finds_other_calls(void **state)
{
    static const struct mode modes[] = {
        { .name = "ddp" },
        { .name = "stage 1", .stage = ZC_STAGE_1 },
        { .name = "stage 2", .stage = ZC_STAGE_2, .offload = ZC_ZERO_HOST },
        { .name = "stage 3", .stage = ZC_STAGE_3 },
        { .name = "codes", .stage = ZC_STAGE_3, .quantize = true },
        { .name = "kept", .stage = ZC_STAGE_3, .keep_gathered = true },
        { .name = "streamed", .stage = ZC_STAGE_3, .offload = ZC_ZERO_NVME },
        { .name = "vertical", .stage = ZC_STAGE_3, .vertical = true, .micro_steps = 2 },
        { .name = "groups", .stage = ZC_STAGE_3, .group = 2 },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(modes) * 2; i++)
        for (size_t k = 0; k < ZB_COUNT(tolds); k++) {
            struct mode m = modes[i / 2];
            struct ranks all;

            m.world = m.group ? 4 : 2 + i % 2;
            if (!tolds[k].same_lengths || m.stage < tolds[k].from)
                continue;
            ranks_run(&all, &m, COMM_NAMES_LOST, tolds[k].call, i);
            assert_told(m.name, &all, m.world, tolds[k].says);
            for (uint32_t r = 1; r < m.world; r++)
                assert_string_equal(all.of[r].error, tolds[k].says);
            ranks_done(&all);
        }
}

/* With gathers ahead, actual gathers count, not requests: if ranks ask in different orders but
 * gather in the same, there is no error. (A difference in the learned order may be reported in the
 * next step.) */
static void gathers_ahead_are_what_counts(void **state)
{
    uint32_t told = 0, well = 0;

    (void)state;
    for (uint32_t prefetch = 1; prefetch <= 6; prefetch++)
        for (uint64_t seed = 0; seed < 6; seed++) {
            const struct mode m = { .world = 2 + seed % 2,
                                    .stage = ZC_STAGE_3,
                                    .prefetch = prefetch };
            struct ranks all;

            ranks_run(&all, &m, seed < 3 ? COMM_NAMES : COMM_NO_NAMES, ODD_GATHERS, seed);
            for (uint32_t r = 0; r < m.world; r++) {
                const struct odd *o = &all.of[r];

                assert_false(o->wrong);
                assert_int_equal(o->rc, all.of[0].rc);
                assert_int_equal(o->rc == 0, o->applied == ODD_STEPS);
                if (o->rc != 0)
                    assert_non_null(strstr(o->error, " where rank "));
            }
            told += all.of[0].rc == -EINVAL;
            well += all.of[0].rc == 0;
            ranks_done(&all);
        }
    assert_true(told > 0);
    assert_int_equal(told + well, 36);
}

/* The ranks of the odd one's group are told; the others wait for them, and time out. */
static void a_group_is_told(void **state)
{
    static const struct mode m = {
        .world = 4, .stage = ZC_STAGE_3, .group = 2, .timeout_ms = 2000
    };
    struct ranks all;

    (void)state;
    for (enum comm_names names = COMM_NAMES; names <= COMM_NO_NAMES; names++) {
        ranks_run(&all, &m, names, ODD_GATHERS, 1);
        assert_told("group", &all, 2, tolds[0].says);
        for (uint32_t r = 2; r < 4; r++) {
            assert_int_equal(all.of[r].rc, -ETIMEDOUT);
            assert_int_equal(all.of[r].applied, 1);
        }
        ranks_done(&all);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_calls_are_well),  cmocka_unit_test(other_calls_are_told),
        cmocka_unit_test(a_vote_finds_other_calls), cmocka_unit_test(gathers_ahead_are_what_counts),
        cmocka_unit_test(a_group_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
