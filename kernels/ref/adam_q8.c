/*
 * adam_q8.c - a step of Adam and AdamW over whole groups of moments in 8 bits, in one pass.
 *
 * MODEL. Only an implementation with code by hand for it (kernels/cpu/adam_q8_priv.h) has such a
 * pass, and only for regular groups (moments.c): decoding and encoding are then a few operations
 * without a test. Everything else is for the step function and the kernels of moments.c, whose
 * results it gives bit for bit.
 */
#include <assert.h>

#include "kernels/ref/moment_priv.h"
#include "kernels/zk_priv.h"

#if defined(__AVX2__) && !defined(ZK_PLAIN)
#include "kernels/cpu/adam_q8_priv.h"

/* Encodes the new moments of a group that is not regular. */
static void encode_any(const struct adam_q8_new *from, const struct zk_q8_run *r, size_t at)
{
    float value[ZB_MOMENTS_MAX][ZB_Q8_GROUP];
    struct zk_q8_group g = {
        .n = 2, .is_signed = { true, false }, .key = r->key, .first = r->first + (uint32_t)at
    };

    for (unsigned i = 0; i < 2; i++) {
        adam_q8_in_order(i == 0 ? from->m : from->v, value[i]);
        for (size_t j = 0; j < ZB_Q8_GROUP; j++)
            value[i][j] = elem_canonical(value[i][j]);
        g.value[i] = value[i];
        g.code[i] = r->code[i] + at;
        g.scale[i] = &r->scale[i][at / ZB_Q8_GROUP];
    }
    ZK_NAME(encode_q8_group)(&g);
}

/* Whether codes of a group are regular; if so, *off is what to add to them. */
VEC_FN bool decodes(const uint8_t *code, float scale, uint8_t mask, uint32_t top, uint32_t *off)
{
    uint32_t pattern = elem_bits(scale) >> MOMENT_CUT;

    *off = pattern - top;
    return moment_regular(pattern, top) && adam_q8_most_code(code, mask) <= top;
}

/* Whether new moments are regular; if so, *below is how far the scale's pattern is above the top
 * code. */
VEC_FN bool encodes(vec_i largest, uint32_t top, uint32_t *below, float *scale)
{
    uint32_t most = vec_largest(largest), pattern = moment_pattern(most);

    *below = pattern - top;
    *scale = moment_scale(pattern);
    return moment_regular(pattern, top) && most <= MOMENT_FINITE_MAX << MOMENT_CUT;
}

VEC_FN size_t groups(const struct zk_q8_run *r, size_t n, bool decoupled, bool split,
                     bool grad_bf16)
{
    const struct adam_q8_factors k = adam_q8_factors(r->scalars);
    size_t at = 0;

    for (; at < n; at += ZB_Q8_GROUP) {
        float *scale_m = &r->scale[0][at / ZB_Q8_GROUP], *scale_v = &r->scale[1][at / ZB_Q8_GROUP];
        struct adam_q8_new new;
        uint32_t by[2];
        float scale[2];

        if (!decodes(r->code[0] + at, *scale_m, (uint8_t)~MOMENT_SIGN, MOMENT_SIGNED_TOP, &by[0]) ||
            !decodes(r->code[1] + at, *scale_v, 0xff, MOMENT_UNSIGNED_TOP, &by[1]))
            break;
        adam_q8_pass(&k, r, at, decoupled, split, grad_bf16, by, &new);
        if (encodes(new.most_m, MOMENT_SIGNED_TOP, &by[0], &scale[0]) &&
            encodes(new.most_v, MOMENT_UNSIGNED_TOP, &by[1], &scale[1])) {
            adam_q8_encode(&new, r->code[0] + at, r->code[1] + at, by, r->key,
                           r->first + (uint32_t)at);
            *scale_m = scale[0];
            *scale_v = scale[1];
        } else {
            encode_any(&new, r, at);
        }
    }
    return at;
}

/* A loop for each case, so that none tests for each element. */
#define ADAM_Q8_CASE(optimizer, p_type, g_type)                                                 \
    static size_t groups_##optimizer##_##p_type##_##g_type(const struct zk_q8_run *r, size_t n) \
    {                                                                                           \
        return groups(r, n, ZB_##optimizer == ZB_ADAMW, ZB_##p_type == ZB_BF16,                 \
                      ZB_##g_type == ZB_BF16);                                                  \
    }
#define ADAM_Q8_ROW_OF(optimizer, p_type, g_type) \
    [ZB_##optimizer][ZB_##p_type][ZB_##g_type] = groups_##optimizer##_##p_type##_##g_type,
#define ADAM_Q8_CASES(do_)                                                                  \
    do_(ADAMW, BF16, BF16) do_(ADAMW, BF16, F32) do_(ADAMW, F32, BF16) do_(ADAMW, F32, F32) \
        do_(ADAM, BF16, BF16) do_(ADAM, BF16, F32) do_(ADAM, F32, BF16) do_(ADAM, F32, F32)

ADAM_Q8_CASES(ADAM_Q8_CASE)

static size_t (*const cases[ZB_OPTIMIZER_END][ZB_DTYPE_END][ZB_DTYPE_END])(
    const struct zk_q8_run *r, size_t n) = { ADAM_Q8_CASES(ADAM_Q8_ROW_OF) };

size_t ZK_NAME(step_q8_groups)(const struct zk_q8_run *r, size_t n)
{
    size_t (*stepped)(const struct zk_q8_run *r, size_t n) =
        cases[r->optimizer][r->dtype][r->grad_dtype];

    assert(n % ZB_Q8_GROUP == 0);
    return stepped ? stepped(r, n) : 0;
}
#else
size_t ZK_NAME(step_q8_groups)(const struct zk_q8_run *r, size_t n)
{
    (void)r;
    (void)n;
    return 0;
}
#endif
