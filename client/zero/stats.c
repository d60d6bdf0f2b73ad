/*
 * stats.c - bytes moved and allocated so far.
 */
#include "client/zero/engine.h"
#include "client/zero/pass/pass.h"

int zcz_stats_begin(struct zc_zero *z)
{
    return z->store->ops->stats(z->store, &z->base);
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
    struct zcz_wait w = { .what = "the step in progress, to be counted" };
    struct zcz_store_stats now = { 0 };
    int rc = zcz_enter(z, true);

    if (rc == 0)
        rc = zcz_turn(z, 0);
    while (rc == 0 && z->stepping)
        rc = zcz_wait(z, &w);
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
    };
    return 0;
}
