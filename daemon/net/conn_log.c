/*
 * conn_log.c - log lines about a client, at a limited rate, so that a client can neither fill the
 * log nor keep the daemon busy with logging.
 */
#include <stdarg.h>

#include "daemon/net/conn.h"

void zsd_conn_log(struct zsd_conn *conn, enum zb_log_level level, const char *event,
                  const char *fmt, ...)
{
    struct zb_log_line line;
    uint32_t dropped;
    va_list ap;

    if (!zsd_limit_line(&conn->quota, zb_now_ns(), &dropped)) {
        conn->daemon->stats.log_lines_dropped++;
        return;
    }
    zb_log_begin(&line, level, event);
    zb_log_add(&line, "pid=%ld uid=%u program=\"%s\"", (long)conn->pid, (unsigned)conn->uid,
               conn->program);
    if (conn->job[0])
        zb_log_add(&line, "job=\"%s\"", conn->job);
    if (dropped > 0)
        zb_log_add(&line, "lines_dropped=%u", dropped);
    va_start(ap, fmt);
    zb_log_vadd(&line, fmt, ap);
    va_end(ap);
    zb_log_end(&line);
}
