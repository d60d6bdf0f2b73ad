/*
 * schedule.c - which units to gather before they are asked for, and which to keep.
 *
 * MODEL. The order of gathers in a micro-step is recorded, and the next micro-step is expected to
 * repeat it. The WINDOW is the next `prefetch_units` different units of that order, or as many as
 * have prefetch_elems elements. After each of the trainer's calls that moves it:
 *
 *     in the window, and idle                 its gather begins
 *     not held, not in the window,
 *     and without a reason to stay            it is dropped
 *
 * So a unit that was released and is needed again at once (the last block, between forward and
 * backward) is not gathered twice. Reasons to stay:
 *
 *     stages 1 and 2                          always
 *     persist_elems                           it is at most that long
 *     zc_zero_prefetch()                      it was hinted at, and not yet gathered
 *     keep_gathered                           its gradient is still to come
 *     reuse_elems                             it comes again in this micro-step, after fewer
 *                                             elements than that
 *
 * The last three, and the window after its first unit, end where more than live_elems would be
 * gathered at one time. Everything ends with the step, which changes the parameters, and begins
 * again after it.
 *
 * With micro_steps 0 it is not known which micro-step is the last. So after each of them the window
 * is empty until the next gather, and the step drops what stays.
 *
 * If a gather is not the expected one, the place in the order moves to the next occurrence of that
 * unit. If it is the first unit of the order, recording starts again, and what was recorded before
 * (an evaluation, for example) is forgotten. A wrong guess only costs time.
 *
 * INVARIANT. What is gathered and dropped is a function of the trainer's calls, so it is the same
 * on all ranks. What has arrived is not the same. So z->pass->live and the reasons above never
 * depend on whether something has arrived, and a unit that was dropped on its way counts as gone.
 */
#include <errno.h>

#include "base/array.h"
#include "client/zero/pass/pass_priv.h"

#define ZCZ_HINT_WINDOWS 64u /* how many moves of the window a hinted unit stays */

static int order_add(struct zc_zero *z, struct zcz_order *o, uint32_t unit)
{
    if (zb_grow(&o->units, &o->room, o->n, 1) < 0)
        return zcz_fail(z, -ENOMEM, "no memory for the order of gathers");
    o->units[o->n++] = unit;
    return 0;
}

int zcz_schedule_gathered(struct zc_zero *z, uint32_t unit)
{
    const struct zcz_order *o = &z->pass->order;

    z->units[unit].pass->hint = 0;
    if (o->n > 0 && o->units[0] == unit &&
        (z->pass->order_at == o->n || o->units[z->pass->order_at] != unit)) {
        z->pass->seen.n = 0;
        z->pass->order_at = 0;
    }
    for (uint32_t i = 0; i < o->n; i++) {
        uint32_t at = (z->pass->order_at + i) % o->n;

        if (o->units[at] == unit) {
            z->pass->order_at = at + 1;
            break;
        }
    }
    return order_add(z, &z->pass->seen, unit);
}

void zcz_schedule_learn(struct zc_zero *z)
{
    struct zcz_order learned = z->pass->seen;

    z->pass->seen = z->pass->order;
    z->pass->order = learned;
    for (uint32_t i = 0; i < z->nunits; i++)
        z->units[i].pass->unreduced = false;
    zcz_schedule_rewind(z);
}

void zcz_schedule_rewind(struct zc_zero *z)
{
    z->pass->seen.n = 0;
    z->pass->order_at = 0;
}

/* Whether this unit may be gathered in addition to z->pass->live. */
static bool live_room(const struct zc_zero *z, const struct zcz_unit *u)
{
    const struct zc_zero_options *o = &z->options;

    return o->live_elems == 0 ||
           (z->pass->live <= o->live_elems && u->def.elems <= o->live_elems - z->pass->live);
}

/* Counts elements of held units. The others must fit in addition to these. */
static void live_count(struct zc_zero *z)
{
    z->pass->live = 0;
    zb_list_each(pos, &z->pass->gathers)
    {
        const struct zcz_unit *u = zb_container_of(pos, struct zcz_pass_unit, node)->unit;

        if (u->pass->holds > 0)
            z->pass->live += u->def.elems;
    }
}

struct window {
    uint32_t units; /* in the window so far */
    uint64_t elems; /* from the current place in the order */
};

static bool window_open(const struct zc_zero *z, const struct window *w)
{
    const struct zc_zero_options *o = &z->options;

    return o->prefetch_elems > 0
               ? w->units < ZCZ_PREFETCH_MAX && (w->units == 0 || w->elems < o->prefetch_elems)
               : w->units < o->prefetch_units;
}

/* Adds the next unit of the order to the window, and begins its gather if it is idle. */
static void window_add(struct zc_zero *z, struct zcz_unit *u)
{
    u->pass->window = z->pass->window;
    zcz_gather_gone(z, u);
    if (u->pass->holds == 0)
        z->pass->live += u->def.elems;
    if (u->pass->state == ZCZ_IDLE && !z->failed)
        zcz_gather_begin(z, u);
}

/* Whether nothing is gathered ahead, because the step comes next or may come next. */
static bool schedule_over(const struct zc_zero *z)
{
    return zcz_micro_any(z) ? z->pass->micro > 0 && !z->pass->open && z->pass->seen.n == 0
                            : z->pass->micro == zcz_micro_steps(z);
}

/* Stamps the units of the window with a new number, and begins those that are idle. Also stamps
 * units after the window that are needed soon enough to stay. */
static void window_begin(struct zc_zero *z)
{
    bool last = zcz_micro_any(z) || z->pass->micro + 1 >= zcz_micro_steps(z), full = false;
    struct window w = { 0 };

    z->pass->window++;
    if (schedule_over(z))
        return;
    for (uint32_t i = 0; i < z->pass->order.n && !z->failed; i++) {
        uint32_t at = z->pass->order_at + i;
        struct zcz_unit *u;

        if (at >= z->pass->order.n && last)
            break;
        u = &z->units[z->pass->order.units[at % z->pass->order.n]];
        full = full || !window_open(z, &w) ||
               (w.units > 0 && u->pass->window != z->pass->window && u->pass->holds == 0 &&
                !live_room(z, u));
        if (full && (w.elems >= z->options.reuse_elems || at >= z->pass->order.n))
            break;
        if (u->pass->window != z->pass->window && !full) {
            window_add(z, u);
            w.units++;
        } else if (u->pass->window != z->pass->window) {
            u->pass->near = z->pass->window;
        }
        w.elems += u->def.elems;
    }
}

/* Whether a unit that is neither held nor in the window stays gathered. */
static bool unit_stays(const struct zc_zero *z, const struct zcz_unit *u)
{
    const struct zc_zero_options *o = &z->options;

    if (!zcz_micro_any(z) && z->pass->micro == zcz_micro_steps(z))
        return false;
    if (z->whole_params)
        return true;
    return (u->pass->hint > z->pass->window || u->def.elems <= o->persist_elems ||
            (o->keep_gathered && u->pass->unreduced) || u->pass->near == z->pass->window) &&
           live_room(z, u);
}

void zcz_schedule_apply(struct zc_zero *z)
{
    live_count(z);
    window_begin(z);
    zb_list_each(pos, &z->pass->gathers)
    {
        struct zcz_unit *u = zb_container_of(pos, struct zcz_pass_unit, node)->unit;

        if (u->pass->holds > 0 || u->pass->window == z->pass->window || u->pass->drop)
            continue;
        if (unit_stays(z, u))
            z->pass->live += u->def.elems;
        else
            zcz_gather_drop(z, u);
    }
}

int zc_zero_prefetch(struct zc_zero *z, uint32_t unit)
{
    ZCZ_GUARD(z);
    struct zcz_unit *u;
    int rc = zcz_enter_unit(z, unit, &u);

    if (rc < 0)
        return rc;
    live_count(z);
    if (u->pass->holds > 0 || !live_room(z, u) ||
        (!zcz_micro_any(z) && z->pass->micro == zcz_micro_steps(z)))
        return zcz_turn(z, 0);
    u->pass->hint = z->pass->window + ZCZ_HINT_WINDOWS;
    zcz_gather_gone(z, u);
    if (u->pass->state == ZCZ_IDLE && !z->failed)
        zcz_gather_begin(z, u);
    return zcz_turn(z, 0);
}
