/*
 * A storm of requests: several clients send requests that are well formed but mostly out of place,
 * and hang up in the middle. Every request is answered exactly once, the daemon goes on, and at the
 * end it holds what it held at the beginning.
 *
 * Some of the jobs are durable: they are committed, taken over, placed again for other worlds,
 * cloned, rolled back, destroyed. Sometimes the daemon itself is ended or killed, and starts again
 * with what it has saved; fsck must find nothing. Requests to a daemon that is killed get no
 * answer.
 *
 * MODEL. There are a few connections. Each knows which request would make sense next (open, define,
 * register, ready, then data and steps), and sends that about every second time; otherwise it sends
 * any other. Numbers are drawn from right values, their neighbours, and the limits of their types.
 */
#include "tests/integ/draw.h"
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/util.h"

#define CLIENTS     10u
#define WAITING_MAX 64u
#define UNITS       3u
#define PAGE        4096u
#define STAGING     (64u << 10)
#define HOST_MAX \
    (7 * STAGING) /* of all jobs but one, so that state is streamed, and some is stepped early */
#define HOST_BYTES (UINT64_C(8) << 20) /* of the daemon */
#define JOBS       5u
#define DURABLE    3u /* the first durable job; the one before is kept */

static const char *const options[] = { "--host-bytes",
                                       "8M",
                                       "--nvme-bytes",
                                       "8M",
                                       "--page-elems",
                                       "4096",
                                       "--ring-bytes",
                                       "64K",
                                       "--timeout-ms",
                                       "150",
                                       "--log-level",
                                       "error",
                                       NULL };

/* A request without an answer yet. */
struct waiting {
    uint64_t tag;
    unsigned method;
};

struct client {
    struct zi_raw raw;
    struct waiting waiting[WAITING_MAX];
    unsigned nwaiting;
    uint64_t job, iterations; /* as far as the client knows */
    uint32_t units, shards;
    uint64_t ids[UNITS];                                       /* its own shards */
    unsigned written, pushed;                                  /* shards, in this step */
    enum { OPEN, DEFINE, REGISTER, READY, DATA, CLOSE } stage; /* would make sense next */
    unsigned number;
    uint32_t micro;
    bool begun; /* has begun this step early, or chosen not to */
    uint32_t world;
    uint64_t committed, reader;
};

static uint64_t answered, refused, hung_up, restarts, early, undone, good[ZP_METHOD_END];

/* ---- values */

/* Mostly near the right value. */
static uint64_t near(uint64_t right)
{
    static const uint64_t odd[] = { 0,
                                    1,
                                    63,
                                    64,
                                    4095,
                                    4096,
                                    UINT32_MAX,
                                    UINT64_MAX,
                                    INT64_MAX,
                                    UINT64_C(1) << 32,
                                    UINT64_C(1) << 40,
                                    UINT64_MAX - 63 };

    if (chance(97))
        return right;
    return chance(50) ? right + draw(3) - 1 : odd[draw(ZB_COUNT(odd))];
}

static uint32_t near32(uint32_t right)
{
    return (uint32_t)near(right);
}

static bool durable(const struct client *c)
{
    return c->number / 2 >= DURABLE;
}

static uint64_t draw_job(const struct client *c)
{
    return chance(80) && c->job ? c->job : near(draw(40));
}

static uint64_t draw_id(const struct client *c)
{
    if (chance(50) && c->shards == UNITS)
        return c->ids[draw(UNITS)];
    return near(draw_job(c) << 32 | draw(UNITS * 2));
}

static uint64_t draw_first(void)
{
    return near(draw(3) * PAGE);
}

static uint64_t draw_count(void)
{
    return near((1 + draw(3)) * PAGE);
}

/* ---- requests: each packs its message and sends it */

static void send_it(struct client *c, unsigned method, const ProtobufCMessage *message)
{
    zi_raw_send(&c->raw, method, message);
    c->waiting[c->nwaiting++] = (struct waiting){ c->raw.tag, method };
}

struct choice {
    unsigned method;
    const ProtobufCMessage *message;
};

static void send_one_of(struct client *c, const struct choice *all, size_t n)
{
    const struct choice *one = &all[draw(n)];

    send_it(c, one->method, one->message);
}

#define SEND_ONE_OF(c, ...)                                \
    send_one_of(c, (const struct choice[]){ __VA_ARGS__ }, \
                ZB_COUNT(((const struct choice[]){ __VA_ARGS__ })))

static void say_open(struct client *c)
{
    Zp__JobOpen q = ZP__JOB_OPEN__INIT;
    char name[16];

    (void)snprintf(name, sizeof(name), "j%u", chance(90) ? c->number / 2 : (unsigned)draw(JOBS));
    q.name = name; /* two clients are the ranks of a job; every third job is kept */
    c->world = durable(c) && c->number % 2 == 0 && chance(10) ? 1 : 2;
    q.world = near32(c->world);
    q.rank = near32(c->number % 2);
    q.keep = c->number / 2 >= DURABLE - 1;
    q.durable = durable(c);
    q.attach = q.keep && chance(70);
    q.takeover = q.attach && durable(c) && chance(5);
    q.early = chance(85);
    q.share = near32(chance(50) ? 0 : 100);
    q.epoch = durable(c) && chance(3) ? draw(4) : 0;
    q.staging_bytes = near(STAGING);
    q.offload_param = chance(90) ? 2 : near32(1);
    q.offload_optimizer = chance(90) ? 2 : near32(1);
    q.groups = near32(1);
    q.optimizer = near32(1);
    q.host_bytes_max = near(c->number / 2 > 0 ? HOST_MAX : 0);
    send_it(c, ZP_JOB_OPEN, &q.base);
}

static void say_define(struct client *c)
{
    Zp__UnitDefine q = ZP__UNIT_DEFINE__INIT;
    Zp__Tensor t = ZP__TENSOR__INIT, *tensors[] = { &t };
    uint32_t unit = chance(85) ? c->units : near32(c->units);
    uint64_t dims[1] = { near(100) };
    char name[16];

    (void)snprintf(name, sizeof(name), "u%u", unit % 100);
    q.job = draw_job(c);
    q.unit = unit;
    q.name = name;
    q.elems = near(4 * PAGE - unit % 3);
    q.dtype = near32(unit % 2 ? 2 : 1);
    q.grad_dtype = near32(1);
    q.frozen = q.quantized = unit % 3 == 2;
    q.last = chance(97);
    t.name = (char[]){ "t" };
    t.dims = dims;
    t.n_dims = 1;
    t.group = near32(0);
    q.tensors = tensors;
    q.n_tensors = chance(70);
    send_it(c, ZP_UNIT_DEFINE, &q.base);
}

static void say_register(struct client *c)
{
    Zp__ShardRegister q = ZP__SHARD_REGISTER__INIT;
    Zp__Range ranges[2], *list[2] = { &ranges[0], &ranges[1] };

    q.job = draw_job(c);
    q.n_ranges = chance(95) ? 1 : 2;
    q.ranges = list;
    for (size_t i = 0; i < q.n_ranges; i++) {
        zp__range__init(&ranges[i]);
        ranges[i].unit = near32((c->shards + (uint32_t)i) % UNITS);
        ranges[i].first = near(c->number % 2 * 2 * PAGE); /* one half each, or all */
        ranges[i].count = near(c->world == 1 ? 4 * PAGE : 2 * PAGE);
    }
    send_it(c, ZP_SHARD_REGISTER, &q.base);
}

static void say_ready(struct client *c)
{
    Zp__Ready q = ZP__READY__INIT;

    q.job = draw_job(c);
    q.timeout_ms = 1 + (uint32_t)draw(200);
    q.at_point = durable(c) && chance(10);
    q.iterations = near(chance(50) ? c->committed : c->iterations);
    send_it(c, ZP_READY, &q.base);
}

/* Begins the step of say_train() early, with its values; or nearly so. */
static void say_begin(struct client *c)
{
    Zp__StepBegin q = ZP__STEP_BEGIN__INIT;
    Zp__GroupScalars g = ZP__GROUP_SCALARS__INIT, *groups[] = { &g };

    q.job = draw_job(c);
    q.step = near(c->iterations + 1);
    q.micros = near32(chance(95) ? 1 : 2);
    q.scale = chance(97) ? 1 : 2;
    g.lr = 0.1;
    g.beta1 = 0.9;
    g.beta2 = 0.99;
    g.eps = 1e-8;
    q.n_groups = 1;
    q.groups = groups;
    send_it(c, ZP_STEP_BEGIN, &q.base);
}

/* What a trainer does: writes all of its shards; then usually announces the step, pushes, and asks
 * for the step. */
static void say_train(struct client *c)
{
    Zp__Write w = ZP__WRITE__INIT;
    Zp__Push p = ZP__PUSH__INIT;
    Zp__Step q = ZP__STEP__INIT;
    Zp__GroupScalars g = ZP__GROUP_SCALARS__INIT, *groups[] = { &g };

    if (c->written < UNITS) {
        w.shard = c->ids[c->written++];
        w.count = c->world == 1 ? 4 * PAGE : 2 * PAGE;
        send_it(c, ZP_WRITE, &w.base);
    } else if (!c->begun && chance(80)) {
        say_begin(c);
        c->begun = true;
    } else if (c->pushed < UNITS - 1) { /* the last one is frozen */
        c->begun = true;
        p.shard = c->ids[c->pushed++];
        p.step = c->iterations + 1;
        p.mode = p.dtype = 1;
        p.count = c->world == 1 ? 4 * PAGE : 2 * PAGE;
        send_it(c, ZP_PUSH, &p.base);
    } else {
        q.job = c->job;
        q.step = c->iterations + 1;
        q.timeout_ms = 1 + (uint32_t)draw(200);
        q.scale = 1;
        g.lr = 0.1;
        g.beta1 = 0.9;
        g.beta2 = 0.99;
        g.eps = 1e-8;
        q.n_groups = 1;
        q.groups = groups;
        q.commit = durable(c) ? c->iterations % 3 : 0; /* the same as its peer's */
        send_it(c, ZP_STEP, &q.base);
        c->pushed = 0;
        c->begun = false;
    }
}

static void say_copy(struct client *c)
{
    Zp__Write w = ZP__WRITE__INIT;
    Zp__Read r = ZP__READ__INIT;

    w.shard = r.shard = draw_id(c);
    w.first = r.first = draw_first();
    w.count = r.count = draw_count();
    w.staging = r.staging = near(draw(2) * 16384);
    r.what = near32(1 + (uint32_t)draw(5));
    if (chance(70))
        send_it(c, ZP_WRITE, &w.base);
    else
        send_it(c, ZP_READ, &r.base);
}

static void say_fetch(struct client *c)
{
    Zp__Fetch q = ZP__FETCH__INIT;
    uint64_t ids[4];

    q.n_shards = draw(5);
    q.shards = ids;
    for (size_t i = 0; i < q.n_shards; i++)
        ids[i] = draw_id(c);
    q.min_version = near(draw(2));
    q.timeout_ms = 1 + (uint32_t)draw(100);
    send_it(c, ZP_FETCH, &q.base);
}

static void say_release(struct client *c)
{
    Zp__Release q = ZP__RELEASE__INIT;
    struct zp_frame f = { .method = ZP_RELEASE, .kind = ZP_ONEWAY };
    uint64_t ids[4];
    uint8_t frame[ZP_HEADER_BYTES + 128];

    q.n_shards = draw(5);
    q.shards = ids;
    for (size_t i = 0; i < q.n_shards; i++)
        ids[i] = draw_id(c);
    f.body_bytes = (uint32_t)protobuf_c_message_pack(&q.base, frame + ZP_HEADER_BYTES);
    zp_frame_put(&f, frame);
    zi_raw_bytes(&c->raw, frame, ZP_HEADER_BYTES + f.body_bytes, NULL, 0);
}

static void say_push(struct client *c)
{
    Zp__Push q = ZP__PUSH__INIT;

    q.shard = draw_id(c);
    q.step = near(c->iterations + 1);
    q.micro = near32(c->micro);
    q.mode = q.micro > 0 ? 2 : 1;
    q.dtype = near32(1);
    q.first = draw_first();
    q.count = draw_count();
    q.staging = near(draw(2) * 16384);
    if (chance(5))
        c->micro = (c->micro + 1) % 3;
    send_it(c, ZP_PUSH, &q.base);
}

static void say_step(struct client *c)
{
    Zp__Step q = ZP__STEP__INIT;
    Zp__Skip k = ZP__SKIP__INIT;
    Zp__Norms n = ZP__NORMS__INIT;
    Zp__GroupScalars g = ZP__GROUP_SCALARS__INIT, *groups[] = { &g, &g };

    q.job = k.job = n.job = draw_job(c);
    q.step = k.step = n.step = near(c->iterations + 1);
    q.timeout_ms = k.timeout_ms = 1 + (uint32_t)draw(100);
    q.scale = 1;
    g.lr = 0.1;
    g.beta1 = chance(95) ? 0.9 : 2;
    g.beta2 = 0.99;
    g.eps = 1e-8;
    q.groups = groups;
    q.n_groups = chance(95);
    q.commit = k.commit = durable(c) ? near32(c->iterations % 3) : 0;
    SEND_ONE_OF(c, { ZP_STEP, &q.base }, { ZP_SKIP, &k.base }, { ZP_NORMS, &n.base });
}

static void say_note(struct client *c)
{
    static uint8_t bytes[2000];
    Zp__NotePut p = ZP__NOTE_PUT__INIT;
    Zp__NoteGet g = ZP__NOTE_GET__INIT;

    p.job = g.job = draw_job(c);
    p.of_job = g.of_job = chance(50);
    p.total = near32(1500);
    p.offset = chance(80) ? 0 : near32(500);
    p.data.data = bytes;
    p.data.len = draw(sizeof(bytes));
    g.offset = chance(80) ? 0 : near32(1500);
    if (chance(50))
        send_it(c, ZP_NOTE_PUT, &p.base);
    else
        send_it(c, ZP_NOTE_GET, &g.base);
}

static void say_commit(struct client *c)
{
    Zp__Commit q = ZP__COMMIT__INIT;
    Zp__Progress p = ZP__PROGRESS__INIT;

    q.job = p.job = draw_job(c);
    q.what = near32(1 + (uint32_t)draw(4));
    q.iterations = near(c->iterations);
    p.iterations = near(5);
    p.applied = near(4);
    if (chance(95))
        send_it(c, ZP_COMMIT, &q.base);
    else
        send_it(c, ZP_PROGRESS, &p.base);
}

/* The name of a durable job, or of a clone. */
static void draw_saved(char *name, size_t size)
{
    if (chance(85))
        (void)snprintf(name, size, "j%u", DURABLE + (unsigned)draw(JOBS - DURABLE));
    else
        (void)snprintf(name, size, "k%u", (unsigned)draw(2));
}

static void say_snapshot(struct client *c)
{
    Zp__SnapshotTake t = ZP__SNAPSHOT_TAKE__INIT;
    Zp__SnapshotRef r = ZP__SNAPSHOT_REF__INIT;
    Zp__SnapshotsRequest s = ZP__SNAPSHOTS_REQUEST__INIT;
    Zp__Clone k = ZP__CLONE__INIT;
    Zp__JobName d = ZP__JOB_NAME__INIT;
    char job[16], snap[16], name[16];

    draw_saved(job, sizeof(job));
    (void)snprintf(snap, sizeof(snap), "s%u", (unsigned)draw(3));
    (void)snprintf(name, sizeof(name), "k%u", (unsigned)draw(2));
    if (chance(30))
        snap[0] = '\0';
    t.job = r.job = s.job = k.job = job;
    t.name = r.name = k.snapshot = snap;
    k.name = name;
    t.next = chance(30);
    t.retain = chance(50) ? (uint32_t)draw(3) : 0;
    t.timeout_ms = 1 + (uint32_t)draw(100);
    d.name = chance(80) ? name : job;
    SEND_ONE_OF(c, { ZP_SNAPSHOT, &t.base }, { ZP_SNAPSHOT, &t.base }, { ZP_SNAPSHOTS, &s.base },
                { ZP_ROLLBACK, &r.base }, { ZP_CLONE, &k.base }, { ZP_JOB_DESTROY, &d.base },
                { ZP_SNAPSHOT_DESTROY, &r.base }, { ZP_SNAPSHOT_DESTROY, &r.base });
}

static void say_reader(struct client *c)
{
    Zp__ReaderOpen o = ZP__READER_OPEN__INIT;
    Zp__ReaderUnit u = ZP__READER_UNIT__INIT;
    Zp__ReaderRead r = ZP__READER_READ__INIT;
    Zp__ReaderRef f = ZP__READER_REF__INIT;
    char job[16], snap[16];

    draw_saved(job, sizeof(job));
    (void)snprintf(snap, sizeof(snap), "s%u", (unsigned)draw(3));
    o.job = job;
    o.snapshot = chance(50) ? (char[]){ "" } : snap;
    o.staging_bytes = near(STAGING);
    u.reader = r.reader = f.reader = near(c->reader);
    u.unit = r.unit = near32((uint32_t)draw(UNITS));
    u.cursor = near32(0);
    r.what = near32(1 + (uint32_t)draw(4));
    r.first = near(draw(2 * PAGE));
    r.count = near(1 + draw(2 * PAGE));
    r.staging = near(0);
    SEND_ONE_OF(c, { ZP_READER_OPEN, &o.base }, { ZP_READER_UNIT, &u.base },
                { ZP_READER_CLOSE, &f.base }, { ZP_READER_READ, &r.base },
                { ZP_READER_READ, &r.base }, { ZP_READER_READ, &r.base },
                { ZP_READER_READ, &r.base }, { ZP_READER_READ, &r.base });
}

static void say_store(struct client *c)
{
    Zp__Scrub s = ZP__SCRUB__INIT;
    Zp__Empty e = ZP__EMPTY__INIT;
    Zp__DfRequest d = ZP__DF_REQUEST__INIT;

    s.action = near32((uint32_t)draw(5));
    s.rate_bytes = chance(50) ? 0 : near(1 << 20);
    d.cursor = near(0);
    SEND_ONE_OF(c, { ZP_SCRUB, &s.base }, { ZP_FSCK, &e.base }, { ZP_DF, &d.base });
}

static void say_look(struct client *c)
{
    Zp__ListRequest l = ZP__LIST_REQUEST__INIT;
    Zp__JobsRequest j = ZP__JOBS_REQUEST__INIT;
    Zp__TopRequest t = ZP__TOP_REQUEST__INIT;
    Zp__MetricsRequest m = ZP__METRICS_REQUEST__INIT;
    Zp__Empty e = ZP__EMPTY__INIT;
    char name[16];

    (void)snprintf(name, sizeof(name), "j%u", (unsigned)draw(JOBS));
    if (chance(50))
        name[0] = '\0'; /* all of them */
    l.job = j.job = t.job = name;
    l.cursor = j.cursor = t.cursor = chance(70) ? 0 : near(draw_id(c));
    m.cursor = chance(50) ? 0 : draw(100);
    SEND_ONE_OF(c, { ZP_LIST, &l.base }, { ZP_JOBS, &j.base }, { ZP_TIERS, &e.base },
                { ZP_STAT, &e.base }, { ZP_TOP, &t.base }, { ZP_PING, &e.base },
                { ZP_HEALTH, &e.base }, { ZP_METRICS, &m.base });
}

static void say_share(struct client *c)
{
    Zp__JobShare q = ZP__JOB_SHARE__INIT;
    char name[16];

    (void)snprintf(name, sizeof(name), "j%u", (unsigned)draw(JOBS));
    q.name = name;
    q.share = near32((uint32_t)draw(300));
    send_it(c, ZP_JOB_SHARE, &q.base);
}

/* Mostly all of it again, because jobs must fit. */
static void say_tier(struct client *c)
{
    Zp__TierSet q = ZP__TIER_SET__INIT;
    char host[] = "host", nvme[] = "nvme";

    q.name = chance(95) ? host : nvme;
    q.bytes = chance(60) ? HOST_BYTES : near(draw(HOST_BYTES));
    send_it(c, ZP_TIER_SET, &q.base);
}

static void say_leave(struct client *c)
{
    Zp__JobRef q = ZP__JOB_REF__INIT;
    Zp__JobName d = ZP__JOB_NAME__INIT;
    char name[16];

    (void)snprintf(name, sizeof(name), "j%u", (unsigned)draw(JOBS));
    d.name = name;
    q.job = draw_job(c);
    if (chance(50)) {
        send_it(c, ZP_JOB_CLOSE, &q.base);
    } else {
        send_it(c, ZP_JOB_DESTROY, &d.base);
    }
}

static void say_close(struct client *c)
{
    Zp__JobRef q = ZP__JOB_REF__INIT;

    q.job = c->job;
    send_it(c, ZP_JOB_CLOSE, &q.base);
    c->stage = OPEN;
}

static void say_anything(struct client *c)
{
    static void (*const all[])(struct client *) = {
        say_open,  say_define, say_register, say_ready, say_copy,   say_fetch,    say_release,
        say_push,  say_step,   say_note,     say_look,  say_commit, say_snapshot, say_reader,
        say_store, say_begin,  say_share,    say_tier,  say_leave
    };

    all[draw(ZB_COUNT(all))](c);
}

/* false: the next request depends on an answer. */
static bool say_sense(struct client *c)
{
    static void (*const data[])(struct client *) = { say_look, say_copy,  say_fetch,
                                                     say_push, say_push,  say_release,
                                                     say_step, say_fetch, say_note };

    if (c->nwaiting > (c->stage == DATA ? 3 : 0))
        return false;
    switch (c->stage) {
    case OPEN:
        say_open(c);
        break;
    case DEFINE:
        say_define(c);
        break;
    case REGISTER:
        say_register(c);
        break;
    case READY:
        say_ready(c);
        break;
    case DATA:
        if (chance(75))
            say_train(c);
        else if (durable(c) && chance(40))
            say_commit(c);
        else
            data[draw(ZB_COUNT(data))](c);
        break;
    case CLOSE:
        say_close(c);
        break;
    }
    return true;
}

/* ---- answers */

static void learn(struct client *c, const struct zp_frame *frame, const uint8_t *body)
{
    const ProtobufCMessage *m;
    struct zb_err err = { 0 };

    if (zp_decode(c->raw.arena, zp_method_info(frame->method)->reply, body, frame->body_bytes, &m,
                  &err) < 0)
        fail_msg("the reply to %u: %s", frame->method, err.text);
    switch (frame->method) {
    case ZP_JOB_OPEN:
        c->job = ((const Zp__JobOpenReply *)m)->job;
        c->iterations = ((const Zp__JobOpenReply *)m)->iterations;
        for (size_t i = 0; i < ((const Zp__JobOpenReply *)m)->n_points; i++)
            c->committed = ((const Zp__JobOpenReply *)m)->points[i]->iterations;
        c->units = c->shards = c->written = c->pushed = 0;
        c->begun = false;
        c->stage = DEFINE;
        break;
    case ZP_UNIT_DEFINE:
        c->stage = ++c->units >= UNITS ? REGISTER : DEFINE;
        break;
    case ZP_SHARD_REGISTER:
        if (c->shards < UNITS)
            c->ids[c->shards] = ((const Zp__ShardRegisterReply *)m)->shards[0];
        c->stage = ++c->shards >= UNITS ? READY : REGISTER;
        break;
    case ZP_READY:
        c->stage = DATA;
        c->iterations = ((const Zp__ReadyReply *)m)->iterations;
        if (c->iterations > 0)
            c->written = UNITS; /* the job has values */
        break;
    case ZP_READER_OPEN:
        c->reader = ((const Zp__ReaderOpenReply *)m)->reader;
        break;
    case ZP_COMMIT:
        c->committed = ((const Zp__CommitReply *)m)->iterations;
        break;
    case ZP_FSCK:
        if (((const Zp__FsckReply *)m)->problems_total > 0)
            fail_msg("fsck: %s", ((const Zp__FsckReply *)m)->problems[0]);
        break;
    case ZP_JOB_CLOSE:
        c->stage = OPEN;
        break;
    case ZP_STEP:
    case ZP_SKIP:
        c->iterations = ((const Zp__StepReply *)m)->iterations;
        break;
    default:
        break;
    }
}

/* A reply must be to an open request, and closes it. */
static void on_frame(struct client *c, const struct zp_frame *frame, const uint8_t *body)
{
    unsigned i;

    if (frame->kind == ZP_EVENT) {
        c->stage = CLOSE;
        return;
    }
    assert_int_equal(frame->kind, ZP_REPLY);
    for (i = 0; i < c->nwaiting && c->waiting[i].tag != frame->tag; i++)
        ;
    if (i == c->nwaiting)
        fail_msg("an answer to %u that nobody waits for", frame->method);
    assert_int_equal(c->waiting[i].method, frame->method);
    c->waiting[i] = c->waiting[--c->nwaiting];
    answered++;
    if (frame->code == 0) {
        good[frame->method]++;
        learn(c, frame, body);
        return;
    }
    refused++;
    assert_true(frame->code < 0 && frame->body_bytes > 0 && frame->body_bytes < 480);
    if (frame->code == -EBADMSG) /* the data files are not damaged */
        fail_msg("method %u finds what is saved corrupt", frame->method);
    if (frame->code == -EOWNERDEAD || frame->code == -ECANCELED || frame->code == -ESTALE)
        c->stage = CLOSE;
    else if (frame->method == ZP_SHARD_REGISTER && chance(30))
        c->stage = READY;
    else if (frame->method == ZP_READY && frame->code == -EBUSY)
        c->stage = DATA;
    else if (c->stage != OPEN && chance(2))
        c->stage = CLOSE;
}

static void client_listen(struct client *c)
{
    struct zp_frame frame;
    const uint8_t *body;
    struct zb_err err = { 0 };
    int fds[ZP_FDS_MAX], rc;

    do {
        while ((rc = zp_stream_next(c->raw.stream, &frame, &body, fds, &err)) == 1) {
            for (unsigned i = 0; i < frame.fds; i++)
                zb_close_fd(&fds[i]);
            on_frame(c, &frame, body);
        }
        if (rc == 0)
            rc = zp_stream_read(c->raw.stream, &err);
    } while (rc == 0);
    if (rc != -EAGAIN)
        fail_msg("the daemon hung up: %d, %s", rc, err.text);
}

static void all_listen(struct client *clients)
{
    struct pollfd fds[CLIENTS];

    for (unsigned i = 0; i < CLIENTS; i++)
        fds[i] = (struct pollfd){ .fd = zp_stream_fd(clients[i].raw.stream), .events = POLLIN };
    (void)poll(fds, CLIENTS, 1);
    for (unsigned i = 0; i < CLIENTS; i++)
        client_listen(&clients[i]);
}

/* Every request ends by itself: waits for that. */
static void client_drain(struct client *c)
{
    uint64_t until = zb_now_ns() + ZI_SOON_NS;

    while (c->nwaiting > 0) {
        struct pollfd p = { .fd = zp_stream_fd(c->raw.stream), .events = POLLIN };

        if (zb_now_ns() > until)
            fail_msg("method %u is never answered", c->waiting[0].method);
        (void)poll(&p, 1, 100);
        client_listen(c);
    }
}

static void client_open(struct client *c, const struct zi_daemon *d, unsigned number)
{
    *c = (struct client){ .number = number };
    zi_raw_open(&c->raw, d);
}

static uint64_t counter(const struct zi_daemon *d, const char *name)
{
    struct zc_client *c = zi_client(d);
    uint64_t found = zi_counter(c, name);

    zc_close(c);
    return found;
}

/* Adds the counters of the daemon's run, which ends here. */
static void count_early(const struct zi_daemon *d)
{
    early += counter(d, "pages_early");
    undone += counter(d, "pages_undone");
}

/* The daemon ends, or is killed, and starts again; every client starts over. */
static void restart(struct zi_daemon *d, struct client *clients)
{
    bool kill = chance(50);

    count_early(d);
    if (kill)
        zi_kill(d);
    else
        zi_term(d);
    for (unsigned i = 0; i < CLIENTS; i++)
        if (kill || chance(50)) { /* some clients hang up while it ends */
            zi_raw_close(&clients[i].raw);
            clients[i].raw.stream = NULL;
        }
    if (!kill)
        zi_ended(d);
    zi_start_again(d, options);
    for (unsigned i = 0; i < CLIENTS; i++) {
        if (clients[i].raw.stream)
            zi_raw_close(&clients[i].raw);
        client_open(&clients[i], d, i);
    }
    restarts++;
}

/* Destroys everything that outlives its clients; a rank may still be leaving. */
static void destroy_all(const struct zi_daemon *d)
{
    struct zc_client *c = zi_client(d);
    uint64_t until = zb_now_ns() + ZI_SOON_NS;
    struct zc_job_row *rows;
    size_t n;

    do {
        assert_int_equal(zc_jobs_wait(c, NULL, &rows, &n), 0);
        for (size_t i = 0; i < n; i++)
            (void)zc_job_destroy_wait(c, rows[i].name);
        zc_rows_free(rows);
        if (zb_now_ns() > until)
            fail_msg("%zu jobs cannot be destroyed: %s", n, zc_error(c));
    } while (n > 0);
    zc_close(c);
}

/* A request that never succeeded so far; NULL: all have. How many do depends on timing. */
static const char *never_good(void)
{
    static const unsigned reached[] = {
        ZP_JOB_OPEN,  ZP_UNIT_DEFINE, ZP_SHARD_REGISTER, ZP_READY,    ZP_WRITE,
        ZP_FETCH,     ZP_PUSH,        ZP_NORMS,          ZP_NOTE_PUT, ZP_STEP,
        ZP_SKIP,      ZP_JOB_CLOSE,   ZP_COMMIT,         ZP_SNAPSHOT, ZP_CLONE,
        ZP_FSCK,      ZP_DF,          ZP_READER_OPEN,    ZP_SCRUB,    ZP_TOP,
        ZP_JOB_SHARE, ZP_STEP_BEGIN,  ZP_JOB_DESTROY,    ZP_TIER_SET, ZP_HEALTH,
        ZP_METRICS
    };

    for (size_t i = 0; i < ZB_COUNT(reached); i++)
        if (good[reached[i]] == 0)
            return zp_method_info(reached[i])->name;
    return NULL;
}

/* Whether the storm was only noise so far: it goes on, for a limited time, until it was not. */
static bool only_noise(const struct zi_daemon *d)
{
    return never_good() || early + counter(d, "pages_early") <= undone + counter(d, "pages_undone");
}

static void storm(void **state)
{
    const char *seed_text = getenv("ZSHARD_SEED"), *rounds_text = getenv("ZSHARD_ROUNDS");
    unsigned long rounds = rounds_text && *rounds_text ? strtoul(rounds_text, NULL, 10) : 30000;
    static struct client clients[CLIENTS];
    struct zi_daemon d = { 0 };
    uint64_t host, nvme, restart_in = 6000;
    unsigned files;

    (void)state;
    seed = seed_text && *seed_text ? strtoull(seed_text, NULL, 10) : 20260801;
    print_message("ZSHARD_SEED=%llu\n", (unsigned long long)seed);
    zi_start(&d, options);
    host = zi_used(&d, "host");
    nvme = zi_used(&d, "nvme");
    files = zi_files(&d);
    for (unsigned i = 0; i < CLIENTS; i++)
        client_open(&clients[i], &d, i);
    for (uint64_t until = rounds; answered < until;) {
        struct client *who = &clients[draw(CLIENTS)];

        if (who->nwaiting == WAITING_MAX)
            client_drain(who);
        if (chance(8))
            say_anything(who);
        else if (!say_sense(who))
            all_listen(clients);
        if (draw(1500) == 0) { /* in the middle of anything */
            zi_raw_close(&who->raw);
            client_open(who, &d, who->number);
            hung_up++;
        }
        if (answered >= restart_in) {
            restart(&d, clients);
            restart_in = answered + 2000 + draw(8000);
        }
        if (answered >= until && until < 20 * (uint64_t)rounds && only_noise(&d))
            until = answered + 1000;
    }
    for (unsigned i = 0; i < CLIENTS; i++) {
        client_drain(&clients[i]);
        zi_raw_alive(&clients[i].raw);
        zi_raw_close(&clients[i].raw);
    }
    count_early(&d);
    destroy_all(&d);
    (void)zi_await_used(&d, host, nvme);
    for (unsigned waited = 0; zi_files(&d) > files; waited++) {
        if (waited > 200)
            fail_msg("the daemon had %u descriptors open, and has %u", files, zi_files(&d));
        (void)poll(NULL, 0, 5);
    }
    print_message("%llu answered, %llu of them refused, %llu hung up, %llu restarts\n",
                  (unsigned long long)answered, (unsigned long long)refused,
                  (unsigned long long)hung_up, (unsigned long long)restarts);
    if (never_good())
        fail_msg("no %s was ever in its place", never_good());
    print_message("%llu ready, %llu writes, %llu fetches, %llu pushes, %llu steps\n",
                  (unsigned long long)good[ZP_READY], (unsigned long long)good[ZP_WRITE],
                  (unsigned long long)good[ZP_FETCH], (unsigned long long)good[ZP_PUSH],
                  (unsigned long long)good[ZP_STEP]);
    print_message(
        "%llu commits asked for, %llu snapshots, %llu rollbacks, %llu clones, %llu reads\n",
        (unsigned long long)good[ZP_COMMIT], (unsigned long long)good[ZP_SNAPSHOT],
        (unsigned long long)good[ZP_ROLLBACK], (unsigned long long)good[ZP_CLONE],
        (unsigned long long)good[ZP_READER_READ]);
    print_message("%llu pages stepped early, %llu of them undone\n", (unsigned long long)early,
                  (unsigned long long)undone);
    assert_true(early > undone);
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(storm, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
