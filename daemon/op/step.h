/*
 * step.h - the optimizer step of a job: op/step.c has the model.
 */
#ifndef ZSD_OP_STEP_H
#define ZSD_OP_STEP_H

#include "daemon/job/shard.h"
#include "daemon/op/classes.h"

struct zsd_page_spec;

/* The step that ranks request, and its progress. op/step.c */
struct zsd_step_op {
    struct zsd_job *job;
    bool asked; /* by at least one rank */
    bool skip;
    enum zsd_commit_what commit; /* none, commit or prepare */
    struct zb_err commit_err;    /* why it could not be committed */
    uint64_t step;
    double scale;
    struct zk_params params[ZP_GROUPS_MAX];
    struct zsd_classes *classes; /* instead of params; NULL: by groups */
    bool factors;                /* with those of each tensor: job->tensors */
    struct zk_scalars by_group[ZP_GROUPS_MAX];
    struct zsd_step_table table; /* instead of by_group; empty: by groups alone */
    struct zsd_work work;
    bool check;       /* a rank had too many gradients to check when it asked */
    uint32_t checked; /* number of shards that CHECK has handled */
    uint32_t begun;   /* number of shards that BEGIN has handled */
    bool undoing;     /* it will not be made: early steps are being undone */
    bool committing;  /* all pages are stepped */
    struct zsd_step_walk {
        uint32_t next_shard, next_page;
        uint32_t inflight;
    } resident, streamed, gpus[ZSD_GPUS_MAX]; /* each over all shards, for pages of its kind */
    uint32_t muon_inflight;                   /* pages of op/muon.h */
    struct zk_params muon; /* with Muon, of the last step: those of its first matrix */
    bool muon_known;       /* there was a step */
    uint32_t *pages_left;  /* [nshards] */
};

/* The last unit of zsd_step_check_grad(): a cache, because shards of a unit are consecutive. */
struct zsd_step_left {
    const struct zsd_unit *unit;
    bool left; /* the step does not change it */
};

/** Checks that a shard has its gradient, unless the step does not change it. */
int zsd_step_check_grad(const struct zsd_shard *s, const struct zsd_classes *classes,
                        struct zsd_step_left *last, struct zb_err *err);
/** Call when every rank has asked: drains the job, then runs the step. */
void zsd_step_drain(struct zsd_job *job);
void zsd_step_resume(struct zsd_job *job); /* call when a draining step may begin */
void zsd_step_cancel(struct zsd_job *job, const struct zb_err *why);
/** Cancels, for all ranks, a step that was requested but has not begun (it may be draining). */
void zsd_step_give_up(struct zsd_job *job, const struct zb_err *why);
/** Computes step.by_group from params, or step.table if there are classes or factors of tensors
 * (as in zsd_table_make()). No page operation may be reading them. 0 or -ENOMEM: neither is valid. */
int zsd_step_prepare(struct zsd_job *job, double scale, const struct zk_params *params,
                     const struct zsd_classes *classes, const double *factors);
/** Puts the prepared values into the spec of a page of this shard. */
void zsd_step_with(const struct zsd_shard *s, struct zsd_page_spec *spec);
/** Maximum number of page operations of a step at the same time. */
uint32_t zsd_step_inflight_max(const struct zsd_core *core);
/** Call when a page that was begun early is stepped while the step already runs. */
void zsd_step_publish(struct zsd_shard *s, uint32_t page);

#endif
