/*
 * fail.h - what goes wrong, and what every public call begins with: fail.c.
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
/** The last refusal was none after all. */
void zcz_forgive(struct zc_zero *z);
/** As zcz_refuse(), and the engine is done for. Returns the code of the first failure. */
int zcz_fail(struct zc_zero *z, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/** From now on, in a child of this process every call is refused. */
void zcz_fork_watch(struct zc_zero *z);
void zcz_fork_forget(struct zc_zero *z);

/** What every public call begins with: 0, or why this engine does not answer. */
int zcz_enter(struct zc_zero *z, bool needs_start);
/** The same of a call that names a unit; *ret_unit on 0. */
int zcz_enter_unit(struct zc_zero *z, uint32_t index, struct zcz_unit **ret_unit);

#endif
