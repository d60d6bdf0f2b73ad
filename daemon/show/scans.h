/*
 * scans.h - the running fsck and df, at most one of each; and the position of `top` in its round
 * over the jobs.
 *
 * Loop thread only.
 */
#ifndef ZSD_SCANS_H
#define ZSD_SCANS_H

#include <stdint.h>

struct zsd_df_run;
struct zsd_fsck_run;

struct zsd_scans {
    struct zsd_fsck_run *fsck; /* the running one, or NULL */
    struct zsd_df_run *df; /* the running one; or the last one, for pages of its list; or NULL */
    uint64_t surveys;      /* number of surveys that were begun, for either */
    uint64_t scrubs;       /* number of scrubs that were started */
    uint32_t top_at;       /* number of jobs that top has handled in this round */
};

#endif
