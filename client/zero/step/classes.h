/*
 * classes.h - what a step is to be: classes.c.
 */
#ifndef ZC_ZERO_CLASSES_H
#define ZC_ZERO_CLASSES_H

#include "client/zero/core/zero.h"

/** 0 or a refusal. */
int zcz_how_check(struct zc_zero *z, const struct zc_zero_step_how *how);
/** The same on ranks that say the same. */
uint64_t zcz_how_hash(const struct zc_zero *z, const struct zc_zero_step_how *how);
/** The norm of what is stepped is not that of all gradients. */
bool zcz_how_by_tensor(const struct zc_zero *z, const struct zc_zero_step_how *how);
/**
 * Makes the classes of the next step.
 *
 * @param used       a bit for each tensor of all units: it got a gradient on some rank; NULL: all did
 * @param ret        the engine's, until the next call; NULL: groups as they were declared say the same
 * @param ret_alone  how many trainable tensors are left alone since they got none
 * @return 0 or a refusal: -EINVAL more classes than there may be, -ENOMEM
 */
int zcz_classes_make(struct zc_zero *z, const struct zc_zero_step_how *how,
                     const unsigned char *used, const struct zc_classes **ret, uint32_t *ret_alone);
void zcz_classes_close(struct zc_zero *z);

#endif
