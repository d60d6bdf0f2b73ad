/*
 * fair.c - see fair.h.
 *
 * INVARIANTS
 *     F1  A flow is in its line if and only if one of its lists is not empty.
 *     F2  The tag of a flow in line is not below the line's time.
 */
#include "daemon/run/fair.h"

#include <assert.h>

/* Bytes per unit of a tag, at the default share. So a job of share 1 that moves 50 GB/s takes years
 * to overflow 64 bits. */
#define PRICE_UNIT 64u

static uint64_t price_of(uint64_t bytes, uint32_t share)
{
    return bytes / PRICE_UNIT * ZSD_SHARE_DEFAULT / share + 1; /* nothing is free */
}

void zsd_fair_init(struct zsd_fair *line)
{
    line->now = 0;
    zb_list_init(&line->flows);
}

void zsd_flow_init(struct zsd_flow *flow)
{
    *flow = (struct zsd_flow){ .share = ZSD_SHARE_DEFAULT };
    zb_list_init(&flow->urgent);
    zb_list_init(&flow->rest);
    zb_list_init(&flow->node);
}

void zsd_payer_init(struct zsd_payer *payer, uint32_t share)
{
    payer->share = share == 0 ? ZSD_SHARE_DEFAULT : share;
    for (size_t i = 0; i < ZB_COUNT(payer->flows); i++)
        zsd_flow_init(&payer->flows[i]);
}

void zsd_fair_push(struct zsd_fair *line, struct zsd_flow *flow, struct zsd_turn *turn,
                   uint64_t bytes, uint32_t share, bool urgent)
{
    assert(share > 0);
    flow->share = share;
    turn->flow = flow;
    turn->price = price_of(bytes, share);
    zb_list_push_back(urgent ? &flow->urgent : &flow->rest, &turn->node);
    if (!zb_list_empty(&flow->node))
        return;
    flow->tag = zb_max_u64(flow->tag, line->now);
    zb_list_push_back(&line->flows, &flow->node);
}

/* The flow with the smallest tag: of all flows, of those with urgent turns, of those with other
 * turns. Of equal ones the first in the line; it goes to the end when its turn is taken. */
struct least {
    struct zsd_flow *all, *urgent, *rest;
};

static void least_see(struct zsd_flow **least, struct zsd_flow *flow)
{
    if (!*least || flow->tag < (*least)->tag)
        *least = flow;
}

static struct least fair_least(const struct zsd_fair *line)
{
    struct least l = { 0 };

    zb_list_each(pos, &line->flows)
    {
        struct zsd_flow *flow = zb_container_of(pos, struct zsd_flow, node);

        least_see(&l.all, flow);
        if (!zb_list_empty(&flow->urgent))
            least_see(&l.urgent, flow);
        if (!zb_list_empty(&flow->rest))
            least_see(&l.rest, flow);
    }
    return l;
}

struct zsd_turn *zsd_fair_next(const struct zsd_fair *line)
{
    struct least l = fair_least(line);

    if (l.urgent &&
        (!l.rest || l.urgent->tag <= l.rest->tag + price_of(ZSD_URGENT_BYTES, l.urgent->share)))
        return zb_container_of(l.urgent->urgent.next, struct zsd_turn, node);
    return l.rest ? zb_container_of(l.rest->rest.next, struct zsd_turn, node) : NULL;
}

void zsd_fair_take(struct zsd_fair *line, struct zsd_turn *turn)
{
    struct zsd_flow *flow = turn->flow;

    line->now = zb_max_u64(line->now, fair_least(line).all->tag);
    flow->tag += turn->price;
    zb_list_remove(&turn->node);
    zb_list_remove(&flow->node);
    if (!zb_list_empty(&flow->urgent) || !zb_list_empty(&flow->rest))
        zb_list_push_back(&line->flows, &flow->node);
}
