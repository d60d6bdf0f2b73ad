/*
 * step_priv.h - the loops around one element's arithmetic: an optimizer's nine step functions.
 *
 * MODEL. STEP_FUNCTIONS(ADAMW, 2) defines ZK_NAME(step_ADAMW_x_y) for every dtype x of the
 * parameter and y of the gradient, out of elem_step_ADAMW(), for an optimizer of two moments. The
 * arrays are parameters of a function of its own, because there a compiler believes `restrict`; the
 * scalars are copied first, so that no store of the loop can change them.
 */
#ifndef ZK_STEP_PRIV_H
#define ZK_STEP_PRIV_H

#include "kernels/ref/elem_priv.h"
#include "kernels/zk_priv.h"

/* The types of arrays by dtype, and an element of them. */
typedef float step_F32_t;
typedef uint16_t step_BF16_t;
typedef uint16_t step_F16_t;
typedef float step_master_F32_t; /* there is none */
typedef int16_t step_master_BF16_t;
typedef float step_master_F16_t;

#define STEP_GRAD_F32(x)                        (x)
#define STEP_GRAD_BF16(x)                       elem_value_of_bf16(x)
#define STEP_GRAD_F16(x)                        elem_value_of_f16(x)

#define STEP_LOAD_F32(param, master, i)         ((param)[i])
#define STEP_LOAD_BF16(param, master, i)        elem_value_of_split((param)[i], (master)[i])
#define STEP_LOAD_F16(param, master, i)         ((master)[i])

#define STEP_STORE_F32(value, param, master, i) ((param)[i] = (value))
#define STEP_STORE_BF16(value, param, master, i) \
    elem_split_canonical(value, &(param)[i], &(master)[i])
#define STEP_STORE_F16(value, param, master, i) \
    ((param)[i] = elem_to_f16(value), (master)[i] = (value))

#define STEP_V_1(v, i) ((void)(v), NULL)
#define STEP_V_2(v, i) (&(v)[i])

#define STEP_FUNCTION(moments, optimizer, p_type, g_type)                                          \
    static inline void step_loop_##optimizer##_##p_type##_##g_type(                                \
        const struct zk_scalars *s, step_##p_type##_t *restrict param,                             \
        step_master_##p_type##_t *restrict master, float *restrict m, float *restrict v,           \
        const step_##g_type##_t *restrict grad, size_t n)                                          \
    {                                                                                              \
        const struct zk_scalars k = *s;                                                            \
                                                                                                   \
        (void)master;                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            float value = STEP_LOAD_##p_type(param, master, i);                                    \
                                                                                                   \
            elem_step_##optimizer(&k, &value, &m[i], STEP_V_##moments(v, i),                       \
                                  STEP_GRAD_##g_type(grad[i]));                                    \
            STEP_STORE_##p_type(value, param, master, i);                                          \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    void ZK_NAME(step_##optimizer##_##p_type##_##g_type)(const struct zk_scalars *s,               \
                                                         const struct zk_step_arrays *a, size_t n) \
    {                                                                                              \
        step_loop_##optimizer##_##p_type##_##g_type(s, a->param, a->master, a->m, a->v, a->grad,   \
                                                    n);                                            \
    }

#define STEP_FUNCTIONS(optimizer, moments) ZK_STEPS_OF(STEP_FUNCTION, moments, optimizer)

#endif
