/*
 * held.c - pages that are stepped early: which pages qualify, and where their new bytes are kept
 * until the step publishes them.
 *
 * MODEL. EARLY (pageop.h) leaves the shard's bytes as they are. New bytes of a streamed plane are
 * in a fresh extent; struct zsd_held has the extent and its checksums. New resident parameters are
 * in the memory of the gradient, or, if that is not held, in memory beside gradients
 * (zsd_page_aside()). PUBLISH makes both the contents of the page (pageop.c). If the
 * result is dropped instead, the page is unchanged.
 */
#include "daemon/page/held.h"

#include <stdlib.h>

#include "daemon/disk/extents.h"
#include "daemon/page/pageop_priv.h"

bool zsd_page_early(const struct zsd_shard *s, uint32_t page)
{
    const struct zsd_plane *grad = &s->planes[ZB_GRAD];

    return !s->unit->layout.frozen && zsd_page_streamed(s, ZB_STATE, page) &&
           (zsd_page_streamed(s, ZB_PARAM, page) || zsd_page_rings(s, page) ||
            ((grad->resident == s->npages || s->job->grad_ring) &&
             s->planes[ZB_PARAM].block_bytes <= grad->block_bytes));
}

struct zsd_held *zsd_held_new(const struct zsd_shard *s, uint32_t page)
{
    size_t crcs = 0;
    struct zsd_held *held;

    for (int i = 0; i < ZSD_HELD_PLANES; i++)
        if (zsd_page_streamed(s, zsd_page_planes[i], page))
            crcs += s->planes[zsd_page_planes[i]].crcs_per_page;
    held = malloc(sizeof(*held) + crcs * sizeof(held->crcs[0]));
    for (int i = 0; held && i < ZSD_HELD_PLANES; i++)
        held->fresh[i].at = ZB_NO_PLACE;
    return held;
}

uint64_t zsd_held_at(const struct zsd_held *held, enum zb_plane plane)
{
    for (int i = 0; i < ZSD_HELD_PLANES; i++)
        if (zsd_page_planes[i] == plane)
            return held->fresh[i].at;
    return ZB_NO_PLACE;
}

void zsd_held_drop(struct zsd_shard *s, uint32_t page, struct zsd_held *held)
{
    for (int i = 0; held && i < ZSD_HELD_PLANES; i++)
        if (held->fresh[i].at != ZB_NO_PLACE)
            zsd_extent_unref(s->job->core, held->fresh[i].at,
                             zsd_page_bytes(s, zsd_page_planes[i], page));
    free(held);
}

uint32_t *zsd_held_crcs(struct zsd_pageop *op, const struct zsd_page_io *io)
{
    bool behind = io->plane == ZB_STATE && op->io[0].streamed;

    return op->spec.held->crcs + (behind ? zsd_page_plane(op, ZB_PARAM)->crcs_per_page : 0);
}
