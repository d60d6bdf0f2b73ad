/*
 * zsim.h - the daemon's core on a simulated device, driven by one thread and compared with an
 * oracle.
 *
 * MODEL. Three layers, each a file:
 *
 *     oracle.c   what a job must hold: plain arrays outside of the store, stepped by
 *                kernels/zk_page.h for whole units; and what must be durable (struct zs_model)
 *     zsim.c     a core (core_world.h) on a device, turned in a random order
 *     script.c   a run: the actions of the ranks, one after another, with the oracle kept in step;
 *                records what was acknowledged at which operation of the device
 *
 * REPEATING. The seed and the device determine everything: compute tasks run in the thread that
 * reaps them (compute_inline.c), and whether engine, tasks or catalog come next is drawn from the
 * seed. So a failure names seed, operation and variant, and can be repeated with these.
 *
 * A run goes on after failures, as trainers do: a rank that lost its job attaches again. The
 * possible results of a failed change are kept until the next change is acknowledged.
 */
#ifndef ZSIM_H
#define ZSIM_H

#include "nvme/sim/zn_sim.h"
#include "tests/core/core_world.h"

#define ZS_UNITS      9u
#define ZS_RANKS      3u
#define ZS_JOBS       2u
#define ZS_SNAPS      4u
#define ZS_STAGING    (128u << 10)
#define ZS_DATA       "data"
#define ZS_CATALOG    "catalog"
#define ZS_MORE       "more" /* of the second data file */
#define ZS_COPY       "copy" /* of the catalog, next to it */
#define ZS_DATA_BYTES (UINT64_C(16) << 20)

/* ---- failures of a test: the message begins with the context, the action in progress */

void zs_context(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void zs_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/** abort(), crashes, and actions that take longer than a minute print the context, too. */
void zs_watch(void);
/** An environment variable as a number, or `without` if it is not set. */
uint64_t zs_env(const char *name, uint64_t without);

/* ---- the oracle */

struct zs_note {
    uint32_t len; /* 0: none */
    uint64_t iteration;
    char text[48];
};

/** One whole state of a job. Immutable once it is shared. */
struct zs_state {
    unsigned refs;
    uint64_t iterations, applied;
    struct zs_note notes[ZS_RANKS], job_note;
    uint8_t *planes[ZS_UNITS][ZSD_SAVED_PLANES]; /* of whole units, padded; NULL: there is none */
};

extern struct unit zs_units[ZS_UNITS]; /* a test may change them before a run */
extern const struct zk_params zs_groups[2];

struct zb_layout zs_layout(unsigned u);
/** Whether elements [first, first + count) of a unit's plane, which lie at `bytes` in pages, are
 * those of the state, with zeros at the end of each page. */
bool zs_pages_same(const struct zs_state *s, unsigned u, enum zsd_saved_plane p, uint64_t first,
                   uint64_t count, uint32_t page_elems, const uint8_t *bytes);
float zs_initial(unsigned u, uint64_t element);
/** The gradient of the nth step of this run, fp32 or bf16 as the unit requires. */
void zs_gradient(uint64_t n, unsigned u, uint64_t first, uint64_t count, void *out);

struct zs_state *zs_state_first(void);
/** The same state with one more iteration; n 0: a skipped step. */
struct zs_state *zs_state_next(const struct zs_state *s, uint64_t n);
struct zs_state *zs_state_copy(const struct zs_state *s);
struct zs_state *zs_state_ref(struct zs_state *s); /* NULL is allowed */
void zs_state_unref(struct zs_state *s);           /* NULL is allowed */

/** What the catalog must hold. */
struct zs_model {
    struct zs_saved {
        char name[16]; /* "": there is none */
        struct zs_state *committed, *prepared;
        struct {
            char name[16];
            struct zs_state *state;
        } snaps[ZS_SNAPS];
        unsigned nsnaps;
    } jobs[ZS_JOBS];
};
void zs_model_copy(struct zs_model *to, const struct zs_model *from);
void zs_model_done(struct zs_model *m);

/* ---- the core */

struct zs_world {
    struct zn_sim *sim;
    struct world core; /* client r is rank r; the last one has no rank */
    uint64_t seed;
    uint64_t detected; /* reads that returned -EBADMSG */
    uint64_t bytes;    /* read and compared */
};

#define ZS_NOBODY ZS_RANKS

/** Whether a start measures the data file, as zshardd does; how much that transfers depends on
 * time. Initially false. */
extern bool zs_measures;
/** How many data files the store has: 1, or 2. */
extern unsigned zs_paths;
/** The device of the second data file; NULL: the same one. */
extern struct zn_sim *zs_second;
/** If set, devices have a fixed rate, so that answers take real time. */
extern bool zs_patient;
/** If set, and there are two data files: now and then one of them is drained, or used again. */
extern bool zs_drains;
/** If set, devices discard: what is free gets other bytes, now and then. */
extern bool zs_discards;
/** ZSHARD_RING: jobs do not hold the gradients of streamed pages. */
bool zs_rings(void);
/** Whether its steps are announced with limits of norms, which limit nothing. */
bool zs_limits(void);
/** The data file that a start retires, from 1; 0: none. */
extern unsigned zs_retire;
/** If set: that file is not retired, but made so short. */
extern uint64_t zs_shrink_bytes;

/** Starts a core with the contents of the device: 0, or why it does not start. Then nothing is left
 * running. */
int zs_start(struct zs_world *w, struct zn_sim *sim, uint64_t seed, uint32_t page_elems,
             struct zb_err *err);
/** The process dies: only what is in flight is finished. */
void zs_stop(struct zs_world *w);

/** Turns until the request is answered; bounded. */
int zs_answer(struct world *core, unsigned tag);
/** Turns until nothing is in progress. */
void zs_settle(struct zs_world *w);

struct zs_open {
    const char *job;
    uint32_t world;
    uint64_t host_bytes; /* in addition to the staging; 0: what is free */
    bool attach;
    const uint64_t *at;          /* the point to resume from */
    bool unkept;                 /* neither kept nor durable; its ranks come back after a restart */
    uint64_t epoch;              /* with attach: of rank 0 */
    enum zb_optimizer optimizer; /* 0: AdamW */
};
/** All ranks open, define, register and are ready: 0, or the first refusal; then no rank is
 * connected. */
int zs_open(struct zs_world *w, const struct zs_open *o);
/** All ranks hang up. */
void zs_hang_up(struct zs_world *w);

/** What ranks do: initial values; the gradients of iteration `step`, as of the nth step; the step.
 * 0, or the first refusal. */
int zs_write(struct zs_world *w, uint32_t world);
int zs_push(struct zs_world *w, uint32_t world, uint64_t step, uint64_t n);
int zs_step(struct zs_world *w, uint32_t world, uint64_t step);

/** Reads everything that the ranks have and compares it, notes too. Returns 0, or a failure that
 * was reported; a wrong byte fails the test. */
int zs_read_all(struct zs_world *w, uint32_t world, const struct zs_state *s);
/** The same for every page of a version, as the store reads it. */
int zs_read_version(struct zs_world *w, const struct zsd_version *v, const struct zs_state *s);
/** The index of the model whose names, steps and notes are those of the store; -1: none. */
int zs_match(struct zs_world *w, const struct zs_model *const *models, unsigned n);
/** Reads every page of every version of the model: 0, or the first failure reported. */
int zs_read_model(struct zs_world *w, const struct zs_model *m);

/* ---- a run */

/** What was acknowledged. After a power failure, the store may hold this model from operation
 * `begin` on, and must hold it from `end` on. */
struct zs_entry {
    uint64_t begin, end; /* operations of the device */
    struct zs_model model;
};

struct zs_run {
    struct zs_world w;
    struct zn_sim *sim;
    uint64_t seed;
    uint32_t page_elems;
    bool up;      /* the daemon runs */
    bool rewinds; /* the device never keeps its promises: what was acknowledged may be gone */
    uint32_t world;
    uint64_t nsteps;
    uint64_t begun;       /* the step whose gradients were pushed already; 0: none */
    bool limited;         /* the next step was announced with limits */
    struct zs_state *mem; /* what the job holds in memory, or NULL */
    struct zs_model model;
    struct zs_model *maybe;
    unsigned nmaybe;
    struct zs_entry *entries;
    unsigned nentries;
    unsigned failures;     /* requests that reported one */
    struct zb_err refused; /* why the daemon did not start */
};

/** The caller keeps the device. */
void zs_run_init(struct zs_run *r, struct zn_sim *sim, uint64_t seed, uint32_t page_elems);
void zs_run_done(struct zs_run *r);
/** Runs the workload; at the end the daemon is down. */
void zs_run_script(struct zs_run *r);

/** What the store may hold at operation `op` when nothing is lost: one model, or two while a change
 * is in progress. Returns how many. */
unsigned zs_run_models(const struct zs_run *r, uint64_t op, const struct zs_model *models[2]);

/** Starts the daemon and reads everything that is saved: 0, or why it does not start, or why a page
 * cannot be read. The contents must be as the run expects; a wrong byte fails the test. */
int zs_run_restart(struct zs_run *r);

/** What a device must hold after it lost power, or failed. */
struct zs_recovery {
    const struct zs_model *const *models; /* the store holds one of these */
    unsigned nmodels;
    uint64_t seed; /* of world, places and order */
    uint32_t page_elems;
    bool goes_on;        /* ranks attach, read everything, step, commit; the daemon restarts */
    uint64_t *ret_bytes; /* bytes read and compared are added; or NULL */
    bool damaged;        /* bytes were changed: the daemon may refuse to start, or to read a page */
};
/** Starts a core on the device and compares every byte that it holds. Returns the index of its
 * model; for a damaged device also ZS_REFUSED, or ZS_DETECTED when a page could not be read. */
#define ZS_REFUSED  (-1)
#define ZS_DETECTED (-2)
int zs_recover(struct zn_sim *sim, const struct zs_recovery *how);

#endif
