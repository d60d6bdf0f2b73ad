/*
 * reader.c - reading saved state without being a rank of the job.
 *
 * MODEL. The reader itself is an object of the daemon; the client has its staging (client->reader),
 * one at a time. A unit's manifest arrives in parts; the cursor counts the tensors so far. While
 * tensors and text grow, names are offsets into the text. At the end all of it is joined in one
 * block (struct zc_unit, its tensors, its text), and names become pointers.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/plan.h"
#include "client/ask/ask_priv.h"

#define READER_TENSORS_MAX (1u << 20) /* limit for one unit: a reply with more is rejected */

/* ---- open, close, read */

static int reply_reader_open(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                             int *fds)
{
    const Zp__ReaderOpenReply *r = (const Zp__ReaderOpenReply *)m;
    struct zc_reader *ret = call->spec.ret;
    int rc;

    if (r->reader == 0)
        return zc_fail(c, -EPROTO, "a reader without a number");
    if (!zb_optimizer_name((enum zb_optimizer)r->optimizer) ||
        (r->moments != 0 && !zb_moments_name((enum zb_moments)r->moments)))
        return zc_fail(c, -EPROTO, "a job of optimizer %u with moments %u", r->optimizer,
                       r->moments);
    rc = zc_map_open(c, &c->reader, "reader", fds[0], r->staging_bytes, true);
    if (rc < 0)
        return rc;
    *ret = (struct zc_reader){ .id = r->reader,
                               .iterations = r->iterations,
                               .applied = r->applied,
                               .units = r->units,
                               .groups = r->groups,
                               .world = r->world,
                               .optimizer = (enum zc_optimizer)r->optimizer,
                               .moments = r->moments == 0 ? ZC_MOMENTS_F32
                                                          : (enum zc_moments)r->moments,
                               .staging = c->reader.base,
                               .staging_bytes = c->reader.bytes };
    return 0;
}

static const struct zc_method method_reader_open = { .id = ZP_READER_OPEN,
                                                     .reply = reply_reader_open,
                                                     .fds = 1 };

int zc_reader_open(struct zc_client *c, const char *job, const char *snapshot,
                   uint64_t staging_bytes, struct zc_reader *ret, zc_done_fn *done, void *arg)
{
    Zp__ReaderOpen m = ZP__READER_OPEN__INIT;
    int rc = job ? zc_job_word(c, job, &m.job, &m.owner)
                 : zc_name_check(c, "a job", job, ZC_NAME_MAX);

    if (rc == 0 && snapshot)
        rc = zc_name_check(c, "a snapshot", snapshot, ZC_NAME_MAX);
    if (rc == 0 && c->reader.held)
        rc = zc_fail(c, -EBUSY, "a reader is open on this handle");
    if (rc < 0)
        return rc;
    if (snapshot)
        m.snapshot = UNCONST(char, snapshot);
    m.staging_bytes = staging_bytes;
    return zc_ask(c, &method_reader_open, &m.base, ret, done, arg);
}

static const struct zc_method method_reader_read = { .id = ZP_READER_READ };

int zc_reader_read(struct zc_client *c, uint64_t reader, uint32_t unit, enum zc_what what,
                   uint64_t first, uint64_t count, void *staged, zc_done_fn *done, void *arg)
{
    Zp__ReaderRead m = ZP__READER_READ__INIT;
    int rc = zc_staging_offset(c, &c->reader, staged, &m.staging);

    if (rc < 0)
        return rc;
    m.reader = reader;
    m.unit = unit;
    m.what = what;
    m.first = first;
    m.count = count;
    return zc_ask(c, &method_reader_read, &m.base, NULL, done, arg);
}

static int reply_reader_close(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                              int *fds)
{
    (void)call;
    (void)m;
    (void)fds;
    zc_map_close(&c->reader);
    return 0;
}

static const struct zc_method method_reader_close = { .id = ZP_READER_CLOSE,
                                                      .reply = reply_reader_close };

int zc_reader_close(struct zc_client *c, uint64_t reader, zc_done_fn *done, void *arg)
{
    Zp__ReaderRef m = ZP__READER_REF__INIT;

    m.reader = reader;
    return zc_ask(c, &method_reader_close, &m.base, NULL, done, arg);
}

/* ---- the manifest of a unit */

/** A unit that is being received. */
struct unit_parts {
    struct zc_unit unit;
    char name[ZC_NAME_MAX + 1];
    struct zc_tensor *tensors; /* names: offsets into text */
    size_t ntensors, tensors_room;
    char *text;
    size_t text_bytes, text_room;
    uint32_t cursor;
};

static int parts_tensor(struct zc_client *c, struct unit_parts *parts, const Zp__Tensor *from)
{
    size_t name_bytes = strlen(from->name) + 1;
    struct zc_tensor *to;

    if (from->n_dims > ZC_DIMS_MAX || !zp_tensor_name_valid(from->name))
        return zc_fail(c, -EPROTO, "a tensor '%.32s' of %zu dimensions", from->name, from->n_dims);
    if (parts->ntensors == READER_TENSORS_MAX)
        return zc_fail(c, -EPROTO, "a unit of more than %u tensors", READER_TENSORS_MAX);
    if (zb_grow(&parts->tensors, &parts->tensors_room, parts->ntensors, 1) < 0 ||
        zb_grow(&parts->text, &parts->text_room, parts->text_bytes, name_bytes) < 0)
        return zc_fail(c, -ENOMEM, "a unit of %zu tensors: %m", parts->ntensors);
    to = &parts->tensors[parts->ntensors++];
    *to = (struct zc_tensor){ .name = (const char *)(uintptr_t)parts->text_bytes,
                              .first = from->first,
                              .ndims = (uint32_t)from->n_dims,
                              .group = from->group,
                              .muon = from->muon };
    if (from->n_dims > 0)
        memcpy(to->dims, from->dims, from->n_dims * sizeof(to->dims[0]));
    memcpy(parts->text + parts->text_bytes, from->name, name_bytes);
    parts->text_bytes += name_bytes;
    return 0;
}

static int reply_reader_unit(struct zc_client *c, struct zc_call *call, const ProtobufCMessage *m,
                             int *fds)
{
    const Zp__ReaderUnitReply *r = (const Zp__ReaderUnitReply *)m;
    struct unit_parts *parts = call->spec.ret;
    int rc = 0;

    (void)fds;
    if (!zp_name_valid(r->name) || zb_dtype_bytes((enum zb_dtype)r->dtype) == 0)
        return zc_fail(c, -EPROTO, "a unit '%.32s' of dtype %u", r->name, r->dtype);
    if (!r->frozen && zb_dtype_bytes((enum zb_dtype)r->grad_dtype) == 0)
        return zc_fail(c, -EPROTO, "a unit '%.32s' with gradients of dtype %u", r->name,
                       r->grad_dtype);
    if (r->quantized && !r->frozen)
        return zc_fail(c, -EPROTO, "a unit '%.32s' that is quantized, and not frozen", r->name);
    for (size_t i = 0; rc == 0 && i < r->n_tensors; i++)
        rc = parts_tensor(c, parts, r->tensors[i]);
    if (rc == 0 && r->cursor != 0 && (r->n_tensors == 0 || r->cursor != parts->ntensors))
        rc = zc_fail(c, -EPROTO, "%zu tensors of a unit, and more from %u on", parts->ntensors,
                     r->cursor);
    if (rc < 0)
        return rc;
    memcpy(parts->name, r->name, strlen(r->name) + 1);
    parts->unit.elems = r->elems;
    parts->unit.dtype = (enum zc_dtype)r->dtype;
    parts->unit.grad_dtype = (enum zc_dtype)r->grad_dtype;
    parts->unit.frozen = r->frozen;
    parts->unit.quantized = r->quantized;
    parts->cursor = r->cursor;
    return 0;
}

/** Joins the parts in one block, which the caller frees; NULL: no memory. */
static struct zc_unit *parts_join(const struct unit_parts *parts)
{
    size_t tensors_bytes = parts->ntensors * sizeof(struct zc_tensor);
    size_t name_bytes = strlen(parts->name) + 1;
    struct zc_unit *unit = malloc(sizeof(*unit) + tensors_bytes + name_bytes + parts->text_bytes);
    struct zc_tensor *tensors;
    char *text;

    if (!unit)
        return NULL;
    tensors = (struct zc_tensor *)(unit + 1);
    text = (char *)tensors + tensors_bytes;
    memcpy(text, parts->name, name_bytes);
    *unit = parts->unit;
    unit->name = text;
    unit->tensors = parts->ntensors ? tensors : NULL;
    unit->ntensors = (uint32_t)parts->ntensors;
    text += name_bytes;
    if (parts->ntensors == 0)
        return unit;
    memcpy(tensors, parts->tensors, tensors_bytes);
    memcpy(text, parts->text, parts->text_bytes);
    for (size_t i = 0; i < parts->ntensors; i++)
        tensors[i].name = text + (uintptr_t)tensors[i].name;
    return unit;
}

static const struct zc_method method_reader_unit = { .id = ZP_READER_UNIT,
                                                     .reply = reply_reader_unit };

int zc_reader_unit_wait(struct zc_client *c, uint64_t reader, uint32_t unit, struct zc_unit **ret)
{
    struct unit_parts parts = { .unit = { .index = unit } };
    struct zc_unit *joined;
    int rc;

    do {
        struct zc_waiter w = { .client = c };
        Zp__ReaderUnit m = ZP__READER_UNIT__INIT;

        m.reader = reader;
        m.unit = unit;
        m.cursor = parts.cursor;
        rc = zc_wait(&w, zc_ask(c, &method_reader_unit, &m.base, &parts, zc_waiter_done, &w), 0);
    } while (rc == 0 && parts.cursor != 0);
    if (rc == 0) {
        joined = parts_join(&parts);
        if (joined)
            *ret = joined;
        else
            rc = zc_fail(c, -ENOMEM, "a unit of %zu tensors: %m", parts.ntensors);
    }
    free(parts.tensors);
    free(parts.text);
    return rc;
}
