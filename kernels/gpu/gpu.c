/*
 * gpu.c - what all GPUs share: names, checks, streams and works. gpu_mem.c has the device's memory,
 * gpu_pin.c the host's.
 */
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plugin.h"
#include "kernels/gpu/gpu_priv.h"

/* ---- devices */

/* The text after "backend:"; "" if the name has no colon; NULL: another backend. */
static const char *name_args(const char *name, const char *backend)
{
    size_t len = strlen(backend);

    if (strncmp(name, backend, len) != 0)
        return NULL;
    if (name[len] == '\0')
        return name + len;
    return name[len] == ':' && name[len + 1] != '\0' ? name + len + 1 : NULL;
}

/* Reads the mark and a number of up to `most` digits after it, if there is the mark. false: there is
 * the mark without such a number. */
static bool name_number(const char **name, char mark, size_t most, int *ret)
{
    size_t digits;

    if (**name != mark)
        return true;
    ++*name;
    digits = strspn(*name, "0123456789");
    if (digits < 1 || digits > most)
        return false;
    *ret = atoi(*name);
    *name += digits;
    return true;
}

/* The text after "emulated[@NUMBER][/NODE]:", likewise. *ret_node is -1 without a node. */
static const char *emulated_args(const char *name, int *ret_number, int *ret_node)
{
    size_t len = strlen(zk_gpu_emulated.name);
    bool plain;

    *ret_number = 0;
    *ret_node = -1;
    if (strncmp(name, zk_gpu_emulated.name, len) != 0)
        return NULL;
    name += len;
    plain = *name == ':';
    if (!name_number(&name, '@', 4, ret_number) || !name_number(&name, '/', 3, ret_node))
        return NULL;
    if (*name == '\0')
        return name;
    return *name == ':' && (!plain || name[1] != '\0') ? name + 1 : NULL;
}

/* Loads CUDA's plugin. */
static int plugin_load(const struct zk_gpu_backend **ret, void **ret_library, struct zb_err *err)
{
    const struct zk_gpu_plugin *plugin;
    struct zb_plugin found;
    struct zb_err why = { 0 };

    if (zb_plugin_load(&found, ZK_GPU_PLUGIN, "zk_gpu_plugin", RTLD_NOW | RTLD_LOCAL, &why) < 0)
        return zb_fail(err, -ENODEV, "no GPU: %s", why.text);
    plugin = found.table;
    if (strncmp(plugin->abi, ZK_GPU_ABI, sizeof(plugin->abi)) != 0)
        return zb_fail(err, -ENODEV, "no GPU: '%s' is of another build of zshard (%.63s, not %s)",
                       found.path, plugin->abi, ZK_GPU_ABI);
    *ret = plugin->backend;
    *ret_library = found.library;
    return 0;
}

static int plugin_open(const char *args, struct zk_gpu **ret, struct zb_err *err)
{
    const struct zk_gpu_backend *backend;
    void *library;
    int rc = plugin_load(&backend, &library, err);

    if (rc == 0)
        rc = backend->open(args, ret, err);
    if (rc == 0) {
        (*ret)->backend = backend;
        (*ret)->library = library;
    }
    return rc;
}

int zk_gpu_cuda_count(unsigned *ret, struct zb_err *err)
{
    const struct zk_gpu_backend *backend;
    void *library;
    int rc = plugin_load(&backend, &library, err);

    *ret = 1;
    return rc == 0 && backend->count ? backend->count(ret, err) : rc;
}

static int emulated_open(const char *args, int number, struct zk_gpu **ret, struct zb_err *err)
{
    int rc = zk_gpu_emulated.open(args, ret, err);

    if (rc < 0)
        return rc;
    (*ret)->backend = &zk_gpu_emulated;
    if (number > 0)
        (void)snprintf((*ret)->info.id, sizeof((*ret)->info.id), "emulated-%d", number);
    return 0;
}

int zk_gpu_open(const char *name, uint64_t limit_bytes, struct zk_gpu **ret, struct zb_err *err)
{
    int number, node, rc;
    const char *cuda = name_args(name, "cuda"), *emulated = emulated_args(name, &number, &node);
    struct zk_gpu *g = NULL;

    if (!cuda && !emulated)
        return zb_fail(err, -EINVAL,
                       "unknown GPU '%s'; known are: cuda[:N], "
                       "emulated[@NUMBER][/NODE][:BYTES[:US[:WORKS[:UNIT[:PIN[:SHARES]]]]]]",
                       name);
    rc = cuda ? plugin_open(cuda, &g, err) : emulated_open(emulated, number, &g, err);
    if (rc < 0)
        return rc;
    rc = pthread_mutex_init(&g->lock, NULL);
    assert(rc == 0);
    zb_list_init(&g->mems);
    zb_list_init(&g->stranded);
    zb_list_init(&g->pins);
    g->info.backend = g->backend->name;
    g->info.node = cuda ? zk_gpu_near_pci(ZK_GPU_PCI, g->pci) : node;
    g->info.limit_bytes = limit_bytes > 0 ? zb_min_u64(limit_bytes, g->info.total_bytes)
                                          : g->info.total_bytes;
    *ret = g;
    return 0;
}

const struct zk_gpu_info *zk_gpu_info(const struct zk_gpu *g)
{
    return &g->info;
}

void zk_gpu_close(struct zk_gpu *g)
{
    if (!g)
        return;
    assert(zb_list_empty(&g->mems) && zb_list_empty(&g->pins) && g->objects == 0);
    zk_gpu_mem_forget(g);
    (void)pthread_mutex_destroy(&g->lock);
    g->backend->close(g);
}

/* ---- streams, events, works: the backend's, and counted */

static void objects_count(struct zk_gpu *g, int by)
{
    (void)pthread_mutex_lock(&g->lock);
    g->objects += (unsigned)by;
    (void)pthread_mutex_unlock(&g->lock);
}

int zk_gpu_stream_new(struct zk_gpu *g, struct zk_gpu_stream **ret, struct zb_err *err)
{
    int rc = g->backend->stream_new(g, ret, err);

    if (rc == 0)
        objects_count(g, 1);
    return rc;
}

void zk_gpu_stream_free(struct zk_gpu_stream *s)
{
    if (!s)
        return;
    objects_count(s->gpu, -1);
    s->gpu->backend->stream_free(s);
}

void *zk_gpu_stream_native(struct zk_gpu_stream *s)
{
    return s->gpu->backend->stream_native ? s->gpu->backend->stream_native(s) : s;
}

int zk_gpu_stream_sync(struct zk_gpu_stream *s, struct zb_err *err)
{
    return s->gpu->backend->stream_sync(s, err);
}

int zk_gpu_event_new(struct zk_gpu *g, struct zk_gpu_event **ret, struct zb_err *err)
{
    int rc = g->backend->event_new(g, ret, err);

    if (rc == 0)
        objects_count(g, 1);
    return rc;
}

void zk_gpu_event_free(struct zk_gpu_event *e)
{
    if (!e)
        return;
    objects_count(e->gpu, -1);
    e->gpu->backend->event_free(e);
}

int zk_gpu_event_record(struct zk_gpu_event *e, struct zk_gpu_stream *s, struct zb_err *err)
{
    assert(e->gpu == s->gpu);
    return e->gpu->backend->event_record(e, s, err);
}

int zk_gpu_event_wait(struct zk_gpu_event *e, struct zk_gpu_stream *s, struct zb_err *err)
{
    assert(e->gpu == s->gpu);
    return e->gpu->backend->event_wait(e, s, err);
}

int zk_gpu_event_query(struct zk_gpu_event *e, struct zb_err *err)
{
    return e->gpu->backend->event_query(e, err);
}

int zk_gpu_copy(struct zk_gpu_stream *s, enum zk_gpu_way way, void *to, const void *from,
                uint64_t len_bytes, struct zb_err *err)
{
    const char *host = way == ZK_GPU_TO_DEVICE ? from : to;
    int rc = 0;

    if (way == ZK_GPU_WITHIN || len_bytes == 0)
        return s->gpu->backend->copy(s, way, to, from, len_bytes, err);
    for (uint64_t at = 0, run; at < len_bytes && rc == 0; at += run) {
        run = zk_gpu_pin_run(s->gpu, host + at, len_bytes - at);
        rc = s->gpu->backend->copy(s, way, (char *)to + at, (const char *)from + at, run, err);
    }
    return rc;
}

int zk_gpu_fill(struct zk_gpu_stream *s, void *dev, uint8_t byte, uint64_t len_bytes,
                struct zb_err *err)
{
    return s->gpu->backend->fill(s, dev, byte, len_bytes, err);
}

int zk_gpu_signal(struct zk_gpu_stream *s, int eventfd, struct zb_err *err)
{
    return s->gpu->backend->signal(s, eventfd, err);
}

int zk_gpu_launch(struct zk_gpu_stream *s, const struct zk_gpu_work *work, struct zb_err *err)
{
    int rc = zk_gpu_work_check(work, err);

    return rc < 0 ? rc : s->gpu->backend->launch(s, work, err);
}

/* ---- gpu_own.h */

int zk_gpu_adopt(const char *name, void *native, struct zk_gpu **ret, struct zk_gpu_stream **ret_s,
                 struct zb_err *err)
{
    struct zk_gpu_stream *theirs = native;
    struct zk_gpu *g = NULL;
    int number, node, rc;

    if (emulated_args(name, &number, &node)) {
        *ret_s = theirs;
        *ret = theirs->gpu;
        return 0;
    }
    rc = zk_gpu_open(name, 0, &g, err);
    if (rc < 0)
        return rc;
    assert(g->backend->stream_adopt);
    rc = g->backend->stream_adopt(g, native, ret_s, err);
    if (rc < 0) {
        zk_gpu_close(g);
        return rc;
    }
    objects_count(g, 1);
    *ret = g;
    return 0;
}

void zk_gpu_disown(struct zk_gpu *g, struct zk_gpu_stream *s)
{
    if (!g || !g->backend->stream_adopt)
        return; /* the owner's */
    zk_gpu_stream_free(s);
    zk_gpu_close(g);
}

int zk_gpu_enter(struct zk_gpu *g, struct zb_err *err)
{
    return g->backend->enter ? g->backend->enter(g, err) : 0;
}

void *zk_gpu_symbol(struct zk_gpu *g, const char *name)
{
    return g->library ? dlsym(g->library, name) : NULL;
}

int zk_gpu_call(struct zk_gpu_stream *s, zk_gpu_call_fn *fn, const void *args, size_t args_bytes,
                const struct zk_gpu_use *uses, unsigned nuses, struct zb_err *err)
{
    assert(args_bytes <= ZK_GPU_CALL_BYTES && nuses <= ZK_GPU_USES_MAX);
    if (!s->gpu->backend->call)
        return zb_fail(err, -ENOTSUP, "a GPU of '%s' runs no functions of the host",
                       s->gpu->backend->name);
    return s->gpu->backend->call(s, fn, args, args_bytes, uses, nuses, err);
}
