/*
 * survey.h - a copy of the store's data in memory, made on the loop thread at one moment between
 * two changes, to be counted elsewhere: by fsck and df.
 *
 * Counters and places, which keep changing, are copied, and so are the lists of rows of the
 * versions. Rows are held by zsd_row_look(): they may be freed meanwhile, but their structs stay.
 * Saved jobs, their versions and snapshots may end: the pointers to them (`kept`, `version`,
 * `snap`) are only for a change that took the survey and is still in the queue. df does not use
 * them.
 */
#ifndef ZSD_SURVEY_H
#define ZSD_SURVEY_H

#include "daemon/store/store.h"

struct zsd_survey_row {
    struct zsd_row *row;
    uint32_t kept;     /* as it was */
    uint32_t versions; /* counted */
    bool found;        /* in the catalog */
};

struct zsd_survey_version {
    const struct zsd_version *version;
    uint32_t job;       /* index */
    uint32_t snapshots; /* as it was */
    uint32_t counted;   /* snapshots that name it */
    uint32_t nrows;
    struct zsd_row **rows; /* a part of `held` */
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

struct zsd_survey {
    struct zsd_survey_job *jobs; /* by number */
    struct zsd_survey_row *rows; /* by id */
    struct zsd_survey_version *versions;
    struct zsd_survey_snap *snaps;
    struct zsd_survey_work *works;
    struct zsd_row **held; /* of all versions, one after the other */
    size_t nheld;
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

/** Loop thread. For fsck: in begin() of a change that only reads. 0 or -ENOMEM. */
int zsd_survey_take(struct zsd_core *core, struct zsd_survey *ret, struct zb_err *err);
/** Loop thread. Keeps only jobs and sums, without pointers to live objects. */
void zsd_survey_trim(struct zsd_survey *s);
/** Loop thread. */
void zsd_survey_done(struct zsd_survey *s);

/** Sorts places by address and rows by id, before zsd_survey_place() and zsd_survey_row(). Any
 * thread,
 *  as what follows. */
void zsd_survey_sort(struct zsd_survey *s);
/** Index of a place with a holder; nplaces: it has none. */
size_t zsd_survey_place(const struct zsd_survey *s, uint64_t at);
/** The row with this id, or NULL. */
struct zsd_survey_row *zsd_survey_row(struct zsd_survey *s, uint64_t id);
/** Fills the columns of df. 0 or -ENOMEM. */
int zsd_survey_df(struct zsd_survey *s);

#endif
