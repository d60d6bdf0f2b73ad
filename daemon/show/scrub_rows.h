/*
 * scrub_rows.h - the rows that a scrub reads: those of all saved versions that there are at its start,
 * each once.
 *
 * Versions are looked at (zsd_version_look()) until their rows are over, so that structs stay, whatever
 * is dropped meanwhile. Rows carry the mark of the run (row->scrub) until they are over.
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
    uint32_t version, row; /* the present one */
    uint64_t mark;         /* of this run */
    uint64_t nrows, bytes; /* marked */
};

/** Lists the versions. 0 or -ENOMEM. */
int zsd_scrub_rows_make(struct zsd_scrub_rows *l, struct zsd_core *core);
/** Marks and counts the next rows, as many as the turn has room for; true: all are marked, and the first
 * one is the present one. */
bool zsd_scrub_rows_mark(struct zsd_scrub_rows *l, struct zsd_core *core);
/** The present row, marked or not; NULL: all are over. */
struct zsd_row *zsd_scrub_row(struct zsd_scrub_rows *l);
/** The name of its job. */
const char *zsd_scrub_job(const struct zsd_scrub_rows *l);
/** It is over: on to the next one. */
void zsd_scrub_row_over(struct zsd_scrub_rows *l);
/** All are over. */
void zsd_scrub_rows_drop(struct zsd_scrub_rows *l);

#endif
