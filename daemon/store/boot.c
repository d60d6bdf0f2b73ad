/*
 * boot.c - the first change of a run of the daemon: it commits the boot number (T3), and so proves
 * that catalog and data files can be written. store.h has the model.
 */
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>

#include "daemon/disk/paths.h"
#include "daemon/store/copies.h"
#include "daemon/store/store.h"

#define BOOT_SHIFT 40 /* T3: 2^40 pages per run of the daemon, 2^24 starts */

struct zsd_store_record zsd_store_record(const struct zsd_store *store, int namesakes, int images)
{
    uint32_t features = 0;

    if ((int64_t)store->namesakes + namesakes > 0)
        features |= ZSD_FEATURE_NAMES_PER_USER;
    if ((int64_t)store->images + images > 0)
        features |= ZSD_FEATURE_IMAGES;
    return (struct zsd_store_record){ .boot = store->boot,
                                      .next_id = store->next_id,
                                      .next_job = store->core->next_job,
                                      .features = features };
}

static void store_on_io(struct zn_io *io, int rc)
{
    io->res = rc;
    io->done = NULL;
}

/* Submits one request and waits for it: only before the loop runs. */
static int store_io_wait(struct zn_engine *e, enum zn_op op, struct zn_slot *slot)
{
    struct zn_io io = { .op = op, .buf = slot, .done = store_on_io };
    struct pollfd p = { .fd = zn_wake_fd(e), .events = POLLIN };
    int rc = zn_submit(e, &io);
    eventfd_t n;

    if (rc < 0)
        return rc;
    while (io.done) {
        zn_kick(e);
        (void)poll(&p, 1, 100);
        (void)eventfd_read(p.fd, &n);
        (void)zn_reap(e, 1);
    }
    return io.res;
}

/* Writes and flushes the commit slot of every data file. */
static int store_tell(const struct zsd_store *store, struct zn_slot slot, struct zb_err *err)
{
    const struct zsd *daemon = store->core->daemon;
    int rc = 0;

    for (unsigned i = 0; i < zsd_paths(daemon) && rc == 0; i++) {
        rc = store_io_wait(zsd_path_engine(daemon, i), ZN_SLOT, &slot);
        if (rc == 0)
            rc = store_io_wait(zsd_path_engine(daemon, i), ZN_FLUSH, NULL);
    }
    return rc < 0 ? zb_fail(err, rc, "the commit slot of a data file: %m") : 0;
}

/* Commits a new boot number (T3). First brings the slots up to the catalog as it was found:
 * otherwise a power cut could leave the catalog two transactions ahead of them. */
int zsd_store_boot(struct zsd_store *store, struct zb_err *err)
{
    struct zn_slot slot = zn_catalog_slot(store->catalog);
    struct zsd_store_record record;
    struct zn_txn *t;
    int rc = slot.sequence > 0 ? store_tell(store, slot, err) : 0;

    if (rc < 0)
        return rc;
    t = zn_txn_new();
    store->boot++;
    record = zsd_store_record(store, 0, 0);
    rc = t ? zsd_record_put_store(t, &record) : -ENOMEM;
    if (rc < 0)
        (void)zb_fail(err, rc, "the first change of the catalog: %m");
    else
        rc = zn_catalog_commit(store->catalog, t, &slot, err);
    if (rc == 0)
        zsd_copies_commit_now(store, t, &slot);
    zn_txn_free(t);
    if (rc == 0)
        rc = store_tell(store, slot, err);
    if (rc < 0)
        return rc;
    store->sequence = slot.sequence;
    zsd_generation_from(store->core, store->boot << BOOT_SHIFT);
    return 0;
}
