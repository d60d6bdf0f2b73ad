/*
 * inspect.h - functions for the lists that zctl shows: shared by the files of this room.
 *
 * Loop thread only.
 */
#ifndef ZSD_INSPECT_H
#define ZSD_INSPECT_H

#include "daemon/job/job.h"
#include "proto/shard.pb-c.h"

/* ---- tiers.c */

#define ZSD_TIERS_LOWER 2u /* host, nvme; then one for each GPU */
#define ZSD_TIERS_MAX   (ZSD_TIERS_LOWER + ZSD_GPUS_MAX)

struct zsd_tier_rows {
    Zp__TierRow rows[ZSD_TIERS_MAX], *list[ZSD_TIERS_MAX];
    unsigned n;
    char host[192], nvme[1024], gpus[ZSD_GPUS_MAX][640]; /* their details */
};

void zsd_tier_rows(const struct zsd *daemon, struct zsd_tier_rows *ret);

/* ---- drives.c */

struct zsd_drive_rows {
    Zp__DriveRow rows[ZN_PATHS_MAX], *list[ZN_PATHS_MAX];
    unsigned n;
    char devices[ZN_PATHS_MAX][24];
};

/** The data files; those that are absent are left out. */
void zsd_drive_rows(const struct zsd *daemon, struct zsd_drive_rows *ret);
/** What there is to say about a data file in the row of its tier. Returns the same as snprintf(). */
size_t zsd_drive_detail(const struct zsd *daemon, unsigned path, char *text, size_t size);

/* ---- inspect.c */

const char *zsd_job_state_name(const struct zsd_job *job);
/** Whether this client may see the job, and the job has that name ("": any). */
bool zsd_job_seen(const struct zsd_conn *conn, const struct zsd_job *job,
                  const struct zsd_named *named);

#endif
