/*
 * zc_zero.h - the ZeRO engine: turns a list of units into sharded training.
 *
 * MODEL. A unit (struct zc_unit) is what is gathered and released together: a transformer block, an
 * embedding. Every rank keeps one slice of each unit (of stage 3; of the others some planes are
 * whole: enum zc_zero_stage, docs/ENGINE.md); the engine gathers a unit's
 * parameters when the trainer needs them, prefetches the one that comes next, reduces gradients so
 * that each rank gets the sum of its slice, and steps. Where slices live is the store's affair:
 *
 *     none   planes in this process, stepped by the same kernels: the baseline
 *     host   the daemon, parameters and state in host memory
 *     nvme   the daemon; what does not fit its host budget lives on NVMe
 *
 * The trainer's loop:
 *
 *     for each micro-step:
 *         for each unit, forward:   zc_zero_gather(u) ... compute ... zc_zero_release(u)
 *         for each unit, backward:  zc_zero_gather(u), zc_zero_grad(u) ... compute ...
 *                                   zc_zero_release(u), zc_zero_reduce(u)
 *     zc_zero_step()
 *
 * The engine expects each micro-step to gather in the order of the one before it, and prefetches by
 * that; another order is correct, only slower. docs/ENGINE.md has the other loops, and what each
 * moves.
 *
 * ALIKE. Gather, release (but see gather_alone), grad, reduce, announce, step, freeze, commit, sum, read and a clean close make
 * collectives: all ranks make these calls with the same arguments in the same order. Notes,
 * zc_zero_poll(), zc_zero_stats() and zc_zero_error() are each rank's own affair. Where ranks make
 * different collectives, the calls that wait for them fail with -EINVAL on these ranks, and the
 * failure is final: zc_zero_error() says "rank 1 gathers 'fc2' where rank 0 gathers 'fc1' (step
 * 7)". Over host memory this is found at that collective; between devices at the next step or sum
 * at the latest, or, where a collective never ends, after timeout_ms. A step is not made of it.
 *
 * NUMBERS. Gradients of the ranks are exchanged as slices, in the unit's dtype (bf16: rounded once,
 * ties to even, before the exchange), and added in fp32 in rank order; micro-steps add in fp32. The
 * step scales the sum by 1 / (world * micro_steps * loss scale) and by the clip coefficient
 * min(1, clip / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_. So losses depend on the world
 * size only by rounding, and not at all on where bytes live. Gradients of elements that are never
 * stepped (frozen tensors, outside of every tensor) count as zero.
 *
 * WHAT SURVIVES. A kept job stays in the daemon's memory when its ranks die; a durable one is also
 * committed, every commit_every steps and where zc_zero_commit() asks, and then survives the daemon
 * too. To continue, all ranks open the job again with `resume`. Processes that are still attached
 * are cut off (-ESTALE). The job continues from the newest step that every node has, in memory or durable; it may
 * have another number of ranks than before, on the same nodes. Each step carries notes of the
 * trainer's, which come back with it: what a resumed run needs to be exactly the same run. What the
 * nodes (or groups of ranks) have must be of one run, or the start is refused (-EINVAL).
 *
 * On one node a step is committed in one go. On several each node prepares it; when the next step
 * (or commit, or clean close) is asked for, the ranks tell each other whether all have it, and then
 * each node commits, or all drop it. A prepared step that not every node has is never committed.
 *
 * THREADS. One thread at a time (but zc_zero_interrupt()); with options.poll_ms a thread of the
 * library polls between calls. Callbacks run inside engine calls, and call none of them. Each
 * call sets the calling thread's rounding to nearest and its denormals on, as the kernels need
 * them.
 *
 * A FORK. An engine and a comm belong to the process that opened them: in a child, engine calls are
 * refused with -EPERM, sockets are closed, and closing does nothing.
 *
 * ERRORS as in zclient.h. -EINVAL and -EBUSY for a call that was wrong, or came at the wrong time,
 * change nothing. Every other failure is final (see zc_zero_failed(); exceptions are documented at
 * each call): the ranks are no longer in step, and each later call returns the same code at once,
 * with the same error message; close then with clean false. A call that waits also notices a peer
 * that died (-EOWNERDEAD, reported by the daemon) and a daemon that is gone (-ENOTCONN), and gives up with -ETIMEDOUT when nothing has moved for timeout_ms. (A step that has
 * begun takes the time it takes, as long as the daemon answers at all.) A rank that
 * computes for longer than that between two calls must call zc_zero_poll() meanwhile, or its peers
 * give up on it.
 */
#ifndef ZC_ZERO_H
#define ZC_ZERO_H

#include "zclient.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- collectives: one table; bring your own or use ours */

struct zc_comm;
struct zc_comm_op; /* one collective in progress: the backend's */

/**
 * Collectives between buffers of GPUs, which a backend may have besides. They are enqueued on one
 * stream and are over when the stream has got past them; until then their buffers are theirs. All
 * ranks make these calls in the same order, each on a device of its own, which is that of the
 * calling thread (CUDA: cudaSetDevice). They return 0 or a negative errno, as those below.
 */
struct zc_comm_device_ops {
    /* Every rank has a device now. backend: "cuda" or "emulated"; stream: as zc_zero_stream(). What
     * waits for another rank gives up after timeout_ms. */
    int (*open)(struct zc_comm *comm, const char *backend, void *stream, uint32_t timeout_ms);
    /* As those of struct zc_comm_ops, on device addresses. */
    int (*all_gather)(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes);
    int (*exchange)(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes);
    /* Whether all is well with what was enqueued: 0, or why it will not end. */
    int (*test)(struct zc_comm *comm);
    /* clean: every rank, and nothing is in flight. Otherwise what is on the stream ends at once,
     * undone. After it, or a failed open, open may be called again. */
    void (*close)(struct zc_comm *comm, bool clean);
};

/** Names of collectives that two ranks started in the same place. */
struct zc_comm_other {
    uint32_t rank; /* the other one, of the comm that was opened, not of a part of it */
    uint64_t mine, theirs;
};

/**
 * All start at once and return; buffers belong to the backend until test says done. Every rank
 * starts the same collectives in the same order, several before the first is done. Return 0 or a
 * negative errno, after which only error and close are called.
 */
struct zc_comm_ops {
    const char *name;
    /* recv[r * slice_bytes ...] becomes rank r's send. send may be recv + rank * slice_bytes. */
    int (*all_gather)(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                      struct zc_comm_op **ret);
    /* rank r gets, from every rank s, slice r of s's send, as slice s of its recv. No overlap. */
    int (*exchange)(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                    struct zc_comm_op **ret);
    /* *ret_done: the op is finished and freed. */
    int (*test)(struct zc_comm *comm, struct zc_comm_op *op, bool *ret_done);
    /* Ends the backend; clean: every rank closes now and nothing is in flight, otherwise peers may
     * be dead and must not be waited for. */
    void (*close)(struct zc_comm *comm, bool clean);
    /* The error message of the last failure. May be NULL. */
    const char *(*error)(struct zc_comm *comm);
    const struct zc_comm_device_ops *device; /* NULL: of host memory alone, on a device, too */
    /* Collective, waits: one of the ranks that gave the same colour, in the order that they have
     * here. It is closed before comm is. NULL: there are no groups of ranks. */
    int (*split)(struct zc_comm *comm, uint32_t colour, struct zc_comm **ret);
    /* Names the next collective of host memory that this rank starts; 0 where it was not called.
     * The backend promises: where two ranks start collectives of different kinds, names or lengths
     * in the same place, start or test of both returns -EINVAL, and no byte is written outside of
     * the buffers. NULL: there is no such promise, and the engine compares names itself, by an
     * all_gather of 8 bytes ahead of each collective. */
    void (*name_next)(struct zc_comm *comm, uint64_t name);
    /* After that -EINVAL: which rank, and the names. false: the failure was another one. Not NULL
     * where name_next is not. */
    bool (*other)(struct zc_comm *comm, struct zc_comm_other *ret);
};

struct zc_comm {
    const struct zc_comm_ops *ops;
    uint32_t rank, world;
    void *arg; /* zc_comm_from_ops(): the caller's */
};

/**
 * Opens a backend: "self" (one rank), "tcp" (ranks that torchrun started), "mpi" (all of
 * MPI_COMM_WORLD), "nccl" (between GPUs), or "auto": what ZSHARD_COMM says, else mpi under a
 * launcher of MPI's, tcp under torchrun, else self.
 *
 * tcp connects each rank with each, as the environment says that torchrun leaves: RANK, WORLD_SIZE,
 * MASTER_ADDR and MASTER_PORT. Rank 0 listens at MASTER_ADDR, at port MASTER_PORT + 1
 * (or at ZSHARD_PORT); ranks wait 120 s for each other (ZSHARD_MEET_SECONDS), in split, too.
 * Neither encrypted nor signed: for a network that is the trainers' own.
 *
 * MPI is no dependency of this library: its backend is a plugin, zc_comm_mpi.so, which is looked
 * for in $ZSHARD_PLUGINS where that is set, else in zshard/ beside the library. It starts MPI
 * unless the program has, and then ends it too, in a clean close only. Ranks that share cores want
 * MPI to yield while it waits (Open MPI: OMPI_MCA_mpi_yield_when_idle=1).
 *
 * nccl has the collectives of an engine on a device made by NCCL, and all others by mpi, tcp or
 * self, as auto chooses; ranks find each other by these, too. NCCL is looked for when ranks are
 * more than one: the library that ZSHARD_NCCL_LIB names, else libnccl.so.2 (2.14 or newer).
 *
 * @param error,error_bytes  a buffer for the error message; may be NULL and 0
 * @return 0; -ENOENT no such backend, -ENOTSUP built without it or its library is missing, -EIO it
 * did not start, -ENOMEM; of tcp also -EINVAL the environment is wrong, -EADDRINUSE the port is in
 * use, -EOWNERDEAD ranks did not come, -EPROTO they do not belong together. *ret is NULL then
 */
ZC_EXPORT int zc_comm_open(struct zc_comm **ret, const char *name, char *error, size_t error_bytes);
/**
 * Collectives that the caller makes: its functions are called on a thread of the library, one
 * collective at a time, each to its end, in the order in which all ranks start them. So they may
 * block; test may be NULL then: all_gather and exchange return when they are over. They get a comm
 * with rank, world and arg. Of the others only close, error and split are called, where they are
 * not NULL; name_next, other and device are not looked at. A close that is not clean waits for
 * nobody: a function that blocks continues, and the rest is freed when it returns.
 *
 * @param ops  outlives the comm, and what a function that blocks needs, that function
 * @return 0; -EINVAL all_gather or exchange is missing, or rank is no rank; -ENOMEM, -EAGAIN no
 *         thread
 */
ZC_EXPORT int zc_comm_from_ops(struct zc_comm **ret, const struct zc_comm_ops *ops, void *arg,
                               uint32_t rank, uint32_t world);
/** After the engine's close, with the same `clean`. NULL is fine. */
ZC_EXPORT void zc_comm_close(struct zc_comm *comm, bool clean);

/* ---- the engine */

struct zc_zero;

enum zc_zero_offload { ZC_ZERO_NONE = 0, ZC_ZERO_HOST = 1, ZC_ZERO_NVME = 2, ZC_ZERO_GPU = 3 };

/**
 * What ranks have of the model states: P parameters, N ranks, and p, g and k bytes of each in its
 * three planes, parameter, gradient and optimizer state. What is cut lies in slices, one on each
 * rank, in the store; what is whole is each rank's own.
 */
enum zc_zero_stage {
    ZC_STAGE_DDP = 0, /* all whole: (p + g + k) P */
    ZC_STAGE_1 = 1,   /* state cut: (p + g + k/N) P */
    ZC_STAGE_2 = 2,   /* gradients too: (p + (g + k)/N) P */
    ZC_STAGE_3 = 3,   /* parameters too, gathered unit by unit; FSDP: (p + g + k) P / N */
};

/** Of fp16: the trainer multiplies its loss by zc_zero_loss_scale(), and the step divides by it.
 * The rules are DeepSpeed's (its fp16 keys, of the same names; factor 2 both ways): a step that
 * finds a gradient that is not finite, on any rank, is skipped on all, and the scale changes. */
struct zc_loss_scale {
    bool dynamic;        /* false: `fixed`, always */
    double fixed;        /* 0 or 1: none */
    uint32_t power;      /* dynamic: the first scale is 2 to this power; it doubles after */
    uint32_t window;     /* so many steps without overflow, and is halved by an overflow, when */
    uint32_t hysteresis; /* all of these but one are used up; they are refilled when it doubles, */
    bool consecutive;    /* or by every step without overflow */
    double min;          /* never below; an overflow that would halve it there ends the run
                            (-ERANGE): the step is not made */
};

/** What a step does while the trainer computes; none of it changes a bit of the result. */
#define ZC_ZERO_EARLY 1u /* it begins as gradients come: zc_zero_announce() */
#define ZC_ZERO_SERVE \
    2u /* zc_zero_step() returns when it has begun, and gathers wait unit by unit */
#define ZC_ZERO_OVERLAP (ZC_ZERO_EARLY | ZC_ZERO_SERVE)

struct zc_zero_options {
    struct zc_comm *comm;  /* the caller's; outlives the engine */
    const char *socket;    /* as in zc_options */
    const char *job;       /* NULL: "zero-<pid of rank 0>". Groups after the first append
                              their number, for which it leaves room */
    bool keep;             /* the job outlives its ranks */
    bool durable;          /* steps can be committed (needs keep, and a daemon with data files) */
    uint64_t commit_every; /* of a durable job: so many steps between commits; 0: on request */
    bool resume; /* join the job of that name, which was kept, and continue it: units are declared
                    as then, the options are as then, and the start asks for no initial values */
    /* parameters only with the optimizer. None: in this process, on the device where there is one
     * and ranks that are several have collectives between devices */
    enum zc_zero_offload offload_param, offload_optimizer;
    /* of parameters also ZC_ZERO_GPU: in GPU memory of the daemon, which this engine's device maps
     * and copies from; where that can be (a device that is the daemon's, a tier with room for all
     * of them, and ranks that gather between devices), else as ZC_ZERO_NVME: zc_zero_stats() says
     */
    uint32_t
        micro_steps; /* gradients of so many micro-steps make one step; 0: as many as come, each
                             between zc_zero_micro() and zc_zero_micro_end(); not with `vertical`,
                             and no step is announced then */
    double clip;     /* of the global norm; 0: off */
    enum zc_optimizer optimizer;
    enum zc_moments moments;
    double beta1, beta2, eps; /* as in struct zc_group; what the optimizer has not is ignored */
    double momentum, dampening, lr_decay;
    bool nesterov;
    double weight_decay[64]; /* by parameter group */
    uint32_t groups;         /* 1 to 64 */
    uint32_t prefetch_units; /* gathered ahead, up to 64; 0: none. 1 is the usual choice */
    uint32_t overlap;    /* of ZC_ZERO_OVERLAP. EARLY costs room on the daemon's data files, once
                            more what is streamed; where there is none, or with clipping, it does
                            without */
    uint32_t share;      /* of a job: as in zc_job_options */
    uint32_t timeout_ms; /* of anything that waits for the daemon or a peer; 0: 60000 */
    const char *kernels; /* NULL: the best; else as the daemon option of that name */
    const char *device;  /* NULL or "": parameters and gradients are handed out in host memory; else
                            the GPU that they are handed out on, "cuda" or "cuda:N". With too
                            little memory: -ENOSPC; the error message has the bytes needed and
                            the bytes free */
    /* of a job: ZC_ZERO_HOST refuses what does not fit with its gradients in memory (-ENOSPC);
     * else (0) those that do not fit live on NVMe, where state and parameters may, too */
    enum zc_zero_offload offload_grad;

    enum zc_zero_stage stage;
    /* hybrid: each so many ranks in a row are a group. States are cut inside of groups, and every
     * group has all of them: gathers stay inside, gradients go across, too. Divides the world; 0:
     * one group of all */
    uint32_t group_ranks;
    /* Micro-steps add up in this rank's own memory (or its device's), whole, and are reduced once,
     * with the last. Else each is reduced, and the sums add up */
    bool accumulate_local;
    /* Each unit is reduced once in a step, and its gradient is that of all micro-steps: the order
     * of calls that gathers a unit once for all of them (docs/ENGINE.md) */
    bool vertical;
    bool keep_gathered;     /* of stage 3: what was gathered forward stays until it is reduced */
    uint64_t persist_elems; /* of stage 3: units up to this long stay gathered between two steps */
    uint64_t live_elems;  /* of stage 3: gathered ahead, or kept, only below this; 0: no ceiling */
    uint64_t reuse_elems; /* of stage 3: what comes again within so many elements stays */
    uint64_t prefetch_elems; /* instead of prefetch_units, where not 0: gathered ahead */
    uint64_t reduce_elems; /* of gradients on their way to other ranks at one time; 0: two units */
    bool reduce_waits;     /* zc_zero_reduce() returns when the unit is reduced: no overlap */
    /* Of stage 3: parameters travel between ranks as int8, with a scale for each 256, and every
     * rank computes with what comes out of that, of its own slice, too; frozen units travel as they
     * are kept. What is stepped is exact. docs/ENGINE.md has the error */
    bool quantize_gather;
    struct zc_loss_scale loss_scale;
    uint64_t memory_bytes; /* of this rank: what model states and buffers may take of its own
                              memory, or of its device's; a start that needs more is refused with
                              the numbers (-ENOSPC). 0: no limit */
    /* Gathers are each rank's own affair, and no collective: the slices of other ranks are read from
     * the daemon, so a rank gathers what it likes, when it likes. Of stage 3 with the optimizer
     * offloaded, all ranks on one node, without group_ranks and quantize_gather; a rank that is
     * alone may always ask for it. Else -ENOTSUP */
    bool gather_alone;
    /* A tensor that no rank gave a gradient in a step is stepped with a gradient of zero: its moments decay, and weight
     * decay is applied, as in DeepSpeed. Otherwise it is left alone */
    bool step_unused;
    /* Resume the job where all nodes have it, else begin it new (zc_zero_start() needs init for
     * that). Where some nodes have it and others have not, the start is refused (-ENOENT), since
     * what some have would be lost. zc_zero_progress() returns 0 iterations for a new job, or
     * for one that had made no step. Needs a daemon and a job name, as `resume` does, which takes precedence */
    bool resume_if_there;
    /* A thread of the library calls zc_zero_poll() so often, unless the trainer is in a call: for
     * trainers that compute longer than timeout_ms, or that want reductions to advance meanwhile.
     * Callbacks of a comm may then run on that thread, never at the same time as others. 0: none */
    uint32_t poll_ms;
    /* Of a device: where memory comes from that comes and goes (gathered units, gradients, buffers).
     * Both, or neither: the driver's. alloc returns `bytes` of device memory, aligned to 512 bytes,
     * that may be used after what is on `stream` (zc_zero_stream()) already; NULL: there is no room
     * (-ENOSPC). free gets back what alloc gave; nothing uses it any more, on any stream. Called
     * inside engine calls (and polls), which they must not make; in free `stream` is NULL while the
     * engine closes. What stays for good, such as state that is not offloaded, is the driver's */
    void *(*alloc)(void *arg, size_t bytes, void *stream);
    void (*free)(void *arg, void *mem, size_t bytes, void *stream);
    void *memory_arg;
    /* The job is placed for the optimizer and moments given here; zc_zero_optimizer() may change
     * them before the first step */
    bool optimizer_late;
    /* Of a device: the stream that the trainer computes on, its own; of "cuda" a cudaStream_t of that
     * device's primary context (the default stream is cudaStreamLegacy, (void *)1). zc_zero_stream()
     * returns it. It lives longer than the engine. NULL: the engine makes one */
    void *stream;
};

/** Fills in the usual values: micro_steps 1, betas 0.9 and 0.95, eps 1e-8, one group, prefetch 1,
 * all overlap, a commit every 100 steps (of a job that is durable), stage 3, no loss scale. */
ZC_EXPORT void zc_zero_defaults(struct zc_zero_options *options);

/** Connects, and compares the options of all ranks: where one rank is refused, all are. Collective.
 *
 * @return 0; -EINVAL options are wrong, contradict each other, or differ between ranks; -ENOTSUP
 *         they ask for something that is not available here (gather_alone, a device that was not
 *         built in); -ENOTCONN no daemon answers, or it hung up; -ENOENT no such kernels; -EPERM it is another user's;
 *         -EPROTO it does not speak this protocol; -ENODEV, -EIO no such device, or it failed;
 *         -ENOSPC it has too little memory; -ENOMEM, -EMFILE; -EOWNERDEAD a rank has gone,
 *         -ETIMEDOUT it did not come; and what a comm of the caller's returns
 *
 * After -EINVAL, -ENOTSUP, -ENOTCONN, -EPERM, -ENODEV, -ENOSPC and -ENOMEM that all ranks returned
 * ("rank 1: ..."), the comm is fine: all ranks close, and may open another engine on it. After
 * -EOWNERDEAD, -ETIMEDOUT, -EPROTO, -EINTR and whatever the comm itself returned it is not: it is
 * closed, with clean false. The same holds for a start that fails, but there a daemon may report
 * a lost rank first (-EOWNERDEAD), and then the comm is not to be used again.
 * On failure *ret is an engine that holds only the error message (zc_zero_close() it), or NULL when
 * there was no memory for that. The options need not outlive the call, but for comm. */
ZC_EXPORT int zc_zero_open(struct zc_zero **ret, const struct zc_zero_options *options);
/** clean: every rank closes now, in good order: the step in progress is finished, and committed
 * where it was to be; the job is closed. (Whether that worked, only zc_zero_commit() tells.)
 * Otherwise, and after a final failure, nobody is waited for. NULL is fine. */
ZC_EXPORT void zc_zero_close(struct zc_zero *z, bool clean);
/** The error message of the last failure; "" before the first. */
ZC_EXPORT const char *zc_zero_error(const struct zc_zero *z);
/** Whether a failure was final: every later call returns its code. After a failure that was not,
 * nothing has changed, and the engine stays usable: a commit that failed (-ENOSPC, -EIO ...) and was
 * reported by zc_zero_step() or zc_zero_commit(), a call that was interrupted before it began
 * (zc_zero_interrupt()), a call that was wrong. */
ZC_EXPORT bool zc_zero_failed(const struct zc_zero *z);
/** From any thread, or a signal handler: the call in which the trainer waits returns -EINTR. A
 * gather has then changed nothing, and is called again, or not. So it is with a step, norms, a
 * read, a write, an abandonment and a park while they wait for gradients that are exchanged, or for the step
 * in progress: they have not begun. After that they cannot be taken back half way, and neither can
 * other calls: these run to their end, unless nothing has moved for a second, as when another rank
 * does not come; then -EINTR is a final failure (zc_zero_failed()). When nobody is in a call,
 * nothing happens, and the next one does not know of it. */
ZC_EXPORT void zc_zero_interrupt(struct zc_zero *z);

/** Declares the next unit (unit->index is its number, from 0); grad_dtype is ignored: the gradient
 * plane is fp32. Copied. */
ZC_EXPORT int zc_zero_add_unit(struct zc_zero *z, const struct zc_unit *unit);

/** Writes the initial values of elements [first, first + count) of a unit to out; elements at or
 * past the unit's end are not asked for. Returns 0 or a negative errno, which ends zc_zero_start().
 */
typedef int zc_zero_init_fn(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out);

/** Registers and places the slices and initialises them piece by piece: no rank ever holds a whole
 *  model, nor a whole unit. Where one rank fails, all do. With resume also -ENOENT: the nodes have
 *  no step in common (the error message lists the steps that they have), -ESTALE: another process resumes it now. */
ZC_EXPORT int zc_zero_start(struct zc_zero *z, zc_zero_init_fn *init, void *arg);

/** Steps asked for, and applied, so far: 0 and 0 unless the job was resumed. The learning rate and
 * the place in the data follow from iterations. */
ZC_EXPORT int zc_zero_progress(struct zc_zero *z, uint64_t *ret_iterations, uint64_t *ret_applied);

/** The elements of a unit whose state this rank keeps, after the start: [*ret_first, *ret_first + *ret_count), which may be none.
 * What zc_zero_write_on() with root -1 takes of this rank's values. Asks no other rank. */
ZC_EXPORT int zc_zero_slice(struct zc_zero *z, uint32_t unit, uint64_t *ret_first,
                            uint64_t *ret_count);

/** Between two steps (before the first micro-step): this process gives back the memory that comes and goes, buffers of gathers,
 * gradients and votes; the next call that needs some takes it again. What was gathered ahead is dropped. Model states stay, and
 * so do parameters of stages 1 and 2. All ranks, unless gathers are alone. -EBUSY: a step is in progress, or a unit is held. */
ZC_EXPORT int zc_zero_park(struct zc_zero *z);

/*
 * ON A DEVICE (options.device) gathered parameters and gradients are device memory, and the trainer
 * computes on zc_zero_stream(): what it enqueues there between a gather and the release sees these
 * parameters, and what it enqueues between zc_zero_grad() and zc_zero_reduce() adds to that
 * gradient, whenever the device gets to it. Nothing here waits for the stream. Values are bit for
 * bit those of a run without a device, as far as the trainer's own are.
 */

/** The stream of the device, NULL without one: for "cuda" a cudaStream_t. options.stream, or the
 * engine's own, which lives as long as the engine. */
ZC_EXPORT void *zc_zero_stream(struct zc_zero *z);

/** Bytes of the device that this engine has allocated now: gathered units, gradients, buffers
 * between two uses, and, where nothing is offloaded, all that is kept. Asks nobody; 0 without a
 * device. */
ZC_EXPORT uint64_t zc_zero_device_bytes(const struct zc_zero *z);

/** *ret_params: the unit's parameters, elems of them in its dtype, read-only, 64-byte aligned,
 * valid until released. Gathers of one unit nest. */
ZC_EXPORT int zc_zero_gather(struct zc_zero *z, uint32_t unit, const void **ret_params);
/** The same, into the caller's memory (elems of the dtype; on a device the device's, where they are copied
 * on zc_zero_stream()), the caller's until zc_zero_release(). The engine keeps what it gathered until
 * then, too. */
ZC_EXPORT int zc_zero_gather_into(struct zc_zero *z, uint32_t unit, void *params);
ZC_EXPORT int zc_zero_release(struct zc_zero *z, uint32_t unit);

/** A hint: begins the gather of a unit that comes soon, where live_elems has room for it. With
 * gather_alone this rank's own affair, else collective. Nobody holds it; it is dropped when the trainer
 * gathers and releases others for long, and by the step. */
ZC_EXPORT int zc_zero_prefetch(struct zc_zero *z, uint32_t unit);

/** *ret_grad: fp32[elems], 64-byte aligned, zeroed when this micro-step (with accumulate_local,
 * this step) first asks for it; the trainer adds into it until zc_zero_reduce(). */
ZC_EXPORT int zc_zero_grad(struct zc_zero *z, uint32_t unit, float **ret_grad);
/** Adds count elements of any dtype at element `first` into the unit's gradient, in fp32: instead of, or
 * beside, adding into zc_zero_grad()'s buffer. On a device `grad` is device memory, and the addition is
 * enqueued on zc_zero_stream(). -EINVAL: the range, the dtype; else as zc_zero_grad(). */
ZC_EXPORT int zc_zero_grad_add(struct zc_zero *z, uint32_t unit, uint64_t first, uint64_t count,
                               enum zc_dtype dtype, const void *grad);
/** This micro-step's gradient of the unit is complete: starts to reduce it (with accumulate_local,
 * in the step's last micro-step). Every trainable unit is reduced once in a micro-step (with
 * vertical, in a step); the one that completes it may be any. */
ZC_EXPORT int zc_zero_reduce(struct zc_zero *z, uint32_t unit);
/** The same, and says which of the unit's n tensors (in order of declaration) got a gradient on this
 * rank in this micro-step; has NULL: all, as zc_zero_reduce() says. */
ZC_EXPORT int zc_zero_reduce_of(struct zc_zero *z, uint32_t unit, const bool *has, uint32_t n);

/** With micro_steps 0: a micro-step (a backward pass) begins; one that is in progress ends first. With
 * accumulate_local `last` says that gradients leave in it; if none was the last, the step exchanges
 * what is held. All ranks make as many micro-steps between two steps, at least one. */
ZC_EXPORT int zc_zero_micro(struct zc_zero *z, bool last);
/** The micro-step ends. Units that this rank did not reduce in it have no gradient here: zeros are exchanged,
 * regardless of what was added into zc_zero_grad() (with accumulate_local, that stays). Collectives of a
 * micro-step run in one order, by falling unit number, each as soon as all units above it were reduced
 * on this rank, or the micro-step ends: so ranks may reduce in different orders. (Gathers that are
 * collective are in that order, too, as they come.) -EBUSY: none is in progress. */
ZC_EXPORT int zc_zero_micro_end(struct zc_zero *z);

struct zc_zero_stepped {
    uint64_t iterations, applied;
    double grad_norm;    /* of the averaged gradient, before clipping; NaN when skipped */
    double clip_scale;   /* 1: not clipped */
    bool skipped;        /* a gradient was not finite on some rank: nothing changed on any */
    double loss_scale;   /* that this step divided by: what zc_zero_loss_scale() was before it */
    uint32_t left_alone; /* tensors that were not stepped since no rank had a gradient of them */
};

/** What the trainer multiplies the loss of the next step by, in each of its micro-steps, before it
 * computes gradients: 1 unless options.loss_scale says otherwise. After zc_zero_start(); a job that
 * is resumed has the scale that it had. */
ZC_EXPORT double zc_zero_loss_scale(const struct zc_zero *z);

/** After micro_steps micro-steps in which every trainable unit was reduced (with micro_steps 0: after at
 * least one; a micro-step in progress is ended first), with every unit released; lr is the same on all ranks.
 * Returns when the step has begun: a later gather waits for the values it needs, and a failure of the step is
 * returned by a later call.
 *
 * Where the previous step was to be committed and was not (-ENOSPC, -EIO ...), that error is returned
 * here, once, on all ranks: nothing was done, that step is whole, the last commit stands, and the next
 * call makes the step. */
ZC_EXPORT int zc_zero_step(struct zc_zero *z, double lr, struct zc_zero_stepped *ret);

#define ZC_GROUP_NONE 65534u

/*
 * TENSORS are stepped each by itself: what no rank gave a gradient in the step (zc_zero_reduce_of(), or a unit that no
 * rank reduced) keeps its weight, its moments and its own count of steps, as in torch; bias correction uses that
 * count. Not so with options.step_unused, and where the step was announced, which is begun before anybody knows: then
 * it is stepped with a gradient of zero. Trainable tensors are numbered over all units in order, in each unit in order of
 * declaration; frozen units, and tensors of ZC_GROUP_FROZEN, are left out.
 */
struct zc_zero_step_how {
    const struct zc_group *groups; /* their scalars in this step, */
    uint32_t ngroups;              /* any number of them */
    const uint32_t *
        group_of; /* by trainable tensor: below ngroups, or ZC_GROUP_NONE: left alone in this step. NULL:
                                 the group that it was declared with, which then is below ngroups */
    const float
        *factors; /* by trainable tensor: its gradient is multiplied by that besides. NULL: 1 */
    double
        divide; /* gradients, summed over ranks and micro-steps, are divided by world * divide * loss
                                 scale. 0: the number of micro-steps */
    double clip; /* the global norm of what is stepped, after divide and factors, at most; 0: off */
};

/** zc_zero_step() with these values, which are the same on all ranks (-EINVAL, final, where they are not). Different
 *  (group, factor, own step count) in one step: at most 1024 (-EINVAL). A step that was announced has the values that were
 *  announced. -ENOSPC: the step counts that lag behind the job's, and the trainer's note of the job, do not fit into one
 *  note; all ranks are refused before anything is stepped. */
ZC_EXPORT int zc_zero_step_by(struct zc_zero *z, const struct zc_zero_step_how *how,
                              struct zc_zero_stepped *ret);

/** *ret_steps, [ntensors of the unit]: how many steps each tensor has made; 0 of frozen ones. A resumed job has them. Local:
 * involves no other rank. */
ZC_EXPORT int zc_zero_tensor_steps(struct zc_zero *z, uint32_t unit, uint64_t *ret_steps);
/** Sets them, of the unit's n tensors, each below 2 to the 53; the counts of frozen ones are ignored: as when the optimizer's
 * state comes from elsewhere, by zc_zero_write_on(). Bias correction of the next step goes by them. Collective, between two steps,
 * the same on all ranks (-EINVAL, final, where it is not). Kept with the job from the next step on. -EINVAL: n, or a count, is
 * wrong; -EBUSY: the step is announced. */
ZC_EXPORT int zc_zero_set_tensor_steps(struct zc_zero *z, uint32_t unit, const uint64_t *steps,
                                       uint32_t n);

struct zc_zero_norm {
    double sum_of_squares; /* without blocks that hold something that is not finite */
    float most;            /* the largest magnitude */
    uint64_t nonfinite;    /* how many are not finite */
};

/** Of each trainable tensor (n is their number), of the gradient that was reduced in this step so far: summed over ranks and
 *  micro-steps, not divided. The same bits on all ranks. Collective. -EBUSY: the step is announced. */
ZC_EXPORT int zc_zero_norms(struct zc_zero *z, struct zc_zero_norm *ret, uint32_t n);
/** The norm of all of them together; NaN where something is not finite. */
ZC_EXPORT int zc_zero_norm(struct zc_zero *z, double *ret);

/** Of an engine opened with optimizer_late, before its first step: it steps with this optimizer. Collective; may be called again. State
 *  stays as it was placed, so AdamW with moments of fp32, which takes as much as any, is what to open it with: the moments are
 *  those of the options, and the optimizer has as many or, where they are fp32, fewer, the last ones staying zero and taking
 *  their place all the same (-ENOTSUP otherwise, and for a job that is kept). Its scalars come with zc_zero_step_by(), or are
 *  the options'. -EBUSY: a step was made, or announced. */
ZC_EXPORT int zc_zero_optimizer(struct zc_zero *z, enum zc_optimizer kind, enum zc_moments moments);

/** Collective, between two steps: from the next one on a unit that was declared trainable is left alone (frozen), or trained
 * again. While it is frozen, no gradient of it is taken (-EINVAL), exchanged or kept: zc_zero_reduce() is not called for
 * it, and a micro-step is complete without it. Steps leave its weights, moments and the step counts of its tensors bit
 * for bit as they are; norms leave it out (those of its tensors are 0), and zc_zero_stepped.left_alone does not count
 * it. Its tensors keep their numbers, its state keeps its place, gathers, zc_zero_read() and zc_zero_write_on() are as
 * before. What is so already may be said again.
 *
 * Not remembered: a job that is resumed comes with the units as they are declared, trainable, and its trainer freezes
 * again what it wants frozen. Remembered are the step counts of tensors, without the steps that left them alone.
 *
 * -EINVAL: there is no such unit. -ENOTSUP: it was declared frozen, so there is no state to train it with. -EBUSY: on some
 * rank a gradient of the next step was asked for, or the step is announced. Then nothing has changed, on any rank. Ranks that
 * ask for different things: -EINVAL, which is final. A step is refused while every unit is frozen (-EINVAL). */
ZC_EXPORT int zc_zero_freeze(struct zc_zero *z, uint32_t unit, bool frozen);

/** The scalars that torch.optim gives the optimizer of that kind (Lion: its paper's). */
ZC_EXPORT void zc_zero_group_defaults(enum zc_optimizer kind, struct zc_group *ret);

/** Collective, between two steps: the gradients of this step are dropped on all ranks, with its micro-steps, its announcement, and
 * what was reported of tensors; the step begins again. Nothing is counted: iterations, notes and the loss scale stay. Units that
 * are gathered stay so. With micro_steps 0 a micro-step in progress ends here, and all ranks have begun as many (-EINVAL,
 * which is final); otherwise it is called between two micro-steps (-EBUSY). */
ZC_EXPORT int zc_zero_abandon(struct zc_zero *z);

/** Announces the learning rate of the next step, the same on all ranks: then that step begins
 * under the last backward pass, unit by unit, where state is streamed. Called between two steps,
 * best before the last micro-step; zc_zero_step() then has the same lr (-EINVAL). Does nothing
 * where nothing can be gained: without a daemon, without room, without ZC_ZERO_EARLY, with
 * clipping. A step that is skipped has changed nothing all the same. */
ZC_EXPORT int zc_zero_announce(struct zc_zero *z, double lr);

/** Finishes the step in progress and makes the newest step durable, unless it is; waits for that.
 * On failure the last commit stands, and the engine stays usable. -ENOTSUP: there is no daemon;
 * -EINVAL: the job is not durable. */
ZC_EXPORT int zc_zero_commit(struct zc_zero *z);

#define ZC_ZERO_NOTE_MAX (ZC_NOTE_MAX - 32)

/** Bytes of the trainer's own, at most ZC_ZERO_NOTE_MAX, kept with the next step and those after
 * it, until they are replaced: this rank's, or of_job: the job's, which every rank puts alike.
 * Copied. Too long a note is -EINVAL. */
ZC_EXPORT int zc_zero_note_put(struct zc_zero *z, bool of_job, const void *note, size_t bytes);
/** The note of the newest step: *ret_bytes of it in buf, which has ZC_NOTE_MAX bytes. -ENOENT:
 * there is none; so it is for a rank that the world did not have when the step was saved. */
ZC_EXPORT int zc_zero_note_get(struct zc_zero *z, bool of_job, void *buf, size_t *ret_bytes);

/** Adds each of n values over the ranks, in rank order: the same bits on every rank. n <= 4096. */
ZC_EXPORT int zc_zero_sum(struct zc_zero *z, double *values, uint32_t n);

/** Progress without waiting, for long computations: lets prefetches and reductions advance and
 * reports a lost peer or daemon. */
ZC_EXPORT int zc_zero_poll(struct zc_zero *z);

/** Reads elements [first, first + count) of a unit as fp32, on every rank, regardless of which rank holds them:
 *  ZC_PARAM (converted), ZC_MASTER, ZC_EXP_AVG or ZC_EXP_AVG_SQ, after the last step. A frozen
 *  unit has no moments, and no master in bf16 (-EINVAL). */
ZC_EXPORT int zc_zero_read(struct zc_zero *z, uint32_t unit, enum zc_what what, uint64_t first,
                           uint64_t count, float *out);

/** The same in any dtype, and only on rank `root`, whose out gets it; -1: on all. Collective; with
 * gather_alone and a root, root's own affair, and nothing on the others. Also ZC_GRAD: what was reduced
 * so far in this step, undivided (-EBUSY: nothing was, or the step is announced); with micro_steps 0
 * what is in progress, or held, is exchanged first. ZC_GRAD is always collective. */
ZC_EXPORT int zc_zero_read_on(struct zc_zero *z, int root, uint32_t unit, enum zc_what what,
                              uint64_t first, uint64_t count, enum zc_dtype dtype, void *out);
/** Writes elements as rank root has them (-1: every rank has the same, and writes its own slices): of
 * ZC_MASTER, with which what is computed with changes, ZC_EXP_AVG or ZC_EXP_AVG_SQ; of a frozen unit
 * ZC_MASTER. Between two steps, collective; gathers that come after it see the new values, moments of
 * elements whose master is written stay (before the first step they become zero: write them after).
 * -EBUSY, on all ranks: the step is announced, or a rank holds the unit. A unit that is kept
 * quantized is quantized again where it is written, piece by piece. */
ZC_EXPORT int zc_zero_write_on(struct zc_zero *z, int root, uint32_t unit, enum zc_what what,
                               uint64_t first, uint64_t count, enum zc_dtype dtype, const void *in);

/**
 * Bytes of the model states that belong to this rank, padded to blocks and equal slices: in this
 * process (on its device, where there is one), and what the daemon keeps of it, in whichever tier;
 * and buffers, as they are now.
 */
struct zc_zero_bytes {
    uint64_t param, grad, state;
    uint64_t daemon_param, daemon_grad, daemon_state;
    uint64_t gathered, reducing;
};

/** Asks nobody; by arithmetic, from the units that are declared. */
ZC_EXPORT void zc_zero_bytes(const struct zc_zero *z, struct zc_zero_bytes *ret);

struct zc_zero_stats {
    uint64_t fetched_bytes; /* by this rank, from the store */
    uint64_t pushed_bytes;
    uint64_t nvme_read_bytes,
        nvme_written_bytes; /* by the daemon for this job, all ranks of the node */
    uint64_t host_bytes, nvme_bytes,
        gpu_bytes; /* that the job holds in each tier of the daemon; with
                      store none host_bytes is this process's planes */
    uint64_t gather_buffer_bytes, grad_buffer_bytes; /* of the engine in this process, at most */
    uint64_t device_bytes;                           /* of a device: the most that was allocated */
    uint64_t comm_bytes; /* sent by this rank in collectives: all of them; of these, */
    uint64_t comm_gather_bytes, comm_reduce_bytes; /* gathers of parameters, reduce-scatters of
                                                      gradients, */
    uint64_t comm_across_bytes;                    /* all-reduces: DDP, and between groups */
    double stall_seconds;                          /* spent waiting inside engine calls */
    uint64_t grads_nvme_bytes; /* of nvme_bytes: gradients that host memory does not hold */
    uint64_t
        pinned_bytes; /* of host memory, for this rank's device: the daemon's parameters as they are
                         mapped here, and buffers. The first are missing where the driver pins no
                         memory that is read-only: copies are slower then, and nothing else */
    uint64_t gpu_params_bytes; /* of gpu_bytes: the job's parameters (ZC_ZERO_GPU); 0: they are not
                                  there, */
    const char *gpu_why; /* why not, although asked for; else "". Valid as long as the engine */
};

/** Counted since zc_zero_start(). Asks the daemon, after the step in progress, so that steps count
 * whole: a trainer that calls it right after zc_zero_step() waits for that step. */
ZC_EXPORT int zc_zero_stats(struct zc_zero *z, struct zc_zero_stats *ret);

#ifdef __cplusplus
}
#endif

#endif
