/*
 * fsck_priv.h - one run of an fsck: shared by fsck.c, fsck_catalog.c and fsck_count.c.
 */
#ifndef ZSD_FSCK_PRIV_H
#define ZSD_FSCK_PRIV_H

#include <stdarg.h>
#include <stdio.h>

#include "daemon/show/fsck.h"
#include "daemon/show/survey.h"
#include "daemon/store/change.h"

struct zsd_fsck_run {
    struct zsd_change change;
    struct zsd_core *core;
    struct zsd_survey s;
    struct zsd_fsck_report report;
    uint32_t *holders;    /* counted holders of each place */
    uint32_t tries;       /* number of passes that gave way */
    struct zsd_work work; /* releases the rows of a finished pass */
    struct zb_err err;    /* result of that pass */
    struct zb_list askers;
};

/** Reports a problem. After ZSD_PROBLEMS_MAX problems only their number. */
__attribute__((format(printf, 2, 3))) static inline void fsck_problem(struct zsd_fsck_run *f,
                                                                      const char *fmt, ...)
{
    struct zsd_fsck_report *r = &f->report;
    va_list ap;

    va_start(ap, fmt);
    if (r->nproblems < ZSD_PROBLEMS_MAX)
        (void)vsnprintf(r->problems[r->nproblems], sizeof(r->problems[0]), fmt, ap);
    va_end(ap);
    r->nproblems++;
}

/** fsck_catalog.c: verifies the catalog's digest, and compares each record with memory. */
void zsd_fsck_catalog(struct zsd_fsck_run *f);

/* fsck_count.c, in this order. */
void zsd_fsck_versions(struct zsd_fsck_run *f);
void zsd_fsck_places(struct zsd_fsck_run *f);
void zsd_fsck_holders(struct zsd_fsck_run *f);
void zsd_fsck_classes(struct zsd_fsck_run *f);
void zsd_fsck_accounts(struct zsd_fsck_run *f);
/** 0 or -ENOMEM. */
int zsd_fsck_df(struct zsd_fsck_run *f);

#endif
