/*
 * elem.h - the elementwise functions of the model, for the C compiler and for nvcc: plain sequences
 * of IEEE operations, so the same bits from both.
 */
#ifndef GPT_ELEM_H
#define GPT_ELEM_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define GPT_ELEM static __device__ __forceinline__
#else
#define GPT_ELEM static inline __attribute__((always_inline))
#endif

#define GPT_LN_EPS 1e-5f

/* e^x = 2^k * e^r with k = round(x / ln 2) and |r| <= ln 2 / 2; e^r by the polynomial of Cephes'
 * expf. ln 2 is subtracted in two pieces, the first with so few bits that k times it is exact.
 * Relative error below 2e-7 in [-87, 88]; x is clamped to that range. */
GPT_ELEM float gpt_elem_exp(float x)
{
    const float magic = 0x1.8p23f; /* adding it rounds to an integer, which stays in the low bits */
    float k, r, p, two_k;
    uint32_t bits;

    x = x > 88.0f ? 88.0f : x;
    x = x < -87.0f ? -87.0f : x;
    k = x * 1.44269504088896341f + magic;
    memcpy(&bits, &k, sizeof(bits));
    k -= magic;
    r = x - k * 0.693359375f;
    r = r - k * -2.12194440e-4f;
    p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    bits = (bits << 23) + 0x3f800000u;
    memcpy(&two_k, &bits, sizeof(two_k));
    return p * two_k;
}

/* (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u)), with 2u = x * (a + b * x^2). */
#define GPT_GELU_A 1.5957691216057308f   /* 2 * sqrt(2 / pi) */
#define GPT_GELU_B 0.071354816272600255f /* 0.044715 * GPT_GELU_A */

/** GELU in its tanh form: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))). */
GPT_ELEM float gpt_elem_gelu(float x)
{
    float u2 = x * (GPT_GELU_A + GPT_GELU_B * (x * x));

    return x / (1.0f + gpt_elem_exp(-u2));
}

/** dy * gelu'(x) */
GPT_ELEM float gpt_elem_gelu_back(float x, float dy)
{
    float xx = x * x;
    float s = 1.0f / (1.0f + gpt_elem_exp(-(x * (GPT_GELU_A + GPT_GELU_B * xx))));
    float du2 = GPT_GELU_A + 3.0f * GPT_GELU_B * xx;

    return dy * (s + x * (s * (1.0f - s)) * du2);
}

/** bf16 to fp32, exactly. */
GPT_ELEM float gpt_elem_of_bf16(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float y;

    memcpy(&y, &bits, sizeof(y));
    return y;
}

/** To bf16, ties to even; a NaN stays one. */
GPT_ELEM uint16_t gpt_elem_to_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/** To fp16, ties to even; infinity above 65504, a NaN stays one. */
GPT_ELEM uint16_t gpt_elem_to_fp16(float x)
{
    uint32_t bits, sign, small;
    float y;

    memcpy(&bits, &x, sizeof(bits));
    sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (bits >= 0x477ff000u) /* 65520 is as near to 65536 */
        return (uint16_t)(sign | 0x7c00u);
    if (bits >= 0x38800000u) /* 2^-14: the exponent moves, 13 bits go */
        return (uint16_t)(sign | (bits - 0x38000000u + 0xfffu + (bits >> 13 & 1u)) >> 13);
    memcpy(&y, &bits, sizeof(y)); /* below: in units of 2^-24, by an addition that rounds to them */
    y += 0.5f;
    memcpy(&small, &y, sizeof(small));
    return (uint16_t)(sign | (small - 0x3f000000u));
}

/** fp16 to fp32, exactly: the exponent is moved by a multiplication, which normalises, too. */
GPT_ELEM float gpt_elem_of_fp16(uint16_t x)
{
    uint32_t bits = (x & 0x7fffu) << 13, sign = (uint32_t)(x & 0x8000u) << 16;
    float y;

    memcpy(&y, &bits, sizeof(y));
    y *= 0x1p112f;
    memcpy(&bits, &y, sizeof(bits));
    bits |= (x & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u; /* infinities and NaN */
    bits |= sign;
    memcpy(&y, &bits, sizeof(y));
    return y;
}

#endif
