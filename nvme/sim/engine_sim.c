/*
 * engine_sim.c - the engine's backend on the simulated device.
 *
 * MODEL. A request moves along: fresh ---kick---> queue ---> (late) ---> reap. It happens on the
 * device (sim_do(), which gives it its number) when it leaves the queue, inside zn_reap(): so the
 * order of the numbers is the order of the completions, and a flush that did not wait for a write
 * may well come before it. Which one leaves the queue next is drawn from the seed.
 *
 *     late    has happened, but ZN_FAULT_DELAY delays it: it completes after all requests that were
 *             in flight with it; of several late ones, the last completes first
 *
 * A BATCH is what one zn_reap() sees. After it, reap() reports once that there is nothing more, and
 * sets the wake-up for the rest.
 *
 * FIXED RATE. kick() asks the device when each request ends; it leaves the queue then, the earliest
 * first. The clock (clock_priv.h) sets the wake-up at the next such moment, a little late: the rate
 * is exact while the requests in flight cover that delay.
 *
 * THREADS. Everything runs in the caller's thread.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "nvme/clock_priv.h"
#include "nvme/engine_priv.h"
#include "nvme/sim/sim_priv.h"

#define SIM_BATCH_MAX 8u /* upper limit of batches drawn from the seed */

struct sim_request {
    struct zn_io *io;
    uint64_t seq;    /* of kicked requests; of a late one: the last one that comes before it */
    uint64_t due_ns; /* fixed rate */
};

struct sim_engine {
    struct zn_engine *e;
    struct zn_sim *sim;
    unsigned file;
    struct zb_list fresh_urgent, fresh;
    unsigned nqueue, nlate;
    uint64_t seq;
    bool in_batch;
    unsigned batch_left;
    struct zn_clock clock;
    struct sim_request *late;   /* [depth + 1]: a discard is not counted by depth */
    struct sim_request queue[]; /* [depth + 1], then late */
};

/* ---- the backend */

static bool sim_timed(const struct sim_engine *x)
{
    return sim_options(x->sim)->rate_bytes > 0;
}

static int sim_start(struct zn_engine *e, struct zb_err *err)
{
    struct sim_engine *x =
        calloc(1, sizeof(*x) + 2 * ((size_t)e->info.depth + 1) * sizeof(x->queue[0]));
    int rc = 0;

    if (!x)
        return zb_fail(err, -ENOMEM, "engine on a simulated device: %m");
    e->impl = x;
    x->e = e;
    x->sim = e->file.device;
    x->file = (unsigned)e->file.medium.fd;
    x->late = x->queue + e->info.depth + 1;
    zb_list_init(&x->fresh_urgent);
    zb_list_init(&x->fresh);
    if (sim_timed(x))
        rc = zn_clock_start(&x->clock, e);
    return rc < 0 ? zb_fail(err, rc, "clock of a simulated device: %m") : 0;
}

static void sim_submit(struct zn_engine *e, struct zn_io *io)
{
    struct sim_engine *x = e->impl;

    zb_list_push_back(io->urgent ? &x->fresh_urgent : &x->fresh, &io->node);
}

static struct zb_list *sim_fresh(struct sim_engine *x)
{
    struct zb_list *node = zb_list_pop_front(&x->fresh_urgent);

    return node ? node : zb_list_pop_front(&x->fresh);
}

static int sim_kick(struct zn_engine *e)
{
    struct sim_engine *x = e->impl;
    uint64_t next_ns = ZN_NEVER;
    struct zb_list *node;

    while ((node = sim_fresh(x)) != NULL) {
        struct sim_request *r = &x->queue[x->nqueue++];

        r->io = zb_container_of(node, struct zn_io, node);
        r->seq = ++x->seq;
        r->due_ns = 0;
        if (sim_timed(x)) {
            r->due_ns = sim_due_ns(
                x->sim, r->io->op == ZN_FLUSH || zn_io_discards(r->io) ? 0 : (size_t)r->io->res);
            next_ns = zb_min_u64(next_ns, r->due_ns);
        } else {
            zn_wake(e);
        }
    }
    if (next_ns != ZN_NEVER)
        zn_clock_set(&x->clock, next_ns);
    return 0;
}

/* Performs the operation; true if its completion is delayed. */
static bool sim_perform(struct sim_engine *x, struct zn_io *io)
{
    struct sim_op op = {
        .kind = io->op == ZN_READ       ? SIM_READ
                : io->op == ZN_FLUSH    ? SIM_FLUSH
                : io->op == ZN_DISCARD  ? SIM_DISCARD
                : io->op == ZN_ALLOCATE ? SIM_ALLOCATE
                                        : SIM_WRITE,
        .file = x->file,
        .off = zn_io_off(io),
        .len = (size_t)io->res,
        .engine = true,
    };

    if (op.kind == SIM_READ)
        op.buf = zn_io_at(io);
    else if (op.kind == SIM_WRITE)
        op.bytes = zn_io_at(io);
    io->res = (int)sim_do(x->sim, &op);
    return op.ret_late;
}

/* Chooses the request that leaves the queue; -1: none is due. */
static int sim_choose(struct sim_engine *x)
{
    unsigned first = 0;

    if (x->nqueue == 0)
        return -1;
    if (!sim_timed(x))
        return (int)(sim_random(x->sim) % x->nqueue);
    for (unsigned i = 1; i < x->nqueue; i++) {
        const struct sim_request *r = &x->queue[i], *f = &x->queue[first];

        if (r->due_ns < f->due_ns || (r->due_ns == f->due_ns && r->seq < f->seq))
            first = i;
    }
    if (x->queue[first].due_ns <= zb_now_ns())
        return (int)first;
    zn_clock_set(&x->clock, x->queue[first].due_ns);
    return -1;
}

/* The last late request, if all requests that it waits for have completed. */
static struct zn_io *sim_late(struct sim_engine *x)
{
    if (x->nlate == 0)
        return NULL;
    for (unsigned i = 0; i < x->nqueue; i++) {
        if (x->queue[i].seq <= x->late[x->nlate - 1].seq)
            return NULL;
    }
    return x->late[--x->nlate].io;
}

static struct zn_io *sim_next(struct sim_engine *x)
{
    for (;;) {
        struct zn_io *io = sim_late(x);
        struct sim_request r;
        int i;

        if (io)
            return io;
        i = sim_choose(x);
        if (i < 0)
            return NULL;
        r = x->queue[i];
        x->queue[i] = x->queue[--x->nqueue];
        if (!sim_perform(x, r.io) || x->nqueue == 0)
            return r.io;
        r.seq = x->seq;
        x->late[x->nlate++] = r;
    }
}

static struct zn_io *sim_reap(struct zn_engine *e)
{
    struct sim_engine *x = e->impl;
    struct zn_io *io = NULL;

    if (!x->in_batch && x->nqueue + x->nlate > 0) {
        unsigned batch = sim_options(x->sim)->batch;

        x->in_batch = true;
        x->batch_left = batch > 0      ? batch
                        : sim_timed(x) ? UINT_MAX
                                       : 1 + (unsigned)(sim_random(x->sim) % SIM_BATCH_MAX);
    }
    if (x->batch_left > 0)
        io = sim_next(x);
    if (io) {
        x->batch_left--;
        return io;
    }
    if (x->in_batch && x->batch_left == 0 && x->nqueue + x->nlate > 0)
        zn_wake(e);
    x->in_batch = false;
    return NULL;
}

static void sim_close(struct zn_engine *e)
{
    struct sim_engine *x = e->impl;

    if (x)
        zn_clock_stop(&x->clock);
    free(x);
    e->impl = NULL;
}

static const struct zn_ops sim_ops = {
    "sim", sim_start, sim_submit, sim_kick, sim_reap, sim_close, NULL, NULL,
};

/* ---- the place */

static ssize_t medium_read(const struct zn_medium *m, void *bytes, size_t len_bytes,
                           uint64_t off_bytes)
{
    struct sim_op op = {
        .kind = SIM_READ, .file = (unsigned)m->fd, .off = off_bytes, .len = len_bytes, .buf = bytes
    };

    return sim_do(m->device, &op);
}

static ssize_t medium_write(const struct zn_medium *m, const void *bytes, size_t len_bytes,
                            uint64_t off_bytes)
{
    struct sim_op op = { .kind = SIM_WRITE,
                         .file = (unsigned)m->fd,
                         .off = off_bytes,
                         .len = len_bytes,
                         .bytes = bytes };

    return sim_do(m->device, &op);
}

static int medium_flush(const struct zn_medium *m)
{
    struct sim_op op = { .kind = SIM_FLUSH, .file = (unsigned)m->fd };

    return (int)sim_do(m->device, &op);
}

static const struct zn_medium_ops medium_ops = { medium_read, medium_write, medium_flush };

static int place_open(struct zn_file *f, const char *path, struct zb_err *err)
{
    int file = sim_file(f->device, path);
    int rc;

    if (file < 0)
        return zb_fail(err, file, "open simulated file '%s': %m", path);
    f->medium = (struct zn_medium){ .ops = &medium_ops, .fd = file, .device = f->device };
    if (!sim_file_take(f->device, (unsigned)file, f))
        return zb_fail(err, -EBUSY, "simulated file '%s' is in use by another engine", path);
    f->locked = true;
    sim_user(f->device, 1);
    if (!sim_file_exists(f->device, (unsigned)file, &f->was_bytes)) {
        struct sim_op op = { .kind = SIM_CREATE, .file = (unsigned)file };

        rc = (int)sim_do(f->device, &op);
        if (rc < 0)
            return zb_fail(err, rc, "create simulated file '%s': %m", path);
    }
    return 0;
}

static void place_direct(struct zn_file *f, const struct zn_options *o, struct zn_info *info)
{
    (void)f;
    (void)o;
    info->direct = true;
    info->align_bytes = SIM_SECTOR;
}

static void place_name(struct zn_file *f)
{
    uint64_t random[2] = { sim_random(f->device), sim_random(f->device) };

    zn_super_init(&f->super, (const uint8_t *)random);
}

static int place_resize(struct zn_file *f, uint64_t size_bytes)
{
    struct sim_op op = { .kind = SIM_RESIZE, .file = (unsigned)f->medium.fd, .off = size_bytes };

    return (int)sim_do(f->device, &op);
}

static int place_reserve(struct zn_file *f, const struct zn_options *o, struct zn_info *info,
                         struct zb_err *err)
{
    int rc = o->size_bytes != f->was_bytes ? place_resize(f, o->size_bytes) : 0;

    (void)info;
    return rc < 0 ? zb_fail(err, rc, "reserve room for simulated file '%s': %m", o->path) : 0;
}

static void place_cut(struct zn_file *f, uint64_t size_bytes)
{
    (void)place_resize(f, size_bytes);
}

static void place_close(struct zn_file *f)
{
    if (!f->locked)
        return;
    f->locked = false;
    sim_file_drop(f->device, (unsigned)f->medium.fd, f);
    sim_user(f->device, -1);
}

static void place_discards(struct zn_file *f, struct zn_info *info)
{
    (void)f;
    info->discard = info->told = true;
    info->discard_bytes = ZN_SUPER_BYTES;
}

static const struct zn_ops *const place_backends[] = { &sim_ops, NULL };

static const struct zn_place sim_place = {
    place_backends, place_open,  place_direct,   place_name, place_reserve,
    place_cut,      place_close, place_discards, NULL,
};

int zn_sim_engine(struct zn_engine **ret, struct zn_sim *s, const char *name, uint64_t size_bytes,
                  unsigned depth, struct zb_err *err)
{
    struct zn_options o = { .path = name, .size_bytes = size_bytes, .depth = depth };

    return zn_open_at(ret, &sim_place, s, &o, err);
}

int zn_sim_engine_at(struct zn_engine **ret, struct zn_sim *s, const char *name,
                     uint64_t size_bytes, unsigned index, struct zb_err *err)
{
    struct zn_options o = { .path = name, .size_bytes = size_bytes, .index = index };

    return zn_open_at(ret, &sim_place, s, &o, err);
}
