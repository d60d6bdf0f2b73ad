#include "tests/ztest.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util.h"
#include "tests/unit/client/fake.h"

/* ---- answers */

static void send_frame(struct fake *f, struct zp_frame frame, const ProtobufCMessage *m,
                       const char *text, int fd)
{
    if (!f->s)
        return;
    if (zp_stream_send(f->s, frame, m, text, &fd, fd >= 0) < 0)
        abort();
    (void)zp_stream_write(f->s); /* reading will notice a client that has gone */
}

void fake_reply(struct fake *f, const struct zp_frame *frame, const ProtobufCMessage *m, int fd)
{
    struct zp_frame reply = { .method = frame->method, .kind = ZP_REPLY, .tag = frame->tag };

    send_frame(f, reply, m, NULL, fd);
}

void fake_refuse(struct fake *f, const struct zp_frame *frame, int code, const char *text)
{
    struct zp_frame reply = {
        .method = frame->method, .kind = ZP_REPLY, .code = code, .tag = frame->tag
    };

    send_frame(f, reply, NULL, text, -1);
}

void fake_event(struct fake *f, uint16_t event, uint64_t job, uint32_t rank, int code,
                const char *text)
{
    struct zp_frame frame = { .method = event, .kind = ZP_EVENT };
    Zp__JobEvent m = ZP__JOB_EVENT__INIT;

    m.job = job;
    m.rank = rank;
    m.code = code;
    m.text = (char *)(uintptr_t)text;
    send_frame(f, frame, &m.base, NULL, -1);
}

void fake_frame(struct fake *f, struct zp_frame frame, const char *text)
{
    send_frame(f, frame, NULL, text, -1);
}

void fake_raw(struct fake *f, const void *bytes, size_t len)
{
    (void)!send(zp_stream_fd(f->s), bytes, len, MSG_NOSIGNAL); /* the client may have gone */
}

void fake_hang_up(struct fake *f)
{
    zp_stream_free(f->s);
    f->s = NULL;
}

int fake_memfd(uint64_t bytes, int seals)
{
    int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 || (seals && fcntl(fd, F_ADD_SEALS, seals) < 0))
        abort();
    return fd;
}

static void answer_with_memory(struct fake *f, const struct zp_frame *frame,
                               const ProtobufCMessage *m, uint64_t bytes)
{
    int fd = fake_memfd(bytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);

    fake_reply(f, frame, m, fd);
    zb_close_fd(&fd);
}

static void answer_hello(struct fake *f, const struct zp_frame *frame)
{
    static uint8_t instance[16] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };
    static char server[] = "fake 0";
    Zp__HelloReply m = ZP__HELLO_REPLY__INIT;

    m.version = 1;
    m.server = server;
    m.instance.data = instance;
    m.instance.len = sizeof(instance);
    m.page_elems = FAKE_PAGE;
    m.block_elems = FAKE_BLOCK;
    m.shards_max = ZP_SHARDS_MAX;
    m.pid = 4711;
    fake_reply(f, frame, &m.base, -1);
}

static void answer_job_open(struct fake *f, const struct zp_frame *frame)
{
    Zp__JobOpenReply m = ZP__JOB_OPEN_REPLY__INIT;
    Zp__Point memory = ZP__POINT__INIT, committed = ZP__POINT__INIT;
    Zp__Point *points[2] = { &memory, &committed };

    memory.kind = 1;
    memory.iterations = 2;
    memory.applied = 1;
    committed.kind = 3;
    committed.iterations = 1;
    m.job = FAKE_JOB;
    m.iterations = 2;
    m.applied = 1;
    m.staging_bytes = FAKE_STAGING;
    m.epoch = 5;
    m.world = 9;
    m.n_points = 2;
    m.points = points;
    answer_with_memory(f, frame, &m.base, FAKE_STAGING);
}

static void answer_ready(struct fake *f, const struct zp_frame *frame)
{
    Zp__ReadyReply m = ZP__READY_REPLY__INIT;

    m.arena_bytes = FAKE_ARENA;
    m.ring_bytes = 3;
    m.host_bytes = 4;
    m.nvme_bytes = 5;
    m.iterations = 6;
    m.applied = 7;
    answer_with_memory(f, frame, &m.base, FAKE_ARENA);
}

static void answer_reader_open(struct fake *f, const struct zp_frame *frame)
{
    Zp__ReaderOpenReply m = ZP__READER_OPEN_REPLY__INIT;

    m.reader = FAKE_READER;
    m.iterations = 6;
    m.applied = 5;
    m.units = 2;
    m.groups = 3;
    m.world = 4;
    m.optimizer = 1;
    m.staging_bytes = FAKE_STAGING;
    answer_with_memory(f, frame, &m.base, FAKE_STAGING);
}

/** Unit 0 has FAKE_TENSORS tensors, of which one reply has FAKE_TENSORS_PART; the others have
 * none. */
static void answer_reader_unit(struct fake *f, const struct zp_frame *frame,
                               const Zp__ReaderUnit *q)
{
    Zp__ReaderUnitReply m = ZP__READER_UNIT_REPLY__INIT;
    static Zp__Tensor tensors[FAKE_TENSORS_PART], *list[FAKE_TENSORS_PART];
    static char names[FAKE_TENSORS_PART][32], unit[] = "unit";
    uint64_t dims[2] = { 3, 4 };
    uint32_t n = 0;

    if (q->unit == 0)
        n = (uint32_t)zb_min_u64(FAKE_TENSORS - q->cursor, FAKE_TENSORS_PART);
    for (uint32_t i = 0; i < n; i++) {
        zp__tensor__init(&tensors[i]);
        (void)snprintf(names[i], sizeof(names[i]), "tensor.%u", q->cursor + i);
        tensors[i].name = names[i];
        tensors[i].first = 12 * (q->cursor + i);
        tensors[i].dims = dims;
        tensors[i].n_dims = i % 2 == 0 ? 2 : 0;
        tensors[i].group = i % 3;
        list[i] = &tensors[i];
    }
    m.name = unit;
    m.elems = 99;
    m.dtype = 2;
    m.grad_dtype = 1;
    m.frozen = m.quantized = true;
    m.tensors = list;
    m.n_tensors = n;
    m.cursor = q->cursor + n < FAKE_TENSORS && q->unit == 0 ? q->cursor + n : 0;
    fake_reply(f, frame, &m.base, -1);
}

static void answer_register(struct fake *f, const struct zp_frame *frame,
                            const Zp__ShardRegister *q)
{
    Zp__ShardRegisterReply m = ZP__SHARD_REGISTER_REPLY__INIT;
    uint64_t ids[ZP_SHARDS_MAX];

    for (size_t i = 0; i < q->n_ranges; i++)
        ids[i] = q->ranges[i]->first / FAKE_BLOCK;
    m.n_shards = q->n_ranges;
    m.shards = ids;
    fake_reply(f, frame, &m.base, -1);
}

static void answer_fetch(struct fake *f, const struct zp_frame *frame, const Zp__Fetch *q)
{
    Zp__FetchReply m = ZP__FETCH_REPLY__INIT;
    static Zp__FetchItem items[ZP_SHARDS_MAX], *list[ZP_SHARDS_MAX];

    for (size_t i = 0; i < q->n_shards; i++) {
        zp__fetch_item__init(&items[i]);
        items[i].offset = q->shards[i] * FAKE_ITEM;
        items[i].bytes = FAKE_ITEM;
        items[i].version = q->min_version + 1;
        list[i] = &items[i];
    }
    m.n_items = q->n_shards;
    m.items = list;
    fake_reply(f, frame, &m.base, -1);
}

static void answer_norms(struct fake *f, const struct zp_frame *frame)
{
    Zp__NormsReply m = ZP__NORMS_REPLY__INIT;
    uint8_t sum[80] = { [40] = 9 }; /* bit 320 is 1: 9 */

    m.sum_of_squares.data = sum;
    m.sum_of_squares.len = sizeof(sum);
    m.nonfinite = 0;
    fake_reply(f, frame, &m.base, -1);
}

static void answer_note_put(struct fake *f, const struct zp_frame *frame, const Zp__NotePut *q)
{
    if (q->data.len > 0)
        memcpy(f->note + q->offset, q->data.data, q->data.len);
    f->note_bytes = q->total;
    fake_reply(f, frame, NULL, -1);
}

static void answer_note_get(struct fake *f, const struct zp_frame *frame, const Zp__NoteGet *q)
{
    Zp__NoteGetReply m = ZP__NOTE_GET_REPLY__INIT;

    m.total = (uint32_t)f->note_bytes;
    m.iteration = 3;
    m.data.data = f->note + q->offset;
    m.data.len = zb_min_u64(f->note_bytes - q->offset, ZP_NOTE_PART);
    fake_reply(f, frame, &m.base, -1);
}

static void answer_step(struct fake *f, const struct zp_frame *frame, uint64_t step)
{
    Zp__StepReply m = ZP__STEP_REPLY__INIT;

    m.iterations = step;
    m.applied = step - 1;
    fake_reply(f, frame, &m.base, -1);
}

void fake_answer(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    const struct zp_method_info *info = zp_method_info(frame->method);
    const ProtobufCMessage *m;

    if (!info || frame->fds != 0 || (frame->kind == ZP_REQUEST) != (info->reply != NULL) ||
        zp_decode(f->arena, info->request, body, frame->body_bytes, &m, NULL) < 0)
        abort();
    switch ((enum zp_method)frame->method) {
    case ZP_HELLO:
        answer_hello(f, frame);
        return;
    case ZP_JOB_OPEN:
        answer_job_open(f, frame);
        return;
    case ZP_READY:
        answer_ready(f, frame);
        return;
    case ZP_READER_OPEN:
        answer_reader_open(f, frame);
        return;
    case ZP_READER_UNIT:
        answer_reader_unit(f, frame, (const Zp__ReaderUnit *)m);
        return;
    case ZP_SHARD_REGISTER:
        answer_register(f, frame, (const Zp__ShardRegister *)m);
        return;
    case ZP_FETCH:
        answer_fetch(f, frame, (const Zp__Fetch *)m);
        return;
    case ZP_NORMS:
        answer_norms(f, frame);
        return;
    case ZP_NOTE_PUT:
        answer_note_put(f, frame, (const Zp__NotePut *)m);
        return;
    case ZP_NOTE_GET:
        answer_note_get(f, frame, (const Zp__NoteGet *)m);
        return;
    case ZP_STEP:
        answer_step(f, frame, ((const Zp__Step *)m)->step);
        return;
    case ZP_SKIP:
        answer_step(f, frame, ((const Zp__Skip *)m)->step);
        return;
    case ZP_RELEASE:
        return;
    default: /* an empty reply is all zeros, which is right for every other type */
        fake_reply(f, frame, NULL, -1);
        return;
    }
}

/* ---- the thread */

static uint32_t log_add(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    uint8_t *copy = malloc(frame->body_bytes + 1);
    uint32_t n;

    if (!copy)
        abort();
    memcpy(copy, body, frame->body_bytes);
    pthread_mutex_lock(&f->lock);
    if (f->nlog == FAKE_LOG_MAX)
        abort();
    n = f->nlog;
    f->log[f->nlog++] = (struct fake_entry){ *frame, copy };
    pthread_mutex_unlock(&f->lock);
    return n;
}

static void serve_frames(struct fake *f)
{
    struct zp_frame frame;
    const uint8_t *body;
    int fds[ZP_FDS_MAX];

    while (f->s && zp_stream_next(f->s, &frame, &body, fds, NULL) == 1) {
        uint32_t n = log_add(f, &frame, body);

        if (n == f->hang_up_at)
            fake_hang_up(f);
        else if (!f->fn || !f->fn(f, &frame, body))
            fake_answer(f, &frame, body);
    }
}

static void *serve(void *arg)
{
    struct fake *f = arg;

    for (;;) {
        struct pollfd p[2] = { { .fd = f->stop, .events = POLLIN },
                               { .fd = f->s ? zp_stream_fd(f->s) : f->listener,
                                 .events = POLLIN } };
        int rc;

        if (f->s && zp_stream_pending(f->s) > 0)
            p[1].events |= POLLOUT;
        if (poll(p, 2, -1) < 0)
            continue;
        if (p[0].revents)
            break;
        if (!f->s) {
            int fd = accept(f->listener, NULL, NULL);

            if (fd >= 0 && zp_stream_new(&f->s, fd) < 0)
                abort();
            continue;
        }
        if (p[1].revents & POLLOUT)
            (void)zp_stream_write(f->s);
        rc = zp_stream_read(f->s, NULL);
        if (rc == 0)
            serve_frames(f);
        else if (rc != -EAGAIN)
            fake_hang_up(f);
    }
    fake_hang_up(f);
    return NULL;
}

/** With signals blocked: they are for the thread under test. */
static void start_thread(struct fake *f)
{
    sigset_t all, before;

    (void)sigfillset(&all);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, &all, &before), 0);
    assert_int_equal(pthread_create(&f->thread, NULL, serve, f), 0);
    assert_int_equal(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
}

void fake_start(struct fake *f)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };

    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/zshard-fake-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    (void)snprintf(f->path, sizeof(f->path), "%s/s", f->dir);
    (void)snprintf(a.sun_path, sizeof(a.sun_path), "%s", f->path);
    f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(f->listener >= 0);
    assert_int_equal(bind(f->listener, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(f->listener, 8), 0);
    f->stop = eventfd(0, EFD_CLOEXEC);
    assert_true(f->stop >= 0);
    assert_int_equal(zp_arena_new(&f->arena), 0);
    assert_int_equal(pthread_mutex_init(&f->lock, NULL), 0);
    start_thread(f);
}

void fake_stop(struct fake *f)
{
    if (f->stop < 0)
        return;
    assert_int_equal(eventfd_write(f->stop, 1), 0);
    assert_int_equal(pthread_join(f->thread, NULL), 0);
    zb_close_fd(&f->stop);
    zb_close_fd(&f->listener);
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(rmdir(f->dir), 0);
}

void fake_done(struct fake *f)
{
    fake_stop(f);
    for (uint32_t i = 0; i < f->nlog; i++)
        free(f->log[i].body);
    zp_arena_free(f->arena);
    pthread_mutex_destroy(&f->lock);
}

/* ---- the log */

uint32_t fake_count(struct fake *f, unsigned method)
{
    uint32_t n = 0;

    pthread_mutex_lock(&f->lock);
    for (uint32_t i = 0; i < f->nlog; i++)
        n += method == 0 || f->log[i].frame.method == method;
    pthread_mutex_unlock(&f->lock);
    return n;
}

const void *fake_nth(struct fake *f, unsigned method, uint32_t n, struct zp_arena **ret_arena)
{
    const ProtobufCMessage *m = NULL;

    assert_int_equal(zp_arena_new(ret_arena), 0);
    pthread_mutex_lock(&f->lock);
    for (uint32_t i = 0; i < f->nlog && !m; i++) {
        const struct fake_entry *e = &f->log[i];

        if (e->frame.method == method && n-- == 0)
            assert_int_equal(zp_decode(*ret_arena, zp_method_info(method)->request, e->body,
                                       e->frame.body_bytes, &m, NULL),
                             0);
    }
    pthread_mutex_unlock(&f->lock);
    assert_non_null(m);
    return m;
}

void fake_wait_count(struct fake *f, unsigned method, uint32_t n)
{
    for (unsigned i = 0; i < 5000 && fake_count(f, method) < n; i++)
        (void)poll(NULL, 0, 1);
    assert_true(fake_count(f, method) >= n);
}
