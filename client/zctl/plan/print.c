/*
 * print.c - a plan for people, and for programs. The keys of the JSON stay; docs/PLANNING.md
 * has them.
 */
#include <errno.h>
#include <jansson.h>

#include "base/size.h"
#include "base/util.h"
#include "client/zctl/plan/plan.h"

#define GB 1e9
#define TB 1e12

static const char *const planes[ZB_PLANES] = { "parameters", "gradients", "state" };

/* ---- JSON */

static json_t *integer(uint64_t n)
{
    return json_integer((json_int_t)zb_min_u64(n, INT64_MAX));
}

static json_t *real(double x)
{
    return zctl_plan_real(x);
}

static json_t *planes_json(const uint64_t bytes[ZB_PLANES])
{
    return json_pack("{s:o, s:o, s:o}", "params", integer(bytes[ZB_PARAM]), "grads",
                     integer(bytes[ZB_GRAD]), "state", integer(bytes[ZB_STATE]));
}

static json_t *rank_json(const struct zctl_plan *p, const struct zb_forecast *f)
{
    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "formula", zb_mode_formula(p->run.mode),
                     "field_bytes", json_real(f->field), "own", planes_json(f->own), "kept",
                     planes_json(f->kept), "gather_buffer_bytes", integer(f->gather_bytes),
                     "grad_buffer_bytes", integer(f->grad_bytes));
}

static json_t *gpu_json(const struct zb_gpu_share *g, uint64_t budget)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "state", integer(g->state), "used",
                     integer(g->params_used + g->state_used), "budget", integer(budget), "params",
                     integer(g->params), "params_used", integer(g->params_used), "state_used",
                     integer(g->state_used));
}

/* All GPUs together. */
static struct zb_gpu_share gpu_all(const struct zctl_plan *p, const struct zb_forecast *f,
                                   uint64_t *ret_budget)
{
    struct zb_gpu_share all = { 0 };

    *ret_budget = 0;
    for (uint32_t g = 0; g < f->gpus; g++) {
        all.params += f->gpu[g].params;
        all.params_used += f->gpu[g].params_used;
        all.state += f->gpu[g].state;
        all.state_used += f->gpu[g].state_used;
        *ret_budget += p->node.gpu_tiers[g];
    }
    return all;
}

static json_t *tiers_json(const struct zctl_plan *p, const struct zb_forecast *f)
{
    json_t *host = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "params",
        integer(f->host_param), "ring", integer(f->host_ring), "grads", integer(f->host_grad),
        "aside", integer(f->grads_aside), "room", integer(f->grads_room), "grads_ringed",
        integer(f->grads_ringed), "state", integer(f->host_state), "staging",
        integer(f->host_staging), "buffers", integer(f->host_buffers), "matrices",
        integer(f->host_matrices), "matrices_most", integer(f->host_matrices_most), "used",
        integer(f->host_used), "budget", integer(p->node.host_bytes), "least",
        integer(f->host_least), "least_grads", integer(f->host_least_grads));
    json_t *nvme = json_pack("{s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "early", (int)f->early,
                             "params", integer(f->nvme_param), "grads", integer(f->nvme_grad),
                             "state", integer(f->nvme_state), "spare", integer(f->nvme_spare),
                             "used", integer(f->nvme_used), "budget", integer(p->node.nvme_bytes),
                             "least", integer(f->nvme_least));

    uint64_t budget;
    struct zb_gpu_share gpus = gpu_all(p, f, &budget);
    json_t *gpu = gpu_json(&gpus, budget);
    json_t *all = json_pack("{s:o, s:o, s:o}", "host", host, "nvme", nvme, "gpu", gpu);

    (void)json_object_set_new(gpu, "why", json_string(f->gpu_why.text));
    (void)json_object_set_new(gpu, "matrices", integer(f->gpu_matrices));
    (void)json_object_set_new(host, "later",
                              json_pack("{s:o, s:o}", "state", integer(f->later_host_state), "used",
                                        integer(f->later_host_used)));
    (void)json_object_set_new(nvme, "later",
                              json_pack("{s:o, s:o, s:o}", "state", integer(f->later_nvme_state),
                                        "spare", integer(f->later_nvme_spare), "used",
                                        integer(f->later_nvme_used)));
    for (uint32_t g = 0; g < p->node.gpus; g++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "gpu%u", g);
        (void)json_object_set_new(all, name, gpu_json(&f->gpu[g], p->node.gpu_tiers[g]));
    }
    return all;
}

static json_t *step_json(const struct zb_forecast *f)
{
    double commits = (double)f->commit_written * f->commit_share;

    return json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s}", "nvme_read_bytes",
        integer(f->step_read + f->fetch_read + f->push_read), "nvme_written_bytes",
        integer(f->step_written + f->push_written + (uint64_t)commits), "step_read_bytes",
        integer(f->step_read), "fetch_read_bytes", integer(f->fetch_read), "push_read_bytes",
        integer(f->push_read), "push_written_bytes", integer(f->push_written),
        "commit_written_bytes", integer(f->commit_written), "kernel_bytes",
        integer(f->kernel_bytes), "drive_seconds", real(f->drive_seconds), "kernel_seconds",
        real(f->kernel_seconds), "step_seconds", real(f->step_seconds), "bound",
        zb_bound_name(f->bound));
}

/* A number that was given; null if not. */
static json_t *count(uint32_t n)
{
    return n > 0 ? integer(n) : json_null();
}

static json_t *node_json(const struct zctl_plan *p)
{
    const struct zb_node *n = &p->node;

    return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
                     "from", p->node_from, "page_elems", integer(n->page_elems), "page_buffers",
                     integer(n->nbuffers), "cores", integer(n->cores), "drive_read",
                     real(n->drive_read), "drive_write", real(n->drive_write), "mem_bw",
                     real(n->memory), "gives_room", integer(p->gives_room), "gpus", count(n->gpus),
                     "drives", count(n->drives), "link", real(n->link), "gpu_link",
                     real(n->gpu_link), "gpu_mem_bw", real(n->gpu_memory), "network",
                     real(n->network), "latency", json_real(n->latency));
}

static int print_json(const struct zctl_plan *p, const struct zb_forecast *f,
                      const struct zb_iteration *it, const struct zctl_links *links)
{
    json_t *model = json_pack("{s:o, s:i, s:o}", "params", integer(f->params), "units",
                              (int)p->model.nunits, "largest_unit", integer(p->model.largest));
    json_t *all = json_pack(
        "{s:i, s:b, s:s, s:s, s:b, s:i, s:i, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:o, s:o, s:o, s:o}",
        "schema", ZCTL_SCHEMA, "fits", (int)f->fits, "why", f->why.text, "mode",
        zb_mode_name(p->run.mode), "built", 1, "ranks", (int)p->run.ranks, "nodes",
        (int)p->run.nodes, "dtype", zb_dtype_name(p->run.layout.dtype), "grad_dtype",
        zb_dtype_name(p->run.layout.grad_dtype), "optimizer", zb_optimizer_name(p->optimizer),
        "moments", zb_moments_name(p->run.layout.moments), "model", model, "rank", rank_json(p, f),
        "tiers", tiers_json(p, f), "step", step_json(f), "links", zctl_links_json(p, links),
        "iteration", zctl_iteration_json(it), "node", node_json(p), "hide_tokens",
        real(f->hide_tokens), "written_bytes_day", real(f->written_day), "endurance_years",
        real(f->endurance_years));
    int rc = zctl_dump(p->z->out, all, JSON_INDENT(2) | JSON_REAL_PRECISION(9));

    return rc < 0 ? zb_fail(&p->z->err, rc, "the output: %m") : zctl_written(p->z);
}

/* ---- people */

static void line(const struct zctl_plan *p, const char *what, uint64_t bytes, const char *from)
{
    (void)fprintf(p->z->out, "  %-24s %12s  %s\n", what, zb_size_text(bytes).s, from);
}

static void people_rank(const struct zctl_plan *p, const struct zb_forecast *f)
{
    FILE *out = p->z->out;
    uint64_t all = 0;

    (void)fprintf(out, "\nA RANK of %u, %s: %s\n", p->run.ranks, zb_mode_name(p->run.mode),
                  zb_mode_formula(p->run.mode));
    for (enum zb_plane plane = 0; plane < ZB_PLANES; plane++) {
        all += f->own[plane] + f->kept[plane];
        line(p, planes[plane], f->own[plane] + f->kept[plane],
             f->own[plane] > 0 ? "its own copy" : "kept by the daemon");
    }
    line(p, "all planes", all, "");
    line(p, "in the textbook", (uint64_t)f->field, "2 + 2 + 12 bytes a parameter");
    line(p, "gathered units", f->gather_bytes, "the one at hand, and those ahead");
    line(p, "gradient buffers", f->grad_bytes, "fp32, at most: one being made, two on their way");
}

static void people_gpus(const struct zctl_plan *p, const struct zb_forecast *f)
{
    uint64_t budget;
    struct zb_gpu_share all = gpu_all(p, f, &budget);

    if (f->gpu_why.code != 0)
        (void)fprintf(p->z->out, "  The parameters are not on the GPU tiers: %s.\n",
                      f->gpu_why.text);
    if (budget == 0)
        return;
    if (f->gpu_params > 0)
        line(p, "gpu:  parameters", f->gpu_params, "all of them");
    line(p, "gpu:  state", f->gpu_state, "from the third step on");
    if (f->gpu_state > 0) {
        line(p, "host: used then", f->later_host_used, "");
        line(p, "nvme: used then", f->later_nvme_used, "with places for that state");
    }
    line(p, "gpu:  used", all.params_used + all.state_used, "");
    line(p, "gpu:  free", budget, "");
    for (uint32_t g = 0; g < p->node.gpus; g++) {
        char name[32];

        if (f->gpu_params > 0) {
            (void)snprintf(name, sizeof(name), "gpu%u: parameters", g);
            line(p, name, f->gpu[g].params, "of its ranks");
        }
        (void)snprintf(name, sizeof(name), "gpu%u: state", g);
        line(p, name, f->gpu[g].state, "of its ranks");
    }
}

static void people_node(const struct zctl_plan *p, const struct zb_forecast *f)
{
    FILE *out = p->z->out;

    (void)fprintf(out, "\nTHE NODE with the most, %u of the ranks, on %s\n", f->local,
                  p->node_from);
    if (f->fits) {
        line(p, "host: parameters", f->host_param, "resident");
        line(p, "host: their ring", f->host_ring, "of those that are streamed");
        line(p, "host: gradients", f->host_grad - f->grads_aside - f->grads_room,
             f->nvme_grad > 0 ? "what fits" : "");
        if (p->run.grad_ring) {
            line(p, "host: aside", f->grads_aside, "new parameters of pages without a gradient");
            if (f->grads_room > 0)
                line(p, "host: two units", f->grads_room,
                     "their gradients, until they are clipped");
            line(p, "gradients: not held", f->grads_ringed, "they pass through page buffers");
        }
        line(p, "host: state", f->host_state, "resident");
    }
    line(p, "host: staging", f->host_staging, "gradients and initial values on their way");
    line(p, "host: page buffers", f->host_buffers, "what is streamed passes through them");
    if (f->host_matrices > 0)
        line(p, "host: matrices", f->host_matrices,
             "of Muon; the time of orthogonalizing is not counted");
    if (f->gpu_matrices > 0)
        line(p, "gpu: matrices", f->gpu_matrices, "orthogonalized there, on the first rank's");
    if (f->host_matrices < f->host_matrices_most)
        line(p, "host: of matrices at best", f->host_matrices_most,
             "with less, the drive waits while matrices are orthogonalized");
    if (f->fits)
        line(p, "host: used", f->host_used, "with other jobs");
    if (p->gives_room > 0)
        line(p, "host: of idle jobs", p->gives_room,
             "saved; they give it back, so it is not counted");
    line(p, "host: budget", p->node.host_bytes, "");
    line(p, "host: smallest that works", f->host_least, "");
    if (f->host_least_grads > f->host_least)
        line(p, "host: least for gradients", f->host_least_grads, "below that some are on NVMe");
    if (f->fits) {
        line(p, "nvme: parameters", f->nvme_param, "one version");
        if (f->nvme_grad > 0)
            line(p, "nvme: gradients", f->nvme_grad,
                 f->grads_room > 0 ? "of the warm-up" : "what does not fit into memory");
        line(p, "nvme: state", f->nvme_state, "one version");
        line(p, "nvme: further places", f->nvme_spare,
             p->run.durable ? "the next version, and pages in flight"
             : f->early     ? "a step that begins early, and pages in flight"
                            : "pages in flight");
        if (p->run.early && !f->early)
            (void)fprintf(out, "  There is no room for steps that begin early.\n");
        line(p, "nvme: used", f->nvme_used, "with other jobs");
        if (p->node.drives > 1)
            line(p, "nvme: used of a drive", zb_div_up(f->nvme_used, p->node.drives),
                 "of equal drives");
    }
    line(p, "nvme: budget", p->node.nvme_bytes, "");
    line(p, "nvme: smallest that works", f->nvme_least, "size of a data file, at this host_bytes");
    if (f->fits)
        people_gpus(p, f);
}

static void people_time(const struct zctl_plan *p, const struct zb_forecast *f)
{
    FILE *out = p->z->out;

    if (f->step_seconds > 0)
        (void)fprintf(out, "  %-24s %10.3f s  bound by %s (drive %.3f s, kernel %.3f s)\n",
                      "the optimizer's time", f->step_seconds, zb_bound_name(f->bound),
                      f->drive_seconds, f->kernel_seconds);
    else
        (void)fprintf(out,
                      "  %-24s %12s  give --mem-bw, --drive-read and --drive-write, or --measure\n",
                      "the optimizer's time", "not known");
    if (f->hide_tokens > 0)
        (void)fprintf(out, "  %-24s %12.0f  a step, over all ranks: then computing takes longer\n",
                      "tokens that hide it", f->hide_tokens);
    if (f->written_day > 0)
        (void)fprintf(
            out, "  %-24s %9.2f TB  a day, %s\n", "written to the drives", f->written_day / TB,
            p->run.seconds > 0 ? "at the step time given" : "if steps did nothing but this");
    if (f->endurance_years > 0)
        (void)fprintf(out, "  %-24s %6.2f years\n", "the drives last", f->endurance_years);
}

static void people_step(const struct zctl_plan *p, const struct zb_forecast *f)
{
    FILE *out = p->z->out;
    double commits = (double)f->commit_written * f->commit_share;

    if (!f->fits)
        return;
    (void)fprintf(out, "\nA STEP of this node\n");
    line(p, "nvme read", f->step_read + f->fetch_read + f->push_read, "");
    if (f->fetch_read > 0)
        line(p, "nvme read: by gathers", f->fetch_read, "of streamed parameters");
    if (f->push_read > 0)
        line(p, "nvme read: by pushes", f->push_read, "of gradients on NVMe");
    line(p, "nvme written", f->step_written + f->push_written + (uint64_t)commits, "");
    if (f->push_written > 0)
        line(p, "nvme written: by pushes", f->push_written, "of gradients on NVMe");
    if (f->commit_written > 0)
        line(p, "nvme written: a commit", f->commit_written, "what is resident");
    line(p, "through memory", f->kernel_bytes, "by the optimizer's kernel");
    people_time(p, f);
}

int zctl_plan_print(struct zctl_plan *p, const struct zb_forecast *f, const struct zb_iteration *it,
                    const struct zctl_links *links)
{
    FILE *out = p->z->out;

    if (p->z->json)
        return print_json(p, f, it, links);
    (void)fprintf(out, "%llu parameters in %u units, the largest has %llu; %s, %s gradients, %s\n",
                  (unsigned long long)f->params, p->model.nunits,
                  (unsigned long long)p->model.largest, zb_dtype_name(p->run.layout.dtype),
                  zb_dtype_name(p->run.layout.grad_dtype), zb_optimizer_name(p->optimizer));
    people_rank(p, f);
    people_node(p, f);
    people_step(p, f);
    zctl_links_people(p, links);
    if (it)
        zctl_iteration_people(p, it);
    (void)fprintf(out, "\n%s\n", f->fits ? "It fits." : "It does not fit.");
    return zctl_written(p->z);
}
