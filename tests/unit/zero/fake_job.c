/*
 * fake_job.c - the fake's daemon: its jobs, their versions and steps; and functions for tests.
 */
#include "fake_priv.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct fake fake = { .lock = PTHREAD_MUTEX_INITIALIZER };

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
    fake.dies_ns = config->dies_ms > 0 ? zb_now_ns() + config->dies_ms * UINT64_C(1000000) : 0;
    fake.seed = config->seed;
    if (fake.handles == 0) /* a failure ends with the handles that saw it */
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

void fake_shards_free(struct job *job)
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

static void fake_version_free(struct version *v)
{
    for (uint32_t u = 0; u < UNITS_MAX; u++) {
        free(v->param[u]);
        free(v->state[u]);
    }
    memset(v, 0, sizeof(*v));
}

static void fake_job_free(struct job *job)
{
    fake_shards_free(job);
    fake_version_free(&job->committed);
    fake_version_free(&job->prepared);
    memset(job, 0, sizeof(*job));
}

/* Copies a shard's planes to or from their positions in a version. */
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
    fake_version_free(v);
    v->there = true;
    v->iterations = job->iterations;
    v->applied = job->applied;
    memcpy(v->notes, job->notes, sizeof(v->notes));
    v->job_note = job->job_note;
    for (uint32_t i = 0; i < job->nshards; i++)
        version_move(v, job, &job->shards[i], true);
}

void fake_version_load(struct version *v, struct job *job)
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

void fake_job_resolve(struct job *job, bool commit)
{
    if (commit) {
        fake_version_free(&job->committed);
        job->committed = job->prepared;
        memset(&job->prepared, 0, sizeof(job->prepared));
    }
    fake_version_free(&job->prepared);
}

void fake_crash(uint32_t node)
{
    struct job *job = &fake.jobs[node];

    for (uint32_t r = 0; r < RANKS_MAX; r++)
        assert(!job->members[r].here);
    fake_shards_free(job);
    if (!job->committed.there && !job->prepared.there)
        fake_job_free(job);
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
        fake_version_free(&fake.jobs[node].prepared);
    if (committed)
        fake_version_free(&fake.jobs[node].committed);
}

void fake_prepare(uint32_t node)
{
    version_save(&fake.jobs[node].prepared, &fake.jobs[node]);
}

void fake_end(void)
{
    assert(fake.handles == 0);
    for (uint32_t n = 0; n < NODES_MAX; n++)
        fake_job_free(&fake.jobs[n]);
}

/* ---- helpers; all under the lock */

struct job *fake_job_of(struct zc_client *c)
{
    return &fake.jobs[c->node];
}

int fake_record(struct zc_client *c, int rc, const char *text)
{
    c->err.code = 0;
    return zb_fail(&c->err, rc, "%s", text);
}

struct shard *fake_shard_of(struct zc_client *c, uint64_t id)
{
    struct job *job = fake_job_of(c);

    assert(id >= 1 && id <= job->nshards);
    return &job->shards[id - 1];
}

bool fake_stale(const struct zc_client *c)
{
    return c->joined && c->epoch != fake.jobs[c->node].epoch;
}

void fake_job_fail(struct job *job, int code, uint32_t rank)
{
    if (!job->failed) {
        job->failed = true;
        job->code = code;
        job->lost = rank;
    }
}

struct zk_page fake_page_of(struct shard *s, uint64_t first, uint64_t count)
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

/* ---- the step */

static void note_keep(struct note *kept, struct note *sent)
{
    if (sent->there)
        *kept = *sent;
    sent->there = false;
}

int fake_job_commit(struct job *job, enum zc_commit what)
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
    job->commit_code = job->step.commit ? fake_job_commit(job, job->step.commit) : 0;
}

void fake_step_one(struct job *job)
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
        page = fake_page_of(s, 0, s->count);
        zk_page_step(fake.ops, &s->layout, &page, s->unit->segments, s->unit->nsegments, by_group);
    }
    s->version = job->applied + 1;
}

bool fake_step_may_begin(const struct job *job)
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

void fake_member_leave(struct zc_client *c)
{
    struct job *job = fake_job_of(c);
    bool cut_off = fake_stale(c);

    c->joined = false;
    if (cut_off)
        return;
    job->stepping = job->stepping || fake_step_may_begin(job);
    while (job->stepping) /* a step that has begun is finished without its ranks */
        fake_step_one(job);
    job->members[c->rank] = (struct member){ 0 };
    for (uint32_t r = 0; r < job->world; r++)
        if (job->members[r].here)
            return;
    if (!job->keep) {
        fake_job_free(job);
        return;
    }
    job->failed = false;
    for (uint32_t i = 0; i < job->nshards; i++)
        job->shards[i].pins = 0;
}

void fake_hang_up(struct zc_client *c)
{
    c->lost = true;
    if (!c->joined)
        return;
    if (!fake_stale(c))
        fake_job_fail(fake_job_of(c), -EOWNERDEAD, c->rank);
    fake_member_leave(c);
}
