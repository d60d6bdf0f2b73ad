/*
 * log.h - one event, one line: `level event key=value ...` on standard error.
 *
 * Under systemd (JOURNAL_STREAM is set) each line begins with the <N> prefix that the journal reads
 * as its priority; elsewhere with the time. A line is written by one write(2), so lines of several
 * threads never mix. Nothing is buffered: an abort loses no line. Lines longer than ZB_LOG_MAX are
 * cut.
 */
#ifndef ZB_LOG_H
#define ZB_LOG_H

#define ZB_LOG_MAX 1024

enum zb_log_level { ZB_LOG_ERROR, ZB_LOG_WARN, ZB_LOG_INFO, ZB_LOG_DEBUG };

/** Lines above this level are dropped; ZB_LOG_INFO until set. Any thread, at any time. */
void zb_log_set_level(enum zb_log_level level);

enum zb_log_level zb_log_level(void);
const char *zb_log_level_name(enum zb_log_level level);

/**
 * From now on, a line that would block on standard error (a full pipe or socket) is dropped. The
 * next line written is preceded by one with the number of dropped lines. So a slow reader of the
 * log cannot stop a daemon. Set before threads start.
 */
void zb_log_never_wait(void);

/** Reads error|warn|info|debug: 0, or -EINVAL and *ret unchanged. */
int zb_log_level_parse(const char *text, enum zb_log_level *ret);

/** `event` is a fixed word such as "job-open"; fmt gives `key=value` pairs, text values quoted. */
void zb_log(enum zb_log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
