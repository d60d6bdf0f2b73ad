#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/text.h"
#include "base/util.h"

static const struct {
    const char *name;
    int priority; /* syslog's */
} levels[] = {
    [ZB_LOG_ERROR] = { "error", 3 },
    [ZB_LOG_WARN] = { "warn", 4 },
    [ZB_LOG_INFO] = { "info", 6 },
    [ZB_LOG_DEBUG] = { "debug", 7 },
};

static _Atomic enum zb_log_level log_level = ZB_LOG_INFO;
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

const char *zb_log_level_name(enum zb_log_level level)
{
    return levels[level].name;
}

int zb_log_level_parse(const char *text, enum zb_log_level *ret)
{
    for (size_t i = 0; i < ZB_COUNT(levels); i++)
        if (strcmp(text, levels[i].name) == 0) {
            *ret = (enum zb_log_level)i;
            return 0;
        }
    return -EINVAL;
}

/* "<6>" for the journal, a UTC time for people. */
static size_t log_prefix(char *line, size_t size, enum zb_log_level level)
{
    struct timespec ts;
    struct tm tm;
    int n;

    if (getenv("JOURNAL_STREAM")) {
        n = snprintf(line, size, "<%d>", levels[level].priority);
    } else {
        (void)clock_gettime(CLOCK_REALTIME, &ts);
        (void)gmtime_r(&ts.tv_sec, &tm);
        n = snprintf(line, size, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ ", tm.tm_year + 1900,
                     tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec,
                     ts.tv_nsec / 1000000);
    }
    return n > 0 ? (size_t)n : 0;
}

/** False: the write would block. */
static bool log_write(const char *line, size_t bytes)
{
    struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };
    ssize_t n;

    /* a writable pipe has room for PIPE_BUF bytes, more than a line */
    if (never_wait && (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT)))
        return false;
    do
        n = write(STDERR_FILENO, line, bytes);
    while (n < 0 && errno == EINTR);
    return n >= 0 || errno != EAGAIN;
}

/** Writes the number of dropped lines; false: that would block too. */
static bool log_dropped(void)
{
    char line[128];
    size_t used = log_prefix(line, sizeof(line), ZB_LOG_WARN);
    int n = snprintf(line + used, sizeof(line) - used, "warn log-dropped lines=%lu\n", dropped);

    if (!log_write(line, used + (size_t)n))
        return false;
    dropped = 0;
    return true;
}

static void log_line(const char *line, size_t bytes)
{
    if (!never_wait) {
        (void)log_write(line, bytes);
        return;
    }
    (void)pthread_mutex_lock(&lock);
    if ((dropped > 0 && !log_dropped()) || !log_write(line, bytes))
        dropped++;
    (void)pthread_mutex_unlock(&lock);
}

void zb_log_never_wait(void)
{
    never_wait = true;
}

void zb_log(enum zb_log_level level, const char *event, const char *fmt, ...)
{
    char line[ZB_LOG_MAX];
    size_t used, limit = sizeof(line) - 1; /* one byte stays for the newline */
    va_list ap;
    int n;

    if (level > log_level)
        return;
    used = log_prefix(line, limit, level);
    n = snprintf(line + used, limit - used, "%s %s ", levels[level].name, event);
    used = zb_min_u64(limit - 1, used + (n > 0 ? (size_t)n : 0));
    va_start(ap, fmt);
    n = vsnprintf(line + used, limit - used, fmt, ap);
    va_end(ap);
    used = zb_min_u64(limit - 1, used + (n > 0 ? (size_t)n : 0));
    zb_text_clean(line, used);
    line[used++] = '\n';
    log_line(line, used);
}
