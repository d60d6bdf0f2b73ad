/*
 * plan/gpu_strands.c - GPU memory of parameters that was freed, and that a process still maps.
 *
 * A STRAND is memory of parameters that was freed while a process still maps it: a process that
 * hangs, or that dies a moment later than its socket. The device cannot free the memory yet, so it
 * stays booked and no other job gets it. A thread of the tier checks strands every STRAND_LOOK_MS,
 * until their marks have closed (kernels/gpu.h). A strand that exists after STRAND_LOOKS checks is
 * logged, with its processes; `zctl tiers` shows it at once.
 */
#include "daemon/plan/gpu_strands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/gpu_params.h"
#include "daemon/plan/gpu_runs.h"
#include "daemon/plan/planner.h"
#include "daemon/run/gpu_tier.h"

#define STRAND_LOOK_MS 100u
#define STRAND_LOOKS   10u

struct strand {
    struct zb_list node; /* in core->planner->strands */
    uint32_t g;          /* the device */
    uint64_t tag;
    char job[ZP_NAME_MAX + 1];
    uid_t uid;
    uint64_t booked;
    unsigned looks;
};

/* The result of one check, for the strands that existed when it began. */
struct look {
    struct zsd_task task;
    struct zsd_core *core;
    unsigned n;
    struct look_at {
        uint32_t g;
        struct zk_gpu_strand seen; /* nholders 0: the strand has ended */
    } at[];
};

static struct strand *strand_of(struct zb_list *node)
{
    return zb_container_of(node, struct strand, node);
}

const char *zsd_strand_job(const struct zsd_core *core, uint64_t tag)
{
    zb_list_each(pos, &core->planner->strands)
    {
        if (strand_of(pos)->tag == tag)
            return strand_of(pos)->job;
    }
    zb_list_each(pos, &core->jobs->list)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        if (job->params->tag == tag)
            return job->name;
    }
    return NULL;
}

size_t zsd_strand_text(const struct zk_gpu_strand *strand, char *text, size_t size)
{
    size_t len = 0;

    for (unsigned i = 0; i < strand->nholders && i < ZK_GPU_HOLDERS_MAX && len < size; i++)
        len += (size_t)snprintf(text + len, size - len, "%s%llu", i > 0 ? "," : "",
                                (unsigned long long)strand->holders[i]);
    return len;
}

static void strands_arm(struct zsd_core *core);

/* The mark of the strand has closed. */
static void strand_over(struct zsd_core *core, struct strand *s)
{
    if (s->looks >= STRAND_LOOKS)
        zb_log(ZB_LOG_INFO, "gpu-returned", "gpu=%s job=\"%s\" uid=%u bytes=%llu",
               zsd_gpu_name(core->daemon->gpus[s->g]), s->job, (unsigned)s->uid,
               (unsigned long long)s->booked);
    zsd_unbook(&core->tiers.gpus[s->g].account, NULL, ZSD_USE_PARAM, s->booked);
    zsd_gpu_settle(core, s->g);
    zb_list_remove(&s->node);
    free(s);
    zsd_room_changed(core);
}

static void strand_stays(struct zsd_core *core, struct strand *s, const struct zk_gpu_strand *seen)
{
    char pids[128] = "";

    if (++s->looks != STRAND_LOOKS)
        return;
    (void)zsd_strand_text(seen, pids, sizeof(pids));
    zb_log(
        ZB_LOG_WARN, "gpu-stranded",
        "gpu=%s job=\"%s\" uid=%u bytes=%llu pids=%s why=\"the job has ended, and these processes "
        "have its parameters mapped\"",
        zsd_gpu_name(core->daemon->gpus[s->g]), s->job, (unsigned)s->uid,
        (unsigned long long)s->booked, pids);
    zsd_room_changed(core); /* requests that wait for this memory give up */
}

static void look_on_strand(void *arg, const struct zk_gpu_strand *strand)
{
    struct look_at *at = arg;

    if (at->seen.tag == strand->tag)
        at->seen = *strand;
}

static void look_run(struct zsd_task *task)
{
    struct look *l = zb_container_of(task, struct look, task);

    for (unsigned i = 0; i < l->n; i++)
        zk_gpu_stranded(zsd_gpu_device(l->core->daemon->gpus[l->at[i].g]), look_on_strand,
                        &l->at[i]);
}

static void look_done(struct zsd_task *task)
{
    struct look *l = zb_container_of(task, struct look, task);
    struct zsd_core *core = l->core;

    core->in_progress--;
    core->planner->strands_looked_at = false;
    for (unsigned i = 0; i < l->n; i++)
        zb_list_each(pos, &core->planner->strands)
        {
            if (strand_of(pos)->tag != l->at[i].seen.tag || strand_of(pos)->g != l->at[i].g)
                continue;
            if (l->at[i].seen.nholders == 0)
                strand_over(core, strand_of(pos));
            else
                strand_stays(core, strand_of(pos), &l->at[i].seen);
            break;
        }
    free(l);
    strands_arm(core);
}

static void strands_look(struct zsd_timed *timed)
{
    struct zsd_core *core = zb_container_of(timed, struct zsd_planner, strands_timed)->core;
    struct look *l;
    unsigned n = 0;

    zb_list_each(pos, &core->planner->strands) n++;
    l = calloc(1, sizeof(*l) + n * sizeof(l->at[0]));
    if (!l) {
        strands_arm(core); /* no memory: try again later */
        return;
    }
    l->task = (struct zsd_task){ .run = look_run, .done = look_done };
    l->core = core;
    zb_list_each(pos, &core->planner->strands)
    {
        l->at[l->n].g = strand_of(pos)->g;
        l->at[l->n++].seen.tag = strand_of(pos)->tag;
    }
    core->planner->strands_looked_at = true;
    core->in_progress++;
    zsd_compute_post(zsd_gpu_threads(core->daemon->gpus[0]), &l->task);
}

static void strands_arm(struct zsd_core *core)
{
    zsd_timed_disarm(&core->planner->strands_timed);
    if (!zb_list_empty(&core->planner->strands) && !core->planner->strands_looked_at &&
        !core->draining)
        zsd_timed_arm(core, &core->planner->strands_timed, STRAND_LOOK_MS, strands_look);
}

void zsd_strands_free(struct zsd_core *core)
{
    zsd_timed_disarm(&core->planner->strands_timed);
    for (struct zb_list *node; (node = zb_list_pop_front(&core->planner->strands)) != NULL;)
        free(strand_of(node));
}

bool zsd_strand_begin(struct zsd_job *job, uint32_t g)
{
    struct strand *s = calloc(1, sizeof(*s));

    if (!s)
        return false;
    s->g = g;
    s->tag = job->params->tag;
    memcpy(s->job, job->name, sizeof(s->job));
    s->uid = job->uid;
    s->booked = job->params->on[g].booked;
    zsd_disown(&job->gpu_held, ZSD_USE_PARAM, s->booked); /* no user's any more */
    zb_list_push_back(&job->core->planner->strands, &s->node);
    strands_arm(job->core);
    return true;
}

uint64_t zsd_strands_returning(const struct zsd_core *core, uint32_t g)
{
    uint64_t bytes = 0;

    zb_list_each(pos, &core->planner->strands)
    {
        if (strand_of(pos)->g == g && strand_of(pos)->looks < STRAND_LOOKS)
            bytes += strand_of(pos)->booked;
    }
    return bytes;
}
