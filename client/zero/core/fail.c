/*
 * fail.c - refusals and failures, and the check at the start of every public call.
 *
 * A wrong call is refused (zcz_refuse()) and changes nothing. Everything else is a failure
 * (zcz_fail()); every later call returns the first one.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#include "client/zero/core/zero.h"

/* ---- errors */

__attribute__((format(printf, 3, 0))) static void error_set(struct zc_zero *z, int code,
                                                            const char *fmt, va_list ap)
{
    char text[sizeof(z->error.text)];

    errno = -code; /* %m */
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    z->error.code = 0;
    (void)zb_fail(&z->error, code, "%s", text);
}

int zcz_refuse(struct zc_zero *z, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    error_set(z, code, fmt, ap);
    va_end(ap);
    return code;
}

void zcz_forgive(struct zc_zero *z)
{
    z->error.code = 0;
}

int zcz_fail(struct zc_zero *z, int code, const char *fmt, ...)
{
    va_list ap;

    if (z->failed)
        return z->failed;
    va_start(ap, fmt);
    error_set(z, code, fmt, ap);
    va_end(ap);
    z->failed = code;
    return code;
}

bool zc_zero_failed(const struct zc_zero *z)
{
    return !z || z->failed != 0;
}

const char *zc_zero_error(const struct zc_zero *z)
{
    return z ? z->error.text : "no memory for an engine";
}

/* ---- a fork */

static void fail_forked(struct zb_fork *f)
{
    zb_container_of(f, struct zc_zero, fork)->forked = true;
}

void zcz_fork_watch(struct zc_zero *z)
{
    zb_fork_watch(&z->fork, fail_forked);
}

void zcz_fork_forget(struct zc_zero *z)
{
    zb_fork_forget(&z->fork);
}

/* ---- entering */

int zcz_enter(struct zc_zero *z, bool needs_start)
{
    zk_thread_init(); /* the trainer may have changed the floating-point modes */
    if (z->forked)
        return zcz_refuse(
            z, -EPERM,
            "this engine belongs to the process that opened it, and this is a child process");
    if (z->failed)
        return z->failed;
    if (needs_start && !z->started)
        return zcz_refuse(z, -EBUSY, "the engine has not started: zc_zero_start() comes first");
    return 0;
}

int zcz_enter_unit(struct zc_zero *z, uint32_t index, struct zcz_unit **ret_unit)
{
    int rc = zcz_enter(z, true);

    if (rc < 0)
        return rc;
    if (index >= z->nunits)
        return zcz_refuse(z, -EINVAL, "unit %u does not exist: there are %u", index, z->nunits);
    *ret_unit = &z->units[index];
    return 0;
}
