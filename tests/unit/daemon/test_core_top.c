/*
 * What zctl top tells which user: the core's answer, by the asking user.
 */
#include "tests/unit/daemon/core_fixture.h"

#include <errno.h>
#include <string.h>

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

/* Reads all parts of the metrics: the number of samples; *ret_of_jobs is that of samples with a job's
 * name. */
static unsigned metrics_read(struct world *w, unsigned c, unsigned *ret_of_jobs)
{
    Zp__MetricsRequest q = ZP__METRICS_REQUEST__INIT;
    unsigned samples = 0, parts = 0;

    *ret_of_jobs = 0;
    do {
        Zp__MetricsReply *r;

        assert_int_equal(call(w, c, zsd_metrics, &q), 0);
        assert_true(answers[c].len < ZP_BODY_MAX && parts++ < 20);
        r = zp__metrics_reply__unpack(NULL, answers[c].len, answers[c].bytes);
        assert_non_null(r);
        for (size_t i = 0; i < r->n_families; i++) {
            const Zp__MetricFamily *f = r->families[i];

            assert_true(f->n_samples > 0 && strncmp(f->name, "zshard_", 7) == 0);
            samples += (unsigned)f->n_samples;
            for (size_t k = 0; k < f->n_samples; k++)
                *ret_of_jobs += f->samples[k]->n_labels > 0 &&
                                strcmp(f->samples[k]->labels[0], "job") == 0;
        }
        assert_true(r->cursor == 0 || r->cursor > q.cursor);
        q.cursor = r->cursor;
        zp__metrics_reply__free_unpacked(r, NULL);
    } while (q.cursor != 0);
    assert_true(parts > 1);
    return samples;
}

/* A user's metrics have his own jobs; the node's are everyone's. */
static void metrics_of_his_own(void **state)
{
    static const uint64_t wrong[] = { 1, 5, 1000, UINT64_C(1) << 32, UINT64_MAX };
    Zp__MetricsRequest q = ZP__METRICS_REQUEST__INIT;
    unsigned mine, others, of_jobs;
    struct world w;

    (void)state;
    world_open(&w, 64 << 20, "threads", 2);
    assert_int_equal(job_open(&w, 0), 0);
    assert_int_equal(job_define(&w, 0, ZB_F32), 0);
    w.clients[1].conn.uid = MINE;
    mine = metrics_read(&w, 1, &of_jobs);
    assert_true(of_jobs > 20);
    w.clients[1].conn.uid = OTHERS;
    others = metrics_read(&w, 1, &of_jobs);
    assert_int_equal(of_jobs, 0);
    assert_true(others > 80 && mine > others + 20);
    for (size_t i = 0; i < ZB_COUNT(wrong); i++) {
        q.cursor = wrong[i];
        assert_int_equal(call(&w, 1, zsd_metrics, &q), -EINVAL);
    }
    world_close(&w);
}

/* A job whose commits fail is named to its owner only. */
static void health_of_his_own(void **state)
{
    static const struct {
        uid_t uid;
        const char *says;
    } rows[] = { { MINE, "of job 'j' failed: no space" }, { OTHERS, "of 1 jobs of other users" } };
    Zp__Empty q = ZP__EMPTY__INIT;
    struct world w;

    (void)state;
    world_open(&w, 64 << 20, "threads", 2);
    assert_int_equal(job_open(&w, 0), 0);
    assert_int_equal(job_define(&w, 0, ZB_F32), 0);
    zsd_commit_count(job_of(&w, 0), 0, &(struct zb_err){ -EBUSY, "the caller's fault" });
    assert_int_equal(w.daemon.stats.commits_failed, 0);
    zsd_commit_count(job_of(&w, 0), 0, &(struct zb_err){ -ENOSPC, "no space" });
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        Zp__HealthReply *r;

        w.clients[1].conn.uid = rows[i].uid;
        assert_int_equal(call(&w, 1, zsd_health, &q), 0);
        r = zp__health_reply__unpack(NULL, answers[1].len, answers[1].bytes);
        assert_non_null(r);
        assert_true(r->n_reasons >= 1 && r->reasons[0]->level == ZSD_REASON_ERROR);
        assert_string_equal(r->reasons[0]->id, "commits-failing");
        if (!strstr(r->reasons[0]->text, rows[i].says))
            fail_msg("'%s'", r->reasons[0]->text);
        assert_int_equal(r->jobs, 1);
        zp__health_reply__free_unpacked(r, NULL);
    }
    zsd_commit_count(job_of(&w, 0), zb_now_ns(), NULL);
    assert_int_equal(call(&w, 1, zsd_health, &q), 0);
    assert_int_equal(zsd_histogram_count(&w.daemon.times[ZSD_TIME_COMMIT]), 1);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_user_sees_his_own),
                                        cmocka_unit_test(metrics_of_his_own),
                                        cmocka_unit_test(health_of_his_own) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
