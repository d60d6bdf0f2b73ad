/*
 * Units that are frozen between steps, and trained again: the bits of a run in which no rank has a
 * gradient for them meanwhile, wherever slices are; refusals; ranks that differ; and a kept job,
 * which is resumed with its units as they were declared.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zero/zc_zero.h"
#include "comm_threads.h"
#include "kernels/gpu.h"
#include "real_daemon.h"

#define RANKS   3u
#define STEPS   9u
#define MOST    20000u /* elements of a unit */
#define MORE    12u    /* units like "block": more than a small host budget can hold */
#define TENSORS (6u + 2 * MORE)

static struct zc_tensor dense[] = { { "w", 0, 1, { 6000 }, 0, false },
                                    { "b", 6000, 1, { 100 }, 0, false } };
static struct zc_tensor block[] = { { "w", 0, 1, { 19000 }, 0, false },
                                    { "b", 19000, 1, { 1000 }, 0, false } };
static struct zc_tensor head[] = { { "w", 0, 1, { 900 }, 0, false },
                                   { "b", 900, 1, { 100 }, 0, false } };
static struct zc_unit units[4 + MORE] = {
    { .name = "dense", .elems = 6100, .tensors = dense, .ntensors = 2 },
    { .name = "table", .index = 1, .elems = 50, .frozen = true },
    { .name = "block", .index = 2, .elems = MOST, .tensors = block, .ntensors = 2 },
    { .name = "head", .index = 3, .elems = 1000, .tensors = head, .ntensors = 2 },
};

static char names[4 + MORE][16];

#define UNITS ((uint32_t)ZB_COUNT(units))

static float value(uint32_t unit, uint64_t elem, uint64_t salt)
{
    uint64_t seed = salt << 40 ^ (uint64_t)unit << 32 ^ elem;

    return (float)(int64_t)ztest_random(&seed) * 0x1p-64f;
}

static int init(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out)
{
    (void)arg;
    for (uint64_t i = 0; i < count; i++)
        out[i] = value(unit, first + i, 1);
    return 0;
}

/* "block" and units like it are frozen in steps 3 to 5 and 8, "head" in 5 and 6, "dense" and the
 * last ones in the first. */
static bool frozen_in(uint32_t unit, uint64_t step)
{
    bool of_blocks = unit == 2 || unit == 5 || unit > 12;

    return (of_blocks && ((step >= 3 && step <= 5) || step == 8)) ||
           (unit == 3 && step >= 5 && step <= 6) || ((unit == 0 || unit > 12) && step == 1);
}

struct rank {
    struct zc_zero_options options;
    enum zc_dtype dtype;
    bool freezes; /* otherwise such a unit gets no gradient on any rank */
    bool announces;
    uint64_t until;
    int (*instead)(struct zc_zero *z, uint32_t rank); /* instead of the steps */
    /* out */
    int rc;
    char error[512];
    float p[UNITS][MOST], m[UNITS][MOST], v[UNITS][MOST], params[UNITS][MOST];
    uint64_t steps[UNITS][2], begun;
    struct zc_zero_norm norms[STEPS + 1][TENSORS];
    double norm[STEPS + 1];
    pthread_t thread;
};

/* ---- a trainer */

static int grad_add(struct zc_zero *z, uint32_t u, uint64_t step, uint32_t micro, uint32_t rank)
{
    struct zk_gpu_stream *stream = zc_zero_stream(z);
    float *of = malloc(MOST * sizeof(*of)), *g;
    struct zb_err err = { 0 };
    int rc = zc_zero_grad(z, u, &g);

    for (uint64_t i = 0; i < units[u].elems; i++)
        of[i] = value(u, i, 1000 * step + 10 * micro + rank);
    if (rc == 0 && !stream)
        for (uint64_t i = 0; i < units[u].elems; i++)
            g[i] += of[i];
    if (rc == 0 && stream)
        rc = zk_gpu_copy(stream, ZK_GPU_TO_DEVICE, g, of, units[u].elems * sizeof(*g), &err);
    if (rc == 0 && stream)
        rc = zk_gpu_stream_sync(stream, &err);
    free(of);
    return rc;
}

static int unit_reduce(const struct rank *r, struct zc_zero *z, uint32_t u, uint64_t step,
                       uint32_t micro)
{
    bool there = !frozen_in(u, step), has[2] = { there, there };
    float *g;
    int rc;

    if (units[u].frozen || (!there && r->freezes))
        return 0;
    rc = there ? grad_add(z, u, step, micro, r->options.comm->rank) : zc_zero_grad(z, u, &g);
    return rc < 0 ? rc : zc_zero_reduce_of(z, u, has, 2);
}

static int micro_step(const struct rank *r, struct zc_zero *z, uint64_t step, uint32_t micro)
{
    bool any = r->options.micro_steps == 0;
    const void *params;
    int rc = 0;

    for (uint32_t u = 0; u < UNITS && rc == 0; u++)
        if ((rc = zc_zero_gather(z, u, &params)) == 0)
            rc = zc_zero_release(z, u);
    if (rc == 0 && any)
        rc = zc_zero_micro(z, micro == 1);
    for (uint32_t u = UNITS; u-- > 0 && rc == 0;)
        rc = unit_reduce(r, z, u, step, micro);
    return rc < 0 || !any ? rc : zc_zero_micro_end(z);
}

static int freeze_all(struct zc_zero *z, uint64_t step)
{
    int rc = 0;

    for (uint32_t u = 0; u < UNITS && rc == 0; u++)
        if (!units[u].frozen)
            rc = zc_zero_freeze(z, u, frozen_in(u, step));
    return rc;
}

static int step_once(struct rank *r, struct zc_zero *z, uint64_t step)
{
    struct zc_zero_stepped stepped;
    int rc = r->freezes ? freeze_all(z, step) : 0;

    if (rc == 0 && r->announces)
        rc = zc_zero_announce(z, 0.01);
    for (uint32_t m = 0; m < 2 && rc == 0; m++)
        rc = micro_step(r, z, step, m);
    if (rc == 0 && !r->announces)
        rc = zc_zero_norms(z, r->norms[step], TENSORS);
    if (rc == 0)
        rc = zc_zero_step(z, 0.01, &stepped);
    r->norm[step] = stepped.grad_norm;
    return rc < 0 || !r->freezes || stepped.left_alone == 0 ? rc : -EPROTO;
}

static int rank_read(struct rank *r, struct zc_zero *z)
{
    const void *params;
    int rc = 0;

    for (uint32_t u = 0; u < UNITS && rc == 0; u++) {
        if (!r->options.device && (rc = zc_zero_gather(z, u, &params)) == 0) {
            memcpy(r->params[u], params, units[u].elems * (r->dtype == ZC_F32 ? 4 : 2));
            rc = zc_zero_release(z, u);
        }
        if (rc < 0 || units[u].frozen)
            continue;
        rc = zc_zero_read(z, u, ZC_MASTER, 0, units[u].elems, r->p[u]);
        if (rc == 0)
            rc = zc_zero_read(z, u, ZC_EXP_AVG, 0, units[u].elems, r->m[u]);
        if (rc == 0)
            rc = zc_zero_read(z, u, ZC_EXP_AVG_SQ, 0, units[u].elems, r->v[u]);
        if (rc == 0)
            rc = zc_zero_tensor_steps(z, u, r->steps[u]);
    }
    return rc;
}

static void *rank_run(void *arg)
{
    struct rank *r = arg;
    struct zc_zero *z = NULL;
    uint64_t applied;
    int rc = zc_zero_open(&z, &r->options);

    for (uint32_t u = 0; u < UNITS && rc == 0; u++) {
        struct zc_unit unit = units[u];

        unit.dtype = r->dtype;
        rc = zc_zero_add_unit(z, &unit);
    }
    if (rc == 0)
        rc = zc_zero_start(z, init, NULL);
    if (rc == 0)
        rc = zc_zero_progress(z, &r->begun, &applied);
    if (rc == 0 && r->instead)
        rc = r->instead(z, r->options.comm->rank);
    for (uint64_t step = r->begun + 1; step <= r->until && rc == 0; step++)
        rc = step_once(r, z, step);
    if (rc == 0 && !r->instead)
        rc = rank_read(r, z);
    r->rc = rc;
    (void)snprintf(r->error, sizeof(r->error), "%d: %s", rc, zc_zero_error(z));
    zc_zero_close(z, rc == 0);
    return NULL;
}

/* ---- ranks */

/* A placement and a mode. */
struct place {
    enum zc_zero_offload offload;
    enum zc_zero_stage stage;
    const char *device;
    bool any, local, alone, announce;
    enum zc_dtype dtype;
    double clip;
};

struct party {
    uint32_t world;
    struct comm_group *group;
    struct rank *ranks;
};

static void party_new(struct party *p, uint32_t world, const struct place *place,
                      const char *socket, bool freezes)
{
    p->world = world;
    p->group = comm_group_new(world, world, 2);
    p->ranks = calloc(world, sizeof(*p->ranks));
    assert_non_null(p->ranks);
    for (uint32_t r = 0; r < world; r++) {
        struct zc_zero_options *o = &p->ranks[r].options;

        zc_zero_defaults(o);
        o->comm = comm_group_rank(p->group, r);
        o->stage = place->stage;
        o->offload_optimizer = place->offload;
        o->offload_param = place->stage == ZC_STAGE_3 ? place->offload : ZC_ZERO_NONE;
        o->device = place->device;
        o->socket = socket;
        o->micro_steps = place->any ? 0 : 2;
        o->accumulate_local = place->local;
        o->gather_alone = place->alone;
        o->clip = place->clip;
        o->weight_decay[0] = 0.1;
        p->ranks[r].dtype = place->dtype;
        p->ranks[r].freezes = freezes;
        p->ranks[r].announces = place->announce;
        p->ranks[r].until = STEPS;
    }
}

static void party_run(struct party *p)
{
    for (uint32_t r = 0; r < p->world; r++)
        assert_int_equal(pthread_create(&p->ranks[r].thread, NULL, rank_run, &p->ranks[r]), 0);
    for (uint32_t r = 0; r < p->world; r++)
        assert_int_equal(pthread_join(p->ranks[r].thread, NULL), 0);
}

static void party_ran(struct party *p, const char *what)
{
    party_run(p);
    for (uint32_t r = 0; r < p->world; r++)
        if (p->ranks[r].rc < 0)
            fail_msg("%s, rank %u of %u: %s", what, r, p->world, p->ranks[r].error);
}

static void party_done(struct party *p)
{
    comm_group_free(p->group);
    free(p->ranks);
}

static void assert_same(const struct rank *a, const struct rank *b, bool norms, const char *what)
{
    for (uint32_t u = 0; u < UNITS; u++) {
        size_t bytes = units[u].elems * sizeof(float);

        if (memcmp(a->p[u], b->p[u], bytes) != 0 || memcmp(a->m[u], b->m[u], bytes) != 0 ||
            memcmp(a->v[u], b->v[u], bytes) != 0 ||
            (!b->options.device && memcmp(a->params[u], b->params[u], bytes) != 0))
            fail_msg("%s: unit '%s' differs", what, units[u].name);
        for (uint32_t t = 0; t < 2; t++)
            if (a->steps[u][t] != b->steps[u][t])
                fail_msg("%s: tensor %u of unit '%s' made %llu steps, not %llu", what, t,
                         units[u].name, (unsigned long long)b->steps[u][t],
                         (unsigned long long)a->steps[u][t]);
    }
    assert_memory_equal(a->norm, b->norm, sizeof(a->norm));
    if (norms)
        assert_memory_equal(a->norms, b->norms, sizeof(a->norms));
}

/* ---- the effect of freezing */

static void as_without_gradients(void **state)
{
    static const struct place places[] = {
        { ZC_ZERO_NONE, ZC_STAGE_3, NULL, true, false, false, false, ZC_F32, 0 },
        { ZC_ZERO_NONE, ZC_STAGE_3, NULL, false, false, false, false, ZC_BF16, 1 },
        { ZC_ZERO_NONE, ZC_STAGE_1, NULL, true, true, false, false, ZC_F32, 0 },
        { ZC_ZERO_NONE, ZC_STAGE_2, NULL, false, true, false, false, ZC_BF16, 0 },
        { ZC_ZERO_NONE, ZC_STAGE_DDP, NULL, true, false, false, false, ZC_F32, 1 },
        { ZC_ZERO_NONE, ZC_STAGE_3, "emulated", true, false, false, false, ZC_F32, 0 },
        { ZC_ZERO_HOST, ZC_STAGE_3, NULL, true, true, true, false, ZC_BF16, 0 },
        { ZC_ZERO_HOST, ZC_STAGE_2, NULL, false, false, false, false, ZC_F32, 1 },
        { ZC_ZERO_NVME, ZC_STAGE_3, NULL, true, false, true, false, ZC_BF16, 1 },
        { ZC_ZERO_NVME, ZC_STAGE_3, NULL, false, false, false, true, ZC_BF16, 0 },
        { ZC_ZERO_NVME, ZC_STAGE_1, NULL, false, true, false, true, ZC_F32, 0 },
        { ZC_ZERO_NVME, ZC_STAGE_3, NULL, true, false, false, false, ZC_F32,
          1 }, /* gradients, too */
    };
    struct real_daemon large, small, tiny;
    char what[64];

    (void)state;
    real_daemon_start(&large, "--host-bytes", "64M");
    real_daemon_start(&small, "--host-bytes", "3M");
    real_daemon_start(&tiny, "--host-bytes", "1500K");
    for (size_t i = 0; i < ZB_COUNT(places); i++)
        for (uint32_t world = 1; world <= (i == ZB_COUNT(places) - 1 ? 1 : RANKS); world++) {
            const struct place *place = &places[i];
            struct place plain = *place;
            const char *at = place->offload != ZC_ZERO_NVME ? large.socket
                             : i == ZB_COUNT(places) - 1    ? tiny.socket
                                                            : small.socket;
            struct party want, is;

            (void)snprintf(what, sizeof(what), "place %zu, %u ranks", i, world);
            plain.offload = ZC_ZERO_NONE;
            plain.device = NULL;
            plain.alone = plain.announce = false;
            party_new(&want, world, &plain, NULL, false);
            party_ran(&want, what);
            party_new(&is, world, place, at, true);
            party_ran(&is, what);
            for (uint32_t r = 0; r < world; r++)
                assert_same(&want.ranks[r], &is.ranks[r], !place->announce, what);
            assert_int_equal(is.ranks[0].steps[2][0], STEPS - 4);
            party_done(&want);
            party_done(&is);
        }
    real_daemon_stop(&large);
    real_daemon_stop(&small);
    real_daemon_stop(&tiny);
}

/* ---- what a frozen unit moves */

/* A step in which only the units of `trained` (bits) are trained, and nothing is gathered. Adds what
 * the daemon reads and writes meanwhile. */
static int step_of(struct zc_zero *z, uint32_t trained, uint64_t step, uint64_t moved[2])
{
    struct zc_zero_stepped stepped;
    struct zc_zero_stats before, after;
    int rc = zc_zero_stats(z, &before);

    for (uint32_t u = 0; u < UNITS && rc == 0; u++)
        if (!units[u].frozen)
            rc = zc_zero_freeze(z, u, !(trained >> u & 1));
    if (rc == 0)
        rc = zc_zero_micro(z, true);
    for (uint32_t u = UNITS; u-- > 0 && rc == 0;)
        if (!units[u].frozen && (trained >> u & 1) && (rc = grad_add(z, u, step, 0, 0)) == 0)
            rc = zc_zero_reduce(z, u);
    if (rc == 0)
        rc = zc_zero_micro_end(z);
    if (rc == 0)
        rc = zc_zero_step(z, 0.01, &stepped);
    if (rc == 0)
        rc = zc_zero_stats(z, &after);
    moved[0] = after.nvme_read_bytes - before.nvme_read_bytes;
    moved[1] = after.nvme_written_bytes - before.nvme_written_bytes;
    return rc;
}

/* Steps move the bytes of what they train, and no others: those of two halves are those of the whole.
 * -EDOM: it held. */
static int steps_of_halves(struct zc_zero *z, uint32_t rank)
{
    const uint32_t all = (1u << UNITS) - 1, small = 1u << 3;
    uint64_t whole[2], one[2], rest[2];
    int rc = step_of(z, all, 1, whole);

    (void)rank;
    if (rc == 0)
        rc = step_of(z, all, 2, whole); /* the first one also reads nothing that is absent */
    if (rc == 0)
        rc = step_of(z, small, 3, one);
    if (rc == 0)
        rc = step_of(z, all & ~small, 4, rest);
    for (int i = 0; i < 2 && rc == 0; i++) {
        if (one[i] == 0 || one[i] > whole[i] / 20 || one[i] + rest[i] != whole[i]) {
            print_error("%s: all %llu, head %llu, the rest %llu bytes\n",
                        i == 0 ? "read" : "written", (unsigned long long)whole[i],
                        (unsigned long long)one[i], (unsigned long long)rest[i]);
            return -EPROTO;
        }
    }
    return rc < 0 ? rc : -EDOM;
}

static void a_frozen_unit_moves_no_byte(void **state)
{
    static const struct place place = { ZC_ZERO_NVME, ZC_STAGE_3, NULL,   true, false,
                                        false,        false,      ZC_F32, 0 };
    struct real_daemon tiny;
    struct party p;

    (void)state;
    real_daemon_start(&tiny, "--host-bytes", "1500K");
    party_new(&p, 1, &place, tiny.socket, true);
    p.ranks[0].instead = steps_of_halves;
    p.ranks[0].until = 0;
    party_run(&p);
    if (p.ranks[0].rc != -EDOM)
        fail_msg("%s", p.ranks[0].error);
    party_done(&p);
    real_daemon_stop(&tiny);
}

/* The declaration is kept, and the step counts. */
static void a_resumed_job_freezes_again(void **state)
{
    static const struct place place = { ZC_ZERO_HOST, ZC_STAGE_3, NULL,   true, false,
                                        false,        false,      ZC_F32, 0 };
    static const struct place plain = { ZC_ZERO_NONE, ZC_STAGE_3, NULL,   true, false,
                                        false,        false,      ZC_F32, 0 };
    struct real_daemon d;
    struct party want, is;

    (void)state;
    real_daemon_start(&d, "--host-bytes", "64M");
    party_new(&want, 2, &plain, NULL, false);
    party_ran(&want, "plain");
    for (int life = 0; life < 2; life++) {
        party_new(&is, 2, &place, d.socket, true);
        for (uint32_t r = 0; r < 2; r++) {
            struct zc_zero_options *o = &is.ranks[r].options;

            o->job = "kept";
            o->keep = o->durable = true;
            o->commit_every = 2;
            o->resume = life > 0;
            is.ranks[r].until = life == 0 ? 4 : STEPS;
        }
        party_ran(&is, life == 0 ? "begun" : "resumed");
        if (life == 1) {
            assert_int_equal(is.ranks[0].begun, 4);
            for (uint64_t s = 1; s <= 4; s++) { /* of the first life */
                is.ranks[0].norm[s] = want.ranks[0].norm[s];
                memcpy(is.ranks[0].norms[s], want.ranks[0].norms[s], sizeof(is.ranks[0].norms[s]));
            }
            assert_same(&want.ranks[0], &is.ranks[0], true, "resumed");
        }
        party_done(&is);
    }
    party_done(&want);
    real_daemon_stop(&d);
}

/* ---- what is refused */

#define WANT(call, code, text)                                                              \
    do {                                                                                    \
        int got_ = (call);                                                                  \
                                                                                            \
        if (got_ != (code) || !strstr(zc_zero_error(z), text)) {                            \
            print_error("%s: %d, '%s', not '%s'\n", #call, got_, zc_zero_error(z), (text)); \
            return -EPROTO;                                                                 \
        }                                                                                   \
    } while (0)

static int wrong_calls(struct zc_zero *z, uint32_t rank)
{
    struct zc_zero_stepped stepped;
    float *g, x[4];

    (void)rank;
    WANT(zc_zero_freeze(z, UNITS, true), -EINVAL, "unit 16 does not exist: there are 16");
    WANT(zc_zero_freeze(z, 1, false), -ENOTSUP, "'table' was declared frozen");
    WANT(zc_zero_freeze(z, 1, true), 0, ""); /* it is frozen */
    WANT(zc_zero_freeze(z, 2, true), 0, "");
    WANT(zc_zero_freeze(z, 2, true), 0, "");
    WANT(zc_zero_micro(z, true), 0, "");
    WANT(zc_zero_grad(z, 2, &g), -EINVAL, "'block' is frozen: it has no gradient");
    WANT(zc_zero_grad_add(z, 2, 0, 4, ZC_F32, x), -EINVAL, "is frozen");
    WANT(zc_zero_reduce(z, 2), -EINVAL, "is frozen");
    WANT(zc_zero_freeze(z, 2, false), -EBUSY, "in the middle of a step");
    WANT(zc_zero_grad(z, 0, &g), 0, "");
    WANT(zc_zero_reduce(z, 0), 0, "");
    WANT(zc_zero_micro_end(z), 0, "");
    WANT(zc_zero_freeze(z, 3, true), -EBUSY, "in the middle of a step");
    WANT(zc_zero_read_on(z, -1, 2, ZC_GRAD, 0, 4, ZC_F32, x), -EINVAL, "is frozen");
    WANT(zc_zero_step(z, 0.1, &stepped), 0, "");
    WANT(zc_zero_freeze(z, 0, true), 0, "");
    for (uint32_t u = 3; u < UNITS; u++)
        WANT(zc_zero_freeze(z, u, true), 0, "");
    WANT(zc_zero_micro(z, true), 0, "");
    WANT(zc_zero_micro_end(z), 0, "");
    WANT(zc_zero_step(z, 0.1, &stepped), -EINVAL, "every unit is frozen");
    WANT(zc_zero_abandon(z), 0, "");
    WANT(zc_zero_freeze(z, 3, false), 0, "");
    return 0;
}

static int one_is_busy(struct zc_zero *z, uint32_t rank)
{
    float *g;

    WANT(zc_zero_micro(z, true), 0, "");
    WANT(zc_zero_micro_end(z), 0, "");
    WANT(zc_zero_abandon(z), 0, "");
    if (rank == 1)
        WANT(zc_zero_micro(z, true), 0, "");
    WANT(zc_zero_freeze(z, 0, true), -EBUSY,
         rank == 1 ? "in the middle of a step" : "rank 1 cannot freeze unit 0 'dense' now");
    if (rank != 1)
        WANT(zc_zero_micro(z, true), 0, "");
    WANT(zc_zero_grad(z, 0, &g), 0, "");
    return 0;
}

static int they_differ(struct zc_zero *z, uint32_t rank)
{
    WANT(zc_zero_freeze(z, 2, true), 0, "");
    WANT(zc_zero_freeze(z, rank == 1 ? 2 : 0, rank != 1), -EINVAL,
         "rank 1 unfreezes unit 2 where rank 0 freezes unit 0");
    WANT(zc_zero_freeze(z, 2, true), -EINVAL, "rank 1 unfreezes");
    return zc_zero_failed(z) ? -EDOM : -EPROTO;
}

/* One of the ranks makes another call. */
static int other_calls(struct zc_zero *z, uint32_t rank)
{
    double x = 1;
    int rc = rank == 1 ? zc_zero_sum(z, &x, 1) : zc_zero_freeze(z, 2, true);

    if (rc == 0 || !strstr(zc_zero_error(z), "freezes a unit"))
        print_error("%d: %s\n", rc, zc_zero_error(z));
    return rc == -EINVAL && strstr(zc_zero_error(z), "freezes a unit") ? -EDOM : -EPROTO;
}

static void refused_on_all(void **state)
{
    static const struct place place = { .stage = ZC_STAGE_3, .any = true, .dtype = ZC_F32 };
    static const struct {
        int (*instead)(struct zc_zero *z, uint32_t rank);
        int rc;
        uint32_t world;
    } cases[] = {
        { wrong_calls, 0, 1 },     { wrong_calls, 0, 2 },     { one_is_busy, 0, 3 },
        { they_differ, -EDOM, 3 }, { other_calls, -EDOM, 2 },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct party p;

        party_new(&p, cases[i].world, &place, NULL, true);
        for (uint32_t r = 0; r < p.world; r++) {
            p.ranks[r].instead = cases[i].instead;
            p.ranks[r].until = 0;
        }
        party_run(&p);
        for (uint32_t r = 0; r < p.world; r++)
            if (p.ranks[r].rc != cases[i].rc)
                fail_msg("case %zu, rank %u of %u: %s", i, r, p.world, p.ranks[r].error);
        party_done(&p);
    }
}

static int setup(void **state)
{
    for (uint32_t u = 4; u < UNITS; u++) {
        units[u] = units[2];
        units[u].index = u;
        (void)snprintf(names[u], sizeof(names[u]), "block%u", u);
        units[u].name = names[u];
    }
    return real_daemon_setup(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_without_gradients),
        cmocka_unit_test(a_frozen_unit_moves_no_byte),
        cmocka_unit_test(a_resumed_job_freezes_again),
        cmocka_unit_test(refused_on_all),
    };

    return cmocka_run_group_tests(tests, setup, real_daemon_teardown);
}
