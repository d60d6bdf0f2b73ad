/*
 * adamw.c - one step of AdamW over arrays.
 *
 * The scalars are copied first: the compiler then knows that no store of the loop changes them.
 */
#include "kernels/ref/elem_priv.h"
#include "kernels/zk_priv.h"

void ZK_NAME(adamw_f32)(const struct zk_adamw *s, float *restrict param, float *restrict m,
                        float *restrict v, const float *restrict grad, size_t n)
{
    const struct zk_adamw scalars = *s;

    for (size_t i = 0; i < n; i++)
        elem_adamw(&scalars, &param[i], &m[i], &v[i], grad[i]);
}

void ZK_NAME(adamw_bf16)(const struct zk_adamw *s, uint16_t *restrict hi, int16_t *restrict lo,
                         float *restrict m, float *restrict v, const float *restrict grad, size_t n)
{
    const struct zk_adamw scalars = *s;

    for (size_t i = 0; i < n; i++) {
        float master = elem_merge(hi[i], lo[i]);

        elem_adamw(&scalars, &master, &m[i], &v[i], grad[i]);
        elem_split(master, &hi[i], &lo[i]);
    }
}
