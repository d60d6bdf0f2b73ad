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
 * THE WALK. Pages begin in the order of units, and of elements in a unit, and as far as the job's room reaches:
 *
 *     matrices:   free | being written | orthogonalized | being read | not begun
 *                      ^ freed                          ^ walk       ^ taken
 *
 * So while a matrix is orthogonalized, pages of the next ones are read, also those of the next unit, and pages of the
 * last ones are written. A matrix takes its memory, from a ring, when its first page begins, and frees it when
 * its last page has ended, in the same order. A streamed page takes a page buffer of the job's own (a slot)
 * until it ends, so it is read and written once.
 *
 * NO DEADLOCK. Only this walk takes from the room, so jobs do not wait for each other. base/muon.h says why the least
 * room is enough for one job. Pages in HOLD wait for compute threads alone.
 *
 * The same bits wherever the pages are, and however many threads there are: both passes are elementwise, and
 * kernels/ortho.h promises it for the rest.
 *
 * ENDS. If the job ends, the pages in HOLD end with its error. Tasks that run hold the job.
 */
#include "daemon/op/muon.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "daemon/op/ortho.h"
#include "daemon/op/step.h"
#include "daemon/page/pageop.h"
#include "daemon/plan/muon.h"
#include "daemon/run/turn.h"

/* A matrix of the step. */
struct progress {
    struct zsd_ortho ortho;
    struct zsd_muon *muon;
    uint32_t pages_left; /* that have not stored their part */
    uint32_t pages_open; /* that have not ended */
    bool done;
    uint64_t at, end; /* its memory in the ring */
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

struct zsd_muon {
    struct zsd_job *job;
    struct zsd_orthos *orthos;
    /* the walk: the next page to begin */
    uint32_t unit; /* the number of units: all have begun */
    struct zb_sorted_pos shard;
    uint32_t page;
    bool open; /* shard and page are set for the unit */
    /* matrices of the table: [freed, taken) have memory */
    struct progress *matrices;
    size_t matrices_room;
    uint32_t freed, taken;
    uint32_t undone; /* the first that is not orthogonalized */
    uint32_t pages;  /* that have begun and not ended */
    uint32_t *slots; /* the free ones */
    size_t slots_room;
    uint32_t nslots;
    struct held *held;
    uint32_t nheld;
    size_t held_room;
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

/* ---- memory of matrices */

/* A place in the ring. UINT64_MAX: it is not free yet. */
static uint64_t ring_find(const struct zsd_muon *m, uint64_t bytes)
{
    uint64_t room = m->job->muon_room.matrices_bytes;
    const struct progress *oldest, *last;

    if (m->freed == m->taken)
        return bytes <= room ? 0 : UINT64_MAX;
    oldest = &m->matrices[m->freed];
    last = &m->matrices[m->taken - 1];
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

/* Gives memory to the matrices before number `end`, all of the unit. False: some have none yet. */
static bool ring_take(struct zsd_muon *m, const struct zsd_unit *unit, uint32_t end)
{
    for (; m->taken < end; m->taken++) {
        struct zk_matrix *matrix = &table_of(m->job)->matrices[m->taken];
        uint64_t bytes = zb_matrix_bytes(matrix->count), at = ring_find(m, bytes);
        struct progress *p = &m->matrices[m->taken];
        const struct zsd_shard *s;

        if (at == UINT64_MAX)
            return false;
        matrix->at = (float *)(void *)(m->job->muon_at + at);
        *p = (struct progress){ .ortho = { .matrix = matrix, .done = muon_on_ortho },
                                .muon = m,
                                .at = at,
                                .end = at + bytes };
        zb_sorted_each (s, pos, &unit->shards)
            p->pages_left += pages_of(s, matrix);
        p->pages_open = p->pages_left;
    }
    return true;
}

/* ---- pages */

/* Continues the pages that waited for this matrix alone. */
static void muon_on_ortho(struct zsd_ortho *o)
{
    struct progress *p = zb_container_of(o, struct progress, ortho);
    struct zsd_muon *m = p->muon;
    uint32_t n = 0, index = (uint32_t)(p - m->matrices);

    p->done = true;
    while (m->undone < m->taken && m->matrices[m->undone].done)
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
    struct zsd_job *job = owner;
    struct zsd_muon *m = job->muon;

    if (job->state == ZSD_ENDED) {
        zsd_pageop_resume(op, &job->why);
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
    if (!m->orthos) {
        free(m);
        return NULL;
    }
    return m;
}

int zsd_muon_begin(struct zsd_job *job)
{
    struct zsd_muon *m = job->muon;
    uint32_t nslots = job->muon_room.slots;

    if (job->optimizer != ZB_MUON)
        return 0;
    if (!m)
        m = job->muon = muon_new(job);
    if (!m ||
        zb_grow(&m->matrices, &m->matrices_room, 0, table_of(job)->matrix_at[job->nunits]) < 0 ||
        zb_grow(&m->slots, &m->slots_room, 0, nslots) < 0)
        return -ENOMEM;
    for (m->nslots = 0; m->nslots < nslots; m->nslots++)
        m->slots[m->nslots] = nslots - 1 - m->nslots;
    m->unit = m->freed = m->taken = m->undone = m->pages = m->nheld = 0;
    m->open = false;
    return 0;
}

/* The next page with a matrix, or NULL. */
static const struct zsd_shard *muon_walk(struct zsd_muon *m)
{
    const struct zsd_step_table *t = table_of(m->job);

    for (; m->unit < m->job->nunits; m->unit++, m->open = false) {
        const struct zsd_unit *unit = m->job->units[m->unit];
        const struct zsd_shard *s;

        if (t->matrix_at[m->unit] == t->matrix_at[m->unit + 1])
            continue;
        if (!m->open) {
            m->shard = zb_sorted_at(&unit->shards, 0);
            m->page = 0;
            m->open = true;
        }
        for (; (s = zb_sorted_get(&unit->shards, m->shard)) != NULL; m->page = 0) {
            for (; m->page < s->npages; m->page++) {
                if (zsd_muon_page(s, m->page))
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
    const struct zsd_shard *s = m ? muon_walk(m) : NULL;

    if (!s || (room->slots > 0 && m->nslots == 0) ||
        !ring_take(m, s->unit, range_of(s, m->page).end) ||
        zb_grow(&m->held, &m->held_room, m->pages, 1) < 0)
        return false;
    spec->shard = (struct zsd_shard *)(uintptr_t)s;
    spec->page = m->page;
    spec->hold = muon_hold;
    spec->buffer = room->slots > 0 ? slots_at(job) + m->slots[m->nslots - 1] * room->slot_bytes
                                   : NULL;
    return true;
}

void zsd_muon_begun(struct zsd_job *job, const struct zsd_page_spec *spec)
{
    struct zsd_muon *m = job->muon;

    m->nslots -= spec->buffer != NULL;
    m->pages++;
    m->page++;
    if (m->undone < range_of(spec->shard, spec->page).first)
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
    while (m->freed < m->taken && m->matrices[m->freed].pages_open == 0)
        m->freed++;
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
    free(m->matrices);
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
