/*
 * job.c - jobs and their ranks: lookup, states, holds, events. See job.h for the states and
 * invariants. op/open.c, op/define.c and op/ready.c set up a job; op/end.c ends it.
 */
#include "daemon/job/job.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/shard.h"
#include "daemon/store/store.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"

/* ---- lookup */

struct zsd_job *zsd_job_by_name(struct zsd_core *core, uid_t uid, const char *name)
{
    zb_list_each(pos, &core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->state != ZSD_ENDED && job->uid == uid && strcmp(job->name, name) == 0)
            return job;
    }
    return NULL;
}

bool zsd_job_name_coming(const struct zsd_core *core, uid_t uid, const char *name)
{
    if (!core->store)
        return false;
    zb_list_each(pos, &core->store->saved)
    {
        const struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

        if (!s->gone && s->uid == uid && strcmp(s->name, name) == 0 && !zsd_saved_kept(s) &&
            (s->coming || (s->job && s->job->state == ZSD_ENDED && s->job->commit)))
            return true;
    }
    return false;
}

/* The users who have a job of this name, each once. */
struct namesakes {
    uid_t uids[8];
    unsigned n; /* may be more than the list holds */
};

static void namesakes_add(struct namesakes *all, uid_t uid)
{
    for (unsigned i = 0; i < all->n && i < ZB_COUNT(all->uids); i++)
        if (all->uids[i] == uid)
            return;
    if (all->n < ZB_COUNT(all->uids))
        all->uids[all->n] = uid;
    all->n++;
}

static void namesakes_find(const struct zsd_core *core, const char *name, struct namesakes *ret)
{
    zb_list_each(pos, &core->jobs->list)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->state != ZSD_ENDED && strcmp(job->name, name) == 0)
            namesakes_add(ret, job->uid);
    }
    if (core->store)
        zb_list_each(pos, &core->store->saved)
        {
            const struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

            if (zsd_saved_kept(s) && !s->gone && !s->image && strcmp(s->name, name) == 0)
                namesakes_add(ret, s->uid);
        }
}

static int named_refuse(const char *name, const struct namesakes *all, struct zb_err *err)
{
    char list[192];
    size_t len = 0;

    for (unsigned i = 0; i < all->n && i < ZB_COUNT(all->uids) && len < sizeof(list); i++)
        len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%u/%.16s%s", i > 0 ? ", " : "",
                                (unsigned)all->uids[i], name, strlen(name) > 16 ? "..." : "");
    return zb_fail(err, -EINVAL, "several users have a job '%s': name its owner, as in %s%s", name,
                   list, all->n > ZB_COUNT(all->uids) ? ", ..." : "");
}

int zsd_job_named(const struct zsd_req *req, uint64_t owner, const char *name,
                  struct zsd_named *ret, struct zb_err *err)
{
    struct zsd_core *core = req->daemon->core;
    uid_t own = req->conn->uid;
    struct namesakes all = { .n = 0 };

    *ret = (struct zsd_named){ .uid = own, .name = name };
    if (owner > (uint64_t)UINT32_MAX + 1)
        return zb_fail(err, -EINVAL, "an owner with the uid %llu", (unsigned long long)owner - 1);
    if (owner > 0)
        ret->uid = (uid_t)(owner - 1);
    if (owner > 0 || name[0] == '\0' || !zsd_admin(req->conn) || zsd_job_by_name(core, own, name) ||
        zsd_saved_by_name(core, own, name))
        return 0;
    namesakes_find(core, name, &all);
    if (all.n > 1)
        return named_refuse(name, &all, err);
    if (all.n == 1)
        ret->uid = all.uids[0];
    return 0;
}

bool zsd_job_find(struct zsd_req *req, uint64_t owner, const char *name, struct zsd_named *named,
                  struct zsd_saved **saved, struct zsd_job **job)
{
    struct zb_err err = { 0 };

    if (zsd_job_named(req, owner, name, named, &err) < 0) {
        zsd_reply_err(req, &err);
        return false;
    }
    *saved = zsd_saved_by_name(req->daemon->core, named->uid, name);
    *job = zsd_job_by_name(req->daemon->core, named->uid, name);
    return true;
}

/* The rank of this connection. NULL and err: it has none, or its job has ended, or it is still
 * being opened. */
static struct zsd_member *member_alive(struct zsd_conn *conn, struct zb_err *err)
{
    struct zsd_member *m = conn->member;

    if (!m) {
        (void)zb_fail(err, -ENOENT, "this connection has opened no job");
        return NULL;
    }
    if (m->job->state == ZSD_ENDED) {
        (void)zb_fail(err, m->job->why.code, "%s", m->job->why.text);
        return NULL;
    }
    if (m->open_req) {
        (void)zb_fail(err, -EBUSY, "rank %u of job '%s' is still being opened", m->rank,
                      m->job->name);
        return NULL;
    }
    return m;
}

struct zsd_member *zsd_member_of(struct zsd_req *req, uint64_t job)
{
    struct zb_err err = { 0 };
    struct zsd_member *m = member_alive(req->conn, &err);

    if (m && m->job->number != job) {
        (void)zb_fail(&err, -ENOENT, "job %llu is not the one that this connection has opened",
                      (unsigned long long)job);
        m = NULL;
    }
    if (!m)
        zsd_reply_err(req, &err);
    return m;
}

struct zsd_shard *zsd_shard_find(struct zsd_conn *conn, uint64_t id, struct zb_err *err)
{
    struct zsd_member *m = member_alive(conn, err);
    uint64_t index = id & UINT32_MAX;

    if (!m)
        return NULL;
    if (id >> 32 != m->job->number || index >= m->job->nshards) {
        (void)zb_fail(err, -ENOENT, "job '%s' has no shard %llu", m->job->name,
                      (unsigned long long)id);
        return NULL;
    }
    if (m->job->state != ZSD_READY && m->job->state != ZSD_STEPPING) {
        (void)zb_fail(err, -EBUSY,
                      "job '%s' is not ready: not every rank has registered its shards",
                      m->job->name);
        return NULL;
    }
    return m->job->shards[index];
}

struct zsd_shard *zsd_shard_of(struct zsd_req *req, uint64_t id)
{
    struct zb_err err = { 0 };
    struct zsd_shard *s = zsd_shard_find(req->conn, id, &err);

    if (!s)
        zsd_reply_err(req, &err);
    return s;
}

struct zsd_shard *zsd_shard_own(struct zsd_req *req, uint64_t id, const char *verb)
{
    const struct zsd_member *m = req->conn->member;
    struct zsd_shard *s = zsd_shard_of(req, id); /* NULL: req is answered, and gone */

    if (!s || s->rank == m->rank)
        return s;
    zsd_refuse(req, -EPERM,
               "shard %u of unit '%s' of job '%s' is rank %u's: rank %u may read it, not %s it",
               zsd_shard_number(s), s->unit->name, s->job->name, s->rank, m->rank, verb);
    return NULL;
}

void *zsd_staging_at(struct zsd_member *m, uint64_t off, uint64_t len_bytes)
{
    if (off % 64 != 0 || !zb_range_inside(off, len_bytes, m->staging.bytes))
        return NULL;
    return m->staging.base + off;
}

/* ---- holds and states */

void zsd_job_hold(struct zsd_job *job)
{
    job->inflight++;
    job->core->in_progress++;
    job->core->job_holds++;
}

void zsd_job_unhold(struct zsd_job *job)
{
    assert(job->inflight > 0);
    job->inflight--;
    job->core->in_progress--;
    job->core->job_holds--;
    if (job->inflight == 0 && job->state == ZSD_ENDED)
        zsd_defer(job->core, &job->over);
}

void zsd_job_active(struct zsd_job *job)
{
    job->active++;
}

void zsd_job_idle(struct zsd_job *job)
{
    assert(job->active > 0);
    if (--job->active == 0)
        zsd_defer(job->core, &job->wake);
}

bool zsd_job_live(const struct zsd_job *job)
{
    return job->live == job->nshards;
}

bool zsd_job_writing(const struct zsd_job *job)
{
    return job->writing > 0;
}

void zsd_job_committed(struct zsd_job *job)
{
    zsd_defer(job->core, &job->wake);
    zsd_room_changed(job->core);
}

void zsd_job_stepped(struct zsd_job *job)
{
    zsd_defer(job->core, &job->wake);
}

void zsd_job_to(struct zsd_job *job, enum zsd_job_state state)
{
    static const bool allowed[ZSD_ENDED + 1][ZSD_ENDED + 1] = {
        [ZSD_DEFINING] = { [ZSD_PLACING] = true, [ZSD_ENDED] = true },
        [ZSD_PLACING] = { [ZSD_LOADING] = true, [ZSD_READY] = true, [ZSD_ENDED] = true },
        [ZSD_LOADING] = { [ZSD_READY] = true, [ZSD_ENDED] = true },
        [ZSD_READY] = { [ZSD_STEPPING] = true,
                        [ZSD_LOADING] = true,
                        [ZSD_READY] = true,
                        [ZSD_ENDED] = true },
        [ZSD_STEPPING] = { [ZSD_READY] = true, [ZSD_ENDED] = true },
    };

    assert(allowed[job->state][state]);
    job->state = state;
}

void zsd_job_ended(struct zsd_job *job, const struct zb_err *why)
{
    zsd_job_to(job, ZSD_ENDED);
    job->why = *why;
}

void zsd_job_moved(struct zsd_job *job, uint64_t read_bytes, uint64_t written_bytes)
{
    job->nvme_read_bytes += read_bytes;
    job->nvme_written_bytes += written_bytes;
}

void zsd_job_fail(struct zsd_job *job, const struct zb_err *why)
{
    (void)zb_fail(&job->failed, why->code, "%s", why->text);
    zsd_defer(job->core, &job->over);
}

/* ---- members */

struct zsd_member *zsd_member_new(struct zsd_job *job, struct zsd_conn *conn, uint32_t rank)
{
    struct zsd_member *m = calloc(1, sizeof(*m));

    if (!m)
        return NULL;
    m->job = job;
    m->conn = conn;
    m->rank = rank;
    m->staging = ZSD_ARENA_NONE;
    zb_list_init(&m->pins);
    zb_list_init(&m->fetches);
    zb_list_push_back(&job->members, &m->node);
    conn->member = m;
    (void)snprintf(conn->job, sizeof(conn->job), "%s", job->name);
    return m;
}

struct zsd_member *zsd_member_by_rank(struct zsd_job *job, uint32_t rank)
{
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        if (m->rank == rank && m->conn)
            return m;
    }
    return NULL;
}

uint32_t zsd_job_attached(const struct zsd_job *job)
{
    uint32_t n = 0;

    zb_list_each(pos, &job->members)
        n += zb_container_of(pos, struct zsd_member, node)->conn != NULL;
    return n;
}

void zsd_job_tell(struct zsd_job *job, uint16_t event, uint32_t rank, const struct zb_err *why)
{
    Zp__JobEvent message = ZP__JOB_EVENT__INIT;

    message.job = job->number;
    message.rank = rank;
    message.code = why->code;
    message.text = zp_str(why->text);
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        if (m->conn && !m->open_req && !(event == ZP_EVENT_PEER_LOST && m->rank == rank))
            zsd_event(m->conn, event, &message.base);
    }
}
