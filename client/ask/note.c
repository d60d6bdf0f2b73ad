/*
 * note.c - notes, in parts; call->at is the number of bytes sent.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/ask/ask_priv.h"

struct note_copy {
    uint64_t job;
    bool of_job;
    uint32_t bytes;
    uint8_t data[];
};

/** Fills a part of a note, from byte `at` on. Returns its length. */
static uint32_t note_part(Zp__NotePut *m, const struct note_copy *note, uint32_t at)
{
    uint32_t n = (uint32_t)zb_min_u64(note->bytes - at, ZP_NOTE_PART);

    zp__note_put__init(m);
    m->job = note->job;
    m->of_job = note->of_job;
    m->total = note->bytes;
    m->offset = at;
    m->data.data = UNCONST(uint8_t, note->data + at);
    m->data.len = n;
    return n;
}

static int next_note(struct zc_client *c, struct zc_call *call)
{
    const struct note_copy *note = call->spec.copy;
    Zp__NotePut m;
    int rc;

    if (call->at + ZP_NOTE_PART >= note->bytes)
        return 0;
    call->at += ZP_NOTE_PART;
    (void)note_part(&m, note, (uint32_t)call->at);
    rc = zc_call_again(c, call, &m.base);
    return rc < 0 ? rc : 1;
}

static const struct zc_method method_note_put = { .id = ZP_NOTE_PUT,
                                                  .next = next_note,
                                                  .of_job = true };

int zc_note_put(struct zc_client *c, uint64_t job, bool of_job, const void *note, size_t bytes,
                zc_done_fn *done, void *arg)
{
    struct zc_call_spec spec = { .method = &method_note_put, .done = done, .arg = arg };
    struct note_copy *copy;
    Zp__NotePut m;

    if (bytes > ZC_NOTE_MAX)
        return zc_fail(c, -EINVAL, "a note of %zu bytes: at most %d", bytes, ZC_NOTE_MAX);
    copy = malloc(sizeof(*copy) + bytes);
    if (!copy)
        return zc_fail(c, -ENOMEM, "a note of %zu bytes: %m", bytes);
    copy->job = job;
    copy->of_job = of_job;
    copy->bytes = (uint32_t)bytes;
    if (bytes > 0)
        memcpy(copy->data, note, bytes);
    (void)note_part(&m, copy, 0);
    spec.message = &m.base;
    spec.copy = copy;
    return zc_call_start(c, &spec);
}

/** A note that is being received. */
struct note_parts {
    uint8_t *buf; /* of ZC_NOTE_MAX bytes */
    uint32_t got, total;
    uint64_t iteration;
};

/** If a step replaced the note between two parts, reading begins again. */
static int reply_note_get(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                          int *fds)
{
    const Zp__NoteGetReply *r = (const Zp__NoteGetReply *)m;
    struct note_parts *parts = call->spec.ret;

    (void)fds;
    if (parts->got > 0 && (r->iteration != parts->iteration || r->total != parts->total)) {
        parts->got = 0;
        return 0;
    }
    if (r->total > ZC_NOTE_MAX || !zb_range_inside(parts->got, r->data.len, r->total) ||
        (r->data.len == 0 && parts->got < r->total))
        return zc_fail(c, -EPROTO, "%zu bytes from %u of a note of %u", r->data.len, parts->got,
                       r->total);
    parts->iteration = r->iteration;
    parts->total = r->total;
    if (r->data.len > 0)
        memcpy(parts->buf + parts->got, r->data.data, r->data.len);
    parts->got += (uint32_t)r->data.len;
    return 0;
}

static const struct zc_method method_note_get = { .id = ZP_NOTE_GET,
                                                  .reply = reply_note_get,
                                                  .of_job = true };

int zc_note_get_wait(struct zc_client *c, uint64_t job, bool of_job, void *buf, size_t *ret_bytes)
{
    struct note_parts parts = { .buf = buf };
    int rc;

    do {
        struct zc_waiter w = { .client = c };
        Zp__NoteGet m = ZP__NOTE_GET__INIT;

        m.job = job;
        m.of_job = of_job;
        m.offset = parts.got;
        rc = zc_wait(&w, zc_ask(c, &method_note_get, &m.base, &parts, zc_waiter_done, &w), 0);
    } while (rc == 0 && parts.got < parts.total);
    if (rc == 0)
        *ret_bytes = parts.total;
    return rc;
}
