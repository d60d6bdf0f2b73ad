/*
 * lost.c - what was on a data file that is missing: see lost.h.
 */
#include "daemon/store/lost.h"

#include <errno.h>

#include "base/slots.h"

int zsd_version_whole(const struct zsd_core *core, const struct zsd_version *v, struct zb_err *err)
{
    if (!v || !v->lost)
        return 0;
    return zb_fail(err, -EIO,
                   "step %llu of job '%s' is lost: a part of it was in data file number %u, which "
                   "the daemon was started without",
                   (unsigned long long)v->iterations, v->saved->name, core->daemon->config.without);
}

static void lost_log(const struct zsd_saved *s, const struct zsd_version *v, const char *what,
                     const char *snapshot)
{
    if (v && v->lost)
        zb_log(ZB_LOG_ERROR, "job-lost",
               "job=\"%s\" uid=%u what=%s snapshot=\"%s\" iterations=%llu number=%u", s->name,
               (unsigned)s->uid, what, snapshot, (unsigned long long)v->iterations,
               s->store->core->daemon->config.without);
}

void zsd_lost_log(const struct zsd_store *store)
{
    zb_list_each(pos, &store->saved)
    {
        const struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

        lost_log(s, s->committed, "commit", "");
        lost_log(s, s->prepared, "prepared", "");
        zb_list_each(at, (struct zb_list *)(uintptr_t)&s->snaps)
        {
            const struct zsd_snap *snap = zb_container_of(at, struct zsd_snap, node);

            lost_log(s, snap->version, "snapshot", snap->name);
        }
    }
}
