/*
 * sim_fault.c - faults of a simulated device: the rules, and their effects on an operation.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/util.h"
#include "nvme/sim/sim_device_priv.h"

#define SIM_MISPLACE UINT64_C(4096)

static const char *const fault_names[] = {
    [ZN_FAULT_EIO] = "eio",           [ZN_FAULT_ENOSPC] = "enospc", [ZN_FAULT_SHORT] = "short",
    [ZN_FAULT_FLUSH] = "flush",       [ZN_FAULT_LOST] = "lost",     [ZN_FAULT_STALE] = "stale",
    [ZN_FAULT_MISPLACE] = "misplace", [ZN_FAULT_FLIP] = "flip",     [ZN_FAULT_DELAY] = "delay",
    [ZN_FAULT_EDQUOT] = "edquot",     [ZN_FAULT_DEAD] = "dead",
};
_Static_assert(ZB_COUNT(fault_names) == ZN_FAULTS, "a name for each");

const char *zn_fault_name(enum zn_fault f)
{
    return (unsigned)f < ZN_FAULTS ? fault_names[f] : "none";
}

int zn_sim_fault(struct zn_sim *s, enum zn_fault fault, uint64_t op, bool forever)
{
    struct sim_rule *rules;

    if ((unsigned)fault >= ZN_FAULTS)
        return -EINVAL;
    sim_lock(s);
    rules = realloc(s->rules, (s->nrules + 1) * sizeof(*rules));
    if (rules) {
        s->rules = rules;
        s->rules[s->nrules++] = (struct sim_rule){ .fault = fault, .op = op, .forever = forever };
    }
    sim_unlock(s);
    return rules ? 0 : -ENOMEM;
}

void zn_sim_faults_clear(struct zn_sim *s)
{
    sim_lock(s);
    s->nrules = 0;
    sim_unlock(s);
}

uint64_t zn_sim_struck(const struct zn_sim *s)
{
    uint64_t struck;

    sim_lock(s);
    struck = s->struck;
    sim_unlock(s);
    return struck;
}

/* Places of SIM_MISPLACE in which a write of this length fits. */
static uint64_t sim_places(const struct zn_sim *s, const struct sim_doing *d)
{
    uint64_t size = s->now[d->op->file].size;

    return size < d->len ? 0 : (size - d->len) / SIM_MISPLACE + 1;
}

static bool sim_applies(const struct zn_sim *s, const struct sim_doing *d, enum zn_fault fault)
{
    const struct sim_op *op = d->op;
    bool transfer = op->kind == SIM_READ || op->kind == SIM_WRITE;

    switch (fault) {
    case ZN_FAULT_EIO:
    case ZN_FAULT_DEAD:
        return true;
    case ZN_FAULT_ENOSPC:
    case ZN_FAULT_EDQUOT:
        return op->kind == SIM_WRITE || op->kind == SIM_DISCARD || op->kind == SIM_ALLOCATE ||
               (op->kind == SIM_RESIZE && op->off > s->now[op->file].size);
    case ZN_FAULT_SHORT:
        return transfer && d->len > SIM_SECTOR;
    case ZN_FAULT_FLUSH:
        return op->kind == SIM_FLUSH || op->kind == SIM_FLUSH_NAMES;
    case ZN_FAULT_LOST:
    case ZN_FAULT_STALE:
        return op->kind == SIM_WRITE;
    case ZN_FAULT_MISPLACE:
        return op->kind == SIM_WRITE && sim_places(s, d) > (d->off % SIM_MISPLACE == 0 ? 1 : 0);
    case ZN_FAULT_FLIP:
        return transfer && d->len > 0;
    case ZN_FAULT_DELAY:
        return op->engine;
    case ZN_FAULTS:
        break;
    }
    return false;
}

static void sim_strike(struct zn_sim *s, struct sim_doing *d, enum zn_fault fault)
{
    uint64_t seed = sim_mix(sim_mix(s->options.seed, DRAW_FAULT), d->n * ZN_FAULTS + fault);

    s->struck++;
    switch (fault) {
    case ZN_FAULT_EIO:
        d->rc = -EIO;
        break;
    case ZN_FAULT_ENOSPC:
        d->rc = -ENOSPC;
        break;
    case ZN_FAULT_EDQUOT:
        d->rc = d->op->kind == SIM_DISCARD ? -ENOSPC : -EDQUOT;
        break;
    case ZN_FAULT_SHORT:
        d->len = (size_t)(SIM_SECTOR * (1 + sim_draw(&seed) % ((d->len - 1) / SIM_SECTOR)));
        break;
    case ZN_FAULT_FLUSH:
        d->forget = d->op->kind == SIM_FLUSH;
        d->rc = -EIO;
        break;
    case ZN_FAULT_LOST:
        d->lost = true;
        break;
    case ZN_FAULT_STALE:
        d->stale = true;
        break;
    case ZN_FAULT_MISPLACE: {
        uint64_t places = sim_places(s, d), at = sim_draw(&seed) % places;

        if (at * SIM_MISPLACE == d->off)
            at = (at + 1) % places;
        d->off = at * SIM_MISPLACE;
        break;
    }
    case ZN_FAULT_FLIP:
        d->flip = true;
        d->flip_at = sim_draw(&seed) % (8 * (uint64_t)d->len);
        break;
    case ZN_FAULT_DELAY:
        d->op->ret_late = true;
        break;
    case ZN_FAULT_DEAD:
        s->dead = true;
        s->dead_op = d->n;
        break;
    case ZN_FAULTS:
        break;
    }
}

void sim_strike_all(struct zn_sim *s, struct sim_doing *d)
{
    for (unsigned i = 0; i < s->nrules && d->rc == 0; i++) {
        struct sim_rule *r = &s->rules[i];

        if (r->spent || d->n < r->op || !sim_applies(s, d, r->fault))
            continue;
        r->spent = !r->forever;
        sim_strike(s, d, r->fault);
    }
}

uint64_t zn_sim_holes(const struct zn_sim *s)
{
    uint64_t bytes = 0;

    sim_lock(s);
    for (unsigned i = 0; i < s->nholes; i++)
        bytes += s->holes[i].len;
    sim_unlock(s);
    return bytes;
}
