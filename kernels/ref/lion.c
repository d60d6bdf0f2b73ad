/*
 * lion.c - the step of Lion, for every dtype.
 */
#include "kernels/ref/step_priv.h"

STEP_FUNCTIONS(LION, 1)
