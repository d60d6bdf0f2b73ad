/*
 * saved.c - saved jobs: lookup, creation, holders, promises. See saved.h. Deltas change them
 * (delta.c); recover.c restores them when the daemon starts.
 */
#include "daemon/store/saved.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/saved_priv.h"

/* ---- promises of saved jobs */

/* Adds the places of rows that no earlier version of this walk had. */
static int needs_version(struct zb_needs *p, const struct zsd_version *v, uint64_t stamp)
{
    int rc = 0;

    for (uint32_t i = 0; v && i < v->nrows && rc == 0; i++) {
        if (v->rows[i]->stamp != stamp)
            rc = zsd_row_needs(p, v->rows[i], 1);
        v->rows[i]->stamp = stamp;
    }
    return rc;
}

/* How many times the room of the newest version is needed in addition: once for the next version,
 * unless that must wait until the prepared version is resolved; and once if the commit is also a
 * snapshot, and so stays when it is replaced. */
static unsigned needs_next(const struct zsd_version *committed, const struct zsd_version *prepared)
{
    return (prepared && committed ? 0u : 1u) + (committed && committed->snapshots > 0 ? 1u : 0u);
}

unsigned zsd_saved_next(const struct zsd_saved *saved)
{
    return needs_next(saved->committed, saved->prepared);
}

int zsd_saved_recount(struct zsd_saved *saved)
{
    uint64_t stamp = ++saved->store->stamp;
    int rc = needs_version(&saved->held, saved->committed, stamp);

    if (rc == 0)
        rc = needs_version(&saved->held, saved->prepared, stamp);
    zb_list_each(pos, &saved->snaps)
    {
        const struct zsd_snap *s = zb_container_of(pos, struct zsd_snap, node);

        if (rc == 0)
            rc = needs_version(&saved->held, s->version, stamp);
    }
    return rc;
}

bool zsd_saved_has(const struct zsd_saved *saved, bool going, const struct zsd_row *r, uint32_t *at)
{
    const struct zsd_version *first[3] = { saved->prepared, saved->committed, saved->doubt };
    bool has = false;

    for (unsigned i = 0; i < ZB_COUNT(first) && !has; i++)
        has = first[i] && zsd_version_has(first[i], r, at);
    if (has || r->kept == 0)
        return has;
    zb_list_each(pos, (struct zb_list *)(uintptr_t)&saved->snaps)
    {
        const struct zsd_snap *s = zb_container_of(pos, struct zsd_snap, node);

        if ((going || !s->going) && zsd_version_has(s->version, r, at))
            return true;
    }
    return false;
}

/* Adds the needs of a job that is not in memory. Its next version is like v, the newest one, and as
 * many pages of each class as there are page buffers may be in flight. */
static int needs_like(const struct zsd_saved *saved, const struct zsd_version *v, unsigned times,
                      struct zb_needs *ret)
{
    int rc = zb_needs_sum(ret, &v->trained, times);

    for (uint32_t i = 0; i < v->needs.n && rc == 0; i++)
        rc = zb_needs_add(ret, v->needs.needs[i].bytes,
                          zb_min_u64(v->needs.needs[i].count, saved->store->core->disk->nbuffers));
    return rc;
}

void zsd_needs_walk_done(struct zsd_needs_walk *w)
{
    zb_needs_done(&w->sum);
    for (int p = 0; p < ZB_PLANES; p++) {
        zb_needs_done(&w->streamed[p]);
        zb_needs_done(&w->early[p]);
    }
    *w = (struct zsd_needs_walk){ 0 };
}

/* Counts the next shards of the job in memory. 0: all are counted; 1: call again; -ENOMEM. */
static int needs_job(const struct zsd_saved *saved, unsigned times, bool going,
                     struct zsd_needs_walk *w, uint64_t left)
{
    uint32_t from;
    int rc;

    if (w->begun && w->of != saved->planned)
        zsd_needs_walk_done(w);
    w->begun = true;
    w->of = saved->planned;
    from = w->shard;
    rc = saved->needs(saved->job, times, going, w, left);
    if (left < UINT64_MAX)
        zsd_turn_count(saved->store->core, w->shard - from);
    return rc;
}

/* *ret: the promise that the job needs if this is its commit and its rows hold `held`, with or
 * without the snapshots that are being destroyed. The next version is cut as the job in memory is,
 * however the earlier versions were cut. 0: complete; 1: call again; -ENOMEM. */
static int needs_saved(const struct zsd_saved *saved, const struct zsd_version *committed,
                       const struct zb_needs *held, bool going, struct zsd_needs_walk *w,
                       uint64_t left, struct zb_needs *ret)
{
    const struct zsd_version *v = saved->prepared ? saved->prepared : committed;
    unsigned times = needs_next(committed, saved->prepared);
    int rc;

    assert(!saved->needs || committed == saved->committed); /* the shards in memory have its rows */
    rc = v && saved->needs ? needs_job(saved, times, going, w, left) : 0;
    if (rc != 0)
        return rc;
    rc = zb_needs_sum(ret, held, 1);
    if (rc == 0 && v && !saved->image) /* an image has no next version */
        rc = saved->needs ? zb_needs_sum(ret, &w->sum, 1) : needs_like(saved, v, times, ret);
    return rc;
}

int zsd_saved_book(struct zsd_saved *saved, const struct zsd_version *v,
                   const struct zb_needs *want, struct zb_err *err)
{
    uint64_t planes[ZB_PLANES] = { [ZB_GRAD] = saved->grads_bytes };

    for (enum zsd_saved_plane p = 0; v && p < ZSD_SAVED_PLANES; p++)
        planes[zsd_plane_of(p)] += v->plane_bytes[p];
    return zsd_nvme_promise(saved->store->core, &saved->nvme_held, &saved->promise, want, planes,
                            err);
}

/* Whether its user may hold that. 0 or -EDQUOT. */
static int saved_admit(struct zsd_saved *saved, const struct zb_needs *want, struct zb_err *err)
{
    uint64_t has = zb_needs_bytes(&saved->promise) + saved->sharing, needs = zb_needs_bytes(want);

    return zsd_limit_bytes(&saved->quota, ZSD_HELD_NVME, needs - zb_min_u64(needs, has), err);
}

/* 0: the promise is set; 1: call again; -ENOSPC, -ENOMEM. */
static int saved_reserve(struct zsd_saved *saved, struct zsd_needs_walk *w, uint64_t left,
                         struct zb_err *err)
{
    const struct zsd_version *v = saved->prepared ? saved->prepared : saved->committed;
    struct zb_needs want = { 0 };
    int rc = 0;

    if (!v && saved->job)
        return 0; /* its placement has set the promise */
    if (v || saved->doubt)
        rc = needs_saved(saved, saved->committed, &saved->held, true, w, left, &want);
    if (rc == 1)
        return 1;
    if (rc < 0)
        (void)zb_fail(err, rc, "job '%s': %m", saved->name);
    else /* asks for no limit of its user: it was admitted when it was placed */
        rc = zsd_saved_book(saved, v, &want, err);
    zb_needs_done(&want);
    saved->lacks = rc < 0;
    return rc;
}

int zsd_saved_reserve(struct zsd_saved *saved, struct zb_err *err)
{
    struct zsd_needs_walk w = { 0 };
    int rc = saved_reserve(saved, &w, UINT64_MAX, err);

    zsd_needs_walk_done(&w);
    return rc;
}

bool zsd_saved_reserve_part(struct zsd_saved *saved, struct zsd_needs_walk *w)
{
    struct zb_err err = { 0 }; /* not reported: zsd_saved_room() tries again */

    return saved_reserve(saved, w, zsd_turn_left(saved->store->core), &err) != 1;
}

/* Raises p: of each class, it has at least as many places as `other`. */
static int need_most(struct zb_needs *p, const struct zb_needs *other)
{
    int rc = 0;

    for (uint32_t i = 0, j = 0; i < other->n && rc == 0; i++) {
        const struct zb_need *o = &other->needs[i];

        while (j < p->n && p->needs[j].bytes < o->bytes)
            j++;
        if (j == p->n || p->needs[j].bytes > o->bytes)
            rc = zb_needs_add(p, o->bytes, o->count);
        else
            p->needs[j].count = zb_max_u64(p->needs[j].count, o->count);
    }
    return rc;
}

/* Returns the same as saved_reserve(). */
static int saved_raise(struct zsd_saved *saved, const struct zsd_version *committed,
                       const struct zb_needs *held, bool going, struct zsd_needs_walk *w,
                       uint64_t left, struct zb_err *err)
{
    struct zb_needs want = { 0 };
    struct zb_err why = { 0 };
    int rc = needs_saved(saved, committed, held, going, w, left, &want);

    if (rc == 1)
        return 1;
    if (rc == 0)
        rc = need_most(&want, &saved->promise);
    if (rc < 0)
        (void)zb_fail(err, rc, "job '%s': %m", saved->name);
    else if (saved_admit(saved, &want, &why) < 0 ||
             zsd_saved_book(saved, saved->prepared ? saved->prepared : committed, &want, &why) < 0)
        rc = zb_fail(err, why.code, "job '%s' needs room for one more version: %s", saved->name,
                     why.text);
    zb_needs_done(&want);
    return rc;
}

int zsd_saved_raise(struct zsd_saved *saved, struct zb_err *err)
{
    struct zsd_needs_walk w = { 0 };
    int rc = saved_raise(saved, saved->committed, &saved->held, true, &w, UINT64_MAX, err);

    zsd_needs_walk_done(&w);
    return rc;
}

int zsd_saved_raise_part(struct zsd_saved *saved, const struct zsd_version *committed,
                         const struct zb_needs *held, struct zsd_needs_walk *w, struct zb_err *err)
{
    return saved_raise(saved, committed, held, false, w, zsd_turn_left(saved->store->core), err);
}

/* ---- saved jobs */

static struct zsd_saved *saved_find(struct zsd_core *core, uid_t uid, const char *name, bool image)
{
    if (!core->store)
        return NULL;
    zb_list_each(pos, &core->store->saved)
    {
        struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

        if (zsd_saved_kept(s) && !s->gone && s->image == image && s->uid == uid &&
            strcmp(s->name, name) == 0)
            return s;
    }
    return NULL;
}

struct zsd_saved *zsd_saved_by_name(struct zsd_core *core, uid_t uid, const char *name)
{
    return saved_find(core, uid, name, false);
}

struct zsd_saved *zsd_image_by_name(struct zsd_core *core, uid_t uid, const char *name)
{
    return saved_find(core, uid, name, true);
}

struct zsd_snap *zsd_snap_by_name(const struct zsd_saved *saved, const char *name)
{
    zb_list_each(pos, &saved->snaps)
    {
        struct zsd_snap *s = zb_container_of(pos, struct zsd_snap, node);

        if (strcmp(s->name, name) == 0)
            return s;
    }
    return NULL;
}

struct zsd_saved *zsd_saved_alloc(struct zsd_store *store, uint32_t nunits)
{
    struct zsd_saved *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->store = store;
    s->units = calloc(zb_max_u64(nunits, 1), sizeof(struct zsd_unit *));
    zb_list_init(&s->snaps);
    zb_list_init(&s->snap_waiters);
    zb_list_init(&s->node);
    zb_list_init(&s->image_timed.node);
    if (!s->units) {
        free(s);
        return NULL;
    }
    return s;
}

struct zsd_quota *zsd_saved_quota(struct zsd_saved *saved)
{
    if (saved->quota.level != ZSD_LEVEL_JOB) /* once; without memory or limits: no parent */
        (void)zsd_quota_join(saved->store->core->daemon, &saved->quota, ZSD_LEVEL_JOB, saved->uid);
    return &saved->quota;
}

void zsd_saved_own(struct zsd_saved *saved)
{
    saved->nvme_held.user = zsd_user_held(zsd_saved_quota(saved), ZSD_HELD_NVME);
}

static uint64_t version_note_bytes(const struct zsd_version *v)
{
    uint64_t sum = v->job_note.total;

    for (uint32_t i = 0; i < v->world; i++)
        sum += v->notes[i].total;
    return sum;
}

int zsd_snap_charge(struct zsd_saved *saved, struct zsd_snap *snap, struct zb_err *err)
{
    struct zsd_quota *q = zsd_saved_quota(saved);
    struct zsd_version *v = snap->version;
    uint64_t notes = sizeof(*snap) + (v->charged ? 0 : version_note_bytes(v));

    if (zsd_limit_take(q, ZSD_LIMIT_SNAPSHOTS, 1, err) < 0)
        return err->code;
    if (zsd_limit_take(q, ZSD_LIMIT_NOTE_BYTES, notes, err) < 0) {
        zsd_limit_give(q, ZSD_LIMIT_SNAPSHOTS, 1);
        return err->code;
    }
    if (!v->charged &&
        zsd_limit_take(q, ZSD_LIMIT_DEFINITION_BYTES, zsd_version_table_bytes(v), err) < 0) {
        zsd_limit_give(q, ZSD_LIMIT_SNAPSHOTS, 1);
        zsd_limit_give(q, ZSD_LIMIT_NOTE_BYTES, notes);
        return err->code;
    }
    v->charged = true;
    return 0;
}

int zsd_clone_charge(struct zsd_saved *saved, struct zb_err *err)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < saved->nunits; i++)
        bytes += zsd_unit_bytes(saved->units[i]);
    return zsd_limit_take(zsd_saved_quota(saved), ZSD_LIMIT_DEFINITION_BYTES, bytes, err);
}

int zsd_clone_charge_notes(struct zsd_saved *saved, const struct zsd_version *from, uint64_t *ret,
                           struct zb_err *err)
{
    uint64_t bytes = version_note_bytes(from);
    int rc = zsd_limit_take(zsd_saved_quota(saved), ZSD_LIMIT_NOTE_BYTES, bytes, err);

    *ret = rc == 0 ? bytes : 0;
    return rc;
}

void zsd_snap_discharge(struct zsd_saved *saved, struct zsd_snap *snap)
{
    struct zsd_version *v = snap->version;
    uint32_t counted = zb_list_empty(&snap->node) ? 0 : 1;

    zsd_limit_give(&saved->quota, ZSD_LIMIT_SNAPSHOTS, 1);
    zsd_limit_give(&saved->quota, ZSD_LIMIT_NOTE_BYTES, sizeof(*snap));
    if (v->snapshots > counted)
        return;
    zsd_limit_give(&saved->quota, ZSD_LIMIT_NOTE_BYTES, version_note_bytes(v));
    zsd_limit_give(&saved->quota, ZSD_LIMIT_DEFINITION_BYTES, zsd_version_table_bytes(v));
    v->charged = false;
}

void zsd_snaps_recovered(struct zsd_saved *saved)
{
    struct zsd_quota *q = zsd_saved_quota(saved);

    zb_list_each(pos, &saved->snaps)
    {
        struct zsd_snap *snap = zb_container_of(pos, struct zsd_snap, node);
        struct zsd_version *v = snap->version;

        zsd_limit_add(q, ZSD_LIMIT_SNAPSHOTS, 1);
        zsd_limit_add(q, ZSD_LIMIT_NOTE_BYTES, sizeof(*snap));
        if (v->charged)
            continue;
        zsd_limit_add(q, ZSD_LIMIT_NOTE_BYTES, version_note_bytes(v));
        zsd_limit_add(q, ZSD_LIMIT_DEFINITION_BYTES, zsd_version_table_bytes(v));
        v->charged = true;
    }
}

void zsd_saved_free(struct zsd_saved *s)
{
    struct zsd_core *core = s->store->core;

    assert(!s->job && s->pending == 0 && zb_list_empty(&s->snap_waiters));
    zb_list_remove(&s->node);
    zsd_timed_disarm(&s->image_timed);
    zb_list_each(pos, &s->snaps)
    {
        struct zsd_snap *snap = zb_container_of(pos, struct zsd_snap, node);

        zb_list_remove(&snap->node);
        zsd_version_unref(snap->version);
        free(snap);
    }
    zsd_version_unref(s->committed);
    zsd_version_unref(s->prepared);
    zsd_version_unref(s->doubt);
    zb_needs_done(&s->held);
    zsd_nvme_unpromise(core, &s->nvme_held, &s->promise);
    for (uint32_t i = 0; i < s->nunits; i++)
        zsd_unit_free(s->units[i]);
    zsd_quota_leave(&s->quota);
    free(s->units);
    free(s);
}

static int saved_units(struct zsd_saved *s, struct zsd_unit *const *units, uint32_t nunits)
{
    for (uint32_t i = 0; i < nunits; i++) {
        s->units[i] = zsd_unit_copy(units[i]);
        if (!s->units[i])
            return -ENOMEM;
        s->nunits++;
    }
    return 0;
}

struct zsd_saved *zsd_saved_new(struct zsd_store *store, struct zsd_unit *const *units,
                                uint32_t nunits)
{
    struct zsd_saved *s = zsd_saved_alloc(store, nunits);

    if (!s)
        return NULL;
    if (saved_units(s, units, nunits) < 0) {
        zsd_saved_free(s);
        return NULL;
    }
    zsd_saved_hold(s); /* the incarnation */
    zb_list_push_back(&store->saved, &s->node);
    return s;
}

struct zsd_saved *zsd_saved_like(const struct zsd_saved *saved, uint32_t number, const char *name,
                                 uid_t uid)
{
    struct zsd_saved *s = zsd_saved_alloc(saved->store, saved->nunits);

    if (!s)
        return NULL;
    if (saved_units(s, saved->units, saved->nunits) < 0) {
        zsd_saved_free(s);
        return NULL;
    }
    s->number = number;
    (void)snprintf(s->name, sizeof(s->name), "%s", name);
    s->uid = uid;
    zsd_saved_own(s);
    s->groups = saved->groups;
    s->optimizer = saved->optimizer;
    s->moments = saved->moments;
    s->muon_engine = saved->muon_engine;
    s->offload_param = saved->offload_param;
    s->offload_optimizer = saved->offload_optimizer;
    s->host_bytes_max = saved->host_bytes_max;
    zb_list_push_back(&saved->store->saved, &s->node);
    return s;
}

void zsd_saved_hold(struct zsd_saved *saved)
{
    saved->pending++;
}

void zsd_saved_unhold(struct zsd_saved *saved)
{
    struct zb_err why = { 0 };

    assert(saved->pending > 0);
    if (--saved->pending > 0 || (!saved->gone && zsd_saved_kept(saved)))
        return;
    (void)zb_fail(&why, -ECANCELED, "job '%s' has ended", saved->name);
    if (saved->snap_cancel)
        saved->snap_cancel(saved, &why);
    if (!saved->doubt)
        zsd_saved_free(saved);
}
