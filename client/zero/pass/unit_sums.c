/*
 * unit_sums.c - sums of squares of a unit's tensors over the slices of several nodes, so that steps
 * with clipping by tensor begin during the backward pass there, too.
 *
 *     the last push of a unit ---> exact sums of this slice ---> of all slices ---> the daemon
 *                          from the store              all-gather        first rank of each node
 *
 * MODEL. A daemon steps a unit early when it knows the norms of its tensors. Of a unit that lies on
 * several nodes it has only some slices. So each rank asks its daemon for the sums of its own slice as
 * soon as the last gradient of the unit is there. One all-gather per unit, of 80 bytes per tensor and
 * rank, over the ranks that share the unit, gives all of them to each rank. When it has ended, all
 * daemons have all gradients of the unit. The first rank of each node passes the merged sums on.
 *
 * Sums are exact, so they are the same number on every node, and the step uses them, too: it exchanges
 * sums only if a unit's were not exchanged here (step/clip.c). A rank that has not announced the step
 * takes part, and tells its daemon nothing. So do groups of ranks that are on one node, if others are not:
 * all ranks make the same calls.
 *
 * ORDER. The all-gather takes its place when the next reduction has taken its own, or when there is no
 * next one (zcz_reduce_follow()). So it never delays the exchange of the next gradient, and there is no
 * barrier: what it waits for is that a slice was taken in by a daemon. With a ring of gradients that may
 * take until the daemon has stepped an earlier unit, whose sums have their place before.
 */
#include <errno.h>
#include <string.h>

#include "client/zero/pass/pass_priv.h"

void zcz_sums_use(struct zc_zero *z, struct zk_xsum *sums_of)
{
    z->pass->sums_of = sums_of;
}

bool zcz_sums_all(const struct zc_zero *z)
{
    for (uint32_t i = 0; i < z->nunits; i++)
        if (zcz_unit_trained(&z->units[i]) && !z->units[i].pass->summed)
            return false;
    return true;
}

void zcz_sums_begin(struct zc_zero *z, struct zcz_unit *u, uint32_t micro)
{
    struct zcz_unit_sums *s = &u->pass->sums;

    if (!z->pass->sums_of || micro + 1 != zcz_pushes(z))
        return;
    *s = (struct zcz_unit_sums){ .state = ZCZ_SUMS_PUSH };
    zb_list_push_back(&z->pass->sums, &s->node);
}

void zcz_sums_follow(struct zc_zero *z)
{
    zb_list_each(pos, &z->pass->sums)
    {
        struct zcz_unit_sums *s = zb_container_of(pos, struct zcz_unit_sums, node);
        const struct zcz_unit *u = zb_container_of(s, struct zcz_pass_unit, sums)->unit;

        if (s->placed)
            continue;
        s->placed = true;
        zcz_coll_queue(z, &s->coll, z->inside, ZCZ_CALL_UNIT_SUMS, u->def.index, 0);
    }
}

/* Whether these are the pushes that the unit's sums wait for: an earlier micro-step may still be reduced. */
static bool sums_wait(const struct zc_zero *z, const struct zcz_unit *u, uint32_t micro)
{
    return u->pass->sums.state == ZCZ_SUMS_PUSH && micro + 1 == zcz_pushes(z);
}

struct zcz_op *zcz_sums_pushes(struct zc_zero *z, struct zcz_unit *u, uint32_t micro)
{
    return sums_wait(z, u, micro) ? &u->pass->sums.op : &z->pass->pushes;
}

void zcz_sums_pushed(const struct zc_zero *z, struct zcz_unit *u, uint32_t micro)
{
    if (sums_wait(z, u, micro))
        u->pass->sums.state = ZCZ_SUMS_PUSHED;
}

static unsigned char *sums_mine(const struct zc_zero *z, const struct zcz_unit_sums *s)
{
    return (unsigned char *)s->buf->data + z->shard * s->bytes;
}

/* Asks the store for the sums of this rank's slice. 1: asked; 0: not yet; or the failure. */
static int sums_ask(struct zc_zero *z, struct zcz_unit *u)
{
    struct zcz_unit_sums *s = &u->pass->sums;
    int rc = 0;

    s->bytes = (size_t)u->ntrained * ZK_XSUM_BYTES;
    if (!s->buf)
        s->buf = zcz_buf_get(&z->small, zb_max_u64(s->bytes, 1) * z->shards);
    if (!s->buf)
        return zcz_fail(z, -ENOMEM, "no memory for the sums of unit %u '%s' of %u ranks",
                        u->def.index, u->def.name, z->shards);
    memset(sums_mine(z, s), 0, s->bytes);
    if (u->ntrained > 0 && u->count > 0)
        rc = z->store->ops->unit_sums(z->store, &s->op, z->iterations + 1, u->trained_first,
                                      u->ntrained, sums_mine(z, s));
    return rc == -EAGAIN ? 0 : rc < 0 ? zcz_fail(z, rc, "%s", z->error.text) : 1;
}

/* Merges the sums of all ranks, in the place of the first one, and keeps them for the step. */
static void sums_merge(const struct zc_zero *z, struct zcz_unit *u)
{
    struct zcz_unit_sums *s = &u->pass->sums;
    struct zk_xsum *of = z->pass->sums_of + u->trained_first;
    unsigned char *all = s->buf->data;

    for (size_t at = 0; at < s->bytes; at += ZK_XSUM_BYTES, of++) {
        struct zk_xsum other;

        *of = (struct zk_xsum){ 0 };
        for (uint32_t r = 0; r < z->shards; r++) {
            zk_xsum_load(&other, all + r * s->bytes + at);
            zk_xsum_merge(of, &other);
        }
        zk_xsum_store(of, all + at);
    }
    u->pass->summed = true;
}

/* Passes the merged sums to the store. 1: done; 0: not yet; or the failure. */
static int sums_tell(struct zc_zero *z, struct zcz_unit *u)
{
    struct zcz_unit_sums *s = &u->pass->sums;
    bool tells = z->store->node_rank == 0 && z->store->early && zcz_announced(z) && s->bytes > 0;
    int rc;

    if (tells && z->said != ZCZ_SAID_STORE)
        return 0;
    rc = tells ? z->store->ops->unit_sums_put(z->store, &s->op, z->iterations + 1, u->def.index,
                                              s->buf->data, u->ntrained)
               : 0;
    return rc == -EAGAIN ? 0 : rc < 0 ? zcz_fail(z, rc, "%s", z->error.text) : 1;
}

/* Enters the next state if possible. 1: it has; 0: not yet; or the failure. */
static int sums_advance(struct zc_zero *z, struct zcz_unit *u)
{
    struct zcz_unit_sums *s = &u->pass->sums;
    int rc = 1;

    if (s->op.rc < 0)
        return zcz_fail(z, s->op.rc, "%s of unit %u '%s': %s",
                        s->state < ZCZ_SUMS_ASKED ? "push of a gradient" : "sums of the tensors",
                        u->def.index, u->def.name, zcz_store_text(z->store));
    if (s->op.pending > 0)
        return 0;
    switch (s->state) {
    case ZCZ_SUMS_NONE:
    case ZCZ_SUMS_PUSH:
        return 0;
    case ZCZ_SUMS_PUSHED:
        rc = sums_ask(z, u);
        break;
    case ZCZ_SUMS_ASKED:
        if (!s->placed)
            return 0;
        zcz_coll_arm(&s->coll, sums_mine(z, s), s->buf->data, s->bytes);
        break;
    case ZCZ_SUMS_ARMED:
        if (!s->coll.done)
            return 0;
        sums_merge(z, u);
        break;
    case ZCZ_SUMS_MERGED:
        rc = sums_tell(z, u);
        break;
    case ZCZ_SUMS_TOLD:
        zcz_buf_put(&z->small, s->buf);
        zb_list_remove(&s->node);
        s->state = ZCZ_SUMS_NONE;
        return 1;
    }
    if (rc == 1)
        s->state++;
    return rc;
}

int zcz_sums_turn(struct zc_zero *z)
{
    zb_list_each(pos, &z->pass->sums)
    {
        struct zcz_unit_sums *s = zb_container_of(pos, struct zcz_unit_sums, node);
        int rc = sums_advance(z, zb_container_of(s, struct zcz_pass_unit, sums)->unit);

        if (rc < 0)
            return rc;
        if (rc > 0)
            zcz_moved(z);
    }
    return 0;
}
