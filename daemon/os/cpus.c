#include "daemon/os/cpus.h"

#include <ctype.h>
#include <errno.h>

/** Reads digits at *p and moves it past them. */
static bool cpus_number(const char **p, unsigned *ret)
{
    unsigned n = 0;

    if (!isdigit((unsigned char)**p))
        return false;
    for (; isdigit((unsigned char)**p); (*p)++) {
        n = n * 10 + (unsigned)(**p - '0');
        if (n >= CPU_SETSIZE)
            return false;
    }
    *ret = n;
    return true;
}

bool zsd_numbers_parse(const char *text, cpu_set_t *ret)
{
    unsigned first, last;

    CPU_ZERO(ret);
    for (const char *p = text;; p++) {
        if (!cpus_number(&p, &first))
            return false;
        last = first;
        if (*p == '-') {
            p++;
            if (!cpus_number(&p, &last) || last < first)
                return false;
        }
        for (unsigned cpu = first; cpu <= last; cpu++)
            CPU_SET(cpu, ret);
        if (*p == '\0')
            return true;
        if (*p != ',')
            return false;
    }
}

int zsd_cpus_resolve(const char *cpus, cpu_set_t *ret, struct zb_err *err)
{
    cpu_set_t ours, named;

    if (sched_getaffinity(0, sizeof(ours), &ours) < 0)
        return zb_fail(err, -errno, "the CPUs that this process may use: %m");
    if (!cpus || !*cpus) {
        *ret = ours;
        return 0;
    }
    if (!zsd_numbers_parse(cpus, &named))
        return zb_fail(err, -EINVAL,
                       "'%s' is not a CPU list: numbers below %d and ranges, such as 0-3,8", cpus,
                       CPU_SETSIZE);
    CPU_AND(ret, &named, &ours);
    if (CPU_COUNT(ret) == 0)
        return zb_fail(err, -EINVAL, "this process may use none of the CPUs '%s'", cpus);
    return 0;
}

int zsd_cpus_check(const char *cpus, struct zb_err *err)
{
    cpu_set_t set;

    return zsd_cpus_resolve(cpus, &set, err);
}
