#include "base/measure.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/plan.h"
#include "base/util.h"

#define MEMORY_NS     UINT64_C(30000000)
#define MEMORY_TRIES  5u /* short tries, the best counts: other processes use the processor too */
#define FILL_BYTES    (UINT64_C(4) << 20)
#define DRIVE_THREADS 32u /* one transfer each: enough to keep a drive busy */
#define THREADS_MAX   64u
#define HUGE_BYTES    (UINT64_C(2) << 20)
#define WAIT_US       100u

struct measure {
    const struct zb_measure_work *work; /* on memory; NULL: the drive */
    int fd;                             /* of the drive's file */
    uint64_t ns, io_bytes;
    atomic_uint ready; /* threads whose memory is ready, touched */
    atomic_int go;     /* 1: start measuring; -1: give up */
    atomic_uint_fast64_t moved, next;
    atomic_int rc;
};

static int drive_move(struct measure *m, uint8_t *buf)
{
    uint64_t slots = ZB_MEASURE_DRIVE_BYTES / m->io_bytes;
    uint64_t slot = atomic_fetch_add(&m->next, 2);
    uint64_t from = slot % slots * m->io_bytes, to = (slot + 1) % slots * m->io_bytes;

    errno = 0;
    if (pread(m->fd, buf, m->io_bytes, (off_t)from) != (ssize_t)m->io_bytes ||
        pwrite(m->fd, buf, m->io_bytes, (off_t)to) != (ssize_t)m->io_bytes)
        return errno ? -errno : -EIO;
    return 0;
}

/* Fresh memory, on huge pages. Memory that malloc() reuses may be shared with a forked child, and
 * would be copied in small pages. NULL: no memory. */
static uint8_t *measure_map(uint64_t bytes)
{
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (map == MAP_FAILED)
        return NULL;
    (void)madvise(map, bytes, MADV_HUGEPAGE);
    return map;
}

static void *measure_run(void *arg)
{
    struct measure *m = arg;
    const struct zb_measure_work *work = m->work;
    uint64_t bytes = work ? work->room_bytes : m->io_bytes;
    uint64_t room = zb_round_up(bytes, HUGE_BYTES) + HUGE_BYTES, moved;
    uint8_t *map = measure_map(room);
    uint8_t *buf = map ? (uint8_t *)zb_round_up((uintptr_t)map, HUGE_BYTES) : NULL;
    int rc = buf ? 0 : -ENOMEM;
    uint64_t until_ns;

    if (buf)
        memset(buf, 1, bytes);
    if (buf && work)
        work->begin(work->arg, buf);
    (void)atomic_fetch_add(&m->ready, 1);
    while (atomic_load(&m->go) == 0)
        (void)usleep(WAIT_US);
    until_ns = zb_now_ns() + m->ns;
    for (uint64_t turn = 0; rc == 0 && atomic_load(&m->go) > 0 && zb_now_ns() < until_ns; turn++) {
        moved = work ? work->turn(work->arg, buf, turn) : 2 * bytes;
        if (!work)
            rc = drive_move(m, buf);
        (void)atomic_fetch_add(&m->moved, moved);
    }
    if (map)
        (void)munmap(map, room);
    if (rc < 0)
        atomic_store(&m->rc, rc);
    return NULL;
}

/* Measures the bytes per second moved by `threads` threads, in addition to this one; 0 or a
 * negative errno. */
static int measure_rate(struct measure m, unsigned threads, double *ret)
{
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

int zb_measure_memory(const struct zb_measure_work *work, unsigned threads, double *ret,
                      struct zb_err *err)
{
    struct measure m = { .work = work, .fd = -1, .ns = MEMORY_NS };
    double rate;
    int rc = 0;

    *ret = 0;
    for (unsigned i = 0; i < MEMORY_TRIES && rc == 0; i++) {
        rc = measure_rate(m, threads, &rate);
        if (rc == 0 && rate > *ret)
            *ret = rate;
    }
    return rc < 0 ? zb_fail(err, rc, "the bandwidth of memory: %m") : 0;
}

/* Fills the file: reads of ranges that were never written would not reach the device. */
static int drive_fill(int fd)
{
    uint8_t *buf = aligned_alloc(ZB_PAGE_ALIGN, FILL_BYTES);
    int rc = buf ? 0 : -ENOMEM;

    if (buf)
        memset(buf, 1, FILL_BYTES);
    for (uint64_t at = 0; at < ZB_MEASURE_DRIVE_BYTES && rc == 0; at += FILL_BYTES) {
        errno = 0;
        if (pwrite(fd, buf, FILL_BYTES, (off_t)at) != (ssize_t)FILL_BYTES)
            rc = errno ? -errno : -EIO;
    }
    free(buf);
    return rc;
}

int zb_measure_open(const char *dir, struct zb_err *err)
{
    int fd = open(dir, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    int rc;

    if (fd < 0)
        return zb_fail(err, -errno, "'%s': cannot open a file without page cache: %m", dir);
    rc = drive_fill(fd);
    if (rc == 0)
        return fd;
    zb_close_fd(&fd);
    return zb_fail(err, rc, "'%s': cannot write a file of 512 MiB: %m", dir);
}

int zb_measure_drive(int fd, uint64_t io_bytes, uint64_t ns, double *ret, struct zb_err *err)
{
    int rc = measure_rate((struct measure){ .fd = fd, .ns = ns, .io_bytes = io_bytes },
                          DRIVE_THREADS, ret);

    return rc < 0 ? zb_fail(err, rc, "the bandwidth of the drive: %m") : 0;
}
