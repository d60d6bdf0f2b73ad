/*
 * scans.h - the running fsck, df, and looks at the system and at memory, at most one of each; the newest scrub; and
 * the position of `top` in its round over the jobs.
 *
 * Loop thread only.
 */
#ifndef ZSD_SCANS_H
#define ZSD_SCANS_H

#include <stdint.h>

struct zsd_df_run;
struct zsd_fsck_run;
struct zsd_health_run;
struct zsd_tiers_run;

/** The newest scrub that has read everything. */
struct zsd_scrubbed {
    uint64_t began_ns, ended_ns, unix_s; /* unix_s 0: there was none */
    uint64_t bytes, bad_pages;
};

struct zsd_scans {
    struct zsd_fsck_run *fsck; /* the running one, or NULL */
    struct zsd_df_run *df; /* the running one; or the last one, for pages of its list; or NULL */
    uint64_t surveys;      /* number of surveys that were begun, for either */
    uint64_t scrubs;       /* number of scrubs that were started */
    struct zsd_scrubbed scrubbed;  /* written by scrub.c */
    struct zsd_health_run *health; /* the task of health.c that runs, or NULL */
    struct zsd_tiers_run *tiers;   /* the task of tiers.c that runs, or NULL */
    uint32_t top_at;               /* number of jobs that top has handled in this round */
};

#endif
