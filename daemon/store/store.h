/*
 * store.h - what survives the trainers and the daemon: saved jobs, their versions, the pages that
 * these hold; and the places of pages on the data files, for everybody.
 *
 * MODEL. All of it is in memory, owned by the loop thread; the catalog (nvme/zn_catalog.h) only
 * keeps it. A change is prepared here, made durable by the store's line of changes, and only then
 * seen by anybody.
 *
 *     struct zsd_saved     a durable job: who it is, its manifest, its committed and prepared
 *                          versions, its snapshots. Its incarnation is a struct zsd_job (job.h)
 *                          while it is in memory, or there is none.
 *     struct zsd_version   one whole state of a job: iterations, applied, notes, and one row for
 *                          each shard. Immutable. Held by: committed, prepared, snapshots, readers.
 *     struct zsd_row       the pages of one shard in a version. Immutable, shared by versions (a
 *                          frozen shard, a rollback) and jobs (a clone).
 *     extent               one page of one plane on a data file, by its place. Counted: a row holds
 *                          each of its extents, and so does the shard that works with it.
 *
 * PLACES. Extents of one size are a class. A class owns `total` places, free or in use, and is
 * promised `promised` of them; total >= promised, so whoever stays inside its promise always finds
 * one. Each job's promise (struct zb_needs, base/place.h) is, for each class: what its distinct
 * rows hold, what its next version can need, and spares for pages in flight. An extent that two
 * jobs share counts in both promises. Promises change only here, with -ENOSPC when there is no
 * room: never in the middle of a step.
 *
 * THE LINE. Changes (struct zsd_change) run one after the other:
 *
 *     BEGIN ---> SYNC ---> CATALOG ---> SLOTS ---> over     done() tells how
 *
 *     BEGIN    begin() decides, by what is true now, what the transaction is
 *     SYNC     flushes the data file, for changes that say so
 *     CATALOG  fill() adds what is long to write, and the catalog commits, on the catalog's thread
 *     SLOTS    writes and flushes the commit slot of the data file
 *
 * A flush that failed, and a catalog that is poisoned, poison the store: every later change fails
 * with the same sentence until the daemon starts again. -ENOSPC of the catalog fails one change.
 *
 * INVARIANTS
 *     T1  What the catalog says at the slots' sequence is what is in memory, but for the change
 * that is in the line. An extent that the catalog names is held by a row that is kept. T2  An
 * extent is given back only when the change that forgets it is durable. T3  Generations never
 * repeat: boot number << 40 | count; the boot number is committed before the first page is written.
 */
#ifndef ZSD_STORE_H
#define ZSD_STORE_H

#include "daemon/job/job.h"
#include "nvme/zn_catalog.h"

struct zsd_store;

/* ---- versions and rows */

/* The planes that live on data files, and their index in struct zsd_row. */
enum zsd_saved_plane { ZSD_SAVED_PARAM, ZSD_SAVED_STATE, ZSD_SAVED_PLANES };

struct zsd_row_plane {
    uint32_t block_bytes, crc_bytes, crcs_per_page; /* block_bytes 0: the plane does not exist */
    struct zsd_extent *extents;                     /* [npages] */
    uint32_t *crcs;                                 /* [npages][crcs_per_page] */
};

struct zsd_row {
    uint64_t id;           /* in the catalog */
    uint32_t refs;         /* versions and shards that hold it; 0: it has no places */
    uint32_t looks;        /* see zsd_row_look() */
    uint32_t kept;         /* versions in the catalog that hold it; 0: it is not there */
    uint64_t stamp;        /* of the last walk that counted it */
    struct zb_list node;   /* in store->rows, while it has places */
    uint32_t unit, rank;   /* who registered it */
    uint64_t first, count; /* of the unit's elements */
    uint32_t page_elems, npages;
    struct zsd_row_plane planes[ZSD_SAVED_PLANES];
};

struct zsd_version {
    uint64_t id; /* in the catalog */
    struct zsd_core *core;
    struct zsd_saved *saved; /* whose it is; a reader may hold it longer than that lives */
    uint32_t refs;           /* committed, prepared, each snapshot, each reader */
    uint32_t snapshots;      /* of them */
    uint32_t readers;        /* likewise */
    bool kept;               /* in the catalog */
    uint64_t iterations, applied;
    uint64_t created_unix;
    uint32_t world, nrows;
    struct zsd_row **rows;  /* [nrows], by unit and first element */
    struct zsd_note *notes; /* [world] */
    struct zsd_note job_note;
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
    uint32_t groups;
    enum zb_optimizer optimizer;
    enum zb_moments moments;
    uint32_t offload_param, offload_optimizer;
    uint64_t host_bytes_max;
    uint64_t epoch;
    struct zsd_unit **units; /* the manifest; no shards in them */
    uint32_t nunits;
    struct zsd_version *committed, *prepared; /* neither, before the first: then the job is not in
                                                 the catalog yet */
    struct zsd_version *doubt; /* its change failed, and the catalog may have it all the same: what
                                  it holds stays as it is until the daemon starts anew */
    struct zb_list snaps;
    struct zb_needs promise;
    struct zsd_account nvme_held; /* what the promise is booked as */
    struct zsd_job *job;          /* in memory, or NULL */
    bool lacks;                   /* room for its next version: it goes no further without */
    uint32_t pending;             /* changes and operations of it: they keep the struct */
    bool gone;                    /* destroyed: nobody finds it any more */
    bool coming;                  /* a clone on its way: its name is taken */
    bool moving;                  /* it is destroyed or rolled back: nobody attaches meanwhile */
    struct zsd_work *ended;       /* deferred when its incarnation is over, or NULL */
    struct zb_list snap_waiters;  /* requests for a snapshot of the next commit (op/snapshot.c) */
    struct zb_list node;          /* in store->saved */
};

/** What the store knows. Read by fsck, df, scrub; changed by store.c, change.c and delta.c only. */
struct zsd_store {
    struct zsd_core *core;
    struct zn_catalog *catalog; /* on the catalog's thread only, once the loop runs */
    struct zb_list saved;       /* by number */
    struct zb_list line;        /* struct zsd_change: the first runs */
    struct zb_list rows;        /* every row that has places */
    uint64_t boot;              /* T3 */
    uint64_t next_id;           /* of rows, versions, snapshots */
    uint64_t sequence;          /* of the newest change that is over */
    uint64_t stamp;             /* of the newest walk over rows */
    struct zb_err poisoned;     /* code 0: it is well */
};

/** Opens the catalog (daemon->catalog_path), checks it, and makes everything that it says: err
 * names what is wrong. Blocks: at the start only. Logs what it found. Without a catalog's path or a
 * data file there is no store, and it returns 0. */
int zsd_store_open(struct zsd_core *core, struct zb_err *err);
/** Nothing is in the line any more, and jobs are gone. */
void zsd_store_close(struct zsd_core *core);

/* ---- saved jobs */

/** It is in the catalog. */
static inline bool zsd_saved_kept(const struct zsd_saved *saved)
{
    return saved->committed || saved->prepared;
}

/** Finds a saved job that is kept. */
struct zsd_saved *zsd_saved_by_name(struct zsd_core *core, const char *name);
/** Somebody may come to have this name when a change that is in the line is over: a clone, or a job
 * that has ended in its first commit. */
bool zsd_saved_coming(const struct zsd_core *core, const char *name);
struct zsd_snap *zsd_snap_by_name(const struct zsd_saved *saved, const char *name);
/** May this connection look at it and change it: owner, root, the daemon's user. */
bool zsd_saved_may(const struct zsd_conn *conn, const struct zsd_saved *saved);

/** The saved side of a job that is being placed: job->saved and job->promise. 0, -ENOMEM. */
int zsd_saved_new(struct zsd_job *job, struct zb_err *err);
/** A saved job with the manifest of another, and nothing else: for a clone. NULL: no memory. */
struct zsd_saved *zsd_saved_like(const struct zsd_saved *saved, const char *name, uid_t uid);
/** Keeps the struct while an operation or a change of it is in progress. */
void zsd_saved_hold(struct zsd_saved *saved);
/** The last one frees a job that is gone, or that never committed and has no incarnation. */
void zsd_saved_unhold(struct zsd_saved *saved);
/** Its promise becomes what its versions need, with room for one more like the newest. 0; -ENOSPC
 * with the numbers, or -ENOMEM: then nothing changes. What only shrinks never fails. */
int zsd_saved_reserve(struct zsd_saved *saved, struct zb_err *err);
/** Before a change that makes it need more (a snapshot; the first version of a clone): its promise
 * becomes enough for what it has now, and for what it will have then, with `committed` as its
 * commit and without the snapshots that are going. As above. */
int zsd_saved_raise(struct zsd_saved *saved, const struct zsd_version *committed,
                    struct zb_err *err);
/** Before pages of its job are written anew: 0; or there is no room, and why. */
static inline int zsd_saved_room(struct zsd_saved *saved, struct zb_err *err)
{
    return saved && saved->lacks ? zsd_saved_reserve(saved, err) : 0;
}
/** A change of it is in progress, or a reader: its promise is not to be lowered beside that. */
static inline bool zsd_saved_changes(const struct zsd_saved *saved)
{
    return saved->pending > (saved->job ? 1u : 0u);
}
/** How many times the trainable rows of the newest version are needed besides what is held. */
unsigned zsd_saved_next(const struct zsd_saved *saved);
/** What its versions hold, each row once. */
int zsd_saved_holds(const struct zsd_saved *saved, struct zb_needs *ret);

/** Held once. Its rows are to be filled in; NULL: no memory. */
struct zsd_version *zsd_version_new(struct zsd_saved *saved, uint32_t world, uint32_t nrows);
struct zsd_version *zsd_version_ref(struct zsd_version *v);
/** The last one: its rows go, and their extents when nobody else holds them. NULL is fine. */
void zsd_version_unref(struct zsd_version *v);
/** Held once; extents say ZB_NO_PLACE. NULL: no memory. */
struct zsd_row *zsd_row_new(uint32_t unit, const struct zb_layout *layout, uint64_t first,
                            uint64_t count, uint32_t page_elems);
struct zsd_row *zsd_row_ref(struct zsd_row *r);
void zsd_row_unref(struct zsd_core *core, struct zsd_row *r);
/** Who reads a row beside the job (a reader, scrub) only looks at it: the struct lives on, but its
 * places go with its last holder, or a job could find fewer places than it was promised. A row that
 * is dead (refs 0) reads as anything; its checksums say so. rowio.c */
void zsd_row_look(struct zsd_row *r);
void zsd_row_look_away(struct zsd_row *r);
/** The struct of a row that has let go of its places, and that nobody looks at. rowio.c */
void zsd_row_free(struct zsd_row *r);
/** Index of the row that holds element `first` of a unit; nrows: there is none. */
uint32_t zsd_version_find(const struct zsd_version *v, uint32_t unit, uint64_t first);
/** Adds the places of a row's pages, so many times. 0 or -ENOMEM. */
int zsd_row_needs(struct zb_needs *p, const struct zsd_row *r, uint64_t times);
uint64_t zsd_row_bytes(const struct zsd_row *r);         /* of all its pages */
uint64_t zsd_version_bytes(const struct zsd_version *v); /* of all its rows */

static inline uint64_t zsd_row_page_elems(const struct zsd_row *r, uint32_t page)
{
    return zb_min_u64(r->page_elems, r->count - (uint64_t)page * r->page_elems);
}

static inline uint32_t zsd_row_page_bytes(const struct zsd_row *r, enum zsd_saved_plane plane,
                                          uint32_t page)
{
    return (uint32_t)zb_page_bytes(r->planes[plane].block_bytes, zsd_row_page_elems(r, page));
}

static inline enum zb_plane zsd_plane_of(enum zsd_saved_plane plane)
{
    return plane == ZSD_SAVED_PARAM ? ZB_PARAM : ZB_STATE;
}

/** Who a page of it is, for its checksums. */
static inline struct zn_page_id zsd_row_page_id(const struct zsd_row *r, enum zsd_saved_plane plane,
                                                uint32_t page)
{
    const struct zsd_extent *e = &r->planes[plane].extents[page];

    return (struct zn_page_id){ .job = e->job,
                                .shard = zsd_shard_key(r->unit, r->first),
                                .plane = (uint32_t)zsd_plane_of(plane),
                                .index = page,
                                .generation = e->generation };
}

/** A unit of its own: name, elems, layout, tensors, segments; no shards. NULL: no memory. */
struct zsd_unit *zsd_unit_copy(const struct zsd_unit *unit);
/** 0 or -ENOMEM. */
int zsd_note_copy(struct zsd_note *to, const struct zsd_note *from);

/* ---- places (extents.c) */

/** The classes and their places; core->extents is the map below them. 0 or -ENOMEM. */
int zsd_extents_new(struct zsd_core *core);
void zsd_extents_free(struct zsd_core *core);
/** One more holder of an extent. */
void zsd_extent_ref(struct zsd_core *core, uint64_t at);
/** One less; at 0 the place is free for its class. */
void zsd_extent_unref(struct zsd_core *core, uint64_t at, uint64_t bytes);
/** A free place of that size, inside somebody's promise: never fails. Held once. */
uint64_t zsd_extent_take(struct zsd_core *core, uint64_t bytes);
uint32_t zsd_extent_refs(const struct zsd_core *core, uint64_t at); /* 0: free */
/** Recovery: a row of the catalog names this place. It is taken, and held once; another row that
 * names the same place with the same size holds it once more. Promises are set when every row was
 * read. 0; -ENOMEM; -EBADMSG, with a sentence: no page's size, outside of the data file, or over
 * another place. */
int zsd_extent_adopt(struct zsd_core *core, uint64_t at, uint64_t bytes, struct zb_err *err);

/** What there is, copied: for fsck and df. What is held and free is taken in the map
 * (core->extents); promised <= held + free. */
struct zsd_place_copy {
    uint64_t at;
    uint32_t bytes, holders;
};
struct zsd_class_copy {
    uint64_t bytes, total, promised, nfree;
};
struct zsd_places_copy {
    struct zsd_place_copy *places; /* that have a holder, in no order */
    size_t nplaces;
    struct zsd_class_copy *classes; /* by bytes */
    uint32_t nclasses;
};
/** 0 or -ENOMEM. */
int zsd_places_copy(const struct zsd_core *core, struct zsd_places_copy *ret);
void zsd_places_copy_done(struct zsd_places_copy *c);

/** Replaces what is promised by `now` with `want`: 0; -ENOSPC or -ENOMEM: *now is unchanged. A
 * promise that only shrinks never fails. `now` begins as all zero, and ends by wanting nothing. */
int zsd_promise_set(struct zsd_core *core, struct zb_needs *now, const struct zb_needs *want,
                    struct zb_err *err);
/** The same, booked in the account: so many bytes of the places by plane, the rest as ring.
 * -ENOSPC by the account's numbers, too. store.c */
int zsd_nvme_promise(struct zsd_core *core, struct zsd_account *held, struct zb_needs *now,
                     const struct zb_needs *want, const uint64_t planes[ZB_PLANES],
                     struct zb_err *err);
void zsd_nvme_unpromise(struct zsd_core *core, struct zsd_account *held, struct zb_needs *now);

/* ---- the line (change.c) */

/** One durable change; embedded in whoever makes it, alive until done. */
struct zsd_change {
    bool sync;  /* the data file is flushed first: pages were written for it */
    bool looks; /* changes nothing: fill() looks at the catalog, also at one that is poisoned */
    /* Loop thread, when its turn has come: puts what the change is into txn. 0, or a negative errno
     * with a sentence: nothing happens. */
    int (*begin)(struct zsd_change *c, struct zb_err *err);
    /* The catalog's thread: puts what is long to write, from what does not change meanwhile. NULL:
     * nothing. */
    int (*fill)(struct zsd_change *c, struct zb_err *err);
    /* Loop thread, once, not from inside zsd_change_start(): err is NULL when it is durable. */
    void (*done)(struct zsd_change *c, const struct zb_err *err);
    struct zn_txn *txn;
    /* the line's */
    struct zsd_core *core;
    int state;
    bool poisons; /* nothing can be changed behind what failed */
    bool doubt;   /* and it may have happened: the next start finds out */
    struct zb_err err;
    struct zn_slot slot;
    struct zsd_pio pio;
    struct zsd_task task;
    struct zsd_work work;
    struct zb_list node;
};
/** Puts it at the end of the line. */
void zsd_change_start(struct zsd_core *core, struct zsd_change *c);

/* ---- changes of a saved job (delta.c) */

/**
 * What becomes of a saved job: all that commit, snapshot, rollback, clone and destroy are. plan()
 * says what shall be; which records come and go follows from that, and when the change is durable
 * the saved job is so. Whatever loses its last holder is freed then (T2).
 */
struct zsd_delta {
    struct zsd_change change; /* its sync may be set; all else is ours */
    struct zsd_saved *saved;
    /* Loop thread, when its turn has come; committed and prepared are as they are now. May change
     * them, set snap_add, and `going` of snapshots. 0, or a negative errno with a sentence. */
    int (*plan)(struct zsd_delta *d, struct zb_err *err);
    /* Loop thread, once; err NULL: it is so. May free d. */
    void (*done)(struct zsd_delta *d, const struct zb_err *err);
    struct zsd_version *committed, *prepared; /* the owner holds what is new of them */
    struct zsd_snap *snap_add; /* its version is known; the saved job's when it is durable, else the
                                  owner's still */
    bool grows;   /* committed needs more than there is promised: see zsd_saved_raise() */
    bool destroy; /* the job goes, with all that it has... */
    bool stays;   /* ...from the catalog only: its incarnation goes on */
    /* private */
    struct zsd_version *fresh[2]; /* the catalog does not know them yet */
    struct zsd_version **drops;   /* it forgets them */
    struct zsd_row **puts;
    uint64_t *dels;
    uint32_t nfresh, ndrops, nputs, ndels;
    bool counted; /* snap_add, in its version */
};
void zsd_delta_start(struct zsd_delta *d);

/* ---- commits of a job in memory (op/commit.c) */

/**
 * Saves what the job has, as a version, and commits or prepares it. The job is READY or STEPPING,
 * and nothing changes its pages until done; err NULL: it is durable. save_err: pages that a step
 * could not save, if any.
 */
void zsd_commit_start(struct zsd_job *job, enum zsd_commit_what what, const struct zb_err *save_err,
                      void (*done)(struct zsd_job *job, const struct zb_err *err));
/** Why the job cannot be committed (prepared) now, if so: 0, or a negative errno. */
int zsd_commit_check(const struct zsd_job *job, struct zb_err *err);
/** What the job has is what is committed. */
bool zsd_commit_has(const struct zsd_job *job);
/** The daemon is ending: what a job has beyond its last commit is saved. */
void zsd_commit_last(struct zsd_job *job);
/** A commit of it is over: whoever waits for the next one gets it. op/snapshot.c */
void zsd_snap_next(struct zsd_saved *saved);
/** No commit of it will come: whoever waits for one hears why. op/snapshot.c */
void zsd_snap_cancel(struct zsd_saved *saved, const struct zb_err *why);
/** Destroys a saved job, in memory too; answers req. op/snapshot.c */
void zsd_saved_destroy(struct zsd_req *req, struct zsd_saved *saved);

/* ---- bringing a version in (load.c) */

/** The job is in LOADING, its memory attached, no page of it has an extent. Holds v while it runs.
 * done: err NULL, every shard has the values of v; the caller goes on from there. */
void zsd_load_start(struct zsd_job *job, struct zsd_version *v,
                    void (*done)(struct zsd_job *job, const struct zb_err *err));
/** The row is cut exactly as the shard is. */
static inline bool zsd_row_fits(const struct zsd_row *r, const struct zsd_shard *s)
{
    return r->unit == s->unit->index && r->first == s->first && r->count == s->count &&
           r->page_elems == s->job->core->page_elems;
}
/** 0; -EINVAL: the job's shards are not the elements that the version has. */
int zsd_load_check(const struct zsd_job *job, const struct zsd_version *v, struct zb_err *err);

/* ---- readers (op/reader.c) */

/** Nobody but readers holds v any more (refs == readers), so that no saved job is promised its
 * places: each reader is promised them, or lets go. The last one ends v. */
void zsd_readers_orphaned(struct zsd_version *v);
/** The connection ends: its reader, if any, lets go. */
void zsd_reader_gone(struct zsd_conn *conn);
/** Adds what readers are promised, and what is booked for that. 0 or -ENOMEM. */
int zsd_readers_promised(const struct zsd_core *core, struct zb_needs *promise,
                         struct zsd_account *held);
/** The daemon ends. */
void zsd_readers_end(struct zsd_core *core);

/* ---- scrub.c */

void zsd_scrub_tick(struct zsd_core *core, uint64_t now_ns);
/** Is a run in progress, which zsd_scrub_tick() keeps going? */
bool zsd_scrub_running(const struct zsd_core *core);
/** No page is asked for any more; the one in flight ends by itself. */
void zsd_scrub_end(struct zsd_core *core);
/** Nothing is in flight. */
void zsd_scrub_free(struct zsd_core *core);

/* ---- records (record.c): what is in the catalog. FORMAT.md has the bytes. Any thread: they look
 * at the object only. put: 0, -ENOMEM. get: 0, -ENOMEM, -EBADMSG with a sentence. */

enum zsd_record {
    ZSD_RECORD_STORE = 1,    /* (0, 0): boot, next_id */
    ZSD_RECORD_JOB = 2,      /* (number, 0) */
    ZSD_RECORD_UNIT = 3,     /* (number, index): a part of the manifest */
    ZSD_RECORD_VERSION = 4,  /* (number, id): rows by id */
    ZSD_RECORD_NOTE = 5,     /* (version id, rank; ZSD_NOTE_OF_JOB) */
    ZSD_RECORD_ROW = 6,      /* (row id, 0) */
    ZSD_RECORD_SNAPSHOT = 7, /* (number, id) */
};
#define ZSD_NOTE_OF_JOB (UINT64_C(1) << 32)

struct zsd_store_record {
    uint64_t boot, next_id, next_job;
};
int zsd_record_put_store(struct zn_txn *t, const struct zsd_store_record *s);
int zsd_record_get_store(const void *bytes, size_t len_bytes, struct zsd_store_record *ret,
                         struct zb_err *err);
/** Who the job is, without units and versions, but for committed's and prepared's ids. */
int zsd_record_put_job(struct zn_txn *t, const struct zsd_saved *saved, uint64_t committed,
                       uint64_t prepared);
int zsd_record_get_job(const struct zn_key *key, const void *bytes, size_t len_bytes,
                       struct zsd_saved *ret, uint64_t *ret_committed, uint64_t *ret_prepared,
                       struct zb_err *err);
int zsd_record_put_unit(struct zn_txn *t, uint32_t job, const struct zsd_unit *unit);
/** *ret is new: name, elems, layout, tensors and segments. */
int zsd_record_get_unit(const struct zn_key *key, const void *bytes, size_t len_bytes,
                        struct zsd_unit **ret, struct zb_err *err);
/** With its notes. */
int zsd_record_put_version(struct zn_txn *t, uint32_t job, const struct zsd_version *v);
/** rows come back as ids: *ret_rows is new, [nrows]; the notes are records of their own. */
int zsd_record_get_version(const struct zn_key *key, const void *bytes, size_t len_bytes,
                           struct zsd_version **ret, uint64_t **ret_rows, struct zb_err *err);
int zsd_record_get_note(const struct zn_key *key, const void *bytes, size_t len_bytes,
                        struct zsd_note *ret, struct zb_err *err);
int zsd_record_put_row(struct zn_txn *t, const struct zsd_row *r);
int zsd_record_get_row(const struct zn_key *key, const void *bytes, size_t len_bytes,
                       struct zsd_row **ret, struct zb_err *err);
int zsd_record_put_snap(struct zn_txn *t, uint32_t job, const struct zsd_snap *s);
/** *ret is new, without its version: *ret_version is that one's id. */
int zsd_record_get_snap(const struct zn_key *key, const void *bytes, size_t len_bytes,
                        struct zsd_snap **ret, uint64_t *ret_version, struct zb_err *err);
/** Deletes a job with its units; a version with its notes; a row; a snapshot. */
int zsd_record_del_job(struct zn_txn *t, const struct zsd_saved *saved);
int zsd_record_del_version(struct zn_txn *t, uint32_t job, const struct zsd_version *v);
int zsd_record_del_row(struct zn_txn *t, uint64_t row);
int zsd_record_del_snap(struct zn_txn *t, uint32_t job, const struct zsd_snap *s);

/* ---- pages of rows (rowio.c) */

/**
 * Reads one page of one plane of a row and verifies it. The buffer is the caller's: aligned to
 * 4096, zsd_row_page_bytes() long, untouched until done.
 */
struct zsd_row_read {
    struct zsd_core *core;
    struct zsd_payer *payer; /* NULL: the house */
    struct zsd_row *row;     /* the caller holds it, or looks at it */
    enum zsd_saved_plane plane;
    uint32_t page;
    void *buf;
    void (*done)(struct zsd_row_read *r, const struct zb_err *err); /* loop thread, once */
    /* private */
    const char *who;
    struct zb_err err;
    struct zsd_pio pio;
    struct zsd_task task;
};
/** Never fails at once: done runs later. err is -EBADMSG, naming job, unit, shard and page, or what
 * the device said. `who` (a job's name) is for the sentence and lives until done. */
void zsd_row_read_start(struct zsd_row_read *r, const char *who);

#endif
