/*
 * turn.c - deferred work, deadlines, tasks: see turn.h for the rules. core_life.c calls
 * zsd_works_run() each turn and zsd_timed_expire() each tick.
 *
 * DEADLINES are in a timer wheel of ZSD_WHEEL_SLOTS lists. Each list has the deadlines of one span
 * of time, and of the same span one or more rounds later. A tick checks the lists of the spans that
 * have passed since the last tick. There it finds deadlines that are due, and some that are due
 * whole rounds later; these are few, because a round is longer than most timeouts. So the cost of a
 * tick depends on the number of due deadlines, not of armed ones.
 */
#include "daemon/run/turn.h"

#include <assert.h>

#define SPAN_SHIFT   24u /* of the time in ns: 17 ms; a round takes 69 s */
#define EXPIRE_LEAST 64u /* deadlines per tick that may expire, even if the turn is full */

void zsd_defer(struct zsd_core *core, struct zsd_work *work)
{
    if (!work->node.next)
        zb_list_init(&work->node);
    if (zb_list_empty(&work->node))
        zb_list_push_back(&core->works, &work->node);
}

void zsd_room_changed(struct zsd_core *core)
{
    zsd_defer(core, &core->room);
}

/* Deferred work has its part of each turn, even if requests have used more than theirs. */
static void works_begin(struct zsd_turns *t)
{
    t->works = true;
    if (t->work > ZSD_TURN_WORK - ZSD_TURN_WORKS) {
        t->beyond += t->work - (ZSD_TURN_WORK - ZSD_TURN_WORKS);
        t->work = ZSD_TURN_WORK - ZSD_TURN_WORKS;
    }
    zsd_turn_part(t);
}

bool zsd_works_run(struct zsd_core *core)
{
    struct zb_list now;

    works_begin(&core->daemon->turns);
    zb_list_init(&now);
    zb_list_splice_front(&core->works, &now);
    while (!zb_list_empty(&now) && zsd_turn_left(core) > 0) {
        struct zsd_work *work = zb_container_of(zb_list_pop_front(&now), struct zsd_work, node);

        zsd_turn_count(core, 1);
        work->run(work);
    }
    zb_list_splice_front(&now, &core->works);
    return !zb_list_empty(&core->works);
}

/* ---- deadlines */

static struct zb_list *wheel_slot(struct zsd_core *core, uint64_t span)
{
    return &core->wheel.slots[span % ZSD_WHEEL_SLOTS];
}

void zsd_wheel_init(struct zsd_wheel *wheel)
{
    for (unsigned i = 0; i < ZSD_WHEEL_SLOTS; i++)
        zb_list_init(&wheel->slots[i]);
    zb_list_init(&wheel->due);
    wheel->span = zb_now_ns() >> SPAN_SHIFT;
}

bool zsd_wheel_empty(const struct zsd_wheel *wheel)
{
    bool empty = zb_list_empty(&wheel->due);

    for (unsigned i = 0; i < ZSD_WHEEL_SLOTS && empty; i++)
        empty = zb_list_empty(&wheel->slots[i]);
    return empty;
}

void zsd_timed_arm_at(struct zsd_core *core, struct zsd_timed *timed, uint64_t deadline_ns,
                      void (*expire)(struct zsd_timed *timed))
{
    uint64_t span = zb_max_u64(deadline_ns >> SPAN_SHIFT,
                               core->wheel.span); /* the next tick checks that span */

    assert(!timed->node.next || zb_list_empty(&timed->node));
    timed->deadline_ns = deadline_ns;
    timed->expire = expire;
    zb_list_init(&timed->node);
    zb_list_push_back(wheel_slot(core, span), &timed->node);
}

void zsd_timed_arm(struct zsd_core *core, struct zsd_timed *timed, uint32_t timeout_ms,
                   void (*expire)(struct zsd_timed *timed))
{
    if (timeout_ms == 0)
        timeout_ms = core->daemon->config.timeout_ms;
    zsd_timed_arm_at(core, timed, zb_now_ns() + (uint64_t)timeout_ms * 1000000u, expire);
}

void zsd_timed_disarm(struct zsd_timed *timed)
{
    if (timed->node.next)
        zb_list_remove(&timed->node);
}

/* Collects the due deadlines of a list first, because expire() may arm and disarm others. */
static void wheel_collect(struct zsd_core *core, struct zb_list *slot, uint64_t now_ns)
{
    zb_list_each(pos, slot)
    {
        if (zb_container_of(pos, struct zsd_timed, node)->deadline_ns <= now_ns) {
            zb_list_remove(pos);
            zb_list_push_back(&core->wheel.due, pos);
        }
    }
}

void zsd_timed_expire(struct zsd_core *core, uint64_t now_ns)
{
    struct zsd_wheel *wheel = &core->wheel;
    uint64_t last = now_ns >> SPAN_SHIFT, first = wheel->span;

    if (first > last || last - first >= ZSD_WHEEL_SLOTS) /* a whole round has passed */
        first = last - zb_min_u64(last, ZSD_WHEEL_SLOTS - 1);
    for (uint64_t span = first; span <= last; span++)
        wheel_collect(core, wheel_slot(core, span), now_ns);
    wheel->span = last;
    for (unsigned n = 0;
         !zb_list_empty(&wheel->due) && (n < EXPIRE_LEAST || !zsd_turn_full(core->daemon)); n++) {
        struct zsd_timed *timed =
            zb_container_of(zb_list_pop_front(&wheel->due), struct zsd_timed, node);

        zsd_turn_count(core, 1);
        timed->expire(timed);
    }
}

/* ---- compute */

void zsd_task_start(struct zsd_core *core, struct zsd_task *task)
{
    zsd_compute_post(core->daemon->compute, task);
}
