#include <math.h>

#include "client/zclient.h"
#include "kernels/zk.h"

_Static_assert(ZC_NORM_BYTES == ZK_XSUM_BYTES, "the public header says how long a sum is");

void zc_norm_merge(struct zc_norm *into, const struct zc_norm *other)
{
    struct zk_xsum a, b;

    zk_xsum_load(&a, into->sum_of_squares);
    zk_xsum_load(&b, other->sum_of_squares);
    zk_xsum_merge(&a, &b);
    zk_xsum_store(&a, into->sum_of_squares);
    into->nonfinite += other->nonfinite;
}

double zc_norm_value(const struct zc_norm *norm)
{
    struct zk_xsum sum;

    if (norm->nonfinite > 0)
        return NAN;
    zk_xsum_load(&sum, norm->sum_of_squares);
    return sqrt(zk_xsum_value(&sum));
}
