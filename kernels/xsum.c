/*
 * xsum.c - an exact sum of doubles: one wide fixed-point integer.
 *
 * MODEL. A finite double is an integer of 53 bits times a power of two: it is shifted to its place
 * in a number of 640 bits and added there, with carry. Integer addition is associative and
 * commutative, so the limbs depend only on the values added. A total of 2^320 or more would wrap
 * around; 2^64 squares of fp32 do not come to it.
 */
#include <assert.h>
#include <endian.h>
#include <math.h>
#include <string.h>

#include "kernels/zk.h"

#define LOWEST_BIT    (-320) /* bit 0 of limb 0 is 2^LOWEST_BIT */
#define MANTISSA_BITS 53

/* Adds x << (64 * at) and propagates the carry; a carry out of the top limb is lost. */
static void xsum_add_at(struct zk_xsum *s, unsigned at, uint64_t x)
{
    for (; x != 0 && at < ZK_XSUM_LIMBS; at++)
        x = __builtin_add_overflow(s->limb[at], x, &s->limb[at]);
}

void zk_xsum_add(struct zk_xsum *s, double x)
{
    uint64_t mantissa;
    int exponent, shift;

    assert(x >= 0 && x < 0x1p319);
    mantissa = (uint64_t)ldexp(frexp(x, &exponent), MANTISSA_BITS);
    shift = exponent - MANTISSA_BITS - LOWEST_BIT;
    if (shift < 0) {
        xsum_add_at(s, 0, -shift < MANTISSA_BITS ? mantissa >> -shift : 0);
        return;
    }
    xsum_add_at(s, (unsigned)shift / 64, mantissa << shift % 64);
    if (shift % 64 > 0)
        xsum_add_at(s, (unsigned)shift / 64 + 1, mantissa >> (64 - shift % 64));
}

void zk_xsum_merge(struct zk_xsum *s, const struct zk_xsum *other)
{
    bool carry = false;

    for (unsigned i = 0; i < ZK_XSUM_LIMBS; i++) {
        uint64_t x = other->limb[i]; /* read first: other may be s */
        bool first = __builtin_add_overflow(s->limb[i], carry, &s->limb[i]);

        carry = __builtin_add_overflow(s->limb[i], x, &s->limb[i]) || first;
    }
}

void zk_xsum_take(struct zk_xsum *s, const struct zk_xsum *other)
{
    bool borrow = false;

    for (unsigned i = 0; i < ZK_XSUM_LIMBS; i++) {
        uint64_t x = other->limb[i]; /* read first: other may be s */
        bool first = __builtin_sub_overflow(s->limb[i], borrow, &s->limb[i]);

        borrow = __builtin_sub_overflow(s->limb[i], x, &s->limb[i]) || first;
    }
}

/* The window is the 64 bits from the highest set bit down. For the rounding, only whether the bits
 * below it are zero matters. The window's last bit, which is worth less than half of a double's
 * last place, records that (a sticky bit). The conversion of the window rounds, once. */
double zk_xsum_value(const struct zk_xsum *s)
{
    int top = ZK_XSUM_LIMBS - 1, shift;
    uint64_t window, below = 0;

    while (top > 0 && s->limb[top] == 0)
        top--;
    if (s->limb[top] == 0)
        return 0;
    shift = __builtin_clzll(s->limb[top]);
    window = s->limb[top] << shift;
    if (top > 0 && shift > 0)
        window |= s->limb[top - 1] >> (64 - shift);
    if (top > 0)
        below = s->limb[top - 1] << shift;
    for (int i = 0; i < top - 1; i++)
        below |= s->limb[i];
    return ldexp((double)(window | (below != 0)), 64 * top - shift + LOWEST_BIT);
}

void zk_xsum_store(const struct zk_xsum *s, unsigned char out[ZK_XSUM_BYTES])
{
    for (unsigned i = 0; i < ZK_XSUM_LIMBS; i++) {
        uint64_t limb = htole64(s->limb[i]);

        memcpy(out + i * sizeof(limb), &limb, sizeof(limb));
    }
}

void zk_xsum_load(struct zk_xsum *s, const unsigned char in[ZK_XSUM_BYTES])
{
    for (unsigned i = 0; i < ZK_XSUM_LIMBS; i++) {
        uint64_t limb;

        memcpy(&limb, in + i * sizeof(limb), sizeof(limb));
        s->limb[i] = le64toh(limb);
    }
}
