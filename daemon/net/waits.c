/*
 * waits.c - requests that wait for a later request of their own client.
 *
 * A full connection is not read from (conn.c). So these requests must not fill it, because the
 * request that they wait for comes later on the same connection.
 *
 * Separate from conn.c for the same reason as refuse.c.
 */
#include "daemon/net/conn.h"

int zsd_req_waits(struct zsd_req *req, struct zb_err *err)
{
    struct zsd_quota *q;

    if (!req->conn || req->waits)
        return 0;
    q = &req->conn->quota;
    if (zsd_limit_take(q, ZSD_LIMIT_WAITING, 1, err) < 0)
        return err->code;
    if (zsd_limit_take(q, ZSD_LIMIT_WAITING_BYTES, req->promised_bytes, err) < 0) {
        zsd_limit_give(q, ZSD_LIMIT_WAITING, 1);
        return err->code;
    }
    req->waits = true;
    return 0;
}

void zsd_req_waited(struct zsd_req *req)
{
    if (!req->waits)
        return;
    req->waits = false;
    zsd_limit_give(&req->conn->quota, ZSD_LIMIT_WAITING, 1);
    zsd_limit_give(&req->conn->quota, ZSD_LIMIT_WAITING_BYTES, req->promised_bytes);
}
