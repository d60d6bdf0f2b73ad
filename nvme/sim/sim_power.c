/*
 * sim_power.c - power cuts of a simulated device, when they happen and from a recording, and the
 * restart.
 */
#include <assert.h>
#include <errno.h>

#include "nvme/sim/sim_device_priv.h"

void zn_sim_cut(struct zn_sim *s, uint64_t op, uint32_t variant)
{
    sim_lock(s);
    s->cut = true;
    s->cut_op = op;
    s->cut_variant = variant;
    sim_unlock(s);
}

/* What is durable is all that there is. */
static int sim_forget_now(struct zn_sim *s)
{
    for (unsigned i = 0; i < s->nfiles; i++) {
        struct sim_data copy;

        if (sim_data_copy(&copy, &s->state.files[i]) < 0)
            return -ENOMEM;
        sim_data_done(&s->now[i]);
        s->now[i] = copy;
        s->files[i].tainted = false;
    }
    return 0;
}

int zn_sim_restart(struct zn_sim *s)
{
    int rc = 0;

    sim_lock(s);
    assert(s->users == 0);
    if (!s->options.discard)
        rc = sim_state_settle(&s->state, sim_settle_seed(s, s->dead ? s->dead_op : s->ops),
                              s->cut_variant);
    if (rc == 0 && !s->options.discard)
        rc = sim_forget_now(s);
    if (rc == 0)
        rc = sim_snap(s);
    s->dead = s->cut = false;
    s->nholes = 0;
    s->cut_variant = 0;
    s->nrules = 0;
    sim_unlock(s);
    return rc;
}

/* ---- from a recording */

static int sim_build_cut(struct zn_sim *to, const struct zn_sim *s, const struct sim_snap *snap,
                         uint64_t op, uint32_t variant)
{
    int rc = sim_state_copy(&to->state, &snap->state);

    if (rc == 0)
        rc = sim_replay(&to->state, s, snap->entry, op);
    if (rc == 0)
        rc = sim_state_settle(&to->state, sim_settle_seed(s, op), variant);
    if (rc == 0 && s->nfiles > 0)
        rc = sim_state_room(&to->state, s->nfiles - 1);
    if (rc == 0)
        rc = sim_copy_files(to, s, to->state.files);
    for (unsigned i = 0; rc == 0 && i < to->nfiles; i++)
        to->files[i].tainted = false;
    to->ops = op + 1;
    to->draws = op;
    return rc < 0 ? rc : sim_snap(to);
}

int zn_sim_cut_at(struct zn_sim **ret, const struct zn_sim *s, uint64_t op, uint32_t variant,
                  struct zb_err *err)
{
    const struct sim_snap *snap;
    struct zn_sim *cut;
    int rc;

    sim_lock(s);
    snap = op <= s->ops ? sim_snap_before(s, op) : NULL;
    if (!snap) {
        sim_unlock(s);
        return zb_fail(err, -EINVAL, "operation %llu of a simulated device was not recorded",
                       (unsigned long long)op);
    }
    cut = sim_alloc(&s->options);
    rc = cut ? sim_build_cut(cut, s, snap, op, variant) : -ENOMEM;
    sim_unlock(s);
    if (rc < 0) {
        zn_sim_free(cut);
        return zb_fail(err, rc, "a simulated device after a power cut: %m");
    }
    *ret = cut;
    return 0;
}
