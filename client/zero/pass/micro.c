/*
 * micro.c - micro-steps: which tensors got a gradient in the step.
 *
 * MODEL. Each reduction says which of the unit's tensors got a gradient on this rank. What was said in
 * any micro-step holds for the step (step/ asks by zcz_reduced_has()); a new step begins with none.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/zero/pass/pass_priv.h"

int zcz_micro_start(struct zc_zero *z)
{
    uint64_t n = 0;
    bool *has;

    for (uint32_t i = 0; i < z->nunits; i++)
        n += z->units[i].def.ntensors;
    has = calloc(zb_max_u64(n, 1), sizeof(*has));
    if (!has)
        return zcz_refuse(z, -ENOMEM, "no memory for %llu tensors", (unsigned long long)n);
    z->pass->has = has;
    for (uint32_t i = 0; i < z->nunits; i++) {
        z->pass->units[i].has = has;
        has += z->units[i].def.ntensors;
    }
    return 0;
}

void zcz_micro_has(struct zcz_unit *u, const bool *has)
{
    for (uint32_t t = 0; t < u->def.ntensors; t++)
        u->pass->has[t] = u->pass->has[t] || !has || has[t];
}

void zcz_micro_rewind(struct zc_zero *z)
{
    for (uint32_t i = 0; i < z->nunits; i++)
        memset(z->pass->units[i].has, 0, z->units[i].def.ntensors * sizeof(bool));
}

bool zcz_reduced_has(const struct zc_zero *z, uint32_t unit, uint32_t tensor)
{
    return z->units[unit].pass->has[tensor];
}
