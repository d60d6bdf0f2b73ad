/*
 * cpus.h - lists of CPUs and of nodes, as options have them: numbers and ranges, such as 0-3,8.
 */
#ifndef ZSD_CPUS_H
#define ZSD_CPUS_H

#include <sched.h>
#include <stdbool.h>

#include "base/err.h"

/** 0; -EINVAL the list is not a CPU list, or names none that we may use. NULL or "": all that we
 * may. Any thread. */
int zsd_cpus_check(const char *cpus, struct zb_err *err);
/** The same, and what it comes to: the CPUs that it names and that we may use. */
int zsd_cpus_resolve(const char *cpus, cpu_set_t *ret, struct zb_err *err);
/** Numbers below CPU_SETSIZE and ranges of them. */
bool zsd_numbers_parse(const char *text, cpu_set_t *ret);

#endif
