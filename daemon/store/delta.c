/*
 * delta.c - the effect of one durable change on a saved job. delta.h has its use.
 *
 * MODEL. When the change is next in the queue, plan() decides which versions and snapshots there
 * will be. From the current state follow:
 *
 *     fresh   versions that will exist and are not in the catalog: they are put, with those of
 *             their rows that no version in the catalog holds
 *     drops   versions in the catalog that nothing of the job will hold: they are deleted, with
 *             those of their rows that no version in the catalog will hold
 *
 * From begin on, the counts of rows (row->kept) and of snapshots have their future values. If the
 * change fails, they are restored, and so is the promise, which was raised if the change needs more
 * room. The queue runs one change at a time, so no other change counts meanwhile.
 *
 * DOUBT. A change that failed after the catalog's commit may turn out to exist at the next start.
 * So its fresh versions keep their places until then, and so do the versions that it was to
 * replace.
 */
#include "daemon/store/delta.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/store/record.h"
#include "daemon/store/store.h"

static bool delta_keeps(const struct zsd_delta *d, const struct zsd_version *v)
{
    if (d->destroy)
        return false;
    if (v == d->committed || v == d->prepared || (d->snap_add && d->snap_add->version == v))
        return true;
    zb_list_each(pos, &d->saved->snaps)
    {
        const struct zsd_snap *s = zb_container_of(pos, struct zsd_snap, node);

        if (s->version == v && !s->going)
            return true;
    }
    return false;
}

static void delta_fresh(struct zsd_delta *d, struct zsd_version *v)
{
    if (v && !v->kept && (d->nfresh == 0 || d->fresh[0] != v))
        d->fresh[d->nfresh++] = v;
}

static void delta_drop(struct zsd_delta *d, struct zsd_version *v)
{
    if (!v || !v->kept || delta_keeps(d, v))
        return;
    for (uint32_t i = 0; i < d->ndrops; i++)
        if (d->drops[i] == v)
            return;
    d->drops[d->ndrops++] = v;
}

/* Which versions come and go. */
static int delta_versions(struct zsd_delta *d)
{
    struct zsd_saved *saved = d->saved;
    uint32_t room = 2;

    zb_list_each(pos, &saved->snaps) room++;
    d->drops = calloc(room, sizeof(struct zsd_version *));
    if (!d->drops)
        return -ENOMEM;
    if (!d->destroy) {
        delta_fresh(d, d->committed);
        delta_fresh(d, d->prepared);
    }
    delta_drop(d, saved->committed);
    delta_drop(d, saved->prepared);
    zb_list_each(pos, &saved->snaps)
    {
        struct zsd_snap *s = zb_container_of(pos, struct zsd_snap, node);

        if (s->going || d->destroy)
            delta_drop(d, s->version);
    }
    return 0;
}

/* Counts the rows as they will be, and notes which come and go. */
static int delta_rows(struct zsd_delta *d)
{
    uint64_t nputs = 0, ndels = 0;

    for (uint32_t i = 0; i < d->nfresh; i++)
        nputs += d->fresh[i]->nrows;
    for (uint32_t i = 0; i < d->ndrops; i++)
        ndels += d->drops[i]->nrows;
    d->puts = calloc(zb_max_u64(nputs, 1), sizeof(struct zsd_row *));
    d->dels = calloc(zb_max_u64(ndels, 1), sizeof(*d->dels));
    if (!d->puts || !d->dels)
        return -ENOMEM;
    for (uint32_t i = 0; i < d->nfresh; i++) {
        for (uint32_t r = 0; r < d->fresh[i]->nrows; r++)
            if (d->fresh[i]->rows[r]->kept++ == 0)
                d->puts[d->nputs++] = d->fresh[i]->rows[r];
        d->fresh[i]->kept = true;
    }
    for (uint32_t i = 0; i < d->ndrops; i++) {
        for (uint32_t r = 0; r < d->drops[i]->nrows; r++)
            if (--d->drops[i]->rows[r]->kept == 0)
                d->dels[d->ndels++] = d->drops[i]->rows[r]->id;
        d->drops[i]->kept = false;
    }
    return 0;
}

/* The counts as they were. */
static void delta_undo(struct zsd_delta *d)
{
    if (d->counted)
        d->snap_add->version->snapshots--;
    for (uint32_t i = 0; i < d->nfresh; i++) {
        if (!d->fresh[i]->kept)
            continue;
        for (uint32_t r = 0; r < d->fresh[i]->nrows; r++)
            d->fresh[i]->rows[r]->kept--;
        d->fresh[i]->kept = false;
    }
    for (uint32_t i = 0; i < d->ndrops; i++) {
        if (d->drops[i]->kept)
            continue;
        for (uint32_t r = 0; r < d->drops[i]->nrows; r++)
            d->drops[i]->rows[r]->kept++;
        d->drops[i]->kept = true;
    }
    zb_list_each(pos, &d->saved->snaps) zb_container_of(pos, struct zsd_snap, node)->going = false;
}

/* The short records. */
static int delta_records(struct zsd_delta *d)
{
    struct zn_txn *t = d->change.txn;
    const struct zsd_saved *saved = d->saved;
    const struct zsd_store *store = saved->store;
    const struct zsd_store_record record = { .boot = store->boot,
                                             .next_id = store->next_id,
                                             .next_job = store->core->next_job };
    int rc = zsd_record_put_store(t, &record);

    if (rc == 0 && d->destroy)
        rc = zsd_record_del_job(t, saved);
    else if (rc == 0)
        rc = zsd_record_put_job(t, saved, d->committed ? d->committed->id : 0,
                                d->prepared ? d->prepared->id : 0);
    for (uint32_t i = 0; i < saved->nunits && !zsd_saved_kept(saved) && !d->destroy && rc == 0; i++)
        rc = zsd_record_put_unit(t, saved->number, saved->units[i]);
    if (rc == 0 && d->snap_add)
        rc = zsd_record_put_snap(t, saved->number, d->snap_add);
    zb_list_each(pos, &saved->snaps)
    {
        const struct zsd_snap *s = zb_container_of(pos, struct zsd_snap, node);

        if (rc == 0 && (s->going || d->destroy))
            rc = zsd_record_del_snap(t, saved->number, s);
    }
    return rc;
}

static int delta_begin(struct zsd_change *c, struct zb_err *err)
{
    struct zsd_delta *d = zb_container_of(c, struct zsd_delta, change);
    int rc;

    if (d->saved->gone)
        return zb_fail(err, -ENOENT, "job '%s' was destroyed", d->saved->name);
    d->committed = d->saved->committed;
    d->prepared = d->saved->prepared;
    rc = d->plan(d, err);
    if (rc < 0)
        return rc;
    if (d->snap_add) {
        d->snap_add->version->snapshots++;
        d->counted = true;
    }
    if (d->snap_add || d->grows)
        rc = zsd_saved_raise(d->saved, d->committed, err);
    if (rc < 0)
        return rc;
    rc = delta_versions(d);
    if (rc == 0)
        rc = delta_rows(d);
    if (rc == 0)
        rc = delta_records(d);
    return rc < 0 ? zb_fail(err, rc, "a change of job '%s': %m", d->saved->name) : 0;
}

static int delta_fill(struct zsd_change *c, struct zb_err *err)
{
    struct zsd_delta *d = zb_container_of(c, struct zsd_delta, change);
    int rc = 0;

    for (uint32_t i = 0; i < d->nfresh && rc == 0; i++)
        rc = zsd_record_put_version(c->txn, d->saved->number, d->fresh[i]);
    for (uint32_t i = 0; i < d->nputs && rc == 0; i++)
        rc = zsd_record_put_row(c->txn, d->puts[i]);
    for (uint32_t i = 0; i < d->ndrops && rc == 0; i++)
        rc = zsd_record_del_version(c->txn, d->saved->number, d->drops[i]);
    for (uint32_t i = 0; i < d->ndels && rc == 0; i++)
        rc = zsd_record_del_row(c->txn, d->dels[i]);
    return rc < 0 ? zb_fail(err, rc, "a change of job '%s': %m", d->saved->name) : 0;
}

static void delta_snap_free(struct zsd_saved *saved, struct zsd_snap *s)
{
    zsd_snap_discharge(saved, s);
    zb_list_remove(&s->node);
    s->version->snapshots--;
    zsd_version_unref(s->version);
    free(s);
}

/* It is durable: now it is so. */
static void delta_apply(struct zsd_delta *d)
{
    struct zsd_saved *saved = d->saved;
    struct zsd_version *committed = saved->committed, *prepared = saved->prepared;

    if (d->destroy) {
        d->committed = d->prepared = NULL;
        saved->gone = !d->stays;
    }
    saved->committed = d->committed ? zsd_version_ref(d->committed) : NULL;
    saved->prepared = d->prepared ? zsd_version_ref(d->prepared) : NULL;
    zsd_version_unref(committed);
    zsd_version_unref(prepared);
    zb_list_each(pos, &saved->snaps)
    {
        struct zsd_snap *s = zb_container_of(pos, struct zsd_snap, node);

        if (s->going || d->destroy)
            delta_snap_free(saved, s);
    }
    if (d->snap_add) {
        (void)zsd_version_ref(d->snap_add->version); /* counted already */
        zb_list_push_back(&saved->snaps, &d->snap_add->node);
    }
}

static void delta_done(struct zsd_change *c, const struct zb_err *err)
{
    struct zsd_delta *d = zb_container_of(c, struct zsd_delta, change);
    struct zsd_saved *saved = d->saved;
    struct zb_err none = { 0 };

    if (c->doubt && d->nfresh > 0)
        saved->doubt = zsd_version_ref(d->fresh[0]);
    if (err)
        delta_undo(d);
    else
        delta_apply(d);
    free(d->drops);
    free(d->puts);
    free(d->dels);
    d->drops = NULL;
    d->puts = NULL;
    d->dels = NULL;
    if (!saved->gone)
        (void)zsd_saved_reserve(saved, &none); /* who needs more than there is asked before */
    d->done(d, err);
    zsd_saved_unhold(saved);
}

void zsd_delta_start(struct zsd_delta *d)
{
    d->change.begin = delta_begin;
    d->change.fill = delta_fill;
    d->change.done = delta_done;
    d->nfresh = d->ndrops = d->nputs = d->ndels = 0;
    d->counted = false;
    d->drops = NULL;
    d->puts = NULL;
    d->dels = NULL;
    zsd_saved_hold(d->saved);
    zsd_change_start(d->saved->store->core, &d->change);
}
