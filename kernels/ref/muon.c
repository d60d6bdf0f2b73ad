/*
 * muon.c - Muon's two passes over the elements of a matrix: its momentum, for every dtype, and its
 * weights, once their matrix is orthogonalized (ortho.c).
 */
#include "kernels/ref/step_priv.h"

STEP_FUNCTIONS(MUON, 1)

void ZK_NAME(weight_f32)(const struct zk_scalars *s, float *restrict param,
                         const float *restrict by, size_t n)
{
    const struct zk_scalars k = *s;

    for (size_t i = 0; i < n; i++)
        param[i] = elem_weight(&k, param[i], by[i]);
}

void ZK_NAME(weight_bf16)(const struct zk_scalars *s, uint16_t *restrict hi, int16_t *restrict lo,
                          const float *restrict by, size_t n)
{
    const struct zk_scalars k = *s;

    for (size_t i = 0; i < n; i++)
        elem_split_canonical(elem_weight(&k, elem_value_of_split(hi[i], lo[i]), by[i]), &hi[i],
                             &lo[i]);
}
