/*
 * Opens that wait, that take a job over, and that are refused; and the limit of tensors. Tested on
 * the core, with a store and a durable job in it.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/daemon/saved_fixture.h"

/* The job leaves memory, and remains in the catalog. */
static void job_leaves_memory(struct saved_world *s)
{
    struct zb_err why = { 0 };

    (void)zb_fail(&why, -EIO, "it ends");
    client_gone(&s->w, 0);
    world_settle(&s->w);
    zsd_job_fail(saved_job(s)->job, &why);
    world_settle(&s->w);
    assert_null(saved_job(s)->job);
}

/* Destroys a job that may be in the catalog only. */
static void job_destroyed(struct saved_world *s)
{
    Zp__JobName q = ZP__JOB_NAME__INIT;
    char name[] = "j";

    client_gone(&s->w, 0);
    world_settle(&s->w);
    q.name = name;
    assert_int_equal(call(&s->w, 1, zsd_job_destroy, &q), 0);
    saved_close(s);
}

/* ---- deadlines */

static const struct open_args again = { .keep = true, .durable = true, .attach = true };

/* An open waits for a job that is being destroyed or rolled back, on a drive that stalls. */
static void a_wait_for_a_job_has_a_deadline(void **state)
{
    struct saved_world s;

    (void)state;
    saved_open(&s, SAVED_HOST, ZB_F32, 2);
    client_gone(&s.w, 0);
    world_settle(&s.w);
    saved_job(&s)->moving = true;
    job_open_ask(&s.w, 0, 0, &again);
    world_settle(&s.w);
    assert_int_equal(answers[0].rc, NONE);
    world_expire(&s.w);
    assert_int_equal(answer(&s.w, 0), -ETIMEDOUT);
    assert_non_null(strstr(answers[0].text, "rank 0 waits for job 'j'"));
    saved_job(&s)->moving = false;
    saved_close(&s);
}

/* The deadline that is armed; 0: none. */
static uint64_t deadline_armed(const struct zsd_core *core)
{
    for (unsigned i = 0; i < ZSD_WHEEL_SLOTS; i++) {
        const struct zb_list *slot = &core->wheel.slots[i];

        if (!zb_list_empty(slot))
            return zb_container_of(slot->next, struct zsd_timed, node)->deadline_ns;
    }
    return 0;
}

/* An open waits for memory that is being freed, but never is. Waking it does not restart its
 * time. */
static void a_wait_for_room_has_a_deadline(void **state)
{
    const struct open_args other = { .name = "k", .staging_bytes = UINT64_C(1) << 30 };
    struct saved_world s;
    struct zsd_core *core;
    uint64_t deadline_ns;

    (void)state;
    saved_open(&s, SAVED_HOST, ZB_F32, 2);
    core = s.w.daemon.core;
    core->planner->closing++;
    job_open_ask(&s.w, 1, 1, &other);
    world_settle(&s.w);
    assert_int_equal(answers[1].rc, NONE);
    deadline_ns = deadline_armed(core);
    assert_in_range(deadline_ns, 1,
                    zb_now_ns() + core->daemon->config.timeout_ms * UINT64_C(1000000));
    zsd_room_changed(core);
    world_settle(&s.w);
    assert_int_equal(answers[1].rc, NONE);
    assert_true(deadline_ns == deadline_armed(core));
    world_expire(&s.w);
    assert_int_equal(answer(&s.w, 1), -ETIMEDOUT);
    assert_non_null(strstr(answers[1].text, "staging of 1.00 GiB"));
    core->planner->closing--;
    saved_close(&s);
}

/* A connection has one job, and one reader: more opens of it do not wait, since each change of the room
 * tries all that do. */
static void one_open_of_a_connection_waits(void **state)
{
    const struct open_args other = { .name = "k", .staging_bytes = UINT64_C(1) << 30 };
    Zp__ReaderOpen q = ZP__READER_OPEN__INIT;
    char job[] = "j", newest[] = "";
    struct saved_world s;
    struct zsd_core *core;

    (void)state;
    saved_open(&s, SAVED_HOST, ZB_F32, 3);
    core = s.w.daemon.core;
    core->planner->closing++;
    q.job = job;
    q.snapshot = newest;
    q.staging_bytes = SAVED_HOST;
    for (unsigned i = 0; i < 2; i++) {
        job_open_ask(&s.w, 1, 10 + i, &other);
        ask_as(&s.w, 2, 20 + i, zsd_reader_open, &q);
        zsd_room_changed(core);
        world_settle(&s.w);
        assert_int_equal(answers[10].rc, NONE);
        assert_int_equal(answers[20].rc, NONE);
    }
    assert_int_equal(answers[11].rc, -EBUSY);
    assert_int_equal(answers[21].rc, -EBUSY);
    world_expire(&s.w);
    assert_int_equal(answer(&s.w, 10), -ETIMEDOUT);
    assert_int_equal(answer(&s.w, 20), -ETIMEDOUT);
    core->planner->closing--;
    saved_close(&s);
}

/* ---- takeovers that are refused */

/* A takeover of a saved job: whatever prevents it, ranks of the old epoch stay connected. */
static void a_refused_takeover_of_a_saved_job_changes_nothing(void **state)
{
    const struct open_args over = {
        .keep = true, .durable = true, .attach = true, .takeover = true
    };
    struct open_args large = over;
    struct saved_world s;
    uint64_t epoch;

    (void)state;
    saved_open(&s, SAVED_HOST, ZB_F32, 2);
    job_leaves_memory(&s);
    epoch = saved_job(&s)->epoch;
    large.staging_bytes = UINT64_C(1) << 40;
    assert_int_equal(job_open_with(&s.w, 0, &large), -ENOSPC);
    world_settle(&s.w);
    assert_true(saved_job(&s)->epoch == epoch);
    assert_int_equal(job_open_with(&s.w, 0, &over), 0);
    assert_true(saved_job(&s)->epoch == epoch + 1);
    assert_true(job_of(&s.w, 0)->epoch == epoch + 1);
    job_destroyed(&s);
}

/* A takeover of a job in memory that would be refused later: its ranks stay connected. */
static void a_refused_takeover_cuts_nobody_off(void **state)
{
    static const struct open_args rows[] = {
        { .keep = true, .durable = true, .attach = true, .takeover = true, .groups = 2 },
        { .keep = true, .attach = true, .takeover = true },
    };
    struct saved_world s;

    (void)state;
    saved_open(&s, SAVED_HOST, ZB_F32, 2);
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        uint64_t epoch = job_of(&s.w, 0)->epoch;

        assert_int_equal(job_open_with(&s.w, 1, &rows[i]), -EINVAL);
        assert_non_null(s.w.clients[0].conn.member);
        assert_true(job_of(&s.w, 0)->epoch == epoch);
    }
    saved_close(&s);
}

/* ---- another user's job */

/* A user who is neither the owner nor the administrator gets the same answer as for an unknown
 * name. */
static void names_of_others_cannot_be_probed(void **state)
{
    char job[] = "j", none[] = "n", empty[] = "";
    struct saved_world s;

    (void)state;
    saved_open(&s, SAVED_HOST, ZB_F32, 2);
    s.w.clients[1].conn.uid = 1001;
    for (int i = 0; i < 6; i++) {
        char text[2][sizeof(answers[1].text)];
        int rc[2];

        for (int there = 0; there < 2; there++) {
            Zp__JobName q = ZP__JOB_NAME__INIT;
            Zp__JobShare share = ZP__JOB_SHARE__INIT;
            Zp__SnapshotTake snapshot = ZP__SNAPSHOT_TAKE__INIT;
            Zp__Clone clone = ZP__CLONE__INIT;
            Zp__ReaderOpen reader = ZP__READER_OPEN__INIT;
            struct open_args attach = again;
            char *name = there ? job : none;

            attach.name = q.name = share.name = snapshot.job = clone.job = reader.job = name;
            snapshot.name = clone.snapshot = reader.snapshot = empty;
            clone.name = empty;
            reader.staging_bytes = 4096;
            rc[there] = i == 0   ? job_open_with(&s.w, 1, &attach)
                        : i == 1 ? call(&s.w, 1, zsd_job_destroy, &q)
                        : i == 2 ? call(&s.w, 1, zsd_job_share, &share)
                        : i == 3 ? call(&s.w, 1, zsd_snapshot, &snapshot)
                        : i == 4 ? call(&s.w, 1, zsd_clone, &clone)
                                 : call(&s.w, 1, zsd_reader_open, &reader);
            (void)snprintf(text[there], sizeof(text[there]), "%s", answers[1].text);
            for (char *at = text[there]; (at = strstr(at, there ? "'j'" : "'n'")) != NULL; at++)
                at[1] = '?';
        }
        assert_int_equal(rc[0], -ENOENT);
        assert_int_equal(rc[1], rc[0]);
        assert_string_equal(text[1], text[0]);
    }
    saved_close(&s);
}

/* ---- tensors */

#define PART   200u
#define PARTS  700u
#define MANY_T (PART * PARTS)

/* Defines a unit of MANY_T tensors, in parts; the code of the first refusal. */
static int many_define(struct world *w, unsigned c, uint32_t index)
{
    static Zp__Tensor tensors[PART];
    static Zp__Tensor *list[PART];
    uint64_t one[] = { 1 };
    char name[] = "u", tensor[] = "t";
    int rc = 0;

    for (uint32_t part = 0; part < PARTS && rc == 0; part++) {
        Zp__UnitDefine q = ZP__UNIT_DEFINE__INIT;

        for (uint32_t i = 0; i < PART; i++) {
            zp__tensor__init(&tensors[i]);
            tensors[i].name = tensor;
            tensors[i].first = part * PART + i;
            tensors[i].n_dims = 1;
            tensors[i].dims = one;
            list[i] = &tensors[i];
        }
        q.job = w->clients[c].job;
        q.unit = index;
        q.name = name;
        q.elems = MANY_T;
        q.dtype = ZB_F32;
        q.grad_dtype = ZB_F32;
        q.n_tensors = PART;
        q.tensors = list;
        q.last = part + 1 == PARTS;
        rc = call(w, c, zsd_unit_define, &q);
    }
    return rc;
}

/* More than half of the limit: each rank describes them, and they count once. */
static void tensors_count_once(void **state)
{
    struct open_args args = { .world = 2 };
    struct world w;

    (void)state;
    world_open(&w, SAVED_HOST, NULL, 2);
    assert_int_equal(job_open_with(&w, 0, &args), 0);
    args.rank = 1;
    assert_int_equal(job_open_with(&w, 1, &args), 0);
    assert_int_equal(many_define(&w, 0, 0), 0);
    if (many_define(&w, 1, 0) != 0)
        fail_msg("%s", answers[1].text);
    assert_int_equal(many_define(&w, 0, 1), -ENOSPC);
    assert_non_null(strstr(answers[0].text, "262144 tensors, which is the limit"));
    world_close(&w);
}

/* The tensors of a saved job count when it is loaded again. */
static void tensors_of_a_saved_job_count(void **state)
{
    struct saved_world s;

    (void)state;
    saved_open(&s, SAVED_HOST, ZB_F32, 2);
    assert_int_equal(job_of(&s.w, 0)->ntensors, UNITS);
    job_leaves_memory(&s);
    assert_int_equal(job_open_with(&s.w, 0, &again), 0);
    assert_int_equal(job_of(&s.w, 0)->ntensors, UNITS);
    job_destroyed(&s);
}

/* Numbers of jobs are given out again when they have all been used; not 0, and not one that a job has. */
static void numbers_wrap(void **state)
{
    struct open_args args = { .name = "k" };
    Zp__Clone clone = ZP__CLONE__INIT;
    Zp__JobName name = ZP__JOB_NAME__INIT;
    char j[] = "j", c[] = "c", newest[] = "";
    struct saved_world s;
    struct zsd_core *core;

    (void)state;
    saved_open(&s, SAVED_HOST, ZB_F32, 3);
    core = s.w.daemon.core;
    assert_int_equal(job_of(&s.w, 0)->number, 1);
    core->next_job = UINT32_MAX;
    assert_int_equal(job_open_with(&s.w, 1, &args), 0);
    assert_int_equal(job_of(&s.w, 1)->number, UINT32_MAX);
    saved_commit(&s, 2);
    assert_in_range(zsd_store_record(core->store, 0, 0).next_job, 1, UINT32_MAX);
    args.name = "l";
    assert_int_equal(job_open_with(&s.w, 2, &args), 0);
    assert_int_equal(job_of(&s.w, 2)->number, 2);
    core->next_job = 1;
    clone.job = j;
    clone.snapshot = newest;
    clone.name = c;
    assert_int_equal(call(&s.w, 0, zsd_clone, &clone), 0);
    assert_int_equal(zsd_saved_by_name(core, 1000, c)->number, 3);
    name.name = c;
    assert_int_equal(call(&s.w, 0, zsd_job_destroy, &name), 0);
    saved_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_for_a_job_has_a_deadline),
        cmocka_unit_test(a_wait_for_room_has_a_deadline),
        cmocka_unit_test(one_open_of_a_connection_waits),
        cmocka_unit_test(a_refused_takeover_of_a_saved_job_changes_nothing),
        cmocka_unit_test(a_refused_takeover_cuts_nobody_off),
        cmocka_unit_test(names_of_others_cannot_be_probed),
        cmocka_unit_test(tensors_count_once),
        cmocka_unit_test(tensors_of_a_saved_job_count),
        cmocka_unit_test(numbers_wrap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
