/*
 * adam.c - the step of Adam, with L2 weight decay, for every dtype.
 */
#include "kernels/ref/step_priv.h"

STEP_FUNCTIONS(ADAM, 2)
