/*
 * gpu_tier.c - see gpu_tier.h.
 *
 * A lane belongs to a task while the task runs. There are as many lanes as threads, so a task
 * always finds an idle one. The lock guards the list of idle lanes; a lane itself is used only by
 * its task.
 *
 * TABLES. The lane's table of segments may be too small for a whole page. Then the step takes
 * several launches, cut between blocks, each for as many blocks as the table has room for. A single
 * block always fits.
 */
#include "daemon/run/gpu_tier.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/frame.h"

_Static_assert(ZSD_GPUS_MAX == ZK_GPU_LIST_MAX, "a list names at most all of them");

#define LANES_MAX    4u            /* of a device */
#define LANES_SHARE  8u            /* lanes take at most this fraction of the tier, or one lane */
#define LANE_PLANE   sizeof(float) /* the largest element of parameters and gradients */
#define SEGMENTS_MAX (ZB_BLOCK_ELEMS + 2u) /* per launch: more than a block can have */
#define LANE_ALIGN   256u
#define PIN_BYTES    (64 * ZB_GIB) /* at a time */

struct lane {
    struct zk_gpu_mem *mem;
    struct zk_gpu_stream *stream;
    struct zk_page page; /* device memory: param, grad */
    void *segments, *groups;
};

struct zsd_gpu {
    struct zk_gpu *device;
    char name[16];
    struct zsd_compute *threads;
    struct lane lanes[LANES_MAX];
    unsigned nlanes;
    pthread_mutex_t lock;
    struct lane *idle[LANES_MAX];
    unsigned nidle;
};

/* ---- lanes */

static uint64_t lane_plane(const struct zsd *daemon)
{
    return zb_round_up((uint64_t)daemon->config.page_elems * LANE_PLANE, LANE_ALIGN);
}

static uint64_t lane_segments(void)
{
    return zb_round_up(SEGMENTS_MAX * sizeof(struct zk_segment), LANE_ALIGN);
}

static uint64_t lane_bytes(const struct zsd *daemon)
{
    return 2 * lane_plane(daemon) + lane_segments() + ZP_CLASSES_MAX * sizeof(struct zk_scalars);
}

static int lane_open(struct zsd *daemon, struct zk_gpu *device, struct lane *lane,
                     struct zb_err *err)
{
    int rc = zk_gpu_alloc(device, lane_bytes(daemon), 0, &lane->mem, err);
    uint8_t *at;

    if (rc == 0)
        rc = zk_gpu_stream_new(device, &lane->stream, err);
    if (rc < 0)
        return rc;
    at = zk_gpu_addr(lane->mem);
    lane->page.param = at;
    lane->page.grad = at += lane_plane(daemon);
    lane->segments = at += lane_plane(daemon);
    lane->groups = at + lane_segments();
    return 0;
}

static struct lane *lane_take(struct zsd_gpu *g)
{
    struct lane *lane;

    (void)pthread_mutex_lock(&g->lock);
    assert(g->nidle > 0);
    lane = g->idle[--g->nidle];
    (void)pthread_mutex_unlock(&g->lock);
    return lane;
}

static void lane_put(struct zsd_gpu *g, struct lane *lane)
{
    (void)pthread_mutex_lock(&g->lock);
    g->idle[g->nidle++] = lane;
    (void)pthread_mutex_unlock(&g->lock);
}

/* ---- operations, on a thread of the pool */

static void *page_part(const struct zsd_gpu_work *w, enum zb_plane plane, void *base, uint64_t at)
{
    return (uint8_t *)base + zb_blocks_bytes(w->layout->block_bytes[plane], at);
}

/* Parameters that are on the device are stepped in place. */
static void *step_param(const struct zsd_gpu_work *w, const struct lane *lane)
{
    return w->there[ZB_PARAM] ? w->there[ZB_PARAM] : lane->page.param;
}

static void *host_plane(const struct zsd_gpu_work *w, enum zb_plane plane)
{
    return plane == ZB_PARAM ? w->page.param : plane == ZB_STATE ? w->page.state : w->page.grad;
}

/* Copies the planes in `which`. */
static int planes_copy(const struct zsd_gpu_work *w, struct lane *lane, enum zk_gpu_way way,
                       const bool *which, struct zb_err *err)
{
    int rc = 0;

    for (enum zb_plane p = 0; p < ZB_PLANES && rc == 0; p++)
        if (which[p] && way == ZK_GPU_TO_DEVICE)
            rc = zk_gpu_copy(lane->stream, way, w->there[p], host_plane(w, p), w->bytes[p], err);
        else if (which[p])
            rc = zk_gpu_copy(lane->stream, way, host_plane(w, p), w->there[p], w->bytes[p], err);
    return rc;
}

/* Launches the step of elements [from, *ret_to) of the page: as many as the table of segments
 * allows. */
static int step_launch(const struct zsd_gpu_work *w, struct lane *lane, uint64_t from,
                       uint64_t *ret_to, struct zb_err *err)
{
    uint64_t first = w->page.first + from, to = w->page.count;
    uint32_t i = 0, n = 0;
    struct zk_gpu_work work = { .op = ZK_GPU_STEP };
    int rc;

    while (i < w->nsegments && w->segments[i].first + w->segments[i].count <= first)
        i++;
    while (i + n < w->nsegments && w->segments[i + n].first < w->page.first + to) {
        if (n == SEGMENTS_MAX) {
            to = (w->segments[i + n].first - w->page.first) / ZB_BLOCK_ELEMS * ZB_BLOCK_ELEMS;
            break;
        }
        n++;
    }
    assert(to > from);
    *ret_to = to;
    if (n == 0)
        return 0; /* none of these elements are stepped */
    work.step = (struct zk_gpu_step){
        .layout = *w->layout,
        .page = { .param = page_part(w, ZB_PARAM, step_param(w, lane), from),
                  .grad = page_part(w, ZB_GRAD, lane->page.grad, from),
                  .state = page_part(w, ZB_STATE, w->there[ZB_STATE], from),
                  .first = first,
                  .count = to - from },
        .segments = lane->segments,
        .nsegments = n,
        .by_group = lane->groups,
        .ngroups = w->ngroups,
    };
    rc = zk_gpu_copy(lane->stream, ZK_GPU_TO_DEVICE, lane->segments, w->segments + i,
                     n * sizeof(*w->segments), err);
    return rc < 0 ? rc : zk_gpu_launch(lane->stream, &work, err);
}

static int step_issue(const struct zsd_gpu_work *w, struct lane *lane, struct zb_err *err)
{
    int rc = 0;

    if (!w->there[ZB_PARAM])
        rc = zk_gpu_copy(lane->stream, ZK_GPU_TO_DEVICE, lane->page.param, w->page.param,
                         w->bytes[ZB_PARAM], err);
    if (rc == 0)
        rc = zk_gpu_copy(lane->stream, ZK_GPU_TO_DEVICE, lane->page.grad, w->page.grad,
                         w->bytes[ZB_GRAD], err);
    if (rc == 0)
        rc = zk_gpu_copy(lane->stream, ZK_GPU_TO_DEVICE, lane->groups, w->by_group,
                         w->ngroups * sizeof(*w->by_group), err);
    if (rc == 0)
        rc = planes_copy(w, lane, ZK_GPU_TO_DEVICE, w->comes, err);
    for (uint64_t at = 0; rc == 0 && at < w->page.count;)
        rc = step_launch(w, lane, at, &at, err);
    if (rc == 0 && !w->there[ZB_PARAM])
        rc = zk_gpu_copy(lane->stream, ZK_GPU_TO_HOST, w->page.param, lane->page.param,
                         w->bytes[ZB_PARAM], err);
    return rc == 0 ? planes_copy(w, lane, ZK_GPU_TO_HOST, w->goes, err) : rc;
}

static int work_issue(const struct zsd_gpu_work *w, struct lane *lane, struct zb_err *err)
{
    if (w->what == ZSD_GPU_STEP)
        return step_issue(w, lane, err);
    return w->what == ZSD_GPU_UP ? planes_copy(w, lane, ZK_GPU_TO_DEVICE, w->comes, err)
                                 : planes_copy(w, lane, ZK_GPU_TO_HOST, w->goes, err);
}

static void work_run(struct zsd_task *task)
{
    struct zsd_gpu_work *w = zb_container_of(task, struct zsd_gpu_work, task);
    struct lane *lane = lane_take(w->gpu);
    struct zb_err late = { 0 };
    int rc;

    w->rc = work_issue(w, lane, &w->err);
    rc = zk_gpu_stream_sync(lane->stream, &late); /* also after errors: copies use host memory */
    if (w->rc == 0 && rc < 0)
        w->rc = zb_fail(&w->err, rc, "%s", late.text);
    lane_put(w->gpu, lane);
}

void zsd_gpu_start(struct zsd_gpu *g, struct zsd_gpu_work *work)
{
    work->gpu = g;
    work->task.run = work_run;
    zsd_compute_post(g->threads, &work->task);
}

/* ---- host memory */

/* Pins large memory in pieces, so that if the driver refuses one, the pieces before it stay
 * pinned. */
int zsd_gpu_pin(struct zsd_gpu *g, void *memory, uint64_t bytes, struct zb_err *err)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    int rc = 0;

    bytes = bytes / page * page;
    for (uint64_t at = 0; memory && at < bytes && rc == 0; at += PIN_BYTES)
        rc = zk_gpu_pin(g->device, (uint8_t *)memory + at, zb_min_u64(bytes - at, PIN_BYTES), false,
                        err);
    return rc;
}

void zsd_gpu_unpin(const struct zsd *daemon, void *memory, uint64_t bytes)
{
    for (unsigned i = 0; i < daemon->ngpus; i++)
        for (uint64_t at = 0; memory && at < bytes; at += PIN_BYTES) /* may be unpinned */
            (void)zk_gpu_unpin(daemon->gpus[i]->device, (uint8_t *)memory + at, NULL);
}

/* ---- up and down */

struct zk_gpu *zsd_gpu_device(struct zsd_gpu *g)
{
    return g->device;
}

int zsd_gpu_node(const struct zsd *daemon, uint32_t g)
{
    int node = zk_gpu_info(daemon->gpus[g]->device)->node;

    return node < ZSD_NEAR_NODES ? node : ZSD_NEAR_NONE;
}

const char *zsd_gpu_name(const struct zsd_gpu *g)
{
    return g->name;
}

struct zsd_compute *zsd_gpu_threads(const struct zsd_gpu *g)
{
    return g->threads;
}

uint32_t zsd_gpu_find(const struct zsd *daemon, const char *id)
{
    for (uint32_t i = 0; i < daemon->ngpus; i++)
        if (strcmp(zk_gpu_info(daemon->gpus[i]->device)->id, id) == 0)
            return i;
    return ZSD_NO_GPU;
}

uint32_t zsd_gpu_named(const struct zsd *daemon, const char *name)
{
    for (uint32_t i = 0; i < daemon->ngpus; i++)
        if (strcmp(daemon->gpus[i]->name, name) == 0)
            return i;
    return daemon->ngpus == 1 && strcmp(name, "gpu0") == 0 ? 0 : ZSD_NO_GPU;
}

unsigned zsd_gpu_lanes(const struct zsd_gpu *g)
{
    return g->nlanes;
}

uint64_t zsd_gpu_own_bytes(const struct zsd_gpu *g)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; i < g->nlanes; i++)
        bytes += zk_gpu_len(g->lanes[i].mem);
    return bytes;
}

static int gpu_lanes(struct zsd *daemon, struct zsd_gpu *g, struct zb_err *err)
{
    uint64_t limit = zsd_gpu_budget(&daemon->config, daemon->ngpus - 1);
    uint64_t bytes = zb_round_up(lane_bytes(daemon), zk_gpu_info(g->device)->granularity_bytes);
    unsigned n = (unsigned)zb_min_u64(zb_max_u64(limit / LANES_SHARE / bytes, 1), LANES_MAX);
    int rc = 0;

    if (limit > zk_gpu_info(g->device)->total_bytes)
        return zb_fail(err, -ENOSPC, "gpu_bytes %s: %s has %s", zb_size_text(limit).s,
                       zk_gpu_info(g->device)->name,
                       zb_size_text(zk_gpu_info(g->device)->total_bytes).s);
    if (bytes >= limit)
        return zb_fail(err, -ENOSPC,
                       "gpu_bytes %s leave no room for state besides the page buffers (%s for %u "
                       "elements a page): give more, or smaller pages (page_elems)",
                       zb_size_text(limit).s, zb_size_text(bytes).s, daemon->config.page_elems);
    for (; g->nlanes < n && rc == 0; g->nlanes++) {
        struct lane *lane = &g->lanes[g->nlanes];

        rc = lane_open(daemon, g->device, lane, err);
        g->idle[g->nidle++] = lane;
    }
    return rc;
}

/* Opens the next device. After a failure zsd_gpu_close() frees what there is. */
static int gpu_open(struct zsd *daemon, const char *device, bool alone, struct zb_err *err)
{
    const struct zsd_config *config = &daemon->config;
    struct zsd_gpu *g = calloc(1, sizeof(*g));
    uint32_t same;
    int rc;

    if (!g)
        return zb_fail(err, -ENOMEM, "the GPU tier: %m");
    (void)snprintf(g->name, sizeof(g->name), alone ? "gpu" : "gpu%u", daemon->ngpus);
    rc = pthread_mutex_init(&g->lock, NULL);
    assert(rc == 0);
    rc = zk_gpu_open(device, 0, &g->device, err); /* the limit is the tier's: core->tiers.gpus */
    same = rc == 0 ? zsd_gpu_find(daemon, zk_gpu_info(g->device)->id) : ZSD_NO_GPU;
    daemon->gpus[daemon->ngpus++] = g;
    if (same != ZSD_NO_GPU)
        rc = zb_fail(err, -EINVAL, "'%s' is the same GPU as %s", device, daemon->gpus[same]->name);
    if (rc == 0)
        rc = gpu_lanes(daemon, g, err);
    if (rc == 0)
        rc = zsd_compute_new(&g->threads, g->nlanes, config->cpus, err);
    if (rc < 0)
        return rc;
    zb_log(ZB_LOG_INFO, "gpu", "gpu=%s device=\"%s\" bytes=%llu lanes=%u node=%d", g->name,
           zk_gpu_info(g->device)->name,
           (unsigned long long)zsd_gpu_budget(config, daemon->ngpus - 1), g->nlanes,
           zk_gpu_info(g->device)->node);
    return 0;
}

int zsd_gpu_budgets_fit(const struct zsd_config *config, unsigned gpus, struct zb_err *err)
{
    unsigned n = config->gpu_budgets.n;

    return n <= 1 || n == gpus
               ? 0
               : zb_fail(
                     err, -EINVAL,
                     "gpu_bytes has %u sizes, and there are %u GPUs (gpus = %s): give one size, "
                     "or one for each",
                     n, gpus, config->gpu);
}

int zsd_gpu_open(struct zsd *daemon, struct zb_err *err)
{
    const struct zsd_config *config = &daemon->config;
    struct zk_gpu_list list;
    int rc;

    if (config->gpu_budgets.n == 0)
        return 0;
    rc = zk_gpu_list(config->gpu, &list, err);
    if (rc == 0)
        rc = zsd_gpu_budgets_fit(config, list.n, err);
    for (unsigned i = 0; rc == 0 && i < list.n; i++)
        rc = gpu_open(daemon, list.names[i], list.n == 1, err);
    return rc;
}

static void gpu_close(struct zsd_gpu *g)
{
    zsd_compute_free(g->threads);
    for (unsigned i = 0; i < g->nlanes; i++) {
        zk_gpu_stream_free(g->lanes[i].stream);
        zk_gpu_free(g->lanes[i].mem);
    }
    zk_gpu_close(g->device);
    (void)pthread_mutex_destroy(&g->lock);
    free(g);
}

void zsd_gpu_close(struct zsd *daemon)
{
    while (daemon->ngpus > 0) {
        gpu_close(daemon->gpus[--daemon->ngpus]);
        daemon->gpus[daemon->ngpus] = NULL;
    }
}
