/*
 * zc_zero.h - the ZeRO engine: turns a list of units into sharded training.
 *
 * MODEL. A unit (struct zc_unit) is what is gathered and released together: a transformer block, an
 * embedding. At stage 3 every rank keeps one slice of each unit; at lower stages some of the model
 * states are whole on each rank (enum zc_zero_stage, docs/ENGINE.md). The engine gathers a unit's
 * parameters when the trainer needs them, prefetches the next one, reduces gradients so that each
 * rank gets the sum of its slice, and steps. The options select the store, which holds the slices:
 *
 *     none   in this process, stepped by the same kernels: the baseline
 *     host   in the daemon; parameters and state in host memory
 *     nvme   in the daemon; what does not fit its host budget is on NVMe
 *
 * The trainer's loop:
 *
 *     for each micro-step:
 *         for each unit, forward:   zc_zero_gather(u) ... compute ... zc_zero_release(u)
 *         for each unit, backward:  zc_zero_gather(u), zc_zero_grad(u) ... compute ...
 *                                   zc_zero_release(u), zc_zero_reduce(u)
 *     zc_zero_step()
 *
 * The engine expects each micro-step to gather in the same order as the previous one, and
 * prefetches accordingly. Another order is correct, but slower. docs/ENGINE.md has other loops, and
 * how many bytes each moves.
 *
 * COLLECTIVE. All ranks make these calls with the same arguments in the same order: gather, release
 * (but see gather_alone), grad, reduce, announce, step, freeze, commit, sum, read and a clean
 * close. Notes, zc_zero_poll(), zc_zero_stats() and zc_zero_error() involve no other rank. If ranks
 * make different calls, the calls that wait for them fail with -EINVAL on these ranks, and the
 * failure is final. zc_zero_error() says, for example, "rank 1 gathers 'fc2' where rank 0 gathers
 * 'fc1' (step 7)". In host memory this is detected at that collective. Between devices it is
 * detected at the next step or sum at the latest, or after timeout_ms if a collective never ends.
 * No step is made from the wrong data.
 *
 * NUMBERS. Ranks exchange slices of gradients in the unit's dtype (bf16: rounded once before the
 * exchange, ties to even) and add them in fp32 in rank order. Micro-steps are added in fp32. The
 * step scales the sum by 1 / (world * micro_steps * loss scale) and by the clip coefficient min(1,
 * clip / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_ does. So the number of ranks changes
 * losses only by rounding, and the store does not change them at all. Gradients of elements that
 * are never stepped (frozen tensors, elements outside of every tensor) count as zero.
 *
 * DURABILITY. A kept job stays in the daemon's memory when its ranks die. A durable job is also
 * committed, every commit_every steps and by zc_zero_commit(), and then survives a restart of the
 * daemon. To continue, all ranks open the job again with `resume`. Processes that are still
 * attached are disconnected (-ESTALE). The job continues from the newest step that every node has,
 * in memory or durable. It may have another number of ranks than before, on the same nodes. Each
 * step carries the trainer's notes, which a resumed run gets back: they hold what the run needs to
 * continue exactly. What the nodes (or groups of ranks) have must be from the same run; otherwise
 * the start fails (-EINVAL).
 *
 * RESTARTS. With options.reconnect_ms a job outlives its daemon within the same run.
 *
 *   - A daemon that is stopped in good order waits until the ranks have finished their step. Then
 *     zc_zero_step() closes the job, waits for the next daemon, attaches, and returns as usual: all
 *     is as before. So does a job that is not durable, if it is on one node and that node's NVMe
 *     has room for it; otherwise it ends.
 *   - If the daemon of a durable job dies, the pass in progress goes on, but what it computes is lost: gathered
 *     parameters are NaN, gradients go nowhere. The next zc_zero_step(), zc_zero_norm(s)() or
 *     zc_zero_commit() waits for the next daemon, attaches, and returns ZC_ROLLED_BACK on all ranks. The job is then at the
 *     newest step that all nodes have committed, with the notes of that step (zc_zero_progress(),
 *     zc_zero_note_get()); the trainer continues from there, like a resumed run. Reads and writes of
 *     elements in between fail with -ENOTCONN, which is final.
 *   - -ESTALE: another run has taken the job over meanwhile. Final, like the end of reconnect_ms.
 *
 * Pointers that a gather returned before are not valid after such a step. A daemon that keeps the
 * parameters in GPU memory (ZC_ZERO_GPU) cannot be replaced in this way: its loss is final.
 *
 * On one node a step is committed at once. On several, each node prepares it. At the next step,
 * commit or clean close, the ranks tell each other whether all nodes have prepared; then each node
 * commits, or all drop the step. A step that not every node has prepared is never committed.
 *
 * THREADS. One thread at a time may use an engine, except zc_zero_interrupt(). With options.poll_ms
 * a thread of the library polls between calls. Callbacks run inside engine calls and must not make
 * any. Each call sets the calling thread's rounding mode to nearest and enables denormals, because
 * the kernels need both.
 *
 * FORK. An engine and a comm belong to the process that opened them. In a child process, engine
 * calls fail with -EPERM, sockets are closed, and closing does nothing.
 *
 * ERRORS. The codes are those of zclient.h. -EINVAL and -EBUSY for a wrong call, or a call at the
 * wrong time, change nothing. Every other failure is final (zc_zero_failed()); each call documents
 * its exceptions. After a final failure the ranks are no longer in step: every later call returns
 * the same code at once, with the same error message. Close the engine with clean = false.
 *
 * TIMEOUTS. A call that waits also detects a peer that died (-EOWNERDEAD, reported by the daemon)
 * and a daemon that is gone (-ENOTCONN). It fails with -ETIMEDOUT when nothing has moved for
 * timeout_ms. A step that has begun may take any time, as long as the daemon answers. A rank that
 * computes for longer than timeout_ms between two calls must call zc_zero_poll() meanwhile (or set
 * options.poll_ms); otherwise its peers time out.
 */
#ifndef ZC_ZERO_H
#define ZC_ZERO_H

#include <errno.h>

#include "zclient.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- collectives: one table of functions; use a backend of the library, or your own */

struct zc_comm;
struct zc_comm_op; /* one collective in progress; belongs to the backend */

/**
 * Collectives between the memories of GPUs, which a backend may offer. They are enqueued on one
 * stream, and are complete when the stream has passed them. Until then the buffers belong to the
 * backend. All ranks make these calls in the same order, each on its own device, which is the
 * current device of the calling thread (CUDA: cudaSetDevice). They return 0 or a negative errno.
 */
struct zc_comm_device_ops {
    /* Begins, after every rank has selected its device. backend: "cuda" or "emulated"; stream: that
     * of zc_zero_stream(). A wait for another rank fails after timeout_ms. */
    int (*open)(struct zc_comm *comm, const char *backend, void *stream, uint32_t timeout_ms);
    /* As in struct zc_comm_ops, on device addresses. */
    int (*all_gather)(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes);
    int (*exchange)(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes);
    /* Returns 0 if what was enqueued is fine so far, or the reason why it will not complete. */
    int (*test)(struct zc_comm *comm);
    /* clean: every rank closes, and nothing is in flight. Otherwise what is on the stream ends at
     * once, without result. After it, or after a failed open, open may be called again. */
    void (*close)(struct zc_comm *comm, bool clean);
};

/** Names of two different collectives that two ranks started in the same place. */
struct zc_comm_other {
    /* the other rank, numbered in the comm that was opened, not in a split of it */
    uint32_t rank;
    uint64_t mine, theirs;
};

/**
 * Collectives. They start at once and return; the buffers belong to the backend until test reports
 * completion. Every rank starts the same collectives in the same order, possibly several before the
 * first completes. They return 0 or a negative errno; after a failure only error and close are
 * called.
 */
struct zc_comm_ops {
    const char *name;
    /* recv[r * slice_bytes ...] becomes rank r's send, for every r. send may be recv + rank *
     * slice_bytes. */
    int (*all_gather)(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                      struct zc_comm_op **ret);
    /* For every rank s: slice s of this rank's recv becomes slice `rank` of s's send. send and recv
     * do not overlap. */
    int (*exchange)(struct zc_comm *comm, const void *send, void *recv, size_t slice_bytes,
                    struct zc_comm_op **ret);
    /* Sets *ret_done if the op is complete; the op is then freed. */
    int (*test)(struct zc_comm *comm, struct zc_comm_op *op, bool *ret_done);
    /* Frees the comm. clean: every rank closes now, and nothing is in flight. Otherwise peers may
     * be dead and must not be waited for. */
    void (*close)(struct zc_comm *comm, bool clean);
    /* The error message of the last failure. May be NULL. */
    const char *(*error)(struct zc_comm *comm);
    /* NULL: all collectives are between host memories, also if the engine is on a device */
    const struct zc_comm_device_ops *device;
    /* Collective; may wait. Makes a comm of the ranks that gave the same colour, in their order
     * here. It is closed before comm is. NULL: no groups of ranks. */
    int (*split)(struct zc_comm *comm, uint32_t colour, struct zc_comm **ret);
    /* Names the next host-memory collective that this rank starts; 0 if it was not called. The
     * backend guarantees: if two ranks start collectives of different kinds, names or lengths in
     * the same place, start or test returns -EINVAL on both, and no byte is written outside of the
     * buffers. NULL: no such guarantee; the engine compares names itself, with an all_gather of 8
     * bytes before each collective. */
    void (*name_next)(struct zc_comm *comm, uint64_t name);
    /* After that -EINVAL: returns the rank and both names. false: the failure had another reason.
     * Must be set if name_next is. */
    bool (*other)(struct zc_comm *comm, struct zc_comm_other *ret);
};

struct zc_comm {
    const struct zc_comm_ops *ops;
    uint32_t rank, world;
    void *arg; /* for zc_comm_from_ops(): the caller's */
};

/**
 * Opens a backend: "self" (one rank), "tcp" (ranks that torchrun started), "mpi" (all of
 * MPI_COMM_WORLD), "nccl" (between GPUs), or "auto". auto takes the value of ZSHARD_COMM if it is
 * set, else mpi under an MPI launcher, tcp under torchrun, and self otherwise.
 *
 * tcp connects every pair of ranks. It reads torchrun's variables RANK, WORLD_SIZE, MASTER_ADDR and
 * MASTER_PORT. Rank 0 listens at MASTER_ADDR, on port MASTER_PORT + 1 (or ZSHARD_PORT). Ranks wait
 * 120 s for each other (ZSHARD_MEET_SECONDS), also in split. Traffic is neither encrypted nor
 * authenticated: use a network of the trainers' own.
 *
 * mpi is a plugin, zc_comm_mpi.so, so that the library does not depend on MPI. It is searched in
 * $ZSHARD_PLUGINS if that is set, else in zshard/ next to the library. It initializes MPI unless
 * the program has; then it also finalizes MPI, in a clean close only. If ranks share cores, let MPI
 * yield while it waits (Open MPI: OMPI_MCA_mpi_yield_when_idle=1).
 *
 * nccl runs the collectives of an engine on a device with NCCL, and all others with mpi, tcp or
 * self, as auto would choose; ranks also find each other that way. With more than one rank it loads
 * NCCL: the library that ZSHARD_NCCL_LIB names, else libnccl.so.2 (2.14 or newer).
 *
 * @param error,error_bytes  buffer for the error message; may be NULL and 0
 * @return 0; -ENOENT no such backend; -ENOTSUP not built in, or its library is missing; -EIO it did
 *         not start; -ENOMEM; for tcp also -EINVAL a variable is wrong, -EADDRINUSE the port is in
 *         use, -EOWNERDEAD ranks did not come, -EPROTO ranks of different runs met. On failure *ret
 *         is NULL
 */
ZC_EXPORT int zc_comm_open(struct zc_comm **ret, const char *name, char *error, size_t error_bytes);
/**
 * Makes a comm from the caller's collectives. They are called on a thread of the library, one at a
 * time and each to its end, in the order in which all ranks start them. So they may block; then
 * test may be NULL, and all_gather and exchange return when they are complete. They get a comm with
 * rank, world and arg. Of the other functions only close, error and split are called, if they are
 * not NULL; name_next, other and device are ignored. A close that is not clean does not wait: a
 * function that blocks continues, and the rest is freed when it returns.
 *
 * @param ops  must outlive the comm; what a function that blocks uses must outlive that function
 * @return 0; -EINVAL all_gather or exchange is missing, or rank is not below world; -ENOMEM;
 *         -EAGAIN no thread
 */
ZC_EXPORT int zc_comm_from_ops(struct zc_comm **ret, const struct zc_comm_ops *ops, void *arg,
                               uint32_t rank, uint32_t world);
/** Closes a comm, after zc_zero_close() and with the same `clean`. NULL is allowed. */
ZC_EXPORT void zc_comm_close(struct zc_comm *comm, bool clean);

/* ---- the engine */

struct zc_zero;

/** The lowest tier where model states may be stored. */
enum zc_zero_offload { ZC_ZERO_NONE = 0, ZC_ZERO_HOST = 1, ZC_ZERO_NVME = 2, ZC_ZERO_GPU = 3 };

/**
 * Which model states each rank keeps whole, and which are partitioned. Below: P parameters, N
 * ranks, and p, g and k bytes per parameter for parameter, gradient and optimizer state.
 * Partitioned states are slices, one per rank, in the store; whole states are in each rank's own
 * memory.
 */
enum zc_zero_stage {
    ZC_STAGE_DDP = 0, /* nothing partitioned: (p + g + k) P */
    ZC_STAGE_1 = 1,   /* optimizer state partitioned: (p + g + k/N) P */
    ZC_STAGE_2 = 2,   /* gradients too: (p + (g + k)/N) P */
    /* parameters too, gathered unit by unit (FSDP): (p + g + k) P / N */
    ZC_STAGE_3 = 3,
};

/**
 * Loss scaling, for fp16. The trainer multiplies its loss by zc_zero_loss_scale(), and the step
 * divides by it. The rules are those of DeepSpeed's fp16 keys of the same names, with factor 2 in
 * both directions. If any rank finds a gradient that is not finite, all ranks skip the step, and
 * the scale changes.
 */
struct zc_loss_scale {
    bool dynamic;    /* false: always `fixed` */
    double fixed;    /* 0 or 1: no scaling */
    uint32_t power;  /* dynamic: the first scale is 2 to this power */
    uint32_t window; /* the scale doubles after this many steps without overflow */
    /* overflows until the scale is halved: the first hysteresis - 1 of them only count down.
     * Doubling resets the count */
    uint32_t hysteresis;
    bool consecutive; /* every step without overflow resets that count, too */
    /* smallest scale. An overflow that would halve below it ends the run (-ERANGE): the step is not
     * made */
    double min;
};

/** What overlaps with the trainer's computation. Neither flag changes a bit of the result. */
/** Returned by zc_zero_step(), zc_zero_norm(s)() and zc_zero_commit(): the daemon was lost, and the job continues from
 * an earlier step. Not final. See RESTARTS. */
#define ZC_ROLLED_BACK (-ERESTART)

#define ZC_ZERO_EARLY  1u /* a step begins as gradients come: zc_zero_announce() */
#define ZC_ZERO_SERVE \
    2u /* zc_zero_step() returns when the step has begun; gathers wait unit by unit */
#define ZC_ZERO_OVERLAP (ZC_ZERO_EARLY | ZC_ZERO_SERVE)

/**
 * How ranks that share a daemon gather parameters from each other (stages 1 to 3). The same bits in
 * each way.
 */
enum zc_node_gather {
    /* all ranks that share a unit all-gather it: between devices (NCCL), or in host memory */
    ZC_NODE_GATHER_COMM = 0,
    /* each rank reads the slices of all ranks of its node in the daemon's host memory, and copies
     * them to where it computes. If the ranks have several daemons, each slice crosses to another
     * node once, not once for each rank there. The calls stay collective. -ENOTSUP: without a
     * daemon, with quantize_gather, and on several nodes if collectives are between devices, if
     * nodes have different numbers of ranks, or if the comm has no split() */
    ZC_NODE_GATHER_HOST = 1,
    /* zc_zero_start() gathers the largest unit in both ways, several times, and uses the faster
     * one. zc_zero_stats() says which one and why */
    ZC_NODE_GATHER_AUTO = 2,
};

/**
 * How gradients are clipped.
 *
 * ZC_CLIP_TENSOR is AdaGC (arXiv 2502.11034): each tensor against a moving average of its own norms.
 * With g the averaged gradient of a tensor, and v its average, of clip_tensor_warmup steps on:
 *
 *     limit = ratio * v        h = limit / |g| if |g| > limit, else 1
 *     g = h * g                v = beta * v + (1 - beta) * h * |g|
 *
 * The steps before that are clipped globally, and v is the smallest norm after clipping. A norm of 0
 * and a skipped step leave v alone. A tensor without v (it had no gradient so far) is not clipped, and
 * v becomes its norm. Norms are exact sums, rounded once: h is the same number on all ranks,
 * wherever the tensor is stored. The averages are stored in the job's note: with commits and
 * snapshots, 4 bytes for each trainable tensor.
 */
enum zc_clip_mode {
    ZC_CLIP_GLOBAL = 0, /* all gradients, by their global norm */
    ZC_CLIP_TENSOR = 1,
    ZC_CLIP_NONE = 2, /* `clip` is ignored */
};

struct zc_zero_options {
    struct zc_comm *comm; /* the caller's; must outlive the engine */
    const char *socket;   /* as in zc_options */
    /* NULL: "zero-<pid of rank 0>". Groups after the first append their number; leave room for it
     */
    const char *job;
    bool keep; /* the job outlives its ranks */
    /* steps can be committed; needs keep, and a daemon with data files */
    bool durable;
    /* durable jobs: commit every this many steps; 0: only on request */
    uint64_t commit_every;
    /* join the kept job of that name and continue it. Units and options are the same as then;
     * zc_zero_start() asks for no initial values */
    bool resume;
    /* Parameters can be offloaded only together with the optimizer. ZC_ZERO_NONE: in this process;
     * on the device if there is one and, with several ranks, collectives between devices.
     *
     * ZC_ZERO_GPU (parameters only): in GPU memory of the daemon, which this engine's device maps
     * and copies from. This needs a device that is also the daemon's, a GPU tier with room for all
     * parameters, and ranks that may gather from there (docs/GPU.md); otherwise it is as
     * ZC_ZERO_NVME, and zc_zero_stats() says why. */
    enum zc_zero_offload offload_param, offload_optimizer;
    /* micro-steps whose gradients make one step. 0: any number, each between zc_zero_micro() and
     * zc_zero_micro_end(); not with `vertical`. Steps are announced only with `announces` */
    uint32_t micro_steps;
    double clip; /* limit of the global norm; 0: off */
    enum zc_optimizer optimizer;
    enum zc_moments moments;
    /* as in struct zc_group; scalars of other optimizers are ignored */
    double beta1, beta2, eps;
    double momentum, dampening, lr_decay;
    bool nesterov;
    double weight_decay[64]; /* by parameter group */
    uint32_t groups;         /* 1 to 64 */
    /* units to gather ahead, up to 64; 0: none. 1 is the usual choice */
    uint32_t prefetch_units;
    /* flags of ZC_ZERO_OVERLAP. EARLY needs room on the daemon's data files, the size of all
     * streamed state once more. Without that room, or with global clipping, steps do not begin
     * early. With clipping by tensor they do after its warm-up, without a dynamic loss scale. With Muon the
     * matrices of a unit begin together, if all their state is on the data files */
    uint32_t overlap;
    uint32_t share;      /* of the job: as in zc_job_options */
    uint32_t timeout_ms; /* for every wait for the daemon or a peer; 0: 60000 */
    /* NULL: the fastest that this processor supports; else a name, as for the daemon's option */
    const char *kernels;
    /* NULL or "": parameters and gradients are handed out in host memory. Else the GPU on which
     * they are handed out: "cuda:N", or "cuda": the one of this process's local rank (LOCAL_RANK,
     * OMPI_COMM_WORLD_LOCAL_RANK, SLURM_LOCALID, MPI_LOCALRANKID), else by its place among the
     * ranks of its machine. zc_zero_device() is the one that was chosen. Too little memory is
     * -ENOSPC; the error message has the bytes needed and the bytes free */
    const char *device;
    /* ZC_ZERO_HOST: a job whose gradients do not fit in memory is rejected (-ENOSPC). 0: gradients
     * that do not fit go to NVMe, if state and parameters may go there too */
    enum zc_zero_offload offload_grad;

    enum zc_zero_stage stage;
    /* hybrid sharding: every group_ranks consecutive ranks form a group. States are partitioned
     * within a group, and every group has all of them. Gathers stay within a group; gradients are
     * also reduced between groups. Must divide the number of ranks; 0: one group of all */
    uint32_t group_ranks;
    /* add up micro-steps in this rank's own memory (or its device's), whole, and reduce once, with
     * the last one. Otherwise each micro-step is reduced, and the sums are added up */
    bool accumulate_local;
    /* each unit is reduced once per step, with the gradient of all micro-steps: for the order of
     * calls that gathers a unit once for all of them (docs/ENGINE.md) */
    bool vertical;
    /* stage 3: units gathered in the forward pass stay until they are reduced */
    bool keep_gathered;
    /* stage 3: units up to this length stay gathered between two steps */
    uint64_t persist_elems;
    /* stage 3: gather ahead, or keep, only below this number of elements; 0: no limit */
    uint64_t live_elems;
    /* stage 3: keep a unit that is needed again within this number of elements */
    uint64_t reuse_elems;
    /* elements to gather ahead; if not 0, used instead of prefetch_units */
    uint64_t prefetch_elems;
    /* limit of gradients that are on their way to other ranks at one time; 0: two units */
    uint64_t reduce_elems;
    /* zc_zero_reduce() returns when the unit is reduced: no overlap */
    bool reduce_waits;
    /* stage 3: parameters travel between ranks as int8, with a scale for every 256. Every rank
     * computes with the dequantized values, also of its own slice. Frozen units travel as they are
     * stored. What is stepped is exact. docs/ENGINE.md has the error */
    bool quantize_gather;
    struct zc_loss_scale loss_scale;
    /* limit for the model states and buffers of this rank in its own memory, or its device's. A
     * start that needs more fails with the numbers (-ENOSPC). 0: no limit */
    uint64_t memory_bytes;
    /* Gathers are not collective: this rank reads the slices of other ranks from the daemon, so it
     * gathers any unit at any time. Needs stage 3, an offloaded optimizer, and all ranks on one
     * node; excludes group_ranks and quantize_gather (-ENOTSUP otherwise). A single rank may always
     * set it. */
    bool gather_alone;
    /* Step a tensor that no rank gave a gradient with a gradient of zero: its moments decay, and
     * weight decay is applied, as in DeepSpeed. Otherwise such a tensor is left unchanged. */
    bool step_unused;
    /* Resume the job if all nodes have it, else create it (zc_zero_start() then needs init). If
     * only some nodes have it, the start fails (-ENOENT), because their state would be lost.
     * zc_zero_progress() returns 0 iterations for a new job, and for one that has made no step.
     * Needs a daemon and a job name, as `resume` does; `resume` takes precedence. */
    bool resume_if_there;
    /* A thread of the library calls zc_zero_poll() at this interval, unless the trainer is in a
     * call. For trainers that compute longer than timeout_ms, or that want reductions to advance
     * meanwhile. Callbacks of a comm may then run on that thread, never two at the same time. 0:
     * none */
    uint32_t poll_ms;
    /* On a device: allocator for temporary memory (gathered units, gradients, buffers). Set both
     * functions, or neither (then the driver's is used). alloc returns `bytes` of device memory,
     * aligned to 512 bytes, which may be used after what is already on `stream` (zc_zero_stream());
     * NULL: no room (-ENOSPC). free gets back what alloc returned; nothing uses it any more, on any
     * stream. Both are called inside engine calls (and polls) and must make none. In free, `stream`
     * is NULL while the engine closes. Permanent memory, such as state that is not offloaded, comes
     * from the driver. */
    void *(*alloc)(void *arg, size_t bytes, void *stream);
    void (*free)(void *arg, void *mem, size_t bytes, void *stream);
    void *memory_arg;
    /* The job is placed for this optimizer and these moments; zc_zero_optimizer() may change them
     * before the first step */
    bool optimizer_late;
    /* On a device: the trainer's own stream to compute on; for "cuda" a cudaStream_t of the
     * device's primary context (the default stream is cudaStreamLegacy, (void *)1).
     * zc_zero_stream() returns it. It must outlive the engine. NULL: the engine makes one */
    void *stream;
    /* How long to wait for another daemon, in milliseconds, if this one has restarted or, of a
     * durable job, was lost. RESTARTS at the top of this file. 0: its loss is final */
    uint32_t reconnect_ms;
    /* gathers inside a node; the same on all ranks. gather_alone takes precedence: its gathers are
     * as with ZC_NODE_GATHER_HOST, and not collective */
    enum zc_node_gather node_gather;
    enum zc_clip_mode clip_mode;
    /* ZC_CLIP_TENSOR. ratio: above 0; beta: from 0 to below 1; the number of applied steps that are
     * clipped globally, by `clip`, before tensors are clipped: counted from the step with which the
     * job began to clip by tensor. */
    double clip_tensor_ratio, clip_tensor_beta;
    uint64_t clip_tensor_warmup;
    enum zc_muon_scale muon_scale; /* ZC_MUON: as in struct zc_group */
    /* The daemon does not hold gradients of pages whose state is on NVMe, and has that memory for state
     * (docs/OVERLAP.md). Every step is announced (zc_zero_announce()) before its first gradient is
     * exchanged (-EINVAL). Needs offload_optimizer ZC_ZERO_NVME, ZC_ZERO_EARLY, no global clipping, and one
     * push for each unit and step: micro_steps 1, accumulate_local or vertical (-EINVAL), or
     * `announces`, and then only announced micro-steps are exchanged. With
     * ZC_CLIP_TENSOR the daemon has memory for the gradients of two units, and the steps of the warm-up
     * hold these gradients on NVMe: more transfers, and room for them. No dynamic loss scale then
     * (-EINVAL); on several nodes, all daemons know sums over them (zc_server.sums; -ENOTSUP) */
    bool grad_ring;
    /* grad_ring: percent of the pages whose gradients are held nevertheless, so that they can be stepped
     * under the next forward pass. From 0 to 100 */
    uint32_t grad_ring_keep;
    /* ZC_MUON, offloaded: what orthogonalizes the matrices, for the whole life of the job (struct
     * zc_job_options) */
    enum zc_muon_engine muon_engine;
    /* micro_steps 0: steps may be announced by zc_zero_announce_by(), each before its last micro-step.
     * With ZC_ZERO_EARLY the job then needs the room that early steps need */
    bool announces;
};

/**
 * Sets the usual values: micro_steps 1, betas 0.9 and 0.95, eps 1e-8, one group, prefetch 1, all
 * overlap, a commit every 100 steps (of a durable job), stage 3, no loss scale; for clipping by tensor
 * ratio 1.05, beta 0.98 and a warm-up of 100 steps.
 */
ZC_EXPORT void zc_zero_defaults(struct zc_zero_options *options);

/**
 * Connects to the daemon, and compares the options of all ranks. If one rank fails, all do.
 * Collective. The options need not outlive the call, except comm.
 *
 * @return 0; -EINVAL options are wrong, contradict each other, or differ between ranks; -ENOTSUP an
 *         option is not available here (gather_alone, a device that was not built in); -ENOTCONN no
 *         daemon answers, or it closed the connection; -ENOENT no such kernels; -EPERM another
 *         user's job; -EPROTO not this protocol; -ENODEV, -EIO no such device, or it failed;
 *         -ENOSPC too little device memory; -ENOMEM, -EMFILE; -EOWNERDEAD a rank is gone;
 *         -ETIMEDOUT a rank did not come; and what the caller's comm returns
 *
 * After -EINVAL, -ENOTSUP, -ENOTCONN, -EPERM, -ENODEV, -ENOSPC or -ENOMEM on all ranks ("rank 1:
 * ..."), the comm is still good: all ranks close the engine, and may open another one on it. After
 * -EOWNERDEAD, -ETIMEDOUT, -EPROTO, -EINTR and errors of the comm itself, close the comm with clean
 * = false. The same holds for a failed zc_zero_start(), except that a daemon may report a lost rank
 * first (-EOWNERDEAD); then the comm must not be used again.
 *
 * On failure *ret is an engine that holds only the error message (zc_zero_close() it), or NULL if
 * there was no memory for it.
 */
ZC_EXPORT int zc_zero_open(struct zc_zero **ret, const struct zc_zero_options *options);
/**
 * Closes an engine. clean: every rank closes now, in good order; the step in progress is finished,
 * and committed if that was due; the job is closed. (Only zc_zero_commit() reports whether the
 * commit worked.) Without clean, and after a final failure, no other rank is waited for. NULL is
 * allowed.
 */
ZC_EXPORT void zc_zero_close(struct zc_zero *z, bool clean);
/**
 * Returns the error message of the last failure, or "" before the first. Valid until the next
 * failure or zc_zero_close().
 */
ZC_EXPORT const char *zc_zero_error(const struct zc_zero *z);
/**
 * Returns whether a failure was final: then every later call returns its code. After a failure that
 * was not final nothing has changed, and the engine stays usable. Not final are: a commit that
 * failed (-ENOSPC, -EIO ...) and was reported by zc_zero_step() or zc_zero_commit(); a call that
 * was interrupted before it began (zc_zero_interrupt()); a call that was wrong.
 */
ZC_EXPORT bool zc_zero_failed(const struct zc_zero *z);
/**
 * Interrupts the call in which the trainer waits: it returns -EINTR. May be called from any thread
 * or a signal handler. If no call is waiting, nothing happens, and the next call is not affected.
 *
 * A gather that was interrupted has changed nothing, and may be called again. The same holds for a
 * step, norms, a read, a write, zc_zero_abandon() and zc_zero_park() while they wait for the
 * exchange of gradients or for the step in progress: they have not begun. Later they cannot be
 * undone half way, and neither can other calls: they run to their end, unless nothing has moved for
 * a second, for example because another rank does not come. Then -EINTR is a final failure
 * (zc_zero_failed()).
 */
ZC_EXPORT void zc_zero_interrupt(struct zc_zero *z);

/**
 * Declares the next unit; unit->index is its number, from 0. grad_dtype is ignored: gradients are
 * stored in fp32. Copied. Before zc_zero_start().
 */
ZC_EXPORT int zc_zero_add_unit(struct zc_zero *z, const struct zc_unit *unit);

/**
 * Writes the initial values of elements [first, first + count) of a unit to out. Elements at or
 * past the unit's end are not asked for. Returns 0 or a negative errno, which ends zc_zero_start().
 */
typedef int zc_zero_init_fn(void *arg, uint32_t unit, uint64_t first, uint64_t count, float *out);

/**
 * Registers, places and initializes the slices, piece by piece: no rank ever holds a whole model or
 * a whole unit. If one rank fails, all do. With resume also -ENOENT: the nodes have no step in
 * common (the error message lists their steps); -ESTALE: another process is resuming the job now.
 * Collective.
 */
ZC_EXPORT int zc_zero_start(struct zc_zero *z, zc_zero_init_fn *init, void *arg);

/**
 * Returns the steps asked for, and applied, so far: 0 and 0 unless the job was resumed. The
 * learning rate and the position in the data follow from iterations.
 */
ZC_EXPORT int zc_zero_progress(struct zc_zero *z, uint64_t *ret_iterations, uint64_t *ret_applied);

/**
 * Returns the elements of a unit whose state this rank keeps, [*ret_first, *ret_first +
 * *ret_count), possibly none. These are the elements that zc_zero_write_on() with root -1 takes
 * from this rank. After zc_zero_start(). Not collective.
 */
ZC_EXPORT int zc_zero_slice(struct zc_zero *z, uint32_t unit, uint64_t *ret_first,
                            uint64_t *ret_count);

/**
 * Frees temporary memory of this process between two steps (before the first micro-step): buffers
 * of gathers, gradients and votes. The next call that needs some allocates it again. Units gathered
 * ahead are dropped. Model states stay, as do parameters of stages 1 and 2. Collective, unless
 * gather_alone. -EBUSY: a step is in progress, or a unit is held.
 */
ZC_EXPORT int zc_zero_park(struct zc_zero *z);

/*
 * ON A DEVICE (options.device) gathered parameters and gradients are device memory, and the trainer
 * computes on zc_zero_stream(). Work that it enqueues there between a gather and the release sees
 * these parameters. Work that it enqueues between zc_zero_grad() and zc_zero_reduce() adds to that
 * gradient, whenever the device runs it. No call here waits for the stream. The engine's results
 * are the same bits as without a device, if the trainer's are.
 */

/**
 * Returns the device's stream, NULL without a device; for "cuda" a cudaStream_t. It is
 * options.stream, or the engine's own, which lives as long as the engine.
 */
ZC_EXPORT void *zc_zero_stream(struct zc_zero *z);
/** The name of the one device that this rank uses: of a list in options.device, the one that was
 * chosen. Valid until the engine is closed. NULL: it has none. */
ZC_EXPORT const char *zc_zero_device(struct zc_zero *z);

/**
 * Returns the device bytes that this engine has allocated now: gathered units, gradients, unused
 * buffers and, without offload, all model states. 0 without a device. Not collective.
 */
ZC_EXPORT uint64_t zc_zero_device_bytes(const struct zc_zero *z);

/**
 * Gathers a unit. *ret_params: its elems parameters in its dtype, read-only, 64-byte aligned, valid
 * until zc_zero_release(). Gathers of one unit nest.
 */
ZC_EXPORT int zc_zero_gather(struct zc_zero *z, uint32_t unit, const void **ret_params);
/**
 * Gathers a unit into the caller's memory (elems of the dtype). On a device this is device memory,
 * and the copy is enqueued on zc_zero_stream(). The memory must stay valid until zc_zero_release().
 * The engine also keeps its own copy until then.
 */
ZC_EXPORT int zc_zero_gather_into(struct zc_zero *z, uint32_t unit, void *params);
/** Undoes one gather of the unit. */
ZC_EXPORT int zc_zero_release(struct zc_zero *z, uint32_t unit);

/**
 * Hints that a unit is needed soon: begins its gather, if live_elems leaves room. Not collective
 * with gather_alone, else collective. The trainer does not hold the unit; it is dropped by the
 * step, or after many gathers and releases of other units.
 */
ZC_EXPORT int zc_zero_prefetch(struct zc_zero *z, uint32_t unit);

/**
 * Returns the unit's gradient, *ret_grad: fp32[elems], 64-byte aligned. It is zeroed when this
 * micro-step (with accumulate_local, this step) first asks for it. The trainer adds to it until
 * zc_zero_reduce().
 */
ZC_EXPORT int zc_zero_grad(struct zc_zero *z, uint32_t unit, float **ret_grad);
/**
 * Adds count elements of any dtype to the unit's gradient at element `first`, in fp32. Use it
 * instead of zc_zero_grad(), or together with it. On a device `grad` is device memory, and the
 * addition is enqueued on zc_zero_stream(). -EINVAL: the range or dtype is wrong; otherwise as
 * zc_zero_grad().
 */
ZC_EXPORT int zc_zero_grad_add(struct zc_zero *z, uint32_t unit, uint64_t first, uint64_t count,
                               enum zc_dtype dtype, const void *grad);
/**
 * Reports that this micro-step's gradient of the unit is complete, and starts to reduce it (with
 * accumulate_local, in the step's last micro-step). Every trainable unit is reduced once in a
 * micro-step (with vertical, once in a step).
 */
ZC_EXPORT int zc_zero_reduce(struct zc_zero *z, uint32_t unit);
/**
 * Reduces as zc_zero_reduce(), and says which of the unit's n tensors (in order of declaration)
 * have a gradient on this rank in this micro-step. has NULL: all of them.
 */
ZC_EXPORT int zc_zero_reduce_of(struct zc_zero *z, uint32_t unit, const bool *has, uint32_t n);

/**
 * With micro_steps 0: begins a micro-step (a backward pass); one that is in progress ends first.
 * With accumulate_local, `last` says that gradients are exchanged in this one; if none was the
 * last, the step exchanges them. All ranks make the same number of micro-steps between two steps,
 * at least one.
 */
ZC_EXPORT int zc_zero_micro(struct zc_zero *z, bool last);
/**
 * Ends the micro-step. Units that this rank did not reduce in it have no gradient here: zeros are
 * exchanged, regardless of what was added to zc_zero_grad() (with accumulate_local, that stays).
 * Collectives of a micro-step run in one fixed order, by falling unit number: each one as soon as
 * this rank has reduced all units above it, or the micro-step ends. So ranks may reduce in
 * different orders. (Collective gathers are part of that order, when they are called.) -EBUSY: no
 * micro-step is in progress.
 */
ZC_EXPORT int zc_zero_micro_end(struct zc_zero *z);

/** Result of a step. */
struct zc_zero_stepped {
    uint64_t iterations, applied;
    /* of the averaged gradient, before clipping; NaN if skipped. Of what is stepped; if the step was
     * announced and clips nothing, of all gradients, without factors: they are used up */
    double grad_norm;
    /* 1: not clipped. Global clipping: its factor. By tensor: the norm after clipping over that before */
    double clip_scale;
    /* a gradient was not finite on some rank: nothing changed on any rank */
    bool skipped;
    double loss_scale; /* the scale that this step divided by */
    /* tensors that were not stepped, because no rank had a gradient for them */
    uint32_t left_alone;
};

/**
 * Returns the factor for the loss of the next step. The trainer applies it in each micro-step,
 * before it computes gradients. 1 unless options.loss_scale is set. After zc_zero_start(); a
 * resumed job continues with its scale.
 */
ZC_EXPORT double zc_zero_loss_scale(const struct zc_zero *z);

/**
 * Makes a step with learning rate lr, the same on all ranks. Call it after micro_steps micro-steps
 * in which every trainable unit was reduced, with every unit released. (With micro_steps 0: after
 * at least one micro-step; one in progress is ended first.) Returns when the step has begun; a
 * later gather waits for the values it needs, and a later call returns a failure of the step.
 *
 * If the previous step was to be committed and was not (-ENOSPC, -EIO ...), that error is returned
 * here, once, on all ranks. This call has done nothing then: the previous step is whole, the last
 * commit is valid, and the next call makes the step.
 */
ZC_EXPORT int zc_zero_step(struct zc_zero *z, double lr, struct zc_zero_stepped *ret);

#define ZC_GROUP_NONE 65534u

/**
 * Scalars of a step, by group and tensor.
 *
 * Tensors are stepped one by one. A tensor without a gradient on any rank (zc_zero_reduce_of(), or
 * a unit that no rank reduced) keeps its weight, its moments and its own step count, as in torch.
 * Bias correction uses that count. Exceptions are options.step_unused, and a step that was
 * announced, which begins before missing gradients are known: then the tensor is stepped with a
 * gradient of zero (with micro_steps 0 the step is refused). Trainable tensors are numbered over all units in order, within each unit in
 * order of declaration. Frozen units and tensors of ZC_GROUP_FROZEN are not counted.
 */
struct zc_zero_step_how {
    const struct zc_group *groups; /* the scalars of each group in this step */
    uint32_t ngroups;              /* any number */
    /* by trainable tensor: below ngroups, or ZC_GROUP_NONE: not stepped in this step. NULL: the
     * group it was declared with, which must be below ngroups */
    const uint32_t *group_of;
    /* by trainable tensor: additional factor of its gradient. NULL: 1 */
    const float *factors;
    /* gradients, summed over ranks and micro-steps, are divided by world * divide * loss scale. 0:
     * the number of micro-steps */
    double divide;
    /* limit of the global norm of what is stepped, after divide and factors; 0: off. With
     * ZC_CLIP_TENSOR only in its warm-up */
    double clip;
};

/**
 * Makes a step as zc_zero_step(), with these values. They must be the same on all ranks (-EINVAL,
 * final). At most 1024 different combinations of group, factor and step count in one step
 * (-EINVAL). A step that was announced uses the announced values. -ENOSPC: the step counts that lag
 * behind the job's, together with the trainer's note of the job, do not fit in one note; then all
 * ranks fail before anything is stepped.
 */
ZC_EXPORT int zc_zero_step_by(struct zc_zero *z, const struct zc_zero_step_how *how,
                              struct zc_zero_stepped *ret);

/**
 * Returns how many steps each tensor of a unit has made: ret_steps[ntensors of the unit], 0 for
 * frozen ones. A resumed job keeps the counts. Not collective.
 */
ZC_EXPORT int zc_zero_tensor_steps(struct zc_zero *z, uint32_t unit, uint64_t *ret_steps);
/**
 * Sets the step counts of the unit's n tensors, each below 2 to the 53; counts of frozen tensors
 * are ignored. For state that comes from elsewhere, written with zc_zero_write_on(). Bias
 * correction of the next step uses them. Collective, between two steps, with the same values on all
 * ranks (-EINVAL, final). Stored with the job from the next step on. -EINVAL: n or a count is
 * wrong. -EBUSY: the step is announced.
 */
ZC_EXPORT int zc_zero_set_tensor_steps(struct zc_zero *z, uint32_t unit, const uint64_t *steps,
                                       uint32_t n);

/** Statistics of a tensor's gradient. */
struct zc_zero_norm {
    /* without blocks that contain a value that is not finite */
    double sum_of_squares;
    float most;         /* the largest magnitude */
    uint64_t nonfinite; /* number of elements that are not finite */
};

/**
 * Returns the statistics of each trainable tensor (n must be their number), for the gradient that
 * was reduced so far in this step: summed over ranks and micro-steps, not divided. The same bits on
 * all ranks. Collective. -EBUSY: the step is announced.
 */
ZC_EXPORT int zc_zero_norms(struct zc_zero *z, struct zc_zero_norm *ret, uint32_t n);
/**
 * Returns the norm of all trainable tensors together; NaN if a value is not finite. Otherwise as
 * zc_zero_norms().
 */
ZC_EXPORT int zc_zero_norm(struct zc_zero *z, double *ret);

/**
 * Changes the optimizer of an engine that was opened with optimizer_late, before its first step.
 * Collective; may be called again. The state stays as it was placed: moments must be those of the
 * options, and the optimizer must not have more of them. With fewer they must be fp32; unused ones
 * stay zero and still take their space. (-ENOTSUP otherwise, and for a kept job.) So open with
 * AdamW and fp32 moments, which takes the most space. The scalars come with zc_zero_step_by(), or
 * from the options. -EBUSY: a step was made or announced.
 */
ZC_EXPORT int zc_zero_optimizer(struct zc_zero *z, enum zc_optimizer kind, enum zc_moments moments);

/**
 * Freezes a unit that was declared trainable, or makes it trainable again, from the next step on.
 * Collective, between two steps. Repeating the current state is allowed.
 *
 * While a unit is frozen, its gradient is not accepted (-EINVAL), exchanged or stored: do not call
 * zc_zero_reduce() for it; a micro-step is complete without it. Steps keep its weights, moments and
 * step counts bit for bit. Norms leave it out (those of its tensors are 0), and
 * zc_zero_stepped.left_alone does not count it. Its tensors keep their numbers and its state keeps
 * its place. Gathers, zc_zero_read() and zc_zero_write_on() work as before.
 *
 * Not saved: a resumed job has its units as declared, trainable; the trainer freezes them again.
 * Saved are the step counts of tensors, which do not include the steps that left them unchanged.
 *
 * -EINVAL: no such unit. -ENOTSUP: the unit was declared frozen, so it has no state to train with.
 * -EBUSY: on some rank a gradient of the next step was asked for, or the step is announced. After
 * these, nothing has changed on any rank. Different arguments on different ranks: -EINVAL, final. A
 * step fails while every unit is frozen (-EINVAL).
 */
ZC_EXPORT int zc_zero_freeze(struct zc_zero *z, uint32_t unit, bool frozen);

/**
 * Sets the scalars that torch.optim uses by default for this optimizer (Lion: those of its paper).
 */
ZC_EXPORT void zc_zero_group_defaults(enum zc_optimizer kind, struct zc_group *ret);

/**
 * Drops the gradients of this step on all ranks, with its micro-steps, its announcement, and the
 * reports about tensors; the step begins again. Nothing is counted: iterations, notes and the loss
 * scale stay. Gathered units stay gathered. Collective, between two steps. With micro_steps 0, a
 * micro-step in progress ends here, and all ranks must have begun the same number (-EINVAL, final).
 * Otherwise call it between two micro-steps (-EBUSY).
 */
ZC_EXPORT int zc_zero_abandon(struct zc_zero *z);

/**
 * Announces the learning rate of the next step, so that it begins during the last backward pass,
 * unit by unit, if state is streamed. Collective, between two steps, best before the last
 * micro-step. zc_zero_step() must then have the same lr (-EINVAL). Does nothing if there is nothing
 * to gain: without a daemon, without room, without ZC_ZERO_EARLY, with global clipping, or with
 * clipping by tensor where that does not allow it (`overlap`). If the step is skipped, nothing has
 * changed.
 */
ZC_EXPORT int zc_zero_announce(struct zc_zero *z, double lr);

/**
 * Announces the next step with these values, as zc_zero_announce() does with a learning rate.
 * zc_zero_step_by() must then have the same ones (-EINVAL). They are copied.
 *
 * With micro_steps 0 this needs options.announces and how->divide (-EINVAL), between two micro-steps
 * (-EBUSY). It says that the next micro-step, or, if gradients are held here, the exchange that the
 * step makes, is the step's last: another zc_zero_micro() is refused (-EBUSY). All ranks announce the
 * same steps. If a tensor of the step has no gradient on any rank, the step is refused (-EINVAL), unless
 * options.step_unused is set. Nothing has changed then but that gradients are used up: zc_zero_abandon()
 * begins the step again, also without an announcement.
 */
ZC_EXPORT int zc_zero_announce_by(struct zc_zero *z, const struct zc_zero_step_how *how);

/**
 * Finishes the step in progress, and makes the newest step durable if it is not; waits for both. On
 * failure the last commit is valid, and the engine stays usable. -ENOTSUP: there is no daemon.
 * -EINVAL: the job is not durable. Collective.
 */
ZC_EXPORT int zc_zero_commit(struct zc_zero *z);

#define ZC_ZERO_NOTE_MAX (ZC_NOTE_MAX - 32)

/**
 * Stores bytes of the trainer's own, at most ZC_ZERO_NOTE_MAX (-EINVAL), with the next step and
 * those after it, until they are replaced. They are this rank's note, or with of_job the job's,
 * which every rank must put with the same bytes. Copied.
 */
ZC_EXPORT int zc_zero_note_put(struct zc_zero *z, bool of_job, const void *note, size_t bytes);
/**
 * Reads the note of the newest step into buf, which has room for ZC_NOTE_MAX bytes; *ret_bytes is
 * its length. -ENOENT: there is none, or this rank did not exist when the step was saved.
 */
ZC_EXPORT int zc_zero_note_get(struct zc_zero *z, bool of_job, void *buf, size_t *ret_bytes);

/**
 * Adds each of n values over the ranks, in rank order: the same bits on every rank. n <= 4096.
 * Collective.
 */
ZC_EXPORT int zc_zero_sum(struct zc_zero *z, double *values, uint32_t n);

/**
 * Makes progress without waiting, during long computations: advances prefetches and reductions, and
 * reports a lost peer or daemon.
 */
ZC_EXPORT int zc_zero_poll(struct zc_zero *z);

/**
 * Reads elements [first, first + count) of a unit as fp32 on every rank, wherever they are stored:
 * ZC_PARAM (converted), ZC_MASTER, ZC_EXP_AVG or ZC_EXP_AVG_SQ, after the last step. A frozen unit
 * has no moments, and in bf16 no master (-EINVAL). Collective.
 */
ZC_EXPORT int zc_zero_read(struct zc_zero *z, uint32_t unit, enum zc_what what, uint64_t first,
                           uint64_t count, float *out);

/**
 * Reads in any dtype, and only into rank root's out (-1: on all ranks). Collective; with
 * gather_alone and a root only root's call does anything. Otherwise as zc_zero_read().
 *
 * Also reads ZC_GRAD: the gradient that was reduced so far in this step, undivided (-EBUSY: nothing
 * was, or the step is announced). With micro_steps 0, gradients in progress or held are exchanged
 * first. ZC_GRAD is always collective.
 */
ZC_EXPORT int zc_zero_read_on(struct zc_zero *z, int root, uint32_t unit, enum zc_what what,
                              uint64_t first, uint64_t count, enum zc_dtype dtype, void *out);
/**
 * Writes elements with rank root's values (-1: every rank passes the same values, and writes its
 * own slices): ZC_MASTER, which also changes the parameters to compute with, ZC_EXP_AVG or
 * ZC_EXP_AVG_SQ; of a frozen unit ZC_MASTER. Collective, between two steps. Later gathers see the
 * new values. Writing a master keeps the moments of its elements; before the first step it sets
 * them to zero, so write moments afterwards. A quantized unit is quantized again where it is
 * written, piece by piece. -EBUSY, on all ranks: the step is announced, or a rank holds the unit.
 */
ZC_EXPORT int zc_zero_write_on(struct zc_zero *z, int root, uint32_t unit, enum zc_what what,
                               uint64_t first, uint64_t count, enum zc_dtype dtype, const void *in);

/**
 * Bytes of the model states that belong to this rank, padded to blocks and equal slices: in this
 * process (on its device, if there is one), and in the daemon, in any tier; and of the buffers as
 * they are now.
 */
struct zc_zero_bytes {
    uint64_t param, grad, state;
    uint64_t daemon_param, daemon_grad, daemon_state;
    uint64_t gathered, reducing;
};

/** Computes the bytes from the declared units. Not collective. */
ZC_EXPORT void zc_zero_bytes(const struct zc_zero *z, struct zc_zero_bytes *ret);

struct zc_zero_stats {
    uint64_t fetched_bytes; /* fetched by this rank from the store */
    uint64_t pushed_bytes;
    /* by the daemon for this job, all ranks of the node */
    uint64_t nvme_read_bytes, nvme_written_bytes;
    /* bytes that the job holds in each tier of the daemon. Without a daemon, host_bytes is the size
     * of this process's model states */
    uint64_t host_bytes, nvme_bytes, gpu_bytes;
    /* most bytes of each kind of buffer that this process had at one time */
    uint64_t gather_buffer_bytes, grad_buffer_bytes;
    uint64_t device_bytes; /* most device bytes allocated at one time */
    uint64_t comm_bytes;   /* sent by this rank in all collectives */
    /* part of comm_bytes: gathers of parameters; reduce-scatters of gradients */
    uint64_t comm_gather_bytes, comm_reduce_bytes;
    /* part of comm_bytes: all-reduces, of DDP and between groups */
    uint64_t comm_across_bytes;
    double stall_seconds; /* spent waiting inside engine calls */
    /* part of nvme_bytes: gradients that host memory does not hold */
    uint64_t grads_nvme_bytes;
    /* host memory pinned for this rank's device: the daemon's parameters as mapped here, and
     * buffers. If the driver cannot pin read-only memory, the parameters are not pinned, and copies
     * are slower */
    uint64_t pinned_bytes;
    /* part of gpu_bytes: the job's parameters (ZC_ZERO_GPU); 0: they are not on the GPU */
    uint64_t gpu_params_bytes;
    /* why they are not, although requested; else "". Valid as long as the engine */
    const char *gpu_why;
    /* parameters that gathers have copied from host memory to the device, over its link */
    uint64_t gather_up_bytes;
    /* part of comm_gather_bytes: to ranks that have another daemon */
    uint64_t comm_nodes_bytes;
    /* how gathers are made: ZC_NODE_GATHER_COMM or ZC_NODE_GATHER_HOST */
    enum zc_node_gather node_gather;
    /* the reason, if that was not asked for: the times measured at the start, or why there was
     * nothing to choose; else "". Valid as long as the engine */
    const char *node_gather_why;
    /* parameters in GPU memory of the daemon that gathers through host memory have copied there */
    uint64_t gather_down_bytes;
};

/**
 * Returns counts since zc_zero_start(). Asks the daemon after the step in progress, so that steps
 * count whole: called right after zc_zero_step(), it waits for that step.
 */
ZC_EXPORT int zc_zero_stats(struct zc_zero *z, struct zc_zero_stats *ret);

#ifdef __cplusplus
}
#endif

#endif
