/*
 * Random requests, some of them damaged, sent to a real daemon in which a job trains at the same
 * time. Whatever they contain, the daemon goes on, and the job's values are bit for bit those of a
 * run without them.
 *
 * MODEL. A body is written field by field from the descriptor of its message: numbers, names and
 * lists that may be right, among them ids of jobs and shards of the fuzzer and of its neighbour.
 * Some bodies, and a few headers, then get some bytes changed. A few connections take turns. Most
 * of them begin with a job of their own, so that requests have something to act on. Answers are
 * checked for their form.
 *
 * The neighbour is a process of its own. It makes its next step when it is told to, after an equal
 * share of the requests; requests go on until it has made that step. So steps and requests are
 * always mixed, and the number of steps does not depend on relative speed.
 *
 * ZSHARD_ROUNDS: at least this many requests. ZSHARD_SEED: another sequence.
 */
#include "tests/integ/draw.h"
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"

#define CLIENTS       8u
#define REQUESTS      3000u /* without ZSHARD_ROUNDS */
#define REQUESTS_STEP 150u  /* before each step of the neighbour */
#define UNANSWERED    256u  /* of one connection; at this number it hangs up */
#define BODY_MAX      2048u
#define DEPTH_MAX     3u
#define LIST_MAX      4u
#define PAGE          4096u
#define ELEMS         (4 * PAGE)
#define UNITS         2u
#define STAGING       (256u << 10)
#define HOST_BYTES    (24u << 20) /* the value of the option */

static const char *const options[] = {
    "--host-bytes", "24M",         "--nvme-bytes", "32M", "--page-elems", "4096", "--ring-bytes",
    "128K",         "--log-level", "error",        NULL
};

/* ---- the neighbour */

/* Shared by parent and child. */
struct shared {
    uint64_t job, shards[UNITS];
    float values[UNITS][3][ELEMS]; /* masters and moments, after the last step */
};

static const struct zc_unit units[UNITS] = {
    { 0, "u0", ELEMS, ZC_BF16, ZC_F32, false, false, NULL, 0 },
    { 1, "u1", ELEMS, ZC_F32, ZC_F32, false, false, NULL, 0 },
};

static const struct zc_group groups[] = {
    { .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.01 }
};

static uint64_t step_now;

static float value(uint64_t element)
{
    return (float)((element + step_now * 37) % 251) / 251 - 0.5f;
}

static void neighbour_step(struct zi_rank *r, uint64_t step)
{
    const struct zc_step s = { .step = step,
                               .scale = 1,
                               .groups = groups,
                               .ngroups = 1,
                               .commit = step % 3 == 0 ? ZC_COMMIT_STEP : ZC_COMMIT_NO,
                               .timeout_ms = ZI_FETCH_MS };
    struct zc_stepped stepped = { 0 };
    struct zc_view views[UNITS];
    int rc;

    step_now = step;
    for (unsigned u = 0; u < UNITS; u++)
        zi_push_all(r, u, step, value);
    rc = zc_step_wait(r->c, r->job.id, &s, &stepped);
    if (rc < 0 || stepped.commit_code < 0)
        fail_msg("the neighbour's step %llu: %s%s", (unsigned long long)step,
                 rc < 0 ? zc_error(r->c) : "", stepped.commit_text);
    rc = zc_fetch_wait(r->c, r->shards, UNITS, step, ZI_FETCH_MS, views);
    if (rc < 0)
        fail_msg("the neighbour's fetch after step %llu: %s", (unsigned long long)step,
                 zc_error(r->c));
    assert_int_equal(zc_release(r->c, r->shards, UNITS), 0);
}

/* Trains. In a child, each byte that comes asks for a step and is sent back after it; without a
 * socket (-1), it makes `steps` steps. */
static void neighbour(const struct zi_daemon *d, struct shared *shared, int fd, uint64_t steps)
{
    static const enum zc_what planes[] = { ZC_MASTER, ZC_EXP_AVG, ZC_EXP_AVG_SQ };
    const struct zc_job_options job = { .name = "neighbour",
                                        .world = 1,
                                        .keep = true,
                                        .durable = true,
                                        .staging_bytes = STAGING,
                                        .groups = 1,
                                        .host_bytes_max = STAGING + UNITS * ELEMS * 8 };
    struct zi_rank r;
    char byte = 0;

    zi_job(&r, 1, d, &job, units, UNITS);
    step_now = 0;
    for (unsigned u = 0; u < UNITS; u++)
        zi_write_all(&r, u, value);
    shared->job = r.job.id;
    memcpy(shared->shards, r.shards, sizeof(shared->shards));
    if (fd >= 0)
        assert_int_equal(write(fd, &byte, 1), 1);
    for (uint64_t step = 1; fd >= 0 ? read(fd, &byte, 1) == 1 : step <= steps; step++) {
        neighbour_step(&r, step);
        if (fd >= 0)
            assert_int_equal(write(fd, &byte, 1), 1);
    }
    for (unsigned u = 0; u < UNITS; u++)
        for (unsigned p = 0; p < ZB_COUNT(planes); p++) {
            assert_int_equal(zc_read_wait(r.c, r.shards[u], planes[p], 0, ELEMS, r.job.staging), 0);
            memcpy(shared->values[u][p], r.job.staging, sizeof(shared->values[u][p]));
        }
    zi_close(&r, 1);
}

static pid_t neighbour_start(const struct zi_daemon *d, struct shared *shared, int *ret_fd)
{
    int fds[2];
    pid_t pid;
    char byte;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)close(fds[0]);
        neighbour(d, shared, fds[1], 0);
        _exit(0);
    }
    (void)close(fds[1]);
    *ret_fd = fds[0];
    assert_int_equal(read(*ret_fd, &byte, 1), 1); /* it is ready to step */
    return pid;
}

/* ---- bodies */

struct body {
    uint8_t bytes[BODY_MAX];
    size_t len;
};

static const struct shared *others; /* its ids are drawn, too */
static uint64_t own_job;            /* of the connection whose turn it is */

static void put_byte(struct body *b, uint8_t byte)
{
    if (b->len < BODY_MAX)
        b->bytes[b->len++] = byte;
}

static void put_varint(struct body *b, uint64_t v)
{
    for (; v > 0x7f; v >>= 7)
        put_byte(b, (uint8_t)(v | 0x80));
    put_byte(b, (uint8_t)v);
}

static void put_bytes(struct body *b, const void *bytes, size_t n)
{
    put_varint(b, n);
    for (size_t i = 0; i < n; i++)
        put_byte(b, ((const uint8_t *)bytes)[i]);
}

static uint64_t draw_number(const char *field)
{
    static const uint64_t all[] = {
        0,    1,        2,     3,    4,     5,       63,         64,         100,
        PAGE, 2 * PAGE, ELEMS, 8192, 65536, 1 << 20, UINT32_MAX, UINT64_MAX, UINT64_C(1) << 40
    };

    if (strcmp(field, "timeout_ms") == 0)
        return 1 + draw(50);
    if (strcmp(field, "job") == 0 && chance(80))
        return chance(80) ? own_job : others->job;
    if (strcmp(field, "shard") == 0 || strcmp(field, "shards") == 0)
        return chance(50) ? others->shards[draw(UNITS)] : own_job << 32 | draw(3);
    return chance(70) ? all[draw(6)] : all[draw(ZB_COUNT(all))];
}

/* No client may join the neighbour's job: it could take it over, which would end the neighbour. */
static const char *draw_name(unsigned method)
{
    static const char *const names[] = { "f0", "f1", "f2", "f3",   "u0",
                                         "s0", "",   "t",  "host", "neighbour" };

    return names[draw(ZB_COUNT(names) - (method == ZP_JOB_OPEN))];
}

static void put_message(struct body *b, unsigned method, const ProtobufCMessageDescriptor *type,
                        unsigned depth);

static void put_field(struct body *b, unsigned method, const ProtobufCFieldDescriptor *f,
                      unsigned depth)
{
    static const double reals[] = { 0, 0.1, 0.9, 1, -1, 1e-8, 1e39 };
    static struct body inner[DEPTH_MAX + 1];
    uint8_t junk[64];
    const char *name;

    switch (f->type) {
    case PROTOBUF_C_TYPE_DOUBLE:
        put_varint(b, f->id << 3 | 1);
        for (size_t i = 0, at = draw(ZB_COUNT(reals)); i < sizeof(double); i++)
            put_byte(b, ((const uint8_t *)&reals[at])[i]);
        break;
    case PROTOBUF_C_TYPE_STRING:
        name = draw_name(method);
        put_varint(b, f->id << 3 | 2);
        put_bytes(b, name, strlen(name));
        break;
    case PROTOBUF_C_TYPE_BYTES:
        for (size_t i = 0; i < sizeof(junk); i++)
            junk[i] = (uint8_t)draw(256);
        put_varint(b, f->id << 3 | 2);
        put_bytes(b, junk, draw(sizeof(junk)));
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        if (depth == DEPTH_MAX)
            break;
        inner[depth].len = 0;
        put_message(&inner[depth], method, f->descriptor, depth + 1);
        put_varint(b, f->id << 3 | 2);
        put_bytes(b, inner[depth].bytes, inner[depth].len);
        break;
    default:
        put_varint(b, f->id << 3);
        put_varint(b, draw_number(f->name));
        break;
    }
}

static void put_message(struct body *b, unsigned method, const ProtobufCMessageDescriptor *type,
                        unsigned depth)
{
    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &type->fields[i];
        uint64_t n = f->label == PROTOBUF_C_LABEL_REPEATED ? draw(LIST_MAX) : chance(80);

        for (uint64_t k = 0; k < n; k++)
            put_field(b, method, f, depth);
    }
}

/* Changes, inserts or removes some bytes. */
static void damage(struct body *b)
{
    for (uint64_t n = 1 + draw(3); n > 0; n--) {
        size_t at = draw(b->len + 1), cut = 1 + draw(8);

        switch (draw(4)) {
        case 0:
            if (at < b->len)
                b->bytes[at] ^= (uint8_t)(1u << draw(8));
            break;
        case 1:
            if (at < b->len)
                b->bytes[at] = (uint8_t)draw(256);
            break;
        case 2:
            cut = zb_min_u64(cut, b->len - at);
            memmove(b->bytes + at, b->bytes + at + cut, b->len - at - cut);
            b->len -= cut;
            break;
        case 3:
            cut = zb_min_u64(cut, BODY_MAX - b->len);
            memmove(b->bytes + at + cut, b->bytes + at, b->len - at);
            b->len += cut; /* these bytes are repeated */
            break;
        }
    }
}

/* ---- connections */

struct client {
    struct zi_raw raw; /* raw.stream NULL: not connected */
    uint64_t job;
    unsigned unanswered;
};

static uint64_t sent, answered, refused, hung_up, set_up;

/* Makes a job that can be trained. Refusals because an earlier job has its name are ignored. The
 * host budget, which requests change, is restored first, because an open waits for room. */
static void client_begin(struct client *c, const struct zi_daemon *d, unsigned number)
{
    Zp__TierSet tier = ZP__TIER_SET__INIT;
    Zp__JobOpen open = ZP__JOB_OPEN__INIT;
    Zp__UnitDefine define = ZP__UNIT_DEFINE__INIT;
    Zp__Tensor tensor = ZP__TENSOR__INIT, *tensors[] = { &tensor };
    Zp__ShardRegister reg = ZP__SHARD_REGISTER__INIT;
    Zp__Range range = ZP__RANGE__INIT, *ranges[] = { &range };
    Zp__Ready ready = ZP__READY__INIT;
    Zp__Write write = ZP__WRITE__INIT;
    uint64_t dims[1] = { 2 * PAGE };
    char name[8];

    zi_raw_open(&c->raw, d);
    c->unanswered = 0;
    c->job = 0;
    (void)snprintf(name, sizeof(name), "f%u", number % 4);
    open.name = name;
    open.world = open.groups = open.optimizer = 1;
    open.offload_param = open.offload_optimizer = 2;
    open.staging_bytes = 65536;
    open.keep = number % 4 >= 2;
    open.durable = number % 4 == 3;
    open.attach = open.keep && chance(50);
    tier.name = (char[]){ "host" };
    tier.bytes = HOST_BYTES;
    (void)zi_raw_call(&c->raw, ZP_TIER_SET, &tier.base);
    if (chance(20) || zi_raw_call(&c->raw, ZP_JOB_OPEN, &open.base) < 0)
        return;
    c->job = ((const Zp__JobOpenReply *)c->raw.reply)->job;
    define.job = reg.job = ready.job = c->job;
    define.name = (char[]){ "u0" };
    define.elems = 2 * PAGE;
    define.dtype = define.grad_dtype = 1;
    define.last = true;
    define.tensors = tensors;
    define.n_tensors = 1;
    tensor.name = (char[]){ "t" };
    tensor.dims = dims;
    tensor.n_dims = 1;
    range.count = write.count = 2 * PAGE;
    reg.ranges = ranges;
    reg.n_ranges = 1;
    ready.timeout_ms = 1000;
    if (zi_raw_call(&c->raw, ZP_UNIT_DEFINE, &define.base) < 0 ||
        zi_raw_call(&c->raw, ZP_SHARD_REGISTER, &reg.base) < 0)
        return;
    write.shard = ((const Zp__ShardRegisterReply *)c->raw.reply)->shards[0];
    if (zi_raw_call(&c->raw, ZP_READY, &ready.base) == 0 &&
        zi_raw_call(&c->raw, ZP_WRITE, &write.base) == 0)
        set_up++;
}

/* Handles what has come; false: the daemon hung up. */
static bool client_listen(struct client *c)
{
    struct zb_err err = { 0 };
    int rc = 0;

    while (rc == 0) {
        int fds[ZP_FDS_MAX];
        struct zp_frame frame;
        const uint8_t *body;

        while ((rc = zp_stream_next(c->raw.stream, &frame, &body, fds, &err)) == 1) {
            for (unsigned i = 0; i < frame.fds; i++)
                (void)close(fds[i]);
            if (frame.kind == ZP_EVENT)
                continue;
            assert_int_equal(frame.kind, ZP_REPLY);
            assert_true(frame.code <= 0 && (frame.code == 0 || frame.body_bytes > 0));
            c->unanswered -= c->unanswered > 0;
            answered++;
            refused += frame.code < 0;
        }
        if (rc < 0)
            fail_msg("from the daemon: %s", err.text);
        rc = zp_stream_read(c->raw.stream, &err);
    }
    if (rc != -EAGAIN && rc != -ECONNRESET)
        fail_msg("from the daemon: %s", err.text);
    return rc == -EAGAIN;
}

/* Sends all bytes, and handles what the daemon sends meanwhile; false: it hung up. */
static bool client_say(struct client *c, const uint8_t *bytes, size_t len)
{
    int fd = zp_stream_fd(c->raw.stream);

    while (len > 0) {
        ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        struct pollfd p = { .fd = fd, .events = POLLOUT | POLLIN };

        if (n > 0) {
            bytes += n;
            len -= (size_t)n;
            continue;
        }
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        if (poll(&p, 1, ZI_WAIT_MS) <= 0)
            fail_msg("the daemon neither reads nor writes");
        if (p.revents & POLLIN && !client_listen(c))
            return false;
    }
    return true;
}

/* Sends one request of any kind. */
static void client_ask(struct client *c, const struct zi_daemon *d, unsigned number)
{
    static struct body body;
    uint8_t bytes[ZP_HEADER_BYTES + BODY_MAX];
    struct zp_frame frame = { .kind = ZP_REQUEST, .tag = 1000 + sent };
    unsigned method = 1 + (unsigned)draw(ZP_METHOD_END - 1);
    const struct zp_method_info *info = zp_method_info(method);

    if (!c->raw.stream)
        client_begin(c, d, number);
    own_job = c->job;
    body.len = 0;
    if (info)
        put_message(&body, method, info->request, 0);
    if (chance(30))
        damage(&body);
    if (info && !info->reply)
        frame.kind = ZP_ONEWAY;
    frame.method = (uint16_t)method;
    frame.body_bytes = (uint32_t)body.len;
    zp_frame_put(&frame, bytes);
    memcpy(bytes + ZP_HEADER_BYTES, body.bytes, body.len);
    if (chance(1))
        bytes[draw(ZP_HEADER_BYTES)] ^= (uint8_t)(1u << draw(8));
    sent++;
    c->unanswered += frame.kind == ZP_REQUEST;
    if (client_say(c, bytes, ZP_HEADER_BYTES + body.len) && client_listen(c)) {
        if (c->unanswered < UNANSWERED && !chance(1))
            return;
    } else {
        hung_up++;
    }
    zi_raw_close(&c->raw);
}

/* ---- the test */

static uint64_t number_of(const char *variable, uint64_t usual)
{
    const char *text = getenv(variable);

    return text ? strtoull(text, NULL, 10) : usual;
}

/* Sends requests, until there were enough and the neighbour has made its steps. */
static void fuzz(const struct zi_daemon *d, int fd, uint64_t requests, uint64_t steps)
{
    static struct client clients[CLIENTS];
    uint64_t asked = 0, made = 0;

    while (sent < requests || made < steps) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        unsigned number = (unsigned)draw(CLIENTS);
        char byte = 0;

        client_ask(&clients[number], d, number);
        if (asked == made && asked < steps && sent >= asked * REQUESTS_STEP) {
            assert_int_equal(write(fd, &byte, 1), 1);
            asked++;
        } else if (asked > made && poll(&p, 1, 0) == 1) {
            if (read(fd, &byte, 1) != 1)
                fail_msg("the neighbour has ended in step %llu, after %llu requests",
                         (unsigned long long)asked, (unsigned long long)sent);
            made++;
        }
    }
    for (unsigned i = 0; i < CLIENTS; i++)
        if (clients[i].raw.stream)
            zi_raw_close(&clients[i].raw);
}

static void a_neighbour_trains_on(void **state)
{
    uint64_t requests = number_of("ZSHARD_ROUNDS", REQUESTS);
    uint64_t steps = requests / REQUESTS_STEP;
    struct shared *shared =
        mmap(NULL, 2 * sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct zi_daemon d = { 0 };
    struct zc_client *c;
    int fd, status;
    pid_t pid;

    (void)state;
    seed = number_of("ZSHARD_SEED", 11);
    assert_true(shared != MAP_FAILED);
    zi_start(&d, options);
    pid = neighbour_start(&d, &shared[0], &fd);
    others = &shared[0];
    fuzz(&d, fd, requests, steps);
    (void)close(fd); /* the neighbour ends */
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("the neighbour failed: status %x", (unsigned)status);
    c = zi_client(&d);
    zi_fsck_online(c);
    zc_close(c);
    zi_stop(&d);

    zi_start(&d, options);
    neighbour(&d, &shared[1], -1, steps);
    zi_stop(&d);
    assert_memory_equal(shared[0].values, shared[1].values, sizeof(shared[0].values));
    print_message("%llu requests beside %llu steps: %llu answered, %llu of them refused; %llu "
                  "connections ended by the daemon, %llu jobs made\n",
                  (unsigned long long)sent, (unsigned long long)steps, (unsigned long long)answered,
                  (unsigned long long)refused, (unsigned long long)hung_up,
                  (unsigned long long)set_up);
    assert_true(answered - refused > sent / 20 && refused > sent / 20 && set_up > 0);
    (void)munmap(shared, 2 * sizeof(*shared));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_neighbour_trains_on, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
