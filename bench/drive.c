#include "bench/drive.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/util.h"
#include "nvme/zn.h"

#define DRIVE_DEPTH 32u

struct piece {
    struct zn_io io;
    struct zbench_drive *drive;
};

struct zbench_drive {
    struct zn_engine *engine;
    char *buffers;
    uint64_t bytes, next; /* next: the first byte that the pass has not requested */
    uint32_t piece_bytes;
    enum zn_op op;
    int rc;
    struct piece pieces[DRIVE_DEPTH];
};

static void piece_done(struct zn_io *io, int rc);

/* Submits the next piece of the pass, if any is left. */
static void piece_next(struct piece *p)
{
    struct zbench_drive *d = p->drive;
    unsigned i = (unsigned)(p - d->pieces);

    if (d->rc < 0 || d->next >= d->bytes)
        return;
    p->io = (struct zn_io){ .op = d->op,
                            .buf = d->buffers + (uint64_t)i * d->piece_bytes,
                            .len_bytes = d->piece_bytes,
                            .off_bytes = ZN_DATA_START + d->next,
                            .done = piece_done };
    d->rc = zn_submit(d->engine, &p->io);
    if (d->rc == 0)
        d->next += d->piece_bytes;
}

static void piece_done(struct zn_io *io, int rc)
{
    struct piece *p = zb_container_of(io, struct piece, io);

    if (rc < 0)
        p->drive->rc = rc;
    piece_next(p);
}

void zbench_drain(struct zn_engine *e, unsigned depth)
{
    struct pollfd ready = { .fd = zn_wake_fd(e), .events = POLLIN };
    eventfd_t n;

    while (zn_stats(e).inflight > 0) {
        zn_kick(e);
        if (poll(&ready, 1, -1) > 0)
            (void)eventfd_read(ready.fd, &n);
        (void)zn_reap(e, depth);
    }
}

static int drive_pass(struct zbench_drive *d, enum zn_op op, double *ret_s)
{
    uint64_t begin_ns = zb_now_ns();

    d->op = op;
    d->next = 0;
    d->rc = 0;
    for (unsigned i = 0; i < DRIVE_DEPTH; i++)
        piece_next(&d->pieces[i]);
    zbench_drain(d->engine, DRIVE_DEPTH);
    *ret_s = (double)(zb_now_ns() - begin_ns) * 1e-9;
    return d->rc;
}

int zbench_drive_open(struct zbench_drive **ret, const char *dir, uint64_t bytes,
                      uint32_t piece_bytes, struct zb_err *err)
{
    struct zbench_drive *d = calloc(1, sizeof(*d));
    char path[4096];
    struct zn_options o = { .path = path, .depth = DRIVE_DEPTH };
    double s;
    int rc;

    (void)snprintf(path, sizeof(path), "%s/zbench-drive-%d", dir, (int)getpid());
    if (d) {
        d->bytes = bytes / piece_bytes * piece_bytes;
        d->piece_bytes = piece_bytes;
        for (unsigned i = 0; i < DRIVE_DEPTH; i++)
            d->pieces[i].drive = d;
        d->buffers = aligned_alloc(4096, (size_t)DRIVE_DEPTH * piece_bytes);
    }
    if (!d || !d->buffers) {
        zbench_drive_close(d);
        return zb_fail(err, -ENOMEM, "the control of the drive: %m");
    }
    memset(d->buffers, 1, (size_t)DRIVE_DEPTH * piece_bytes);
    o.size_bytes = ZN_DATA_START + d->bytes;
    rc = zn_open(&d->engine, &o, err);
    if (rc == 0)
        (void)unlink(path);
    if (rc == 0 && (rc = drive_pass(d, ZN_WRITE, &s)) < 0)
        (void)zb_fail(err, rc, "writing '%s': %m", path);
    if (rc < 0)
        zbench_drive_close(d);
    else
        *ret = d;
    return rc;
}

int zbench_drive_read(struct zbench_drive *d, double *ret_s, struct zb_err *err)
{
    int rc = drive_pass(d, ZN_READ, ret_s);

    return rc < 0 ? zb_fail(err, rc, "reading the control of the drive: %m") : 0;
}

bool zbench_drive_direct(const struct zbench_drive *d)
{
    return zn_info(d->engine)->direct;
}

void zbench_drive_close(struct zbench_drive *d)
{
    if (!d)
        return;
    zn_close(d->engine);
    free(d->buffers);
    free(d);
}
