/*
 * Collectives between devices: comm_nccl.c with a fake libnccl (fake_nccl.h), on the emulated GPU,
 * which is late, with streams as the only order. The trainer's numbers must be those of collectives
 * in host memory, bit for bit. Then every way in which NCCL fails: each ends the run on every rank,
 * in time, with an error message.
 */
#include "tests/ztest.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/plan.h"
#include "base/util.h"
#include "client/zero/comm/comm_priv.h"
#include "comm_threads.h"
#include "fake_client.h"
#include "fake_nccl.h"
#include "model.h"
#include "odd.h"

#define RANKS_MAX 4

struct setting {
    const char *name;
    uint32_t world;
    enum zc_dtype dtype;
    uint32_t prefetch, micro_steps, delay_max;
    const char *device; /* NULL: none */
    uint32_t timeout_ms;
    enum zc_zero_offload offload; /* to the fake daemon, whose ring has three pins a rank */
    uint32_t below_3;             /* stage 3 minus this */
    uint32_t group;               /* ranks of a group; 0: all */
};

struct party;

struct member {
    struct party *party;
    uint32_t rank;
    struct run run;
    char socket[16];
};

struct party {
    uint32_t world;
    bool nccl;
    struct comm_group *group;
    struct member members[RANKS_MAX];
};

static enum zc_node_gather gather; /* of all runs */
static bool gather_once;           /* each unit once in a micro-step */

static struct fake_nccl *fake; /* in the library that comm_nccl.c loads */

static void *member_run(void *arg)
{
    struct member *m = arg;
    struct zc_comm *comm = comm_group_rank(m->party->group, m->rank);
    struct zb_err err = { 0 };

    m->run.rc = m->party->nccl ? zc_nccl_open(&comm, comm, &err) : 0;
    if (m->run.rc != 0) {
        (void)snprintf(m->run.error, sizeof(m->run.error), "%s", err.text);
        model_values_new(&m->run.values);
        return NULL;
    }
    m->run.options.comm = comm;
    run_train(&m->run);
    zc_comm_close(comm, m->run.rc == 0);
    return NULL;
}

/* What is kept in codes: gathered parameters, made by the device's kernels; frozen units. */
enum { GATHERED = 1, KEPT = 2 };

static void party_run_as(struct party *p, const struct setting *s, const char *device, bool nccl,
                         unsigned codes)
{
    pthread_t threads[RANKS_MAX];

    struct fake_config daemon = { .page_elems = ZB_BLOCK_ELEMS, .ring = true, .delay_max = 3 };

    memset(p, 0, sizeof(*p));
    fake_reset(&daemon);
    p->world = s->world;
    p->nccl = nccl;
    p->group = comm_group_new(s->world, 7, s->delay_max);
    for (uint32_t r = 0; r < s->world; r++) {
        struct run *run = &p->members[r].run;

        p->members[r].party = p;
        p->members[r].rank = r;
        run->dtype = s->dtype;
        run->steps = 3;
        run->abort = p->group;
        zc_zero_defaults(&run->options);
        run->options.groups = 2;
        run->options.weight_decay[0] = 0.1;
        run->options.eps = 1e-3;
        run->options.clip = 1;
        run->options.micro_steps = s->micro_steps;
        run->options.prefetch_units = s->prefetch;
        run->options.timeout_ms = s->timeout_ms ? s->timeout_ms : 100000;
        run->options.device = device;
        run->options.quantize_gather = codes & GATHERED;
        run->quantized = codes & KEPT;
        run->options.group_ranks = s->group;
        run->options.node_gather = gather;
        run->options.keep_gathered = gather_once;
        run->options.stage = (enum zc_zero_stage)(ZC_STAGE_3 - s->below_3);
        run->options.offload_optimizer = s->offload;
        run->options.offload_param = s->below_3 > 0 ? ZC_ZERO_NONE : s->offload;
        (void)snprintf(p->members[r].socket, sizeof(p->members[r].socket), "rank %u", r);
        run->options.socket = p->members[r].socket;
    }
    for (uint32_t r = 0; r < s->world; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, member_run, &p->members[r]), 0);
    for (uint32_t r = 0; r < s->world; r++)
        pthread_join(threads[r], NULL);
}

static void party_run(struct party *p, const struct setting *s, const char *device, bool nccl)
{
    party_run_as(p, s, device, nccl, 0);
}

static void party_done(struct party *p)
{
    for (uint32_t r = 0; r < p->world; r++)
        run_done(&p->members[r].run);
    comm_group_free(p->group);
    fake_end();
}

/* ---- its purpose */

static void the_bits_are_those_of_the_host(void **state)
{
    static const struct setting settings[] = {
        { "two", 2, ZC_F32, 1, 1, 0, "emulated", 0, ZC_ZERO_NONE, 0, 0 },
        { "two, late", 2, ZC_BF16, 2, 2, 3, "emulated:256M:100", 0, ZC_ZERO_NONE, 0, 0 },
        { "three, fp16", 3, ZC_F16, 1, 1, 3, "emulated:256M:50", 0, ZC_ZERO_NONE, 0, 0 },
        { "three, fp32, late", 3, ZC_F32, 2, 2, 0, "emulated:256M:100", 0, ZC_ZERO_NONE, 0, 0 },
        { "three, nothing ahead", 3, ZC_BF16, 0, 1, 2, "emulated:256M:200", 0, ZC_ZERO_NONE, 0, 0 },
        { "four", 4, ZC_BF16, 4, 1, 1, "emulated", 0, ZC_ZERO_NONE, 0, 0 },
        { "two, streamed", 2, ZC_BF16, 4, 2, 2, "emulated:256M:100", 0, ZC_ZERO_NVME, 0, 0 },
        { "three, streamed", 3, ZC_F32, 2, 1, 0, "emulated", 0, ZC_ZERO_NVME, 0, 0 },
        { "stage 2", 3, ZC_BF16, 1, 2, 2, "emulated:256M:100", 0, ZC_ZERO_NONE, 1, 0 },
        { "stage 2, offloaded", 2, ZC_F32, 1, 2, 0, "emulated", 0, ZC_ZERO_HOST, 1, 0 },
        { "stage 1", 2, ZC_F32, 1, 2, 2, "emulated:256M:100", 0, ZC_ZERO_NONE, 2, 0 },
        { "stage 1, bf16", 4, ZC_BF16, 0, 1, 2, "emulated", 0, ZC_ZERO_NONE, 2, 0 },
        { "ddp", 2, ZC_F32, 1, 1, 0, "emulated:256M:100", 0, ZC_ZERO_NONE, 3, 0 },
        { "ddp, bf16", 3, ZC_BF16, 1, 2, 2, "emulated:256M:100", 0, ZC_ZERO_NONE, 3, 0 },
        { "ddp, fp16", 4, ZC_F16, 1, 1, 1, "emulated", 0, ZC_ZERO_NONE, 3, 0 },
        { "groups", 4, ZC_F32, 1, 2, 2, "emulated:256M:50", 0, ZC_ZERO_NONE, 0, 2 },
        { "groups, bf16", 4, ZC_BF16, 2, 1, 1, "emulated:256M:100", 0, ZC_ZERO_NONE, 0, 2 },
    };

    (void)state;
    for (size_t i = 0; i < 2 * ZB_COUNT(settings); i++) {
        const struct setting *s = &settings[i / 2];
        unsigned codes = i % 2 ? 1 + (unsigned)(i / 2 % 3) : 0;
        struct party host, device;
        uint32_t comms;

        if (codes && s->below_3 > 0)
            continue;
        *fake = (struct fake_nccl){ 0 };
        party_run_as(&host, s, NULL, false, codes);
        assert_int_equal(fake->started, 0);
        party_run_as(&device, s, s->device, true, codes);
        for (uint32_t r = 0; r < s->world; r++) {
            const struct run *a = &host.members[r].run, *b = &device.members[r].run;

            if (a->rc != 0 || b->rc != 0)
                fail_msg("%s, rank %u: %s; %s", s->name, r, a->error, b->error);
            assert_runs_same(s->name, a, b);
            assert_int_equal(a->stats.comm_bytes, b->stats.comm_bytes);
            assert_true(b->stats.device_bytes > 0);
            /* neither a whole unit nor a whole gradient is ever in host memory */
            assert_int_equal(b->stats.gather_buffer_bytes, 0);
            assert_true(b->stats.grad_buffer_bytes < a->stats.grad_buffer_bytes);
        }
        assert_true(fake->started > 0);
        comms = s->world * (s->group > 0 ? 2 : 1);
        assert_int_equal(fake->opened, comms);
        assert_int_equal(fake->finalized, comms);
        assert_int_equal(fake->destroyed, comms);
        assert_int_equal(fake->aborted, 0);
        party_done(&host);
        party_done(&device);
    }
}

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Gathers of one node, by NCCL and from the daemon's host memory: the same bits. With R ranks, P
 * bytes as stored, and S in equal slices:
 *
 *     NCCL         all ranks together copy P up, and each sends S (R - 1)/R. Through host memory,
 *                  this is P + 2 (R - 1) S of it: with whole slices (2 R - 1) P
 *     host memory  each rank copies P up: R P of host memory */
static void bytes_of_a_node(void **state)
{
    static const struct setting s = {
        "node", 3, ZC_BF16, 0, 1, 0, "emulated", 0, ZC_ZERO_HOST, 0, 0
    };
    uint64_t stored = 0, sliced = 0, up[2] = { 0 }, sent[2] = { 0 };
    struct party p[2];

    (void)state;
    *fake = (struct fake_nccl){ 0 };
    for (uint32_t u = 0; u < MODEL_UNITS; u++) {
        stored += round_up(model_units[u].elems, ZB_BLOCK_ELEMS) * sizeof(uint16_t);
        sliced += round_up(round_up(model_units[u].elems, s.world) / s.world, ZB_BLOCK_ELEMS) *
                  s.world * sizeof(uint16_t);
    }
    gather_once = true;
    for (int i = 0; i < 2; i++) {
        gather = i == 0 ? ZC_NODE_GATHER_COMM : ZC_NODE_GATHER_HOST;
        party_run(&p[i], &s, s.device, true);
        for (uint32_t r = 0; r < s.world; r++) {
            if (p[i].members[r].run.rc != 0)
                fail_msg("rank %u: %s", r, p[i].members[r].run.error);
            up[i] += p[i].members[r].run.stats.gather_up_bytes;
            sent[i] += p[i].members[r].run.stats.comm_gather_bytes;
        }
    }
    gather = ZC_NODE_GATHER_COMM;
    gather_once = false;
    assert_runs_same(s.name, &p[0].members[0].run, &p[1].members[0].run);
    assert_int_equal(up[0], 3 * stored); /* 3 steps, each unit once in each */
    assert_int_equal(sent[0], 3 * (s.world - 1) * sliced);
    assert_int_equal(up[1], 3 * s.world * stored);
    assert_int_equal(sent[1], 0);
    party_done(&p[0]);
    party_done(&p[1]);
}

/* Without a device, or with a single rank, NCCL is not called. */
static void host_memory_needs_no_nccl(void **state)
{
    static const struct setting none = { "none", 2, ZC_BF16, 1, 1, 2, NULL, 0, ZC_ZERO_NONE, 0, 0 };
    static const struct setting alone = { "alone",    1, ZC_BF16,      1, 1, 0,
                                          "emulated", 0, ZC_ZERO_NONE, 0, 0 };
    struct party a, b;

    (void)state;
    *fake = (struct fake_nccl){ 0 };
    party_run(&a, &none, NULL, true);
    party_run(&b, &alone, "emulated", true);
    assert_int_equal(a.members[0].run.rc, 0);
    assert_int_equal(b.members[0].run.rc, 0);
    assert_int_equal(fake->opened + fake->started, 0);
    party_done(&a);
    party_done(&b);
}

/* ---- failures */

/* No rank finishes, and each reports the reason: `says`, or that another rank has ended. */
static void party_fails(const struct setting *s, int rc, const char *says)
{
    bool said = false;
    struct party p;

    party_run(&p, s, s->device, true);
    for (uint32_t r = 0; r < p.world; r++) {
        const struct run *run = &p.members[r].run;

        if (run->rc == 0 || run->error[0] == '\0')
            fail_msg("%s, rank %u: %d '%s'", s->name, r, run->rc, run->error);
        if (strstr(run->error, " of over "))
            fail_msg("%s, rank %u: of which unit? '%s'", s->name, r, run->error);
        if (run->rc == rc && strstr(run->error, says))
            said = true;
    }
    if (!said)
        fail_msg("%s: no rank says '%s' (%d): %d '%s'", s->name, says, rc, p.members[0].run.rc,
                 p.members[0].run.error);
    assert_int_equal(fake->destroyed, 0);
    assert_int_equal(fake->aborted, fake->opened);
    party_done(&p);
}

static void each_collective_may_be_refused(void **state)
{
    static const struct setting s = { "refused",  2, ZC_BF16,      1, 1, 1,
                                      "emulated", 0, ZC_ZERO_NONE, 0, 0 };
    uint32_t n, all;
    struct party p;

    (void)state;
    *fake = (struct fake_nccl){ 0 };
    party_run(&p, &s, s.device, true);
    all = fake->started;
    party_done(&p);
    for (n = 1; n <= all; n += 1 + n / 4) {
        *fake = (struct fake_nccl){ .refuse_at = n };
        party_fails(&s, -EIO, "over 'nccl': nccl");
    }
    assert_true(n > 20);
}

/* The device fails after a number of works, at any place: each rank that ends for it has an error
 * message.
 */
static void a_device_that_fails_says_why(void **state)
{
    uint32_t failed = 0;

    (void)state;
    for (uint32_t below_3 = 0; below_3 <= 3; below_3 += 3)
        for (uint32_t works = 30; works < 400; works += 11) {
            char device[32];
            const struct setting s = { "fails", 2, ZC_F32, 1, 1, 0, device, 100000, 0, below_3, 0 };
            struct party p;

            (void)snprintf(device, sizeof(device), "emulated:256M:0:%u", works);
            *fake = (struct fake_nccl){ 0 };
            party_run(&p, &s, device, true);
            for (uint32_t r = 0; r < 2; r++) {
                const struct run *run = &p.members[r].run;
                size_t n = strlen(run->error);

                failed += run->rc != 0;
                if (n >= 2 && strcmp(run->error + n - 2, ": ") == 0)
                    fail_msg("%u works, rank %u: %d '%s'", works, r, run->rc, run->error);
            }
            party_done(&p);
        }
    assert_true(failed > 40);
}

static void a_lost_peer_is_seen(void **state)
{
    static const struct setting s = { "lost",       3, ZC_F32, 1, 1, 0, "emulated:256M:100", 0,
                                      ZC_ZERO_NONE, 0, 0 };

    (void)state;
    for (uint32_t n = 1; n < 40; n += 7) {
        *fake = (struct fake_nccl){ .lose_at = n };
        party_fails(&s, -EOWNERDEAD, "remote process exited");
    }
}

static void what_never_ends_is_given_up(void **state)
{
    static const struct setting s = { "hangs",    2,   ZC_BF16,      1, 1, 0,
                                      "emulated", 300, ZC_ZERO_NONE, 0, 0 };

    (void)state;
    for (uint32_t n = 1; n < 30; n += 9) {
        *fake = (struct fake_nccl){ .hang_at = n };
        party_fails(&s, -ETIMEDOUT, "nothing moved for");
    }
    *fake = (struct fake_nccl){ .hang_open = true };
    party_fails(&s, -ETIMEDOUT, "NCCL did not finish within 300 ms");
}

static void what_cannot_begin_is_said(void **state)
{
    static const struct setting s = { "begin",    2, ZC_BF16,      1, 1, 0,
                                      "emulated", 0, ZC_ZERO_NONE, 0, 0 };
    char *lib = strdup(getenv("ZSHARD_NCCL_LIB"));

    (void)state;
    assert_non_null(lib);
    *fake = (struct fake_nccl){ .version = 21300 };
    party_fails(&s, -ENOTSUP, "is version 21300, below");
    *fake = (struct fake_nccl){ .refuse_id = true };
    party_fails(&s, -EIO, "rank 0: ncclGetUniqueId");
    *fake = (struct fake_nccl){ 0 };
    assert_int_equal(setenv("ZSHARD_NCCL_LIB", "/nowhere/libnccl.so.2", 1), 0);
    party_fails(&s, -ENOTSUP, "/nowhere/libnccl.so.2");
    assert_int_equal(setenv("ZSHARD_NCCL_LIB", "libm.so.6", 1), 0);
    party_fails(&s, -ENOTSUP, "'libm.so.6' has no ncclGetVersion");
    assert_int_equal(setenv("ZSHARD_NCCL_LIB", FAKE_NCCL_PLAIN, 1), 0);
    party_fails(&s, -EINVAL, "NCCL needs CUDA devices, not 'emulated'");
    assert_int_equal(setenv("ZSHARD_NCCL_LIB", lib, 1), 0);
    free(lib);
}

/* ---- ranks that make different calls */

struct odd_rank {
    struct comm_group *group;
    uint32_t rank;
    struct odd of;
};

static void *odd_run(void *arg)
{
    struct odd_rank *r = arg;
    struct odd *o = &r->of;
    struct zb_err err = { 0 };

    o->options.comm = comm_group_rank(r->group, r->rank);
    o->rc = zc_nccl_open(&o->options.comm, o->options.comm, &err);
    if (o->rc != 0)
        return NULL;
    odd_train(o);
    zc_comm_close(o->options.comm, o->rc == 0);
    return NULL;
}

/* NCCL does not say what its collectives carry. If lengths are equal, the next vote finds the
 * difference. Otherwise the collective never ends, and the ranks then compare their calls. */
static void other_calls_are_told(void **state)
{
    static const struct {
        enum odd_call call;
        enum zc_zero_stage stage;
        uint32_t group;
        const char *says;
    } cases[] = {
        { ODD_NONE, ZC_STAGE_3, 0, "" },
        { ODD_GATHERS, ZC_STAGE_3, 0, "rank 1 gathers 'fc2' where rank 0 gathers 'fc1' (step 2)" },
        { ODD_GATHERS, ZC_STAGE_2, 0, "rank 1 gathers 'fc2' where rank 0 gathers 'fc1' (step 2)" },
        { ODD_REDUCES, ZC_STAGE_1, 0, "rank 1 reduces 'fc1' where rank 0 reduces 'fc2' (step 2)" },
        { ODD_REDUCES, ZC_STAGE_DDP, 0,
          "rank 1 reduces 'fc1' where rank 0 reduces 'fc2' (step 2)" },
        { ODD_LENGTH, ZC_STAGE_3, 0, "rank 1 gathers 'out' where rank 0 gathers 'fc2' (step 2)" },
        { ODD_REDUCES, ZC_STAGE_3, 2, "rank 1 reduces 'fc1' where rank 0 reduces 'fc2' (step 2)" },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases) * 2; i++) {
        uint32_t world = cases[i / 2].group ? 4 : 2 + i % 2;
        struct comm_group *group = comm_group_new(world, i, 1);
        struct odd_rank ranks[RANKS_MAX] = { 0 };
        pthread_t threads[RANKS_MAX];

        *fake = (struct fake_nccl){ 0 };
        for (uint32_t r = 0; r < world; r++) {
            struct odd *o = &ranks[r].of;

            ranks[r].group = group;
            ranks[r].rank = r;
            *o = (struct odd){ .dtype = ZC_F32, .call = cases[i / 2].call, .rank = 1, .step = 2 };
            zc_zero_defaults(&o->options);
            o->options.stage = cases[i / 2].stage;
            o->options.group_ranks = cases[i / 2].group;
            o->options.device = "emulated";
            o->options.prefetch_units = 0;
            o->options.timeout_ms = cases[i / 2].call == ODD_LENGTH ? 2000 : 100000;
            assert_int_equal(pthread_create(&threads[r], NULL, odd_run, &ranks[r]), 0);
        }
        for (uint32_t r = 0; r < world; r++)
            pthread_join(threads[r], NULL);
        for (uint32_t r = 0; r < world; r++) {
            const struct odd *o = &ranks[r].of;

            if (o->rc != (i < 2 ? 0 : -EINVAL) || strcmp(o->error, cases[i / 2].says) != 0 ||
                o->applied != (i < 2 ? ODD_STEPS : 1))
                fail_msg("case %zu, rank %u of %u: %d in step %llu: %s", i, r, world, o->rc,
                         (unsigned long long)o->failed_in, o->error);
        }
        assert_true(fake->started > 0);
        comm_group_free(group);
    }
}

/* The way a trainer opens it. */
static void is_opened_by_name(void **state)
{
    struct zc_comm *comm;
    char why[512];

    (void)state;
    assert_int_equal(unsetenv("RANK"), 0);
    assert_int_equal(zc_comm_open(&comm, "nccl", why, sizeof(why)), 0);
    assert_string_equal(comm->ops->name, "nccl");
    assert_int_equal(comm->world, 1);
    zc_comm_close(comm, true);
    assert_int_equal(setenv("ZSHARD_COMM", "nccl", 1), 0);
    assert_int_equal(zc_comm_open(&comm, "auto", why, sizeof(why)), 0);
    assert_string_equal(comm->ops->name, "nccl");
    zc_comm_close(comm, true);
    assert_int_equal(setenv("ZSHARD_COMM", "pigeon", 1), 0);
    assert_int_equal(zc_comm_open(&comm, "auto", why, sizeof(why)), -ENOENT);
    assert_non_null(strstr(why, "pigeon"));
    assert_int_equal(zc_comm_open(&comm, "self", why, sizeof(why)), 0);
    zc_comm_close(comm, true);
    assert_int_equal(unsetenv("ZSHARD_COMM"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_of_the_host),
        cmocka_unit_test(bytes_of_a_node),
        cmocka_unit_test(host_memory_needs_no_nccl),
        cmocka_unit_test(each_collective_may_be_refused),
        cmocka_unit_test(a_device_that_fails_says_why),
        cmocka_unit_test(a_lost_peer_is_seen),
        cmocka_unit_test(what_never_ends_is_given_up),
        cmocka_unit_test(what_cannot_begin_is_said),
        cmocka_unit_test(other_calls_are_told),
        cmocka_unit_test(is_opened_by_name),
    };
    static const char *const launchers[] = { "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK",
                                             "MPI_LOCALRANKID" };
    void *library = dlopen(FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);

    for (size_t i = 0; i < ZB_COUNT(launchers); i++)
        (void)unsetenv(launchers[i]);
    fake = library ? dlsym(library, "fake_nccl") : NULL;
    if (!fake || setenv("ZSHARD_NCCL_LIB", FAKE_NCCL, 1) < 0) {
        print_error("%s cannot be loaded\n", FAKE_NCCL);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
