#include "bench/job.h"

#include <stdio.h>

#include "base/util.h"

/* rows 0: a vector. */
static int unit_define(struct zc_client *c, uint64_t job, uint32_t index, uint64_t elems,
                       uint64_t rows, enum zc_dtype grad)
{
    char name[16];
    const struct zc_tensor tensor = { .name = name,
                                      .ndims = rows > 0 ? 2 : 1,
                                      .dims = { rows > 0 ? rows : elems,
                                                rows > 0 ? elems / rows : 0 },
                                      .muon = rows > 0 };
    const struct zc_unit unit = { .index = index,
                                  .name = name,
                                  .elems = elems,
                                  .dtype = ZC_BF16,
                                  .grad_dtype = grad,
                                  .tensors = &tensor,
                                  .ntensors = 1 };

    (void)snprintf(name, sizeof(name), "u%u", index);
    return zc_unit_define_wait(c, job, &unit);
}

int zbench_unit(struct zc_client *c, uint64_t job, uint32_t index, uint64_t elems,
                enum zc_dtype grad)
{
    return unit_define(c, job, index, elems, 0, grad);
}

int zbench_unit_matrix(struct zc_client *c, uint64_t job, uint32_t index, uint64_t elems,
                       uint64_t rows, enum zc_dtype grad, uint64_t *ret_shard)
{
    const struct zc_range range = { .unit = index, .count = elems };
    int rc = unit_define(c, job, index, elems, rows, grad);

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
