/*
 * requests.h - the handlers of this room: rows of dispatch.c.
 */
#ifndef ZSD_RELOAD_REQUESTS_H
#define ZSD_RELOAD_REQUESTS_H

#include "daemon/net/conn.h"

zsd_handler zsd_settings;  /* show.c */
zsd_handler zsd_log_level; /* level.c */

#endif
