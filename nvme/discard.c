/*
 * discard.c - tells a drive, or a file system, which bytes of the data file are not needed.
 *
 * A BLOCK DEVICE gets BLKDISCARD. What it can discard is in sysfs.
 *
 * A FILE is punched: the file system frees the blocks, and tells the drive if it is mounted with
 * `discard`. Then they are allocated again, so that nobody else gets the space of the data file. In
 * between somebody may take it: then the range has no space (-ENOSPC) until ZN_ALLOCATE succeeds. A
 * range without data (it was never written since it was allocated) is left alone.
 *
 * THREAD. These calls block, and io_uring has them only in part (BLOCK_URING_CMD_DISCARD, Linux
 * 6.12). So each engine has a thread for them, which starts with the first request. It has one
 * request at a time: `todo`, then `finished`, both used under the lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/util.h"
#include "nvme/engine_priv.h"

#define LINE_MAX_BYTES 4096u /* of mountinfo */

/* ---- what is supported */

static void discards_not(struct zn_info *info, const char *why, int rc)
{
    info->discard = false;
    info->discard_bytes = 0;
    (void)snprintf(info->why_no_discard, sizeof(info->why_no_discard), "%s%s%s", why,
                   rc < 0 ? ": " : "", rc < 0 ? strerror(-rc) : "");
}

static void discards_by(struct zn_info *info, uint64_t granularity)
{
    info->discard_bytes = (uint32_t)zb_round_up(zb_max_u64(granularity, 1), ZN_SUPER_BYTES);
    info->discard = true;
}

/* A limit of the queue of a device, or of the device that a partition is on. */
static uint64_t queue_value(uint64_t device, const char *name)
{
    unsigned long long value = 0;
    char path[128];

    for (int up = 0; up < 2; up++) {
        FILE *file;
        int n;

        (void)snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%squeue/%s", major(device),
                       minor(device), up ? "../" : "", name);
        file = fopen(path, "re");
        if (!file)
            continue;
        n = fscanf(file, "%llu", &value);
        (void)fclose(file);
        return n == 1 ? value : 0;
    }
    return 0;
}

static void block_discards(const struct zn_file *f, struct zn_info *info)
{
    uint64_t most = queue_value(f->on_device, "discard_max_bytes");
    uint64_t granularity = queue_value(f->on_device, "discard_granularity");

    info->told = true;
    if (most == 0)
        discards_not(info, "the device does not discard (discard_max_bytes is 0)", 0);
    else if (granularity > ZN_IO_BYTES_MAX)
        discards_not(info, "the device discards only very long ranges", 0);
    else
        discards_by(info, granularity);
}

/* Whether the file system of a device is mounted with `discard`. */
static bool mounted_with_discard(uint64_t device)
{
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    char line[LINE_MAX_BYTES];
    bool with = false;

    while (mounts && fgets(line, sizeof(line), mounts)) {
        char *options = strstr(line, " - ");
        unsigned maj, min;

        if (sscanf(line, "%*u %*u %u:%u", &maj, &min) != 2 || maj != major(device) ||
            min != minor(device) || !options)
            continue;
        options = strrchr(options, ' ');
        for (char *at = options + 1, *next; at && *at; at = next) {
            next = strpbrk(at, ",\n");
            if (next)
                *next++ = '\0';
            with = with || strcmp(at, "discard") == 0 || strncmp(at, "discard=", 8) == 0;
        }
    }
    if (mounts)
        (void)fclose(mounts);
    return with;
}

void zn_file_discards(struct zn_file *f, struct zn_info *info)
{
    struct statvfs vfs;
    int rc;

    if (f->block) {
        block_discards(f, info);
        return;
    }
    if (info->sparse) {
        discards_not(info, "the file system cannot reserve space, so it could not be kept", 0);
        return;
    }
    info->told = mounted_with_discard(f->on_device);
    /* A hole after the end changes nothing; a file system without holes refuses it. */
    do {
        rc = fallocate(f->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)info->size_bytes,
                       ZN_SUPER_BYTES);
    } while (rc < 0 && errno == EINTR);
    if (rc < 0)
        discards_not(info, "the file system frees no part of a file", -errno);
    else
        discards_by(info, fstatvfs(f->fd, &vfs) == 0 ? vfs.f_bsize : ZN_SUPER_BYTES);
}

/* ---- discarding */

static int fallocate_again(const struct zn_file *f, int mode, uint64_t off_bytes,
                           uint64_t len_bytes)
{
    int rc;

    do {
        rc = fallocate(f->fd, mode, (off_t)off_bytes, (off_t)len_bytes);
    } while (rc < 0 && errno == EINTR);
    return rc < 0 ? -errno : 0;
}

/* Whether nothing in the range was written since it was allocated; false if that is not known. */
static bool file_blank(const struct zn_file *f, uint64_t off_bytes, uint64_t len_bytes)
{
    off_t data = lseek(f->fd, (off_t)off_bytes, SEEK_DATA);

    return data < 0 ? errno == ENXIO : (uint64_t)data >= off_bytes + len_bytes;
}

static int file_discard(const struct zn_file *f, uint64_t off_bytes, uint64_t len_bytes)
{
    int rc;

    if (file_blank(f, off_bytes, len_bytes))
        return 0;
    rc = fallocate_again(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_bytes, len_bytes);
    /* Also after a failure, which may have freed a part. */
    if (fallocate_again(f, FALLOC_FL_KEEP_SIZE, off_bytes, len_bytes) < 0)
        return -ENOSPC;
    return rc == -ENOSPC ? -EIO : rc; /* -ENOSPC says that the space is lost */
}

int zn_file_discard(const struct zn_file *f, enum zn_op op, uint64_t off_bytes, uint64_t len_bytes)
{
    uint64_t range[2] = { off_bytes, len_bytes };

    if (f->block)
        return op == ZN_ALLOCATE || ioctl(f->fd, BLKDISCARD, range) == 0 ? 0
               : errno == ENOSPC                                         ? -EIO
                                                                         : -errno;
    return op == ZN_DISCARD ? file_discard(f, off_bytes, len_bytes)
                            : fallocate_again(f, FALLOC_FL_KEEP_SIZE, off_bytes, len_bytes);
}

/* ---- the thread */

static void *discarder_run(void *arg)
{
    struct zn_discarder *d = arg;

    pthread_mutex_lock(&d->lock);
    for (;;) {
        struct zn_io *io = d->todo;

        if (io) {
            int rc;

            d->todo = NULL;
            pthread_mutex_unlock(&d->lock);
            rc = d->e->file.place->discard(&d->e->file, io->op, zn_io_off(io), (uint64_t)io->res);
            pthread_mutex_lock(&d->lock);
            io->res = rc < 0 ? rc : io->res;
            d->finished = io;
            zn_wake(d->e);
        } else if (d->stop) {
            break;
        } else {
            pthread_cond_wait(&d->work, &d->lock);
        }
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* Starts the thread with all signals blocked: the program handles signals. */
static int discarder_start(struct zn_engine *e)
{
    struct zn_discarder *d = &e->discarder;
    sigset_t all, old;
    int rc;

    d->e = e;
    pthread_mutex_init(&d->lock, NULL); /* these two cannot fail on Linux */
    pthread_cond_init(&d->work, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = -pthread_create(&d->thread, NULL, discarder_run, d);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc == 0)
        (void)pthread_setname_np(d->thread, "zn-discard");
    d->up = rc == 0;
    return rc;
}

void zn_discarder_submit(struct zn_engine *e, struct zn_io *io)
{
    struct zn_discarder *d = &e->discarder;
    int rc = d->up ? 0 : discarder_start(e);

    if (rc < 0) { /* without a thread there is no lock to take */
        io->res = rc == -EAGAIN ? -ENOMEM : rc;
        d->finished = io;
        zn_wake(e);
        return;
    }
    pthread_mutex_lock(&d->lock);
    d->todo = io;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
}

struct zn_io *zn_discarder_reap(struct zn_engine *e)
{
    struct zn_discarder *d = &e->discarder;
    struct zn_io *io;

    if (!e->stats.discarding)
        return NULL;
    if (d->up)
        pthread_mutex_lock(&d->lock);
    io = d->finished;
    d->finished = NULL;
    if (d->up)
        pthread_mutex_unlock(&d->lock);
    return io;
}

void zn_discarder_close(struct zn_engine *e)
{
    struct zn_discarder *d = &e->discarder;

    if (!d->up)
        return;
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    pthread_cond_destroy(&d->work);
    pthread_mutex_destroy(&d->lock);
    d->up = false;
}
