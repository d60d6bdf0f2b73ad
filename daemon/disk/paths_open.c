/*
 * paths_open.c - opens and closes the data files; see paths.h. The first one is opened by
 * startup.c.
 *
 * WHICH NUMBER. A data file that was in use keeps its number in its superblock, wherever `paths`
 * names it. A new one gets the lowest number that is not in use. A number below the highest one
 * that no file has is absent (zn_absent_open()): its file was retired, or is missing. What is
 * missing is known only when the catalog has been read: zsd_path_missing().
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/device.h"
#include "base/slots.h"
#include "daemon/disk/datadir.h"
#include "daemon/disk/paths.h"
#include "daemon/os/drive_node.h"

/* ---- open and close */

const char *zsd_path_folder(const struct zsd *daemon, unsigned path)
{
    const struct zsd_datadir *d = path > 0 ? daemon->more[path - 1].datadir : NULL;

    return path == 0 ? daemon->config.data : d ? zsd_datadir_path(d) : "";
}

void zsd_path_log(const struct zn_info *info, const char *path)
{
    if (info->why[0])
        zb_log(ZB_LOG_WARN, "io-fallback", "io=%s file=\"%s\" why=\"%s\"", info->io, path,
               info->why);
    if (!info->direct)
        zb_log(ZB_LOG_WARN, "io-buffered", "file=\"%s\" why=\"%s\"", path, info->why_buffered);
    if (info->why_unregistered[0])
        zb_log(ZB_LOG_WARN, "io-unregistered", "file=\"%s\" why=\"%s\"", path,
               info->why_unregistered);
    if (info->sparse)
        zb_log(ZB_LOG_WARN, "io-sparse",
               "file=\"%s\" why=\"the file system cannot reserve space: it may fill up\"", path);
}

#define NO_NUMBER UINT_MAX /* a file that is not in use yet */

/* The next directory of `paths`, from *at on, which is moved on; false: there is none. */
static bool paths_next(const char **at, char dir[sizeof(((struct zsd_config *)NULL)->paths)])
{
    size_t len = strcspn(*at, ZSD_PATHS_SEPARATOR);

    memcpy(dir, *at, len);
    dir[len] = '\0';
    *at += len + ((*at)[len] != '\0');
    return len > 0;
}

/* The data files of `paths`, in that order. */
struct paths_found {
    struct zsd_datadir *dirs[ZN_PATHS_MAX - 1];
    unsigned index[ZN_PATHS_MAX - 1];
    unsigned n, used; /* used: a bit for each index */
};

/* Finds the number of the file that is in the directory; NO_NUMBER: there is none, or zn_open()
 * says what is wrong with it. */
static int found_add(struct paths_found *f, const char *dir, unsigned without, struct zb_err *err)
{
    unsigned *index = &f->index[f->n];
    struct zn_peek peek;
    int rc = zsd_datadir_open(&f->dirs[f->n], dir, err);

    if (rc < 0)
        return rc;
    f->n++;
    *index = NO_NUMBER;
    if (zn_peek(zsd_datadir_file(f->dirs[f->n - 1]), &peek, NULL) < 0)
        return 0;
    *index = peek.index;
    if (without > 0 && peek.index + 1 == without) {
        zsd_datadir_close(f->dirs[--f->n]);
        return 0;
    }
    if (peek.index == 0)
        return zb_fail(err, -EINVAL,
                       "paths: the data file in '%s' is number 1 of its daemon: name its directory "
                       "as data",
                       dir);
    if (peek.index >= ZN_PATHS_MAX || (f->used >> peek.index & 1))
        return zb_fail(err, -EINVAL, "paths: the data file in '%s' is number %u, as another one is",
                       dir, peek.index + 1);
    f->used |= 1u << peek.index;
    return 0;
}

static int found_all(struct paths_found *f, const char *paths, unsigned without, struct zb_err *err)
{
    char dir[sizeof(((struct zsd_config *)NULL)->paths)];
    int rc = 0;

    while (rc == 0 && paths_next(&paths, dir))
        rc = found_add(f, dir, without, err);
    return rc;
}

static int paths_open_one(struct zsd *daemon, struct zsd_path *p, unsigned index,
                          struct zb_err *err)
{
    const struct zsd_config *config = &daemon->config;
    struct zn_options options = { .size_bytes = config->more_bytes,
                                  .io = config->io,
                                  .depth = config->io_depth,
                                  .index = index,
                                  .read_only = daemon->read_only };
    struct zb_err why = { 0 };
    int rc;

    if (!p->datadir)
        return zn_absent_open(&p->engine, index, err);
    options.path = zsd_datadir_file(p->datadir);
    p->fresh = access(options.path, F_OK) < 0 && errno == ENOENT;
    if (options.size_bytes == ZSD_AUTO)
        options.size_bytes = zsd_datadir_room(p->datadir);
    rc = zn_open(&p->engine, &options, err);
    if (rc < 0)
        return rc;
    zsd_path_log(zn_info(p->engine), options.path);
    if (zsd_datadir_trusted(p->datadir, &why) == 0)
        p->copy_path = zsd_datadir_copy(p->datadir);
    else
        zb_log(ZB_LOG_WARN, "catalog-copy-failed", "number=%u directory=\"%s\" why=\"%s\"",
               index + 1, zsd_path_folder(daemon, index), why.text);
    return 0;
}

/* What is known of the device of a data file. */
static void path_device(struct zsd *daemon, unsigned path)
{
    uint64_t device = zn_info(zsd_path_engine(daemon, path))->device;
    struct zb_device_use use;
    char name[24];

    daemon->path_nodes[path] = zsd_drive_node(device, "/sys") + 1;
    (void)snprintf(name, sizeof(name), "%u:%u", major(device), minor(device));
    if (device != 0 && zb_device_use(name, "/sys", &use) == 0)
        daemon->path_device_bytes[path] = use.written_bytes + 1;
}

int zsd_paths_open(struct zsd *daemon, struct zb_err *err)
{
    struct paths_found f = { .used = 1 };
    int rc = found_all(&f, daemon->config.paths, daemon->config.without, err);

    for (unsigned i = 0; i < f.n; i++) {
        unsigned index = f.index[i];

        if (rc < 0) {
            zsd_datadir_close(f.dirs[i]);
            continue;
        }
        for (unsigned k = 1; index == NO_NUMBER; k++)
            index = f.used >> k & 1 ? index : k;
        f.used |= 1u << index;
        daemon->more[index - 1].datadir = f.dirs[i];
        daemon->nmore = (unsigned)zb_max_u64(daemon->nmore, index);
    }
    for (unsigned i = 0; i < daemon->nmore && rc == 0; i++)
        rc = paths_open_one(daemon, &daemon->more[i], i + 1, err);
    for (unsigned i = 0; i < zsd_paths(daemon) && rc == 0; i++)
        path_device(daemon, i);
    return rc;
}

bool zsd_path_missing(const struct zsd *daemon, unsigned path)
{
    struct zn_slot slot = { 0 };

    return path >= zsd_paths(daemon) || zn_is_absent(zsd_path_engine(daemon, path)) ||
           (zn_newest_slot(zsd_path_engine(daemon, path), &slot, NULL) == 0 && slot.sequence == 0);
}

int zsd_paths_first_missing(const struct zsd *daemon, struct zb_err *err)
{
    char dir[sizeof(daemon->config.paths)], file[sizeof(dir) + sizeof("/" ZSD_DATA_FILE)];
    const char *at = daemon->config.paths;
    struct zn_peek peek;

    if (daemon->config.without == 1 ||
        zn_peek(zsd_datadir_file(daemon->datadir), &peek, NULL) != -ENODATA)
        return 0;
    while (paths_next(&at, dir)) {
        (void)snprintf(file, sizeof(file), "%s/" ZSD_DATA_FILE, dir);
        if (zn_peek(file, &peek, NULL) == 0 && peek.sequence > 0)
            return zb_fail(
                err, -ENOMEDIUM,
                "data file number 1 is missing: there is none in '%s', and '%s' is data "
                "file number %u of a store. Mount the drive with the first one; if it is "
                "lost, start with --without 1",
                daemon->config.data, file, peek.index + 1);
    }
    return 0;
}

void zsd_paths_keep(struct zsd *daemon)
{
    for (unsigned i = 0; i < daemon->nmore; i++)
        daemon->more[i].fresh = false;
}

void zsd_paths_close(struct zsd *daemon)
{
    for (unsigned i = daemon->nmore; i-- > 0;) {
        zn_close(daemon->more[i].engine);
        if (daemon->more[i].fresh)
            zsd_datadir_forget(daemon->more[i].datadir);
        zsd_datadir_close(daemon->more[i].datadir);
        daemon->more[i] = (struct zsd_path){ 0 };
    }
    daemon->nmore = 0;
}

void zsd_paths_register(const struct zsd *daemon, void *base, uint64_t len_bytes)
{
    for (unsigned i = 0; i < zsd_paths(daemon) && base; i++)
        (void)zn_register(zsd_path_engine(daemon, i), base, len_bytes); /* only a hint */
}

void zsd_paths_unregister(const struct zsd *daemon, void *base)
{
    for (unsigned i = 0; i < zsd_paths(daemon); i++)
        zn_unregister(zsd_path_engine(daemon, i), base);
}

int zsd_paths_slots(const struct zsd *daemon, struct zn_slot slots[ZN_PATHS_MAX], unsigned *ret_n,
                    struct zb_err *err)
{
    bool first = false;
    unsigned n = 0;

    for (unsigned i = 0; i < zsd_paths(daemon); i++) {
        int rc = zn_newest_slot(zsd_path_engine(daemon, i), &slots[n], err);

        if (rc < 0)
            return rc;
        first |= i == 0 && slots[n].sequence > 0;
        n += slots[n].sequence > 0;
    }
    if (n > 0 && !first && daemon->config.without != 1)
        return zb_fail(err, -ENOMEDIUM,
                       "data file number 1 is missing: the one in '%s' is new, and the others are "
                       "those of a store. Mount the drive with the first one; if it is lost, start "
                       "with --without 1",
                       daemon->config.data);
    *ret_n = n;
    return 0;
}
