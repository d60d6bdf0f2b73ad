#include "zn_test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/loop.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int zn_test_dir_make(char *ret, size_t size, const char *base)
{
    if (!base)
        base = getenv("TMPDIR");
    (void)snprintf(ret, size, "%s/zshard-nvme-XXXXXX", base ? base : "/tmp");
    return mkdtemp(ret) ? 0 : -errno;
}

void zn_test_dir_remove(const char *dir)
{
    DIR *d = opendir(dir);

    if (!d)
        return;
    for (struct dirent *entry; (entry = readdir(d)) != NULL;)
        (void)unlinkat(dirfd(d), entry->d_name, 0); /* "." and ".." refuse */
    (void)closedir(d);
    (void)rmdir(dir);
}

void *zn_test_memory(size_t len_bytes)
{
    void *p = NULL;

    if (posix_memalign(&p, 4096, len_bytes) != 0)
        fail_msg("%zu bytes of memory", len_bytes);
    return p;
}

bool zn_test_wait(struct zn_engine *e)
{
    struct pollfd p = { .fd = zn_wake_fd(e), .events = POLLIN };
    eventfd_t n;
    int rc;

    do {
        rc = poll(&p, 1, ZN_TEST_WAIT_MS);
    } while (rc < 0 && errno == EINTR);
    return rc == 1 && eventfd_read(p.fd, &n) == 0;
}

void zn_test_drain(struct zn_engine *e)
{
    while (zn_stats(e).inflight > 0 || zn_stats(e).discarding) {
        zn_kick(e);
        if (!zn_test_wait(e))
            fail_msg("no wake-up with %u requests in flight", zn_stats(e).inflight);
        (void)zn_reap(e, 64);
    }
}

struct test_io {
    struct zn_io io;
    int rc;
};

static void test_io_done(struct zn_io *io, int rc)
{
    zb_container_of(io, struct test_io, io)->rc = rc;
}

int zn_test_io(struct zn_engine *e, enum zn_op op, void *buf, uint32_t len_bytes,
               uint64_t off_bytes)
{
    struct test_io t = {
        .io = { .op = op,
                .buf = buf,
                .len_bytes = len_bytes,
                .off_bytes = off_bytes,
                .done = test_io_done },
        .rc = 1,
    };
    int rc = zn_submit(e, &t.io);

    if (rc < 0)
        return rc;
    zn_test_drain(e);
    return t.rc;
}

bool zn_test_loop_up(const char *file, char *ret, size_t size, int *ret_fd)
{
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    int file_fd = open(file, O_RDWR | O_CLOEXEC), nr = -1;
    bool up = false;

    *ret_fd = -1;
    for (int attempt = 0; control >= 0 && file_fd >= 0 && !up && attempt < 8; attempt++) {
        struct loop_info64 info = { .lo_flags = LO_FLAGS_AUTOCLEAR };

        nr = ioctl(control, LOOP_CTL_GET_FREE);
        (void)snprintf(ret, size, "/dev/loop%d", nr);
        *ret_fd = open(ret, O_RDWR | O_CLOEXEC);
        up = *ret_fd >= 0 && ioctl(*ret_fd, LOOP_SET_FD, file_fd) == 0 &&
             ioctl(*ret_fd, LOOP_SET_STATUS64, &info) == 0;
        if (!up)
            zb_close_fd(ret_fd);
    }
    if (!up)
        print_message("skipped: a loop device: %s\n", strerror(errno));
    zb_close_fd(&control);
    zb_close_fd(&file_fd);
    return up;
}

int zn_test_refuse(const struct zn_test_refusal *refusals, unsigned count)
{
    enum { EACH = 5, MAX = 8 };
    const unsigned nr_at = offsetof(struct seccomp_data, nr);
    const unsigned second_at = offsetof(struct seccomp_data, args[1]); /* the low half */
    const unsigned third_at = offsetof(struct seccomp_data, args[2]);
    struct sock_filter code[EACH * MAX + 1], *p = code;
    struct sock_fprog prog = { .filter = code };

    if (count > MAX)
        return -E2BIG;
    for (unsigned i = 0; i < count; i++) {
        const struct zn_test_refusal *r = &refusals[i];
        const unsigned at = r->third == 0                     ? nr_at
                            : r->nr == __NR_io_uring_register ? second_at
                                                              : third_at;
        const struct sock_filter each[EACH] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, nr_at),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)r->nr, 0, 3),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, r->third > 0 ? r->third : (unsigned)r->nr, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ((unsigned)r->error & SECCOMP_RET_DATA)),
        };

        memcpy(p, each, sizeof(each));
        p += EACH;
    }
    *p++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    prog.len = (unsigned short)(p - code);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0)
        return -errno;
    return 0;
}

int zn_test_child(int (*run)(const void *arg), const void *arg)
{
    int status = 0;
    pid_t pid;

    (void)fflush(NULL);
    pid = fork();
    if (pid == 0)
        _exit(run(arg));
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        fail_msg("a child process: %s", strerror(errno));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
