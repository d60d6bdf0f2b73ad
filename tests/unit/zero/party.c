#include "tests/ztest.h"

#include "party.h"

#include <stdio.h>
#include <string.h>

void party_new(struct party *p, uint32_t world, enum zc_dtype dtype, uint64_t seed,
               uint32_t delay_max)
{
    memset(p, 0, sizeof(*p));
    p->world = world;
    p->group = comm_group_new(world, seed, delay_max);
    for (uint32_t r = 0; r < world; r++) {
        struct run *run = &p->runs[r];

        run->dtype = dtype;
        run->steps = 4;
        zc_zero_defaults(&run->options);
        run->options.comm = comm_group_rank(p->group, r);
        run->options.groups = 2;
        run->options.weight_decay[0] = 0.1;
        run->options.eps = 1e-3;
        run->options.clip = 1;
        run->options.timeout_ms = 20000;
        (void)snprintf(p->sockets[r], sizeof(p->sockets[r]), "rank %u", r);
        run->options.socket = p->sockets[r];
    }
}

void party_offload(struct party *p, enum zc_zero_offload offload)
{
    for (uint32_t r = 0; r < p->world; r++)
        p->runs[r].options.offload_param = p->runs[r].options.offload_optimizer = offload;
}

void party_done(struct party *p)
{
    for (uint32_t r = 0; r < p->world; r++)
        run_done(&p->runs[r]);
    comm_group_free(p->group);
}

void party_assert_ran(const struct party *p)
{
    for (uint32_t r = 0; r < p->world; r++)
        if (p->runs[r].rc != 0)
            fail_msg("rank %u of %u ended with %d: %s", r, p->world, p->runs[r].rc,
                     p->runs[r].error);
    for (uint32_t r = 1; r < p->world; r++)
        assert_runs_same("ranks", &p->runs[0], &p->runs[r]);
}

void party_run(struct party *p)
{
    run_threads(p->runs, p->world);
}
