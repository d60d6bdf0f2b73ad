/*
 * tiers.c - the rows of tiers, and what the kernel and the GPUs' driver say about their memory. Reads only.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/disk/paths.h"
#include "daemon/os/numa.h"
#include "daemon/plan/gpu_plan.h"
#include "daemon/plan/gpu_strands.h"
#include "daemon/plan/replan.h"
#include "daemon/run/gpu_tier.h"
#include "daemon/show/inspect.h"
#include "daemon/show/requests.h"
#include "daemon/show/scans.h"
#include "daemon/store/store.h"
#include "proto/codec.h"

static void tier_row(const struct zsd_account *a, const char *name, char *detail, Zp__TierRow *row)
{
    zp__tier_row__init(row);
    row->name = zp_str(name);
    row->budget = a->budget;
    row->used = zsd_account_used(a);
    row->params = a->used[ZSD_USE_PARAM];
    row->grads = a->used[ZSD_USE_GRAD];
    row->state = a->used[ZSD_USE_STATE];
    row->staging = a->used[ZSD_USE_STAGING];
    row->rings = a->used[ZSD_USE_RING];
    row->detail = detail;
}

static void tier_gpu(const struct zsd *daemon, uint32_t g, struct zsd_tier_rows *ret)
{
    const struct zsd_core *core = daemon->core;
    const struct zsd_gpu_tier *tier = &core->tiers.gpus[g];
    struct zsd_gpu *gpu = daemon->gpus[g];
    Zp__TierRow *row = &ret->rows[ret->n++];
    bool failed = tier->err.code != 0, unpinned = tier->unpinned.code != 0;

    (void)snprintf(ret->gpus[g], sizeof(ret->gpus[g]),
                   "%s, %u lanes, %s of host memory pinned%s%.400s",
                   zk_gpu_info(zsd_gpu_device(gpu))->name, zsd_gpu_lanes(gpu),
                   zb_size_text(zk_gpu_pinned_bytes(zsd_gpu_device(gpu))).s,
                   failed     ? "; failed: "
                   : unpinned ? "; not all of it: "
                              : "",
                   failed ? tier->err.text : tier->unpinned.text);
    tier_row(&tier->account, zsd_gpu_name(gpu), ret->gpus[g], row);
    row->target = tier->target;
    zb_list_each(pos, &core->jobs->list)
        row->moving += zsd_gpu_leaving(zb_container_of(pos, struct zsd_job, node), g);
}

/* Appends the memory of descriptions and notes, which is not part of the budget. */
static void tier_remembered(const struct zsd *daemon, char *text, size_t size)
{
    const struct zsd_quota *node = daemon->limits ? &daemon->limits->node : NULL;
    size_t len = strlen(text);

    if (node)
        (void)snprintf(
            text + len, size - len, ", descriptions %s of %s, notes %s of %s",
            zb_size_text(node->used[ZSD_LIMIT_DEFINITION_BYTES]).s,
            zb_size_text(zsd_limit_max(node, ZSD_LEVEL_NODE, ZSD_LIMIT_DEFINITION_BYTES)).s,
            zb_size_text(node->used[ZSD_LIMIT_NOTE_BYTES]).s,
            zb_size_text(zsd_limit_max(node, ZSD_LEVEL_NODE, ZSD_LIMIT_NOTE_BYTES)).s);
}

void zsd_tier_rows(const struct zsd *daemon, struct zsd_tier_rows *ret)
{
    const struct zsd_core *core = daemon->core;
    size_t len = 0;

    (void)snprintf(ret->host, sizeof(ret->host), "kernels %s, %u compute threads, %u page buffers",
                   daemon->kernels->name, zsd_compute_threads(daemon->compute),
                   core->disk->nbuffers);
    tier_remembered(daemon, ret->host, sizeof(ret->host));
    tier_row(&core->tiers.host, "host", ret->host, &ret->rows[0]);
    ret->rows[0].target = core->tiers.host_target;
    zb_list_each(pos, &core->jobs->list) ret->rows[0].moving +=
        zsd_replan_leaving(zb_container_of(pos, struct zsd_job, node));
    if (!daemon->engine)
        (void)snprintf(ret->nvme, sizeof(ret->nvme), "none (nvme_bytes is 0)");
    for (unsigned i = 0; i < zsd_paths(daemon) && len < sizeof(ret->nvme); i++)
        len += zsd_drive_detail(daemon, i, ret->nvme + len, sizeof(ret->nvme) - len);
    tier_row(&core->tiers.nvme, "nvme", ret->nvme, &ret->rows[1]);
    for (unsigned i = 0; i < zsd_paths(daemon); i++) {
        struct zsd_rates best = zsd_path_best(core, i);

        ret->rows[1].read_bytes_s += best.read;
        ret->rows[1].write_bytes_s += best.written;
    }
    ret->n = ZSD_TIERS_LOWER;
    for (uint32_t g = 0; g < daemon->ngpus; g++)
        tier_gpu(daemon, g, ret);
    for (unsigned i = 0; i < ret->n; i++)
        ret->list[i] = &ret->rows[i];
}

#define STRANDED_ROWS 16u

/* How the memory of a GPU is used, as its driver reports it. */
struct tiers_gpu {
    struct zk_gpu_usage usage;
    struct zk_gpu_strand stranded[STRANDED_ROWS];
    unsigned nstranded;
    char text[256]; /* of the answer */
};

/* A request that waits for the task. */
struct tiers_asker {
    struct zsd_req *req;
    struct zb_list node;
};

/* A task that asks the kernel on which NUMA nodes the host tier's memory is, and the GPUs' driver
 * how the devices' memory is used. Both may be slow, and jobs wait for the same threads. So there is
 * one at a time: requests that arrive meanwhile get its results, too. */
struct zsd_tiers_run {
    struct zsd_task task;
    struct zb_list askers;
    struct zsd *daemon;
    struct zsd_numa_use use;
    struct tiers_gpu gpus[ZSD_GPUS_MAX];
    unsigned nareas;
    struct zsd_numa_area areas[];
};

static char *tiers_stranded_text(const struct zsd_tiers_run *t, const struct zsd_req *req,
                                 struct tiers_gpu *gpu)
{
    const size_t size = sizeof(gpu->text);
    size_t len = 0;

    gpu->text[0] = '\0';                     /* of another asker */
    if (!req->conn || !zsd_admin(req->conn)) /* jobs and pids of all users */
        return gpu->text;
    for (unsigned i = 0; i < gpu->nstranded && len < size; i++) {
        const struct zk_gpu_strand *strand = &gpu->stranded[i];
        const char *job = zsd_strand_job(t->daemon->core, strand->tag);

        len += (size_t)snprintf(gpu->text + len, size - len, "%s%s:%llu:", i > 0 ? " " : "",
                                job ? job : "(gone)", (unsigned long long)strand->len_bytes);
        if (len < size)
            len += zsd_strand_text(strand, gpu->text + len, size - len);
    }
    return gpu->text;
}

/* The NUMA node of a GPU, and whether memory is placed there. */
static char *tiers_node(const struct zsd *daemon, uint32_t g, char *text, size_t size)
{
    int node = zsd_gpu_node(daemon, g);

    if (node == ZSD_NEAR_NONE)
        text[0] = '\0';
    else
        (void)snprintf(text, size, "node %d%s", node,
                       zsd_near_uses(&daemon->near, node) ? "" : ", no memory is placed there");
    return text;
}

/* t: the results of the task; NULL: there was none, without NUMA and without a GPU. */
static void tiers_answer(struct zsd_req *req, struct zsd_tiers_run *t)
{
    const struct zsd *daemon = req->daemon;
    const struct zsd_numa_use *use = daemon->numa && t ? &t->use : NULL;
    Zp__TiersReply reply = ZP__TIERS_REPLY__INIT;
    char nodes[256], gpu_nodes[ZSD_GPUS_MAX][48];
    struct zsd_drive_rows drives;
    struct zsd_tier_rows tiers;

    zsd_tier_rows(daemon, &tiers);
    tiers.rows[0].numa = zp_str(zsd_numa_text(daemon->numa));
    if (use) {
        zsd_numa_use_text(daemon->numa, use, nodes, sizeof(nodes));
        tiers.rows[0].nodes = nodes;
        tiers.rows[0].node_bytes = use->chosen;
        tiers.rows[0].spilled_bytes = use->spilled;
    }
    for (uint32_t g = 0; t && g < daemon->ngpus; g++) {
        Zp__TierRow *row = &tiers.rows[ZSD_TIERS_LOWER + g];

        row->numa = tiers_node(daemon, g, gpu_nodes[g], sizeof(gpu_nodes[g]));
        row->device_free = t->gpus[g].usage.free_bytes;
        row->stranded = t->gpus[g].usage.stranded_bytes;
        row->stranded_by = tiers_stranded_text(t, req, &t->gpus[g]);
    }
    reply.n_rows = tiers.n;
    reply.rows = tiers.list;
    zsd_drive_rows(daemon, &drives);
    reply.n_drives = drives.n;
    reply.drives = drives.list;
    zsd_reply(req, &reply.base, -1);
}

static void tiers_on_stranded(void *arg, const struct zk_gpu_strand *strand)
{
    struct tiers_gpu *gpu = arg;

    if (gpu->nstranded < STRANDED_ROWS)
        gpu->stranded[gpu->nstranded++] = *strand;
}

static void tiers_run(struct zsd_task *task)
{
    struct zsd_tiers_run *t = zb_container_of(task, struct zsd_tiers_run, task);
    struct zb_err err = { 0 };

    if (t->daemon->numa)
        zsd_numa_survey(t->daemon->numa, t->areas, t->nareas, &t->use);
    for (uint32_t g = 0; g < t->daemon->ngpus; g++) { /* on failure: zeros */
        (void)zk_gpu_usage(zsd_gpu_device(t->daemon->gpus[g]), &t->gpus[g].usage, &err);
        zk_gpu_stranded(zsd_gpu_device(t->daemon->gpus[g]), tiers_on_stranded, &t->gpus[g]);
    }
}

static void tiers_done(struct zsd_task *task)
{
    struct zsd_tiers_run *t = zb_container_of(task, struct zsd_tiers_run, task);

    t->daemon->core->in_progress--;
    t->daemon->core->scans->tiers = NULL;
    for (struct zb_list *node; (node = zb_list_pop_front(&t->askers)) != NULL;) {
        struct tiers_asker *a = zb_container_of(node, struct tiers_asker, node);

        tiers_answer(a->req, t);
        free(a);
    }
    free(t);
}

static void tiers_area(struct zsd_tiers_run *t, const void *base, uint64_t bytes)
{
    if (base && bytes > 0)
        t->areas[t->nareas++] = (struct zsd_numa_area){ base, bytes };
}

/* Starts the task. NULL: no memory. */
static struct zsd_tiers_run *tiers_begin(struct zsd_core *core)
{
    unsigned most = 1;
    struct zsd_tiers_run *t;

    zb_list_each(pos, &core->jobs->list)
    {
        most += 2;
        zb_list_each(at, &zb_container_of(pos, struct zsd_job, node)->members) most++;
    }
    t = calloc(1, sizeof(*t) + most * sizeof(t->areas[0]));
    if (!t)
        return NULL;
    t->task = (struct zsd_task){ .run = tiers_run, .done = tiers_done, .slow = true };
    t->daemon = core->daemon;
    zb_list_init(&t->askers);
    tiers_area(t, core->disk->buffers, core->disk->nbuffers * core->disk->buffer_bytes);
    zb_list_each(pos, &core->jobs->list)
    {
        const struct zsd_job *job = zb_container_of(pos, struct zsd_job, node);

        tiers_area(t, job->arena.base, job->arena.bytes);
        tiers_area(t, job->memory, job->memory_bytes);
        zb_list_each(at, &job->members)
        {
            const struct zsd_member *m = zb_container_of(at, struct zsd_member, node);

            tiers_area(t, m->staging.base, m->staging.bytes);
        }
    }
    core->in_progress++;
    zsd_task_start(core, &t->task);
    return t;
}

void zsd_tiers(struct zsd_req *req, const ProtobufCMessage *message)
{
    struct zsd_scans *scans = req->daemon->core->scans;
    struct tiers_asker *a;

    (void)message;
    if (!req->daemon->numa && req->daemon->ngpus == 0) {
        tiers_answer(req, NULL);
        return;
    }
    a = calloc(1, sizeof(*a));
    if (a && !scans->tiers)
        scans->tiers = tiers_begin(req->daemon->core);
    if (!a || !scans->tiers) {
        free(a);
        zsd_refuse(req, -ENOMEM, "the memory of all jobs");
        return;
    }
    a->req = req;
    zb_list_init(&a->node);
    zb_list_push_back(&scans->tiers->askers, &a->node);
}
