/*
 * oracle.c - what a job must hold, computed for whole units in plain arrays. zsim.h has the model.
 */
#include "tests/sim/zsim.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK ZB_BLOCK_ELEMS

/* Odd sizes; more of one size than a ring has places; a frozen part, and a gap; units that never
 * change, one of them in 8 bits. */
struct unit zs_units[ZS_UNITS] = {
    { "u0", 3 * BLOCK - 100, ZB_F32, ZB_F32, false, false, { { 0, 3 * BLOCK - 100, 0 } }, 1 },
    { "u1", 2 * BLOCK, ZB_BF16, ZB_F32, false, false, { { 0, 2 * BLOCK, 1 } }, 1 },
    { "u2", 2 * BLOCK, ZB_BF16, ZB_F32, false, false, { { 0, 2 * BLOCK, 0 } }, 1 },
    { "u3", 2 * BLOCK, ZB_BF16, ZB_F32, false, false, { { 0, 2 * BLOCK, 0 } }, 1 },
    { "u4", BLOCK + 1, ZB_BF16, ZB_F32, false, false, { { 0, BLOCK + 1, 1 } }, 1 },
    { "u5",
      5 * BLOCK,
      ZB_BF16,
      ZB_F32,
      false,
      false,
      { { 0, 1000, 0 },
        { 1000, 2 * BLOCK, ZP_GROUP_FROZEN },
        { 3 * BLOCK, 10, 1 },
        { 3 * BLOCK + 50, 5000, 0 } },
      4 },
    { "u6", 2 * BLOCK, ZB_F32, ZB_F32, true, true, { { 0, 2 * BLOCK, ZP_GROUP_FROZEN } }, 1 },
    { "u7", 100, ZB_BF16, ZB_BF16, false, false, { { 0, 100, 0 } }, 1 },
    { "u8", 900, ZB_BF16, ZB_F32, true, false, { { 0, 900, ZP_GROUP_FROZEN } }, 1 },
};

const struct zk_params zs_groups[2] = {
    { .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.01, .scale = 1 },
    { .lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0, .scale = 1 },
};

static const struct zk_ops *oracle_ops(void)
{
    static const struct zk_ops *ops;

    if (!ops)
        (void)zk_select(NULL, &ops, NULL);
    return ops;
}

struct zb_layout zs_layout(unsigned u)
{
    const struct unit *unit = &zs_units[u];
    struct zb_layout layout = { 0 };

    (void)zb_layout_of(unit->dtype, unit->frozen ? ZB_F32 : unit->grad_dtype, ZB_ADAMW,
                       ZB_MOMENTS_F32, unit->frozen, &layout, NULL);
    if (unit->quantized)
        zb_layout_quantize(&layout);
    return layout;
}

float zs_initial(unsigned u, uint64_t element)
{
    return 1.0f + (float)((element * 7 + u) % 1000) / 7;
}

/* Small integers, which both types hold exactly. */
void zs_gradient(uint64_t n, unsigned u, uint64_t first, uint64_t count, void *out)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t x = (first + i) * 13 + n * 31 + u * 5;
        float g = (float)(int)(x % 61) - 30.0f;
        uint32_t bits;

        memcpy(&bits, &g, sizeof(bits));
        if (zs_units[u].grad_dtype == ZB_BF16)
            ((uint16_t *)out)[i] = (uint16_t)(bits >> 16);
        else
            ((float *)out)[i] = g;
    }
}

static uint8_t *plane_new(uint64_t bytes)
{
    uint8_t *p = aligned_alloc(64, bytes);

    assert_non_null(p);
    memset(p, 0, bytes);
    return p;
}

static uint64_t plane_bytes(unsigned u, enum zsd_saved_plane p)
{
    struct zb_layout layout = zs_layout(u);

    return zb_blocks_bytes(layout.block_bytes[zsd_plane_of(p)], zb_padded_elems(zs_units[u].elems));
}

static struct zk_page page_of(const struct zs_state *s, unsigned u, void *grad)
{
    return (struct zk_page){ .param = s->planes[u][ZSD_SAVED_PARAM],
                             .state = s->planes[u][ZSD_SAVED_STATE],
                             .grad = grad,
                             .count = zb_padded_elems(zs_units[u].elems) };
}

struct zs_state *zs_state_copy(const struct zs_state *from)
{
    struct zs_state *s = calloc(1, sizeof(*s));

    assert_non_null(s);
    if (from)
        *s = *from;
    s->refs = 1;
    for (unsigned u = 0; u < ZS_UNITS; u++)
        for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
            uint64_t bytes = plane_bytes(u, p);

            s->planes[u][p] = bytes > 0 ? plane_new(bytes) : NULL;
            if (from && bytes > 0)
                memcpy(s->planes[u][p], from->planes[u][p], bytes);
        }
    return s;
}

bool zs_pages_same(const struct zs_state *s, unsigned u, enum zsd_saved_plane p, uint64_t first,
                   uint64_t count, uint32_t page_elems, const uint8_t *bytes)
{
    static const uint8_t zeros[ZB_PAGE_ALIGN];
    uint32_t block_bytes = zs_layout(u).block_bytes[zsd_plane_of(p)];

    for (uint64_t at = 0, n; at < count; at += n) {
        const uint8_t *is = bytes + zb_plane_bytes(block_bytes, page_elems, at);
        uint64_t used;

        n = zb_min_u64(page_elems, count - at);
        used = zb_blocks_bytes(block_bytes, n);
        if (memcmp(is, s->planes[u][p] + zb_blocks_bytes(block_bytes, first + at), used) != 0 ||
            memcmp(is + used, zeros, zb_page_bytes(block_bytes, n) - used) != 0)
            return false;
    }
    return true;
}

struct zs_state *zs_state_first(void)
{
    struct zs_state *s = zs_state_copy(NULL);

    for (unsigned u = 0; u < ZS_UNITS; u++) {
        uint64_t count = zb_padded_elems(zs_units[u].elems);
        struct zb_layout layout = zs_layout(u);
        struct zk_page page = page_of(s, u, NULL);
        float *master = (float *)(void *)plane_new(count * sizeof(float));

        for (uint64_t i = 0; i < count; i++)
            master[i] = zs_initial(u, i);
        zk_page_init(oracle_ops(), &layout, &page, master);
        free(master);
    }
    return s;
}

struct zs_state *zs_state_next(const struct zs_state *from, uint64_t n)
{
    struct zs_state *s = zs_state_copy(from);
    struct zk_scalars by_group[2];

    s->iterations++;
    s->applied += n > 0;
    for (unsigned g = 0; g < 2 && n > 0; g++)
        by_group[g] = zk_prepare(ZB_ADAMW, &zs_groups[g], s->applied);
    for (unsigned u = 0; u < ZS_UNITS && n > 0; u++) {
        const struct unit *unit = &zs_units[u];
        struct zb_layout layout = zs_layout(u);
        struct zk_segment segments[4];
        size_t nsegments = 0;
        struct zk_page page;
        uint8_t *grad;

        if (unit->frozen)
            continue;
        for (unsigned t = 0; t < unit->ntensors; t++)
            if (unit->tensors[t].group != ZP_GROUP_FROZEN)
                segments[nsegments++] = (struct zk_segment){ .first = unit->tensors[t].first,
                                                             .count = unit->tensors[t].count,
                                                             .group = unit->tensors[t].group };
        grad = plane_new(zb_padded_elems(unit->elems) * sizeof(float));
        zs_gradient(n, u, 0, zb_padded_elems(unit->elems), grad);
        page = page_of(s, u, grad);
        zk_page_step(oracle_ops(), &layout, &page, segments, nsegments, by_group);
        free(grad);
    }
    return s;
}

struct zs_state *zs_state_ref(struct zs_state *s)
{
    if (s)
        s->refs++;
    return s;
}

void zs_state_unref(struct zs_state *s)
{
    if (!s || --s->refs > 0)
        return;
    for (unsigned u = 0; u < ZS_UNITS; u++)
        for (unsigned p = 0; p < ZSD_SAVED_PLANES; p++)
            free(s->planes[u][p]);
    free(s);
}

void zs_model_copy(struct zs_model *to, const struct zs_model *from)
{
    *to = *from;
    for (unsigned j = 0; j < ZS_JOBS; j++) {
        (void)zs_state_ref(to->jobs[j].committed);
        (void)zs_state_ref(to->jobs[j].prepared);
        for (unsigned i = 0; i < to->jobs[j].nsnaps; i++)
            (void)zs_state_ref(to->jobs[j].snaps[i].state);
    }
}

void zs_model_done(struct zs_model *m)
{
    for (unsigned j = 0; j < ZS_JOBS; j++) {
        zs_state_unref(m->jobs[j].committed);
        zs_state_unref(m->jobs[j].prepared);
        for (unsigned i = 0; i < m->jobs[j].nsnaps; i++)
            zs_state_unref(m->jobs[j].snaps[i].state);
    }
    *m = (struct zs_model){ 0 };
}
