/*
 * plan_measure.c - how fast memory and a drive are, in a second: enough for a plan, and no claim.
 *
 * MODEL. A few threads do the same thing until the time is over; what they moved, by the time, is
 * the rate. Memory: memcpy() of buffers far larger than caches, which reads and writes once each.
 * The drive: pages of a file without a name (O_DIRECT), every thread reading one and writing the
 * next, as a step does; so the rate holds for that mix, and stands for both directions.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "client/zctl/plan.h"

#define MEMORY_BYTES  (UINT64_C(64) << 20) /* copied at a time by each thread */
#define MEMORY_NS     UINT64_C(300000000)
#define DRIVE_BYTES   (UINT64_C(512) << 20)
#define DRIVE_IO      (UINT64_C(2) << 20)
#define DRIVE_NS      UINT64_C(1000000000)
#define DRIVE_THREADS 8u
#define THREADS_MAX   64u
#define WAIT_US       100u

struct measure {
    int fd; /* of the drive's file; -1: memory */
    uint64_t ns;
    atomic_uint ready; /* threads that have their memory, touched */
    atomic_int go;     /* 1: the time begins; -1: it never will */
    atomic_uint_fast64_t moved, next;
    atomic_int rc;
};

static int drive_move(struct measure *m, uint8_t *buf)
{
    uint64_t slots = DRIVE_BYTES / DRIVE_IO;
    uint64_t slot = atomic_fetch_add(&m->next, 2);

    if (pread(m->fd, buf, DRIVE_IO, (off_t)(slot % slots * DRIVE_IO)) != (ssize_t)DRIVE_IO ||
        pwrite(m->fd, buf, DRIVE_IO, (off_t)((slot + 1) % slots * DRIVE_IO)) != (ssize_t)DRIVE_IO)
        return errno ? -errno : -EIO;
    return 0;
}

static void *measure_run(void *arg)
{
    struct measure *m = arg;
    uint64_t bytes = m->fd < 0 ? MEMORY_BYTES : DRIVE_IO;
    uint8_t *buf = aligned_alloc(ZB_PAGE_ALIGN, 2 * bytes);
    int rc = buf ? 0 : -ENOMEM;
    uint64_t until_ns;

    if (buf)
        memset(buf, 1, 2 * bytes);
    (void)atomic_fetch_add(&m->ready, 1);
    while (atomic_load(&m->go) == 0)
        (void)usleep(WAIT_US);
    until_ns = zb_now_ns() + m->ns;
    while (rc == 0 && atomic_load(&m->go) > 0 && zb_now_ns() < until_ns) {
        if (m->fd < 0)
            memcpy(buf + bytes, buf, bytes);
        else
            rc = drive_move(m, buf);
        (void)atomic_fetch_add(&m->moved, 2 * bytes);
    }
    free(buf);
    if (rc < 0)
        atomic_store(&m->rc, rc);
    return NULL;
}

/* Bytes a second that so many threads, besides this one, move; 0 or a negative errno. */
static int measure_rate(int fd, unsigned threads, uint64_t ns, double *ret)
{
    struct measure m = { .fd = fd, .ns = ns };
    pthread_t ids[THREADS_MAX];
    uint64_t begin;
    unsigned n = 0;
    int rc = 0;

    threads = (unsigned)zb_min_u64(zb_max_u64(threads, 1), THREADS_MAX);
    while (n < threads && rc == 0) {
        rc = -pthread_create(&ids[n], NULL, measure_run, &m);
        n += rc == 0;
    }
    while (rc == 0 && atomic_load(&m.ready) < n)
        (void)usleep(WAIT_US);
    begin = zb_now_ns();
    atomic_store(&m.go, rc == 0 ? 1 : -1);
    for (unsigned i = 0; i < n; i++)
        (void)pthread_join(ids[i], NULL);
    *ret = (double)atomic_load(&m.moved) / (double)(zb_now_ns() - begin) * 1e9;
    return rc < 0 ? rc : atomic_load(&m.rc);
}

/* What was never written does not come from the device. */
static int drive_fill(int fd)
{
    uint8_t *buf = aligned_alloc(ZB_PAGE_ALIGN, DRIVE_IO);
    int rc = buf ? 0 : -ENOMEM;

    if (buf)
        memset(buf, 1, DRIVE_IO);
    for (uint64_t at = 0; at < DRIVE_BYTES && rc == 0; at += DRIVE_IO)
        if (pwrite(fd, buf, DRIVE_IO, (off_t)at) != (ssize_t)DRIVE_IO)
            rc = errno ? -errno : -EIO;
    free(buf);
    return rc;
}

static int measure_drive(struct zctl *z, const char *dir, double *ret)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    int rc;

    if (fd < 0)
        return zb_fail(&z->err, -errno, "--measure '%s': a file without a page cache there: %m",
                       dir);
    errno = 0;
    rc = drive_fill(fd);
    if (rc == 0)
        rc = measure_rate(fd, DRIVE_THREADS, DRIVE_NS, ret);
    zb_close_fd(&fd);
    return rc < 0 ? zb_fail(&z->err, rc, "--measure '%s': %m", dir) : 0;
}

int zctl_plan_measure(struct zctl_plan *p, const char *dir)
{
    struct zb_node *node = &p->node;
    double drive = 0;
    int rc = 0;

    if (node->memory <= 0)
        rc = measure_rate(-1, node->cores, MEMORY_NS, &node->memory);
    if (rc < 0)
        return zb_fail(&p->z->err, rc, "the memory's bandwidth: %m");
    if (node->drive_read > 0 && node->drive_write > 0)
        return 0;
    rc = measure_drive(p->z, dir, &drive);
    node->drive_read = node->drive_read > 0 ? node->drive_read : drive;
    node->drive_write = node->drive_write > 0 ? node->drive_write : drive;
    return rc;
}
