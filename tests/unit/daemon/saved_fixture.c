#include "tests/unit/daemon/saved_fixture.h"

#include "tests/ztest.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void saved_read_truth(struct saved_world *s)
{
    for (uint32_t u = 0; u < UNITS; u++)
        for (enum zk_what what = ZK_PARAM; what <= ZK_EXP_AVG_SQ; what++) {
            Zp__Read q = ZP__READ__INIT;
            uint64_t bytes = zb_padded_elems(unit_elems[u]) *
                             (what == ZK_PARAM ? zb_dtype_bytes(s->dtype) : sizeof(float));

            q.shard = s->w.clients[0].shards[u];
            q.count = zb_padded_elems(unit_elems[u]);
            q.what = what;
            assert_int_equal(call(&s->w, 0, zsd_read, &q), 0);
            s->truth[u][what] = realloc(s->truth[u][what], bytes);
            assert_non_null(s->truth[u][what]);
            memcpy(s->truth[u][what], s->w.clients[0].staging, bytes);
        }
}

void saved_commit(struct saved_world *s, uint64_t salt)
{
    struct client *c = &s->w.clients[0];
    Zp__Commit q = ZP__COMMIT__INIT;

    for (uint32_t u = 0; u < UNITS; u++)
        for (uint32_t what = ZK_MASTER; what <= ZK_EXP_AVG_SQ; what++) {
            Zp__Write m = ZP__WRITE__INIT;

            m.shard = c->shards[u];
            m.count = zb_padded_elems(unit_elems[u]);
            m.what = what;
            for (uint64_t e = 0; e < m.count; e++) {
                uint64_t seed = salt << 50 ^ (uint64_t)what << 40 ^ (uint64_t)u << 32 ^ e;

                ((float *)(void *)c->staging)[e] = (float)(ztest_random(&seed) >> 1) * 0x1p-63f;
            }
            assert_int_equal(call(&s->w, 0, zsd_write, &m), 0);
        }
    saved_read_truth(s);
    q.job = c->job;
    q.what = ZSD_COMMIT;
    if (call(&s->w, 0, zsd_commit, &q) != 0)
        fail_msg("%s", answers[0].text);
}

void saved_open(struct saved_world *s, uint64_t host_bytes, enum zb_dtype dtype, uint32_t nclients)
{
    const struct open_args args = {
        .keep = true,
        .durable = true,
        .host_bytes_max = host_bytes - (1 << 20) /* the rest is for a reader's staging */
    };
    struct zb_err err = { 0 };

    memset(s, 0, sizeof(*s));
    world_open(&s->w, host_bytes, "threads", nclients);
    (void)snprintf(s->catalog, sizeof(s->catalog), "%s.catalog", s->w.path);
    s->w.daemon.catalog_path = s->catalog;
    if (zsd_store_open(s->w.daemon.core, &err) != 0)
        fail_msg("%s", err.text);
    s->dtype = dtype;
    assert_int_equal(zb_layout_of(dtype, ZB_F32, ZB_ADAMW, ZB_MOMENTS_F32, false, &s->layout, &err),
                     0);
    if (job_open_with(&s->w, 0, &args) != 0)
        fail_msg("%s", answers[0].text);
    if (job_define(&s->w, 0, dtype) != 0)
        fail_msg("%s", answers[0].text);
    saved_commit(s, 1);
}

static void saved_gone(struct saved_world *s)
{
    char path[sizeof(s->catalog) + 8];

    (void)unlink(s->catalog);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), "%s%s", s->catalog, i == 0 ? "-wal" : "-journal");
        (void)unlink(path);
    }
    for (uint32_t u = 0; u < UNITS; u++)
        for (int what = 0; what < 5; what++)
            free(s->truth[u][what]);
}

void saved_close(struct saved_world *s)
{
    world_close(&s->w);
    saved_gone(s);
}

void saved_kill(struct saved_world *s)
{
    world_kill(&s->w);
    saved_gone(s);
}

struct zsd_saved *saved_job(struct saved_world *s)
{
    struct zsd_saved *saved = zsd_saved_by_name(s->w.daemon.core, 1000, "j");

    assert_non_null(saved);
    return saved;
}

void page_damage(struct saved_world *s, const struct zsd_row *r, enum zsd_saved_plane p,
                 uint32_t page)
{
    uint64_t at = ZN_DATA_START + r->planes[p].extents[page].at +
                  zsd_row_page_bytes(r, p, page) / 2;
    int fd = open(s->w.path, O_RDWR);
    uint8_t byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    (void)close(fd);
}
