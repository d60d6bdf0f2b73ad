/*
 * Changes of a saved job of many rows: each turn handles a part of them, and events between two
 * parts are taken into account. The bytes of these rows are never read: their places are taken, but
 * not written.
 */
#include "tests/unit/daemon/core_fixture.h"

#include "daemon/op/commit.h"
#include "daemon/op/resume.h"
#include "daemon/store/delta.h"
#include "daemon/store/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define FROZEN_BYTES (2u * ZB_BLOCK_ELEMS) /* a page of bf16 */
#define ALL          4u                    /* the number of places for each page */
#define SMALL        (64 << 20)            /* allocations in memory are not larger than this */

struct rows {
    struct world w;
    char catalog[80];
    uint32_t n;
    uint64_t longest, total; /* work of turns since the last request */
};

/* ---- the data file has no bytes, whatever its length */

int __real_fallocate(int fd, int mode, off_t at, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t at, off_t bytes);
int __wrap_fstatvfs(int fd, struct statvfs *ret);

int __wrap_fallocate(int fd, int mode, off_t at, off_t bytes)
{
    if (bytes <= SMALL)
        return __real_fallocate(fd, mode, at, bytes); /* memory, not the data file */
    errno = EOPNOTSUPP;
    return -1;
}

int __wrap_fstatvfs(int fd, struct statvfs *ret)
{
    (void)fd;
    (void)ret;
    errno = ENOSYS;
    return -1;
}

/* ---- counts */

static void held_version(struct zb_needs *held, const struct zsd_version *v, uint64_t stamp)
{
    for (uint32_t i = 0; v && i < v->nrows; i++) {
        if (v->rows[i]->stamp != stamp)
            assert_int_equal(zsd_row_needs(held, v->rows[i], 1), 0);
        v->rows[i]->stamp = stamp;
    }
}

/* What each job's versions hold must be the sum of their rows. What is promised must be what a
 * count in one turn gives. */
static void counted(struct rows *r)
{
    struct zsd_store *store = r->w.daemon.core->store;

    zb_list_each(pos, &store->saved)
    {
        struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);
        struct zb_needs held = { 0 }, promise = { 0 };
        uint64_t stamp = ++store->stamp;

        held_version(&held, s->committed, stamp);
        held_version(&held, s->prepared, stamp);
        zb_list_each(at, &s->snaps)
            held_version(&held, zb_container_of(at, struct zsd_snap, node)->version, stamp);
        assert_int_equal(held.n, s->held.n);
        for (uint32_t i = 0; i < held.n; i++) {
            assert_int_equal(held.needs[i].bytes, s->held.needs[i].bytes);
            assert_int_equal(held.needs[i].count, s->held.needs[i].count);
        }
        assert_int_equal(zb_needs_sum(&promise, &s->promise, 1), 0);
        assert_int_equal(zsd_saved_reserve(s, NULL), 0);
        assert_int_equal(promise.n, s->promise.n);
        for (uint32_t i = 0; i < promise.n; i++)
            assert_int_equal(promise.needs[i].count, s->promise.needs[i].count);
        zb_needs_done(&held);
        zb_needs_done(&promise);
    }
}

/* ---- turns */

static void rows_turn(struct rows *r)
{
    struct zsd_stats *stats = &r->w.daemon.stats;

    stats->turn_max_work = 0;
    world_turn(&r->w);
    r->longest = zb_max_u64(r->longest, stats->turn_max_work);
    r->total += stats->turn_max_work;
    if (zb_list_empty(&r->w.daemon.core->works))
        (void)usleep(100);
}

/* Turns until the request is answered and nothing is in progress; returns the code. */
static int rows_answer(struct world *w, unsigned tag)
{
    struct rows *r = zb_container_of(w, struct rows, w);

    while (answers[tag].rc == NONE || zsd_core_busy(&w->daemon) > 0)
        rows_turn(r);
    return answers[tag].rc;
}

/* No turn was longer than allowed, and all together handled at least this many times the number of
 * rows. */
static void bounded(struct rows *r, const char *what, uint64_t least)
{
    if (r->longest > ZSD_TURN_WORK || r->total < least * r->n)
        fail_msg("%s: the longest turn of %llu units of work, all together %llu", what,
                 (unsigned long long)r->longest, (unsigned long long)r->total);
    counted(r);
    r->longest = r->total = 0;
}

static void rows_ask(struct rows *r, unsigned c, zsd_handler *handler, const void *message)
{
    r->longest = r->total = 0;
    r->w.daemon.turns.work = 0;
    ask(&r->w, c, handler, message);
}

static void rows_call(struct rows *r, unsigned c, zsd_handler *handler, const void *message)
{
    rows_ask(r, c, handler, message);
    if (rows_answer(&r->w, c) != 0)
        fail_msg("%s", answers[c].text);
}

/* ---- a durable job of many frozen shards of a page, and a trained one */

static void rows_store(struct rows *r)
{
    struct zb_err err = { 0 };

    memset(r, 0, sizeof(*r));
    r->n = ztest_is_long() ? 1000000 : 20000;
    world_open_sized(&r->w, 64 << 20, "threads", 2,
                     (uint64_t)r->n * ALL * FROZEN_BYTES + (64 << 20), ZB_BLOCK_ELEMS);
    r->w.staging_bytes = ZB_BLOCK_ELEMS * sizeof(float);
    (void)snprintf(r->catalog, sizeof(r->catalog), "%s.catalog", r->w.path);
    r->w.daemon.catalog_path = r->catalog;
    if (zsd_store_open(r->w.daemon.core, &err) != 0)
        fail_msg("%s", err.text);
}

static void rows_register(struct rows *r)
{
    uint64_t firsts[ZP_SHARDS_MAX], done = 0;

    while (done < r->n) {
        uint32_t n = (uint32_t)zb_min_u64(ZP_SHARDS_MAX, r->n - done);

        for (uint32_t i = 0; i < n; i++)
            firsts[i] = done++ * ZB_BLOCK_ELEMS;
        assert_int_equal(ranges_register(&r->w, firsts, n), 0);
    }
    r->w.clients[0].count[1] = ZB_BLOCK_ELEMS;
    assert_int_equal(shards_register(&r->w, 0, 2), 0);
}

/* As if their pages had been written. */
static void rows_places(struct rows *r)
{
    struct zsd_job *job = job_of(&r->w, 0);

    for (uint32_t i = 0; i < job->nshards; i++) {
        struct zsd_shard *s = job->shards[i];

        if (!s->unit->layout.frozen)
            continue;
        s->planes[ZB_PARAM].extents[0] = (struct zsd_extent){
            .at = zsd_extent_take(job->core, FROZEN_BYTES), .job = job->number, .generation = 1
        };
        zsd_shard_written(s, s->npages);
    }
}

static void rows_open(struct rows *r)
{
    const struct unit units[2] = {
        { .name = "frozen", .dtype = ZB_BF16, .grad_dtype = ZB_F32, .frozen = true },
        { .name = "trained",
          .elems = ZB_BLOCK_ELEMS,
          .dtype = ZB_BF16,
          .grad_dtype = ZB_F32,
          .tensors = { { .count = ZB_BLOCK_ELEMS } },
          .ntensors = 1 }
    };
    const struct open_args args = { .keep = true, .durable = true };
    Zp__Write write = ZP__WRITE__INIT;

    rows_store(r);
    assert_int_equal(job_open_with(&r->w, 0, &args), 0);
    for (uint32_t u = 0; u < 2; u++) {
        struct unit unit = units[u];

        unit.elems = u == 0 ? (uint64_t)r->n * ZB_BLOCK_ELEMS : unit.elems;
        assert_int_equal(unit_define(&r->w, 0, u, &unit), 0);
    }
    rows_register(r);
    job_ready_ask(&r->w, 0, 0);
    if (r->w.answer(&r->w, 0) != 0)
        fail_msg("%s", answers[0].text);
    zb_close_fd(&answers[0].fd);
    rows_places(r);
    write.shard = r->w.clients[0].shards[1];
    write.what = ZK_MASTER;
    write.count = ZB_BLOCK_ELEMS;
    assert_int_equal(call(&r->w, 0, zsd_write, &write), 0);
    r->w.answer = rows_answer;
}

static void rows_unlink(struct rows *r)
{
    char suffix[2][8] = { "-wal", "-shm" }, path[96];

    (void)unlink(r->catalog);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s%s", r->catalog, suffix[i]);
        (void)unlink(path);
    }
}

static void rows_close(struct rows *r)
{
    world_close(&r->w);
    rows_unlink(r);
}

/* From here on, every second shard has other bytes, so the next version has other rows for them. */
static void rows_change(struct rows *r)
{
    struct zsd_job *job = job_of(&r->w, 0);

    for (uint32_t i = 0; i < job->nshards; i += 2) {
        struct zsd_shard *s = job->shards[i];

        if (!s->row || !s->unit->layout.frozen)
            continue;
        zsd_row_unref(job->core, s->row);
        s->row = NULL;
    }
    zsd_saved_planned(job->saved);
}

static struct zsd_saved *rows_saved(struct rows *r)
{
    struct zsd_saved *saved = zsd_saved_by_name(r->w.daemon.core, 1000, "j");

    assert_non_null(saved);
    return saved;
}

static void commit_ask(struct rows *r, enum zsd_commit_what what)
{
    Zp__Commit q = ZP__COMMIT__INIT;

    job_of(&r->w, 0)->rewritten = true;
    q.job = r->w.clients[0].job;
    q.what = what;
    rows_ask(r, 0, zsd_commit, &q);
}

static void commit(struct rows *r, enum zsd_commit_what what)
{
    commit_ask(r, what);
    if (rows_answer(&r->w, 0) != 0)
        fail_msg("%s", answers[0].text);
}

static Zp__SnapshotTake snap_take(char *name)
{
    static char job[] = "j";
    Zp__SnapshotTake q = ZP__SNAPSHOT_TAKE__INIT;

    q.job = job;
    q.name = name;
    return q;
}

static Zp__SnapshotRef snap_ref(char *job, char *name)
{
    Zp__SnapshotRef q = ZP__SNAPSHOT_REF__INIT;

    q.job = job;
    q.name = name;
    return q;
}

static uint64_t own_bytes(struct rows *r)
{
    Zp__SnapshotsRequest q = ZP__SNAPSHOTS_REQUEST__INIT;
    Zp__SnapshotsReply *reply;
    uint64_t own;

    rows_call(r, 1, zsd_snapshots, &q);
    reply = zp__snapshots_reply__unpack(NULL, answers[1].len, answers[1].bytes);
    assert_non_null(reply);
    assert_int_equal(reply->n_rows, 1);
    own = reply->rows[0]->own_bytes;
    zp__snapshots_reply__free_unpacked(reply, NULL);
    return own;
}

/* The job leaves memory. Its shards are freed in one turn, which is not measured here. */
static void rows_leave(struct rows *r)
{
    struct zb_err why = { 0 };

    client_gone(&r->w, 0);
    (void)zb_fail(&why, -ECANCELED, "the job is not needed");
    zsd_job_fail(rows_saved(r)->job, &why);
    world_settle(&r->w);
    assert_null(rows_saved(r)->job);
}

static void each_change(void **state)
{
    char j[] = "j", c[] = "c", s[] = "s", t[] = "t";
    Zp__SnapshotTake take = snap_take(s);
    Zp__SnapshotRef ref = snap_ref(j, s);
    Zp__JobName name = ZP__JOB_NAME__INIT;
    Zp__Clone clone = ZP__CLONE__INIT;
    struct rows r;

    (void)state;
    rows_open(&r);
    commit(&r, ZSD_COMMIT);
    bounded(&r, "the first commit", 3); /* built, kept, promised */
    rows_call(&r, 1, zsd_snapshot, &take);
    bounded(&r, "snapshot", 2); /* the promise is counted before and after */
    rows_change(&r);
    commit(&r, ZSD_PREPARE);
    bounded(&r, "prepare", 3);
    commit(&r, ZSD_RESOLVE);
    bounded(&r, "resolve", 1);
    rows_change(&r);
    commit(&r, ZSD_COMMIT);
    bounded(&r, "commit", 4); /* one comes, one goes */
    assert_int_equal(own_bytes(&r), r.n / 2 * (uint64_t)FROZEN_BYTES);
    bounded(&r, "the list of snapshots", 1);
    commit(&r, ZSD_PREPARE);
    commit(&r, ZSD_DROP);
    bounded(&r, "drop", 2);
    rows_leave(&r);
    clone.job = j;
    clone.name = c;
    clone.snapshot = s;
    rows_call(&r, 1, zsd_clone, &clone);
    bounded(&r, "clone", 2);
    rows_call(&r, 1, zsd_rollback, &ref);
    bounded(&r, "rollback", 1);
    take.name = t;
    rows_call(&r, 1, zsd_snapshot, &take);
    bounded(&r, "snapshot of a job that is not in memory", 0);
    rows_call(&r, 1, zsd_snapshot_destroy, &ref);
    bounded(&r, "the end of a snapshot", 0);
    name.name = j;
    rows_call(&r, 1, zsd_job_destroy, &name);
    bounded(&r, "destroy", 1);
    name.name = c;
    rows_call(&r, 1, zsd_job_destroy, &name);
    bounded(&r, "destroy of the clone", 1);
    rows_close(&r);
}

/* ---- between two parts */

/* Turns until the running change has handled some rows (or shards, if walks), but not all. */
static struct zsd_delta *run_until(struct rows *r, bool settles, bool walks)
{
    struct zsd_store *store = r->w.daemon.core->store;

    for (;;) {
        struct zsd_delta *d = store->runs ? zb_container_of(store->runs, struct zsd_delta, change)
                                          : NULL;

        assert_true(answers[0].rc == NONE || answers[1].rc == NONE);
        if (d && d->run.applied == settles && (walks ? d->run.walk.shard > 0 : d->run.row > 0))
            return d;
        rows_turn(r);
    }
}

/* The job ends while its promise is counted: before the change, or after it. */
static void job_ends(void **state)
{
    Zp__JobName name = ZP__JOB_NAME__INIT;
    char j[] = "j", s[] = "s";
    struct zb_err why = { 0 };

    (void)state;
    (void)zb_fail(&why, -ECANCELED, "the job is not needed");
    for (int settles = 0; settles < 2; settles++) {
        Zp__SnapshotTake take = snap_take(s);
        struct rows r;

        rows_open(&r);
        commit(&r, ZSD_COMMIT);
        rows_ask(&r, 1, zsd_snapshot, &take);
        (void)run_until(&r, settles, true);
        client_gone(&r.w, 0);
        zsd_job_fail(rows_saved(&r)->job, &why);
        assert_int_equal(rows_answer(&r.w, 1), 0);
        assert_null(rows_saved(&r)->job);
        assert_non_null(zsd_snap_by_name(rows_saved(&r), "s"));
        counted(&r);
        name.name = j;
        rows_call(&r, 1, zsd_job_destroy, &name);
        rows_close(&r);
    }
}

/* The job is planned again while its promise is counted: the count so far is outdated. */
static void job_moves(void **state)
{
    Zp__JobName name = ZP__JOB_NAME__INIT;
    char j[] = "j", s[] = "s";

    (void)state;
    for (int settles = 0; settles < 2; settles++) {
        Zp__SnapshotTake take = snap_take(s);
        struct zb_needs before = { 0 };
        struct rows r;

        rows_open(&r);
        commit(&r, ZSD_COMMIT);
        rows_ask(&r, 1, zsd_snapshot, &take);
        (void)run_until(&r, settles, true);
        assert_int_equal(zb_needs_sum(&before, &rows_saved(&r)->promise, 1), 0);
        rows_change(&r);
        assert_int_equal(rows_answer(&r.w, 1), 0);
        assert_true(zb_needs_bytes(&rows_saved(&r)->promise) >
                    zb_needs_bytes(&before)); /* no row has those pages */
        counted(&r);
        zb_needs_done(&before);
        rows_leave(&r);
        name.name = j;
        rows_call(&r, 1, zsd_job_destroy, &name);
        rows_close(&r);
    }
}

static void rewound(struct zsd_job *job, const struct zb_err *err)
{
    (void)job;
    assert_null(err);
}

/* The job resumes from another point while its promise is counted: afterwards no shard has its
 * row. */
static void job_rewinds(void **state)
{
    Zp__JobName name = ZP__JOB_NAME__INIT;
    char j[] = "j", s[] = "s";

    (void)state;
    for (int settles = 0; settles < 2; settles++) {
        Zp__SnapshotTake take = snap_take(s);
        struct rows r;

        rows_open(&r);
        commit(&r, ZSD_COMMIT);
        rows_ask(&r, 1, zsd_snapshot, &take);
        (void)run_until(&r, settles, true);
        zsd_resume_rewind(job_of(&r.w, 0), rows_saved(&r)->committed, rewound);
        assert_int_equal(rows_answer(&r.w, 1), 0);
        assert_null(job_of(&r.w, 0)->shards[0]->row);
        counted(&r);
        rows_leave(&r);
        name.name = j;
        rows_call(&r, 1, zsd_job_destroy, &name);
        rows_close(&r);
    }
}

static uint64_t kept_sum(struct rows *r)
{
    uint64_t sum = 0;

    zb_list_each(pos, &r->w.daemon.core->store->rows)
        sum += zb_container_of(pos, struct zsd_row, node)->kept;
    return sum;
}

/* A change that fails between two parts: none of it is counted. */
static void change_fails(void **state)
{
    Zp__JobName name = ZP__JOB_NAME__INIT;
    struct zb_err none = { 0 };
    struct zsd_version *v;
    struct rows r;
    uint64_t kept;
    char j[] = "j";

    (void)state;
    rows_open(&r);
    commit(&r, ZSD_COMMIT);
    kept = kept_sum(&r);
    v = rows_saved(&r)->committed;
    for (int walks = 0; walks < 2; walks++) { /* of the new rows; then of the old ones, too */
        struct zb_err *poisoned = &r.w.daemon.core->store->poisoned;

        rows_change(&r);
        commit_ask(&r, ZSD_COMMIT);
        while (run_until(&r, false, false)->run.list < (unsigned)walks)
            rows_turn(&r);
        (void)zb_fail(poisoned, -EIO, "somebody else has failed");
        assert_int_equal(rows_answer(&r.w, 0), -EIO);
        *poisoned = none;
        assert_ptr_equal(rows_saved(&r)->committed, v);
        assert_true(v->kept);
        assert_int_equal(kept_sum(&r), kept);
        bounded(&r, "a commit that fails", 2);
    }
    commit(&r, ZSD_COMMIT);
    bounded(&r, "a commit after that", 4);
    name.name = j;
    rows_leave(&r);
    rows_call(&r, 1, zsd_job_destroy, &name);
    rows_close(&r);
}

/* A prepared version is dropped, and its promise is still counted: the job is not committed. */
static void drop_counts(void **state)
{
    Zp__JobName name = ZP__JOB_NAME__INIT;
    struct zsd_job *job;
    struct rows r;
    char j[] = "j";

    (void)state;
    rows_open(&r);
    job = job_of(&r.w, 0);
    commit(&r, ZSD_COMMIT);
    commit(&r, ZSD_PREPARE);
    commit_ask(&r, ZSD_DROP);
    job->rewritten = false; /* as with the prepared version */
    (void)run_until(&r, true, true);
    assert_null(rows_saved(&r)->prepared);
    assert_false(zsd_commit_has(job));
    assert_int_equal(rows_answer(&r.w, 0), 0);
    assert_false(zsd_commit_has(job));
    rows_leave(&r);
    name.name = j;
    rows_call(&r, 1, zsd_job_destroy, &name);
    rows_close(&r);
}

/* A clone that fails between two parts: none of it is counted, though it has no promise yet. */
static void clone_fails(void **state)
{
    Zp__JobName name = ZP__JOB_NAME__INIT;
    Zp__Clone clone = ZP__CLONE__INIT;
    char j[] = "j", c[] = "c", none[] = "";
    struct rows r;
    uint64_t kept;

    (void)state;
    rows_open(&r);
    commit(&r, ZSD_COMMIT);
    rows_leave(&r);
    kept = kept_sum(&r);
    clone.job = name.name = j;
    clone.name = c;
    clone.snapshot = none;
    rows_ask(&r, 1, zsd_clone, &clone);
    while (run_until(&r, false, false)->run.row < 2 * ZSD_TURN_WORK)
        rows_turn(&r);
    (void)zb_fail(&r.w.daemon.core->store->poisoned, -EIO, "somebody else has failed");
    assert_int_equal(rows_answer(&r.w, 1), -EIO);
    r.w.daemon.core->store->poisoned = (struct zb_err){ 0 };
    assert_null(zsd_saved_by_name(r.w.daemon.core, 1000, "c"));
    assert_int_equal(kept_sum(&r), kept);
    bounded(&r, "a clone that fails", 1);
    rows_call(&r, 1, zsd_clone, &clone);
    bounded(&r, "a clone after that", 2);
    rows_call(&r, 1, zsd_job_destroy, &name);
    name.name = c;
    rows_call(&r, 1, zsd_job_destroy, &name);
    rows_close(&r);
}

/* The daemon ends in the middle: the change is completed. */
static void daemon_ends(void **state)
{
    struct rows r;

    (void)state;
    rows_open(&r);
    commit_ask(&r, ZSD_COMMIT);
    (void)run_until(&r, false, false);
    client_gone(&r.w, 0);
    world_kill(&r.w);
    rows_unlink(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_change),  cmocka_unit_test(job_ends),
        cmocka_unit_test(job_moves),    cmocka_unit_test(job_rewinds),
        cmocka_unit_test(change_fails), cmocka_unit_test(drop_counts),
        cmocka_unit_test(clone_fails),  cmocka_unit_test(daemon_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
