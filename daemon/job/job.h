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
 *     LOADING   a saved version is brought in (load.c); a new job has none, and passes through
 *     READY     fetch, push, write, read
 *     STEPPING  every rank asked for the step: op/step.c runs it; or a commit was asked for:
 *               op/commit.c
 *     ENDED     a rank of a job that is not kept was lost, its last rank left, a device failed, or
 *               destroy. Refuses everything with `why`; its bytes go back when nothing is in
 *               flight, the struct itself when its last rank has gone too. Its name is free at once
 *
 * A DURABLE job is the incarnation of a struct zsd_saved (store.h), which is there from PLACING on
 * and outlives it once there was a commit. What the incarnation had beyond its commits goes with
 * it.
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
 *     J4  Every byte a job holds is in exactly one account (core->host, core->nvme) from PLACING
 *         on.
 */
#ifndef ZSD_JOB_H
#define ZSD_JOB_H

#include "base/place.h"
#include "daemon/run/core_priv.h"
#include "kernels/zk_page.h"
#include "proto/frame.h"

#define ZSD_TENSORS_MAX \
    (1u << 18) /* of one job, in all units: what their names take stays below 64 MiB */

struct zk_gpu_mem;
struct zk_gpu_strand;
struct zsd_fill;
struct zsd_held;
struct zsd_member;
struct zsd_row;
struct zsd_saved;
struct zsd_version;

/* ---- shards */

struct zsd_extent {
    uint64_t at; /* of the data file; ZB_NO_PLACE: not written yet */
    uint64_t generation;
    uint32_t job; /* whose pages they were when written: a clone has its original's */
};

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

    uint8_t *written; /* one bit a page: has initial values */
    uint8_t *busy;    /* one bit a page: initial values are on their way */
    uint32_t pages_written;

    /* parameters in memory: offset in the arena, or in the GPU's memory of the job's parameters, or
     * ZB_NO_PLACE. Resident shards keep it; streamed
     * ones have it while cached, in a place of ring_class. */
    uint64_t arena_at;
    uint32_t ring_class;
    struct zb_list lru; /* in job->cached while cached and unpinned */
    struct zsd_fill *fill;

    uint32_t pins;
    struct zb_list pin_list; /* struct zsd_pin */
    uint32_t copies;         /* writes and reads in progress */
    bool writing;
    struct zb_list waiters; /* fetches that wait for this shard: struct zsd_work */

    /* the gradient of iteration job->iterations + 1 */
    uint32_t micro;          /* micro-step being received */
    uint64_t grad_next;      /* elements of it that have come */
    uint32_t pushing;        /* pages on their way */
    int grad_rc;             /* a page failed: pushes end with it until none is on its way */
    struct zk_xsum grad_sum; /* of this micro-step's result */
    uint64_t grad_nonfinite;
    uint32_t grad_reads;         /* reads of it in progress: no push begins */
    struct zb_list push_waiters; /* pushes that may not begin yet, in order */

    /* its step, ahead of the barrier: op/early.c */
    bool early;          /* begun: its gradient is complete, and belongs to the step */
    bool early_dropped;  /* what is in flight of it is not wanted any more */
    uint32_t early_next; /* pages from the first one with streamed state up to here were begun */
    uint32_t early_inflight; /* page operations: no push begins */
    struct zsd_held **held;  /* [npages] new bytes of pages, aside; NULL: there never were any */
    struct zb_list early_node;
};

struct zsd_pin {
    struct zsd_shard *shard;
    struct zsd_member *member;
    uint32_t count;
    struct zb_list shard_node, member_node;
};

/* ---- units */

struct zsd_tensor {
    char name[ZP_TENSOR_MAX + 1];
    uint64_t first, count;
    uint32_t ndims, group;
    uint64_t dims[ZP_DIMS_MAX];
};

struct zsd_unit {
    char name[ZP_NAME_MAX + 1];
    uint32_t index;
    uint64_t elems;
    struct zb_layout layout;
    struct zsd_tensor *tensors;
    uint32_t ntensors, tensors_room;
    struct zk_segment *segments; /* of stepped elements; neighbours of one group are one */
    uint32_t nsegments;
    struct zsd_shard **shards; /* by first element */
    uint32_t nshards, shards_room;
};

/* ---- ranks */

/* A note on its way in, in parts. */
struct zsd_note {
    uint8_t *data;
    uint32_t total, got;
    uint64_t iteration; /* that it belongs to, once kept */
};

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
    struct zsd_note note, job_note; /* for the next step */
    struct zb_list fetches;         /* in progress, of this rank */
    struct zb_list node;            /* in job->members */
};

/* ---- jobs */

enum zsd_job_state { ZSD_DEFINING, ZSD_PLACING, ZSD_LOADING, ZSD_READY, ZSD_STEPPING, ZSD_ENDED };

/* What a step or a commit request asks for; numbers as on the wire. */
enum zsd_commit_what { ZSD_COMMIT_NONE, ZSD_COMMIT, ZSD_PREPARE, ZSD_RESOLVE, ZSD_DROP };

/* The step that ranks ask for, and its progress. op/step.c */
struct zsd_step_op {
    bool asked; /* by at least one rank */
    bool skip;
    enum zsd_commit_what commit; /* none, commit or prepare */
    struct zb_err commit_err;    /* why it could not be committed */
    uint64_t step;
    double scale;
    struct zk_params params[ZP_GROUPS_MAX];
    struct zk_scalars by_group[ZP_GROUPS_MAX];
    struct zsd_work work;
    bool draining;   /* waits for pins and active to reach 0 */
    bool committing; /* all pages are stepped */
    struct zsd_step_walk {
        uint32_t next_shard, next_page;
        uint32_t inflight;
    } resident, streamed, gpu; /* each through all shards, over pages of its kind */
    uint32_t *pages_left;      /* [nshards] */
};

/* What the ranks said of the step ahead of it, and what is done by then. op/early.c */
struct zsd_early {
    uint32_t said;   /* ranks that have; all: shards whose gradient is complete are stepped */
    uint32_t micros; /* micro-steps of this step */
    double scale;
    struct zk_params params[ZP_GROUPS_MAX];
    bool prepared;         /* step.by_group is that of this step */
    struct zb_err err;     /* the first page that failed: the step will be refused with it */
    uint32_t inflight;     /* page operations, those of dropped steps too */
    struct zb_list shards; /* with pages to begin */
    struct zsd_work work;
};

/* Where its optimizer state lives is planned again: plan/replan.c. */
struct zsd_replan {
    uint64_t all_bytes;    /* of the state of all its shards */
    uint64_t target_bytes; /* of it, that it was to have in memory when that was divided last */
    uint64_t giving_bytes; /* booked still; their memory is on its way back */
    uint64_t used_bytes;   /* of the job's memory, that the engines know */
    uint64_t stepped_ns;   /* when its last step was over; 0: none was, since it is in memory */
    uint64_t step_ns;      /* from the one before to that */
    bool busy;             /* a task makes memory, or gives it back */
    bool shrinks;          /* something shall leave memory */
    bool moved;            /* in the step that runs, something has come or left */
    bool refused;          /* there were no places for what should have left: it was logged */
};

/* What of its state lives on the GPU: plan/gpu_plan.c. */
struct zsd_job_gpu {
    struct zb_gpu_run *runs;  /* all of its state, from the end; NULL: it was never planned */
    struct zk_gpu_mem **mems; /* [nruns] */
    uint32_t nruns;
    uint32_t to, made;   /* the first so many: wanted, and allocated */
    uint64_t held_bytes; /* booked, with what is being given back */
    bool busy;           /* a task makes memory, or gives it back */
    bool refused;        /* there was no memory, or no places below: it was logged */
    bool pinned;         /* its host memory is, as far as the driver did that */
};

/* Its parameters on the GPU, all of them or none: plan/gpu_params.c. */
struct zsd_job_params {
    bool asked;             /* its ranks asked for that; not saved: each attach says it */
    bool barred;            /* one of them does not see our device */
    char why[192];          /* asked for, and they are in the arena: why; "" */
    uint64_t bytes;         /* of all of them, where they are there; else 0 */
    uint64_t booked;        /* as the device gives memory */
    uint64_t tag;           /* of mem: no other job's ever has it, nor this one's made again */
    struct zk_gpu_mem *mem; /* shards lie in it as they would in the arena */
    bool held;              /* given back, and somebody has it mapped still */
};

struct zsd_commit_op;
struct zsd_load_op;

struct zsd_job {
    struct zsd_core *core;
    uint32_t number;
    char name[ZP_NAME_MAX + 1];
    uid_t uid;
    uint32_t world, groups;
    enum zb_optimizer optimizer;
    enum zb_moments moments;
    bool keep, durable;
    uint64_t epoch;                            /* ranks of an older one are cut off */
    uint32_t offload_param, offload_optimizer; /* 1 host, 2 nvme */
    uint32_t offload_grad; /* 1 host, else where they fit; not saved: each attach says it */
    uint64_t host_bytes_max;
    struct zsd_saved *saved; /* of a durable job that was placed, or is made of a saved one */
    bool again;              /* made of a saved one: its units are known */
    bool at_point;           /* the ranks said where to go on: iterations `point` */
    uint64_t point;
    struct zsd_commit_op *commit; /* in progress, or NULL */
    struct zsd_req *commit_req;   /* that asked for it, if it was a request */
    bool prepares;                /* its trainer commits in two phases */
    bool rewritten;               /* values were written since the last commit or load */
    struct zsd_version *from;     /* PLACING, LOADING: what is brought in; held */
    bool
        retiring; /* saves what it has, then ends: for another world, or since others lack memory */
    bool stays;   /* it could not be saved: it is not asked again */
    enum zsd_job_state state;
    struct zb_err why; /* of ENDED */
    bool placed;
    bool seen;         /* by a rank whose open was not refused at once */
    uint32_t inflight; /* J1 */
    uint32_t active, pins;
    uint32_t left;        /* ranks that closed in good order */
    bool regained;        /* a rank came back: what was accumulated goes when every rank is ready */
    bool place_waits;     /* PLACING: there is no room yet, but bytes are on their way back */
    uint64_t place_least; /* that it lacks at least, if others could give that; else 0 */
    struct zsd_want want; /* while place_waits, and others give up state for it */
    bool ready_waits;     /* every rank is ready again, but the last pushes or a step still run */
    struct zb_list members;
    struct zb_list node; /* in core->jobs */

    struct zsd_unit **units;
    uint32_t nunits, units_room;
    uint32_t ntensors; /* of all units */
    struct zsd_shard **shards;
    uint32_t nshards, shards_room;

    struct zsd_arena arena; /* parameters: the resident ones, then the ring */
    uint64_t arena_bytes, ring_bytes;
    uint8_t *memory; /* resident gradients, then state: addresses for all of it, memory for what is
                        resident */
    uint64_t memory_bytes;
    uint64_t grads_nvme_bytes; /* of gradients that live on NVMe */
    struct zsd_replan replan;
    struct zsd_job_gpu gpu;
    struct zsd_job_params params;
    struct zb_needs *promise; /* of places on the data file; of a durable job it is its saved's */
    struct zb_slots ring;     /* regions of the arena */
    struct zb_list cached;    /* unpinned cached shards, oldest first */
    struct zb_list room_waiters; /* fills that wait for a place in the ring */
    struct zsd_work room_work;
    /* budget: unused; used: what is in the core's accounts. What a durable job holds of the data
     * file is its saved's. */
    struct zsd_account host_held, nvme_held;
    uint64_t staging_most; /* that its ranks ever had at one time: who comes back needs it again */

    uint64_t iterations, applied;
    struct zsd_step_op step;
    bool early_wish, early_room; /* room for early steps: was asked for; and found */
    struct zsd_early early;
    struct zsd_note note;
    struct zsd_note *notes; /* [world] */

    struct zsd_payer payer; /* its share of what all jobs want, and its places in their lines */
    uint32_t share_opened;  /* as its ranks opened it */
    uint64_t fetched_bytes, pushed_bytes, nvme_read_bytes, nvme_written_bytes;
    struct zsd_job_stats stats;
};

/* ---- job.c; how a job comes to be: op/open.c, define.c, op/ready.c */

/** Finds a job that is not ENDED. */
struct zsd_job *zsd_job_by_name(struct zsd_core *core, const char *name);
/** The job of this connection's rank, which must be `number` and alive; else req is answered. */
struct zsd_member *zsd_member_of(struct zsd_req *req, uint64_t job);
/** A shard of the connection's job, which must be READY or STEPPING; else req is answered. */
struct zsd_shard *zsd_shard_of(struct zsd_req *req, uint64_t id);
/** The same without a request: NULL and err. */
struct zsd_shard *zsd_shard_find(struct zsd_conn *conn, uint64_t id, struct zb_err *err);
/** len_bytes at an offset of the rank's staging: NULL when it is not inside, or off is not
 * 64-aligned. */
void *zsd_staging_at(struct zsd_member *m, uint64_t off, uint64_t len_bytes);
void zsd_staging_put(struct zsd_member *m); /* undoes a staging_users++ */

/** Ends a job: everyone is told `why`, and it vanishes when nothing is in flight. */
void zsd_job_end(struct zsd_job *job, const struct zb_err *why);
void zsd_jobs_end_all(struct zsd_core *core);
void zsd_jobs_forget_all(struct zsd_core *core);

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
/** Something has come back, or is decided: opens that wait look again. */
void zsd_job_room(struct zsd_core *core);
/** A step is over, or was given up: whoever waits for that goes on. */
void zsd_job_stepped(struct zsd_job *job);

void zsd_unit_free(struct zsd_unit *unit);
/** Its segments, from its tensors: 0 or -ENOMEM. */
int zsd_unit_segments(struct zsd_unit *unit);
void zsd_note_done(struct zsd_note *note);

/* ---- shard.c: pages and pins */

static inline uint64_t zsd_page_elems(const struct zsd_shard *s, uint32_t page)
{
    uint64_t per_page = s->job->core->page_elems;

    return zb_min_u64(per_page, s->count - (uint64_t)page * per_page);
}

static inline uint32_t zsd_page_bytes(const struct zsd_shard *s, enum zb_plane plane, uint32_t page)
{
    return (uint32_t)zb_page_bytes(s->planes[plane].block_bytes, zsd_page_elems(s, page));
}

/** Its parameters as they lie in an arena: page behind page. */
static inline uint64_t zsd_param_bytes(const struct zsd_shard *s)
{
    return zb_plane_bytes(s->planes[ZB_PARAM].block_bytes, s->job->core->page_elems, s->count);
}

/** Where a page of a plane that is in memory lies. */
static inline uint8_t *zsd_page_at(const struct zsd_shard *s, enum zb_plane plane, uint32_t page)
{
    return s->planes[plane].mem +
           page * zb_page_bytes(s->planes[plane].block_bytes, s->job->core->page_elems);
}

/** The next step writes this page of state, which is in memory or on the GPU, to the data file; or
 * brings it from there into memory (plan/replan.c). */
static inline bool zsd_page_leaves(const struct zsd_shard *s, uint32_t page)
{
    return (page < s->planes[ZB_STATE].resident || page >= s->gpu_from) && page >= s->state_next &&
           page < s->gpu_next;
}

static inline bool zsd_page_comes(const struct zsd_shard *s, uint32_t page)
{
    return page >= s->planes[ZB_STATE].resident && page < s->state_next;
}

/** The next step finds this page of state on the GPU; or leaves it there (plan/gpu_plan.c). */
static inline bool zsd_page_on_gpu(const struct zsd_shard *s, uint32_t page)
{
    return page >= s->gpu_from;
}

static inline bool zsd_page_to_gpu(const struct zsd_shard *s, uint32_t page)
{
    return page >= s->gpu_next;
}

/** Its state may live on the data files, and be moved there. */
static inline bool zsd_state_moves(const struct zsd_job *job)
{
    return job->core->extents && job->offload_optimizer != 1;
}

/** The pages of a plane from here on live on the data file, or may come to, before it is planned
 * again; or keep their place there while they are on the GPU. */
static inline uint32_t zsd_plane_low(const struct zsd_shard *s, enum zb_plane plane)
{
    uint32_t low = s->planes[plane].resident;

    if (plane != ZB_STATE)
        return low;
    if (!zsd_state_moves(s->job))
        return s->npages;
    low = low < s->state_to ? low : s->state_to;
    low = low < s->gpu_next ? low : s->gpu_next;
    return low < s->state_next ? low : s->state_next;
}

static inline bool zsd_page_streamed(const struct zsd_shard *s, enum zb_plane plane, uint32_t page)
{
    return s->planes[plane].block_bytes > 0 && page >= s->planes[plane].resident &&
           (plane != ZB_STATE || page < s->gpu_from);
}

/** Who it is, in the checksums of its pages, whatever world it was registered by. */
static inline uint64_t zsd_shard_key(uint32_t unit, uint64_t first)
{
    return (uint64_t)unit << 40 | first / ZB_BLOCK_ELEMS;
}

static inline bool zsd_shard_live(const struct zsd_shard *s)
{
    return s->pages_written == s->npages;
}

static inline bool zsd_grad_complete(const struct zsd_shard *s)
{
    return s->unit->layout.frozen ||
           (s->grad_next == s->count && s->pushing == 0 && zb_list_empty(&s->push_waiters));
}

/** For sentences. */
static inline const char *zsd_plane_text(enum zb_plane plane)
{
    return plane == ZB_PARAM ? "parameters" : plane == ZB_GRAD ? "gradient" : "optimizer state";
}

/** Parameters that always live in memory, and need no ring. */
static inline bool zsd_shard_resident(const struct zsd_shard *s)
{
    return s->planes[ZB_PARAM].resident == s->npages;
}

struct zsd_shard *zsd_shard_new(struct zsd_job *job, struct zsd_unit *unit, uint32_t rank,
                                uint64_t first, uint64_t count);
void zsd_shard_free(struct zsd_shard *s);
/** Bytes of all planes of it in memory that stays (not the ring), on the data file, and on the GPU.
 */
void zsd_shard_bytes(const struct zsd_shard *s, uint64_t *ret_host, uint64_t *ret_nvme,
                     uint64_t *ret_gpu);

/** 0 or -ENOMEM. */
int zsd_pin(struct zsd_shard *s, struct zsd_member *m);
/** -ENOENT: this rank does not pin it. */
int zsd_unpin(struct zsd_shard *s, struct zsd_member *m);
void zsd_unpin_all(struct zsd_member *m);
/** Whoever waits for this shard is run again. */
void zsd_shard_wake(struct zsd_shard *s);
/** Forgets the cached parameters of a streamed, unpinned shard. */
void zsd_shard_uncache(struct zsd_shard *s);
/** Lets go of its extents and of its row: its pages are nowhere, or in memory only. */
void zsd_shard_forget(struct zsd_shard *s);
/** It has no gradient, not even a part of one. */
void zsd_grad_reset(struct zsd_shard *s);
void zsd_grads_reset(struct zsd_job *job);

/* ---- place.c */

/** Admission and layout, all ranks ready: decides where every page lives and books it. With spill,
 * gradients that do not fit go to NVMe, if the job lets them. 0; -ENOSPC: err has the numbers and
 * the least that would do; -ENOMEM. On failure nothing is booked. */
int zsd_place(struct zsd_job *job, bool spill, struct zb_err *err);
/** Books a rank's staging: 0, or -ENOSPC with the numbers. */
int zsd_place_staging(struct zsd_job *job, uint64_t bytes, struct zb_err *err);
/** Whether the job's own limit allows that staging, so that waiting for memory helps. *ret_lacks:
 *  bytes that others must give, beside what is kept for ranks of the job; 0: only readers, which
 *  may use what is kept, have to close. */
bool zsd_place_staging_fits(const struct zsd_job *job, uint64_t bytes, uint64_t *ret_lacks);
void zsd_unplace_staging(struct zsd_job *job, uint64_t bytes);
/** The shards as placement looks at them, in order of registration; new. NULL: no memory. */
struct zb_place_shard *zsd_place_shards(const struct zsd_job *job);
/** Points the planes into the memory that was made for the layout. */
void zsd_place_attach(struct zsd_job *job);
/** Gives back everything that zsd_place() booked, but what the saved job needs. */
void zsd_unplace(struct zsd_job *job);
/** The job has places of the data file, or may come to have them. */
bool zsd_place_holds(const struct zsd_job *job);
/** What a durable job in memory must be promised besides the rows of its saved versions (those of
 * this stamp): its trainable pages `times`, whatever no such row holds once, and spares for pages
 * in flight. 0 or -ENOMEM. */
int zsd_place_needs(const struct zsd_job *job, unsigned times, uint64_t stamp,
                    struct zb_needs *ret);
/** What the job holds of the data file, by use. */
const struct zsd_account *zsd_job_nvme(const struct zsd_job *job);

/* ---- plan/replan.c */

struct zsd_range {
    uint64_t at, bytes;
};

/** The job was placed: from here on its state may move. */
void zsd_replan_begin(struct zsd_job *job);
/** What of the job's memory is to be made, in order: *ret is new, *ret_n ranges. 0 or -ENOMEM. */
int zsd_replan_ranges(const struct zsd_job *job, struct zsd_range **ret, uint32_t *ret_n);
/** Its memory is there: the engines get to know it. */
void zsd_replan_attach(struct zsd_job *job);
/** All pages of this shard are stepped: those that left memory or came there, have. */
void zsd_replan_stepped(struct zsd_shard *s);
/** A step that changed pages is over. */
void zsd_replan_step_over(struct zsd_job *job);
/** What is free has changed, or who wants it: the memory for state is divided anew, soon. */
void zsd_replan(struct zsd_core *core);
/** Sets the host tier's budget: 0; -ENOSPC: it is less than what cannot move, nothing has changed.
 */
int zsd_host_set(struct zsd_core *core, uint64_t bytes, struct zb_err *err);
/** Bytes of the host tier that are free: nobody but `but` waits for them, and they are not kept for
 *  ranks that have left (zsd_replan_away()). What a job takes comes out of these. */
uint64_t zsd_host_free(const struct zsd_core *core, const struct zsd_want *but);
/** The host tier's budget comes down to what was set, as far as memory has come back. Never up. */
void zsd_host_settle(struct zsd_core *core);
/** So many bytes of host memory are wanted, and not free. True: what others will give with their
 * next steps is enough beside what is wanted already, and it is kept for whoever waits, until
 * zsd_want_end(); zsd_job_room() comes as it comes back. False: it is not, and nothing has changed.
 */
bool zsd_want_begin(struct zsd_core *core, struct zsd_want *want, uint64_t bytes);
/** Got it, or gave up. One that never began is fine. */
void zsd_want_end(struct zsd_core *core, struct zsd_want *want);
/** It is free now; or nothing is wanted. */
bool zsd_want_met(const struct zsd_core *core, const struct zsd_want *want);
/** Bytes that others wait for. */
uint64_t zsd_wanted(const struct zsd_core *core, const struct zsd_want *but);
/** Staging of ranks that have left a kept job, and may come back: no other job gets it. */
uint64_t zsd_replan_away(const struct zsd_job *job);
/** Bytes of state that shall leave memory, and have not. */
uint64_t zsd_replan_leaving(const struct zsd_job *job);

/* ---- plan/gpu_plan.c */

/** The core begins: the tier's account. */
void zsd_gpu_begin(struct zsd_core *core);
/** Where a page of state is on the device; its run is allocated. */
void *zsd_gpu_at(const struct zsd_shard *s, uint32_t page);
/** The job has ended and nothing uses its state: the memory goes back (any thread), */
void zsd_gpu_drop(struct zsd_job *job);
/** and then its account (loop). */
void zsd_gpu_unplace(struct zsd_job *job);
/** The tier's budget comes down to what was set, as far as memory has come back. */
void zsd_gpu_settle(struct zsd_core *core);
/** Sets it, as zsd_host_set(); -EINVAL: there is no such tier, -EIO: the device has failed. */
int zsd_gpu_set(struct zsd_core *core, uint64_t bytes, struct zb_err *err);
/** Bytes of state that shall leave the GPU, and have not. */
uint64_t zsd_gpu_leaving(const struct zsd_job *job);
/** Its gradients are pinned as they are made: copies may use them at once. */
static inline bool zsd_gpu_pins_early(const struct zsd_job *job)
{
    return job->params.bytes > 0 && job->early_room;
}
/** They are, and its parameters in host memory; err, with a code: not all of it. */
void zsd_gpu_pinned(struct zsd_job *job, const struct zb_err *err);
/** The device failed, as a task found: soon, jobs with bytes on it end. */
void zsd_gpu_fail(struct zsd_core *core, const struct zb_err *err);
/** Bytes as the device gives them. */
uint64_t zsd_gpu_units(const struct zsd_core *core, uint64_t bytes);

/* ---- plan/gpu_params.c */

/** Its parameters live on the GPU: decided when it was placed. */
static inline bool zsd_params_there(const struct zsd_job *job)
{
    return job->params.bytes > 0;
}
/** Where a page of them is on the device. */
void *zsd_params_at(const struct zsd_shard *s, uint32_t page);
/** A rank that asks for them, with its device's id: where it cannot see them there, they will not
 * be. */
void zsd_params_ask(struct zsd_job *job, uint32_t rank, const char *device);
/** A rank with this device ("": none) can see the parameters where they are. */
bool zsd_params_seen(const struct zsd_job *job, const char *device);
/** So many bytes of parameters: can they be on the GPU? Else job->params.why says why not. */
bool zsd_params_fit(struct zsd_job *job, uint64_t bytes);
/** They do not fit, and will with memory of the GPU that is on its way back: whoever places the job
 * may wait. */
bool zsd_params_wait(struct zsd_job *job);
/** They will be there: the account. */
void zsd_params_book(struct zsd_job *job, uint64_t bytes);
/** Their memory is made, as zeros (any thread): 0; -ENOMEM, -EIO: err. */
int zsd_params_make(struct zsd_job *job, struct zk_gpu_mem **ret, struct zb_err *err);
/** The job has ended: it goes back (any thread), */
void zsd_params_drop(struct zsd_job *job);
/** and then its account (loop): at once, or when the last who has it mapped lets go. */
void zsd_params_unplace(struct zsd_job *job);
/** For people, of memory that was given back and is held: whose it was. NULL: it is not known. */
const char *zsd_strand_job(const struct zsd_core *core, uint64_t tag);
/** Its holders, as "pid,pid"; as snprintf(). */
size_t zsd_strand_text(const struct zk_gpu_strand *strand, char *text, size_t size);
void zsd_strands_free(struct zsd_core *core);

/* ---- top.c */

/** Looks once a turn at what is not worth a hook: who waits for steps, buffers in use, the lines
 * before the drives. */
void zsd_top_turn(struct zsd_core *core);

/* ---- op/step.c, op/early.c, op/fetch.c, op/push.c: called by others */

void zsd_step_resume(struct zsd_job *job); /* pins or active reached 0 */
void zsd_step_cancel(struct zsd_job *job, const struct zb_err *why);
/* A step that was asked for, but has not begun (it may drain already), is given up by all. */
void zsd_step_give_up(struct zsd_job *job, const struct zb_err *why);
/* A gradient of this shard came in, or is free again: the shard is stepped early, if it may be. */
void zsd_early_offer(struct zsd_shard *s);
/* What was said of the step, and done for it, is undone; or the step is over. */
void zsd_early_drop(struct zsd_job *job);
/** What a fetch of this rank that is in progress waits for. */
enum zsd_wait zsd_fetch_wait(const struct zsd_member *m, const struct zsd_req *req);
void zsd_fetch_cancel(struct zsd_member *m, const struct zb_err *why);
void zsd_fill_resume(struct zsd_job *job); /* a place in the ring may be free */
void zsd_fill_cancel(struct zsd_job *job); /* fills that wait for a place give up */
void zsd_push_cancel(struct zsd_job *job, const struct zb_err *why);
void zsd_push_resume(struct zsd_shard *s); /* its gradient is not read any more */

#endif
