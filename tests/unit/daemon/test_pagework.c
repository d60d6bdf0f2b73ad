/*
 * Work on a page's bytes. A step in one pass gives the same bytes and checksums as three passes
 * (verify all, step all, seal all), whatever is streamed and however long the page is. A bad block
 * is found before it is used.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/page/pagework.h"

#define B          ZB_BLOCK_ELEMS
#define BLOCKS_MAX 19u
#define CRCS_MAX   BLOCKS_MAX
#define GROUPS     3u

static const struct {
    const char *name;
    enum zb_dtype dtype, grad;
    enum zb_optimizer optimizer;
    enum zb_moments moments;
} layouts[] = {
    { "bf16", ZB_BF16, ZB_BF16, ZB_ADAMW, ZB_MOMENTS_F32 },
    { "bf16, fp32 gradients", ZB_BF16, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32 },
    { "fp32", ZB_F32, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32 },
    { "fp16", ZB_F16, ZB_F16, ZB_ADAMW, ZB_MOMENTS_F32 },
    { "bf16, Lion", ZB_BF16, ZB_BF16, ZB_LION, ZB_MOMENTS_F32 },
    { "fp32, Lion", ZB_F32, ZB_F32, ZB_LION, ZB_MOMENTS_F32 },
    { "bf16, moments of 8 bits", ZB_BF16, ZB_BF16, ZB_ADAMW, ZB_MOMENTS_Q8 },
    { "fp32, one moment of 8 bits", ZB_F32, ZB_F32, ZB_LION, ZB_MOMENTS_Q8 },
};

static const struct {
    const char *name;
    bool verify[ZSD_WORK_PLANES], seal[ZSD_WORK_PLANES];
} uses[] = {
    { "resident", { false, false }, { false, false } },
    { "state streamed", { false, true }, { false, true } },
    { "both streamed", { true, true }, { true, true } },
    { "parameters streamed", { true, false }, { true, false } },
    { "resident, saved", { false, false }, { true, true } },
    { "state streamed, parameters saved", { false, true }, { true, true } },
    { "all streamed", { true, true, true }, { true, true } },
    { "state and gradient streamed", { false, true, true }, { false, true } },
};

static const uint32_t lengths[] = { 1, 2, 3, 8, 9, 16, BLOCKS_MAX };

/* Adjacent segments, gaps of frozen elements, bounds inside blocks; the page begins inside the
 * first. */
static const struct zk_segment segments[] = {
    { 0, 2 * B, 0, 0 },         { 3 * B, B + 100, 1, 0 }, { 4 * B + 100, 900, 2, 0 },
    { 5 * B + 8, 7 * B, 0, 0 }, { 14 * B, 4000, 1, 0 },   { 15 * B - 96, 1, 2, 0 },
    { 16 * B, 40 * B, 1, 0 },
};

static struct zk_scalars by_group[GROUPS];

/* A page, and everything needed to step it. */
struct fixture {
    struct zb_layout layout;
    struct zsd_pagework work;
    uint8_t *bytes[ZB_PLANES];
    size_t len[ZB_PLANES];
    uint32_t crcs[ZSD_WORK_PLANES][CRCS_MAX], new_crcs[ZSD_WORK_PLANES][CRCS_MAX];
};

static const enum zb_plane planes[ZSD_WORK_PLANES] = { ZB_PARAM, ZB_STATE, ZB_GRAD };

static struct fixture *fixture_new(size_t layout, size_t use, uint32_t blocks, uint64_t seed)
{
    struct fixture *x = calloc(1, sizeof(*x));
    struct zsd_pagework *w = &x->work;
    const struct zk_ops *ops;

    assert_non_null(x);
    assert_int_equal(zk_select("auto", &ops, NULL), 0);
    assert_int_equal(zb_layout_of(layouts[layout].dtype, layouts[layout].grad,
                                  layouts[layout].optimizer, layouts[layout].moments, false,
                                  &x->layout, NULL),
                     0);
    for (int p = 0; p < ZB_PLANES; p++) {
        x->len[p] = zb_page_bytes(x->layout.block_bytes[p], (uint64_t)blocks * B);
        x->bytes[p] = aligned_alloc(4096, x->len[p]);
        assert_non_null(x->bytes[p]);
        for (size_t i = 0; i < x->len[p]; i += 2) { /* bf16 and fp32 values of a moderate size */
            uint16_t half = (uint16_t)(0x3c00 + ztest_random(&seed) % 512);

            memcpy(x->bytes[p] + i, &half, sizeof(half));
        }
    }
    *w = (struct zsd_pagework){ .kind = ZSD_PAGE_STEP,
                                .ops = ops,
                                .layout = &x->layout,
                                .segments = segments,
                                .nsegments = ZB_COUNT(segments),
                                .by_group = by_group,
                                .page = { .param = x->bytes[ZB_PARAM],
                                          .grad = x->bytes[ZB_GRAD],
                                          .state = x->bytes[ZB_STATE],
                                          .first = 2 * B,
                                          .count = (uint64_t)blocks * B } };
    for (int i = 0; i < ZSD_WORK_PLANES; i++) {
        struct zsd_pagework_plane *p = &w->planes[i];

        *p = (struct zsd_pagework_plane){
            .len_bytes = (uint32_t)x->len[planes[i]],
            .crc_bytes = x->layout.crc_bytes[planes[i]],
            .verify = uses[use].verify[i],
            .seal = uses[use].seal[i],
            .was = { .job = 1, .shard = 2, .plane = (uint32_t)i, .generation = 3 },
            .becomes = { .job = 1, .shard = 2, .plane = (uint32_t)i, .generation = 4 },
            .crcs = x->crcs[i],
            .new_crcs = x->new_crcs[i],
        };
        zn_page_seal(&p->was, x->bytes[planes[i]], p->len_bytes, p->crc_bytes, x->crcs[i]);
    }
    return x;
}

static void fixture_free(struct fixture *x)
{
    for (int p = 0; p < ZB_PLANES; p++)
        free(x->bytes[p]);
    free(x);
}

static void one_pass_is_three(void **state)
{
    (void)state;
    for (size_t l = 0; l < ZB_COUNT(layouts); l++)
        for (size_t u = 0; u < ZB_COUNT(uses); u++)
            for (size_t n = 0; n < ZB_COUNT(lengths); n++) {
                struct fixture *x = fixture_new(l, u, lengths[n], 7),
                               *want = fixture_new(l, u, lengths[n], 7);
                struct zsd_pagework_bad bad;
                struct zsd_pagework *w = &want->work;

                zk_page_step(w->ops, w->layout, &w->page, segments, ZB_COUNT(segments), by_group);
                for (int i = 0; i < ZSD_WORK_PLANES; i++)
                    if (w->planes[i].seal) {
                        size_t used = (size_t)lengths[n] * want->layout.block_bytes[planes[i]];

                        memset(want->bytes[planes[i]] + used, 0, want->len[planes[i]] - used);
                        zn_page_seal(&w->planes[i].becomes, want->bytes[planes[i]],
                                     w->planes[i].len_bytes, w->planes[i].crc_bytes,
                                     want->new_crcs[i]);
                    }
                if (zsd_pagework_run(&x->work, &bad) != 0)
                    fail_msg("%s, %s, %u blocks: plane %d, checksum %u", layouts[l].name,
                             uses[u].name, lengths[n], (int)bad.plane, bad.crc);
                for (int p = 0; p < ZB_PLANES; p++)
                    if (memcmp(x->bytes[p], want->bytes[p], x->len[p]) != 0)
                        fail_msg("%s, %s, %u blocks: other bytes in plane %d", layouts[l].name,
                                 uses[u].name, lengths[n], p);
                if (memcmp(x->new_crcs, want->new_crcs, sizeof(x->new_crcs)) != 0)
                    fail_msg("%s, %s, %u blocks: other checksums", layouts[l].name, uses[u].name,
                             lengths[n]);
                fixture_free(want);
                fixture_free(x);
            }
}

/* One bit flips, under each checksum of each verified plane: the block is named, and from it on no
 * byte of any plane is changed. */
static void a_bad_block_is_found_first(void **state)
{
    unsigned cases = 0;

    (void)state;
    for (size_t l = 0; l < ZB_COUNT(layouts); l++)
        for (size_t u = 0; u < ZB_COUNT(uses); u++)
            for (int i = 0; i < ZSD_WORK_PLANES; i++) {
                uint32_t crc_bytes, count;
                struct fixture *x = fixture_new(l, u, BLOCKS_MAX, 7);

                crc_bytes = x->work.planes[i].crc_bytes;
                count = zn_crc_count(x->work.planes[i].len_bytes, crc_bytes);
                fixture_free(x);
                for (uint32_t c = 0; c < count && uses[u].verify[i]; c++, cases++) {
                    struct fixture *was = fixture_new(l, u, BLOCKS_MAX, 7);
                    struct zsd_pagework_bad bad = { 0 };
                    uint64_t block;

                    x = fixture_new(l, u, BLOCKS_MAX, 7);
                    x->bytes[planes[i]][(size_t)c * crc_bytes + 5] ^= 0x10;
                    was->bytes[planes[i]][(size_t)c * crc_bytes + 5] ^= 0x10;
                    assert_int_equal(zsd_pagework_run(&x->work, &bad), -EBADMSG);
                    if ((int)bad.plane != i || bad.crc != c)
                        fail_msg("%s, %s: plane %d, checksum %u instead of %d, %u", layouts[l].name,
                                 uses[u].name, (int)bad.plane, bad.crc, i, c);
                    block = (uint64_t)c * crc_bytes / x->layout.block_bytes[planes[i]];
                    for (int p = 0; p < ZB_PLANES; p++) {
                        size_t from = block * x->layout.block_bytes[p];

                        if (memcmp(x->bytes[p] + from, was->bytes[p] + from, x->len[p] - from) != 0)
                            fail_msg(
                                "%s, %s, plane %d, checksum %u: plane %d was changed behind it",
                                layouts[l].name, uses[u].name, i, c, p);
                    }
                    fixture_free(was);
                    fixture_free(x);
                }
            }
    assert_true(cases > 50);
}

/* Operations other than a step verify all of the page before they read or change any of it. */
static void others_verify_all_first(void **state)
{
    static const enum zsd_page_kind kinds[] = { ZSD_PAGE_READ, ZSD_PAGE_INIT, ZSD_PAGE_FILL };
    static float values[BLOCKS_MAX * B], out[BLOCKS_MAX * B];

    (void)state;
    for (size_t k = 0; k < ZB_COUNT(kinds); k++) {
        struct fixture *x = fixture_new(0, 2, BLOCKS_MAX, 7),
                       *was = fixture_new(0, 2, BLOCKS_MAX, 7);
        size_t last = x->len[ZB_STATE] - 1;
        struct zsd_pagework_bad bad;

        x->bytes[ZB_STATE][last] ^= 1;
        was->bytes[ZB_STATE][last] ^= 1;
        x->work.kind = kinds[k];
        x->work.what = ZK_EXP_AVG;
        x->work.values = values;
        x->work.out = memset(out, 0x5a, sizeof(out));
        assert_int_equal(zsd_pagework_run(&x->work, &bad), -EBADMSG);
        assert_int_equal(bad.plane, ZSD_WORK_STATE);
        for (int p = 0; p < ZB_PLANES; p++)
            assert_memory_equal(x->bytes[p], was->bytes[p], x->len[p]);
        assert_true(((uint8_t *)out)[0] == 0x5a);
        x->bytes[ZB_STATE][last] ^= 1;
        assert_int_equal(zsd_pagework_run(&x->work, &bad), 0);
        for (int i = 0; i < ZSD_WORK_PLANES; i++) {
            const struct zsd_pagework_plane *p = &x->work.planes[i];

            if (!p->seal)
                continue;
            assert_int_equal(zn_page_verify(&p->becomes, x->bytes[planes[i]], p->len_bytes,
                                            p->crc_bytes, p->new_crcs, &bad.crc),
                             0);
        }
        fixture_free(was);
        fixture_free(x);
    }
}

/* A push verifies the whole page first: it neither adds to a bad page nor counts anything. */
static void a_push_verifies_all_first(void **state)
{
    static float values[BLOCKS_MAX * B];
    struct zsd_ingest sum = { .from = values, .dtype = ZB_F32, .add = true }, none = sum, got = sum;
    struct fixture *x = fixture_new(1, 0, BLOCKS_MAX, 7), *was = fixture_new(1, 0, BLOCKS_MAX, 7);
    struct zsd_pagework_plane *p = &x->work.planes[ZSD_WORK_GRAD];
    struct zsd_pagework_bad bad;

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(values); i++)
        values[i] = (float)i;
    x->work.kind = ZSD_PAGE_PUSH;
    x->work.ingest = &got;
    p->verify = p->seal = true;
    x->bytes[ZB_GRAD][x->len[ZB_GRAD] - 1] ^= 1;
    was->bytes[ZB_GRAD][x->len[ZB_GRAD] - 1] ^= 1;
    assert_int_equal(zsd_pagework_run(&x->work, &bad), -EBADMSG);
    assert_int_equal(bad.plane, ZSD_WORK_GRAD);
    assert_memory_equal(x->bytes[ZB_GRAD], was->bytes[ZB_GRAD], x->len[ZB_GRAD]);
    assert_memory_equal(&got.sum, &none.sum, sizeof(got.sum));
    x->bytes[ZB_GRAD][x->len[ZB_GRAD] - 1] ^= 1;
    was->bytes[ZB_GRAD][x->len[ZB_GRAD] - 1] ^= 1;
    assert_int_equal(zsd_pagework_run(&x->work, &bad), 0);
    zk_page_ingest(was->work.ops, &was->layout, &was->work.page, values, ZB_F32, true, &sum.sum,
                   &sum.nonfinite);
    assert_memory_equal(x->bytes[ZB_GRAD], was->bytes[ZB_GRAD], x->len[ZB_GRAD]);
    assert_memory_equal(&got.sum, &sum.sum, sizeof(got.sum));
    assert_int_equal(zn_page_verify(&p->becomes, x->bytes[ZB_GRAD], p->len_bytes, p->crc_bytes,
                                    p->new_crcs, &bad.crc),
                     0);
    fixture_free(was);
    fixture_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_pass_is_three),
        cmocka_unit_test(a_bad_block_is_found_first),
        cmocka_unit_test(others_verify_all_first),
        cmocka_unit_test(a_push_verifies_all_first),
    };

    zk_thread_init();
    for (unsigned g = 0; g < GROUPS; g++) {
        const struct zk_params params = { .lr = 1e-3 * (g + 1),
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8,
                                          .weight_decay = 0.1 * g,
                                          .scale = 0.5 };

        by_group[g] = zk_prepare(ZB_ADAMW, &params, 3);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
