/*
 * dtype.c - dtypes: names, sizes, conversion of 16-bit dtypes to and from fp32.
 */
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "client/zc_safetensors.h"

#define AT(dtype) [(dtype)-ZC_ST_BOOL]

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    AT(ZC_ST_BOOL) = { "BOOL", 1 },       AT(ZC_ST_U8) = { "U8", 1 },
    AT(ZC_ST_I8) = { "I8", 1 },           AT(ZC_ST_F8_E5M2) = { "F8_E5M2", 1 },
    AT(ZC_ST_F8_E4M3) = { "F8_E4M3", 1 }, AT(ZC_ST_F8_E8M0) = { "F8_E8M0", 1 },
    AT(ZC_ST_I16) = { "I16", 2 },         AT(ZC_ST_U16) = { "U16", 2 },
    AT(ZC_ST_F16) = { "F16", 2 },         AT(ZC_ST_BF16) = { "BF16", 2 },
    AT(ZC_ST_I32) = { "I32", 4 },         AT(ZC_ST_U32) = { "U32", 4 },
    AT(ZC_ST_F32) = { "F32", 4 },         AT(ZC_ST_F64) = { "F64", 8 },
    AT(ZC_ST_I64) = { "I64", 8 },         AT(ZC_ST_U64) = { "U64", 8 },
    AT(ZC_ST_C64) = { "C64", 8 },
};

const char *zc_st_dtype_name(enum zc_st_dtype dtype)
{
    unsigned at = (unsigned)dtype - ZC_ST_BOOL;

    return at < ZB_COUNT(dtypes) ? dtypes[at].name : NULL;
}

size_t zc_st_dtype_bytes(enum zc_st_dtype dtype)
{
    unsigned at = (unsigned)dtype - ZC_ST_BOOL;

    return at < ZB_COUNT(dtypes) ? dtypes[at].bytes : 0;
}

/* IEEE half: 1 sign, 5 exponent (bias 15), 10 fraction. The conversion is exact. */
static float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 0x3ffu;
    uint32_t bits;
    float f;

    if (exponent == 0) { /* zero or denormal: fraction * 2^-24 */
        f = (float)fraction * 0x1p-24f;
        return sign ? -f : f;
    }
    bits = sign | (exponent == 31 ? 255u : exponent + 127 - 15) << 23 | fraction << 13;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static float bf16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* To nearest, ties to even. A carry out of the fraction correctly increments the exponent. */
static uint16_t f32_to_bf16(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u); /* a NaN stays a NaN */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static uint16_t f32_to_f16(float f)
{
    uint32_t bits, sign, rest, half;

    memcpy(&bits, &f, sizeof(bits));
    sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (bits >> 13 & 0x3ffu));
    if (bits >= 0x47800000u) /* 65536 and above; values between 65504 and 65536 are rounded below */
        return (uint16_t)(sign | 0x7c00u);
    if (bits < 0x38800000u) { /* a half's denormal: the sum's last bit is 2^-24 */
        float sum;

        memcpy(&sum, &bits, sizeof(sum));
        sum += 0.5f;
        memcpy(&bits, &sum, sizeof(bits));
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    rest = bits & 0x1fffu;
    half = (bits - 0x38000000u) >> 13;
    half += rest > 0x1000u || (rest == 0x1000u && (half & 1u));
    return (uint16_t)(sign | half);
}

int zc_st_to_f32(enum zc_st_dtype dtype, const void *src, uint64_t count, float *dst)
{
    const uint16_t *from = src;

    if (dtype == ZC_ST_F32) {
        memcpy(dst, src, count * sizeof(*dst));
        return 0;
    }
    if (dtype != ZC_ST_F16 && dtype != ZC_ST_BF16)
        return -ENOTSUP;
    for (uint64_t i = 0; i < count; i++)
        dst[i] = dtype == ZC_ST_F16 ? f16_to_f32(from[i]) : bf16_to_f32(from[i]);
    return 0;
}

int zc_st_from_f32(enum zc_st_dtype dtype, const float *src, uint64_t count, void *dst)
{
    uint16_t infinity = dtype == ZC_ST_F16 ? 0x7c00u : 0x7f80u, *to = dst;

    if (dtype == ZC_ST_F32) {
        memcpy(dst, src, count * sizeof(*src));
        return 0;
    }
    if (dtype != ZC_ST_F16 && dtype != ZC_ST_BF16)
        return -ENOTSUP;
    for (uint64_t i = 0; i < count; i++) {
        to[i] = dtype == ZC_ST_F16 ? f32_to_f16(src[i]) : f32_to_bf16(src[i]);
        if ((to[i] & 0x7fffu) == infinity && __builtin_isfinite(src[i]))
            return -ERANGE;
    }
    return 0;
}
