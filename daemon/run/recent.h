/*
 * recent.h - the last events of the log, for `zctl events`.
 *
 * MODEL. Each line that is logged is also kept in a ring of ZSD_RECENT_MAX events, of fixed size. Events
 * have numbers, from 1 on. A reader asks for the event after a number; what was overwritten meanwhile
 * shows as a gap.
 *
 * Any thread.
 */
#ifndef ZSD_RECENT_H
#define ZSD_RECENT_H

#include "base/log.h"

#define ZSD_RECENT_MAX  1000u
#define ZSD_RECENT_TEXT 512u

struct zsd_recent {
    uint64_t number, time_ms; /* since 1970 */
    enum zb_log_level level;
    const char *event;
    bool has_uid;
    uint32_t uid;               /* whose it is: of the job, or of the client */
    char job[64];               /* "": it names none */
    char text[ZSD_RECENT_TEXT]; /* its pairs, cleaned and perhaps cut */
};

/** Keeps a line: zb_log_program.on_line. */
void zsd_recent_add(const struct zb_log_line *line);
/** The first event whose number is greater than `after`. False: there is none. */
bool zsd_recent_next(uint64_t after, struct zsd_recent *ret);

#endif
