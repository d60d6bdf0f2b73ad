/*
 * forecast_gpu.c - the GPU tiers of a forecast: what each GPU of the node has of the job.
 *
 * MODEL. As in the daemon (daemon/plan/gpu_params.c) and the engine (client/zero/store): parameters
 * are on the GPUs of their ranks, all of them or none. Each rank must compute on its GPU, and have a
 * way to gather from there. State takes what they leave.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/forecast_priv.h"
#include "base/size.h"
#include "base/util.h"

#define GPU_UNIT (2 * ZB_MIB) /* granularity of device memory */

struct zb_gpus zb_run_gpus(const struct zb_run *run, const struct zb_node *node, uint32_t local)
{
    return (struct zb_gpus){ .n = node->gpus > 0 ? node->gpus : 1,
                             .nranks = local,
                             .computed_on = run->computes_on,
                             .unit = GPU_UNIT,
                             .budgets = node->gpu_tiers };
}

bool zb_run_reads(const struct zb_run *run)
{
    return run->gather_alone || run->node_gather == ZB_GATHER_HOST;
}

bool zb_run_on_one(const struct zb_run *run, const struct zb_node *node, uint32_t local)
{
    struct zb_gpus gpus = zb_run_gpus(run, node, local);

    for (uint32_t r = 1; r < local; r++)
        if (zb_gpu_of(&gpus, r) != zb_gpu_of(&gpus, 0))
            return false;
    return run->computes_on;
}

/* Why the run has no parameters on GPUs, whatever fits there; NULL: it may have. */
static const char *gpu_apart(const struct zb_run *run, const struct zb_node *node,
                             const struct zb_forecast *f)
{
    uint32_t world = zb_mode_world(run->mode, run->ranks, run->nodes);
    bool tiers = false;

    for (uint32_t g = 0; g < f->gpus; g++)
        tiers = tiers || node->gpu_tiers[g] > 0;
    return !zb_run_keeps(run)                   ? "nothing is offloaded"
           : !zb_mode_cuts(run->mode, ZB_PARAM) ? "each rank has all parameters"
           : !run->computes_on                  ? "the ranks compute on the processor"
           : run->muon                          ? "Muon steps matrices in host memory"
           : !tiers                             ? "the daemon has no GPU tier (gpu_bytes)"
           : world > 1 && zb_run_reads(run) &&
                   (world > f->local || !zb_run_on_one(run, node, f->local))
               ? "ranks read each other's slices in host memory"
               : NULL;
}

bool zb_forecast_gpu_params(const struct zb_run *run, const struct zb_node *node,
                            const struct zb_place_job *job, struct zb_forecast *f)
{
    struct zb_gpus gpus = zb_run_gpus(run, node, f->local);
    const char *why = gpu_apart(run, node, f);
    uint32_t g;

    if (run->param != ZB_OFFLOAD_GPU)
        return false;
    if (why) {
        (void)zb_fail(&f->gpu_why, -ENOTSUP, "%s", why);
        return false;
    }
    g = zb_gpu_params(job->shards, job->nshards, job->page_elems, &gpus, f->gpu);
    if (g == gpus.n)
        return true;
    (void)zb_fail(
        &f->gpu_why, -ENOSPC,
        "they take %s of gpu%u, and %s are free there; the smallest that would work is %llu",
        zb_size_text(f->gpu[g].params_used).s, g, zb_size_text(node->gpu_tiers[g]).s,
        (unsigned long long)f->gpu[g].params_used);
    for (g = 0; g < gpus.n; g++)
        f->gpu[g] = (struct zb_gpu_share){ 0 };
    return false;
}

/* What the lower tiers have when state is on GPUs from pages from[] on. If NVMe has no places for
 * that state, it stays where it is. */
static int gpu_lower(const struct zb_node *node, const struct zb_place_job *job,
                     const struct zb_place *place, const uint32_t *from, struct zb_forecast *f)
{
    struct zb_place moved = { 0 };
    int rc = zb_place_moved(job, place, from, &moved);
    uint64_t needs = rc == 0 ? zb_needs_bytes(&moved.nvme) : 0;

    if (rc == 0 && needs <= node->nvme_bytes - node->nvme_taken) {
        f->later_host_state = moved.state_bytes;
        f->later_host_used = f->host_used - f->host_state + moved.state_bytes;
        f->later_nvme_state = moved.nvme_state;
        f->later_nvme_spare = needs - moved.nvme_param - moved.nvme_state - moved.nvme_grad;
        f->later_nvme_used = node->nvme_taken + needs;
    } else {
        for (uint32_t g = 0; g < f->gpus; g++)
            f->gpu[g].state = f->gpu[g].state_used = f->gpu[g].stepped = 0;
    }
    zb_place_done(&moved);
    return rc;
}

int zb_forecast_gpu_tiers(const struct zb_run *run, const struct zb_node *node,
                          const struct zb_place_job *job, const struct zb_place *place,
                          struct zb_forecast *f)
{
    struct zb_gpus gpus = zb_run_gpus(run, node, f->local);
    uint32_t *from = calloc(zb_max_u64(job->nshards, 1), sizeof(*from));
    bool stays = run->muon || run->grad_ring; /* state, in the lower tiers */
    int rc = from ? 0 : -ENOMEM;

    f->later_host_state = f->host_state;
    f->later_host_used = f->host_used;
    f->later_nvme_state = f->nvme_state;
    f->later_nvme_spare = f->nvme_spare;
    f->later_nvme_used = f->nvme_used;
    if (rc == 0 && !stays)
        rc = zb_gpu_divide(job->shards, job->nshards, job->page_elems, &gpus, f->gpu, from);
    if (rc == 0 && !stays && !job->state_resident)
        rc = gpu_lower(node, job, place, from, f);
    for (uint32_t g = 0; g < f->gpus && rc == 0; g++) {
        f->gpu_params += f->gpu[g].params;
        f->gpu_state += f->gpu[g].state;
        f->gpu_used += f->gpu[g].params_used + f->gpu[g].state_used;
    }
    f->gpu_used += f->gpu_matrices;
    free(from);
    return rc;
}
