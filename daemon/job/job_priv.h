/*
 * job_priv.h - what the files that make up a job's life share: job.c, job_arena.c, op/open.c,
 * define.c and op/ready.c.
 */
#ifndef ZSD_JOB_PRIV_H
#define ZSD_JOB_PRIV_H

#include "daemon/job/job.h"

/* ---- job_arena.c */

enum zsd_arena_what { ZSD_STAGING_OPEN, ZSD_STAGING_CLOSE, ZSD_ARENA_OPEN, ZSD_ARENA_CLOSE };

struct zsd_arena_task {
    struct zsd_task task;
    enum zsd_arena_what what;
    void (*opened)(struct zsd_arena_task *t); /* of what opens: it is made, or err says why not */
    struct zsd_job *job;
    struct zsd_member *member; /* ZSD_STAGING_OPEN */
    uint64_t bytes;
    struct zsd_arena arena;
    uint8_t *memory;
    uint64_t memory_bytes;
    struct zsd_range *ranges; /* ZSD_ARENA_OPEN: of the memory, that can be used */
    uint32_t nranges;
    struct zk_gpu_mem *params; /* ZSD_ARENA_OPEN, of a job whose parameters are on the GPU; */
    struct zb_err gpu_err;     /* or why not: then nothing else is made */
    struct zb_err pin_err;     /* why not all of its memory is pinned that was to be */
    struct zb_err err;
};

/** NULL: no memory. */
struct zsd_arena_task *zsd_arena_task_new(struct zsd_job *job, enum zsd_arena_what what,
                                          void (*opened)(struct zsd_arena_task *t));
void zsd_arena_task_start(struct zsd_arena_task *t);
void zsd_arena_task_free(struct zsd_arena_task *t);
/** Ends memory on a compute thread; where there is none for the task itself, here. */
void zsd_arena_end(struct zsd_job *job, enum zsd_arena_what what, struct zsd_arena arena,
                   uint8_t *memory, uint64_t memory_bytes, uint64_t booked);

/* ---- job.c */

struct zsd_member *zsd_member_new(struct zsd_job *job, struct zsd_conn *conn, uint32_t rank);
/** The one that is attached, or NULL. */
struct zsd_member *zsd_member_by_rank(struct zsd_job *job, uint32_t rank);
/** Refuses what a member waits for, if it does. */
void zsd_member_answer(struct zsd_req **req, struct zsd_timed *timed, const struct zb_err *why);
/** The connection lets go of its rank: pins and staging return at once. */
void zsd_member_detach(struct zsd_member *m, const struct zb_err *why);
/** Tells every rank, of what became of `rank`. */
void zsd_job_tell(struct zsd_job *job, uint16_t event, uint32_t rank, const struct zb_err *why);
void zsd_job_free(struct zsd_job *job);
void zsd_job_forget_if_over(struct zsd_job *job);

/* ---- op/open.c */

/** The connection has gone: nobody waits for the answer. */
void zsd_opens_gone(struct zsd_conn *conn);
void zsd_opens_refuse(struct zsd_core *core);
void zsd_open_answer(struct zsd_member *m);
/** Somebody lacks memory for `lacks`: other saved jobs that nobody is attached to give theirs back,
 * one at a time, the one that has been there longest first. True: some is on its way. */
bool zsd_core_make_room(struct zsd_core *core, const struct zsd_job *lacks);

/* ---- op/ready.c */

/** Admission; when there is no room, but bytes are on their way back, it waits for them. */
void zsd_place_again(struct zsd_job *job);
/** What the ranks waited for is over. */
void zsd_ready_resume(struct zsd_job *job);

#endif
