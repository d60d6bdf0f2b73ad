#include "tests/unit/daemon/core_fixture.h"

#include "tests/ztest.h"

#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define MANY     (2 * PAGE + 5000)
#define HANGS_NS UINT64_C(300000000000) /* a drive may stall for half a minute */
const uint64_t unit_elems[UNITS] = { PAGE, MANY, MANY, MANY, MANY, MANY, 100 };

static unsigned worlds; /* each has its own file, as the file of a failed one stays locked */

/* ---- allocation failures: allocations of the core on this thread are counted */

static bool in_core(void)
{
    return core_runs;
}

void core_entered(bool entered)
{
    core_runs = entered;
}

/* ---- turning */

void world_turn(struct world *w)
{
    core_runs = true;
    zsd_core_turn(&w->daemon);
    if (w->daemon.engine)
        (void)zn_reap(w->daemon.engine, 16);
    (void)zsd_compute_reap(w->daemon.compute, 16);
    if (w->daemon.catalog_thread)
        (void)zsd_compute_reap(w->daemon.catalog_thread, 16);
    core_runs = false;
}

/* Turns; then, if something is in progress, waits for a thread or the engine. */
static void world_turn_wait(struct world *w)
{
    struct pollfd fds[3] = { { .fd = zsd_compute_wake_fd(w->daemon.compute), .events = POLLIN },
                             { .fd = -1, .events = POLLIN },
                             { .fd = -1, .events = POLLIN } };
    eventfd_t n;

    if (w->daemon.engine)
        fds[1].fd = zn_wake_fd(w->daemon.engine);
    if (w->daemon.catalog_thread)
        fds[2].fd = zsd_compute_wake_fd(w->daemon.catalog_thread);
    world_turn(w);
    if (zsd_core_busy(&w->daemon) == 0 || !zb_list_empty(&w->daemon.core->works))
        return;
    (void)poll(fds, 3, 1);
    for (int i = 0; i < 3; i++)
        if (fds[i].revents != 0)
            (void)eventfd_read(fds[i].fd, &n);
}

void world_settle(struct world *w)
{
    const uint64_t end = zb_now_ns() + HANGS_NS;

    for (int i = 0; i < 2 || (zsd_core_busy(&w->daemon) > 0 && zb_now_ns() < end); i++)
        world_turn_wait(w);
    assert_int_equal(zsd_core_busy(&w->daemon), 0);
    world_turn(w);
}

void world_expire(struct world *w)
{
    core_runs = true;
    zsd_core_tick(&w->daemon, UINT64_MAX);
    core_runs = false;
}

int answer(struct world *w, unsigned tag)
{
    const uint64_t end = zb_now_ns() + HANGS_NS;

    while (answers[tag].rc == NONE && zb_now_ns() < end)
        world_turn_wait(w);
    assert_int_not_equal(answers[tag].rc, NONE); /* nothing hangs */
    world_settle(w);
    assert_int_equal(answers[tag].times, 1);
    return answers[tag].rc;
}

/* ---- worlds */

void world_open(struct world *w, uint64_t host_bytes, const char *io, uint32_t nclients)
{
    world_open_sized(w, host_bytes, io, nclients, 8 << 20, PAGE);
}

void world_open_sized(struct world *w, uint64_t host_bytes, const char *io, uint32_t nclients,
                      uint64_t file_bytes, uint32_t page_elems)
{
    struct zn_options options = { .size_bytes = file_bytes, .io = io };
    struct zb_err err = { 0 };

    *w = (struct world){ .staging_bytes = STAGING, .answer = answer };
    alloc_counts = in_core;
    alloc_fail(0, 0);
    (void)snprintf(w->path, sizeof(w->path), "%s/ztest-core-%d-%u.data", ztest_folder(),
                   (int)getpid(), ++worlds);
    options.path = w->path;
    w->daemon.config.host_bytes = host_bytes;
    w->daemon.config.ring_bytes = 1; /* one page buffer */
    w->daemon.config.page_elems = page_elems;
    w->daemon.config.jobs_max = 4;
    w->daemon.config.timeout_ms = 60000;
    w->daemon.engine_base = ZN_DATA_START;
    if ((io && zn_open(&w->daemon.engine, &options, &err) != 0) || world_up(w, nclients, &err) != 0)
        fail_msg("%s", err.text);
}

static void world_end(struct world *w)
{
    world_down(w);
    (void)unlink(w->path);
}

void world_close(struct world *w)
{
    struct zsd_core *core = w->daemon.core;

    for (uint32_t c = 0; c < w->nclients; c++)
        client_gone(w, c);
    world_settle(w);
    while (!zb_list_empty(&core->jobs->list)) /* kept jobs */
    {
        struct zsd_job *job = zb_container_of(core->jobs->list.next, struct zsd_job, node);
        Zp__JobName q = ZP__JOB_NAME__INIT;

        q.name = job->name;
        assert_int_equal(call(w, 0, zsd_job_destroy, &q), 0);
    }
    assert_int_equal(zsd_account_used(&core->tiers.host),
                     core->disk->nbuffers * core->disk->buffer_bytes);
    assert_int_equal(zsd_account_used(&core->tiers.nvme), 0);
    if (core->disk->extents)
        assert_int_equal(zb_space_free_units(core->disk->extents),
                         zb_space_total_units(core->disk->extents));
    assert_int_equal(core->disk->nbuffers_free, core->disk->nbuffers);
    assert_true(zsd_wheel_empty(&core->wheel));
    world_end(w);
}

void world_kill(struct world *w)
{
    world_end(w);
}

/* ---- jobs */

int job_open(struct world *w, unsigned c)
{
    const struct open_args args = { 0 };

    return job_open_with(w, c, &args);
}

uint32_t unit_owner(uint32_t u, uint32_t world)
{
    return world > 1 && (u == 1 || u == 6);
}

int job_register(struct world *w, unsigned c, uint32_t rank, uint32_t world, enum zb_dtype dtype)
{
    static const char *const names[UNITS] = { "a", "b", "c", "d", "e", "f", "g" };
    int rc = 0;

    for (uint32_t u = 0; u < UNITS && rc == 0; u++) {
        const struct unit unit = { .name = names[u],
                                   .elems = unit_elems[u],
                                   .dtype = dtype,
                                   .grad_dtype = ZB_F32,
                                   .tensors = { { .count = unit_elems[u] } },
                                   .ntensors = 1 };
        bool owned = unit_owner(u, world) == rank;

        rc = unit_define(w, c, u, &unit);
        w->clients[c].count[u] = owned ? zb_padded_elems(unit_elems[u]) : 0;
    }
    return rc == 0 ? shards_register(w, c, UNITS) : rc;
}

int job_define(struct world *w, unsigned c, enum zb_dtype dtype)
{
    int rc = job_register(w, c, 0, 1, dtype);

    if (rc != 0)
        return rc;
    job_ready_ask(w, c, c);
    rc = answer(w, c);
    if (rc == 0)
        zb_close_fd(&answers[c].fd);
    return rc;
}

int ranges_register(struct world *w, const uint64_t *firsts, uint32_t n)
{
    static Zp__Range ranges[ZP_SHARDS_MAX], *list[ZP_SHARDS_MAX];
    Zp__ShardRegister q = ZP__SHARD_REGISTER__INIT;

    for (uint32_t i = 0; i < n; i++) {
        zp__range__init(&ranges[i]);
        ranges[i].first = firsts[i];
        ranges[i].count = ZB_BLOCK_ELEMS;
        list[i] = &ranges[i];
    }
    q.job = w->clients[0].job;
    q.n_ranges = n;
    q.ranges = list;
    return call(w, 0, zsd_shard_register, &q);
}
