/*
 * saved.h - saved jobs: identity, versions, snapshots and promises.
 *
 *     struct zsd_saved     a durable job: its identity, its manifest, its committed and prepared
 *                          versions, its snapshots. While the job is in memory, a struct zsd_job
 *                          (job/job.h) is its incarnation.
 *
 * An IMAGE is a saved job of another kind: a job that is not durable, as it was when the daemon ended
 * for a restart. Nobody sees it, and no request finds it, except the open of a rank that comes back
 * (op/open.c). It is deleted before such a job continues: op/image.h has the model.
 *
 * PROMISES. The promise of a job (struct zb_needs, base/place.h) has, for each class of places:
 * those that its distinct rows hold, those that its next version can need, and spares for pages in
 * flight. An extent that two jobs share counts in both promises.
 *
 * The places that the rows hold are a sum (saved->held), which each change of the versions updates
 * (delta.c). The additional needs of a job in memory are counted again each time, shard by shard,
 * and over several turns if the caller can wait (struct zsd_needs_walk). The needs of a job that is
 * not in memory follow from its newest version.
 *
 * Loop thread only.
 */
#ifndef ZSD_SAVED_H
#define ZSD_SAVED_H

#include "base/late.h"
#include "base/place.h"
#include "daemon/net/limits.h"
#include "daemon/store/version.h"
#include "proto/wire.h"

struct zsd_job;
struct zsd_store;

/** A count of the places that a job in memory needs in addition to the rows of its versions. It
 * starts over if the job is placed or planned again meanwhile. Begins as all zero. */
struct zsd_needs_walk {
    bool begun;
    uint64_t of;    /* saved->planned when it began */
    uint32_t shard; /* the next shard */
    uint32_t at;    /* likely index of that shard's row in a version */
    struct zb_needs sum, streamed[ZB_PLANES], early[ZB_PLANES];
};

struct zsd_snap {
    char name[ZP_NAME_MAX + 1];
    uint64_t id; /* in the catalog; ascends with time */
    uint64_t created_unix;
    struct zsd_version *version;
    bool going;          /* the running change destroys it */
    struct zb_list node; /* in saved->snaps, oldest first */
};

struct zsd_saved {
    struct zsd_store *store;
    uint32_t number;
    char name[ZP_NAME_MAX + 1];
    uid_t uid;
    struct zsd_quota quota; /* zsd_saved_quota() */
    uint32_t groups;
    enum zb_optimizer optimizer;
    enum zb_moments moments;
    enum zb_muon_engine muon_engine;
    enum zp_offload offload_param, offload_optimizer; /* ZP_HOST, ZP_NVME */
    uint64_t host_bytes_max;
    uint64_t epoch;
    bool image;                   /* it is the image of a job that is not durable */
    struct zsd_timed image_timed; /* when the daemon no longer waits for the ranks of an image */
    struct zsd_unit **units;      /* the manifest, without shards */
    uint32_t nunits;
    /* both NULL before the first commit: the job is not in the catalog yet */
    struct zsd_version *committed, *prepared;
    /* its change failed, but the catalog may have it: its places stay held until the daemon is
     * restarted */
    struct zsd_version *doubt;
    struct zb_list snaps;
    struct zb_needs held; /* by the distinct rows of its versions */
    struct zb_needs promise;
    struct zsd_account nvme_held; /* the promise, as booked */
    uint64_t sharing; /* of the change that runs: bytes to come that other jobs of its user have */
    struct zsd_job *job;    /* its incarnation, or NULL */
    bool lacks;             /* there is no room for its next version: it cannot continue */
    uint32_t pending;       /* its changes, operations and incarnation, which hold the struct */
    bool gone;              /* destroyed: it cannot be found by name */
    bool coming;            /* a clone in progress: its name is taken */
    bool moving;            /* being destroyed or rolled back: no rank can attach */
    struct zsd_work *ended; /* deferred when its incarnation has ended, or NULL */
    struct zb_list snap_waiters; /* requests for a snapshot of the next commit (op/snapshot.c) */
    /* Cancels these requests when no commit will come; set by op/snapshot.c. */
    void (*snap_cancel)(struct zsd_saved *saved, const struct zb_err *why);
    /* zsd_place_needs(), if the job is in memory, placed, and may have places; else NULL. */
    int (*needs)(const struct zsd_job *job, unsigned times, bool going, struct zsd_needs_walk *w,
                 uint64_t left);
    uint64_t planned;     /* increases when its job is placed or planned: zsd_saved_planned() */
    uint64_t grads_bytes; /* bytes of the incarnation's gradients on NVMe */
    struct zb_list node;  /* in store->saved */
};

/** Whether it is in the catalog. */
static inline bool zsd_saved_kept(const struct zsd_saved *saved)
{
    return saved->committed || saved->prepared;
}

/** Charges what it holds to its user: once it has its uid, before anything is promised. */
void zsd_saved_own(struct zsd_saved *saved);
/** The quota to which its snapshots are charged. */
struct zsd_quota *zsd_saved_quota(struct zsd_saved *saved);
/** Charges a snapshot that is in no list yet. If it is the first one of its version, also the
 * version's memory: notes, and tables (zsd_version_table_bytes()). A row that versions share is
 * charged for each of them, which is too much rather than too little. 0; -ENOSPC or -EDQUOT with
 * the numbers. */
int zsd_snap_charge(struct zsd_saved *saved, struct zsd_snap *snap, struct zb_err *err);
/** Reverses that: for a snapshot in saved->snaps that version->snapshots still counts, or for one
 * that is in no list and not counted. The version's memory stays charged until its last snapshot is
 * discharged. */
void zsd_snap_discharge(struct zsd_saved *saved, struct zsd_snap *snap);
/** At the start: charges all snapshots, regardless of limits, because they were allowed before. */
void zsd_snaps_recovered(struct zsd_saved *saved);

/** Charges a clone for its manifest, until it is destroyed or the daemon ends; and for the notes that it
 * copies from a version, until zsd_limit_give(). *ret: these bytes. 0; -ENOSPC or -EDQUOT. */
int zsd_clone_charge(struct zsd_saved *saved, struct zb_err *err);
int zsd_clone_charge_notes(struct zsd_saved *saved, const struct zsd_version *from, uint64_t *ret,
                           struct zb_err *err);

/** Finds a saved job in the catalog. NULL: none. An image is not found. */
struct zsd_saved *zsd_saved_by_name(struct zsd_core *core, uid_t uid, const char *name);
/** Finds an image. NULL: none. */
struct zsd_saved *zsd_image_by_name(struct zsd_core *core, uid_t uid, const char *name);
struct zsd_snap *zsd_snap_by_name(const struct zsd_saved *saved, const char *name);
/** A saved job with a copy of this manifest, and nothing else: the caller fills in its identity.
 * Held by its incarnation. NULL: no memory. */
struct zsd_saved *zsd_saved_new(struct zsd_store *store, struct zsd_unit *const *units,
                                uint32_t nunits);
/** A saved job with the manifest of another, and nothing else: for a clone. NULL: no memory. */
struct zsd_saved *zsd_saved_like(const struct zsd_saved *saved, uint32_t number, const char *name,
                                 uid_t uid);
/** Keeps the struct while an operation or a change of it is in progress. */
void zsd_saved_hold(struct zsd_saved *saved);
/** The last call frees a job that was destroyed, or that never committed and has no incarnation. */
void zsd_saved_unhold(struct zsd_saved *saved);
/** Sets the promise to the needs of its versions and of the next one. 0; -ENOSPC with the numbers,
 * or -ENOMEM: the promise is unchanged, and saved->lacks is set. A promise that only shrinks never
 * fails. */
int zsd_saved_reserve(struct zsd_saved *saved, struct zb_err *err);
/** The same in parts. True: it has ended; saved->lacks has the result. */
bool zsd_saved_reserve_part(struct zsd_saved *saved, struct zsd_needs_walk *w);
/** Call before its job in memory needs more: raises the promise to the new needs, and lowers it for
 * no class. 0; -ENOSPC with the numbers, or -ENOMEM. */
int zsd_saved_raise(struct zsd_saved *saved, struct zb_err *err);
/** Call before a change that raises its needs (a snapshot; the first version of a clone): the same
 * for the state after the change, with `committed` as its commit, without the snapshots that it
 * destroys, and with rows that hold `held`. In parts: also 1: call again in the next turn. */
int zsd_saved_raise_part(struct zsd_saved *saved, const struct zsd_version *committed,
                         const struct zb_needs *held, struct zsd_needs_walk *w, struct zb_err *err);
void zsd_needs_walk_done(struct zsd_needs_walk *w);
/** Call when the needs of its job change: a count in progress starts over. */
static inline void zsd_saved_planned(struct zsd_saved *saved)
{
    saved->planned++;
}
/** Whether one of its versions has this row. going: snapshots that are being destroyed count, too.
 * *at: as in zsd_version_has(). */
bool zsd_saved_has(const struct zsd_saved *saved, bool going, const struct zsd_row *r,
                   uint32_t *at);
/** Call before pages of its job are written: 0; or there is no room, and err has the reason. */
static inline int zsd_saved_room(struct zsd_saved *saved, struct zb_err *err)
{
    return saved && saved->lacks ? zsd_saved_reserve(saved, err) : 0;
}
/** Whether a change or another operation of it is in progress: then its promise must not be
 * lowered. */
static inline bool zsd_saved_changes(const struct zsd_saved *saved)
{
    return saved->pending > (saved->job ? 1u : 0u);
}
/** How many times the trainable rows of the newest version are needed in addition to held
 * places. */
unsigned zsd_saved_next(const struct zsd_saved *saved);

#endif
