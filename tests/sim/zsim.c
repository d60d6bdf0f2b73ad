/*
 * zsim.c - a core on a simulated device, its ranks, and what is read from them. zsim.h has the
 * model.
 */
#include "tests/sim/zsim.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "daemon/disk/discard.h"
#include "daemon/disk/drives.h"
#include "daemon/store/drain.h"

#define TURNS_MAX     200000u /* nothing takes as many */
#define IDLE_TURNS    64u     /* this many in a row without progress: there will be none */
#define DRAIN_TURNS   97u     /* turns, about, until a drive is drained or used again */
#define DISCARD_TURNS 3u      /* turns, about, until the next discard */
#define HOLED_TURNS   2048u   /* until space is allocated again: there are idle turns in between */
#define DISCARD_UNITS 256u    /* of a discard, at most: 1 MiB */
#define WATCH_S       60u     /* for one case: hundreds of times the usual duration */

/* ---- failures of a test */

static char context[400];
static char lines[8][200]; /* the last lines of the log */
static unsigned nlines;

/* The log (base/log.h): its last lines are printed with a failure. */
void zb_log(enum zb_log_level level, const char *event, const char *fmt, ...)
{
    char *line = lines[nlines++ % ZB_COUNT(lines)], text[160];
    va_list ap;

    (void)level;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    (void)snprintf(line, sizeof(lines[0]), "    %s %s\n", event, text);
}

void zb_log_end(struct zb_log_line *line)
{
    zb_log(line->level, line->event, "%.*s", (int)line->used, line->text);
}

void zb_log_set_level(enum zb_log_level level)
{
    (void)level;
}

static void lines_show(void)
{
    for (unsigned i = 0; i < ZB_COUNT(lines); i++) {
        const char *line = lines[(nlines + i) % ZB_COUNT(lines)];

        (void)!write(STDERR_FILENO, line, strlen(line));
    }
}

void zs_context(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(context, sizeof(context), fmt, ap);
    va_end(ap);
    (void)alarm(WATCH_S);
}

void zs_fail(const char *fmt, ...)
{
    char text[1000];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    (void)alarm(0);
    lines_show();
    fail_msg("%s: %s", context, text);
    abort(); /* fail_msg() does not return */
}

static void watch_on_signal(int signal)
{
    const char *what = signal == SIGALRM ? ": it hangs\n" : ": it crashed\n";
    struct sigaction plain = { .sa_handler = SIG_DFL };

    lines_show();
    (void)!write(STDERR_FILENO, context, strlen(context));
    (void)!write(STDERR_FILENO, what, strlen(what));
    (void)sigaction(signal == SIGALRM ? SIGABRT : signal, &plain, NULL);
    (void)raise(signal == SIGALRM ? SIGABRT : signal);
}

void zs_watch(void)
{
    static const int signals[] = { SIGABRT, SIGALRM, SIGSEGV, SIGBUS };
    const struct sigaction action = { .sa_handler = watch_on_signal };

    for (size_t i = 0; i < ZB_COUNT(signals); i++)
        (void)sigaction(signals[i], &action, NULL);
}

uint64_t zs_env(const char *name, uint64_t without)
{
    const char *value = getenv(name);

    return value && *value ? strtoull(value, NULL, 0) : without;
}

/* ---- turning */

/* Drains a data file, or uses it again. */
static void world_drains(struct zs_world *w, uint64_t draw)
{
    struct zsd_core *core = w->core.daemon.core;
    unsigned path = draw & 1;

    if (zsd_path_drained(core, path))
        (void)zsd_drive_use(core, path, NULL);
    else
        (void)zsd_drive_drain(core, path, ZSD_DRAIN_ASKED, "", NULL);
    zsd_drain_start(core);
}

/* Whether space is allocated again, which is tried after a time. */
static bool world_holed(const struct zsd_core *core)
{
    return zsd_discard_holed_bytes(core, 0) + zsd_discard_holed_bytes(core, 1) > 0;
}

/* Draws the next source of work. Returns how much was done. */
static unsigned world_turn(struct zs_world *w)
{
    uint64_t draw = ztest_random(&w->seed);
    struct zsd_core *core = w->core.daemon.core;
    unsigned n = 0;

    if (zs_drains && (draw >> 32) % DRAIN_TURNS == 0)
        world_drains(w, draw >> 48);
    if (zs_discards && (draw >> 40) % (world_holed(core) ? HOLED_TURNS : DISCARD_TURNS) == 0)
        zsd_discards_tick(core, UINT64_MAX); /* whatever the time is */
    zsd_core_turn(&w->core.daemon);
    if (draw & 3)
        n += zn_reap(w->core.daemon.engine, 8);
    if ((draw & 768) && w->core.daemon.nmore > 0)
        n += zn_reap(w->core.daemon.more[0].engine, 8);
    if (draw & 12)
        n += zsd_compute_reap(w->core.daemon.compute, 1 + (draw >> 8) % 8);
    if (draw & 48)
        n += zsd_compute_reap(w->core.daemon.catalog_thread, 1);
    return n;
}

/* What counts as idle when n things were done. Devices of a fixed rate are waited for. */
static unsigned turn_idle(unsigned n, unsigned idle)
{
    const struct timespec pause = { .tv_nsec = 20000 };

    if (n > 0 || !zs_patient)
        return n > 0 ? 0 : idle + 1;
    (void)nanosleep(&pause, NULL);
    return 0;
}

int zs_answer(struct world *core, unsigned tag)
{
    struct zs_world *w = zb_container_of(core, struct zs_world, core);
    const struct answer *a = &answers[tag];
    unsigned idle = 0;

    for (unsigned i = 0; (i < TURNS_MAX || zs_patient) && a->rc == NONE; i++) {
        idle = turn_idle(world_turn(w), idle);
        if (zs_patient)
            zsd_drives_tick(core->daemon.core, zb_now_ns());
        if (idle % IDLE_TURNS == IDLE_TURNS - 1) /* it waits for a deadline */
            zsd_core_tick(&core->daemon, UINT64_MAX);
        if (idle > 4 * IDLE_TURNS)
            break;
    }
    if (a->rc == NONE)
        zs_fail("rank %u waits for an answer, and nothing moves", tag);
    return a->rc;
}

void zs_settle(struct zs_world *w)
{
    unsigned idle = 0;

    for (unsigned i = 0; i < TURNS_MAX; i++) {
        idle = world_turn(w) > 0 ? 0 : idle + 1;
        if (idle > IDLE_TURNS || (zsd_core_busy(&w->core.daemon) == 0 && idle > 2))
            break;
    }
    if (zsd_core_busy(&w->core.daemon) > 0)
        zs_fail("%u operations are in progress, and nothing moves", zsd_core_busy(&w->core.daemon));
}

void zs_hang_up(struct zs_world *w)
{
    for (unsigned r = 0; r <= ZS_RANKS; r++)
        client_gone(&w->core, r);
    zs_settle(w);
}

/* ---- up and down */

bool zs_measures, zs_drains, zs_discards, zs_patient;
struct zn_sim *zs_second;
unsigned zs_paths = 1, zs_retire;
uint64_t zs_shrink_bytes;

static int start_second(struct zsd *daemon, struct zn_sim *sim, struct zb_err *err)
{
    daemon->nmore = 1;
    daemon->more[0].copy_path = ZS_COPY;
    return zn_sim_engine_at(&daemon->more[0].engine, zs_second ? zs_second : sim, ZS_MORE,
                            ZS_DATA_BYTES, 1, err);
}

static void start_wrong(const char *what)
{
    zs_fail("%s", what);
}

int zs_start(struct zs_world *w, struct zn_sim *sim, uint64_t seed, uint32_t page_elems,
             struct zb_err *err)
{
    struct zsd *daemon = &w->core.daemon;
    int rc;

    world_wrong = start_wrong;
    *w = (struct zs_world){ .sim = sim,
                            .core = { .staging_bytes = ZS_STAGING, .answer = zs_answer },
                            .seed = seed };
    daemon->config.host_bytes = 64 << 20;
    daemon->config.ring_bytes = 3 * (uint64_t)page_elems * 12;
    daemon->config.page_elems = page_elems;
    daemon->config.jobs_max = 4;
    daemon->config.timeout_ms = 600000;
    daemon->engine_base = ZN_DATA_START;
    daemon->catalog_path = ZS_CATALOG;
    daemon->measures = zs_measures;
    daemon->config.retire = zs_shrink_bytes > 0 ? 0 : zs_retire;
    daemon->config.shrink = zs_shrink_bytes > 0 ? zs_retire : 0;
    daemon->config.shrink_bytes = zs_shrink_bytes;
    rc = zn_sim_vfs(sim, &daemon->catalog_vfs, err);
    if (rc == 0)
        rc = zn_sim_engine(&daemon->engine, sim, ZS_DATA, ZS_DATA_BYTES, 0, err);
    if (rc == 0)
        rc = zs_paths > 1 ? start_second(daemon, sim, err) : 0;
    daemon->config.discard = zs_discards;
    if (rc == 0)
        rc = world_up(&w->core, ZS_RANKS + 1, err);
    if (rc < 0) {
        zs_stop(w);
    } else {
        daemon->core->disk->discard_least = 1;
        daemon->core->disk->discard_most = DISCARD_UNITS;
    }
    return rc;
}

void zs_stop(struct zs_world *w)
{
    for (unsigned r = 0; r < w->core.nclients; r++)
        zb_close_fd(&answers[r].fd);
    world_down(&w->core);
}

/* ---- jobs */

bool zs_rings(void)
{
    return zs_env("ZSHARD_RING", 0) > 0;
}

#define ZS_ROOMS (136u << 10) /* more than the gradients of the two largest units */

bool zs_limits(void)
{
    return zs_env("ZSHARD_RING", 0) > 1;
}

static int rank_open(struct zs_world *w, unsigned rank, const struct zs_open *o)
{
    const struct open_args args = { .name = o->job,
                                    .rank = rank,
                                    .world = o->world,
                                    .groups = 2,
                                    .keep = !o->unkept,
                                    .durable = !o->unkept,
                                    .returns = o->unkept,
                                    .attach = o->attach,
                                    .takeover = o->attach && rank == 0,
                                    .epoch = rank == 0 ? o->epoch : 0,
                                    .early = true,
                                    .optimizer = o->optimizer,
                                    .grad_ring = zs_rings(),
                                    .ring_limits = zs_limits(),
                                    .host_bytes_max = o->host_bytes > 0
                                                          ? o->host_bytes + o->world * ZS_STAGING +
                                                                (zs_limits() ? ZS_ROOMS : 0)
                                                          : 0 };

    return job_open_with(&w->core, rank, &args);
}

static int rank_register(struct zs_world *w, unsigned rank, uint32_t world)
{
    struct client *c = &w->core.clients[rank];

    for (unsigned u = 0; u < ZS_UNITS; u++) {
        uint64_t slice;

        zb_slice(zs_units[u].elems, world, rank, &slice, &c->first[u], &c->count[u]);
    }
    return shards_register(&w->core, rank, ZS_UNITS);
}

static int ranks_ready(struct zs_world *w, const struct zs_open *o)
{
    int rc = 0;

    for (unsigned r = 0; r < o->world; r++) {
        Zp__Ready q = ZP__READY__INIT;

        q.job = w->core.clients[r].job;
        q.at_point = o->at != NULL;
        q.iterations = o->at ? *o->at : 0;
        ask(&w->core, r, zsd_ready, &q);
    }
    for (unsigned r = 0; r < o->world; r++) {
        int one = zs_answer(&w->core, r);

        if (one == 0)
            zb_close_fd(&answers[r].fd);
        rc = rc < 0 ? rc : one;
    }
    return rc;
}

int zs_open(struct zs_world *w, const struct zs_open *o)
{
    int rc = 0;

    for (unsigned r = 0; r < o->world && rc == 0; r++) {
        rc = rank_open(w, r, o);
        for (unsigned u = 0; u < ZS_UNITS && rc == 0; u++)
            rc = unit_define(&w->core, r, u, &zs_units[u]);
        if (rc == 0)
            rc = rank_register(w, r, o->world);
    }
    if (rc == 0)
        rc = ranks_ready(w, o);
    if (rc < 0)
        zs_hang_up(w);
    return rc;
}

/* ---- reading */

static const enum zk_what whats[] = { ZK_PARAM, ZK_MASTER, ZK_EXP_AVG, ZK_EXP_AVG_SQ };

/* Reads one plane of one shard. */
static int shard_read(struct zs_world *w, unsigned rank, unsigned u, enum zk_what what,
                      const struct zs_state *s)
{
    struct client *r = &w->core.clients[rank];
    struct zb_layout layout = zs_layout(u);
    size_t bytes = r->count[u] * (what == ZK_PARAM ? zb_dtype_bytes(layout.dtype) : 4);
    struct zk_page page = {
        .param = s->planes[u][ZSD_SAVED_PARAM] +
                 zb_blocks_bytes(layout.block_bytes[ZB_PARAM], r->first[u]),
        .state = layout.frozen ? NULL
                               : s->planes[u][ZSD_SAVED_STATE] +
                                     zb_blocks_bytes(layout.block_bytes[ZB_STATE], r->first[u]),
        .first = r->first[u],
        .count = r->count[u],
    };
    static _Alignas(64) uint8_t want[ZS_STAGING];
    Zp__Read q = ZP__READ__INIT;
    int rc;

    assert_true(bytes <= ZS_STAGING);
    q.shard = r->shards[u];
    q.what = what;
    q.count = r->count[u];
    rc = call(&w->core, rank, zsd_read, &q);
    if (rc < 0)
        return rc;
    zk_page_read(w->core.daemon.kernels, &layout, &page, what, want);
    if (memcmp(want, r->staging, bytes) != 0)
        zs_fail("step %llu: rank %u reads wrong bytes of unit %u, kind %d",
                (unsigned long long)s->iterations, rank, u, (int)what);
    w->bytes += bytes;
    return 0;
}

static void note_compare(const char *whose, unsigned rank, const struct zs_note *want,
                         const void *text, size_t len, uint64_t iteration)
{
    if (want->len != len || (len > 0 && memcmp(want->text, text, len) != 0) ||
        (len > 0 && want->iteration != iteration))
        zs_fail("the note of %s %u is '%.*s' of step %llu, and not '%.*s' of %llu", whose, rank,
                (int)len, (const char *)text, (unsigned long long)iteration, (int)want->len,
                want->text, (unsigned long long)want->iteration);
}

static void note_read(struct zs_world *w, unsigned rank, bool of_job, const struct zs_note *want)
{
    Zp__NoteGet q = ZP__NOTE_GET__INIT;
    Zp__NoteGetReply *reply;
    int rc;

    q.job = w->core.clients[rank].job;
    q.of_job = of_job;
    rc = call(&w->core, rank, zsd_note_get, &q);
    if (rc == -ENOENT && want->len == 0)
        return;
    if (rc < 0)
        zs_fail("a note: %s", answers[rank].text);
    reply = zp__note_get_reply__unpack(NULL, answers[rank].len, answers[rank].bytes);
    assert_non_null(reply);
    note_compare(of_job ? "the job" : "rank", rank, want, reply->data.data, reply->data.len,
                 reply->iteration);
    zp__note_get_reply__free_unpacked(reply, NULL);
}

int zs_read_all(struct zs_world *w, uint32_t world, const struct zs_state *s)
{
    for (unsigned r = 0; r < world; r++) {
        for (unsigned u = 0; u < ZS_UNITS; u++) {
            struct zb_layout layout = zs_layout(u);

            for (unsigned i = 0; i < ZB_COUNT(whats) && w->core.clients[r].shards[u] != 0; i++) {
                int rc = zk_page_has(&layout, whats[i]) ? shard_read(w, r, u, whats[i], s) : 0;

                if (rc < 0)
                    return rc;
            }
        }
        note_read(w, r, false, &s->notes[r]);
    }
    note_read(w, 0, true, &s->job_note);
    return 0;
}

/* ---- what is saved */

struct version_read {
    struct zsd_row_read read;
    bool over;
    struct zb_err err;
};

static void version_on_read(struct zsd_row_read *r, const struct zb_err *err)
{
    struct version_read *v = zb_container_of(r, struct version_read, read);

    v->over = true;
    if (err)
        v->err = *err;
}

static int row_read(struct zs_world *w, struct zsd_row *row, enum zsd_saved_plane p, uint32_t page,
                    const struct zs_state *s)
{
    static _Alignas(4096) uint8_t buf[8192 * 12];
    struct version_read v = { .read = { .core = w->core.daemon.core,
                                        .row = row,
                                        .plane = p,
                                        .page = page,
                                        .buf = buf,
                                        .done = version_on_read } };

    zsd_row_read_start(&v.read, s->job_note.len > 0 ? "of a step" : "as it began");
    for (unsigned i = 0; i < TURNS_MAX && !v.over; i++)
        (void)world_turn(w);
    if (!v.over)
        zs_fail("a page of a row is never read");
    if (v.err.code != 0) {
        answers[ZS_NOBODY].rc = v.err.code;
        (void)snprintf(answers[ZS_NOBODY].text, sizeof(answers[ZS_NOBODY].text), "%s", v.err.text);
        return v.err.code;
    }
    if (!zs_pages_same(s, row->unit, p, row->first + (uint64_t)page * row->page_elems,
                       zsd_row_page_elems(row, page), row->page_elems, buf))
        zs_fail("saved step %llu: wrong bytes in unit %u from %llu, plane %d, page %u",
                (unsigned long long)s->iterations, row->unit, (unsigned long long)row->first,
                (int)p, page);
    w->bytes += zsd_row_page_bytes(row, p, page);
    return 0;
}

int zs_read_version(struct zs_world *w, const struct zsd_version *v, const struct zs_state *s)
{
    uint64_t covered[ZS_UNITS] = { 0 };
    int rc = 0;

    for (uint32_t i = 0; i < v->nrows; i++) {
        struct zsd_row *row = v->rows[i];

        covered[row->unit] += row->count;
        for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++)
            for (uint32_t page = 0; page < row->npages && row->planes[p].block_bytes > 0; page++) {
                int one = row_read(w, row, p, page, s);

                rc = rc < 0 ? rc : one;
                w->detected += one < 0;
            }
    }
    for (unsigned u = 0; u < ZS_UNITS; u++)
        if (covered[u] != zb_padded_elems(zs_units[u].elems))
            zs_fail("saved step %llu: unit %u has %llu elements", (unsigned long long)s->iterations,
                    u, (unsigned long long)covered[u]);
    return rc;
}

static bool note_same(const struct zs_note *want, const struct zsd_note *note)
{
    return want->len == (note->data ? note->total : 0) &&
           (want->len == 0 ||
            (memcmp(want->text, note->data, want->len) == 0 && want->iteration == note->iteration));
}

static bool version_same(const struct zsd_version *v, const struct zs_state *s)
{
    if (!v || !s)
        return !v && !s;
    if (v->iterations != s->iterations || v->applied != s->applied ||
        !note_same(&s->job_note, &v->job_note))
        return false;
    for (uint32_t r = 0; r < ZS_RANKS; r++) {
        static const struct zsd_note none;

        if (!note_same(&s->notes[r], r < v->world ? &v->notes[r] : &none))
            return false;
    }
    return true;
}

static bool saved_same(const struct zsd_saved *saved, const struct zs_saved *m)
{
    unsigned n = 0;

    if (!saved || m->name[0] == '\0')
        return !saved && m->name[0] == '\0';
    if (!version_same(saved->committed, m->committed) ||
        !version_same(saved->prepared, m->prepared))
        return false;
    zb_list_each(pos, &saved->snaps)
    {
        const struct zsd_snap *snap = zb_container_of(pos, struct zsd_snap, node);

        if (n == m->nsnaps || strcmp(snap->name, m->snaps[n].name) != 0 ||
            !version_same(snap->version, m->snaps[n].state))
            return false;
        n++;
    }
    return n == m->nsnaps;
}

static bool model_same(struct zs_world *w, const struct zs_model *m)
{
    unsigned kept = 0, named = 0;

    zb_list_each(pos, &w->core.daemon.core->store->saved)
    {
        const struct zsd_saved *saved = zb_container_of(pos, struct zsd_saved, node);

        kept += zsd_saved_kept(saved) && !saved->gone;
    }
    for (unsigned j = 0; j < ZS_JOBS; j++) {
        if (m->jobs[j].name[0] == '\0')
            continue;
        named++;
        if (!saved_same(zsd_saved_by_name(w->core.daemon.core, 1000, m->jobs[j].name), &m->jobs[j]))
            return false;
    }
    return kept == named;
}

int zs_match(struct zs_world *w, const struct zs_model *const *models, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (model_same(w, models[i]))
            return (int)i;
    return -1;
}

int zs_read_model(struct zs_world *w, const struct zs_model *m)
{
    int rc = 0;

    for (unsigned j = 0; j < ZS_JOBS; j++) {
        const struct zs_saved *want = &m->jobs[j];
        struct zsd_saved *saved;
        unsigned n = 0;
        int one;

        if (want->name[0] == '\0')
            continue;
        saved = zsd_saved_by_name(w->core.daemon.core, 1000, want->name);
        if (saved->committed && (one = zs_read_version(w, saved->committed, want->committed)) < 0)
            rc = one;
        if (saved->prepared && (one = zs_read_version(w, saved->prepared, want->prepared)) < 0)
            rc = one;
        zb_list_each(pos, &saved->snaps)
        {
            one = zs_read_version(w, zb_container_of(pos, struct zsd_snap, node)->version,
                                  want->snaps[n++].state);
            if (one < 0)
                rc = one;
        }
    }
    return rc;
}
