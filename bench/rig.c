#include "bench/rig.h"

#include <assert.h>
#include <string.h>

#include "base/util.h"
#include "bench/job.h"

#define RIG_STEP_MS 600000u /* the deadline of a step, for slow drives */

const struct zc_group zbench_group = {
    .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1
};
const struct zc_group zbench_group_muon = { .lr = 1e-4,
                                            .beta1 = 0.9,
                                            .beta2 = 0.95,
                                            .eps = 1e-8,
                                            .weight_decay = 0.1,
                                            .momentum = 0.95,
                                            .nesterov = true };

int zbench_counters(struct zbench *z, struct zc_client *c, const char *const *names, unsigned n,
                    uint64_t *ret)
{
    struct zc_counter *rows = NULL;
    size_t nrows = 0;
    int rc = zc_stat_wait(c, &rows, &nrows);

    if (rc < 0)
        return zb_fail(&z->err, rc, "%s", zc_error(c));
    for (unsigned k = 0; k < n; k++) {
        ret[k] = 0;
        for (size_t i = 0; i < nrows; i++)
            if (strcmp(rows[i].name, names[k]) == 0)
                ret[k] = rows[i].value;
    }
    zc_rows_free(rows);
    return 0;
}

int zbench_rig_failed(struct zbench_rig *r, int rc)
{
    return zb_fail(&r->z->err, rc, "%s", r->c ? zc_error(r->c) : zc_strerror(rc));
}

int zbench_rig_start(struct zbench_rig *r, struct zbench *z, const char *dir, const char *fmt, ...)
{
    va_list ap;
    int rc;

    *r = (struct zbench_rig){ .z = z, .daemon = ZBENCH_NO_DAEMON };
    va_start(ap, fmt);
    rc = zbench_daemon_vstart(&r->daemon, dir, &z->err, fmt, ap);
    va_end(ap);
    return rc;
}

int zbench_rig_connect(struct zbench_rig *r, struct zc_client **ret)
{
    const struct zc_options options = { .socket = r->daemon.socket, .program = "zbench" };
    int rc = zc_open(ret, &options);

    return rc < 0 ? zb_fail(&r->z->err, rc, "%s", *ret ? zc_error(*ret) : zc_strerror(rc)) : 0;
}

int zbench_rig_open(struct zbench_rig *r, const struct zc_job_options *options)
{
    struct zc_job_options o = *options;
    int rc = zbench_rig_connect(r, &r->c);

    o.name = "bench";
    o.world = o.groups = 1;
    if (rc < 0)
        return rc;
    rc = zc_job_open_wait(r->c, &o, &r->job);
    if (rc < 0)
        return zbench_rig_failed(r, rc);
    memset(r->job.staging, 0, r->job.staging_bytes);
    return 0;
}

/* Sends initial values (step 0), or gradients. */
static int rig_send(struct zbench_rig *r)
{
    int rc = 0;

    for (uint32_t u = 0; u < r->units && rc == 0; u++)
        rc = zbench_send(r->c, &r->job, r->ids[u], r->count, r->grad, r->step);
    return rc < 0 ? zbench_rig_failed(r, rc) : 0;
}

int zbench_rig_define(struct zbench_rig *r, uint32_t units, uint64_t count, enum zc_dtype grad,
                      struct zc_placement *ret)
{
    int rc = 0;

    assert(units <= ZBENCH_UNITS_MAX);
    r->count = count;
    r->grad = grad;
    for (r->units = 0; r->units < units && rc == 0; r->units++)
        rc = r->matrices.count > 0
                 ? zbench_unit_matrices(r->c, r->job.id, r->units, count, r->matrices, grad,
                                        &r->ids[r->units])
                 : zbench_unit_whole(r->c, r->job.id, r->units, count, grad, &r->ids[r->units]);
    if (rc == 0)
        rc = zc_ready_wait(r->c, r->job.id, NULL, 0, ret);
    return rc < 0 ? zbench_rig_failed(r, rc) : rig_send(r);
}

int zbench_rig_push(struct zbench_rig *r)
{
    r->step++;
    return rig_send(r);
}

int zbench_rig_step(struct zbench_rig *r, enum zc_commit commit, double *ret_s)
{
    const struct zc_step step = { .step = r->step,
                                  .scale = 1,
                                  .groups = r->matrices.count > 0 ? &zbench_group_muon
                                                                  : &zbench_group,
                                  .ngroups = 1,
                                  .commit = commit,
                                  .timeout_ms = RIG_STEP_MS };
    struct zc_stepped stepped = { 0 };
    uint64_t begin_ns = zb_now_ns();
    int rc = zc_step_wait(r->c, r->job.id, &step, &stepped);

    *ret_s = (double)(zb_now_ns() - begin_ns) / 1e9;
    if (rc == 0 && stepped.commit_code < 0)
        return zb_fail(&r->z->err, stepped.commit_code, "%s", stepped.commit_text);
    return rc < 0 ? zbench_rig_failed(r, rc) : 0;
}

int zbench_rig_row(struct zbench_rig *r, struct zc_job_row *ret)
{
    struct zc_job_row *rows = NULL;
    size_t n = 0;
    int rc = zc_jobs_wait(r->c, "bench", &rows, &n);

    if (rc < 0)
        return zbench_rig_failed(r, rc);
    *ret = n > 0 ? rows[0] : (struct zc_job_row){ .world = 0 };
    zc_rows_free(rows);
    return 0;
}

int zbench_rig_end(struct zbench_rig *r, int rc)
{
    if (rc == 0 && r->c && r->job.id != 0 && (rc = zc_job_close_wait(r->c, r->job.id)) < 0)
        (void)zbench_rig_failed(r, rc);
    zc_close(r->c);
    r->c = NULL;
    zbench_daemon_end(&r->daemon);
    return rc;
}
