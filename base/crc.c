#include "base/crc.h"

#include <isa-l/crc.h>

#include "base/util.h"

uint32_t zb_crc32c(uint32_t crc, const void *data, size_t len_bytes)
{
    unsigned char *p = (unsigned char *)(uintptr_t)data; /* ISA-L only reads, but its parameter is
                                                            not const */

    crc = ~crc;
    while (len_bytes > 0) { /* ISA-L's length is an int */
        int piece = (int)zb_min_u64(len_bytes, 1u << 30);

        crc = crc32_iscsi(p, piece, crc);
        p += piece;
        len_bytes -= (size_t)piece;
    }
    return ~crc;
}
