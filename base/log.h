/*
 * log.h - the log: one event, one line.
 *
 * FORMATS
 *     text     `level event key=value ...` on standard error. If that is the systemd journal, the
 *              line begins with the <N> prefix that the journal reads as its priority; elsewhere
 *              with the time.
 *     json     one JSON object per line on standard error: time, level, event, message, fields.
 *     journal  the journal's own protocol, with a field for each key. A line that its socket has no
 *              room for is written to standard error instead.
 *
 * A line is written by one system call, so lines of several threads never mix. Nothing is buffered:
 * an abort loses no line. Lines longer than ZB_LOG_MAX are cut.
 */
#ifndef ZB_LOG_H
#define ZB_LOG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define ZB_LOG_MAX        1024
#define ZB_LOG_FIELDS_MAX 20u

enum zb_log_level { ZB_LOG_ERROR, ZB_LOG_WARN, ZB_LOG_INFO, ZB_LOG_DEBUG };
enum zb_log_format { ZB_LOG_AUTO, ZB_LOG_TEXT, ZB_LOG_JSON, ZB_LOG_JOURNAL };

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

struct zb_log_line;

/** What the log knows of a program. Constant. */
struct zb_log_program {
    const char *name;                        /* SYSLOG_IDENTIFIER */
    const char *prefix;                      /* of its fields: "ZSHARD_" */
    const char *(*id_of)(const char *event); /* MESSAGE_ID, 32 hex digits; NULL: it has none */
    void (*on_line)(const struct zb_log_line *line); /* each line that is logged; may be NULL */
};

/**
 * Sets the program, and chooses the format; ZB_LOG_TEXT until set. ZB_LOG_AUTO: the journal's own if standard error is the
 * journal, otherwise text. Set before threads start.
 *
 * @param program  NULL: the journal cannot be chosen
 * @return 0; a negative errno: there is no journal, and the format is unchanged
 */
int zb_log_set_format(enum zb_log_format format, const struct zb_log_program *program,
                      struct zb_err *err);

/** Reads error|warn|info|debug: 0, or -EINVAL and *ret unchanged. */
int zb_log_level_parse(const char *text, enum zb_log_level *ret);

/**
 * `event` is a fixed word such as "job-open"; fmt gives `key=value` pairs, separated by a blank, and
 * text values quoted. Its conversions: %s %d %u %ld %lu %lld %llu %zu, without flags.
 */
void zb_log(enum zb_log_level level, const char *event, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- a line in parts */

/** A pair: bytes of zb_log_line.text. */
struct zb_log_field {
    uint16_t key, key_bytes, value, value_bytes;
    bool number; /* the value is a whole number: not quoted, and not %s */
};

/** A line before it is written. */
struct zb_log_line {
    enum zb_log_level level;
    const char *event;
    char text[ZB_LOG_MAX]; /* "level event key=value ..."; with any bytes until zb_log_end() */
    size_t used;           /* less than ZB_LOG_MAX: one byte stays for the newline */
    unsigned nfields;
    struct zb_log_field fields[ZB_LOG_FIELDS_MAX]; /* more pairs are in the text only */
};

void zb_log_begin(struct zb_log_line *line, enum zb_log_level level, const char *event);
/** Adds pairs: fmt as in zb_log(). */
void zb_log_add(struct zb_log_line *line, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void zb_log_vadd(struct zb_log_line *line, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0)));
/** Writes the line, if its level is logged. */
void zb_log_end(struct zb_log_line *line);

/** The value of a pair, not terminated; NULL: there is none with this key. */
const struct zb_log_field *zb_log_find(const struct zb_log_line *line, const char *key);

#endif
