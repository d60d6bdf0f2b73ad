/*
 * place_gpu.c - what of a job the GPU tiers take: see place.h.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/place.h"
#include "base/util.h"

#define GPU_RUNS      64u            /* a job's state is cut into so many runs, */
#define GPU_RUN_UNITS 16u            /* unless a run would have fewer units of device memory, */
#define GPU_RUN_MAX   (256 * ZB_MIB) /* or more bytes */

/* Bytes of the state of all these shards. */
static uint64_t gpu_state(const struct zb_place_shard *shards, uint32_t nshards,
                          uint32_t page_elems)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < nshards; i++)
        bytes += zb_layout_bytes(shards[i].layout, ZB_STATE, page_elems, shards[i].count);
    return bytes;
}

uint32_t zb_gpu_runs(const struct zb_place_shard *shards, uint32_t nshards, uint32_t page_elems,
                     uint64_t unit, struct zb_gpu_run *runs)
{
    uint64_t at = gpu_state(shards, nshards, page_elems), bytes = 0, params = 0;
    uint64_t most = zb_max_u64(zb_min_u64(at / GPU_RUNS, GPU_RUN_MAX), GPU_RUN_UNITS * unit);
    uint32_t n = 0;

    for (uint32_t i = nshards; i-- > 0;) {
        const struct zb_place_shard *s = &shards[i];

        if (s->layout->block_bytes[ZB_STATE] == 0)
            continue;
        for (uint32_t page = zb_pages(s->count, page_elems); page-- > 0;) {
            uint64_t elems = zb_min_u64(page_elems, s->count - (uint64_t)page * page_elems);
            uint64_t add = zb_layout_page(s->layout, ZB_STATE, elems);

            if (n == 0 || bytes + add > most) {
                n++;
                bytes = params = 0;
            }
            bytes += add;
            at -= add;
            params += zb_layout_page(s->layout, ZB_PARAM, elems);
            if (runs)
                runs[n - 1] = (struct zb_gpu_run){
                    .from = at, .bytes = bytes, .param_bytes = params, .shard = i, .page = page
                };
        }
    }
    assert(at == 0);
    return n;
}

uint32_t zb_gpu_params(const struct zb_place_shard *shards, uint32_t nshards, uint32_t page_elems,
                       const struct zb_gpus *gpus, struct zb_gpu_share *ret)
{
    uint32_t full = gpus->n;

    for (uint32_t i = 0; i < nshards; i++)
        ret[zb_gpu_of(gpus, shards[i].rank)].params +=
            zb_layout_bytes(shards[i].layout, ZB_PARAM, page_elems, shards[i].count);
    for (uint32_t r = 0; r < gpus->nranks; r++) { /* also a rank without parameters maps memory */
        struct zb_gpu_share *g = &ret[zb_gpu_of(gpus, r)];

        g->params_used = zb_round_up(zb_max_u64(g->params, 1), gpus->unit);
    }
    for (uint32_t g = gpus->n; g-- > 0;)
        if (ret[g].params_used > gpus->budgets[g])
            full = g;
    return full;
}

/* The shards of one GPU, and their numbers among all. */
struct gpu_shards {
    struct zb_place_shard *shards;
    uint32_t *numbers, n;
};

/* As many of their runs as fit. */
static int gpu_fill(const struct gpu_shards *its, uint32_t page_elems, uint64_t unit, uint64_t left,
                    struct zb_gpu_share *ret, uint32_t *from)
{
    uint32_t n = zb_gpu_runs(its->shards, its->n, page_elems, unit, NULL), i = 0;
    struct zb_gpu_run *runs = calloc(zb_max_u64(n, 1), sizeof(*runs));

    if (!runs)
        return -ENOMEM;
    (void)zb_gpu_runs(its->shards, its->n, page_elems, unit, runs);
    for (; i < n; i++) {
        uint64_t taken = zb_gpu_run_taken(&runs[i], unit);

        if (taken > left - ret->state_used)
            break;
        ret->state_used += taken;
        ret->state += runs[i].bytes;
        ret->stepped += runs[i].param_bytes;
    }
    for (uint32_t s = 0; s < its->n; s++) {
        bool state = its->shards[s].layout->block_bytes[ZB_STATE] > 0;

        from[its->numbers[s]] = i == 0 || s < runs[i - 1].shard || !state
                                    ? zb_pages(its->shards[s].count, page_elems)
                                : s == runs[i - 1].shard ? runs[i - 1].page
                                                         : 0;
    }
    free(runs);
    return 0;
}

int zb_gpu_divide(const struct zb_place_shard *shards, uint32_t nshards, uint32_t page_elems,
                  const struct zb_gpus *gpus, struct zb_gpu_share *ret, uint32_t *from)
{
    struct gpu_shards its = { .shards = calloc(zb_max_u64(nshards, 1), sizeof(*its.shards)),
                              .numbers = calloc(zb_max_u64(nshards, 1), sizeof(*its.numbers)) };
    int rc = its.shards && its.numbers ? 0 : -ENOMEM;

    for (uint32_t g = 0; g < gpus->n && rc == 0; g++) {
        its.n = 0;
        for (uint32_t i = 0; i < nshards; i++)
            if (zb_gpu_of(gpus, shards[i].rank) == g) {
                its.numbers[its.n] = i;
                its.shards[its.n++] = shards[i];
            }
        rc = gpu_fill(&its, page_elems, gpus->unit,
                      gpus->budgets[g] - zb_min_u64(gpus->budgets[g], ret[g].params_used), &ret[g],
                      from);
    }
    free(its.shards);
    free(its.numbers);
    return rc;
}
