/*
 * zgpt's checkpoints in a real daemon (examples/gpt/stash_daemon.h), in host memory and on NVMe.
 * Random sequences of calls, with a device that copies from and to slots after the calls, are
 * compared with what each entry was made of. Then the daemon is killed.
 */
#include "tests/integ/zinteg.h"

#include <errno.h>
#include <string.h>

#include "examples/gpt/stash_daemon.h"

#define ENTRIES 13u
#define FLOATS  5001u /* two pages of 4096, the second not full */
#define OPS     3000u

static const char *const options[] = { "--host-bytes", "8M",           "--nvme-bytes",
                                       "32M",          "--page-elems", "4096",
                                       "--ring-bytes", "256K",         NULL };

static float value(uint32_t entry, uint32_t round, uint32_t i)
{
    uint32_t bits = (entry * 2654435761u ^ round * 40503u ^ i) &
                    0xff7fffff; /* NaN is a value, too */
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static void fill(float *to, uint32_t entry, uint32_t round)
{
    for (uint32_t i = 0; i < FLOATS; i++)
        to[i] = value(entry, round, i);
}

static void check(const float *from, uint32_t entry, uint32_t round)
{
    for (uint32_t i = 0; i < FLOATS; i++) {
        float want = value(entry, round, i);

        if (memcmp(&from[i], &want, sizeof(want)) != 0)
            fail_msg("entry %u of round %u: element %u is another", entry, round, i);
    }
}

/* A pending copy of the device for a slot: it fills the slot, or reads it. */
struct copy {
    unsigned left; /* done when it is asked this many times; 0: nothing is pending */
    bool fills;
    float *at;
    uint32_t entry, round;
};

struct device {
    struct copy copies[GPT_STASH_SLOTS];
};

static void copy_do(struct copy *c)
{
    if (c->fills)
        fill(c->at, c->entry, c->round);
    else
        check(c->at, c->entry, c->round);
    c->left = 0;
}

static bool device_busy(void *arg, unsigned slot)
{
    struct copy *c = &((struct device *)arg)->copies[slot];

    if (c->left == 0)
        return false;
    if (--c->left > 0)
        return true;
    copy_do(c);
    return false;
}

struct fixture {
    struct gpt_stash *stash;
    struct device device;
    uint32_t round[ENTRIES]; /* 0: not kept */
    uint32_t rounds;
    uint64_t seed;
};

static uint32_t draw(struct fixture *x, uint32_t below)
{
    return (uint32_t)(ztest_random(&x->seed) >> 32) % below;
}

static void copy_later(struct fixture *x, unsigned slot, bool fills, float *at, uint32_t entry)
{
    if (x->device.copies[slot].left > 0) /* a device makes copies in order */
        copy_do(&x->device.copies[slot]);
    x->device.copies[slot] = (struct copy){ 1 + draw(x, 4), fills, at, entry, x->round[entry] };
}

static float *take(struct fixture *x, uint32_t entry, unsigned *slot)
{
    float *at = x->stash->ops->take(x->stash, entry, slot);

    assert_non_null(at);
    return at;
}

/* As a pass does: takes an entry, and may make another one meanwhile. */
static void pass(struct fixture *x, uint32_t in, uint32_t out)
{
    bool later = x->stash->busy != NULL;
    unsigned slot, to;
    float *from = NULL, *made;

    if (x->round[in] > 0)
        from = take(x, in, &slot);
    if (draw(x, 2) == 0)
        x->stash->ops->ahead(x->stash, draw(x, ENTRIES));
    if (in != out) {
        made = x->stash->ops->make(x->stash, out, &to);
        assert_non_null(made);
        assert_int_equal(x->device.copies[to].left, 0);
        x->round[out] = ++x->rounds;
        if (later)
            copy_later(x, to, true, made, out);
        else
            fill(made, out, x->round[out]);
        x->stash->ops->keep(x->stash, out);
    }
    if (!from)
        return;
    if (later)
        copy_later(x, slot, false, from, in);
    else
        check(from, in, x->round[in]);
    x->stash->ops->drop(x->stash, in);
}

static void open_stash(struct fixture *x, const struct zi_daemon *d, bool nvme)
{
    const struct gpt_stash_options o = { .socket = d->socket,
                                         .job = "train",
                                         .entries = ENTRIES,
                                         .entry_bytes = FLOATS * sizeof(float),
                                         .nvme = nvme };
    struct zb_err err = { 0 };

    if (gpt_stash_open(&x->stash, &o, &err) != 0)
        fail_msg("%s", err.text);
}

static void what_is_kept_comes_back(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool nvme = i & 1;
        struct fixture x = { .seed = 5 + (uint64_t)i };
        struct zi_daemon d = { 0 };
        uint64_t before;

        zi_start(&d, options);
        before = zi_used(&d, "nvme");
        open_stash(&x, &d, nvme);
        assert_true((zi_used(&d, "nvme") - before >= ENTRIES * 32768) == nvme);
        if (i & 2) {
            x.stash->busy = device_busy;
            x.stash->busy_arg = &x.device;
        }
        for (uint32_t op = 0; op < OPS; op++) {
            uint32_t entry = draw(&x, ENTRIES);

            pass(&x, entry, draw(&x, 3) == 0 ? entry : draw(&x, ENTRIES));
            if (draw(&x, 8) == 0) {
                x.stash->ops->forget(x.stash, entry);
                x.round[entry] = 0;
            }
            assert_true(gpt_stash_poll(x.stash));
        }
        gpt_stash_close(x.stash);
        zi_stop(&d);
    }
}

/* From then on nothing is made or taken, and there is an error message. */
static void a_daemon_that_dies(void **state)
{
    struct fixture x = { .seed = 1 };
    struct zb_err err = { 0 };
    struct zi_daemon d = { 0 };
    unsigned slot;

    (void)state;
    zi_start(&d, options);
    open_stash(&x, &d, true);
    for (uint32_t e = 0; e + 1 < ENTRIES; e++)
        pass(&x, e, e + 1);
    zi_kill(&d);
    while (gpt_stash_poll(x.stash))
        ;
    assert_null(x.stash->ops->take(x.stash, 1, &slot));
    assert_null(x.stash->ops->make(x.stash, 2, &slot));
    assert_int_equal(gpt_stash_error(x.stash, &err), -ENOTCONN);
    assert_non_null(strstr(err.text, "checkpoints of activations: "));
    gpt_stash_close(x.stash);
    zi_clean(&d);
}

static void what_does_not_fit_is_refused(void **state)
{
    const struct gpt_stash_options o = { .job = "train",
                                         .entries = 4096,
                                         .entry_bytes = FLOATS * sizeof(float) };
    struct gpt_stash_options mine = o;
    struct gpt_stash *stash = NULL;
    struct zb_err err = { 0 };
    struct zi_daemon d = { 0 };

    (void)state;
    zi_start(&d, options);
    mine.socket = d.socket;
    assert_int_equal(gpt_stash_open(&stash, &mine, &err), -ENOSPC);
    assert_non_null(strstr(err.text, "host_bytes that would work is"));
    assert_null(stash);
    zi_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_is_kept_comes_back, zi_teardown),
        cmocka_unit_test_teardown(a_daemon_that_dies, zi_teardown),
        cmocka_unit_test_teardown(what_does_not_fit_is_refused, zi_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
