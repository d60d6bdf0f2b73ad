/*
 * sim_device_priv.h - struct zn_sim, for the files that make up the device.
 *
 *     sim.c          makes, copies and frees it; its files; the public functions
 *     sim_op.c       one operation
 *     sim_fault.c    faults of an operation
 *     sim_record.c   the recording, and its replay
 *     sim_power.c    power cuts and restarts
 */
#ifndef ZN_SIM_DEVICE_PRIV_H
#define ZN_SIM_DEVICE_PRIV_H

#include "nvme/sim/sim_priv.h"

#define SIM_HOLES_MAX 64u

/* What the seed is mixed with, so that no two purposes draw the same numbers. */
enum sim_purpose { DRAW_RANDOM = 1, DRAW_FAULT, DRAW_FORGET, DRAW_SETTLE };

struct sim_file {
    char *name;
    bool tainted;     /* S1 */
    uint32_t births;  /* of the name, those that failed too */
    const void *user; /* its exclusive user */
};

struct sim_rule {
    enum zn_fault fault;
    uint64_t op;
    bool forever, spent;
};

/* A range that was discarded, and has no space. */
struct sim_hole {
    unsigned file;
    uint64_t off, len;
};

enum sim_entry_kind { SIM_ENTRY_CHANGE, SIM_ENTRY_FLUSH, SIM_ENTRY_NAMES, SIM_ENTRY_FORGET };

struct sim_entry {
    uint64_t op;
    enum sim_entry_kind kind;
    unsigned file;
    struct sim_change *change;
};

struct sim_snap {
    uint64_t op;  /* the state before this operation */
    size_t entry; /* the first entry that is not in it */
    struct sim_state state;
};

struct zn_sim {
    pthread_mutex_t lock;
    struct zn_sim_options options;
    uint64_t ops, draws, struck;
    unsigned users;

    struct sim_file *files;
    struct sim_data *now; /* what reads see, by file */
    unsigned nfiles;
    struct sim_state state;

    struct sim_rule *rules;
    unsigned nrules;

    struct sim_hole holes[SIM_HOLES_MAX];
    unsigned nholes;

    bool dead;
    uint64_t dead_op;
    bool cut;
    uint64_t cut_op;
    uint32_t cut_variant;

    struct sim_entry *entries;
    size_t nentries, entries_room;
    struct sim_snap *snaps;
    size_t nsnaps, snaps_room;
    uint64_t unsnapped_bytes;

    uint64_t free_ns; /* end of the transfers in progress */
    struct sim_vfs *vfs;
};

static inline void sim_lock(const struct zn_sim *s)
{
    pthread_mutex_lock((pthread_mutex_t *)&s->lock);
}

static inline void sim_unlock(const struct zn_sim *s)
{
    pthread_mutex_unlock((pthread_mutex_t *)&s->lock);
}

/* ---- sim.c */

/** An empty device, or NULL. */
struct zn_sim *sim_alloc(const struct zn_sim_options *options);
/** The names of the files of `from`, with the contents in `now`. 0 or -ENOMEM. */
int sim_copy_files(struct zn_sim *to, const struct zn_sim *from, const struct sim_data *now);

/* ---- sim_fault.c */

/* An operation while faults are applied. */
struct sim_doing {
    struct sim_op *op;
    uint64_t n;   /* its number */
    uint64_t off; /* where it goes */
    size_t len;   /* what it moves */
    int rc;       /* it fails, and has no effect */
    bool lost, stale, forget, flip;
    uint64_t flip_at; /* the bit */
};

/** Applies the rules to an operation that begins. */
void sim_strike_all(struct zn_sim *s, struct sim_doing *d);

/* ---- sim_record.c: nothing happens without zn_sim_options.record */

/** Copies the state into the recording. 0 or -ENOMEM: the next copy comes later, and until then
 *  cuts cost more. */
int sim_snap(struct zn_sim *s);
/** sim_snap(), when enough has happened since the last copy. */
void sim_snap_due(struct zn_sim *s);
/** Makes room for one more entry. 0 or -ENOMEM. */
int sim_record_room(struct zn_sim *s);
/** After sim_record_room(): one entry, of the operation that was counted last. */
void sim_record(struct zn_sim *s, enum sim_entry_kind kind, unsigned file,
                struct sim_change *change);
/** The last copy of the state at or before an operation, or NULL. */
const struct sim_snap *sim_snap_before(const struct zn_sim *s, uint64_t op);
/** S3: does to `st` what the entries from `first` on did, up to operation `op`; of `op` itself,
 *  only its change. 0 or -ENOMEM. */
int sim_replay(struct sim_state *st, const struct zn_sim *s, size_t first, uint64_t op);
/** Makes all changes durable when there are more than the cache holds. If memory is short they
 * stay for a while. now: what reads see, by file, or NULL. */
void sim_write_back(struct sim_state *st, const struct sim_file *files, const struct sim_data *now);

/* ---- seeds */

static inline uint64_t sim_forget_seed(const struct zn_sim *s, uint64_t op)
{
    return sim_mix(sim_mix(s->options.seed, DRAW_FORGET), op);
}

static inline uint64_t sim_settle_seed(const struct zn_sim *s, uint64_t op)
{
    return sim_mix(sim_mix(s->options.seed, DRAW_SETTLE), op);
}

#endif
