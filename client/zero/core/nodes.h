/*
 * nodes.h - which of the ranks that share a unit also share a daemon: nodes.c.
 */
#ifndef ZC_ZERO_NODES_H
#define ZC_ZERO_NODES_H

#include "client/zero/zc_zero.h"

struct zcz_nodes {
    uint32_t n;           /* nodes of the ranks that share units with this one */
    uint32_t ranks;       /* of each of these nodes; 0: their numbers differ */
    uint32_t node, place; /* this rank: its node, and its place among the ranks there */
    uint32_t *shards;     /* [n * ranks] the shard of each, by node and place; NULL: ranks is 0 */
    bool even;            /* in every group of ranks, all nodes have the same number of ranks */
    bool several;         /* in some group of ranks there is more than one node */

    /* With node_gather, on several nodes; else NULL. Comms of the ranks of this node, and of the
     * ranks that have this place, one on each node. */
    struct zc_comm *mates, *column;
};

/** Called when the ranks have met. first: for each rank of z->comm the first rank that shares its
 * daemon and its units. 0 or the failure. */
int zcz_nodes_find(struct zc_zero *z, const uint32_t *first);
/** Why a rank cannot read the slices of the other ranks of its node in its daemon; NULL: it can.
 * The same on all ranks. */
const char *zcz_nodes_apart(const struct zc_zero *z);
/** Whether gathers may be made in that way. The same on all ranks. */
bool zcz_nodes_share(const struct zc_zero *z);
/** Makes mates and column. Collective. 0 or the failure. */
int zcz_nodes_split(struct zc_zero *z);
/** Ranks of `comm` that have another daemon than this rank. */
uint32_t zcz_nodes_away(const struct zc_zero *z, const struct zc_comm *comm);
/** As zc_comm_close() of both; frees the rest. */
void zcz_nodes_done(struct zc_zero *z, bool clean);

#endif
