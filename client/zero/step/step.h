/*
 * step.h - steps, and how a job continues after them: commits, notes, resume.
 */
#ifndef ZC_ZERO_STEP_H
#define ZC_ZERO_STEP_H

#include "client/zero/config/loss_scale.h"
#include "client/zero/core/zero.h"

struct zcz_steps {
    /* announce.c */
    bool announcing; /* the store has yet to be told of the announced step (zc_zero.said) */
    struct zc_zero_step_how announced; /* its arguments; the arrays belong to the engine */
    struct zcz_op announce;
    bool announced_classes; /* the store has been told of the announced step's classes, */
    bool announced_limits;  /* and of its limits */

    /* step.c */
    struct zcz_op step;        /* the step in progress */
    struct zc_stepped stepped; /* its answer, when it is done */
    struct zc_norm norm;
    struct zcz_scaler scaler; /* for the next step; if the job is resumed, set by note.c */

    /* counts.c: number of tensors of all units; number of trained ones; how many steps each tensor
     * lags */
    uint32_t ntensors, ntrained;
    uint64_t *lags;
    bool lagging;    /* some tensor lags, or did */
    bool counts_set; /* the trainer has set counts since the job's last note */

    /* classes.c: of the next step */
    struct zc_classes classes;
    struct zc_class *class_table; /* [ZC_CLASSES_MAX] */
    uint32_t *class_of;           /* [ntrained] */

    /* clip.c: clipping by tensor; all NULL without it */
    float *averages;      /* [ntrained], of norms; 0: none yet */
    bool clip_nodes;      /* sums of tensors cross nodes in the backward pass: zcz_clip_agree() */
    uint64_t clip_since;  /* applied steps when the job began to clip by tensor */
    struct zk_xsum *sums; /* [ntrained], of the gradients of the step */
    unsigned char *sum_bytes; /* [ntrained]: those of this rank */
    double *values;           /* [ntrained]: limits, or factors, of the step */

    /* norms.c */
    struct zc_zero_norm *norms; /* [ntrained], of the gradients */
    uint64_t norms_at;          /* zcz_reduced_changes() when they were computed; 0: never */

    /* commit.c */
    enum zc_commit unsettled; /* how the last step commits, until all ranks know the result */
    bool saved;               /* the newest whole step is committed, as far as all ranks know */
    struct zcz_op resolve;    /* resolves a prepared step; the next step waits for it */
    bool dropping;            /* the prepared step is dropped, not committed */

    /* note.c */
    uint32_t run;        /* identifies the run that the job belongs to */
    struct zcz_op notes; /* being stored */
    unsigned char *note; /* the job's note, on the first rank of a node */
    size_t note_bytes;

    /* resume.c: whether this node commits or drops the step that it has prepared, and its number */
    enum zc_commit resume_prepared;
    uint64_t resume_prepared_at;
};

/** Called in the start, when the store knows the job's progress. 0 or a refusal. */
int zcz_steps_start(struct zc_zero *z);
/** Whether no step runs, and no note or announcement is being sent. */
static inline bool zcz_steps_idle(const struct zc_zero *z)
{
    return z->steps->notes.pending == 0 && z->steps->announce.pending == 0 && !z->stepping;
}
/** Between two steps, before the job is attached again: forgets what the store was told. */
void zcz_steps_again(struct zc_zero *z);
void zcz_steps_close(struct zc_zero *z);

/* ---- step.c */

/* The machine. */
int zcz_step_turn(struct zc_zero *z);

/* ---- commit.c */

/** Waits until no step is in progress in the store. `what` is for the error message of a
 * timeout. */
int zcz_stepping_wait(struct zc_zero *z, const char *what);
/** Waits until no unit is gathered or reduced, no step runs, and no note is on its way. `what` is for
 * the error message of a timeout. */
int zcz_idle_wait(struct zc_zero *z, const char *what);
/** A step was passed to the store, which was also asked to commit it like this. */
void zcz_commit_begun(struct zc_zero *z, enum zc_commit what);
/** Checks whether the step that has ended became durable, if it was to be. All ranks make this
 * call. A refusal reports once that it did not. */
int zcz_commit_settle(struct zc_zero *z);
/** Waits until a prepared step is committed or dropped on this node. A failure is final. */
int zcz_commit_resolved(struct zc_zero *z);
/** Begins to commit or drop the prepared step. 0 or the failure, which is final. */
int zcz_commit_resolve(struct zc_zero *z, enum zc_commit what, uint64_t iterations);
/** Sets whether the step that the job continues from is committed. */
void zcz_commit_known(struct zc_zero *z, bool saved);

/* ---- note.c */

/** Sets the number of the run, which the ranks have drawn. The job's note may replace it. */
void zcz_note_run(struct zc_zero *z, uint32_t run);
/** Stores the job's note for the next step: the loss scale after it (NULL: unchanged), and the step
 * counts that lag. Waits until it is stored. */
int zcz_note_step(struct zc_zero *z, const struct zcz_scaler *scaler);
/** Returns the length of the trainer's bytes in the job's note; 0 if this rank does not send it. */
uint32_t zcz_note_bytes(const struct zc_zero *z);
/** Whether a note of this length, step counts of this length, and the averages of norms fit into one
 * note. */
bool zcz_note_fits(const struct zc_zero *z, size_t bytes, size_t counts_bytes);
/** With several nodes, stores the run's number with the first step. */
int zcz_note_begin(struct zc_zero *z);
/** Restores the dynamic loss scale, and the step counts of tensors, as they were after the step
 * that the job continues from. *ret_run: the job's run; 0: unknown. */
int zcz_note_resume(struct zc_zero *z, uint32_t *ret_run);

/* ---- about.c */

/** Tells the daemon how the trainer clips and what is frozen, from the first rank of each node. 0 or the failure. */
int zcz_about_tell(struct zc_zero *z);

/* ---- resume.c */

/* What one node has of a job. */
struct zcz_stand {
    uint64_t epoch;
    uint32_t npoints;
    struct zc_point points[ZC_POINTS_MAX];
};

/** Chooses the newest step that every node has. 0 and its iterations; -ENOENT: there is none. */
int zcz_resume_choose(const struct zcz_stand *stands, uint32_t n, uint64_t *ret_at);
/** Decides what a node does with a step that it has prepared: ZC_COMMIT_PREPARED or
 * ZC_COMMIT_DROP. */
enum zc_commit zcz_resume_fate(const struct zcz_stand *stands, uint32_t n, uint64_t iterations);

/** Attaches every rank, and chooses the step. */
/** With options.resume_if_there: if no node has the job, *ret_there is false and nothing was
 * attached. */
int zcz_resume_attach(struct zc_zero *z, bool *ret_there);
/** Resolves the prepared step of a job that continues. */
int zcz_resume_settle(struct zc_zero *z);

#endif
