/*
 * daemon_start.c - the start with a daemon: connection, job, units, slices, placement.
 *
 * ON THE GPU. If the daemon has the parameters on this engine's device (ZC_ZERO_GPU), their memory
 * is mapped here, read-only, from place() on, and views are offsets in it. It is unmapped before
 * the job is closed, so that no memory is left stranded.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/zero/core/zero.h"
#include "client/zero/store/daemon_priv.h"
#include "client/zero/store/limbo.h"

#define CONNECT_MS_MAX 5000u

int zcz_daemon_open(struct zcz_store *s)
{
    struct zcz_daemon *d = zcz_daemon_of(s);
    struct zc_options options = {
        .socket = s->z->options.socket,
        .program = "zero",
        .connect_timeout_ms = (uint32_t)zb_min_u64(s->z->timeout_ms, CONNECT_MS_MAX),
        .no_wait = true,
    };
    int rc = zc_open(&d->c, &options);

    if (rc < 0) {
        (void)zcz_refuse(s->z, rc, "%s", d->c ? zc_error(d->c) : "no memory for a connection");
        zc_close(d->c);
        d->c = NULL;
        return rc;
    }
    zc_on_event(d->c, zcz_daemon_on_event, d);
    memcpy(s->node, zc_server(d->c)->instance, sizeof(s->node));
    s->page_elems = zc_server(d->c)->page_elems;
    s->knows_sums = zc_server(d->c)->sums;
    return 0;
}

/* Whether steps may begin early, apart from room. With global clipping, the scale of a step is not known
 * in advance; with micro_steps 0, its end is not unless the trainer announces it. Clipping by tensor needs all slices of a unit in this
 * daemon, or the sums of all, and with a dynamic loss scale an overflow is known too late. */
static enum zc_early early_why(const struct zcz_daemon *d)
{
    const struct zc_zero_options *o = &d->base.z->options;
    bool tensor = o->clip_mode == ZC_CLIP_TENSOR;

    return !(o->overlap & ZC_ZERO_EARLY)                   ? ZC_EARLY_OFF
           : o->micro_steps == 0 && !o->announces          ? ZC_EARLY_MICROS
           : o->clip_mode == ZC_CLIP_GLOBAL && o->clip > 0 ? ZC_EARLY_GLOBAL
           : tensor && o->loss_scale.dynamic               ? ZC_EARLY_SCALE
           : tensor && d->base.node_world != d->base.z->shards && !d->base.knows_sums
               ? ZC_EARLY_OLD
               : ZC_EARLY_YES;
}

/* Whether units are pushed more than once in a step. With micro_steps 0, each step says so itself. */
static bool pushes_differ(const struct zc_zero *z)
{
    return z->options.micro_steps > 0 ? zcz_pushes(z) != 1 : !z->options.announces;
}

static bool early_wanted(const struct zcz_daemon *d)
{
    return early_why(d) == ZC_EARLY_YES;
}

/* Why ranks cannot gather parameters that are on this rank's device; NULL: they can. They read each
 * other's slices on the one device that they share, or gather by collectives: between devices, or
 * through host memory, to which each rank copies its slice. */
static const char *params_apart(const struct zc_zero *z)
{
    const struct zc_zero_options *o = &z->options;
    bool share = zcz_nodes_share(z);

    if (z->shards == 1 || (share && !z->near.several && z->device.common))
        return NULL;
    if (share && o->gather_alone)
        return "each rank reads the slices of all, on several GPUs";
    if (share && (o->node_gather == ZC_NODE_GATHER_HOST || z->near.several))
        return "ranks read each other's slices in host memory (node_gather)";
    return o->quantize_gather && !z->device.ops ? "slices are quantized in host memory" : NULL;
}

static bool params_on_gpu(const struct zc_zero *z)
{
    return z->options.offload_param == ZC_ZERO_GPU && z->device.gpu && !params_apart(z);
}

static enum zc_place place_param(const struct zc_zero *z)
{
    if (params_on_gpu(z))
        return ZC_GPU;
    return z->options.offload_param == ZC_ZERO_NVME || z->options.offload_param == ZC_ZERO_GPU
               ? ZC_NVME
               : ZC_HOST;
}

static bool ring_limits(const struct zc_zero *z)
{
    return z->options.grad_ring && z->options.clip_mode == ZC_CLIP_TENSOR;
}

/* attaches: joins a kept job; `epoch` 0 takes it over. */
static int start_job(struct zcz_daemon *d, bool attaches, uint64_t epoch)
{
    struct zc_zero *z = d->base.z;
    uint64_t slice_most = 0, piece_bytes;
    struct zc_job_options options = {
        .name = z->job,
        .rank = d->base.node_rank,
        .world = d->base.node_world,
        .keep = z->options.keep,
        .attach = attaches,
        .durable = z->options.durable,
        .takeover = attaches && epoch == 0,
        .epoch = epoch ? epoch : d->base.epoch_next,
        .returns = z->options.reconnect_ms > 0,
        .tensor_norms = z->options.clip_mode == ZC_CLIP_TENSOR,
        .offload_param = place_param(z),
        .device = z->device.gpu ? zk_gpu_info(z->device.gpu)->id : NULL,
        .device_node = z->device.gpu ? (uint32_t)(zk_gpu_info(z->device.gpu)->node + 1) : 0,
        .offload_optimizer = z->options.offload_optimizer == ZC_ZERO_HOST ? ZC_HOST : ZC_NVME,
        .offload_grad = z->options.offload_grad == ZC_ZERO_HOST ? ZC_HOST : ZC_NVME,
        .groups = z->options.groups,
        .optimizer = z->options.optimizer,
        .moments = z->options.moments,
        .share = z->options.share,
        .early = early_wanted(d),
        .grad_ring = z->options.grad_ring,
        .grad_ring_keep = z->options.grad_ring_keep,
        .grad_ring_limits = ring_limits(z),
        .muon_engine = z->options.muon_engine,
        .writable = zcz_device_pins_writable(z),
    };
    int rc;

    if (ring_limits(z) && early_why(d) == ZC_EARLY_OLD)
        return zcz_refuse(z, -ENOTSUP,
                          "grad_ring with clipping by tensor on several nodes: the daemon of this "
                          "node is older than sums of tensors over several nodes");
    for (uint32_t i = 0; i < z->nunits; i++)
        slice_most = zb_max_u64(slice_most, z->units[i].slice);
    d->base.piece_elems = zb_piece_elems(slice_most, d->base.page_elems);
    piece_bytes = zb_piece_bytes(d->base.piece_elems);
    options.staging_bytes = zb_staging_bytes(d->base.piece_elems);
    rc = zcz_daemon_wait(d, zc_job_open(d->c, &options, &d->job, zcz_daemon_on_op, &d->op),
                         "the job to open");
    if (rc < 0)
        return rc;
    d->joined = true;
    d->base.epoch = d->job.epoch;
    for (uint32_t i = 0; i < ZB_PIECES; i++)
        d->pieces[i] = (struct zcz_piece){
            .data = (float *)(void *)((char *)d->job.staging + i * piece_bytes),
        };
    return 0;
}

static int start_units(struct zcz_daemon *d)
{
    struct zc_zero *z = d->base.z;
    int rc = 0;

    for (uint32_t i = 0; i < z->nunits && rc == 0; i++)
        rc = zcz_daemon_wait(
            d, zc_unit_define(d->c, d->job.id, &z->units[i].def, zcz_daemon_on_op, &d->op),
            "the daemon to take the units");
    return rc;
}

/* Registers slices of units from `from` on, as many as one request allows. *ret_next is the unit
 * after these. */
static int start_shards(struct zcz_daemon *d, uint32_t from, struct zc_range *ranges,
                        uint32_t *ret_next)
{
    struct zc_zero *z = d->base.z;
    uint32_t most = zc_server(d->c)->shards_max, n = 0, i = from;
    int rc = 0;

    for (; i < z->nunits && n < most; i++)
        if (z->units[i].count > 0)
            ranges[n++] = (struct zc_range){ i, z->units[i].first, z->units[i].count };
    if (n > 0)
        rc = zcz_daemon_wait(
            d, zc_register(d->c, d->job.id, ranges, n, d->ids, zcz_daemon_on_op, &d->op),
            "the daemon to take the slices");
    for (uint32_t u = from, k = 0; u < i && rc == 0; u++)
        if (z->units[u].count > 0)
            d->shards[u] = d->ids[k++];
    *ret_next = i;
    return rc;
}

static int start_all_shards(struct zcz_daemon *d)
{
    struct zc_zero *z = d->base.z;
    struct zc_range *ranges = calloc(z->nunits, sizeof(*ranges));
    int rc = 0;

    d->ids = calloc(z->nunits, sizeof(*d->ids));
    d->shards = calloc(z->nunits, sizeof(*d->shards));
    if (!ranges || !d->ids || !d->shards)
        rc = zcz_refuse(z, -ENOMEM, "no memory for %u units", z->nunits);
    for (uint32_t u = 0; u < z->nunits && rc == 0;)
        rc = start_shards(d, u, ranges, &u);
    free(ranges);
    return rc;
}

int zcz_daemon_attach(struct zcz_store *s, uint64_t epoch)
{
    struct zcz_daemon *d = zcz_daemon_of(s);
    int rc = start_job(d, true, epoch);

    if (rc == -ENOENT && s->epoch_next > 0)
        return zcz_refuse(s->z, rc, "job '%s' was lost with its daemon: it %s", s->z->job,
                          s->z->options.durable ? "had no commit yet" : "was not saved");
    if (rc == -ENOENT)
        s->err.code = 0; /* the job may be created instead */
    if (rc < 0)
        return rc;
    s->npoints = (uint32_t)zb_min_u64(d->job.npoints, ZC_POINTS_MAX);
    memcpy(s->points, d->job.points, sizeof(s->points));
    return 0;
}

int zcz_daemon_join(struct zcz_store *s)
{
    struct zcz_daemon *d = zcz_daemon_of(s);
    int rc = d->joined ? 0 : start_job(d, false, 0);

    if (rc == 0)
        rc = start_units(d);
    return rc == 0 ? start_all_shards(d) : rc;
}

/* Maps the daemon's parameters, read-only if the driver supports that. */
static int place_import(struct zcz_daemon *d)
{
    struct zc_zero *z = d->base.z;
    struct zc_gpu_memory memory = { .mem_fd = -1, .mark_fd = -1 };
    struct zk_gpu_share share;
    struct zb_err err = { 0 };
    int rc = zcz_daemon_wait(d, zc_gpu_share(d->c, d->job.id, &memory, zcz_daemon_on_op, &d->op),
                             "the daemon to share its GPU memory");

    if (rc < 0)
        return rc;
    share = (struct zk_gpu_share){ memory.mem_fd, memory.mark_fd, memory.bytes };
    rc = zk_gpu_import(z->device.gpu, &share, false, &d->params, &err);
    zk_gpu_share_close(&share);
    if (rc < 0)
        return zcz_refuse(
            z, rc, "device '%s' cannot map the parameters that the daemon has on the GPU: %s",
            z->options.device, err.text);
    d->base.params_dev = zk_gpu_addr(d->params);
    return 0;
}

void zcz_daemon_let_go(struct zcz_daemon *d)
{
    d->base.params_dev = NULL;
    zk_gpu_free(d->params);
    d->params = NULL;
}

/* Prepares for the end of the daemon. Of a durable job: what views show if the daemon is lost, as
 * large as the largest slice. Without it, which is no failure, the loss is final. A job that is not
 * durable outlives only a restart in good order, after which nothing is viewed. */
static void place_end(struct zcz_daemon *d)
{
    const struct zc_zero *z = d->base.z;

    d->returns = z->options.reconnect_ms > 0;
    if (!d->returns || !z->options.durable)
        return;
    for (uint32_t i = 0; i < z->nunits; i++)
        d->limbo_bytes =
            zb_max_u64(d->limbo_bytes, zb_plane_bytes(z->units[i].layout.block_bytes[ZB_PARAM],
                                                      d->base.page_elems, z->units[i].slice));
    d->limbo_bytes = zb_round_up(zb_max_u64(d->limbo_bytes, 1), ZB_PAGE_ALIGN);
    d->limbo = zcz_limbo_map(d->limbo_bytes);
    d->returns = d->limbo != NULL;
}

/* Pins what this rank copies to its device: its own slices, in memory or on their way from NVMe. If
 * ranks read each other's slices, all of them. */
static void place_pin(struct zcz_daemon *d)
{
    const struct zc_placement *p = &d->placement;
    const struct zcz_part all = { 0, p->arena_bytes };
    const struct zcz_part own[] = { { p->own_at, p->own_bytes },
                                    { p->arena_bytes - p->ring_bytes, p->ring_bytes } };

    if (zcz_nodes_share(d->base.z))
        zcz_device_pin(d->base.z, p->arena, p->arena_bytes, &all, 1);
    else
        zcz_device_pin(d->base.z, p->arena, p->arena_bytes, own, ZB_COUNT(own));
}

int zcz_daemon_place(struct zcz_store *s)
{
    struct zcz_daemon *d = zcz_daemon_of(s);
    const uint64_t *at = s->z->options.resume ? &s->resume_at : NULL;
    int rc;

    d->placing = true;
    rc = zcz_daemon_wait(
        d, zc_ready(d->c, d->job.id, at, s->z->timeout_ms, &d->placement, zcz_daemon_on_op, &d->op),
        "the daemon to place the job, and the other ranks to be ready");
    d->placing = false;
    s->pins_max = d->placement.ring_bytes == 0 ? UINT32_MAX : ZC_PINS_MIN;
    if (rc == 0 && d->placement.gpu_params > 0)
        rc = place_import(d);
    else if (rc == 0)
        place_end(d);
    if (rc == 0) {
        place_pin(d);
        s->iterations = d->placement.iterations;
        s->applied = d->placement.applied;
        /* a kept job keeps the option that it was opened with */
        s->early = early_wanted(d) && d->placement.early;
        s->early_why = early_why(d);
        if (s->early_why == ZC_EARLY_YES && !s->early)
            s->early_why = ZC_EARLY_ROOM;
        s->rings = d->placement.grads_ringed > 0;
        if (s->rings && (!s->early || pushes_differ(s->z) ||
                         (s->z->options.clip_mode == ZC_CLIP_TENSOR && /* it has no rooms */
                          d->placement.grads_on_nvme == 0)))
            return zcz_refuse(s->z, -EINVAL,
                              "job '%s' is in memory without all of its gradients (grad_ring), "
                              "which these options need",
                              s->z->job);
    }
    return rc;
}

const char *zcz_daemon_why(const struct zcz_daemon *d)
{
    const struct zc_zero *z = d->base.z;

    if (z->options.offload_param != ZC_ZERO_GPU || d->placement.gpu_params > 0)
        return "";
    if (!z->device.gpu)
        return "the trainer computes on the processor";
    if (params_apart(z))
        return params_apart(z);
    return d->placement.gpu_why[0] ? d->placement.gpu_why
                                   : "the job was in memory before, with its parameters elsewhere";
}
