/*
 * box.c - see box.h.
 */
#include "bench/box.h"

#include <math.h>

#include "bench/fair.h"

/* Resources: a direction of each link, then the host memory. */
enum { BOX_HOST = 2 * ZBENCH_BOX_MAX, BOX_ALL };

/* Flows that are in progress, for bench/fair.h. */
struct box_flows {
    const struct zbench_box *box;
    const struct zbench_flow *flows;
};

static double box_takes(const void *arg, uint32_t flow, uint32_t resource)
{
    const struct zbench_flow *f = &((const struct box_flows *)arg)->flows[flow];

    return f->lasts && (resource == BOX_HOST || resource == 2 * f->gpu + (f->up ? 1 : 0)) ? 1 : 0;
}

static double box_limit(const void *arg, uint32_t resource)
{
    const struct zbench_box *box = ((const struct box_flows *)arg)->box;

    if (resource != BOX_HOST)
        return box->link;
    return box->host > 0 ? box->host : INFINITY;
}

static void box_rates(const struct zbench_box *box, struct zbench_flow *flows, uint32_t n)
{
    const struct box_flows all = { box, flows };
    const struct zbench_fair fair = {
        .flows = n, .resources = BOX_ALL, .takes = box_takes, .limit = box_limit, .arg = &all
    };
    double rates[2 * ZBENCH_BOX_MAX];

    zbench_fair_rates(&fair, rates);
    for (uint32_t i = 0; i < n; i++)
        flows[i].rate = rates[i];
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
