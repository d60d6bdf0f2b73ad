#include "tests/compat/compat.h"

#include <stdio.h>

#include "base/plan.h"

#define STAGING  (112u << 10) /* any unit, in fp32 */
#define NOTE_MAX 20000u
#define STEP_MS  15000u
#define WHATS    4u

static const struct {
    enum zc_what what;
    const char *name;
} whats[WHATS] = { { ZC_PARAM, "param" },
                   { ZC_MASTER, "master" },
                   { ZC_EXP_AVG, "moment 1" },
                   { ZC_EXP_AVG_SQ, "moment 2" } };

/* ---- what a job does */

static size_t elem_bytes(enum zc_dtype dtype)
{
    return dtype == ZC_F32 ? 4 : 2;
}

/* What staging, gradients and parameters take: no optimizer state fits beside them. */
static uint64_t host_bytes(const struct co_job *job, uint32_t world)
{
    uint64_t bytes = (uint64_t)world * STAGING;

    for (unsigned u = 0; u < job->nunits; u++) {
        const struct zc_unit *unit = &job->units[u];

        bytes += zb_padded_elems(unit->elems) * elem_bytes(unit->dtype);
        if (!unit->frozen)
            bytes += zb_padded_elems(unit->elems) * elem_bytes(unit->grad_dtype);
    }
    return bytes;
}

static struct zc_job_options options_of(const struct co_job *job, uint32_t world)
{
    return (struct zc_job_options){ .name = job->name,
                                    .world = world,
                                    .keep = true,
                                    .durable = true,
                                    .staging_bytes = STAGING,
                                    .groups = CO_GROUPS,
                                    .optimizer = job->optimizer,
                                    .moments = job->moments,
                                    .offload_optimizer = job->offload_optimizer,
                                    .host_bytes_max = job->streamed ? host_bytes(job, world) : 0 };
}

void co_open(const struct co_job *job, struct zi_rank *ranks, const struct zi_daemon *d)
{
    const struct zc_job_options o = options_of(job, job->world);

    zi_job(ranks, job->world, d, &o, job->units, job->nunits);
    for (unsigned r = 0; r < job->world; r++)
        for (unsigned u = 0; u < job->nunits; u++)
            if (ranks[r].shards[u]) {
                co_values_are(job, u, 0);
                zi_write_all(&ranks[r], u, co_initial);
            }
}

void co_attach(const struct co_job *job, struct zi_rank *ranks, uint32_t world, bool takeover,
               const struct zi_daemon *d)
{
    struct zc_job_options o = options_of(job, world);

    o.attach = true;
    for (o.rank = 0; o.rank < world; o.rank++) {
        o.takeover = takeover && o.rank == 0;
        o.epoch = o.rank == 0 ? 0 : ranks[0].job.epoch;
        if (zi_open(&ranks[o.rank], d, &o) < 0)
            fail_msg("attach to '%s': %s", job->name, zc_error(ranks[o.rank].c));
        zi_define(&ranks[o.rank], job->units, job->nunits, world);
    }
}

void co_ready(struct zi_rank *ranks, uint32_t world, const uint64_t *at)
{
    struct zi_call calls[CO_WORLD_MAX];

    for (unsigned r = 0; r < world; r++) {
        calls[r] = ZI_CALL(&ranks[r]);
        assert_int_equal(zc_ready(ranks[r].c, ranks[r].job.id, at, ZI_WAIT_MS, &ranks[r].place,
                                  zi_done, &calls[r]),
                         0);
    }
    for (unsigned r = 0; r < world; r++)
        if (zi_await(ranks, world, &calls[r]) < 0)
            fail_msg("ready: %s", calls[r].text);
}

/* The note of a rank, or the job's: a line, or many of them. */
static size_t note_of(const struct co_job *job, unsigned rank, bool of_job, uint64_t iteration,
                      char note[NOTE_MAX])
{
    const size_t most = of_job && iteration % 2 == 0 ? NOTE_MAX : 1;
    size_t len = 0;

    do
        len += (size_t)snprintf(note + len, NOTE_MAX - len, "%s %u of '%s', iteration %u\n",
                                of_job ? "job" : "rank", rank, co_origin(job)->name,
                                (unsigned)iteration);
    while (len + 64 < most);
    return len;
}

static void notes_put(const struct co_job *job, struct zi_rank *r, uint64_t iteration)
{
    char note[NOTE_MAX];
    size_t len = note_of(job, r->rank, false, iteration, note);
    int rc = zc_note_put_wait(r->c, r->job.id, false, note, len);

    if (rc == 0 && r->rank == 0) {
        len = note_of(job, 0, true, iteration, note);
        rc = zc_note_put_wait(r->c, r->job.id, true, note, len);
    }
    if (rc < 0)
        fail_msg("note of '%s': %s", job->name, zc_error(r->c));
}

static void push_all(const struct co_job *job, struct zi_rank *r, uint64_t iteration)
{
    for (unsigned u = 0; u < job->nunits; u++)
        if (r->shards[u] && !job->units[u].frozen) {
            co_values_are(job, u, iteration);
            zi_push_all(r, u, iteration, co_gradient);
        }
}

/* Asks for the iteration; skipped ones have gradients, too, and drop them. */
static int ask(const struct co_job *job, struct zi_rank *r, uint64_t iteration,
               enum zc_commit commit, struct zc_stepped *ret, struct zi_call *call)
{
    const struct zc_step step = { .step = iteration,
                                  .scale = 0.5,
                                  .groups = co_groups,
                                  .ngroups = CO_GROUPS,
                                  .commit = commit,
                                  .timeout_ms = STEP_MS };

    *call = ZI_CALL(r);
    if (co_job_skips(job, iteration))
        return zc_skip(r->c, r->job.id, iteration, commit, STEP_MS, ret, zi_done, call);
    return zc_step(r->c, r->job.id, &step, ret, zi_done, call);
}

void co_iterate(const struct co_job *job, struct zi_rank *ranks, uint32_t world, uint64_t iteration,
                enum zc_commit commit)
{
    struct zc_stepped stepped[CO_WORLD_MAX];
    struct zi_call calls[CO_WORLD_MAX];

    for (unsigned r = 0; r < world; r++) {
        notes_put(job, &ranks[r], iteration);
        push_all(job, &ranks[r], iteration);
    }
    for (unsigned r = 0; r < world; r++)
        if (ask(job, &ranks[r], iteration, commit, &stepped[r], &calls[r]) < 0)
            fail_msg("'%s', iteration %u: %s", job->name, (unsigned)iteration,
                     zc_error(ranks[r].c));
    for (unsigned r = 0; r < world; r++) {
        if (zi_await(ranks, world, &calls[r]) < 0)
            fail_msg("'%s', iteration %u: %s", job->name, (unsigned)iteration, calls[r].text);
        if (stepped[r].commit_code < 0)
            fail_msg("'%s', commit: %s", job->name, stepped[r].commit_text);
        assert_int_equal(stepped[r].iterations, iteration);
        co_see_applied(job, iteration, stepped[r].applied);
    }
}

/* ---- what it holds */

void co_see_applied(const struct co_job *job, uint64_t iteration, uint64_t applied)
{
    char text[24];

    (void)snprintf(text, sizeof(text), "%u", (unsigned)applied);
    co_see(text, "%s %u applied", co_origin(job)->name, (unsigned)iteration);
}

/* Of an element of a plane, as it is read. */
static size_t read_bytes(const struct zc_unit *unit, enum zc_what what)
{
    return what == ZC_PARAM ? elem_bytes(unit->dtype) : sizeof(float);
}

/* Whether planes of the unit hold this. */
static bool has(const struct co_job *job, const struct zc_unit *unit, enum zc_what what)
{
    if (unit->frozen)
        return what == ZC_PARAM;
    return what != ZC_EXP_AVG_SQ || job->optimizer == ZC_ADAMW || job->optimizer == ZC_ADAM;
}

/* Reads the plane of a unit, all of it. */
typedef void plane_fn(void *arg, unsigned unit, enum zc_what what, char *plane);

static void see_planes(const struct co_job *job, uint64_t iteration, plane_fn *fn, void *arg)
{
    for (unsigned u = 0; u < job->nunits; u++)
        for (unsigned w = 0; w < WHATS; w++) {
            static char plane[STAGING];
            const struct zc_unit *unit = &job->units[u];

            if (!has(job, unit, whats[w].what))
                continue;
            memset(plane, 0, sizeof(plane));
            fn(arg, u, whats[w].what, plane);
            co_see_bytes(plane, unit->elems * read_bytes(unit, whats[w].what), "%s %u %s %s",
                         co_origin(job)->name, (unsigned)iteration, unit->name, whats[w].name);
        }
}

struct ranks {
    const struct co_job *job;
    struct zi_rank *ranks;
    uint32_t world;
};

static void plane_of_ranks(void *arg, unsigned u, enum zc_what what, char *plane)
{
    const struct ranks *all = arg;
    const size_t bytes = read_bytes(&all->job->units[u], what);

    for (unsigned i = 0; i < all->world; i++) {
        struct zi_rank *r = &all->ranks[i];
        const struct zc_range *range = &r->ranges[u];

        if (!r->shards[u])
            continue;
        if (zc_read_wait(r->c, r->shards[u], what, 0, range->count, r->job.staging) < 0)
            fail_msg("read of '%s': %s", all->job->name, zc_error(r->c));
        memcpy(plane + range->first * bytes, r->job.staging, range->count * bytes);
    }
}

void co_see_state(const struct co_job *job, struct zi_rank *ranks, uint32_t world,
                  uint64_t iteration)
{
    struct ranks all = { job, ranks, world };

    see_planes(job, iteration, plane_of_ranks, &all);
}

void co_see_codes(const struct co_job *job, struct zi_rank *r, unsigned u)
{
    struct zc_view view;

    if (zc_fetch_wait(r->c, &r->shards[u], 1, 0, ZI_FETCH_MS, &view) < 0)
        fail_msg("fetch of '%s': %s", job->name, zc_error(r->c));
    co_see_bytes(view.data, view.bytes, "%s %s codes", job->name, job->units[u].name);
    assert_int_equal(zc_release(r->c, &r->shards[u], 1), 0);
}

void co_see_notes(const struct co_job *job, struct zi_rank *ranks, uint32_t world,
                  uint64_t iteration)
{
    static char note[ZC_NOTE_MAX];
    size_t len;

    for (unsigned i = 0; i <= world; i++) {
        const bool of_job = i == world;
        struct zi_rank *r = &ranks[of_job ? 0 : i];

        if (!of_job && world != job->world)
            continue;
        if (zc_note_get_wait(r->c, r->job.id, of_job, note, &len) < 0)
            fail_msg("note of '%s': %s", job->name, zc_error(r->c));
        if (of_job)
            co_see_bytes(note, len, "%s %u note", co_origin(job)->name, (unsigned)iteration);
        else
            co_see_bytes(note, len, "%s %u note of rank %u", co_origin(job)->name,
                         (unsigned)iteration, i);
    }
}

/* ---- what is saved of it */

struct saved {
    struct zc_client *c;
    const struct zc_reader *reader;
    const struct co_job *job;
};

static void plane_of_saved(void *arg, unsigned u, enum zc_what what, char *plane)
{
    const struct saved *s = arg;
    const struct zc_unit *unit = &s->job->units[u];

    if (zc_reader_read_wait(s->c, s->reader->id, u, what, 0, unit->elems, s->reader->staging) < 0)
        fail_msg("reader of '%s': %s", s->job->name, zc_error(s->c));
    memcpy(plane, s->reader->staging, unit->elems * read_bytes(unit, what));
}

static void see_manifest(const struct saved *s, unsigned u)
{
    struct zc_unit *unit = NULL;
    char text[512];
    int len;

    if (zc_reader_unit_wait(s->c, s->reader->id, u, &unit) < 0)
        fail_msg("unit of '%s': %s", s->job->name, zc_error(s->c));
    len = snprintf(text, sizeof(text), "%s %u elements, dtype %d, gradients %d%s%s", unit->name,
                   (unsigned)unit->elems, (int)unit->dtype, (int)unit->grad_dtype,
                   unit->frozen ? ", frozen" : "", unit->quantized ? ", quantized" : "");
    for (unsigned t = 0; t < unit->ntensors; t++) {
        const struct zc_tensor *tensor = &unit->tensors[t];

        len += snprintf(text + len, sizeof(text) - (size_t)len, "; %s at %u, group %u, dims",
                        tensor->name, (unsigned)tensor->first, tensor->group);
        for (unsigned i = 0; i < tensor->ndims; i++)
            len +=
                snprintf(text + len, sizeof(text) - (size_t)len, " %u", (unsigned)tensor->dims[i]);
    }
    zc_rows_free(unit);
    co_see(text, "%s unit %u", s->job->name, u);
}

void co_see_saved(const struct co_job *job, struct zc_client *c, const char *snapshot,
                  uint64_t iteration)
{
    struct zc_reader reader;
    struct saved s = { c, &reader, job };
    char text[128];

    if (zc_reader_open_wait(c, job->name, snapshot, STAGING, &reader) < 0)
        fail_msg("reader of '%s': %s", job->name, zc_error(c));
    assert_int_equal(reader.iterations, iteration);
    assert_int_equal(reader.units, job->nunits);
    co_see_applied(job, iteration, reader.applied);
    (void)snprintf(text, sizeof(text), "optimizer %d, moments %d, %u groups, world %u",
                   (int)reader.optimizer, (int)reader.moments, reader.groups, reader.world);
    co_see(text, "%s is", job->name);
    for (unsigned u = 0; u < job->nunits; u++)
        see_manifest(&s, u);
    see_planes(job, iteration, plane_of_saved, &s);
    assert_int_equal(zc_reader_close_wait(c, reader.id), 0);
}
