/*
 * device_error.c - errors of the runtime and the driver, as zb_err; the context of a call.
 */
#include <errno.h>

#include "kernels/cuda/device_priv.h"

static int runtime_errno(cudaError_t e)
{
    switch (e) {
    case cudaErrorMemoryAllocation:
        return -ENOMEM;
    case cudaErrorInvalidValue:
        return -EINVAL;
    case cudaErrorHostMemoryAlreadyRegistered:
        return -EEXIST;
    case cudaErrorHostMemoryNotRegistered:
        return -ENOENT;
    case cudaErrorNotSupported:
        return -ENOTSUP;
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
        return -EFAULT;
    default:
        return -EIO;
    }
}

int zk_cuda_fail(cudaError_t e, const char *what, struct zb_err *err)
{
    if (e == cudaSuccess)
        return 0;
    (void)cudaGetLastError();
    return zb_fail(err, runtime_errno(e), "%s: %s (%s)", what, cudaGetErrorString(e),
                   cudaGetErrorName(e));
}

int zk_cuda_driver_fail(const struct cuda_gpu *c, CUresult r, const char *what, struct zb_err *err)
{
    const char *text = "unknown";
    int code = -EIO;

    if (r == CUDA_SUCCESS)
        return 0;
    (void)c->d.cuGetErrorString(r, &text);
    if (r == CUDA_ERROR_OUT_OF_MEMORY)
        code = -ENOMEM;
    else if (r == CUDA_ERROR_INVALID_VALUE || r == CUDA_ERROR_INVALID_HANDLE)
        code = -EINVAL;
    else if (r == CUDA_ERROR_NOT_SUPPORTED)
        code = -ENOTSUP;
    return zb_fail(err, code, "%s: %s (%d)", what, text, (int)r);
}

int zk_cuda_enter(const struct cuda_gpu *c, struct zb_err *err)
{
    return zk_cuda_fail(cudaSetDevice(c->device), "GPU", err);
}
