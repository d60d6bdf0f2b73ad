/*
 * Frozen units that are kept in blockwise int8, together with trained units. Values read from them
 * must be those that the kernels make of the initial values. Fetches must return the blocks, page
 * by page, wherever they are (host memory, NVMe, the emulated GPU), and after commits, a kill of
 * the daemon, another world, other page sizes, snapshots and clones. The expected bytes are
 * computed here with the kernels alone.
 */
#include "tests/integ/gpu_map.h"
#include "tests/integ/saved.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/plan.h"
#include "base/util.h"
#include "kernels/gpu.h"
#include "kernels/zk_page.h"

#define BLOCK 4096u

/* Every dtype; several pages and a short last one. The 8-bit units have the same size, and there is
 * one more of them than a rank has places in the ring; one has no tensor. */
#define COLD (13 * BLOCK - 77)
static const struct zc_tensor t0[] = { { "t0", 0, 1, { 7 * BLOCK + 100 }, 0, false } };
static const struct zc_tensor t1[] = { { "t1", 3, 1, { COLD - 3 }, ZC_GROUP_FROZEN, false } };
static const struct zc_unit units[SV_UNITS] = {
    { 0, "u0", 7 * BLOCK + 100, ZC_BF16, ZC_F32, false, false, t0, 1 },
    { 1, "u1", COLD, ZC_BF16, ZC_F32, true, true, t1, 1 },
    { 2, "u2", COLD, ZC_F32, ZC_F32, true, true, NULL, 0 },
    { 3, "u3", COLD, ZC_F16, ZC_F32, true, true, NULL, 0 },
    { 4, "u4", COLD, ZC_BF16, ZC_F32, true, true, NULL, 0 },
};

static const struct place {
    const char *name, *io;
    bool streamed; /* with the smallest possible host memory */
} places[] = { { "resident", "uring", false },
               { "streamed", "uring", true },
               { "streamed, threads", "threads", true } };

/* Values of both signs and many magnitudes: each group gets a scale of its own. */
static float value(uint64_t element)
{
    float size = 1.0f / (float)(1 + element / 256 % 50);

    return ((float)(element * 7919 % 2003) - 1001.0f) * size;
}

/* What a unit must hold: its blocks in order, and its elements in its dtype. */
static struct wanted {
    struct zb_layout layout;
    uint8_t *blocks;
    uint8_t *elems;
} wanted[SV_UNITS];

static int setup(void **state)
{
    const struct zk_ops *ops = NULL;

    (void)state;
    assert_int_equal(zk_select("ref", &ops, NULL), 0);
    sv_units = units;
    for (unsigned u = 0; u < SV_UNITS; u++) {
        struct wanted *w = &wanted[u];
        uint64_t n = zb_padded_elems(units[u].elems);
        float *masters = aligned_alloc(64, n * sizeof(float));
        struct zk_page page = { .count = n };

        if (!units[u].quantized) {
            free(masters);
            continue;
        }
        assert_int_equal(zb_layout_of((enum zb_dtype)units[u].dtype, ZB_F32, ZB_ADAMW,
                                      ZB_MOMENTS_F32, true, &w->layout, NULL),
                         0);
        zb_layout_quantize(&w->layout);
        page.param = w->blocks = aligned_alloc(64, n / BLOCK * ZB_Q8_BLOCK_BYTES);
        w->elems = aligned_alloc(64, n * sizeof(float));
        assert_true(masters && w->blocks && w->elems);
        for (uint64_t i = 0; i < n; i++)
            masters[i] = value(i);
        zk_page_init(ops, &w->layout, &page, masters);
        zk_page_read(ops, &w->layout, &page, ZK_PARAM, w->elems);
        free(masters);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (unsigned u = 0; u < SV_UNITS; u++) {
        free(wanted[u].blocks);
        free(wanted[u].elems);
    }
    return 0;
}

/* ---- comparing */

static uint64_t plane_bytes(uint64_t page, uint64_t count)
{
    return zb_plane_bytes(ZB_Q8_BLOCK_BYTES, page, count);
}

static void same(const char *when, unsigned u, const char *what, const void *is, const void *want,
                 uint64_t bytes)
{
    if (memcmp(is, want, bytes) != 0)
        fail_msg("%s: unit %u, %s differs", when, u, what);
}

/* Reads through staging, in parts: in the unit's dtype; fp32 units also as masters. */
static void read_same(const char *when, struct zi_rank *r, unsigned u, enum zc_what what)
{
    uint64_t page = zc_server(r->c)->page_elems, count = r->ranges[u].count;
    uint64_t room = r->job.staging_bytes / sizeof(float) / page * page;
    size_t size = zb_dtype_bytes((enum zb_dtype)units[u].dtype);

    for (uint64_t first = 0, n; first < count; first += n) {
        n = zb_min_u64(room, count - first);
        memset(r->job.staging, 0x5a, n * size);
        if (zc_read_wait(r->c, r->shards[u], what, first, n, r->job.staging) < 0)
            fail_msg("%s: read of unit %u: %s", when, u, zc_error(r->c));
        same(when, u, "what is read", r->job.staging,
             wanted[u].elems + (r->ranges[u].first + first) * size, n * size);
    }
}

/* The blocks of a shard, as a view shows them. */
static void blocks_same(const char *when, uint64_t page, const struct zc_range *range, unsigned u,
                        const uint8_t *view)
{
    static const uint8_t zeros[ZB_PAGE_ALIGN];

    for (uint64_t at = 0, n; at < range->count; at += n) {
        const uint8_t *is = view + plane_bytes(page, at);
        uint64_t used;

        n = zb_min_u64(page, range->count - at);
        used = zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, n);
        same(when, u, "a page that is fetched", is,
             wanted[u].blocks + zb_blocks_bytes(ZB_Q8_BLOCK_BYTES, range->first + at), used);
        same(when, u, "the end of a page", is + used, zeros,
             zb_page_bytes(ZB_Q8_BLOCK_BYTES, n) - used);
    }
}

static struct zk_gpu *device; /* this process's device, emulated */

/* Copies a view of GPU memory. */
static void *peek(const struct zk_gpu_mem *mem, const struct zc_view *view)
{
    struct zk_gpu_stream *stream = NULL;
    struct zb_err err = { 0 };
    void *copy = malloc(view->bytes);
    int rc = zk_gpu_stream_new(device, &stream, &err);

    assert_non_null(copy);
    if (rc == 0)
        rc = zk_gpu_copy(stream, ZK_GPU_TO_HOST, copy,
                         (const char *)zk_gpu_addr(mem) + view->offset, view->bytes, &err);
    if (rc == 0)
        rc = zk_gpu_stream_sync(stream, &err);
    zk_gpu_stream_free(stream);
    if (rc < 0)
        fail_msg("copy: %s", err.text);
    return copy;
}

/* mem: the job's parameters on the GPU, mapped here. */
static void fetch_same(const char *when, struct zi_rank *ranks, unsigned r, unsigned u,
                       const struct zk_gpu_mem *mem)
{
    uint64_t page = zc_server(ranks[0].c)->page_elems;
    const struct zc_range *range = &ranks[r].ranges[u];
    struct zc_view view;
    void *copy = NULL;

    if (zc_fetch_wait(ranks[0].c, &ranks[r].shards[u], 1, 0, ZI_FETCH_MS, &view) < 0)
        fail_msg("%s: fetch of unit %u: %s", when, u, zc_error(ranks[0].c));
    assert_int_equal(view.bytes, plane_bytes(page, range->count));
    assert_true((view.data == NULL) == (mem != NULL));
    if (mem)
        copy = peek(mem, &view);
    blocks_same(when, page, range, u, copy ? copy : view.data);
    free(copy);
    assert_int_equal(zc_release(ranks[0].c, &ranks[r].shards[u], 1), 0);
}

static void all_same(const char *when, struct zi_rank *ranks, unsigned world,
                     const struct zk_gpu_mem *mem)
{
    for (unsigned r = 0; r < world; r++)
        for (unsigned u = 0; u < SV_UNITS; u++) {
            if (!ranks[r].shards[u] || !units[u].quantized)
                continue;
            read_same(when, &ranks[r], u, ZC_PARAM);
            if (units[u].dtype == ZC_F32)
                read_same(when, &ranks[r], u, ZC_MASTER);
            fetch_same(when, ranks, r, u, mem);
        }
}

/* Compares the rows of the shards, and the tiers, with the formula. */
static void bytes_right(struct zi_rank *ranks, unsigned world, bool streamed)
{
    uint64_t page = zc_server(ranks[0].c)->page_elems, params = 0, on_nvme = 0;
    bool there = ranks[0].place.gpu_params > 0;
    struct zc_shard_row *rows = NULL;
    size_t n = 0, seen = 0;

    for (unsigned r = 0; r < world; r++)
        for (unsigned u = 0; u < SV_UNITS; u++)
            if (ranks[r].shards[u])
                params += units[u].quantized ? plane_bytes(page, ranks[r].ranges[u].count)
                                             : ranks[r].ranges[u].count *
                                                   zb_dtype_bytes((enum zb_dtype)units[u].dtype);
    assert_int_equal(zc_list_wait(ranks[0].c, sv_name, &rows, &n), 0);
    for (size_t i = 0; i < n; i++) {
        if (!units[rows[i].unit[1] - '0'].quantized)
            continue;
        seen++;
        on_nvme += rows[i].nvme_bytes;
        assert_int_equal(rows[i].host_bytes + rows[i].nvme_bytes,
                         there ? 0 : plane_bytes(page, rows[i].count));
    }
    assert_true(seen >= 4);
    zc_rows_free(rows);
    assert_true((on_nvme > 0) == streamed);
    assert_true((ranks[0].place.ring_bytes > 0) == streamed);
    if (there)
        assert_int_equal(ranks[0].place.gpu_params, params);
    else if (!streamed)
        assert_int_equal(zi_tier(ranks[0].c, "host").params, params);
}

/* Reads random ranges, independent of block and page bounds. */
static void saved_same(const char *when, const struct zi_daemon *d, const char *job,
                       const char *snapshot)
{
    struct zc_client *c = zi_client(d);
    struct zc_reader reader;
    uint64_t seed = 7;

    if (zc_reader_open_wait(c, job, snapshot, 512 << 10, &reader) < 0)
        fail_msg("%s: reader: %s", when, zc_error(c));
    for (unsigned u = 0; u < SV_UNITS; u++) {
        size_t size = zb_dtype_bytes((enum zb_dtype)units[u].dtype);
        struct zc_unit *unit = NULL;

        assert_int_equal(zc_reader_unit_wait(c, reader.id, u, &unit), 0);
        assert_true(unit->frozen == units[u].frozen && unit->quantized == units[u].quantized);
        zc_rows_free(unit);
        for (unsigned k = 0; k < 40 && units[u].quantized; k++) {
            enum zc_what what = units[u].dtype == ZC_F32 && k % 2 ? ZC_MASTER : ZC_PARAM;
            uint64_t first = k == 0 ? 0 : ztest_random(&seed) % units[u].elems;
            uint64_t count = units[u].elems - first;

            if (k > 1)
                count = 1 + ztest_random(&seed) % count;
            memset(reader.staging, 0x5a, count * size + 64);
            if (zc_reader_read_wait(c, reader.id, u, what, first, count, reader.staging) < 0)
                fail_msg("%s: reader: %s", when, zc_error(c));
            same(when, u, "what a reader reads", reader.staging, wanted[u].elems + first * size,
                 count * size);
            assert_int_equal(((const uint8_t *)reader.staging)[count * size], 0x5a);
        }
    }
    assert_int_equal(zc_reader_read_wait(c, reader.id, 1, ZC_MASTER, 0, 1, reader.staging),
                     -EINVAL); /* bf16 units have none */
    zc_close(c);
}

static void fill(struct zi_rank *ranks, unsigned world)
{
    for (unsigned r = 0; r < world; r++)
        for (unsigned u = 0; u < SV_UNITS; u++)
            if (ranks[r].shards[u])
                zi_write_all(&ranks[r], u, value);
}

/* Opens the job, or attaches to it, with this limit: 0, or -ENOSPC. */
static int try(struct zi_rank *ranks, unsigned world, const struct zi_daemon *d, bool attach,
               uint64_t limit)
{
    struct zc_job_options o = sv_job(0);

    o.world = world;
    o.attach = attach;
    o.host_bytes_max = limit;
    for (o.rank = 0; o.rank < world; o.rank++) {
        o.takeover = attach && o.rank == 0;
        o.epoch = attach && o.rank > 0 ? ranks[0].job.epoch : 0;
        if (zi_open(&ranks[o.rank], d, &o) < 0)
            fail_msg("open: %s", zc_error(ranks[o.rank].c));
        zi_define(&ranks[o.rank], units, SV_UNITS, world);
    }
    return zi_ready(ranks, world);
}

/* streamed: with the least host memory that the daemon reports. */
static void begin(struct zi_rank *ranks, unsigned world, const struct zi_daemon *d, bool attach,
                  bool streamed)
{
    static const char mark[] = "the smallest host_bytes_max that would work is ";
    uint64_t limit = 0;
    const char *at;

    if (streamed) {
        assert_int_equal(try(ranks, world, d, attach, 1 + world * (512 << 10)), -ENOSPC);
        at = strstr(ranks[0].event_text, mark);
        assert_non_null(at);
        limit = strtoull(at + strlen(mark), NULL, 10);
        sv_hang_up(ranks, world);
    }
    if (try(ranks, world, d, attach, limit) < 0)
        fail_msg("ready: %s", ranks[0].event_text);
    if (!attach)
        fill(ranks, world);
    bytes_right(ranks, world, streamed);
}

/* ---- the tests */

static void live(const struct place *place)
{
    struct zc_snapshot snapshot = { .job = sv_name, .name = "s" };
    struct zi_rank ranks[SV_WORLD_MAX];
    struct zi_daemon d = { 0 };
    struct zc_snapshot_row row;

    print_message("%s\n", place->name);
    sv_options[11] = place->io;
    sv_options[SV_OPTION_PAGE] = "8192";
    zi_start(&d, sv_options);
    begin(ranks, 2, &d, false, place->streamed);
    all_same("at first", ranks, 2, NULL);
    fill(ranks, 2); /* once more, before anything is saved */
    sv_step(ranks, 2, 1, ZC_COMMIT_NO);
    all_same("a step", ranks, 2, NULL);
    sv_step(ranks, 2, 2, ZC_COMMIT_STEP);
    all_same("a commit", ranks, 2, NULL);
    saved_same("a commit", &d, sv_name, NULL);
    assert_int_equal(zc_snapshot_wait(ranks[0].c, &snapshot, &row), 0);
    sv_step(ranks, 2, 3, ZC_COMMIT_STEP);
    zi_fsck_online(ranks[0].c);
    zi_kill(&d);
    sv_hang_up(ranks, 2);
    assert_int_equal(zi_fsck(&d), 0);

    zi_start_again(&d, sv_options);
    saved_same("another daemon", &d, sv_name, NULL);
    begin(ranks, 2, &d, true, place->streamed);
    all_same("attached", ranks, 2, NULL);
    sv_step(ranks, 2, 4, ZC_COMMIT_STEP);
    assert_int_equal(zc_clone_wait(ranks[0].c, sv_name, "s", "copy", &row), 0);
    zi_kill(&d);
    sv_hang_up(ranks, 2);

    /* another world, and another page size */
    sv_options[SV_OPTION_PAGE] = "12288";
    zi_start_again(&d, sv_options);
    saved_same("the snapshot", &d, sv_name, "s");
    saved_same("the clone", &d, "copy", NULL);
    begin(ranks, 3, &d, true, place->streamed);
    all_same("cut anew", ranks, 3, NULL);
    sv_step(ranks, 3, 5, ZC_COMMIT_STEP);
    saved_same("cut anew", &d, sv_name, NULL);
    zi_close(ranks, 3);
    begin(ranks, 1, &d, true, place->streamed); /* from memory */
    all_same("cut from memory", ranks, 1, NULL);
    sv_step(ranks, 1, 6, ZC_COMMIT_STEP);
    saved_same("cut from memory", &d, sv_name, NULL);
    zi_close(ranks, 1);
    zi_end(&d);
    assert_int_equal(zi_fsck(&d), 0);
    zi_clean(&d);
    sv_options[SV_OPTION_PAGE] = "8192";
}

static void wherever_they_live(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(places); i++)
        live(&places[i]);
}

/* On the GPU the blocks are the same. */
static void on_the_gpu(void **state)
{
    static const char *options[24];
    struct zi_rank ranks[SV_WORLD_MAX];
    struct zi_daemon d = { 0 };
    struct zk_gpu_mem *mem;
    struct zb_err err = { 0 };
    unsigned n = 0;

    (void)state;
    if (zk_gpu_open("emulated:16M:::4K", 0, &device, &err) < 0)
        fail_msg("%s", err.text);
    for (; sv_options[n]; n++)
        options[n] = sv_options[n];
    options[n++] = "--gpu-bytes";
    options[n++] = "8M";
    options[n++] = "--gpu";
    options[n++] = "emulated:16M:::4K";
    sv_param = ZC_GPU;
    sv_device = zk_gpu_info(device)->id;
    for (unsigned world = 1; world < 4; world++) { /* the same world once more, and others */
        options[SV_OPTION_PAGE] = world < 3 ? "8192" : "12288";
        if (world == 1)
            zi_start(&d, options);
        else
            zi_start_again(&d, options);
        n = world == 1 ? 2 : world;
        begin(ranks, n, &d, world > 1, false);
        assert_true(ranks[0].place.gpu_params > 0);
        mem = gpu_map(device, &ranks[0]);
        all_same("there", ranks, n, mem);
        sv_step(ranks, n, world, ZC_COMMIT_STEP);
        all_same("a step there", ranks, n, mem);
        saved_same("saved from there", &d, sv_name, NULL);
        zk_gpu_free(mem);
        zi_kill(&d);
        sv_hang_up(ranks, n);
        assert_int_equal(zi_fsck(&d), 0);
    }
    zi_start_again(&d, sv_options); /* the same without a GPU */
    begin(ranks, 2, &d, true, false);
    all_same("without", ranks, 2, NULL);
    zi_close(ranks, 2);
    zi_stop(&d);
    sv_param = 0;
    sv_device = NULL;
    zk_gpu_close(device);
}

static void says(struct zc_client *c, int rc, int want, const char *part)
{
    if (rc != want || !strstr(zc_error(c), part))
        fail_msg("%d, '%s': not %d with '%s'", rc, zc_error(c), want, part);
}

static void what_is_refused(void **state)
{
    struct zc_push push = { .step = 2, .dtype = ZC_F32, .count = 8192 };
    struct zc_job_options o = sv_job(0);
    struct zi_daemon d = { 0 };
    struct zi_rank r, other = { 0 };
    struct zc_unit unit = units[1];

    (void)state;
    zi_start(&d, sv_options);
    begin(&r, 1, &d, false, false);
    sv_step(&r, 1, 1, ZC_COMMIT_STEP);
    push.shard = r.shards[1];
    push.staged = r.job.staging;
    says(r.c, zc_push_wait(r.c, &push), -EINVAL, "is frozen");
    says(r.c, zc_write_wait(r.c, r.shards[1], ZC_MASTER, 0, 8192, r.job.staging), -EINVAL,
         "is frozen, and was saved");
    says(r.c, zc_read_wait(r.c, r.shards[1], ZC_MASTER, 0, 8192, r.job.staging), -EINVAL,
         "nothing of kind 2");
    says(r.c, zc_read_wait(r.c, r.shards[2], ZC_EXP_AVG, 0, 8192, r.job.staging), -EINVAL,
         "nothing of kind 3");
    zi_close(&r, 1);

    /* a new job; and one with another setting */
    o.name = "other";
    o.world = 1;
    assert_int_equal(zi_open(&other, &d, &o), 0);
    unit.index = 0;
    unit.frozen = false;
    says(other.c, zc_unit_define_wait(other.c, other.job.id, &unit), -EINVAL,
         "'u1' is quantized but not frozen");
    zi_close(&other, 1);
    o = sv_job(0);
    o.world = 1;
    o.attach = true;
    assert_int_equal(zi_open(&other, &d, &o), 0);
    assert_int_equal(zi_unit_define(&other, &units[0]), 0);
    unit = units[1];
    unit.quantized = false;
    says(other.c, zi_unit_define(&other, &unit), -EINVAL,
         "is frozen and quantized, and rank 0 defines it as frozen");
    assert_int_equal(zi_unit_define(&other, &units[1]), 0);
    zi_close(&other, 1);
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(wherever_they_live, zi_teardown),
        cmocka_unit_test_teardown(on_the_gpu, zi_teardown),
        cmocka_unit_test_teardown(what_is_refused, zi_teardown),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
