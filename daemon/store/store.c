/*
 * store.c - saved jobs, versions and rows in memory; how they come back when the daemon starts.
 * store.h has the model.
 *
 * RECOVERY reads the catalog once, by kind: the rows, then the jobs with their units, versions,
 * notes and snapshots. Every extent that a row names is taken in the map; what is left is free: so
 * what a dead daemon wrote and never committed needs no cleaning. Then the boot number is committed
 * (T3), which also proves that the catalog can be written. From here on what is free may be
 * written: the data files are measured there (paths.c). Last, each job is promised what it needs.
 */
#include "daemon/store/store.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>

#include "base/log.h"
#include "base/size.h"
#include "daemon/disk/paths.h"

#define BOOT_SHIFT 40 /* T3: 2^40 pages in a run of the daemon, 2^24 starts */

/* ---- notes, units, rows */

int zsd_note_copy(struct zsd_note *to, const struct zsd_note *from)
{
    *to = (struct zsd_note){ 0 };
    if (!from->data)
        return 0;
    to->data = malloc(zb_max_u64(from->total, 1));
    if (!to->data)
        return -ENOMEM;
    memcpy(to->data, from->data, from->total);
    to->total = to->got = from->total;
    to->iteration = from->iteration;
    return 0;
}

struct zsd_unit *zsd_unit_copy(const struct zsd_unit *unit)
{
    struct zsd_unit *u = calloc(1, sizeof(*u));

    if (!u)
        return NULL;
    memcpy(u->name, unit->name, sizeof(u->name));
    u->index = unit->index;
    u->elems = unit->elems;
    u->layout = unit->layout;
    u->ntensors = u->tensors_room = unit->ntensors;
    u->nsegments = unit->nsegments;
    u->tensors = calloc(zb_max_u64(u->ntensors, 1), sizeof(*u->tensors));
    u->segments = calloc(zb_max_u64(u->nsegments, 1), sizeof(*u->segments));
    if (!u->tensors || !u->segments) {
        zsd_unit_free(u);
        return NULL;
    }
    if (u->ntensors > 0)
        memcpy(u->tensors, unit->tensors, u->ntensors * sizeof(*u->tensors));
    if (u->nsegments > 0)
        memcpy(u->segments, unit->segments, u->nsegments * sizeof(*u->segments));
    return u;
}

struct zsd_row *zsd_row_new(uint32_t unit, const struct zb_layout *layout, uint64_t first,
                            uint64_t count, uint32_t page_elems)
{
    struct zsd_row *r = calloc(1, sizeof(*r));
    bool whole = r != NULL;

    if (!r)
        return NULL;
    r->refs = 1;
    zb_list_init(&r->node);
    r->unit = unit;
    r->first = first;
    r->count = count;
    r->page_elems = page_elems;
    r->npages = (uint32_t)zb_div_up(count, page_elems);
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        struct zsd_row_plane *plane = &r->planes[p];

        plane->block_bytes = layout->block_bytes[zsd_plane_of(p)];
        plane->crc_bytes = layout->crc_bytes[zsd_plane_of(p)];
        if (plane->block_bytes == 0)
            continue;
        plane->crcs_per_page =
            zn_crc_count((uint32_t)zb_page_bytes(plane->block_bytes, page_elems), plane->crc_bytes);
        plane->extents = malloc(r->npages * sizeof(*plane->extents));
        plane->crcs = calloc((size_t)r->npages * plane->crcs_per_page, sizeof(*plane->crcs));
        whole = whole && plane->extents && plane->crcs;
        for (uint32_t i = 0; plane->extents && i < r->npages; i++)
            plane->extents[i] = (struct zsd_extent){ .at = ZB_NO_PLACE };
    }
    if (!whole)
        zsd_row_unref(NULL, r);
    return whole ? r : NULL;
}

struct zsd_row *zsd_row_ref(struct zsd_row *r)
{
    r->refs++;
    return r;
}

void zsd_row_unref(struct zsd_core *core, struct zsd_row *r)
{
    if (--r->refs > 0)
        return;
    zb_list_remove(&r->node);
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        struct zsd_row_plane *plane = &r->planes[p];

        for (uint32_t i = 0; plane->extents && i < r->npages; i++)
            if (plane->extents[i].at != ZB_NO_PLACE)
                zsd_extent_unref(core, plane->extents[i].at, zsd_row_page_bytes(r, p, i));
    }
    if (r->looks == 0)
        zsd_row_free(r);
}

static uint64_t row_plane_bytes(const struct zsd_row *r, enum zsd_saved_plane plane)
{
    return zb_plane_bytes(r->planes[plane].block_bytes, r->page_elems, r->count);
}

uint64_t zsd_row_bytes(const struct zsd_row *r)
{
    return row_plane_bytes(r, ZSD_SAVED_PARAM) + row_plane_bytes(r, ZSD_SAVED_STATE);
}

/* ---- versions */

struct zsd_version *zsd_version_new(struct zsd_saved *saved, uint32_t world, uint32_t nrows)
{
    struct zsd_version *v = calloc(1, sizeof(*v));

    if (!v)
        return NULL;
    v->core = saved->store->core;
    v->saved = saved;
    v->refs = 1;
    v->world = world;
    v->nrows = nrows;
    v->id = saved->store->next_id++;
    v->created_unix = (uint64_t)time(NULL);
    v->rows = calloc(zb_max_u64(nrows, 1), sizeof(struct zsd_row *));
    v->notes = calloc(zb_max_u64(world, 1), sizeof(*v->notes));
    if (!v->rows || !v->notes) {
        zsd_version_unref(v);
        return NULL;
    }
    return v;
}

struct zsd_version *zsd_version_ref(struct zsd_version *v)
{
    v->refs++;
    return v;
}

void zsd_version_unref(struct zsd_version *v)
{
    if (!v)
        return;
    if (--v->refs > 0) {
        if (v->refs == v->readers)
            zsd_readers_orphaned(v);
        return;
    }
    for (uint32_t i = 0; v->rows && i < v->nrows; i++)
        if (v->rows[i])
            zsd_row_unref(v->core, v->rows[i]);
    for (uint32_t i = 0; v->notes && i < v->world; i++)
        zsd_note_done(&v->notes[i]);
    zsd_note_done(&v->job_note);
    free(v->rows);
    free(v->notes);
    free(v);
}

uint32_t zsd_version_find(const struct zsd_version *v, uint32_t unit, uint64_t first)
{
    uint32_t low = 0, high = v->nrows; /* the first row behind (unit, first) */

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        const struct zsd_row *r = v->rows[mid];

        if (r->unit < unit || (r->unit == unit && r->first <= first))
            low = mid + 1;
        else
            high = mid;
    }
    if (low == 0)
        return v->nrows;
    low--;
    return v->rows[low]->unit == unit && first - v->rows[low]->first < v->rows[low]->count
               ? low
               : v->nrows;
}

uint64_t zsd_version_bytes(const struct zsd_version *v)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < v->nrows; i++)
        sum += zsd_row_bytes(v->rows[i]);
    return sum;
}

/* ---- promises of saved jobs */

int zsd_row_needs(struct zb_needs *p, const struct zsd_row *r, uint64_t times)
{
    int rc = 0;

    for (enum zsd_saved_plane plane = 0; plane < ZSD_SAVED_PLANES; plane++) {
        uint32_t bytes = r->planes[plane].block_bytes;
        uint64_t tail = zsd_row_page_elems(r, r->npages - 1);
        uint32_t full = r->npages - (tail < r->page_elems);

        if (bytes == 0 || times == 0)
            continue;
        if (rc == 0 && full > 0)
            rc = zb_needs_add(p, zb_page_bytes(bytes, r->page_elems), full * times);
        if (rc == 0 && full < r->npages)
            rc = zb_needs_add(p, zb_page_bytes(bytes, tail), times);
    }
    return rc;
}

/* Rows of a version that no earlier one of this walk had. */
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

/* How often the newest version's room is needed besides: for what comes next, unless that waits
 * until what is prepared is resolved; and when it stays behind as a snapshot. */
static unsigned needs_next(const struct zsd_version *committed, const struct zsd_version *prepared)
{
    return (prepared && committed ? 0u : 1u) + (committed && committed->snapshots > 0 ? 1u : 0u);
}

unsigned zsd_saved_next(const struct zsd_saved *saved)
{
    return needs_next(saved->committed, saved->prepared);
}

/* What the versions hold, each row once; its stamp says so. */
static int needs_held(const struct zsd_saved *saved, const struct zsd_version *committed,
                      bool going, struct zb_needs *ret)
{
    uint64_t stamp = ++saved->store->stamp;
    int rc = needs_version(ret, committed, stamp);

    if (rc == 0)
        rc = needs_version(ret, saved->prepared, stamp);
    if (rc == 0)
        rc = needs_version(ret, saved->doubt, stamp);
    zb_list_each(pos, &saved->snaps)
    {
        const struct zsd_snap *s = zb_container_of(pos, struct zsd_snap, node);

        if (rc == 0 && (going || !s->going))
            rc = needs_version(ret, s->version, stamp);
    }
    return rc;
}

int zsd_saved_holds(const struct zsd_saved *saved, struct zb_needs *ret)
{
    return needs_held(saved, saved->committed, true, ret);
}

/* Not in memory: what comes next is as the newest, and any page of it may be in flight. */
static int needs_like(const struct zsd_saved *saved, const struct zsd_version *v, unsigned times,
                      struct zb_needs *ret)
{
    struct zb_needs one = { 0 };
    int rc = 0;

    for (uint32_t i = 0; i < v->nrows && rc == 0; i++) {
        if (!saved->units[v->rows[i]->unit]->layout.frozen)
            rc = zsd_row_needs(ret, v->rows[i], times);
        if (rc == 0)
            rc = zsd_row_needs(&one, v->rows[i], 1);
    }
    for (uint32_t i = 0; i < one.n && rc == 0; i++)
        rc = zb_needs_add(ret, one.needs[i].bytes,
                          zb_min_u64(one.needs[i].count, saved->store->core->nbuffers));
    zb_needs_done(&one);
    return rc;
}

/* What the job must be promised, with this commit, and with or without the snapshots that are
 * going. What comes next is cut as the job in memory is, whatever its versions were cut into. */
static int needs_saved(const struct zsd_saved *saved, const struct zsd_version *committed,
                       bool going, struct zb_needs *ret)
{
    const struct zsd_version *v = saved->prepared ? saved->prepared : committed;
    unsigned times = needs_next(committed, saved->prepared);
    int rc = needs_held(saved, committed, going, ret);

    if (rc < 0 || !v)
        return rc;
    return saved->job && zsd_place_holds(saved->job)
               ? zsd_place_needs(saved->job, times, saved->store->stamp, ret)
               : needs_like(saved, v, times, ret);
}

int zsd_nvme_promise(struct zsd_core *core, struct zsd_account *held, struct zb_needs *now,
                     const struct zb_needs *want, const uint64_t planes[ZB_PLANES],
                     struct zb_err *err)
{
    uint64_t all = planes[ZB_PARAM] + planes[ZB_GRAD] + planes[ZB_STATE];
    uint64_t has = zb_needs_bytes(now), needs = zb_needs_bytes(want);
    int rc;

    assert(all <= needs);
    if (needs > has && needs - has > zsd_account_free(&core->nvme))
        return zb_fail(err, -ENOSPC, "%s of NVMe are needed, and %s are free",
                       zb_size_text(needs - has).s, zb_size_text(zsd_account_free(&core->nvme)).s);
    rc = zsd_promise_set(core, now, want, err);
    if (rc < 0)
        return rc;
    for (int use = 0; use < ZSD_USES; use++) {
        uint64_t bytes = use == ZSD_USE_PARAM   ? planes[ZB_PARAM]
                         : use == ZSD_USE_GRAD  ? planes[ZB_GRAD]
                         : use == ZSD_USE_STATE ? planes[ZB_STATE]
                         : use == ZSD_USE_RING  ? needs - all
                                                : 0;

        core->nvme.used[use] -= held->used[use];
        core->nvme.used[use] += bytes;
        held->used[use] = bytes;
    }
    return 0;
}

void zsd_nvme_unpromise(struct zsd_core *core, struct zsd_account *held, struct zb_needs *now)
{
    const struct zb_needs none = { 0 };
    const uint64_t planes[ZB_PLANES] = { 0 };

    (void)zsd_nvme_promise(core, held, now, &none, planes, NULL); /* it shrinks: never fails */
    zb_needs_done(now);
}

/* Books `want`, with the bytes of its newest version as such, and the gradients' of the job in
 * memory. */
static int saved_promise(struct zsd_saved *saved, const struct zsd_version *v,
                         const struct zb_needs *want, struct zb_err *err)
{
    uint64_t planes[ZB_PLANES] = { [ZB_GRAD] = saved->job ? saved->job->grads_nvme_bytes : 0 };

    for (uint32_t i = 0; v && i < v->nrows; i++)
        for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++)
            planes[zsd_plane_of(p)] += row_plane_bytes(v->rows[i], p);
    return zsd_nvme_promise(saved->store->core, &saved->nvme_held, &saved->promise, want, planes,
                            err);
}

int zsd_saved_reserve(struct zsd_saved *saved, struct zb_err *err)
{
    const struct zsd_version *v = saved->prepared ? saved->prepared : saved->committed;
    struct zb_needs want = { 0 };
    int rc = 0;

    if (!v && saved->job)
        return 0; /* as it was placed */
    if (v || saved->doubt)
        rc = needs_saved(saved, saved->committed, true, &want);
    if (rc < 0)
        (void)zb_fail(err, rc, "job '%s': %m", saved->name);
    else
        rc = saved_promise(saved, v, &want, err);
    zb_needs_done(&want);
    saved->lacks = rc < 0;
    return rc;
}

/* Of each size, at least as many as `other` has. */
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

int zsd_saved_raise(struct zsd_saved *saved, const struct zsd_version *committed,
                    struct zb_err *err)
{
    struct zb_needs want = { 0 };
    struct zb_err why = { 0 };
    int rc = needs_saved(saved, committed, false, &want);

    if (rc == 0)
        rc = need_most(&want, &saved->promise);
    if (rc < 0)
        (void)zb_fail(err, rc, "job '%s': %m", saved->name);
    else if (saved_promise(saved, saved->prepared ? saved->prepared : committed, &want, &why) < 0)
        rc = zb_fail(err, why.code, "job '%s' needs room for one more version: %s", saved->name,
                     why.text);
    zb_needs_done(&want);
    return rc;
}

/* ---- saved jobs */

struct zsd_saved *zsd_saved_by_name(struct zsd_core *core, const char *name)
{
    if (!core->store)
        return NULL;
    zb_list_each(pos, &core->store->saved)
    {
        struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

        if (zsd_saved_kept(s) && !s->gone && strcmp(s->name, name) == 0)
            return s;
    }
    return NULL;
}

bool zsd_saved_coming(const struct zsd_core *core, const char *name)
{
    if (!core->store)
        return false;
    zb_list_each(pos, &core->store->saved)
    {
        const struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

        if (!s->gone && strcmp(s->name, name) == 0 && !zsd_saved_kept(s) &&
            (s->coming || (s->job && s->job->state == ZSD_ENDED && s->job->commit)))
            return true;
    }
    return false;
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

bool zsd_saved_may(const struct zsd_conn *conn, const struct zsd_saved *saved)
{
    return zsd_may(conn, saved->uid);
}

static struct zsd_saved *saved_alloc(struct zsd_store *store, uint32_t nunits)
{
    struct zsd_saved *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    s->store = store;
    s->units = calloc(zb_max_u64(nunits, 1), sizeof(struct zsd_unit *));
    zb_list_init(&s->snaps);
    zb_list_init(&s->snap_waiters);
    zb_list_init(&s->node);
    if (!s->units) {
        free(s);
        return NULL;
    }
    return s;
}

/* What it held goes back; it is in no list then. */
static void saved_free(struct zsd_saved *s)
{
    struct zsd_core *core = s->store->core;

    assert(!s->job && s->pending == 0 && zb_list_empty(&s->snap_waiters));
    zb_list_remove(&s->node);
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
    zsd_nvme_unpromise(core, &s->nvme_held, &s->promise);
    for (uint32_t i = 0; i < s->nunits; i++)
        zsd_unit_free(s->units[i]);
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

int zsd_saved_new(struct zsd_job *job, struct zb_err *err)
{
    struct zsd_saved *s = saved_alloc(job->core->store, job->nunits);

    if (!s)
        return zb_fail(err, -ENOMEM, "job '%s': %m", job->name);
    if (saved_units(s, job->units, job->nunits) < 0) {
        saved_free(s);
        return zb_fail(err, -ENOMEM, "the manifest of job '%s': %m", job->name);
    }
    s->number = job->number;
    memcpy(s->name, job->name, sizeof(s->name));
    s->uid = job->uid;
    s->groups = job->groups;
    s->optimizer = job->optimizer;
    s->moments = job->moments;
    s->offload_param = job->offload_param;
    s->offload_optimizer = job->offload_optimizer;
    s->host_bytes_max = job->host_bytes_max;
    s->epoch = job->epoch;
    s->job = job;
    job->saved = s;
    job->promise = &s->promise;
    zsd_saved_hold(s); /* the incarnation */
    zb_list_push_back(&job->core->store->saved, &s->node);
    return 0;
}

struct zsd_saved *zsd_saved_like(const struct zsd_saved *saved, const char *name, uid_t uid)
{
    struct zsd_saved *s = saved_alloc(saved->store, saved->nunits);

    if (!s)
        return NULL;
    if (saved_units(s, saved->units, saved->nunits) < 0) {
        saved_free(s);
        return NULL;
    }
    s->number = saved->store->core->next_job++;
    (void)snprintf(s->name, sizeof(s->name), "%s", name);
    s->uid = uid;
    s->groups = saved->groups;
    s->optimizer = saved->optimizer;
    s->moments = saved->moments;
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
    zsd_snap_cancel(saved, &why);
    if (!saved->doubt)
        saved_free(saved);
}

/* ---- recovery */

struct recovered_job {
    struct zsd_saved *saved;
    uint64_t committed, prepared; /* ids of versions */
};

/* While the catalog is read. Rows come in the order of their ids. */
struct recovery {
    struct zsd_store *store;
    struct zsd_row **rows; /* held once, until the end */
    struct recovered_job *jobs;
    struct zsd_version **versions; /* likewise */
    size_t nrows, rows_room, njobs, jobs_room, nversions, versions_room;
    uint64_t pages, bytes;
};

/* Room for one more in an array of things of `size` bytes. */
static int recovery_room(void **array, size_t n, size_t *room, size_t size, struct zb_err *err)
{
    size_t more = zb_max_u64(64, 2 * *room);
    void *grown;

    if (n < *room)
        return 0;
    grown = realloc(*array, more * size);
    if (!grown)
        return zb_fail(err, -ENOMEM, "reading the catalog: %m");
    *array = grown;
    *room = more;
    return 0;
}

static struct zsd_row *recovery_row(const struct recovery *r, uint64_t id)
{
    size_t low = 0, high = r->nrows;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (r->rows[mid]->id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low < r->nrows && r->rows[low]->id == id ? r->rows[low] : NULL;
}

static struct recovered_job *recovery_job(const struct recovery *r, uint64_t number)
{
    for (size_t i = 0; i < r->njobs; i++)
        if (r->jobs[i].saved->number == number)
            return &r->jobs[i];
    return NULL;
}

static struct zsd_version *recovery_version(const struct recovery *r, uint64_t id)
{
    for (size_t i = 0; i < r->nversions; i++)
        if (r->versions[i]->id == id)
            return r->versions[i];
    return NULL;
}

static int recover_store(void *arg, const struct zn_key *key, const void *bytes, size_t len_bytes,
                         struct zb_err *err)
{
    struct recovery *r = arg;
    struct zsd_store_record record;
    int rc = zsd_record_get_store(bytes, len_bytes, &record, err);

    (void)key;
    if (rc < 0)
        return rc;
    r->store->boot = record.boot;
    r->store->next_id = record.next_id;
    r->store->core->next_job = (uint32_t)record.next_job;
    return 0;
}

/* Takes the places of a row; of one that cannot have them, none. */
static int recover_extents(struct recovery *r, struct zsd_row *row, struct zb_err *err)
{
    struct zsd_core *core = r->store->core;
    int rc = 0;

    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        for (uint32_t i = 0; row->planes[p].extents && i < row->npages; i++) {
            struct zsd_extent *e = &row->planes[p].extents[i];
            uint64_t bytes = zsd_row_page_bytes(row, p, i);

            if (rc == 0)
                rc = zsd_extent_adopt(core, e->at, bytes, err);
            if (rc < 0)
                e->at = ZB_NO_PLACE; /* not taken: not given back */
            r->pages++;
            r->bytes += bytes;
        }
    }
    return rc;
}

static int recover_row(void *arg, const struct zn_key *key, const void *bytes, size_t len_bytes,
                       struct zb_err *err)
{
    struct recovery *r = arg;
    struct zsd_row *row = NULL;
    int rc = recovery_room((void **)&r->rows, r->nrows, &r->rows_room, sizeof(*r->rows), err);

    if (rc == 0)
        rc = zsd_record_get_row(key, bytes, len_bytes, &row, err);
    if (rc < 0)
        return rc;
    r->rows[r->nrows++] = row;
    zb_list_push_back(&r->store->rows, &row->node);
    return recover_extents(r, row, err);
}

static int recover_job(void *arg, const struct zn_key *key, const void *bytes, size_t len_bytes,
                       struct zb_err *err)
{
    struct recovery *r = arg;
    struct zsd_saved *s;
    struct recovered_job *j;
    int rc = recovery_room((void **)&r->jobs, r->njobs, &r->jobs_room, sizeof(*r->jobs), err);

    if (rc < 0)
        return rc;
    s = saved_alloc(r->store, 0);
    if (!s)
        return zb_fail(err, -ENOMEM, "jobs of the catalog: %m");
    zb_list_push_back(&r->store->saved, &s->node);
    j = &r->jobs[r->njobs++];
    j->saved = s;
    return zsd_record_get_job(key, bytes, len_bytes, s, &j->committed, &j->prepared, err);
}

static int recover_unit(void *arg, const struct zn_key *key, const void *bytes, size_t len_bytes,
                        struct zb_err *err)
{
    struct recovery *r = arg;
    struct recovered_job *j = recovery_job(r, key->a);
    struct zsd_unit *unit = NULL;
    struct zsd_saved *s;
    void *grown;
    int rc;

    if (!j || key->b != j->saved->nunits)
        return zb_fail(err, -EBADMSG, "catalog: unit %llu of job number %llu is in no order",
                       (unsigned long long)key->b, (unsigned long long)key->a);
    s = j->saved;
    rc = zsd_record_get_unit(key, bytes, len_bytes, &unit, err);
    if (rc < 0)
        return rc;
    if (unit->layout.optimizer != s->optimizer || unit->layout.moments != s->moments) {
        rc = zb_fail(err, -EBADMSG, "catalog: unit '%s' of job '%s' is not of its optimizer",
                     unit->name, s->name);
        zsd_unit_free(unit);
        return rc;
    }
    grown = realloc(s->units, (s->nunits + 1) * sizeof(struct zsd_unit *));
    if (!grown) {
        zsd_unit_free(unit);
        return zb_fail(err, -ENOMEM, "units of job '%s': %m", s->name);
    }
    s->units = grown;
    unit->index = s->nunits;
    s->units[s->nunits++] = unit;
    return 0;
}

/* All of its rows are there, in order, and fit the manifest. */
static int recover_version_rows(const struct recovery *r, struct zsd_version *v,
                                const uint64_t *ids, struct zb_err *err)
{
    const struct zsd_saved *s = v->saved;

    for (uint32_t i = 0; i < v->nrows; i++) {
        struct zsd_row *row = recovery_row(r, ids[i]);
        const struct zsd_row *last = i > 0 ? v->rows[i - 1] : NULL;

        if (!row || row->unit >= s->nunits ||
            !zb_range_inside(row->first, row->count, zb_padded_elems(s->units[row->unit]->elems)) ||
            (last && (row->unit < last->unit ||
                      (row->unit == last->unit && row->first < last->first + last->count))))
            return zb_fail(err, -EBADMSG,
                           "catalog: version %llu of job '%s': row %llu is missing, or not in its "
                           "place",
                           (unsigned long long)v->id, s->name, (unsigned long long)ids[i]);
        row->kept++;
        v->rows[i] = zsd_row_ref(row);
    }
    return 0;
}

static int recover_version(void *arg, const struct zn_key *key, const void *bytes, size_t len_bytes,
                           struct zb_err *err)
{
    struct recovery *r = arg;
    struct recovered_job *j = recovery_job(r, key->a);
    struct zsd_version *v = NULL;
    uint64_t *ids = NULL;
    int rc;

    if (!j)
        return zb_fail(err, -EBADMSG, "catalog: version %llu is of no job",
                       (unsigned long long)key->b);
    rc = recovery_room((void **)&r->versions, r->nversions, &r->versions_room, sizeof(*r->versions),
                       err);
    if (rc == 0)
        rc = zsd_record_get_version(key, bytes, len_bytes, &v, &ids, err);
    if (rc < 0)
        return rc;
    v->core = r->store->core;
    v->saved = j->saved;
    v->refs = 1;
    v->kept = true;
    r->versions[r->nversions++] = v;
    rc = recover_version_rows(r, v, ids, err);
    free(ids);
    return rc;
}

static int recover_note(void *arg, const struct zn_key *key, const void *bytes, size_t len_bytes,
                        struct zb_err *err)
{
    struct recovery *r = arg;
    struct zsd_version *v = recovery_version(r, key->a);

    if (!v || (key->b != ZSD_NOTE_OF_JOB && key->b >= v->world))
        return zb_fail(err, -EBADMSG, "catalog: a note of version %llu, which has no such rank",
                       (unsigned long long)key->a);
    return zsd_record_get_note(key, bytes, len_bytes,
                               key->b == ZSD_NOTE_OF_JOB ? &v->job_note : &v->notes[key->b], err);
}

static int recover_snap(void *arg, const struct zn_key *key, const void *bytes, size_t len_bytes,
                        struct zb_err *err)
{
    struct recovery *r = arg;
    struct recovered_job *j = recovery_job(r, key->a);
    struct zsd_snap *snap = NULL;
    struct zsd_version *v;
    uint64_t id = 0;
    int rc = zsd_record_get_snap(key, bytes, len_bytes, &snap, &id, err);

    if (rc < 0)
        return rc;
    v = recovery_version(r, id);
    if (!j || !v || v->saved != j->saved) {
        free(snap);
        return zb_fail(err, -EBADMSG, "catalog: snapshot %llu is of no version of its job",
                       (unsigned long long)key->b);
    }
    snap->version = zsd_version_ref(v);
    v->snapshots++;
    zb_list_push_back(&j->saved->snaps, &snap->node);
    return 0;
}

/* Every job has its versions, and every version and row somebody who holds it. */
static int recover_whole(struct recovery *r, struct zb_err *err)
{
    for (size_t i = 0; i < r->njobs; i++) {
        struct recovered_job *j = &r->jobs[i];
        struct zsd_version *c = recovery_version(r, j->committed);
        struct zsd_version *p = recovery_version(r, j->prepared);

        if ((j->committed && (!c || c->saved != j->saved)) ||
            (j->prepared && (!p || p->saved != j->saved)) || (!c && !p))
            return zb_fail(err, -EBADMSG, "catalog: job '%s' lacks a version that it names",
                           j->saved->name);
        j->saved->committed = c ? zsd_version_ref(c) : NULL;
        j->saved->prepared = p ? zsd_version_ref(p) : NULL;
    }
    for (size_t i = 0; i < r->nversions; i++)
        if (r->versions[i]->refs == 1)
            return zb_fail(err, -EBADMSG, "catalog: nobody holds version %llu of job '%s'",
                           (unsigned long long)r->versions[i]->id, r->versions[i]->saved->name);
    for (size_t i = 0; i < r->nrows; i++)
        if (r->rows[i]->kept == 0)
            return zb_fail(err, -EBADMSG, "catalog: no version has row %llu",
                           (unsigned long long)r->rows[i]->id);
    return 0;
}

static int recover_all(struct recovery *r, struct zb_err *err)
{
    static const struct {
        enum zsd_record kind;
        zn_record_fn *fn;
    } passes[] = {
        { ZSD_RECORD_STORE, recover_store },     { ZSD_RECORD_ROW, recover_row },
        { ZSD_RECORD_JOB, recover_job },         { ZSD_RECORD_UNIT, recover_unit },
        { ZSD_RECORD_VERSION, recover_version }, { ZSD_RECORD_NOTE, recover_note },
        { ZSD_RECORD_SNAPSHOT, recover_snap },
    };
    int rc = 0;

    for (size_t i = 0; i < ZB_COUNT(passes) && rc == 0; i++)
        rc = zn_catalog_each(r->store->catalog, passes[i].kind, passes[i].kind, passes[i].fn, r,
                             err);
    return rc == 0 ? recover_whole(r, err) : rc;
}

/* Nothing is known of it any more: for a start that failed half way, and for the end. */
static void store_forget(struct zsd_store *store)
{
    zb_list_each(pos, &store->saved)
    {
        struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

        saved_free(s);
    }
}

static int store_recover(struct zsd_store *store, struct zb_err *err)
{
    struct recovery r = { .store = store };
    int rc = recover_all(&r, err);

    for (size_t i = 0; i < r.nversions; i++)
        zsd_version_unref(r.versions[i]);
    if (rc < 0)
        store_forget(store);
    for (size_t i = 0; i < r.nrows; i++)
        zsd_row_unref(store->core, r.rows[i]);
    if (rc == 0 && r.njobs > 0)
        zb_log(ZB_LOG_INFO, "store", "jobs=%zu versions=%zu pages=%llu bytes=%llu", r.njobs,
               r.nversions, (unsigned long long)r.pages, (unsigned long long)r.bytes);
    free(r.rows);
    free(r.jobs);
    free(r.versions);
    return rc;
}

/* Each job is promised what it holds, before any is promised what others hold. Then what it needs:
 * one that finds no room is safe, but cannot go on until there is some: the attach says so. */
static void store_reserve(struct zsd_store *store)
{
    zb_list_each(pos, &store->saved)
    {
        struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);
        struct zb_needs want = { 0 };

        if (zsd_saved_holds(s, &want) == 0)
            (void)saved_promise(s, s->prepared ? s->prepared : s->committed, &want, NULL);
        zb_needs_done(&want);
    }
    zb_list_each(pos, &store->saved)
    {
        struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);
        struct zb_err err = { 0 };

        zb_log(ZB_LOG_INFO, "job-saved", "job=\"%s\" iterations=%llu prepared=%llu", s->name,
               (unsigned long long)(s->committed ? s->committed->iterations : 0),
               (unsigned long long)(s->prepared ? s->prepared->iterations : 0));
        if (zsd_saved_reserve(s, &err) < 0)
            zb_log(ZB_LOG_WARN, "job-no-room", "job=\"%s\" why=\"%s\"", s->name, err.text);
    }
}

/* ---- open and close */

static void store_on_io(struct zn_io *io, int rc)
{
    io->res = rc;
    io->done = NULL;
}

/* One request, waited for: only before the loop runs. */
static int store_io_wait(struct zn_engine *e, enum zn_op op, struct zn_slot *slot)
{
    struct zn_io io = { .op = op, .buf = slot, .done = store_on_io };
    struct pollfd p = { .fd = zn_wake_fd(e), .events = POLLIN };
    int rc = zn_submit(e, &io);
    eventfd_t n;

    if (rc < 0)
        return rc;
    while (io.done) {
        zn_kick(e);
        (void)poll(&p, 1, 100);
        (void)eventfd_read(p.fd, &n);
        (void)zn_reap(e, 1);
    }
    return io.res;
}

/* Every data file says this, and says it after a power cut. */
static int store_tell(const struct zsd_store *store, struct zn_slot slot, struct zb_err *err)
{
    const struct zsd *daemon = store->core->daemon;
    int rc = 0;

    for (unsigned i = 0; i < zsd_paths(daemon) && rc == 0; i++) {
        rc = store_io_wait(zsd_path_engine(daemon, i), ZN_SLOT, &slot);
        if (rc == 0)
            rc = store_io_wait(zsd_path_engine(daemon, i), ZN_FLUSH, NULL);
    }
    return rc < 0 ? zb_fail(err, rc, "the commit slot of a data file: %m") : 0;
}

/* T3. First the slots follow the catalog as it was found, or the next power cut could find it two
 * transactions ahead of them. */
static int store_boot(struct zsd_store *store, struct zb_err *err)
{
    struct zn_slot slot = zn_catalog_slot(store->catalog);
    struct zsd_store_record record;
    struct zn_txn *t;
    int rc = slot.sequence > 0 ? store_tell(store, slot, err) : 0;

    if (rc < 0)
        return rc;
    t = zn_txn_new();
    store->boot++;
    record = (struct zsd_store_record){ .boot = store->boot,
                                        .next_id = store->next_id,
                                        .next_job = store->core->next_job };
    rc = t ? zsd_record_put_store(t, &record) : -ENOMEM;
    if (rc < 0)
        (void)zb_fail(err, rc, "the first change of the catalog: %m");
    else
        rc = zn_catalog_commit(store->catalog, t, &slot, err);
    zn_txn_free(t);
    if (rc == 0)
        rc = store_tell(store, slot, err);
    if (rc < 0)
        return rc;
    store->sequence = slot.sequence;
    store->core->generation = store->boot << BOOT_SHIFT;
    return 0;
}

int zsd_store_open(struct zsd_core *core, struct zb_err *err)
{
    const struct zn_catalog_options options = { .path = core->daemon->catalog_path,
                                                .vfs = core->daemon->catalog_vfs,
                                                .may_create = !core->daemon->read_only,
                                                .read_only = core->daemon->read_only };
    struct zsd_store *store;
    struct zn_slot slots[ZN_PATHS_MAX];
    unsigned nslots = 0;
    int rc;

    if (!core->extents || !options.path)
        return 0;
    store = calloc(1, sizeof(*store));
    if (!store)
        return zb_fail(err, -ENOMEM, "the store: %m");
    core->store = store;
    store->core = core;
    store->next_id = 1;
    zb_list_init(&store->saved);
    zb_list_init(&store->line);
    zb_list_init(&store->rows);
    rc = zsd_compute_new(&core->daemon->catalog_thread, 1, core->daemon->config.cpus, err);
    if (rc == 0)
        rc = zsd_paths_slots(core->daemon, slots, &nslots, err);
    if (rc == 0)
        rc = zn_catalog_open(&store->catalog, &options, slots, nslots, err);
    if (rc == 0)
        rc = store_recover(store, err);
    if (rc == 0 && core->daemon->read_only)
        store->sequence = zn_catalog_slot(store->catalog).sequence;
    else if (rc == 0)
        rc = store_boot(store, err);
    if (rc == 0 && core->daemon->measures)
        rc = zsd_paths_measure(core, err); /* new places are spread by the result */
    if (rc < 0)
        return rc; /* zsd_store_close() takes it from here */
    store_reserve(store);
    return 0;
}

void zsd_store_close(struct zsd_core *core)
{
    struct zsd_store *store = core->store;

    if (!store)
        return;
    assert(zb_list_empty(&store->line));
    store_forget(store);
    zsd_compute_free(core->daemon->catalog_thread);
    core->daemon->catalog_thread = NULL;
    zn_catalog_close(store->catalog);
    free(store);
    core->store = NULL;
}
