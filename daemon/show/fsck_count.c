/*
 * fsck_count.c - the part of an fsck that counts everything again.
 *
 * MODEL. Runs on the catalog's thread after fsck_catalog.c. Reads the survey only. Counts the
 * versions that hold each row, the holders of each place, the places of each class, promises and
 * bookings, and the columns of df, and compares each count with the counter. If a place got or lost
 * a holder while the survey was taken, only rows in the catalog are counted as its holders, because
 * these did not change: the others are not known.
 */
#include "daemon/show/fsck_priv.h"

typedef unsigned long long ull;

void zsd_fsck_versions(struct zsd_fsck_run *f)
{
    for (size_t i = 0; i < f->s.nsnaps; i++)
        for (size_t n = 0; n < f->s.nversions; n++)
            if (f->s.versions[n].version == f->s.snaps[i].snap->version)
                f->s.versions[n].counted++;
    for (size_t i = 0; i < f->s.nversions; i++) {
        const struct zsd_survey_version *v = &f->s.versions[i];

        if (v->snapshots != v->counted)
            fsck_problem(f, "version %llu of job '%s' counts %u snapshots, and has %u",
                         (ull)v->version->id, f->s.jobs[v->job].name, v->snapshots, v->counted);
        for (uint32_t r = 0; r < v->version->nrows; r++) {
            struct zsd_survey_row *row = zsd_survey_row(&f->s, v->version->rows[r]->id);

            if (row)
                row->versions++;
        }
    }
    for (size_t i = 0; i < f->s.nrows; i++)
        if (f->s.rows[i].versions != f->s.rows[i].kept)
            fsck_problem(f, "row %llu counts %u versions, and %u have it",
                         (ull)f->s.rows[i].row->id, f->s.rows[i].kept, f->s.rows[i].versions);
}

/* Counts a holder of a place. kept: it is a row in the catalog. */
static void fsck_holder(struct zsd_fsck_run *f, uint64_t at, uint64_t bytes, bool kept)
{
    size_t i = zsd_survey_place(&f->s, at);

    if (!kept && zsd_survey_changed(&f->s, at))
        return;
    if (i == f->s.places.nplaces || f->s.places.places[i].bytes != bytes)
        fsck_problem(f, "a page of %llu bytes at %#llx has no place", (ull)bytes, (ull)at);
    else
        f->holders[i]++;
}

static void fsck_row_places(struct zsd_fsck_run *f, const struct zsd_survey_row *r)
{
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++)
        for (uint32_t i = 0; r->row->planes[p].block_bytes > 0 && i < r->pages; i++)
            fsck_holder(f, r->row->planes[p].extents[i].at, zsd_row_page_bytes(r->row, p, i),
                        r->kept > 0);
}

void zsd_fsck_places(struct zsd_fsck_run *f)
{
    const struct zsd_places_copy *c = &f->s.places;

    /* rows in the catalog first: the report has their bytes only */
    for (size_t i = 0; i < f->s.nrows; i++)
        if (f->s.rows[i].kept > 0)
            fsck_row_places(f, &f->s.rows[i]);
    for (size_t i = 0; i < c->nplaces; i++)
        f->report.bytes += f->holders[i] > 0 ? c->places[i].bytes : 0;
    for (size_t i = 0; i < f->s.nrows; i++)
        if (f->s.rows[i].kept == 0)
            fsck_row_places(f, &f->s.rows[i]);
    for (size_t i = 0; i < f->s.nworks; i++)
        fsck_holder(f, f->s.works[i].at, f->s.works[i].bytes, false);
}

/* The place of a page that is being written has one holder, although nothing points to it yet. */
static bool fsck_held_well(const struct zsd_fsck_run *f, const struct zsd_place_copy *place,
                           uint32_t counted)
{
    if (place->changed)
        return counted <= place->holders;
    return counted == place->holders || (counted == 0 && place->holders == 1 && f->s.moving);
}

void zsd_fsck_holders(struct zsd_fsck_run *f)
{
    const struct zsd_places_copy *c = &f->s.places;

    for (size_t i = 0; i < c->nplaces; i++)
        if (!fsck_held_well(f, &c->places[i], f->holders[i]))
            fsck_problem(f, "the place at %#llx counts %u holders, and has %u",
                         (ull)c->places[i].at, c->places[i].holders, f->holders[i]);
}

static uint64_t need_count(const struct zb_needs *p, uint64_t bytes)
{
    for (uint32_t i = 0; i < p->n; i++)
        if (p->needs[i].bytes == bytes)
            return p->needs[i].count;
    return 0;
}

void zsd_fsck_classes(struct zsd_fsck_run *f)
{
    const struct zsd_places_copy *c = &f->s.places;
    uint64_t taken = 0;

    for (uint32_t i = 0; i < c->nclasses; i++) {
        const struct zsd_class_copy *k = &c->classes[i];
        uint64_t held = 0, promised = need_count(&f->s.readers, k->bytes);

        for (size_t n = 0; n < c->nplaces; n++) {
            bool lost = f->s.absent >> ZN_AT_PATH(c->places[n].at) & 1;

            held += c->places[n].bytes == k->bytes;
            promised += lost && c->places[n].bytes == k->bytes; /* E4 of disk/extents.c */
        }
        for (size_t n = 0; n < f->s.njobs; n++)
            promised += need_count(&f->s.jobs[n].promise, k->bytes);
        if (k->total != k->nfree + held || k->promised != promised || k->total < k->promised)
            fsck_problem(
                f,
                "of places of %llu bytes there are %llu, %llu free and %llu in use; %llu are "
                "promised, to jobs and readers %llu",
                (ull)k->bytes, (ull)k->total, (ull)k->nfree, (ull)held, (ull)k->promised,
                (ull)promised);
        taken += k->total * k->bytes;
    }
    if (taken + f->s.free_bytes != f->s.map_bytes)
        fsck_problem(f, "%llu bytes are places, %llu are free, and the data files have %llu",
                     (ull)taken, (ull)f->s.free_bytes, (ull)f->s.map_bytes);
}

static uint64_t account_bytes(const struct zsd_account *a)
{
    uint64_t sum = 0;

    for (int use = 0; use < ZSD_USES; use++)
        sum += a->used[use];
    return sum;
}

void zsd_fsck_accounts(struct zsd_fsck_run *f)
{
    uint64_t booked = account_bytes(&f->s.readers_held);

    for (size_t i = 0; i < f->s.njobs; i++) {
        const struct zsd_survey_job *j = &f->s.jobs[i];

        if (account_bytes(&j->held) != zb_needs_bytes(&j->promise))
            fsck_problem(f, "job '%s' is promised %llu bytes, and %llu are booked", j->name,
                         (ull)zb_needs_bytes(&j->promise), (ull)account_bytes(&j->held));
        booked += account_bytes(&j->held);
    }
    if (account_bytes(&f->s.nvme) != booked)
        fsck_problem(f, "%llu bytes of NVMe are booked, of jobs and readers %llu",
                     (ull)account_bytes(&f->s.nvme), (ull)booked);
}

int zsd_fsck_df(struct zsd_fsck_run *f)
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
        fsck_problem(f, "df tells of %llu bytes, and the data files have %llu", (ull)sum,
                     (ull)f->s.total_bytes);
    return 0;
}
