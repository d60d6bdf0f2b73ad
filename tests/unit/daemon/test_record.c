/*
 * Records of the catalog: a stored record is read back, in the bytes of nvme/FORMAT.md. Any other
 * bytes are refused, or have a meaning within its range. A checksum protects records, but a bug or
 * another version may have written them.
 *
 * ZSHARD_RECORD_ROUNDS=N: the number of damaged records of each kind, instead of 3,000.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "daemon/store/drains.h"
#include "daemon/store/record.h"
#include "nvme/catalog_priv.h"

static struct zb_err err;

/* ---- random objects, from a seed */

static void name_draw(char *name, size_t len_max, uint64_t *seed)
{
    static const char letters[] = "abcXYZ019_";
    size_t n = 1 + ztest_random(seed) % len_max;

    for (size_t i = 0; i < n; i++)
        name[i] = letters[ztest_random(seed) % (sizeof(letters) - 1)];
    name[n] = '\0';
}

static int put_store(struct zn_txn *t, uint64_t *seed)
{
    const struct zsd_store_record s = { .boot = ztest_random(seed) % (1 << 24),
                                        .next_id = 1 + ztest_random(seed) % INT64_MAX,
                                        .next_job = 1 + ztest_random(seed) % UINT32_MAX };

    return zsd_record_put_store(t, &s);
}

static int again_store(const struct zn_key *key, const void *bytes, size_t len_bytes,
                       struct zn_txn *t)
{
    struct zsd_store_record s;
    int rc = zsd_record_get_store(bytes, len_bytes, &s, &err);

    (void)key;
    return rc == 0 ? zsd_record_put_store(t, &s) : rc;
}

static int put_job(struct zn_txn *t, uint64_t *seed)
{
    struct zsd_saved s = { .number = (uint32_t)ztest_random(seed),
                           .uid = (uid_t)ztest_random(seed),
                           .groups = 1 + ztest_random(seed) % ZP_GROUPS_MAX,
                           .optimizer = 1 + ztest_random(seed) % 5,
                           .moments = 1 + ztest_random(seed) % 4,
                           .offload_param = 1 + ztest_random(seed) % 2,
                           .offload_optimizer = 1 + ztest_random(seed) % 2,
                           .host_bytes_max = ztest_random(seed),
                           .epoch = ztest_random(seed) };

    name_draw(s.name, ZP_NAME_MAX, seed);
    return zsd_record_put_job(t, &s, ztest_random(seed), ztest_random(seed));
}

/* A format byte, the name and its length, the owner, five numbers and host_bytes_max come before
 * the eight unused bytes, which are ignored when read, and written as zeros. */
static int again_job(const struct zn_key *key, const void *bytes, size_t len_bytes,
                     struct zn_txn *t)
{
    static const uint8_t zeros[8];
    struct zsd_saved s = { 0 };
    uint64_t committed, prepared;
    int rc = zsd_record_get_job(key, bytes, len_bytes, &s, &committed, &prepared, &err);
    size_t unused = 1 + 4 + strlen(s.name) + 8 + 5 * 4 + 8;

    if (rc == 0)
        rc = zsd_record_put_job(t, &s, committed, prepared);
    if (rc < 0)
        return rc;
    assert_memory_equal(t->changes[0].bytes + unused, zeros, sizeof(zeros));
    memcpy(t->changes[0].bytes + unused, (const uint8_t *)bytes + unused, sizeof(zeros));
    return 0;
}

static int put_unit(struct zn_txn *t, uint64_t *seed)
{
    static struct zsd_tensor tensors[40];
    struct zsd_unit u = { .index = ztest_random(seed) % ZP_UNITS_MAX,
                          .tensors = tensors,
                          .ntensors = ztest_random(seed) % ZB_COUNT(tensors) };
    bool frozen = ztest_random(seed) % 4 == 0;
    enum zb_dtype dtype = 1 + ztest_random(seed) % 3;
    enum zb_optimizer optimizer = 1 + ztest_random(seed) % 5;
    enum zb_moments moments = 1 + ztest_random(seed) % 4;
    uint64_t from = 0;

    memset(tensors, 0, sizeof(tensors));
    assert_int_equal(zb_layout_of(dtype, ZB_F32, optimizer, moments, frozen, &u.layout, NULL), 0);
    if (frozen && ztest_random(seed) % 2 == 0)
        zb_layout_quantize(&u.layout);
    name_draw(u.name, ZP_NAME_MAX, seed);
    for (uint32_t i = 0; i < u.ntensors; i++) {
        struct zsd_tensor *x = &tensors[i];

        name_draw(x->name, ZP_TENSOR_MAX, seed);
        x->first = from + ztest_random(seed) % 3;
        x->group = ztest_random(seed) % 5 ? ztest_random(seed) % ZP_GROUPS_MAX : ZP_GROUP_FROZEN;
        x->count = 1;
        x->ndims = ztest_random(seed) % (ZP_DIMS_MAX + 1);
        for (uint32_t d = 0; d < x->ndims; d++)
            x->count *= x->dims[d] = 1 + ztest_random(seed) % 6;
        from = x->first + x->count;
    }
    u.elems = from + 1 + ztest_random(seed) % 9999;
    return zsd_record_put_unit(t, 1 + ztest_random(seed) % 99, &u);
}

static int again_unit(const struct zn_key *key, const void *bytes, size_t len_bytes,
                      struct zn_txn *t)
{
    struct zsd_unit *u = NULL;
    uint64_t end = 0;
    int rc = zsd_record_get_unit(key, bytes, len_bytes, &u, &err);

    if (rc < 0)
        return rc;
    for (uint32_t i = 0; i < u->nsegments; i++) { /* as passed to the kernels */
        assert_true(u->segments[i].first >= end && u->segments[i].count > 0);
        end = u->segments[i].first + u->segments[i].count;
        assert_true(end <= u->elems);
    }
    rc = zsd_record_put_unit(t, (uint32_t)key->a, u);
    zsd_unit_free(u);
    return rc;
}

static int put_version(struct zn_txn *t, uint64_t *seed)
{
    static struct zsd_row row[500], *rows[500];
    struct zsd_version v = { .id = 1 + ztest_random(seed) % INT64_MAX,
                             .iterations = UINT64_C(1) << 40,
                             .applied = ztest_random(seed) % (UINT64_C(1) << 40),
                             .created_unix = ztest_random(seed),
                             .world = 1 + ztest_random(seed) % 9,
                             .nrows = ztest_random(seed) % 4 ? ztest_random(seed) % 500 : 0,
                             .rows = rows };
    int rc;

    v.notes = calloc(v.world, sizeof(*v.notes));
    for (uint32_t i = 0; i < v.nrows; i++) {
        rows[i] = &row[i];
        row[i].id = ztest_random(seed);
    }
    rc = zsd_record_put_version(t, 7, &v);
    free(v.notes);
    return rc;
}

static int again_version(const struct zn_key *key, const void *bytes, size_t len_bytes,
                         struct zn_txn *t)
{
    struct zsd_version *v = NULL;
    struct zsd_row *row;
    uint64_t *ids = NULL;
    int rc = zsd_record_get_version(key, bytes, len_bytes, &v, &ids, &err);

    if (rc < 0)
        return rc;
    row = calloc(v->nrows + 1, sizeof(*row));
    for (uint32_t i = 0; i < v->nrows; i++) {
        assert_null(v->rows[i]);
        v->rows[i] = &row[i];
        row[i].id = ids[i];
    }
    assert_int_equal(v->id, key->b);
    for (uint32_t i = 0; i < v->world; i++)
        assert_null(v->notes[i].data);
    rc = zsd_record_put_version(t, (uint32_t)key->a, v);
    free(row);
    free(ids);
    free(v->rows);
    free(v->notes);
    free(v);
    return rc;
}

/* The second record of a version with only this note. */
static int put_one_note(struct zn_txn *t, struct zsd_note *note)
{
    struct zsd_version v = { .id = 5, .world = 1, .notes = note };
    struct zn_txn *both = zn_txn_new();
    int rc = zsd_record_put_version(both, 7, &v);
    const struct zn_change *second = &both->changes[1];
    void *room;

    assert_int_equal(both->count, 2);
    if (rc == 0)
        rc = zn_txn_put_room(t, &second->key, second->len_bytes, &room);
    if (rc == 0)
        memcpy(room, second->bytes, second->len_bytes);
    zn_txn_free(both);
    return rc;
}

static int put_note(struct zn_txn *t, uint64_t *seed)
{
    static uint8_t data[ZP_NOTE_MAX];
    struct zsd_note note = { .data = data, .iteration = ztest_random(seed) };

    note.total = ztest_random(seed) % 2 ? ztest_random(seed) % 100
                                        : ztest_random(seed) % (ZP_NOTE_MAX + 1);
    for (uint32_t i = 0; i < note.total; i++)
        data[i] = (uint8_t)ztest_random(seed);
    return put_one_note(t, &note);
}

static int again_note(const struct zn_key *key, const void *bytes, size_t len_bytes,
                      struct zn_txn *t)
{
    struct zsd_note note = { .data = malloc(3) }; /* replaced, not leaked */
    int rc = zsd_record_get_note(key, bytes, len_bytes, &note, &err);

    if (rc == 0) {
        assert_int_equal(note.got, note.total);
        rc = put_one_note(t, &note);
    }
    zsd_note_done(&note);
    return rc;
}

static void row_done(struct zsd_row *r)
{
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        free(r->planes[p].extents);
        free(r->planes[p].crcs);
    }
}

static int put_row(struct zn_txn *t, uint64_t *seed)
{
    static const uint32_t page_blocks[] = { 1, 2, 7, 64, ZB_PAGE_ELEMS_MAX / ZB_BLOCK_ELEMS };
    struct zsd_row r = { .id = 1 + ztest_random(seed) % INT64_MAX,
                         .unit = ztest_random(seed) % ZP_UNITS_MAX,
                         .rank = ztest_random(seed) % ZP_WORLD_MAX,
                         .first = ztest_random(seed) % 9999 * ZB_BLOCK_ELEMS };
    struct zb_layout layout;
    int rc;

    assert_int_equal(zb_layout_of(1 + ztest_random(seed) % 3, ZB_F32, 1 + ztest_random(seed) % 5,
                                  1 + ztest_random(seed) % 3, ztest_random(seed) % 4 == 0, &layout,
                                  NULL),
                     0);
    r.page_elems = page_blocks[ztest_random(seed) % ZB_COUNT(page_blocks)] * ZB_BLOCK_ELEMS;
    r.count = (1 + ztest_random(seed) % 300) * ZB_BLOCK_ELEMS;
    r.npages = (uint32_t)zb_div_up(r.count, r.page_elems);
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++) {
        struct zsd_row_plane *plane = &r.planes[p];

        plane->block_bytes = layout.block_bytes[zsd_plane_of(p)];
        plane->crc_bytes = layout.crc_bytes[zsd_plane_of(p)];
        if (plane->block_bytes == 0)
            continue;
        plane->crcs_per_page = zn_crc_count(
            (uint32_t)zb_page_bytes(plane->block_bytes, r.page_elems), plane->crc_bytes);
        plane->extents = calloc(r.npages, sizeof(*plane->extents));
        plane->crcs = calloc((size_t)r.npages * plane->crcs_per_page, sizeof(*plane->crcs));
        for (uint32_t i = 0; i < r.npages; i++)
            plane->extents[i] = (struct zsd_extent){ .at = ztest_random(seed),
                                                     .generation = ztest_random(seed),
                                                     .job = (uint32_t)ztest_random(seed) };
        for (uint32_t i = 0; i < r.npages * plane->crcs_per_page; i++)
            plane->crcs[i] = (uint32_t)ztest_random(seed);
    }
    rc = zsd_record_put_row(t, &r);
    row_done(&r);
    return rc;
}

static int again_row(const struct zn_key *key, const void *bytes, size_t len_bytes,
                     struct zn_txn *t)
{
    struct zsd_row *r = NULL;
    int rc = zsd_record_get_row(key, bytes, len_bytes, &r, &err);

    if (rc < 0)
        return rc;
    assert_int_equal(r->npages, zb_div_up(r->count, r->page_elems));
    assert_int_equal(r->refs, 1);
    for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++)
        for (uint32_t i = 0; r->planes[p].block_bytes > 0 && i < r->npages; i++)
            assert_true(zn_crc_count(zsd_row_page_bytes(r, p, i), r->planes[p].crc_bytes) <=
                        r->planes[p].crcs_per_page);
    rc = zsd_record_put_row(t, r);
    row_done(r);
    free(r);
    return rc;
}

static int put_snap(struct zn_txn *t, uint64_t *seed)
{
    struct zsd_version v = { .id = ztest_random(seed) };
    struct zsd_snap s = { .id = 1 + ztest_random(seed) % INT64_MAX,
                          .created_unix = ztest_random(seed),
                          .version = &v };

    name_draw(s.name, ZP_NAME_MAX, seed);
    return zsd_record_put_snap(t, 3, &s);
}

static int again_snap(const struct zn_key *key, const void *bytes, size_t len_bytes,
                      struct zn_txn *t)
{
    struct zsd_version v = { 0 };
    struct zsd_snap *s = NULL;
    int rc = zsd_record_get_snap(key, bytes, len_bytes, &s, &v.id, &err);

    if (rc < 0)
        return rc;
    assert_null(s->version);
    s->version = &v;
    rc = zsd_record_put_snap(t, (uint32_t)key->a, s);
    free(s);
    return rc;
}

static int put_drain(struct zn_txn *t, uint64_t *seed)
{
    struct zsd_drain_record d = { .path = ztest_random(seed) % ZN_PATHS_MAX,
                                  .drain = 1 + ztest_random(seed) % ZSD_DRAIN_STALLED };

    for (size_t i = 0; i < sizeof(d.uuid); i++)
        d.uuid[i] = (uint8_t)ztest_random(seed);
    name_draw(d.why, sizeof(d.why) - 1, seed);
    return zsd_record_put_drain(t, &d);
}

static int again_drain(const struct zn_key *key, const void *bytes, size_t len_bytes,
                       struct zn_txn *t)
{
    struct zsd_drain_record d;
    int rc = zsd_record_get_drain(key, bytes, len_bytes, &d, &err);

    return rc == 0 ? zsd_record_put_drain(t, &d) : rc;
}

/* put: writes a random object of the kind as a record. again: reads a record, and writes the object
 * that it has read, if any. */
static const struct kind {
    const char *name;
    enum zsd_record kind;
    int (*put)(struct zn_txn *t, uint64_t *seed);
    int (*again)(const struct zn_key *key, const void *bytes, size_t len_bytes, struct zn_txn *t);
} kinds[] = {
    { "store", ZSD_RECORD_STORE, put_store, again_store },
    { "job", ZSD_RECORD_JOB, put_job, again_job },
    { "unit", ZSD_RECORD_UNIT, put_unit, again_unit },
    { "version", ZSD_RECORD_VERSION, put_version, again_version },
    { "note", ZSD_RECORD_NOTE, put_note, again_note },
    { "row", ZSD_RECORD_ROW, put_row, again_row },
    { "snapshot", ZSD_RECORD_SNAPSHOT, put_snap, again_snap },
    { "drain", ZSD_RECORD_DRAIN, put_drain, again_drain },
};

/* Reads bytes in a buffer of exactly their length (so that a sanitizer sees the end). They are
 * refused with an error message, or the object that was read encodes to the same bytes. Returns
 * the rc of the read. */
static int read_back(const struct kind *k, const struct zn_key *key, const uint8_t *bytes,
                     size_t len_bytes)
{
    struct zn_txn *t = zn_txn_new();
    uint8_t *exact = malloc(len_bytes > 0 ? len_bytes : 1);
    int rc;

    memcpy(exact, bytes, len_bytes);
    err = (struct zb_err){ 0 };
    rc = k->again(key, exact, len_bytes, t);
    if (rc < 0 ? (rc != -EBADMSG && rc != -ENOMEM && rc != -EOPNOTSUPP) || err.code != rc
               : t->changes[0].len_bytes != len_bytes ||
                     memcmp(t->changes[0].bytes, exact, len_bytes) != 0)
        fail_msg("%s of %zu bytes: %d '%s'", k->name, len_bytes, rc, err.text);
    free(exact);
    zn_txn_free(t);
    return rc;
}

static void round_trips(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(kinds); i++) {
        uint64_t seed = i;

        for (unsigned n = 0; n < 200; n++) {
            struct zn_txn *t = zn_txn_new();
            const struct zn_change *c;

            assert_int_equal(kinds[i].put(t, &seed), 0);
            c = &t->changes[0];
            assert_int_equal(c->op, ZN_CHANGE_PUT);
            assert_int_equal(c->key.kind, kinds[i].kind);
            assert_int_equal(c->bytes[0], 2);
            if (read_back(&kinds[i], &c->key, c->bytes, c->len_bytes) != 0)
                fail_msg("%s, the %u-th: %s", kinds[i].name, n, err.text);
            zn_txn_free(t);
        }
    }
}

/* The record of an image is that of a job with one more number. */
static void job_images(void **state)
{
    struct zsd_saved s = { .number = 7, .name = "j", .groups = 1, .optimizer = 1, .moments = 1 };
    struct zsd_saved back = { 0 };
    struct zn_txn *t = zn_txn_new();
    uint64_t committed, prepared;
    const struct zn_change *c;

    (void)state;
    s.offload_param = s.offload_optimizer = ZP_NVME;
    for (int image = 0; image < 2; image++) {
        s.image = image;
        assert_int_equal(zsd_record_put_job(t, &s, 5, 0), 0);
    }
    c = t->changes;
    assert_int_equal(c[1].len_bytes, c[0].len_bytes + 4);
    for (int image = 0; image < 2; image++) {
        assert_int_equal(zsd_record_get_job(&c[image].key, c[image].bytes, c[image].len_bytes,
                                            &back, &committed, &prepared, &err),
                         0);
        assert_int_equal(back.image, image);
        assert_int_equal(committed, 5);
    }
    ((uint8_t *)(uintptr_t)c[1].bytes)[c[0].len_bytes] = 2;
    assert_int_equal(zsd_record_get_job(&c[1].key, c[1].bytes, c[1].len_bytes, &back, &committed,
                                        &prepared, &err),
                     -EBADMSG);
    err = (struct zb_err){ 0 };
    zn_txn_free(t);
}

/* Muon's engine is in the same number. That of a job on the processor is not there: the bytes of older records. */
static void job_engines(void **state)
{
    struct zsd_saved s = {
        .number = 7, .name = "j", .groups = 1, .optimizer = ZB_MUON, .moments = 1
    };
    struct zsd_saved back = { 0 };
    struct zn_txn *t = zn_txn_new();
    uint64_t committed, prepared;
    const struct zn_change *c;
    uint8_t *last;

    (void)state;
    s.offload_param = s.offload_optimizer = ZP_NVME;
    for (unsigned i = 0; i < 2u * ZB_MUON_ENGINE_END; i++) {
        s.image = i % 2 > 0;
        s.muon_engine = (enum zb_muon_engine)(i / 2);
        assert_int_equal(zsd_record_put_job(t, &s, 5, 0), 0);
    }
    c = t->changes;
    for (unsigned i = 0; i < 2u * ZB_MUON_ENGINE_END; i++) {
        assert_int_equal(c[i].len_bytes, c[0].len_bytes + (i > 0 ? 4 : 0));
        assert_int_equal(zsd_record_get_job(&c[i].key, c[i].bytes, c[i].len_bytes, &back,
                                            &committed, &prepared, &err),
                         0);
        assert_true(back.image == (i % 2 > 0) && back.muon_engine == (enum zb_muon_engine)(i / 2));
    }
    last = (uint8_t *)(uintptr_t)c[4].bytes + c[0].len_bytes;
    for (unsigned bad = 0; bad < 3; bad++) { /* no such engine; nothing; another optimizer */
        last[1] = bad == 0 ? ZB_MUON_ENGINE_END : bad == 1 ? 0 : ZB_MUON_GPU;
        if (bad == 2) {
            s.optimizer = ZB_ADAMW;
            s.muon_engine = ZB_MUON_GPU;
            s.image = false;
            assert_int_equal(zsd_record_put_job(t, &s, 5, 0), 0);
            c = t->changes;
        }
        assert_int_equal(zsd_record_get_job(&c[bad == 2 ? 6 : 4].key, c[bad == 2 ? 6 : 4].bytes,
                                            c[bad == 2 ? 6 : 4].len_bytes, &back, &committed,
                                            &prepared, &err),
                         -EBADMSG);
        err = (struct zb_err){ 0 };
    }
    zn_txn_free(t);
}

/* A store without features has the bytes that older daemons know, and one with a feature has more. An
 * unknown feature is refused by its name. */
static void store_features(void **state)
{
    struct zsd_store_record s = { .boot = 1, .next_id = 2, .next_job = 3 }, back;
    const size_t before = 1 + 3 * sizeof(uint64_t);
    struct zn_txn *plain = zn_txn_new(), *flagged = zn_txn_new();
    uint8_t other[128];
    size_t n;

    (void)state;
    assert_int_equal(zsd_record_put_store(plain, &s), 0);
    assert_int_equal(plain->changes[0].len_bytes, before);
    s.features = ZSD_FEATURE_NAMES_PER_USER;
    assert_int_equal(zsd_record_put_store(flagged, &s), 0);
    n = flagged->changes[0].len_bytes;
    assert_memory_equal(flagged->changes[0].bytes, plain->changes[0].bytes, before);
    assert_int_equal(zsd_record_get_store(plain->changes[0].bytes, before, &back, &err), 0);
    assert_int_equal(back.features, 0);
    assert_int_equal(zsd_record_get_store(flagged->changes[0].bytes, n, &back, &err), 0);
    assert_int_equal(back.features, ZSD_FEATURE_NAMES_PER_USER);
    assert_in_range(n, before + 1, sizeof(other));
    memcpy(other, flagged->changes[0].bytes, n);
    other[n - 1] = 'X'; /* the last letter of its name */
    err = (struct zb_err){ 0 };
    assert_int_equal(zsd_record_get_store(other, n, &back, &err), -EOPNOTSUPP);
    assert_non_null(strstr(err.text, "'job_names_per_useX'"));
    for (size_t cut = before + 1; cut < n; cut++)
        assert_int_equal(zsd_record_get_store(other, cut, &back, &err), -EBADMSG);
    zn_txn_free(plain);
    zn_txn_free(flagged);
}

/* Each prefix of a record, and a record with one byte more, is damaged. */
static void truncations(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(kinds); i++) {
        for (uint64_t round = 0; round < 5; round++) {
            struct zn_txn *t = zn_txn_new();
            const struct zn_change *c;
            uint64_t seed = round;
            uint8_t *longer;

            assert_int_equal(kinds[i].put(t, &seed), 0);
            c = &t->changes[0];
            for (size_t n = 0; n < c->len_bytes; n += n < 2000 ? 1 : 97)
                if (read_back(&kinds[i], &c->key, c->bytes, n) != -EBADMSG)
                    fail_msg("%s, %zu of %zu bytes", kinds[i].name, n, c->len_bytes);
            longer = calloc(c->len_bytes + 1, 1);
            memcpy(longer, c->bytes, c->len_bytes);
            if (read_back(&kinds[i], &c->key, longer, c->len_bytes + 1) != -EBADMSG)
                fail_msg("%s, and a byte more", kinds[i].name);
            longer[0] = 3;
            if (read_back(&kinds[i], &c->key, longer, c->len_bytes) != -EOPNOTSUPP ||
                !strstr(err.text, "has format 3, and zshardd " ZSHARD_VERSION " knows 2"))
                fail_msg("%s of the next format: %s", kinds[i].name, err.text);
            free(longer);
            zn_txn_free(t);
        }
    }
}

/* Random bytes, and records with a few bytes changed. */
static void hostile_bytes(void **state)
{
    const char *more = getenv("ZSHARD_RECORD_ROUNDS");
    unsigned long rounds = more ? strtoul(more, NULL, 10) : 3000, taken = 0;
    uint64_t seed = 99;

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(kinds); i++) {
        for (unsigned long n = 0; n < rounds; n++) {
            struct zn_txn *t = zn_txn_new();
            struct zn_change *c;
            unsigned changes = 1 + ztest_random(&seed) % 4;

            assert_int_equal(kinds[i].put(t, &seed), 0);
            c = &t->changes[0];
            if (n % 4 == 0)
                for (size_t b = 1; b < c->len_bytes && b < 300; b++)
                    c->bytes[b] = (uint8_t)ztest_random(&seed);
            for (unsigned k = 0; k < changes; k++) { /* mostly near the lengths */
                size_t room = ztest_random(&seed) % 2 ? c->len_bytes : zb_min_u64(c->len_bytes, 90);

                c->bytes[ztest_random(&seed) % room] =
                    ztest_random(&seed) % 2 ? 0xff : (uint8_t)ztest_random(&seed);
            }
            if (ztest_random(&seed) % 8 == 0)
                c->key.b = c->key.a = ztest_random(&seed) >> 1;
            taken += read_back(&kinds[i], &c->key, c->bytes, c->len_bytes) == 0;
            zn_txn_free(t);
        }
    }
    print_message("%lu of %lu were records all the same\n", taken, rounds * ZB_COUNT(kinds));
}

/* FORMAT.md, byte by byte: a frozen row of two pages, of which the second is short. */
static void row_bytes(void **state)
{
    static const uint8_t want[] = {
        2,                                              /* format */
        3,    0,    0, 0,                               /* unit */
        2,    0,    0, 0,                               /* rank */
        0,    0x20, 0, 0, 0,    0,    0, 0,             /* first */
        0,    0x30, 0, 0, 0,    0,    0, 0,             /* count */
        0,    0x20, 0, 0,                               /* elements of a page */
        0,    0x20, 0, 0, 0,    0x20, 0, 0,             /* param: 8 KiB, a checksum for each */
        1,    2,    3, 4, 5,    6,    7, 8,             /* where the first page is */
        0x11, 0,    0, 0, 0,    0,    0, 0, 9, 0, 0, 0, /* its generation and job */
        0xa1, 0,    0, 0, 0xa2, 0,    0, 0,             /* its checksums */
        0,    0,    1, 0, 0,    0,    0, 0,             /* the second */
        0x12, 0,    0, 0, 0,    0,    0, 0, 9, 0, 0, 0,
        0xa3, 0,    0, 0, 0,    0,    0, 0, 0, 0, 0, 0, /* state: none */
    };
    struct zsd_extent extents[] = { { UINT64_C(0x0807060504030201), 0x11, 9 }, { 65536, 0x12, 9 } };
    uint32_t crcs[] = { 0xa1, 0xa2, 0xa3, 77 };
    struct zsd_row r = { .id = 4,
                         .unit = 3,
                         .rank = 2,
                         .first = 8192,
                         .count = 12288,
                         .page_elems = 8192,
                         .npages = 2,
                         .planes[ZSD_SAVED_PARAM] = { .block_bytes = 8192,
                                                      .crc_bytes = 8192,
                                                      .crcs_per_page = 2,
                                                      .extents = extents,
                                                      .crcs = crcs } };
    struct zn_txn *t = zn_txn_new();
    const struct zn_change *c;

    (void)state;
    assert_int_equal(zsd_record_put_row(t, &r), 0);
    c = &t->changes[0];
    assert_int_equal(c->key.kind, 6);
    assert_int_equal(c->key.a, 4);
    assert_int_equal(c->key.b, 0);
    assert_int_equal(c->len_bytes, sizeof(want));
    assert_memory_equal(c->bytes, want, sizeof(want));
    assert_int_equal(read_back(&kinds[5], &c->key, c->bytes, c->len_bytes), 0);
    zn_txn_free(t);
}

/* A version is stored and removed together with its notes. */
static void version_notes(void **state)
{
    uint8_t data[] = { 1, 2, 3 };
    struct zsd_note notes[3] = {
        [1] = { .data = data, .total = 3, .iteration = 8 }, [2] = { .data = data }
    };
    struct zsd_version v = { .id = 77, .world = 3, .notes = notes, .job_note = notes[1] };
    static const struct zn_key keys[] = {
        { ZSD_RECORD_VERSION, 5, 77 },
        { ZSD_RECORD_NOTE, 77, ZSD_NOTE_OF_JOB },
        { ZSD_RECORD_NOTE, 77, 1 },
        { ZSD_RECORD_NOTE, 77, 2 },
    };
    struct zn_txn *t = zn_txn_new();

    (void)state;
    assert_int_equal(zsd_record_put_version(t, 5, &v), 0);
    assert_int_equal(zsd_record_del_version(t, 5, &v), 0);
    assert_int_equal(t->count, 2 * ZB_COUNT(keys));
    for (size_t i = 0; i < 2 * ZB_COUNT(keys); i++) {
        const struct zn_change *c = &t->changes[i];
        const struct zn_key *k = &keys[i % ZB_COUNT(keys)];

        assert_int_equal(c->op, i < ZB_COUNT(keys) ? ZN_CHANGE_PUT : ZN_CHANGE_DEL);
        assert_true(c->key.kind == k->kind && c->key.a == k->a && c->key.b == k->b);
    }
    zn_txn_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trips), cmocka_unit_test(store_features),
        cmocka_unit_test(job_images),  cmocka_unit_test(job_engines),
        cmocka_unit_test(truncations), cmocka_unit_test(hostile_bytes),
        cmocka_unit_test(row_bytes),   cmocka_unit_test(version_notes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
