/*
 * job.h - the structs of jobs, ranks, units and shards, and which code may change them.
 *
 * A JOB is one training run.
 *
 *     DEFINING --> PLACING --> LOADING --> READY <--> STEPPING
 *         \           \           \          \           \
 *          +-----------+-----------+----------+-----------+--> ENDED
 *
 *     DEFINING  ranks arrive, define units and register shards, until every rank has called ready
 *     PLACING   admission and layout are decided; a task allocates the memory
 *     LOADING   a saved version is read (op/load.c); a new job has none, and passes through
 *     READY     fetch, push, write, read
 *     STEPPING  every rank has requested the step, which op/step.c runs; or a commit was requested:
 *               op/commit.c
 *     ENDED     a rank of a job that is not kept was lost, its last rank left, a device failed, or
 *               it was destroyed. Every request is rejected with `why`. Its memory is freed when
 *               nothing is in flight, and the struct when its last rank has left too. Its name can
 *               be used again at once
 *
 * A DURABLE job is the incarnation of a struct zsd_saved (store/saved.h), which exists from PLACING
 * on, and outlives it after the first commit. State that was not committed is lost with the
 * incarnation.
 *
 * A MEMBER is a rank that is connected: its staging, its pins, what it waits for.
 * A UNIT is an entry of the manifest. It is fixed after DEFINING.
 * A SHARD is a range of a unit, with the place of each page of its planes.
 *
 * INVARIANTS
 *     J1  job->inflight counts everything outside the loop thread that holds a pointer into the
 *         job: page operations, tasks, arenas being allocated. Memory is freed only at 0.
 *     J2  job->pins is the sum of shard->pins, which is the sum of its struct zsd_pin. The
 *         parameter bytes of a pinned shard do not move and do not change.
 *     J3  While a page operation works on a page, nothing else reads or writes it: fills, copies
 *         and pushes count in job->active, and a step begins only at pins == 0 and active == 0.
 *         An early step changes no page: it reads them, and has the gradient to itself.
 *     J4  Every byte a job holds is in exactly one account (core->tiers.host, core->tiers.nvme)
 *         from PLACING on.
 */
#ifndef ZSD_JOB_H
#define ZSD_JOB_H

#include "base/muon.h"
#include "base/place.h"
#include "base/slots.h"
#include "daemon/net/conn.h"
#include "daemon/os/arena.h"
#include "daemon/run/stats.h"
#include "daemon/store/saved.h"
#include "proto/wire.h"

struct zk_gpu_mem;
struct zsd_classes;
struct zsd_early;
struct zsd_fill;
struct zsd_held;
struct zsd_job_gpu;
struct zsd_job_params;
struct zsd_replan;
struct zsd_step_op;
struct zsd_commit_op;
struct zsd_muon;
struct zk_gpu_ortho;
struct zsd_tensors;

/** All jobs, including ended ones that something still holds. */
struct zsd_jobs {
    struct zb_list list;
};

/* ---- shards: functions on them are in shard.h */

/*
 * One plane of a shard. Pages [0, resident) are in memory at mem. The others are in their extents:
 * those of a gradient from their first push on (unless the job has a ring of gradients: then they are
 * nowhere, or in a room, op/early_room.c), those of the state if they are before gpu_from. A
 * resident page of a durable job also has an extent while it is clean, that is, while the data file
 * has the same bytes.
 */
struct zsd_plane {
    uint32_t block_bytes, crc_bytes, crcs_per_page;
    uint32_t resident;
    uint8_t *mem;
    struct zsd_extent *extents; /* [npages]; NULL: no page is ever on the data file */
    uint32_t *crcs;             /* [npages][crcs_per_page]: of the extents */
};

/* What the trainer has said about itself: as in JobAbout. */
struct zsd_about {
    uint32_t clip_mode, early;
    double clip, clip_ratio;
    uint64_t clip_warm_until, frozen_tensors, frozen_bytes;
};

struct zsd_shard {
    uint64_t id; /* job number << 32 | index */
    struct zsd_job *job;
    struct zsd_unit *unit;
    uint32_t rank;         /* the one that registered it */
    uint64_t first, count; /* elements of the unit; multiples of the block */
    uint32_t npages;
    uint64_t version; /* steps applied */
    struct zsd_plane planes[ZB_PLANES];
    /* re-planning (plan/replan.c): number of pages of its state that are wanted in memory, will be
     * there after the next step, have memory, and are booked */
    uint32_t state_to, state_next, state_made, state_booked;
    /* first page of its state on the GPU: now, and after the next step (plan/gpu_plan.c) */
    uint32_t gpu_from, gpu_next;
    uint64_t gpu_at; /* where its state begins in that of all shards of its GPU: plan/gpu_runs.c */
    struct zsd_row *row; /* last committed or loaded row, while no page has changed since */

    uint8_t *written;       /* one bit per page: it has initial values */
    uint8_t *busy;          /* one bit per page: initial values are being written */
    uint32_t pages_written; /* zsd_shard_written() */

    /* parameters in memory: offset in the arena, or in the memory of the job's parameters on the
     * GPU of its rank; or ZB_NO_PLACE. Resident shards always have one; streamed shards while cached, in a place of
     * ring_class. */
    uint64_t arena_at;
    uint32_t ring_class;
    struct zb_list lru; /* in its ring class's list while cached and unpinned */
    struct zsd_fill *fill;

    uint32_t pins;
    struct zb_list pin_list; /* struct zsd_pin */
    uint32_t copies;         /* writes and reads in progress */
    bool writing;            /* zsd_shard_writing() */
    struct zb_list waiters;  /* fetches that wait for this shard: struct zsd_work */

    /* the gradient of iteration job->iterations + 1 */
    uint32_t micro;     /* micro-step being received */
    uint64_t grad_next; /* elements of it that were accepted */
    uint32_t pushing;   /* pages in flight */
    int grad_rc;        /* error of a failed page: pushes fail with it until none is in flight */
    struct zk_xsum grad_sum; /* of the result of this micro-step */
    uint64_t grad_nonfinite;
    struct zk_xsum
        *tensor_sums;    /* by trainable tensor of the unit; NULL: not summed; op/tensors.c */
    uint32_t grad_reads; /* reads of it in progress; no push begins meanwhile */
    struct zb_list push_waiters; /* pushes that may not begin yet, in order */
    bool grad_begun, grad_whole; /* a part exists; it is complete: as counted in struct zsd_rank */
    uint64_t grad_of;            /* job->grads_of when it was set; older: there is no gradient */

    /* stepping it before the barrier: op/early.c */
    bool early;       /* begun: its gradient is complete, and belongs to the step */
    bool ringed;      /* pages whose gradient is not held were begun */
    bool roomed;      /* gradients of such pages were taken into the room of its unit */
    uint64_t room_at; /* where its gradient begins there */
    bool early_used;  /* a page that has a gradient was begun: it is lost if the step is dropped */
    bool early_dropped;  /* results of operations in flight are to be discarded */
    uint32_t early_next; /* pages from the first one with streamed state up to here were begun */
    uint32_t
        early_inflight; /* early page operations in flight; if dropped, no push begins meanwhile */
    struct zsd_held **held; /* [npages] results that are not published; NULL: none so far */
    uint32_t early_held;    /* number of these */
    struct zb_list early_node;
    struct zb_list early_all; /* in early->begun, while `early` or `ringed` */
    struct zb_list rank_node; /* in the shards of its rank */
};

/* The shards of a rank, and counts of their gradients: so the checks of a step, and norms, need no
 * loop over shards. */
struct zsd_rank {
    struct zb_list shards; /* in order of registration */
    uint32_t gpu;          /* the GPU of its shards: plan/gpu_runs.c; 0 without a GPU tier */
    int near;              /* the NUMA node where its memory should be; ZSD_NEAR_NONE */
    /* its resident parameters in the arena, its gradients in job->memory: plan/tables.c */
    uint64_t arena_at, arena_bytes, grads_at, grads_bytes;
    uint32_t trained;      /* number of shards that are not frozen */
    uint32_t begun, whole; /* number of these with a part of a gradient, and with a complete one */
    struct zk_xsum sum;    /* of the complete gradients */
    uint64_t nonfinite;
};

struct zsd_pin {
    struct zsd_shard *shard;
    struct zsd_member *member;
    uint32_t count;
    struct zb_list shard_node, member_node;
};

/* ---- ranks */

/* The values by tensor that a rank has sent. */
struct zsd_values_sent {
    uint64_t step; /* for this step */
    uint32_t n;
};

struct zsd_member {
    struct zsd_job *job;
    struct zsd_conn *conn; /* NULL: closed; the struct exists until its staging is no longer used */
    uint32_t rank;
    uint32_t gpu; /* the one that it computes on, if it is the daemon's; else ZSD_NO_GPU */
    int near;     /* the NUMA node that is near its GPU; ZSD_NEAR_NONE */
    struct zsd_arena staging;
    uint32_t staging_users; /* tasks that read or write it */
    struct zb_list pins;
    struct zsd_unit *defining; /* a unit that has not arrived completely */
    struct zsd_req *open_req;  /* job-open, not answered yet: no other request is accepted */
    bool ready, writable;      /* called ready; may write to the parameter arena */
    bool returns;              /* attaches again when the daemon was restarted */
    struct zsd_req *ready_req;
    struct zsd_timed ready_timed;
    struct zsd_req *step_req;
    struct zsd_timed step_timed;
    bool begun;                  /* called step-begin for the next step */
    struct zsd_classes *classes; /* of its next step, as received so far; op/classes.h */
    struct zsd_values_sent limits_sent, factors_sent; /* op/tensors.h */
    struct zsd_note note, job_note;                   /* for the next step */
    struct zb_list fetches;                           /* in progress, of this rank */
    struct zb_list node;                              /* in job->members */
};

/* ---- jobs */

enum zsd_job_state { ZSD_DEFINING, ZSD_PLACING, ZSD_LOADING, ZSD_READY, ZSD_STEPPING, ZSD_ENDED };

/* What a step or a commit request asks for; numbers as in the protocol. */
enum zsd_commit_what { ZSD_COMMIT_NONE, ZSD_COMMIT, ZSD_PREPARE, ZSD_RESOLVE, ZSD_DROP };

/*
 * Each field is written by one room, named in the heading of its group. op/new.c, which creates and
 * frees the struct, may write all. tests/check_rooms.py checks that.
 */
struct zsd_job {
    /* ---- op/: its identity. Written once, when a rank opens it, except for the epoch. */
    struct zsd_core *core;
    uint32_t number;
    char name[ZP_NAME_MAX + 1];
    uid_t uid;
    struct zsd_quota quota; /* charges its user, too */
    uint32_t world, groups;
    enum zb_optimizer optimizer;
    enum zb_moments moments;
    enum zb_muon_engine muon_engine;
    bool keep, durable;
    bool again;     /* loaded from a saved job: its units are known */
    uint64_t epoch; /* ranks of an older one are disconnected */
    enum zp_offload offload_param, offload_optimizer; /* ZP_HOST, ZP_NVME */
    enum zp_offload offload_grad; /* ZP_HOST, else anywhere; not saved: each attach sets it */
    uint64_t host_bytes_max;
    bool early_wish;       /* its ranks requested room for early steps */
    bool ring_wish;        /* they requested that gradients of streamed pages are not held, */
    uint32_t ring_keep;    /* but those of so many percent of each shard's pages; */
    bool limits_wish;      /* and that steps with limits can begin early nevertheless */
    bool tensor_norms;     /* they requested norms of single tensors; not saved, like that */
    uint32_t share_opened; /* as its ranks opened it */
    struct zsd_unit **units;
    uint32_t nunits;
    size_t units_room;
    uint32_t ntensors; /* of all units */
    struct zsd_shard **shards;
    uint32_t nshards;
    size_t shards_room;

    /* ---- job/: its state, and what holds it */
    enum zsd_job_state state; /* zsd_job_to() */
    struct zb_err why;        /* of ENDED */
    struct zb_err failed;     /* why the job will end, when `over` runs; code 0: it will not */
    uint32_t inflight;        /* J1 */
    uint32_t active, pins;
    struct zsd_rank *ranks; /* [world] */
    uint32_t live, writing; /* number of shards with values, and of those being written */
    uint32_t micro_most;    /* the highest micro-step for which a gradient has arrived */
    uint64_t grads_of;      /* grows when all gradients are dropped: zsd_grads_reset() */
    struct zb_list members;
    struct zb_list node; /* in core->jobs->list */
    uint64_t nvme_read_bytes, nvme_written_bytes;
    /* Events, handled by op/. wake: something that requests of the job may wait for has changed.
     * over: the job has failed, or may have ended. */
    struct zsd_work wake, over;

    /* ---- plan/: where its bytes are */
    bool placed;
    uint64_t place_least;    /* the least host memory that it lacks, if others could free that much;
                                else 0 */
    struct zsd_want want;    /* its request for that memory, which others free for it */
    struct zsd_saved *saved; /* durable: since placement; made again: from the start */
    struct zsd_saved *image; /* not durable: made for a restart, or loaded from; plan/image.h */
    struct zsd_arena arena;  /* parameters: the resident ones, then the ring */
    uint64_t arena_bytes, ring_bytes;
    uint8_t *memory; /* resident gradients, then state: addresses for all of it, memory for the
                        resident part */
    uint64_t memory_bytes;
    uint64_t grads_nvme_bytes; /* of gradients on NVMe */
    bool early_room;           /* there is room for early steps */
    struct zsd_about about;    /* op/about.c */
    bool grad_ring;        /* pages of gradients that are not resident are nowhere: op/early.c */
    uint64_t grads_ringed; /* bytes of these */
    bool ring_limits;      /* they are nowhere only in announced steps, whose limits need rooms; */
    uint64_t room_bytes;   /* the memory of these, at the beginning of `memory` */
    struct zb_muon_room muon_room; /* plan/muon.h */
    uint64_t muon_most_bytes;      /* what it has if the host tier has room for it */
    uint8_t *muon_at;              /* the matrices, then the slots, then the scratch memory */
    struct zsd_muon_gpu {          /* muon_engine on a GPU */
        uint32_t g;                /* the device */
        uint64_t bytes, booked;    /* of it; booked is 0 before and after */
        struct zk_gpu_ortho *ortho;
    } muon_gpu;
    struct zb_needs *promise; /* of places on the data file; for a durable job, that of `saved` */
    struct zb_slots ring;     /* regions of the arena */
    /* its part of the core's accounts; the budget is not used. `saved` has what a durable job holds
     * on the data file. */
    struct zsd_account host_held, nvme_held, gpu_held;
    uint64_t staging_most; /* maximum that its ranks had at one time; kept for ranks that rejoin */
    struct zsd_replan *replan;      /* plan/replan.h */
    struct zsd_job_gpu *gpu;        /* [ZSD_GPUS_MAX]: plan/gpu_plan.h */
    struct zsd_job_params *params;  /* plan/gpu_params.h */
    struct zsd_leaving leaving;     /* frees its shards' places when it has ended: plan/tables.h */
    uint32_t left_shard, left_page; /* the next ones to free */

    /* ---- op/: requests of its ranks */
    bool seen;     /* an open of it was not rejected at once */
    bool writable; /* a rank got a writable arena: it may write at any time, or has written */
    uint32_t left; /* number of ranks that closed the job properly */
    bool at_point; /* the ranks chose to resume from iteration `point` */
    uint64_t point;
    bool regained;    /* a rank has rejoined: gradients are dropped when every rank is ready */
    bool ready_waits; /* every rank is ready again, but the last pushes or a step still run */
    bool place_waits; /* PLACING: no room yet, but memory is being freed */
    struct zsd_version *from; /* PLACING, LOADING: the version to load; held */
    uint64_t iterations, applied;
    struct zsd_note note;
    struct zsd_note *notes;       /* [world] */
    struct zsd_step_op *step;     /* op/step.h */
    bool draining;                /* STEPPING, and waits for pins and active to reach 0 */
    struct zsd_early *early;      /* op/early.h */
    struct zsd_tensors *tensors;  /* op/tensors.h; NULL: not needed so far */
    struct zsd_muon *muon;        /* op/muon.h; NULL: another optimizer */
    uint32_t early_said;          /* number of ranks that called step-begin */
    uint32_t early_inflight;      /* page operations of early steps, also of dropped ones */
    struct zsd_commit_op *commit; /* in progress, or NULL */
    struct zsd_req *commit_req;   /* the request for it, if there was one */
    bool prepares;                /* its trainer commits in two phases */
    bool rewritten;               /* values were written since the last commit or load */
    bool retiring;         /* saves its state, then ends: another world, or others need memory */
    bool stays;            /* it could not be saved, and is not retired again */
    struct zb_list pushes; /* those that wait in the queues of their shards */
    uint64_t grads_busy;   /* pages of pushes, and reads of gradients, that are in progress */
    struct zb_list room_waiters; /* fills that wait for a place in the ring */
    struct zsd_work room_work;
    uint64_t fetched_bytes, pushed_bytes;
    struct zsd_payer payer; /* its share of shared resources, and its places in their queues */

    /* ---- show/: whether the survey in progress has its pages: fsck's, df's */
    bool surveyed[2];

    /* ---- counters: each is written where it counts (run/stats.h) */
    struct zsd_job_stats stats;
};

/** A job as a request names it: the uid of its owner, and its name ("": all that the client sees). */
struct zsd_named {
    uid_t uid;
    const char *name;
};

/** Whose job a request means. owner: 0, or 1 + a uid, as in the protocol. Without an owner: a job of
 * the client's own user; for an administrator who has none of this name, the only one of that name.
 * Whether there is such a job, and the client may see it, is for the caller to check. 0; -EINVAL:
 * several users have one, and err lists them. */
int zsd_job_named(const struct zsd_req *req, uint64_t owner, const char *name,
                  struct zsd_named *ret, struct zb_err *err);
/** The same, and finds the job: saved, in memory, or neither (NULL). False: several users have one, and
 * req was answered. */
bool zsd_job_find(struct zsd_req *req, uint64_t owner, const char *name, struct zsd_named *named,
                  struct zsd_saved **saved, struct zsd_job **job);
/** Finds a job that is not ENDED. */
struct zsd_job *zsd_job_by_name(struct zsd_core *core, uid_t uid, const char *name);
/** Whether a queued change may give this name to a job: a clone, or a job that has ended during its
 * first commit. */
bool zsd_job_name_coming(const struct zsd_core *core, uid_t uid, const char *name);
/** The rank of this connection, whose job must be `job` and not ENDED; else req is answered. */
struct zsd_member *zsd_member_of(struct zsd_req *req, uint64_t job);
/** A shard of the connection's job, which must be READY or STEPPING; else req is answered. */
struct zsd_shard *zsd_shard_of(struct zsd_req *req, uint64_t id);
/** The same, and one that this rank registered: only its rank writes and pushes to a shard.
 * `verb`: the action, for the error message. */
struct zsd_shard *zsd_shard_own(struct zsd_req *req, uint64_t id, const char *verb);
/** As zsd_shard_of(), without a request: NULL and err. */
struct zsd_shard *zsd_shard_find(struct zsd_conn *conn, uint64_t id, struct zb_err *err);
/** len_bytes at an offset of the rank's staging. NULL: not inside, or off is not 64-aligned. */
void *zsd_staging_at(struct zsd_member *m, uint64_t off, uint64_t len_bytes);

/** Moves the job to another state; the picture above must allow it. */
void zsd_job_to(struct zsd_job *job, enum zsd_job_state state);
/** Sets the state ENDED and the reason. For op/end.c, which does everything else. */
void zsd_job_ended(struct zsd_job *job, const struct zb_err *why);
/** Counts bytes read from and written to the data file for the job. */
void zsd_job_moved(struct zsd_job *job, uint64_t read_bytes, uint64_t written_bytes);
/** Ends the job soon. All ranks get the first reason. */
void zsd_job_fail(struct zsd_job *job, const struct zb_err *why);

/** Holds the job for something outside the loop (J1). */
void zsd_job_hold(struct zsd_job *job);
void zsd_job_unhold(struct zsd_job *job);
/** Counts a fill, copy or push (J3). */
void zsd_job_active(struct zsd_job *job);
void zsd_job_idle(struct zsd_job *job);
/** Whether all of its shards have values. */
bool zsd_job_live(const struct zsd_job *job);
/** Whether initial values of a shard are being written. */
bool zsd_job_writing(const struct zsd_job *job);
/** Resumes requests that wait for the end of a commit, or of a prepared step. */
void zsd_job_committed(struct zsd_job *job);
/** Number of attached ranks. */
uint32_t zsd_job_attached(const struct zsd_job *job);
/** Resumes requests that wait for the end of a step. */
void zsd_job_stepped(struct zsd_job *job);

struct zsd_member *zsd_member_new(struct zsd_job *job, struct zsd_conn *conn, uint32_t rank);
/** The attached member with this rank, or NULL. */
struct zsd_member *zsd_member_by_rank(struct zsd_job *job, uint32_t rank);
/** Sends every rank an event about `rank`. */
void zsd_job_tell(struct zsd_job *job, uint16_t event, uint32_t rank, const struct zb_err *why);

#endif
