/*
 * manifest.c - copies and frees units and notes.
 */
#include "daemon/store/manifest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

/* ---- units */

void zsd_unit_free(struct zsd_unit *unit)
{
    if (!unit)
        return;
    free(unit->tensors);
    free(unit->segments);
    zb_sorted_done(&unit->shards);
    free(unit);
}

/* A segment is a run of elements of one group. Frozen tensors and gaps are in no segment. */
int zsd_unit_segments(struct zsd_unit *unit)
{
    if (unit->ntensors == 0 || unit->layout.frozen)
        return 0;
    unit->segments = calloc(unit->ntensors, sizeof(*unit->segments));
    if (!unit->segments)
        return -ENOMEM;
    for (uint32_t i = 0; i < unit->ntensors; i++) {
        const struct zsd_tensor *t = &unit->tensors[i];
        struct zk_segment *last = unit->nsegments > 0 ? &unit->segments[unit->nsegments - 1] : NULL;

        if (t->group == ZP_GROUP_FROZEN)
            continue;
        if (last && last->group == t->group && last->first + last->count == t->first)
            last->count += t->count;
        else
            unit->segments[unit->nsegments++] =
                (struct zk_segment){ .first = t->first, .count = t->count, .group = t->group };
    }
    return 0;
}

struct zsd_unit *zsd_unit_copy(const struct zsd_unit *unit)
{
    struct zsd_unit *u = calloc(1, sizeof(*u));

    if (!u)
        return NULL;
    memcpy(u->name, unit->name, sizeof(u->name));
    u->index = unit->index;
    u->elems = unit->elems;
    u->layout = unit->layout;
    u->ntensors = u->tensors_room = unit->ntensors;
    u->nsegments = unit->nsegments;
    u->tensors = calloc(zb_max_u64(u->ntensors, 1), sizeof(*u->tensors));
    u->segments = calloc(zb_max_u64(u->nsegments, 1), sizeof(*u->segments));
    if (!u->tensors || !u->segments) {
        zsd_unit_free(u);
        return NULL;
    }
    if (u->ntensors > 0)
        memcpy(u->tensors, unit->tensors, u->ntensors * sizeof(*u->tensors));
    if (u->nsegments > 0)
        memcpy(u->segments, unit->segments, u->nsegments * sizeof(*u->segments));
    return u;
}

/* ---- notes */

void zsd_note_done(struct zsd_note *note)
{
    free(note->data);
    *note = (struct zsd_note){ 0 };
}

int zsd_note_copy(struct zsd_note *to, const struct zsd_note *from)
{
    *to = (struct zsd_note){ 0 };
    if (!from->data)
        return 0;
    to->data = malloc(zb_max_u64(from->total, 1));
    if (!to->data)
        return -ENOMEM;
    memcpy(to->data, from->data, from->total);
    to->total = to->got = from->total;
    to->iteration = from->iteration;
    return 0;
}
