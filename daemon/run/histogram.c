#include "daemon/run/histogram.h"

/* 1, 2 and 5 times 10^n ns. */
#define DECADE(ns) (ns), 2 * (ns), 5 * (ns)

const uint64_t zsd_bounds_ns[ZSD_BOUNDS] = {
    DECADE(UINT64_C(1000)),       DECADE(UINT64_C(10000)),       DECADE(UINT64_C(100000)),
    DECADE(UINT64_C(1000000)),    DECADE(UINT64_C(10000000)),    DECADE(UINT64_C(100000000)),
    DECADE(UINT64_C(1000000000)), DECADE(UINT64_C(10000000000)), UINT64_C(100000000000),
};

void zsd_histogram_add(struct zsd_histogram *h, uint64_t ns)
{
    unsigned low = 0, high = ZSD_BOUNDS; /* the bucket is in [low, high] */

    while (low < high) {
        unsigned middle = (low + high) / 2;

        if (ns <= zsd_bounds_ns[middle])
            high = middle;
        else
            low = middle + 1;
    }
    h->counts[low]++;
    h->sum_ns += ns;
}

uint64_t zsd_histogram_count(const struct zsd_histogram *h)
{
    uint64_t n = 0;

    for (unsigned i = 0; i <= ZSD_BOUNDS; i++)
        n += h->counts[i];
    return n;
}
