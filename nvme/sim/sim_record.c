/*
 * sim_record.c - the recording of a simulated device, and its replay: the model is in sim.c.
 */
#include <errno.h>

#include "base/array.h"
#include "nvme/sim/sim_device_priv.h"

#define SIM_SNAP_ENTRIES 16u
#define SIM_SNAP_BYTES   (UINT64_C(128) << 10)

int sim_snap(struct zn_sim *s)
{
    struct sim_snap *snap;

    if (!s->options.record)
        return 0;
    if (zb_grow(&s->snaps, &s->snaps_room, s->nsnaps, 1) < 0)
        return -ENOMEM;
    snap = &s->snaps[s->nsnaps];
    *snap = (struct sim_snap){ .op = s->ops, .entry = s->nentries };
    if (sim_state_copy(&snap->state, &s->state) < 0) {
        sim_state_done(&snap->state);
        return -ENOMEM;
    }
    s->nsnaps++;
    s->unsnapped_bytes = 0;
    return 0;
}

int sim_record_room(struct zn_sim *s)
{
    return s->options.record ? zb_grow(&s->entries, &s->entries_room, s->nentries, 1) : 0;
}

void sim_record(struct zn_sim *s, enum sim_entry_kind kind, unsigned file,
                struct sim_change *change)
{
    if (!s->options.record)
        return;
    s->entries[s->nentries++] = (struct sim_entry){
        .op = s->ops - 1,
        .kind = kind,
        .file = file,
        .change = change ? sim_change_ref(change) : NULL,
    };
    s->unsnapped_bytes += change ? change->len : 0;
}

void sim_snap_due(struct zn_sim *s)
{
    size_t last = s->nsnaps > 0 ? s->snaps[s->nsnaps - 1].entry : 0;

    if (s->nentries - last >= SIM_SNAP_ENTRIES || s->unsnapped_bytes >= SIM_SNAP_BYTES)
        (void)sim_snap(s);
}

/* ---- replay */

void sim_write_back(struct sim_state *st, const struct sim_file *files, const struct sim_data *now)
{
    if (st->pending_bytes <= SIM_CACHE_BYTES)
        return;
    for (unsigned i = 0; i < st->nfiles; i++)
        (void)sim_state_flush(st, i, now && !files[i].tainted ? &now[i] : NULL);
}

const struct sim_snap *sim_snap_before(const struct zn_sim *s, uint64_t op)
{
    size_t at;

    zb_lower_bound(at, s->nsnaps, s->snaps[at].op <= op);
    return at > 0 ? &s->snaps[at - 1] : NULL;
}

int sim_replay(struct sim_state *st, const struct zn_sim *s, size_t first, uint64_t op)
{
    int rc = 0;

    for (size_t i = first; rc == 0 && i < s->nentries && s->entries[i].op <= op; i++) {
        const struct sim_entry *e = &s->entries[i];

        switch (e->kind) {
        case SIM_ENTRY_CHANGE:
            rc = sim_state_room(st, e->file);
            if (rc == 0) {
                sim_state_add(st, sim_change_ref(e->change));
                if (e->op < op)
                    sim_write_back(st, NULL, NULL);
            }
            break;
        case SIM_ENTRY_FLUSH:
            if (e->op < op)
                rc = sim_state_flush(st, e->file, NULL);
            break;
        case SIM_ENTRY_NAMES:
            if (e->op < op)
                sim_state_flush_names(st);
            break;
        case SIM_ENTRY_FORGET:
            if (e->op < op)
                sim_state_forget(st, e->file, sim_forget_seed(s, e->op));
            break;
        }
    }
    return rc;
}
