/*
 * steps.c - the tables of the step functions of a variant.
 */
#include "kernels/zk_priv.h"

#define STEP_ROW(moments, optimizer, p_type, g_type) \
    [ZB_##optimizer][ZB_##p_type][ZB_##g_type] =     \
        ZK_NAME(step_##optimizer##_##moments##_##p_type##_##g_type),

zk_step_fn *const ZK_NAME(steps)[ZB_OPTIMIZER_END][ZB_DTYPE_END][ZB_DTYPE_END] = {
    ZK_STEPS(STEP_ROW, F32)
};
zk_step_fn *const ZK_NAME(steps_bf16)[ZB_OPTIMIZER_END][ZB_DTYPE_END][ZB_DTYPE_END] = {
    ZK_STEPS(STEP_ROW, BF16)
};
zk_step_fn *const ZK_NAME(steps_q8)[ZB_OPTIMIZER_END][ZB_DTYPE_END][ZB_DTYPE_END] = {
    ZK_STEPS(STEP_ROW, Q8)
};
