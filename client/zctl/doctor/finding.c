#include <stdarg.h>
#include <string.h>

#include "base/text.h"
#include "client/zctl/doctor/check.h"

void doctor_found(struct doctor_finding *f, enum doctor_level level, const char *fmt, ...)
{
    va_list args;

    f->level = level;
    va_start(args, fmt);
    (void)vsnprintf(f->found, sizeof(f->found), fmt, args);
    va_end(args);
    zb_text_clean(f->found, strlen(f->found));
}

void doctor_fix(struct doctor_finding *f, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(f->fix, sizeof(f->fix), fmt, args);
    va_end(args);
    zb_text_clean(f->fix, strlen(f->fix));
}
