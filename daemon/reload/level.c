/*
 * level.c - the request that shows and sets the level of the log.
 */
#include <errno.h>

#include "base/log.h"
#include "daemon/reload/requests.h"
#include "proto/shard.pb-c.h"

ZSD_REQUEST(zsd_log_level, LogLevel)
{
    Zp__LogLevel reply = ZP__LOG_LEVEL__INIT;
    enum zb_log_level level = zb_log_level(), was = level;

    if (*q->level && !zsd_admin(req->conn)) {
        zsd_refuse(req, -EPERM, "only an administrator may set the level of the log");
        return;
    }
    if (*q->level && zb_log_level_parse(q->level, &level) < 0) {
        zsd_refuse(req, -EINVAL, "the level of the log is error, warn, info or debug");
        return;
    }
    if (level != was) {
        zb_log_set_level(ZB_LOG_INFO); /* so that this is logged, whatever the levels are */
        zb_log(ZB_LOG_INFO, "log-level", "was=%s now=%s by=%u", zb_log_level_name(was),
               zb_log_level_name(level), (unsigned)req->conn->uid);
        zb_log_set_level(level);
    }
    reply.level = (char *)zb_log_level_name(level);
    zsd_reply(req, &reply.base, -1);
}
