#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

int zb_fail(struct zb_err *err, int code, const char *fmt, ...)
{
    va_list ap;

    if (!err || err->code != 0)
        return code;
    err->code = code;
    errno = code > -4096 && code < 0 ? -code : EPROTO; /* for %m; a code from outside may be
                                                          anything */
    va_start(ap, fmt);
    (void)vsnprintf(err->text, sizeof(err->text), fmt, ap);
    va_end(ap);
    zb_text_clean(err->text, strlen(err->text));
    return code;
}
