#include "daemon/disk/datadir.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/plan.h"
#include "base/util.h"
#include "daemon/os/lock.h"

#define NVME_BYTES_AUTO (4 * ZB_GIB)

struct zsd_datadir {
    char path[PATH_MAX];
    char file[PATH_MAX], catalog[PATH_MAX], copy[PATH_MAX];
    int fd; /* locked; -1: not yet */
    bool temporary;
    bool made; /* temporary, and there is something to remove */
    bool forget;
};

/** An environment variable; NULL if it is unset or empty. */
static const char *env(const char *name)
{
    const char *value = getenv(name);

    return value && *value ? value : NULL;
}

static int datadir_temporary(struct zsd_datadir *d, struct zb_err *err)
{
    const char *parent = env("TMPDIR");

    if (!parent)
        parent = "/var/tmp";
    d->temporary = true;
    if ((size_t)snprintf(d->path, sizeof(d->path), "%s/zshard-XXXXXX", parent) >= sizeof(d->path))
        return zb_fail(err, -ENAMETOOLONG, "$TMPDIR is too long");
    if (!mkdtemp(d->path))
        return zb_fail(err, -errno, "a temporary data directory in '%s': %m; give --data", parent);
    d->made = true;
    return 0;
}

static int datadir_named(struct zsd_datadir *d, const char *path, struct zb_err *err)
{
    if ((size_t)snprintf(d->path, sizeof(d->path), "%s", path) >= sizeof(d->path))
        return zb_fail(err, -ENAMETOOLONG, "the path of the data directory is too long");
    if (mkdir(path, 0700) == 0 || errno == EEXIST)
        return 0;
    switch (errno) {
    case ENOENT:
        return zb_fail(err, -ENOENT, "data directory '%s': there is no directory to make it in",
                       path);
    case EROFS:
        return zb_fail(err, -EROFS, "data directory '%s': the file system is mounted read-only",
                       path);
    case EACCES:
        return zb_fail(err, -EACCES,
                       "data directory '%s' does not exist, and user %u may not make it: is its "
                       "drive mounted?",
                       path, (unsigned)geteuid());
    default:
        return zb_fail(err, -errno, "make data directory '%s': %m", path);
    }
}

static int datadir_claim(struct zsd_datadir *d, struct zb_err *err)
{
    int rc;

    d->fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->fd < 0)
        return zb_fail(err, -errno, "data directory '%s': %m", d->path);
    rc = zsd_lock(d->fd);
    if (rc == -EBUSY)
        return zb_fail(err, rc, "data directory '%s' is in use by another daemon", d->path);
    if (rc < 0)
        return zb_fail(err, rc, "lock data directory '%s': %m", d->path);
    return 0;
}

static int datadir_build(struct zsd_datadir *d, const char *path, struct zb_err *err)
{
    int rc;

    if (!*path && env("STATE_DIRECTORY"))
        path = env("STATE_DIRECTORY");
    rc = *path ? datadir_named(d, path, err) : datadir_temporary(d, err);
    if (rc == 0)
        rc = datadir_claim(d, err);
    if (rc == 0 && ((size_t)snprintf(d->file, sizeof(d->file), "%s/" ZSD_DATA_FILE, d->path) >=
                        sizeof(d->file) ||
                    (size_t)snprintf(d->catalog, sizeof(d->catalog), "%s/" ZSD_CATALOG_FILE,
                                     d->path) >= sizeof(d->catalog) ||
                    (size_t)snprintf(d->copy, sizeof(d->copy), "%s/" ZSD_COPY_FILE, d->path) >=
                        sizeof(d->copy)))
        rc = zb_fail(err, -ENAMETOOLONG, "the path of the data directory is too long");
    return rc;
}

int zsd_datadir_open(struct zsd_datadir **ret, const char *path, struct zb_err *err)
{
    struct zsd_datadir *d = calloc(1, sizeof(*d));
    int rc;

    if (!d)
        return zb_fail(err, -ENOMEM, "data directory: %m");
    d->fd = -1;
    rc = datadir_build(d, path, err);
    if (rc == 0)
        *ret = d;
    else
        zsd_datadir_close(d);
    return rc;
}

int zsd_datadir_trusted(const struct zsd_datadir *d, struct zb_err *err)
{
    struct stat st;

    if (fstat(d->fd, &st) < 0)
        return zb_fail(err, -errno, "data directory '%s': %m", d->path);
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return zb_fail(
            err, -EKEYREJECTED,
            "data directory '%s' belongs to user %u, who could replace what is saved, and "
            "this daemon runs as user %u: give it to that user (chown %u '%s'), or name "
            "another one with --data",
            d->path, (unsigned)st.st_uid, (unsigned)geteuid(), (unsigned)geteuid(), d->path);
    if ((st.st_mode & S_IWOTH) || ((st.st_mode & S_IWGRP) && st.st_gid != getegid()))
        return zb_fail(
            err, -EKEYREJECTED,
            "data directory '%s' has mode %04o: other users could replace what is saved. "
            "Take that away (chmod go-w '%s'), or name another one with --data",
            d->path, (unsigned)(st.st_mode & 07777), d->path);
    return 0;
}

int zsd_datadir_holds(const struct zsd_datadir *d, struct zb_err *err)
{
    struct stat st;
    bool data = fstatat(d->fd, ZSD_DATA_FILE, &st, AT_SYMLINK_NOFOLLOW) == 0;
    bool catalog = fstatat(d->fd, ZSD_CATALOG_FILE, &st, AT_SYMLINK_NOFOLLOW) == 0;

    if (!data && !catalog)
        return zb_fail(err, -ENOENT,
                       "data directory '%s' holds neither " ZSD_DATA_FILE " nor " ZSD_CATALOG_FILE
                       ": no daemon has saved anything there",
                       d->path);
    if (!data || !catalog)
        return zb_fail(err, -EBADMSG, "data directory '%s' is damaged: %s is missing", d->path,
                       data ? ZSD_CATALOG_FILE : ZSD_DATA_FILE);
    return 0;
}

void zsd_datadir_forget(struct zsd_datadir *d)
{
    d->forget = true;
}

void zsd_datadir_close(struct zsd_datadir *d)
{
    static const char *const files[] = { ZSD_DATA_FILE,           ZSD_CATALOG_FILE,
                                         ZSD_CATALOG_FILE "-wal", ZSD_CATALOG_FILE "-shm",
                                         ZSD_COPY_FILE,           ZSD_COPY_FILE "-wal" };

    if (!d)
        return;
    for (size_t i = 0; i < ZB_COUNT(files) && d->forget; i++)
        (void)unlinkat(d->fd, files[i], 0);
    if (d->made) {
        zsd_datadir_opened(d);
        (void)rmdir(d->path); /* fails if somebody put a file there: then the directory stays */
    }
    zb_close_fd(&d->fd);
    free(d);
}

const char *zsd_datadir_path(const struct zsd_datadir *d)
{
    return d->path;
}

const char *zsd_datadir_file(const struct zsd_datadir *d)
{
    return d->file;
}

const char *zsd_datadir_catalog(const struct zsd_datadir *d)
{
    return d->temporary ? NULL : d->catalog;
}

const char *zsd_datadir_copy(const struct zsd_datadir *d)
{
    return d->copy;
}

void zsd_datadir_opened(struct zsd_datadir *d)
{
    if (d->temporary && d->fd >= 0)
        (void)unlinkat(d->fd, ZSD_DATA_FILE, 0);
}

uint64_t zsd_datadir_room(const struct zsd_datadir *d)
{
    struct statvfs vfs;
    struct stat st;
    uint64_t bytes;

    if (fstatat(d->fd, ZSD_DATA_FILE, &st, 0) == 0 && st.st_size > 0)
        return (uint64_t)st.st_size;
    if (fstatvfs(d->fd, &vfs) < 0)
        return 0;
    bytes = zb_min_u64(NVME_BYTES_AUTO, (uint64_t)vfs.f_bavail * vfs.f_frsize / 2);
    return bytes - bytes % ZB_PAGE_ALIGN;
}
