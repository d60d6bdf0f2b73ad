/*
 * send.c - sending: whether calls may start, collected releases, queued bytes.
 *
 * If sending fails, `deaf` is set. The end of the connection is detected while receiving (conn.c),
 * so that the daemon's last messages are read first.
 */
#include <errno.h>

#include "client/conn/conn.h"

int zc_conn_usable(struct zc_client *c)
{
    switch (c->state) {
    case ZC_CLOSED:
        return zc_fail(c, -ENOTCONN, "this handle has no connection");
    case ZC_OPEN:
        return 0;
    case ZC_LOST:
        break;
    }
    c->err = c->lost;
    return c->lost.code;
}

void zc_conn_send(struct zc_client *c)
{
    if (!c->deaf && zp_stream_pending(c->stream) > 0 && zp_stream_write(c->stream) < 0)
        c->deaf = true;
}

int zc_conn_releases(struct zc_client *c)
{
    struct zp_frame frame = { .method = ZP_RELEASE, .kind = ZP_ONEWAY };
    Zp__Release m = ZP__RELEASE__INIT;
    int rc;

    if (c->nreleases == 0)
        return 0;
    m.n_shards = c->nreleases;
    m.shards = c->releases;
    rc = zp_stream_send(c->stream, frame, &m.base, NULL, NULL, 0);
    if (rc == 0)
        c->nreleases = 0;
    return rc;
}
