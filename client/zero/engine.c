/*
 * engine.c - open and close, errors, turning and waiting.
 *
 *     OPEN ---> STARTED ---> closed        a failure, from anywhere: FAILED, which only closes
 *
 *     OPEN     units are declared                    zc_zero_add_unit()
 *     STARTED  slices have their values              gather, grad, reduce, step, read, sum
 *
 * WAITING. Ranks share cores with each other and with the daemon, so waiting must not burn one: a
 * wait turns without sleeping for ZCZ_SPIN_NS, then sleeps for an eighth of the time that nothing
 * has moved, in the store's poll, so that the daemon wakes it at once. Collectives and a device are
 * only polled: while one is in progress a sleep is at most ZCZ_NAP_COLL_US.
 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "client/zero/zero_priv.h"

#define ZCZ_SPIN_NS     20000u
#define ZCZ_NAP_COLL_US 1000u
#define ZCZ_NAP_US      20000u

/* ---- errors */

__attribute__((format(printf, 3, 0))) static void error_set(struct zc_zero *z, int code,
                                                            const char *fmt, va_list ap)
{
    char text[sizeof(z->error.text)];

    errno = -code; /* %m */
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    z->error.code = 0;
    (void)zb_fail(&z->error, code, "%s", text);
}

int zcz_refuse(struct zc_zero *z, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    error_set(z, code, fmt, ap);
    va_end(ap);
    return code;
}

int zcz_fail(struct zc_zero *z, int code, const char *fmt, ...)
{
    va_list ap;

    if (z->failed)
        return z->failed;
    va_start(ap, fmt);
    error_set(z, code, fmt, ap);
    va_end(ap);
    z->failed = code;
    return code;
}

const char *zc_zero_error(const struct zc_zero *z)
{
    return z ? z->error.text : "no memory for an engine";
}

const char *zcz_store_text(const struct zcz_store *s)
{
    return s->err.text;
}

/* ---- entering */

int zcz_enter(struct zc_zero *z, bool needs_start)
{
    zk_thread_init(); /* whoever called us last may have changed the modes */
    if (z->failed)
        return z->failed;
    if (needs_start && !z->started)
        return zcz_refuse(z, -EBUSY, "the engine has not started: zc_zero_start() comes first");
    return 0;
}

int zcz_enter_unit(struct zc_zero *z, uint32_t index, struct zcz_unit **ret_unit)
{
    int rc = zcz_enter(z, true);

    if (rc < 0)
        return rc;
    if (index >= z->nunits)
        return zcz_refuse(z, -EINVAL, "unit %u, and there are %u", index, z->nunits);
    *ret_unit = &z->units[index];
    return 0;
}

/* ---- turning and waiting */

static int turn_once(struct zc_zero *z, uint32_t wait_us)
{
    int rc = 0;

    if (z->store && !z->store_gone)
        rc = z->store->ops->poll(z->store, wait_us);
    else if (wait_us > 0)
        (void)usleep(wait_us);
    if (rc < 0) {
        z->store_gone = true;
        if (rc == -EOWNERDEAD && zcz_coll_other(z) < 0)
            return z->failed;
        return zcz_fail(z, rc, "%s", zcz_store_text(z->store));
    }
    z->moved = rc > 0;
    rc = zcz_step_turn(z);
    if (rc == 0)
        rc = zcz_gather_turn(z);
    if (rc == 0)
        rc = zcz_coll_turn(z);
    if (rc == 0)
        rc = zcz_reduce_turn(z);
    return rc;
}

int zcz_turn(struct zc_zero *z, uint32_t wait_us)
{
    int rc = z->failed;

    while (rc == 0) {
        rc = turn_once(z, wait_us);
        if (!z->moved)
            break;
        z->moved_ns = zb_now_ns();
        wait_us = 0;
    }
    return rc;
}

/* What stands in the way, as far as this rank can tell. */
static void wait_describe(const struct zc_zero *z, char *text, size_t bytes)
{
    const struct zb_list *started = &z->started_colls, *queued = &z->queued;
    const struct zcz_coll *c = NULL;
    const char *where = "";

    if (!zb_list_empty(started)) {
        c = zb_container_of(started->next, struct zcz_coll, node);
        where = ", which waits for another rank";
    } else if (!zb_list_empty(queued)) {
        c = zb_container_of(queued->next, struct zcz_coll, node);
        where = ", which waits for this rank's store";
    }
    if (!c)
        (void)snprintf(text, bytes, "the store has not answered");
    else if (c->unit == ZCZ_NO_UNIT)
        (void)snprintf(text, bytes, "it is at %s%s", zcz_call_noun(c->call), where);
    else
        (void)snprintf(text, bytes, "it is at %s unit %u '%s'%s", zcz_call_noun(c->call), c->unit,
                       z->units[c->unit].def.name, where);
}

int zcz_wait(struct zc_zero *z, struct zcz_wait *w)
{
    uint64_t now = zb_now_ns(), idle_ns, nap_us = 0;
    uint64_t limit_ns = (uint64_t)z->patience_ms * 1000000;
    int rc;

    if (w->begin_ns == 0)
        w->begin_ns = now;
    idle_ns = now - zb_max_u64(w->begin_ns, z->moved_ns);
    if (idle_ns > limit_ns) {
        char text[256];

        rc = zcz_calls_stuck(z);
        if (rc < 0)
            return rc;
        wait_describe(z, text, sizeof(text));
        return zcz_fail(z, -ETIMEDOUT, "nothing moved for %llu ms while waiting for %s: %s",
                        (unsigned long long)(idle_ns / 1000000), w->what, text);
    }
    if (idle_ns > ZCZ_SPIN_NS)
        nap_us =
            zb_min_u64(idle_ns / 8000, zb_list_empty(&z->started_colls) && z->device.moving == 0
                                           ? ZCZ_NAP_US
                                           : ZCZ_NAP_COLL_US);
    rc = zcz_turn(z, (uint32_t)nap_us);
    z->stall_ns += zb_now_ns() - now;
    return rc;
}

int zcz_wait_op(struct zc_zero *z, struct zcz_op *op, const char *what)
{
    struct zcz_wait w = { .what = what };
    int rc = zcz_turn(z, 0);

    while (rc == 0 && op->pending > 0)
        rc = zcz_wait(z, &w);
    if (rc == 0) {
        rc = op->rc;
        *op = (struct zcz_op){ 0 };
    }
    return rc;
}

int zc_zero_poll(struct zc_zero *z)
{
    int rc = zcz_enter(z, false);

    return rc < 0 ? rc : zcz_turn(z, 0);
}

/* ---- votes */

struct vote {
    int32_t rc;
    uint32_t same;
    char text[sizeof(((struct zb_err *)0)->text)];
};

/* The engine has failed; for a while it still says why, and hears the others out. True: it did. */
static bool vote_farewell(struct zc_zero *z)
{
    struct zb_err error = z->error;
    uint32_t patience_ms = z->patience_ms;
    int failed = z->failed, rc;

    if (z->comm_broken)
        return false;
    z->failed = 0;
    z->store_gone = true;
    z->patience_ms = z->placing ? ZCZ_REASON_MS : ZCZ_FAREWELL_MS;
    z->moved_ns = zb_now_ns();
    rc = zcz_share_wait(z);
    z->patience_ms = patience_ms;
    z->failed = failed;
    z->error = error;
    return rc == 0;
}

/* The first rank that is not well, or does not say the same, is why the engine fails. Who only
 * heard of it from the daemon does not know why. */
static int vote_count(struct zc_zero *z, const struct vote *votes, enum zcz_call what)
{
    for (uint32_t r = 0; r < z->world; r++)
        if (votes[r].rc < 0 && votes[r].rc != -EOWNERDEAD)
            return zcz_fail(z, votes[r].rc, "rank %u: %.*s", r, (int)sizeof(votes[r].text) - 1,
                            votes[r].text);
    for (uint32_t r = 0; r < z->world; r++)
        if (votes[r].rc < 0)
            return zcz_fail(z, votes[r].rc, "%.*s", (int)sizeof(votes[r].text) - 1, votes[r].text);
    for (uint32_t r = 0; r < z->world; r++)
        if (votes[r].same != votes[0].same)
            return zcz_fail(z, -EINVAL, "%s: rank %u and rank 0 do not say the same",
                            zcz_call_noun(what), r);
    return 0;
}

int zcz_vote(struct zc_zero *z, int my_rc, uint32_t same, enum zcz_call what)
{
    struct vote mine = { .rc = my_rc, .same = same };
    struct zcz_buf *buf;
    int rc;

    if (z->failed && z->placing)
        return z->failed;
    if (my_rc < 0)
        memcpy(mine.text, z->error.text, sizeof(mine.text));
    rc = zcz_share_begin(z, &mine, sizeof(mine), what, 0, &buf);
    if (rc < 0)
        return rc;
    rc = zcz_share_wait(z);
    if (rc < 0 && !vote_farewell(z))
        return rc; /* buf stays in use: it may be written */
    if (rc == 0 && my_rc < 0) {
        rc = zcz_fail(z, my_rc, "%s", mine.text);
    } else if (rc == 0) {
        rc = vote_count(z, buf->data, what);
    } else if (rc == -EOWNERDEAD) { /* whoever left may have said why */
        struct zb_err lost = z->error;

        z->failed = 0;
        if (vote_count(z, buf->data, what) == 0)
            (void)zcz_fail(z, rc, "%s", lost.text);
        rc = z->failed;
    }
    zcz_buf_put(&z->small, buf);
    return rc;
}

/* ---- opening */

void zc_zero_defaults(struct zc_zero_options *options)
{
    *options = (struct zc_zero_options){
        .commit_every = ZCZ_COMMIT_EVERY,
        .micro_steps = 1,
        .optimizer = ZC_ADAMW,
        .moments = ZC_MOMENTS_F32,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .eps = 1e-8,
        .groups = 1,
        .prefetch_units = 1,
        .overlap = ZC_ZERO_OVERLAP,
        .stage = ZC_STAGE_3,
        .loss_scale = { .fixed = 1, .power = 16, .window = 1000, .hysteresis = 2, .min = 1 },
    };
}

static bool offload_known(enum zc_zero_offload o)
{
    return o == ZC_ZERO_NONE || o == ZC_ZERO_HOST || o == ZC_ZERO_NVME;
}

static bool offload_param_known(enum zc_zero_offload o)
{
    return offload_known(o) || o == ZC_ZERO_GPU;
}

static int open_check_group(struct zc_zero *z, uint32_t g)
{
    const struct zc_group group = zcz_group(z, 0, g);
    const struct zk_params params = zcz_params(&group, 1);
    struct zb_err err = { 0 };

    return zk_params_check((enum zb_optimizer)z->options.optimizer, &params, &err) < 0
               ? zcz_refuse(z, -EINVAL, "group %u: %s", g, err.text)
               : 0;
}

static int open_check_offload(struct zc_zero *z)
{
    const struct zc_zero_options *o = &z->options;

    if (!offload_param_known(o->offload_param) || !offload_known(o->offload_optimizer))
        return zcz_refuse(z, -EINVAL,
                          "offload of parameters %d, of the optimizer %d: none, host, nvme, and of "
                          "parameters gpu",
                          (int)o->offload_param, (int)o->offload_optimizer);
    if (!offload_known(o->offload_grad))
        return zcz_refuse(z, -EINVAL, "offload of gradients %d: host, or none",
                          (int)o->offload_grad);
    if (o->offload_param != ZC_ZERO_NONE && o->offload_optimizer == ZC_ZERO_NONE)
        return zcz_refuse(z, -EINVAL,
                          "parameters are offloaded with the optimizer state, or not at all");
    if (o->offload_optimizer != ZC_ZERO_NONE && o->stage == ZC_STAGE_DDP)
        return zcz_refuse(z, -EINVAL,
                          "stage 0 has everything whole on each rank: nothing of it is "
                          "offloaded (stage 1 offloads optimizer state)");
    if (o->offload_param != ZC_ZERO_NONE && o->stage < ZC_STAGE_3)
        return zcz_refuse(z, -EINVAL,
                          "stage %d has parameters whole on each rank: only stage 3 "
                          "offloads them",
                          (int)o->stage);
    return 0;
}

static int open_check_stage(struct zc_zero *z)
{
    const struct zc_zero_options *o = &z->options;

    if (o->stage > ZC_STAGE_3)
        return zcz_refuse(z, -EINVAL, "stage %d: from 0 to 3", (int)o->stage);
    if (o->stage < ZC_STAGE_3 &&
        (o->keep_gathered || o->persist_elems > 0 || o->live_elems > 0 || o->reuse_elems > 0))
        return zcz_refuse(z, -EINVAL,
                          "stage %d keeps all parameters gathered: which stay, and how "
                          "many, is of stage 3",
                          (int)o->stage);
    if (o->stage < ZC_STAGE_3 && o->quantize_gather)
        return zcz_refuse(z, -EINVAL,
                          "stage %d computes with the parameters that it steps: only stage 3 "
                          "gathers them quantized, beside its slices",
                          (int)o->stage);
    if (o->group_ranks > 0 && (z->world % o->group_ranks != 0 || o->stage < ZC_STAGE_3))
        return zcz_refuse(z, -EINVAL, "groups of %u ranks: of stage 3, and a divisor of %u ranks",
                          o->group_ranks, z->world);
    return 0;
}

/* Behind it there is room for the number of every group: open_name(). */
static int open_check_name(struct zc_zero *z)
{
    const struct zc_zero_options *o = &z->options;
    uint32_t groups = o->group_ranks > 0 ? z->world / o->group_ranks : 1;
    int number = groups > 1 ? snprintf(NULL, 0, ".%u", groups - 1) : 0;

    if (!o->job || strlen(o->job) <= (size_t)(ZC_NAME_MAX - number))
        return 0;
    return zcz_refuse(z, -EINVAL, "a job's name has at most %d bytes%s", ZC_NAME_MAX - number,
                      number ? ", and behind it each group of ranks has its number" : "");
}

static int open_check(struct zc_zero *z)
{
    const struct zc_zero_options *o = &z->options;
    struct zb_err err = { 0 };
    int rc = open_check_stage(z);

    if (rc == 0)
        rc = open_check_offload(z);
    if (rc < 0)
        return rc;
    if (o->resume && (o->offload_optimizer == ZC_ZERO_NONE || !o->job))
        return zcz_refuse(z, -EINVAL, "resume needs a daemon and the name of a job that it kept");
    if (o->durable && (o->offload_optimizer == ZC_ZERO_NONE || !o->keep))
        return zcz_refuse(z, -EINVAL, "a durable job needs a daemon, and to be kept");
    rc = open_check_name(z);
    if (rc < 0)
        return rc;
    if (o->micro_steps < 1)
        return zcz_refuse(z, -EINVAL, "0 micro-steps in a step: at least 1");
    if (!(o->clip >= 0 && isfinite(o->clip)))
        return zcz_refuse(z, -EINVAL, "clip %g: 0 (off) or a norm", o->clip);
    if (!zb_optimizer_name((enum zb_optimizer)o->optimizer))
        return zcz_refuse(z, -EINVAL, "optimizer number %d is not known", (int)o->optimizer);
    if (!zb_moments_name((enum zb_moments)o->moments))
        return zcz_refuse(z, -EINVAL, "moments number %d is not known", (int)o->moments);
    if (o->groups < 1 || o->groups > ZCZ_GROUPS_MAX)
        return zcz_refuse(z, -EINVAL, "%u parameter groups: from 1 to %u", o->groups,
                          ZCZ_GROUPS_MAX);
    for (uint32_t g = 0; g < o->groups; g++)
        if (open_check_group(z, g) < 0)
            return -EINVAL;
    if (o->overlap & ~ZC_ZERO_OVERLAP)
        return zcz_refuse(z, -EINVAL, "overlap %#x: known are %#x", o->overlap, ZC_ZERO_OVERLAP);
    if (zcz_scale_check(&o->loss_scale, &err) < 0)
        return zcz_refuse(z, -EINVAL, "%s", err.text);
    if (o->prefetch_units > ZCZ_PREFETCH_MAX)
        return zcz_refuse(z, -EINVAL, "%u units gathered ahead: at most %u", o->prefetch_units,
                          ZCZ_PREFETCH_MAX);
    return 0;
}

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

int zcz_split(struct zc_zero *z)
{
    const struct zc_zero_options *o = &z->options;
    const struct zc_comm_ops *ops = z->comm->ops;
    uint32_t shards = o->stage == ZC_STAGE_DDP ? 1 : o->group_ranks ? o->group_ranks : z->world;
    int rc = 0;

    z->shards = shards;
    z->shard = z->rank % shards;
    z->replicas = z->world / shards;
    z->replica = z->rank / shards;
    z->whole_params = shards > 1 && o->stage < ZC_STAGE_3;
    z->whole_grads = shards > 1 && o->stage < ZC_STAGE_2;
    if (z->replicas == 1 || shards == 1) {
        z->inside = shards > 1 ? z->comm : NULL;
        z->across = z->replicas > 1 ? z->comm : NULL;
        return 0;
    }
    if (!ops->split)
        return zcz_fail(z, -ENOTSUP, "backend '%s' has no split(): groups of %u ranks need one",
                        ops->name, shards);
    z->splits = true;
    rc = ops->split(z->comm, z->replica, &z->inside);
    if (rc == 0)
        rc = ops->split(z->comm, z->shard, &z->across);
    return rc < 0 ? zcz_fail(z, rc, "groups of %u ranks over '%s'%s%s", shards, ops->name,
                             ops->error ? ": " : " failed", ops->error ? ops->error(z->comm) : "")
                  : 0;
}

/* What one rank can find wrong by itself. */
static int open_alone(struct zc_zero *z, const struct zc_zero_options *options)
{
    struct zb_err err = { 0 };
    int rc = open_copy(z, options);

    if (rc == 0)
        rc = open_check(z);
    if (rc < 0)
        return rc;
    rc = zk_select(options->kernels, &z->kernels, &err);
    if (rc < 0)
        return zcz_refuse(z, rc, "%s", err.text);
    rc = zcz_device_open(z);
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
    uint32_t run; /* drawn; rank 0's is that of the run */
    uint32_t zero;
};

/* Each group of ranks has all states, so to a daemon it is a job of its own. */
static bool node_same(const struct introduction *a, const struct introduction *b)
{
    return memcmp(a->node, b->node, sizeof(a->node)) == 0 && a->replica == b->replica;
}

static bool node_seen(const struct introduction *all, uint32_t r)
{
    for (uint32_t before = 0; before < r; before++)
        if (node_same(&all[before], &all[r]))
            return true;
    return false;
}

/* Groups of ranks may share a daemon: all but the first have a number behind the job's name. */
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

/* Who shares this rank's daemon, how many daemons there are, under which name the job goes, and how
 * long a page is. */
static int open_introduce(struct zc_zero *z)
{
    struct zcz_store *s = z->store;
    struct introduction mine = { .pid = (uint64_t)getpid(),
                                 .page_elems = s->page_elems,
                                 .replica = z->replica };
    const struct introduction *all;
    struct zcz_buf *buf;
    int rc;

    if (getrandom(&mine.run, sizeof(mine.run), GRND_NONBLOCK) != sizeof(mine.run))
        mine.run = (uint32_t)zb_now_ns();
    mine.run += mine.run == 0;
    memcpy(mine.node, s->node, sizeof(mine.node));
    rc = zcz_share(z, &mine, sizeof(mine), ZCZ_CALL_MEET, 0, &buf);
    if (rc < 0)
        return rc;
    all = buf->data;
    s->node_ranks = calloc(z->world, sizeof(*s->node_ranks));
    for (uint32_t r = 0; r < z->world && rc == 0; r++) {
        z->nodes += !node_seen(all, r);
        if (!s->node_ranks) {
            rc = zcz_fail(z, -ENOMEM, "no memory for %u ranks", z->world);
        } else if (all[r].page_elems != all[0].page_elems) {
            rc = zcz_fail(z, -EINVAL,
                          "rank %u has a daemon with pages of %u elements, rank 0 of %u: they must "
                          "be configured alike",
                          r, all[r].page_elems, all[0].page_elems);
        } else if (node_same(&all[r], &mine)) {
            if (r == z->rank)
                s->node_rank = s->node_world;
            s->node_ranks[s->node_world++] = r;
        }
    }
    z->run = all[0].run;
    open_name(z, all[0].pid);
    zcz_buf_put(&z->small, buf);
    return rc;
}

int zc_zero_open(struct zc_zero **ret, const struct zc_zero_options *options)
{
    const struct zc_comm *comm = options->comm;
    struct zc_zero *z = calloc(1, sizeof(*z));
    uint32_t gathers = zb_min_u64(options->prefetch_units, ZCZ_PREFETCH_MAX) + ZB_GATHER_IDLE;
    bool on_device = options->device && *options->device;
    int rc;

    *ret = z;
    if (!z)
        return -ENOMEM;
    zb_list_init(&z->queued);
    zb_list_init(&z->started_colls);
    zb_list_init(&z->gathers);
    zb_list_init(&z->reduces);
    zb_list_init(&z->reduces_idle);
    for (uint32_t i = 0; i < ZCZ_REDUCES_MAX; i++)
        zb_list_push_back(&z->reduces_idle, &z->reduce_slots[i].node);
    zcz_pool_init(&z->small, 1, NULL);
    zcz_pool_init_pinned(&z->gather_pool, gathers, &z->device);
    zcz_pool_init(&z->wire_pool, gathers, NULL);
    zcz_pool_init(&z->gather_dev, gathers, &z->device);
    zcz_pool_init(&z->wire_dev, gathers, &z->device);
    zcz_pool_init_pinned(&z->grad_pool, ZCZ_REDUCES_MAX + 1, &z->device);
    zcz_pool_init(&z->grad_dev, ZCZ_REDUCES_MAX + 1, &z->device);
    zcz_pool_init(&z->whole_param, 0, on_device ? &z->device : NULL);
    zcz_pool_init(&z->whole_grad, 0, on_device ? &z->device : NULL);
    z->timeout_ms = options->timeout_ms ? options->timeout_ms : ZCZ_TIMEOUT_MS;
    z->patience_ms = z->timeout_ms > UINT32_MAX - ZCZ_GRACE_MS ? UINT32_MAX
                                                               : z->timeout_ms + ZCZ_GRACE_MS;
    (void)zcz_enter(z, false);
    if (!comm || !comm->ops || comm->world < 1 || comm->rank >= comm->world)
        return zcz_fail(z, -EINVAL, "an engine needs a comm, of at least one rank");
    z->comm = options->comm;
    z->rank = comm->rank;
    z->world = comm->world;
    rc = open_alone(z, options);
    rc = zcz_vote(z, rc, zcz_digest(z), ZCZ_CALL_OPTIONS);
    if (rc == 0)
        rc = zcz_split(z);
    if (rc == 0 && comm->ops->device) {
        rc = zcz_device_join(z);
        rc = zcz_vote(z, rc, z->device.ops != NULL, ZCZ_CALL_DEVICES);
    }
    return rc < 0 ? rc : open_introduce(z);
}

/* ---- closing */

static bool close_drained(const struct zc_zero *z)
{
    return zb_list_empty(&z->gathers) && zb_list_empty(&z->reduces) && z->pushes.pending == 0 &&
           z->notes.pending == 0 && z->announce.pending == 0 && !z->stepping;
}

/* Every rank closes now, with the same collectives queued: they are finished, not abandoned. */
static int close_drain(struct zc_zero *z)
{
    struct zcz_wait w = { .what = "what is in progress at the end" };
    int rc;

    zcz_reduce_follow(z);
    zb_list_each(pos, &z->gathers)
    {
        struct zcz_unit *u = zb_container_of(pos, struct zcz_unit, node);

        u->holds = 0;
        zcz_gather_drop(z, u);
    }
    rc = zcz_turn(z, 0);
    while (rc == 0 && !close_drained(z))
        rc = zcz_wait(z, &w);
    if (rc == 0)
        rc = zcz_commit_settle(z);
    if (!z->failed) /* a step that is not durable is whole */
        rc = zcz_commit_resolved(z);
    return rc < 0 ? rc : z->store->ops->leave(z->store);
}

void zc_zero_close(struct zc_zero *z, bool clean)
{
    bool orphans;

    if (!z)
        return;
    if (clean && !z->failed && z->store)
        (void)close_drain(z);
    orphans = !zb_list_empty(&z->started_colls) || z->comm_broken;
    zcz_device_drain(z, clean && !z->failed); /* before the store takes its views away */
    if (z->store)
        z->store->ops->close(z->store);
    zcz_pool_done(&z->gather_pool, orphans);
    zcz_pool_done(&z->wire_pool, orphans);
    zcz_pool_done(&z->grad_pool, orphans);
    zcz_pool_done(&z->small, orphans);
    zcz_pool_done(&z->gather_dev, false);
    zcz_pool_done(&z->wire_dev, false);
    zcz_pool_done(&z->grad_dev, false);
    zcz_pool_done(&z->whole_param, orphans && !z->device.gpu);
    zcz_pool_done(&z->whole_grad, orphans && !z->device.gpu);
    zcz_device_close(z);
    if (z->splits) {
        zc_comm_close(z->inside, clean && !z->failed);
        zc_comm_close(z->across, clean && !z->failed);
    }
    zcz_units_done(z);
    free(z->order.units);
    free(z->seen.units);
    free(z->note);
    free((void *)(uintptr_t)z->options.socket);
    free((void *)(uintptr_t)z->options.job);
    free((void *)(uintptr_t)z->options.device);
    free(z);
}

/* ---- statistics */

uint64_t zc_zero_device_bytes(const struct zc_zero *z)
{
    uint64_t whole = z->device.gpu ? z->whole_param.bytes + z->whole_grad.bytes : 0;

    return z->gather_dev.bytes + z->wire_dev.bytes + z->grad_dev.bytes + whole +
           (z->store ? z->store->device_bytes : 0);
}

int zc_zero_stats(struct zc_zero *z, struct zc_zero_stats *ret)
{
    struct zcz_wait w = { .what = "the step in progress, to be counted" };
    struct zcz_store_stats now = { 0 };
    int rc = zcz_enter(z, true);

    if (rc == 0)
        rc = zcz_turn(z, 0);
    while (rc == 0 && z->stepping)
        rc = zcz_wait(z, &w);
    if (rc == 0)
        rc = z->store->ops->stats(z->store, &now);
    if (rc < 0)
        return rc;
    *ret = (struct zc_zero_stats){
        .fetched_bytes = z->fetched_bytes,
        .pushed_bytes = z->pushed_bytes,
        .nvme_read_bytes = now.nvme_read_bytes - z->base.nvme_read_bytes,
        .nvme_written_bytes = now.nvme_written_bytes - z->base.nvme_written_bytes,
        .host_bytes = now.host_bytes,
        .nvme_bytes = now.nvme_bytes,
        .gpu_bytes = now.gpu_bytes,
        .grads_nvme_bytes = now.grads_nvme_bytes,
        .gather_buffer_bytes = z->gather_pool.bytes_most + z->wire_pool.bytes_most,
        .grad_buffer_bytes = z->grad_pool.bytes_most,
        .device_bytes = z->gather_dev.bytes_most + z->wire_dev.bytes_most + z->grad_dev.bytes_most +
                        z->store->device_bytes +
                        (z->device.gpu ? z->whole_param.bytes + z->whole_grad.bytes : 0),
        .pinned_bytes = z->device.gpu ? zk_gpu_pinned_bytes(z->device.gpu) : 0,
        .gpu_params_bytes = now.gpu_params_bytes,
        .gpu_why = now.gpu_why ? now.gpu_why : "",
        .comm_bytes = z->gather_bytes + z->reduce_bytes + z->across_bytes + z->other_bytes,
        .comm_gather_bytes = z->gather_bytes,
        .comm_reduce_bytes = z->reduce_bytes,
        .comm_across_bytes = z->across_bytes,
        .stall_seconds = (double)z->stall_ns * 1e-9,
    };
    return 0;
}
