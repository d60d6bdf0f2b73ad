/*
 * op/early_room.c - memory for gradients of whole units that are not held: a ring of gradients whose
 * steps have limits of norms (op/early.c has the model of both).
 *
 * MODEL. The factors of a unit's tensors follow from its whole gradient. So the gradients of its pages
 * that are not held are collected in a room, which the unit has until these pages are stepped:
 *
 *     first push ---> [order] ---> room ---> all slices, sums came: decided ---> pages stepped ---> free
 *
 * The job has memory for its two largest units (base/place.h). At most two units have a room, one at each
 * end of that memory, so any two fit, and nothing fragments. In the order are units with gradients that
 * are not held, by whichever of their shards. Each rank has a part of each of them (zb_place_few()), so
 * ranks that push all units in the same order push these in the same order, too.
 *
 * NOTHING DEADLOCKS. Units get their rooms in the order of their first pushes, by whatever rank. A push
 * is refused (-EDEADLK) if a unit before its own in this order lacks a part of the same rank: it could
 * wait for a room that is freed only after that rank has pushed more. Let U be the first unit in this
 * order that is not complete. All before it are complete, so they are stepped, which takes page buffers,
 * the drive and compute threads, but no rank; their rooms become free, and U gets one. Each rank that
 * still has to push a part of U has no push that waits for a room: its units would come after U, so the
 * push was refused. It may wait for other ranks in a collective of U or of an earlier unit; these have
 * left it before they pushed U. So U is completed, and so on. A unit whose gradient is not finite has no
 * factors: the step can only be skipped, and all that is pushed from then on is discarded.
 *
 * SEVERAL NODES. If other nodes have shards of the units, U also waits until its sums over all nodes came
 * (unit-sums). Each daemon has the order of its own ranks. Ranks of all nodes push in the same order, so
 * no two nodes wait for each other. The messages that send sums wait for no push:
 * docs/decisions/0033-a-ring-on-several-nodes.md.
 *
 * INVARIANTS
 *
 *     U1  A room is free when its unit's pages are stepped, or the step was dropped (`gone`), and no task
 *         or page operation uses it.
 *     U2  A unit has at most one room, so a unit whose room is `gone` waits for its end before it gets
 *         another one.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "daemon/op/early.h"
#include "daemon/run/turn.h"

bool zsd_rooms_on(const struct zsd_job *job)
{
    return job->ring_limits && job->early->limited;
}

static struct zsd_room *room_of(const struct zsd_shard *s)
{
    struct zsd_room *rooms = s->job->early->rooms.all;

    for (int i = 0; i < ZSD_ROOMS; i++)
        if (rooms[i].unit == s->unit)
            return &rooms[i];
    return NULL;
}

bool zsd_room_has(const struct zsd_shard *s)
{
    const struct zsd_room *r = room_of(s);

    return r && !r->gone;
}

uint8_t *zsd_room_at(const struct zsd_shard *s, uint32_t page)
{
    const struct zsd_room *r = room_of(s);
    uint32_t resident = s->planes[ZB_GRAD].resident;

    if (!r || r->gone || page < resident)
        return NULL;
    return r->mem + s->room_at + zsd_plane_first(s, ZB_GRAD, page) -
           zsd_plane_first(s, ZB_GRAD, resident);
}

/* Gives the unit a room, which is free. */
static void room_give(struct zsd_job *job, struct zsd_room *r, struct zsd_unit *unit)
{
    struct zsd_room *all = job->early->rooms.all;
    struct zsd_shard *s;

    *r = (struct zsd_room){ .unit = unit };
    zb_sorted_each (s, pos, &unit->shards) {
        uint32_t resident = s->planes[ZB_GRAD].resident;

        s->room_at = r->bytes;
        r->left += s->npages - resident;
        r->bytes += zsd_plane_first(s, ZB_GRAD, s->npages) - zsd_plane_first(s, ZB_GRAD, resident);
        zsd_turn_count(job->core, 1);
    }
    assert(all[0].bytes + all[1].bytes <= job->room_bytes);
    r->mem = job->memory + (r == all ? 0 : job->room_bytes - r->bytes);
}

/* Gives rooms to the next units. True: to one. */
static bool rooms_give(struct zsd_job *job)
{
    struct zsd_rooms *rooms = &job->early->rooms;
    bool given = false;

    for (int i = 0; i < ZSD_ROOMS; i++) {
        struct zsd_unit *next;

        if (rooms->all[i].unit || rooms->given == rooms->norder)
            continue;
        next = job->units[rooms->order[rooms->given]];
        if (rooms->all[ZSD_ROOMS - 1 - i].unit == next)
            return given; /* U2 */
        rooms->given++;
        room_give(job, &rooms->all[i], next);
        given = true;
    }
    return given;
}

/* Frees a room that is not used any more. */
static void room_free(struct zsd_job *job, struct zsd_room *r)
{
    if (!r->unit || r->busy > 0 || (r->left > 0 && !r->gone)) /* U1 */
        return;
    *r = (struct zsd_room){ 0 };
    if (rooms_give(job))
        zsd_defer(job->core, &job->early->work); /* pushes that wait for it */
}

int zsd_rooms_begin(struct zsd_job *job)
{
    struct zsd_rooms *rooms = &job->early->rooms;

    if (!job->ring_limits)
        return 0;
    rooms->order = calloc(zb_max_u64(job->nunits, 1), sizeof(*rooms->order));
    rooms->at = calloc(zb_max_u64(job->nunits, 1), sizeof(*rooms->at));
    if (rooms->order && rooms->at)
        return 0;
    zsd_rooms_drop(job);
    return -ENOMEM;
}

void zsd_rooms_drop(struct zsd_job *job)
{
    struct zsd_rooms *rooms = &job->early->rooms;

    free(rooms->order);
    free(rooms->at);
    rooms->order = rooms->at = NULL;
    rooms->norder = rooms->given = 0;
    for (int i = 0; i < ZSD_ROOMS; i++) {
        rooms->all[i].gone = true;
        room_free(job, &rooms->all[i]);
    }
}

/* Whether gradients of the unit need a room. */
static bool room_needed(const struct zsd_unit *unit)
{
    const struct zsd_shard *s;

    zb_sorted_each (s, pos, &unit->shards)
        if (s->planes[ZB_GRAD].resident < s->npages)
            return true;
    return false;
}

/* Whether the rank has pushed all of its part of a unit. */
static bool room_pushed(const struct zsd_unit *unit, const struct zsd_shard *of)
{
    const struct zsd_shard *s;

    zb_sorted_each (s, pos, &unit->shards) {
        zsd_turn_count(of->job->core, 1);
        if (s->rank == of->rank && (s->grad_of != s->job->grads_of || s->grad_next < s->count))
            return false;
    }
    return true;
}

static int room_refuse(const struct zsd_shard *s, const struct zsd_unit *first, struct zb_err *err)
{
    return zb_fail(err, -EDEADLK,
                   "a push for unit '%s' would wait for unit '%s', which rank %u has not pushed: "
                   "gradients that are not held are pushed in the same order by all ranks",
                   s->unit->name, first->name, s->rank);
}

int zsd_room_ask(struct zsd_shard *s, struct zb_err *err)
{
    struct zsd_job *job = s->job;
    struct zsd_rooms *rooms = &job->early->rooms;
    uint32_t at = rooms->at[s->unit->index], end = at > 0 ? at - 1 : rooms->norder;

    if ((at > 0 && at <= rooms->given) || !room_needed(s->unit))
        return 0; /* it has its room, or had it, or needs none */
    for (int i = 0; i < ZSD_ROOMS; i++) {
        const struct zsd_room *r = &rooms->all[i];

        if (r->unit && !r->gone && !room_pushed(r->unit, s))
            return room_refuse(s, r->unit, err);
    }
    for (uint32_t i = rooms->given; i < end; i++)
        if (!room_pushed(job->units[rooms->order[i]], s))
            return room_refuse(s, job->units[rooms->order[i]], err);
    return 0;
}

void zsd_room_want(struct zsd_shard *s)
{
    struct zsd_rooms *rooms = &s->job->early->rooms;

    if (rooms->at[s->unit->index] > 0 || !room_needed(s->unit))
        return;
    rooms->order[rooms->norder++] = s->unit->index;
    rooms->at[s->unit->index] = rooms->norder;
    (void)rooms_give(s->job);
}

void zsd_room_use(struct zsd_shard *s)
{
    room_of(s)->busy++;
}

void zsd_room_done(struct zsd_shard *s, bool stepped)
{
    struct zsd_room *r = room_of(s);

    assert(r && r->busy > 0);
    r->busy--;
    r->left -= stepped;
    room_free(s->job, r);
}
