/*
 * fake_work.c - the fake's calls of a ready job.
 */
#include "fake_priv.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

int zc_write(struct zc_client *c, uint64_t shard, enum zc_what what, uint64_t first, uint64_t count,
             const float *staged, zc_done_fn *done, void *arg)
{
    struct call *call;
    int rc;

    BEGIN(c, WRITE, done, arg, call)
    {
        check_range(c, fake_shard_of(c, shard), first, count, staged);
        call->what = what;
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
        check_range(c, fake_shard_of(c, shard), first, count, staged);
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

    assert(n >= 1 && n <= RANKS_MAX && timeout_ms > 0);
    BEGIN(c, FETCH, done, arg, call)
    {
        memcpy(call->shards, shards, n * sizeof(*shards));
        call->n = n;
        call->number = min_version;
        call->ret = ret_views;
    }
    END();
}

int zc_release(struct zc_client *c, const uint64_t *shards, uint32_t n)
{
    pthread_mutex_lock(&fake.lock);
    for (uint32_t i = 0; i < n && !fake_stale(c); i++) {
        struct shard *s = fake_shard_of(c, shards[i]);

        assert(s->pins > 0 && fake_job_of(c)->members[c->rank].pins > 0);
        s->pins--;
        fake_job_of(c)->members[c->rank].pins--;
    }
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
        check_range(c, fake_shard_of(c, push->shard), push->first, push->count, push->staged);
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
        struct job *job = fake_job_of(c);
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
    abort(); /* steps that are announced are clipped: the engine does not call this */
}

int zc_step_classes(struct zc_client *c, uint64_t job_id, uint64_t step,
                    const struct zc_classes *classes, zc_done_fn *done, void *arg)
{
    (void)done;
    (void)arg;
    assert(c && job_id == 42 && step && classes);
    abort(); /* every tensor has a gradient in each step, and none has a factor */
}

int zc_tensor_norms(struct zc_client *c, uint64_t job_id, uint64_t step, uint32_t ntensors,
                    uint8_t *ret, zc_done_fn *done, void *arg)
{
    (void)done;
    (void)arg;
    assert(c && job_id == 42 && step && ntensors && ret);
    abort(); /* gradients are clipped by their global norm */
}

int zc_job_about(struct zc_client *c, uint64_t job_id, const struct zc_job_about *about,
                 zc_done_fn *done, void *arg)
{
    (void)done;
    (void)arg;
    assert(c && job_id == 42 && about);
    abort(); /* this daemon does not know it: zc_server.sums */
}

int zc_unit_norms(struct zc_client *c, uint64_t job_id, uint64_t step, uint32_t first,
                  uint32_t ntensors, uint8_t *ret, zc_done_fn *done, void *arg)
{
    (void)done;
    (void)arg;
    (void)first;
    assert(c && job_id == 42 && step && ntensors && ret);
    abort(); /* as well */
}

int zc_unit_sums(struct zc_client *c, uint64_t job_id, uint64_t step, uint32_t unit,
                 const uint8_t *sums, uint32_t ntensors, zc_done_fn *done, void *arg)
{
    (void)done;
    (void)arg;
    (void)unit;
    assert(c && job_id == 42 && step && sums && ntensors);
    abort(); /* as well */
}

int zc_step_tensors(struct zc_client *c, uint64_t job_id, uint64_t step, bool limits,
                    const double *values, uint32_t ntensors, zc_done_fn *done, void *arg)
{
    (void)done;
    (void)arg;
    (void)limits;
    assert(c && job_id == 42 && step && values && ntensors);
    abort(); /* as well */
}

int zc_job_optimizer(struct zc_client *c, uint64_t job_id, enum zc_optimizer optimizer,
                     enum zc_moments moments, zc_done_fn *done, void *arg)
{
    (void)done;
    (void)arg;
    assert(c && job_id == 42 && optimizer && moments);
    abort(); /* the optimizer is known at the start */
}

int zc_abandon(struct zc_client *c, uint64_t job_id, uint64_t step, zc_done_fn *done, void *arg)
{
    struct call *call;
    int rc;

    assert(job_id == 42 && c->rank == 0);
    BEGIN(c, ABANDON, done, arg, call)
    {
        call->number = step;
    }
    END();
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
        struct member *m = &fake_job_of(c)->members[c->rank];
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
    n = of_job ? &fake_job_of(c)->job_note : &fake_job_of(c)->notes[c->rank];
    if (n->there) {
        memcpy(buf, n->data, n->bytes);
        *ret_bytes = n->bytes;
    } else {
        rc = fake_record(c, -ENOENT, "no note, says the test");
    }
    END();
}

int zc_jobs_wait(struct zc_client *c, const char *name, struct zc_job_row **ret_rows, size_t *ret_n)
{
    const struct job *job;

    assert(name && *name);
    pthread_mutex_lock(&fake.lock);
    job = fake_job_of(c);
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
