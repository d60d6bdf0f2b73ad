/*
 * rig.h - the setup of most benches: a private daemon, a client of it, and one job of equal units
 * whose gradients are pushed and whose steps are timed.
 *
 * The units have one tensor each, so that a step changes every element (job.h). Blocking; one
 * thread. zbench_rig_end() may be called in any state; every other failure is in z->err.
 */
#ifndef ZBENCH_RIG_H
#define ZBENCH_RIG_H

#include "bench/job.h"
#include "bench/process.h"
#include "bench/zbench.h"
#include "client/zclient.h"

#define ZBENCH_UNITS_MAX 64u

struct zbench_rig {
    struct zbench *z;
    struct zbench_daemon daemon;
    struct zc_client *c; /* NULL: none */
    struct zc_job job;
    uint64_t ids[ZBENCH_UNITS_MAX], count; /* elements of each unit, and of its one shard */
    uint32_t units;                        /* 0: none were defined */
    struct zbench_matrices matrices;       /* each unit has these; none: it is a vector */
    enum zc_dtype grad;
    uint64_t step; /* that gradients were pushed for last */
};

/** Starts a daemon in a directory of `dir`, as zbench_daemon_start() does. Forgets what was
 * there. */
int zbench_rig_start(struct zbench_rig *r, struct zbench *z, const char *dir, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/** Another client of the daemon. */
int zbench_rig_connect(struct zbench_rig *r, struct zc_client **ret);
/** Connects, and opens a job of one rank, named "bench", with these options (name, world and groups
 * are set here). Staging is zeros. */
int zbench_rig_open(struct zbench_rig *r, const struct zc_job_options *options);
/** Defines the units, makes the job ready, and writes what staging holds as initial values. */
int zbench_rig_define(struct zbench_rig *r, uint32_t units, uint64_t count, enum zc_dtype grad,
                      struct zc_placement *ret);
/** Pushes what staging holds as all gradients of the next step. */
int zbench_rig_push(struct zbench_rig *r);
/** The step that gradients were pushed for. *ret_s: from the request to its answer. A commit that
 * fails is a failure. */
int zbench_rig_step(struct zbench_rig *r, enum zc_commit commit, double *ret_s);
/** What the daemon counts of the job. */
int zbench_rig_row(struct zbench_rig *r, struct zc_job_row *ret);
/** The daemon's counters of these names: 0 of one that it does not have. */
int zbench_counters(struct zbench *z, struct zc_client *c, const char *const *names, unsigned n,
                    uint64_t *ret);
/** Records what the client says of `rc`, which is returned. */
int zbench_rig_failed(struct zbench_rig *r, int rc);
/** Closes the job where `rc` is 0, and ends the client and the daemon. Returns rc, or what
 * failed. */
int zbench_rig_end(struct zbench_rig *r, int rc);

/** What a step of the rig does. */
extern const struct zc_group zbench_group, zbench_group_muon;

#endif
