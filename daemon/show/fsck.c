/*
 * fsck.c - recomputes every counter of the store.
 *
 * MODEL. A run consists of passes. A pass is a change that changes nothing (store/change.h,
 * `looks`). When it is first in the queue, the metadata in memory is copied, over several turns
 * (survey.h). Then the catalog's thread reads the whole catalog, compares it with the copy
 * (fsck_catalog.c), and counts everything again (fsck_count.c). A pass stops when another change is
 * queued, and the next pass begins after that change. So no change waits for a whole pass, except
 * for the last of TRIES passes, which runs to its end. Requests that arrive during a run get its
 * report. It checks:
 *
 *     the catalog     its digest; each record against memory, and that none is missing
 *     rows            the number of versions that hold each
 *     places          the holders of each: rows, and shards that work with it; the places of each
 *                     class
 *     the maps        every byte belongs to a place of a class, or is free
 *     promises        of each class, summed over all jobs and readers; and the bytes booked for
 *                     them
 *     df              the columns add up to the size of the data files
 */
#include "daemon/show/fsck.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/show/fsck_priv.h"
#include "daemon/show/requests.h"
#include "daemon/show/scans.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"

#define TRIES 32u

/* A caller that waits for the report. */
struct fsck_asker {
    zsd_fsck_done *done;
    void *arg;
    struct zb_list node;
};

/* ---- the change */

static int fsck_begin(struct zsd_change *c, struct zb_err *err)
{
    struct zsd_fsck_run *f = zb_container_of(c, struct zsd_fsck_run, change);

    return zsd_survey_take(f->core, &f->s, err);
}

/* Whether the pass must stop for another change. */
static bool fsck_asked(const struct zsd_fsck_run *f)
{
    return !f->change.holds && atomic_load_explicit(&f->change.asked, memory_order_relaxed);
}

static int fsck_fill(struct zsd_change *c, struct zb_err *err)
{
    static void (*const parts[])(struct zsd_fsck_run * f) = { zsd_fsck_catalog, zsd_fsck_versions,
                                                              zsd_fsck_places,  zsd_fsck_holders,
                                                              zsd_fsck_classes, zsd_fsck_accounts };
    struct zsd_fsck_run *f = zb_container_of(c, struct zsd_fsck_run, change);

    if (zsd_survey_sort(&f->s) == 0)
        f->holders = calloc(zb_max_u64(f->s.places.nplaces, 1), sizeof(*f->holders));
    if (!f->holders)
        return zb_fail(err, -ENOMEM, "counting the stored pages: %m");
    zn_catalog_stop_on(c->core->store->catalog, c->holds ? NULL : &c->asked);
    for (size_t i = 0; i < ZB_COUNT(parts) && !fsck_asked(f); i++)
        parts[i](f);
    zn_catalog_stop_on(c->core->store->catalog, NULL);
    if (fsck_asked(f))
        return zb_fail(err, -EAGAIN, "a change waits");
    return zsd_fsck_df(f) < 0 ? zb_fail(err, -ENOMEM, "counting the stored pages: %m") : 0;
}

static void fsck_tell(struct zsd_fsck_run *f, const struct zb_err *err)
{
    f->core->scans->fsck = NULL;
    for (struct zb_list *node; (node = zb_list_pop_front(&f->askers)) != NULL;) {
        struct fsck_asker *a = zb_container_of(node, struct fsck_asker, node);

        a->done(a->arg, &f->report, err);
        free(a);
    }
    free(f);
}

static void fsck_pass_over(struct zsd_work *work)
{
    struct zsd_fsck_run *f = zb_container_of(work, struct zsd_fsck_run, work);

    if (!zsd_survey_look_away(f->core, &f->s)) {
        zsd_defer(f->core, work);
        return;
    }
    f->core->in_progress--;
    zsd_survey_done(&f->s);
    free(f->holders);
    f->holders = NULL;
    if (f->err.code != -EAGAIN) {
        fsck_tell(f, f->err.code != 0 ? &f->err : NULL);
        return;
    }
    f->report = (struct zsd_fsck_report){ 0 };
    f->change.holds = ++f->tries == TRIES - 1;
    zsd_change_start(f->core, &f->change);
}

static void fsck_done(struct zsd_change *c, const struct zb_err *err)
{
    struct zsd_fsck_run *f = zb_container_of(c, struct zsd_fsck_run, change);

    f->core->in_progress++;
    f->err = err ? *err : (struct zb_err){ 0 };
    fsck_pass_over(&f->work);
}

void zsd_fsck_start(struct zsd_core *core, zsd_fsck_done *done, void *arg)
{
    struct zsd_fsck_run *f = core->scans->fsck;
    struct fsck_asker *a = calloc(1, sizeof(*a));
    struct zb_err err = { 0 };

    if (a && !f)
        f = calloc(1, sizeof(*f));
    if (!a || !f) {
        free(a);
        (void)zb_fail(&err, -ENOMEM, "fsck: %m");
        done(arg, NULL, &err);
        return;
    }
    a->done = done;
    a->arg = arg;
    zb_list_init(&a->node);
    if (!core->scans->fsck) {
        core->scans->fsck = f;
        f->core = core;
        zb_list_init(&f->askers);
        f->work.run = fsck_pass_over;
        f->change = (struct zsd_change){
            .looks = true, .begin = fsck_begin, .fill = fsck_fill, .done = fsck_done
        };
        zsd_change_start(core, &f->change);
    }
    zb_list_push_back(&f->askers, &a->node);
}

/* ---- requests */

static void fsck_answer(void *arg, const struct zsd_fsck_report *r, const struct zb_err *err)
{
    Zp__FsckReply reply = ZP__FSCK_REPLY__INIT;
    char *problems[ZSD_PROBLEMS_MAX];
    struct zsd_req *req = arg;

    if (req->conn)
        zsd_limit_give(&req->conn->quota, ZSD_LIMIT_SCANS, 1);
    if (err) {
        zsd_reply_err(arg, err);
        return;
    }
    reply.jobs = r->jobs;
    reply.versions = r->versions;
    reply.snapshots = r->snapshots;
    reply.rows = r->rows;
    reply.pages = r->pages;
    reply.bytes = r->bytes;
    reply.sequence = r->sequence;
    reply.problems_total = r->nproblems;
    reply.problems = problems;
    for (; reply.n_problems < zb_min_u64(r->nproblems, ZSD_PROBLEMS_MAX); reply.n_problems++)
        problems[reply.n_problems] = zp_str(r->problems[reply.n_problems]);
    zsd_reply(arg, &reply.base, -1);
}

void zsd_fsck(struct zsd_req *req, const ProtobufCMessage *message)
{
    struct zb_err err = { 0 };

    (void)message;
    if (!zsd_admin(req->conn)) /* reads the whole catalog; names jobs of all users */
        zsd_refuse(req, -EPERM, "only an administrator may start an fsck");
    else if (!req->daemon->core->store)
        zsd_refuse(req, -ENOENT, "this daemon saves nothing: it has no data directory that stays");
    else if (zsd_limit_take(&req->conn->quota, ZSD_LIMIT_SCANS, 1, &err) < 0)
        zsd_reply_err(req, &err);
    else
        zsd_fsck_start(req->daemon->core, fsck_answer, req);
}
