/*
 * select.c - the implementations of this build, and the choice among them at run time.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"
#include "kernels/zk_priv.h"

static bool always(void)
{
    return true;
}

static const struct zk_ops zk_ref = ZK_OPS(ref, always);

static const struct zk_ops *const zk_ops_all[] = {
    &zk_ref,
#ifdef ZK_X86
    &zk_avx2,
    &zk_avx512,
#endif
#ifdef ZK_AARCH64
    &zk_neon,
#endif
};

const struct zk_ops *const *zk_all(size_t *ret_count)
{
    *ret_count = ZB_COUNT(zk_ops_all);
    return zk_ops_all;
}

static int select_unknown(const struct zk_ops *const *all, size_t count, const char *force,
                          struct zb_err *err)
{
    char names[128] = "auto";
    size_t len = strlen(names);

    for (size_t i = 0; i < count && len < sizeof(names); i++)
        len += (size_t)snprintf(names + len, sizeof(names) - len, ", %s", all[i]->name);
    return zb_fail(err, -ENOENT, "unknown kernels '%s'; known are: %s", force, names);
}

int zk_select_from(const struct zk_ops *const *all, size_t count, const char *force,
                   const struct zk_ops **ret, struct zb_err *err)
{
    const struct zk_ops *best = NULL, *named = NULL;

    for (size_t i = 0; i < count; i++) {
        if (all[i]->supported())
            best = all[i];
        if (force && strcmp(force, all[i]->name) == 0)
            named = all[i];
    }
    if (!force || strcmp(force, "auto") == 0)
        named = best;
    if (!named)
        return select_unknown(all, count, force, err);
    if (!named->supported())
        return zb_fail(err, -ENOTSUP,
                       "kernels '%s' need instructions that this processor lacks; it runs '%s'",
                       force, best->name);
    *ret = named;
    return 0;
}

int zk_select(const char *force, const struct zk_ops **ret, struct zb_err *err)
{
    return zk_select_from(zk_ops_all, ZB_COUNT(zk_ops_all), force, ret, err);
}
