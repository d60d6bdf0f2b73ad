/*
 * early.h - steps that begin ahead of their barrier: op/early.c has the model.
 */
#ifndef ZSD_OP_EARLY_H
#define ZSD_OP_EARLY_H

#include "daemon/job/shard.h"

struct zsd_step_op;

/* What the ranks said of the step ahead of it, and what is done by then. op/early.c */
struct zsd_early {
    struct zsd_job *job;
    uint32_t micros; /* micro-steps of this step */
    double scale;
    struct zk_params params[ZP_GROUPS_MAX];
    struct zsd_classes *classes; /* as in struct zsd_step_op */
    bool prepared;               /* step.by_group and step.table are those of this step */
    struct zb_err err;           /* the first page that failed: the step will be refused with it */
    struct zb_list shards;       /* with pages to begin */
    struct zb_list begun;        /* with pages that were, too */
    uint32_t offer;              /* shards [0, offer) are still to be offered */
    struct zsd_work work;
};

/* A gradient of this shard came in, or is free again: the shard is stepped early, if it may be. */
void zsd_early_offer(struct zsd_shard *s);
/* What was said of the step, and done for it, is undone; or the step is over. */
void zsd_early_drop(struct zsd_job *job);
/** All of its pages are stepped: what was begun of it ahead is in the step. */
void zsd_early_stepped(struct zsd_shard *s);
/** Checks that a step that is asked for has the values that were said ahead: 0 or -EINVAL. */
int zsd_early_check(const struct zsd_job *job, const struct zsd_step_op *want, uint32_t rank,
                    struct zb_err *err);
/** The step that drains need not wait for page operations of ours: there are none, or it goes on
 * with them. */
bool zsd_early_drained(const struct zsd_job *job);
/** The page was begun ahead of this step: it is in s->held, or on its way. */
bool zsd_early_begun(const struct zsd_shard *s, uint32_t page);

#endif
