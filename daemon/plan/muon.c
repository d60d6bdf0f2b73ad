/*
 * plan/muon.c - how much memory a job with Muon needs, in addition to its planes.
 *
 * MODEL. A step handles one unit at a time (op/muon.c). Meanwhile the job holds
 *
 *     matrices  all matrices of the unit in fp32: 4 bytes for each element
 *     scratch   for one matrix: the same again, and two square ones of its smaller side
 *     slots     if its planes may be streamed, a page buffer for each page of the unit's shards. So a
 *               page is read and written once, although it waits between the passes
 *
 * each as large as the largest unit (or matrix) needs it. It is the job's own, from its placement to
 * its end, so jobs never wait for each other's buffers with pages in them. A job for which this
 * does not fit is refused when it is placed, with the numbers.
 */
#include "daemon/plan/muon.h"

#include <errno.h>

static bool muon_streams(const struct zsd_job *job)
{
    return job->core->disk->nbuffers > 0 &&
           (job->offload_optimizer != ZP_HOST || job->offload_param != ZP_HOST);
}

/* Adds one unit. */
static void size_unit(const struct zsd_job *job, const struct zsd_unit *unit,
                      struct zsd_muon_room *room)
{
    uint64_t matrices = 0, page = 0;
    const struct zsd_shard *s;
    uint32_t slots = 0;

    for (uint32_t t = 0; t < unit->ntensors; t++) {
        const struct zsd_tensor *tensor = &unit->tensors[t];

        if (!zsd_tensor_muon(unit, t))
            continue;
        matrices += zb_matrix_bytes(tensor->count);
        room->scratch_bytes =
            zb_max_u64(room->scratch_bytes, zb_ortho_bytes(tensor->dims[0], tensor->dims[1]));
    }
    if (matrices == 0)
        return;
    room->matrices_bytes = zb_max_u64(room->matrices_bytes, matrices);
    if (!muon_streams(job))
        return;
    for (int p = 0; p < ZB_PLANES; p++)
        page += zb_layout_page(&unit->layout, p, job->core->page_elems);
    zb_sorted_each (s, pos, &unit->shards)
        slots += s->npages;
    room->slot_bytes = zb_max_u64(room->slot_bytes, page);
    room->slots = (uint32_t)zb_max_u64(room->slots, slots);
}

void zsd_muon_size(struct zsd_job *job)
{
    struct zsd_muon_room room = { .at = job->muon_room.at };

    for (uint32_t u = 0; u < job->nunits && job->optimizer == ZB_MUON; u++)
        size_unit(job, job->units[u], &room);
    room.scratch_bytes = zb_round_up(room.scratch_bytes, ZB_PAGE_ALIGN);
    room.matrices_bytes = zb_round_up(room.matrices_bytes, ZB_PAGE_ALIGN);
    room.bytes = room.matrices_bytes + room.scratch_bytes + room.slots * room.slot_bytes;
    job->muon_room = room;
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

uint32_t zsd_muon_buffers(const struct zsd_job *job)
{
    uint32_t own = job->muon_room.slots, all = job->core->disk->nbuffers;

    return own > 0 ? own + all : all;
}
