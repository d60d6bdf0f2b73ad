/*
 * rng.h - random numbers that are a function of where they are used, not of who asked before.
 *
 * MODEL. Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a
 * keyed bijection of a 128-bit counter. The key is the seed of the run; half of the counter is a
 * stream, the hash of a name (a tensor's, or the word for batches); the other half is the position
 * in that stream. So any rank can compute any number by itself, in any order and any piece, and the
 * world size changes nothing.
 */
#ifndef GPT_RNG_H
#define GPT_RNG_H

#include <stdint.h>

struct gpt_rng {
    uint64_t seed, stream;
};

/** The stream of a name: its 64-bit FNV-1a hash. */
struct gpt_rng gpt_rng(uint64_t seed, const char *name);

/** The four 32-bit numbers at a position. */
void gpt_rng_block(const struct gpt_rng *rng, uint64_t position, uint32_t ret[4]);

/** Uniform in [0, n) for n >= 1, at a position; the bias is below n / 2^64. */
uint64_t gpt_rng_below(const struct gpt_rng *rng, uint64_t position, uint64_t n);

/** Element i of the stream's standard normal numbers: Box-Muller in double over the block at i / 4,
 *  which makes four of them. */
void gpt_rng_normal4(const struct gpt_rng *rng, uint64_t block, double ret[4]);

#endif
