/*
 * classes.h - the trainer's arguments of a step, checked and made into classes: classes.c.
 */
#ifndef ZC_ZERO_CLASSES_H
#define ZC_ZERO_CLASSES_H

#include "client/zero/core/zero.h"

/** Checks the arguments. 0 or a refusal. */
int zcz_how_check(struct zc_zero *z, const struct zc_zero_step_how *how);
/** Returns a hash of the arguments, which is equal on ranks that pass the same ones. */
uint64_t zcz_how_hash(const struct zc_zero *z, const struct zc_zero_step_how *how);
/** Whether the norm of what is stepped differs from that of all gradients. */
bool zcz_how_by_tensor(const struct zc_zero *z, const struct zc_zero_step_how *how);
/**
 * Makes the classes of the next step.
 *
 * @param used       a bit for each tensor of all units: has a gradient on some rank; NULL: all have
 * @param ret        the engine's, until the next call; NULL: the groups as declared are enough
 * @param ret_alone  number of trainable tensors that are not stepped, because they have no gradient
 * @return 0 or a refusal: -EINVAL too many classes, -ENOMEM
 */
int zcz_classes_make(struct zc_zero *z, const struct zc_zero_step_how *how,
                     const unsigned char *used, const struct zc_classes **ret, uint32_t *ret_alone);
void zcz_classes_close(struct zc_zero *z);

#endif
