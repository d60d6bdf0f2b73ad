/*
 * zclient.h - the client library of zshard: fetch, release, push and step the shards of a model
 * that does not fit in memory. The shards are kept by the shard daemon of this node.
 *
 * MODEL. A handle (struct zc_client) is one connection to the daemon. Calls that talk to the daemon
 * are asynchronous: they return at once. Their callback `done` runs later, exactly once, inside
 * zc_poll(). Each has a blocking form, zc_..._wait(), which makes the same call and then loops
 * around zc_poll(). The library starts no threads and installs no signal handlers. The death of the
 * daemon raises no SIGPIPE.
 *
 * OWNERSHIP. A result pointer `ret` must stay valid until done has run; it is filled in before done
 * runs with 0. After a failure its content is undefined. Arguments are read before the call
 * returns, unless the call says otherwise; `staged` memory is the exception (see "data").
 *
 * THREADS. One thread at a time may use a handle. Separate handles are independent.
 *
 * FORK. A handle belongs to the process that opened it. In a child process (fork(), os.fork()) its
 * calls fail with -EPERM. The child's copy of the socket is closed, so that the daemon notices when
 * the parent dies. zc_close() frees the child's copy of the handle. Memory shared with the daemon
 * stays mapped.
 *
 * ERRORS. Functions return 0 or a negative errno. After a failure zc_error() returns an error
 * message; it is kept until the next failure of that handle. A call that returns an error has
 * started nothing: its done will not run. The codes mean the same everywhere in this header:
 *
 *     -EINVAL      an argument is wrong: out of range, misaligned, or in the wrong order
 *     -ENOENT      no such job, unit, shard, snapshot or note
 *     -EEXIST      it exists already: a job of that name, a repeated push
 *     -EPERM       only administrators may do this; or the shard is another rank's; or
 *                  the handle belongs to the parent of this process
 *     -ENOSPC      it does not fit. The error message has the numbers and the smallest size that
 *                  would work (GPU memory: the bytes needed and the bytes free)
 *     -EBUSY       something is in use, or the state does not allow it now: a rank that is taken, a
 *                  pinned version, a job that is stepping
 *     -ETIMEDOUT   the deadline passed; the error message says what the call waited for
 *     -ESTALE      another process took the job over, and this rank was disconnected; or a newer
 *                  commit replaced what a reader reads, and there was no room to keep both
 *     -EBADMSG     stored bytes are corrupt: none of them were handed out
 *     -EIO         a device failed
 *     -EOWNERDEAD  a peer rank of the job died: the job cannot continue
 *     -ECANCELED   zc_close() or the end of the job ended the call
 *     -ENOTCONN    the daemon is gone or closed the connection: close the handle
 *     -EPROTO      the daemon's answer violates the protocol: close the handle
 *     -ENOSYS      this daemon does not know the request
 *     -EMSGSIZE    the request is too long
 *     -ENOBUFS     too many calls are in flight: call zc_poll() first
 *     -ENOMEM      no memory, in this process or in the daemon
 *     -EMFILE      no file descriptors
 *
 * TIMEOUTS. The daemon ends every request itself. Where a call has timeout_ms, it does so by then
 * (0: the daemon's default). A blocking form therefore only checks that the daemon is alive. If
 * nothing was received for half of zc_options.quiet_timeout_ms, it sends a ping. It gives the
 * connection up if nothing was received for the whole time, or if the answer is late by that much
 * after the call's own timeout_ms. Then all unfinished calls end with -ETIMEDOUT, and later ones
 * fail with -ENOTCONN; only zc_close() is left. Signals do not end a blocking form. Programs that
 * poll themselves apply their own deadlines.
 *
 * UNITS. Elements are parameters. A shard is a range of a unit's elements whose bounds are
 * multiples of block_elems. Initial values and gradients travel in parts that are cut at multiples
 * of page_elems; both numbers come from zc_server(). Lengths in bytes are named so (..._bytes).
 */
#ifndef ZCLIENT_H
#define ZCLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ZC_EXPORT        __attribute__((visibility("default")))

#define ZC_NAME_MAX      63  /* bytes of a job's or unit's name: letters, digits, '.', '_', '-' */
#define ZC_TENSOR_MAX    127 /* bytes of a tensor's name */
#define ZC_DIMS_MAX      8
#define ZC_GROUP_FROZEN  65535u
#define ZC_PINS_MIN      3u    /* a rank can always pin at least this many of its own shards */
#define ZC_NOTE_MAX      65536 /* bytes of a note */
#define ZC_NORM_BYTES    80
#define ZC_TOP_PATHS_MAX 8u
#define ZC_TOP_TIERS_MAX 4u
#define ZC_POINTS_MAX    3   /* points of a job: in memory, prepared, committed */
#define ZC_MESSAGE_MAX   224 /* bytes of a message, with the terminating 0 */

struct zc_client;

/**
 * Reports how a call ended: rc is 0 or one of the codes above. On failure zc_error() returns the
 * error message. The callback may start calls. A blocking form or zc_poll() fails with -EBUSY here;
 * zc_close() must not be called (it asserts). Where a call takes a zc_done_fn, NULL means that the
 * result is not wanted.
 */
typedef void zc_done_fn(void *arg, int rc);

/* ---- the connection */

/** How to connect. All fields may be 0. */
struct zc_options {
    /* path; NULL: $ZSHARD_SOCKET, else the first of $XDG_RUNTIME_DIR/zshard.sock and
     * /run/zshard/zshard.sock (the service's) at which a daemon answers */
    const char *socket;
    /* name of the program, shown by zctl and the daemon's log; NULL: "libzclient" */
    const char *program;
    /* limits zc_open(), which waits for a daemon that is about to start; 0: fail at once if no
     * daemon answers, and wait up to 5000 ms for a busy one */
    uint32_t connect_timeout_ms;
    uint32_t quiet_timeout_ms; /* for the blocking forms: see TIMEOUTS; 0: 30000 */
    bool no_wait;              /* fail at once if no daemon answers, whatever the timeout */
};

/** Describes the daemon, as it reported itself at connect. */
struct zc_server {
    uint32_t version;                 /* version of the protocol */
    uint32_t page_elems, block_elems; /* elements of a page, and of a block */
    uint32_t shards_max;              /* largest number of shards that one call may name */
    uint8_t instance[16];             /* changes with every start of the daemon */
    uint64_t pid;                     /* process id of the daemon */
    char server[64];                  /* "zshardd 0.1.0" */
    bool sums; /* it knows zc_step.sums, zc_unit_norms(), zc_unit_sums() and zc_job_about() */
};

/**
 * Connects to the daemon and exchanges versions. Blocks up to the timeout.
 *
 * @param options  may be NULL; need not outlive the call
 * @return 0; -ENOTCONN no daemon answers: the message names each path that was tried; -ETIMEDOUT it did not answer in time; -EPERM not
 *         allowed to connect; -EPROTO no protocol version in common; -EUSERS the daemon serves its
 *         maximum of clients; -EMFILE; -EINVAL the path cannot be a socket's. On failure *ret is a
 *         closed handle that holds only the error message (zc_close() it), or NULL if there was no
 *         memory.
 */
ZC_EXPORT int zc_open(struct zc_client **ret, const struct zc_options *options);

/**
 * Ends unfinished calls with -ECANCELED, unmaps the arenas, then frees c. NULL is allowed. What the
 * daemon held for this client (pins, staging) is freed at once. The job ends, unless it is kept.
 */
ZC_EXPORT void zc_close(struct zc_client *c);

/**
 * Returns the error message of the last failure, or "" before the first. Valid until the next
 * failure or zc_close().
 */
ZC_EXPORT const char *zc_error(const struct zc_client *c);

/** Returns the library's text for a code ("-ENOSPC: it does not fit"), for logs. Never NULL. */
ZC_EXPORT const char *zc_strerror(int rc);

/** Exit statuses of zctl and zgpt. Other programs may use them to be scripted in the same way. */
enum zc_exit {
    ZC_EXIT_OTHER = 1,
    ZC_EXIT_USAGE = 2, /* -EINVAL */
    /* the daemon cannot be reached, was lost, or does not answer: -ENOTCONN, -EPROTO, -ETIMEDOUT,
     * -ECANCELED */
    ZC_EXIT_DAEMON = 3,
    /* rejected: does not fit, not allowed, not found, in use, taken over (-ESTALE), no GPU
     * (-ENODEV) */
    ZC_EXIT_REFUSED = 4,
    ZC_EXIT_PEER = 5,    /* -EOWNERDEAD */
    ZC_EXIT_CORRUPT = 6, /* -EBADMSG */
};

/** Returns the exit status for a code: 0 for 0. Takes any errno, not only the codes above. */
ZC_EXPORT int zc_exit_code(int rc);

/**
 * Returns what the daemon reported at connect; zeros if there was no connection. Valid until
 * zc_close().
 */
ZC_EXPORT const struct zc_server *zc_server(const struct zc_client *c);

/**
 * Returns the socket, for an event loop of the caller's: poll it for zc_events(), then call
 * zc_poll(c, 0). -1 if the handle never had a connection. The descriptor stays the library's.
 */
ZC_EXPORT int zc_fd(const struct zc_client *c);
/**
 * Returns what to poll zc_fd() for (POLLIN, POLLOUT). Ask again after every call on the handle. 0:
 * the connection is over.
 */
ZC_EXPORT short zc_events(const struct zc_client *c);

/**
 * Makes progress: sends, receives, and runs callbacks (done and events). Waits up to timeout_ms for
 * the first one (0: does not wait; negative: no limit). A signal ends the wait.
 *
 * @return the number of callbacks that ran, which may be 0; -ENOTCONN the connection is lost, and
 *         every unfinished call ended with that code; -EPROTO the same, because the daemon broke
 *         the protocol; -EBUSY called inside a callback
 */
ZC_EXPORT int zc_poll(struct zc_client *c, int timeout_ms);

/* ---- events */

enum zc_event_kind {
    /* rank `rank` of your job died or disconnected: -EOWNERDEAD */
    ZC_EVENT_PEER_LOST = 100,
    /* the job cannot continue, or cannot continue with this rank: see code */
    ZC_EVENT_JOB_FAILED = 101,
    /* the daemon is about to restart, and waits for this rank (zc_job_options.returns): finish the
     * step, close the job, and attach again. code: -ECONNRESET. No call ends */
    ZC_EVENT_RESTART = 102,
};

/** An event; valid during the callback, as is text. */
struct zc_event {
    enum zc_event_kind kind;
    uint64_t job;
    uint32_t rank;
    int code;
    const char *text; /* valid during the callback */
};

typedef void zc_event_fn(void *arg, const struct zc_event *event);

/**
 * Sets the one callback for all events; NULL turns it off. An event also ends the job's unfinished
 * calls with its code, with or without a callback; the callback runs first. Staging memory that was
 * passed to such a call stays the daemon's until the job or the handle is closed.
 */
ZC_EXPORT void zc_on_event(struct zc_client *c, zc_event_fn *fn, void *arg);

/* ---- jobs, units, shards */

/** Data types of parameters and gradients. */
enum zc_dtype { ZC_F32 = 1, ZC_BF16 = 2, ZC_F16 = 3 };
/**
 * Optimizers: those of torch.optim of the same name; Lion as published. A job has one for its whole
 * life.
 */
enum zc_optimizer {
    ZC_ADAMW = 1,
    ZC_ADAM = 2,
    ZC_LION = 3,
    ZC_SGD = 4,
    ZC_ADAGRAD = 5,
    /* Muon for tensors that say so (zc_tensor.muon), AdamW for all others. All shards of the job are on one node */
    ZC_MUON = 6
};
/** Factor of Muon's learning rate, by the shape of a matrix as it is stored. */
enum zc_muon_scale {
    ZC_MUON_RMS = 0,  /* 0.2 * sqrt(max(rows, columns)): updates as large as AdamW's (Moonlight) */
    ZC_MUON_SHAPE = 1 /* sqrt(max(1, rows / columns)) (K. Jordan) */
};
/** What orthogonalizes Muon's matrices. Each has bits of its own, so a job keeps its engine for its whole life. */
enum zc_muon_engine {
    ZC_MUON_CPU = 0,     /* compute threads of the daemon, in fp32 */
    ZC_MUON_GPU = 1,     /* a GPU of the daemon, in fp32 */
    ZC_MUON_GPU_BF16 = 2 /* the same with factors of bf16, summed in fp32 */
};
/** How the optimizer's moments are stored. docs/OPTIMIZERS.md has the cost of the reduced ones. */
enum zc_moments {
    ZC_MOMENTS_F32 = 1,
    ZC_MOMENTS_BF16 = 2,
    ZC_MOMENTS_Q8 = 3,
    ZC_MOMENTS_Q8_LO = 4 /* and the low half of the masters of bf16 parameters in 8 bits */
};

/** The lowest tier where bytes may be stored. Free memory of faster tiers is used in any case. */
enum zc_place { ZC_HOST = 1, ZC_NVME = 2, ZC_GPU = 3 };

/** What to create or join. */
struct zc_job_options {
    const char *name;     /* copied; letters, digits, '.', '_', '-' */
    uint32_t rank, world; /* this rank, and the number of ranks, on this node */
    bool keep;            /* the job outlives its clients */
    /* join a kept job. Otherwise the name must be new (for rank 0), or the rank must be free (other
     * ranks) */
    bool attach;
    uint64_t staging_bytes; /* memory shared with the daemon; rounded up to 4096 */
    /* 0: ZC_NVME. ZC_GPU: in GPU memory of the daemon, if its tier has room for all parameters and
     * every rank is on that GPU; otherwise as ZC_NVME (zc_placement says which) */
    enum zc_place offload_param;
    /* not ZC_GPU: the daemon uses free room of the GPU tier by itself */
    enum zc_place offload_optimizer;
    /* limit for this job in the host tier; 0: what is free */
    uint64_t host_bytes_max;
    uint32_t groups; /* number of parameter groups, 1 to 64 */
    /* steps can be committed, and then survive a restart of the daemon. Needs `keep` and a daemon
     * with data files (-EINVAL). Reserves room for two states of the job there (zc_ready():
     * -ENOSPC) */
    bool durable;
    /* with attach: disconnect attached processes, and begin a new epoch */
    bool takeover;
    /* with attach: the epoch that this rank joins (zc_job.epoch of the rank that began it); 0: the
     * current one. With takeover: only from an epoch below this one; 0: from any. A rank that was
     * attached in epoch E names E + 1, to make sure that no other run has the job (-ESTALE) */
    uint64_t epoch;
    /* the rank attaches again when the daemon was restarted. So a daemon that is stopped sends
     * ZC_EVENT_RESTART, and waits for the rank to close the job. Only if all ranks of the job on
     * this node set it, and the job is durable or there is room on NVMe to save it for the restart.
     * The rank attaches with takeover and its epoch + 1 (the first one), or with the new epoch, and
     * otherwise with the same options */
    bool returns;
    /* share of drives and compute threads, relative to other jobs: 1 to 10000; 0: 100. An existing
     * job keeps its own */
    uint32_t share;
    /* reserve room for steps that begin early (zc_step_begin()), if there is any: on the data
     * files, the size of all streamed, trainable state once more */
    bool early;
    enum zc_optimizer optimizer; /* 0: ZC_ADAMW */
    enum zc_moments moments;     /* 0: ZC_MOMENTS_F32 */
    /* 0: ZC_NVME: gradients that host memory cannot hold go to NVMe, if state and parameters are
     * streamed and may go there too. ZC_HOST: -ENOSPC instead, with the smallest budget that would
     * work */
    enum zc_place offload_grad;
    /* map the parameter arena read-write. Only for a GPU driver that refuses to pin read-only
     * memory; nothing may write there */
    bool writable;
    /* the id of the GPU that this rank computes on: "cuda-" and the 32 hexadecimal digits of its
     * UUID, or "emulated" ("emulated-N"). Its state, and with ZC_GPU its parameters, are kept there
     * if it is one of the daemon's. NULL: none; then the daemon chooses one for the state */
    const char *device;
    /* 1 + the NUMA node of the socket that the device is on; 0: not known. The daemon keeps this
     * rank's memory there, if it may (`near` in zshardd.conf(5)) */
    uint32_t device_node;
    /* sum the squares of gradients tensor by tensor, too: for zc_tensor_norms(), and for limits of
     * zc_step_tensors() */
    bool tensor_norms;
    /* with `early`: do not hold gradients of pages whose state is on NVMe. Such a page is stepped as its
     * gradient is pushed, so each rank calls zc_step_begin() before it pushes (-EINVAL), without limits,
     * for steps of one micro-step; a push then waits until all ranks have called it. These gradients
     * cannot be read (-ENOTSUP). zc_placement.grads_ringed says how much memory that saves. State of
     * this job does not go to a GPU */
    bool grad_ring;
    /* grad_ring: hold the gradients of so many percent of each shard's pages nevertheless, from 0 to 100
     * (-EINVAL): pages that can wait for the step, when the drive would be idle */
    uint32_t grad_ring_keep;
    /* grad_ring, with tensor_norms: steps have limits (zc_step_tensors()). A step that all ranks call
     * zc_step_begin() for, before its first push and with limits, collects the gradient of a unit in
     * memory for two units; a push waits for that. All ranks push units in the same order: a push that
     * would wait for its own rank fails (-EDEADLK; nothing is lost, push the named unit first). If other
     * nodes have shards (zc_step.sums), a unit has its place until zc_unit_sums(), too: do not wait for
     * a push before the sums of earlier units are sent. If the
     * gradient of a unit is not finite, the step can only be skipped. Any other step holds these
     * gradients on NVMe: more transfers, and room for them */
    bool grad_ring_limits;
    /* ZC_MUON: the same on all ranks, and whenever a rank attaches (-EINVAL). On a GPU: the daemon has one, with
     * room for the largest matrix (zc_ready(): -ENOSPC), and cuBLASLt (-ENODEV) */
    enum zc_muon_engine muon_engine;
};

/** A state that a kept job can resume from. */
enum zc_point_kind {
    /* the newest whole step, in the daemon's memory: lost when the daemon stops */
    ZC_POINT_MEMORY = 1,
    /* durable, in addition to the last commit; neither committed nor dropped yet */
    ZC_POINT_PREPARED = 2,
    ZC_POINT_COMMITTED = 3, /* durable */
};

/** A point that a kept job can resume from. */
struct zc_point {
    enum zc_point_kind kind;
    uint64_t iterations, applied; /* as in zc_job */
};

/** A job, as this rank joined it. */
struct zc_job {
    uint64_t id;
    uint64_t iterations; /* steps asked for so far, including skipped ones */
    uint64_t applied;    /* steps applied so far: the version of the job's shards */
    void *staging;       /* mapped read-write until zc_job_close() or zc_close() */
    uint64_t staging_bytes;
    uint64_t epoch; /* grows with every takeover */
    /* number of ranks of the saved job; of a new job, the requested one */
    uint32_t world;
    uint32_t npoints;
    /* with attach: npoints of them, newest first */
    struct zc_point points[ZC_POINTS_MAX];
};

/**
 * Joins a job as one rank. The first rank to arrive creates the job. The others must agree on
 * `world`, `keep`, `durable`, places and groups (-EINVAL). A handle has one job at a time (-EBUSY).
 *
 * RESUME. With attach, a kept job continues from the point that zc_ready() selects. If a step is in
 * progress, the call waits for it. If no rank is attached, `world` may differ from the saved one.
 * The ranks then register the shards again, with any ranges that cover every unit as the old ones
 * did.
 *
 * TAKEOVER. One rank attaches with `takeover` and tells the others its epoch; these attach with
 * `epoch`. Processes that were attached before are disconnected: their calls end with -ESTALE, they
 * get ZC_EVENT_JOB_FAILED with that code, and later requests fail with it too. So a process that
 * was wrongly believed dead cannot step the job. An `epoch` that is not the current one is also
 * -ESTALE.
 */
ZC_EXPORT int zc_job_open(struct zc_client *c, const struct zc_job_options *options,
                          struct zc_job *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_job_open_wait(struct zc_client *c, const struct zc_job_options *options,
                               struct zc_job *ret);

/** Describes a named tensor of a unit. */
struct zc_tensor {
    const char *name;
    uint64_t first; /* index of its first element in the unit */
    uint32_t ndims; /* 0 (a scalar) to ZC_DIMS_MAX */
    uint64_t dims[ZC_DIMS_MAX];
    uint32_t group; /* parameter group, below the job's groups; or ZC_GROUP_FROZEN */
    /* ZC_MUON: Muon steps this tensor, a matrix (2 dimensions) that is trained; all others are stepped by AdamW. With any other
     * optimizer -EINVAL. A unit whose trainable tensors are all Muon's has one moment, any other unit two */
    bool muon;
};

/** Describes a unit: tensors that are laid out one after the other and are handled together. */
struct zc_unit {
    uint32_t index; /* from 0, in the order of the forward pass */
    const char *name;
    uint64_t elems;
    enum zc_dtype dtype;
    /* dtype of the stored gradient; bf16 cannot accumulate (zc_push.add) */
    enum zc_dtype grad_dtype;
    bool frozen; /* the unit has parameters only: never pushed, never stepped */
    /* of a frozen unit (-EINVAL otherwise): parameters are stored as blockwise int8, one byte each
     * and one scale for every 256. They are handed out in `dtype` */
    bool quantized;
    /* ascending, not overlapping. Elements outside of every tensor are never stepped. Only a frozen
     * unit may have no tensors (-EINVAL) */
    const struct zc_tensor *tensors;
    uint32_t ntensors;
};

/**
 * Defines a unit. Every rank defines the same units in the same order; a difference is -EINVAL.
 * `unit` and what it points to are copied before the call returns.
 */
ZC_EXPORT int zc_unit_define(struct zc_client *c, uint64_t job, const struct zc_unit *unit,
                             zc_done_fn *done, void *arg);
ZC_EXPORT int zc_unit_define_wait(struct zc_client *c, uint64_t job, const struct zc_unit *unit);

/** A range of a unit's elements. */
struct zc_range {
    uint32_t unit;
    /* multiples of block_elems; within the unit, padded to a whole block */
    uint64_t first, count;
};

/**
 * Registers this rank's shards. ret_ids[n] are filled in the order of the ranges. A range that
 * overlaps another shard is -EINVAL. When a kept job is resumed with the same `world`, its own
 * shards get their old ids. With another `world`, the shards are new ones that hold the values of
 * the old ones.
 */
ZC_EXPORT int zc_register(struct zc_client *c, uint64_t job, const struct zc_range *ranges,
                          uint32_t n, uint64_t *ret_ids, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_register_wait(struct zc_client *c, uint64_t job, const struct zc_range *ranges,
                               uint32_t n, uint64_t *ret_ids);

/** Where the daemon placed the job. */
struct zc_placement {
    /* length of the parameter arena, which this process maps read-only (unless `writable`) */
    uint64_t arena_bytes;
    /* part of the arena that parameters on NVMe pass through. All that is pinned at one time, over
     * all ranks, must fit in it */
    uint64_t ring_bytes;
    uint64_t host_bytes, nvme_bytes; /* bytes that the job takes from each tier */
    uint64_t iterations, applied;    /* where the job continues */
    bool early;                      /* there is room for steps that begin early */
    /* bytes of gradients that host memory does not hold; 0: all are in memory. Each push writes
     * them, and each push but the first of a step reads them first. The step reads them */
    uint64_t grads_on_nvme;
    /* the arena, arena_bytes long, which views point into; valid until zc_job_close() or
     * zc_close(). Pin this to copy to a device. NULL: it has no bytes */
    const void *arena;
    /* bytes of GPU memory that hold the parameters, for zc_gpu_share(); views are offsets into it.
     * 0: they are not on the GPU */
    uint64_t gpu_params;
    /* why the parameters are not on the GPU although ZC_GPU was requested; else "" */
    char gpu_why[192];
    /* the part of the arena with the parameters of this rank's own shards that are always in memory.
     * Those on NVMe come into the last ring_bytes of the arena. A rank that copies only its own
     * shards to a device has to pin these two parts */
    uint64_t own_at, own_bytes;
    /* 1 + the NUMA node where that part should be; 0: the daemon has not chosen one. The kernel may
     * have taken memory of another node, if that one is full */
    uint32_t node;
    /* bytes of gradients that are not held (zc_job_options.grad_ring) */
    uint64_t grads_ringed;
};

/**
 * Reports that this rank has registered all its shards. done runs when every rank has done so and
 * the daemon has placed the job. -ENOSPC: it does not fit, and nothing is held.
 *
 * @param at  for an attached job: the iterations of the point to continue from, the same on all
 *            ranks (-EINVAL; -ENOENT: no such point). Newer state that is only in memory is
 *            dropped; a prepared commit stays, to be decided. NULL: the state in memory, else the
 *            newest commit. Read before the call returns
 */
ZC_EXPORT int zc_ready(struct zc_client *c, uint64_t job, const uint64_t *at, uint32_t timeout_ms,
                       struct zc_placement *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_ready_wait(struct zc_client *c, uint64_t job, const uint64_t *at,
                            uint32_t timeout_ms, struct zc_placement *ret);

/**
 * GPU memory of the daemon, as two descriptors that the caller closes. mem_fd is mapped with the
 * GPU driver's interface. The importing process keeps mark_fd open while it has the memory mapped,
 * so that the daemon knows who uses it (kernels/gpu.h).
 */
struct zc_gpu_memory {
    int mem_fd, mark_fd;
    uint64_t bytes;
};

/**
 * Returns the GPU memory that holds the job's parameters. A pinned view may be copied from there;
 * finish the copy before the release. -ENOENT: the parameters are not on the GPU. -EBUSY: it was
 * requested too often, and the mark_fds are still open.
 */
ZC_EXPORT int zc_gpu_share(struct zc_client *c, uint64_t job, struct zc_gpu_memory *ret,
                           zc_done_fn *done, void *arg);
ZC_EXPORT int zc_gpu_share_wait(struct zc_client *c, uint64_t job, struct zc_gpu_memory *ret);

/**
 * Leaves the job in good order; peers do not see a lost rank. A job that is not kept ends with its
 * last rank. Pointers into its arenas become invalid when done runs with 0. If the job ended in
 * another way (failed, destroyed, lost a peer), its views may be read until then; they read as
 * zeros.
 */
ZC_EXPORT int zc_job_close(struct zc_client *c, uint64_t job, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_job_close_wait(struct zc_client *c, uint64_t job);

/**
 * Ends a kept job by name, with its commits and snapshots. -EBUSY: a rank is attached. Pages that
 * clones share with it stay.
 */
ZC_EXPORT int zc_job_destroy(struct zc_client *c, const char *name, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_job_destroy_wait(struct zc_client *c, const char *name);

/**
 * Changes the share of a job that is in memory (-ENOENT), as in zc_job_options. For the job's
 * owner and administrators (-EPERM). Work that is already queued keeps its old share.
 */
ZC_EXPORT int zc_job_share(struct zc_client *c, const char *name, uint32_t share, zc_done_fn *done,
                           void *arg);
ZC_EXPORT int zc_job_share_wait(struct zc_client *c, const char *name, uint32_t share);

/**
 * Changes the budget of a tier ("host", or "gpu" if there is one) while the daemon runs. For
 * administrators (-EPERM). Jobs move optimizer state during their next steps, until it fits
 * or until the new room is used; zc_tier_row and zc_job_row report the progress. -ENOSPC: less than
 * the bytes that cannot move; the error message has the smallest budget that would work. -EINVAL:
 * another tier. The next start of the daemon uses its configuration again.
 */
ZC_EXPORT int zc_tier_set(struct zc_client *c, const char *tier, uint64_t bytes, zc_done_fn *done,
                          void *arg);
ZC_EXPORT int zc_tier_set_wait(struct zc_client *c, const char *tier, uint64_t bytes);

/**
 * Drains a data file, from 1, or uses it again, while the daemon runs. For administrators (-EPERM).
 * Nothing new is placed on a drained data file, and its pages move to others. It stays drained, also
 * over restarts, until it is used again. -EINVAL: there is no such data file, or no other one is in
 * use. Another failure: it is done, but could not be recorded, so the next start does not know it.
 */
ZC_EXPORT int zc_drive_set(struct zc_client *c, uint32_t number, bool drain, zc_done_fn *done,
                           void *arg);
ZC_EXPORT int zc_drive_set_wait(struct zc_client *c, uint32_t number, bool drain);

/** What a user holds, and may hold: bytes of each tier, and jobs in memory. Limits: 0: none. */
struct zc_quota {
    uint64_t host_bytes, host_max;
    uint64_t nvme_bytes, nvme_max; /* a page that several jobs of the user share counts once */
    uint64_t gpu_bytes, gpu_max;
    uint32_t uid, jobs, jobs_max;
    bool own;    /* limits of this user; else the default of all users */
    bool exempt; /* no limit applies: root, or the daemon's user */
    bool set_host, set_nvme, set_gpu, set_jobs; /* for zc_quota_set(): which limits to set */
};

/** Lists what users hold, by uid: for administrators all users, for others their own. -ENOSYS: an
 * older daemon. */
ZC_EXPORT int zc_quotas_wait(struct zc_client *c, struct zc_quota **ret_rows, size_t *ret_n);
/**
 * Sets limits of a user. For administrators (-EPERM). What the user holds already stays; the next
 * start of the daemon uses its configuration again.
 */
ZC_EXPORT int zc_quota_set(struct zc_client *c, const struct zc_quota *quota, zc_done_fn *done,
                           void *arg);
ZC_EXPORT int zc_quota_set_wait(struct zc_client *c, const struct zc_quota *quota);

enum zc_source { ZC_FROM_DEFAULT, ZC_FROM_FILE, ZC_FROM_LINE, ZC_FROM_RUN };

/** An option of the daemon. */
struct zc_setting {
    char name[32];      /* as in its configuration file */
    char value[4096];   /* in effect, as the file would have it */
    char restart[4096]; /* if pending: what the file has now */
    enum zc_source
        source;   /* of the value in effect: its default, the file, the command line, or set
                              at run time */
    bool pending; /* the file has another value, which needs a restart or was refused */
};

/** Lists all options, with the values in effect. For administrators (-EPERM). -ENOSYS: an older
 * daemon. zc_rows_free() frees the rows. */
ZC_EXPORT int zc_settings_wait(struct zc_client *c, struct zc_setting **ret_rows, size_t *ret_n);

/** The level of the daemon's log. */
struct zc_log_level {
    char name[16]; /* error, warn, info, debug */
};
/** Sets the level of the daemon's log (NULL: does not), and reports the level in effect. To set it is
 * for administrators (-EPERM); it lasts until the daemon ends, or log_level in its file changes.
 * -EINVAL: not a level. -ENOSYS: an older daemon. */
ZC_EXPORT int zc_log_level_wait(struct zc_client *c, const char *level, struct zc_log_level *ret);

/** An event: a line of the daemon's log. */
struct zc_log_event {
    uint64_t number;  /* from 1 */
    uint64_t time_ms; /* since 1970 */
    uint32_t uid;     /* of the job or the client, if has_uid */
    bool has_uid;
    bool lost;     /* events between `after` and this one were overwritten */
    char level[8]; /* error, warn, info, debug */
    char event[32];
    char job[ZC_NAME_MAX + 1]; /* "": it names none */
    char text[512];            /* key=value pairs */
};
/**
 * Lists the last 1,000 events whose numbers are greater than `after` (0: all), oldest first. Users see
 * the events of their own jobs and clients, administrators all. -ENOSYS: an older daemon.
 */
ZC_EXPORT int zc_log_events_wait(struct zc_client *c, uint64_t after,
                                 struct zc_log_event **ret_rows, size_t *ret_n);

/** What a planned restart of the daemon means for a job in memory. */
struct zc_restart_row {
    char job[ZC_NAME_MAX + 1];
    uint32_t uid, attached; /* its owner; ranks */
    char fate[16]; /* "continues"; "saved": its ranks end; "ends": unsaved steps are lost */
    char why[64];  /* "", or why it does not continue */
};

/**
 * Restarts the daemon, or only lists what that would mean (start false). For administrators
 * (-EPERM). When this returns, the daemon is going to end: it waits for the ranks' steps, commits,
 * and exits; its service manager starts the next one. -EBUSY: no service manager would start it
 * again, or it is already ending. -ENOSYS: an older daemon.
 */
ZC_EXPORT int zc_restart_wait(struct zc_client *c, bool start, struct zc_restart_row **ret_rows,
                              size_t *ret_n);

/* ---- data
 *
 * `staged` points into the job's staging, at a multiple of 64 bytes from its beginning. Those bytes
 * belong to the daemon from the call until done runs. The caller decides how to divide staging.
 */

enum zc_what {
    ZC_PARAM = 1,  /* in the unit's dtype */
    ZC_MASTER = 2, /* fp32, as are all below */
    /* the first moment: exp_avg, SGD's momentum_buffer, Adagrad's sum */
    ZC_EXP_AVG = 3,
    ZC_EXP_AVG_SQ = 4, /* the second moment, of AdamW and Adam */
    ZC_GRAD = 5,       /* as accumulated, before scaling */
};

/**
 * Writes elements [first, first + count) of a shard, fp32, before the first step or between two
 * steps. first and count are multiples of page_elems, or first + count is the shard's end. Versions
 * do not change. Later fetches see the new values. The last commit stays as it was.
 *
 * ZC_MASTER: before the first step the optimizer's state becomes zero; later it stays as it was. A
 * shard can be fetched once all of its masters were written.
 *
 * ZC_EXP_AVG, ZC_EXP_AVG_SQ: for state that was trained elsewhere; the masters of these elements
 * must be written before (-EAGAIN).
 *
 * -EBUSY: the job is stepping or being committed, its next step was begun early, or the shard is
 * pinned. After a failed write its elements count as not written.
 */
ZC_EXPORT int zc_write(struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first,
                       uint64_t count, const float *staged, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_write_wait(struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first,
                            uint64_t count, const float *staged);

/**
 * Copies stored elements into staging, as fp32 or in the dtype that enum zc_what names; ranges as
 * in zc_write().
 */
ZC_EXPORT int zc_read(struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first,
                      uint64_t count, void *staged, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_read_wait(struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first,
                           uint64_t count, void *staged);

/**
 * A shard's parameters, pinned: mapped read-only, and unchanged until released.
 *
 * Layout: elements of the unit's dtype, one after the other. Every page_elems elements of the shard
 * begin at a multiple of 4096 bytes; the gap before them is zeros. A quantized unit is in its
 * stored form, which the caller decodes: for every 4096 elements a block {int8_t code[4096]; float
 * scale[16]}. An element is its code times the scale of its 256 elements, rounded to the dtype.
 */
struct zc_view {
    /* NULL: the parameters are on the GPU (zc_placement.gpu_params) */
    const void *data;
    uint64_t bytes;
    uint64_t version;
    /* of the view: in that GPU memory if data is NULL, else in the arena */
    uint64_t offset;
};

/**
 * Pins the parameters of n shards, all or none, at version min_version or later. They may be any
 * shards of the job, also other ranks'. Each fetch of a shard is undone by one release.
 *
 * @param shards     n of them (1 to shards_max), copied before the call returns
 * @param ret_views  n views, filled in before done runs with 0
 * @return           also -EAGAIN in done: a shard has not been written yet; -EBUSY: 1,008 fetches,
 *                   or about a hundred of 1,024 shards, wait for this handle's next step or release
 */
ZC_EXPORT int zc_fetch(struct zc_client *c, const uint64_t *shards, uint32_t n,
                       uint64_t min_version, uint32_t timeout_ms, struct zc_view *ret_views,
                       zc_done_fn *done, void *arg);
ZC_EXPORT int zc_fetch_wait(struct zc_client *c, const uint64_t *shards, uint32_t n,
                            uint64_t min_version, uint32_t timeout_ms, struct zc_view *ret_views);

/**
 * Unpins n shards. One-way: the request is queued without a system call and is never answered. The
 * next zc_poll(), or the next call that sends, sends it. It takes effect before anything that is
 * sent after it.
 */
ZC_EXPORT int zc_release(struct zc_client *c, const uint64_t *shards, uint32_t n);

/** One part of a shard's gradient, summed over ranks. */
struct zc_push {
    uint64_t shard;
    /* the iteration that this gradient is for: zc_job.iterations + 1 */
    uint64_t step;
    uint32_t micro; /* micro-step, from 0 */
    /* false: set the gradient (micro-step 0); true: add to the sum of the earlier micro-steps */
    bool add;
    enum zc_dtype dtype; /* of the staged bytes */
    /* as in zc_write(); the parts of a micro-step come in order */
    uint64_t first, count;
    const void *staged;
};

/**
 * Adds a gradient, summed over ranks, to its shard. Pushed a second time: -EEXIST, and nothing is
 * added.
 */
ZC_EXPORT int zc_push(struct zc_client *c, const struct zc_push *push, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_push_wait(struct zc_client *c, const struct zc_push *push);

/**
 * The exact sum of the squares of gradients, and the number of elements that are infinite or NaN
 * (if there are any, the sum is meaningless). Sums of different shards merge to the same bits in
 * any order.
 */
struct zc_norm {
    uint8_t sum_of_squares[ZC_NORM_BYTES];
    uint64_t nonfinite;
};

/** Adds `other` to `into`. */
ZC_EXPORT void zc_norm_merge(struct zc_norm *into, const struct zc_norm *other);
/** Returns the square root of the sum; NaN if any element was not finite. */
ZC_EXPORT double zc_norm_value(const struct zc_norm *norm);

/**
 * Computes the norm over this rank's shards. Their gradients for `step` must be complete (-EBUSY
 * otherwise). A shard without a push counts as zeros.
 */
ZC_EXPORT int zc_norms(struct zc_client *c, uint64_t job, uint64_t step, struct zc_norm *ret,
                       zc_done_fn *done, void *arg);
ZC_EXPORT int zc_norms_wait(struct zc_client *c, uint64_t job, uint64_t step, struct zc_norm *ret);

/**
 * The same tensor by tensor, for a job with tensor_norms. ret has ZC_NORM_BYTES for each trainable
 * tensor, which are numbered as for zc_step_classes(): the exact sum of its squares over this
 * rank's shards. A norm is the square root of zc_norm_value() of the merged sums of all shards.
 *
 * @param ntensors  number of trainable tensors of the job (-EINVAL)
 */
ZC_EXPORT int zc_tensor_norms(struct zc_client *c, uint64_t job, uint64_t step, uint32_t ntensors,
                              uint8_t *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_tensor_norms_wait(struct zc_client *c, uint64_t job, uint64_t step,
                                   uint32_t ntensors, uint8_t *ret);

/**
 * As zc_tensor_norms(), of trainable tensors [first, first + ntensors) only. Only this rank's shards of
 * their units must have their gradients (-EBUSY). -EOPNOTSUPP: the daemon does not know it
 * (zc_server.sums). With grad_ring_limits and zc_step.sums also the reason why gradients of the step
 * are discarded: no node can use their sums.
 */
ZC_EXPORT int zc_unit_norms(struct zc_client *c, uint64_t job, uint64_t step, uint32_t first,
                            uint32_t ntensors, uint8_t *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_unit_norms_wait(struct zc_client *c, uint64_t job, uint64_t step, uint32_t first,
                                 uint32_t ntensors, uint8_t *ret);

/* ---- the step */

/**
 * What a step or zc_commit() makes durable, for a durable job (-EINVAL otherwise). A job has one
 * commit at a time. If its ranks are on several nodes, each node first prepares. The trainers agree
 * that all nodes have prepared. Then each node commits what it prepared, or drops it.
 */
enum zc_commit {
    ZC_COMMIT_NO = 0,   /* of a step: only in memory */
    ZC_COMMIT_STEP = 1, /* this step; of zc_commit(): the newest whole step */
    /* the same, in addition to the last commit; -EBUSY if something is already prepared */
    ZC_COMMIT_PREPARE = 2,
    /* of zc_commit() only: the prepared state becomes the commit */
    ZC_COMMIT_PREPARED = 3,
    ZC_COMMIT_DROP = 4, /* of zc_commit() only: the prepared state is dropped */
};

/**
 * The scalars of one parameter group. Scalars of other optimizers are ignored. lr, weight_decay,
 * eps, momentum and lr_decay are from 0 to 1e6, dampening is from -1e6 to 1e6. Other values are
 * -EINVAL, and the error message names group and scalar.
 */
struct zc_group {
    double lr;
    double beta1, beta2; /* AdamW, Adam, Lion: at least 0, below 1 */
    double eps;          /* AdamW, Adam, Adagrad */
    /* AdamW, Lion, Muon: decoupled; Adam, SGD, Adagrad: added to gradients */
    double weight_decay;
    double momentum, dampening; /* SGD; Muon: momentum, below 1 */
    double lr_decay;            /* Adagrad */
    bool nesterov;              /* SGD, where it needs a momentum and no dampening; Muon */
    enum zc_muon_scale muon_scale;
};

/** The scalars of a step. */
struct zc_step {
    uint64_t step; /* iterations + 1 */
    /* factor of all gradients: averaging, loss scale and clipping in one */
    double scale;
    /* NULL: the classes that zc_step_classes() has sent are used */
    const struct zc_group *groups;
    uint32_t ngroups;      /* the job's number of groups; 0 with classes */
    enum zc_commit commit; /* ZC_COMMIT_NO, ZC_COMMIT_STEP or ZC_COMMIT_PREPARE */
    uint32_t timeout_ms;
    bool factors; /* of zc_step(): with the factors that zc_step_tensors() has sent */
    bool limits;  /* of zc_step_begin(): with the limits */
    /* of zc_step_begin(), with limits: other nodes have shards of the units, too, and zc_unit_sums() sends
     * the sums over all. -EOPNOTSUPP: the daemon does not know it (zc_server.sums) */
    bool sums;
};

/** Result of a step or skip. */
struct zc_stepped {
    uint64_t iterations, applied;
    /* 0; else why the step, which was made, is not durable. The last commit stays valid */
    int commit_code;
    char commit_text[ZC_MESSAGE_MAX]; /* its error message */
};

/**
 * Makes one optimizer step of the whole job. The step begins when every rank has asked for it with
 * the same values (-EINVAL otherwise); from then on it does not need the ranks. Every trainable
 * shard must have its gradient. A fetch with min_version = applied + 1 may be sent right after this
 * call; it waits for the step.
 *
 * With commit, done runs when the step is durable. If only the commit failed, the step was still
 * made: rc is 0, and ret->commit_code says why.
 *
 * -ETIMEDOUT: either the step has not begun, nothing changed and it may be asked for again; or it
 * is running and will finish by itself. The error message says which. -EBUSY: a rank has attached
 * again meanwhile and must call zc_ready() first; ask again.
 */
ZC_EXPORT int zc_step(struct zc_client *c, uint64_t job, const struct zc_step *step,
                      struct zc_stepped *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_step_wait(struct zc_client *c, uint64_t job, const struct zc_step *step,
                           struct zc_stepped *ret);

/**
 * Announces the scalars of the next step, so that the step begins early: a shard is stepped as soon
 * as its gradient of the last micro-step is complete, if its state is streamed. The results stay
 * invisible until zc_step(). If the step is skipped or never comes, nothing has changed. The
 * scalars must not depend on the gradient norm.
 *
 * Every rank makes this call with the same values (-EINVAL) at any time between two steps.
 * zc_step() with the same values follows (-EINVAL), or zc_skip(). Until then: writes fail (-EBUSY),
 * gradients that are being stepped cannot be read (-EBUSY), and pushes of other micro-steps are
 * refused (-EINVAL). If a rank leaves, the begun work is undone and the gradients that it used are
 * dropped. If a device fails meanwhile, the step fails with -EIO or -EBADMSG: it has not begun, the
 * gradients are dropped, and the job continues.
 *
 * @param step    commit and timeout_ms are ignored
 * @param micros  number of micro-steps of this step, at least 1
 * @return        also -EINVAL in done: the job has no room for it (zc_placement.early)
 */
ZC_EXPORT int zc_step_begin(struct zc_client *c, uint64_t job, const struct zc_step *step,
                            uint32_t micros, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_step_begin_wait(struct zc_client *c, uint64_t job, const struct zc_step *step,
                                 uint32_t micros);

/*
 * CLASSES. Instead of the scalars of its groups, a step may have a table of classes. Each trainable
 * tensor then has a class, or none. A tensor without a class is not stepped: its parameters and its
 * state keep their bytes. (8-bit moments keep their values, to the precision of the scale that they
 * share with their neighbours.) Trainable tensors are numbered over all units in order, within each
 * unit in order of declaration. Frozen units and tensors of ZC_GROUP_FROZEN are not counted.
 */
#define ZC_CLASS_NONE  UINT32_MAX
#define ZC_CLASSES_MAX 1024

/** The scalars of a class. */
struct zc_class {
    struct zc_group group;
    double factor; /* of the gradient, in addition to zc_step.scale */
    /* The step number of these tensors, from 1: for bias correction and lr_decay. For SGD, 1 means
     * that there is no momentum yet */
    uint64_t t;
};

/** The classes of a step. */
struct zc_classes {
    const struct zc_class *classes;
    uint32_t nclasses;        /* at most ZC_CLASSES_MAX */
    const uint32_t *class_of; /* [ntensors]: below nclasses, or ZC_CLASS_NONE */
    uint32_t ntensors;        /* number of trainable tensors of the job */
};

/**
 * Sends the classes of the next step, for a zc_step() or zc_step_begin() without groups; call those
 * after done. All ranks send the same (the step fails with -EINVAL otherwise). A repeated call
 * replaces the table. The table is dropped with the step, with a skip, and when the rank leaves.
 * Copied. -EBUSY: the job is stepping.
 */
ZC_EXPORT int zc_step_classes(struct zc_client *c, uint64_t job, uint64_t step,
                              const struct zc_classes *classes, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_step_classes_wait(struct zc_client *c, uint64_t job, uint64_t step,
                                   const struct zc_classes *classes);

/**
 * Sends a value for each trainable tensor, for the next step. All ranks send the same (-EINVAL). A
 * repeated call replaces them. Copied. -EBUSY: the job is stepping, or the rank has begun the step.
 *
 *     factors  for zc_step(): the gradient of each tensor is multiplied by its factor, in addition
 *              to zc_step.scale and the factor of its class
 *     limits   for zc_step_begin(), of a job with tensor_norms that has all shards of its units on
 *              this node, or gets the sums of all nodes (zc_step.sums): the gradient of each tensor is scaled so that its norm is at most its
 *              limit. 0: no limit. A unit's shards are stepped when all of them have their
 *              gradients. zc_step() must then have the factors that result: zc_limit_factor() of
 *              the limit and the norm, which is |scale| (of the step, times that of the class) times
 *              the square root of the tensor's sum of squares
 */
ZC_EXPORT int zc_step_tensors(struct zc_client *c, uint64_t job, uint64_t step, bool limits,
                              const double *values, uint32_t ntensors, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_step_tensors_wait(struct zc_client *c, uint64_t job, uint64_t step, bool limits,
                                   const double *values, uint32_t ntensors);
/**
 * Sends the sums of squares over all shards of a unit, on all nodes, for a step that was begun with
 * zc_step.sums. One rank of each node sends them, when all ranks of all nodes have pushed their gradients
 * of the unit. Its shards on this node are then stepped. Copied. -EOPNOTSUPP: the daemon does not know
 * it (zc_server.sums).
 *
 * @param sums  ZC_NORM_BYTES for each trainable tensor of the unit, ntensors in all (-EINVAL)
 */
ZC_EXPORT int zc_unit_sums(struct zc_client *c, uint64_t job, uint64_t step, uint32_t unit,
                           const uint8_t *sums, uint32_t ntensors, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_unit_sums_wait(struct zc_client *c, uint64_t job, uint64_t step, uint32_t unit,
                                const uint8_t *sums, uint32_t ntensors);
/** limit / norm if there is a limit and the norm is above it, else 1. */
ZC_EXPORT double zc_limit_factor(double limit, double norm);

/** Whether steps begin during the backward pass, or why they do not. */
enum zc_early {
    ZC_EARLY_UNKNOWN,
    ZC_EARLY_YES,
    ZC_EARLY_OFF,    /* it is not asked for */
    ZC_EARLY_ROOM,   /* the data files have no room for it */
    ZC_EARLY_GLOBAL, /* global clipping */
    ZC_EARLY_SCALE,  /* a dynamic loss scale */
    ZC_EARLY_MICROS, /* a number of micro-steps that is not known in advance */
    ZC_EARLY_OLD     /* a daemon of another node is older */
};

/** What zc_job_about() tells the daemon. */
struct zc_job_about {
    uint32_t clip_mode;       /* 1 global, 2 tensor, 3 none */
    double clip;              /* limit of the global norm (tensor: in the warm-up); 0: none */
    double clip_ratio;        /* tensor: limit of a norm over its average */
    uint64_t clip_warm_until; /* tensor: applied steps at the end of the warm-up */
    enum zc_early early;      /* after a warm-up */
    uint64_t frozen_tensors, frozen_bytes; /* as in struct zc_job_row */
};

/**
 * Tells users how the trainer uses the job: zc_job_row shows it. Any rank, at any time; replaces what was
 * said before. -EOPNOTSUPP: the daemon does not know it (zc_server.sums).
 */
ZC_EXPORT int zc_job_about(struct zc_client *c, uint64_t job, const struct zc_job_about *about,
                           zc_done_fn *done, void *arg);
ZC_EXPORT int zc_job_about_wait(struct zc_client *c, uint64_t job,
                                const struct zc_job_about *about);

/**
 * Changes the optimizer, before the first step of a job that is not kept. Every rank makes this
 * call. The state stays as it was placed: the moments must be the same, and the new optimizer must
 * not have more of them. With fewer moments they must be fp32; the unused ones stay zero. -ENOTSUP
 * otherwise, and for a kept job. -EBUSY: a step was made, begun, or asked for.
 */
ZC_EXPORT int zc_job_optimizer(struct zc_client *c, uint64_t job, enum zc_optimizer optimizer,
                               enum zc_moments moments, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_job_optimizer_wait(struct zc_client *c, uint64_t job, enum zc_optimizer optimizer,
                                    enum zc_moments moments);

/**
 * Drops the gradients of step `step`, which must be the next one. `iterations` does not change;
 * gradients are pushed again from micro-step 0. One rank asks for all ranks of the node. They have
 * agreed on it, and none of them has a push, a gradient read or a step in progress (-EBUSY).
 */
ZC_EXPORT int zc_abandon(struct zc_client *c, uint64_t job, uint64_t step, zc_done_fn *done,
                         void *arg);
ZC_EXPORT int zc_abandon_wait(struct zc_client *c, uint64_t job, uint64_t step);

/**
 * Skips a step: drops its gradients. `iterations` grows; `applied` and the versions do not. Ranks,
 * commit, timeout and result as in zc_step().
 */
ZC_EXPORT int zc_skip(struct zc_client *c, uint64_t job, uint64_t step, enum zc_commit commit,
                      uint32_t timeout_ms, struct zc_stepped *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_skip_wait(struct zc_client *c, uint64_t job, uint64_t step, enum zc_commit commit,
                           uint32_t timeout_ms, struct zc_stepped *ret);

/**
 * Makes whole steps durable, between steps. One rank asks, for all of the job on this node. Asking
 * again for what is already done is allowed.
 *
 * @param what        not ZC_COMMIT_NO
 * @param iterations  the step that the caller means (-EINVAL if it is another one)
 * @param ret         what is committed now (ZC_COMMIT_PREPARE: prepared)
 * @return            -ENOENT in done: nothing is prepared (ZC_COMMIT_PREPARED, ZC_COMMIT_DROP);
 *                    -EBUSY the job is stepping, or something else is prepared
 */
ZC_EXPORT int zc_commit(struct zc_client *c, uint64_t job, enum zc_commit what, uint64_t iterations,
                        uint32_t timeout_ms, struct zc_point *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_commit_wait(struct zc_client *c, uint64_t job, enum zc_commit what,
                             uint64_t iterations, uint32_t timeout_ms, struct zc_point *ret);

/**
 * Sets the counters of a job whose state comes from elsewhere, before its first step. One rank
 * calls it; others may repeat the same values.
 */
ZC_EXPORT int zc_progress(struct zc_client *c, uint64_t job, uint64_t iterations, uint64_t applied,
                          zc_done_fn *done, void *arg);
ZC_EXPORT int zc_progress_wait(struct zc_client *c, uint64_t job, uint64_t iterations,
                               uint64_t applied);

/**
 * Stores bytes of the trainer's own (data position, random state ...) with this rank's next step or
 * skip; with of_job (rank 0 only), with the job's. At most ZC_NOTE_MAX bytes. Copied before the
 * call returns.
 */
ZC_EXPORT int zc_note_put(struct zc_client *c, uint64_t job, bool of_job, const void *note,
                          size_t bytes, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_note_put_wait(struct zc_client *c, uint64_t job, bool of_job, const void *note,
                               size_t bytes);
/**
 * Reads the note of the newest step into buf, which has room for ZC_NOTE_MAX bytes; *ret_bytes is
 * its length. -ENOENT: there is none. On failure the content of buf is undefined.
 */
ZC_EXPORT int zc_note_get_wait(struct zc_client *c, uint64_t job, bool of_job, void *buf,
                               size_t *ret_bytes);

/* ---- snapshots: named commits of durable jobs, for every user who may see the job. Taking one
 * copies nothing. It costs the pages that change afterwards. Names have the same rules as job
 * names.
 */

/** What to snapshot, and how to name it. */
struct zc_snapshot {
    const char *job;
    const char *name; /* NULL or "": derived from the step ("step-100") */
    bool next;        /* take the next commit, and wait for it; else take the newest */
    /* afterwards destroy the job's oldest snapshots until this many are left; 0: keep all */
    uint32_t retain;
    uint32_t timeout_ms; /* with next */
};

/** A snapshot. */
struct zc_snapshot_row {
    uint64_t iterations, applied;
    uint64_t created_unix; /* seconds */
    /* of all its pages; and what destroying it would free */
    uint64_t bytes, own_bytes;
    uint32_t world, uid; /* uid: of the job's owner */
    char job[ZC_NAME_MAX + 1], name[ZC_NAME_MAX + 1];
};

/**
 * Takes a snapshot of a job's commit. ret describes it. -ENOENT: the job has no commit. -EEXIST:
 * the name is taken.
 */
ZC_EXPORT int zc_snapshot(struct zc_client *c, const struct zc_snapshot *snapshot,
                          struct zc_snapshot_row *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_snapshot_wait(struct zc_client *c, const struct zc_snapshot *snapshot,
                               struct zc_snapshot_row *ret);

/**
 * Makes a snapshot (NULL or "": the newest commit) the job's current commit. Newer state is
 * dropped; snapshots stay. -EBUSY: a rank is attached.
 */
ZC_EXPORT int zc_rollback(struct zc_client *c, const char *job, const char *snapshot,
                          struct zc_snapshot_row *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_rollback_wait(struct zc_client *c, const char *job, const char *snapshot,
                               struct zc_snapshot_row *ret);

/**
 * Makes a new job, owned by the caller, from a snapshot (NULL or "": from the newest commit). Pages
 * are shared until they change. ret describes the new job's commit. -EEXIST: the name is taken.
 * -ENOSPC: the clone may later need as much room as a job of its own.
 */
ZC_EXPORT int zc_clone(struct zc_client *c, const char *job, const char *snapshot, const char *name,
                       struct zc_snapshot_row *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_clone_wait(struct zc_client *c, const char *job, const char *snapshot,
                            const char *name, struct zc_snapshot_row *ret);

/** Destroys a snapshot. Pages that nothing else uses are freed. */
ZC_EXPORT int zc_snapshot_destroy(struct zc_client *c, const char *job, const char *snapshot,
                                  zc_done_fn *done, void *arg);
ZC_EXPORT int zc_snapshot_destroy_wait(struct zc_client *c, const char *job, const char *snapshot);

/* ---- readers: read saved state without being a rank of the job */

/** An open reader. */
struct zc_reader {
    uint64_t id;
    uint64_t iterations, applied;
    uint32_t units, groups, world;
    enum zc_optimizer optimizer;
    enum zc_moments moments;
    void *staging; /* mapped read-write until zc_reader_close() or zc_close() */
    uint64_t staging_bytes;
};

/**
 * Opens a snapshot of a job (NULL or "": the newest commit) for reading. A snapshot stays readable
 * until the reader or the handle is closed. A commit that newer ones replace stays readable as long
 * as there is room for it besides the places promised to jobs; after that, reads fail with -ESTALE.
 * One reader at a time per handle (-EBUSY); a job of the same handle does not count. staging_bytes
 * is rounded up to 4096.
 */
ZC_EXPORT int zc_reader_open(struct zc_client *c, const char *job, const char *snapshot,
                             uint64_t staging_bytes, struct zc_reader *ret, zc_done_fn *done,
                             void *arg);
ZC_EXPORT int zc_reader_open_wait(struct zc_client *c, const char *job, const char *snapshot,
                                  uint64_t staging_bytes, struct zc_reader *ret);

/**
 * Reads the description of unit 0 to units - 1. *ret and all that it points to is one allocation;
 * free it with zc_rows_free().
 */
ZC_EXPORT int zc_reader_unit_wait(struct zc_client *c, uint64_t reader, uint32_t unit,
                                  struct zc_unit **ret);

/**
 * Copies elements [first, first + count) of a unit into the reader's staging. Bounds of shards and
 * pages do not matter. `what` is not ZC_GRAD; for a frozen unit it is ZC_PARAM or ZC_MASTER. staged
 * points into zc_reader.staging, as in zc_read(). All bytes are verified before any are handed out:
 * -EBADMSG.
 */
ZC_EXPORT int zc_reader_read(struct zc_client *c, uint64_t reader, uint32_t unit, enum zc_what what,
                             uint64_t first, uint64_t count, void *staged, zc_done_fn *done,
                             void *arg);
ZC_EXPORT int zc_reader_read_wait(struct zc_client *c, uint64_t reader, uint32_t unit,
                                  enum zc_what what, uint64_t first, uint64_t count, void *staged);

/** Closes the reader. Pointers into its staging become invalid when done runs with 0. */
ZC_EXPORT int zc_reader_close(struct zc_client *c, uint64_t reader, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_reader_close_wait(struct zc_client *c, uint64_t reader);

/* ---- looking inside. Rows are allocated, NULL where there are none; free them with
 * zc_rows_free(). */

/** A shard, for `zctl ls`. */
struct zc_shard_row {
    uint64_t id, first, count, version, bytes, host_bytes, nvme_bytes;
    uint32_t pins, rank, uid; /* uid: of the job's owner */
    char job[ZC_NAME_MAX + 1], unit[ZC_NAME_MAX + 1], dtype[8], tier[8];
};

/** A job, for `zctl jobs`. */
struct zc_job_row {
    uint64_t id, iterations, applied, shards, params, host_bytes, nvme_bytes;
    uint64_t fetched_bytes, pushed_bytes, nvme_read_bytes, nvme_written_bytes;
    uint64_t committed_iterations, committed_applied; /* valid if `committed` */
    uint64_t epoch;
    /* optimizer state in host memory, and its target: steps move the difference */
    uint64_t host_state, host_state_target;
    /* part of nvme_bytes: gradients that host memory does not hold */
    uint64_t grads_nvme_bytes;
    uint64_t gpu_bytes; /* in the GPU tier */
    uint32_t uid, world, attached, snapshots;
    uint32_t share; /* 0: the job is not in memory */
    bool keep, durable;
    bool committed; /* there is a commit */
    char name[ZC_NAME_MAX + 1];
    char state[16]; /* saved (not in memory), lost, defining, ready, stepping, failed */
    char optimizer[12], moments[8]; /* "adamw", "fp32" */
    char error[256];
    /* Muon: elements that it steps, and host memory for them in a step. muon: what its last step had for the first
     * matrix, "rms, momentum 0.95, nesterov, lr 0.001"; "": there was none since the job is in memory */
    uint64_t muon_params, muon_bytes;
    char muon[80];
    /* muon_bytes if the host tier has room for it: with less, reading, orthogonalizing and writing overlap less */
    uint64_t muon_most_bytes;
    /* what its trainer says (zc_job_about()); "" and 0 if nothing. clip: "global, 1", "tensor, 1.05 of averages",
     * "none". early: "yes", or why steps do not begin during the backward pass. Frozen: tensors that are
     * not trained at present, and bytes of their state, which steps do not move */
    char clip[64], early[96];
    uint64_t clip_warm_left; /* steps until tensors are clipped by averages of their own norms */
    uint64_t frozen_tensors, frozen_bytes;
    uint64_t muon_gpu_bytes; /* part of gpu_bytes: to orthogonalize the matrices */
    char muon_engine[12];    /* "cpu", "gpu", "gpu-bf16"; "": another optimizer */
    /* gradients of pages on NVMe are not held (zc_job_options.grad_ring): bytes of these; and of how many
     * percent of the pages they are held nevertheless */
    bool grad_ring;
    uint32_t grad_ring_keep;
    uint64_t grads_ringed;
};

/** A tier, for `zctl tiers`. */
struct zc_tier_row {
    uint64_t budget, used, params, grads, state, staging, rings;
    /* bytes per second of the nvme tier: measured at start, or the best second since */
    uint64_t read_bytes_s, write_bytes_s;
    /* host tier: memory in use on the daemon's NUMA nodes, and on other nodes. 0 if numa = off */
    uint64_t node_bytes, spilled_bytes;
    /* host and gpu tiers: the requested budget, which the actual one approaches; and optimizer
     * state that will leave the tier during the next steps */
    uint64_t target, moving;
    /* gpu tier: memory that the device reports as free (others use it too); and memory that was
     * given back but is still held by processes that imported it. 0 in zc_top_wait() */
    uint64_t device_free, stranded;
    /* nodes: bytes per NUMA node, "0:4096 1:0". stranded_by: holders, "job:bytes:pid,pid job:...".
     * "" if not known, and in zc_top_wait() */
    char name[8], detail[256], numa[128], nodes[256], stranded_by[256];
};

/** A data file, for `zctl drive`. */
struct zc_drive_row {
    uint64_t number;                 /* from 1 */
    uint64_t size_bytes, held_bytes; /* held: by pages */
    /* bytes per second, reads and writes together: measured from the traffic, and at the start */
    uint64_t bytes_s, start_bytes_s;
    uint64_t read_bytes, written_bytes, failed; /* failed: transfers */
    uint64_t waits_ms; /* there are transfers, and none has ended for so long */
    char node[8];      /* its NUMA node; "": unknown */
    char state[40];    /* "in use", or why it is drained */
    char why[160];     /* the same with numbers; "": in use, or drained on request */
    char device[24];   /* major:minor; "": unknown */
    char directory[256];
    uint64_t device_start_bytes; /* 1 + what the device had written when the daemon started; 0:
                                    unknown */
    uint64_t discarded_bytes, holed_bytes; /* option discard: free bytes; those without space */
    char discard[160];                     /* "on", "off", or why not */
};

/**
 * A time integral. Two readings give the mean between them, delta(area_ns) / delta(now), and the
 * share of time in which the value was above 0, delta(busy_ns) / delta(now).
 */
struct zc_gauge {
    uint64_t now, area_ns, busy_ns;
};

/**
 * Where page operations are: waiting for a page buffer, being read, computed, written, or on the
 * GPU.
 */
enum zc_page_place {
    ZC_PAGE_BUFFER,
    ZC_PAGE_READ,
    ZC_PAGE_COMPUTE,
    ZC_PAGE_WRITE,
    ZC_PAGE_GPU,
    ZC_PAGE_PLACES
};

/** What requests wait for; proto/PROTOCOL.md ("top") explains each. */
enum zc_wait_for {
    ZC_WAIT_FETCH_DRIVE,
    ZC_WAIT_FETCH_ROOM,    /* room in the ring */
    ZC_WAIT_FETCH_VERSION, /* the step that makes the version */
    ZC_WAIT_PUSH_TURN,     /* the previous push */
    ZC_WAIT_PUSH_COMPUTE,
    ZC_WAIT_STEP_RANKS,   /* ranks that have not asked yet */
    ZC_WAIT_STEP_PINS,    /* ranks that pin a shard */
    ZC_WAIT_STEP_TRAFFIC, /* pushes, fetches and copies in progress */
    ZC_WAIT_STEP_PAGES,   /* the step itself */
    ZC_WAIT_COMMIT,
    ZC_WAIT_READY,
    ZC_WAITS
};

/** A data file. */
struct zc_top_path {
    uint64_t read_bytes, written_bytes, transfers, failed;
    /* bytes per second: measured at start, or the best second since */
    uint64_t read_bytes_s, write_bytes_s;
    uint64_t depth;        /* transfers that the drive gets at one time */
    struct zc_gauge queue; /* transfers queued, or in progress */
};

/** What a step waits for: nothing, ranks that have not asked for it, or ranks that pin a shard. */
enum zc_late { ZC_LATE_NOBODY, ZC_LATE_STEP, ZC_LATE_PINS };

/** A job, for `zctl top`. */
struct zc_top_job {
    uint64_t now_ns; /* time of this reading */
    uint64_t id, iterations, applied, host_bytes, nvme_bytes;
    uint64_t fetched_bytes, pushed_bytes, nvme_read_bytes, nvme_written_bytes;
    uint64_t fetches, hits, misses, pushes; /* hits and misses count shards */
    /* page operations; the time that they took; the part of it spent computing */
    uint64_t pages, page_ns, compute_ns;
    struct zc_gauge stages[ZC_PAGE_PLACES], waits[ZC_WAITS];
    struct zc_gauge drive_only; /* 1 while pages are only being read or written */
    struct zc_gauge asking;     /* ranks with an unanswered request */
    uint32_t uid, world, attached;
    uint32_t late;                  /* enum zc_late: what a step waits for */
    uint32_t late_ranks, late_rank; /* number of those ranks, and the first one */
    /* its process (0: not attached), and how long the step has waited */
    uint64_t late_pid, late_ms;
    char name[ZC_NAME_MAX + 1], state[16];
};

/** The oldest unanswered request; pid 0: there is none that the caller may see. */
struct zc_top_oldest {
    uint64_t pid, age_ms;
    uint32_t rank;
    /* job "": the request is not a rank's */
    char method[32], job[ZC_NAME_MAX + 1], waits[64];
};

/** The daemon, for `zctl top`. */
struct zc_top {
    uint64_t now_ns, uptime_ms;
    uint32_t clients, threads, buffers;
    uint32_t gpu_threads; /* threads of the GPU tier; 0: there is none */
    uint32_t ntiers, npaths;
    struct zc_gauge computing, compute_line, buffers_used;
    struct zc_gauge gpu, gpu_line; /* pages on gpu_threads, and queued for them */
    struct zc_tier_row tiers[ZC_TOP_TIERS_MAX];
    struct zc_top_path paths[ZC_TOP_PATHS_MAX];
    struct zc_top_oldest oldest;
};

/** A counter of the daemon. */
struct zc_counter {
    uint64_t value;
    char name[64];
};

/** A message of a list: a finding of scrub or fsck. */
struct zc_message {
    char text[ZC_MESSAGE_MAX];
};

/** Lists shards. job NULL or "": those of every job that the caller may see. */
ZC_EXPORT int zc_list_wait(struct zc_client *c, const char *job, struct zc_shard_row **ret_rows,
                           size_t *ret_n);
/** Lists jobs; job as in zc_list_wait(). */
ZC_EXPORT int zc_jobs_wait(struct zc_client *c, const char *job, struct zc_job_row **ret_rows,
                           size_t *ret_n);
/** Lists the tiers. */
ZC_EXPORT int zc_tiers_wait(struct zc_client *c, struct zc_tier_row **ret_rows, size_t *ret_n);
/** Lists the data files. */
ZC_EXPORT int zc_drives_wait(struct zc_client *c, struct zc_drive_row **ret_rows, size_t *ret_n);
/** Lists the daemon's counters (docs/reference/counters.md). */
ZC_EXPORT int zc_stat_wait(struct zc_client *c, struct zc_counter **ret_rows, size_t *ret_n);
/**
 * Reads the data of `zctl top`, for all jobs in memory (job "" or NULL) or for one. -ENOENT: that
 * job is not in memory. Rates are the difference of two readings over the difference of their
 * now_ns.
 */
ZC_EXPORT int zc_top_wait(struct zc_client *c, const char *job, struct zc_top *ret,
                          struct zc_top_job **ret_rows, size_t *ret_n);
/** Lists snapshots, oldest first; job as in zc_list_wait(). */
ZC_EXPORT int zc_snapshots_wait(struct zc_client *c, const char *job,
                                struct zc_snapshot_row **ret_rows, size_t *ret_n);
/** Frees what a call of this header allocated. NULL is allowed. */
ZC_EXPORT void zc_rows_free(void *rows);

/* ---- health and metrics */

enum zc_reason_level { ZC_REASON_ADVICE = 1, ZC_REASON_ERROR = 2 };

/** Why the daemon is degraded, or what could be better. */
struct zc_reason {
    uint32_t level; /* enum zc_reason_level */
    char id[32];    /* a stable word: docs/reference/health.md */
    char text[512]; /* what is wrong, with numbers */
    char fix[256];  /* what to do */
};

/** The state of the daemon, for `zctl status`. It is degraded if there is an error. */
struct zc_health {
    uint64_t uptime_ms;
    /* the newest commit since the start, if `committed`: its step, when it was durable, how long
     * that took */
    uint64_t commit_iterations, commit_ago_ms, commit_us;
    /* the newest scrub since the start that read everything, if `scrubbed` */
    uint64_t scrub_ago_ms, scrub_bytes, scrub_bad_pages;
    /* the daemon's loop: CPU time of the longest turn; 99.9 % took no longer, by the clock */
    uint64_t turn_max_us, turn_p999_us;
    uint32_t errors; /* number of errors among the reasons */
    uint32_t clients, clients_max;
    uint32_t jobs, saved; /* of all users: in memory, and saved jobs that are not */
    uint32_t ntiers;
    bool committed, scrubbed;
    char commit_job[ZC_NAME_MAX + 1]; /* "": the caller may not see it */
    char scrub_state[16];             /* idle, running, paused, done, stopped */
    struct zc_tier_row tiers[ZC_TOP_TIERS_MAX];
};

/** Reads the state of the daemon. Reasons: errors first. */
ZC_EXPORT int zc_health_wait(struct zc_client *c, struct zc_health *ret,
                             struct zc_reason **ret_reasons, size_t *ret_n);

/** A format of metrics. */
enum zc_metrics_format {
    ZC_OPENMETRICS = 0, /* OpenMetrics 1.0 */
    ZC_PROMETHEUS = 1,  /* Prometheus' text format 0.0.4, for node_exporter's textfile collector */
};

/**
 * Reads the daemon's metrics as text (docs/reference/metrics.md). *ret_text has *ret_bytes bytes
 * and a terminating 0; free it with zc_rows_free().
 */
ZC_EXPORT int zc_metrics_wait(struct zc_client *c, enum zc_metrics_format format, char **ret_text,
                              size_t *ret_bytes);

/* ---- care of the data files. A scrub reads every saved page slowly in the background, and so
 * finds damage before the page is needed. For administrators, except ZC_SCRUB_STATUS. */

enum zc_scrub_action {
    ZC_SCRUB_STATUS = 0,
    ZC_SCRUB_START = 1,
    ZC_SCRUB_PAUSE = 2,
    ZC_SCRUB_RESUME = 3,
    ZC_SCRUB_STOP = 4,
};

/** State of a scrub. */
struct zc_scrub {
    char state[16];              /* idle, running, paused, done, stopped */
    uint64_t bytes, total_bytes; /* verified so far in this run, and in total */
    uint64_t bad_pages;
    uint64_t elapsed_ms, eta_ms; /* eta_ms 0: not known */
    uint64_t rate_bytes;         /* per second */
};

/**
 * Performs the action and returns the state after it. rate_bytes applies to start and resume: bytes
 * per second; 0: a tenth of the measured rate of the drives. ret_bad: the first bad pages, with
 * job, shard and page. -EBUSY: a scrub is running (start). -EINVAL: not possible in this state
 * (pause, resume, stop).
 */
ZC_EXPORT int zc_scrub_wait(struct zc_client *c, enum zc_scrub_action action, uint64_t rate_bytes,
                            struct zc_scrub *ret, struct zc_message **ret_bad, size_t *ret_n);

/** Result of a check of the store. */
struct zc_fsck {
    uint64_t jobs, versions, snapshots, rows, pages;
    uint64_t bytes;          /* of all pages, each counted once */
    uint64_t sequence;       /* of the newest change */
    uint64_t problems_total; /* all of them; ret_problems has the first */
};

/**
 * Recomputes every counter of the store from its catalog, and compares. Returns 0 also if there are
 * problems: check problems_total.
 */
ZC_EXPORT int zc_fsck_wait(struct zc_client *c, struct zc_fsck *ret,
                           struct zc_message **ret_problems, size_t *ret_n);

/** Use of the data files by one job. */
struct zc_df_row {
    /* "": pages of no job, or of jobs that the caller may not see */
    char job[ZC_NAME_MAX + 1];
    /* Bytes, each counted once: for the first of these that holds it, and for the first job. */
    uint64_t committed, prepared, snapshots;
    uint64_t working;  /* written, but part of no commit yet */
    uint64_t reserved; /* kept free for the job's next steps and commits */
    uint64_t shared;   /* counted in another job's row */
    uint32_t uid;      /* of the job's owner */
};

/**
 * Use of the data files: total = meta + free + the sum over all rows of all fields but `shared`.
 */
struct zc_df {
    uint64_t total, meta, free;
    uint64_t catalog_bytes; /* size of the catalog, which is not in the data files */
};

/**
 * Reads what the bytes of the data files are used for. If there are more jobs than one answer holds
 * (some hundreds), the call repeats until all answers are from one moment. -EAGAIN: the state
 * changes too fast.
 */
ZC_EXPORT int zc_df_wait(struct zc_client *c, struct zc_df *ret, struct zc_df_row **ret_rows,
                         size_t *ret_n);

/* ---- */

/** Makes a round trip to the daemon. */
ZC_EXPORT int zc_ping(struct zc_client *c, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_ping_wait(struct zc_client *c);

#ifdef __cplusplus
}
#endif

#endif
