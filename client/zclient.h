/*
 * zclient.h - the client library of zshard: fetch, release, push and step the shards of a model
 * that does not fit, from the shard daemon of this node.
 *
 * MODEL. A handle (struct zc_client) is one connection to the daemon. Calls that talk to the daemon
 * are asynchronous: they return at once, and their `done` runs later, exactly once, from inside
 * zc_poll(). Each has a blocking form, zc_..._wait(), which is the same call and a loop around
 * zc_poll(). The library starts no threads and installs no signal handlers; a daemon that dies
 * raises no SIGPIPE.
 *
 * THREADS. One thread at a time may use a handle. Separate handles are independent.
 *
 * A FORK. A handle belongs to the process that opened it. In a child (fork(), os.fork()) its calls are
 * refused with -EPERM, and the child's copy of the socket is closed, so that the daemon notices the
 * death of the parent; zc_close() frees the child's copy of the handle. Memory that is shared with
 * the daemon stays mapped.
 *
 * ERRORS. Functions return 0 or a negative errno. After a failure zc_error() returns an error
 * message; it stays until the next failure of that handle. A call that returns an error has started
 * nothing: its done will not run. What the codes mean, everywhere in this header:
 *
 *     -EINVAL      an argument is wrong: out of range, misaligned, not in the right order
 *     -ENOENT      no such job, unit, shard, snapshot or note
 *     -EEXIST      it exists already: a job of that name, a repeated push
 *     -EPERM       only root and the daemon's user may; it is another rank's; or the handle to the parent
 *                  of this process
 *     -ENOSPC      it does not fit: the error message has the numbers and the smallest that would work (of a
 *                  GPU's memory: what is needed, and what is free)
 *     -EBUSY       somebody holds it, or the state is wrong now: a rank that is taken, a pinned
 *                  version, a job that is stepping
 *     -ETIMEDOUT   the deadline passed; the error message says what it waited for
 *     -ESTALE      this rank was cut off by a newer epoch: another process took its job over; or
 *                  what a reader read was replaced by newer commits, and there was no room for it
 *     -EBADMSG     stored bytes are corrupt: nothing of them was handed out
 *     -EIO         a device failed
 *     -EOWNERDEAD  a peer rank of the job died: the job cannot continue
 *     -ECANCELED   the call was ended by zc_close() or by the end of the job
 *     -ENOTCONN    the daemon is gone or hung up: close the handle
 *     -EPROTO      the answer of the daemon violates the protocol: close the handle
 *     -ENOSYS      this daemon does not know the request
 *     -EMSGSIZE    the request is too long
 *     -ENOBUFS     too many calls are in flight: zc_poll() first
 *     -ENOMEM      no memory, here or there; -EMFILE no descriptors
 *
 * WAITING. The daemon ends every request itself; where a call has timeout_ms, by then (0: by the
 * daemon's default). So a blocking form does not count time, it asks whether the daemon lives: when
 * nothing was heard of it for half of zc_options.quiet_timeout_ms, it sends a ping, and when
 * nothing was heard for all of it, or no answer came so long after the call's own timeout_ms, the
 * connection is given up: this and all other unfinished calls end with -ETIMEDOUT, later ones are
 * refused with -ENOTCONN, and all that is left is to close the handle. Signals do not end a
 * blocking form. Those who poll for themselves see that nothing comes, and decide.
 *
 * UNITS. Elements are parameters. A shard is a range of a unit's elements whose bounds are
 * multiples of block_elems; initial values and gradients travel in parts cut at multiples of
 * page_elems (zc_server()). Bytes are bytes.
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
#define ZC_PINS_MIN      3u    /* so many of its own shards a rank can always pin at one time */
#define ZC_NOTE_MAX      65536 /* bytes of a note */
#define ZC_NORM_BYTES    80
#define ZC_TOP_PATHS_MAX 8u
#define ZC_TOP_TIERS_MAX 4u
#define ZC_POINTS_MAX    3   /* states that a job can resume from: in memory, prepared, committed */
#define ZC_SENTENCE_MAX  224 /* bytes of a message, with the terminating 0 */

struct zc_client;

/** How a call ended: rc is 0 or one of the codes above; on failure zc_error() returns its error message. May
 *  start calls; a blocking form or zc_poll() is refused with -EBUSY here, and zc_close() is an
 *  assertion that fails. Where a call takes a zc_done_fn, NULL means that nobody wants to know. */
typedef void zc_done_fn(void *arg, int rc);

/* ---- the connection */

struct zc_options {
    const char *socket;          /* NULL: $ZSHARD_SOCKET, $XDG_RUNTIME_DIR/zshard.sock, or the
                                    system's /run/zshard/zshard.sock */
    const char *program;         /* who asks, for zctl and the daemon's log; NULL: "libzclient" */
    uint32_t connect_timeout_ms; /* 0: 5000 */
    uint32_t quiet_timeout_ms;   /* of the blocking forms: see WAITING; 0: 30000 */
};

/** What the daemon reported about itself at connect. */
struct zc_server {
    uint32_t version; /* of the protocol */
    uint32_t page_elems, block_elems;
    uint32_t shards_max;  /* that one call may name */
    uint8_t instance[16]; /* changes with every start of the daemon */
    uint64_t pid;
    char server[64]; /* "zshardd 0.1.0" */
};

/**
 * Connects and says hello; blocks up to the timeout. options may be NULL.
 *
 * @return 0; -ENOTCONN nobody answers there, -ETIMEDOUT not in time, -EPERM not allowed to connect,
 *         -EPROTO no version in common, -EUSERS the daemon serves as many clients as it may,
 *         -EMFILE, -EINVAL a path that cannot be a socket's; otherwise as above. On failure *ret is
 *         a closed handle that holds only the error message (zc_close() it), or NULL: no memory.
 */
ZC_EXPORT int zc_open(struct zc_client **ret, const struct zc_options *options);

/** Ends unfinished calls with -ECANCELED, unmaps the arenas, then frees c. NULL is allowed. What
 *  the daemon held for this client (pins, staging) returns at once; the job, unless kept, ends. */
ZC_EXPORT void zc_close(struct zc_client *c);

/** The error message of the last failure, "" before the first. Valid until the next failure or close. */
ZC_EXPORT const char *zc_error(const struct zc_client *c);

/** The library's name for a code ("-ENOSPC: it does not fit"), for logs. Never NULL. */
ZC_EXPORT const char *zc_strerror(int rc);

/** Exit statuses: the same in zctl, zgpt and every program that wants to be scripted alike. */
enum zc_exit {
    ZC_EXIT_OTHER = 1,
    ZC_EXIT_USAGE = 2,   /* -EINVAL */
    ZC_EXIT_DAEMON = 3,  /* not there, lost, or does not answer: -ENOTCONN, -EPROTO, -ETIMEDOUT,
                            -ECANCELED */
    ZC_EXIT_REFUSED = 4, /* it does not fit, is not allowed, was not found, is taken, was taken
                            over (-ESTALE), is not there to be used (-ENODEV: no GPU) */
    ZC_EXIT_PEER = 5,    /* -EOWNERDEAD */
    ZC_EXIT_CORRUPT = 6, /* -EBADMSG */
};

/** 0 for 0, else the status for a code. Takes any errno, not only those above. */
ZC_EXPORT int zc_exit_code(int rc);

ZC_EXPORT const struct zc_server *zc_server(const struct zc_client *c);

/** For a foreign event loop: poll the descriptor for zc_events() (POLLIN, POLLOUT), then call
 *  zc_poll(c, 0). Ask zc_events() again after every call on the handle; it is 0 when the connection
 *  is over. zc_fd() is -1 of a handle that never had one. */
ZC_EXPORT int zc_fd(const struct zc_client *c);
ZC_EXPORT short zc_events(const struct zc_client *c);

/**
 * Makes progress: sends, receives, runs `done`s and the event callback. Waits up to timeout_ms for
 * the first (0: does not wait, negative: without limit); a signal ends the wait.
 *
 * @return the number of callbacks run, 0 is fine; -ENOTCONN the connection is lost: every call
 *         that was unfinished ended with that code; -EPROTO the same; -EBUSY in a callback
 */
ZC_EXPORT int zc_poll(struct zc_client *c, int timeout_ms);

/* ---- events */

enum zc_event_kind {
    ZC_EVENT_PEER_LOST = 100,  /* rank `rank` of your job died or hung up: -EOWNERDEAD */
    ZC_EVENT_JOB_FAILED = 101, /* the job cannot continue, or not with this rank: see code */
};

struct zc_event {
    enum zc_event_kind kind;
    uint64_t job;
    uint32_t rank;
    int code;
    const char *text; /* valid during the callback */
};

typedef void zc_event_fn(void *arg, const struct zc_event *event);

/** One callback for all events; NULL turns it off. Events also end the job's unfinished calls with
 *  their code, whether or not anybody listens; the callback runs first. Bytes of staging that such
 *  a call was given stay the daemon's until the job or the handle is closed. */
ZC_EXPORT void zc_on_event(struct zc_client *c, zc_event_fn *fn, void *arg);

/* ---- jobs, units, shards */

enum zc_dtype { ZC_F32 = 1, ZC_BF16 = 2, ZC_F16 = 3 };
/** torch.optim's of the same name; Lion as published. A job has one, for as long as it lives. */
enum zc_optimizer { ZC_ADAMW = 1, ZC_ADAM = 2, ZC_LION = 3, ZC_SGD = 4, ZC_ADAGRAD = 5 };
/** How the optimizer's moments are stored; what the reduced ones cost: docs/OPTIMIZERS.md. */
enum zc_moments { ZC_MOMENTS_F32 = 1, ZC_MOMENTS_BF16 = 2, ZC_MOMENTS_Q8 = 3 };

/** Where bytes may live when they must. Faster memory that is free is used all the same. */
enum zc_place { ZC_HOST = 1, ZC_NVME = 2, ZC_GPU = 3 };

struct zc_job_options {
    const char *name;
    uint32_t rank, world;        /* of this node */
    bool keep;                   /* the job survives its clients */
    bool attach;                 /* join a kept job; otherwise the name must be new (for rank 0 of
                                    it, and for each other rank that it is not taken) */
    uint64_t staging_bytes;      /* shared memory towards the daemon; rounded up to 4096 */
    enum zc_place offload_param; /* 0: ZC_NVME. ZC_GPU: in GPU memory of the daemon, where its tier
                                    has room for all of them and every rank is on that GPU; else as
                                    ZC_NVME (zc_placement says which) */
    enum zc_place offload_optimizer; /* not ZC_GPU: what the GPU tier has room for is there */
    uint64_t host_bytes_max;         /* 0: what is free */
    uint32_t groups;                 /* parameter groups, 1 to 64 */
    bool durable;   /* steps of it can be committed, and then survive the daemon too; needs
                              `keep` and a daemon with data files (-EINVAL). It reserves room for
                              two states of the job there (zc_ready(): -ENOSPC) */
    bool takeover;  /* with attach: cut off attached processes, and begin a new epoch */
    uint64_t epoch; /* with attach: of which epoch this rank is (zc_job.epoch of the rank
                              that began it); 0: of the present one */
    uint32_t share; /* of drives and compute threads, beside other jobs' shares: 1 to 10000;
                              0: 100. A job that is there keeps the one that it has */
    bool early;     /* room for steps that begin early (zc_step_begin()), if there is any: on
                              the data files, once more what is streamed and not frozen */
    enum zc_optimizer optimizer; /* 0: ZC_ADAMW */
    enum zc_moments moments;     /* 0: ZC_MOMENTS_F32 */
    enum zc_place offload_grad;  /* 0: ZC_NVME: what host memory cannot hold of the gradients when
                                    state and parameters are streamed, and both may be. ZC_HOST:
                                    -ENOSPC instead, with the smallest budget that would work */
    bool writable; /* the parameter arena is mapped read-write: only for a GPU's driver that refuses
                      to pin memory that is read-only. Nobody writes there all the same */
    const char *device; /* with ZC_GPU: the id of this rank's GPU: "cuda-" and the 32
                           hexadecimal digits of its UUID; "emulated" */
};

/** A state that a kept job can resume from. */
enum zc_point_kind {
    ZC_POINT_MEMORY = 1,    /* the newest whole step, in the daemon's memory: gone with it */
    ZC_POINT_PREPARED = 2,  /* durable, beside the last commit, not decided yet */
    ZC_POINT_COMMITTED = 3, /* durable */
};

struct zc_point {
    enum zc_point_kind kind;
    uint64_t iterations, applied; /* as in zc_job */
};

struct zc_job {
    uint64_t id;
    uint64_t iterations; /* steps asked for so far, skipped ones too */
    uint64_t applied;    /* steps applied: the version of its shards */
    void *staging;       /* mapped read-write until zc_job_close() or zc_close() */
    uint64_t staging_bytes;
    uint64_t epoch; /* grows with every takeover */
    uint32_t world; /* that the job was saved by, or has; of a new job, the one asked for */
    uint32_t npoints;
    struct zc_point points[ZC_POINTS_MAX]; /* with attach: npoints of them, newest first */
};

/** Joins as one rank. The first rank to arrive makes the job; the others must agree on `world`,
 *  `keep`, `durable`, places and groups. One job at a time per handle (-EBUSY).
 *
 *  With attach, a kept job continues from the point that zc_ready() names; a step that is in
 *  progress is waited for. When nobody is attached, `world` may be another one than before: then
 *  the ranks register the shards again, by any ranges that cover every unit as the old ones did.
 *
 *  TAKEOVER. One rank attaches with `takeover`, tells its epoch to the others, and these attach
 *  with `epoch`. Processes that were attached before are cut off: their calls end with -ESTALE, they
 *  get ZC_EVENT_JOB_FAILED with that code, and later requests are refused with it, too, so a
 *  process that was wrongly taken for dead cannot step the job any more. An `epoch` that is not the
 *  present one is -ESTALE too. */
ZC_EXPORT int zc_job_open(struct zc_client *c, const struct zc_job_options *options,
                          struct zc_job *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_job_open_wait(struct zc_client *c, const struct zc_job_options *options,
                               struct zc_job *ret);

struct zc_tensor {
    const char *name;
    uint64_t first; /* of the unit's elements */
    uint32_t ndims; /* 0 (a scalar) to ZC_DIMS_MAX */
    uint64_t dims[ZC_DIMS_MAX];
    uint32_t group; /* below the job's groups, or ZC_GROUP_FROZEN */
};

struct zc_unit {
    uint32_t index; /* counted from 0, in order of the forward pass */
    const char *name;
    uint64_t elems;
    enum zc_dtype dtype;
    enum zc_dtype grad_dtype; /* of the gradient plane; bf16 cannot accumulate (push "add") */
    bool frozen;              /* a parameter plane only: never pushed, never stepped */
    bool quantized; /* of a frozen unit: parameters are kept in blockwise int8, a byte each and a
                       scale for each 256; they are read in `dtype` (-EINVAL where it is not
                       frozen) */
    const struct zc_tensor *tensors; /* ascending, not overlapping; elements outside of every
                                        tensor are never stepped, so only who is frozen may have
                                        none (-EINVAL) */
    uint32_t ntensors;
};

/** Every rank defines the same units, in order; a difference is -EINVAL. Copied before it
 *  returns. */
ZC_EXPORT int zc_unit_define(struct zc_client *c, uint64_t job, const struct zc_unit *unit,
                             zc_done_fn *done, void *arg);
ZC_EXPORT int zc_unit_define_wait(struct zc_client *c, uint64_t job, const struct zc_unit *unit);

struct zc_range {
    uint32_t unit;
    uint64_t first, count; /* multiples of block_elems; inside the unit, padded to a block */
};

/** Registers this rank's shards; ret_ids[n] come in the order of the ranges. A range that overlaps
 *  another shard is -EINVAL, except that a kept job gives its own shards their ids again; in
 * another world than it was saved by, its shards are new ones, with what the old ones hold. */
ZC_EXPORT int zc_register(struct zc_client *c, uint64_t job, const struct zc_range *ranges,
                          uint32_t n, uint64_t *ret_ids, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_register_wait(struct zc_client *c, uint64_t job, const struct zc_range *ranges,
                               uint32_t n, uint64_t *ret_ids);

struct zc_placement {
    uint64_t arena_bytes; /* of parameters, mapped by this process: read-only, but see `writable` */
    uint64_t ring_bytes;  /* of those, where parameters that live on NVMe pass through: what is
                             pinned at one time, over all ranks, must fit */
    uint64_t host_bytes, nvme_bytes; /* taken by the job from each tier */
    uint64_t iterations, applied;    /* where the job continues */
    bool early;                      /* there is room for steps that begin early */
    uint64_t grads_on_nvme; /* bytes of gradients that host memory does not hold: each push writes
                               them, and all but the first of a step read them before; the step
                               reads them. 0: all are in memory */
    const void *arena;      /* arena_bytes, as views show parts of it, until zc_job_close() or
                               zc_close(); what is pinned for a device is this. NULL: of no bytes */
    uint64_t gpu_params;    /* bytes of GPU memory that the parameters live in, for zc_gpu_share();
                               views are offsets in it. 0: they are not on the GPU */
    char gpu_why[192];      /* ... although ZC_GPU was asked for: why; else "" */
};

/** Says that this rank has registered everything; done when every rank has, and the daemon has
 *  placed the job. -ENOSPC: it does not fit, nothing is held.
 *
 *  @param at  of a job that was attached: the iterations of the point to continue from, the same for
 *             all ranks (-EINVAL; -ENOENT: there is no such point). What is only in memory and
 * later is forgotten; what is prepared stays to be decided. NULL: what is in memory, else the
 *             newest commit. Looked at before it returns */
ZC_EXPORT int zc_ready(struct zc_client *c, uint64_t job, const uint64_t *at, uint32_t timeout_ms,
                       struct zc_placement *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_ready_wait(struct zc_client *c, uint64_t job, const uint64_t *at,
                            uint32_t timeout_ms, struct zc_placement *ret);

/** GPU memory of the daemon, as descriptors: to be mapped by the interface of the GPU's driver (an
 *  importing process keeps `mark_fd` open as long as it has it mapped, so that the daemon sees who
 *  holds what: kernels/gpu.h). Both are the caller's to close. */
struct zc_gpu_memory {
    int mem_fd, mark_fd;
    uint64_t bytes;
};

/** The memory that the job's parameters live in. A view that is pinned may be copied from there;
 * the copy is done before the pin is given back. -ENOENT: they are not on the GPU; -EBUSY: it was
 * asked for too often, and the marks are open still. */
ZC_EXPORT int zc_gpu_share(struct zc_client *c, uint64_t job, struct zc_gpu_memory *ret,
                           zc_done_fn *done, void *arg);
ZC_EXPORT int zc_gpu_share_wait(struct zc_client *c, uint64_t job, struct zc_gpu_memory *ret);

/** Leaves in good order: not a lost peer. A job that is not kept ends with its last rank. Pointers
 *  into its arenas become invalid when done runs with 0. Before that, a view of a job that has
 * ended otherwise (it failed, was destroyed, a peer was lost) may be read, and reads zeros. */
ZC_EXPORT int zc_job_close(struct zc_client *c, uint64_t job, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_job_close_wait(struct zc_client *c, uint64_t job);

/** Ends a kept job that nobody is attached to (-EBUSY otherwise), by name, with its commits and
 *  snapshots. What clones share with it stays. */
ZC_EXPORT int zc_job_destroy(struct zc_client *c, const char *name, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_job_destroy_wait(struct zc_client *c, const char *name);

/** Changes the share of a job in memory (-ENOENT), as in zc_job_options: for its owner, root and
 * the daemon's user (-EPERM). What is in line already is paid as it was. */
ZC_EXPORT int zc_job_share(struct zc_client *c, const char *name, uint32_t share, zc_done_fn *done,
                           void *arg);
ZC_EXPORT int zc_job_share_wait(struct zc_client *c, const char *name, uint32_t share);

/** Changes the budget of a tier ("host"; "gpu", where there is one) while the daemon runs: for root
 * and the daemon's user
 * (-EPERM). Jobs move optimizer state with their next steps, until it fits, or to use what is more;
 * zc_tier_row and zc_job_row say how far that is. -ENOSPC: less than what cannot move, and the
 * sentence has the smallest that would work; -EINVAL: another tier. The next start of the daemon goes by
 * its configuration. */
ZC_EXPORT int zc_tier_set(struct zc_client *c, const char *tier, uint64_t bytes, zc_done_fn *done,
                          void *arg);
ZC_EXPORT int zc_tier_set_wait(struct zc_client *c, const char *tier, uint64_t bytes);

/* ---- data
 *
 * `staged` points into the job's staging, at a multiple of 64 bytes from its beginning. Those bytes
 * belong to the daemon from the call until done runs; the caller divides staging as it likes.
 */

enum zc_what {
    ZC_PARAM = 1,      /* in the unit's dtype */
    ZC_MASTER = 2,     /* fp32, from here on */
    ZC_EXP_AVG = 3,    /* the first moment: exp_avg, SGD's momentum_buffer, Adagrad's sum */
    ZC_EXP_AVG_SQ = 4, /* the second, of AdamW and Adam */
    ZC_GRAD = 5,       /* as accumulated, before scaling */
};

/** Values of elements [first, first + count) of the shard, fp32: before the first step, or between
 *  two (-EBUSY: the job steps, is being committed, or its next step was begun early; or the shard is
 *  pinned). first and count are multiples of page_elems, or count ends at the shard's end. Versions
 *  stay; fetches that come after it see the new values, and a commit stands as it was.
 *
 *  ZC_MASTER: before the first step the optimizer's state becomes zero; after it, the state stays as it
 *  was. A shard can be fetched when all of it was written. ZC_EXP_AVG, ZC_EXP_AVG_SQ: where a job that
 *  was trained elsewhere is brought here, of elements whose masters were written (-EAGAIN). A write that
 *  fails leaves its elements unwritten.
 */
ZC_EXPORT int zc_write(struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first,
                       uint64_t count, const float *staged, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_write_wait(struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first,
                            uint64_t count, const float *staged);

/** Copies what is stored into staging; ranges as in zc_write(). */
ZC_EXPORT int zc_read(struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first,
                      uint64_t count, void *staged, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_read_wait(struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first,
                           uint64_t count, void *staged);

/** A shard's parameters, pinned: mapped, read-only, unchanged until released. They are elements of
 *  the unit's dtype, one after the other. Those of a quantized unit are in its stored form, which
 *  the caller decodes: a block for each 4096 elements, int8_t code[4096], float scale[16];
 *  an element is its code times the scale of its 256, rounded to the dtype. Of the shard each
 *  page_elems elements begin at a multiple of 4096 bytes, with zeros before them. */
struct zc_view {
    const void *data; /* NULL: they live on the GPU (zc_placement.gpu_params), */
    uint64_t bytes;
    uint64_t version;
    uint64_t offset; /* ... here in that memory; else in the arena */
};

/**
 * Pins the parameters of n shards (any of the job's, this rank's or not), all or none, at version
 * min_version or later. Each fetch of a shard is undone by one release.
 *
 * @param shards     n of them (1 to shards_max), copied before it returns
 * @param ret_views  n views, filled before done runs with 0
 * @return           also -EAGAIN in done: a shard has not been written yet
 */
ZC_EXPORT int zc_fetch(struct zc_client *c, const uint64_t *shards, uint32_t n,
                       uint64_t min_version, uint32_t timeout_ms, struct zc_view *ret_views,
                       zc_done_fn *done, void *arg);
ZC_EXPORT int zc_fetch_wait(struct zc_client *c, const uint64_t *shards, uint32_t n,
                            uint64_t min_version, uint32_t timeout_ms, struct zc_view *ret_views);

/** One-way: queued, never answered, and without a system call of its own. Sent by the next
 *  zc_poll() or call that sends, and in effect before anything that is sent after it. */
ZC_EXPORT int zc_release(struct zc_client *c, const uint64_t *shards, uint32_t n);

struct zc_push {
    uint64_t shard;
    uint64_t step;         /* the iteration this gradient is for: zc_job.iterations + 1 */
    uint32_t micro;        /* micro-step, from 0 */
    bool add;              /* false sets (micro-step 0), true adds to what the earlier ones left */
    enum zc_dtype dtype;   /* of the staged bytes */
    uint64_t first, count; /* as in zc_write(); the parts of a micro-step come in order */
    const void *staged;
};

/** Hands a gradient, summed over ranks, to its shard. Repeated: -EEXIST, and nothing is added. */
ZC_EXPORT int zc_push(struct zc_client *c, const struct zc_push *push, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_push_wait(struct zc_client *c, const struct zc_push *push);

/** The exact sum of the squares of gradients, and how many are infinite or NaN (then the sum means
 *  nothing). Sums of different shards merge in any order to the same bits. */
struct zc_norm {
    uint8_t sum_of_squares[ZC_NORM_BYTES];
    uint64_t nonfinite;
};

ZC_EXPORT void zc_norm_merge(struct zc_norm *into, const struct zc_norm *other);
/** The square root of the sum; NaN when anything was not finite. */
ZC_EXPORT double zc_norm_value(const struct zc_norm *norm);

/** Over this rank's shards, whose gradients for `step` must be complete (-EBUSY otherwise); a shard of which
 * nothing was pushed counts as zeros. */
ZC_EXPORT int zc_norms(struct zc_client *c, uint64_t job, uint64_t step, struct zc_norm *ret,
                       zc_done_fn *done, void *arg);
ZC_EXPORT int zc_norms_wait(struct zc_client *c, uint64_t job, uint64_t step, struct zc_norm *ret);

/* ---- the step */

/** What is to become durable, of a durable job (-EINVAL otherwise). Only one commit stands at a
 * time; where a job has ranks on several nodes, each node first prepares, the trainers agree that
 * all have, and then each commits what it prepared, or drops it. */
enum zc_commit {
    ZC_COMMIT_NO = 0,       /* of a step: only in memory */
    ZC_COMMIT_STEP = 1,     /* this step; of zc_commit(): the newest whole one */
    ZC_COMMIT_PREPARE = 2,  /* the same, but beside the last commit; -EBUSY while something is
                               prepared already */
    ZC_COMMIT_PREPARED = 3, /* of zc_commit() only: what is prepared becomes the commit */
    ZC_COMMIT_DROP = 4,     /* of zc_commit() only: what is prepared is forgotten */
};

/* The scalars of one parameter group; those of other optimizers are ignored. lr, weight_decay, eps,
 * momentum and lr_decay are from 0 to 1e6, dampening from -1e6 to 1e6; what else is -EINVAL, and the
 * error message names group and scalar. */
struct zc_group {
    double lr;
    double beta1, beta2; /* AdamW, Adam, Lion: from 0 to below 1 */
    double eps;          /* AdamW, Adam, Adagrad */
    double weight_decay; /* AdamW, Lion: of the parameter; Adam, SGD, Adagrad: added to gradients */
    double momentum, dampening; /* SGD */
    double lr_decay;            /* Adagrad */
    bool nesterov;              /* SGD; needs a momentum and no dampening */
};

struct zc_step {
    uint64_t step; /* iterations + 1 */
    double scale;  /* of the gradients: averaging, loss scale and clipping in one factor */
    const struct zc_group *groups; /* NULL: by the classes that zc_step_classes() has sent */
    uint32_t ngroups;              /* the job's; 0 with classes */
    enum zc_commit commit;         /* ZC_COMMIT_NO, ZC_COMMIT_STEP or ZC_COMMIT_PREPARE */
    uint32_t timeout_ms;
};

struct zc_stepped {
    uint64_t iterations, applied;
    int commit_code; /* 0; or why the step, which is made, is not durable. The last commit stands */
    char commit_text[ZC_SENTENCE_MAX]; /* its error message */
};

/** One optimizer step of the whole job: begins when every rank has asked for it, with the same
 *  values (-EINVAL otherwise), and finishes then without them. Every trainable shard must have its
 *  gradient. A fetch with min_version = applied + 1 may be sent right after it, and waits.
 *  -ETIMEDOUT: it has not begun, nothing changed, and it may be asked for again; or it runs, and
 *  ends by itself. The error message says which. -EBUSY: a rank has come back meanwhile, and first says
 *  zc_ready(); ask again.
 *
 *  With commit, done runs when the step is durable. Where only that failed, the step is made all
 * the same: rc is 0, and ret->commit_code says why. */
ZC_EXPORT int zc_step(struct zc_client *c, uint64_t job, const struct zc_step *step,
                      struct zc_stepped *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_step_wait(struct zc_client *c, uint64_t job, const struct zc_step *step,
                           struct zc_stepped *ret);

/**
 * Says ahead of the step what it will be, so that it begins early: a shard whose gradient of the
 * last micro-step is complete is stepped at once, where its state is streamed, while others still
 * come. Nobody sees anything of that before the step, and a step that is skipped, or never comes,
 * has changed nothing. So it says, too: these scalars, whatever the norm will be.
 *
 * Every rank says it, with the same values (-EINVAL), at any time between two steps; then zc_step()
 * has them, too (-EINVAL), or zc_skip() follows. Until then nothing is written (-EBUSY), gradients
 * that are being stepped cannot be read (-EBUSY), and pushes of other micro-steps are refused
 * (-EINVAL). When a rank goes away, what was begun is undone, and gradients that it used are
 * dropped. When a device fails meanwhile, the step is refused with -EIO or -EBADMSG: it has not
 * begun, the gradients are dropped, and the job continues.
 *
 * @param step    commit and timeout_ms do not matter
 * @param micros  how many micro-steps this step has, at least 1
 * @return        -EINVAL in done also: the job has no room for it (zc_placement.early)
 */
ZC_EXPORT int zc_step_begin(struct zc_client *c, uint64_t job, const struct zc_step *step,
                            uint32_t micros, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_step_begin_wait(struct zc_client *c, uint64_t job, const struct zc_step *step,
                                 uint32_t micros);

/*
 * CLASSES. Instead of the scalars of its groups a step may have a table of classes, and for each trainable tensor its
 * class, or none: then its bytes, state included, stay as they are. (Moments of 8 bits: as values, down to the least
 * that the scale they share with their neighbours leaves them.) Trainable tensors are numbered over all units in order,
 * in each unit in order of declaration; frozen units and tensors of ZC_GROUP_FROZEN are left out.
 */
#define ZC_CLASS_NONE  UINT32_MAX
#define ZC_CLASSES_MAX 1024

struct zc_class {
    struct zc_group group;
    double factor; /* of the gradient, besides zc_step.scale */
    /* Which step of these tensors it is, from 1: of bias correction and lr_decay, and for SGD whether
     * there is a momentum yet. */
    uint64_t t;
};

struct zc_classes {
    const struct zc_class *classes;
    uint32_t nclasses;        /* at most ZC_CLASSES_MAX */
    const uint32_t *class_of; /* [ntensors]: below nclasses, or ZC_CLASS_NONE */
    uint32_t ntensors;        /* all trainable tensors of the job */
};

/** Says ahead of zc_step() and zc_step_begin() of this step, which then have no groups, what its classes are; after
 *  done. All ranks say the same (-EINVAL, of the step). Said again, it replaces what was said; it is dropped with the
 *  step, or a skip, or when the rank leaves. Copied. -EBUSY: the job steps. */
ZC_EXPORT int zc_step_classes(struct zc_client *c, uint64_t job, uint64_t step,
                              const struct zc_classes *classes, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_step_classes_wait(struct zc_client *c, uint64_t job, uint64_t step,
                                   const struct zc_classes *classes);

/** Before the first step of a job that is not kept: it is stepped with this optimizer instead of the one that it was opened with.
 *  Every rank says so. State stays as it was placed, so the moments are as then, and the optimizer has no more of them; where it has
 *  fewer they are fp32, and the last ones stay zero (-ENOTSUP otherwise, or where the job is kept). -EBUSY: a step was made,
 *  begun, or asked for. */
ZC_EXPORT int zc_job_optimizer(struct zc_client *c, uint64_t job, enum zc_optimizer optimizer,
                               enum zc_moments moments, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_job_optimizer_wait(struct zc_client *c, uint64_t job, enum zc_optimizer optimizer,
                                    enum zc_moments moments);

/** Drops the gradients of step `step`, the one that comes next, and `iterations` stays: they are pushed again, from micro-step 0. One rank
 *  asks, for all of the node's; they have agreed on it, so none of them has a push, a read of a gradient or a step under way (-EBUSY). */
ZC_EXPORT int zc_abandon(struct zc_client *c, uint64_t job, uint64_t step, zc_done_fn *done,
                         void *arg);
ZC_EXPORT int zc_abandon_wait(struct zc_client *c, uint64_t job, uint64_t step);

/** Drops the gradients of this iteration: `iterations` grows, `applied` and the versions do not. */
ZC_EXPORT int zc_skip(struct zc_client *c, uint64_t job, uint64_t step, enum zc_commit commit,
                      uint32_t timeout_ms, struct zc_stepped *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_skip_wait(struct zc_client *c, uint64_t job, uint64_t step, enum zc_commit commit,
                           uint32_t timeout_ms, struct zc_stepped *ret);

/**
 * Makes durable what is whole already, between steps: one rank asks, for all of the job on this
 * node, and asking again for what is so already is fine.
 *
 * @param what        not ZC_COMMIT_NO
 * @param iterations  of the step that the caller means (-EINVAL where it is another one)
 * @param ret         what is committed now (ZC_COMMIT_PREPARE: prepared)
 * @return            -ENOENT in done: nothing is prepared (ZC_COMMIT_PREPARED, ZC_COMMIT_DROP);
 *                    -EBUSY the job steps, or something else is prepared
 */
ZC_EXPORT int zc_commit(struct zc_client *c, uint64_t job, enum zc_commit what, uint64_t iterations,
                        uint32_t timeout_ms, struct zc_point *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_commit_wait(struct zc_client *c, uint64_t job, enum zc_commit what,
                             uint64_t iterations, uint32_t timeout_ms, struct zc_point *ret);

/** Where a job that is brought from elsewhere stands: its counters, before its first step. One rank
 *  says it; another one may say the same. */
ZC_EXPORT int zc_progress(struct zc_client *c, uint64_t job, uint64_t iterations, uint64_t applied,
                          zc_done_fn *done, void *arg);
ZC_EXPORT int zc_progress_wait(struct zc_client *c, uint64_t job, uint64_t iterations,
                               uint64_t applied);

/** Bytes of the trainer's own (data position, random state ...), kept with this rank's next step or
 *  skip; of_job (rank 0 only) for the job's. At most ZC_NOTE_MAX. Copied before it returns. */
ZC_EXPORT int zc_note_put(struct zc_client *c, uint64_t job, bool of_job, const void *note,
                          size_t bytes, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_note_put_wait(struct zc_client *c, uint64_t job, bool of_job, const void *note,
                               size_t bytes);
/** The note of the newest step: *ret_bytes of it in buf (of ZC_NOTE_MAX bytes); -ENOENT: none. On
 *  failure what is in buf means nothing. */
ZC_EXPORT int zc_note_get_wait(struct zc_client *c, uint64_t job, bool of_job, void *buf,
                               size_t *ret_bytes);

/* ---- snapshots: commits with a name, of durable jobs, by every user who may see the job. One is taken at
 * once and copies nothing; what it costs is the pages that change afterwards. Names are as a job's.
 */

struct zc_snapshot {
    const char *job;
    const char *name;    /* NULL or "": made from the step ("step-100") */
    bool next;           /* wait for the next commit; else of the newest */
    uint32_t retain;     /* then destroy the job's oldest until so many are left; 0: none */
    uint32_t timeout_ms; /* with next */
};

struct zc_snapshot_row {
    uint64_t iterations, applied;
    uint64_t created_unix;     /* seconds */
    uint64_t bytes, own_bytes; /* of all its pages; and what would be free without it */
    uint32_t world;
    char job[ZC_NAME_MAX + 1], name[ZC_NAME_MAX + 1];
};

/** ret says what was made. -ENOENT: the job has no commit, -EEXIST: the name is taken. */
ZC_EXPORT int zc_snapshot(struct zc_client *c, const struct zc_snapshot *snapshot,
                          struct zc_snapshot_row *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_snapshot_wait(struct zc_client *c, const struct zc_snapshot *snapshot,
                               struct zc_snapshot_row *ret);

/** Makes the snapshot (NULL or "": the newest commit) the job's commit again, and what was newer is
 *  forgotten; snapshots stay. -EBUSY: a rank is attached. */
ZC_EXPORT int zc_rollback(struct zc_client *c, const char *job, const char *snapshot,
                          struct zc_snapshot_row *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_rollback_wait(struct zc_client *c, const char *job, const char *snapshot,
                               struct zc_snapshot_row *ret);

/** Makes a new job, the caller's, out of a snapshot (NULL or "": of the newest commit). Pages are
 *  shared until they change. ret is the new job's commit. -EEXIST, -ENOSPC: it may need as much
 * room as a job of its own. */
ZC_EXPORT int zc_clone(struct zc_client *c, const char *job, const char *snapshot, const char *name,
                       struct zc_snapshot_row *ret, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_clone_wait(struct zc_client *c, const char *job, const char *snapshot,
                            const char *name, struct zc_snapshot_row *ret);

ZC_EXPORT int zc_snapshot_destroy(struct zc_client *c, const char *job, const char *snapshot,
                                  zc_done_fn *done, void *arg);
ZC_EXPORT int zc_snapshot_destroy_wait(struct zc_client *c, const char *job, const char *snapshot);

/* ---- readers: what is saved, read without being a rank of the job */

struct zc_reader {
    uint64_t id;
    uint64_t iterations, applied;
    uint32_t units, groups, world;
    enum zc_optimizer optimizer;
    enum zc_moments moments;
    void *staging; /* mapped read-write until zc_reader_close() or zc_close() */
    uint64_t staging_bytes;
};

/** Opens a snapshot (NULL or "": the newest commit) of a job. A snapshot stays readable until the
 *  reader is closed or the handle; a commit that newer ones replace does so as long as there is
 * room for it beside what jobs are promised (else reads end with -ESTALE). One reader at a time per
 *  handle (-EBUSY); a job of the same handle does not matter. staging_bytes is rounded up to 4096.
 */
ZC_EXPORT int zc_reader_open(struct zc_client *c, const char *job, const char *snapshot,
                             uint64_t staging_bytes, struct zc_reader *ret, zc_done_fn *done,
                             void *arg);
ZC_EXPORT int zc_reader_open_wait(struct zc_client *c, const char *job, const char *snapshot,
                                  uint64_t staging_bytes, struct zc_reader *ret);

/** The manifest of one unit, 0 to units - 1: *ret is allocated with all that it points to; free it
 *  with zc_rows_free(). */
ZC_EXPORT int zc_reader_unit_wait(struct zc_client *c, uint64_t reader, uint32_t unit,
                                  struct zc_unit **ret);

/** Copies elements [first, first + count) of a unit into the reader's staging, wherever bounds of
 *  shards and pages are. `what` is not ZC_GRAD; of a frozen unit it is ZC_PARAM or ZC_MASTER.
 * staged points into zc_reader.staging, as in zc_read(). Verified before anything is handed out:
 * -EBADMSG.
 */
ZC_EXPORT int zc_reader_read(struct zc_client *c, uint64_t reader, uint32_t unit, enum zc_what what,
                             uint64_t first, uint64_t count, void *staged, zc_done_fn *done,
                             void *arg);
ZC_EXPORT int zc_reader_read_wait(struct zc_client *c, uint64_t reader, uint32_t unit,
                                  enum zc_what what, uint64_t first, uint64_t count, void *staged);

/** Pointers into its staging become invalid when done runs with 0. */
ZC_EXPORT int zc_reader_close(struct zc_client *c, uint64_t reader, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_reader_close_wait(struct zc_client *c, uint64_t reader);

/* ---- looking inside. Rows are allocated, NULL where there are none; free them with
 * zc_rows_free(). */

struct zc_shard_row {
    uint64_t id, first, count, version, bytes, host_bytes, nvme_bytes;
    uint32_t pins, rank;
    char job[ZC_NAME_MAX + 1], unit[ZC_NAME_MAX + 1], dtype[8], tier[8];
};

struct zc_job_row {
    uint64_t id, iterations, applied, shards, params, host_bytes, nvme_bytes;
    uint64_t fetched_bytes, pushed_bytes, nvme_read_bytes, nvme_written_bytes;
    uint64_t committed_iterations, committed_applied; /* where `committed` */
    uint64_t epoch;
    /* optimizer state in host memory, and how much of it shall be: steps move the difference */
    uint64_t host_state, host_state_target;
    uint64_t grads_nvme_bytes; /* of nvme_bytes: gradients that host memory does not hold */
    uint64_t gpu_bytes;        /* of the GPU tier: optimizer state and parameters */
    uint32_t uid, world, attached, snapshots;
    uint32_t share; /* 0: of a job that is not in memory */
    bool keep, durable;
    bool committed; /* there is a commit */
    char name[ZC_NAME_MAX + 1];
    char state[16];                 /* saved (not in memory), defining, ready, stepping, failed */
    char optimizer[12], moments[8]; /* "adamw", "fp32" */
    char error[256];
};

struct zc_tier_row {
    uint64_t budget, used, params, grads, state, staging, rings;
    uint64_t read_bytes_s,
        write_bytes_s; /* nvme: measured at the start, or the best second since */
    /* of the host tier: what was touched, on the NUMA nodes that the daemon keeps to and elsewhere,
     * and as "0:4096 1:0" by node ("" where the daemon does not look: numa = off) */
    uint64_t node_bytes, spilled_bytes;
    /* of the host and gpu tiers: what the budget was set to (it comes down to that), and optimizer
     * state that shall leave the tier with the next steps */
    uint64_t target, moving;
    /* of the gpu tier: what the device says is free (others use it, too), and memory that was given
     * back and is held by who imported it, as "job:bytes:pid,pid job:..." (0, "" in
     * zc_top_wait()) */
    uint64_t device_free, stranded;
    char name[8], detail[256], numa[128], nodes[256], stranded_by[256];
};

/* For rates: what two calls of zc_top_wait() differ by, over the difference of their now_ns. */

/** Two readings give the mean number between them, and the share of the time in which there was
 *  one. */
struct zc_gauge {
    uint64_t now, area_ns, busy_ns;
};

/** Where page operations are: waiting for a page buffer, read, computed, written, with the GPU. */
enum zc_page_place {
    ZC_PAGE_BUFFER,
    ZC_PAGE_READ,
    ZC_PAGE_COMPUTE,
    ZC_PAGE_WRITE,
    ZC_PAGE_GPU,
    ZC_PAGE_PLACES
};

/** What requests wait for: proto/PROTOCOL.md, top. */
enum zc_wait_for {
    ZC_WAIT_FETCH_DRIVE,
    ZC_WAIT_FETCH_ROOM,    /* a place in the ring */
    ZC_WAIT_FETCH_VERSION, /* the step that makes it */
    ZC_WAIT_PUSH_TURN,     /* the push before it */
    ZC_WAIT_PUSH_COMPUTE,
    ZC_WAIT_STEP_RANKS,   /* ranks that have not asked */
    ZC_WAIT_STEP_PINS,    /* ranks that pin a shard */
    ZC_WAIT_STEP_TRAFFIC, /* pushes, fetches and copies that are in progress */
    ZC_WAIT_STEP_PAGES,   /* the step itself */
    ZC_WAIT_COMMIT,
    ZC_WAIT_READY,
    ZC_WAITS
};

struct zc_top_path { /* a data file */
    uint64_t read_bytes, written_bytes, transfers, failed;
    uint64_t read_bytes_s, write_bytes_s; /* measured at the start, or the best second since */
    uint64_t depth;                       /* that the drive gets at one time */
    struct zc_gauge queue;                /* transfers in line, or with the drive */
};

enum zc_late { ZC_LATE_NOBODY, ZC_LATE_STEP, ZC_LATE_PINS };

struct zc_top_job {
    uint64_t now_ns; /* when this was so */
    uint64_t id, iterations, applied, host_bytes, nvme_bytes;
    uint64_t fetched_bytes, pushed_bytes, nvme_read_bytes, nvme_written_bytes;
    uint64_t fetches, hits, misses, pushes; /* hits and misses: shards */
    uint64_t pages, page_ns, compute_ns;    /* page operations, what they took, computing */
    struct zc_gauge stages[ZC_PAGE_PLACES], waits[ZC_WAITS];
    struct zc_gauge drive_only; /* 1 while pages are read or written and that is all */
    struct zc_gauge asking;     /* ranks with a request that is not answered */
    uint32_t uid, world, attached;
    uint32_t late;                  /* enum zc_late: whom a step waits for. Of those late_ranks, */
    uint32_t late_ranks, late_rank; /* the first one */
    uint64_t late_pid, late_ms;     /* pid 0: it is not attached. How long the step has waited */
    char name[ZC_NAME_MAX + 1], state[16];
};

/** A request that is not answered; pid 0: there is none that the caller may see. */
struct zc_top_oldest {
    uint64_t pid, age_ms;
    uint32_t rank;
    char method[32], job[ZC_NAME_MAX + 1], waits[64]; /* job "": of no rank */
};

struct zc_top {
    uint64_t now_ns, uptime_ms;
    uint32_t clients, threads, buffers;
    uint32_t gpu_threads; /* of the GPU tier; 0: there is none */
    uint32_t ntiers, npaths;
    struct zc_gauge computing, compute_line, buffers_used;
    struct zc_gauge gpu, gpu_line; /* pages with one of gpu_threads, and in line before them */
    struct zc_tier_row tiers[ZC_TOP_TIERS_MAX];
    struct zc_top_path paths[ZC_TOP_PATHS_MAX];
    struct zc_top_oldest oldest;
};

struct zc_counter {
    uint64_t value;
    char name[64];
};

/** A message of a list: what scrub and fsck found. */
struct zc_sentence {
    char text[ZC_SENTENCE_MAX];
};

/** job NULL or "": every job that the caller may see. */
ZC_EXPORT int zc_list_wait(struct zc_client *c, const char *job, struct zc_shard_row **ret_rows,
                           size_t *ret_n);
ZC_EXPORT int zc_jobs_wait(struct zc_client *c, const char *job, struct zc_job_row **ret_rows,
                           size_t *ret_n);
ZC_EXPORT int zc_tiers_wait(struct zc_client *c, struct zc_tier_row **ret_rows, size_t *ret_n);
ZC_EXPORT int zc_stat_wait(struct zc_client *c, struct zc_counter **ret_rows, size_t *ret_n);
/** What `zctl top` is made of: of the jobs in memory, or of one ("" or NULL: all). -ENOENT: it is
 *  not in memory. */
ZC_EXPORT int zc_top_wait(struct zc_client *c, const char *job, struct zc_top *ret,
                          struct zc_top_job **ret_rows, size_t *ret_n);
/** Oldest first. */
ZC_EXPORT int zc_snapshots_wait(struct zc_client *c, const char *job,
                                struct zc_snapshot_row **ret_rows, size_t *ret_n);
ZC_EXPORT void zc_rows_free(void *rows);

/* ---- care of the data files. Reading every page that is saved, in the background and slowly,
 * finds what has gone bad before somebody needs it. For root and the daemon's user, except
 * ZC_SCRUB_STATUS.
 */

enum zc_scrub_action {
    ZC_SCRUB_STATUS = 0,
    ZC_SCRUB_START = 1,
    ZC_SCRUB_PAUSE = 2,
    ZC_SCRUB_RESUME = 3,
    ZC_SCRUB_STOP = 4,
};

struct zc_scrub {
    char state[16];              /* idle, running, paused, done, stopped */
    uint64_t bytes, total_bytes; /* of this run */
    uint64_t bad_pages;
    uint64_t elapsed_ms, eta_ms; /* eta 0: unknown */
    uint64_t rate_bytes;         /* a second */
};

/** Does it and says how it stands then. rate_bytes with start or resume: bytes a second; 0: a tenth
 *  of what was measured. ret_bad: the first of the bad pages, with job, shard and page. -EBUSY: it
 *  runs already (start); -EINVAL: it is not in that state (pause, resume, stop). */
ZC_EXPORT int zc_scrub_wait(struct zc_client *c, enum zc_scrub_action action, uint64_t rate_bytes,
                            struct zc_scrub *ret, struct zc_sentence **ret_bad, size_t *ret_n);

struct zc_fsck {
    uint64_t jobs, versions, snapshots, rows, pages;
    uint64_t bytes;          /* of all pages, each once */
    uint64_t sequence;       /* of the newest change */
    uint64_t problems_total; /* of which ret_problems has the first */
};

/** Recomputes every counter of the store from its catalog, and compares. 0 with problems: look at
 *  problems_total. */
ZC_EXPORT int zc_fsck_wait(struct zc_client *c, struct zc_fsck *ret,
                           struct zc_sentence **ret_problems, size_t *ret_n);

struct zc_df_row {
    char job[ZC_NAME_MAX + 1]; /* "": of no job, or of those that the caller may not see */
    /* Bytes, each counted once: in the first of these that holds it, of the first job. */
    uint64_t committed, prepared, snapshots;
    uint64_t working;  /* written, of no commit yet */
    uint64_t reserved; /* kept free for the job's next steps and commits */
    uint64_t shared;   /* counted in another job's row */
};

struct zc_df { /* total = meta + free + the sum over rows of all but `shared` */
    uint64_t total, meta, free;
    uint64_t catalog_bytes; /* beside the data files */
};

/** What the bytes of the data files are used for. More jobs than fit one answer (some hundreds) are
 *  asked for until all answers are of one moment; -EAGAIN: too much changes. */
ZC_EXPORT int zc_df_wait(struct zc_client *c, struct zc_df *ret, struct zc_df_row **ret_rows,
                         size_t *ret_n);

/* ---- */

/** A round trip. */
ZC_EXPORT int zc_ping(struct zc_client *c, zc_done_fn *done, void *arg);
ZC_EXPORT int zc_ping_wait(struct zc_client *c);

#ifdef __cplusplus
}
#endif

#endif
