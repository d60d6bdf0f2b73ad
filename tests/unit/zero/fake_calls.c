/*
 * fake_calls.c - how calls of the fake begin, are refused, wait and end.
 */
#include "fake_priv.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ztest.h"

/* ---- how a call begins */

int fake_begin(struct zc_client *c, enum kind kind, zc_done_fn *done, void *arg, struct call **ret)
{
    struct fake_config *f = &fake.config;
    struct call *call;
    bool now = false;

    if (c->lost)
        return fake_record(c, -ENOTCONN, "the daemon is gone");
    if (fake_stale(c))
        return fake_record(c, -ESTALE, "taken over, says the test");
    if (f->fault != FAKE_NONE && c->who == f->rank && !fake.faulted) {
        now = ++fake.calls == f->nth;
        if (now)
            fake.faulted = kind <= WRITE   ? FAKE_AT_START
                           : kind == CLOSE ? FAKE_AT_END
                                           : FAKE_AT_WORK;
    }
    if (now && f->fault == FAKE_START)
        return fake_record(c, f->rc, "refused by the test");
    if (now && f->fault == FAKE_NOBUFS)
        return fake_record(c, -ENOBUFS, "too many calls, says the test");
    if (now && f->fault == FAKE_HANGUP) {
        fake_hang_up(c);
        return fake_record(c, -ENOTCONN, "the test hung up");
    }
    if (now && f->fault == FAKE_JOB)
        fake_job_fail(fake_job_of(c), f->rc, UINT32_MAX);
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

/* ---- how calls end: true, with call->rc, or false: not yet */

static bool end_ready(struct job *job, struct call *call)
{
    struct zc_placement *ret = call->ret;

    for (uint32_t r = 0; r < job->world; r++)
        if (!job->members[r].ready)
            return false;
    if (job->at_said && (!job->live || job->at != job->iterations))
        fake_version_load(job->prepared.there && job->prepared.iterations == job->at
                              ? &job->prepared
                              : &job->committed,
                          job);
    *ret = (struct zc_placement){ .ring_bytes = fake.config.ring ? 4096 : 0,
                                  .iterations = job->iterations,
                                  .applied = job->applied,
                                  .early = true }; /* like a kept job that was opened with it */
    job->live = true;
    job->at_said = false; /* all ranks get the same answer */
    return true;
}

static bool end_write(const struct job *job, struct shard *s, struct call *call)
{
    struct zk_page page = fake_page_of(s, call->first, call->count);

    assert(s->pins == 0);
    for (uint64_t i = 0; i < call->count; i++)
        assert(s->first + call->first + i < s->unit->elems ||
               ((const float *)call->staged)[i] == 0);
    if (call->what == ZC_MASTER && job->iterations == 0)
        zk_page_init(fake.ops, &s->layout, &page, call->staged);
    else
        zk_page_set(fake.ops, &s->layout, &page, (enum zk_what)call->what, call->staged);
    s->written += s->written < s->count ? call->count : 0;
    memset(call->staged, 0xa5, call->count * 4);
    return true;
}

static bool end_push(struct job *job, struct shard *s, struct call *call)
{
    struct zk_page page = fake_page_of(s, call->first, call->count);

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

/* What a fetch shows: elements as they are; codes page by page, as in the daemon's arena. */
static struct zc_view view_of(const struct zc_client *c, struct shard *s)
{
    uint32_t block = s->layout.block_bytes[ZB_PARAM];
    uint64_t page = c->server.page_elems, bytes = zb_plane_bytes(block, page, s->count);

    if (!s->layout.quantized)
        return (struct zc_view){ .data = s->param, .bytes = zb_blocks_bytes(block, s->count) };
    if (!s->paged)
        s->paged = aligned_alloc(4096, bytes);
    assert(s->paged);
    if (s->pins == 1) /* another rank that has pinned it may be reading: the codes are the same */
        memset(s->paged, 0, bytes);
    for (uint64_t at = 0; at < s->count && s->pins == 1; at += page)
        memcpy(s->paged + zb_plane_bytes(block, page, at), s->param + zb_blocks_bytes(block, at),
               zb_blocks_bytes(block, zb_min_u64(page, s->count - at)));
    return (struct zc_view){ .data = s->paged, .bytes = bytes };
}

/* Fetches all of its shards, or none. */
static bool end_fetch(struct zc_client *c, struct job *job, struct call *call)
{
    struct member *m = &job->members[c->rank];
    struct zc_view *views = call->ret;

    for (uint32_t i = 0; i < call->n; i++) {
        const struct shard *s = fake_shard_of(c, call->shards[i]);

        if (s->written < s->count) {
            call->rc = fake_record(c, -EAGAIN, "not written yet");
            return true;
        }
        if (s->version < call->number ||
            (job->stepping && !job->skip && s->version == job->applied))
            return false;
    }
    assert(!fake.config.ring || m->pins + call->n <= ZC_PINS_MIN);
    for (uint32_t i = 0; i < call->n; i++) {
        struct shard *s = fake_shard_of(c, call->shards[i]);

        s->pins++;
        m->pins++;
        views[i] = view_of(c, s);
        views[i].version = s->version - call->lies;
    }
    fake.pins_most = m->pins > fake.pins_most ? m->pins : fake.pins_most;
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
        call->rc = fake_job_commit(job, call->commit);
    } else if (job->prepared.there && job->prepared.iterations == call->number) {
        fake_job_resolve(job, call->commit == ZC_COMMIT_PREPARED);
    } else {
        call->rc = -ENOENT;
    }
    if (call->rc)
        call->rc = fake_record(c, call->rc, "not committed, says the test");
    *ret = (struct zc_point){ .iterations = call->number };
    return true;
}

static bool end_step(struct job *job, struct call *call)
{
    struct zc_stepped *ret = call->ret;

    if (job->iterations < call->number) {
        job->stepping = job->stepping || fake_step_may_begin(job);
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
    struct job *job = fake_job_of(c);
    struct shard *s = call->shard ? fake_shard_of(c, call->shard) : NULL;
    struct zk_page page;

    switch (call->kind) {
    case JOB_OPEN:
    case DEFINE:
    case REGISTER:
        return true;
    case READY:
        return end_ready(job, call);
    case WRITE:
        return end_write(job, s, call);
    case PUSH:
        return end_push(job, s, call);
    case READ:
        assert(!job->stepping && s->written == s->count);
        page = fake_page_of(s, call->first, call->count);
        zk_page_read(fake.ops, &s->layout, &page, (enum zk_what)call->what, call->staged);
        return true;
    case FETCH:
        return end_fetch(c, job, call);
    case NORMS:
        return end_norms(c, job, call);
    case STEP:
        return end_step(job, call);
    case ABANDON:
        assert(!job->stepping && call->number == job->iterations + 1);
        for (uint32_t i = 0; i < job->nshards; i++)
            job->shards[i].micro = job->shards[i].grad_next = 0;
        return true;
    case NOTE:
        return true;
    case COMMIT:
        return end_commit(c, job, call);
    case PING:
        return fake.config.fault != FAKE_NEVER || fake.faulted == FAKE_NOT_YET;
    case CLOSE:
        fake_member_leave(c);
        return true;
    }
    return false;
}

/* Removes the next call that can end; NULL: none. */
static struct call *next_end(struct zc_client *c)
{
    const struct job *job = fake_job_of(c);
    bool blocked[CLOSE + 1] = { false };

    zb_list_each(pos, &c->calls)
    {
        struct call *call = zb_container_of(pos, struct call, node);
        bool in_order = call->kind == PUSH || call->kind == WRITE || call->kind == FETCH;

        if (c->lost)
            call->rc = fake_record(c, -ENOTCONN, "the daemon is gone");
        else if (fake_stale(c) && c->told)
            call->rc = fake_record(c, -ESTALE, "taken over");
        else if (fake_stale(c))
            continue;
        else if (job->failed && (c->told || !c->joined)) /* the event comes first */
            call->rc = fake_record(c, job->code, "the job is over");
        else if (call->never || (in_order && blocked[call->kind])) {
            blocked[call->kind] = true;
            continue;
        } else if (call->delay > 0) {
            call->delay--;
            blocked[call->kind] = true;
            continue;
        } else if (call->rc != 0)
            call->rc = fake_record(c, call->rc, "failed by the test");
        else if (!try_end(c, call)) {
            blocked[call->kind] = true;
            continue;
        }
        zb_list_remove(&call->node);
        return call;
    }
    return NULL;
}

int fake_end_calls(struct zc_client *c)
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
