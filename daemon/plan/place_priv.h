/*
 * place_priv.h - a placement in progress: plan/placing.c has the model. place.c looks at the
 * accounts, and books.
 */
#ifndef ZSD_PLACE_PRIV_H
#define ZSD_PLACE_PRIV_H

#include "daemon/plan/place.h"

struct zsd_placing {
    struct zsd_work work; /* GATHER, APPLY */
    struct zsd_task task; /* PLAN */
    struct zsd_job *job;
    zsd_placed *done;
    bool spill, early;                  /* gradients may go to NVMe; early steps are wished for, */
    bool rings;                         /* and gradients of streamed pages need not be held */
    bool applies;                       /* APPLY; else GATHER */
    uint32_t shard;                     /* the next one of a walk */
    struct zb_place_shard *shards;      /* [nshards] */
    uint64_t param_bytes[ZSD_GPUS_MAX]; /* of all shards, by the GPU of their ranks */
    struct zb_muon_needs muon;
    struct zb_muon_room room; /* of the plan, for Muon; zeros: another optimizer */
    bool muon_streams;
    struct zb_needs held; /* places of the saved versions, as the plan counts them */
    struct zb_place_job in;
    uint64_t nvme_free;
    struct zb_place plan;
    int rc; /* of the plan */
    unsigned tries;
};

/** Reads the accounts. 0 or -ENOMEM. */
int zsd_placing_look(struct zsd_placing *p);
/** Makes the plan. Touches only the struct: any thread. */
void zsd_placing_plan(struct zsd_placing *p);
/** Whether the job does not fit, or there was no memory for the plan. */
bool zsd_placing_refused(const struct zsd_placing *p);
/** Whether the plan still fits, or still has to be refused. */
bool zsd_placing_current(const struct zsd_placing *p);
/** Books the plan. 0; else err, and nothing is booked. */
int zsd_placing_book(const struct zsd_placing *p, struct zb_err *err);

/** A saved job with the identity and the manifest of a job, held by its incarnation, and not linked
 * with it. NULL: no memory. */
struct zsd_saved *zsd_place_saved(const struct zsd_job *job);

#endif
