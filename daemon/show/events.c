/*
 * events.c - the request for the last events of the log.
 *
 * A client follows the log by asking again, with the number of the last event that it has: the daemon
 * keeps nothing for it. A request looks at ZSD_RECENT_MAX events at most.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/run/recent.h"
#include "daemon/show/requests.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"

#define EVENT_ROWS 64u /* of one reply: below 64 KiB with the longest texts */

struct event_rows {
    struct zsd_recent events[EVENT_ROWS];
    Zp__LogEvent rows[EVENT_ROWS], *list[EVENT_ROWS];
    size_t n;
};

/** Events that name a user are that user's and the administrators'; the others are administrators'. */
static bool event_seen(const struct zsd_conn *conn, const struct zsd_recent *e)
{
    return e->has_uid ? zsd_may(conn, e->uid) : zsd_admin(conn);
}

static void event_row(const struct zsd_recent *e, bool lost, Zp__LogEvent *row)
{
    zp__log_event__init(row);
    row->number = e->number;
    row->time_ms = e->time_ms;
    row->level = zp_str(zb_log_level_name(e->level));
    row->event = zp_str(e->event);
    row->job = zp_str(e->job);
    row->text = zp_str(e->text);
    row->has_user = e->has_uid;
    row->uid = e->uid;
    row->lost = lost;
}

/** Collects events after a number. Returns the cursor of the next reply; 0: there are no more. */
static uint64_t events_collect(const struct zsd_conn *conn, uint64_t after, struct event_rows *to)
{
    struct zsd_recent *e = &to->events[0];
    bool lost = false;

    while (to->n < EVENT_ROWS && zsd_recent_next(after, e)) {
        lost |= after > 0 && e->number != after + 1;
        after = e->number;
        if (!event_seen(conn, e))
            continue;
        event_row(e, lost, &to->rows[to->n]);
        to->list[to->n] = &to->rows[to->n];
        e = &to->events[++to->n];
        lost = false;
    }
    return to->n == EVENT_ROWS ? after : 0;
}

ZSD_REQUEST(zsd_log_events, LogEventsRequest)
{
    Zp__LogEventsReply reply = ZP__LOG_EVENTS_REPLY__INIT;
    struct event_rows *rows = malloc(sizeof(*rows));

    if (!rows) {
        zsd_refuse(req, -ENOMEM, "the events");
        return;
    }
    rows->n = 0;
    reply.cursor = events_collect(req->conn, q->cursor, rows);
    reply.rows = rows->list;
    reply.n_rows = rows->n;
    zsd_reply(req, &reply.base, -1);
    free(rows);
}
