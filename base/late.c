/*
 * late.c - see late.h.
 */
#include "base/late.h"

#include <errno.h>

const char *zb_muon_engine_name(enum zb_muon_engine engine)
{
    static const char *const names[] = { "cpu", "gpu", "gpu-bf16" };

    return (unsigned)engine < ZB_MUON_ENGINE_END ? names[engine] : NULL;
}

static uint32_t moments_of(enum zb_optimizer optimizer)
{
    uint32_t n = 0;

    while (zb_moment_name(optimizer, n))
        n++;
    return n;
}

int zb_layout_steps_with(const struct zb_layout *layout, enum zb_optimizer optimizer,
                         enum zb_moments moments, struct zb_err *err)
{
    uint32_t n = moments_of(optimizer);

    if (!zb_optimizer_name(optimizer))
        return zb_fail(err, -EINVAL, "optimizer number %d is not known", (int)optimizer);
    if ((optimizer == ZB_MUON) != (layout->optimizer == ZB_MUON))
        return zb_fail(err, -ENOTSUP, "state was placed for %s, and cannot be that of %s",
                       zb_optimizer_name(layout->optimizer), zb_optimizer_name(optimizer));
    if (moments != layout->moments)
        return zb_fail(err, -ENOTSUP, "state was placed for moments of %s, and cannot have others",
                       zb_moments_name(layout->moments));
    if (n > layout->nmoments || (n < layout->nmoments && moments != ZB_MOMENTS_F32))
        return zb_fail(
            err, -ENOTSUP,
            "state was placed for %s with %u moments of %s: it cannot be that of %s, which has %u",
            zb_optimizer_name(layout->optimizer), layout->nmoments, zb_moments_name(moments),
            zb_optimizer_name(optimizer), n);
    return 0;
}

enum zb_optimizer zb_layout_placed_for(const struct zb_layout *layout)
{
    return layout->nmoments == moments_of(layout->optimizer) ? layout->optimizer : ZB_ADAMW;
}
