/*
 * inspect.c - lists of zctl: jobs, shards, counters. Reads only.
 *
 * Long answers come in parts: the next request passes the cursor of the reply. A job keeps its
 * number, so a cursor stays valid while jobs come and go. A saved job that is not in memory is
 * shown with its commit, or with its prepared version if it has no commit.
 */
#include "daemon/show/inspect.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/disk/paths.h"
#include "daemon/op/muon.h"
#include "daemon/plan/gpu_plan.h"
#include "daemon/plan/muon.h"
#include "daemon/plan/place.h"
#include "daemon/plan/replan.h"
#include "daemon/show/requests.h"
#include "daemon/store/store.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"

#define LIST_ROWS 200u /* of one reply: below 64 KiB with the longest names */
#define JOBS_ROWS 50u

const char *zsd_job_state_name(const struct zsd_job *job)
{
    switch (job->state) {
    case ZSD_DEFINING:
        return "defining";
    case ZSD_PLACING:
        return "placing";
    case ZSD_LOADING:
        return "loading";
    case ZSD_READY:
        return "ready";
    case ZSD_STEPPING:
        return "stepping";
    case ZSD_ENDED:
        return "failed";
    }
    return "";
}

static bool inspect_named(const struct zsd_named *named, uid_t uid, const char *name)
{
    return named->name[0] == '\0' || (named->uid == uid && strcmp(named->name, name) == 0);
}

/* An ended job is seen while it has members. */
bool zsd_job_seen(const struct zsd_conn *conn, const struct zsd_job *job,
                  const struct zsd_named *named)
{
    return zsd_may(conn, job->uid) && inspect_named(named, job->uid, job->name) &&
           (job->state != ZSD_ENDED || !zb_list_empty(&job->members));
}

static bool inspect_sees_saved(const struct zsd_conn *conn, const struct zsd_saved *s,
                               const struct zsd_named *named)
{
    return zsd_may(conn, s->uid) && inspect_named(named, s->uid, s->name) && zsd_saved_kept(s) &&
           !s->gone && !s->image && (!s->job || s->job->state == ZSD_ENDED);
}

static const struct zsd_version *saved_newest(const struct zsd_saved *s)
{
    return s->committed ? s->committed : s->prepared;
}

/* A job in memory, or a saved job: the other pointer is NULL. */
struct seen {
    const struct zsd_job *job;
    const struct zsd_saved *saved;
    uint64_t number;
};

/* Finds the job with the smallest number, from `number` on, that this client sees. False: there is
 * none. If an ended job has the same number as a live one, the live one is found. */
static bool inspect_next(const struct zsd_req *req, const struct zsd_named *named, uint64_t number,
                         struct seen *ret)
{
    const struct zsd_core *core = req->daemon->core;
    struct seen seen = { .number = UINT64_MAX };

    zb_list_each(pos, &core->jobs->list)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->number >= number && zsd_job_seen(req->conn, job, named) &&
            (job->number < seen.number || (job->number == seen.number && job->state != ZSD_ENDED)))
            seen = (struct seen){ .job = job, .number = job->number };
    }
    if (core->store)
        zb_list_each(pos, &core->store->saved)
        {
            const struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

            if (s->number >= number && s->number < seen.number &&
                inspect_sees_saved(req->conn, s, named))
                seen = (struct seen){ .saved = s, .number = s->number };
        }
    *ret = seen;
    return seen.number != UINT64_MAX;
}

/* *ret: the job that the request names. True: this client cannot see it, and is rejected. Requests for later
 * parts are not: the job may have ended meanwhile. */
static bool inspect_refuses(struct zsd_req *req, uint64_t owner, const char *name, uint64_t cursor,
                            struct zsd_named *ret)
{
    struct zb_err err = { 0 };
    struct seen seen;

    if (zsd_job_named(req, owner, name, ret, &err) < 0) {
        zsd_reply_err(req, &err);
        return true;
    }
    if (name[0] == '\0' || cursor != 0 || inspect_next(req, ret, 0, &seen))
        return false;
    zsd_refuse(req, -ENOENT, "there is no job '%s'", name);
    return true;
}

static void list_row(const struct zsd_shard *s, Zp__ShardRow *row)
{
    uint64_t gpu;

    zp__shard_row__init(row);
    row->id = s->id;
    row->job = zp_str(s->job->name);
    row->unit = s->unit->name;
    row->first = s->first;
    row->count = s->count;
    row->dtype = zp_str(zb_dtype_name(s->unit->layout.dtype));
    row->version = s->version;
    zsd_shard_bytes(s, &row->host_bytes, &row->nvme_bytes, &gpu);
    row->bytes = row->host_bytes + row->nvme_bytes + gpu;
    row->tier = zp_str(row->nvme_bytes > 0 ? "nvme" : gpu > 0 ? "gpu" : "host");
    row->pins = s->pins;
    row->rank = s->rank;
    row->uid = s->job->uid;
}

static void list_saved_row(const struct zsd_saved *s, uint32_t i, Zp__ShardRow *row)
{
    const struct zsd_version *v = saved_newest(s);
    const struct zsd_row *r = v->rows[i];

    zp__shard_row__init(row);
    row->id = (uint64_t)s->number << 32 | i;
    row->job = zp_str(s->name);
    row->unit = s->units[r->unit]->name;
    row->first = r->first;
    row->count = r->count;
    row->dtype = zp_str(zb_dtype_name(s->units[r->unit]->layout.dtype));
    row->version = v->applied;
    row->bytes = row->nvme_bytes = zsd_row_bytes(r);
    row->tier = zp_str("nvme");
    row->rank = r->rank;
    row->uid = s->uid;
}

/* A cursor is a shard id: the next shard to list is the first with an id at or above it. */
ZSD_REQUEST(zsd_list, ListRequest)
{
    Zp__ShardRow rows[LIST_ROWS], *list[LIST_ROWS];
    Zp__ListReply reply = ZP__LIST_REPLY__INIT;
    struct zsd_named named;
    struct seen seen;

    if (inspect_refuses(req, q->owner, q->job, q->cursor, &named))
        return;
    for (uint64_t at = q->cursor >> 32; reply.cursor == 0 && inspect_next(req, &named, at, &seen);
         at = seen.number + 1) {
        uint32_t from = seen.number == q->cursor >> 32 ? (uint32_t)(q->cursor & UINT32_MAX) : 0;
        uint32_t n = seen.job ? seen.job->nshards : saved_newest(seen.saved)->nrows;

        for (uint32_t i = from; i < n && reply.cursor == 0; i++) {
            if (reply.n_rows == LIST_ROWS) {
                reply.cursor = seen.number << 32 | i;
                break;
            }
            list[reply.n_rows] = &rows[reply.n_rows];
            if (seen.job)
                list_row(seen.job->shards[i], &rows[reply.n_rows++]);
            else
                list_saved_row(seen.saved, i, &rows[reply.n_rows++]);
        }
    }
    reply.rows = list;
    zsd_reply(req, &reply.base, -1);
}

/* Fills the columns that come from the saved job. */
static void job_saved_row(const struct zsd_saved *s, Zp__JobRow *row)
{
    zb_list_each(pos, &s->snaps) row->snapshots++;
    row->committed = s->committed != NULL;
    row->committed_iterations = s->committed ? s->committed->iterations : 0;
    row->committed_applied = s->committed ? s->committed->applied : 0;
    for (int use = 0; use < ZSD_USES; use++)
        row->nvme_bytes += s->nvme_held.used[use];
}

static void saved_row(const struct zsd_saved *s, Zp__JobRow *row)
{
    const struct zsd_version *v = saved_newest(s);

    zp__job_row__init(row);
    row->id = s->number;
    row->name = zp_str(s->name);
    row->uid = s->uid;
    row->world = v->world;
    row->keep = row->durable = true;
    row->state = zp_str(v->lost ? "lost" : "saved");
    row->iterations = v->iterations;
    row->applied = v->applied;
    row->shards = v->nrows;
    row->epoch = s->epoch;
    row->optimizer = s->optimizer;
    row->moments = s->moments;
    row->muon_engine = s->muon_engine;
    for (uint32_t i = 0; i < s->nunits; i++)
        row->params += s->units[i]->elems;
    row->muon_params = zsd_muon_elems(s->units, s->nunits);
    job_saved_row(s, row);
}

/* Fills the columns of what the trainer says. */
static void job_about_row(const struct zsd_job *job, Zp__JobRow *row)
{
    const struct zsd_about *a = &job->about;

    row->clip_mode = a->clip_mode;
    row->clip = a->clip;
    row->clip_ratio = a->clip_ratio;
    row->clip_warm_left = a->clip_warm_until > job->applied ? a->clip_warm_until - job->applied : 0;
    row->early = a->early;
    row->frozen_tensors = a->frozen_tensors;
    row->frozen_bytes = a->frozen_bytes;
}

static void job_row(const struct zsd_job *job, Zp__JobRow *row)
{
    zp__job_row__init(row);
    row->id = job->number;
    row->name = zp_str(job->name);
    row->uid = job->uid;
    row->world = job->world;
    zb_list_each(pos, &job->members)
        row->attached += zb_container_of(pos, struct zsd_member, node)->conn != NULL;
    row->keep = job->keep;
    row->state = zp_str(zsd_job_state_name(job));
    row->iterations = job->iterations;
    row->applied = job->applied;
    row->shards = job->nshards;
    for (uint32_t i = 0; i < job->nunits; i++)
        row->params += job->units[i]->elems;
    zsd_muon_row(job, row);
    job_about_row(job, row);
    for (int use = 0; use < ZSD_USES; use++) {
        row->host_bytes += job->host_held.used[use];
        row->nvme_bytes += job->nvme_held.used[use];
    }
    row->durable = job->durable;
    row->epoch = job->epoch;
    row->optimizer = job->optimizer;
    row->moments = job->moments;
    if (job->saved)
        job_saved_row(job->saved, row);
    row->fetched_bytes = job->fetched_bytes;
    row->pushed_bytes = job->pushed_bytes;
    row->grads_nvme_bytes = job->grads_nvme_bytes;
    row->grad_ring = job->grad_ring;
    row->grad_ring_keep = job->grad_ring ? job->ring_keep : 0;
    row->grads_ringed = job->grads_ringed;
    row->nvme_read_bytes = job->nvme_read_bytes;
    row->nvme_written_bytes = job->nvme_written_bytes;
    row->error = zp_str(job->why.text);
    row->share = job->payer.share;
    row->gpu_bytes = zsd_gpu_held(job) + zsd_params_booked(job) + job->muon_gpu.booked;
    row->host_state = job->host_held.used[ZSD_USE_STATE];
    row->host_state_target = job->replan->shrinks
                                 ? row->host_state - zsd_replan_leaving(job)
                                 : zb_max_u64(row->host_state, job->replan->target_bytes);
}

/* A cursor is the number of the next job. */
ZSD_REQUEST(zsd_jobs, JobsRequest)
{
    Zp__JobRow rows[JOBS_ROWS], *list[JOBS_ROWS];
    Zp__JobsReply reply = ZP__JOBS_REPLY__INIT;
    struct zsd_named named;
    struct seen seen;

    if (inspect_refuses(req, q->owner, q->job, q->cursor, &named))
        return;
    for (uint64_t at = q->cursor; inspect_next(req, &named, at, &seen); at = seen.number + 1) {
        if (reply.n_rows == JOBS_ROWS) {
            reply.cursor = seen.number;
            break;
        }
        list[reply.n_rows] = &rows[reply.n_rows];
        if (seen.job)
            job_row(seen.job, &rows[reply.n_rows++]);
        else
            saved_row(seen.saved, &rows[reply.n_rows++]);
    }
    reply.rows = list;
    zsd_reply(req, &reply.base, -1);
}

static void counter_add(Zp__Counter *counters, Zp__Counter **list, size_t *n, const char *name,
                        uint64_t value)
{
    zp__counter__init(&counters[*n]);
    counters[*n].name = zp_str(name);
    counters[*n].value = value;
    list[*n] = &counters[*n];
    (*n)++;
}

static void stats_add(struct zn_stats *sum, struct zn_stats one)
{
    sum->reads += one.reads;
    sum->read_bytes += one.read_bytes;
    sum->writes += one.writes;
    sum->written_bytes += one.written_bytes;
    sum->failed += one.failed;
    sum->short_transfers += one.short_transfers;
    sum->registered += one.registered;
    sum->inflight += one.inflight;
}

void zsd_stat(struct zsd_req *req, const ProtobufCMessage *message)
{
    struct zsd *daemon = req->daemon;
    const struct zsd_core *core = daemon->core;
    const uint64_t *values = (const uint64_t *)(const void *)&daemon->stats;
    Zp__Counter counters[ZSD_STATS_COUNT + 16], *list[ZSD_STATS_COUNT + 16];
    Zp__StatReply reply = ZP__STAT_REPLY__INIT;
    size_t n = 0;

    (void)message;
    zsd_turns_tell(daemon);
    counter_add(counters, list, &n, "uptime_ms", (zb_now_ns() - daemon->started_ns) / 1000000);
    counter_add(counters, list, &n, "clients", daemon->clients);
    counter_add(counters, list, &n, "operations_in_progress", core->in_progress);
    counter_add(counters, list, &n, "page_buffers", core->disk->nbuffers);
    counter_add(counters, list, &n, "page_buffers_free", core->disk->nbuffers_free);
    for (size_t i = 0; i < ZSD_STATS_COUNT; i++)
        counter_add(counters, list, &n, zsd_stats_names[i], values[i]);
    if (daemon->engine) {
        struct zn_stats io = { 0 };

        for (unsigned i = 0; i < zsd_paths(daemon); i++)
            stats_add(&io, zn_stats(zsd_path_engine(daemon, i)));

        counter_add(counters, list, &n, "nvme_reads", io.reads);
        counter_add(counters, list, &n, "nvme_read_bytes", io.read_bytes);
        counter_add(counters, list, &n, "nvme_writes", io.writes);
        counter_add(counters, list, &n, "nvme_written_bytes", io.written_bytes);
        counter_add(counters, list, &n, "nvme_failed", io.failed);
        counter_add(counters, list, &n, "nvme_short_transfers", io.short_transfers);
        counter_add(counters, list, &n, "nvme_registered", io.registered);
        counter_add(counters, list, &n, "nvme_inflight", io.inflight);
    }
    reply.n_counters = n;
    reply.counters = list;
    zsd_reply(req, &reply.base, -1);
}
