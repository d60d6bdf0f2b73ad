/*
 * adamw.c - the step of AdamW, for every dtype.
 */
#include "kernels/ref/step_priv.h"

STEP_FUNCTIONS(ADAMW, 2)
