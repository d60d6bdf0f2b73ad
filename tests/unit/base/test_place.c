#include "tests/ztest.h"

#include <errno.h>

#include "base/place.h"
#include "base/util.h"

#define PAGE   16384u /* elements: four blocks */
#define SHARDS 5

/* bf16 with fp32 gradients: 2, 4 and 10 bytes an element; shards of two pages and a half */
#define COUNT     40960u
#define PARAMS    (COUNT * UINT64_C(2))
#define GRADS     (COUNT * UINT64_C(4) * SHARDS)
#define STATE     (COUNT * UINT64_C(10))
#define RING      (3 * PARAMS)
#define PAGE_S    (PAGE * UINT64_C(10))
#define PAGE_P    (PAGE * UINT64_C(2))
#define PAGE_G    (PAGE * UINT64_C(4))
#define UNLIMITED (UINT64_C(1) << 40)

static const struct {
    const char *name;
    uint64_t host_bytes;
    bool params_resident, state_resident, durable;
    int rc;
    uint32_t params;                   /* resident shards */
    uint64_t ring, state, nvme, least; /* bytes */
    bool spills;                       /* gradients may live on NVMe */
    uint64_t grads_nvme;               /* their bytes there */
} cases[] = {
    { "all is resident", UNLIMITED, false, false, false, 0, 5, 0, 5 * STATE, 0, GRADS + RING, false,
      0 },
    { "the last page is streamed: one place, and a spare", GRADS + 5 * PARAMS + 5 * STATE - 1,
      false, false, false, 0, 5, 0, 5 * STATE - PAGE_S / 2, PAGE_S, GRADS + RING, false, 0 },
    { "not even one page of state", GRADS + 5 * PARAMS + PAGE_S / 2 - 1, false, false, false, 0, 5,
      0, 0, 5 * STATE + 2 * PAGE_S + 2 * (PAGE_S / 2), GRADS + RING, false, 0 },
    { "one parameter less: three places, the rest resident", GRADS + 5 * PARAMS - 1, false, false,
      false, 0, 1, RING, 0, 5 * STATE + 3 * PAGE_S + 4 * PARAMS + 2 * PAGE_P + 2 * (PAGE_P / 2),
      GRADS + RING, false, 0 },
    { "the least", GRADS + RING, false, false, false, 0, 0, RING, 0,
      5 * STATE + 5 * PARAMS + 3 * PAGE_S + 3 * PAGE_P, GRADS + RING, false, 0 },
    { "less than that", GRADS + RING - 1, false, false, false, -ENOSPC, 0, 0, 0, 0, GRADS + RING,
      false, 0 },
    { "less than the gradients", GRADS - 1, false, false, false, -ENOSPC, 0, 0, 0, 0, GRADS + RING,
      false, 0 },
    { "parameters must stay", GRADS + 5 * PARAMS - 1, true, false, false, -ENOSPC, 0, 0, 0, 0,
      GRADS + 5 * PARAMS, false, 0 },
    { "state must stay", GRADS + RING + 5 * STATE - 1, false, true, false, -ENOSPC, 0, 0, 0, 0,
      GRADS + RING + 5 * STATE, false, 0 },
    { "state stays, parameters are streamed", GRADS + RING + 5 * STATE, false, true, false, 0, 0,
      RING, 5 * STATE, 5 * PARAMS + 3 * PAGE_P, GRADS + RING + 5 * STATE, false, 0 },
    { "durable: two versions of all, no spares", UNLIMITED, false, false, true, 0, 5, 0, 5 * STATE,
      2 * 5 * (STATE + PARAMS), GRADS + RING, false, 0 },
    { "gradients may go, and need not", GRADS + RING, false, false, false, 0, 0, RING, 0,
      5 * STATE + 5 * PARAMS + 3 * PAGE_S + 3 * PAGE_P, RING, true, 0 },
    { "the last page of gradients is on NVMe: one place, and a spare", GRADS + RING - 1, false,
      false, false, 0, 0, RING, 0,
      5 * STATE + 5 * PARAMS + 3 * PAGE_S + 3 * PAGE_P + 2 * (PAGE_G / 2), RING, true, PAGE_G / 2 },
    { "one page of gradients is in memory", RING + PAGE_G, false, false, false, 0, 0, RING, 0,
      5 * STATE + 5 * PARAMS + 3 * PAGE_S + 3 * PAGE_P + GRADS + 2 * PAGE_G, RING, true,
      GRADS - PAGE_G },
    { "less than a page: none is", RING + PAGE_G / 2 - 1, false, false, false, 0, 0, RING, 0,
      5 * STATE + 5 * PARAMS + 3 * PAGE_S + 3 * PAGE_P + GRADS + 3 * PAGE_G, RING, true, GRADS },
    { "the least without gradients", RING, false, false, false, 0, 0, RING, 0,
      5 * STATE + 5 * PARAMS + 3 * PAGE_S + 3 * PAGE_P + GRADS + 3 * PAGE_G, RING, true, GRADS },
    { "durable: gradients have one place all the same", RING, false, false, true, 0, 0, RING, 0,
      2 * 5 * (STATE + PARAMS) + 3 * PAGE_S + 3 * PAGE_P + GRADS + 3 * PAGE_G, RING, true, GRADS },
    { "less than their ring", RING - 1, false, false, false, -ENOSPC, 0, 0, 0, 0, RING, true, 0 },
    { "parameters must stay: so must gradients", GRADS + 5 * PARAMS - 1, true, false, false,
      -ENOSPC, 0, 0, 0, 0, GRADS + 5 * PARAMS, true, 0 },
    { "state must stay: so must gradients", GRADS + RING + 5 * STATE - 1, false, true, false,
      -ENOSPC, 0, 0, 0, 0, GRADS + RING + 5 * STATE, true, 0 },
};

static struct zb_layout layout_of(bool frozen)
{
    struct zb_layout l;

    assert_int_equal(zb_layout_of(ZB_BF16, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, frozen, &l, NULL), 0);
    return l;
}

static void place_table(void **state)
{
    struct zb_layout layout = layout_of(false);
    struct zb_place_shard shards[SHARDS];

    (void)state;
    for (unsigned i = 0; i < SHARDS; i++)
        shards[i] = (struct zb_place_shard){ .layout = &layout, .count = COUNT };
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct zb_place_job job = { .shards = shards,
                                    .nshards = SHARDS,
                                    .page_elems = PAGE,
                                    .nbuffers = 2,
                                    .params_resident = cases[i].params_resident,
                                    .grads_resident = !cases[i].spills,
                                    .state_resident = cases[i].state_resident,
                                    .durable = cases[i].durable,
                                    .times = 2,
                                    .host_bytes = cases[i].host_bytes };
        struct zb_place p = { 0 };
        int rc = zb_place(&job, &p);
        uint64_t nvme = zb_needs_bytes(&p.nvme);

        print_message("%s\n", cases[i].name);
        assert_int_equal(rc, cases[i].rc);
        assert_int_equal(p.least_host, cases[i].least);
        assert_true(p.least_grads >= GRADS + RING);
        if (rc == 0) {
            assert_int_equal(p.params_resident, cases[i].params);
            assert_int_equal(p.param_bytes, cases[i].params * PARAMS);
            assert_int_equal(p.ring_bytes, cases[i].ring);
            assert_int_equal(p.state_bytes, cases[i].state);
            assert_int_equal(nvme, cases[i].nvme);
            assert_int_equal(p.nvme_grad, cases[i].grads_nvme);
            assert_int_equal(p.grad_bytes, GRADS - p.nvme_grad);
            assert_true(p.param_bytes + p.ring_bytes + p.grad_bytes + p.state_bytes <=
                        cases[i].host_bytes);
        }
        zb_place_done(&p);
    }
}

/* A ring of gradients: a page of state in memory takes its gradient, less the memory aside that it no
 * longer needs. */
static const struct {
    const char *name;
    uint64_t host_bytes;
    bool params_on_gpu;
    int rc;
    uint32_t params; /* resident shards */
    uint64_t ring, aside, pages, least;
    uint32_t keep;       /* percent of the three pages */
    uint64_t kept_pages; /* streamed pages whose gradients are held */
} ringed[] = {
    { "all is resident", 5 * (PARAMS + STATE) + GRADS, false, 0, 5, 0, 0, 15, RING, 0, 0 },
    { "one byte less: the last page is not", 5 * (PARAMS + STATE) + GRADS - 1, false, 0, 5, 0,
      PAGE_P / 2, 14, RING, 0, 0 },
    { "one page", 10 * PARAMS + PAGE_S + PAGE_G - PAGE_P, false, 0, 5, 0, 5 * PARAMS - PAGE_P, 1,
      RING, 0, 0 },
    { "no page", 10 * PARAMS, false, 0, 5, 0, 5 * PARAMS, 0, RING, 0, 0 },
    { "parameters are streamed, which need nothing aside", 10 * PARAMS - 1, false, 0, 4, PARAMS,
      4 * PARAMS, 0, RING, 0, 0 },
    { "the least", RING, false, 0, 0, RING, 0, 0, RING, 0, 0 },
    { "less", RING - 1, false, -ENOSPC, 0, 0, 0, 0, RING, 0, 0 },
    { "parameters on the GPU: new ones are here", 5 * PARAMS, true, 0, 5, 0, 5 * PARAMS, 0,
      5 * PARAMS, 0, 0 },
    { "less than that", 5 * PARAMS - 1, true, -ENOSPC, 0, 0, 0, 0, 5 * PARAMS, 0, 0 },
    { "a page of each shard is kept, and no state", 5 * (2 * PARAMS - PAGE_P + PAGE_G), false, 0, 5,
      0, 5 * (PARAMS - PAGE_P), 0, RING + 5 * PAGE_G, 40, 5 },
    { "and one page of state", 5 * (2 * PARAMS - PAGE_P + PAGE_G) + PAGE_S + PAGE_G - PAGE_P, false,
      0, 5, 0, 5 * (PARAMS - PAGE_P) - PAGE_P, 1, RING + 5 * PAGE_G, 40, 5 },
    { "all gradients are kept", 5 * PARAMS + GRADS + PAGE_S, false, 0, 5, 0, 0, 1, RING + GRADS,
      100, 14 },
    { "all is resident, and kept", 5 * (PARAMS + STATE) + GRADS, false, 0, 5, 0, 0, 15,
      RING + GRADS, 100, 0 },
};

static void place_ringed(void **state)
{
    struct zb_layout layout = layout_of(false);
    struct zb_place_shard shards[SHARDS];

    (void)state;
    for (unsigned i = 0; i < SHARDS; i++)
        shards[i] = (struct zb_place_shard){ .layout = &layout, .count = COUNT };
    for (size_t i = 0; i < ZB_COUNT(ringed); i++) {
        const struct zb_place_job job = { .shards = shards,
                                          .nshards = SHARDS,
                                          .page_elems = PAGE,
                                          .nbuffers = 2,
                                          .params_on_gpu = ringed[i].params_on_gpu,
                                          .early = true,
                                          .grad_ring = true,
                                          .ring_keep = ringed[i].keep,
                                          .host_bytes = ringed[i].host_bytes };
        struct zb_place p = { 0 };
        uint64_t held = 0, pages = 0, kept = 0;

        print_message("%s\n", ringed[i].name);
        assert_int_equal(zb_place(&job, &p), ringed[i].rc);
        assert_int_equal(p.least_host, ringed[i].least);
        for (unsigned k = 0; k < SHARDS && ringed[i].rc == 0; k++) {
            assert_true(p.grads_resident[k] >= p.state_resident[k]);
            kept += p.grads_resident[k] - p.state_resident[k];
            pages += p.state_resident[k];
            held += zb_layout_bytes(&layout, ZB_GRAD, PAGE,
                                    zb_min_u64(COUNT, p.grads_resident[k] * UINT64_C(16384)));
        }
        if (ringed[i].rc == 0) {
            assert_int_equal(p.params_resident, ringed[i].params);
            assert_int_equal(p.ring_bytes, ringed[i].ring);
            assert_int_equal(p.aside_bytes, ringed[i].aside);
            assert_int_equal(pages, ringed[i].pages);
            assert_int_equal(kept, ringed[i].kept_pages);
            assert_int_equal(p.grad_bytes, held + ringed[i].aside);
            assert_int_equal(p.grads_ringed, GRADS - held);
            assert_int_equal(p.nvme_grad, 0);
            assert_true(p.param_bytes + p.ring_bytes + p.grad_bytes + p.state_bytes <=
                        ringed[i].host_bytes);
        }
        zb_place_done(&p);
    }
}

/* With limits: memory for the two largest units in addition, as far as their gradients are not held.
 * Units of which some rank has no part are held. */
static const struct {
    const char *name;
    uint64_t host_bytes;
    uint32_t nranks;
    int rc;
    uint64_t room, pages, least;
} limited[] = {
    { "the least", RING + 2 * GRADS / 5, 1, 0, 2 * GRADS / 5, 0, RING + 2 * GRADS / 5 },
    { "less", RING + 2 * GRADS / 5 - 1, 1, -ENOSPC, 0, 0, RING + 2 * GRADS / 5 },
    { "one page of state", 10 * PARAMS + 2 * GRADS / 5 + PAGE_S + PAGE_G - PAGE_P, 1, 0,
      2 * GRADS / 5, 1, RING + 2 * GRADS / 5 },
    { "all but one page of state", 5 * (PARAMS + STATE) + GRADS + 2 * GRADS / 5 - 1, 1, 0,
      2 * GRADS / 5, 14, RING + 2 * GRADS / 5 },
    { "all is in memory: no room", 5 * (PARAMS + STATE) + GRADS + 2 * GRADS / 5, 1, 0, 0, 15,
      RING + 2 * GRADS / 5 },
    { "a rank has no part of any: all are held", RING + GRADS, 2, 0, 0, 0, RING + GRADS },
};

static void place_limited(void **state)
{
    struct zb_layout layout = layout_of(false);
    struct zb_place_shard shards[SHARDS];

    (void)state;
    for (unsigned i = 0; i < SHARDS; i++)
        shards[i] = (struct zb_place_shard){ .layout = &layout, .count = COUNT, .unit = i };
    for (size_t i = 0; i < ZB_COUNT(limited); i++) {
        const struct zb_place_job job = { .shards = shards,
                                          .nshards = SHARDS,
                                          .page_elems = PAGE,
                                          .nbuffers = 2,
                                          .early = true,
                                          .grad_ring = true,
                                          .ring_limits = true,
                                          .host_bytes = limited[i].host_bytes };
        struct zb_place p = { 0 };
        uint64_t pages = 0;

        print_message("%s\n", limited[i].name);
        assert_int_equal(zb_place_few(shards, SHARDS, limited[i].nranks), 0);
        assert_int_equal(zb_place(&job, &p), limited[i].rc);
        assert_int_equal(p.least_host, limited[i].least);
        for (unsigned k = 0; k < SHARDS && limited[i].rc == 0; k++)
            pages += p.state_resident[k];
        if (limited[i].rc == 0) {
            assert_int_equal(p.room_bytes, limited[i].room);
            assert_int_equal(pages, limited[i].pages);
            assert_int_equal(p.nvme_grad, p.grads_ringed);
            assert_int_equal(p.grad_bytes, GRADS - p.grads_ringed + p.aside_bytes + p.room_bytes);
            assert_true(p.param_bytes + p.ring_bytes + p.grad_bytes + p.state_bytes <=
                        limited[i].host_bytes);
        }
        zb_place_done(&p);
    }
}

/* A page of Lion's state is as long as one of fp32 parameters: a buffer for both takes two spares
 * of one size. */
static void planes_of_one_size(void **state)
{
    struct zb_place_shard shards[SHARDS];
    struct zb_layout layout;
    struct zb_place_job job = { .shards = shards,
                                .nshards = SHARDS,
                                .page_elems = PAGE,
                                .nbuffers = 2,
                                .host_bytes = GRADS + 3 * COUNT * UINT64_C(4) };
    struct zb_place p = { 0 };

    (void)state;
    assert_int_equal(zb_layout_of(ZB_F32, ZB_F32, ZB_LION, ZB_MOMENTS_F32, false, &layout, NULL),
                     0);
    for (unsigned i = 0; i < SHARDS; i++)
        shards[i] = (struct zb_place_shard){ .layout = &layout, .count = COUNT };
    assert_int_equal(zb_place(&job, &p), 0);
    assert_int_equal(p.state_bytes, 0);
    assert_int_equal(p.nvme.n, 2);
    assert_int_equal(p.nvme.needs[0].bytes, PAGE / 2 * 4);
    assert_int_equal(p.nvme.needs[0].count, 2 * (SHARDS + job.nbuffers));
    assert_int_equal(p.nvme.needs[1].bytes, PAGE * 4);
    assert_int_equal(p.nvme.needs[1].count, 2 * (2 * SHARDS + job.nbuffers));
    zb_place_done(&p);
}

/* Frozen shards have parameters only, and a durable job keeps one version of them. */
static void place_frozen(void **state)
{
    struct zb_layout layout = layout_of(true);
    struct zb_place_shard shards[] = { { .layout = &layout, .count = COUNT },
                                       { .layout = &layout, .count = COUNT, .rank = 1 } };
    struct zb_place_job job = { .shards = shards,
                                .nshards = 2,
                                .page_elems = PAGE,
                                .nbuffers = 1,
                                .durable = true,
                                .times = 2 };
    struct zb_place p = { 0 };

    (void)state;
    assert_int_equal(zb_place(&job, &p), -ENOSPC);
    assert_int_equal(p.least_host, 2 * PARAMS); /* as much as all shards */
    zb_place_done(&p);
    job.host_bytes = 2 * PARAMS;
    assert_int_equal(zb_place(&job, &p), 0);
    assert_int_equal(p.params_resident, 2);
    assert_int_equal(zb_needs_bytes(&p.nvme), 2 * PARAMS);
    assert_int_equal(p.grad_bytes + p.state_bytes + p.nvme_state, 0);
    zb_place_done(&p);
}

/* The least budget leaves enough in addition to its buffers, and one that is smaller does not. */
static void buffers_least(void **state)
{
    uint64_t buffer = zb_buffer_bytes(PAGE), rings[] = { 0, buffer / 2, 5 * buffer, UNLIMITED };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rings); i++)
        for (uint64_t bytes = 0; bytes < 40 * buffer; bytes += buffer / 4) {
            uint64_t least = zb_buffers_least(bytes, rings[i], buffer);

            assert_true(least - zb_buffers(least, rings[i], buffer) * buffer >= bytes);
            least -= ZB_PAGE_ALIGN;
            assert_true(least < zb_buffers(least, rings[i], buffer) * buffer ||
                        least - zb_buffers(least, rings[i], buffer) * buffer < bytes);
        }
    assert_int_equal(zb_buffers(1, 0, buffer), 1);
    assert_int_equal(zb_buffers(UNLIMITED, 0, buffer), ZB_BUFFERS_DEFAULT);
    assert_int_equal(zb_buffers(UNLIMITED, UNLIMITED, buffer), ZB_BUFFERS_MAX);
}

/* Runs cover the state from its end, without a gap, each as long as possible; frozen shards have
 * none. */
static void gpu_runs(void **state)
{
    static const uint64_t units[] = { 4096, 16384, 65536, 2 * ZB_MIB };
    struct zb_layout layout = layout_of(false), frozen = layout_of(true);
    struct zb_place_shard shards[SHARDS];
    struct zb_gpu_run runs[3 * SHARDS];

    (void)state;
    for (unsigned i = 0; i < SHARDS; i++)
        shards[i] = (struct zb_place_shard){ .layout = i == 2 ? &frozen : &layout, .count = COUNT };
    assert_int_equal(zb_gpu_runs(shards, 0, PAGE, 4096, NULL), 0);
    assert_int_equal(zb_gpu_runs(shards, SHARDS, PAGE, 4096, NULL), 4 * 3); /* a page each */
    assert_int_equal(zb_gpu_runs(shards, SHARDS, PAGE, 2 * ZB_MIB, NULL), 1);
    for (size_t u = 0; u < ZB_COUNT(units); u++) {
        uint32_t n = zb_gpu_runs(shards, SHARDS, PAGE, units[u], NULL);
        uint64_t at = 4 * STATE;

        assert_in_range(n, 1, ZB_COUNT(runs));
        assert_int_equal(zb_gpu_runs(shards, SHARDS, PAGE, units[u], runs), n);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t shard = runs[i].shard;
            uint64_t before = runs[i].page * PAGE_S + (shard - (shard > 2)) * STATE;

            at -= runs[i].bytes;
            assert_int_equal(runs[i].from, at);
            assert_int_equal(before, at);
            assert_true(shard != 2);
            assert_true(runs[i].bytes <= zb_max_u64(16 * units[u], PAGE_S));
            assert_true(zb_gpu_run_taken(&runs[i], units[u]) % units[u] == 0);
            assert_true(zb_gpu_run_taken(&runs[i], units[u]) - runs[i].bytes < units[u]);
            if (i > 0) /* the page before a run would not have fitted into it */
                assert_true(runs[i - 1].bytes + PAGE_S > 16 * units[u]);
        }
        assert_int_equal(at, 0);
    }
}

/* Two shards of each of 8 ranks, of one page and of two. A GPU holds state of its own ranks only, and
 * as much as fits in runs of a page. */
static const struct {
    uint32_t ngpus;
    uint64_t budget; /* in pages of state */
    uint64_t state[8];
    bool computed_on;
} divisions[] = {
    { 8, 100, { 3, 3, 3, 3, 3, 3, 3, 3 }, false },
    { 8, 2, { 2, 2, 2, 2, 2, 2, 2, 2 }, false },
    { 4, 100, { 6, 6, 6, 6 }, false },
    { 4, 5, { 5, 5, 5, 5 }, false },
    { 3, 100, { 9, 9, 6 }, false }, /* ranks 0 to 2, 3 to 5, 6 and 7 */
    { 3, 7, { 7, 7, 6 }, false },
    { 5, 100, { 6, 6, 3, 6, 3 }, false }, /* 0, 1; 2, 3; 4; 5, 6; 7 */
    { 1, 100, { 24 }, false },
    { 1, 10, { 10 }, false },
    { 8, 0, { 0 }, false },
    { 4, 100, { 6, 6, 6, 6 }, true },
    { 3, 100, { 9, 9, 6 }, true },       /* 0, 3, 6; 1, 4, 7; 2, 5 */
    { 5, 100, { 6, 6, 6, 3, 3 }, true }, /* 0, 5; 1, 6; 2, 7; 3; 4 */
};

/* The division with `budget` bytes on each of n GPUs, without parameters there. */
static void divided(const struct zb_place_shard *shards, uint32_t n, uint64_t unit,
                    bool computed_on, uint64_t budget, struct zb_gpu_share *ret)
{
    const uint64_t budgets[] = { budget, budget, budget, budget, budget, budget, budget, budget };
    const struct zb_gpus gpus = {
        .n = n, .nranks = 8, .computed_on = computed_on, .unit = unit, .budgets = budgets
    };
    uint32_t from[16];

    memset(ret, 0, n * sizeof(*ret));
    assert_int_equal(zb_gpu_divide(shards, 16, PAGE, &gpus, ret, from), 0);
    for (uint32_t g = 0; g < n; g++) { /* the last pages of its shards */
        uint64_t pages = 0;

        for (uint32_t i = 0; i < 16; i++)
            pages += zb_gpu_of(&gpus, shards[i].rank) == g ? 1 + i % 2 - from[i] : 0;
        assert_int_equal(ret[g].state, pages * PAGE_S);
        assert_int_equal(ret[g].stepped, pages * PAGE_P);
    }
}

static void gpu_division(void **state)
{
    struct zb_layout layout = layout_of(false);
    struct zb_place_shard shards[16];
    struct zb_gpu_share got[8];

    (void)state;
    for (uint32_t i = 0; i < 16; i++)
        shards[i] = (struct zb_place_shard){ .layout = &layout,
                                             .count = (1 + i % 2) * (uint64_t)PAGE,
                                             .rank = i / 2 };
    for (size_t d = 0; d < ZB_COUNT(divisions); d++) {
        divided(shards, divisions[d].ngpus, 4096, divisions[d].computed_on,
                divisions[d].budget * PAGE_S, got);
        for (uint32_t g = 0; g < divisions[d].ngpus; g++) {
            assert_int_equal(got[g].state, divisions[d].state[g] * PAGE_S);
            assert_int_equal(got[g].state_used, got[g].state);
        }
    }
    /* a run takes whole units of device memory, and one that does not fit ends it */
    divided(shards, 8, 2 * ZB_MIB, false, 2 * ZB_MIB - 1, got);
    assert_int_equal(got[7].state + got[7].state_used, 0);
    divided(shards, 8, 2 * ZB_MIB, false, 2 * ZB_MIB, got);
    assert_int_equal(got[7].state, 3 * PAGE_S);
    assert_int_equal(got[7].state_used, 2 * ZB_MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(place_table),        cmocka_unit_test(place_ringed),
        cmocka_unit_test(planes_of_one_size), cmocka_unit_test(place_frozen),
        cmocka_unit_test(buffers_least),      cmocka_unit_test(gpu_runs),
        cmocka_unit_test(gpu_division),       cmocka_unit_test(place_limited),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
