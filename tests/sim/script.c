/*
 * script.c - what the ranks of a run do, with the oracle in step. zsim.h has the model.
 *
 * A run has one job. Its model is what was acknowledged. The result of a failed change is kept as
 * an alternative, until another change is acknowledged, or until the daemon has started again and
 * shows which one holds.
 */
#include "tests/sim/zsim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOB   "j"
#define CLONE "k"

/* Host memory in addition to the staging. ALL: everything is resident. TIGHT: some units'
 * parameters and all state are streamed. SPILL: the same, and a part of the gradients. MIXED:
 * parameters are resident and a part of the state is streamed. */
enum { ALL = 0, TIGHT = 436 << 10, SPILL = 220 << 10, MIXED = 780 << 10 };

enum act {
    OPEN,    /* a new job: world, place; with initial values */
    STEP,    /* what: enum zsd_commit_what */
    SKIP,    /* likewise */
    BEGIN,   /* begins the next step early, with its gradients; what 1: as far as it gets */
    COMMIT,  /* a request: what */
    FETCH,   /* every unit, one after the other */
    READ,    /* all that the job has */
    HANG_UP, /* the ranks die */
    RESTART, /* the daemon is killed and starts again */
    ATTACH,  /* world, place; what 1: from what is prepared */
    SNAP,    /* what: the name; place: how many to retain, 0: all */
    UNSNAP,  /* what: the name */
    ROLL,    /* rolls back to a snapshot */
    COPY,    /* clones a snapshot */
    UNCOPY,  /* destroy the clone */
    TIER,    /* sets the host budget; place: bytes in addition to everything in use except state */
    WHERE,   /* checks the state in memory: what 0 none, 1 a part, 2 all; unless something failed */
};

struct action {
    enum act act;
    uint32_t what; /* or the world */
    uint64_t place;
};

static const struct action script[] = {
    { OPEN, 2, MIXED },
    { COMMIT, ZSD_COMMIT, 0 },
    { STEP, ZSD_COMMIT_NONE, 0 },
    { BEGIN, 1, 0 },
    { STEP, ZSD_COMMIT, 0 },
    { READ, 0, 0 },
    { BEGIN, 0, 0 },
    { SKIP, ZSD_COMMIT, 0 },
    { BEGIN, 1, 0 },
    { SKIP, ZSD_COMMIT_NONE, 0 },
    { STEP, ZSD_COMMIT_NONE, 0 },
    { COMMIT, ZSD_COMMIT, 0 },
    { FETCH, 0, 0 },
    { BEGIN, 0, 0 },
    { STEP, ZSD_PREPARE, 0 },
    { BEGIN, 1, 0 },
    { COMMIT, ZSD_RESOLVE, 0 },
    { STEP, ZSD_PREPARE, 0 },
    { COMMIT, ZSD_DROP, 0 },
    { STEP, ZSD_COMMIT, 0 },
    { SNAP, 0, 0 },
    { STEP, ZSD_COMMIT_NONE, 0 },
    { RESTART, 0, 0 },
    { ATTACH, 2, TIGHT },
    { FETCH, 0, 0 },
    { READ, 0, 0 },
    { BEGIN, 1, 0 },
    { READ, 0, 0 }, /* unchanged */
    { COMMIT, ZSD_COMMIT, 0 },
    { FETCH, 0, 0 },
    { STEP, ZSD_COMMIT, 0 },
    { FETCH, 0, 0 },
    { SNAP, 1, 0 },
    { COPY, 0, 0 },
    { STEP, ZSD_COMMIT_NONE, 0 },
    { BEGIN, 1, 0 },
    { COMMIT, ZSD_COMMIT, 0 },
    { STEP, ZSD_COMMIT, 0 },
    { UNSNAP, 0, 0 }, /* the clone still has its pages */
    { STEP, ZSD_COMMIT_NONE, 0 },
    { BEGIN, 1, 0 },
    { HANG_UP, 0, 0 },
    { ATTACH, 1, SPILL }, /* another world: what is in memory is committed first */
    { READ, 0, 0 },
    { STEP, ZSD_COMMIT_NONE, 0 },
    { BEGIN, 1, 0 },
    { STEP, ZSD_PREPARE, 0 },
    { BEGIN, 1, 0 },
    { RESTART, 0, 0 },
    { ATTACH, 3, ALL },
    { READ, 0, 0 },
    { COMMIT, ZSD_RESOLVE, 0 },
    { STEP, ZSD_COMMIT, 0 },
    { HANG_UP, 0, 0 },
    { ROLL, 1, 0 },
    { UNCOPY, 0, 0 },
    { ATTACH, 2, MIXED },
    { READ, 0, 0 },
    { STEP, ZSD_COMMIT, 0 },
    { SNAP, 2, 1 }, /* the older one is removed */
    { STEP, ZSD_PREPARE, 0 },
};

/* State moves: with and without commits, prepared steps, early pages and a rollback; with a budget
 * that changes back in the middle; and ranks resume from state that has moved. */
static const struct action moves[] = {
    { OPEN, 2, ALL },
    { STEP, ZSD_COMMIT_NONE, 0 },
    { WHERE, 2, 0 },
    { TIER, 0, 0 },
    { WHERE, 2, 0 },
    { STEP, ZSD_COMMIT_NONE, 0 },
    { WHERE, 0, 0 },
    { READ, 0, 0 },
    { TIER, 0, 256 << 10 },
    { STEP, ZSD_COMMIT, 0 },
    { WHERE, 1, 0 },
    { READ, 0, 0 },
    { TIER, 0, 16 << 20 },
    { BEGIN, 1, 0 },
    { STEP, ZSD_COMMIT, 0 },
    { WHERE, 2, 0 },
    { READ, 0, 0 },
    { BEGIN, 1, 0 },
    { TIER, 0, 0 },
    { STEP, ZSD_PREPARE, 0 },
    { WHERE, 0, 0 },
    { TIER, 0, 16 << 20 },
    { BEGIN, 1, 0 }, /* the move into memory may have begun, or not: both are right */
    { COMMIT, ZSD_DROP, 0 },
    { STEP, ZSD_COMMIT, 0 },
    { READ, 0, 0 },
    { SNAP, 0, 0 },
    { BEGIN, 0, 0 },
    { TIER, 0, 0 },
    { SKIP, ZSD_COMMIT_NONE, 0 }, /* moves nothing */
    { TIER, 0, 300 << 10 },
    { STEP, ZSD_COMMIT_NONE, 0 },
    { WHERE, 1, 0 },
    { SNAP, 1, 0 },
    { TIER, 0, 16 << 20 },
    { HANG_UP, 0, 0 },
    { ATTACH, 2, ALL },
    { STEP, ZSD_COMMIT, 0 },
    { STEP, ZSD_COMMIT, 0 },
    { WHERE, 2, 0 },
    { TIER, 0, 0 },
    { RESTART, 0, 0 },
    { ATTACH, 2, ALL },
    { READ, 0, 0 },
    { STEP, ZSD_COMMIT_NONE, 0 },
    { TIER, 0, 0 },
    { STEP, ZSD_COMMIT_NONE, 0 },
    { HANG_UP, 0, 0 },
    { ROLL, 0, 0 },
    { ATTACH, 1, MIXED },
    { TIER, 0, 100 << 10 },
    { STEP, ZSD_COMMIT, 0 },
    { READ, 0, 0 },
    { TIER, 0, 16 << 20 },
    { STEP, ZSD_COMMIT, 0 },
    { READ, 0, 0 },
};

/* ---- what is durable */

static void run_maybe_clear(struct zs_run *r)
{
    for (unsigned i = 0; i < r->nmaybe; i++)
        zs_model_done(&r->maybe[i]);
    r->nmaybe = 0;
}

/* A change that was asked for at operation `begin`, and its result. Takes over the model. */
static void run_changed(struct zs_run *r, uint64_t begin, struct zs_model model, int rc)
{
    struct zs_model **list = rc < 0 ? &r->maybe : NULL;

    if (list) {
        r->maybe = realloc(r->maybe, (r->nmaybe + 1) * sizeof(*r->maybe));
        assert_non_null(r->maybe);
        r->maybe[r->nmaybe++] = model;
        return;
    }
    run_maybe_clear(r);
    r->entries = realloc(r->entries, (r->nentries + 1) * sizeof(*r->entries));
    assert_non_null(r->entries);
    r->entries[r->nentries++] =
        (struct zs_entry){ .begin = begin, .end = zn_sim_ops(r->sim), .model = model };
    zs_model_done(&r->model);
    zs_model_copy(&r->model, &model);
}

static struct zs_saved *saved_of(struct zs_model *m)
{
    (void)snprintf(m->jobs[0].name, sizeof(m->jobs[0].name), JOB);
    return &m->jobs[0];
}

static void state_set(struct zs_state **to, struct zs_state *s)
{
    (void)zs_state_ref(s);
    zs_state_unref(*to);
    *to = s;
}

/* The job's memory is committed, or prepared. */
static void run_committed(struct zs_run *r, uint64_t begin, uint32_t what, int rc)
{
    struct zs_model m;
    struct zs_saved *saved;

    zs_model_copy(&m, &r->model);
    saved = saved_of(&m);
    switch ((enum zsd_commit_what)what) {
    case ZSD_COMMIT:
        state_set(&saved->committed, r->mem);
        break;
    case ZSD_PREPARE:
        state_set(&saved->prepared, r->mem);
        break;
    case ZSD_RESOLVE:
        state_set(&saved->committed, saved->prepared);
        state_set(&saved->prepared, NULL);
        break;
    case ZSD_DROP:
        state_set(&saved->prepared, NULL);
        if (!saved->committed)
            saved->name[0] = '\0';
        break;
    case ZSD_COMMIT_NONE:
        break;
    }
    run_changed(r, begin, m, rc);
}

/* ---- the daemon */

static void run_refused(struct zs_run *r, const struct zb_err *err)
{
    r->failures++;
    r->refused = *err;
}

/* What the store may hold when the daemon starts: what was acknowledged, or a later change that
 * failed; and if the device never keeps its promises, any earlier acknowledged state. */
static unsigned run_may_hold(const struct zs_run *r, const struct zs_model **models)
{
    unsigned n = 0;

    models[n++] = &r->model;
    for (unsigned i = 0; i < r->nmaybe; i++)
        models[n++] = &r->maybe[i];
    for (unsigned i = r->nentries; r->rewinds && i-- > 0;)
        models[n++] = &r->entries[i].model;
    return n;
}

static void run_up(struct zs_run *r)
{
    const struct zs_model **models = calloc(1 + r->nmaybe + r->nentries, sizeof(*models));
    struct zs_model held;
    struct zb_err err = { 0 };
    unsigned n;
    int which;

    assert_non_null(models);
    if (zs_start(&r->w, r->sim, r->seed + zn_sim_ops(r->sim), r->page_elems, &err) < 0) {
        run_refused(r, &err);
        free(models);
        return;
    }
    r->up = true;
    r->refused = (struct zb_err){ 0 };
    n = run_may_hold(r, models);
    which = zs_match(&r->w, models, n);
    if (which < 0)
        zs_fail("the store holds none of %u states that may be", n);
    if (which > 0) {
        zs_model_copy(&held, models[which]);
        run_changed(r, zn_sim_ops(r->sim), held, 0);
    }
    run_maybe_clear(r);
    free(models);
}

static void run_down(struct zs_run *r)
{
    zs_state_unref(r->mem);
    r->mem = NULL;
    if (r->up)
        zs_stop(&r->w);
    r->up = false;
    r->begun = 0;
}

/* Whether the ranks are attached, and their job runs. */
static bool run_attached(struct zs_run *r)
{
    const struct zsd_member *m = r->w.core.clients[0].conn.member;

    return r->up && m && (m->job->state == ZSD_READY || m->job->state == ZSD_STEPPING);
}

/* The ranks hang up; the job may stay in memory. */
static void run_hang_up(struct zs_run *r)
{
    r->begun = 0;
    if (!r->up)
        return;
    zs_hang_up(&r->w);
    if (!zsd_job_by_name(r->w.core.daemon.core, 1000, JOB)) {
        zs_state_unref(r->mem);
        r->mem = NULL;
    }
}

static int run_told(struct zs_run *r, int rc)
{
    r->failures += rc < 0;
    return rc;
}

/* ---- what ranks do */

/* Initial values: fp32 masters. */
int zs_write(struct zs_world *w, uint32_t world)
{
    for (unsigned rank = 0; rank < world; rank++) {
        struct client *x = &w->core.clients[rank];

        for (unsigned u = 0; u < ZS_UNITS; u++) {
            Zp__Write q = ZP__WRITE__INIT;
            int rc;

            if (x->shards[u] == 0)
                continue;
            for (uint64_t i = 0; i < x->count[u]; i++)
                ((float *)(void *)x->staging)[i] = zs_initial(u, x->first[u] + i);
            q.shard = x->shards[u];
            q.count = x->count[u];
            rc = call(&w->core, rank, zsd_write, &q);
            if (rc < 0)
                return rc;
        }
    }
    return 0;
}

static void run_open(struct zs_run *r, uint32_t world, uint64_t place)
{
    struct zs_open o = { .job = JOB, .world = world, .host_bytes = place };

    r->world = world;
    if (run_told(r, zs_open(&r->w, &o)) < 0)
        return;
    for (unsigned i = 0; i < 3 && run_attached(r); i++) /* a failure is tried again */
        if (run_told(r, zs_write(&r->w, r->world)) == 0) {
            r->mem = zs_state_first();
            return;
        }
    run_hang_up(r);
    if (zsd_job_by_name(r->w.core.daemon.core, 1000, JOB)) { /* a job without values is useless */
        Zp__JobName q = ZP__JOB_NAME__INIT;
        char name[] = JOB;

        q.name = name;
        (void)call(&r->w.core, ZS_NOBODY, zsd_job_destroy, &q);
    }
    zs_settle(&r->w);
}

/* As a trainer that starts again: from memory, else from the newest commit (or the point `at`). */
static void run_attach(struct zs_run *r, uint32_t world, uint64_t place, bool from_prepared)
{
    struct zs_saved *saved = &r->model.jobs[0];
    struct zs_open o = { .job = JOB, .world = world, .host_bytes = place, .attach = true };
    uint64_t begin = zn_sim_ops(r->sim);
    const struct zsd_job *job = zsd_job_by_name(r->w.core.daemon.core, 1000, JOB);
    bool retires = job && job->world != world && job->state >= ZSD_READY;
    bool newer = retires && r->mem &&
                 (!saved->committed || saved->committed->iterations != r->mem->iterations) &&
                 (!saved->prepared || saved->prepared->iterations != r->mem->iterations);
    uint32_t what = job && job->prepares ? ZSD_PREPARE : ZSD_COMMIT;
    struct zs_state *from;
    int rc;

    if (from_prepared && saved->prepared)
        o.at = &saved->prepared->iterations;
    rc = run_told(r, zs_open(&r->w, &o));
    if (newer) {
        bool gone = !zsd_job_by_name(r->w.core.daemon.core, 1000, JOB) || rc == 0;

        run_committed(r, begin, what, gone ? 0 : rc);
    }
    if (rc < 0) {
        if (!zsd_job_by_name(r->w.core.daemon.core, 1000, JOB))
            state_set(&r->mem, NULL);
        return;
    }
    r->world = world;
    if (r->mem && !retires && !o.at)
        return;
    from = zs_state_copy(o.at || !saved->committed ? saved->prepared : saved->committed);
    zs_state_unref(r->mem);
    r->mem = from;
    for (uint32_t rank = world; rank < ZS_RANKS; rank++)
        from->notes[rank] = (struct zs_note){ 0 }; /* ranks that are gone have none */
}

/* If the job was lost, the ranks attach to it again. */
static bool run_ready(struct zs_run *r)
{
    struct zs_saved *saved = &r->model.jobs[0];

    if (!r->up)
        return false;
    if (r->mem && run_attached(r))
        return true;
    run_hang_up(r);
    if (saved->committed || saved->prepared ||
        (r->mem && zsd_job_by_name(r->w.core.daemon.core, 1000, JOB)))
        run_attach(r, r->world, MIXED, true);
    else
        run_open(r, r->world, MIXED);
    return r->mem && run_attached(r);
}

int zs_push(struct zs_world *w, uint32_t world, uint64_t step, uint64_t n)
{
    for (unsigned u = 0; u < ZS_UNITS; u++)
        for (unsigned rank = 0; rank < world; rank++) {
            struct client *x = &w->core.clients[rank];
            Zp__Push q = ZP__PUSH__INIT;
            int rc;

            if (x->shards[u] == 0 || zs_units[u].frozen)
                continue;
            zs_gradient(n, u, x->first[u], x->count[u], x->staging);
            q.shard = x->shards[u];
            q.step = step;
            q.mode = 1;
            q.dtype = zs_units[u].grad_dtype;
            q.count = x->count[u];
            rc = call(&w->core, rank, zsd_push, &q);
            if (rc < 0)
                return rc;
        }
    return 0;
}

static int run_push(struct zs_run *r, uint64_t n)
{
    return zs_push(&r->w, r->world, r->mem->iterations + 1, n);
}

static int run_note(struct zs_run *r, unsigned rank, bool of_job, struct zs_note *note)
{
    Zp__NotePut q = ZP__NOTE_PUT__INIT;

    note->iteration = r->mem->iterations + 1;
    note->len = (uint32_t)snprintf(note->text, sizeof(note->text), "%s %u after %llu things",
                                   of_job ? "job" : "rank", rank, (unsigned long long)r->nsteps);
    q.job = r->w.core.clients[rank].job;
    q.of_job = of_job;
    q.total = note->len;
    q.data.data = (uint8_t *)note->text;
    q.data.len = note->len;
    return call(&r->w.core, rank, zsd_note_put, &q);
}

static void run_scalars(Zp__GroupScalars groups[2])
{
    for (unsigned g = 0; g < 2; g++) {
        zp__group_scalars__init(&groups[g]);
        groups[g].lr = zs_groups[g].lr;
        groups[g].beta1 = zs_groups[g].beta1;
        groups[g].beta2 = zs_groups[g].beta2;
        groups[g].eps = zs_groups[g].eps;
        groups[g].weight_decay = zs_groups[g].weight_decay;
    }
}

/* All ranks send a value for each trainable tensor. */
static int run_tensors(struct zs_run *r, bool limits, double value)
{
    Zp__StepTensors q = ZP__STEP_TENSORS__INIT;
    double values[ZS_UNITS * UNIT_TENSORS];
    int rc = 0;

    for (unsigned u = 0; u < ZS_UNITS; u++)
        for (unsigned t = 0; t < zs_units[u].ntensors; t++)
            if (zs_units[u].tensors[t].group != ZP_GROUP_FROZEN)
                values[q.n_values++] = value;
    q.values = values;
    q.step = r->mem->iterations + 1;
    q.begin = true;
    q.limits = limits;
    for (unsigned rank = 0; rank < r->world && rc == 0; rank++) {
        q.job = r->w.core.clients[rank].job;
        rc = call(&r->w.core, rank, zsd_step_tensors, &q);
    }
    return rc;
}

/* All ranks announce the next step. */
static int run_announce(struct zs_run *r)
{
    Zp__GroupScalars groups[2], *list[2] = { &groups[0], &groups[1] };
    Zp__StepBegin q = ZP__STEP_BEGIN__INIT;
    int rc = 0;

    run_scalars(groups);
    q.step = r->mem->iterations + 1;
    q.scale = 1;
    q.n_groups = 2;
    q.groups = list;
    q.micros = 1;
    q.limits = r->limited = zs_limits();
    if (q.limits)
        rc = run_tensors(r, true, 0);
    for (unsigned rank = 0; rank < r->world && rc == 0; rank++) {
        q.job = r->w.core.clients[rank].job;
        rc = call(&r->w.core, rank, zsd_step_begin, &q);
    }
    return rc;
}

/* The step begins as soon as its gradients are there. */
static void run_begin(struct zs_run *r, bool settle)
{
    int rc;

    if (r->begun > 0)
        return;
    rc = run_announce(r);
    if (rc == 0)
        rc = run_push(r, r->nsteps + 1);
    if (run_told(r, rc) < 0) {
        run_hang_up(r);
        return;
    }
    r->begun = ++r->nsteps;
    if (settle)
        zs_settle(&r->w);
}

int zs_step(struct zs_world *w, uint32_t world, uint64_t step)
{
    Zp__GroupScalars groups[2], *list[2] = { &groups[0], &groups[1] };
    Zp__Step q = ZP__STEP__INIT;
    int rc = 0;

    run_scalars(groups);
    q.step = step;
    q.scale = 1;
    q.n_groups = 2;
    q.groups = list;
    for (unsigned rank = 0; rank < world; rank++) {
        q.job = w->core.clients[rank].job;
        ask(&w->core, rank, zsd_step, &q);
    }
    for (unsigned rank = 0; rank < world; rank++) {
        int one = zs_answer(&w->core, rank);

        rc = rc < 0 ? rc : one;
    }
    return rc;
}

/* Every rank asks; returns the worst answer. *ret_commit: the result of the commit. */
static int run_ask_step(struct zs_run *r, bool skip, uint32_t commit, int *ret_commit)
{
    Zp__GroupScalars groups[2], *list[2] = { &groups[0], &groups[1] };
    Zp__Step q = ZP__STEP__INIT;
    Zp__Skip k = ZP__SKIP__INIT;
    int rc = 0;

    run_scalars(groups);
    if (r->limited && !skip)
        rc = run_tensors(r, false, 1);
    if (rc < 0)
        return rc;
    q.factors = r->limited;
    q.step = k.step = r->mem->iterations + 1;
    q.scale = 1;
    q.n_groups = 2;
    q.groups = list;
    q.commit = k.commit = commit;
    for (unsigned rank = 0; rank < r->world; rank++) {
        q.job = k.job = r->w.core.clients[rank].job;
        ask(&r->w.core, rank, skip ? zsd_skip : zsd_step, skip ? (void *)&k : (void *)&q);
    }
    *ret_commit = 0;
    for (unsigned rank = 0; rank < r->world; rank++) {
        int one = zs_answer(&r->w.core, rank);

        rc = rc < 0 ? rc : one;
        if (one == 0) {
            Zp__StepReply *reply =
                zp__step_reply__unpack(NULL, answers[rank].len, answers[rank].bytes);

            assert_non_null(reply);
            *ret_commit = reply->commit_code;
            if (reply->iterations != r->mem->iterations + 1)
                zs_fail("step %llu was answered as %llu",
                        (unsigned long long)r->mem->iterations + 1,
                        (unsigned long long)reply->iterations);
            zp__step_reply__free_unpacked(reply, NULL);
        }
    }
    return rc;
}

static void run_step(struct zs_run *r, bool skip, uint32_t commit)
{
    uint64_t begin = zn_sim_ops(r->sim), n = r->begun > 0 ? r->begun : ++r->nsteps;
    struct zs_state *next;
    int rc = 0, commit_rc = 0;
    bool pushes = !skip && r->begun == 0;

    if (r->begun == 0)
        r->limited = false;
    r->begun = 0;
    if (pushes && zs_rings() && !(zs_limits() && n % 3 == 0)) /* some are of the warm-up */
        rc = run_announce(r);
    if (pushes && rc == 0)
        rc = run_push(r, n);
    if (run_told(r, rc) < 0) {
        run_hang_up(r);
        return;
    }
    next = zs_state_next(r->mem, skip ? 0 : n);
    rc = run_note(r, 0, true, &next->job_note);
    for (unsigned rank = 0; rank < r->world && rc == 0; rank++)
        if ((n + rank) % 3 != 0)
            rc = run_note(r, rank, false, &next->notes[rank]);
    if (rc == 0)
        rc = run_ask_step(r, skip, commit, &commit_rc);
    (void)run_told(r, rc);
    if (rc == 0) {
        state_set(&r->mem, next);
        if (commit != ZSD_COMMIT_NONE)
            run_committed(r, begin, commit, run_told(r, commit_rc));
    } else if (commit != ZSD_COMMIT_NONE && !run_attached(r)) {
        struct zs_state *mem = zs_state_ref(r->mem); /* it may be there, without an answer */

        state_set(&r->mem, next);
        run_committed(r, begin, commit, rc);
        state_set(&r->mem, mem);
        zs_state_unref(mem);
    }
    zs_state_unref(next);
    if (rc < 0)
        run_hang_up(r);
}

static void run_commit(struct zs_run *r, uint32_t what)
{
    struct zs_saved *saved = &r->model.jobs[0];
    uint64_t begin = zn_sim_ops(r->sim);
    Zp__Commit q = ZP__COMMIT__INIT;

    if (what >= ZSD_RESOLVE && !saved->prepared)
        return; /* preparing it had failed */
    q.job = r->w.core.clients[0].job;
    q.what = what;
    q.iterations = what >= ZSD_RESOLVE ? saved->prepared->iterations : r->mem->iterations;
    run_committed(r, begin, what, run_told(r, call(&r->w.core, 0, zsd_commit, &q)));
}

/* As in a forward pass: each unit is pinned, compared, released. */
static void run_fetch(struct zs_run *r)
{
    for (unsigned rank = 0; rank < r->world; rank++) {
        struct client *x = &r->w.core.clients[rank];

        for (unsigned u = 0; u < ZS_UNITS; u++) {
            Zp__Fetch q = ZP__FETCH__INIT;
            Zp__Release release = ZP__RELEASE__INIT;
            Zp__FetchReply *reply;
            const struct zsd_job *job;
            struct zb_layout layout = zs_layout(u);
            uint64_t bytes =
                zb_plane_bytes(layout.block_bytes[ZB_PARAM], r->page_elems, x->count[u]);

            if (x->shards[u] == 0)
                continue;
            q.n_shards = 1;
            q.shards = &x->shards[u];
            if (run_told(r, call(&r->w.core, rank, zsd_fetch, &q)) < 0) {
                if (!run_attached(r))
                    return;
                continue;
            }
            reply = zp__fetch_reply__unpack(NULL, answers[rank].len, answers[rank].bytes);
            assert_non_null(reply);
            job = x->conn.member->job;
            if (reply->items[0]->bytes != bytes ||
                !zs_pages_same(r->mem, u, ZSD_SAVED_PARAM, x->first[u], x->count[u], r->page_elems,
                               job->arena.base + reply->items[0]->offset))
                zs_fail("step %llu: rank %u fetches wrong bytes of unit %u",
                        (unsigned long long)r->mem->iterations, rank, u);
            zp__fetch_reply__free_unpacked(reply, NULL);
            release.n_shards = 1;
            release.shards = &x->shards[u];
            zsd_release(&x->conn, &release.base);
        }
    }
}

/* ---- what administrators do */

static unsigned snap_find(const struct zs_saved *saved, const char *name)
{
    unsigned i = 0;

    while (i < saved->nsnaps && strcmp(saved->snaps[i].name, name) != 0)
        i++;
    return i;
}

static void snap_remove(struct zs_saved *saved, unsigned i)
{
    zs_state_unref(saved->snaps[i].state);
    saved->nsnaps--;
    memmove(&saved->snaps[i], &saved->snaps[i + 1], (saved->nsnaps - i) * sizeof(saved->snaps[0]));
}

static void snap_add(struct zs_saved *saved, const char *name, uint64_t retain)
{
    (void)snprintf(saved->snaps[saved->nsnaps].name, sizeof(saved->snaps[0].name), "%s", name);
    saved->snaps[saved->nsnaps++].state = zs_state_ref(saved->committed);
    while (retain > 0 && saved->nsnaps > retain)
        snap_remove(saved, 0);
}

/* Asks as a client without a rank, and keeps `m` as the model that holds, or may hold,
 * afterwards. */
static int run_people(struct zs_run *r, zsd_handler *handler, const void *message,
                      struct zs_model *m)
{
    uint64_t begin = zn_sim_ops(r->sim);
    int rc = run_told(r, call(&r->w.core, ZS_NOBODY, handler, message));

    run_changed(r, begin, *m, rc);
    return rc;
}

static void run_snap(struct zs_run *r, const struct action *a)
{
    char job[] = JOB, clone[] = CLONE, name[] = { 's', (char)('0' + a->what), '\0' };
    Zp__SnapshotTake take = ZP__SNAPSHOT_TAKE__INIT;
    Zp__SnapshotRef ref = ZP__SNAPSHOT_REF__INIT;
    Zp__Clone copy = ZP__CLONE__INIT;
    Zp__JobName gone = ZP__JOB_NAME__INIT;
    struct zs_saved *saved, *second;
    struct zs_model m;
    unsigned i;

    take.job = ref.job = copy.job = job;
    take.name = ref.name = copy.snapshot = name;
    take.retain = (uint32_t)a->place;
    copy.name = gone.name = clone;
    zs_model_copy(&m, &r->model);
    saved = &m.jobs[0];
    second = &m.jobs[1];
    i = snap_find(saved, name);
    if (a->act == SNAP && saved->committed && i == saved->nsnaps) {
        snap_add(saved, name, a->place);
        (void)run_people(r, zsd_snapshot, &take, &m);
    } else if (a->act == UNSNAP && i < saved->nsnaps) {
        snap_remove(saved, i);
        (void)run_people(r, zsd_snapshot_destroy, &ref, &m);
    } else if (a->act == ROLL && i < saved->nsnaps) {
        state_set(&saved->committed, saved->snaps[i].state);
        state_set(&saved->prepared, NULL);
        run_hang_up(r);
        (void)run_people(r, zsd_rollback, &ref, &m);
        zs_settle(&r->w);
        run_hang_up(r); /* the state in memory is gone */
    } else if (a->act == COPY && i < saved->nsnaps && second->name[0] == '\0') {
        (void)snprintf(second->name, sizeof(second->name), CLONE);
        second->committed = zs_state_ref(saved->snaps[i].state);
        (void)run_people(r, zsd_clone, &copy, &m);
    } else if (a->act == UNCOPY && second->name[0] != '\0') {
        state_set(&second->committed, NULL);
        second->name[0] = '\0';
        (void)run_people(r, zsd_job_destroy, &gone, &m);
    } else {
        zs_model_done(&m); /* its snapshot or clone could not be made */
    }
}

/* ---- where state is */

static const struct zsd_job *run_job(struct zs_run *r)
{
    return run_attached(r) ? r->w.core.clients[0].conn.member->job : NULL;
}

/* Accounts must agree with what is there, and every page that may need a place must have one. */
static void run_accounts(struct zs_run *r)
{
    const struct zsd_job *job = run_job(r);
    uint64_t bytes = 0, page_elems = r->page_elems;

    if (!job)
        return;
    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];
        const struct zsd_plane *p = &s->planes[ZB_STATE];

        if (p->resident > s->state_made || s->state_made > s->state_booked ||
            s->state_next > s->state_booked || s->state_to > s->state_booked)
            zs_fail("unit %u: %u pages of state are in memory, %u next, %u wanted, %u made, %u "
                    "booked",
                    s->unit->index, p->resident, s->state_next, s->state_to, s->state_made,
                    s->state_booked);
        if (job->replan->settled &&
            (p->resident != s->state_booked || p->resident != s->state_made ||
             p->resident != s->state_next || p->resident != s->state_to ||
             s->gpu_from < s->npages || s->gpu_next < s->npages))
            zs_fail("unit %u: its state is said to be settled, and is not", s->unit->index);
        bytes += zb_plane_bytes(p->block_bytes, page_elems,
                                zb_min_u64(s->count, s->state_booked * page_elems));
        for (uint32_t page = 0; p->extents && zsd_shard_live(s) && page < s->npages; page++)
            if (page >= p->resident && p->extents[page].at == ZB_NO_PLACE)
                zs_fail("unit %u: page %u of its state is nowhere", s->unit->index, page);
    }
    bytes += job->replan->giving_bytes;
    if (bytes != job->host_held.used[ZSD_USE_STATE])
        zs_fail("%llu bytes of state are booked, and %llu in the account",
                (unsigned long long)bytes, (unsigned long long)job->host_held.used[ZSD_USE_STATE]);
}

static void run_tier(struct zs_run *r, uint64_t more)
{
    struct zsd_core *core = r->w.core.daemon.core;
    const struct zsd_job *job = run_job(r);
    struct zb_err err = { 0 };

    (void)run_told(r, zsd_host_set(core,
                                   zsd_account_used(&core->tiers.host) -
                                       job->host_held.used[ZSD_USE_STATE] + more,
                                   &err));
    zs_settle(&r->w);
}

static void run_where(struct zs_run *r, uint32_t what)
{
    const struct zsd_job *job = run_job(r);
    uint32_t resident = 0, pages = 0;

    zs_settle(&r->w); /* memory of state that left has been given back */
    for (uint32_t i = 0; i < job->nshards; i++) {
        const struct zsd_shard *s = job->shards[i];

        if (s->planes[ZB_STATE].block_bytes == 0)
            continue;
        resident += s->planes[ZB_STATE].resident;
        pages += s->npages;
    }
    if (r->failures == 0 && zn_sim_struck(r->sim) == 0 &&
        what != (resident == pages ? 2 : resident > 0))
        zs_fail("%u of %u pages of state are in memory", resident, pages);
}

/* ---- the run */

static void run_act(struct zs_run *r, const struct action *a)
{
    switch (a->act) {
    case OPEN:
        run_open(r, a->what, a->place);
        return;
    case HANG_UP:
        run_hang_up(r);
        return;
    case RESTART:
        run_down(r);
        run_up(r);
        return;
    case ATTACH:
        run_hang_up(r);
        if (!r->model.jobs[0].committed && !r->model.jobs[0].prepared && !r->mem)
            r->world = a->what;
        else
            run_attach(r, a->what, a->place, r->model.jobs[0].prepared != NULL);
        return;
    case SNAP:
    case UNSNAP:
    case ROLL:
    case COPY:
    case UNCOPY:
        run_snap(r, a);
        return;
    default:
        break;
    }
    if (!run_ready(r))
        return;
    if (a->act == STEP || a->act == SKIP) {
        if (r->model.jobs[0].prepared) /* it was not resolved */
            run_commit(r, ZSD_RESOLVE);
        run_step(r, a->act == SKIP, a->what);
    } else if (a->act == BEGIN) {
        run_begin(r, a->what == 1);
    } else if (a->act == COMMIT) {
        run_commit(r, a->what);
    } else if (a->act == FETCH) {
        run_fetch(r);
    } else if (a->act == TIER) {
        run_tier(r, a->place);
    } else if (a->act == WHERE) {
        run_where(r, a->what);
    } else {
        (void)run_told(r, zs_read_all(&r->w, r->world, r->mem));
    }
}

void zs_run_script(struct zs_run *r)
{
    bool moving = zs_env("ZSHARD_MOVES", 0) > 0;
    const struct action *a = moving ? moves : script;
    unsigned n = moving ? ZB_COUNT(moves) : ZB_COUNT(script);

    run_up(r);
    for (; n > 0; n--, a++) {
        if (!r->up && a->act != RESTART)
            continue;
        run_act(r, a);
        run_accounts(r);
    }
    run_down(r);
}

void zs_run_init(struct zs_run *r, struct zn_sim *sim, uint64_t seed, uint32_t page_elems)
{
    *r = (struct zs_run){ .sim = sim, .seed = seed, .page_elems = page_elems, .world = 2 };
    r->entries = calloc(1, sizeof(*r->entries)); /* the empty store, from the beginning */
    assert_non_null(r->entries);
    r->nentries = 1;
}

void zs_run_done(struct zs_run *r)
{
    run_down(r);
    run_maybe_clear(r);
    free(r->maybe);
    for (unsigned i = 0; i < r->nentries; i++)
        zs_model_done(&r->entries[i].model);
    free(r->entries);
    zs_model_done(&r->model);
}

/* ---- after a restart */

unsigned zs_run_models(const struct zs_run *r, uint64_t op, const struct zs_model *models[2])
{
    unsigned i = r->nentries - 1, n = 0;

    while (r->entries[i].end > op)
        i--;
    models[n++] = &r->entries[i].model;
    if (i + 1 < r->nentries && r->entries[i + 1].begin <= op)
        models[n++] = &r->entries[i + 1].model;
    return n;
}

int zs_run_restart(struct zs_run *r)
{
    int rc;

    run_up(r);
    if (!r->up)
        return r->refused.code;
    rc = zs_read_model(&r->w, &r->model);
    run_down(r);
    return rc;
}

/* For calls that must not fail. */
static void must(int rc, const char *what)
{
    if (rc < 0)
        zs_fail("%s: %d, '%s'", what, rc, answers[0].text);
}

/* For reads of damaged bytes: an error must name the damage. */
static bool detects(unsigned rank, int rc)
{
    const char *text = answers[rank].text;

    if (rc >= 0)
        return false;
    if (rc != -EBADMSG || !strstr(text, "job '") || !strstr(text, "unit ") ||
        !strstr(text, "page "))
        zs_fail("a page that is damaged is reported as %d, '%s'", rc, text);
    return true;
}

/* The store on a device with changed bytes: everything that can be read is right. */
static int recover_damaged(struct zs_run *r, const struct zs_recovery *how, uint32_t world)
{
    bool detected = detects(ZS_NOBODY, zs_read_model(&r->w, &r->model));

    if (how->goes_on && r->model.jobs[0].name[0] != '\0') {
        run_attach(r, world, MIXED, (how->seed >> 8) % 2);
        if (!r->mem)
            detected = detects(0, answers[0].rc);
        else if (zs_read_all(&r->w, world, r->mem) < 0)
            detected = true;
    }
    return detected ? ZS_DETECTED : 0;
}

int zs_recover(struct zn_sim *sim, const struct zs_recovery *how)
{
    struct zs_run r;
    struct zb_err err = { 0 };
    struct zs_saved *saved;
    uint32_t world = 1 + (uint32_t)(how->seed % ZS_RANKS);
    static const uint64_t places[] = { ALL, TIGHT, MIXED };
    int which;

    zs_run_init(&r, sim, how->seed, how->page_elems);
    if (zs_start(&r.w, sim, how->seed, how->page_elems, &err) < 0) {
        if (!how->damaged || err.text[0] == '\0')
            zs_fail("the store does not open: %s", err.text);
        zs_run_done(&r);
        return ZS_REFUSED;
    }
    r.up = true;
    which = zs_match(&r.w, how->models, how->nmodels);
    if (which < 0)
        zs_fail("the store holds none of %u states that may be", how->nmodels);
    zs_model_copy(&r.model, how->models[which]);
    saved = &r.model.jobs[0];
    if (how->damaged) {
        int rc = recover_damaged(&r, how, world);

        *how->ret_bytes += r.w.bytes;
        zs_run_done(&r);
        return rc < 0 ? rc : which;
    }
    must(zs_read_model(&r.w, &r.model), "a saved page");
    if (how->goes_on && saved->name[0] != '\0') {
        bool prepared = saved->prepared && (how->seed >> 8) % 2;

        run_attach(&r, world, places[(how->seed >> 4) % ZB_COUNT(places)], prepared);
        must(r.mem ? 0 : answers[0].rc, "the attach");
        must(zs_read_all(&r.w, world, r.mem), "a read");
        if (saved->prepared)
            run_commit(&r, prepared ? ZSD_RESOLVE : ZSD_DROP);
        if (r.failures == 0 && saved->name[0] != '\0')
            run_step(&r, false, ZSD_COMMIT);
        if (r.failures > 0)
            zs_fail("it does not go on: %s", answers[0].text);
        run_down(&r);
        run_up(&r);
        if (!r.up)
            zs_fail("the store does not open again: %s", r.refused.text);
        must(zs_read_model(&r.w, &r.model), "a page that was saved after the restart");
    }
    if (how->ret_bytes)
        *how->ret_bytes += r.w.bytes;
    zs_run_done(&r);
    return which;
}
