/*
 * iteration.c - computes a run with the time of its iterations, and prints that time for people and
 * for programs. docs/PLANNING.md has the formula of each term.
 */
#include <jansson.h>
#include <math.h>

#include "client/zctl/plan/plan.h"

#define GB   1e9
#define TERA 1e12

/* ---- the run */

/* In one way. */
static int run_way(const struct zctl_plan *p, enum zb_node_gather way, struct zb_forecast *f,
                   struct zb_iteration *it, bool *ret_timed)
{
    struct zb_run run = p->run;
    int rc;

    run.node_gather = way;
    rc = zb_forecast(&run, &p->node, f, &p->z->err);
    *ret_timed = rc == 0 && f->fits && run.tokens > 0;
    return *ret_timed ? zb_iterate(&run, &p->node, f, it, &p->z->err) : rc;
}

/* Whether `auto` has to measure, as the engine does (client/zero/pass/choose.c). *ret_way: what it is
 * otherwise. f: the forecast with collectives. */
static bool run_measures(const struct zctl_plan *p, const struct zb_forecast *f,
                         enum zb_node_gather *ret_way)
{
    bool here = p->run.nodes == 1 && p->run.ranks > 1 && zb_run_keeps(&p->run);
    bool there = here && f->gpu_params > 0, one = zb_run_on_one(&p->run, &p->node, f->local);

    /* from one GPU nothing crosses a link; a rank cannot read on several */
    *ret_way = there && one && p->run.comm == ZB_COMM_HOST ? ZB_GATHER_HOST : ZB_GATHER_COMM;
    return here && *ret_way == ZB_GATHER_COMM && !(there && !one);
}

int zctl_plan_run(struct zctl_plan *p, struct zb_forecast *f, struct zb_iteration *it,
                  bool *ret_timed)
{
    bool chooses = p->run.node_gather == ZB_GATHER_AUTO;
    struct zb_iteration host_it;
    struct zb_forecast host;
    bool host_timed;
    int rc;

    if (chooses)
        p->run.node_gather = ZB_GATHER_COMM;
    rc = run_way(p, p->run.node_gather, f, it, ret_timed);
    if (rc < 0 || !chooses)
        return rc;
    if (!run_measures(p, f, &p->run.node_gather))
        return p->run.node_gather == ZB_GATHER_HOST ? run_way(p, ZB_GATHER_HOST, f, it, ret_timed)
                                                    : 0;
    if (!*ret_timed)
        return 0;
    rc = run_way(p, ZB_GATHER_HOST, &host, &host_it, &host_timed);
    if (rc < 0 || !host_timed || host_it.seconds >= it->seconds)
        return rc;
    p->run.node_gather = ZB_GATHER_HOST;
    *f = host;
    *it = host_it;
    return 0;
}

/* ---- JSON */

json_t *zctl_plan_real(double x)
{
    return x > 0 && isfinite(x) ? json_real(x) : json_null();
}

static json_t *pass_json(const struct zb_pass *p)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o}", "compute_seconds", p->compute,
                     "gather_seconds", p->gather, "reduce_seconds", p->reduce, "up_seconds", p->up,
                     "down_seconds", p->down, "memory_seconds", p->memory, "first_seconds",
                     p->first, "seconds", zctl_plan_real(p->seconds));
}

json_t *zctl_iteration_json(const struct zb_iteration *it)
{
    if (!it)
        return json_null();
    return json_pack("{s:o, s:o, s:f, s:f, s:f, s:o, s:s, s:o, s:o, s:I, s:I, s:I, s:I}", "forward",
                     pass_json(&it->forward), "backward", pass_json(&it->backward),
                     "optimizer_seconds", it->optimizer, "exposed_seconds", it->exposed,
                     "drive_seconds", it->drives, "seconds", zctl_plan_real(it->seconds), "bound",
                     zb_part_name(it->bound), "rank_flops", zctl_plan_real(it->flops), "tokens_s",
                     zctl_plan_real(it->tokens), "gpu_link_bytes", (json_int_t)it->gpu_link_bytes,
                     "network_bytes", (json_int_t)it->network_bytes, "up_bytes",
                     (json_int_t)it->up_bytes, "down_bytes", (json_int_t)it->down_bytes);
}

/* ---- people */

/* A term of both passes; nothing if it is zero in both. */
static void term(FILE *out, const char *what, double forward, double backward, const char *how)
{
    if (forward > 0 || backward > 0)
        (void)fprintf(out, "  %-24s %10.4f s %10.4f s  %s\n", what, forward, backward, how);
}

static void whole(FILE *out, const char *what, double seconds, const char *how)
{
    (void)fprintf(out, "  %-24s %10.4f s               %s\n", what, seconds, how);
}

static void moved(FILE *out, const char *what, double bytes, const char *how)
{
    if (bytes > 0)
        (void)fprintf(out, "  %-24s %9.3f GB               %s\n", what, bytes / GB, how);
}

void zctl_iteration_people(const struct zctl_plan *p, const struct zb_iteration *it)
{
    const struct zb_pass *f = &it->forward, *b = &it->backward;
    FILE *out = p->z->out;

    (void)fprintf(out, "\nAN ITERATION, %u x %llu tokens of each rank\n", p->run.micro_steps,
                  (unsigned long long)p->run.tokens);
    (void)fprintf(out, "  %-24s %12s %12s\n", "", "forward", "backward");
    term(out, "computing", f->compute, b->compute, "2 P T / F; 6 P T / F");
    term(out, "gathers", f->gather, b->gather, "of parameters");
    term(out, "reductions", 0, b->reduce, "of gradients");
    term(out, "host to GPU", f->up, b->up, "");
    term(out, "GPU to host", f->down, b->down, "");
    term(out, "through host memory", f->memory, b->memory, "");
    term(out, "first unit, last unit", f->first, b->first, "nothing hides it");
    term(out, "a pass", f->seconds, b->seconds, "");
    whole(out, "the optimizer", it->optimizer, "");
    whole(out, "the optimizer: exposed", it->exposed, "what no pass hides");
    if (it->drives > 0)
        whole(out, "the drives", it->drives, "all that they read and write");
    (void)fprintf(out, "  %-24s %10.4f s               bound by %s\n", "the iteration", it->seconds,
                  zb_part_name(it->bound));
    (void)fprintf(out, "  %-24s %5.1f TFLOP/s               %.0f tokens per second on all ranks\n",
                  "a rank reaches", it->flops / TERA, it->tokens);
    moved(out, "sent by a GPU", it->gpu_link_bytes, "to others of its node");
    moved(out, "sent by a node", it->network_bytes, "to other nodes");
    moved(out, "host to a GPU", it->up_bytes, "");
    moved(out, "a GPU to host", it->down_bytes, "");
}
