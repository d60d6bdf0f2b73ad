/*
 * test_gpu.c - one suite for every GPU that opens. The emulated one always opens, CUDA's only where
 * there is one. Order on streams and events, memory that other processes hold, limits, failures.
 *
 * GATES. A stream is blocked by a signal to a full eventfd: the write waits until the eventfd is
 * read. So "not yet" is tested without a clock.
 *
 * OTHER PROCESSES are this program, started again (main). They open the device themselves and
 * follow commands, single letters sent over a socket.
 */
#include "tests/ztest.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/gpu_own.h"
#include "tests/send_fds.h"
#include "tests/unit/kernels/works.h"

#define SIZE         (2u * 1024 * 1024) /* the granularity of all known devices */
#define SHARE_HOLDER 4711u

struct fixture {
    const char *name;
    struct zk_gpu *gpu;
    struct zk_gpu_stream *a, *b;
    unsigned char *host; /* SIZE bytes, pinned */
    struct zb_err err;
};

/* For messages: what failed and why. */
#define good(x, call)                                                               \
    do {                                                                            \
        int good_rc = (call);                                                       \
        if (good_rc != 0)                                                           \
            fail_msg("%s: %s is %d: %s", (x)->name, #call, good_rc, (x)->err.text); \
    } while (0)

/* false: there is no such GPU here; a message says so. */
static bool fixture_open(struct fixture *x, const char *name, uint64_t limit)
{
    int rc;

    *x = (struct fixture){ .name = name };
    rc = zk_gpu_open(name, limit, &x->gpu, &x->err);
    if (rc == -ENODEV && ztest_device_optional(name)) {
        assert_non_null(strstr(x->err.text, "no GPU: "));
        print_message("%s is skipped: %s\n", name, x->err.text);
        return false;
    }
    good(x, rc);
    good(x, zk_gpu_stream_new(x->gpu, &x->a, &x->err));
    good(x, zk_gpu_stream_new(x->gpu, &x->b, &x->err));
    x->host = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(x->host != MAP_FAILED);
    good(x, zk_gpu_pin(x->gpu, x->host, SIZE, false, &x->err));
    return true;
}

static void fixture_close(struct fixture *x)
{
    zk_gpu_stream_free(x->a);
    zk_gpu_stream_free(x->b);
    good(x, zk_gpu_unpin(x->gpu, x->host, &x->err));
    zk_gpu_close(x->gpu);
    (void)munmap(x->host, SIZE);
}

static const char *const devices[] = { "emulated:64M", "emulated:64M:200", "cuda" };

/* Runs `run` on each GPU that opens. */
static void on_each(void (*run)(struct fixture *x))
{
    struct fixture x;

    for (size_t i = 0; i < ZB_COUNT(devices); i++)
        if (fixture_open(&x, devices[i], 0)) {
            run(&x);
            fixture_close(&x);
        }
}

static struct zk_gpu_mem *alloc(struct fixture *x, uint64_t bytes)
{
    struct zk_gpu_mem *m = NULL;

    good(x, zk_gpu_alloc(x->gpu, bytes, 7, &m, &x->err));
    return m;
}

/* ---- gates */

static int gate_close(struct fixture *x, struct zk_gpu_stream *s)
{
    int fd = eventfd(0, EFD_CLOEXEC);

    assert_true(fd >= 0 && eventfd_write(fd, UINT64_MAX - 1) == 0);
    good(x, zk_gpu_signal(s, fd, &x->err));
    return fd;
}

static void gate_open(struct fixture *x, struct zk_gpu_stream *s, int fd)
{
    eventfd_t n;

    assert_int_equal(eventfd_read(fd, &n), 0);
    good(x, zk_gpu_stream_sync(s, &x->err));
    assert_int_equal(close(fd), 0);
}

/* Whether all work of the stream is done: 0; -EAGAIN: not yet. */
static int stream_query(struct fixture *x, struct zk_gpu *g, struct zk_gpu_stream *s)
{
    struct zk_gpu_event *e = NULL;
    int rc;

    good(x, zk_gpu_event_new(g, &e, &x->err));
    good(x, zk_gpu_event_record(e, s, &x->err));
    rc = zk_gpu_event_query(e, &x->err);
    zk_gpu_event_free(e);
    return rc;
}

static bool all_are(const unsigned char *p, unsigned char byte, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != byte)
            return false;
    return true;
}

/* ---- names */

static void names(void **state)
{
    static const struct {
        const char *name;
        int rc;
        const char *says;
    } rows[] = {
        { "", -EINVAL, "unknown GPU ''" },
        { "cud", -EINVAL, "unknown GPU" },
        { "emulatedx", -EINVAL, "unknown GPU" },
        { "emulated:", -EINVAL, "unknown GPU" },
        { "emulated:1M", -EINVAL, "at least" },
        { "emulated:x", -EINVAL, "x" },
        { "emulated:64M:9:9:4K:9:9:9", -EINVAL, "too much" },
        { "emulated:64M:9:9:9", -EINVAL, "multiples of 4096" },
        { "emulated:64M:9:9:0", -EINVAL, "multiples of 4096" },
        { "emulated:64M:1K", -EINVAL, "1K" },
        { "cuda:4096", -ENODEV, "no GPU: " },
        { "cuda:-1", -EINVAL, "cuda:-1" },
        { "cuda:", -EINVAL, "unknown GPU" }, /* refused without asking a device or driver */
    };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct zb_err err = { 0 };
        struct zk_gpu *g = NULL;
        int rc = zk_gpu_open(rows[i].name, 0, &g, &err);
        bool without = strncmp(rows[i].name, "cuda:-", 6) == 0 && rc == -ENODEV; /* without CUDA */

        if (g || (rc != rows[i].rc && !without) ||
            !strstr(err.text, without ? "no GPU: " : rows[i].says))
            fail_msg("'%s': %d, %s", rows[i].name, rc, err.text);
    }
}

/* ---- order */

static void copies(struct fixture *x)
{
    struct zk_gpu_mem *m = alloc(x, 2 * SIZE);
    char *dev = zk_gpu_addr(m);

    memset(x->host, 1, SIZE);
    good(x, zk_gpu_copy(x->a, ZK_GPU_TO_DEVICE, dev, x->host, SIZE, &x->err));
    good(x, zk_gpu_fill(x->a, dev + 10, 2, 100, &x->err));
    good(x, zk_gpu_copy(x->a, ZK_GPU_WITHIN, dev + SIZE, dev, SIZE, &x->err));
    good(x, zk_gpu_fill(x->a, dev, 3, SIZE, &x->err));
    good(x, zk_gpu_copy(x->a, ZK_GPU_TO_HOST, x->host, dev + SIZE, SIZE, &x->err));
    good(x, zk_gpu_copy(x->a, ZK_GPU_TO_HOST, NULL, NULL, 0, &x->err));
    good(x, zk_gpu_copy(x->a, ZK_GPU_TO_DEVICE, dev, x->host, SIZE, &x->err)); /* in pieces */
    good(x, zk_gpu_stream_sync(x->a, &x->err));
    assert_true(all_are(x->host, 1, 10) && all_are(x->host + 10, 2, 100) &&
                all_are(x->host + 110, 1, SIZE - 110));
    zk_gpu_free(m);
}

/* The kernel cannot read or write device memory for us either. */
static void host_cannot_touch(struct fixture *x)
{
    struct zk_gpu_mem *m = alloc(x, SIZE);
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    assert_true(write(ends[1], zk_gpu_addr(m), 1) == -1 && errno == EFAULT);
    assert_int_equal(write(ends[1], "x", 1), 1);
    assert_true(read(ends[0], zk_gpu_addr(m), 1) == -1 && errno == EFAULT);
    assert_true(close(ends[0]) == 0 && close(ends[1]) == 0);
    zk_gpu_free(m);
}

/* The work of a call is done later, with the bytes that are there at that time. */
static void works_run_late(struct fixture *x)
{
    struct zk_gpu_mem *m = alloc(x, SIZE);
    volatile unsigned char *host = x->host;
    int fd;

    good(x, zk_gpu_fill(x->a, zk_gpu_addr(m), 8, SIZE, &x->err));
    good(x, zk_gpu_stream_sync(x->a, &x->err));
    memset(x->host, 5, SIZE);
    fd = gate_close(x, x->a);
    good(x, zk_gpu_copy(x->a, ZK_GPU_TO_HOST, x->host, zk_gpu_addr(m), 100, &x->err));
    good(x, zk_gpu_copy(x->a, ZK_GPU_TO_DEVICE, zk_gpu_addr(m), x->host + 4096, 100, &x->err));
    good(x, zk_gpu_copy(x->a, ZK_GPU_TO_HOST, x->host + 8192, zk_gpu_addr(m), 100, &x->err));
    assert_true(host[0] == 5 && host[8192] == 5);
    host[4096] = 6; /* an invalid write: the copy may be reading it, or has read it */
    assert_int_equal(stream_query(x, x->gpu, x->a), -EAGAIN);
    assert_int_equal(x->err.code, 0);
    gate_open(x, x->a, fd);
    assert_true(host[0] == 8 && host[99] == 8 && host[100] == 5);
    assert_true(host[8192] == 6 || (host[8192] == 5 && strncmp(x->name, "cuda", 4) == 0));
    assert_true(host[8193] == 5 && host[8292] == 5);
    zk_gpu_free(m);
}

static void events_order_streams(struct fixture *x)
{
    struct zk_gpu_mem *m = alloc(x, SIZE);
    struct zk_gpu_event *e = NULL, *never = NULL;
    int fd;

    good(x, zk_gpu_event_new(x->gpu, &e, &x->err));
    good(x, zk_gpu_event_new(x->gpu, &never, &x->err));
    good(x, zk_gpu_event_query(e, &x->err)); /* never recorded: counts as reached */
    good(x, zk_gpu_fill(x->b, zk_gpu_addr(m), 1, 100, &x->err));
    good(x, zk_gpu_stream_sync(x->b, &x->err));
    fd = gate_close(x, x->a);
    good(x, zk_gpu_fill(x->a, zk_gpu_addr(m), 2, 100, &x->err));
    good(x, zk_gpu_event_record(e, x->a, &x->err));
    good(x, zk_gpu_event_wait(never, x->b, &x->err));
    good(x, zk_gpu_copy(x->b, ZK_GPU_TO_HOST, x->host, zk_gpu_addr(m), 100, &x->err));
    good(x, zk_gpu_stream_sync(x->b, &x->err)); /* b runs while a is blocked */
    assert_true(all_are(x->host, 1, 100));
    good(x, zk_gpu_event_wait(e, x->b, &x->err));
    good(x, zk_gpu_copy(x->b, ZK_GPU_TO_HOST, x->host, zk_gpu_addr(m), 100, &x->err));
    assert_int_equal(zk_gpu_event_query(e, &x->err), -EAGAIN);
    assert_int_equal(stream_query(x, x->gpu, x->b), -EAGAIN);
    zk_gpu_event_free(e); /* b waits nevertheless */
    gate_open(x, x->a, fd);
    good(x, zk_gpu_stream_sync(x->b, &x->err));
    assert_true(all_are(x->host, 2, 100));
    zk_gpu_event_free(never);
    zk_gpu_free(m);
}

/* Waiting for a record is not delayed by a later record. */
static void later_records_hold_up_nobody(struct fixture *x)
{
    struct zk_gpu_event *e = NULL;
    int fd;

    good(x, zk_gpu_event_new(x->gpu, &e, &x->err));
    good(x, zk_gpu_event_record(e, x->a, &x->err));
    good(x, zk_gpu_event_wait(e, x->b, &x->err));
    fd = gate_close(x, x->a);
    good(x, zk_gpu_event_record(e, x->a, &x->err));
    good(x, zk_gpu_stream_sync(x->b, &x->err));
    assert_int_equal(zk_gpu_event_query(e, &x->err), -EAGAIN);
    gate_open(x, x->a, fd);
    good(x, zk_gpu_event_query(e, &x->err));
    zk_gpu_event_free(e);
}

static void signals(struct fixture *x)
{
    int fd = eventfd(0, EFD_CLOEXEC);
    eventfd_t n = 0;

    for (int i = 0; i < 3; i++)
        good(x, zk_gpu_signal(x->a, fd, &x->err));
    good(x, zk_gpu_stream_sync(x->a, &x->err));
    assert_true(eventfd_read(fd, &n) == 0 && n == 3);
    assert_int_equal(close(fd), 0);
}

/* ---- kernels */

static void kernels_same_bits(struct fixture *x)
{
    struct zk_gpu_mem *m = alloc(x, WORKS_BYTES);
    struct works works = { .mem = aligned_alloc(64, WORKS_BYTES), .seed = 11 };
    size_t count;
    const struct zk_ops *ref = zk_all(&count)[0];
    bool none = false;

    for (size_t n = 0; works_nth(&works, n, &none); n++) {
        struct zk_gpu_work work = works_moved(&works, zk_gpu_addr(m));

        if (none)
            continue;
        memcpy(x->host, works.mem, WORKS_BYTES);
        good(x, zk_gpu_copy(x->a, ZK_GPU_TO_DEVICE, zk_gpu_addr(m), x->host, WORKS_BYTES, &x->err));
        good(x, zk_gpu_launch(x->a, &work, &x->err));
        good(x, zk_gpu_copy(x->a, ZK_GPU_TO_HOST, x->host, zk_gpu_addr(m), WORKS_BYTES, &x->err));
        good(x, zk_gpu_stream_sync(x->a, &x->err));
        assert_int_equal(zk_gpu_work_run(ref, &works.work), 0);
        works_compare(&works, x->host, works.mem);
    }
    free(works.mem);
    zk_gpu_free(m);
}

static void bad_works_are_refused(struct fixture *x)
{
    struct zk_gpu_mem *m = alloc(x, SIZE);
    char *dev = zk_gpu_addr(m);
    struct zb_layout layout;
    const struct zk_gpu_array casts[] = {
        { .from = dev, .to = dev + 4096, .n = 8, .from_dtype = ZB_BF16, .to_dtype = ZB_F16 },
        { .from = dev, .to = dev + 4096, .n = 8, .from_dtype = ZB_F32, .to_dtype = 9 },
        { .from = dev + 2, .to = dev + 4096, .n = 8, .from_dtype = ZB_F32, .to_dtype = ZB_BF16 },
        { .from = dev, .to = dev + 1, .n = 8, .from_dtype = ZB_F32, .to_dtype = ZB_BF16 },
    };
    struct zk_gpu_work w = { .op = ZK_GPU_QUANTIZE_I8,
                             .array = { .from = dev,
                                        .to = dev + 4096,
                                        .n = ZB_BLOCK_ELEMS + ZB_Q8_GROUP,
                                        .from_dtype = ZB_F32 } };

    assert_int_equal(zb_layout_of(ZB_F32, ZB_BF16, ZB_SGD, ZB_MOMENTS_F32, false, &layout, NULL),
                     0);
    assert_int_equal(zk_gpu_launch(x->a, &w, NULL), -EINVAL);
    w.op = 99;
    assert_int_equal(zk_gpu_launch(x->a, &w, NULL), -EINVAL);
    for (size_t i = 0; i < ZB_COUNT(casts); i++) {
        w = (struct zk_gpu_work){ .op = ZK_GPU_CAST, .array = casts[i] };
        assert_int_equal(zk_gpu_launch(x->a, &w, NULL), -EINVAL);
    }
    w = (struct zk_gpu_work){ .op = ZK_GPU_INGEST,
                              .ingest = { .layout = layout,
                                          .page = { .grad = dev, .count = ZB_BLOCK_ELEMS },
                                          .from = dev + SIZE / 2,
                                          .from_dtype = ZB_F32,
                                          .norms = (void *)(dev + SIZE / 4),
                                          .add = true } };
    assert_int_equal(zk_gpu_launch(x->a, &w, NULL), -EINVAL); /* added to bf16 */
    w.ingest.add = false;
    w.ingest.page.count = 5;
    assert_int_equal(zk_gpu_launch(x->a, &w, NULL), -EINVAL);
    w.ingest.page.count = 0;
    good(x, zk_gpu_launch(x->a, &w, &x->err)); /* nothing to do */
    good(x, zk_gpu_stream_sync(x->a, &x->err));
    zk_gpu_free(m);
}

/* ---- memory */

static struct zk_gpu_usage usage(struct fixture *x)
{
    struct zk_gpu_usage u = { 0 };

    good(x, zk_gpu_usage(x->gpu, &u, &x->err));
    return u;
}

static void limits(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(devices); i++) {
        struct fixture x;
        struct zk_gpu_mem *first, *second = NULL;
        struct zb_err err = { 0 };

        if (!fixture_open(&x, devices[i], 4 * SIZE))
            continue;
        assert_true(zk_gpu_info(x.gpu)->limit_bytes == 4 * SIZE);
        assert_true(zk_gpu_info(x.gpu)->granularity_bytes == SIZE);
        first = alloc(&x, 2 * SIZE + 1);
        assert_true(zk_gpu_len(first) == 3 * SIZE && usage(&x).owned_bytes == 3 * SIZE);
        assert_int_equal(zk_gpu_alloc(x.gpu, SIZE + 1, 0, &second, &err), -ENOSPC);
        assert_non_null(
            strstr(err.text, "4.00 MiB of GPU memory are needed, 2.00 MiB of 8.00 MiB are free"));
        assert_int_equal(zk_gpu_alloc(x.gpu, 0, 0, &second, NULL), -EINVAL);
        assert_int_equal(zk_gpu_alloc(x.gpu, UINT64_MAX, 0, &second, NULL), -EINVAL);
        assert_true(!second && usage(&x).owned_bytes == 3 * SIZE);
        second = alloc(&x, SIZE);
        zk_gpu_free(first);
        assert_true(usage(&x).owned_bytes == SIZE && usage(&x).stranded_bytes == 0);
        zk_gpu_free(second);
        fixture_close(&x);
    }
}

static void pins(struct fixture *x)
{
    unsigned char *more =
        mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_int_equal(zk_gpu_pin(x->gpu, x->host + 4096, 4096, false, NULL), -EEXIST);
    assert_int_equal(zk_gpu_pin(x->gpu, more, 100, false, NULL), -EINVAL);
    assert_int_equal(zk_gpu_pin(x->gpu, more + 8, 4096, false, NULL), -EINVAL);
    assert_int_equal(zk_gpu_pin(x->gpu, more, 0, false, NULL), -EINVAL);
    assert_int_equal(zk_gpu_unpin(x->gpu, more, NULL), -ENOENT);
    assert_int_equal(zk_gpu_unpin(x->gpu, x->host + 4096, NULL), -ENOENT);
    assert_int_equal(usage(x).pinned_bytes, SIZE);
    good(x, zk_gpu_pin(x->gpu, more, SIZE, false, &x->err));
    assert_int_equal(usage(x).pinned_bytes, 2 * SIZE);
    assert_int_equal(zk_gpu_pinned_bytes(x->gpu), 2 * SIZE);
    good(x, zk_gpu_unpin(x->gpu, more, &x->err));
    assert_int_equal(usage(x).pinned_bytes, SIZE);

    /* Memory that is mapped read-only, on drivers that support it, and declared as such. */
    assert_int_equal(mprotect(more, SIZE, PROT_READ), 0);
    if (strncmp(x->name, "emulated", 8) == 0)
        assert_int_equal(zk_gpu_pin(x->gpu, more, SIZE, false, NULL), -EINVAL);
    if (zk_gpu_info(x->gpu)->pins_read_only) {
        good(x, zk_gpu_pin(x->gpu, more, SIZE, true, &x->err));
        good(x, zk_gpu_unpin(x->gpu, more, &x->err));
    } else {
        assert_int_equal(zk_gpu_pin(x->gpu, more, SIZE, true, NULL), -ENOTSUP);
    }
    assert_int_equal(usage(x).pinned_bytes, SIZE);
    assert_int_equal(munmap(more, SIZE), 0);
}

/* More than the device can pin: nothing of the call is pinned, and earlier pins stay. */
static void pins_that_are_too_much(void **state)
{
    struct fixture x;
    unsigned char *more =
        mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)state;
    assert_true(fixture_open(&x, "emulated:64M:::4K:4M", 0)); /* this one pins 2 MiB at most */
    assert_int_equal(zk_gpu_pin(x.gpu, more, 2 * SIZE, false, &x.err), -ENOMEM);
    assert_non_null(strstr(x.err.text, "pins no more"));
    assert_int_equal(zk_gpu_pinned_bytes(x.gpu), SIZE);
    good(&x, zk_gpu_pin(x.gpu, more, SIZE, false, &x.err));
    good(&x, zk_gpu_unpin(x.gpu, more, &x.err));
    fixture_close(&x);
    assert_int_equal(munmap(more, 2 * SIZE), 0);
}

/* ---- other processes */

static void send_share(int sock, const struct zk_gpu_share *share)
{
    int fds[2] = { share->mem_fd, share->mark_fd };
    uint64_t len = share->len_bytes;

    assert_true(send_fds(sock, &len, sizeof(len), fds, 2));
}

static struct zk_gpu_share receive_share(int sock)
{
    int fds[2];
    uint64_t len = 0;
    struct iovec io = { .iov_base = &len, .iov_len = sizeof(len) };
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(fds))] = { 0 };
    struct msghdr msg = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
    };

    assert_int_equal(recvmsg(sock, &msg, MSG_CMSG_CLOEXEC), sizeof(len));
    assert_non_null(CMSG_FIRSTHDR(&msg));
    memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fds));
    return (struct zk_gpu_share){ .mem_fd = fds[0], .mark_fd = fds[1], .len_bytes = len };
}

struct other {
    pid_t pid;
    int sock;
};

static struct other other_start(const char *device)
{
    char fd[16];
    int ends[2];
    struct other o;

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    o = (struct other){ .pid = fork(), .sock = ends[0] };
    assert_true(o.pid >= 0);
    if (o.pid == 0) {
        int sock = dup(ends[1]); /* without CLOEXEC */

        (void)snprintf(fd, sizeof(fd), "%d", sock);
        (void)execl("/proc/self/exe", "test_gpu", "other", device, fd, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(close(ends[1]), 0);
    return o;
}

/* Sends a command; returns the byte that it answers with. */
static int other_do(struct other *o, char what)
{
    unsigned char answer = 0;

    assert_int_equal(send(o->sock, &what, 1, MSG_NOSIGNAL), 1);
    assert_int_equal(read(o->sock, &answer, 1), 1);
    return answer;
}

static void other_kill(struct other *o)
{
    assert_int_equal(kill(o->pid, SIGKILL), 0);
    assert_int_equal(waitpid(o->pid, NULL, 0), o->pid);
    assert_int_equal(close(o->sock), 0);
}

/* The first byte of the memory. */
static unsigned char peek(struct fixture *x, struct zk_gpu_mem *m)
{
    good(x, zk_gpu_copy(x->a, ZK_GPU_TO_HOST, x->host, zk_gpu_addr(m), 1, &x->err));
    good(x, zk_gpu_stream_sync(x->a, &x->err));
    return x->host[0];
}

static void poke(struct fixture *x, struct zk_gpu_mem *m, uint8_t byte)
{
    good(x, zk_gpu_fill(x->a, zk_gpu_addr(m), byte, zk_gpu_len(m), &x->err));
    good(x, zk_gpu_stream_sync(x->a, &x->err));
}

/* i, I: import the memory that comes, I: read-only. p: return its first byte. w: fill it with 9. e:
 * allocate, fill with 5, and share. d: release. */
static int other_main(const char *device, int sock)
{
    struct fixture x;
    struct zk_gpu_mem *m = NULL;
    char what;

    if (!fixture_open(&x, device, 0))
        return 1;
    while (read(sock, &what, 1) == 1) {
        unsigned char answer = 0;
        struct zk_gpu_share share;

        switch (what) {
        case 'i':
        case 'I':
            share = receive_share(sock);
            good(&x, zk_gpu_import(x.gpu, &share, what == 'i', &m, &x.err));
            zk_gpu_share_close(&share);
            break;
        case 'p':
            answer = peek(&x, m);
            break;
        case 'w':
            poke(&x, m, 9);
            break;
        case 'e':
            m = alloc(&x, SIZE);
            poke(&x, m, 5);
            good(&x, zk_gpu_share(m, SHARE_HOLDER, &share, &x.err));
            send_share(sock, &share);
            zk_gpu_share_close(&share);
            break;
        default:
            zk_gpu_free(m);
            m = NULL;
        }
        if (write(sock, &answer, 1) != 1)
            return 1;
    }
    return 0;
}

static void give(struct fixture *x, struct zk_gpu_mem *m, struct other *o, char how)
{
    struct zk_gpu_share share;
    char answer;

    good(x, zk_gpu_share(m, SHARE_HOLDER, &share, &x->err));
    assert_int_equal(send(o->sock, &how, 1, MSG_NOSIGNAL), 1);
    send_share(o->sock, &share);
    zk_gpu_share_close(&share);
    assert_int_equal(read(o->sock, &answer, 1), 1);
}

struct seen {
    unsigned calls, holders;
    uint64_t tag, len_bytes;
};

static void on_stranded(void *arg, const struct zk_gpu_strand *strand)
{
    struct seen *s = arg;

    *s = (struct seen){ s->calls + 1, strand->nholders, strand->tag, strand->len_bytes };
    for (unsigned i = 0; i < strand->nholders; i++)
        assert_int_equal(strand->holders[i], SHARE_HOLDER);
}

/* Both processes see the same memory. It lives until the last one releases it, or is killed, and
 * the holders are known. */
static void stranded_memory(struct fixture *x)
{
    struct other one = other_start(x->name), two = other_start(x->name);
    struct zk_gpu_mem *m = alloc(x, SIZE), *more = NULL;
    struct seen seen = { 0 };
    struct zb_err err = { 0 };

    poke(x, m, 3);
    assert_int_equal(zk_gpu_holders(m), 0);
    give(x, m, &one, 'i');
    give(x, m, &two, 'I');
    assert_int_equal(zk_gpu_holders(m), 2);
    assert_true(other_do(&one, 'p') == 3 && other_do(&two, 'p') == 3);
    assert_int_equal(other_do(&one, 'w'), 0);
    assert_true(peek(x, m) == 9 && other_do(&two, 'p') == 9);

    zk_gpu_free(m);
    assert_true(usage(x).owned_bytes == 0 && usage(x).stranded_bytes == SIZE);
    assert_int_equal(other_do(&two, 'p'), 9); /* the memory lives on */
    zk_gpu_stranded(x->gpu, on_stranded, &seen);
    assert_true(seen.calls == 1 && seen.holders == 2 && seen.tag == 7 && seen.len_bytes == SIZE);
    assert_int_equal(zk_gpu_alloc(x->gpu, zk_gpu_info(x->gpu)->limit_bytes, 0, &more, &err),
                     -ENOSPC);
    assert_non_null(strstr(err.text, "2.00 MiB are stranded"));

    assert_int_equal(other_do(&one, 'd'), 0);
    zk_gpu_stranded(x->gpu, on_stranded, &seen);
    assert_true(seen.calls == 2 && seen.holders == 1);
    other_kill(&two);
    zk_gpu_stranded(x->gpu, on_stranded, &seen);
    assert_true(seen.calls == 2 && usage(x).stranded_bytes == 0);
    other_kill(&one);
}

/* Memory of an exporter that is killed stays valid for its importers. */
static void killed_exporter(struct fixture *x)
{
    struct other o = other_start(x->name);
    struct zk_gpu_mem *m = NULL;
    struct zk_gpu_share share;
    char answer;

    assert_int_equal(send(o.sock, "e", 1, MSG_NOSIGNAL), 1);
    share = receive_share(o.sock);
    assert_int_equal(read(o.sock, &answer, 1), 1);
    good(x, zk_gpu_import(x->gpu, &share, true, &m, &x->err));
    zk_gpu_share_close(&share);
    assert_int_equal(zk_gpu_share(m, SHARE_HOLDER, &share, NULL), -EINVAL); /* not exported by us */
    other_kill(&o);
    assert_int_equal(peek(x, m), 5);
    poke(x, m, 6);
    assert_true(peek(x, m) == 6 && usage(x).owned_bytes == 0);
    zk_gpu_free(m);
    assert_int_equal(usage(x).owned_bytes, 0);
}

static void bad_imports(struct fixture *x)
{
    struct zk_gpu_mem *m = alloc(x, SIZE), *got = NULL;
    struct zk_gpu_share share, bad;

    good(x, zk_gpu_share(m, SHARE_HOLDER, &share, &x->err));
    bad = share;
    bad.len_bytes = SIZE + 1;
    assert_int_equal(zk_gpu_import(x->gpu, &bad, true, &got, NULL), -EINVAL);
    bad = (struct zk_gpu_share){ -1, share.mark_fd, SIZE };
    assert_true(zk_gpu_import(x->gpu, &bad, true, &got, NULL) < 0);
    bad = (struct zk_gpu_share){ share.mem_fd, -1, SIZE };
    assert_true(zk_gpu_import(x->gpu, &bad, true, &got, NULL) < 0);
    bad = (struct zk_gpu_share){ share.mark_fd, share.mark_fd, SIZE };
    assert_true(zk_gpu_import(x->gpu, &bad, true, &got, NULL) < 0);
    assert_null(got);
    zk_gpu_share_close(&share);
    assert_int_equal(zk_gpu_holders(m), 0);
    zk_gpu_free(m);
    assert_int_equal(usage(x).stranded_bytes, 0);
}

/* ---- failures */

/* Everything that a small job does; stops at the first failure. */
static int small_job(struct fixture *x)
{
    struct zk_gpu_mem *m[2] = { NULL };
    struct zk_gpu_work work = { .op = ZK_GPU_CAST,
                                .array = { .n = 64, .from_dtype = ZB_F32, .to_dtype = ZB_F32 } };
    int rc = 0;

    for (int i = 0; i < 2 && rc == 0; i++)
        rc = zk_gpu_alloc(x->gpu, SIZE, 0, &m[i], &x->err);
    if (rc == 0)
        rc = zk_gpu_copy(x->a, ZK_GPU_TO_DEVICE, zk_gpu_addr(m[0]), x->host, 256, &x->err);
    if (rc == 0) {
        work.array.from = zk_gpu_addr(m[0]);
        work.array.to = zk_gpu_addr(m[1]);
        rc = zk_gpu_launch(x->a, &work, &x->err);
    }
    if (rc == 0)
        rc = zk_gpu_copy(x->a, ZK_GPU_TO_HOST, x->host + 256, zk_gpu_addr(m[1]), 256, &x->err);
    if (rc == 0)
        rc = zk_gpu_fill(x->a, zk_gpu_addr(m[1]), 0, 1, &x->err);
    if (zk_gpu_stream_sync(x->a, &x->err) < 0)
        rc = x->err.code;
    zk_gpu_free(m[0]);
    zk_gpu_free(m[1]);
    return rc;
}

/* The device fails at its first operation, then at its second, and so on until none fails. Nothing
 * hangs, and everything is freed. */
static void fails_at_everything(void **state)
{
    unsigned n = 0;
    int rc = -1;

    (void)state;
    for (; rc != 0; n++) {
        struct fixture x;
        char name[40];

        (void)snprintf(name, sizeof(name), "emulated:64M:0:%u", n);
        assert_true(fixture_open(&x, name, 0));
        memset(x.host, 1, 256);
        memset(x.host + 256, 2, 256);
        rc = small_job(&x);
        assert_true(rc == (n < 2 ? -ENOSPC : n < 6 ? -EIO : 0));
        assert_true(rc == 0 || strstr(x.err.text, "as it was asked to"));
        assert_true(all_are(x.host + 256, n <= 4 ? 2 : 1, 256));
        if (rc == -EIO) { /* a permanent failure */
            struct zk_gpu_mem *m = NULL;

            assert_int_equal(zk_gpu_alloc(x.gpu, SIZE, 0, &m, NULL), -EIO);
            assert_int_equal(zk_gpu_stream_sync(x.b, NULL), -EIO);
            assert_int_equal(zk_gpu_fill(x.b, NULL, 0, 1, NULL), -EIO);
        }
        assert_int_equal(usage(&x).owned_bytes, 0);
        fixture_close(&x);
    }
    assert_int_equal(n, 7);
}

/* On a real device this is equally fatal, and would destroy the context of this process. */
static void wrong_addresses_lose_the_device(void **state)
{
    enum { HOST, BEHIND, ACROSS, READ_ONLY, ROWS };

    (void)state;
    for (int row = 0; row < ROWS; row++) {
        struct fixture x;
        struct zk_gpu_mem *m, *view = NULL;
        struct zk_gpu_share share;
        char *at;

        assert_true(fixture_open(&x, "emulated:64M", 0));
        m = alloc(&x, SIZE);
        good(&x, zk_gpu_share(m, SHARE_HOLDER, &share, &x.err));
        good(&x, zk_gpu_import(x.gpu, &share, false, &view, &x.err));
        zk_gpu_share_close(&share);
        at = row == HOST     ? (char *)x.host
             : row == BEHIND ? (char *)zk_gpu_addr(m) + 64 * SIZE
             : row == ACROSS ? (char *)zk_gpu_addr(m) + SIZE - 1
                             : (char *)zk_gpu_addr(view);
        good(&x, zk_gpu_copy(x.a, ZK_GPU_TO_HOST, x.host, zk_gpu_addr(view), 8, &x.err));
        good(&x, zk_gpu_stream_sync(x.a, &x.err));
        good(&x, zk_gpu_fill(x.a, at, 1, 2, &x.err));
        assert_int_equal(zk_gpu_stream_sync(x.a, &x.err), -EFAULT);
        assert_non_null(strstr(x.err.text, "memory that is not its own"));
        zk_gpu_free(view);
        zk_gpu_free(m);
        fixture_close(&x);
    }
}

/* Nothing waits for a lost device. */
static void lost_device_wakes_everyone(void **state)
{
    struct fixture x;
    struct zk_gpu_event *e = NULL;
    struct zk_gpu_mem *m;

    (void)state;
    assert_true(fixture_open(&x, "emulated:64M:0:1", 0));
    m = alloc(&x, SIZE);
    good(&x, zk_gpu_event_new(x.gpu, &e, &x.err));
    good(&x, zk_gpu_fill(x.a, zk_gpu_addr(m), 1, 1, &x.err));
    /* From here on calls may fail: the device may be lost already. */
    (void)zk_gpu_event_record(e, x.a, NULL);
    (void)zk_gpu_event_wait(e, x.b, NULL);
    assert_int_equal(zk_gpu_stream_sync(x.a, NULL), -EIO);
    assert_int_equal(zk_gpu_stream_sync(x.b, NULL), -EIO);
    assert_int_equal(zk_gpu_event_query(e, NULL), -EIO);
    zk_gpu_event_free(e);
    zk_gpu_free(m);
    fixture_close(&x);
}

/* ---- a device that somebody else owns, and works that are functions (gpu_own.h) */

struct add {
    unsigned char *at;
    unsigned char by;
    int rc;
};

static int add_run(void *args)
{
    const struct add *a = args;

    a->at[0] = (unsigned char)(a->at[0] + a->by);
    return a->rc;
}

static int add_call(struct fixture *x, struct zk_gpu_stream *s, struct add add, uint64_t len_bytes)
{
    const struct zk_gpu_use uses[] = { { offsetof(struct add, at), len_bytes, true },
                                       { 0, 0, true } };

    return zk_gpu_call(s, add_run, &add, sizeof(add), uses, ZB_COUNT(uses), &x->err);
}

static void adopted(struct fixture *x)
{
    struct zk_gpu *g = NULL;
    struct zk_gpu_stream *s = NULL;
    struct zk_gpu_mem *m = alloc(x, SIZE), *own = NULL;
    bool functions = strncmp(x->name, "emulated", 8) == 0;
    struct add add = { .at = zk_gpu_addr(m), .by = 2 };
    int fd, rc;

    good(x, zk_gpu_adopt(x->name, zk_gpu_stream_native(x->a), &g, &s, &x->err));
    good(x, zk_gpu_enter(g, &x->err));
    good(x, zk_gpu_alloc(g, SIZE, 0, &own, &x->err));
    fd = gate_close(x, x->a);
    good(x,
         zk_gpu_fill(x->a, zk_gpu_addr(m), 5, SIZE, &x->err)); /* by the owner, then by the other */
    rc = add_call(x, s, add, 1);
    assert_int_equal(rc, functions ? 0 : -ENOTSUP);
    add.by = 100; /* the call has made a copy */
    good(x, zk_gpu_copy(s, ZK_GPU_WITHIN, zk_gpu_addr(own), zk_gpu_addr(m), SIZE, &x->err));
    good(x, zk_gpu_copy(s, ZK_GPU_TO_HOST, x->host, zk_gpu_addr(own), SIZE, &x->err));
    assert_int_equal(stream_query(x, g, s), -EAGAIN);
    gate_open(x, x->a, fd);
    assert_int_equal(x->host[0], functions ? 7 : 5);
    assert_true(all_are(x->host + 1, 5, SIZE - 1));
    zk_gpu_free(own);
    zk_gpu_disown(g, s);
    good(x, zk_gpu_stream_sync(x->a, &x->err)); /* the owner can still use it */
    zk_gpu_free(m);
}

static void wrong_calls_lose_the_device(void **state)
{
    static const struct {
        const char *name;
        size_t at;
        uint64_t len_bytes;
        int rc;
    } rows[] = { { "a function that fails", 0, 1, -EINVAL },
                 { "behind the end", SIZE - 1, 2, 0 },
                 { "nobody's", 64ull * SIZE, 1, 0 } };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(rows); i++) {
        struct fixture x;
        struct zk_gpu_mem *m;
        int rc;

        assert_true(fixture_open(&x, "emulated:64M", 0));
        m = alloc(&x, SIZE);
        good(&x, add_call(&x, x.a,
                          (struct add){ .at = (unsigned char *)zk_gpu_addr(m) + rows[i].at,
                                        .rc = rows[i].rc },
                          rows[i].len_bytes));
        rc = zk_gpu_stream_sync(x.a, &x.err);
        if (rc != -EFAULT)
            fail_msg("%s: %d", rows[i].name, rc);
        zk_gpu_free(m);
        fixture_close(&x);
    }
}

/* ---- threads */

#define THREADS 4

struct worker {
    struct zk_gpu *gpu;
    unsigned number;
};

static void *work_alone(void *arg)
{
    const struct worker *w = arg;
    struct fixture x = { .name = "thread", .gpu = w->gpu };
    unsigned char out[512];

    good(&x, zk_gpu_stream_new(x.gpu, &x.a, &x.err));
    for (unsigned i = 0; i < 40; i++) {
        struct zk_gpu_mem *m = alloc(&x, SIZE);
        struct zk_gpu_event *e = NULL;

        good(&x, zk_gpu_event_new(x.gpu, &e, &x.err));
        good(&x, zk_gpu_fill(x.a, zk_gpu_addr(m), (uint8_t)(w->number * 50 + i), 512, &x.err));
        good(&x, zk_gpu_event_record(e, x.a, &x.err));
        good(&x, zk_gpu_copy(x.a, ZK_GPU_TO_HOST, out, zk_gpu_addr(m), 512, &x.err));
        good(&x, zk_gpu_stream_sync(x.a, &x.err));
        good(&x, zk_gpu_event_query(e, &x.err));
        assert_true(all_are(out, (uint8_t)(w->number * 50 + i), 512));
        (void)usage(&x);
        zk_gpu_event_free(e);
        zk_gpu_free(m);
    }
    zk_gpu_stream_free(x.a);
    return NULL;
}

static void many_threads(struct fixture *x)
{
    pthread_t threads[THREADS];
    struct worker workers[THREADS];

    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){ x->gpu, i };
        assert_int_equal(pthread_create(&threads[i], NULL, work_alone, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(usage(x).owned_bytes, 0);
}

#define ON_EACH(run)                    \
    static void run##_all(void **state) \
    {                                   \
        (void)state;                    \
        on_each(run);                   \
    }

ON_EACH(copies)
ON_EACH(host_cannot_touch)
ON_EACH(works_run_late)
ON_EACH(events_order_streams)
ON_EACH(later_records_hold_up_nobody)
ON_EACH(signals)
ON_EACH(kernels_same_bits)
ON_EACH(bad_works_are_refused)
ON_EACH(pins)
ON_EACH(stranded_memory)
ON_EACH(killed_exporter)
ON_EACH(bad_imports)
ON_EACH(many_threads)
ON_EACH(adopted)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(copies_all),
        cmocka_unit_test(host_cannot_touch_all),
        cmocka_unit_test(works_run_late_all),
        cmocka_unit_test(events_order_streams_all),
        cmocka_unit_test(later_records_hold_up_nobody_all),
        cmocka_unit_test(signals_all),
        cmocka_unit_test(kernels_same_bits_all),
        cmocka_unit_test(bad_works_are_refused_all),
        cmocka_unit_test(limits),
        cmocka_unit_test(pins_all),
        cmocka_unit_test(pins_that_are_too_much),
        cmocka_unit_test(stranded_memory_all),
        cmocka_unit_test(killed_exporter_all),
        cmocka_unit_test(bad_imports_all),
        cmocka_unit_test(fails_at_everything),
        cmocka_unit_test(wrong_addresses_lose_the_device),
        cmocka_unit_test(lost_device_wakes_everyone),
        cmocka_unit_test(adopted_all),
        cmocka_unit_test(wrong_calls_lose_the_device),
        cmocka_unit_test(many_threads_all),
    };

    zk_thread_init();
    if (argc == 4 && strcmp(argv[1], "other") == 0)
        return other_main(argv[2], atoi(argv[3]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
