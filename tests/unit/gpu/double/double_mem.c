/*
 * double_mem.c - memory of the double: the driver's functions for it, and pinned host memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit/gpu/double/double_priv.h"

#define JUNK 0xa5 /* fresh memory is filled with it */

struct double_handle {
    struct zb_list node;
    CUmemGenericAllocationHandle id;
    int fd, device;
    uint64_t len;
    unsigned refs; /* the handle until it is released, and maps */
    bool released, can_export, imported;
};

struct double_range {
    struct zb_list node;
    char *at;
    uint64_t len;
};

struct double_map {
    struct zb_list node;
    char *at, *shadow;
    uint64_t len;
    struct double_handle *of;
    int device; /* that may access it; -1: none yet */
    bool writable;
    unsigned busy; /* works that use it now */
};

struct double_pin {
    struct zb_list node;
    char *at;
    uint64_t len;
    bool read_only;
};

/* ---- lookups; the lock is held */

static bool whole(uint64_t len)
{
    return len > 0 && len % CUDA_DOUBLE_GRANULARITY == 0;
}

static struct double_handle *handle_find(CUmemGenericAllocationHandle id)
{
    zb_list_each(pos, &dd.handles)
    {
        struct double_handle *h = zb_container_of(pos, struct double_handle, node);

        if (h->id == id && !h->released)
            return h;
    }
    return NULL;
}

static void handle_put(struct double_handle *h)
{
    if (--h->refs > 0)
        return;
    if (!h->imported)
        dd.devices[h->device].used_bytes -= h->len;
    zb_list_remove(&h->node);
    zb_close_fd(&h->fd);
    free(h);
}

static struct double_map *map_at(const void *at, uint64_t len)
{
    const char *first = at;

    zb_list_each(pos, &dd.maps)
    {
        struct double_map *m = zb_container_of(pos, struct double_map, node);

        if (first >= m->at && first < m->at + m->len && len <= m->len - (uint64_t)(first - m->at))
            return m;
    }
    return NULL;
}

void *double_mem_find(int device, const void *at, uint64_t len, bool writes,
                      struct double_map **ret)
{
    struct double_map *m = map_at(at, len);

    if (!m || m->device != device || (writes && !m->writable))
        return NULL;
    m->busy++;
    *ret = m;
    return m->shadow + ((const char *)at - m->at);
}

void double_mem_idle(struct double_map *map)
{
    map->busy--;
}

bool double_mem_is(const void *at, uint64_t len)
{
    return map_at(at, len) != NULL;
}

/* Begins a call that needs the context of a device. */
static cudaError_t begin(const char *name, bool frees)
{
    cudaError_t e = double_begin(name, frees);

    return e == cudaSuccess && double_current < 0 ? cudaErrorDeviceUninitialized : e;
}

static bool prop_valid(const CUmemAllocationProp *prop)
{
    return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           prop->location.id == double_current;
}

/* ---- physical memory */

static cudaError_t handle_new(int fd, int device, uint64_t len, CUmemGenericAllocationHandle *ret)
{
    static CUmemGenericAllocationHandle next = 0x1000;
    struct double_handle *h = calloc(1, sizeof(*h));

    if (!h)
        return cudaErrorMemoryAllocation;
    h->id = *ret = next++;
    h->fd = fd;
    h->device = device;
    h->len = len;
    h->refs = 1;
    zb_list_init(&h->node);
    zb_list_push_back(&dd.handles, &h->node);
    return cudaSuccess;
}

static cudaError_t create(CUmemGenericAllocationHandle *ret, size_t len,
                          const CUmemAllocationProp *prop)
{
    struct double_device *d = &dd.devices[double_current];
    char name[32];
    cudaError_t e;
    int fd;

    if (len > dd.bytes - d->used_bytes)
        return cudaErrorMemoryAllocation;
    (void)snprintf(name, sizeof(name), "cuda-double-%d", double_current);
    fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)len) < 0) {
        zb_close_fd(&fd);
        return cudaErrorMemoryAllocation;
    }
    e = handle_new(fd, double_current, len, ret);
    if (e != cudaSuccess) {
        zb_close_fd(&fd);
        return e;
    }
    handle_find(*ret)->can_export = prop->requestedHandleTypes ==
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    d->used_bytes += len;
    return cudaSuccess;
}

static CUresult mem_create(CUmemGenericAllocationHandle *ret, size_t len,
                           const CUmemAllocationProp *prop, unsigned long long flags)
{
    cudaError_t e = begin("cuMemCreate", false);

    if (e == cudaSuccess && (!whole(len) || !prop_valid(prop) || flags != 0))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess)
        e = create(ret, len, prop);
    return double_driver_end(e);
}

static CUresult mem_release(CUmemGenericAllocationHandle id)
{
    cudaError_t e = begin("cuMemRelease", true);
    struct double_handle *h = handle_find(id);

    if (e == cudaSuccess && !h)
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess) {
        h->released = true;
        handle_put(h);
    }
    return double_driver_end(e);
}

static CUresult mem_granularity(size_t *ret, const CUmemAllocationProp *prop,
                                CUmemAllocationGranularity_flags which)
{
    cudaError_t e = begin("cuMemGetAllocationGranularity", false);

    (void)which;
    if (e == cudaSuccess && !prop_valid(prop))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess)
        *ret = CUDA_DOUBLE_GRANULARITY;
    return double_driver_end(e);
}

/* The descriptor is the caller's, and without CLOEXEC, as the driver's. */
static CUresult mem_export(void *ret, CUmemGenericAllocationHandle id,
                           CUmemAllocationHandleType type, unsigned long long flags)
{
    cudaError_t e = begin("cuMemExportToShareableHandle", false);
    const struct double_handle *h = handle_find(id);
    int fd = -1;

    if (e == cudaSuccess &&
        (!h || !h->can_export || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess && dd.traits.no_export)
        e = cudaErrorNotPermitted;
    if (e == cudaSuccess && (fd = dup(h->fd)) < 0)
        e = cudaErrorOperatingSystem;
    if (e == cudaSuccess)
        memcpy(ret, &fd, sizeof(fd));
    return double_driver_end(e);
}

/* The device of memory of a double, which its name says; -1: it is something else. */
static int device_of(int fd)
{
    char link[48], name[64] = "";
    int device = -1;

    (void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    if (readlink(link, name, sizeof(name) - 1) < 0 ||
        sscanf(name, "/memfd:cuda-double-%d", &device) != 1)
        return -1;
    return device;
}

static CUresult mem_import(CUmemGenericAllocationHandle *ret, void *handle,
                           CUmemAllocationHandleType type)
{
    cudaError_t e = begin("cuMemImportFromShareableHandle", false);
    int fd = (int)(intptr_t)handle, device = device_of(fd), own = -1;
    off_t len = device >= 0 ? lseek(fd, 0, SEEK_END) : 0;

    if (e == cudaSuccess && (device != double_current || !whole((uint64_t)len) ||
                             type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess && (own = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0)
        e = cudaErrorOperatingSystem;
    if (e == cudaSuccess)
        e = handle_new(own, device, (uint64_t)len, ret);
    if (e == cudaSuccess)
        handle_find(*ret)->imported = true;
    else
        zb_close_fd(&own);
    return double_driver_end(e);
}

/* ---- addresses and maps */

/* Addresses that nobody can use, aligned as the driver's. */
static void *addresses(uint64_t len)
{
    uint64_t more = len + CUDA_DOUBLE_GRANULARITY;
    char *all = mmap(NULL, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint64_t before;

    if (all == MAP_FAILED)
        return NULL;
    before = (CUDA_DOUBLE_GRANULARITY - (uintptr_t)all % CUDA_DOUBLE_GRANULARITY) %
             CUDA_DOUBLE_GRANULARITY;
    if (before > 0)
        (void)munmap(all, before);
    (void)munmap(all + before + len, more - before - len);
    return all + before;
}

static CUresult address_reserve(CUdeviceptr *ret, size_t len, size_t alignment, CUdeviceptr at,
                                unsigned long long flags)
{
    cudaError_t e = begin("cuMemAddressReserve", false);
    struct double_range *r = NULL;

    if (e == cudaSuccess && (!whole(len) || alignment != 0 || at != 0 || flags != 0))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess && (!(r = calloc(1, sizeof(*r))) || !(r->at = addresses(len))))
        e = cudaErrorMemoryAllocation;
    if (e == cudaSuccess) {
        r->len = len;
        zb_list_init(&r->node);
        zb_list_push_back(&dd.reserved, &r->node);
        *ret = (CUdeviceptr)(uintptr_t)r->at;
    } else {
        free(r);
    }
    return double_driver_end(e);
}

static struct double_range *range_at(CUdeviceptr at, uint64_t len)
{
    zb_list_each(pos, &dd.reserved)
    {
        struct double_range *r = zb_container_of(pos, struct double_range, node);

        if ((CUdeviceptr)(uintptr_t)r->at == at && r->len == len)
            return r;
    }
    return NULL;
}

static bool mapped_in_part(const char *at, uint64_t len)
{
    zb_list_each(pos, &dd.maps)
    {
        const struct double_map *m = zb_container_of(pos, struct double_map, node);

        if (at < m->at + m->len && m->at < at + len)
            return true;
    }
    return false;
}

static void range_free(struct double_range *r)
{
    (void)munmap(r->at, r->len);
    zb_list_remove(&r->node);
    free(r);
}

static CUresult address_free(CUdeviceptr at, size_t len)
{
    cudaError_t e = begin("cuMemAddressFree", true);
    struct double_range *r = range_at(at, len);

    if (e == cudaSuccess && (!r || mapped_in_part(r->at, r->len)))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess)
        range_free(r);
    return double_driver_end(e);
}

static cudaError_t map(struct double_range *r, struct double_handle *h)
{
    struct double_map *m = calloc(1, sizeof(*m));
    void *shadow = mmap(NULL, h->len, PROT_READ | PROT_WRITE, MAP_SHARED, h->fd, 0);

    if (!m || shadow == MAP_FAILED) {
        free(m);
        return cudaErrorMemoryAllocation;
    }
    *m = (struct double_map){ .at = r->at, .shadow = shadow, .len = r->len, .of = h, .device = -1 };
    if (!h->imported && h->refs == 1)
        memset(shadow, JUNK, h->len);
    h->refs++;
    zb_list_init(&m->node);
    zb_list_push_back(&dd.maps, &m->node);
    return cudaSuccess;
}

static CUresult mem_map(CUdeviceptr at, size_t len, size_t offset, CUmemGenericAllocationHandle id,
                        unsigned long long flags)
{
    cudaError_t e = begin("cuMemMap", false);
    struct double_range *r = range_at(at, len);
    struct double_handle *h = handle_find(id);

    if (e == cudaSuccess &&
        (!r || !h || h->len != len || offset != 0 || flags != 0 || mapped_in_part(r->at, len)))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess)
        e = map(r, h);
    return double_driver_end(e);
}

static struct double_map *map_whole(CUdeviceptr at, uint64_t len)
{
    struct double_map *m = map_at((const void *)(uintptr_t)at, len);

    return m && m->len == len ? m : NULL;
}

static CUresult mem_set_access(CUdeviceptr at, size_t len, const CUmemAccessDesc *desc,
                               size_t count)
{
    cudaError_t e = begin("cuMemSetAccess", false);
    struct double_map *m = map_whole(at, len);
    bool reads = desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READ;

    if (e == cudaSuccess &&
        (!m || count != 1 || desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
         desc->location.id != double_current ||
         (!reads && desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess && reads && dd.traits.no_read_access)
        e = cudaErrorNotSupported;
    if (e == cudaSuccess) {
        m->device = desc->location.id;
        m->writable = !reads;
    }
    return double_driver_end(e);
}

static void unmap(struct double_map *m)
{
    (void)munmap(m->shadow, m->len);
    zb_list_remove(&m->node);
    handle_put(m->of);
    free(m);
}

static CUresult mem_unmap(CUdeviceptr at, size_t len)
{
    cudaError_t e = begin("cuMemUnmap", true);
    struct double_map *m = map_whole(at, len);

    if (e == cudaSuccess && !m)
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess && m->busy > 0) { /* its work reads what is gone */
        double_lose(m->device);
        while (m->busy > 0)
            (void)pthread_cond_wait(&dd.changed, &dd.lock);
    }
    if (e == cudaSuccess)
        unmap(m);
    return double_driver_end(e);
}

void *double_mem_function(const char *name)
{
    static const struct {
        const char *name;
        void *function;
    } rows[] = { { "cuMemCreate", (void *)mem_create },
                 { "cuMemRelease", (void *)mem_release },
                 { "cuMemAddressReserve", (void *)address_reserve },
                 { "cuMemAddressFree", (void *)address_free },
                 { "cuMemMap", (void *)mem_map },
                 { "cuMemUnmap", (void *)mem_unmap },
                 { "cuMemSetAccess", (void *)mem_set_access },
                 { "cuMemGetAllocationGranularity", (void *)mem_granularity },
                 { "cuMemExportToShareableHandle", (void *)mem_export },
                 { "cuMemImportFromShareableHandle", (void *)mem_import } };

    for (size_t i = 0; i < ZB_COUNT(rows); i++)
        if (strcmp(rows[i].name, name) == 0)
            return rows[i].function;
    return NULL;
}

/* ---- pinned host memory */

/* Whether the kernel has it mapped; *ret_writable: not for reading only, where it can be told. */
static bool host_mapped(void *at, uint64_t len, bool *ret_writable)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);

    if ((uintptr_t)at % page != 0 || len % page != 0 || madvise(at, len, MADV_NORMAL) < 0)
        return false;
    *ret_writable = madvise(at, page, MADV_POPULATE_READ) < 0 ||
                    madvise(at, page, MADV_POPULATE_WRITE) == 0;
    return true;
}

enum double_host double_host(const void *at, uint64_t len)
{
    const char *first = at;

    zb_list_each(pos, &dd.pins)
    {
        const struct double_pin *p = zb_container_of(pos, struct double_pin, node);

        if (first >= p->at + p->len || p->at >= first + len)
            continue;
        if (first < p->at || first + len > p->at + p->len)
            return HOST_IN_PART;
        return p->read_only ? HOST_READ_ONLY : HOST_PINNED;
    }
    return HOST_PAGEABLE;
}

cudaError_t cudaHostRegister(void *at, size_t len, unsigned flags)
{
    cudaError_t e = double_begin(__func__, false);
    bool read_only = (flags & cudaHostRegisterReadOnly) != 0, writable = false;
    struct double_pin *p = NULL;

    if (e == cudaSuccess && read_only && !dd.traits.pins_read_only)
        e = cudaErrorNotSupported;
    if (e == cudaSuccess && (len == 0 || !host_mapped(at, len, &writable) ||
                             (!read_only && !writable) || (flags & cudaHostRegisterPortable) == 0))
        e = cudaErrorInvalidValue;
    if (e == cudaSuccess && double_host(at, len) != HOST_PAGEABLE)
        e = cudaErrorHostMemoryAlreadyRegistered;
    if (e == cudaSuccess && !(p = calloc(1, sizeof(*p))))
        e = cudaErrorMemoryAllocation;
    if (e == cudaSuccess) {
        *p = (struct double_pin){ .at = at, .len = len, .read_only = read_only };
        zb_list_init(&p->node);
        zb_list_push_back(&dd.pins, &p->node);
    }
    return double_end(e);
}

cudaError_t cudaHostUnregister(void *at)
{
    cudaError_t e = double_begin(__func__, true);
    struct double_pin *found = NULL;

    zb_list_each(pos, &dd.pins)
    {
        struct double_pin *p = zb_container_of(pos, struct double_pin, node);

        if (p->at == at)
            found = p;
    }
    if (e == cudaSuccess && !found)
        e = cudaErrorHostMemoryNotRegistered;
    if (e == cudaSuccess) {
        zb_list_remove(&found->node);
        free(found);
    }
    return double_end(e);
}

void double_mem_drop(void)
{
    zb_list_each(pos, &dd.maps) unmap(zb_container_of(pos, struct double_map, node));
    zb_list_each(pos, &dd.reserved) range_free(zb_container_of(pos, struct double_range, node));
    zb_list_each(pos, &dd.handles)
    {
        struct double_handle *h = zb_container_of(pos, struct double_handle, node);

        if (!h->released)
            handle_put(h);
    }
    zb_list_each(pos, &dd.pins)
    {
        struct double_pin *p = zb_container_of(pos, struct double_pin, node);

        zb_list_remove(&p->node);
        free(p);
    }
}
