/*
 * turn.c - deferred work, deadlines, tasks: see turn.h for the rule. Both lists are short and walked
 * by the loop thread; core_life.c calls zsd_works_run() each turn and zsd_timed_expire() each tick.
 */
#include "daemon/run/turn.h"

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

void zsd_works_run(struct zsd_core *core)
{
    struct zb_list *node;

    while ((node = zb_list_pop_front(&core->works)) != NULL) {
        struct zsd_work *work = zb_container_of(node, struct zsd_work, node);

        work->run(work);
    }
}

/* ---- deadlines */

void zsd_timed_arm(struct zsd_core *core, struct zsd_timed *timed, uint32_t timeout_ms,
                   void (*expire)(struct zsd_timed *timed))
{
    if (timeout_ms == 0)
        timeout_ms = core->daemon->config.timeout_ms;
    timed->deadline_ns = zb_now_ns() + (uint64_t)timeout_ms * 1000000u;
    timed->expire = expire;
    zb_list_init(&timed->node);
    zb_list_push_back(&core->timed, &timed->node);
}

void zsd_timed_disarm(struct zsd_timed *timed)
{
    if (timed->node.next)
        zb_list_remove(&timed->node);
}

void zsd_timed_expire(struct zsd_core *core, uint64_t now_ns)
{
    struct zb_list due;

    zb_list_init(&due); /* expire() may arm and disarm others: collect first */
    zb_list_each(pos, &core->timed)
    {
        if (zb_container_of(pos, struct zsd_timed, node)->deadline_ns <= now_ns) {
            zb_list_remove(pos);
            zb_list_push_back(&due, pos);
        }
    }
    for (struct zb_list *node; (node = zb_list_pop_front(&due)) != NULL;) {
        struct zsd_timed *timed = zb_container_of(node, struct zsd_timed, node);

        timed->expire(timed);
    }
}

/* ---- compute */

void zsd_task_start(struct zsd_core *core, struct zsd_task *task)
{
    zsd_compute_post(core->daemon->compute, task);
}
