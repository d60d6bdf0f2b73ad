/*
 * file.c - prepares the data file for an engine: opens and locks it, verifies that it is ours,
 * finds the alignment, and finally reserves its space.
 *
 * INVARIANT. A file is not changed before it is locked, and found to be ours or blank. If a later
 * step fails, the changes are undone, except that an empty file that was created remains.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <stdalign.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/size.h"
#include "base/util.h"
#include "nvme/engine_priv.h"

/* Every device and file system that we open takes it; also what pages are multiples of. */
#define FILE_ALIGN        4096u
#define FILE_LOCK_WAIT_MS 1000u   /* for a living daemon, */
#define FILE_LOCK_DEAD_MS 120000u /* and for requests in flight of a dead one */
#define FILE_LOCK_STEP_MS 10u

static int file_other(const char *path, struct zb_err *err)
{
    return zb_fail(err, -EMEDIUMTYPE, "data file '%s' is neither a regular file nor a block device",
                   path);
}

static int file_open_fd(struct zn_file *f, const char *path, struct zb_err *err)
{
    int flags = f->read_only ? O_RDONLY : O_RDWR | O_CREAT;

    flags |= f->no_follow ? O_NOFOLLOW : 0;
    f->fd = open(path, flags | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0600); /* opening a FIFO would
                                                                            wait */
    if (f->fd >= 0)
        return 0;
    switch (errno) {
    case ELOOP:
        return zb_fail(err, -ELOOP,
                       "data file '%s' is a symbolic link, which is not followed: put the file "
                       "itself there, or name another one with --paths",
                       path);
    case ENXIO:
        return file_other(path, err);
    case ENOENT:
        return zb_fail(err, -ENOENT, "data file '%s': %s does not exist", path,
                       f->read_only ? "it" : "its directory");
    case EROFS:
        return zb_fail(err, -EROFS, "data file '%s': the file system is mounted read-only", path);
    case EACCES:
        return zb_fail(err, -EACCES,
                       "data file '%s': user %u may not %s there; is its drive mounted?", path,
                       (unsigned)geteuid(), f->read_only ? "read" : "write");
    case EISDIR:
        return zb_fail(err, -EMEDIUMTYPE, "data file '%s' is a directory", path);
    default:
        return zb_fail(err, -errno, "open data file '%s': %m", path);
    }
}

/* Finds the type and the length of the file. */
static int file_identify(struct zn_file *f, const char *path, struct zb_err *err)
{
    struct stat st;

    if (fstat(f->fd, &st) < 0)
        return zb_fail(err, -errno, "data file '%s': %m", path);
    f->block = S_ISBLK(st.st_mode);
    f->on_device = f->block ? st.st_rdev : st.st_dev;
    if (!f->block && !S_ISREG(st.st_mode))
        return file_other(path, err);
    (void)fcntl(f->fd, F_SETFL, fcntl(f->fd, F_GETFL) & ~O_NONBLOCK); /* files do not look at it */
    if (!f->block)
        f->was_bytes = (uint64_t)st.st_size;
    else if (ioctl(f->fd, BLKGETSIZE64, &f->was_bytes) < 0)
        return zb_fail(err, -errno, "size of device '%s': %m", path);
    return 0;
}

/* Whether the process that took the lock is alive, by /proc/locks. One that is not listed counts
 * as dead, and then we wait: the list omits processes that it cannot name, and may change while it
 * is read. */
static bool file_holder_lives(const struct zn_file *f)
{
    FILE *locks = fopen("/proc/locks", "re");
    bool lives = !locks;
    char line[256];
    struct stat st;

    if (!locks || fstat(f->fd, &st) < 0)
        st.st_ino = 0;
    while (locks && st.st_ino != 0 && fgets(line, sizeof(line), locks)) {
        unsigned long long inode; /* of any device: some file systems show another than stat() */
        int pid;

        if (sscanf(line, "%*s FLOCK %*s %*s %d %*x:%*x:%llu", &pid, &inode) == 2 &&
            inode == st.st_ino)
            lives = pid > 0 && (kill(pid, 0) == 0 || errno == EPERM);
    }
    if (locks)
        (void)fclose(locks);
    return lives;
}

/*
 * The lock belongs to the open file. An io_uring keeps the file open until its last request is
 * done, even after its process has died. So after a crash the lock is held while a write can still
 * land. We wait for that, but only briefly if the holder is alive.
 */
static int file_lock(struct zn_file *f, const char *path, struct zb_err *err)
{
    uint64_t since_ns = zb_now_ns(), waited_ms;

    while (flock(f->fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return zb_fail(err, -errno, "lock data file '%s': %m", path);
        waited_ms = (zb_now_ns() - since_ns) / 1000000;
        if (waited_ms >= FILE_LOCK_DEAD_MS ||
            (waited_ms >= FILE_LOCK_WAIT_MS && file_holder_lives(f)))
            return zb_fail(err, -EBUSY, "data file '%s' is in use by another daemon", path);
        (void)poll(NULL, 0, FILE_LOCK_STEP_MS);
    }
    f->locked = true;
    return 0;
}

/* Checks that the file is ours or blank, and not larger than requested. */
static int file_check(struct zn_file *f, const struct zn_options *o, struct zb_err *err)
{
    int rc = zn_layout_read(f->medium, o->path, &f->super, err);
    uint64_t there;

    if (rc < 0 && rc != -ENODATA)
        return rc;
    f->ours = rc == 0;
    if (!f->ours && o->read_only)
        return zb_fail(err, -EBADMSG, "'%s' is blank: no superblock", o->path);
    if (f->ours)
        (void)zn_layout_read_slots(f->medium, o->path, f->super.uuid, &f->slot, &f->slot_err);
    if (f->ours && f->super.size_bytes > f->was_bytes)
        return zb_fail(err, -EBADMSG, "'%s' was truncated: its superblock says %s, and it has %s",
                       o->path, zb_size_text(f->super.size_bytes).s, zb_size_text(f->was_bytes).s);
    if (f->ours && f->super.path != o->index)
        return zb_fail(err, -EINVAL,
                       "'%s' is data file number %llu of its daemon, and is named as number %u",
                       o->path, (unsigned long long)f->super.path + 1, o->index + 1);
    if (f->block && o->size_bytes > f->was_bytes)
        return zb_fail(err, -ENOSPC, "device '%s' has %s, less than the %s asked for", o->path,
                       zb_size_text(f->was_bytes).s, zb_size_text(o->size_bytes).s);
    there = !f->block ? f->was_bytes : f->ours ? f->super.size_bytes : 0;
    if (there > o->size_bytes)
        return zb_fail(err, -EINVAL,
                       "'%s' has %s, more than the %s asked for, and a data file is never cut at a "
                       "start: ask for as much, or see zshardd --shrink",
                       o->path, zb_size_text(there).s, zb_size_text(o->size_bytes).s);
    return 0;
}

/* Returns "" if O_DIRECT is on, with its alignment in *ret_align; else the reason. */
static const char *file_try_direct(const struct zn_file *f, const struct zn_options *o,
                                   uint32_t *ret_align)
{
    alignas(FILE_ALIGN) char block[FILE_ALIGN];
    int flags = fcntl(f->fd, F_GETFL);
    uint32_t align = FILE_ALIGN;
    struct statfs fs;
    struct statx sx;

    if (o->buffered)
        return "buffered I/O was asked for";
    if (fstatfs(f->fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC)
        return "tmpfs keeps files in memory"; /* although it accepts the flag from Linux 6.6 on */
    if (statx(f->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) == 0 &&
        (sx.stx_mask & STATX_DIOALIGN)) {
        if (sx.stx_dio_offset_align == 0)
            return "the kernel has no O_DIRECT for this file";
        align = sx.stx_dio_offset_align;
        if (sx.stx_dio_mem_align > align)
            align = sx.stx_dio_mem_align;
        if (align > FILE_ALIGN)
            return "O_DIRECT needs a larger alignment here than 4096";
    }
    if (flags < 0 || fcntl(f->fd, F_SETFL, flags | O_DIRECT) < 0)
        return "the file system refuses O_DIRECT";
    if (pread(f->fd, block, sizeof(block), 0) < 0) { /* some accept the flag, but reads fail */
        (void)fcntl(f->fd, F_SETFL, flags);
        return "the file system accepts O_DIRECT and refuses to read with it";
    }
    *ret_align = align;
    return "";
}

static int file_open(struct zn_file *f, const char *path, struct zb_err *err)
{
    int rc = file_open_fd(f, path, err);

    f->medium = zn_fd(f->fd);
    if (rc == 0)
        rc = file_identify(f, path, err);
    return rc < 0 ? rc : file_lock(f, path, err);
}

static void file_direct(struct zn_file *f, const struct zn_options *o, struct zn_info *info)
{
    info->align_bytes = FILE_ALIGN; /* also if buffered: then callers are aligned everywhere */
    (void)snprintf(info->why_buffered, sizeof(info->why_buffered), "%s",
                   file_try_direct(f, o, &info->align_bytes));
    info->direct = info->why_buffered[0] == '\0';
}

int zn_file_open(struct zn_file *f, const struct zn_options *o, struct zn_info *info,
                 struct zb_err *err)
{
    int rc;

    f->read_only = o->read_only;
    f->no_follow = o->no_follow;
    rc = f->place->open(f, o->path, err);

    if (rc == 0)
        rc = file_check(f, o, err);
    if (rc == 0)
        f->place->direct(f, o, info);
    return rc;
}

/* Whether the file system has room for the missing bytes; true if unknown. Reserved blocks do not
 * count, not even for root: they are for repairs, and some kernels give them to nobody. */
static bool file_has_room(const struct zn_file *f, uint64_t size_bytes, uint64_t *ret_free_bytes)
{
    struct statvfs vfs;

    if (fstatvfs(f->fd, &vfs) < 0 || vfs.f_blocks == 0)
        return true;
    *ret_free_bytes = (uint64_t)vfs.f_bavail * vfs.f_frsize;
    return size_bytes - f->was_bytes <= *ret_free_bytes;
}

static int file_no_room(const char *path, uint64_t size_bytes, uint64_t free_bytes,
                        struct zb_err *err)
{
    return zb_fail(err, -ENOSPC, "no room for %s at '%s': the file system has %s free",
                   zb_size_text(size_bytes).s, path, zb_size_text(free_bytes).s);
}

/* A discard of an earlier daemon freed space of the file, and others took it (discard.c). */
static int file_has_holes(const struct zn_file *f, const struct zn_options *o, uint64_t free_bytes,
                          struct zb_err *err)
{
    uint64_t has = 0;
    struct stat st;

    if (fstat(f->fd, &st) == 0)
        has = (uint64_t)st.st_blocks * 512;
    return zb_fail(
        err, -ENOSPC,
        "'%s' has %s of its %s, and the file system has %s free: free the rest there. No "
        "page is lost",
        o->path, zb_size_text(has).s, zb_size_text(o->size_bytes).s, zb_size_text(free_bytes).s);
}

/*
 * Reserves space, if the file system can. The free space is checked first: ext4 takes all of it
 * before it reports that it is not enough, and meanwhile nobody else can write. If the file system
 * cannot reserve, only the length is set. Writing zeros would delay the start, and reserves nothing
 * on a copy-on-write file system, as most of these are. Then a full file system shows up as a
 * failed write.
 */
static int file_reserve(struct zn_file *f, const struct zn_options *o, struct zn_info *info,
                        struct zb_err *err)
{
    uint64_t free_bytes = 0;
    bool room = file_has_room(f, o->size_bytes, &free_bytes);
    int rc;

    if (f->block)
        return 0;
    if (!room)
        return file_no_room(o->path, o->size_bytes, free_bytes, err);
    do {
        rc = fallocate(f->fd, 0, 0, (off_t)o->size_bytes);
    } while (rc < 0 && errno == EINTR);
    if (rc == 0)
        return 0;
    if (errno == ENOSPC)
        return f->was_bytes >= o->size_bytes
                   ? file_has_holes(f, o, free_bytes, err)
                   : file_no_room(o->path, o->size_bytes, free_bytes, err);
    if (errno != EOPNOTSUPP)
        return zb_fail(err, -errno, "reserve %s for '%s': %m", zb_size_text(o->size_bytes).s,
                       o->path);
    info->sparse = true;
    if (ftruncate(f->fd, (off_t)o->size_bytes) < 0)
        return zb_fail(err, -errno, "set the length of '%s' to %s: %m", o->path,
                       zb_size_text(o->size_bytes).s);
    return 0;
}

static void file_cut(struct zn_file *f, uint64_t size_bytes)
{
    if (!f->block)
        (void)ftruncate(f->fd, (off_t)size_bytes); /* the first failure is reported */
}

static void file_close(struct zn_file *f)
{
    if (f->locked)
        (void)flock(f->fd, LOCK_UN); /* at once: nothing is in flight, but a ring may keep the file
                                        open */
    f->locked = false;
    zb_close_fd(&f->fd);
}

static const struct zn_ops *const file_backends[] = { &zn_uring_ops, &zn_threads_ops, NULL };

const struct zn_place zn_kernel_place = {
    file_backends, file_open,        file_direct,     NULL, file_reserve, file_cut,
    file_close,    zn_file_discards, zn_file_discard,
};

/* Makes the length durable before the superblock records it: otherwise a power cut could leave a
 * file that looks truncated. */
static int file_flush_length(const struct zn_file *f, const char *path, struct zb_err *err)
{
    int rc = f->medium.ops->flush(&f->medium);

    return rc < 0 ? zb_fail(err, rc, "flush the length of '%s': %m", path) : 0;
}

int zn_file_prepare(struct zn_file *f, const struct zn_options *o, struct zn_info *info,
                    struct zb_err *err)
{
    int rc;

    if (o->read_only)
        return 0;
    rc = f->place->reserve ? f->place->reserve(f, o, info, err) : 0;
    if (rc == 0 && (!f->ours || f->super.size_bytes != o->size_bytes)) {
        if (!f->ours && f->place->name)
            f->place->name(f);
        else if (!f->ours)
            zn_super_init(&f->super, NULL);
        f->super.size_bytes = o->size_bytes;
        f->super.path = o->index;
        rc = file_flush_length(f, o->path, err);
        if (rc == 0)
            rc = zn_layout_write(f->medium, o->path, &f->super, err);
    }
    if (rc < 0 && f->place->cut)
        f->place->cut(f, f->was_bytes);
    return rc;
}

/* A crash after the first flush leaves a file that is longer than its superblock says: as one that
 * is about to grow. */
int zn_file_cut(struct zn_file *f, const char *path, uint64_t size_bytes, struct zb_err *err)
{
    int rc;

    f->super.size_bytes = size_bytes;
    rc = zn_layout_write(f->medium, path, &f->super, err);
    if (rc == 0 && f->place->cut) {
        f->place->cut(f, size_bytes);
        rc = file_flush_length(f, path, err);
    }
    return rc;
}

void zn_file_close(struct zn_file *f)
{
    if (f->place->close)
        f->place->close(f);
}

int zn_peek(const char *path, struct zn_peek *ret, struct zb_err *err)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY), rc;
    struct zn_slot slot = { 0 };
    struct zn_super super;
    struct stat st;

    if (fd < 0)
        return errno == ENOENT ? -ENODATA : zb_fail(err, -errno, "data file '%s': %m", path);
    if (fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISBLK(st.st_mode)))
        rc = zn_layout_read(zn_fd(fd), path, &super, err);
    else
        rc = file_other(path, err);
    if (rc == 0) {
        (void)zn_layout_read_slots(zn_fd(fd), path, super.uuid, &slot, NULL);
        *ret = (struct zn_peek){ .index = (unsigned)zb_min_u64(super.path, UINT32_MAX),
                                 .size_bytes = super.size_bytes,
                                 .sequence = slot.sequence };
    }
    zb_close_fd(&fd);
    return rc;
}
