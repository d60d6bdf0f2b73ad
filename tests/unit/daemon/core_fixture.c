#include "tests/unit/daemon/core_fixture.h"

#include "tests/ztest.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define MANY (2 * PAGE + 5000)
const uint64_t unit_elems[UNITS] = { PAGE, MANY, MANY, MANY, MANY, MANY, 100 };

struct answer answers[ANSWERS];
static unsigned worlds; /* each has a file of its own: one that failed keeps its lock */

/* ---- memory that runs out (ld --wrap): allocations of the core, on this thread, are counted */

static _Thread_local bool core_runs;
static unsigned alloc_nth, alloc_times, alloc_count;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);

static bool alloc_fails(void)
{
    return core_runs && ++alloc_count >= alloc_nth && alloc_count - alloc_nth < alloc_times;
}

void *__wrap_malloc(size_t bytes)
{
    return alloc_fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return alloc_fails() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *p, size_t bytes)
{
    return alloc_fails() ? NULL : __real_realloc(p, bytes);
}

void alloc_fail(unsigned nth, unsigned times)
{
    alloc_nth = nth;
    alloc_times = times;
    alloc_count = 0;
}

bool alloc_failed(void)
{
    return alloc_times > 0 && alloc_count >= alloc_nth;
}

void core_entered(bool entered)
{
    core_runs = entered;
}

/* ---- the test's side of conn.h: what is answered is kept */

static struct answer *answer_begin(struct zsd_req *req, int rc)
{
    struct answer *a = &answers[req->tag];

    a->rc = rc;
    a->times++;
    a->lost = !req->conn;
    a->fd = -1;
    a->len = 0;
    free(a->bytes);
    a->bytes = NULL;
    if (req->conn)
        zb_list_remove(&req->conn_node);
    free(req);
    return a;
}

void zsd_reply(struct zsd_req *req, const ProtobufCMessage *message, int fd)
{
    struct answer *a = answer_begin(req, 0);
    bool runs = core_runs;

    core_runs = false;
    if (message) {
        a->len = protobuf_c_message_get_packed_size(message);
        a->bytes = malloc(a->len + 1);
        assert_non_null(a->bytes);
        protobuf_c_message_pack(message, a->bytes);
        assert_true(a->len <= ZP_BODY_MAX);
    }
    a->fd = fd >= 0 && !a->lost ? dup(fd) : -1;
    core_runs = runs;
}

/* Nothing here has a GPU: only the first descriptor is looked at. */
void zsd_reply_fds(struct zsd_req *req, const ProtobufCMessage *message, const int *fds,
                   unsigned nfds)
{
    zsd_reply(req, message, nfds > 0 ? fds[0] : -1);
}

void zsd_reply_err(struct zsd_req *req, const struct zb_err *err)
{
    struct answer *a = answer_begin(req, err->code);

    assert_true(err->code < 0);
    assert_true(err->text[0] != '\0');
    (void)snprintf(a->text, sizeof(a->text), "%s", err->text);
}

void zsd_event(struct zsd_conn *conn, uint16_t event, const ProtobufCMessage *message)
{
    (void)event;
    (void)message;
    zb_container_of(conn, struct client, conn)->events++;
}

bool zsd_may(const struct zsd_conn *conn, uid_t uid)
{
    return conn->uid == uid;
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

/* Turns; then, with something in progress, waits for a thread or the engine to be done. */
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
    for (int i = 0; i < 10000 && (zsd_core_busy(&w->daemon) > 0 || i < 2); i++)
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

void ask_as(struct world *w, unsigned c, unsigned tag, zsd_handler *handler, const void *message)
{
    struct zsd_req *req = calloc(1, sizeof(*req));

    assert_non_null(req);
    assert_true(tag < ANSWERS);
    req->conn = &w->clients[c].conn;
    req->daemon = &w->daemon;
    req->tag = tag;
    zb_list_push_back(&req->conn->reqs, &req->conn_node);
    answers[tag].rc = NONE;
    answers[tag].times = 0;
    core_runs = true;
    handler(req, message);
    core_runs = false;
}

void ask(struct world *w, unsigned c, zsd_handler *handler, const void *message)
{
    ask_as(w, c, c, handler, message);
}

int answer(struct world *w, unsigned tag)
{
    for (int i = 0; i < 10000 && answers[tag].rc == NONE; i++)
        world_turn_wait(w);
    assert_int_not_equal(answers[tag].rc, NONE); /* nothing hangs */
    world_settle(w);
    assert_int_equal(answers[tag].times, 1);
    return answers[tag].rc;
}

int call(struct world *w, unsigned c, zsd_handler *handler, const void *message)
{
    ask(w, c, handler, message);
    return answer(w, c);
}

/* ---- worlds */

void world_open(struct world *w, uint64_t host_bytes, const char *io, uint32_t nclients)
{
    struct zn_options options = { .size_bytes = 8 << 20, .io = io };
    struct zb_err err = { 0 };

    memset(w, 0, sizeof(*w));
    alloc_fail(0, 0);
    (void)snprintf(w->path, sizeof(w->path), "/tmp/ztest-core-%d-%u.data", (int)getpid(), ++worlds);
    options.path = w->path;
    w->daemon.config.host_bytes = host_bytes;
    w->daemon.config.ring_bytes = 1; /* one page buffer */
    w->daemon.config.page_elems = PAGE;
    w->daemon.config.jobs_max = 4;
    w->daemon.config.timeout_ms = 60000;
    w->nclients = nclients;
    assert_int_equal(zk_select(NULL, &w->daemon.kernels, &err), 0);
    assert_int_equal(zsd_compute_new(&w->daemon.compute, 2, "", &err), 0);
    if (io && zn_open(&w->daemon.engine, &options, &err) != 0)
        fail_msg("%s", err.text);
    w->daemon.engine_base = ZN_DATA_START;
    if (zsd_core_new(&w->daemon, &err) != 0)
        fail_msg("%s", err.text);
    for (uint32_t c = 0; c < nclients; c++) {
        w->clients[c].conn.daemon = &w->daemon;
        w->clients[c].conn.uid = 1000;
        zb_list_init(&w->clients[c].conn.reqs);
    }
}

void client_gone(struct world *w, unsigned c)
{
    struct client *client = &w->clients[c];
    struct zb_list *node;

    core_runs = true;
    zsd_core_gone(&client->conn);
    core_runs = false;
    assert_null(client->conn.member);
    assert_null(client->conn.reader);
    while ((node = zb_list_pop_front(&client->conn.reqs)) != NULL)
        zb_container_of(node, struct zsd_req, conn_node)->conn = NULL;
    if (client->staging)
        (void)munmap(client->staging, STAGING);
    client->staging = NULL;
}

static void world_end(struct world *w)
{
    zsd_core_free(&w->daemon);
    for (uint32_t c = 0; c < w->nclients; c++) {
        assert_null(w->clients[c].conn.member);
        assert_null(w->clients[c].conn.reader);
        assert_true(zb_list_empty(&w->clients[c].conn.reqs)); /* everyone was answered */
        if (w->clients[c].staging)
            (void)munmap(w->clients[c].staging, STAGING);
    }
    zsd_compute_free(w->daemon.compute);
    zn_close(w->daemon.engine);
    (void)unlink(w->path);
    for (unsigned i = 0; i < ANSWERS; i++) {
        free(answers[i].bytes);
        memset(&answers[i], 0, sizeof(answers[i]));
    }
}

void world_close(struct world *w)
{
    struct zsd_core *core = w->daemon.core;

    for (uint32_t c = 0; c < w->nclients; c++)
        client_gone(w, c);
    world_settle(w);
    while (!zb_list_empty(&core->jobs)) /* kept ones */
    {
        struct zsd_job *job = zb_container_of(core->jobs.next, struct zsd_job, node);
        Zp__JobName q = ZP__JOB_NAME__INIT;

        q.name = job->name;
        assert_int_equal(call(w, 0, zsd_job_destroy, &q), 0);
    }
    assert_int_equal(zsd_account_used(&core->host), core->nbuffers * core->buffer_bytes);
    assert_int_equal(zsd_account_used(&core->nvme), 0);
    if (core->extents)
        assert_int_equal(zb_space_free_units(core->extents), zb_space_total_units(core->extents));
    assert_int_equal(core->nbuffers_free, core->nbuffers);
    assert_true(zb_list_empty(&core->timed));
    world_end(w);
}

void world_kill(struct world *w)
{
    world_end(w);
}

/* ---- jobs */

void job_open_ask(struct world *w, unsigned c, unsigned tag, const struct open_args *args)
{
    Zp__JobOpen q = ZP__JOB_OPEN__INIT;
    char name[16];

    (void)snprintf(name, sizeof(name), "%s", args->name ? args->name : "j");
    q.name = name;
    q.rank = args->rank;
    q.world = args->world > 0 ? args->world : 1;
    q.keep = args->keep;
    q.durable = args->durable;
    q.attach = args->attach;
    q.early = args->early;
    q.groups = 1;
    q.optimizer = 1;
    q.offload_param = q.offload_optimizer = 2;
    q.staging_bytes = args->staging_bytes > 0 ? args->staging_bytes : STAGING;
    q.host_bytes_max = args->host_bytes_max;
    ask_as(w, c, tag, zsd_job_open, &q);
}

void job_opened(struct world *w, unsigned c, unsigned tag)
{
    struct client *client = &w->clients[c];
    Zp__JobOpenReply *r = zp__job_open_reply__unpack(NULL, answers[tag].len, answers[tag].bytes);

    assert_non_null(r);
    client->job = r->job;
    client->iterations = r->iterations;
    client->staging = mmap(NULL, STAGING, PROT_READ | PROT_WRITE, MAP_SHARED, answers[tag].fd, 0);
    zb_close_fd(&answers[tag].fd);
    assert_ptr_not_equal(client->staging, MAP_FAILED);
    zp__job_open_reply__free_unpacked(r, NULL);
}

int job_open_with(struct world *w, unsigned c, const struct open_args *args)
{
    int rc;

    job_open_ask(w, c, c, args);
    rc = answer(w, c);
    if (rc == 0)
        job_opened(w, c, c);
    return rc;
}

int job_open(struct world *w, unsigned c)
{
    const struct open_args args = { 0 };

    return job_open_with(w, c, &args);
}

static int unit_define(struct world *w, unsigned c, uint32_t u, enum zb_dtype dtype)
{
    char tensor[] = "weight", names[UNITS][2] = { "a", "b", "c", "d", "e", "f", "g" };
    uint64_t dims[1] = { unit_elems[u] };
    Zp__UnitDefine q = ZP__UNIT_DEFINE__INIT;
    Zp__Tensor t = ZP__TENSOR__INIT, *tensors[1] = { &t };

    t.name = tensor;
    t.n_dims = 1;
    t.dims = dims;
    q.job = w->clients[c].job;
    q.unit = u;
    q.name = names[u];
    q.elems = unit_elems[u];
    q.dtype = dtype;
    q.grad_dtype = ZB_F32;
    q.n_tensors = 1;
    q.tensors = tensors;
    q.last = true;
    return call(w, c, zsd_unit_define, &q);
}

uint32_t unit_owner(uint32_t u, uint32_t world)
{
    return world > 1 && (u == 1 || u == 6);
}

int job_register(struct world *w, unsigned c, uint32_t rank, uint32_t world, enum zb_dtype dtype)
{
    struct client *client = &w->clients[c];
    Zp__ShardRegister reg = ZP__SHARD_REGISTER__INIT;
    Zp__Range ranges[UNITS], *list[UNITS];
    Zp__ShardRegisterReply *r;
    int rc = 0;

    memset(client->shards, 0, sizeof(client->shards));
    for (uint32_t u = 0; u < UNITS && rc == 0; u++) {
        rc = unit_define(w, c, u, dtype);
        if (unit_owner(u, world) != rank)
            continue;
        zp__range__init(&ranges[reg.n_ranges]);
        ranges[reg.n_ranges].unit = u;
        ranges[reg.n_ranges].count = zb_padded_elems(unit_elems[u]);
        list[reg.n_ranges] = &ranges[reg.n_ranges];
        reg.n_ranges++;
    }
    if (rc != 0 || reg.n_ranges == 0)
        return rc;
    reg.job = client->job;
    reg.ranges = list;
    rc = call(w, c, zsd_shard_register, &reg);
    if (rc != 0)
        return rc;
    r = zp__shard_register_reply__unpack(NULL, answers[c].len, answers[c].bytes);
    assert_non_null(r);
    for (uint32_t i = 0; i < r->n_shards; i++)
        client->shards[ranges[i].unit] = r->shards[i];
    zp__shard_register_reply__free_unpacked(r, NULL);
    return 0;
}

void job_ready_ask(struct world *w, unsigned c, unsigned tag)
{
    Zp__Ready q = ZP__READY__INIT;

    q.job = w->clients[c].job;
    ask_as(w, c, tag, zsd_ready, &q);
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

struct zsd_job *job_of(struct world *w, unsigned c)
{
    return w->clients[c].conn.member->job;
}
