/*
 * core_priv.h - what the files of the core share: deferred work, deadlines, the page buffers, the
 * data file's queue and the budgets.
 *
 * RULE. Nobody is resumed from inside the call that made it runnable: zsd_defer() queues it, and
 * zsd_core_turn() runs it. So the stack stays flat, and a structure is never changed under its
 * caller.
 */
#ifndef ZSD_CORE_PRIV_H
#define ZSD_CORE_PRIV_H

#include "base/slots.h"
#include "base/space.h"
#include "daemon/os/arena.h"
#include "daemon/run/compute.h"
#include "daemon/run/core.h"
#include "daemon/run/fair.h"

/** Something to run in this turn. Deferring what is deferred already is fine. */
struct zsd_work {
    void (*run)(struct zsd_work *work);
    struct zb_list node;
};

/** Something that waits, and until when. */
struct zsd_timed {
    uint64_t deadline_ns;
    void (*expire)(struct zsd_timed *timed); /* already disarmed */
    struct zb_list node;
};

/** One transfer of a page, to where its off_bytes says (ZN_AT); a flush or a commit slot goes to
 * every data file, one after the other, until one fails. Waits here when the engine is full. */
struct zsd_pio {
    struct zn_io io;         /* op, buf, len, off and urgent are the caller's; done is ours */
    struct zsd_payer *payer; /* whose it is; NULL: the house's */
    struct zsd_core *core;
    unsigned path;
    void (*done)(struct zsd_pio *pio, int rc);
    struct zsd_turn turn;
};

/** A page buffer that somebody wants: waits in line, as payer and bytes say. Zeroed but for the
 * first three, and not moved while it waits. */
struct zsd_claim {
    struct zsd_payer *payer; /* NULL: the house */
    uint64_t bytes;          /* that the buffer is wanted for: read and written */
    struct zsd_work *work;   /* deferred when the buffer has been given */
    bool waits;              /* in line */
    void *buffer;            /* given, and not taken yet */
    struct zsd_turn turn;
};

/** Host memory that somebody waits for, and others give up state for: plan/replan.c. */
struct zsd_want {
    uint64_t bytes;
    struct zb_list node;
};

enum zsd_use {
    ZSD_USE_PARAM,
    ZSD_USE_GRAD,
    ZSD_USE_STATE,
    ZSD_USE_STAGING,
    ZSD_USE_RING,
    ZSD_USES
};

/** A tier's account: what is promised to whom. used[] never exceeds budget. */
struct zsd_account {
    uint64_t budget;
    uint64_t used[ZSD_USES];
};

struct zsd_extents;
struct zsd_scrub;

/** What the best second of a drive was, in each direction: nobody measures better than that. */
struct zsd_second {
    uint64_t since_ns, read_bytes, written_bytes; /* where the present one began */
    uint64_t best_read, best_written;             /* bytes a second */
};

/** zsd_pio that an engine had no place for; and writes that a hold keeps, which are paid for. */
struct zsd_line {
    struct zsd_fair waiting;
    struct zb_list held;
    unsigned depth;           /* transfers that are not done: those in line, and those in flight */
    struct zsd_gauge depths;  /* the same over the time; seen once a turn */
    struct zsd_second second; /* the best one */
};

/** Page writes wait for a change of the catalog: core.c. */
struct zsd_hold {
    bool on;
    uint64_t since_ns, rests_until_ns;
    struct zsd_timed timed;
};

struct zsd_core {
    struct zsd *daemon;
    uint32_t page_elems;
    struct zb_list opens; /* job-opens that wait (op/open.c) */
    struct zsd_work room; /* looks at them, and at jobs that wait for their place */
    uint32_t closing;     /* tasks that give memory back */
    struct zb_list jobs;  /* every job, ended ones too while something holds them */
    struct zb_list works; /* deferred */
    struct zb_list timed;
    uint32_t next_job;
    uint64_t generation; /* of the newest page written: never repeats in a run of the daemon */
    bool draining;

    struct zsd_account host, nvme;
    uint64_t host_target;       /* what the host tier's budget was set to: it comes down to that */
    struct zsd_account gpu;     /* of the GPU tier: state, parameters, and what pages pass through
                                   (ring) */
    uint64_t gpu_target;        /* as host_target */
    struct zb_err gpu_err;      /* code 0: the device works, or there is none */
    struct zsd_work gpu_failed; /* plan/gpu_plan.c */
    struct zb_err gpu_unpinned; /* the first host memory that it did not pin; code 0: none */
    struct zb_list strands;     /* GPU memory given back, and mapped still (plan/gpu_params.c) */
    struct zsd_timed strands_timed;
    bool strands_looked_at;
    uint64_t params_tag;                 /* of the newest job with parameters on the GPU */
    struct zsd_work replan;              /* plan/replan.c */
    struct zb_list wants;                /* struct zsd_want: in the order in which they came */
    struct zb_space *maps[ZN_PATHS_MAX]; /* of each data file, in ZB_PAGE_ALIGN units: paths.h */
    struct zb_space *extents;            /* the first one; NULL: no NVMe tier */
    struct zsd_extents *places;          /* of pages there (extents.c); NULL likewise */
    struct zsd_store *store;             /* what survives; NULL: nothing does */

    struct zsd_payer house;              /* what belongs to no job: readers, scrub, the catalog */
    struct zsd_line lines[ZN_PATHS_MAX]; /* before each data file */
    struct zsd_hold hold;

    uint8_t *buffers; /* page buffers: what streams passes through them */
    uint64_t buffer_bytes;
    uint32_t nbuffers, nbuffers_free;
    void **buffers_free;
    struct zsd_fair buffer_line;   /* zsd_claim; nobody waits while a buffer is free */
    struct zsd_gauge buffers_used; /* seen once a turn */

    struct zb_list readers; /* of saved versions (op/reader.c) */
    uint64_t next_reader;
    struct zsd_scrub *scrub; /* the newest run (scrub.c), or NULL */

    unsigned ops; /* operations in progress */
};

void zsd_defer(struct zsd_core *core, struct zsd_work *work);

/** timeout_ms 0: the configured one. */
void zsd_timed_arm(struct zsd_core *core, struct zsd_timed *timed, uint32_t timeout_ms,
                   void (*expire)(struct zsd_timed *timed));
void zsd_timed_disarm(struct zsd_timed *timed);

/** done runs later, never from inside. */
void zsd_pio_start(struct zsd_core *core, struct zsd_pio *pio);

/** From here on page writes that come wait, until the end of the hold, or some 100 ms; unless one
 *  was not long ago. Ending none is fine. */
void zsd_hold_begin(struct zsd_core *core);
void zsd_hold_end(struct zsd_core *core);

/** A page buffer, or NULL: then claim->work is deferred when one has been given, and asking again
 * takes it; asking meanwhile changes nothing. A claim that waits cannot be withdrawn. */
void *zsd_buffer_get(struct zsd_core *core, struct zsd_claim *claim);
/** Gives it to whose turn it is. */
void zsd_buffer_put(struct zsd_core *core, void *buffer);

/** The least host_bytes of a daemon with our options that leaves `bytes` beside its page buffers.
 */
uint64_t zsd_host_least(const struct zsd_core *core, uint64_t bytes);

void zsd_task_start(struct zsd_core *core, struct zsd_task *task);

uint64_t zsd_account_used(const struct zsd_account *a);
static inline uint64_t zsd_account_free(const struct zsd_account *a)
{
    return a->budget - zsd_account_used(a);
}

/** Answers with a sentence made here; returns nothing, since the request is over. */
void zsd_refuse(struct zsd_req *req, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
