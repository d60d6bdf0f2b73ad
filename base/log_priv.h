/*
 * log_priv.h - what the files of the log share.
 */
#ifndef ZB_LOG_PRIV_H
#define ZB_LOG_PRIV_H

#include "base/log.h"

/* A pipe that is writable has room for PIPE_BUF bytes, which is this much on Linux. */
#define ZB_LOG_BYTES_MAX 4096u

/** Bounded bytes: what does not fit is left out, and `cut` is set. */
struct zb_log_out {
    char bytes[ZB_LOG_BYTES_MAX];
    size_t used, limit; /* limit: at most sizeof(bytes) */
    bool cut;
};

/** Appends all of the bytes, or none. */
bool zb_log_put(struct zb_log_out *out, const char *bytes, size_t n);
bool zb_log_puts(struct zb_log_out *out, const char *text);

/** Copies the text without what could break a line or a terminal. */
size_t zb_log_clean(const struct zb_log_line *line, char text[static ZB_LOG_MAX]);

/** The time now, in UTC: "2026-01-31T12:00:00.000Z". The number of its bytes. */
size_t zb_log_time(char *text, size_t size);

/** Makes one line of JSON, with a newline. */
void zb_log_json(const struct zb_log_line *line, struct zb_log_out *out);

/** Whether standard error is a stream of the journal. */
bool zb_log_is_journal(void);
/** syslog's number of a level. */
int zb_log_priority(enum zb_log_level level);
/** Opens the way to the journal's socket: 0, or a negative errno. */
int zb_log_journal_open(const struct zb_log_program *program, struct zb_err *err);
/** Sends a line; false: it was not sent, since there is no room or no journal. Never waits. */
bool zb_log_journal_send(const struct zb_log_line *line);

#endif
