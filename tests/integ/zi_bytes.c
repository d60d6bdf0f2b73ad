/* What a test of steps pushes page by page, and compares bit by bit. */
#include "tests/integ/zinteg.h"

#include "base/plan.h"
#include "base/util.h"

void zi_push_begin(struct zi_rank *r, unsigned u, uint64_t step, uint64_t first, uint64_t count,
                   float (*value)(uint64_t element), struct zi_call *call)
{
    float *staged = r->job.staging;
    struct zc_push push = { .shard = r->shards[u],
                            .step = step,
                            .dtype = ZC_F32,
                            .first = first,
                            .count = count,
                            .staged = staged };

    for (uint64_t i = 0; i < count; i++)
        staged[i] = value(r->ranges[u].first + first + i);
    *call = ZI_CALL(r);
    assert_int_equal(zc_push(r->c, &push, zi_done, call), 0);
}

/* Number of moments that a unit has: one, if Muon steps all of its tensors. */
static unsigned moments_of(const struct zc_unit *unit)
{
    bool muon = unit->ntensors > 0;

    for (uint32_t t = 0; t < unit->ntensors; t++)
        muon = muon && unit->tensors[t].muon;
    return muon ? 1 : 2;
}

static uint64_t rank_bytes(struct zi_rank *r, const struct zc_unit *units, unsigned nunits)
{
    static const enum zc_what whats[] = { ZC_PARAM, ZC_MASTER, ZC_EXP_AVG, ZC_EXP_AVG_SQ };
    uint64_t sum = 14695981039346656037u;

    for (unsigned u = 0; u < nunits; u++)
        for (unsigned w = 0; w < 2 + moments_of(&units[u]); w++)
            for (uint64_t at = 0; at < r->ranges[u].count; at += ZB_BLOCK_ELEMS) {
                const uint8_t *b = r->job.staging;
                size_t bytes = ZB_BLOCK_ELEMS * (w > 0 || units[u].dtype == ZC_F32 ? 4 : 2);

                assert_int_equal(
                    zc_read_wait(r->c, r->shards[u], whats[w], at, ZB_BLOCK_ELEMS, r->job.staging),
                    0);
                for (size_t i = 0; i < bytes; i++)
                    sum = (sum ^ b[i]) * 1099511628211u;
            }
    return sum;
}

uint64_t zi_bytes(struct zi_rank *ranks, unsigned n, const struct zc_unit *units, unsigned nunits)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < n; i++)
        sum = sum * 3 + rank_bytes(&ranks[i], units, nunits);
    return sum;
}
