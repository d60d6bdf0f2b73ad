/*
 * recover.c - opens the store, which recovers the saved jobs, and closes it. store.h has the model.
 *
 * RECOVERY reads the records of the catalog, one kind after the other: the store, with the features
 * that this program must know, rows, jobs, units, versions, notes, snapshots. Every extent that a
 * row names is taken in the map. Everything else is free: so pages that a dead daemon wrote and
 * never committed need no cleaning. Then the boot number is committed (T3), which also proves that the catalog can be written. From then on free places may
 * be written, and the data files are measured there (disk/paths.c). Last, each job gets its
 * promise.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/late.h"
#include "base/slots.h"
#include "daemon/disk/leaving.h"
#include "daemon/disk/paths.h"
#include "daemon/store/copies.h"
#include "daemon/store/drains.h"
#include "daemon/store/lost.h"
#include "daemon/store/record.h"
#include "daemon/store/rows.h"
#include "daemon/store/saved_priv.h"

/* ---- recovery */

struct recovered_job {
    struct zsd_saved *saved;
    uint64_t committed, prepared; /* ids of versions */
};

/* State while the catalog is read. Rows are read in the order of their ids. */
struct recovery {
    struct zsd_store *store;
    struct zsd_row **rows; /* held once, until the end */
    struct recovered_job *jobs;
    struct zsd_version **versions; /* likewise */
    size_t nrows, rows_room, njobs, jobs_room, nversions, versions_room;
    uint64_t pages, bytes;
};

static int recovery_no_memory(struct zb_err *err)
{
    return zb_fail(err, -ENOMEM, "reading the catalog: %m");
}

static struct zsd_row *recovery_row(const struct recovery *r, uint64_t id)
{
    size_t at;

    zb_lower_bound(at, r->nrows, r->rows[at]->id < id);
    return at < r->nrows && r->rows[at]->id == id ? r->rows[at] : NULL;
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

static int recover_missing(const struct zsd_core *core, struct zsd_row *row, unsigned path,
                           struct zb_err *err)
{
    row->lost = true;
    if (core->daemon->config.without == path + 1)
        return 0;
    return zb_fail(err, -ENOMEDIUM,
                   "data file number %u is missing, and pages of saved jobs are there: mount its "
                   "drive, and name its directory in paths; if it is lost, start with --without %u",
                   path + 1, path + 1);
}

/* Takes the places of a row in the map. After a failure, the remaining pages have no place. */
static int recover_extents(struct recovery *r, struct zsd_row *row, struct zb_err *err)
{
    struct zsd_core *core = r->store->core;
    int rc = 0;

    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        for (uint32_t i = 0; row->planes[p].extents && i < row->npages; i++) {
            struct zsd_extent *e = &row->planes[p].extents[i];
            uint64_t bytes = zsd_row_page_bytes(row, p, i);

            if (rc == 0 && zsd_path_missing(core->daemon, ZN_AT_PATH(e->at)))
                rc = recover_missing(core, row, ZN_AT_PATH(e->at), err);
            if (rc == 0)
                rc = zsd_extent_adopt(core, e->at, bytes, err);
            if (rc < 0)
                e->at = ZB_NO_PLACE; /* not taken, so never freed */
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
    int rc;

    if (zb_grow(&r->rows, &r->rows_room, r->nrows, 1) < 0)
        return recovery_no_memory(err);
    rc = zsd_record_get_row(key, bytes, len_bytes, &row, err);
    if (rc < 0)
        return rc;
    r->rows[r->nrows++] = row;
    zsd_rows_add(r->store, row);
    return recover_extents(r, row, err);
}

static int recover_job(void *arg, const struct zn_key *key, const void *bytes, size_t len_bytes,
                       struct zb_err *err)
{
    struct recovery *r = arg;
    struct zsd_saved *s;
    struct recovered_job *j;

    if (zb_grow(&r->jobs, &r->jobs_room, r->njobs, 1) < 0)
        return recovery_no_memory(err);
    s = zsd_saved_alloc(r->store, 0);
    if (!s)
        return zb_fail(err, -ENOMEM, "jobs of the catalog: %m");
    zb_list_push_back(&r->store->saved, &s->node);
    j = &r->jobs[r->njobs++];
    j->saved = s;
    return zsd_record_get_job(key, bytes, len_bytes, s, &j->committed, &j->prepared, err);
}

/* Whether the unit has the layout of the job's optimizer. An image may have state that was placed for
 * another one, with more moments. */
static bool recover_layout(const struct zsd_saved *s, struct zb_layout *layout)
{
    if (layout->moments != s->moments)
        return false;
    if (layout->optimizer == s->optimizer ||
        (s->optimizer == ZB_MUON && layout->optimizer == ZB_ADAMW))
        return true;
    if (!s->image || zb_layout_steps_with(layout, s->optimizer, s->moments, NULL) < 0)
        return false;
    layout->optimizer = s->optimizer;
    return true;
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
        return zb_fail(err, -EBADMSG, "catalog: unit %llu of job number %llu is out of order",
                       (unsigned long long)key->b, (unsigned long long)key->a);
    s = j->saved;
    rc = zsd_record_get_unit(key, bytes, len_bytes, &unit, err);
    if (rc < 0)
        return rc;
    if (!recover_layout(s, &unit->layout)) {
        rc = zb_fail(err, -EBADMSG,
                     "catalog: unit '%s' of job '%s' does not match the job's optimizer",
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

/* Sets the rows of a version. Checks that all exist, are in order, and fit the manifest. */
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
                           "catalog: version %llu of job '%s': row %llu is missing or misplaced",
                           (unsigned long long)v->id, s->name, (unsigned long long)ids[i]);
        if (zsd_version_put(v, i, row) < 0)
            return recovery_no_memory(err);
        row->kept++;
        v->lost |= row->lost;
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
        return zb_fail(err, -EBADMSG, "catalog: version %llu belongs to no job",
                       (unsigned long long)key->b);
    if (zb_grow(&r->versions, &r->versions_room, r->nversions, 1) < 0)
        return recovery_no_memory(err);
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
        return zb_fail(err, -EBADMSG, "catalog: snapshot %llu names no version of its job",
                       (unsigned long long)key->b);
    }
    snap->version = zsd_version_ref(v);
    v->snapshots++;
    zb_list_push_back(&j->saved->snaps, &snap->node);
    return 0;
}

/* Sets the versions of each job. Checks that these exist, and that every version and every row has
 * a holder. */
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
        r->store->images += j->saved->image;
        zsd_saved_own(j->saved);
        zsd_snaps_recovered(j->saved);
        for (size_t k = 0; k < i; k++) {
            if (strcmp(r->jobs[k].saved->name, j->saved->name) != 0)
                continue;
            if (r->jobs[k].saved->uid == j->saved->uid)
                return zb_fail(err, -EBADMSG, "catalog: user %u has two jobs '%s'",
                               (unsigned)j->saved->uid, j->saved->name);
            r->store->namesakes++;
            break;
        }
    }
    for (size_t i = 0; i < r->nversions; i++)
        if (r->versions[i]->refs == 1)
            return zb_fail(err, -EBADMSG, "catalog: nothing refers to version %llu of job '%s'",
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

/* Frees all saved jobs: after a failed recovery, and at the end. */
static void store_forget(struct zsd_store *store)
{
    zb_list_each(pos, &store->saved)
    {
        struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

        zsd_saved_free(s);
    }
}

static int store_recover(struct zsd_store *store, struct zb_err *err)
{
    struct recovery r = { .store = store };
    int rc = recover_all(&r, err);

    if (rc == 0)
        zsd_lost_log(store);
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

/* Stamps the rows of a version, and returns the bytes of those that an earlier job of the user has:
 * their stamp is `first` or later. */
static uint64_t shared_rows(const struct zsd_version *v, uint64_t first, uint64_t stamp)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; v && i < v->nrows; i++) {
        struct zsd_row *row = v->rows[i];

        if (row->stamp >= first && row->stamp != stamp)
            bytes += zsd_row_bytes(row);
        row->stamp = stamp;
    }
    return bytes;
}

static uint64_t shared_job(const struct zsd_saved *s, uint64_t first, uint64_t stamp)
{
    uint64_t bytes = shared_rows(s->committed, first, stamp) +
                     shared_rows(s->prepared, first, stamp);

    zb_list_each(pos, (struct zb_list *)(uintptr_t)&s->snaps)
        bytes += shared_rows(zb_container_of(pos, struct zsd_snap, node)->version, first, stamp);
    return bytes;
}

/* Counts, for each user, the pages that more than one of its jobs has. */
static void store_shared(struct zsd_store *store)
{
    zb_list_each(pos, &store->saved)
    {
        const struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);
        struct zsd_user *user = zsd_user_of(&s->quota);
        uint64_t first = store->stamp + 1, bytes = 0;

        if (!user || user->shared_known)
            continue;
        user->shared_known = true;
        zb_list_each(at, &store->saved)
        {
            const struct zsd_saved *t = zb_container_of(at, struct zsd_saved, node);

            if (t->uid == s->uid)
                bytes += shared_job(t, first, ++store->stamp);
        }
        user->shared_bytes = bytes;
    }
}

/* First promises each job the places that it holds, so that no promise of another job can take
 * them. Then promises each job all that it needs. A job that finds no room for that is safe, but
 * cannot continue until there is room: an attach says so. 0 or -ENOMEM. */
static int store_reserve(struct zsd_store *store, struct zb_err *err)
{
    zb_list_each(pos, &store->saved)
    {
        struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

        if (zsd_saved_recount(s) < 0)
            return zb_fail(err, -ENOMEM, "what job '%s' holds: %m", s->name);
        (void)zsd_saved_book(s, s->prepared ? s->prepared : s->committed, &s->held, NULL);
    }
    store_shared(store);
    zb_list_each(pos, &store->saved)
    {
        struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);
        struct zb_err why = { 0 };

        if (s->image)
            continue; /* its promise is what it holds */
        zb_log(ZB_LOG_INFO, "job-saved", "job=\"%s\" uid=%u iterations=%llu prepared=%llu", s->name,
               (unsigned)s->uid, (unsigned long long)(s->committed ? s->committed->iterations : 0),
               (unsigned long long)(s->prepared ? s->prepared->iterations : 0));
        if (zsd_saved_reserve(s, &why) < 0)
            zb_log(ZB_LOG_WARN, "job-no-room", "job=\"%s\" uid=%u why=\"%s\"", s->name,
                   (unsigned)s->uid, why.text);
    }
    return 0;
}

bool zsd_store_namesake(const struct zsd_saved *saved)
{
    zb_list_each(pos, &saved->store->saved)
    {
        const struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

        if (s != saved && zsd_saved_kept(s) && !s->gone && strcmp(s->name, saved->name) == 0)
            return true;
    }
    return false;
}

/* ---- open and close */

static void store_size(struct zsd_store *store)
{
    struct zn_catalog_size size = { 0 };

    if (zn_catalog_size(store->catalog, &size, NULL) == 0)
        store->catalog_bytes = size.file_bytes;
}

int zsd_store_open(struct zsd_core *core, struct zb_err *err)
{
    const struct zn_catalog_options options = { .path = core->daemon->catalog_path,
                                                .vfs = core->daemon->catalog_vfs,
                                                .may_create = !core->daemon->read_only,
                                                .read_only = core->daemon->read_only };
    const struct zsd_config *config = &core->daemon->config;
    struct zsd_store *store;
    struct zn_slot slots[ZN_PATHS_MAX];
    unsigned nslots = 0;
    int rc;

    if (!core->disk->extents || !options.path)
        return 0;
    store = calloc(1, sizeof(*store));
    if (!store)
        return zb_fail(err, -ENOMEM, "the store: %m");
    core->store = store;
    store->core = core;
    store->next_id = 1;
    zb_list_init(&store->saved);
    zsd_fair_init(&store->line);
    zsd_flow_init(&store->house);
    zb_list_init(&store->rows);
    zb_list_init(&store->walks);
    rc = zsd_compute_new(&core->daemon->catalog_thread, zsd_paths(core->daemon),
                         core->daemon->config.cpus, err);
    if (rc == 0)
        rc = zsd_paths_slots(core->daemon, slots, &nslots, err);
    if (rc == 0)
        rc = zsd_copies_open(store, &options, slots, nslots, err);
    if (rc == 0)
        rc = store_recover(store, err);
    if (rc == 0)
        rc = zsd_drains_recover(store, err);
    if (rc == 0 && !core->daemon->read_only)
        rc = zsd_copies_begin(store, err);
    if (rc == 0 && core->daemon->read_only) {
        store->sequence = zn_catalog_slot(store->catalog).sequence;
        (void)zb_fail(&store->poisoned, -EROFS, "the store is open read-only");
    } else if (rc == 0)
        rc = zsd_store_boot(store, err);
    if (rc == 0)
        store_size(store);
    if (rc == 0)
        zsd_paths_keep(core->daemon);
    if (rc == 0 && core->daemon->measures)
        rc = zsd_paths_measure(core, err); /* the result decides how new places are spread */
    if (rc < 0)
        return rc;                                  /* zsd_store_close() frees it */
    if (config->retire > 0 || config->shrink > 0) { /* no job comes: each page needs one place */
        zsd_map_close(core, (unsigned)zb_max_u64(config->retire, config->shrink) - 1,
                      config->shrink > 0 ? config->shrink_bytes - core->daemon->engine_base : 0);
        return 0;
    }
    return store_reserve(store, err);
}

bool zsd_store_empty(const struct zsd_core *core)
{
    const struct zsd_store *store = core->store;

    return store && store->poisoned.code == 0 && zb_list_empty(&store->saved);
}

void zsd_store_close(struct zsd_core *core)
{
    struct zsd_store *store = core->store;

    if (!store)
        return;
    assert(!store->runs);
    store_forget(store);
    zsd_leaving_all(core); /* first: the rows are in a list of the store */
    zsd_compute_free(core->daemon->catalog_thread);
    core->daemon->catalog_thread = NULL;
    zsd_copies_close(store);
    zn_catalog_close(store->catalog);
    free(store);
    core->store = NULL;
}
