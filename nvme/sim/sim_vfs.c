/*
 * sim_vfs.c - SQLite's files on the simulated device.
 *
 * MODEL. What SQLite's own unix VFS does with a file system, done with the device: reads and
 * writes are repeated until they are whole, xSync is a flush of that file, and the first one of a
 * file that is new flushes its folder too, as does a deletion when SQLite asks for that. A name is
 * used as it is: no folders, no links.
 *
 * LOCKS are exclusive from SHARED on: one holder of a file excludes all others (SQLITE_BUSY). There
 * is no shared memory (iVersion 1), so a WAL needs locking_mode=EXCLUSIVE, set before the WAL.
 *
 * WHAT IT PROMISES SQLite: a write tears nothing but its own bytes (POWERSAFE_OVERWRITE, as the
 * unix VFS does), and that is true of the device.
 *
 * REPEATING A RUN takes SQLite's random numbers too: zn_sim_vfs() seeds its generator, of which a
 * process has one, with the device's seed. Time stands still here.
 */
#include <errno.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/util.h"
#include "nvme/sim/sim_priv.h"

#define VFS_NAME_MAX 512
#define VFS_SECTOR   512
#define VFS_TEMP_MAX 40
#define VFS_JULIAN   2460000.5 /* some day in 2023 */

struct sim_vfs {
    sqlite3_vfs vfs;
    struct zn_sim *sim;
    char name[40];
    int last_errno; /* of the newest write that failed */
};

struct vfs_file {
    sqlite3_file base; /* SQLite's: first */
    struct sim_vfs *v;
    unsigned file;
    int lock; /* SQLITE_LOCK_* */
    bool delete_on_close;
    bool is_new; /* its folder was not flushed since its creation */
};

/* One operation; in the fixed-rate mode it takes its time. */
static ssize_t vfs_do(struct sim_vfs *v, struct sim_op *op)
{
    ssize_t rc;

    if (sim_options(v->sim)->rate_bytes > 0) {
        uint64_t due_ns =
            sim_due_ns(v->sim, op->kind == SIM_READ || op->kind == SIM_WRITE ? op->len : 0);
        struct timespec at = { .tv_sec = (time_t)(due_ns / 1000000000),
                               .tv_nsec = (long)(due_ns % 1000000000) };

        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
            ;
    }
    do {
        rc = sim_do(v->sim, op);
    } while (rc == -EINTR);
    return rc;
}

/* ---- an open file */

static int file_close(sqlite3_file *f)
{
    struct vfs_file *vf = (struct vfs_file *)f;

    if (vf->delete_on_close) {
        struct sim_op op = { .kind = SIM_DELETE, .file = vf->file };

        (void)vfs_do(vf->v, &op); /* no longer needed */
    }
    sim_file_drop(vf->v->sim, vf->file, vf);
    sim_user(vf->v->sim, -1);
    return SQLITE_OK;
}

static int file_read(sqlite3_file *f, void *buf, int len, sqlite3_int64 off)
{
    struct vfs_file *vf = (struct vfs_file *)f;

    for (int got = 0; got < len;) {
        struct sim_op op = { .kind = SIM_READ,
                             .file = vf->file,
                             .off = (uint64_t)(off + got),
                             .len = (size_t)(len - got),
                             .buf = (char *)buf + got };
        ssize_t n = vfs_do(vf->v, &op);

        if (n < 0)
            return SQLITE_IOERR_READ;
        if (n == 0) {
            memset((char *)buf + got, 0, (size_t)(len - got));
            return SQLITE_IOERR_SHORT_READ;
        }
        got += (int)n;
    }
    return SQLITE_OK;
}

static int file_write(sqlite3_file *f, const void *bytes, int len, sqlite3_int64 off)
{
    struct vfs_file *vf = (struct vfs_file *)f;

    for (int put = 0; put < len;) {
        struct sim_op op = { .kind = SIM_WRITE,
                             .file = vf->file,
                             .off = (uint64_t)(off + put),
                             .len = (size_t)(len - put),
                             .bytes = (const char *)bytes + put };
        ssize_t n = vfs_do(vf->v, &op);

        if (n <= 0) {
            vf->v->last_errno = n < 0 ? (int)-n : EIO;
            return n == -ENOSPC ? SQLITE_FULL : SQLITE_IOERR_WRITE;
        }
        put += (int)n;
    }
    return SQLITE_OK;
}

static int file_truncate(sqlite3_file *f, sqlite3_int64 size)
{
    struct vfs_file *vf = (struct vfs_file *)f;
    struct sim_op op = { .kind = SIM_RESIZE, .file = vf->file, .off = (uint64_t)size };
    ssize_t rc = vfs_do(vf->v, &op);

    return rc == 0 ? SQLITE_OK : rc == -ENOSPC ? SQLITE_FULL : SQLITE_IOERR_TRUNCATE;
}

static int file_sync(sqlite3_file *f, int flags)
{
    struct vfs_file *vf = (struct vfs_file *)f;
    struct sim_op op = { .kind = SIM_FLUSH, .file = vf->file };

    (void)flags;
    if (vfs_do(vf->v, &op) < 0)
        return SQLITE_IOERR_FSYNC;
    op.kind = SIM_FLUSH_NAMES;
    if (vf->is_new && vfs_do(vf->v, &op) < 0)
        return SQLITE_IOERR_DIR_FSYNC;
    vf->is_new = false;
    return SQLITE_OK;
}

static int file_size(sqlite3_file *f, sqlite3_int64 *ret)
{
    struct vfs_file *vf = (struct vfs_file *)f;
    uint64_t size = 0;

    if (!sim_file_exists(vf->v->sim, vf->file, &size))
        return SQLITE_IOERR_FSTAT;
    *ret = (sqlite3_int64)size;
    return SQLITE_OK;
}

static int file_lock(sqlite3_file *f, int lock)
{
    struct vfs_file *vf = (struct vfs_file *)f;

    if (!sim_file_take(vf->v->sim, vf->file, vf))
        return SQLITE_BUSY;
    vf->lock = lock > vf->lock ? lock : vf->lock;
    return SQLITE_OK;
}

static int file_unlock(sqlite3_file *f, int lock)
{
    struct vfs_file *vf = (struct vfs_file *)f;

    if (lock == SQLITE_LOCK_NONE)
        sim_file_drop(vf->v->sim, vf->file, vf);
    vf->lock = lock < vf->lock ? lock : vf->lock;
    return SQLITE_OK;
}

static int file_reserved(sqlite3_file *f, int *ret)
{
    struct vfs_file *vf = (struct vfs_file *)f;

    *ret = vf->lock >= SQLITE_LOCK_RESERVED || sim_file_taken(vf->v->sim, vf->file, vf);
    return SQLITE_OK;
}

static int file_control(sqlite3_file *f, int op, void *arg)
{
    if (op != SQLITE_FCNTL_LOCKSTATE)
        return SQLITE_NOTFOUND;
    *(int *)arg = ((struct vfs_file *)f)->lock;
    return SQLITE_OK;
}

static int file_sector(sqlite3_file *f)
{
    (void)f;
    return VFS_SECTOR;
}

static int file_characteristics(sqlite3_file *f)
{
    (void)f;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

static const sqlite3_io_methods file_methods = {
    .iVersion = 1,
    .xClose = file_close,
    .xRead = file_read,
    .xWrite = file_write,
    .xTruncate = file_truncate,
    .xSync = file_sync,
    .xFileSize = file_size,
    .xLock = file_lock,
    .xUnlock = file_unlock,
    .xCheckReservedLock = file_reserved,
    .xFileControl = file_control,
    .xSectorSize = file_sector,
    .xDeviceCharacteristics = file_characteristics,
};

/* ---- the file system */

static struct sim_vfs *vfs_of(sqlite3_vfs *vfs)
{
    return zb_container_of(vfs, struct sim_vfs, vfs);
}

/* Finds the file, and creates it when it may: SQLITE_OK or an error. */
static int vfs_make(struct vfs_file *vf, const char *name, int flags)
{
    struct sim_vfs *v = vf->v;
    int file = sim_file(v->sim, name);
    uint64_t size;

    if (file < 0)
        return file == -ENOMEM ? SQLITE_NOMEM : SQLITE_CANTOPEN;
    if (!sim_file_exists(v->sim, (unsigned)file, &size)) {
        struct sim_op op = { .kind = SIM_CREATE, .file = (unsigned)file };
        ssize_t rc = flags & SQLITE_OPEN_CREATE ? vfs_do(v, &op) : -ENOENT;

        if (rc < 0)
            return rc == -ENOSPC ? SQLITE_FULL : rc == -EIO ? SQLITE_IOERR : SQLITE_CANTOPEN;
        vf->is_new = true;
    } else if (flags & SQLITE_OPEN_EXCLUSIVE) {
        return SQLITE_CANTOPEN;
    }
    vf->file = (unsigned)file;
    return SQLITE_OK;
}

/* A name for a temporary file that no other one has: names are few, and never forgotten. */
static void vfs_temp(struct vfs_file *vf, char temp[VFS_TEMP_MAX])
{
    int file;

    for (unsigned i = 0;; i++) {
        (void)snprintf(temp, VFS_TEMP_MAX, "temporary-%u", i);
        file = sim_file(vf->v->sim, temp);
        if (file < 0)
            return; /* vfs_make() says why */
        if (sim_file_take(vf->v->sim, (unsigned)file, vf)) {
            vf->file = (unsigned)file;
            return;
        }
    }
}

static int vfs_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags, int *ret_flags)
{
    struct vfs_file *vf = (struct vfs_file *)f;
    struct sim_vfs *v = vfs_of(vfs);
    char temp[VFS_TEMP_MAX];
    int rc;

    *vf = (struct vfs_file){ .v = v };
    if (!name) {
        vfs_temp(vf, temp);
        name = temp;
        flags |= SQLITE_OPEN_CREATE;
    }
    rc = vfs_make(vf, name, flags);
    if (rc != SQLITE_OK) {
        sim_file_drop(v->sim, vf->file, vf);
        return rc;
    }
    vf->delete_on_close = flags & SQLITE_OPEN_DELETEONCLOSE;
    vf->base.pMethods = &file_methods;
    sim_user(v->sim, 1);
    if (ret_flags)
        *ret_flags = flags;
    return SQLITE_OK;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *name, int durable)
{
    struct sim_vfs *v = vfs_of(vfs);
    int file = sim_file(v->sim, name);
    struct sim_op op = { .kind = SIM_DELETE, .file = (unsigned)file };
    ssize_t rc = file < 0 ? file : vfs_do(v, &op);

    if (rc == 0 && durable) {
        op.kind = SIM_FLUSH_NAMES;
        rc = vfs_do(v, &op);
    }
    return rc == 0 ? SQLITE_OK : rc == -ENOENT ? SQLITE_IOERR_DELETE_NOENT : SQLITE_IOERR_DELETE;
}

/* Like the unix VFS: an empty file is as good as none. */
static int vfs_access(sqlite3_vfs *vfs, const char *name, int flags, int *ret)
{
    struct sim_vfs *v = vfs_of(vfs);
    int64_t size = zn_sim_size(v->sim, name);

    *ret = flags == SQLITE_ACCESS_EXISTS ? size > 0 : size >= 0;
    return SQLITE_OK;
}

static int vfs_full_name(sqlite3_vfs *vfs, const char *name, int size, char *ret)
{
    (void)vfs;
    return snprintf(ret, (size_t)size, "%s", name) < size ? SQLITE_OK : SQLITE_CANTOPEN;
}

static int vfs_randomness(sqlite3_vfs *vfs, int len, char *ret)
{
    struct sim_vfs *v = vfs_of(vfs);

    for (int i = 0; i < len; i++)
        ret[i] = (char)sim_random(v->sim);
    return len;
}

static int vfs_sleep(sqlite3_vfs *vfs, int us)
{
    (void)vfs;
    return us;
}

static int vfs_time(sqlite3_vfs *vfs, double *ret)
{
    (void)vfs;
    *ret = VFS_JULIAN;
    return SQLITE_OK;
}

static int vfs_error(sqlite3_vfs *vfs, int len, char *ret)
{
    (void)len;
    (void)ret;
    return vfs_of(vfs)->last_errno;
}

int sim_vfs_new(struct sim_vfs **ret, struct zn_sim *s, struct zb_err *err)
{
    static atomic_uint count; /* VFS names are global in a process */
    struct sim_vfs *v = calloc(1, sizeof(*v));
    int rc;

    if (!v)
        return zb_fail(err, -ENOMEM, "SQLite's files on a simulated device: %m");
    v->sim = s;
    (void)snprintf(v->name, sizeof(v->name), "zn-sim-%u", atomic_fetch_add(&count, 1));
    v->vfs = (sqlite3_vfs){
        .iVersion = 1,
        .szOsFile = sizeof(struct vfs_file),
        .mxPathname = VFS_NAME_MAX,
        .zName = v->name,
        .xOpen = vfs_open,
        .xDelete = vfs_delete,
        .xAccess = vfs_access,
        .xFullPathname = vfs_full_name,
        .xRandomness = vfs_randomness,
        .xSleep = vfs_sleep,
        .xCurrentTime = vfs_time,
        .xGetLastError = vfs_error,
    };
    rc = sqlite3_vfs_register(&v->vfs, 0);
    if (rc != SQLITE_OK) {
        free(v);
        return zb_fail(err, -ENOMEM, "register SQLite's files: %s", sqlite3_errstr(rc));
    }
    (void)sqlite3_test_control(SQLITE_TESTCTRL_PRNG_SEED,
                               (int)(sim_mix(sim_options(s)->seed, 0) | 1), NULL);
    *ret = v;
    return 0;
}

const char *sim_vfs_name(const struct sim_vfs *v)
{
    return v->name;
}

void sim_vfs_free(struct sim_vfs *v)
{
    if (!v)
        return;
    (void)sqlite3_vfs_unregister(&v->vfs);
    free(v);
}
