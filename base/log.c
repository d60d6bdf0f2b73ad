/*
 * log.c - writes lines, and drops those that would have to wait.
 */
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/log_priv.h"
#include "base/util.h"

static _Atomic enum zb_log_level log_level = ZB_LOG_INFO;
static enum zb_log_format log_format = ZB_LOG_TEXT;         /* text, JSON or journal */
static void (*log_on_line)(const struct zb_log_line *line); /* NULL: none */
static bool never_wait;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the following variables, with
                                                            never_wait */
static unsigned long dropped;

void zb_log_set_level(enum zb_log_level level)
{
    log_level = level;
}

enum zb_log_level zb_log_level(void)
{
    return log_level;
}

int zb_log_set_format(enum zb_log_format format, const struct zb_log_program *program,
                      struct zb_err *err)
{
    bool automatic = format == ZB_LOG_AUTO;

    if (automatic)
        format = zb_log_is_journal() && program ? ZB_LOG_JOURNAL : ZB_LOG_TEXT;
    if (format == ZB_LOG_JOURNAL) {
        int rc = program ? zb_log_journal_open(program, automatic ? NULL : err) : -EINVAL;

        if (rc < 0 && !automatic)
            return rc;
        format = rc < 0 ? ZB_LOG_TEXT : format;
    }
    log_format = format;
    log_on_line = program ? program->on_line : NULL;
    return 0;
}

/* "<6>" for the journal, a UTC time for people. */
static size_t log_prefix(char *text, size_t size, enum zb_log_level level)
{
    size_t n;

    if (zb_log_is_journal())
        return (size_t)snprintf(text, size, "<%d>", zb_log_priority(level));
    n = zb_log_time(text, size - 1);
    text[n] = ' ';
    return n + 1;
}

/** False: the write would block. */
static bool log_write(const char *line, size_t bytes)
{
    struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };
    ssize_t n;

    /* a writable pipe has room for PIPE_BUF bytes, as much as a line */
    if (never_wait && (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT)))
        return false;
    do
        n = write(STDERR_FILENO, line, bytes);
    while (n < 0 && errno == EINTR);
    return n >= 0 || errno != EAGAIN;
}

static bool log_text(const struct zb_log_line *line)
{
    char text[64 + ZB_LOG_MAX];
    size_t used = log_prefix(text, 64, line->level);

    used += zb_log_clean(line, text + used);
    text[used++] = '\n';
    return log_write(text, used);
}

static bool log_json(const struct zb_log_line *line)
{
    struct zb_log_out out;

    zb_log_json(line, &out);
    return log_write(out.bytes, out.used);
}

/** False: writing the line would block. */
static bool log_line(const struct zb_log_line *line)
{
    if (log_format == ZB_LOG_JOURNAL && zb_log_journal_send(line))
        return true;
    return log_format == ZB_LOG_JSON ? log_json(line) : log_text(line);
}

/** Writes the number of dropped lines; false: that would block too. */
static bool log_dropped(void)
{
    struct zb_log_line line;

    zb_log_begin(&line, ZB_LOG_WARN, "log-dropped");
    zb_log_add(&line, "lines=%lu", dropped);
    if (!log_line(&line))
        return false;
    dropped = 0;
    return true;
}

void zb_log_end(struct zb_log_line *line)
{
    if (line->level > log_level)
        return;
    if (log_on_line)
        log_on_line(line);
    if (!never_wait) {
        (void)log_line(line);
        return;
    }
    (void)pthread_mutex_lock(&lock);
    if ((dropped > 0 && !log_dropped()) || !log_line(line))
        dropped++;
    (void)pthread_mutex_unlock(&lock);
}

void zb_log_never_wait(void)
{
    never_wait = true;
}

void zb_log(enum zb_log_level level, const char *event, const char *fmt, ...)
{
    struct zb_log_line line;
    va_list ap;

    if (level > log_level)
        return;
    zb_log_begin(&line, level, event);
    va_start(ap, fmt);
    zb_log_vadd(&line, fmt, ap);
    va_end(ap);
    zb_log_end(&line);
}
