/*
 * plan/muon.c - how much memory a job with Muon needs, in addition to its planes.
 *
 * MODEL. base/muon.h has the arithmetic. The memory is the job's own, from its placement to its end. A
 * placement tries the most first, so that reading, orthogonalizing and writing overlap, then less. A job for which the
 * least does not fit is refused, with the numbers.
 */
#include "daemon/plan/muon.h"

#include <errno.h>
#include <stdlib.h>

bool zsd_muon_streams(const struct zsd_job *job)
{
    return job->core->disk->nbuffers > 0 &&
           (job->offload_optimizer != ZP_HOST || job->offload_param != ZP_HOST);
}

/* Adds one unit. 0 or -ENOMEM. */
static int size_unit(const struct zsd_job *job, const struct zsd_unit *unit,
                     struct zb_muon_needs *needs)
{
    struct zb_muon_matrix *matrices = calloc(zb_max_u64(unit->ntensors, 1), sizeof(*matrices));
    struct zb_muon_slice *slices = calloc(zb_max_u64(unit->shards.n, 1), sizeof(*slices));
    uint32_t nmatrices = 0, nslices = 0;
    const struct zsd_shard *s;

    for (uint32_t t = 0; t < unit->ntensors && matrices && slices; t++) {
        const struct zsd_tensor *tensor = &unit->tensors[t];

        if (zsd_tensor_muon(unit, t) && tensor->count > 0)
            matrices[nmatrices++] = (struct zb_muon_matrix){ .first = tensor->first,
                                                             .rows = tensor->dims[0],
                                                             .cols = tensor->dims[1] };
    }
    zb_sorted_each (s, pos, &unit->shards)
        if (nmatrices > 0)
            slices[nslices++] = (struct zb_muon_slice){ .first = s->first, .count = s->count };
    if (nmatrices > 0)
        zb_muon_add(needs, &unit->layout, job->core->page_elems, matrices, nmatrices, slices,
                    nslices, 1);
    nmatrices = matrices && slices ? 0 : 1;
    free(matrices);
    free(slices);
    return nmatrices > 0 ? -ENOMEM : 0;
}

int zsd_muon_size(const struct zsd_job *job, struct zb_muon_needs *ret)
{
    int rc = 0;

    *ret = (struct zb_muon_needs){ .engine = job->muon_engine };
    for (uint32_t u = 0; u < job->nunits && job->optimizer == ZB_MUON && rc == 0; u++)
        rc = size_unit(job, job->units[u], ret);
    return rc;
}

/* Number of elements [first, first + count) of a unit that the job's shards have. */
static uint64_t covered(const struct zsd_unit *unit, uint64_t first, uint64_t count)
{
    const struct zsd_shard *s;
    uint64_t n = 0;

    zb_sorted_each (s, pos, &unit->shards) {
        uint64_t from = zb_max_u64(first, s->first);
        uint64_t to = zb_min_u64(first + count, s->first + s->count);

        n += from < to ? to - from : 0;
    }
    return n;
}

int zsd_muon_whole(const struct zsd_job *job, struct zb_err *err)
{
    for (uint32_t u = 0; u < job->nunits && job->optimizer == ZB_MUON; u++)
        for (uint32_t i = 0; i < job->units[u]->ntensors; i++) {
            const struct zsd_tensor *t = &job->units[u]->tensors[i];
            uint64_t has = covered(job->units[u], t->first, t->count);

            if (zsd_tensor_muon(job->units[u], i) && has < t->count)
                return zb_fail(
                    err, -ENOTSUP,
                    "job '%s' with Muon: %llu of the %llu elements of tensor '%s' are on "
                    "this node. Muon needs whole matrices: all ranks on one node",
                    job->name, (unsigned long long)has, (unsigned long long)t->count, t->name);
        }
    return 0;
}

uint64_t zsd_muon_elems(struct zsd_unit *const *units, uint32_t nunits)
{
    uint64_t elems = 0;

    for (uint32_t u = 0; u < nunits; u++)
        for (uint32_t t = 0; t < units[u]->ntensors; t++)
            elems += units[u]->tensors[t].muon ? units[u]->tensors[t].count : 0;
    return elems;
}

uint32_t zsd_muon_buffers(const struct zsd_job *job, const struct zb_muon_room *room)
{
    return job->core->disk->nbuffers + room->slots;
}
