/*
 * care.c - care of the data files: scrub, fsck, df.
 */
#include <errno.h>
#include <stdlib.h>

#include "client/ask/rows_priv.h"

#define DF_TRIES 10u

/** Adds the messages of scrub or fsck as rows. */
static int rows_messages(struct zc_client *c, struct zc_rows *rows, char **texts, size_t n)
{
    void *added;
    int rc = zc_rows_begin(c, rows, n, 0, &added);

    for (size_t i = 0; rc > 0 && i < n; i++)
        COPY(((struct zc_message *)added)[i].text, texts[i]);
    return rc < 0 ? rc : 0;
}

static int reply_scrub(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                       int *fds)
{
    const Zp__ScrubReply *r = (const Zp__ScrubReply *)m;
    struct zc_rows *rows = call->spec.ret;
    struct zc_scrub *head = rows->head;

    (void)fds;
    *head = (struct zc_scrub){ .bytes = r->bytes,
                               .total_bytes = r->total_bytes,
                               .bad_pages = r->bad_pages,
                               .elapsed_ms = r->elapsed_ms,
                               .eta_ms = r->eta_ms,
                               .rate_bytes = r->rate_bytes };
    COPY(head->state, r->state);
    return rows_messages(c, rows, r->bad, r->n_bad);
}

static const struct zc_method method_scrub = { .id = ZP_SCRUB, .reply = reply_scrub };

int zc_scrub_wait(struct zc_client *c, enum zc_scrub_action action, uint64_t rate_bytes,
                  struct zc_scrub *ret, struct zc_message **ret_bad, size_t *ret_n)
{
    struct zc_rows rows = { .row_bytes = sizeof(**ret_bad), .head = ret };
    Zp__Scrub m = ZP__SCRUB__INIT;
    int rc;

    m.action = action;
    m.rate_bytes = rate_bytes;
    rc = zc_rows_collect(c, &method_scrub, &m.base, NULL, &rows, ret_n);
    if (rc == 0)
        *ret_bad = rows.data;
    return rc;
}

static int reply_fsck(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                      int *fds)
{
    const Zp__FsckReply *r = (const Zp__FsckReply *)m;
    struct zc_rows *rows = call->spec.ret;
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
    return rows_messages(c, rows, r->problems, r->n_problems);
}

static const struct zc_method method_fsck = { .id = ZP_FSCK, .reply = reply_fsck };

int zc_fsck_wait(struct zc_client *c, struct zc_fsck *ret, struct zc_message **ret_problems,
                 size_t *ret_n)
{
    struct zc_rows rows = { .row_bytes = sizeof(**ret_problems), .head = ret };
    Zp__Empty m = ZP__EMPTY__INIT;
    int rc = zc_rows_collect(c, &method_fsck, &m.base, NULL, &rows, ret_n);

    if (rc == 0)
        *ret_problems = rows.data;
    return rc;
}

static int reply_df(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m, int *fds)
{
    const Zp__DfReply *r = (const Zp__DfReply *)m;
    struct zc_rows *rows = call->spec.ret;
    struct zc_df *head = rows->head;
    void *added;
    int rc = zc_rows_begin(c, rows, r->n_rows, r->cursor, &added);

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
        to->uid = from->uid;
        COPY(to->job, from->job);
    }
    return rc < 0 ? rc : 0;
}

static const struct zc_method method_df = { .id = ZP_DF, .reply = reply_df };

/** Whether the rows of several replies are from one moment: their sum must match the total. */
static bool df_adds_up(const struct zc_df *df, const struct zc_rows *rows)
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
        struct zc_rows rows = { .row_bytes = sizeof(**ret_rows), .head = ret };
        Zp__DfRequest m = ZP__DF_REQUEST__INIT;
        int rc = zc_rows_collect(c, &method_df, &m.base, &m.cursor, &rows, ret_n);

        if (rc < 0)
            return rc;
        if (m.cursor == 0 || df_adds_up(ret, &rows)) { /* 0: there was only one request */
            *ret_rows = rows.data;
            return 0;
        }
        free(rows.data);
    }
    return zc_fail(c, -EAGAIN, "the use of the data files changes too fast to be read");
}
