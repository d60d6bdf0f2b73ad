/*
 * schedule.c - which units to gather before they are asked for, and which to keep.
 *
 * MODEL. The order of gathers in a micro-step is written down, and the next micro-step is expected
 * to repeat it. The WINDOW is the next `prefetch_units` different units of that order. After each
 * of the trainer's calls that moves it:
 *
 *     in the window, and idle                 its gather begins
 *     held by nobody, and not in the window   it is dropped
 *
 * so a unit that was released and comes again at once (the last block, between forward and
 * backward) is not gathered twice. The window ends with the step, behind which parameters have new
 * values, and begins again behind it.
 *
 * A gather that is not the expected one moves the place in the order to where that unit comes next;
 * the first unit of the order, to its beginning, and what was written down before (an evaluation,
 * say) is forgotten. Only time is ever lost.
 *
 * INVARIANT. The window is a function of the trainer's calls, so it is the same on all ranks.
 */
#include <errno.h>
#include <stdlib.h>

#include "client/zero/zero_priv.h"

static int order_add(struct zc_zero *z, struct zcz_order *o, uint32_t unit)
{
    if (o->n == o->room) {
        uint32_t room = o->room ? 2 * o->room : 64;
        uint32_t *units = realloc(o->units, room * sizeof(*units));

        if (!units)
            return zcz_fail(z, -ENOMEM, "no memory for the order of gathers");
        o->units = units;
        o->room = room;
    }
    o->units[o->n++] = unit;
    return 0;
}

int zcz_schedule_gathered(struct zc_zero *z, uint32_t unit)
{
    const struct zcz_order *o = &z->order;

    if (o->n > 0 && o->units[0] == unit && (z->order_at == o->n || o->units[z->order_at] != unit)) {
        z->seen.n = 0;
        z->order_at = 0;
    }
    for (uint32_t i = 0; i < o->n; i++) {
        uint32_t at = (z->order_at + i) % o->n;

        if (o->units[at] == unit) {
            z->order_at = at + 1;
            break;
        }
    }
    return order_add(z, &z->seen, unit);
}

void zcz_schedule_learn(struct zc_zero *z)
{
    struct zcz_order learned = z->seen;

    z->seen = z->order;
    z->order = learned;
    zcz_schedule_rewind(z);
}

void zcz_schedule_rewind(struct zc_zero *z)
{
    z->seen.n = 0;
    z->order_at = 0;
}

/* Stamps the units of the window with a new number, and begins those that are idle. */
static void window_begin(struct zc_zero *z)
{
    bool last = z->micro + 1 >= zcz_micro_steps(z);
    uint32_t left = z->options.prefetch_units;

    z->window++;
    if (z->micro == zcz_micro_steps(z))
        return;
    for (uint32_t i = 0; i < z->order.n && left > 0; i++) {
        uint32_t at = z->order_at + i;
        struct zcz_unit *u;

        if (at >= z->order.n && last)
            break;
        u = &z->units[z->order.units[at % z->order.n]];
        if (u->window == z->window)
            continue;
        u->window = z->window;
        left--;
        if (u->state == ZCZ_IDLE)
            zcz_gather_begin(z, u);
        u->drop = false;
    }
}

void zcz_schedule_apply(struct zc_zero *z)
{
    window_begin(z);
    zb_list_each(pos, &z->gathers)
    {
        struct zcz_unit *u = zb_container_of(pos, struct zcz_unit, node);

        if (u->holds == 0 && u->window != z->window)
            zcz_gather_drop(z, u);
    }
}
