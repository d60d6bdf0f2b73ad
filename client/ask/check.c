/*
 * check.c - checks the arguments of a request before it is sent.
 */
#include <errno.h>
#include <string.h>

#include "client/ask/ask_priv.h"

int zc_name_check(struct zc_client *c, const char *what, const char *name, unsigned max)
{
    if (!name)
        return zc_fail(c, -EINVAL, "%s without a name", what);
    if (strnlen(name, max + 1) > max)
        return zc_fail(c, -EINVAL, "the name of %s is longer than %u bytes: '%.32s...'", what, max,
                       name);
    return 0;
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
