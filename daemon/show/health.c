/*
 * health.c - the facts of `zctl status`, and its answer.
 *
 * MODEL. A task asks the system for what it may have to wait for (the file system, /proc). Then the
 * loop collects the rest, applies the rules, and calls the function that answers. One task runs at
 * a time: requests that come meanwhile share its results, so that no number of clients keeps more
 * than one thread busy.
 */
#include "daemon/show/health.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/device.h"
#include "base/sysmem.h"
#include "daemon/disk/datadir.h"
#include "daemon/disk/drives.h"
#include "daemon/disk/paths.h"
#include "daemon/job/job.h"
#include "daemon/op/ops.h"
#include "daemon/os/files.h"
#include "daemon/show/inspect.h"
#include "daemon/show/requests.h"
#include "daemon/show/scans.h"
#include "daemon/show/scrub.h"
#include "daemon/store/copies.h"
#include "daemon/store/store.h"
#include "nvme/zn_fixed.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"

#define ANSWERS_A_TURN 16u

/* A request that waits for the task. */
struct health_wait {
    struct zsd_req *req;
    void (*done)(struct zsd_req *req, const struct zsd_health *health);
    struct zb_list node;
};

/* The task. */
struct zsd_health_run {
    struct zsd_task task;
    struct zsd *daemon;
    struct zsd_facts system; /* those of the system */
    struct zb_list waits;    /* struct health_wait */
    struct zsd_work work;    /* when the task has ended: answers them */
};

/* ---- facts of the system, on a compute thread */

/* What the devices of the data files have written. */
static void health_devices(const struct zsd *daemon, struct zsd_facts *f)
{
    for (unsigned i = 0; i < zsd_paths(daemon); i++) {
        uint64_t device = zn_info(zsd_path_engine(daemon, i))->device;
        struct zb_device_use use;
        char name[24];

        (void)snprintf(name, sizeof(name), "%u:%u", major(device), minor(device));
        f->drives[i].device_known = device != 0 && zb_device_use(name, "/sys", &use) == 0;
        if (f->drives[i].device_known)
            f->drives[i].device_written = use.written_bytes;
    }
}

static void health_run(struct zsd_task *task)
{
    struct zsd_health_run *run = zb_container_of(task, struct zsd_health_run, task);
    struct zsd_facts *f = &run->system;
    const char *data = run->daemon->config.data; /* the loop does not change it */
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    struct statvfs vfs;

    health_devices(run->daemon, f);
    f->files = zsd_files_open();
    f->files_max = zsd_files_max();
    f->host_left = zb_sysmem_left("");
    if (pages > 0 && page_bytes > 0)
        f->host_bytes = (uint64_t)pages * (uint64_t)page_bytes;
    if (data[0] != '\0' && statvfs(data, &vfs) == 0) {
        f->filesystem_known = true;
        f->filesystem_left = (uint64_t)vfs.f_bavail * vfs.f_frsize;
    }
}

/* ---- facts of the daemon, on the loop */

static void facts_drives(const struct zsd *daemon, struct zsd_facts *f)
{
    f->ndrives = zsd_paths(daemon);
    f->fixed = daemon->engine && zn_is_fixed(daemon->engine);
    for (unsigned i = 0; i < f->ndrives; i++) {
        const struct zn_info *info = zn_info(zsd_path_engine(daemon, i));
        const struct zsd_line *line = &daemon->core->disk->lines[i];
        struct zsd_drive_facts *d = &f->drives[i];

        d->failed = zn_stats(zsd_path_engine(daemon, i)).failed;
        d->failed_ns = line->failed_ns;
        d->failed_rc = line->failed_rc;
        d->waits_ns = zsd_drive_waits_ns(daemon->core, i, f->now_ns);
        d->held_bytes = line->drive.held_bytes;
        d->drained = line->drive.drain != ZSD_DRAIN_NONE;
        d->asked = line->drive.drain == ZSD_DRAIN_ASKED;
        (void)snprintf(d->state, sizeof(d->state), "%s", zsd_drain_text(line->drive.drain));
        (void)snprintf(d->drained_why, sizeof(d->drained_why), "%s", line->drive.why);
        (void)snprintf(d->path, sizeof(d->path), "%s", zsd_path_folder(daemon, i));
        if (f->fixed)
            continue;
        (void)snprintf(d->why, sizeof(d->why), "%s", info->why);
        (void)snprintf(d->why_buffered, sizeof(d->why_buffered), "%s", info->why_buffered);
        (void)snprintf(d->why_unregistered, sizeof(d->why_unregistered), "%s",
                       info->why_unregistered);
    }
}

static void facts_jobs(struct zsd_core *core, const struct zsd_conn *conn, struct zsd_facts *f)
{
    zb_list_each(pos, &core->jobs->list)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);
        const struct zb_err *why = &job->stats.commits.why;

        zsd_turn_count(core, 1);
        if (why->code == 0 || job->state == ZSD_ENDED)
            continue;
        f->jobs_failing++;
        if (f->failing_job[0] != '\0' || !conn || !zsd_may(conn, job->uid))
            continue;
        (void)snprintf(f->failing_job, sizeof(f->failing_job), "%s", job->name);
        (void)snprintf(f->failing_why, sizeof(f->failing_why), "%.255s", why->text);
    }
}

static void facts_gpus(const struct zsd_core *core, struct zsd_facts *f)
{
    f->gpus = core->daemon->ngpus;
    for (unsigned g = 0; g < f->gpus; g++) {
        const struct zsd_gpu_tier *tier = &core->tiers.gpus[g];

        if (tier->err.code != 0 && f->gpus_failed++ == 0)
            f->gpu_failed = tier->err;
        if (f->gpu_unpinned.code == 0)
            f->gpu_unpinned = tier->unpinned;
    }
}

static void facts_fill(struct zsd *daemon, const struct zsd_conn *conn, struct zsd_facts *f)
{
    struct zsd_core *core = daemon->core;
    const struct zsd_scrubbed *scrubbed = &core->scans->scrubbed;
    unsigned path = 0;

    f->now_ns = zb_now_ns();
    if (core->store) {
        f->read_only = core->daemon->read_only;
        if (!f->read_only)
            f->poisoned = core->store->poisoned;
        f->catalog_full = core->store->full;
        f->copies_failed = zsd_copies_failing(core->store, &path, &f->copy_why);
        (void)snprintf(f->copy_path, sizeof(f->copy_path), "%s", zsd_path_folder(daemon, path));
    }
    facts_gpus(core, f);
    f->corrupt = daemon->stats.pages_corrupt;
    f->corrupt_ns = daemon->corrupt_ns;
    f->scrub_began_ns = scrubbed->began_ns;
    f->scrub_ended_ns = scrubbed->ended_ns;
    f->scrub_bad = scrubbed->bad_pages;
    f->scrub_now_bad = zsd_scrub_running(core) ? zsd_scrub_bad(core) : 0;
    f->nvme_used = zsd_account_used(&core->tiers.nvme);
    f->nvme_bytes = core->tiers.nvme.budget;
    f->files_wanted = daemon->files_wanted;
    f->clients = daemon->clients;
    f->clients_max = daemon->config.clients_max;
    f->lines_dropped = daemon->stats.log_lines_dropped;
    f->ending = core->draining;
    f->without = daemon->config.without;
    facts_drives(daemon, f);
    facts_jobs(core, conn, f);
}

static void wait_answer(struct zsd_health_run *run, struct health_wait *w)
{
    struct zsd_health h = { .facts = run->system };

    facts_fill(run->daemon, w->req->conn, &h.facts);
    h.errors = zsd_reasons_find(&h.facts, h.reasons);
    w->done(w->req, &h);
    free(w);
}

/* Answers some of the requests, the others in the next turn. */
static void health_on_work(struct zsd_work *work)
{
    struct zsd_health_run *run = zb_container_of(work, struct zsd_health_run, work);
    struct zsd_core *core = run->daemon->core;

    for (unsigned n = 0; n < ANSWERS_A_TURN && !zb_list_empty(&run->waits); n++)
        wait_answer(run, zb_container_of(zb_list_pop_front(&run->waits), struct health_wait, node));
    if (!zb_list_empty(&run->waits)) {
        zsd_defer(core, work);
        return;
    }
    core->in_progress--;
    free(run);
}

static void health_done(struct zsd_task *task)
{
    struct zsd_health_run *run = zb_container_of(task, struct zsd_health_run, task);

    run->daemon->core->scans->health = NULL; /* a request from here on starts the next one */
    zsd_defer(run->daemon->core, &run->work);
}

static struct zsd_health_run *health_begin(struct zsd *daemon)
{
    struct zsd_health_run *run = calloc(1, sizeof(*run));

    if (!run)
        return NULL;
    run->task = (struct zsd_task){ .run = health_run, .done = health_done };
    run->daemon = daemon;
    run->work.run = health_on_work;
    zb_list_init(&run->work.node);
    zb_list_init(&run->waits);
    daemon->core->scans->health = run;
    daemon->core->in_progress++;
    zsd_task_start(daemon->core, &run->task);
    return run;
}

void zsd_health_start(struct zsd_req *req,
                      void (*done)(struct zsd_req *req, const struct zsd_health *health))
{
    struct health_wait *w = calloc(1, sizeof(*w));
    struct zsd_health_run *run = req->daemon->core->scans->health;

    if (w && !run)
        run = health_begin(req->daemon);
    if (!w || !run) {
        free(w);
        zsd_refuse(req, -ENOMEM, "the state of the daemon");
        return;
    }
    w->req = req;
    w->done = done;
    zb_list_push_back(&run->waits, &w->node);
}

unsigned zsd_health_saved(const struct zsd_core *core)
{
    unsigned n = 0;

    if (!core->store)
        return 0;
    zb_list_each(pos, &core->store->saved)
    {
        const struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

        n += zsd_saved_kept(s) && !s->gone && !s->image && !s->job;
    }
    return n;
}

/* ---- the request */

static void reply_jobs(const struct zsd_core *core, Zp__HealthReply *reply)
{
    zb_list_each(pos, &core->jobs->list)
    {
        reply->jobs += zb_container_of(pos, struct zsd_job, node)->state != ZSD_ENDED;
    }
    reply->saved = zsd_health_saved(core);
}

static void reply_commit(struct zsd_req *req, uint64_t now_ns, Zp__HealthReply *reply)
{
    const struct zsd_last_commit *last = &req->daemon->core->ops->last_commit;

    reply->committed = last->job[0] != '\0';
    if (!reply->committed)
        return;
    if (req->conn && zsd_may(req->conn, last->uid))
        reply->commit_job = zp_str(last->job);
    reply->commit_iterations = last->iterations;
    reply->commit_ago_ms = (now_ns - last->at_ns) / 1000000;
    reply->commit_us = last->took_ns / 1000;
}

static void reply_scrub(const struct zsd_core *core, uint64_t now_ns, Zp__HealthReply *reply)
{
    const struct zsd_scrubbed *scrubbed = &core->scans->scrubbed;

    reply->scrub_state = zp_str(zsd_scrub_state(core));
    reply->scrubbed = scrubbed->unix_s > 0;
    if (!reply->scrubbed)
        return;
    reply->scrub_ago_ms = (now_ns - scrubbed->ended_ns) / 1000000;
    reply->scrub_bytes = scrubbed->bytes;
    reply->scrub_bad_pages = scrubbed->bad_pages;
}

static void health_answer(struct zsd_req *req, const struct zsd_health *h)
{
    const struct zsd *daemon = req->daemon;
    Zp__HealthReply reply = ZP__HEALTH_REPLY__INIT;
    Zp__Reason rows[ZSD_REASONS], *list[ZSD_REASONS];
    struct zsd_tier_rows tiers;

    for (int level = ZSD_REASON_ERROR; level > ZSD_REASON_NONE; level--)
        for (unsigned i = 0; i < ZSD_REASONS; i++) {
            Zp__Reason *row = &rows[reply.n_reasons];

            if ((int)h->reasons[i].level != level)
                continue;
            zp__reason__init(row);
            row->id = zp_str(h->reasons[i].id);
            row->level = h->reasons[i].level;
            row->text = zp_str(h->reasons[i].text);
            row->fix = zp_str(h->reasons[i].fix);
            list[reply.n_reasons++] = row;
        }
    reply.reasons = list;
    zsd_tier_rows(daemon, &tiers);
    reply.n_tiers = tiers.n;
    reply.tiers = tiers.list;
    reply.uptime_ms = (h->facts.now_ns - daemon->started_ns) / 1000000;
    reply.clients = daemon->clients;
    reply.clients_max = daemon->config.clients_max;
    reply_jobs(daemon->core, &reply);
    reply_commit(req, h->facts.now_ns, &reply);
    reply_scrub(daemon->core, h->facts.now_ns, &reply);
    reply.turn_max_us = daemon->stats.turn_max_ns / 1000;
    reply.turn_p999_us = zsd_turns_quantile(&daemon->turns, 999) / 1000;
    zsd_reply(req, &reply.base, -1);
}

void zsd_health(struct zsd_req *req, const ProtobufCMessage *message)
{
    (void)message;
    zsd_health_start(req, health_answer);
}
