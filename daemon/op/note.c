/*
 * op/note.c - the trainers' notes: note-put, note-get.
 *
 * MODEL. Before a step or a skip, each rank may send its note in parts, and rank 0 that of the job.
 * When the step or skip begins (op/step.c), complete notes are kept with it, and incomplete ones
 * stay with the rank. A commit saves the kept notes (op/commit.c); a load restores them
 * (op/ready.c). All notes of a job and its ranks are charged to the job.
 */
#include "daemon/op/note.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/op/requests.h"
#include "proto/shard.pb-c.h"

void zsd_note_drop(struct zsd_job *job, struct zsd_note *note)
{
    if (note->data)
        zsd_limit_give(&job->quota, ZSD_LIMIT_NOTE_BYTES, note->total);
    zsd_note_done(note);
}

/* Keeps a complete note that a rank sent for this step or skip. */
static void note_keep(struct zsd_job *job, struct zsd_note *kept, struct zsd_note *sent,
                      uint64_t iteration)
{
    if (!sent->data || sent->got != sent->total)
        return;
    zsd_note_drop(job, kept);
    *kept = *sent;
    kept->iteration = iteration;
    *sent = (struct zsd_note){ 0 };
}

void zsd_notes_keep(struct zsd_job *job, uint64_t iteration)
{
    zb_list_each(pos, &job->members)
    {
        struct zsd_member *m = zb_container_of(pos, struct zsd_member, node);

        note_keep(job, &job->notes[m->rank], &m->note, iteration);
        note_keep(job, &job->note, &m->job_note, iteration);
    }
}

ZSD_REQUEST(zsd_note_put, NotePut)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    struct zsd_note *note;

    if (!m)
        return;
    if (q->of_job && m->rank != 0) {
        zsd_refuse(req, -EPERM, "the job's note comes from rank 0, not from rank %u", m->rank);
        return;
    }
    note = q->of_job ? &m->job_note : &m->note;
    if (q->offset == 0)
        zsd_note_drop(m->job, note);
    if (q->total > ZP_NOTE_MAX || (q->offset > 0 && q->total != note->total) ||
        q->offset != note->got || !zb_range_inside(q->offset, q->data.len, q->total)) {
        zsd_refuse(req, -EINVAL,
                   "part of a note from %u, %zu bytes, of %u: parts come in order, %u bytes in all "
                   "at most",
                   q->offset, q->data.len, q->total, ZP_NOTE_MAX);
        return;
    }
    if (q->offset == 0) {
        struct zb_err err = { 0 };

        if (zsd_limit_take(&m->job->quota, ZSD_LIMIT_NOTE_BYTES, q->total, &err) < 0) {
            zsd_reply_err(req, &err);
            return;
        }
        note->data = malloc(zb_max_u64(q->total, 1));
        if (!note->data) {
            zsd_limit_give(&m->job->quota, ZSD_LIMIT_NOTE_BYTES, q->total);
            zsd_refuse(req, -ENOMEM, "a note of %u bytes", q->total);
            return;
        }
        note->total = q->total;
    }
    if (q->data.len > 0)
        memcpy(note->data + note->got, q->data.data, q->data.len);
    note->got += (uint32_t)q->data.len;
    zsd_reply(req, NULL, -1);
}

ZSD_REQUEST(zsd_note_get, NoteGet)
{
    struct zsd_member *m = zsd_member_of(req, q->job);
    Zp__NoteGetReply reply = ZP__NOTE_GET_REPLY__INIT;
    const struct zsd_note *note;

    if (!m)
        return;
    note = q->of_job ? &m->job->note : &m->job->notes[m->rank];
    if (!note->data) {
        zsd_refuse(req, -ENOENT, "job '%s' has no note%s", m->job->name,
                   q->of_job ? "" : " of this rank");
        return;
    }
    if (q->offset > note->total) {
        zsd_refuse(req, -EINVAL, "a note of %u bytes, read from %u", note->total, q->offset);
        return;
    }
    reply.total = note->total;
    reply.iteration = note->iteration;
    reply.data.data = note->data + q->offset;
    reply.data.len = zb_min_u64(note->total - q->offset, ZP_NOTE_PART);
    zsd_reply(req, &reply.base, -1);
}
