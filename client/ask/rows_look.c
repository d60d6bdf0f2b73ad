/*
 * rows_look.c - requests that list shards, jobs, tiers, drives, counters, quotas, settings and log events.
 */
#include "base/late.h"
#include "base/plan.h"
#include "client/ask/rows_priv.h"
#include "proto/codec.h"
#include "proto/wire.h"

static int reply_list(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                      int *fds)
{
    const Zp__ListReply *r = (const Zp__ListReply *)m;
    void *added;
    int rc = zc_rows_begin(c, call->spec.ret, r->n_rows, r->cursor, &added);

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
        to->uid = from->uid;
        COPY(to->job, from->job);
        COPY(to->unit, from->unit);
        COPY(to->dtype, from->dtype);
        COPY(to->tier, from->tier);
    }
    return rc < 0 ? rc : 0;
}

static const struct zc_method method_list = { .id = ZP_LIST, .reply = reply_list };

int zc_list_wait(struct zc_client *c, const char *job, struct zc_shard_row **ret_rows,
                 size_t *ret_n)
{
    struct zc_rows rows = { .row_bytes = sizeof(**ret_rows) };
    Zp__ListRequest m = ZP__LIST_REQUEST__INIT;
    int rc = zc_job_word(c, job, &m.job, &m.owner);

    if (rc < 0)
        return rc;
    rc = zc_rows_collect(c, &method_list, &m.base, &m.cursor, &rows, ret_n);
    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}

/** The name of a value; "" for an unknown one, from a newer daemon. */
static const char *rows_name(const char *name)
{
    return name ? name : "";
}

static void muon_copy(struct zc_job_row *to, const Zp__JobRow *from)
{
    to->muon_params = from->muon_params;
    to->muon_bytes = from->muon_bytes;
    to->muon_gpu_bytes = from->muon_gpu_bytes;
    if (from->optimizer == ZB_MUON)
        COPY(to->muon_engine, rows_name(zb_muon_engine_name(from->muon_engine)));
    to->muon_most_bytes = from->muon_most_bytes;
    if (from->muon_scale > 0)
        (void)snprintf(to->muon, sizeof(to->muon), "%s, momentum %g%s, lr %g",
                       from->muon_scale - 1 == ZC_MUON_RMS ? "rms" : "shape", from->muon_momentum,
                       from->muon_nesterov ? ", nesterov" : "", from->muon_lr);
}

static void about_copy(struct zc_job_row *to, const Zp__JobRow *from)
{
    if (from->clip_mode == 3 || (from->clip_mode == 1 && from->clip == 0))
        COPY(to->clip, "none");
    else if (from->clip_mode == 1)
        (void)snprintf(to->clip, sizeof(to->clip), "global, %g", from->clip);
    else if (from->clip_mode == 2)
        (void)snprintf(to->clip, sizeof(to->clip), "tensor, %g of averages", from->clip_ratio);
    COPY(to->early, zp_early_text(from->early));
    if (from->early == ZP_EARLY_YES && from->clip_warm_left > 0 && from->clip > 0)
        (void)snprintf(to->early, sizeof(to->early),
                       "after %llu more steps, which are clipped globally",
                       (unsigned long long)from->clip_warm_left);
    to->clip_warm_left = from->clip_warm_left;
    to->frozen_tensors = from->frozen_tensors;
    to->frozen_bytes = from->frozen_bytes;
}

static int reply_jobs(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                      int *fds)
{
    const Zp__JobsReply *r = (const Zp__JobsReply *)m;
    void *added;
    int rc = zc_rows_begin(c, call->spec.ret, r->n_rows, r->cursor, &added);

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
        to->grad_ring = from->grad_ring;
        to->grad_ring_keep = from->grad_ring_keep;
        to->grads_ringed = from->grads_ringed;
        COPY(to->name, from->name);
        COPY(to->state, from->state);
        COPY(to->optimizer, rows_name(zb_optimizer_name((enum zb_optimizer)from->optimizer)));
        COPY(to->moments, rows_name(zb_moments_name((enum zb_moments)from->moments)));
        COPY(to->error, from->error);
        muon_copy(to, from);
        about_copy(to, from);
    }
    return rc < 0 ? rc : 0;
}

static const struct zc_method method_jobs = { .id = ZP_JOBS, .reply = reply_jobs };

int zc_jobs_wait(struct zc_client *c, const char *job, struct zc_job_row **ret_rows, size_t *ret_n)
{
    struct zc_rows rows = { .row_bytes = sizeof(**ret_rows) };
    Zp__JobsRequest m = ZP__JOBS_REQUEST__INIT;
    int rc = zc_job_word(c, job, &m.job, &m.owner);

    if (rc < 0)
        return rc;
    rc = zc_rows_collect(c, &method_jobs, &m.base, &m.cursor, &rows, ret_n);
    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}

void zc_tier_copy(struct zc_tier_row *to, const Zp__TierRow *from)
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

static int reply_tiers(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds)
{
    const Zp__TiersReply *r = (const Zp__TiersReply *)m;
    void *added;
    int rc = zc_rows_begin(c, call->spec.ret, r->n_rows, 0, &added);

    (void)fds;
    for (size_t i = 0; rc > 0 && i < r->n_rows; i++)
        zc_tier_copy((struct zc_tier_row *)added + i, r->rows[i]);
    return rc < 0 ? rc : 0;
}

static const struct zc_method method_tiers = { .id = ZP_TIERS, .reply = reply_tiers };

int zc_tiers_wait(struct zc_client *c, struct zc_tier_row **ret_rows, size_t *ret_n)
{
    struct zc_rows rows = { .row_bytes = sizeof(**ret_rows) };
    Zp__Empty m = ZP__EMPTY__INIT;
    int rc = zc_rows_collect(c, &method_tiers, &m.base, NULL, &rows, ret_n);

    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}

static int reply_drives(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                        int *fds)
{
    const Zp__TiersReply *r = (const Zp__TiersReply *)m;
    void *added;
    int rc = zc_rows_begin(c, call->spec.ret, r->n_drives, 0, &added);

    (void)fds;
    for (size_t i = 0; rc > 0 && i < r->n_drives; i++) {
        struct zc_drive_row *to = (struct zc_drive_row *)added + i;
        const Zp__DriveRow *from = r->drives[i];

        *to = (struct zc_drive_row){ .number = from->number,
                                     .size_bytes = from->size_bytes,
                                     .held_bytes = from->held_bytes,
                                     .bytes_s = from->bytes_s,
                                     .start_bytes_s = from->start_bytes_s,
                                     .read_bytes = from->read_bytes,
                                     .written_bytes = from->written_bytes,
                                     .failed = from->failed,
                                     .waits_ms = from->waits_ms,
                                     .device_start_bytes = from->device_start_bytes,
                                     .discarded_bytes = from->discarded_bytes,
                                     .holed_bytes = from->holed_bytes };
        COPY(to->discard, from->discard);
        if (from->node > 0)
            (void)snprintf(to->node, sizeof(to->node), "%u", (from->node - 1) % 100000);
        COPY(to->state, from->state);
        COPY(to->why, from->why);
        COPY(to->device, from->device);
        COPY(to->directory, from->directory);
    }
    return rc < 0 ? rc : 0;
}

static const struct zc_method method_drives = { .id = ZP_TIERS, .reply = reply_drives };

int zc_drives_wait(struct zc_client *c, struct zc_drive_row **ret_rows, size_t *ret_n)
{
    struct zc_rows rows = { .row_bytes = sizeof(**ret_rows) };
    Zp__Empty m = ZP__EMPTY__INIT;
    int rc = zc_rows_collect(c, &method_drives, &m.base, NULL, &rows, ret_n);

    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}

static int reply_stat(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                      int *fds)
{
    const Zp__StatReply *r = (const Zp__StatReply *)m;
    void *added;
    int rc = zc_rows_begin(c, call->spec.ret, r->n_counters, 0, &added);

    (void)fds;
    for (size_t i = 0; rc > 0 && i < r->n_counters; i++) {
        struct zc_counter *to = (struct zc_counter *)added + i;

        to->value = r->counters[i]->value;
        COPY(to->name, r->counters[i]->name);
    }
    return rc < 0 ? rc : 0;
}

static const struct zc_method method_stat = { .id = ZP_STAT, .reply = reply_stat };

int zc_stat_wait(struct zc_client *c, struct zc_counter **ret_rows, size_t *ret_n)
{
    struct zc_rows rows = { .row_bytes = sizeof(**ret_rows) };
    Zp__Empty m = ZP__EMPTY__INIT;
    int rc = zc_rows_collect(c, &method_stat, &m.base, NULL, &rows, ret_n);

    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}

/* ---- quotas */

static int reply_quota(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds)
{
    const Zp__QuotaReply *r = (const Zp__QuotaReply *)m;
    void *added;
    int rc = zc_rows_begin(c, call->spec.ret, r->n_rows, r->cursor, &added);

    (void)fds;
    for (size_t i = 0; rc > 0 && i < r->n_rows; i++) {
        const Zp__QuotaRow *from = r->rows[i];

        ((struct zc_quota *)added)[i] = (struct zc_quota){ .host_bytes = from->host_bytes,
                                                           .host_max = from->host_max,
                                                           .nvme_bytes = from->nvme_bytes,
                                                           .nvme_max = from->nvme_max,
                                                           .gpu_bytes = from->gpu_bytes,
                                                           .gpu_max = from->gpu_max,
                                                           .uid = from->uid,
                                                           .jobs = from->jobs,
                                                           .jobs_max = from->jobs_max,
                                                           .own = from->own,
                                                           .exempt = from->exempt };
    }
    return rc < 0 ? rc : 0;
}

static const struct zc_method method_quota = { .id = ZP_QUOTA, .reply = reply_quota };

int zc_quotas_wait(struct zc_client *c, struct zc_quota **ret_rows, size_t *ret_n)
{
    struct zc_rows rows = { .row_bytes = sizeof(**ret_rows) };
    Zp__QuotaRequest m = ZP__QUOTA_REQUEST__INIT;
    int rc = zc_rows_collect(c, &method_quota, &m.base, &m.cursor, &rows, ret_n);

    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}

/* ---- options */

static int reply_settings(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                          int *fds)
{
    const Zp__SettingsReply *r = (const Zp__SettingsReply *)m;
    void *added;
    int rc = zc_rows_begin(c, call->spec.ret, r->n_rows, 0, &added);

    (void)fds;
    for (size_t i = 0; rc > 0 && i < r->n_rows; i++) {
        struct zc_setting *to = (struct zc_setting *)added + i;
        const Zp__Setting *from = r->rows[i];

        COPY(to->name, from->name);
        COPY(to->value, from->value);
        COPY(to->restart, from->restart);
        to->source = (enum zc_source)from->source;
        to->pending = from->pending;
    }
    return rc < 0 ? rc : 0;
}

static const struct zc_method method_settings = { .id = ZP_SETTINGS, .reply = reply_settings };

int zc_settings_wait(struct zc_client *c, struct zc_setting **ret_rows, size_t *ret_n)
{
    struct zc_rows rows = { .row_bytes = sizeof(**ret_rows) };
    Zp__Empty m = ZP__EMPTY__INIT;
    int rc = zc_rows_collect(c, &method_settings, &m.base, NULL, &rows, ret_n);

    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}

static int reply_log_level(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                           int *fds)
{
    const Zp__LogLevel *r = (const Zp__LogLevel *)m;
    struct zc_rows *rows = call->spec.ret;
    struct zc_log_level *to = rows->head;
    void *added;

    (void)fds;
    COPY(to->name, r->level);
    return zc_rows_begin(c, rows, 0, 0, &added);
}

static const struct zc_method method_log_level = { .id = ZP_LOG_LEVEL, .reply = reply_log_level };

int zc_log_level_wait(struct zc_client *c, const char *level, struct zc_log_level *ret)
{
    struct zc_rows rows = { .row_bytes = 1, .head = ret };
    Zp__LogLevel m = ZP__LOG_LEVEL__INIT;
    size_t n;

    if (level)
        m.level = (char *)level;
    return zc_rows_collect(c, &method_log_level, &m.base, NULL, &rows, &n);
}

/* ---- events */

static int reply_log_events(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                            int *fds)
{
    const Zp__LogEventsReply *r = (const Zp__LogEventsReply *)m;
    void *added;
    int rc = zc_rows_begin(c, call->spec.ret, r->n_rows, r->cursor, &added);

    (void)fds;
    for (size_t i = 0; rc > 0 && i < r->n_rows; i++) {
        struct zc_log_event *to = (struct zc_log_event *)added + i;
        const Zp__LogEvent *from = r->rows[i];

        to->number = from->number;
        to->time_ms = from->time_ms;
        to->uid = from->uid;
        to->has_uid = from->has_user;
        to->lost = from->lost;
        COPY(to->level, from->level);
        COPY(to->event, from->event);
        COPY(to->job, from->job);
        COPY(to->text, from->text);
    }
    return rc < 0 ? rc : 0;
}

static const struct zc_method method_log_events = { .id = ZP_LOG_EVENTS,
                                                    .reply = reply_log_events };

int zc_log_events_wait(struct zc_client *c, uint64_t after, struct zc_log_event **ret_rows,
                       size_t *ret_n)
{
    struct zc_rows rows = { .row_bytes = sizeof(**ret_rows), .cursor = after };
    Zp__LogEventsRequest m = ZP__LOG_EVENTS_REQUEST__INIT;
    int rc = zc_rows_collect(c, &method_log_events, &m.base, &m.cursor, &rows, ret_n);

    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}

/* ---- restart */

static int reply_restart(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                         int *fds)
{
    const Zp__RestartReply *r = (const Zp__RestartReply *)m;
    void *added;
    int rc = zc_rows_begin(c, call->spec.ret, r->n_rows, r->cursor, &added);

    (void)fds;
    for (size_t i = 0; rc > 0 && i < r->n_rows; i++) {
        struct zc_restart_row *to = (struct zc_restart_row *)added + i;

        COPY(to->job, r->rows[i]->job);
        COPY(to->fate, r->rows[i]->fate);
        COPY(to->why, r->rows[i]->why);
        to->uid = r->rows[i]->uid;
        to->attached = r->rows[i]->attached;
    }
    return rc < 0 ? rc : 0;
}

static const struct zc_method method_restart = { .id = ZP_RESTART, .reply = reply_restart };

int zc_restart_wait(struct zc_client *c, bool start, struct zc_restart_row **ret_rows,
                    size_t *ret_n)
{
    struct zc_rows rows = { .row_bytes = sizeof(**ret_rows) };
    Zp__RestartRequest m = ZP__RESTART_REQUEST__INIT;
    int rc;

    m.start = start;
    rc = zc_rows_collect(c, &method_restart, &m.base, &m.cursor, &rows, ret_n);
    if (rc == 0)
        *ret_rows = rows.data;
    return rc;
}
