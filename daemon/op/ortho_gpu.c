/*
 * op/ortho_gpu.c - orthogonalizes the matrices of a job on a GPU of the daemon.
 *
 * MODEL. One matrix at a time is a task of that GPU's threads (run/gpu_tier.h): it copies the matrix up,
 * computes, copies it down, and waits for the device (kernels/gpu_ortho.h). The loop does not wait. Meanwhile
 * the compute threads step the pages of other matrices.
 *
 * ERRORS. If the device fails, its tier does, which ends the jobs that use it (plan/gpu_plan.c). Any other
 * error ends this job. In both cases the step is not complete: a durable job resumes from its last
 * commit.
 */
#include "daemon/op/ortho_gpu.h"

#include <errno.h>

#include "daemon/plan/gpu_plan.h"
#include "daemon/run/gpu_tier.h"
#include "kernels/gpu_ortho.h"

/* ---- GPU thread */

static void ortho_gpu_run(struct zsd_task *task)
{
    struct zsd_ortho_gpu *g = zb_container_of(task, struct zsd_ortho_gpu, task);
    const struct zk_matrix *m = g->matrix->matrix;
    struct zk_ortho_how how = zk_ortho_muon;

    how.bf16 = g->job->muon_engine == ZB_MUON_GPU_BF16;
    g->rc = zk_gpu_ortho(g->job->muon_gpu.ortho, &how, m->at, (size_t)m->rows, (size_t)m->cols,
                         &g->err);
}

/* ---- loop thread */

static void ortho_gpu_failed(struct zsd_ortho_gpu *g)
{
    struct zsd_job *job = g->job;
    struct zb_err why = { 0 };

    if (g->rc == -EIO || g->rc == -EFAULT) {
        zsd_gpu_fail(job->core, job->muon_gpu.g, &g->err);
        return;
    }
    (void)zb_fail(&why, g->rc, "a matrix of job '%s' was not orthogonalized on the GPU: %s",
                  job->name, g->err.text);
    zsd_job_fail(job, &why);
}

static void ortho_gpu_done(struct zsd_task *task)
{
    struct zsd_ortho_gpu *g = zb_container_of(task, struct zsd_ortho_gpu, task);
    struct zsd_ortho *o = g->matrix;
    struct zsd_job *job = g->job;

    g->matrix = NULL;
    if (job->state != ZSD_ENDED && g->rc < 0)
        ortho_gpu_failed(g);
    if (o->stopped || (job->state != ZSD_ENDED && g->rc == 0))
        o->done(o);
    if (job->state != ZSD_ENDED && g->rc == 0)
        zsd_ortho_gpu_pump(g);
    zsd_job_unhold(job);
}

void zsd_ortho_gpu_init(struct zsd_ortho_gpu *g, struct zsd_job *job, struct zb_list *waiting)
{
    *g = (struct zsd_ortho_gpu){ .job = job,
                                 .waiting = waiting,
                                 .task = { .run = ortho_gpu_run, .done = ortho_gpu_done } };
}

void zsd_ortho_gpu_stop(struct zsd_ortho_gpu *g)
{
    if (g->matrix)
        g->matrix->stopped = true;
}

void zsd_ortho_gpu_pump(struct zsd_ortho_gpu *g)
{
    const struct zsd *daemon = g->job->core->daemon;

    if (g->matrix || g->rc < 0 || zb_list_empty(g->waiting))
        return;
    g->matrix = zb_container_of(g->waiting->next, struct zsd_ortho, node);
    zb_list_remove(&g->matrix->node);
    zsd_job_hold(g->job);
    zsd_compute_post(zsd_gpu_threads(daemon->gpus[g->job->muon_gpu.g]), &g->task);
}
