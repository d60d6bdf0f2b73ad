/*
 * double.c - devices, errors and the driver's entry points of the double.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_priv.h"
#include "kernels/gpu/gpu_priv.h"
#include "tests/unit/gpu/double/double_priv.h"

struct double_state dd = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .changed = PTHREAD_COND_INITIALIZER,
    .handles = { &dd.handles, &dd.handles },
    .reserved = { &dd.reserved, &dd.reserved },
    .maps = { &dd.maps, &dd.maps },
    .pins = { &dd.pins, &dd.pins },
    .streams = { &dd.streams, &dd.streams },
    .events = { &dd.events, &dd.events },
    .traits = { .capability = 9 },
};

_Thread_local int double_current = -1;
_Thread_local bool double_in_function;
static _Thread_local cudaError_t last_error;

/* ---- calls */

static uint64_t setting(const char *name, uint64_t usual, uint64_t most)
{
    const char *text = getenv(name);
    uint64_t value = text ? strtoull(text, NULL, 10) : usual;

    return value <= most ? value : most;
}

static void configure(void)
{
    if (dd.bytes > 0)
        return;
    dd.count = (unsigned)setting("CUDA_DOUBLE_DEVICES", 2, CUDA_DOUBLE_DEVICES_MAX);
    dd.bytes = setting("CUDA_DOUBLE_BYTES", UINT64_C(256) << 20, UINT64_MAX);
}

void double_lose(int device)
{
    if (dd.devices[device].lost == cudaSuccess)
        dd.devices[device].lost = cudaErrorIllegalAddress;
    (void)pthread_cond_broadcast(&dd.changed);
}

/* Whether this is the call that a test makes fail. */
static cudaError_t injected(const char *name)
{
    if (dd.fail_in == 0 || --dd.fail_in > 0)
        return cudaSuccess;
    dd.failed = name;
    if (dd.failure == CUDA_DOUBLE_LOST && double_current >= 0)
        double_lose(double_current);
    return dd.failure == CUDA_DOUBLE_NO_MEMORY ? cudaErrorMemoryAllocation : cudaErrorUnknown;
}

cudaError_t double_begin(const char *name, bool frees)
{
    cudaError_t e;

    (void)pthread_mutex_lock(&dd.lock);
    configure();
    e = injected(name);
    if (e == cudaSuccess && double_in_function)
        e = cudaErrorNotPermitted;
    if (e == cudaSuccess && !frees && double_current >= 0)
        e = dd.devices[double_current].lost;
    return e;
}

cudaError_t double_end(cudaError_t e)
{
    (void)pthread_mutex_unlock(&dd.lock);
    if (e != cudaSuccess && e != cudaErrorNotReady)
        last_error = e;
    return e;
}

CUresult double_driver_end(cudaError_t e)
{
    (void)pthread_mutex_unlock(&dd.lock);
    return (CUresult)e; /* since CUDA 10.1 they have the same numbers, where both exist */
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;

    last_error = cudaSuccess;
    return e;
}

const char *cudaGetErrorName(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorInvalidValue:
        return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorIllegalAddress:
        return "cudaErrorIllegalAddress";
    case cudaErrorInvalidResourceHandle:
        return "cudaErrorInvalidResourceHandle";
    default:
        return "cudaErrorUnknown";
    }
}

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
                                        : cudaGetErrorName(e);
}

/* ---- devices */

cudaError_t cudaGetDeviceCount(int *ret)
{
    cudaError_t e = double_begin(__func__, false);

    if (e == cudaSuccess && dd.count == 0)
        e = cudaErrorNoDevice;
    *ret = (int)dd.count;
    return double_end(e);
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t e = double_begin(__func__, true);

    if (e == cudaSuccess && (device < 0 || (unsigned)device >= dd.count))
        e = cudaErrorInvalidDevice;
    if (e == cudaSuccess) {
        double_current = device;
        e = dd.devices[device].lost;
    }
    return double_end(e);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *ret, int device)
{
    cudaError_t e = double_begin(__func__, false);

    if (e == cudaSuccess && (device < 0 || (unsigned)device >= dd.count))
        e = cudaErrorInvalidDevice;
    if (e == cudaSuccess) {
        memset(ret, 0, sizeof(*ret));
        (void)snprintf(ret->name, sizeof(ret->name), "double of CUDA %d", device);
        memset(ret->uuid.bytes, 0xd0 + device, sizeof(ret->uuid.bytes));
        ret->pciBusID = 0x10 + device;
        ret->major = dd.traits.capability;
        ret->hostRegisterReadOnlySupported = dd.traits.pins_read_only;
    }
    return double_end(e);
}

cudaError_t cudaMemGetInfo(size_t *ret_free, size_t *ret_total)
{
    cudaError_t e = double_begin(__func__, false);

    if (e == cudaSuccess && double_current < 0)
        e = cudaErrorDeviceUninitialized;
    if (e == cudaSuccess) {
        *ret_total = dd.bytes;
        *ret_free = dd.bytes - dd.devices[double_current].used_bytes;
    }
    return double_end(e);
}

static CUresult device_get(CUdevice *ret, int device)
{
    cudaError_t e = double_begin("cuDeviceGet", false);

    if (e == cudaSuccess && (device < 0 || (unsigned)device >= dd.count))
        e = cudaErrorInvalidDevice;
    if (e == cudaSuccess)
        *ret = device;
    return double_driver_end(e);
}

static CUresult device_get_attribute(int *ret, CUdevice_attribute attribute, CUdevice device)
{
    cudaError_t e = double_begin("cuDeviceGetAttribute", false);

    if (e == cudaSuccess && (device < 0 || (unsigned)device >= dd.count))
        e = cudaErrorInvalidDevice;
    if (e == cudaSuccess && attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
        *ret = !dd.traits.no_map;
    else if (e == cudaSuccess &&
             attribute == CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)
        *ret = 1;
    else if (e == cudaSuccess)
        e = cudaErrorInvalidValue;
    return double_driver_end(e);
}

static CUresult get_error_string(CUresult r, const char **ret)
{
    *ret = cudaGetErrorString((cudaError_t)r);
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **ret, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *ret_found)
{
    static const struct {
        const char *name;
        void *function;
    } rows[] = { { "cuDeviceGet", (void *)device_get },
                 { "cuDeviceGetAttribute", (void *)device_get_attribute },
                 { "cuGetErrorString", (void *)get_error_string } };
    cudaError_t e = double_begin(__func__, false);
    void *function = double_mem_function(name);

    for (size_t i = 0; i < ZB_COUNT(rows) && !function; i++)
        if (strcmp(rows[i].name, name) == 0)
            function = rows[i].function;
    if (dd.traits.missing && strcmp(dd.traits.missing, name) == 0)
        function = NULL;
    if (e == cudaSuccess && (version < 12000 || flags != cudaEnableDefault))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess) {
        *ret = function;
        *ret_found = function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    }
    return double_end(e);
}

/* ---- for tests */

static void fail_at(unsigned n, enum cuda_double_failure how)
{
    (void)pthread_mutex_lock(&dd.lock);
    dd.fail_in = n;
    dd.failure = how;
    dd.failed = NULL;
    (void)pthread_mutex_unlock(&dd.lock);
}

static const char *failed(void)
{
    const char *name;

    (void)pthread_mutex_lock(&dd.lock);
    name = dd.failed;
    (void)pthread_mutex_unlock(&dd.lock);
    return name;
}

static unsigned list_count(const struct zb_list *list)
{
    unsigned n = 0;

    for (const struct zb_list *at = list->next; at != list; at = at->next)
        n++;
    return n;
}

static const char *left(void)
{
    static char text[160];
    const struct {
        const char *what;
        unsigned n;
    } rows[] = {
        { "handles", list_count(&dd.handles) }, { "reservations", list_count(&dd.reserved) },
        { "maps", list_count(&dd.maps) },       { "pins", list_count(&dd.pins) },
        { "streams", list_count(&dd.streams) }, { "events", list_count(&dd.events) }
    };
    size_t len = 0;

    text[0] = '\0';
    for (size_t i = 0; i < ZB_COUNT(rows); i++)
        if (rows[i].n > 0)
            len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%u %s", len > 0 ? ", " : "",
                                    rows[i].n, rows[i].what);
    return text;
}

static unsigned pageable(void)
{
    return dd.pageable;
}

static void reset(void)
{
    double_streams_drop();
    (void)pthread_mutex_lock(&dd.lock);
    double_mem_drop();
    for (unsigned i = 0; i < CUDA_DOUBLE_DEVICES_MAX; i++)
        dd.devices[i].lost = cudaSuccess;
    dd.traits = (struct cuda_double_traits){ .capability = 9 };
    dd.fail_in = 0;
    (void)pthread_mutex_unlock(&dd.lock);
    last_error = cudaSuccess;
}

extern ZK_GPU_EXPORT const struct cuda_double cuda_double;
const struct cuda_double cuda_double = { fail_at, failed, left, pageable, reset, &dd.traits };
