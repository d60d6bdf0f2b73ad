/*
 * grad_add.c - adds gradients from the trainer's memory into the unit's gradient.
 *
 * On the host this is done at once. On a device, a kernel is enqueued on the trainer's stream.
 */
#include <errno.h>

#include "client/zero/pass/pass_priv.h"

static void add_host(const struct zk_ops *ops, enum zb_dtype dtype, const void *from, uint64_t n,
                     float *to)
{
    if (dtype == ZB_F32)
        ops->add_f32(to, from, n);
    else
        (dtype == ZB_BF16 ? ops->add_bf16 : ops->add_f16)(to, from, n);
}

static int add_device(struct zc_zero *z, enum zb_dtype dtype, const void *from, uint64_t n,
                      float *to)
{
    struct zk_gpu_work work = {
        .op = ZK_GPU_ADD,
        .array = { .from = from, .to = to, .n = n, .from_dtype = dtype, .to_dtype = ZB_F32 }
    };
    struct zb_err err = { 0 };
    int rc = zk_gpu_launch(z->device.compute, &work, &err);

    return rc < 0 ? zcz_device_fail(z, rc, &err) : 0;
}

int zc_zero_grad_add(struct zc_zero *z, uint32_t unit, uint64_t first, uint64_t count,
                     enum zc_dtype dtype, const void *grad)
{
    ZCZ_GUARD(z);
    struct zcz_unit *u;
    int rc = zcz_enter_unit(z, unit, &u);
    float *to;

    if (rc < 0)
        return rc;
    if (!zb_range_inside(first, count, u->def.elems) || zb_dtype_bytes((enum zb_dtype)dtype) == 0)
        return zcz_refuse(
            z, -EINVAL,
            "a gradient of elements %llu to %llu of dtype number %d, of unit %u '%s', "
            "which has %llu",
            (unsigned long long)first, (unsigned long long)(first + count), (int)dtype, unit,
            u->def.name, (unsigned long long)u->def.elems);
    rc = zcz_grad_ask(z, unit, &u);
    if (rc < 0 || count == 0)
        return rc;
    to = (float *)u->pass->grad->data + first;
    if (z->device.gpu)
        return add_device(z, (enum zb_dtype)dtype, grad, count, to);
    add_host(z->kernels, (enum zb_dtype)dtype, grad, count, to);
    return 0;
}
