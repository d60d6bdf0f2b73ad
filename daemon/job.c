/*
 * job.c - the life of a job: ranks arrive, define, register, are ready, leave. See job.h for the
 * states and invariants.
 *
 * ARENAS are made and ended on a compute thread (they touch every page), by struct arena_task; each
 * holds its job (J1) while it runs.
 *
 * PARKED OPENS. A job-open that cannot be decided yet waits in core->opens, and is looked at again
 * whenever a job has ended, memory has come back, or a commit is over: while an incarnation of its
 * job is still ending; while the job commits, to be made again for another world; and when there is
 * no room for its staging but bytes are on their way back.
 *
 * WHO ANSWERS. A request that must wait (open, ready, step) is kept by its member; whoever ends the
 * wait answers it, exactly once, and clears the field.
 */
#include "daemon/job.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/size.h"
#include "daemon/paths.h"
#include "daemon/store.h"
#include "proto/codec.h"

static void opens_gone(struct zsd_conn *conn);
static void opens_refuse(struct zsd_core *core);
static void place_again(struct zsd_job *job);
static void job_forget_if_over(struct zsd_job *job);
static void ready_all(struct zsd_job *job);
static void ready_resume(struct zsd_job *job);
static void open_answer(struct zsd_member *m);

/* ---- finding */

struct zsd_job *zsd_job_by_name(struct zsd_core *core, const char *name)
{
    zb_list_each(pos, &core->jobs)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->state != ZSD_ENDED && strcmp(job->name, name) == 0)
            return job;
    }
    return NULL;
}

/* The rank that this connection is, of a job that is alive: else NULL and err. */
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

void *zsd_staging_at(struct zsd_member *m, uint64_t off, uint64_t len_bytes)
{
    if (off % 64 != 0 || !zb_range_inside(off, len_bytes, m->staging.bytes))
        return NULL;
    return m->staging.base + off;
}

/* ---- arenas, on a compute thread */

enum arena_what { ARENA_STAGING_OPEN, ARENA_STAGING_CLOSE, ARENA_JOB_OPEN, ARENA_JOB_CLOSE };

struct arena_task {
    struct zsd_task task;
    enum arena_what what;
    struct zsd_job *job;
    struct zsd_member *member; /* ARENA_STAGING_OPEN */
    uint64_t bytes;
    struct zsd_arena arena;
    uint8_t *memory;
    uint64_t memory_bytes;
    struct zb_err err;
};

static void arena_run(struct zsd_task *task)
{
    struct arena_task *t = zb_container_of(task, struct arena_task, task);

    switch (t->what) {
    case ARENA_STAGING_OPEN:
        (void)zsd_arena_open(&t->arena, "zshard-staging", t->bytes, false, &t->err);
        break;
    case ARENA_JOB_OPEN:
        if (zsd_arena_open(&t->arena, "zshard-params", t->bytes, true, &t->err) == 0 &&
            t->memory_bytes > 0) {
            t->memory = zsd_private_new(t->memory_bytes);
            if (!t->memory)
                (void)zb_fail(&t->err, -ENOMEM, "%s for gradients and optimizer state: %m",
                              zb_size_text(t->memory_bytes).s);
        }
        break;
    case ARENA_STAGING_CLOSE:
    case ARENA_JOB_CLOSE:
        zsd_arena_close(&t->arena);
        zsd_private_free(t->memory, t->memory_bytes);
        break;
    }
}

static void staging_opened(struct arena_task *t);
static void job_arena_opened(struct arena_task *t);

static void arena_done(struct zsd_task *task)
{
    struct arena_task *t = zb_container_of(task, struct arena_task, task);
    struct zsd_job *job = t->job;

    switch (t->what) {
    case ARENA_STAGING_OPEN:
        staging_opened(t);
        break;
    case ARENA_JOB_OPEN:
        job_arena_opened(t);
        break;
    case ARENA_STAGING_CLOSE:
        job->core->closing--;
        zsd_unplace_staging(job, t->bytes);
        break;
    case ARENA_JOB_CLOSE:
        job->core->closing--;
        zsd_unplace(job);
        break;
    }
    zsd_job_room(job->core);
    free(t);
    zsd_job_unhold(job);
}

static struct arena_task *arena_task_new(struct zsd_job *job, enum arena_what what)
{
    struct arena_task *t = calloc(1, sizeof(*t));

    if (!t)
        return NULL;
    t->task = (struct zsd_task){ .run = arena_run, .done = arena_done };
    t->what = what;
    t->job = job;
    t->arena = ZSD_ARENA_NONE;
    return t;
}

static void arena_task_start(struct arena_task *t)
{
    zsd_job_hold(t->job);
    zsd_task_start(t->job->core, &t->task);
}

/* Ends memory on a compute thread; where there is none for the task itself, here. */
static void arena_end(struct zsd_job *job, enum arena_what what, struct zsd_arena arena,
                      uint8_t *memory, uint64_t memory_bytes, uint64_t booked)
{
    struct arena_task here, *t = arena_task_new(job, what);

    zsd_paths_unregister(job->core->daemon, arena.base);
    zsd_paths_unregister(job->core->daemon, memory);
    if (!t)
        t = &here;
    t->what = what;
    t->job = job;
    t->arena = arena;
    t->memory = memory;
    t->memory_bytes = memory_bytes;
    t->bytes = booked;
    if (t != &here) {
        job->core->closing++;
        arena_task_start(t);
        return;
    }
    arena_run(&here.task);
    if (what == ARENA_STAGING_CLOSE)
        zsd_unplace_staging(job, booked);
    else
        zsd_unplace(job);
}

/* ---- holding */

void zsd_job_hold(struct zsd_job *job)
{
    job->inflight++;
    job->core->ops++;
}

void zsd_job_unhold(struct zsd_job *job)
{
    assert(job->inflight > 0);
    job->inflight--;
    job->core->ops--;
    job_forget_if_over(job);
}

void zsd_job_active(struct zsd_job *job)
{
    job->active++;
}

void zsd_job_idle(struct zsd_job *job)
{
    assert(job->active > 0);
    if (--job->active > 0)
        return;
    ready_resume(job);
    zsd_step_resume(job);
    if (!zb_list_empty(&job->core->opens)) /* one may wait for the last writes of ranks that left */
        zsd_job_room(job->core);
}

bool zsd_job_live(const struct zsd_job *job)
{
    for (uint32_t i = 0; i < job->nshards; i++)
        if (!zsd_shard_live(job->shards[i]))
            return false;
    return true;
}

bool zsd_job_writing(const struct zsd_job *job)
{
    for (uint32_t i = 0; i < job->nshards; i++)
        if (job->shards[i]->writing)
            return true;
    return false;
}

/* Ranks that attached meanwhile hear what there is now. */
static void opens_answer(struct zsd_job *job)
{
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        if (m->open_req && m->staging.fd >= 0)
            open_answer(m);
    }
}

void zsd_job_committed(struct zsd_job *job)
{
    if (job->state == ZSD_READY && !job->commit)
        opens_answer(job);
    ready_resume(job);
    zsd_step_resume(job);
    zsd_job_room(job->core);
}

void zsd_job_stepped(struct zsd_job *job)
{
    for (uint32_t i = 0; i < job->nshards; i++)
        zsd_shard_wake(job->shards[i]);
    opens_answer(job);
    ready_resume(job);
    if (!zb_list_empty(&job->core->opens)) /* one may wait for the step of ranks that left */
        zsd_job_room(job->core);
}

/* ---- members */

static struct zsd_member *member_new(struct zsd_job *job, struct zsd_conn *conn, uint32_t rank)
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
    return m;
}

static struct zsd_member *member_by_rank(struct zsd_job *job, uint32_t rank)
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

/* A member that is gone and whose staging nobody reads any more. */
static void member_free_if_over(struct zsd_member *m)
{
    struct zsd_job *job = m->job;

    if (m->conn || m->staging_users > 0)
        return;
    zb_list_remove(&m->node);
    if (m->staging.fd >= 0)
        arena_end(job, ARENA_STAGING_CLOSE, m->staging, NULL, 0, m->staging.bytes);
    zsd_unit_free(m->defining);
    zsd_note_done(&m->note);
    zsd_note_done(&m->job_note);
    free(m);
    job_forget_if_over(job);
}

void zsd_staging_put(struct zsd_member *m)
{
    assert(m->staging_users > 0);
    m->staging_users--;
    member_free_if_over(m);
}

static void member_answer(struct zsd_req **req, struct zsd_timed *timed, const struct zb_err *why)
{
    struct zsd_req *r = *req;

    if (!r)
        return;
    *req = NULL;
    zsd_timed_disarm(timed);
    zsd_reply_err(r, why);
}

/* The connection lets go of its rank: pins and staging return at once. */
static void member_detach(struct zsd_member *m, const struct zb_err *why)
{
    struct zsd_req *opening = m->open_req;

    zsd_fetch_cancel(m, why);
    zsd_unpin_all(m);
    m->ready = false;
    member_answer(&m->ready_req, &m->ready_timed, why);
    m->open_req = NULL;
    if (opening)
        zsd_reply_err(opening, why);
    else
        zsd_step_give_up(m->job, why);
    member_answer(&m->step_req, &m->step_timed, why);
    m->conn->member = NULL;
    m->conn = NULL;
    member_free_if_over(m);
}

/* ---- the end of a job */

/* Tells every rank but `except`. */
static void job_tell(struct zsd_job *job, uint16_t event, uint32_t rank, const struct zb_err *why)
{
    Zp__JobEvent message = ZP__JOB_EVENT__INIT;

    message.job = job->number;
    message.rank = rank;
    message.code = why->code;
    message.text = (char *)(uintptr_t)why->text;
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        if (m->conn && !m->open_req && !(event == ZP_EVENT_PEER_LOST && m->rank == rank))
            zsd_event(m->conn, event, &message.base);
    }
}

static void job_quit(struct zsd_job *job, uint16_t event, uint32_t rank, const struct zb_err *why)
{
    if (job->state == ZSD_ENDED)
        return;
    zb_log(why->code == -ECANCELED ? ZB_LOG_INFO : ZB_LOG_WARN, "job-end",
           "job=\"%s\" iterations=%llu why=\"%s\"", job->name, (unsigned long long)job->iterations,
           why->text);
    job->state = ZSD_ENDED;
    job->why = *why;
    job->ready_waits = false;
    zsd_job_hold(job); /* answering may drop the last holder */
    if (why->code != -ECANCELED)
        job_tell(job, event, rank, why);
    zsd_step_cancel(job, why);
    zsd_push_cancel(job, why);
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        zsd_fetch_cancel(m, why);
        member_answer(&m->ready_req, &m->ready_timed, why);
        member_answer(&m->step_req, &m->step_timed, why);
        zsd_unpin_all(m);
        if (m->open_req && m->staging.fd >= 0) /* else staging_opened() does it */
            member_detach(m, why);
    }
    zsd_fill_cancel(job);
    zsd_job_unhold(job);
}

void zsd_job_end(struct zsd_job *job, const struct zb_err *why)
{
    job_quit(job, ZP_EVENT_JOB_FAILED, 0, why);
}

/* The saved job may be made again, whoever still looks at this incarnation. */
static void job_let_go(struct zsd_job *job)
{
    struct zsd_saved *saved = job->saved;

    zsd_version_unref(job->from); /* its places are promised to the saved job alone */
    job->from = NULL;
    if (!saved)
        return;
    job->saved = NULL;
    job->promise = NULL;
    saved->job = NULL;
    if (saved->ended)
        zsd_defer(job->core, saved->ended);
    zsd_saved_unhold(saved);
    if (job->seen) /* else its own open looks again, for ever, and nothing else gets a turn */
        zsd_job_room(job->core);
}

static void job_free(struct zsd_job *job)
{
    zb_list_remove(&job->node);
    zb_list_remove(&job->room_work.node);
    zb_list_remove(&job->step.work.node);
    for (uint32_t i = 0; i < job->nshards; i++)
        zsd_shard_free(job->shards[i]);
    for (uint32_t i = 0; i < job->nunits; i++)
        zsd_unit_free(job->units[i]);
    for (uint32_t i = 0; job->notes && i < job->world; i++)
        zsd_note_done(&job->notes[i]);
    zsd_note_done(&job->note);
    job_let_go(job);
    if (job->seen)
        zsd_job_room(job->core);
    free(job->notes);
    free(job->step.pages_left);
    free(job->shards);
    free(job->units);
    free(job);
}

/* Ended and nothing in flight: first its bytes go back, then, without ranks, the struct. */
static void job_forget_if_over(struct zsd_job *job)
{
    if (job->state != ZSD_ENDED || job->inflight > 0)
        return;
    if (job->placed) {
        struct zsd_arena arena = job->arena;
        uint8_t *memory = job->memory;

        job->arena = ZSD_ARENA_NONE;
        job->memory = NULL;
        job->placed = false; /* zsd_unplace() comes once, from the task */
        arena_end(job, ARENA_JOB_CLOSE, arena, memory, job->memory_bytes, 0);
        job_forget_if_over(job); /* a task holds it now, unless there was no memory for one */
        return;
    }
    job_let_go(job);
    if (zb_list_empty(&job->members))
        job_free(job);
}

/* It is the daemon that goes, and no rank is to take another one for dead. */
static void job_end_with_daemon(struct zsd_job *job)
{
    struct zb_err why = { 0 };

    (void)zb_fail(&why, -ENOTCONN, "the daemon is ending");
    zsd_job_end(job, &why);
}

void zsd_jobs_end_all(struct zsd_core *core)
{
    struct zb_err why = { 0 };

    opens_refuse(core);
    (void)zb_fail(&why, -ENOTCONN, "the daemon is ending");
    if (core->store)
        zb_list_each(pos, &core->store->saved)
            zsd_snap_cancel(zb_container_of(pos, struct zsd_saved, node), &why);
    zb_list_each(pos, &core->jobs)
    {
        job_end_with_daemon(zb_container_of(pos, struct zsd_job, node));
    }
}

void zsd_jobs_forget_all(struct zsd_core *core)
{
    while (!zb_list_empty(&core->jobs)) {
        struct zsd_job *job = zb_container_of(core->jobs.next, struct zsd_job, node);

        assert(job->inflight == 0 && !job->placed);
        zb_list_each(pos, &job->members)
        {
            struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

            if (m->conn)
                m->conn->member = NULL;
            zb_list_remove(&m->node);
            zsd_arena_close(&m->staging);
            zsd_unit_free(m->defining);
            zsd_note_done(&m->note);
            zsd_note_done(&m->job_note);
            free(m);
        }
        job_free(job);
    }
}

void zsd_core_gone(struct zsd_conn *conn)
{
    struct zsd_member *m = conn->member;
    struct zsd_job *job;
    struct zb_err why = { 0 };

    opens_gone(conn);
    zsd_reader_gone(conn);
    if (!m)
        return;
    job = m->job;
    (void)zb_fail(&why, -EOWNERDEAD, "rank %u of job '%s' (process %d) died or hung up", m->rank,
                  job->name, (int)conn->pid);
    zsd_job_hold(job);
    if (job->core->draining) { /* this rank was the first to hear it, and has left */
        why = (struct zb_err){ 0 };
        (void)zb_fail(&why, -ENOTCONN, "the daemon is ending");
        if (!job->durable || job->state < ZSD_READY) /* else it is saved first */
            zsd_job_end(job, &why);
    } else if (job->state != ZSD_ENDED) {
        uint32_t rank = m->rank;

        if (!job->keep || job->state < ZSD_READY) {
            job_quit(job, ZP_EVENT_PEER_LOST, rank, &why);
        } else if (!m->open_req) { /* kept: the others hear it, the state stays */
            zb_log(ZB_LOG_WARN, "rank-lost", "job=\"%s\" rank=%u", job->name, rank);
            job_tell(job, ZP_EVENT_PEER_LOST, rank, &why);
        }
    }
    if (conn->member) /* one that waits to attach goes with its job */
        member_detach(m, &why);
    zsd_job_unhold(job);
}

/* ---- parked opens */

/* A job-open that waits: its own copy of the request. */
struct open_wait {
    struct zsd_req *req;
    struct zsd_conn *conn;
    Zp__JobOpen q;
    char name[ZP_NAME_MAX + 1];
    struct zb_list node;
};

static void open_run(struct zsd_req *req, const Zp__JobOpen *q);

/* Bytes of a tier are on their way back. */
static bool core_closing(const struct zsd_core *core)
{
    if (core->closing > 0)
        return true;
    zb_list_each(pos, &core->jobs)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->state == ZSD_ENDED && (job->placed || job->inflight > 0))
            return true;
    }
    return false;
}

static int open_park(struct zsd_core *core, struct zsd_req *req, const Zp__JobOpen *q)
{
    struct open_wait *w = calloc(1, sizeof(*w));

    if (!w)
        return -ENOMEM;
    w->req = req;
    w->conn = req->conn;
    w->q = *q;
    (void)snprintf(w->name, sizeof(w->name), "%s", q->name);
    w->q.name = w->name;
    zb_list_push_back(&core->opens, &w->node);
    return 0;
}

static void room_on_work(struct zsd_work *work)
{
    struct zsd_core *core = zb_container_of(work, struct zsd_core, room);
    struct zb_list again;

    zb_list_init(&again); /* some may be parked again */
    while (!zb_list_empty(&core->opens)) {
        struct zb_list *node = zb_list_pop_front(&core->opens);

        zb_list_push_back(&again, node);
    }
    for (struct zb_list *node; (node = zb_list_pop_front(&again)) != NULL;) {
        struct open_wait *w = zb_container_of(node, struct open_wait, node);

        open_run(w->req, &w->q);
        free(w);
    }
    zb_list_each(pos, &core->jobs)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->state == ZSD_PLACING && job->place_waits)
            place_again(job);
    }
}

/* Something has come back, or has ended: who waits for that looks again. */
void zsd_job_room(struct zsd_core *core)
{
    core->room.run = room_on_work;
    zsd_defer(core, &core->room);
}

/* The connection has gone: nobody waits for the answer. */
static void opens_gone(struct zsd_conn *conn)
{
    zb_list_each(pos, &conn->daemon->core->opens)
    {
        struct open_wait *w = zb_container_of(pos, struct open_wait, node);

        if (w->conn != conn)
            continue;
        zb_list_remove(pos);
        zsd_refuse(w->req, -ENOTCONN, "the client has gone");
        free(w);
    }
}

static void opens_refuse(struct zsd_core *core)
{
    for (struct zb_list *node; (node = zb_list_pop_front(&core->opens)) != NULL;) {
        struct open_wait *w = zb_container_of(node, struct open_wait, node);

        zsd_refuse(w->req, -ENOTCONN, "the daemon is ending");
        free(w);
    }
}

/* ---- open */

static struct zsd_job *job_alloc(struct zsd_core *core, const Zp__JobOpen *q)
{
    struct zsd_job *job = calloc(1, sizeof(*job));

    if (!job)
        return NULL;
    job->notes = calloc(q->world, sizeof(*job->notes));
    if (!job->notes) {
        free(job);
        return NULL;
    }
    job->core = core;
    job->world = q->world;
    job->offload_param = q->offload_param;
    job->offload_optimizer = q->offload_optimizer;
    job->host_bytes_max = q->host_bytes_max;
    job->commit_every = q->commit_every;
    job->arena = ZSD_ARENA_NONE;
    zb_list_init(&job->members);
    zb_list_init(&job->cached);
    zb_list_init(&job->room_waiters);
    zb_list_init(&job->room_work.node);
    zb_list_init(&job->step.work.node);
    zb_list_init(&job->node);
    return job;
}

static struct zsd_job *job_new(struct zsd_core *core, const Zp__JobOpen *q, uid_t uid)
{
    struct zsd_job *job = job_alloc(core, q);

    if (!job)
        return NULL;
    job->number = core->next_job++;
    (void)snprintf(job->name, sizeof(job->name), "%s", q->name);
    job->uid = uid;
    job->groups = q->groups;
    job->keep = q->keep;
    job->durable = q->durable;
    zb_list_push_back(&core->jobs, &job->node);
    return job;
}

/* A saved job is made again: it forms as a new one does, but its units are known. */
static struct zsd_job *job_again(struct zsd_core *core, const Zp__JobOpen *q,
                                 struct zsd_saved *saved)
{
    struct zsd_job *job = job_alloc(core, q);
    const struct zsd_version *v = saved->committed ? saved->committed : saved->prepared;
    bool whole = job != NULL;

    if (!job)
        return NULL;
    job->number = saved->number;
    memcpy(job->name, saved->name, sizeof(job->name));
    job->uid = saved->uid;
    job->groups = saved->groups;
    job->keep = job->durable = job->again = true;
    job->epoch = saved->epoch;
    job->iterations = v->iterations;
    job->applied = v->applied;
    job->units = calloc(zb_max_u64(saved->nunits, 1), sizeof(struct zsd_unit *));
    job->units_room = saved->nunits;
    for (uint32_t i = 0; whole && job->units && i < saved->nunits; i++) {
        job->units[i] = zsd_unit_copy(saved->units[i]);
        whole = job->units[i] != NULL;
        job->nunits += whole;
    }
    if (!whole || !job->units) {
        job_free(job);
        return NULL;
    }
    job->saved = saved;
    job->promise = &saved->promise;
    saved->job = job;
    zsd_saved_hold(saved);
    zb_list_push_back(&core->jobs, &job->node);
    return job;
}

static int open_check(const struct zsd_core *core, const Zp__JobOpen *q, struct zb_err *err)
{
    if (core->draining)
        return zb_fail(err, -ECANCELED, "the daemon is ending: it takes no new jobs");
    if (!zp_name_valid(q->name))
        return zb_fail(err, -EINVAL,
                       "'%s' is no name for a job: 1 to %u letters, digits, '.', '_' or '-'",
                       q->name, ZP_NAME_MAX);
    if (q->world < 1 || q->world > ZP_WORLD_MAX)
        return zb_fail(err, -EINVAL, "a world of %u ranks: from 1 to %u", q->world, ZP_WORLD_MAX);
    if (q->rank >= q->world)
        return zb_fail(err, -EINVAL, "rank %u is outside of a world of %u ranks", q->rank,
                       q->world);
    if (q->groups < 1 || q->groups > ZP_GROUPS_MAX)
        return zb_fail(err, -EINVAL, "%u parameter groups: from 1 to %u", q->groups, ZP_GROUPS_MAX);
    if (q->offload_param < 1 || q->offload_param > 2 || q->offload_optimizer < 1 ||
        q->offload_optimizer > 2)
        return zb_fail(err, -EINVAL, "places %u and %u: known are 1 (host) and 2 (nvme)",
                       q->offload_param, q->offload_optimizer);
    if (q->optimizer != 1)
        return zb_fail(err, -EINVAL, "optimizer %u: known is 1 (AdamW)", q->optimizer);
    if (q->durable && !q->keep)
        return zb_fail(err, -EINVAL, "a job that is not kept cannot be durable");
    if (q->durable && !core->store)
        return zb_fail(err, -EINVAL,
                       "a durable job needs a daemon with an NVMe tier and a data directory that "
                       "stays: this one has none");
    if (q->staging_bytes > INT64_MAX - ZB_PAGE_ALIGN)
        return zb_fail(err, -EINVAL, "staging of %llu bytes", (unsigned long long)q->staging_bytes);
    return 0;
}

static int open_stale(const Zp__JobOpen *q, uint64_t epoch, struct zb_err *err)
{
    return zb_fail(err, -ESTALE, "job '%s' is in epoch %llu: rank %u of epoch %llu is cut off",
                   q->name, (unsigned long long)epoch, q->rank, (unsigned long long)q->epoch);
}

/* May this rank join a job that exists? */
static int open_join(struct zsd_job *job, const Zp__JobOpen *q, uid_t uid, struct zb_err *err)
{
    bool forming = job->state == ZSD_DEFINING && q->attach == job->again;

    if (job->uid != uid)
        return zb_fail(err, -EPERM, "job '%s' belongs to user %u", q->name, (unsigned)job->uid);
    if (!forming && !q->attach)
        return zb_fail(err, -EEXIST, "job '%s' exists already", q->name);
    if (q->attach && !job->keep)
        return zb_fail(err, -EINVAL, "job '%s' was not opened to be kept: nobody attaches to it",
                       q->name);
    if (q->world != job->world)
        return zb_fail(err, -EINVAL, "job '%s' has %u ranks, not %u", q->name, job->world,
                       q->world);
    if (!q->takeover && q->epoch != 0 && q->epoch != job->epoch)
        return open_stale(q, job->epoch, err);
    if (member_by_rank(job, q->rank))
        return zb_fail(err, q->attach ? -EBUSY : -EEXIST,
                       "job '%s' exists already: its rank %u is taken", q->name, q->rank);
    if (q->keep != job->keep || q->durable != job->durable || q->groups != job->groups ||
        (forming && (q->offload_param != job->offload_param ||
                     q->offload_optimizer != job->offload_optimizer ||
                     q->host_bytes_max != job->host_bytes_max)))
        return zb_fail(err, -EINVAL, "rank %u opens job '%s' with other options than its peers",
                       q->rank, q->name);
    return 0;
}

/* Who is attached is cut off: a new epoch begins. A job that was only forming begins anew. */
static void open_takeover(struct zsd_job *job)
{
    struct zb_err why = { 0 };

    job->epoch++;
    if (job->saved)
        job->saved->epoch = job->epoch;
    (void)zb_fail(&why, -ESTALE,
                  "job '%s' was taken over: this rank is of an older epoch than %llu", job->name,
                  (unsigned long long)job->epoch);
    if (job->state < ZSD_READY) {
        zsd_job_end(job, &why);
        return;
    }
    zsd_job_hold(job);
    job_tell(job, ZP_EVENT_JOB_FAILED, 0, &why);
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        if (m->conn && !m->open_req)
            member_detach(m, &why);
    }
    zsd_job_unhold(job);
}

/* The job has saved what it has: it ends, and is made again by whoever opens it next. If it could
 * not, those that are parked for it are told, and it stays as it is. */
static void retire_done(struct zsd_job *job, const struct zb_err *err)
{
    struct zb_err why = { 0 };

    job->retiring = false;
    if (!err) {
        (void)zb_fail(&why, -ECANCELED, "job '%s' gives its memory back: it is saved", job->name);
        zsd_job_end(job, &why);
        return;
    }
    job->stays = true;
    zsd_job_room(job->core);
    zb_list_each(pos, &job->core->opens)
    {
        struct open_wait *w = zb_container_of(pos, struct open_wait, node);

        if (strcmp(w->name, job->name) != 0 || w->q.world == job->world)
            continue; /* who attaches to it as it is goes on */
        zb_list_remove(pos);
        zsd_reply_err(w->req, err);
        free(w);
    }
}

static void open_retire(struct zsd_job *job)
{
    const struct zsd_version *p = job->saved->prepared;

    job->retiring = true;
    if (zsd_commit_has(job) || (p && p->iterations == job->iterations) || !zsd_job_live(job))
        retire_done(job, NULL);
    else
        zsd_commit_start(job, job->prepares ? ZSD_PREPARE : ZSD_COMMIT, NULL, retire_done);
}

/* Nobody is attached, and what the job has is saved, or can be. */
static bool job_idle(const struct zsd_job *job)
{
    return job->durable && job->state == ZSD_READY && zsd_job_attached(job) == 0 && !job->commit &&
           job->active == 0 && !job->retiring && !job->stays;
}

/* Somebody lacks memory for `job`: other saved jobs that nobody is attached to give theirs back,
 * one at a time, the one that has been there longest first. True: some is on its way. */
static bool core_make_room(struct zsd_core *core, const struct zsd_job *lacks)
{
    if (core_closing(core))
        return true;
    zb_list_each(pos, &core->jobs)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->retiring)
            return true;
        if (job != lacks && job_idle(job)) {
            zb_log(ZB_LOG_INFO, "job-gives-room", "job=\"%s\" iterations=%llu", job->name,
                   (unsigned long long)job->iterations);
            open_retire(job);
            return true;
        }
    }
    return false;
}

/* What has to be over before this open can be decided. */
static bool open_waits(const struct zsd_core *core, struct zsd_job *job,
                       const struct zsd_saved *saved, const Zp__JobOpen *q)
{
    if (saved && saved->moving)
        return true;
    if (!job) /* its last incarnation is still ending, or the name is not decided */
        return (saved && saved->job) || zsd_saved_coming(core, q->name);
    if (!q->attach || !job->durable)
        return false;
    if (job->retiring)
        return true;
    if (q->world == job->world || zsd_job_attached(job) > 0)
        return false;
    return job->state >= ZSD_READY; /* until it has retired */
}

/* The job that this rank opens: one that is there, one that is made again, a new one. */
static int open_find(struct zsd_req *req, const Zp__JobOpen *q, struct zsd_saved *saved,
                     struct zsd_job **job, struct zb_err *err)
{
    struct zsd_core *core = req->daemon->core;
    uint32_t njobs = 0;

    if (*job)
        return open_join(*job, q, req->conn->uid, err);
    if (saved && saved->uid != req->conn->uid)
        return zb_fail(err, -EPERM, "job '%s' belongs to user %u", q->name, (unsigned)saved->uid);
    if (saved && !q->attach)
        return zb_fail(err, -EEXIST, "job '%s' exists already: it is saved", q->name);
    if (!saved && q->attach)
        return zb_fail(err, -ENOENT, "there is no job '%s' to attach to", q->name);
    if (saved && (!q->keep || !q->durable || q->groups != saved->groups))
        return zb_fail(err, -EINVAL, "job '%s' is kept, durable, and has %u parameter groups",
                       q->name, saved->groups);
    if (saved && q->takeover)
        saved->epoch++;
    else if (saved && q->epoch != 0 && q->epoch != saved->epoch)
        return open_stale(q, saved->epoch, err);
    zb_list_each(pos, &core->jobs) njobs++;
    if (njobs >= req->daemon->config.jobs_max)
        return zb_fail(err, -ENOSPC, "there are %u jobs already, which is the limit (jobs_max)",
                       njobs);
    *job = saved ? job_again(core, q, saved) : job_new(core, q, req->conn->uid);
    if (!*job)
        return zb_fail(err, -ENOMEM, "job '%s': %m", q->name);
    zb_log(ZB_LOG_INFO, "job-open", "job=\"%s\" id=%u uid=%u world=%u keep=%d durable=%d saved=%d",
           (*job)->name, (*job)->number, (unsigned)(*job)->uid, (*job)->world, (int)(*job)->keep,
           (int)(*job)->durable, (int)(*job)->again);
    return 0;
}

static void open_run(struct zsd_req *req, const Zp__JobOpen *q)
{
    struct zsd_core *core = req->daemon->core;
    struct zsd_saved *saved = zsd_saved_by_name(core, q->name);
    struct zb_err err = { 0 };
    struct zsd_job *job = NULL;
    struct zsd_member *m;
    struct arena_task *t;
    bool fresh = false;

    if (req->conn->member) {
        zsd_refuse(req, -EBUSY, "this connection has opened job '%s' already",
                   req->conn->member->job->name);
        return;
    }
    if (open_check(core, q, &err) < 0)
        goto refuse;
    job = zsd_job_by_name(core, q->name);
    if (job && q->attach && q->takeover && job->keep && job->uid == req->conn->uid &&
        (job->again || job->state >= ZSD_LOADING)) {
        open_takeover(job);
        job = zsd_job_by_name(core, q->name); /* it may have ended */
    }
    if ((!job || job->uid == req->conn->uid) && open_waits(core, job, saved, q)) {
        bool retires = job && job->world != q->world && !(saved && saved->moving);

        if (open_park(core, req, q) < 0) {
            (void)zb_fail(&err, -ENOMEM, "rank %u of job '%s': %m", q->rank, q->name);
            goto refuse;
        }
        if (retires && job->state == ZSD_READY && !job->commit && job->active == 0)
            open_retire(job); /* what is parked hears at once when it cannot */
        return;
    }
    fresh = !job;
    if (open_find(req, q, saved, &job, &err) < 0)
        goto refuse;
    t = arena_task_new(job, ARENA_STAGING_OPEN);
    m = t ? member_new(job, req->conn, q->rank) : NULL;
    if (!m) {
        free(t);
        (void)zb_fail(&err, -ENOMEM, "rank %u of job '%s': %m", q->rank, q->name);
        goto refuse;
    }
    t->bytes = zb_round_up(q->staging_bytes, ZB_PAGE_ALIGN);
    if (zsd_place_staging(job, t->bytes, &err) < 0) {
        free(t);
        zb_list_remove(&m->node);
        req->conn->member = NULL;
        free(m);
        goto refuse;
    }
    t->member = m;
    job->seen = true;
    m->open_req = req;
    m->staging_users++; /* keeps the member until staging_opened() */
    arena_task_start(t);
    return;
refuse:
    if (fresh && job) {
        job->state = ZSD_ENDED; /* never seen by anybody */
        job_forget_if_over(job);
        job = NULL;
    }
    if (err.code == -ENOSPC && core_make_room(core, job) && open_park(core, req, q) == 0)
        return;
    zsd_reply_err(req, &err);
}

void zsd_job_open(struct zsd_req *req, const ProtobufCMessage *message)
{
    open_run(req, (const Zp__JobOpen *)(const void *)message);
}

static void open_point(Zp__Point *points, Zp__Point **list, size_t *n, uint32_t kind,
                       uint64_t iterations, uint64_t applied)
{
    zp__point__init(&points[*n]);
    points[*n].kind = kind;
    points[*n].iterations = iterations;
    points[*n].applied = applied;
    list[*n] = &points[*n];
    (*n)++;
}

static void open_answer(struct zsd_member *m)
{
    struct zsd_job *job = m->job;
    Zp__JobOpenReply reply = ZP__JOB_OPEN_REPLY__INIT;
    const struct zsd_saved *saved = job->saved;
    Zp__Point points[3], *list[3];
    struct zsd_req *req = m->open_req;

    m->open_req = NULL;
    if (job->state == ZSD_READY)
        job->regained = true;
    reply.job = job->number;
    reply.iterations = job->iterations;
    reply.applied = job->applied;
    reply.staging_bytes = m->staging.bytes;
    reply.epoch = job->epoch;
    reply.world = job->world;
    if (job->state >= ZSD_READY && zsd_job_live(job))
        open_point(points, list, &reply.n_points, 1, job->iterations, job->applied);
    if (saved && saved->prepared)
        open_point(points, list, &reply.n_points, 2, saved->prepared->iterations,
                   saved->prepared->applied);
    if (saved && saved->committed) {
        open_point(points, list, &reply.n_points, 3, saved->committed->iterations,
                   saved->committed->applied);
        if (job->again)
            reply.world = saved->committed->world;
    }
    reply.points = list;
    zsd_reply(req, &reply.base, m->staging.fd);
}

/* The rank is there, unless it died meanwhile. One that attaches to a job in a step or a
 * commit is answered when that is over (zsd_job_stepped(), zsd_job_committed()): it goes on from
 * where the others do, and is told of every point that there is. */
static void staging_opened(struct arena_task *t)
{
    struct zsd_member *m = t->member;
    struct zsd_job *job = t->job;
    bool only = zsd_job_attached(job) <= 1 && job->state == ZSD_DEFINING;

    m->staging = t->arena;
    if (m->staging.fd < 0)
        zsd_unplace_staging(job, t->bytes); /* else with the arena */
    if (job->state == ZSD_ENDED)
        (void)zb_fail(&t->err, job->why.code, "%s", job->why.text);
    if (m->conn && t->err.code != 0)
        member_detach(m, &t->err);
    else if (m->conn && job->state != ZSD_STEPPING && !job->commit)
        open_answer(m);
    zsd_staging_put(m);
    if (t->err.code != 0 && only)
        zsd_job_end(job, &t->err);
}

/* ---- units */

void zsd_unit_free(struct zsd_unit *unit)
{
    if (!unit)
        return;
    free(unit->tensors);
    free(unit->segments);
    free(unit->shards);
    free(unit);
}

static int unit_check(const struct zsd_job *job, const Zp__UnitDefine *q, struct zb_err *err)
{
    if (job->state != ZSD_DEFINING && !job->keep)
        return zb_fail(err, -EBUSY, "job '%s' is ready: its units are fixed", job->name);
    if (q->unit >= ZP_UNITS_MAX || q->unit > job->nunits)
        return zb_fail(err, -EINVAL, "unit %u comes after %u of job '%s': units come in order",
                       q->unit, job->nunits, job->name);
    if (!zp_name_valid(q->name))
        return zb_fail(err, -EINVAL, "'%s' is no name for a unit", q->name);
    if (q->elems < 1 || q->elems > UINT64_C(1) << 40)
        return zb_fail(err, -EINVAL, "unit '%s' has %llu elements: from 1 to 2^40", q->name,
                       (unsigned long long)q->elems);
    return 0;
}

static int unit_tensor(struct zsd_unit *unit, const struct zsd_job *job, const Zp__Tensor *q,
                       struct zb_err *err)
{
    struct zsd_tensor t = {
        .first = q->first, .count = 1, .group = q->group, .ndims = (uint32_t)q->n_dims
    };
    uint64_t from = 0;

    if (unit->ntensors > 0) {
        const struct zsd_tensor *last = &unit->tensors[unit->ntensors - 1];

        from = last->first + last->count;
    }
    if (!zp_tensor_name_valid(q->name))
        return zb_fail(err, -EINVAL, "unit '%s': '%s' is no name for a tensor", unit->name,
                       q->name);
    if (q->n_dims > ZP_DIMS_MAX)
        return zb_fail(err, -EINVAL, "tensor '%s' has %zu dimensions: at most %u", q->name,
                       q->n_dims, ZP_DIMS_MAX);
    for (size_t i = 0; i < q->n_dims; i++) {
        t.dims[i] = q->dims[i];
        if (!zb_mul_fits(t.count, q->dims[i], &t.count))
            return zb_fail(err, -EINVAL, "tensor '%s' has a shape that overflows", q->name);
    }
    if (t.count < 1 || q->first < from || !zb_range_inside(q->first, t.count, unit->elems))
        return zb_fail(
            err, -EINVAL,
            "tensor '%s' (first %llu, %llu elements) is not inside unit '%s' of %llu, behind "
            "the one before it",
            q->name, (unsigned long long)q->first, (unsigned long long)t.count, unit->name,
            (unsigned long long)unit->elems);
    if (q->group >= job->groups && q->group != ZP_GROUP_FROZEN)
        return zb_fail(err, -EINVAL, "tensor '%s' is of parameter group %u, and the job has %u",
                       q->name, q->group, job->groups);
    if (job->ntensors + unit->ntensors >= ZSD_TENSORS_MAX)
        return zb_fail(err, -ENOSPC, "tensor '%s': job '%s' has %u tensors, which is the limit",
                       q->name, job->name, job->ntensors + unit->ntensors);
    if (unit->ntensors == unit->tensors_room) {
        uint32_t room = unit->tensors_room > 0 ? 2 * unit->tensors_room : 16;
        void *grown = realloc(unit->tensors, room * sizeof(*unit->tensors));

        if (!grown)
            return zb_fail(err, -ENOMEM, "tensors of unit '%s': %m", unit->name);
        unit->tensors = grown;
        unit->tensors_room = room;
    }
    (void)snprintf(t.name, sizeof(t.name), "%s", q->name);
    unit->tensors[unit->ntensors++] = t;
    return 0;
}

/* Runs of elements of one group; frozen tensors and gaps are in none. */
int zsd_unit_segments(struct zsd_unit *unit)
{
    if (unit->ntensors == 0 || unit->layout.frozen)
        return 0;
    unit->segments = calloc(unit->ntensors, sizeof(*unit->segments));
    if (!unit->segments)
        return -ENOMEM;
    for (uint32_t i = 0; i < unit->ntensors; i++) {
        const struct zsd_tensor *t = &unit->tensors[i];
        struct zk_segment *last = unit->nsegments > 0 ? &unit->segments[unit->nsegments - 1] : NULL;

        if (t->group == ZP_GROUP_FROZEN)
            continue;
        if (last && last->group == t->group && last->first + last->count == t->first)
            last->count += t->count;
        else
            unit->segments[unit->nsegments++] =
                (struct zk_segment){ .first = t->first, .count = t->count, .group = t->group };
    }
    return 0;
}

static bool unit_same(const struct zsd_unit *a, const struct zsd_unit *b)
{
    if (strcmp(a->name, b->name) != 0 || a->elems != b->elems || a->ntensors != b->ntensors ||
        a->layout.dtype != b->layout.dtype || a->layout.grad_dtype != b->layout.grad_dtype ||
        a->layout.frozen != b->layout.frozen)
        return false;
    for (uint32_t i = 0; i < a->ntensors; i++) {
        const struct zsd_tensor *s = &a->tensors[i], *t = &b->tensors[i];

        if (strcmp(s->name, t->name) != 0 || s->first != t->first || s->group != t->group ||
            s->ndims != t->ndims || memcmp(s->dims, t->dims, sizeof(s->dims)) != 0)
            return false;
    }
    return true;
}

/* The last part has come: the first rank's unit is kept, the others' are compared with it. */
static int unit_finish(struct zsd_member *m, struct zb_err *err)
{
    struct zsd_job *job = m->job;
    struct zsd_unit *unit = m->defining;

    if (unit->index < job->nunits)
        return unit_same(unit, job->units[unit->index])
                   ? 0
                   : zb_fail(err, -EINVAL,
                             "rank %u defines unit %u ('%s') of job '%s' otherwise than its peers",
                             m->rank, unit->index, unit->name, job->name);
    if (job->state != ZSD_DEFINING || job->again)
        return zb_fail(err, -EINVAL, "job '%s' has %u units, and '%s' is none of them", job->name,
                       job->nunits, unit->name);
    if (zsd_unit_segments(unit) < 0)
        return zb_fail(err, -ENOMEM, "unit '%s': %m", unit->name);
    if (job->nunits == job->units_room) {
        uint32_t room = job->units_room > 0 ? 2 * job->units_room : 64;
        void *grown = realloc(job->units, room * sizeof(*job->units));

        if (!grown)
            return zb_fail(err, -ENOMEM, "unit '%s': %m", unit->name);
        job->units = grown;
        job->units_room = room;
    }
    job->units[job->nunits++] = unit;
    job->ntensors += unit->ntensors;
    m->defining = NULL;
    return 0;
}

/* The first part makes the unit; the head of every later part must be the same. */
static int unit_head(struct zsd_member *m, const Zp__UnitDefine *q, struct zb_err *err)
{
    struct zsd_unit *unit = m->defining;
    struct zb_layout layout;

    if (zb_layout_of(q->dtype, q->frozen ? ZB_F32 : q->grad_dtype, q->frozen, &layout, err) < 0)
        return err->code;
    if (!unit) {
        unit = m->defining = calloc(1, sizeof(*unit));
        if (!unit)
            return zb_fail(err, -ENOMEM, "unit '%s': %m", q->name);
        unit->index = q->unit;
        unit->elems = q->elems;
        unit->layout = layout;
        (void)snprintf(unit->name, sizeof(unit->name), "%s", q->name);
    }
    if (strcmp(unit->name, q->name) != 0 || unit->elems != q->elems ||
        unit->layout.dtype != layout.dtype || unit->layout.grad_dtype != layout.grad_dtype ||
        unit->layout.frozen != layout.frozen)
        return zb_fail(err, -EINVAL, "a part of unit '%s' says otherwise than the first of '%s'",
                       q->name, unit->name);
    return 0;
}

void zsd_unit_define(struct zsd_req *req, const ProtobufCMessage *message)
{
    const Zp__UnitDefine *q = (const Zp__UnitDefine *)(const void *)message;
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zb_err err = { 0 };
    struct zsd_unit *unit;

    if (!m)
        return;
    if (m->defining && m->defining->index != q->unit) { /* an earlier one was left unfinished */
        zsd_unit_free(m->defining);
        m->defining = NULL;
    }
    if (unit_check(m->job, q, &err) < 0 || unit_head(m, q, &err) < 0)
        goto refuse;
    unit = m->defining;
    for (size_t i = 0; i < q->n_tensors; i++)
        if (unit_tensor(unit, m->job, q->tensors[i], &err) < 0)
            goto refuse;
    if (q->last && unit_finish(m, &err) < 0)
        goto refuse;
    if (q->last) {
        zsd_unit_free(m->defining);
        m->defining = NULL;
    }
    zsd_reply(req, NULL, -1);
    return;
refuse:
    zsd_unit_free(m->defining);
    m->defining = NULL;
    zsd_reply_err(req, &err);
}

/* ---- shards */

/* A shard of the unit that begins at or behind `first`: its index. */
static uint32_t unit_shard_at(const struct zsd_unit *unit, uint64_t first)
{
    uint32_t low = 0, high = unit->nshards;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (unit->shards[mid]->first < first)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static int shard_check(const struct zsd_job *job, const Zp__Range *q, struct zb_err *err)
{
    const struct zsd_unit *unit;
    uint32_t i;

    if (q->unit >= job->nunits)
        return zb_fail(err, -ENOENT, "job '%s' has no unit %u", job->name, q->unit);
    unit = job->units[q->unit];
    if (q->count < 1 || q->first % ZB_BLOCK_ELEMS != 0 || q->count % ZB_BLOCK_ELEMS != 0)
        return zb_fail(err, -EINVAL,
                       "a shard of unit '%s' from %llu of %llu elements: bounds are "
                       "multiples of %u",
                       unit->name, (unsigned long long)q->first, (unsigned long long)q->count,
                       ZB_BLOCK_ELEMS);
    if (!zb_range_inside(q->first, q->count, zb_padded_elems(unit->elems)))
        return zb_fail(err, -EINVAL,
                       "a shard of unit '%s' from %llu of %llu elements: the unit has %llu",
                       unit->name, (unsigned long long)q->first, (unsigned long long)q->count,
                       (unsigned long long)unit->elems);
    i = unit_shard_at(unit, q->first);
    if ((i < unit->nshards && unit->shards[i]->first < q->first + q->count) ||
        (i > 0 && unit->shards[i - 1]->first + unit->shards[i - 1]->count > q->first))
        return zb_fail(err, -EINVAL, "a shard of unit '%s' from %llu overlaps another one",
                       unit->name, (unsigned long long)q->first);
    return 0;
}

static int shard_add(struct zsd_job *job, uint32_t rank, const Zp__Range *q, struct zb_err *err)
{
    struct zsd_unit *unit;
    struct zsd_shard *s;
    uint32_t at;

    if (shard_check(job, q, err) < 0)
        return err->code;
    unit = job->units[q->unit];
    if (job->nshards >= ZSD_SHARDS_MAX)
        return zb_fail(err, -ENOSPC, "job '%s' has %u shards, which is the limit", job->name,
                       job->nshards);
    if (job->nshards == job->shards_room) {
        uint32_t room = job->shards_room > 0 ? 2 * job->shards_room : 256;
        void *grown = realloc(job->shards, room * sizeof(*job->shards));

        if (!grown)
            return zb_fail(err, -ENOMEM, "shards of job '%s': %m", job->name);
        job->shards = grown;
        job->shards_room = room;
    }
    if (unit->nshards == unit->shards_room) {
        uint32_t room = unit->shards_room > 0 ? 2 * unit->shards_room : 8;
        void *grown = realloc(unit->shards, room * sizeof(*unit->shards));

        if (!grown)
            return zb_fail(err, -ENOMEM, "shards of unit '%s': %m", unit->name);
        unit->shards = grown;
        unit->shards_room = room;
    }
    s = zsd_shard_new(job, unit, rank, q->first, q->count);
    if (!s)
        return zb_fail(err, -ENOMEM, "a shard of unit '%s': %m", unit->name);
    s->id = (uint64_t)job->number << 32 | job->nshards;
    job->shards[job->nshards++] = s;
    at = unit_shard_at(unit, q->first);
    memmove(unit->shards + at + 1, unit->shards + at, (unit->nshards - at) * sizeof(*unit->shards));
    unit->shards[at] = s;
    unit->nshards++;
    return 0;
}

/* Takes back the shards from number `from` on: a request registers all of its ranges or none. */
static void shards_undo(struct zsd_job *job, uint32_t from)
{
    while (job->nshards > from) {
        struct zsd_shard *s = job->shards[--job->nshards];
        struct zsd_unit *unit = s->unit;
        uint32_t at = unit_shard_at(unit, s->first);

        memmove(unit->shards + at, unit->shards + at + 1,
                (unit->nshards - at - 1) * sizeof(*unit->shards));
        unit->nshards--;
        zsd_shard_free(s);
    }
}

/* A rank that attached to a kept job names the shards that it has. */
static struct zsd_shard *shard_again(struct zsd_job *job, uint32_t rank, const Zp__Range *q,
                                     struct zb_err *err)
{
    struct zsd_shard *s = NULL;

    if (q->unit < job->nunits) {
        struct zsd_unit *unit = job->units[q->unit];
        uint32_t at = unit_shard_at(unit, q->first);

        if (at < unit->nshards && unit->shards[at]->first == q->first &&
            unit->shards[at]->count == q->count)
            s = unit->shards[at];
    }
    if (s && s->rank == rank)
        return s;
    if (s) { /* its ring is that rank's, and so are its gradients */
        (void)zb_fail(err, -EINVAL,
                      "a shard of unit '%s' of job '%s' from %llu is rank %u's, not %u's",
                      s->unit->name, job->name, (unsigned long long)q->first, s->rank, rank);
        return NULL;
    }
    (void)zb_fail(err, -ENOENT, "job '%s' has no shard of unit %u from %llu of %llu elements",
                  job->name, q->unit, (unsigned long long)q->first, (unsigned long long)q->count);
    return NULL;
}

void zsd_shard_register(struct zsd_req *req, const ProtobufCMessage *message)
{
    const Zp__ShardRegister *q = (const Zp__ShardRegister *)(const void *)message;
    struct zsd_member *m = zsd_member_of(req, q->job);
    Zp__ShardRegisterReply reply = ZP__SHARD_REGISTER_REPLY__INIT;
    uint64_t ids[ZP_SHARDS_MAX];
    struct zb_err err = { 0 };
    uint32_t before;

    if (!m)
        return;
    before = m->job->nshards;
    if (q->n_ranges < 1 || q->n_ranges > ZP_SHARDS_MAX)
        (void)zb_fail(&err, -EINVAL, "%zu ranges in one request: from 1 to %u", q->n_ranges,
                      ZP_SHARDS_MAX);
    else if (m->ready)
        (void)zb_fail(&err, -EBUSY, "rank %u of job '%s' said that it was ready", m->rank,
                      m->job->name);
    for (size_t i = 0; i < q->n_ranges && err.code == 0; i++) {
        if (m->job->state == ZSD_DEFINING) {
            if (shard_add(m->job, m->rank, q->ranges[i], &err) == 0)
                ids[i] = m->job->shards[m->job->nshards - 1]->id;
        } else {
            struct zsd_shard *s = shard_again(m->job, m->rank, q->ranges[i], &err);

            if (s)
                ids[i] = s->id;
        }
    }
    if (err.code != 0) {
        shards_undo(m->job, before);
        zsd_reply_err(req, &err);
        return;
    }
    reply.n_shards = q->n_ranges;
    reply.shards = ids;
    zsd_reply(req, &reply.base, -1);
}

/* ---- ready */

static void ready_answer(struct zsd_job *job)
{
    Zp__ReadyReply reply = ZP__READY_REPLY__INIT;
    const struct zsd_account *nvme = zsd_job_nvme(job);

    reply.arena_bytes = job->arena_bytes;
    reply.ring_bytes = job->ring_bytes;
    for (int use = 0; use < ZSD_USES; use++) {
        reply.host_bytes += job->host_held.used[use];
        reply.nvme_bytes += nvme->used[use];
    }
    reply.iterations = job->iterations;
    reply.applied = job->applied;
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);
        struct zsd_req *r = m->ready_req;

        if (!r)
            continue;
        m->ready_req = NULL;
        zsd_timed_disarm(&m->ready_timed);
        zsd_reply(r, &reply.base, job->arena.fd);
    }
}

/* Every rank of a kept job is ready again: what was accumulated is dropped, and who has asked for
 * the step with it hears that. */
static void ready_again(struct zsd_job *job)
{
    struct zb_err err = { 0 };

    (void)zb_fail(&err, -EBUSY,
                  "a rank of job '%s' came back: the gradients of step %llu were dropped",
                  job->name, (unsigned long long)job->iterations + 1);
    zsd_step_give_up(job, &err);
    zsd_grads_reset(job);
    job->regained = false;
}

/* Every rank that said it was ready hears why it goes no further; it may say so again. */
static void ready_refuse(struct zsd_job *job, const struct zb_err *why)
{
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        if (m->ready_req)
            m->ready = false;
        member_answer(&m->ready_req, &m->ready_timed, why);
    }
}

/* Every rank has said it now: none still trains on what is in memory. */
static bool ready_together(const struct zsd_job *job)
{
    zb_list_each(pos, &job->members)
    {
        const struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        if (m->conn && !m->ready_req)
            return false;
    }
    return true;
}

/* The version that the ranks go on from: what they said, else the newest that is committed. */
static struct zsd_version *ready_version(const struct zsd_job *job, struct zb_err *err)
{
    struct zsd_version *c = job->saved->committed, *p = job->saved->prepared;

    if (!job->at_point)
        return c ? c : p;
    if (p && p->iterations == job->point)
        return p;
    if (c && c->iterations == job->point)
        return c;
    (void)zb_fail(err, -ENOENT, "job '%s' has no step %llu to go on from", job->name,
                  (unsigned long long)job->point);
    return NULL;
}

static void ready_loaded(struct zsd_job *job, const struct zb_err *err)
{
    struct zsd_version *v = job->from;

    job->from = NULL;
    if (job->state != ZSD_ENDED && err)
        zsd_job_end(job, err);
    if (job->state != ZSD_ENDED) {
        job->iterations = v->iterations;
        job->applied = v->applied;
        job->rewritten = false;
        job->state = ZSD_READY;
        zb_log(ZB_LOG_INFO, "job-loaded", "job=\"%s\" iterations=%llu applied=%llu", job->name,
               (unsigned long long)job->iterations, (unsigned long long)job->applied);
        ready_answer(job);
    }
    zsd_version_unref(v);
}

/* The notes of the version that is loaded; a rank that was not there then has none. */
static int ready_notes(struct zsd_job *job, const struct zsd_version *v)
{
    int rc;

    zsd_note_done(&job->note);
    rc = zsd_note_copy(&job->note, &v->job_note);
    for (uint32_t i = 0; i < job->world; i++)
        zsd_note_done(&job->notes[i]);
    for (uint32_t i = 0; i < job->world && i < v->world && rc == 0; i++)
        rc = zsd_note_copy(&job->notes[i], &v->notes[i]);
    return rc;
}

static void ready_load(struct zsd_job *job, struct zsd_version *v)
{
    struct zb_err err = { 0 };

    job->state = ZSD_LOADING;
    job->from = zsd_version_ref(v);
    if (ready_notes(job, v) < 0) {
        (void)zb_fail(&err, -ENOMEM, "the notes of job '%s': %m", job->name);
        ready_loaded(job, &err);
        return;
    }
    zsd_load_start(job, v, ready_loaded);
}

static bool ready_fits(const struct zsd_version *v, const struct zsd_shard *s)
{
    uint32_t i = zsd_version_find(v, s->unit->index, s->first);

    return i < v->nrows && zsd_row_fits(v->rows[i], s);
}

/* The job in memory goes on from another of its points: what it has beyond is forgotten. */
static void ready_rewind(struct zsd_job *job, struct zsd_version *v)
{
    struct zb_err err = { 0 };
    bool fits = true;

    zb_log(ZB_LOG_INFO, "job-rewind", "job=\"%s\" from=%llu to=%llu", job->name,
           (unsigned long long)job->iterations, (unsigned long long)v->iterations);
    for (uint32_t i = 0; i < job->nshards; i++)
        zsd_shard_forget(job->shards[i]);
    for (uint32_t i = 0; i < job->nshards; i++)
        fits = fits && ready_fits(v, job->shards[i]);
    if (!fits && zsd_saved_reserve(job->saved, &err) < 0) { /* it is written anew beside v */
        zsd_job_end(job, &err);
        return;
    }
    ready_load(job, v);
}

/* Every rank of a job that is in memory is ready again. */
static void ready_present(struct zsd_job *job)
{
    struct zb_err err = { 0 };
    struct zsd_version *v;

    job->ready_waits = job->active > 0 || job->state == ZSD_STEPPING || job->commit;
    if (job->ready_waits)
        return;
    if (job->regained)
        ready_again(job);
    if (!job->durable || !job->at_point || job->point == job->iterations) {
        ready_answer(job);
        return;
    }
    v = ready_version(job, &err);
    if (v && (job->pins > 0 || !ready_together(job))) {
        (void)zb_fail(&err, -EBUSY,
                      "job '%s' cannot go on from step %llu: a rank trains on what is in memory",
                      job->name, (unsigned long long)job->point);
        v = NULL;
    }
    if (v && zsd_saved_room(job->saved, &err) < 0)
        v = NULL;
    if (v)
        ready_rewind(job, v);
    else
        ready_refuse(job, &err);
}

/* Admission; when there is no room, but bytes are on their way back, it waits for them. */
static void place_again(struct zsd_job *job)
{
    struct zb_err err = { 0 };
    struct arena_task *t = arena_task_new(job, ARENA_JOB_OPEN);
    int rc = t ? zsd_place(job, &err) : zb_fail(&err, -ENOMEM, "job '%s': %m", job->name);

    job->place_waits = rc == -ENOSPC && core_make_room(job->core, job);
    if (rc < 0) {
        free(t);
        if (!job->place_waits)
            zsd_job_end(job, &err);
        return;
    }
    t->bytes = job->arena_bytes;
    t->memory_bytes = job->memory_bytes;
    arena_task_start(t);
}

/* Every rank is ready: for a new job, place it and make its memory. */
static void ready_all(struct zsd_job *job)
{
    struct zb_err err = { 0 };
    struct zsd_version *v;

    if (job->state == ZSD_PLACING || job->state == ZSD_LOADING)
        return; /* who asked again meanwhile is answered with the others */
    if (job->state != ZSD_DEFINING) {
        ready_present(job);
        return;
    }
    if (job->again) {
        v = ready_version(job, &err);
        if (!v || zsd_load_check(job, v, &err) < 0) {
            zsd_job_end(job, &err);
            return;
        }
        job->from = zsd_version_ref(v);
    }
    job->state = ZSD_PLACING;
    place_again(job);
}

static void job_arena_opened(struct arena_task *t)
{
    struct zsd_job *job = t->job;
    const struct zsd_account *nvme = zsd_job_nvme(job);
    struct zsd_version *v = job->from;

    job->arena = t->arena;
    job->memory = t->memory;
    if (t->err.code != 0) {
        zsd_job_end(job, &t->err);
        return;
    }
    if (job->state == ZSD_ENDED)
        return; /* job_forget_if_over() ends the memory */
    zsd_place_attach(job);
    zsd_paths_register(job->core->daemon, job->arena.base, job->arena_bytes);
    zsd_paths_register(job->core->daemon, job->memory, job->memory_bytes);
    zb_log(ZB_LOG_INFO, "job-ready",
           "job=\"%s\" shards=%u host_params=%llu host_grads=%llu host_state=%llu ring=%llu "
           "nvme_params=%llu nvme_state=%llu nvme_spare=%llu",
           job->name, job->nshards, (unsigned long long)job->host_held.used[ZSD_USE_PARAM],
           (unsigned long long)job->host_held.used[ZSD_USE_GRAD],
           (unsigned long long)job->host_held.used[ZSD_USE_STATE],
           (unsigned long long)job->host_held.used[ZSD_USE_RING],
           (unsigned long long)nvme->used[ZSD_USE_PARAM],
           (unsigned long long)nvme->used[ZSD_USE_STATE],
           (unsigned long long)nvme->used[ZSD_USE_RING]);
    if (v) {
        job->from = NULL;
        ready_load(job, v);
        zsd_version_unref(v);
        return;
    }
    job->state = ZSD_READY;
    ready_answer(job);
}

static void ready_expire(struct zsd_timed *timed)
{
    struct zsd_member *m = zb_container_of(timed, struct zsd_member, ready_timed);
    struct zsd_req *r = m->ready_req;
    struct zsd_job *job = m->job;
    uint32_t n = 0;

    zb_list_each(pos, &job->members) n += zb_container_of(pos, struct zsd_member, node)->ready;
    m->ready_req = NULL;
    m->ready = false;
    zsd_refuse(r, -ETIMEDOUT, "job '%s' waits for its ranks: %u of %u were ready", job->name, n,
               job->world);
}

static void ready_check(struct zsd_job *job)
{
    uint32_t ready = 0;

    zb_list_each(pos, &job->members)
    {
        const struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        ready += m->ready && m->conn != NULL;
    }
    if (ready == job->world)
        ready_all(job);
}

/* What ready_all() waited for is over. */
static void ready_resume(struct zsd_job *job)
{
    bool waits = job->ready_waits;

    job->ready_waits = false;
    if (waits)
        ready_check(job);
}

/* A rank waits for its peers to be ready. */
static bool ready_others(const struct zsd_job *job)
{
    zb_list_each(pos, &job->members)
    {
        if (zb_container_of(pos, struct zsd_member, node)->ready_req)
            return true;
    }
    return false;
}

void zsd_ready(struct zsd_req *req, const ProtobufCMessage *message)
{
    const Zp__Ready *q = (const Zp__Ready *)(const void *)message;
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zsd_job *job;

    if (!m)
        return;
    job = m->job;
    if (m->ready) {
        zsd_refuse(req, -EBUSY, "rank %u of job '%s' said so already", m->rank, job->name);
        return;
    }
    if (m->defining) {
        zsd_refuse(req, -EINVAL, "unit '%s' of job '%s' is not complete", m->defining->name,
                   job->name);
        return;
    }
    if (job->nshards == 0 && job->world == 1) {
        zsd_refuse(req, -EINVAL, "job '%s' has no shards", job->name);
        return;
    }
    if (ready_others(job) &&
        (q->at_point != job->at_point || (q->at_point && q->iterations != job->point))) {
        zsd_refuse(req, -EINVAL, "rank %u of job '%s' goes on from another step than its peers",
                   m->rank, job->name);
        return;
    }
    job->at_point = q->at_point;
    job->point = q->iterations;
    m->ready = true;
    m->ready_req = req;
    zsd_timed_arm(job->core, &m->ready_timed, q->timeout_ms, ready_expire);
    ready_check(job);
}

/* ---- leaving */

void zsd_job_close(struct zsd_req *req, const ProtobufCMessage *message)
{
    const Zp__JobRef *q = (const Zp__JobRef *)(const void *)message;
    struct zsd_member *m = req->conn->member;
    struct zb_err why = { 0 };
    struct zsd_job *job;
    bool last;

    if (!m || m->job->number != q->job) {
        zsd_refuse(req, -ENOENT, "job %llu is not the one that this connection has opened",
                   (unsigned long long)q->job);
        return;
    }
    job = m->job;
    if (m->open_req) {
        zsd_refuse(req, -EBUSY, "rank %u of job '%s' is still being opened", m->rank, job->name);
        return;
    }
    zsd_job_hold(job);
    last = zsd_job_attached(job) == 1;
    if (!job->keep && job->state != ZSD_DEFINING) /* until it is ready, a rank may come again */
        job->left++;
    (void)zb_fail(&why, -ECANCELED, "rank %u left job '%s'", m->rank, job->name);
    if (last && job->state != ZSD_ENDED && (!job->keep || job->state == ZSD_DEFINING))
        zsd_job_end(job, &why);
    member_detach(m, &why);
    zsd_reply(req, NULL, -1);
    zsd_job_unhold(job);
}

void zsd_job_destroy(struct zsd_req *req, const ProtobufCMessage *message)
{
    const Zp__JobName *q = (const Zp__JobName *)(const void *)message;
    struct zsd_job *job = zsd_job_by_name(req->daemon->core, q->name);
    struct zsd_saved *saved = zsd_saved_by_name(req->daemon->core, q->name);
    struct zb_err why = { 0 };

    if (!job && !saved) {
        zsd_refuse(req, -ENOENT, "there is no job '%s'", q->name);
        return;
    }
    if (!saved && job->saved && job->commit) /* its first commit may come yet */
        saved = job->saved;
    if (saved && (!job || zsd_job_attached(job) == 0)) {
        zsd_saved_destroy(req, saved);
        return;
    }
    if (!zsd_may(req->conn, job->uid)) {
        zsd_refuse(req, -EPERM, "job '%s' belongs to user %u", q->name, (unsigned)job->uid);
        return;
    }
    if (zsd_job_attached(job) > 0) {
        zsd_refuse(req, -EBUSY, "job '%s' has %u ranks attached", q->name, zsd_job_attached(job));
        return;
    }
    (void)zb_fail(&why, -ECANCELED, "job '%s' was destroyed by user %u", q->name,
                  (unsigned)req->conn->uid);
    zsd_job_end(job, &why);
    zsd_reply(req, NULL, -1);
}
