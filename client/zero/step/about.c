/*
 * about.c - tells users, by the daemon of each node, how this trainer clips, whether its steps begin
 * early, and what it does not train at present.
 */
#include "client/zero/step/clip.h"
#include "client/zero/step/step.h"

static void about_frozen(const struct zc_zero *z, struct zc_job_about *about)
{
    for (uint32_t i = 0; i < z->nunits; i++) {
        const struct zcz_unit *u = &z->units[i];

        if (!u->frozen_now)
            continue;
        about->frozen_tensors += u->ntrained;
        about->frozen_bytes += zb_plane_bytes(u->layout.block_bytes[ZB_STATE], z->store->page_elems,
                                              z->shards * u->slice);
    }
}

int zcz_about_tell(struct zc_zero *z)
{
    const struct zc_zero_options *o = &z->options;
    struct zcz_wait w = { .what = "the daemon to take what the trainer does" };
    struct zc_job_about about = {
        .clip_mode = (uint32_t)o->clip_mode + 1,
        .clip = o->clip_mode == ZC_CLIP_NONE ? 0 : o->clip,
        .clip_ratio = zcz_clip_on(z) ? o->clip_tensor_ratio : 0,
        .clip_warm_until = zcz_clip_on(z) ? z->steps->clip_since + o->clip_tensor_warmup : 0,
        .early = z->store->early_why == ZC_EARLY_YES && !zcz_clip_agreed(z) ? ZC_EARLY_OLD
                                                                            : z->store->early_why,
    };
    int rc;

    if (!z->store->ops->about || !z->store->knows_sums || z->store->node_rank != 0 ||
        z->store->lost)
        return 0;
    about_frozen(z, &about);
    while ((rc = z->store->ops->about(z->store, &z->op, &about)) == -EAGAIN &&
           (rc = zcz_wait(z, &w)) == 0)
        ;
    if (rc < 0)
        return zcz_fail(z, rc, "%s", z->error.text);
    rc = zcz_wait_op(z, &z->op, w.what);
    return rc < 0 ? zcz_fail(z, rc, "what the trainer does: %s", zcz_store_text(z->store)) : 0;
}
