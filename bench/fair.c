#include "bench/fair.h"

#include <math.h>

/* The rate at which the resource is full, if its flows without a rate all have that one; INFINITY: it
 * has none of these. */
static double fair_fills(const struct zbench_fair *fair, const double *rates, uint32_t resource)
{
    double left = fair->limit(fair->arg, resource), waiting = 0;

    for (uint32_t i = 0; i < fair->flows; i++) {
        double takes = fair->takes(fair->arg, i, resource);

        left -= takes * rates[i];
        waiting += rates[i] <= 0 ? takes : 0;
    }
    return waiting > 0 ? left / waiting : INFINITY;
}

void zbench_fair_rates(const struct zbench_fair *fair, double *rates)
{
    for (uint32_t i = 0; i < fair->flows; i++)
        rates[i] = 0;
    for (;;) {
        uint32_t first = fair->resources;
        double rate = INFINITY;

        for (uint32_t r = 0; r < fair->resources; r++) {
            double fills = fair_fills(fair, rates, r);

            if (fills < rate) {
                rate = fills;
                first = r;
            }
        }
        if (first == fair->resources)
            return;
        for (uint32_t i = 0; i < fair->flows; i++)
            if (rates[i] <= 0 && fair->takes(fair->arg, i, first) > 0)
                rates[i] = rate;
    }
}
