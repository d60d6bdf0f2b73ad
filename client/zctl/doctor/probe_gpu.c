/*
 * probe_gpu.c - probes of libraries that a GPU needs, and of NVML.
 *
 * Libraries are loaded, and nothing in them is called, except in NVML, which initialises no device
 * and creates no context. Its prototypes are those of nvml.h, of which only values and signatures
 * are needed that have not changed since driver 450.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "base/plugin.h"
#include "base/util.h"
#include "client/zctl/doctor/machine.h"

#define PLUGIN    "zk_cuda.so"
#define ABI_BYTES 64 /* "First, for ever": struct zk_gpu_plugin */
#define GPUS_MAX  32u

/** Loads the first library that can be, and writes its path, or the last reason. */
static void library_find(FILE *out, const char *given, const char *const *names, size_t n)
{
    const char *why = NULL;
    struct link_map *map = NULL;
    void *library = NULL;

    for (size_t i = 0; i < n && !library; i++) {
        library = dlopen(given ? given : names[i], RTLD_NOW | RTLD_LOCAL);
        if (!library)
            why = dlerror();
    }
    if (!library)
        (void)fprintf(out, "!%s", why ? why : "it is not found");
    else if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map)
        (void)fputs(map->l_name, out);
}

/** A variable that names a library; NULL: unset or empty. */
static const char *named(const char *variable)
{
    const char *value = getenv(variable);

    return value && *value ? value : NULL;
}

void doctor_probe_driver(const struct doctor_machine *m, FILE *out)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    struct link_map *map = NULL;
    char real[PATH_MAX];

    (void)m;
    if (!library)
        (void)fprintf(out, "!%s", dlerror());
    else if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map && realpath(map->l_name, real))
        (void)fputs(real, out); /* the name of the file has the version */
}

void doctor_probe_plugin(const struct doctor_machine *m, FILE *out)
{
    struct zb_plugin found;
    struct zb_err err = { 0 };

    (void)m;
    if (zb_plugin_load(&found, PLUGIN, "zk_gpu_plugin", RTLD_NOW | RTLD_LOCAL, &err) < 0)
        (void)fprintf(out, "!%s", err.text);
    else if (strncmp(found.table, ZSHARD_GPU_ABI, ABI_BYTES) != 0)
        (void)fprintf(out, "!'%s' is of another build (%.63s, and this is " ZSHARD_GPU_ABI ")",
                      found.path, (const char *)found.table);
    else
        (void)fputs(found.path, out);
}

void doctor_probe_cublaslt(const struct doctor_machine *m, FILE *out)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12" };

    (void)m;
    library_find(out, named("ZSHARD_CUBLASLT"), names, ZB_COUNT(names));
}

void doctor_probe_nccl(const struct doctor_machine *m, FILE *out)
{
    static const char *const names[] = { "libnccl.so.2" };

    (void)m;
    library_find(out, named("ZSHARD_NCCL_LIB"), names, ZB_COUNT(names));
}

/* ---- NVML */

struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml {
    int (*init)(void);
    int (*count)(unsigned *n);
    int (*device)(unsigned i, void **ret);
    int (*mode)(void *device, int *ret);
    int (*capability)(void *device, int *major, int *minor);
    int (*memory)(void *device, struct nvml_memory *ret);
    int (*mig_mode)(void *device, unsigned *now, unsigned *pending);
    int (*mig_max)(void *device, unsigned *ret);
    int (*mig_device)(void *device, unsigned i, void **ret);
};

/** Looks the functions up. False: one of those that every version has is missing. */
static bool nvml_load(struct nvml *n)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    const struct {
        const char *name;
        void *at;
        bool needed;
    } rows[] = {
        { "nvmlInit_v2", &n->init, true },
        { "nvmlDeviceGetCount_v2", &n->count, true },
        { "nvmlDeviceGetHandleByIndex_v2", &n->device, true },
        { "nvmlDeviceGetComputeMode", &n->mode, true },
        { "nvmlDeviceGetCudaComputeCapability", &n->capability, true },
        { "nvmlDeviceGetMemoryInfo", &n->memory, true },
        { "nvmlDeviceGetMigMode", &n->mig_mode, false },
        { "nvmlDeviceGetMaxMigDeviceCount", &n->mig_max, false },
        { "nvmlDeviceGetMigDeviceHandleByIndex", &n->mig_device, false },
    };

    for (size_t i = 0; library && i < ZB_COUNT(rows); i++) {
        void *f = dlsym(library, rows[i].name);

        if (!f && rows[i].needed)
            return false;
        memcpy(rows[i].at, &f, sizeof(f));
    }
    return library != NULL;
}

static void nvml_mig(const struct nvml *n, void *device, struct doctor_gpu *g)
{
    unsigned now = 0, pending, most = 0;
    void *instance;

    g->mig = -1;
    if (!n->mig_mode || n->mig_mode(device, &now, &pending) != 0)
        return;
    g->mig = now == 1;
    if (g->mig && n->mig_max && n->mig_device && n->mig_max(device, &most) == 0)
        for (unsigned i = 0; i < most; i++)
            g->instances += n->mig_device(device, i, &instance) == 0;
}

void doctor_probe_gpus(const struct doctor_machine *m, FILE *out)
{
    struct nvml n = { .init = NULL };
    unsigned count = 0;
    int rc;

    (void)m;
    if (!nvml_load(&n)) {
        (void)fputs("!libnvidia-ml.so.1 is not found", out);
        return;
    }
    rc = n.init();
    if (rc != 0 || (rc = n.count(&count)) != 0) {
        (void)fprintf(out, "!NVML ends with error %d", rc);
        return;
    }
    for (unsigned i = 0; i < count && i < GPUS_MAX; i++) {
        struct doctor_gpu g = { .mode = -1, .mig = -1 };
        struct nvml_memory memory = { 0 };
        void *device;

        if (n.device(i, &device) != 0)
            continue;
        if (n.mode(device, &g.mode) != 0)
            g.mode = -1;
        (void)n.capability(device, &g.major, &g.minor);
        (void)n.memory(device, &memory);
        nvml_mig(&n, device, &g);
        (void)fprintf(out, "%d %d %d %d.%d %llu\n", g.mode, g.mig, g.instances, g.major, g.minor,
                      memory.total);
    }
}

bool doctor_gpu(const struct doctor_answers *a, size_t i, struct doctor_gpu *ret)
{
    const char *at = a->gpus;

    for (; i > 0 && *at; i--) {
        at += strcspn(at, "\n");
        at += *at == '\n';
    }
    return sscanf(at, "%d %d %d %d.%d %llu", &ret->mode, &ret->mig, &ret->instances, &ret->major,
                  &ret->minor, &ret->bytes) == 6;
}
