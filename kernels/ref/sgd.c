/*
 * sgd.c - the step of SGD with momentum, for every dtype.
 */
#include "kernels/ref/step_priv.h"

STEP_FUNCTIONS(SGD, 1)
