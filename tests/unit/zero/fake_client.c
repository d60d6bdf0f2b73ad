#include "fake_client.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/plan.h"
#include "base/util.h"
#include "client/zclient.h"
#include "kernels/zk.h"
#include "kernels/zk_page.h"
#include "tests/ztest.h"

#define RANKS_MAX  8u
#define UNITS_MAX  64u
#define SHARDS_MAX 256u
#define NODES_MAX  4u

enum kind {
    JOB_OPEN,
    DEFINE,
    REGISTER,
    READY,
    WRITE,
    PUSH,
    READ,
    FETCH,
    NORMS,
    STEP,
    NOTE,
    COMMIT,
    PING,
    CLOSE,
};

struct note {
    bool there;
    size_t bytes;
    unsigned char data[64]; /* the engine puts 32 before those of the test */
};

struct shard {
    uint64_t id, first, count, version;
    struct zb_layout layout;
    struct unit *unit;
    uint32_t rank, pins;
    unsigned char *param, *state, *grad;
    unsigned char *paged; /* of what is quantized: param in pages, as it is fetched */
    uint64_t written, grad_next;
    uint32_t micro;
    struct zk_xsum sum;
    uint64_t nonfinite;
};

struct unit {
    char name[ZC_NAME_MAX + 1];
    uint64_t elems;
    struct zb_layout layout;
    struct zk_segment segments[8];
    size_t nsegments;
};

struct member {
    bool here, ready, asked;
    uint32_t pins;
    struct note note, job_note; /* sent, of the next step */
};

/* A whole state of a job: what a commit keeps. By unit, so that it can be cut anew. */
struct version {
    bool there;
    uint64_t iterations, applied;
    unsigned char *param[UNITS_MAX], *state[UNITS_MAX];
    struct note notes[RANKS_MAX], job_note;
};

struct job {
    bool exists, failed, keep, durable, live;
    uint64_t epoch;
    struct version committed, prepared;
    struct note notes[RANKS_MAX], job_note; /* of the newest step */
    uint64_t at;                            /* that ready named, */
    bool at_said;                           /* if it did */
    int code;                               /* of failed */
    uint32_t lost;                          /* the rank, of -EOWNERDEAD */
    uint32_t world, groups;
    struct member members[RANKS_MAX];
    struct unit units[UNITS_MAX];
    uint32_t nunits;
    struct shard shards[SHARDS_MAX];
    uint32_t nshards;
    uint64_t iterations, applied;
    /* the step */
    bool stepping, skip;
    struct zc_step step;
    struct zc_group step_groups[64];
    int commit_code; /* of the step that has ended */
    uint32_t next_shard;
    uint64_t shard_ns; /* when the last one was done */
    uint64_t pushed_bytes, fetched_bytes;
};

static struct {
    pthread_mutex_t lock;
    struct fake_config config;
    const struct zk_ops *ops;
    struct job jobs[NODES_MAX];
    uint32_t calls; /* of the rank that will fail */
    enum fake_when faulted;
    uint32_t handles, pins_most;
    uint64_t seed;
} fake = { .lock = PTHREAD_MUTEX_INITIALIZER };

struct call {
    struct zb_list node;
    enum kind kind;
    zc_done_fn *done;
    void *arg, *ret;
    uint32_t delay;
    bool never;
    int rc; /* how it will end, if not well */
    uint64_t shard, first, count, number, micro;
    bool add, lies;
    enum zc_what what;
    enum zc_commit commit;
    void *staged;
    uint32_t n;
};

struct zc_client {
    struct zb_err err;
    struct zc_server server;
    uint32_t node, rank, who; /* rank of the node, and of all */
    bool lost, joined, told;
    uint64_t epoch;
    struct zb_list calls;
    zc_event_fn *on_event;
    void *on_event_arg;
    void *staging;
    uint64_t staging_bytes;
};

/* ---- the test's side */

void fake_reset(const struct fake_config *config)
{
    struct zb_err err = { 0 };

    fake.config = *config;
    if (fake.config.shards_max == 0)
        fake.config.shards_max = 1024;
    if (fake.config.nodes == 0)
        fake.config.nodes = 1;
    assert(zk_select(NULL, &fake.ops, &err) == 0);
    fake.calls = fake.pins_most = 0;
    fake.faulted = FAKE_NOT_YET;
    fake.seed = config->seed;
    if (fake.handles == 0) /* whatever failed has ended with who saw it */
        for (uint32_t n = 0; n < NODES_MAX; n++)
            fake.jobs[n].failed = false;
}

enum fake_when fake_faulted(void)
{
    return fake.faulted;
}

uint32_t fake_handles(void)
{
    return fake.handles;
}

uint32_t fake_pins(void)
{
    return fake.jobs[0].members[0].pins;
}

uint32_t fake_pins_most(void)
{
    return fake.pins_most;
}

static void shards_free(struct job *job)
{
    for (uint32_t i = 0; i < job->nshards; i++) {
        free(job->shards[i].param);
        free(job->shards[i].paged);
        free(job->shards[i].state);
        free(job->shards[i].grad);
    }
    job->nshards = 0;
    job->live = false;
}

static void version_free(struct version *v)
{
    for (uint32_t u = 0; u < UNITS_MAX; u++) {
        free(v->param[u]);
        free(v->state[u]);
    }
    memset(v, 0, sizeof(*v));
}

static void job_free(struct job *job)
{
    shards_free(job);
    version_free(&job->committed);
    version_free(&job->prepared);
    memset(job, 0, sizeof(*job));
}

/* Copies a shard's planes to or from where they lie in a version. */
static void version_move(struct version *v, const struct job *job, struct shard *s, bool save)
{
    uint32_t u = (uint32_t)(s->unit - job->units);
    unsigned char **units[2] = { &v->param[u], &v->state[u] };
    unsigned char *planes[2] = { s->param, s->state };
    static const int kinds[2] = { ZB_PARAM, ZB_STATE };

    for (int p = 0; p < 2; p++) {
        uint32_t bytes = s->layout.block_bytes[kinds[p]];

        if (!planes[p])
            continue;
        if (!*units[p])
            *units[p] = calloc(zb_padded_elems(s->unit->elems) / ZB_BLOCK_ELEMS, bytes);
        assert(*units[p]);
        if (save)
            memcpy(*units[p] + zb_blocks_bytes(bytes, s->first), planes[p],
                   zb_blocks_bytes(bytes, s->count));
        else
            memcpy(planes[p], *units[p] + zb_blocks_bytes(bytes, s->first),
                   zb_blocks_bytes(bytes, s->count));
    }
}

static void version_save(struct version *v, struct job *job)
{
    version_free(v);
    v->there = true;
    v->iterations = job->iterations;
    v->applied = job->applied;
    memcpy(v->notes, job->notes, sizeof(v->notes));
    v->job_note = job->job_note;
    for (uint32_t i = 0; i < job->nshards; i++)
        version_move(v, job, &job->shards[i], true);
}

static void version_load(struct version *v, struct job *job)
{
    assert(v->there);
    job->iterations = v->iterations;
    job->applied = v->applied;
    memcpy(job->notes, v->notes, sizeof(v->notes));
    job->job_note = v->job_note;
    for (uint32_t i = 0; i < job->nshards; i++) {
        version_move(v, job, &job->shards[i], false);
        job->shards[i].version = v->applied;
        job->shards[i].written = job->shards[i].count;
    }
}

static void job_resolve(struct job *job, bool commit)
{
    if (commit) {
        version_free(&job->committed);
        job->committed = job->prepared;
        memset(&job->prepared, 0, sizeof(job->prepared));
    }
    version_free(&job->prepared);
}

void fake_crash(uint32_t node)
{
    struct job *job = &fake.jobs[node];

    for (uint32_t r = 0; r < RANKS_MAX; r++)
        assert(!job->members[r].here);
    shards_free(job);
    if (!job->committed.there && !job->prepared.there)
        job_free(job);
}

struct fake_points fake_points(uint32_t node)
{
    const struct job *job = &fake.jobs[node];

    return (struct fake_points){
        .memory = job->live ? (int)job->iterations : -1,
        .prepared = job->prepared.there ? (int)job->prepared.iterations : -1,
        .committed = job->committed.there ? (int)job->committed.iterations : -1
    };
}

void fake_forget(uint32_t node, bool prepared, bool committed)
{
    if (prepared)
        version_free(&fake.jobs[node].prepared);
    if (committed)
        version_free(&fake.jobs[node].committed);
}

void fake_prepare(uint32_t node)
{
    version_save(&fake.jobs[node].prepared, &fake.jobs[node]);
}

void fake_end(void)
{
    assert(fake.handles == 0);
    for (uint32_t n = 0; n < NODES_MAX; n++)
        job_free(&fake.jobs[n]);
}

/* ---- helpers; all under the lock */

/* Another epoch has begun: this handle is of an older one. */
static bool stale(const struct zc_client *c);

static struct job *job_of(struct zc_client *c)
{
    return &fake.jobs[c->node];
}

static int record(struct zc_client *c, int rc, const char *text)
{
    c->err.code = 0;
    return zb_fail(&c->err, rc, "%s", text);
}

static struct shard *shard_of(struct zc_client *c, uint64_t id)
{
    struct job *job = job_of(c);

    assert(id >= 1 && id <= job->nshards);
    return &job->shards[id - 1];
}

static bool stale(const struct zc_client *c)
{
    return c->joined && c->epoch != fake.jobs[c->node].epoch;
}

static void job_fail(struct job *job, int code, uint32_t rank)
{
    if (!job->failed) {
        job->failed = true;
        job->code = code;
        job->lost = rank;
    }
}

static void hang_up(struct zc_client *c);

/* A call begins: 0, and *ret is in the handle; or it is refused. */
static int begin(struct zc_client *c, enum kind kind, zc_done_fn *done, void *arg,
                 struct call **ret)
{
    struct fake_config *f = &fake.config;
    struct call *call;
    bool now = false;

    if (c->lost)
        return record(c, -ENOTCONN, "the daemon is gone");
    if (stale(c))
        return record(c, -ESTALE, "taken over, says the test");
    if (f->fault != FAKE_NONE && c->who == f->rank && !fake.faulted) {
        now = ++fake.calls == f->nth;
        if (now)
            fake.faulted = kind <= WRITE   ? FAKE_AT_START
                           : kind == CLOSE ? FAKE_AT_END
                                           : FAKE_AT_WORK;
    }
    if (now && f->fault == FAKE_START)
        return record(c, f->rc, "refused by the test");
    if (now && f->fault == FAKE_NOBUFS)
        return record(c, -ENOBUFS, "too many calls, says the test");
    if (now && f->fault == FAKE_HANGUP) {
        hang_up(c);
        return record(c, -ENOTCONN, "the test hung up");
    }
    if (now && f->fault == FAKE_JOB)
        job_fail(job_of(c), f->rc, UINT32_MAX);
    call = calloc(1, sizeof(*call));
    assert(call);
    call->kind = kind;
    call->done = done;
    call->arg = arg;
    call->delay = f->delay_max ? (uint32_t)(ztest_random(&fake.seed) % (f->delay_max + 1)) : 0;
    if (now) {
        call->never = f->fault == FAKE_NEVER;
        call->lies = f->fault == FAKE_LIES && (kind == FETCH || kind == STEP);
        call->rc = f->fault == FAKE_DONE || (f->fault == FAKE_LIES && !call->lies) ? f->rc : 0;
    }
    zb_list_push_back(&c->calls, &call->node);
    *ret = call;
    return 0;
}

#define BEGIN(c, kind, done, arg, call)              \
    pthread_mutex_lock(&fake.lock);                  \
    rc = begin((c), (kind), (done), (arg), &(call)); \
    if (rc == 0)

#define END()                         \
    pthread_mutex_unlock(&fake.lock); \
    return rc

static struct zk_page page_of(struct shard *s, uint64_t first, uint64_t count)
{
    const uint32_t *bytes = s->layout.block_bytes;

    assert(first % ZB_BLOCK_ELEMS == 0 && zb_range_inside(first, count, s->count));
    return (struct zk_page){
        .param = s->param + zb_blocks_bytes(bytes[ZB_PARAM], first),
        .state = s->state ? s->state + zb_blocks_bytes(bytes[ZB_STATE], first) : NULL,
        .grad = s->grad ? s->grad + zb_blocks_bytes(bytes[ZB_GRAD], first) : NULL,
        .first = s->first + first,
        .count = count,
    };
}

static void check_range(struct zc_client *c, const struct shard *s, uint64_t first, uint64_t count,
                        const void *staged)
{
    uint64_t page = fake.config.page_elems;
    const char *at = staged, *begin_at = c->staging;

    assert(count > 0 && first % page == 0 && zb_range_inside(first, count, s->count));
    assert(count % page == 0 || first + count == s->count);
    assert((at - begin_at) % 64 == 0 && at >= begin_at &&
           (uint64_t)(at - begin_at) + count * 4 <= c->staging_bytes);
}

/* ---- the step */

static void note_keep(struct note *kept, struct note *sent)
{
    if (sent->there)
        *kept = *sent;
    sent->there = false;
}

/* 0, or why not. */
static int job_commit(struct job *job, enum zc_commit what)
{
    const struct fake_config *f = &fake.config;

    if (f->commit_rc && job == &fake.jobs[f->commit_node] && job->iterations == f->commit_at)
        return f->commit_rc;
    if (job->prepared.there)
        return -EBUSY;
    version_save(what == ZC_COMMIT_PREPARE ? &job->prepared : &job->committed, job);
    return 0;
}

static void step_finish(struct job *job)
{
    job->stepping = false;
    job->next_shard = 0;
    job->shard_ns = 0;
    job->iterations++;
    job->applied += !job->skip;
    for (uint32_t i = 0; i < job->nshards; i++)
        job->shards[i].micro = job->shards[i].grad_next = 0;
    for (uint32_t r = 0; r < job->world; r++) {
        job->members[r].asked = false;
        note_keep(&job->notes[r], &job->members[r].note);
        note_keep(&job->job_note, &job->members[r].job_note);
    }
    job->commit_code = job->step.commit ? job_commit(job, job->step.commit) : 0;
}

static void step_one(struct job *job)
{
    struct zk_scalars by_group[64];
    struct shard *s;
    struct zk_page page;

    if (!job->stepping)
        return;
    if (job->shard_ns == 0)
        job->shard_ns = zb_now_ns();
    if (zb_now_ns() - job->shard_ns < fake.config.step_ms * UINT64_C(1000000))
        return;
    job->shard_ns = zb_now_ns();
    if (job->skip || job->next_shard == job->nshards) {
        step_finish(job);
        return;
    }
    s = &job->shards[job->next_shard++];
    if (!s->layout.frozen) {
        assert(s->pins == 0 && s->grad_next == s->count);
        for (uint32_t g = 0; g < job->groups; g++) {
            const struct zc_group *from = &job->step_groups[g];
            struct zk_params p = { .lr = from->lr,
                                   .beta1 = from->beta1,
                                   .beta2 = from->beta2,
                                   .eps = from->eps,
                                   .weight_decay = from->weight_decay,
                                   .scale = job->step.scale };

            by_group[g] = zk_prepare(ZB_ADAMW, &p, job->applied + 1);
        }
        page = page_of(s, 0, s->count);
        zk_page_step(fake.ops, &s->layout, &page, s->unit->segments, s->unit->nsegments, by_group);
    }
    s->version = job->applied + 1;
}

static bool step_may_begin(const struct job *job)
{
    if (job->world == 0 || job->prepared.there)
        return false;
    for (uint32_t r = 0; r < job->world; r++)
        if (!job->members[r].asked)
            return false;
    for (uint32_t i = 0; i < job->nshards; i++)
        if (job->shards[i].pins > 0)
            return false;
    return true;
}

/* A rank leaves; with the last one goes the job, or what was half done in a kept one. */
static void member_leave(struct zc_client *c)
{
    struct job *job = job_of(c);
    bool cut_off = stale(c);

    c->joined = false;
    if (cut_off)
        return;
    job->stepping = job->stepping || step_may_begin(job);
    while (job->stepping) /* a step that began ends without its ranks */
        step_one(job);
    job->members[c->rank] = (struct member){ 0 };
    for (uint32_t r = 0; r < job->world; r++)
        if (job->members[r].here)
            return;
    if (!job->keep) {
        job_free(job);
        return;
    }
    job->failed = false;
    for (uint32_t i = 0; i < job->nshards; i++)
        job->shards[i].pins = 0;
}

static void hang_up(struct zc_client *c)
{
    c->lost = true;
    if (!c->joined)
        return;
    if (!stale(c))
        job_fail(job_of(c), -EOWNERDEAD, c->rank);
    member_leave(c);
}

/* ---- how calls end: true, with call->rc, or false: not yet */

static bool end_ready(struct job *job, struct call *call)
{
    struct zc_placement *ret = call->ret;

    for (uint32_t r = 0; r < job->world; r++)
        if (!job->members[r].ready)
            return false;
    if (job->at_said && (!job->live || job->at != job->iterations))
        version_load(job->prepared.there && job->prepared.iterations == job->at ? &job->prepared
                                                                                : &job->committed,
                     job);
    *ret = (struct zc_placement){ .ring_bytes = fake.config.ring ? 4096 : 0,
                                  .iterations = job->iterations,
                                  .applied = job->applied,
                                  .early = true }; /* as a kept job has that was opened with it */
    job->live = true;
    job->at_said = false; /* the others are answered alike */
    return true;
}

static bool end_write(struct shard *s, struct call *call)
{
    struct zk_page page = page_of(s, call->first, call->count);

    assert(s->pins == 0);
    for (uint64_t i = 0; i < call->count; i++)
        assert(s->first + call->first + i < s->unit->elems ||
               ((const float *)call->staged)[i] == 0);
    zk_page_init(fake.ops, &s->layout, &page, call->staged);
    s->written += call->count;
    memset(call->staged, 0xa5, call->count * 4);
    return true;
}

static bool end_push(struct job *job, struct shard *s, struct call *call)
{
    struct zk_page page = page_of(s, call->first, call->count);

    assert(!job->stepping && !s->layout.frozen && call->number == job->iterations + 1);
    assert(call->add == (call->micro > 0));
    if (call->micro == s->micro + 1 && s->grad_next == s->count && call->first == 0) {
        s->micro++;
        s->grad_next = 0;
    }
    assert(call->micro == s->micro && call->first == s->grad_next);
    if (call->first == 0) {
        s->sum = (struct zk_xsum){ 0 };
        s->nonfinite = 0;
    }
    zk_page_ingest(fake.ops, &s->layout, &page, call->staged, ZB_F32, call->add, &s->sum,
                   &s->nonfinite);
    s->grad_next += call->count;
    job->pushed_bytes += call->count * 4;
    memset(call->staged, 0xa5, call->count * 4);
    return true;
}

/* What a fetch shows: elements as they are; codes page behind page, as in the daemon's arena. */
static struct zc_view view_of(const struct zc_client *c, struct shard *s)
{
    uint32_t block = s->layout.block_bytes[ZB_PARAM];
    uint64_t page = c->server.page_elems, bytes = zb_plane_bytes(block, page, s->count);

    if (!s->layout.quantized)
        return (struct zc_view){ .data = s->param, .bytes = zb_blocks_bytes(block, s->count) };
    if (!s->paged)
        s->paged = aligned_alloc(4096, bytes);
    assert(s->paged);
    memset(s->paged, 0, bytes);
    for (uint64_t at = 0; at < s->count; at += page)
        memcpy(s->paged + zb_plane_bytes(block, page, at), s->param + zb_blocks_bytes(block, at),
               zb_blocks_bytes(block, zb_min_u64(page, s->count - at)));
    return (struct zc_view){ .data = s->paged, .bytes = bytes };
}

static bool end_fetch(struct zc_client *c, struct job *job, struct shard *s, struct call *call)
{
    struct member *m = &job->members[c->rank];
    struct zc_view *view = call->ret;
    bool stale = job->stepping && !job->skip && s->version == job->applied;

    if (s->written < s->count) {
        call->rc = record(c, -EAGAIN, "not written yet");
        return true;
    }
    assert(!fake.config.ring || m->pins < ZC_PINS_MIN);
    if (s->version < call->number || stale)
        return false;
    s->pins++;
    m->pins++;
    fake.pins_most = m->pins > fake.pins_most ? m->pins : fake.pins_most;
    *view = view_of(c, s);
    view->version = s->version - call->lies;
    return true;
}

static bool end_norms(struct zc_client *c, struct job *job, struct call *call)
{
    struct zc_norm *ret = call->ret;
    struct zk_xsum sum = { 0 };

    assert(call->number == job->iterations + 1);
    ret->nonfinite = 0;
    for (uint32_t i = 0; i < job->nshards; i++) {
        struct shard *s = &job->shards[i];

        if (s->rank != c->rank || s->layout.frozen)
            continue;
        assert(s->grad_next == s->count);
        zk_xsum_merge(&sum, &s->sum);
        ret->nonfinite += s->nonfinite;
    }
    zk_xsum_store(&sum, ret->sum_of_squares);
    return true;
}

static bool end_commit(struct zc_client *c, struct job *job, struct call *call)
{
    struct zc_point *ret = call->ret;

    assert(job->durable && !job->stepping);
    if (call->commit == ZC_COMMIT_STEP || call->commit == ZC_COMMIT_PREPARE) {
        assert(call->number == job->iterations);
        call->rc = job_commit(job, call->commit);
    } else if (job->prepared.there && job->prepared.iterations == call->number) {
        job_resolve(job, call->commit == ZC_COMMIT_PREPARED);
    } else {
        call->rc = -ENOENT;
    }
    if (call->rc)
        call->rc = record(c, call->rc, "not committed, says the test");
    *ret = (struct zc_point){ .iterations = call->number };
    return true;
}

static bool end_step(struct job *job, struct call *call)
{
    struct zc_stepped *ret = call->ret;

    if (job->iterations < call->number) {
        job->stepping = job->stepping || step_may_begin(job);
        return false;
    }
    *ret = (struct zc_stepped){ .iterations = job->iterations + call->lies,
                                .applied = job->applied,
                                .commit_code = job->commit_code };
    if (ret->commit_code)
        (void)snprintf(ret->commit_text, sizeof(ret->commit_text), "no room, says the test");
    return true;
}

static bool try_end(struct zc_client *c, struct call *call)
{
    struct job *job = job_of(c);
    struct shard *s = call->shard ? shard_of(c, call->shard) : NULL;
    struct zk_page page;

    switch (call->kind) {
    case JOB_OPEN:
    case DEFINE:
    case REGISTER:
        return true;
    case READY:
        return end_ready(job, call);
    case WRITE:
        return end_write(s, call);
    case PUSH:
        return end_push(job, s, call);
    case READ:
        assert(!job->stepping && s->written == s->count);
        page = page_of(s, call->first, call->count);
        zk_page_read(fake.ops, &s->layout, &page, (enum zk_what)call->what, call->staged);
        return true;
    case FETCH:
        return end_fetch(c, job, s, call);
    case NORMS:
        return end_norms(c, job, call);
    case STEP:
        return end_step(job, call);
    case NOTE:
        return true;
    case COMMIT:
        return end_commit(c, job, call);
    case PING:
        return fake.config.fault != FAKE_NEVER || fake.faulted == FAKE_NOT_YET;
    case CLOSE:
        member_leave(c);
        return true;
    }
    return false;
}

/* Takes out the next call that ends; NULL: none does now. */
static struct call *next_end(struct zc_client *c)
{
    const struct job *job = job_of(c);
    bool blocked[CLOSE + 1] = { false };

    zb_list_each(pos, &c->calls)
    {
        struct call *call = zb_container_of(pos, struct call, node);
        bool in_order = call->kind == PUSH || call->kind == WRITE || call->kind == FETCH;

        if (c->lost)
            call->rc = record(c, -ENOTCONN, "the daemon is gone");
        else if (stale(c) && c->told)
            call->rc = record(c, -ESTALE, "taken over");
        else if (stale(c))
            continue;
        else if (job->failed && (c->told || !c->joined)) /* the event comes first */
            call->rc = record(c, job->code, "the job is over");
        else if (call->never || (in_order && blocked[call->kind])) {
            blocked[call->kind] = true;
            continue;
        } else if (call->delay > 0) {
            call->delay--;
            blocked[call->kind] = true;
            continue;
        } else if (call->rc != 0)
            call->rc = record(c, call->rc, "failed by the test");
        else if (!try_end(c, call)) {
            blocked[call->kind] = true;
            continue;
        }
        zb_list_remove(&call->node);
        return call;
    }
    return NULL;
}

static int end_calls(struct zc_client *c)
{
    int ran = 0;

    for (;;) {
        struct call *call;

        pthread_mutex_lock(&fake.lock);
        call = next_end(c);
        pthread_mutex_unlock(&fake.lock);
        if (!call)
            return ran;
        call->done(call->arg, call->rc);
        free(call);
        ran++;
    }
}

/* ---- the handle */

int zc_open(struct zc_client **ret, const struct zc_options *options)
{
    struct zc_client *c = calloc(1, sizeof(*c));

    *ret = c;
    assert(c && options->program);
    zb_list_init(&c->calls);
    pthread_mutex_lock(&fake.lock);
    fake.handles++;
    if (options->socket && sscanf(options->socket, "rank %u", &c->who) == 1)
        c->node = c->who % fake.config.nodes;
    c->server = (struct zc_server){ .page_elems = fake.config.page_elems,
                                    .block_elems = ZB_BLOCK_ELEMS,
                                    .shards_max = fake.config.shards_max,
                                    .instance = { 7, (uint8_t)c->node } };
    pthread_mutex_unlock(&fake.lock);
    if (options->socket && strstr(options->socket, "refuse")) {
        c->lost = true;
        return record(c, -ENOTCONN, "nobody answers there, says the test");
    }
    return 0;
}

void zc_close(struct zc_client *c)
{
    struct zb_list *node;

    if (!c)
        return;
    while ((node = zb_list_pop_front(&c->calls)) != NULL) {
        struct call *call = zb_container_of(node, struct call, node);

        (void)record(c, -ECANCELED, "closed");
        call->done(call->arg, -ECANCELED);
        free(call);
    }
    pthread_mutex_lock(&fake.lock);
    if (!c->lost)
        hang_up(c);
    fake.handles--;
    free(c->staging);
    pthread_mutex_unlock(&fake.lock);
    free(c);
}

const char *zc_error(const struct zc_client *c)
{
    return c->err.text;
}

const struct zc_server *zc_server(const struct zc_client *c)
{
    return &c->server;
}

int zc_fd(const struct zc_client *c)
{
    (void)c;
    return -1;
}

short zc_events(const struct zc_client *c)
{
    (void)c;
    return 0;
}

void zc_on_event(struct zc_client *c, zc_event_fn *fn, void *arg)
{
    c->on_event = fn;
    c->on_event_arg = arg;
}

int zc_poll(struct zc_client *c, int timeout_ms)
{
    struct zc_event event = { .kind = ZC_EVENT_JOB_FAILED, .job = 42 };
    char text[64];
    bool tell;
    int ran = 0, rc;

    (void)timeout_ms;
    pthread_mutex_lock(&fake.lock);
    step_one(job_of(c));
    tell = (job_of(c)->failed || stale(c)) && c->joined && !c->told;
    c->told = c->told || tell;
    event.code = stale(c) ? -ESTALE : job_of(c)->code;
    event.rank = job_of(c)->lost;
    if (event.code == -EOWNERDEAD)
        event.kind = ZC_EVENT_PEER_LOST;
    (void)snprintf(text, sizeof(text),
                   event.code == -ESTALE ? "taken over, says the test (%d)"
                                         : "rank %d of job 'fake' hung up, says the test",
                   (int)event.rank);
    event.text = text;
    pthread_mutex_unlock(&fake.lock);
    if (tell) {
        c->on_event(c->on_event_arg, &event);
        ran++;
    }
    ran += end_calls(c);
    pthread_mutex_lock(&fake.lock);
    rc = c->lost ? record(c, -ENOTCONN, "the daemon is gone, says the test") : ran;
    pthread_mutex_unlock(&fake.lock);
    return rc;
}

/* ---- calls */

/* Who is attached is cut off; in another world, what is only in memory is saved first. */
static void open_takeover(struct job *job, uint32_t world)
{
    const struct version *c = &job->committed, *p = &job->prepared;

    job->epoch++;
    job->failed = false;
    job->stepping = false;
    memset(job->members, 0, sizeof(job->members));
    for (uint32_t i = 0; i < job->nshards; i++)
        job->shards[i].pins = 0;
    if (!job->live) /* it was only forming */
        shards_free(job);
    if (world == job->world)
        return;
    assert(job->durable);
    if (job->live && !(c->there && c->iterations == job->iterations) &&
        !(p->there && p->iterations == job->iterations))
        assert(job_commit(job, fake.config.nodes > 1 ? ZC_COMMIT_PREPARE : ZC_COMMIT_STEP) == 0);
    shards_free(job);
    job->world = world;
}

/* All of it has values. */
static bool job_whole(const struct job *job)
{
    for (uint32_t i = 0; i < job->nshards; i++)
        if (job->shards[i].written < job->shards[i].count)
            return false;
    return job->live;
}

static void open_points(const struct job *job, struct zc_job *ret)
{
    if (job_whole(job))
        ret->points[ret->npoints++] =
            (struct zc_point){ ZC_POINT_MEMORY, job->iterations, job->applied };
    if (job->prepared.there)
        ret->points[ret->npoints++] =
            (struct zc_point){ ZC_POINT_PREPARED, job->prepared.iterations, job->prepared.applied };
    if (job->committed.there)
        ret->points[ret->npoints++] = (struct zc_point){ ZC_POINT_COMMITTED,
                                                         job->committed.iterations,
                                                         job->committed.applied };
}

int zc_job_open(struct zc_client *c, const struct zc_job_options *options, struct zc_job *ret,
                zc_done_fn *done, void *arg)
{
    struct call *call;
    struct job *job;
    int rc;

    BEGIN(c, JOB_OPEN, done, arg, call)
    {
        job = job_of(c);
        assert(options->rank < options->world && options->world <= RANKS_MAX);
        if (options->attach && !job->exists)
            call->rc = -ENOENT;
        else if (options->takeover)
            open_takeover(job, options->world);
        else if (options->epoch != job->epoch && options->attach)
            call->rc = -ESTALE;
        else if (job->failed)
            call->rc = job->code;
        if (call->rc)
            goto end;
        if (!job->exists) {
            job->exists = true;
            job->keep = options->keep;
            job->durable = options->durable;
            job->world = options->world;
            job->groups = options->groups;
        }
        assert(job->world == options->world && !job->members[options->rank].here);
        assert(job->keep == options->keep && job->durable == options->durable);
        job->members[options->rank].here = true;
        c->rank = options->rank;
        c->joined = true;
        c->epoch = job->epoch;
        c->staging_bytes = zb_round_up(options->staging_bytes, 4096);
        c->staging = aligned_alloc(4096, c->staging_bytes);
        assert(c->staging);
        *ret = (struct zc_job){ .id = 42,
                                .iterations = job->iterations,
                                .applied = job->applied,
                                .staging = c->staging,
                                .staging_bytes = c->staging_bytes,
                                .epoch = job->epoch };
        open_points(job, ret);
    }
end:
    END();
}

int zc_gpu_share(struct zc_client *c, uint64_t job_id, struct zc_gpu_memory *ret, zc_done_fn *done,
                 void *arg)
{
    (void)c;
    (void)job_id;
    (void)ret;
    (void)done;
    (void)arg;
    assert(!"no placement of the fake is on the GPU");
    return -ENOENT;
}

int zc_unit_define(struct zc_client *c, uint64_t job_id, const struct zc_unit *unit,
                   zc_done_fn *done, void *arg)
{
    struct zb_err err = { 0 };
    struct call *call;
    int rc;

    assert(job_id == 42);
    BEGIN(c, DEFINE, done, arg, call)
    {
        struct job *job = job_of(c);
        struct unit *u = &job->units[unit->index];

        assert(unit->index <= job->nunits && unit->index < UNITS_MAX);
        if (unit->index == job->nunits) {
            job->nunits++;
            (void)snprintf(u->name, sizeof(u->name), "%s", unit->name);
            u->elems = unit->elems;
            assert(zb_layout_of((enum zb_dtype)unit->dtype, (enum zb_dtype)unit->grad_dtype,
                                ZB_ADAMW, ZB_MOMENTS_F32, unit->frozen, &u->layout, &err) == 0);
            if (unit->quantized)
                zb_layout_quantize(&u->layout);
            for (uint32_t t = 0; t < unit->ntensors; t++) {
                uint64_t count = 1;

                for (uint32_t d = 0; d < unit->tensors[t].ndims; d++)
                    count *= unit->tensors[t].dims[d];
                if (unit->tensors[t].group != ZC_GROUP_FROZEN)
                    u->segments[u->nsegments++] = (struct zk_segment){ unit->tensors[t].first,
                                                                       count,
                                                                       unit->tensors[t].group };
            }
        }
        assert(strcmp(u->name, unit->name) == 0 && u->elems == unit->elems &&
               u->layout.quantized == unit->quantized);
    }
    END();
}

int zc_register(struct zc_client *c, uint64_t job_id, const struct zc_range *ranges, uint32_t n,
                uint64_t *ret_ids, zc_done_fn *done, void *arg)
{
    struct call *call;
    int rc;

    assert(job_id == 42 && n > 0 && n <= c->server.shards_max);
    BEGIN(c, REGISTER, done, arg, call)
    {
        struct job *job = job_of(c);

        for (uint32_t i = 0; i < n; i++) {
            struct unit *u = &job->units[ranges[i].unit];
            struct shard *s = NULL;

            assert(ranges[i].unit < job->nunits && ranges[i].count > 0);
            assert(ranges[i].first + ranges[i].count <= zb_padded_elems(u->elems));
            for (uint32_t k = 0; k < job->nshards; k++)
                if (job->shards[k].unit == u && job->shards[k].first == ranges[i].first)
                    s = &job->shards[k]; /* of a kept job */
            assert(!s || (job->live && s->count == ranges[i].count));
            if (!s) {
                assert(job->nshards < SHARDS_MAX);
                s = &job->shards[job->nshards++];
                *s = (struct shard){ .id = job->nshards,
                                     .first = ranges[i].first,
                                     .count = ranges[i].count,
                                     .layout = u->layout,
                                     .unit = u };
                s->param =
                    aligned_alloc(4096, zb_page_bytes(s->layout.block_bytes[ZB_PARAM], s->count));
                if (!s->layout.frozen) {
                    s->state = aligned_alloc(
                        4096, zb_blocks_bytes(s->layout.block_bytes[ZB_STATE], s->count));
                    s->grad = aligned_alloc(
                        4096, zb_blocks_bytes(s->layout.block_bytes[ZB_GRAD], s->count));
                }
            }
            s->rank = c->rank;
            s->grad_next = s->micro = 0;
            ret_ids[i] = s->id;
        }
    }
    END();
}

int zc_ready(struct zc_client *c, uint64_t job_id, const uint64_t *at, uint32_t timeout_ms,
             struct zc_placement *ret, zc_done_fn *done, void *arg)
{
    struct call *call;
    int rc;

    assert(job_id == 42 && timeout_ms > 0);
    BEGIN(c, READY, done, arg, call)
    {
        struct job *job = job_of(c);

        assert(!at || !job->at_said || job->at == *at);
        assert(!at || (job->live && *at == job->iterations) ||
               (job->prepared.there && *at == job->prepared.iterations) ||
               (job->committed.there && *at == job->committed.iterations));
        job->at_said = at != NULL;
        job->at = at ? *at : 0;
        job_of(c)->members[c->rank].ready = true;
        call->ret = ret;
    }
    END();
}

int zc_job_close(struct zc_client *c, uint64_t job_id, zc_done_fn *done, void *arg)
{
    struct call *call;
    int rc;

    assert(job_id == 42);
    BEGIN(c, CLOSE, done, arg, call)
    {
        assert(job_of(c)->members[c->rank].pins == 0);
    }
    END();
}

int zc_write(struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first, uint64_t count,
             const float *staged, zc_done_fn *done, void *arg)
{
    struct call *call;
    int rc;

    BEGIN(c, WRITE, done, arg, call)
    {
        assert(what == ZC_MASTER);
        check_range(c, shard_of(c, shard), first, count, staged);
        call->shard = shard;
        call->first = first;
        call->count = count;
        call->staged = (void *)(uintptr_t)staged;
    }
    END();
}

int zc_read(struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first, uint64_t count,
            void *staged, zc_done_fn *done, void *arg)
{
    struct call *call;
    int rc;

    BEGIN(c, READ, done, arg, call)
    {
        check_range(c, shard_of(c, shard), first, count, staged);
        call->shard = shard;
        call->first = first;
        call->count = count;
        call->staged = staged;
        call->what = what;
    }
    END();
}

int zc_fetch(struct zc_client *c, const uint64_t *shards, uint32_t n, uint64_t min_version,
             uint32_t timeout_ms, struct zc_view *ret_views, zc_done_fn *done, void *arg)
{
    struct call *call;
    int rc;

    assert(n == 1 && timeout_ms > 0);
    BEGIN(c, FETCH, done, arg, call)
    {
        call->shard = shards[0];
        call->number = min_version;
        call->ret = ret_views;
    }
    END();
}

int zc_release(struct zc_client *c, const uint64_t *shards, uint32_t n)
{
    struct shard *s;

    assert(n == 1);
    pthread_mutex_lock(&fake.lock);
    if (stale(c)) {
        pthread_mutex_unlock(&fake.lock);
        return 0;
    }
    s = shard_of(c, shards[0]);
    assert(s->pins > 0 && job_of(c)->members[c->rank].pins > 0);
    s->pins--;
    job_of(c)->members[c->rank].pins--;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

int zc_push(struct zc_client *c, const struct zc_push *push, zc_done_fn *done, void *arg)
{
    struct call *call;
    int rc;

    assert(push->dtype == ZC_F32);
    BEGIN(c, PUSH, done, arg, call)
    {
        check_range(c, shard_of(c, push->shard), push->first, push->count, push->staged);
        call->shard = push->shard;
        call->number = push->step;
        call->micro = push->micro;
        call->add = push->add;
        call->first = push->first;
        call->count = push->count;
        call->staged = (void *)(uintptr_t)push->staged;
    }
    END();
}

int zc_norms(struct zc_client *c, uint64_t job_id, uint64_t step, struct zc_norm *ret,
             zc_done_fn *done, void *arg)
{
    struct call *call;
    int rc;

    assert(job_id == 42);
    BEGIN(c, NORMS, done, arg, call)
    {
        call->number = step;
        call->ret = ret;
    }
    END();
}

int zc_ping(struct zc_client *c, zc_done_fn *done, void *arg)
{
    struct call *call = calloc(1, sizeof(*call)); /* not one of those that fail */

    assert(call);
    pthread_mutex_lock(&fake.lock);
    call->kind = PING;
    call->done = done;
    call->arg = arg;
    zb_list_push_back(&c->calls, &call->node);
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

static int ask(struct zc_client *c, const struct zc_step *step, bool skip, struct zc_stepped *ret,
               zc_done_fn *done, void *arg)
{
    struct call *call;
    int rc;

    BEGIN(c, STEP, done, arg, call)
    {
        struct job *job = job_of(c);
        bool first = true;

        for (uint32_t r = 0; r < job->world; r++)
            first = first && !job->members[r].asked;
        assert(!job->stepping && step->step == job->iterations + 1 && step->timeout_ms > 0);
        assert(first || (job->skip == skip && job->step.scale == step->scale));
        job->skip = skip;
        job->step = *step;
        if (!skip) {
            assert(step->ngroups == job->groups);
            memcpy(job->step_groups, step->groups, step->ngroups * sizeof(*step->groups));
        }
        job->members[c->rank].asked = true;
        call->number = step->step;
        call->ret = ret;
    }
    END();
}

int zc_step(struct zc_client *c, uint64_t job_id, const struct zc_step *step,
            struct zc_stepped *ret, zc_done_fn *done, void *arg)
{
    assert(job_id == 42);
    return ask(c, step, false, ret, done, arg);
}

int zc_step_begin(struct zc_client *c, uint64_t job_id, const struct zc_step *step, uint32_t micros,
                  zc_done_fn *done, void *arg)
{
    (void)done;
    (void)arg;
    assert(c && job_id == 42 && step && micros > 0);
    abort(); /* all that announce a step clip: the engine does not ask */
}

int zc_skip(struct zc_client *c, uint64_t job_id, uint64_t step, enum zc_commit commit,
            uint32_t timeout_ms, struct zc_stepped *ret, zc_done_fn *done, void *arg)
{
    struct zc_step skip = { .step = step, .commit = commit, .timeout_ms = timeout_ms };

    assert(job_id == 42);
    return ask(c, &skip, true, ret, done, arg);
}

int zc_commit(struct zc_client *c, uint64_t job_id, enum zc_commit what, uint64_t iterations,
              uint32_t timeout_ms, struct zc_point *ret, zc_done_fn *done, void *arg)
{
    struct call *call;
    int rc;

    assert(job_id == 42 && timeout_ms > 0);
    BEGIN(c, COMMIT, done, arg, call)
    {
        assert(c->rank == 0); /* one rank of each node asks */
        call->commit = what;
        call->number = iterations;
        call->ret = ret;
    }
    END();
}

int zc_note_put(struct zc_client *c, uint64_t job_id, bool of_job, const void *note, size_t bytes,
                zc_done_fn *done, void *arg)
{
    struct call *call;
    int rc;

    assert(job_id == 42 && (!of_job || c->rank == 0));
    BEGIN(c, NOTE, done, arg, call)
    {
        struct member *m = &job_of(c)->members[c->rank];
        struct note *n = of_job ? &m->job_note : &m->note;

        assert(bytes <= sizeof(n->data));
        n->there = true;
        n->bytes = bytes;
        memcpy(n->data, note, bytes);
    }
    END();
}

int zc_note_get_wait(struct zc_client *c, uint64_t job_id, bool of_job, void *buf,
                     size_t *ret_bytes)
{
    const struct note *n;
    int rc = 0;

    assert(job_id == 42);
    pthread_mutex_lock(&fake.lock);
    n = of_job ? &job_of(c)->job_note : &job_of(c)->notes[c->rank];
    if (n->there) {
        memcpy(buf, n->data, n->bytes);
        *ret_bytes = n->bytes;
    } else {
        rc = record(c, -ENOENT, "no note, says the test");
    }
    END();
}

int zc_jobs_wait(struct zc_client *c, const char *name, struct zc_job_row **ret_rows, size_t *ret_n)
{
    const struct job *job;

    assert(name && *name);
    pthread_mutex_lock(&fake.lock);
    job = job_of(c);
    *ret_rows = calloc(1, sizeof(**ret_rows));
    assert(*ret_rows);
    (*ret_rows)->id = 42;
    (*ret_rows)->host_bytes = 1000 + job->nshards;
    (*ret_rows)->nvme_bytes = 2000;
    (*ret_rows)->nvme_read_bytes = 100 + job->iterations;
    (*ret_rows)->nvme_written_bytes = 200 + 2 * job->iterations;
    *ret_n = 1;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

void zc_rows_free(void *rows)
{
    free(rows);
}
