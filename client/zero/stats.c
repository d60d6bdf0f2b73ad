/*
 * stats.c - what was moved, and what is allocated, so far.
 */
#include "client/zero/zero_priv.h"

uint64_t zc_zero_device_bytes(const struct zc_zero *z)
{
    uint64_t whole = z->device.gpu ? z->whole_param.bytes + z->whole_grad.bytes : 0;

    return z->gather_dev.bytes + z->wire_dev.bytes + z->grad_dev.bytes + whole +
           (z->store ? z->store->device_bytes : 0);
}

int zc_zero_stats(struct zc_zero *z, struct zc_zero_stats *ret)
{
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
        .fetched_bytes = z->fetched_bytes,
        .pushed_bytes = z->pushed_bytes,
        .nvme_read_bytes = now.nvme_read_bytes - z->base.nvme_read_bytes,
        .nvme_written_bytes = now.nvme_written_bytes - z->base.nvme_written_bytes,
        .host_bytes = now.host_bytes,
        .nvme_bytes = now.nvme_bytes,
        .gpu_bytes = now.gpu_bytes,
        .grads_nvme_bytes = now.grads_nvme_bytes,
        .gather_buffer_bytes = z->gather_pool.bytes_most + z->wire_pool.bytes_most,
        .grad_buffer_bytes = z->grad_pool.bytes_most,
        .device_bytes = z->gather_dev.bytes_most + z->wire_dev.bytes_most + z->grad_dev.bytes_most +
                        z->store->device_bytes +
                        (z->device.gpu ? z->whole_param.bytes + z->whole_grad.bytes : 0),
        .pinned_bytes = z->device.gpu ? zk_gpu_pinned_bytes(z->device.gpu) : 0,
        .gpu_params_bytes = now.gpu_params_bytes,
        .gpu_why = now.gpu_why ? now.gpu_why : "",
        .comm_bytes = z->gather_bytes + z->reduce_bytes + z->across_bytes + z->other_bytes,
        .comm_gather_bytes = z->gather_bytes,
        .comm_reduce_bytes = z->reduce_bytes,
        .comm_across_bytes = z->across_bytes,
        .stall_seconds = (double)z->stall_ns * 1e-9,
    };
    return 0;
}
