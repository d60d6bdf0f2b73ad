/*
 * df.c - who has how much of the data files: `zctl df`.
 *
 * A change that changes nothing (store/change.h): between two others, what is in memory is copied on
 * the loop (survey.h), and counted on the catalog's thread.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/show/requests.h"
#include "daemon/show/survey.h"
#include "daemon/store/change.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"

#define DF_ROWS 200u /* of one reply: below 64 KiB with the longest names */

struct df {
    struct zsd_change change;
    struct zsd_req *req;
    uint64_t cursor;
    struct zsd_survey s;
};

static int df_begin(struct zsd_change *c, struct zb_err *err)
{
    struct df *d = zb_container_of(c, struct df, change);

    return zsd_survey_take(c->core, &d->s, err);
}

static int df_fill(struct zsd_change *c, struct zb_err *err)
{
    struct df *d = zb_container_of(c, struct df, change);
    struct zn_catalog_size size = { 0 };

    zsd_survey_sort(&d->s);
    if (zsd_survey_df(&d->s) < 0)
        return zb_fail(err, -ENOMEM, "counting what is stored: %m");
    if (zn_catalog_size(c->core->store->catalog, &size, err) < 0)
        return err->code;
    d->s.catalog_bytes = size.file_bytes;
    return 0;
}

/* One row for each job that the client may see, by number; then what is nobody's, or hidden. */
static void df_answer(struct df *d)
{
    Zp__DfRow rows[DF_ROWS], *list[DF_ROWS], *other;
    Zp__DfReply reply = ZP__DF_REPLY__INIT;
    const struct zsd_survey *s = &d->s;
    bool full = false;

    other = &rows[DF_ROWS - 1];
    zp__df_row__init(other);
    other->working = s->other_working;
    other->reserved = s->other_reserved;
    for (size_t i = 0; i < s->njobs; i++) {
        const struct zsd_survey_job *j = &s->jobs[i];
        bool seen = d->req->conn && zsd_may(d->req->conn, j->uid);
        Zp__DfRow *row = other;

        if (seen && (j->number < d->cursor || full))
            continue;
        if (seen && reply.n_rows == DF_ROWS - 1) {
            reply.cursor = j->number;
            full = true;
            continue;
        }
        if (seen) {
            row = list[reply.n_rows] = &rows[reply.n_rows];
            reply.n_rows++;
            zp__df_row__init(row);
            row->job = zp_str(j->name);
        }
        row->committed += j->committed;
        row->prepared += j->prepared;
        row->snapshots += j->snapshots;
        row->working += j->working;
        row->reserved += j->reserved;
        row->shared += j->shared;
    }
    if (!full)
        list[reply.n_rows++] = other;
    reply.total = s->total_bytes;
    reply.meta = s->total_bytes - s->map_bytes;
    reply.free = s->free_bytes;
    reply.catalog_bytes = s->catalog_bytes;
    reply.rows = list;
    zsd_reply(d->req, &reply.base, -1);
}

static void df_done(struct zsd_change *c, const struct zb_err *err)
{
    struct df *d = zb_container_of(c, struct df, change);

    if (err)
        zsd_reply_err(d->req, err);
    else
        df_answer(d);
    zsd_survey_done(&d->s);
    free(d);
}

ZSD_REQUEST(zsd_df, DfRequest)
{
    struct df *d;

    if (!req->daemon->core->store) {
        zsd_refuse(req, -ENOENT, "this daemon saves nothing: it has no data directory that stays");
        return;
    }
    d = calloc(1, sizeof(*d));
    if (!d) {
        zsd_refuse(req, -ENOMEM, "df");
        return;
    }
    d->req = req;
    d->cursor = q->cursor;
    d->change =
        (struct zsd_change){ .looks = true, .begin = df_begin, .fill = df_fill, .done = df_done };
    zsd_change_start(req->daemon->core, &d->change);
}
