/*
 * store_own.h - a store that keeps everything in this process: store_own.c.
 */
#ifndef ZC_ZERO_STORE_OWN_H
#define ZC_ZERO_STORE_OWN_H

#include "client/zero/core/store.h"
#include "kernels/zk_page.h"

struct zcz_note {
    unsigned char *sent, *kept; /* of the next step, and of the newest; NULL: none */
    size_t sent_bytes, kept_bytes;
};

/* What is common to them; the first member of each. */
struct zcz_own {
    struct zcz_store base;
    float *piece;
    bool piece_used;
    struct zcz_note notes[2]; /* of this rank, of the job */
};

/* Of struct zcz_store_ops, and parts of it. */
int zcz_own_open(struct zcz_store *s);
/** Sets piece_elems and makes the piece. */
int zcz_own_join(struct zcz_store *s);
float *zcz_own_piece(struct zcz_store *s);
void zcz_own_piece_put(struct zcz_store *s, float *piece);
int zcz_own_release(struct zcz_store *s, struct zcz_unit *u);
int zcz_own_note_put(struct zcz_store *s, struct zcz_op *op, bool of_job, const void *note,
                     size_t bytes);
int zcz_own_note_get(struct zcz_store *s, bool of_job, void *buf, size_t *ret_bytes);
int zcz_own_nothing(struct zcz_store *s);
int zcz_own_poll(struct zcz_store *s, uint32_t wait_us);
/** by_group[step->ngroups], of a step that is none of skips. */
void zcz_own_scalars(const struct zcz_store *s, const struct zc_step *step,
                     struct zk_scalars *by_group);
/** The step is made: its notes are the newest, and this is its answer. */
void zcz_own_stepped(struct zcz_store *s, const struct zc_step *step, struct zc_stepped *ret);
void zcz_own_done(struct zcz_own *o);

#endif
