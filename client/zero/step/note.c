/*
 * note.c - notes: bytes of the trainer, and of the engine, that a resumed job gets back.
 *
 *     a rank's note   the trainer's bytes, sent to the store unchanged
 *     the job's note  the engine's header (struct head), then the trainer's bytes
 *
 * MODEL. The header has the loss scale after the step that the note belongs to, so that a resumed
 * job steps with the same scale as one that never stopped. So with a dynamic scale, a note is
 * stored with every step, and its content is known only in zc_zero_step(): until then the trainer's
 * part is kept here, and it is sent again with each step. Otherwise the trainer's part is sent when
 * it is put.
 *
 * If step counts of tensors differ from the job's, they follow the header (counts.c), and each step
 * that makes another tensor differ stores a note, too. All of this must fit into one note, or the
 * step fails.
 *
 * The header also has the run's number, which is drawn by the run that created the job, and kept by
 * runs that resume it. To resume, the jobs of all nodes, or of all groups of ranks, must have the
 * same number.
 *
 * Only the first rank of a node sends the job's note; every rank reads it.
 */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/zero/step/clip.h"
#include "client/zero/step/counts.h"
#include "client/zero/step/step.h"

#define NOTE_MAGIC 0x31435a5au /* "ZZC1" */
#define HEAD_NOTE  1u          /* the trainer has put a note */
#define HEAD_SCALE 2u          /* the job had a dynamic loss scale */
/* The header is followed by a length in 4 bytes, and by step counts of that length (counts.c).
 * The magic differs, so that a version without step counts does not read them as the trainer's
 * bytes. */
#define COUNTS_MAGIC 0x32435a5au /* "ZZC2" */
/* With averages of norms (clip.c), both lengths follow the header, then the step counts, then the
 * averages. */
#define CLIP_MAGIC 0x33435a5au /* "ZZC3" */

/* In host byte order: a job's note does not leave its node. */
struct head {
    uint32_t magic, has;
    double scale;
    int64_t last_overflow;
    uint32_t hysteresis;
    uint32_t run; /* 0: unknown */
};

_Static_assert(sizeof(struct head) == ZC_NOTE_MAX - ZC_ZERO_NOTE_MAX, "the public limit");

void zcz_note_run(struct zc_zero *z, uint32_t run)
{
    z->steps->run = run;
}

static int note_send(struct zc_zero *z, bool of_job, const void *note, size_t bytes)
{
    struct zcz_wait w = { .what = "the note to be sent" };
    int rc;

    while ((rc = z->store->ops->note_put(z->store, &z->steps->notes, of_job, note, bytes)) ==
               -EAGAIN &&
           (rc = zcz_wait(z, &w)) == 0)
        ;
    return rc < 0 ? zcz_fail(z, rc, "%s", z->error.text) : 0;
}

/* What is between the header and the trainer's bytes: lengths, and blocks of these lengths. */
struct blocks {
    uint32_t counts, clip;
};

static size_t blocks_lengths(const struct blocks *b)
{
    return b->clip > 0 ? 2 * sizeof(uint32_t) : b->counts > 0 ? sizeof(uint32_t) : 0;
}

static size_t blocks_bytes(const struct blocks *b)
{
    return blocks_lengths(b) + b->counts + b->clip;
}

bool zcz_note_fits(const struct zc_zero *z, size_t bytes, size_t counts_bytes)
{
    const struct blocks b = { (uint32_t)counts_bytes, (uint32_t)zcz_clip_bytes(z) };

    return sizeof(struct head) + blocks_bytes(&b) + bytes <= ZC_NOTE_MAX;
}

uint32_t zcz_note_bytes(const struct zc_zero *z)
{
    return z->steps->note ? (uint32_t)(z->steps->note_bytes - sizeof(struct head)) : 0;
}

/* Sends z->steps->note, with the step counts that lag and the averages of norms. */
static int note_send_job(struct zc_zero *z)
{
    const struct blocks b = { (uint32_t)zcz_counts_bytes(z, NULL), (uint32_t)zcz_clip_bytes(z) };
    size_t at = sizeof(struct head), bytes = at + blocks_bytes(&b) + zcz_note_bytes(z);
    struct head head;
    unsigned char *whole;
    int rc;

    assert(z->steps->note);
    if (blocks_bytes(&b) == 0)
        return note_send(z, true, z->steps->note, z->steps->note_bytes);
    whole = malloc(bytes);
    if (!whole)
        return zcz_fail(z, -ENOMEM, "no memory for a note of %zu bytes", bytes);
    memcpy(&head, z->steps->note, sizeof(head));
    head.magic = b.clip > 0 ? CLIP_MAGIC : COUNTS_MAGIC;
    memcpy(whole, &head, sizeof(head));
    memcpy(whole + at, &b, blocks_lengths(&b));
    at += blocks_lengths(&b);
    if (b.counts > 0)
        zcz_counts_pack(z, whole + at);
    at += b.counts;
    if (b.clip > 0)
        zcz_clip_pack(z, whole + at);
    at += b.clip;
    memcpy(whole + at, z->steps->note + sizeof(head), zcz_note_bytes(z));
    rc = note_send(z, true, whole, bytes);
    free(whole);
    return rc;
}

/* Sets z->steps->note: a header, followed by the trainer's bytes, if any. */
static int note_keep(struct zc_zero *z, bool put, const void *note, size_t bytes)
{
    struct head head = { .magic = NOTE_MAGIC, .has = put ? HEAD_NOTE : 0, .run = z->steps->run };
    unsigned char *keep = malloc(sizeof(head) + bytes);

    if (!keep)
        return zcz_refuse(z, -ENOMEM, "no memory for a note of %zu bytes", bytes);
    memcpy(keep, &head, sizeof(head));
    if (bytes > 0)
        memcpy(keep + sizeof(head), note, bytes);
    free(z->steps->note);
    z->steps->note = keep;
    z->steps->note_bytes = sizeof(head) + bytes;
    return 0;
}

int zc_zero_note_put(struct zc_zero *z, bool of_job, const void *note, size_t bytes)
{
    ZCZ_GUARD(z);
    int rc = zcz_enter(z, true);

    if (rc < 0)
        return rc;
    if (bytes > ZC_ZERO_NOTE_MAX)
        return zcz_refuse(z, -EINVAL, "a note of %zu bytes: at most %d", bytes, ZC_ZERO_NOTE_MAX);
    if (!of_job)
        return note_send(z, false, note, bytes);
    if (!zcz_note_fits(z, bytes, zcz_counts_bytes(z, NULL)))
        return zcz_refuse(z, -EINVAL,
                          "a note of %zu bytes, %zu bytes of step counts of tensors that differ "
                          "from the job's, and %zu of averages of their norms: together at most %d",
                          bytes, zcz_counts_bytes(z, NULL), zcz_clip_bytes(z),
                          ZC_ZERO_NOTE_MAX - 8);
    if (z->store->node_rank != 0)
        return 0;
    rc = note_keep(z, true, note, bytes);
    if (rc < 0 || z->options.loss_scale.dynamic || zcz_clip_on(z))
        return rc;
    return note_send_job(z);
}

int zcz_note_step(struct zc_zero *z, const struct zcz_scaler *scaler)
{
    struct head head;
    int rc = z->steps->note || z->store->node_rank != 0 ? 0 : note_keep(z, false, NULL, 0);

    if (rc < 0) /* final: the other ranks have passed this point */
        return zcz_fail(z, rc, "%s", z->error.text);
    if (z->store->node_rank != 0)
        return 0;
    memcpy(&head, z->steps->note, sizeof(head));
    if (scaler) {
        head.has |= HEAD_SCALE;
        head.scale = scaler->scale;
        head.last_overflow = scaler->last_overflow;
        head.hysteresis = scaler->hysteresis;
    }
    memcpy(z->steps->note, &head, sizeof(head));
    rc = note_send_job(z);
    if (rc == 0 && (rc = zcz_wait_op(z, &z->steps->notes, "the note to be stored")) < 0)
        rc = zcz_fail(z, rc, "a note: %s", zcz_store_text(z->store));
    return rc;
}

/* Reads the job's note into buf, which has ZC_NOTE_MAX bytes. After the header come the lengths of
 * *ret_blocks, these blocks, and *ret_bytes of the trainer's. */
static int note_read(struct zc_zero *z, unsigned char *buf, struct head *ret,
                     struct blocks *ret_blocks, size_t *ret_bytes)
{
    size_t bytes = 0, lengths = 0;
    int rc = z->store->ops->note_get(z->store, true, buf, &bytes);

    if (rc < 0)
        return rc;
    if (bytes >= sizeof(*ret))
        memcpy(ret, buf, sizeof(*ret));
    if (bytes < sizeof(*ret) ||
        (ret->magic != NOTE_MAGIC && ret->magic != COUNTS_MAGIC && ret->magic != CLIP_MAGIC))
        return zcz_refuse(z, -ENOMSG, "the job's note, of %zu bytes, was not written by an engine",
                          bytes);
    *ret_blocks = (struct blocks){ 0 };
    if (ret->magic != NOTE_MAGIC)
        lengths = ret->magic == CLIP_MAGIC ? 2 * sizeof(uint32_t) : sizeof(uint32_t);
    bytes -= sizeof(*ret);
    if (bytes >= lengths && lengths > 0)
        memcpy(ret_blocks, buf + sizeof(*ret), lengths);
    if (bytes < lengths || lengths != blocks_lengths(ret_blocks) ||
        bytes - lengths < (uint64_t)ret_blocks->counts + ret_blocks->clip)
        return zcz_refuse(z, -EPROTO, "the job's note, of %zu bytes, is cut off",
                          bytes + sizeof(*ret));
    *ret_bytes = bytes - blocks_bytes(ret_blocks);
    return 0;
}

/* Returns where the trainer's bytes begin. */
static unsigned char *note_trainer(unsigned char *buf, const struct blocks *b)
{
    return buf + sizeof(struct head) + blocks_bytes(b);
}

int zc_zero_note_get(struct zc_zero *z, bool of_job, void *buf, size_t *ret_bytes)
{
    ZCZ_GUARD(z);
    struct head head = { 0 };
    struct blocks blocks = { 0 };
    size_t bytes = 0;
    int rc = zcz_enter(z, true);

    if (rc < 0)
        return rc;
    if (!of_job)
        return z->store->ops->note_get(z->store, false, buf, ret_bytes);
    rc = note_read(z, buf, &head, &blocks, &bytes);
    if (rc == -ENOMSG)
        return zcz_refuse(z, -EPROTO, "%s", z->error.text);
    if (rc == 0 && !(head.has & HEAD_NOTE))
        rc = zcz_refuse(z, -ENOENT, "the newest step has no note");
    if (rc < 0)
        return rc;
    memmove(buf, note_trainer(buf, &blocks), bytes);
    *ret_bytes = bytes;
    return 0;
}

int zcz_note_begin(struct zc_zero *z)
{
    int rc;

    if (z->nodes == 1 || !z->options.job || z->store->node_rank != 0 || z->steps->note)
        return 0;
    rc = note_keep(z, false, NULL, 0);
    return rc < 0 ? rc : note_send_job(z);
}

int zcz_note_resume(struct zc_zero *z, uint32_t *ret_run)
{
    unsigned char *buf = malloc(ZC_NOTE_MAX), *at;
    struct head head = { 0 };
    struct blocks blocks = { 0 };
    size_t bytes = 0;
    int rc = buf ? note_read(z, buf, &head, &blocks, &bytes)
                 : zcz_refuse(z, -ENOMEM, "no memory for the job's note");

    if (rc == 0 && (head.has & HEAD_SCALE) && !(head.scale > 0 && isfinite(head.scale)))
        rc = zcz_refuse(z, -EPROTO, "the job's note has a loss scale of %g", head.scale);
    if (rc == 0 && (head.has & HEAD_SCALE) && z->options.loss_scale.dynamic)
        z->steps->scaler = (struct zcz_scaler){ .scale = head.scale,
                                                .last_overflow = head.last_overflow,
                                                .hysteresis = head.hysteresis };
    at = buf ? buf + sizeof(head) + blocks_lengths(&blocks) : NULL;
    if (rc == 0 && blocks.counts > 0)
        rc = zcz_counts_unpack(z, at, blocks.counts);
    if (rc == 0 && blocks.clip > 0)
        rc = zcz_clip_unpack(z, at + blocks.counts, blocks.clip);
    *ret_run = rc == 0 ? head.run : 0;
    if (*ret_run)
        z->steps->run = *ret_run;
    if (rc == 0 && z->store->node_rank == 0)
        rc = note_keep(z, head.has & HEAD_NOTE, note_trainer(buf, &blocks), bytes);
    free(buf);
    if (rc == -ENOMSG && (z->options.loss_scale.dynamic || z->nodes > 1))
        return zcz_refuse(z, -EPROTO, "%s", z->error.text);
    if (rc == -ENOENT ||
        rc == -ENOMSG) { /* no step had a note; or another trainer's note, which is not needed */
        zcz_forgive(z);
        rc = 0;
    }
    return rc;
}
