/*
 * store_own.h - shared by the stores that keep everything in this process: store_own.c.
 */
#ifndef ZC_ZERO_STORE_OWN_H
#define ZC_ZERO_STORE_OWN_H

#include "client/zero/core/store.h"
#include "kernels/zk_page.h"

struct zcz_note {
    unsigned char *sent, *kept; /* for the next step, and of the newest step; NULL: none */
    size_t sent_bytes, kept_bytes;
};

/* Scalars and segments of a step. */
struct zcz_own_table {
    struct zk_scalars *scalars; /* by group or by class */
    uint32_t nscalars;
    size_t scalars_room;
    bool apart;                  /* has segments; otherwise the units' own are used */
    struct zk_segment *segments; /* of all units, in their order */
    size_t segments_room;
    uint32_t nsegments;
    uint32_t *at;  /* [nunits + 1]: where each unit's segments begin */
    uint32_t most; /* number of segments that there is room for: that of trainable tensors */
    /* Muon: its matrices. Scalars [0, n) are AdamW's, [n, 2 n) Muon's of the same groups or classes */
    struct zk_matrix *matrices;
    size_t matrices_room;
    uint32_t nmatrices;
    uint32_t *matrix_at; /* [nunits + 1] */
};

/* Common to these stores; the first member of each. */
struct zcz_own {
    struct zcz_store base;
    float *piece;
    bool piece_used;
    struct zcz_note notes[2]; /* the rank's, the job's */
    struct zcz_own_table table;
    double *factors; /* by trainable tensor, for the next step with factors */
    size_t factors_room;
};

/* Of struct zcz_store_ops, and parts of it. */
int zcz_own_open(struct zcz_store *s);
/** Sets piece_elems and allocates the piece. */
int zcz_own_join(struct zcz_store *s);
float *zcz_own_piece(struct zcz_store *s);
void zcz_own_piece_put(struct zcz_store *s, float *piece);
int zcz_own_release(struct zcz_store *s, struct zcz_unit *u);
int zcz_own_note_put(struct zcz_store *s, struct zcz_op *op, bool of_job, const void *note,
                     size_t bytes);
int zcz_own_note_get(struct zcz_store *s, bool of_job, void *buf, size_t *ret_bytes);
int zcz_own_nothing(struct zcz_store *s);
int zcz_own_poll(struct zcz_store *s, uint32_t wait_us);
/** Keeps factors of tensors. Limits are for early steps, and there are none. */
int zcz_own_tensors(struct zcz_store *s, struct zcz_op *op, uint64_t step, bool limits,
                    const double *values, uint32_t ntensors);
/**
 * Fills own.table with the scalars and segments of a step, by groups or by classes. The step must
 * not be a skip. The table stays until the next one is made.
 *
 * @return 0; -ENOMEM, refused
 */
int zcz_own_table(struct zcz_own *o, const struct zc_step *step, const struct zc_classes *classes);
/** Returns the segments of a unit. */
const struct zk_segment *zcz_own_segments(const struct zcz_own *o, const struct zcz_unit *u,
                                          uint32_t *ret_n);
/** A step was made or skipped: keeps its notes, and fills in the answer. */
void zcz_own_stepped(struct zcz_store *s, bool applied, struct zc_stepped *ret);
void zcz_own_done(struct zcz_own *o);

#endif
