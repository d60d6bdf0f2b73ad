#include "examples/gpt/model/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

int gpt_fail(struct gpt_err *err, int code, const char *fmt, ...)
{
    va_list ap;

    if (!err || err->code != 0)
        return code;
    err->code = code;
    errno = -code; /* %m */
    va_start(ap, fmt);
    (void)vsnprintf(err->text, sizeof(err->text), fmt, ap);
    va_end(ap);
    for (char *p = err->text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    return code;
}
