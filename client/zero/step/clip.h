/*
 * clip.h - clipping by tensor, in the engine: clip.c.
 */
#ifndef ZC_ZERO_CLIP_H
#define ZC_ZERO_CLIP_H

#include "client/zero/core/zero.h"

/** Whether tensors are clipped by averages of their norms. */
static inline bool zcz_clip_on(const struct zc_zero *z)
{
    return z->options.clip_mode == ZC_CLIP_TENSOR;
}

/** Called in the start: no tensor has an average. 0 or a refusal. */
int zcz_clip_start(struct zc_zero *z);
void zcz_clip_close(struct zc_zero *z);
/** The end of the start: if some ranks that share units have several daemons, whether all daemons can step
 * units early (pass/unit_sums.c). Collective. 0 or the failure. */
int zcz_clip_agree(struct zc_zero *z);
/** A step has begun, or the job was started: sets whether the next one's sums cross nodes. */
void zcz_clip_next_step(struct zc_zero *z);
/** Whether nothing about several nodes is in the way of early steps. */
bool zcz_clip_agreed(const struct zc_zero *z);
/** Whether the ranks exchange the sums of each unit in the next step: those of some group are on several
 * nodes. All groups make the same calls. */
bool zcz_clip_nodes(const struct zc_zero *z);
/** Whether the next step belongs to the warm-up, and is clipped globally. */
bool zcz_clip_warm(const struct zc_zero *z);
/** Whether the values of the next step are known before its gradients, so that it may begin early. `clip`: as given
 * to it. */
bool zcz_clip_early(const struct zc_zero *z, double clip);
/** The limit of the global norm in the next step; 0: none. clip: as the trainer gave it. */
double zcz_clip_global(const struct zc_zero *z, double clip);

/** Begins to send the limits of all tensors to the store, before the step is announced. As the calls
 * of struct zcz_store_ops. */
int zcz_clip_limits(struct zc_zero *z, struct zcz_op *op, uint64_t step);
/** Sends the factors of the step to the store, and waits. */
int zcz_clip_send(struct zc_zero *z, uint64_t step);

/** Computes the sums of all tensors, of all ranks. Every gradient has reached the store. Collective.
 * 0 or the failure. */
int zcz_clip_sums(struct zc_zero *z);
/** Returns the norm of what is stepped, without an average or a scale.
 */
double zcz_clip_norm(const struct zc_zero *z, const struct zc_zero_step_how *how);
/**
 * Decides the factors of the step, and updates the averages. All ranks get the same.
 *
 * @param classes  of the step; NULL: every tensor is stepped
 * @param scale    of the step
 * @return the norm after clipping over that before
 */
double zcz_clip_apply(struct zc_zero *z, const struct zc_zero_step_how *how,
                      const struct zc_classes *classes, double scale);

/** The block of averages in the job's note: its length (0: there is none), and its bytes. */
size_t zcz_clip_bytes(const struct zc_zero *z);
void zcz_clip_pack(const struct zc_zero *z, unsigned char *out);
/** Reads the block of a job that is resumed. 0 or a refusal. */
int zcz_clip_unpack(struct zc_zero *z, const unsigned char *block, size_t bytes);
/** Returns a digest, which must be equal on all ranks. */
uint64_t zcz_clip_digest(const struct zc_zero *z);

#endif
