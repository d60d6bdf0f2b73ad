/*
 * adagrad.c - the step of Adagrad, for every dtype.
 */
#include "kernels/ref/step_priv.h"

STEP_FUNCTIONS(ADAGRAD, 1)
