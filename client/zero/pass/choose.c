/*
 * choose.c - how slices come together: as asked for, or (ZC_NODE_GATHER_AUTO) in the way that was
 * faster at the end of the start.
 *
 * MEASURING. All ranks begin to gather the largest unit at the same time, alternately in both ways.
 * Of each rank and way the best time counts, and of the ranks the slowest. So the ranks of a node
 * compete for its memory and links, as in training. All ranks compute the same choice from the same
 * numbers.
 */
#include <errno.h>
#include <stdio.h>

#include "client/zero/pass/pass_priv.h"

#define CHOOSE_ROUNDS 4u /* the first one also allocates buffers */

enum { BY_COMM, BY_HOST, WAYS };

struct times {
    uint64_t ns[WAYS];
};

static struct zcz_unit *choose_unit(struct zc_zero *z)
{
    struct zcz_unit *most = &z->units[0];

    for (uint32_t i = 1; i < z->nunits; i++)
        if (zcz_slice_bytes(&z->units[i]) > zcz_slice_bytes(most))
            most = &z->units[i];
    return most;
}

/* One gather, when all ranks are here. */
static int choose_time(struct zc_zero *z, struct zcz_unit *u, int way, struct times *best)
{
    struct zcz_wait w = { .what = "a gather that is measured" };
    uint64_t begin_ns;
    struct zcz_buf *buf;
    int rc = zcz_share(z, best, sizeof(*best), ZCZ_CALL_CHOICE, 0, &buf);

    if (rc < 0)
        return rc;
    zcz_buf_put(&z->small, buf);
    z->pass->chosen = way == BY_HOST ? ZC_NODE_GATHER_HOST : ZC_NODE_GATHER_COMM;
    zcz_alone_way(z);
    begin_ns = zb_now_ns();
    zcz_gather_begin(z, u);
    rc = zcz_turn(z, 0);
    while (rc == 0 && u->pass->state != ZCZ_READY)
        rc = zcz_wait(z, &w);
    if (rc < 0)
        return rc;
    best->ns[way] = zb_min_u64(best->ns[way], zb_now_ns() - begin_ns);
    zcz_gather_drop(z, u);
    return z->failed;
}

static int choose_measured(struct zc_zero *z)
{
    struct times best = { { UINT64_MAX, UINT64_MAX } }, most = { { 0 } };
    struct zcz_unit *u = choose_unit(z);
    const struct times *all;
    struct zcz_buf *buf;
    int rc = 0;

    for (uint32_t i = 0; i < 2 * CHOOSE_ROUNDS && rc == 0; i++)
        rc = choose_time(z, u, (i + 1) / 2 % 2 == 0 ? BY_COMM : BY_HOST, &best);
    if (rc == 0)
        rc = zcz_share(z, &best, sizeof(best), ZCZ_CALL_CHOICE, 1, &buf);
    if (rc < 0)
        return rc;
    all = buf->data;
    for (uint32_t r = 0; r < z->world; r++)
        for (int w = 0; w < WAYS; w++)
            most.ns[w] = zb_max_u64(most.ns[w], all[r].ns[w]);
    zcz_buf_put(&z->small, buf);
    z->pass->chosen = most.ns[BY_HOST] <= most.ns[BY_COMM] ? ZC_NODE_GATHER_HOST
                                                           : ZC_NODE_GATHER_COMM;
    (void)snprintf(z->pass->chosen_why, sizeof(z->pass->chosen_why),
                   "unit '%.64s' of %.1f MB takes %.3f ms from host memory, %.3f ms over '%s'",
                   u->def.name, (double)(zcz_slice_bytes(u) * z->shards) / 1e6,
                   (double)most.ns[BY_HOST] / 1e6, (double)most.ns[BY_COMM] / 1e6,
                   z->comm->ops->name);
    return 0;
}

int zcz_choose(struct zc_zero *z)
{
    struct zcz_pass *p = z->pass;
    int rc = 0;

    if (z->options.node_gather != ZC_NODE_GATHER_AUTO || z->options.gather_alone ||
        !zcz_nodes_share(z))
        return 0;
    if (z->store->params_dev && !z->device.common) { /* a rank reads only its own GPU */
        p->chosen = ZC_NODE_GATHER_COMM;
        (void)snprintf(p->chosen_why, sizeof(p->chosen_why),
                       "the daemon has the parameters on several GPUs");
    } else if (z->store->params_dev && !z->device.ops) { /* nothing crosses a link */
        p->chosen = ZC_NODE_GATHER_HOST;
        (void)snprintf(p->chosen_why, sizeof(p->chosen_why),
                       "the daemon has the parameters on the GPU");
    } else {
        rc = choose_measured(z);
    }
    zcz_alone_way(z);
    p->fetched_bytes = 0;
    zcz_device_clear(z);
    return rc;
}
