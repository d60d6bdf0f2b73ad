/*
 * op/clone.c - clones of a saved job: see snapshot.c.
 */
#include "daemon/op/snapshot.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/job/job.h"
#include "daemon/op/new.h"
#include "daemon/op/requests.h"
#include "daemon/run/turn.h"
#include "daemon/store/delta.h"
#include "daemon/store/store.h"
#include "proto/codec.h"
#include "proto/shard.pb-c.h"

struct clone {
    struct zsd_delta delta; /* of the new job */
    struct zsd_req *req;
    struct zsd_saved *from; /* held */
    struct zsd_version *fresh;
    uint32_t nrows;             /* in `fresh` so far */
    uint64_t note_bytes;        /* charged for its notes, until it is made */
    char name[ZP_NAME_MAX + 1]; /* of the snapshot */
};

/* A version of `saved` with the notes of `from` and room for its rows. NULL: no memory. */
static struct zsd_version *clone_version(struct zsd_saved *saved, const struct zsd_version *from)
{
    struct zsd_version *v = zsd_version_new(saved, from->world, from->nrows);
    int rc = v ? zsd_note_copy(&v->job_note, &from->job_note) : -ENOMEM;

    for (uint32_t i = 0; rc == 0 && i < from->world; i++)
        rc = zsd_note_copy(&v->notes[i], &from->notes[i]);
    if (rc < 0) {
        zsd_version_unref(v);
        return NULL;
    }
    v->iterations = from->iterations;
    v->applied = from->applied;
    return v;
}

/* Adds the next rows. 0: all are added; 1: continues in the next turn; -ENOMEM. */
static int clone_rows(struct clone *op, const struct zsd_version *from)
{
    struct zsd_core *core = from->core;

    for (; op->nrows < from->nrows; op->nrows++) {
        if (zsd_turn_left(core) == 0)
            return 1;
        zsd_turn_count(core, 1);
        if (zsd_version_put(op->fresh, op->nrows, from->rows[op->nrows]) < 0)
            return -ENOMEM;
    }
    return 0;
}

static int clone_plan(struct zsd_delta *d, struct zb_err *err)
{
    struct clone *op = zb_container_of(d, struct clone, delta);
    const struct zsd_version *from;
    int rc;

    if (op->from->gone)
        return zb_fail(err, -ENOENT, "job '%s' was destroyed", op->from->name);
    /* the same version in each part: no other change runs in between */
    from = zsd_snap_version(op->from, op->name, err);
    if (!from)
        return err->code;
    if (!op->fresh && zsd_clone_charge_notes(d->saved, from, &op->note_bytes, err) < 0)
        return err->code;
    if (!op->fresh)
        op->fresh = clone_version(d->saved, from);
    rc = op->fresh ? clone_rows(op, from) : -ENOMEM;
    if (rc < 0)
        return zb_fail(err, rc, "job '%s': %m", d->saved->name);
    d->committed = op->fresh;
    d->grows = true;
    return rc;
}

static void clone_done(struct zsd_delta *d, const struct zb_err *err)
{
    struct clone *op = zb_container_of(d, struct clone, delta);
    struct zsd_core *core = d->saved->store->core;

    d->saved->coming = false;
    zsd_limit_give(&d->saved->quota, ZSD_LIMIT_NOTE_BYTES, op->note_bytes);
    if (err) {
        zsd_reply_err(op->req, err);
    } else {
        zb_log(ZB_LOG_INFO, "clone",
               "job=\"%s\" uid=%u from=\"%s\" snapshot=\"%s\" iterations=%llu", d->saved->name,
               (unsigned)d->saved->uid, op->from->name, op->name,
               (unsigned long long)op->fresh->iterations);
        zsd_snap_reply(op->req, d->saved, d->saved->committed, NULL);
    }
    zsd_version_unref(op->fresh);
    zsd_saved_unhold(op->from);
    zsd_room_changed(core); /* opens of the new name can be decided */
    free(op);
}

ZSD_REQUEST(zsd_clone, Clone)
{
    struct zsd_core *core = req->daemon->core;
    struct zsd_saved *from = zsd_snap_saved(req, q->owner, q->job, false), *saved = NULL;
    struct zb_err err = { 0 };
    struct clone *op = NULL;

    if (!from)
        return;
    if (core->draining)
        (void)zb_fail(&err, -ECANCELED, "the daemon is ending: it takes no new jobs");
    else if (!zp_name_valid(q->name))
        (void)zb_fail(&err, -EINVAL,
                      "'%s' is not a valid job name: 1 to %u letters, digits, '.', '_' or '-'",
                      q->name, ZP_NAME_MAX);
    else if (zsd_job_by_name(core, req->conn->uid, q->name) ||
             zsd_saved_by_name(core, req->conn->uid, q->name) ||
             zsd_image_by_name(core, req->conn->uid, q->name) ||
             zsd_job_name_coming(core, req->conn->uid, q->name))
        (void)zb_fail(&err, -EEXIST, "job '%s' exists already", q->name);
    else
        (void)zsd_snap_version(from, q->snapshot, &err);
    if (err.code == 0) {
        op = calloc(1, sizeof(*op));
        saved = op ? zsd_saved_like(from, zsd_job_number(core), q->name, req->conn->uid) : NULL;
        if (!saved)
            (void)zb_fail(&err, -ENOMEM, "job '%s': %m", q->name);
    }
    if (saved && zsd_clone_charge(saved, &err) < 0) {
        zsd_saved_hold(saved);
        zsd_saved_unhold(saved); /* frees it */
    }
    if (err.code != 0) {
        free(op);
        zsd_reply_err(req, &err);
        return;
    }
    saved->coming = true;
    op->req = req;
    op->from = from;
    zsd_saved_hold(from);
    (void)snprintf(op->name, sizeof(op->name), "%s", q->snapshot);
    op->delta = (struct zsd_delta){ .saved = saved, .plan = clone_plan, .done = clone_done };
    zsd_delta_start(&op->delta);
}
