/*
 * plan/muon_gpu.c - memory of a GPU that orthogonalizes the matrices of a job (job->muon_engine).
 *
 * MODEL. It is for one matrix, the largest, on the GPU of the job's first rank. It is booked with the job, like
 * parameters on a GPU, so state does not get it. The matrices in host memory are pinned for copies.
 *
 *     fits? ---> booked ---> made ... the job ends ---> dropped ---> unbooked
 *       no: the job is refused
 */
#include "daemon/plan/muon_gpu.h"

#include <errno.h>

#include "daemon/plan/gpu_runs.h"
#include "daemon/run/gpu_tier.h"
#include "kernels/gpu_ortho.h"

int zsd_muon_fits(struct zsd_job *job, const struct zb_muon_needs *needs, struct zb_err *err)
{
    struct zsd_muon_gpu *m = &job->muon_gpu;
    const char *engine = zb_muon_engine_name(job->muon_engine);
    const struct zsd_gpu_tier *tier;
    uint64_t used, left, units;

    m->g = job->ranks[0].gpu;
    m->bytes = needs->gpu_bytes;
    if (m->bytes == 0)
        return 0;
    if (job->core->daemon->ngpus == 0)
        return zb_fail(err, -ENODEV,
                       "the matrices of job '%s' are orthogonalized on a GPU (muon_engine %s), and "
                       "the daemon has no GPU tier (gpu_bytes)",
                       job->name, engine);
    tier = &job->core->tiers.gpus[m->g];
    if (tier->err.code != 0)
        return zb_fail(err, -EIO, "the GPU that orthogonalizes for job '%s' has failed: %s",
                       job->name, tier->err.text);
    units = zsd_gpu_units(job->core, m->g, m->bytes);
    used = zsd_account_used(&tier->account);
    left = zsd_gpu_left(tier, used);
    if (units > left)
        return zb_fail(err, -ENOSPC,
                       "job '%s' needs %s of %s to orthogonalize its largest matrix (muon_engine "
                       "%s), and %s are free; the smallest gpu_bytes that would work is %llu",
                       job->name, zb_size_text(units).s,
                       zsd_gpu_name(job->core->daemon->gpus[m->g]), engine, zb_size_text(left).s,
                       (unsigned long long)(used + units));
    return zsd_limit_bytes(&job->quota, ZSD_HELD_GPU, units, err);
}

void zsd_muon_book(struct zsd_job *job)
{
    struct zsd_muon_gpu *m = &job->muon_gpu;

    if (m->bytes == 0)
        return;
    m->booked = zsd_gpu_units(job->core, m->g, m->bytes);
    zsd_book(&job->core->tiers.gpus[m->g].account, &job->gpu_held, ZSD_USE_RING, m->booked);
    zsd_gpu_settle(job->core, m->g);
}

void zsd_muon_unbook(struct zsd_job *job)
{
    struct zsd_muon_gpu *m = &job->muon_gpu;

    if (m->booked == 0)
        return;
    zsd_unbook(&job->core->tiers.gpus[m->g].account, &job->gpu_held, ZSD_USE_RING, m->booked);
    m->booked = 0;
    zsd_gpu_settle(job->core, m->g);
}

int zsd_muon_make(const struct zsd_job *job, uint8_t *memory, struct zk_gpu_ortho **ret,
                  struct zb_err *err)
{
    const struct zsd_muon_gpu *m = &job->muon_gpu;
    struct zsd_gpu *gpu = m->bytes > 0 ? job->core->daemon->gpus[m->g] : NULL;
    int rc = gpu ? zk_gpu_ortho_open(zsd_gpu_device(gpu), m->booked, job->number, ret, err) : 0;

    if (gpu && rc == 0) /* if it cannot, copies block in their calls */
        (void)zsd_gpu_pin(gpu, memory, job->muon_room.matrices_bytes, NULL);
    return rc;
}

void zsd_muon_drop(struct zsd_job *job)
{
    zk_gpu_ortho_close(job->muon_gpu.ortho);
    job->muon_gpu.ortho = NULL;
    zsd_gpu_unpin(job->core->daemon, job->muon_at, job->muon_room.matrices_bytes);
    zsd_private_free(job->muon_at, job->muon_room.bytes);
    job->muon_at = NULL;
}
