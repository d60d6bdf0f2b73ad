/*
 * rows.c - looking inside: rows of shards, jobs, tiers and counters, as arrays.
 *
 * MODEL. One struct rows collects what several replies bring, in one growing array, which becomes
 * the caller's. Each reply adds its rows and says where the next one begins (cursor, 0: that was
 * all).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/client_priv.h"

struct rows {
    void *data;
    size_t n, room, row_bytes;
    uint64_t cursor;
};

/** Room for n more rows, zeroed: their beginning; NULL: no memory. n is not 0. */
static void *rows_add(struct rows *r, size_t n)
{
    void *added;

    if (r->n + n > r->room) {
        size_t room = zb_max_u64(2 * r->room, r->n + n);
        void *grown = realloc(r->data, room * r->row_bytes);

        if (!grown)
            return NULL;
        r->data = grown;
        r->room = room;
    }
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
        to->fetched_bytes = from->fetched_bytes;
        to->pushed_bytes = from->pushed_bytes;
        to->nvme_read_bytes = from->nvme_read_bytes;
        to->nvme_written_bytes = from->nvme_written_bytes;
        to->uid = from->uid;
        to->world = from->world;
        to->attached = from->attached;
        to->keep = from->keep;
        COPY(to->name, from->name);
        COPY(to->state, from->state);
        COPY(to->error, from->error);
    }
    return rc < 0 ? rc : 0;
}

int zc_rows_reply_tiers(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                        int *fds)
{
    const Zp__TiersReply *r = (const Zp__TiersReply *)m;
    void *added;
    int rc = rows_begin(c, call->spec.ret, r->n_rows, 0, &added);

    (void)fds;
    for (size_t i = 0; rc > 0 && i < r->n_rows; i++) {
        struct zc_tier_row *to = (struct zc_tier_row *)added + i;
        const Zp__TierRow *from = r->rows[i];

        to->budget = from->budget;
        to->used = from->used;
        to->params = from->params;
        to->grads = from->grads;
        to->state = from->state;
        to->staging = from->staging;
        to->rings = from->rings;
        COPY(to->name, from->name);
        COPY(to->detail, from->detail);
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
        m.job = (char *)(uintptr_t)job;
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
        m.job = (char *)(uintptr_t)job;
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

void zc_rows_free(void *rows)
{
    free(rows);
}
