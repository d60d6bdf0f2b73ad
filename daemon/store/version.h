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
    bool lost;       /* pages of it were on a data file that is missing */
    struct zsd_leaving leaving;
    uint32_t kept;       /* versions in the catalog that hold it; 0: it is not there */
    uint64_t stamp;      /* of the last loop that counted it */
    uint64_t scrub;      /* mark of the scrub that will read it, or 0; owned by show/scrub_rows.c */
    struct zb_list node; /* in store->rows, while it has places */
    uint32_t unit, rank; /* rank: the one that registered the shard */
    uint64_t first, count; /* of the unit's elements */
    uint32_t page_elems, npages;
    struct zsd_row_plane planes[ZSD_SAVED_PLANES];
};

struct zsd_version {
    uint64_t id; /* in the catalog */
    struct zsd_core *core;
    struct zsd_saved *saved; /* its job; may be freed before a reader releases the version */
    uint32_t refs;           /* committed, prepared, each snapshot, each reader */
    uint32_t snapshots;      /* of these */
    uint32_t readers;        /* of these */
    /* Called when only readers hold it: then no saved job's promise includes its places. Set by
     * readers. */
    void (*orphaned)(struct zsd_version *v);
    bool kept; /* in the catalog */
    bool lost; /* one of its rows is: lost.h */
    uint64_t iterations, applied;
    uint64_t created_unix;
    uint64_t table_bytes; /* memory of its rows' structs, extents and crcs: zsd_version_put() */
    bool charged;         /* its memory is charged to its job, for snapshots: zsd_snap_charge() */
    uint32_t world, nrows;
    /* sums over its rows: zsd_version_put() */
    uint64_t bytes, plane_bytes[ZSD_SAVED_PLANES];
    struct zb_needs needs, trained; /* their places; of these, the places of trained units */
    uint64_t stamp;                 /* of the last loop over versions that marked it */
    struct zsd_row **rows;          /* [nrows], by unit and first element */
    struct zsd_note *notes;         /* [world] */
    struct zsd_note job_note;
    uint32_t let_go; /* number of rows that were released, after its last holder */
    uint32_t looks;  /* see zsd_version_look() */
    uint32_t looked; /* the released rows below this index are kept allocated for its looks */
    bool gone;       /* all rows were released */
    struct zsd_leaving leaving;
};

/** Makes a version, held once. The caller fills in its rows. NULL: no memory. */
struct zsd_version *zsd_version_new(struct zsd_saved *saved, uint32_t world, uint32_t nrows);
/** Sets row i, and holds it. 0 or -ENOMEM. */
int zsd_version_put(struct zsd_version *v, uint32_t i, struct zsd_row *r);
struct zsd_version *zsd_version_ref(struct zsd_version *v);
/** The last call releases its rows, in parts (disk/leaving.h), and frees the extents that nothing
 * else holds. NULL is fine. */
void zsd_version_unref(struct zsd_version *v);
/** Makes a row, held once; its extents are ZB_NO_PLACE. NULL: no memory. */
struct zsd_row *zsd_row_new(uint32_t unit, const struct zb_layout *layout, uint64_t first,
                            uint64_t count, uint32_t page_elems);
struct zsd_row *zsd_row_ref(struct zsd_row *r);
void zsd_row_unref(struct zsd_core *core, struct zsd_row *r);
/** Keeps the struct of a row allocated for code that reads it without holding it (a reader, scrub),
 * until zsd_row_look_away(). Its places are still freed with its last holder: otherwise a job could
 * find fewer places than it was promised. Pages of a row without holders (refs 0) may contain
 * anything; the checksums detect that. */
void zsd_row_look(struct zsd_row *r);
void zsd_row_look_away(struct zsd_row *r);
/** The same for the structs of a version and of all its rows. */
void zsd_version_look(struct zsd_version *v);
void zsd_version_look_away(struct zsd_version *v);
/** Frees the struct of a row. It must have no holders and no looks. */
void zsd_row_free(struct zsd_row *r);
/** Memory of a version without its notes: its own tables, and those of all its rows. */
uint64_t zsd_version_table_bytes(const struct zsd_version *v);
/** Index of the row that has element `first` of a unit; nrows: there is none. */
uint32_t zsd_version_find(const struct zsd_version *v, uint32_t unit, uint64_t first);
/** Whether the version has this row. *at: a likely index; set to its index if it has. */
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

/** Identity of a page of a row, for its checksums. */
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
