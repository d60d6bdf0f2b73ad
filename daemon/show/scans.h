/*
 * scans.h - the fsck and the df that run, at most one of each. And where `top` is in its round.
 *
 * Loop thread only.
 */
#ifndef ZSD_SCANS_H
#define ZSD_SCANS_H

#include <stdint.h>

struct zsd_df_run;
struct zsd_fsck_run;

struct zsd_scans {
    struct zsd_fsck_run *fsck; /* that runs, or NULL */
    struct zsd_df_run *df;     /* that runs, or the newest, kept for its pages; NULL: none yet */
    uint64_t surveys;          /* that were taken for either */
    uint32_t top_at;           /* jobs of the list that top has looked at in its round */
};

#endif
