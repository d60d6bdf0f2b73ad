/*
 * delta.c - the effect of one durable change on a saved job. delta.h has the interface.
 *
 * MODEL. When the change is first in the queue, plan() decides which versions and snapshots there
 * will be. A comparison with the current state gives:
 *
 *     fresh   versions that will exist and are not in the catalog: they are added, with those of
 *             their rows that no version in the catalog has
 *     drops   versions in the catalog that the job will not hold any more: they are deleted, with
 *             those of their rows that no version in the catalog will have
 *
 * The counts of rows (row->kept) and of snapshots get their future values before the catalog's
 * commit, some rows each turn (delta_rows()). The same pass finds the rows that the saved job gains
 * and loses: if other versions have a row, too, it searches the job's current and future versions
 * for it. The promise is raised if the change needs more room. The queue runs one change at a time,
 * from its beginning until it is settled. So no other change counts meanwhile, and the versions of
 * every saved job stay the same.
 *
 *     durable   the versions, the snapshots and saved->held change in one turn; then the promise is
 *               set, in parts
 *     failed    the counts are restored, in parts; then the promise is set likewise
 *
 * After that, the owner is told.
 *
 * DOUBT. A change that failed after the catalog's commit may turn out to be durable at the next
 * start. Until then its fresh version keeps its places, and so do the versions that it was to
 * replace.
 */
#include "daemon/store/delta.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/run/turn.h"
#include "daemon/store/record.h"
#include "daemon/store/store.h"

#define PROBES 16u /* versions searched for a row, per unit of work */

/* ---- which versions come and go */

static void delta_mark(struct zsd_version *v, uint64_t stamp)
{
    if (v)
        v->stamp = stamp;
}

static void delta_fresh(struct zsd_delta *d, struct zsd_version *v)
{
    struct zsd_delta_run *run = &d->run;

    if (v && !v->kept && (run->nfresh == 0 || run->fresh[0] != v))
        run->fresh[run->nfresh++] = v;
}

/* Classifies a current version. Its stamp is `keeps` if it stays, and `seen` once it is done. */
static void delta_now(struct zsd_delta *d, struct zsd_version *v, uint64_t keeps, uint64_t seen)
{
    struct zsd_delta_run *run = &d->run;

    if (!v || v->stamp == seen)
        return;
    if (v->stamp == keeps)
        run->stays[run->nstays++] = v;
    else if (v->kept)
        run->drops[run->ndrops++] = v;
    v->stamp = seen;
}

/* 0 or -ENOMEM. */
static int delta_versions(struct zsd_delta *d)
{
    struct zsd_saved *saved = d->saved;
    struct zsd_delta_run *run = &d->run;
    uint64_t keeps = ++saved->store->stamp, seen = ++saved->store->stamp, nputs = 0, ndels = 0;
    uint32_t room = 2;

    zb_list_each(pos, &saved->snaps)
    {
        struct zsd_snap *s = zb_container_of(pos, struct zsd_snap, node);

        room++;
        if (!s->going && !d->destroy)
            delta_mark(s->version, keeps);
    }
    run->drops = calloc(room, sizeof(struct zsd_version *));
    run->stays = calloc(room, sizeof(struct zsd_version *));
    if (!run->drops || !run->stays)
        return -ENOMEM;
    if (!d->destroy) {
        delta_mark(d->committed, keeps);
        delta_mark(d->prepared, keeps);
        delta_mark(d->snap_add ? d->snap_add->version : NULL, keeps);
        delta_fresh(d, d->committed);
        delta_fresh(d, d->prepared);
    }
    delta_now(d, saved->committed, keeps, seen);
    delta_now(d, saved->prepared, keeps, seen);
    zb_list_each(pos, &saved->snaps)
        delta_now(d, zb_container_of(pos, struct zsd_snap, node)->version, keeps, seen);
    for (uint32_t i = 0; i < run->nfresh; i++)
        nputs += run->fresh[i]->nrows;
    for (uint32_t i = 0; i < run->ndrops; i++)
        ndels += run->drops[i]->nrows;
    run->puts = calloc(zb_max_u64(nputs, 1), sizeof(struct zsd_row *));
    run->dels = calloc(zb_max_u64(ndels, 1), sizeof(*run->dels));
    return run->puts && run->dels ? 0 : -ENOMEM;
}

/* ---- which rows */

static struct zsd_version *delta_list(const struct zsd_delta *d, uint32_t i)
{
    return i < d->run.nfresh ? d->run.fresh[i] : d->run.drops[i - d->run.nfresh];
}

static bool delta_has(const struct zsd_delta *d, struct zsd_version *const *versions, uint32_t n,
                      const struct zsd_row *r)
{
    uint32_t at = d->run.row, i = 0;

    while (i < n && !zsd_version_has(versions[i], r, &at))
        i++;
    zsd_turn_count(d->saved->store->core, i / PROBES);
    return i < n;
}

/* Adds the bytes of a row to *sum if another job of the same user has it. */
static void delta_shared(const struct zsd_delta *d, const struct zsd_row *r, uint64_t *sum)
{
    const struct zsd_saved *saved = d->saved;
    uint32_t at = d->run.row, n = 0;

    zb_list_each(pos, &saved->store->saved)
    {
        const struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

        if (s == saved || s->uid != saved->uid || s->gone || !zsd_saved_kept(s))
            continue;
        n++;
        if (zsd_saved_has(s, true, r, &at)) {
            *sum += zsd_row_bytes(r);
            break;
        }
    }
    zsd_turn_count(saved->store->core, n / PROBES);
}

/* Counts a row of fresh[i]. If it is new to the saved job, adds its places to run->come. */
static int delta_comes(struct zsd_delta *d, uint32_t i, struct zsd_row *r)
{
    struct zsd_delta_run *run = &d->run;
    bool had = r->kept > 0 &&
               (delta_has(d, run->stays, run->nstays, r) ||
                delta_has(d, run->drops, run->ndrops, r) || delta_has(d, run->fresh, i, r));

    if (!had && zsd_row_needs(&run->come, r, 1) < 0)
        return -ENOMEM;
    if (!had && r->kept > 0)
        delta_shared(d, r, &run->share_come);
    if (r->kept++ == 0)
        run->puts[run->nputs++] = r;
    return 0;
}

/* The same for a row of drops[i]: if the saved job loses it, adds its places to run->go. */
static int delta_goes(struct zsd_delta *d, uint32_t i, struct zsd_row *r)
{
    struct zsd_delta_run *run = &d->run;
    bool has = r->kept > 1 && (delta_has(d, run->fresh, run->nfresh, r) ||
                               delta_has(d, run->stays, run->nstays, r) ||
                               delta_has(d, run->drops + i + 1, run->ndrops - i - 1, r));

    if (!has && zsd_row_needs(&run->go, r, 1) < 0)
        return -ENOMEM;
    if (--r->kept == 0)
        run->dels[run->ndels++] = r->id;
    else if (!has)
        delta_shared(d, r, &run->share_go);
    return 0;
}

static void delta_flag(struct zsd_delta *d, bool flag)
{
    struct zsd_delta_run *run = &d->run;

    for (uint32_t i = 0; i < run->nfresh; i++)
        run->fresh[i]->kept = flag;
    for (uint32_t i = 0; i < run->ndrops; i++)
        run->drops[i]->kept = !flag;
    run->flagged = flag;
}

/* Sets the counts of the next rows to their future values. 0: all are counted; 1: call again in the
 * next turn; -ENOMEM. */
static int delta_rows(struct zsd_delta *d)
{
    struct zsd_delta_run *run = &d->run;
    struct zsd_core *core = d->saved->store->core;

    while (run->list < run->nfresh + run->ndrops) {
        const struct zsd_version *v = delta_list(d, run->list);
        int rc;

        if (run->row == v->nrows) {
            run->list++;
            run->row = 0;
            continue;
        }
        if (zsd_turn_left(core) == 0)
            return 1;
        zsd_turn_count(core, 1);
        rc = run->list < run->nfresh ? delta_comes(d, run->list, v->rows[run->row])
                                     : delta_goes(d, run->list - run->nfresh, v->rows[run->row]);
        if (rc < 0)
            return rc;
        run->row++;
    }
    if (!run->flagged)
        delta_flag(d, true);
    return 0;
}

/* Restores the counts of rows. False: incomplete, call again in the next turn. */
static bool delta_undo(struct zsd_delta *d)
{
    struct zsd_delta_run *run = &d->run;
    struct zsd_core *core = d->saved->store->core;

    while (run->list > 0 || run->row > 0) {
        struct zsd_row *r;

        if (run->row == 0) {
            run->row = delta_list(d, --run->list)->nrows;
            continue;
        }
        if (zsd_turn_left(core) == 0)
            return false;
        zsd_turn_count(core, 1);
        r = delta_list(d, run->list)->rows[--run->row];
        if (run->list < run->nfresh)
            r->kept--;
        else
            r->kept++;
    }
    return true;
}

/* ---- the transaction */

/* The short records; delta_fill() adds the long ones. */
static int delta_records(struct zsd_delta *d)
{
    struct zn_txn *t = d->change.txn;
    const struct zsd_saved *saved = d->saved;
    struct zsd_store_record record;
    int rc;

    d->run.manifest = !zsd_saved_kept(saved) && !d->destroy;
    if (zsd_store_namesake(saved))
        d->run.namesakes = d->run.manifest ? 1 : d->destroy && zsd_saved_kept(saved) ? -1 : 0;
    if (saved->image)
        d->run.images = d->run.manifest ? 1 : d->destroy && zsd_saved_kept(saved) ? -1 : 0;
    record = zsd_store_record(saved->store, d->run.namesakes, d->run.images);
    rc = zsd_record_put_store(t, &record);
    if (rc == 0 && d->destroy)
        rc = zsd_record_del_job(t, saved);
    else if (rc == 0)
        rc = zsd_record_put_job(t, saved, d->committed ? d->committed->id : 0,
                                d->prepared ? d->prepared->id : 0);
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

/* 0; 1: incomplete, call again in the next turn; or a negative errno. */
static int delta_decide(struct zsd_delta *d, struct zb_err *err)
{
    int rc;

    if (d->saved->gone)
        return zb_fail(err, -ENOENT, "job '%s' was destroyed", d->saved->name);
    d->committed = d->saved->committed;
    d->prepared = d->saved->prepared;
    rc = d->plan(d, err);
    if (rc != 0)
        return rc;
    d->run.decided = true;
    if (d->snap_add) {
        d->snap_add->version->snapshots++;
        d->run.counted = true;
    }
    return delta_versions(d);
}

/* *ret: the places that the job's rows will hold. Also reserves room for them in saved->held, so
 * that delta_hold() cannot fail. */
static int delta_held(const struct zsd_delta *d, struct zb_needs *ret)
{
    struct zb_needs *held = &d->saved->held;
    int rc = zb_needs_reserve(held, held->n + d->run.come.n);

    if (rc == 0)
        rc = zb_needs_sum(ret, held, 1);
    if (rc == 0)
        rc = zb_needs_sum(ret, &d->run.come, 1);
    if (rc == 0)
        zb_needs_take(ret, &d->run.go);
    return rc;
}

static int delta_raise(struct zsd_delta *d, struct zb_err *err)
{
    struct zb_needs held = { 0 };
    int rc = delta_held(d, &held);

    d->saved->sharing = d->run.share_come;
    if (rc == 0 && (d->snap_add || d->grows))
        rc = zsd_saved_raise_part(d->saved, d->committed, &held, &d->run.walk, err);
    zb_needs_done(&held);
    return rc;
}

static int delta_begin(struct zsd_change *c, struct zb_err *err)
{
    struct zsd_delta *d = zb_container_of(c, struct zsd_delta, change);
    int rc = d->run.decided ? 0 : delta_decide(d, err);

    if (rc == 0)
        rc = delta_rows(d);
    if (rc == 0)
        rc = delta_raise(d, err);
    if (rc == 0)
        rc = delta_records(d);
    return rc < 0 ? zb_fail(err, rc, "a change of job '%s': %m", d->saved->name) : rc;
}

static int delta_fill(struct zsd_change *c, struct zb_err *err)
{
    struct zsd_delta *d = zb_container_of(c, struct zsd_delta, change);
    const struct zsd_saved *saved = d->saved;
    const struct zsd_delta_run *run = &d->run;
    int rc = 0;

    for (uint32_t i = 0; run->manifest && i < saved->nunits && rc == 0; i++)
        rc = zsd_record_put_unit(c->txn, saved->number, saved->units[i]);
    for (uint32_t i = 0; i < run->nfresh && rc == 0; i++)
        rc = zsd_record_put_version(c->txn, saved->number, run->fresh[i]);
    for (uint64_t i = 0; i < run->nputs && rc == 0; i++)
        rc = zsd_record_put_row(c->txn, run->puts[i]);
    for (uint32_t i = 0; i < run->ndrops && rc == 0; i++)
        rc = zsd_record_del_version(c->txn, saved->number, run->drops[i]);
    for (uint64_t i = 0; i < run->ndels && rc == 0; i++)
        rc = zsd_record_del_row(c->txn, run->dels[i]);
    return rc < 0 ? zb_fail(err, rc, "a change of job '%s': %m", saved->name) : 0;
}

/* ---- settling */

static void delta_snap_free(struct zsd_saved *saved, struct zsd_snap *s)
{
    zsd_snap_discharge(saved, s);
    zb_list_remove(&s->node);
    s->version->snapshots--;
    zsd_version_unref(s->version);
    free(s);
}

/* Updates saved->held: delta_held() has reserved the room. */
static void delta_hold(struct zsd_saved *saved, const struct zb_needs *come,
                       const struct zb_needs *go)
{
    int rc = zb_needs_sum(&saved->held, come, 1);

    assert(rc == 0);
    (void)rc;
    zb_needs_take(&saved->held, go);
}

/* The change is durable: gives the saved job its new state. */
static void delta_apply(struct zsd_delta *d)
{
    struct zsd_saved *saved = d->saved;
    struct zsd_version *committed = saved->committed, *prepared = saved->prepared;
    struct zsd_user *user = zsd_user_of(&saved->quota);

    if (d->destroy) {
        d->committed = d->prepared = NULL;
        saved->gone = !d->stays;
    }
    delta_hold(saved, &d->run.come, &d->run.go);
    saved->store->namesakes += (uint64_t)(int64_t)d->run.namesakes;
    saved->store->images += (uint64_t)(int64_t)d->run.images;
    if (user)
        user->shared_bytes += d->run.share_come - d->run.share_go;
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
        (void)zsd_version_ref(d->snap_add->version); /* version->snapshots counts it already */
        zb_list_push_back(&saved->snaps, &d->snap_add->node);
    }
    if (d->applied)
        d->applied(d);
}

/* The change has failed: restores everything except the counts of rows (delta_undo()). A version
 * that the next start may find is kept. */
static void delta_fail(struct zsd_delta *d)
{
    const struct zb_needs none = { 0 };

    if (d->change.doubt && d->run.nfresh > 0) {
        d->saved->doubt = zsd_version_ref(d->run.fresh[0]);
        delta_hold(d->saved, &d->run.come, &none);
    }
    if (d->run.counted)
        d->snap_add->version->snapshots--;
    if (d->run.flagged)
        delta_flag(d, false);
    zb_list_each(pos, &d->saved->snaps) zb_container_of(pos, struct zsd_snap, node)->going = false;
}

static void delta_run_done(struct zsd_delta_run *run)
{
    free(run->drops);
    free(run->stays);
    free(run->puts);
    free(run->dels);
    zb_needs_done(&run->come);
    zb_needs_done(&run->go);
    zsd_needs_walk_done(&run->walk);
    *run = (struct zsd_delta_run){ 0 };
}

static bool delta_settle(struct zsd_change *c, const struct zb_err *err)
{
    struct zsd_delta *d = zb_container_of(c, struct zsd_delta, change);

    if (!d->run.applied) {
        d->run.applied = true;
        zsd_needs_walk_done(&d->run.walk);
        d->saved->sharing = 0;
        if (err)
            delta_fail(d);
        else
            delta_apply(d);
    }
    if (err && !delta_undo(d))
        return false;
    return d->saved->gone || zsd_saved_reserve_part(d->saved, &d->run.walk);
}

static void delta_done(struct zsd_change *c, const struct zb_err *err)
{
    struct zsd_delta *d = zb_container_of(c, struct zsd_delta, change);
    struct zsd_saved *saved = d->saved;

    delta_run_done(&d->run);
    d->done(d, err);
    zsd_saved_unhold(saved);
}

void zsd_delta_start(struct zsd_delta *d)
{
    struct zsd_user *user = zsd_user_of(zsd_saved_quota(d->saved));

    d->change.flow = user ? &user->changes : NULL;
    d->change.begin = delta_begin;
    d->change.fill = delta_fill;
    d->change.settle = delta_settle;
    d->change.done = delta_done;
    d->run = (struct zsd_delta_run){ 0 };
    zsd_saved_hold(d->saved);
    zsd_change_start(d->saved->store->core, &d->change);
}
