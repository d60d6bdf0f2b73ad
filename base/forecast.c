/*
 * forecast.c - the bytes of the node, from the code that decides admission; the whole forecast.
 */
#include "base/forecast.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/forecast_priv.h"
#include "base/size.h"
#include "base/util.h"

/* ---- checks of a run */

static int forecast_check(const struct zb_run *run, const struct zb_node *node, struct zb_err *err)
{
    if (run->ranks < 1 || run->ranks > ZB_RANKS_MAX || run->nodes < 1 ||
        run->ranks % run->nodes != 0)
        return zb_fail(err, -EINVAL, "%u ranks on %u nodes: as many on each, and at most %u",
                       run->ranks, run->nodes, ZB_RANKS_MAX);
    if (run->micro_steps < 1 || run->model->nunits == 0 || run->prefetch_units > ZB_PREFETCH_MAX)
        return zb_fail(err, -EINVAL,
                       "a step of %u micro-steps, %u units, and %u of them (to %u) gathered ahead",
                       run->micro_steps, run->model->nunits, run->prefetch_units, ZB_PREFETCH_MAX);
    if (run->node_gather == ZB_GATHER_HOST && run->nodes > 1 && run->comm != ZB_COMM_HOST)
        return zb_fail(
            err, -EINVAL,
            "on several nodes, ranks that exchange between GPUs do not read each other's "
            "slices in host memory (node_gather host)");
    if (run->grad_ring && (!run->early || run->muon || run->micro_steps > 1))
        return zb_fail(
            err, -EINVAL,
            "a ring of gradients needs steps that begin early, an optimizer that steps elements "
            "and not matrices, and gradients of all micro-steps that are added up before they are "
            "pushed (--micro-steps 1)");
    if (node->gpus > ZB_GPUS_MAX)
        return zb_fail(err, -EINVAL, "a node of %u GPUs: at most %u", node->gpus, ZB_GPUS_MAX);
    if (node->page_elems < ZB_BLOCK_ELEMS || node->page_elems > ZB_PAGE_ELEMS_MAX ||
        node->page_elems % ZB_BLOCK_ELEMS != 0)
        return zb_fail(err, -EINVAL, "pages of %u elements: a multiple of %u, at most %u",
                       node->page_elems, ZB_BLOCK_ELEMS, ZB_PAGE_ELEMS_MAX);
    return 0;
}

/* Rejects a node with more shards than a daemon accepts for one job. */
static int forecast_shards(const struct zb_run *run, uint32_t local, struct zb_err *err)
{
    uint32_t world = zb_mode_world(run->mode, run->ranks, run->nodes);
    uint64_t n = 0;

    for (uint32_t u = 0; u < run->model->nunits; u++) {
        uint64_t slice, first, count;

        zb_slice(run->model->units[u], world, 0, &slice, &first, &count);
        n += zb_min_u64(local, zb_div_up(run->model->units[u], slice));
    }
    if (n <= ZB_SHARDS_MAX)
        return 0;
    return zb_fail(err, -EINVAL, "%llu shards on a node, of %u units and %u ranks: at most %u",
                   (unsigned long long)n, run->model->nunits, local, ZB_SHARDS_MAX);
}

/* ---- bytes */

/* The least budget of a node, if the job takes `bytes` for its planes and its ring. */
static uint64_t forecast_budget(const struct zb_node *node, const struct zb_forecast *f,
                                uint64_t bytes)
{
    uint64_t all = node->host_taken + f->host_staging + bytes;

    return node->nvme_bytes > 0
               ? zb_buffers_least(all, node->ring_bytes, zb_buffer_bytes(node->page_elems))
               : all;
}

/* Bytes of pages on each of equal drives. A page is on one of them. */
static uint64_t forecast_file(const struct zb_node *node, const struct zb_needs *needs)
{
    uint64_t n = zb_max_u64(node->drives, 1);
    uint64_t bytes = zb_round_up(zb_div_up(node->nvme_taken, n), ZB_PAGE_ALIGN);

    for (uint32_t i = 0; i < needs->n; i++)
        bytes += zb_div_up(needs->needs[i].count, n) * needs->needs[i].bytes;
    return bytes;
}

static void forecast_least(const struct zb_node *node, const struct zb_place *place,
                           struct zb_forecast *f)
{
    f->host_least = forecast_budget(node, f, place->least_host + f->host_matrices_least);
    f->host_least_grads = forecast_budget(node, f, place->least_grads + f->host_matrices_least);
    f->nvme_least = ZB_DATA_START + forecast_file(node, &place->nvme);
}

static void forecast_refuse(const struct zb_node *node, const struct zb_place *place, bool placed,
                            struct zb_forecast *f)
{
    uint64_t need = f->host_staging + f->host_matrices + place->least_host;
    char muon[80] = "";

    if (f->host_matrices > 0)
        (void)snprintf(muon, sizeof(muon), ", Muon's matrices %s",
                       zb_size_text(f->host_matrices).s);

    f->fits = false;
    if (placed)
        (void)zb_fail(
            &f->why, -ENOSPC,
            "it needs %s of NVMe, and %s are free; the smallest nvme_bytes that would work is "
            "%llu",
            zb_size_text(zb_needs_bytes(&place->nvme)).s,
            zb_size_text(node->nvme_bytes - node->nvme_taken).s, (unsigned long long)f->nvme_least);
    else
        (void)zb_fail(
            &f->why, -ENOSPC,
            "it needs at least %s of host memory (gradients %s, parameters or their ring "
            "%s, state %s, staging %s%s) and the budget is %s; the smallest host_bytes that "
            "would work is %llu",
            zb_size_text(need).s, zb_size_text(place->grad_bytes).s,
            zb_size_text(place->least_params).s,
            zb_size_text(place->least_host - place->grad_bytes - place->least_params).s,
            zb_size_text(f->host_staging).s, muon, zb_size_text(node->host_bytes).s,
            (unsigned long long)f->host_least);
}

/* What orthogonalizes on a GPU is on that of the first rank. */
static void forecast_matrices(const struct zb_node *node, struct zb_forecast *f)
{
    uint64_t tier = node->gpu_tiers[0];

    if (!f->fits || f->gpu_matrices <= tier)
        return;
    f->fits = false;
    (void)zb_fail(&f->why, -ENOSPC,
                  "the largest matrix needs %s of a GPU tier to be orthogonalized, and %s; the "
                  "smallest gpu_bytes that would work is about %llu",
                  zb_size_text(f->gpu_matrices).s,
                  tier > 0 ? zb_size_text(tier).s : "the daemon has none",
                  (unsigned long long)f->gpu_matrices);
}

/* The bytes that the step itself moves. */
static void forecast_step(const struct zb_run *run, const struct zb_place_job *job,
                          const struct zb_place *place, struct zb_forecast *f)
{
    uint64_t all[ZB_PLANES] = { 0 }, here; /* state in memory or on the GPU */
    uint64_t params, stepped = 0;          /* likewise; in place on the GPU */

    for (uint32_t i = 0; i < job->nshards; i++)
        for (enum zb_plane p = 0; p < ZB_PLANES; p++)
            all[p] +=
                zb_layout_bytes(job->shards[i].layout, p, job->page_elems, job->shards[i].count);
    if (run->layout.frozen)
        return;
    here = zb_min_u64(all[ZB_STATE], f->later_host_state + f->gpu_state);
    params = job->params_on_gpu ? all[ZB_PARAM] : place->param_bytes;
    for (uint32_t g = 0; g < f->gpus && job->params_on_gpu; g++)
        stepped += f->gpu[g].stepped;
    f->step_read = all[ZB_PARAM] - params + all[ZB_STATE] - here;
    f->step_written = f->step_read;
    if (!job->grad_ring) { /* else only steps of the warm-up use that room */
        f->step_read += place->nvme_grad;
        f->push_read = (uint64_t)(run->micro_steps - 1) * place->nvme_grad;
        f->push_written = (uint64_t)run->micro_steps * place->nvme_grad;
    }
    if (run->durable && run->commit_every > 0) {
        f->commit_written = params + here;
        f->commit_share = 1.0 / (double)run->commit_every;
    }
    f->kernel_bytes = 2 * (all[ZB_PARAM] - stepped + all[ZB_STATE] - f->gpu_state) + all[ZB_GRAD];
    f->crc_bytes = f->step_read + f->step_written;
}

/* ---- placement, and the whole forecast */

/* As in admission: a job that does not fit with early steps is placed without them. */
static int forecast_try(const struct zb_run *run, const struct zb_node *node,
                        struct zb_place_job *job, struct zb_place *place, struct zb_forecast *f)
{
    uint64_t room = node->nvme_bytes - zb_min_u64(node->nvme_bytes, node->nvme_taken);
    int rc;

    job->early = run->early;
    job->ring_keep = run->ring_keep;
    job->ring_limits = run->ring_limits;
    job->grad_ring = run->grad_ring && job->early && !job->state_resident;
    rc = zb_place(job, place);
    if (rc == 0 && job->early && zb_needs_bytes(&place->nvme) > room) {
        zb_place_done(place);
        job->early = job->grad_ring = false;
        rc = zb_place(job, place);
    }
    f->early = job->early;
    return rc;
}

static int forecast_place(const struct zb_run *run, const struct zb_node *node,
                          struct zb_place_job *job, struct zb_place *place, struct zb_forecast *f)
{
    int rc;

    job->params_on_gpu = zb_forecast_gpu_params(run, node, job, f);
    rc = forecast_try(run, node, job, place, f);
    if (rc == -ENOMEM)
        return rc;
    forecast_least(node, place, f);
    if (rc < 0 || zb_needs_bytes(&place->nvme) > node->nvme_bytes - node->nvme_taken) {
        forecast_refuse(node, place, rc == 0, f);
        return 0;
    }
    f->fits = true;
    f->host_param = place->param_bytes;
    f->host_ring = place->ring_bytes;
    f->host_grad = place->grad_bytes;
    f->host_state = place->state_bytes;
    f->host_used = node->host_taken + f->host_staging + f->host_buffers + f->host_matrices +
                   f->host_param + f->host_ring + f->host_grad + f->host_state;
    f->nvme_param = place->nvme_param;
    f->nvme_state = place->nvme_state;
    f->nvme_grad = place->nvme_grad;
    f->grads_ringed = place->grads_ringed;
    f->grads_aside = place->aside_bytes;
    f->grads_room = place->room_bytes;
    f->nvme_spare = zb_needs_bytes(&place->nvme) - f->nvme_param - f->nvme_state - f->nvme_grad;
    f->nvme_used = node->nvme_taken + zb_needs_bytes(&place->nvme);
    rc = zb_forecast_gpu_tiers(run, node, job, place, f);
    if (rc < 0)
        return rc;
    forecast_step(run, job, place, f);
    return zb_forecast_fetches(run, job, place, f->local, &f->fetch_read);
}

/* What the matrices need on this node, as the daemon computes it (daemon/plan/muon.c). 0 or -ENOMEM. */
static int forecast_muon(const struct zb_run *run, const struct zb_place_job *job, uint32_t local,
                         struct zb_muon_needs *ret)
{
    const struct zb_model *m = run->model;
    struct zb_muon_slice *slices;
    uint64_t slice;
    uint32_t n = 0;

    if (!run->muon || !zb_run_keeps(run))
        return 0;
    slices = calloc(local, sizeof(*slices));
    if (!slices)
        return -ENOMEM;
    for (uint32_t r = 0; r < local; r++) {
        zb_slice(m->units[m->matrix_unit], zb_mode_world(run->mode, run->ranks, run->nodes), r,
                 &slice, &slices[n].first, &slices[n].count);
        n += slices[n].count > 0;
    }
    ret->engine = run->muon_engine;
    zb_muon_add(ret, &run->matrices, job->page_elems, m->matrices, m->nmatrices, slices, n,
                m->matrix_units);
    free(slices);
    return 0;
}

/* Places the job, with Muon with the most room that fits, as the daemon does. Sets f->fits. 0 or -ENOMEM. */
static int forecast_rooms(const struct zb_run *run, const struct zb_node *node,
                          const struct zb_muon_needs *muon, struct zb_place_job *job,
                          struct zb_place *place, struct zb_forecast *f)
{
    bool streams = job->nbuffers > 0 && (!job->params_resident || !job->state_resident);
    const struct zb_place_job before = *job;
    const struct zb_forecast plain = *f;
    int rc = 0;

    for (unsigned spans = muon->all_bytes > 0 ? ZB_MUON_SPANS_MAX : 1; spans > 0; spans--) {
        struct zb_muon_room room = zb_muon_room(muon, spans, streams);

        zb_place_done(place);
        *job = before;
        *f = plain;
        f->host_matrices = room.bytes;
        f->host_matrices_least = zb_muon_room(muon, 1, streams).bytes;
        f->host_matrices_most = zb_muon_room(muon, ZB_MUON_SPANS_MAX, streams).bytes;
        job->nbuffers += room.slots;
        job->host_bytes -= zb_min_u64(job->host_bytes, room.bytes);
        rc = forecast_place(run, node, job, place, f);
        if (rc < 0 || (f->fits && f->nvme_grad == 0))
            break; /* before gradients go to NVMe, Muon has the least */
    }
    return rc;
}

int zb_forecast(const struct zb_run *run, const struct zb_node *node, struct zb_forecast *ret,
                struct zb_err *err)
{
    struct zb_layout layout = run->layout, matrices = run->matrices;
    struct zb_place_job job = { .page_elems = node->page_elems,
                                .durable = run->durable,
                                .times = 2 };
    struct zb_place_shard *shards = NULL;
    struct zb_muon_needs muon = { 0 };
    struct zb_place place = { 0 };
    uint64_t slice, taken;
    int rc = forecast_check(run, node, err);

    *ret = (struct zb_forecast){ 0 };
    if (rc < 0)
        return rc;
    ret->params = run->model->params;
    ret->local = run->ranks / run->nodes;
    ret->gpus = node->gpus > 0 ? node->gpus : 1;
    rc = forecast_shards(run, ret->local, err);
    if (rc < 0)
        return rc;
    zb_forecast_rank(run, node, ret, &slice);
    for (enum zb_plane p = 0; p < ZB_PLANES; p++)
        if (!zb_run_keeps(run)) /* the daemon keeps nothing */
            layout.block_bytes[p] = matrices.block_bytes[p] = 0;
    if (zb_run_keeps(run))
        ret->host_staging = ret->local * zb_staging_bytes(zb_piece_elems(slice, node->page_elems));
    if (node->nvme_bytes > 0)
        ret->nbuffers = node->nbuffers > 0 ? node->nbuffers
                                           : zb_buffers(node->host_bytes, node->ring_bytes,
                                                        zb_buffer_bytes(node->page_elems));
    ret->host_buffers = ret->nbuffers * zb_buffer_bytes(node->page_elems);
    taken = node->host_taken + ret->host_staging + ret->host_buffers;
    job.nbuffers = ret->nbuffers;
    job.host_bytes = node->host_bytes > taken ? node->host_bytes - taken : 0;
    job.params_resident = run->param < ZB_OFFLOAD_NVME || node->nvme_bytes == 0 ||
                          !zb_mode_cuts(run->mode, ZB_PARAM); /* only stage 3 offloads them */
    job.grads_resident = run->grad == ZB_OFFLOAD_HOST || node->nvme_bytes == 0;
    job.state_resident = run->optimizer != ZB_OFFLOAD_NVME || node->nvme_bytes == 0;
    if (forecast_muon(run, &job, ret->local, &muon) < 0)
        return zb_fail(err, -ENOMEM, "a plan of %u ranks: %m", run->ranks);
    if (zb_model_shards(run->model, &layout, &matrices,
                        zb_mode_world(run->mode, run->ranks, run->nodes), ret->local, &shards,
                        &job.nshards) < 0)
        return zb_fail(err, -ENOMEM, "a plan of %u units over %u ranks: %m", run->model->nunits,
                       run->ranks);
    job.shards = shards;
    ret->gpu_matrices = muon.gpu_bytes;
    rc = zb_place_few(shards, job.nshards, ret->local);
    if (rc == 0)
        rc = forecast_rooms(run, node, &muon, &job, &place, ret);
    if (rc == 0)
        forecast_matrices(node, ret);
    if (rc < 0)
        rc = zb_fail(err, rc, "a plan of %u shards: %m", job.nshards);
    if (rc == 0 && ret->fits)
        zb_forecast_gpu(node, ret);
    if (rc == 0) {
        zb_forecast_time(node, ret);
        zb_forecast_wear(run, node, ret);
    }
    zb_place_done(&place);
    free(shards);
    return rc;
}
