/*
 * core.h - the core of the daemon: jobs, shards, placement and operations. It is independent of
 * libuv and sockets.
 *
 * MODEL. This header has the data for scheduling and accounting. Each other room keeps its data in
 * a struct of its own, which only that room and the rooms above it can access: the headers named
 * below define them. core_life.c allocates all of them together.
 *
 * Loop thread only.
 */
#ifndef ZSD_CORE_H
#define ZSD_CORE_H

#include "daemon/run/account.h"
#include "daemon/run/compute.h"
#include "daemon/run/daemon.h"
#include "daemon/run/fair.h"

struct zsd_disk;
struct zsd_jobs;
struct zsd_ops;
struct zsd_planner;
struct zsd_scans;
struct zsd_scrub;
struct zsd_store;

/** Deferred work: it runs in this turn or, if deferred by other work, in the next. Deferring it
 * twice is fine. */
struct zsd_work {
    void (*run)(struct zsd_work *work);
    struct zb_list node;
};

/** A deadline. */
struct zsd_timed {
    uint64_t deadline_ns;
    void (*expire)(struct zsd_timed *timed); /* already disarmed */
    struct zb_list node;
};

/** The timer wheel: all armed deadlines (turn.c). */
#define ZSD_WHEEL_SLOTS 4096u
struct zsd_wheel {
    struct zb_list slots[ZSD_WHEEL_SLOTS];
    struct zb_list due; /* collected, and not expired yet */
    uint64_t span;      /* the newest span of time that was checked */
};

struct zsd_core {
    struct zsd *daemon;
    uint32_t page_elems;
    uint32_t next_job;      /* number of the next new job, unless a job has it */
    bool leaving;           /* the daemon waits for ranks that attach again after its restart */
    bool draining;          /* the daemon is ending: nothing new begins */
    struct zb_list works;   /* deferred */
    struct zsd_wheel wheel; /* deadlines */
    unsigned in_progress;   /* operations in progress: an orderly end waits for them */
    unsigned job_holds;     /* those of jobs: the sum of their `inflight` */
    struct zsd_work room;   /* deferred by zsd_room_changed(); op/open.c sets its function */
    struct zsd_tiers tiers;
    struct zsd_payer house; /* the house: payer for work without a job (readers, scrub, catalog) */

    struct zsd_disk *disk;       /* disk/disk.h */
    struct zsd_store *store;     /* store/store.h: saved data; NULL: none */
    struct zsd_jobs *jobs;       /* job/job.h */
    struct zsd_planner *planner; /* plan/planner.h */
    struct zsd_ops *ops;         /* op/ops.h */
    struct zsd_scrub *scrub;     /* show/scrub.c: the newest run, or NULL */
    struct zsd_scans *scans;     /* show/scans.h: fsck and df */
};

#endif
