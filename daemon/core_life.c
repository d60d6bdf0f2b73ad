/*
 * core_life.c - the core as a whole: its creation and destruction, the work of a turn of the loop
 * and of a tick of its clock, and its orderly end.
 */
#include "daemon/core_life.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "daemon/disk/discard.h"
#include "daemon/disk/drives.h"
#include "daemon/disk/leaving.h"
#include "daemon/disk/paths.h"
#include "daemon/op/commit.h"
#include "daemon/op/early.h"
#include "daemon/op/image.h"
#include "daemon/op/leave.h"
#include "daemon/op/open.h"
#include "daemon/op/ops.h"
#include "daemon/op/reader.h"
#include "daemon/op/restart.h"
#include "daemon/op/step.h"
#include "daemon/plan/gpu_runs.h"
#include "daemon/plan/gpu_strands.h"
#include "daemon/plan/planner.h"
#include "daemon/run/gpu_tier.h"
#include "daemon/show/df.h"
#include "daemon/show/scans.h"
#include "daemon/show/scrub.h"
#include "daemon/show/top.h"
#include "daemon/store/drain.h"
#include "daemon/store/store.h"

/* The structs of all rooms, in one allocation. */
struct core_all {
    struct zsd_core core;
    struct zsd_disk disk;
    struct zsd_jobs jobs;
    struct zsd_planner planner;
    struct zsd_ops ops;
    struct zsd_scans scans;
};

bool zsd_core_turn(struct zsd *daemon)
{
    bool more = zsd_works_run(daemon->core);

    zsd_pio_kick(daemon->core);
    zsd_top_turn(daemon->core);
    zsd_turn_worked(daemon);
    return more;
}

void zsd_core_tick(struct zsd *daemon, uint64_t now_ns)
{
    zsd_scrub_tick(daemon->core, now_ns);
    zsd_drain_tick(daemon->core, zb_now_ns());
    zsd_drives_tick(daemon->core, zb_now_ns()); /* now_ns may be the end of time, in tests */
    zsd_discards_tick(daemon->core, zb_now_ns());
    zsd_timed_expire(daemon->core, now_ns);
}

static int core_build(struct zsd_core *core, struct zb_err *err)
{
    struct zsd *daemon = core->daemon;
    int rc;

    core->page_elems = daemon->config.page_elems;
    core->tiers.host.budget = core->tiers.host_target = daemon->config.host_bytes;
    if (daemon->engine) {
        rc = zsd_map_init(core, err);
        if (rc < 0)
            return rc;
        core->tiers.nvme.budget = zsd_map_total_bytes(core);
        rc = zsd_extents_new(core);
        if (rc < 0)
            return zb_fail(err, rc, "places of pages: %m");
    }
    if (daemon->engine || daemon->ngpus > 0) {
        rc = zsd_buffers_make(core, err);
        if (rc < 0)
            return rc;
    }
    zsd_gpu_begin(core);
    return zsd_store_open(core, err);
}

int zsd_core_new(struct zsd *daemon, struct zb_err *err)
{
    struct core_all *all = calloc(1, sizeof(*all));
    struct zsd_core *core;
    int rc;

    if (!all)
        return zb_fail(err, -ENOMEM, "the core: %m");
    core = daemon->core = &all->core;
    core->disk = &all->disk;
    core->jobs = &all->jobs;
    core->planner = &all->planner;
    core->ops = &all->ops;
    core->scans = &all->scans;
    core->daemon = daemon;
    core->next_job = 1;
    zb_list_init(&core->works);
    zsd_wheel_init(&core->wheel);
    zsd_payer_init(&core->house, 0);
    zsd_disk_init(core->disk, core);
    zb_list_init(&core->jobs->list);
    zsd_planner_init(core->planner, core);
    zsd_ops_init(core->ops, core);
    core->room.run = zsd_room_on_work;
    rc = core_build(core, err);
    if (rc < 0)
        zsd_core_free(daemon);
    else if (!daemon->read_only)
        zsd_images_wait(core);
    return rc;
}

/* After this, nothing in flight points into memory that is about to be freed. */
void zsd_core_settle(struct zsd *daemon)
{
    struct zsd_core *core = daemon->core;

    while (core->in_progress > 0 || !zb_list_empty(&core->works)) {
        unsigned n = 0;

        (void)zsd_core_turn(daemon);
        for (unsigned i = 0; i < zsd_paths(daemon); i++)
            n += zn_reap(zsd_path_engine(daemon, i), 64);
        if (daemon->compute)
            n += zsd_compute_reap(daemon->compute, 64);
        for (unsigned g = 0; g < daemon->ngpus; g++)
            n += zsd_compute_reap(zsd_gpu_threads(daemon->gpus[g]), 64);
        if (daemon->catalog_thread)
            n += zsd_compute_reap(daemon->catalog_thread, 64);
        if (n == 0 && core->in_progress > 0 && zb_list_empty(&core->works)) {
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
    zsd_drain_end(core);
    zsd_core_settle(daemon);
    zsd_scrub_free(core);
    zsd_drain_free(core);
    zsd_df_free(core);
    zsd_jobs_forget_all(core);
    zsd_leaving_all(core); /* places of jobs; zsd_store_close() frees those of the store */
    zsd_strands_free(core);
    zsd_store_close(core);
    zsd_buffers_end(core);
    zsd_extents_free(core);
    zsd_map_done(core);
    free(zb_container_of(core, struct core_all, core));
    daemon->core = NULL;
}

unsigned zsd_core_busy(const struct zsd *daemon)
{
    return daemon->core->in_progress + !zb_list_empty(&daemon->core->works);
}

unsigned zsd_core_jobs(const struct zsd *daemon)
{
    unsigned n = 0;

    zb_list_each(pos, &daemon->core->jobs->list)
    {
        n += zb_container_of(pos, struct zsd_job, node)->state != ZSD_ENDED;
    }
    return n;
}

bool zsd_core_ticks(const struct zsd *daemon)
{
    return zsd_core_busy(daemon) > 0 || zsd_scrub_running(daemon->core) ||
           zsd_drain_wanted(daemon->core) || zsd_discards_wanted(daemon->core) ||
           !zb_list_empty(&daemon->core->planner->strands) ||
           (daemon->core->store && daemon->core->store->images > 0); /* they have a deadline */
}

void zsd_core_last(struct zsd *daemon)
{
    struct zb_err why = { 0 };

    (void)zb_fail(&why, -ENOTCONN, "the daemon is ending");
    zb_list_each(pos, &daemon->core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        zsd_step_give_up(job, &why);
        zsd_commit_last(job);
    }
}

void zsd_core_ending_text(const struct zsd *daemon, char *ret, size_t size)
{
    const struct zsd_job *waits = zsd_restart_waits(daemon->core);
    size_t len = (size_t)snprintf(ret, size, "operations in progress: %u", zsd_core_busy(daemon));

    if (!daemon->core->draining && waits && len < size)
        len += (size_t)snprintf(ret + len, size - len, "; waits for job '%s' to finish its step",
                                waits->name);
    zb_list_each(pos, &daemon->core->jobs->list)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);
        uint32_t saved = zsd_commit_progress(job);

        if (job->commit && len < size)
            len += (size_t)snprintf(ret + len, size - len, "; job '%s': %u of %u shards saved",
                                    job->name, saved, job->nshards);
    }
}

void zsd_core_farewell(struct zsd *daemon)
{
    zsd_jobs_end_all(daemon->core);
}

void zsd_core_leave(struct zsd *daemon)
{
    daemon->core->leaving = true;
    zsd_restart_tell(daemon->core);
}

bool zsd_core_waits(const struct zsd *daemon)
{
    return zsd_restart_waits(daemon->core) != NULL;
}

void zsd_core_drain(struct zsd *daemon)
{
    daemon->core->draining = true;
    zb_list_each(pos, &daemon->core->jobs->list)
    {
        struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        zsd_commit_last(job);
        zsd_image_save(job);
        zsd_early_resume(job);
    }
}
