#include "bench/gpu_other.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define OTHER "the process that stands for the daemon"

/* To the process that stands for the daemon, with the two descriptors of a zk_gpu_share. */
struct order {
    uint64_t len_bytes, unit_bytes;
};

union fds_room {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(2 * sizeof(int))];
};

static int order_send(int fd, const struct order *order, const struct zk_gpu_share *share)
{
    const int fds[2] = { share->mem_fd, share->mark_fd };
    union fds_room room = { 0 };
    struct iovec part = { (void *)(uintptr_t)order, sizeof(*order) };
    struct msghdr m = { .msg_iov = &part,
                        .msg_iovlen = 1,
                        .msg_control = room.bytes,
                        .msg_controllen = sizeof(room.bytes) };
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(fds));
    memcpy(CMSG_DATA(c), fds, sizeof(fds));
    return sendmsg(fd, &m, 0) == (ssize_t)sizeof(*order) ? 0 : -EPIPE;
}

static int order_receive(int fd, struct order *order, struct zk_gpu_share *share)
{
    union fds_room room = { 0 };
    struct iovec part = { order, sizeof(*order) };
    struct msghdr m = { .msg_iov = &part,
                        .msg_iovlen = 1,
                        .msg_control = room.bytes,
                        .msg_controllen = sizeof(room.bytes) };
    struct cmsghdr *c;
    int fds[2];

    if (recvmsg(fd, &m, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(*order))
        return -EPIPE;
    c = CMSG_FIRSTHDR(&m);
    if (!c || c->cmsg_len != CMSG_LEN(sizeof(fds)))
        return -EPIPE;
    memcpy(fds, CMSG_DATA(c), sizeof(fds));
    *share = (struct zk_gpu_share){ fds[0], fds[1], order->len_bytes };
    return 0;
}

static int other_build(const char *device, const struct zk_gpu_share *share, char *from,
                       uint64_t bytes, struct zk_gpu_stream **stream, struct zk_gpu_mem **to)
{
    struct zk_gpu *gpu = NULL;
    int rc = zk_gpu_open(device, 0, &gpu, NULL);

    if (rc == 0)
        rc = zk_gpu_stream_new(gpu, stream, NULL);
    if (rc == 0)
        rc = zk_gpu_import(gpu, share, true, to, NULL);
    return rc < 0 ? rc : zk_gpu_pin(gpu, from, bytes, false, NULL);
}

/* In the child, until the socket closes. The end of the process frees everything. */
static void other_serve(int fd, void *arg)
{
    const char *device = arg;
    struct zk_gpu_stream *stream = NULL;
    struct zk_gpu_mem *to = NULL;
    struct zk_gpu_share share;
    struct order o;
    char *from = NULL;
    uint32_t unit;
    int rc;

    if (order_receive(fd, &o, &share) < 0)
        return;
    from = mmap(NULL, o.len_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    rc = from == MAP_FAILED ? -ENOMEM : 0;
    if (rc == 0)
        memset(from, 1, o.len_bytes);
    if (rc == 0)
        rc = other_build(device, &share, from, o.len_bytes, &stream, &to);
    while (write(fd, &rc, sizeof(rc)) == sizeof(rc) && rc == 0 &&
           read(fd, &unit, sizeof(unit)) == sizeof(unit)) {
        uint64_t at = unit * o.unit_bytes;

        rc = zk_gpu_copy(stream, ZK_GPU_TO_DEVICE, (char *)zk_gpu_addr(to) + at, from + at,
                         o.unit_bytes, NULL);
        if (rc == 0)
            rc = zk_gpu_stream_sync(stream, NULL);
    }
}

int zbench_other_start(struct zbench_child *c, const char *device, struct zb_err *err)
{
    return zbench_child_start(c, other_serve, (void *)(uintptr_t)device, err);
}

int zbench_other_begin(const struct zbench_child *c, struct zk_gpu_mem *to, uint64_t unit_bytes,
                       struct zb_err *err)
{
    const struct order o = { .len_bytes = zk_gpu_len(to), .unit_bytes = unit_bytes };
    struct zk_gpu_share share;
    int rc = zk_gpu_share(to, 0, &share, err);

    if (rc < 0)
        return rc;
    rc = order_send(c->fd, &o, &share);
    zk_gpu_share_close(&share);
    return rc < 0 ? zb_fail(err, rc, OTHER ": %m") : zbench_other_answer(c, err);
}

int zbench_other_ask(const struct zbench_child *c, uint32_t unit, struct zb_err *err)
{
    return write(c->fd, &unit, sizeof(unit)) == sizeof(unit)
               ? 0
               : zb_fail(err, -EPIPE, OTHER " has ended");
}

int zbench_other_answer(const struct zbench_child *c, struct zb_err *err)
{
    int rc = -EPIPE;

    if (read(c->fd, &rc, sizeof(rc)) != sizeof(rc))
        rc = -EPIPE;
    return rc < 0 ? zb_fail(err, rc, OTHER ": %m") : 0;
}
