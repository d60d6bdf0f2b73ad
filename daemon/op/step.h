/*
 * step.h - the optimizer step of a job: op/step.c has the model.
 */
#ifndef ZSD_OP_STEP_H
#define ZSD_OP_STEP_H

#include "daemon/job/shard.h"
#include "daemon/op/classes.h"

struct zsd_page_spec;

/* The step that ranks ask for, and its progress. op/step.c */
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
    struct zk_scalars by_group[ZP_GROUPS_MAX];
    struct zsd_step_table table; /* instead of by_group; empty: by groups */
    struct zsd_work work;
    bool check;       /* a rank's gradients were too many to look at when it asked */
    uint32_t checked; /* shards of the job that CHECK has looked at, */
    uint32_t begun;   /* and those that BEGIN has */
    bool committing;  /* all pages are stepped */
    struct zsd_step_walk {
        uint32_t next_shard, next_page;
        uint32_t inflight;
    } resident, streamed, gpu; /* each through all shards, over pages of its kind */
    uint32_t *pages_left;      /* [nshards] */
};

/* The unit that zsd_step_check_grad() looked at last: shards of one unit come one after the other. */
struct zsd_step_left {
    const struct zsd_unit *unit;
    bool left; /* the step leaves it alone */
};

/** A shard must have its gradient, unless the step leaves it alone. */
int zsd_step_check_grad(const struct zsd_shard *s, const struct zsd_classes *classes,
                        struct zsd_step_left *last, struct zb_err *err);
/** Every rank has asked: the job drains, and then the step runs. */
void zsd_step_drain(struct zsd_job *job);
void zsd_step_resume(struct zsd_job *job); /* pins or active reached 0 */
void zsd_step_cancel(struct zsd_job *job, const struct zb_err *why);
/* A step that was asked for, but has not begun (it may drain already), is given up by all. */
void zsd_step_give_up(struct zsd_job *job, const struct zb_err *why);
/** Makes step.by_group of params, or step.table of classes; no page operation reads them. 0 or
 * -ENOMEM: neither is there. */
int zsd_step_prepare(struct zsd_job *job, double scale, const struct zk_params *params,
                     const struct zsd_classes *classes);
/** What was prepared, for a page of this shard. */
void zsd_step_with(const struct zsd_shard *s, struct zsd_page_spec *spec);
/** So many page operations of a step are in progress at one time. */
uint32_t zsd_step_inflight_max(const struct zsd_core *core);
/** The step runs, and a page that was begun ahead of it is ready now. */
void zsd_step_publish(struct zsd_shard *s, uint32_t page);

#endif
