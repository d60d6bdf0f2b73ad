/*
 * model.h - a model as the units that a ZeRO engine gathers, and how a mode cuts it over ranks.
 *
 * MODEL. A unit is what is gathered and released together. Each micro-step gathers the units in the
 * sequence `order`: all of them forward, and again backward.
 *
 * A MODE defines which planes are whole on each rank, and which are split across ranks. The usual
 * formulas of ZeRO, for p + g + k bytes per parameter in the three planes, P parameters and N
 * ranks:
 *
 *     ddp      (p + g + k) P            everything on every rank
 *     zero1    (p + g + k/N) P          state cut
 *     zero2    (p + (g + k)/N) P        gradients cut too
 *     zero3    (p + g + k) P / N        all cut; fsdp is the same
 *     hybrid   (p + g + k) P / (N/nodes)   all cut inside each node, and again on the next
 *
 * Whole planes are in the rank's own memory. The daemon keeps each rank's slices of all three
 * planes, but nothing with ddp. Pure; any thread.
 */
#ifndef ZB_MODEL_H
#define ZB_MODEL_H

#include "base/muon.h"
#include "base/place.h"

#define ZB_UNITS_MAX      (1u << 20)
#define ZB_UNIT_ELEMS_MAX (UINT64_C(1) << 40)
#define ZB_PARAMS_MAX     (UINT64_C(1) << 56) /* of a model: no number of bytes overflows */
#define ZB_RANKS_MAX      65536u
#define ZB_MODEL_MATRICES 4u /* of a layer of a GPT */

/* ---- models */

struct zb_model {
    uint64_t *units; /* elements of each */
    uint32_t nunits;
    size_t units_room;
    uint32_t *order; /* units in the sequence in which a micro-step gathers them */
    uint32_t norder;
    uint64_t params, largest; /* elements: of all units, of the largest */
    /* Muon: units of matrices alone are matrix_unit, matrix_unit + 2, ... (matrix_units of them, all alike), and the
     * matrices of each; 0: there are none */
    uint32_t matrix_unit, matrix_units, nmatrices;
    struct zb_muon_matrix matrices[ZB_MODEL_MATRICES];
};

struct zb_gpt {
    uint64_t layers, width, vocab, seq;
    bool split; /* the matrices of each layer are a unit of their own, as for Muon */
};

/** Appends a unit: 0; -EINVAL: the number of elements is out of range; -ENOMEM. */
int zb_model_add(struct zb_model *m, uint64_t elems, struct zb_err *err);
/** Sets `order` when all units are added: forward in their order, then backward. 0; -EINVAL: no
 * units; -ENOMEM. */
int zb_model_order(struct zb_model *m, struct zb_err *err);
/** A model of equal units; the last one takes the remainder. */
int zb_model_params(struct zb_model *m, uint64_t params, uint32_t units, struct zb_err *err);
/** The model of examples/gpt: the embeddings, a unit for each layer (or two: its matrices, its
 * vectors), the last norm. The head shares the embedding, which is gathered a second time for it,
 * but not for the backward pass. */
int zb_model_gpt(struct zb_model *m, const struct zb_gpt *shape, struct zb_err *err);
/** Whether a unit consists of matrices that Muon may step. */
static inline bool zb_model_matrices(const struct zb_model *m, uint32_t unit)
{
    return unit >= m->matrix_unit && (unit - m->matrix_unit) / 2 < m->matrix_units &&
           (unit - m->matrix_unit) % 2 == 0;
}
void zb_model_done(struct zb_model *m);

/* ---- modes */

enum zb_mode { ZB_DDP, ZB_ZERO1, ZB_ZERO2, ZB_ZERO3, ZB_FSDP, ZB_HYBRID, ZB_MODES };

const char *zb_mode_name(enum zb_mode mode);    /* "zero3" */
const char *zb_mode_formula(enum zb_mode mode); /* "(p + g + k) P / N" */
/** The textbook's bytes on a rank: 2 + 2 + 12, or 4 + 4 + 8, for P parameters. */
double zb_mode_field(enum zb_mode mode, double params, uint32_t ranks, uint32_t nodes);
/** Whether the plane is split across ranks. */
bool zb_mode_cuts(enum zb_mode mode, enum zb_plane plane);
/** The number of ranks that it is split across. */
uint32_t zb_mode_world(enum zb_mode mode, uint32_t ranks, uint32_t nodes);

/**
 * The shards of the first `local` of `world` ranks, in the order in which these ranks register
 * them. These are the ranks of the first node, which keeps the most. `matrices` is the layout of
 * units of matrices, `layout` that of all others. *ret is malloc'ed. 0 or -ENOMEM.
 */
int zb_model_shards(const struct zb_model *m, const struct zb_layout *layout,
                    const struct zb_layout *matrices, uint32_t world, uint32_t local,
                    struct zb_place_shard **ret, uint32_t *ret_n);

/* ---- buffers of the engine */

#define ZB_PREFETCH_MAX     64u     /* units gathered ahead */
#define ZB_GATHER_IDLE      3u      /* idle buffers of gathered units that are kept */
#define ZB_REDUCES_MAX      2u      /* gradients in transit to other ranks and the daemon */
#define ZB_PIECES           4u      /* in the staging of each rank */
#define ZB_PIECE_ELEMS_GOOD 262144u /* 1 MiB: makes the cost of a request negligible */

/** fp32 elements of a transferred piece, if a rank's longest slice has `slice` elements. */
static inline uint64_t zb_piece_elems(uint64_t slice, uint32_t page_elems)
{
    uint64_t good = (ZB_PIECE_ELEMS_GOOD + (uint64_t)page_elems - 1) / page_elems * page_elems;

    return slice < good ? slice : good;
}

/** Bytes of one piece, and of the staging of a rank. */
static inline uint64_t zb_piece_bytes(uint64_t piece_elems)
{
    return (piece_elems * sizeof(float) + ZB_PAGE_ALIGN - 1) / ZB_PAGE_ALIGN * ZB_PAGE_ALIGN;
}

static inline uint64_t zb_staging_bytes(uint64_t piece_elems)
{
    return ZB_PIECES * zb_piece_bytes(piece_elems);
}

#endif
