#include "tests/ztest.h"

#include "daemon/net/limits.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/run/daemon.h"

/*
 * Quotas: which level is charged, which one refuses and with which message, and that charges are
 * returned.
 */

#define USER  1000u /* neither root nor the user who runs this test */
#define OTHER 1001u

static struct zsd d;
static struct zb_err err;

static int setup(void **state)
{
    (void)state;
    memset(&d, 0, sizeof(d));
    err = (struct zb_err){ 0 };
    d.config.clients_max = 8;
    d.config.jobs_max = 4;
    return zsd_limits_open(&d, &err);
}

static int teardown(void **state)
{
    (void)state;
    zsd_limits_close(&d); /* asserts that all charges were returned */
    return 0;
}

static struct zsd_quota joined(enum zsd_level level, uid_t uid)
{
    struct zsd_quota q;

    assert_int_equal(zsd_quota_join(&d, &q, level, uid), 0);
    return q;
}

static void a_charge_goes_up_the_tree(void **state)
{
    struct zsd_quota conn = joined(ZSD_LEVEL_CONN, USER), job = joined(ZSD_LEVEL_JOB, USER),
                     stranger = joined(ZSD_LEVEL_CONN, OTHER);

    (void)state;
    assert_int_equal(zsd_limit_take(&conn, ZSD_LIMIT_NOTE_BYTES, 3, &err), 0);
    assert_int_equal(zsd_limit_take(&job, ZSD_LIMIT_NOTE_BYTES, 5, &err), 0);
    assert_int_equal(zsd_limit_take(&stranger, ZSD_LIMIT_NOTE_BYTES, 7, &err), 0);
    assert_ptr_equal(conn.parent, job.parent);
    assert_int_equal(conn.parent->used[ZSD_LIMIT_NOTE_BYTES], 8);
    assert_int_equal(d.limits->node.used[ZSD_LIMIT_NOTE_BYTES], 15);
    zsd_limit_give(&conn, ZSD_LIMIT_NOTE_BYTES, 2);
    assert_int_equal(conn.used[ZSD_LIMIT_NOTE_BYTES], 1);
    assert_int_equal(d.limits->node.used[ZSD_LIMIT_NOTE_BYTES], 13);
    zsd_quota_leave(&conn); /* Q2 */
    zsd_quota_leave(&job);
    zsd_quota_leave(&stranger);
    assert_int_equal(d.limits->node.used[ZSD_LIMIT_NOTE_BYTES], 0);
}

/* Fills a limit by ones; the code and a part of the message of the first refusal. */
static void each_level_refuses(void **state)
{
    const struct {
        const char *name;
        enum zsd_level level;
        enum zsd_limit what;
        uid_t uid;
        uint64_t taken;
        int code;
        const char *says;
    } cases[] = {
        { "a connection's", ZSD_LEVEL_CONN, ZSD_LIMIT_REQUESTS, USER, ZSD_REQS_MAX, -EBUSY,
          "this connection has 1024 unanswered requests already" },
        { "a user's", ZSD_LEVEL_CONN, ZSD_LIMIT_CLIENTS, USER, 6, -EDQUOT,
          "user 1000 has 6 connections already: 1 more would exceed its limit of "
          "6 (user_clients_max)" },
        { "the node's", ZSD_LEVEL_CONN, ZSD_LIMIT_CLIENTS, geteuid(), 8 + ZSD_ADMIN_PLACES, -EUSERS,
          "this daemon has 12 connections already" },
        { "jobs of a user", ZSD_LEVEL_JOB, ZSD_LIMIT_JOBS, USER, 3, -EDQUOT, "(user_jobs_max)" },
        { "jobs of the daemon", ZSD_LEVEL_JOB, ZSD_LIMIT_JOBS, geteuid(), 4, -ENOSPC,
          "(jobs_max)" },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct zsd_quota q = joined(cases[i].level, cases[i].uid);
        uint64_t taken = 0;
        int rc;

        err = (struct zb_err){ 0 };
        while (zsd_limit_room(&q, cases[i].what, 1)) {
            assert_int_equal(zsd_limit_take(&q, cases[i].what, 1, &err), 0);
            taken++;
        }
        rc = zsd_limit_take(&q, cases[i].what, 1, &err);
        if (taken != cases[i].taken || rc != cases[i].code || !strstr(err.text, cases[i].says))
            fail_msg("%s: %llu, %d, '%s'", cases[i].name, (unsigned long long)taken, rc, err.text);
        assert_int_equal(q.used[cases[i].what], taken); /* refused: nothing was charged */
        assert_int_equal(d.limits->node.used[cases[i].what], taken);
        zsd_quota_leave(&q);
    }
}

/* A resource is charged to jobs or to connections: a limit at another level would never apply. */
static void limits_are_where_charges_are(void **state)
{
    static const bool of_job[ZSD_LIMITS] = {
        [ZSD_LIMIT_JOBS] = true,
        [ZSD_LIMIT_DEFINITION_BYTES] = true,
        [ZSD_LIMIT_NOTE_BYTES] = true,
        [ZSD_LIMIT_SNAPSHOTS] = true,
    };
    struct zsd_quota q = joined(ZSD_LEVEL_CONN, USER);

    (void)state;
    for (enum zsd_limit what = 0; what < ZSD_LIMITS; what++) {
        enum zsd_level other = of_job[what] ? ZSD_LEVEL_CONN : ZSD_LEVEL_JOB;

        if (zsd_limit_max(&q, other, what) != UINT64_MAX)
            fail_msg("thing %d is limited where nobody is charged for it", (int)what);
    }
    zsd_quota_leave(&q);
}

/* The node's limit is a part of host_bytes. */
static void bytes_of_one_job(void **state)
{
    const struct {
        enum zsd_limit what;
        uint64_t max;
        const char *says;
    } cases[] = {
        { ZSD_LIMIT_DEFINITION_BYTES, 256 * ZB_MIB, "this job has 268435456 bytes of definitions" },
        { ZSD_LIMIT_NOTE_BYTES, 128 * ZB_MIB, "this job has 134217728 bytes of notes already" },
    };

    (void)state;
    d.config.host_bytes = UINT64_C(12) << 30;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        struct zsd_quota job = joined(ZSD_LEVEL_JOB, USER);

        err = (struct zb_err){ 0 };
        assert_int_equal(zsd_limit_take(&job, cases[i].what, cases[i].max, &err), 0);
        assert_int_equal(zsd_limit_take(&job, cases[i].what, 1, &err), -ENOSPC);
        if (!strstr(err.text, cases[i].says))
            fail_msg("'%s'", err.text);
        zsd_quota_leave(&job);
    }
}

/* A large node also allows a job and a user more. */
static void definitions_of_a_large_node(void **state)
{
    const enum zsd_limit what = ZSD_LIMIT_DEFINITION_BYTES;
    struct zsd_quota job = joined(ZSD_LEVEL_JOB, USER);

    (void)state;
    assert_int_equal(zsd_limit_max(&job, ZSD_LEVEL_NODE, what), 48 * ZB_MIB);
    assert_int_equal(zsd_limit_max(&job, ZSD_LEVEL_USER, what), 512 * ZB_MIB);
    assert_int_equal(zsd_limit_max(&job, ZSD_LEVEL_JOB, what), 256 * ZB_MIB);
    d.config.host_bytes = UINT64_C(48) << 30;
    assert_int_equal(zsd_limit_max(&job, ZSD_LEVEL_NODE, what), 4096 * ZB_MIB);
    assert_int_equal(zsd_limit_max(&job, ZSD_LEVEL_USER, what), 2048 * ZB_MIB);
    assert_int_equal(zsd_limit_max(&job, ZSD_LEVEL_JOB, what), 1024 * ZB_MIB);
    zsd_quota_leave(&job);
}

/* A part that ordinary users cannot have is reserved for trusted ones. */
static void the_reserve(void **state)
{
    struct zsd_quota a = joined(ZSD_LEVEL_CONN, USER), b = joined(ZSD_LEVEL_CONN, OTHER),
                     root = joined(ZSD_LEVEL_CONN, 0);

    (void)state;
    assert_int_equal(zsd_limit_take(&a, ZSD_LIMIT_CLIENTS, 6, &err), 0);
    assert_int_equal(zsd_limit_take(&b, ZSD_LIMIT_CLIENTS, 2, &err), 0);
    assert_int_equal(zsd_limit_take(&b, ZSD_LIMIT_CLIENTS, 1, &err), -EUSERS);
    assert_int_equal(zsd_limit_take(&root, ZSD_LIMIT_CLIENTS, ZSD_ADMIN_PLACES, &err), 0);
    assert_int_equal(zsd_limit_take(&root, ZSD_LIMIT_CLIENTS, 1, &err), -EUSERS);
    zsd_quota_leave(&root);
    zsd_quota_leave(&b);
    zsd_quota_leave(&a);
}

static void by_an_option(void **state)
{
    struct zsd_quota q = joined(ZSD_LEVEL_CONN, USER);
    struct zsd_user_quota *own;

    (void)state;
    assert_int_equal(zsd_limit_max(&q, ZSD_LEVEL_USER, ZSD_LIMIT_JOBS), 3);
    d.config.user_jobs_max = 1;
    assert_int_equal(zsd_limit_max(&q, ZSD_LEVEL_USER, ZSD_LIMIT_JOBS), 1);
    assert_int_equal(zsd_limit_max(&q, ZSD_LEVEL_CONN, ZSD_LIMIT_JOBS), UINT64_MAX);
    own = zsd_quotas_add(&d.limits->quotas, USER);
    own->set[ZSD_HELD_JOBS] = true;
    own->max[ZSD_HELD_JOBS] = 0;
    assert_int_equal(zsd_limit_take(&q, ZSD_LIMIT_JOBS, 1, &err), -EDQUOT);
    if (!strstr(err.text, "limit of 0 (quotas: jobs; zctl quota shows it)"))
        fail_msg("%s", err.text);
    zsd_quota_leave(&q);
}

/* Without limits, or for no user: counted, never refused. */
static void of_nobody(void **state)
{
    struct zsd_quota q = { 0 };
    uint32_t dropped;

    (void)state;
    assert_int_equal(zsd_limit_take(&q, ZSD_LIMIT_REQUESTS, UINT64_C(1) << 40, &err), 0);
    zsd_limit_give(&q, ZSD_LIMIT_REQUESTS, 1);
    assert_int_equal(q.used[ZSD_LIMIT_REQUESTS], (UINT64_C(1) << 40) - 1);
    for (unsigned i = 0; i < 1000; i++)
        assert_true(zsd_limit_line(&q, 1, &dropped) && dropped == 0);
    zsd_quota_leave(&q);
}

#define SECOND UINT64_C(1000000000)

static unsigned lines(struct zsd_quota *q, uint64_t now_ns, unsigned asked, uint32_t *ret_dropped)
{
    unsigned written = 0;
    uint32_t dropped;

    *ret_dropped = 0;
    for (unsigned i = 0; i < asked; i++)
        if (zsd_limit_line(q, now_ns, &dropped)) {
            written++;
            *ret_dropped += dropped;
        }
    return written;
}

/* A burst, then a rate; a client that reconnects gets the tokens that its user has left. */
static void log_lines(void **state)
{
    struct zsd_quota conn = joined(ZSD_LEVEL_CONN, USER), other = joined(ZSD_LEVEL_CONN, OTHER);
    unsigned burst, all;
    uint32_t dropped;

    (void)state;
    burst = lines(&conn, SECOND, 1000, &dropped);
    assert_in_range(burst, 1, 100);
    assert_int_equal(dropped, 0);
    assert_int_equal(lines(&conn, 2 * SECOND, 1000, &dropped), 1); /* one a second */
    assert_int_equal(dropped, 1000 - burst); /* the message has the number of dropped lines */
    all = burst + 1;
    for (unsigned i = 0; i < 100; i++) {
        zsd_quota_leave(&conn);
        conn = joined(ZSD_LEVEL_CONN, USER);
        all += lines(&conn, 2 * SECOND, 1000, &dropped);
    }
    assert_in_range(all, burst, 8 * burst);
    assert_int_equal(lines(&other, 2 * SECOND, 1, &dropped), 1); /* others are not affected */
    assert_int_equal(lines(&conn, 1000 * SECOND, 1000, &dropped), burst);
    zsd_quota_leave(&conn);
    zsd_quota_leave(&other);
}

/* The text of the option quotas. */
static void quotas_are_parsed(void **state)
{
    static const struct {
        const char *text, *says; /* says NULL: it is right */
    } cases[] = {
        { "", NULL },
        { "1000 nvme=2T host=64G,root jobs=4 gpu=none", NULL },
        { "1000", "has no limits" },
        { "1000 nvme=1G,1000 host=1G", "there twice" },
        { "1000 nvme=1G nvme=2G", "set already" },
        { "1000 disk=1G", "not a limit" },
        { "1000 jobs=0", "must be 1 to" },
        { "1000 nvme=much", "much" },
        { "no-such-user nvme=1G", "there is no user" },
        { "1000 nvme=1G,", "no name" },
        { "10x nvme=1G", "not a uid" },
        { "@root nvme=1G,root nvme=2G,@7 jobs=1", NULL },
        { "@root", "group '@root' has no limits" },
        { "@root nvme=1G,@0 host=1G", "there twice" },
        { "@no-such-group nvme=1G", "there is no group 'no-such-group'" },
        { "@ nvme=1G", "there is no group ''" },
        { "@10x nvme=1G", "not a gid" },
    };
    struct zsd_quotas q;

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(cases); i++) {
        err = (struct zb_err){ 0 };
        if ((zsd_quotas_check(cases[i].text, &err) < 0) != (cases[i].says != NULL) ||
            (cases[i].says && !strstr(err.text, cases[i].says)))
            fail_msg("'%s': %s", cases[i].text, err.text);
    }
    assert_int_equal(zsd_quotas_parse(cases[1].text, &q, &err), 0);
    assert_int_equal(q.n, 2);
    assert_true(zsd_quotas_of(&q, 1000)->max[ZSD_HELD_NVME] == UINT64_C(2) << 40);
    assert_false(zsd_quotas_of(&q, 1000)->set[ZSD_HELD_GPU]);
    assert_true(zsd_quotas_of(&q, 0)->max[ZSD_HELD_GPU] == ZSD_NO_MAX);
    assert_null(zsd_quotas_of(&q, 7));
    zsd_quotas_done(&q);
}

/* Bytes: the default, a user's own limit, bytes that are shared, and trusted users. */
static void bytes_of_a_user(void **state)
{
    struct zsd_quota job = joined(ZSD_LEVEL_JOB, USER), other = joined(ZSD_LEVEL_JOB, OTHER),
                     root = joined(ZSD_LEVEL_JOB, 0);
    struct zsd_account tier = { .budget = 1000 },
                       held = { .user = zsd_user_held(&job, ZSD_HELD_NVME) };
    struct zsd_user_quota *own;

    (void)state;
    d.config.user_nvme_bytes = 100;
    zsd_book(&tier, &held, ZSD_USE_PARAM, 60);
    assert_true(zsd_limit_bytes_left(&job, ZSD_HELD_NVME) == 40);
    assert_int_equal(zsd_limit_bytes(&job, ZSD_HELD_NVME, 40, &err), 0);
    assert_int_equal(zsd_limit_bytes(&job, ZSD_HELD_NVME, 41, &err), -EDQUOT);
    if (!strstr(err.text, "user 1000 holds 60 B of nvme: 41 B more") ||
        !strstr(err.text, "user_nvme_bytes"))
        fail_msg("%s", err.text);
    assert_true(zsd_limit_bytes_left(&job, ZSD_HELD_HOST) == UINT64_MAX);
    zsd_user_of(&job)->shared_bytes = 20; /* counted twice */
    assert_true(zsd_limit_bytes_left(&job, ZSD_HELD_NVME) == 60);
    assert_true(zsd_limit_bytes_left(&other, ZSD_HELD_NVME) == 100);
    assert_true(zsd_limit_bytes_left(&root, ZSD_HELD_NVME) == UINT64_MAX);
    own = zsd_quotas_add(&d.limits->quotas, USER);
    own->set[ZSD_HELD_NVME] = true;
    own->max[ZSD_HELD_NVME] = 30; /* less than is held: nothing more, and nothing is taken away */
    assert_true(zsd_limit_bytes_left(&job, ZSD_HELD_NVME) == 0);
    assert_int_equal(zsd_limit_bytes(&job, ZSD_HELD_NVME, 0, &err), 0);
    assert_int_equal(zsd_limit_bytes(&job, ZSD_HELD_NVME, 1, &err), -EDQUOT);
    zsd_unbook(&tier, &held, ZSD_USE_PARAM, 60);
    zsd_user_of(&job)->shared_bytes = 0;
    assert_true(zsd_user_used(zsd_user_of(&job), ZSD_HELD_NVME) == 0);
    zsd_quota_leave(&job);
    zsd_quota_leave(&other);
    zsd_quota_leave(&root);
}

/* The user's own limit, then that of the first group, then the default. */
static void limits_of_groups(void **state)
{
    static const gid_t groups[] = { 50, 60 };
    struct zsd_quotas q;
    struct zsd_quota job;
    struct zsd_user *user;
    char text[200];
    bool own;

    (void)state;
    assert_int_equal(
        zsd_quotas_parse("@70 gpu=7,@60 host=6 nvme=6,@50 host=5 jobs=5,1000 jobs=1", &q, &err), 0);
    assert_true(zsd_quotas_have_groups(&q));
    assert_true(zsd_quotas_find(&q, 1000, groups, 2, ZSD_HELD_JOBS)->max[ZSD_HELD_JOBS] == 1);
    assert_true(zsd_quotas_find(&q, 1001, groups, 2, ZSD_HELD_JOBS)->max[ZSD_HELD_JOBS] == 5);
    assert_true(zsd_quotas_find(&q, 1000, groups, 2, ZSD_HELD_HOST)->max[ZSD_HELD_HOST] == 6);
    assert_true(zsd_quotas_find(&q, 1000, groups, 1, ZSD_HELD_HOST)->max[ZSD_HELD_HOST] == 5);
    assert_null(zsd_quotas_find(&q, 1000, groups, 2, ZSD_HELD_GPU));
    assert_null(zsd_quotas_find(&q, 60, NULL, 0, ZSD_HELD_HOST)); /* a gid is no uid */
    assert_null(zsd_quotas_of(&q, 60));
    zsd_quotas_text(&q, text, sizeof(text));
    assert_string_equal(text, "@70 gpu=7,@60 host=6 nvme=6,@50 host=5 jobs=5,1000 jobs=1");
    zsd_quotas_done(&q);

    /* groups of the system: those of the user with uid 1 */
    job = joined(ZSD_LEVEL_JOB, 1);
    user = zsd_user_of(&job);
    assert_int_equal(zsd_quotas_user_groups(1, &user->groups, &user->ngroups), 0);
    assert_true(user->ngroups > 0); /* every system has that user: daemon, bin */
    (void)snprintf(text, sizeof(text), "@%u nvme=5 jobs=2", (unsigned)user->groups[0]);
    assert_int_equal(zsd_limits_quotas(&d, text, &err), 0);
    assert_true(zsd_user_max(user, ZSD_HELD_NVME, &own) == 5 && own);
    assert_true(zsd_user_max(user, ZSD_HELD_HOST, &own) == ZSD_NO_MAX && !own);
    assert_int_equal(zsd_limit_take(&job, ZSD_LIMIT_JOBS, 2, &err), 0);
    assert_int_equal(zsd_limit_take(&job, ZSD_LIMIT_JOBS, 1, &err), -EDQUOT);
    assert_int_equal(zsd_limits_quotas(&d, "", &err), 0); /* as after a reload */
    assert_true(zsd_user_max(user, ZSD_HELD_NVME, &own) == ZSD_NO_MAX && user->ngroups == 0);
    zsd_quota_leave(&job);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_charge_goes_up_the_tree),
        TEST(quotas_are_parsed),
        TEST(bytes_of_a_user),
        TEST(limits_of_groups),
        TEST(each_level_refuses),
        TEST(limits_are_where_charges_are),
        TEST(bytes_of_one_job),
        TEST(definitions_of_a_large_node),
        TEST(the_reserve),
        TEST(by_an_option),
        TEST(of_nobody),
        TEST(log_lines),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
