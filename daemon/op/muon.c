/*
 * op/muon.c - the pages of a step whose matrices Muon orthogonalizes.
 *
 * MODEL. A matrix is needed as a whole, but it lies in pages, of shards of several ranks. All of them are in
 * this daemon (zsd_muon_whole()), so nothing is gathered. The step handles one unit after the
 * other:
 *
 *     page: COMPUTE, the momentum ---> HOLD ---------------------------> COMPUTE, the weights ---> WRITE
 *                     |                                                      ^
 *                     v                                                      |
 *           the matrices in fp32 ---> orthogonalized: op/ortho.h
 *
 * A page waits in HOLD until all of its matrices are orthogonalized. It may have parts of several
 * ones, and rows of a matrix may be in any page. The first pass stores its part of each matrix in the
 * job's own memory (plan/muon.h). When all pages of a matrix have done that, the matrix is
 * orthogonalized in place. The second pass reads it.
 *
 * BUFFERS. A streamed page keeps its buffer while it waits, so it is read and written once. These buffers are the
 * job's own: one for each page of a unit. So no page waits for a buffer that another waiting page
 * has, and all pages of a unit can begin at once.
 *
 * The same bits wherever the pages are, and however many threads there are: both passes are elementwise, and
 * kernels/ortho.h promises it for the rest.
 *
 * ENDS. If the job ends, the pages in HOLD end with its error. Tasks that run hold the job.
 */
#include "daemon/op/muon.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "daemon/op/ortho.h"
#include "daemon/op/step.h"
#include "daemon/page/pageop.h"
#include "daemon/plan/muon.h"
#include "daemon/run/turn.h"

/* A matrix of the unit in progress. */
struct progress {
    struct zsd_ortho ortho;
    struct zsd_muon *muon;
    uint32_t pages_left; /* that have not stored their part */
};

/* A page in HOLD. */
struct held {
    struct zsd_pageop *op;
    uint64_t first, end; /* elements of the unit */
    uint32_t waits;      /* for so many matrices */
};

struct zsd_muon {
    struct zsd_job *job;
    uint32_t unit; /* in progress; the number of units: all have begun */
    bool open;     /* what follows is set for it */
    const struct zk_matrix *matrices;
    uint32_t nmatrices;
    struct progress *progress; /* [nmatrices] */
    size_t progress_room;
    struct zb_sorted_pos shard; /* the next page to begin; its number in the unit is `slot` */
    uint32_t page, slot;
    struct held *held;
    uint32_t nheld;
    size_t held_room;
    struct zsd_orthos *orthos;
};

static const struct zsd_step_table *table_of(const struct zsd_job *job)
{
    return &job->step->table;
}

/* Whether elements [first, end) of the unit have some of the matrix. */
static bool overlaps(const struct zk_matrix *m, uint64_t first, uint64_t end)
{
    return m->first < end && m->first + m->count > first;
}

bool zsd_muon_page(const struct zsd_shard *s, uint32_t page)
{
    const struct zsd_step_table *t = table_of(s->job);
    uint64_t first = zsd_page_first(s, page), end = first + zsd_page_elems(s, page);

    if (!t->matrix_at)
        return false;
    for (uint32_t i = t->matrix_at[s->unit->index]; i < t->matrix_at[s->unit->index + 1]; i++)
        if (overlaps(&t->matrices[i], first, end))
            return true;
    return false;
}

/* ---- orthogonalizing */

/* Continues the pages that waited for this matrix alone. */
static void muon_on_ortho(struct zsd_ortho *o)
{
    struct progress *p = zb_container_of(o, struct progress, ortho);
    struct zsd_muon *m = p->muon;
    uint32_t n = 0;

    zsd_turn_count(m->job->core, m->nheld);
    for (uint32_t i = 0; i < m->nheld; i++) {
        struct held h = m->held[i];

        h.waits -= overlaps(o->matrix, h.first, h.end);
        if (h.waits == 0)
            zsd_pageop_resume(h.op, NULL);
        else
            m->held[n++] = h;
    }
    m->nheld = n;
}

/* ---- pages */

/* A page has done its first pass. */
static void muon_hold(void *owner, struct zsd_pageop *op, const struct zsd_page_spec *spec)
{
    struct zsd_job *job = owner;
    struct zsd_muon *m = job->muon;
    struct held *h = &m->held[m->nheld];

    if (job->state == ZSD_ENDED) {
        zsd_pageop_resume(op, &job->why);
        return;
    }
    *h = (struct held){ .op = op, .first = zsd_page_first(spec->shard, spec->page) };
    h->end = h->first + zsd_page_elems(spec->shard, spec->page);
    for (uint32_t i = 0; i < m->nmatrices; i++)
        if (overlaps(&m->matrices[i], h->first, h->end)) {
            h->waits++;
            m->progress[i].pages_left--;
        }
    m->nheld++;
    for (uint32_t i = 0; i < m->nmatrices; i++)
        if (overlaps(&m->matrices[i], h->first, h->end) && m->progress[i].pages_left == 0)
            zsd_ortho_start(m->orthos, &m->progress[i].ortho);
}

/* Number of pages of a shard that have elements of a matrix. */
static uint32_t pages_of(const struct zsd_shard *s, const struct zk_matrix *m)
{
    uint64_t from = zb_max_u64(m->first, s->first);
    uint64_t to = zb_min_u64(m->first + m->count, s->first + s->count);
    uint32_t page = s->job->core->page_elems;

    return from < to ? (uint32_t)((to - 1 - s->first) / page - (from - s->first) / page + 1) : 0;
}

/* Opens the unit: counts the pages of its matrices. 0 or -ENOMEM. */
static int unit_open(struct zsd_muon *m)
{
    const struct zsd_step_table *t = table_of(m->job);
    const struct zsd_unit *unit = m->job->units[m->unit];
    uint32_t pages = 0;
    const struct zsd_shard *s;

    m->matrices = t->matrices + t->matrix_at[m->unit];
    m->nmatrices = t->matrix_at[m->unit + 1] - t->matrix_at[m->unit];
    m->shard = zb_sorted_at(&unit->shards, 0);
    zb_sorted_each (s, pos, &unit->shards)
        pages += s->npages;
    if (zb_grow(&m->progress, &m->progress_room, 0, m->nmatrices) < 0 ||
        zb_grow(&m->held, &m->held_room, 0, pages) < 0)
        return -ENOMEM;
    for (uint32_t i = 0; i < m->nmatrices; i++) {
        m->progress[i] =
            (struct progress){ .ortho = { .matrix = &m->matrices[i], .done = muon_on_ortho },
                               .muon = m };
        zb_sorted_each (s, pos, &unit->shards)
            m->progress[i].pages_left += pages_of(s, &m->matrices[i]);
    }
    m->page = m->slot = m->nheld = 0;
    m->open = true;
    return 0;
}

int zsd_muon_begin(struct zsd_job *job)
{
    struct zsd_muon *m = job->muon;

    if (job->optimizer != ZB_MUON)
        return 0;
    if (!m) {
        m = calloc(1, sizeof(*m));
        if (!m)
            return -ENOMEM;
        m->orthos = zsd_orthos_new(job);
        if (!m->orthos) {
            free(m);
            return -ENOMEM;
        }
        m->job = job;
        job->muon = m;
    }
    m->unit = 0;
    m->open = false;
    return 0;
}

/* The next page of the open unit with a matrix, or NULL. */
static const struct zsd_shard *unit_next(struct zsd_muon *m)
{
    const struct zsd_unit *unit = m->job->units[m->unit];
    const struct zsd_shard *s;

    while ((s = zb_sorted_get(&unit->shards, m->shard)) != NULL) {
        for (; m->page < s->npages; m->page++, m->slot++) {
            if (zsd_muon_page(s, m->page))
                return s;
            zsd_turn_count(m->job->core, 1);
        }
        m->shard = zb_sorted_next(&unit->shards, m->shard);
        m->page = 0;
    }
    return NULL;
}

bool zsd_muon_next(struct zsd_job *job, uint32_t inflight, struct zsd_page_spec *spec)
{
    const struct zsd_muon_room *room = &job->muon_room;
    const struct zsd_step_table *t = table_of(job);
    struct zsd_muon *m = job->muon;
    const struct zsd_shard *s;

    for (; m && m->unit < job->nunits; m->unit++, m->open = false) {
        if (t->matrix_at[m->unit] == t->matrix_at[m->unit + 1])
            continue;
        if (!m->open && unit_open(m) < 0) {
            m->open = false;
            return false; /* as if the turn had no room: step.c notices that nothing is in flight */
        }
        s = unit_next(m);
        if (s) {
            spec->shard = (struct zsd_shard *)(uintptr_t)s;
            spec->page = m->page;
            spec->hold = muon_hold;
            spec->buffer = room->slots > 0
                               ? room->at + room->matrices_bytes + m->slot * room->slot_bytes
                               : NULL;
            return true;
        }
        if (inflight > 0)
            return false;
    }
    return false;
}

void zsd_muon_begun(struct zsd_job *job)
{
    job->muon->page++;
    job->muon->slot++;
}

bool zsd_muon_walked(const struct zsd_job *job)
{
    return !job->muon || job->muon->unit == job->nunits;
}

void zsd_muon_cancel(struct zsd_job *job, const struct zb_err *why)
{
    struct zsd_muon *m = job->muon;
    uint32_t n = m ? m->nheld : 0;

    if (m)
        m->nheld = 0;
    for (uint32_t i = 0; i < n; i++)
        zsd_pageop_resume(m->held[i].op, why);
}

void zsd_muon_free(struct zsd_muon *m)
{
    if (!m)
        return;
    free(m->progress);
    free(m->held);
    zsd_orthos_free(m->orthos);
    free(m);
}

/* ---- for those who ask */

void zsd_muon_row(const struct zsd_job *job, Zp__JobRow *row)
{
    row->muon_params = zsd_muon_elems(job->units, job->nunits);
    row->muon_bytes = job->muon_room.bytes;
    row->muon_engine = job->muon_engine;
    row->muon_gpu_bytes = job->muon_room.gpu_booked;
    if (!job->step->muon_known)
        return;
    row->muon_lr = job->step->muon.lr;
    row->muon_momentum = job->step->muon.momentum;
    row->muon_nesterov = job->step->muon.nesterov > 0;
    row->muon_scale = 1 + (uint32_t)job->step->muon.muon_scale;
}
