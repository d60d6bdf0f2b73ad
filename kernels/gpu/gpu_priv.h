/*
 * gpu_priv.h - the interface of the backends of gpu.h, and what they share. Private to kernels/.
 *
 * MODEL. gpu.c is the only caller of a backend: it checks arguments, keeps the lists of what is
 * allocated, stranded, shared and pinned, and counts. A backend implements its table and
 * nothing else. An object of a backend begins with the base that gpu.c knows.
 */
#ifndef ZK_GPU_PRIV_H
#define ZK_GPU_PRIV_H

#include <pthread.h>

#include "base/util.h"
#include "kernels/gpu.h"
#include "kernels/gpu_own.h"

struct zk_gpu_backend {
    const char *name;

    /* `args` is the text after the name's first colon, "" for nothing. Fills in base.info, except
     * for the backend and the limit; gpu.c sets up its other members afterwards. */
    int (*open)(const char *args, struct zk_gpu **ret, struct zb_err *err);
    int (*count)(unsigned *ret, struct zb_err *err); /* of devices; NULL: any number */
    void (*close)(struct zk_gpu *g);                 /* accepts a half-built one */
    int (*free_bytes)(struct zk_gpu *g, uint64_t *ret, struct zb_err *err);

    /* m->len_bytes is a multiple of the granularity; they set m->dev and the backend's members,
     * and leave nothing behind on failure. mem_free() unmaps and releases. */
    int (*mem_new)(struct zk_gpu_mem *m, struct zb_err *err);
    int (*mem_import)(struct zk_gpu_mem *m, int fd, bool writable, struct zb_err *err);
    int (*mem_export)(struct zk_gpu_mem *m, int *ret_fd, struct zb_err *err);
    void (*mem_free)(struct zk_gpu_mem *m);

    bool pins_for_all;        /* pin() pins for all devices of the backend */
    uint64_t pin_piece_bytes; /* pin() gets no more at a time, and copy() no bytes of two pieces */
    int (*pin)(struct zk_gpu *g, void *addr, uint64_t len_bytes, bool read_only,
               struct zb_err *err);
    void (*unpin)(struct zk_gpu *g, void *addr);

    int (*stream_new)(struct zk_gpu *g, struct zk_gpu_stream **ret, struct zb_err *err);
    void (*stream_free)(struct zk_gpu_stream *s);
    void *(*stream_native)(struct zk_gpu_stream *s); /* NULL: the stream is its own handle */
    int (*stream_sync)(struct zk_gpu_stream *s, struct zb_err *err);
    int (*event_new)(struct zk_gpu *g, struct zk_gpu_event **ret, struct zb_err *err);
    void (*event_free)(struct zk_gpu_event *e);
    int (*event_record)(struct zk_gpu_event *e, struct zk_gpu_stream *s, struct zb_err *err);
    int (*event_wait)(struct zk_gpu_event *e, struct zk_gpu_stream *s, struct zb_err *err);
    int (*event_query)(struct zk_gpu_event *e, struct zb_err *err);

    int (*copy)(struct zk_gpu_stream *s, enum zk_gpu_way way, void *to, const void *from,
                uint64_t len_bytes, struct zb_err *err);
    int (*fill)(struct zk_gpu_stream *s, void *dev, uint8_t byte, uint64_t len_bytes,
                struct zb_err *err);
    int (*signal)(struct zk_gpu_stream *s, int eventfd, struct zb_err *err);
    int (*launch)(struct zk_gpu_stream *s, const struct zk_gpu_work *work, struct zb_err *err);

    /* gpu_own.h; NULL: not supported. Freeing an adopted stream does not destroy the owner's. */
    int (*stream_adopt)(struct zk_gpu *g, void *native, struct zk_gpu_stream **ret,
                        struct zb_err *err);
    int (*enter)(struct zk_gpu *g, struct zb_err *err);
    int (*call)(struct zk_gpu_stream *s, zk_gpu_call_fn *fn, const void *args, size_t args_bytes,
                const struct zk_gpu_use *uses, unsigned nuses, struct zb_err *err);
};

extern const struct zk_gpu_backend zk_gpu_emulated;

/** "cuda" is a plugin (base/plugin.h), ZK_GPU_PLUGIN, so that nothing else contains CUDA's runtime
 * and kernels. It exports this struct as zk_gpu_plugin. Plugin and loader share this header: both
 * are of the same build, or of builds with equal headers. */
struct zk_gpu_plugin {
    char abi[64]; /* ZK_GPU_ABI: the sum of those headers. First, for ever */
    const struct zk_gpu_backend *backend;
};

#define ZK_GPU_PLUGIN "zk_cuda.so"

struct zk_gpu {
    const struct zk_gpu_backend *backend;
    void *library; /* of the plugin; NULL */
    char pci[16];  /* the backend's: its address on the bus, "0000:17:00.0"; "": it has none */
    struct zk_gpu_info info;
    pthread_mutex_t lock;    /* of what follows, and of every mem's `shares` */
    struct zb_list mems;     /* mapped here, imported ones too */
    struct zb_list stranded; /* freed, and held by someone */
    struct zb_list pins;
    struct zk_gpu_usage used; /* free_bytes is not kept here */
    unsigned objects;         /* streams and events */
};

struct zk_gpu_mem {
    struct zb_list node; /* in mems or stranded */
    struct zk_gpu *gpu;
    uint64_t len_bytes, tag;
    char *dev;
    struct zb_list shares; /* held by others, as far as we know */
    bool imported;
    int mark_fd; /* of an imported one; -1 */

    /* The backend's own. */
    uint64_t handle; /* cuda: of the physical memory; 0 */
    bool mapped;     /* cuda: at dev */
    int fd;          /* emulated: the memory */
    char *shadow;    /* emulated: where the device's threads see it */
    bool writable;
    unsigned busy; /* emulated: works that use it now; under the lock */
};

struct zk_gpu_stream {
    struct zk_gpu *gpu;
};

struct zk_gpu_event {
    struct zk_gpu *gpu;
};

/* ---- gpu_near.c, for gpu.c */

#define ZK_GPU_PCI "/sys/bus/pci/devices" /* where the kernel describes devices */

/** The NUMA node of the device with this address, as the folder `pci` describes it. -1: it says none,
 * or there is no such device. */
int zk_gpu_near_pci(const char *pci, const char *address);

/* ---- gpu.c, for gpu_list.c */

/** The number of CUDA's devices. 0; -ENODEV: no plugin or no driver. */
int zk_gpu_cuda_count(unsigned *ret, struct zb_err *err);

/* ---- gpu_mem.c and gpu_pin.c, for gpu.c */

/** Forgets stranded memory, even if it is held. The device is closed next. */
void zk_gpu_mem_forget(struct zk_gpu *g);

/** How many of the bytes at `host` one copy may have: what is pinned in several pieces, or in part,
 *  drivers may refuse. */
uint64_t zk_gpu_pin_run(struct zk_gpu *g, const char *host, uint64_t len_bytes);

/* ---- works, work.c */

/** 0, or -EINVAL: what is wrong with it. Data in the device's own memory is not checked. */
int zk_gpu_work_check(const struct zk_gpu_work *w, struct zb_err *err);

/** A run of memory that a work uses: the pointer in the struct, and how many bytes from there. */
struct zk_gpu_span {
    void *at; /* address of the pointer, of whatever type */
    uint64_t len_bytes;
    bool writes;
};

#define ZK_GPU_SPANS_MAX 5

/** What a checked work uses, runs of no bytes left out; returns how many there are. */
unsigned zk_gpu_work_spans(struct zk_gpu_work *w, struct zk_gpu_span spans[ZK_GPU_SPANS_MAX]);

/** Does a checked work on memory of the host, with these kernels. -EFAULT: a segment of no group.
 */
int zk_gpu_work_run(const struct zk_ops *ops, const struct zk_gpu_work *w);

#endif
