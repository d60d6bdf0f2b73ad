/*
 * fail.h - refusals and failures, and the check at the start of every public call: fail.c.
 */
#ifndef ZC_ZERO_FAIL_H
#define ZC_ZERO_FAIL_H

#include <stdbool.h>
#include <stdint.h>

struct zc_zero;
struct zcz_unit;

/** Records an error message for zc_zero_error() and returns code; the engine continues. */
int zcz_refuse(struct zc_zero *z, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/** Clears the last refusal. */
void zcz_forgive(struct zc_zero *z);
/** As zcz_refuse(), but final for the engine. Returns the code of the first failure. */
int zcz_fail(struct zc_zero *z, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/** From here on, every call in a child process is refused. */
void zcz_fork_watch(struct zc_zero *z);
void zcz_fork_forget(struct zc_zero *z);

/** Begins a public call. 0, or the reason why the engine cannot serve it. */
int zcz_enter(struct zc_zero *z, bool needs_start);
/** The same for a call that names a unit. Sets *ret_unit on 0. */
int zcz_enter_unit(struct zc_zero *z, uint32_t index, struct zcz_unit **ret_unit);

#endif
