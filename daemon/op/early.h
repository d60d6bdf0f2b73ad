/*
 * early.h - steps that begin before their barrier: op/early.c has the model.
 */
#ifndef ZSD_OP_EARLY_H
#define ZSD_OP_EARLY_H

#include "daemon/job/shard.h"

struct zsd_ingest;
struct zsd_page_spec;
struct zsd_step_op;

#define ZSD_ROOMS 2

/* Memory for the gradients of one unit. op/early_room.c */
struct zsd_room {
    struct zsd_unit *unit; /* NULL: free */
    uint8_t *mem;
    uint64_t bytes;
    uint32_t left; /* pages that are not stepped yet */
    uint32_t busy; /* tasks and page operations that use it */
    bool gone;     /* the step was dropped */
};

struct zsd_rooms {
    struct zsd_room all[ZSD_ROOMS];
    uint32_t *order;        /* [nunits]: units in the order of their first pushes of this step */
    uint32_t *at;           /* [nunits]: 1 + a unit's place in that order; 0: not pushed */
    uint32_t norder, given; /* units order[0, given) got their rooms */
};

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
    struct zb_list shards; /* of the shards in `begun`, those with pages left to begin; */
    struct zb_list roomed; /* and of those, the ones whose next page is in a room */
    struct zb_list begun;  /* all shards with s->early */
    uint32_t ringed;       /* pages in flight whose gradients are not held */
    struct zsd_rooms rooms;
    uint64_t drops; /* how many announcements were dropped, or are over */
    uint32_t offer; /* shards [0, offer) still have to be offered */
    struct zsd_work work;
};

/** Call when a gradient of this shard has arrived, or is no longer being read: steps the shard
 * early, if possible. */
void zsd_early_offer(struct zsd_shard *s);
/** Call when all ranks have announced the step: offers the shards that are complete, in parts. */
void zsd_early_said(struct zsd_job *job);
/** RING: whether pushes of this shard's pages whose gradients are not held have to wait. If not, they may
 * begin. */
bool zsd_early_ring_waits(struct zsd_shard *s);
/** Begins an EARLY page of matrices, of which the step says the kind, the page, and what holds it: op/muon.c. 0 or
 * -ENOMEM. */
int zsd_early_page(struct zsd_job *job, struct zsd_page_spec *spec);
/** Takes the gradient of such a page in, and steps the page. 1: ingest->done() follows; 0: the step has
 * failed already, and the gradient is discarded. */
int zsd_early_take(struct zsd_shard *s, uint32_t page, struct zsd_ingest *ingest);
/** LIMITS: memory for the gradient of such a page, or NULL: the step has failed already, and the gradient
 * is discarded. zsd_room_done() must follow when it is there. */
uint8_t *zsd_early_room(struct zsd_shard *s, uint32_t page);
/** Call when pushes that wait for the ring may have to continue, or early pages that wait have to end. */
void zsd_early_resume(struct zsd_job *job);
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

/** Undoes the announcement of the step, and all that was done for it. Call at its end, too. */
void zsd_early_drop(struct zsd_job *job);

/* ---- op/early_undo.c */

/** The error of early pages that end because they cannot become a part of the step. */
extern const struct zb_err zsd_early_gone;
/** Undoes the early steps of a shard. */
void zsd_early_drop_shard(struct zsd_shard *s);
/** Undoes the early steps of as many shards as the turn has room for. True: all are undone, and
 * zsd_early_drop() must follow. Meanwhile no early page may be in flight or begin. */
bool zsd_early_undo(struct zsd_job *job);
/** Call when all pages of the shard are stepped, and its early results are part of the step. */
void zsd_early_stepped(struct zsd_shard *s);
/** Frees the memory for limits. */
void zsd_early_limits_free(struct zsd_early *e);

/* ---- rooms: op/early_room.c */

/** Whether gradients that are not held are collected in rooms: the announced step has limits. */
bool zsd_rooms_on(const struct zsd_job *job);
/** Call at the announcement of a step with limits. 0 or -ENOMEM. */
int zsd_rooms_begin(struct zsd_job *job);
/** Ends the use of all rooms; each is free when nothing uses it any more. */
void zsd_rooms_drop(struct zsd_job *job);
/** Whether a push for this shard's unit may wait for a room. 0; -EDEADLK: its rank has to push another
 * unit first. */
int zsd_room_ask(struct zsd_shard *s, struct zb_err *err);
/** Puts the shard's unit into the order, unless it is there. */
void zsd_room_want(struct zsd_shard *s);
bool zsd_room_has(const struct zsd_shard *s);
/** Address of the gradient of a page in a room. NULL: it is not in one. */
uint8_t *zsd_room_at(const struct zsd_shard *s, uint32_t page);
/** A task or a page operation begins to use the room of this shard's unit; it ends. `stepped`: a page
 * was stepped early. */
void zsd_room_use(struct zsd_shard *s);
void zsd_room_done(struct zsd_shard *s, bool stepped);

#endif
