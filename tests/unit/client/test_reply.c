/* A daemon that gives wrong answers, and its events: nothing unchecked reaches the caller, and
 * every call ends once. */
#include "tests/ztest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "tests/send_fds.h"
#include "tests/unit/client/session.h"

/* ---- wrong answers */

enum wrong {
    OTHER_TAG,
    TAG_ZERO,
    TAG_UNUSED,
    OTHER_METHOD,
    NO_METHOD,
    TWICE,
    POSITIVE,
    NO_MESSAGE,
    A_DESCRIPTOR,
    A_REFUSAL_WITH_ONE,
    A_REQUEST,
    A_ONEWAY,
    GARBAGE,
    EVENT_WITH_DESCRIPTOR,
    EVENT_WITHOUT_CODE,
    EVENT_NO_MESSAGE,
    DESCRIPTORS_UNANNOUNCED,
};

static const struct wrong_case {
    const char *name;
    enum wrong wrong;
    const char *says;
} wrong_cases[] = {
    { "another tag", OTHER_TAG, "a tag that is not its own" },
    { "tag 0", TAG_ZERO, "a tag that is not its own" },
    { "the tag of a slot that was never used", TAG_UNUSED, "a tag that is not its own" },
    { "another method", OTHER_METHOD, "a reply to method 19" },
    { "a method that there is not", NO_METHOD, "a reply to method 999" },
    { "twice", TWICE, "a tag that is not its own" },
    { "a positive code", POSITIVE, "with code 22" },
    { "a body that is not a message", NO_MESSAGE, "are not a valid Empty" },
    { "a descriptor that does not belong", A_DESCRIPTOR, "and 1 descriptors" },
    { "a refusal with a descriptor", A_REFUSAL_WITH_ONE, "and 1 descriptors" },
    { "a request", A_REQUEST, "kind 1" },
    { "a one-way frame", A_ONEWAY, "kind 3" },
    { "bytes that are no frame", GARBAGE, "not a frame" },
    { "an event with a descriptor", EVENT_WITH_DESCRIPTOR, "kind 4 with 1 descriptors" },
    { "an event without a code", EVENT_WITHOUT_CODE, "an event with code 0" },
    { "an event that is not a message", EVENT_NO_MESSAGE, "not a valid JobEvent" },
    { "descriptors that nobody announced", DESCRIPTORS_UNANNOUNCED, "descriptors" },
};

static void answer_wrong(struct fake *f, enum wrong wrong, struct zp_frame reply)
{
    int fd = fake_memfd(4096, F_SEAL_SHRINK);
    struct zp_frame request = reply;
    uint8_t bytes[ZP_HEADER_BYTES];

    switch (wrong) {
    case OTHER_TAG:
        reply.tag += 1u << 10;
        fake_frame(f, reply, NULL);
        break;
    case TAG_ZERO:
        reply.tag = 0;
        fake_frame(f, reply, NULL);
        break;
    case TAG_UNUSED:
        reply.tag |= 1000;
        fake_frame(f, reply, NULL);
        break;
    case OTHER_METHOD:
        reply.method = ZP_LIST;
        fake_frame(f, reply, NULL);
        break;
    case NO_METHOD:
        reply.method = 999;
        fake_frame(f, reply, NULL);
        break;
    case TWICE:
        fake_frame(f, reply, NULL);
        fake_frame(f, reply, NULL);
        break;
    case POSITIVE:
        reply.code = 22;
        fake_frame(f, reply, NULL);
        break;
    case NO_MESSAGE:
        fake_frame(f, reply, "\x0f");
        break;
    case A_DESCRIPTOR:
        fake_reply(f, &request, NULL, fd);
        break;
    case A_REFUSAL_WITH_ONE:
        reply.code = -EIO;
        assert_int_equal(zp_stream_send(f->s, reply, NULL, "no", &fd, 1), 0);
        break;
    case A_REQUEST:
        reply.kind = ZP_REQUEST;
        fake_frame(f, reply, NULL);
        break;
    case A_ONEWAY:
        reply.kind = ZP_ONEWAY;
        fake_frame(f, reply, NULL);
        break;
    case GARBAGE:
        fake_raw(f, "garbage", 7);
        break;
    case EVENT_WITH_DESCRIPTOR:
        reply = (struct zp_frame){ .method = ZP_EVENT_PEER_LOST, .kind = ZP_EVENT };
        assert_int_equal(zp_stream_send(f->s, reply, NULL, NULL, &fd, 1), 0);
        break;
    case EVENT_WITHOUT_CODE:
        fake_event(f, ZP_EVENT_JOB_FAILED, FAKE_JOB, 0, 0, "fine");
        break;
    case EVENT_NO_MESSAGE:
        reply = (struct zp_frame){ .method = ZP_EVENT_JOB_FAILED, .kind = ZP_EVENT };
        fake_frame(f, reply, "\x0f");
        break;
    case DESCRIPTORS_UNANNOUNCED:
        zp_frame_put(&reply, bytes);
        (void)send_fds(zp_stream_fd(f->s), bytes, sizeof(bytes), &fd, 1);
        break;
    }
    zb_close_fd(&fd);
}

static bool wrong_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    const struct wrong_case *x = f->arg;

    (void)body;
    if (frame->method == ZP_STAT)
        return true; /* left unanswered */
    if (frame->method != ZP_PING)
        return false;
    answer_wrong(f, x->wrong,
                 (struct zp_frame){ .method = frame->method, .kind = ZP_REPLY, .tag = frame->tag });
    return true;
}

static void wrong_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(wrong_cases); i++) {
        struct session x = session_open(wrong_fn, (void *)(uintptr_t)&wrong_cases[i]);
        struct outcome ping = { .c = x.c }, bystander = { .c = x.c };
        bool first_is_right = wrong_cases[i].wrong == TWICE;
        const uint64_t id = 1;
        struct zc_view view;
        int rc;

        assert_int_equal(zc_fetch_wait(x.c, &id, 1, 0, 0, &view), 0);
        assert_int_equal(zc_job_destroy(x.c, "a", outcome_done, &bystander), 0);
        while (bystander.runs == 0)
            assert_true(zc_poll(x.c, 5000) >= 0);
        bystander.runs = 0;
        assert_int_equal(zc_ping(x.c, outcome_done, &ping), 0);
        while ((rc = zc_poll(x.c, 5000)) > 0)
            ;
        if (rc != -EPROTO || !strstr(zc_error(x.c), wrong_cases[i].says) ||
            !strstr(zc_error(x.c), "violates the protocol"))
            fail_msg("%s: got %d '%s'", wrong_cases[i].name, rc, zc_error(x.c));
        assert_int_equal(ping.runs, 1);
        assert_int_equal(ping.rc, first_is_right ? 0 : -EPROTO);
        assert_int_equal(bystander.runs, 0);
        assert_int_equal(zc_ping_wait(x.c), -EPROTO); /* the error persists */
        assert_int_equal(zc_poll(x.c, -1), -EPROTO);
        assert_int_equal(*(const uint8_t *)view.data, 0); /* mapped memory is still there */
        session_close(&x);
    }
}

/** An error in one reply ends all calls, once each. */
static void all_calls_end(void **state)
{
    static const struct wrong_case garbage = { "", GARBAGE, "" };
    struct session x = session_open(wrong_fn, (void *)(uintptr_t)&garbage);
    struct outcome o[3] = { { .c = x.c }, { .c = x.c }, { .c = x.c } };
    struct zc_stepped stepped;

    (void)state;
    x.f->fn = wrong_fn;
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(zc_ping(x.c, outcome_done, &o[i]), 0);
    assert_int_equal(zc_skip(x.c, FAKE_JOB, 1, ZC_COMMIT_NO, 0, &stepped, outcome_done, &o[2]), 0);
    assert_int_equal(zc_ping_wait(x.c), -EPROTO);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(o[i].runs, 1);
        assert_int_equal(o[i].rc, -EPROTO);
        assert_non_null(strstr(o[i].says, "not a frame"));
    }
    session_close(&x);
}

/* ---- replies that do not fit the request */

enum misfit {
    FEWER_IDS,
    MORE_IDS,
    FEWER_VIEWS,
    MORE_VIEWS,
    VIEW_BEHIND,
    VIEW_OVER_THE_END,
    VIEW_THAT_WRAPS,
    VIEW_OF_NOTHING,
    VIEW_TOO_OLD,
    SHORT_SUM,
    NOTE_TOO_LONG,
    NOTE_PART_TOO_LONG,
    NOTE_WITHOUT_BYTES,
    ROWS_WITHOUT_END,
};

static const struct misfit_case {
    const char *name;
    uint16_t method;
    enum misfit misfit;
    const char *says;
} misfit_cases[] = {
    { "fewer ids", ZP_SHARD_REGISTER, FEWER_IDS, "1 ids for 2" },
    { "more ids", ZP_SHARD_REGISTER, MORE_IDS, "3 ids for 2" },
    { "fewer views", ZP_FETCH, FEWER_VIEWS, "1 views of 2" },
    { "more views", ZP_FETCH, MORE_VIEWS, "3 views of 2" },
    { "a view behind the arena", ZP_FETCH, VIEW_BEHIND, "4096 bytes at 1048576 of" },
    { "a view over its end", ZP_FETCH, VIEW_OVER_THE_END, "4096 bytes at 1044481 of" },
    { "a view that wraps", ZP_FETCH, VIEW_THAT_WRAPS, "18446744073709551615 bytes at 1 of" },
    { "a view of nothing", ZP_FETCH, VIEW_OF_NOTHING, "0 bytes at 0" },
    { "a view of an older version", ZP_FETCH, VIEW_TOO_OLD, "version 4 where 5" },
    { "a short sum", ZP_NORMS, SHORT_SUM, "a sum of 79 bytes" },
    { "a note too long", ZP_NOTE_GET, NOTE_TOO_LONG, "of a note of 65537" },
    { "a part longer than the note", ZP_NOTE_GET, NOTE_PART_TOO_LONG, "11 bytes from 0 of a note" },
    { "a note without bytes", ZP_NOTE_GET, NOTE_WITHOUT_BYTES, "0 bytes from 0 of a note of 10" },
    { "no rows, and more to come", ZP_LIST, ROWS_WITHOUT_END, "without rows" },
};

static void answer_misfit_fetch(struct fake *f, const struct zp_frame *frame, enum misfit misfit)
{
    Zp__FetchReply m = ZP__FETCH_REPLY__INIT;
    Zp__FetchItem item = ZP__FETCH_ITEM__INIT, odd = ZP__FETCH_ITEM__INIT;
    Zp__FetchItem *items[3] = { &item, &odd, &item };

    item.bytes = odd.bytes = FAKE_ITEM;
    item.version = odd.version = 5;
    m.items = items;
    m.n_items = misfit == FEWER_VIEWS ? 1 : misfit == MORE_VIEWS ? 3 : 2;
    if (misfit == VIEW_BEHIND)
        odd.offset = FAKE_ARENA;
    if (misfit == VIEW_OVER_THE_END)
        odd.offset = FAKE_ARENA - FAKE_ITEM + 1;
    if (misfit == VIEW_THAT_WRAPS) {
        odd.offset = 1;
        odd.bytes = UINT64_MAX;
    }
    if (misfit == VIEW_OF_NOTHING)
        odd.bytes = 0;
    if (misfit == VIEW_TOO_OLD)
        odd.version = 4;
    fake_reply(f, frame, &m.base, -1);
}

static bool misfit_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    const struct misfit_case *x = f->arg;
    Zp__ShardRegisterReply ids = ZP__SHARD_REGISTER_REPLY__INIT;
    Zp__NormsReply norms = ZP__NORMS_REPLY__INIT;
    Zp__NoteGetReply note = ZP__NOTE_GET_REPLY__INIT;
    Zp__ListReply list = ZP__LIST_REPLY__INIT;
    uint8_t bytes[80] = { 0 };
    uint64_t three[3] = { 1, 2, 3 };

    (void)body;
    if (frame->method != x->method)
        return false;
    switch (x->misfit) {
    case FEWER_IDS:
    case MORE_IDS:
        ids.shards = three;
        ids.n_shards = x->misfit == FEWER_IDS ? 1 : 3;
        fake_reply(f, frame, &ids.base, -1);
        break;
    case SHORT_SUM:
        norms.sum_of_squares.data = bytes;
        norms.sum_of_squares.len = 79;
        fake_reply(f, frame, &norms.base, -1);
        break;
    case NOTE_TOO_LONG:
    case NOTE_PART_TOO_LONG:
    case NOTE_WITHOUT_BYTES:
        note.total = x->misfit == NOTE_TOO_LONG ? 65537 : 10;
        note.data.data = bytes;
        note.data.len = x->misfit == NOTE_WITHOUT_BYTES ? 0 : 11;
        fake_reply(f, frame, &note.base, -1);
        break;
    case ROWS_WITHOUT_END:
        list.cursor = 5;
        fake_reply(f, frame, &list.base, -1);
        break;
    default:
        answer_misfit_fetch(f, frame, x->misfit);
        break;
    }
    return true;
}

static int call_method(struct session *x, uint16_t method)
{
    static uint8_t note[65536];
    const struct zc_range ranges[2] = { { 0 } };
    const uint64_t wanted[2] = { 1, 2 };
    struct zc_view views[2] = { { .version = 77 }, { .version = 77 } };
    uint64_t ids[2] = { 77, 77 };
    struct zc_norm norm = { .nonfinite = 77 };
    struct zc_shard_row *rows = NULL;
    size_t n = 77;
    int rc = 0;

    switch (method) {
    case ZP_SHARD_REGISTER:
        rc = zc_register_wait(x->c, FAKE_JOB, ranges, 2, ids);
        assert_true(ids[0] == 77 && ids[1] == 77);
        break;
    case ZP_FETCH:
        rc = zc_fetch_wait(x->c, wanted, 2, 5, 0, views);
        assert_true(views[0].version == 77 && views[1].version == 77 && !views[0].data);
        break;
    case ZP_NORMS:
        rc = zc_norms_wait(x->c, FAKE_JOB, 1, &norm);
        assert_true(norm.nonfinite == 77);
        break;
    case ZP_NOTE_GET:
        rc = zc_note_get_wait(x->c, FAKE_JOB, true, note, &n);
        assert_true(n == 77);
        break;
    case ZP_LIST:
        rc = zc_list_wait(x->c, NULL, &rows, &n);
        assert_true(n == 77 && !rows);
        break;
    }
    return rc;
}

static void misfit_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(misfit_cases); i++) {
        struct session x = session_open(misfit_fn, (void *)(uintptr_t)&misfit_cases[i]);
        int rc = call_method(&x, misfit_cases[i].method);

        if (rc != -EPROTO || !strstr(zc_error(x.c), misfit_cases[i].says))
            fail_msg("%s: got %d '%s'", misfit_cases[i].name, rc, zc_error(x.c));
        assert_int_equal(zc_ping_wait(x.c), -EPROTO);
        session_close(&x);
    }
}

/* ---- arenas */

enum memory { SHORTER, LONGER, UNSEALED, A_FILE, A_PIPE, NONE, TWO, NO_JOB };

static const struct memory_case {
    const char *name;
    enum memory memory;
    const char *says;
} memory_cases[] = {
    { "shorter than announced", SHORTER, "arena has 61440 bytes, not 65536" },
    { "longer than announced", LONGER, "arena has 69632 bytes, not 65536" },
    { "not sealed", UNSEALED, "not sealed against shrinking" },
    { "a file", A_FILE, "not sealed against shrinking" },
    { "a pipe", A_PIPE, "not sealed against shrinking" },
    { "no descriptor", NONE, "0 descriptors" },
    { "two descriptors", TWO, "2 descriptors" },
};

static bool memory_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    const struct memory_case *x = f->arg;
    struct zp_frame reply = { .method = frame->method, .kind = ZP_REPLY, .tag = frame->tag };
    Zp__JobOpenReply opened = ZP__JOB_OPEN_REPLY__INIT;
    Zp__ReadyReply ready = ZP__READY_REPLY__INIT;
    const ProtobufCMessage *m = frame->method == ZP_READY ? &ready.base : &opened.base;
    int fds[2] = { -1, -1 };
    unsigned n = 1;

    (void)body;
    if (frame->method != ZP_JOB_OPEN && frame->method != ZP_READY)
        return false;
    if (frame->method == ZP_READY && x->memory == NO_JOB)
        return false;
    opened.job = x->memory == NO_JOB ? 0 : FAKE_JOB;
    opened.staging_bytes = ready.arena_bytes = FAKE_STAGING;
    switch (x->memory) {
    case SHORTER:
        fds[0] = fake_memfd(FAKE_STAGING - 4096, F_SEAL_SHRINK);
        break;
    case LONGER:
        fds[0] = fake_memfd(FAKE_STAGING + 4096, F_SEAL_SHRINK);
        break;
    case UNSEALED:
        fds[0] = fake_memfd(FAKE_STAGING, F_SEAL_GROW);
        break;
    case A_FILE:
        fds[0] = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (fds[0] < 0)
            fds[0] = dup(0);
        break;
    case A_PIPE:
        assert_int_equal(pipe(fds), 0);
        break;
    case NONE:
        n = 0;
        break;
    case TWO:
        fds[0] = fake_memfd(FAKE_STAGING, F_SEAL_SHRINK);
        fds[1] = fake_memfd(FAKE_STAGING, F_SEAL_SHRINK);
        n = 2;
        break;
    case NO_JOB:
        fds[0] = fake_memfd(FAKE_STAGING, F_SEAL_SHRINK);
        break;
    }
    assert_int_equal(zp_stream_send(f->s, reply, m, NULL, fds, n), 0);
    assert_int_equal(zp_stream_write(f->s), 0);
    zb_close_fd(&fds[0]);
    zb_close_fd(&fds[1]);
    return true;
}

static void arenas(void **state)
{
    const struct zc_job_options o = { .name = "j", .world = 1, .groups = 1 };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(memory_cases); i++)
        for (unsigned ready = 0; ready < 2; ready++) {
            struct fake *f = calloc(1, sizeof(*f));
            struct zc_placement placement = { .arena_bytes = 77 };
            struct zc_job job = { .id = 77 };
            struct zc_client *c;
            int rc;

            f->hang_up_at = FAKE_ANY_FRAME;
            f->fn = memory_fn;
            f->arg = (void *)(uintptr_t)&memory_cases[i];
            fake_start(f);
            assert_int_equal(zc_open(&c, &(struct zc_options){ .socket = f->path }), 0);
            rc = ready ? zc_ready_wait(c, FAKE_JOB, NULL, 0, &placement)
                       : zc_job_open_wait(c, &o, &job);
            if (rc != -EPROTO || !strstr(zc_error(c), memory_cases[i].says))
                fail_msg("%s: got %d '%s'", memory_cases[i].name, rc, zc_error(c));
            assert_int_equal(job.id, 77);
            assert_int_equal(placement.arena_bytes, 77);
            assert_int_equal(zc_ping_wait(c), -EPROTO);
            zc_close(c);
            fake_done(f);
            free(f);
        }
}

static void a_job_without_a_number(void **state)
{
    static const struct memory_case no_job = { "", NO_JOB, "" };
    const struct zc_job_options o = { .name = "j", .world = 1, .groups = 1 };
    struct fake f = FAKE_INIT;
    struct zc_client *c;
    struct zc_job job;

    (void)state;
    f.fn = memory_fn;
    f.arg = (void *)(uintptr_t)&no_job;
    fake_start(&f);
    assert_int_equal(zc_open(&c, &(struct zc_options){ .socket = f.path }), 0);
    assert_int_equal(zc_job_open_wait(c, &o, &job), -EPROTO);
    assert_non_null(strstr(zc_error(c), "without a number"));
    zc_close(c);
    fake_done(&f);
}

/** A job has one staging area and one arena. */
static void second_arenas(void **state)
{
    const struct zc_job_options o = { .name = "j", .world = 1, .groups = 1 };

    (void)state;
    for (unsigned ready = 0; ready < 2; ready++) {
        struct session x = session_open(NULL, NULL);
        struct zc_job job;
        int rc = ready ? zc_ready_wait(x.c, FAKE_JOB, NULL, 0, &x.placement)
                       : zc_job_open_wait(x.c, &o, &job);

        assert_int_equal(rc, -EPROTO);
        assert_non_null(strstr(zc_error(x.c), "a second"));
        memset(x.job.staging, 1, x.job.staging_bytes); /* the first staging is still there */
        session_close(&x);
    }
}

/** An arena of 0 bytes means no memory, and is accepted. */
static bool empty_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    Zp__JobOpenReply open = ZP__JOB_OPEN_REPLY__INIT;
    int fd;

    (void)body;
    if (frame->method != ZP_JOB_OPEN)
        return false;
    fd = fake_memfd(0, F_SEAL_SHRINK);
    open.job = FAKE_JOB;
    fake_reply(f, frame, &open.base, fd);
    zb_close_fd(&fd);
    return true;
}

static void an_empty_arena(void **state)
{
    const struct zc_job_options o = { .name = "j", .world = 1, .groups = 1 };
    struct fake f = FAKE_INIT;
    struct zc_client *c;
    struct zc_job job;

    (void)state;
    f.fn = empty_fn;
    fake_start(&f);
    assert_int_equal(zc_open(&c, &(struct zc_options){ .socket = f.path }), 0);
    assert_int_equal(zc_job_open_wait(c, &o, &job), 0);
    assert_null(job.staging);
    assert_int_equal(job.staging_bytes, 0);
    assert_int_equal(zc_write_wait(c, 1, ZC_MASTER, 0, 1, NULL), -EINVAL);
    assert_int_equal(zc_job_close_wait(c, FAKE_JOB), 0);
    zc_close(c);
    fake_done(&f);
}

/** More than the address space. */
static bool huge_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    Zp__JobOpenReply open = ZP__JOB_OPEN_REPLY__INIT;
    int fd;

    (void)body;
    if (frame->method != ZP_JOB_OPEN)
        return false;
    open.job = FAKE_JOB;
    open.staging_bytes = INT64_MAX & ~UINT64_C(4095);
    fd = fake_memfd(open.staging_bytes, F_SEAL_SHRINK);
    fake_reply(f, frame, &open.base, fd);
    zb_close_fd(&fd);
    return true;
}

static void an_arena_that_cannot_be_mapped(void **state)
{
    const struct zc_job_options o = { .name = "j", .world = 1, .groups = 1 };
    struct fake f = FAKE_INIT;
    struct zc_client *c;
    struct zc_job job = { .id = 77 };

    (void)state;
    f.fn = huge_fn;
    fake_start(&f);
    assert_int_equal(zc_open(&c, &(struct zc_options){ .socket = f.path }), 0);
    assert_int_equal(zc_job_open_wait(c, &o, &job), -ENOMEM);
    assert_non_null(strstr(zc_error(c), "map the staging arena of 9223372036854771712 bytes"));
    assert_int_equal(job.id, 77);
    zc_close(c);
    fake_done(&f);
}

/* ---- refusals */

static const struct refusal {
    const char *name, *text;
    int code;
    const char *says;
} refusals[] = {
    { "a message", "it needs 5 GiB, and there are 3", -ENOSPC, "it needs 5 GiB, and there are 3" },
    { "no message", NULL, -ENOSPC, "-ENOSPC: it does not fit" },
    { "one with control characters", "a\nb\x1b[31mc", -EIO, "a?b?[31mc" },
    { "the code of the protocol", "a body that is none", -EPROTO, "a body that is none" },
    { "a method unknown", "this daemon knows no method 2", -ENOSYS,
      "this daemon knows no method 2" },
};

static bool refuse_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    const struct refusal *x = f->arg;

    (void)body;
    if (frame->method != ZP_PING)
        return false;
    fake_refuse(f, frame, x->code, x->text);
    return true;
}

static void refusal_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(refusals); i++) {
        struct session x = session_open(refuse_fn, (void *)(uintptr_t)&refusals[i]);
        struct outcome o = { .c = x.c };

        assert_int_equal(zc_ping_wait(x.c), refusals[i].code);
        if (strcmp(zc_error(x.c), refusals[i].says) != 0)
            fail_msg("%s: '%s'", refusals[i].name, zc_error(x.c));
        assert_int_equal(zc_ping(x.c, outcome_done, &o), 0);
        while (o.runs == 0)
            assert_true(zc_poll(x.c, 5000) >= 0);
        assert_int_equal(o.rc, refusals[i].code);
        assert_string_equal(o.says, refusals[i].says);
        assert_int_equal(zc_norms_wait(x.c, FAKE_JOB, 1, &(struct zc_norm){ 0 }), 0);
        session_close(&x);
    }
}

/* ---- events */

/** Leaves calls of the job unanswered until a ping comes; then sends the event, then the
 * answers. */
struct owing {
    uint16_t event;
    uint64_t job;
    int code;
    unsigned n;
    struct zp_frame frames[8];
};

static bool owing_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    struct owing *x = f->arg;
    const char *text = "rank 3 of job 'j' died";

    (void)body;
    switch (frame->method) {
    case ZP_FETCH:
    case ZP_SKIP:
    case ZP_UNIT_DEFINE:
        x->frames[x->n++] = *frame;
        return true;
    case ZP_PING:
        fake_event(f, x->event, x->job, 3, x->code, text);
        fake_reply(f, frame, NULL, -1);
        while (x->n > 0) /* late answers still come */
            fake_refuse(f, &x->frames[--x->n], -ENOSPC, "late");
        return true;
    default:
        return false;
    }
}

struct heard {
    unsigned events;
    struct zc_event last;
    char text[64];
    struct outcome *before; /* a call of the job: had it ended before the event was reported? */
};

static void hear(void *arg, const struct zc_event *event)
{
    struct heard *h = arg;

    h->events++;
    h->last = *event;
    (void)snprintf(h->text, sizeof(h->text), "%s", event->text);
    if (h->before)
        assert_int_equal(h->before->runs, 0);
}

static void events(void **state)
{
    static const struct {
        uint16_t event;
        uint64_t job;
        int code, rc;
    } rows[] = {
        { ZP_EVENT_PEER_LOST, FAKE_JOB, -EOWNERDEAD, -EOWNERDEAD },
        { ZP_EVENT_JOB_FAILED, FAKE_JOB, -EIO, -EIO },
        { ZP_EVENT_JOB_FAILED, FAKE_JOB + 1, -EIO,
          -ENOSPC },                      /* another job's: calls are answered */
        { 199, FAKE_JOB, -EIO, -ENOSPC }, /* unknown: ignored */
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++)
        for (unsigned listens = 0; listens < 2; listens++) {
            struct owing owing = { .event = rows[i].event,
                                   .job = rows[i].job,
                                   .code = rows[i].code };
            struct session x = session_open(owing_fn, &owing);
            struct outcome o[3] = { { .c = x.c }, { .c = x.c }, { .c = x.c } };
            struct heard h = { .before = &o[0] };
            const struct zc_unit unit = { .name = "u" };
            const uint64_t id = 1;
            struct zc_stepped stepped;
            struct zc_view view;

            if (listens)
                zc_on_event(x.c, hear, &h);
            assert_int_equal(zc_fetch(x.c, &id, 1, 0, 0, &view, outcome_done, &o[0]), 0);
            assert_int_equal(
                zc_skip(x.c, FAKE_JOB, 1, ZC_COMMIT_NO, 0, &stepped, outcome_done, &o[1]), 0);
            assert_int_equal(zc_unit_define(x.c, FAKE_JOB, &unit, outcome_done, &o[2]), 0);
            assert_int_equal(zc_ping_wait(x.c), 0); /* not a call of the job: still answered */
            while (o[0].runs + o[1].runs + o[2].runs < 3)
                assert_true(zc_poll(x.c, 5000) >= 0);
            for (unsigned k = 0; k < 3; k++) {
                assert_int_equal(o[k].runs, 1);
                assert_int_equal(o[k].rc, rows[i].rc);
                assert_string_equal(o[k].says,
                                    rows[i].rc == -ENOSPC ? "late" : "rank 3 of job 'j' died");
            }
            assert_int_equal(h.events, listens && rows[i].event != 199);
            if (h.events) {
                assert_int_equal(h.last.kind, rows[i].event);
                assert_int_equal(h.last.job, rows[i].job);
                assert_int_equal(h.last.rank, 3);
                assert_int_equal(h.last.code, rows[i].code);
                assert_string_equal(h.text, "rank 3 of job 'j' died");
            }
            /* The late answers were dropped; the handle goes on, and leaves the job. */
            zc_on_event(x.c, NULL, NULL);
            assert_int_equal(zc_ping_wait(x.c), 0);
            assert_int_equal(zc_job_close_wait(x.c, FAKE_JOB), 0);
            for (unsigned k = 0; k < 3; k++)
                assert_int_equal(o[k].runs, 1);
            session_close(&x);
        }
}

/** An event ends a blocking form, too. */
static bool event_for_fetch(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)body;
    if (frame->method != ZP_FETCH)
        return false;
    fake_event(f, ZP_EVENT_PEER_LOST, FAKE_JOB, 1, -EOWNERDEAD, "rank 1 died");
    return true;
}

static void an_event_ends_a_blocking_form(void **state)
{
    struct session x = session_open(event_for_fetch, NULL);
    const uint64_t id = 1;
    struct zc_view view;

    (void)state;
    assert_int_equal(zc_fetch_wait(x.c, &id, 1, 0, 0, &view), -EOWNERDEAD);
    assert_string_equal(zc_error(x.c), "rank 1 died");
    session_close(&x);
}

/** Both fetches are unanswered; an event at the second one ends them. */
static bool event_at_second_fetch(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)body;
    if (frame->method != ZP_FETCH)
        return false;
    if (fake_count(f, ZP_FETCH) == 2)
        fake_event(f, ZP_EVENT_PEER_LOST, FAKE_JOB, 1, -EOWNERDEAD, "rank 1 died");
    return true;
}

struct restart {
    struct outcome fetch, norms;
    struct zc_norm norm;
};

static void start_norms(void *arg, int rc)
{
    struct restart *r = arg;

    outcome_done(&r->fetch, rc);
    if (r->fetch.runs == 1)
        assert_int_equal(zc_norms(r->fetch.c, FAKE_JOB, 1, &r->norm, outcome_done, &r->norms), 0);
}

/** A call that a callback starts is not ended together with the callback's own call. */
static void calls_started_by_ended_ones(void **state)
{
    struct session x = session_open(event_at_second_fetch, NULL);
    struct restart r = { .fetch = { .c = x.c }, .norms = { .c = x.c } };
    const uint64_t id = 1;
    struct zc_view views[2];

    (void)state;
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(zc_fetch(x.c, &id, 1, 0, 0, &views[i], start_norms, &r), 0);
    while (r.norms.runs == 0)
        assert_true(zc_poll(x.c, 5000) >= 0);
    assert_int_equal(r.fetch.runs, 2);
    assert_int_equal(r.fetch.rc, -EOWNERDEAD);
    assert_int_equal(r.norms.rc, 0);
    assert_true(zc_norm_value(&r.norm) == 3);
    session_close(&x);
}

/** A good reply comes to a call that an event has ended. */
static bool event_then_reply(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    if (frame->method != ZP_SKIP && frame->method != ZP_NOTE_PUT)
        return false;
    fake_event(f, ZP_EVENT_JOB_FAILED, FAKE_JOB, 0, -EIO, "the device failed");
    fake_answer(f, frame, body);
    return true;
}

static void a_late_reply_writes_nothing(void **state)
{
    struct session x = session_open(event_then_reply, NULL);
    struct zc_stepped stepped = { .iterations = 77, .applied = 78 };
    static uint8_t note[40000];

    (void)state;
    assert_int_equal(zc_skip_wait(x.c, FAKE_JOB, 5, ZC_COMMIT_NO, 0, &stepped), -EIO);
    assert_int_equal(zc_note_put_wait(x.c, FAKE_JOB, false, note, sizeof(note)), -EIO);
    assert_int_equal(zc_ping_wait(x.c), 0);
    assert_int_equal(stepped.iterations, 77);
    assert_int_equal(stepped.applied, 78);
    assert_int_equal(fake_count(x.f, ZP_NOTE_PUT), 1); /* its other parts are not sent */
    session_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_table),
        cmocka_unit_test(all_calls_end),
        cmocka_unit_test(misfit_table),
        cmocka_unit_test(arenas),
        cmocka_unit_test(a_job_without_a_number),
        cmocka_unit_test(second_arenas),
        cmocka_unit_test(an_empty_arena),
        cmocka_unit_test(an_arena_that_cannot_be_mapped),
        cmocka_unit_test(refusal_table),
        cmocka_unit_test(events),
        cmocka_unit_test(an_event_ends_a_blocking_form),
        cmocka_unit_test(calls_started_by_ended_ones),
        cmocka_unit_test(a_late_reply_writes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
