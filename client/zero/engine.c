/*
 * engine.c - open and close.
 *
 *     OPEN ---> STARTED ---> closed        a failure, from anywhere: FAILED, which only closes
 *
 *     OPEN     units are declared                    zc_zero_add_unit()
 *     STARTED  slices have their values              gather, grad, reduce, step, read, sum
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "client/zero/engine.h"

#include "client/zero/config/options.h"
#include "client/zero/pass/pass.h"
#include "client/zero/step/step.h"
#include "client/zero/store/stores.h"

#define ZCZ_TIMEOUT_MS 60000u
#define ZCZ_GRACE_MS   500u /* the store's own deadlines end first: its error messages say more */

/* ---- opening */

/* The caller's strings need not outlive zc_zero_open(). */
static int open_copy(struct zc_zero *z, const struct zc_zero_options *options)
{
    struct zc_zero_options *o = &z->options;

    *o = *options;
    o->socket = options->socket ? strdup(options->socket) : NULL;
    o->job = options->job ? strdup(options->job) : NULL;
    o->device = options->device && *options->device ? strdup(options->device) : NULL;
    o->kernels = NULL;
    if ((options->socket && !o->socket) || (options->job && !o->job) ||
        (options->device && *options->device && !o->device))
        return zcz_refuse(z, -ENOMEM, "no memory for the options");
    return 0;
}

/* The machine, as its processes see it: containers with names of their own are several. */
struct machine {
    char boot[64], name[256];
};

static void open_machine(struct machine *ret)
{
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");

    *ret = (struct machine){ 0 };
    if (f) {
        if (!fgets(ret->boot, sizeof(ret->boot), f))
            ret->boot[0] = '\0';
        (void)fclose(f);
    }
    (void)gethostname(ret->name, sizeof(ret->name) - 1);
}

/* The place of this rank among the ranks of its machine, by their numbers, for the choice of a GPU.
 * Collective, before anything else is. 0 or the failure. */
static int open_place(struct zc_zero *z, unsigned *ret)
{
    const struct machine *all;
    struct machine mine;
    struct zcz_buf *buf;
    int rc;

    *ret = 0;
    if (z->world == 1)
        return 0;
    open_machine(&mine);
    rc = zcz_share(z, &mine, sizeof(mine), ZCZ_CALL_PLACES, 0, &buf);
    if (rc < 0)
        return rc;
    all = buf->data;
    for (uint32_t r = 0; r < z->rank; r++)
        *ret += memcmp(&all[r], &mine, sizeof(mine)) == 0;
    zcz_buf_put(&z->small, buf);
    return 0;
}

/* Opens the one device of options.device that this process uses; its name is in the options then. A
 * stream is of the device that its owner has chosen. */
static int open_device(struct zc_zero *z, unsigned place)
{
    char name[ZK_GPU_NAME_MAX], *copy;
    struct zb_err err = { 0 };

    if (!z->options.device || z->options.stream)
        return zcz_device_open(z);
    if (zk_gpu_local(z->options.device, place, name, &err) < 0)
        return zcz_refuse(z, err.code, "device '%s': %s", z->options.device, err.text);
    copy = strdup(name);
    if (!copy)
        return zcz_refuse(z, -ENOMEM, "no memory for the name of a device");
    free((void *)(uintptr_t)z->options.device);
    z->options.device = copy;
    return zcz_device_open(z);
}

/* Opens what a rank can check by itself. place: of this rank on its machine. */
static int open_alone(struct zc_zero *z, const struct zc_zero_options *options, unsigned place)
{
    struct zb_err err = { 0 };
    int rc = open_copy(z, options);

    if (rc < 0)
        return rc;
    if (z->options.offload_optimizer == ZC_ZERO_NONE) /* there is no daemon */
        z->options.reconnect_ms = 0;
    rc = zcz_options_check(&z->options, z->world, &err);
    if (rc < 0)
        return zcz_refuse(z, rc, "%s", err.text);
    rc = zcz_guard_start(z);
    if (rc < 0)
        return rc;
    rc = zk_select(options->kernels, &z->kernels, &err);
    if (rc < 0)
        return zcz_refuse(z, rc, "%s", err.text);
    rc = open_device(z, place);
    if (rc < 0)
        return rc;
    if (z->options.offload_optimizer != ZC_ZERO_NONE)
        z->store = zcz_store_daemon(z);
    else if (z->device.gpu && (z->world == 1 || z->comm->ops->device))
        z->store = zcz_store_device(z);
    else
        z->store = zcz_store_local(z);
    if (!z->store)
        return zcz_refuse(z, -ENOMEM, "no memory for a store");
    return z->store->ops->open(z->store);
}

struct introduction {
    uint8_t node[16];
    uint64_t pid;
    uint32_t page_elems, replica;
    uint32_t run; /* drawn at random; rank 0's identifies the run */
    uint32_t zero;
    char device[48]; /* the id of its device, as in zk_gpu_info; "": none */
};

/* Each group of ranks has all states, and is a job of its own to a daemon. */
static bool node_same(const struct introduction *a, const struct introduction *b)
{
    return memcmp(a->node, b->node, sizeof(a->node)) == 0 && a->replica == b->replica;
}

static uint32_t node_first(const struct introduction *all, uint32_t r)
{
    uint32_t first = 0;

    while (!node_same(&all[first], &all[r]))
        first++;
    return first;
}

/* Groups of ranks may share a daemon: all except the first append a number to the job's name. */
static void open_name(struct zc_zero *z, uint64_t pid)
{
    char group[16] = "";

    if (z->replica > 0)
        (void)snprintf(group, sizeof(group), ".%u", z->replica);
    if (z->options.job)
        (void)snprintf(z->job, sizeof(z->job), "%s%s", z->options.job, group);
    else
        (void)snprintf(z->job, sizeof(z->job), "zero-%llu%s", (unsigned long long)pid, group);
}

/* Whether slices are read in the daemon follows from who shares it. first: of each rank, the first
 * one with the same daemon. */
static int open_near(struct zc_zero *z, const uint32_t *first)
{
    const char *why;
    int rc = zcz_nodes_find(z, first);

    if (rc < 0)
        return rc;
    why = zcz_nodes_apart(z);
    if (z->options.node_gather == ZC_NODE_GATHER_HOST && !z->options.gather_alone &&
        z->shards > 1 && why)
        return zcz_fail(z, -ENOTSUP, "gathers from host memory (node_gather host): %s", why);
    return zcz_nodes_split(z);
}

/* Numbers the ranks of this node, and the daemons; and whether this node's ranks are on one device. */
static int open_ranks(struct zc_zero *z, const struct introduction *all, uint32_t *first)
{
    struct zcz_store *s = z->store;
    bool common = true;

    s->node_ranks = calloc(z->world, sizeof(*s->node_ranks));
    if (!first || !s->node_ranks)
        return zcz_fail(z, -ENOMEM, "no memory for %u ranks", z->world);
    for (uint32_t r = 0; r < z->world; r++) {
        first[r] = node_first(all, r);
        z->nodes += first[r] == r;
        if (all[r].page_elems != all[0].page_elems)
            return zcz_fail(z, -EINVAL,
                            "rank %u has a daemon with pages of %u elements, rank 0 of %u: they "
                            "must have the same configuration",
                            r, all[r].page_elems, all[0].page_elems);
        if (!node_same(&all[r], &all[z->rank]))
            continue;
        if (r == z->rank)
            s->node_rank = s->node_world;
        s->node_ranks[s->node_world++] = r;
        common = common && strcmp(all[r].device, all[z->rank].device) == 0;
    }
    zcz_device_set_common(z, common);
    return 0;
}

/* Ranks exchange who shares a daemon, how many daemons there are, the job's name, and the page
 * size. */
static int open_introduce(struct zc_zero *z)
{
    struct introduction mine = { .pid = (uint64_t)getpid(),
                                 .page_elems = z->store->page_elems,
                                 .replica = z->replica };
    const struct introduction *all;
    struct zcz_buf *buf;
    uint32_t *first;
    int rc;

    if (getrandom(&mine.run, sizeof(mine.run), GRND_NONBLOCK) != sizeof(mine.run))
        mine.run = (uint32_t)zb_now_ns();
    mine.run += mine.run == 0;
    memcpy(mine.node, z->store->node, sizeof(mine.node));
    if (z->device.gpu)
        (void)snprintf(mine.device, sizeof(mine.device), "%s", zk_gpu_info(z->device.gpu)->id);
    rc = zcz_share(z, &mine, sizeof(mine), ZCZ_CALL_MEET, 0, &buf);
    if (rc < 0)
        return rc;
    all = buf->data;
    first = calloc(z->world, sizeof(*first));
    rc = open_ranks(z, all, first);
    if (!z->options.durable && z->nodes > 1) /* the other nodes' jobs would end when ranks leave */
        z->options.reconnect_ms = 0;
    if (rc == 0 && z->options.gather_alone && z->shards > 1 && z->nodes > 1)
        rc = zcz_fail(
            z, -ENOTSUP,
            "gathers that are each rank's own read the slices of all ranks from one daemon, "
            "and these ranks have %u",
            z->nodes);
    if (rc == 0)
        rc = open_near(z, first);
    free(first);
    zcz_note_run(z, all[0].run);
    open_name(z, all[0].pid);
    zcz_buf_put(&z->small, buf);
    return rc;
}

/* The engine's structs in one allocation. */
struct engine {
    struct zc_zero z; /* first: callers have its address */
    struct zcz_pass pass;
    struct zcz_steps steps;
};

/* In the order of a turn. */
static zcz_machine_fn *const machines[ZCZ_MACHINES] = {
    zcz_step_turn,
    zcz_gather_turn,
    zcz_coll_turn,
    zcz_reduce_turn,
};

static int open_engine(struct zc_zero **ret, const struct zc_zero_options *options)
{
    const struct zc_comm *comm = options->comm;
    struct engine *e = calloc(1, sizeof(*e));
    struct zc_zero *z;
    bool on_device = options->device && *options->device;
    unsigned place;
    int rc;

    *ret = NULL;
    if (!e)
        return -ENOMEM;
    z = &e->z;
    *ret = z;
    z->pass = &e->pass;
    z->steps = &e->steps;
    z->again = zcz_again;
    z->timeout_ms = options->timeout_ms ? options->timeout_ms : ZCZ_TIMEOUT_MS;
    zcz_turn_init(z, machines,
                  z->timeout_ms > UINT32_MAX - ZCZ_GRACE_MS ? UINT32_MAX
                                                            : z->timeout_ms + ZCZ_GRACE_MS);
    zcz_fork_watch(z);
    zcz_coll_init(z);
    zcz_pass_open(z, options->prefetch_units);
    zcz_pool_init(&z->small, 1, NULL);
    zcz_pool_init(&z->whole_param, 0, on_device ? &z->device : NULL);
    zcz_pool_init(&z->whole_grad, 0, on_device ? &z->device : NULL);
    (void)zcz_enter(z, false);
    if (!comm || !comm->ops || comm->world < 1 || comm->rank >= comm->world)
        return zcz_fail(z, -EINVAL, "an engine needs a comm, of at least one rank");
    z->comm = options->comm;
    z->rank = comm->rank;
    z->world = comm->world;
    rc = open_place(z, &place);
    if (rc < 0)
        return rc;
    rc = open_alone(z, options, place);
    rc = zcz_vote(z, rc, zcz_digest(z), ZCZ_CALL_OPTIONS);
    if (rc == 0)
        rc = zcz_split(z);
    if (rc == 0 && comm->ops->device) {
        rc = zcz_device_join(z);
        rc = zcz_vote(z, rc, z->device.ops != NULL, ZCZ_CALL_DEVICES);
    }
    return rc < 0 ? rc : open_introduce(z);
}

int zc_zero_open(struct zc_zero **ret, const struct zc_zero_options *options)
{
    int rc = open_engine(ret, options);

    if (*ret)
        zcz_guard_opened(*ret);
    return rc;
}

/* ---- closing */

/* Every rank closes now, with the same collectives queued, so these are completed, not
 * abandoned. */
static int close_drain(struct zc_zero *z)
{
    int rc;

    zcz_pass_let_go(z);
    rc = zcz_idle_wait(z, "what is in progress at the end");
    if (rc == 0)
        rc = zcz_commit_settle(z);
    if (!z->failed) /* a refusal: the step is whole, but not durable */
        rc = zcz_commit_resolved(z);
    return rc < 0 ? rc : z->store->ops->leave(z->store);
}

void zc_zero_close(struct zc_zero *z, bool clean)
{
    bool orphans;

    if (!z || z->forked) /* in a child process: devices, threads and sockets belong to the parent */
        return;
    zcz_fork_forget(z);
    zcz_guard_stop(z);
    if (clean && !z->failed && z->store)
        (void)close_drain(z);
    orphans = !zb_list_empty(&z->colls.started) || z->comm_broken;
    zcz_device_drain(z, clean && !z->failed); /* before the store unmaps its views */
    if (z->store)
        z->store->ops->close(z->store);
    zcz_pass_close(z, orphans);
    zcz_steps_close(z);
    zcz_pool_done(&z->small, orphans);
    zcz_pool_done(&z->whole_param, orphans && !z->device.gpu);
    zcz_pool_done(&z->whole_grad, orphans && !z->device.gpu);
    zcz_device_close(z);
    zcz_nodes_done(z, clean && !z->failed);
    if (z->splits) {
        zc_comm_close(z->inside, clean && !z->failed);
        zc_comm_close(z->across, clean && !z->failed);
    }
    zcz_units_done(z);
    free((void *)(uintptr_t)z->options.socket);
    free((void *)(uintptr_t)z->options.job);
    free((void *)(uintptr_t)z->options.device);
    free(zb_container_of(z, struct engine, z));
}
