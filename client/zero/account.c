/*
 * account.c - computes how much of this rank's own memory model states take; counts what was moved
 * and allocated.
 *
 * MODEL. A plane of a unit is whole on this rank, or its slice is here or in the daemon. What the
 * store keeps is counted in blocks, as it was cut; what is whole is padded to equal slices. If the
 * store is in this process, a whole plane includes the slice; otherwise the slice is stored in
 * addition. (zc_zero.h has the formulas, with p, g and k bytes per parameter for the three planes.)
 *
 * Buffers are counted from the pools: gathered units of stage 3, and gradients on their way.
 */
#include <errno.h>

#include "client/zero/engine.h"
#include "client/zero/pass/pass.h"
#include "client/zero/step/step.h"

/* Adds a unit's planes, for when all of them are allocated. */
static void account_unit(const struct zc_zero *z, const struct zcz_unit *u,
                         struct zc_zero_bytes *ret)
{
    bool daemon = z->options.offload_optimizer != ZC_ZERO_NONE;
    uint64_t *const own[ZB_PLANES] = {
        [ZB_PARAM] = &ret->param, [ZB_GRAD] = &ret->grad, [ZB_STATE] = &ret->state
    };
    uint64_t *const theirs[ZB_PLANES] = { [ZB_PARAM] = &ret->daemon_param,
                                          [ZB_GRAD] = &ret->daemon_grad,
                                          [ZB_STATE] = &ret->daemon_state };

    for (enum zb_plane p = 0; p < ZB_PLANES; p++) {
        uint32_t block = u->layout.block_bytes[p];

        if (zcz_plane_whole(z, p))
            *own[p] += zb_blocks_bytes(block, u->slice * z->shards);
        if (!zcz_whole_in_store(z, p))
            *(daemon ? theirs : own)[p] += zb_blocks_bytes(block, u->count);
    }
}

void zc_zero_bytes(const struct zc_zero *z, struct zc_zero_bytes *ret)
{
    *ret = (struct zc_zero_bytes){
        .gathered = z->pass->gather_pool.bytes + z->pass->gather_dev.bytes +
                    z->pass->wire_pool.bytes + z->pass->wire_dev.bytes,
        .reducing = z->pass->grad_pool.bytes + z->pass->grad_dev.bytes,
    };
    for (uint32_t i = 0; i < z->nunits; i++)
        account_unit(z, &z->units[i], ret);
}

/* The minimum that a step needs in addition to the states: one unit and a prefetched one, the
 * gradients that are on their way, and all gradients if micro-steps add into them. */
static uint64_t account_buffers(const struct zc_zero *z)
{
    uint64_t param = 0, wire = 0, grad = 0, grads = 0;

    for (uint32_t i = 0; i < z->nunits; i++) {
        const struct zcz_unit *u = &z->units[i];
        uint64_t its = u->def.frozen ? 0 : zcz_grad_elems(z, u) * sizeof(float);

        if (z->shards > 1 || zcz_coded(z, u))
            param = zb_max_u64(param, u->slice * z->shards * zb_dtype_bytes(u->layout.dtype));
        if (zcz_coded(z, u))
            wire = zb_max_u64(wire, zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, u->slice * z->shards));
        grad = zb_max_u64(grad, its);
        grads += its;
    }
    if (z->near.column) /* slices of other nodes, twice */
        param *= 3;
    return (z->whole_params ? 0 : (param + wire) * 2) +
           (z->whole_grads                ? 0
            : z->options.accumulate_local ? grads
                                          : grad) +
           (z->world > 1 ? grad : 0);
}

int zcz_account_check(struct zc_zero *z)
{
    uint64_t limit = z->options.memory_bytes, buffers = account_buffers(z), states;
    struct zc_zero_bytes b;

    zc_zero_bytes(z, &b);
    states = b.param + b.grad + b.state;
    if (limit == 0 || states + buffers <= limit)
        return 0;
    return zcz_refuse(
        z, -ENOSPC,
        "stage %d over %u rank%s needs %llu bytes of each rank: %llu of parameters, "
        "%llu of gradients, %llu of optimizer state, and at least %llu of buffers; the "
        "limit is %llu. A higher stage, more ranks or offloading needs less",
        (int)z->options.stage, z->world, z->world == 1 ? "" : "s",
        (unsigned long long)(states + buffers), (unsigned long long)b.param,
        (unsigned long long)b.grad, (unsigned long long)b.state, (unsigned long long)buffers,
        (unsigned long long)limit);
}

/* ---- moved and allocated so far */

void zcz_stats_keep(struct zc_zero *z)
{
    struct zcz_store_stats now = { 0 };

    if (z->store->ops->stats(z->store, &now) < 0)
        zcz_forgive(z); /* counts begin anew */
    z->base.nvme_read_bytes = now.nvme_read_bytes - z->base.nvme_read_bytes;
    z->base.nvme_written_bytes = now.nvme_written_bytes - z->base.nvme_written_bytes;
}

int zcz_stats_begin(struct zc_zero *z)
{
    struct zcz_store_stats now = { 0 };
    int rc = z->store->ops->stats(z->store, &now);

    if (rc < 0)
        return rc;
    now.nvme_read_bytes -= z->base.nvme_read_bytes;
    now.nvme_written_bytes -= z->base.nvme_written_bytes;
    z->base = now;
    return 0;
}

int zcz_stats_restart(struct zc_zero *z)
{
    z->base = (struct zcz_store_stats){ 0 };
    return zcz_stats_begin(z);
}

uint64_t zc_zero_device_bytes(const struct zc_zero *z)
{
    uint64_t whole = z->device.gpu ? z->whole_param.bytes + z->whole_grad.bytes : 0;

    return z->pass->gather_dev.bytes + z->pass->wire_dev.bytes + z->pass->grad_dev.bytes + whole +
           (z->store ? z->store->device_bytes : 0);
}

int zc_zero_stats(struct zc_zero *z, struct zc_zero_stats *ret)
{
    ZCZ_GUARD(z);
    struct zcz_store_stats now = { 0 };
    int rc = zcz_enter(z, true);

    if (rc == 0)
        rc = zcz_stepping_wait(z, "the step in progress, to be counted");
    if (rc == 0)
        rc = z->store->ops->stats(z->store, &now);
    if (rc < 0)
        return rc;
    *ret = (struct zc_zero_stats){
        .fetched_bytes = z->pass->fetched_bytes,
        .pushed_bytes = z->pass->pushed_bytes,
        .nvme_read_bytes = now.nvme_read_bytes - z->base.nvme_read_bytes,
        .nvme_written_bytes = now.nvme_written_bytes - z->base.nvme_written_bytes,
        .host_bytes = now.host_bytes,
        .nvme_bytes = now.nvme_bytes,
        .gpu_bytes = now.gpu_bytes,
        .grads_nvme_bytes = now.grads_nvme_bytes,
        .gather_buffer_bytes = z->pass->gather_pool.bytes_most + z->pass->wire_pool.bytes_most,
        .grad_buffer_bytes = z->pass->grad_pool.bytes_most,
        .device_bytes = z->pass->gather_dev.bytes_most + z->pass->wire_dev.bytes_most +
                        z->pass->grad_dev.bytes_most + z->store->device_bytes +
                        (z->device.gpu ? z->whole_param.bytes + z->whole_grad.bytes : 0),
        .pinned_bytes = z->device.gpu ? zk_gpu_pinned_bytes(z->device.gpu) : 0,
        .gpu_params_bytes = now.gpu_params_bytes,
        .gpu_why = now.gpu_why ? now.gpu_why : "",
        .comm_bytes = z->colls.sent.gather + z->colls.sent.reduce + z->colls.sent.across +
                      z->colls.sent.other,
        .comm_gather_bytes = z->colls.sent.gather,
        .comm_reduce_bytes = z->colls.sent.reduce,
        .comm_across_bytes = z->colls.sent.across,
        .stall_seconds = (double)z->turns.stall_ns * 1e-9,
        .gather_up_bytes = z->device.up_bytes,
        .gather_down_bytes = z->device.down_bytes,
        .comm_nodes_bytes = z->colls.sent.nodes,
        .node_gather = z->pass->chosen,
        .node_gather_why = z->pass->chosen_why,
    };
    return 0;
}
