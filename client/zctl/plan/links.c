/*
 * links.c - bytes that gathers move in a step, in both ways of ranks of one node: by collectives, and
 * from the daemon's memory. The ways may place parameters differently, so each has a forecast.
 */
#include <errno.h>
#include <jansson.h>

#include "base/size.h"
#include "base/util.h"
#include "client/zctl/plan/plan.h"

static const char *const ways[ZB_GATHER_AUTO] = { "comm", "host" };

/* The way of the plan itself. */
static enum zb_node_gather way_of(const struct zctl_plan *p)
{
    return zb_run_reads(&p->run) ? ZB_GATHER_HOST : ZB_GATHER_COMM;
}

int zctl_plan_links(struct zctl_plan *p, const struct zb_forecast *f, struct zctl_links *ret)
{
    int rc = 0;

    *ret = (struct zctl_links){ 0 };
    for (enum zb_node_gather way = 0; way < ZB_GATHER_AUTO && rc == 0; way++) {
        struct zb_run run = p->run;
        struct zb_forecast other = *f;

        if (!zb_links_known(&run) || (way == ZB_GATHER_HOST && run.ranks == 1))
            continue;
        run.node_gather = way;
        run.gather_alone = run.gather_alone && way == ZB_GATHER_HOST;
        if (way != way_of(p))
            rc = zb_forecast(&run, &p->node, &other, &p->z->err);
        ret->known[way] = rc == 0 && other.fits;
        if (ret->known[way] && zb_links(&run, &p->node, &other, &ret->way[way]) < 0)
            rc = zb_fail(&p->z->err, -ENOMEM, "the gathers of %u units: %m", run.model->nunits);
    }
    return rc;
}

/* ---- JSON */

static json_t *link_json(const struct zb_link *l)
{
    return json_pack("{s:I, s:I, s:I, s:I}", "up_bytes", (json_int_t)l->up, "down_bytes",
                     (json_int_t)l->down, "within_bytes", (json_int_t)l->within, "sent_bytes",
                     (json_int_t)l->sent);
}

static json_t *way_json(const struct zctl_plan *p, const struct zb_links *l)
{
    json_t *all = link_json(&l->all), *gpus = json_array();

    (void)json_object_set_new(all, "gathers", json_integer((json_int_t)l->gathers));
    (void)json_object_set_new(all, "fetched_bytes", json_integer((json_int_t)l->fetched));
    (void)json_object_set_new(all, "memory_bytes", json_integer((json_int_t)l->memory));
    (void)json_object_set_new(all, "params_on_gpu", json_boolean(l->on_gpus));
    for (uint32_t g = 0; g < zb_max_u64(p->node.gpus, 1); g++)
        (void)json_array_append_new(gpus, link_json(&l->gpu[g]));
    (void)json_object_set_new(all, "gpus", gpus);
    return all;
}

json_t *zctl_links_json(const struct zctl_plan *p, const struct zctl_links *links)
{
    json_t *all;

    if (!zb_links_known(&p->run))
        return json_null();
    all = json_pack("{s:s}", "node_gather", ways[way_of(p)]);
    for (enum zb_node_gather way = 0; way < ZB_GATHER_AUTO; way++)
        (void)json_object_set_new(all, ways[way],
                                  links->known[way] ? way_json(p, &links->way[way]) : json_null());
    return all;
}

/* ---- people */

static void row(const struct zctl_plan *p, const char *what, uint64_t comm, uint64_t host)
{
    if (comm > 0 || host > 0)
        (void)fprintf(p->z->out, "  %-24s %12s %12s\n", what, zb_size_text(comm).s,
                      zb_size_text(host).s);
}

void zctl_links_people(const struct zctl_plan *p, const struct zctl_links *links)
{
    const struct zb_links *comm = &links->way[ZB_GATHER_COMM], *host = &links->way[ZB_GATHER_HOST];
    char name[32];

    if (!links->known[ZB_GATHER_COMM] && !links->known[ZB_GATHER_HOST])
        return;
    (void)fprintf(p->z->out, "\nGATHERS OF A STEP, by node_gather; the plan is for '%s'\n",
                  ways[way_of(p)]);
    (void)fprintf(p->z->out, "  %-24s %12s %12s\n", "", links->known[0] ? "comm" : "-",
                  links->known[1] ? "host" : "-");
    row(p, "out of host memory", comm->all.up, host->all.up);
    row(p, "into host memory", comm->all.down, host->all.down);
    row(p, "sent by ranks", comm->all.sent, host->all.sent);
    row(p, "inside GPU memory", comm->all.within, host->all.within);
    row(p, "through host memory", comm->memory, host->memory);
    for (uint32_t g = 0; g < p->node.gpus; g++) {
        (void)snprintf(name, sizeof(name), "into gpu%u", g);
        row(p, name, comm->gpu[g].up, host->gpu[g].up);
    }
}
