/*
 * zsim.h - the daemon's core on a simulated device, driven by one thread, and an oracle beside it.
 *
 * MODEL. Three layers, each a file:
 *
 *     oracle.c   what a job must hold: plain arrays, stepped by kernels/zk_page.h for whole units,
 *                outside of the store; and what must be durable (struct zs_model)
 *     zsim.c     a core (core_world.h) on a device, turned in an order that is drawn
 *     script.c   a run: what the ranks do, one thing after the other, with the oracle kept in step,
 *                and what was acknowledged at which operation of the device
 *
 * REPEATING. The seed and the device decide everything: compute tasks run in the thread that reaps
 * them (compute_inline.c), and which of engine, tasks and catalog comes next is drawn. So a failure
 * names seed, operation and variant, and these run again as they did.
 *
 * A run goes on after failures, as trainers do: who lost its job attaches again. What a change that
 * failed may have left is kept as a possibility until the next one is acknowledged.
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
#define ZS_DATA_BYTES (UINT64_C(16) << 20)

/* ---- failures of a test: what is being done stands in front of each */

void zs_context(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void zs_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/** abort(), crashes, and what takes longer than a minute print the context, too. */
void zs_watch(void);
/** An environment variable as a number, or what it is without. */
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

extern const struct unit zs_units[ZS_UNITS];
extern const struct zk_params zs_groups[2];

struct zb_layout zs_layout(unsigned u);
/** Elements [first, first + count) of a unit's plane, which lie at `bytes` in pages, are those of
 * the state, and zeros behind each page's. */
bool zs_pages_same(const struct zs_state *s, unsigned u, enum zsd_saved_plane p, uint64_t first,
                   uint64_t count, uint32_t page_elems, const uint8_t *bytes);
float zs_initial(unsigned u, uint64_t element);
/** The gradient of the n-th step that this run makes, fp32 or bf16 as the unit wants it. */
void zs_gradient(uint64_t n, unsigned u, uint64_t first, uint64_t count, void *out);

struct zs_state *zs_state_first(void);
/** The same with one more iteration; n 0: a skip. */
struct zs_state *zs_state_next(const struct zs_state *s, uint64_t n);
struct zs_state *zs_state_copy(const struct zs_state *s);
struct zs_state *zs_state_ref(struct zs_state *s); /* NULL is fine */
void zs_state_unref(struct zs_state *s);           /* likewise */

/** What the catalog must say. */
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
    struct world core; /* client r is rank r; the last one is nobody's rank */
    uint64_t seed;
    uint64_t detected; /* reads that said -EBADMSG */
    uint64_t bytes;    /* read and compared */
};

#define ZS_NOBODY ZS_RANKS

/** A start measures the data file, as that of zshardd does; how much it transfers depends on time.
 *  false at first. */
extern bool zs_measures;

/** A core on what the device has: 0, or why it does not start. Nothing is up then. */
int zs_start(struct zs_world *w, struct zn_sim *sim, uint64_t seed, uint32_t page_elems,
             struct zb_err *err);
/** The process dies: nothing more is done but what is in flight. */
void zs_stop(struct zs_world *w);

/** Turns until it is answered; bounded. */
int zs_answer(struct world *core, unsigned tag);
/** Turns until nothing is in progress. */
void zs_settle(struct zs_world *w);

struct zs_open {
    const char *job;
    uint32_t world;
    uint64_t host_bytes; /* beside the staging; 0: what is free */
    bool attach;
    const uint64_t *at; /* the point to resume from */
};
/** All ranks open, define, register and are ready: 0 or the first refusal; then nobody is there. */
int zs_open(struct zs_world *w, const struct zs_open *o);
/** All ranks go. */
void zs_hang_up(struct zs_world *w);

/** Reads everything that the ranks have and compares; notes too. 0; or a failure that was reported;
 *  a byte that is wrong fails the test. */
int zs_read_all(struct zs_world *w, uint32_t world, const struct zs_state *s);
/** Every page of a version, as the store reads it. Likewise. */
int zs_read_version(struct zs_world *w, const struct zsd_version *v, const struct zs_state *s);
/** The one of the models whose names, steps and notes are those of the store; -1: none. */
int zs_match(struct zs_world *w, const struct zs_model *const *models, unsigned n);
/** Every page of every version of the model. 0, or the first failure reported. */
int zs_read_model(struct zs_world *w, const struct zs_model *m);

/* ---- a run */

/** What was acknowledged: what the store holds from `end` on, if the power fails; from `begin` on
 * it may. */
struct zs_entry {
    uint64_t begin, end; /* operations of the device */
    struct zs_model model;
};

struct zs_run {
    struct zs_world w;
    struct zn_sim *sim;
    uint64_t seed;
    uint32_t page_elems;
    bool up;      /* the daemon */
    bool rewinds; /* the device lies for ever: what was acknowledged may be gone */
    uint32_t world;
    uint64_t nsteps;
    uint64_t begun;       /* the step whose gradients were pushed already; 0: none */
    struct zs_state *mem; /* what the job holds in memory, or NULL */
    struct zs_model model;
    struct zs_model *maybe;
    unsigned nmaybe;
    struct zs_entry *entries;
    unsigned nentries;
    unsigned failures;     /* requests that reported one */
    struct zb_err refused; /* the daemon did not start: why */
};

/** The device is the caller's. */
void zs_run_init(struct zs_run *r, struct zn_sim *sim, uint64_t seed, uint32_t page_elems);
void zs_run_done(struct zs_run *r);
/** The workload; ends with the daemon down. */
void zs_run_script(struct zs_run *r);

/** What the store may hold when nothing is lost and the run is at operation `op`: one model, or two
 *  while a change is under way. Returns how many. */
unsigned zs_run_models(const struct zs_run *r, uint64_t op, const struct zs_model *models[2]);

/** Starts the daemon and reads all that is saved: 0, why it does not start, or why a page cannot be
 * read. What it holds must be what the run says; a wrong byte fails the test. */
int zs_run_restart(struct zs_run *r);

/** What a device that lost power, or failed, must have left. */
struct zs_recovery {
    const struct zs_model *const *models; /* the store holds one of these */
    unsigned nmodels;
    uint64_t seed; /* world, places, order */
    uint32_t page_elems;
    bool goes_on; /* ranks attach, read everything, step and commit; and the daemon starts again */
    uint64_t *ret_bytes; /* read and compared: added; or NULL */
    bool damaged;        /* somebody changed bytes: it may refuse to start, or to read a page */
};
/** Starts a core on the device; every byte of what it holds is compared. Which model it was; of a
 * damaged device also ZS_REFUSED, or ZS_DETECTED when a page could not be read. */
#define ZS_REFUSED  (-1)
#define ZS_DETECTED (-2)
int zs_recover(struct zn_sim *sim, const struct zs_recovery *how);

#endif
