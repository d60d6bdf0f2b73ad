/*
 * step_priv.h - the loops around one element's arithmetic: an optimizer's step functions.
 *
 * MODEL. STEP_FUNCTIONS(ADAMW, 2) defines ZK_NAME(step_ADAMW_x_y_z) for every form x of moments of
 * fp32 and bf16 and every dtype y of the parameter and z of the gradient, from elem_step_ADAMW(),
 * for an optimizer with two moments. The arrays are parameters of a separate function, because
 * compilers use `restrict` there. The scalars are copied first, so that no store of the loop can
 * change them.
 *
 * fp16 has no loops: its gradients are converted to fp32 chunk by chunk, and its parameters from
 * their fp32 masters, both in the first-level cache, by the kernels of cast.c.
 */
#ifndef ZK_STEP_PRIV_H
#define ZK_STEP_PRIV_H

#include "kernels/ref/moment_priv.h"
#include "kernels/zk_priv.h"

#define STEP_CHUNK 512

/* The types of array elements by dtype, and the value of an element. */
typedef float step_F32_t;
typedef uint16_t step_BF16_t;
typedef float step_master_F32_t; /* not used */
typedef int16_t step_master_BF16_t;
typedef uint16_t step_Q8_t; /* moments of 8 bits are decoded to bf16 before, which is exact */

#define STEP_VALUE_F32(x)                       (x)
#define STEP_VALUE_BF16(x)                      elem_value_of_bf16(x)

#define STEP_LOAD_F32(param, master, i)         ((param)[i])
#define STEP_LOAD_BF16(param, master, i)        elem_value_of_split((param)[i], (master)[i])

#define STEP_STORE_F32(value, param, master, i) ((param)[i] = (value))
#define STEP_STORE_BF16(value, param, master, i) \
    elem_split_canonical(value, &(param)[i], &(master)[i])

#define STEP_VALUE_Q8(x) elem_value_of_bf16(x)

/* The random bits for a moment, if its dtype needs any, and the moment rounded with them. Those of
 * 8 bits are rounded after, group by group. */
#define STEP_RANDOM_F32(key, place)                 0
#define STEP_RANDOM_Q8(key, place)                  0
#define STEP_MOMENT_Q8(m, moment, random)           (m)
#define STEP_RANDOM_BF16(key, place)                moment_random(key, place)
#define STEP_MOMENT_F32(m, moment, random)          (m)
#define STEP_MOMENT_BF16(m, moment, random)         moment_of_canonical(m, moment_noise_of(random, moment))

#define STEP_V_LOAD_1(m_type, v, i)                 0
#define STEP_V_LOAD_2(m_type, v, i)                 STEP_VALUE_##m_type((v)[i])
#define STEP_V_STORE_1(m_type, value, v, i, random) ((void)(v), (void)(value))
#define STEP_V_STORE_2(m_type, value, v, i, random) \
    ((v)[i] = STEP_MOMENT_##m_type(value, 1, random))

/* Where a new moment goes: in the old one's place, or apart from it. */
#define STEP_TO_F32(old, apart)  (old)
#define STEP_TO_BF16(old, apart) (old)
#define STEP_TO_Q8(old, apart)   (apart)

#define STEP_LOOP(moments, optimizer, m_type, p_type, g_type)                                    \
    static inline void step_loop_##optimizer##_##m_type##_##p_type##_##g_type(                   \
        const struct zk_scalars *s, step_##p_type##_t *restrict param,                           \
        step_master_##p_type##_t *restrict master, step_##m_type##_t *restrict m,                \
        step_##m_type##_t *restrict v, float *restrict to_m, float *restrict to_v,               \
        const step_##g_type##_t *restrict grad, uint32_t key, uint32_t first, size_t n)          \
    {                                                                                            \
        const struct zk_scalars k = *s;                                                          \
        uint32_t place = first * MOMENT_PLACE;                                                   \
                                                                                                 \
        (void)master;                                                                            \
        (void)v;                                                                                 \
        (void)to_m;                                                                              \
        (void)to_v;                                                                              \
        (void)key;                                                                               \
        for (size_t i = 0; i < n; i++, place += MOMENT_PLACE) {                                  \
            uint32_t random = STEP_RANDOM_##m_type(key, place);                                  \
            float value = STEP_LOAD_##p_type(param, master, i);                                  \
            float new_m = STEP_VALUE_##m_type(m[i]);                                             \
            float new_v = STEP_V_LOAD_##moments(m_type, v, i);                                   \
                                                                                                 \
            (void)random;                                                                        \
            elem_step_##optimizer(&k, &value, &new_m, &new_v, STEP_VALUE_##g_type(grad[i]));     \
            STEP_TO_##m_type(m, to_m)[i] = STEP_MOMENT_##m_type(new_m, 0, random);               \
            STEP_V_STORE_##moments(m_type, new_v, STEP_TO_##m_type(v, to_v), i, random);         \
            STEP_STORE_##p_type(value, param, master, i);                                        \
        }                                                                                        \
    }                                                                                            \
                                                                                                 \
    void ZK_NAME(step_##optimizer##_##m_type##_##p_type##_##g_type)(                             \
        const struct zk_scalars *s, const struct zk_step_arrays *a, size_t n)                    \
    {                                                                                            \
        step_loop_##optimizer##_##m_type##_##p_type##_##g_type(                                  \
            s, a->param, a->master, a->m, a->v, a->to_m, a->to_v, a->grad, a->key, a->first, n); \
    }

/* A step with fp16: `loop` is the one with fp32 instead. */
static inline void step_chunks(zk_step_fn *loop, bool param_f16, size_t param_bytes, bool grad_f16,
                               size_t grad_bytes, size_t moment_bytes, const struct zk_scalars *s,
                               const struct zk_step_arrays *a, size_t n)
{
    size_t master_bytes = param_f16 ? sizeof(float) : sizeof(int16_t);
    float grad[STEP_CHUNK];

    for (size_t at = 0; at < n; at += STEP_CHUNK) {
        size_t count = n - at < STEP_CHUNK ? n - at : STEP_CHUNK;
        uint16_t *half = NULL;
        struct zk_step_arrays c = {
            .param = (char *)a->param + at * param_bytes,
            .master = a->master ? (char *)a->master + at * master_bytes : NULL,
            .m = (char *)a->m + at * moment_bytes,
            .v = a->v ? (char *)a->v + at * moment_bytes : NULL,
            .to_m = a->to_m ? a->to_m + at : NULL,
            .to_v = a->to_v ? a->to_v + at : NULL,
            .grad = (const char *)a->grad + at * grad_bytes,
            .key = a->key,
            .first = a->first + (uint32_t)at,
        };

        if (grad_f16) {
            ZK_NAME(f16_to_f32)(c.grad, grad, count);
            c.grad = grad;
        }
        if (param_f16) {
            half = c.param;
            c.param = c.master;
            c.master = NULL;
        }
        loop(s, &c, count);
        if (param_f16)
            ZK_NAME(f32_to_f16)(c.param, half, count);
    }
}

#define STEP_IS_F16_F32  false
#define STEP_IS_F16_BF16 false
#define STEP_IS_F16_F16  true
#define STEP_BYTES_F32   sizeof(float)
#define STEP_BYTES_BF16  sizeof(uint16_t)
#define STEP_BYTES_F16   sizeof(uint16_t)
#define STEP_BYTES_Q8    sizeof(uint16_t)

#define STEP_CHUNKS(optimizer, m_type, p_type, g_type, p_loop, g_loop)               \
    void ZK_NAME(step_##optimizer##_##m_type##_##p_type##_##g_type)(                 \
        const struct zk_scalars *s, const struct zk_step_arrays *a, size_t n)        \
    {                                                                                \
        step_chunks(ZK_NAME(step_##optimizer##_##m_type##_##p_loop##_##g_loop),      \
                    STEP_IS_F16_##p_type, STEP_BYTES_##p_type, STEP_IS_F16_##g_type, \
                    STEP_BYTES_##g_type, STEP_BYTES_##m_type, s, a, n);              \
    }

#define STEP_FUNCTIONS_OF(optimizer, moments, m_type)    \
    STEP_LOOP(moments, optimizer, m_type, F32, F32)      \
    STEP_LOOP(moments, optimizer, m_type, F32, BF16)     \
    STEP_LOOP(moments, optimizer, m_type, BF16, F32)     \
    STEP_LOOP(moments, optimizer, m_type, BF16, BF16)    \
    STEP_CHUNKS(optimizer, m_type, F32, F16, F32, F32)   \
    STEP_CHUNKS(optimizer, m_type, BF16, F16, BF16, F32) \
    STEP_CHUNKS(optimizer, m_type, F16, F32, F32, F32)   \
    STEP_CHUNKS(optimizer, m_type, F16, BF16, F32, BF16) \
    STEP_CHUNKS(optimizer, m_type, F16, F16, F32, F32)

#define STEP_FUNCTIONS(optimizer, moments)      \
    STEP_FUNCTIONS_OF(optimizer, moments, F32)  \
    STEP_FUNCTIONS_OF(optimizer, moments, BF16) \
    STEP_FUNCTIONS_OF(optimizer, moments, Q8)

#endif
