/* Saved data: commits, snapshots, readers, scrub, fsck, df. What is sent for each, what comes back,
 * and answers that a daemon must not give. */
#include "tests/ztest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "tests/unit/client/session.h"

#define TEXT(s) ((char *)(uintptr_t)(s))

/* ---- commits */

/** A step is made but its commit has failed; a commit request is answered. */
static bool commit_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    Zp__StepReply step = ZP__STEP_REPLY__INIT;
    Zp__CommitReply commit = ZP__COMMIT_REPLY__INIT;
    const char *text = f->arg;

    (void)body;
    if (frame->method == ZP_STEP) {
        step.iterations = 3;
        step.applied = 2;
        step.commit_code = -ENOSPC;
        step.commit_text = TEXT(text);
        fake_reply(f, frame, &step.base, -1);
    } else if (frame->method == ZP_COMMIT) {
        commit.iterations = 8;
        commit.applied = 7;
        fake_reply(f, frame, &commit.base, -1);
    } else {
        return false;
    }
    return true;
}

static void commits(void **state)
{
    static const struct {
        enum zc_commit what;
        uint32_t sent;
        enum zc_point_kind kind;
    } rows[] = {
        { ZC_COMMIT_STEP, 1, ZC_POINT_COMMITTED },
        { ZC_COMMIT_PREPARE, 2, ZC_POINT_PREPARED },
        { ZC_COMMIT_PREPARED, 3, ZC_POINT_COMMITTED },
        { ZC_COMMIT_DROP, 4, ZC_POINT_COMMITTED },
    };
    struct session x = session_open(commit_fn, TEXT("no room"));
    struct zp_arena *arena;
    const Zp__Progress *progress;

    (void)state;
    for (uint32_t i = 0; i < ZB_COUNT(rows); i++) {
        struct zc_point point;
        const Zp__Commit *q;

        assert_int_equal(zc_commit_wait(x.c, FAKE_JOB, rows[i].what, 8, 90, &point), 0);
        assert_int_equal(point.kind, rows[i].kind);
        assert_int_equal(point.iterations, 8);
        assert_int_equal(point.applied, 7);
        q = fake_nth(x.f, ZP_COMMIT, i, &arena);
        assert_int_equal(q->job, FAKE_JOB);
        assert_int_equal(q->what, rows[i].sent);
        assert_int_equal(q->iterations, 8);
        assert_int_equal(q->timeout_ms, 90);
        zp_arena_free(arena);
    }
    assert_int_equal(zc_progress_wait(x.c, FAKE_JOB, 12, 11), 0);
    progress = fake_nth(x.f, ZP_PROGRESS, 0, &arena);
    assert_int_equal(progress->job, FAKE_JOB);
    assert_int_equal(progress->iterations, 12);
    assert_int_equal(progress->applied, 11);
    zp_arena_free(arena);
    session_close(&x);
}

/** The step counts; the reason why it is not durable is reported in addition. */
static void a_step_whose_commit_failed(void **state)
{
    static const char *const texts[][2] = { { "no room", "no room" },
                                            { "", "-ENOSPC: it does not fit" } };
    const struct zc_group group = { 0 };
    const struct zc_step step = { .step = 3, .groups = &group, .ngroups = 1, .commit = 1 };

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct session x = session_open(commit_fn, TEXT(texts[i][0]));
        struct zc_stepped stepped = { 0 };

        assert_int_equal(zc_step_wait(x.c, FAKE_JOB, &step, &stepped), 0);
        assert_int_equal(stepped.iterations, 3);
        assert_int_equal(stepped.applied, 2);
        assert_int_equal(stepped.commit_code, -ENOSPC);
        assert_string_equal(stepped.commit_text, texts[i][1]);
        session_close(&x);
    }
}

/** Disconnected by a newer epoch: an event like any other end of the job. */
static bool fence_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    (void)body;
    if (frame->method != ZP_SKIP)
        return false;
    fake_event(f, ZP_EVENT_JOB_FAILED, FAKE_JOB, 0, -ESTALE, "cut off: epoch 6 has begun");
    fake_refuse(f, frame, -ESTALE, "cut off: epoch 6 has begun");
    return true;
}

static void a_rank_is_cut_off(void **state)
{
    struct session x = session_open(fence_fn, NULL);
    struct zc_stepped stepped;

    (void)state;
    assert_int_equal(zc_skip_wait(x.c, FAKE_JOB, 3, ZC_COMMIT_NO, 0, &stepped), -ESTALE);
    assert_string_equal(zc_error(x.c), "cut off: epoch 6 has begun");
    assert_int_equal(zc_exit_code(-ESTALE), ZC_EXIT_REFUSED);
    assert_int_equal(zc_ping_wait(x.c), 0);
    session_close(&x);
}

/* ---- snapshots */

static void fill_snapshot(Zp__SnapshotRow *m)
{
    m->job = TEXT("j");
    m->name = TEXT("s");
    m->iterations = 1;
    m->applied = 2;
    m->created_unix = 3;
    m->bytes = 4;
    m->own_bytes = 5;
    m->world = 6;
}

static void expect_snapshot(const struct zc_snapshot_row *r)
{
    assert_string_equal(r->job, "j");
    assert_string_equal(r->name, "s");
    assert_true(r->iterations == 1 && r->applied == 2 && r->created_unix == 3);
    assert_true(r->bytes == 4 && r->own_bytes == 5 && r->world == 6);
}

static bool snapshot_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    Zp__SnapshotRow row = ZP__SNAPSHOT_ROW__INIT, *rows[1] = { &row };
    Zp__SnapshotsReply reply = ZP__SNAPSHOTS_REPLY__INIT;

    (void)body;
    fill_snapshot(&row);
    if (frame->method == ZP_SNAPSHOTS) { /* three of them, one by one */
        reply.n_rows = 1;
        reply.rows = rows;
        reply.cursor = fake_count(f, ZP_SNAPSHOTS) % 3;
        fake_reply(f, frame, &reply.base, -1);
    } else if (frame->method == ZP_SNAPSHOT || frame->method == ZP_ROLLBACK ||
               frame->method == ZP_CLONE) {
        fake_reply(f, frame, &row.base, -1);
    } else {
        return false;
    }
    return true;
}

static void snapshots(void **state)
{
    struct session x = session_open(snapshot_fn, NULL);
    const struct zc_snapshot full = {
        .job = "j", .name = "s", .next = true, .retain = 3, .timeout_ms = 4
    };
    const struct zc_snapshot plain = { .job = "j" };
    struct zc_snapshot_row row, *rows = NULL;
    const Zp__SnapshotsRequest *list;
    const Zp__SnapshotTake *take;
    const Zp__SnapshotRef *ref;
    const Zp__Clone *clone;
    struct zp_arena *arena;
    size_t n = 0;

    (void)state;
    memset(&row, 0xee, sizeof(row));
    assert_int_equal(zc_snapshot_wait(x.c, &full, &row), 0);
    expect_snapshot(&row);
    take = fake_nth(x.f, ZP_SNAPSHOT, 0, &arena);
    assert_string_equal(take->job, "j");
    assert_string_equal(take->name, "s");
    assert_true(take->next && take->retain == 3 && take->timeout_ms == 4);
    zp_arena_free(arena);
    assert_int_equal(zc_snapshot_wait(x.c, &plain, &row), 0);
    take = fake_nth(x.f, ZP_SNAPSHOT, 1, &arena);
    assert_string_equal(take->name, "");
    assert_true(!take->next && take->retain == 0);
    zp_arena_free(arena);

    memset(&row, 0xee, sizeof(row));
    assert_int_equal(zc_rollback_wait(x.c, "j", NULL, &row), 0);
    expect_snapshot(&row);
    ref = fake_nth(x.f, ZP_ROLLBACK, 0, &arena);
    assert_string_equal(ref->job, "j");
    assert_string_equal(ref->name, "");
    zp_arena_free(arena);

    memset(&row, 0xee, sizeof(row));
    assert_int_equal(zc_clone_wait(x.c, "j", "s", "new", &row), 0);
    expect_snapshot(&row);
    clone = fake_nth(x.f, ZP_CLONE, 0, &arena);
    assert_string_equal(clone->job, "j");
    assert_string_equal(clone->snapshot, "s");
    assert_string_equal(clone->name, "new");
    zp_arena_free(arena);

    assert_int_equal(zc_snapshot_destroy_wait(x.c, "j", "s"), 0);
    ref = fake_nth(x.f, ZP_SNAPSHOT_DESTROY, 0, &arena);
    assert_string_equal(ref->job, "j");
    assert_string_equal(ref->name, "s");
    zp_arena_free(arena);

    assert_int_equal(zc_snapshots_wait(x.c, "j", &rows, &n), 0);
    assert_int_equal(n, 3);
    expect_snapshot(&rows[2]);
    list = fake_nth(x.f, ZP_SNAPSHOTS, 2, &arena);
    assert_string_equal(list->job, "j");
    assert_int_equal(list->cursor, 2);
    zp_arena_free(arena);
    zc_rows_free(rows);
    session_close(&x);
}

/* ---- readers */

static bool is_mapped(void *p)
{
    return msync(p, 4096, MS_ASYNC) == 0;
}

static void readers(void **state)
{
    struct session x = session_open(NULL, NULL);
    struct zc_reader reader, second;
    struct zc_unit *unit = NULL;
    const Zp__ReaderOpen *open;
    const Zp__ReaderRead *read;
    const Zp__ReaderRef *ref;
    struct zp_arena *arena;

    (void)state;
    assert_int_equal(zc_reader_open_wait(x.c, "j", "s", 5, &reader), 0);
    open = fake_nth(x.f, ZP_READER_OPEN, 0, &arena);
    assert_string_equal(open->job, "j");
    assert_string_equal(open->snapshot, "s");
    assert_int_equal(open->staging_bytes, 5);
    zp_arena_free(arena);
    assert_int_equal(reader.id, FAKE_READER);
    assert_true(reader.iterations == 6 && reader.applied == 5 && reader.units == 2);
    assert_true(reader.groups == 3 && reader.world == 4);
    assert_int_equal(reader.staging_bytes, FAKE_STAGING);
    memset(reader.staging, 1, reader.staging_bytes); /* in addition to the job's */
    memset(x.job.staging, 2, x.job.staging_bytes);
    assert_int_equal(*(const uint8_t *)reader.staging, 1);

    assert_int_equal(zc_reader_open_wait(x.c, "j", NULL, 5, &second), -EBUSY);
    assert_int_equal(fake_count(x.f, ZP_READER_OPEN), 1);

    assert_int_equal(zc_reader_unit_wait(x.c, FAKE_READER, 0, &unit), 0);
    assert_int_equal(fake_count(x.f, ZP_READER_UNIT), 3);
    assert_int_equal(unit->index, 0);
    assert_string_equal(unit->name, "unit");
    assert_true(unit->elems == 99 && unit->dtype == ZC_BF16 && unit->grad_dtype == ZC_F32);
    assert_true(unit->frozen && unit->quantized);
    assert_int_equal(unit->ntensors, FAKE_TENSORS);
    for (uint32_t i = 0; i < unit->ntensors; i++) {
        const struct zc_tensor *t = &unit->tensors[i];
        char name[32];

        (void)snprintf(name, sizeof(name), "tensor.%u", i);
        assert_string_equal(t->name, name);
        assert_int_equal(t->first, 12 * i);
        assert_int_equal(t->ndims, i % FAKE_TENSORS_PART % 2 == 0 ? 2 : 0);
        assert_true(t->ndims == 0 || (t->dims[0] == 3 && t->dims[1] == 4));
        assert_int_equal(t->group, i % FAKE_TENSORS_PART % 3);
    }
    zc_rows_free(unit);
    assert_int_equal(zc_reader_unit_wait(x.c, FAKE_READER, 1, &unit), 0);
    assert_true(unit->index == 1 && unit->ntensors == 0 && !unit->tensors);
    zc_rows_free(unit);

    assert_int_equal(zc_reader_read_wait(x.c, FAKE_READER, 1, ZC_EXP_AVG_SQ, 7, 8,
                                         (uint8_t *)reader.staging + 64),
                     0);
    read = fake_nth(x.f, ZP_READER_READ, 0, &arena);
    assert_true(read->reader == FAKE_READER && read->unit == 1 && read->what == ZC_EXP_AVG_SQ);
    assert_true(read->first == 7 && read->count == 8 && read->staging == 64);
    zp_arena_free(arena);
    assert_int_equal(zc_reader_read_wait(x.c, FAKE_READER, 1, ZC_PARAM, 0, 1, x.job.staging),
                     -EINVAL); /* the job's staging, not the reader's */
    assert_true(is_mapped(reader.staging));
    assert_int_equal(zc_reader_close_wait(x.c, FAKE_READER), 0);
    assert_false(is_mapped(reader.staging));
    ref = fake_nth(x.f, ZP_READER_CLOSE, 0, &arena);
    assert_int_equal(ref->reader, FAKE_READER);
    zp_arena_free(arena);
    assert_int_equal(zc_reader_open_wait(x.c, "j", NULL, 5, &second), 0);
    open = fake_nth(x.f, ZP_READER_OPEN, 1, &arena);
    assert_string_equal(open->snapshot, "");
    zp_arena_free(arena);
    assert_true(is_mapped(second.staging));
    session_close(&x); /* while the reader is open */
    assert_false(is_mapped(second.staging));
}

/* ---- maintenance */

static bool care_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    static char *texts[2] = { TEXT("job 'j', shard 3, page 4"), TEXT("and another") };
    Zp__ScrubReply scrub = ZP__SCRUB_REPLY__INIT;
    Zp__FsckReply fsck = ZP__FSCK_REPLY__INIT;

    (void)body;
    if (frame->method == ZP_SCRUB) {
        scrub.state = TEXT("running");
        scrub.bytes = 1;
        scrub.total_bytes = 2;
        scrub.bad_pages = 3;
        scrub.elapsed_ms = 4;
        scrub.eta_ms = 5;
        scrub.rate_bytes = 6;
        scrub.bad = texts;
        scrub.n_bad = 2;
        fake_reply(f, frame, &scrub.base, -1);
    } else if (frame->method == ZP_FSCK) {
        fsck.jobs = 1;
        fsck.versions = 2;
        fsck.snapshots = 3;
        fsck.rows = 4;
        fsck.pages = 5;
        fsck.bytes = 6;
        fsck.sequence = 7;
        fsck.problems_total = 8;
        fsck.problems = texts;
        fsck.n_problems = 1;
        fake_reply(f, frame, &fsck.base, -1);
    } else {
        return false;
    }
    return true;
}

static void care(void **state)
{
    struct session x = session_open(care_fn, NULL);
    struct zc_message *texts = NULL;
    struct zc_scrub scrub;
    struct zc_fsck fsck;
    struct zp_arena *arena;
    const Zp__Scrub *q;
    size_t n = 0;

    (void)state;
    assert_int_equal(zc_scrub_wait(x.c, ZC_SCRUB_RESUME, 9, &scrub, &texts, &n), 0);
    q = fake_nth(x.f, ZP_SCRUB, 0, &arena);
    assert_true(q->action == 3 && q->rate_bytes == 9);
    zp_arena_free(arena);
    assert_string_equal(scrub.state, "running");
    assert_true(scrub.bytes == 1 && scrub.total_bytes == 2 && scrub.bad_pages == 3);
    assert_true(scrub.elapsed_ms == 4 && scrub.eta_ms == 5 && scrub.rate_bytes == 6);
    assert_int_equal(n, 2);
    assert_string_equal(texts[0].text, "job 'j', shard 3, page 4");
    assert_string_equal(texts[1].text, "and another");
    zc_rows_free(texts);

    assert_int_equal(zc_fsck_wait(x.c, &fsck, &texts, &n), 0);
    assert_true(fsck.jobs == 1 && fsck.versions == 2 && fsck.snapshots == 3 && fsck.rows == 4);
    assert_true(fsck.pages == 5 && fsck.bytes == 6 && fsck.sequence == 7);
    assert_int_equal(fsck.problems_total, 8);
    assert_int_equal(n, 1);
    zc_rows_free(texts);
    session_close(&x);
}

/* ---- df: three jobs in two replies; the sum reveals changes in between */

struct df_plan {
    unsigned wrong; /* this many attempts do not add up */
    bool one_reply;
};

static bool df_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    const struct df_plan *plan = f->arg;
    Zp__DfRow row = ZP__DF_ROW__INIT, *rows[3] = { &row, &row, &row };
    Zp__DfReply m = ZP__DF_REPLY__INIT;
    uint32_t k;

    (void)body;
    if (frame->method != ZP_DF)
        return false;
    k = fake_count(f, ZP_DF) - 1;
    row.job = TEXT("j");
    row.committed = 1;
    row.prepared = 2;
    row.snapshots = 3;
    row.working = 4;
    row.reserved = 5;
    row.shared = 600;
    m.meta = 7;
    m.free = 8;
    m.total = 7 + 8 + 3 * 15 + (k / 2 < plan->wrong);
    m.catalog_bytes = 9;
    m.rows = rows;
    m.n_rows = plan->one_reply ? 3 : k % 2 == 0 ? 2 : 1;
    m.cursor = plan->one_reply || k % 2 == 1 ? 0 : 2;
    fake_reply(f, frame, &m.base, -1);
    return true;
}

static void space(void **state)
{
    static const struct {
        const char *name;
        struct df_plan plan;
        int rc;
        uint32_t requests;
    } rows[] = {
        { "two replies that add up", { 0, false }, 0, 2 },
        { "then those that do not, thrice", { 3, false }, 0, 8 },
        { "never", { 1000, false }, -EAGAIN, 20 },
        { "one reply is of one moment", { 1000, true }, 0, 1 },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct df_plan plan = rows[i].plan;
        struct session x = session_open(df_fn, &plan);
        struct zc_df_row *list = NULL;
        struct zc_df df;
        size_t n = 77;
        int rc = zc_df_wait(x.c, &df, &list, &n);

        if (rc != rows[i].rc || fake_count(x.f, ZP_DF) != rows[i].requests)
            fail_msg("%s: %d after %u requests", rows[i].name, rc, fake_count(x.f, ZP_DF));
        if (rc == 0) {
            assert_int_equal(n, 3);
            assert_string_equal(list[2].job, "j");
            assert_true(list[2].committed == 1 && list[2].prepared == 2 && list[2].snapshots == 3);
            assert_true(list[2].working == 4 && list[2].reserved == 5 && list[2].shared == 600);
            assert_true(df.meta == 7 && df.free == 8 && df.catalog_bytes == 9);
            assert_true(df.total == 60 || rows[i].plan.one_reply);
        }
        zc_rows_free(list);
        session_close(&x);
    }
}

/* ---- answers that are rejected */

enum lie {
    FOUR_POINTS,
    POINT_OF_NO_KIND,
    COMMIT_CODE,
    NO_READER,
    NO_OPTIMIZER,
    NO_MOMENTS,
    UNIT_NAME,
    UNIT_DTYPE,
    UNIT_GRAD_DTYPE,
    UNIT_QUANTIZED,
    TENSOR_DIMS,
    TENSOR_NAME,
    CURSOR_WITHOUT_TENSORS,
    CURSOR_THAT_JUMPS,
    FEWER_PROBLEMS,
};

static const struct lie_case {
    const char *name;
    uint16_t method;
    enum lie lie;
    const char *says;
} lies[] = {
    { "four points", ZP_JOB_OPEN, FOUR_POINTS, "4 points" },
    { "a point of no kind", ZP_JOB_OPEN, POINT_OF_NO_KIND, "kind 4" },
    { "a positive commit code", ZP_SKIP, COMMIT_CODE, "code 5" },
    { "a reader without a number", ZP_READER_OPEN, NO_READER, "without a number" },
    { "a reader of no optimizer", ZP_READER_OPEN, NO_OPTIMIZER, "optimizer 0" },
    { "a reader of no moments", ZP_READER_OPEN, NO_MOMENTS, "moments 9" },
    { "a unit without a name", ZP_READER_UNIT, UNIT_NAME, "a unit ''" },
    { "a unit of no dtype", ZP_READER_UNIT, UNIT_DTYPE, "dtype 9" },
    { "gradients of no dtype", ZP_READER_UNIT, UNIT_GRAD_DTYPE, "gradients of dtype 4" },
    { "8 bits of what is trained", ZP_READER_UNIT, UNIT_QUANTIZED,
      "that is quantized, and not frozen" },
    { "a tensor of 9 dimensions", ZP_READER_UNIT, TENSOR_DIMS, "9 dimensions" },
    { "a tensor without a name", ZP_READER_UNIT, TENSOR_NAME, "a tensor ''" },
    { "no tensors, and more to come", ZP_READER_UNIT, CURSOR_WITHOUT_TENSORS, "0 tensors" },
    { "a cursor that jumps", ZP_READER_UNIT, CURSOR_THAT_JUMPS, "more from 5 on" },
    { "fewer problems than told", ZP_FSCK, FEWER_PROBLEMS, "1 of 0 problems" },
};

static void lie_unit(struct fake *f, const struct zp_frame *frame, enum lie lie)
{
    Zp__ReaderUnitReply m = ZP__READER_UNIT_REPLY__INIT;
    Zp__Tensor tensor = ZP__TENSOR__INIT, *tensors[1] = { &tensor };
    uint64_t dims[9] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 };

    m.name = TEXT(lie == UNIT_NAME ? "" : "unit");
    m.dtype = lie == UNIT_DTYPE ? 9 : 1;
    m.grad_dtype = lie == UNIT_GRAD_DTYPE ? 4 : 1;
    m.quantized = lie == UNIT_QUANTIZED;
    tensor.name = TEXT(lie == TENSOR_NAME ? "" : "w");
    tensor.dims = dims;
    tensor.n_dims = lie == TENSOR_DIMS ? 9 : 1;
    m.tensors = tensors;
    m.n_tensors = lie != CURSOR_WITHOUT_TENSORS;
    m.cursor = lie == CURSOR_WITHOUT_TENSORS ? 3 : lie == CURSOR_THAT_JUMPS ? 5 : 0;
    fake_reply(f, frame, &m.base, -1);
}

static void lie_open(struct fake *f, const struct zp_frame *frame, enum lie lie)
{
    Zp__JobOpenReply m = ZP__JOB_OPEN_REPLY__INIT;
    Zp__Point point = ZP__POINT__INIT, *points[4] = { &point, &point, &point, &point };
    int fd = fake_memfd(0, F_SEAL_SHRINK);

    point.kind = lie == POINT_OF_NO_KIND ? 4 : 1;
    m.job = FAKE_JOB;
    m.points = points;
    m.n_points = lie == FOUR_POINTS ? 4 : 1;
    fake_reply(f, frame, &m.base, fd);
    zb_close_fd(&fd);
}

static bool lie_fn(struct fake *f, const struct zp_frame *frame, const uint8_t *body)
{
    const struct lie_case *x = f->arg;
    Zp__StepReply step = ZP__STEP_REPLY__INIT;
    Zp__ReaderOpenReply reader = ZP__READER_OPEN_REPLY__INIT;
    Zp__FsckReply fsck = ZP__FSCK_REPLY__INIT;
    char *texts[1] = { TEXT("a problem") };
    int fd;

    (void)body;
    if (frame->method != x->method)
        return false;
    switch (x->method) {
    case ZP_JOB_OPEN:
        lie_open(f, frame, x->lie);
        break;
    case ZP_READER_UNIT:
        lie_unit(f, frame, x->lie);
        break;
    case ZP_SKIP:
        step.commit_code = 5;
        fake_reply(f, frame, &step.base, -1);
        break;
    case ZP_READER_OPEN:
        reader.reader = x->lie == NO_READER ? 0 : FAKE_READER;
        reader.optimizer = x->lie == NO_OPTIMIZER ? 0 : 1;
        reader.moments = x->lie == NO_MOMENTS ? 9 : 1;
        fd = fake_memfd(0, F_SEAL_SHRINK);
        fake_reply(f, frame, &reader.base, fd);
        zb_close_fd(&fd);
        break;
    default:
        fsck.problems = texts;
        fsck.n_problems = 1;
        fake_reply(f, frame, &fsck.base, -1);
        break;
    }
    return true;
}

static int ask(struct zc_client *c, uint16_t method)
{
    const struct zc_job_options options = { .name = "j", .world = 1, .groups = 1 };
    struct zc_stepped stepped = { .iterations = 77 };
    struct zc_reader reader = { .id = 77 };
    struct zc_job job = { .id = 77 };
    struct zc_message *texts = NULL;
    struct zc_unit *unit = NULL;
    struct zc_fsck fsck;
    size_t n = 77;
    int rc;

    switch (method) {
    case ZP_JOB_OPEN:
        rc = zc_job_open_wait(c, &options, &job);
        break;
    case ZP_SKIP:
        rc = zc_skip_wait(c, FAKE_JOB, 1, ZC_COMMIT_STEP, 0, &stepped);
        break;
    case ZP_READER_OPEN:
        rc = zc_reader_open_wait(c, "j", NULL, 0, &reader);
        break;
    case ZP_READER_UNIT:
        rc = zc_reader_unit_wait(c, FAKE_READER, 0, &unit);
        break;
    default:
        rc = zc_fsck_wait(c, &fsck, &texts, &n);
        break;
    }
    assert_true(stepped.iterations == 77 && reader.id == 77 && job.id == 77 && n == 77);
    assert_true(!unit && !texts);
    return rc;
}

static void lie_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(lies); i++) {
        struct fake *f = calloc(1, sizeof(*f));
        struct zc_client *c;
        int rc;

        assert_non_null(f);
        f->hang_up_at = FAKE_ANY_FRAME;
        f->fn = lie_fn;
        f->arg = TEXT(&lies[i]);
        fake_start(f);
        assert_int_equal(zc_open(&c, &(struct zc_options){ .socket = f->path }), 0);
        rc = ask(c, lies[i].method);
        if (rc != -EPROTO || !strstr(zc_error(c), lies[i].says))
            fail_msg("%s: got %d '%s'", lies[i].name, rc, zc_error(c));
        assert_int_equal(zc_ping_wait(c), -EPROTO);
        zc_close(c);
        fake_done(f);
        free(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commits),   cmocka_unit_test(a_step_whose_commit_failed),
        cmocka_unit_test(snapshots), cmocka_unit_test(a_rank_is_cut_off),
        cmocka_unit_test(readers),   cmocka_unit_test(care),
        cmocka_unit_test(space),     cmocka_unit_test(lie_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
