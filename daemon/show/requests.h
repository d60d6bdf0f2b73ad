/*
 * requests.h - handlers of requests for people (zctl), for the rows of dispatch.c.
 */
#ifndef ZSD_SHOW_REQUESTS_H
#define ZSD_SHOW_REQUESTS_H

#include "daemon/net/conn.h"

zsd_handler zsd_list, zsd_jobs, zsd_tiers, zsd_stat; /* inspect.c */
zsd_handler zsd_top, zsd_scrub, zsd_fsck, zsd_df, zsd_health, zsd_metrics, zsd_log_events;

#endif
