#include "nvme/sim/engine_fault.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "nvme/engine_priv.h"

/* A short transfer: the backend moves whole units of alignment, we report `bytes` of them. */
struct fault_cut {
    const struct zn_io *io; /* NULL: free */
    int bytes;
};

/* Replaces the backend's ops, and passes everything on to them. */
struct fault {
    struct zn_ops ops;
    const struct zn_ops *inner;
    struct zn_fault_plan plan;
    unsigned seen, seen_rw;
    struct zb_list up; /* completions that come up before those of the backend */
    struct fault_cut cuts[];
};

static struct fault *fault_of(const struct zn_engine *e)
{
    return zb_container_of(e->ops, struct fault, ops);
}

static bool fault_is(unsigned count, unsigned every)
{
    return every > 0 && count % every == 0;
}

/* Completes a request here, without the backend. */
static void fault_answer(struct zn_engine *e, struct zn_io *io, int res)
{
    io->res = res;
    zb_list_push_back(&fault_of(e)->up, &io->node);
    zn_wake(e);
}

/* Shortens a transfer to the bytes that it reports, rounded up to a unit, never above the request.
 */
static void fault_cut(struct zn_engine *e, struct zn_io *io)
{
    struct fault *f = fault_of(e);
    uint32_t full = (uint32_t)io->res, cut = f->plan.short_bytes;
    size_t i = 0;

    if (cut == 0)
        cut = (uint32_t)zb_round_up(full / 2, e->tail_align);
    if (cut == 0 || cut >= full)
        return;
    while (f->cuts[i].io)
        i++;
    assert(i < e->info.depth);
    f->cuts[i] = (struct fault_cut){ io, (int)cut };
    io->res = (int)zb_round_up(cut, e->tail_align);
}

static void fault_submit(struct zn_engine *e, struct zn_io *io)
{
    struct fault *f = fault_of(e);
    const struct zn_fault_plan *plan = &f->plan;

    f->seen++;
    if (plan->nth > 0 && (f->seen == plan->nth || (plan->nth_on && f->seen > plan->nth))) {
        fault_answer(e, io, plan->nth_res);
        return;
    }
    if (fault_is(f->seen, plan->again_every)) {
        fault_answer(e, io, -EINTR);
        return;
    }
    if (io->op != ZN_FLUSH && fault_is(++f->seen_rw, plan->short_every))
        fault_cut(e, io);
    f->inner->submit(e, io);
}

static int fault_kick(struct zn_engine *e)
{
    return fault_of(e)->inner->kick(e);
}

static struct zn_io *fault_reap_inner(struct zn_engine *e)
{
    struct fault *f = fault_of(e);
    struct zn_io *io = f->inner->reap(e);

    for (unsigned i = 0; io && i < e->info.depth; i++) {
        if (f->cuts[i].io != io)
            continue;
        f->cuts[i].io = NULL;
        if (io->res > f->cuts[i].bytes)
            io->res = f->cuts[i].bytes;
    }
    return io;
}

static struct zn_io *fault_reap(struct zn_engine *e)
{
    struct fault *f = fault_of(e);
    struct zb_list *node;
    struct zn_io *io;

    while (f->plan.lifo && (io = fault_reap_inner(e)) != NULL)
        zb_list_push_back(f->up.next, &io->node); /* in front of all others */
    node = zb_list_pop_front(&f->up);
    return node ? zb_container_of(node, struct zn_io, node) : fault_reap_inner(e);
}

static void fault_close(struct zn_engine *e)
{
    struct fault *f = fault_of(e);

    e->ops = f->inner;
    e->ops->close(e);
    free(f);
}

int zn_fault_install(struct zn_engine *e, const struct zn_fault_plan *plan)
{
    struct fault *f;

    if (e->ops->close == fault_close) {
        f = fault_of(e);
    } else {
        f = calloc(1, sizeof(*f) + e->info.depth * sizeof(f->cuts[0]));
        if (!f)
            return -ENOMEM;
        f->inner = e->ops;
        f->ops = *f->inner;
        f->ops.submit = fault_submit;
        f->ops.kick = fault_kick;
        f->ops.reap = fault_reap;
        f->ops.close = fault_close;
        zb_list_init(&f->up);
        e->ops = &f->ops;
    }
    f->plan = *plan;
    f->seen = f->seen_rw = 0;
    return 0;
}

unsigned zn_fault_seen(const struct zn_engine *e)
{
    return e->ops->close == fault_close ? fault_of(e)->seen : 0;
}
