/*
 * survey.c - see survey.h.
 *
 * DF. Every place that has a holder is counted once. The versions of all jobs come first, by job
 * number, in the columns committed, prepared, snapshots; then the places that shards work with, in
 * working. The rest of a job's promise is reserved. Places with other holders belong to no job:
 * those of an incarnation that ends, of a reader of a destroyed job, or of a page that was written
 * again before the survey came to it. Free places that no job has reserved belong to no job, too.
 */
#include "daemon/show/survey.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "daemon/disk/leaving.h"
#include "daemon/disk/paths.h"
#include "daemon/job/shard.h"
#include "daemon/op/commit.h"
#include "daemon/op/reader.h"
#include "daemon/page/held.h"
#include "daemon/show/scans.h"
#include "daemon/store/drain.h"

/* ---- jobs and versions */

static size_t list_length(const struct zb_list *list)
{
    size_t n = 0;

    zb_list_each(pos, (struct zb_list *)(uintptr_t)list) n++;
    return n;
}

static void *take_array(size_t n, size_t size)
{
    return calloc(zb_max_u64(n, 1), size);
}

static int take_promise(struct zsd_survey_job *to, const struct zb_needs *promise,
                        const struct zsd_account *held)
{
    to->held = *held;
    return promise ? zb_needs_sum(&to->promise, promise, 1) : 0;
}

/* Adds a version, if it is new. Its index + 1; 0 if v is NULL. */
static uint32_t take_version(struct zsd_survey *s, uint32_t job, struct zsd_version *v)
{
    if (!v)
        return 0;
    for (size_t i = s->nversions; i-- > 0 && s->versions[i].job == job;)
        if (s->versions[i].version == v)
            return (uint32_t)i + 1;
    zsd_version_look(v);
    s->versions[s->nversions++] =
        (struct zsd_survey_version){ .version = v, .job = job, .snapshots = v->snapshots };
    return (uint32_t)s->nversions;
}

static int take_saved(struct zsd_survey *s, const struct zsd_saved *saved)
{
    struct zsd_survey_job *j = &s->jobs[s->njobs++];

    j->number = saved->number;
    j->uid = saved->uid;
    memcpy(j->name, saved->name, sizeof(j->name));
    j->kept = zsd_saved_kept(saved) && !saved->gone ? saved : NULL;
    return take_promise(j, &saved->promise, &saved->nvme_held);
}

static void take_versions(struct zsd_survey *s, uint32_t index)
{
    const struct zsd_saved *saved = s->jobs[index].kept;

    if (!saved)
        return;
    s->jobs[index].committed_at = take_version(s, index, saved->committed);
    s->jobs[index].prepared_at = take_version(s, index, saved->prepared);
    zb_list_each(pos, (struct zb_list *)(uintptr_t)&saved->snaps)
    {
        const struct zsd_snap *snap = zb_container_of(pos, struct zsd_snap, node);

        s->snaps[s->nsnaps++] = (struct zsd_survey_snap){
            .snap = snap, .job = index, .version = take_version(s, index, snap->version) - 1
        };
    }
}

static uint32_t survey_job_at(const struct zsd_survey *s, uint32_t number)
{
    uint32_t i = 0;

    while (i < s->njobs && s->jobs[i].number != number)
        i++;
    return i;
}

static int take_job(struct zsd_survey *s, const struct zsd_job *job)
{
    struct zsd_survey_job *j;

    if (job->saved && job->promise == &job->saved->promise)
        return 0; /* its saved job is in the list */
    j = &s->jobs[s->njobs++];
    j->number = job->number;
    j->uid = job->uid;
    memcpy(j->name, job->name, sizeof(j->name));
    return take_promise(j, job->promise, &job->nvme_held);
}

static int job_by_number(const void *a, const void *b)
{
    const struct zsd_survey_job *x = a, *y = b;

    return (x->number > y->number) - (x->number < y->number);
}

static int take_arrays(struct zsd_core *core, struct zsd_survey *s)
{
    const struct zsd_store *store = core->store;
    size_t snaps = 0, saved = list_length(&store->saved);

    zb_list_each(pos, (struct zb_list *)(uintptr_t)&store->saved)
    {
        snaps += list_length(&zb_container_of(pos, struct zsd_saved, node)->snaps);
    }
    s->jobs = take_array(saved + list_length(&core->jobs->list), sizeof(*s->jobs));
    s->versions = take_array(snaps + 2 * saved, sizeof(*s->versions));
    s->snaps = take_array(snaps, sizeof(*s->snaps));
    return s->jobs && s->versions && s->snaps ? 0 : -ENOMEM;
}

static void take_numbers(const struct zsd_core *core, struct zsd_survey *s)
{
    const struct zsd_store *store = core->store;

    s->nvme = core->tiers.nvme;
    s->map_bytes = zsd_map_total_bytes(core);
    s->free_bytes = zsd_map_free_bytes(core);
    for (unsigned i = 0; i < zsd_paths(core->daemon); i++)
        s->total_bytes += zn_info(zsd_path_engine(core->daemon, i))->size_bytes;
    s->total_bytes += core->disk->lost_bytes;
    for (unsigned i = 0; i < ZN_PATHS_MAX; i++)
        s->absent |= (unsigned)zsd_place_lost(core->daemon, ZN_AT(i, 0)) << i;
    s->boot = store->boot;
    s->next_id = store->next_id;
    s->sequence = store->sequence;
}

/* Copies everything that is short, and begins the rest. */
static int take_begin(struct zsd_core *core, struct zsd_survey *s)
{
    int rc;

    core->scans->surveys++;
    rc = take_arrays(core, s);
    if (rc == 0)
        rc = zsd_places_copy_begin(core, &s->places);
    if (rc == 0)
        rc = zsd_readers_promised(core, &s->readers, &s->readers_held);
    if (rc == 0)
        rc = zsd_drain_promised(core, &s->readers, &s->readers_held);
    zb_list_each(pos, &core->store->saved)
    {
        if (rc == 0)
            rc = take_saved(s, zb_container_of(pos, struct zsd_saved, node));
    }
    zb_list_each(pos, &core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        job->surveyed[s->what] = false;
        if (rc == 0)
            rc = take_job(s, job);
    }
    if (rc < 0)
        return rc;
    qsort(s->jobs, s->njobs, sizeof(*s->jobs), job_by_number);
    for (uint32_t i = 0; i < s->njobs; i++)
        take_versions(s, i);
    take_numbers(core, s);
    if (s->what == ZSD_SURVEY_FSCK)
        zsd_row_walk_begin(core->store, &s->walk);
    return 0;
}

/* ---- places that shards work with */

static int take_work(struct zsd_survey *s, uint64_t at, uint32_t bytes, uint32_t job)
{
    if (at == ZB_NO_PLACE)
        return 0;
    if (zb_grow(&s->works, &s->works_room, s->nworks, 1) < 0)
        return -ENOMEM;
    s->works[s->nworks++] = (struct zsd_survey_work){ .at = at, .bytes = bytes, .job = job };
    return 0;
}

static int take_page(struct zsd_survey *s, const struct zsd_shard *shard, uint32_t page,
                     uint32_t job)
{
    const struct zsd_held *held = shard->held ? shard->held[page] : NULL;
    int rc = 0;

    for (int p = 0; p < ZB_PLANES && rc == 0; p++) {
        const struct zsd_extent *e = shard->planes[p].extents;
        uint32_t bytes = (uint32_t)zsd_page_bytes(shard, p, page);

        if (e)
            rc = take_work(s, e[page].at, bytes, job);
        if (e && held && rc == 0)
            rc = take_work(s, zsd_held_at(held, p), bytes, job);
    }
    return rc;
}

static bool shard_places(const struct zsd_shard *shard)
{
    bool some = false;

    for (int p = 0; p < ZB_PLANES; p++)
        some = some || shard->planes[p].extents;
    return some;
}

/* Takes the next pages of the job. 0: all are taken; 1: call again; -ENOMEM. */
static int take_job_works(struct zsd_survey *s, const struct zsd_job *job, uint64_t *left)
{
    uint32_t index = survey_job_at(s, job->number);
    int rc = 0;

    s->moving = s->moving || job->inflight > 0;
    for (; *left > 0 && s->at_shard < job->nshards; s->at_shard++, s->at_page = 0, --*left) {
        const struct zsd_shard *shard = job->shards[s->at_shard];

        if (!shard_places(shard))
            continue;
        for (; *left > 0 && s->at_page < shard->npages && rc == 0; s->at_page++, --*left)
            rc = take_page(s, shard, s->at_page, index);
        if (rc < 0)
            return rc;
        if (s->at_page < shard->npages || *left == 0)
            return 1;
    }
    return s->at_shard < job->nshards;
}

/* Takes the next pages of all jobs. Returns the same. New jobs are added at the end of the list. */
static int take_works(struct zsd_core *core, struct zsd_survey *s, uint64_t *left)
{
    zb_list_each(pos, &core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);
        int rc;

        if (job->surveyed[s->what])
            continue;
        if (job != s->at_job)
            s->at_shard = s->at_page = 0;
        s->at_job = job;
        rc = take_job_works(s, job, left);
        if (rc != 0)
            return rc;
        job->surveyed[s->what] = true;
    }
    return 0;
}

/* ---- rows */

static int take_row(struct zsd_survey *s, struct zsd_row *row, uint32_t pages)
{
    if (zb_grow(&s->rows, &s->rows_room, s->nrows, 1) < 0)
        return -ENOMEM;
    zsd_row_look(row);
    s->rows[s->nrows++] = (struct zsd_survey_row){ .row = row, .pages = pages, .kept = row->kept };
    return 0;
}

/* Rows that commits are building: they hold places, and are not in store->rows yet. */
static int take_partial_rows(struct zsd_core *core, struct zsd_survey *s)
{
    int rc = 0;

    zb_list_each(pos, &core->jobs->list)
    {
        uint32_t pages;
        const struct zsd_row *row =
            zsd_commit_row(zb_container_of(pos, struct zsd_job, node), &pages);

        if (row && rc == 0)
            rc = take_row(s, (struct zsd_row *)(uintptr_t)row, pages);
    }
    return rc;
}

/* Takes the next rows. 0: all are taken, and nothing is leaving; 1: call again; -ENOMEM. */
static int take_rows(struct zsd_core *core, struct zsd_survey *s, uint64_t *left)
{
    for (; *left > 0; --*left) {
        struct zsd_row *row = zsd_row_walk_next(&s->walk);

        if (!row && !zb_list_empty(&core->disk->leaving))
            return 1;
        if (!row)
            return take_partial_rows(core, s);
        if (row->refs > 0 && take_row(s, row, row->npages) < 0) /* else it is leaving */
            return -ENOMEM;
    }
    return 1;
}

/* ---- in parts */

/* Continues the current part. 0: the part is complete; 1: call again; -ENOMEM. */
static int take_part(struct zsd_core *core, struct zsd_survey *s, uint64_t *left)
{
    int rc;

    switch (s->part) {
    case SURVEY_LEAVE:
        return zb_list_empty(&core->disk->leaving) ? take_begin(core, s) : 1;
    case SURVEY_PLACES:
        return !zsd_places_copy_part(core, &s->places, left);
    case SURVEY_WORKS:
        return take_works(core, s, left);
    case SURVEY_ROWS:
        rc = s->what == ZSD_SURVEY_FSCK ? take_rows(core, s, left) : 0;
        return rc == 0 ? zsd_places_copy_end(&s->places) : rc;
    case SURVEY_TAKEN:
        break;
    }
    return 0;
}

int zsd_survey_take(struct zsd_core *core, struct zsd_survey *s, struct zb_err *err)
{
    uint64_t most = zsd_turn_left(core), left = most;
    int rc = 0;

    while (rc == 0 && s->part != SURVEY_TAKEN) {
        rc = take_part(core, s, &left);
        if (rc == 0)
            s->part = (enum zsd_survey_part)(s->part + 1);
    }
    zsd_turn_count(core, most - left);
    return rc < 0 ? zb_fail(err, rc, "counting the stored pages: %m") : rc;
}

bool zsd_survey_look_away(struct zsd_core *core, struct zsd_survey *s)
{
    uint64_t n = zb_min_u64(zsd_turn_left(core), s->nrows);

    zsd_turn_count(core, n);
    for (; n > 0; n--)
        zsd_row_look_away(s->rows[--s->nrows].row);
    return s->nrows == 0;
}

void zsd_survey_done(struct zsd_survey *s)
{
    zsd_row_walk_end(&s->walk);
    for (size_t i = 0; i < s->nrows; i++)
        zsd_row_look_away(s->rows[i].row);
    for (size_t i = 0; i < s->nversions; i++)
        zsd_version_look_away(s->versions[i].version);
    for (size_t i = 0; i < s->njobs; i++)
        zb_needs_done(&s->jobs[i].promise);
    zb_needs_done(&s->readers);
    zsd_places_copy_done(&s->places);
    free(s->jobs);
    free(s->rows);
    free(s->versions);
    free(s->snaps);
    free(s->works);
    *s = (struct zsd_survey){ 0 };
}

void zsd_survey_trim(struct zsd_survey *s)
{
    struct zsd_survey sums = *s;

    for (size_t i = 0; i < s->njobs; i++) {
        zb_needs_done(&s->jobs[i].promise);
        s->jobs[i].kept = NULL;
    }
    s->jobs = NULL;
    s->njobs = 0;
    zsd_survey_done(s);
    s->jobs = sums.jobs;
    s->njobs = sums.njobs;
    s->total_bytes = sums.total_bytes;
    s->map_bytes = sums.map_bytes;
    s->free_bytes = sums.free_bytes;
    s->other_working = sums.other_working;
    s->other_reserved = sums.other_reserved;
}

/* ---- counting */

static int row_by_id(const void *a, const void *b)
{
    const struct zsd_survey_row *x = a, *y = b;

    return (x->row->id > y->row->id) - (x->row->id < y->row->id);
}

int zsd_survey_sort(struct zsd_survey *s)
{
    if (s->nrows > 0)
        qsort(s->rows, s->nrows, sizeof(*s->rows), row_by_id);
    return zsd_places_copy_sort(&s->places);
}

size_t zsd_survey_place(const struct zsd_survey *s, uint64_t at)
{
    size_t i;

    zb_lower_bound(i, s->places.nplaces, s->places.places[i].at < at);
    return i < s->places.nplaces && s->places.places[i].at == at ? i : s->places.nplaces;
}

struct zsd_survey_row *zsd_survey_row(struct zsd_survey *s, uint64_t id)
{
    size_t at;

    zb_lower_bound(at, s->nrows, s->rows[at].row->id < id);
    return at < s->nrows && s->rows[at].row->id == id ? &s->rows[at] : NULL;
}

/* ---- df */

struct df {
    struct zsd_survey *s;
    uint32_t *owners; /* of each place: index of a job + 1; 0: not counted yet */
};

/* Counts a place in *column, or in *shared if it was counted for another job. */
static void df_place(struct df *df, uint64_t at, uint32_t job, uint64_t *column, uint64_t *shared)
{
    size_t i = zsd_survey_place(df->s, at);

    if (i == df->s->places.nplaces || df->owners[i] == job + 1)
        return;
    if (df->owners[i] != 0) {
        *shared += df->s->places.places[i].bytes;
        return;
    }
    df->owners[i] = job + 1;
    *column += df->s->places.places[i].bytes;
}

/* Counts the places of a version. at: its index + 1; 0: none. */
static void df_version(struct df *df, uint32_t at, uint32_t job, uint64_t *column)
{
    const struct zsd_version *v = at > 0 ? df->s->versions[at - 1].version : NULL;
    uint64_t *shared = &df->s->jobs[job].shared;

    for (uint32_t i = 0; v && i < v->nrows; i++)
        for (int p = 0; p < ZSD_SAVED_PLANES; p++) {
            const struct zsd_row *row = v->rows[i];

            for (uint32_t page = 0; row->planes[p].block_bytes > 0 && page < row->npages; page++)
                df_place(df, row->planes[p].extents[page].at, job, column, shared);
        }
}

/* Promised places that are not held: of all jobs together at most the free places. */
static void df_reserved(struct zsd_survey *s)
{
    uint64_t left = 0;

    for (uint32_t i = 0; i < s->places.nclasses; i++)
        left += s->places.classes[i].nfree * s->places.classes[i].bytes;
    for (size_t i = 0; i < s->njobs; i++) {
        struct zsd_survey_job *j = &s->jobs[i];
        uint64_t has = j->committed + j->prepared + j->snapshots + j->working;
        uint64_t promised = zb_needs_bytes(&j->promise);

        j->reserved = zb_min_u64(promised > has ? promised - has : 0, left);
        left -= j->reserved;
    }
    s->other_reserved = left;
}

int zsd_survey_df(struct zsd_survey *s)
{
    struct df df = { s, calloc(zb_max_u64(s->places.nplaces, 1), sizeof(uint32_t)) };
    uint64_t ignored = 0;
    size_t snap = 0;

    if (!df.owners)
        return -ENOMEM;
    for (uint32_t i = 0; i < s->njobs; i++) {
        struct zsd_survey_job *j = &s->jobs[i];

        df_version(&df, j->committed_at, i, &j->committed);
        df_version(&df, j->prepared_at, i, &j->prepared);
        for (; snap < s->nsnaps && s->snaps[snap].job == i; snap++) /* sorted by job, too */
            df_version(&df, s->snaps[snap].version + 1, i, &j->snapshots);
    }
    for (size_t i = 0; i < s->nworks; i++)
        if (s->works[i].job < s->njobs)
            df_place(&df, s->works[i].at, s->works[i].job, &s->jobs[s->works[i].job].working,
                     &ignored);
    for (size_t i = 0; i < s->places.nplaces; i++)
        if (df.owners[i] == 0)
            s->other_working += s->places.places[i].bytes;
    free(df.owners);
    df_reserved(s);
    return 0;
}
