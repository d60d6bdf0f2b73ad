/*
 * offline.c - see offline.h.
 *
 * MODEL. The core runs without a loop, on data files and a catalog that are open read-only.
 * Recovery loads the metadata, as in a daemon. zsd_core_settle() then runs turns until all
 * operations have ended. Pages are read by LANES chains; each reads its next page when its last one
 * was verified.
 */
#include "daemon/offline.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/core_life.h"
#include "daemon/disk/datadir.h"
#include "daemon/disk/paths.h"
#include "daemon/show/fsck.h"
#include "daemon/store/retire.h"
#include "daemon/store/rowio.h"

#define LANES       16u
#define PROGRESS_NS 200000000u
#define ALIGN       4096u

struct page {
    struct zsd_row *row;
    const char *job;
};

struct lane {
    struct offline *o;
    struct zsd_row_read read;
    void *buf;
};

struct offline {
    struct zsd *daemon;
    struct zsd_fsck_report report;
    struct zb_err err; /* why fsck failed */
    struct page *rows; /* all saved rows, each once */
    size_t nrows, row; /* row, plane, page: the next page to read */
    enum zsd_saved_plane plane;
    uint32_t page;
    uint64_t read_bytes, all_bytes, told_ns;
    uint64_t bad_pages;
    struct lane lanes[LANES];
};

static void offline_fscked(void *arg, const struct zsd_fsck_report *report,
                           const struct zb_err *err)
{
    struct offline *o = arg;

    if (err)
        o->err = *err;
    else
        o->report = *report;
}

/* ---- every page */

static void rows_of(struct offline *o, const struct zsd_version *v, uint64_t stamp)
{
    for (uint32_t i = 0; v && i < v->nrows; i++) {
        if (v->rows[i]->stamp == stamp)
            continue;
        v->rows[i]->stamp = stamp;
        o->rows[o->nrows++] = (struct page){ v->rows[i], v->saved->name };
        o->all_bytes += zsd_row_bytes(v->rows[i]);
    }
}

static int rows_find(struct offline *o)
{
    struct zsd_store *store = o->daemon->core->store;
    uint64_t stamp = ++store->stamp;
    size_t n = 0;

    zb_list_each(pos, &store->rows) n++;
    o->rows = calloc(zb_max_u64(n, 1), sizeof(*o->rows));
    if (!o->rows)
        return -ENOMEM;
    zb_list_each(pos, &store->saved)
    {
        const struct zsd_saved *s = zb_container_of(pos, struct zsd_saved, node);

        rows_of(o, s->committed, stamp);
        rows_of(o, s->prepared, stamp);
        zb_list_each(at, (struct zb_list *)(uintptr_t)&s->snaps)
            rows_of(o, zb_container_of(at, struct zsd_snap, node)->version, stamp);
    }
    return 0;
}

static void offline_tell(struct offline *o, bool last)
{
    uint64_t now_ns = zb_now_ns();

    if (!isatty(STDERR_FILENO) || (!last && now_ns - o->told_ns < PROGRESS_NS))
        return;
    o->told_ns = now_ns;
    (void)fprintf(stderr, "\rread %s of %s%s", zb_size_text(o->read_bytes).s,
                  zb_size_text(o->all_bytes).s, last ? "\n" : "  ");
}

static void lane_next(struct lane *l);

static void lane_done(struct zsd_row_read *read, const struct zb_err *err)
{
    struct lane *l = zb_container_of(read, struct lane, read);
    struct offline *o = l->o;
    struct zsd_fsck_report *r = &o->report;

    o->read_bytes += zsd_row_page_bytes(read->row, read->plane, read->page);
    if (err) {
        if (r->nproblems < ZSD_PROBLEMS_MAX)
            (void)snprintf(r->problems[r->nproblems], sizeof(r->problems[0]), "%s", err->text);
        r->nproblems++;
        o->bad_pages++;
    }
    offline_tell(o, false);
    lane_next(l);
}

static void lane_next(struct lane *l)
{
    struct offline *o = l->o;

    for (; o->row < o->nrows; o->row++, o->plane = 0) {
        struct page *p = &o->rows[o->row];

        for (; o->plane < ZSD_SAVED_PLANES; o->plane++, o->page = 0) {
            if (p->row->planes[o->plane].block_bytes == 0 || o->page == p->row->npages)
                continue;
            l->read = (struct zsd_row_read){ .core = o->daemon->core,
                                             .row = p->row,
                                             .plane = o->plane,
                                             .page = o->page++,
                                             .buf = l->buf,
                                             .done = lane_done };
            zsd_row_read_start(&l->read, p->job);
            return;
        }
    }
}

static int offline_read(struct offline *o)
{
    uint32_t longest = ALIGN;
    int rc = rows_find(o);

    for (size_t i = 0; i < o->nrows; i++)
        for (enum zsd_saved_plane p = 0; p < ZSD_SAVED_PLANES; p++)
            if (o->rows[i].row->planes[p].block_bytes > 0)
                longest = (uint32_t)zb_max_u64(longest, zsd_row_page_bytes(o->rows[i].row, p, 0));
    for (unsigned i = 0; i < LANES && rc == 0; i++) {
        o->lanes[i].o = o;
        rc = -posix_memalign(&o->lanes[i].buf, ALIGN, longest);
    }
    for (unsigned i = 0; i < LANES && rc == 0; i++)
        lane_next(&o->lanes[i]);
    zsd_core_settle(o->daemon);
    if (rc == 0)
        offline_tell(o, true);
    for (unsigned i = 0; i < LANES; i++)
        free(o->lanes[i].buf);
    free(o->rows);
    return rc;
}

/* ---- up, down */

/* Whether there is that data file, from 0, in what was opened. */
static int path_check(const struct zsd *daemon, unsigned path, struct zb_err *err)
{
    if (path >= zsd_paths(daemon) || zn_is_absent(zsd_path_engine(daemon, path)))
        return zb_fail(err, -EINVAL, "there is no data file number %u in --paths", path + 1);
    return 0;
}

static int retire_check(const struct zsd *daemon, unsigned path, struct zb_err *err)
{
    if (path == 0)
        return zb_fail(err, -EPERM,
                       "data file number 1 cannot be retired: the catalog is next to it");
    return path_check(daemon, path, err);
}

static int shrink_check(const struct zsd *daemon, unsigned path, struct zb_err *err)
{
    uint64_t want = daemon->config.shrink_bytes, has;

    if (path_check(daemon, path, err) < 0)
        return -EINVAL;
    has = zn_info(zsd_path_engine(daemon, path))->size_bytes;
    return want <= has
               ? 0
               : zb_fail(err, -EINVAL, "data file number %u has %s, less than the %s asked for",
                         path + 1, zb_size_text(has).s, zb_size_text(want).s);
}

static int offline_up(struct zsd *daemon, const char *what, bool read_only, struct zb_err *err)
{
    struct zsd_config *config = &daemon->config;
    int rc = zsd_paths_open_found(daemon, what, read_only, err);

    if (rc == 0 && config->retire > 0)
        rc = retire_check(daemon, config->retire - 1, err);
    if (rc == 0 && config->shrink > 0)
        rc = shrink_check(daemon, config->shrink - 1, err);
    if (rc == 0)
        rc = zsd_compute_new(&daemon->compute, config->threads, config->cpus, err);
    if (rc < 0)
        return rc;
    config->ring_bytes = 0;
    config->host_bytes = ZB_GIB; /* a sixteenth becomes page buffers, which are never touched */
    return zsd_core_new(daemon, err);
}

static void offline_down(struct zsd *daemon)
{
    zsd_core_free(daemon);
    zsd_compute_free(daemon->compute);
    zsd_paths_close(daemon);
    zn_close(daemon->engine);
    zsd_datadir_close(daemon->datadir);
}

static void offline_print(const struct offline *o)
{
    const struct zsd_fsck_report *r = &o->report;

    (void)printf("jobs       %" PRIu64 "\nversions   %" PRIu64 "\nsnapshots  %" PRIu64
                 "\nrows       %" PRIu64 "\npages      %" PRIu64 "\nbytes      %s\nsequence   "
                 "%" PRIu64 "\nbad pages  %" PRIu64 "\nproblems   %" PRIu64 "\n",
                 r->jobs, r->versions, r->snapshots, r->rows, r->pages, zb_size_text(r->bytes).s,
                 r->sequence, o->bad_pages, r->nproblems);
    for (unsigned i = 0; i < r->nproblems && i < ZSD_PROBLEMS_MAX; i++)
        (void)printf("%s\n", r->problems[i]);
    if (r->nproblems > ZSD_PROBLEMS_MAX)
        (void)printf("... and %" PRIu64 " more\n", r->nproblems - ZSD_PROBLEMS_MAX);
}

int zsd_offline_fsck(struct zsd *daemon, struct zb_err *err)
{
    struct offline o = { .daemon = daemon };
    int rc = offline_up(daemon, "--fsck", true, err);

    if (rc == 0) {
        zsd_fsck_start(daemon->core, offline_fscked, &o);
        zsd_core_settle(daemon);
        rc = o.err.code;
        if (rc < 0)
            *err = o.err;
    }
    if (rc == 0) {
        rc = offline_read(&o);
        if (rc < 0)
            (void)zb_fail(err, rc, "reading the pages: %m");
    }
    if (rc == 0) {
        offline_print(&o);
        if (fflush(stdout) != 0)
            rc = zb_fail(err, -EIO, "standard output: %m");
        else if (o.report.nproblems > 0)
            rc = zb_fail(err, -EBADMSG, "data directory '%s' is damaged: %" PRIu64 " problems",
                         daemon->config.data, o.report.nproblems);
    }
    offline_down(daemon);
    return rc;
}

/* ---- retire */

/* Moves the pages, as *r says. */
static int offline_move(struct zsd *daemon, struct zsd_retire *r, struct zb_err *err)
{
    int rc;

    r->core = daemon->core;
    rc = zsd_retire_start(r, err);
    zsd_core_settle(daemon);
    if (rc == 0 && r->err.code < 0)
        rc = zb_fail(err, r->err.code, "%s", r->err.text);
    zsd_retire_done(r);
    return rc;
}

int zsd_offline_retire(struct zsd *daemon, struct zb_err *err)
{
    unsigned path = daemon->config.retire - 1;
    struct zsd_retire r = { .path = path };
    int rc = path == 0 ? retire_check(daemon, path, err)
                       : offline_up(daemon, "--retire", false, err);

    if (rc == 0)
        rc = offline_move(daemon, &r, err);
    if (rc == 0) { /* the catalog names nothing there any more */
        (void)printf("data file number %u is retired: %" PRIu64 " pages, %s, were moved\n"
                     "remove '%s' from paths\n",
                     path + 1, r.pages, zb_size_text(r.bytes).s, zsd_path_folder(daemon, path));
        zsd_datadir_forget(daemon->more[path - 1].datadir);
    }
    offline_down(daemon);
    return rc;
}

/* ---- shrink */

int zsd_offline_shrink(struct zsd *daemon, struct zb_err *err)
{
    uint64_t size = daemon->config.shrink_bytes;
    unsigned path = daemon->config.shrink - 1;
    struct zsd_retire r = { .path = path, .stay_bytes = size - ZN_DATA_START };
    int rc = offline_up(daemon, "--shrink", false, err);

    if (rc == 0)
        rc = offline_move(daemon, &r, err);
    if (rc == 0) /* the catalog names nothing beyond the new size any more */
        rc = zn_cut(zsd_path_engine(daemon, path), zsd_path_folder(daemon, path), size, err);
    if (rc == 0)
        (void)printf("data file number %u has %s: %" PRIu64 " pages, %s, were moved\n"
                     "set nvme_bytes = auto: otherwise the next start gives it that size\n",
                     path + 1, zb_size_text(size).s, r.pages, zb_size_text(r.bytes).s);
    offline_down(daemon);
    return rc;
}
