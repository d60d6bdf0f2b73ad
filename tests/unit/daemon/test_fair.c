/* Which flow is next: shares, late arrivals, no credit for idleness, urgent turns and their
 * limit. */
#include "tests/ztest.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/run/fair.h"

#define PAGE  ZB_MIB
#define FLOWS 4u
#define TURNS 4096u

struct item {
    struct zsd_turn turn;
    unsigned flow;
    uint64_t bytes;
};

struct line {
    struct zsd_fair fair;
    struct zsd_flow flows[FLOWS];
    uint32_t shares[FLOWS];
    uint64_t taken[FLOWS]; /* bytes */
    struct item items[TURNS];
    unsigned nitems;
};

static struct line x;

static void line_init(void)
{
    memset(&x, 0, sizeof(x));
    zsd_fair_init(&x.fair);
    for (unsigned i = 0; i < FLOWS; i++) {
        zsd_flow_init(&x.flows[i]);
        x.shares[i] = ZSD_SHARE_DEFAULT;
    }
}

static void push(unsigned flow, uint64_t bytes, bool urgent)
{
    struct item *item = &x.items[x.nitems++ % TURNS];

    *item = (struct item){ .flow = flow, .bytes = bytes };
    zsd_fair_push(&x.fair, &x.flows[flow], &item->turn, bytes, x.shares[flow], urgent);
}

/** Takes the next one; FLOWS: none waits. */
static unsigned take(void)
{
    struct zsd_turn *turn = zsd_fair_next(&x.fair);
    struct item *item = zb_container_of(turn, struct item, turn);

    if (!turn)
        return FLOWS;
    zsd_fair_take(&x.fair, turn);
    x.taken[item->flow] += item->bytes;
    return item->flow;
}

/** Takes n turns of PAGE; each of the flows in the mask always has more in line. */
static void run(unsigned mask, unsigned n)
{
    memset(x.taken, 0, sizeof(x.taken));
    while (n-- > 0) {
        for (unsigned i = 0; i < FLOWS; i++)
            if (mask >> i & 1 && zb_list_empty(&x.flows[i].rest))
                push(i, PAGE, false);
        (void)take();
    }
}

static void drain(void)
{
    while (take() != FLOWS)
        ;
}

static const struct {
    const char *name;
    uint32_t shares[FLOWS]; /* 0: absent */
    unsigned expected[FLOWS];
} share_cases[] = {
    { "alone", { 1 }, { 1200 } },
    { "two of one share", { 100, 100 }, { 600, 600 } },
    { "three to one", { 300, 100 }, { 900, 300 } },
    { "one to three", { 50, 150 }, { 300, 900 } },
    { "four", { 100, 200, 300, 600 }, { 100, 200, 300, 600 } },
    { "the least and the greatest", { 1, 10000 }, { 0, 1200 } },
};

static void shares_are_kept(void **state)
{
    (void)state;
    for (size_t c = 0; c < ZB_COUNT(share_cases); c++) {
        unsigned mask = 0;

        line_init();
        for (unsigned i = 0; i < FLOWS; i++) {
            x.shares[i] = share_cases[c].shares[i];
            mask |= (x.shares[i] > 0) << i;
        }
        run(mask, 1200);
        for (unsigned i = 0; i < FLOWS; i++) {
            long off = (long)(x.taken[i] / PAGE) - (long)share_cases[c].expected[i];

            if (labs(off) > 2)
                fail_msg("%s: flow %u has %llu pages, not %u", share_cases[c].name, i,
                         (unsigned long long)(x.taken[i] / PAGE), share_cases[c].expected[i]);
        }
        drain();
    }
}

/** Shares count bytes, not turns: one flow's turns are 16 times as large. */
static void large_turns_count_as_much(void **state)
{
    (void)state;
    line_init();
    for (unsigned i = 0; i < 1024; i++)
        push(0, PAGE / 16, false);
    for (unsigned i = 0; i < 64; i++)
        push(1, PAGE, false);
    while (x.taken[0] + x.taken[1] < 64 * PAGE)
        (void)take();
    assert_in_range(x.taken[0], 31 * PAGE, 33 * PAGE);
    drain();
}

static void order_within_a_flow(void **state)
{
    (void)state;
    line_init();
    for (unsigned i = 0; i < 10; i++) {
        push(0, PAGE, false);
        push(1, 3 * PAGE, false);
    }
    for (unsigned i[2] = { 0, 0 }, n = 0; n < 20; n++) {
        struct zsd_turn *turn = zsd_fair_next(&x.fair);
        unsigned flow = take();

        assert_ptr_equal(turn, &x.items[2 * i[flow]++ + flow].turn);
    }
    assert_true(zb_list_empty(&x.fair.flows));
    assert_null(zsd_fair_next(&x.fair));
}

/** A flow that arrives late is served like the others from then on: neither their past nor its own
 * absence counts. */
static void nothing_is_saved_up(void **state)
{
    (void)state;
    line_init();
    run(1, 1000);
    run(1 | 2, 100);
    assert_in_range(x.taken[1] / PAGE, 49, 51);
    drain();
    run(1, 1000); /* flow 1 was idle for a long time, again */
    run(1 | 2, 100);
    assert_in_range(x.taken[1] / PAGE, 49, 51);
    drain();
    run(2, 5);
    run(1 | 2 | 4, 300); /* a flow that was alone meanwhile owes nothing */
    for (unsigned i = 0; i < 3; i++)
        assert_in_range(x.taken[i] / PAGE, 98, 102);
    drain();
}

/** A flow that comes and goes gets no more than one that stays. */
static void leaving_gains_nothing(void **state)
{
    uint64_t came = 0, stayed = 0;

    (void)state;
    line_init();
    for (unsigned i = 0; i < 500; i++) {
        if (zb_list_empty(&x.flows[0].rest)) {
            push(0, PAGE, false);
            push(0, PAGE, false);
        }
        if (i % 3 == 0 && zb_list_empty(&x.flows[1].node))
            push(1, PAGE, false);
        memset(x.taken, 0, sizeof(x.taken));
        (void)take();
        stayed += x.taken[0];
        came += x.taken[1];
    }
    assert_true(came <= stayed);
    drain();
}

static void a_share_changes(void **state)
{
    (void)state;
    line_init();
    run(1 | 2, 100);
    x.shares[0] = 300;
    run(1 | 2, 400);
    assert_in_range(x.taken[0] / PAGE, 298, 302);
    drain();
}

/** Urgent turns go first, and are charged. */
static void urgent_first_but_paid(void **state)
{
    (void)state;
    line_init();
    for (unsigned i = 0; i < 40; i++) {
        push(0, PAGE, false);
        push(1, PAGE, false);
    }
    for (unsigned i = 0; i < 16; i++)
        push(0, PAGE, true);
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(take(), 0); /* even before other turns of the same flow */
    for (unsigned i = 0; i < 16; i++)
        assert_int_equal(take(), 1); /* the turns that waited for these */
    run(1 | 2, 40);
    assert_in_range(x.taken[0] / PAGE, 19, 21);
    drain();
}

/** Shares also count between urgent turns. */
static void urgent_ones_share(void **state)
{
    (void)state;
    line_init();
    x.shares[1] = 300;
    for (unsigned i = 0; i < 400; i++) {
        push(0, PAGE, true);
        push(1, PAGE, true);
    }
    for (unsigned i = 0; i < 200; i++)
        (void)take();
    assert_in_range(x.taken[0] / PAGE, 48, 52);
    drain();
}

/** A flood of urgent turns delays the others by ZSD_URGENT_BYTES, once; then they share. */
static void urgent_ones_starve_nobody(void **state)
{
    unsigned first = 0, others = 0;

    (void)state;
    line_init();
    for (unsigned n = 0; n < 1000; n++) {
        unsigned flow;

        if (zb_list_empty(&x.flows[0].urgent))
            push(0, PAGE, true);
        if (zb_list_empty(&x.flows[1].rest))
            push(1, PAGE, false);
        flow = take();
        if (flow == 1 && others++ == 0)
            first = n;
    }
    assert_in_range(first, ZSD_URGENT_BYTES / PAGE, ZSD_URGENT_BYTES / PAGE + 2);
    assert_in_range(others, (1000 - first) / 2 - 2, (1000 - first) / 2 + 2);
    drain();
}

/** Random arrivals: no flow that waits all the time falls behind its share. */
static void a_storm(void **state)
{
    uint64_t total, waiting;
    unsigned seed = 7;

    (void)state;
    for (unsigned round = 0; round < 50; round++) {
        line_init();
        for (unsigned i = 0; i < FLOWS; i++)
            x.shares[i] = 1 + (unsigned)rand_r(&seed) % 400;
        total = waiting = 0;
        for (unsigned n = 0; n < 2000; n++) {
            unsigned flow = 1 + (unsigned)rand_r(&seed) % (FLOWS - 1);

            if (zb_list_empty(&x.flows[0].rest))
                push(0, PAGE, false);
            if (zb_list_empty(&x.flows[flow].node) || rand_r(&seed) % 4 == 0)
                push(flow, (uint64_t)(1 + rand_r(&seed) % 8) * PAGE / 4, false);
            memset(x.taken, 0, sizeof(x.taken));
            flow = take();
            waiting += x.taken[0];
            total += x.taken[flow];
        }
        if ((double)waiting * (x.shares[0] + x.shares[1] + x.shares[2] + x.shares[3]) <
            (double)(total - 16 * PAGE) * x.shares[0])
            fail_msg("round %u: %llu of %llu bytes, share %u of %u %u %u", round,
                     (unsigned long long)waiting, (unsigned long long)total, x.shares[0],
                     x.shares[1], x.shares[2], x.shares[3]);
        drain();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_kept),           cmocka_unit_test(large_turns_count_as_much),
        cmocka_unit_test(order_within_a_flow),       cmocka_unit_test(nothing_is_saved_up),
        cmocka_unit_test(leaving_gains_nothing),     cmocka_unit_test(a_share_changes),
        cmocka_unit_test(urgent_first_but_paid),     cmocka_unit_test(urgent_ones_share),
        cmocka_unit_test(urgent_ones_starve_nobody), cmocka_unit_test(a_storm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
