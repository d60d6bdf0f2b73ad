/*
 * What zctl top tells which user: the core's answer, by the asking user.
 */
#include "tests/unit/daemon/core_fixture.h"

#include <errno.h>

#include "proto/frame.h"
#include "tests/ztest.h"

#define MINE   1000u
#define OTHERS 1001u

/* The answer to client c under its tag. */
static Zp__TopReply *look(struct world *w, unsigned c, const char *job)
{
    Zp__TopRequest q = ZP__TOP_REQUEST__INIT;
    Zp__TopReply *reply;

    q.job = (char *)(uintptr_t)job;
    assert_int_equal(call(w, c, zsd_top, &q), 0);
    reply = zp__top_reply__unpack(NULL, answers[c].len, answers[c].bytes);
    assert_non_null(reply);
    return reply;
}

static void a_user_sees_his_own(void **state)
{
    static const struct {
        uid_t uid;
        size_t jobs;
        bool oldest;
    } rows[] = { { MINE, 1, true }, { OTHERS, 0, false } }; /* root: zsd_may(), test_conn.c */
    struct world w;
    struct zsd_req waiting = { .method = ZP_STEP };
    Zp__TopRequest q = ZP__TOP_REQUEST__INIT;

    (void)state;
    world_open(&w, 64 << 20, "threads", 2);
    assert_int_equal(job_open(&w, 0), 0);
    assert_int_equal(job_define(&w, 0, ZB_F32), 0);
    waiting.conn = &w.clients[0].conn; /* conn.c is not linked to keep the list */
    zb_list_init(&w.daemon.unanswered);
    zb_list_push_back(&w.daemon.unanswered, &waiting.daemon_node);
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        Zp__TopReply *r;

        w.clients[1].conn.uid = rows[i].uid;
        r = look(&w, 1, "");
        assert_int_equal(r->n_jobs, rows[i].jobs);
        assert_int_equal(r->oldest != NULL, rows[i].oldest);
        if (r->oldest) {
            assert_string_equal(r->oldest->method, "step");
            assert_string_equal(r->oldest->job, w.clients[0].conn.member->job->name);
        }
        assert_int_equal(r->n_tiers, 2); /* the node's rows are visible to everyone */
        assert_int_equal(r->n_paths, 1);
        zp__top_reply__free_unpacked(r, NULL);
    }
    w.clients[1].conn.uid = OTHERS;
    q.job = w.clients[0].conn.member->job->name;
    assert_int_equal(call(&w, 1, zsd_top, &q), -ENOENT);
    w.clients[1].conn.uid = MINE;
    assert_int_equal(call(&w, 1, zsd_top, &q), 0);
    waiting.conn = NULL; /* its client has gone: it belongs to nobody */
    zp__top_reply__free_unpacked(look(&w, 1, ""), NULL);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_user_sees_his_own) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
