/*
 * cpus.h - lists of CPUs and of nodes in options: numbers and ranges, such as 0-3,8.
 */
#ifndef ZSD_CPUS_H
#define ZSD_CPUS_H

#include <sched.h>
#include <stdbool.h>

#include "base/err.h"

/** Checks a CPU list. NULL or "": all CPUs that this process may use. 0; -EINVAL: not a CPU list,
 * or none of its CPUs may be used. Any thread. */
int zsd_cpus_check(const char *cpus, struct zb_err *err);
/** The same; *ret gets the CPUs of the list that this process may use. */
int zsd_cpus_resolve(const char *cpus, cpu_set_t *ret, struct zb_err *err);
/** Parses a list of numbers below CPU_SETSIZE, and ranges of them. False: it is malformed. */
bool zsd_numbers_parse(const char *text, cpu_set_t *ret);

#endif
