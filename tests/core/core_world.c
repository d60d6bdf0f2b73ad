#include "tests/core/core_world.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

struct answer answers[ANSWERS];
_Thread_local bool core_runs;

static void wrong(const char *what)
{
    fail_msg("%s", what);
}

void (*world_wrong)(const char *what) = wrong;

/* ---- the test's side of conn.h: answers are recorded */

static struct answer *answer_begin(struct zsd_req *req, int rc)
{
    struct answer *a = &answers[req->tag];

    if (a->times > 0)
        world_wrong("a request is answered twice");
    a->rc = rc;
    a->times++;
    a->lost = !req->conn;
    a->fd = -1;
    a->len = 0;
    a->text[0] = '\0';
    free(a->bytes);
    a->bytes = NULL;
    if (req->conn) {
        zsd_req_waited(req);
        zb_list_remove(&req->conn_node);
    }
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
        (void)protobuf_c_message_pack(message, a->bytes);
        if (a->len > ZP_BODY_MAX)
            world_wrong("a reply is longer than a frame");
    }
    a->fd = fd >= 0 && !a->lost ? dup(fd) : -1;
    core_runs = runs;
}

/* Nothing here has a GPU: only the first descriptor is checked. */
void zsd_reply_fds(struct zsd_req *req, const ProtobufCMessage *message, const int *fds,
                   unsigned nfds)
{
    zsd_reply(req, message, nfds > 0 ? fds[0] : -1);
}

void zsd_reply_err(struct zsd_req *req, const struct zb_err *err)
{
    struct answer *a = answer_begin(req, err->code);

    if (err->code >= 0 || err->text[0] == '\0')
        world_wrong("a refusal without a code or an error message");
    (void)snprintf(a->text, sizeof(a->text), "%s", err->text);
}

void zsd_event(struct zsd_conn *conn, uint16_t event, const ProtobufCMessage *message)
{
    (void)event;
    (void)message;
    zb_container_of(conn, struct client, conn)->events++;
}

bool zsd_admin(const struct zsd_conn *conn)
{
    return zsd_may(conn, geteuid());
}

bool zsd_may(const struct zsd_conn *conn, uid_t uid)
{
    return conn->uid == uid;
}

/* ---- clients */

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

int call(struct world *w, unsigned c, zsd_handler *handler, const void *message)
{
    ask(w, c, handler, message);
    return w->answer(w, c);
}

static void client_unmap(struct client *client)
{
    if (client->staging)
        (void)munmap(client->staging, client->staging_bytes);
    client->staging = NULL;
}

void client_gone(struct world *w, unsigned c)
{
    struct client *client = &w->clients[c];
    struct zb_list *node;

    core_runs = true;
    zsd_core_gone(&client->conn);
    core_runs = false;
    if (client->conn.member || client->conn.reader)
        world_wrong("a client that is gone is still known");
    while ((node = zb_list_pop_front(&client->conn.reqs)) != NULL)
        zb_container_of(node, struct zsd_req, conn_node)->conn = NULL;
    client_unmap(client);
}

/* ---- up and down */

int world_up(struct world *w, uint32_t nclients, struct zb_err *err)
{
    int rc;

    assert_true(nclients <= CLIENTS_MAX);
    for (unsigned i = 0; i < ANSWERS; i++)
        answers[i] = (struct answer){ .fd = -1 };
    w->nclients = nclients;
    for (uint32_t c = 0; c < nclients; c++) {
        w->clients[c].conn.daemon = &w->daemon;
        w->clients[c].conn.uid = 1000;
        zb_list_init(&w->clients[c].conn.reqs);
    }
    rc = zk_select(NULL, &w->daemon.kernels, err);
    if (rc == 0)
        rc = zsd_compute_new(&w->daemon.compute, 2, "", err);
    return rc == 0 ? zsd_core_new(&w->daemon, err) : rc;
}

void world_down(struct world *w)
{
    zsd_core_free(&w->daemon);
    for (uint32_t c = 0; c < w->nclients; c++) {
        const struct zsd_conn *conn = &w->clients[c].conn;

        if (conn->member || conn->reader || !zb_list_empty(&conn->reqs))
            world_wrong("a client has a rank, a reader, or no answer when the core is gone");
        client_unmap(&w->clients[c]);
    }
    zsd_compute_free(w->daemon.compute);
    w->daemon.compute = NULL;
    zsd_paths_close(&w->daemon);
    zn_close(w->daemon.engine);
    w->daemon.engine = NULL;
    for (unsigned i = 0; i < ANSWERS; i++) {
        free(answers[i].bytes);
        answers[i].bytes = NULL;
    }
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
    q.takeover = args->takeover;
    q.early = args->early;
    q.grad_ring = args->grad_ring;
    q.grad_ring_limits = q.tensor_norms = args->ring_limits;
    q.returns = args->returns;
    q.epoch = args->epoch;
    q.groups = args->groups > 0 ? args->groups : 1;
    q.optimizer = args->optimizer > 0 ? args->optimizer : ZB_ADAMW;
    q.offload_param = q.offload_optimizer = 2;
    q.staging_bytes = args->staging_bytes > 0 ? args->staging_bytes : w->staging_bytes;
    q.host_bytes_max = args->host_bytes_max;
    q.device_node = args->device_node;
    ask_as(w, c, tag, zsd_job_open, &q);
}

void job_opened(struct world *w, unsigned c, unsigned tag)
{
    struct client *client = &w->clients[c];
    struct answer *a = &answers[tag];
    Zp__JobOpenReply *r = zp__job_open_reply__unpack(NULL, a->len, a->bytes);

    assert_non_null(r);
    client->job = r->job;
    client->iterations = r->iterations;
    client->staging_bytes = r->staging_bytes;
    client->staging =
        mmap(NULL, client->staging_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0);
    assert_ptr_not_equal(client->staging, MAP_FAILED);
    zb_close_fd(&a->fd);
    zp__job_open_reply__free_unpacked(r, NULL);
}

int job_open_with(struct world *w, unsigned c, const struct open_args *args)
{
    int rc;

    job_open_ask(w, c, c, args);
    rc = w->answer(w, c);
    if (rc == 0)
        job_opened(w, c, c);
    return rc;
}

struct zsd_job *job_of(struct world *w, unsigned c)
{
    return w->clients[c].conn.member->job;
}

int unit_define(struct world *w, unsigned c, uint32_t index, const struct unit *unit)
{
    static const char *const names[UNIT_TENSORS] = { "a", "b", "c", "d" };
    Zp__UnitDefine q = ZP__UNIT_DEFINE__INIT;
    Zp__Tensor tensors[UNIT_TENSORS], *list[UNIT_TENSORS];
    uint64_t dims[UNIT_TENSORS];

    for (unsigned t = 0; t < unit->ntensors; t++) {
        zp__tensor__init(&tensors[t]);
        tensors[t].name = (char *)(uintptr_t)names[t];
        tensors[t].first = unit->tensors[t].first;
        tensors[t].group = unit->tensors[t].group;
        tensors[t].n_dims = 1;
        tensors[t].dims = &dims[t];
        dims[t] = unit->tensors[t].count;
        list[t] = &tensors[t];
    }
    q.job = w->clients[c].job;
    q.unit = index;
    q.name = (char *)(uintptr_t)unit->name;
    q.elems = unit->elems;
    q.dtype = unit->dtype;
    q.grad_dtype = unit->grad_dtype;
    q.frozen = unit->frozen;
    q.quantized = unit->quantized;
    q.n_tensors = unit->ntensors;
    q.tensors = list;
    q.last = true;
    return call(w, c, zsd_unit_define, &q);
}

int shards_register(struct world *w, unsigned c, uint32_t n)
{
    struct client *client = &w->clients[c];
    Zp__ShardRegister q = ZP__SHARD_REGISTER__INIT;
    Zp__Range ranges[UNITS_MAX], *list[UNITS_MAX];
    Zp__ShardRegisterReply *r;
    int rc;

    memset(client->shards, 0, sizeof(client->shards));
    for (uint32_t u = 0; u < n; u++) {
        Zp__Range *range = &ranges[q.n_ranges];

        if (client->count[u] == 0)
            continue;
        zp__range__init(range);
        range->unit = u;
        range->first = client->first[u];
        range->count = client->count[u];
        list[q.n_ranges++] = range;
    }
    if (q.n_ranges == 0)
        return 0;
    q.job = client->job;
    q.ranges = list;
    rc = call(w, c, zsd_shard_register, &q);
    if (rc != 0)
        return rc;
    r = zp__shard_register_reply__unpack(NULL, answers[c].len, answers[c].bytes);
    assert_non_null(r);
    for (size_t i = 0; i < r->n_shards; i++)
        client->shards[ranges[i].unit] = r->shards[i];
    zp__shard_register_reply__free_unpacked(r, NULL);
    return 0;
}

void job_ready_ask(struct world *w, unsigned c, unsigned tag)
{
    Zp__Ready q = ZP__READY__INIT;

    q.job = w->clients[c].job;
    q.writable = w->writable;
    ask_as(w, c, tag, zsd_ready, &q);
}
