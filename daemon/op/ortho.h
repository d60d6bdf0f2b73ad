/*
 * ortho.h - orthogonalizes the matrices of a job: op/ortho.c has the model. Loop thread.
 *
 * All that the steps of a job know of the engine that orthogonalizes is here.
 */
#ifndef ZSD_OP_ORTHO_H
#define ZSD_OP_ORTHO_H

#include "daemon/job/job.h"
#include "kernels/ortho.h"

struct zsd_orthos; /* the engine of one job */

/* One matrix. The caller's memory: it stays until done(), or until the job is freed. */
struct zsd_ortho {
    const struct zk_matrix *matrix; /* changed in place */
    /* It is orthogonalized, or a task that used it when they were stopped has ended. Never inside zsd_ortho_start() or
     * zsd_orthos_stop() */
    void (*done)(struct zsd_ortho *o);
    /* the engine's */
    struct zb_list node;
    struct zk_ortho ortho;
    size_t first_tiles, tiles, next_tile;
    unsigned running;
    uint64_t scratch_at, scratch_end; /* in the job's scratch memory */
    bool whole, stopped;
};

/** Scratch memory is that of job->muon_room, from the first start on. NULL: no memory. */
struct zsd_orthos *zsd_orthos_new(struct zsd_job *job);
/** Queues a matrix that has all of its elements. Matrices begin in the order of these calls; several may be in
 * progress at the same time. */
void zsd_ortho_start(struct zsd_orthos *e, struct zsd_ortho *o);
/** Whether they share the compute threads with a backward pass: then they leave one to all others. */
void zsd_orthos_share(struct zsd_orthos *e, bool on);
/** Ends them all. done() follows for those that are busy. */
void zsd_orthos_stop(struct zsd_orthos *e);
/** Whether a task uses the matrix, which may never have been started. */
bool zsd_ortho_busy(const struct zsd_orthos *e, const struct zsd_ortho *o);
/** No task may be running: call when the job is freed. NULL is fine. */
void zsd_orthos_free(struct zsd_orthos *e);

#endif
