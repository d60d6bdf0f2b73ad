/*
 * A page's checksums must detect every way in which a page can be wrong: other bytes, another page,
 * an older page.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <string.h>

#include "nvme/zn.h"

enum { PAGE = 3 * 4096 + 512, CRC = 4096, CRCS = 4 };

static const struct zn_page_id page_id = {
    .job = 7, .shard = 40, .plane = 2, .index = 3, .generation = 12
};

static void page_fill(unsigned char *page)
{
    uint64_t seed = 5;

    for (size_t i = 0; i < PAGE; i++)
        page[i] = (unsigned char)ztest_random(&seed);
}

/* The result of zn_page_verify(): the number of the bad checksum, or -1 for a good page. */
static int page_bad(const struct zn_page_id *id, const unsigned char *page, const uint32_t *crcs)
{
    uint32_t bad = 77;
    int rc = zn_page_verify(id, page, PAGE, CRC, crcs, &bad);

    if (rc == 0)
        assert_int_equal(bad, 77);
    else
        assert_int_equal(rc, -EBADMSG);
    return rc == 0 ? -1 : (int)bad;
}

static void page_every_bit(void **state)
{
    static unsigned char page[PAGE];
    uint32_t crcs[CRCS + 1] = { [CRCS] = 0x5a5a5a5a };

    (void)state;
    page_fill(page);
    assert_int_equal(zn_crc_count(PAGE, CRC), CRCS);
    zn_page_seal(&page_id, page, PAGE, CRC, crcs);
    assert_int_equal(crcs[CRCS], 0x5a5a5a5a);
    assert_int_equal(page_bad(&page_id, page, crcs), -1);
    for (int bit = 0; bit < PAGE * 8; bit += bit < 64 || bit > PAGE * 8 - 64 ? 1 : 61) {
        page[bit / 8] ^= (unsigned char)(1 << bit % 8);
        if (page_bad(&page_id, page, crcs) != bit / 8 / CRC)
            fail_msg("bit %d: checksum %d", bit, page_bad(&page_id, page, crcs));
        page[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    for (int i = 0; i < CRCS; i++) { /* the same with a flipped checksum */
        crcs[i] ^= 1u << i;
        assert_int_equal(page_bad(&page_id, page, crcs), i);
        crcs[i] ^= 1u << i;
    }
}

static const struct {
    const char *name;
    struct zn_page_id id;
} page_others[] = {
    { "another job", { 8, 40, 2, 3, 12 } },
    { "a job of the upper half", { 7 + (UINT64_C(1) << 32), 40, 2, 3, 12 } },
    { "another shard", { 7, 41, 2, 3, 12 } },
    { "another plane", { 7, 40, 1, 3, 12 } },
    { "another page of the shard", { 7, 40, 2, 4, 12 } },
    { "the generation before", { 7, 40, 2, 3, 11 } },
    { "job and shard exchanged", { 40, 7, 2, 3, 12 } },
    { "plane and index exchanged", { 7, 40, 3, 2, 12 } },
    { "nobody", { 0, 0, 0, 0, 0 } },
};

/* The same bytes with another identity, also all zeros: a blank page belongs to one identity
 * only. */
static void page_of_another(void **state)
{
    static unsigned char page[PAGE];
    uint32_t crcs[CRCS];

    (void)state;
    for (int zero = 0; zero < 2; zero++) {
        if (zero)
            memset(page, 0, sizeof(page));
        else
            page_fill(page);
        zn_page_seal(&page_id, page, PAGE, CRC, crcs);
        for (size_t i = 0; i < ZB_COUNT(page_others); i++)
            if (page_bad(&page_others[i].id, page, crcs) != 0)
                fail_msg("%s: taken for ours", page_others[i].name);
    }
}

static void page_swapped_blocks(void **state)
{
    static unsigned char page[PAGE], other[PAGE];
    uint32_t crcs[CRCS], swapped[CRCS];

    (void)state;
    page_fill(page);
    zn_page_seal(&page_id, page, PAGE, CRC, crcs);
    memcpy(other, page, PAGE);
    memcpy(other + CRC, page + 2 * CRC, CRC);
    memcpy(other + 2 * CRC, page + CRC, CRC);
    assert_int_equal(page_bad(&page_id, other, crcs), 1);
    memcpy(swapped, crcs, sizeof(crcs)); /* the checksums are swapped, too */
    swapped[1] = crcs[2];
    swapped[2] = crcs[1];
    assert_int_equal(page_bad(&page_id, other, swapped), 1);
    memset(page, 0, PAGE); /* equal blocks have different checksums */
    zn_page_seal(&page_id, page, PAGE, CRC, crcs);
    assert_int_not_equal(crcs[0], crcs[1]);
}

/* Sealing block by block gives the same as the whole page, with these numbers on the device. */
static void page_block_by_block(void **state)
{
    static unsigned char page[PAGE];
    uint32_t crcs[CRCS];

    (void)state;
    page_fill(page);
    zn_page_seal(&page_id, page, PAGE, CRC, crcs);
    for (uint32_t i = 0; i < CRCS; i++)
        assert_int_equal(zn_page_crc(&page_id, i, page + i * CRC, i < 3 ? CRC : 512), crcs[i]);
    /* CRC32C, bit by bit, of the bytes that FORMAT.md names, followed by "123456789" */
    assert_int_equal(zn_page_crc(&page_id, 5, "123456789", 9), 0x030e97d3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(page_every_bit),
        cmocka_unit_test(page_of_another),
        cmocka_unit_test(page_swapped_blocks),
        cmocka_unit_test(page_block_by_block),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
