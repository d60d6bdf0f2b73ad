/*
 * member.c - functions on ranks that all operations use: refuse a waiting request, release staging,
 * free the struct.
 */
#include "daemon/op/member.h"

#include <assert.h>
#include <stdlib.h>

#include "daemon/op/classes.h"
#include "daemon/op/note.h"
#include "daemon/plan/job_arena.h"

void zsd_member_answer(struct zsd_req **req, struct zsd_timed *timed, const struct zb_err *why)
{
    struct zsd_req *r = *req;

    if (!r)
        return;
    *req = NULL;
    zsd_timed_disarm(timed);
    zsd_reply_err(r, why);
}

void zsd_member_undefine(struct zsd_member *m)
{
    if (m->defining)
        zsd_limit_give(&m->job->quota, ZSD_LIMIT_DEFINITION_BYTES, zsd_unit_bytes(m->defining));
    zsd_unit_free(m->defining);
    m->defining = NULL;
}

void zsd_member_free_if_over(struct zsd_member *m)
{
    struct zsd_job *job = m->job;

    if (m->conn || m->staging_users > 0)
        return;
    zb_list_remove(&m->node);
    if (m->staging.fd >= 0)
        zsd_arena_end(job, ZSD_STAGING_CLOSE, m->staging, NULL, 0, m->staging.bytes);
    zsd_member_undefine(m);
    zsd_note_drop(job, &m->note);
    zsd_note_drop(job, &m->job_note);
    zsd_classes_put(m->classes);
    free(m);
    if (job->state == ZSD_ENDED)
        zsd_defer(job->core, &job->over);
}

void zsd_staging_put(struct zsd_member *m)
{
    assert(m->staging_users > 0);
    m->staging_users--;
    zsd_member_free_if_over(m);
}
