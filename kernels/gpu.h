/*
 * gpu.h - one GPU: its memory, its streams, and the kernels of zk.h on it.
 *
 * MODEL. A struct zk_gpu is a device that one process has opened; there are two kinds behind the
 * same functions, and everything above is written and tested once for both:
 *
 *     "cuda[:N]"       device number N (0) of the CUDA runtime, by a plugin (zk_cuda.so), loaded
 *                      on opening; without plugin, driver or device, opening fails. N is also a
 *                      UUID ("GPU-...") or an address ("0000:17:00.0"), as nvidia-smi shows them
 *     "emulated[@NUMBER][/NODE][:BYTES[:US[:WORKS[:UNIT[:PIN[:SHARES]]]]]]"
 *                      a GPU emulated by threads of this process: BYTES of memory (256M), in
 *                      multiples of UNIT (2M); it pins PIN of host memory (any), and with
 *                      SHARES 0 shares no memory of its own; every work
 *                      takes at least US microseconds (0), so that a caller that does not wait
 *                      reads stale bytes; after WORKS allocations and works the device fails.
 *                      Devices with different NUMBERs (0) cannot share memory. It says that it is
 *                      near NUMA node NODE, or else that it does not know. It is
 *                      as strict as a real one: the host cannot touch device addresses, and a work
 *                      that names wrong ones loses the device
 *
 * WHERE BYTES ARE. A `dev` address is device memory, which the host never dereferences. It is what
 * works take, and pages of device memory are struct zk_page with such addresses. Host memory may be
 * any; copies run in parallel only if it was pinned, else the call may wait for them.
 *
 * ORDER. Works of one stream run one after the other, in the order they were given. Streams are
 * independent; events order them. A work reads and writes memory at some time between the call and
 * the completion of a later event or work of its stream. Until then the host memory of a copy
 * belongs to the copy, and device memory may still have its old contents.
 *
 * ERRORS are negative errnos with an error message:
 *     -EINVAL, -EEXIST, -ENOENT, -ENOTSUP   nothing was done
 *     -ENOSPC    not enough device memory is free, or the limit is exceeded; the message has the
 *                numbers
 *     -ENOMEM    no host memory: nothing was done, as with those above
 *     -ENODEV    no such device, or no driver
 *     -EIO       the device failed permanently: everything in flight may or may not have happened,
 *                every later call fails with -EIO, and free, query and close still work
 *     -EFAULT    a work named memory that is not this device's: as -EIO
 *
 * THREADS. Any thread may call any function on any device, but an object is not freed while another
 * call uses it. Functions return at once, except those that say otherwise.
 *
 * OWNERSHIP. Everything made from a device is freed before the device is closed (asserted). Memory
 * is freed when no work uses it: zk_gpu_stream_sync() first.
 */
#ifndef ZK_GPU_H
#define ZK_GPU_H

#include "kernels/zk_page.h"

struct zk_gpu;
struct zk_gpu_mem;    /* an allocation, or another process's allocation, mapped here */
struct zk_gpu_stream; /* a queue of works */
struct zk_gpu_event;  /* a point in a stream */

struct zk_gpu_info {
    const char *backend; /* "cuda", "emulated" */
    char name[96];       /* for people */
    char id[48];         /* identifies the device: processes with the same id can share memory */
    uint64_t total_bytes;
    uint64_t granularity_bytes; /* allocations are multiples of it */
    uint64_t limit_bytes;       /* what this process may allocate */
    bool pins_read_only;        /* can pin read-only host memory: few drivers can */
    int node;                   /* the NUMA node of the socket that it is on; -1: not known */
};

struct zk_gpu_usage {
    uint64_t free_bytes;     /* of the device, as reported: other processes use it too */
    uint64_t owned_bytes;    /* allocated here and not freed */
    uint64_t stranded_bytes; /* freed here, but still imported by other processes */
    uint64_t pinned_bytes;   /* of host memory */
};

/** Names of devices, one each. */
#define ZK_GPU_LIST_MAX 16u
#define ZK_GPU_NAME_MAX 64u
struct zk_gpu_list {
    char names[ZK_GPU_LIST_MAX][ZK_GPU_NAME_MAX];
    unsigned n;
};

/**
 * Reads a list of devices: names, separated by commas. A word is also "all" (every device of CUDA);
 * an index, UUID or address alone (of CUDA); or "emulated*COUNT[/NODES][:...]" (so many; emulated
 * devices are numbered in order; equal parts of them are near NUMA nodes 0 to NODES - 1).
 *
 * @return 0; -EINVAL not a list, or too many; -ENODEV "all", and there is none. A device that is
 *         named need not exist
 */
int zk_gpu_list(const char *text, struct zk_gpu_list *ret, struct zb_err *err);

/**
 * Chooses one device for this process, which is one of several on its machine: of "cuda", "all" or
 * another list, the one of its local rank (LOCAL_RANK, OMPI_COMM_WORLD_LOCAL_RANK, SLURM_LOCALID or
 * MPI_LOCALRANKID; `place` without these), modulo the number of devices. Any other name stays as it
 * is.
 *
 * @return 0; as zk_gpu_list()
 */
int zk_gpu_local(const char *name, unsigned place, char ret[ZK_GPU_NAME_MAX], struct zb_err *err);

/**
 * Opens a device; may take a second (it makes a context).
 *
 * @param limit_bytes  limit of allocations, stranded memory included; 0: all of the device
 * @return 0; -EINVAL not a device's name, -ENODEV no such device, no driver, no plugin or one
 *         of another build ("no GPU: ..."), -ENOMEM, -EIO
 */
int zk_gpu_open(const char *name, uint64_t limit_bytes, struct zk_gpu **ret, struct zb_err *err);
/** NULL is allowed. */
void zk_gpu_close(struct zk_gpu *g);
/** Valid until the device is closed. */
const struct zk_gpu_info *zk_gpu_info(const struct zk_gpu *g);
int zk_gpu_usage(struct zk_gpu *g, struct zk_gpu_usage *ret, struct zb_err *err);

/* ---- device memory */

/**
 * Allocates at least `bytes`, rounded up to the granularity. The contents are unspecified, and may
 * be another process's old data.
 *
 * @param tag  the caller's, for zk_gpu_stranded()
 * @return 0; -EINVAL no bytes, -ENOSPC, -ENOMEM, -EIO
 */
int zk_gpu_alloc(struct zk_gpu *g, uint64_t bytes, uint64_t tag, struct zk_gpu_mem **ret,
                 struct zb_err *err);
/** Unmaps it here; the memory itself exists until the last importer has unmapped it. NULL is
 * allowed.
 */
void zk_gpu_free(struct zk_gpu_mem *mem);
void *zk_gpu_addr(const struct zk_gpu_mem *mem);
uint64_t zk_gpu_len(const struct zk_gpu_mem *mem); /* bytes */

/*
 * SHARING. Memory goes to another process as two descriptors: the memory, and a mark (a pipe's
 * end). The importer keeps the mark open as long as the memory is mapped, and the kernel closes it
 * when the process dies: so the exporter sees which processes still hold memory. A process that
 * holds the memory's descriptor and not its mark is not seen. The mark of a process that is killed
 * may close a moment before the driver frees its memory. An importer chooses its own access, so
 * this does not protect against a hostile one.
 */
struct zk_gpu_share {
    int mem_fd, mark_fd;
    uint64_t len_bytes;
};

/** One for each importer. Both descriptors are the caller's, to send and to close; until it has,
 * the share counts as held. -ENOTSUP: the driver cannot; -EINVAL: memory that was imported itself.
 * `holder`: its receiver, for zk_gpu_stranded(); owned by the caller.
 */
int zk_gpu_share(struct zk_gpu_mem *mem, uint64_t holder, struct zk_gpu_share *ret,
                 struct zb_err *err);
void zk_gpu_share_close(struct zk_gpu_share *share);
/** How many shares of it are held. */
unsigned zk_gpu_holders(struct zk_gpu_mem *mem);
/** Maps what another process shared. The descriptors stay the caller's and may be closed. */
int zk_gpu_import(struct zk_gpu *g, const struct zk_gpu_share *share, bool writable,
                  struct zk_gpu_mem **ret, struct zb_err *err);
/** Stranded memory: its former owner, and its holders. */
#define ZK_GPU_HOLDERS_MAX 16u
struct zk_gpu_strand {
    uint64_t tag, len_bytes;
    unsigned nholders; /* all of them; the first ones are named */
    uint64_t holders[ZK_GPU_HOLDERS_MAX];
};
/** Calls fn for each stranded allocation. fn must not call this device. */
void zk_gpu_stranded(struct zk_gpu *g, void (*fn)(void *arg, const struct zk_gpu_strand *strand),
                     void *arg);

/* ---- host memory */

/**
 * Pins host memory, in pieces of at most 1 GiB, so that copies from and to it run in parallel.
 * May take half a second for each GiB. Several devices may pin the same range: each unpins it. If a
 * driver pins for all of its devices, only the first of them takes that long.
 *
 * @param addr, len_bytes  whole pages of the host, mapped until they are unpinned
 * @param read_only        the mapping is: only copies to the device
 * @return 0; -EINVAL, -EEXIST some of it is pinned already, -ENOTSUP read_only, and the driver
 *         cannot (info.pins_read_only), -ENOMEM, -EIO; nothing is pinned then
 */
int zk_gpu_pin(struct zk_gpu *g, void *addr, uint64_t len_bytes, bool read_only,
               struct zb_err *err);
/** Unpins a range, exactly as it was pinned; -ENOENT: it is not pinned. No copy may use it. */
int zk_gpu_unpin(struct zk_gpu *g, void *addr, struct zb_err *err);
/** Pinned host memory, as in zk_gpu_usage(), without a call of the driver. */
uint64_t zk_gpu_pinned_bytes(struct zk_gpu *g);

/* ---- streams and events */

int zk_gpu_stream_new(struct zk_gpu *g, struct zk_gpu_stream **ret, struct zb_err *err);
/** Waits for its works. NULL is allowed. */
void zk_gpu_stream_free(struct zk_gpu_stream *s);
/** The device's native handle: for "cuda" a cudaStream_t, else the stream itself. */
void *zk_gpu_stream_native(struct zk_gpu_stream *s);
/** Waits until everything in it is done. Never on a thread that may not wait: see zk_gpu_signal().
 */
int zk_gpu_stream_sync(struct zk_gpu_stream *s, struct zb_err *err);

int zk_gpu_event_new(struct zk_gpu *g, struct zk_gpu_event **ret, struct zb_err *err);
/** NULL is allowed. Works that wait for it still do. */
void zk_gpu_event_free(struct zk_gpu_event *e);
/** The event is reached when all earlier works of the stream are done. A new record replaces the
 * old one, but not for waits that have begun. */
int zk_gpu_event_record(struct zk_gpu_event *e, struct zk_gpu_stream *s, struct zb_err *err);
/** Later works of `s` run after the event's last record is reached; an event that was never
 * recorded counts as reached. */
int zk_gpu_event_wait(struct zk_gpu_event *e, struct zk_gpu_stream *s, struct zb_err *err);
/** 0: reached; -EAGAIN: not yet (no message is written); else the error. */
int zk_gpu_event_query(struct zk_gpu_event *e, struct zb_err *err);

/* ---- works */

enum zk_gpu_way { ZK_GPU_TO_DEVICE, ZK_GPU_TO_HOST, ZK_GPU_WITHIN };

/** Copies len_bytes (may be 0); the ranges do not overlap. */
int zk_gpu_copy(struct zk_gpu_stream *s, enum zk_gpu_way way, void *to, const void *from,
                uint64_t len_bytes, struct zb_err *err);
/** Sets device memory to a byte. */
int zk_gpu_fill(struct zk_gpu_stream *s, void *dev, uint8_t byte, uint64_t len_bytes,
                struct zb_err *err);
/** Adds 1 to an eventfd when all earlier works of the stream are done, so that a loop can wait for
 * them. The descriptor must stay open until then. If the device fails, it may never happen. */
int zk_gpu_signal(struct zk_gpu_stream *s, int eventfd, struct zb_err *err);

/*
 * KERNELS. A work is one launch of a kernel of zk.h over arrays of device memory; its bits are
 * those of "ref". Pointers are device addresses, aligned to their elements' size; planes of pages
 * to 64 bytes. Arrays do not overlap.
 */
enum zk_gpu_op {
    ZK_GPU_STEP = 1,      /* .step: zk_page_step() */
    ZK_GPU_INGEST,        /* .ingest: zk_page_ingest() */
    ZK_GPU_CAST,          /* .array: to[i] = from[i]: one of the two is fp32, or both the same */
    ZK_GPU_SPLIT,         /* from fp32, to = hi, side = int16_t lo[n] */
    ZK_GPU_MERGE,         /* from = hi, side = lo, to fp32 */
    ZK_GPU_ADD,           /* to[i] += from[i], to being fp32 */
    ZK_GPU_SCALE,         /* to[i] = from[i] * factor, in fp32 */
    ZK_GPU_NORM,          /* from: norms[] of every block of ZB_BLOCK_ELEMS */
    ZK_GPU_ENCODE_BF16,   /* from fp32, to = uint16_t[n]; key; n <= 2^32 */
    ZK_GPU_ENCODE_Q8,     /* from fp32, to = code, side = float scale[]; key, is_signed */
    ZK_GPU_DECODE_Q8,     /* from = code, side = scale, to fp32; is_signed */
    ZK_GPU_QUANTIZE_I8,   /* from any dtype, to = codes and scales, by block (zb_layout_quantize) */
    ZK_GPU_DEQUANTIZE_I8, /* the inverse; n is a multiple of the block for both */
    ZK_GPU_OP_END
};

/** For one block: sumsq(), and the number of infinite or NaN elements; if there are any, sum is 0.
 */
struct zk_gpu_norm {
    double sum;
    uint64_t nonfinite;
};

/** zk_page_step(). Tables are in device memory, too: copy them there in the same stream. */
struct zk_gpu_step {
    struct zb_layout layout;
    struct zk_page page;
    const struct zk_segment *segments;
    uint32_t nsegments;
    const struct zk_scalars *by_group;
    uint32_t ngroups;
};

/** zk_page_ingest(), with the sum of each block instead of the exact sum of all: the host adds
 * those that have no nonfinite, in any order, with zk_xsum_add(). */
struct zk_gpu_ingest {
    struct zb_layout layout;
    struct zk_page page; /* of it: grad, count */
    const void *from;
    enum zb_dtype from_dtype;
    bool add;                  /* grad is fp32 then */
    struct zk_gpu_norm *norms; /* [page.count / ZB_BLOCK_ELEMS] */
};

struct zk_gpu_array {
    const void *from;
    void *to;
    void *side; /* lo, or scales of moments; read or written as the kernel asks */
    struct zk_gpu_norm *norms;
    uint64_t n;                         /* elements; whole groups of moments, blocks of int8 */
    enum zb_dtype from_dtype, to_dtype; /* if the kernel does not fix them */
    uint32_t key;
    bool is_signed;
    float factor;
};

struct zk_gpu_work {
    enum zk_gpu_op op;
    union {
        struct zk_gpu_step step;
        struct zk_gpu_ingest ingest;
        struct zk_gpu_array array;
    };
};

/** Launches a work; the struct itself is copied. -EINVAL, with a message: not a valid work. */
int zk_gpu_launch(struct zk_gpu_stream *s, const struct zk_gpu_work *work, struct zb_err *err);

#endif
