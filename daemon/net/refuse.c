/*
 * refuse.c - answers a request with an error message of its own.
 *
 * Separate from conn.c and answer.c, so that tests can replace the connections below the core.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "daemon/net/conn.h"

void zsd_refuse(struct zsd_req *req, int code, const char *fmt, ...)
{
    struct zb_err err = { 0 };
    char text[sizeof(err.text)];
    va_list ap;

    errno = -code;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    (void)zb_fail(&err, code, "%s", text);
    zsd_reply_err(req, &err);
}
