/*
 * change.c - the queue of durable changes: see change.h; store.h has the invariants T1 to T3.
 *
 * MODEL. One change runs at a time, store->runs. Its steps are those of enum
 * change_state; the loop resumes each of them. Only the catalog's thread uses the catalog, in
 * CATALOG.
 *
 * While a change without pages of its own is made durable, page writes of others wait
 * (zsd_hold_begin()): a client waits for the change, and most of its time is that of its flushes.
 * For a change with pages nothing is held: it has to wait for the flush of these pages anyway.
 *
 * INVARIANTS
 *
 *     C1  Between two changes the slots match the catalog. A change that fails after CATALOG leaves
 *         the catalog one change ahead of the slots. So it poisons the store, and no other change
 *         runs.
 *     C2  done() runs once, for every change that was started.
 */
#include "daemon/store/change.h"

#include <assert.h>
#include <errno.h>

#include "daemon/store/copies.h"
#include "daemon/store/drains.h"
#include "daemon/store/store.h"

enum change_state {
    CHANGE_BEGIN,
    CHANGE_SYNC,
    CHANGE_CATALOG,
    CHANGE_COPIES,
    CHANGE_SLOT,
    CHANGE_SLOT_FLUSH,
    CHANGE_SETTLE,
    CHANGE_OVER
};

static void change_run(struct zsd_change *c);

static void change_on_work(struct zsd_work *work)
{
    change_run(zb_container_of(work, struct zsd_change, work));
}

static void change_on_io(struct zsd_pio *pio, int rc)
{
    struct zsd_change *c = zb_container_of(pio, struct zsd_change, pio);

    if (rc < 0) {
        (void)zb_fail(&c->err, rc,
                      "%s of the data file failed: %m; nothing is committed any more "
                      "until the daemon is restarted",
                      pio->io.op == ZN_FLUSH ? "a flush" : "the write of a commit slot");
        c->poisons = true;
        c->doubt = c->state != CHANGE_CATALOG;
    }
    change_run(c);
}

static void change_io(struct zsd_change *c, enum zn_op op)
{
    c->pio.io = (struct zn_io){ .op = op, .buf = &c->slot, .urgent = true };
    c->pio.done = change_on_io;
    zsd_pio_start(c->core, &c->pio);
}

static void change_run_task(struct zsd_task *task)
{
    struct zsd_change *c = zb_container_of(task, struct zsd_change, task);
    struct zn_catalog *catalog = c->core->store->catalog;

    if ((c->fill && c->fill(c, &c->err) < 0) || c->looks)
        return;
    if (zn_catalog_commit(catalog, c->txn, &c->slot, &c->err) < 0)
        c->poisons = c->doubt = !(c->full = c->err.code == -ENOSPC);
    else
        (void)zn_catalog_size(catalog, &c->size, NULL); /* if it fails, df has the previous one */
}

static void change_on_task(struct zsd_task *task)
{
    change_run(zb_container_of(task, struct zsd_change, task));
}

/* False: incomplete, call again in the next turn. */
static bool change_begin(struct zsd_change *c)
{
    struct zsd_store *store = c->core->store;
    int rc;

    if (store->poisoned.code != 0 && !c->looks) {
        c->err = store->poisoned;
        return true;
    }
    if (c->looks && !c->holds && zsd_fair_next(&store->line)) {
        (void)zb_fail(&c->err, -EAGAIN, "a change waits");
        return true;
    }
    if (!c->txn)
        c->txn = zn_txn_new();
    if (!c->txn) {
        (void)zb_fail(&c->err, -ENOMEM, "a change of the catalog: %m");
        return true;
    }
    rc = c->begin(c, &c->err);
    assert(rc >= 0 || c->err.code < 0);
    if (rc == 0 && !c->looks)
        rc = zsd_drains_put(store, c->txn, &c->drains, &c->err);
    return rc <= 0;
}

static void change_count(const struct zsd_change *c)
{
    struct zsd_store *store = c->core->store;
    struct zsd_stats *stats = &c->core->daemon->stats;

    if (c->looks)
        return;
    stats->catalog_changes += c->err.code == 0;
    stats->catalog_failed += c->poisons || c->full;
    if (c->full)
        store->full = c->err;
    else if (c->err.code == 0)
        store->full.code = 0;
}

/* Begins SETTLE: the change is durable, or has failed. */
static void change_durable(struct zsd_change *c)
{
    struct zsd_store *store = c->core->store;

    c->settling = true;
    change_count(c);
    if (c->err.code == 0 && !c->looks) {
        store->sequence = c->slot.sequence;
        store->drains = c->drains;
        if (c->size.file_bytes > 0)
            store->catalog_bytes = c->size.file_bytes;
    } else if (c->err.code != 0 && c->poisons && store->poisoned.code == 0) {
        store->poisoned = c->err;
        zb_log(ZB_LOG_ERROR, "store-poisoned", "why=\"%s\"", c->err.text);
    }
    zn_txn_free(c->txn);
    c->txn = NULL;
    zsd_hold_end(c->core);
}

/* False: incomplete, call again in the next turn. */
static bool change_settle(struct zsd_change *c)
{
    if (!c->settling)
        change_durable(c);
    return !c->settle || c->settle(c, c->err.code != 0 ? &c->err : NULL);
}

/* Takes the next change out of the queue, and lets it run. */
static void change_next(struct zsd_core *core)
{
    struct zsd_store *store = core->store;
    struct zsd_turn *turn = zsd_fair_next(&store->line);

    store->runs = NULL;
    if (!turn)
        return;
    zsd_fair_take(&store->line, turn);
    store->runs = zb_container_of(turn, struct zsd_change, turn);
    zsd_defer(core, &store->runs->work);
}

static void change_over(struct zsd_change *c)
{
    struct zsd_core *core = c->core;
    struct zb_err err = c->err;

    core->in_progress--;
    change_next(core);
    c->done(c, err.code != 0 ? &err : NULL); /* C2; may free c */
}

static void change_run(struct zsd_change *c)
{
    for (;;) {
        if (c->err.code != 0 && c->state < CHANGE_SETTLE)
            c->state = CHANGE_SETTLE;
        switch ((enum change_state)c->state) {
        case CHANGE_BEGIN:
            if (!change_begin(c)) {
                zsd_defer(c->core, &c->work);
                return;
            }
            c->state = c->sync ? CHANGE_SYNC : CHANGE_CATALOG;
            if (!c->sync && !c->looks)
                zsd_hold_begin(c->core);
            break;
        case CHANGE_SYNC:
            c->state = CHANGE_CATALOG;
            change_io(c, ZN_FLUSH);
            return;
        case CHANGE_CATALOG:
            c->state = c->looks ? CHANGE_SETTLE : CHANGE_COPIES;
            c->task = (struct zsd_task){ .run = change_run_task, .done = change_on_task };
            zsd_compute_post(c->core->daemon->catalog_thread, &c->task);
            return;
        case CHANGE_COPIES:
            c->state = CHANGE_SLOT;
            if (zsd_copies_commit(c->core->store, c->txn, &c->slot, &c->work))
                return;
            break;
        case CHANGE_SLOT:
            c->state = CHANGE_SLOT_FLUSH;
            change_io(c, ZN_SLOT);
            return;
        case CHANGE_SLOT_FLUSH:
            c->state = CHANGE_SETTLE;
            change_io(c, ZN_FLUSH);
            return;
        case CHANGE_SETTLE:
            if (!change_settle(c)) {
                zsd_defer(c->core, &c->work);
                return;
            }
            c->state = CHANGE_OVER;
            break;
        case CHANGE_OVER:
            change_over(c);
            return;
        }
    }
}

void zsd_change_start(struct zsd_core *core, struct zsd_change *c)
{
    struct zsd_store *store = core->store;

    if (store->runs && !store->runs->holds)
        atomic_store_explicit(&store->runs->asked, true, memory_order_relaxed);
    c->core = core;
    c->state = CHANGE_BEGIN;
    c->poisons = c->full = c->doubt = c->settling = false;
    atomic_init(&c->asked, false);
    c->err = (struct zb_err){ 0 };
    c->size = (struct zn_catalog_size){ 0 };
    c->txn = NULL;
    c->work.run = change_on_work;
    zb_list_init(&c->work.node);
    zsd_fair_push(&store->line, c->flow ? c->flow : &store->house, &c->turn, 0, ZSD_SHARE_DEFAULT,
                  false);
    core->in_progress++;
    if (!store->runs)
        change_next(core);
}
