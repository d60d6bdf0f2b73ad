/*
 * fake_client.c - the fake's handle, and its calls to open and close jobs.
 */
#include "fake_priv.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        return fake_record(c, -ENOTCONN, "nobody answers there, says the test");
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

        (void)fake_record(c, -ECANCELED, "closed");
        call->done(call->arg, -ECANCELED);
        free(call);
    }
    pthread_mutex_lock(&fake.lock);
    if (!c->lost)
        fake_hang_up(c);
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
    fake_step_one(fake_job_of(c));
    tell = (fake_job_of(c)->failed || fake_stale(c)) && c->joined && !c->told;
    c->told = c->told || tell;
    event.code = fake_stale(c) ? -ESTALE : fake_job_of(c)->code;
    event.rank = fake_job_of(c)->lost;
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
    ran += fake_end_calls(c);
    pthread_mutex_lock(&fake.lock);
    if (fake.dies_ns > 0 && zb_now_ns() > fake.dies_ns && !c->lost) {
        c->lost = true;
        if (c->joined)
            fake_member_leave(c);
    }
    rc = c->lost ? fake_record(c, -ENOTCONN, "the daemon is gone, says the test") : ran;
    pthread_mutex_unlock(&fake.lock);
    return rc;
}

/* ---- a job comes and goes */

/* Disconnects attached ranks. For another world, state that is only in memory is saved first. */
static void open_takeover(struct job *job, uint32_t world)
{
    const struct version *c = &job->committed, *p = &job->prepared;

    job->epoch++;
    job->failed = false;
    job->stepping = false;
    memset(job->members, 0, sizeof(job->members));
    for (uint32_t i = 0; i < job->nshards; i++)
        job->shards[i].pins = 0;
    if (!job->live) /* it was not ready yet */
        fake_shards_free(job);
    if (world == job->world)
        return;
    assert(job->durable);
    if (job->live && !(c->there && c->iterations == job->iterations) &&
        !(p->there && p->iterations == job->iterations))
        assert(fake_job_commit(job, fake.config.nodes > 1 ? ZC_COMMIT_PREPARE : ZC_COMMIT_STEP) ==
               0);
    fake_shards_free(job);
    job->world = world;
}

/* Whether all of it has values. */
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
        job = fake_job_of(c);
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
        struct job *job = fake_job_of(c);
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
                    u->segments[u->nsegments++] =
                        (struct zk_segment){ .first = unit->tensors[t].first,
                                             .count = count,
                                             .group = unit->tensors[t].group };
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
        struct job *job = fake_job_of(c);

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
        struct job *job = fake_job_of(c);

        assert(!at || !job->at_said || job->at == *at);
        assert(!at || (job->live && *at == job->iterations) ||
               (job->prepared.there && *at == job->prepared.iterations) ||
               (job->committed.there && *at == job->committed.iterations));
        job->at_said = at != NULL;
        job->at = at ? *at : 0;
        fake_job_of(c)->members[c->rank].ready = true;
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
        assert(fake_job_of(c)->members[c->rank].pins == 0);
    }
    END();
}
