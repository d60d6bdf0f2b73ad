/*
 * events.h - the events of the log. Each has an id of 128 bits, MESSAGE_ID in the journal, which stays
 * the same in all versions. docs/reference/log.md lists them; the test `log` compares.
 */
#ifndef ZSD_EVENTS_H
#define ZSD_EVENTS_H

#include "base/log.h"

/** The id of an event, 32 hex digits; NULL: there is no such event. */
const char *zsd_event_id(const char *name);

extern const struct zb_log_program zsd_log_program;

#endif
