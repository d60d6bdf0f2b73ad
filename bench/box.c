/*
 * box.c - see box.h. Rates are max-min fair: the resource that gives its flows the least is filled
 * first, these flows get their share, and so on with what is left.
 */
#include "bench/box.h"

#include <math.h>

/* Resources: a direction of each link, then the host memory. */
enum { BOX_HOST = 2 * ZBENCH_BOX_MAX, BOX_ALL };

static uint32_t box_link(const struct zbench_flow *f)
{
    return 2 * f->gpu + (f->up ? 1 : 0);
}

static bool box_uses(const struct zbench_flow *f, uint32_t resource)
{
    return resource == BOX_HOST || resource == box_link(f);
}

/* What the resource still gives to each of its flows that have no rate yet; INFINITY: there are
 * none. */
static double box_share(const struct zbench_box *box, const struct zbench_flow *flows, uint32_t n,
                        uint32_t resource)
{
    double left = resource == BOX_HOST ? box->host : box->link;
    uint32_t waiting = 0;

    if (resource == BOX_HOST && box->host <= 0)
        return INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (!flows[i].lasts || !box_uses(&flows[i], resource))
            continue;
        left -= flows[i].rate;
        waiting += flows[i].rate <= 0;
    }
    return waiting > 0 ? left / waiting : INFINITY;
}

static void box_rates(const struct zbench_box *box, struct zbench_flow *flows, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        flows[i].rate = 0;
    for (;;) {
        uint32_t least = BOX_ALL;
        double share = INFINITY;

        for (uint32_t r = 0; r < BOX_ALL; r++) {
            double s = box_share(box, flows, n, r);

            if (s < share) {
                share = s;
                least = r;
            }
        }
        if (least == BOX_ALL)
            return;
        for (uint32_t i = 0; i < n; i++)
            if (flows[i].lasts && flows[i].rate <= 0 && box_uses(&flows[i], least))
                flows[i].rate = share;
    }
}

void zbench_box_move(struct zbench_box *box, struct zbench_flow *flows, uint32_t n)
{
    uint32_t last = 0;

    for (uint32_t i = 0; i < n; i++) {
        flows[i].lasts = flows[i].bytes > 0;
        last += flows[i].lasts;
        *(flows[i].up ? &box->up : &box->down) += flows[i].bytes;
        box->host_bytes += flows[i].bytes;
    }
    while (last > 0) {
        double next = INFINITY;

        box_rates(box, flows, n);
        for (uint32_t i = 0; i < n; i++)
            if (flows[i].lasts)
                next = fmin(next, flows[i].bytes / flows[i].rate);
        box->seconds += next;
        for (uint32_t i = 0; i < n; i++) {
            if (!flows[i].lasts)
                continue;
            flows[i].bytes -= next * flows[i].rate;
            if (flows[i].bytes > next * flows[i].rate * 1e-9)
                continue;
            flows[i].lasts = false;
            last--;
        }
    }
}

void zbench_box_shared(struct zbench_box *box, double bytes)
{
    struct zbench_flow flows[ZBENCH_BOX_MAX];

    for (uint32_t g = 0; g < box->gpus; g++)
        flows[g] = (struct zbench_flow){ .gpu = g, .bytes = bytes };
    zbench_box_move(box, flows, box->gpus);
}

void zbench_box_ring(struct zbench_box *box, double bytes)
{
    struct zbench_flow flows[2 * ZBENCH_BOX_MAX];
    double slice = bytes / box->gpus;

    zbench_box_shared(box, slice);
    for (uint32_t g = 0; g < box->gpus; g++) {
        flows[2 * g] = (struct zbench_flow){ .gpu = g, .bytes = slice * (box->gpus - 1) };
        flows[2 * g + 1] = flows[2 * g];
        flows[2 * g + 1].up = true;
    }
    zbench_box_move(box, flows, 2 * box->gpus);
}
