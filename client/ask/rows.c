/*
 * rows.c - looking inside: rows of shards, jobs, tiers, counters, gauges, snapshots and space, as
 * arrays.
 *
 * MODEL. One struct rows collects what several replies bring, in one growing array, which becomes
 * the caller's. Each reply adds its rows and says where the next one begins (cursor, 0: that was
 * all).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/plan.h"
#include "client/conn/conn.h"

#define DF_TRIES 10u

struct rows {
    void *data;
    size_t n, room, row_bytes;
    uint64_t cursor;
    void *head; /* what a reply says beside its rows, where the caller wants it */
};

/** Room for n more rows, zeroed: their beginning; NULL: no memory. n is not 0. */
static void *rows_add(struct rows *r, size_t n)
{
    void *added;

    if (zb_grow_bytes(&r->data, &r->room, r->n, n, r->row_bytes) < 0)
        return NULL;
    added = (char *)r->data + r->n * r->row_bytes;
    memset(added, 0, n * r->row_bytes);
    r->n += n;
    return added;
}

/** What every reply of rows begins with: 1 and *ret has room for n rows; 0 there are none; or how
 *  the call ends. */
static int rows_begin(struct zc_client *c, struct rows *r, size_t n, uint64_t cursor, void **ret)
{
    if (n == 0 && cursor != 0)
        return zc_fail(c, -EPROTO, "a reply without rows, and more to come");
    r->cursor = cursor;
    if (n == 0)
        return 0;
    *ret = rows_add(r, n);
    return *ret ? 1 : zc_fail(c, -ENOMEM, "%zu rows: %m", r->n + n);
}

#define COPY(to, from) (void)snprintf(to, sizeof(to), "%s", from)

int zc_rows_reply_list(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds)
{
    const Zp__ListReply *r = (const Zp__ListReply *)m;
    void *added;
    int rc = rows_begin(c, call->spec.ret, r->n_rows, r->cursor, &added);

    (void)fds;
    for (size_t i = 0; rc > 0 && i < r->n_rows; i++) {
        struct zc_shard_row *to = (struct zc_shard_row *)added + i;
        const Zp__ShardRow *from = r->rows[i];

        to->id = from->id;
        to->first = from->first;
        to->count = from->count;
        to->version = from->version;
        to->bytes = from->bytes;
        to->host_bytes = from->host_bytes;
        to->nvme_bytes = from->nvme_bytes;
        to->pins = from->pins;
        to->rank = from->rank;
        COPY(to->job, from->job);
        COPY(to->unit, from->unit);
        COPY(to->dtype, from->dtype);
        COPY(to->tier, from->tier);
    }
    return rc < 0 ? rc : 0;
}

/** Of a daemon that knows more than we: nothing. */
static const char *rows_name(const char *name)
{
    return name ? name : "";
}

int zc_rows_reply_jobs(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds)
{
    const Zp__JobsReply *r = (const Zp__JobsReply *)m;
    void *added;
    int rc = rows_begin(c, call->spec.ret, r->n_rows, r->cursor, &added);

    (void)fds;
    for (size_t i = 0; rc > 0 && i < r->n_rows; i++) {
        struct zc_job_row *to = (struct zc_job_row *)added + i;
        const Zp__JobRow *from = r->rows[i];

        to->id = from->id;
        to->iterations = from->iterations;
        to->applied = from->applied;
        to->shards = from->shards;
        to->params = from->params;
        to->host_bytes = from->host_bytes;
        to->nvme_bytes = from->nvme_bytes;
        to->grads_nvme_bytes = from->grads_nvme_bytes;
        to->fetched_bytes = from->fetched_bytes;
        to->pushed_bytes = from->pushed_bytes;
        to->nvme_read_bytes = from->nvme_read_bytes;
        to->nvme_written_bytes = from->nvme_written_bytes;
        to->uid = from->uid;
        to->world = from->world;
        to->attached = from->attached;
        to->keep = from->keep;
        to->durable = from->durable;
        to->committed = from->committed;
        to->committed_iterations = from->committed_iterations;
        to->committed_applied = from->committed_applied;
        to->snapshots = from->snapshots;
        to->epoch = from->epoch;
        to->gpu_bytes = from->gpu_bytes;
        to->host_state = from->host_state;
        to->host_state_target = from->host_state_target;
        to->share = from->share;
        COPY(to->name, from->name);
        COPY(to->state, from->state);
        COPY(to->optimizer, rows_name(zb_optimizer_name((enum zb_optimizer)from->optimizer)));
        COPY(to->moments, rows_name(zb_moments_name((enum zb_moments)from->moments)));
        COPY(to->error, from->error);
    }
    return rc < 0 ? rc : 0;
}

static void tier_copy(struct zc_tier_row *to, const Zp__TierRow *from)
{
    to->budget = from->budget;
    to->used = from->used;
    to->params = from->params;
    to->grads = from->grads;
    to->state = from->state;
    to->staging = from->staging;
    to->rings = from->rings;
    to->read_bytes_s = from->read_bytes_s;
    to->write_bytes_s = from->write_bytes_s;
    to->node_bytes = from->node_bytes;
    to->spilled_bytes = from->spilled_bytes;
    to->target = from->target;
    to->moving = from->moving;
    to->device_free = from->device_free;
    to->stranded = from->stranded;
    COPY(to->stranded_by, from->stranded_by);
    COPY(to->numa, from->numa);
    COPY(to->nodes, from->nodes);
    COPY(to->name, from->name);
    COPY(to->detail, from->detail);
}

int zc_rows_reply_tiers(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                        int *fds)
{
    const Zp__TiersReply *r = (const Zp__TiersReply *)m;
    void *added;
    int rc = rows_begin(c, call->spec.ret, r->n_rows, 0, &added);

    (void)fds;
    for (size_t i = 0; rc > 0 && i < r->n_rows; i++)
        tier_copy((struct zc_tier_row *)added + i, r->rows[i]);
    return rc < 0 ? rc : 0;
}

/** A message that is not there is one of zeros. */
static void gauge_copy(struct zc_gauge *to, const Zp__TopGauge *from)
{
    if (from)
        *to = (struct zc_gauge){ from->now, from->area_ns, from->busy_ns };
}

/** What a newer daemon has behind those that we know is left out. */
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
    gauges_copy(to->stages, ZC_STAGES, from->stages, from->n_stages);
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

/** The head is of the first reply; the rows of each are of its own time. */
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
        tier_copy(&to->tiers[i], r->tiers[i]);
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

int zc_rows_reply_top(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                      int *fds)
{
    const Zp__TopReply *r = (const Zp__TopReply *)m;
    struct rows *rows = call->spec.ret;
    bool first = rows->cursor == 0;
    void *added;
    int rc = rows_begin(c, rows, r->n_jobs, r->cursor, &added);

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

int zc_rows_reply_stat(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds)
{
    const Zp__StatReply *r = (const Zp__StatReply *)m;
    void *added;
    int rc = rows_begin(c, call->spec.ret, r->n_counters, 0, &added);

    (void)fds;
    for (size_t i = 0; rc > 0 && i < r->n_counters; i++) {
        struct zc_counter *to = (struct zc_counter *)added + i;

        to->value = r->counters[i]->value;
        COPY(to->name, r->counters[i]->name);
    }
    return rc < 0 ? rc : 0;
}

void zc_snapshot_row(struct zc_snapshot_row *to, const Zp__SnapshotRow *from)
{
    to->iterations = from->iterations;
    to->applied = from->applied;
    to->created_unix = from->created_unix;
    to->bytes = from->bytes;
    to->own_bytes = from->own_bytes;
    to->world = from->world;
    COPY(to->job, from->job);
    COPY(to->name, from->name);
}

int zc_rows_reply_snapshots(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                            int *fds)
{
    const Zp__SnapshotsReply *r = (const Zp__SnapshotsReply *)m;
    void *added;
    int rc = rows_begin(c, call->spec.ret, r->n_rows, r->cursor, &added);

    (void)fds;
    for (size_t i = 0; rc > 0 && i < r->n_rows; i++)
        zc_snapshot_row((struct zc_snapshot_row *)added + i, r->rows[i]);
    return rc < 0 ? rc : 0;
}

/** The sentences of scrub and fsck. */
static int rows_sentences(struct zc_client *c, struct rows *rows, char **texts, size_t n)
{
    void *added;
    int rc = rows_begin(c, rows, n, 0, &added);

    for (size_t i = 0; rc > 0 && i < n; i++)
        COPY(((struct zc_sentence *)added)[i].text, texts[i]);
    return rc < 0 ? rc : 0;
}

int zc_rows_reply_scrub(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                        int *fds)
{
    const Zp__ScrubReply *r = (const Zp__ScrubReply *)m;
    struct rows *rows = call->spec.ret;
    struct zc_scrub *head = rows->head;

    (void)fds;
    *head = (struct zc_scrub){ .bytes = r->bytes,
                               .total_bytes = r->total_bytes,
                               .bad_pages = r->bad_pages,
                               .elapsed_ms = r->elapsed_ms,
                               .eta_ms = r->eta_ms,
                               .rate_bytes = r->rate_bytes };
    COPY(head->state, r->state);
    return rows_sentences(c, rows, r->bad, r->n_bad);
}

int zc_rows_reply_fsck(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds)
{
    const Zp__FsckReply *r = (const Zp__FsckReply *)m;
    struct rows *rows = call->spec.ret;
    struct zc_fsck *head = rows->head;

    (void)fds;
    if (r->problems_total < r->n_problems)
        return zc_fail(c, -EPROTO, "%zu of %llu problems", r->n_problems,
                       (unsigned long long)r->problems_total);
    *head = (struct zc_fsck){ .jobs = r->jobs,
                              .versions = r->versions,
                              .snapshots = r->snapshots,
                              .rows = r->rows,
                              .pages = r->pages,
                              .bytes = r->bytes,
                              .sequence = r->sequence,
                              .problems_total = r->problems_total };
    return rows_sentences(c, rows, r->problems, r->n_problems);
}

int zc_rows_reply_df(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m, int *fds)
{
    const Zp__DfReply *r = (const Zp__DfReply *)m;
    struct rows *rows = call->spec.ret;
    struct zc_df *head = rows->head;
    void *added;
    int rc = rows_begin(c, rows, r->n_rows, r->cursor, &added);

    (void)fds;
    *head = (struct zc_df){
        .total = r->total, .meta = r->meta, .free = r->free, .catalog_bytes = r->catalog_bytes
    };
    for (size_t i = 0; rc > 0 && i < r->n_rows; i++) {
        struct zc_df_row *to = (struct zc_df_row *)added + i;
        const Zp__DfRow *from = r->rows[i];

        to->committed = from->committed;
        to->prepared = from->prepared;
        to->snapshots = from->snapshots;
        to->working = from->working;
        to->reserved = from->reserved;
        to->shared = from->shared;
        COPY(to->job, from->job);
    }
    return rc < 0 ? rc : 0;
}

/** Sends requests until the rows have ended. `cursor` is the message's field, or NULL. */
static int rows_collect(struct zc_client *c, uint16_t method, const ProtobufCMessage *message,
                        uint64_t *cursor, struct rows *rows, size_t *ret_n)
{
    int rc;

    do {
        struct zc_waiter w = { .client = c };
        struct zc_call_spec spec = {
            .method = method, .message = message, .ret = rows, .done = zc_waiter_done, .arg = &w
        };

        if (cursor)
            *cursor = rows->cursor;
        rc = zc_wait(&w, zc_call_start(c, &spec), 0);
    } while (rc == 0 && rows->cursor != 0);
    if (rc < 0)
        free(rows->data);
    else
        *ret_n = rows->n;
    return rc;
}

int zc_list_wait(struct zc_client *c, const char *job, struct zc_shard_row **ret_rows,
                 size_t *ret_n)
{
    struct rows rows = { .row_bytes = sizeof(**ret_rows) };
    Zp__ListRequest m = ZP__LIST_REQUEST__INIT;
    int rc;

    if (job)
        m.job = UNCONST(char, job);
    rc = rows_collect(c, ZP_LIST, &m.base, &m.cursor, &rows, ret_n);
    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}

int zc_jobs_wait(struct zc_client *c, const char *job, struct zc_job_row **ret_rows, size_t *ret_n)
{
    struct rows rows = { .row_bytes = sizeof(**ret_rows) };
    Zp__JobsRequest m = ZP__JOBS_REQUEST__INIT;
    int rc;

    if (job)
        m.job = UNCONST(char, job);
    rc = rows_collect(c, ZP_JOBS, &m.base, &m.cursor, &rows, ret_n);
    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}

int zc_tiers_wait(struct zc_client *c, struct zc_tier_row **ret_rows, size_t *ret_n)
{
    struct rows rows = { .row_bytes = sizeof(**ret_rows) };
    Zp__Empty m = ZP__EMPTY__INIT;
    int rc = rows_collect(c, ZP_TIERS, &m.base, NULL, &rows, ret_n);

    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}

int zc_stat_wait(struct zc_client *c, struct zc_counter **ret_rows, size_t *ret_n)
{
    struct rows rows = { .row_bytes = sizeof(**ret_rows) };
    Zp__Empty m = ZP__EMPTY__INIT;
    int rc = rows_collect(c, ZP_STAT, &m.base, NULL, &rows, ret_n);

    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}

int zc_top_wait(struct zc_client *c, const char *job, struct zc_top *ret,
                struct zc_top_job **ret_rows, size_t *ret_n)
{
    struct rows rows = { .row_bytes = sizeof(**ret_rows), .head = ret };
    Zp__TopRequest m = ZP__TOP_REQUEST__INIT;
    int rc;

    if (job)
        m.job = UNCONST(char, job);
    rc = rows_collect(c, ZP_TOP, &m.base, &m.cursor, &rows, ret_n);
    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}

int zc_snapshots_wait(struct zc_client *c, const char *job, struct zc_snapshot_row **ret_rows,
                      size_t *ret_n)
{
    struct rows rows = { .row_bytes = sizeof(**ret_rows) };
    Zp__SnapshotsRequest m = ZP__SNAPSHOTS_REQUEST__INIT;
    int rc;

    if (job)
        m.job = UNCONST(char, job);
    rc = rows_collect(c, ZP_SNAPSHOTS, &m.base, &m.cursor, &rows, ret_n);
    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}

int zc_scrub_wait(struct zc_client *c, enum zc_scrub_action action, uint64_t rate_bytes,
                  struct zc_scrub *ret, struct zc_sentence **ret_bad, size_t *ret_n)
{
    struct rows rows = { .row_bytes = sizeof(**ret_bad), .head = ret };
    Zp__Scrub m = ZP__SCRUB__INIT;
    int rc;

    m.action = action;
    m.rate_bytes = rate_bytes;
    rc = rows_collect(c, ZP_SCRUB, &m.base, NULL, &rows, ret_n);
    if (rc == 0)
        *ret_bad = rows.data;
    return rc;
}

int zc_fsck_wait(struct zc_client *c, struct zc_fsck *ret, struct zc_sentence **ret_problems,
                 size_t *ret_n)
{
    struct rows rows = { .row_bytes = sizeof(**ret_problems), .head = ret };
    Zp__Empty m = ZP__EMPTY__INIT;
    int rc = rows_collect(c, ZP_FSCK, &m.base, NULL, &rows, ret_n);

    if (rc == 0)
        *ret_problems = rows.data;
    return rc;
}

/** Are the rows, which came in several replies, of one moment? */
static bool df_adds_up(const struct zc_df *df, const struct rows *rows)
{
    const struct zc_df_row *r = rows->data;
    uint64_t sum = df->meta + df->free;

    for (size_t i = 0; i < rows->n; i++)
        sum += r[i].committed + r[i].prepared + r[i].snapshots + r[i].working + r[i].reserved;
    return sum == df->total;
}

int zc_df_wait(struct zc_client *c, struct zc_df *ret, struct zc_df_row **ret_rows, size_t *ret_n)
{
    for (unsigned try = 0; try < DF_TRIES; try++) {
        struct rows rows = { .row_bytes = sizeof(**ret_rows), .head = ret };
        Zp__DfRequest m = ZP__DF_REQUEST__INIT;
        int rc = rows_collect(c, ZP_DF, &m.base, &m.cursor, &rows, ret_n);

        if (rc < 0)
            return rc;
        if (m.cursor == 0 || df_adds_up(ret, &rows)) { /* the cursor of the last request */
            *ret_rows = rows.data;
            return 0;
        }
        free(rows.data);
    }
    return zc_fail(c, -EAGAIN, "what the data files hold changes faster than it can be told");
}

void zc_rows_free(void *rows)
{
    free(rows);
}
