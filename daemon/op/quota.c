/*
 * quota.c - requests about the limits of users: the list, and setting one. net/limits.h has the
 * limits, and what counts.
 */
#include <errno.h>

#include "base/log.h"
#include "daemon/net/limits.h"
#include "daemon/op/requests.h"
#include "daemon/run/turn.h"
#include "proto/shard.pb-c.h"

#define QUOTA_ROWS 200u

/* The user with the smallest uid, from `uid` on, that this client sees; NULL: there is none. */
static const struct zsd_user *quota_next(const struct zsd_req *req, uint64_t uid)
{
    const struct zsd_user *found = NULL;

    zb_list_each(pos, &req->daemon->limits->users)
    {
        const struct zsd_user *u = zb_container_of(pos, struct zsd_user, quota.node);

        if (u->quota.uid >= uid && zsd_may(req->conn, u->quota.uid) &&
            (!found || u->quota.uid < found->quota.uid))
            found = u;
    }
    return found;
}

static void quota_row(const struct zsd_user *u, Zp__QuotaRow *row)
{
    uint64_t used[ZSD_HELDS], max[ZSD_HELDS];
    bool own;

    zp__quota_row__init(row);
    for (enum zsd_holding i = 0; i < ZSD_HELDS; i++) {
        used[i] = zsd_user_used(u, i);
        max[i] = zsd_user_max(u, i, &own);
        max[i] = max[i] == ZSD_NO_MAX ? 0 : max[i];
        row->own = row->own || own;
    }
    row->uid = u->quota.uid;
    row->host_bytes = used[ZSD_HELD_HOST];
    row->host_max = max[ZSD_HELD_HOST];
    row->nvme_bytes = used[ZSD_HELD_NVME];
    row->nvme_max = max[ZSD_HELD_NVME];
    row->gpu_bytes = used[ZSD_HELD_GPU];
    row->gpu_max = max[ZSD_HELD_GPU];
    row->jobs = (uint32_t)used[ZSD_HELD_JOBS];
    row->jobs_max = (uint32_t)max[ZSD_HELD_JOBS];
    row->exempt = u->quota.trusted;
}

/* Users with a connection, a job or a saved job; for others than administrators, themselves. */
ZSD_REQUEST(zsd_quota_list, QuotaRequest)
{
    Zp__QuotaRow rows[QUOTA_ROWS], *list[QUOTA_ROWS];
    Zp__QuotaReply reply = ZP__QUOTA_REPLY__INIT;
    const struct zsd_user *u;

    for (uint64_t at = q->cursor; req->daemon->limits && (u = quota_next(req, at)) != NULL;
         at = (uint64_t)u->quota.uid + 1) {
        if (reply.n_rows == QUOTA_ROWS) {
            reply.cursor = u->quota.uid;
            break;
        }
        list[reply.n_rows] = &rows[reply.n_rows];
        quota_row(u, &rows[reply.n_rows++]);
    }
    reply.rows = list;
    zsd_reply(req, &reply.base, -1);
}

ZSD_REQUEST(zsd_quota_set, QuotaSet)
{
    struct zsd_limits *l = req->daemon->limits;
    const bool set[ZSD_HELDS] = { q->host, q->nvme, q->gpu, q->jobs };
    const uint64_t max[ZSD_HELDS] = { q->host_max, q->nvme_max, q->gpu_max, q->jobs_max };
    struct zsd_user_quota *row;
    struct zsd_quota user;

    if (!zsd_admin(req->conn)) {
        zsd_refuse(req, -EPERM, "only an administrator may set a user's limits");
        return;
    }
    /* the user is listed from now on */
    if (l && zsd_quota_join(req->daemon, &user, ZSD_LEVEL_CONN, q->uid) == 0)
        zsd_quota_leave(&user);
    row = l ? zsd_quotas_add(&l->quotas, q->uid) : NULL;
    if (!row) {
        zsd_refuse(req, -ENOMEM, "the limits of user %u", q->uid);
        return;
    }
    for (enum zsd_holding i = 0; i < ZSD_HELDS; i++) {
        if (!set[i])
            continue;
        row->set[i] = true;
        l->quotas.set_at_run_time = true;
        row->max[i] = max[i] > 0 ? max[i] : ZSD_NO_MAX;
        zb_log(ZB_LOG_INFO, "quota-set", "uid=%u limit=%s max=%llu by=%u", q->uid,
               zsd_holding_name(i), (unsigned long long)max[i], (unsigned)req->conn->uid);
    }
    zsd_room_changed(req->daemon->core); /* opens and placements that wait may fit now */
    zsd_reply(req, NULL, -1);
}
