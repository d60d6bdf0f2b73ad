/*
 * survey.c - see survey.h.
 *
 * DF. Every place that has a holder is counted once, in the first of the columns committed,
 * prepared, snapshots, working that holds it, of the first job by number. What a job is promised
 * beyond that is reserved. What nobody of these holds (an incarnation that ends, a reader of what
 * was destroyed) is of no job, as are the places that are left.
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

/* ---- taking it */

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
    int rc = 0;

    for (uint32_t i = 0; promise && i < promise->n && rc == 0; i++)
        rc = zb_needs_add(&to->promise, promise->needs[i].bytes, promise->needs[i].count);
    to->held = *held;
    return rc;
}

/* Its index + 1; of NULL 0. */
static uint32_t take_version(struct zsd_survey *s, uint32_t job, const struct zsd_version *v)
{
    if (!v)
        return 0;
    for (size_t i = s->nversions; i-- > 0 && s->versions[i].job == job;)
        if (s->versions[i].version == v)
            return (uint32_t)i + 1;
    memcpy(s->held + s->nheld, v->rows, v->nrows * sizeof(struct zsd_row *));
    s->versions[s->nversions++] = (struct zsd_survey_version){ .version = v,
                                                               .job = job,
                                                               .snapshots = v->snapshots,
                                                               .nrows = v->nrows,
                                                               .rows = s->held + s->nheld };
    s->nheld += v->nrows;
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

    if (job->durable)
        return 0; /* its saved side is there */
    j = &s->jobs[s->njobs++];
    j->number = job->number;
    j->uid = job->uid;
    memcpy(j->name, job->name, sizeof(j->name));
    return take_promise(j, job->promise, &job->nvme_held);
}

static void take_work(struct zsd_survey *s, uint64_t at, uint32_t bytes, uint32_t job)
{
    if (at != ZB_NO_PLACE)
        s->works[s->nworks++] = (struct zsd_survey_work){ .at = at, .bytes = bytes, .job = job };
}

static void take_works(struct zsd_survey *s, const struct zsd_job *job)
{
    uint32_t index = survey_job_at(s, job->number), pages = 0;
    const struct zsd_row *row;

    for (uint32_t i = 0; i < job->nshards; i++)
        for (int p = 0; p < ZB_PLANES; p++) {
            const struct zsd_shard *shard = job->shards[i];
            const struct zsd_extent *e = shard->planes[p].extents;

            for (uint32_t page = 0; e && page < shard->npages; page++) {
                take_work(s, e[page].at, zsd_page_bytes(shard, p, page), index);
                if (shard->held && shard->held[page])
                    take_work(s, zsd_held_at(shard->held[page], p), zsd_page_bytes(shard, p, page),
                              index);
            }
        }
    row = zsd_commit_row(job, &pages); /* a part of one holds its places already */
    for (int p = 0; row && p < ZSD_SAVED_PLANES; p++)
        for (uint32_t page = 0; row->planes[p].block_bytes > 0 && page < pages; page++)
            take_work(s, row->planes[p].extents[page].at, zsd_row_page_bytes(row, p, page), index);
}

static size_t works_count(const struct zsd_core *core)
{
    size_t n = 0;

    zb_list_each(pos, (struct zb_list *)(uintptr_t)&core->jobs->list)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);
        uint32_t pages;

        for (uint32_t i = 0; i < job->nshards; i++)
            n += (size_t)job->shards[i]->npages * ZB_PLANES * (job->shards[i]->held ? 2 : 1);
        if (zsd_commit_row(job, &pages))
            n += (size_t)pages * ZSD_SAVED_PLANES;
    }
    return n;
}

static int job_by_number(const void *a, const void *b)
{
    const struct zsd_survey_job *x = a, *y = b;

    return (x->number > y->number) - (x->number < y->number);
}

/* What its versions hold, with those of several snapshots so many times. */
static size_t held_count(const struct zsd_saved *saved)
{
    size_t n = (saved->committed ? saved->committed->nrows : 0) +
               (saved->prepared ? saved->prepared->nrows : 0);

    zb_list_each(pos, (struct zb_list *)(uintptr_t)&saved->snaps)
        n += zb_container_of(pos, struct zsd_snap, node)->version->nrows;
    return n;
}

static int take_arrays(struct zsd_core *core, struct zsd_survey *s)
{
    const struct zsd_store *store = core->store;
    size_t snaps = 0, held = 0, saved = list_length(&store->saved);

    zb_list_each(pos, (struct zb_list *)(uintptr_t)&store->saved)
    {
        const struct zsd_saved *one = zb_container_of(pos, struct zsd_saved, node);

        snaps += list_length(&one->snaps);
        held += held_count(one);
    }
    s->held = take_array(held, sizeof(struct zsd_row *));
    s->jobs = take_array(saved + list_length(&core->jobs->list), sizeof(*s->jobs));
    s->rows = take_array(list_length(&store->rows), sizeof(*s->rows));
    s->versions = take_array(snaps + 2 * saved, sizeof(*s->versions));
    s->snaps = take_array(snaps, sizeof(*s->snaps));
    s->works = take_array(works_count(core), sizeof(*s->works));
    return s->jobs && s->rows && s->versions && s->snaps && s->works && s->held ? 0 : -ENOMEM;
}

static void take_numbers(const struct zsd_core *core, struct zsd_survey *s)
{
    const struct zsd_store *store = core->store;

    s->nvme = core->tiers.nvme;
    s->map_bytes = zsd_map_total_bytes(core);
    s->free_bytes = zsd_map_free_bytes(core);
    for (unsigned i = 0; i < zsd_paths(core->daemon); i++)
        s->total_bytes += zn_info(zsd_path_engine(core->daemon, i))->size_bytes;
    s->boot = store->boot;
    s->next_id = store->next_id;
    s->next_job = core->next_job;
    s->sequence = store->sequence;
}

int zsd_survey_take(struct zsd_core *core, struct zsd_survey *s, struct zb_err *err)
{
    int rc;

    *s = (struct zsd_survey){ 0 };
    core->scans->surveys++;
    zsd_leaving_all(core); /* what is leaving holds places, and is in no list */
    rc = take_arrays(core, s);
    if (rc == 0)
        rc = zsd_places_copy(core, &s->places);
    if (rc == 0)
        rc = zsd_readers_promised(core, &s->readers, &s->readers_held);
    zb_list_each(pos, &core->store->saved)
    {
        if (rc == 0)
            rc = take_saved(s, zb_container_of(pos, struct zsd_saved, node));
    }
    zb_list_each(pos, &core->jobs->list)
    {
        if (rc == 0)
            rc = take_job(s, zb_container_of(pos, struct zsd_job, node));
    }
    if (rc < 0) {
        zsd_survey_done(s);
        return zb_fail(err, rc, "counting the stored pages: %m");
    }
    qsort(s->jobs, s->njobs, sizeof(*s->jobs), job_by_number);
    for (uint32_t i = 0; i < s->njobs; i++)
        take_versions(s, i);
    zb_list_each(pos, &core->jobs->list)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        take_works(s, job);
        s->moving = s->moving || job->inflight > 0;
    }
    zb_list_each(pos, &core->store->rows)
    {
        struct zsd_row *row = zb_container_of(pos, struct zsd_row, node);

        zsd_row_look(row);
        s->rows[s->nrows++] = (struct zsd_survey_row){ .row = row, .kept = row->kept };
    }
    take_numbers(core, s);
    return 0;
}

void zsd_survey_done(struct zsd_survey *s)
{
    for (size_t i = 0; i < s->nrows; i++)
        zsd_row_look_away(s->rows[i].row);
    for (size_t i = 0; i < s->njobs; i++)
        zb_needs_done(&s->jobs[i].promise);
    zb_needs_done(&s->readers);
    zsd_places_copy_done(&s->places);
    free(s->jobs);
    free(s->rows);
    free(s->versions);
    free(s->snaps);
    free(s->works);
    free(s->held);
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

static int place_by_at(const void *a, const void *b)
{
    const struct zsd_place_copy *x = a, *y = b;

    return (x->at > y->at) - (x->at < y->at);
}

static int row_by_id(const void *a, const void *b)
{
    const struct zsd_survey_row *x = a, *y = b;

    return (x->row->id > y->row->id) - (x->row->id < y->row->id);
}

void zsd_survey_sort(struct zsd_survey *s)
{
    qsort(s->places.places, s->places.nplaces, sizeof(*s->places.places), place_by_at);
    qsort(s->rows, s->nrows, sizeof(*s->rows), row_by_id);
}

size_t zsd_survey_place(const struct zsd_survey *s, uint64_t at)
{
    const struct zsd_place_copy key = { .at = at };
    const struct zsd_place_copy *p =
        bsearch(&key, s->places.places, s->places.nplaces, sizeof(key), place_by_at);

    return p ? (size_t)(p - s->places.places) : s->places.nplaces;
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
    uint32_t *owners; /* of each place: index of a job + 1 */
};

/* Counts a place, unless somebody has it already. */
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

/* at: index + 1; 0: none */
static void df_version(struct df *df, uint32_t at, uint32_t job, uint64_t *column)
{
    const struct zsd_survey_version *v = at > 0 ? &df->s->versions[at - 1] : NULL;
    uint64_t *shared = &df->s->jobs[job].shared;

    for (uint32_t i = 0; v && i < v->nrows; i++)
        for (int p = 0; p < ZSD_SAVED_PLANES; p++) {
            const struct zsd_row *row = v->rows[i];

            for (uint32_t page = 0; row->planes[p].block_bytes > 0 && page < row->npages; page++)
                df_place(df, row->planes[p].extents[page].at, job, column, shared);
        }
}

/* What is promised and not held; a promise never counts more than there is. */
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
        for (; snap < s->nsnaps && s->snaps[snap].job == i; snap++) /* they are by job, too */
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
