/*
 * stats.h - counters of the daemon since its start (`zctl stat`), and gauges of each job (`zctl
 * top`).
 *
 * MODEL. The struct of counters and the table of their names are generated from one list. A new
 * counter is a line here. Loop thread only: a counter is a plain integer that is increased where
 * the event happens.
 *
 * A GAUGE is the current number of items, and its integral over time. Two readings give the mean
 * number between them, and the fraction of that time in which it was not 0. This is exact for items
 * of any duration, because an item counts while it waits, not when it ends. Gauges that change with
 * a page are updated where that happens, with one reading of the clock. Gauges that change with a
 * turn of the loop (requests that wait for a step, the queue of a drive) are updated once per turn,
 * by zsd_top_turn().
 */
#ifndef ZSD_STATS_H
#define ZSD_STATS_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* The loop's half: server, connections, requests. */
#define ZSD_STATS_LOOP(X)                                                                \
    X(clients_accepted)                                                                  \
    X(clients_refused)    /* clients_max was reached, or no descriptors were left */     \
    X(clients_dropped)    /* by us: garbage, or a peer that does not read */             \
    X(requests)           /* and one-way messages */                                     \
    X(requests_unknown)   /* answered -ENOSYS, or dropped when one-way */                \
    X(requests_malformed) /* the body could not be decoded */                            \
    X(replies_failed)     /* answers with an error code */                               \
    X(replies_lost)       /* the client had gone */                                      \
    X(sent_stalls)        /* times that a connection was not read from: back-pressure */ \
    X(log_lines_dropped)  /* about clients that cause too many */                        \
    X(turns)              /* of the loop */                                              \
    X(turn_max_work)      /* units of work of the longest turn: run/turn.h */            \
    X(turn_max_ns)        /* CPU time of the loop's thread, of the longest turn */       \
    X(turn_p999_ns)       /* 99.9 % of the turns took no longer, by the clock */         \
    X(turn_recent_work)   /* the same three, of the turns since the counters were... */  \
    X(turn_recent_ns)     /* ...last requested */                                        \
    X(turn_recent_p999_ns)

/* The core's half. */
#define ZSD_STATS_CORE(X)                                                                 \
    X(releases_bad)       /* one-way, so only counted */                                  \
    X(pages_early)        /* stepped ahead of the barrier */                              \
    X(pages_undone)       /* of these, dropped again */                                   \
    X(pages_corrupt)      /* read, and not what was written */                            \
    X(scrub_bytes)        /* of saved pages that were read */                             \
    X(scrub_bad_pages)    /* corrupt, or not readable */                                  \
    X(write_holds)        /* pauses of page writes, for the catalog */                    \
    X(write_hold_us)      /* their total length */                                        \
    X(commits)            /* of jobs, prepared ones too */                                \
    X(commits_failed)     /* refusals of wrong requests excluded */                       \
    X(drives_drained)     /* on request, or because they fail, are slow or stall */       \
    X(drained_pages)      /* moved off a drained drive, other than by a step */           \
    X(drained_bytes)      /* of these */                                                  \
    X(pages_elsewhere)    /* written to another drive, after a write had failed */        \
    X(muon_pages_ahead)   /* begun before the matrices before them were orthogonalized */ \
    X(catalog_changes)    /* made durable */                                              \
    X(catalog_failed)     /* the catalog or a slot was not written */                     \
    X(near_bytes)         /* host memory that was placed near a GPU */                    \
    X(near_refused_bytes) /* that the kernel did not place there */

#define ZSD_STATS(X) ZSD_STATS_LOOP(X) ZSD_STATS_CORE(X)

struct zsd_stats {
#define ZSD_STATS_MEMBER(name) uint64_t name;
    ZSD_STATS(ZSD_STATS_MEMBER)
#undef ZSD_STATS_MEMBER
};

#define ZSD_STATS_COUNT (sizeof(struct zsd_stats) / sizeof(uint64_t))

/** Names in the order of the struct: value i of a struct is ((const uint64_t *)stats)[i]. */
extern const char *const zsd_stats_names[ZSD_STATS_COUNT];

/* ---- gauges */

struct zsd_gauge {
    uint64_t now;      /* current number of items */
    uint64_t since_ns; /* end of the integrals */
    uint64_t area_ns;  /* integral of the number */
    uint64_t busy_ns;  /* time in which it was not 0 */
};

/** Extends the integrals to now_ns. An earlier time than theirs changes nothing. */
static inline void zsd_gauge_at(struct zsd_gauge *g, uint64_t now_ns)
{
    uint64_t ns = now_ns - g->since_ns;

    if (now_ns <= g->since_ns)
        return;
    g->since_ns = now_ns;
    g->area_ns += g->now * ns;
    g->busy_ns += g->now > 0 ? ns : 0;
}

static inline void zsd_gauge_set(struct zsd_gauge *g, uint64_t n, uint64_t now_ns)
{
    zsd_gauge_at(g, now_ns);
    g->now = n;
}

static inline void zsd_gauge_inc(struct zsd_gauge *g, uint64_t now_ns)
{
    zsd_gauge_set(g, g->now + 1, now_ns);
}

static inline void zsd_gauge_dec(struct zsd_gauge *g, uint64_t now_ns)
{
    assert(g->now > 0);
    zsd_gauge_set(g, g->now - 1, now_ns);
}

/* ---- of a job */

/** Stage of a page operation. A page that needs no buffer, or no I/O, passes through that stage. */
enum zsd_stage {
    ZSD_STAGE_NONE,
    ZSD_STAGE_BUFFER,  /* waits for a page buffer */
    ZSD_STAGE_READ,    /* is read, or waits for the drive to begin */
    ZSD_STAGE_COMPUTE, /* runs on a compute thread, or waits for one */
    ZSD_STAGE_WRITE,   /* is written, or waits for the drive to begin */
    ZSD_STAGE_GPU,     /* is stepped on the GPU, or its state is copied; or waits for that */
    ZSD_STAGES
};

/** What a request of a rank waits for. op/fetch.c and op/push.c set the values below STEP_RANKS;
 * the others are determined once per turn. */
enum zsd_wait {
    ZSD_WAIT_NONE,
    ZSD_WAIT_FETCH_DRIVE,   /* its pages are read and verified */
    ZSD_WAIT_FETCH_ROOM,    /* for a place in the ring */
    ZSD_WAIT_FETCH_VERSION, /* for the step, or the values, that make it */
    ZSD_WAIT_PUSH_TURN,     /* for the micro-step before it, or for a reader of the gradient */
    ZSD_WAIT_PUSH_COMPUTE,  /* it is added */
    ZSD_WAIT_STEP_RANKS,    /* for the ranks that have not asked yet */
    ZSD_WAIT_STEP_PINS,     /* for ranks to release what they fetched */
    ZSD_WAIT_STEP_TRAFFIC,  /* for pushes, fills and copies to end */
    ZSD_WAIT_STEP_PAGES,    /* the step runs */
    ZSD_WAIT_COMMIT,        /* for a commit: after a step, before the next one, or requested */
    ZSD_WAIT_READY,         /* for the other ranks to be ready, or for a load */
    ZSD_WAITS
};

/** The commits of a job since it is in memory. */
struct zsd_commit_stats {
    uint64_t done, failed;
    uint64_t unix_s;   /* when the last one that did not fail ended; 0: there is none */
    struct zb_err why; /* of the last one, if it failed; code 0: it did not */
};

struct zsd_job_stats {
    struct zsd_commit_stats commits;
    uint64_t fetches, hits, misses; /* requests; their shards that were in memory, and others */
    uint64_t pushes;
    uint64_t pages;                      /* page operations that ended */
    uint64_t page_ns;                    /* their time: the sum of the stages' areas, at rest */
    uint64_t compute_ns;                 /* of that, on a compute thread */
    struct zsd_gauge stages[ZSD_STAGES]; /* page operations; NONE is unused */
    struct zsd_gauge drive_only;         /* 1 while pages are only read or written */
    struct zsd_gauge waits[ZSD_WAITS];   /* requests; NONE is unused */
    struct zsd_gauge asking;             /* ranks with a request that is not answered */
};

/** Moves a page operation from one stage to another; NONE: before the first, or after the last. */
void zsd_stage_move(struct zsd_job_stats *s, enum zsd_stage from, enum zsd_stage to,
                    uint64_t now_ns);
/** Changes what a request waits for; NONE: it does not wait. */
void zsd_wait_move(struct zsd_job_stats *s, enum zsd_wait from, enum zsd_wait to, uint64_t now_ns);
/** Extends all gauges to now_ns. */
void zsd_job_stats_at(struct zsd_job_stats *s, uint64_t now_ns);

#endif
