/*
 * dispatch.c - from a frame to its handler: the table of methods, hello and ping, and the answers
 * to malformed requests. The handlers are in op/, show/ and plan/gpu_params.c.
 */
#include "daemon/dispatch.h"

#include <errno.h>
#include <unistd.h>

#include "daemon/op/requests.h"
#include "daemon/plan/gpu_params.h"
#include "daemon/reload/requests.h"
#include "daemon/show/requests.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"
#include "proto/wire.h"

static zsd_handler dispatch_hello, dispatch_ping;

typedef void zsd_oneway(struct zsd_conn *conn, const ProtobufCMessage *message);

static const struct row {
    zsd_handler *handler; /* of a request */
    zsd_oneway *oneway;   /* of a one-way message */
    bool changes;         /* what is saved, or leads to it: refused if that is read-only */
} rows[ZP_METHOD_END] = {
    [ZP_HELLO] = { .handler = dispatch_hello },
    [ZP_PING] = { .handler = dispatch_ping },
    [ZP_JOB_OPEN] = { .handler = zsd_job_open, .changes = true },
    [ZP_UNIT_DEFINE] = { .handler = zsd_unit_define },
    [ZP_SHARD_REGISTER] = { .handler = zsd_shard_register },
    [ZP_READY] = { .handler = zsd_ready },
    [ZP_WRITE] = { .handler = zsd_write },
    [ZP_READ] = { .handler = zsd_read },
    [ZP_FETCH] = { .handler = zsd_fetch },
    [ZP_RELEASE] = { .oneway = zsd_release },
    [ZP_PUSH] = { .handler = zsd_push },
    [ZP_NORMS] = { .handler = zsd_norms },
    [ZP_NOTE_PUT] = { .handler = zsd_note_put },
    [ZP_NOTE_GET] = { .handler = zsd_note_get },
    [ZP_STEP] = { .handler = zsd_step },
    [ZP_SKIP] = { .handler = zsd_skip },
    [ZP_JOB_CLOSE] = { .handler = zsd_job_close },
    [ZP_JOB_DESTROY] = { .handler = zsd_job_destroy, .changes = true },
    [ZP_LIST] = { .handler = zsd_list },
    [ZP_JOBS] = { .handler = zsd_jobs },
    [ZP_TIERS] = { .handler = zsd_tiers },
    [ZP_STAT] = { .handler = zsd_stat },
    [ZP_COMMIT] = { .handler = zsd_commit, .changes = true },
    [ZP_PROGRESS] = { .handler = zsd_progress },
    [ZP_SNAPSHOT] = { .handler = zsd_snapshot, .changes = true },
    [ZP_SNAPSHOTS] = { .handler = zsd_snapshots },
    [ZP_ROLLBACK] = { .handler = zsd_rollback, .changes = true },
    [ZP_CLONE] = { .handler = zsd_clone, .changes = true },
    [ZP_SNAPSHOT_DESTROY] = { .handler = zsd_snapshot_destroy, .changes = true },
    [ZP_READER_OPEN] = { .handler = zsd_reader_open },
    [ZP_READER_UNIT] = { .handler = zsd_reader_unit },
    [ZP_READER_READ] = { .handler = zsd_reader_read },
    [ZP_READER_CLOSE] = { .handler = zsd_reader_close },
    [ZP_SCRUB] = { .handler = zsd_scrub },
    [ZP_FSCK] = { .handler = zsd_fsck },
    [ZP_DF] = { .handler = zsd_df },
    [ZP_STEP_BEGIN] = { .handler = zsd_step_begin },
    [ZP_TOP] = { .handler = zsd_top },
    [ZP_JOB_SHARE] = { .handler = zsd_job_share },
    [ZP_TIER_SET] = { .handler = zsd_tier_set },
    [ZP_DRIVE_SET] = { .handler = zsd_drive_set },
    [ZP_GPU_SHARE] = { .handler = zsd_gpu_share },
    [ZP_STEP_CLASSES] = { .handler = zsd_step_classes },
    [ZP_JOB_OPTIMIZER] = { .handler = zsd_job_optimizer },
    [ZP_ABANDON] = { .handler = zsd_abandon },
    [ZP_HEALTH] = { .handler = zsd_health },
    [ZP_METRICS] = { .handler = zsd_metrics },
    [ZP_QUOTA] = { .handler = zsd_quota_list },
    [ZP_QUOTA_SET] = { .handler = zsd_quota_set },
    [ZP_SETTINGS] = { .handler = zsd_settings },
    [ZP_LOG_LEVEL] = { .handler = zsd_log_level },
    [ZP_RESTART] = { .handler = zsd_restart },
    [ZP_LOG_EVENTS] = { .handler = zsd_log_events },
    [ZP_TENSOR_NORMS] = { .handler = zsd_tensor_norms },
    [ZP_STEP_TENSORS] = { .handler = zsd_step_tensors },
    [ZP_UNIT_SUMS] = { .handler = zsd_unit_sums },
    [ZP_JOB_ABOUT] = { .handler = zsd_job_about },
};

/* ---- hello and ping */

/** Copies a name for logs and tables: printable ASCII without quotes, truncated to size. */
static void clean_program(char *to, size_t size, const char *from)
{
    size_t n = 0;

    for (; from[n] && n + 1 < size; n++)
        to[n] = from[n] >= ' ' && from[n] <= '~' && from[n] != '"' && from[n] != '\\' ? from[n]
                                                                                      : '?';
    to[n] = '\0';
}

static void dispatch_hello(struct zsd_req *req, const ProtobufCMessage *message)
{
    const Zp__Hello *hello = (const Zp__Hello *)message;
    struct zsd *daemon = req->daemon;
    Zp__HelloReply reply = ZP__HELLO_REPLY__INIT;
    char server[] = "zshardd " ZSHARD_VERSION;

    clean_program(req->conn->program, sizeof(req->conn->program), hello->program);
    req->conn->greeted = true;
    reply.version = (uint32_t)zb_min_u64(hello->version_max, ZP_VERSION_MAX);
    reply.server = server;
    reply.instance.data = daemon->instance;
    reply.instance.len = sizeof(daemon->instance);
    reply.page_elems = daemon->config.page_elems;
    reply.block_elems = ZB_BLOCK_ELEMS;
    reply.shards_max = ZP_SHARDS_MAX;
    reply.pid = (uint64_t)getpid();
    reply.features = ZP_FEATURE_OWNER | ZP_FEATURE_SUMS | ZP_FEATURE_MUON_ENGINE;
    zsd_reply(req, &reply.base, -1);
}

static bool hello_fits(const Zp__Hello *hello)
{
    return hello->version_min <= hello->version_max && hello->version_min <= ZP_VERSION_MAX &&
           hello->version_max >= ZP_VERSION_MIN;
}

static void dispatch_ping(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    zsd_reply(req, NULL, -1);
}

/* ---- frames */

static int refuse_hello(struct zsd_req *req, const ProtobufCMessage *message)
{
    const Zp__Hello *hello = (const Zp__Hello *)message;
    struct zb_err err = { 0 };

    (void)zb_fail(&err, -EPROTONOSUPPORT,
                  "no version in common: the client speaks %u to %u, this daemon %u to %u",
                  hello->version_min, hello->version_max, ZP_VERSION_MIN, ZP_VERSION_MAX);
    zsd_reply_err(req, &err);
    return 1;
}

/** A malformed body is -EPROTO, not -EBADMSG, which is for stored bytes (PROTOCOL.md, section
 * 4). */
static int decode(struct zsd *daemon, struct zp_arena *arena, const struct zp_method_info *info,
                  const uint8_t *body, size_t body_bytes, const ProtobufCMessage **ret,
                  struct zb_err *err)
{
    int rc = zp_decode(arena, info->request, body, body_bytes, ret, err);

    if (rc < 0) {
        daemon->stats.requests_malformed++;
        err->code = rc == -E2BIG ? -EMSGSIZE : -EPROTO;
    }
    return rc;
}

/** Answers a request with err. */
static int refuse(struct zsd_req *req, const struct zb_err *err)
{
    zsd_reply_err(req, err);
    return 0;
}

static int dispatch_request(struct zsd_req *req, struct zp_arena *arena, const uint8_t *body,
                            size_t body_bytes)
{
    const struct zp_method_info *info = zp_method_info(req->method);
    const ProtobufCMessage *message;
    struct zb_err err = { 0 };

    req->daemon->turns.work++;
    if (!req->conn->greeted && req->method != ZP_HELLO) {
        (void)zb_fail(&err, -EPROTO, "the first request is hello");
        zsd_reply_err(req, &err);
        return 1;
    }
    if (!info) {
        req->daemon->stats.requests_unknown++;
        (void)zb_fail(&err, -ENOSYS, "this daemon knows no method %u", req->method);
        return refuse(req, &err);
    }
    if (req->conn->greeted && req->method == ZP_HELLO) {
        (void)zb_fail(&err, -EPROTO, "hello was already sent");
        return refuse(req, &err);
    }
    if (!rows[req->method].handler) {
        (void)zb_fail(&err, -EINVAL, "%s is one-way: it has no answer", info->name);
        return refuse(req, &err);
    }
    if (req->conn->kept_place && (req->method == ZP_JOB_OPEN || req->method == ZP_READER_OPEN)) {
        (void)zb_fail(&err, -EUSERS,
                      "this daemon serves %u clients already (clients_max); the few places beyond "
                      "are for its administrator, and %s is refused there",
                      req->daemon->config.clients_max, info->name);
        return refuse(req, &err);
    }
    if (req->daemon->read_only && rows[req->method].changes) {
        (void)zb_fail(&err, -EROFS,
                      "the daemon was started with --read-only: it serves what is saved, and %s is "
                      "refused",
                      info->name);
        return refuse(req, &err);
    }
    if (decode(req->daemon, arena, info, body, body_bytes, &message, &err) < 0)
        return refuse(req, &err);
    if (req->method == ZP_HELLO && !hello_fits((const Zp__Hello *)message))
        return refuse_hello(req, message);
    rows[req->method].handler(req, message);
    return 0;
}

/** One-way messages have no answer, so one that is too long violates the protocol. */
static int oneway_fits(uint16_t method, const ProtobufCMessage *message, struct zb_err *err)
{
    const Zp__Release *q = (const Zp__Release *)(const void *)message;

    if (method == ZP_RELEASE && q->n_shards > ZP_SHARDS_MAX)
        return zb_fail(err, -EPROTO, "a release of %zu shards: %u in one frame at most",
                       q->n_shards, ZP_SHARDS_MAX);
    return 0;
}

static int dispatch_oneway(struct zsd_conn *conn, struct zp_arena *arena, uint16_t method,
                           const uint8_t *body, size_t body_bytes, struct zb_err *err)
{
    const struct zp_method_info *info = zp_method_info(method);
    const ProtobufCMessage *message;
    struct zb_err why = { 0 };

    conn->daemon->turns.work++;
    if (!conn->greeted)
        return zb_fail(err, -EPROTO, "a one-way message before hello");
    if (!info) {
        conn->daemon->stats.requests_unknown++;
        return 0;
    }
    if (!rows[method].oneway)
        return zb_fail(err, -EPROTO, "%s came as a one-way message", info->name);
    if (decode(conn->daemon, arena, info, body, body_bytes, &message, &why) < 0) {
        zsd_conn_log(conn, ZB_LOG_WARN, "oneway-malformed", "why=\"%s\"", why.text);
        return 0;
    }
    if (oneway_fits(method, message, err) < 0)
        return -EPROTO;
    rows[method].oneway(conn, message);
    return 0;
}

const struct zsd_conn_ops zsd_dispatch_ops = {
    .request = dispatch_request,
    .oneway = dispatch_oneway,
    .others = zsd_core_others,
    .gone = zsd_core_gone,
};
