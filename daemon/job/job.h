/*
 * job.h - jobs, their ranks, units and shards: what they are, who may change them.
 *
 * A JOB is one training run.
 *
 *     DEFINING --> PLACING --> LOADING --> READY <--> STEPPING
 *         \           \           \          \           \
 *          +-----------+-----------+----------+-----------+--> ENDED
 *
 *     DEFINING  ranks arrive, define units and register shards        until every rank said ready
 *     PLACING   admission and layout are decided; a task makes the memory
 *     LOADING   a saved version is brought in (op/load.c); a new job has none, and passes through
 *     READY     fetch, push, write, read
 *     STEPPING  every rank asked for the step: op/step.c runs it; or a commit was asked for:
 *               op/commit.c
 *     ENDED     a rank of a job that is not kept was lost, its last rank left, a device failed, or
 *               destroy. Refuses everything with `why`; its bytes go back when nothing is in
 *               flight, the struct itself when its last rank has gone too. Its name is free at once
 *
 * A DURABLE job is the incarnation of a struct zsd_saved (store/saved.h), which is there from
 * PLACING on and outlives it once there was a commit. What the incarnation had beyond its commits
 * goes with it.
 *
 * A MEMBER is a rank that is connected: its staging, its pins, what it waits for.
 * A UNIT is what the manifest says. Fixed after DEFINING.
 * A SHARD is a range of a unit, and where each page of its planes lives.
 *
 * INVARIANTS
 *     J1  job->inflight counts whatever holds a pointer into the job from outside the loop thread:
 *         page operations, tasks, arenas being made. Bytes are given back only at 0.
 *     J2  job->pins is the sum of shard->pins, which is the sum of its struct zsd_pin; a pinned
 *         shard's parameter bytes do not move and do not change.
 *     J3  While a page operation works on a page, nothing else reads or writes it: fills, copies
 *         and pushes count in job->active, and a step begins only at pins == 0 and active == 0.
 *         What is stepped early changes no page; it reads them, and has the gradient to itself.
 *     J4  Every byte a job holds is in exactly one account (core->tiers.host, core->tiers.nvme) from PLACING
 *         on.
 */
#ifndef ZSD_JOB_H
#define ZSD_JOB_H

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

/** Every job, ended ones too while something holds them. */
struct zsd_jobs {
    struct zb_list list;
};

/* ---- shards: what is done with them is in shard.h */

/*
 * One plane of a shard. Pages [0, resident) are in memory at mem; the others live in their extents,
 * those of a gradient from their first push on, and those of the state before gpu_from. A resident
 * page of a durable job has an extent too while it is clean: while the data file holds the same
 * bytes.
 */
struct zsd_plane {
    uint32_t block_bytes, crc_bytes, crcs_per_page;
    uint32_t resident;
    uint8_t *mem;
    struct zsd_extent *extents; /* [npages]; NULL: no page of it ever goes to the data file */
    uint32_t *crcs;             /* [npages][crcs_per_page]: of the extents */
};

struct zsd_shard {
    uint64_t id; /* job number << 32 | index */
    struct zsd_job *job;
    struct zsd_unit *unit;
    uint32_t rank;         /* who registered it */
    uint64_t first, count; /* of the unit's elements; multiples of the block */
    uint32_t npages;
    uint64_t version; /* steps applied */
    struct zsd_plane planes[ZB_PLANES];
    /* re-planning (plan/replan.c): of its state, so many pages are wanted in memory, will be there
     * when the next step has made them, have memory, and are booked */
    uint32_t state_to, state_next, state_made, state_booked;
    /* and from these pages on it is on the GPU, now, and when the next step has moved it (plan/gpu_plan.c)
     */
    uint32_t gpu_from, gpu_next;
    struct zsd_row *row; /* what was committed or loaded last, if it is still all that there is */

    uint8_t *written;       /* one bit a page: has initial values */
    uint8_t *busy;          /* one bit a page: initial values are on their way */
    uint32_t pages_written; /* zsd_shard_written() */

    /* parameters in memory: offset in the arena, or in the GPU's memory of the job's parameters, or
     * ZB_NO_PLACE. Resident shards keep it; streamed
     * ones have it while cached, in a place of ring_class. */
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
    uint32_t micro;          /* micro-step being received */
    uint64_t grad_next;      /* elements of it that have come */
    uint32_t pushing;        /* pages on their way */
    int grad_rc;             /* a page failed: pushes end with it until none is on its way */
    struct zk_xsum grad_sum; /* of this micro-step's result */
    uint64_t grad_nonfinite;
    uint32_t grad_reads;         /* reads of it in progress: no push begins */
    struct zb_list push_waiters; /* pushes that may not begin yet, in order */
    bool grad_begun, grad_whole; /* there is some, it is complete: as its rank counts it */
    uint64_t grad_of; /* job->grads_of when it was looked at last: an older one has none */

    /* its step, ahead of the barrier: op/early.c */
    bool early;          /* begun: its gradient is complete, and belongs to the step */
    bool early_dropped;  /* what is in flight of it is not wanted any more */
    uint32_t early_next; /* pages from the first one with streamed state up to here were begun */
    uint32_t early_inflight; /* page operations: no push begins */
    struct zsd_held **held;  /* [npages] new bytes of pages, aside; NULL: there never were any */
    uint32_t early_held;     /* so many of these are there */
    struct zb_list early_node;
    struct zb_list early_all; /* in early->begun, while `early` */
    struct zb_list rank_node; /* in the shards of its rank */
};

/* What a rank registered, and what has come of its gradients: what a step asks of each rank, and
 * their norm, cost no walk over shards. */
struct zsd_rank {
    struct zb_list shards; /* in order of registration */
    uint32_t trained;      /* of them: those that are not frozen */
    uint32_t begun, whole; /* of those: with a part of a gradient at least, with a complete one */
    struct zk_xsum sum;    /* of the complete ones */
    uint64_t nonfinite;
};

struct zsd_pin {
    struct zsd_shard *shard;
    struct zsd_member *member;
    uint32_t count;
    struct zb_list shard_node, member_node;
};

/* ---- ranks */

struct zsd_member {
    struct zsd_job *job;
    struct zsd_conn *conn; /* NULL: gone; the struct lives until its staging is no longer read */
    uint32_t rank;
    struct zsd_arena staging;
    uint32_t staging_users; /* tasks that read or write it */
    struct zb_list pins;
    struct zsd_unit *defining; /* a unit whose parts are still coming */
    struct zsd_req *open_req;  /* job-open, not answered yet: no other request is taken */
    bool ready, writable;      /* ... and may write to the parameter arena */
    struct zsd_req *ready_req;
    struct zsd_timed ready_timed;
    struct zsd_req *step_req;
    struct zsd_timed step_timed;
    bool begun;                     /* said what the step will be, ahead of it */
    struct zsd_classes *classes;    /* of its next step, as far as it has said; op/classes.h */
    struct zsd_note note, job_note; /* for the next step */
    struct zb_list fetches;         /* in progress, of this rank */
    struct zb_list node;            /* in job->members */
};

/* ---- jobs */

enum zsd_job_state { ZSD_DEFINING, ZSD_PLACING, ZSD_LOADING, ZSD_READY, ZSD_STEPPING, ZSD_ENDED };

/* What a step or a commit request asks for; numbers as on the wire. */
enum zsd_commit_what { ZSD_COMMIT_NONE, ZSD_COMMIT, ZSD_PREPARE, ZSD_RESOLVE, ZSD_DROP };

/*
 * Each field has one room that writes it, which heads its group; op/new.c, which makes the struct and
 * frees it, may write all. tests/check_rooms.py holds that.
 */
struct zsd_job {
    /* ---- op/: who it is. Written once, when a rank opens it, but for the epoch. */
    struct zsd_core *core;
    uint32_t number;
    char name[ZP_NAME_MAX + 1];
    uid_t uid;
    struct zsd_quota quota; /* what it has of the daemon, and its user with it */
    uint32_t world, groups;
    enum zb_optimizer optimizer;
    enum zb_moments moments;
    bool keep, durable;
    bool again;                                       /* made of a saved one: its units are known */
    uint64_t epoch;                                   /* ranks of an older one are cut off */
    enum zp_offload offload_param, offload_optimizer; /* ZP_HOST, ZP_NVME */
    enum zp_offload offload_grad; /* ZP_HOST; else where they fit; not saved: each attach says it */
    uint64_t host_bytes_max;
    bool early_wish;       /* its ranks asked for room for early steps */
    uint32_t share_opened; /* as its ranks opened it */
    struct zsd_unit **units;
    uint32_t nunits;
    size_t units_room;
    uint32_t ntensors; /* of all units */
    struct zsd_shard **shards;
    uint32_t nshards;
    size_t shards_room;

    /* ---- job/: how it goes, and what holds it */
    enum zsd_job_state state; /* zsd_job_to() */
    struct zb_err why;        /* of ENDED */
    struct zb_err failed;     /* why the job will end, when `over` runs; code 0: it does not */
    uint32_t inflight;        /* J1 */
    uint32_t active, pins;
    struct zsd_rank *ranks; /* [world] */
    uint32_t live, writing; /* shards that have values, and those that get some */
    uint32_t micro_most;    /* no gradient has come further than this micro-step */
    uint64_t grads_of;      /* grows when all gradients are dropped: zsd_grads_reset() */
    struct zb_list members;
    struct zb_list node; /* in core->jobs->list */
    uint64_t nvme_read_bytes, nvme_written_bytes;
    /* Events; op/ says what they run: something that requests of the job may wait for has changed;
     * the job has failed, or it may be over. */
    struct zsd_work wake, over;

    /* ---- plan/: where its bytes live */
    bool placed;
    uint64_t
        place_least; /* host memory that it lacks at least, if others could give that; else 0 */
    struct zsd_want want;    /* while it waits for that, and others give up state for it */
    struct zsd_saved *saved; /* of a durable job that was placed, or is made of a saved one */
    struct zsd_arena arena;  /* parameters: the resident ones, then the ring */
    uint64_t arena_bytes, ring_bytes;
    uint8_t *memory; /* resident gradients, then state: addresses for all of it, memory for what is
                        resident */
    uint64_t memory_bytes;
    uint64_t grads_nvme_bytes; /* of gradients that live on NVMe */
    bool early_room;           /* there is room for early steps */
    struct zb_needs *promise;  /* of places on the data file; of a durable job it is its saved's */
    struct zb_slots ring;      /* regions of the arena */
    /* budget: unused; used: what is in the core's accounts. What a durable job holds of the data
     * file is its saved's. */
    struct zsd_account host_held, nvme_held;
    uint64_t staging_most; /* that its ranks ever had at one time: who comes back needs it again */
    struct zsd_replan *replan;     /* plan/replan.h */
    struct zsd_job_gpu *gpu;       /* plan/gpu_plan.h */
    struct zsd_job_params *params; /* plan/gpu_params.h */

    /* ---- op/: what its ranks ask for */
    bool seen;     /* by a rank whose open was not refused at once */
    bool writable; /* a rank was given the arena to write to: it may, and may have, from then on */
    uint32_t left; /* ranks that closed in good order */
    bool at_point; /* the ranks said where to resume: iterations `point` */
    uint64_t point;
    bool regained;    /* a rank came back: what was accumulated goes when every rank is ready */
    bool ready_waits; /* every rank is ready again, but the last pushes or a step still run */
    bool place_waits; /* PLACING: there is no room yet, but bytes are on their way back */
    struct zsd_version *from; /* PLACING, LOADING: what is brought in; held */
    uint64_t iterations, applied;
    struct zsd_note note;
    struct zsd_note *notes;       /* [world] */
    struct zsd_step_op *step;     /* op/step.h */
    bool draining;                /* STEPPING, and waits for pins and active to reach 0 */
    struct zsd_early *early;      /* op/early.h */
    uint32_t early_said;          /* ranks that said what the step will be, ahead of it */
    uint32_t early_inflight;      /* page operations of early steps, those of dropped ones too */
    struct zsd_commit_op *commit; /* in progress, or NULL */
    struct zsd_req *commit_req;   /* that asked for it, if it was a request */
    bool prepares;                /* its trainer commits in two phases */
    bool rewritten;               /* values were written since the last commit or load */
    bool
        retiring; /* saves what it has, then ends: for another world, or since others lack memory */
    bool stays;   /* it could not be saved: it is not asked again */
    struct zb_list room_waiters; /* fills that wait for a place in the ring */
    struct zsd_work room_work;
    uint64_t fetched_bytes, pushed_bytes;
    struct zsd_payer payer; /* its share of what all jobs want, and its places in their lines */

    /* ---- each counts its own: the counters of run/stats.h */
    struct zsd_job_stats stats;
};

/** Finds a job that is not ENDED. */
struct zsd_job *zsd_job_by_name(struct zsd_core *core, const char *name);
/** Somebody may come to have this name when a change that is in the line is over: a clone, or a job
 * that has ended in its first commit. */
bool zsd_job_name_coming(const struct zsd_core *core, const char *name);
/** The job of this connection's rank, which must be `number` and alive; else req is answered. */
struct zsd_member *zsd_member_of(struct zsd_req *req, uint64_t job);
/** A shard of the connection's job, which must be READY or STEPPING; else req is answered. */
struct zsd_shard *zsd_shard_of(struct zsd_req *req, uint64_t id);
/** The same, and one that this rank registered: only its rank writes and pushes to a shard.
 * `verb`: what for, in the error message. */
struct zsd_shard *zsd_shard_own(struct zsd_req *req, uint64_t id, const char *verb);
/** As zsd_shard_of(), without a request: NULL and err. */
struct zsd_shard *zsd_shard_find(struct zsd_conn *conn, uint64_t id, struct zb_err *err);
/** len_bytes at an offset of the rank's staging: NULL when it is not inside, or off is not
 * 64-aligned. */
void *zsd_staging_at(struct zsd_member *m, uint64_t off, uint64_t len_bytes);

/** Moves the job to another state, which must be one that the picture above allows. */
void zsd_job_to(struct zsd_job *job, enum zsd_job_state state);
/** Ends it: state and reason. For op/end.c, which does all else that belongs to that. */
void zsd_job_ended(struct zsd_job *job, const struct zb_err *why);
/** Counts bytes that were read from the data file, and written to it, for the job. */
void zsd_job_moved(struct zsd_job *job, uint64_t read_bytes, uint64_t written_bytes);
/** The job will end, soon: everyone is told the first reason. */
void zsd_job_fail(struct zsd_job *job, const struct zb_err *why);

/** Whatever holds the job from outside the loop (J1). */
void zsd_job_hold(struct zsd_job *job);
void zsd_job_unhold(struct zsd_job *job);
/** Fills, copies and pushes (J3). */
void zsd_job_active(struct zsd_job *job);
void zsd_job_idle(struct zsd_job *job);
/** All of its shards have values. */
bool zsd_job_live(const struct zsd_job *job);
/** Initial values of a shard are being written. */
bool zsd_job_writing(const struct zsd_job *job);
/** A commit is over, or what was prepared is resolved: whoever waits for that goes on. */
void zsd_job_committed(struct zsd_job *job);
/** Ranks that are attached. */
uint32_t zsd_job_attached(const struct zsd_job *job);
/** A step is over, or was given up: whoever waits for that goes on. */
void zsd_job_stepped(struct zsd_job *job);

struct zsd_member *zsd_member_new(struct zsd_job *job, struct zsd_conn *conn, uint32_t rank);
/** The one that is attached, or NULL. */
struct zsd_member *zsd_member_by_rank(struct zsd_job *job, uint32_t rank);
/** Tells every rank, of what became of `rank`. */
void zsd_job_tell(struct zsd_job *job, uint16_t event, uint32_t rank, const struct zb_err *why);

#endif
