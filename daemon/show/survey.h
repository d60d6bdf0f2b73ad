/*
 * survey.h - a copy of the store's metadata, made on the loop thread; fsck and df count it on other
 * threads.
 *
 * MODEL. A survey is taken in parts, over several turns of the loop.
 *
 *     LEAVE ---> PLACES ---> WORKS ---> ROWS ---> TAKEN
 *
 *     LEAVE   waits until nothing is leaving (disk/leaving.h), because leaving objects hold places
 *             and are in no list. Then it copies, at one moment: saved jobs, versions, snapshots,
 *             promises, accounts, classes
 *     PLACES  copies the places and their holders, as of that moment
 *     WORKS   copies the places that shards in memory work with, each as of the time of its copy
 *     ROWS    for fsck: lists the rows that have places. Ends when nothing is leaving
 *
 * The copy of places is exact for that moment (disk/places_copy.c). A place that got or lost a
 * holder since then is `changed`: the survey may lack a shard or row that holds it, or have one
 * that does not. For all other places the survey has every holder, because it saw each of them, and
 * none changed.
 *
 * zsd_version_look() keeps the structs of the versions and of their rows allocated, even if the
 * versions end meanwhile. Saved jobs and snapshots may be freed: the pointers to them (`kept`,
 * `snap`) are valid only for a change that took the survey and is still in the queue. df does not
 * use them.
 */
#ifndef ZSD_SURVEY_H
#define ZSD_SURVEY_H

#include "daemon/store/rows.h"
#include "daemon/store/store.h"

struct zsd_survey_row {
    struct zsd_row *row;
    uint32_t pages;    /* number of its pages with places: a commit may still be making the row */
    uint32_t kept;     /* copy of row->kept */
    uint32_t versions; /* counted versions that hold it */
    bool found;        /* in the catalog */
};

struct zsd_survey_version {
    struct zsd_version *version; /* kept by zsd_version_look() */
    uint32_t job;                /* index */
    uint32_t snapshots;          /* copy of version->snapshots */
    uint32_t counted;            /* counted snapshots that name it */
    bool found;                  /* in the catalog */
};

struct zsd_survey_snap {
    const struct zsd_snap *snap;
    uint32_t job, version; /* indices */
    bool found;
};

/* A saved job, or a job in memory that is not durable. */
struct zsd_survey_job {
    uint32_t number;
    uid_t uid;
    char name[ZP_NAME_MAX + 1];
    const struct zsd_saved *kept; /* NULL: not in the catalog */
    struct zb_needs promise;
    struct zsd_account held;
    bool found;
    uint32_t units;                     /* number of units found in the catalog */
    uint32_t committed_at, prepared_at; /* indices of versions + 1; 0: none */
    /* columns of df, in bytes; each place counts once */
    uint64_t committed, prepared, snapshots, working, shared, reserved;
};

/* A place that a shard in memory works with. */
struct zsd_survey_work {
    uint64_t at;
    uint32_t bytes, job;
};

/** The purpose of a survey: at most one survey of each at a time. */
enum zsd_survey_for { ZSD_SURVEY_FSCK, ZSD_SURVEY_DF };
enum zsd_survey_part { SURVEY_LEAVE, SURVEY_PLACES, SURVEY_WORKS, SURVEY_ROWS, SURVEY_TAKEN };

struct zsd_survey {
    enum zsd_survey_for what;
    enum zsd_survey_part part;
    /* its position */
    const struct zsd_job *at_job; /* may be freed: only compared */
    uint32_t at_shard, at_page;
    struct zsd_row_walk walk; /* of an fsck */
    size_t rows_room, works_room;
    struct zsd_survey_job *jobs; /* by number */
    struct zsd_survey_row *rows; /* by id */
    struct zsd_survey_version *versions;
    struct zsd_survey_snap *snaps;
    struct zsd_survey_work *works;
    size_t njobs, nrows, nversions, nsnaps, nworks;
    bool moving; /* some job has operations in progress: pages may be in flight */
    struct zsd_places_copy places;
    struct zb_needs readers;
    struct zsd_account readers_held, nvme;
    unsigned absent;                             /* a bit for each data file that is absent */
    uint64_t total_bytes, map_bytes, free_bytes; /* of all data files; for pages; in no class */
    uint64_t boot, next_id, sequence;
    /* columns of df for places of no job */
    uint64_t other_working, other_reserved;
};

/** Loop thread. Takes the next part of the survey. `ret` begins as zero except `what`, and must not
 * move until zsd_survey_done(). fsck calls it in begin() of its change. 0: complete; 1: call again
 * in the next turn; -ENOMEM. */
int zsd_survey_take(struct zsd_core *core, struct zsd_survey *ret, struct zb_err *err);
/** Loop thread. Reduces it to jobs and sums, without pointers to live objects. */
void zsd_survey_trim(struct zsd_survey *s);
/** Loop thread. Releases the next rows. True: all are released, so zsd_survey_done() is short. */
bool zsd_survey_look_away(struct zsd_core *core, struct zsd_survey *s);
/** Loop thread. Frees it. */
void zsd_survey_done(struct zsd_survey *s);

/** Any thread, as all functions below. Sorts places by address and rows by id: call it before
 * zsd_survey_place() and zsd_survey_row(). 0 or -ENOMEM. */
int zsd_survey_sort(struct zsd_survey *s);
/** Index of a place that has a holder; nplaces: it has none. */
size_t zsd_survey_place(const struct zsd_survey *s, uint64_t at);
/** Whether the place got or lost a holder while the survey was taken. */
static inline bool zsd_survey_changed(const struct zsd_survey *s, uint64_t at)
{
    return zb_map_find(&s->places.changed, at) != NULL;
}
/** The row with this id, or NULL. */
struct zsd_survey_row *zsd_survey_row(struct zsd_survey *s, uint64_t id);
/** Fills the columns of df. 0 or -ENOMEM. */
int zsd_survey_df(struct zsd_survey *s);

#endif
