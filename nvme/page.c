#include "nvme/zn.h"

#include <endian.h>
#include <errno.h>

#include "base/crc.h"

/* The seed of every checksum of a page: its identity, little-endian so that a file can be read on
 * another machine. */
static uint32_t page_seed(const struct zn_page_id *id)
{
    struct {
        uint64_t job, shard, generation;
        uint32_t plane, index;
    } who = {
        .job = htole64(id->job),
        .shard = htole64(id->shard),
        .generation = htole64(id->generation),
        .plane = htole32(id->plane),
        .index = htole32(id->index),
    };

    _Static_assert(sizeof(who) == 32, "no padding");
    return zb_crc32c(0, &who, sizeof(who));
}

static uint32_t page_crc(uint32_t seed, uint32_t index, const void *bytes, uint32_t len_bytes)
{
    uint32_t which = htole32(index);

    return zb_crc32c(zb_crc32c(seed, &which, sizeof(which)), bytes, len_bytes);
}

uint32_t zn_page_crc(const struct zn_page_id *id, uint32_t index, const void *bytes,
                     uint32_t len_bytes)
{
    return page_crc(page_seed(id), index, bytes, len_bytes);
}

void zn_page_seal(const struct zn_page_id *id, const void *page, uint32_t len_bytes,
                  uint32_t crc_bytes, uint32_t *crcs)
{
    uint32_t seed = page_seed(id);

    for (uint32_t off = 0, i = 0; off < len_bytes; i++) {
        uint32_t len = (uint32_t)zb_min_u64(crc_bytes, len_bytes - off);

        crcs[i] = page_crc(seed, i, (const char *)page + off, len);
        off += len;
    }
}

int zn_page_verify(const struct zn_page_id *id, const void *page, uint32_t len_bytes,
                   uint32_t crc_bytes, const uint32_t *crcs, uint32_t *ret_bad)
{
    uint32_t seed = page_seed(id);

    for (uint32_t off = 0, i = 0; off < len_bytes; i++) {
        uint32_t len = (uint32_t)zb_min_u64(crc_bytes, len_bytes - off);

        if (page_crc(seed, i, (const char *)page + off, len) != crcs[i]) {
            *ret_bad = i;
            return -EBADMSG;
        }
        off += len;
    }
    return 0;
}
