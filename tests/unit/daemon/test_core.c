/*
 * The core without a loop and without sockets: clients are structs, answers are recorded, and the
 * test turns the core by hand. So every transfer of a training run can be made to fail, one after
 * the other.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "daemon/job.h"
#include "nvme/engine_fault.h"
#include "proto/shard.pb-c.h"

#define PAGE    8192u /* elements */
#define UNITS   7u
#define STAGING (1u << 20)
#define NONE    1234 /* no answer yet */

/* Odd sizes: one page; two pages and a tail, more of them than the ring has places; less than a
 * block. */
#define MANY (2 * PAGE + 5000)
static const uint64_t unit_elems[UNITS] = { PAGE, MANY, MANY, MANY, MANY, MANY, 100 };

struct client {
    struct zsd_conn conn;
    uint8_t *staging;
    uint64_t job;
    uint64_t shards[UNITS];
    int events;
};

struct world {
    struct zsd daemon;
    char path[64];
    struct client clients[2];
    uint32_t nclients;
};

/* ---- the test's side of conn.h: what is answered is kept */

static struct {
    int rc; /* NONE, 0 or the code */
    char text[480];
    uint8_t *bytes; /* the packed reply */
    size_t len;
    int fd;
    unsigned times;
} answers[2];

static unsigned answer_of(const struct zsd_req *req)
{
    return (unsigned)req->tag;
}

void zsd_reply(struct zsd_req *req, const ProtobufCMessage *message, int fd)
{
    unsigned i = answer_of(req);

    answers[i].rc = 0;
    answers[i].times++;
    free(answers[i].bytes);
    answers[i].bytes = NULL;
    answers[i].len = 0;
    if (message) {
        answers[i].len = protobuf_c_message_get_packed_size(message);
        answers[i].bytes = malloc(answers[i].len + 1);
        protobuf_c_message_pack(message, answers[i].bytes);
    }
    answers[i].fd = fd >= 0 ? dup(fd) : -1;
    free(req);
}

void zsd_reply_err(struct zsd_req *req, const struct zb_err *err)
{
    unsigned i = answer_of(req);

    assert_true(err->code < 0);
    assert_true(err->text[0] != '\0');
    answers[i].rc = err->code;
    answers[i].times++;
    (void)snprintf(answers[i].text, sizeof(answers[i].text), "%s", err->text);
    free(req);
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

static void world_turn(struct world *w)
{
    zsd_core_turn(&w->daemon);
    if (w->daemon.engine)
        (void)zn_reap(w->daemon.engine, 16);
    (void)zsd_compute_reap(w->daemon.compute, 16);
}

static void world_settle(struct world *w)
{
    for (int i = 0; i < 100000 && (zsd_core_busy(&w->daemon) > 0 || i < 2); i++) {
        world_turn(w);
        if (i > 50)
            (void)usleep(100);
    }
    assert_int_equal(zsd_core_busy(&w->daemon), 0);
}

static void ask(struct world *w, unsigned c, zsd_handler *handler, const void *message)
{
    struct zsd_req *req = calloc(1, sizeof(*req));

    req->conn = &w->clients[c].conn;
    req->daemon = &w->daemon;
    req->tag = c;
    zb_list_init(&req->conn_node);
    answers[c].rc = NONE;
    answers[c].times = 0;
    handler(req, message);
}

static int answer(struct world *w, unsigned c)
{
    for (int i = 0; i < 100000 && answers[c].rc == NONE; i++) {
        world_turn(w);
        if (i > 50)
            (void)usleep(100);
    }
    assert_int_not_equal(answers[c].rc, NONE); /* nothing hangs */
    world_settle(w);
    assert_int_equal(answers[c].times, 1);
    return answers[c].rc;
}

static int call(struct world *w, unsigned c, zsd_handler *handler, const void *message)
{
    ask(w, c, handler, message);
    return answer(w, c);
}

/* ---- a world: a data file, an engine, a pool, a core */

static void world_open(struct world *w, uint64_t host_bytes, const char *io, uint32_t nclients)
{
    struct zn_options options = { .size_bytes = 8 << 20, .io = io };
    struct zb_err err = { 0 };

    memset(w, 0, sizeof(*w));
    (void)snprintf(w->path, sizeof(w->path), "/tmp/ztest-core-%d.data", (int)getpid());
    options.path = w->path;
    w->daemon.config.host_bytes = host_bytes;
    w->daemon.config.ring_bytes = 1; /* one page buffer */
    w->daemon.config.page_elems = PAGE;
    w->daemon.config.jobs_max = 4;
    w->daemon.config.timeout_ms = 60000;
    w->nclients = nclients;
    assert_int_equal(zk_select(NULL, &w->daemon.kernels, &err), 0);
    assert_int_equal(zsd_compute_new(&w->daemon.compute, 2, "", &err), 0);
    if (zn_open(&w->daemon.engine, &options, &err) != 0)
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

static void client_gone(struct world *w, unsigned c)
{
    struct client *client = &w->clients[c];

    zsd_core_gone(&client->conn);
    if (client->staging)
        (void)munmap(client->staging, STAGING);
    client->staging = NULL;
}

/* Whatever happened: when the clients are gone, every byte is back. */
static void world_close(struct world *w)
{
    struct zsd_core *core = w->daemon.core;

    for (uint32_t c = 0; c < w->nclients; c++)
        client_gone(w, c);
    world_settle(w);
    assert_true(zb_list_empty(&core->jobs));
    assert_int_equal(zsd_account_used(&core->host), core->nbuffers * core->buffer_bytes);
    assert_int_equal(zsd_account_used(&core->nvme), 0);
    assert_int_equal(zb_space_free_units(core->extents), zb_space_total_units(core->extents));
    assert_int_equal(core->nbuffers_free, core->nbuffers);
    assert_true(zb_list_empty(&core->timed));
    zsd_core_free(&w->daemon);
    zsd_compute_free(w->daemon.compute);
    zn_close(w->daemon.engine);
    (void)unlink(w->path);
    for (unsigned c = 0; c < 2; c++) {
        free(answers[c].bytes);
        memset(&answers[c], 0, sizeof(answers[c]));
    }
}

/* ---- a model of the truth: the same pages in plain memory */

struct truth {
    struct zk_page pages[UNITS];
    struct zb_layout layout;
};

static void truth_open(struct truth *t, enum zb_dtype dtype)
{
    assert_int_equal(zb_layout_of(dtype, ZB_F32, false, &t->layout, NULL), 0);
    for (uint32_t u = 0; u < UNITS; u++) {
        struct zk_page *p = &t->pages[u];

        p->first = 0;
        p->count = zb_padded_elems(unit_elems[u]);
        p->param = aligned_alloc(64, p->count * t->layout.elem_bytes[ZB_PARAM]);
        p->state = aligned_alloc(64, p->count * t->layout.elem_bytes[ZB_STATE]);
        p->grad = aligned_alloc(64, p->count * t->layout.elem_bytes[ZB_GRAD]);
    }
}

static void truth_close(struct truth *t)
{
    for (uint32_t u = 0; u < UNITS; u++) {
        free(t->pages[u].param);
        free(t->pages[u].state);
        free(t->pages[u].grad);
    }
}

static float value(uint32_t unit, uint64_t elem, uint64_t salt)
{
    uint64_t seed = salt << 40 ^ (uint64_t)unit << 32 ^ elem;

    return (float)(int64_t)ztest_random(&seed) * 0x1p-64f;
}

/* ---- the workload */

static int job_open(struct world *w, unsigned c)
{
    Zp__JobOpen q = ZP__JOB_OPEN__INIT;
    Zp__JobOpenReply *r;
    char name[] = "j";
    int rc;

    q.name = name;
    q.rank = 0;
    q.world = 1;
    q.groups = 1;
    q.optimizer = 1;
    q.offload_param = q.offload_optimizer = 2;
    q.staging_bytes = STAGING;
    rc = call(w, c, zsd_job_open, &q);
    if (rc != 0)
        return rc;
    r = zp__job_open_reply__unpack(NULL, answers[c].len, answers[c].bytes);
    w->clients[c].job = r->job;
    w->clients[c].staging =
        mmap(NULL, STAGING, PROT_READ | PROT_WRITE, MAP_SHARED, answers[c].fd, 0);
    (void)close(answers[c].fd);
    assert_ptr_not_equal(w->clients[c].staging, MAP_FAILED);
    zp__job_open_reply__free_unpacked(r, NULL);
    return 0;
}

static int job_define(struct world *w, unsigned c, enum zb_dtype dtype)
{
    char tensor[] = "weight", names[UNITS][2] = { "a", "b", "c", "d", "e", "f", "g" };
    Zp__ShardRegister reg = ZP__SHARD_REGISTER__INIT;
    Zp__Range ranges[UNITS], *list[UNITS];
    Zp__ShardRegisterReply *r;
    Zp__Ready ready = ZP__READY__INIT;
    int rc;

    for (uint32_t u = 0; u < UNITS; u++) {
        Zp__UnitDefine q = ZP__UNIT_DEFINE__INIT;
        Zp__Tensor t = ZP__TENSOR__INIT, *tensors[1] = { &t };
        uint64_t dims[1] = { unit_elems[u] };

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
        assert_int_equal(call(w, c, zsd_unit_define, &q), 0);
        zp__range__init(&ranges[u]);
        ranges[u].unit = u;
        ranges[u].count = zb_padded_elems(unit_elems[u]);
        list[u] = &ranges[u];
    }
    reg.job = w->clients[c].job;
    reg.n_ranges = UNITS;
    reg.ranges = list;
    assert_int_equal(call(w, c, zsd_shard_register, &reg), 0);
    r = zp__shard_register_reply__unpack(NULL, answers[c].len, answers[c].bytes);
    memcpy(w->clients[c].shards, r->shards, sizeof(w->clients[c].shards));
    zp__shard_register_reply__free_unpacked(r, NULL);
    ready.job = w->clients[c].job;
    rc = call(w, c, zsd_ready, &ready);
    if (rc == 0)
        (void)close(answers[c].fd);
    return rc;
}

static int unit_write(struct world *w, unsigned c, uint32_t u, struct truth *t)
{
    Zp__Write q = ZP__WRITE__INIT;
    float *master = (float *)(void *)w->clients[c].staging;

    q.shard = w->clients[c].shards[u];
    q.count = zb_padded_elems(unit_elems[u]);
    for (uint64_t e = 0; e < q.count; e++)
        master[e] = e < unit_elems[u] ? value(u, e, 1) : 0;
    zk_page_init(w->daemon.kernels, &t->layout, &t->pages[u], master);
    return call(w, c, zsd_write, &q);
}

static int unit_push(struct world *w, unsigned c, uint32_t u, struct truth *t, uint64_t step)
{
    struct zk_xsum sum = { 0 };
    uint64_t bad = 0;
    int rc = 0;

    for (uint32_t micro = 0; micro < 2 && rc == 0; micro++) {
        Zp__Push q = ZP__PUSH__INIT;
        float *grad = (float *)(void *)w->clients[c].staging;

        q.shard = w->clients[c].shards[u];
        q.step = step;
        q.micro = micro;
        q.mode = micro == 0 ? 1 : 2;
        q.dtype = ZB_F32;
        q.count = zb_padded_elems(unit_elems[u]);
        for (uint64_t e = 0; e < q.count; e++)
            grad[e] = e < unit_elems[u] ? value(u, e, 10 * step + micro) : 0;
        zk_page_ingest(w->daemon.kernels, &t->layout, &t->pages[u], grad, ZB_F32, micro > 0, &sum,
                       &bad);
        rc = call(w, c, zsd_push, &q);
    }
    return rc;
}

static int job_step(struct world *w, unsigned c, struct truth *t, uint64_t step)
{
    static const struct zk_adamw_params params = { 1e-2, 0.9, 0.95, 1e-8, 0.1, 0.25 };
    struct zk_adamw scalars = zk_adamw_prepare(&params, step);
    Zp__Step q = ZP__STEP__INIT;
    Zp__GroupScalars g = ZP__GROUP_SCALARS__INIT, *groups[1] = { &g };
    int rc;

    g.lr = params.lr;
    g.beta1 = params.beta1;
    g.beta2 = params.beta2;
    g.eps = params.eps;
    g.weight_decay = params.weight_decay;
    q.job = w->clients[c].job;
    q.step = step;
    q.scale = params.scale;
    q.n_groups = 1;
    q.groups = groups;
    rc = call(w, c, zsd_step, &q);
    for (uint32_t u = 0; u < UNITS && rc == 0; u++) {
        const struct zk_segment all = { 0, unit_elems[u], 0 };

        zk_page_step(w->daemon.kernels, &t->layout, &t->pages[u], &all, 1, &scalars);
    }
    return rc;
}

/* What is read is what the truth says, or an error: never other bytes. */
static int unit_compare(struct world *w, unsigned c, uint32_t u, struct truth *t)
{
    int rc = 0;

    for (enum zk_what what = ZK_PARAM; what <= ZK_EXP_AVG_SQ && rc == 0; what++) {
        uint64_t count = zb_padded_elems(unit_elems[u]);
        size_t bytes = count * (what == ZK_PARAM ? t->layout.elem_bytes[ZB_PARAM] : sizeof(float));
        float *want = malloc(count * sizeof(float));
        Zp__Read q = ZP__READ__INIT;

        zk_page_read(w->daemon.kernels, &t->layout, &t->pages[u], what, want);
        q.shard = w->clients[c].shards[u];
        q.what = what;
        q.count = count;
        memset(w->clients[c].staging, 0x5a, bytes);
        rc = call(w, c, zsd_read, &q);
        if (rc == 0)
            assert_memory_equal(w->clients[c].staging, want, bytes);
        free(want);
    }
    return rc;
}

static int unit_fetch(struct world *w, unsigned c, uint32_t u, struct truth *t, uint64_t version)
{
    Zp__Fetch q = ZP__FETCH__INIT;
    Zp__Release r = ZP__RELEASE__INIT;
    Zp__FetchReply *reply;
    const struct zsd_job *job = w->clients[c].conn.member->job;
    int rc;

    q.n_shards = 1;
    q.shards = &w->clients[c].shards[u];
    q.min_version = version;
    rc = call(w, c, zsd_fetch, &q);
    if (rc != 0)
        return rc;
    reply = zp__fetch_reply__unpack(NULL, answers[c].len, answers[c].bytes);
    assert_int_equal(reply->n_items, 1);
    assert_int_equal(reply->items[0]->version, version);
    assert_int_equal(job->pins, 1);
    assert_memory_equal(job->arena.base + reply->items[0]->offset, t->pages[u].param,
                        reply->items[0]->bytes);
    zp__fetch_reply__free_unpacked(reply, NULL);
    r.n_shards = 1;
    r.shards = q.shards;
    zsd_release(&w->clients[c].conn, &r.base);
    assert_int_equal(job->pins, 0);
    return 0;
}

/* A small training run; the first failure ends it and is returned. */
static int train(struct world *w, struct truth *t, enum zb_dtype dtype, uint64_t steps)
{
    int rc = job_open(w, 0);

    if (rc == 0)
        rc = job_define(w, 0, dtype);
    for (uint32_t u = 0; u < UNITS && rc == 0; u++)
        rc = unit_write(w, 0, u, t);
    for (uint64_t step = 1; step <= steps && rc == 0; step++) {
        for (uint32_t u = 0; u < UNITS && rc == 0; u++)
            rc = unit_fetch(w, 0, u, t, step - 1);
        for (uint32_t u = UNITS; u-- > 0 && rc == 0;)
            rc = unit_push(w, 0, u, t, step);
        if (rc == 0)
            rc = job_step(w, 0, t, step);
        for (uint32_t u = 0; u < UNITS && rc == 0; u++)
            rc = unit_compare(w, 0, u, t);
    }
    for (uint32_t u = 0; u < UNITS && rc == 0; u++)
        rc = unit_fetch(w, 0, u, t, steps);
    return rc;
}

/* ---- tests */

/* The least budget that admission names, found by asking. */
static uint64_t least_host(enum zb_dtype dtype)
{
    struct world w;
    uint64_t least;

    world_open(&w, 4 << 20, "threads", 1);
    assert_int_equal(job_open(&w, 0), 0);
    w.daemon.core->host.budget = zsd_account_used(&w.daemon.core->host); /* nothing is left */
    assert_int_equal(job_define(&w, 0, dtype), -ENOSPC);
    assert_non_null(strstr(answers[0].text, "least host_bytes"));
    least = strtoull(strrchr(answers[0].text, ' '), NULL, 10);
    world_close(&w);
    return least;
}

static void core_trains(void **state)
{
    static const char *const engines[] = { "uring", "threads" };

    (void)state;
    for (int dtype = ZB_F32; dtype <= ZB_BF16; dtype++)
        for (size_t e = 0; e < ZB_COUNT(engines); e++) {
            uint64_t least = least_host(dtype);

            for (uint64_t host = least; host <= least + (3 << 20); host += 700 * 1000) {
                struct world w;
                struct truth t;

                world_open(&w, host, engines[e], 1);
                truth_open(&t, dtype);
                if (train(&w, &t, dtype, 3) != 0)
                    fail_msg("%s, host_bytes %llu: %s", engines[e], (unsigned long long)host,
                             answers[0].text);
                assert_true(host > least || w.clients[0].conn.member->job->nvme_written_bytes > 0);
                truth_close(&t);
                world_close(&w);
            }
        }
}

static void core_least_is_least(void **state)
{
    (void)state;
    for (int dtype = ZB_F32; dtype <= ZB_BF16; dtype++) {
        uint64_t least = least_host(dtype);
        struct world w;

        world_open(&w, least - 1, "threads", 1);
        assert_int_equal(job_open(&w, 0), 0);
        assert_int_equal(job_define(&w, 0, dtype), -ENOSPC);
        world_close(&w);
        world_open(&w, least, "threads", 1);
        assert_int_equal(job_open(&w, 0), 0);
        assert_int_equal(job_define(&w, 0, dtype), 0);
        world_close(&w);
    }
}

/* The n-th transfer fails, for every n that the run gets to: the run reports it, no other bytes are
 * ever seen (train() compares), nothing hangs, and everything is given back. */
static void core_with_every_failure(void **state)
{
    uint64_t least = least_host(ZB_BF16);
    bool failed = true;
    unsigned nth;

    (void)state;
    for (nth = 1; failed; nth++) {
        struct zn_fault plan = { .nth = nth, .nth_res = -EIO };
        struct world w;
        struct truth t;
        int rc;

        world_open(&w, least, nth % 2 ? "threads" : "uring", 1);
        truth_open(&t, ZB_BF16);
        assert_int_equal(zn_fault_install(w.daemon.engine, &plan), 0);
        rc = train(&w, &t, ZB_BF16, 1);
        failed = zn_fault_seen(w.daemon.engine) >= nth;
        assert_int_equal(rc, failed ? -EIO : 0);
        truth_close(&t);
        world_close(&w);
    }
    assert_true(nth > 100); /* the workload does stream */
}

static void core_heals_short_transfers(void **state)
{
    struct zn_fault plan = { .short_every = 2, .again_every = 5, .lifo = true };
    uint64_t least = least_host(ZB_F32);
    struct world w;
    struct truth t;

    (void)state;
    world_open(&w, least, "uring", 1);
    truth_open(&t, ZB_F32);
    assert_int_equal(zn_fault_install(w.daemon.engine, &plan), 0);
    assert_int_equal(train(&w, &t, ZB_F32, 3), 0);
    truth_close(&t);
    world_close(&w);
}

/* A page that was changed on the device is an error of the fetch and of the step, and never bytes.
 */
static void core_detects_corruption(void **state)
{
    uint64_t least = least_host(ZB_BF16);

    (void)state;
    for (int plane = ZB_PARAM; plane <= ZB_STATE; plane += ZB_STATE - ZB_PARAM) {
        struct world w;
        struct truth t;
        struct zsd_shard *s;
        uint8_t byte;
        int fd, rc;
        uint64_t at;

        world_open(&w, least, "threads", 1);
        truth_open(&t, ZB_BF16);
        assert_int_equal(train(&w, &t, ZB_BF16, 3), 0);
        s = w.clients[0].conn.member->job->shards[1];
        at = w.daemon.engine_base + s->planes[plane].extents[1].at + 777;
        fd = open(w.path, O_RDWR | O_CLOEXEC);
        assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
        byte ^= 4;
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
        (void)close(fd);
        if (plane == ZB_PARAM) {
            assert_int_equal(unit_fetch(&w, 0, 1, &t, 3), -EBADMSG);
            assert_int_equal(unit_fetch(&w, 0, 1, &t, 3), -EBADMSG); /* again: still */
            assert_int_equal(unit_fetch(&w, 0, 0, &t, 3), 0);        /* others are whole */
        } else {
            assert_int_equal(unit_compare(&w, 0, 1, &t), -EBADMSG);
        }
        for (uint32_t u = 0; u < UNITS; u++)
            assert_int_equal(unit_push(&w, 0, u, &t, 4), 0);
        rc = job_step(&w, 0, &t, 4);
        assert_int_equal(rc, -EBADMSG);
        assert_non_null(strstr(answers[0].text, "unit 'b'"));
        assert_non_null(strstr(answers[0].text, "page 1"));
        assert_int_equal(w.clients[0].events, 1); /* the job failed, and everyone heard it */
        assert_int_equal(unit_fetch(&w, 0, 0, &t, 3), -EBADMSG); /* and stays so */
        truth_close(&t);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(core_trains),
        cmocka_unit_test(core_least_is_least),
        cmocka_unit_test(core_with_every_failure),
        cmocka_unit_test(core_heals_short_transfers),
        cmocka_unit_test(core_detects_corruption),
    };

    zk_thread_init();
    zb_log_set_level(ZB_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
