/*
 * Memory near GPUs: which ranges of a job get which NUMA node. The kernel's function is replaced by
 * one that records, because a machine with several nodes is not needed to know what was asked for.
 */
#include "tests/unit/daemon/core_fixture.h"

#include "tests/ztest.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"

#define HOST  (64u << 20)
#define BINDS 16u

/* linux/mempolicy.h, which not every system has installed */
#define POLICY_PREFERRED 1
#define POLICY_OF_ADDR   2

static struct {
    struct bind {
        uint8_t *memory;
        uint64_t bytes;
        int node;
    } of[BINDS];
    unsigned n;
    int rc; /* what the kernel answers */
} binds;

/* On a compute thread; only one of them allocates at a time here. */
static int record(void *arg, void *memory, uint64_t bytes, int node)
{
    unsigned char resident[1] = { 0 };

    (void)arg;
    assert_true(binds.n < BINDS);
    if (mincore(memory, 4096, resident) == 0) /* shared memory: not allocated yet */
        assert_int_equal(resident[0] & 1, 0);
    binds.of[binds.n++] = (struct bind){ memory, bytes, node };
    return binds.rc;
}

static bool bound(const uint8_t *memory, uint64_t bytes, int node)
{
    for (unsigned i = 0; i < binds.n; i++)
        if (binds.of[i].memory == memory && binds.of[i].bytes == bytes && binds.of[i].node == node)
            return true;
    return false;
}

static void near_open(struct world *w, bool on, int rc)
{
    memset(&binds, 0, sizeof(binds));
    binds.rc = rc;
    world_open(w, HOST, NULL, 2);
    w->daemon.near = (struct zsd_near){ .on = on, .bind = record };
}

/* Units of two ranks, which register them one by one, in turns. */
static void near_register(struct world *w)
{
    for (uint32_t u = 0; u < UNITS; u++)
        for (unsigned c = 0; c < 2; c++) {
            const struct unit unit = { .name = (const char[]){ (char)('a' + (int)u), '\0' },
                                       .elems = unit_elems[u],
                                       .dtype = ZB_BF16,
                                       .grad_dtype = ZB_F32,
                                       .tensors = { { .count = unit_elems[u] } },
                                       .ntensors = 1 };

            assert_int_equal(unit_define(w, c, u, &unit), 0);
        }
    for (uint32_t u = 0; u < UNITS; u++) {
        struct client *c = &w->clients[u % 2];

        memset(c->count, 0, sizeof(c->count));
        c->count[u] = zb_padded_elems(unit_elems[u]);
        assert_int_equal(shards_register(w, u % 2, UNITS), 0);
    }
}

/* A job of two ranks, near these nodes, 0: not known. */
static struct zsd_job *near_job(struct world *w, const uint32_t nodes[2])
{
    for (uint32_t rank = 0; rank < 2; rank++) {
        const struct open_args args = { .rank = rank, .world = 2, .device_node = nodes[rank] };

        assert_int_equal(job_open_with(w, rank, &args), 0);
    }
    near_register(w);
    for (unsigned c = 0; c < 2; c++)
        job_ready_ask(w, c, c);
    for (unsigned c = 0; c < 2; c++)
        assert_int_equal(answer(w, c), 0);
    return job_of(w, 0);
}

/* The parameters and gradients of a rank are one range each, which holds nothing else. */
static void ranges_are_whole(const struct zsd_job *job)
{
    uint64_t params = 0, grads = 0, own[2] = { 0 }, own_grads[2] = { 0 };

    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];
        const struct zsd_rank *rank = &job->ranks[s->rank];
        uint64_t at = (uint64_t)(s->planes[ZB_PARAM].mem - job->arena.base);
        uint64_t grad = (uint64_t)(s->planes[ZB_GRAD].mem - job->memory);

        assert_true(at >= rank->arena_at &&
                    at + zsd_param_bytes(s) <= rank->arena_at + rank->arena_bytes);
        assert_true(grad >= rank->grads_at && grad < rank->grads_at + rank->grads_bytes);
        own[s->rank] += zsd_param_bytes(s);
        own_grads[s->rank] += s->count * sizeof(float);
    }
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(job->ranks[r].arena_bytes, own[r]);
        assert_int_equal(job->ranks[r].grads_bytes, own_grads[r]);
        params += own[r];
        grads += own_grads[r];
    }
    assert_int_equal(params, job->arena_bytes);
    assert_int_equal(grads, job->memory_bytes - job->replan->all_bytes);
    assert_int_equal(job->ranks[0].arena_at + job->ranks[0].arena_bytes, job->ranks[1].arena_at);
}

/* What the rank learns: where its own parameters are. */
static void rank_knows(const struct world *w, unsigned c, int node)
{
    const struct zsd_rank *rank = &job_of((struct world *)(uintptr_t)w, c)->ranks[c];
    Zp__ReadyReply *r = zp__ready_reply__unpack(NULL, answers[c].len, answers[c].bytes);

    assert_non_null(r);
    assert_int_equal(r->own_at, rank->arena_at);
    assert_int_equal(r->own_bytes, rank->arena_bytes);
    assert_int_equal(r->node, node + 1);
    zp__ready_reply__free_unpacked(r, NULL);
}

static void memory_is_near_the_rank(void **state)
{
    static const uint32_t nodes[2] = { 4, 1 };
    struct zsd_job *job;
    uint64_t all;
    struct world w;

    (void)state;
    near_open(&w, true, 0);
    job = near_job(&w, nodes);
    ranges_are_whole(job);
    assert_int_equal(binds.n, 6);
    all = 2 * STAGING + job->arena_bytes + job->memory_bytes - job->replan->all_bytes;
    for (uint32_t r = 0; r < 2; r++) {
        const struct zsd_rank *rank = &job->ranks[r];
        int node = (int)nodes[r] - 1;

        assert_true(bound(zsd_member_by_rank(job, r)->staging.base, STAGING, node));
        assert_true(bound(job->arena.base + rank->arena_at, rank->arena_bytes, node));
        assert_true(bound(job->memory + rank->grads_at, rank->grads_bytes, node));
        rank_knows(&w, r, node);
    }
    assert_int_equal(w.daemon.stats.near_bytes, all);
    assert_int_equal(w.daemon.stats.near_refused_bytes, 0);
    world_close(&w);
}

static void one_rank_is_unknown(void **state)
{
    static const uint32_t nodes[2] = { 0, 2 };
    struct world w;

    (void)state;
    near_open(&w, true, 0);
    (void)near_job(&w, nodes);
    assert_int_equal(binds.n, 3);
    for (unsigned i = 0; i < binds.n; i++)
        assert_int_equal(binds.of[i].node, 1);
    rank_knows(&w, 0, ZSD_NEAR_NONE);
    rank_knows(&w, 1, 1);
    world_close(&w);
}

static void off_places_nothing(void **state)
{
    static const uint32_t nodes[2] = { 1, 2 };
    struct world w;

    (void)state;
    near_open(&w, false, 0);
    ranges_are_whole(near_job(&w, nodes));
    assert_int_equal(binds.n, 0);
    assert_int_equal(w.daemon.stats.near_bytes + w.daemon.stats.near_refused_bytes, 0);
    rank_knows(&w, 0, ZSD_NEAR_NONE);
    world_close(&w);
}

/* The job is the same where the kernel refuses; it is counted. */
static void refusals_fail_nothing(void **state)
{
    static const uint32_t nodes[2] = { 1, 2 };
    const struct zsd_job *job;
    struct world w;

    (void)state;
    near_open(&w, true, -EPERM);
    job = near_job(&w, nodes);
    ranges_are_whole(job);
    assert_int_equal(binds.n, 6);
    assert_int_equal(w.daemon.stats.near_bytes, 0);
    assert_true(w.daemon.stats.near_refused_bytes > job->arena_bytes);
    assert_true(w.daemon.near_refused);
    world_close(&w);
}

static void nodes_have_numbers(void **state)
{
    const struct open_args args = { .world = 1, .device_node = ZSD_NEAR_NODES + 1 };
    struct world w;

    (void)state;
    near_open(&w, true, 0);
    assert_int_equal(job_open_with(&w, 0, &args), -EINVAL);
    assert_non_null(strstr(answers[0].text, "NUMA node 1024: must be below 1024"));
    world_close(&w);
}

/* The kernel: node 0 is there; the last possible one is not, or it would have to be a large
 * machine. */
static void the_kernel_is_asked(void **state)
{
    const struct zsd_near near = { .on = true };
    struct zsd_arena a;
    int policy = -1, rc;

    (void)state;
    assert_int_equal(zsd_arena_open(&a, "test", 1 << 20, false, NULL), 0);
    rc = zsd_near_bind(&near, a.base + 100, (1 << 20) - 200, 0);
    if (rc == -EPERM || rc == -ENOSYS) {
        zsd_arena_close(&a);
        ztest_skip("memory cannot be bound to a node here");
    }
    assert_int_equal(rc, 0);
    assert_int_equal(syscall(SYS_get_mempolicy, &policy, NULL, 0UL, a.base + 4096, POLICY_OF_ADDR),
                     0);
    assert_int_equal(policy, POLICY_PREFERRED);
    assert_int_equal(syscall(SYS_get_mempolicy, &policy, NULL, 0UL, a.base, POLICY_OF_ADDR), 0);
    assert_int_not_equal(policy, POLICY_PREFERRED); /* its page is not all in the range */
    assert_int_equal(zsd_near_bind(&near, a.base, 4096, ZSD_NEAR_NODES - 1), -EINVAL);
    assert_int_equal(zsd_near_bind(&near, a.base, 4000, 0), 0); /* no whole page: nothing to do */
    zsd_arena_close(&a);
    assert_true(zsd_near_uses(&near, 0) && zsd_near_uses(&near, 1));
    assert_false(zsd_near_uses(&near, ZSD_NEAR_NONE) || zsd_near_uses(&near, ZSD_NEAR_NODES));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_near_the_rank), cmocka_unit_test(one_rank_is_unknown),
        cmocka_unit_test(off_places_nothing),      cmocka_unit_test(refusals_fail_nothing),
        cmocka_unit_test(nodes_have_numbers),      cmocka_unit_test(the_kernel_is_asked),
    };

    zk_thread_init();
    zb_log_set_level(ZB_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
