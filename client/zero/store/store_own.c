/*
 * store_own.c - shared by the stores that keep everything in this process. There is one piece,
 * because every call has finished when it returns. Notes are sent before a step and kept with it.
 * There is no other party to wait for.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/zero/store/store_own.h"

#include "base/array.h"
#include "client/zero/config/options.h"
#include "client/zero/core/zero.h"

static struct zcz_own *own_of(struct zcz_store *s)
{
    return zb_container_of(s, struct zcz_own, base);
}

int zcz_own_open(struct zcz_store *s)
{
    s->page_elems = ZB_PAGE_ELEMS_DEFAULT;
    s->pins_max = UINT32_MAX;
    return 0;
}

int zcz_own_join(struct zcz_store *s)
{
    struct zcz_own *o = own_of(s);
    struct zc_zero *z = s->z;
    uint64_t slice_most = 0;

    for (uint32_t i = 0; i < z->nunits; i++)
        slice_most = zb_max_u64(slice_most, z->units[i].slice);
    s->piece_elems = zb_min_u64(s->page_elems, slice_most);
    o->piece = aligned_alloc(ZB_PAGE_ALIGN, s->piece_elems * sizeof(*o->piece));
    return o->piece ? 0 : zcz_refuse(z, -ENOMEM, "no memory for a piece");
}

float *zcz_own_piece(struct zcz_store *s)
{
    struct zcz_own *o = own_of(s);

    if (o->piece_used)
        return NULL;
    o->piece_used = true;
    return o->piece;
}

void zcz_own_piece_put(struct zcz_store *s, float *piece)
{
    struct zcz_own *o = own_of(s);

    assert(o->piece_used && piece == o->piece);
    o->piece_used = false;
}

int zcz_own_release(struct zcz_store *s, struct zcz_unit *u)
{
    (void)s;
    u->view.data = NULL;
    return 0;
}

/* ---- steps */

/* What makes segments: classes (NULL: groups), and factors of tensors (NULL: none). */
struct table_from {
    const struct zc_classes *classes;
    const struct zc_group *groups; /* without classes */
    const double *factors;
    double scale;    /* of the step */
    uint32_t tensor; /* the next trainable one */
};

static double table_scale(const struct table_from *from, uint32_t class)
{
    return from->classes ? from->classes->classes[class].factor * from->scale : from->scale;
}

static struct zk_params table_params(const struct table_from *from, uint32_t class)
{
    struct zk_params params = zcz_params(
        from->classes ? &from->classes->classes[class].group : &from->groups[class], from->scale);

    if (from->classes)
        params.scale *= from->classes->classes[class].factor;
    return params;
}

static void table_matrix(struct zcz_own_table *t, const struct zc_tensor *tensor,
                         const struct table_from *from, uint32_t class)
{
    const struct zk_params p = table_params(from, class);

    t->matrices[t->nmatrices++] = (struct zk_matrix){
        .first = tensor->first,
        .count = zcz_tensor_elems(tensor),
        .rows = tensor->dims[0],
        .cols = tensor->dims[1],
        .step_size = (float)(p.lr * zk_muon_factor((enum zk_muon_scale)p.muon_scale,
                                                   tensor->dims[0], tensor->dims[1])),
    };
}

/* Makes segments of consecutive elements of one class; with factors, of each tensor. Elements without
 * a class are left out. */
static void table_unit(struct zcz_own_table *t, const struct zcz_unit *u, struct table_from *from)
{
    uint32_t first = t->nsegments;

    for (uint32_t i = 0; i < u->def.ntensors; i++) {
        struct zk_segment *last =
            t->nsegments > first && !from->factors ? &t->segments[t->nsegments - 1] : NULL;
        uint64_t at = u->def.tensors[i].first, count = zcz_tensor_elems(&u->def.tensors[i]);
        uint32_t class = u->def.tensors[i].group, group, tensor;

        if (!zcz_tensor_trained(u, i))
            continue;
        tensor = from->tensor++;
        if (from->classes)
            class = from->classes->class_of[tensor];
        if (class == ZC_CLASS_NONE || count == 0)
            continue;
        if (u->def.tensors[i].muon) {
            table_matrix(t, &u->def.tensors[i], from, class);
            last = NULL;
        }
        group = class + (u->def.tensors[i].muon ? t->nscalars / 2 : 0);
        if (last && last->group == group && last->first + last->count == at) {
            last->count += count;
            continue;
        }
        t->segments[t->nsegments] =
            (struct zk_segment){ .first = at, .count = count, .group = group };
        if (from->factors)
            t->segments[t->nsegments].scale =
                zk_segment_scale(table_scale(from, class) * from->factors[tensor]);
        t->nsegments++;
    }
}

static int table_room(struct zcz_own *o, uint32_t nscalars, uint32_t nsegments)
{
    const struct zc_zero *z = o->base.z;
    struct zcz_own_table *t = &o->table;

    if (zb_grow(&t->scalars, &t->scalars_room, 0, nscalars) < 0 ||
        (nsegments > 0 && zb_grow(&t->segments, &t->segments_room, 0, nsegments) < 0))
        return -ENOMEM;
    if (z->options.optimizer == ZC_MUON && zb_grow(&t->matrices, &t->matrices_room, 0, t->most) < 0)
        return -ENOMEM;
    if (!t->at)
        t->at = calloc(z->nunits + 1, sizeof(*t->at));
    if (!t->matrix_at)
        t->matrix_at = calloc(z->nunits + 1, sizeof(*t->matrix_at));
    return t->at && t->matrix_at ? 0 : -ENOMEM;
}

int zcz_own_table(struct zcz_own *o, const struct zc_step *step, const struct zc_classes *classes)
{
    struct zc_zero *z = o->base.z;
    struct zcz_own_table *t = &o->table;
    enum zb_optimizer optimizer = (enum zb_optimizer)z->options.optimizer;
    bool muon = optimizer == ZB_MUON;
    struct table_from from = { .classes = classes,
                               .groups = step->groups,
                               .factors = step->factors ? o->factors : NULL,
                               .scale = step->scale };
    uint32_t n = classes ? classes->nclasses : step->ngroups;

    t->apart = classes || from.factors || muon;
    t->most = 0;
    for (uint32_t i = 0; i < z->nunits; i++)
        t->most += z->units[i].ntrained;
    if (table_room(o, 2 * n + 1, t->apart ? t->most : 0) < 0)
        return zcz_refuse(z, -ENOMEM, "no memory for the scalars of a step");
    t->nscalars = muon ? 2 * n : n;
    t->nsegments = t->nmatrices = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct zk_params params = table_params(&from, i);
        uint64_t number = classes ? classes->classes[i].t : z->applied + 1;

        t->scalars[i] = zk_prepare(muon ? ZB_ADAMW : optimizer, &params, number);
        if (muon)
            t->scalars[n + i] = zk_prepare(ZB_MUON, &params, number);
    }
    for (uint32_t i = 0; i < z->nunits && t->apart; i++) {
        t->at[i] = t->nsegments;
        t->matrix_at[i] = t->nmatrices;
        table_unit(t, &z->units[i], &from);
    }
    t->at[z->nunits] = t->nsegments;
    t->matrix_at[z->nunits] = t->nmatrices;
    return 0;
}

int zcz_own_tensors(struct zcz_store *s, struct zcz_op *op, uint64_t step, bool limits,
                    const double *values, uint32_t ntensors)
{
    struct zcz_own *o = own_of(s);

    (void)op;
    (void)step;
    assert(!limits);
    if (zb_grow(&o->factors, &o->factors_room, 0, ntensors) < 0)
        return zcz_refuse(s->z, -ENOMEM, "no memory for the factors of %u tensors", ntensors);
    memcpy(o->factors, values, ntensors * sizeof(*values));
    return 0;
}

const struct zk_segment *zcz_own_segments(const struct zcz_own *o, const struct zcz_unit *u,
                                          uint32_t *ret_n)
{
    const struct zcz_own_table *t = &o->table;
    uint32_t i = u->def.index;

    *ret_n = t->apart ? t->at[i + 1] - t->at[i] : u->nsegments;
    return t->apart ? t->segments + t->at[i] : u->segments;
}

static void notes_keep(struct zcz_own *o)
{
    for (size_t i = 0; i < ZB_COUNT(o->notes); i++) {
        struct zcz_note *n = &o->notes[i];

        if (!n->sent)
            continue;
        free(n->kept);
        n->kept = n->sent;
        n->kept_bytes = n->sent_bytes;
        n->sent = NULL;
    }
}

void zcz_own_stepped(struct zcz_store *s, bool applied, struct zc_stepped *ret)
{
    notes_keep(own_of(s));
    ret->iterations = s->z->iterations + 1;
    ret->applied = s->z->applied + applied;
}

/* ---- notes */

int zcz_own_note_put(struct zcz_store *s, struct zcz_op *op, bool of_job, const void *note,
                     size_t bytes)
{
    struct zcz_note *n = &own_of(s)->notes[of_job];
    unsigned char *copy = malloc(bytes + 1); /* an empty note also counts */

    (void)op;
    if (!copy)
        return zcz_refuse(s->z, -ENOMEM, "no memory for a note of %zu bytes", bytes);
    if (bytes > 0)
        memcpy(copy, note, bytes);
    free(n->sent);
    n->sent = copy;
    n->sent_bytes = bytes;
    return 0;
}

int zcz_own_note_get(struct zcz_store *s, bool of_job, void *buf, size_t *ret_bytes)
{
    const struct zcz_note *n = &own_of(s)->notes[of_job];

    if (!n->kept)
        return zcz_refuse(s->z, -ENOENT, "the newest step has no note");
    memcpy(buf, n->kept, n->kept_bytes);
    *ret_bytes = n->kept_bytes;
    return 0;
}

/* ---- the rest */

int zcz_own_nothing(struct zcz_store *s)
{
    (void)s;
    return 0;
}

int zcz_own_poll(struct zcz_store *s, uint32_t wait_us)
{
    struct timespec nap = { .tv_nsec = (long)wait_us * 1000 };

    (void)s;
    if (wait_us > 0)
        (void)nanosleep(&nap, NULL); /* if a signal ends it early, the caller checks again */
    return 0;
}

void zcz_own_done(struct zcz_own *o)
{
    for (size_t i = 0; i < ZB_COUNT(o->notes); i++) {
        free(o->notes[i].sent);
        free(o->notes[i].kept);
    }
    free(o->factors);
    free(o->table.scalars);
    free(o->table.segments);
    free(o->table.at);
    free(o->table.matrices);
    free(o->table.matrix_at);
    free(o->piece);
    free(o->base.node_ranks);
}
