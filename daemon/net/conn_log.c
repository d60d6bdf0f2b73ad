/*
 * conn_log.c - log lines about a client, at a limited rate, so that a client can neither fill the
 * log nor keep the daemon busy with logging.
 */
#include <stdarg.h>
#include <stdio.h>

#include "daemon/net/conn.h"

void zsd_conn_log(struct zsd_conn *conn, enum zb_log_level level, const char *event,
                  const char *fmt, ...)
{
    char text[ZB_LOG_MAX];
    char more[64] = "";
    uint32_t dropped;
    va_list ap;

    if (!zsd_limit_line(&conn->quota, zb_now_ns(), &dropped)) {
        conn->daemon->stats.log_lines_dropped++;
        return;
    }
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (dropped > 0)
        (void)snprintf(more, sizeof(more), " lines_dropped=%u", dropped);
    zb_log(level, event, "pid=%ld uid=%u program=\"%s\"%s %s", (long)conn->pid, (unsigned)conn->uid,
           conn->program, more, text);
}
