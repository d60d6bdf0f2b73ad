/*
 * early.h - steps that begin before their barrier: op/early.c has the model.
 */
#ifndef ZSD_OP_EARLY_H
#define ZSD_OP_EARLY_H

#include "daemon/job/shard.h"

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
    struct zb_err err;           /* of the first page that failed: step will be answered with it */
    struct zb_list shards;       /* those with pages to begin */
    struct zb_list begun;        /* those with pages that were begun */
    uint32_t offer;              /* shards [0, offer) still have to be offered */
    struct zsd_work work;
};

/* Call when a gradient of this shard arrived, or is free again: steps the shard early, if
 * possible. */
void zsd_early_offer(struct zsd_shard *s);
/* Undoes the announcement of the step, and everything done for it. Also call when the step ends. */
void zsd_early_drop(struct zsd_job *job);
/** Undoes early steps of as many shards as the turn has room for; true: of all. No early page is in
 * flight, and none may begin until zsd_early_drop(), which follows. */
bool zsd_early_undo(struct zsd_job *job);
/** Call when all of its pages are stepped: its early results are part of the step. */
void zsd_early_stepped(struct zsd_shard *s);
/** Checks that a requested step has the announced values: 0 or -EINVAL. */
int zsd_early_check(const struct zsd_job *job, const struct zsd_step_op *want, uint32_t rank,
                    struct zb_err *err);
/** Whether a draining step need not wait for early page operations: there are none, or it continues
 * with them. */
bool zsd_early_drained(const struct zsd_job *job);
/** Whether the page was begun early: its result is in s->held, or in flight. */
bool zsd_early_begun(const struct zsd_shard *s, uint32_t page);

#endif
