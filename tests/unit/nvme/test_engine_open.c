/*
 * Everything that zn_open() may encounter: options, foreign files, file systems that are full,
 * read-only or lack features, and kernels that refuse system calls.
 */
#include "zn_test.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nvme/engine_priv.h"

#define SIZE (ZN_DATA_START + (UINT64_C(1) << 20))

static char dir[256], path[300], mnt[300];
static struct zb_err err;

static int dir_up(void **state)
{
    (void)state;
    if (zn_test_dir_make(dir, sizeof(dir), NULL) < 0)
        return -1;
    (void)snprintf(path, sizeof(path), "%s/data", dir);
    (void)snprintf(mnt, sizeof(mnt), "%s/mnt", dir);
    return 0;
}

static int dir_down(void **state)
{
    (void)state;
    (void)umount2(mnt, MNT_DETACH); /* left by a test that failed */
    (void)rmdir(mnt);
    zn_test_dir_remove(dir);
    return 0;
}

/* Opens and closes; returns the rc, with the error message in err. */
static int try_open(const char *at, uint64_t size_bytes, const char *io)
{
    struct zn_options o = { .path = at, .size_bytes = size_bytes, .io = io };
    struct zn_engine *e = NULL;
    int rc;

    err = (struct zb_err){ 0 };
    rc = zn_open(&e, &o, &err);
    zn_close(e);
    return rc == err.code ? rc : 1;
}

static void expect_text(const char *what, const char *part)
{
    if (!strstr(err.text, part))
        fail_msg("%s: '%s' lacks '%s'", what, err.text, part);
}

static int64_t file_size(const char *at)
{
    struct stat st;

    return stat(at, &st) < 0 ? -errno : st.st_size;
}

static void file_make(const char *at, const void *bytes, size_t len_bytes, uint64_t size_bytes)
{
    int fd = open(at, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, len_bytes), len_bytes);
    assert_int_equal(ftruncate(fd, (off_t)size_bytes), 0);
    assert_int_equal(close(fd), 0);
}

static const struct {
    const char *name;
    struct zn_options o;
    const char *text;
} option_cases[] = {
    { "an engine that is none", { .size_bytes = SIZE, .io = "libaio" }, "'libaio': must be auto" },
    { "an engine in capitals", { .size_bytes = SIZE, .io = "AUTO" }, "must be auto" },
    { "no size", { .size_bytes = 0 }, "is not a multiple of 4096" },
    { "an odd size", { .size_bytes = SIZE + 512 }, "is not a multiple of 4096" },
    { "nothing but the superblock", { .size_bytes = ZN_DATA_START }, "above 65536" },
    { "a size above all", { .size_bytes = UINT64_MAX - 4095 }, "is not a multiple" },
    { "too deep", { .size_bytes = SIZE, .depth = ZN_DEPTH_MAX + 1 }, "depth 4097 (at most 4096)" },
    { "too many threads",
      { .size_bytes = SIZE, .threads = 257 },
      "with 257 threads (at most 256)" },
    { "no name", { .path = "", .size_bytes = SIZE }, "has no name" },
};

static void open_options(void **state)
{
    (void)state;
    for (size_t i = 0; i < ZB_COUNT(option_cases); i++) {
        struct zn_options o = option_cases[i].o;
        struct zn_engine *e = (struct zn_engine *)&o;

        err = (struct zb_err){ 0 };
        if (!o.path)
            o.path = path;
        assert_int_equal(zn_open(&e, &o, &err), -EINVAL);
        assert_ptr_equal(e, &o);
        expect_text(option_cases[i].name, option_cases[i].text);
        assert_int_equal(file_size(path), -ENOENT);
    }
}

static void open_paths(void **state)
{
    struct zn_options only = { .path = path, .size_bytes = SIZE };
    struct zn_engine *e = NULL;
    char at[400];

    (void)state;
    (void)snprintf(at, sizeof(at), "%s/none/data", dir);
    assert_int_equal(try_open(at, SIZE, NULL), -ENOENT);
    expect_text("no directory", "none/data': its directory does not exist");
    assert_int_equal(try_open(dir, SIZE, NULL), -EMEDIUMTYPE);
    expect_text("a directory", "is a directory");
    file_make(path, "", 0, 0);
    (void)snprintf(at, sizeof(at), "%s/x", path);
    assert_int_equal(try_open(at, SIZE, NULL), -ENOTDIR);
    expect_text("a file for a directory", "x': Not a directory");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(try_open(path, SIZE, NULL), -EMEDIUMTYPE);
    expect_text("a pipe", "is neither a regular file nor a block device");
    err = (struct zb_err){ 0 };
    only.read_only = true; /* it does not wait for writers */
    assert_int_equal(zn_open(&e, &only, &err), -EMEDIUMTYPE);
    expect_text("a pipe, to read", "is neither a regular file nor a block device");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("elsewhere", path), 0);
    err = (struct zb_err){ 0 };
    only = (struct zn_options){ .path = path, .size_bytes = SIZE, .no_follow = true };
    assert_int_equal(zn_open(&e, &only, &err), -ELOOP);
    expect_text("a link", "is a symbolic link, which is not followed");
    (void)snprintf(at, sizeof(at), "%s/elsewhere", dir);
    assert_int_equal(file_size(at), -ENOENT);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(try_open("/dev/null", SIZE, NULL), -EMEDIUMTYPE);
    expect_text("/dev/null", "is neither a regular file nor a block device");
}

/* Foreign files keep every byte. */
static void open_foreign(void **state)
{
    static const char text[] = "the only copy of somebody's thesis";
    struct zn_super super = { .size_bytes = SIZE };
    unsigned char block[ZN_SUPER_BYTES];
    char got[sizeof(text)];
    int fd;

    (void)state;
    file_make(path, text, sizeof(text), sizeof(text));
    assert_int_equal(try_open(path, SIZE, NULL), -EMEDIUMTYPE);
    expect_text("a text", "has content, and it is not a zshard data file");
    assert_int_equal(file_size(path), sizeof(text));
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, got, sizeof(got)), sizeof(got));
    assert_int_equal(close(fd), 0);
    assert_string_equal(got, text);

    zn_super_encode(&super, block);
    block[40]++;
    file_make(path, block, sizeof(block), SIZE);
    assert_int_equal(try_open(path, SIZE, NULL), -EBADMSG);
    expect_text("a flipped bit", "is damaged: its checksum differs");

    zn_super_encode(&super, block);
    file_make(path, block, sizeof(block), SIZE - 4096);
    assert_int_equal(try_open(path, SIZE, NULL), -EBADMSG);
    expect_text("a cut file", "was truncated: its superblock says 1.06 MiB");
    assert_int_equal(file_size(path), SIZE - 4096);

    file_make(path, block, sizeof(block), SIZE);
    assert_int_equal(try_open(path, SIZE - 4096, NULL), -EINVAL);
    expect_text("too large", "a data file is never cut");
    assert_int_equal(file_size(path), SIZE);
    assert_int_equal(try_open(path, SIZE, NULL), 0);
    assert_int_equal(unlink(path), 0);
}

static void super_read(struct zn_super *ret)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    assert_int_equal(zn_layout_read(zn_fd(fd), path, ret, NULL), 0);
    assert_int_equal(close(fd), 0);
}

/* A file outlives its engine and may grow, and any engine reads what another wrote. */
static void open_again(void **state)
{
    struct zn_options o = { .path = path, .size_bytes = SIZE, .io = "threads" };
    unsigned char *buf = zn_test_memory(8192);
    struct zn_super first, second;
    struct zn_engine *e;

    (void)state;
    assert_int_equal(zn_open(&e, &o, NULL), 0);
    memset(buf, 0x5c, 8192);
    assert_int_equal(zn_test_io(e, ZN_WRITE, buf, 8192, SIZE - 8192), 0);
    zn_close(e);
    super_read(&first);
    assert_int_equal(first.size_bytes, SIZE);
    o.size_bytes = SIZE + 65536;
    o.io = "auto";
    assert_int_equal(zn_open(&e, &o, NULL), 0);
    assert_int_equal(file_size(path), SIZE + 65536);
    memset(buf, 0, 8192);
    assert_int_equal(zn_test_io(e, ZN_READ, buf, 8192, SIZE - 8192), 0);
    assert_int_equal(buf[0], 0x5c);
    assert_int_equal(buf[8191], 0x5c);
    assert_int_equal(zn_test_io(e, ZN_READ, buf, 8192, SIZE + 65536 - 8192), 0);
    assert_int_equal(buf[0], 0);
    zn_close(e);
    super_read(&second);
    assert_memory_equal(first.uuid, second.uuid, sizeof(first.uuid));
    assert_int_equal(second.size_bytes, SIZE + 65536);
    free(buf);
    assert_int_equal(unlink(path), 0);
}

static int child_open(const void *arg)
{
    return try_open(path, SIZE, arg) == -EBUSY ? 0 : 1;
}

static void open_twice(void **state)
{
    static const char *const engines[] = { "threads", "auto" };

    (void)state;
    for (size_t i = 0; i < ZB_COUNT(engines); i++) {
        struct zn_options o = { .path = path, .size_bytes = SIZE, .io = engines[i] };
        struct zn_engine *e;

        assert_int_equal(zn_open(&e, &o, NULL), 0);
        assert_int_equal(try_open(path, SIZE, engines[i]), -EBUSY);
        expect_text("a second opener", "is in use by another daemon");
        assert_int_equal(zn_test_child(child_open, engines[i]), 0);
        zn_close(e);
        assert_int_equal(try_open(path, SIZE, engines[i]), 0); /* at once */
    }
    assert_int_equal(unlink(path), 0);
}

/* A close unlocks, even if another process has the descriptor: a child that was forked
 * meanwhile. */
static void open_after_fork(void **state)
{
    struct zn_options o = { .path = path, .size_bytes = SIZE, .io = "threads" };
    struct zn_engine *e;
    pid_t pid;
    int rc;

    (void)state;
    assert_int_equal(zn_open(&e, &o, NULL), 0);
    pid = fork();
    if (pid == 0) {
        (void)pause();
        _exit(1);
    }
    zn_close(e);
    rc = try_open(path, SIZE, NULL);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_int_equal(rc, 0);
    assert_int_equal(unlink(path), 0);
}

static void nothing_done(struct zn_io *io, int rc)
{
    (void)io;
    (void)rc;
}

/* A daemon that is killed with writes in flight does not keep the next one out. */
static void open_after_kill(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
        int fds[2], status;
        pid_t pid;
        char c;

        assert_int_equal(pipe(fds), 0);
        pid = fork();
        if (pid == 0) {
            struct zn_options o = { .path = path, .size_bytes = SIZE };
            static struct zn_io io[ZN_DEPTH_DEFAULT];
            void *buf = NULL;
            struct zn_engine *e;

            if (zn_open(&e, &o, NULL) < 0 || posix_memalign(&buf, 4096, 1 << 20) != 0)
                _exit(1);
            for (size_t i = 0; i < ZB_COUNT(io); i++) {
                io[i] = (struct zn_io){ .op = ZN_WRITE,
                                        .buf = buf,
                                        .len_bytes = 1 << 20,
                                        .off_bytes = ZN_DATA_START,
                                        .done = nothing_done };
                (void)zn_submit(e, &io[i]);
            }
            zn_kick(e);
            (void)!write(fds[1], "k", 1);
            (void)pause();
            _exit(1);
        }
        assert_int_equal(read(fds[0], &c, 1), 1);
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        if (try_open(path, SIZE, NULL) != 0)
            fail_msg("%s", err.text);
        (void)close(fds[0]);
        (void)close(fds[1]);
    }
    assert_int_equal(unlink(path), 0);
}

/* The process that took the lock is gone, but its file is still held. Here by a child; in practice
 * by an io_uring whose last writes are in flight. */
static void open_after_death(void **state)
{
    int fd, status;
    pid_t pid;

    (void)state;
    assert_int_equal(try_open(path, SIZE, NULL), 0);
    pid = fork();
    if (pid == 0) {
        fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
            _exit(1);
        if (fork() == 0) {
            (void)usleep(2500 * 1000);
            _exit(0);
        }
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    if (try_open(path, SIZE, NULL) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(unlink(path), 0);
}

static int child_nobody(const void *arg)
{
    if (setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0)
        return 2;
    return try_open(arg, SIZE, NULL) == -EACCES && strstr(err.text, "user 65534 may not write") ? 0
                                                                                                : 1;
}

static void open_not_allowed(void **state)
{
    int rc;

    (void)state;
    rc = zn_test_child(child_nobody, path);
    if (rc == 2) {
        ztest_skip("only root can become another user");
    }
    assert_int_equal(rc, 0);
}

/* Mounts; false (with a message) if that is not permitted. */
static bool mount_up(const char *type, const char *what, unsigned long flags, const char *data)
{
    assert_true(mkdir(mnt, 0700) == 0 || errno == EEXIST);
    if (mount(what, mnt, type, flags, data) == 0)
        return true;
    print_message("skipped: mount of %s: %s\n", type, strerror(errno));
    (void)rmdir(mnt);
    return false;
}

static void mount_down(void)
{
    assert_int_equal(umount2(mnt, MNT_DETACH), 0);
    assert_int_equal(rmdir(mnt), 0);
}

static void open_read_only(void **state)
{
    char at[400];

    (void)state;
    (void)snprintf(at, sizeof(at), "%s/data", mnt);
    if (!mount_up("tmpfs", "none", MS_RDONLY, "size=1m"))
        skip();
    assert_int_equal(try_open(at, SIZE, NULL), -EROFS);
    expect_text("read-only", "the file system is mounted read-only");
    mount_down();
}

/* Makes the file system full, to the last page. */
static void file_fill(const char *name)
{
    struct statvfs vfs;
    int fd = open(name, O_WRONLY | O_CLOEXEC);

    assert_int_equal(fstatvfs(fd, &vfs), 0);
    assert_int_equal(
        fallocate(fd, 0, (off_t)vfs.f_bsize, (off_t)((uint64_t)vfs.f_bfree * vfs.f_bsize)), 0);
    assert_int_equal(close(fd), 0);
}

/* The file system is too small; a file that should grow keeps its old length. */
static void open_no_room(void **state)
{
    char at[400], other[400];
    int fd;

    (void)state;
    (void)snprintf(at, sizeof(at), "%s/data", mnt);
    (void)snprintf(other, sizeof(other), "%s/other", mnt);
    if (!mount_up("tmpfs", "none", 0, "size=2m"))
        skip();
    assert_int_equal(try_open(at, 4 * ZB_MIB, NULL), -ENOSPC);
    expect_text("no room", "no room for 4.00 MiB at '");
    expect_text("no room", "the file system has 2.00 MiB free");
    assert_int_equal(file_size(at), 0);
    assert_int_equal(try_open(at, ZB_MIB, NULL), 0);
    assert_int_equal(try_open(at, 4 * ZB_MIB, NULL), -ENOSPC);
    assert_int_equal(file_size(at), ZB_MIB);
    assert_int_equal(try_open(at, ZB_MIB, NULL), 0);
    assert_int_equal(unlink(at), 0);
    file_make(other, "x", 1, 1);
    file_fill(other);
    assert_int_equal(try_open(at, ZB_MIB, NULL), -ENOSPC);
    expect_text("full", "has 0 B free");
    assert_int_equal(unlink(other), 0);
    assert_int_equal(try_open(at, ZB_MIB, NULL), 0);
    fd = open(at, O_RDWR | O_CLOEXEC); /* a discard that did not come to its end */
    assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 * 65536, 65536),
                     0);
    assert_int_equal(close(fd), 0);
    file_make(other, "x", 1, 1);
    file_fill(other);
    assert_int_equal(try_open(at, ZB_MIB, NULL), -ENOSPC);
    expect_text("a hole", "has 960 KiB of its 1.00 MiB");
    assert_int_equal(unlink(other), 0);
    assert_int_equal(try_open(at, ZB_MIB, NULL), 0);
    mount_down();
}

/* ramfs supports neither O_DIRECT nor fallocate(). */
static void open_without_help(void **state)
{
    struct zn_options o = { .size_bytes = SIZE };
    unsigned char *buf = zn_test_memory(4096);
    struct zn_engine *e;
    char at[400];

    (void)state;
    (void)snprintf(at, sizeof(at), "%s/data", mnt);
    o.path = at;
    if (!mount_up("ramfs", "none", 0, NULL)) {
        free(buf);
        skip();
    }
    assert_int_equal(zn_open(&e, &o, NULL), 0);
    assert_false(zn_info(e)->direct);
    assert_true(strstr(zn_info(e)->why_buffered, "O_DIRECT") != NULL);
    assert_true(zn_info(e)->sparse);
    assert_int_equal(zn_info(e)->align_bytes, 4096);
    assert_int_equal(file_size(at), SIZE);
    assert_int_equal(zn_test_io(e, ZN_READ, buf, 4096, SIZE - 4096), 0);
    assert_int_equal(buf[4095], 0);
    zn_close(e);
    mount_down();
    free(buf);
}

static void open_device(void **state)
{
    unsigned char *buf = zn_test_memory(8192);
    struct zn_options o = { .size_bytes = SIZE };
    char image[400], device[64];
    struct zn_engine *e;
    int fd;

    (void)state;
    (void)snprintf(image, sizeof(image), "%s/image", dir);
    file_make(image, "", 0, 2 * ZB_MIB);
    if (!zn_test_loop_up(image, device, sizeof(device), &fd)) {
        free(buf);
        skip();
    }
    assert_int_equal(try_open(device, 4 * ZB_MIB, NULL), -ENOSPC);
    expect_text("a small device", "has 2.00 MiB, less than the 4.00 MiB asked for");
    o.path = device;
    for (int round = 0; round < 2; round++) {
        if (zn_open(&e, &o, &err) < 0)
            fail_msg("%s", err.text);
        assert_false(zn_info(e)->sparse);
        assert_int_equal(zn_test_io(e, ZN_READ, buf, 8192, SIZE - 8192), 0);
        assert_int_equal(buf[8191], round);
        memset(buf, 1, 8192);
        assert_int_equal(zn_test_io(e, ZN_WRITE, buf, 8192, SIZE - 8192), 0);
        assert_int_equal(zn_test_io(e, ZN_FLUSH, NULL, 0, 0), 0);
        zn_close(e);
    }
    assert_int_equal(try_open(device, ZB_MIB, NULL), -EINVAL);
    expect_text("smaller than before", "more than the 1.00 MiB asked for");
    assert_int_equal(pwrite(fd, "mark", 4, 0), 4);
    assert_int_equal(try_open(device, SIZE, NULL), -EMEDIUMTYPE);
    zb_close_fd(&fd);
    free(buf);
    assert_int_equal(unlink(image), 0);
}

/* A system call is refused, in a child: the result of an open, and its message. */
struct refused {
    const char *name, *io;
    struct zn_test_refusal refusals[3];
    int rc;
    const char *text; /* in the error message; or, after success, in one of the whys of zn_info() */
};

#define REFUSE_URING(error)           \
    {                                 \
        __NR_io_uring_setup, error, 0 \
    }
#define REFUSE_THREADS          \
    { __NR_clone3, EAGAIN, 0 }, \
    {                           \
        __NR_clone, EAGAIN, 0   \
    }

static const struct refused refused_cases[] = {
    { "auto, and io_uring is forbidden", NULL, { REFUSE_URING(EPERM) }, 0, "seccomp" },
    { "auto, and there is no io_uring", "auto", { REFUSE_URING(ENOSYS) }, 0, "has none" },
    { "auto, and no memory", "auto", { REFUSE_URING(ENOMEM) }, 0, "MEMLOCK" },
    { "auto, and no flag is known", "auto", { REFUSE_URING(EINVAL) }, 0, "Invalid" },
    { "auto, and no descriptor left", "auto", { REFUSE_URING(EMFILE) }, 0, "Too many" },
    { "auto, and nothing may be registered",
      NULL,
      { { __NR_io_uring_register, EACCES, 0 } },
      0,
      "takes no file or no wake-up: Permission denied" },
    { "auto, and the ring may not be entered",
      NULL,
      { { __NR_io_uring_enter, EPERM, 0 } },
      0,
      "a first read by uring is refused: Operation not permitted" },
    { "uring, and no restrictions",
      "uring",
      { { __NR_io_uring_register, EINVAL, IORING_REGISTER_RESTRICTIONS } },
      0,
      "io_uring takes no restrictions: Invalid" },
    { "uring, and no table for memory",
      "uring",
      { { __NR_io_uring_register, EINVAL, IORING_REGISTER_BUFFERS2 } },
      0,
      "no table for memory" },
    { "uring, and the ring stays disabled",
      "uring",
      { { __NR_io_uring_register, EPERM, IORING_REGISTER_ENABLE_RINGS } },
      -EPERM,
      "cannot be enabled" },
    { "uring is forced, and forbidden",
      "uring",
      { REFUSE_URING(EPERM) },
      -EPERM,
      "no I/O engine starts: io_uring is refused: Operation not permitted (sysctl" },
    { "uring is forced, and there is none", "uring", { REFUSE_URING(ENOSYS) }, -ENOSYS, "none" },
    { "threads are forced, and there are none",
      "threads",
      { REFUSE_THREADS },
      -EAGAIN,
      "start I/O thread 1 of 16: Resource" },
    { "neither",
      "auto",
      { REFUSE_URING(EPERM), REFUSE_THREADS },
      -EAGAIN,
      "profile); start I/O thread" },
    { "threads are forced", "threads", { REFUSE_URING(EPERM) }, 0, "" },
    { "no wake-up", NULL, { { __NR_eventfd2, EMFILE, 0 } }, -EMFILE, "wake-up of the I/O engine" },
    { "no lock", NULL, { { __NR_flock, ENOLCK, 0 } }, -ENOLCK, "lock data file" },
    { "no stat",
      NULL,
      { { __NR_newfstatat, EIO, 0 }, { __NR_fstat, EIO, 0 } },
      -EIO,
      "Input/output error" },
    { "no read", NULL, { { __NR_pread64, EIO, 0 } }, -EIO, "read the beginning of '" },
    { "no read by the engine",
      "threads",
      { { __NR_pread64, EIO, 4096 } },
      -EIO,
      "a first read by threads fails: Input/output" },
    { "no read with O_DIRECT",
      "uring",
      { { __NR_pread64, EINVAL, 4096 } },
      0,
      "accepts O_DIRECT and refuses to read" },
    { "no O_DIRECT", "threads", { { __NR_fcntl, EINVAL, 0 } }, 0, "refuses O_DIRECT" },
    { "no word about alignment", "threads", { { __NR_statx, ENOSYS, 0 } }, 0, "" },
    { "no reservation", "threads", { { __NR_fallocate, EOPNOTSUPP, 0 } }, 0, "" },
    { "no reservation, no word about room",
      "threads",
      { { __NR_fallocate, EOPNOTSUPP, 0 }, { __NR_fstatfs, ENOSYS, 0 } },
      0,
      "" },
    { "no reservation, no length",
      "threads",
      { { __NR_fallocate, EOPNOTSUPP, 0 }, { __NR_ftruncate, EFBIG, 0 } },
      -EFBIG,
      "set the length of" },
    { "a reservation fails",
      "threads",
      { { __NR_fallocate, EFBIG, 0 } },
      -EFBIG,
      "reserve 1.06 MiB" },
    { "no superblock", "threads", { { __NR_pwrite64, EIO, 0 } }, -EIO, "write the superblock" },
    { "a length that stays in the cache",
      "threads",
      { { __NR_fdatasync, EIO, 0 } },
      -EIO,
      "flush the length" },
};

static int child_refused(const void *arg)
{
    const struct refused *c = arg;
    struct zn_options o = { .path = path, .size_bytes = SIZE, .io = c->io };
    struct zn_engine *e = NULL;
    const char *runs = c->io && strcmp(c->io, "uring") == 0 ? "uring" : "threads";
    bool sparse = c->refusals[0].nr == __NR_fallocate;
    unsigned count = 0;
    int rc;

    while (count < ZB_COUNT(c->refusals) && c->refusals[count].error != 0)
        count++;
    rc = zn_test_refuse(c->refusals, count);
    if (rc < 0)
        return 2;
    err = (struct zb_err){ 0 };
    rc = zn_open(&e, &o, &err);
    if (rc != c->rc || err.code != rc ||
        (rc < 0 && (!strstr(err.text, c->text) || file_size(path) > 0)) ||
        (rc == 0 &&
         ((!strstr(zn_info(e)->why, c->text) && !strstr(zn_info(e)->why_buffered, c->text) &&
           !strstr(zn_info(e)->why_unregistered, c->text)) ||
          strcmp(zn_info(e)->io, runs) != 0 || zn_info(e)->sparse != sparse))) {
        (void)fprintf(stderr, "%d '%s', why '%s' and '%s'\n", rc, err.text,
                      e ? zn_info(e)->why : "", e ? zn_info(e)->why_buffered : "");
        return 1;
    }
    /* what is reported is what is done */
    if (e && c->refusals[0].nr != __NR_fcntl &&
        ((fcntl(e->file.fd, F_GETFL) & O_DIRECT) != 0) != zn_info(e)->direct)
        return 3;
    zn_close(e);
    return 0;
}

/* Some refusals are only meaningful where the system call works otherwise. */
static bool refused_can_tell(const struct refused *c, bool uring, bool direct)
{
    int nr = c->refusals[0].nr;
    bool needs_uring = nr == __NR_io_uring_register || nr == __NR_io_uring_enter ||
                       (c->rc == 0 && c->io && strcmp(c->io, "uring") == 0);

    return (uring || !needs_uring) && (direct || !strstr(c->text, "O_DIRECT"));
}

static void open_refused(void **state)
{
    struct zn_options o = { .path = path, .size_bytes = SIZE };
    struct zn_engine *e;
    bool uring, direct;

    (void)state;
    assert_int_equal(zn_open(&e, &o, NULL), 0);
    uring = strcmp(zn_info(e)->io, "uring") == 0;
    direct = zn_info(e)->direct;
    zn_close(e);
    assert_int_equal(unlink(path), 0);
    for (size_t i = 0; i < ZB_COUNT(refused_cases); i++) {
        int rc;

        if (!refused_can_tell(&refused_cases[i], uring, direct)) {
            print_message("%s: skipped: it needs io_uring or O_DIRECT\n", refused_cases[i].name);
            continue;
        }
        rc = zn_test_child(child_refused, &refused_cases[i]);
        if (rc == 2) {
            ztest_skip("no seccomp filter here");
        }
        if (rc != 0)
            fail_msg("%s: exit %d", refused_cases[i].name, rc);
        assert_true(unlink(path) == 0 || errno == ENOENT); /* it may not have been created yet */
    }
}

/* More than unprivileged users may have: refused before anything is reserved. */
static int child_too_large(const void *arg)
{
    static const struct zn_test_refusal refusal = { __NR_fallocate, EIO, 0 };
    struct statvfs vfs;

    (void)arg;
    if (statvfs(dir, &vfs) < 0 || zn_test_refuse(&refusal, 1) < 0)
        return 2;
    err = (struct zb_err){ 0 };
    if (try_open(path, (uint64_t)vfs.f_bavail * vfs.f_frsize / 4096 * 4096 + (UINT64_C(1) << 30),
                 NULL) == -ENOSPC &&
        file_size(path) <= 0)
        return 0;
    (void)fprintf(stderr, "%d '%s'\n", err.code, err.text);
    return 1;
}

static void open_too_large(void **state)
{
    int rc;

    (void)state;
    rc = zn_test_child(child_too_large, NULL);
    if (rc == 2) {
        ztest_skip("no seccomp filter here");
    }
    assert_int_equal(rc, 0);
    assert_true(unlink(path) == 0 || errno == ENOENT);
}

static int child_kernel_busy(const void *arg)
{
    static const struct zn_test_refusal refusal = { __NR_io_uring_enter, EAGAIN, 0 };
    struct zn_options o = { .path = path, .size_bytes = SIZE, .io = "uring" };
    struct zn_io io = { .op = ZN_FLUSH, .done = nothing_done };
    struct pollfd p = { .events = POLLIN };
    struct zn_engine *e;

    (void)arg;
    if (zn_open(&e, &o, NULL) < 0 || zn_test_refuse(&refusal, 1) < 0)
        return 2;
    p.fd = zn_wake_fd(e);
    if (zn_submit(e, &io) != 0)
        return 1;
    for (int turn = 0; turn < 3; turn++) {
        zn_kick(e);
        if (poll(&p, 1, 0) != 1 || !zn_test_wait(e) || zn_reap(e, 1) != 0 ||
            zn_stats(e).inflight != 1)
            return 1;
    }
    return 0;
}

/* The kernel has no memory for a submission: it stays queued, and the engine asks the caller to
 * kick again. */
static void open_kernel_busy(void **state)
{
    int rc;

    (void)state;
    rc = zn_test_child(child_kernel_busy, NULL);
    if (rc == 2) {
        ztest_skip("no io_uring or no seccomp filter here");
    }
    assert_int_equal(rc, 0);
    assert_int_equal(unlink(path), 0);
}

static int child_file_limit(const void *arg)
{
    struct rlimit limit = { 65536, 65536 };

    (void)arg;
    (void)signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) < 0)
        return 2;
    return try_open(path, SIZE, NULL) == -EFBIG && file_size(path) == 0 ? 0 : 1;
}

static void open_file_limit(void **state)
{
    (void)state;
    assert_int_equal(zn_test_child(child_file_limit, NULL), 0);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(open_options),      cmocka_unit_test(open_paths),
        cmocka_unit_test(open_foreign),      cmocka_unit_test(open_again),
        cmocka_unit_test(open_twice),        cmocka_unit_test(open_after_fork),
        cmocka_unit_test(open_after_kill),   cmocka_unit_test(open_after_death),
        cmocka_unit_test(open_not_allowed),  cmocka_unit_test(open_read_only),
        cmocka_unit_test(open_no_room),      cmocka_unit_test(open_too_large),
        cmocka_unit_test(open_without_help), cmocka_unit_test(open_device),
        cmocka_unit_test(open_refused),      cmocka_unit_test(open_kernel_busy),
        cmocka_unit_test(open_file_limit),
    };

    return cmocka_run_group_tests(tests, dir_up, dir_down);
}
