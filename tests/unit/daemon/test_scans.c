/*
 * fsck and df: who may ask, that requests share a run, and that no change waits for one. Tested on
 * the core, with a store and a durable job in it.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <semaphore.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/os/numa.h"
#include "daemon/show/requests.h"
#include "daemon/show/scans.h"
#include "tests/unit/daemon/saved_fixture.h"

static void scans_open(struct saved_world *s)
{
    saved_open(s, SAVED_HOST, ZB_F32, 3);
    s->w.clients[1].conn.uid = s->w.clients[2].conn.uid = geteuid();
}

static void fsck_ask(struct saved_world *s, unsigned c, unsigned tag)
{
    const Zp__Empty q = ZP__EMPTY__INIT;

    ask_as(&s->w, c, tag, zsd_fsck, &q);
}

static void df_ask(struct saved_world *s, unsigned c, unsigned tag, uint64_t cursor)
{
    Zp__DfRequest q = ZP__DF_REQUEST__INIT;

    q.cursor = cursor;
    ask_as(&s->w, c, tag, zsd_df, &q);
}

static void snapshot_ask(struct saved_world *s, unsigned tag)
{
    Zp__SnapshotTake q = ZP__SNAPSHOT_TAKE__INIT;
    char job[] = "j", name[] = "s";

    q.job = job;
    q.name = name;
    ask_as(&s->w, 0, tag, zsd_snapshot, &q);
}

static void no_problems(unsigned tag)
{
    Zp__FsckReply *reply = zp__fsck_reply__unpack(NULL, answers[tag].len, answers[tag].bytes);

    assert_non_null(reply);
    if (reply->problems_total > 0)
        fail_msg("%s", reply->problems[0]);
    assert_int_equal(reply->jobs, 1);
    assert_int_equal(reply->rows, UNITS);
    zp__fsck_reply__free_unpacked(reply, NULL);
}

static void fsck_is_the_administrators(void **state)
{
    struct saved_world s;

    (void)state;
    scans_open(&s);
    s.w.clients[2].conn.uid = 1001;
    fsck_ask(&s, 2, 2);
    assert_int_equal(answer(&s.w, 2), -EPERM);
    assert_non_null(strstr(answers[2].text, "only an administrator"));
    fsck_ask(&s, 1, 1);
    assert_int_equal(answer(&s.w, 1), 0);
    no_problems(1);
    saved_close(&s);
}

/* Ten requests at once: one run, and each is answered. */
static void askers_share_a_run(void **state)
{
    struct saved_world s;
    uint64_t surveys;

    (void)state;
    scans_open(&s);
    surveys = s.w.daemon.core->scans->surveys;
    for (unsigned i = 0; i < 5; i++) {
        fsck_ask(&s, 1, 10 + i);
        fsck_ask(&s, 2, 15 + i);
    }
    for (unsigned i = 10; i < 20; i++) {
        assert_int_equal(answer(&s.w, i), 0);
        no_problems(i);
    }
    assert_int_equal(s.w.daemon.core->scans->surveys, surveys + 1);

    surveys = s.w.daemon.core->scans->surveys;
    for (unsigned i = 10; i < 20; i++)
        df_ask(&s, 1 + i % 2, i, 0);
    for (unsigned i = 10; i < 20; i++)
        assert_int_equal(answer(&s.w, i), 0);
    assert_int_equal(s.w.daemon.core->scans->surveys, surveys + 1);
    df_ask(&s, 1, 1, 2); /* the next page of that list */
    assert_int_equal(answer(&s.w, 1), 0);
    assert_int_equal(s.w.daemon.core->scans->surveys, surveys + 1);
    saved_close(&s);
}

static void snapshot_comes_first(struct saved_world *s)
{
    for (int i = 0; i < 100000 && answers[2].rc == NONE; i++) {
        world_turn(&s->w);
        (void)usleep(10);
    }
    assert_int_equal(answers[2].rc, 0);
    assert_int_equal(answers[1].rc, NONE);
    assert_int_equal(answer(&s->w, 1), 0);
    no_problems(1);
}

/* A request that follows an fsck is done before it, and the fsck is still right. */
static void fsck_gives_way(void **state)
{
    struct saved_world s;

    (void)state;
    scans_open(&s);
    fsck_ask(&s, 1, 1);
    snapshot_ask(&s, 2);
    snapshot_comes_first(&s);
    saved_close(&s);
}

/* Blocks the catalog's thread until it may go on. */
struct keeper {
    struct zsd_task task;
    sem_t goes_on;
};

static void keeper_run(struct zsd_task *task)
{
    while (sem_wait(&zb_container_of(task, struct keeper, task)->goes_on) != 0)
        ;
}

static void keeper_done(struct zsd_task *task)
{
    (void)task;
}

/* The same if the fsck has begun already. */
static void fsck_is_stopped(void **state)
{
    struct keeper keeper = { .task = { .run = keeper_run, .done = keeper_done } };
    struct saved_world s;
    const uint64_t *surveys;
    uint64_t before;

    (void)state;
    scans_open(&s);
    surveys = &s.w.daemon.core->scans->surveys;
    before = *surveys;
    assert_int_equal(sem_init(&keeper.goes_on, 0, 0), 0);
    zsd_compute_post(s.w.daemon.catalog_thread, &keeper.task);
    fsck_ask(&s, 1, 1);
    for (int i = 0; i < 1000 && *surveys == before; i++)
        world_turn(&s.w);
    assert_true(*surveys == before + 1);
    snapshot_ask(&s, 2);
    assert_int_equal(sem_post(&keeper.goes_on), 0);
    snapshot_comes_first(&s);
    assert_true(*surveys == before + 2);
    assert_int_equal(sem_destroy(&keeper.goes_on), 0);
    saved_close(&s);
}

/* No df waits for the catalog's threads, nor uses the catalog: a change may be using it. */
static void df_leaves_the_catalog_alone(void **state)
{
    struct keeper keeper = { .task = { .run = keeper_run, .done = keeper_done } };
    struct saved_world s;
    struct stat st;
    Zp__DfReply *r;

    (void)state;
    scans_open(&s);
    assert_int_equal(sem_init(&keeper.goes_on, 0, 0), 0);
    zsd_compute_post(s.w.daemon.catalog_thread, &keeper.task);
    df_ask(&s, 1, 1, 0);
    for (int i = 0; i < 20000 && answers[1].rc == NONE; i++) {
        world_turn(&s.w);
        (void)usleep(100);
    }
    assert_int_equal(sem_post(&keeper.goes_on), 0);
    assert_int_equal(answers[1].rc, 0);
    r = zp__df_reply__unpack(NULL, answers[1].len, answers[1].bytes);
    assert_non_null(r);
    assert_int_equal(stat(s.catalog, &st), 0);
    assert_int_equal(r->catalog_bytes, st.st_size);
    zp__df_reply__free_unpacked(r, NULL);
    saved_close(&s);
    assert_int_equal(sem_destroy(&keeper.goes_on), 0);
}

/* Requests for the tiers share a task: jobs wait for the same threads. */
static void tiers_share_a_task(void **state)
{
    struct keeper keepers[2] = { 0 };
    struct zsd_gauge waiting, busy;
    struct zb_err err = { 0 };
    struct saved_world s;

    (void)state;
    scans_open(&s);
    if (zsd_numa_open(&s.w.daemon.numa, "auto", "", &err) < 0)
        fail_msg("%s", err.text);
    for (unsigned i = 0; i < 2; i++) { /* both threads */
        keepers[i].task = (struct zsd_task){ .run = keeper_run, .done = keeper_done };
        assert_int_equal(sem_init(&keepers[i].goes_on, 0, 0), 0);
        zsd_compute_post(s.w.daemon.compute, &keepers[i].task);
    }
    do
        zsd_compute_load(s.w.daemon.compute, &waiting, &busy);
    while (busy.now < 2);
    for (unsigned i = 10; i < 20; i++)
        ask_as(&s.w, 1, i, zsd_tiers, NULL);
    zsd_compute_load(s.w.daemon.compute, &waiting, &busy);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(sem_post(&keepers[i].goes_on), 0);
    for (unsigned i = 10; i < 20; i++)
        assert_int_equal(answer(&s.w, i), 0);
    assert_int_equal(waiting.now, 1);
    ask_as(&s.w, 1, 1, zsd_tiers, NULL);
    assert_int_equal(answer(&s.w, 1), 0);
    saved_close(&s);
    zsd_numa_close(s.w.daemon.numa);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(sem_destroy(&keepers[i].goes_on), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fsck_is_the_administrators),
        cmocka_unit_test(askers_share_a_run),
        cmocka_unit_test(fsck_gives_way),
        cmocka_unit_test(fsck_is_stopped),
        cmocka_unit_test(df_leaves_the_catalog_alone),
        cmocka_unit_test(tiers_share_a_task),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
