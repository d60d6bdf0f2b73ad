/*
 * check.c - checks the arguments of a request before it is sent.
 */
#include <errno.h>
#include <string.h>

#include "client/ask/ask_priv.h"
#include "proto/wire.h"

int zc_name_check(struct zc_client *c, const char *what, const char *name, unsigned max)
{
    if (!name)
        return zc_fail(c, -EINVAL, "%s without a name", what);
    if (strnlen(name, max + 1) > max)
        return zc_fail(c, -EINVAL, "the name of %s is longer than %u bytes: '%.32s...'", what, max,
                       name);
    return 0;
}

int zc_job_word(struct zc_client *c, const char *job, char **ret_name, uint64_t *ret_owner)
{
    const char *slash = job ? strchr(job, '/') : NULL;
    uint64_t uid = 0;

    *ret_name = UNCONST(char, job ? slash ? slash + 1 : job : "");
    *ret_owner = 0;
    for (const char *p = job; slash && p < slash && uid <= UINT32_MAX; p++)
        uid = *p >= '0' && *p <= '9' ? 10 * uid + (uint64_t)(*p - '0') : UINT64_MAX / 16;
    if (slash && (slash == job || uid >= UINT32_MAX))
        return zc_fail(c, -EINVAL, "'%.80s' does not begin with a uid, as in 1001/NAME", job);
    if (slash && !(c->features & ZP_FEATURE_OWNER))
        return zc_fail(c, -EOPNOTSUPP, "%s is older than names of jobs with their owner ('%.80s')",
                       c->server.server, job);
    if (slash)
        *ret_owner = 1 + uid;
    return zc_name_check(c, "a job", *ret_name, ZC_NAME_MAX);
}

int zc_count_check(struct zc_client *c, uint32_t n)
{
    int rc = zc_conn_usable(c);

    if (rc == 0 && (n < 1 || n > c->server.shards_max))
        rc = zc_fail(c, -EINVAL, "%u shards in one call: from 1 to %u", n, c->server.shards_max);
    return rc;
}

int zc_staging_offset(struct zc_client *c, const struct zc_map *map, const void *staged,
                      uint64_t *ret)
{
    uint64_t at = (uint64_t)(uintptr_t)staged - (uint64_t)(uintptr_t)map->base;
    int rc = zc_conn_usable(c);

    if (rc == 0 && (!map->base || at >= map->bytes))
        rc = zc_fail(c, -EINVAL, "the bytes are not in the %s's staging",
                     map == &c->reader ? "reader" : "job");
    if (rc == 0)
        *ret = at;
    return rc;
}
