/*
 * session.h - a client and its fake daemon, as most tests use them.
 */
#ifndef SESSION_H
#define SESSION_H

#include <stdio.h>
#include <stdlib.h>

#include "client/zclient.h"
#include "tests/unit/client/fake.h"

struct session {
    struct fake *f;
    struct zc_client *c;
    struct zc_job job;
    struct zc_placement placement;
};

/** Opened, with a job that is ready. */
static inline struct session session_open(fake_fn *fn, void *arg)
{
    const struct zc_job_options o = {
        .name = "j", .world = 1, .staging_bytes = FAKE_STAGING, .groups = 1
    };
    struct session x = { .f = calloc(1, sizeof(*x.f)) };

    assert_non_null(x.f);
    x.f->hang_up_at = FAKE_ANY_FRAME;
    x.f->fn = fn;
    x.f->arg = arg;
    fake_start(x.f);
    assert_int_equal(
        zc_open(&x.c, &(struct zc_options){ .socket = x.f->path, .quiet_timeout_ms = 5000 }), 0);
    assert_int_equal(zc_job_open_wait(x.c, &o, &x.job), 0);
    assert_int_equal(zc_ready_wait(x.c, FAKE_JOB, NULL, 0, &x.placement), 0);
    return x;
}

static inline void session_close(struct session *x)
{
    zc_close(x->c);
    fake_done(x->f);
    free(x->f);
}

/** What a `done` of a test records. */
struct outcome {
    unsigned runs;
    int rc;
    char says[128];
    struct zc_client *c;
};

static inline void outcome_done(void *arg, int rc)
{
    struct outcome *o = arg;

    o->runs++;
    o->rc = rc;
    (void)snprintf(o->says, sizeof(o->says), "%s", zc_error(o->c));
}

#endif
