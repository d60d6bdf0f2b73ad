/*
 * record.c - the records of the catalog: from objects to bytes and back. nvme/FORMAT.md has the
 * bytes.
 *
 * MODEL. A record begins with a format byte, which is 2. It is followed by little-endian numbers
 * and by byte strings, each preceded by its length. A writer runs over an object twice: first to
 * count the bytes, then to write them. A reader fails if a byte is missing, left over or out of
 * range. So its results are within the ranges that the rest of the daemon assumes, whoever wrote
 * the record.
 */
#include "daemon/store/record.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/late.h"
#include "daemon/store/pack.h"
#include "proto/codec.h"

/* ---- the store */

#define FEATURE_MAX  63u /* bytes of a name */
#define FEATURES_MAX 64u

/* The bits of features, by number. */
static const char *const features[] = { "job_names_per_user", "restart_images" };

static void write_store(struct zsd_pack *w, const void *object)
{
    const struct zsd_store_record *s = object;

    zsd_pack_u64(w, s->boot);
    zsd_pack_u64(w, s->next_id);
    zsd_pack_u64(w, s->next_job);
    if (s->features == 0)
        return;
    zsd_pack_u32(w, (uint32_t)__builtin_popcount(s->features));
    for (unsigned i = 0; i < ZB_COUNT(features); i++)
        if (s->features & (UINT32_C(1) << i))
            zsd_pack_text(w, features[i]);
}

int zsd_record_put_store(struct zn_txn *t, const struct zsd_store_record *s)
{
    return zsd_pack_record(t, ZSD_RECORD_STORE, 0, 0, write_store, s);
}

/* Adds the bit of a feature; *unknown: its name, if there is no such bit. */
static void store_feature(const char *name, struct zsd_store_record *s, char *unknown, size_t size)
{
    for (unsigned i = 0; i < ZB_COUNT(features); i++) {
        if (strcmp(name, features[i]) == 0) {
            s->features |= UINT32_C(1) << i;
            return;
        }
    }
    (void)snprintf(unknown, size, "%s", name);
}

int zsd_record_get_store(const void *bytes, size_t len_bytes, struct zsd_store_record *ret,
                         struct zb_err *err)
{
    struct zsd_unpack r = zsd_unpack_begin(bytes, len_bytes);
    struct zsd_store_record s = { 0 };
    char name[FEATURE_MAX + 1], unknown[FEATURE_MAX + 1] = "";
    uint32_t n = 0;
    int rc;

    s.boot = zsd_unpack_u64(&r);
    s.next_id = zsd_unpack_u64(&r);
    s.next_job = zsd_unpack_u64(&r);
    if (!r.bad && r.left > 0) {
        n = zsd_unpack_u32(&r);
        zsd_unpack_check(&r, n >= 1 && n <= FEATURES_MAX);
    }
    for (uint32_t i = 0; i < n && !r.bad; i++) {
        zsd_unpack_text(&r, name, sizeof(name));
        zsd_unpack_check(&r, zp_name_valid(name));
        if (!r.bad)
            store_feature(name, &s, unknown, sizeof(unknown));
    }
    zsd_unpack_check(&r, s.boot < UINT64_C(1) << 24 && s.next_id > 0 && s.next_id <= INT64_MAX &&
                             s.next_job > 0 && s.next_job <= UINT32_MAX);
    rc = zsd_unpack_end(&r, "the store", err);
    if (rc < 0)
        return rc;
    if (*unknown)
        return zb_fail(err, -EOPNOTSUPP,
                       "the store uses the feature '%s', which zshardd " ZSHARD_VERSION
                       " does not know: a later release has used it. Nothing was changed; start "
                       "that release",
                       unknown);
    *ret = s;
    return 0;
}

/* ---- jobs */

/* The last field of a record, if it is not 0. */
#define JOB_IS_IMAGE     1u
#define JOB_ENGINE_SHIFT 8u /* Muon's engine; 0 (the processor) in all records before it */

struct job_object {
    const struct zsd_saved *saved;
    uint64_t committed, prepared;
};

static void write_job(struct zsd_pack *w, const void *object)
{
    const struct job_object *o = object;
    const struct zsd_saved *s = o->saved;
    uint32_t last = (s->image ? JOB_IS_IMAGE : 0) | (uint32_t)s->muon_engine << JOB_ENGINE_SHIFT;

    zsd_pack_text(w, s->name);
    zsd_pack_u64(w, s->uid);
    zsd_pack_u32(w, s->groups);
    zsd_pack_u32(w, s->optimizer);
    zsd_pack_u32(w, s->moments);
    zsd_pack_u32(w, s->offload_param);
    zsd_pack_u32(w, s->offload_optimizer);
    zsd_pack_u64(w, s->host_bytes_max);
    zsd_pack_u64(w, 0); /* unused */
    zsd_pack_u64(w, s->epoch);
    zsd_pack_u64(w, o->committed);
    zsd_pack_u64(w, o->prepared);
    if (last != 0) /* else the record ends here */
        zsd_pack_u32(w, last);
}

int zsd_record_put_job(struct zn_txn *t, const struct zsd_saved *saved, uint64_t committed,
                       uint64_t prepared)
{
    const struct job_object o = { saved, committed, prepared };

    return zsd_pack_record(t, ZSD_RECORD_JOB, saved->number, 0, write_job, &o);
}

int zsd_record_get_job(const struct zn_key *key, const void *bytes, size_t len_bytes,
                       struct zsd_saved *ret, uint64_t *ret_committed, uint64_t *ret_prepared,
                       struct zb_err *err)
{
    struct zsd_unpack r = zsd_unpack_begin(bytes, len_bytes);
    uint64_t uid;

    ret->number = (uint32_t)key->a;
    zsd_unpack_text(&r, ret->name, sizeof(ret->name));
    uid = zsd_unpack_u64(&r);
    ret->uid = (uid_t)uid;
    ret->groups = zsd_unpack_u32(&r);
    ret->optimizer = zsd_unpack_u32(&r);
    ret->moments = zsd_unpack_u32(&r);
    ret->offload_param = zsd_unpack_u32(&r);
    ret->offload_optimizer = zsd_unpack_u32(&r);
    ret->host_bytes_max = zsd_unpack_u64(&r);
    (void)zsd_unpack_u64(&r); /* unused */
    ret->epoch = zsd_unpack_u64(&r);
    *ret_committed = zsd_unpack_u64(&r);
    *ret_prepared = zsd_unpack_u64(&r);
    if (!r.bad && r.left > 0) {
        uint32_t last = zsd_unpack_u32(&r);

        ret->image = (last & JOB_IS_IMAGE) != 0;
        ret->muon_engine = (enum zb_muon_engine)(last >> JOB_ENGINE_SHIFT);
        zsd_unpack_check(&r, last != 0 && (last & 0xff) <= JOB_IS_IMAGE &&
                                 zb_muon_engine_name(ret->muon_engine) &&
                                 (ret->muon_engine == ZB_MUON_CPU || ret->optimizer == ZB_MUON) &&
                                 (!ret->image || *ret_prepared == 0));
    }
    zsd_unpack_check(&r, key->a <= UINT32_MAX && zp_name_valid(ret->name) && uid <= UINT32_MAX &&
                             ret->groups >= 1 && ret->groups <= ZP_GROUPS_MAX &&
                             zb_optimizer_name(ret->optimizer) && zb_moments_name(ret->moments) &&
                             ret->offload_param >= ZP_HOST && ret->offload_param <= ZP_NVME &&
                             ret->offload_optimizer >= ZP_HOST &&
                             ret->offload_optimizer <= ZP_NVME);
    return zsd_unpack_end(&r, "a job", err);
}

int zsd_record_del_job(struct zn_txn *t, const struct zsd_saved *saved)
{
    const struct zn_key key = { .kind = ZSD_RECORD_JOB, .a = saved->number };
    int rc = zn_txn_del(t, &key);

    return rc == 0 ? zn_txn_del_all(t, ZSD_RECORD_UNIT, saved->number) : rc;
}

/* ---- units */

#define TENSOR_IS_MUON 0x100u /* with the number of dimensions */

static void write_unit(struct zsd_pack *w, const void *object)
{
    const struct zsd_unit *u = object;

    zsd_pack_text(w, u->name);
    zsd_pack_u64(w, u->elems);
    zsd_pack_u32(w, u->layout.dtype);
    zsd_pack_u32(w, u->layout.grad_dtype);
    zsd_pack_u32(w, zb_layout_placed_for(&u->layout));
    zsd_pack_u32(w, u->layout.moments);
    zsd_pack_u8(w, (uint8_t)(u->layout.frozen + u->layout.quantized));
    zsd_pack_u32(w, u->ntensors);
    for (uint32_t i = 0; i < u->ntensors; i++) {
        const struct zsd_tensor *t = &u->tensors[i];

        zsd_pack_text(w, t->name);
        zsd_pack_u64(w, t->first);
        zsd_pack_u32(w, t->group);
        zsd_pack_u32(w, t->ndims | (t->muon ? TENSOR_IS_MUON : 0));
        for (uint32_t d = 0; d < t->ndims; d++)
            zsd_pack_u64(w, t->dims[d]);
    }
}

int zsd_record_put_unit(struct zn_txn *t, uint32_t job, const struct zsd_unit *unit)
{
    return zsd_pack_record(t, ZSD_RECORD_UNIT, job, unit->index, write_unit, unit);
}

static void read_tensor(struct zsd_unpack *r, const struct zsd_unit *u, uint64_t from,
                        struct zsd_tensor *t)
{
    *t = (struct zsd_tensor){ .count = 1 };
    zsd_unpack_text(r, t->name, sizeof(t->name));
    t->first = zsd_unpack_u64(r);
    t->group = zsd_unpack_u32(r);
    t->ndims = zsd_unpack_u32(r);
    t->muon = t->ndims == (2 | TENSOR_IS_MUON);
    t->ndims &= t->muon ? ~TENSOR_IS_MUON : UINT32_MAX;
    zsd_unpack_check(r, t->ndims <= ZP_DIMS_MAX && zp_tensor_name_valid(t->name) &&
                            (t->group < ZP_GROUPS_MAX || t->group == ZP_GROUP_FROZEN));
    for (uint32_t d = 0; d < t->ndims && !r->bad; d++) {
        t->dims[d] = zsd_unpack_u64(r);
        zsd_unpack_check(r, zb_mul_fits(t->count, t->dims[d], &t->count));
    }
    zsd_unpack_check(r, t->count > 0 && t->first >= from &&
                            zb_range_inside(t->first, t->count, u->elems));
}

static void read_unit(struct zsd_unpack *r, struct zsd_unit *u)
{
    uint32_t dtype, grad_dtype, optimizer, moments;
    uint8_t frozen;

    zsd_unpack_text(r, u->name, sizeof(u->name));
    u->elems = zsd_unpack_u64(r);
    dtype = zsd_unpack_u32(r);
    grad_dtype = zsd_unpack_u32(r);
    optimizer = zsd_unpack_u32(r);
    moments = zsd_unpack_u32(r);
    frozen = zsd_unpack_u8(r);
    u->ntensors = u->tensors_room = zsd_unpack_u32(r);
    zsd_unpack_check(r, zp_name_valid(u->name) && u->elems >= 1 && u->elems <= UINT64_C(1) << 40 &&
                            u->ntensors <= r->left);
    zsd_unpack_check(r, !r->bad && frozen <= 2 &&
                            zb_layout_of(dtype, grad_dtype, optimizer, moments, frozen > 0,
                                         &u->layout, NULL) == 0 &&
                            (frozen == 0 || grad_dtype == ZB_F32));
    if (!r->bad && frozen == 2)
        zb_layout_quantize(&u->layout);
}

int zsd_record_get_unit(const struct zn_key *key, const void *bytes, size_t len_bytes,
                        struct zsd_unit **ret, struct zb_err *err)
{
    struct zsd_unpack r = zsd_unpack_begin(bytes, len_bytes);
    struct zsd_unit *u = calloc(1, sizeof(*u));
    uint64_t from = 0;
    int rc = u ? 0 : -ENOMEM;

    if (u) {
        u->index = (uint32_t)key->b;
        read_unit(&r, u);
        zsd_unpack_check(&r, key->b < ZP_UNITS_MAX);
        if (!r.bad)
            u->tensors = calloc(zb_max_u64(u->ntensors, 1), sizeof(*u->tensors));
        rc = r.bad || u->tensors ? 0 : -ENOMEM;
        for (uint32_t i = 0; u->tensors && i < u->ntensors && !r.bad; i++) {
            read_tensor(&r, u, from, &u->tensors[i]);
            from = u->tensors[i].first + u->tensors[i].count;
        }
        if (r.bad)
            u->ntensors = 0;
    }
    if (rc == 0)
        rc = zsd_unpack_end(&r, "a unit", err);
    if (rc == 0 && zsd_unit_segments(u) < 0)
        rc = -ENOMEM;
    if (rc < 0) {
        zsd_unit_free(u);
        return zb_fail(err, rc, "a unit of the catalog: %m");
    }
    *ret = u;
    return 0;
}

/* ---- versions and notes */

static void write_version(struct zsd_pack *w, const void *object)
{
    const struct zsd_version *v = object;

    zsd_pack_u64(w, v->iterations);
    zsd_pack_u64(w, v->applied);
    zsd_pack_u64(w, v->created_unix);
    zsd_pack_u32(w, v->world);
    zsd_pack_u32(w, v->nrows);
    for (uint32_t i = 0; i < v->nrows; i++)
        zsd_pack_u64(w, v->rows[i]->id);
}

static void write_note(struct zsd_pack *w, const void *object)
{
    const struct zsd_note *n = object;

    zsd_pack_u64(w, n->iteration);
    zsd_pack_u32(w, n->total);
    zsd_pack(w, n->data, n->total);
}

static int version_note(struct zn_txn *t, const struct zsd_version *v, uint64_t which,
                        const struct zsd_note *n, bool del)
{
    const struct zn_key key = { .kind = ZSD_RECORD_NOTE, .a = v->id, .b = which };

    if (!n->data)
        return 0;
    return del ? zn_txn_del(t, &key)
               : zsd_pack_record(t, ZSD_RECORD_NOTE, v->id, which, write_note, n);
}

static int version_notes(struct zn_txn *t, const struct zsd_version *v, bool del)
{
    int rc = version_note(t, v, ZSD_NOTE_OF_JOB, &v->job_note, del);

    for (uint32_t i = 0; i < v->world && rc == 0; i++)
        rc = version_note(t, v, i, &v->notes[i], del);
    return rc;
}

int zsd_record_put_version(struct zn_txn *t, uint32_t job, const struct zsd_version *v)
{
    int rc = zsd_pack_record(t, ZSD_RECORD_VERSION, job, v->id, write_version, v);

    return rc == 0 ? version_notes(t, v, false) : rc;
}

int zsd_record_del_version(struct zn_txn *t, uint32_t job, const struct zsd_version *v)
{
    const struct zn_key key = { .kind = ZSD_RECORD_VERSION, .a = job, .b = v->id };
    int rc = zn_txn_del(t, &key);

    return rc == 0 ? version_notes(t, v, true) : rc;
}

int zsd_record_get_version(const struct zn_key *key, const void *bytes, size_t len_bytes,
                           struct zsd_version **ret, uint64_t **ret_rows, struct zb_err *err)
{
    struct zsd_unpack r = zsd_unpack_begin(bytes, len_bytes);
    struct zsd_version head = { .id = key->b }, *v;
    uint64_t *rows;
    int rc;

    head.iterations = zsd_unpack_u64(&r);
    head.applied = zsd_unpack_u64(&r);
    head.created_unix = zsd_unpack_u64(&r);
    head.world = zsd_unpack_u32(&r);
    head.nrows = zsd_unpack_u32(&r);
    zsd_unpack_check(&r, head.applied <= head.iterations && head.world >= 1 &&
                             head.world <= ZP_WORLD_MAX && head.nrows <= ZB_SHARDS_MAX &&
                             r.left == (size_t)head.nrows * sizeof(uint64_t));
    if (r.bad)
        return zsd_unpack_end(&r, "a version", err);
    v = calloc(1, sizeof(*v));
    rows = calloc(zb_max_u64(head.nrows, 1), sizeof(*rows));
    if (v) {
        *v = head;
        v->rows = calloc(zb_max_u64(v->nrows, 1), sizeof(struct zsd_row *));
        v->notes = calloc(v->world, sizeof(*v->notes));
    }
    for (uint32_t i = 0; rows && i < head.nrows; i++)
        rows[i] = zsd_unpack_u64(&r);
    rc = v && v->rows && v->notes && rows ? zsd_unpack_end(&r, "a version", err)
                                          : zb_fail(err, -ENOMEM, "a version of the catalog: %m");
    if (rc < 0) {
        if (v) {
            free(v->rows);
            free(v->notes);
        }
        free(v);
        free(rows);
        return rc;
    }
    *ret = v;
    *ret_rows = rows;
    return 0;
}

int zsd_record_get_note(const struct zn_key *key, const void *bytes, size_t len_bytes,
                        struct zsd_note *ret, struct zb_err *err)
{
    struct zsd_unpack r = zsd_unpack_begin(bytes, len_bytes);
    struct zsd_note n = { 0 };
    const void *data;
    int rc;

    (void)key;
    n.iteration = zsd_unpack_u64(&r);
    n.total = n.got = zsd_unpack_u32(&r);
    zsd_unpack_check(&r, n.total <= ZP_NOTE_MAX);
    data = zsd_unpack(&r, n.total);
    rc = zsd_unpack_end(&r, "a note", err);
    if (rc < 0)
        return rc;
    n.data = malloc(zb_max_u64(n.total, 1));
    if (!n.data)
        return zb_fail(err, -ENOMEM, "a note of the catalog: %m");
    if (n.total > 0)
        memcpy(n.data, data, n.total);
    zsd_note_done(ret);
    *ret = n;
    return 0;
}

/* ---- rows */

static void write_row(struct zsd_pack *w, const void *object)
{
    const struct zsd_row *r = object;

    zsd_pack_u32(w, r->unit);
    zsd_pack_u32(w, r->rank);
    zsd_pack_u64(w, r->first);
    zsd_pack_u64(w, r->count);
    zsd_pack_u32(w, r->page_elems);
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        const struct zsd_row_plane *plane = &r->planes[p];

        zsd_pack_u32(w, plane->block_bytes);
        zsd_pack_u32(w, plane->crc_bytes);
        for (uint32_t i = 0; plane->block_bytes > 0 && i < r->npages; i++) {
            uint32_t n = zn_crc_count(zsd_row_page_bytes(r, p, i), plane->crc_bytes);

            zsd_pack_u64(w, plane->extents[i].at);
            zsd_pack_u64(w, plane->extents[i].generation);
            zsd_pack_u32(w, plane->extents[i].job);
            for (uint32_t c = 0; c < n; c++)
                zsd_pack_u32(w, plane->crcs[(size_t)i * plane->crcs_per_page + c]);
        }
    }
}

int zsd_record_put_row(struct zn_txn *t, const struct zsd_row *r)
{
    return zsd_pack_record(t, ZSD_RECORD_ROW, r->id, 0, write_row, r);
}

int zsd_record_del_row(struct zn_txn *t, uint64_t row)
{
    const struct zn_key key = { .kind = ZSD_RECORD_ROW, .a = row };

    return zn_txn_del(t, &key);
}

static int read_row_plane(struct zsd_unpack *r, struct zsd_row *row, enum zsd_saved_plane p)
{
    struct zsd_row_plane *plane = &row->planes[p];

    plane->block_bytes = zsd_unpack_u32(r);
    plane->crc_bytes = zsd_unpack_u32(r);
    /* true for every layout: base/plan.h */
    zsd_unpack_check(r, plane->crc_bytes <= ZB_CRC_BYTES_MAX &&
                            (plane->block_bytes == 0 ||
                             (plane->crc_bytes > 0 && plane->crc_bytes % plane->block_bytes == 0)));
    if (r->bad || plane->block_bytes == 0)
        return 0;
    plane->crcs_per_page = zn_crc_count(
        (uint32_t)zb_page_bytes(plane->block_bytes, row->page_elems), plane->crc_bytes);
    plane->extents = calloc(row->npages, sizeof(*plane->extents));
    plane->crcs = calloc((size_t)row->npages * plane->crcs_per_page, sizeof(*plane->crcs));
    if (!plane->extents || !plane->crcs)
        return -ENOMEM;
    for (uint32_t i = 0; i < row->npages && !r->bad; i++) {
        uint32_t n = zn_crc_count(zsd_row_page_bytes(row, p, i), plane->crc_bytes);

        plane->extents[i].at = zsd_unpack_u64(r);
        plane->extents[i].generation = zsd_unpack_u64(r);
        plane->extents[i].job = zsd_unpack_u32(r);
        for (uint32_t c = 0; c < n; c++)
            plane->crcs[(size_t)i * plane->crcs_per_page + c] = zsd_unpack_u32(r);
    }
    return 0;
}

static void row_free(struct zsd_row *row)
{
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        free(row->planes[p].extents);
        free(row->planes[p].crcs);
    }
    free(row);
}

int zsd_record_get_row(const struct zn_key *key, const void *bytes, size_t len_bytes,
                       struct zsd_row **ret, struct zb_err *err)
{
    struct zsd_unpack r = zsd_unpack_begin(bytes, len_bytes);
    struct zsd_row *row = calloc(1, sizeof(*row));
    int rc = 0;

    if (!row)
        return zb_fail(err, -ENOMEM, "a row of the catalog: %m");
    row->id = key->a;
    row->refs = 1;
    zb_list_init(&row->node);
    row->unit = zsd_unpack_u32(&r);
    row->rank = zsd_unpack_u32(&r);
    row->first = zsd_unpack_u64(&r);
    row->count = zsd_unpack_u64(&r);
    row->page_elems = zsd_unpack_u32(&r);
    zsd_unpack_check(
        &r, row->unit < ZP_UNITS_MAX && row->rank < ZP_WORLD_MAX &&
                row->first <= UINT64_C(1) << 40 && row->count >= 1 &&
                row->count <= UINT64_C(1) << 40 && row->first % ZB_BLOCK_ELEMS == 0 &&
                row->count % ZB_BLOCK_ELEMS == 0 && row->page_elems >= ZB_BLOCK_ELEMS &&
                row->page_elems <= ZB_PAGE_ELEMS_MAX && row->page_elems % ZB_BLOCK_ELEMS == 0);
    if (!r.bad) {
        uint64_t npages = zb_div_up(row->count, row->page_elems);

        zsd_unpack_check(&r, npages <= r.left); /* a page takes more than one byte */
        row->npages = (uint32_t)npages;
    }
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES && !r.bad && rc == 0; p++)
        rc = read_row_plane(&r, row, p);
    rc = rc < 0 ? zb_fail(err, rc, "a row of the catalog: %m") : zsd_unpack_end(&r, "a row", err);
    if (rc < 0) {
        row_free(row);
        return rc;
    }
    *ret = row;
    return 0;
}

/* ---- snapshots */

static void write_snap(struct zsd_pack *w, const void *object)
{
    const struct zsd_snap *s = object;

    zsd_pack_text(w, s->name);
    zsd_pack_u64(w, s->created_unix);
    zsd_pack_u64(w, s->version->id);
}

int zsd_record_put_snap(struct zn_txn *t, uint32_t job, const struct zsd_snap *s)
{
    return zsd_pack_record(t, ZSD_RECORD_SNAPSHOT, job, s->id, write_snap, s);
}

int zsd_record_del_snap(struct zn_txn *t, uint32_t job, const struct zsd_snap *s)
{
    const struct zn_key key = { .kind = ZSD_RECORD_SNAPSHOT, .a = job, .b = s->id };

    return zn_txn_del(t, &key);
}

int zsd_record_get_snap(const struct zn_key *key, const void *bytes, size_t len_bytes,
                        struct zsd_snap **ret, uint64_t *ret_version, struct zb_err *err)
{
    struct zsd_unpack r = zsd_unpack_begin(bytes, len_bytes);
    struct zsd_snap *s = calloc(1, sizeof(*s));
    uint64_t version;
    int rc;

    if (!s)
        return zb_fail(err, -ENOMEM, "a snapshot of the catalog: %m");
    s->id = key->b;
    zb_list_init(&s->node);
    zsd_unpack_text(&r, s->name, sizeof(s->name));
    s->created_unix = zsd_unpack_u64(&r);
    version = zsd_unpack_u64(&r);
    zsd_unpack_check(&r, zp_name_valid(s->name));
    rc = zsd_unpack_end(&r, "a snapshot", err);
    if (rc < 0) {
        free(s);
        return rc;
    }
    *ret = s;
    *ret_version = version;
    return 0;
}
