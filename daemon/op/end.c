/*
 * end.c - detaches a rank from its connection, and ends a job: answers all waiting requests, lets
 * work in flight finish, and frees memory. Other code decides that a job ends: leave.c, when a rank
 * leaves, or its connection or the daemon ends; step.c and early.c, when a page fails; any lower
 * room, with zsd_job_fail().
 *
 * ORDER. zsd_job_quit() answers. The last zsd_job_unhold() defers job->over. Then
 * zsd_job_forget_if_over() frees the memory on a compute thread (plan/job_arena.c), and the last
 * rank frees the struct (new.c).
 *
 * ANSWERS. A request that must wait (open, ready, step) is kept by its member. The code that ends
 * the wait answers it, exactly once, and clears the field.
 */
#include "daemon/op/end.h"

#include <assert.h>
#include <errno.h>

#include "daemon/op/early.h"
#include "daemon/op/fetch.h"
#include "daemon/op/member.h"
#include "daemon/op/new.h"
#include "daemon/op/push.h"
#include "daemon/op/step.h"
#include "daemon/plan/job_arena.h"

/* ---- members */

void zsd_member_detach(struct zsd_member *m, const struct zb_err *why)
{
    struct zsd_req *opening = m->open_req;

    zsd_fetch_cancel(m, why);
    zsd_unpin_all(m);
    m->ready = false;
    zsd_member_answer(&m->ready_req, &m->ready_timed, why);
    m->open_req = NULL;
    if (opening)
        zsd_reply_err(opening, why);
    else
        zsd_step_give_up(m->job, why);
    if (!opening && m->job->state == ZSD_READY) /* else it has ended, or its step continues */
        zsd_early_drop(m->job);
    zsd_member_answer(&m->step_req, &m->step_timed, why);
    m->conn->member = NULL;
    m->conn = NULL;
    zsd_member_free_if_over(m);
}

/* ---- the end of a job */

void zsd_job_quit(struct zsd_job *job, uint16_t event, uint32_t rank, const struct zb_err *why)
{
    if (job->state == ZSD_ENDED)
        return;
    zb_log(why->code == -ECANCELED ? ZB_LOG_INFO : ZB_LOG_WARN, "job-end",
           "job=\"%s\" uid=%u iterations=%llu why=\"%s\"", job->name, (unsigned)job->uid,
           (unsigned long long)job->iterations, why->text);
    zsd_job_ended(job, why);
    job->ready_waits = false;
    zsd_want_end(job->core, &job->want);
    zsd_replan(job->core);
    zsd_job_hold(job); /* answering may drop the last holder */
    if (why->code != -ECANCELED)
        zsd_job_tell(job, event, rank, why);
    zsd_step_cancel(job, why);
    zsd_push_cancel(job, why);
    zsd_early_drop(job);
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        zsd_fetch_cancel(m, why);
        zsd_member_answer(&m->ready_req, &m->ready_timed, why);
        zsd_member_answer(&m->step_req, &m->step_timed, why);
        zsd_unpin_all(m);
        if (m->open_req && m->staging.fd >= 0) /* else staging_opened() does it */
            zsd_member_detach(m, why);
    }
    zsd_fill_cancel(job);
    zsd_job_unhold(job);
}

void zsd_job_end(struct zsd_job *job, const struct zb_err *why)
{
    zsd_job_quit(job, ZP_EVENT_JOB_FAILED, 0, why);
}

void zsd_job_forget_if_over(struct zsd_job *job)
{
    if (job->state != ZSD_ENDED || job->inflight > 0)
        return;
    assert(job->grads_busy == 0);
    if (job->placed) {
        zsd_job_arena_end(job);
        zsd_job_forget_if_over(job); /* a task holds it now, unless there was no memory for one */
        return;
    }
    zsd_job_let_go(job);
    if (zb_list_empty(&job->members))
        zsd_job_free(job);
}

void zsd_over_on_work(struct zsd_work *work)
{
    struct zsd_job *job = zb_container_of(work, struct zsd_job, over);

    if (job->failed.code != 0 && job->state != ZSD_ENDED)
        zsd_job_end(job, &job->failed); /* which defers this again */
    else
        zsd_job_forget_if_over(job);
}
