/*
 * sim_op.c - one operation of a simulated device, from its number to its effect: the model is in
 * sim.c.
 */
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "nvme/sim/sim_device_priv.h"

static void sim_flip(unsigned char *bytes, uint64_t bit)
{
    bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
}

/* A change: into what reads see, the cache and the recording; of the operation that the power cut
 * hit, only into the cache. */
static int sim_change(struct zn_sim *s, const struct sim_doing *d, struct sim_change *c)
{
    struct sim_data *now = &s->now[c->file];
    int rc = sim_record_room(s);

    if (rc == 0)
        rc = sim_state_room(&s->state, c->file);
    if (rc == 0 && !s->dead)
        rc = sim_change_apply(c, now); /* a write that fails has made room only: S2 */
    if (rc < 0) {
        sim_change_unref(c);
        return rc;
    }
    s->files[c->file].tainted = s->files[c->file].tainted || c->stale;
    sim_state_add(&s->state, c);
    if (s->dead)
        return -EIO;
    sim_record(s, SIM_ENTRY_CHANGE, c->file, c);
    sim_write_back(&s->state, s->files, s->now);
    return d->op->kind == SIM_WRITE ? (int)d->len : 0;
}

static ssize_t sim_do_read(struct zn_sim *s, struct sim_doing *d)
{
    const struct sim_data *now = &s->now[d->op->file];

    if (!now->exists)
        return -ENOENT;
    if (s->dead)
        return -EIO;
    if (s->options.discard) {
        if (!d->op->engine)
            memset(d->op->buf, 0, d->len);
        return (ssize_t)d->len;
    }
    sim_data_get(now, d->off, d->op->buf, d->len);
    if (d->flip)
        sim_flip(d->op->buf, d->flip_at);
    return (ssize_t)d->len;
}

static ssize_t sim_do_write(struct zn_sim *s, struct sim_doing *d)
{
    struct sim_data *now = &s->now[d->op->file];
    struct sim_change *c;

    if (!now->exists)
        return -ENOENT;
    if (d->off > SIM_SIZE_MAX || d->len > SIM_SIZE_MAX - d->off)
        return -EFBIG;
    if (d->lost)
        return s->dead ? -EIO : (ssize_t)d->len;
    if (s->options.discard) {
        if (!s->dead)
            now->size = zb_max_u64(now->size, d->off + d->len);
        return s->dead ? -EIO : (ssize_t)d->len;
    }
    c = sim_change_new(SIM_CHANGE_WRITE, d->op->file, now->born, d->off, d->op->bytes, d->len);
    if (!c)
        return -ENOMEM;
    c->stale = d->stale;
    if (d->flip)
        sim_flip(c->bytes, d->flip_at);
    return sim_change(s, d, c);
}

/* ---- discards */

static void hole_add(struct zn_sim *s, const struct sim_doing *d)
{
    if (s->nholes < SIM_HOLES_MAX)
        s->holes[s->nholes++] =
            (struct sim_hole){ .file = d->op->file, .off = d->off, .len = d->len };
}

/* Allocates what lies inside of the range; discards and allocations are of the same ranges. */
static void holes_fill(struct zn_sim *s, const struct sim_doing *d)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < s->nholes; i++) {
        const struct sim_hole *h = &s->holes[i];

        if (h->file != d->op->file || h->off < d->off || h->off + h->len > d->off + d->len)
            s->holes[kept++] = *h;
    }
    s->nholes = kept;
}

static bool hole_hit(const struct zn_sim *s, const struct sim_doing *d)
{
    for (unsigned i = 0; i < s->nholes; i++)
        if (s->holes[i].file == d->op->file && d->off < s->holes[i].off + s->holes[i].len &&
            s->holes[i].off < d->off + d->len)
            return true;
    return false;
}

/* Other bytes, as if written. */
static ssize_t sim_do_discard(struct zn_sim *s, struct sim_doing *d)
{
    struct sim_data *now = &s->now[d->op->file];
    uint64_t draw = sim_mix(s->options.seed, d->n);
    struct sim_change *c;
    ssize_t rc;

    if (!now->exists)
        return -ENOENT;
    if (s->options.discard)
        return s->dead ? -EIO : (ssize_t)d->len;
    c = sim_change_new(SIM_CHANGE_WRITE, d->op->file, now->born, d->off, NULL, d->len);
    if (!c)
        return -ENOMEM;
    for (size_t i = 0; i + sizeof(draw) <= d->len; i += sizeof(draw)) {
        memcpy(c->bytes + i, &draw, sizeof(draw));
        draw += UINT64_C(0x9e3779b97f4a7c15);
    }
    rc = sim_change(s, d, c);
    if (rc < 0)
        return rc;
    if (d->rc == -ENOSPC)
        hole_add(s, d);
    return d->rc < 0 ? d->rc : (ssize_t)d->len;
}

static ssize_t sim_do_allocate(struct zn_sim *s, const struct sim_doing *d)
{
    if (s->dead)
        return -EIO;
    holes_fill(s, d);
    return (ssize_t)d->len;
}

static ssize_t sim_do_meta(struct zn_sim *s, struct sim_doing *d)
{
    static const enum sim_change_kind kinds[] = {
        [SIM_RESIZE] = SIM_CHANGE_RESIZE,
        [SIM_CREATE] = SIM_CHANGE_CREATE,
        [SIM_DELETE] = SIM_CHANGE_DELETE,
    };
    enum sim_kind kind = d->op->kind;
    unsigned file = d->op->file;
    struct sim_change *c;

    if (s->now[file].exists == (kind == SIM_CREATE))
        return kind == SIM_CREATE ? -EEXIST : -ENOENT;
    if (kind == SIM_RESIZE && d->off > SIM_SIZE_MAX)
        return -EFBIG;
    if (kind == SIM_CREATE)
        s->files[file].births++;
    c = sim_change_new(kinds[kind], file,
                       kind == SIM_CREATE ? s->files[file].births : s->now[file].born, d->off, NULL,
                       0);
    return c ? sim_change(s, d, c) : -ENOMEM;
}

static ssize_t sim_do_flush(struct zn_sim *s, struct sim_doing *d)
{
    unsigned file = d->op->file;
    int rc;

    if (s->dead)
        return -EIO;
    rc = sim_record_room(s);
    if (rc == 0 && d->op->kind == SIM_FLUSH_NAMES)
        sim_state_flush_names(&s->state);
    else if (rc == 0)
        rc = sim_state_flush(&s->state, file, s->files[file].tainted ? NULL : &s->now[file]);
    if (rc == 0)
        sim_record(s, d->op->kind == SIM_FLUSH ? SIM_ENTRY_FLUSH : SIM_ENTRY_NAMES, file, NULL);
    return rc;
}

static void sim_forget(struct zn_sim *s, const struct sim_doing *d)
{
    if (s->dead || sim_record_room(s) < 0)
        return;
    sim_state_forget(&s->state, d->op->file, sim_forget_seed(s, d->n));
    s->files[d->op->file].tainted = true;
    sim_record(s, SIM_ENTRY_FORGET, d->op->file, NULL);
}

ssize_t sim_do(struct zn_sim *s, struct sim_op *op)
{
    struct sim_doing d = { .op = op, .off = op->off, .len = op->len };
    ssize_t rc = 0;

    sim_lock(s);
    d.n = s->ops++;
    op->ret_late = false;
    if (op->kind == SIM_READ) {
        uint64_t size = s->now[op->file].size;

        d.len = (size_t)(d.off < size ? zb_min_u64(d.len, size - d.off) : 0);
    }
    if (s->dead) {
        rc = -EIO;
    } else {
        sim_strike_all(s, &d);
        if (s->cut && d.n >= s->cut_op && !s->dead) {
            s->dead = true;
            s->dead_op = d.n;
        }
        rc = d.rc;
        if (d.forget)
            sim_forget(s, &d);
    }
    if (op->kind == SIM_WRITE && rc == 0 && hole_hit(s, &d))
        rc = -ENOSPC;
    if ((rc == 0 || (rc == -ENOSPC && op->kind == SIM_DISCARD)) &&
        (!s->dead || s->dead_op == d.n)) {
        switch (op->kind) {
        case SIM_READ:
            rc = sim_do_read(s, &d);
            break;
        case SIM_WRITE:
            rc = sim_do_write(s, &d);
            break;
        case SIM_FLUSH:
        case SIM_FLUSH_NAMES:
            rc = sim_do_flush(s, &d);
            break;
        case SIM_RESIZE:
        case SIM_CREATE:
        case SIM_DELETE:
            rc = sim_do_meta(s, &d);
            break;
        case SIM_DISCARD:
            rc = sim_do_discard(s, &d);
            break;
        case SIM_ALLOCATE:
            rc = sim_do_allocate(s, &d);
            break;
        }
    }
    sim_snap_due(s);
    sim_unlock(s);
    return rc;
}
