/*
 * pace.c - how much of the loop's time a process may use while the jobs of others work.
 *
 * MODEL. The turns of conn.c bound how long a client delays the others at a time. But a step of a
 * training job waits for the loop many times, and a client that keeps the loop busy would delay
 * each of them. So, while operations of other jobs are in progress, a process gets one part in
 * ZSD_PACE of the loop's time. How long its frames took to handle, times ZSD_PACE, is added to the
 * time at which more of them may be handled (ready_ns). That time is never more than
 * ZSD_PACE_AHEAD_NS ahead, and as much behind if the process was quiet, which allows a burst.
 *
 * RESTING. Until then the links of the process rest, if others work: they are stalled and in
 * server->resting. Answers are still sent. Frames wait in the socket or in the stream, so nothing
 * is lost, and an end of the connection is handled after them. A timer looks at the list each
 * ZSD_PACE_MS.
 *
 * ACCEPTING is paced like one process, because nobody knows who connects (server.c).
 */
#include "daemon/net/conn_priv.h"

void zsd_pace_charge(uint64_t *ready_ns, uint64_t begin_ns)
{
    uint64_t now_ns = zb_now_ns(), most_ns = now_ns + ZSD_PACE_AHEAD_NS;
    uint64_t from_ns = zb_max_u64(*ready_ns, begin_ns - ZSD_PACE_AHEAD_NS);

    *ready_ns = zb_min_u64(from_ns + (now_ns - begin_ns) * ZSD_PACE, most_ns);
}

static void pace_on_timer(uv_timer_t *timer);

static void pace_start(struct zsd_server *s)
{
    if (!uv_is_active((uv_handle_t *)&s->pace))
        (void)uv_timer_start(&s->pace, pace_on_timer, ZSD_PACE_MS, 0);
}

bool zsd_link_must_rest(const struct zsd_link *l)
{
    const struct zsd_server *s = l->server;

    return !l->dead && s->ops->others(s->daemon, &l->conn) &&
           zb_now_ns() < s->ready_ns[zsd_link_place(l)];
}

void zsd_link_rest(struct zsd_link *l)
{
    if (zb_list_empty(&l->rest_node))
        zb_list_push_back(&l->server->resting, &l->rest_node);
    pace_start(l->server);
}

bool zsd_accept_must_rest(const struct zsd_server *s)
{
    return s->ops->others(s->daemon, NULL) && zb_now_ns() < s->accept_ready_ns;
}

/** Lets links that need not rest any longer continue in the next zsd_server_turn(). */
static void pace_on_timer(uv_timer_t *timer)
{
    struct zsd_server *s = timer->data;
    struct zb_list now, *node;

    zb_list_init(&now);
    zb_list_splice_front(&s->resting, &now);
    while ((node = zb_list_pop_front(&now)) != NULL) {
        struct zsd_link *l = zb_container_of(node, struct zsd_link, rest_node);

        if (zsd_link_must_rest(l))
            zb_list_push_back(&s->resting, node);
        else
            zsd_link_touch(l);
    }
    if (!zb_list_empty(&s->resting))
        pace_start(s);
}
