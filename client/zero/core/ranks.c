/*
 * ranks.c - which rank has which slice, and which planes a rank has whole.
 *
 * The world is divided in two ways: into groups of `shards` consecutive ranks that together have
 * all slices (inside), and into sets of `replicas` ranks that have the same slice (across).
 */
#include <errno.h>

#include "client/zero/core/zero.h"

int zcz_split(struct zc_zero *z)
{
    const struct zc_zero_options *o = &z->options;
    const struct zc_comm_ops *ops = z->comm->ops;
    uint32_t shards = o->stage == ZC_STAGE_DDP ? 1 : o->group_ranks ? o->group_ranks : z->world;
    int rc = 0;

    z->shards = shards;
    z->shard = z->rank % shards;
    z->replicas = z->world / shards;
    z->replica = z->rank / shards;
    z->whole_params = shards > 1 && o->stage < ZC_STAGE_3;
    z->whole_grads = shards > 1 && o->stage < ZC_STAGE_2;
    if (z->replicas == 1 || shards == 1) {
        z->inside = shards > 1 ? z->comm : NULL;
        z->across = z->replicas > 1 ? z->comm : NULL;
        return 0;
    }
    if (!ops->split)
        return zcz_fail(z, -ENOTSUP, "backend '%s' has no split(): groups of %u ranks need one",
                        ops->name, shards);
    z->splits = true;
    rc = ops->split(z->comm, z->replica, &z->inside);
    if (rc == 0)
        rc = ops->split(z->comm, z->shard, &z->across);
    return rc < 0 ? zcz_fail(z, rc, "groups of %u ranks over '%s'%s%s", shards, ops->name,
                             ops->error ? ": " : " failed", ops->error ? ops->error(z->comm) : "")
                  : 0;
}

uint32_t zcz_rank_of(const struct zc_zero *z, const struct zc_comm *comm, uint32_t rank)
{
    const struct zcz_nodes *near = &z->near;

    if (comm && (comm == near->mates || comm == near->column))
        return z->replica * z->shards +
               near->shards[comm == near->mates ? near->node * near->ranks + rank
                                                : rank * near->ranks + near->place];
    return !z->splits || comm == z->comm ? rank
           : comm == z->inside           ? z->replica * z->shards + rank
                                         : rank * z->shards + z->shard;
}

bool zcz_plane_whole(const struct zc_zero *z, enum zb_plane plane)
{
    return (plane == ZB_PARAM && z->whole_params) || (plane == ZB_GRAD && z->whole_grads);
}

bool zcz_whole_in_store(const struct zc_zero *z, enum zb_plane plane)
{
    return zcz_plane_whole(z, plane) && !z->device.gpu &&
           z->options.offload_optimizer == ZC_ZERO_NONE &&
           (plane == ZB_PARAM || zcz_pushes(z) == 1);
}
