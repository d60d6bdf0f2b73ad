#include "examples/gpt/model/rng.h"

#include <math.h>

struct gpt_rng gpt_rng(uint64_t seed, const char *name)
{
    struct gpt_rng rng = { .seed = seed, .stream = UINT64_C(0xcbf29ce484222325) };

    for (; *name; name++)
        rng.stream = (rng.stream ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return rng;
}

void gpt_rng_block(const struct gpt_rng *rng, uint64_t position, uint32_t ret[4])
{
    uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32);
    uint32_t c2 = (uint32_t)rng->stream, c3 = (uint32_t)(rng->stream >> 32);
    uint32_t k0 = (uint32_t)rng->seed, k1 = (uint32_t)(rng->seed >> 32);

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0;
        uint64_t p1 = (uint64_t)0xcd9e8d57u * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    ret[0] = c0;
    ret[1] = c1;
    ret[2] = c2;
    ret[3] = c3;
}

uint64_t gpt_rng_below(const struct gpt_rng *rng, uint64_t position, uint64_t n)
{
    uint32_t w[4];

    gpt_rng_block(rng, position, w);
    return (uint64_t)(((unsigned __int128)((uint64_t)w[1] << 32 | w[0]) * n) >> 64);
}

void gpt_rng_normal4(const struct gpt_rng *rng, uint64_t block, double ret[4])
{
    uint32_t w[4];

    gpt_rng_block(rng, block, w);
    for (int pair = 0; pair < 4; pair += 2) {
        double u = (w[pair] + 0.5) * 0x1p-32; /* inside (0, 1): the logarithm is finite */
        double angle = 2.0 * M_PI * (w[pair + 1] * 0x1p-32);
        double radius = sqrt(-2.0 * log(u));

        ret[pair] = radius * cos(angle);
        ret[pair + 1] = radius * sin(angle);
    }
}
