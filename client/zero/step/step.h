/*
 * step.h - steps, and what survives them: commits, notes, the way back into a kept job.
 */
#ifndef ZC_ZERO_STEP_H
#define ZC_ZERO_STEP_H

#include "client/zero/config/loss_scale.h"
#include "client/zero/core/zero.h"

struct zcz_steps {
    /* step.c */
    bool announced;  /* the next step will have this learning rate, */
    bool announcing; /* which the store has not heard yet; */
    double announced_lr;
    struct zcz_op announce;
    struct zcz_op step;        /* the one in progress, */
    struct zc_stepped stepped; /* and this will be its answer */
    struct zc_norm norm;
    struct zcz_scaler scaler; /* of the next step; note.c, of a job that continues */
    bool announced_classes;   /* the store has heard of its classes */

    /* counts.c: tensors of all units; those that are trained; and of each of the first, how many steps it lags */
    uint32_t ntensors, ntrained;
    uint64_t *lags;
    bool lagging;    /* some do, or did */
    bool counts_set; /* since the last note of the job's */

    /* classes.c: of the next step */
    struct zc_classes classes;
    struct zc_class *class_table; /* [ZC_CLASSES_MAX] */
    uint32_t *class_of;           /* [ntrained] */

    /* norms.c */
    struct zc_zero_norm *norms; /* [ntrained], of the gradients */
    uint64_t norms_at;          /* as zcz_reduced_changes() said; 0: of none */

    /* commit.c */
    enum zc_commit unsettled; /* what the last step was asked with, until all know how it went */
    bool saved;               /* the newest whole step is committed, as far as all ranks know */
    struct zcz_op resolve;    /* of what was prepared; the next step waits for it */
    bool dropping;            /* ... it is dropped */

    /* note.c */
    uint32_t run;        /* which run this job is of */
    struct zcz_op notes; /* on their way */
    unsigned char *note; /* of the job, on the first rank of a node */
    size_t note_bytes;

    /* resume.c: what becomes of what this node has prepared, this step */
    enum zc_commit resume_prepared;
    uint64_t resume_prepared_at;
};

/** At the start, when the store knows how far the job is. 0 or a refusal. */
int zcz_steps_start(struct zc_zero *z);
/** No step runs, and neither notes nor an announcement are on their way. */
static inline bool zcz_steps_idle(const struct zc_zero *z)
{
    return z->steps->notes.pending == 0 && z->steps->announce.pending == 0 && !z->stepping;
}
void zcz_steps_close(struct zc_zero *z);

/* ---- step.c */

/* The machine. */
int zcz_step_turn(struct zc_zero *z);

/* ---- commit.c */

/** A step was handed to the store, which was asked to commit it so, too. */
void zcz_commit_begun(struct zc_zero *z, enum zc_commit what);
/** Whether the step that has ended became durable, if it was to be: all ranks ask alike. A refusal
 * says that it did not, once. */
int zcz_commit_settle(struct zc_zero *z);
/** Waits until what was prepared is committed or dropped here; the failure is final. */
int zcz_commit_resolved(struct zc_zero *z);
/** Begins that. 0 or the failure, which is final. */
int zcz_commit_resolve(struct zc_zero *z, enum zc_commit what, uint64_t iterations);
/** The job continues from a step of which this is known. */
void zcz_commit_known(struct zc_zero *z, bool saved);

/* ---- note.c */

/** The run that the ranks have drawn, unless the job says another one. */
void zcz_note_run(struct zc_zero *z, uint32_t run);
/** The next step's note says that the loss scale is this after it (NULL: as it said before), and which step counts
 * lag now; waits until it is stored. */
int zcz_note_step(struct zc_zero *z, const struct zcz_scaler *scaler);
/** Bytes of the trainer's in the job's note; 0 where this rank does not send it. */
uint32_t zcz_note_bytes(const struct zc_zero *z);
/** Whether a note of so many bytes, and so many of step counts, fit together. */
bool zcz_note_fits(size_t bytes, size_t counts_bytes);
/** A job of several nodes says with its first step which run it is of. */
int zcz_note_begin(struct zc_zero *z);
/** A dynamic loss scale, and step counts of tensors, are again what they were after the step that the job continues from. *ret_run:
 * the run that the job is of; 0: it does not say. */
int zcz_note_resume(struct zc_zero *z, uint32_t *ret_run);

/* ---- resume.c */

/* What one node has of a job. */
struct zcz_stand {
    uint64_t epoch;
    uint32_t npoints;
    struct zc_point points[ZC_POINTS_MAX];
};

/** The newest step that every node has: 0 and its iterations; -ENOENT: there is none. */
int zcz_resume_choose(const struct zcz_stand *stands, uint32_t n, uint64_t *ret_at);
/** What the node that has `iterations` prepared does with it: ZC_COMMIT_PREPARED, ZC_COMMIT_DROP.
 */
enum zc_commit zcz_resume_fate(const struct zcz_stand *stands, uint32_t n, uint64_t iterations);

/** Every rank attaches, and all choose the step. */
/** With options.resume_if_there, and no node that has the job, *ret_there is false and nothing was
 *  attached to. */
int zcz_resume_attach(struct zc_zero *z, bool *ret_there);
/** The job continues: what was prepared is resolved. */
int zcz_resume_settle(struct zc_zero *z);

#endif
