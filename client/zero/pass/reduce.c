/*
 * reduce.c - gradients: collected by the trainer, exchanged as slices, added in rank order, pushed.
 *
 *     zc_zero_grad()    a buffer of fp32, zeroed                       u->pass->grad
 *     zc_zero_reduce()  a struct zcz_reduce takes the buffer and queues the exchange
 *       exchange        slice r of every rank is sent to rank r
 *       (download       for a gradient on a device, which is masked and rounded there: it is copied
 *                       to the host. Between devices this comes last, and copies the sum)
 *       push            piece by piece: added directly into the store's memory, and passed on
 *
 * ACCUMULATION. Each micro-step's sum is pushed, and the store adds the sums. With
 * accumulate_local, instead, each unit keeps its buffer, all micro-steps add into it, and only the
 * last one reduces it. That needs memory for all gradients, and divides exchanged and pushed bytes
 * by the number of micro-steps. With vertical, this file counts one micro-step.
 *
 * ACROSS REPLICAS. If several ranks have the same slice (DDP: all ranks have the only one), its
 * sums are all-reduced. Each replica gets a part of the slice from all others and adds these in
 * rank order; an all-gather gives the sums to all.
 *
 *       parts           exchange of the fp32 sums from inside; under DDP, of the gradient itself in
 *                       the unit's dtype, so that the sums are the same as at every other stage
 *       gather          of the sums, fp32
 *
 * These two take their places in the order when the next reduction has taken its first place, or
 * when there is no next one (zcz_reduce_follow()). So an exchange does not wait for the sums of the
 * one before.
 *
 * WHOLE GRADIENTS (stage 1). Each unit has one gradient buffer, which the trainer gets each time.
 * It is free again when its sum has been pushed, so zc_zero_grad() may wait for that.
 *
 * MEMORY. A bf16 gradient is rounded in place, so the fp32 buffer has room for both the send half
 * and the receive half. An fp32 gradient needs a second buffer to receive. So does a gradient whose
 * slice the store keeps in that same buffer, because sums are written there while slices are still
 * read. At most ZCZ_REDUCES_MAX reductions hold buffers; a trainer that is faster than the exchange
 * waits in zc_zero_reduce().
 *
 * A RING OF GRADIENTS (store->rings). Pushes follow the announcement of their step, and the store may take
 * its time with them.
 *
 * ORDER. Reductions push their pieces one after the other, in the trainer's order, so a store gets
 * a unit's micro-steps in order. Nothing is pushed while a step is running.
 */
#include <errno.h>
#include <string.h>

#include "client/zero/pass/pass_priv.h"

/* ---- the trainer's buffer */

static bool grad_reducing(const struct zc_zero *z, const struct zcz_unit *u)
{
    zb_list_each(pos, &z->pass->reduces)
    {
        if (zb_container_of(pos, struct zcz_reduce, node)->unit == u)
            return true;
    }
    return false;
}

/* Gets the buffer that the trainer adds into. */
static int grad_get(struct zc_zero *z, struct zcz_unit *u, size_t bytes)
{
    struct zcz_wait w = { .what = "the reduction of this unit's last gradient" };
    int rc = 0;

    if (!z->whole_grads) {
        u->pass->grad =
            zcz_buf_get(z->device.gpu ? &z->pass->grad_dev : &z->pass->grad_pool, bytes);
    } else {
        while (rc == 0 && grad_reducing(z, u))
            rc = zcz_wait(z, &w);
        u->pass->grad = u->pass->grad_kept ? u->pass->grad_kept
                                           : zcz_buf_get(&z->whole_grad, bytes);
    }
    if (rc < 0 || u->pass->grad)
        return rc;
    if (z->device.gpu)
        return zcz_device_full(z, z->whole_grads ? &z->whole_grad : &z->pass->grad_dev,
                               "for the gradient of", u, bytes);
    return zcz_fail(z, -ENOMEM, "no memory for the gradient of unit %u '%s': %zu bytes",
                    u->def.index, u->def.name, bytes);
}

/* Returns the buffer, on the host or on the device, after the reduction. */
static void grad_put(struct zc_zero *z, struct zcz_unit *u, struct zcz_buf *b)
{
    if (z->whole_grads)
        u->pass->grad_kept = b;
    else
        zcz_buf_put(z->device.gpu ? &z->pass->grad_dev : &z->pass->grad_pool, b);
}

int zcz_grad_make(struct zc_zero *z, struct zcz_unit *u, bool zeros)
{
    uint64_t bytes = zcz_grad_elems(z, u) * sizeof(float);
    bool there = u->pass->grad != NULL;
    int rc = there ? 0 : grad_get(z, u, bytes);

    if (rc < 0 || (there && !zeros))
        return rc;
    if (z->device.gpu)
        return zcz_device_zero(z, u->pass->grad, bytes);
    memset(u->pass->grad->data, 0, bytes);
    return 0;
}

static struct zcz_coll *reduce_first(struct zc_zero *z, struct zcz_reduce *r)
{
    return z->shards > 1 ? &r->coll : z->replicas > 1 ? &r->parts : NULL;
}

/* Arms the first collective, for a gradient that is masked and rounded. */
static void reduce_arm(struct zc_zero *z, struct zcz_reduce *r)
{
    const struct zcz_unit *u = r->unit;
    struct zcz_coll *c = reduce_first(z, r);

    if (z->shards == 1)
        r->coll.done = true;
    if (c)
        zcz_coll_arm(c, r->send->data, r->recv,
                     (z->shards > 1 ? u->slice : u->part) * zb_dtype_bytes(u->layout.dtype));
}

static void reduce_queue(struct zc_zero *z, struct zcz_reduce *r, struct zcz_coll *c,
                         enum zcz_call call)
{
    zcz_coll_queue(z, c, c == &r->coll ? z->inside : z->across, call, r->unit->def.index, 0);
}

bool zcz_reduce_idle(const struct zc_zero *z)
{
    return zb_list_empty(&z->pass->reduces) && zb_list_empty(&z->pass->sums) &&
           z->pass->pushes.pending == 0;
}

void zcz_reduce_drop(struct zc_zero *z)
{
    for (uint32_t i = 0; i < z->nunits; i++) {
        struct zcz_unit *u = &z->units[i];

        if (u->pass->grad)
            grad_put(z, u, u->pass->grad);
        u->pass->grad = NULL;
        u->pass->asked = u->pass->unreduced = false;
    }
    z->pass->reduced = 0;
}

void zcz_reduce_rewind(struct zc_zero *z)
{
    z->pass->micro = 0;
    z->pass->changes++;
    for (uint32_t i = 0; i < z->nunits; i++) {
        z->pass->units[i].micro = 0;
        z->pass->units[i].left = z->pass->units[i].summed = false;
    }
}

void zcz_reduce_follow(struct zc_zero *z)
{
    zb_list_each(pos, &z->pass->reduces)
    {
        struct zcz_reduce *r = zb_container_of(pos, struct zcz_reduce, node);

        if (z->replicas == 1 || r->followed)
            continue;
        r->followed = true;
        if (z->shards > 1)
            reduce_queue(z, r, &r->parts, ZCZ_CALL_PARTS);
        reduce_queue(z, r, &r->gather, ZCZ_CALL_SUMS);
    }
    zcz_sums_follow(z);
}

/* Queues the first collective. Then earlier reductions get the rest of their places. */
static void reduce_queue_first(struct zc_zero *z, struct zcz_reduce *r)
{
    struct zcz_coll *c = reduce_first(z, r);

    if (c)
        reduce_queue(z, r, c, ZCZ_CALL_REDUCE);
    zcz_reduce_follow(z);
    zb_list_push_back(&z->pass->reduces, &r->node);
    zcz_sums_begin(z, r->unit, r->micro);
    if (z->options.reduce_waits)
        zcz_reduce_follow(z);
}

uint32_t zcz_reduce_local(const struct zc_zero *z)
{
    return zcz_micro_any(z) ? 0 : zcz_micro_steps(z) - zcz_pushes(z);
}

/* Begins the reduction of the unit's gradient. */
static int reduce_begin(struct zc_zero *z, struct zcz_unit *u)
{
    struct zcz_reduce *r =
        zb_container_of(zb_list_pop_front(&z->pass->reduces_idle), struct zcz_reduce, node);
    uint64_t padded = zcz_grad_elems(z, u);
    size_t bytes = zb_dtype_bytes(u->layout.dtype) * padded;
    bool wants_more = z->world > 1 &&
                      (u->layout.dtype == ZB_F32 || zcz_whole_in_store(z, ZB_GRAD)) &&
                      !z->device.ops;

    *r = (struct zcz_reduce){
        .unit = u,
        .micro = zcz_micro_any(z) ? z->pass->rounds : u->pass->micro - zcz_reduce_local(z),
    };
    reduce_queue_first(z, r);
    if (z->device.gpu) {
        r->on_dev = u->pass->grad;
        if (!z->store->on_device)
            r->send = zcz_buf_get(&z->pass->grad_pool,
                                  (z->device.ops ? u->slice : padded) * sizeof(float));
    } else {
        r->send = u->pass->grad;
    }
    u->pass->grad = NULL;
    if (wants_more)
        r->more = zcz_buf_get(&z->pass->grad_pool, bytes);
    if ((!r->send && !z->store->on_device) || (wants_more && !r->more))
        return zcz_fail(z, -ENOMEM, "no memory to reduce unit %u '%s': %zu bytes", u->def.index,
                        u->def.name, bytes);
    if (z->device.ops) {
        r->recv = r->send ? r->send->data : NULL;
        return zcz_reduce_exchange(z, r);
    }
    if (r->send)
        r->recv = r->more ? r->more->data : (char *)r->send->data + (z->world > 1 ? bytes : 0);
    if (r->on_dev)
        return zcz_reduce_down(z, r);
    zcz_grad_mask(u, padded, r->send->data);
    if (u->layout.dtype != ZB_F32)
        zcz_round_in_place(z->kernels, u->layout.dtype, r->send->data, padded);
    reduce_arm(z, r);
    return 0;
}

/* ---- across replicas */

/* Adds the slices inside: fp32, followed by zeros. */
static int across_begin(struct zc_zero *z, struct zcz_reduce *r)
{
    struct zcz_unit *u = r->unit;
    size_t elems = u->part * z->replicas;
    float *sums;

    r->sums = zcz_buf_get(&z->pass->grad_pool, elems * sizeof(*sums));
    r->parts_in = zcz_buf_get(&z->pass->grad_pool, elems * sizeof(*sums));
    if (!r->sums || !r->parts_in)
        return zcz_fail(z, -ENOMEM, "no memory to add up replicas of unit %u '%s': %zu bytes",
                        u->def.index, u->def.name, 2 * elems * sizeof(*sums));
    sums = r->sums->data;
    zcz_add_slices(z->kernels, u->layout.dtype, r->recv, z->shards, u->slice, 0, u->slice, sums);
    memset(sums + u->slice, 0, (elems - u->slice) * sizeof(*sums));
    zcz_coll_arm(&r->parts, sums, r->parts_in->data, u->part * sizeof(*sums));
    return 0;
}

/* Adds this replica's part; the gather places the others around it. */
static int across_add(struct zc_zero *z, struct zcz_reduce *r)
{
    struct zcz_unit *u = r->unit;
    bool f32 = z->shards > 1 || u->layout.dtype == ZB_F32;
    float *mine;

    if (!r->sums && f32)
        r->sums = r->send; /* all ranks have received it, so it may be overwritten */
    else if (!r->sums)
        r->sums = zcz_buf_get(&z->pass->grad_pool, u->part * z->replicas * sizeof(*mine));
    if (!r->sums)
        return zcz_fail(z, -ENOMEM, "no memory to add up the gradient of unit %u '%s'",
                        u->def.index, u->def.name);
    mine = (float *)r->sums->data + u->part * z->replica;
    zcz_add_slices(z->kernels, f32 ? ZB_F32 : u->layout.dtype,
                   r->parts_in ? r->parts_in->data : r->recv, z->replicas, u->part, 0, u->part,
                   mine);
    zcz_coll_arm(&r->gather, mine, r->sums->data, u->part * sizeof(*mine));
    return 0;
}

static int across_turn(struct zc_zero *z, struct zcz_reduce *r)
{
    if (!r->coll.done || r->on_dev || r->summed || !r->followed)
        return 0;
    if (!r->parts.armed) {
        zcz_moved(z);
        return across_begin(z, r);
    }
    if (r->parts.done && !r->gather.armed) {
        zcz_moved(z);
        return across_add(z, r);
    }
    if (r->gather.done) {
        r->summed = true;
        zcz_moved(z);
    }
    return 0;
}

static int across_turn_all(struct zc_zero *z)
{
    int rc = 0;

    zb_list_each(pos, &z->pass->reduces)
    {
        rc = across_turn(z, zb_container_of(pos, struct zcz_reduce, node));
        if (rc < 0)
            break;
    }
    return rc;
}

/* Between devices: adds what was exchanged. 1: the next stage has begun; 0: not yet. */
static int reduce_add(struct zc_zero *z, struct zcz_reduce *r)
{
    int rc;

    if (z->shards > 1 && !r->coll.done)
        return 0;
    if (z->replicas == 1)
        rc = zcz_reduce_sum(z, r);
    else if (!r->followed)
        return 0;
    else if (!r->parts.armed)
        rc = zcz_reduce_inside(z, r);
    else if (!r->parts.done || (r->gather.armed && !r->gather.done))
        return 0;
    else
        rc = r->gather.armed ? zcz_reduce_parts(z, r) : zcz_reduce_part(z, r);
    return rc < 0 ? rc : 1;
}

/* A gradient that comes from a device: begins its next stage if possible, or ends the download. */
static int reduce_land(struct zc_zero *z, struct zcz_reduce *r)
{
    int rc;

    if (z->device.ops && !r->summing) {
        rc = reduce_add(z, r);
        if (rc > 0)
            zcz_moved(z);
        return rc < 0 ? rc : 0;
    }
    rc = zcz_device_done(z, r->on_dev);
    if (rc <= 0)
        return rc;
    zcz_device_moved(z);
    grad_put(z, r->unit, r->on_dev);
    zcz_buf_put(&z->pass->grad_dev, r->rounded);
    zcz_buf_put(&z->pass->grad_dev, r->more_dev);
    if (r->summing) {
        zcz_buf_put(&z->pass->grad_dev, r->sums == r->on_dev ? NULL : r->sums);
        zcz_buf_put(&z->pass->grad_dev, r->parts_in);
        r->sums = r->parts_in = NULL;
    }
    r->on_dev = r->rounded = r->more_dev = NULL;
    if (!r->summing)
        reduce_arm(z, r);
    zcz_moved(z);
    return 0;
}

/* Whether a reduction of `elems` may be added to those in progress. */
static bool reduce_room(const struct zc_zero *z, uint64_t elems)
{
    uint64_t most = z->options.reduce_elems, there = 0;

    if (zb_list_empty(&z->pass->reduces_idle))
        return false;
    zb_list_each(pos, &z->pass->reduces)
        there += zb_container_of(pos, struct zcz_reduce, node)->unit->def.elems;
    return most == 0 || there == 0 || (elems <= most && there <= most - elems);
}

static int reduce_wait(struct zc_zero *z, bool (*done)(const struct zc_zero *, uint64_t),
                       uint64_t elems)
{
    struct zcz_wait w = { .what = "an earlier reduction" };
    int rc = zcz_turn(z, 0);

    while (rc == 0 && !done(z, elems))
        rc = zcz_wait(z, &w);
    return rc;
}

static bool reduces_over(const struct zc_zero *z, uint64_t elems)
{
    (void)elems;
    return zb_list_empty(&z->pass->reduces);
}

int zcz_reduce_leave(struct zc_zero *z, struct zcz_unit *u)
{
    int rc;

    if (z->store->rings && z->said == ZCZ_SAID_NO)
        return zcz_refuse(z, -EINVAL,
                          "unit %u '%s' is reduced before its step is announced: with grad_ring, "
                          "zc_zero_announce() comes first",
                          u->def.index, u->def.name);
    if (z->options.reduce_elems > 0) /* the previous one may have to end first */
        zcz_reduce_follow(z);
    rc = reduce_wait(z, reduce_room, u->def.elems);
    u->pass->left = true;
    z->pass->changes++;
    return rc == 0 ? reduce_begin(z, u) : rc;
}

bool zcz_reduced_any(const struct zc_zero *z, uint32_t unit)
{
    return z->units[unit].pass->left;
}

uint64_t zcz_reduced_changes(const struct zc_zero *z)
{
    return z->pass->changes + 1;
}

int zcz_reduce_waits(struct zc_zero *z)
{
    return z->options.reduce_waits ? reduce_wait(z, reduces_over, 0) : zcz_turn(z, 0);
}

/* ---- pushing */

static void reduce_end(struct zc_zero *z, struct zcz_reduce *r)
{
    zcz_sums_pushed(z, r->unit, r->micro);
    if (z->device.gpu)
        zcz_buf_put(&z->pass->grad_pool, r->send);
    else
        grad_put(z, r->unit, r->send);
    zcz_buf_put(&z->pass->grad_pool, r->more);
    zcz_buf_put(&z->pass->grad_pool, r->parts_in);
    zcz_buf_put(&z->pass->grad_pool, r->sums == r->send ? NULL : r->sums);
    zb_list_remove(&r->node);
    zb_list_push_back(&z->pass->reduces_idle, &r->node);
    zcz_moved(z);
}

/* Pushes as many pieces as there is room for. */
static int reduce_push(struct zc_zero *z, struct zcz_reduce *r)
{
    const struct zcz_store_ops *store = z->store->ops;
    struct zcz_unit *u = r->unit;

    while (r->next < u->count) {
        uint64_t n = zb_min_u64(z->store->piece_elems, u->count - r->next);
        float *piece = store->piece(z->store);
        int rc;

        if (!piece)
            return 0;
        if (r->summing || r->summed)
            memcpy(piece, (const float *)(r->summing ? r->recv : r->sums->data) + r->next,
                   n * sizeof(*piece));
        else
            zcz_add_slices(z->kernels, u->layout.dtype, r->recv, z->shards, u->slice, r->next, n,
                           piece);
        rc = store->push(z->store, zcz_sums_pushes(z, u, r->micro), u, z->iterations + 1, r->micro,
                         r->next, n, piece);
        if (rc < 0) {
            store->piece_put(z->store, piece);
            return rc == -EAGAIN ? 0 : zcz_fail(z, rc, "%s", z->error.text);
        }
        z->pass->pushed_bytes += n * sizeof(*piece);
        zcz_moved(z);
        r->next += n;
    }
    return 0;
}

static int reduce_downloads(struct zc_zero *z)
{
    bool before = true; /* all earlier ones are in the store, or on their way to the host */
    int rc = 0;

    zb_list_each(pos, &z->pass->reduces)
    {
        struct zcz_reduce *r = zb_container_of(pos, struct zcz_reduce, node);

        if (!r->on_dev || rc < 0 || (!before && !r->summing))
            continue;
        rc = reduce_land(z, r);
        if (z->store->on_device && z->device.ops && r->on_dev && !r->summing)
            before = false;
    }
    return rc;
}

int zcz_reduce_turn(struct zc_zero *z)
{
    int rc = z->device.moving > 0 ? reduce_downloads(z) : 0;

    if (rc < 0)
        return rc;
    if (z->pass->pushes.rc < 0)
        return zcz_fail(z, z->pass->pushes.rc, "push of a gradient: %s", zcz_store_text(z->store));
    if (z->replicas > 1 && (rc = across_turn_all(z)) < 0)
        return rc;
    if ((rc = zcz_sums_turn(z)) < 0)
        return rc;
    if (z->stepping)
        return 0;
    while (!zb_list_empty(&z->pass->reduces) && (!z->store->rings || z->said == ZCZ_SAID_STORE)) {
        struct zcz_reduce *r = zb_container_of(z->pass->reduces.next, struct zcz_reduce, node);
        bool here = r->coll.done && !r->on_dev && (z->replicas == 1 || r->summed);

        rc = here ? reduce_push(z, r) : 0;
        if (rc < 0)
            return rc;
        if (!here || r->next < r->unit->count)
            break;
        reduce_end(z, r);
    }
    return 0;
}
