#include "bench/job.h"

#include <assert.h>
#include <stdio.h>

#include "base/util.h"

/* of.count 0: a vector. */
static int unit_define(struct zc_client *c, uint64_t job, uint32_t index, uint64_t elems,
                       struct zbench_matrices of, enum zc_dtype grad)
{
    struct zc_tensor tensors[ZBENCH_MATRICES_MAX];
    uint32_t n = of.count > 0 ? of.count : 1;
    char name[16], names[ZBENCH_MATRICES_MAX][16];
    const struct zc_unit unit = { .index = index,
                                  .name = name,
                                  .elems = elems,
                                  .dtype = ZC_BF16,
                                  .grad_dtype = grad,
                                  .tensors = tensors,
                                  .ntensors = n };

    assert(n <= ZBENCH_MATRICES_MAX);
    (void)snprintf(name, sizeof(name), "u%u", index);
    for (uint32_t i = 0; i < n; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "u%u.%u", index, i);
        tensors[i] = (struct zc_tensor){ .name = n > 1 ? names[i] : name,
                                         .first = i * (elems / n),
                                         .ndims = 1,
                                         .dims = { elems },
                                         .muon = of.count > 0 };
        if (of.count > 0) {
            tensors[i].ndims = 2;
            tensors[i].dims[0] = of.rows;
            tensors[i].dims[1] = elems / n / of.rows;
        }
    }
    return zc_unit_define_wait(c, job, &unit);
}

int zbench_unit(struct zc_client *c, uint64_t job, uint32_t index, uint64_t elems,
                enum zc_dtype grad)
{
    return unit_define(c, job, index, elems, (struct zbench_matrices){ 0 }, grad);
}

int zbench_unit_matrices(struct zc_client *c, uint64_t job, uint32_t index, uint64_t elems,
                         struct zbench_matrices of, enum zc_dtype grad, uint64_t *ret_shard)
{
    const struct zc_range range = { .unit = index, .count = elems };
    int rc = unit_define(c, job, index, elems, of, grad);

    return rc < 0 ? rc : zc_register_wait(c, job, &range, 1, ret_shard);
}

int zbench_unit_whole(struct zc_client *c, uint64_t job, uint32_t index, uint64_t elems,
                      enum zc_dtype grad, uint64_t *ret_shard)
{
    const struct zc_range range = { .unit = index, .count = elems };
    int rc = zbench_unit(c, job, index, elems, grad);

    return rc < 0 ? rc : zc_register_wait(c, job, &range, 1, ret_shard);
}

int zbench_send(struct zc_client *c, const struct zc_job *job, uint64_t shard, uint64_t elems,
                enum zc_dtype grad, uint64_t step)
{
    uint64_t page = zc_server(c)->page_elems;
    uint64_t room = job->staging_bytes / sizeof(float);
    int rc = 0;

    if (room < elems)
        room = room / page * page;
    for (uint64_t first = 0; first < elems && rc == 0; first += room) {
        const struct zc_push push = { .shard = shard,
                                      .step = step,
                                      .dtype = grad,
                                      .first = first,
                                      .count = zb_min_u64(room, elems - first),
                                      .staged = job->staging };

        rc = step == 0 ? zc_write_wait(c, shard, ZC_MASTER, first, push.count, job->staging)
                       : zc_push_wait(c, &push);
    }
    return rc;
}
