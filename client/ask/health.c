/*
 * health.c - the state of the daemon, and the reasons for it.
 */
#include "client/ask/rows_priv.h"

static void health_copy(struct zc_health *to, const Zp__HealthReply *r)
{
    *to = (struct zc_health){ .uptime_ms = r->uptime_ms,
                              .commit_iterations = r->commit_iterations,
                              .commit_ago_ms = r->commit_ago_ms,
                              .commit_us = r->commit_us,
                              .scrub_ago_ms = r->scrub_ago_ms,
                              .scrub_bytes = r->scrub_bytes,
                              .scrub_bad_pages = r->scrub_bad_pages,
                              .turn_max_us = r->turn_max_us,
                              .turn_p999_us = r->turn_p999_us,
                              .clients = r->clients,
                              .clients_max = r->clients_max,
                              .jobs = r->jobs,
                              .saved = r->saved,
                              .ntiers = (uint32_t)zb_min_u64(r->n_tiers, ZC_TOP_TIERS_MAX),
                              .committed = r->committed,
                              .scrubbed = r->scrubbed };
    COPY(to->commit_job, r->commit_job);
    COPY(to->scrub_state, r->scrub_state);
    for (uint32_t i = 0; i < to->ntiers; i++)
        zc_tier_copy(&to->tiers[i], r->tiers[i]);
}

static int reply_health(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                        int *fds)
{
    const Zp__HealthReply *r = (const Zp__HealthReply *)m;
    struct zc_rows *rows = call->spec.ret;
    struct zc_health *head = rows->head;
    void *added;
    int rc = zc_rows_begin(c, rows, r->n_reasons, 0, &added);

    (void)fds;
    if (rc < 0)
        return rc;
    health_copy(head, r);
    for (size_t i = 0; i < r->n_reasons; i++) {
        struct zc_reason *to = (struct zc_reason *)added + i;
        const Zp__Reason *from = r->reasons[i];

        to->level = from->level > ZC_REASON_ADVICE ? ZC_REASON_ERROR : ZC_REASON_ADVICE;
        COPY(to->id, from->id);
        COPY(to->text, from->text);
        COPY(to->fix, from->fix);
        head->errors += to->level == ZC_REASON_ERROR;
    }
    return 0;
}

static const struct zc_method method_health = { .id = ZP_HEALTH, .reply = reply_health };

int zc_health_wait(struct zc_client *c, struct zc_health *ret, struct zc_reason **ret_reasons,
                   size_t *ret_n)
{
    struct zc_rows rows = { .row_bytes = sizeof(**ret_reasons), .head = ret };
    Zp__Empty m = ZP__EMPTY__INIT;
    int rc = zc_rows_collect(c, &method_health, &m.base, NULL, &rows, ret_n);

    if (rc == 0)
        *ret_reasons = rows.data;
    return rc;
}
