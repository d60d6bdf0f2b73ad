#include "tests/unit/daemon/core_double.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/core_life.h"
#include "daemon/op/requests.h"
#include "daemon/plan/gpu_params.h"
#include "daemon/reload/requests.h"
#include "daemon/show/requests.h"
#include "proto/frame.h"
#include "proto/shard.pb-c.h"

struct core_double core_double;

static char filler[ZP_BODY_MAX + 4096];

static void reply_bytes(struct zsd_req *req, size_t bytes, int fd)
{
    Zp__JobEvent message = ZP__JOB_EVENT__INIT;

    memset(filler, 'x', sizeof(filler));
    filler[bytes] = '\0';
    message.text = filler;
    zsd_reply(req, &message.base, fd);
}

void core_answer(size_t bytes)
{
    assert(core_double.first < core_double.count);
    reply_bytes(core_double.held[core_double.first++], bytes, -1);
}

void core_answer_all(size_t bytes)
{
    while (core_double.first < core_double.count)
        core_answer(bytes);
}

int zsd_core_new(struct zsd *daemon, struct zb_err *err)
{
    if (core_double.new_rc < 0)
        return zb_fail(err, core_double.new_rc, "the core's double: %m");
    core_double.news++;
    daemon->core = (struct zsd_core *)(void *)&core_double;
    return 0;
}

void zsd_core_free(struct zsd *daemon)
{
    if (!daemon->core)
        return;
    core_double.frees++;
    core_answer_all(0); /* like the real core: no request stays unanswered */
    daemon->core = NULL;
}

void zsd_core_gone(struct zsd_conn *conn)
{
    core_double.gone++;
    for (size_t i = core_double.first; core_double.answer_when_gone && i < core_double.count; i++) {
        if (core_double.held[i]->conn != conn)
            continue;
        reply_bytes(core_double.held[i], 8, -1);
        core_double.count--;
        memmove(&core_double.held[i], &core_double.held[i + 1],
                (core_double.count - i) * sizeof(core_double.held[0]));
        i--;
    }
}

bool zsd_core_turn(struct zsd *daemon)
{
    core_double.turns++;
    zsd_turn_worked(daemon);
    return false;
}

void zsd_core_tick(struct zsd *daemon, uint64_t now_ns)
{
    (void)daemon;
    (void)now_ns;
    core_double.ticks++;
}

bool zsd_core_others(const struct zsd *daemon, const struct zsd_conn *conn)
{
    (void)daemon;
    (void)conn;
    return core_double.others;
}

unsigned zsd_core_busy(const struct zsd *daemon)
{
    (void)daemon;
    return core_double.busy;
}

unsigned zsd_core_jobs(const struct zsd *daemon)
{
    (void)daemon;
    return core_double.jobs;
}

bool zsd_core_ticks(const struct zsd *daemon)
{
    return zsd_core_busy(daemon) > 0;
}

void zsd_core_last(struct zsd *daemon)
{
    (void)daemon;
}

void zsd_core_ending_text(const struct zsd *daemon, char *ret, size_t size)
{
    (void)daemon;
    (void)snprintf(ret, size, "busy with %u", core_double.busy);
}

void zsd_core_farewell(struct zsd *daemon)
{
    (void)daemon;
    core_double.farewells++;
    core_double.busy += core_double.farewell_busy;
    core_answer_all(5);
}

void zsd_core_leave(struct zsd *daemon)
{
    (void)daemon;
    core_double.leaving = true;
}

bool zsd_core_waits(const struct zsd *daemon)
{
    (void)daemon;
    return core_double.waits;
}

void zsd_core_drain(struct zsd *daemon)
{
    (void)daemon;
    core_double.draining = true;
}

void zsd_fetch(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    core_double.handled++;
    assert(core_double.count < CORE_HELD_MAX);
    core_double.held[core_double.count++] = req;
}

void zsd_list(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    core_double.handled++;
    reply_bytes(req, core_double.list_bytes, -1);
}

void zsd_jobs(struct zsd_req *req, const ProtobufCMessage *message)
{
    struct zb_err err = { 0 };

    (void)message;
    core_double.handled++;
    (void)zb_fail(&err, -ENOENT, "no such job");
    zsd_reply_err(req, &err);
}

void zsd_job_open(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    core_double.handled++;
    reply_bytes(req, 0, core_double.fd);
}

void zsd_tiers(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    core_double.handled++;
    reply_bytes(req, ZP_BODY_MAX, -1);
}

void zsd_norms(struct zsd_req *req, const ProtobufCMessage *message)
{
    Zp__JobEvent event = ZP__JOB_EVENT__INIT;

    (void)message;
    core_double.handled++;
    event.job = 7;
    zsd_event(req->conn, ZP_EVENT_PEER_LOST, &event.base);
    zsd_reply(req, NULL, -1);
}

void zsd_release(struct zsd_conn *conn, const ProtobufCMessage *message)
{
    (void)conn;
    (void)message;
    core_double.released++;
}

#define ANSWERED_AT_ONCE(name)                                      \
    void name(struct zsd_req *req, const ProtobufCMessage *message) \
    {                                                               \
        (void)message;                                              \
        core_double.handled++;                                      \
        zsd_reply(req, NULL, -1);                                   \
    }

ANSWERED_AT_ONCE(zsd_unit_define)
ANSWERED_AT_ONCE(zsd_shard_register)
ANSWERED_AT_ONCE(zsd_ready)
ANSWERED_AT_ONCE(zsd_job_close)
ANSWERED_AT_ONCE(zsd_job_destroy)
ANSWERED_AT_ONCE(zsd_job_share)
ANSWERED_AT_ONCE(zsd_drive_set)
ANSWERED_AT_ONCE(zsd_tier_set)
ANSWERED_AT_ONCE(zsd_gpu_share)
ANSWERED_AT_ONCE(zsd_write)
ANSWERED_AT_ONCE(zsd_read)
ANSWERED_AT_ONCE(zsd_push)
ANSWERED_AT_ONCE(zsd_note_put)
ANSWERED_AT_ONCE(zsd_note_get)
ANSWERED_AT_ONCE(zsd_step)
ANSWERED_AT_ONCE(zsd_skip)
ANSWERED_AT_ONCE(zsd_step_begin)
ANSWERED_AT_ONCE(zsd_step_classes)
ANSWERED_AT_ONCE(zsd_tensor_norms)
ANSWERED_AT_ONCE(zsd_step_tensors)
ANSWERED_AT_ONCE(zsd_unit_sums)
ANSWERED_AT_ONCE(zsd_job_about)
ANSWERED_AT_ONCE(zsd_job_optimizer)
ANSWERED_AT_ONCE(zsd_abandon)
ANSWERED_AT_ONCE(zsd_stat)
ANSWERED_AT_ONCE(zsd_commit)
ANSWERED_AT_ONCE(zsd_progress)
ANSWERED_AT_ONCE(zsd_snapshot)
ANSWERED_AT_ONCE(zsd_snapshots)
ANSWERED_AT_ONCE(zsd_rollback)
ANSWERED_AT_ONCE(zsd_clone)
ANSWERED_AT_ONCE(zsd_snapshot_destroy)
ANSWERED_AT_ONCE(zsd_reader_open)
ANSWERED_AT_ONCE(zsd_reader_unit)
ANSWERED_AT_ONCE(zsd_reader_read)
ANSWERED_AT_ONCE(zsd_reader_close)
ANSWERED_AT_ONCE(zsd_scrub)
ANSWERED_AT_ONCE(zsd_fsck)
ANSWERED_AT_ONCE(zsd_df)
ANSWERED_AT_ONCE(zsd_top)
ANSWERED_AT_ONCE(zsd_health)
ANSWERED_AT_ONCE(zsd_metrics)
ANSWERED_AT_ONCE(zsd_quota_list)
ANSWERED_AT_ONCE(zsd_quota_set)
ANSWERED_AT_ONCE(zsd_settings)
ANSWERED_AT_ONCE(zsd_log_level)
ANSWERED_AT_ONCE(zsd_restart)
ANSWERED_AT_ONCE(zsd_log_events)
