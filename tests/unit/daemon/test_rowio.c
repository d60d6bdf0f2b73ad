/* Pages of rows on a real data file: read, verified, refused. */
#include "tests/unit/daemon/core_fixture.h"

#include "tests/ztest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvme/sim/engine_fault.h"

#define HOST (64u << 20)
#define TAIL 4096u /* elements of the second page */

struct rw {
    struct zsd_pio pio;
    struct zsd_row_read read;
    unsigned done;
    struct zb_err err;
};

static void rw_written(struct zsd_pio *pio, int rc)
{
    struct rw *x = zb_container_of(pio, struct rw, pio);

    assert_int_equal(rc, 0);
    pio->core->in_progress--;
    x->done++;
}

static void rw_read(struct zsd_row_read *r, const struct zb_err *err)
{
    struct rw *x = zb_container_of(r, struct rw, read);

    x->done++;
    if (err)
        x->err = *err;
}

static const char *const planes[] = { "parameters", "optimizer state" };
static const uint32_t elem_bytes[] = { 2, 10 };

/* A row of two pages, bf16, of unit 3 from its element 40960; its extents start at `at`. */
static struct zsd_row *row_make(uint64_t at)
{
    struct zsd_row *r = calloc(1, sizeof(*r));

    assert_non_null(r);
    *r = (struct zsd_row){ .id = 5, .refs = 1, .unit = 3, .first = 40960, .count = PAGE + TAIL };
    r->page_elems = PAGE;
    r->npages = 2;
    for (unsigned p = 0; p < ZSD_SAVED_PLANES; p++) {
        struct zsd_row_plane *plane = &r->planes[p];

        plane->block_bytes = ZB_BLOCK_ELEMS * elem_bytes[p];
        plane->crc_bytes = ZB_BLOCK_ELEMS * elem_bytes[p];
        plane->crcs_per_page = PAGE / ZB_BLOCK_ELEMS;
        plane->extents = calloc(2, sizeof(*plane->extents));
        plane->crcs = calloc(2 * plane->crcs_per_page, sizeof(*plane->crcs));
        assert_true(plane->extents && plane->crcs);
        for (unsigned i = 0; i < 2; i++, at += PAGE * 10)
            plane->extents[i] =
                (struct zsd_extent){ .at = at, .generation = 7 + 2 * p + i, .job = 9 };
    }
    return r;
}

/* Writes a page filled with `seed`, sealed for the row. */
static void page_write(struct world *w, struct zsd_row *r, enum zsd_saved_plane p, uint32_t page,
                       uint8_t *buf, uint64_t seed)
{
    const struct zn_page_id id = zsd_row_page_id(r, p, page);
    uint32_t bytes = zsd_row_page_bytes(r, p, page);
    struct rw x = { .pio.done = rw_written };

    for (uint32_t i = 0; i < bytes; i += 8)
        *(uint64_t *)(void *)(buf + i) = ztest_random(&seed);
    zn_page_seal(&id, buf, bytes, r->planes[p].crc_bytes,
                 r->planes[p].crcs + page * r->planes[p].crcs_per_page);
    x.pio.io = (struct zn_io){ .op = ZN_WRITE,
                               .buf = buf,
                               .len_bytes = bytes,
                               .off_bytes = ZN_DATA_START + r->planes[p].extents[page].at };
    w->daemon.core->in_progress++;
    zsd_pio_start(w->daemon.core, &x.pio);
    world_settle(w);
    assert_int_equal(x.done, 1);
}

static struct zb_err page_read(struct world *w, struct zsd_row *r, enum zsd_saved_plane p,
                               uint32_t page, uint8_t *buf)
{
    struct rw x = { .read = { .core = w->daemon.core,
                              .row = r,
                              .plane = p,
                              .page = page,
                              .buf = buf,
                              .done = rw_read } };

    zsd_row_read_start(&x.read, "j");
    assert_int_equal(x.done, 0); /* never from inside the call */
    world_settle(w);
    assert_int_equal(x.done, 1);
    return x.err;
}

static void row_done(struct zsd_row *r)
{
    r->refs = 0;
    zsd_row_free(r);
}

/* Every page; then everything that can be wrong with it. */
static void pages_are_verified(void **state)
{
    uint8_t *buf[2];
    struct world w;

    (void)state;
    world_open(&w, HOST, "threads", 1);
    for (int i = 0; i < 2; i++) {
        buf[i] = aligned_alloc(4096, PAGE * 10);
        assert_non_null(buf[i]);
    }
    for (unsigned p = 0; p < ZSD_SAVED_PLANES; p++)
        for (uint32_t page = 0; page < 2; page++) {
            struct zsd_row *r = row_make(0);
            struct zsd_extent *e = &r->planes[p].extents[page];
            char says[120];

            page_write(&w, r, p, page, buf[0], 1);
            memset(buf[1], 0, PAGE * 10);
            assert_int_equal(page_read(&w, r, p, page, buf[1]).code, 0);
            assert_memory_equal(buf[0], buf[1], zsd_row_page_bytes(r, p, page));

            (void)snprintf(says, sizeof(says),
                           "job 'j' unit 3, shard from element 40960: page %u of its %s", page,
                           planes[p]);
            for (unsigned wrong = 0; wrong < 6; wrong++) {
                struct zsd_extent was = *e;
                uint32_t *crc = r->planes[p].crcs + page * r->planes[p].crcs_per_page;
                struct zb_err err;

                e->generation += wrong == 0;
                e->job += wrong == 1;
                e->at += wrong == 2 ? 4096 : 0; /* misdirected */
                *crc ^= wrong == 3;
                r->first += wrong == 4 ? ZB_BLOCK_ELEMS : 0;
                r->unit += wrong == 5;
                err = page_read(&w, r, p, page, buf[1]);
                assert_int_equal(err.code, -EBADMSG);
                if (wrong < 4)
                    assert_memory_equal(err.text, says, strlen(says));
                *e = was;
                *crc ^= wrong == 3;
                r->first -= wrong == 4 ? ZB_BLOCK_ELEMS : 0;
                r->unit -= wrong == 5;
                assert_int_equal(page_read(&w, r, p, page, buf[1]).code, 0);
            }
            row_done(r);
        }
    free(buf[0]);
    free(buf[1]);
    world_close(&w);
}

static void devices_fail(void **state)
{
    struct zn_fault_plan plan = { .nth = 1, .nth_res = -EIO };
    struct zsd_row *r = row_make(0);
    uint8_t *buf = aligned_alloc(4096, PAGE * 10);
    struct zb_err err;
    struct world w;

    (void)state;
    assert_non_null(buf);
    world_open(&w, HOST, "threads", 1);
    page_write(&w, r, ZSD_SAVED_STATE, 1, buf, 2);
    assert_int_equal(zn_fault_install(w.daemon.engine, &plan), 0);
    err = page_read(&w, r, ZSD_SAVED_STATE, 1, buf);
    assert_int_equal(err.code, -EIO);
    assert_string_equal(err.text,
                        "job 'j' unit 3, shard from element 40960: page 1 of its optimizer state "
                        "on NVMe: Input/output error");
    assert_int_equal(page_read(&w, r, ZSD_SAVED_STATE, 1, buf).code, 0);
    row_done(r);
    free(buf);
    world_close(&w);
}

/* The page moves while it is read, and other data is written at its old place. */
static void a_page_moves(void **state)
{
    const uint64_t old = UINT64_C(1) << 20;
    struct zsd_row *r = row_make(0);
    struct zsd_extent *e = &r->planes[ZSD_SAVED_STATE].extents[0];
    uint8_t *buf[2];
    struct world w;

    (void)state;
    world_open(&w, HOST, "threads", 1);
    for (int i = 0; i < 2; i++) {
        buf[i] = aligned_alloc(4096, PAGE * 10);
        assert_non_null(buf[i]);
    }
    page_write(&w, r, ZSD_SAVED_STATE, 0, buf[0], 3);
    for (int moves = 0; moves < 2; moves++) {
        struct rw x = { .read = { .core = w.daemon.core,
                                  .row = r,
                                  .plane = ZSD_SAVED_STATE,
                                  .buf = buf[1],
                                  .done = rw_read } };
        struct zsd_extent was = *e;

        e->at = old;
        zsd_row_read_start(&x.read, "j");
        if (moves)
            *e = was;
        world_settle(&w);
        assert_int_equal(x.done, 1);
        assert_int_equal(x.err.code, moves ? 0 : -EBADMSG);
        assert_int_equal(w.daemon.stats.pages_corrupt, 1);
        *e = was;
    }
    assert_memory_equal(buf[0], buf[1], zsd_row_page_bytes(r, ZSD_SAVED_STATE, 0));
    row_done(r);
    free(buf[0]);
    free(buf[1]);
    world_close(&w);
}

/* A look keeps the struct, but not the places. */
static void looks_keep_the_struct(void **state)
{
    struct zsd_row *r = row_make(0);

    (void)state;
    zsd_row_look(r);
    zsd_row_look(r);
    zsd_row_look_away(r);
    assert_int_equal(r->looks, 1);
    r->refs = 0; /* its last holder released it, and its places */
    r->gone = true;
    assert_int_equal(r->planes[0].extents[0].job, 9);
    zsd_row_look_away(r); /* the sanitizer reports a leak */
    r = row_make(0);
    zsd_row_look(r);
    zsd_row_look_away(r);
    assert_int_equal(r->refs, 1);
    row_done(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_verified),
        cmocka_unit_test(devices_fail),
        cmocka_unit_test(a_page_moves),
        cmocka_unit_test(looks_keep_the_struct),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
