/*
 * early.h - steps that begin before their barrier: op/early.c has the model.
 */
#ifndef ZSD_OP_EARLY_H
#define ZSD_OP_EARLY_H

#include "daemon/job/shard.h"

struct zsd_ingest;
struct zsd_step_op;

/* The step that the ranks announced by step-begin, and its progress before they call step.
 * op/early.c */
struct zsd_early {
    struct zsd_job *job;
    uint32_t micros; /* micro-steps of this step */
    double scale;
    struct zk_params params[ZP_GROUPS_MAX];
    struct zsd_classes *classes; /* as in struct zsd_step_op */
    bool prepared;               /* step.by_group and step.table are those of this step */
    bool limited;                /* by limits of tensors: LIMITS */
    struct zk_xsum
        *sums;         /* [tensors] over all nodes, as far as they came; NULL: there is one node */
    uint32_t *summed;  /* [nunits]: of how many of its tensors; NULL like sums */
    double *factors;   /* by trainable tensor, as far as they follow from the limits; NaN */
    uint8_t *decided;  /* [nunits]: the factors of its tensors are known */
    struct zb_err err; /* of the first page that failed: the step fails with it */
    struct zb_list shards; /* of the shards in `begun`, those with pages left to begin */
    struct zb_list begun;  /* all shards with s->early */
    uint32_t ringed;       /* pages in flight whose gradients are not held */
    uint32_t offer;        /* shards [0, offer) still have to be offered */
    struct zsd_work work;
};

/** Call when a gradient of this shard has arrived, or is no longer being read: steps the shard
 * early, if possible. */
void zsd_early_offer(struct zsd_shard *s);
/** Call when all ranks have announced the step: offers the shards that are complete, in parts. */
void zsd_early_said(struct zsd_job *job);
/** RING: whether pushes of pages whose gradients are not held have to wait. If not, they may begin. */
bool zsd_early_ring_waits(struct zsd_job *job);
/** Takes the gradient of such a page in, and steps the page. 1: ingest->done() follows; 0: the step has
 * failed already, and the gradient is discarded. */
int zsd_early_take(struct zsd_shard *s, uint32_t page, struct zsd_ingest *ingest);
/** Call when pushes that wait for the ring may have to continue. */
void zsd_early_resume(struct zsd_job *job);
/** Frees the memory for limits. */
void zsd_early_limits_free(struct zsd_early *e);
/** Undoes the announcement of the step, and all that was done for it. Call at its end, too. */
void zsd_early_drop(struct zsd_job *job);
/** Undoes the early steps of as many shards as the turn has room for. True: all are undone, and
 * zsd_early_drop() must follow. Meanwhile no early page may be in flight or begin. */
bool zsd_early_undo(struct zsd_job *job);
/** Call when all pages of the shard are stepped, and its early results are part of the step. */
void zsd_early_stepped(struct zsd_shard *s);
/** Checks that a requested step has the announced values: 0 or -EINVAL. */
int zsd_early_check(const struct zsd_job *job, const struct zsd_step_op *want, uint32_t rank,
                    struct zb_err *err);
/** Gives units whose factors were not decided by limits those of the step. The step is prepared. */
void zsd_early_factors(struct zsd_job *job, const double *factors);
/** Whether a draining step need not wait for early page operations: none is in flight, or it will
 * use their results. */
bool zsd_early_drained(const struct zsd_job *job);
/** Whether the page was begun early: its result is in s->held, or in flight. */
bool zsd_early_begun(const struct zsd_shard *s, uint32_t page);

#endif
