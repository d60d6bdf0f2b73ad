/*
 * Data that clients make the daemon keep: descriptions, notes, snapshots, readers and scans are
 * charged (net/limits.h), refused with numbers at a limit, and all charges are returned. Tested on
 * the core, with a store and a durable job in it.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/op/requests.h"
#include "daemon/run/turn.h"
#include "daemon/show/requests.h"
#include "tests/unit/daemon/saved_fixture.h"

static struct zsd_quota *node(struct saved_world *s)
{
    return &s->w.daemon.limits->node;
}

/* Leaves the node only n more of this resource. */
static uint64_t leave_room(struct saved_world *s, enum zsd_limit what, uint64_t n)
{
    uint64_t max = zsd_limit_max(node(s), ZSD_LEVEL_NODE, what);
    uint64_t taken = max - node(s)->used[what] - n;

    node(s)->used[what] += taken;
    return taken;
}

/* The daemon has limits, and its clients belong to a user to whom they apply. */
static void budget_open(struct saved_world *s)
{
    struct zb_err err = { 0 };

    saved_open(s, SAVED_HOST, ZB_F32, 3);
    assert_int_equal(zsd_limits_open(&s->w.daemon, &err), 0);
    assert_int_equal(/* it was opened without limits */
                     zsd_quota_join(&s->w.daemon, &saved_job(s)->quota, ZSD_LEVEL_JOB, 1000), 0);
    for (unsigned c = 1; c < 3; c++) {
        s->w.clients[c].conn.uid = 1000;
        assert_int_equal(
            zsd_quota_join(&s->w.daemon, &s->w.clients[c].conn.quota, ZSD_LEVEL_CONN, 1000), 0);
    }
}

/* All charges must have been returned: zsd_limits_close() asserts it. */
static void budget_close(struct saved_world *s)
{
    struct zsd_limits *limits = s->w.daemon.limits;

    for (unsigned c = 1; c < 3; c++) {
        client_gone(&s->w, c);
        world_settle(&s->w);
        zsd_quota_leave(&s->w.clients[c].conn.quota);
    }
    client_gone(&s->w, 0);
    world_settle(&s->w);
    saved_close(s);
    s->w.daemon.limits = limits;
    zsd_limits_close(&s->w.daemon);
}

static int unit_with(struct saved_world *s, unsigned c, uint32_t index, uint32_t ntensors)
{
    struct unit unit = {
        .name = "u", .elems = PAGE, .dtype = ZB_F32, .grad_dtype = ZB_F32, .ntensors = ntensors
    };

    for (uint32_t i = 0; i < ntensors; i++) {
        unit.tensors[i].first = i;
        unit.tensors[i].count = 1;
    }
    return unit_define(&s->w, c, index, &unit);
}

/* The job of client 2 has values, and a commit. */
static void other_is_saved(struct saved_world *s)
{
    struct client *c = &s->w.clients[2];
    Zp__Write m = ZP__WRITE__INIT;
    Zp__Commit q = ZP__COMMIT__INIT;

    c->count[0] = PAGE;
    assert_int_equal(shards_register(&s->w, 2, 1), 0);
    job_ready_ask(&s->w, 2, 2);
    assert_int_equal(answer(&s->w, 2), 0);
    zb_close_fd(&answers[2].fd);
    m.shard = c->shards[0];
    m.count = PAGE;
    assert_int_equal(call(&s->w, 2, zsd_write, &m), 0);
    q.job = c->job;
    q.what = ZSD_COMMIT;
    assert_int_equal(call(&s->w, 2, zsd_commit, &q), 0);
}

/* Descriptions are charged, also while they are being sent; refused or repeated ones are not. */
static void descriptions_are_charged(void **state)
{
    struct open_args args = { .name = "k", .world = 2 };
    struct saved_world s;
    uint64_t used, one, taken;

    (void)state;
    budget_open(&s);
    assert_int_equal(job_open_with(&s.w, 1, &args), 0);
    args.rank = 1;
    assert_int_equal(job_open_with(&s.w, 2, &args), 0);
    used = node(&s)->used[ZSD_LIMIT_DEFINITION_BYTES];
    assert_int_equal(unit_with(&s, 1, 0, 3), 0);
    one = node(&s)->used[ZSD_LIMIT_DEFINITION_BYTES] - used;
    assert_in_range(one, 3 * ZSD_TENSOR_BYTES, 4096);
    assert_int_equal(unit_with(&s, 2, 0, 3), 0); /* the same description */
    assert_int_equal(node(&s)->used[ZSD_LIMIT_DEFINITION_BYTES], used + one);

    taken = leave_room(&s, ZSD_LIMIT_DEFINITION_BYTES, one - 1);
    used = node(&s)->used[ZSD_LIMIT_DEFINITION_BYTES];
    assert_int_equal(unit_with(&s, 1, 1, 3), -ENOSPC);
    assert_non_null(strstr(answers[1].text, "bytes of definitions and snapshots already"));
    assert_non_null(strstr(answers[1].text, "(a twelfth of host_bytes, at least 48 MiB)"));
    assert_int_equal(node(&s)->used[ZSD_LIMIT_DEFINITION_BYTES], used);
    taken += leave_room(&s, ZSD_LIMIT_DEFINITION_BYTES, 100);
    used = node(&s)->used[ZSD_LIMIT_DEFINITION_BYTES];
    s.w.clients[1].first[0] = 0;
    s.w.clients[1].count[0] = PAGE;
    assert_int_equal(shards_register(&s.w, 1, 1), -ENOSPC);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_DEFINITION_BYTES], used);
    node(&s)->used[ZSD_LIMIT_DEFINITION_BYTES] -= taken;
    assert_int_equal(shards_register(&s.w, 1, 1), 0);
    assert_in_range(node(&s)->used[ZSD_LIMIT_DEFINITION_BYTES], used - taken + 1, UINT64_MAX);
    budget_close(&s);
}

/* A clone has a manifest of its own. */
static void clones_are_charged(void **state)
{
    char j[] = "j", c[] = "c", newest[] = "";
    Zp__Clone clone = ZP__CLONE__INIT;
    Zp__JobName name = ZP__JOB_NAME__INIT;
    uint64_t used, one = 0, notes, taken;
    struct saved_world s;

    (void)state;
    budget_open(&s);
    for (uint32_t u = 0; u < UNITS; u++)
        one += zsd_unit_bytes(saved_job(&s)->units[u]);
    clone.job = j;
    clone.name = name.name = c;
    clone.snapshot = newest;
    taken = leave_room(&s, ZSD_LIMIT_DEFINITION_BYTES, one - 1);
    used = node(&s)->used[ZSD_LIMIT_DEFINITION_BYTES];
    notes = node(&s)->used[ZSD_LIMIT_NOTE_BYTES];
    assert_int_equal(call(&s.w, 1, zsd_clone, &clone), -ENOSPC);
    assert_non_null(strstr(answers[1].text, "bytes of definitions and snapshots already"));
    assert_int_equal(node(&s)->used[ZSD_LIMIT_DEFINITION_BYTES], used);
    assert_null(zsd_saved_by_name(s.w.daemon.core, 1000, c));
    taken += leave_room(&s, ZSD_LIMIT_DEFINITION_BYTES, one);
    used = node(&s)->used[ZSD_LIMIT_DEFINITION_BYTES];
    assert_int_equal(call(&s.w, 1, zsd_clone, &clone), 0);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_DEFINITION_BYTES], used + one);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_NOTE_BYTES], notes);
    assert_int_equal(call(&s.w, 1, zsd_job_destroy, &name), 0);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_DEFINITION_BYTES], used);
    node(&s)->used[ZSD_LIMIT_DEFINITION_BYTES] -= taken;
    budget_close(&s);
}

static int note_put(struct saved_world *s, unsigned c, size_t len)
{
    static uint8_t bytes[1024];
    Zp__NotePut q = ZP__NOTE_PUT__INIT;

    q.job = s->w.clients[c].job;
    q.total = (uint32_t)len;
    q.data.data = bytes;
    q.data.len = len;
    return call(&s->w, c, zsd_note_put, &q);
}

/* If a note replaces another, only the new one is charged. */
static void notes_are_charged(void **state)
{
    struct open_args args = { .name = "k" };
    struct saved_world s;
    uint64_t taken;

    (void)state;
    budget_open(&s);
    assert_int_equal(job_open_with(&s.w, 1, &args), 0);
    assert_int_equal(note_put(&s, 1, 1000), 0);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_NOTE_BYTES], 1000);
    assert_int_equal(note_put(&s, 1, 500), 0);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_NOTE_BYTES], 500);
    taken = leave_room(&s, ZSD_LIMIT_NOTE_BYTES, 0);
    assert_int_equal(note_put(&s, 1, 501), -ENOSPC);
    assert_non_null(strstr(answers[1].text, "bytes of notes already"));
    node(&s)->used[ZSD_LIMIT_NOTE_BYTES] -= taken;
    budget_close(&s);
}

static int snapshot_retain(struct saved_world *s, const char *name, uint32_t retain)
{
    Zp__SnapshotTake q = ZP__SNAPSHOT_TAKE__INIT;
    char job[] = "j", text[8];

    (void)snprintf(text, sizeof(text), "%s", name);
    q.job = job;
    q.name = text;
    q.retain = retain;
    return call(&s->w, 0, zsd_snapshot, &q);
}

static int snapshot(struct saved_world *s, const char *name)
{
    return snapshot_retain(s, name, 0);
}

static int snapshot_destroy(struct saved_world *s, const char *name)
{
    Zp__SnapshotRef q = ZP__SNAPSHOT_REF__INIT;
    char job[] = "j", text[8];

    (void)snprintf(text, sizeof(text), "%s", name);
    q.job = job;
    q.name = text;
    return call(&s->w, 0, zsd_snapshot_destroy, &q);
}

static void snapshots_are_charged(void **state)
{
    struct saved_world s;
    uint64_t taken, bytes;

    (void)state;
    budget_open(&s);
    assert_int_equal(snapshot(&s, "a"), 0);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_SNAPSHOTS], 1);
    bytes = node(&s)->used[ZSD_LIMIT_NOTE_BYTES];
    assert_true(bytes >= sizeof(struct zsd_snap));
    assert_int_equal(snapshot(&s, "a"), -EEXIST);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_SNAPSHOTS], 1);
    taken = leave_room(&s, ZSD_LIMIT_SNAPSHOTS, 0);
    assert_int_equal(snapshot(&s, "b"), -ENOSPC);
    assert_non_null(strstr(answers[0].text, "65536 snapshots already"));
    node(&s)->used[ZSD_LIMIT_SNAPSHOTS] -= taken;
    taken = leave_room(&s, ZSD_LIMIT_NOTE_BYTES, 0);
    assert_int_equal(snapshot(&s, "b"), -ENOSPC);
    node(&s)->used[ZSD_LIMIT_NOTE_BYTES] -= taken;
    assert_int_equal(node(&s)->used[ZSD_LIMIT_SNAPSHOTS], 1);
    assert_int_equal(snapshot_destroy(&s, "a"), 0);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_SNAPSHOTS], 0);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_NOTE_BYTES], 0);
    assert_int_equal(snapshot(&s, "c"), 0); /* ends with its job: budget_close() checks */
    budget_close(&s);
}

/* Snapshots of one version hold its notes once, until the last of them is destroyed. */
static void notes_of_snapshots(void **state)
{
    struct saved_world s;
    struct zsd_note *note;

    (void)state;
    budget_open(&s);
    note = &saved_job(&s)->committed->job_note;
    note->data = calloc(1, 5000);
    assert_non_null(note->data);
    note->total = note->got = 5000;
    assert_int_equal(snapshot(&s, "a"), 0);
    assert_int_equal(snapshot(&s, "b"), 0);
    assert_int_equal(snapshot(&s, "c"), 0);
    assert_in_range(node(&s)->used[ZSD_LIMIT_NOTE_BYTES], 5000, 6000);
    assert_int_equal(snapshot_destroy(&s, "a"), 0);
    assert_in_range(node(&s)->used[ZSD_LIMIT_NOTE_BYTES], 5000, 6000);
    assert_int_equal(snapshot_destroy(&s, "c"), 0);
    assert_in_range(node(&s)->used[ZSD_LIMIT_NOTE_BYTES], 5000, 6000);
    assert_int_equal(snapshot_destroy(&s, "b"), 0);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_NOTE_BYTES], 0);
    zsd_note_done(note); /* the catalog does not have it */
    budget_close(&s);
}

static uint64_t tables(struct saved_world *s)
{
    return node(s)->used[ZSD_LIMIT_DEFINITION_BYTES];
}

/* The daemon's memory for a version, without its notes. */
static uint64_t in_memory(const struct zsd_version *v)
{
    uint64_t sum = sizeof(*v) + v->nrows * sizeof(*v->rows) + v->world * sizeof(*v->notes);

    for (uint32_t i = 0; i < v->nrows; i++) {
        const struct zsd_row *r = v->rows[i];

        sum += sizeof(*r);
        for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++)
            if (r->planes[p].extents)
                sum += r->npages * (sizeof(struct zsd_extent) + 4 * r->planes[p].crcs_per_page);
    }
    return sum;
}

/* The daemon starts again: its snapshots are charged again. */
static void recover(struct zsd_saved *saved)
{
    zsd_quota_leave(&saved->quota);
    saved->quota = (struct zsd_quota){ 0 };
    zb_list_each(pos, &saved->snaps) zb_container_of(pos, struct zsd_snap, node)->version->charged =
        false;
    zsd_snaps_recovered(saved);
}

/* Each version that snapshots keep has its rows in memory once, however many snapshots there
 * are. */
static void tables_of_snapshots(void **state)
{
    struct saved_world s;
    uint64_t before, one, taken, notes;

    (void)state;
    budget_open(&s);
    before = tables(&s);
    one = in_memory(saved_job(&s)->committed);
    assert_int_equal(snapshot(&s, "a"), 0);
    assert_int_equal(tables(&s), before + one);
    assert_int_equal(snapshot(&s, "b"), 0);
    assert_int_equal(tables(&s), before + one);

    saved_commit(&s, 7);
    notes = node(&s)->used[ZSD_LIMIT_NOTE_BYTES];
    taken = leave_room(&s, ZSD_LIMIT_DEFINITION_BYTES, one - 1);
    assert_int_equal(snapshot(&s, "c"), -ENOSPC);
    assert_non_null(strstr(answers[0].text, "bytes of definitions and snapshots already"));
    assert_int_equal(node(&s)->used[ZSD_LIMIT_SNAPSHOTS], 2);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_NOTE_BYTES], notes);
    node(&s)->used[ZSD_LIMIT_DEFINITION_BYTES] -= taken;
    assert_int_equal(snapshot(&s, "c"), 0);
    assert_int_equal(tables(&s), before + 2 * one);

    notes = node(&s)->used[ZSD_LIMIT_NOTE_BYTES];
    recover(saved_job(&s));
    assert_int_equal(tables(&s), before + 2 * one);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_NOTE_BYTES], notes);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_SNAPSHOTS], 3);
    assert_int_equal(snapshot_destroy(&s, "a"), 0);
    assert_int_equal(tables(&s), before + 2 * one);
    assert_int_equal(snapshot_destroy(&s, "b"), 0);
    assert_int_equal(tables(&s), before + one);
    assert_int_equal(snapshot_destroy(&s, "c"), 0);
    assert_int_equal(tables(&s), before);
    budget_close(&s);
}

/* A snapshot that replaces the only other one of its version keeps the charges. */
static void a_snapshot_in_place_of_another(void **state)
{
    struct saved_world s;
    uint64_t before, kept, notes;

    (void)state;
    budget_open(&s);
    before = tables(&s);
    assert_int_equal(snapshot(&s, "a"), 0);
    kept = tables(&s);
    notes = node(&s)->used[ZSD_LIMIT_NOTE_BYTES];
    assert_true(kept > before);
    assert_int_equal(snapshot_retain(&s, "b", 1), 0);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_SNAPSHOTS], 1);
    assert_int_equal(tables(&s), kept);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_NOTE_BYTES], notes);
    assert_int_equal(snapshot_destroy(&s, "b"), 0);
    assert_int_equal(tables(&s), before);
    budget_close(&s);
}

/* A request that waits for its client's further requests leaves room for these, or is refused at
 * once. */
static void waiting_leaves_room(void **state)
{
    struct saved_world s;
    Zp__Fetch fetch = ZP__FETCH__INIT;
    Zp__SnapshotTake next = ZP__SNAPSHOT_TAKE__INIT;
    char job[] = "j", newest[] = "";
    struct zsd_quota *q;
    uint64_t left;

    (void)state;
    budget_open(&s);
    q = &s.w.clients[0].conn.quota;
    assert_int_equal(zsd_quota_join(&s.w.daemon, q, ZSD_LEVEL_CONN, s.w.clients[0].conn.uid), 0);
    left = zsd_limit_max(q, ZSD_LEVEL_CONN, ZSD_LIMIT_WAITING) - 1;
    assert_in_range(left, 1, ZSD_REQS_MAX - 2);
    zsd_limit_add(q, ZSD_LIMIT_WAITING, left);
    fetch.n_shards = 1;
    fetch.shards = &s.w.clients[0].shards[0];
    fetch.min_version = 1;
    ask_as(&s.w, 0, 10, zsd_fetch, &fetch);
    assert_int_equal(answers[10].rc, NONE);
    ask_as(&s.w, 0, 11, zsd_fetch, &fetch);
    assert_int_equal(answers[11].rc, -EBUSY);
    assert_non_null(strstr(answers[11].text, "that wait for its own next step or release"));
    next.job = job;
    next.name = newest;
    next.next = true;
    ask_as(&s.w, 0, 12, zsd_snapshot, &next);
    assert_int_equal(answers[12].rc, -EBUSY);
    fetch.min_version = 0; /* it does not wait */
    assert_int_equal(call(&s.w, 0, zsd_fetch, &fetch), 0);
    assert_int_equal(q->used[ZSD_LIMIT_WAITING], left + 1);
    client_gone(&s.w, 0);
    world_settle(&s.w);
    assert_int_equal(answers[10].times, 1);
    zsd_quota_leave(q);
    budget_close(&s);
}

/* Also if the client goes before the reader is closed; scans are charged until they are
 * answered. */
static void readers_and_scans_are_charged(void **state)
{
    struct saved_world s;
    Zp__ReaderOpen q = ZP__READER_OPEN__INIT;
    Zp__DfRequest df = ZP__DF_REQUEST__INIT;
    char job[] = "j", newest[] = "";
    uint64_t taken;

    (void)state;
    budget_open(&s);
    q.job = job;
    q.snapshot = newest;
    q.staging_bytes = 4096;
    taken = leave_room(&s, ZSD_LIMIT_READERS, 0);
    assert_int_equal(call(&s.w, 1, zsd_reader_open, &q), -EUSERS);
    assert_non_null(strstr(answers[1].text, "readers already"));
    node(&s)->used[ZSD_LIMIT_READERS] -= taken;
    assert_int_equal(call(&s.w, 1, zsd_reader_open, &q), 0);
    zb_close_fd(&answers[1].fd);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_READERS], 1);

    for (unsigned i = 10; i < 16; i++)
        ask_as(&s.w, 2, i, zsd_df, &df);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_SCANS], 4);
    for (unsigned i = 10; i < 16; i++)
        assert_int_equal(answer(&s.w, i), i < 14 ? 0 : -EBUSY);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_SCANS], 0);
    budget_close(&s);
}

static void snapshot_ask(struct saved_world *s, unsigned c, unsigned tag, const char *of)
{
    Zp__SnapshotTake q = ZP__SNAPSHOT_TAKE__INIT;
    char job[2], name[16];

    (void)snprintf(job, sizeof(job), "%s", of);
    (void)snprintf(name, sizeof(name), "s%u", tag);
    q.job = job;
    q.name = name;
    ask_as(&s->w, c, tag, zsd_snapshot, &q);
}

/* A list of snapshots that takes several turns is a scan: each would have its part of every turn. */
static void long_lists_are_charged(void **state)
{
    Zp__SnapshotsRequest q = ZP__SNAPSHOTS_REQUEST__INIT;
    struct saved_world s;
    char job[] = "j";

    (void)state;
    budget_open(&s);
    snapshot_ask(&s, 1, 1, "j");
    assert_int_equal(answer(&s.w, 1), 0);
    saved_commit(&s, 2); /* so that only the snapshot has its rows */
    q.job = job;
    s.w.daemon.turns.work = ZSD_TURN_WORK; /* none is finished at once */
    for (unsigned i = 10; i < 16; i++)
        ask_as(&s.w, 2, i, zsd_snapshots, &q);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_SCANS], 4);
    for (unsigned i = 10; i < 16; i++)
        assert_int_equal(answer(&s.w, i), i < 14 ? 0 : -EBUSY);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_SCANS], 0);
    s.w.daemon.turns.work = ZSD_TURN_WORK;
    ask_as(&s.w, 2, 2, zsd_snapshots, &q);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_SCANS], 1);
    client_gone(&s.w, 2);
    zsd_quota_leave(&s.w.clients[2].conn.quota); /* as a connection that ends */
    world_settle(&s.w);
    assert_int_equal(node(&s)->used[ZSD_LIMIT_SCANS], 0);
    assert_int_equal(zsd_quota_join(&s.w.daemon, &s.w.clients[2].conn.quota, ZSD_LEVEL_CONN, 1000),
                     0);
    budget_close(&s);
}

/* A user with many changes of the catalog in the queue delays those of another user by one. */
static void changes_take_turns(void **state)
{
    enum { MANY_FROM = 4, MANY_TO = 28 };
    const struct open_args args = { .name = "k", .keep = true, .durable = true };
    Zp__JobName name = ZP__JOB_NAME__INIT;
    struct saved_world s;
    unsigned before = 0;
    char k[] = "k";

    (void)state;
    budget_open(&s);
    zsd_quota_leave(&s.w.clients[2].conn.quota);
    s.w.clients[2].conn.uid = 2000;
    assert_int_equal(zsd_quota_join(&s.w.daemon, &s.w.clients[2].conn.quota, ZSD_LEVEL_CONN, 2000),
                     0);
    assert_int_equal(job_open_with(&s.w, 2, &args), 0);
    assert_int_equal(unit_with(&s, 2, 0, 1), 0);
    other_is_saved(&s);
    for (unsigned tag = MANY_FROM; tag < MANY_TO; tag++)
        snapshot_ask(&s, 1, tag, "j");
    snapshot_ask(&s, 2, 2, "k");
    while (answers[2].rc == NONE)
        world_turn(&s.w);
    assert_int_equal(answers[2].rc, 0);
    for (unsigned tag = MANY_FROM; tag < MANY_TO; tag++)
        before += answers[tag].rc != NONE;
    assert_in_range(before, 0, 2);
    for (unsigned tag = MANY_FROM; tag < MANY_TO; tag++)
        assert_int_equal(answer(&s.w, tag), 0);
    client_gone(&s.w, 2);
    name.name = k;
    assert_int_equal(call(&s.w, 2, zsd_job_destroy, &name), 0);
    budget_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptions_are_charged),
        cmocka_unit_test(clones_are_charged),
        cmocka_unit_test(notes_are_charged),
        cmocka_unit_test(snapshots_are_charged),
        cmocka_unit_test(notes_of_snapshots),
        cmocka_unit_test(tables_of_snapshots),
        cmocka_unit_test(a_snapshot_in_place_of_another),
        cmocka_unit_test(waiting_leaves_room),
        cmocka_unit_test(readers_and_scans_are_charged),
        cmocka_unit_test(long_lists_are_charged),
        cmocka_unit_test(changes_take_turns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
