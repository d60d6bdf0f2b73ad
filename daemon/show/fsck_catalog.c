/*
 * fsck_catalog.c - the part of an fsck that compares the catalog with memory.
 *
 * MODEL. Runs on the catalog's thread, in a change of fsck.c. Reads the whole catalog, compares
 * each record with the survey, and marks it there as found. Objects of the survey that are not
 * marked at the end are missing from the catalog.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/show/fsck_priv.h"
#include "daemon/store/drains.h"
#include "daemon/store/record.h"

typedef unsigned long long ull;

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

static int fsck_on_store(struct zsd_fsck_run *f, const struct zn_key *key, const void *bytes,
                         size_t len, struct zb_err *err)
{
    struct zsd_store_record r = { 0 };

    (void)key;
    if (zsd_record_get_store(bytes, len, &r, err) < 0)
        return err->code;
    if (r.boot != f->s.boot || r.next_id > f->s.next_id) /* numbers of jobs begin anew */
        fsck_problem(f, "the catalog says boot %llu, next id %llu; memory %llu, %llu", (ull)r.boot,
                     (ull)r.next_id, (ull)f->s.boot, (ull)f->s.next_id);
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
        fsck_problem(f, "job '%s' (number %llu) is in the catalog only", there.name, (ull)key->a);
        return 0;
    }
    j->found = true;
    if (strcmp(there.name, j->name) != 0 || there.uid != j->uid ||
        committed != (j->kept->committed ? j->kept->committed->id : 0) ||
        prepared != (j->kept->prepared ? j->kept->prepared->id : 0))
        fsck_problem(f, "job '%s': the catalog says '%s' of user %u with versions %llu and %llu",
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
        fsck_problem(f, "unit '%s' (%llu) of job number %llu is not the one in memory", u->name,
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
        fsck_problem(f, "version %llu of job number %llu is not as in memory", (ull)key->b,
                     (ull)key->a);
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
        fsck_problem(f, "a note of version %llu is not as in memory", (ull)key->a);
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
    struct zsd_survey_row *r = zsd_survey_row(&f->s, key->a);
    struct zsd_row *there = NULL;

    f->report.rows++;
    if (zsd_record_get_row(key, bytes, len, &there, err) < 0)
        return err->code;
    if (!r || r->kept == 0 || !row_same(r->row, there))
        fsck_problem(f, "row %llu is not as in memory", (ull)key->a);
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
        fsck_problem(f, "snapshot '%s' of job number %llu is not as in memory", there->name,
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
    case ZSD_RECORD_DRAIN:
        return zsd_record_get_drain(key, bytes, len, &(struct zsd_drain_record){ 0 }, err);
    }
    fsck_problem(arg, "a record of the unknown kind %u", key->kind);
    return 0;
}

static void fsck_missing(struct zsd_fsck_run *f)
{
    for (size_t i = 0; i < f->s.njobs; i++) {
        const struct zsd_survey_job *j = &f->s.jobs[i];

        if (j->kept && (!j->found || j->units != j->kept->nunits))
            fsck_problem(f, "job '%s': %s, with %u of %u units", j->name,
                         j->found ? "in the catalog" : "not in the catalog", j->units,
                         j->kept->nunits);
    }
    for (size_t i = 0; i < f->s.nversions; i++)
        if (!f->s.versions[i].found)
            fsck_problem(f, "version %llu of job '%s' is not in the catalog",
                         (ull)f->s.versions[i].version->id, f->s.jobs[f->s.versions[i].job].name);
    for (size_t i = 0; i < f->s.nrows; i++)
        if (f->s.rows[i].kept > 0 && !f->s.rows[i].found)
            fsck_problem(f, "row %llu is not in the catalog", (ull)f->s.rows[i].row->id);
    for (size_t i = 0; i < f->s.nsnaps; i++)
        if (!f->s.snaps[i].found)
            fsck_problem(f, "snapshot '%s' of job '%s' is not in the catalog",
                         f->s.snaps[i].snap->name, f->s.jobs[f->s.snaps[i].job].name);
}

void zsd_fsck_catalog(struct zsd_fsck_run *f)
{
    struct zn_catalog *catalog = f->core->store->catalog;
    struct zn_slot slot = zn_catalog_slot(catalog);
    struct zn_catalog_size size;
    struct zb_err err = { 0 };

    if (zn_catalog_verify(catalog, &err) < 0 ||
        zn_catalog_each(catalog, 1, UINT32_MAX, fsck_on_record, f, &err) < 0) {
        fsck_problem(f, "%s", err.text); /* dropped if the pass was stopped for a change */
        return;
    }
    fsck_missing(f);
    if (zn_catalog_size(catalog, &size, &err) < 0)
        fsck_problem(f, "%s", err.text);
    f->report.sequence = slot.sequence;
    if (slot.sequence != f->s.sequence)
        fsck_problem(f, "the catalog is at change %llu, and memory at %llu", (ull)slot.sequence,
                     (ull)f->s.sequence);
}
