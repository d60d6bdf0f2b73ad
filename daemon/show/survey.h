/*
 * survey.h - what the store has in memory, copied on the loop thread to be counted elsewhere: by fsck
 * and df.
 *
 * MODEL. A survey is taken in parts, over several turns of the loop.
 *
 *     LEAVE ---> PLACES ---> WORKS ---> ROWS ---> TAKEN
 *
 *     LEAVE   waits until nothing is leaving (disk/leaving.h): that holds places, and is in no list.
 *             Then, at one moment: saved jobs, versions, snapshots, promises, accounts, classes
 *     PLACES  the places and their holders, as they were at that moment
 *     WORKS   the places that shards in memory work with, each as it is when it is looked at
 *     ROWS    for fsck: the rows that have places. Ends when nothing is leaving
 *
 * What a place was at that moment is exact (disk/places_copy.c). One that got or lost a holder since
 * then is `changed`: a shard or a row may have it, or may have had it, that the survey does not say. Of
 * all others the survey has every holder: it saw each of them, and none of them changed.
 *
 * Versions are looked at (zsd_version_look()): they may end meanwhile, but their structs and those of
 * their rows stay. Saved jobs and snapshots may end: the pointers to them (`kept`, `snap`) are only
 * for a change that took the survey and is still in the queue. df does not use them.
 */
#ifndef ZSD_SURVEY_H
#define ZSD_SURVEY_H

#include "daemon/store/store.h"

struct zsd_survey_row {
    struct zsd_row *row;
    uint32_t pages;    /* of it that have places: a commit may still be making it */
    uint32_t kept;     /* as it was */
    uint32_t versions; /* counted */
    bool found;        /* in the catalog */
};

struct zsd_survey_version {
    struct zsd_version *version; /* looked at */
    uint32_t job;                /* index */
    uint32_t snapshots;          /* as it was */
    uint32_t counted;            /* snapshots that name it */
    bool found;
};

struct zsd_survey_snap {
    const struct zsd_snap *snap;
    uint32_t job, version; /* indices */
    bool found;
};

/* A saved job, or one in memory that has places and is not durable. */
struct zsd_survey_job {
    uint32_t number;
    uid_t uid;
    char name[ZP_NAME_MAX + 1];
    const struct zsd_saved *kept; /* in the catalog, else NULL */
    struct zb_needs promise;
    struct zsd_account held;
    bool found;
    uint32_t units;                     /* found */
    uint32_t committed_at, prepared_at; /* indices of versions + 1; 0: none */
    /* df: bytes, each once */
    uint64_t committed, prepared, snapshots, working, shared, reserved;
};

/* A place that a shard in memory works with. */
struct zsd_survey_work {
    uint64_t at;
    uint32_t bytes, job;
};

/** Who takes it: at most one of each at a time. */
enum zsd_survey_for { ZSD_SURVEY_FSCK, ZSD_SURVEY_DF };
enum zsd_survey_part { SURVEY_LEAVE, SURVEY_PLACES, SURVEY_WORKS, SURVEY_ROWS, SURVEY_TAKEN };

struct zsd_survey {
    enum zsd_survey_for what;
    enum zsd_survey_part part;
    /* where it is */
    const struct zsd_job *at_job; /* compared only */
    uint32_t at_shard, at_page;
    struct zb_list at_row; /* in store->rows, among the rows: behind those that were seen */
    size_t rows_room, works_room;
    struct zsd_survey_job *jobs; /* by number */
    struct zsd_survey_row *rows; /* by id */
    struct zsd_survey_version *versions;
    struct zsd_survey_snap *snaps;
    struct zsd_survey_work *works;
    size_t njobs, nrows, nversions, nsnaps, nworks;
    bool moving; /* a job has operations in progress: its pages may be in flight */
    struct zsd_places_copy places;
    struct zb_needs readers;
    struct zsd_account readers_held, nvme;
    uint64_t total_bytes, map_bytes, free_bytes; /* of all data files; for pages; in no class */
    uint64_t boot, next_id, next_job, sequence;
    /* without a job: df */
    uint64_t other_working, other_reserved;
};

/** Loop thread. Takes the next part of it; `ret` begins as zero but for `what`, and does not move
 * until zsd_survey_done(). For fsck: in begin() of a change that looks. 1: it is taken; 0: the rest
 * is for the next turn; -ENOMEM. */
int zsd_survey_take(struct zsd_core *core, struct zsd_survey *ret, struct zb_err *err);
/** Loop thread. Keeps only jobs and sums, without pointers to live objects. */
void zsd_survey_trim(struct zsd_survey *s);
/** Loop thread. Looks away from its next rows; true: from all of them, and zsd_survey_done() is
 * short. */
bool zsd_survey_look_away(struct zsd_core *core, struct zsd_survey *s);
/** Loop thread. */
void zsd_survey_done(struct zsd_survey *s);

/** Sorts places by address and rows by id, before zsd_survey_place() and zsd_survey_row(). Any thread,
 *  as what follows. 0 or -ENOMEM. */
int zsd_survey_sort(struct zsd_survey *s);
/** Index of a place that has a holder; nplaces: nobody has it. */
size_t zsd_survey_place(const struct zsd_survey *s, uint64_t at);
/** It got or lost a holder since the survey was begun. */
static inline bool zsd_survey_changed(const struct zsd_survey *s, uint64_t at)
{
    return zb_map_find(&s->places.changed, at) != NULL;
}
/** The row with this id, or NULL. */
struct zsd_survey_row *zsd_survey_row(struct zsd_survey *s, uint64_t id);
/** Fills the columns of df. 0 or -ENOMEM. */
int zsd_survey_df(struct zsd_survey *s);

#endif
