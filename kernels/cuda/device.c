/*
 * device.c - a GPU of CUDA's: with launch.cu all of the plugin that gpu.c loads.
 *
 * MODEL. The runtime is linked into the plugin, and nowhere else; it finds the driver itself, or
 * does not: then opening says so, and nothing else was asked of it. The driver's own functions, for
 * memory that can be mapped and sent, are looked up when a device is opened (struct driver). All
 * threads use the device's primary context, which each call makes current first.
 *
 * ERRORS. What fails leaves a mark in the runtime, for the thread, that a launch later would take
 * for its own: cuda_fail() wipes it away. What the device itself did wrong stays and is told by
 * every call from then on.
 */
#include <assert.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "kernels/cuda/cuda_priv.h"
#include "kernels/gpu/gpu_priv.h"

#define CAPABILITY_MIN 8 /* sm_80: what the kernels are compiled for, and newer */
#define DRIVER_VERSION 12000

#define DRIVER_FUNCTIONS(do_)                                                          \
    do_(cuDeviceGet) do_(cuDeviceGetAttribute) do_(cuGetErrorString) do_(cuMemCreate)  \
        do_(cuMemRelease) do_(cuMemAddressReserve) do_(cuMemAddressFree) do_(cuMemMap) \
            do_(cuMemUnmap) do_(cuMemSetAccess) do_(cuMemGetAllocationGranularity)     \
                do_(cuMemExportToShareableHandle) do_(cuMemImportFromShareableHandle)

#define DRIVER_MEMBER(f) __typeof__(f) *f;

struct driver {
    DRIVER_FUNCTIONS(DRIVER_MEMBER)
};

struct cuda_gpu {
    struct zk_gpu base;
    int device;
    bool can_export;
    struct driver d;
};

struct cuda_stream {
    struct zk_gpu_stream base;
    cudaStream_t s;
    bool adopted; /* somebody else ends it */
};

struct cuda_event {
    struct zk_gpu_event base;
    cudaEvent_t e;
};

static struct cuda_gpu *gpu_of(struct zk_gpu *g)
{
    return zb_container_of(g, struct cuda_gpu, base);
}

static struct cuda_stream *stream_of(struct zk_gpu_stream *s)
{
    return zb_container_of(s, struct cuda_stream, base);
}

static struct cuda_event *event_of(struct zk_gpu_event *e)
{
    return zb_container_of(e, struct cuda_event, base);
}

/* ---- errors */

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

/* 0, or what the runtime says about `what`. */
static int cuda_fail(cudaError_t e, const char *what, struct zb_err *err)
{
    if (e == cudaSuccess)
        return 0;
    (void)cudaGetLastError();
    return zb_fail(err, runtime_errno(e), "%s: %s (%s)", what, cudaGetErrorString(e),
                   cudaGetErrorName(e));
}

static int driver_fail(const struct cuda_gpu *c, CUresult r, const char *what, struct zb_err *err)
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

/* Makes the device's context that of the calling thread. */
static int cuda_enter(const struct cuda_gpu *c, struct zb_err *err)
{
    return cuda_fail(cudaSetDevice(c->device), "GPU", err);
}

static int cuda_enter_gpu(struct zk_gpu *g, struct zb_err *err)
{
    return cuda_enter(gpu_of(g), err);
}

/* ---- the device */

static int driver_load(struct driver *d, struct zb_err *err)
{
#define DRIVER_ROW(f) { #f, (void **)&d->f },
    const struct {
        const char *name;
        void **at;
    } rows[] = { DRIVER_FUNCTIONS(DRIVER_ROW) };

    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
        cudaError_t e = cudaGetDriverEntryPointByVersion(rows[i].name, rows[i].at, DRIVER_VERSION,
                                                         cudaEnableDefault, &found);

        if (e != cudaSuccess || found != cudaDriverEntryPointSuccess || !*rows[i].at) {
            (void)cudaGetLastError();
            return zb_fail(err, -ENODEV, "no GPU: the driver has no %s", rows[i].name);
        }
    }
    return 0;
}

static CUmemAllocationProp mem_prop(const struct cuda_gpu *c)
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

/* Whether memory that can be sent is to be had: what the device could do, the machine around it (a
 * container's runtime, a virtual machine) may refuse. A device that is full has not refused. */
static bool export_works(const struct cuda_gpu *c, size_t bytes)
{
    CUmemAllocationProp prop = mem_prop(c);
    CUmemGenericAllocationHandle handle = 0;
    int fd = -1;
    CUresult r = c->d.cuMemCreate(&handle, bytes, &prop, 0);

    if (r != CUDA_SUCCESS)
        return r == CUDA_ERROR_OUT_OF_MEMORY;
    r = c->d.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    zb_close_fd(&fd);
    (void)c->d.cuMemRelease(handle);
    return r == CUDA_SUCCESS;
}

/* What the driver can do with this device's memory. */
static int device_ask(struct cuda_gpu *c, struct zb_err *err)
{
    CUmemAllocationProp prop;
    CUdevice device;
    int vmm = 0, posix = 0;
    size_t granularity = 0;
    CUresult r = c->d.cuDeviceGet(&device, c->device);

    if (r == CUDA_SUCCESS)
        r = c->d.cuDeviceGetAttribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                      device);
    if (r == CUDA_SUCCESS)
        r = c->d.cuDeviceGetAttribute(
            &posix, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device);
    c->can_export = posix != 0;
    prop = mem_prop(c);
    if (r == CUDA_SUCCESS && vmm)
        r = c->d.cuMemGetAllocationGranularity(&granularity, &prop,
                                               CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (r == CUDA_SUCCESS && !vmm)
        return zb_fail(err, -ENODEV, "no GPU: device %d cannot map its memory", c->device);
    c->base.info.granularity_bytes = granularity;
    if (r == CUDA_SUCCESS)
        c->can_export = c->can_export && export_works(c, granularity);
    return driver_fail(c, r, "GPU", err);
}

static void device_id(struct zk_gpu_info *info, const cudaUUID_t *uuid)
{
    size_t len = (size_t)snprintf(info->id, sizeof(info->id), "cuda-");

    for (size_t i = 0; i < sizeof(uuid->bytes); i++, len += 2)
        (void)snprintf(info->id + len, sizeof(info->id) - len, "%02x",
                       (unsigned char)uuid->bytes[i]);
}

static int device_build(struct cuda_gpu *c, struct zb_err *err)
{
    struct cudaDeviceProp prop;
    int count = 0, rc;
    size_t free_bytes, total_bytes;
    cudaError_t e = cudaGetDeviceCount(&count);

    if (e != cudaSuccess || c->device >= count) {
        (void)cudaGetLastError();
        return zb_fail(err, -ENODEV, "no GPU: %s",
                       e != cudaSuccess ? cudaGetErrorString(e) : "there are fewer devices");
    }
    rc = cuda_enter(c, err);
    if (rc == 0)
        rc = cuda_fail(cudaGetDeviceProperties(&prop, c->device), "GPU", err);
    if (rc == 0 && prop.major < CAPABILITY_MIN)
        rc = zb_fail(err, -ENODEV, "no GPU: '%s' is of compute capability %d.%d, below %d.0",
                     prop.name, prop.major, prop.minor, CAPABILITY_MIN);
    if (rc == 0)
        rc = cuda_fail((cudaError_t)zk_cuda_load(), "loading the kernels of the GPU", err);
    if (rc == 0)
        rc = cuda_fail(cudaMemGetInfo(&free_bytes, &total_bytes), "GPU memory", err);
    if (rc < 0)
        return rc;
    c->base.info.total_bytes = total_bytes;
    c->base.info.pins_read_only = prop.hostRegisterReadOnlySupported != 0;
    (void)snprintf(c->base.info.name, sizeof(c->base.info.name), "%.90s", prop.name);
    device_id(&c->base.info, &prop.uuid);
    rc = driver_load(&c->d, err);
    return rc < 0 ? rc : device_ask(c, err);
}

static void cuda_close(struct zk_gpu *g)
{
    free(gpu_of(g));
}

static int cuda_open(const char *args, struct zk_gpu **ret, struct zb_err *err)
{
    size_t digits = strspn(args, "0123456789");
    struct cuda_gpu *c;
    int rc;

    if (args[digits] != '\0' || digits > 4)
        return zb_fail(err, -EINVAL, "'cuda:%s' is no GPU: cuda[:N]", args);
    c = calloc(1, sizeof(*c));
    if (!c)
        return zb_fail(err, -ENOMEM, "GPU: %m");
    c->device = atoi(args);
    rc = device_build(c, err);
    if (rc == 0)
        *ret = &c->base;
    else
        cuda_close(&c->base);
    return rc;
}

static int cuda_free_bytes(struct zk_gpu *g, uint64_t *ret, struct zb_err *err)
{
    size_t free_bytes, total_bytes;
    int rc = cuda_enter(gpu_of(g), err);

    if (rc == 0)
        rc = cuda_fail(cudaMemGetInfo(&free_bytes, &total_bytes), "GPU memory", err);
    if (rc == 0)
        *ret = free_bytes;
    return rc;
}

/* ---- memory */

static CUdeviceptr mem_at(const struct zk_gpu_mem *m)
{
    return (CUdeviceptr)(uintptr_t)m->dev;
}

/* Takes what was built of it apart. */
static void cuda_mem_free(struct zk_gpu_mem *m)
{
    const struct cuda_gpu *c = gpu_of(m->gpu);

    (void)cuda_enter(c, NULL);
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
        return driver_fail(c, r, "addresses of GPU memory", err);
    m->dev = (char *)(uintptr_t)at;
    r = c->d.cuMemMap(at, m->len_bytes, 0, m->handle, 0);
    if (r != CUDA_SUCCESS)
        return driver_fail(c, r, "mapping GPU memory", err);
    m->mapped = true;
    r = mem_access(m, m->writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                  : CU_MEM_ACCESS_FLAGS_PROT_READ);
    if (!m->writable && (r == CUDA_ERROR_NOT_SUPPORTED || r == CUDA_ERROR_INVALID_VALUE))
        r = mem_access(m, CU_MEM_ACCESS_FLAGS_PROT_READWRITE); /* it knows no reading alone */
    return driver_fail(c, r, "access to GPU memory", err);
}

static int cuda_mem_new(struct zk_gpu_mem *m, struct zb_err *err)
{
    const struct cuda_gpu *c = gpu_of(m->gpu);
    CUmemAllocationProp prop = mem_prop(c);
    CUmemGenericAllocationHandle handle = 0;
    int rc = cuda_enter(c, err);

    if (rc == 0)
        rc = driver_fail(c, c->d.cuMemCreate(&handle, m->len_bytes, &prop, 0), "GPU memory", err);
    m->handle = handle;
    if (rc == 0)
        rc = mem_map(m, err);
    if (rc < 0)
        cuda_mem_free(m);
    return rc;
}

static int cuda_mem_import(struct zk_gpu_mem *m, int fd, bool writable, struct zb_err *err)
{
    const struct cuda_gpu *c = gpu_of(m->gpu);
    CUmemGenericAllocationHandle handle = 0;
    int rc = cuda_enter(c, err);

    (void)writable;
    if (rc == 0)
        rc = driver_fail(
            c,
            c->d.cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd,
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            "shared GPU memory", err);
    m->handle = handle;
    if (rc == 0)
        rc = mem_map(m, err);
    if (rc < 0)
        cuda_mem_free(m);
    return rc;
}

static int cuda_mem_export(struct zk_gpu_mem *m, int *ret_fd, struct zb_err *err)
{
    const struct cuda_gpu *c = gpu_of(m->gpu);
    int fd = -1, rc = cuda_enter(c, err);

    if (rc == 0 && !c->can_export)
        rc = zb_fail(err, -ENOTSUP, "the driver does not export GPU memory");
    if (rc == 0)
        rc = driver_fail(c,
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

static int cuda_pin(struct zk_gpu *g, void *addr, uint64_t len_bytes, bool read_only,
                    struct zb_err *err)
{
    unsigned flags = cudaHostRegisterPortable | (read_only ? cudaHostRegisterReadOnly : 0u);
    int rc = cuda_enter(gpu_of(g), err);

    return rc < 0 ? rc : cuda_fail(cudaHostRegister(addr, len_bytes, flags), "pinning", err);
}

static void cuda_unpin(struct zk_gpu *g, void *addr)
{
    (void)cuda_enter(gpu_of(g), NULL);
    (void)cuda_fail(cudaHostUnregister(addr), "unpinning", NULL);
}

/* ---- streams and events */

static int cuda_stream_new(struct zk_gpu *g, struct zk_gpu_stream **ret, struct zb_err *err)
{
    struct cuda_stream *s = calloc(1, sizeof(*s));
    int rc = s ? cuda_enter(gpu_of(g), err) : zb_fail(err, -ENOMEM, "a stream: %m");

    if (rc == 0)
        rc = cuda_fail(cudaStreamCreateWithFlags(&s->s, cudaStreamNonBlocking), "a stream", err);
    if (rc < 0) {
        free(s);
        return rc;
    }
    s->base.gpu = g;
    *ret = &s->base;
    return 0;
}

static void cuda_stream_free(struct zk_gpu_stream *base)
{
    struct cuda_stream *s = stream_of(base);

    (void)cuda_enter(gpu_of(base->gpu), NULL);
    (void)cuda_fail(cudaStreamSynchronize(s->s), "a stream", NULL);
    if (!s->adopted)
        (void)cuda_fail(cudaStreamDestroy(s->s), "a stream", NULL);
    free(s);
}

static int cuda_stream_adopt(struct zk_gpu *g, void *native, struct zk_gpu_stream **ret,
                             struct zb_err *err)
{
    struct cuda_stream *s = calloc(1, sizeof(*s));

    if (!s)
        return zb_fail(err, -ENOMEM, "a stream: %m");
    s->base.gpu = g;
    s->s = native;
    s->adopted = true;
    *ret = &s->base;
    return 0;
}

/* Not ready is no failure. */
static int ready(cudaError_t e, const char *what, struct zb_err *err)
{
    if (e != cudaErrorNotReady)
        return cuda_fail(e, what, err);
    (void)cudaGetLastError();
    return -EAGAIN;
}

static int cuda_stream_query(struct zk_gpu_stream *s, struct zb_err *err)
{
    int rc = cuda_enter(gpu_of(s->gpu), err);

    return rc < 0 ? rc : ready(cudaStreamQuery(stream_of(s)->s), "works of the GPU", err);
}

static int cuda_stream_sync(struct zk_gpu_stream *s, struct zb_err *err)
{
    int rc = cuda_enter(gpu_of(s->gpu), err);

    return rc < 0 ? rc : cuda_fail(cudaStreamSynchronize(stream_of(s)->s), "works of the GPU", err);
}

static void *cuda_stream_native(struct zk_gpu_stream *s)
{
    return stream_of(s)->s;
}

static int cuda_event_new(struct zk_gpu *g, struct zk_gpu_event **ret, struct zb_err *err)
{
    struct cuda_event *e = calloc(1, sizeof(*e));
    int rc = e ? cuda_enter(gpu_of(g), err) : zb_fail(err, -ENOMEM, "an event: %m");

    if (rc == 0)
        rc = cuda_fail(cudaEventCreateWithFlags(&e->e, cudaEventDisableTiming), "an event", err);
    if (rc < 0) {
        free(e);
        return rc;
    }
    e->base.gpu = g;
    *ret = &e->base;
    return 0;
}

static void cuda_event_free(struct zk_gpu_event *base)
{
    struct cuda_event *e = event_of(base);

    (void)cuda_enter(gpu_of(base->gpu), NULL);
    (void)cuda_fail(cudaEventDestroy(e->e), "an event", NULL);
    free(e);
}

static int cuda_event_record(struct zk_gpu_event *e, struct zk_gpu_stream *s, struct zb_err *err)
{
    int rc = cuda_enter(gpu_of(s->gpu), err);

    return rc < 0 ? rc
                  : cuda_fail(cudaEventRecord(event_of(e)->e, stream_of(s)->s), "an event", err);
}

static int cuda_event_wait(struct zk_gpu_event *e, struct zk_gpu_stream *s, struct zb_err *err)
{
    int rc = cuda_enter(gpu_of(s->gpu), err);

    return rc < 0 ? rc
                  : cuda_fail(cudaStreamWaitEvent(stream_of(s)->s, event_of(e)->e, 0), "an event",
                              err);
}

static int cuda_event_query(struct zk_gpu_event *e, struct zb_err *err)
{
    int rc = cuda_enter(gpu_of(e->gpu), err);

    return rc < 0 ? rc : ready(cudaEventQuery(event_of(e)->e), "an event", err);
}

/* ---- works */

static int cuda_copy(struct zk_gpu_stream *s, enum zk_gpu_way way, void *to, const void *from,
                     uint64_t len_bytes, struct zb_err *err)
{
    static const enum cudaMemcpyKind kinds[] = {
        [ZK_GPU_TO_DEVICE] = cudaMemcpyHostToDevice,
        [ZK_GPU_TO_HOST] = cudaMemcpyDeviceToHost,
        [ZK_GPU_WITHIN] = cudaMemcpyDeviceToDevice,
    };
    int rc = cuda_enter(gpu_of(s->gpu), err);

    if (rc < 0 || len_bytes == 0)
        return rc;
    return cuda_fail(cudaMemcpyAsync(to, from, len_bytes, kinds[way], stream_of(s)->s),
                     "a copy of the GPU", err);
}

static int cuda_fill(struct zk_gpu_stream *s, void *dev, uint8_t byte, uint64_t len_bytes,
                     struct zb_err *err)
{
    int rc = cuda_enter(gpu_of(s->gpu), err);

    if (rc < 0 || len_bytes == 0)
        return rc;
    return cuda_fail(cudaMemsetAsync(dev, byte, len_bytes, stream_of(s)->s), "GPU memory", err);
}

static void signal_on_reached(void *arg)
{
    (void)eventfd_write((int)(intptr_t)arg, 1);
}

static int cuda_signal(struct zk_gpu_stream *s, int fd, struct zb_err *err)
{
    int rc = cuda_enter(gpu_of(s->gpu), err);

    return rc < 0 ? rc
                  : cuda_fail(cudaLaunchHostFunc(stream_of(s)->s, signal_on_reached,
                                                 (void *)(intptr_t)fd),
                              "a signal of the GPU", err);
}

static int cuda_launch(struct zk_gpu_stream *s, const struct zk_gpu_work *work, struct zb_err *err)
{
    int rc = cuda_enter(gpu_of(s->gpu), err);

    return rc < 0 ? rc
                  : cuda_fail((cudaError_t)zk_cuda_launch(work, stream_of(s)->s),
                              "a kernel of the GPU", err);
}

static const struct zk_gpu_backend cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .free_bytes = cuda_free_bytes,
    .mem_new = cuda_mem_new,
    .mem_import = cuda_mem_import,
    .mem_export = cuda_mem_export,
    .mem_free = cuda_mem_free,
    .pin_piece_bytes = UINT64_C(1) << 30,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .stream_new = cuda_stream_new,
    .stream_free = cuda_stream_free,
    .stream_query = cuda_stream_query,
    .stream_sync = cuda_stream_sync,
    .stream_native = cuda_stream_native,
    .event_new = cuda_event_new,
    .event_free = cuda_event_free,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .event_query = cuda_event_query,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .signal = cuda_signal,
    .launch = cuda_launch,
    .stream_adopt = cuda_stream_adopt,
    .enter = cuda_enter_gpu,
};

extern ZK_GPU_EXPORT const struct zk_gpu_plugin zk_gpu_plugin;
const struct zk_gpu_plugin zk_gpu_plugin = { .abi = ZK_GPU_ABI, .backend = &cuda };
