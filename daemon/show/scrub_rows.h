/*
 * scrub_rows.h - the rows that a scrub reads: those of all versions that are saved when it starts,
 * each once.
 *
 * zsd_version_look() keeps the structs of a version and its rows allocated until its last row is
 * finished, even if the job drops them. A row has the mark of the run (row->scrub) until it is
 * finished.
 *
 * Loop thread only.
 */
#ifndef ZSD_SCRUB_ROWS_H
#define ZSD_SCRUB_ROWS_H

#include "daemon/store/store.h"

struct zsd_scrub_version;

/* Begins as zero. */
struct zsd_scrub_rows {
    struct zsd_scrub_version *versions;
    uint32_t nversions;
    uint32_t version, row; /* the current row */
    uint64_t mark;         /* of this run */
    uint64_t nrows, bytes; /* of the marked rows */
};

/** Lists the versions. 0 or -ENOMEM. */
int zsd_scrub_rows_make(struct zsd_scrub_rows *l, struct zsd_core *core);
/** Marks and counts the next rows, as many as the turn has steps left. True: all are marked, and
 * the first row is the current one. */
bool zsd_scrub_rows_mark(struct zsd_scrub_rows *l, struct zsd_core *core);
/** The current row, marked or not. NULL: all are finished. */
struct zsd_row *zsd_scrub_row(struct zsd_scrub_rows *l);
/** The name of the current row's job. */
const char *zsd_scrub_job(const struct zsd_scrub_rows *l);
/** Finishes the current row: removes its mark, and goes on to the next one. */
void zsd_scrub_row_over(struct zsd_scrub_rows *l);
/** Releases all versions, and frees the list. */
void zsd_scrub_rows_drop(struct zsd_scrub_rows *l);

#endif
