/*
 * version.h - versions of saved jobs, and the rows that they share.
 *
 *     struct zsd_version   one complete state of a job: iterations, applied, notes, and one row for
 *                          each shard. Immutable. Held by: committed, prepared, snapshots, readers.
 *
 *     struct zsd_row       the pages of one shard in a version. Immutable, shared by versions (a
 *                          frozen shard, a rollback) and jobs (a clone). A row holds each of its
 *                          extents, and so does the shard that works with it.
 *
 * Loop thread only.
 */
#ifndef ZSD_VERSION_H
#define ZSD_VERSION_H

#include "daemon/disk/extents.h"
#include "daemon/disk/leaving.h"
#include "daemon/store/manifest.h"

struct zsd_saved;

/* The planes that are saved on data files, as indices in struct zsd_row. */
enum zsd_saved_plane { ZSD_SAVED_PARAM, ZSD_SAVED_STATE, ZSD_SAVED_PLANES };

struct zsd_row_plane {
    uint32_t block_bytes, crc_bytes, crcs_per_page; /* block_bytes 0: the plane does not exist */
    struct zsd_extent *extents;                     /* [npages] */
    uint32_t *crcs;                                 /* [npages][crcs_per_page] */
};

struct zsd_row {
    uint64_t id;     /* in the catalog */
    uint32_t refs;   /* versions and shards that hold it; 0: its places are freed */
    uint32_t looks;  /* see zsd_row_look() */
    uint32_t let_go; /* pages whose places were freed */
    bool gone;       /* all places were freed */
    struct zsd_leaving leaving;
    uint32_t kept;         /* versions in the catalog that hold it; 0: it is not there */
    uint64_t stamp;        /* of the last walk that counted it */
    uint64_t scrub;        /* the run of scrub that is to read it, or 0: scrub's */
    struct zb_list node;   /* in store->rows, while it has places */
    uint32_t unit, rank;   /* rank: that registered it */
    uint64_t first, count; /* of the unit's elements */
    uint32_t page_elems, npages;
    struct zsd_row_plane planes[ZSD_SAVED_PLANES];
};

struct zsd_version {
    uint64_t id; /* in the catalog */
    struct zsd_core *core;
    struct zsd_saved *saved; /* its job; a reader may hold the version longer than that exists */
    uint32_t refs;           /* committed, prepared, each snapshot, each reader */
    uint32_t snapshots;      /* of these */
    uint32_t readers;        /* of these */
    /* Called when only readers hold it: no saved job is promised its places then. Set by readers.
     */
    void (*orphaned)(struct zsd_version *v);
    bool kept; /* in the catalog */
    uint64_t iterations, applied;
    uint64_t created_unix;
    uint64_t table_bytes; /* of memory: structs, extents and crcs of its rows: zsd_version_put() */
    bool charged;         /* to its job, for its snapshots: zsd_snap_charge() */
    uint32_t world, nrows;
    /* of all its rows: zsd_version_put() */
    uint64_t bytes, plane_bytes[ZSD_SAVED_PLANES];
    struct zb_needs needs, trained; /* their places; of them, those of units that are trained */
    uint64_t stamp;                 /* of the last walk over versions that met it */
    struct zsd_row **rows;          /* [nrows], by unit and first element */
    struct zsd_note *notes;         /* [world] */
    struct zsd_note job_note;
    uint32_t let_go; /* rows that it holds no more, once nobody holds it */
    uint32_t looks;  /* see zsd_version_look() */
    uint32_t looked; /* of the rows that it let go of, those that are looked at in its name */
    bool gone;       /* it holds none */
    struct zsd_leaving leaving;
};

/** Held once. The caller fills in its rows. NULL: no memory. */
struct zsd_version *zsd_version_new(struct zsd_saved *saved, uint32_t world, uint32_t nrows);
/** Sets its row i, and holds that: 0 or -ENOMEM. */
int zsd_version_put(struct zsd_version *v, uint32_t i, struct zsd_row *r);
struct zsd_version *zsd_version_ref(struct zsd_version *v);
/** The last call releases its rows, in parts (disk/leaving.h), and frees the extents that nothing
 * else holds. NULL is fine. */
void zsd_version_unref(struct zsd_version *v);
/** Held once; extents are ZB_NO_PLACE. NULL: no memory. */
struct zsd_row *zsd_row_new(uint32_t unit, const struct zb_layout *layout, uint64_t first,
                            uint64_t count, uint32_t page_elems);
struct zsd_row *zsd_row_ref(struct zsd_row *r);
void zsd_row_unref(struct zsd_core *core, struct zsd_row *r);
/** Keeps the struct of a row for code that reads it without holding it (a reader, scrub). Its
 * places are freed with its last holder: otherwise a job could find fewer places than it was
 * promised. Pages of a row without holders (refs 0) may contain anything; the checksums detect
 * that. */
void zsd_row_look(struct zsd_row *r);
void zsd_row_look_away(struct zsd_row *r);
/** The same of a version and all of its rows: their structs live on, whoever holds them. */
void zsd_version_look(struct zsd_version *v);
void zsd_version_look_away(struct zsd_version *v);
/** The struct of a row that has let go of its places, and that nobody looks at. */
void zsd_row_free(struct zsd_row *r);
/** What it takes of memory without its notes: its own tables, and those of all its rows. */
uint64_t zsd_version_table_bytes(const struct zsd_version *v);
/** Index of the row that holds element `first` of a unit; nrows: there is none. */
uint32_t zsd_version_find(const struct zsd_version *v, uint32_t unit, uint64_t first);
/** The version has this row. *at: where it may be; set to where it is. */
bool zsd_version_has(const struct zsd_version *v, const struct zsd_row *r, uint32_t *at);
/** Adds the places of a row's pages, `times` times. 0 or -ENOMEM. */
int zsd_row_needs(struct zb_needs *p, const struct zsd_row *r, uint64_t times);
/** Bytes of all pages of a plane. */
uint64_t zsd_row_plane_bytes(const struct zsd_row *r, enum zsd_saved_plane plane);
uint64_t zsd_row_bytes(const struct zsd_row *r); /* of all its pages */

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

/** Identity of a shard in the checksums of its pages, independent of the world size. */
static inline uint64_t zsd_shard_key(uint32_t unit, uint64_t first)
{
    return (uint64_t)unit << 40 | first / ZB_BLOCK_ELEMS;
}

/** A plane's name, for messages. */
static inline const char *zsd_plane_text(enum zb_plane plane)
{
    return plane == ZB_PARAM ? "parameters" : plane == ZB_GRAD ? "gradient" : "optimizer state";
}

/** Identity of a page of it, for its checksums. */
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

#endif
