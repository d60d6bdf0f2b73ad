/*
 * What survives, as the engine sees it: commits on one node and votes between several, resuming
 * after every kind of loss, takeovers, and a failure of every call. The daemon is that of
 * fake_client.c. Ranks are threads, and rank r is on node r % nodes.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "client/zero/step/step.h"
#include "comm_threads.h"
#include "fake_client.h"
#include "model.h"

#define RANKS_MAX 4

/* TSan is slow, and its findings do not depend on which call fails. */
#if defined(__SANITIZE_THREAD__)
#define CALLS_SKIPPED 12u
#else
#define CALLS_SKIPPED (8 * (ztest_stride(2) - 1))
#endif

#define UNTIL 5 /* steps of a complete run */

struct party {
    uint32_t world;
    struct comm_group *group;
    struct run runs[RANKS_MAX];
    char sockets[RANKS_MAX][16];
};

static void party_new(struct party *p, uint32_t world, bool resume)
{
    memset(p, 0, sizeof(*p));
    p->world = world;
    p->group = comm_group_new(world, world, 2);
    for (uint32_t r = 0; r < world; r++) {
        struct run *run = &p->runs[r];

        run->dtype = ZC_F32;
        run->until = UNTIL;
        run->poison_step = 3; /* a skip */
        zc_zero_defaults(&run->options);
        run->options.comm = comm_group_rank(p->group, r);
        run->options.groups = 2;
        run->options.weight_decay[0] = 0.1;
        run->options.eps = 1e-3;
        run->options.clip = 1;
        /* 16, 16, 32, 32, 32, 64: the skip is tolerated */
        run->options.loss_scale.dynamic = true;
        run->options.loss_scale.power = 4;
        run->options.loss_scale.window = 1;
        run->options.timeout_ms = 120000;
        run->options.offload_param = run->options.offload_optimizer = ZC_ZERO_HOST;
        run->options.job = "kept";
        run->options.keep = run->options.durable = true;
        run->options.resume = resume;
        run->options.commit_every = 2;
        (void)snprintf(p->sockets[r], sizeof(p->sockets[r]), "rank %u", r);
        run->options.socket = p->sockets[r];
    }
}

static void party_run(struct party *p)
{
    run_threads(p->runs, p->world);
}

static void party_done(struct party *p)
{
    for (uint32_t r = 0; r < p->world; r++)
        run_done(&p->runs[r]);
    comm_group_free(p->group);
}

static void assert_ran(const char *name, const struct party *p)
{
    for (uint32_t r = 0; r < p->world; r++)
        if (p->runs[r].rc != 0)
            fail_msg("%s: rank %u of %u ended with %d: %s", name, r, p->world, p->runs[r].rc,
                     p->runs[r].error);
}

static struct model_values whole[RANKS_MAX + 1]; /* values of an uninterrupted run, by world */

static void assert_whole(const char *name, const struct party *p)
{
    static const double scales[UNTIL + 1] = { 16, 16, 32, 32, 32, 64 };

    assert_ran(name, p);
    for (uint32_t r = 0; r < p->world; r++) {
        const struct run *run = &p->runs[r];

        for (uint64_t s = run->begun_at; s < run->until && s < UNTIL; s++)
            if (run->scales[s] != scales[s])
                fail_msg("%s: rank %u: step %llu had loss scale %g", name, r,
                         (unsigned long long)s + 1, run->scales[s]);
        if (run->until == UNTIL && run->next_scale != scales[UNTIL])
            fail_msg("%s: rank %u: the loss scale is %g at the end", name, r, run->next_scale);
    }
    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        size_t bytes = model_units[u].elems * sizeof(float);

        if (memcmp(whole[p->world].master[u], p->runs[0].values.master[u], bytes) != 0 ||
            memcmp(whole[p->world].m[u], p->runs[0].values.m[u], bytes) != 0 ||
            memcmp(whole[p->world].v[u], p->runs[0].values.v[u], bytes) != 0)
            fail_msg("%s: unit %u differs from the uninterrupted run", name, u);
    }
}

static int whole_runs(void **state)
{
    (void)state;
    for (uint32_t world = 1; world <= 2; world++) {
        struct party p;

        party_new(&p, world, false);
        for (uint32_t r = 0; r < world; r++) {
            p.runs[r].options.offload_param = p.runs[r].options.offload_optimizer = ZC_ZERO_NONE;
            p.runs[r].options.keep = p.runs[r].options.durable = false;
        }
        party_run(&p);
        assert_ran("whole", &p);
        whole[world] = p.runs[0].values;
        for (uint32_t r = 1; r < world; r++)
            run_done(&p.runs[r]);
        comm_group_free(p.group);
    }
    return 0;
}

static int whole_done(void **state)
{
    (void)state;
    model_values_done(&whole[1]);
    model_values_done(&whole[2]);
    return 0;
}

static void assert_points(const char *name, uint32_t node, struct fake_points want)
{
    struct fake_points got = fake_points(node);

    if (memcmp(&got, &want, sizeof(got)) != 0)
        fail_msg("%s: node %u has memory %d, prepared %d, committed %d", name, node, got.memory,
                 got.prepared, got.committed);
}

/* ---- the choice of the point to resume from */

#define M(i)                      \
    {                             \
        ZC_POINT_MEMORY, (i), (i) \
    }
#define P(i)                        \
    {                               \
        ZC_POINT_PREPARED, (i), (i) \
    }
#define C(i)                         \
    {                                \
        ZC_POINT_COMMITTED, (i), (i) \
    }

static const struct {
    const char *name;
    uint32_t n;
    struct zcz_stand stands[3];
    int rc;
    uint64_t at;
    uint64_t prepared;   /* the step that some nodes have prepared, */
    enum zc_commit fate; /* and what becomes of it */
} choices[] = {
    { "memory is the newest", 1, { { 1, 2, { M(7), C(5) } } }, 0, 7, 0, 0 },
    { "the commit is all", 1, { { 1, 1, { C(5) } } }, 0, 5, 0, 0 },
    { "nothing", 1, { { 1, 0, { M(0) } } }, -ENOENT, 0, 0, 0 },
    { "step 0 is a step", 1, { { 1, 1, { M(0) } } }, 0, 0, 0, 0 },
    { "prepared alone", 1, { { 1, 2, { P(8), C(5) } } }, 0, 8, 8, ZC_COMMIT_PREPARED },
    { "the same memory", 2, { { 1, 2, { M(9), C(8) } }, { 4, 2, { M(9), C(8) } } }, 0, 9, 0, 0 },
    { "one is ahead", 2, { { 1, 2, { M(9), C(5) } }, { 1, 2, { M(8), C(5) } } }, 0, 5, 0, 0 },
    { "memory here, commit there",
      2,
      { { 1, 2, { M(8), C(5) } }, { 1, 1, { C(8) } } },
      0,
      8,
      0,
      0 },
    { "both prepared",
      2,
      { { 1, 2, { P(8), C(5) } }, { 1, 3, { M(8), P(8), C(5) } } },
      0,
      8,
      8,
      ZC_COMMIT_PREPARED },
    { "one has committed already",
      2,
      { { 1, 2, { M(8), C(8) } }, { 1, 2, { P(8), C(5) } } },
      0,
      8,
      8,
      ZC_COMMIT_PREPARED },
    { "one has committed, and stepped",
      2,
      { { 1, 2, { M(9), C(8) } }, { 1, 3, { M(8), P(8), C(5) } } },
      0,
      8,
      8,
      ZC_COMMIT_PREPARED },
    { "only one has prepared; all have it in memory",
      2,
      { { 1, 3, { M(8), P(8), C(5) } }, { 1, 2, { M(8), C(5) } } },
      0,
      8,
      8,
      ZC_COMMIT_DROP },
    { "only one has prepared",
      2,
      { { 1, 2, { P(8), C(5) } }, { 1, 2, { M(7), C(5) } } },
      0,
      5,
      8,
      ZC_COMMIT_DROP },
    { "the second of three has not",
      3,
      { { 1, 2, { P(8), C(5) } }, { 1, 1, { C(5) } }, { 1, 2, { P(8), C(5) } } },
      0,
      5,
      8,
      ZC_COMMIT_DROP },
    { "nothing in common",
      2,
      { { 1, 2, { M(9), C(8) } }, { 1, 2, { M(7), C(5) } } },
      -ENOENT,
      0,
      0,
      0 },
    { "one has nothing", 2, { { 1, 2, { M(9), C(8) } }, { 1, 0, { M(9) } } }, -ENOENT, 0, 0, 0 },
};

static void the_newest_that_all_have(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(choices); i++) {
        uint64_t at = 77;
        int rc = zcz_resume_choose(choices[i].stands, choices[i].n, &at);

        if (rc != choices[i].rc || at != (rc == 0 ? choices[i].at : 77))
            fail_msg("%s: %d, step %llu", choices[i].name, rc, (unsigned long long)at);
        if (choices[i].fate && zcz_resume_fate(choices[i].stands, choices[i].n,
                                               choices[i].prepared) != choices[i].fate)
            fail_msg("%s: another fate", choices[i].name);
    }
}

/* ---- commits */

static void commits_come_as_asked(void **state)
{
    static const struct {
        const char *name;
        uint64_t every, behind;
        struct fake_points points;
    } cases[] = {
        { "every second", 2, 0, { 5, -1, 4 } }, { "every step", 1, 0, { 5, -1, 5 } },
        { "never", 0, 0, { 5, -1, -1 } },       { "on request", 0, 3, { 5, -1, 3 } },
        { "at the end", 2, 5, { 5, -1, 5 } },   { "what is so already", 2, 4, { 5, -1, 4 } },
    };

    (void)state;
    for (size_t i = 0; i < 2 * ZB_COUNT(cases); i++) {
        uint32_t nodes = i % 2 + 1;
        struct fake_config config = {
            .page_elems = 4096, .seed = i, .delay_max = 3, .nodes = nodes
        };
        struct party p;

        fake_reset(&config);
        party_new(&p, 2, false);
        for (uint32_t r = 0; r < 2; r++) {
            p.runs[r].options.commit_every = cases[i / 2].every;
            p.runs[r].commit_behind = cases[i / 2].behind;
        }
        party_run(&p);
        assert_whole(cases[i / 2].name, &p);
        for (uint32_t n = 0; n < nodes; n++)
            assert_points(cases[i / 2].name, n, cases[i / 2].points);
        party_done(&p);
        fake_end();
    }
}

/* One node cannot commit: none does, every rank is told once, and training goes on. */
static void a_commit_that_fails(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t nodes = i % 2 + 1, node = i / 2 % 2 % nodes;
        bool asked = i >= 4; /* by zc_zero_commit() */
        struct fake_config config = { .page_elems = 4096,
                                      .nodes = nodes,
                                      .commit_rc = -ENOSPC,
                                      .commit_node = node,
                                      .commit_at = 4 };
        struct party p;

        for (uint64_t until = 4; until <= 6; until += 2) {
            struct fake_points want = { (int)until, -1, until == 4 ? 2 : 6 };

            fake_reset(&config);
            party_new(&p, 2, false);
            for (uint32_t r = 0; r < 2; r++) {
                p.runs[r].until = until;
                p.runs[r].refusal = -ENOSPC;
                p.runs[r].commit_behind = asked ? 4 : 0;
            }
            party_run(&p);
            assert_ran("goes on", &p);
            for (uint32_t r = 0; r < 2; r++) {
                assert_int_equal(p.runs[r].refused, asked || until == 6 ? 1 : 0);
                if (p.runs[r].refused && !strstr(p.runs[r].refusal_text, "step 4 is made, but"))
                    fail_msg("rank %u: %s", r, p.runs[r].refusal_text);
                if (p.runs[r].refused && nodes == 2) {
                    char rank[16];

                    (void)snprintf(rank, sizeof(rank), "rank %u: ", node);
                    assert_non_null(strstr(p.runs[r].refusal_text, rank));
                }
            }
            for (uint32_t n = 0; n < nodes; n++)
                assert_points("a commit that fails", n, want);
            party_done(&p);
            fake_end();
        }
    }
}

/* With only the optimizer's state in the daemon: the committed state is resumed, also in another
 * stage. */
static void without_parameters_in_the_daemon(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 18; i++) {
        enum zc_zero_stage from = ZC_STAGE_1 + i % 3, to = ZC_STAGE_1 + i / 3 % 3;
        struct fake_config config = {
            .page_elems = 4096, .seed = i, .delay_max = 2, .nodes = i / 9 + 1
        };
        struct party first, second;

        fake_reset(&config);
        party_new(&first, 2, false);
        party_new(&second, 2, true);
        for (uint32_t r = 0; r < 2; r++) {
            struct zc_zero_options *o[] = { &first.runs[r].options, &second.runs[r].options };

            for (int k = 0; k < 2; k++) {
                o[k]->stage = k == 0 ? from : to;
                o[k]->offload_param = ZC_ZERO_NONE;
                o[k]->commit_every = 0;
            }
            first.runs[r].until = 3;
            first.runs[r].commit_behind = 3;
            second.runs[r].commit_behind = UNTIL;
        }
        party_run(&first);
        assert_ran("committed", &first);
        for (uint32_t n = 0; n < config.nodes; n++) {
            assert_points("committed", n, (struct fake_points){ 3, -1, 3 });
            fake_crash(n);
        }
        party_run(&second);
        assert_whole("goes on", &second);
        assert_int_equal(second.runs[0].begun_at, 3);
        party_done(&first);
        party_done(&second);
        fake_end();
    }
}

static void commits_that_cannot_be(void **state)
{
    static const struct fake_config config = { .page_elems = 4096 };

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct party p;

        fake_reset(&config);
        party_new(&p, 1, false);
        p.runs[0].commit_behind = 1;
        p.runs[0].refusal = i == 2 ? -EINVAL : -ENOTSUP;
        p.runs[0].options.durable = p.runs[0].options.keep = i == 0;
        if (i < 2)
            p.runs[0].options.offload_param = p.runs[0].options.offload_optimizer = ZC_ZERO_NONE;
        party_run(&p);
        if (i == 0) { /* durable, but without a store */
            assert_int_equal(p.runs[0].rc, -EINVAL);
            assert_non_null(strstr(p.runs[0].error, "a durable job needs a daemon"));
        } else {
            assert_whole("refused", &p);
            assert_int_equal(p.runs[0].refused, 1);
        }
        party_done(&p);
        fake_end();
    }
}

static void notes_that_cannot_be(void **state)
{
    static const struct zc_tensor one = { .name = "t" };
    struct comm_group *g = comm_group_new(1, 1, 0);
    struct zc_zero_options options;
    struct zc_zero_stepped stepped;
    static char note[ZC_NOTE_MAX + 1], back[ZC_NOTE_MAX];
    struct zc_zero *z;
    size_t bytes = 5;
    float *grad;

    (void)state;
    zc_zero_defaults(&options);
    options.comm = comm_group_rank(g, 0);
    assert_int_equal(zc_zero_open(&z, &options), 0);
    assert_int_equal(zc_zero_note_put(z, true, note, 1), -EBUSY);
    assert_int_equal(zc_zero_add_unit(z, &(struct zc_unit){ .name = "u",
                                                            .elems = 1,
                                                            .dtype = ZC_F32,
                                                            .tensors = &one,
                                                            .ntensors = 1 }),
                     0);
    assert_int_equal(zc_zero_start(z, model_init_fn, NULL), 0);
    memset(note, 7, sizeof(note));
    assert_int_equal(zc_zero_note_put(z, true, note, ZC_ZERO_NOTE_MAX + 1), -EINVAL);
    assert_int_equal(zc_zero_note_put(z, false, note, ZC_ZERO_NOTE_MAX + 1), -EINVAL);
    assert_int_equal(zc_zero_note_put(z, true, note, ZC_ZERO_NOTE_MAX), 0);
    assert_int_equal(zc_zero_note_put(z, false, NULL, 0), 0);
    assert_int_equal(zc_zero_note_get(z, true, back, &bytes), -ENOENT); /* not before its step */
    assert_int_equal(zc_zero_grad(z, 0, &grad), 0);
    assert_int_equal(zc_zero_reduce(z, 0), 0);
    assert_int_equal(zc_zero_step(z, 1, &stepped), 0);
    assert_int_equal(zc_zero_note_get(z, true, back, &bytes), 0);
    assert_int_equal(bytes, ZC_ZERO_NOTE_MAX);
    assert_memory_equal(note, back, bytes);
    assert_int_equal(zc_zero_note_get(z, false, back, &bytes), 0);
    assert_int_equal(bytes, 0);
    zc_zero_close(z, true);
    comm_group_free(g);
}

/* ---- resumes */

/* Trainers die in the middle of a step; then daemons do, too. */
static void a_job_goes_on(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 24; i++) {
        uint32_t nodes = i % 2 + 1, crashed = i / 2 % 4, after = i / 8 + 2;
        struct fake_config config = {
            .page_elems = 4096, .seed = i, .delay_max = 2, .nodes = nodes
        };
        uint64_t begins = crashed ? after / 2 * 2 : after;
        struct party first, second;

        fake_reset(&config);
        party_new(&first, 2, false);
        party_new(&second, 2, true);
        for (uint32_t r = 0; r < 2; r++)
            first.runs[r].stop_after = after;
        party_run(&first);
        for (uint32_t n = 0; n < nodes; n++)
            if (crashed & (1u << n))
                fake_crash(n);
        if (nodes == 1 && !(crashed & 1))
            begins = after;
        party_run(&second);
        assert_whole("resumed", &second);
        for (uint32_t r = 0; r < 2; r++)
            if (second.runs[r].begun_at != begins)
                fail_msg("case %u: begun at %llu, not %llu", i,
                         (unsigned long long)second.runs[r].begun_at, (unsigned long long)begins);
        for (uint32_t n = 0; n < nodes; n++)
            assert_points("resumed", n, (struct fake_points){ UNTIL, -1, 4 });
        party_done(&first);
        party_done(&second);
        fake_end();
    }
}

static void another_world(void **state)
{
    (void)state;
    for (uint32_t to = 1; to <= 4; to++)
        for (uint32_t from = 1; from <= 2; from++)
            for (int crash = 0; crash < 2; crash++) {
                static const struct fake_config config = { .page_elems = 4096 };
                struct party first, second;

                fake_reset(&config);
                party_new(&first, from, false);
                party_new(&second, to, true);
                for (uint32_t r = 0; r < from; r++)
                    first.runs[r].until = 3;
                party_run(&first);
                assert_ran("first", &first);
                if (crash)
                    fake_crash(0);
                party_run(&second);
                assert_ran("second", &second);
                assert_int_equal(second.runs[0].begun_at, crash ? 2 : 3);
                assert_values_near("another world", &whole[1], &second.runs[0].values, 1e-4);
                party_done(&first);
                party_done(&second);
                fake_end();
            }
}

static void nothing_in_common(void **state)
{
    static const struct fake_config config = { .page_elems = 4096, .nodes = 2 };
    struct party first, second;

    (void)state;
    fake_reset(&config);
    party_new(&first, 2, false);
    party_run(&first);
    assert_ran("first", &first);
    party_done(&first);
    fake_forget(1, true, true);
    fake_prepare(1); /* step 5 */
    fake_crash(1);
    fake_crash(0); /* it has step 4 */
    party_new(&second, 2, true);
    party_run(&second);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(second.runs[r].rc, -ENOENT);
        if (!strstr(second.runs[r].error, "node 0 has step 4 (committed); node 1 has step 5 "
                                          "(prepared)"))
            fail_msg("rank %u: %s", r, second.runs[r].error);
    }
    party_done(&second);
    fake_crash(1);
    assert_points("untouched", 0, (struct fake_points){ -1, -1, 4 });
    assert_points("untouched", 1, (struct fake_points){ -1, 5, -1 });
    party_new(&second, 2, true); /* neither node has anything */
    fake_forget(1, true, true);
    fake_crash(1);
    party_run(&second);
    assert_int_equal(second.runs[0].rc, -ENOENT);
    assert_non_null(strstr(second.runs[0].error, "rank 1: "));
    party_done(&second);
    fake_end();
}

static pthread_barrier_t halfway, over;

static void wait_there(uint64_t step)
{
    if (step == 3) {
        pthread_barrier_wait(&halfway);
        pthread_barrier_wait(&over);
    }
}

static void *party_thread(void *arg)
{
    party_run(arg);
    return NULL;
}

/* Ranks that were wrongly taken for dead return, and are disconnected. */
static void who_was_taken_for_dead(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 2; nodes++) {
        struct fake_config config = { .page_elems = 4096, .nodes = nodes };
        struct party first, second;
        pthread_t thread;

        fake_reset(&config);
        party_new(&first, 2, false);
        party_new(&second, 2, true);
        assert_int_equal(pthread_barrier_init(&halfway, NULL, 3), 0);
        assert_int_equal(pthread_barrier_init(&over, NULL, 3), 0);
        first.runs[0].before_step = first.runs[1].before_step = wait_there;
        assert_int_equal(pthread_create(&thread, NULL, party_thread, &first), 0);
        pthread_barrier_wait(&halfway);
        party_run(&second);
        pthread_barrier_wait(&over);
        assert_int_equal(pthread_join(thread, NULL), 0);
        assert_whole("who took over", &second);
        assert_int_equal(second.runs[0].begun_at, 2);
        for (uint32_t r = 0; r < 2; r++)
            if (first.runs[r].rc != -ESTALE)
                fail_msg("rank %u ended with %d: %s", r, first.runs[r].rc, first.runs[r].error);
        for (uint32_t n = 0; n < nodes; n++)
            assert_points("nothing has changed", n, (struct fake_points){ UNTIL, -1, 4 });
        party_done(&first);
        party_done(&second);
        fake_end();
        (void)pthread_barrier_destroy(&halfway);
        (void)pthread_barrier_destroy(&over);
    }
}

/* ---- failures */

/* Whichever call of a run fails, and even if a daemon dies too: the next run resumes from one step
 * that all nodes have, and has the same result. */
static bool fail_and_go_on(enum fake_fault fault, int rc, uint32_t nth, bool resume)
{
    struct fake_config good = { .page_elems = 4096, .nodes = 2 }, bad = good;
    struct party first, second, third;
    enum fake_when when;
    bool begun = resume;

    bad.fault = fault;
    bad.rc = rc;
    bad.nth = nth;
    bad.rank = nth % 2;
    fake_reset(&good);
    if (resume) {
        party_new(&first, 2, false);
        first.runs[0].until = first.runs[1].until = 3;
        party_run(&first);
        assert_ran("first", &first);
        party_done(&first);
        fake_forget(nth % 2, true, false);
        if (nth % 3) { /* one node, or both, have a prepared version that was not committed */
            fake_prepare(0);
            if (nth % 3 == 2)
                fake_prepare(1);
        }
        if (nth % 5 == 0)
            fake_crash(1);
    }
    fake_reset(&bad);
    party_new(&second, 2, resume);
    for (uint32_t r = 0; r < 2; r++) {
        second.runs[r].commit_behind = 3;
        second.runs[r].abort = second.group; /* no daemon tells the other node's rank */
    }
    party_run(&second);
    when = fake_faulted();
    if (fault == FAKE_JOB && resume && when == FAKE_AT_START) /* a takeover may repair that */
        when = FAKE_AT_END;
    if (when != FAKE_NOT_YET && when != FAKE_AT_END && second.runs[bad.rank].rc == 0 &&
        fault != FAKE_NOBUFS)
        fail_msg("call %u failed, and nobody noticed", nth);
    party_done(&second);
    fake_reset(&good);
    if (nth % 4 == 0)
        fake_crash(nth / 4 % 2);
    begun = begun || (fake_points(0).committed >= 0 && fake_points(1).committed >= 0);
    party_new(&third, 2, true);
    party_run(&third);
    if (third.runs[0].rc != -ENOENT || begun) {
        assert_whole("after a failure", &third);
        assert_int_equal(third.runs[0].begun_at, third.runs[1].begun_at);
        assert_int_equal(fake_points(0).prepared, -1);
        assert_int_equal(fake_points(1).prepared, -1);
        assert_int_equal(fake_points(0).committed, fake_points(1).committed);
    }
    party_done(&third);
    fake_end();
    return when != FAKE_NOT_YET;
}

static void every_call_fails_in_turn(void **state)
{
    static const struct {
        enum fake_fault fault;
        int rc;
    } faults[] = {
        { FAKE_START, -EINVAL }, { FAKE_NOBUFS, 0 }, { FAKE_DONE, -EIO },
        { FAKE_HANGUP, 0 },      { FAKE_JOB, -EIO },
    };

    (void)state;
    for (size_t f = 0; f < ZB_COUNT(faults); f++)
        for (int resume = 0; resume < 2; resume++) {
            uint32_t nth = 1;

            while (fail_and_go_on(faults[f].fault, faults[f].rc, nth, resume))
                nth += (nth < 14 ? 1 : 9) + CALLS_SKIPPED;
            print_message("fault %d, resume %d: %u calls\n", (int)faults[f].fault, resume, nth);
            assert_true(nth > 80);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newest_that_all_have),
        cmocka_unit_test(commits_come_as_asked),
        cmocka_unit_test(a_commit_that_fails),
        cmocka_unit_test(without_parameters_in_the_daemon),
        cmocka_unit_test(commits_that_cannot_be),
        cmocka_unit_test(notes_that_cannot_be),
        cmocka_unit_test(a_job_goes_on),
        cmocka_unit_test(another_world),
        cmocka_unit_test(nothing_in_common),
        cmocka_unit_test(who_was_taken_for_dead),
        cmocka_unit_test(every_call_fails_in_turn),
    };

    return cmocka_run_group_tests(tests, whole_runs, whole_done);
}
