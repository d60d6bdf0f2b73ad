#include "base/model.h"

#include <errno.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/util.h"

/* ---- models */

int zb_model_add(struct zb_model *m, uint64_t elems, struct zb_err *err)
{
    if (elems < 1 || elems > ZB_UNIT_ELEMS_MAX)
        return zb_fail(err, -EINVAL, "a unit of %llu elements: from 1 to %llu",
                       (unsigned long long)elems, (unsigned long long)ZB_UNIT_ELEMS_MAX);
    if (elems > ZB_PARAMS_MAX - m->params)
        return zb_fail(err, -EINVAL, "more than %llu parameters",
                       (unsigned long long)ZB_PARAMS_MAX);
    if (m->nunits == ZB_UNITS_MAX)
        return zb_fail(err, -EINVAL, "more than %u units", ZB_UNITS_MAX);
    if (zb_grow(&m->units, &m->units_room, m->nunits, 1) < 0)
        return zb_fail(err, -ENOMEM, "a model of %u units: %m", m->nunits + 1);
    m->units[m->nunits++] = elems;
    m->params += elems;
    m->largest = zb_max_u64(m->largest, elems);
    return 0;
}

/* Makes room for the order: every unit twice, and `more`. */
static int model_order_room(struct zb_model *m, uint32_t more, struct zb_err *err)
{
    if (m->nunits == 0)
        return zb_fail(err, -EINVAL, "a model of no units");
    m->norder = 0;
    m->order = calloc(2 * (size_t)m->nunits + more, sizeof(*m->order));
    return m->order ? 0 : zb_fail(err, -ENOMEM, "a model of %u units: %m", m->nunits);
}

int zb_model_order(struct zb_model *m, struct zb_err *err)
{
    int rc = model_order_room(m, 0, err);

    for (uint32_t u = 0; u < m->nunits && rc == 0; u++)
        m->order[m->norder++] = u;
    for (uint32_t u = m->nunits; u-- > 0 && rc == 0;)
        m->order[m->norder++] = u;
    return rc;
}

int zb_model_params(struct zb_model *m, uint64_t params, uint32_t units, struct zb_err *err)
{
    uint64_t each;
    int rc = 0;

    if (units < 1 || units > ZB_UNITS_MAX || params < units)
        return zb_fail(err, -EINVAL, "%llu parameters in %u units", (unsigned long long)params,
                       units);
    each = zb_div_up(params, units);
    for (uint64_t left = params; left > 0 && rc == 0; left -= zb_min_u64(each, left))
        rc = zb_model_add(m, zb_min_u64(each, left), err);
    return rc < 0 ? rc : zb_model_order(m, err);
}

static int model_layer(struct zb_model *m, uint64_t matrices, uint64_t vectors, bool split,
                       struct zb_err *err)
{
    int rc = zb_model_add(m, split ? matrices : matrices + vectors, err);

    return rc == 0 && split ? zb_model_add(m, vectors, err) : rc;
}

int zb_model_gpt(struct zb_model *m, const struct zb_gpt *s, struct zb_err *err)
{
    uint64_t c = s->width;
    int rc;

    /* the limits of examples/gpt: no product below overflows */
    if (s->layers < 1 || s->layers > 4096 || c < 1 || c > 65536 || s->vocab < 1 ||
        s->vocab > 1048576 || s->seq < 1 || s->seq > 1048576)
        return zb_fail(err, -EINVAL,
                       "%llu layers (to 4096), width %llu (to 65536), vocabulary %llu, sequence "
                       "%llu (both to 1048576)",
                       (unsigned long long)s->layers, (unsigned long long)c,
                       (unsigned long long)s->vocab, (unsigned long long)s->seq);
    rc = zb_model_add(m, (s->vocab + s->seq) * c, err);
    for (uint64_t l = 0; l < s->layers && rc == 0; l++) /* matrices 3 + 1 + 4 + 4, and vectors */
        rc = model_layer(m, 12 * c * c, 13 * c, s->split, err);
    if (s->split) {
        m->matrix_unit = 1;
        m->matrix_units = (uint32_t)s->layers;
        for (uint64_t first = 0; m->nmatrices < ZB_MODEL_MATRICES; m->nmatrices++) {
            static const uint64_t cols[ZB_MODEL_MATRICES] = { 3, 1, 4, 4 };

            m->matrices[m->nmatrices] = (struct zb_muon_matrix){ .first = first * c * c,
                                                                 .rows = c,
                                                                 .cols = cols[m->nmatrices] * c };
            first += cols[m->nmatrices];
        }
    }
    if (rc == 0)
        rc = zb_model_add(m, 2 * c, err);
    if (rc == 0)
        rc = model_order_room(m, 1, err);
    for (uint32_t u = 0; u < m->nunits && rc == 0; u++)
        m->order[m->norder++] = u;
    if (rc == 0)
        m->order[m->norder++] = 0;
    for (uint32_t u = m->nunits - 1; u-- > 1 && rc == 0;)
        m->order[m->norder++] = u;
    return rc;
}

void zb_model_done(struct zb_model *m)
{
    free(m->units);
    free(m->order);
    *m = (struct zb_model){ 0 };
}

/* ---- modes */

static const struct {
    const char *name, *formula;
    bool cuts[ZB_PLANES]; /* param, grad, state */
} modes[] = {
    [ZB_DDP] = { "ddp", "(p + g + k) P", { false, false, false } },
    [ZB_ZERO1] = { "zero1", "(p + g + k/N) P", { false, false, true } },
    [ZB_ZERO2] = { "zero2", "(p + (g + k)/N) P", { false, true, true } },
    [ZB_ZERO3] = { "zero3", "(p + g + k) P / N", { true, true, true } },
    [ZB_FSDP] = { "fsdp", "(p + g + k) P / N", { true, true, true } },
    [ZB_HYBRID] = { "hybrid", "(p + g + k) P / (N / nodes)", { true, true, true } },
};

const char *zb_mode_name(enum zb_mode mode)
{
    return modes[mode].name;
}

const char *zb_mode_formula(enum zb_mode mode)
{
    return modes[mode].formula;
}

bool zb_mode_cuts(enum zb_mode mode, enum zb_plane plane)
{
    return modes[mode].cuts[plane];
}

uint32_t zb_mode_world(enum zb_mode mode, uint32_t ranks, uint32_t nodes)
{
    return mode == ZB_HYBRID ? ranks / nodes : ranks;
}

double zb_mode_field(enum zb_mode mode, double params, uint32_t ranks, uint32_t nodes)
{
    static const double textbook[ZB_PLANES] = { 2, 2, 12 };
    double bytes = 0, n = zb_mode_world(mode, ranks, nodes);

    for (enum zb_plane p = 0; p < ZB_PLANES; p++)
        bytes += params * textbook[p] / (modes[mode].cuts[p] ? n : 1);
    return bytes;
}

int zb_model_shards(const struct zb_model *m, const struct zb_layout *layout,
                    const struct zb_layout *matrices, uint32_t world, uint32_t local,
                    struct zb_place_shard **ret, uint32_t *ret_n)
{
    struct zb_place_shard *shards = calloc((size_t)m->nunits * local, sizeof(*shards));
    uint32_t n = 0;

    if (!shards)
        return -ENOMEM;
    for (uint32_t r = 0; r < local; r++)
        for (uint32_t u = 0; u < m->nunits; u++) {
            uint64_t slice, first, count;

            zb_slice(m->units[u], world, r, &slice, &first, &count);
            if (count > 0)
                shards[n++] = (struct zb_place_shard){
                    .layout = zb_model_matrices(m, u) ? matrices : layout,
                    .count = count,
                    .rank = r,
                    .unit = u,
                };
        }
    *ret = shards;
    *ret_n = n;
    return 0;
}
