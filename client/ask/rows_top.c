/*
 * rows_top.c - the request that reads gauges: what `zctl top` shows.
 */
#include "client/ask/rows_priv.h"
#include "proto/codec.h"
#include "proto/wire.h"

/** A missing message counts as zeros. */
static void gauge_copy(struct zc_gauge *to, const Zp__TopGauge *from)
{
    if (from)
        *to = (struct zc_gauge){ from->now, from->area_ns, from->busy_ns };
}

/** Leaves out additional gauges of a newer daemon. */
static void gauges_copy(struct zc_gauge *to, size_t n, Zp__TopGauge *const *from, size_t nfrom)
{
    for (size_t i = 0; i < n && i < nfrom; i++)
        gauge_copy(&to[i], from[i]);
}

static void top_job_copy(struct zc_top_job *to, const Zp__TopJob *from)
{
    to->id = from->id;
    to->iterations = from->iterations;
    to->applied = from->applied;
    to->host_bytes = from->host_bytes;
    to->nvme_bytes = from->nvme_bytes;
    to->fetched_bytes = from->fetched_bytes;
    to->pushed_bytes = from->pushed_bytes;
    to->nvme_read_bytes = from->nvme_read_bytes;
    to->nvme_written_bytes = from->nvme_written_bytes;
    to->fetches = from->fetches;
    to->hits = from->hits;
    to->misses = from->misses;
    to->pushes = from->pushes;
    to->pages = from->pages;
    to->page_ns = from->page_ns;
    to->compute_ns = from->compute_ns;
    gauges_copy(to->stages, ZC_PAGE_PLACES, from->stages, from->n_stages);
    gauges_copy(to->waits, ZC_WAITS, from->waits, from->n_waits);
    gauge_copy(&to->drive_only, from->drive_only);
    gauge_copy(&to->asking, from->asking);
    to->uid = from->uid;
    to->world = from->world;
    to->attached = from->attached;
    to->late = from->late;
    to->late_ranks = from->late_ranks;
    to->late_rank = from->late_rank;
    to->late_pid = from->late_pid;
    to->late_ms = from->late_ms;
    COPY(to->name, from->name);
    COPY(to->state, from->state);
}

static void top_path_copy(struct zc_top_path *to, const Zp__TopPath *from)
{
    to->read_bytes = from->read_bytes;
    to->written_bytes = from->written_bytes;
    to->transfers = from->transfers;
    to->failed = from->failed;
    to->read_bytes_s = from->read_bytes_s;
    to->write_bytes_s = from->write_bytes_s;
    to->depth = from->depth;
    gauge_copy(&to->queue, from->queue);
}

/** The head is taken from the first reply; each reply's rows have their own time. */
static void top_head_copy(struct zc_top *to, const Zp__TopReply *r)
{
    *to = (struct zc_top){ .now_ns = r->now_ns,
                           .uptime_ms = r->uptime_ms,
                           .clients = r->clients,
                           .threads = r->threads,
                           .buffers = r->buffers,
                           .gpu_threads = r->gpu_threads,
                           .ntiers = (uint32_t)zb_min_u64(r->n_tiers, ZC_TOP_TIERS_MAX),
                           .npaths = (uint32_t)zb_min_u64(r->n_paths, ZC_TOP_PATHS_MAX) };
    gauge_copy(&to->computing, r->computing);
    gauge_copy(&to->compute_line, r->compute_line);
    gauge_copy(&to->buffers_used, r->buffers_used);
    gauge_copy(&to->gpu, r->gpu);
    gauge_copy(&to->gpu_line, r->gpu_line);
    for (uint32_t i = 0; i < to->ntiers; i++)
        zc_tier_copy(&to->tiers[i], r->tiers[i]);
    for (uint32_t i = 0; i < to->npaths; i++)
        top_path_copy(&to->paths[i], r->paths[i]);
    if (!r->oldest)
        return;
    to->oldest.pid = r->oldest->pid;
    to->oldest.age_ms = r->oldest->age_ms;
    to->oldest.rank = r->oldest->rank;
    COPY(to->oldest.method, r->oldest->method);
    COPY(to->oldest.job, r->oldest->job);
    COPY(to->oldest.waits, r->oldest->waits);
}

static int reply_top(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m, int *fds)
{
    const Zp__TopReply *r = (const Zp__TopReply *)m;
    struct zc_rows *rows = call->spec.ret;
    bool first = rows->cursor == 0;
    void *added;
    int rc = zc_rows_begin(c, rows, r->n_jobs, r->cursor, &added);

    (void)fds;
    if (rc >= 0 && first)
        top_head_copy(rows->head, r);
    for (size_t i = 0; rc > 0 && i < r->n_jobs; i++) {
        struct zc_top_job *to = (struct zc_top_job *)added + i;

        to->now_ns = r->now_ns;
        top_job_copy(to, r->jobs[i]);
    }
    return rc < 0 ? rc : 0;
}

static const struct zc_method method_top = { .id = ZP_TOP, .reply = reply_top };

int zc_top_wait(struct zc_client *c, const char *job, struct zc_top *ret,
                struct zc_top_job **ret_rows, size_t *ret_n)
{
    struct zc_rows rows = { .row_bytes = sizeof(**ret_rows), .head = ret };
    Zp__TopRequest m = ZP__TOP_REQUEST__INIT;
    int rc = zc_job_word(c, job, &m.job, &m.owner);

    if (rc < 0)
        return rc;
    rc = zc_rows_collect(c, &method_top, &m.base, &m.cursor, &rows, ret_n);
    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}
