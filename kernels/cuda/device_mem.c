/*
 * device_mem.c - memory of a CUDA GPU, by the driver's functions, and pinned host memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "kernels/cuda/device_priv.h"

CUmemAllocationProp zk_cuda_mem_prop(const struct cuda_gpu *c)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = c->device;
    if (c->can_export)
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return prop;
}

static CUdeviceptr mem_at(const struct zk_gpu_mem *m)
{
    return (CUdeviceptr)(uintptr_t)m->dev;
}

/* Frees an allocation, also one that is only partly made. */
void zk_cuda_mem_free(struct zk_gpu_mem *m)
{
    const struct cuda_gpu *c = gpu_of(m->gpu);

    (void)zk_cuda_enter(c, NULL);
    if (m->mapped)
        (void)c->d.cuMemUnmap(mem_at(m), m->len_bytes);
    if (m->dev)
        (void)c->d.cuMemAddressFree(mem_at(m), m->len_bytes);
    if (m->handle)
        (void)c->d.cuMemRelease(m->handle);
    m->mapped = false;
    m->dev = NULL;
    m->handle = 0;
}

static CUresult mem_access(const struct zk_gpu_mem *m, CUmemAccess_flags flags)
{
    const struct cuda_gpu *c = gpu_of(m->gpu);
    CUmemAccessDesc access;

    memset(&access, 0, sizeof(access));
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = c->device;
    access.flags = flags;
    return c->d.cuMemSetAccess(mem_at(m), m->len_bytes, &access, 1);
}

static int mem_map(struct zk_gpu_mem *m, struct zb_err *err)
{
    const struct cuda_gpu *c = gpu_of(m->gpu);
    CUdeviceptr at = 0;
    CUresult r = c->d.cuMemAddressReserve(&at, m->len_bytes, 0, 0, 0);

    if (r != CUDA_SUCCESS)
        return zk_cuda_driver_fail(c, r, "addresses of GPU memory", err);
    m->dev = (char *)(uintptr_t)at;
    r = c->d.cuMemMap(at, m->len_bytes, 0, m->handle, 0);
    if (r != CUDA_SUCCESS)
        return zk_cuda_driver_fail(c, r, "mapping GPU memory", err);
    m->mapped = true;
    r = mem_access(m, m->writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                  : CU_MEM_ACCESS_FLAGS_PROT_READ);
    if (!m->writable && (r == CUDA_ERROR_NOT_SUPPORTED || r == CUDA_ERROR_INVALID_VALUE))
        r = mem_access(m, CU_MEM_ACCESS_FLAGS_PROT_READWRITE); /* the driver has no read-only
                                                                  access */
    return zk_cuda_driver_fail(c, r, "access to GPU memory", err);
}

int zk_cuda_mem_new(struct zk_gpu_mem *m, struct zb_err *err)
{
    const struct cuda_gpu *c = gpu_of(m->gpu);
    CUmemAllocationProp prop = zk_cuda_mem_prop(c);
    CUmemGenericAllocationHandle handle = 0;
    int rc = zk_cuda_enter(c, err);

    if (rc == 0)
        rc = zk_cuda_driver_fail(c, c->d.cuMemCreate(&handle, m->len_bytes, &prop, 0), "GPU memory",
                                 err);
    m->handle = handle;
    if (rc == 0)
        rc = mem_map(m, err);
    if (rc < 0)
        zk_cuda_mem_free(m);
    return rc;
}

int zk_cuda_mem_import(struct zk_gpu_mem *m, int fd, bool writable, struct zb_err *err)
{
    const struct cuda_gpu *c = gpu_of(m->gpu);
    CUmemGenericAllocationHandle handle = 0;
    int rc = zk_cuda_enter(c, err);

    (void)writable;
    if (rc == 0)
        rc = zk_cuda_driver_fail(
            c,
            c->d.cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            "shared GPU memory", err);
    m->handle = handle;
    if (rc == 0)
        rc = mem_map(m, err);
    if (rc < 0)
        zk_cuda_mem_free(m);
    return rc;
}

int zk_cuda_mem_export(struct zk_gpu_mem *m, int *ret_fd, struct zb_err *err)
{
    const struct cuda_gpu *c = gpu_of(m->gpu);
    int fd = -1, rc = zk_cuda_enter(c, err);

    if (rc == 0 && !c->can_export)
        rc = zb_fail(err, -ENOTSUP, "the driver does not export GPU memory");
    if (rc == 0)
        rc = zk_cuda_driver_fail(c,
                                 c->d.cuMemExportToShareableHandle(
                                     &fd, m->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                                 "exporting GPU memory", err);
    if (rc == 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
        rc = zb_fail(err, -errno, "exporting GPU memory: %m");
        zb_close_fd(&fd);
    }
    if (rc == 0)
        *ret_fd = fd;
    return rc;
}

int zk_cuda_pin(struct zk_gpu *g, void *addr, uint64_t len_bytes, bool read_only,
                struct zb_err *err)
{
    unsigned flags = cudaHostRegisterPortable | (read_only ? cudaHostRegisterReadOnly : 0u);
    int rc = zk_cuda_enter(gpu_of(g), err);

    return rc < 0 ? rc : zk_cuda_fail(cudaHostRegister(addr, len_bytes, flags), "pinning", err);
}

void zk_cuda_unpin(struct zk_gpu *g, void *addr)
{
    (void)zk_cuda_enter(gpu_of(g), NULL);
    (void)zk_cuda_fail(cudaHostUnregister(addr), "unpinning", NULL);
}
