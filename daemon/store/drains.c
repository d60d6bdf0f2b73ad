/*
 * drains.c - which drives are drained, as the catalog has it: see drains.h.
 */
#include "daemon/store/drains.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/disk/drives.h"
#include "daemon/disk/paths.h"
#include "daemon/store/pack.h"
#include "daemon/store/store.h"

/* ---- the record */

static void write_drain(struct zsd_pack *w, const void *object)
{
    const struct zsd_drain_record *d = object;

    zsd_pack(w, d->uuid, sizeof(d->uuid));
    zsd_pack_u32(w, d->drain);
    zsd_pack_text(w, d->why);
}

int zsd_record_put_drain(struct zn_txn *t, const struct zsd_drain_record *d)
{
    return zsd_pack_record(t, ZSD_RECORD_DRAIN, d->path, 0, write_drain, d);
}

int zsd_record_get_drain(const struct zn_key *key, const void *bytes, size_t len_bytes,
                         struct zsd_drain_record *ret, struct zb_err *err)
{
    struct zsd_unpack r = zsd_unpack_begin(bytes, len_bytes);
    const void *uuid = zsd_unpack(&r, sizeof(ret->uuid));

    *ret = (struct zsd_drain_record){ .path = (unsigned)key->a };
    if (uuid)
        memcpy(ret->uuid, uuid, sizeof(ret->uuid));
    ret->drain = zsd_unpack_u32(&r);
    zsd_unpack_text(&r, ret->why, sizeof(ret->why));
    zsd_unpack_check(&r, key->a < ZN_PATHS_MAX && key->b == 0 && ret->drain > ZSD_DRAIN_NONE &&
                             ret->drain <= ZSD_DRAIN_STALLED);
    return zsd_unpack_end(&r, "a drained drive", err);
}

/* ---- writing */

bool zsd_drains_kept(const struct zsd_store *store)
{
    return store->drains == store->core->disk->drains;
}

static int drain_put(const struct zsd_core *core, struct zn_txn *t, unsigned path)
{
    const struct zsd_drive *d = &core->disk->lines[path].drive;
    struct zsd_drain_record r = { .path = path, .drain = d->drain };

    memcpy(r.uuid, zn_info(zsd_path_engine(core->daemon, path))->uuid, sizeof(r.uuid));
    memcpy(r.why, d->why, sizeof(r.why));
    return zsd_record_put_drain(t, &r);
}

int zsd_drains_put(const struct zsd_store *store, struct zn_txn *t, uint64_t *ret,
                   struct zb_err *err)
{
    const struct zsd_core *core = store->core;
    int rc = 0;

    *ret = core->disk->drains;
    for (unsigned i = 0; i < ZN_PATHS_MAX && rc == 0 && !zsd_drains_kept(store); i++)
        rc = zsd_path_drained(core, i) ? drain_put(core, t, i)
                                       : zn_txn_del_all(t, ZSD_RECORD_DRAIN, i);
    return rc < 0 ? zb_fail(err, rc, "which drives are drained: %m") : 0;
}

/* ---- recovery */

struct recovery {
    struct zsd_core *core;
    bool stale; /* a record does not hold any more: the next change deletes it */
};

static bool same_file(const struct zsd *daemon, const struct zsd_drain_record *d)
{
    return !zsd_place_lost(daemon, ZN_AT(d->path, 0)) &&
           memcmp(d->uuid, zn_info(zsd_path_engine(daemon, d->path))->uuid, sizeof(d->uuid)) == 0;
}

static int recover_drain(void *arg, const struct zn_key *key, const void *bytes, size_t len_bytes,
                         struct zb_err *err)
{
    struct recovery *r = arg;
    struct zsd_drain_record d;
    struct zb_err why = { 0 };
    int rc = zsd_record_get_drain(key, bytes, len_bytes, &d, err);

    if (rc < 0)
        return rc;
    if (!same_file(r->core->daemon, &d)) {
        r->stale = true;
    } else if (zsd_drive_drain(r->core, d.path, d.drain, d.why, &why) < 0) {
        r->stale = true;
        zb_log(ZB_LOG_WARN, "drive-used", "number=%u directory=\"%s\" held_bytes=%llu why=\"%s\"",
               d.path + 1, zsd_path_folder(r->core->daemon, d.path),
               (unsigned long long)r->core->disk->lines[d.path].drive.held_bytes, why.text);
    }
    return 0;
}

int zsd_drains_recover(struct zsd_store *store, struct zb_err *err)
{
    struct recovery r = { .core = store->core };
    int rc =
        zn_catalog_each(store->catalog, ZSD_RECORD_DRAIN, ZSD_RECORD_DRAIN, recover_drain, &r, err);

    store->drains = store->core->disk->drains - r.stale;
    return rc;
}
