/*
 * alone.c - slices that a rank reads in the store by their names, its own and those of other ranks of
 * its node: all slices of a unit (ZCZ_WAY_HOST), or those of its node (ZCZ_WAY_NODES).
 *
 *     FETCH ---> FETCHING ---> COLLECT ---> (UPLOAD) ---> READY
 *       ^                         |
 *       '------ next slices ------'
 *
 *     FETCH     waits for pins, and fetches slices by name: all of them if the store keeps
 *               parameters in memory, else one. The ranks exchanged the names at the start
 *     COLLECT   slices are copied to their places (on a device: being copied) and unpinned; codes
 *               are dequantized. With ZCZ_WAY_NODES, nodes.c then gets the other slices
 *     UPLOAD    on a device, for codes: being dequantized; with ZCZ_WAY_NODES: being copied
 *
 * A unit that is a single slice is read in place if the store has an unlimited number of pins.
 *
 * INVARIANTS
 *     In a store with few pins, a pin is held only until its slice is copied. Meanwhile the rank
 *     waits for nothing but the device. So the pin is returned whatever other ranks do, and a rank
 *     that waits for a pin gets it.
 *     With ZCZ_WAY_HOST there are no collectives. With gather_alone, ranks may therefore differ in
 *     what is prefetched, kept and dropped.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/zero/pass/pass_priv.h"

/* Elements of slice `s` of the unit, as stored. */
static uint64_t slice_count(const struct zc_zero *z, const struct zcz_unit *u, uint32_t s)
{
    uint64_t slice, first, count;

    zb_slice(u->def.elems, z->shards, s, &slice, &first, &count);
    return count;
}

/* Number of sources that are not empty. These come first. */
static uint32_t slices(const struct zc_zero *z, const struct zcz_unit *u)
{
    const struct zcz_pass *p = z->pass;
    uint32_t n = 0;

    while (n < p->sources && slice_count(z, u, p->source[n]) > 0)
        n++;
    return n;
}

/* ---- the start */

void zcz_alone_way(struct zc_zero *z)
{
    struct zcz_pass *p = z->pass;
    const char *why = zcz_nodes_apart(z);

    if (z->options.gather_alone && z->shards > 1)
        p->chosen = ZC_NODE_GATHER_HOST;
    else if (z->options.node_gather == ZC_NODE_GATHER_HOST && !why)
        p->chosen = ZC_NODE_GATHER_HOST;
    if (z->options.node_gather != ZC_NODE_GATHER_COMM && why && !z->options.gather_alone)
        (void)snprintf(p->chosen_why, sizeof(p->chosen_why), "%s", why);
    p->way = p->chosen != ZC_NODE_GATHER_HOST ? ZCZ_WAY_COMM
             : z->near.n == 1                 ? ZCZ_WAY_HOST
                                              : ZCZ_WAY_NODES;
}

/* The slices that this rank reads by name. */
static int alone_sources(struct zc_zero *z)
{
    struct zcz_pass *p = z->pass;
    const struct zcz_nodes *near = &z->near;
    bool whole = near->n == 1;
    size_t n;

    p->sources = whole ? z->shards : near->ranks;
    n = (size_t)z->nunits * p->sources;
    p->own = whole ? z->shard : near->place;
    p->source = calloc(p->sources, sizeof(*p->source));
    p->names = calloc(n, sizeof(*p->names));
    p->views = calloc(n, sizeof(*p->views));
    if (!p->source || !p->names || !p->views)
        return zcz_refuse(z, -ENOMEM, "no memory for the slices of %u units", z->nunits);
    for (uint32_t i = 0; i < p->sources; i++)
        p->source[i] = whole ? i : near->shards[near->node * near->ranks + i];
    return 0;
}

int zcz_alone_start(struct zc_zero *z)
{
    struct zcz_store *s = z->store;
    struct zcz_pass *p = z->pass;
    size_t bytes = z->nunits * sizeof(uint64_t);
    uint32_t begin = z->replica * z->shards;
    const uint64_t *all;
    struct zcz_buf *buf;
    int rc;

    zcz_alone_way(z);
    if (!zcz_nodes_share(z))
        return 0;
    rc = zcz_share(z, s->ops->names(s), bytes, ZCZ_CALL_SLICES, 0, &buf);
    if (rc < 0)
        return rc;
    all = buf->data;
    rc = alone_sources(z);
    for (uint32_t u = 0; u < z->nunits && rc == 0; u++)
        for (uint32_t i = 0; i < p->sources; i++)
            p->names[(size_t)u * p->sources + i] =
                all[(size_t)(begin + p->source[i]) * z->nunits + u];
    zcz_buf_put(&z->small, buf);
    return rc;
}

void zcz_alone_done(struct zc_zero *z)
{
    struct zcz_pass *p = z->pass;

    free(p->source);
    free(p->names);
    free(p->views);
    p->source = NULL;
    p->names = NULL;
    p->views = NULL;
}

/* ---- slices that are pinned */

void zcz_alone_begin(struct zcz_unit *u)
{
    u->pass->slices_done = 0;
    u->pass->local = false;
}

/* The first of the sources that were fetched last. Each rank begins with its own slice, so that
 * ranks do not all fetch the same one. */
static uint32_t alone_at(const struct zc_zero *z, const struct zcz_unit *u)
{
    uint32_t n = slices(z, u);

    return z->store->pins_max == UINT32_MAX || n == 0 ? 0
                                                      : (u->pass->slices_done + z->pass->own) % n;
}

static size_t alone_index(const struct zc_zero *z, const struct zcz_unit *u)
{
    return (size_t)u->def.index * z->pass->sources + alone_at(z, u);
}

static uint64_t alone_count(const struct zc_zero *z, const struct zcz_unit *u, uint32_t source)
{
    return slice_count(z, u, z->pass->source[source]);
}

int zcz_alone_unpin(struct zc_zero *z, struct zcz_unit *u)
{
    uint32_t n = u->pass->slices_pinned;
    int rc = z->store->ops->release_named(z->store, &z->pass->names[alone_index(z, u)], n);

    u->pass->pinned = false;
    u->pass->slices_pinned = 0;
    z->pass->pins -= n;
    return rc < 0 ? zcz_fail(z, rc, "release of unit %u '%s': %s", u->def.index, u->def.name,
                             zcz_store_text(z->store))
                  : 0;
}

int zcz_alone_fetch(struct zc_zero *z, struct zcz_unit *u)
{
    struct zcz_store *s = z->store;
    uint32_t n = s->pins_max == UINT32_MAX ? slices(z, u) : 1;
    size_t at = alone_index(z, u);
    int rc;

    if (slices(z, u) == 0) { /* this node keeps nothing of the unit */
        u->pass->state = ZCZ_COLLECT;
        zcz_moved(z);
        return 0;
    }
    if (s->pins_max - z->pass->pins < n)
        return 0;
    rc = s->ops->fetch_named(s, &u->pass->fetch, &z->pass->names[at], n, z->applied,
                             &z->pass->views[at]);
    if (rc == -EAGAIN)
        return 0;
    if (rc < 0)
        return zcz_fail(z, rc, "%s", z->error.text);
    u->pass->slices_pinned = n;
    z->pass->pins += n;
    u->pass->state = ZCZ_FETCHING;
    zcz_moved(z);
    return 0;
}

int zcz_alone_fetched(struct zc_zero *z, struct zcz_unit *u)
{
    const struct zc_view *views = &z->pass->views[alone_index(z, u)];

    if (u->pass->fetch.pending > 0)
        return 0;
    if (u->pass->fetch.rc < 0)
        return zcz_fail(z, u->pass->fetch.rc, "fetch of unit %u '%s': %s", u->def.index,
                        u->def.name, zcz_store_text(z->store));
    for (uint32_t i = 0; i < u->pass->slices_pinned; i++) {
        uint64_t bytes = zb_plane_bytes(u->layout.block_bytes[ZB_PARAM], z->store->page_elems,
                                        alone_count(z, u, alone_at(z, u) + i));

        if ((views[i].version != z->applied || views[i].bytes != bytes) && !z->store->lost)
            return zcz_fail(
                z, -EPROTO,
                "slice %u of unit %u '%s' came as %llu bytes of version %llu, and not %llu of %llu",
                z->pass->source[alone_at(z, u) + i], u->def.index, u->def.name,
                (unsigned long long)views[i].bytes, (unsigned long long)views[i].version,
                (unsigned long long)bytes, (unsigned long long)z->applied);
        z->pass->fetched_bytes += bytes;
    }
    u->pass->pinned = true;
    u->pass->state = ZCZ_COLLECT;
    zcz_moved(z);
    return 0;
}

/* ---- on the host */

/* Copies a source to its place in the buffer, as parameters. */
static void alone_copy(const struct zc_zero *z, const struct zcz_unit *u, uint32_t source,
                       const struct zc_view *view)
{
    uint64_t count = alone_count(z, u, source), page = z->store->page_elems;
    struct zcz_pieces from = zcz_gather_pieces(z, u, view, count);
    char *to = (char *)u->pass->buf->data + zcz_slice_bytes(u) * z->pass->source[source];

    if (!u->layout.quantized) {
        for (size_t done = 0; done < from.bytes; done += from.piece)
            memcpy(to + done, (const char *)from.data + done / from.piece * from.stride,
                   zb_min_u64(from.piece, from.bytes - done));
        return;
    }
    for (uint64_t at = 0; at < count; at += page)
        zk_q8_read(z->kernels, u->layout.dtype,
                   (const char *)from.data + zb_plane_bytes(ZB_Q8_BLOCK_BYTES, page, at),
                   zb_min_u64(page, count - at), to + at * zb_dtype_bytes(u->layout.dtype));
}

/* Zeros what follows the elements of the last slices. */
static void alone_zero_behind(const struct zc_zero *z, const struct zcz_unit *u)
{
    size_t bytes = zcz_slice_bytes(u), elem = zb_dtype_bytes(u->layout.dtype);

    for (uint32_t i = 0; i < z->pass->sources; i++) {
        size_t stored = alone_count(z, u, i) * elem;

        memset((char *)u->pass->buf->data + bytes * z->pass->source[i] + stored, 0, bytes - stored);
    }
}

/* 1: all sources are there; 0: others are still to be fetched. */
static int alone_collect_host(struct zc_zero *z, struct zcz_unit *u)
{
    const struct zc_view *views = &z->pass->views[alone_index(z, u)];
    uint32_t at = alone_at(z, u), n = slices(z, u);
    int rc;

    if (z->pass->way == ZCZ_WAY_HOST && n == 1 && !u->layout.quantized && !z->whole_params &&
        z->store->pins_max == UINT32_MAX) {
        u->pass->params = views[0].data;
        return 1;
    }
    rc = zcz_gather_host_get(z, u);
    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < u->pass->slices_pinned; i++)
        alone_copy(z, u, at + i, &views[i]);
    n -= u->pass->slices_done + u->pass->slices_pinned;
    at = u->pass->slices_pinned;
    rc = u->pass->pinned ? zcz_alone_unpin(z, u) : 0;
    u->pass->slices_done += at;
    if (rc < 0 || n > 0)
        return rc;
    alone_zero_behind(z, u);
    u->pass->params = u->pass->buf->data;
    return 1;
}

/* ---- on a device */

/* Begins to copy the pinned slices to the device. */
static int alone_up(struct zc_zero *z, struct zcz_unit *u)
{
    const struct zc_view *views = &z->pass->views[alone_index(z, u)];
    uint32_t at = alone_at(z, u), last = slices(z, u) - 1;
    size_t bytes = u->layout.quantized ? zcz_wire_bytes(u) : zcz_slice_bytes(u);
    int rc = zcz_gather_dev_get(z, u);

    for (uint32_t i = 0; i < u->pass->slices_pinned && rc == 0; i++) {
        uint32_t s = at + i; /* all slices are sources here */
        struct zcz_pieces from = zcz_gather_pieces(z, u, &views[i], alone_count(z, u, s));

        rc = zcz_device_up(z, u->layout.quantized ? u->pass->wire : u->pass->on_dev, bytes * s,
                           &from, s == last ? bytes * (z->shards - s) : bytes);
    }
    return rc;
}

/* As alone_collect_host(). */
static int alone_collect_dev(struct zc_zero *z, struct zcz_unit *u)
{
    uint32_t n;
    int rc;

    if (!u->pass->copying) {
        u->pass->copying = true;
        zcz_device_moves(z);
        zcz_moved(z);
        return alone_up(z, u);
    }
    rc = zcz_device_done(z, u->layout.quantized ? u->pass->wire : u->pass->on_dev);
    if (rc <= 0)
        return rc;
    zcz_device_moved(z);
    u->pass->copying = false;
    n = u->pass->slices_pinned;
    rc = zcz_alone_unpin(z, u);
    u->pass->slices_done += n;
    if (rc < 0 || u->pass->slices_done < slices(z, u))
        return rc;
    u->pass->params = u->pass->on_dev->data;
    return 1;
}

/* All sources are there. */
static int alone_end(struct zc_zero *z, struct zcz_unit *u)
{
    int rc;

    if (z->pass->way == ZCZ_WAY_NODES) {
        u->pass->local = true;
        rc = zcz_nodes_collect(z, u);
        if (rc <= 0)
            return rc;
        if (z->device.gpu)
            return zcz_gather_host_up(z, u);
    }
    if (u->pass->wire)
        return zcz_gather_made(z, u);
    u->pass->state = ZCZ_READY;
    return 0;
}

int zcz_alone_collect(struct zc_zero *z, struct zcz_unit *u)
{
    bool on_device = z->device.gpu && z->pass->way == ZCZ_WAY_HOST;
    int rc = 1;

    if (!u->pass->local)
        rc = on_device ? alone_collect_dev(z, u) : alone_collect_host(z, u);
    if (rc < 0 || (rc == 0 && u->pass->pinned))
        return rc;
    if (rc > 0 && u->pass->local)
        return alone_end(z, u); /* as long as it waits, nothing moves */
    zcz_moved(z);
    if (rc == 0) {
        u->pass->state = ZCZ_FETCH;
        return 0;
    }
    return alone_end(z, u);
}
