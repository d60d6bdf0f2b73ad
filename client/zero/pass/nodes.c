/*
 * nodes.c - slices of other nodes (ZCZ_WAY_NODES): each crosses to a node once.
 *
 *     COLUMN ---> MATES ---> whole
 *
 *     COLUMN  the ranks of one place, one on each node, all-gather their slices
 *     MATES   the ranks of this node all-gather what they have received from other nodes
 *
 * This rank has read the slices of its own node in the store (alone.c). Both collectives are in
 * host memory. They take their places one after the other when the gather begins, so all ranks
 * start them in the same order. No pin is held meanwhile.
 */
#include <errno.h>
#include <string.h>

#include "client/zero/pass/pass_priv.h"

void zcz_nodes_begin(struct zc_zero *z, struct zcz_unit *u)
{
    const struct zcz_nodes *near = &z->near;

    zcz_coll_queue(z, &u->pass->coll, near->column, ZCZ_CALL_GATHER, u->def.index, 1);
    if (near->ranks > 1)
        zcz_coll_queue(z, &u->pass->mates, near->mates, ZCZ_CALL_GATHER, u->def.index, 2);
}

static int nodes_full(struct zc_zero *z, const struct zcz_unit *u, size_t bytes)
{
    return zcz_fail(z, -ENOMEM,
                    "no memory for the slices of other nodes of unit %u '%s': %zu bytes",
                    u->def.index, u->def.name, bytes);
}

static int nodes_column(struct zc_zero *z, struct zcz_unit *u)
{
    size_t slice = zcz_slice_bytes(u), bytes = slice * z->near.n;

    u->pass->column = zcz_buf_get(&z->pass->gather_pool, bytes);
    if (!u->pass->column)
        return nodes_full(z, u, bytes);
    zcz_coll_arm(&u->pass->coll, (char *)u->pass->buf->data + slice * z->shard,
                 u->pass->column->data, slice);
    zcz_moved(z);
    return 0;
}

/* The last node's slice takes the place of this node's, which all ranks here have. */
static int nodes_mates(struct zc_zero *z, struct zcz_unit *u)
{
    const struct zcz_nodes *near = &z->near;
    size_t slice = zcz_slice_bytes(u), others = slice * (near->n - 1);
    char *column = u->pass->column->data;

    if (near->node != near->n - 1)
        memcpy(column + slice * near->node, column + others, slice);
    if (near->ranks == 1)
        return 1;
    u->pass->remote = zcz_buf_get(&z->pass->gather_pool, others * near->ranks);
    if (!u->pass->remote)
        return nodes_full(z, u, others * near->ranks);
    zcz_coll_arm(&u->pass->mates, column, u->pass->remote->data, others);
    zcz_moved(z);
    return 0;
}

/* Copies slices of other nodes from where nodes_mates() and the ranks of this node have put
 * them. */
static void nodes_place(struct zc_zero *z, struct zcz_unit *u)
{
    const struct zcz_nodes *near = &z->near;
    size_t slice = zcz_slice_bytes(u);
    const char *from = near->ranks > 1 ? u->pass->remote->data : u->pass->column->data;

    for (uint32_t place = 0; place < near->ranks; place++)
        for (uint32_t k = 0; k < near->n - 1; k++, from += slice) {
            uint32_t node = k == near->node ? near->n - 1 : k;

            memcpy((char *)u->pass->buf->data + slice * near->shards[node * near->ranks + place],
                   from, slice);
        }
    zcz_buf_put(&z->pass->gather_pool, u->pass->column);
    zcz_buf_put(&z->pass->gather_pool, u->pass->remote);
    u->pass->column = u->pass->remote = NULL;
    zcz_moved(z);
}

int zcz_nodes_collect(struct zc_zero *z, struct zcz_unit *u)
{
    int rc;

    if (!u->pass->column)
        return nodes_column(z, u);
    if (!u->pass->coll.done)
        return 0;
    if (!u->pass->remote) {
        rc = nodes_mates(z, u);
        if (rc <= 0)
            return rc;
    } else if (!u->pass->mates.done) {
        return 0;
    }
    nodes_place(z, u);
    return 1;
}
