/*
 * zk_priv.h - how one source becomes several implementations. Private to kernels/ and its tests.
 *
 * MODEL. ref/ is compiled once for every implementation of the build (CMakeLists.txt): with the
 * baseline of the architecture as "ref", and again, with an instruction set switched on, for each
 * faster processor. ZK_VARIANT is the name of the one being compiled, and the names of its kernels
 * come from ZK_NAME(): so the arithmetic is written once and the copies have different names. A
 * kernel written by hand for one processor is a file in cpu/ that defines the same names, and
 * replaces the file of ref/ in that variant's list of sources.
 *
 * Code that is compiled for an instruction set may be called only if its `supported` returns true.
 * The tables, the tests for support and everything else are compiled for the baseline.
 */
#ifndef ZK_PRIV_H
#define ZK_PRIV_H

#include "kernels/zk.h"

#define ZK_PASTE(variant, kernel)  zk_##variant##_##kernel
#define ZK_EXPAND(variant, kernel) ZK_PASTE(variant, kernel)
#define ZK_NAME(kernel)            ZK_EXPAND(ZK_VARIANT, kernel)

/* do_(arg, optimizer, dtype of the parameter, of the gradient) for every step function. */
#define ZK_STEPS_OF(do_, arg, optimizer)                                                       \
    do_(arg, optimizer, F32, F32) do_(arg, optimizer, F32, BF16) do_(arg, optimizer, F32, F16) \
        do_(arg, optimizer, BF16, F32) do_(arg, optimizer, BF16, BF16)                         \
            do_(arg, optimizer, BF16, F16) do_(arg, optimizer, F16, F32)                       \
                do_(arg, optimizer, F16, BF16) do_(arg, optimizer, F16, F16)
#define ZK_STEPS(do_, arg)         \
    ZK_STEPS_OF(do_, arg, ADAMW)   \
    ZK_STEPS_OF(do_, arg, ADAM)    \
    ZK_STEPS_OF(do_, arg, LION)    \
    ZK_STEPS_OF(do_, arg, SGD)     \
    ZK_STEPS_OF(do_, arg, ADAGRAD) \
    ZK_STEPS_OF(do_, arg, MUON)

/* With moments of fp32, and of bf16. */
#define ZK_DECLARE_STEP(variant, optimizer, param, grad)                \
    zk_step_fn zk_##variant##_step_##optimizer##_F32_##param##_##grad;  \
    zk_step_fn zk_##variant##_step_##optimizer##_BF16_##param##_##grad; \
    zk_step_fn zk_##variant##_step_##optimizer##_Q8_##param##_##grad;

/* Every kernel of one variant; `restrict` is what zk.h promises about overlaps. */
#define ZK_DECLARE(variant)                                                                       \
    ZK_STEPS(ZK_DECLARE_STEP, variant)                                                            \
    extern zk_step_fn *const zk_##variant##_steps[ZB_OPTIMIZER_END][ZB_DTYPE_END][ZB_DTYPE_END];  \
    extern zk_step_fn                                                                             \
        *const zk_##variant##_steps_bf16[ZB_OPTIMIZER_END][ZB_DTYPE_END][ZB_DTYPE_END];           \
    extern zk_step_fn                                                                             \
        *const zk_##variant##_steps_q8[ZB_OPTIMIZER_END][ZB_DTYPE_END][ZB_DTYPE_END];             \
    void zk_##variant##_split(const float *restrict master, uint16_t *restrict hi,                \
                              int16_t *restrict lo, size_t n);                                    \
    void zk_##variant##_merge(const uint16_t *restrict hi, const int16_t *restrict lo,            \
                              float *restrict master, size_t n);                                  \
    void zk_##variant##_widen_lo(const int8_t *restrict lo8, int16_t *restrict lo, size_t n);     \
    void zk_##variant##_round_lo(uint16_t *restrict hi, const int16_t *restrict lo,               \
                                 int8_t *restrict lo8, uint32_t key, size_t n);                   \
    void zk_##variant##_nearest_lo(uint16_t *restrict hi, const int16_t *restrict lo,             \
                                   int8_t *restrict lo8, size_t n);                               \
    void zk_##variant##_f32_to_bf16(const float *restrict from, uint16_t *restrict to, size_t n); \
    void zk_##variant##_bf16_to_f32(const uint16_t *restrict from, float *restrict to, size_t n); \
    void zk_##variant##_f32_to_f16(const float *restrict from, uint16_t *restrict to, size_t n);  \
    void zk_##variant##_f16_to_f32(const uint16_t *restrict from, float *restrict to, size_t n);  \
    void zk_##variant##_add_f32(float *restrict acc, const float *restrict x, size_t n);          \
    void zk_##variant##_add_bf16(float *restrict acc, const uint16_t *restrict x, size_t n);      \
    void zk_##variant##_add_f16(float *restrict acc, const uint16_t *restrict x, size_t n);       \
    void zk_##variant##_encode_bf16(const float *restrict from, uint16_t *restrict to,            \
                                    uint32_t key, size_t n);                                      \
    void zk_##variant##_encode_q8(const float *restrict from, uint8_t *restrict code,             \
                                  float *restrict scale, bool is_signed, uint32_t key, size_t n); \
    void zk_##variant##_encode_q8_group(const struct zk_q8_group *group);                         \
    size_t zk_##variant##_step_q8_groups(const struct zk_q8_run *run, size_t n);                  \
    void zk_##variant##_decode_q8_bf16(const uint8_t *restrict code, const float *restrict scale, \
                                       uint16_t *restrict to, bool is_signed, size_t n);          \
    void zk_##variant##_decode_q8(const uint8_t *restrict code, const float *restrict scale,      \
                                  float *restrict to, bool is_signed, size_t n);                  \
    void zk_##variant##_quantize_i8(const float *restrict from, int8_t *restrict code,            \
                                    float *restrict scale, size_t n);                             \
    void zk_##variant##_dequantize_i8(const int8_t *restrict code, const float *restrict scale,   \
                                      float *restrict to, size_t n);                              \
    double zk_##variant##_sumsq(const float *restrict x, size_t n, uint64_t *nonfinite);          \
    double zk_##variant##_set_f32(float *restrict to, const float *restrict x, size_t n,          \
                                  uint64_t *nonfinite);                                           \
    double zk_##variant##_set_bf16(uint16_t *restrict to, const uint16_t *restrict x, size_t n,   \
                                   uint64_t *nonfinite);                                          \
    void zk_##variant##_weight_f32(const struct zk_scalars *s, float *restrict param,             \
                                   const float *restrict by, size_t n);                           \
    void zk_##variant##_weight_bf16(const struct zk_scalars *s, uint16_t *restrict hi,            \
                                    int16_t *restrict lo, const float *restrict by, size_t n);    \
    void zk_##variant##_matmul(const struct zk_matmul *m, size_t row, size_t rows, size_t col,    \
                               size_t cols)

/* The row of that variant for zk_all(). */
#define ZK_OPS(variant, is_supported)                                                             \
    {                                                                                             \
        .name = #variant, .supported = (is_supported), .step = zk_##variant##_steps,              \
        .step_bf16 = zk_##variant##_steps_bf16, .step_q8 = zk_##variant##_steps_q8,               \
        .split = zk_##variant##_split, .merge = zk_##variant##_merge,                             \
        .widen_lo = zk_##variant##_widen_lo, .round_lo = zk_##variant##_round_lo,                 \
        .nearest_lo = zk_##variant##_nearest_lo, .f32_to_bf16 = zk_##variant##_f32_to_bf16,       \
        .bf16_to_f32 = zk_##variant##_bf16_to_f32, .f32_to_f16 = zk_##variant##_f32_to_f16,       \
        .f16_to_f32 = zk_##variant##_f16_to_f32, .add_f32 = zk_##variant##_add_f32,               \
        .add_bf16 = zk_##variant##_add_bf16, .add_f16 = zk_##variant##_add_f16,                   \
        .encode_bf16 = zk_##variant##_encode_bf16, .encode_q8 = zk_##variant##_encode_q8,         \
        .encode_q8_group = zk_##variant##_encode_q8_group,                                        \
        .step_q8_groups = zk_##variant##_step_q8_groups,                                          \
        .decode_q8_bf16 = zk_##variant##_decode_q8_bf16, .decode_q8 = zk_##variant##_decode_q8,   \
        .quantize_i8 = zk_##variant##_quantize_i8, .dequantize_i8 = zk_##variant##_dequantize_i8, \
        .sumsq = zk_##variant##_sumsq, .set_f32 = zk_##variant##_set_f32,                         \
        .set_bf16 = zk_##variant##_set_bf16, .weight_f32 = zk_##variant##_weight_f32,             \
        .weight_bf16 = zk_##variant##_weight_bf16, .matmul = zk_##variant##_matmul,               \
    }

ZK_DECLARE(ref);
ZK_DECLARE(avx2);
ZK_DECLARE(avx512);
ZK_DECLARE(neon);

extern const struct zk_ops zk_avx2, zk_avx512; /* cpu/x86.c; only in builds for x86-64 */
extern const struct zk_ops zk_neon;            /* cpu/aarch64.c; only in builds for aarch64 */

/** zk_select() among `count` (at least 1) implementations, of which the first is supported. */
int zk_select_from(const struct zk_ops *const *all, size_t count, const char *force,
                   const struct zk_ops **ret, struct zb_err *err);

#endif
