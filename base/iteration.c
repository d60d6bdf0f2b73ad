/*
 * iteration.c - the formulas of iteration.h: what each unit moves, and the time of passes.
 */
#include "base/iteration.h"

#include <errno.h>

#include "base/util.h"

#define F32_BYTES 4.0

const char *zb_part_name(enum zb_part part)
{
    static const char *const names[ZB_PARTS] = { "compute", "gpu-link", "network",   "latency",
                                                 "link",    "memory",   "optimizer", "drives" };

    return names[part];
}

const char *zb_comm_name(enum zb_comm comm)
{
    static const char *const names[] = { "nccl", "host", "ring" };

    return names[comm];
}

/* ---- what is moved */

/* Bytes: sent by a rank to GPUs of its node, by the node to others; between host and GPU of a rank;
 * through host memory of the node. And messages of a rank. */
struct moved {
    double gpu, network, up, down, memory, messages;
};

/* A run's collectives: n ranks exchange units, `here` of them on each node. */
struct iter {
    const struct zb_run *run;
    const struct zb_node *node;
    double n, here;
    double dtype_bytes;
    bool keeps; /* slices are in the daemon */
    bool there; /* on the GPU tiers, not in host memory */
};

/* Each rank sends to the next one, until all have all. */
static void move_ring(const struct iter *it, double bytes, struct moved *m)
{
    double sent = (it->n - 1) / it->n * bytes;

    m->gpu += it->here > 1 ? sent : 0;
    m->network += it->n > it->here ? sent : 0;
    m->messages += it->n - 1;
}

/* Each rank sends a slice to each other rank. In host memory, each rank also writes what it
 * receives. */
static void move_directly(const struct iter *it, double bytes, struct moved *m)
{
    if (it->run->comm == ZB_COMM_HOST)
        m->memory += it->here * (it->n - 1) / it->n * bytes;
    else
        m->gpu += (it->here - 1) / it->n * bytes;
    m->network += it->here * (it->n - it->here) / it->n * bytes;
    m->messages += it->n - 1;
}

/* All slices of a unit, `bytes` together, to each rank. */
static struct moved move_gather(const struct iter *it, double bytes)
{
    struct moved m = { 0 };

    if (it->n == 1) {
        m.up = it->keeps && !it->there ? bytes : 0;
    } else if (zb_run_reads(it->run)) {
        m.up = it->there ? 0 : bytes;
        m.memory = it->here * m.up;
    } else if (it->run->comm == ZB_COMM_HOST) {
        move_directly(it, bytes, &m);
        m.down = it->keeps && !it->there ? 0 : bytes / it->n;
        m.up = bytes;
        m.memory += it->here * (bytes + (it->there ? m.down : 0));
    } else {
        move_ring(it, bytes, &m);
        m.up = it->keeps && !it->there ? bytes / it->n : 0;
    }
    return m;
}

/* Sums go back to all ranks: in fp32, or in the dtype of the gradients where others do it. */
static void move_sums(const struct iter *it, double elems, struct moved *m)
{
    double bytes = elems * (it->run->comm == ZB_COMM_RING ? it->dtype_bytes : F32_BYTES);

    if (it->run->comm == ZB_COMM_HOST) {
        move_directly(it, bytes, m);
        m->up += bytes;
        m->memory += it->here * bytes;
    } else {
        move_ring(it, bytes, m);
    }
}

/* Hybrid: the ranks with the same slice, one on each node, add their sums and return them. Each
 * does so for a part of the slice, of whole blocks. */
static void move_across(const struct iter *it, double elems, struct moved *m)
{
    uint32_t nodes = it->run->nodes;
    uint64_t part = zb_padded_elems(zb_div_up((uint64_t)(elems / it->n), nodes));
    double bytes = it->run->comm == ZB_COMM_RING ? it->dtype_bytes : F32_BYTES;

    m->network += it->here * 2 * (nodes - 1) * bytes * (double)part;
    m->messages += 2.0 * (nodes - 1);
}

/* A unit's gradient from each rank, summed; each rank gets its slice of the sum. */
static struct moved move_reduce(const struct iter *it, double elems)
{
    double bytes = elems * it->dtype_bytes, slice = elems / it->n * F32_BYTES;
    struct moved m = { 0 };

    if (it->n == 1) {
        m.down = it->keeps ? bytes : 0;
    } else if (it->run->comm == ZB_COMM_HOST) {
        move_directly(it, bytes, &m);
        m.down = bytes;
        m.memory += it->here * bytes;
        m.up = it->keeps || it->run->mode == ZB_DDP ? 0 : slice;
    } else {
        if (it->run->comm == ZB_COMM_RING)
            move_ring(it, bytes, &m);
        else
            move_directly(it, bytes, &m);
        m.down = it->keeps ? slice : 0;
    }
    if (it->run->mode == ZB_DDP && it->n > 1)
        move_sums(it, elems, &m);
    if (it->run->mode == ZB_HYBRID)
        move_across(it, elems, &m);
    return m;
}

/* ---- time */

static double over(double bytes, double rate)
{
    return bytes > 0 && rate > 0 ? bytes / rate : 0;
}

static double most(double a, double b)
{
    return a > b ? a : b;
}

static double collective(const struct iter *it, const struct moved *m)
{
    return most(over(m->gpu, it->node->gpu_link), over(m->network, it->node->network)) +
           m->messages * it->node->latency;
}

/* What one pass moves, and how long it takes. */
struct walk {
    struct moved moved;
    struct zb_pass pass;
};

/* Adds a unit. Returns how long it takes alone. */
static double walk_add(const struct iter *it, struct walk *w, const struct moved *m, double *ret)
{
    double time = collective(it, m), up = over(m->up, it->node->link),
           down = over(m->down, it->node->link);

    w->moved.gpu += m->gpu;
    w->moved.network += m->network;
    w->moved.up += m->up;
    w->moved.down += m->down;
    w->moved.memory += m->memory;
    w->moved.messages += m->messages;
    *ret += time;
    w->pass.up += up;
    w->pass.down += down;
    w->pass.memory += over(m->memory, it->node->memory);
    return time + up + down;
}

/* Elements of a unit, padded to equal slices. */
static double padded(const struct iter *it, uint32_t unit, uint32_t world)
{
    uint64_t slice, first, count;

    zb_slice(it->run->model->units[unit], world, 0, &slice, &first, &count);
    return (double)slice * world;
}

static double elems_of(const struct iter *it, uint32_t unit)
{
    return padded(it, unit, (uint32_t)it->n);
}

/* Gathers order[from, to). A unit that the one before it also was is still there. */
static void walk_gathers(const struct iter *it, struct walk *w, uint32_t from, uint32_t to)
{
    const struct zb_model *m = it->run->model;

    for (uint32_t i = from; i < to; i++) {
        struct moved moved;
        double alone;

        if (i > 0 && m->order[i] == m->order[i - 1])
            continue;
        moved = move_gather(it, elems_of(it, m->order[i]) * it->dtype_bytes);
        alone = walk_add(it, w, &moved, &w->pass.gather);
        if (i == 0)
            w->pass.first = alone;
    }
}

/* With prefetching, everything works beside each other; without, a unit is gathered when it is
 * needed. */
static void walk_end(const struct iter *it, struct walk *w)
{
    struct zb_pass *p = &w->pass;
    double work = most(most(p->compute, p->down), p->memory);

    if (it->run->prefetch_units > 0) {
        p->seconds = most(most(work, p->up), p->gather + p->reduce) + p->first;
    } else {
        p->first = 0;
        p->seconds = most(work, p->reduce) + most(p->gather, p->up);
    }
}

static double compute(const struct iter *it, double ops)
{
    return ops * (double)it->run->model->params * (double)it->run->tokens / it->run->flops;
}

static struct walk walk_forward(const struct iter *it, bool gathers)
{
    struct walk w = { .pass.compute = compute(it, 2) };

    if (gathers)
        walk_gathers(it, &w, 0, it->run->model->nunits);
    walk_end(it, &w);
    return w;
}

static struct walk walk_backward(const struct iter *it, bool gathers)
{
    const struct zb_model *m = it->run->model;
    struct walk w = { .pass.compute = compute(it, ZB_FLOPS_TOKEN - 2) };

    if (gathers)
        walk_gathers(it, &w, m->nunits, m->norder);
    for (uint32_t u = m->nunits; u-- > 0;) { /* the first unit of the model is the last */
        struct moved moved = move_reduce(it, elems_of(it, u));

        w.pass.first = walk_add(it, &w, &moved, &w.pass.reduce);
    }
    walk_end(it, &w);
    return w;
}

/* ---- the optimizer */

/* Of a rank whose slices are in its own memory: what the kernel moves there. */
static double own_bytes(const struct iter *it)
{
    uint32_t cut = zb_mode_cuts(it->run->mode, ZB_STATE) ? (uint32_t)it->n : 1;
    double bytes = 0;

    for (uint32_t u = 0; u < it->run->model->nunits; u++) {
        const uint32_t *block = zb_run_layout(it->run, u)->block_bytes;

        bytes += padded(it, u, cut) / cut / ZB_BLOCK_ELEMS *
                 (2.0 * block[ZB_PARAM] + 2.0 * block[ZB_STATE] + block[ZB_GRAD]);
    }
    return bytes;
}

static void iterate_optimizer(const struct iter *it, const struct zb_forecast *f,
                              struct zb_iteration *ret)
{
    double hidden = ret->forward.seconds + (f->early ? ret->backward.seconds : 0);

    if (!it->keeps) {
        ret->optimizer = over(own_bytes(it), it->node->gpu_memory);
        ret->exposed = ret->optimizer; /* on the GPU that computes */
        ret->parts[ZB_PART_OPTIMIZER] = ret->optimizer;
        return;
    }
    ret->optimizer = f->step_seconds;
    ret->exposed = most(f->step_seconds - hidden, 0);
    ret->parts[ZB_PART_OPTIMIZER] = f->kernel_seconds;
    ret->drives = f->drive_seconds +
                  over((double)(f->fetch_read + f->push_read), it->node->drive_read) +
                  over((double)f->push_written, it->node->drive_write);
    ret->parts[ZB_PART_DRIVES] = ret->drives;
}

/* ---- the whole iteration */

/* A pass happens `times` times. */
static void iterate_add(const struct iter *it, const struct walk *w, double times,
                        struct zb_iteration *ret)
{
    const struct moved *m = &w->moved;

    ret->seconds += times * w->pass.seconds;
    ret->gpu_link_bytes += times * m->gpu;
    ret->network_bytes += times * m->network;
    ret->up_bytes += times * m->up;
    ret->down_bytes += times * m->down;
    ret->parts[ZB_PART_COMPUTE] += times * w->pass.compute;
    ret->parts[ZB_PART_GPU_LINK] += times * over(m->gpu, it->node->gpu_link);
    ret->parts[ZB_PART_NETWORK] += times * over(m->network, it->node->network);
    ret->parts[ZB_PART_LATENCY] += times * m->messages * it->node->latency;
    ret->parts[ZB_PART_LINK] += times * most(w->pass.up, w->pass.down);
    ret->parts[ZB_PART_MEMORY] += times * w->pass.memory;
}

static int missing(const char *what, struct zb_err *err)
{
    return zb_fail(err, -EINVAL, "the time of an iteration needs %s, which is not known", what);
}

/* Whether all rates that were needed are known. `memory`: bytes through host memory. */
static int iterate_rates(const struct iter *it, const struct zb_forecast *f,
                         const struct zb_iteration *ret, double memory, struct zb_err *err)
{
    const struct zb_node *node = it->node;

    if (ret->gpu_link_bytes > 0 && node->gpu_link <= 0)
        return missing("gpu_link", err);
    if (ret->network_bytes > 0 && node->network <= 0)
        return missing("network", err);
    if (ret->up_bytes + ret->down_bytes > 0 && node->link <= 0)
        return missing("link", err);
    if ((memory > 0 || f->kernel_bytes > 0) && node->memory <= 0)
        return missing("mem_bw", err);
    if (!it->keeps && node->gpu_memory <= 0)
        return missing("gpu_mem_bw", err);
    if (f->step_read + f->step_written > 0 && f->drive_seconds <= 0)
        return missing("drive_read and drive_write", err);
    return 0;
}

static int iterate_check(const struct zb_run *run, struct zb_err *err)
{
    if (run->tokens == 0)
        return missing("tokens", err);
    if (run->flops <= 0)
        return missing("flops", err);
    if (zb_run_reads(run) && (run->nodes > 1 || !zb_run_keeps(run) ||
                              (run->gather_alone && !zb_mode_cuts(run->mode, ZB_PARAM))))
        return zb_fail(err, -EINVAL,
                       "ranks gather alone on one node, where parameters are split and the "
                       "optimizer is offloaded; with node_gather host, parameters may be whole");
    return 0;
}

int zb_iterate(const struct zb_run *run, const struct zb_node *node, const struct zb_forecast *f,
               struct zb_iteration *ret, struct zb_err *err)
{
    uint32_t world = zb_mode_world(run->mode, run->ranks, run->nodes);
    bool gathers = run->mode != ZB_DDP, always = zb_mode_cuts(run->mode, ZB_PARAM);
    struct iter it = { .run = run,
                       .node = node,
                       .n = world,
                       .here = world < f->local ? world : f->local,
                       .dtype_bytes = zb_dtype_bytes(run->layout.dtype),
                       .keeps = zb_run_keeps(run),
                       .there = f->gpu_params > 0 };
    struct walk first, later, back;
    int rc = iterate_check(run, err);

    *ret = (struct zb_iteration){ 0 };
    if (rc < 0)
        return rc;
    first = walk_forward(&it, gathers);
    later = walk_forward(&it, always); /* whole parameters are gathered once in a step */
    back = walk_backward(&it, always);
    ret->forward = first.pass;
    ret->backward = back.pass;
    iterate_add(&it, &first, 1, ret);
    iterate_add(&it, &later, run->micro_steps - 1, ret);
    iterate_add(&it, &back, run->micro_steps, ret);
    rc = iterate_rates(&it, f, ret, first.moved.memory + back.moved.memory, err);
    if (rc < 0)
        return rc;
    iterate_optimizer(&it, f, ret);
    ret->seconds = most(ret->seconds + ret->exposed, ret->drives);
    for (enum zb_part part = 0; part < ZB_PARTS; part++)
        if (ret->parts[part] > ret->parts[ret->bound])
            ret->bound = part;
    ret->flops = ZB_FLOPS_TOKEN * (double)run->model->params * (double)run->tokens *
                 run->micro_steps / ret->seconds;
    ret->tokens = (double)run->tokens * run->micro_steps * run->ranks / ret->seconds;
    return 0;
}
