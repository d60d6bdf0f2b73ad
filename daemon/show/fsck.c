/*
 * fsck.c - recomputes every counter of the store.
 *
 * MODEL. A change that changes nothing (store/change.h, `looks`). When it is next in the queue, the
 * metadata in memory is copied (survey.h). Then, on the catalog's thread, the whole catalog is read
 * and compared with the copy, and everything is counted again. No commit waits for that: the pass
 * stops at once when another change comes, and begins again after it. The last of TRIES passes runs
 * to its end. Requests that come during a run get its report. What is checked:
 *
 *     the catalog     its digest; each record against memory, and that none is missing
 *     rows            versions that hold each
 *     places          holders of each: rows, and shards that work with it; places of each class
 *     the maps        what is taken there belongs to a class
 *     promises        of each class, over all jobs and readers; and what is booked for them
 *     df              the columns add up to the size of the data files
 */
#include "daemon/show/fsck.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "daemon/show/requests.h"
#include "daemon/show/scans.h"
#include "daemon/show/survey.h"
#include "daemon/store/change.h"
#include "daemon/store/record.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"

#define TRIES 32u

/* Somebody who asked, and waits for the report. */
struct fsck_asker {
    zsd_fsck_done *done;
    void *arg;
    struct zb_list node;
};

struct zsd_fsck_run {
    struct zsd_change change;
    struct zsd_core *core;
    struct zsd_survey s;
    struct zsd_fsck_report report;
    uint32_t *holders; /* of each place, counted */
    uint32_t tries;    /* passes that gave way */
    struct zb_list askers;
};

static void problem(struct zsd_fsck_run *f, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void problem(struct zsd_fsck_run *f, const char *fmt, ...)
{
    struct zsd_fsck_report *r = &f->report;
    va_list ap;

    va_start(ap, fmt);
    if (r->nproblems < ZSD_PROBLEMS_MAX)
        (void)vsnprintf(r->problems[r->nproblems], sizeof(r->problems[0]), fmt, ap);
    va_end(ap);
    r->nproblems++;
}

typedef unsigned long long ull;

/* ---- the catalog against memory: each record has its likeness */

static struct zsd_survey_job *fsck_job(struct zsd_fsck_run *f, uint64_t number)
{
    for (size_t i = 0; i < f->s.njobs; i++)
        if (f->s.jobs[i].kept && f->s.jobs[i].number == number)
            return &f->s.jobs[i];
    return NULL;
}

static struct zsd_survey_version *fsck_version(struct zsd_fsck_run *f, uint64_t id)
{
    for (size_t i = 0; i < f->s.nversions; i++)
        if (f->s.versions[i].version->id == id)
            return &f->s.versions[i];
    return NULL;
}

static struct zsd_survey_row *fsck_row(struct zsd_fsck_run *f, uint64_t id)
{
    size_t at;

    zb_lower_bound(at, f->s.nrows, f->s.rows[at].row->id < id);
    return at < f->s.nrows && f->s.rows[at].row->id == id ? &f->s.rows[at] : NULL;
}

static int fsck_on_store(struct zsd_fsck_run *f, const struct zn_key *key, const void *bytes,
                         size_t len, struct zb_err *err)
{
    struct zsd_store_record r = { 0 };

    (void)key;
    if (zsd_record_get_store(bytes, len, &r, err) < 0)
        return err->code;
    if (r.boot != f->s.boot || r.next_id > f->s.next_id || r.next_job > f->s.next_job)
        problem(f,
                "the catalog says boot %llu, next id %llu, next job %llu; memory %llu, %llu, "
                "%llu",
                (ull)r.boot, (ull)r.next_id, (ull)r.next_job, (ull)f->s.boot, (ull)f->s.next_id,
                (ull)f->s.next_job);
    return 0;
}

static int fsck_on_job(struct zsd_fsck_run *f, const struct zn_key *key, const void *bytes,
                       size_t len, struct zb_err *err)
{
    struct zsd_survey_job *j = fsck_job(f, key->a);
    struct zsd_saved there = { 0 };
    uint64_t committed = 0, prepared = 0;

    f->report.jobs++;
    if (zsd_record_get_job(key, bytes, len, &there, &committed, &prepared, err) < 0)
        return err->code;
    if (!j) {
        problem(f, "job '%s' (number %llu) is in the catalog only", there.name, (ull)key->a);
        return 0;
    }
    j->found = true;
    if (strcmp(there.name, j->name) != 0 || there.uid != j->uid ||
        committed != (j->kept->committed ? j->kept->committed->id : 0) ||
        prepared != (j->kept->prepared ? j->kept->prepared->id : 0))
        problem(f, "job '%s': the catalog says '%s' of user %u with versions %llu and %llu",
                j->name, there.name, (unsigned)there.uid, (ull)committed, (ull)prepared);
    return 0;
}

static int fsck_on_unit(struct zsd_fsck_run *f, const struct zn_key *key, const void *bytes,
                        size_t len, struct zb_err *err)
{
    struct zsd_survey_job *j = fsck_job(f, key->a);
    struct zsd_unit *u = NULL;

    if (zsd_record_get_unit(key, bytes, len, &u, err) < 0)
        return err->code;
    if (!j || key->b >= j->kept->nunits || strcmp(u->name, j->kept->units[key->b]->name) != 0 ||
        u->elems != j->kept->units[key->b]->elems)
        problem(f, "unit '%s' (%llu) of job number %llu is not the one in memory", u->name,
                (ull)key->b, (ull)key->a);
    else
        j->units++;
    zsd_unit_free(u);
    return 0;
}

static int fsck_on_version(struct zsd_fsck_run *f, const struct zn_key *key, const void *bytes,
                           size_t len, struct zb_err *err)
{
    struct zsd_survey_version *v = fsck_version(f, key->b);
    struct zsd_version *there = NULL;
    uint64_t *ids = NULL;
    bool same;

    f->report.versions++;
    if (zsd_record_get_version(key, bytes, len, &there, &ids, err) < 0)
        return err->code;
    same = v && f->s.jobs[v->job].number == key->a && there->iterations == v->version->iterations &&
           there->applied == v->version->applied && there->world == v->version->world &&
           there->nrows == v->version->nrows;
    for (uint32_t i = 0; same && i < there->nrows; i++)
        same = ids[i] == v->version->rows[i]->id;
    if (!same)
        problem(f, "version %llu of job number %llu is not as in memory", (ull)key->b, (ull)key->a);
    if (v)
        v->found = true;
    free(ids);
    free(there->rows);
    free(there->notes);
    free(there);
    return 0;
}

static int fsck_on_note(struct zsd_fsck_run *f, const struct zn_key *key, const void *bytes,
                        size_t len, struct zb_err *err)
{
    const struct zsd_survey_version *v = fsck_version(f, key->a);
    const struct zsd_note *n = NULL;
    struct zsd_note there = { 0 };

    if (zsd_record_get_note(key, bytes, len, &there, err) < 0)
        return err->code;
    if (v && key->b == ZSD_NOTE_OF_JOB)
        n = &v->version->job_note;
    else if (v && key->b < v->version->world)
        n = &v->version->notes[key->b];
    if (!n || !n->data || n->total != there.total || n->iteration != there.iteration ||
        (n->total > 0 && memcmp(n->data, there.data, n->total) != 0))
        problem(f, "a note of version %llu is not as in memory", (ull)key->a);
    zsd_note_done(&there);
    return 0;
}

static bool row_same(const struct zsd_row *a, const struct zsd_row *b)
{
    bool same = a->unit == b->unit && a->rank == b->rank && a->first == b->first &&
                a->count == b->count && a->page_elems == b->page_elems && a->npages == b->npages;

    for (int p = 0; p < ZSD_SAVED_PLANES && same; p++) {
        const struct zsd_row_plane *x = &a->planes[p], *y = &b->planes[p];

        same = x->block_bytes == y->block_bytes &&
               (x->block_bytes == 0 ||
                (x->crc_bytes == y->crc_bytes &&
                 memcmp(x->crcs, y->crcs,
                        (size_t)a->npages * x->crcs_per_page * sizeof(*x->crcs)) == 0));
        for (uint32_t i = 0; same && x->block_bytes > 0 && i < a->npages; i++)
            same = x->extents[i].at == y->extents[i].at &&
                   x->extents[i].generation == y->extents[i].generation &&
                   x->extents[i].job == y->extents[i].job;
    }
    return same;
}

static int fsck_on_row(struct zsd_fsck_run *f, const struct zn_key *key, const void *bytes,
                       size_t len, struct zb_err *err)
{
    struct zsd_survey_row *r = fsck_row(f, key->a);
    struct zsd_row *there = NULL;

    f->report.rows++;
    if (zsd_record_get_row(key, bytes, len, &there, err) < 0)
        return err->code;
    if (!r || r->kept == 0 || !row_same(r->row, there))
        problem(f, "row %llu is not as in memory", (ull)key->a);
    if (r)
        r->found = true;
    for (int p = 0; p < ZSD_SAVED_PLANES; p++)
        f->report.pages += there->planes[p].block_bytes > 0 ? there->npages : 0;
    there->refs = 0;
    zsd_row_free(there);
    return 0;
}

static int fsck_on_snap(struct zsd_fsck_run *f, const struct zn_key *key, const void *bytes,
                        size_t len, struct zb_err *err)
{
    struct zsd_snap *there = NULL;
    struct zsd_survey_snap *s = NULL;
    uint64_t version = 0;

    f->report.snapshots++;
    if (zsd_record_get_snap(key, bytes, len, &there, &version, err) < 0)
        return err->code;
    for (size_t i = 0; i < f->s.nsnaps; i++)
        if (f->s.snaps[i].snap->id == key->b && f->s.jobs[f->s.snaps[i].job].number == key->a)
            s = &f->s.snaps[i];
    if (!s || strcmp(s->snap->name, there->name) != 0 || s->snap->version->id != version)
        problem(f, "snapshot '%s' of job number %llu is not as in memory", there->name,
                (ull)key->a);
    if (s)
        s->found = true;
    free(there);
    return 0;
}

static int fsck_on_record(void *arg, const struct zn_key *key, const void *bytes, size_t len,
                          struct zb_err *err)
{
    switch ((enum zsd_record)key->kind) {
    case ZSD_RECORD_STORE:
        return fsck_on_store(arg, key, bytes, len, err);
    case ZSD_RECORD_JOB:
        return fsck_on_job(arg, key, bytes, len, err);
    case ZSD_RECORD_UNIT:
        return fsck_on_unit(arg, key, bytes, len, err);
    case ZSD_RECORD_VERSION:
        return fsck_on_version(arg, key, bytes, len, err);
    case ZSD_RECORD_NOTE:
        return fsck_on_note(arg, key, bytes, len, err);
    case ZSD_RECORD_ROW:
        return fsck_on_row(arg, key, bytes, len, err);
    case ZSD_RECORD_SNAPSHOT:
        return fsck_on_snap(arg, key, bytes, len, err);
    }
    problem(arg, "a record of the unknown kind %u", key->kind);
    return 0;
}

static void fsck_missing(struct zsd_fsck_run *f)
{
    for (size_t i = 0; i < f->s.njobs; i++) {
        const struct zsd_survey_job *j = &f->s.jobs[i];

        if (j->kept && (!j->found || j->units != j->kept->nunits))
            problem(f, "job '%s': %s, with %u of %u units", j->name,
                    j->found ? "in the catalog" : "not in the catalog", j->units, j->kept->nunits);
    }
    for (size_t i = 0; i < f->s.nversions; i++)
        if (!f->s.versions[i].found)
            problem(f, "version %llu of job '%s' is not in the catalog",
                    (ull)f->s.versions[i].version->id, f->s.jobs[f->s.versions[i].job].name);
    for (size_t i = 0; i < f->s.nrows; i++)
        if (f->s.rows[i].kept > 0 && !f->s.rows[i].found)
            problem(f, "row %llu is not in the catalog", (ull)f->s.rows[i].row->id);
    for (size_t i = 0; i < f->s.nsnaps; i++)
        if (!f->s.snaps[i].found)
            problem(f, "snapshot '%s' of job '%s' is not in the catalog", f->s.snaps[i].snap->name,
                    f->s.jobs[f->s.snaps[i].job].name);
}

static void fsck_catalog(struct zsd_fsck_run *f)
{
    struct zn_catalog *catalog = f->core->store->catalog;
    struct zn_slot slot = zn_catalog_slot(catalog);
    struct zn_catalog_size size;
    struct zb_err err = { 0 };

    if (zn_catalog_verify(catalog, &err) < 0 ||
        zn_catalog_each(catalog, 1, UINT32_MAX, fsck_on_record, f, &err) < 0) {
        problem(f, "%s", err.text); /* forgotten where it says that a change waits */
        return;
    }
    fsck_missing(f);
    if (zn_catalog_size(catalog, &size, &err) < 0)
        problem(f, "%s", err.text);
    f->report.sequence = slot.sequence;
    if (slot.sequence != f->s.sequence)
        problem(f, "the catalog is at change %llu, and memory at %llu", (ull)slot.sequence,
                (ull)f->s.sequence);
}

/* ---- what is counted */

static void fsck_versions(struct zsd_fsck_run *f)
{
    for (size_t i = 0; i < f->s.nsnaps; i++)
        for (size_t n = 0; n < f->s.nversions; n++)
            if (f->s.versions[n].version == f->s.snaps[i].snap->version)
                f->s.versions[n].counted++;
    for (size_t i = 0; i < f->s.nversions; i++) {
        const struct zsd_survey_version *v = &f->s.versions[i];

        if (v->snapshots != v->counted)
            problem(f, "version %llu of job '%s' counts %u snapshots, and has %u",
                    (ull)v->version->id, f->s.jobs[v->job].name, v->snapshots, v->counted);
        for (uint32_t r = 0; r < v->version->nrows; r++) {
            struct zsd_survey_row *row = fsck_row(f, v->version->rows[r]->id);

            if (row)
                row->versions++;
        }
    }
    for (size_t i = 0; i < f->s.nrows; i++)
        if (f->s.rows[i].versions != f->s.rows[i].kept)
            problem(f, "row %llu counts %u versions, and %u have it", (ull)f->s.rows[i].row->id,
                    f->s.rows[i].kept, f->s.rows[i].versions);
}

static void fsck_holder(struct zsd_fsck_run *f, uint64_t at, uint64_t bytes)
{
    size_t i = zsd_survey_place(&f->s, at);

    if (i == f->s.places.nplaces || f->s.places.places[i].bytes != bytes)
        problem(f, "a page of %llu bytes at %#llx has no place", (ull)bytes, (ull)at);
    else
        f->holders[i]++;
}

static void fsck_row_places(struct zsd_fsck_run *f, const struct zsd_survey_row *r)
{
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++)
        for (uint32_t i = 0; r->row->planes[p].block_bytes > 0 && i < r->row->npages; i++)
            fsck_holder(f, r->row->planes[p].extents[i].at, zsd_row_page_bytes(r->row, p, i));
}

static void fsck_places(struct zsd_fsck_run *f)
{
    const struct zsd_places_copy *c = &f->s.places;

    /* what the catalog has first: its bytes are what is told */
    for (size_t i = 0; i < f->s.nrows; i++)
        if (f->s.rows[i].kept > 0)
            fsck_row_places(f, &f->s.rows[i]);
    for (size_t i = 0; i < c->nplaces; i++)
        f->report.bytes += f->holders[i] > 0 ? c->places[i].bytes : 0;
    for (size_t i = 0; i < f->s.nrows; i++)
        if (f->s.rows[i].kept == 0)
            fsck_row_places(f, &f->s.rows[i]);
    for (size_t i = 0; i < f->s.nworks; i++)
        fsck_holder(f, f->s.works[i].at, f->s.works[i].bytes);
}

/* A page that is being written has a place that nobody points to yet: held once. */
static void fsck_holders(struct zsd_fsck_run *f)
{
    const struct zsd_places_copy *c = &f->s.places;

    for (size_t i = 0; i < c->nplaces; i++)
        if (f->holders[i] != c->places[i].holders &&
            !(f->holders[i] == 0 && c->places[i].holders == 1 && f->s.moving))
            problem(f, "the place at %#llx counts %u holders, and has %u", (ull)c->places[i].at,
                    c->places[i].holders, f->holders[i]);
}

static uint64_t need_count(const struct zb_needs *p, uint64_t bytes)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->needs[i].bytes == bytes)
            return p->needs[i].count;
    return 0;
}

static void fsck_classes(struct zsd_fsck_run *f)
{
    const struct zsd_places_copy *c = &f->s.places;
    uint64_t taken = 0;

    for (uint32_t i = 0; i < c->nclasses; i++) {
        const struct zsd_class_copy *k = &c->classes[i];
        uint64_t held = 0, promised = need_count(&f->s.readers, k->bytes);

        for (size_t n = 0; n < c->nplaces; n++)
            held += c->places[n].bytes == k->bytes;
        for (size_t n = 0; n < f->s.njobs; n++)
            promised += need_count(&f->s.jobs[n].promise, k->bytes);
        if (k->total != k->nfree + held || k->promised != promised || k->total < k->promised)
            problem(f,
                    "of places of %llu bytes there are %llu, %llu free and %llu in use; %llu are "
                    "promised, to jobs and readers %llu",
                    (ull)k->bytes, (ull)k->total, (ull)k->nfree, (ull)held, (ull)k->promised,
                    (ull)promised);
        taken += k->total * k->bytes;
    }
    if (taken + f->s.free_bytes != f->s.map_bytes)
        problem(f, "%llu bytes are places, %llu are free, and the data files have %llu", (ull)taken,
                (ull)f->s.free_bytes, (ull)f->s.map_bytes);
}

static uint64_t account_bytes(const struct zsd_account *a)
{
    uint64_t sum = 0;

    for (int use = 0; use < ZSD_USES; use++)
        sum += a->used[use];
    return sum;
}

static void fsck_accounts(struct zsd_fsck_run *f)
{
    uint64_t booked = account_bytes(&f->s.readers_held);

    for (size_t i = 0; i < f->s.njobs; i++) {
        const struct zsd_survey_job *j = &f->s.jobs[i];

        if (account_bytes(&j->held) != zb_needs_bytes(&j->promise))
            problem(f, "job '%s' is promised %llu bytes, and %llu are booked", j->name,
                    (ull)zb_needs_bytes(&j->promise), (ull)account_bytes(&j->held));
        booked += account_bytes(&j->held);
    }
    if (account_bytes(&f->s.nvme) != booked)
        problem(f, "%llu bytes of NVMe are booked, of jobs and readers %llu",
                (ull)account_bytes(&f->s.nvme), (ull)booked);
}

static int fsck_df(struct zsd_fsck_run *f)
{
    uint64_t sum;
    int rc = zsd_survey_df(&f->s);

    if (rc < 0)
        return rc;
    sum = f->s.total_bytes - f->s.map_bytes + f->s.free_bytes + f->s.other_working +
          f->s.other_reserved;
    for (size_t i = 0; i < f->s.njobs; i++) {
        const struct zsd_survey_job *j = &f->s.jobs[i];

        sum += j->committed + j->prepared + j->snapshots + j->working + j->reserved;
    }
    if (sum != f->s.total_bytes)
        problem(f, "df tells of %llu bytes, and the data files have %llu", (ull)sum,
                (ull)f->s.total_bytes);
    return 0;
}

/* ---- the change */

static int fsck_begin(struct zsd_change *c, struct zb_err *err)
{
    struct zsd_fsck_run *f = zb_container_of(c, struct zsd_fsck_run, change);

    return zsd_survey_take(f->core, &f->s, err);
}

/* Another change waits. */
static bool fsck_asked(const struct zsd_fsck_run *f)
{
    return !f->change.holds && atomic_load_explicit(&f->change.asked, memory_order_relaxed);
}

static int fsck_fill(struct zsd_change *c, struct zb_err *err)
{
    static void (*const parts[])(struct zsd_fsck_run * f) = { fsck_catalog, fsck_versions,
                                                              fsck_places,  fsck_holders,
                                                              fsck_classes, fsck_accounts };
    struct zsd_fsck_run *f = zb_container_of(c, struct zsd_fsck_run, change);

    f->holders = calloc(zb_max_u64(f->s.places.nplaces, 1), sizeof(*f->holders));
    if (!f->holders)
        return zb_fail(err, -ENOMEM, "counting the stored pages: %m");
    zsd_survey_sort(&f->s);
    zn_catalog_stop_on(c->core->store->catalog, c->holds ? NULL : &c->asked);
    for (size_t i = 0; i < ZB_COUNT(parts) && !fsck_asked(f); i++)
        parts[i](f);
    zn_catalog_stop_on(c->core->store->catalog, NULL);
    if (fsck_asked(f))
        return zb_fail(err, -EAGAIN, "a change waits");
    return fsck_df(f) < 0 ? zb_fail(err, -ENOMEM, "counting the stored pages: %m") : 0;
}

static void fsck_tell(struct zsd_fsck_run *f, const struct zb_err *err)
{
    f->core->scans->fsck = NULL;
    for (struct zb_list *node; (node = zb_list_pop_front(&f->askers)) != NULL;) {
        struct fsck_asker *a = zb_container_of(node, struct fsck_asker, node);

        a->done(a->arg, &f->report, err);
        free(a);
    }
    free(f);
}

static void fsck_done(struct zsd_change *c, const struct zb_err *err)
{
    struct zsd_fsck_run *f = zb_container_of(c, struct zsd_fsck_run, change);

    zsd_survey_done(&f->s);
    free(f->holders);
    f->holders = NULL;
    if (!err || err->code != -EAGAIN) {
        fsck_tell(f, err);
        return;
    }
    f->report = (struct zsd_fsck_report){ 0 };
    c->holds = ++f->tries == TRIES - 1;
    zsd_change_start(f->core, c);
}

void zsd_fsck_start(struct zsd_core *core, zsd_fsck_done *done, void *arg)
{
    struct zsd_fsck_run *f = core->scans->fsck;
    struct fsck_asker *a = calloc(1, sizeof(*a));
    struct zb_err err = { 0 };

    if (a && !f)
        f = calloc(1, sizeof(*f));
    if (!a || !f) {
        free(a);
        (void)zb_fail(&err, -ENOMEM, "fsck: %m");
        done(arg, NULL, &err);
        return;
    }
    a->done = done;
    a->arg = arg;
    zb_list_init(&a->node);
    if (!core->scans->fsck) {
        core->scans->fsck = f;
        f->core = core;
        zb_list_init(&f->askers);
        f->change = (struct zsd_change){
            .looks = true, .begin = fsck_begin, .fill = fsck_fill, .done = fsck_done
        };
        zsd_change_start(core, &f->change);
    }
    zb_list_push_back(&f->askers, &a->node);
}

/* ---- requests */

static void fsck_answer(void *arg, const struct zsd_fsck_report *r, const struct zb_err *err)
{
    Zp__FsckReply reply = ZP__FSCK_REPLY__INIT;
    char *problems[ZSD_PROBLEMS_MAX];
    struct zsd_req *req = arg;

    if (req->conn)
        zsd_limit_give(&req->conn->quota, ZSD_LIMIT_SCANS, 1);
    if (err) {
        zsd_reply_err(arg, err);
        return;
    }
    reply.jobs = r->jobs;
    reply.versions = r->versions;
    reply.snapshots = r->snapshots;
    reply.rows = r->rows;
    reply.pages = r->pages;
    reply.bytes = r->bytes;
    reply.sequence = r->sequence;
    reply.problems_total = r->nproblems;
    reply.problems = problems;
    for (; reply.n_problems < zb_min_u64(r->nproblems, ZSD_PROBLEMS_MAX); reply.n_problems++)
        problems[reply.n_problems] = zp_str(r->problems[reply.n_problems]);
    zsd_reply(arg, &reply.base, -1);
}

void zsd_fsck(struct zsd_req *req, const ProtobufCMessage *message)
{
    struct zb_err err = { 0 };

    (void)message;
    if (!zsd_may(req->conn, geteuid())) /* it reads all that is saved, and names everybody's jobs */
        zsd_refuse(req, -EPERM, "only root and the daemon's own user start an fsck");
    else if (!req->daemon->core->store)
        zsd_refuse(req, -ENOENT, "this daemon saves nothing: it has no data directory that stays");
    else if (zsd_limit_take(&req->conn->quota, ZSD_LIMIT_SCANS, 1, &err) < 0)
        zsd_reply_err(req, &err);
    else
        zsd_fsck_start(req->daemon->core, fsck_answer, req);
}
