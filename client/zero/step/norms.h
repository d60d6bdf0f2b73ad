/*
 * norms.h - norms of reduced gradients, tensor by tensor: norms.c.
 */
#ifndef ZC_ZERO_NORMS_H
#define ZC_ZERO_NORMS_H

#include "client/zero/core/zero.h"

/** Computes the norm of each trainable tensor of all units, for the gradients reduced in this step
 * so far. Collective. *ret is the engine's, until a gradient changes. 0 or the failure. */
int zcz_norms(struct zc_zero *z, const struct zc_zero_norm **ret);
void zcz_norms_close(struct zc_zero *z);

#endif
