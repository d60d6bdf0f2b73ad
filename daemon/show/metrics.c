/*
 * metrics.c - the answer to a request `metrics`: see metrics.h.
 */
#include "daemon/show/metrics.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "daemon/disk/paths.h"
#include "daemon/run/gpu_tier.h"
#include "daemon/run/turn.h"
#include "daemon/show/requests.h"
#include "proto/codec.h"

/* ---- what the samples name */

/* The UUID as NVIDIA's tools write it: "GPU-", and the digits in groups. */
static void gpu_uuid(const char *id, char *to, size_t size)
{
    static const char cuda[] = "cuda-";
    const char *d = id + strlen(cuda);

    if (strncmp(id, cuda, strlen(cuda)) != 0 || strlen(d) != 32)
        (void)snprintf(to, size, "%s", id);
    else
        (void)snprintf(to, size, "GPU-%.8s-%.4s-%.4s-%.4s-%.12s", d, d + 8, d + 12, d + 16, d + 20);
}

/* The first jobs in memory that the client sees. A job that has ended may have the name of another
 * one. */
static void metrics_jobs(struct zsd_metrics *m)
{
    zb_list_each(pos, &m->daemon->core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        zsd_turn_count(m->daemon->core, 1);
        if (m->njobs == ZSD_METRICS_JOBS || job->state == ZSD_ENDED || !zsd_may(m->conn, job->uid))
            continue;
        (void)snprintf(m->uids[m->njobs], sizeof(m->uids[0]), "%u", (unsigned)job->uid);
        m->jobs[m->njobs++] = job;
    }
}

static void metrics_names(struct zsd_metrics *m)
{
    for (unsigned g = 0; g < m->daemon->ngpus; g++) {
        int node = zsd_gpu_node(m->daemon, g);

        gpu_uuid(zk_gpu_info(zsd_gpu_device(m->daemon->gpus[g]))->id, m->gpus[g],
                 sizeof(m->gpus[g]));
        if (node != ZSD_NEAR_NONE)
            (void)snprintf(m->nodes[g], sizeof(m->nodes[g]), "%d", node);
    }
    for (unsigned i = 0; i < zsd_paths(m->daemon); i++) {
        const char *folder = zsd_path_folder(m->daemon, i);

        (void)snprintf(m->paths[i], sizeof(m->paths[i]), "%.*s", (int)sizeof(m->paths[i]) - 1,
                       folder);
        zb_text_clean(m->paths[i], strlen(m->paths[i]));
    }
    for (unsigned i = 0; i < ZSD_BOUNDS; i++)
        m->bounds[i] = (double)zsd_bounds_ns[i] / 1e9;
}

/* ---- the answer */

static void fill_histogram(struct zsd_metrics *m, const struct zsd_histogram *h)
{
    Zp__MetricFamily *family = &m->families[m->nfamilies];
    Zp__MetricSample *s = zsd_sample(m, (double)h->sum_ns / 1e9);

    family->bounds = m->bounds;
    family->n_bounds = ZSD_BOUNDS;
    s->counts = (uint64_t *)(uintptr_t)h->counts;
    s->n_counts = ZSD_BOUNDS + 1;
}

static void family_samples(struct zsd_metrics *m, const struct zsd_family *f)
{
    const char *stats = (const char *)&m->daemon->stats;

    if (f->fill)
        f->fill(m);
    if (f->stat > 0)
        (void)zsd_sample(m, (double)*(const uint64_t *)(const void *)(stats + f->stat - 1) *
                                (f->scale > 0 ? f->scale : 1));
    if (f->node)
        (void)zsd_sample(m, f->node(m->daemon));
    if (f->time > 0)
        fill_histogram(m, &m->daemon->times[f->time - 1]);
    for (unsigned i = 0; f->path && i < zsd_paths(m->daemon); i++)
        zsd_label(zsd_sample(m, f->path(m->daemon, i)), "path", m->paths[i]);
    for (unsigned i = 0; f->job && i < m->njobs; i++)
        (void)zsd_sample_job(m, i, f->job(m->jobs[i]));
}

/* Adds a family; one without samples is left out. */
static void family_add(struct zsd_metrics *m, const struct zsd_family *f)
{
    Zp__MetricFamily *row = &m->families[m->nfamilies];

    zp__metric_family__init(row);
    (void)snprintf(m->names[m->nfamilies], sizeof(m->names[0]), "zshard_%s", f->name);
    row->name = m->names[m->nfamilies];
    row->type = f->type;
    row->unit = zp_str(f->unit);
    row->help = zp_str(f->help);
    family_samples(m, f);
    m->family_list[m->nfamilies] = row;
    m->nfamilies += row->n_samples > 0;
}

static const struct zsd_family *family_at(unsigned i)
{
    if (i < zsd_node_nfamilies)
        return &zsd_node_families[i];
    i -= zsd_node_nfamilies;
    return i < zsd_job_nfamilies ? &zsd_job_families[i] : NULL;
}

/* Answers with the families from index `from` on, as many as a reply holds. health NULL: not the
 * first part. */
static void metrics_answer(struct zsd_req *req, uint64_t from, const struct zsd_health *health)
{
    struct zsd_metrics *m = calloc(1, sizeof(*m));
    Zp__MetricsReply reply = ZP__METRICS_REPLY__INIT;
    uint64_t i = from;

    if (!m) {
        zsd_refuse(req, -ENOMEM, "metrics");
        return;
    }
    m->daemon = req->daemon;
    m->conn = req->conn;
    m->health = health;
    if (req->conn) /* else nobody reads the answer */
        metrics_jobs(m);
    metrics_names(m);
    for (; i < zsd_node_nfamilies + zsd_job_nfamilies && m->nfamilies < ZSD_METRICS_FAMILIES &&
           m->nsamples < ZSD_METRICS_FULL;
         i++)
        family_add(m, family_at((unsigned)i));
    zsd_turn_count(req->daemon->core, m->nsamples);
    reply.n_families = m->nfamilies;
    reply.families = m->family_list;
    reply.cursor = i < zsd_node_nfamilies + zsd_job_nfamilies ? i : 0;
    zsd_reply(req, &reply.base, -1);
    free(m);
}

static void metrics_first(struct zsd_req *req, const struct zsd_health *health)
{
    metrics_answer(req, 0, health);
}

ZSD_REQUEST(zsd_metrics, MetricsRequest)
{
    if (q->cursor == 0)
        zsd_health_start(req, metrics_first);
    else if (q->cursor < ZSD_METRICS_SYSTEM ||
             !family_at((unsigned)zb_min_u64(q->cursor, UINT32_MAX)))
        zsd_refuse(req, -EINVAL, "metrics from %llu: there is no such part",
                   (unsigned long long)q->cursor);
    else
        metrics_answer(req, q->cursor, NULL);
}
