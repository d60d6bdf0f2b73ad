/*
 * device.c - a CUDA GPU. Together with launch.cu this is the plugin that gpu.c loads.
 *
 * MODEL. The CUDA runtime is linked only into the plugin. It looks for the driver itself; if there
 * is none, opening a device fails with an error message. The driver's own functions, for memory
 * that can be mapped and shared, are looked up when a device is opened (struct driver). All threads
 * use the device's primary context, which each call makes current first.
 *
 * ERRORS. The runtime keeps the last error of each thread, and a later launch would report it as
 * its own: zk_cuda_fail() clears it. An error of the device itself cannot be cleared: every later
 * call reports it.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device_priv.h"

#define CAPABILITY_MIN 8 /* sm_80: the oldest that the kernels are compiled for */
#define DRIVER_VERSION 12000

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

/* Whether memory can be exported: even if the device supports it, its environment (a container
 * runtime, a virtual machine) may refuse. A full device does not count as a refusal. */
static bool export_works(const struct cuda_gpu *c, size_t bytes)
{
    CUmemAllocationProp prop = zk_cuda_mem_prop(c);
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

/* Asks what the driver can do with this device's memory. */
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
    prop = zk_cuda_mem_prop(c);
    if (r == CUDA_SUCCESS && vmm)
        r = c->d.cuMemGetAllocationGranularity(&granularity, &prop,
                                               CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (r == CUDA_SUCCESS && !vmm)
        return zb_fail(err, -ENODEV, "no GPU: device %d cannot map its memory", c->device);
    c->base.info.granularity_bytes = granularity;
    if (r == CUDA_SUCCESS)
        c->can_export = c->can_export && export_works(c, granularity);
    return zk_cuda_driver_fail(c, r, "GPU", err);
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
    rc = zk_cuda_enter(c, err);
    if (rc == 0)
        rc = zk_cuda_fail(cudaGetDeviceProperties(&prop, c->device), "GPU", err);
    if (rc == 0 && prop.major < CAPABILITY_MIN)
        rc = zb_fail(err, -ENODEV, "no GPU: '%s' is of compute capability %d.%d, below %d.0",
                     prop.name, prop.major, prop.minor, CAPABILITY_MIN);
    if (rc == 0)
        rc = zk_cuda_fail((cudaError_t)zk_cuda_load(), "loading the kernels of the GPU", err);
    if (rc == 0)
        rc = zk_cuda_fail(cudaMemGetInfo(&free_bytes, &total_bytes), "GPU memory", err);
    if (rc < 0)
        return rc;
    c->base.info.total_bytes = total_bytes;
    c->base.info.pins_read_only = prop.hostRegisterReadOnlySupported != 0;
    (void)snprintf(c->base.info.name, sizeof(c->base.info.name), "%.90s", prop.name);
    device_id(&c->base.info, &prop.uuid);
    (void)snprintf(c->base.pci, sizeof(c->base.pci), "%04x:%02x:%02x.0",
                   (unsigned)prop.pciDomainID & 0xffff, (unsigned)prop.pciBusID & 0xff,
                   (unsigned)prop.pciDeviceID & 0xff);
    rc = driver_load(&c->d, err);
    return rc < 0 ? rc : device_ask(c, err);
}

static void cuda_close(struct zk_gpu *g)
{
    free(gpu_of(g));
}

static int cuda_count(unsigned *ret, struct zb_err *err)
{
    int count = 0;
    cudaError_t e = cudaGetDeviceCount(&count);

    *ret = count > 0 ? (unsigned)count : 0;
    if (e == cudaSuccess)
        return 0;
    (void)cudaGetLastError();
    return zb_fail(err, -ENODEV, "no GPU: %s", cudaGetErrorString(e));
}

/* Whether the device has this UUID ("GPU-...", with or without '-') or this address
 * ("DOMAIN:BUS:DEVICE.FUNCTION"). */
static bool device_is(const struct cudaDeviceProp *prop, const char *text)
{
    static const char uuid[] = "GPU-";
    unsigned domain, bus, device, function, at = 0;

    if (strncmp(text, uuid, strlen(uuid)) != 0)
        return sscanf(text, "%x:%x:%x.%x", &domain, &bus, &device, &function) == 4 &&
               (int)domain == prop->pciDomainID && (int)bus == prop->pciBusID &&
               (int)device == prop->pciDeviceID;
    for (text += strlen(uuid); *text; text++) {
        char digits[3];

        if (*text == '-')
            continue;
        if (at == 2 * sizeof(prop->uuid.bytes))
            return false;
        (void)snprintf(digits, sizeof(digits), "%02x", (unsigned char)prop->uuid.bytes[at / 2]);
        if (tolower((unsigned char)*text) != digits[at % 2])
            return false;
        at++;
    }
    return at == 2 * sizeof(prop->uuid.bytes);
}

/* The number of the device that a name means. */
static int device_find(const char *args, int *ret, struct zb_err *err)
{
    size_t digits = strspn(args, "0123456789");
    unsigned n = 0;
    int rc;

    *ret = atoi(args);
    if (args[digits] == '\0' && digits <= 4)
        return 0;
    if (strncmp(args, "GPU-", 4) != 0 && !strchr(args, ':'))
        return zb_fail(err, -EINVAL, "'cuda:%s' is not a GPU: cuda[:N]", args);
    rc = cuda_count(&n, err);
    for (*ret = 0; rc == 0 && *ret < (int)n; ++*ret) {
        struct cudaDeviceProp prop;

        rc = zk_cuda_fail(cudaGetDeviceProperties(&prop, *ret), "GPU", err);
        if (rc == 0 && device_is(&prop, args))
            return 0;
    }
    return rc < 0 ? rc : zb_fail(err, -ENODEV, "no GPU: there is no '%s'", args);
}

static int cuda_open(const char *args, struct zk_gpu **ret, struct zb_err *err)
{
    struct cuda_gpu *c = calloc(1, sizeof(*c));
    int rc;

    if (!c)
        return zb_fail(err, -ENOMEM, "GPU: %m");
    rc = device_find(args, &c->device, err);
    if (rc == 0)
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
    int rc = zk_cuda_enter(gpu_of(g), err);

    if (rc == 0)
        rc = zk_cuda_fail(cudaMemGetInfo(&free_bytes, &total_bytes), "GPU memory", err);
    if (rc == 0)
        *ret = free_bytes;
    return rc;
}

static int cuda_enter_gpu(struct zk_gpu *g, struct zb_err *err)
{
    return zk_cuda_enter(gpu_of(g), err);
}

static const struct zk_gpu_backend cuda = {
    .name = "cuda",
    .open = cuda_open,
    .count = cuda_count,
    .close = cuda_close,
    .free_bytes = cuda_free_bytes,
    .mem_new = zk_cuda_mem_new,
    .mem_import = zk_cuda_mem_import,
    .mem_export = zk_cuda_mem_export,
    .mem_free = zk_cuda_mem_free,
    .pins_for_all = true,
    .pin_piece_bytes = UINT64_C(1) << 30,
    .pin = zk_cuda_pin,
    .unpin = zk_cuda_unpin,
    .stream_new = zk_cuda_stream_new,
    .stream_free = zk_cuda_stream_free,
    .stream_sync = zk_cuda_stream_sync,
    .stream_native = zk_cuda_stream_native,
    .event_new = zk_cuda_event_new,
    .event_free = zk_cuda_event_free,
    .event_record = zk_cuda_event_record,
    .event_wait = zk_cuda_event_wait,
    .event_query = zk_cuda_event_query,
    .copy = zk_cuda_copy,
    .fill = zk_cuda_fill,
    .signal = zk_cuda_signal,
    .launch = zk_cuda_stream_launch,
    .stream_adopt = zk_cuda_stream_adopt,
    .enter = cuda_enter_gpu,
};

extern ZK_GPU_EXPORT const struct zk_gpu_plugin zk_gpu_plugin;
const struct zk_gpu_plugin zk_gpu_plugin = { .abi = ZK_GPU_ABI, .backend = &cuda };
