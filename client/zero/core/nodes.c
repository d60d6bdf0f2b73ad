/*
 * nodes.c - which of the ranks that share a unit also share a daemon.
 *
 * MODEL. The ranks that share a unit (all, or those of one group) are on `n` nodes. If each node
 * has the same number of ranks, they form a table of nodes and places:
 *
 *                 place 0   place 1
 *     node 0      shard 0   shard 1      mates: one row, which shares a daemon
 *     node 1      shard 2   shard 3      column: one rank of each node
 *
 * Nodes are numbered by their first rank, places by rank. Any assignment of ranks to nodes is
 * possible.
 */
#include <errno.h>
#include <stdlib.h>

#include "client/zero/core/zero.h"

/* The ranks of a group: *ret_n nodes. Returns the number of ranks of each node, or 0 if it
 * differs. */
static uint32_t group_nodes(const struct zc_zero *z, const uint32_t *first, uint32_t replica,
                            uint32_t *ret_n)
{
    uint32_t begin = replica * z->shards, end = begin + z->shards, most = 0, n = 0;
    bool even = true;

    for (uint32_t r = begin; r < end; r++) {
        uint32_t ranks = 0;

        if (first[r] != r)
            continue;
        n++;
        for (uint32_t other = begin; other < end; other++)
            ranks += first[other] == r;
        even = even && (most == 0 || ranks == most);
        most = ranks;
    }
    *ret_n = n;
    return even ? most : 0;
}

/* Fills the table of this rank's group. */
static int nodes_table(struct zc_zero *z, const uint32_t *first)
{
    struct zcz_nodes *near = &z->near;
    uint32_t begin = z->replica * z->shards, node = 0;

    near->shards = calloc(z->shards, sizeof(*near->shards));
    if (!near->shards)
        return zcz_fail(z, -ENOMEM, "no memory for %u ranks", z->shards);
    for (uint32_t r = begin; r < begin + z->shards; r++) {
        uint32_t place = 0;

        if (first[r] != r)
            continue;
        for (uint32_t other = begin; other < begin + z->shards; other++) {
            if (first[other] != r)
                continue;
            if (other == z->rank) {
                near->node = node;
                near->place = place;
            }
            near->shards[node * near->ranks + place++] = other - begin;
        }
        node++;
    }
    return 0;
}

int zcz_nodes_find(struct zc_zero *z, const uint32_t *first)
{
    struct zcz_nodes *near = &z->near;

    near->even = true;
    for (uint32_t g = 0; g < z->replicas; g++) {
        uint32_t n, ranks = group_nodes(z, first, g, &n);

        near->even = near->even && ranks > 0;
        near->several = near->several || n > 1;
        if (g != z->replica)
            continue;
        near->n = n;
        near->ranks = ranks;
    }
    return near->ranks > 0 ? nodes_table(z, first) : 0;
}

const char *zcz_nodes_apart(const struct zc_zero *z)
{
    const struct zcz_nodes *near = &z->near;

    return z->shards == 1 ? "each rank has whole units"
           : z->options.offload_optimizer == ZC_ZERO_NONE
               ? "without a daemon the slices of other ranks are in their processes"
           : z->options.quantize_gather ? "quantize_gather quantizes what ranks send each other"
           : !near->several             ? NULL
           : z->device.ops ? "the ranks have several daemons, and gather between devices"
           : !near->even   ? "the ranks have several daemons, with different numbers of ranks"
           : !z->comm->ops->split
               ? "the ranks have several daemons, and the backend cannot split its ranks"
               : NULL;
}

bool zcz_nodes_share(const struct zc_zero *z)
{
    if (z->options.gather_alone)
        return z->shards > 1;
    return z->options.node_gather != ZC_NODE_GATHER_COMM && !zcz_nodes_apart(z);
}

int zcz_nodes_split(struct zc_zero *z)
{
    struct zcz_nodes *near = &z->near;
    const struct zc_comm_ops *ops = z->comm->ops;
    int rc;

    if (!zcz_nodes_share(z) || !near->several || z->options.gather_alone)
        return 0;
    rc = ops->split(z->inside, near->node, &near->mates);
    if (rc == 0)
        rc = ops->split(z->inside, near->place, &near->column);
    return rc < 0 ? zcz_fail(z, rc, "ranks of each of %u nodes over '%s'%s%s", near->n, ops->name,
                             ops->error ? ": " : " failed", ops->error ? ops->error(z->inside) : "")
                  : 0;
}

uint32_t zcz_nodes_away(const struct zc_zero *z, const struct zc_comm *comm)
{
    return comm == z->inside ? z->shards - z->store->node_world
                             : (comm == z->near.column ? comm->world - 1 : 0);
}

void zcz_nodes_done(struct zc_zero *z, bool clean)
{
    if (z->near.column)
        z->near.column->ops->close(z->near.column, clean);
    if (z->near.mates)
        z->near.mates->ops->close(z->near.mates, clean);
    z->near.column = z->near.mates = NULL;
    free(z->near.shards);
    z->near.shards = NULL;
}
