/*
 * A rank has the parameter arena mapped writable, and writes to it while pages are saved: it only
 * spoils its own parameters. A page of a commit matches its checksum, whenever the rank writes.
 *
 * The rank writes at the worst time: when a page has been sealed, but its transfer has not begun.
 */
#include "tests/unit/daemon/saved_fixture.h"

#include "tests/ztest.h"

#include <string.h>
#include <unistd.h>

void __real_zsd_pio_start(struct zsd_core *core, struct zsd_pio *pio);
void __wrap_zsd_pio_start(struct zsd_core *core, struct zsd_pio *pio);

static struct {
    struct zsd_job *job; /* NULL: no rank writes */
    unsigned times;
} rank;

void __wrap_zsd_pio_start(struct zsd_core *core, struct zsd_pio *pio)
{
    if (rank.job && pio->io.op == ZN_WRITE) {
        memset(rank.job->arena.base, (int)(rank.times++ | 1), rank.job->arena_bytes);
    }
    __real_zsd_pio_start(core, pio);
}

/* The rank leaves and rejoins. */
static void again(struct saved_world *s, bool writable)
{
    const struct open_args attach = { .keep = true, .durable = true, .attach = true };

    client_gone(&s->w, 0);
    world_settle(&s->w);
    s->w.writable = writable;
    if (job_open_with(&s->w, 0, &attach) != 0 || job_define(&s->w, 0, s->dtype) != 0)
        fail_msg("%s", answers[0].text);
}

static void step(struct saved_world *s)
{
    struct client *c = &s->w.clients[0];
    Zp__Step q = ZP__STEP__INIT;
    Zp__GroupScalars g = ZP__GROUP_SCALARS__INIT, *groups[] = { &g };

    memset(c->staging, 0, STAGED * sizeof(float));
    for (uint32_t u = 0; u < UNITS; u++) {
        Zp__Push p = ZP__PUSH__INIT;

        p.shard = c->shards[u];
        p.step = 1;
        p.mode = 1;
        p.dtype = ZB_F32;
        p.count = zb_padded_elems(unit_elems[u]);
        assert_int_equal(call(&s->w, 0, zsd_push, &p), 0);
    }
    q.job = c->job;
    q.step = 1;
    q.scale = 1;
    q.groups = groups;
    q.n_groups = 1;
    q.commit = ZSD_COMMIT;
    g.lr = 1e-3;
    g.beta1 = g.beta2 = 0.5;
    g.eps = 1e-8;
    if (call(&s->w, 0, zsd_step, &q) != 0)
        fail_msg("%s", answers[0].text);
}

/* The number of pages of the newest commit whose checksums differ. */
static uint64_t bad_pages(struct saved_world *s)
{
    Zp__Scrub q = ZP__SCRUB__INIT;
    Zp__ScrubReply *r = NULL;
    uint64_t now = zb_now_ns(), bad;

    s->w.clients[1].conn.uid = geteuid();
    q.action = 1; /* start */
    assert_int_equal(call(&s->w, 1, zsd_scrub, &q), 0);
    q.action = 0; /* status */
    for (int i = 0; i < 100000 && (!r || strcmp(r->state, "running") == 0); i++) {
        zp__scrub_reply__free_unpacked(r, NULL);
        zsd_core_tick(&s->w.daemon, now += 20000000);
        assert_int_equal(call(&s->w, 1, zsd_scrub, &q), 0);
        r = zp__scrub_reply__unpack(NULL, answers[1].len, answers[1].bytes);
        assert_non_null(r);
    }
    assert_string_equal(r->state, "done");
    assert_int_equal(r->bytes, saved_job(s)->committed->bytes);
    bad = r->bad_pages;
    zp__scrub_reply__free_unpacked(r, NULL);
    return bad;
}

static void commits_are_what_was_sealed(void **state)
{
    static const struct {
        enum zb_dtype dtype;
        uint64_t host_bytes;
    } rows[] = {
        { ZB_F32, SAVED_HOST },
        { ZB_BF16, SAVED_HOST },
        { ZB_F32, SAVED_TIGHT },
        { ZB_BF16, SAVED_TIGHT },
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++)
        for (int steps = 0; steps < 2; steps++) {
            struct saved_world s;

            saved_open(&s, rows[i].host_bytes, rows[i].dtype, 2);
            again(&s, true);
            again(&s, false); /* it still has its mapping */
            rank.job = job_of(&s.w, 0);
            rank.times = 0;
            if (steps)
                step(&s);
            else
                saved_commit(&s, 2);
            rank.job = NULL;
            assert_true(rank.times > 0);
            assert_int_equal(bad_pages(&s), 0);
            saved_close(&s);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commits_are_what_was_sealed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
