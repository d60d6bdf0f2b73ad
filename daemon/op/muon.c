/*
 * op/muon.c - the pages of a step whose matrices Muon orthogonalizes.
 *
 * MODEL. A matrix is needed as a whole, but it lies in pages, of shards of several ranks. All of them are in
 * this daemon (zsd_muon_whole()), so nothing is gathered:
 *
 *     page: COMPUTE, the momentum ---> HOLD ---------------------------> COMPUTE, the weights ---> WRITE
 *                     |                                                      ^
 *                     v                                                      |
 *           the matrices in fp32 ---> orthogonalized: op/ortho.h
 *
 * A page waits in HOLD until all of its matrices are orthogonalized. It may have parts of several
 * ones, and rows of a matrix may be in any page. The first pass stores its part of each matrix in the
 * job's own memory (base/muon.h). When all pages of a matrix have done that, the matrix is
 * orthogonalized in place. The second pass reads it. A page continues as soon as its own matrices are done.
 *
 * THE WALK. Pages begin unit by unit, in the order of elements in a unit, and as far as the job's room reaches:
 *
 *     matrices:   free | being written | orthogonalized | being read | not begun
 *                      ^ freed                          ^ walk       ^ taken
 *
 * So while a matrix is orthogonalized, pages of the next ones are read, also those of the next unit, and pages of the
 * last ones are written. A matrix takes its memory, from a ring, when its first page begins, and frees it when
 * its last page has ended, in the same order. A streamed page takes a page buffer of the job's own (a slot)
 * until it ends, so it is read and written once.
 *
 * EARLY STEPS (op/early.c). A unit may be offered before the step runs, when all its gradients are there. Then its pages
 * that can be stepped early begin, the newest unit first:
 *
 *     offered ---> [the newest] ---> its EARLY pages ---> next unit           the step runs: all that is left, in order
 *
 * A page can, if all pages of its matrices can, of the matrices that share a page with these, and so on: then
 * the others (state in memory, which could not be undone) are not waited for. When the step runs, the unit in progress is
 * ended first. So matrices take memory in one order, and a matrix's pages are never apart in it.
 *
 * NO DEADLOCK. Only this walk takes from the room, so jobs do not wait for each other. base/muon.h says why the least
 * room is enough for one job. Pages in HOLD wait for compute threads alone, and for no rank.
 *
 * The same bits wherever the pages are, and however many threads there are: both passes are elementwise, and
 * kernels/ortho.h promises it for the rest.
 *
 * ENDS. If the job ends, or early steps are dropped, or one of their pages fails, zsd_muon_stop() ends the pages in HOLD
 * with that error: those of a matrix that a task is using, when it has ended. No page begins any more. So when no page
 * is in flight, nothing uses the room or the step's table.
 */
#include "daemon/op/muon.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "daemon/op/ortho.h"
#include "daemon/op/step.h"
#include "daemon/page/held.h"
#include "daemon/page/pageop.h"
#include "daemon/plan/muon.h"
#include "daemon/run/turn.h"

/* A matrix of the step. */
struct progress {
    struct zsd_ortho ortho;
    struct zsd_muon *muon;
    uint32_t pages_left; /* that have not stored their part */
    uint32_t pages_open; /* that have not ended */
    bool taken, done;    /* it has its memory; it is orthogonalized */
    bool early;          /* all its pages can be stepped early */
    uint64_t at, end;    /* its memory in the ring */
};

/* Matrices of the step's table, by number. */
struct range {
    uint32_t first, end;
};

/* A page in HOLD. */
struct held {
    struct zsd_pageop *op;
    struct range matrices;
    uint32_t waits; /* for so many of them */
};

enum muon_unit {
    UNIT_LATE,
    UNIT_OFFERED,
    UNIT_EARLY
}; /* early: its walk has begun before the step */

struct zsd_muon {
    struct zsd_job *job;
    struct zsd_orthos *orthos;
    /* the walk: the next page to begin */
    bool all;      /* the step runs */
    uint32_t next; /* all: units before it have been walked */
    uint32_t unit; /* the one in progress; the number of units: none */
    bool early;    /* it is walked for its early pages, else for all others */
    struct zb_sorted_pos shard;
    uint32_t page;
    uint8_t *units;    /* [nunits] enum muon_unit */
    uint32_t *offered; /* [nunits] the units that wait, the newest last */
    uint32_t noffered;
    /* matrices of the table; order[freed, taken) have memory */
    struct progress *matrices;
    uint32_t *order; /* in which they took it */
    size_t matrices_room, order_room;
    uint32_t freed, taken;
    uint32_t undone; /* in that order, the first that is not orthogonalized */
    uint32_t pages;  /* that have begun and not ended */
    uint32_t *slots; /* the free ones */
    size_t slots_room;
    uint32_t nslots;
    struct held *held;
    uint32_t nheld;
    size_t held_room;
    bool stopped; /* ENDS */
    struct zb_err why;
};

static const struct zsd_step_table *table_of(const struct zsd_job *job)
{
    return &job->step->table;
}

/* The matrices of which a page has elements. */
static struct range range_of(const struct zsd_shard *s, uint32_t page)
{
    const struct zsd_step_table *t = table_of(s->job);
    uint64_t first = zsd_page_first(s, page), end = first + zsd_page_elems(s, page);
    uint32_t base = t->matrix_at[s->unit->index], n = t->matrix_at[s->unit->index + 1] - base;
    const struct zk_matrix *m = t->matrices + base;
    size_t low, high;

    zb_lower_bound(low, n, m[low].first + m[low].count <= first);
    zb_lower_bound(high, n, m[high].first < end);
    return (struct range){ base + (uint32_t)low, base + (uint32_t)zb_max_u64(low, high) };
}

bool zsd_muon_page(const struct zsd_shard *s, uint32_t page)
{
    struct range r;

    if (!table_of(s->job)->matrix_at)
        return false;
    r = range_of(s, page);
    return r.first < r.end;
}

bool zsd_muon_unit(const struct zsd_unit *unit, const struct zsd_job *job)
{
    const uint32_t *at = table_of(job)->matrix_at;

    return at && at[unit->index] < at[unit->index + 1];
}

bool zsd_muon_early(const struct zsd_shard *s, uint32_t page)
{
    const struct zsd_muon *m = s->job->muon;

    return m && m->units[s->unit->index] == UNIT_EARLY &&
           m->matrices[range_of(s, page).first].early;
}

/* ---- memory of matrices */

/* A place in the ring. UINT64_MAX: it is not free yet. */
static uint64_t ring_find(const struct zsd_muon *m, uint64_t bytes)
{
    uint64_t room = m->job->muon_room.matrices_bytes;
    const struct progress *oldest, *last;

    if (m->freed == m->taken)
        return bytes <= room ? 0 : UINT64_MAX;
    oldest = &m->matrices[m->order[m->freed]];
    last = &m->matrices[m->order[m->taken - 1]];
    if (last->at < oldest->at) /* it has wrapped */
        return last->end + bytes <= oldest->at ? last->end : UINT64_MAX;
    if (last->end + bytes <= room)
        return last->end;
    return bytes <= oldest->at ? 0 : UINT64_MAX;
}

/* Number of pages of a shard that have elements of a matrix. */
static uint32_t pages_of(const struct zsd_shard *s, const struct zk_matrix *m)
{
    uint64_t from = zb_max_u64(m->first, s->first);
    uint64_t to = zb_min_u64(m->first + m->count, s->first + s->count);
    uint32_t page = s->job->core->page_elems;

    return from < to ? (uint32_t)((to - 1 - s->first) / page - (from - s->first) / page + 1) : 0;
}

static void muon_on_ortho(struct zsd_ortho *o);

/* Gives memory to these matrices of a unit, as far as they have none. False: some have none yet. */
static bool ring_take(struct zsd_muon *m, const struct zsd_unit *unit, struct range r)
{
    for (uint32_t i = r.first; i < r.end; i++) {
        struct zk_matrix *matrix = &table_of(m->job)->matrices[i];
        uint64_t bytes = zb_matrix_bytes(matrix->count), at;
        struct progress *p = &m->matrices[i];
        const struct zsd_shard *s;

        if (p->taken)
            continue;
        at = ring_find(m, bytes);
        if (at == UINT64_MAX)
            return false;
        matrix->at = (float *)(void *)(m->job->muon_at + at);
        *p = (struct progress){ .ortho = { .matrix = matrix, .done = muon_on_ortho },
                                .muon = m,
                                .taken = true,
                                .early = p->early,
                                .at = at,
                                .end = at + bytes };
        zb_sorted_each (s, pos, &unit->shards)
            p->pages_left += pages_of(s, matrix);
        p->pages_open = p->pages_left;
        m->order[m->taken++] = i;
    }
    return true;
}

/* ---- pages */

/* STOP. Ends the pages in HOLD whose matrices no task is using. */
static void held_release(struct zsd_muon *m)
{
    uint32_t n = 0;

    zsd_turn_count(m->job->core, m->nheld);
    for (uint32_t i = 0; i < m->nheld; i++) {
        struct held h = m->held[i];
        bool used = false;

        for (uint32_t k = h.matrices.first; k < h.matrices.end; k++)
            used = used || zsd_ortho_busy(m->orthos, &m->matrices[k].ortho);
        if (used)
            m->held[n++] = h;
        else
            zsd_pageop_resume(h.op, &m->why);
    }
    m->nheld = n;
}

/* Continues the pages that waited for this matrix alone. */
static void muon_on_ortho(struct zsd_ortho *o)
{
    struct progress *p = zb_container_of(o, struct progress, ortho);
    struct zsd_muon *m = p->muon;
    uint32_t n = 0, index = (uint32_t)(p - m->matrices);

    if (m->stopped) {
        held_release(m);
        return;
    }
    p->done = true;
    while (m->undone < m->taken && m->matrices[m->order[m->undone]].done)
        m->undone++;
    zsd_turn_count(m->job->core, m->nheld);
    for (uint32_t i = 0; i < m->nheld; i++) {
        struct held h = m->held[i];

        h.waits -= h.matrices.first <= index && index < h.matrices.end;
        if (h.waits == 0)
            zsd_pageop_resume(h.op, NULL);
        else
            m->held[n++] = h;
    }
    m->nheld = n;
}

/* A page has done its first pass. */
static void muon_hold(void *owner, struct zsd_pageop *op, const struct zsd_page_spec *spec)
{
    struct range r = range_of(spec->shard, spec->page);
    struct zsd_muon *m = spec->shard->job->muon;

    (void)owner;
    if (m->stopped) {
        zsd_pageop_resume(op, &m->why);
        return;
    }
    m->held[m->nheld++] = (struct held){ .op = op, .matrices = r, .waits = r.end - r.first };
    for (uint32_t i = r.first; i < r.end; i++)
        if (--m->matrices[i].pages_left == 0)
            zsd_ortho_start(m->orthos, &m->matrices[i].ortho);
}

static struct zsd_muon *muon_new(struct zsd_job *job)
{
    struct zsd_muon *m = calloc(1, sizeof(*m));

    if (!m)
        return NULL;
    m->job = job;
    m->orthos = zsd_orthos_new(job);
    m->units = calloc(zb_max_u64(job->nunits, 1), sizeof(*m->units));
    m->offered = calloc(zb_max_u64(job->nunits, 1), sizeof(*m->offered));
    if (m->orthos && m->units && m->offered)
        return m;
    zsd_muon_free(m);
    return NULL;
}

int zsd_muon_begin(struct zsd_job *job)
{
    struct zsd_muon *m = job->muon;
    uint32_t nslots = job->muon_room.slots, n;

    if (job->optimizer != ZB_MUON)
        return 0;
    if (!m)
        m = job->muon = muon_new(job);
    n = table_of(job)->matrix_at[job->nunits];
    if (!m || zb_grow(&m->matrices, &m->matrices_room, 0, n) < 0 ||
        zb_grow(&m->order, &m->order_room, 0, n) < 0 ||
        zb_grow(&m->slots, &m->slots_room, 0, nslots) < 0)
        return -ENOMEM;
    assert(m->pages == 0 && m->nheld == 0);
    for (m->nslots = 0; m->nslots < nslots; m->nslots++)
        m->slots[m->nslots] = nslots - 1 - m->nslots;
    if (n > 0)
        memset(m->matrices, 0, n * sizeof(*m->matrices));
    memset(m->units, UNIT_LATE, job->nunits);
    m->unit = job->nunits;
    m->next = m->noffered = m->freed = m->taken = m->undone = 0;
    m->all = m->stopped = false;
    m->why = (struct zb_err){ 0 };
    zsd_orthos_share(m->orthos, true);
    return 0;
}

/* ---- units that are offered */

/* Whether the page of these matrices can be stepped early, as far as it is up to itself (page/held.h). */
static bool page_can(const struct zsd_shard *s, uint32_t page)
{
    return page >= s->planes[ZB_STATE].resident && page >= s->state_next && page < s->gpu_from &&
           page < s->gpu_next && zsd_page_early(s, page);
}

/* Whether the pages of a matrix can. The last ones are enough: pages in memory are the first of a shard. */
static bool matrix_can(const struct zsd_unit *unit, const struct zk_matrix *m, uint32_t page_elems)
{
    const struct zsd_shard *s;

    zb_sorted_each (s, pos, &unit->shards) {
        uint64_t from = zb_max_u64(m->first, s->first);
        uint64_t to = zb_min_u64(m->first + m->count, s->first + s->count);

        if (from < to && !(page_can(s, (uint32_t)((from - s->first) / page_elems)) &&
                           page_can(s, (uint32_t)((to - 1 - s->first) / page_elems))))
            return false;
    }
    return true;
}

/* Whether a page has elements of both matrices, which follow each other. */
static bool matrices_share(const struct zsd_unit *unit, const struct zk_matrix *a,
                           const struct zk_matrix *b, uint32_t page_elems)
{
    uint64_t last = a->first + a->count - 1;
    const struct zsd_shard *s;

    zb_sorted_each (s, pos, &unit->shards)
        if (last >= s->first && b->first < s->first + s->count &&
            (last - s->first) / page_elems == (b->first - s->first) / page_elems)
            return true;
    return false;
}

void zsd_muon_offer(struct zsd_job *job, const struct zsd_unit *unit)
{
    const struct zsd_step_table *t = table_of(job);
    uint32_t first = t->matrix_at[unit->index], end = t->matrix_at[unit->index + 1];
    uint32_t page_elems = job->core->page_elems;
    struct zsd_muon *m = job->muon;
    bool any = false;

    assert(m->units[unit->index] == UNIT_LATE && !m->all);
    zsd_turn_count(job->core, (end - first) * unit->shards.n);
    for (uint32_t i = first; i < end; i++)
        m->matrices[i].early = matrix_can(unit, &t->matrices[i], page_elems);
    for (uint32_t i = first + 1; i < end; i++)
        if (!m->matrices[i - 1].early &&
            matrices_share(unit, &t->matrices[i - 1], &t->matrices[i], page_elems))
            m->matrices[i].early = false;
    for (uint32_t i = end; i-- > first + 1;)
        if (!m->matrices[i].early &&
            matrices_share(unit, &t->matrices[i - 1], &t->matrices[i], page_elems))
            m->matrices[i - 1].early = false;
    for (uint32_t i = first; i < end; i++)
        any = any || m->matrices[i].early;
    m->units[unit->index] = UNIT_OFFERED;
    if (any)
        m->offered[m->noffered++] = unit->index;
}

bool zsd_muon_offered(const struct zsd_job *job, const struct zsd_unit *unit)
{
    return job->muon->units[unit->index] != UNIT_LATE;
}

/* ---- the walk */

void zsd_muon_all(struct zsd_job *job)
{
    struct zsd_muon *m = job->muon;

    if (!m)
        return;
    m->all = true;
    m->noffered = 0;
    zsd_orthos_share(m->orthos, false);
}

/* Whether there is a unit in progress; begins the next one. False: none is left, or none is offered. */
static bool walk_unit(struct zsd_muon *m)
{
    struct zsd_job *job = m->job;

    if (m->unit < job->nunits)
        return true;
    if (m->all) {
        while (m->next < job->nunits && !zsd_muon_unit(job->units[m->next], job))
            m->next++;
        if (m->next == job->nunits)
            return false;
        m->unit = m->next++;
        m->early = false;
    } else {
        if (m->noffered == 0)
            return false;
        m->unit = m->offered[--m->noffered];
        m->units[m->unit] = UNIT_EARLY;
        m->early = true;
    }
    m->shard = zb_sorted_at(&job->units[m->unit]->shards, 0);
    m->page = 0;
    return true;
}

/* The next page with a matrix, or NULL. */
static const struct zsd_shard *muon_walk(struct zsd_muon *m)
{
    for (; walk_unit(m); m->unit = m->job->nunits) {
        const struct zsd_unit *unit = m->job->units[m->unit];
        const struct zsd_shard *s;

        for (; (s = zb_sorted_get(&unit->shards, m->shard)) != NULL; m->page = 0) {
            for (; m->page < s->npages; m->page++) {
                if (zsd_muon_page(s, m->page) && zsd_muon_early(s, m->page) == m->early)
                    return s;
                zsd_turn_count(m->job->core, 1);
            }
            m->shard = zb_sorted_next(&unit->shards, m->shard);
        }
    }
    return NULL;
}

static uint8_t *slots_at(const struct zsd_job *job)
{
    return job->muon_at + job->muon_room.matrices_bytes;
}

bool zsd_muon_next(struct zsd_job *job, struct zsd_page_spec *spec)
{
    const struct zb_muon_room *room = &job->muon_room;
    struct zsd_muon *m = job->muon;
    const struct zsd_shard *s = m && !m->stopped ? muon_walk(m) : NULL;

    if (!s || (room->slots > 0 && m->nslots == 0) || !ring_take(m, s->unit, range_of(s, m->page)) ||
        zb_grow(&m->held, &m->held_room, m->pages, 1) < 0)
        return false;
    spec->kind = m->early ? ZSD_PAGE_EARLY : ZSD_PAGE_STEP;
    spec->shard = (struct zsd_shard *)(uintptr_t)s;
    spec->page = m->page;
    spec->hold = muon_hold;
    spec->buffer = room->slots > 0 ? slots_at(job) + m->slots[m->nslots - 1] * room->slot_bytes
                                   : NULL;
    return true;
}

void zsd_muon_begun(struct zsd_job *job, const struct zsd_page_spec *spec)
{
    uint32_t first = range_of(spec->shard, spec->page).first;
    struct zsd_muon *m = job->muon;

    m->nslots -= spec->buffer != NULL;
    m->pages++;
    m->page++;
    if (m->order[m->undone] != first)
        job->core->daemon->stats.muon_pages_ahead++;
}

void zsd_muon_page_over(struct zsd_job *job, const struct zsd_page_spec *spec)
{
    struct range r = range_of(spec->shard, spec->page);
    struct zsd_muon *m = job->muon;

    m->pages--;
    if (spec->buffer)
        m->slots[m->nslots++] = (uint32_t)((uint64_t)((uint8_t *)spec->buffer - slots_at(job)) /
                                           job->muon_room.slot_bytes);
    for (uint32_t i = r.first; i < r.end; i++)
        m->matrices[i].pages_open--;
    while (m->freed < m->taken && m->matrices[m->order[m->freed]].pages_open == 0)
        m->freed++;
}

bool zsd_muon_walked(const struct zsd_job *job)
{
    const struct zsd_muon *m = job->muon;

    return !m || (m->all && m->unit == job->nunits && m->next == job->nunits);
}

uint32_t zsd_muon_pages(const struct zsd_job *job)
{
    return job->muon ? job->muon->pages : 0;
}

void zsd_muon_stop(struct zsd_job *job, const struct zb_err *why)
{
    struct zsd_muon *m = job->muon;

    if (!m || m->pages == 0 || m->stopped)
        return;
    m->stopped = true;
    m->why = *why;
    zsd_orthos_stop(m->orthos);
    held_release(m);
}

void zsd_muon_free(struct zsd_muon *m)
{
    if (!m)
        return;
    free(m->units);
    free(m->offered);
    free(m->matrices);
    free(m->order);
    free(m->slots);
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
    row->muon_gpu_bytes = job->muon_gpu.booked;
    row->muon_most_bytes = job->muon_most_bytes;
    if (!job->step->muon_known)
        return;
    row->muon_lr = job->step->muon.lr;
    row->muon_momentum = job->step->muon.momentum;
    row->muon_nesterov = job->step->muon.nesterov > 0;
    row->muon_scale = 1 + (uint32_t)job->step->muon.muon_scale;
}
