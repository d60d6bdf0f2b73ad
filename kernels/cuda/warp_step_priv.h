/*
 * warp_step_priv.h - steps of the optimizers, as what one warp does: warp_priv.h has the model.
 */
#ifndef ZK_WARP_STEP_PRIV_H
#define ZK_WARP_STEP_PRIV_H

#include "kernels/cuda/warp_priv.h"

struct warp_step {
    unsigned char *param, *state, *grad;
    uint64_t first, count;
    const struct zk_segment *segments;
    const struct zk_scalars *by_group;
    uint32_t nsegments;
    uint32_t block_bytes;  /* of state */
    uint32_t moment_at[2]; /* in a block of state; the master is at 0 */
    bool moment_signed[2];
    enum zb_dtype grad_dtype;
};

/* Properties fixed for a launch; on a GPU, compile-time constants. */
struct step_kind {
    enum zb_optimizer optimizer;
    enum zb_dtype dtype;
    enum zb_moments moments;
    unsigned nmoments;
};

/* A quad of a page. */
struct place {
    uint64_t in_page; /* element */
    uint32_t in_block;
    unsigned char *state; /* of its block */
};

/* The scalars of segment `current`, and the segment where the search continues. */
struct lane_scalars {
    uint32_t current, segment;
    struct zk_scalars s;
};

WARP_FN void scalars_of(const struct warp_step *a, struct lane_scalars *s, uint32_t segment)
{
    float scale = a->segments[segment].scale;

    s->current = segment;
    s->s = a->by_group[a->segments[segment].group];
    if (scale != 0)
        s->s.scale = scale;
}

/* The first segment from `s` on that ends after element x of the unit. */
WARP_FN uint32_t segment_find(const struct warp_step *a, uint32_t s, uint64_t x)
{
    uint32_t end = a->nsegments;

    while (s < end) {
        uint32_t middle = s + (end - s) / 2;

        if (a->segments[middle].first + a->segments[middle].count > x)
            end = middle;
        else
            s = middle + 1;
    }
    return s;
}

/* true: element x is in a segment, whose scalars are then current. x must not decrease between
 * calls. */
WARP_FN bool scalars_find(const struct warp_step *a, struct lane_scalars *s, uint64_t x)
{
    while (s->segment < a->nsegments &&
           a->segments[s->segment].first + a->segments[s->segment].count <= x)
        s->segment++;
    if (s->segment == a->nsegments || a->segments[s->segment].first > x)
        return false;
    if (s->segment != s->current)
        scalars_of(a, s, s->segment);
    return true;
}

WARP_FN void element_step(enum zb_optimizer optimizer, const struct zk_scalars *s, float *p,
                          float *m, float *v, float g)
{
    switch (optimizer) {
    case ZB_ADAMW:
        elem_step_ADAMW(s, p, m, v, g);
        break;
    case ZB_ADAM:
        elem_step_ADAM(s, p, m, v, g);
        break;
    case ZB_LION:
        elem_step_LION(s, p, m, v, g);
        break;
    case ZB_SGD:
        elem_step_SGD(s, p, m, v, g);
        break;
    case ZB_ADAGRAD:
        elem_step_ADAGRAD(s, p, m, v, g);
        break;
    case ZB_MUON:
        elem_step_MUON(s, p, m, v, g);
        break;
    case ZB_OPTIMIZER_END:
        break;
    }
}

/* Stores of a quad what was stepped, by bit. */
#define STEPPED_ALL 15u

#define STEPPED_PUT(bits)                                                                          \
    WARP_FN void stepped_put##bits(void *array, uint64_t i, struct quad##bits q, uint32_t stepped) \
    {                                                                                              \
        if (stepped == STEPPED_ALL)                                                                \
            quad_store##bits(array, i, q);                                                         \
        else                                                                                       \
            WARP_FOR (k, 4)                                                                        \
                if (stepped >> k & 1)                                                              \
                    ((elem##bits *)array)[i + k] = q.x[k];                                         \
    }

STEPPED_PUT(32)
STEPPED_PUT(16)
STEPPED_PUT(8)

/* zb_moments_q8() */
WARP_FN bool moments_q8(enum zb_moments moments)
{
    return moments == ZB_MOMENTS_Q8 || moments == ZB_MOMENTS_Q8_LO;
}

/* Whether lo of the master has 8 bits. */
WARP_FN bool kind_low8(const struct step_kind *kind)
{
    return kind->dtype == ZB_BF16 && kind->moments == ZB_MOMENTS_Q8_LO;
}

/* What a step reads of a quad: the dtype's part of the master, gradients, and moments as stored. */
struct step_raw {
    struct raw param;
    struct quad16 low; /* of a split master */
    struct raw grad;
    struct raw moment[ZB_MOMENTS_MAX];
    struct quad8 code[ZB_MOMENTS_MAX];
    uint32_t scale[ZB_MOMENTS_MAX];
};

/* Planes are aligned and pages are whole blocks, so each quad is whole and aligned. */
WARP_FN struct step_raw step_read(const struct warp_step *a, const struct step_kind *kind,
                                  const struct place *at)
{
    struct step_raw r;

    memset(&r, 0, sizeof(r));
    if (kind->dtype == ZB_F16)
        r.param.wide = quad_load32(at->state, at->in_block);
    else
        r.param = raw_get(kind->dtype, a->param, at->in_page, a->count, true);
    if (kind_low8(kind)) {
        struct quad8 low = quad_load8(at->state, at->in_block);

        WARP_FOR (k, 4)
            r.low.x[k] = (uint16_t)(low.x[k] << 8);
    } else if (kind->dtype == ZB_BF16) {
        r.low = quad_load16(at->state, at->in_block);
    }
    r.grad = raw_get(a->grad_dtype, a->grad, at->in_page, a->count, true);
    WARP_FOR (which, ZB_MOMENTS_MAX) {
        const unsigned char *from = at->state + a->moment_at[which];

        if (which >= kind->nmoments)
            continue;
        if (moments_q8(kind->moments)) {
            r.code[which] = quad_load8(from, at->in_block);
            r.scale[which] =
                ((const elem32 *)(const void *)(from + WARP_B))[at->in_block / ZB_Q8_GROUP];
        } else {
            r.moment[which] = raw_get(kind->moments == ZB_MOMENTS_BF16 ? ZB_BF16 : ZB_F32, from,
                                      at->in_block, WARP_B, true);
        }
    }
    return r;
}

WARP_FN struct quad master_of(enum zb_dtype dtype, const struct step_raw *r)
{
    struct quad values;

    if (dtype != ZB_BF16)
        return raw_values(ZB_F32, r->param);
    WARP_FOR (k, 4)
        values.x[k] = elem_value_of_split(r->param.half.x[k], (int16_t)r->low.x[k]);
    return values;
}

/* With lo of 8 bits. */
WARP_FN void master_put_lo8(const struct warp_step *a, const struct place *at, struct quad values,
                            uint32_t stepped, uint32_t key)
{
    struct quad16 hi;
    struct quad8 lo;

    WARP_FOR (k, 4) {
        uint32_t random = moment_random(key, (at->in_block + k) * MOMENT_PLACE);
        int8_t low;

        elem_split_lo8(values.x[k], moment_noise_lo(random), &hi.x[k], &low);
        lo.x[k] = (uint8_t)low;
    }
    stepped_put16(a->param, at->in_page, hi, stepped);
    stepped_put8(at->state, at->in_block, lo, stepped);
}

WARP_FN void master_put(enum zb_dtype dtype, const struct warp_step *a, const struct place *at,
                        struct quad values, uint32_t stepped)
{
    struct quad16 hi, lo;

    if (dtype == ZB_F32) {
        stepped_put32(a->param, at->in_page, quad_bits(values), stepped);
        return;
    }
    if (dtype == ZB_F16) {
        stepped_put16(a->param, at->in_page, quad_round(ZB_F16, values), stepped);
        stepped_put32(at->state, at->in_block, quad_bits(values), stepped);
        return;
    }
    WARP_FOR (k, 4) {
        int16_t low;

        elem_split_canonical(values.x[k], &hi.x[k], &low);
        lo.x[k] = (uint16_t)low;
    }
    stepped_put16(a->param, at->in_page, hi, stepped);
    stepped_put16(at->state, at->in_block, lo, stepped);
}

WARP_FN struct quad moment_of(enum zb_moments moments, const struct warp_step *a, unsigned which,
                              const struct step_raw *r)
{
    if (moments_q8(moments))
        return quad_decode_q8(r->code[which], r->scale[which], a->moment_signed[which]);
    if (moments == ZB_MOMENTS_BF16)
        return quad_canonical(raw_values(ZB_BF16, r->moment[which]));
    return raw_values(ZB_F32, r->moment[which]);
}

/* Stores what was stepped. 8-bit moments need their whole group: moment_put_q8(). */
WARP_FN void moment_put(enum zb_moments moments, const struct warp_step *a, unsigned which,
                        const struct place *at, struct quad values, uint32_t stepped, uint32_t key)
{
    unsigned char *to = at->state + a->moment_at[which];
    struct quad16 q;

    if (moments == ZB_MOMENTS_F32) {
        stepped_put32(to, at->in_block, quad_bits(values), stepped);
        return;
    }
    WARP_FOR (k, 4)
        q.x[k] = moment_to_bf16(values.x[k], moment_noise(key, at->in_block + k));
    stepped_put16(to, at->in_block, q, stepped);
}

/* A lane's moments, [which][half], between the step and the encoding in 8 bits. */
struct lane_moments {
    struct quad x[ZB_MOMENTS_MAX][2];
};

/* all: every element is stepped, with the current scalars. */
WARP_FN void quad_step(const struct warp_step *a, const struct step_kind *kind,
                       const struct place *at, const struct step_raw *r,
                       struct lane_scalars *scalars, const uint32_t *keys, bool all, unsigned half,
                       struct lane_moments *st)
{
    struct quad p = master_of(kind->dtype, r), g = raw_values(a->grad_dtype, r->grad);
    uint32_t stepped = all ? STEPPED_ALL : 0;

    WARP_FOR (which, ZB_MOMENTS_MAX)
        if (which < kind->nmoments)
            st->x[which][half] = moment_of(kind->moments, a, which, r);
    WARP_FOR (k, 4)
        if (all || scalars_find(a, scalars, a->first + at->in_page + k)) {
            element_step(kind->optimizer, &scalars->s, &p.x[k], &st->x[0][half].x[k],
                         &st->x[1][half].x[k], g.x[k]);
            stepped |= 1u << k;
        }
    if (stepped != 0 && kind_low8(kind))
        master_put_lo8(a, at, p, stepped, keys[0]);
    else if (stepped != 0)
        master_put(kind->dtype, a, at, p, stepped);
    WARP_FOR (which, ZB_MOMENTS_MAX)
        if (which < kind->nmoments && !moments_q8(kind->moments))
            moment_put(kind->moments, a, which, at, st->x[which][half], stepped, keys[which]);
}

/* A lane's quads. `own` is the first segment that ends after the chunk's first element; there is
 * one. */
WARP_FN void lane_step(const struct warp_step *a, const struct step_kind *kind,
                       const struct place *at, const uint32_t *keys, uint32_t own, bool all,
                       unsigned lane, struct lane_moments *st)
{
    struct step_raw r[2];
    struct place quads[2];
    struct lane_scalars scalars;

    WARP_FOR (half, 2) {
        uint32_t i = (uint32_t)lane_at(0, lane, half);

        quads[half].in_page = at->in_page + i;
        quads[half].in_block = at->in_block + i;
        quads[half].state = at->state;
        r[half] = step_read(a, kind, &quads[half]);
    }
    scalars_of(a, &scalars, own);
    scalars.segment = all ? own : segment_find(a, own, a->first + quads[0].in_page);
    WARP_FOR (half, 2)
        quad_step(a, kind, &quads[half], &r[half], &scalars, keys, all, half, st);
}

/* A chunk with more than one segment, or with elements that are in none. */
WARP_RARE struct lane_moments lane_step_rare(const struct warp_step a, struct step_kind kind,
                                             struct place at, uint32_t key0, uint32_t key1,
                                             uint32_t own, unsigned lane)
{
    const uint32_t keys[ZB_MOMENTS_MAX] = { key0, key1 };
    struct lane_moments st;

    memset(&st, 0, sizeof(st));
    lane_step(&a, &kind, &at, keys, own, false, lane, &st);
    return st;
}

/* `at` is the chunk's first element. */
WARP_FN void moment_put_q8(const struct warp_step *a, unsigned which, const struct place *at,
                           const struct lane_moments *st, uint32_t key)
{
    unsigned char *to = at->state + a->moment_at[which];
    uint32_t most[WARP_STATES], pattern;

    WARP_EACH (w) {
        most[w] = 0;
        WARP_FOR (e, 8) {
            uint32_t x = moment_finite(elem_bits(st[w].x[which][e / 4].x[e % 4]));

            most[w] = x > most[w] ? x : most[w];
        }
    }
    pattern = moment_pattern(warp_most(most));
    WARP_EACH (w) {
        WARP_FOR (half, 2) {
            uint32_t i = at->in_block + (uint32_t)lane_at(0, WARP_LANE(w), half);

            quad_put8(
                to, i, WARP_B, true,
                quad_encode_q8(st[w].x[which][half], pattern, key, i, a->moment_signed[which]));
        }
        if (WARP_LANE(w) == 0)
            ((elem32 *)(void *)(to + WARP_B))[at->in_block / ZB_Q8_GROUP] =
                elem_bits(moment_scale(pattern));
    }
}

/* One chunk of a step. What no segment touches is left alone: each element, but for moments of 8
 * bits, which are encoded as a whole wherever a segment touches their block. What rounds reduced
 * ones is drawn for the block's first segment. */
WARP_FN void warp_step(const struct warp_step *a, const struct step_kind *kind, uint64_t chunk)
{
    uint64_t block = chunk / (WARP_B / WARP_CHUNK), first = a->first + block * WARP_B;
    uint32_t in_block = (uint32_t)(chunk % (WARP_B / WARP_CHUNK)) * WARP_CHUNK;
    bool whole = kind->moments != ZB_MOMENTS_F32;
    uint64_t from = whole ? first : first + in_block;
    uint64_t to = whole ? first + WARP_B : from + WARP_CHUNK;
    struct place at = { chunk * WARP_CHUNK, in_block, a->state + block * a->block_bytes };
    struct lane_moments st[WARP_STATES];
    uint32_t s = segment_find(a, 0, from), own, keys[ZB_MOMENTS_MAX] = { 0, 0 };
    uint64_t begin = first + in_block;
    bool all;

    if (s == a->nsegments || a->segments[s].first >= to)
        return;
    for (uint32_t which = 0; which < kind->nmoments && whole; which++)
        keys[which] = moment_key(a->by_group[a->segments[s].group].rounding, which, first / WARP_B);
    own = whole ? segment_find(a, s, begin) : s;
    all = own < a->nsegments && a->segments[own].first <= begin &&
          a->segments[own].first + a->segments[own].count >= begin + WARP_CHUNK;
    own = own < a->nsegments ? own : s; /* after the last: no element finds it */
    WARP_EACH (w) {
        if (all)
            lane_step(a, kind, &at, keys, own, true, WARP_LANE(w), &st[w]);
        else
            st[w] = lane_step_rare(*a, *kind, at, keys[0], keys[1], own, WARP_LANE(w));
    }
    WARP_FOR (which, ZB_MOMENTS_MAX)
        if (which < kind->nmoments && moments_q8(kind->moments))
            moment_put_q8(a, which, &at, st, keys[which]);
}

#endif
