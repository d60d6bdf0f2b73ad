/*
 * engine_uring.c - the fast backend: requests wait in the submission ring until zn_kick() hands all
 * of them to the kernel in one system call.
 *
 * INVARIANTS
 *     U1  The submission ring has `depth` entries and the completion ring twice as many; engine.c
 *         keeps `depth`, so neither ever overflows.
 *     U2  Only the thread that opened the ring enters it (IORING_SETUP_SINGLE_ISSUER). On a kernel
 *         that has it, completions are posted when that thread asks (DEFER_TASKRUN): the eventfd
 *         says that there is something to ask for, and no device interrupts what the thread does.
 *     U3  An entry that the kernel does not take now stays in the ring; the wake-up is set, so the
 *         caller comes back, and the next kick tries again.
 */
#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>

#include "nvme/engine_priv.h"

struct uring {
    struct io_uring ring;
    bool ring_up;
};

/* The best first; a kernel that does not know a flag answers -EINVAL. */
static const unsigned uring_flags[] = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG, /* 6.1 */
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,                               /* 5.19 */
    0,
};

static const char *uring_hint(int rc)
{
    switch (rc) {
    case -EPERM:
        return " (sysctl kernel.io_uring_disabled, or a container's seccomp profile)";
    case -ENOSYS:
        return " (the kernel, or its sandbox, has none)";
    case -ENOMEM:
        return " (RLIMIT_MEMLOCK may be too low for this kernel)";
    default:
        return "";
    }
}

static int uring_start(struct zn_engine *e, struct zb_err *err)
{
    struct uring *u = calloc(1, sizeof(*u));
    int rc = -EINVAL;

    if (!u)
        return zb_fail(err, -ENOMEM, "io_uring engine: %m");
    e->impl = u;
    for (size_t i = 0; i < ZB_COUNT(uring_flags) && rc == -EINVAL; i++)
        rc = io_uring_queue_init(e->info.depth, &u->ring, uring_flags[i]);
    if (rc < 0)
        return zb_fail(err, rc, "io_uring is refused: %m%s", uring_hint(rc));
    u->ring_up = true;
    /* One descriptor, known to the ring for good: no lookup and no reference for each request. */
    rc = io_uring_register_files(&u->ring, &e->file.fd, 1);
    if (rc == 0)
        rc = io_uring_register_eventfd(&u->ring, e->wake_fd);
    return rc < 0 ? zb_fail(err, rc, "io_uring takes no file or no wake-up: %m%s", uring_hint(rc))
                  : 0;
}

static void uring_submit(struct zn_engine *e, struct zn_io *io)
{
    struct uring *u = e->impl;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

    assert(sqe); /* U1 */
    switch (io->op) {
    case ZN_READ:
        io_uring_prep_read(sqe, 0, zn_io_at(io), (unsigned)io->res, zn_io_off(io));
        break;
    case ZN_WRITE:
    case ZN_SLOT: /* comes as a write */
        io_uring_prep_write(sqe, 0, zn_io_at(io), (unsigned)io->res, zn_io_off(io));
        break;
    case ZN_FLUSH:
        io_uring_prep_fsync(sqe, 0, IORING_FSYNC_DATASYNC);
        break;
    }
    io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE); /* number 0 of the registered ones */
    io_uring_sqe_set_data(sqe, io);
}

static int uring_kick(struct zn_engine *e)
{
    struct uring *u = e->impl;

    while (io_uring_sq_ready(&u->ring) > 0) {
        int rc = io_uring_submit(&u->ring);

        if (rc > 0)
            continue;
        if (rc != 0 && rc != -EAGAIN && rc != -EBUSY && rc != -EINTR)
            return rc;
        zn_wake(e); /* U3 */
        break;
    }
    return 0;
}

static struct zn_io *uring_reap(struct zn_engine *e)
{
    struct uring *u = e->impl;
    struct io_uring_cqe *cqe;
    struct zn_io *io;

    if (io_uring_peek_cqe(&u->ring, &cqe) != 0)
        return NULL;
    io = io_uring_cqe_get_data(cqe);
    io->res = cqe->res;
    io_uring_cqe_seen(&u->ring, cqe);
    return io;
}

static void uring_close(struct zn_engine *e)
{
    struct uring *u = e->impl;

    if (u && u->ring_up) {
        /* The kernel takes a ring apart later, in its own time: the file should not wait for it. */
        (void)io_uring_unregister_files(&u->ring);
        io_uring_queue_exit(&u->ring);
    }
    free(u);
    e->impl = NULL;
}

const struct zn_ops zn_uring_ops = {
    "uring", uring_start, uring_submit, uring_kick, uring_reap, uring_close,
};
