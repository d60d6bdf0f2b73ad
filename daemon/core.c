/*
 * core.c - what turns the core: deferred work, deadlines, the queue to the data file, page buffers.
 *
 * MODEL. The loop calls zsd_core_turn() before it waits. Until then whatever became runnable sits
 * in `works`. Everything here is a short list walked by one thread.
 *
 * PAGE BUFFERS. A fixed number, each large enough for the parameter and state planes of one page;
 * whoever streams a page holds exactly one from before its read until after its write. They are the
 * back-pressure of the step pipeline: who finds none waits in line.
 *
 * A HOLD. A flush waits for what the drive has in its queue, and the pages of a step fill that
 * again and again. So while a change of the catalog is flushed, page writes that come wait here:
 * what is in flight drains once, and the flushes find a drive that is quiet. Reads and compute go
 * on. A hold is bounded, and so is their share of time: nobody's change can stop who trains.
 *
 * SHARES. What several jobs want is given out in lines (fair.h): page buffers, places in an engine,
 * compute threads (compute.c). A buffer that comes back is given to whose turn it is there and
 * then, so nobody who asks between takes it. Who holds one waits for transfers and tasks only,
 * which end by themselves: so every buffer comes back, whatever the clients of its job do.
 */
#include "daemon/run/core_priv.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/place.h"
#include "base/size.h"
#include "daemon/disk/paths.h"
#include "daemon/job/job.h"
#include "daemon/run/gpu_tier.h"
#include "daemon/store/store.h"

#define HOLD_MAX_MS 100u
#define HOLD_REST   4u /* so many times its length pass before the next */

/* ---- deferred work */

void zsd_defer(struct zsd_core *core, struct zsd_work *work)
{
    if (!work->node.next)
        zb_list_init(&work->node);
    if (zb_list_empty(&work->node))
        zb_list_push_back(&core->works, &work->node);
}

void zsd_core_turn(struct zsd *daemon)
{
    struct zsd_core *core = daemon->core;
    struct zb_list *node;

    while ((node = zb_list_pop_front(&core->works)) != NULL) {
        struct zsd_work *work = zb_container_of(node, struct zsd_work, node);

        work->run(work);
    }
    for (unsigned i = 0; i < zsd_paths(daemon); i++)
        zn_kick(zsd_path_engine(daemon, i));
    zsd_top_turn(core);
}

/* ---- deadlines */

void zsd_timed_arm(struct zsd_core *core, struct zsd_timed *timed, uint32_t timeout_ms,
                   void (*expire)(struct zsd_timed *timed))
{
    if (timeout_ms == 0)
        timeout_ms = core->daemon->config.timeout_ms;
    timed->deadline_ns = zb_now_ns() + (uint64_t)timeout_ms * 1000000u;
    timed->expire = expire;
    zb_list_init(&timed->node);
    zb_list_push_back(&core->timed, &timed->node);
}

void zsd_timed_disarm(struct zsd_timed *timed)
{
    if (timed->node.next)
        zb_list_remove(&timed->node);
}

void zsd_core_tick(struct zsd *daemon, uint64_t now_ns)
{
    struct zsd_core *core = daemon->core;
    struct zb_list due;

    zsd_scrub_tick(core, now_ns);
    zb_list_init(&due); /* expire() may arm and disarm others: collect first */
    zb_list_each(pos, &core->timed)
    {
        if (zb_container_of(pos, struct zsd_timed, node)->deadline_ns <= now_ns) {
            zb_list_remove(pos);
            zb_list_push_back(&due, pos);
        }
    }
    for (struct zb_list *node; (node = zb_list_pop_front(&due)) != NULL;) {
        struct zsd_timed *timed = zb_container_of(node, struct zsd_timed, node);

        timed->expire(timed);
    }
}

/* ---- the data file */

static void pio_on_done(struct zn_io *io, int rc);

static bool pio_submit(struct zsd_core *core, struct zsd_pio *pio)
{
    int rc = zn_submit(zsd_path_engine(core->daemon, pio->path), &pio->io);

    if (rc == -EAGAIN)
        return false;
    assert(rc == 0); /* extents are ours: aligned and inside the file */
    return true;
}

static void pio_push(struct zsd_core *core, struct zsd_pio *pio, uint64_t bytes)
{
    struct zsd_payer *payer = pio->payer ? pio->payer : &core->house;

    zsd_fair_push(&core->lines[pio->path].waiting, &payer->flows[ZSD_LINE_FILES + pio->path],
                  &pio->turn, bytes, payer->share, pio->io.urgent);
}

/* Submits what is in line, as far as the engine takes it. */
static void pio_feed(struct zsd_core *core, unsigned path)
{
    struct zsd_line *line = &core->lines[path];
    struct zsd_turn *turn;

    while ((turn = zsd_fair_next(&line->waiting)) != NULL) {
        struct zsd_pio *pio = zb_container_of(turn, struct zsd_pio, turn);
        bool held = core->hold.on && pio->io.op == ZN_WRITE;

        if (!held && !pio_submit(core, pio))
            break;
        zsd_fair_take(&line->waiting, turn);
        if (held)
            zb_list_push_back(&line->held, &turn->node);
    }
}

void zsd_hold_end(struct zsd_core *core)
{
    uint64_t now_ns = zb_now_ns(), held_ns = now_ns - core->hold.since_ns;

    if (!core->hold.on)
        return;
    core->hold.on = false;
    core->hold.rests_until_ns = now_ns + HOLD_REST * held_ns;
    core->daemon->stats.write_hold_us += held_ns / 1000;
    zsd_timed_disarm(&core->hold.timed);
    for (unsigned i = 0; i < zsd_paths(core->daemon); i++) {
        struct zb_list *node;

        while ((node = zb_list_pop_front(&core->lines[i].held)) != NULL)
            pio_push(core, zb_container_of(node, struct zsd_pio, turn.node), 0);
        pio_feed(core, i);
    }
}

static void hold_on_expire(struct zsd_timed *timed)
{
    zsd_hold_end(zb_container_of(timed, struct zsd_core, hold.timed));
}

void zsd_hold_begin(struct zsd_core *core)
{
    uint64_t now_ns = zb_now_ns();

    if (core->hold.on || now_ns < core->hold.rests_until_ns)
        return;
    core->hold.on = true;
    core->hold.since_ns = now_ns;
    core->daemon->stats.write_holds++;
    zsd_timed_arm(core, &core->hold.timed, HOLD_MAX_MS, hold_on_expire);
}

static void pio_line_up(struct zsd_core *core, struct zsd_pio *pio)
{
    core->lines[pio->path].depth++;
    pio_push(core, pio, pio->io.len_bytes);
    pio_feed(core, pio->path);
}

static bool pio_is_for_all(const struct zsd_pio *pio)
{
    return pio->io.op == ZN_FLUSH || pio->io.op == ZN_SLOT;
}

static void pio_on_done(struct zn_io *io, int rc)
{
    struct zsd_pio *pio = zb_container_of(io, struct zsd_pio, io);
    struct zsd_core *core = pio->core;
    unsigned path = pio->path;

    core->lines[path].depth--;
    if (rc == 0 && pio_is_for_all(pio) && path + 1 < zsd_paths(core->daemon)) {
        pio->path++;
        pio_line_up(core, pio);
    } else {
        pio->done(pio, rc); /* pio may be gone now */
    }
    pio_feed(core, path);
}

void zsd_pio_start(struct zsd_core *core, struct zsd_pio *pio)
{
    pio->core = core;
    pio->io.done = pio_on_done;
    pio->path = pio_is_for_all(pio) ? 0 : ZN_AT_PATH(pio->io.off_bytes);
    pio->io.off_bytes = ZN_AT_OFFSET(pio->io.off_bytes);
    pio_line_up(core, pio);
}

/* ---- page buffers */

static void *buffer_take(struct zsd_core *core, struct zsd_claim *claim)
{
    zsd_fair_take(&core->buffer_line, &claim->turn);
    claim->waits = false;
    return core->buffers_free[--core->nbuffers_free];
}

void *zsd_buffer_get(struct zsd_core *core, struct zsd_claim *claim)
{
    struct zsd_payer *payer = claim->payer ? claim->payer : &core->house;
    void *buffer = claim->buffer;

    claim->buffer = NULL;
    if (buffer || claim->waits)
        return buffer;
    claim->waits = true;
    zsd_fair_push(&core->buffer_line, &payer->flows[ZSD_LINE_BUFFERS], &claim->turn, claim->bytes,
                  payer->share, false);
    return core->nbuffers_free > 0 ? buffer_take(core, claim) : NULL;
}

void zsd_buffer_put(struct zsd_core *core, void *buffer)
{
    struct zsd_turn *turn = zsd_fair_next(&core->buffer_line);
    struct zsd_claim *claim;

    assert(core->nbuffers_free < core->nbuffers);
    core->buffers_free[core->nbuffers_free++] = buffer;
    if (!turn)
        return;
    claim = zb_container_of(turn, struct zsd_claim, turn);
    claim->buffer = buffer_take(core, claim);
    zsd_defer(core, claim->work);
}

/* Without an NVMe and a GPU tier there are no buffers, and nothing is added. */
uint64_t zsd_host_least(const struct zsd_core *core, uint64_t bytes)
{
    return core->nbuffers > 0
               ? zb_buffers_least(bytes, core->daemon->config.ring_bytes, core->buffer_bytes)
               : bytes;
}

static int core_buffers(struct zsd_core *core, struct zb_err *err)
{
    uint64_t want =
        zb_buffers(core->host.budget, core->daemon->config.ring_bytes, core->buffer_bytes);

    if (want * core->buffer_bytes > core->host.budget)
        return zb_fail(
            err, -ENOSPC,
            "host_bytes %s is less than one page buffer (%s for %u elements a page): give "
            "more, or smaller pages (page_elems)",
            zb_size_text(core->host.budget).s, zb_size_text(core->buffer_bytes).s,
            core->page_elems);
    core->nbuffers = (uint32_t)want;
    core->buffers_free = calloc(want, sizeof(*core->buffers_free));
    core->buffers = zsd_private_new(want * core->buffer_bytes);
    if (!core->buffers_free || !core->buffers)
        return zb_fail(err, -ENOMEM, "%u page buffers of %s: %m", core->nbuffers,
                       zb_size_text(core->buffer_bytes).s);
    for (uint32_t i = 0; i < core->nbuffers; i++)
        core->buffers_free[core->nbuffers_free++] = core->buffers + i * core->buffer_bytes;
    core->host.used[ZSD_USE_RING] = want * core->buffer_bytes;
    zsd_paths_register(core->daemon, core->buffers, want * core->buffer_bytes);
    if (zsd_gpu_pin(core->daemon, core->buffers, want * core->buffer_bytes, &core->gpu_unpinned) <
        0)
        zb_log(ZB_LOG_WARN, "gpu-unpinned", "what=\"page buffers\" bytes=%llu why=\"%s\"",
               (unsigned long long)(want * core->buffer_bytes), core->gpu_unpinned.text);
    return 0;
}

/* ---- compute */

void zsd_task_start(struct zsd_core *core, struct zsd_task *task)
{
    zsd_compute_post(core->daemon->compute, task);
}

/* ---- accounts and refusals */

uint64_t zsd_account_used(const struct zsd_account *a)
{
    uint64_t sum = 0;

    for (int i = 0; i < ZSD_USES; i++)
        sum += a->used[i];
    assert(sum <= a->budget);
    return sum;
}

void zsd_refuse(struct zsd_req *req, int code, const char *fmt, ...)
{
    struct zb_err err = { 0 };
    char text[sizeof(err.text)];
    va_list ap;

    errno = -code;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    (void)zb_fail(&err, code, "%s", text);
    zsd_reply_err(req, &err);
}

/* ---- up and down */

static int core_build(struct zsd_core *core, struct zb_err *err)
{
    struct zsd *daemon = core->daemon;
    int rc;

    core->page_elems = daemon->config.page_elems;
    core->host.budget = core->host_target = daemon->config.host_bytes;
    core->buffer_bytes = zb_buffer_bytes(core->page_elems);
    if (daemon->engine) {
        rc = zsd_map_init(core, err);
        if (rc < 0)
            return rc;
        core->nvme.budget = zsd_map_total_bytes(core);
        rc = zsd_extents_new(core);
        if (rc < 0)
            return zb_fail(err, rc, "places of pages: %m");
    }
    if (daemon->engine || daemon->gpu) {
        rc = core_buffers(core, err);
        if (rc < 0)
            return rc;
    }
    zsd_gpu_begin(core);
    return zsd_store_open(core, err);
}

int zsd_core_new(struct zsd *daemon, struct zb_err *err)
{
    struct zsd_core *core = calloc(1, sizeof(*core));
    int rc;

    if (!core)
        return zb_fail(err, -ENOMEM, "the core: %m");
    daemon->core = core;
    core->daemon = daemon;
    core->next_job = 1;
    zb_list_init(&core->jobs);
    zb_list_init(&core->opens);
    zb_list_init(&core->wants);
    zb_list_init(&core->strands);
    zb_list_init(&core->readers);
    zb_list_init(&core->works);
    zb_list_init(&core->timed);
    zsd_payer_init(&core->house, 0);
    for (unsigned i = 0; i < ZN_PATHS_MAX; i++) {
        zsd_fair_init(&core->lines[i].waiting);
        zb_list_init(&core->lines[i].held);
    }
    zsd_fair_init(&core->buffer_line);
    rc = core_build(core, err);
    if (rc < 0)
        zsd_core_free(daemon);
    return rc;
}

/* Runs what is in flight to its end: nothing may point into memory that is about to go. */
void zsd_core_settle(struct zsd *daemon)
{
    struct zsd_core *core = daemon->core;

    while (core->ops > 0 || !zb_list_empty(&core->works)) {
        unsigned n = 0;

        zsd_core_turn(daemon);
        for (unsigned i = 0; i < zsd_paths(daemon); i++)
            n += zn_reap(zsd_path_engine(daemon, i), 64);
        if (daemon->compute)
            n += zsd_compute_reap(daemon->compute, 64);
        if (daemon->gpu_threads)
            n += zsd_compute_reap(daemon->gpu_threads, 64);
        if (daemon->catalog_thread)
            n += zsd_compute_reap(daemon->catalog_thread, 64);
        if (n == 0 && core->ops > 0) {
            struct timespec pause = { .tv_nsec = 1000000 };

            (void)nanosleep(&pause, NULL);
        }
    }
}

void zsd_core_free(struct zsd *daemon)
{
    struct zsd_core *core = daemon->core;

    if (!core)
        return;
    zsd_jobs_end_all(core);
    zsd_readers_end(core);
    zsd_scrub_end(core);
    zsd_core_settle(daemon);
    zsd_scrub_free(core);
    zsd_jobs_forget_all(core);
    zsd_strands_free(core);
    zsd_store_close(core);
    zsd_paths_unregister(daemon, core->buffers);
    zsd_gpu_unpin(daemon, core->buffers, core->nbuffers * core->buffer_bytes);
    zsd_private_free(core->buffers, core->nbuffers * core->buffer_bytes);
    free(core->buffers_free);
    zsd_extents_free(core);
    zsd_map_done(core);
    free(core);
    daemon->core = NULL;
}

unsigned zsd_core_busy(const struct zsd *daemon)
{
    return daemon->core->ops;
}

bool zsd_core_ticks(const struct zsd *daemon)
{
    return zsd_core_busy(daemon) > 0 || zsd_scrub_running(daemon->core) ||
           !zb_list_empty(&daemon->core->strands);
}

void zsd_core_last(struct zsd *daemon)
{
    struct zb_err why = { 0 };

    (void)zb_fail(&why, -ENOTCONN, "the daemon is ending");
    zb_list_each(pos, &daemon->core->jobs)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        zsd_step_give_up(job, &why);
        zsd_commit_last(job);
    }
}

void zsd_core_farewell(struct zsd *daemon)
{
    zsd_jobs_end_all(daemon->core);
}

void zsd_core_drain(struct zsd *daemon)
{
    daemon->core->draining = true;
    zb_list_each(pos, &daemon->core->jobs)
    {
        zsd_commit_last(zb_container_of(pos, struct zsd_job, node));
    }
}
