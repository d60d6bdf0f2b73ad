/*
 * plan/host.c - the accounts of the host tier: how much is free, and for whom.
 *
 * MODEL. Free memory is the budget minus the account. Some of it is reserved: for requests that
 * wait for memory (struct zsd_want, which plan/replan.c begins and ends), and for the staging of
 * ranks that have left a kept job and may attach again. Other requests see only the rest. Nothing
 * is decided here.
 *
 * THE BUDGET is set to host_target. While more than that is used or reserved, the effective budget
 * is that larger number; it falls as memory is freed.
 */
#include "daemon/plan/host.h"

#include "daemon/plan/planner.h"

/* This memory must not be used for state. */
uint64_t zsd_replan_away(const struct zsd_job *job)
{
    return job->keep && job->state != ZSD_ENDED
               ? job->staging_most - job->host_held.used[ZSD_USE_STAGING]
               : 0;
}

uint64_t zsd_host_away(const struct zsd_core *core)
{
    uint64_t bytes = 0;

    zb_list_each(pos, &core->jobs->list)
        bytes += zsd_replan_away(zb_container_of(pos, struct zsd_job, node));
    return bytes;
}

uint64_t zsd_host_free(const struct zsd_core *core, const struct zsd_want *but)
{
    uint64_t free_bytes = zsd_account_free(&core->tiers.host);

    return free_bytes - zb_min_u64(free_bytes, zsd_wanted(core, but) + zsd_host_away(core));
}

void zsd_host_settle(struct zsd_core *core)
{
    uint64_t needs = zsd_account_used(&core->tiers.host) + zsd_host_away(core);

    core->tiers.host.budget =
        zb_max_u64(core->tiers.host_target, zb_min_u64(core->tiers.host.budget, needs));
}

uint64_t zsd_wanted(const struct zsd_core *core, const struct zsd_want *but)
{
    uint64_t bytes = 0;

    zb_list_each(pos, &core->planner->wants)
    {
        const struct zsd_want *w = zb_container_of(pos, struct zsd_want, node);

        bytes += w == but ? 0 : w->bytes;
    }
    return bytes;
}

bool zsd_want_met(const struct zsd_core *core, const struct zsd_want *want)
{
    return want->bytes <= zsd_host_free(core, want);
}
