/*
 * copies.c - copies of the catalog: see copies.h.
 *
 * A copy that has failed is closed. If its drive had no space, it is made again with a later change:
 * the next one, then after 2, 4 ... 64 more. One copy at a time is made: they are read from the
 * catalog.
 */
#include "daemon/store/copies.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/slots.h"
#include "daemon/disk/paths.h"
#include "daemon/store/store.h"

#define RETRY_MAX 64u /* changes */

struct copy {
    struct zsd_copies *all;
    unsigned path;
    struct zn_catalog *catalog; /* NULL: there is none, or it has failed */
    struct zb_err why;          /* why it has failed; code 0: it has not */
    unsigned missed;            /* changes since then */
    bool takes_part;            /* in the change that is being committed */
    struct zsd_task task;
    struct zb_err err;
};

struct zsd_copies {
    struct zsd_core *core;
    struct copy list[ZN_PATHS_MAX];
    /* the change that is being committed */
    const struct zn_txn *txn;
    struct zn_slot slot;
    unsigned left; /* copies that do not have it yet */
    struct zsd_work *work;
};

static struct zn_catalog_options copy_options(const struct zsd *daemon, unsigned path)
{
    return (struct zn_catalog_options){ .path = path > 0 ? daemon->more[path - 1].copy_path : NULL,
                                        .vfs = daemon->catalog_vfs,
                                        .read_only = daemon->read_only };
}

static bool slot_same(const struct zn_slot *a, const struct zn_slot *b)
{
    return a->sequence == b->sequence && a->digest == b->digest &&
           memcmp(a->catalog, b->catalog, sizeof(a->catalog)) == 0;
}

static void copy_failed(struct copy *y, const struct zb_err *why)
{
    if (strcmp(y->why.text, why->text) != 0)
        zb_log(ZB_LOG_WARN, "catalog-copy-failed", "number=%u directory=\"%s\" why=\"%s\"",
               y->path + 1, zsd_path_folder(y->all->core->daemon, y->path), why->text);
    y->why = *why;
}

static void copy_made(struct copy *y)
{
    y->why = (struct zb_err){ 0 };
    y->missed = 0;
    zb_log(ZB_LOG_INFO, "catalog-copied", "number=%u directory=\"%s\" sequence=%llu", y->path + 1,
           zsd_path_folder(y->all->core->daemon, y->path),
           (unsigned long long)zn_catalog_slot(y->catalog).sequence);
}

/* ---- changes */

static void copy_commit(struct copy *y)
{
    const struct zsd_store *store = y->all->core->store;
    const struct zn_catalog_options o = copy_options(store->core->daemon, y->path);
    struct zn_slot slot = { 0 };
    int rc;

    if (y->catalog) {
        rc = zn_catalog_commit(y->catalog, y->all->txn, &slot, &y->err);
    } else {
        rc = zn_catalog_copy(&y->catalog, &o, store->catalog, &y->err);
        if (rc == 0)
            slot = zn_catalog_slot(y->catalog);
    }
    if (rc == 0 && !slot_same(&slot, &y->all->slot))
        (void)zb_fail(&y->err, -EBADMSG, "the copy of the catalog differs from it");
}

/* Gives up a copy that has failed. */
static void copy_committed(struct copy *y)
{
    if (y->err.code == 0) {
        if (y->why.code != 0)
            copy_made(y);
        return;
    }
    copy_failed(y, &y->err);
    y->err = (struct zb_err){ 0 };
    zn_catalog_close(y->catalog);
    y->catalog = NULL;
}

static void copy_run_task(struct zsd_task *task)
{
    copy_commit(zb_container_of(task, struct copy, task));
}

static void copy_on_task(struct zsd_task *task)
{
    struct copy *y = zb_container_of(task, struct copy, task);

    copy_committed(y);
    if (--y->all->left == 0)
        zsd_defer(y->all->core, y->all->work);
}

/* Whether a copy that found no space is made again with this change. */
static bool copy_again(struct copy *y)
{
    if (y->catalog || y->why.code != -ENOSPC)
        return false;
    y->missed++;
    return (y->missed < RETRY_MAX && (y->missed & (y->missed - 1)) == 0) ||
           y->missed % RETRY_MAX == 0;
}

static void copies_choose(struct zsd_copies *all)
{
    bool makes = false;

    all->left = 0;
    for (unsigned i = 0; i < ZN_PATHS_MAX; i++) {
        struct copy *y = &all->list[i];
        bool again = copy_again(y) && !makes;

        makes |= again;
        y->takes_part = y->catalog || again;
        all->left += y->takes_part;
    }
}

bool zsd_copies_commit(struct zsd_store *store, const struct zn_txn *t, const struct zn_slot *slot,
                       struct zsd_work *work)
{
    struct zsd_copies *all = store->copies;

    if (!all)
        return false;
    all->txn = t;
    all->slot = *slot;
    all->work = work;
    copies_choose(all);
    if (all->left == 0)
        return false;
    for (unsigned i = 0; i < ZN_PATHS_MAX; i++) {
        struct copy *y = &all->list[i];

        if (!y->takes_part)
            continue;
        y->task = (struct zsd_task){ .run = copy_run_task, .done = copy_on_task };
        zsd_compute_post(store->core->daemon->catalog_thread, &y->task);
    }
    return true;
}

void zsd_copies_commit_now(struct zsd_store *store, const struct zn_txn *t,
                           const struct zn_slot *slot)
{
    struct zsd_copies *all = store->copies;

    for (unsigned i = 0; all && i < ZN_PATHS_MAX; i++) {
        all->txn = t;
        all->slot = *slot;
        if (!all->list[i].catalog)
            continue;
        copy_commit(&all->list[i]);
        copy_committed(&all->list[i]);
    }
}

/* ---- open and close */

/* Opens the copy, and makes it again if it is not the same as the catalog. */
static void copy_open(struct zsd_store *store, struct copy *y)
{
    const struct zn_catalog_options o = copy_options(store->core->daemon, y->path);
    const struct zn_slot slot = zn_catalog_slot(store->catalog);
    struct zb_err why = { 0 };
    int rc = zn_catalog_open(&y->catalog, &o, &slot, 1, &why);

    if (rc == 0) {
        const struct zn_slot has = zn_catalog_slot(y->catalog);

        if (slot_same(&has, &slot))
            return;
        zn_catalog_close(y->catalog);
        y->catalog = NULL;
    }
    if (rc != -EBUSY && rc != -ENOMEM && rc != -ELOOP && rc != -EMEDIUMTYPE) {
        why = (struct zb_err){ 0 };
        rc = zn_catalog_copy(&y->catalog, &o, store->catalog, &why);
    }
    if (rc < 0)
        copy_failed(y, &why);
    else
        copy_made(y);
}

/* The newest copy that is right, and its path; NULL: there is none. */
static struct zn_catalog *copies_newest(const struct zsd *daemon, const struct zn_slot *slots,
                                        unsigned n, unsigned *ret_path)
{
    struct zn_catalog *best = NULL;

    for (unsigned i = 1; i < zsd_paths(daemon); i++) {
        const struct zn_catalog_options o = copy_options(daemon, i);
        struct zn_catalog *c = NULL;

        if (!o.path || zn_catalog_open(&c, &o, slots, n, NULL) < 0)
            continue;
        if (best && zn_catalog_slot(best).sequence >= zn_catalog_slot(c).sequence) {
            zn_catalog_close(c);
            continue;
        }
        zn_catalog_close(best);
        best = c;
        *ret_path = i;
    }
    return best;
}

/* Keeps what is left of the catalog under another name. */
static void copies_set_aside(const char *path)
{
    static const char *const ends[] = { "-wal", "" };

    for (size_t i = 0; i < ZB_COUNT(ends); i++) {
        char from[PATH_MAX + 16], to[PATH_MAX + 32];

        (void)snprintf(from, sizeof(from), "%s%s", path, ends[i]);
        (void)snprintf(to, sizeof(to), "%s.damaged%s", path, ends[i]);
        (void)rename(from, to); /* if it fails, the copy replaces it */
    }
}

/* Replaces the catalog, which does not open because of *why, with the newest copy. */
static int copies_restore(struct zsd_store *store, const struct zn_catalog_options *options,
                          const struct zn_slot *slots, unsigned n, const struct zb_err *why,
                          struct zb_err *err)
{
    const struct zsd *daemon = store->core->daemon;
    unsigned path = 0;
    struct zn_catalog *best = copies_newest(daemon, slots, n, &path);
    int rc;

    if (!best)
        return zb_fail(err, why->code, "%s", why->text);
    if (!options->vfs)
        copies_set_aside(options->path);
    rc = zn_catalog_copy(&store->catalog, options, best, err);
    if (rc == 0)
        zb_log(ZB_LOG_WARN, "catalog-restored",
               "from=\"%s\" number=%u directory=\"%s\" sequence=%llu why=\"%s\"",
               copy_options(daemon, path).path, path + 1, zsd_path_folder(daemon, path),
               (unsigned long long)zn_catalog_slot(best).sequence, why->text);
    zn_catalog_close(best);
    return rc;
}

/* Reads the newest copy in place of the catalog, which does not open because of *why. */
static int copies_read(struct zsd_store *store, const struct zn_slot *slots, unsigned n,
                       const struct zb_err *why, struct zb_err *err)
{
    unsigned path = 0;

    store->catalog = copies_newest(store->core->daemon, slots, n, &path);
    if (!store->catalog)
        return zb_fail(err, why->code, "%s", why->text);
    zb_log(ZB_LOG_WARN, "catalog-copy-read", "number=%u directory=\"%s\" why=\"%s\"", path + 1,
           zsd_path_folder(store->core->daemon, path), why->text);
    return 0;
}

int zsd_copies_open(struct zsd_store *store, const struct zn_catalog_options *options,
                    const struct zn_slot *slots, unsigned n, struct zb_err *err)
{
    const struct zsd *daemon = store->core->daemon;
    struct zb_err why = { 0 };
    int rc = zn_catalog_open(&store->catalog, options, slots, n, &why);

    if ((rc == -ENOENT || rc == -EBADMSG || rc == -EIO) && daemon->config.read_only)
        rc = copies_read(store, slots, n, &why, err);
    else if ((rc == -ENOENT || rc == -EBADMSG || rc == -EIO) && !options->read_only)
        rc = copies_restore(store, options, slots, n, &why, err);
    else if (rc < 0)
        (void)zb_fail(err, rc, "%s", why.text);
    return rc;
}

int zsd_copies_begin(struct zsd_store *store, struct zb_err *err)
{
    const struct zsd *daemon = store->core->daemon;

    if (zsd_paths(daemon) == 1)
        return 0;
    store->copies = calloc(1, sizeof(*store->copies));
    if (!store->copies)
        return zb_fail(err, -ENOMEM, "copies of the catalog: %m");
    store->copies->core = store->core;
    for (unsigned i = 1; i < zsd_paths(daemon); i++) {
        store->copies->list[i].all = store->copies;
        store->copies->list[i].path = i;
        if (copy_options(daemon, i).path)
            copy_open(store, &store->copies->list[i]);
    }
    return 0;
}

unsigned zsd_copies_failing(const struct zsd_store *store, unsigned *ret_path, struct zb_err *ret)
{
    unsigned n = 0;

    for (unsigned i = 0; store->copies && i < ZN_PATHS_MAX; i++) {
        const struct copy *y = &store->copies->list[i];

        if (y->why.code == 0)
            continue;
        if (n++ == 0) {
            *ret_path = i;
            *ret = y->why;
        }
    }
    return n;
}

void zsd_copies_close(struct zsd_store *store)
{
    for (unsigned i = 0; store->copies && i < ZN_PATHS_MAX; i++)
        zn_catalog_close(store->copies->list[i].catalog);
    free(store->copies);
    store->copies = NULL;
}
