/*
 * saved.h - saved jobs: identity, versions, snapshots and promises.
 *
 *     struct zsd_saved     a durable job: its identity, its manifest, its committed and prepared
 *                          versions, its snapshots. Its incarnation is a struct zsd_job (job/job.h)
 *                          while it is in memory, or there is none.
 *
 * PROMISES. The promise of a job (struct zb_needs, base/place.h) has, for each class of places:
 * those that its distinct rows hold, those that its next version can need, and spares for pages in
 * flight. An extent that two jobs share counts in both promises.
 *
 * What the rows hold is a sum (saved->held), which each change of the versions keeps up (delta.c).
 * What a job in memory needs besides is counted anew each time, shard by shard, in parts where it can
 * wait (struct zsd_needs_walk). Any other job needs what its newest version says.
 *
 * Loop thread only.
 */
#ifndef ZSD_SAVED_H
#define ZSD_SAVED_H

#include "base/place.h"
#include "daemon/net/limits.h"
#include "daemon/store/version.h"
#include "proto/wire.h"

struct zsd_job;
struct zsd_store;

/** What a job in memory needs besides the rows of its versions, while it is counted: from the
 * beginning, if the job is placed or planned anew meanwhile. Begins as all zero. */
struct zsd_needs_walk {
    bool begun;
    uint64_t of;    /* saved->planned when it began */
    uint32_t shard; /* the next one */
    uint32_t at;    /* where the row of that may be in a version */
    struct zb_needs sum, streamed[ZB_PLANES], early[ZB_PLANES];
};

struct zsd_snap {
    char name[ZP_NAME_MAX + 1];
    uint64_t id; /* in the catalog, ascending: the age */
    uint64_t created_unix;
    struct zsd_version *version;
    bool going;          /* the change in the line destroys it */
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
    enum zp_offload offload_param, offload_optimizer; /* ZP_HOST, ZP_NVME */
    uint64_t host_bytes_max;
    uint64_t epoch;
    struct zsd_unit **units; /* the manifest; no shards in them */
    uint32_t nunits;
    struct zsd_version *committed, *prepared; /* neither, before the first: then the job is not in
                                                 the catalog yet */
    struct zsd_version *doubt; /* its change failed, but the catalog may have it: its pages stay
                                  until the daemon is restarted */
    struct zb_list snaps;
    struct zb_needs held; /* by the distinct rows of its versions */
    struct zb_needs promise;
    struct zsd_account nvme_held; /* the promise, as booked */
    struct zsd_job *job;          /* in memory, or NULL */
    bool lacks;                   /* lacks room for its next version: it cannot continue without */
    uint32_t pending;             /* changes and operations of it: they keep the struct */
    bool gone;                    /* destroyed: it is not found any more */
    bool coming;                  /* a clone in progress: its name is taken */
    bool moving;                  /* being destroyed or rolled back: no rank can attach */
    struct zsd_work *ended;       /* deferred when its incarnation is over, or NULL */
    struct zb_list snap_waiters;  /* requests for a snapshot of the next commit (op/snapshot.c) */
    /* Tells them that no commit will come; set by the code that waits. */
    void (*snap_cancel)(struct zsd_saved *saved, const struct zb_err *why);
    /* If the job is in memory and placed: counts its needs in addition to the rows of its versions, or
     * of those that are not going; `left` of its shards. 1: w->sum is complete; 0: it is not;
     * -ENOMEM (zsd_place_needs()). NULL: there is no such job. */
    int (*needs)(const struct zsd_job *job, unsigned times, bool going, struct zsd_needs_walk *w,
                 uint64_t left);
    uint64_t planned;     /* how often its job was placed or planned: zsd_saved_planned() */
    uint64_t grads_bytes; /* of that job's gradients, on NVMe */
    struct zb_list node;  /* in store->saved */
};

/** Whether it is in the catalog. */
static inline bool zsd_saved_kept(const struct zsd_saved *saved)
{
    return saved->committed || saved->prepared;
}

/** The quota to which its snapshots are charged. */
struct zsd_quota *zsd_saved_quota(struct zsd_saved *saved);
/** Charges a snapshot that is in no list yet, and what its version keeps in memory, if no other
 * snapshot has it: notes, and tables (zsd_version_table_bytes()). A row that versions share counts in
 * each of them: that is more than there is, never less. 0; -ENOSPC or -EDQUOT with the numbers. */
int zsd_snap_charge(struct zsd_saved *saved, struct zsd_snap *snap, struct zb_err *err);
/** Reverses that, for a snapshot in saved->snaps that version->snapshots still counts, or for one that is in no
 * list and not counted. What its version keeps stays charged until its last snapshot is discharged. */
void zsd_snap_discharge(struct zsd_saved *saved, struct zsd_snap *snap);
/** Charges all of them, regardless of limits: they were allowed before. */
void zsd_snaps_recovered(struct zsd_saved *saved);

/** Finds a saved job that is kept. */
struct zsd_saved *zsd_saved_by_name(struct zsd_core *core, const char *name);
struct zsd_snap *zsd_snap_by_name(const struct zsd_saved *saved, const char *name);
/** A saved job with a copy of this manifest, and nothing else: the caller fills in its identity.
 * Held by its incarnation. NULL: no memory. */
struct zsd_saved *zsd_saved_new(struct zsd_store *store, struct zsd_unit *const *units,
                                uint32_t nunits);
/** A saved job with the manifest of another, and nothing else: for a clone. NULL: no memory. */
struct zsd_saved *zsd_saved_like(const struct zsd_saved *saved, const char *name, uid_t uid);
/** Keeps the struct while an operation or a change of it is in progress. */
void zsd_saved_hold(struct zsd_saved *saved);
/** The last call frees a job that was destroyed, or that never committed and has no incarnation. */
void zsd_saved_unhold(struct zsd_saved *saved);
/** Sets its promise to the needs of its versions, with room for one more like the newest. 0;
 * -ENOSPC with the numbers, or -ENOMEM: then nothing changes. A promise that only shrinks never
 * fails. */
int zsd_saved_reserve(struct zsd_saved *saved, struct zb_err *err);
/** The same in parts. True: it is over (saved->lacks has the result). */
bool zsd_saved_reserve_part(struct zsd_saved *saved, struct zsd_needs_walk *w);
/** Call before its job in memory needs more: sets its promise to enough for the current state, and for
 * the new needs. Returns as above. */
int zsd_saved_raise(struct zsd_saved *saved, struct zb_err *err);
/** Call before a change that raises its needs (a snapshot; the first version of a clone): likewise, for
 * the state after the change, with `committed` as its commit, without the snapshots that are
 * destroyed, when its rows hold `held`. In parts: 1: the rest is for the next turn. */
int zsd_saved_raise_part(struct zsd_saved *saved, const struct zsd_version *committed,
                         const struct zb_needs *held, struct zsd_needs_walk *w, struct zb_err *err);
void zsd_needs_walk_done(struct zsd_needs_walk *w);
/** The needs of its job change: a count of them that is in progress begins again. */
static inline void zsd_saved_planned(struct zsd_saved *saved)
{
    saved->planned++;
}
/** One of its versions, or of those that are not going, has this row. *at: zsd_version_has(). */
bool zsd_saved_has(const struct zsd_saved *saved, bool going, const struct zsd_row *r,
                   uint32_t *at);
/** Call before pages of its job are written again: 0; or there is no room, and err has the reason.
 */
static inline int zsd_saved_room(struct zsd_saved *saved, struct zb_err *err)
{
    return saved && saved->lacks ? zsd_saved_reserve(saved, err) : 0;
}
/** Whether a change of it, or a reader, is in progress: then its promise must not be lowered. */
static inline bool zsd_saved_changes(const struct zsd_saved *saved)
{
    return saved->pending > (saved->job ? 1u : 0u);
}
/** How many times the trainable rows of the newest version are needed in addition to held places.
 */
unsigned zsd_saved_next(const struct zsd_saved *saved);

#endif
