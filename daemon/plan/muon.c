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
 * With an engine on a GPU (job->muon_engine) there is no scratch memory. Instead the job holds memory of
 * the GPU of its first rank, for the largest matrix. It is booked with the job like parameters there, so
 * state does not get it, and the matrices are pinned.
 *
 * each as large as the largest unit (or matrix) needs it. It is the job's own, from its placement to
 * its end, so jobs never wait for each other's buffers with pages in them. A job for which this
 * does not fit is refused when it is placed, with the numbers.
 */
#include "daemon/plan/muon.h"

#include <errno.h>

#include "daemon/plan/gpu_runs.h"
#include "daemon/run/gpu_tier.h"
#include "kernels/gpu_ortho.h"

static bool on_gpu(const struct zsd_job *job)
{
    return job->muon_engine != ZB_MUON_CPU;
}

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
        if (on_gpu(job))
            room->gpu_bytes = zb_max_u64(room->gpu_bytes,
                                         zb_ortho_gpu_bytes(tensor->dims[0], tensor->dims[1],
                                                            job->muon_engine == ZB_MUON_GPU_BF16));
        else
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
    struct zsd_muon_room room = { .at = job->muon_room.at,
                                  .gpu = on_gpu(job) ? job->ranks[0].gpu : 0,
                                  .gpu_booked = job->muon_room.gpu_booked,
                                  .on_gpu = job->muon_room.on_gpu };

    for (uint32_t u = 0; u < job->nunits && job->optimizer == ZB_MUON; u++)
        size_unit(job, job->units[u], &room);
    room.scratch_bytes = zb_round_up(room.scratch_bytes, ZB_PAGE_ALIGN);
    room.matrices_bytes = zb_round_up(room.matrices_bytes, ZB_PAGE_ALIGN);
    room.bytes = room.matrices_bytes + room.scratch_bytes + room.slots * room.slot_bytes;
    job->muon_room = room;
}

/* ---- memory of the GPU */

int zsd_muon_fits(struct zsd_job *job, struct zb_err *err)
{
    const struct zsd_muon_room *room = &job->muon_room;
    const struct zsd_gpu_tier *tier = &job->core->tiers.gpus[room->gpu];
    const char *engine = zb_muon_engine_name(job->muon_engine);
    uint64_t used, left, needs;

    if (room->gpu_bytes == 0)
        return 0;
    if (job->core->daemon->ngpus == 0)
        return zb_fail(err, -ENODEV,
                       "the matrices of job '%s' are orthogonalized on a GPU (muon_engine %s), and "
                       "the daemon has no GPU tier (gpu_bytes)",
                       job->name, engine);
    if (tier->err.code != 0)
        return zb_fail(err, -EIO, "the GPU that orthogonalizes for job '%s' has failed: %s",
                       job->name, tier->err.text);
    needs = zsd_gpu_units(job->core, room->gpu, room->gpu_bytes);
    used = zsd_account_used(&tier->account);
    left = tier->target > used ? tier->target - used : 0;
    if (needs > left)
        return zb_fail(err, -ENOSPC,
                       "job '%s' needs %s of %s to orthogonalize its largest matrix (muon_engine "
                       "%s), and %s are free; the smallest gpu_bytes that would work is %llu",
                       job->name, zb_size_text(needs).s,
                       zsd_gpu_name(job->core->daemon->gpus[room->gpu]), engine,
                       zb_size_text(left).s, (unsigned long long)(used + needs));
    return zsd_limit_bytes(&job->quota, ZSD_HELD_GPU, needs, err);
}

void zsd_muon_book(struct zsd_job *job)
{
    struct zsd_muon_room *room = &job->muon_room;

    if (room->gpu_bytes == 0)
        return;
    room->gpu_booked = zsd_gpu_units(job->core, room->gpu, room->gpu_bytes);
    zsd_book(&job->core->tiers.gpus[room->gpu].account, &job->gpu_held, ZSD_USE_RING,
             room->gpu_booked);
    zsd_gpu_settle(job->core, room->gpu);
}

void zsd_muon_unbook(struct zsd_job *job)
{
    struct zsd_muon_room *room = &job->muon_room;

    if (room->gpu_booked == 0)
        return;
    zsd_unbook(&job->core->tiers.gpus[room->gpu].account, &job->gpu_held, ZSD_USE_RING,
               room->gpu_booked);
    room->gpu_booked = 0;
    zsd_gpu_settle(job->core, room->gpu);
}

int zsd_muon_make(const struct zsd_job *job, uint8_t *memory, struct zk_gpu_ortho **ret,
                  struct zb_err *err)
{
    const struct zsd_muon_room *room = &job->muon_room;
    struct zsd_gpu *gpu = room->gpu_bytes > 0 ? job->core->daemon->gpus[room->gpu] : NULL;
    int rc = gpu ? zk_gpu_ortho_open(zsd_gpu_device(gpu), room->gpu_booked, job->number, ret, err)
                 : 0;

    if (gpu && rc == 0) /* if it cannot, copies block in their calls */
        (void)zsd_gpu_pin(gpu, memory, room->matrices_bytes, NULL);
    return rc;
}

void zsd_muon_drop(struct zsd_job *job)
{
    struct zsd_muon_room *room = &job->muon_room;

    zk_gpu_ortho_close(room->on_gpu);
    room->on_gpu = NULL;
    zsd_gpu_unpin(job->core->daemon, room->at, room->matrices_bytes);
    zsd_private_free(room->at, room->bytes);
    room->at = NULL;
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
