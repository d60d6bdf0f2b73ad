/*
 * draw.h - random draws of a campaign, one sequence for each seed. The test sets the seed, and
 * prints it.
 */
#ifndef DRAW_H
#define DRAW_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/ztest.h"

static uint64_t seed;

static inline uint64_t draw(uint64_t below)
{
    return ztest_random(&seed) % below;
}

static inline bool chance(unsigned percent)
{
    return draw(100) < percent;
}

#endif
